//! A change, planned in memory.
//!
//! A plan holds the nodes that were read or made, by their blocks. The root and new nodes have no
//! block; numbers that no block can have stand for them ([`ROOT`], [`FIRST_NEW`] and up).
//!
//! Invariants between two calls: every node in the plan fits its block, is not empty (but for the
//! root), and starts where its parent says. A leaf is edited by [`Plan::replace`] only, which settles
//! the nodes above.

use super::apply::Changes;
use super::blocks::{Blocks, Owner, PhysicalRun};
use super::leaf::{self, Cut};
use super::node::{ExtentBlock, I_BLOCK_BYTES, first_key, format_error, journal_error, overflows};
use super::{CREDITS_PER_CLUSTER, Progress, State, credits_for_insert};
use crate::{Error, Result};
use dioxide_format::extent::{
    Extent, ExtentEntries, ExtentIndex, ExtentNode, LBLK_END, MAX_DEPTH, max_entries,
};
use dioxide_format::types::{Lblk, Pblk};
use dioxide_journal::Edit;
use std::collections::BTreeMap;
use std::ops::Range;

/// Stands for the root, which lies in the inode.
pub(super) const ROOT: Pblk = Pblk(u64::MAX);
/// Stands for the first new node. Block numbers have 48 bits.
pub(super) const FIRST_NEW: u64 = 1 << 48;
/// One past the last block that a file can have: its length in blocks is a 32-bit number.
const FILE_END: u64 = LBLK_END - 1;
const STRUCTURE: &str = "extent tree";

/// What becomes of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Unchanged,
    Changed,
    /// To be made, near this block.
    New(Pblk),
    /// To be freed.
    Dropped,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) node: ExtentNode,
    pub(super) fate: Fate,
}

/// The way to a leaf: index nodes from the root down, each with the position of the child taken.
pub(super) struct Path {
    steps: Vec<(Pblk, usize)>,
    leaf: Pblk,
    /// The blocks that belong into the leaf; for the first leaf also those before its key.
    logical: Range<u64>,
}

pub(super) struct Plan<'a> {
    owner: &'a Owner,
    edit: &'a dyn Edit,
    nodes: BTreeMap<Pblk, Slot>,
    freed: Vec<PhysicalRun>,
    /// Number of the next new node.
    next_new: u64,
    /// Metadata blocks that the plan changes so far.
    credits: u32,
    /// One past the last logical cluster that was freed.
    freed_clusters: u64,
    /// New entries come at the end of the tree: nodes that are split stay full.
    appending: bool,
    /// The root takes in no child.
    keeps_nodes: bool,
}

impl<'a> Plan<'a> {
    pub(super) fn new(
        owner: &'a Owner,
        edit: &'a dyn Edit,
        root: &[u8; I_BLOCK_BYTES],
    ) -> Result<Self> {
        let mut plan = Self {
            owner,
            edit,
            nodes: BTreeMap::new(),
            freed: Vec::new(),
            next_new: FIRST_NEW,
            credits: 0,
            freed_clusters: 0,
            appending: false,
            keeps_nodes: false,
        };
        let node = plan.parse(root, None, None, 0..LBLK_END)?;
        let fate = Fate::Unchanged;
        plan.nodes.insert(ROOT, Slot { node, fate });
        Ok(plan)
    }

    /// No node is to be freed by what is inserted.
    pub(super) fn keep_nodes(&mut self) {
        self.keeps_nodes = true;
    }

    pub(super) fn into_changes(self) -> Changes {
        Changes::new(self.nodes, self.freed)
    }

    pub(super) fn depth(&self) -> u16 {
        self.node(ROOT).depth()
    }

    pub(super) fn is_empty(&self) -> bool {
        match &self.node(ROOT).entries {
            ExtentEntries::Leaf(extents) => extents.is_empty(),
            ExtentEntries::Index(indices) => indices.is_empty(),
        }
    }

    // Reading.

    /// The extent that holds `lblk`, or the first behind it.
    fn next(&mut self, lblk: u64) -> Result<Option<Extent>> {
        let mut at = lblk;
        while at < LBLK_END {
            let path = self.descend(at)?;
            let extents = self.node(path.leaf).extents();
            if let Some(extent) = extents.get(leaf::position(extents, at)) {
                return Ok(Some(*extent));
            }
            at = path.logical.end;
        }
        Ok(None)
    }

    /// The last extent that starts before `lblk`.
    fn before(&mut self, lblk: u64) -> Result<Option<Extent>> {
        let Some(last) = lblk.checked_sub(1) else {
            return Ok(None);
        };
        let path = self.descend(last)?;
        let node = self.node(path.leaf);
        let position = node.search(Lblk(last as u32));
        Ok(position.map(|at| node.extents()[at]))
    }

    pub(super) fn for_each(
        &mut self,
        range: Range<u64>,
        each: &mut dyn FnMut(Extent) -> Result<()>,
    ) -> Result<()> {
        let range = clip(range);
        let mut at = range.start;
        while at < range.end {
            let path = self.descend(at)?;
            let extents = self.node(path.leaf).extents();
            let inside = extents[leaf::position(extents, at)..].iter();
            let starts_before_end = |e: &&Extent| u64::from(e.lblk.0) < range.end;
            inside
                .take_while(starts_before_end)
                .try_for_each(|e| each(*e))?;
            at = path.logical.end;
            // A walk over a large file must not keep all of its tree.
            self.nodes.retain(|_, slot| slot.node.depth() > 0);
            if path.leaf == ROOT {
                break;
            }
        }
        Ok(())
    }

    /// Start of the device's cluster that backs a logical cluster; none if nothing of it is mapped.
    pub(super) fn cluster(&mut self, cluster: u64) -> Result<Option<Pblk>> {
        let ratio = u64::from(self.owner.cluster_ratio);
        let start = cluster * ratio;
        let extent = self.next(start)?;
        let inside = extent.and_then(|e| leaf::part(&e, &(start..start + ratio)));
        Ok(inside.map(|e| Pblk(e.pblk.0 / ratio * ratio)))
    }

    fn node(&self, at: Pblk) -> &ExtentNode {
        &self.nodes[&at].node
    }

    fn parse(
        &self,
        bytes: &[u8],
        block: Option<Pblk>,
        depth: Option<u16>,
        logical: Range<u64>,
    ) -> Result<ExtentNode> {
        let format = |error| format_error(self.owner, block, error);
        let node = ExtentNode::parse(bytes, depth).map_err(format)?;
        // A block was judged by its kind when it was read, but for what its parent says of it.
        let last = node.extents().last().map(Extent::end);
        if block.is_none() || last.is_some_and(|end| end > logical.end) || depth != Some(0) {
            node.validate(logical, self.owner.physical.clone())
                .map_err(format)?;
        }
        let ratio = u64::from(self.owner.cluster_ratio);
        if ratio == 1 {
            return Ok(node);
        }
        let apart = |e: &&Extent| u64::from(e.lblk.0) % ratio != e.pblk.0 % ratio;
        match node.extents().iter().find(apart) {
            None => Ok(node),
            Some(Extent { lblk, pblk, .. }) => {
                let what = format!("block {lblk} at {pblk} lies askew in its cluster");
                Err(self.owner.corrupt(STRUCTURE, block, what))
            }
        }
    }

    /// Brings a child into the plan. It must be what its parent says.
    fn load(&mut self, block: Pblk, depth: u16, logical: Range<u64>) -> Result<()> {
        if !self.nodes.contains_key(&block) {
            let bytes = self
                .edit
                .read(block, &ExtentBlock::of(self.owner))
                .map_err(|error| journal_error(self.owner, error))?;
            let node = self.parse(&bytes, Some(block), Some(depth), logical.clone())?;
            let fate = Fate::Unchanged;
            self.nodes.insert(block, Slot { node, fate });
        }
        let Slot { node, fate } = &self.nodes[&block];
        let starts = first_key(node) == Some(logical.start);
        if starts && node.depth() == depth && *fate != Fate::Dropped {
            return Ok(());
        }
        let what = format!(
            "expected a node of depth {depth} that starts at {}",
            logical.start
        );
        Err(self.owner.corrupt(STRUCTURE, Some(block), what))
    }

    /// Goes to the leaf where `lblk` is or would be. Depth falls with every step.
    fn descend(&mut self, lblk: u64) -> Result<Path> {
        let mut path = Path {
            steps: Vec::new(),
            leaf: ROOT,
            logical: 0..LBLK_END,
        };
        while self.node(path.leaf).depth() > 0 {
            let node = self.node(path.leaf);
            let position = node.search(Lblk(lblk as u32)).unwrap_or(0);
            let (child, depth) = (node.indices()[position].leaf, node.depth() - 1);
            let logical = node.child_range(position, &path.logical);
            if position > 0 {
                path.logical.start = logical.start;
            }
            path.logical.end = logical.end;
            self.load(child, depth, logical)?;
            path.steps.push((path.leaf, position));
            path.leaf = child;
        }
        Ok(path)
    }

    // The four changes.

    pub(super) fn insert(&mut self, extent: Extent) -> Result<()> {
        self.check_new(&extent)?;
        let path = self.descend(extent.lblk.0.into())?;
        let mut extents = self.node(path.leaf).extents().to_vec();
        let at = leaf::position(&extents, extent.lblk.0.into());
        let next = extents.get(at).map(|e| u64::from(e.lblk.0));
        if extent.end() > next.unwrap_or(path.logical.end) {
            return Err(self.invalid("insert", "blocks that are mapped already"));
        }
        self.appending = at == extents.len() && path.logical.end == LBLK_END;
        extents.insert(at, extent);
        self.replace(path, extents)
    }

    fn check_new(&self, extent: &Extent) -> Result<()> {
        let Owner {
            physical,
            cluster_ratio,
            ..
        } = self.owner;
        let (start, ratio) = (extent.pblk.0, u64::from(*cluster_ratio));
        let len_fits = (1..=leaf::max_len(extent.unwritten)).contains(&extent.len);
        let inside = start >= physical.start && start + u64::from(extent.len) <= physical.end;
        let in_cluster = start % ratio == u64::from(extent.lblk.0) % ratio;
        if len_fits && inside && in_cluster && extent.end() <= FILE_END {
            return Ok(());
        }
        Err(self.invalid("insert", format!("{extent:?}")))
    }

    pub(super) fn remove(
        &mut self,
        range: Range<u64>,
        max_credits: u32,
        blocks: &dyn Blocks,
    ) -> Result<Progress> {
        let range = clip(range);
        let mut at = range.start;
        while at < range.end {
            let Some(mut room) = self.room(max_credits) else {
                return self.pause(at..range.end);
            };
            let path = self.descend(at)?;
            let whole = path.logical.end;
            let afford = |piece: &Extent| {
                let cost = blocks.free_credits(self.clusters_of(piece));
                let left = room.checked_sub(cost);
                room = left.unwrap_or(room);
                left.is_some()
            };
            let Cut {
                kept,
                removed,
                stopped,
            } = leaf::cut(self.node(path.leaf).extents(), &(at..range.end), afford);
            self.replace(path, kept)?;
            for piece in removed {
                self.credits += blocks.free_credits(self.clusters_of(&piece));
                self.release(&piece)?;
            }
            if let Some(stopped) = stopped {
                return self.pause(stopped..range.end);
            }
            at = whole;
        }
        Ok(Progress::Done)
    }

    pub(super) fn convert(
        &mut self,
        range: Range<u64>,
        to: State,
        max_credits: u32,
    ) -> Result<Progress> {
        let range = clip(range);
        let mut at = range.start;
        while at < range.end {
            if self.room(max_credits).is_none() {
                return self.pause(at..range.end);
            }
            let path = self.descend(at)?;
            let whole = path.logical.end;
            let extents = self.node(path.leaf).extents();
            let unwritten = to == State::Unwritten;
            let (flipped, stopped) = leaf::flip(extents, &(at..range.end), unwritten);
            self.replace(path, flipped)?;
            at = stopped.unwrap_or(whole);
        }
        Ok(Progress::Done)
    }

    pub(super) fn shift(
        &mut self,
        range: Range<u64>,
        delta: i64,
        max_credits: u32,
    ) -> Result<Progress> {
        let mut range = clip(range);
        if delta == 0 {
            return Ok(Progress::Done);
        }
        self.check_shift(&range, delta)?;
        while range.start < range.end {
            let mut piece = self.piece_to_shift(&range, delta)?;
            let leaves = self.leaves(&piece)?;
            if self.room_for(leaves, max_credits).is_none() {
                return self.pause(range);
            }
            shrink(&mut range, &piece, delta);
            while piece.start < piece.end {
                self.shift_leaf(&mut piece, delta)?;
            }
        }
        Ok(Progress::Done)
    }

    fn shift_leaf(&mut self, range: &mut Range<u64>, delta: i64) -> Result<()> {
        let path = self.descend(leading_end(range, delta))?;
        let logical = path.logical.clone();
        let moved = leaf::slide(self.node(path.leaf).extents(), range, delta);
        self.replace(path, moved)?;
        shrink(range, &logical, delta);
        Ok(())
    }

    /// What is shifted before the step may end: the part of the range in one leaf, but never a part
    /// of a cluster. When leaves meet inside a cluster, that is a piece of its own.
    fn piece_to_shift(&mut self, range: &Range<u64>, delta: i64) -> Result<Range<u64>> {
        let ratio = u64::from(self.owner.cluster_ratio);
        let first = leading_end(range, delta);
        let leaf = self.descend(first)?.logical;
        let cluster = first / ratio * ratio;
        let end = leaf.end / ratio * ratio;
        let start = leaf.start.next_multiple_of(ratio);
        Ok(if delta < 0 {
            range.start..end.max(cluster + ratio).min(range.end)
        } else {
            start.min(cluster).max(range.start)..range.end
        })
    }

    /// How many leaves a range touches.
    fn leaves(&mut self, range: &Range<u64>) -> Result<u32> {
        let (mut at, mut leaves) = (range.start, 0);
        while at < range.end {
            at = self.descend(at)?.logical.end;
            leaves += 1;
        }
        Ok(leaves)
    }

    /// In how many leaves at most blocks of one cluster lie, in a range.
    pub(super) fn most_leaves_of_cluster(&mut self, range: Range<u64>) -> Result<u32> {
        let (range, ratio) = (clip(range), u64::from(self.owner.cluster_ratio));
        let (mut at, mut cluster, mut leaves, mut most) = (range.start, None, 0, 1);
        while at < range.end {
            let end = self.descend(at)?.logical.end.min(range.end);
            let (first, last) = (at / ratio, (end - 1) / ratio);
            leaves = if cluster == Some(first) {
                leaves + 1
            } else {
                1
            };
            most = most.max(leaves);
            if last > first {
                leaves = 1;
            }
            (at, cluster) = (end, Some(last));
        }
        Ok(most)
    }

    /// Whether blocks of one cluster are mapped on both sides of `at`.
    fn divides_cluster(&mut self, at: u64) -> Result<bool> {
        let ratio = u64::from(self.owner.cluster_ratio);
        let start = at / ratio * ratio;
        if start == at {
            return Ok(false);
        }
        let before = self.before(at)?.is_some_and(|e| e.end() > start);
        let behind = self.next(at)?.map(|e| at.max(e.lblk.0.into()));
        Ok(before && behind.is_some_and(|at| at < start + ratio))
    }

    /// Refuses to move an extent onto another, out of the file, or apart from its cluster.
    fn check_shift(&mut self, range: &Range<u64>, delta: i64) -> Result<()> {
        let refuse = |plan: &Self, what| Err(plan.invalid("shift", what));
        let ratio = u64::from(self.owner.cluster_ratio);
        let first = self.next(range.start)?;
        let Some(first) = first.and_then(|e| leaf::part(&e, range)) else {
            return Ok(());
        };
        let Some(last) = self.before(range.end)?.and_then(|e| leaf::part(&e, range)) else {
            return Ok(());
        };
        let divides = self.divides_cluster(range.start)? || self.divides_cluster(range.end)?;
        if divides || !delta.unsigned_abs().is_multiple_of(ratio) {
            return refuse(self, "parts of clusters");
        }
        let from = u64::from(first.lblk.0).checked_add_signed(delta);
        let to = last.end().checked_add_signed(delta);
        let (Some(from), Some(to)) = (from, to.filter(|to| *to <= FILE_END)) else {
            return refuse(self, "blocks out of the file");
        };
        let outside_left = self
            .before(range.start)?
            .map_or(0, |e| e.end().min(range.start));
        let outside_right = self
            .next(range.end)?
            .map_or(LBLK_END, |e| range.end.max(e.lblk.0.into()));
        // A logical cluster must not get blocks of two clusters of the device.
        let touches_left = from / ratio * ratio < outside_left;
        if touches_left || to.next_multiple_of(ratio) > outside_right {
            return refuse(self, "blocks onto others");
        }
        Ok(())
    }

    // Steps.

    /// Credits left for data after the worst that one leaf's edit can take; none if not even that.
    fn room(&self, max_credits: u32) -> Option<u32> {
        self.room_for(1, max_credits)
    }

    fn room_for(&self, leaves: u32, max_credits: u32) -> Option<u32> {
        let worst = credits_for_insert(self.depth()).checked_mul(leaves)?;
        max_credits.checked_sub(self.credits)?.checked_sub(worst)
    }

    /// The step ends here.
    fn pause(&self, rest: Range<u64>) -> Result<Progress> {
        if self.credits > 0 {
            return Ok(Progress::More(rest));
        }
        Err(self.invalid("change a tree", "with too few credits"))
    }

    fn invalid(&self, verb: &str, what: impl std::fmt::Display) -> Error {
        Error::Invalid(format!("inode {}: cannot {verb} {what}", self.owner.ino))
    }

    // Freeing data.

    fn clusters_of(&self, extent: &Extent) -> PhysicalRun {
        let run = PhysicalRun {
            start: extent.pblk,
            len: extent.len.into(),
        };
        run.whole_clusters(self.owner.cluster_ratio)
    }

    /// Frees the clusters of a removed piece that back nothing else. Pieces come in ascending order.
    fn release(&mut self, piece: &Extent) -> Result<()> {
        let ratio = u64::from(self.owner.cluster_ratio);
        let mut run = self.clusters_of(piece);
        let mut first = u64::from(piece.lblk.0) / ratio;
        let mut end = piece.end().div_ceil(ratio);
        let last = end - 1;
        if ratio > 1 && last > first && self.cluster(last)?.is_some() {
            end -= 1;
        }
        if ratio > 1 && (self.freed_clusters > first || self.cluster(first)?.is_some()) {
            run.start.0 += ratio;
            first += 1;
        }
        if first < end {
            run.len = ((end - first) * ratio) as u32;
            self.freed_clusters = end;
            let joined = self.freed.last_mut().is_some_and(|before| before.join(run));
            if !joined {
                self.freed.push(run);
            }
        }
        Ok(())
    }

    // Editing nodes.

    /// Gives a leaf new extents, and makes the nodes above fit. Does nothing if they are the same.
    fn replace(&mut self, path: Path, mut extents: Vec<Extent>) -> Result<()> {
        if self.node(path.leaf).extents() == extents {
            return Ok(());
        }
        leaf::join(&mut extents);
        self.edit_node(path.leaf).entries = ExtentEntries::Leaf(extents);
        let mut child = path.leaf;
        for (parent, position) in path.steps.into_iter().rev() {
            self.settle(parent, position, child);
            child = parent;
        }
        self.settle_root()
    }

    /// A node, to be changed.
    fn edit_node(&mut self, at: Pblk) -> &mut ExtentNode {
        let slot = self.nodes.get_mut(&at).expect("nodes in use are loaded");
        if slot.fate == Fate::Unchanged {
            slot.fate = Fate::Changed;
            self.credits += u32::from(at != ROOT);
        }
        &mut slot.node
    }

    fn edit_index(&mut self, at: Pblk) -> &mut Vec<ExtentIndex> {
        match &mut self.edit_node(at).entries {
            ExtentEntries::Index(index) => index,
            ExtentEntries::Leaf(_) => unreachable!("a parent is an index node"),
        }
    }

    /// After `child`, at `position` of `parent`, was changed: drops it if it is empty, splits it if it
    /// is too full, and corrects its parent.
    fn settle(&mut self, parent: Pblk, position: usize, child: Pblk) {
        let Some(key) = first_key(self.node(child)) else {
            self.edit_index(parent).remove(position);
            return self.drop_node(child);
        };
        if u64::from(self.node(parent).indices()[position].lblk.0) != key {
            self.edit_index(parent)[position].lblk = Lblk(key as u32);
        }
        let (mut position, mut left) = (position, child);
        while overflows(self.node(left)) {
            let right = self.split(left);
            position += 1;
            self.edit_index(parent).insert(position, right);
            left = right.leaf;
        }
    }

    /// Moves the end of a node into a new one.
    fn split(&mut self, left: Pblk) -> ExtentIndex {
        let node = self.node(left);
        let max = usize::from(node.header.eh_max);
        let half = max.min(node.len() / 2);
        let (at, depth) = (if self.appending { max } else { half }, node.depth());
        let goal = match self.nodes[&left].fate {
            Fate::New(goal) => goal,
            _ => left,
        };
        let entries = match &mut self.edit_node(left).entries {
            ExtentEntries::Leaf(extents) => ExtentEntries::Leaf(extents.split_off(at)),
            ExtentEntries::Index(index) => ExtentEntries::Index(index.split_off(at)),
        };
        self.add_node(depth, entries, goal)
    }

    /// Makes a new node; the entry for its parent.
    fn add_node(&mut self, depth: u16, entries: ExtentEntries, goal: Pblk) -> ExtentIndex {
        let max = max_entries(self.edit.block_bytes() as u32);
        let node = ExtentNode::new(max, depth, entries);
        // A node that is split has at least two entries, and one that comes of a root more.
        let key = first_key(&node).expect("a new node has entries");
        let block = Pblk(self.next_new);
        self.next_new += 1;
        self.credits += 1 + CREDITS_PER_CLUSTER;
        let fate = Fate::New(goal);
        self.nodes.insert(block, Slot { node, fate });
        ExtentIndex::new(Lblk(key as u32), block)
    }

    fn drop_node(&mut self, at: Pblk) {
        let slot = self.nodes.get_mut(&at).expect("nodes in use are loaded");
        match slot.fate {
            Fate::New(_) => {
                self.credits -= 1 + CREDITS_PER_CLUSTER;
                self.nodes.remove(&at);
                return;
            }
            Fate::Changed => self.credits -= 1,
            _ => {}
        }
        slot.fate = Fate::Dropped;
        self.credits += CREDITS_PER_CLUSTER;
    }

    /// Makes the tree deeper when the root is too full, less deep when it can hold its only child.
    fn settle_root(&mut self) -> Result<()> {
        if overflows(self.node(ROOT)) {
            return self.grow();
        }
        if self.node(ROOT).is_empty() && self.depth() > 0 {
            let root = self.edit_node(ROOT);
            root.header.eh_depth = 0;
            root.entries = ExtentEntries::Leaf(Vec::new());
        }
        while !self.keeps_nodes
            && let [only] = self.node(ROOT).indices()
        {
            let (child, range, depth) = (
                only.leaf,
                u64::from(only.lblk.0)..LBLK_END,
                self.depth() - 1,
            );
            self.load(child, depth, range)?;
            let node = self.node(child);
            if node.len() > usize::from(self.node(ROOT).header.eh_max) {
                break;
            }
            let entries = node.entries.clone();
            let root = self.edit_node(ROOT);
            root.header.eh_depth = depth;
            root.entries = entries;
            self.drop_node(child);
        }
        Ok(())
    }

    /// Moves the root's entries into a new node, the root's only child.
    fn grow(&mut self) -> Result<()> {
        let depth = self.depth();
        if depth == MAX_DEPTH {
            let what = format!(
                "the extent tree of inode {} is full; copy the file to where free blocks lie together",
                self.owner.ino
            );
            return Err(Error::TooLarge(what));
        }
        let entries = self.node(ROOT).entries.clone();
        let goal = match &entries {
            ExtentEntries::Leaf(extents) => extents.first().map(|e| e.pblk),
            ExtentEntries::Index(index) => index.first().map(|i| i.leaf),
        };
        let goal = goal.filter(|goal| goal.0 < FIRST_NEW).unwrap_or(Pblk(0));
        let child = self.add_node(depth, entries, goal);
        let root = self.edit_node(ROOT);
        root.header.eh_depth = depth + 1;
        root.entries = ExtentEntries::Index(vec![child]);
        self.settle(ROOT, 0, child.leaf);
        if overflows(self.node(ROOT)) {
            return self.grow();
        }
        Ok(())
    }
}

/// Keeps a range where blocks can be.
fn clip(range: Range<u64>) -> Range<u64> {
    range.start..range.end.min(LBLK_END)
}

/// The block of a range that is shifted first.
fn leading_end(range: &Range<u64>, delta: i64) -> u64 {
    if delta < 0 {
        range.start
    } else {
        range.end - 1
    }
}

/// Takes `done` off the end of a range that is shifted first.
fn shrink(range: &mut Range<u64>, done: &Range<u64>, delta: i64) {
    if delta < 0 {
        range.start = done.end;
    } else {
        range.end = done.start;
    }
}
