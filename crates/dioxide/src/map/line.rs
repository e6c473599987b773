//! Leaves of half a cache line for a quarter of a span, where it has few runs and they lie near each other.
//!
//! Not for: other spans, and what a line cannot say ([`super::leaf`]).
//!
//! A look at a map costs what its lines cost that are in no near cache, and those are the more the more lines it has: between two
//! looks at the same one of *n*, the data of *n* requests passes by. A moderately fragmented file has 64 KiB of these
//! per region; a byte per block ([`super::near`]) would be four times that, and lists are two lines for each look.

use super::SPAN_BLOCKS;
use super::word::{Narrow, is_written};
use std::sync::atomic::{AtomicU32, Ordering};

/// So that their numbers leave the top bit of a byte free.
const BLOCKS: usize = 128;
pub(super) const QUARTERS: usize = SPAN_BLOCKS as usize / BLOCKS;

/// Runs of a quarter, holes counted: one more than what is compared at once.
const RUNS: usize = size_of::<u64>() + 1;

/// A quarter of a span. What it says of a block is true; what it says nothing of may be anything.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
struct Quarter {
    /// A byte each for the first block of every run but the first; the last block where there is none.
    starts: u64,
    /// The entry that block 0 would have if it belonged to the run where that is least, less 1.
    base: u32,
    /// How far behind `base` that is for each run; 0 for one that is not written, or lies farther. That of the last goes on to the end.
    near: [u16; RUNS],
}

const _: () = assert!(size_of::<Quarter>() == 32);

/// A span.
#[derive(Debug)]
pub(super) struct Line([Quarter; QUARTERS]);

impl Line {
    /// What it can say of a leaf's blocks.
    pub(super) fn of(leaf: &Narrow) -> Line {
        let blocks = |quarter: usize| &leaf[quarter * BLOCKS..][..BLOCKS];
        Line(std::array::from_fn(|quarter| Quarter::of(blocks(quarter))))
    }

    /// Of how many quarters a written block is left out.
    pub(super) fn incomplete(&self, leaf: &Narrow) -> usize {
        let missing = |(quarter, block): (&Quarter, &[AtomicU32])| {
            (0..).zip(block).any(|(block, entry)| {
                let entry = entry.load(Ordering::Relaxed);
                is_written(entry) && quarter.entry(block) != entry
            })
        };
        let quarters = self.0.iter().zip(leaf.chunks(BLOCKS));
        quarters.filter(|&both| missing(both)).count()
    }

    /// The entry of `block`, or 0.
    #[inline(always)]
    pub(super) fn entry(&self, block: u32) -> u32 {
        let quarter = &self.0[block as usize / BLOCKS];
        quarter.entry(block % BLOCKS as u32)
    }
}

impl Quarter {
    fn of(blocks: &[AtomicU32]) -> Quarter {
        // The first block of each run, and the entry that block 0 would have.
        let mut runs: Vec<(u32, Option<u32>)> = Vec::new();
        for (block, entry) in (0..).zip(blocks) {
            let entry = entry.load(Ordering::Relaxed);
            let origin = entry.checked_sub(block).filter(|_| is_written(entry));
            if runs.last().is_none_or(|&(_, last)| last != origin) {
                runs.push((block, origin));
            }
        }
        let lowest = runs.iter().filter_map(|&(_, origin)| origin).min();
        // An origin of 0 lies 0 behind: nothing is said of it.
        let base = lowest.unwrap_or(0).saturating_sub(1);
        let near = |origin: Option<u32>| {
            let distance = origin.map_or(0, |origin| origin - base);
            u16::try_from(distance).unwrap_or(0)
        };
        let last = match runs.last() {
            Some(&(_, last)) if runs.len() <= RUNS => near(last),
            _ => {
                runs.clear();
                0
            }
        };
        let mut quarter = Quarter {
            starts: EACH * (BLOCKS as u64 - 1),
            base,
            near: [last; RUNS],
        };
        for (number, &(start, origin)) in runs.iter().enumerate() {
            quarter.near[number] = near(origin);
            if let Some(before) = number.checked_sub(1) {
                let shift = 8 * before;
                quarter.starts &= !(0xff << shift);
                quarter.starts |= u64::from(start) << shift;
            }
        }
        quarter
    }

    #[inline(always)]
    fn entry(&self, block: u32) -> u32 {
        // Each byte's top bit stays where its start is not above the block; their sum is how many do.
        let not_after = (((EACH * u64::from(block)) | TOPS) - self.starts) & TOPS;
        let run = (not_after >> 7).wrapping_mul(EACH) >> 56;
        match self.near[run as usize] {
            0 => 0,
            near => self.base + u32::from(near) + block,
        }
    }
}

const EACH: u64 = u64::MAX / 0xff;
const TOPS: u64 = EACH << 7;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EDGE: u32 = u16::MAX as u32;

    prop_compose! {
        /// Runs of a quarter: how long, where (around what 16 bits can say), and what.
        fn any_quarter()(runs in prop::collection::vec((1u32..40, prop_oneof![0u32..300, EDGE - 2..EDGE + 3], 0u8..6), 1..13), lowest in prop_oneof![0u32..200, 1u32..1 << 30]) -> Vec<u32> {
            let mut entries = Vec::new();
            for (len, far, kind) in runs {
                let entry = |step: u32| match kind {
                    0 => 0,
                    1 => super::super::word::UNWRITTEN | (lowest + far + step + 1),
                    _ => lowest + far + step + 1,
                };
                entries.extend((0..len).map(entry));
            }
            entries.resize(BLOCKS, 0);
            entries
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn what_is_said_is_true_and_few_near_runs_are_said(quarters in prop::collection::vec(any_quarter(), QUARTERS)) {
            let leaf: Narrow = std::array::from_fn(|at| AtomicU32::new(quarters[at / BLOCKS][at % BLOCKS]));
            let line = Line::of(&leaf);
            let mut incomplete = 0;
            for (number, entries) in quarters.iter().enumerate() {
                let at = |block: usize| line.entry((number * BLOCKS + block) as u32);
                let origin = |block: usize| {
                    let entry = entries[block];
                    is_written(entry).then(|| i64::from(entry) - block as i64)
                };
                let origins: Vec<_> = (0..BLOCKS).map(origin).collect();
                let runs = 1 + origins.windows(2).filter(|pair| pair[0] != pair[1]).count();
                let known = || origins.iter().flatten().copied();
                let spread = known().max().zip(known().min()).map_or(0, |(most, least)| most - least);
                let sayable = runs <= RUNS && spread < i64::from(EDGE) && known().all(|origin| origin > 0);
                let mut left_out = false;
                for (block, &entry) in entries.iter().enumerate() {
                    let said = at(block);
                    prop_assert!(said == 0 || said == entry && is_written(entry), "block {block}: {said}");
                    left_out |= is_written(entry) && said == 0;
                }
                prop_assert!(!(sayable && left_out), "{runs} runs, {spread}");
                incomplete += usize::from(left_out);
            }
            prop_assert_eq!(line.incomplete(&leaf), incomplete);
        }
    }
}
