//! Trees in memory against a model: one entry per block.

use super::testing::{Memory, Pool, no_space, owner};
use super::*;
use crate::Error;
use dioxide_format::extent::{ExtentEntries, ExtentNode, LBLK_END, verify_checksum};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, BTreeSet};

/// Nodes of six entries.
const TINY: usize = 88;
/// Blocks of a group of the pool, and so how far an extent of the model reaches at most.
const GROUP: u64 = 704;

/// A file, and what should be in it.
struct File {
    owner: Owner,
    root: [u8; I_BLOCK_BYTES],
    edit: Memory,
    pool: Pool,
    model: BTreeMap<u32, (u64, bool)>,
    deepest: u16,
    refused: u32,
}

/// What a walk over the whole tree finds.
#[derive(Default)]
struct Walk {
    extents: Vec<Extent>,
    nodes: BTreeSet<u64>,
    leaf_lens: Vec<usize>,
}

impl File {
    fn new(block_bytes: usize, cluster_ratio: u32) -> File {
        let owner = owner(cluster_ratio, Some(77));
        File {
            root: Tree::empty_root(),
            edit: Memory::new(block_bytes),
            pool: Pool::new(&owner, GROUP),
            model: BTreeMap::new(),
            owner,
            deepest: 0,
            refused: 0,
        }
    }

    fn depth(&mut self) -> u16 {
        Tree::depth_of(&self.root)
    }

    /// Runs a change with 0, 1, 2... tree blocks left until they are enough. Whenever it fails,
    /// nothing may have changed.
    fn attempt<T>(
        &mut self,
        change: impl Fn(&mut Tree<'_>, &mut Memory, &mut Pool) -> Result<T>,
    ) -> Result<T> {
        for left in 0.. {
            let before = (self.root, self.nodes(), self.pool.used.clone());
            self.pool.left = left;
            self.edit.changed.clear();
            let mut tree = Tree::new(&self.owner, &mut self.root);
            let result = change(&mut tree, &mut self.edit, &mut self.pool);
            let Err(error) = result else {
                return result;
            };
            let after = (self.root, self.nodes(), self.pool.used.clone());
            assert!(before == after, "{error} changed something");
            if error.to_string() != no_space().to_string() {
                return Err(error);
            }
            self.refused += 1;
        }
        unreachable!("some number of blocks is enough")
    }

    /// Bytes of all nodes, without the allocator's blocks.
    fn nodes(&self) -> BTreeMap<u64, std::sync::Arc<[u8]>> {
        let blocks = self.edit.blocks.iter();
        let nodes = blocks.filter(|(block, _)| **block < 1 << 48);
        nodes
            .map(|(block, bytes)| (*block, bytes.clone()))
            .collect()
    }

    fn insert(&mut self, extent: Extent) -> Result<()> {
        let credits = credits_for_insert(self.depth());
        self.attempt(|tree, edit, pool| tree.insert(edit, pool, extent))?;
        assert!(self.edit.changed.len() as u32 <= credits);
        for step in 0..u32::from(extent.len) {
            let mapped = (extent.pblk.0 + u64::from(step), extent.unwritten);
            assert_eq!(self.model.insert(extent.lblk.0 + step, mapped), None);
        }
        Ok(())
    }

    /// Maps what is not mapped in `start..start + len`, up to the first block that is.
    fn fill(&mut self, start: u32, len: u32, skip: u64, unwritten: bool) -> Result<()> {
        let next = self.model.range(start..).next().map(|(at, _)| *at);
        let end = next.unwrap_or(u32::MAX).min(start + len);
        let ratio = self.owner.cluster_ratio;
        if ratio == 1 && start < end {
            let pblk = self.pool.data(skip, (end - start).into());
            return self.insert_or_return(start, end, pblk, unwritten);
        }
        let mut at = start;
        while at < end {
            let stop = end.min((at / ratio + 1) * ratio);
            let implied = Tree::new(&self.owner, &mut self.root)
                .implied_cluster(&self.edit, Lblk(at))
                .expect("a whole tree");
            let same = |b: &u32| b / ratio == at / ratio;
            let inside = self.model.iter().find(|(b, _)| same(b));
            let expected = inside.map(|(_, (pblk, _))| Pblk(pblk - pblk % u64::from(ratio)));
            assert_eq!(implied, expected);
            let cluster = implied.unwrap_or_else(|| self.pool.data(skip, 1));
            let pblk = Pblk(cluster.0 + u64::from(at % ratio));
            self.insert_or_return(at, stop, pblk, unwritten)?;
            at = stop;
        }
        Ok(())
    }

    fn insert_or_return(
        &mut self,
        start: u32,
        end: u32,
        pblk: Pblk,
        unwritten: bool,
    ) -> Result<()> {
        let used = self.pool.used.clone();
        let extent = Extent {
            lblk: Lblk(start),
            len: (end - start) as u16,
            pblk,
            unwritten,
        };
        let result = self.insert(extent);
        if result.is_err() {
            self.pool.used = used;
            self.forget_unmapped();
        }
        result
    }

    /// Takes back data clusters of an insertion that failed.
    fn forget_unmapped(&mut self) {
        let walk = self.walk();
        self.pool.used = self.expected_use(&walk);
    }

    /// Runs an operation to its end in steps of `extra` credits more than the least.
    fn in_steps(
        &mut self,
        range: Range<u64>,
        least: impl Fn(u16) -> u32,
        extra: u32,
        step: impl Fn(&mut Tree<'_>, &mut Memory, &mut Pool, Range<u64>, u32) -> Result<Progress>,
    ) -> Result<()> {
        let mut rest = range;
        loop {
            let credits = least(self.depth()) + extra;
            let progress =
                self.attempt(|tree, edit, pool| step(tree, edit, pool, rest.clone(), credits))?;
            let changed = self.edit.changed.len() as u32;
            assert!(changed <= credits, "{changed} of {credits}");
            self.walk();
            match progress {
                Progress::Done => return Ok(()),
                Progress::More(next) => {
                    assert!(next.end - next.start < rest.end - rest.start);
                    rest = next;
                }
            }
        }
    }

    fn remove(&mut self, range: Range<u64>, extra: u32) -> Result<()> {
        let least = |depth| credits_for_remove(depth, 4);
        self.in_steps(
            range.clone(),
            least,
            extra,
            |tree, edit, pool, rest, credits| tree.remove_some(edit, pool, rest, credits),
        )?;
        self.model.retain(|at, _| !range.contains(&u64::from(*at)));
        Ok(())
    }

    fn convert(&mut self, range: Range<u64>, to: State, extra: u32) -> Result<()> {
        let least = credits_for_convert;
        self.in_steps(
            range.clone(),
            least,
            extra,
            |tree, edit, pool, rest, credits| tree.convert_some(edit, pool, rest, to, credits),
        )?;
        let inside = self.model.iter_mut();
        inside
            .filter(|(at, _)| range.contains(&u64::from(**at)))
            .for_each(|(_, (_, unwritten))| *unwritten = to == State::Unwritten);
        Ok(())
    }

    /// Whether `shift` may be done, by the model; and the model after it.
    fn shifted(&self, range: &Range<u64>, delta: i64) -> Option<BTreeMap<u32, (u64, bool)>> {
        let mut moved = BTreeMap::new();
        for (at, mapped) in &self.model {
            let inside = range.contains(&u64::from(*at));
            let to = i64::from(*at) + if inside { delta } else { 0 };
            let to = u32::try_from(to).ok().filter(|to| *to < u32::MAX)?;
            if moved.insert(to, *mapped).is_some() {
                return None;
            }
        }
        // Blocks must not only find a free place, but also keep their order.
        let order = |model: &BTreeMap<u32, (u64, bool)>| -> Vec<u64> {
            model.values().map(|(pblk, _)| *pblk).collect()
        };
        let ratio = self.owner.cluster_ratio;
        let pairs: BTreeSet<(u32, u64)> = moved
            .iter()
            .map(|(at, (pblk, _))| (at / ratio, pblk / u64::from(ratio)))
            .collect();
        let logical: BTreeSet<u32> = pairs.iter().map(|pair| pair.0).collect();
        let physical: BTreeSet<u64> = pairs.iter().map(|pair| pair.1).collect();
        // Nor may a cluster be divided, or two be in the place of one.
        let whole = pairs.len() == logical.len() && pairs.len() == physical.len();
        (whole && order(&moved) == order(&self.model)).then_some(moved)
    }

    fn shift(&mut self, range: Range<u64>, delta: i64, extra: u32) -> Result<()> {
        let expected = self.shifted(&range, delta);
        // A leaf that is not empty may hold a single block of a cluster.
        let leaves = match self.owner.cluster_ratio {
            1 => 1,
            ratio => ratio + 1,
        };
        let least = |depth| credits_for_shift(depth, leaves);
        let result = self.in_steps(range, least, extra, |tree, edit, pool, rest, credits| {
            tree.shift_some(edit, pool, rest, delta, credits)
        });
        match (&result, expected) {
            (Ok(()), Some(model)) => self.model = model,
            (Err(Error::Invalid(_)), None) => return Ok(()),
            (Err(Error::TooLarge(_)), _) => {}
            (result, _) => panic!("{result:?}"),
        }
        result
    }

    /// Reads the whole tree without the code that is tested, and checks its form.
    fn walk(&self) -> Walk {
        let mut walk = Walk::default();
        let root = ExtentNode::parse(&self.root, None).expect("root");
        self.walk_node(&root, 0..LBLK_END, &mut walk);
        if let ExtentEntries::Index(index) = &root.entries
            && let [only] = &index[..]
        {
            let child = ExtentNode::parse(&self.edit.blocks[&only.leaf.0], None).expect("node");
            assert!(child.len() > 4, "a root that could hold its child");
        }
        walk
    }

    fn walk_node(&self, node: &ExtentNode, logical: Range<u64>, walk: &mut Walk) {
        node.validate(logical.clone(), self.owner.physical.clone())
            .expect("valid");
        walk.extents.extend(node.extents());
        if node.depth() == 0 {
            walk.leaf_lens.push(node.len());
            let mut joined = node.extents().to_vec();
            leaf::join(&mut joined);
            assert_eq!(joined, node.extents(), "extents that should be one");
        }
        for (at, entry) in node.indices().iter().enumerate() {
            assert!(walk.nodes.insert(entry.leaf.0), "a node with two parents");
            let bytes = &self.edit.blocks[&entry.leaf.0];
            verify_checksum(bytes, self.owner.seed.expect("seed")).expect("checksum");
            let child = ExtentNode::parse(bytes, Some(node.depth() - 1)).expect("node");
            assert_eq!(node::first_key(&child), Some(entry.lblk.0.into()));
            self.walk_node(&child, node.child_range(at, &logical), walk);
        }
    }

    fn expected_use(&self, walk: &Walk) -> BTreeSet<u64> {
        let data = self.model.values().map(|(pblk, _)| *pblk);
        let blocks = walk.nodes.iter().copied().chain(data);
        let ratio = u64::from(self.owner.cluster_ratio);
        blocks.map(|block| block / ratio).collect()
    }

    /// The tree is whole, says what the model says, and has just the blocks that are allocated.
    fn check(&mut self) {
        let walk = self.walk();
        let blocks = walk.extents.iter().flat_map(|e| {
            let block = |i| (e.lblk.0 + i, (e.pblk.0 + u64::from(i), e.unwritten));
            (0..u32::from(e.len)).map(block)
        });
        assert!(blocks.eq(self.model.iter().map(|(at, mapped)| (*at, *mapped))));
        let (used, expected) = (&self.pool.used, self.expected_use(&walk));
        assert!(*used == expected, "lost or shared: {:?}", used ^ &expected);
        assert_eq!(self.nodes().len(), walk.nodes.len());
        self.deepest = self.deepest.max(self.depth());
    }

    fn run(&mut self, op: &Op) {
        let ratio = u64::from(self.owner.cluster_ratio);
        // Not always, for what may not be done must be refused.
        let aligned = |at: u32, extra: u32| match extra % 4 {
            0 => at.into(),
            _ => u64::from(at) / ratio * ratio,
        };
        let range = |at: u32, len: u32| u64::from(at)..u64::from(at + len);
        let result = match *op {
            Op::Fill(at, len, skip, unwritten) => self.fill(at, len, skip.into(), unwritten),
            Op::Remove(at, len, extra) => self.remove(range(at, len), extra),
            Op::Truncate(at, extra) => self.remove(at.into()..LBLK_END, extra),
            Op::Convert(at, len, true, extra) => {
                self.convert(range(at, len), State::Unwritten, extra)
            }
            Op::Convert(at, len, false, extra) => {
                self.convert(range(at, len), State::Written, extra)
            }
            Op::Shift(at, delta, extra) => {
                let range = aligned(at, extra)..LBLK_END;
                self.shift(range, i64::from(delta) * ratio as i64, extra)
            }
            Op::ShiftPart(at, len, delta, extra) => {
                let range = aligned(at, extra)..aligned(at + len, extra);
                self.shift(range, i64::from(delta) * ratio as i64, extra)
            }
        };
        match result {
            Ok(()) | Err(Error::TooLarge(_)) => self.check(),
            Err(error) => panic!("{op:?}: {error}"),
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Fill(u32, u32, u8, bool),
    Remove(u32, u32, u32),
    Truncate(u32, u32),
    Convert(u32, u32, bool, u32),
    Shift(u32, i8, u32),
    ShiftPart(u32, u32, i8, u32),
}

/// Operations on the first `blocks` blocks of a file; more of them fill than empty it.
fn any_op(blocks: u32) -> impl Strategy<Value = Op> {
    let (at, len, extra) = (0..blocks, 1..24u32, 0..60u32);
    prop_oneof![
        12 => (at.clone(), 1..6u32, 0..3u8, any::<bool>())
            .prop_map(|(at, len, skip, unwritten)| Op::Fill(at, len, skip, unwritten)),
        3 => (at.clone(), len.clone(), extra.clone()).prop_map(|(a, l, e)| Op::Remove(a, l, e)),
        3 => (at.clone(), 1..5u32, extra.clone()).prop_map(|(a, l, e)| Op::Remove(a, l, e)),
        5 => (at.clone(), len.clone(), any::<bool>(), extra.clone())
            .prop_map(|(a, l, u, e)| Op::Convert(a, l, u, e)),
        2 => (at.clone(), -20..20i8, extra.clone()).prop_map(|(a, d, e)| Op::Shift(a, d, e)),
        1 => (at.clone(), len, -9..9i8, extra.clone())
            .prop_map(|(a, l, d, e)| Op::ShiftPart(a, l, d, e)),
        1 => (blocks / 3..blocks, extra).prop_map(|(a, e)| Op::Truncate(a, e)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_operations_on_tiny_nodes_agree_with_the_model(
        ops in prop::collection::vec(any_op(600), 1..250),
    ) {
        let mut file = File::new(TINY, 1);
        ops.iter().for_each(|op| file.run(op));
        file.run(&Op::Truncate(0, 5));
        prop_assert_eq!(file.depth(), 0);
        prop_assert!(file.pool.used.is_empty());
    }

    #[test]
    fn any_operations_with_clusters_agree_with_the_model(
        ratio in prop_oneof![Just(2u32), Just(4), Just(16)],
        ops in prop::collection::vec(any_op(400), 1..150),
    ) {
        let mut file = File::new(TINY, ratio);
        ops.iter().for_each(|op| file.run(op));
        file.run(&Op::Truncate(0, 5));
        prop_assert!(file.pool.used.is_empty());
    }

    #[test]
    fn any_operations_on_1k_blocks_agree_with_the_model(
        ops in prop::collection::vec(any_op(3000), 100..400),
    ) {
        let mut file = File::new(1024, 1);
        // One block in two first, so that there is a tree from the start.
        for at in (0..3000).step_by(2) {
            file.fill(at, 1, 1, false).expect("space");
        }
        ops.iter().for_each(|op| file.run(op));
    }
}

#[test]
fn long_run_gets_deep_and_shrinks_back() {
    let mut runner = TestRunner::deterministic();
    let mut file = File::new(TINY, 1);
    let mut op = |strategy: &dyn Fn() -> BoxedStrategy<Op>| {
        let tree = strategy().new_tree(&mut runner).expect("no filter");
        tree.current()
    };
    let one = || {
        (0..1500u32)
            .prop_map(|at| Op::Fill(at * 2, 1, 1, false))
            .boxed()
    };
    let any = || any_op(3000).boxed();
    for _ in 0..3 {
        (0..1200).for_each(|_| file.run(&op(&one)));
        (0..400).for_each(|_| file.run(&op(&any)));
        file.run(&Op::Truncate(0, 20));
        assert_eq!(file.depth(), 0);
        assert!(file.pool.used.is_empty());
    }
    let (deepest, refused) = (file.deepest, file.refused);
    println!("4800 operations, depth {deepest}, {refused} times out of space");
    assert!(deepest >= 4 && refused > 500);
}

fn extent(lblk: u32, len: u16, pblk: u64, unwritten: bool) -> Extent {
    Extent {
        lblk: Lblk(lblk),
        len,
        pblk: Pblk(pblk),
        unwritten,
    }
}

/// A file with these extents; the pool does not know their blocks.
fn file_of(extents: &[Extent]) -> File {
    let mut file = File::new(1024, 1);
    for &extent in extents {
        file.insert(extent).expect("space");
    }
    file
}

#[test]
fn insert_between_neighbours_makes_one_extent() {
    let file = file_of(&[
        extent(0, 10, 100, false),
        extent(20, 10, 120, false),
        extent(10, 10, 110, false),
    ]);
    assert_eq!(file.walk().extents, [extent(0, 30, 100, false)]);
}

#[test]
fn insert_beside_other_state_or_place_stays_apart() {
    let extents = [
        extent(0, 10, 100, false),
        extent(10, 10, 110, true),
        extent(20, 10, 121, true),
    ];
    assert_eq!(file_of(&extents).walk().extents, extents);
}

#[test]
fn insert_joins_up_to_the_longest_extent() {
    for (unwritten, len) in [(false, 32768), (true, 32767)] {
        let half = 16384;
        let rest = (len - u32::from(half)) as u16;
        let fits = file_of(&[
            extent(0, half, 100, unwritten),
            extent(half.into(), rest, 100 + u64::from(half), unwritten),
        ]);
        assert_eq!(fits.walk().extents.len(), 1);
        let too_long = file_of(&[
            extent(0, half, 100, unwritten),
            extent(half.into(), rest + 1, 100 + u64::from(half), unwritten),
        ]);
        assert_eq!(too_long.walk().extents.len(), 2);
    }
}

#[test]
fn insert_of_mapped_or_impossible_blocks_is_refused() {
    let mut file = file_of(&[extent(10, 10, 100, false)]);
    for bad in [
        extent(5, 6, 500, false),
        extent(12, 1, 500, false),
        extent(19, 9, 500, true),
        extent(0, 100, 500, true),
        extent(30, 0, 500, false),
        extent(30, 32768, 500, true),
        extent(30, 1, 0, false),
        extent(30, 2, (1 << 32) - 1, false),
        extent(u32::MAX - 1, 2, 500, false),
    ] {
        assert!(
            matches!(file.insert(bad), Err(Error::Invalid(_))),
            "{bad:?}"
        );
    }
    file.insert(extent(u32::MAX - 1, 1, 500, false))
        .expect("the last block of a file");
}

#[test]
fn convert_of_the_longest_extent_makes_two() {
    let mut file = file_of(&[extent(0, 32768, 100, false)]);
    file.convert(0..32768, State::Unwritten, 0).expect("space");
    let two = [
        extent(0, 32767, 100, true),
        extent(32767, 1, 100 + 32767, true),
    ];
    assert_eq!(file.walk().extents, two);
    file.convert(0..32768, State::Written, 0).expect("space");
    assert_eq!(file.walk().extents, [extent(0, 32768, 100, false)]);
}

#[test]
fn convert_of_full_leaf_of_longest_extents_doubles_it() {
    let mut file = File::new(1024, 1);
    for at in 0..84 {
        let e = extent(at * 32768, 32768, 1000 + u64::from(at) * 40000, false);
        file.attempt(|tree, edit, pool| tree.insert(edit, pool, e))
            .expect("space");
    }
    file.in_steps(
        0..LBLK_END,
        credits_for_convert,
        0,
        |tree, edit, pool, rest, credits| {
            tree.convert_some(edit, pool, rest, State::Unwritten, credits)
        },
    )
    .expect("space");
    let walk = file.walk();
    assert_eq!(walk.extents.len(), 168);
    assert!(walk.extents.iter().all(|e| e.unwritten));
}

#[test]
fn flip_stops_once_the_leaf_has_grown() {
    let long = |at: u32| extent(at * 32768, 32768, 1000 + u64::from(at) * 40000, false);
    let (flipped, stopped) = leaf::flip(&[long(0), long(1), long(2)], &(0..LBLK_END), true);
    assert_eq!(stopped, Some(32768));
    assert_eq!(flipped.len(), 4);
    assert_eq!(flipped[2..], [long(1), long(2)]);
}

#[test]
fn shift_onto_others_or_out_of_the_file_is_refused() {
    let mut file = file_of(&[extent(5, 5, 100, false), extent(20, 10, 200, false)]);
    for (range, delta) in [
        (0..LBLK_END, -6),
        (15..LBLK_END, -11),
        (7..LBLK_END, -1),
        (0..20, 11),
        (0..25, 1),
        (0..LBLK_END, i64::from(u32::MAX) - 29),
        (0..LBLK_END, i64::MAX),
        (0..LBLK_END, i64::MIN),
    ] {
        let result = file.attempt(|tree, edit, pool| {
            tree.shift_some(edit, pool, range.clone(), delta, u32::MAX)
        });
        assert!(
            matches!(result, Err(Error::Invalid(_))),
            "{range:?} by {delta}"
        );
    }
    file.shift(0..LBLK_END, i64::from(u32::MAX) - 30, 0)
        .expect("to the very end");
    file.check_form();
}

impl File {
    /// For files whose data the pool does not know.
    fn check_form(&mut self) {
        let walk = self.walk();
        let blocks: u64 = walk.extents.iter().map(|e| u64::from(e.len)).sum();
        assert_eq!(blocks, self.model.len() as u64);
    }
}

#[test]
fn too_few_credits_are_refused_before_any_change() {
    let mut file = File::new(TINY, 1);
    for at in (0..200).step_by(2) {
        file.fill(at, 1, 1, false).expect("space");
    }
    let least = credits_for_remove(file.depth(), 2);
    let remove = |credits| {
        move |tree: &mut Tree<'_>, edit: &mut Memory, pool: &mut Pool| {
            tree.remove_some(edit, pool, 0..LBLK_END, credits)
        }
    };
    let refused = file.attempt(remove(least - 1));
    assert!(matches!(refused, Err(Error::Invalid(_))));
    let step = file.attempt(remove(least)).expect("enough for one extent");
    assert!(matches!(step, Progress::More(rest) if rest.start > 0));
}

#[test]
fn insertion_that_joins_makes_the_tree_less_deep_unless_it_is_to_free_nothing() {
    let two_levels = || {
        let mut file = File::new(TINY, 1);
        let start = file.pool.data(0, 90).0;
        for at in [0, 20, 40, 60, 80] {
            let data = extent(at, 10, start + u64::from(at), false);
            file.insert(data).expect("space");
        }
        assert_eq!(file.depth(), 1);
        (extent(10, 10, start + 10, false), file)
    };
    let (between, mut file) = two_levels();
    file.insert(between).expect("space");
    assert_eq!((file.depth(), file.nodes().len()), (0, 0));

    let (between, mut file) = two_levels();
    let nodes = file.walk().nodes;
    let mut tree = Tree::new(&file.owner, &mut file.root);
    tree.insert_only(&mut file.edit, &mut file.pool, between)
        .expect("space");
    let (edit, root) = (&file.edit, ExtentNode::parse(&file.root, None));
    let root = root.expect("a root");
    let child = root.indices()[0].leaf.0;
    assert!(nodes.contains(&child) && nodes.len() == 1);
    let leaf = ExtentNode::parse(&edit.blocks[&child], Some(0)).expect("a leaf");
    assert_eq!((leaf.len(), leaf.extents()[0].len), (4, 30));
    assert!(file.pool.used.contains(&child));
}

#[test]
fn appends_leave_full_leaves_and_depth_3_shrinks_back() {
    let mut file = File::new(1024, 1);
    let tree_of = |file: &mut File, at: u32| {
        let pblk = file.pool.data(1, 1);
        let mut tree = Tree::new(&file.owner, &mut file.root);
        file.edit.reads.set(0);
        tree.insert(&mut file.edit, &mut file.pool, extent(at, 1, pblk.0, false))
            .expect("space");
    };
    for at in 0..30_000 {
        tree_of(&mut file, at);
    }
    assert_eq!(file.depth(), 3);
    // A leaf is read once to plan and once to change; the allocator reads its own.
    assert!(file.edit.reads.get() <= 2 * 4, "{}", file.edit.reads.get());
    let walk = file.walk();
    assert_eq!(walk.extents.len(), 30_000);
    let (_, full) = walk.leaf_lens.split_last().expect("leaves");
    assert!(full.iter().all(|len| *len == 84));

    let mut steps = 0;
    let mut rest = 0..LBLK_END;
    loop {
        steps += 1;
        file.edit.changed.clear();
        let mut tree = Tree::new(&file.owner, &mut file.root);
        let credits = 100;
        let progress = tree
            .remove_some(&mut file.edit, &mut file.pool, rest, credits)
            .expect("a whole tree");
        assert!(file.edit.changed.len() <= 100);
        match progress {
            Progress::Done => break,
            // As after a crash: from the start again.
            Progress::More(_) => rest = 0..LBLK_END,
        }
    }
    assert!(steps > 500, "{steps} steps");
    assert_eq!(file.root, {
        let mut root = file.root;
        root[..12].copy_from_slice(&Tree::empty_root()[..12]);
        root
    });
    assert!(file.pool.used.is_empty());
}

#[test]
fn full_tree_of_depth_5_refuses_more_and_shrinks_back() {
    // Nodes of four entries.
    let mut file = File::new(64, 1);
    let refused = (0..).find_map(|number| {
        let one = extent(number * 2, 1, file.pool.data(1, 1).0, false);
        let mut tree = Tree::new(&file.owner, &mut file.root);
        let inserted = tree.insert(&mut file.edit, &mut file.pool, one);
        if inserted.is_ok() {
            file.model.insert(one.lblk.0, (one.pblk.0, false));
        } else {
            file.pool.used.remove(&one.pblk.0);
        }
        inserted.err()
    });
    assert!(matches!(refused, Some(Error::TooLarge(_))), "{refused:?}");
    assert_eq!(file.depth(), 5);
    file.check();
    // What needs no entry more still goes, and so does what makes room.
    let last = *file.model.keys().last().expect("a full tree");
    file.convert(last.into()..u64::from(last) + 1, State::Unwritten, 0)
        .expect("the whole extent");
    file.remove(0..200, 0).expect("a whole tree");
    file.fill(100, 1, 1, false).expect("there is room again");
    file.check();
    file.run(&Op::Truncate(0, 5));
    assert_eq!(file.depth(), 0);
    assert!(file.pool.used.is_empty());
}

/// The extent that holds a block.
fn find(tree: &Tree<'_>, edit: &dyn Edit, lblk: u32) -> Result<Option<Extent>> {
    let (at, mut found) = (u64::from(lblk), None);
    tree.for_each(edit, at..at + 1, &mut |extent| {
        found = Some(extent);
        Ok(())
    })?;
    Ok(found)
}

#[test]
fn readers_agree_with_the_model() {
    let mut file = File::new(TINY, 1);
    for at in (3..500).step_by(7) {
        file.fill(at, 1 + at % 5, 1, at % 2 == 0).expect("space");
    }
    let model = file.model.clone();
    let extents = file.walk().extents;
    let tree = Tree::new(&file.owner, &mut file.root);
    for at in 0..520 {
        let found = find(&tree, &file.edit, at).expect("a whole tree");
        let block = |e: Extent| (e.pblk.0 + u64::from(at - e.lblk.0), e.unwritten);
        assert_eq!(found.map(block), model.get(&at).copied());
    }
    let mut seen = Vec::new();
    let mut each = |e| {
        seen.push(e);
        Ok(())
    };
    tree.for_each(&file.edit, 40..333, &mut each)
        .expect("a whole tree");
    let inside = |e: &&Extent| e.end() > 40 && e.lblk.0 < 333;
    assert!(seen.iter().eq(extents.iter().filter(inside)));
}

/// A file with a tree of depth 2 or more, as its allocator will meet it when it is damaged.
fn damaged(seed: Option<u32>) -> File {
    let mut file = File::new(TINY, 1);
    file.owner.seed = seed;
    for at in (0..120).step_by(2) {
        let pblk = file.pool.data(1, 1);
        let mut tree = Tree::new(&file.owner, &mut file.root);
        tree.insert(&mut file.edit, &mut file.pool, extent(at, 1, pblk.0, false))
            .expect("space");
    }
    assert!(file.depth() >= 2);
    file.pool.damaged = true;
    file
}

impl File {
    /// Runs every operation over the whole file; how many found something wrong.
    fn try_everything(&mut self) -> u32 {
        let (edit, pool) = (&mut self.edit, &mut self.pool);
        let mut tree = Tree::new(&self.owner, &mut self.root);
        let mut errors = 0;
        let mut note = |failed: bool| errors += u32::from(failed);
        for at in [0, 1, 37, 70, 119, u32::MAX] {
            note(find(&tree, edit, at).is_err());
        }
        note(tree.for_each(edit, 0..LBLK_END, &mut |_| Ok(())).is_err());
        note(tree.insert(edit, pool, extent(71, 1, 9, true)).is_err());
        let all = u32::MAX;
        let to = State::Unwritten;
        note(tree.convert_some(edit, pool, 30..60, to, all).is_err());
        let shifted = tree.shift_some(edit, pool, 50..LBLK_END, 3, all);
        note(shifted.is_err());
        note(tree.remove_some(edit, pool, 20..40, all).is_err());
        note(tree.remove_some(edit, pool, 0..LBLK_END, all).is_err());
        errors
    }
}

fn place_of(error: &Error) -> Option<u64> {
    match error {
        Error::Corrupt { place, .. } | Error::Checksum { place, .. } => {
            assert_eq!(place.ino.map(|ino| ino.0), Some(12));
            place.block
        }
        other => panic!("{other}"),
    }
}

#[test]
fn changed_node_is_found_by_its_checksum_with_its_place() {
    let mut file = damaged(Some(5));
    let block = *file.walk().nodes.last().expect("nodes");
    let mut bytes = file.edit.blocks[&block].to_vec();
    bytes[13] ^= 1;
    file.edit.blocks.insert(block, bytes.into());
    let tree = Tree::new(&file.owner, &mut file.root);
    let error = tree
        .for_each(&file.edit, 0..LBLK_END, &mut |_| Ok(()))
        .expect_err("damage");
    assert!(matches!(error, Error::Checksum { .. }));
    assert_eq!(place_of(&error), Some(block));
}

#[test]
fn node_that_points_to_itself_or_its_uncle_is_corrupt() {
    for up in [0, 1] {
        let mut file = damaged(None);
        let root = ExtentNode::parse(&file.root, None).expect("root");
        let [parent, uncle, ..] = root.indices() else {
            panic!("a root with two children");
        };
        let mut bytes = file.edit.blocks[&parent.leaf.0].to_vec();
        let mut node = ExtentNode::parse(&bytes, None).expect("node");
        if let ExtentEntries::Index(index) = &mut node.entries {
            index[0].leaf = [parent.leaf, uncle.leaf][up];
        }
        node.encode_into(&mut bytes).expect("it fits");
        file.edit.blocks.insert(parent.leaf.0, bytes.into());
        let tree = Tree::new(&file.owner, &mut file.root);
        let error = find(&tree, &file.edit, 0).expect_err("damage");
        assert_eq!(place_of(&error), Some([parent.leaf.0, uncle.leaf.0][up]));
        assert!(file.try_everything() > 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_damage_is_survived(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..TINY, any::<u8>()), 1..6),
        in_root in any::<bool>(),
        root_at in 0..60usize,
        root_byte in any::<u8>(),
    ) {
        let mut file = damaged(None);
        let nodes: Vec<u64> = file.nodes().into_keys().collect();
        for (node, at, byte) in flips {
            let block = *node.get(&nodes);
            let mut bytes = file.edit.blocks[&block].to_vec();
            bytes[at] = byte;
            file.edit.blocks.insert(block, bytes.into());
        }
        if in_root {
            file.root[root_at] = root_byte;
        }
        // Whether an operation minds depends on where the damage is; all must come back.
        file.try_everything();
    }
}
