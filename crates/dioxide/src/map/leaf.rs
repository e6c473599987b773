//! Leaves as they are made from the runs on the disk.
//!
//! Not for: leaves that a change makes ([`super::live`]).

use super::word::{Narrow, Piece, Wide, Word, entry_of};
use super::{Run, SPAN_BLOCKS};
#[cfg(not(loom))]
use dioxide_block::mem::prefetch;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Models have no block layer.
#[cfg(loom)]
fn prefetch<T>(_: &T) {}

/// A span of at most [`FEW`] runs and holes. A lookup needs the cache line of the starts, and one of the two behind it.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Few {
    /// First block of each run; [`UNUSED`] behind the last. All are compared at once.
    starts: [i16; FEW],
    /// What begins there.
    entries: [u32; FEW],
}

pub(super) const FEW: usize = 32;

/// Above every block of a span.
const UNUSED: i16 = i16::MAX;
const _: () = assert!(SPAN_BLOCKS < UNUSED as u32);

impl Few {
    /// Number of the run that holds `block`.
    #[inline(always)]
    fn number(&self, block: u32) -> usize {
        let block = block as i16;
        let not_after = |&start: &i16| usize::from(start <= block);
        // The first run starts at block 0, so at least one does not start after `block`.
        self.starts.iter().map(not_after).sum::<usize>() - 1
    }

    /// The entry of `block`. Of a hole it is 0, and of an unwritten block it has the mark.
    #[inline(always)]
    pub(super) fn entry(&self, block: u32) -> u32 {
        // While the starts are on their way: they tell which of these lines it is, but where they are is known.
        prefetch(&self.entries[0]);
        prefetch(&self.entries[FEW / 2]);
        let number = self.number(block);
        match self.entries[number] {
            0 => 0,
            entry => entry + (block - self.starts[number] as u32),
        }
    }

    pub(super) fn piece(&self, base: u64, block: u32) -> Piece {
        let number = self.number(block);
        let start = self.starts[number] as u32;
        let end = self
            .starts
            .get(number + 1)
            .map_or(SPAN_BLOCKS, |&next| next as u32);
        let len = end.min(SPAN_BLOCKS) - block;
        Piece::of_entry(base, self.entries[number], block - start, len)
    }
}

/// The runs of one span, to be made into a leaf.
pub(super) struct SpanBlocks<'a> {
    pub(super) start: u32,
    /// All overlap the span.
    pub(super) runs: &'a [Run],
}

impl SpanBlocks<'_> {
    /// First block in the span, length and address of a run as far as it lies in the span.
    pub(super) fn clip(&self, run: &Run) -> (u32, u32, u64) {
        let from = run.lblk.0.max(self.start);
        let to = (run.lblk.0 + run.len).min(self.start + SPAN_BLOCKS);
        (
            from - self.start,
            to - from,
            run.pblk.0 + u64::from(from - run.lblk.0),
        )
    }

    /// Lowest and highest address.
    pub(super) fn bounds(&self) -> (u64, u64) {
        let clipped = || self.runs.iter().map(|run| self.clip(run));
        let lowest = clipped().map(|(_, _, pblk)| pblk).min();
        let highest = clipped()
            .map(|(_, len, pblk)| pblk + u64::from(len) - 1)
            .max();
        (lowest.unwrap_or(0), highest.unwrap_or(0))
    }

    pub(super) fn few(&self, base: u64) -> Option<Few> {
        let mut few = Few {
            starts: [UNUSED; FEW],
            entries: [0; FEW],
        };
        let mut used = 0;
        let mut put = |at: u32, entry: u32| {
            *few.starts.get_mut(used)? = at as i16;
            few.entries[used] = entry;
            used += 1;
            Some(())
        };
        let mut at = 0;
        for run in self.runs {
            let (from, len, pblk) = self.clip(run);
            if from > at {
                put(at, 0)?;
            }
            put(from, entry_of(pblk - base, run.unwritten))?;
            at = from + len;
        }
        if at < SPAN_BLOCKS {
            put(at, 0)?;
        }
        Some(few)
    }

    /// Calls `each` with every block that is backed: its number in the span, address and kind.
    fn for_each(&self, mut each: impl FnMut(usize, u64, bool)) {
        for run in self.runs {
            let (from, len, pblk) = self.clip(run);
            for step in 0..len {
                each(
                    (from + step) as usize,
                    pblk + u64::from(step),
                    run.unwritten,
                );
            }
        }
    }

    pub(super) fn narrow(&self, base: u64) -> Narrow {
        let leaf: Narrow = [const { AtomicU32::new(0) }; SPAN_BLOCKS as usize];
        self.for_each(|block, pblk, unwritten| {
            leaf[block].store(entry_of(pblk - base, unwritten), Ordering::Relaxed);
        });
        leaf
    }

    pub(super) fn wide(&self) -> Wide {
        let leaf: Wide = [const { AtomicU64::new(Word::HOLE.0) }; SPAN_BLOCKS as usize];
        self.for_each(|block, pblk, unwritten| {
            let tag = if unwritten {
                Word::UNWRITTEN
            } else {
                Word::MAPPED
            };
            leaf[block].store(Word::new(tag, pblk).0, Ordering::Relaxed);
        });
        leaf
    }
}
