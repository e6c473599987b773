//! Changing what is cached, while readers go on.
//!
//! Not for: the tree on the disk, which is changed first; regions that are not read, which will be
//! read from it.
//!
//! A reader takes no lock and goes by one look at each word, length and entry on its way. What
//! it finds is right because each step is one store, and is the last of its kind:
//! - blocks inside a run of a region: its length;
//! - whole spans: the span's word;
//! - parts of a span: the entries of its leaf, in place; the span's word, if it can say what the span is then: a file
//!   that only grows has no leaves. Otherwise a span without a leaf gets one, filled before the span's word leads to it;
//! - a region that was one run or hole: a node, filled before the region's word leads to it.
//!
//! Beside insertions and conversions a reader so finds for each block what it was or what it is.
//! Beside a removal it may find hole for some time, but no address that was never this block's.
//!
//! Stores are releases and loads acquires, so that who finds a block finds what was copied into it
//! before it was published.

use super::live::Leaf;
use super::node::Node;
use super::region::Region;
use super::word::{Word, base_between};
use super::{
    ExtentMap, REGION_BITS, REGION_BLOCKS, Run, RunSource, SPAN_BITS, SPAN_BLOCKS, push_clipped,
};
use crate::Result;
use crate::sync::rank::Locked;
use dioxide_format::types::{Lblk, Pblk};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The right to change a map. Readers do not notice it.
#[derive(Debug)]
pub(crate) struct MapGuard<'a> {
    map: &'a ExtentMap,
    _lock: Locked<'a, ()>,
}

impl ExtentMap {
    /// Waits until nobody else changes the map. Whoever holds the guard loads by
    /// [`MapGuard::load`].
    pub(crate) fn lock(&self) -> MapGuard<'_> {
        MapGuard {
            map: self,
            _lock: self.change.lock(),
        }
    }

    /// The regions that overlap `numbers` and that there is a place for, with their numbers.
    fn regions(&self, numbers: Range<u64>) -> impl Iterator<Item = (u64, &Region)> {
        let grouped = self.rest.iter().enumerate();
        let rest = grouped.filter_map(|(group, made)| Some((1 << group, &**made.get()?)));
        let groups = std::iter::once((0, std::slice::from_ref(&self.first))).chain(rest);
        groups.flat_map(move |(first, regions)| {
            let inside = |number: u64| number.saturating_sub(first).min(regions.len() as u64);
            let (from, to) = (inside(numbers.start), inside(numbers.end));
            (first + from..).zip(&regions[from as usize..to as usize])
        })
    }
}

impl MapGuard<'_> {
    /// As [`ExtentMap::load`], for whoever holds the lock already. Blocks.
    ///
    /// # Errors
    /// As [`ExtentMap::load`].
    pub(crate) fn load(&self, lblk: Lblk, source: &dyn RunSource) -> Result<()> {
        let number = lblk.0 >> REGION_BITS;
        let region = self.map.region_or_new(number);
        if region.word() != Word::UNREAD {
            return Ok(());
        }
        let first = number << REGION_BITS;
        let mut runs: Vec<Run> = Vec::new();
        source.runs(Lblk(first), Lblk(first + (REGION_BLOCKS - 1)), &mut |run| {
            push_clipped(&mut runs, first, run);
        })?;
        region.fill(&runs);
        Ok(())
    }

    /// Blocks are backed by `run` from now on: inserted or converted. To be called after the tree on
    /// the disk (its cached blocks) was changed, and when what is to be read from the blocks is on
    /// the device. What moves blocks that were backed needs what [`MapGuard::set_hole`] needs.
    /// Regions that are not read are left to the load. Never blocks on I/O.
    pub(crate) fn set_run(&self, run: &Run) {
        let start = u64::from(run.lblk.0);
        self.set(start..start + u64::from(run.len), Word::of_run(run));
    }

    /// Blocks are backed by nothing from now on. To be called after the tree on the disk (its cached
    /// blocks) was changed, and before the blocks can be used for something else; with the inode's
    /// lock exclusive and I/O in flight drained, or when nobody can be left who looks there. The range may go past the end of
    /// the file.
    /// Regions that are not read are left to the load. Never blocks on I/O.
    pub(crate) fn set_hole(&self, blocks: Range<u64>) {
        self.set(blocks, Word::HOLE);
    }

    /// `what` is the word of the first block.
    fn set(&self, blocks: Range<u64>, what: Word) {
        if blocks.is_empty() {
            return;
        }
        let numbers = blocks.start >> REGION_BITS..blocks.end.div_ceil(REGION_BLOCKS.into());
        for (number, region) in self.map.regions(numbers) {
            let first = number << REGION_BITS;
            let from = blocks.start.max(first);
            let to = blocks.end.min(first + u64::from(REGION_BLOCKS));
            let within = (from - first) as u32..(to - first) as u32;
            region.set(within, what.after(from - blocks.start));
        }
    }
}

impl Region {
    fn word(&self) -> Word {
        Word(self.word.load(Ordering::Relaxed))
    }

    fn set(&self, within: Range<u32>, what: Word) {
        let word = self.word();
        let done = match word.tag() {
            Word::MAPPED | Word::UNWRITTEN => self.set_length(word, &within, what),
            _ if word == Word::HOLE => what == Word::HOLE || self.become_run(&within, what),
            _ if word == Word::UNREAD => true,
            // All that have a node.
            _ => what == Word::HOLE && self.become_hole(&within),
        };
        if done {
            return;
        }
        self.node_saying(word).set(within, what);
        // Readers share the word's cache line: it is not stored to for nothing.
        if !matches!(word.tag(), Word::NODE | Word::PAIRS) {
            self.word
                .store(Word::new(Word::NODE, 0).0, Ordering::Release);
        }
    }

    /// A region with a node becomes hole, if it is all of it.
    fn become_hole(&self, within: &Range<u32>) -> bool {
        let whole = within.len() == REGION_BLOCKS as usize;
        if whole {
            self.word.store(Word::HOLE.0, Ordering::Release);
        }
        whole
    }

    /// A change to a region that is a run, if it is to its length alone.
    fn set_length(&self, word: Word, within: &Range<u32>, what: Word) -> bool {
        let len = self.run_blocks.load(Ordering::Relaxed);
        let changed = match what {
            Word::HOLE if within.end >= len => len.min(within.start),
            _ if within.start <= len && what == word.after(within.start.into()) => {
                len.max(within.end)
            }
            _ => return false,
        };
        if changed != len {
            self.run_blocks.store(changed, Ordering::Release);
        }
        true
    }

    /// A region that is hole becomes a run, if it can. Once it had a node it cannot: it may have
    /// been another run before that, and a reader have its word.
    fn become_run(&self, within: &Range<u32>, what: Word) -> bool {
        let can = within.start == 0 && self.node.get().is_none();
        if can {
            self.run_blocks.store(within.end, Ordering::Release);
            self.word.store(what.0, Ordering::Release);
        }
        can
    }

    /// The node, saying what `word` says, which need not lead to it yet.
    fn node_saying(&self, word: Word) -> &Node {
        let node = self.node.get_or_init(|| Node::of_runs(&self.run(word)).0);
        if word == Word::HOLE {
            node.clear();
        }
        node
    }

    /// The run that a region without a node is.
    fn run(&self, word: Word) -> Vec<Run> {
        let len = self.run_blocks.load(Ordering::Relaxed);
        let run = Run {
            lblk: Lblk(0),
            len,
            pblk: Pblk(word.address()),
            unwritten: word.tag() == Word::UNWRITTEN,
        };
        let is_run = word != Word::HOLE && len > 0;
        is_run.then_some(run).into_iter().collect()
    }
}

/// What blocks of a span are: a run from this word on, or hole. In order.
type Runs = Vec<(Range<u32>, Word)>;

impl Node {
    fn clear(&self) {
        for span in self.spans.iter() {
            span.store(Word::HOLE.0, Ordering::Release);
        }
    }

    fn set(&self, within: Range<u32>, what: Word) {
        for span in within.start >> SPAN_BITS..=(within.end - 1) >> SPAN_BITS {
            let start = span << SPAN_BITS;
            let from = within.start.max(start);
            let to = within.end.min(start + SPAN_BLOCKS);
            let what = what.after((from - within.start).into());
            self.set_span(span, from - start..to - start, what);
        }
    }

    fn set_span(&self, span: u32, blocks: Range<u32>, what: Word) {
        let word = Word(self.spans[span as usize].load(Ordering::Relaxed));
        let says_so = word.is_plain() && word.after(blocks.start.into()) == what;
        if says_so {
            return;
        }
        if blocks.len() == SPAN_BLOCKS as usize {
            return self.publish(span, what);
        }
        if let Some(grown) = word.grown(&blocks, what) {
            return self.publish(span, grown);
        }
        match self.leaf(word) {
            Some(leaf) if leaf.holds(what, blocks.len() as u32) => {
                leaf.put(blocks, what);
                let first = self.piece_of(span, word, 0).word();
                let last = self.piece_of(span, word, SPAN_BLOCKS - 1).word();
                // The last block first: who appends is spared looking at all before it.
                if last == first.after(u64::from(SPAN_BLOCKS) - 1)
                    && 1 + leaf.continuing(0, first) == SPAN_BLOCKS
                {
                    self.publish(span, first);
                }
            }
            _ => self.rewrite(span, word, blocks, what),
        }
    }

    fn publish(&self, span: u32, word: Word) {
        self.spans[span as usize].store(word.0, Ordering::Release);
    }

    /// The leaf that the word of a span leads to, if its entries can be changed.
    pub(super) fn leaf(&self, word: Word) -> Option<Leaf<'_>> {
        let number = word.leaf_number();
        match word.tag() {
            Word::NARROW => Some(Leaf::Narrow(&self.narrow[number], word.base())),
            Word::LIVE => Some(Leaf::Narrow(self.live.leaf(number), word.base())),
            Word::WIDE => Some(Leaf::Wide(&self.wide[number])),
            Word::LIVE_WIDE => Some(Leaf::Wide(self.live_wide.leaf(number))),
            _ => None,
        }
    }

    /// Changes a part of a span whose word leads to no leaf that can take it.
    fn rewrite(&self, span: u32, word: Word, changed: Range<u32>, what: Word) {
        let behind = changed.end..SPAN_BLOCKS;
        let mut runs = self.runs_of(span, word, 0..changed.start);
        runs.push((changed, what));
        runs.extend(self.runs_of(span, word, behind));
        let (_, first) = runs[0];
        let is_one =
            |(blocks, word): &(Range<u32>, Word)| *word == first.after(blocks.start.into());
        let mut others = runs.iter().skip_while(|run| is_one(run));
        match others.next() {
            None => return self.publish(span, first),
            Some((behind, Word::HOLE))
                if first.tag() == Word::MAPPED && others.all(|(_, word)| *word == Word::HOLE) =>
            {
                return self.publish(span, Word::begun(behind.start, first.address()));
            }
            Some(_) => {}
        }
        let word = self.claim(span, &runs);
        let leaf = self.leaf(word).expect("claimed");
        for (blocks, word) in runs {
            leaf.put(blocks, word);
        }
        self.publish(span, word);
    }

    /// What a span's word says of some of its blocks.
    fn runs_of(&self, span: u32, word: Word, blocks: Range<u32>) -> Runs {
        let mut runs = Runs::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let piece = self.piece_of(span, word, at);
            let end = blocks.end.min(at + piece.len);
            runs.push((at..end, piece.word()));
            at = end;
        }
        runs
    }

    /// The word that leads to a leaf of the span's own that can say what `runs` are.
    fn claim(&self, span: u32, runs: &Runs) -> Word {
        let backed = || runs.iter().filter(|(_, word)| *word != Word::HOLE);
        let lowest = backed().map(|(_, word)| word.address()).min().unwrap_or(0);
        let last = |(blocks, word): &(Range<u32>, Word)| word.address() + blocks.len() as u64 - 1;
        let highest = backed().map(last).max().unwrap_or(0);
        if let Some(base) = base_between(lowest, highest) {
            let (number, base) = self.live.claim(span, base);
            let word = Word::leaf(Word::LIVE, number, base);
            let leaf = self.leaf(word).expect("a narrow one");
            if leaf.holds(Word::new(Word::MAPPED, lowest), 1)
                && leaf.holds(Word::new(Word::MAPPED, highest), 1)
            {
                return word;
            }
        }
        let (number, _) = self.live_wide.claim(span, 0);
        Word::leaf(Word::LIVE_WIDE, number, 0)
    }
}
