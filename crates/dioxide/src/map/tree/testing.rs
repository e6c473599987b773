//! For tests of maps: blocks in memory that count what is changed, and an allocator that knows who
//! has what.

use super::blocks::{Blocks, Owner, PhysicalRun};
use crate::{Error, Result, Shortage};
use dioxide_format::types::{Ino, Pblk};
use dioxide_journal::{Asked, Edit, Kind};
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Blocks in memory. One that was never made, or was forgotten, is zeros, which no node is.
#[derive(Clone)]
pub(crate) struct Memory {
    block_bytes: usize,
    pub(crate) blocks: HashMap<u64, Arc<[u8]>>,
    /// What was changed since this was last cleared.
    pub(crate) changed: HashSet<u64>,
    /// How often a block was read.
    pub(crate) reads: Cell<u32>,
}

impl Memory {
    pub(crate) fn new(block_bytes: usize) -> Self {
        Self {
            block_bytes,
            blocks: HashMap::new(),
            changed: HashSet::new(),
            reads: Cell::new(0),
        }
    }
}

fn block_error(block: Pblk, source: dioxide_format::Error) -> dioxide_journal::Error {
    dioxide_journal::Error::Block {
        block: block.0,
        source,
    }
}

impl Edit for Memory {
    fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    fn read(&self, block: Pblk, kind: &dyn Kind) -> dioxide_journal::Result<Arc<[u8]>> {
        self.reads.set(self.reads.get() + 1);
        let bytes = self.blocks.get(&block.0).cloned();
        let bytes = bytes.unwrap_or_else(|| vec![0; self.block_bytes].into());
        kind.verify(block, &bytes)
            .map_err(|source| block_error(block, source))?;
        Ok(bytes)
    }

    fn modify(
        &mut self,
        block: Pblk,
        kind: &dyn Kind,
        change: &mut dyn FnMut(&mut [u8]) -> dioxide_journal::Result<()>,
    ) -> dioxide_journal::Result<()> {
        let mut bytes = self.read(block, kind)?.to_vec();
        change(&mut bytes)?;
        self.create(block, kind, &bytes)
    }

    fn change_at_close(
        &mut self,
        _: Pblk,
        _: &dyn Kind,
        _: &mut Asked,
    ) -> dioxide_journal::Result<()> {
        unreachable!("the nodes of a map are changed at once")
    }

    fn create(
        &mut self,
        block: Pblk,
        kind: &dyn Kind,
        bytes: &[u8],
    ) -> dioxide_journal::Result<()> {
        assert_eq!(bytes.len(), self.block_bytes);
        let mut bytes = bytes.to_vec();
        kind.seal(block, &mut bytes);
        kind.verify(block, &bytes)
            .expect("what is written is right");
        self.blocks.insert(block.0, bytes.into());
        self.changed.insert(block.0);
        Ok(())
    }

    fn forget(&mut self, block: Pblk) -> dioxide_journal::Result<()> {
        self.blocks.remove(&block.0);
        self.changed.remove(&block.0);
        Ok(())
    }
}

/// A block of the allocator: any bytes.
#[derive(Debug)]
struct Bitmap;

impl Kind for Bitmap {
    fn name(&self) -> &'static str {
        "bitmap"
    }

    fn verify(&self, _: Pblk, _: &[u8]) -> dioxide_format::Result<()> {
        Ok(())
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}
}

/// Where bitmaps and descriptors of the groups are said to lie: outside the device.
const BITMAPS: u64 = 1 << 50;
const DESCRIPTORS: u64 = 1 << 51;

/// An allocator that jumps from group to group, and can be out of space.
#[derive(Clone)]
pub(crate) struct Pool {
    /// What is in use, in clusters.
    pub(crate) used: BTreeSet<u64>,
    /// How many tree blocks there are left.
    pub(crate) left: u32,
    /// The map is damaged: it may free what is free.
    pub(crate) damaged: bool,
    ratio: u64,
    group_blocks: u64,
    next_tree: u64,
    next_data: u64,
    end: u64,
}

impl Pool {
    /// Over the blocks of `owner`: data below, tree blocks above the middle.
    pub(crate) fn new(owner: &Owner, group_blocks: u64) -> Self {
        let ratio = u64::from(owner.cluster_ratio);
        let middle = (owner.physical.end / 2).next_multiple_of(ratio);
        Self {
            used: BTreeSet::new(),
            left: u32::MAX,
            damaged: false,
            ratio,
            group_blocks,
            next_tree: middle,
            next_data: owner.physical.start.next_multiple_of(ratio),
            end: owner.physical.end,
        }
    }

    /// Data blocks in whole clusters, `skip` clusters behind the last.
    pub(crate) fn data(&mut self, skip: u64, clusters: u64) -> Pblk {
        let start = self.next_data + skip * self.ratio;
        self.next_data = start + clusters * self.ratio;
        assert!(self.next_data < self.end / 2, "the test needs less data");
        let first = start / self.ratio;
        self.used.extend(first..first + clusters);
        Pblk(start)
    }

    fn groups(&self, run: PhysicalRun) -> std::ops::RangeInclusive<u64> {
        let last = run.start.0 + u64::from(run.len) - 1;
        run.start.0 / self.group_blocks..=last / self.group_blocks
    }

    fn count(&self, edit: &mut dyn Edit, run: PhysicalRun) {
        for group in self.groups(run) {
            for block in [BITMAPS + group, DESCRIPTORS + group] {
                edit.modify(Pblk(block), &Bitmap, &mut |_| Ok(()))
                    .expect("memory");
            }
        }
    }
}

/// The error of a pool that is empty.
pub(crate) fn no_space() -> Error {
    Error::NoSpace(Shortage::ScatteredClusters)
}

impl Blocks for Pool {
    fn allocate_tree_block(&mut self, edit: &mut dyn Edit, goal: Pblk) -> Result<Pblk> {
        assert!(goal.0 < self.end, "goal {goal}");
        self.left = self.left.checked_sub(1).ok_or_else(no_space)?;
        self.next_tree += self.group_blocks.next_multiple_of(self.ratio) + self.ratio;
        assert!(self.next_tree < self.end, "the test needs fewer nodes");
        let start = Pblk(self.next_tree);
        assert!(self.used.insert(start.0 / self.ratio));
        self.count(edit, PhysicalRun { start, len: 1 });
        Ok(start)
    }

    fn free(&mut self, edit: &mut dyn Edit, run: PhysicalRun) -> Result<()> {
        let whole = |blocks: u64| blocks.is_multiple_of(self.ratio);
        assert!(whole(run.start.0) && whole(run.len.into()));
        let first = run.start.0 / self.ratio;
        for cluster in first..first + u64::from(run.len) / self.ratio {
            if !self.used.remove(&cluster) {
                assert!(self.damaged, "cluster {cluster} freed twice");
                return Err(Error::Invalid(format!("cluster {cluster} is free")));
            }
        }
        self.count(edit, run);
        Ok(())
    }

    fn free_credits(&self, run: PhysicalRun) -> u32 {
        self.groups(run).count() as u32 * 2
    }
}

/// An inode on a device of 2^32 blocks.
pub(crate) fn owner(cluster_ratio: u32, seed: Option<u32>) -> Owner {
    Owner {
        ino: Ino(12),
        seed,
        physical: 1..1 << 32,
        cluster_ratio,
    }
}
