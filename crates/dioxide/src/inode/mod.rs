//! An inode in memory.

mod load;

pub(crate) use load::InodeCache;

use crate::map::ExtentMap;
use crate::sync::inflight::InFlight;
use crate::sync::rwsem::{Presence, Rwsem};
use dioxide_format::inode::Inode as DiskInode;
use dioxide_format::types::Ino;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// An inode in memory: one per inode and mount, shared by all handles.
///
/// Which lock guards what is in `docs/LOCKING.md`; in short, `rwsem` guards the sizes and the map
/// against change, and both may be sampled without it.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) ino: Ino,
    /// As read from the disk. Nothing changes it until metadata can be written.
    pub(crate) disk: DiskInode,
    /// The raw bytes it was parsed from (`inode_size` of them): holds the in-inode attributes.
    pub(crate) raw: Box<[u8]>,
    pub(crate) rwsem: Rwsem,
    pub(crate) in_flight: InFlight,
    pub(crate) map: ExtentMap,
    i_size: AtomicU64,
    i_disksize: AtomicU64,
    /// What the short paths ask of the inode, in one number each: requests that end at or before it
    /// may take them. 0 if none may.
    short_read_end: AtomicU64,
    short_write_end: AtomicU64,
    /// Time of the last overwrite in this mount, in nanoseconds since 1970, or [`NEVER`]. Stays in
    /// memory: it is mtime and ctime for `stat`, and is not written to the disk.
    modified_ns: AtomicI64,
    /// A write strips privileges unless this holds: no set-user-ID, no executable set-group-ID, no
    /// `security.capability` attribute.
    pub(crate) nosec: Nosec,
}

/// What an inode has that a write by somebody without `CAP_FSETID` must strip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nosec {
    /// Set-user-ID, or set-group-ID with group execution.
    pub(crate) set_id: bool,
    /// A `security.capability` attribute, stripped whoever writes.
    pub(crate) capability: bool,
}

const NEVER: i64 = i64::MIN;

impl Inode {
    /// `id` names the inode in the mount's presence and in-flight tables.
    pub(crate) fn new(
        ino: Ino,
        id: u64,
        disk: DiskInode,
        raw: Box<[u8]>,
        nosec: Nosec,
        presence: Arc<Presence>,
    ) -> Inode {
        let size = disk.size();
        let inode = Inode {
            ino,
            disk,
            raw,
            rwsem: Rwsem::new(id, presence),
            in_flight: InFlight::new(id),
            map: ExtentMap::new(),
            i_size: AtomicU64::new(0),
            i_disksize: AtomicU64::new(0),
            short_read_end: AtomicU64::new(0),
            short_write_end: AtomicU64::new(0),
            modified_ns: AtomicI64::new(NEVER),
            nosec,
        };
        inode.set_size(size);
        inode
    }

    /// Changes both sizes. The caller holds the rwsem exclusive, or is the only one to know the
    /// inode.
    pub(crate) fn set_size(&self, size: u64) {
        self.i_size.store(size, Ordering::Release);
        self.i_disksize.store(size, Ordering::Release);
        let read_end = if self.is_plain_data() { size } else { 0 };
        let strips = self.nosec.set_id || self.nosec.capability;
        let write_end = if strips { 0 } else { read_end };
        self.short_read_end.store(read_end, Ordering::Release);
        self.short_write_end.store(write_end, Ordering::Release);
    }

    /// Up to where small reads may take the simple path.
    #[inline(always)]
    pub(crate) fn short_read_end(&self) -> u64 {
        self.short_read_end.load(Ordering::Acquire)
    }

    /// Up to where overwrites may take the short path; if not 0, it is i_size.
    #[inline(always)]
    pub(crate) fn short_write_end(&self) -> u64 {
        self.short_write_end.load(Ordering::Acquire)
    }

    /// The size that readers see.
    #[inline]
    pub(crate) fn i_size(&self) -> u64 {
        self.i_size.load(Ordering::Acquire)
    }

    /// The size that is on the disk.
    #[inline]
    pub(crate) fn i_disksize(&self) -> u64 {
        self.i_disksize.load(Ordering::Acquire)
    }

    /// Records an overwrite at `now_ns`.
    #[inline]
    pub(crate) fn set_modified(&self, now_ns: i64) {
        if self.modified_ns.load(Ordering::Relaxed) != now_ns {
            self.modified_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// When this mount last overwrote the file, if it did, in nanoseconds since 1970.
    pub(crate) fn modified_ns(&self) -> Option<i64> {
        Some(self.modified_ns.load(Ordering::Relaxed)).filter(|&ns| ns != NEVER)
    }
}
