//! Maps in memory against a model: one entry per block.

use super::super::tree::testing::{Memory, Pool, no_space, owner};
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Eight pointers to a block, so that 596 blocks need all three levels.
const TINY: usize = 32;
const TINY_BLOCKS: u32 = 12 + 8 + 64 + 512;
const GROUP: u64 = 256;

struct File {
    owner: Owner,
    root: [u8; I_BLOCK_BYTES],
    edit: Memory,
    pool: Pool,
    model: BTreeMap<u32, u64>,
}

impl File {
    fn new(block_bytes: usize) -> File {
        let owner = owner(1, None);
        File {
            root: [0; I_BLOCK_BYTES],
            edit: Memory::new(block_bytes),
            pool: Pool::new(&owner, GROUP),
            model: BTreeMap::new(),
            owner,
        }
    }

    /// Bytes of all pointer blocks, without the allocator's.
    fn tables(&self) -> BTreeMap<u64, std::sync::Arc<[u8]>> {
        let blocks = self.edit.blocks.iter();
        let tables = blocks.filter(|(block, _)| **block < 1 << 48);
        tables.map(|(at, bytes)| (*at, bytes.clone())).collect()
    }

    /// Runs a change with 0, 1, 2... blocks left until they are enough. Whenever it fails, nothing
    /// may have changed.
    fn attempt<T>(
        &mut self,
        change: impl Fn(&mut Indirect<'_>, &mut Memory, &mut Pool) -> Result<T>,
    ) -> Result<T> {
        for left in 0.. {
            let before = (self.root, self.tables(), self.pool.used.clone());
            self.pool.left = left;
            self.edit.changed.clear();
            let mut map = Indirect::new(&self.owner, &mut self.root);
            let result = change(&mut map, &mut self.edit, &mut self.pool);
            let Err(error) = result else {
                return result;
            };
            let after = (self.root, self.tables(), self.pool.used.clone());
            assert!(before == after, "{error} changed something");
            if error.to_string() != no_space().to_string() {
                return Err(error);
            }
        }
        unreachable!("some number of blocks is enough")
    }

    /// Maps what is not mapped in `at..at + len`, up to the first block that is.
    fn fill(&mut self, mut at: u32, len: u32, skip: u64) {
        let next = self.model.range(at..).next().map(|(at, _)| *at);
        let end = next.unwrap_or(u32::MAX).min(at + len);
        if at >= end {
            return;
        }
        let mut start = self.pool.data(skip, (end - at).into());
        while at < end {
            let run = PhysicalRun {
                start,
                len: end - at,
            };
            let set = self.attempt(|map, edit, pool| map.set(edit, pool, Lblk(at), run));
            let set = set.expect("a hole");
            assert!(self.edit.changed.len() as u32 <= CREDITS_FOR_SET);
            assert!((1..=run.len).contains(&set));
            for _ in 0..set {
                self.model.insert(at, start.0);
                (at, start.0) = (at + 1, start.0 + 1);
            }
        }
    }

    fn remove(&mut self, range: Range<u64>, extra: u32) {
        let mut rest = range.clone();
        loop {
            let credits = credits_for_remove(2) + extra;
            let progress = self
                .attempt(|map, edit, pool| map.remove_some(edit, pool, rest.clone(), credits))
                .expect("a whole map");
            let changed = self.edit.changed.len() as u32;
            assert!(changed <= credits, "{changed} of {credits}");
            match progress {
                Progress::Done => break,
                Progress::More(next) => {
                    assert!(next.end == range.end && next.start >= rest.start);
                    rest = next;
                }
            }
        }
        self.model.retain(|at, _| !range.contains(&u64::from(*at)));
    }

    /// The map says what the model says, and has just the blocks that are allocated. Walks without
    /// the code that is tested.
    fn check(&mut self) {
        let mut used = BTreeSet::new();
        let mut data = BTreeMap::new();
        let mut first = 0;
        for (at, pointer) in indirect::pointers(&self.root).enumerate() {
            let levels = at.saturating_sub(11) as u32;
            self.walk(pointer, levels, first, &mut used, &mut data);
            first += (self.edit.block_bytes() as u32 / 4).pow(levels);
        }
        assert!(data == self.model);
        assert_eq!(used, self.pool.used);
    }

    fn walk(
        &self,
        pointer: u32,
        levels: u32,
        first: u32,
        used: &mut BTreeSet<u64>,
        data: &mut BTreeMap<u32, u64>,
    ) {
        if pointer == 0 {
            return;
        }
        assert!(used.insert(pointer.into()), "two pointers to {pointer}");
        if levels == 0 {
            data.insert(first, pointer.into());
            return;
        }
        let bytes = &self.edit.blocks[&u64::from(pointer)];
        let step = (bytes.len() as u32 / 4).pow(levels - 1);
        assert!(bytes.iter().any(|byte| *byte != 0), "{pointer} is empty");
        for (at, pointer) in indirect::pointers(bytes).enumerate() {
            self.walk(pointer, levels - 1, first + at as u32 * step, used, data);
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Fill(u32, u32, u8),
    Remove(u32, u32, u32),
    Truncate(u32, u32),
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..TINY_BLOCKS - 40, 1..40u32, 0..3u8).prop_map(|(a, l, s)| Op::Fill(a, l, s)),
        3 => (0..TINY_BLOCKS, 1..200u32, 0..40u32).prop_map(|(a, l, e)| Op::Remove(a, l, e)),
        1 => (0..TINY_BLOCKS, 0..40u32).prop_map(|(a, e)| Op::Truncate(a, e)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn any_operations_agree_with_the_model(ops in prop::collection::vec(any_op(), 1..80)) {
        let mut file = File::new(TINY);
        for op in ops {
            match op {
                Op::Fill(at, len, skip) => file.fill(at, len, skip.into()),
                Op::Remove(at, len, extra) => file.remove(at.into()..u64::from(at + len), extra),
                Op::Truncate(at, extra) => file.remove(at.into()..u64::MAX, extra),
            }
            file.check();
        }
        file.remove(0..u64::MAX, 0);
        prop_assert_eq!(file.root, [0; I_BLOCK_BYTES]);
        prop_assert!(file.pool.used.is_empty());
    }

    #[test]
    fn any_damage_is_survived(
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0..8usize, any::<prop::sample::Index>()), 1..8),
    ) {
        let mut file = File::new(TINY);
        file.fill(0, TINY_BLOCKS, 0);
        file.pool.damaged = true;
        let tables: Vec<u64> = file.tables().into_keys().collect();
        for (table, at, target) in damage {
            // Pointers to pointer blocks: loops, and many ways to one block.
            let bytes = file.edit.blocks.get_mut(table.get(&tables)).expect("a table");
            let mut changed = bytes.to_vec();
            write_pointers(&mut changed, at as u32, &[*target.get(&tables) as u32]);
            *bytes = changed.into();
        }
        let mut map = Indirect::new(&file.owner, &mut file.root);
        // Data is never taken for free space twice: the pool says so, or the map does.
        map.remove_some(&mut file.edit, &mut file.pool, 0..u64::MAX, u32::MAX).ok();
        file.edit.reads.set(0);
        map.remove_some(&mut file.edit, &mut file.pool, 0..u64::MAX, u32::MAX).ok();
        prop_assert!(file.edit.reads.get() <= 2 * tables.len() as u32 + 4 * 512);
    }
}

#[test]
fn last_block_of_the_map_is_set_and_the_next_is_too_large() {
    let mut file = File::new(TINY);
    file.fill(TINY_BLOCKS - 1, 1, 0);
    assert_eq!(file.pool.used.len(), 4);
    file.check();
    let run = PhysicalRun {
        start: Pblk(9),
        len: 1,
    };
    let set = file.attempt(|map, edit, pool| map.set(edit, pool, Lblk(TINY_BLOCKS), run));
    assert!(matches!(set, Err(Error::TooLarge(_))));
}

#[test]
fn largest_map_of_4k_blocks_ends_where_the_format_says() {
    let mut file = File::new(4096);
    let last = indirect::max_lblk(4096).0;
    file.fill(last, 1, 0);
    file.check();
    assert_eq!(file.pool.used.len(), 4);
    file.remove(u64::from(last)..u64::MAX, 0);
    assert!(file.pool.used.is_empty());
}

#[test]
fn set_of_mapped_or_impossible_blocks_is_refused() {
    let mut file = File::new(TINY);
    file.fill(5, 2, 0);
    file.fill(30, 2, 0);
    for (at, start, len) in [
        (5, 9, 1),
        (4, 9, 2),
        (29, 9, 3),
        (0, 9, 0),
        (0, 0, 1),
        (0, (1 << 32) - 1, 2),
    ] {
        let run = PhysicalRun {
            start: Pblk(start),
            len,
        };
        let set = file.attempt(|map, edit, pool| map.set(edit, pool, Lblk(at), run));
        assert!(matches!(set, Err(Error::Invalid(_))), "{run:?} at {at}");
    }
    file.check();
}

#[test]
fn too_few_credits_are_refused_before_any_change() {
    let mut file = File::new(TINY);
    file.fill(0, TINY_BLOCKS, 0);
    let deep = u64::from(TINY_BLOCKS - 20)..u64::MAX;
    let remove = |credits: u32| {
        let range = deep.clone();
        move |map: &mut Indirect<'_>, edit: &mut Memory, pool: &mut Pool| {
            map.remove_some(edit, pool, range.clone(), credits)
        }
    };
    let least = credits_for_remove(2);
    let refused = file.attempt(remove(least - 1));
    assert!(matches!(refused, Err(Error::Invalid(_))));
    let step = file.attempt(remove(least)).expect("enough for one block");
    assert!(matches!(step, Progress::More(rest) if rest.start > deep.start));
}

#[test]
fn pointer_outside_the_device_is_corrupt_with_its_place() {
    let mut file = File::new(TINY);
    file.owner.physical = 1..1 << 20;
    file.pool = Pool::new(&file.owner, GROUP);
    file.fill(0, 20, 0);
    let table = indirect::pointers(&file.root).nth(12).expect("a pointer");
    let mut bytes = file.edit.blocks[&table.into()].to_vec();
    write_pointers(&mut bytes, 3, &[1 << 20]);
    file.edit.blocks.insert(table.into(), bytes.into());
    let before = file.root;
    let mut map = Indirect::new(&file.owner, &mut file.root);
    let removed = map.remove_some(&mut file.edit, &mut file.pool, 0..20, u32::MAX);
    let Err(Error::Corrupt { place, .. }) = removed else {
        panic!("{removed:?}");
    };
    assert_eq!(place, file.owner.place(Some(Pblk(table.into()))));
    assert_eq!(file.root, before);
}
