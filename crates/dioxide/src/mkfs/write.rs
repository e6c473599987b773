//! Bringing a plan onto a device.
//!
//! Order: the place of the superblock is wiped; what must read as zeros is zeroed; contents, inode
//! tables, bitmaps, descriptors and backups are written and flushed; the superblock comes last, and
//! is flushed. Whatever ends this early leaves no file system behind.
//!
//! Only whole blocks are written. Descriptors and bitmaps are made some groups at a time.

use super::plan::{Plan, counts_writes};
use crate::{Error, Place, Result};
use dioxide_block::{Device, Durability};
use dioxide_format::bitmap;
use dioxide_format::group_desc::{
    BLOCK_UNINIT, GroupChecksum, GroupDesc, INODE_UNINIT, INODE_ZEROED,
};
use dioxide_format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use dioxide_format::types::Group;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of descriptors that are made at a time.
const PART_BYTES: u32 = 1 << 20;
/// At the end of a device old signatures (RAID, partition tables) are looked for.
const TAIL_BYTES: u64 = 64 << 10;

/// How to write a plan.
#[derive(Default)]
pub struct WriteOptions<'a> {
    /// The whole device reads as zeros, so that nothing needs to be zeroed.
    pub reads_zero: bool,
    /// Told from time to time how many groups are done, and of how many.
    pub progress: Option<&'a mut dyn FnMut(u64, u64)>,
}

impl std::fmt::Debug for WriteOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteOptions")
            .field("reads_zero", &self.reads_zero)
            .finish_non_exhaustive()
    }
}

impl Plan {
    /// Writes the file system. Blocks; the device is flushed before it returns.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the device is too small, or its sectors are larger than a block;
    /// [`Error::Device`]. Nothing was changed after the first; after the second there is no file system on the device,
    /// neither this one nor the one that was there.
    pub fn write(&self, device: &dyn Device, options: &mut WriteOptions<'_>) -> Result<()> {
        self.check_device(device)?;
        let mut writer = Writer {
            plan: self,
            device,
            block_size: self.sb.block_size().into(),
            zeroed: options.reads_zero || self.prezeroed,
            written: 0,
        };
        writer.wipe()?;
        writer.zero_rest(&mut options.progress)?;
        writer.contents()?;
        writer.inodes()?;
        writer.groups(&mut options.progress)?;
        device.flush()?;
        writer.superblock()?;
        Ok(device.flush()?)
    }

    pub(super) fn check_device(&self, device: &dyn Device) -> Result<()> {
        let (geometry, block_size) = (device.geometry(), self.sb.block_size());
        if geometry.logical_block_bytes > block_size {
            return Err(Error::Invalid(format!(
                "blocks of {block_size} bytes are smaller than the device's sectors of {}",
                geometry.logical_block_bytes
            )));
        }
        let size = self.sb.blocks_count() * u64::from(block_size);
        if size > geometry.size_bytes {
            return Err(Error::Invalid(format!(
                "the file system needs {size} bytes, the device has {}",
                geometry.size_bytes
            )));
        }
        Ok(())
    }
}

struct Writer<'a> {
    plan: &'a Plan,
    device: &'a dyn Device,
    block_size: u64,
    /// What is not written reads as zeros.
    zeroed: bool,
    /// Bytes written, zeroing apart.
    written: u64,
}

type Progress<'a, 'b> = Option<&'a mut (dyn FnMut(u64, u64) + 'b)>;

fn tell(progress: &mut Progress<'_, '_>, done: u64, total: u64) {
    if let Some(progress) = progress {
        progress(done, total);
    }
}

impl Writer<'_> {
    fn put(&mut self, block: u64, bytes: &[u8]) -> Result<()> {
        self.written += bytes.len() as u64;
        let offset = block * self.block_size;
        Ok(self.device.write_at(offset, bytes, Durability::Cached)?)
    }

    fn zero(&self, blocks: Range<u64>) -> Result<()> {
        let (start, end) = (blocks.start * self.block_size, blocks.end * self.block_size);
        Ok(self.device.write_zeroes(start, end - start)?)
    }

    /// Removes the superblock that was there, and what else says whose the device was.
    fn wipe(&self) -> Result<()> {
        let head = SUPERBLOCK_OFFSET as usize * 4;
        let zeros = vec![0; head.max(self.block_size as usize)];
        self.device.write_at(0, &zeros, Durability::Cached)?;
        if !self.zeroed {
            let blocks = self.plan.sb.blocks_count();
            let tail = (TAIL_BYTES / self.block_size).max(1);
            let start = (blocks / tail * tail).saturating_sub(tail);
            self.zero(start.max(1)..blocks)?;
        }
        Ok(self.device.flush()?)
    }

    /// Inode tables and the log, unless they read as zeros or somebody else zeroes them later.
    fn zero_rest(&self, progress: &mut Progress<'_, '_>) -> Result<()> {
        if self.zeroed {
            return Ok(());
        }
        let plan = self.plan;
        let groups = plan.places.len() as u64;
        let mut run = 0..0;
        for (index, place) in plan.places.iter().enumerate() {
            let len = match plan.lazy_itable {
                true => self.used_table_blocks(Group(index as u32)),
                false => plan.sb.inode_table_blocks().into(),
            };
            let next = place.inode_table..place.inode_table + len;
            if run.end != next.start {
                self.zero(std::mem::replace(&mut run, next))?;
                tell(progress, index as u64, groups);
            } else {
                run.end = next.end;
            }
        }
        self.zero(run)?;
        match &plan.journal {
            Some((_, runs)) if !plan.lazy_journal => {
                runs.iter().try_for_each(|run| self.zero(run.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Blocks of a group's table that hold used inodes.
    fn used_table_blocks(&self, group: Group) -> u64 {
        let bytes = u64::from(self.plan.used_inodes(group)) * self.plan.sb.inode_size() as u64;
        bytes.div_ceil(self.block_size)
    }

    fn contents(&mut self) -> Result<()> {
        let plan = self.plan;
        plan.content
            .iter()
            .try_for_each(|(block, bytes)| self.put(*block, bytes))
    }

    fn inodes(&mut self) -> Result<()> {
        let sb = &self.plan.sb;
        let (size, csum) = (sb.inode_size(), sb.features().metadata_csum());
        let mut blocks: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (ino, inode) in &self.plan.inodes {
            let mut inode = inode.clone();
            if csum {
                inode.update_checksum(sb.checksum_seed(), *ino);
            }
            let (group, index) = sb
                .inode_location(*ino)
                .expect("an inode of this file system");
            let table = self.plan.places[group.0 as usize].inode_table;
            let at = index as usize * size;
            let block = table + at as u64 / self.block_size;
            let empty = || vec![0; self.block_size as usize];
            let bytes = blocks.entry(block).or_insert_with(empty);
            bytes[at % self.block_size as usize..][..size].copy_from_slice(&inode.encode());
        }
        blocks
            .iter()
            .try_for_each(|(block, bytes)| self.put(*block, bytes))
    }

    /// Bitmaps, and descriptors with their copies.
    fn groups(&mut self, progress: &mut Progress<'_, '_>) -> Result<()> {
        let sb = &self.plan.sb;
        let (count, per_block) = (sb.group_count(), sb.descs_per_block());
        let meta_bg = sb.descriptor_block(1).0 != sb.descriptor_block(0).0 + 1;
        let part_blocks = match meta_bg {
            true => 1,
            false => (PART_BYTES / sb.block_size()).max(1),
        };
        let backups: Vec<Group> = sb.backup_groups().collect();
        for index in (0..sb.descriptor_blocks()).step_by(part_blocks as usize) {
            let first = index * per_block;
            let last = (first + part_blocks * per_block).min(count);
            let mut bytes = self.descriptors(first..last)?;
            bytes.resize(bytes.len().next_multiple_of(self.block_size as usize), 0);
            self.put(sb.descriptor_block(index).0, &bytes)?;
            if sb.base_meta_blocks(Group(first)) > 0 && self.in_meta_bg(index) {
                self.meta_bg_copies(first, &bytes)?;
            } else {
                for group in &backups {
                    let at = sb.superblock_block(*group).0 + 1 + u64::from(index);
                    self.put(at, &bytes)?;
                }
            }
            tell(progress, last.into(), count.into());
        }
        for group in backups {
            self.backup(group)?;
        }
        Ok(())
    }

    fn in_meta_bg(&self, index: u32) -> bool {
        let sb = &self.plan.sb;
        let feature = dioxide_format::features::Incompat::META_BG;
        sb.features().incompat.contains(feature) && index >= sb.first_meta_bg()
    }

    /// The second and the last group of a meta group have copies of its one block.
    fn meta_bg_copies(&mut self, first: u32, bytes: &[u8]) -> Result<()> {
        let sb = &self.plan.sb;
        for group in [first + 1, first + sb.descs_per_block() - 1] {
            if group < sb.group_count() {
                let has_super = u64::from(sb.group_has_super(Group(group)));
                self.put(sb.superblock_block(Group(group)).0 + has_super, bytes)?;
            }
        }
        Ok(())
    }

    fn descriptors(&mut self, groups: Range<u32>) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(groups.len() * self.plan.sb.desc_size());
        for group in groups {
            bytes.extend(self.one_group(Group(group))?.encode());
        }
        Ok(bytes)
    }

    /// Writes a group's bitmaps, unless they follow from its descriptor, which it gives.
    fn one_group(&mut self, group: Group) -> Result<GroupDesc> {
        let plan = self.plan;
        let sb = &plan.sb;
        let size = sb.desc_size();
        let failed = |error| Error::format(error, Place::default());
        let mut desc = GroupDesc::parse(&vec![0; size], size).map_err(failed)?;
        self.fill(&mut desc, group);
        let csum = sb.features().metadata_csum();
        let place = plan.places[group.0 as usize];
        if desc.flags() & BLOCK_UNINIT == 0 {
            let bits = self.block_bitmap(group);
            if csum {
                bitmap::update_block_bitmap(&bits, sb, &mut desc).map_err(failed)?;
            }
            self.put(place.block_bitmap, &bits)?;
        }
        if desc.flags() & INODE_UNINIT == 0 {
            let bits = self.inode_bitmap(group);
            if csum {
                bitmap::update_inode_bitmap(&bits, sb, &mut desc).map_err(failed)?;
            }
            self.put(place.inode_bitmap, &bits)?;
        }
        desc.update_checksum(group, GroupChecksum::of(sb));
        Ok(desc)
    }

    /// Places, counts and flags.
    fn fill(&self, desc: &mut GroupDesc, group: Group) {
        let plan = self.plan;
        let sb = &plan.sb;
        let place = plan.places[group.0 as usize];
        let disk = desc.disk_mut();
        disk.bg_block_bitmap_lo = place.block_bitmap as u32;
        disk.bg_block_bitmap_hi = (place.block_bitmap >> 32) as u32;
        disk.bg_inode_bitmap_lo = place.inode_bitmap as u32;
        disk.bg_inode_bitmap_hi = (place.inode_bitmap >> 32) as u32;
        disk.bg_inode_table_lo = place.inode_table as u32;
        disk.bg_inode_table_hi = (place.inode_table >> 32) as u32;
        let used = plan.used_inodes(group);
        let free = sb.inodes_per_group() - used;
        let taken = plan.space.taken_in(plan.group_blocks(group));
        let taken = taken.div_ceil(plan.space.unit()) as u32;
        desc.set_free_clusters_count(sb.clusters_in_group(group) - taken);
        desc.set_free_inodes_count(free);
        let first_ino = u64::from(group.0) * u64::from(sb.inodes_per_group());
        let here = |ino: u64| (first_ino + 1..=first_ino + u64::from(used)).contains(&ino);
        // The root directory and lost+found.
        desc.set_used_dirs_count([2, 11].into_iter().filter(|ino| here(*ino)).count() as u32);
        let mut flags = 0;
        if self.zeroed || !plan.lazy_itable {
            flags |= INODE_ZEROED;
        }
        if sb.features().group_csum() {
            desc.set_itable_unused(free);
            let is_last = group.0 == sb.group_count() - 1;
            flags |= if used == 0 { INODE_UNINIT } else { 0 };
            // Linux counts the blocks of a group once it uses an inode of it.
            flags |= if is_last || place.touched || used > 0 {
                0
            } else {
                BLOCK_UNINIT
            };
        }
        desc.disk_mut().bg_flags = flags;
    }

    fn block_bitmap(&self, group: Group) -> Vec<u8> {
        let plan = self.plan;
        let mut bits = vec![0; self.block_size as usize];
        let (blocks, unit) = (plan.group_blocks(group), plan.space.unit());
        for run in plan.space.taken_runs(blocks.clone()) {
            let start = (run.start - blocks.start) / unit;
            let end = (run.end - blocks.start).div_ceil(unit);
            bitmap::put_range(&mut bits, start as usize..end as usize, true);
        }
        let clusters = plan.sb.clusters_in_group(group) as usize;
        bitmap::put_range(&mut bits, clusters..self.block_size as usize * 8, true);
        bits
    }

    fn inode_bitmap(&self, group: Group) -> Vec<u8> {
        let mut bits = vec![0; self.block_size as usize];
        let used = self.plan.used_inodes(group) as usize;
        bitmap::put_range(&mut bits, 0..used, true);
        let per_group = self.plan.sb.inodes_per_group() as usize;
        bitmap::put_range(&mut bits, per_group..self.block_size as usize * 8, true);
        bits
    }

    /// A copy of the superblock, which does not say that the file system is clean.
    fn backup(&mut self, group: Group) -> Result<()> {
        let mut sb = self.final_superblock();
        sb.disk_mut().s_block_group_nr = group.0 as u16;
        sb.disk_mut().s_state = 0;
        sb.update_checksum();
        let mut bytes = vec![0; self.block_size as usize];
        bytes[..SuperBlock::SIZE].copy_from_slice(&sb.encode());
        self.put(self.plan.sb.superblock_block(group).0, &bytes)
    }

    fn superblock(&mut self) -> Result<()> {
        let mut sb = self.final_superblock();
        sb.update_checksum();
        let block = SUPERBLOCK_OFFSET / self.block_size;
        let at = (SUPERBLOCK_OFFSET % self.block_size) as usize;
        let mut bytes = vec![0; self.block_size as usize];
        bytes[at..][..SuperBlock::SIZE].copy_from_slice(&sb.encode());
        self.put(block, &bytes)
    }

    fn final_superblock(&self) -> SuperBlock {
        let mut sb = self.plan.sb.clone();
        if counts_writes(&sb) {
            sb.disk_mut().s_kbytes_written = (self.written / 1024).max(1);
        }
        sb
    }
}
