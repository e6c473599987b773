//! Newtypes for the indices of the format. They do not convert into each other: a mistake of one
//! for another is a compile error.

use std::fmt;

macro_rules! index {
    ($(#[$meta:meta])* $name:ident($inner:ty)) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// The plain number.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

index! {
    /// Logical block: position within a file, in file-system blocks.
    Lblk(u32)
}
index! {
    /// Physical block: position within the file system, in file-system blocks.
    Pblk(u64)
}
index! {
    /// Block group.
    Group(u32)
}
index! {
    /// Inode number. Zero means none.
    Ino(u32)
}

impl Ino {
    /// The bad-blocks file.
    pub const BAD_BLOCKS: Self = Self(1);
    /// The root directory.
    pub const ROOT: Self = Self(2);
    /// The quotas of users, where they are kept.
    pub const USER_QUOTA: Self = Self(3);
    /// The same of groups.
    pub const GROUP_QUOTA: Self = Self(4);
    /// What a boot loader keeps.
    pub const BOOT_LOADER: Self = Self(5);
    /// The file that holds blocks reserved for growth of the descriptor table.
    pub const RESIZE: Self = Self(7);
    /// The journal.
    pub const JOURNAL: Self = Self(8);
}
