//! The short paths: one lookup, one transfer, no allocation, no iteration.
//!
//! - A **small read**: at most one file-system block, inside i_size, mapped by one mapping (the
//!   simple path of the 2026 seed; can be switched off).
//! - A **shared overwrite**: a write that the policy lets stay under the shared lock, inside i_size,
//!   over one mapping of written blocks, with nothing to strip.
//!
//! Both are tried once, under the shared lock if that is free at once. Everything else, and every
//! odd case, is the general path's, which starts over and gives the same result; so nothing here
//! waits or fails, it only answers "here it is on the device" or "not mine".
//!
//! Every instruction here is paid on every request, and with data in memory more than once: the
//! processor overlaps the cache misses of successive requests only as far as its window of
//! instructions reaches. So the settings are one load (the mount's knobs), and what
//! the inode has to say is one load (its *short end*).

use super::Access;
use super::write::Memory;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::sync::rwsem::Announced;
use crate::sync::slot::Slot;

/// A request that one transfer serves.
pub(crate) struct Short<'a> {
    /// Where it lies on the device.
    pub(crate) device_offset: u64,
    /// Keeps the lock shared.
    _lock: Announced<'a>,
}

/// A read, if the simple path can serve it. Reads of other lengths, and of the simple path
/// switched off, are sorted out first.
#[inline(always)]
pub(crate) fn small_read<'a>(
    mount: &Mount,
    inode: &'a Inode,
    access: Access,
    offset: u64,
    len: usize,
    slot: Slot,
) -> Option<Short<'a>> {
    if !access.read || !is_small(mount, len) {
        return None;
    }
    let _lock = inode.rwsem.announce(slot)?;
    let device_offset = locate_read(mount, inode, offset, len)?;
    Some(Short {
        device_offset,
        _lock,
    })
}

/// Whether a read may be the simple path's, as far as that depends on its length and on settings.
#[inline(always)]
pub(crate) fn is_small(mount: &Mount, len: usize) -> bool {
    (len as u64).wrapping_sub(1) <= mount.block_mask && mount.knobs.sample().short_reads()
}

/// Where a small read lies on the device. Called under the shared lock.
#[inline(always)]
pub(crate) fn locate_read(mount: &Mount, inode: &Inode, offset: u64, len: usize) -> Option<u64> {
    let end = offset.checked_add(len as u64)?;
    if end > inode.short_read_end() || !mount.aligned(offset | len as u64) {
        return None;
    }
    mount.written_run(inode, offset, end)
}

/// A write, if it is a shared overwrite.
#[inline(always)]
pub(crate) fn shared_overwrite<'a>(
    mount: &Mount,
    inode: &'a Inode,
    access: Access,
    offset: u64,
    memory: Memory,
    slot: Slot,
) -> Option<Short<'a>> {
    let len = memory.lengths;
    let end = offset.checked_add(len)?;
    if len == 0 || !access.overwrites() || !mount.aligned(offset | len) {
        return None;
    }
    let _lock = inode.rwsem.announce(slot)?;
    let limit = inode.short_write_end();
    let aligned = (offset | len | memory.addresses) & mount.block_mask == 0;
    if end > limit
        || !mount
            .knobs
            .sample()
            .shared_overwrites(aligned, end == limit)
    {
        return None;
    }
    let device_offset = mount.written_run(inode, offset, end)?;
    Some(Short {
        device_offset,
        _lock,
    })
}

impl Mount {
    /// Where bytes `pos .. end` lie on the device, if one run of written blocks holds them all.
    #[inline(always)]
    fn written_run(&self, inode: &Inode, pos: u64, end: u64) -> Option<u64> {
        let first = pos >> self.block_bits;
        let last = (end - 1) >> self.block_bits;
        let pblk = if first == last {
            inode.map.written_block(first as u32)?
        } else {
            inode.map.written_run(first as u32, (last - first) as u32)?
        };
        Some((pblk << self.block_bits) | (pos & self.block_mask))
    }
}
