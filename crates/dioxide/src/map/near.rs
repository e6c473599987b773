//! Leaves of a byte per block, for spans of which most blocks lie near those that are their neighbours in the file.
//!
//! Not for: other spans, and what a byte cannot say ([`super::leaf`]).
//!
//! A file that was put into the small gaps of a nearly full file system has a run per block or two, but they lie in a row.
//! Four bytes per block (4 MiB for a file of 4 GiB) are in no cache when data passes by; a quarter of that more often is.

#[cfg(not(loom))]
use super::NODE_BITS;
use super::SPAN_BLOCKS;
use super::word::{Narrow, is_written};
#[cfg(not(loom))]
use dioxide_block::mem::SEVENTH;
use std::sync::atomic::Ordering;

/// What is told of the blocks of one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Group {
    /// Entry of the block that lies lowest, less 1.
    base: u32,
    /// How far behind `base` the entry of each block is; 0 of a block that is not written, or lies farther.
    near: [u8; GROUP_BLOCKS],
}

/// So that a span is a whole number of lines, which they nearly fill.
const GROUP_BLOCKS: usize = 57;
const GROUPS: usize = (SPAN_BLOCKS as usize).div_ceil(GROUP_BLOCKS);
const _: () = assert!(size_of::<Group>() == 64);

/// A span. What it says of a block is true; what it says nothing of may be anything.
#[derive(Debug)]
pub(super) struct Near([Group; GROUPS]);

/// Those of a whole region lie in a large page.
#[cfg(not(loom))]
const _: () = assert!(size_of::<[Near; 1 << NODE_BITS]>() == SEVENTH);

impl Near {
    /// What a byte each can say of a leaf's blocks.
    pub(super) fn of(leaf: &Narrow) -> Near {
        let mut groups = [Group {
            base: 0,
            near: [0; GROUP_BLOCKS],
        }; GROUPS];
        for (group, blocks) in groups.iter_mut().zip(leaf.chunks(GROUP_BLOCKS)) {
            let entries = || blocks.iter().map(|block| block.load(Ordering::Relaxed));
            let Some(lowest) = entries().filter(|&entry| is_written(entry)).min() else {
                continue;
            };
            group.base = lowest - 1;
            for (near, entry) in group.near.iter_mut().zip(entries()) {
                if is_written(entry) {
                    *near = u8::try_from(entry - group.base).unwrap_or(0);
                }
            }
        }
        Near(groups)
    }

    /// Whether the leaf that this was made from says no more.
    pub(super) fn says_all(&self, leaf: &Narrow) -> bool {
        let entries = leaf.iter().map(|block| block.load(Ordering::Relaxed));
        (0..)
            .zip(entries)
            .all(|(block, entry)| self.entry(block) == entry)
    }

    /// The entry of `block`, or 0.
    #[inline(always)]
    pub(super) fn entry(&self, block: u32) -> u32 {
        let block = block as usize;
        let group = &self.0[block / GROUP_BLOCKS];
        match group.near[block % GROUP_BLOCKS] {
            0 => 0,
            near => group.base + u32::from(near),
        }
    }

    /// How many blocks behind `block` continue it.
    pub(super) fn continuing(&self, block: u32) -> u32 {
        let entry = self.entry(block);
        let step = u32::from(entry != 0);
        let continues = |&more: &u32| self.entry(block + more) == entry + step * more;
        (1..SPAN_BLOCKS - block).take_while(continues).count() as u32
    }
}
