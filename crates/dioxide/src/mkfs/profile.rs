//! What the types and sizes of file systems bring with them: the values of the configuration that
//! e2fsprogs 1.47 is packaged with.
//!
//! Rejected: reading the host's `mke2fs.conf`. The same call would make another file system on
//! another machine. Rejected too: `orphan_file` and `metadata_csum_seed` by default, which e2fsprogs
//! itself proposes: distributions take them out again, as boot loaders refuse them.

use dioxide_format::features::{Compat, Features, Incompat, RoCompat};
use std::fmt;
use std::str::FromStr;

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// Which generation of the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsType {
    /// Without a journal.
    Ext2,
    /// With a journal, otherwise as ext2.
    Ext3,
    /// With extents, checksums, flexible groups and large numbers.
    #[default]
    Ext4,
}

impl FsType {
    /// The features that it has unless they are taken out.
    pub fn features(self) -> Features {
        let mut features = Features {
            compat: Compat::RESIZE_INODE | Compat::DIR_INDEX | Compat::EXT_ATTR,
            incompat: Incompat::FILETYPE,
            ro_compat: RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE,
        };
        if self != FsType::Ext2 {
            features.compat = features.compat | Compat::HAS_JOURNAL;
        }
        if self == FsType::Ext4 {
            features.incompat =
                features.incompat | Incompat::EXTENTS | Incompat::FLEX_BG | Incompat::BIT64;
            features.ro_compat = features.ro_compat
                | RoCompat::HUGE_FILE
                | RoCompat::METADATA_CSUM
                | RoCompat::DIR_NLINK
                | RoCompat::EXTRA_ISIZE;
        }
        features
    }
}

impl fmt::Display for FsType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FsType::Ext2 => "ext2",
            FsType::Ext3 => "ext3",
            FsType::Ext4 => "ext4",
        })
    }
}

impl FromStr for FsType {
    type Err = crate::Error;

    fn from_str(s: &str) -> crate::Result<FsType> {
        let types = [FsType::Ext2, FsType::Ext3, FsType::Ext4];
        let found = types.into_iter().find(|t| t.to_string() == s);
        found.ok_or_else(|| {
            crate::Error::Invalid(format!("'{s}' is not a type; there are ext2, ext3, ext4"))
        })
    }
}

/// What follows from the size: bytes per block and bytes per inode.
pub(super) fn usage(size_bytes: u64) -> (u32, u64) {
    match size_bytes {
        s if s < 3 * MIB => (1024, 8192),
        s if s < 512 * MIB => (1024, 4096),
        s if s < 4 * TIB => (4096, 16384),
        s if s < 16 * TIB => (4096, 32768),
        _ => (4096, 65536),
    }
}

/// Blocks of the log of a file system of so many blocks; none when it is too small for one.
pub(super) fn journal_blocks(fs_blocks: u64) -> Option<u32> {
    const KI: u64 = 1024;
    Some(match fs_blocks {
        0..2048 => return None,
        b if b < 32 * KI => 1024,
        b if b < 256 * KI => 4096,
        b if b < 512 * KI => 8192,
        b if b < 4096 * KI => 16384,
        b if b < 8192 * KI => 32768,
        b if b < 16384 * KI => 65536,
        b if b < 32768 * KI => 131_072,
        _ => 262_144,
    })
}

/// Blocks of the orphan file of a file system of so many blocks.
pub(super) fn orphan_file_blocks(fs_blocks: u64) -> u64 {
    match fs_blocks {
        b if b < 128 * 1024 => 32,
        b if b < 2048 * 1024 => b / 4096,
        _ => 512,
    }
}
