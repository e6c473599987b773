//! How many clusters there are to have.
//!
//! Not for: where they are. All numbers are clusters.
//!
//! Invariant: `available` = free in the bitmaps − pending (freed, not committed) − claimed (chosen,
//! not recorded) − reserved (promised, not chosen). Clusters are reserved before a bitmap is
//! searched, so those that were promised are there, whoever else allocates; only whether they lie
//! together is open. Claimed clusters are not counted by themselves: nobody asks.
//!
//! Rejected: counters sharded by CPU. An exact answer to "is there enough" needs their sum, and one
//! atomic addition is small beside the search and the change of two metadata blocks.

use crate::{Error, Result, Shortage};
use crossbeam_utils::CachePadded;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The counters of a file system. Who takes from `available` also sees what was stored before it
/// grew: the hint of the group where the clusters are; so does who sees `openings` grow. The others
/// are only numbers.
#[derive(Debug)]
pub(super) struct Space {
    available: CachePadded<AtomicU64>,
    free: AtomicU64,
    pending: AtomicU64,
    /// How often clusters somewhere became such that they can be had.
    openings: AtomicU64,
    /// What is kept for the super user, and for the maps of files.
    kept: u64,
    aside: u64,
}

/// Which of the free clusters a caller may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// What nobody has a claim to.
    Everyone,
    /// Those kept for the super user too.
    Resource,
    /// All. For the map of a file: making it smaller may take a block, and must not fail for that
    /// when the file system is full.
    Map,
}

/// Clusters that nobody else can take. Given back when dropped, as far as they were not used.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    space: &'a Space,
    left: u64,
}

impl Space {
    pub(super) fn new(free: u64, kept: u64, aside: u64) -> Space {
        Space {
            available: CachePadded::new(AtomicU64::new(free)),
            free: AtomicU64::new(free),
            pending: AtomicU64::new(0),
            openings: AtomicU64::new(0),
            kept,
            aside,
        }
    }

    pub(super) fn free(&self) -> u64 {
        self.free.load(Relaxed)
    }

    pub(super) fn pending(&self) -> u64 {
        self.pending.load(Relaxed)
    }

    /// What a caller can reserve.
    pub(super) fn available(&self, right: Right) -> u64 {
        let floor = self.floor(right);
        self.available.load(Relaxed).saturating_sub(floor)
    }

    fn floor(&self, right: Right) -> u64 {
        match right {
            Right::Everyone => self.kept.saturating_add(self.aside),
            Right::Resource => self.aside,
            Right::Map => 0,
        }
    }

    /// Takes between `least` and `most` out of what is available; none if that is less than `least`.
    fn take(&self, least: u64, most: u64, right: Right) -> Option<u64> {
        let floor = self.floor(right);
        let mut taken = 0;
        self.available
            .fetch_update(Acquire, Relaxed, |now| {
                taken = now.saturating_sub(floor).min(most);
                (taken >= least).then(|| now - taken)
            })
            .ok()
            .map(|_| taken)
    }

    /// Reserves exactly `count`.
    pub(super) fn reserve(&self, count: u64, right: Right) -> Result<Reservation<'_>> {
        let left = self
            .take(count, count, right)
            .ok_or_else(|| self.shortage(count, right))?;
        Ok(Reservation { space: self, left })
    }

    /// What [`Reservation::keep`] kept.
    pub(super) fn reserved(&self, left: u64) -> Reservation<'_> {
        Reservation { space: self, left }
    }

    /// The error of who asks for more than there is.
    fn shortage(&self, asked: u64, right: Right) -> Error {
        let all = self.available.load(Relaxed);
        let kept = all.min(self.floor(right));
        Error::NoSpace(Shortage::Clusters {
            asked,
            available: all - kept,
            kept,
        })
    }

    /// Clusters became used in a bitmap.
    pub(super) fn used(&self, count: u64) {
        self.free.fetch_sub(count, Relaxed);
    }

    /// Clusters became free in a bitmap.
    pub(super) fn freed(&self, count: u64) {
        self.free.fetch_add(count, Relaxed);
    }

    /// Freed clusters wait: for a commit, or for who frees them.
    pub(super) fn suspended(&self, count: u64) {
        self.pending.fetch_add(count, Relaxed);
    }

    /// They do not any more.
    pub(super) fn settled(&self, count: u64) {
        self.pending.fetch_sub(count, Relaxed);
    }

    /// Clusters can be had; the group's hint was raised before.
    pub(super) fn opened(&self, count: u64) {
        self.openings.fetch_add(1, Release);
        self.available.fetch_add(count, Release);
    }

    /// A number that grows whenever clusters somewhere can be had that could not before.
    pub(super) fn openings(&self) -> u64 {
        self.openings.load(Acquire)
    }

    /// Free clusters of a damaged group cannot be had any more.
    pub(super) fn lost(&self, count: u64) {
        self.take(0, count, Right::Map);
    }
}

impl Reservation<'_> {
    /// Clusters that are still reserved.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Reserves more, up to `count` in all, as far as there is more.
    pub(super) fn grow(&mut self, count: u64, right: Right) {
        let more = count.saturating_sub(self.left);
        self.left += self.space.take(0, more, right).unwrap_or(0);
    }

    /// `count` of the reserved clusters were chosen.
    pub(super) fn spend(&mut self, count: u64) {
        assert!(count <= self.left, "more was taken than reserved");
        self.left -= count;
    }

    /// Ends it without giving back what is left: [`Space::reserved`] takes that up again.
    pub(crate) fn keep(mut self) -> u64 {
        std::mem::take(&mut self.left)
    }

    /// Whether it is of that file system.
    pub(super) fn is_of(&self, space: &Space) -> bool {
        std::ptr::eq(self.space, space)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        // Most are used up, and the counter is everybody's.
        if self.left > 0 {
            self.space.available.fetch_add(self.left, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The superblock of a damaged file system may say any number.
    #[test]
    fn more_kept_than_there_is_leaves_nothing_to_others() {
        let space = Space::new(10, u64::MAX, 2);
        let had = |right| space.available(right);
        assert_eq!(had(Right::Everyone), 0);
        assert_eq!((had(Right::Resource), had(Right::Map)), (8, 10));
        let refused = space.reserve(1, Right::Everyone).expect_err("all is kept");
        assert!(matches!(refused, Error::NoSpace(_)), "{refused}");
    }
}
