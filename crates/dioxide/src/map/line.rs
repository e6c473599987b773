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
