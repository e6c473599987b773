//! What is done to a tree, on either side.

use dioxide::{FallocateMode, Special, Timestamp};

/// One call. Paths are absolute in the image; symlinks in the last part are not followed.
#[derive(Clone, Debug)]
pub enum Op {
    Dir(Vec<u8>, u16),
    File(Vec<u8>, u16),
    Symlink(Vec<u8>, Vec<u8>),
    Special(Vec<u8>, Special),
    Link(Vec<u8>, Vec<u8>),
    Unlink(Vec<u8>),
    Rmdir(Vec<u8>),
    Rename(Vec<u8>, Vec<u8>),
    Exchange(Vec<u8>, Vec<u8>),
    /// So many bytes of the pattern of a seed, at an offset.
    Write(Vec<u8>, u64, usize, u64),
    Truncate(Vec<u8>, u64),
    Fallocate(Vec<u8>, FallocateMode, u64, u64),
    Xattr(Vec<u8>, &'static str, Vec<u8>),
    RemoveXattr(Vec<u8>, &'static str),
    Chmod(Vec<u8>, u16),
    Chown(Vec<u8>, u32, u32),
    Mtime(Vec<u8>, Timestamp),
    /// Inode flags to set, of those that users change.
    Flags(Vec<u8>, u32),
}

/// What a call answered: `errno` if it failed.
pub type Answer = Result<(), i32>;
