//! When each write of a log becomes certain.
//!
//! Invariant: an entry is uncertain from just after its issue until the number in `certain_at`.

use crate::record::{Action, Entry, Log};

/// Never.
const NEVER: u64 = u64::MAX;

/// A time at which a crash is worth looking at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The time.
    pub at: u64,
    /// How many writes are certain to be there.
    pub certain: usize,
    /// How many of the caller's marks have passed.
    pub marks: usize,
}

/// The life of each entry.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    /// By entry: when it may be there first. [`NEVER`] for flushes.
    maybe_at: Vec<u64>,
    /// By entry: when it is certain to be there.
    certain_at: Vec<u64>,
}

impl Timeline {
    pub(super) fn new(log: &Log) -> Timeline {
        let flushes = Flushes::of(log);
        let entries = log.entries();
        let maybe = |entry: &Entry| match entry.action {
            Action::Flush => NEVER,
            _ => entry.issued + 1,
        };
        Timeline {
            maybe_at: entries.iter().map(maybe).collect(),
            certain_at: entries.iter().map(|e| flushes.certain_at(e)).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.maybe_at.len()
    }

    pub(super) fn is_uncertain(&self, entry: usize, at: u64) -> bool {
        self.maybe_at[entry] <= at && at < self.certain_at[entry]
    }

    /// What may or may not be there, in the order of the log.
    pub(super) fn uncertain(&self, at: u64) -> Vec<usize> {
        let all = 0..self.len();
        all.filter(|&entry| self.is_uncertain(entry, at)).collect()
    }

    /// What becomes certain after `from` and up to `upto`, in the order of time, then of the log.
    pub(super) fn turning_certain(&self, from: u64, upto: u64) -> Vec<usize> {
        if from >= upto {
            return Vec::new();
        }
        let turns = |&entry: &usize| (from + 1..=upto).contains(&self.certain_at[entry]);
        let mut turning: Vec<usize> = (0..self.len()).filter(turns).collect();
        turning.sort_by_key(|&entry| self.certain_at[entry]);
        turning
    }

    /// All moments at which something changes, the beginning included.
    pub(super) fn moments(&self, marks: &[u64]) -> Vec<Moment> {
        let mut marks = marks.to_vec();
        marks.sort_unstable();
        let mut certain = self.certain_at.clone();
        certain.sort_unstable();
        let all = self
            .maybe_at
            .iter()
            .chain(&certain)
            .chain(&marks)
            .chain(&[0]);
        let mut times: Vec<u64> = all.copied().filter(|&at| at != NEVER).collect();
        times.sort_unstable();
        times.dedup();
        let passed = |list: &[u64], at| list.partition_point(|&then| then <= at);
        let moment = |at| Moment {
            at,
            certain: passed(&certain, at),
            marks: passed(&marks, at),
        };
        times.into_iter().map(moment).collect()
    }
}

/// Completed flushes.
struct Flushes {
    /// By number of issue: from which on the first completion of this flush or a later one is known.
    first_completion: Vec<(u64, u64)>,
}

impl Flushes {
    fn of(log: &Log) -> Flushes {
        let flushes = log.entries().iter().filter(|e| e.action == Action::Flush);
        let mut list: Vec<(u64, u64)> = flushes
            .filter_map(|flush| Some((flush.issued, flush.completed?)))
            .collect();
        list.sort_unstable();
        let mut first = NEVER;
        for (_, completed) in list.iter_mut().rev() {
            first = first.min(*completed);
            *completed = first;
        }
        Flushes {
            first_completion: list,
        }
    }

    fn certain_at(&self, entry: &Entry) -> u64 {
        match (&entry.action, entry.completed) {
            (Action::Flush, _) | (_, None) => NEVER,
            (Action::Write { fua: true, .. }, Some(completed)) => completed + 1,
            (_, Some(completed)) => {
                let list = &self.first_completion;
                let next = list.partition_point(|&(issued, _)| issued < completed);
                list.get(next).map_or(NEVER, |&(_, done)| done + 1)
            }
        }
    }
}
