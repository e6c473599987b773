//! One file's map under change: where its blocks come from and go, and the inode that goes with it.
//!
//! Extent trees and indirect maps look the same from here, but for what only one of them has.

use super::Writer;
use super::inode::TableBlock;
use crate::alloc::{BlockAllocator, Claim, Goal, Kept, Release, Request, Reservation, Right, Run};
use crate::inode::Inode;
use crate::map::indirect::{self, Indirect};
use crate::map::tree::{
    self, Blocks, CREDITS_PER_CLUSTER, I_BLOCK_BYTES, Owner, PhysicalRun, Progress, State, Tree,
};
use crate::map::{MapGuard, MapKind, Mapping};
use crate::mount::Mount;
use crate::mount::fast_commit::set::Set;
use crate::{Error, FileType, Result};
use dioxide_format::extent::{Extent, ExtentNode};
use dioxide_format::features::RoCompat;
use dioxide_format::inode::{Inode as DiskInode, InodeFlags};
use dioxide_format::types::{Group, Lblk, Pblk};
use dioxide_journal::journal::Handle;
use dioxide_journal::{Edit, Kind};
use std::ops::Range;
use std::sync::Arc;

/// Largest extents of each state, in blocks.
pub(crate) const MOST_WRITTEN: u32 = 1 << 15;
pub(crate) const MOST_UNWRITTEN: u32 = MOST_WRITTEN - 1;

/// The largest block that an indirect map can point to, plus one.
const INDIRECT_END: u64 = 1 << 32;

/// A file's map, and the handle that it is changed through.
pub(crate) struct MapChange<'c, 'j> {
    pub(crate) handle: &'c mut Handle<'j>,
    owner: Owner,
    root: [u8; I_BLOCK_BYTES],
    extents: bool,
    blocks: FileBlocks<'c>,
    /// Blocks were to be taken away.
    cuts: bool,
    /// The handle's credits when everything was last as it was at the beginning.
    intact: u32,
}

/// The blocks of one file, as its map gives and takes them.
pub(crate) struct FileBlocks<'c> {
    mount: &'c Mount,
    writer: &'c Writer,
    release: Release,
    goal: Pblk,
    extents: bool,
    /// Its blocks are metadata: those of a directory, of a symlink, or of an attribute's value.
    is_metadata: bool,
    /// Allocated by this very change: nothing on the disk refers to them.
    fresh: Vec<Pblk>,
    /// Clusters that the file has more than before.
    grown: i64,
    /// Of what was freed.
    kept: Kept,
    /// Clusters that stay in use when it gives them up, if there may be some.
    passed_on: Option<Arc<Set>>,
    /// Clusters that were reserved for the map, as [`Reservation::keep`] keeps them.
    for_tree: u64,
}

impl Blocks for FileBlocks<'_> {
    fn allocate_tree_block(&mut self, edit: &mut dyn Edit, goal: Pblk) -> Result<Pblk> {
        self.allocate_block(edit, goal, Right::Map)
    }

    fn free(&mut self, edit: &mut dyn Edit, run: PhysicalRun) -> Result<()> {
        if self.is_metadata {
            for block in run.start.0..run.start.0 + u64::from(run.len) {
                edit.forget(Pblk(block))?;
            }
        }
        let len = run.len.div_ceil(self.mount.sb.cluster_ratio());
        let start = run.start;
        self.free_run(edit, Run { start, len })
    }

    fn free_credits(&self, run: PhysicalRun) -> u32 {
        self.mount.credits_to_free(run.len)
    }
}

impl FileBlocks<'_> {
    /// A block near `goal`, or near the file if that is 0.
    fn allocate_block(&mut self, edit: &mut dyn Edit, goal: Pblk, right: Right) -> Result<Pblk> {
        let goal = if goal.0 == 0 { self.goal } else { goal };
        let request = Request {
            goal: Goal::Near(goal),
            len: 1..=1,
            stream: None,
            right,
            below: self.mount.groups_below(self.extents),
        };
        let blocks = &self.writer.blocks;
        let run = match (right, self.for_tree) {
            (Right::Map, 1..) => {
                let mut reserved = blocks.reserved(std::mem::take(&mut self.for_tree));
                let run = blocks.allocate_reserved(edit, &request, &mut reserved);
                self.for_tree = reserved.keep();
                run?
            }
            _ => blocks.allocate(edit, &request)?,
        };
        self.grown += 1;
        self.fresh.push(run.start);
        Ok(run.start)
    }

    fn free_run(&mut self, edit: &mut dyn Edit, run: Run) -> Result<()> {
        let fresh = self.fresh.iter().position(|&block| block == run.start);
        let release = match fresh {
            Some(at) if run.len == 1 => {
                self.fresh.swap_remove(at);
                Release::Now
            }
            _ => self.release,
        };
        let kept = match &self.passed_on {
            None => self.writer.blocks.free(edit, run, release)?,
            Some(passed_on) => self.free_outside(passed_on, edit, run, release)?,
        };
        self.kept.add(kept);
        self.grown -= i64::from(run.len);
        Ok(())
    }

    /// Frees the clusters of a run that are not in a set.
    fn free_outside(
        &self,
        passed_on: &Set,
        edit: &mut dyn Edit,
        run: Run,
        release: Release,
    ) -> Result<Kept> {
        let ratio = u64::from(self.mount.sb.cluster_ratio());
        let first = run.start.0 / ratio;
        let mut kept = Kept::default();
        for part in passed_on.outside(first..first + u64::from(run.len)) {
            let run = Run {
                start: Pblk(run.start.0 + (part.start - first) * ratio),
                len: (part.end - part.start) as u32,
            };
            kept.add(self.writer.blocks.free(edit, run, release)?);
        }
        Ok(kept)
    }
}

/// Credits that a change of one step needs at least; what is left of `ample` goes to removing more.
pub(crate) struct Credits;

impl Credits {
    /// Inserting one run.
    pub(crate) fn insert(mount: &Mount, inode: &Inode) -> u32 {
        let map = match inode.is_extent_mapped() {
            true => tree::credits_for_insert(mount.tree_depth(inode) + 1),
            false => indirect::CREDITS_FOR_SET,
        };
        map + BlockAllocator::ALLOCATE_CREDITS
    }

    /// Inserting the first run of a file.
    pub(crate) fn insert_new(mount: &Mount) -> u32 {
        let map = match mount.has_extents() {
            true => tree::credits_for_insert(1),
            false => indirect::CREDITS_FOR_SET,
        };
        map + BlockAllocator::ALLOCATE_CREDITS
    }

    /// Least for removing.
    pub(crate) fn remove(mount: &Mount, inode: &Inode) -> u32 {
        Credits::remove_of(mount, inode, MOST_WRITTEN.into())
    }

    /// Least for removing of a range of so many blocks.
    pub(crate) fn remove_of(mount: &Mount, inode: &Inode, blocks: u64) -> u32 {
        let data = mount.credits_to_free(blocks.min(MOST_WRITTEN.into()) as u32);
        match inode.is_extent_mapped() {
            true => tree::credits_for_remove(mount.tree_depth(inode) + 1, data),
            false => indirect::credits_for_remove(2 * CREDITS_PER_CLUSTER),
        }
    }

    /// Least for converting.
    pub(crate) fn convert(mount: &Mount, inode: &Inode) -> u32 {
        tree::credits_for_convert(mount.tree_depth(inode) + 1)
    }

    /// Least for shifting, where [`Mount::leaves_to_shift`] says so many leaves.
    pub(crate) fn shift(mount: &Mount, inode: &Inode, leaves: u32) -> u32 {
        tree::credits_for_shift(mount.tree_depth(inode) + 1, leaves)
    }
}

impl Mount {
    /// Of a run of so many blocks: the bitmap of each group that it may touch, and the blocks of their descriptors, which
    /// neighbours share.
    fn credits_to_free(&self, blocks: u32) -> u32 {
        let groups = (blocks / self.sb.blocks_per_group() + 2).min(self.sb.group_count());
        let descriptors = groups / self.sb.descs_per_block().max(1) + 2;
        groups + descriptors.min(groups)
    }

    /// Depth of a file's extent tree as it is now. It may grow by one before the map is locked.
    fn tree_depth(&self, inode: &Inode) -> u16 {
        Tree::depth_of(inode.node().disk.i_block())
    }

    pub(crate) fn owner(&self, inode: &Inode) -> Owner {
        let seed = self.checksum_seed();
        Owner {
            ino: inode.ino,
            seed: seed.map(|seed| inode.node().disk.seed(seed, inode.ino)),
            physical: self.physical_blocks(),
            cluster_ratio: self.sb.cluster_ratio(),
        }
    }

    /// Changes a file's map, and writes the inode with what `also` changes in it. Blocks on
    /// metadata. If `change` fails, `also` is not called, and what it left of the map is kept right.
    pub(crate) fn change_map<'j, T>(
        &self,
        writer: &Writer,
        handle: &mut Handle<'j>,
        inode: &Inode,
        lock: &MapGuard<'_>,
        change: impl FnOnce(&mut MapChange<'_, 'j>) -> Result<T>,
        also: &mut dyn FnMut(&mut DiskInode, &T),
    ) -> Result<T> {
        self.check_map_changes(inode)?;
        let before = *inode.node().disk.i_block();
        let extents = inode.is_extent_mapped();
        // What may fail for the device fails before anything is changed, as far as it can.
        handle.read(inode.location.block, &TableBlock)?;
        let intact = handle.credits();
        let mut map = MapChange {
            owner: self.owner(inode),
            root: before,
            extents,
            blocks: self.blocks_of(writer, inode, writer.release(handle))?,
            handle,
            cuts: false,
            intact,
        };
        let result = change(&mut map);
        if map.cuts {
            inode.cut_in(map.handle.tid());
        }
        let half_done = !map.is_intact() || map.root != before;
        let (root, grown, kept) = (map.root, map.blocks.grown, map.blocks.kept);
        let result = match result {
            // Some blocks are changed and others not, or what leads to them is and they are not free: this transaction must
            // never be committed.
            Err(error) if half_done && !matches!(error, Error::NoSpace(_)) => {
                return Err(self.fail(error));
            }
            result => result,
        };
        if kept.waits {
            writer.release_on_commit(self, handle);
        }
        if result.is_ok() || root != before || grown != 0 {
            let huge_file = self.sb.features().ro_compat.contains(RoCompat::HUGE_FILE);
            let block_size = self.sb.block_size();
            let delta = grown * i64::from(self.sb.cluster_ratio()) * i64::from(block_size / 512);
            let mut fits = true;
            let stored = self.change_inode(handle, inode, lock, &mut |disk| {
                disk.set_i_block(&root);
                let sectors = disk.sectors(huge_file, block_size);
                // More than was counted can only be freed where the count was damaged.
                let sectors = sectors.saturating_add_signed(delta);
                fits = disk.set_sectors(sectors, huge_file, block_size);
                if let Ok(done) = &result {
                    also(disk, done);
                }
            });
            stored.map_err(|error| self.fail(error))?;
            if !fits {
                tracing::warn!(ino = inode.ino.0, "i_blocks has no room for the count");
            }
            inode.changed_in(handle.tid(), true);
        }
        writer.blocks.let_go_recorded(kept);
        result
    }

    /// A file's blocks, before any change.
    fn blocks_of<'c>(
        &'c self,
        writer: &'c Writer,
        inode: &Inode,
        release: Release,
    ) -> Result<FileBlocks<'c>> {
        Ok(FileBlocks {
            mount: self,
            writer,
            release,
            goal: self.goal_of(inode)?,
            extents: inode.is_extent_mapped(),
            is_metadata: matches!(inode.file_type(), FileType::Directory | FileType::Symlink)
                || inode.flags().contains(InodeFlags::EA_INODE),
            fresh: Vec::new(),
            grown: 0,
            kept: Kept::default(),
            passed_on: None,
            for_tree: 0,
        })
    }

    /// Whether `i_block` leads to blocks.
    ///
    /// # Errors
    /// Damage in the root of an extent tree.
    pub(crate) fn has_mapped(&self, inode: &Inode) -> Result<bool> {
        let node = inode.node();
        let disk = &node.disk;
        let mapped = matches!(
            inode.file_type(),
            FileType::Regular | FileType::Directory | FileType::Symlink
        );
        if !mapped || disk.has_inline_data() || disk.is_fast_symlink() {
            return Ok(false);
        }
        let mut root = *disk.i_block();
        match disk.uses_extents() {
            // Most that are removed while they are small.
            true if ExtentNode::parse(&root, None).is_ok_and(|node| node.is_empty()) => Ok(false),
            true => Ok(!Tree::new(&self.owner(inode), &mut root).is_empty(&self.reader())?),
            false => Ok(root.iter().any(|&byte| byte != 0)),
        }
    }

    /// Whether the way from a root that is whole to a file's blocks is, too, as far as one transaction of `credits` removes
    /// them. Blocks on metadata; changes nothing. The map's lock is free.
    ///
    /// # Errors
    /// Damage in the map.
    pub(crate) fn check_removal(&self, writer: &Writer, inode: &Inode, credits: u32) -> Result<()> {
        if inode.is_extent_mapped() && self.tree_depth(inode) == 0 {
            return Ok(());
        }
        // Requests of a handle that was closed may be changing it.
        let _lock = inode.map.lock();
        let (owner, edit) = (self.owner(inode), self.reader());
        let (mut root, all) = (*inode.node().disk.i_block(), 0..self.map_end(inode));
        let blocks = self.blocks_of(writer, inode, Release::Now)?;
        match inode.is_extent_mapped() {
            true => Tree::new(&owner, &mut root).check_remove(&edit, &blocks, all, credits),
            false => Indirect::new(&owner, &mut root).check_remove(&edit, &blocks, all, credits),
        }
    }

    /// Gives a file of metadata that is no directory a block of zeros in a hole, and counts it. With
    /// bigalloc it shares the cluster of its neighbours. The map's lock is free.
    ///
    /// # Errors
    /// [`Error::NoSpace`], with nothing changed; damage; those of the journal.
    pub(crate) fn add_metadata_block(
        &self,
        writer: &Writer,
        edit: &mut dyn Edit,
        inode: &Inode,
        lblk: Lblk,
        kind: &dyn Kind,
    ) -> Result<()> {
        self.check_map_changes(inode)?;
        let lock = inode.map.lock();
        // While nothing has changed.
        edit.read(inode.location.block, &TableBlock)?;
        let mut blocks = FileBlocks {
            is_metadata: true,
            // Only what was just taken is ever given back.
            ..self.blocks_of(writer, inode, Release::Now)?
        };
        let shared = self.implied_cluster_locked(inode, &lock, lblk)?;
        let cluster = match shared {
            Some(cluster) => cluster,
            None => blocks.allocate_tree_block(edit, Pblk(0))?,
        };
        let pblk = Pblk(cluster.0 + u64::from(lblk.0 % self.sb.cluster_ratio()));
        let mut root = *inode.node().disk.i_block();
        let inserted = self.map_one(inode, &mut root, edit, &mut blocks, lblk, pblk);
        if inserted.is_err() && shared.is_none() {
            let run = Run {
                start: cluster,
                len: 1,
            };
            blocks.free_run(edit, run)?;
        }
        match inserted {
            // Nodes of the map may be changed, and others not.
            Err(error) if !matches!(error, Error::NoSpace(_)) => return Err(self.fail(error)),
            inserted => inserted?,
        }
        let zeros = vec![0; self.block_bytes() as usize];
        let grown = blocks.grown;
        let counted = edit.create(pblk, kind, &zeros).map_err(Error::from);
        let counted = counted.and_then(|()| {
            self.change_inode(edit, inode, &lock, &mut |disk| {
                disk.set_i_block(&root);
                self.count_clusters(disk, grown);
            })
        });
        counted.map_err(|error| self.fail(error))?;
        lock.set_run(&crate::map::Run {
            lblk,
            len: 1,
            pblk,
            unwritten: false,
        });
        Ok(())
    }

    fn map_one(
        &self,
        inode: &Inode,
        root: &mut [u8; I_BLOCK_BYTES],
        edit: &mut dyn Edit,
        blocks: &mut FileBlocks<'_>,
        lblk: Lblk,
        pblk: Pblk,
    ) -> Result<()> {
        let owner = self.owner(inode);
        if !blocks.extents {
            let run = PhysicalRun {
                start: pblk,
                len: 1,
            };
            let mut map = Indirect::new(&owner, root);
            return map.set(edit, blocks, lblk, run).map(drop);
        }
        let extent = Extent {
            lblk,
            len: 1,
            unwritten: false,
            pblk,
        };
        // What it would free may be in use on the disk until this transaction is durable.
        Tree::new(&owner, root).insert_only(edit, blocks, extent)
    }

    /// The end of the groups whose blocks a file can have, if it cannot have all: where it has no extents.
    pub(crate) fn groups_below(&self, has_extents: bool) -> Option<Group> {
        if has_extents || self.sb.blocks_count() <= INDIRECT_END {
            return None;
        }
        // The last of them reaches no further, as in Linux.
        let blocks = INDIRECT_END - self.sb.first_data_block().0;
        Some(Group(
            (blocks / u64::from(self.sb.blocks_per_group())) as u32,
        ))
    }

    /// Near which block to allocate for a file.
    pub(crate) fn goal_of(&self, inode: &Inode) -> Result<Pblk> {
        if let Some(goal) = inode.goal() {
            return Ok(goal);
        }
        let group = self.sb.inode_location(inode.ino).map(|(group, _)| group);
        Ok(group.map_or(Pblk(0), |group| self.sb.group_first_block(group)))
    }
}

impl MapChange<'_, '_> {
    fn tree<T>(
        &mut self,
        change: impl FnOnce(&mut Tree<'_>, &mut dyn Edit, &mut dyn Blocks) -> Result<T>,
    ) -> Result<T> {
        let mut tree = Tree::new(&self.owner, &mut self.root);
        change(&mut tree, self.handle, &mut self.blocks)
    }

    /// Maps a hole. Returns how many blocks from the start of `extent` were mapped: all, unless an
    /// indirect map has their pointers in several blocks.
    pub(crate) fn insert(&mut self, extent: Extent) -> Result<u32> {
        if self.extents {
            let len = u32::from(extent.len);
            return self
                .tree(|tree, edit, blocks| tree.insert(edit, blocks, extent))
                .map(|()| len);
        }
        let run = PhysicalRun {
            start: extent.pblk,
            len: extent.len.into(),
        };
        let mut map = Indirect::new(&self.owner, &mut self.root);
        map.set(self.handle, &mut self.blocks, extent.lblk, run)
    }

    /// Maps a hole to blocks that were claimed for it, from the claim's first on; or to a cluster
    /// that the file has, without a claim. Returns how many were mapped, as [`MapChange::insert`]; the
    /// claim keeps the others.
    pub(crate) fn insert_claimed(
        &mut self,
        mut extent: Extent,
        claim: Option<&mut Claim>,
    ) -> Result<u32> {
        let Some(claim) = claim else {
            return self.insert(extent);
        };
        if !self.extents {
            let most = indirect::run_at(extent.lblk, self.handle.block_bytes() as u32);
            extent.len = u32::from(extent.len).min(most) as u16;
            let mut rest = claim.split_off(extent.len.into());
            std::mem::swap(claim, &mut rest);
            return self.insert_recorded(extent, &mut rest);
        }
        self.insert_recorded(extent, claim)
    }

    fn insert_recorded(&mut self, extent: Extent, claim: &mut Claim) -> Result<u32> {
        let intact = self.is_intact();
        let recorder = self.blocks.writer.recorder(self.handle);
        let run = claim.record(self.handle, recorder)?;
        self.blocks.grown += i64::from(run.len);
        self.insert_or(extent, intact, |map| {
            map.blocks.grown -= i64::from(run.len);
            let writer = map.blocks.writer;
            writer.blocks.free(map.handle, run, Release::Now)?;
            Ok(())
        })
    }

    /// Whether everything is as it was at the beginning.
    fn is_intact(&self) -> bool {
        self.handle.credits() == self.intact
    }

    /// Maps blocks that were just taken, or gives them back; `intact` says how things were before that.
    fn insert_or(
        &mut self,
        extent: Extent,
        intact: bool,
        give_back: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<u32> {
        let what = |map: &Self| (map.handle.credits(), map.blocks.fresh.len());
        let before = what(self);
        let inserted = self.insert(extent);
        if let Err(error) = &inserted {
            // Nodes are changed once there are blocks for all of them; the device may fail in the midst of that.
            let same = matches!(error, Error::NoSpace(_)) || what(self) == before;
            give_back(self)?;
            if intact && same {
                self.intact = self.handle.credits();
            }
        }
        inserted
    }

    /// Clusters that others, or the file itself, have next: they stay in use when they are taken away from it.
    pub(crate) fn pass_on(&mut self, clusters: Arc<Set>) {
        self.blocks.passed_on = Some(clusters);
    }

    /// Makes a change for whose own blocks clusters are reserved, as [`Reservation::keep`] keeps them; as many as it does not need are
    /// left.
    pub(crate) fn with_reserved<T>(
        &mut self,
        for_tree: &mut u64,
        change: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        self.blocks.for_tree = std::mem::take(for_tree);
        let changed = change(self);
        *for_tree = std::mem::take(&mut self.blocks.for_tree);
        changed
    }

    /// Counts clusters that were taken for the file before, or passed on to it.
    pub(crate) fn count_given(&mut self, clusters: u32) {
        self.blocks.grown += i64::from(clusters);
    }

    /// Maps a hole to a new block, which will be metadata. With bigalloc the block begins a cluster.
    pub(crate) fn add_metadata_block(&mut self, lblk: Lblk) -> Result<Pblk> {
        let (right, intact) = (self.blocks.mount.right(), self.is_intact());
        let pblk = self.blocks.allocate_block(self.handle, Pblk(0), right)?;
        let extent = Extent {
            lblk,
            len: 1,
            unwritten: false,
            pblk,
        };
        let inserted = self.insert_or(extent, intact, |map| {
            let run = Run {
                start: pblk,
                len: 1,
            };
            map.blocks.free_run(map.handle, run)
        });
        inserted.map(|_| pblk)
    }

    /// Makes blocks written or unwritten, as many as `credits` allow.
    pub(crate) fn convert(
        &mut self,
        range: Range<u64>,
        to: State,
        credits: u32,
    ) -> Result<Progress> {
        self.tree(|tree, edit, blocks| tree.convert_some(edit, blocks, range, to, credits))
    }

    /// Removes and frees blocks, as many as `credits` allow.
    pub(crate) fn remove(&mut self, range: Range<u64>, credits: u32) -> Result<Progress> {
        self.cuts = true;
        if self.extents {
            return self.tree(|tree, edit, blocks| tree.remove_some(edit, blocks, range, credits));
        }
        let mut map = Indirect::new(&self.owner, &mut self.root);
        map.remove_some(self.handle, &mut self.blocks, range, credits)
    }

    /// Moves blocks, as many as `credits` allow.
    pub(crate) fn shift(
        &mut self,
        range: Range<u64>,
        delta: i64,
        credits: u32,
    ) -> Result<Progress> {
        self.tree(|tree, edit, blocks| tree.shift_some(edit, blocks, range, delta, credits))
    }
}

impl Mount {
    /// The mapping that covers a block, with the map locked. At most `want` blocks of it.
    pub(crate) fn mapping_locked(
        &self,
        inode: &Inode,
        lock: &MapGuard<'_>,
        lblk: Lblk,
        want: u32,
    ) -> Result<Mapping> {
        crate::map::load::lookup_or_load_locked(self, inode, lock, lblk, want)
    }

    /// How many leaves of a file's tree must be changed at once if a range is shifted. Blocks on metadata.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn leaves_to_shift(&self, inode: &Inode, range: Range<u64>) -> Result<u32> {
        if self.sb.cluster_ratio() == 1 {
            return Ok(2);
        }
        let _lock = inode.map.lock();
        let (owner, mut root) = (self.owner(inode), *inode.node().disk.i_block());
        let tree = Tree::new(&owner, &mut root);
        // One more, and one that is divided before.
        Ok(tree.most_leaves_of_cluster(&self.reader(), range)? + 2)
    }

    /// With bigalloc: the cluster that backs a block's neighbours already. Takes the map's lock, since
    /// others may change the tree.
    pub(crate) fn implied_cluster(&self, inode: &Inode, lblk: Lblk) -> Result<Option<Pblk>> {
        match self.sb.cluster_ratio() {
            1 => Ok(None),
            _ => self.implied_cluster_locked(inode, &inode.map.lock(), lblk),
        }
    }

    /// As [`Mount::implied_cluster`], for who will write file data into it, or let others do that. Waits until what was
    /// taken away from the cluster is so for good: after a crash the file may have those blocks again, and would
    /// show in them what was written later than that. No handle may be open, and nobody takes blocks away meanwhile.
    pub(crate) fn settled_cluster(
        &self,
        writer: &Writer,
        inode: &Inode,
        lblk: Lblk,
    ) -> Result<Option<Pblk>> {
        let cluster = self.implied_cluster(inode, lblk)?;
        if cluster.is_some() {
            writer.make_durable(inode.last_cut())?;
        }
        Ok(cluster)
    }

    /// As [`Mount::implied_cluster`], for who holds the map's lock.
    pub(crate) fn implied_cluster_locked(
        &self,
        inode: &Inode,
        _lock: &MapGuard<'_>,
        lblk: Lblk,
    ) -> Result<Option<Pblk>> {
        if self.sb.cluster_ratio() == 1 || !inode.is_extent_mapped() {
            return Ok(None);
        }
        let owner = self.owner(inode);
        let mut root = *inode.node().disk.i_block();
        Tree::new(&owner, &mut root).implied_cluster(&self.reader(), lblk)
    }

    /// As much of a hole as can have clusters of its own, if its first block can: its last cluster may
    /// hold mapped blocks behind the hole.
    pub(crate) fn own_clusters(&self, inode: &Inode, hole: Range<u64>) -> Result<Range<u64>> {
        let last = hole.end - hole.end % u64::from(self.sb.cluster_ratio());
        if last == hole.end || last <= hole.start {
            return Ok(hole);
        }
        Ok(match self.implied_cluster(inode, Lblk(last as u32))? {
            Some(_) => hole.start..last,
            None => hole,
        })
    }

    /// Where a block of a file should lie: right behind the one before, if that is mapped.
    pub(crate) fn goal_behind(&self, inode: &Inode, lblk: u64) -> Result<Goal> {
        if lblk > 0 && lblk.is_multiple_of(self.sb.cluster_ratio().into()) {
            let last = Lblk(lblk as u32 - 1);
            let mapping = crate::map::load::lookup_or_load(self, inode, last, 1)?;
            if mapping.kind != MapKind::Hole {
                return Ok(Goal::Append(Pblk(mapping.pblk.0 + 1)));
            }
        }
        Ok(Goal::Near(self.goal_of(inode)?))
    }

    /// Claims clusters, after a commit if that sets some free. No handle may be open.
    pub(crate) fn claim_some(&self, writer: &Writer, request: &Request) -> Result<Claim> {
        let reader = self.reader();
        self.with_space(writer, || writer.blocks.claim(&reader, request))
    }

    /// Reserves clusters, after a commit if that sets some free. No handle may be open.
    pub(crate) fn reserve_some<'w>(
        &self,
        writer: &'w Writer,
        count: u64,
        right: Right,
    ) -> Result<Reservation<'w>> {
        self.with_space(writer, || writer.blocks.reserve(count, right))
    }

    /// The end of what a file's map can hold, in blocks.
    pub(crate) fn map_end(&self, inode: &Inode) -> u64 {
        u64::from(self.sb.max_lblk(inode.is_extent_mapped()).0) + 1
    }

    /// The unwritten extents that overlap a range: first block, length, and where they lie.
    pub(crate) fn unwritten_extents(
        &self,
        inode: &Inode,
        _lock: &MapGuard<'_>,
        range: Range<u64>,
    ) -> Result<Vec<(u64, u64, u64)>> {
        let owner = self.owner(inode);
        let mut root = *inode.node().disk.i_block();
        let mut found = Vec::new();
        Tree::new(&owner, &mut root).for_each(&self.reader(), range, &mut |extent| {
            if extent.unwritten {
                found.push((extent.lblk.0.into(), extent.len.into(), extent.pblk.0));
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// What the extent tree has in a range, as far as it lies in it.
    pub(crate) fn tree_runs(
        &self,
        inode: &Inode,
        _lock: &MapGuard<'_>,
        range: Range<u64>,
    ) -> Result<Vec<crate::map::Run>> {
        let owner = self.owner(inode);
        let mut root = *inode.node().disk.i_block();
        let mut runs = Vec::new();
        let each = &mut |extent: Extent| {
            let start = u64::from(extent.lblk.0).max(range.start);
            let end = extent.end().min(range.end);
            runs.push(crate::map::Run {
                lblk: Lblk(start as u32),
                len: (end - start) as u32,
                pblk: Pblk(extent.pblk.0 + (start - u64::from(extent.lblk.0))),
                unwritten: extent.unwritten,
            });
            Ok(())
        };
        Tree::new(&owner, &mut root).for_each(&self.reader(), range.clone(), each)?;
        Ok(runs)
    }

    /// Calls `each` with every mapping but holes in a range, with the map locked.
    pub(crate) fn for_each_mapping(
        &self,
        inode: &Inode,
        lock: &MapGuard<'_>,
        range: Range<u64>,
        each: &mut dyn FnMut(Mapping) -> Result<()>,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let want = (range.end - at).min(u64::from(u32::MAX)) as u32;
            let mapping = self.mapping_locked(inode, lock, Lblk(at as u32), want)?;
            at += u64::from(mapping.len);
            if mapping.kind != MapKind::Hole {
                each(mapping)?;
            }
        }
        Ok(())
    }
}
