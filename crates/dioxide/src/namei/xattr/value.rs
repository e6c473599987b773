//! Values that are inodes of their own (feature `ea_inode`), and what is shared between inodes.
//!
//! Such an inode is a regular file without a name. Where others have times it keeps the hash of its
//! content (`i_atime`) and the number of attributes that refer to it (`i_ctime`, `i_version`). Its
//! blocks go through the journal, as other metadata. Whoever has a block of attributes in common has
//! one reference in common.
//!
//! Invariant: references are counted under the lock of [`Sharing`]. The last one that goes makes the
//! inode an orphan in the same transaction; it is deleted in others, later.

use super::area::Room;
use super::change::Work;
use super::key::Key;
use crate::alloc::{
    BlockAllocator, Claim, Goal, InodeAllocator, InodeKind, NewInode, Request, Reservation, Right,
};
use crate::inode::Inode;
use crate::map::Run;
use crate::map::tree::{self, Tree};
use crate::mount::Mount;
use crate::txn::Writer;
use crate::txn::inode::{INODE_CREDITS, TableBlock, disk_time};
use crate::txn::orphan::ORPHAN_CREDITS;
use crate::{FileType, Result};
use dioxide_format::checksum::crc32c;
use dioxide_format::extent::Extent;
use dioxide_format::inode::{Inode as DiskInode, InodeFlags};
use dioxide_format::types::{Ino, Lblk, Pblk};
use dioxide_format::xattr::XattrEntry;
use dioxide_journal::{Edit, Kind};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Longest value, as Linux has it.
pub(super) const VALUE_MAX_BYTES: usize = super::VALUE_MAX as usize;

/// Blocks and values that are remembered, to be found again by their hash.
const MOST_REMEMBERED: usize = 512;

/// What is known of attributes that inodes share.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// Blocks by the hash of their attributes, the oldest first.
    blocks: VecDeque<(u32, Pblk)>,
    /// Values' inodes by their hash.
    values: VecDeque<(u32, Ino)>,
    /// Values' inodes that nobody refers to any more: orphans, to be deleted.
    dead: Vec<Arc<Inode>>,
}

fn note<T>(list: &mut VecDeque<(u32, T)>, hash: u32, what: T) {
    if list.len() == MOST_REMEMBERED {
        list.pop_front();
    }
    list.push_back((hash, what));
}

impl Sharing {
    /// Blocks that have this hash, perhaps.
    pub(super) fn blocks(&self, hash: u32) -> impl Iterator<Item = Pblk> {
        let of_hash = move |&&(other, _): &&(u32, Pblk)| other == hash && hash != 0;
        self.blocks.iter().filter(of_hash).map(|&(_, block)| block)
    }

    pub(super) fn note_block(&mut self, hash: u32, block: Pblk) {
        self.forget_block(block);
        note(&mut self.blocks, hash, block);
    }

    pub(super) fn forget_block(&mut self, block: Pblk) {
        self.blocks.retain(|&(_, other)| other != block);
    }

    fn values(&self, hash: u32) -> Vec<Ino> {
        let of_hash = self.values.iter().filter(|&&(other, _)| other == hash);
        of_hash.map(|&(_, ino)| ino).collect()
    }
}

/// A block of a value.
#[derive(Debug)]
struct ValueBlock;

impl Kind for ValueBlock {
    fn name(&self) -> &'static str {
        "attribute's value"
    }

    fn verify(&self, _: Pblk, _: &[u8]) -> dioxide_format::Result<()> {
        Ok(())
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}
}

/// Whether Lustre wrote a value: it names its owner, and counts no references.
pub(super) fn is_by_lustre(owner: &Inode, value: &Inode) -> bool {
    let node = value.node();
    let disk = node.disk.disk();
    disk.i_mtime == owner.ino.0 && disk.i_generation == owner.node().disk.generation()
}

fn references(disk: &DiskInode) -> u64 {
    u64::from(disk.disk().i_ctime) << 32 | u64::from(disk.disk().l_i_version)
}

fn set_references(disk: &mut DiskInode, count: u64) {
    disk.disk_mut().i_ctime = (count >> 32) as u32;
    disk.disk_mut().l_i_version = count as u32;
}

impl Mount {
    /// Whether a value may lie with the other attributes, and then whether it may have an inode of its
    /// own: in the order of preference.
    pub(super) fn where_values_go(&self, value: &[u8], room: &Room) -> Vec<bool> {
        // What a block can hold beside a short name.
        const OVERHEAD: usize = 56;
        let is_large = value.len().next_multiple_of(4) > room.block - OVERHEAD;
        match self.has_value_inodes() && !value.is_empty() {
            false => vec![false],
            true if is_large => vec![true],
            true => vec![false, true],
        }
    }

    fn value_hash(&self, value: &[u8]) -> u32 {
        crc32c(self.sb.checksum_seed(), value)
    }

    /// An attribute whose value is to have an inode of its own, which is not known yet.
    pub(super) fn entry_apart<'a>(&self, key: &Key<'a>, value: &'a [u8]) -> XattrEntry<'a> {
        let (size, hash) = (value.len() as u32, self.value_hash(value));
        XattrEntry::new_in_inode(key.index, key.name, Ino(1), size, hash)
    }

    /// Credits for a new value in an inode of its own, and for one that goes.
    pub(super) fn value_credits(&self, value_len: usize) -> u32 {
        let dropped = INODE_CREDITS + ORPHAN_CREDITS;
        let blocks = value_len.div_ceil(self.sb.block_size() as usize) as u32;
        let taking = blocks.min(self.sb.group_count()) * BlockAllocator::ALLOCATE_CREDITS;
        let map = tree::credits_for_insert(2) + BlockAllocator::ALLOCATE_CREDITS;
        let new = InodeAllocator::ALLOCATE_CREDITS + INODE_CREDITS + blocks + taking + map;
        // One new value may have to be dropped again.
        2 * dropped + if blocks > 0 { new } else { 0 }
    }

    /// # Errors
    /// [`crate::Error::Corrupt`] if an attribute's value is said to be in an inode that holds none.
    pub(super) fn check_value_inode(&self, owner: &Inode, ino: Option<Ino>) -> Result<()> {
        let Some(ino) = ino else { return Ok(()) };
        let inode = self.inode(ino)?;
        let is_value =
            inode.flags().contains(InodeFlags::EA_INODE) && inode.file_type() == FileType::Regular;
        match is_value {
            true => Ok(()),
            false => Err(owner.corrupt("xattr", format!("inode {ino} holds no attribute's value"))),
        }
    }

    /// Deletes the values that nobody refers to any more. No handle may be open. Blocks.
    ///
    /// # Errors
    /// As [`Mount::delete`]; what is left is deleted by the next mount.
    pub(crate) fn reap_values(&self, writer: &Writer) -> Result<()> {
        // Deleting one may add another, where values are damaged.
        let next = || writer.xattrs.lock().dead.pop();
        while let Some(inode) = next() {
            self.delete(writer, &inode)?;
        }
        Ok(())
    }

    fn new_value_inode(&self, owner: &Inode, value: &[u8]) -> DiskInode {
        let size = self.sb.inode_size();
        let mut disk = DiskInode::parse(&vec![0; size], size).expect("the file system's own size");
        let now = self.now_ns();
        let owner = owner.node();
        if size > 128 {
            disk.disk_mut().i_extra_isize = 32;
            let now = disk_time(now);
            disk.disk_mut().i_crtime = now.secs as u32;
        }
        let raw = disk.disk_mut();
        raw.i_mode = (libc::S_IFREG | 0o600) as u16;
        raw.i_links_count = 1;
        raw.i_atime = self.value_hash(value);
        raw.i_flags = InodeFlags::EA_INODE.0;
        raw.i_generation = crc32c(now as u32, &owner.disk.generation().to_le_bytes());
        if self.has_extents() {
            raw.i_flags |= InodeFlags::EXTENTS.0;
            raw.i_block = Tree::empty_root();
        }
        disk.set_owner(owner.disk.uid(), owner.disk.gid());
        disk.set_size(value.len() as u64);
        set_references(&mut disk, 1);
        disk
    }
}

impl Work<'_, '_> {
    /// An inode that holds a value, with one more reference.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`]: nothing was changed. Others: something may have been.
    pub(super) fn take_value(&mut self, value: &[u8]) -> Result<Ino> {
        let hash = self.mount.value_hash(value);
        for ino in self.sharing.values(hash) {
            if self.holds(ino, value) {
                self.keep_value(ino)?;
                return Ok(ino);
            }
        }
        let ino = self.make_value(value)?;
        note(&mut self.sharing.values, hash, ino);
        Ok(ino)
    }

    fn holds(&self, ino: Ino, value: &[u8]) -> bool {
        let Ok(inode) = self.mount.inode(ino) else {
            return false;
        };
        let is_value = inode.flags().contains(InodeFlags::EA_INODE);
        let has_size = inode.i_size() == value.len() as u64;
        is_value
            && has_size
            && matches!(self.mount.small_content(&inode, value.len()), Ok(other) if other == value)
    }

    /// One more attribute refers to a value.
    pub(super) fn keep_value(&mut self, ino: Ino) -> Result<()> {
        let inode = self.mount.inode(ino)?;
        let lock = inode.map.lock();
        self.mount
            .change_inode(self.handle, &inode, &lock, &mut |disk| {
                set_references(disk, references(disk).saturating_add(1));
            })
    }

    /// One attribute less refers to a value. The last one makes it an orphan.
    pub(super) fn drop_value(&mut self, ino: Ino) -> Result<()> {
        let inode = self.mount.inode(ino)?;
        let node = inode.node();
        let count = match is_by_lustre(self.inode, &inode) {
            true => u64::from(node.disk.links_count() > 0),
            false => references(&node.disk),
        };
        // More attributes name it than it counts. It is deleted once.
        let Some(left) = count.checked_sub(1) else {
            let what = format!("inode {ino}, its value, has no reference left");
            self.mount
                .damage
                .pass_over(&self.inode.corrupt("xattr", what));
            return Ok(());
        };
        if left == 0 {
            self.sharing.values.retain(|&(_, other)| other != ino);
            self.writer.orphans.add(self.mount, self.handle, &inode)?;
        }
        let lock = inode.map.lock();
        self.mount
            .change_inode(self.handle, &inode, &lock, &mut |disk| {
                set_references(disk, left);
                if left == 0 {
                    disk.disk_mut().i_links_count = 0;
                }
            })?;
        drop(lock);
        if left == 0 {
            self.sharing.dead.push(inode);
        }
        Ok(())
    }

    /// Makes an inode with a value.
    fn make_value(&mut self, value: &[u8]) -> Result<Ino> {
        let claims = self.claim_value(value)?;
        // Its map may take a block too, and then the number is taken.
        const IN_INODE: usize = 4;
        let may_take_one = claims.len() > IN_INODE || !self.mount.has_extents();
        let writer = self.writer;
        let for_map = may_take_one.then(|| writer.blocks.reserve(1, Right::Map));
        let for_map = for_map.transpose()?;
        let new = self
            .writer
            .inodes
            .allocate(self.handle, self.inode.ino, InodeKind::File)?;
        let mut for_map = for_map.map_or(0, Reservation::keep);
        let filled = self.fill_value(&new, value, claims, &mut for_map);
        drop(writer.blocks.reserved(for_map));
        // The number is taken: this must not be committed.
        filled.map_err(|error| self.mount.fail(error))?;
        Ok(new.ino)
    }

    /// Claims blocks for a value.
    fn claim_value(&self, value: &[u8]) -> Result<Vec<Claim>> {
        let cluster = self.mount.sb.cluster_size() as usize;
        let mut left = value.len().div_ceil(cluster) as u32;
        let mut goal = self.mount.goal_of(self.inode)?;
        let mut claims = Vec::new();
        while left > 0 {
            let request = Request {
                goal: Goal::Near(goal),
                len: 1..=left,
                stream: None,
                right: self.mount.right(),
                below: self.mount.groups_below(self.mount.has_extents()),
            };
            let claim = self.writer.blocks.claim(&*self.handle, &request)?;
            left -= claim.run().len;
            goal = claim.run().start;
            claims.push(claim);
        }
        Ok(claims)
    }

    /// `for_map`: what is reserved for the map.
    fn fill_value(
        &mut self,
        new: &NewInode,
        value: &[u8],
        claims: Vec<Claim>,
        for_map: &mut u64,
    ) -> Result<()> {
        let mount = self.mount;
        self.write_new_inode(new, mount.new_value_inode(self.inode, value))?;
        let inode = mount.inode(new.ino)?;
        let block_bytes = mount.sb.block_size() as usize;
        let mut rest = value.chunks(block_bytes);
        let mut lblk = 0;
        for claim in claims {
            let start = claim.run().start;
            let blocks = (claim.run().len * mount.sb.cluster_ratio()).min(rest.len() as u32);
            self.map_claim(&inode, lblk..lblk + blocks, claim, for_map)?;
            for (block, chunk) in (start.0..).zip(rest.by_ref().take(blocks as usize)) {
                let mut bytes = vec![0; block_bytes];
                bytes[..chunk.len()].copy_from_slice(chunk);
                self.handle.create(Pblk(block), &ValueBlock, &bytes)?;
            }
            lblk += blocks;
        }
        inode.changed_in(self.handle.tid(), true);
        Ok(())
    }

    /// Maps claimed blocks of a value.
    fn map_claim(
        &mut self,
        inode: &Inode,
        blocks: Range<u32>,
        mut claim: Claim,
        for_map: &mut u64,
    ) -> Result<()> {
        let lock = inode.map.lock();
        let (mut lblk, mut pblk) = (blocks.start, claim.run().start);
        while lblk < blocks.end {
            let extent = Extent {
                lblk: Lblk(lblk),
                // A value has at most 64 KiB.
                len: (blocks.end - lblk) as u16,
                unwritten: false,
                pblk,
            };
            let mapped = self.mount.change_map(
                self.writer,
                self.handle,
                inode,
                &lock,
                |map| {
                    map.with_reserved(for_map, |map| map.insert_claimed(extent, Some(&mut claim)))
                },
                &mut |_, _| {},
            )?;
            lock.set_run(&Run {
                lblk: Lblk(lblk),
                len: mapped,
                pblk,
                unwritten: false,
            });
            lblk += mapped;
            pblk = Pblk(pblk.0 + u64::from(mapped));
        }
        Ok(())
    }

    /// Writes an inode to a place in the table that was just taken.
    fn write_new_inode(&mut self, new: &NewInode, mut disk: DiskInode) -> Result<()> {
        let mount = self.mount;
        mount.inodes.forget(new.ino);
        if let Some(seed) = mount.checksum_seed() {
            disk.update_checksum(seed, new.ino);
        }
        let at = mount.locate_inode(new.ino)?;
        let raw = disk.encode();
        let slot = at.offset..at.offset + raw.len();
        Ok(self.handle.modify(at.block, &TableBlock, &mut |block| {
            block[slot.clone()].copy_from_slice(&raw);
            Ok(())
        })?)
    }
}
