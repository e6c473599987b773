//! Feature sets of the superblock, by the names that e2fsprogs prints.
//!
//! Not for: deciding what an engine supports. It passes its own set to `unsupported`.

use std::fmt;

macro_rules! feature_set {
    (
        $(#[$meta:meta])*
        $set:ident, $letter:literal { $( $bit:literal $konst:ident $name:literal, )* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $set(pub u32);

        impl $set {
            $(
                #[doc = concat!("`", $name, "`.")]
                pub const $konst: Self = Self($bit);
            )*

            const NAMES: &[(u32, &str)] = &[ $( ($bit, $name), )* ];

            /// The plain bits.
            pub const fn bits(self) -> u32 {
                self.0
            }

            /// Whether every bit of `other` is set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The bits of both.
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The bits that are not in `supported`; `is_empty()` when all are.
            #[must_use]
            pub const fn unsupported(self, supported: Self) -> Self {
                Self(self.0 & !supported.0)
            }

            /// Whether no bit is set.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// The names of the bits that are set, from the lowest bit up. A bit without a name is
            #[doc = concat!("`FEATURE_", $letter, "n`, n being its index.")]
            pub fn names(self) -> Vec<String> {
                (0..32)
                    .filter(|index| self.0 & (1 << index) != 0)
                    .map(|index| Self::name_of(index))
                    .collect()
            }

            /// The bit of a name that `names` gives; none for other names.
            pub fn from_name(name: &str) -> Option<Self> {
                let row = Self::NAMES.iter().find(|(_, known)| *known == name);
                row.map(|(bit, _)| Self(*bit))
            }

            fn name_of(index: u32) -> String {
                Self::NAMES
                    .iter()
                    .find(|(bit, _)| *bit == 1 << index)
                    .map_or_else(|| format!(concat!("FEATURE_", $letter, "{}"), index), |(_, name)| (*name).to_owned())
            }
        }

        impl std::ops::BitOr for $set {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl fmt::Display for $set {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.names().join(" "))
            }
        }
    };
}

pub(crate) use feature_set;

feature_set! {
    /// Features that a reader or writer may ignore when it does not know them.
    Compat, "C" {
        0x0001 DIR_PREALLOC "dir_prealloc",
        0x0002 IMAGIC_INODES "imagic_inodes",
        0x0004 HAS_JOURNAL "has_journal",
        0x0008 EXT_ATTR "ext_attr",
        0x0010 RESIZE_INODE "resize_inode",
        0x0020 DIR_INDEX "dir_index",
        0x0040 LAZY_BG "lazy_bg",
        0x0100 EXCLUDE_BITMAP "snapshot_bitmap",
        0x0200 SPARSE_SUPER2 "sparse_super2",
        0x0400 FAST_COMMIT "fast_commit",
        0x0800 STABLE_INODES "stable_inodes",
        0x1000 ORPHAN_FILE "orphan_file",
    }
}

feature_set! {
    /// Features without which the file system must not be opened at all.
    Incompat, "I" {
        0x0000_0001 COMPRESSION "compression",
        0x0000_0002 FILETYPE "filetype",
        0x0000_0004 NEEDS_RECOVERY "needs_recovery",
        0x0000_0008 JOURNAL_DEV "journal_dev",
        0x0000_0010 META_BG "meta_bg",
        0x0000_0040 EXTENTS "extent",
        0x0000_0080 BIT64 "64bit",
        0x0000_0100 MMP "mmp",
        0x0000_0200 FLEX_BG "flex_bg",
        0x0000_0400 EA_INODE "ea_inode",
        0x0000_1000 DIRDATA "dirdata",
        0x0000_2000 CSUM_SEED "metadata_csum_seed",
        0x0000_4000 LARGE_DIR "large_dir",
        0x0000_8000 INLINE_DATA "inline_data",
        0x0001_0000 ENCRYPT "encrypt",
        0x0002_0000 CASEFOLD "casefold",
    }
}

feature_set! {
    /// Features without which the file system may be read, but not written.
    RoCompat, "R" {
        0x0000_0001 SPARSE_SUPER "sparse_super",
        0x0000_0002 LARGE_FILE "large_file",
        0x0000_0008 HUGE_FILE "huge_file",
        0x0000_0010 GDT_CSUM "uninit_bg",
        0x0000_0020 DIR_NLINK "dir_nlink",
        0x0000_0040 EXTRA_ISIZE "extra_isize",
        0x0000_0100 QUOTA "quota",
        0x0000_0200 BIGALLOC "bigalloc",
        0x0000_0400 METADATA_CSUM "metadata_csum",
        0x0000_0800 REPLICA "replica",
        0x0000_1000 READONLY "read-only",
        0x0000_2000 PROJECT "project",
        0x0000_4000 SHARED_BLOCKS "shared_blocks",
        0x0000_8000 VERITY "verity",
        0x0001_0000 ORPHAN_PRESENT "orphan_present",
    }
}

/// The three sets together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features {
    /// May be ignored.
    pub compat: Compat,
    /// Must be known to open.
    pub incompat: Incompat,
    /// Must be known to write.
    pub ro_compat: RoCompat,
}

impl Features {
    /// All names: compat, then incompat, then ro_compat.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.compat.names();
        names.extend(self.incompat.names());
        names.extend(self.ro_compat.names());
        names
    }

    /// Whether metadata carries crc32c checksums (`metadata_csum`).
    pub const fn metadata_csum(&self) -> bool {
        self.ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    /// Whether group descriptors carry a checksum of either kind, so that their `uninit` flags count.
    pub const fn group_csum(&self) -> bool {
        self.metadata_csum() || self.ro_compat.contains(RoCompat::GDT_CSUM)
    }
}
