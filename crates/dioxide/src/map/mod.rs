//! The extent map: which blocks of a file lie where, in memory.
//!
//! It answers one question on every request, so its cost is the engine's cost. A lookup is a few
//! dependent loads, takes no lock, writes no memory, and does not depend on the number of
//! extents:
//!
//! - a **region** is 2^18 blocks (1 GiB of 4 KiB blocks). A region that is one run, or nothing but
//!   hole, is one word. Otherwise it has a node of
//! - 512 **spans** of 512 blocks each. A span that is one run or hole is one word. Otherwise it has
//!   a leaf of
//! - 512 block addresses, four bytes each, relative to the lowest; or, while the span has at most 32
//!   runs and holes, a list of them that is searched by comparing with all at once. Block by block, a
//!   moderately fragmented file's map would not stay in the cache beside the data.
//!
//! A fully fragmented file so costs 4.1 bytes per block, a contiguous one next to nothing. Regions
//! are read from the disk at their first use, by [`load`]; until then a lookup answers that the
//! mapping is not cached, which no-wait callers turn into EAGAIN.
//!
//! Invariants: a word goes from [`Word::UNREAD`] to its final value once, after everything that it
//! leads to was filled in; nothing that a lookup can reach is freed before the map is.
//!
//! Rejected: a sorted array with binary search (a lookup among 262,144 extents costs 700 ns once
//! 4 KiB copies have pushed its nodes out of the cache), and a last-extent hint per handle (two
//! comparisons that miss on every random read of a fragmented file, and shared writes when threads
//! share a handle).

#[cfg(test)]
pub(crate) mod indirect;
pub(crate) mod load;
#[cfg(test)]
pub(crate) mod tree;

use crate::Result;
use dioxide_format::types::{Lblk, Pblk};
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const SPAN_BITS: u32 = 9;
const NODE_BITS: u32 = 9;
const REGION_BITS: u32 = SPAN_BITS + NODE_BITS;
const SPAN_BLOCKS: u32 = 1 << SPAN_BITS;
const REGION_BLOCKS: u32 = 1 << REGION_BITS;

/// What backs a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Nothing; reads as zeros.
    Hole,
    /// Blocks with data.
    Mapped,
    /// Allocated blocks that read as zeros.
    Unwritten,
}

/// A range of a file and what backs it (an iomap).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First block in the file.
    pub lblk: Lblk,
    /// Length in blocks, not 0.
    pub len: u32,
    /// What backs it.
    pub kind: MapKind,
    /// First block on the device; meaningless for a hole.
    pub pblk: Pblk,
}

/// The mapping is not in memory; [`ExtentMap::load`] reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotCached;

/// A run of blocks as it comes from the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) lblk: Lblk,
    pub(crate) len: u32,
    pub(crate) pblk: Pblk,
    pub(crate) unwritten: bool,
}

/// Reads a file's runs from the disk.
pub(crate) trait RunSource {
    /// Calls `emit` for every run that overlaps blocks `first ..= last`, in ascending order, not
    /// overlapping, each clipped or not. Validates what it reads.
    fn runs(&self, first: Lblk, last: Lblk, emit: &mut dyn FnMut(Run)) -> Result<()>;
}

/// One word of the map: three bits of tag, nine of leaf number, 52 of block address (addresses
/// have 48 bits). Written blocks have tag 0, so that the lookup that matters most needs no masking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word(u64);

impl Word {
    const MAPPED: u64 = 0;
    const UNWRITTEN: u64 = 1;
    /// The region has a node.
    const NODE: u64 = 2;
    /// The span has a leaf of this kind, with this number; the address is its lowest block.
    const FEW: u64 = 3;
    const NARROW: u64 = 4;
    const WIDE: u64 = 5;
    const HOLE: Word = Word(6 << 61);
    const UNREAD: Word = Word(7 << 61);

    fn leaf(tag: u64, number: usize, base: u64) -> Word {
        debug_assert!(number < 1 << NODE_BITS && base < 1 << 52);
        Word(tag << 61 | (number as u64) << 52 | base)
    }

    #[inline(always)]
    fn leaf_number(self) -> usize {
        (self.0 >> 52) as usize % (1 << NODE_BITS)
    }

    #[inline(always)]
    fn base(self) -> u64 {
        self.0 & ((1 << 52) - 1)
    }

    fn new(tag: u64, address: u64) -> Word {
        debug_assert!(address < 1 << 61);
        Word(tag << 61 | address)
    }

    #[inline]
    fn tag(self) -> u64 {
        self.0 >> 61
    }

    #[inline]
    fn address(self) -> u64 {
        self.0 & ((1 << 61) - 1)
    }

    fn of_run(run: &Run) -> Word {
        let tag = if run.unwritten {
            Word::UNWRITTEN
        } else {
            Word::MAPPED
        };
        Word::new(tag, run.pblk.0)
    }
}

/// A span of at most [`FEW`] runs and holes. Two neighbouring cache lines serve most lookups.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Few {
    /// First block of each run; [`UNUSED`] behind the last. All are compared at once.
    starts: [i16; FEW],
    /// What begins there.
    entries: [u32; FEW],
}

const FEW: usize = 32;

/// Above every block of a span.
const UNUSED: i16 = i16::MAX;
const _: () = assert!(SPAN_BLOCKS < UNUSED as u32);

/// A span block by block.
type Narrow = [AtomicU32; SPAN_BLOCKS as usize];

/// The same for addresses that lie too far apart: words.
type Wide = [AtomicU64; SPAN_BLOCKS as usize];

/// Entries of [`Few`] and [`Narrow`]: 0 is a hole; otherwise the distance from the span's base, plus
/// 1, with this bit for unwritten.
const UNWRITTEN: u32 = 1 << 31;

/// Whether an address that far from the base fits an entry.
fn is_near(distance: u64) -> bool {
    distance + 1 < u64::from(UNWRITTEN)
}

#[inline(always)]
fn entry_of(distance: u64, unwritten: bool) -> u32 {
    (distance as u32 + 1) | if unwritten { UNWRITTEN } else { 0 }
}

/// The spans of a region. Their leaves lie in one array for each kind, so that a span's word leads to
/// its entries without a pointer between.
#[derive(Debug)]
struct Node {
    spans: Box<[AtomicU64; 1 << NODE_BITS]>,
    few: Vec<Few>,
    narrow: Vec<Narrow>,
    wide: Vec<Wide>,
}

#[derive(Debug)]
struct Region {
    word: AtomicU64,
    /// If `word` is a run: blocks from here on are a hole. Written before `word`.
    run_blocks: AtomicU32,
    node: OnceLock<Box<Node>>,
}

impl Region {
    fn new() -> Region {
        Region {
            word: AtomicU64::new(Word::UNREAD.0),
            run_blocks: AtomicU32::new(0),
            node: OnceLock::new(),
        }
    }
}

/// A file's extent map.
#[derive(Debug)]
pub(crate) struct ExtentMap {
    /// Region 0, then regions 1, 2..4, 4..8, and so on, each group made when it is first loaded.
    first: Region,
    rest: [OnceLock<Box<[Region]>>; (32 - REGION_BITS) as usize],
    loading: Mutex<()>,
}

/// What one block is, and how many blocks from it on are known to continue it.
#[derive(Clone, Copy)]
struct Piece {
    kind: MapKind,
    pblk: u64,
    len: u32,
}

impl ExtentMap {
    /// An empty map: nothing is cached.
    pub(crate) fn new() -> ExtentMap {
        ExtentMap {
            first: Region::new(),
            rest: [const { OnceLock::new() }; (32 - REGION_BITS) as usize],
            loading: Mutex::new(()),
        }
    }

    #[inline(always)]
    fn region(&self, number: u32) -> Option<&Region> {
        if number == 0 {
            return Some(&self.first);
        }
        let group = number.ilog2();
        let regions = self.rest[group as usize].get()?;
        regions.get((number - (1 << group)) as usize)
    }

    fn region_or_new(&self, number: u32) -> &Region {
        if number == 0 {
            return &self.first;
        }
        let group = number.ilog2();
        let regions = self.rest[group as usize]
            .get_or_init(|| (0..1u32 << group).map(|_| Region::new()).collect());
        &regions[(number - (1 << group)) as usize]
    }

    #[inline(always)]
    fn piece(&self, lblk: u32) -> Result<Piece, NotCached> {
        let region = self.region(lblk >> REGION_BITS).ok_or(NotCached)?;
        let word = Word(region.word.load(Ordering::Acquire));
        let within = lblk % REGION_BLOCKS;
        match word.tag() {
            Word::NODE => {
                let node = region.node.get().expect("filled in before the word");
                Ok(node.piece(within))
            }
            Word::MAPPED | Word::UNWRITTEN => {
                let run_blocks = region.run_blocks.load(Ordering::Relaxed);
                if within >= run_blocks {
                    return Ok(Piece {
                        kind: MapKind::Hole,
                        pblk: 0,
                        len: REGION_BLOCKS - within,
                    });
                }
                Ok(Piece {
                    kind: kind_of(word.tag()),
                    pblk: word.address() + u64::from(within),
                    len: run_blocks - within,
                })
            }
            _ if word == Word::HOLE => Ok(Piece {
                kind: MapKind::Hole,
                pblk: 0,
                len: REGION_BLOCKS - within,
            }),
            _ => Err(NotCached),
        }
    }

    /// Where `lblk` lies on the device, if it is a written block and the map is in memory.
    #[inline(always)]
    pub(crate) fn written_block(&self, lblk: u32) -> Option<u64> {
        let region = self.region(lblk >> REGION_BITS)?;
        let within = lblk % REGION_BLOCKS;
        let word = Word(region.word.load(Ordering::Acquire));
        if word.tag() == Word::NODE {
            return region.node.get()?.written_block(within);
        }
        let inside = within < region.run_blocks.load(Ordering::Relaxed);
        (word.tag() == Word::MAPPED && inside).then_some(word.0 + u64::from(within))
    }

    /// Where `lblk` lies on the device, if it and the `more` blocks behind it are one run of
    /// written blocks, as far as the map is in memory.
    pub(crate) fn written_run(&self, lblk: u32, more: u32) -> Option<u64> {
        let piece = self.piece(lblk).ok()?;
        if piece.kind != MapKind::Mapped {
            return None;
        }
        let covered = more < piece.len || self.extend(lblk, piece, more + 1) > more;
        covered.then_some(piece.pblk)
    }

    /// The mapping that covers `lblk`, at most `want` blocks of it (`want` is not 0). It may be
    /// shorter than what the disk has, never longer.
    #[inline]
    pub(crate) fn lookup(&self, lblk: Lblk, want: u32) -> Result<Mapping, NotCached> {
        let piece = self.piece(lblk.0)?;
        let len = if piece.len >= want {
            want
        } else {
            self.extend(lblk.0, piece, want)
        };
        Ok(Mapping {
            lblk,
            len,
            kind: piece.kind,
            pblk: Pblk(piece.pblk),
        })
    }

    /// How far the mapping that begins with `piece` goes, up to `want`.
    #[cold]
    fn extend(&self, lblk: u32, piece: Piece, want: u32) -> u32 {
        let want = want.min(u32::MAX - lblk);
        let mut len = piece.len;
        while len < want {
            let Ok(next) = self.piece(lblk + len) else {
                break;
            };
            let continues = next.kind == piece.kind
                && (next.kind == MapKind::Hole || next.pblk == piece.pblk + u64::from(len));
            if !continues {
                break;
            }
            len += next.len;
        }
        len.min(want)
    }

    /// Reads the region that holds `lblk` from the disk, unless it is there. Blocks.
    ///
    /// # Errors
    /// What `source` finds wrong; the region stays uncached then.
    pub(crate) fn load(&self, lblk: Lblk, source: &dyn RunSource) -> Result<()> {
        let number = lblk.0 >> REGION_BITS;
        let _loading = self.loading.lock();
        let region = self.region_or_new(number);
        if region.word.load(Ordering::Acquire) != Word::UNREAD.0 {
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
}

fn kind_of(tag: u64) -> MapKind {
    if tag == Word::MAPPED {
        MapKind::Mapped
    } else {
        MapKind::Unwritten
    }
}

/// Clips a run to the region that starts at `first`, makes it relative, and merges it with the one
/// before where they are one on the disk as well.
fn push_clipped(runs: &mut Vec<Run>, first: u32, run: Run) {
    let start = u64::from(run.lblk.0).max(u64::from(first));
    let end = (u64::from(run.lblk.0) + u64::from(run.len))
        .min(u64::from(first) + u64::from(REGION_BLOCKS));
    if start >= end {
        return;
    }
    let clipped = Run {
        lblk: Lblk((start - u64::from(first)) as u32),
        len: (end - start) as u32,
        pblk: Pblk(run.pblk.0 + (start - u64::from(run.lblk.0))),
        unwritten: run.unwritten,
    };
    if let Some(last) = runs.last_mut()
        && last.lblk.0 + last.len == clipped.lblk.0
        && last.pblk.0 + u64::from(last.len) == clipped.pblk.0
        && last.unwritten == clipped.unwritten
    {
        last.len += clipped.len;
        return;
    }
    runs.push(clipped);
}

impl Region {
    /// Publishes `runs` (relative to the region) as its content.
    fn fill(&self, runs: &[Run]) {
        let word = match runs {
            [] => Word::HOLE,
            [run] if run.lblk.0 == 0 => {
                self.run_blocks.store(run.len, Ordering::Relaxed);
                Word::of_run(run)
            }
            _ => {
                self.node.get_or_init(|| Node::of_runs(runs));
                Word::new(Word::NODE, 0)
            }
        };
        self.word.store(word.0, Ordering::Release);
    }
}

impl Node {
    fn of_runs(runs: &[Run]) -> Box<Node> {
        let mut node = Box::new(Node {
            spans: Box::new([const { AtomicU64::new(Word::HOLE.0) }; 1 << NODE_BITS]),
            few: Vec::new(),
            narrow: Vec::new(),
            wide: Vec::new(),
        });
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
            let word = node.add_span(start, &rest[..inside]);
            node.spans[span as usize].store(word.0, Ordering::Relaxed);
        }
        node.few.shrink_to_fit();
        node.narrow.shrink_to_fit();
        node.wide.shrink_to_fit();
        node
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
        let (base, top) = blocks.bounds();
        if !is_near(top - base) {
            self.wide.push(blocks.wide());
            return Word::leaf(Word::WIDE, self.wide.len() - 1, 0);
        }
        if let Some(few) = blocks.few(base) {
            self.few.push(few);
            return Word::leaf(Word::FEW, self.few.len() - 1, base);
        }
        self.narrow.push(blocks.narrow(base));
        Word::leaf(Word::NARROW, self.narrow.len() - 1, base)
    }

    #[inline(always)]
    fn span(&self, within: u32) -> Word {
        Word(self.spans[(within >> SPAN_BITS) as usize].load(Ordering::Acquire))
    }

    #[inline(always)]
    fn written_block(&self, within: u32) -> Option<u64> {
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
            Word::NARROW => self.narrow[word.leaf_number()][block as usize].load(Ordering::Relaxed),
            _ => {
                let piece = self.piece(within);
                return (piece.kind == MapKind::Mapped).then_some(piece.pblk);
            }
        };
        let written = entry != 0 && entry & UNWRITTEN == 0;
        written.then(|| word.base() + u64::from(entry) - 1)
    }

    #[inline(always)]
    fn piece(&self, within: u32) -> Piece {
        let (word, block) = (self.span(within), within % SPAN_BLOCKS);
        let number = word.leaf_number();
        match word.tag() {
            Word::MAPPED | Word::UNWRITTEN => Piece {
                kind: kind_of(word.tag()),
                pblk: word.address() + u64::from(block),
                len: SPAN_BLOCKS - block,
            },
            Word::FEW => self.few[number].piece(word.base(), block),
            Word::NARROW => {
                let entry = self.narrow[number][block as usize].load(Ordering::Relaxed);
                Piece::of_entry(word.base(), entry, 0, 1)
            }
            Word::WIDE => {
                let word = Word(self.wide[number][block as usize].load(Ordering::Relaxed));
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
            _ => Piece {
                kind: MapKind::Hole,
                pblk: 0,
                len: SPAN_BLOCKS - block,
            },
        }
    }
}

impl Piece {
    /// What an entry says of the block that lies `inside` blocks behind its start.
    #[inline(always)]
    fn of_entry(base: u64, entry: u32, inside: u32, len: u32) -> Piece {
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

impl Few {
    /// Number of the run that holds `block`.
    #[inline(always)]
    fn number(&self, block: u32) -> usize {
        let block = block as i16;
        let not_after = |&start: &i16| usize::from(start <= block);
        // The first run starts at block 0, so at least one does not start after `block`.
        self.starts.iter().map(not_after).sum::<usize>() - 1
    }

    /// First block and entry of the run that holds `block`.
    #[inline(always)]
    fn find(&self, block: u32) -> (u32, u32) {
        let number = self.number(block);
        (self.starts[number] as u32, self.entries[number])
    }

    fn piece(&self, base: u64, block: u32) -> Piece {
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
struct SpanBlocks<'a> {
    start: u32,
    /// At least one, and all overlap the span.
    runs: &'a [Run],
}

impl SpanBlocks<'_> {
    /// First block in the span, length and address of a run as far as it lies in the span.
    fn clip(&self, run: &Run) -> (u32, u32, u64) {
        let from = run.lblk.0.max(self.start);
        let to = (run.lblk.0 + run.len).min(self.start + SPAN_BLOCKS);
        (
            from - self.start,
            to - from,
            run.pblk.0 + u64::from(from - run.lblk.0),
        )
    }

    /// Lowest and highest address.
    fn bounds(&self) -> (u64, u64) {
        let clipped = || self.runs.iter().map(|run| self.clip(run));
        let lowest = clipped().map(|(_, _, pblk)| pblk).min();
        let highest = clipped()
            .map(|(_, len, pblk)| pblk + u64::from(len) - 1)
            .max();
        (lowest.unwrap_or(0), highest.unwrap_or(0))
    }

    fn few(&self, base: u64) -> Option<Few> {
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

    fn narrow(&self, base: u64) -> Narrow {
        let leaf: Narrow = [const { AtomicU32::new(0) }; SPAN_BLOCKS as usize];
        self.for_each(|block, pblk, unwritten| {
            leaf[block].store(entry_of(pblk - base, unwritten), Ordering::Relaxed);
        });
        leaf
    }

    fn wide(&self) -> Wide {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs from a list, as an extent tree would give them.
    struct Listed(Vec<Run>);

    impl RunSource for Listed {
        fn runs(&self, first: Lblk, last: Lblk, emit: &mut dyn FnMut(Run)) -> Result<()> {
            let overlaps = |run: &&Run| {
                run.lblk.0 <= last.0
                    && u64::from(run.lblk.0) + u64::from(run.len) > u64::from(first.0)
            };
            self.0.iter().filter(overlaps).for_each(|run| emit(*run));
            Ok(())
        }
    }

    impl Listed {
        /// What one block is, by looking at every run.
        fn block(&self, lblk: u32) -> (MapKind, u64) {
            let inside = |run: &&Run| run.lblk.0 <= lblk && lblk - run.lblk.0 < run.len;
            match self.0.iter().find(inside) {
                None => (MapKind::Hole, 0),
                Some(run) => {
                    let kind = if run.unwritten {
                        MapKind::Unwritten
                    } else {
                        MapKind::Mapped
                    };
                    (kind, run.pblk.0 + u64::from(lblk - run.lblk.0))
                }
            }
        }
    }

    fn run(lblk: u32, len: u32, pblk: u64, unwritten: bool) -> Run {
        Run {
            lblk: Lblk(lblk),
            len,
            pblk: Pblk(pblk),
            unwritten,
        }
    }

    /// Looks a block up, loading its region first if it must.
    fn lookup(map: &ExtentMap, source: &Listed, lblk: u32, want: u32) -> Mapping {
        match map.lookup(Lblk(lblk), want) {
            Ok(mapping) => mapping,
            Err(NotCached) => {
                map.load(Lblk(lblk), source)
                    .expect("the list has no damage");
                map.lookup(Lblk(lblk), want).expect("loaded a moment ago")
            }
        }
    }

    #[test]
    fn lookup_before_load_is_not_cached() {
        let map = ExtentMap::new();
        assert_eq!(map.lookup(Lblk(5), 1), Err(NotCached));
        assert_eq!(map.lookup(Lblk(u32::MAX), 1), Err(NotCached));
    }

    #[test]
    fn failed_load_stays_uncached() {
        struct Broken;
        impl RunSource for Broken {
            fn runs(&self, _: Lblk, _: Lblk, _: &mut dyn FnMut(Run)) -> Result<()> {
                Err(crate::Error::Invalid("broken".into()))
            }
        }
        let map = ExtentMap::new();
        assert!(map.load(Lblk(0), &Broken).is_err());
        assert_eq!(map.lookup(Lblk(0), 1), Err(NotCached));
    }

    #[test]
    fn contiguous_file_is_one_mapping_without_a_node() {
        let source = Listed(vec![run(0, 1000, 5000, false)]);
        let map = ExtentMap::new();
        assert_eq!(
            lookup(&map, &source, 10, u32::MAX),
            Mapping {
                lblk: Lblk(10),
                len: 990,
                kind: MapKind::Mapped,
                pblk: Pblk(5010)
            }
        );
        assert!(map.first.node.get().is_none());
        assert_eq!(lookup(&map, &source, 1000, 7).kind, MapKind::Hole);
    }

    #[test]
    fn every_form_of_leaf_gives_what_the_runs_say() {
        let far = 1u64 << 40;
        let few = vec![
            run(0, 1, far, false),
            run(1, 1, 3, true),
            run(5, 2, far + 9, false),
        ];
        let scattered = |scale: u64| -> Vec<Run> {
            let one = |i: u32| {
                run(
                    3 + i * 2,
                    1,
                    7 + u64::from(i * 37 % 101) * scale,
                    i.is_multiple_of(3),
                )
            };
            (0..101).map(one).collect()
        };
        for runs in [few, scattered(1), scattered(far)] {
            let source = Listed(runs);
            let map = ExtentMap::new();
            for lblk in 0..SPAN_BLOCKS + 3 {
                let mapping = lookup(&map, &source, lblk, 1);
                let (kind, pblk) = source.block(lblk);
                assert_eq!(mapping.kind, kind, "block {lblk}");
                assert!(
                    kind == MapKind::Hole || mapping.pblk.0 == pblk,
                    "block {lblk}"
                );
                let written = (kind == MapKind::Mapped).then_some(pblk);
                assert_eq!(map.written_run(lblk, 0), written);
                assert_eq!(map.written_block(lblk), written);
            }
        }
    }

    #[test]
    fn last_block_of_the_largest_file_is_found() {
        let source = Listed(vec![run(u32::MAX - 1, 1, 77, false)]);
        let map = ExtentMap::new();
        assert_eq!(lookup(&map, &source, u32::MAX - 1, 10).pblk, Pblk(77));
        assert_eq!(lookup(&map, &source, u32::MAX - 1, 10).len, 1);
    }

    #[test]
    fn fragmented_file_costs_at_most_4_1_bytes_per_block() {
        let node = size_of::<Node>() + size_of::<[AtomicU64; 1 << NODE_BITS]>();
        let leaves = (1 << NODE_BITS) * size_of::<Narrow>();
        let bytes = (node + leaves) as f64 / f64::from(REGION_BLOCKS);
        assert!(bytes <= 4.1, "{bytes} bytes per block");
    }

    prop_compose! {
        /// Ascending runs over a few regions, fragmented here and long there.
        fn any_runs()(steps in prop::collection::vec((0u32..900, 1u32..1200, 1u64..1 << 33, any::<bool>(), 0u8..8), 1..60)) -> Vec<Run> {
            let mut at = 0u32;
            steps.into_iter().map(|(gap, len, pblk, unwritten, scale)| {
                let scale = if scale == 0 { 300 } else { 1 };
                let lblk = at + gap * u32::from(scale > 1 || gap > 400);
                at = lblk + len * scale;
                run(lblk, len * scale, pblk, unwritten)
            }).collect()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn any_lookup_agrees_with_the_runs(runs in any_runs(), probes in prop::collection::vec((any::<prop::sample::Index>(), 0u32..2000, 1u32..5000), 1..50)) {
            let source = Listed(runs);
            let map = ExtentMap::new();
            for (index, offset, want) in probes {
                let lblk = index.get(&source.0).lblk.0.saturating_add(offset);
                let mapping = lookup(&map, &source, lblk, want);
                prop_assert!(mapping.len >= 1 && mapping.len <= want);
                for step in 0..mapping.len {
                    let (kind, pblk) = source.block(lblk + step);
                    prop_assert_eq!(mapping.kind, kind);
                    prop_assert!(kind == MapKind::Hole || mapping.pblk.0 + u64::from(step) == pblk);
                }
            }
        }
    }
}
