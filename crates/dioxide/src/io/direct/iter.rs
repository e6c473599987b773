//! Walking a request mapping by mapping: ask for the largest mapping that covers the position, act
//! on it, advance (iomap's iteration).

use crate::inode::Inode;
use crate::map::{MapKind, Mapping, load};
use crate::mount::Mount;
use crate::{Error, Result};
use dioxide_format::types::Lblk;

use super::Wait;

/// A part of a request that one mapping covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) kind: MapKind,
    /// First byte on the device; meaningless for a hole.
    pub(crate) device_offset: u64,
    /// Length in bytes, not 0.
    pub(crate) len: usize,
}

/// The pieces of a byte range of a file, in order. The range must end below 2^32 blocks.
pub(crate) struct Pieces<'a> {
    mount: &'a Mount,
    inode: &'a Inode,
    wait: Wait,
    pos: u64,
    end: u64,
}

impl<'a> Pieces<'a> {
    /// The pieces of `pos .. pos + len`.
    pub(crate) fn new(
        mount: &'a Mount,
        inode: &'a Inode,
        pos: u64,
        len: usize,
        wait: Wait,
    ) -> Self {
        Pieces {
            mount,
            inode,
            wait,
            pos,
            end: pos + len as u64,
        }
    }

    fn piece(&self) -> Result<Piece> {
        let mapping = map(self.mount, self.inode, self.pos, self.end, self.wait)?;
        Ok(self.mount.piece_of(&mapping, self.pos, self.end))
    }
}

impl Iterator for Pieces<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        if self.pos >= self.end {
            return None;
        }
        let piece = self.piece();
        // An error ends the walk: a caller that went on would leave a gap.
        self.pos = piece
            .as_ref()
            .map_or(self.end, |piece| self.pos + piece.len as u64);
        Some(piece)
    }
}

/// The mapping of the blocks that hold bytes `pos .. end`, as far as one lookup goes.
///
/// # Errors
/// [`Error::WouldBlock`] without waiting if it is not in memory; damage in the extent tree.
#[inline]
pub(crate) fn map(mount: &Mount, inode: &Inode, pos: u64, end: u64, wait: Wait) -> Result<Mapping> {
    let first = pos >> mount.block_bits;
    let last = (end - 1) >> mount.block_bits;
    let lblk = Lblk(first as u32);
    let want = (last - first + 1) as u32;
    match inode.map.lookup(lblk, want) {
        Ok(mapping) => Ok(mapping),
        Err(_) if wait == Wait::NoWait => Err(Error::WouldBlock("the extent map is not in memory")),
        Err(_) => load::lookup_or_load(mount, inode, lblk, want),
    }
}

impl Mount {
    /// The part of bytes `pos .. end` of a file that `mapping` covers; it covers `pos`.
    #[inline]
    pub(crate) fn piece_of(&self, mapping: &Mapping, pos: u64, end: u64) -> Piece {
        let mapped_end = (u64::from(mapping.lblk.0) + u64::from(mapping.len)) << self.block_bits;
        let within = pos - (u64::from(mapping.lblk.0) << self.block_bits);
        Piece {
            kind: mapping.kind,
            device_offset: (mapping.pblk.0 << self.block_bits) + within,
            len: (mapped_end.min(end) - pos) as usize,
        }
    }
}
