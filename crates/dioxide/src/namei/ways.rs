//! Paths of directories that were walked, in memory: the next name in one of them needs no walk.
//!
//! Invariant: what is found is where a walk would lead at some moment of the call. Names of directories and symlinks
//! that change or go count the version up after they did, and before whoever changed them returns; an entry of another
//! version is not used. New names do not: a path that leads somewhere leads there as well afterwards.
//!
//! An entry does not keep its directory in memory; that is the inode cache's business.
//!
//! Rejected: entries per thread, which outlive the mount. Looking each part of the path up among the [`Dentries`]: two caches with a lock each
//! per part, and the root's count of users is where all threads meet.
//!
//! [`Dentries`]: super::Dentries

use crate::FileType;
use crate::inode::Inode;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

const SLOTS: usize = 1 << 6;
/// Longer paths are walked.
const MAX_BYTES: usize = 512;

/// The paths in memory of a mount.
#[derive(Debug)]
pub(crate) struct Ways {
    version: AtomicU64,
    slots: [Slot; SLOTS],
}

/// On a cache line of its own, so that threads in different directories do not meet.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot(Mutex<Option<Way>>);

#[derive(Debug)]
struct Way {
    path: Box<[u8]>,
    version: Version,
    dir: Weak<Inode>,
}

/// A moment in the life of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version(u64);

impl Ways {
    pub(crate) fn new() -> Ways {
        Ways {
            version: AtomicU64::new(0),
            slots: std::array::from_fn(|_| Slot::default()),
        }
    }

    /// To be asked before a walk whose result is to be remembered.
    pub(super) fn version(&self) -> Version {
        Version(self.version.load(Ordering::Acquire))
    }

    fn slot(&self, path: &[u8]) -> &Slot {
        let mix = |hash: u64, part: &[u8]| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            // 2^64 divided by the golden ratio.
            (hash.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        };
        let hash = path.chunks(8).fold(0, mix);
        // The high bits know of every byte.
        &self.slots[(hash >> 58) as usize]
    }

    /// The directory that a path leads to, if that is remembered.
    pub(super) fn get(&self, path: &[u8]) -> Option<Arc<Inode>> {
        let slot = self.slot(path).0.lock();
        let way = slot.as_ref()?;
        let is_it = *way.path == *path && way.version == self.version();
        is_it.then(|| way.dir.upgrade())?
    }

    /// A walk that began at `version` led to this directory.
    pub(super) fn put(&self, path: &[u8], version: Version, dir: &Arc<Inode>) {
        if path.len() > MAX_BYTES || dir.file_type() != FileType::Directory {
            return;
        }
        let way = Way {
            path: path.into(),
            version,
            dir: Arc::downgrade(dir),
        };
        *self.slot(path).0.lock() = Some(way);
    }

    /// A name stands for this file no more.
    pub(super) fn left(&self, inode: &Inode) {
        if matches!(inode.file_type(), FileType::Directory | FileType::Symlink) {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
    }
}
