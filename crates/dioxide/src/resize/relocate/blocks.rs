//! Other places for the blocks of files: content, maps, attributes, the journal.
//!
//! A file's blocks are copied and its map made anew in free blocks (`prepare`); when that is durable, a transaction
//! makes the inode lead there and frees what it had (`settle`). Inodes that share a block of attributes go to its new place
//! one by one: each of the two counts who has it.
//!
//! Blocks that are freed below the end are used again only when what freed them is in its place and the log is empty. So
//! nothing that the log holds can be replayed over what was copied, and no block that somebody could still have is written to.

use super::map::{Map, Moves, Rewrite, build_tree, has_map};
use super::space::Free;
use super::{Raw, Task, all_inodes, change, load, store, transaction};
use crate::alloc::{BlockAllocator, Release, Run};
use crate::mount::Mount;
use crate::resize::Step;
use crate::resize::groups::{block_bitmap, read_block, read_descriptors};
use crate::txn::{Writer, superblock};
use crate::{Error, Place, Result, Shortage};
use dioxide_block::{Buf, Durability};
use dioxide_format::bitmap;
use dioxide_format::features::{Compat, RoCompat};
use dioxide_format::inode::Inode;
use dioxide_format::types::{Group, Ino, Pblk};
use dioxide_format::xattr::{self, XattrHeader};
use dioxide_format::{indirect, orphan_file};
use dioxide_journal::Edit;
use std::collections::{HashMap, HashSet};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// Bytes that are copied at once.
const COPY_BYTES: u64 = 1 << 20;
/// Inodes, and blocks, that are made durable together.
const BATCH_INODES: usize = 256;
const BATCH_BLOCKS: u64 = 16384;
/// Metadata blocks of a transaction besides bitmaps and descriptors: the inode, and two blocks of attributes.
const OTHER_CREDITS: u32 = 3;

/// An inode whose blocks are copied.
struct Prepared {
    ino: Ino,
    before: Inode,
    after: Inode,
    takes: Vec<Range<u64>>,
    frees: Vec<Range<u64>>,
    xattrs: Option<XattrMove>,
    /// More of it is still in the way.
    again: bool,
}

#[derive(Clone, Copy)]
struct XattrMove {
    from: u64,
    to: u64,
    /// The new block is not there yet.
    first: bool,
}

struct Mover<'a, 'p, 't> {
    mount: &'a Mount,
    writer: &'a Writer,
    task: &'a mut Task<'t, 'p>,
    /// Where the file system will end.
    limit: u64,
    ratio: u64,
    free: Free,
    /// Freed below the limit, and not to be used yet.
    freed: Vec<Range<u64>>,
    batch: Vec<Prepared>,
    batch_blocks: u64,
    /// New places of blocks of attributes.
    xattrs: HashMap<u64, u64>,
    moved: u64,
}

impl<'a, 'p, 't> Mover<'a, 'p, 't> {
    fn new(mount: &'a Mount, task: &'a mut Task<'t, 'p>) -> Result<Mover<'a, 'p, 't>> {
        let limit = task.new.blocks_count();
        Ok(Mover {
            mount,
            writer: mount.writer()?,
            limit,
            ratio: mount.sb.cluster_ratio().into(),
            free: free_below(mount, limit)?,
            task,
            freed: Vec::new(),
            batch: Vec::new(),
            batch_blocks: 0,
            xattrs: HashMap::new(),
            moved: 0,
        })
    }
}

/// Moves all blocks that lie behind the end, but those of the journal.
///
/// # Errors
/// See [`super::relocate`].
pub(super) fn move_files(mount: &Mount, task: &mut Task<'_, '_>) -> Result<()> {
    let mut mover = Mover::new(mount, task)?;
    let last = engine_files(mount);
    let journal = journal(mount);
    all_inodes(mount, &mut |ino, inode| match last.contains(&ino)
        || ino == Ino::BAD_BLOCKS
        || Some(ino) == journal
    {
        true => Ok(()),
        false => mover.inode(ino, inode),
    })?;
    mover.settle()?;
    // The engine has their maps in memory. It does not look there any more: nothing is counted from here on.
    mover.writer.journal.flush()?;
    for ino in last {
        mover.engine_file(ino)?;
    }
    Ok(())
}

/// Moves the journal, on a mount that does not use it.
///
/// A replay that moves the log that it replays would leave whoever replays with a map that is not true any more. So the log is
/// empty, the file system is not clean meanwhile, and each part is durable before the next: the new blocks are
/// used; the inode leads there; the old ones are free.
///
/// # Errors
/// See [`super::relocate`].
pub(super) fn move_journal(mount: &Mount, task: &mut Task<'_, '_>) -> Result<()> {
    let Some(ino) = journal(mount) else {
        return Ok(());
    };
    let read = |block| mount.read_meta(Pblk(block));
    let physical = mount.physical_blocks();
    let inode = load(mount, ino)?;
    let map = Map::read(ino, &inode, mount.sb.block_size(), &physical, &read)?;
    match map.is_below(task.new.blocks_count()) {
        true => Ok(()),
        false => Mover::new(mount, task)?.engine_file(ino),
    }
}

/// The journal's inode, if it is in the file system.
pub(super) fn journal(mount: &Mount) -> Option<Ino> {
    let sb = &mount.sb;
    let inside = sb.features().compat.contains(Compat::HAS_JOURNAL) && sb.journal_dev() == 0;
    sb.journal_inum().filter(|_| inside)
}

/// Files whose maps the engine keeps: those of quota and orphans.
fn engine_files(mount: &Mount) -> Vec<Ino> {
    let sb = &mount.sb;
    let mut files = Vec::new();
    if sb.features().ro_compat.contains(RoCompat::QUOTA) {
        files.extend(
            sb.quota_inums()
                .into_iter()
                .filter(|ino| *ino != 0)
                .map(Ino),
        );
    }
    files.extend(sb.orphan_file_inum());
    files
}

fn free_below(mount: &Mount, limit: u64) -> Result<Free> {
    let (sb, device) = (&*mount.sb, &*mount.device);
    let ratio = u64::from(sb.cluster_ratio());
    let mut free = Free::new(sb.cluster_ratio());
    for (group, desc) in (0..).map(Group).zip(read_descriptors(device, sb)?) {
        let first = sb.group_first_block(group).0;
        if first >= limit {
            break;
        }
        let bits = block_bitmap(device, sb, group, &desc)?;
        let end = u64::from(sb.clusters_in_group(group)).min((limit - first) / ratio) as usize;
        let mut at = 0;
        while let Some(run) = bitmap::next_free_run(&bits, at, end) {
            at = run.end;
            free.give(first + run.start as u64 * ratio..first + run.end as u64 * ratio);
        }
    }
    Ok(free)
}

impl Mover<'_, '_, '_> {
    fn inode(&mut self, ino: Ino, inode: Inode) -> Result<()> {
        let mut inode = inode;
        while let Some(prepared) = self.prepare_with_room(ino, &inode)? {
            let again = prepared.again;
            self.batch.push(prepared);
            if again || self.batch.len() >= BATCH_INODES || self.batch_blocks >= BATCH_BLOCKS {
                self.settle()?;
            }
            if !again {
                break;
            }
            inode = load(self.mount, ino)?;
        }
        Ok(())
    }

    /// [`Mover::prepare`], after what was freed can be used if there is no room without.
    fn prepare_with_room(&mut self, ino: Ino, inode: &Inode) -> Result<Option<Prepared>> {
        if let Some(done) = self.prepare(ino, inode)? {
            return Ok(done);
        }
        self.settle()?;
        self.writer.journal.flush()?;
        for run in std::mem::take(&mut self.freed) {
            self.free.give(run);
        }
        let done = self.prepare(ino, inode)?;
        done.ok_or(Error::NoSpace(Shortage::ScatteredClusters))
    }

    /// Copies what of an inode is in the way, as far as one transaction can make it lead there. None if there is
    /// no room, and none inside if nothing is in the way.
    fn prepare(&mut self, ino: Ino, inode: &Inode) -> Result<Option<Option<Prepared>>> {
        let mut prepared = Prepared {
            ino,
            before: inode.clone(),
            after: inode.clone(),
            takes: Vec::new(),
            frees: Vec::new(),
            xattrs: None,
            again: false,
        };
        if has_map(inode) && !self.blocks(&mut prepared)? {
            return Ok(None);
        }
        if let Some(block) = inode.file_acl().filter(|block| block.0 >= self.limit)
            && !self.attributes(&mut prepared, block.0)?
        {
            for run in prepared.takes {
                self.free.give(run);
            }
            return Ok(None);
        }
        // A tree that fits in the inode now takes nothing, and its leaf goes all the same.
        let moves = !prepared.frees.is_empty() || prepared.xattrs.is_some();
        self.batch_blocks += prepared
            .takes
            .iter()
            .map(|run| run.end - run.start)
            .sum::<u64>();
        Ok(Some(moves.then_some(prepared)))
    }

    fn read(&self, block: u64) -> Result<Arc<[u8]>> {
        Ok(read_block(&*self.mount.device, &self.mount.sb, block)?.into())
    }

    /// The blocks of a file. Whether there was room.
    fn blocks(&mut self, prepared: &mut Prepared) -> Result<bool> {
        let (ino, sb) = (prepared.ino, &self.mount.sb);
        let block_bytes = sb.block_size();
        let inode = &prepared.before;
        let physical = self.mount.physical_blocks();
        let read = |block| self.read(block);
        let map = Map::read(ino, inode, block_bytes, &physical, &read)?;
        // What it leads to are blocks of groups, which it only keeps.
        let keeps = ino == Ino::RESIZE;
        let far_data = !keeps && !map.data_is_below(self.limit);
        if !far_data && map.nodes.iter().all(|node| *node < self.limit) {
            return Ok(true);
        }
        let mut moves = Moves::default();
        if far_data {
            prepared.again = self.choose(&map, &mut moves);
            if moves.is_empty() {
                return Ok(false);
            }
        }
        let give_back = |free: &mut Free, moves: &Moves| {
            moves.all().for_each(|(_, len, to)| free.give(to..to + len));
        };
        let seed = self.mount.checksum_seed().map(|seed| inode.seed(seed, ino));
        let (built, dropped) = if inode.uses_extents() {
            let extents = moves.applied(&map.extents);
            let Some(built) = build_tree(ino, extents, block_bytes, seed, &mut self.free)? else {
                give_back(&mut self.free, &moves);
                return Ok(false);
            };
            (built, map.nodes)
        } else {
            let mount = self.mount;
            let read = |block| Ok(read_block(&*mount.device, &mount.sb, block)?.into());
            let mut rewrite = Rewrite {
                moves: &moves,
                limit: self.limit,
                block_bytes,
                read: &read,
                free: &mut self.free,
                built: super::map::Built {
                    i_block: *inode.i_block(),
                    nodes: Vec::new(),
                },
                dropped: Vec::new(),
            };
            if !rewrite.run(inode)? {
                give_back(&mut self.free, &moves);
                return Ok(false);
            }
            (rewrite.built, rewrite.dropped)
        };
        for extent in map
            .extents
            .iter()
            .filter(|extent| !extent.unwritten && !keeps)
        {
            self.copy(ino, extent.pblk.0, extent.len.into(), &moves)?;
        }
        for (block, bytes) in &built.nodes {
            self.write(*block, bytes)?;
        }
        let nodes = built.nodes.iter().map(|(block, _)| self.cluster(*block));
        prepared
            .takes
            .extend(moves.all().map(|(_, len, to)| to..to + len));
        prepared.takes.extend(nodes);
        prepared
            .frees
            .extend(moves.all().map(|(from, len, _)| from..from + len));
        prepared
            .frees
            .extend(dropped.iter().map(|block| self.cluster(*block)));
        prepared.after.set_i_block(&built.i_block);
        let huge_file = self
            .mount
            .sb
            .features()
            .ro_compat
            .contains(RoCompat::HUGE_FILE);
        let delta = (built.nodes.len() as i64 - dropped.len() as i64)
            * (self.ratio * u64::from(block_bytes / 512)) as i64;
        let sectors = inode
            .sectors(huge_file, block_bytes)
            .saturating_add_signed(delta);
        if !prepared.after.set_sectors(sectors, huge_file, block_bytes) {
            let what = format!("inode {ino}: i_blocks has no room for the count");
            return Err(Error::TooLarge(what));
        }
        Ok(true)
    }

    /// Chooses places for the clusters that are in the way; whether some are left for another transaction.
    fn choose(&mut self, map: &Map, moves: &mut Moves) -> bool {
        let mut groups = HashSet::new();
        for node in &map.nodes {
            groups.extend(self.groups_of(&(*node..node + 1)));
        }
        // A node that is made anew may come to lie in any group. Something moves in any case.
        let credits = self
            .writer
            .ample_credits()
            .saturating_sub(OTHER_CREDITS + 1);
        let most = (credits / BlockAllocator::FREE_CREDITS_PER_GROUP) as usize;
        let most = most.saturating_sub(map.nodes.len()).max(groups.len() + 4);
        for extent in &map.extents {
            let end = (extent.pblk.0 + u64::from(extent.len)).next_multiple_of(self.ratio);
            let mut at = (extent.pblk.0 - extent.pblk.0 % self.ratio).max(self.limit);
            while at < end {
                if moves.has(at) {
                    at += self.ratio;
                    continue;
                }
                // The new place may take as many groups as the old one.
                let left = most - groups.len();
                let from = self.fitting(at..end, &groups, left / 2);
                if from.is_empty() {
                    return true;
                }
                let Some(run) = self.free.take(from.end - at) else {
                    return true;
                };
                groups.extend(self.groups_of(&(at..at + (run.end - run.start))));
                let to = self.fitting(run.clone(), &groups, most - groups.len());
                self.free.give(to.end..run.end);
                if to.is_empty() {
                    return true;
                }
                groups.extend(self.groups_of(&to));
                let len = to.end - to.start;
                moves.add(at, len, to.start);
                at += len;
            }
        }
        false
    }

    /// The groups of a run, which may end behind the last cluster that is whole.
    fn groups_of(&self, run: &Range<u64>) -> RangeInclusive<u32> {
        let sb = &self.mount.sb;
        let last = run.end.min(sb.blocks_count()) - 1;
        let [first, last] = [run.start, last].map(|block| sb.group_of_block(Pblk(block)));
        first.map_or(0, |group| group.0)..=last.map_or(0, |group| group.0)
    }

    /// As much from the start of a run on as takes no more than `most` groups that are not among those.
    fn fitting(&self, run: Range<u64>, groups: &HashSet<u32>, most: usize) -> Range<u64> {
        let mut new = self.groups_of(&run).filter(|group| !groups.contains(group));
        let end = new.nth(most);
        let end = end.map(|group| self.mount.sb.group_first_block(Group(group)).0);
        run.start..end.map_or(run.end, |end| end.max(run.start))
    }

    /// Copies the blocks of a run that move.
    fn copy(&self, ino: Ino, start: u64, len: u64, moves: &Moves) -> Result<()> {
        let size = u64::from(self.mount.sb.block_size());
        let (mut at, end) = (start, start + len);
        while at < end {
            let most = (end - at).min((COPY_BYTES / size).max(1));
            let (to, count) = moves.of(at, most);
            if to != at {
                let mut buf = Buf::zeroed((count * size) as usize);
                self.mount.device.read_at(at * size, &mut buf)?;
                if self.mount.sb.orphan_file_inum() == Some(ino) {
                    self.seal_orphans(ino, &mut buf, to)?;
                }
                let device = &self.mount.device;
                device.write_at(to * size, &buf, Durability::Cached)?;
            }
            at += count;
        }
        Ok(())
    }

    /// Blocks of the orphan file have checksums of where they lie.
    fn seal_orphans(&self, ino: Ino, bytes: &mut [u8], first: u64) -> Result<()> {
        let Some(seed) = self.mount.checksum_seed() else {
            return Ok(());
        };
        let seed = load(self.mount, ino)?.seed(seed, ino);
        let size = self.mount.sb.block_size() as usize;
        for (block, bytes) in (first..).zip(bytes.chunks_exact_mut(size)) {
            orphan_file::update_checksum(bytes, seed, Pblk(block))
                .map_err(|error| Error::format(error, Place::block(block)))?;
        }
        Ok(())
    }

    fn write(&self, block: u64, bytes: &[u8]) -> Result<()> {
        let at = block * u64::from(self.mount.sb.block_size());
        let buf = Buf::copy_of(bytes);
        Ok(self.mount.device.write_at(at, &buf, Durability::Cached)?)
    }

    /// The block of attributes. Whether there was room.
    fn attributes(&mut self, prepared: &mut Prepared, from: u64) -> Result<bool> {
        let known = self.xattrs.get(&from).copied();
        let to = match known {
            Some(to) => to,
            None => {
                let Some(to) = self.free.take_one() else {
                    return Ok(false);
                };
                let bytes = self.with_owners(&self.read(from)?, to, 1)?;
                self.write(to, &bytes)?;
                self.xattrs.insert(from, to);
                prepared.takes.push(self.cluster(to));
                to
            }
        };
        let first = known.is_none();
        prepared.xattrs = Some(XattrMove { from, to, first });
        prepared.after.set_file_acl(Some(Pblk(to)));
        Ok(true)
    }

    /// A block of attributes as it is at a place, with so many owners.
    fn with_owners(&self, bytes: &[u8], block: u64, owners: u32) -> Result<Vec<u8>> {
        let mut bytes = bytes.to_vec();
        let failed = |error| Error::format(error, Place::block(block));
        let mut header = XattrHeader::parse(&bytes).map_err(failed)?;
        header.h_refcount = owners;
        bytes[..XattrHeader::SIZE].copy_from_slice(&header.encode());
        if let Some(seed) = self.mount.checksum_seed() {
            xattr::update_checksum(&mut bytes, seed, Pblk(block)).map_err(failed)?;
        }
        Ok(bytes)
    }

    /// Makes the inodes of the batch lead to what was copied.
    fn settle(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.mount.device.flush()?;
        for prepared in std::mem::take(&mut self.batch) {
            let moved: u64 = prepared.takes.iter().map(|run| run.end - run.start).sum();
            self.settle_one(prepared, true)?;
            self.moved += moved / self.ratio;
            let total = self.task.clusters;
            self.task.tell(Step::Blocks, self.moved, total);
        }
        self.batch_blocks = 0;
        Ok(())
    }

    /// One transaction.
    fn settle_one(&mut self, prepared: Prepared, counted: bool) -> Result<()> {
        transaction(self.mount, self.credits(&prepared), |edit| {
            self.take(edit, &prepared)?;
            self.point(edit, &prepared, counted)?;
            self.give(edit, &prepared)
        })
    }

    /// A bitmap and a block of descriptors for each group, and the superblock for the journal.
    fn credits(&self, prepared: &Prepared) -> u32 {
        let sb = &self.mount.sb;
        let mut groups = HashSet::new();
        for run in prepared.takes.iter().chain(&prepared.frees) {
            groups.extend(self.groups_of(run));
        }
        let xattrs = prepared
            .xattrs
            .map(|xattrs| sb.group_of_block(Pblk(xattrs.from)));
        groups.extend(xattrs.flatten().map(|group| group.0));
        OTHER_CREDITS + 1 + groups.len() as u32 * BlockAllocator::FREE_CREDITS_PER_GROUP
    }

    fn take(&self, edit: &mut dyn Edit, prepared: &Prepared) -> Result<()> {
        let mut takes = prepared.takes.iter();
        takes.try_for_each(|run| self.writer.blocks.take_given(edit, self.run(run)))
    }

    /// The inode leads to its new blocks.
    fn point(&self, edit: &mut dyn Edit, prepared: &Prepared, counted: bool) -> Result<()> {
        let Prepared {
            ino, before, after, ..
        } = prepared;
        if counted {
            let one = |_: &dyn Edit| Ok(1);
            self.mount
                .count_change(edit, *ino, Some(before), Some(after), one)?;
        }
        store(self.mount, edit, *ino, after.clone())?;
        match prepared.xattrs {
            Some(XattrMove { to, first, .. }) => {
                let owners = match first {
                    true => 0,
                    false => owners(&edit.read(Pblk(to), &Raw)?, to)?,
                };
                self.set_owners(edit, to, owners + 1)
            }
            None => Ok(()),
        }
    }

    fn give(&mut self, edit: &mut dyn Edit, prepared: &Prepared) -> Result<()> {
        let mut frees = prepared.frees.clone();
        if let Some(XattrMove { from, .. }) = prepared.xattrs {
            match owners(&edit.read(Pblk(from), &Raw)?, from)? {
                0 | 1 => frees.push(self.cluster(from)),
                owners => self.set_owners(edit, from, owners - 1)?,
            }
        }
        for run in frees {
            self.writer
                .blocks
                .free(edit, self.run(&run), Release::Now)?;
            if run.end <= self.limit {
                self.freed.push(run);
            }
        }
        Ok(())
    }

    fn set_owners(&self, edit: &mut dyn Edit, block: u64, owners: u32) -> Result<()> {
        let bytes = self.with_owners(&edit.read(Pblk(block), &Raw)?, block, owners)?;
        change(edit, block, &mut |old| {
            old.copy_from_slice(&bytes);
            Ok(())
        })
    }

    /// The cluster of a block.
    fn cluster(&self, block: u64) -> Range<u64> {
        let start = block - block % self.ratio;
        start..start + self.ratio
    }

    fn run(&self, run: &Range<u64>) -> Run {
        Run {
            start: Pblk(run.start),
            len: ((run.end - run.start) / self.ratio) as u32,
        }
    }

    fn engine_file(&mut self, ino: Ino) -> Result<()> {
        loop {
            let inode = load(self.mount, ino)?;
            let Some(prepared) = self.prepare_with_room(ino, &inode)? else {
                return Ok(());
            };
            self.mount.device.flush()?;
            match journal(self.mount) == Some(ino) {
                true => self.settle_in_parts(&prepared)?,
                false => self.settle_one(prepared, false)?,
            }
            self.writer.journal.flush()?;
        }
    }

    fn settle_in_parts(&mut self, prepared: &Prepared) -> Result<()> {
        let (mount, credits) = (self.mount, self.credits(prepared));
        transaction(mount, credits, |edit| self.take(edit, prepared))?;
        self.writer.journal.force_commit()?;
        transaction(mount, credits, |edit| {
            self.point(edit, prepared, false)?;
            superblock::change(mount, edit, &mut |sb| {
                let slots = sb.disk_mut().s_jnl_blocks.iter_mut();
                let words = indirect::pointers(prepared.after.i_block());
                slots.zip(words).for_each(|(slot, word)| *slot = word);
            })
        })?;
        self.writer.journal.force_commit()?;
        transaction(mount, credits, |edit| self.give(edit, prepared))
    }
}

/// How many inodes a block of attributes counts.
fn owners(bytes: &[u8], block: u64) -> Result<u32> {
    let head = XattrHeader::parse(bytes);
    let head = head.map_err(|error| Error::format(error, Place::block(block)))?;
    Ok(head.h_refcount)
}
