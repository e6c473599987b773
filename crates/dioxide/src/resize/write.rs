//! Bringing a plan onto the device: the mark, what changes, copies, and the superblock last.

use super::layout::Plan;
use super::{OnProgress, Step};
use crate::Result;
use crate::mount::span::{read_span, write_span};
use dioxide_block::Device;
use dioxide_format::features::Incompat;
use dioxide_format::group_desc::{BLOCK_UNINIT, INODE_UNINIT};
use dioxide_format::superblock::{STATE_CLEAN, SUPERBLOCK_OFFSET, SuperBlock};
use dioxide_format::types::Group;
use std::time::{SystemTime, UNIX_EPOCH};

impl Plan {
    /// Writes it all; the superblock as it is then. Blocks.
    ///
    /// # Errors
    /// The device's.
    pub fn write(
        mut self,
        device: &dyn Device,
        progress: &mut OnProgress<'_>,
    ) -> Result<SuperBlock> {
        mark(device)?;
        let block = u64::from(self.sb.block_size());
        let table_bytes = u64::from(self.sb.inode_table_blocks()) * block;
        let added = &self.descs[self.added.first as usize..];
        let without = |flag| added.iter().filter(|desc| desc.flags() & flag == 0).count() as u64;
        // Tables and bitmaps of new groups, and all descriptors: the rest is little.
        let total = without(BLOCK_UNINIT) + 2 * without(INODE_UNINIT) + self.descs.len() as u64;
        let mut done = 0;
        let mut tell = |more| {
            done += more;
            progress(Step::Write, done, total);
        };
        for start in self.new_tables() {
            device.write_zeroes(start * block, table_bytes)?;
            tell(1);
        }
        self.each_new_bitmap(&mut |at, bytes| {
            write_span(device, at * block, bytes)?;
            tell(1);
            Ok(())
        })?;
        for (at, bytes) in self
            .bitmaps
            .iter()
            .chain(self.kept.blocks.iter().map(|b| (&b.0, &b.1)))
        {
            write_span(device, at * block, bytes)?;
        }
        self.descriptors(device, &mut tell)?;
        stamp(&mut self.sb);
        for group in self.sb.backup_groups() {
            self.backup(device, group)?;
        }
        device.flush()?;
        self.sb.disk_mut().s_state |= STATE_CLEAN;
        self.sb.update_checksum();
        write_span(device, SUPERBLOCK_OFFSET, &self.sb.encode())?;
        device.flush()?;
        Ok(self.sb)
    }

    /// The table, and its copies.
    fn descriptors(&self, device: &dyn Device, tell: &mut dyn FnMut(u64)) -> Result<()> {
        let sb = &self.sb;
        let (block, per_block) = (sb.block_size() as usize, sb.descs_per_block());
        let meta_bg = sb.features().incompat.contains(Incompat::META_BG);
        for (index, part) in (0..).zip(self.descs.chunks(per_block as usize)) {
            let mut bytes = Vec::with_capacity(block);
            part.iter().for_each(|desc| bytes.extend(desc.encode()));
            bytes.resize(block, 0);
            let mut places = vec![sb.descriptor_block(index).0];
            if meta_bg && index >= sb.first_meta_bg() {
                let first = index * per_block;
                let copies = [first + 1, first + per_block - 1].into_iter().map(Group);
                places.extend(
                    copies
                        .filter(|group| group.0 < sb.group_count())
                        .map(|group| {
                            sb.superblock_block(group).0 + u64::from(sb.group_has_super(group))
                        }),
                );
            } else {
                // Groups of meta groups have no copy of the table.
                let has_table =
                    |group: &Group| !meta_bg || group.0 / per_block < sb.first_meta_bg();
                let behind = |group| sb.superblock_block(group).0 + 1 + u64::from(index);
                places.extend(sb.backup_groups().filter(has_table).map(behind));
            }
            for at in places {
                write_span(device, at * block as u64, &bytes)?;
            }
            tell(part.len() as u64);
        }
        Ok(())
    }

    /// A copy of the superblock, which does not say that the file system is clean.
    fn backup(&self, device: &dyn Device, group: Group) -> Result<()> {
        let mut sb = self.sb.clone();
        sb.disk_mut().s_block_group_nr = group.0 as u16;
        sb.disk_mut().s_state &= !STATE_CLEAN;
        sb.update_checksum();
        let at = sb.superblock_block(group).0 * u64::from(sb.block_size());
        write_span(device, at, &sb.encode())
    }
}

/// From here on the file system is not clean, if this does not come to its end.
fn mark(device: &dyn Device) -> Result<()> {
    let bytes = read_span(device, SUPERBLOCK_OFFSET, SuperBlock::SIZE, "superblock")?;
    let mut sb = SuperBlock::parse(&bytes).expect("its size is right");
    sb.disk_mut().s_state &= !STATE_CLEAN;
    sb.update_checksum();
    write_span(device, SUPERBLOCK_OFFSET, &sb.encode())?;
    Ok(device.flush()?)
}

fn stamp(sb: &mut SuperBlock) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let secs = since.map_or(0, |since| since.as_secs());
    let disk = sb.disk_mut();
    disk.s_wtime = secs as u32;
    disk.s_wtime_hi = (secs >> 32) as u8;
}
