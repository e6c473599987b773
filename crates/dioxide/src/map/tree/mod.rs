//! Changing a file's extent tree.
//!
//! For: finding, inserting, removing, converting and shifting extents on the disk. Not for: lookups
//! of readers ([`super::ExtentMap`]), file data, or choosing blocks ([`Blocks`] does).
//!
//! A change is planned in memory first: the nodes on its way are read, checked and edited there.
//! Only then it is known how many tree blocks it needs. They are allocated, and when that succeeded
//! the nodes are written. So a change that fails for want of space, or for damage in the tree, has
//! changed nothing.
//!
//! Invariants of a tree after a change, as the kernel demands them: no node but the root is empty,
//! an index entry says exactly where its child starts, a root with a single child has more entries
//! below than would fit in itself. Two extents of one leaf that could be one, are one.
//!
//! Not in here: taking entries to a neighbour node. Like ext4, a node is split when it is full and
//! goes when it is empty. The end of a file that grows leaves full nodes behind.
//!
//! Rejected: editing blocks in place from the leaf up, with the worst case allocated first and the
//! rest given back. It asks for more blocks than it needs when space is short, and each step needs
//! its own way back.

mod apply;
mod blocks;
#[cfg(test)]
mod debugfs_tests;
mod leaf;
mod node;
mod plan;
#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;

pub(crate) use blocks::{Blocks, Owner, PhysicalRun, free_tree_block};
pub(crate) use node::{I_BLOCK_BYTES, format_error, journal_error};

use crate::Result;
use dioxide_format::extent::Extent;
use dioxide_format::types::{Lblk, Pblk};
use dioxide_journal::Edit;
use plan::Plan;
use std::ops::Range;

/// Metadata blocks that allocating one tree block, or freeing one cluster, changes: a bitmap and a
/// block of group descriptors.
pub(crate) const CREDITS_PER_CLUSTER: u32 = 2;

/// Most metadata blocks that one insertion changes in a tree of this depth, those of the allocator
/// included and the inode's not: on each level a node and its new half, and a block for the root's
/// entries when it grows.
pub(crate) const fn credits_for_insert(depth: u16) -> u32 {
    let depth = depth as u32;
    let new = depth + 1;
    depth + new * (1 + CREDITS_PER_CLUSTER)
}

/// Least `max_credits` with which [`Tree::convert_some`] gets on; enough for a range in one extent.
pub(crate) const fn credits_for_convert(depth: u16) -> u32 {
    credits_for_insert(depth)
}

/// Least `max_credits` with which [`Tree::shift_some`] gets on. `leaves` is 1; with bigalloc one
/// more than the leaves over which the extents of a cluster spread, for they move together.
pub(crate) const fn credits_for_shift(depth: u16, leaves: u32) -> u32 {
    credits_for_insert(depth) * leaves
}

/// Least `max_credits` with which [`Tree::remove_some`] gets on. `data` is [`Blocks::free_credits`]
/// of the longest extent, in whole clusters.
pub(crate) const fn credits_for_remove(depth: u16, data: u32) -> u32 {
    credits_for_insert(depth) + data
}

/// How far an operation in steps has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// To the end.
    Done,
    /// This part of the range is left for the next transaction. The tree is whole in between.
    More(Range<u64>),
}

impl Progress {
    /// What of a range is left; an empty part at its end if nothing is.
    pub(crate) fn left(self, range: &Range<u64>) -> Range<u64> {
        match self {
            Progress::Done => range.end..range.end,
            Progress::More(left) => left,
        }
    }
}

/// What blocks of a file hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Data.
    Written,
    /// Nothing yet: they read as zeros.
    Unwritten,
}

/// A file's extent tree. The root are the 60 bytes of `i_block`; the caller puts them back into the
/// inode after a change.
///
/// Ranges are logical blocks, at most `0..`[`LBLK_END`](dioxide_format::extent::LBLK_END). Every call blocks on metadata. Errors of every
/// call: damage (`Corrupt`, `Checksum`) with its place, and those of the device and the journal;
/// calls that take `blocks` also its errors, above all for want of space. An error leaves the tree
/// as it was, unless the journal aborted or `blocks` refused to free: then the tree is whole without
/// the blocks, and they are lost until `e2fsck` runs.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    owner: &'a Owner,
    root: &'a mut [u8; I_BLOCK_BYTES],
}

impl<'a> Tree<'a> {
    /// The tree with this root. Nothing is read or checked yet.
    pub(crate) fn new(owner: &'a Owner, root: &'a mut [u8; I_BLOCK_BYTES]) -> Self {
        Self { owner, root }
    }

    /// The root of a file without blocks.
    pub(crate) fn empty_root() -> [u8; I_BLOCK_BYTES] {
        node::empty_root()
    }

    /// Distance from the root to the leaves, as the root says, which is not checked; at most 5.
    pub(crate) fn depth_of(root: &[u8; I_BLOCK_BYTES]) -> u16 {
        u16::from_le_bytes([root[6], root[7]]).min(5)
    }

    /// Whether nothing is mapped.
    pub(crate) fn is_empty(&self, edit: &dyn Edit) -> Result<bool> {
        Ok(self.plan(edit)?.is_empty())
    }

    /// Calls `each` with every extent that overlaps `range`, in ascending order and not clipped.
    /// Stops at its first error.
    pub(crate) fn for_each(
        &self,
        edit: &dyn Edit,
        range: Range<u64>,
        each: &mut dyn FnMut(Extent) -> Result<()>,
    ) -> Result<()> {
        self.plan(edit)?.for_each(range, each)
    }

    /// With bigalloc: the start of the cluster that backs `lblk` already because other blocks of
    /// the same logical cluster are mapped. An extent inserted there must point into it.
    pub(crate) fn implied_cluster(&self, edit: &dyn Edit, lblk: Lblk) -> Result<Option<Pblk>> {
        let cluster = u64::from(lblk.0) / u64::from(self.owner.cluster_ratio);
        self.plan(edit)?.cluster(cluster)
    }

    /// Inserts an extent into a hole, and joins it with its neighbours where they fit.
    ///
    /// # Errors
    /// `Invalid` when blocks of it are mapped, or when it is longer than its state allows.
    pub(crate) fn insert(
        &mut self,
        edit: &mut dyn Edit,
        blocks: &mut dyn Blocks,
        extent: Extent,
    ) -> Result<()> {
        self.change(edit, blocks, |plan, _| plan.insert(extent))
    }

    /// As [`Tree::insert`], without freeing a node: the tree does not become less deep.
    pub(crate) fn insert_only(
        &mut self,
        edit: &mut dyn Edit,
        blocks: &mut dyn Blocks,
        extent: Extent,
    ) -> Result<()> {
        self.change(edit, blocks, |plan, _| {
            plan.keep_nodes();
            plan.insert(extent)
        })
    }

    /// Removes what is mapped in `range` and frees it, from the left, as much as `max_credits` changed
    /// blocks allow. With bigalloc a cluster is freed with the last of its blocks. After a crash the
    /// same call with the first range goes on.
    ///
    /// # Errors
    /// `Invalid` when `max_credits` are too few, see [`credits_for_remove`].
    pub(crate) fn remove_some(
        &mut self,
        edit: &mut dyn Edit,
        blocks: &mut dyn Blocks,
        range: Range<u64>,
        max_credits: u32,
    ) -> Result<Progress> {
        self.change(edit, blocks, |plan, blocks| {
            plan.remove(range, max_credits, blocks)
        })
    }

    /// Whether [`Tree::remove_some`] would find its way: plans it, and changes nothing.
    pub(crate) fn check_remove(
        &self,
        edit: &dyn Edit,
        blocks: &dyn Blocks,
        range: Range<u64>,
        max_credits: u32,
    ) -> Result<()> {
        let mut plan = self.plan(edit)?;
        plan.remove(range, max_credits, blocks).map(drop)
    }

    /// Makes what is mapped in `range` written or unwritten, from the left, as much as `max_credits`
    /// changed blocks allow.
    ///
    /// # Errors
    /// `Invalid` when `max_credits` are too few, see [`credits_for_convert`].
    pub(crate) fn convert_some(
        &mut self,
        edit: &mut dyn Edit,
        blocks: &mut dyn Blocks,
        range: Range<u64>,
        to: State,
        max_credits: u32,
    ) -> Result<Progress> {
        self.change(edit, blocks, |plan, _| plan.convert(range, to, max_credits))
    }

    /// Moves what is mapped in `range` by `delta` blocks, to the left if it is negative, as much as
    /// `max_credits` changed blocks allow: from the left when it goes to the left, else from the right.
    /// Extents that reach over an end of the range are split. In between a part is moved and the rest
    /// not, as in ext4.
    ///
    /// # Errors
    /// `Invalid` when it would meet what is mapped outside the range, leave the file, or break
    /// clusters apart; and when `max_credits` are too few, see [`credits_for_shift`].
    pub(crate) fn shift_some(
        &mut self,
        edit: &mut dyn Edit,
        blocks: &mut dyn Blocks,
        range: Range<u64>,
        delta: i64,
        max_credits: u32,
    ) -> Result<Progress> {
        self.change(edit, blocks, |plan, _| {
            plan.shift(range, delta, max_credits)
        })
    }

    /// Over how many leaves at most the extents of a cluster spread, in a range.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn most_leaves_of_cluster(&self, edit: &dyn Edit, range: Range<u64>) -> Result<u32> {
        self.plan(edit)?.most_leaves_of_cluster(range)
    }

    fn plan<'p>(&'p self, edit: &'p dyn Edit) -> Result<Plan<'p>> {
        Plan::new(self.owner, edit, self.root)
    }

    /// Plans with `plan`, then does it.
    fn change<T>(
        &mut self,
        edit: &mut dyn Edit,
        blocks: &mut dyn Blocks,
        plan: impl FnOnce(&mut Plan<'_>, &dyn Blocks) -> Result<T>,
    ) -> Result<T> {
        let mut planned = self.plan(edit)?;
        let result = plan(&mut planned, blocks)?;
        let changes = planned.into_changes();
        changes.apply(self.owner, edit, blocks, self.root)?;
        Ok(result)
    }
}
