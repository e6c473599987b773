//! What every group is to be, worked out before anything is written.

use super::groups::{block_bitmap, mark, pad, put, read_descriptors, used_runs};
use super::kept::Kept;
use crate::mkfs::space::Space;
use crate::mkfs::tables::{Place as Placed, Tables};
use crate::{Error, Place, Result};
use dioxide_block::Device;
use dioxide_format::bitmap;
use dioxide_format::group_desc::{BLOCK_UNINIT, GroupChecksum, GroupDesc, INODE_UNINIT};
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::{Group, Pblk};
use std::collections::BTreeMap;
use std::ops::Range;

/// What is to be written.
pub(super) struct Plan {
    /// With right counts.
    pub sb: SuperBlock,
    /// All that there will be.
    pub descs: Vec<GroupDesc>,
    /// Bitmaps that change of groups that were there, by their block.
    pub bitmaps: BTreeMap<u64, Vec<u8>>,
    pub added: Added,
    pub kept: Kept,
}

/// New groups. Their bitmaps are made when they are written: there may be very many.
pub(super) struct Added {
    /// From this one on.
    pub first: u32,
    /// What is taken in them.
    space: Space,
}

fn failed(error: dioxide_format::Error) -> Error {
    Error::format(error, Place::default())
}

/// Groups under change: their descriptors, and the block bitmaps that were looked at.
pub(super) struct Groups<'a> {
    pub device: &'a dyn Device,
    /// As it was, and as it is to be.
    pub old: &'a SuperBlock,
    pub new: &'a SuperBlock,
    pub descs: Vec<GroupDesc>,
    pub bitmaps: BTreeMap<u32, Vec<u8>>,
}

impl Groups<'_> {
    /// The block bitmap of a group that was there before, as it is to be so far.
    pub fn bitmap(&mut self, group: u32) -> Result<&mut Vec<u8>> {
        if !self.bitmaps.contains_key(&group) {
            let desc = &self.descs[group as usize];
            let mut bits = block_bitmap(self.device, self.old, Group(group), desc)?;
            let (before, now) = [self.old, self.new]
                .map(|sb| sb.clusters_in_group(Group(group)) as usize)
                .into();
            // What is new of it is free.
            bitmap::put_range(&mut bits, before..now.max(before), false);
            pad(&mut bits, self.new, Group(group));
            self.bitmaps.insert(group, bits);
        }
        Ok(self.bitmaps.get_mut(&group).expect("it was just put there"))
    }

    /// Gives the blocks back that a group's copies of superblock and descriptors do not need any more:
    /// there are none (`sparse_super2`), or the descriptors are fewer.
    pub fn move_copies(&mut self) -> Result<()> {
        let both = self.old.group_count().min(self.new.group_count());
        let copies = std::iter::once(Group(0)).chain(self.old.backup_groups());
        for group in copies.filter(|group| group.0 < both) {
            let first = self.old.group_first_block(group).0;
            let [had, has] = [self.old, self.new].map(|sb| u64::from(sb.base_meta_blocks(group)));
            if has < had {
                self.free(&(first + has..first + had))?;
            }
        }
        Ok(())
    }

    /// Gives back what of some blocks lies in groups that stay. Clusters of which something is used by
    /// a group that stays are left.
    pub fn free(&mut self, blocks: &Range<u64>) -> Result<()> {
        let new = self.new;
        let mut at = blocks.start;
        while let Some(group) = new.group_of_block(Pblk(at)).filter(|_| at < blocks.end) {
            put(self.bitmap(group.0)?, new, group, blocks, false);
            at = new.group_first_block(group).0 + u64::from(new.blocks_per_group());
        }
        Ok(())
    }

    /// Marks what groups have of their own, after something else was given back: with bigalloc they
    /// may share clusters.
    fn mark_own(&mut self) {
        if self.new.cluster_ratio() == 1 {
            return;
        }
        let new = self.new;
        let group_of = |block| new.group_of_block(Pblk(block)).map(|group| group.0);
        for (group, desc) in (0..).zip(&self.descs) {
            for range in desc.metadata_ranges(new, Group(group)) {
                let Some(first) = group_of(range.start).filter(|_| !range.is_empty()) else {
                    continue;
                };
                let last = group_of(range.end - 1).unwrap_or(u32::MAX);
                for (&other, bits) in self.bitmaps.range_mut(first..=last) {
                    mark(bits, new, Group(other), &range);
                }
            }
        }
    }

    /// Brings descriptors in line with the bitmaps that were looked at, and the totals with the
    /// descriptors.
    pub fn finish(mut self, mut sb: SuperBlock, kept: Kept) -> Result<Plan> {
        self.mark_own();
        let csum = sb.features().metadata_csum();
        let mut bitmaps = BTreeMap::new();
        for (group, bits) in std::mem::take(&mut self.bitmaps) {
            let desc = &mut self.descs[group as usize];
            let clusters = sb.clusters_in_group(Group(group));
            desc.set_free_clusters_count(bitmap::count_free(&bits, clusters as usize) as u32);
            desc.clear_flags(BLOCK_UNINIT);
            if csum {
                bitmap::update_block_bitmap(&bits, &sb, desc).map_err(failed)?;
            }
            bitmaps.insert(desc.block_bitmap().0, bits);
        }
        let (mut clusters, mut inodes) = (0, 0);
        for (group, desc) in (0..).map(Group).zip(&mut self.descs) {
            desc.update_checksum(group, GroupChecksum::of(&sb));
            clusters += u64::from(desc.free_clusters_count());
            inodes += desc.free_inodes_count();
        }
        sb.set_free_blocks_count(clusters * u64::from(sb.cluster_ratio()));
        sb.set_free_inodes_count(inodes);
        Ok(Plan {
            sb,
            added: Added {
                first: self.descs.len() as u32,
                space: Space::new(0..0),
            },
            descs: self.descs,
            bitmaps,
            kept,
        })
    }
}

/// Works out a larger file system.
///
/// # Errors
/// Damage; the device's; [`Error::Invalid`] where there is no room for a group's metadata.
pub(super) fn grow(device: &dyn Device, old: &SuperBlock, new: SuperBlock) -> Result<Plan> {
    let descs = read_descriptors(device, old)?;
    let mut groups = Groups {
        device,
        old,
        new: &new,
        descs,
        bitmaps: BTreeMap::new(),
    };
    let first = old.group_count();
    // The last group gets longer, or is followed by others.
    groups.bitmap(first - 1)?;
    groups.move_copies()?;
    let kept = Kept::plan(device, old, &mut groups)?;
    // Before something is placed where it was given back.
    groups.mark_own();
    let (places, space) = place(&mut groups, first)?;
    for group in first..new.group_count() {
        let mut desc = new_desc(&new, &places[group as usize], group, &space)?;
        if new.features().metadata_csum()
            && let Some(bits) = new_block_bitmap(&new, group, &desc, &space)
        {
            bitmap::update_block_bitmap(&bits, &new, &mut desc).map_err(failed)?;
        }
        groups.descs.push(desc);
    }
    let plan = groups.finish(new.clone(), kept)?;
    Ok(Plan {
        added: Added { first, space },
        ..plan
    })
}

/// Places what new groups need. With `flex_bg` that may lie in old groups, whose bitmaps say so then.
fn place(groups: &mut Groups<'_>, first: u32) -> Result<(Vec<Placed>, Space)> {
    let new = groups.new;
    let mut places = vec![Placed::default(); new.group_count() as usize];
    let flex = 1u32 << new.log_groups_per_flex();
    let from = (first & !(flex - 1)).min(first);
    let start = new.group_first_block(Group(from)).0;
    let mut space = Space::new(new.first_data_block().0..new.blocks_count());
    if start > new.first_data_block().0 {
        space.take(new.first_data_block().0..start);
    }
    for group in from..first {
        let runs = used_runs(groups.bitmap(group)?, new, Group(group));
        runs.into_iter().for_each(|run| space.take(run));
        let desc = &groups.descs[group as usize];
        places[group as usize] = Placed {
            block_bitmap: desc.block_bitmap().0,
            inode_bitmap: desc.inode_bitmap().0,
            inode_table: desc.inode_table().0,
            touched: false,
        };
    }
    let tables = Tables::extend(new, space, places, first)?;
    let (places, space) = (tables.places, tables.space);
    for group in from..first {
        let here = new.group_first_block(Group(group)).0;
        let end = here + u64::from(new.blocks_in_group(Group(group)));
        let runs: Vec<_> = space.taken_runs(here..end).collect();
        let bits = groups.bitmap(group)?;
        runs.iter()
            .for_each(|run| mark(bits, new, Group(group), run));
        // The last group may have got longer though no bit says so.
        if group + 1 < first && !groups.was_changed(group)? {
            groups.bitmaps.remove(&group);
        }
    }
    Ok((places, space))
}

impl Groups<'_> {
    /// Whether the bitmap of a group that was there is another than it was.
    fn was_changed(&self, group: u32) -> Result<bool> {
        let desc = &self.descs[group as usize];
        let before = block_bitmap(self.device, self.old, Group(group), desc)?;
        Ok(self.bitmaps.get(&group).is_some_and(|bits| *bits != before))
    }
}

fn new_desc(sb: &SuperBlock, place: &Placed, group: u32, space: &Space) -> Result<GroupDesc> {
    let size = sb.desc_size();
    let mut desc = GroupDesc::parse(&vec![0; size], size).map_err(failed)?;
    let disk = desc.disk_mut();
    disk.bg_block_bitmap_lo = place.block_bitmap as u32;
    disk.bg_block_bitmap_hi = (place.block_bitmap >> 32) as u32;
    disk.bg_inode_bitmap_lo = place.inode_bitmap as u32;
    disk.bg_inode_bitmap_hi = (place.inode_bitmap >> 32) as u32;
    disk.bg_inode_table_lo = place.inode_table as u32;
    disk.bg_inode_table_hi = (place.inode_table >> 32) as u32;
    let here = sb.group_first_block(Group(group)).0;
    let taken = space.taken_in(here..here + u64::from(sb.blocks_in_group(Group(group))));
    let taken = taken.div_ceil(sb.cluster_ratio().into()) as u32;
    desc.set_free_clusters_count(sb.clusters_in_group(Group(group)) - taken);
    desc.set_free_inodes_count(sb.inodes_per_group());
    let mut flags = 0;
    if sb.features().group_csum() {
        desc.set_itable_unused(sb.inodes_per_group());
        // The table is zeroed when the kernel has time, or when inodes of it are used.
        flags = INODE_UNINIT;
        let is_last = group == sb.group_count() - 1;
        flags |= if is_last || place.touched {
            0
        } else {
            BLOCK_UNINIT
        };
    }
    desc.disk_mut().bg_flags = flags;
    Ok(desc)
}

/// The block bitmap of a new group, if it does not follow from its descriptor.
fn new_block_bitmap(
    sb: &SuperBlock,
    group: u32,
    desc: &GroupDesc,
    space: &Space,
) -> Option<Vec<u8>> {
    if desc.flags() & BLOCK_UNINIT != 0 {
        return None;
    }
    let mut bits = vec![0; sb.block_size() as usize];
    let here = sb.group_first_block(Group(group)).0;
    let end = here + u64::from(sb.blocks_in_group(Group(group)));
    for run in space.taken_runs(here..end) {
        mark(&mut bits, sb, Group(group), &run);
    }
    pad(&mut bits, sb, Group(group));
    Some(bits)
}

/// The inode bitmap of a new group, if it does not follow from its descriptor.
fn new_inode_bitmap(sb: &SuperBlock, desc: &GroupDesc) -> Option<Vec<u8>> {
    if desc.flags() & INODE_UNINIT != 0 {
        return None;
    }
    let bytes = sb.block_size() as usize;
    let mut bits = vec![0; bytes];
    bitmap::put_range(&mut bits, sb.inodes_per_group() as usize..bytes * 8, true);
    Some(bits)
}

impl Plan {
    /// Calls `each` with every new bitmap, and its block.
    ///
    /// # Errors
    /// The first of `each`.
    pub fn each_new_bitmap(&self, each: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let Added { first, space } = &self.added;
        for (group, desc) in (*first..).zip(&self.descs[*first as usize..]) {
            if let Some(bits) = new_block_bitmap(&self.sb, group, desc, space) {
                each(desc.block_bitmap().0, &bits)?;
            }
            if let Some(bits) = new_inode_bitmap(&self.sb, desc) {
                each(desc.inode_bitmap().0, &bits)?;
            }
        }
        Ok(())
    }

    /// Inode tables that must read as zeros: first blocks. Others are zeroed when they are used.
    pub fn new_tables(&self) -> impl Iterator<Item = u64> + '_ {
        let descs = self.descs[self.added.first as usize..].iter();
        let written = descs.filter(|desc| desc.flags() & INODE_UNINIT == 0);
        written.map(|desc| desc.inode_table().0)
    }
}
