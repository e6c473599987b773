//! Free blocks below the new end, for what is moved there.
//!
//! Rejected: the mount's allocator. It spreads files over all groups, for files that grow; here what is moved
//! is to lie together and low, and there must be no block that is free and yet not to be had.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Runs of free clusters, in blocks.
#[derive(Debug)]
pub(super) struct Free {
    /// Blocks of a cluster.
    ratio: u64,
    /// Ends, by starts.
    runs: BTreeMap<u64, u64>,
    /// Lengths and starts.
    by_len: BTreeSet<(u64, u64)>,
}

impl Free {
    pub fn new(ratio: u32) -> Free {
        Free {
            ratio: ratio.into(),
            runs: BTreeMap::new(),
            by_len: BTreeSet::new(),
        }
    }

    fn insert(&mut self, run: Range<u64>) {
        self.by_len.insert((run.end - run.start, run.start));
        self.runs.insert(run.start, run.end);
    }

    fn remove(&mut self, run: &Range<u64>) {
        self.by_len.remove(&(run.end - run.start, run.start));
        self.runs.remove(&run.start);
    }

    /// Whole clusters become free.
    pub fn give(&mut self, mut run: Range<u64>) {
        if run.is_empty() {
            return;
        }
        if let Some((&start, &end)) = self.runs.range(..run.start).next_back()
            && end == run.start
        {
            self.remove(&(start..end));
            run.start = start;
        }
        if let Some(&end) = self.runs.get(&run.end) {
            self.remove(&(run.end..end));
            run.end = end;
        }
        self.insert(run);
    }

    /// Takes at most `most` blocks, whole clusters: from the shortest run that has as many, else from the longest.
    pub fn take(&mut self, most: u64) -> Option<Range<u64>> {
        let fitting = self.by_len.range((most, 0)..).next();
        let &(len, start) = fitting.or_else(|| self.by_len.last())?;
        let taken = start..start + len.min(most);
        self.remove(&(start..start + len));
        if taken.end < start + len {
            self.insert(taken.end..start + len);
        }
        Some(taken)
    }

    /// Takes a cluster; its first block.
    pub fn take_one(&mut self) -> Option<u64> {
        self.take(self.ratio).map(|run| run.start)
    }

    /// Gives back the cluster of [`Free::take_one`].
    pub fn give_one(&mut self, block: u64) {
        self.give(block..block + self.ratio);
    }
}

#[cfg(test)]
mod tests {
    use super::Free;

    #[test]
    fn free_runs_are_joined_and_taken_from_the_shortest_that_fits() {
        let mut free = Free::new(4);
        free.give(0..8);
        free.give(16..20);
        free.give(40..80);
        assert_eq!(free.take_one(), Some(16));
        assert_eq!(free.take(8), Some(0..8));
        free.give(32..40);
        assert_eq!(free.take(100), Some(32..80));
        assert_eq!(free.take(4), None);
        free.give_one(4);
        assert_eq!(free.take(8), Some(4..8));
    }
}
