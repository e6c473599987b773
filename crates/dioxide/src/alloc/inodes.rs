//! The inode allocator.
//!
//! For: inode numbers, inode bitmaps, the counts in descriptors, and that a new inode's block of the table was
//! written. Not for: the inode itself.
//!
//! Invariants: as for blocks. A number below `s_first_ino` is neither handed out nor taken back.

use super::blocks::BlockAllocator;
use super::groups::{
    GroupInodes, Groups, Load, Slot, Totals, UNKNOWN, View, contradiction, usable,
};
use super::kinds::InodeBitmap;
use super::orlov::Spread;
use crate::txn::inode::TableBlock;
use crate::{Error, Place, Result, Shortage};
use crossbeam_utils::CachePadded;
use dioxide_format::bitmap;
use dioxide_format::group_desc::{GroupDesc, INODE_UNINIT};
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::{Group, Ino, Pblk};
use dioxide_journal::Edit;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// What the inode will be, which decides where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InodeKind {
    /// Anything but a directory: near its parent.
    File,
    /// A directory: near its parent, while there is room for what it will hold.
    Directory,
    /// A directory in the root, or in one with the `TOPDIR` flag: away from all others.
    TopDirectory,
}

/// An inode that was allocated. Its place in the table holds zeros, or what a deleted inode left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewInode {
    /// Its number.
    pub(crate) ino: Ino,
}

/// The inode allocator of one file system.
#[derive(Debug)]
pub(crate) struct InodeAllocator {
    pub(super) blocks: Arc<BlockAllocator>,
    pub(super) spread: Spread,
    free: ByGroup,
    directories: CachePadded<AtomicU64>,
}

/// A sum that each group changes in a place of its own, or of few others, so that threads in different groups do not meet.
#[derive(Debug, Default)]
struct ByGroup([CachePadded<AtomicI64>; 16]);

impl ByGroup {
    fn add(&self, group: Group, count: i64) {
        self.0[group.0 as usize % self.0.len()].fetch_add(count, Relaxed);
    }

    /// Exact while nobody changes it.
    fn sum(&self) -> u64 {
        let sum: i64 = self.0.iter().map(|part| part.load(Relaxed)).sum();
        sum.max(0) as u64
    }
}

/// One bit to change.
pub(super) struct Change {
    pub(super) index: u32,
    pub(super) used: bool,
    pub(super) directory: bool,
}

/// What a descriptor counts of inodes.
#[derive(Clone, Copy, Default)]
struct Counts {
    free: u32,
    directories: u32,
}

impl Counts {
    fn of(desc: &GroupDesc) -> Counts {
        Counts {
            free: desc.free_inodes_count(),
            directories: desc.used_dirs_count(),
        }
    }
}

impl InodeAllocator {
    /// Metadata blocks that one `allocate` changes: the inode bitmap, the descriptor, the block
    /// bitmap of a group that has none yet, and the block of the table.
    pub(crate) const ALLOCATE_CREDITS: u32 = 4;
    /// Metadata blocks that one `free` changes.
    pub(crate) const FREE_CREDITS: u32 = 2;

    /// `totals` are those of [`Groups::totals`].
    pub(crate) fn new(blocks: Arc<BlockAllocator>, totals: Totals) -> InodeAllocator {
        let free = ByGroup::default();
        free.add(Group(0), totals.free_inodes as i64);
        InodeAllocator {
            blocks,
            spread: Spread::default(),
            free,
            directories: AtomicU64::new(totals.directories).into(),
        }
    }

    pub(super) fn groups(&self) -> &Groups {
        &self.blocks.groups
    }

    pub(super) fn sb(&self) -> &SuperBlock {
        self.groups().sb()
    }

    pub(super) fn slot(&self, group: Group) -> &Slot {
        self.groups().slot(group)
    }

    /// Free inodes; the caller stores it when it writes the superblock.
    pub(crate) fn free_inodes(&self) -> u64 {
        self.free.sum()
    }

    /// Directories.
    pub(crate) fn directories(&self) -> u64 {
        self.directories.load(Relaxed)
    }

    /// Allocates an inode for an entry of the directory `parent`. Changes
    /// [`ALLOCATE_CREDITS`](Self::ALLOCATE_CREDITS) metadata blocks; blocks on the device for bitmaps
    /// that are not cached.
    ///
    /// # Errors
    /// [`Error::NoSpace`]. A damaged group is passed over; its [`Error::Corrupt`] comes when no other
    /// has a free inode. In each case no inode is taken.
    pub(crate) fn allocate(
        &self,
        edit: &mut dyn Edit,
        parent: Ino,
        kind: InodeKind,
    ) -> Result<NewInode> {
        let mut damage = None;
        let first = self.choose(&*edit, parent, kind);
        let count = self.groups().count();
        // The chosen group may have been filled since.
        for group in (first.0..count).chain(0..first.0).map(Group) {
            match self.allocate_in(edit, group, kind != InodeKind::File) {
                Ok(Some(inode)) => return Ok(inode),
                Ok(None) => {}
                Err(
                    error @ (Error::Corrupt { .. } | Error::Checksum { .. } | Error::Device(_)),
                ) => {
                    damage.get_or_insert(error);
                }
                Err(fatal) => return Err(fatal),
            }
        }
        Err(damage.unwrap_or(Error::NoSpace(Shortage::Inodes)))
    }

    fn allocate_in(
        &self,
        edit: &mut dyn Edit,
        group: Group,
        directory: bool,
    ) -> Result<Option<NewInode>> {
        if self.peek(&*edit, group)? == 0 {
            return Ok(None);
        }
        let slot = self.slot(group);
        if !self.blocks.is_initialised(group) {
            // Credits go to no group that is passed over. One lock of a group at a time.
            let mut state = slot.inodes.lock();
            let view = self.view(&*edit, group, &mut state)?;
            if self.free_index(group, &state, &view).is_none() {
                return Ok(None);
            }
            drop(state);
            self.blocks.initialise(edit, group)?;
        }
        let mut state = slot.inodes.lock();
        let mut view = self.view(&*edit, group, &mut state)?;
        let Some(index) = self.free_index(group, &state, &view) else {
            return Ok(None);
        };
        state.used_before = index;
        let change = Change {
            index,
            used: true,
            directory,
        };
        // Before the bit: if it fails nothing was changed.
        if self.alone(view.bits(), index) {
            self.clear_table_block(edit, &view.desc, index)?;
        }
        view.let_go();
        self.write(edit, group, &mut state, &view, &change)?;
        let ino = Ino(group.0 * self.sb().inodes_per_group() + index + 1);
        Ok(Some(NewInode { ino }))
    }

    /// The first inode of a group that is free.
    fn free_index(&self, group: Group, state: &GroupInodes, view: &View) -> Option<u32> {
        let from = self.first_index(group).max(state.used_before);
        let end = self.sb().inodes_per_group();
        let index = bitmap::next_zero(view.bits(), from as usize, end as usize);
        index.map(|index| index as u32)
    }

    /// Makes zeros of a block of the table none of whose inodes is in use, under the lock by which others
    /// get one of them: nobody needs to read it, and a table may never have been written.
    pub(super) fn clear_table_block(
        &self,
        edit: &mut dyn Edit,
        desc: &GroupDesc,
        index: u32,
    ) -> Result<()> {
        let at = u64::from(index) * self.sb().inode_size() as u64;
        let block = Pblk(desc.inode_table().0 + at / u64::from(self.sb().block_size()));
        let zeros = vec![0; edit.block_bytes()];
        Ok(edit.create(block, &TableBlock, &zeros)?)
    }

    /// The first index in a group that is not reserved.
    fn first_index(&self, group: Group) -> u32 {
        let first = u64::from(self.sb().first_ino().0) - 1;
        let before = u64::from(group.0) * u64::from(self.sb().inodes_per_group());
        first
            .saturating_sub(before)
            .min(self.sb().inodes_per_group().into()) as u32
    }

    /// Whether the bits of all other inodes in the same block of the table are clear.
    pub(super) fn alone(&self, bits: &[u8], index: u32) -> bool {
        let per_block = self.sb().block_size() / self.sb().inode_size() as u32;
        let start = index / per_block * per_block;
        let end = (start + per_block).min(self.sb().inodes_per_group());
        let used =
            |range: Range<u32>| bitmap::next_set(bits, range.start as usize, range.end as usize);
        used(start..index).is_none() && used(index + 1..end).is_none()
    }

    /// Frees an inode; in a group that is passed over it stays in use. Changes
    /// [`FREE_CREDITS`](Self::FREE_CREDITS) metadata blocks; blocks on the device for a bitmap that is not
    /// cached. Nothing keeps the number from being handed out again at once: the table block's next
    /// change belongs to the same transaction or a later one.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for an inode that is free already, is reserved, or does not exist; nothing
    /// is changed then.
    pub(crate) fn free(&self, edit: &mut dyn Edit, ino: Ino, was_dir: bool) -> Result<()> {
        let location = self.sb().inode_location(ino);
        let wrong = |what: &str| Error::Corrupt {
            structure: "inode bitmap",
            place: Place::ino(ino),
            what: what.into(),
        };
        let location = location.filter(|_| ino >= self.sb().first_ino());
        let (group, index) = location.ok_or_else(|| wrong("freed, and no file's"))?;
        let mut state = self.slot(group).inodes.lock();
        let Some(mut view) = usable(self.view(&*edit, group, &mut state))? else {
            return Ok(());
        };
        if !bitmap::get(view.bits(), index as usize) {
            return Err(wrong("freed, and free already"));
        }
        view.let_go();
        let change = Change {
            index,
            used: false,
            directory: was_dir,
        };
        self.write(edit, group, &mut state, &view, &change)
    }

    /// Free inodes of a group, from memory once it was looked at.
    pub(crate) fn peek(&self, edit: &dyn Edit, group: Group) -> Result<u32> {
        let Some(slot) = self.groups().slot_made(group) else {
            return self.groups().glance_inodes(edit, group);
        };
        if slot.free_inodes.get() == UNKNOWN {
            let _state = slot.inodes.lock();
            self.note(group, Counts::of(&self.groups().desc(edit, group)?));
        }
        Ok(slot.free_inodes.get())
    }

    fn note(&self, group: Group, counts: Counts) {
        let slot = self.slot(group);
        slot.used_dirs.set(counts.directories);
        slot.free_inodes.set(counts.free);
    }

    pub(super) fn view(
        &self,
        edit: &dyn Edit,
        group: Group,
        state: &mut GroupInodes,
    ) -> Result<View> {
        if state.load == Load::Damaged {
            return Err(damaged(group, "it was found damaged before".into()));
        }
        let view = self.read(edit, group).and_then(|view| {
            if state.load == Load::No {
                self.check_loaded(group, &view)?;
                state.load = Load::Ready;
            }
            Ok(view)
        });
        if let Err(error @ (Error::Corrupt { .. } | Error::Checksum { .. })) = &view {
            self.groups().pass_over(error);
            state.load = Load::Damaged;
            self.slot(group).free_inodes.set(0);
        }
        view
    }

    fn read(&self, edit: &dyn Edit, group: Group) -> Result<View> {
        let desc = self.groups().desc(edit, group)?;
        let fresh = self.groups().has_flag(&desc, INODE_UNINIT);
        let bits = if fresh {
            self.initial_bitmap()
        } else {
            let sb = self.sb();
            let kind = InodeBitmap { sb, desc: &desc };
            edit.read(desc.inode_bitmap(), &kind).map_err(Error::from)?
        };
        Ok(View::new(desc, bits, fresh))
    }

    /// The bitmap of a group none of whose inodes was ever used.
    fn initial_bitmap(&self) -> Arc<[u8]> {
        let mut bytes = vec![0; self.sb().block_size() as usize];
        let bits = bytes.len() * 8;
        bitmap::put_range(
            &mut bytes,
            self.sb().inodes_per_group() as usize..bits,
            true,
        );
        bytes.into()
    }

    fn check_loaded(&self, group: Group, view: &View) -> Result<()> {
        let free = bitmap::count_free(view.bits(), self.sb().inodes_per_group() as usize);
        let counted = view.desc.free_inodes_count();
        if free != counted as usize {
            let what = format!("{free} bits are clear, its descriptor counts {counted}");
            return Err(damaged(group, what));
        }
        self.note(group, Counts::of(&view.desc));
        Ok(())
    }

    /// Changes one bit and brings the descriptor and the totals up to date.
    pub(super) fn write(
        &self,
        edit: &mut dyn Edit,
        group: Group,
        state: &mut GroupInodes,
        view: &View,
        change: &Change,
    ) -> Result<()> {
        if !change.used {
            state.used_before = state.used_before.min(change.index);
        }
        let csum = self.write_bitmap(edit, view, change.index, change.used)?;
        let done = self.write_desc(edit, group, change, csum);
        if done.is_err() && !view.fresh {
            // As for blocks: what is left should be consistent.
            let _ = self.write_bitmap(edit, view, change.index, !change.used);
        }
        done?;
        self.free.add(group, if change.used { -1 } else { 1 });
        match (change.directory, change.used) {
            (true, true) => _ = self.directories.fetch_add(1, Relaxed),
            (true, false) => _ = self.directories.fetch_sub(1, Relaxed),
            (false, _) => {}
        }
        Ok(())
    }

    fn write_bitmap(
        &self,
        edit: &mut dyn Edit,
        view: &View,
        index: u32,
        used: bool,
    ) -> Result<Option<u32>> {
        let (sb, block) = (self.sb(), view.desc.inode_bitmap());
        let kind = InodeBitmap {
            sb,
            desc: &view.desc,
        };
        let mut csum = None;
        let mut change = |bytes: &mut [u8]| {
            bitmap::put(bytes, index as usize, used);
            csum = checksum(sb, &view.desc, bytes);
            Ok(())
        };
        view.change_bitmap(edit, block, &kind, &mut change)?;
        Ok(csum)
    }

    fn write_desc(
        &self,
        edit: &mut dyn Edit,
        group: Group,
        change: &Change,
        csum: Option<u32>,
    ) -> Result<()> {
        let mut counts = Counts::default();
        let mut on_desc = |block: Pblk, desc: &mut GroupDesc| {
            self.count(block, desc, change)?;
            self.shrink_unused(desc, change);
            desc.clear_flags(INODE_UNINIT);
            if let Some(csum) = csum {
                desc.set_inode_bitmap_csum(csum);
            }
            counts = Counts::of(desc);
            Ok(())
        };
        self.groups().change_desc(edit, group, &mut on_desc)?;
        self.note(group, counts);
        Ok(())
    }

    fn count(
        &self,
        block: Pblk,
        desc: &mut GroupDesc,
        change: &Change,
    ) -> dioxide_journal::Result<()> {
        let most = self.sb().inodes_per_group();
        let step = |before: u32, up: bool, field: &'static str| {
            let after = if up {
                before.checked_add(1).filter(|&after| after <= most)
            } else {
                before.checked_sub(1)
            };
            after.ok_or_else(|| {
                let expected = "room for one more".into();
                contradiction(block, "group descriptor", field, before, expected)
            })
        };
        let free = step(
            desc.free_inodes_count(),
            !change.used,
            "bg_free_inodes_count",
        )?;
        if change.directory {
            let dirs = step(desc.used_dirs_count(), change.used, "bg_used_dirs_count")?;
            desc.set_used_dirs_count(dirs);
        }
        desc.set_free_inodes_count(free);
        Ok(())
    }

    /// Inodes past the last one ever used need not be looked at by a check; it counts where
    /// descriptors have checksums.
    fn shrink_unused(&self, desc: &mut GroupDesc, change: &Change) {
        if !change.used || !self.sb().features().group_csum() {
            return;
        }
        let after = self.sb().inodes_per_group() - (change.index + 1);
        if self.groups().has_flag(desc, INODE_UNINIT) || after < desc.itable_unused() {
            desc.set_itable_unused(after);
        }
    }
}

/// The checksum of an inode bitmap, where the file system has one.
fn checksum(sb: &SuperBlock, desc: &GroupDesc, bytes: &[u8]) -> Option<u32> {
    if !sb.features().metadata_csum() {
        return None;
    }
    let mut desc = desc.clone();
    bitmap::update_inode_bitmap(bytes, sb, &mut desc).ok()?;
    Some(desc.inode_bitmap_csum())
}

fn damaged(group: Group, what: String) -> Error {
    Error::Corrupt {
        structure: "inode bitmap",
        place: Place::group(group),
        what,
    }
}
