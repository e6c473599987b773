//! Giving blocks back.
//!
//! Invariant: a freed block is clear in its bitmap in the transaction that freed it, and is not handed
//! out before that transaction is committed: after a crash in between, its old owner would have it
//! again, with what its new owner wrote. A block that no committed transaction knows has no old owner, and may be
//! handed out as soon as the change that freed it is whole: a file that grows and is cut off again, or a file that goes soon, stays in
//! the same blocks, which are in the processor's caches. Not sooner: a change that fails leaves a map in memory that leads to it, and
//! the mount can be read.

use super::blocks::{BlockAllocator, Run, damaged};
use super::groups::{Load, UNKNOWN, View, usable};
use super::pool::GroupBlocks;
use crate::{Error, Place, Result};
use dioxide_format::bitmap;
use dioxide_format::types::{Group, Pblk};
use dioxide_journal::Edit;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;

/// When freed blocks may be allocated again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// At once: there is no journal, or the blocks were recorded in the transaction that frees them
    /// and never in one before it, so that after a crash nobody has them; or who gets them writes to them
    /// by that transaction only. Which it is, the caller knows.
    Now,
    /// When [`BlockAllocator::committed`] is told this transaction, or with [`BlockAllocator::let_go_recorded`] if the clusters were
    /// claimed, and it has recorded them itself ([`Claim::record`](super::Claim::record)). Its number is only compared.
    After(u32),
}

/// What a transaction freed.
type Freed = Vec<(Group, Range<u32>)>;

/// What is free on the disk, and cannot be had yet.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Some waits for [`BlockAllocator::committed`].
    pub(crate) waits: bool,
    /// Waits for [`BlockAllocator::let_go_recorded`].
    recorded: Freed,
}

impl Kept {
    pub(crate) fn add(&mut self, mut other: Kept) {
        self.waits |= other.waits;
        self.recorded.append(&mut other.recorded);
    }
}

/// What each uncommitted transaction freed. Its lock is a leaf.
#[derive(Debug, Default)]
pub(super) struct Pending(Mutex<HashMap<u32, Freed>>);

impl Pending {
    fn add(&self, tid: u32, group: Group, bits: Range<u32>) {
        let mut all = self.0.lock();
        let runs = all.entry(tid).or_default();
        match runs.last_mut() {
            Some((last, run)) if *last == group && run.end == bits.start => run.end = bits.end,
            _ => runs.push((group, bits)),
        }
    }

    fn take(&self, tid: u32) -> Freed {
        self.0.lock().remove(&tid).unwrap_or_default()
    }
}

impl BlockAllocator {
    /// Frees clusters, in one group or several; those of a group that is passed over stay in use. Changes
    /// [`FREE_CREDITS_PER_GROUP`](Self::FREE_CREDITS_PER_GROUP) metadata blocks for each; blocks on
    /// the device for bitmaps that are not cached.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when any of them is free already (claimed ones are) or holds fixed metadata,
    /// or when the run is not made of whole clusters of the file system; nothing is changed then. An
    /// error of the device or the journal may leave the first groups of several changed.
    pub(crate) fn free(&self, edit: &mut dyn Edit, run: Run, release: Release) -> Result<Kept> {
        let pieces = self.pieces(run)?;
        if pieces.len() > 1 {
            for (group, bits) in &pieces {
                let mut state = self.slot(*group).blocks.lock();
                if let Some(view) = usable(self.view(&*edit, *group, &mut state))? {
                    self.check_in_use(*group, &view, bits)?;
                }
            }
        }
        let mut kept = Kept::default();
        for (group, bits) in pieces {
            self.free_piece(edit, group, bits, release, &mut kept)?;
        }
        Ok(kept)
    }

    /// The groups and bits of a run.
    pub(super) fn pieces(&self, run: Run) -> Result<Vec<(Group, Range<u32>)>> {
        let sb = self.sb();
        let ratio = u64::from(sb.cluster_ratio());
        let mut pieces = Vec::new();
        let (mut at, mut left) = (run.start, run.len);
        while left > 0 {
            let group = sb.group_of_block(at).ok_or_else(|| outside(run))?;
            let offset = at.0 - sb.group_first_block(group).0;
            if !offset.is_multiple_of(ratio) {
                return Err(outside(run));
            }
            let bit = (offset / ratio) as u32;
            let len = left.min(sb.clusters_in_group(group) - bit);
            pieces.push((group, bit..bit + len));
            left -= len;
            at = Pblk(at.0 + u64::from(len) * ratio);
        }
        Ok(pieces)
    }

    fn check_in_use(&self, group: Group, view: &View, bits: &Range<u32>) -> Result<()> {
        let (from, end) = (bits.start as usize, bits.end as usize);
        if let Some(bit) = bitmap::next_zero(view.bits(), from, end) {
            return Err(damaged(
                group,
                format!("bit {bit} is freed, and free already"),
            ));
        }
        let metadata = self.groups.metadata_bits(group, &view.desc);
        let hit = |range: &Range<usize>| range.start < end && from < range.end;
        match metadata.into_iter().find(hit) {
            Some(range) => {
                let what = format!("bits {from} to {end} are freed, and {range:?} are metadata");
                Err(damaged(group, what))
            }
            None => Ok(()),
        }
    }

    fn free_piece(
        &self,
        edit: &mut dyn Edit,
        group: Group,
        bits: Range<u32>,
        release: Release,
        kept: &mut Kept,
    ) -> Result<()> {
        let mut state = self.slot(group).blocks.lock();
        let Some(mut view) = usable(self.view(&*edit, group, &mut state))? else {
            return Ok(());
        };
        self.check_in_use(group, &view, &bits)?;
        let bytes = view.bits().len();
        view.let_go();
        self.write(edit, group, &view, &bits, false)?;
        let count = bits.end - bits.start;
        self.space.freed(count.into());
        let Release::After(tid) = release else {
            self.reopen(group, &mut state, count);
            return Ok(());
        };
        state.hold(&bits, bytes);
        self.space.suspended(count.into());
        if state.is_recorded_by(tid, &bits) {
            kept.recorded.push((group, bits));
        } else {
            self.pending.add(tid, group, bits);
            kept.waits = true;
        }
        Ok(())
    }

    /// Nothing leads any more to what was freed, and nothing can go wrong before that is in the transaction: what only this knows
    /// that it was in use can be had again. Who does not call this keeps it for ever, as after an abort. Takes groups' locks, one at
    /// a time.
    pub(crate) fn let_go_recorded(&self, kept: Kept) {
        for (group, bits) in kept.recorded {
            self.settle(group, &bits);
        }
    }

    /// Bits can be had: the longest run may have grown by them and by a run on either side.
    fn reopen(&self, group: Group, state: &mut GroupBlocks, count: u32) {
        let slot = self.slot(group);
        state.trimmed = None;
        if slot.longest.get() != UNKNOWN {
            let longest = slot.longest.get().saturating_mul(2).saturating_add(count);
            slot.longest.set(longest.min(slot.free_clusters.get()));
        }
        self.space.opened(count.into());
    }

    /// Bits that were held can be had again, unless their group was found damaged meanwhile. Takes the
    /// group's lock.
    pub(super) fn let_go(&self, group: Group, bits: &Range<u32>) {
        let mut state = self.slot(group).blocks.lock();
        state.release(bits);
        if state.load != Load::Damaged {
            self.reopen(group, &mut state, bits.end - bits.start);
        }
    }

    /// The transaction is durable: what it freed can be allocated. Each run is first shown to
    /// `before`, while nobody can have it yet: there a mount with `discard` discards it. Claims
    /// stay. Takes groups' locks, one at a time, not while it calls `before`.
    pub(crate) fn committed(&self, tid: u32, before: &mut dyn FnMut(Run)) {
        for (group, bits) in self.pending.take(tid) {
            before(self.run(group, &bits));
            self.settle(group, &bits);
        }
    }

    fn settle(&self, group: Group, bits: &Range<u32>) {
        self.let_go(group, bits);
        // Not before: who finds nothing pending looks once more, and finds them.
        self.space.settled((bits.end - bits.start).into());
    }
}

fn outside(run: Run) -> Error {
    Error::Corrupt {
        structure: "block number",
        place: Place::block(run.start.0),
        what: format!("{} clusters are freed that are not all there", run.len),
    }
}
