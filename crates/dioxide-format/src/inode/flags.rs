//! Inode flags, by the names and letters that `lsattr` prints; the last two it does not print.

use std::fmt;

macro_rules! inode_flags {
    ($( $bit:literal $konst:ident $letter:literal $name:literal, )*) => {
        /// The flags of an inode, `i_flags`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct InodeFlags(pub u32);

        impl InodeFlags {
            $(
                #[doc = concat!("`", $name, "`.")]
                pub const $konst: Self = Self($bit);
            )*

            /// Bit, letter (0 for none), name; in the order of `lsattr`.
            const TABLE: &[(u32, char, &str)] = &[ $( ($bit, $letter, $name), )* ];
        }
    };
}

inode_flags! {
    0x0000_0001 SECRM 's' "Secure_Deletion",
    0x0000_0002 UNRM 'u' "Undelete",
    0x0000_0008 SYNC 'S' "Synchronous_Updates",
    0x0001_0000 DIRSYNC 'D' "Synchronous_Directory_Updates",
    0x0000_0010 IMMUTABLE 'i' "Immutable",
    0x0000_0020 APPEND 'a' "Append_Only",
    0x0000_0040 NODUMP 'd' "No_Dump",
    0x0000_0080 NOATIME 'A' "No_Atime",
    0x0000_0004 COMPR 'c' "Compression_Requested",
    0x0000_0800 ENCRYPT 'E' "Encrypted",
    0x0000_4000 JOURNAL_DATA 'j' "Journaled_Data",
    0x0000_1000 INDEX 'I' "Indexed_directory",
    0x0000_8000 NOTAIL 't' "No_Tailmerging",
    0x0002_0000 TOPDIR 'T' "Top_of_Directory_Hierarchies",
    0x0008_0000 EXTENTS 'e' "Extents",
    0x0080_0000 NOCOW 'C' "No_COW",
    0x0200_0000 DAX 'x' "DAX",
    0x4000_0000 CASEFOLD 'F' "Casefold",
    0x1000_0000 INLINE_DATA 'N' "Inline_Data",
    0x2000_0000 PROJINHERIT 'P' "Project_Hierarchy",
    0x0010_0000 VERITY 'V' "Verity",
    0x0000_0400 NOCOMPR 'm' "Dont_Compress",
    0x0004_0000 HUGE_FILE '\0' "Huge_File",
    0x0020_0000 EA_INODE '\0' "EA_Inode",
}

impl InodeFlags {
    /// Whether every bit of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Long names of the bits that are set, as `lsattr -l` prints them.
    pub fn names(self) -> Vec<&'static str> {
        self.set_rows().map(|(_, _, name)| *name).collect()
    }

    /// Letters of the bits that are set, in the order of `lsattr`, without its dashes.
    pub fn letters(self) -> String {
        self.set_rows()
            .map(|(_, letter, _)| *letter)
            .filter(|&letter| letter != '\0')
            .collect()
    }

    fn set_rows(self) -> impl Iterator<Item = &'static (u32, char, &'static str)> {
        Self::TABLE
            .iter()
            .filter(move |(bit, _, _)| self.0 & bit != 0)
    }
}

impl std::ops::BitOr for InodeFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl fmt::Display for InodeFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(", "))
    }
}
