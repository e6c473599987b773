//! Atomic writes (`RWF_ATOMIC`): after a crash a range has what it had, or what was written, and no mixture.
//!
//! The device keeps that promise for one write of one range, if that is as long as one of its units and aligned to it.
//! What is left to do here is that one such write is all that it takes:
//!
//! - *Which*: lengths are powers of two from the block to the cluster, at multiples of themselves, so that the blocks lie in
//!   one cluster, in a row and aligned as the device wants them.
//! - *Written blocks*: one write, once the map that leads to them is committed. A map on the disk that had only some of them
//!   would show a part.
//! - *A hole, or unwritten blocks*: the data first, then the one transaction that shows it, as for any write ([`place`]).
//! - *A mixture* is filled with zeros, so that all of it is written and in the map, and that is committed; then as above.
//!   Only a writer that is alone may do so.
//!
//! Nothing falls back: neither to several writes nor to a copy with what lies around. Where the file ends in the range
//! after a crash, since the new size was not committed, what is before the end is of one kind too.
//!
//! Rejected: counting on the order of metadata in one transaction per file to leave out the commit. Other calls take blocks away
//! and convert them in parts.

use super::iter::Piece;
use super::place::{self, Placed};
use super::policy::{IoLock, LockMode};
use super::write::{Admitted, Held, WriteRequest, until_alone};
use crate::inode::{Inode, is_plain_data};
use crate::map::{MapKind, Mapping};
use crate::mount::Mount;
use crate::{AtomicWrite, Error, Result};
use dioxide_block::{AtomicUnits, Durability, Geometry};
use dioxide_format::inode::{FileType, Inode as DiskInode, InodeFlags};
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::Lblk;
use std::io::IoSlice;
use std::ops::Range;

/// What files of a file system can have written atomically on a device, if anything.
pub(crate) fn units_of(geometry: &Geometry, sb: &SuperBlock) -> Option<AtomicUnits> {
    let block = sb.block_size();
    let cluster = block.checked_mul(sb.cluster_ratio())?;
    // Clusters are counted from the first data block.
    let first = sb.first_data_block().0 * u64::from(block);
    let longest = match first.is_multiple_of(u64::from(cluster)) {
        true => cluster,
        false => block,
    };
    geometry.atomic?.within(block, longest)
}

impl Mount {
    /// What can be written atomically to a file with such flags: in blocks that hold its bytes as they are, mapped
    /// by extents.
    fn units_with(&self, flags: InodeFlags) -> Option<AtomicUnits> {
        let can = flags.contains(InodeFlags::EXTENTS) && is_plain_data(flags);
        self.atomic.filter(|_| can)
    }

    /// The same, as `stat` tells it.
    pub(crate) fn atomic_write_of(&self, disk: &DiskInode) -> Option<AtomicWrite> {
        let units = self.units_with(disk.flags())?;
        (disk.file_type() == Some(FileType::Regular)).then_some(AtomicWrite {
            min: units.min_bytes,
            max: units.max_bytes,
        })
    }

    /// Where bytes of a file lie on the device, if they lie in a row there and as the device wants an atomic write.
    fn in_one_unit(&self, device_offset: u64, len: usize) -> Result<u64> {
        let geometry = self.device.geometry();
        geometry.check_atomic(device_offset, len as u64)?;
        Ok(device_offset)
    }

    /// Whether no commit is needed before blocks of a file are overwritten as one.
    fn shows_all_or_none(&self, inode: &Inode, len: usize) -> bool {
        len as u64 <= self.block_bytes() || self.is_durable(inode.last_change(true))
    }
}

/// Judges a request before anything is locked. An empty one is none.
///
/// # Errors
/// `EROFS`; those of [`judge`].
pub(crate) fn check(request: &WriteRequest<'_>) -> Result<()> {
    request.mount.check_writable()?;
    judge(request)
}

/// As [`check`], on a mount that may write.
///
/// # Errors
/// [`Error::Unsupported`] for what the file, the device or the handle cannot do; `EINVAL` for a length or an offset.
pub(crate) fn judge(request: &WriteRequest<'_>) -> Result<()> {
    let (mount, inode) = (request.mount, request.inode);
    let Some(units) = mount.units_with(inode.flags()) else {
        let why = match mount.atomic {
            None => "atomic writes here: the device promises none that hold a block",
            Some(_) => "atomic writes to a file that is not mapped by extents, or is journalled",
        };
        return Err(request.unsupported(why));
    };
    check_range(request, units, request.offset)?;
    match request.access.direct {
        true => Ok(()),
        false => Err(request.unsupported("atomic writes without direct I/O")),
    }
}

fn check_range(request: &WriteRequest<'_>, units: AtomicUnits, pos: u64) -> Result<()> {
    if units.hold(pos, request.len as u64) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "an atomic write of {} bytes at {pos}: lengths are powers of two from {} to {}, at multiples of themselves",
        request.len, units.min_bytes, units.max_bytes
    )))
}

/// Writes all of `buf` or nothing. Blocks.
///
/// # Errors
/// Those of [`check`]; else as [`crate::File::write_at`].
pub(crate) fn write(request: &WriteRequest<'_>, buf: &[u8]) -> Result<usize> {
    if request.len == 0 {
        return Ok(0);
    }
    check(request)?;
    until_alone(request, |admitted| carry_out(request, buf, admitted))?;
    Ok(request.len)
}

/// Checks what only the lock tells: where an append goes.
pub(crate) fn check_place(request: &WriteRequest<'_>, pos: u64) -> Result<()> {
    let units = request.mount.units_with(request.inode.flags());
    match units {
        Some(units) => check_range(request, units, pos),
        None => Err(request.unsupported("atomic writes to what the file has become")),
    }
}

fn carry_out(request: &WriteRequest<'_>, buf: &[u8], admitted: Admitted<'_>) -> Result<Placed> {
    check_place(request, admitted.pos)?;
    request.count(&admitted.plan);
    let Admitted {
        guard,
        plan,
        pos,
        first,
        plain,
        facts,
        appending,
        cuts,
        ..
    } = admitted;
    if !plain {
        let alone = plan.lock == LockMode::Exclusive && plan.io_lock == IoLock::Keep;
        place::prepare(request, pos, &facts)?;
        let held = Held::for_io(request, guard, plan.io_lock);
        let placed = place::write_atomic(request, &[IoSlice::new(buf)], pos, alone, cuts);
        let placed = placed.inspect_err(|_| request.set_modified())?;
        // As in a write of any kind.
        drop((held, appending));
        if placed == Placed::Done {
            request.make_durable()?;
        }
        return Ok(placed);
    }
    let held = Held::for_io(request, guard, plan.io_lock);
    let device_offset = locate(request, pos, &first)?;
    commit_map(request, Below::Written)?;
    let durability = request.durability(&first, pos);
    let device = &request.mount.device;
    let write = |durability| Ok(device.write_atomic_at(device_offset, buf, durability)?);
    let done = write(durability).or_else(|error| request.forced_failed(error, durability, write));
    request.set_modified();
    done?;
    drop(held);
    if durability == Durability::Cached {
        request.make_durable()?;
    }
    Ok(Placed::Done)
}

/// Where all of a plain request lies on the device.
pub(crate) fn locate(request: &WriteRequest<'_>, pos: u64, first: &Mapping) -> Result<u64> {
    let mount = request.mount;
    let start = mount.piece_of(first, pos, pos + request.len as u64);
    let mut end = start.device_offset;
    for piece in request.pieces(pos) {
        let piece = piece?;
        if piece.kind != MapKind::Mapped || piece.device_offset != end {
            return Err(request.unsupported("an atomic write to blocks that lie apart"));
        }
        end += piece.len as u64;
    }
    mount.in_one_unit(start.device_offset, request.len)
}

/// Commits the map, if a crash could find one that leads to a part of the range, which is of such blocks.
pub(super) fn commit_map(request: &WriteRequest<'_>, below: Below) -> Result<()> {
    match commits_first(request, below) {
        false => Ok(()),
        true => request.mount.sync_inode(request.inode, true),
    }
}

/// Whether the map must be committed before data goes to such blocks.
pub(crate) fn commits_first(request: &WriteRequest<'_>, below: Below) -> bool {
    below != Below::Hole && !request.mount.shows_all_or_none(request.inode, request.len)
}

/// What lies below an atomic write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Below {
    Written,
    Unwritten,
    /// No map leads to the clusters that it gets.
    Hole,
    /// A hole in a cluster that the file has already.
    PartOfCluster,
}

/// Blocks in a row, in the file and on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) below: Below,
    /// Nowhere yet, of a hole.
    pub(crate) device_offset: u64,
    pub(crate) len: u64,
}

impl Row {
    /// Whether writes beside it can give a part of it data, which a crash would show without the rest: who writes it as one is
    /// alone. What was claimed for a hole is nobody else's.
    pub(crate) fn is_shared_by_blocks(&self, block_bytes: u64) -> bool {
        let no_data = matches!(self.below, Below::Unwritten | Below::PartOfCluster);
        no_data && self.len > block_bytes
    }

    /// Together with what comes next in the file, if one transaction settles both: no more than written blocks.
    pub(crate) fn with(self, next: Row) -> Option<Row> {
        let written = self.below == Below::Written && next.below == Below::Written;
        // Holes are nowhere.
        let touch = written && self.device_offset + self.len == next.device_offset;
        touch.then_some(Row {
            len: self.len + next.len,
            ..self
        })
    }
}

/// What a request would find: one row that one transaction settles, or `None` for a mixture, which is filled with zeros first.
pub(crate) fn row_of(request: &WriteRequest<'_>, pos: u64) -> Result<Option<Row>> {
    let mut pieces = request
        .pieces(pos)
        .map(|piece| row_of_piece(request, pos, piece?));
    let mut row = pieces.next().expect("a write has blocks")?;
    for next in pieces {
        match row.with(next?) {
            Some(both) => row = both,
            None => return Ok(None),
        }
    }
    let bits = request.mount.block_bits;
    let blocks = pos >> bits..(pos + request.len as u64) >> bits;
    let at_once = row.below != Below::Unwritten
        || is_one_unwritten_extent(request.mount, request.inode, blocks)?;
    Ok(at_once.then_some(row))
}

fn row_of_piece(request: &WriteRequest<'_>, pos: u64, piece: Piece) -> Result<Row> {
    let (mount, inode) = (request.mount, request.inode);
    let below = match piece.kind {
        MapKind::Mapped => Below::Written,
        MapKind::Unwritten => Below::Unwritten,
        // All of the range lies in one cluster.
        MapKind::Hole => {
            match mount.implied_cluster(inode, Lblk((pos >> mount.block_bits) as u32))? {
                Some(_) => Below::PartOfCluster,
                None => Below::Hole,
            }
        }
    };
    Ok(Row {
        below,
        device_offset: piece.device_offset,
        len: piece.len as u64,
    })
}

/// Whether one transaction makes unwritten blocks written: they belong to one extent.
pub(super) fn is_one_unwritten_extent(
    mount: &Mount,
    inode: &Inode,
    blocks: Range<u64>,
) -> Result<bool> {
    let lock = inode.map.lock();
    Ok(mount.unwritten_extents(inode, &lock, blocks)?.len() == 1)
}

/// Where the device writes a request that was admitted without waiting.
///
/// # Errors
/// [`Error::WouldBlock`] if a commit must come first, or a sync last; else as [`write`].
pub(crate) fn locate_now(request: &WriteRequest<'_>, admitted: &Admitted<'_>) -> Result<u64> {
    check_place(request, admitted.pos)?;
    if request.must_be_durable() {
        return Err(Error::WouldBlock("the write must be durable"));
    }
    match commits_first(request, Below::Written) {
        false => locate(request, admitted.pos, &admitted.first),
        true => Err(Error::WouldBlock("the map must be committed first")),
    }
}

impl WriteRequest<'_> {
    /// Where the device writes what it takes as one.
    pub(crate) fn unit_at(&self, device_offset: u64) -> Result<u64> {
        self.mount.in_one_unit(device_offset, self.len)
    }
}
