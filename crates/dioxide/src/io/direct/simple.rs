//! The short paths: one lookup, one transfer, no allocation, no iteration.
//!
//! - A **small read**: at most one file-system block, inside i_size, mapped by one mapping (the
//!   simple path of the 2026 seed; can be switched off).
//! - A **shared overwrite**: a write that the policy lets stay under the shared lock, inside i_size,
//!   over one mapping of written blocks.
//!
//! Both are tried under the shared lock. Everything else, and every odd case, is the general
//! path's, which starts over and gives the same result; so nothing here waits or fails, it only
//! answers "here it is on the device" or "not mine".

use super::policy::{self, BlockState, EntryFacts, LockMode, Policy, Verdict, WriteFacts};
use super::write::WriteRequest;
use crate::inode::Inode;
use crate::mount::Mount;

/// Whether a read may try the simple path at all: nothing here depends on the file's state.
#[inline(always)]
pub(crate) fn eligible(mount: &Mount, inode: &Inode, policy: Policy, len: usize) -> bool {
    len != 0
        && len as u64 <= mount.block_bytes()
        && mount.knobs.simple()
        && inode.is_plain_data()
        && policy::read_lock(policy).0 == LockMode::Shared
}

/// Where a small read lies on the device. Called under the shared lock.
#[inline(always)]
pub(crate) fn locate_read(mount: &Mount, inode: &Inode, offset: u64, len: usize) -> Option<u64> {
    let end = offset.checked_add(len as u64)?;
    if end > inode.i_size() || !mount.aligned(offset | len as u64) {
        return None;
    }
    mount.written_run(inode, offset, end)
}

/// Whether a write may try the shared-overwrite path: as far as can be said before the lock.
#[inline(always)]
pub(crate) fn may_overwrite(request: &WriteRequest<'_>, entry: &EntryFacts) -> bool {
    request.len != 0
        && !entry.past_eof
        && !request.access.append
        && request.inode.is_plain_data()
        && request.mount.aligned(request.offset | request.memory.lengths)
        && policy::entry_lock(request.policy, *entry) == LockMode::Shared
}

/// Where a shared overwrite lies on the device. Called under the shared lock, after
/// [`may_overwrite`].
#[inline(always)]
pub(crate) fn locate_overwrite(request: &WriteRequest<'_>) -> Option<u64> {
    let (mount, inode) = (request.mount, request.inode);
    let end = request.offset + request.len as u64;
    let size = inode.i_size();
    if end > size || end > inode.i_disksize() || request.strips_privileges() {
        return None;
    }
    let facts = WriteFacts {
        aligned: request.block_aligned(request.offset),
        extending: false,
        reaches_eof: end >= size,
        starts_past_eof: false,
        blocks: BlockState::Written,
        partial_unwritten: false,
        strips_privileges: false,
        asynchronous: request.asynchronous,
        extent_mapped: inode.is_extent_mapped(),
        dioread_nolock: mount.dioread_nolock,
    };
    if policy::check(request.policy, LockMode::Shared, &facts) == Verdict::Restart {
        return None;
    }
    mount.written_run(inode, request.offset, end)
}

impl Mount {
    /// Where bytes `pos .. end` lie on the device, if one run of written blocks holds them all.
    #[inline(always)]
    fn written_run(&self, inode: &Inode, pos: u64, end: u64) -> Option<u64> {
        let first = pos >> self.block_bits;
        let last = (end - 1) >> self.block_bits;
        let pblk = inode.map.written_run(first as u32, (last - first + 1) as u32)?;
        Some((pblk << self.block_bits) + (pos & (self.block_bytes() - 1)))
    }
}
