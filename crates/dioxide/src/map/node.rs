//! The spans of a region that is not one run: finding a block in them.
//!
//! Not for: changing them ([`super::change`]).
//!
//! Invariants: a leaf that the word of a span has led to is always a leaf of that span, and its
//! entries always count from the same base; so whoever read the word long ago finds in it what
//! was, or is, of that block.

use super::leaf::{FEW, Few, SpanBlocks};
use super::live::Leaves;
use super::word::{Narrow, Piece, UNWRITTEN, Wide, Word, base_between, kind_of};
use super::{MapKind, NODE_BITS, Run, SPAN_BITS, SPAN_BLOCKS};
#[cfg(not(loom))]
use dioxide_block::mem::Table;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Models have no block layer.
#[cfg(loom)]
type Table<T> = Box<[T]>;

/// The spans of a region. Their leaves lie in one array for each kind, so that a span's word leads to
/// its entries without a pointer between.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) spans: Box<[AtomicU64; 1 << NODE_BITS]>,
    few: Vec<Few>,
    /// A MiB, in a large page, where the whole region is flat.
    pub(super) narrow: Table<Narrow>,
    pub(super) wide: Vec<Wide>,
    pub(super) live: Leaves<AtomicU32>,
    pub(super) live_wide: Leaves<AtomicU64>,
}

impl Node {
    /// And the word of its region.
    pub(super) fn of_runs(runs: &[Run]) -> (Box<Node>, Word) {
        let spans = Box::new([const { AtomicU64::new(Word::HOLE.0) }; 1 << NODE_BITS]);
        let mut leaves = Made::default();
        let flat = Flat::of_runs(runs);
        let mut rest = runs;
        for span in 0..1u32 << NODE_BITS {
            let start = span << SPAN_BITS;
            let end = start + SPAN_BLOCKS;
            while let [run, tail @ ..] = rest
                && run.lblk.0 + run.len <= start
            {
                rest = tail;
            }
            let inside = rest.iter().take_while(|run| run.lblk.0 < end).count();
            let word = match &flat {
                Some(flat) if span < flat.spans => {
                    leaves.add_narrow(start, &rest[..inside], flat.base)
                }
                _ => leaves.add_span(start, &rest[..inside]),
            };
            spans[span as usize].store(word.0, Ordering::Relaxed);
        }
        leaves.few.shrink_to_fit();
        leaves.wide.shrink_to_fit();
        let node = Box::new(Node {
            spans,
            few: leaves.few,
            narrow: leaves.narrow.into(),
            wide: leaves.wide,
            live: Leaves::new(),
            live_wide: Leaves::new(),
        });
        let word = match flat {
            Some(flat) => Word::leaf(Word::FLAT, 0, flat.base),
            None => Word::new(Word::NODE, 0),
        };
        (node, word)
    }

    #[inline(always)]
    fn span(&self, within: u32) -> Word {
        Word(self.spans[(within >> SPAN_BITS) as usize].load(Ordering::Acquire))
    }

    /// [`Node::written_block`] where the region's word is `flat`.
    #[inline(always)]
    pub(super) fn written_in_flat(&self, flat: Word, within: u32) -> Option<u64> {
        let entry = self.narrow.as_flattened().get(within as usize)?;
        written(flat.base(), entry.load(Ordering::Acquire))
    }

    #[inline(always)]
    pub(super) fn written_block(&self, within: u32) -> Option<u64> {
        let (word, block) = (self.span(within), within % SPAN_BLOCKS);
        let entry = match word.tag() {
            Word::MAPPED => return Some(word.0 + u64::from(block)),
            Word::FEW => {
                let (start, entry) = self.few[word.leaf_number()].find(block);
                // Holes and unwritten runs keep their mark.
                if entry == 0 {
                    0
                } else {
                    entry + (block - start)
                }
            }
            Word::NARROW => self.narrow[word.leaf_number()][block as usize].load(Ordering::Acquire),
            _ => return self.written_elsewhere(word, block),
        };
        written(word.base(), entry)
    }

    /// [`Node::written_block`] in a span of another kind. Not inlined: one `match` over all kinds
    /// becomes a jump through a table, which costs the frequent ones more than their comparisons.
    #[inline(never)]
    fn written_elsewhere(&self, word: Word, block: u32) -> Option<u64> {
        if word.tag() == Word::LIVE {
            let entry = self.live.leaf(word.leaf_number())[block as usize].load(Ordering::Acquire);
            return written(word.base(), entry);
        }
        let piece = self.piece_of(word, block);
        (piece.kind == MapKind::Mapped).then_some(piece.pblk)
    }

    #[inline(always)]
    pub(super) fn piece(&self, within: u32) -> Piece {
        self.piece_of(self.span(within), within % SPAN_BLOCKS)
    }

    /// As [`Node::piece`], with all of its span that continues it.
    pub(super) fn run(&self, within: u32) -> Piece {
        let (word, block) = (self.span(within), within % SPAN_BLOCKS);
        let piece = self.piece_of(word, block);
        let leaf = self.leaf(word);
        let more = leaf.map_or(0, |leaf| leaf.continuing(block, piece.word()));
        let len = piece.len + more;
        Piece { len, ..piece }
    }

    /// What a block is in the span that `word` is of.
    #[inline(always)]
    pub(super) fn piece_of(&self, word: Word, block: u32) -> Piece {
        let number = word.leaf_number();
        match word.tag() {
            Word::MAPPED | Word::UNWRITTEN => Piece {
                kind: kind_of(word.tag()),
                pblk: word.address() + u64::from(block),
                len: SPAN_BLOCKS - block,
            },
            Word::FEW => self.few[number].piece(word.base(), block),
            Word::NARROW => Piece::of_narrow(&self.narrow[number], word.base(), block),
            Word::LIVE => Piece::of_narrow(self.live.leaf(number), word.base(), block),
            Word::WIDE => Piece::of_wide(&self.wide[number], block),
            Word::LIVE_WIDE => Piece::of_wide(self.live_wide.leaf(number), block),
            _ => Piece::hole(SPAN_BLOCKS - block),
        }
    }
}

/// Leaves while they are made.
#[derive(Default)]
struct Made {
    few: Vec<Few>,
    narrow: Vec<Narrow>,
    wide: Vec<Wide>,
}

impl Made {
    fn add_narrow(&mut self, start: u32, runs: &[Run], base: u64) -> Word {
        self.narrow.push(SpanBlocks { start, runs }.narrow(base));
        Word::leaf(Word::NARROW, self.narrow.len() - 1, base)
    }

    /// The word of the span that begins at block `start`, whose leaf is added if it needs one.
    fn add_span(&mut self, start: u32, runs: &[Run]) -> Word {
        match runs {
            [] => return Word::HOLE,
            [run] if run.lblk.0 <= start && run.lblk.0 + run.len >= start + SPAN_BLOCKS => {
                let skipped = u64::from(start - run.lblk.0);
                return Word::new(Word::of_run(run).tag(), run.pblk.0 + skipped);
            }
            _ => {}
        }
        let blocks = SpanBlocks { start, runs };
        let (lowest, highest) = blocks.bounds();
        let Some(base) = base_between(lowest, highest) else {
            self.wide.push(blocks.wide());
            return Word::leaf(Word::WIDE, self.wide.len() - 1, 0);
        };
        if let Some(few) = blocks.few(base) {
            self.few.push(few);
            return Word::leaf(Word::FEW, self.few.len() - 1, base);
        }
        self.add_narrow(start, runs, base)
    }
}

/// The address that an entry says, if the block is written.
#[inline(always)]
fn written(base: u64, entry: u32) -> Option<u64> {
    let written = entry != 0 && entry & UNWRITTEN == 0;
    written.then(|| base + u64::from(entry) - 1)
}

/// A region so fragmented that its leaves are one array, with an entry for each block up to the last that is backed.
struct Flat {
    base: u64,
    spans: u32,
}

impl Flat {
    /// If there are more runs than lists of them would hold, and one base serves all.
    fn of_runs(runs: &[Run]) -> Option<Flat> {
        let last = runs.last()?;
        let spans = (last.lblk.0 + last.len).div_ceil(SPAN_BLOCKS);
        if runs.len() <= FEW * spans as usize {
            return None;
        }
        let lowest = runs.iter().map(|run| run.pblk.0).min()?;
        let highest = runs
            .iter()
            .map(|run| run.pblk.0 + u64::from(run.len) - 1)
            .max()?;
        let base = base_between(lowest, highest)?;
        Some(Flat { base, spans })
    }
}

impl Piece {
    #[inline(always)]
    fn of_narrow(leaf: &Narrow, base: u64, block: u32) -> Piece {
        Piece::of_entry(base, leaf[block as usize].load(Ordering::Acquire), 0, 1)
    }

    #[inline(always)]
    fn of_wide(leaf: &Wide, block: u32) -> Piece {
        let word = Word(leaf[block as usize].load(Ordering::Acquire));
        let kind = match word {
            Word::HOLE => MapKind::Hole,
            _ => kind_of(word.tag()),
        };
        Piece {
            kind,
            pblk: word.address(),
            len: 1,
        }
    }
}
