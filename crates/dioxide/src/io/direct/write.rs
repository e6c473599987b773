//! Direct writes: the entry order of `dio-semantics` A1.
//!
//! [`admit`] takes the lock that the policy hints at, makes every check under it, and starts over
//! with the exclusive lock if the policy says so; nothing that was learnt under the shared lock
//! survives the restart (invariant 17). What it returns is a request that may be written: every
//! byte of it lies in written blocks inside i_size.
//!
//! What would change metadata is refused as unsupported, after the policy has decided and before
//! anything is written.

use super::iter::{Piece, Pieces, map};
use super::lock::{Guard, lock};
use super::policy::{
    BlockState, EntryFacts, IoLock, LockMode, Plan, Policy, Verdict, WriteFacts, check, entry_lock,
};
use super::read::{count_would_block, device_failed};
use super::simple::Short;
use super::{Access, Wait};
use crate::inode::Inode;
use crate::io::clock::coarse_now_ns;
use crate::map::{MapKind, Mapping};
use crate::mount::Mount;
use crate::stats::Count;
use crate::sync::slot::Slot;
use crate::{Error, Result};
use dioxide_block::Durability;
use std::io::IoSlice;

/// A write as it comes in.
pub(crate) struct WriteRequest<'a> {
    pub(crate) mount: &'a Mount,
    pub(crate) inode: &'a Inode,
    pub(crate) access: Access,
    pub(crate) policy: Policy,
    /// Where to write; append handles write at i_size instead.
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) memory: Memory,
    pub(crate) asynchronous: bool,
    pub(crate) wait: Wait,
    /// The caller's slot number.
    pub(crate) slot: Slot,
}

/// A write that passed its checks, with the lock that it holds.
pub(crate) struct Admitted<'a> {
    pub(crate) guard: Guard<'a>,
    pub(crate) plan: Plan,
    /// Where it goes, append resolved.
    pub(crate) pos: u64,
    /// The mapping at `pos`.
    pub(crate) first: Mapping,
}

/// How the segments of a request are aligned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// OR of their addresses.
    pub(crate) addresses: u64,
    /// OR of their lengths.
    pub(crate) lengths: u64,
}

impl Memory {
    #[inline(always)]
    pub(crate) fn of_one(buf: &[u8]) -> Memory {
        Memory {
            addresses: buf.as_ptr().addr() as u64,
            lengths: buf.len() as u64,
        }
    }

    #[inline]
    pub(crate) fn of(bufs: &[IoSlice<'_>]) -> Memory {
        bufs.iter().fold(
            Memory {
                addresses: 0,
                lengths: 0,
            },
            |all, buf| Memory {
                addresses: all.addresses | buf.as_ptr().addr() as u64,
                lengths: all.lengths | buf.len() as u64,
            },
        )
    }
}

/// Takes the lock, checks, and restarts exclusively if it must.
///
/// # Errors
/// See [`crate::File::write_at`]. No lock is held then.
#[inline]
pub(crate) fn admit<'a>(request: &WriteRequest<'a>) -> Result<Admitted<'a>> {
    let mode = entry_lock(request.policy, request.entry_facts());
    match request.admit_under(mode) {
        Ok(Some(admitted)) => Ok(admitted),
        Ok(None) => restart(request),
        Err(error) => Err(count_would_block(request.mount, request.slot, error)),
    }
}

#[cold]
fn restart<'a>(request: &WriteRequest<'a>) -> Result<Admitted<'a>> {
    let mount = request.mount;
    let again = if request.wait == Wait::NoWait {
        Err(Error::WouldBlock(
            "the write needs the inode lock exclusive",
        ))
    } else {
        mount.counters.add(request.slot, Count::Restart);
        request.admit_under(LockMode::Exclusive)
    };
    match again {
        Ok(admitted) => Ok(admitted.expect("nothing is stronger than the exclusive lock")),
        Err(error) => Err(count_would_block(mount, request.slot, error)),
    }
}

impl<'a> WriteRequest<'a> {
    /// Position and length and memory in whole file-system blocks.
    #[inline]
    pub(crate) fn block_aligned(&self, pos: u64) -> bool {
        (pos | self.memory.addresses | self.memory.lengths) & self.mount.block_mask == 0
    }

    /// What is known before the lock, at the offset that the caller gave.
    #[inline]
    pub(crate) fn entry_facts(&self) -> EntryFacts {
        let end = self.offset.saturating_add(self.len as u64);
        let size = self.inode.i_size();
        EntryFacts {
            aligned: self.block_aligned(self.offset),
            past_eof: end > size,
            reaches_eof: end >= size,
            dioread_nolock: self.mount.dioread_nolock,
        }
    }

    /// One attempt under `mode`; `None` asks for a restart, with no lock held.
    #[inline]
    fn admit_under(&self, mode: LockMode) -> Result<Option<Admitted<'a>>> {
        let guard = lock(self.mount, self.inode, mode, self.wait, self.slot)?;
        self.check_ability()?;
        let pos = self.position()?;
        let (facts, first) = self.facts(pos)?;
        let Verdict::Proceed(plan) = check(self.policy, mode, &facts) else {
            return Ok(None);
        };
        if self.wait == Wait::NoWait && (plan.drain || plan.wait) {
            return Err(Error::WouldBlock("the write must run alone"));
        }
        if plan.drain {
            self.drain()?;
        }
        self.check_needs_no_metadata(pos, &facts, first)?;
        Ok(Some(Admitted {
            guard,
            plan,
            pos,
            first,
        }))
    }

    /// Whether direct I/O can serve this file and this alignment (A1 step 4).
    #[inline]
    pub(crate) fn check_ability(&self) -> Result<()> {
        if !self.inode.is_plain_data() {
            return Err(self.unsupported("writing inline, verity, encrypted or journalled data"));
        }
        if !self.mount.aligned(self.offset | self.memory.lengths) && !self.access.append {
            return Err(self.misaligned());
        }
        Ok(())
    }

    #[cold]
    fn misaligned(&self) -> Error {
        if self.access.direct {
            return self.mount.misaligned("write", self.offset, self.len);
        }
        self.unsupported("a write that the device's logical block does not divide")
    }

    /// The position, append resolved under the lock, and checked against the largest file.
    #[inline]
    pub(crate) fn position(&self) -> Result<u64> {
        let pos = if self.access.append {
            self.inode.i_size()
        } else {
            self.offset
        };
        match pos.checked_add(self.len as u64) {
            Some(end) if end <= self.mount.max_file_bytes() => Ok(pos),
            _ => Err(Error::TooLarge(format!(
                "a write of {} bytes at {pos}: files end at {} bytes",
                self.len,
                self.mount.max_file_bytes()
            ))),
        }
    }

    /// Everything that the policy asks, and the mapping at `pos`.
    #[inline]
    pub(crate) fn facts(&self, pos: u64) -> Result<(WriteFacts, Mapping)> {
        let end = pos + self.len as u64;
        let size = self.inode.i_size();
        let extending = end > size || end > self.inode.i_disksize();
        let first = map(self.mount, self.inode, pos, end, self.wait)?;
        let aligned = self.block_aligned(pos);
        let facts = WriteFacts {
            aligned,
            extending,
            reaches_eof: end >= size,
            starts_past_eof: pos > size,
            blocks: self.block_state(&first, end),
            partial_unwritten: !aligned && self.partial_unwritten(&first, pos, end)?,
            strips_privileges: self.strips_privileges(),
            asynchronous: self.asynchronous,
            extent_mapped: self.inode.is_extent_mapped(),
            dioread_nolock: self.mount.dioread_nolock,
        };
        Ok((facts, first))
    }

    #[inline]
    fn block_state(&self, first: &Mapping, end: u64) -> BlockState {
        let covered = (u64::from(first.lblk.0) + u64::from(first.len)) << self.mount.block_bits;
        match first.kind {
            MapKind::Mapped if covered >= end => BlockState::Written,
            MapKind::Unwritten if covered >= end => BlockState::Unwritten,
            _ => BlockState::Mixed,
        }
    }

    /// Whether the first or the last block is written in part and holds no data yet.
    fn partial_unwritten(&self, first: &Mapping, pos: u64, end: u64) -> Result<bool> {
        let block = self.mount.block_bytes();
        if !pos.is_multiple_of(block) && first.kind != MapKind::Mapped {
            return Ok(true);
        }
        if end.is_multiple_of(block) {
            return Ok(false);
        }
        let tail = map(self.mount, self.inode, end - 1, end, self.wait)?;
        Ok(tail.kind != MapKind::Mapped)
    }

    #[inline]
    pub(crate) fn strips_privileges(&self) -> bool {
        let nosec = self.inode.nosec;
        nosec.capability || (nosec.set_id && !self.access.fsetid)
    }

    fn drain(&self) -> Result<()> {
        let drained = self.inode.in_flight.drain(&self.mount.in_flight, self.slot);
        match drained {
            Ok(true) => self.mount.counters.add(self.slot, Count::Drain),
            Ok(false) => {}
            Err(_) => {
                return Err(Error::Deadlock(
                    "the write must wait for requests in this thread's own queue; reap them first",
                ));
            }
        }
        Ok(())
    }

    /// Refuses what would change metadata. The last check, so that nothing is written before.
    #[inline]
    fn check_needs_no_metadata(&self, pos: u64, facts: &WriteFacts, first: Mapping) -> Result<()> {
        if facts.strips_privileges {
            return Err(self.unsupported("stripping set-user-ID, set-group-ID or capabilities"));
        }
        if facts.extending {
            return Err(self.unsupported("a write past the end of the file"));
        }
        if facts.blocks == BlockState::Written {
            return Ok(());
        }
        self.check_all_written(pos, first)
    }

    #[cold]
    fn check_all_written(&self, pos: u64, first: Mapping) -> Result<()> {
        let what = |kind| match kind {
            MapKind::Mapped => Ok(()),
            MapKind::Hole => Err(self.unsupported("filling a hole")),
            MapKind::Unwritten => Err(self.unsupported("writing to unwritten blocks")),
        };
        what(first.kind)?;
        for piece in Pieces::new(self.mount, self.inode, pos, self.len, self.wait) {
            what(piece?.kind)?;
        }
        Ok(())
    }

    /// Whether the engine would carry out the write at `pos`, once it has its lock.
    pub(crate) fn check_supported(&self, pos: u64) -> Result<()> {
        self.check_ability()?;
        let (facts, first) = self.facts(pos)?;
        self.check_needs_no_metadata(pos, &facts, first)
    }

    #[cold]
    fn unsupported(&self, what: &str) -> Error {
        let (len, offset, ino) = (self.len, self.offset, self.inode.ino.0);
        Error::Unsupported(format!(
            "{what} needs the journal, which is not there yet ({len} bytes at {offset} of inode {ino}; nothing was written)"
        ))
    }
}

/// The transfer of a shared overwrite, with the lock held.
#[inline(always)]
pub(crate) fn write_short(
    mount: &Mount,
    inode: &Inode,
    buf: &[u8],
    short: &Short<'_>,
    slot: Slot,
) -> Result<usize> {
    mount.counters.add(slot, Count::WriteShared);
    match mount.lane.write_at(short.device_offset, buf) {
        Ok(()) => {
            inode.set_modified(coarse_now_ns());
            Ok(buf.len())
        }
        Err(error) => device_failed(error),
    }
}

/// Any synchronous write.
pub(crate) fn write(request: &WriteRequest<'_>, bufs: &[IoSlice<'_>]) -> Result<usize> {
    if request.len == 0 {
        return Ok(0);
    }
    let admitted = admit(request)?;
    let mode = match admitted.plan.lock {
        LockMode::Exclusive => Count::WriteExclusive,
        LockMode::Shared | LockMode::None => Count::WriteShared,
    };
    request.mount.counters.add(request.slot, mode);
    let (pos, first) = (admitted.pos, admitted.first);
    let _held = Held::for_io(request.inode, admitted.guard, admitted.plan.io_lock);
    transfer(request, bufs, pos, first)?;
    request.inode.set_modified(coarse_now_ns());
    Ok(request.len)
}

/// What protects a synchronous write's I/O.
enum Held<'a> {
    Lock(#[allow(dead_code)] Guard<'a>),
    Counted(&'a Inode),
}

impl<'a> Held<'a> {
    #[inline]
    fn for_io(inode: &'a Inode, guard: Guard<'a>, io_lock: IoLock) -> Held<'a> {
        match (io_lock, guard) {
            (IoLock::Downgrade, Guard::Exclusive(lock)) => {
                Held::Lock(Guard::Shared(lock.downgrade()))
            }
            (IoLock::Release, guard) => {
                inode.in_flight.raise();
                drop(guard);
                Held::Counted(inode)
            }
            (_, guard) => Held::Lock(guard),
        }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Held::Counted(inode) = self {
            inode.in_flight.lower();
        }
    }
}

#[inline]
fn transfer(
    request: &WriteRequest<'_>,
    bufs: &[IoSlice<'_>],
    pos: u64,
    first: Mapping,
) -> Result<()> {
    let mount = request.mount;
    let piece = mount.piece_of(&first, pos, pos + request.len as u64);
    match bufs {
        [buf] if piece.len == request.len => {
            Ok(mount
                .device
                .write_at(piece.device_offset, buf, Durability::Cached)?)
        }
        _ => transfer_pieces(request, bufs, pos),
    }
}

/// Any buffers, any mappings; all lengths are multiples of the logical block.
fn transfer_pieces(request: &WriteRequest<'_>, bufs: &[IoSlice<'_>], pos: u64) -> Result<()> {
    let mount = request.mount;
    let mut bufs = bufs.iter();
    let mut rest: &[u8] = &[];
    for piece in Pieces::new(mount, request.inode, pos, request.len, request.wait) {
        let mut piece: Piece = piece?;
        while piece.len > 0 {
            if rest.is_empty() {
                rest = bufs.next().expect("pieces are no longer than the buffers");
                continue;
            }
            let (part, later) = rest.split_at(rest.len().min(piece.len));
            mount
                .device
                .write_at(piece.device_offset, part, Durability::Cached)?;
            piece.device_offset += part.len() as u64;
            piece.len -= part.len();
            rest = later;
        }
    }
    Ok(())
}
