//! The spans of a region that is not one run: finding a block in them.
//!
//! Not for: changing them ([`super::change`]).
//!
//! Invariants: a leaf that the word of a span has led to is always a leaf of that span, and its
//! entries always count from the same base; so whoever read the word long ago finds in it what
//! was, or is, of that block.

use super::leaf::{FEW, Few, SpanBlocks};
use super::line::{Line, QUARTERS};
use super::live::Leaves;
use super::near::Near;
use super::word::{Narrow, Piece, Wide, Word, base_between, is_written, kind_of};
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
    /// Of spans that are pairs: how much farther than behind the first run the second lies. Of all spans or none.
    shifts: Vec<i32>,
    few: Vec<Few>,
    /// Of all spans or none, beside what their words say.
    lines: Vec<Line>,
    /// Of all spans or none; of a whole region in a large page.
    near: Table<Near>,
    /// A MiB, in a large page, where the whole region is flat.
    pub(super) narrow: Table<Narrow>,
    pub(super) wide: Vec<Wide>,
    pub(super) live: Leaves<AtomicU32>,
    pub(super) live_wide: Leaves<AtomicU64>,
}

impl Node {
    /// And the word of its region.
    pub(super) fn of_runs(runs: &[Run]) -> (Box<Node>, Word) {
        let mut leaves = Made::default();
        let (word, words) = leaves.add_whole(runs).unwrap_or_else(|| {
            let words = leaves.add_spans(runs);
            let pairs = words.iter().filter(|word| word.tag() == Word::PAIR).count();
            let plain = words.iter().filter(|word| word.is_plain()).count();
            let many = 8 * pairs > words.len() && 2 * pairs > words.len() - plain;
            let tag = if many { Word::PAIRS } else { Word::NODE };
            (Word::new(tag, 0), words)
        });
        let spans = Box::new(std::array::from_fn(|span| {
            AtomicU64::new(words.get(span).unwrap_or(&Word::HOLE).0)
        }));
        leaves.few.shrink_to_fit();
        leaves.wide.shrink_to_fit();
        let node = Box::new(Node {
            spans,
            shifts: leaves.shifts,
            few: leaves.few,
            lines: leaves.lines,
            near: leaves.near.into(),
            narrow: leaves.narrow.into(),
            wide: leaves.wide,
            live: Leaves::new(),
            live_wide: Leaves::new(),
        });
        (node, word)
    }

    #[inline(always)]
    fn span(&self, within: u32) -> Word {
        Word(self.spans[(within >> SPAN_BITS) as usize].load(Ordering::Acquire))
    }

    #[inline(always)]
    fn shift(&self, span: u32) -> i32 {
        self.shifts.get(span as usize).copied().unwrap_or(0)
    }

    /// [`Node::written_block`] where the region's word is `pairs`. Whether the span is one and, if so, on which side the block is, is
    /// not foreseeable: no branch depends on it.
    #[inline(always)]
    pub(super) fn written_in_pairs(&self, within: u32) -> Option<u64> {
        let (word, block) = (self.span(within), within % SPAN_BLOCKS);
        if word.tag() & !Word::PAIR != Word::MAPPED {
            return self.written_apart(within);
        }
        let behind = word.tag() == Word::PAIR && block >= word.leaf_number() as u32;
        let shift = self.shift(within >> SPAN_BITS) & -i32::from(behind);
        Some((word.base() + u64::from(block)).wrapping_add_signed(shift.into()))
    }

    /// [`Node::written_block`] where the region's word is `lines`.
    #[inline(always)]
    pub(super) fn written_in_lines(&self, lines: Word, within: u32) -> Option<u64> {
        let line = self.lines.get((within >> SPAN_BITS) as usize)?;
        match line.entry(within % SPAN_BLOCKS) {
            0 => self.written_elsewhere(within),
            entry => Some(lines.base() + u64::from(entry) - 1),
        }
    }

    /// [`Node::written_block`] where the region's word is `flat`.
    #[inline(always)]
    pub(super) fn written_in_flat(&self, flat: Word, within: u32) -> Option<u64> {
        let entry = self.narrow.as_flattened().get(within as usize)?;
        written(flat.base(), entry.load(Ordering::Acquire))
    }

    /// [`Node::written_block`] where the region's word is `lists`.
    #[inline(always)]
    pub(super) fn written_in_lists(&self, lists: Word, within: u32) -> Option<u64> {
        let few = self.few.get((within >> SPAN_BITS) as usize)?;
        written(lists.base(), few.entry(within % SPAN_BLOCKS))
    }

    /// [`Node::written_block`] where the region's word is `near`.
    #[inline(always)]
    pub(super) fn written_in_near(&self, near: Word, within: u32) -> Option<u64> {
        let leaf = self.near.get((within >> SPAN_BITS) as usize)?;
        match leaf.entry(within % SPAN_BLOCKS) {
            0 => self.written_elsewhere(within),
            entry => Some(near.base() + u64::from(entry) - 1),
        }
    }

    #[inline(always)]
    pub(super) fn written_block(&self, within: u32) -> Option<u64> {
        let (word, block) = (self.span(within), within % SPAN_BLOCKS);
        let entry = match word.tag() {
            Word::MAPPED => return Some(word.0 + u64::from(block)),
            Word::FEW => self.few[word.leaf_number()].entry(block),
            Word::NARROW => self.narrow[word.leaf_number()][block as usize].load(Ordering::Acquire),
            _ => return self.written_elsewhere(within),
        };
        written(word.base(), entry)
    }

    /// [`Node::written_block`], not inlined.
    #[inline(never)]
    fn written_apart(&self, within: u32) -> Option<u64> {
        self.written_block(within)
    }

    /// [`Node::written_block`] in a span of another kind. Not inlined: one `match` over all kinds
    /// becomes a jump through a table, which costs the frequent ones more than their comparisons.
    #[inline(never)]
    fn written_elsewhere(&self, within: u32) -> Option<u64> {
        let (word, block) = (self.span(within), within % SPAN_BLOCKS);
        if word.tag() == Word::LIVE {
            let entry = self.live.leaf(word.leaf_number())[block as usize].load(Ordering::Acquire);
            return written(word.base(), entry);
        }
        let piece = self.piece_of(within >> SPAN_BITS, word, block);
        (piece.kind == MapKind::Mapped).then_some(piece.pblk)
    }

    #[inline(always)]
    pub(super) fn piece(&self, within: u32) -> Piece {
        self.piece_of(within >> SPAN_BITS, self.span(within), within % SPAN_BLOCKS)
    }

    /// As [`Node::piece`], with all of its span that continues it.
    pub(super) fn run(&self, within: u32) -> Piece {
        let (word, block) = (self.span(within), within % SPAN_BLOCKS);
        let piece = self.piece_of(within >> SPAN_BITS, word, block);
        let more = match self.leaf(word) {
            Some(leaf) => leaf.continuing(block, piece.word()),
            None if word.tag() == Word::NEAR => self.near[word.leaf_number()].continuing(block),
            None => 0,
        };
        let len = piece.len + more;
        Piece { len, ..piece }
    }

    /// What a block is in a span that `word` is of.
    #[inline(always)]
    pub(super) fn piece_of(&self, span: u32, word: Word, block: u32) -> Piece {
        let number = word.leaf_number();
        match word.tag() {
            Word::MAPPED | Word::UNWRITTEN => Piece {
                kind: kind_of(word.tag()),
                pblk: word.address() + u64::from(block),
                len: SPAN_BLOCKS - block,
            },
            Word::PAIR => Piece::of_pair(word, self.shift(span), block),
            Word::FEW => self.few[number].piece(word.base(), block),
            Word::NARROW => Piece::of_narrow(&self.narrow[number], word.base(), block),
            Word::NEAR => Piece::of_entry(word.base(), self.near[number].entry(block), 0, 1),
            Word::LIVE => Piece::of_narrow(self.live.leaf(number), word.base(), block),
            Word::WIDE => Piece::of_wide(&self.wide[number], block),
            Word::LIVE_WIDE => Piece::of_wide(self.live_wide.leaf(number), block),
            _ => Piece::of_begun(word, block),
        }
    }
}

/// Runs for each span from which on a region is lists: few spans are one run then, for which the word would have been enough, and
/// the others are found without it.
const MANY: usize = 4;

/// Leaves while they are made.
#[derive(Default)]
struct Made {
    shifts: Vec<i32>,
    few: Vec<Few>,
    lines: Vec<Line>,
    near: Vec<Near>,
    narrow: Vec<Narrow>,
    wide: Vec<Wide>,
}

impl Made {
    /// Leaves of one kind for all spans, which are found without the words of the spans, if there are so many runs that hardly a
    /// span is one, and one base serves all. The word of the region, and those of the spans.
    fn add_whole(&mut self, runs: &[Run]) -> Option<(Word, Vec<Word>)> {
        let spans = spans_of(runs);
        let count = spans.len();
        if runs.len() < MANY * count {
            return None;
        }
        let lowest = runs.iter().map(|run| run.pblk.0).min()?;
        let highest = runs.iter().map(Run::last_address).max()?;
        let base = base_between(lowest, highest)?;
        if let Some(words) = self.add_lines(runs, base) {
            return Some((Word::leaf(Word::LINES, 0, base), words));
        }
        if let Some(words) = self.add_near(runs, base) {
            return Some((Word::leaf(Word::NEAR, 0, base), words));
        }
        let tag = if runs.len() <= FEW * count {
            self.few = spans.map(|span| span.few(base)).collect::<Option<_>>()?;
            Word::LISTS
        } else {
            self.narrow = spans.map(|span| span.narrow(base)).collect();
            Word::FLAT
        };
        // Both have the same tag in the word of a span.
        let words = (0..count).map(|span| Word::leaf(tag, span, base)).collect();
        Some((Word::leaf(tag, 0, base), words))
    }

    /// Lines for all spans, beside what [`Made::add_spans`] makes, if no more than every eighth quarter leaves written blocks
    /// to that, and no more than half of the spans need a leaf block by block.
    fn add_lines(&mut self, runs: &[Run], base: u64) -> Option<Vec<Word>> {
        let spans = spans_of(runs);
        let (most, most_narrow) = (spans.len() * QUARTERS / 8, spans.len() / 2);
        let (mut incomplete, mut narrow) = (0, 0);
        let mut lines = Vec::with_capacity(spans.len());
        for span in spans {
            let leaf = span.narrow(base);
            let line = Line::of(&leaf);
            incomplete += line.incomplete(&leaf);
            narrow += usize::from(span.few(base).is_none());
            if incomplete > most || narrow > most_narrow {
                return None;
            }
            lines.push(line);
        }
        self.lines = lines;
        Some(self.add_spans(runs))
    }

    /// Leaves of a byte per block for all spans, and beside them others for spans of which those do not say all, if these are no
    /// more than every second. The words of the spans.
    fn add_near(&mut self, runs: &[Run], base: u64) -> Option<Vec<Word>> {
        let mut others = Vec::new();
        let mut near = Vec::new();
        let spans = spans_of(runs);
        let most = spans.len() / 2;
        let mut words = Vec::with_capacity(spans.len());
        for (number, span) in spans.enumerate() {
            let leaf = span.narrow(base);
            let one = Near::of(&leaf);
            if one.says_all(&leaf) {
                words.push(Word::leaf(Word::NEAR, number, base));
            } else if others.len() < most {
                words.push(Word::leaf(Word::NARROW, others.len(), base));
                others.push(leaf);
            } else {
                return None;
            }
            near.push(one);
        }
        (self.near, self.narrow) = (near, others);
        Some(words)
    }

    /// The words of all spans, each with the smallest leaf that can say what it is, if it needs one.
    fn add_spans(&mut self, runs: &[Run]) -> Vec<Word> {
        spans_of(runs).map(|span| self.add_span(&span)).collect()
    }

    /// The word of a span that is two runs of written blocks, if they lie near enough for a shift.
    fn add_pair(&mut self, span: &SpanBlocks<'_>) -> Option<Word> {
        let [first, second] = span.runs else {
            return None;
        };
        let whole = span.clip(first).0 == 0
            && first.lblk.0 + first.len == second.lblk.0
            && second.lblk.0 + second.len >= span.start + SPAN_BLOCKS;
        if !whole || first.unwritten || second.unwritten {
            return None;
        }
        let (_, begun, address) = span.clip(first);
        let behind = address + u64::from(begun);
        let shift = i32::try_from(second.pblk.0 as i64 - behind as i64).ok()?;
        self.shifts.resize(1 << NODE_BITS, 0);
        self.shifts[(span.start >> SPAN_BITS) as usize] = shift;
        Some(Word::leaf(Word::PAIR, begun as usize, address))
    }

    /// The word of a span, whose leaf is added if it needs one.
    fn add_span(&mut self, span: &SpanBlocks<'_>) -> Word {
        let start = span.start;
        match span.runs {
            [] => return Word::HOLE,
            [run] if run.lblk.0 <= start && run.lblk.0 + run.len >= start + SPAN_BLOCKS => {
                let skipped = u64::from(start - run.lblk.0);
                return Word::new(Word::of_run(run).tag(), run.pblk.0 + skipped);
            }
            _ => {}
        }
        if let Some(word) = self.add_pair(span) {
            return word;
        }
        let (lowest, highest) = span.bounds();
        let Some(base) = base_between(lowest, highest) else {
            self.wide.push(span.wide());
            return Word::leaf(Word::WIDE, self.wide.len() - 1, 0);
        };
        if let Some(few) = span.few(base) {
            self.few.push(few);
            return Word::leaf(Word::FEW, self.few.len() - 1, base);
        }
        self.narrow.push(span.narrow(base));
        Word::leaf(Word::NARROW, self.narrow.len() - 1, base)
    }
}

/// What each span holds, up to the last that holds anything.
fn spans_of(mut runs: &[Run]) -> impl ExactSizeIterator<Item = SpanBlocks<'_>> {
    let end = runs.last().map_or(0, |run| run.lblk.0 + run.len);
    (0..end.div_ceil(SPAN_BLOCKS) as usize).map(move |span| {
        let start = (span as u32) << SPAN_BITS;
        while let [run, rest @ ..] = runs
            && run.lblk.0 + run.len <= start
        {
            runs = rest;
        }
        let inside = runs
            .iter()
            .take_while(|run| run.lblk.0 < start + SPAN_BLOCKS);
        SpanBlocks {
            start,
            runs: &runs[..inside.count()],
        }
    })
}

/// The address that an entry says, if the block is written.
#[inline(always)]
fn written(base: u64, entry: u32) -> Option<u64> {
    is_written(entry).then(|| base + u64::from(entry) - 1)
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
