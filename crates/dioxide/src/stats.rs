//! What a mount counts: requests by the path they took, and what slowed them down.
//!
//! Counting is on the hot path, so each owner of a [`slot`](crate::sync::slot) has a shard that
//! only it writes; owners without a number share the last one. A snapshot adds the shards up and
//! is exact once the counted threads are quiet.

use crate::sync::slot::{SLOTS, Slot};
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering};

/// One thing that is counted. What requests count comes first, in one line of the processor's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Count {
    ReadSimple,
    ReadGeneral,
    WriteShared,
    WriteExclusive,
    CompletedInline,
    LockWait,
    Restart,
    WouldBlock,
    Punt,
    Drain,
    CompletedDeferred,
}

const KINDS: usize = Count::CompletedDeferred as usize + 1;

type Shard = CachePadded<[AtomicU64; KINDS]>;

#[derive(Debug)]
pub(crate) struct Counters {
    shards: [Shard; SLOTS + 1],
}

/// Totals since the mount was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Reads that took the simple path.
    pub reads_simple: u64,
    /// Reads that took the general path.
    pub reads_general: u64,
    /// Writes under the shared lock.
    pub writes_shared: u64,
    /// Writes under the exclusive lock (or downgraded or released from it).
    pub writes_exclusive: u64,
    /// Times that an inode lock was not free at once and was waited for.
    pub lock_waits: u64,
    /// Writes that began shared and restarted exclusive.
    pub restarts: u64,
    /// No-wait attempts that ended in EAGAIN.
    pub would_block: u64,
    /// Queued requests that were handed to a worker.
    pub punts: u64,
    /// Times that direct I/O in flight was waited for.
    pub drains: u64,
    /// Queued requests whose completion ran where the device's completion was reaped.
    pub completed_inline: u64,
    /// Queued requests whose completion ran in a worker.
    pub completed_deferred: u64,
    /// Transactions that the journal made durable.
    pub journal_commits: u64,
}

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters {
            shards: std::array::from_fn(|_| Shard::default()),
        }
    }

    /// Counts one for the owner of `slot`.
    #[inline(always)]
    pub(crate) fn add(&self, slot: Slot, count: Count) {
        self.add_many(slot, count, 1);
    }

    #[inline(always)]
    pub(crate) fn add_many(&self, slot: Slot, count: Count, n: u64) {
        let counter = &self.shards[slot.index()][count as usize];
        if slot == Slot::NONE {
            counter.fetch_add(n, Ordering::Relaxed);
        } else {
            counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        }
    }

    fn sum(&self, count: Count) -> u64 {
        let shards = self.shards.iter();
        shards
            .map(|shard| shard[count as usize].load(Ordering::Relaxed))
            .sum()
    }

    /// What is counted here; what the journal counts comes from it.
    pub(crate) fn snapshot(&self, journal_commits: u64) -> Stats {
        Stats {
            journal_commits,
            reads_simple: self.sum(Count::ReadSimple),
            reads_general: self.sum(Count::ReadGeneral),
            writes_shared: self.sum(Count::WriteShared),
            writes_exclusive: self.sum(Count::WriteExclusive),
            lock_waits: self.sum(Count::LockWait),
            restarts: self.sum(Count::Restart),
            would_block: self.sum(Count::WouldBlock),
            punts: self.sum(Count::Punt),
            drains: self.sum(Count::Drain),
            completed_inline: self.sum(Count::CompletedInline),
            completed_deferred: self.sum(Count::CompletedDeferred),
        }
    }
}

impl Stats {
    /// What was counted in both, as of two stretches of time.
    pub fn plus(&self, other: &Stats) -> Stats {
        self.with(other, |a, b| a + b)
    }

    /// What was counted between `earlier` and this snapshot.
    pub fn since(&self, earlier: &Stats) -> Stats {
        self.with(earlier, |now, then| now - then)
    }

    /// Field by field. Every one is named: none can be forgotten.
    fn with(&self, other: &Stats, of: impl Fn(u64, u64) -> u64) -> Stats {
        Stats {
            reads_simple: of(self.reads_simple, other.reads_simple),
            reads_general: of(self.reads_general, other.reads_general),
            writes_shared: of(self.writes_shared, other.writes_shared),
            writes_exclusive: of(self.writes_exclusive, other.writes_exclusive),
            lock_waits: of(self.lock_waits, other.lock_waits),
            restarts: of(self.restarts, other.restarts),
            would_block: of(self.would_block, other.would_block),
            punts: of(self.punts, other.punts),
            drains: of(self.drains, other.drains),
            completed_inline: of(self.completed_inline, other.completed_inline),
            completed_deferred: of(self.completed_deferred, other.completed_deferred),
            journal_commits: of(self.journal_commits, other.journal_commits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_owned_and_shared_shards_add_up() {
        let counters = Counters::new();
        counters.add(Slot::of(0), Count::Punt);
        counters.add(Slot::of(5), Count::Punt);
        counters.add(Slot::NONE, Count::Punt);
        counters.add_many(Slot::of(0), Count::Drain, 4);
        let before = Stats::default();
        let now = counters.snapshot(0).since(&before);
        assert_eq!((now.punts, now.drains, now.restarts), (3, 4, 0));
    }
}
