//! Pass 0: group descriptors, and what lies at fixed places.

use super::Checker;
use super::finding::{At, Code};
use super::layout::Kind;
use dioxide_format::features::Incompat;
use dioxide_format::group_desc::{BLOCK_UNINIT, GroupChecksum, GroupDesc, INODE_UNINIT};
use dioxide_format::system_zone::{Fixed, FixedKind, overlaps};
use dioxide_format::types::Group;
use std::ops::Range;

/// What is known of the groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    all: Vec<GroupState>,
    /// Fixed metadata, sorted.
    fixed: Vec<Fixed>,
}

/// A group's descriptor.
#[derive(Debug)]
pub(super) struct GroupState {
    pub(super) desc: GroupDesc,
    /// Its places are inside the file system.
    pub(super) usable: bool,
    /// Its checksum is right, so that its flags count.
    pub(super) summed: bool,
}

impl Groups {
    pub(super) fn get(&self, group: Group) -> Option<&GroupState> {
        self.all.get(group.0 as usize)
    }

    /// The fixed metadata that blocks overlap, if any.
    pub(super) fn fixed_at(&self, blocks: &Range<u64>) -> Option<&Fixed> {
        let before = self
            .fixed
            .partition_point(|fixed| fixed.blocks.end <= blocks.start);
        self.fixed
            .get(before)
            .filter(|fixed| fixed.blocks.start < blocks.end)
    }
}

impl Checker<'_> {
    fn descriptor_place(&self, index: u32) -> u64 {
        let in_meta_bg = self.sb.features().incompat.contains(Incompat::META_BG)
            && index >= self.sb.first_meta_bg();
        match in_meta_bg {
            true => self.sb.descriptor_block(index).0,
            false => self.sb_block + 1 + u64::from(index),
        }
    }

    /// Reads and judges all descriptors, and marks what is at fixed places.
    pub(super) fn read_groups(&mut self) {
        let per_block = self.sb.descs_per_block().max(1);
        let count = self.sb.group_count();
        for index in 0..self.sb.descriptor_blocks() {
            let block = self.descriptor_place(index);
            let bytes = self.source.block(block);
            let zeros = vec![0; self.sb.block_size() as usize];
            let bytes = self.readable(At::block(block), bytes).unwrap_or(zeros);
            let first = index * per_block;
            for group in first..count.min(first + per_block) {
                self.read_group(Group(group), block, &bytes);
            }
        }
        self.fix_metadata();
    }

    fn read_group(&mut self, group: Group, block: u64, bytes: &[u8]) {
        let size = self.sb.desc_size();
        let at = (group.0 % self.sb.descs_per_block().max(1)) as usize * size;
        let place = At::group(group).in_block(block).offset(at as u64);
        // The superblock's validation allows no other sizes.
        let Ok(desc) = GroupDesc::parse(&bytes[at..], size) else {
            return;
        };
        let summed = desc.verify_checksum(group, GroupChecksum::of(&self.sb));
        if let Err(error) = &summed {
            self.find(Code::DescriptorChecksum, place.clone(), error.to_string());
        }
        let unwritten = desc.flags() & (INODE_UNINIT | BLOCK_UNINIT) != 0;
        let summing = self.sb.features().group_csum();
        if !summing && (unwritten || desc.itable_unused() != 0) {
            let text = "says what was never written, without uninit_bg or metadata_csum";
            self.find(Code::DescriptorFlags, place.clone(), text);
        }
        let usable = self.is_usable(&desc, group);
        let mut counting = desc.clone();
        if !summing {
            counting.set_itable_unused(0);
        }
        if let Err(error) = counting.validate(&self.sb, group) {
            self.find(Code::DescriptorInvalid, place, error.to_string());
        }
        self.groups.all.push(GroupState {
            desc,
            usable,
            // A backup is of when the file system was made, and says of what has been used since that it never was.
            summed: summed.is_ok() && summing && self.primary,
        });
    }

    /// Whether bitmaps and inode table are inside the file system, and not where the superblock is.
    pub(super) fn is_usable(&self, desc: &GroupDesc, group: Group) -> bool {
        let range = self.sb.group_metadata_range(group);
        let places = &desc.metadata_ranges(&self.sb, group)[1..];
        let inside = |at: &Range<u64>| at.start >= range.start && at.end <= range.end;
        places.iter().all(inside)
    }

    /// Of tables that overlap only that of the lowest group is read: inodes would be met once for each group that has them.
    fn pass_over_shared_tables(&mut self) {
        let all = (0..).zip(&self.groups.all);
        let mut tables: Vec<(Range<u64>, u32)> = all
            .filter(|(_, state)| state.usable)
            .map(|(group, state)| {
                let [.., table] = state.desc.metadata_ranges(&self.sb, Group(group));
                (table, group)
            })
            .collect();
        tables.sort_unstable_by_key(|(table, group)| (table.start, *group));
        let mut last: Option<(u64, u32)> = None;
        for (table, group) in tables {
            let over = match last {
                Some((end, other)) if table.start < end => group.max(other),
                _ => {
                    last = Some((table.end, group));
                    continue;
                }
            };
            self.groups.all[over as usize].usable = false;
            if over != group {
                last = Some((table.end, group));
            }
        }
    }

    fn fix_metadata(&mut self) {
        let mut fixed = Vec::new();
        let first = self.sb.first_data_block().0;
        let end = self.sb.blocks_count();
        for (number, state) in (0..).zip(&self.groups.all) {
            let group = Group(number);
            let known = if state.usable { 4 } else { 1 };
            let parts = Fixed::of(&self.sb, group, &state.desc).into_iter();
            fixed.extend(parts.take(known).map(|part| Fixed {
                blocks: part.blocks.start.max(first)..part.blocks.end.min(end),
                ..part
            }));
        }
        for (a, b) in overlaps(&mut fixed) {
            let place = At::group(b.group).in_block(b.blocks.start);
            self.find(Code::MetadataConflict, place, format!("{b} overlaps {a}"));
        }
        for part in &fixed {
            self.claims.fix(part.blocks.clone());
            let kind = match part.kind {
                FixedKind::Descriptors => Kind::Descriptors,
                FixedKind::InodeTable => Kind::InodeTable,
                FixedKind::BlockBitmap | FixedKind::InodeBitmap => Kind::Bitmap,
            };
            self.layout.paint(kind, part.blocks.clone());
        }
        self.groups.fixed = fixed;
        self.pass_over_shared_tables();
        if let Ok(Some(block)) = self.sb.mmp_block() {
            let blocks = block.0..block.0.saturating_add(1);
            self.claims.fix(blocks.clone());
            self.layout.paint(Kind::Descriptors, blocks);
        }
    }
}
