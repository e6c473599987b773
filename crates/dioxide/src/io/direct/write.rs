//! Direct writes: the entry order of `docs/SEMANTICS.md` A1.
//!
//! [`admit`] takes the lock that the policy hints at, makes every check under it, and starts over
//! with the exclusive lock if the policy says so; nothing that was learnt under the shared lock
//! survives the restart (invariant 17). What it returns is a request that may be written: *plain*, if
//! every byte of it lies in written blocks inside i_size and nothing else is to be changed; all others
//! are [`place`]'s.

use super::iter::{Piece, Pieces, map};
use super::lock::{Guard, drain, lock};
use super::place::{self, Placed};
use super::policy::{
    BlockState, EntryFacts, IoLock, LockMode, Plan, Policy, Verdict, WriteFacts, check, entry_lock,
};
use super::read::{count_would_block, device_failed};
use super::simple::Short;
use super::{Access, SyncMode, Wait};
use crate::inode::{Cuts, Inode};
use crate::io::clock::coarse_now_ns;
use crate::io::inline::{self, Inlined};
use crate::map::{MapKind, Mapping};
use crate::mount::Mount;
use crate::stats::Count;
use crate::sync::rank::{ReadLocked, WriteLocked};
use crate::sync::slot::Slot;
use crate::{Error, Result, Shortage};
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
    /// Nothing but bytes of written blocks changes.
    pub(crate) plain: bool,
    /// How durable the write of these is to be. What it needs for that was durable when this was decided, and stays so.
    pub(crate) durability: Durability,
    pub(crate) facts: WriteFacts,
    /// Keeps others away from the end of the file.
    pub(crate) appending: Option<AtTheEnd<'a>>,
    /// Before anything was learnt.
    pub(crate) cuts: Cuts,
}

/// What a write behind the end of the file holds: others may be under way where it says where it goes, none where it
/// goes where the end is.
pub(crate) enum AtTheEnd<'a> {
    Beside(#[allow(dead_code)] ReadLocked<'a, ()>),
    Alone(#[allow(dead_code)] WriteLocked<'a, ()>),
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
    request.mount.check_writable()?;
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
        let cuts = self.inode.cuts();
        let appending = self.at_the_end()?;
        let pos = self.position()?;
        if self.wait == Wait::NoWait && !self.device_aligned(pos) {
            return Err(self.no_direct_path("the edges are not whole logical blocks"));
        }
        let (facts, first) = self.facts(pos)?;
        let Verdict::Proceed(mut plan) = check(self.policy, mode, &facts) else {
            return Ok(None);
        };
        let plain = self.is_plain(pos, &facts, first)?;
        if !plain && (self.must_be_alone(pos, &facts) || cuts.is_being_cut()) {
            if mode != LockMode::Exclusive {
                return Ok(None);
            }
            plan = plan.alone(&facts);
        }
        if self.wait == Wait::NoWait && (plan.drain || plan.wait || !plain) {
            return Err(Error::WouldBlock("the write must run alone, or allocate"));
        }
        let durability = self.durability(&first, pos);
        if self.wait == Wait::NoWait && self.syncs_after(durability) {
            return Err(Error::WouldBlock("a sync must follow the write"));
        }
        if plan.drain {
            self.drain()?;
        }
        Ok(Some(Admitted {
            guard,
            plan,
            pos,
            first,
            plain,
            durability,
            facts,
            appending,
            cuts,
        }))
    }

    /// Appends go one by one, each behind the other, and behind whatever else makes the file longer: the lock may be
    /// shared, or be demoted.
    #[inline]
    fn at_the_end(&self) -> Result<Option<AtTheEnd<'a>>> {
        let end = self.offset.saturating_add(self.len as u64);
        if !self.access.append && end <= self.inode.i_size() {
            return Ok(None);
        }
        let lock = &self.inode.appending;
        let held = match (self.access.append, self.wait) {
            (true, Wait::Block) => Some(AtTheEnd::Alone(lock.write())),
            (true, Wait::NoWait) => lock.try_write().map(AtTheEnd::Alone),
            (false, Wait::Block) => Some(AtTheEnd::Beside(lock.read())),
            (false, Wait::NoWait) => lock.try_read().map(AtTheEnd::Beside),
        };
        match held {
            Some(held) => Ok(Some(held)),
            None => Err(Error::WouldBlock("another append is under way")),
        }
    }

    /// Whether direct I/O can serve this file.
    #[inline]
    pub(crate) fn check_ability(&self) -> Result<()> {
        if self.inode.is_plain_data() {
            return Ok(());
        }
        self.check_bytes()?;
        // Who may wait has asked before, and no content goes back into an inode.
        Err(self.no_direct_path("the content lies in the inode"))
    }

    /// The answer to a no-wait write that is not direct I/O: as in Linux, it is not one for later. Of a queue's,
    /// which nobody told not to wait, a worker makes it.
    #[cold]
    pub(crate) fn no_direct_path(&self, why: &'static str) -> Error {
        match self.asynchronous {
            true => Error::WouldBlock(why),
            false => self.unsupported(&format!("writing without waiting where {why}")),
        }
    }

    /// Whether what is written is what the file is to hold.
    pub(crate) fn check_bytes(&self) -> Result<()> {
        match self.inode.holds_plain_bytes() {
            true => Ok(()),
            false => Err(self.unsupported("writing verity, encrypted or journalled data")),
        }
    }

    /// Whether the device's logical block divides position and lengths.
    #[inline]
    pub(crate) fn device_aligned(&self, pos: u64) -> bool {
        self.mount.aligned(pos | self.memory.lengths)
    }

    /// Whether parts of blocks are read and written back, so that nobody else may write them: the
    /// request is not made of logical blocks, or of file-system blocks where these hold no data, or
    /// what is behind the end of the file comes into it.
    pub(crate) fn must_be_alone(&self, pos: u64, facts: &WriteFacts) -> bool {
        !self.device_aligned(pos)
            || facts.starts_past_eof
            || facts.extending && self.inode.is_cut_short()
            || !facts.aligned && (facts.extending || facts.partial_unwritten)
    }

    /// The position as [`WriteRequest::place`] has it, and then checked against the device's logical block too.
    #[inline]
    pub(crate) fn position(&self) -> Result<u64> {
        let pos = self.place()?;
        match self.access.direct && !self.device_aligned(pos) {
            true => Err(self.mount.misaligned("write", pos, self.len)),
            false => Ok(pos),
        }
    }

    /// The position, append resolved.
    #[inline]
    fn start(&self) -> u64 {
        match self.access.append {
            true => self.inode.i_size(),
            false => self.offset,
        }
    }

    /// The position, append resolved under the lock, checked against the largest file.
    #[inline]
    pub(crate) fn place(&self) -> Result<u64> {
        let pos = self.start();
        if self.inode.is_immutable() && !self.access.written_back {
            let ino = self.inode.ino;
            return Err(Error::NotPermitted(format!("inode {ino} is immutable")));
        }
        match pos.checked_add(self.len as u64) {
            Some(end) if end <= self.mount.max_bytes_of(self.inode) => Ok(pos),
            _ => Err(self.mount.too_large(
                self.inode,
                &format!("a write of {} bytes at {pos}", self.len),
            )),
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
        self.inode.nosec().strips(self.access)
    }

    /// The lock is exclusive.
    fn drain(&self) -> Result<()> {
        // Without it readers without the lock could keep coming.
        let _closed = self.inode.in_flight.close();
        drain(self.mount, self.inode, self.slot)
    }

    /// Whether nothing but bytes of written blocks changes.
    #[inline]
    pub(crate) fn is_plain(&self, pos: u64, facts: &WriteFacts, first: Mapping) -> Result<bool> {
        if facts.strips_privileges || facts.extending || !self.device_aligned(pos) {
            return Ok(false);
        }
        match facts.blocks {
            BlockState::Written => Ok(true),
            _ => self.all_written(pos, first),
        }
    }

    #[cold]
    fn all_written(&self, pos: u64, first: Mapping) -> Result<bool> {
        if first.kind != MapKind::Mapped {
            return Ok(false);
        }
        for piece in self.pieces(pos) {
            if piece?.kind != MapKind::Mapped {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What the request covers, mapping by mapping.
    pub(super) fn pieces(&self, pos: u64) -> Pieces<'a> {
        Pieces::new(self.mount, self.inode, pos, self.len, self.wait)
    }

    /// Counts which lock it had.
    pub(super) fn count(&self, plan: &Plan) {
        let mode = match plan.lock {
            LockMode::Exclusive => Count::WriteExclusive,
            LockMode::Shared | LockMode::None => Count::WriteShared,
        };
        self.mount.counters.add(self.slot, mode);
    }

    #[cold]
    pub(super) fn unsupported(&self, what: &str) -> Error {
        let (len, offset, ino) = (self.len, self.offset, self.inode.ino.0);
        Error::Unsupported(format!(
            "{what} ({len} bytes at {offset} of inode {ino}; nothing was written)"
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
        Ok(streamed) => {
            inode.set_modified(coarse_now_ns());
            drop(streamed);
            Ok(buf.len())
        }
        Err(error) => {
            inode.set_modified(coarse_now_ns());
            device_failed(mount, error)
        }
    }
}

/// Any synchronous write.
pub(crate) fn write(request: &WriteRequest<'_>, bufs: &[IoSlice<'_>]) -> Result<usize> {
    if request.len == 0 {
        return Ok(0);
    }
    match inline::write(request, bufs)? {
        Inlined::No => write_blocks(request, bufs),
        // As in Linux, what began as a write to an inode may have any alignment.
        Inlined::MovedOut => write_blocks(&request.buffered(), bufs),
        Inlined::Done => {
            request
                .mount
                .counters
                .add(request.slot, Count::WriteExclusive);
            request.make_durable()?;
            Ok(request.len)
        }
    }
}

/// A write to a file whose content lies in blocks.
fn write_blocks(request: &WriteRequest<'_>, bufs: &[IoSlice<'_>]) -> Result<usize> {
    until_alone(request, |admitted| carry_out(request, bufs, admitted))?;
    Ok(request.len)
}

/// Carries a write out as it was admitted, and once more alone if it asks for that.
pub(super) fn until_alone<'a>(
    request: &WriteRequest<'a>,
    carry_out: impl Fn(Admitted<'a>) -> Result<Placed>,
) -> Result<()> {
    if carry_out(admit(request)?)? == Placed::Done {
        return Ok(());
    }
    let mut admitted = restart(request)?;
    request.drain()?;
    admitted.plan.io_lock = IoLock::Keep;
    match carry_out(admitted)? {
        Placed::Done => Ok(()),
        Placed::MustBeAlone => Err(Error::NoSpace(Shortage::ScatteredClusters)),
    }
}

/// Writes what was admitted, and makes it as durable as the handle wants.
fn carry_out(
    request: &WriteRequest<'_>,
    bufs: &[IoSlice<'_>],
    admitted: Admitted<'_>,
) -> Result<Placed> {
    request.count(&admitted.plan);
    if !admitted.plain {
        let alone =
            admitted.plan.lock == LockMode::Exclusive && admitted.plan.io_lock == IoLock::Keep;
        let (pos, facts) = (admitted.pos, admitted.facts);
        let appending = admitted.appending;
        place::prepare(request, pos, &facts)?;
        let held = Held::for_io(request, admitted.guard, admitted.plan.io_lock);
        let placed = place::write_placing(request, bufs, pos, alone, admitted.cuts);
        let placed = placed.inspect_err(|_| request.set_modified())?;
        // Others may add behind it now, and share its commit.
        drop((held, appending));
        if placed == Placed::Done {
            request.make_durable()?;
        }
        return Ok(placed);
    }
    let (pos, first) = (admitted.pos, admitted.first);
    let held = Held::for_io(request, admitted.guard, admitted.plan.io_lock);
    let durability = admitted.durability;
    let transfer = |durability| transfer(request, bufs, pos, first, durability);
    let done =
        transfer(durability).or_else(|error| request.forced_failed(error, durability, transfer));
    request.set_modified();
    done?;
    drop(held);
    if durability == Durability::Cached {
        request.make_durable()?;
    }
    Ok(Placed::Done)
}

impl WriteRequest<'_> {
    /// The file changed now, or part of it, if the write fails.
    pub(super) fn set_modified(&self) {
        if !self.access.keep_times {
            self.inode.set_modified(coarse_now_ns());
        }
    }

    /// The same, with any alignment.
    fn buffered(&self) -> Self {
        let access = Access {
            direct: false,
            ..self.access
        };
        Self { access, ..*self }
    }

    /// Whether the write itself can be durable: `O_DSYNC` of one mapping that nobody needs a commit to
    /// find.
    pub(crate) fn durability(&self, first: &Mapping, pos: u64) -> Durability {
        let end = pos + self.len as u64;
        let covered = (u64::from(first.lblk.0) + u64::from(first.len)) << self.mount.block_bits;
        let data_only = self.access.sync_of(self.inode) == SyncMode::Data;
        let alone = data_only && self.mount.barrier && covered >= end;
        let can = alone && self.mount.device.geometry().fua;
        if can && self.mount.is_durable(self.inode.last_change(true)) {
            return Durability::ForceUnitAccess;
        }
        Durability::Cached
    }

    /// After a write failed that was to be so durable: if `again` does it without, a flush may have failed, and with it
    /// writes of others, who are not told.
    #[cold]
    pub(super) fn forced_failed(
        &self,
        error: Error,
        durability: Durability,
        again: impl FnOnce(Durability) -> Result<()>,
    ) -> Result<()> {
        Err(match durability {
            Durability::ForceUnitAccess => self
                .mount
                .forced_failed(error, || again(Durability::Cached)),
            Durability::Cached => error,
        })
    }

    pub(super) fn make_durable(&self) -> Result<()> {
        self.mount.make_durable(self.inode, self.access)
    }

    /// Whether it returns only when it is durable.
    pub(crate) fn must_be_durable(&self) -> bool {
        self.access.sync_of(self.inode) != SyncMode::None
    }

    /// Whether it must be durable and no write is so by itself.
    pub(crate) fn syncs_after(&self, durability: Durability) -> bool {
        self.must_be_durable() && durability == Durability::Cached
    }
}

impl Mount {
    /// The error of a write that was to be durable by itself, after `again` has tried it without.
    #[cold]
    pub(crate) fn forced_failed(&self, error: Error, again: impl FnOnce() -> Result<()>) -> Error {
        match again() {
            Ok(()) => self.fail(error),
            Err(_) => error,
        }
    }
}

/// What protects a synchronous write's I/O.
pub(super) enum Held<'a> {
    Lock(#[allow(dead_code)] Guard<'a>),
    /// Nothing but the count; the lock is taken once more at the end.
    Counted(&'a WriteRequest<'a>),
}

impl<'a> Held<'a> {
    #[inline]
    pub(super) fn for_io(
        request: &'a WriteRequest<'a>,
        guard: Guard<'a>,
        io_lock: IoLock,
    ) -> Held<'a> {
        match (io_lock, guard) {
            (IoLock::Downgrade, Guard::Exclusive(lock)) => {
                Held::Lock(Guard::Shared(lock.downgrade()))
            }
            (IoLock::Release, guard) => {
                request.inode.in_flight.raise();
                drop(guard);
                Held::Counted(request)
            }
            (_, guard) => Held::Lock(guard),
        }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Held::Counted(request) = self {
            request.inode.in_flight.lower();
            let (mount, inode, slot) = (request.mount, request.inode, request.slot);
            // As Linux 4.8 did, which knew none that may not wait. What is done does not fail for a lock that cannot be had.
            if request.wait == Wait::Block {
                drop(lock(mount, inode, LockMode::Exclusive, Wait::Block, slot));
            }
        }
    }
}

#[inline]
fn transfer(
    request: &WriteRequest<'_>,
    bufs: &[IoSlice<'_>],
    pos: u64,
    first: Mapping,
    durability: Durability,
) -> Result<()> {
    let mount = request.mount;
    let piece = mount.piece_of(&first, pos, pos + request.len as u64);
    match bufs {
        [buf] if piece.len == request.len => {
            Ok(mount
                .device
                .write_at(piece.device_offset, buf, durability)?)
        }
        _ => transfer_pieces(request, bufs, pos, durability),
    }
}

/// Any buffers, any mappings; all lengths are multiples of the logical block.
fn transfer_pieces(
    request: &WriteRequest<'_>,
    bufs: &[IoSlice<'_>],
    pos: u64,
    durability: Durability,
) -> Result<()> {
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
                .write_at(piece.device_offset, part, durability)?;
            piece.device_offset += part.len() as u64;
            piece.len -= part.len();
            rest = later;
        }
    }
    Ok(())
}
