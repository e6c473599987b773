//! Words and entries: how the map says what a block is.
//!
//! Not for: where they are kept ([`super::node`]).

use super::{MapKind, NODE_BITS, Run, SPAN_BLOCKS};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// One word of the map: four bits of tag, nine of leaf number, 51 of block address (addresses
/// have 48 bits). Written blocks have tag 0, so that the lookup that matters most needs no masking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

const TAG_SHIFT: u32 = 60;
const NUMBER_SHIFT: u32 = TAG_SHIFT - NODE_BITS;

impl Word {
    pub(super) const MAPPED: u64 = 0;
    pub(super) const UNWRITTEN: u64 = 1;
    /// The region has a node.
    pub(super) const NODE: u64 = 2;
    /// The span has a leaf of this kind, with this number; the address is what its entries count from.
    pub(super) const FEW: u64 = 3;
    pub(super) const NARROW: u64 = 4;
    pub(super) const WIDE: u64 = 5;
    /// The region has a node, and its narrow leaves are one array of what each block is, up to the last that is
    /// backed. Only spans have narrow leaves, so the tag is free in the word of a region.
    pub(super) const FLAT: u64 = Word::NARROW;
    /// The same with lists of runs, one for each span.
    pub(super) const LISTS: u64 = Word::FEW;
    /// As `NARROW` and `WIDE`, made by a change. Only regions have nodes and can be unread, so both
    /// tags are free in the word of a span.
    pub(super) const LIVE: u64 = Word::NODE;
    pub(super) const LIVE_WIDE: u64 = 7;
    /// Written blocks at the beginning of the span, and hole behind them: the number is how many, which is 0 for a span or
    /// region that is hole. What a file that grows ends with.
    pub(super) const BEGUN: u64 = 6;
    /// As `NARROW`, in a byte per block. Of a region: all spans have such leaves, and those of which they do not say all
    /// have others beside.
    pub(super) const NEAR: u64 = 10;
    /// The region has a node, and lines beside it that say what most blocks are.
    pub(super) const LINES: u64 = 9;
    /// Two runs of written blocks: the number is how many blocks the first one has, the address where it lies. Where the
    /// second lies the node knows.
    pub(super) const PAIR: u64 = 8;
    /// The region has a node, and many of its spans are pairs.
    pub(super) const PAIRS: u64 = Word::PAIR;
    pub(super) const HOLE: Word = Word(Word::BEGUN << TAG_SHIFT);
    pub(super) const UNREAD: Word = Word(7 << TAG_SHIFT);

    pub(super) fn leaf(tag: u64, number: usize, base: u64) -> Word {
        debug_assert!(number < 1 << NODE_BITS && base < 1 << NUMBER_SHIFT);
        Word(tag << TAG_SHIFT | (number as u64) << NUMBER_SHIFT | base)
    }

    #[inline(always)]
    pub(super) fn leaf_number(self) -> usize {
        (self.0 >> NUMBER_SHIFT) as usize % (1 << NODE_BITS)
    }

    #[inline(always)]
    pub(super) fn base(self) -> u64 {
        self.0 & ((1 << NUMBER_SHIFT) - 1)
    }

    pub(super) fn new(tag: u64, address: u64) -> Word {
        debug_assert!(address < 1 << TAG_SHIFT);
        Word(tag << TAG_SHIFT | address)
    }

    #[inline]
    pub(super) fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT
    }

    #[inline]
    pub(super) fn address(self) -> u64 {
        self.0 & ((1 << TAG_SHIFT) - 1)
    }

    pub(super) fn of_run(run: &Run) -> Word {
        let tag = if run.unwritten {
            Word::UNWRITTEN
        } else {
            Word::MAPPED
        };
        Word::new(tag, run.pblk.0)
    }

    /// The word of the block that lies `blocks` behind the one that this word is of, in the same run or
    /// hole.
    pub(super) fn after(self, blocks: u64) -> Word {
        match self {
            Word::HOLE => self,
            _ => Word(self.0 + blocks),
        }
    }

    /// The word of a span of which so many blocks are written, from this address on, and the rest is hole.
    pub(super) fn begun(blocks: u32, address: u64) -> Word {
        debug_assert!(0 < blocks && blocks < SPAN_BLOCKS);
        Word::leaf(Word::BEGUN, blocks as usize, address)
    }

    /// What the word of a span that is hole, or is hole in the end, becomes when `blocks` become `what`, if a word
    /// can say it.
    pub(super) fn grown(self, blocks: &Range<u32>, what: Word) -> Option<Word> {
        if self.tag() != Word::BEGUN || what.tag() != Word::MAPPED {
            return None;
        }
        let first = match self {
            Word::HOLE => what,
            _ => Word::new(Word::MAPPED, self.base()),
        };
        let had = self.leaf_number() as u32;
        let continues = blocks.start == had && what == first.after(had.into());
        continues.then(|| match blocks.end {
            SPAN_BLOCKS => first,
            end => Word::begun(end, first.address()),
        })
    }

    /// Whether the word says it all: one run, or hole.
    pub(super) fn is_plain(self) -> bool {
        self == Word::HOLE || matches!(self.tag(), Word::MAPPED | Word::UNWRITTEN)
    }
}

/// A span block by block.
pub(super) type Narrow = [AtomicU32; SPAN_BLOCKS as usize];

/// The same for addresses that lie too far apart: words.
pub(super) type Wide = [AtomicU64; SPAN_BLOCKS as usize];

/// Entries of [`super::leaf::Few`] and [`Narrow`]: 0 is a hole; otherwise the distance from the span's base, plus
/// 1, with this bit for unwritten.
pub(super) const UNWRITTEN: u32 = 1 << 31;

/// Whether an entry says that its block is written.
#[inline(always)]
pub(super) fn is_written(entry: u32) -> bool {
    entry != 0 && entry & UNWRITTEN == 0
}

/// Whether an address that far from the base fits an entry.
pub(super) fn is_near(distance: u64) -> bool {
    distance <= FARTHEST
}

/// Largest distance from its base that an entry holds.
const FARTHEST: u64 = UNWRITTEN as u64 - 2;

/// What the entries of a leaf with addresses from `lowest` to `highest` count from, if one base serves
/// them all: as far below them as above, so that blocks that the leaf gets later fit as well.
pub(super) fn base_between(lowest: u64, highest: u64) -> Option<u64> {
    let room = FARTHEST.checked_sub(highest - lowest)?;
    Some(lowest.saturating_sub(room / 2))
}

#[inline(always)]
pub(super) fn entry_of(distance: u64, unwritten: bool) -> u32 {
    (distance as u32 + 1) | if unwritten { UNWRITTEN } else { 0 }
}

/// What one block is, and how many blocks from it on are known to continue it.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) kind: MapKind,
    pub(super) pblk: u64,
    pub(super) len: u32,
}

impl Piece {
    #[inline(always)]
    pub(super) fn hole(len: u32) -> Piece {
        Piece {
            kind: MapKind::Hole,
            pblk: 0,
            len,
        }
    }

    /// Of a span that is two runs, `shift` from each other.
    #[inline(always)]
    pub(super) fn of_pair(word: Word, shift: i32, block: u32) -> Piece {
        let begun = word.leaf_number() as u32;
        let (shift, end) = if block < begun {
            (0, begun)
        } else {
            (i64::from(shift), SPAN_BLOCKS)
        };
        Piece {
            kind: MapKind::Mapped,
            pblk: (word.base() + u64::from(block)).wrapping_add_signed(shift),
            len: end - block,
        }
    }

    /// Of a span that is hole from some block on.
    #[inline(always)]
    pub(super) fn of_begun(word: Word, block: u32) -> Piece {
        let written = word.leaf_number() as u32;
        match block < written {
            true => Piece {
                kind: MapKind::Mapped,
                pblk: word.base() + u64::from(block),
                len: written - block,
            },
            false => Piece::hole(SPAN_BLOCKS - block),
        }
    }

    /// The word of its first block.
    pub(super) fn word(self) -> Word {
        match self.kind {
            MapKind::Hole => Word::HOLE,
            MapKind::Mapped => Word::new(Word::MAPPED, self.pblk),
            MapKind::Unwritten => Word::new(Word::UNWRITTEN, self.pblk),
        }
    }

    /// What an entry says of the block that lies `inside` blocks behind its start.
    #[inline(always)]
    pub(super) fn of_entry(base: u64, entry: u32, inside: u32, len: u32) -> Piece {
        let kind = match (entry, entry & UNWRITTEN) {
            (0, _) => MapKind::Hole,
            (_, 0) => MapKind::Mapped,
            _ => MapKind::Unwritten,
        };
        let distance = u64::from(entry & !UNWRITTEN) + u64::from(inside);
        Piece {
            kind,
            pblk: (base + distance).wrapping_sub(1),
            len,
        }
    }
}

pub(super) fn kind_of(tag: u64) -> MapKind {
    if tag == Word::MAPPED {
        MapKind::Mapped
    } else {
        MapKind::Unwritten
    }
}
