//! Which blocks are taken, as runs.
//!
//! For: finding and taking free blocks in a file system that has only its first metadata. Not for:
//! one that is in use; with many runs a bitmap is better, see `alloc`.
//!
//! Invariant: runs neither overlap nor touch, so there are some few for each flex group.

use std::collections::BTreeMap;
use std::ops::Range;

/// The blocks of a file system.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    /// Start and end of each run of taken blocks.
    taken: BTreeMap<u64, u64>,
    /// First block that counts, and one past the last.
    all: Range<u64>,
    /// Blocks that are taken and given together.
    unit: u64,
}

impl Space {
    /// Blocks that are all free.
    pub fn new(all: Range<u64>) -> Space {
        Space {
            taken: BTreeMap::new(),
            all,
            unit: 1,
        }
    }

    /// From now on blocks come in clusters: those of which a block is taken are taken whole.
    pub fn round_to_clusters(&mut self, ratio: u32) {
        self.unit = ratio.into();
        if ratio == 1 {
            return;
        }
        for (start, end) in std::mem::take(&mut self.taken) {
            self.take(start..end);
        }
    }

    /// Blocks per cluster.
    pub fn unit(&self) -> u64 {
        self.unit
    }

    /// Takes the clusters of `run`, whoever has them.
    pub fn take(&mut self, run: Range<u64>) {
        let mut start = run.start / self.unit * self.unit;
        let mut end = run.end.next_multiple_of(self.unit);
        while let Some((&s, &e)) = self.taken.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.taken.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.taken.insert(start, end);
    }

    /// The first taken run that reaches past `from`.
    fn next_taken(&self, from: u64) -> Option<Range<u64>> {
        let before = self.taken.range(..=from).next_back();
        let here = before.filter(|(_, end)| **end > from);
        let next = here.or_else(|| self.taken.range(from..).next());
        next.map(|(start, end)| *start..*end)
    }

    /// Where `len` free blocks begin, at or after `start` but before `finish`; where the two are the
    /// wrong way round, past the end and from the beginning on.
    pub fn find(&self, start: u64, finish: u64, len: u64) -> Option<u64> {
        let start = start.max(self.all.start) / self.unit * self.unit;
        let finish = finish / self.unit * self.unit;
        if finish > start {
            return self.find_between(start..finish, len);
        }
        self.find_between(start..self.all.end, len)
            .or_else(|| self.find_between(self.all.start..finish.max(start), len))
    }

    fn find_between(&self, starts: Range<u64>, len: u64) -> Option<u64> {
        let mut at = starts.start;
        while at < starts.end && at + len <= self.all.end {
            match self.next_taken(at).filter(|run| run.start < at + len) {
                None => return Some(at),
                Some(run) => at = run.end.next_multiple_of(self.unit),
            }
        }
        None
    }

    /// The first free run at or after `goal`, or else from the beginning on; at most `most` blocks,
    /// a whole number of clusters.
    pub fn next_run(&self, goal: u64, most: u64) -> Option<Range<u64>> {
        let start = self.find(goal, goal, 1)?;
        let end = self.next_taken(start).map_or(self.all.end, |run| run.start);
        Some(start..end.min(start + most.next_multiple_of(self.unit)))
    }

    /// Whether none of `run` is taken.
    #[cfg(test)]
    fn is_free(&self, run: Range<u64>) -> bool {
        self.taken_runs(run).next().is_none()
    }

    /// The taken runs inside `range`.
    pub fn taken_runs(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self
            .next_taken(range.start)
            .map_or(range.end, |run| run.start);
        let (from, end) = (range.start, range.end);
        self.taken
            .range(first..end.max(first))
            .map(move |(s, e)| *s.max(&from)..*e.min(&end))
    }

    /// How many blocks of `range` are taken.
    pub fn taken_in(&self, range: Range<u64>) -> u64 {
        self.taken_runs(range).map(|run| run.end - run.start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(runs: &[Range<u64>]) -> Space {
        let mut space = Space::new(0..100);
        runs.iter().for_each(|run| space.take(run.clone()));
        space
    }

    #[test]
    fn runs_that_touch_or_overlap_become_one() {
        let space = space(&[10..20, 30..40, 20..30, 5..12, 60..61]);
        assert_eq!(space.taken.len(), 2);
        assert_eq!(space.taken_in(0..100), 36);
        assert_eq!(space.taken_in(8..15), 7);
        assert!(space.is_free(40..60) && !space.is_free(39..41));
    }

    #[test]
    fn search_skips_gaps_that_are_too_short_and_wraps() {
        let space = space(&[0..10, 12..20, 90..100]);
        assert_eq!(space.find(0, 99, 2), Some(10));
        assert_eq!(space.find(0, 99, 3), Some(20));
        assert_eq!(space.find(0, 11, 3), None);
        assert_eq!(space.find(95, 95, 2), Some(10));
        assert_eq!(space.find(85, 85, 6), Some(20));
        assert_eq!(space.find(0, 99, 71), None);
    }

    #[test]
    fn run_ends_where_the_next_taken_begins_or_enough_is_had() {
        let space = space(&[0..10, 12..20, 90..100]);
        assert_eq!(space.next_run(5, 50), Some(10..12));
        assert_eq!(space.next_run(15, 50), Some(20..70));
        assert_eq!(space.next_run(95, 1), Some(10..11));
    }

    #[test]
    fn clusters_are_taken_whole() {
        let mut space = space(&[3..5, 9..10]);
        space.round_to_clusters(4);
        assert_eq!(space.taken_in(0..100), 12);
        assert_eq!(space.next_run(0, 5), Some(12..20));
        space.take(17..18);
        assert_eq!(space.find(13, 99, 4), Some(12));
    }

    #[test]
    fn full_space_has_no_run() {
        let space = space(&[0..50, 50..100]);
        assert_eq!(space.next_run(50, 1), None);
        assert_eq!(space.find(0, 99, 1), None);
    }
}
