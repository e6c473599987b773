//! The small-read path: one lookup, one transfer, no allocation, no iteration.
//!
//! It serves a read of at most one file-system block that lies inside i_size and is mapped by one
//! mapping. Everything else, and every odd case, is the general path's, which gives the same
//! result; so this file holds no error handling but "not mine".

use super::Wait;
use crate::inode::Inode;
use crate::map::MapKind;
use crate::mount::Mount;

/// Where a small read lies on the device, or `None` if it is the general path's. Called with the
/// inode's lock held as the policy says. Does not block, allocate or fail.
#[inline]
pub(crate) fn locate(mount: &Mount, inode: &Inode, offset: u64, len: usize) -> Option<u64> {
    let end = offset.checked_add(len as u64)?;
    if end > inode.i_size() || !mount.aligned(offset | len as u64) {
        return None;
    }
    let mapping = super::iter::map(mount, inode, offset, end, Wait::NoWait).ok()?;
    let piece = mount.piece_of(&mapping, offset, end);
    (piece.kind == MapKind::Mapped && piece.len == len).then_some(piece.device_offset)
}

/// Whether a read may try the simple path at all: nothing here depends on the file's state.
#[inline]
pub(crate) fn eligible(mount: &Mount, inode: &Inode, len: usize) -> bool {
    len != 0 && len as u64 <= mount.block_bytes() && mount.knobs.simple() && inode.is_plain_data()
}
