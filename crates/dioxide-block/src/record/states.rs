//! What the media may hold when the power fails.
//!
//! # The rules
//! Time is counted in the log's own numbers: at time `t`, all issues and completions with lower
//! numbers have happened, and nothing else. At a crash at `t`:
//!
//! - a write that had completed before a flush was *issued* is there, if that flush had completed;
//! - a write with force unit access that had completed is there;
//! - every other write that had been issued is there, or not, or, if it is not atomic, in part: any sectors of it;
//! - no sector has what it had before a write that is there and was issued after the other completed.
//!
//! Write-zeroes and discards count as writes of zeros.
//!
//! # States
//! [`States`] walks the moments at which something changes (an issue, a completion that makes
//! something durable, a mark of the caller), and for each of them lists subsets of the writes that
//! are not certain: all subsets where they are few, else none, all, all but one, only one, and random
//! ones; an order other than the log's; and torn writes. A [`State`] is a short description that can be printed, parsed, and
//! made into an image by [`Media`], on pages shared with the image before the run.
//!
//! # What it is not
//! Not all states: their number is exponential. Not an oracle.
//!
//! # Rejected
//! Subsets of all writes of an epoch as if every crash came at its end: a write that had not been
//! issued when an acknowledgement was given cannot be part of what it is judged by.
//! Orders as a dimension of their own: each sector holds the bytes of one write or what was there
//! before, so that any order gives what some subset of sectors gives. A few are tried all the same: they reach torn combinations
//! that random tearing would rarely meet.

mod certain;
mod image;
mod state;

pub use certain::Moment;
pub use image::{Cache, CowDevice, Media, Snapshot};
pub use state::{Kept, Part, State, StateError};

use super::Log;
use certain::Timeline;
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::Range;

/// How many states to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// For what is random. The same log and options give the same states.
    pub seed: u64,
    /// Up to so many uncertain writes, all subsets of them are listed; at most 20.
    pub exhaustive: u32,
    /// Random subsets per moment where they are more.
    pub samples: u32,
    /// States with a torn write per moment.
    pub torn: u32,
    /// Times at which something was promised ([`RecordDevice::now`](super::RecordDevice::now)). The
    /// same subset before and after one of them is two states.
    pub marks: Vec<u64>,
    /// Ranges of the device, in bytes, that the media takes whole: no write is torn inside one of them.
    pub whole: Vec<Range<u64>>,
}

impl Default for Options {
    /// All subsets up to 12 writes, 16 samples, 8 torn states, seed 1, no marks, nothing taken whole.
    fn default() -> Options {
        Options {
            seed: 1,
            exhaustive: 12,
            samples: 16,
            torn: 8,
            marks: Vec::new(),
            whole: Vec::new(),
        }
    }
}

/// Lists the states of a log, in the order of time, none twice. See the module's documentation.
#[derive(Debug)]
pub struct States<'a> {
    log: &'a Log,
    options: Options,
    timeline: Timeline,
    moments: std::vec::IntoIter<Moment>,
    /// What was uncertain at the moment before, if nothing has been promised or become certain since.
    before: Vec<usize>,
    /// Identifies what is certain and promised.
    ground: (usize, usize),
    queue: VecDeque<State>,
    seen: HashSet<u64>,
    random: Random,
    repeated: u64,
}

impl<'a> States<'a> {
    /// The states of `log`.
    ///
    /// # Panics
    /// If `options.exhaustive` is over 20: a million subsets at each moment.
    pub fn new(log: &'a Log, options: Options) -> States<'a> {
        assert!(options.exhaustive <= 20, "2^{}", options.exhaustive);
        let timeline = Timeline::new(log);
        let moments = timeline.moments(&options.marks).into_iter();
        States {
            log,
            random: Random::new(options.seed),
            options,
            timeline,
            moments,
            before: Vec::new(),
            ground: (usize::MAX, 0),
            queue: VecDeque::new(),
            seen: HashSet::new(),
            repeated: 0,
        }
    }

    /// How many moments there are.
    pub fn moments(&self) -> usize {
        self.moments.len()
    }

    /// Of the moments that are left the first and then each `nth` only: the others cost nothing, which in long logs is most.
    #[must_use]
    pub fn every(mut self, nth: usize) -> States<'a> {
        let few: Vec<Moment> = self.moments.step_by(nth.max(1)).collect();
        self.moments = few.into_iter();
        self
    }

    /// Whether the state that was listed last is the one of a device that keeps the order: of what is not certain, nothing is
    /// there, or all that had been issued.
    pub fn is_in_order(&self, last: &State) -> bool {
        let whole = self.before.iter().copied().map(Part::whole);
        last.parts.is_empty() || whole.eq(last.parts.iter().cloned())
    }

    /// How many states were dropped because they had been listed.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    fn list(&mut self, moment: Moment) {
        let open = self.timeline.uncertain(moment.at);
        let ground = (moment.certain, moment.marks);
        if ground != self.ground {
            self.ground = ground;
            self.before.clear();
            self.seen.clear();
        }
        if open.len() <= self.options.exhaustive as usize {
            self.subsets(moment.at, &open);
        } else {
            self.few(moment.at, &open);
            self.sampled(moment.at, &open);
        }
        self.reversed(moment.at, &open);
        self.torn(moment.at, &open);
        self.before = open;
    }

    fn add(&mut self, at: u64, parts: Vec<Part>) {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&parts);
        match self.seen.insert(hash) {
            true => self.queue.push_back(State { at, parts }),
            false => self.repeated += 1,
        }
    }

    fn add_whole(&mut self, at: u64, entries: impl Iterator<Item = usize>) {
        self.add(at, entries.map(Part::whole).collect());
    }

    /// All subsets that were not listed at the moment before: those with something new.
    fn subsets(&mut self, at: u64, open: &[usize]) {
        let is_new = |entry: &usize| !self.before.contains(entry);
        let new: u32 = bits(open.iter().map(is_new));
        let first = self.before.is_empty();
        for mask in (0..1u32 << open.len()).filter(|mask| first || mask & new != 0) {
            self.add_whole(at, of_mask(open, u64::from(mask)));
        }
    }

    /// None, all, and all but one, only one.
    fn few(&mut self, at: u64, open: &[usize]) {
        self.add_whole(at, std::iter::empty());
        self.add_whole(at, open.iter().copied());
        for &one in open {
            self.add_whole(at, std::iter::once(one));
            self.add_whole(at, open.iter().copied().filter(|&entry| entry != one));
        }
    }

    fn sampled(&mut self, at: u64, open: &[usize]) {
        for _ in 0..self.options.samples {
            let subset = self.random.subset(open);
            self.add_whole(at, subset.into_iter());
        }
    }

    fn reversed(&mut self, at: u64, open: &[usize]) {
        let tears =
            |(i, &over): (usize, &usize)| open[i + 1..].iter().any(|&it| self.tears(over, it));
        if open.len() > 1 && !open.iter().enumerate().any(tears) {
            self.add_whole(at, open.iter().rev().copied());
        }
    }

    /// Whether a write that came before another one would leave a part of that one, if it were put over it.
    fn tears(&self, over: usize, atomic: usize) -> bool {
        let action = |entry: usize| &self.log.entries()[entry].action;
        let (over, whole) = (state::place(action(over)), state::place(action(atomic)));
        let meet = over.start < whole.end && whole.start < over.end;
        let covers = over.start <= whole.start && whole.end <= over.end;
        action(atomic).is_atomic() && meet && !covers
    }

    /// A torn write, most often the newest, among some of the others.
    fn torn(&mut self, at: u64, open: &[usize]) {
        for _ in 0..self.options.torn {
            let Some(victim) = self.random.newest_most_often(open) else {
                return;
            };
            let unit = [512, 4096][self.random.below(2) as usize];
            let action = &self.log.entries()[victim].action;
            let units = state::units(action, unit, &self.options.whole);
            let Some(kept) = self.random.tear(units) else {
                continue;
            };
            let mut others = match self.random.below(2) {
                0 => open.to_vec(),
                _ => self.random.subset(open),
            };
            others.retain(|&entry| entry != victim);
            let mut parts: Vec<Part> = others.into_iter().map(Part::whole).collect();
            let place = parts.partition_point(|part| part.entry < victim);
            let torn = Part {
                entry: victim,
                kept,
            };
            parts.insert(place, torn);
            self.add(at, parts);
        }
    }
}

impl Iterator for States<'_> {
    type Item = State;

    fn next(&mut self) -> Option<State> {
        while self.queue.is_empty() {
            let moment = self.moments.next()?;
            self.list(moment);
        }
        self.queue.pop_front()
    }
}

fn bits(flags: impl Iterator<Item = bool>) -> u32 {
    flags
        .enumerate()
        .fold(0, |bits, (i, flag)| bits | u32::from(flag) << i)
}

fn of_mask(open: &[usize], mask: u64) -> impl Iterator<Item = usize> {
    let is_in = move |(i, _): &(usize, &usize)| mask >> i & 1 == 1;
    open.iter()
        .enumerate()
        .filter(is_in)
        .map(|(_, &entry)| entry)
}

/// SplitMix64: small, and the same everywhere.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Each with the same chance, which is one of few, many, most.
    fn subset(&mut self, open: &[usize]) -> Vec<usize> {
        let percent = [10, 50, 90][self.below(3) as usize];
        let kept = open.iter().filter(|_| self.below(100) < percent);
        kept.copied().collect()
    }

    fn newest_most_often(&mut self, open: &[usize]) -> Option<usize> {
        let newest = open.len().checked_sub(1)?;
        let index = match self.below(2) {
            0 => newest,
            _ => self.below(open.len() as u64) as usize,
        };
        Some(open[index])
    }

    /// Some units of a write but not all: a prefix, a suffix, one, or any. `None` if it has only one.
    fn tear(&mut self, units: Vec<Range<u64>>) -> Option<Kept> {
        let count = units.len() as u64;
        if count < 2 {
            return None;
        }
        let cut = self.below(count - 1) as usize + 1;
        let kept = match self.below(4) {
            0 => units[..cut].to_vec(),
            1 => units[cut..].to_vec(),
            2 => vec![units[cut].clone()],
            _ => units
                .into_iter()
                .filter(|_| self.below(2) == 0)
                .take(count as usize - 1)
                .collect(),
        };
        Some(Kept::of(kept))
    }
}

/// Spreads the bits of a number over all of it.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

#[cfg(test)]
mod tests;
