//! Making file systems, compared with `mke2fs`, and judged by `e2fsck`, the kernel and dioxide itself.

#[path = "mkfs/compare.rs"]
mod compare;
#[path = "mkfs/device.rs"]
mod device;
#[path = "mkfs/limits.rs"]
mod limits;
#[path = "mkfs/safety.rs"]
mod safety;
#[path = "mkfs/use_of.rs"]
mod use_of;

use dioxide::Mkfs;
use dioxide::mkfs::{FsType, parse_uuid};
use dioxide_testkit::image::Dir;
use std::path::PathBuf;
use tempfile::TempDir;

pub(crate) const UUID: &str = "d10c1de0-0000-4000-8000-000000000001";
pub(crate) const HASH_SEED: &str = "d10c1de0-0000-4000-8000-000000000002";
pub(crate) const EPOCH: i64 = 1_700_000_000;

/// A directory in memory for images.
pub(crate) fn dir() -> TempDir {
    TempDir::new_in(Dir::Tmpfs.path()).expect("a temporary directory")
}

/// The file system that always comes out the same.
pub(crate) fn fixed() -> Mkfs {
    Mkfs::new()
        .uuid(parse_uuid(UUID).unwrap())
        .hash_seed(parse_uuid(HASH_SEED).unwrap())
        .epoch(EPOCH)
}

/// Wishes in the words of `mke2fs`: `-t ext3 -b 4096`.
pub(crate) fn from_words(words: &str) -> Mkfs {
    let words: Vec<&str> = words.split_whitespace().collect();
    words.chunks(2).fold(fixed(), |mkfs, pair| {
        let value = pair[1];
        let number = || value.parse::<u32>().expect("a number");
        match pair[0] {
            "-t" => Ok(mkfs.fs_type(value.parse::<FsType>().unwrap())),
            "-b" => mkfs.block_size(number()),
            "-C" => mkfs.cluster_size(number()),
            "-i" => mkfs.bytes_per_inode(number().into()),
            "-I" => mkfs.inode_size(number()),
            "-N" => Ok(mkfs.inodes_count(number())),
            "-m" => mkfs.reserved_percent(value.parse().expect("a percentage")),
            "-G" => mkfs.flex_groups(number()),
            "-L" => mkfs.label(value),
            "-O" => mkfs.features(value),
            "-E" => mkfs.extended(value),
            "-J" => mkfs.journal(value),
            other => panic!("{other}"),
        }
        .unwrap()
    })
}

/// An image in a directory of its own.
pub(crate) struct Made {
    dir: TempDir,
}

impl Made {
    pub(crate) fn new(mkfs: &Mkfs, size_bytes: u64) -> Made {
        let made = Made { dir: dir() };
        mkfs.create(&made.path(), Some(size_bytes)).unwrap();
        made
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("made.img")
    }
}
