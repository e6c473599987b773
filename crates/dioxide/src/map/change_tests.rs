//! Changes against a model, one transition at a time, at random, and beside readers.

use super::word::Word;
use super::*;
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// What one block is: 0 is a hole, otherwise twice the address, plus 1 if it is unwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block(u64);

const HOLE: Block = Block(0);

impl Block {
    fn of(run: &Run, step: u32) -> Block {
        Block((run.pblk.0 + u64::from(step)) << 1 | u64::from(run.unwritten))
    }

    fn kind(self) -> MapKind {
        match (self, self.0 & 1) {
            (HOLE, _) => MapKind::Hole,
            (_, 0) => MapKind::Mapped,
            _ => MapKind::Unwritten,
        }
    }

    fn written(self) -> Option<u64> {
        (self.kind() == MapKind::Mapped).then_some(self.0 >> 1)
    }

    fn of_mapping(mapping: &Mapping, step: u32) -> Block {
        match mapping.kind {
            MapKind::Hole => HOLE,
            kind => Block(
                (mapping.pblk.0 + u64::from(step)) << 1 | u64::from(kind == MapKind::Unwritten),
            ),
        }
    }
}

/// The tree on the disk, block by block. Blocks behind its end are a hole.
struct Model(Vec<Block>);

impl Model {
    fn new(regions: u32) -> Model {
        Model(vec![HOLE; (regions * REGION_BLOCKS) as usize])
    }

    fn set_run(&mut self, run: &Run) {
        for step in 0..run.len {
            self.0[(run.lblk.0 + step) as usize] = Block::of(run, step);
        }
    }

    fn set_hole(&mut self, blocks: Range<u64>) {
        let end = self.0.len() as u64;
        self.0[blocks.start.min(end) as usize..blocks.end.min(end) as usize].fill(HOLE);
    }
}

impl RunSource for Model {
    fn runs(&self, first: Lblk, last: Lblk, emit: &mut dyn FnMut(Run)) -> Result<()> {
        let inside = &self.0[first.0 as usize..=last.0 as usize];
        let each = (first.0..).zip(inside).filter(|(_, block)| **block != HOLE);
        each.for_each(|(lblk, block)| {
            emit(run(
                lblk,
                1,
                block.0 >> 1,
                block.kind() == MapKind::Unwritten,
            ))
        });
        Ok(())
    }
}

/// A tree with nothing in it.
struct Nothing;

impl RunSource for Nothing {
    fn runs(&self, _: Lblk, _: Lblk, _: &mut dyn FnMut(Run)) -> Result<()> {
        Ok(())
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

/// A map and what it must say.
struct Pair {
    map: ExtentMap,
    model: Model,
}

impl Pair {
    fn empty(regions: u32) -> Pair {
        Pair {
            map: ExtentMap::new(),
            model: Model::new(regions),
        }
    }

    /// One region with these runs, in memory.
    fn loaded(runs: &[Run]) -> Pair {
        let mut pair = Pair::empty(1);
        runs.iter().for_each(|run| pair.model.set_run(run));
        pair.load(0);
        pair
    }

    fn load(&self, lblk: u32) {
        self.map
            .load(Lblk(lblk), &self.model)
            .expect("the model has no damage");
    }

    fn set_run(&mut self, run: Run) {
        self.model.set_run(&run);
        self.map.lock().set_run(&run);
    }

    fn set_hole(&mut self, blocks: Range<u64>) {
        self.model.set_hole(blocks.clone());
        self.map.lock().set_hole(blocks);
    }

    fn is_cached(&self, lblk: u32) -> bool {
        self.map.lookup(Lblk(lblk), 1).is_ok()
    }

    /// Every lookup of the blocks must agree with the model.
    fn check(&self, blocks: Range<u32>) {
        let mut at = blocks.start;
        while at < blocks.end {
            let Ok(mapping) = self.map.lookup(Lblk(at), blocks.end - at) else {
                assert_eq!(self.map.written_block(at), None);
                at = (at | (REGION_BLOCKS - 1)) + 1;
                continue;
            };
            for step in 0..mapping.len {
                self.check_block(at + step, Block::of_mapping(&mapping, step));
            }
            self.check_run(at, mapping.len);
            at += mapping.len;
        }
    }

    fn check_block(&self, lblk: u32, found: Block) {
        let expected = self.model.0[lblk as usize];
        assert_eq!(found, expected, "block {lblk}");
        assert_eq!(self.map.written_block(lblk), expected.written(), "{lblk}");
    }

    fn check_run(&self, lblk: u32, len: u32) {
        let expected = self.model.0[lblk as usize];
        assert_eq!(self.map.written_run(lblk, len - 1), expected.written());
    }

    fn check_all(&self) {
        self.check(0..self.model.0.len() as u32);
    }

    /// That the short way to each of the first `blocks` blocks finds them.
    fn check_written_blocks(&self, blocks: u32) {
        for block in 0..blocks {
            let written = self.model.0[block as usize].written();
            assert_eq!(self.map.written_block(block), written, "block {block}");
        }
    }

    fn region_word(&self) -> Word {
        Word(self.map.first.word.load(Ordering::Relaxed))
    }

    /// The word of a span of region 0.
    fn span_word(&self, span: usize) -> Word {
        let node = self.map.first.node.get().expect("it was changed in part");
        Word(node.spans[span].load(Ordering::Relaxed))
    }
}

#[cfg_attr(not(loom), test)]
fn set_in_unread_region_leaves_it_to_the_load() {
    let mut pair = Pair::empty(4);
    pair.set_run(run(5, 10, 100, false));
    pair.set_run(run(REGION_BLOCKS * 2 - 5, 10, 200, false));
    assert!(!pair.is_cached(5));
    pair.load(2 * REGION_BLOCKS);
    pair.set_run(run(REGION_BLOCKS * 2 - 5, 10, 300, true));
    assert!(!pair.is_cached(REGION_BLOCKS * 2 - 1) && !pair.is_cached(REGION_BLOCKS * 3));
    pair.check_all();
    (0..4).for_each(|region| pair.load(region * REGION_BLOCKS));
    pair.check_all();
}

#[cfg_attr(not(loom), test)]
fn load_by_the_guard_s_holder_sees_no_deadlock() {
    let mut pair = Pair::empty(1);
    pair.model.set_run(&run(3, 4, 100, false));
    let guard = pair.map.lock();
    guard.load(Lblk(9), &pair.model).expect("no damage");
    guard.set_run(&run(7, 2, 104, false));
    drop(guard);
    pair.model.set_run(&run(7, 2, 104, false));
    pair.check_all();
}

#[cfg_attr(not(loom), test)]
fn appends_to_a_run_raise_its_length_alone() {
    let mut pair = Pair::loaded(&[]);
    for step in 0..1000 {
        pair.set_run(run(step, 1, 7000 + u64::from(step), false));
        assert_eq!(pair.map.written_block(step), Some(7000 + u64::from(step)));
    }
    pair.set_run(run(900, 200, 7900, false));
    pair.check_all();
    assert!(pair.map.first.node.get().is_none());
}

#[cfg_attr(not(loom), test)]
fn truncation_of_a_run_lowers_its_length_alone() {
    let mut pair = Pair::loaded(&[run(0, 1000, 7000, true)]);
    pair.set_hole(2000..1 << 32);
    pair.set_hole(600..1 << 32);
    pair.check_all();
    pair.set_hole(0..1 << 32);
    pair.check_all();
    pair.set_run(run(0, 300, 7000, true));
    pair.check_all();
    assert!(pair.map.first.node.get().is_none());
}

#[cfg_attr(not(loom), test)]
fn region_emptied_and_filled_elsewhere_gets_a_node() {
    let mut pair = Pair::loaded(&[run(0, 1000, 7000, false)]);
    pair.set_hole(0..1 << 32);
    pair.set_run(run(0, 2000, 9000, false));
    pair.check_all();
    assert_eq!(pair.region_word().tag(), Word::NODE);
    // Whoever still has the word of the first run must find no length that was not its own.
    assert_eq!(pair.map.first.run_blocks.load(Ordering::Relaxed), 0);
}

#[cfg_attr(not(loom), test)]
fn run_in_the_middle_of_a_hole_region_gets_a_node() {
    let mut pair = Pair::loaded(&[]);
    pair.set_run(run(513, 3, 40, true));
    pair.check_all();
    assert_eq!(pair.region_word().tag(), Word::NODE);
}

#[cfg_attr(not(loom), test)]
fn conversion_in_the_middle_of_a_region_run_keeps_the_rest() {
    let mut pair = Pair::loaded(&[run(0, REGION_BLOCKS - 7, 40, true)]);
    pair.set_run(run(700, 1, 740, false));
    pair.check_all();
    assert_eq!(pair.span_word(0), Word::new(Word::UNWRITTEN, 40));
    assert_eq!(pair.span_word(1).tag(), Word::LIVE);
    assert_eq!(pair.span_word(511).tag(), Word::FEW);
    pair.set_run(run(0, REGION_BLOCKS - 7, 40, false));
    pair.check_all();
    assert_eq!(pair.span_word(1), Word::new(Word::MAPPED, 552));
}

#[cfg_attr(not(loom), test)]
fn hole_in_the_middle_of_a_region_run_keeps_both_ends() {
    let mut pair = Pair::loaded(&[run(0, 3000, 40, false)]);
    pair.set_hole(700..1600);
    pair.check_all();
    assert_eq!(pair.map.written_block(699), Some(739));
    assert_eq!(pair.map.written_block(1600), Some(1640));
}

#[cfg_attr(not(loom), test)]
fn span_that_fills_up_says_so_in_its_word_and_keeps_its_leaf() {
    let mut pair = Pair::loaded(&[run(512, 2, 10_000, false)]);
    for block in [5, 2, 3, 511, 510, 4] {
        pair.set_run(run(512 + block, 1, 10_000 + u64::from(block), false));
        pair.check_all();
    }
    let live = pair.span_word(1);
    assert_eq!(live.tag(), Word::LIVE);
    pair.set_run(run(512 + 6, 504, 10_006, false));
    pair.check_all();
    assert_eq!(pair.span_word(1), Word::new(Word::MAPPED, 10_000));
    pair.set_hole(600..601);
    pair.check_all();
    assert_eq!(pair.span_word(1), live);
    pair.set_hole(512..600);
    pair.set_hole(601..1024);
    pair.check_all();
    assert_eq!(pair.span_word(1), Word::HOLE);
}

#[cfg_attr(not(loom), test)]
fn span_that_only_grows_and_shrinks_needs_no_leaf() {
    let mut pair = Pair::loaded(&[run(0, 1, 5_000, false), run(2048, 1, 6_000, false)]);
    let begun = |blocks| Word::begun(blocks, 10_000);
    for (from, to) in [(0, 3), (3, 4), (4, 300), (300, 511), (511, 512)] {
        pair.set_run(run(512 + from, to - from, 10_000 + u64::from(from), false));
        pair.check_all();
        let full = Word::new(Word::MAPPED, 10_000);
        let expected = if to == 512 { full } else { begun(to) };
        assert_eq!(pair.span_word(1), expected);
    }
    for left in [500, 7] {
        pair.set_hole(u64::from(512 + left)..2048);
        pair.check_all();
        assert_eq!(pair.span_word(1), begun(left));
    }
    // Written over by itself.
    pair.set_run(run(512 + 2, 3, 10_002, false));
    pair.check_all();
    assert_eq!(pair.span_word(1), begun(7));
    pair.set_hole(512..2048);
    pair.check_all();
    assert_eq!(pair.span_word(1), Word::HOLE);
}

#[cfg_attr(not(loom), test)]
fn span_that_is_begun_gets_a_leaf_for_what_its_word_cannot_say() {
    let changes = [
        run(512 + 11, 1, 10_011, false),
        run(512 + 10, 1, 20_000, false),
        run(512 + 10, 1, 10_010, true),
        run(512 + 3, 1, 10_003, true),
        run(512 + 9, 2, 20_000, false),
    ];
    for change in changes {
        let mut pair = Pair::loaded(&[run(0, 1, 5_000, false)]);
        pair.set_run(run(512, 10, 10_000, false));
        assert_eq!(pair.span_word(1), Word::begun(10, 10_000));
        pair.set_run(change);
        pair.check_all();
        assert_eq!(pair.span_word(1).tag(), Word::LIVE);
    }
    let mut pair = Pair::loaded(&[run(0, 1, 5_000, false)]);
    pair.set_run(run(512, 10, 10_000, false));
    pair.set_hole(512..513);
    pair.check_all();
    assert_eq!(pair.span_word(1).tag(), Word::LIVE);
}

#[cfg_attr(not(loom), test)]
fn span_completed_by_its_first_change_needs_no_leaf() {
    let mut pair = Pair::loaded(&[run(512, 500, 10_000, false)]);
    assert_eq!(pair.span_word(1).tag(), Word::FEW);
    pair.set_run(run(1012, 12, 10_500, false));
    pair.check_all();
    assert_eq!(pair.span_word(1), Word::new(Word::MAPPED, 10_000));
}

/// A span of single blocks, every other one of it backed.
fn scattered(far: u64) -> Vec<Run> {
    let one = |i: u32| {
        run(
            i * 2,
            1,
            1 + u64::from(i * 37 % 101) * 5 + u64::from(i % 2) * far,
            i.is_multiple_of(3),
        )
    };
    (0..256).map(one).collect()
}

#[cfg_attr(not(loom), test)]
fn block_by_block_leaves_are_changed_in_place() {
    for (far, tag) in [(0, Word::NARROW), (1 << 40, Word::WIDE)] {
        let mut pair = Pair::loaded(&scattered(far));
        let word = pair.span_word(0);
        assert_eq!(word.tag(), tag);
        pair.set_run(run(5, 20, 3000, true));
        pair.set_run(run(7, 2, 3002, false));
        pair.set_hole(100..131);
        pair.check_all();
        assert_eq!(pair.span_word(0), word);
        pair.set_hole(0..512);
        pair.set_run(run(9, 1, 17, false));
        pair.check_all();
        assert_eq!(pair.span_word(0).tag(), Word::LIVE);
    }
}

#[cfg_attr(not(loom), test)]
fn region_in_more_runs_than_lists_hold_is_flat_until_it_changes() {
    let runs: Vec<Run> = (0..200)
        .map(|i| run(i * 5, 2, 9000 - u64::from(i) * 3, i % 7 == 0))
        .collect();
    let mut pair = Pair::loaded(&runs);
    assert_eq!(pair.region_word().tag(), Word::FLAT);
    pair.check_all();
    pair.check_written_blocks(1 << 11);
    pair.set_run(run(3, 2, 77, false));
    assert_eq!(pair.region_word().tag(), Word::NODE);
    pair.check_all();
    let mut pair = Pair::loaded(&runs);
    pair.set_hole(0..1 << 32);
    assert_eq!(pair.region_word(), Word::HOLE);
    pair.check_all();
}

#[cfg_attr(not(loom), test)]
fn region_in_many_runs_that_lists_hold_is_lists_until_it_changes() {
    // The fourth span is a hole, and the last run ends in the eighth.
    let runs: Vec<Run> = (0..90)
        .map(|i| {
            let start = i * 40 + if i < 36 { 0 } else { 600 };
            run(
                start,
                2 + i % 30,
                900_000_000 - u64::from(i) * 100_031,
                i % 7 == 0,
            )
        })
        .collect();
    let mut pair = Pair::loaded(&runs);
    assert_eq!(pair.region_word().tag(), Word::LISTS);
    pair.check_all();
    pair.check_written_blocks(10 * SPAN_BLOCKS);
    pair.set_run(run(1500, 300, 77, false));
    assert_eq!(pair.region_word().tag(), Word::NODE);
    pair.check_all();
    pair.check_written_blocks(10 * SPAN_BLOCKS);
    let mut pair = Pair::loaded(&runs);
    pair.set_hole(0..1 << 32);
    assert_eq!(pair.region_word(), Word::HOLE);
    pair.check_all();
}

#[cfg_attr(not(loom), test)]
fn region_with_one_span_of_more_runs_than_a_list_holds_is_no_lists() {
    let dense = (0..40).map(|i| run(i * 4, 2, 90_000_000 - u64::from(i) * 300, false));
    let sparse = (8..60).map(|i| run(i * 50, 25, 60_000_000 - u64::from(i) * 500_000, false));
    let pair = Pair::loaded(&dense.chain(sparse).collect::<Vec<_>>());
    assert_eq!(pair.region_word().tag(), Word::NODE);
    assert_eq!(pair.span_word(0).tag(), Word::NARROW);
    pair.check_all();
}

#[cfg_attr(not(loom), test)]
fn region_in_few_runs_near_each_other_is_lines_until_it_changes() {
    // Most quarters of spans have some runs, in any order. The third span lies elsewhere in part, the fourth is a hole, the fifth has
    // unwritten blocks, one quarter has as many runs as a line holds and one has more, one ends with a run of its last block, and the
    // first run lies in the first block of the device.
    let mut runs = vec![run(0, 1, 0, false)];
    runs.extend((1..50).map(|i| run(i * 26, 26, 60_000 - u64::from(i) * 900, false)));
    runs.push(run(1300, 90, 5_000_000, false));
    runs.extend((40..60).map(|i| run(i * 52, 40, 10_000 + u64::from(i) * 100, i % 3 == 0)));
    runs.extend((0..16).map(|i| {
        run(
            3328 + i * 16,
            16 - i / 15,
            9000 + u64::from(i * 7 % 16) * 40,
            false,
        )
    }));
    runs.push(run(3583, 1, 70_000, false));
    runs.extend((0..18).map(|i| run(3584 + i * 14, 14, 9000 + u64::from(i * 7 % 17) * 40, false)));
    runs.extend((40..340).map(|i| run(i * 100, 100, 400_000 + u64::from(i * 7 % 31) * 300, false)));
    let mut pair = Pair::loaded(&runs);
    assert_eq!(pair.region_word().tag(), Word::LINES);
    let end = 80 * SPAN_BLOCKS;
    pair.check_all();
    pair.check_written_blocks(end);
    pair.set_run(run(1290, 30, 77, false));
    assert_eq!(pair.region_word().tag(), Word::NODE);
    pair.check_all();
    pair.check_written_blocks(end);
    let mut pair = Pair::loaded(&runs);
    pair.set_hole(5..700);
    assert_eq!(pair.region_word().tag(), Word::NODE);
    pair.check_all();
    pair.check_written_blocks(end);
}

#[cfg_attr(not(loom), test)]
fn span_of_two_runs_needs_no_leaf_until_it_changes() {
    let two = |second: Run| [run(0, 700, 40_000, false), second];
    for (second, tag) in [
        (run(700, 600, 9, false), Word::PAIR),
        (run(700, 600, 40_000 + (1 << 31), false), Word::PAIR),
        // Too far, too short, unwritten, behind a hole.
        (run(700, 600, 1 << 40, false), Word::WIDE),
        (run(700, 300, 9, false), Word::FEW),
        (run(700, 600, 9, true), Word::FEW),
        (run(701, 600, 9, false), Word::FEW),
    ] {
        let pair = Pair::loaded(&two(second));
        assert_eq!(pair.span_word(1).tag(), tag, "{second:?}");
        pair.check_all();
        pair.check_written_blocks(3 * SPAN_BLOCKS);
        assert_eq!(pair.map.written_run(600, 99), Some(40_600));
        assert_eq!(pair.map.written_run(600, 100), None);
    }
    let mut pair = Pair::loaded(&two(run(700, 600, 9, false)));
    pair.set_run(run(690, 20, 100, true));
    pair.check_all();
    assert_eq!(pair.span_word(1).tag(), Word::LIVE);
    pair.set_run(run(0, 1300, 40_000, false));
    pair.check_all();
    pair.check_written_blocks(3 * SPAN_BLOCKS);
    // Whoever has the word that the region had finds what is there now.
    let node = pair.map.first.node.get().expect("it was changed in part");
    assert_eq!(node.written_in_pairs(800), Some(40_800));
}

#[cfg_attr(not(loom), test)]
fn region_of_many_pairs_needs_no_other_word_for_a_change() {
    let runs: Vec<Run> = (0..40)
        .map(|i| {
            run(
                i * 766,
                766,
                1_000_000 + u64::from(i * 7 % 40) * 2000,
                false,
            )
        })
        .collect();
    let mut pair = Pair::loaded(&runs);
    assert_eq!(pair.region_word().tag(), Word::PAIRS);
    let tags = [0, 1, 2, 3, 59].map(|span| pair.span_word(span).tag());
    let (mapped, two) = (Word::MAPPED, Word::PAIR);
    assert_eq!(tags, [mapped, two, two, mapped, Word::FEW]);
    let changes = [
        run(3000, 30, 77, true),
        run(512, 512, 90, false),
        run(30_640, 9, 3, false),
    ];
    for change in changes {
        pair.set_run(change);
        pair.check_all();
        pair.check_written_blocks(62 * SPAN_BLOCKS);
        assert_eq!(pair.region_word().tag(), Word::PAIRS);
    }
    pair.set_hole(600..3000);
    pair.check_all();
    pair.check_written_blocks(62 * SPAN_BLOCKS);
}

/// Most blocks lie near their neighbours. The third span has some that do not, the fourth is a hole, the fifth has unwritten
/// blocks, and a run of the sixth goes on into the seventh.
fn mostly_near() -> Vec<Run> {
    let pair = |i: u32, at: u64| run(i * 4, 3, at - u64::from(i % 2) * 30, false);
    let near = |range: Range<u32>| range.map(move |i| pair(i, 9000 + u64::from(i) * 5));
    let far = (256..300).map(|i| pair(i, 1_000_000 + u64::from(i) * 100));
    let unwritten = (600..640).map(|i| Run {
        unwritten: i % 5 == 0,
        ..pair(i, 20_000 + u64::from(i) * 5)
    });
    let long = run(640 * 4, 900, 40_000, false);
    let end = (870..1100).map(|i| pair(i, 50_000 + u64::from(i) * 17));
    near(0..256)
        .chain(far)
        .chain(near(300..384))
        .chain(unwritten)
        .chain([long])
        .chain(end)
        .collect()
}

#[cfg_attr(not(loom), test)]
fn region_of_blocks_near_each_other_has_bytes_for_them_until_it_changes() {
    let runs = mostly_near();
    let mut pair = Pair::loaded(&runs);
    assert_eq!(pair.region_word().tag(), Word::NEAR);
    let tags = [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|span| pair.span_word(span).tag());
    let (near, narrow) = (Word::NEAR, Word::NARROW);
    let expected = [near, near, narrow, near, narrow, near, near, near, near];
    assert_eq!(tags, expected);
    pair.check_all();
    pair.check_written_blocks(10 * SPAN_BLOCKS);
    // All of a run that goes on into the next span is told at once.
    assert_eq!(pair.map.written_run(2561, 898), Some(40_001));
    assert_eq!(pair.map.written_run(2561, 899), None);
    for (lblk, len) in [(1500, 300), (0, 1), (SPAN_BLOCKS, SPAN_BLOCKS), (1030, 2)] {
        pair.set_run(run(lblk, len, 77_000 + u64::from(lblk), false));
        assert_eq!(pair.region_word().tag(), Word::NODE);
        pair.check_all();
        pair.check_written_blocks(10 * SPAN_BLOCKS);
    }
    let mut pair = Pair::loaded(&runs);
    pair.set_hole(5..700);
    assert_eq!(pair.region_word().tag(), Word::NODE);
    pair.check_all();
    pair.check_written_blocks(10 * SPAN_BLOCKS);
    let mut pair = Pair::loaded(&runs);
    pair.set_hole(0..1 << 32);
    assert_eq!(pair.region_word(), Word::HOLE);
    pair.check_all();
}

/// Their arrays lie in one large page.
#[cfg_attr(not(loom), test)]
fn whole_regions_that_are_flat_hold_what_they_are_told_while_others_come_and_go() {
    let of = |by: u64| {
        let mut pair = Pair::empty(2);
        for block in 0..2 * REGION_BLOCKS {
            // No two neighbours lie near each other.
            let one = run(block, 1, by + u64::from(block.reverse_bits() >> 13), false);
            pair.model.set_run(&one);
        }
        pair.load(0);
        pair.load(REGION_BLOCKS);
        assert_eq!(pair.region_word().tag(), Word::FLAT);
        pair
    };
    let mut pairs = [of(7), of(1 << 20), of(1 << 22)];
    pairs[1] = of(1 << 21);
    pairs[0].set_run(run(REGION_BLOCKS - 1, 2, 3, true));
    drop(of(9));
    for pair in &pairs {
        for block in 0..2 * REGION_BLOCKS {
            let written = pair.model.0[block as usize].written();
            assert_eq!(pair.map.written_block(block), written, "block {block}");
        }
    }
}

#[cfg_attr(not(loom), test)]
fn addresses_too_far_apart_for_entries_get_a_wide_leaf() {
    let top = (1 << 48) - 1;
    let far = 1 << 45;
    for runs in [vec![], scattered(0), vec![run(0, 512, 5, false)]] {
        let mut pair = Pair::loaded(&runs);
        pair.set_run(run(3, 5, far, true));
        pair.set_run(run(9, 1, 1, false));
        pair.set_run(run(511, 1, top, false));
        pair.check_all();
        let word = pair.span_word(0);
        assert_eq!(word.tag(), Word::LIVE_WIDE);
        pair.set_hole(0..512);
        pair.set_run(run(3, 1, far, false));
        pair.set_run(run(4, 1, 2, false));
        pair.check_all();
        assert_eq!(pair.span_word(0), word);
    }
}

#[cfg_attr(not(loom), test)]
fn addresses_at_the_ends_of_an_entry_s_reach_are_kept() {
    let lowest = 1u64 << 40;
    let reach = (1u64 << 31) - 2;
    for (pblk, tag) in [
        (lowest + reach, Word::LIVE),
        (lowest + reach + 1, Word::LIVE_WIDE),
    ] {
        let mut pair = Pair::loaded(&[run(1, 1, lowest, false), run(3, 1, pblk, true)]);
        pair.set_run(run(5, 1, lowest + 1, true));
        pair.check_all();
        assert!([tag, Word::WIDE].contains(&pair.span_word(0).tag()));
    }
}

#[cfg_attr(not(loom), test)]
fn region_emptied_and_used_again_shows_nothing_of_before() {
    let mut pair = Pair::loaded(&scattered(0));
    pair.set_run(run(2000, 2000, 99_000, false));
    pair.set_hole(0..1 << 32);
    assert_eq!(pair.region_word(), Word::HOLE);
    pair.check_all();
    pair.set_run(run(0, 10, 50_000, false));
    assert_eq!(pair.region_word().tag(), Word::NODE);
    pair.set_run(run(3000, 1, 1, true));
    pair.check_all();
}

#[cfg_attr(not(loom), test)]
fn old_word_of_a_span_leads_to_nothing_that_was_never_there() {
    let (first, second) = (1u64 << 40, 1u64 << 30);
    let mut pair = Pair::loaded(&[run(1, 1, first, false)]);
    pair.set_run(run(3, 1, first + 2, false));
    let old = pair.span_word(0);
    assert_eq!(old.tag(), Word::LIVE);
    pair.set_hole(0..512);
    pair.set_run(run(2, 5, second, false));
    pair.set_run(run(8, 1, second + 90, true));
    pair.check_all();
    let node = pair.map.first.node.get().expect("it was changed in part");
    for block in 0..512 {
        let piece = node.piece_of(0, old, block);
        let was = piece.kind == MapKind::Mapped && piece.pblk + 1 == first + u64::from(block);
        assert!(piece.kind == MapKind::Hole || was, "block {block}");
    }
}

#[cfg_attr(not(loom), test)]
fn every_span_can_have_a_leaf_of_its_own() {
    let mut pair = Pair::loaded(&[]);
    for span in (0..512).rev() {
        pair.set_run(run(
            span * 512 + span % 511,
            2,
            u64::from(span) * 512 + 9,
            span % 3 == 0,
        ));
    }
    pair.check_all();
    let words: std::collections::HashSet<_> = (0..512).map(|s| pair.span_word(s).0).collect();
    assert_eq!(words.len(), 512);
    for span in 0..512 {
        pair.set_run(run(span * 512, 1, 1 << 45, false));
    }
    pair.check_all();
}

#[cfg_attr(not(loom), test)]
fn last_block_of_the_largest_file_is_set() {
    let map = ExtentMap::new();
    map.load(Lblk(0), &Nothing).expect("no damage");
    map.load(Lblk(u32::MAX - 1), &Nothing).expect("no damage");
    map.lock().set_run(&run(u32::MAX - 4, 4, 70, false));
    assert_eq!(map.written_block(u32::MAX - 1), Some(73));
    assert_eq!(map.written_run(u32::MAX - 4, 3), Some(70));
    map.lock().set_hole(0..1 << 32);
    assert_eq!(map.written_block(u32::MAX - 1), None);
    assert_eq!(
        map.lookup(Lblk(u32::MAX - 1), 1).map(|found| found.kind),
        Ok(MapKind::Hole)
    );
}

#[cfg_attr(not(loom), test)]
fn nothing_is_set_by_an_empty_range() {
    let mut pair = Pair::loaded(&[run(0, 10, 5, false)]);
    pair.set_hole(3..3);
    pair.set_hole(u64::from(REGION_BLOCKS)..u64::from(REGION_BLOCKS));
    pair.check_all();
}

#[derive(Clone, Debug)]
enum Step {
    Load(u32),
    Run(Run),
    Hole(Range<u64>),
}

const REGIONS: u32 = 3;
const END: u32 = REGIONS * REGION_BLOCKS;

prop_compose! {
    /// Where changes begin: near few places, so that they meet.
    fn any_start()(region in 0..REGIONS, span in prop::sample::select(vec![0u32, 0, 1, 2, 511]), block in 0u32..512, edge in any::<bool>()) -> u32 {
        region * REGION_BLOCKS + span * 512 + if edge { 0 } else { block }
    }
}

fn any_len() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 1u32..8,
        4 => 1u32..600,
        2 => (1u32..4).prop_map(|spans| spans * 512),
        1 => 1u32..REGION_BLOCKS * 2,
    ]
}

prop_compose! {
    /// Most addresses are where their block would be in one long run, so that runs and spans grow
    /// together; some lie elsewhere or far away.
    fn any_run()(start in any_start(), len in any_len(), place in 0u64..8, unwritten in any::<bool>()) -> Run {
        let base = match place { 0..5 => 1000, 5 => 1 << 21, 6 => 1 << 33, _ => 1 << 46 };
        run(start, len.min(END - start), base + u64::from(start), unwritten)
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..REGIONS).prop_map(|region| Step::Load(region * REGION_BLOCKS)),
        12 => any_run().prop_map(Step::Run),
        4 => (any_start(), any_len()).prop_map(|(start, len)| Step::Hole(start.into()..u64::from(start) + u64::from(len))),
        1 => any_start().prop_map(|start| Step::Hole(start.into()..1 << 32)),
        1 => Just(Step::Hole(0..1 << 32)),
    ]
}

impl Pair {
    fn step(&mut self, step: &Step) {
        let (from, to) = match step {
            Step::Load(lblk) => return self.load(*lblk),
            Step::Run(run) => {
                self.set_run(*run);
                (run.lblk.0, run.lblk.0 + run.len)
            }
            Step::Hole(blocks) => {
                self.set_hole(blocks.clone());
                (blocks.start as u32, blocks.end.min(END.into()) as u32)
            }
        };
        // What was not to change is looked at as well.
        self.check(from.saturating_sub(600)..from.saturating_add(600).min(END));
        self.check(to.saturating_sub(600)..to.saturating_add(600).min(END));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[cfg_attr(not(loom), test)]
    fn any_changes_agree_with_the_model(first in any_run(), steps in prop::collection::vec(any_step(), 1..60)) {
        let mut pair = Pair::empty(REGIONS);
        // A region that is one run at first.
        pair.model.set_run(&Run { lblk: Lblk(0), ..first });
        pair.load(0);
        steps.iter().for_each(|step| pair.step(step));
        pair.check_all();
        (0..REGIONS).for_each(|region| pair.load(region * REGION_BLOCKS));
        pair.check_all();
    }
}

/// What is known of the blocks of a file that is only inserted into and converted: how many steps
/// of its way each block has gone.
struct Progress {
    /// For each block the states that it goes through.
    states: Vec<Vec<Block>>,
    /// Steps that it may have begun, and that it has certainly finished.
    begun: Vec<AtomicU32>,
    done: Vec<AtomicU32>,
}

impl Progress {
    fn new(blocks: u32, first: impl Fn(u32) -> Block) -> Progress {
        let zeros = || (0..blocks).map(|_| AtomicU32::new(0)).collect();
        Progress {
            states: (0..blocks).map(|block| vec![first(block)]).collect(),
            begun: zeros(),
            done: zeros(),
        }
    }

    fn plan(&mut self, run: &Run) {
        for step in 0..run.len {
            let states = &mut self.states[(run.lblk.0 + step) as usize];
            states.push(Block::of(run, step));
        }
    }

    fn count(&self, counters: &[AtomicU32], run: &Run) {
        for counter in &counters[run.lblk.0 as usize..(run.lblk.0 + run.len) as usize] {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Which steps were done before a lookup.
    fn done(&self, block: u32) -> u32 {
        self.done[block as usize].load(Ordering::SeqCst)
    }

    /// `found` is a state that the block was in between `done` and now.
    fn verify(&self, block: u32, done: u32, is_found: impl Fn(Block) -> bool) {
        let begun = self.begun[block as usize].load(Ordering::SeqCst);
        let possible = &self.states[block as usize][done as usize..=begun as usize];
        assert!(
            possible.iter().any(|&state| is_found(state)),
            "block {block} is none of {possible:?}"
        );
    }

    fn read(&self, map: &ExtentMap, block: u32, len: u32) {
        let end = (block + len).min(self.states.len() as u32);
        let done: Vec<u32> = (block..end).map(|block| self.done(block)).collect();
        let mapping = map.lookup(Lblk(block), end - block).expect("loaded");
        for (step, done) in (0..mapping.len).zip(&done) {
            let found = Block::of_mapping(&mapping, step);
            self.verify(block + step, *done, |state| state == found);
        }
        let done_now = self.done(block);
        let written = map.written_block(block);
        self.verify(block, done_now, |state| state.written() == written);
        if let Some(pblk) = map.written_run(block, end - block - 1) {
            for (step, done) in (0..).zip(done) {
                let found = Some(pblk + u64::from(step));
                self.verify(block + step, done, |state| state.written() == found);
            }
        }
    }
}

const ROUNDS: usize = 20;

/// Calls `read` with random numbers, in two threads, while `write` runs.
fn beside_readers(read: impl Fn(u32) + Sync, write: impl FnOnce()) {
    let (read, stop, start) = (&read, &AtomicBool::new(false), &Barrier::new(3));
    std::thread::scope(|scope| {
        for seed in 1..3u32 {
            scope.spawn(move || {
                let mut random = seed;
                start.wait();
                while !stop.load(Ordering::Relaxed) {
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    read(random >> 4);
                }
            });
        }
        start.wait();
        let _stop = Stop(stop);
        write();
    });
}

/// Ends the readers even if the writer panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the schedule beside two readers, who check every answer.
fn insert_beside_readers(first: &[Run], blocks: u32, schedule: &[Run]) {
    let mut model = Model::new(1);
    first.iter().for_each(|run| model.set_run(run));
    for _ in 0..ROUNDS {
        insert_once(&model, blocks, schedule);
    }
}

fn insert_once(model: &Model, blocks: u32, schedule: &[Run]) {
    let mut progress = Progress::new(blocks, |block| model.0[block as usize]);
    schedule.iter().for_each(|run| progress.plan(run));
    let map = ExtentMap::new();
    map.load(Lblk(0), model).expect("no damage");
    beside_readers(
        |random| progress.read(&map, (random >> 6) % blocks, 1 + random % 16),
        || {
            for run in schedule {
                progress.count(&progress.begun, run);
                map.lock().set_run(run);
                progress.count(&progress.done, run);
            }
        },
    );
    for block in 0..blocks {
        let last = *progress.states[block as usize].last().expect("the first");
        assert_eq!(map.written_block(block), last.written(), "block {block}");
    }
}

#[cfg_attr(not(loom), test)]
fn readers_beside_appends_see_old_or_new() {
    // One run that grows, then goes on elsewhere.
    let one = |at: u32, base: u64| run(at, 1, base + u64::from(at), false);
    let schedule: Vec<Run> = (0..3000)
        .map(|at| one(at, if at < 1700 { 50 } else { 1 << 20 }))
        .collect();
    insert_beside_readers(&[], 3000, &schedule);
}

#[cfg_attr(not(loom), test)]
fn readers_beside_hole_fill_and_conversion_see_old_or_new() {
    // Blocks in an order that jumps about, each unwritten first, over spans of every kind.
    let mut first = vec![run(512, 100, 1 << 25, false), run(700, 20, 1 << 26, true)];
    let every_other = |i: u32| run(1024 + 2 * i, 1, (1 << 22) + u64::from(i) * 3, false);
    first.extend((0..200).map(every_other));
    first.push(run(1536, 1, 1 << 44, false));
    first.push(run(1538, 1, 9, true));
    let mut schedule = Vec::new();
    for i in 0..2560u32 {
        let at = i * 1001 % 2560;
        if !first
            .iter()
            .any(|run| (run.lblk.0..run.lblk.0 + run.len).contains(&at))
        {
            schedule.push(run(at, 1, (1 << 21) + u64::from(at), true));
        }
        if let Some(&before) = schedule
            .len()
            .checked_sub(40)
            .and_then(|at| schedule.get(at))
            && before.unwritten
        {
            schedule.push(Run {
                unwritten: false,
                ..before
            });
        }
    }
    insert_beside_readers(&first, 2560, &schedule);
}

#[cfg_attr(not(loom), test)]
fn readers_beside_whole_spans_see_old_or_new() {
    // An unwritten region is converted piece by piece, with pieces shorter and longer than a span.
    let mut schedule = Vec::new();
    let mut at = 0;
    for len in [1, 511, 512, 700, 324, 1024, 3, 2, 600]
        .into_iter()
        .cycle()
        .take(40)
    {
        schedule.push(run(at, len, 4096 + u64::from(at), false));
        at += len;
    }
    insert_beside_readers(&[run(0, REGION_BLOCKS, 4096, true)], at, &schedule);
}

const BASES: [u64; 4] = [1000, 1 << 21, 1 << 33, 1 << 46];

/// Whether blocks of this cell (64 blocks) may ever lie at this base: at each base only some are.
fn may_lie(cell: u32, base: usize) -> bool {
    !(cell as usize + base).is_multiple_of(BASES.len())
}

fn assert_was_ever_there(lblk: u32, pblk: u64) {
    let at = |&(_, base): &(usize, &u64)| pblk == base + u64::from(lblk);
    let base = BASES.iter().enumerate().find(at).map(|(number, _)| number);
    assert!(
        base.is_some_and(|base| may_lie(lblk / 64, base)),
        "block {lblk} at {pblk}"
    );
}

/// Sets and removes at random within the first `cells` cells.
fn churn(map: &ExtentMap, cells: u32, mut random: u32) {
    for _ in 0..4000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (cell, base) = ((random >> 8) % cells, (random >> 28) as usize % BASES.len());
        let end = (cell..cells)
            .find(|&cell| !may_lie(cell, base))
            .unwrap_or(cells);
        let guard = map.lock();
        match random >> 24 & 15 {
            0 => guard.set_hole(0..1 << 32),
            1..4 => guard.set_hole(u64::from(cell) * 64 + 5..1 << 32),
            4..7 => guard.set_hole(u64::from(cell) * 64 + 9..u64::from(cell) * 64 + 700),
            _ if end > cell => {
                let start = cell * 64;
                let len = (end - cell) * 64 - (random >> 16) % 64;
                guard.set_run(&run(
                    start,
                    len,
                    BASES[base] + u64::from(start),
                    random & 1 << 20 == 0,
                ));
            }
            _ => {}
        }
    }
}

#[cfg_attr(not(loom), test)]
fn readers_beside_removals_see_no_address_that_was_never_there() {
    const CELLS: u32 = 40;
    for round in 0..ROUNDS as u32 {
        let map = ExtentMap::new();
        map.load(Lblk(0), &Nothing).expect("no damage");
        let read = |random: u32| {
            let lblk = (random >> 6) % (CELLS * 64);
            let mapping = map.lookup(Lblk(lblk), 1 + random % 64).expect("loaded");
            if mapping.kind != MapKind::Hole {
                let each = 0..mapping.len;
                each.for_each(|step| {
                    assert_was_ever_there(lblk + step, mapping.pblk.0 + u64::from(step))
                });
            }
            if let Some(pblk) = map.written_block(lblk) {
                assert_was_ever_there(lblk, pblk);
            }
        };
        // In few cells the region stays one run for longer.
        beside_readers(read, || {
            churn(&map, if round % 2 == 0 { 3 } else { CELLS }, round)
        });
    }
}

/// Compiled by the crate `dioxide-models`. Only the word and
/// the length of a region are loom's: what spans say is one load.
#[cfg(loom)]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    const fn written(pblk: u64) -> Block {
        Block(pblk << 1)
    }

    const fn unwritten(pblk: u64) -> Block {
        Block(pblk << 1 | 1)
    }

    /// Looks at three blocks beside changes of a region that was a hole, and then at how many changes
    /// the data is there for, which is written before each.
    fn check(
        changes: fn(usize) -> Option<Run>,
        possible: fn(found: [Block; 3], data: u32) -> bool,
    ) {
        loom::model(move || {
            let map = Arc::new(ExtentMap::new());
            let data = Arc::new(AtomicU32::new(0));
            map.load(Lblk(0), &Nothing).expect("no damage");
            let reader = thread::spawn({
                let (map, data) = (map.clone(), data.clone());
                move || {
                    let found = [9, 3, 1].map(|lblk| {
                        let mapping = map.lookup(Lblk(lblk), 1).expect("loaded");
                        Block::of_mapping(&mapping, 0)
                    });
                    let data = data.load(Ordering::Relaxed);
                    assert!(possible(found, data), "{found:?} with data for {data}");
                }
            });
            let guard = map.lock();
            for (number, change) in (1..).zip((0..).map_while(changes)) {
                data.store(number, Ordering::Relaxed);
                match change.pblk.0 {
                    0 => guard.set_hole(0..1 << 32),
                    _ => guard.set_run(&change),
                }
            }
            reader.join().expect("no panic");
        });
    }

    #[test]
    fn loom_reader_beside_growth_sees_old_or_new_and_its_data() {
        check(
            |number| {
                let changes = [(0, 2, 100), (2, 2, 102), (9, 1, 900)];
                let change = changes.get(number);
                change.map(|&(lblk, len, pblk)| run(lblk, len, pblk, false))
            },
            |[nine, three, one], data| match (nine, three, one) {
                (HOLE, HOLE, HOLE) => true,
                (HOLE, HOLE, one) => one == written(101) && data >= 1,
                (HOLE, three, one) => three == written(103) && one == written(101) && data >= 2,
                found => found == (written(900), written(103), written(101)) && data == 3,
            },
        );
    }

    #[test]
    fn loom_reader_beside_conversion_and_growth_sees_old_or_new_and_its_data() {
        check(
            |number| {
                let changes = [(0, 2, 100, true), (0, 2, 100, false), (2, 2, 102, false)];
                let change = changes.get(number);
                change.map(|&(lblk, len, pblk, unwritten)| run(lblk, len, pblk, unwritten))
            },
            |[_, three, one], data| match (three, one) {
                (HOLE, HOLE) => true,
                (HOLE, one) if one == unwritten(101) => data >= 1,
                (HOLE, one) => one == written(101) && data >= 2,
                // The last change is to a span, whose stores loom does not know.
                found => found == (written(103), written(101)) && data >= 2,
            },
        );
    }

    #[test]
    fn loom_reader_beside_truncation_sees_no_address_that_was_never_there() {
        check(
            |number| {
                let changes = [(0, 2, 500), (0, 0, 0), (0, 4, 100)];
                let change = changes.get(number);
                change.map(|&(lblk, len, pblk)| run(lblk, len, pblk, false))
            },
            |[_, three, one], data| {
                let known = [HOLE, written(501), written(101)].contains(&one);
                known && (three == HOLE || (three == written(103) && data == 3))
            },
        );
    }
}
