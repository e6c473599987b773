//! Clusters that were chosen and are not recorded yet.
//!
//! For: writing data before it is mapped. A claim is made, the data is written to its blocks, and
//! then one transaction records the claim, maps the blocks and moves the size. A crash before that
//! transaction changes nothing, and a write that failed drops its claim. Not for: metadata blocks,
//! to which nothing is written before ([`BlockAllocator::allocate`]).
//!
//! Invariants:
//! - A claimed cluster is clear in its bitmap and held in its group's state: handed out to nobody,
//!   and left out by `trim`. It counts as free, and not as available.
//! - A cluster belongs to one claim at most. A claim ends, part by part, by [`Claim::record`] or by
//!   being dropped, so none is lost to an error path.
//!
//! Rejected: claims that borrow the allocator. A claim lives as long as a write to the device, which
//! may end in another thread than it began in. Rejected too: plain runs that the caller gives back.
//! Each `?` between would leak them until the next mount.

use super::blocks::{BlockAllocator, Run};
use super::place::Chosen;
use crate::Result;
use dioxide_format::types::Group;
use dioxide_journal::Edit;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Clusters in one group that nobody else can have. What was not recorded is given back when it is
/// dropped; that takes the group's lock, does no I/O and cannot fail.
#[must_use = "a claim that is dropped is given back"]
pub(crate) struct Claim {
    allocator: Arc<BlockAllocator>,
    group: Group,
    bits: Range<u32>,
}

impl Claim {
    pub(super) fn new(allocator: Arc<BlockAllocator>, chosen: Chosen) -> Claim {
        Claim {
            allocator,
            group: chosen.group,
            bits: chosen.bits,
        }
    }

    /// What is claimed; empty after [`Claim::record`].
    pub(crate) fn run(&self) -> Run {
        self.allocator.run(self.group, &self.bits)
    }

    /// Keeps the first `len` clusters and returns the others as a claim of their own. Either may be
    /// empty. Takes no lock.
    ///
    /// # Panics
    /// If the claim has fewer.
    pub(crate) fn split_off(&mut self, len: u32) -> Claim {
        assert!(len <= self.run().len, "split past the end of a claim");
        let at = self.bits.start + len;
        let rest = at..self.bits.end;
        self.bits.end = at;
        Claim {
            allocator: self.allocator.clone(),
            group: self.group,
            bits: rest,
        }
    }

    /// Makes the clusters used in the bitmap and its descriptor, and returns them; the claim is empty
    /// then. Changes [`ALLOCATE_CREDITS`](BlockAllocator::ALLOCATE_CREDITS) metadata blocks, or none
    /// for an empty claim; blocks on the device when they are not cached any more. With the number of the transaction,
    /// that may use the clusters again once it has freed them ([`Release::After`](super::Release::After)).
    ///
    /// # Errors
    /// Those of the device and of the journal; damage that was found since. The clusters are still
    /// claimed then, and no block is changed.
    pub(crate) fn record(&mut self, edit: &mut dyn Edit, tid: Option<u32>) -> Result<Run> {
        let run = self.run();
        if !self.bits.is_empty() {
            self.allocator.record(edit, self.group, &self.bits, tid)?;
            self.bits.start = self.bits.end;
        }
        Ok(run)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.bits.is_empty() {
            self.allocator.let_go(self.group, &self.bits);
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claim").field(&self.run()).finish()
    }
}

impl BlockAllocator {
    /// Claimed bits become used, and the hold ends.
    fn record(
        &self,
        edit: &mut dyn Edit,
        group: Group,
        bits: &Range<u32>,
        tid: Option<u32>,
    ) -> Result<()> {
        let mut state = self.slot(group).blocks.lock();
        let view = self.view_to_change(&*edit, group, &mut state)?;
        if let Err(error) = self.write(edit, group, &view, bits, true) {
            // If the bitmap was found damaged, whoever looks at the group gives it up.
            return self.view(&*edit, group, &mut state).and(Err(error));
        }
        state.release(bits);
        match tid {
            Some(tid) => state.record(tid, bits),
            None => state.forget_recorded(bits),
        }
        self.space.used((bits.end - bits.start).into());
        Ok(())
    }
}
