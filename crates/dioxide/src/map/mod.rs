//! The extent map: which blocks of a file lie where, in memory.
//!
//! It answers one question on every request, so its cost is the engine's cost. A lookup is a few
//! dependent loads, takes no lock, writes no memory, and does not depend on the number of
//! extents:
//!
//! - a **region** is 2^18 blocks (1 GiB of 4 KiB blocks). A region that is one run, or nothing but
//!   hole, is one word. Otherwise it has a node of
//! - 512 **spans** of 512 blocks each. A span that is one run or hole, or hole behind one run, is one word; one that is two
//!   runs is a word and the distance of the second. Otherwise it has a leaf of
//! - 512 block addresses, four bytes each, relative to a base; or, while a span that was never
//!   changed has at most 32 runs and holes, a list of them that is searched by comparing with all at once.
//!   Block by block, a moderately fragmented file's map would not stay in the cache beside the data.
//!
//! A region with more runs than such lists hold is **flat** when it is read: block by block from its start to its
//! end, in one array, so that a lookup does without the span, whose word is in no near cache either.
//! Such arrays lie in large pages ([`Table`](dioxide_block::mem::Table)). One with four runs and more in each span, on average, is
//! **lines** if its runs are few and near enough for half a cache line per quarter of a span, beside the leaves; or
//! **near** if most of its blocks lie near their neighbours: a byte per block, and leaves beside for what that cannot say. Otherwise
//! it is **lists**, one for each span, as long as they hold the runs. A change makes a node of spans of any of them.
//!
//! A fully fragmented file so costs at most 4.1 bytes per block as it is read, and up to 7 where it is changed; a contiguous one next to nothing. Regions
//! are read from the disk at their first use, by [`load`]; until then a lookup answers that the
//! mapping is not cached, which no-wait callers turn into EAGAIN. Whoever changes the tree on the disk
//! changes what is cached of it as well, under the map's lock ([`change`]).
//!
//! | Module | Holds |
//! |---|---|
//! | [`word`] | words and entries |
//! | [`region`], [`node`] | the two levels, and finding a block in them |
//! | [`leaf`], [`line`], [`near`], [`live`] | leaves made from the disk's runs, and by changes |
//! | [`change`] | the lock, and every transition |
//!
//! Invariants: everything that a word leads to was filled in before the word was stored, and is not
//! freed before the map is. What a reader finds by a word that has changed since, was or is
//! true of that block.
//!
//! Rejected: a sorted array with binary search (a lookup among 262,144 extents costs 700 ns once
//! 4 KiB copies have pushed its nodes out of the cache), and a last-extent hint per handle (two
//! comparisons that miss on every random read of a fragmented file, and shared writes when threads
//! share a handle).

pub(crate) mod change;
#[cfg(test)]
mod change_tests;
#[cfg(not(loom))]
pub(crate) mod indirect;
mod leaf;
mod line;
mod live;
#[cfg(not(loom))]
pub(crate) mod load;
mod near;
mod node;
mod region;
#[cfg(not(loom))]
pub(crate) mod tree;
mod word;

pub(crate) use change::MapGuard;

use crate::Result;
use crate::sync::rank::MapLock;
use dioxide_format::types::{Lblk, Pblk};
use region::Region;
use std::sync::OnceLock;
use word::Piece;

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

impl Run {
    fn last_address(&self) -> u64 {
        self.pblk.0 + u64::from(self.len) - 1
    }
}

/// Reads a file's runs from the disk.
pub(crate) trait RunSource {
    /// Calls `emit` for every run that overlaps blocks `first ..= last`, in ascending order, not
    /// overlapping, each clipped or not. Validates what it reads.
    fn runs(&self, first: Lblk, last: Lblk, emit: &mut dyn FnMut(Run)) -> Result<()>;
}

/// A file's extent map.
#[derive(Debug)]
pub(crate) struct ExtentMap {
    /// Region 0, then regions 1, 2..4, 4..8, and so on, each group made when it is first loaded.
    first: Region,
    rest: [OnceLock<Box<[Region]>>; (32 - REGION_BITS) as usize],
    /// Held by whoever loads or changes. Guards nothing that readers wait for.
    change: MapLock,
}

impl ExtentMap {
    /// An empty map: nothing is cached.
    pub(crate) fn new() -> ExtentMap {
        ExtentMap {
            first: Region::new(),
            rest: [const { OnceLock::new() }; (32 - REGION_BITS) as usize],
            change: MapLock::new(()),
        }
    }

    /// Whether it takes no memory beside its own.
    pub(crate) fn is_bare(&self) -> bool {
        self.first.node.get().is_none() && self.rest.iter().all(|regions| regions.get().is_none())
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
        region.piece(lblk % REGION_BLOCKS).ok_or(NotCached)
    }

    /// Where `lblk` lies on the device, if it is a written block and the map is in memory.
    #[inline(always)]
    pub(crate) fn written_block(&self, lblk: u32) -> Option<u64> {
        let region = self.region(lblk >> REGION_BITS)?;
        region.written_block(lblk % REGION_BLOCKS)
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
        let want = want.min((u32::MAX - lblk).max(1));
        let mut len = piece.len;
        while len < want {
            let at = lblk + len;
            let region = self.region(at >> REGION_BITS);
            let Some(next) = region.and_then(|region| region.run_from(at % REGION_BLOCKS)) else {
                break;
            };
            let continues = next.kind == piece.kind
                && (next.kind == MapKind::Hole || next.pblk == piece.pblk + u64::from(len));
            if !continues {
                break;
            }
            // All blocks together are one more than a length can say.
            len = len.saturating_add(next.len);
        }
        len.min(want)
    }

    /// Reads the region that holds `lblk` from the disk, unless it is there. Blocks.
    ///
    /// # Errors
    /// What `source` finds wrong; the region stays uncached then.
    pub(crate) fn load(&self, lblk: Lblk, source: &dyn RunSource) -> Result<()> {
        self.lock().load(lblk, source)
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::leaf::Few;
    use super::line::Line;
    use super::near::Near;
    use super::node::Node;
    use super::word::Narrow;
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU64;

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
    fn hole_of_all_blocks_is_as_long_as_a_length_can_be() {
        let map = ExtentMap::new();
        for number in 0..1 << (32 - REGION_BITS) {
            map.load(Lblk(number << REGION_BITS), &Listed(Vec::new()))
                .expect("the list has no damage");
        }
        for (lblk, len) in [
            (0, u32::MAX),
            (1, u32::MAX - 1),
            (u32::MAX - 1, 1),
            (u32::MAX, 1),
        ] {
            let mapping = map.lookup(Lblk(lblk), u32::MAX).expect("it was loaded");
            assert_eq!((mapping.kind, mapping.len), (MapKind::Hole, len));
        }
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
        let beside_a_long_run = scattered(1)
            .into_iter()
            .chain([run(1024, 9000, 1 << 20, false)])
            .collect();
        for runs in [few, scattered(1), beside_a_long_run, scattered(far)] {
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
        // And others beside for every second span.
        let near = (1 << NODE_BITS) * size_of::<Near>() + leaves / 2;
        let lists = (1 << NODE_BITS) * size_of::<Few>();
        let lines = (1 << NODE_BITS) * size_of::<Line>() + lists / 2 + leaves / 2;
        for leaves in [leaves, near, lines] {
            let bytes = (node + leaves) as f64 / f64::from(REGION_BLOCKS);
            assert!(bytes <= 4.1, "{bytes} bytes per block");
        }
    }

    prop_compose! {
        /// Ascending runs over a few regions, fragmented here and long there.
        fn any_runs()(steps in prop::collection::vec((0u32..900, 1u32..1200, 1u64..1 << 33, any::<bool>(), 0u8..8), 1..60), near in any::<bool>()) -> Vec<Run> {
            let mut at = 0u32;
            steps.into_iter().map(|(gap, len, pblk, unwritten, scale)| {
                let scale = if scale == 0 { 300 } else { 1 };
                let lblk = at + gap * u32::from(scale > 1 || gap > 400);
                let pblk = if near { pblk % 50_000 } else { pblk };
                let len = if near { len.div_ceil(8) } else { len };
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
                let written = (mapping.kind == MapKind::Mapped).then_some(mapping.pblk.0);
                prop_assert_eq!(map.written_block(lblk), written);
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
