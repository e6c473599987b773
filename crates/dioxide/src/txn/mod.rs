//! Changing the file system: what a mount has beyond one that only reads and overwrites.
//!
//! For: the journal, the allocators and the orphans together, made at the first change; inodes and
//! the superblock as things that are changed through a handle. Not for: deciding what to change.
//!
//! | Module | Holds |
//! |---|---|
//! | [`damage`] | what happens when damage is met |
//! | [`writer`] | the parts together; the first change and the clean end |
//! | [`superblock`] | its state on the disk |
//! | [`inode`] | writing an inode back |
//! | [`file`] | one file's map and blocks under change |
//! | [`orphan`] | inodes that a crash leaves work for |
//! | [`quota`] | who uses how much |
//! | [`sync`] | what fsync and its kin wait for |
//!
//! Invariants:
//! - An image is only marked as in use once something in it changes. Who opens a file system for
//!   writing and overwrites files, or nothing, leaves it as clean as it was.
//! - The superblock is written outside of transactions only while none is open: when the writer is
//!   made, and after the log was emptied; and once the journal was aborted, to say why.
//!
//! Locks: a handle is started before the map's lock is taken, and no handle is started with it held.

pub(crate) mod damage;
pub(crate) mod file;
pub(crate) mod inode;
#[cfg(test)]
mod judged;
pub(crate) mod orphan;
pub(crate) mod quota;
pub(crate) mod superblock;
pub(crate) mod sync;
pub(crate) mod writer;

pub(crate) use writer::{Tries, Writer};
