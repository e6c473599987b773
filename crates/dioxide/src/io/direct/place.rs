//! Writes that need blocks, a new size, or parts of blocks filled up: data first, map afterwards.
//!
//! 1. *Plan*: what each block of the range is. For holes blocks are claimed in memory
//!    ([`crate::alloc::Claim`]); nothing on the disk changes.
//! 2. *Transfer*: the data goes to the device, to blocks that nothing leads to yet, to unwritten ones,
//!    or over written ones. A block that is written in part is completed: by zeros, or by what it held.
//! 3. *Settle*: one transaction per run records the claim, maps the blocks (or makes unwritten ones
//!    written), and moves i_size.
//!
//! So there is no moment at which the disk says that a block holds data which it does not, and none at
//! which a file is longer than what was written: no unwritten extents, no orphan, and nothing to take
//! back when the write fails or the power does. ext4 allocates first, because its page cache may write
//! at any time; that costs it three transactions where this takes one.
//!
//! What is not exclusive may be overtaken: two writers under the shared lock may both find a hole. Who
//! settles second finds the blocks mapped, gives its claim back, and writes again to where they are.

use super::atomic::{self, Below, Row};
use super::lock::drain;
use super::policy::WriteFacts;
use super::write::WriteRequest;
use crate::alloc::{Claim, Goal, Request, Right};
use crate::inode::{Cuts, Inode};
use crate::io::clock::coarse_now_ns;
use crate::map::tree::{Progress, State};
use crate::map::{self, MapGuard, MapKind, Run};
use crate::mount::Mount;
use crate::txn::file::{Credits, MOST_WRITTEN};
use crate::txn::inode::INODE_CREDITS;
use crate::txn::{Tries, Writer};
use crate::{Error, Result, Shortage};
use dioxide_block::{Buf, Durability};
use dioxide_format::extent::Extent;
use dioxide_format::types::{Ino, Lblk, Pblk};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

/// Longest piece that is copied together at a time, when slices do not end where logical blocks do.
const BOUNCE_BYTES: usize = 1 << 20;

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    Done,
    /// Nothing more can be done under the shared lock; the request starts over alone.
    MustBeAlone,
}

/// Blocks of a request that are the same kind and lie in a row.
struct Target {
    lblk: u32,
    len: u32,
    pblk: u64,
    what: What,
}

enum What {
    /// Written blocks.
    Written,
    /// Unwritten blocks, to be converted.
    Unwritten,
    /// A hole, to be mapped to claimed clusters.
    Hole(Claim),
    /// A hole in a cluster that the file has already.
    Shared,
}

impl What {
    fn below(&self) -> Below {
        match self {
            What::Written => Below::Written,
            What::Unwritten => Below::Unwritten,
            What::Hole(_) => Below::Hole,
            What::Shared => Below::PartOfCluster,
        }
    }
}

impl Target {
    fn blocks(&self) -> Range<u64> {
        u64::from(self.lblk)..u64::from(self.lblk) + u64::from(self.len)
    }

    /// Whether it ends there, and fills a hole.
    fn is_new_up_to(&self, end: u64) -> bool {
        self.blocks().end == end && matches!(self.what, What::Hole(_) | What::Shared)
    }
}

/// What a write made of a file's size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    ino: Ino,
    from: u64,
    to: u64,
}

/// A write under way.
pub(super) struct Placing<'a, 'b> {
    mount: &'a Mount,
    inode: &'a Inode,
    writer: &'a Writer,
    bufs: &'a [IoSlice<'b>],
    /// The buffer that was asked for last, and the bytes before it: the next is it, or comes soon.
    last: Cell<(usize, usize)>,
    right: Right,
    pos: u64,
    end: u64,
    /// i_size before.
    old_size: u64,
    /// Nobody else writes to the file.
    alone: bool,
    /// When the request was admitted.
    cuts: Cuts,
    /// What it added to the file's size.
    growth: Cell<Option<Growth>>,
    /// The file's times stay.
    keep_times: bool,
}

/// What comes before the data, with the lock as it was taken: exclusive, for what there is to do.
pub(super) fn prepare(request: &WriteRequest<'_>, pos: u64, facts: &WriteFacts) -> Result<()> {
    let (mount, inode) = (request.mount, request.inode);
    let writer = mount.writer()?;
    if facts.strips_privileges {
        mount.strip_if_needed(writer, inode, request.access)?;
    }
    if facts.extending {
        mount.finish_truncate(writer, inode)?;
    }
    // Not by the size as it is now: a truncate beside it may have begun, which may fail yet.
    match facts.starts_past_eof {
        true => zero_gap(mount, inode, pos),
        false => Ok(()),
    }
}

/// A write that begins behind the last block of the file leaves a gap. What the last block holds behind
/// the end becomes part of it, and must read as zeros.
fn zero_gap(mount: &Mount, inode: &Inode, pos: u64) -> Result<()> {
    let size = inode.i_size();
    let last = size >> mount.block_bits;
    if pos >> mount.block_bits > last {
        mount.zero_block_part(inode, size, (last + 1) << mount.block_bits)?;
    }
    Ok(())
}

/// Writes `bufs` at `pos`, after [`prepare`]. The request's lock is held; `alone` if it is exclusive.
pub(super) fn write_placing(
    request: &WriteRequest<'_>,
    bufs: &[IoSlice<'_>],
    pos: u64,
    alone: bool,
    cuts: Cuts,
) -> Result<Placed> {
    placing(request, bufs, pos, alone, cuts, Placing::write)
}

pub(super) fn placing<'a, 'b>(
    request: &WriteRequest<'a>,
    bufs: &'a [IoSlice<'b>],
    pos: u64,
    alone: bool,
    cuts: Cuts,
    write: impl FnOnce(&Placing<'a, 'b>) -> Result<Placed>,
) -> Result<Placed> {
    let (mount, inode) = (request.mount, request.inode);
    let writer = mount.writer()?;
    let placing = Placing {
        mount,
        inode,
        writer,
        bufs,
        last: Cell::default(),
        right: request.access.right(),
        pos,
        end: pos + request.len as u64,
        old_size: inode.i_size(),
        alone,
        cuts,
        growth: Cell::default(),
        keep_times: request.access.keep_times,
    };
    if placing.was_cut() {
        return Ok(Placed::MustBeAlone);
    }
    let placed = write(&placing);
    if placed.is_err() && alone && inode.i_size() > placing.old_size {
        // What was settled of it belongs to a write that failed. Readers without the lock may have found it.
        let _closed = inode.in_flight.close();
        // Who would wait for a request of its own leaves them their blocks.
        let drained = drain(mount, inode, request.slot);
        let mut taken_back = drained.and_then(|()| mount.shrink(writer, inode, placing.old_size));
        // Nor are they needed to take the size back: where the last block cannot be zeroed, who grows the file next does that.
        if taken_back.is_err() && inode.i_size() > placing.old_size {
            taken_back = mount.shorten(writer, inode, placing.old_size);
        }
        match taken_back {
            // It is in memory only, where nothing is written any more.
            Err(_) if mount.why_read_only().is_some() => {
                let _map = inode.map.lock();
                inode.set_size(placing.old_size);
            }
            done => done?,
        }
    }
    if placed.is_err() && !alone && mount.why_read_only().is_some() {
        placing.forget_growth();
    }
    placed
}

/// As [`write_placing`], but the data goes to the device as one write, and a crash shows all of it or nothing.
pub(super) fn write_atomic(
    request: &WriteRequest<'_>,
    bufs: &[IoSlice<'_>],
    pos: u64,
    alone: bool,
    cuts: Cuts,
) -> Result<Placed> {
    placing(request, bufs, pos, alone, cuts, |placing| {
        placing.write_atomic(request)
    })
}

impl Placing<'_, '_> {
    fn block_bytes(&self) -> u64 {
        self.mount.block_bytes()
    }

    /// Whether a truncate beside readers has begun since the request was admitted. It may have taken away
    /// what was planned, and will take away what is added behind the end that it set.
    fn was_cut(&self) -> bool {
        !self.alone && self.inode.cuts() != self.cuts
    }

    /// Whether the file reached the write's end by it: what cuts off some of that comes after it.
    fn took_its_end(&self) -> bool {
        self.growth.get().is_some_and(|grew| grew.to >= self.end)
    }

    /// Takes back in memory what it added to the size, where nothing is written any more. What others have added behind it
    /// stays, until they have failed too.
    fn forget_growth(&self) {
        let Some(growth) = self.growth.get() else {
            return;
        };
        let _map = self.inode.map.lock();
        let mut failed = self.mount.failed_growths.lock();
        failed.push(growth);
        let is_last =
            |growth: &Growth| (growth.ino, growth.to) == (self.inode.ino, self.inode.i_size());
        while let Some(at) = failed.iter().position(is_last) {
            self.inode.set_size(failed.swap_remove(at).from);
        }
    }

    /// The blocks that bytes lie in.
    fn blocks_of(&self, bytes: &Range<u64>) -> Range<u64> {
        bytes.start >> self.mount.block_bits..bytes.end.div_ceil(self.block_bytes())
    }

    pub(super) fn write(&self) -> Result<Placed> {
        match self.place(self.pos..self.end)? {
            Placed::Done => self.end(),
            Placed::MustBeAlone => Ok(Placed::MustBeAlone),
        }
    }

    /// What comes when all blocks are written.
    pub(super) fn end(&self) -> Result<Placed> {
        if !self.grow_to(self.end)? {
            return Ok(Placed::MustBeAlone);
        }
        if !self.keep_times {
            self.inode.set_modified(coarse_now_ns());
        }
        Ok(Placed::Done)
    }

    fn write_atomic(&self, request: &WriteRequest<'_>) -> Result<Placed> {
        // No block for the map: as in `place`.
        let with_space = || self.write_atomic_once(request);
        self.mount.with_space(self.writer, with_space)
    }

    fn write_atomic_once(&self, request: &WriteRequest<'_>) -> Result<Placed> {
        let blocks = self.blocks_of(&(self.pos..self.end));
        let target = match self.whole(self.plan(blocks.clone())?)? {
            Some(target) => target,
            None if !self.alone => return Ok(Placed::MustBeAlone),
            None => {
                self.fill(blocks.clone())?;
                let filled = self.whole(self.plan(blocks)?)?;
                filled.ok_or_else(|| {
                    request.unsupported("an atomic write to blocks that lie apart")
                })?
            }
        };
        if !self.alone && self.row(&target).is_shared_by_blocks(self.block_bytes()) {
            return Ok(Placed::MustBeAlone);
        }
        let device_offset = request.unit_at(target.pblk << self.mount.block_bits)?;
        atomic::commit_map(request, target.what.below())?;
        let [buf] = self.bufs else {
            unreachable!("an atomic write has one buffer");
        };
        let device = &self.mount.device;
        device.write_atomic_at(device_offset, buf, Durability::Cached)?;
        match self.settle(target)? {
            Settled::Done => self.end(),
            Settled::Overtaken | Settled::MustBeAlone => Ok(Placed::MustBeAlone),
        }
    }

    /// The one target that targets are, if they lie in a row, are of one kind, and are settled by one transaction.
    fn whole(&self, targets: Vec<Target>) -> Result<Option<Target>> {
        let mut targets = targets.into_iter();
        let mut whole = targets.next().expect("a write has blocks");
        for target in targets {
            if self.row(&whole).with(self.row(&target)).is_none() {
                return Ok(None);
            }
            whole.len += target.len;
        }
        let at_once = match whole.what {
            What::Unwritten => {
                atomic::is_one_unwritten_extent(self.mount, self.inode, whole.blocks())?
            }
            _ => true,
        };
        Ok(at_once.then_some(whole))
    }

    fn row(&self, target: &Target) -> Row {
        Row {
            below: target.what.below(),
            device_offset: target.pblk << self.mount.block_bits,
            len: u64::from(target.len) << self.mount.block_bits,
        }
    }

    /// Fills what holds no data with zeros, so that all blocks are written.
    fn fill(&self, blocks: Range<u64>) -> Result<()> {
        let zeros = vec![0; ((blocks.end - blocks.start) << self.mount.block_bits) as usize];
        for target in self.plan(blocks)? {
            let bytes = target.blocks().start << self.mount.block_bits
                ..target.blocks().end << self.mount.block_bits;
            if matches!(target.what, What::Written) {
                continue;
            }
            drop(target);
            zero_gap(self.mount, self.inode, bytes.start)?;
            let bufs = [IoSlice::new(&zeros[..(bytes.end - bytes.start) as usize])];
            let part = Placing {
                bufs: &bufs,
                last: Cell::default(),
                pos: bytes.start,
                end: bytes.end,
                old_size: self.inode.i_size(),
                growth: Cell::default(),
                ..*self
            };
            part.write()?;
        }
        Ok(())
    }

    /// Writes a part of the request, and all that this takes.
    fn place(&self, bytes: Range<u64>) -> Result<Placed> {
        let mut parts = VecDeque::from([bytes]);
        let mut tries = Tries::default();
        while let Some(bytes) = parts.pop_front() {
            let targets = self.plan(self.blocks_of(&bytes))?;
            if !self.alone && self.end > self.old_size && self.takes_steps(&targets)? {
                // If one of them fails, the others are taken back.
                return Ok(Placed::MustBeAlone);
            }
            for target in &targets {
                self.transfer(target, &bytes)?;
            }
            for target in targets {
                let (blocks, bits) = (target.blocks(), self.mount.block_bits);
                let start = (blocks.start << bits).max(bytes.start);
                match self.settle(target) {
                    Ok(Settled::Done) => {}
                    Ok(Settled::MustBeAlone) => return Ok(Placed::MustBeAlone),
                    Ok(Settled::Overtaken) => {
                        parts.push_back(start..(blocks.end << bits).min(bytes.end));
                    }
                    // No block for the map. What was claimed is given back, for what lies behind it too: settled
                    // before it, that would leave a hole inside the size, or share a cluster that is nobody's.
                    Err(Error::NoSpace(short))
                        if tries.another(self.mount, self.writer, &short)? =>
                    {
                        parts.push_front(start..bytes.end);
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(Placed::Done)
    }

    /// Whether more than one transaction settles them.
    fn takes_steps(&self, targets: &[Target]) -> Result<bool> {
        let mut changing = targets.iter().filter(|t| !matches!(t.what, What::Written));
        let first = changing.next();
        if changing.next().is_some() || !self.inode.is_extent_mapped() {
            return Ok(true);
        }
        match first {
            Some(target) if matches!(target.what, What::Unwritten) && target.len > 1 => {
                let blocks = target.blocks();
                Ok(!atomic::is_one_unwritten_extent(
                    self.mount, self.inode, blocks,
                )?)
            }
            _ => Ok(false),
        }
    }

    fn plan(&self, blocks: Range<u64>) -> Result<Vec<Target>> {
        let mut targets = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let want = (blocks.end - at).min(u64::from(MOST_WRITTEN)) as u32;
            let mapping = map::load::lookup_or_load(self.mount, self.inode, Lblk(at as u32), want)?;
            let end = at + u64::from(mapping.len);
            let what = match mapping.kind {
                MapKind::Mapped => What::Written,
                MapKind::Unwritten => What::Unwritten,
                MapKind::Hole => {
                    self.plan_hole(at..end, &mut targets)?;
                    at = end;
                    continue;
                }
            };
            targets.push(Target {
                lblk: at as u32,
                len: mapping.len,
                pblk: mapping.pblk.0,
                what,
            });
            at = end;
        }
        Ok(targets)
    }

    fn plan_hole(&self, hole: Range<u64>, targets: &mut Vec<Target>) -> Result<()> {
        let ratio = u64::from(self.mount.sb.cluster_ratio());
        let mut at = hole.start;
        while at < hole.end {
            let first_cluster = at - at % ratio;
            let shared = match targets.last() {
                // It goes into the cluster that was claimed for what lies before it.
                Some(before) if at > first_cluster && before.is_new_up_to(at) => {
                    Some(Pblk(before.pblk + u64::from(before.len) - at % ratio))
                }
                _ => self
                    .mount
                    .settled_cluster(self.writer, self.inode, Lblk(at as u32))?,
            };
            let target = match shared {
                Some(cluster) => Target {
                    lblk: at as u32,
                    len: (hole.end.min(first_cluster + ratio) - at) as u32,
                    pblk: cluster.0 + at % ratio,
                    what: What::Shared,
                },
                None => self.claim(
                    self.mount.own_clusters(self.inode, at..hole.end)?,
                    targets.last(),
                )?,
            };
            at += u64::from(target.len);
            targets.push(target);
        }
        Ok(())
    }

    /// Claims clusters for as much of a hole as come in one run.
    fn claim(&self, hole: Range<u64>, before: Option<&Target>) -> Result<Target> {
        let ratio = u64::from(self.mount.sb.cluster_ratio());
        let skip = hole.start % ratio;
        // A cluster may have more blocks than an extent; the hole has not.
        let most = (u64::from(MOST_WRITTEN) / ratio).max(1);
        let wanted = (skip + (hole.end - hole.start)).div_ceil(ratio).min(most);
        let request = Request {
            goal: self.goal(hole.start, before)?,
            len: 1..=wanted as u32,
            stream: Some(self.inode.stream()),
            right: self.right,
            below: self.mount.groups_below(self.inode.is_extent_mapped()),
        };
        let claim = self.mount.claim_some(self.writer, &request)?;
        let run = claim.run();
        let len = (u64::from(run.len) * ratio - skip).min(hole.end - hole.start);
        let end = Pblk(run.start.0 + u64::from(run.len) * ratio);
        self.inode.set_goal(end, &self.writer.blocks);
        Ok(Target {
            lblk: hole.start as u32,
            len: len as u32,
            pblk: run.start.0 + skip,
            what: What::Hole(claim),
        })
    }

    /// Right behind the blocks before, if these are mapped or will be.
    fn goal(&self, lblk: u64, before: Option<&Target>) -> Result<Goal> {
        match before {
            Some(target) if target.blocks().end == lblk => {
                Ok(Goal::Append(Pblk(target.pblk + u64::from(target.len))))
            }
            _ => self.mount.goal_behind(self.inode, lblk),
        }
    }

    /// Writes the bytes of a part of the request that lie in `target`.
    fn transfer(&self, target: &Target, bytes: &Range<u64>) -> Result<()> {
        let bits = self.mount.block_bits;
        let blocks = target.blocks();
        let start = bytes.start.max(blocks.start << bits);
        let end = bytes.end.min(blocks.end << bits);
        let mut at = start;
        while at < end {
            let block_end = (at - at % self.block_bytes() + self.block_bytes()).min(end);
            let partial = block_end - at < self.block_bytes();
            if partial && self.must_complete(target, at..block_end) {
                self.complete(target, at..block_end)?;
                at = block_end;
                continue;
            }
            // All whole blocks together, and a part of a block that can go as it is.
            let whole_end = if partial {
                block_end
            } else {
                end - end % self.block_bytes()
            };
            self.put(self.device_offset(target, at), at..whole_end)?;
            at = whole_end;
        }
        Ok(())
    }

    fn device_offset(&self, target: &Target, at: u64) -> u64 {
        (target.pblk << self.mount.block_bits)
            + (at - (u64::from(target.lblk) << self.mount.block_bits))
    }

    /// Whether the rest of a block must be written with a part of it.
    fn must_complete(&self, target: &Target, part: Range<u64>) -> bool {
        let block_end = part.start - part.start % self.block_bytes() + self.block_bytes();
        !matches!(target.what, What::Written)
            || !self.mount.aligned(part.start | part.end)
            // What lies behind the end of the file is not zeros for certain, and comes into it.
            || block_end > self.old_size && self.end > self.old_size
    }

    /// Writes a whole block of which the request has `part`.
    fn complete(&self, target: &Target, part: Range<u64>) -> Result<()> {
        debug_assert!(
            self.alone,
            "another writer's part of the block would be lost"
        );
        let block_start = part.start - part.start % self.block_bytes();
        let device_offset = self.device_offset(target, block_start);
        let mut buf = Buf::zeroed(self.block_bytes() as usize);
        if matches!(target.what, What::Written) {
            self.mount.device.read_at(device_offset, &mut buf)?;
            let kept = self.old_size.saturating_sub(block_start);
            let kept = kept.min(self.block_bytes()) as usize;
            buf[kept..].fill(0);
        }
        let at = (part.start - block_start) as usize;
        let len = (part.end - part.start) as usize;
        self.gather((part.start - self.pos) as usize, &mut buf[at..at + len]);
        Ok(self
            .mount
            .device
            .write_at(device_offset, &buf, Durability::Cached)?)
    }

    /// Writes bytes of the request, whole logical blocks, to one place on the device.
    fn put(&self, device_offset: u64, bytes: Range<u64>) -> Result<()> {
        let (mut at, mut device_offset) = ((bytes.start - self.pos) as usize, device_offset);
        let end = (bytes.end - self.pos) as usize;
        let mut copy = None;
        while at < end {
            let slice = self.slice(at, end);
            let whole = slice.len() - slice.len() % (self.mount.logical_mask + 1) as usize;
            let len = if whole > 0 {
                self.write_device(device_offset, &slice[..whole])?;
                whole
            } else {
                let len = (end - at).min(BOUNCE_BYTES);
                let copy = copy.get_or_insert_with(|| Buf::zeroed(len));
                self.gather(at, &mut copy[..len]);
                self.write_device(device_offset, &copy[..len])?;
                len
            };
            at += len;
            device_offset += len as u64;
        }
        Ok(())
    }

    fn write_device(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self
            .mount
            .device
            .write_at(offset, bytes, Durability::Cached)?)
    }

    /// The request's bytes from `at` on, as far as one buffer has them and `end` goes.
    fn slice(&self, at: usize, end: usize) -> &[u8] {
        let (first, mut before) = match self.last.get() {
            last if last.1 <= at => last,
            _ => (0, 0),
        };
        for (index, buf) in self.bufs.iter().enumerate().skip(first) {
            if at < before + buf.len() {
                self.last.set((index, before));
                return &buf[at - before..buf.len().min(end - before)];
            }
            before += buf.len();
        }
        unreachable!("the buffers hold the whole request")
    }

    /// Copies the request's bytes from `at` on.
    fn gather(&self, at: usize, out: &mut [u8]) {
        let mut done = 0;
        while done < out.len() {
            let slice = self.slice(at + done, at + out.len());
            out[done..done + slice.len()].copy_from_slice(slice);
            done += slice.len();
        }
    }
}

/// What came of settling a target.
enum Settled {
    Done,
    /// Others changed these blocks: they are written again.
    Overtaken,
    /// Space is short, and the way round it needs the file alone.
    MustBeAlone,
}

impl Placing<'_, '_> {
    /// Makes the file lead to what was written.
    fn settle(&self, target: Target) -> Result<Settled> {
        let Target {
            lblk, len, pblk, ..
        } = target;
        match target.what {
            What::Written => Ok(Settled::Done),
            What::Unwritten => self.settle_unwritten(target.blocks()),
            What::Hole(claim) => self.settle_hole(lblk, len, pblk, Some(claim)),
            What::Shared => self.settle_hole(lblk, len, pblk, None),
        }
    }

    /// Maps a hole, in one transaction where one block of pointers or an extent tree holds it.
    fn settle_hole(
        &self,
        mut lblk: u32,
        mut len: u32,
        mut pblk: u64,
        mut claim: Option<Claim>,
    ) -> Result<Settled> {
        while len > 0 {
            let credits = Credits::insert(self.mount, self.inode) + INODE_CREDITS;
            let mut handle = self.writer.begin(credits)?;
            let lock = self.inode.map.lock();
            if self.was_cut() {
                return Ok(Settled::MustBeAlone);
            }
            if !self.is_still_hole(&lock, lblk, len, pblk, claim.is_some())? {
                return Ok(Settled::Overtaken);
            }
            let run = Run {
                lblk: Lblk(lblk),
                len,
                pblk: Pblk(pblk),
                unwritten: false,
            };
            let new_end = u64::from(lblk) + u64::from(len);
            let size = |mapped: u32| self.size_after(new_end - u64::from(len - mapped));
            let mapped = self.mount.change_map(
                self.writer,
                &mut handle,
                self.inode,
                &lock,
                |map| map.insert_claimed(extent_of(&run), claim.as_mut()),
                &mut |disk, &mapped| self.stamp(disk, size(mapped)),
            )?;
            let size = size(mapped);
            self.publish(&lock, Run { len: mapped, ..run }, size);
            drop(lock);
            handle.stop()?;
            lblk += mapped;
            pblk += u64::from(mapped);
            len -= mapped;
        }
        Ok(Settled::Done)
    }

    fn is_still_hole(
        &self,
        lock: &MapGuard<'_>,
        lblk: u32,
        len: u32,
        pblk: u64,
        claimed: bool,
    ) -> Result<bool> {
        if self.alone {
            return Ok(true);
        }
        let ratio = u64::from(self.mount.sb.cluster_ratio());
        let mut at = lblk;
        while at < lblk + len {
            let mapping = self
                .mount
                .mapping_locked(self.inode, lock, Lblk(at), lblk + len - at)?;
            if mapping.kind != MapKind::Hole {
                return Ok(false);
            }
            at += mapping.len;
        }
        if ratio == 1 {
            return Ok(true);
        }
        for block in [lblk, lblk + len - 1] {
            let implied = self
                .mount
                .implied_cluster_locked(self.inode, lock, Lblk(block))?;
            let ours = pblk + u64::from(block - lblk) - u64::from(block) % ratio;
            // The file has none yet where one was claimed, and this one elsewhere.
            if implied.map(|cluster| cluster.0) != (!claimed).then_some(ours) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes unwritten blocks written.
    fn settle_unwritten(&self, blocks: Range<u64>) -> Result<Settled> {
        let mut rest = blocks;
        while !rest.is_empty() {
            let least = Credits::convert(self.mount, self.inode);
            let credits = least.max(self.writer.ample_credits() - INODE_CREDITS);
            let mut handle = self.writer.begin(credits + INODE_CREDITS)?;
            let lock = self.inode.map.lock();
            if self.was_cut() {
                return Ok(Settled::MustBeAlone);
            }
            let converted = self.mount.change_map(
                self.writer,
                &mut handle,
                self.inode,
                &lock,
                |map| {
                    let progress = map.convert(rest.clone(), State::Written, credits)?;
                    Ok(done_of(&rest, &progress))
                },
                &mut |disk, done: &Range<u64>| self.stamp(disk, self.size_after(done.end)),
            );
            let done = match converted {
                Err(Error::NoSpace(short)) if self.alone => {
                    drop(lock);
                    drop(handle);
                    return self.zero_out(rest, short);
                }
                Err(Error::NoSpace(_)) => return Ok(Settled::MustBeAlone),
                result => result?,
            };
            let size = self.size_after(done.end);
            self.mount
                .for_each_mapping(self.inode, &lock, done.clone(), &mut |mapping| {
                    let run = Run {
                        lblk: mapping.lblk,
                        len: mapping.len,
                        pblk: mapping.pblk,
                        unwritten: false,
                    };
                    self.publish(&lock, run, size);
                    Ok(())
                })?;
            drop(lock);
            handle.stop()?;
            rest = done.end..rest.end;
        }
        Ok(Settled::Done)
    }

    /// No block is left for the tree to split an extent: what it has around the write is filled with
    /// zeros instead, and becomes written as a whole; of the write all is there, in these blocks and in others. Not behind
    /// the end of the file, where written blocks are damage.
    fn zero_out(&self, blocks: Range<u64>, short: Shortage) -> Result<Settled> {
        let size = self.end.max(self.inode.i_size());
        let file_end = size.div_ceil(self.block_bytes());
        let own = self.blocks_of(&(self.pos..self.end));
        let lock = self.inode.map.lock();
        let extents = self
            .mount
            .unwritten_extents(self.inode, &lock, blocks.clone())?;
        drop(lock);
        for (start, len, pblk) in extents {
            let whole = start..start + len;
            if whole.end > file_end {
                return Err(Error::NoSpace(short));
            }
            for part in [whole.start..own.start, own.end..whole.end] {
                if part.start < part.end {
                    let at = (pblk + (part.start - start)) << self.mount.block_bits;
                    let bytes = (part.end - part.start) << self.mount.block_bits;
                    self.mount.device.write_zeroes(at, bytes)?;
                }
            }
            let credits = Credits::convert(self.mount, self.inode);
            let mut handle = self.writer.begin(credits + INODE_CREDITS)?;
            let lock = self.inode.map.lock();
            // All of the write is on the device by now.
            let size = self.size_after(whole.end);
            self.mount.change_map(
                self.writer,
                &mut handle,
                self.inode,
                &lock,
                |map| map.convert(whole.clone(), State::Written, credits),
                &mut |disk, _| self.stamp(disk, size),
            )?;
            let run = Run {
                lblk: Lblk(start as u32),
                len: len as u32,
                pblk: Pblk(pblk),
                unwritten: false,
            };
            self.publish(&lock, run, size);
            drop(lock);
            handle.stop()?;
        }
        Ok(Settled::Done)
    }

    /// i_size once the blocks up to `end` are there.
    fn size_after(&self, end: u64) -> u64 {
        let written = self.end.min(end << self.mount.block_bits);
        self.inode.i_size().max(written)
    }

    fn stamp(&self, disk: &mut dioxide_format::inode::Inode, size: u64) {
        disk.set_size(size);
        if !self.keep_times {
            let now = self.mount.now();
            disk.set_mtime(now);
            disk.set_ctime(now);
        }
    }

    /// Shows readers what the transaction says.
    fn publish(&self, lock: &MapGuard<'_>, run: Run, size: u64) {
        lock.set_run(&run);
        self.publish_size(size);
    }

    /// The map is locked.
    fn publish_size(&self, size: u64) {
        let (ino, from) = (self.inode.ino, self.inode.i_size());
        if size > from {
            self.inode.set_size(size);
            let to = size;
            self.growth.set(Some(Growth { ino, from, to }));
        }
    }

    /// Makes the file `size` bytes long if it is shorter: what the blocks did not take it to. False if it was cut off.
    fn grow_to(&self, size: u64) -> Result<bool> {
        if self.took_its_end() || size <= self.inode.i_size() {
            return Ok(true);
        }
        let mut handle = self.writer.begin(INODE_CREDITS)?;
        let lock = self.inode.map.lock();
        if self.was_cut() {
            return Ok(false);
        }
        let size = size.max(self.inode.i_size());
        self.mount
            .change_inode(&mut handle, self.inode, &lock, &mut |disk| {
                self.stamp(disk, size);
            })?;
        self.inode.changed_in(handle.tid(), true);
        self.publish_size(size);
        drop(lock);
        handle.stop()?;
        Ok(true)
    }
}

/// The part of a range that was done.
fn done_of(range: &Range<u64>, progress: &Progress) -> Range<u64> {
    match progress {
        Progress::Done => range.clone(),
        Progress::More(rest) => range.start..rest.start,
    }
}

fn extent_of(run: &Run) -> Extent {
    Extent {
        lblk: run.lblk,
        // A claim has at most as many blocks as an extent.
        len: run.len as u16,
        pblk: run.pblk,
        unwritten: run.unwritten,
    }
}
