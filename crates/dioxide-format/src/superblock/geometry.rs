//! What follows from the superblock alone: sizes, groups, backups, where descriptors are.

use super::SuperBlock;
use crate::features::{Compat, Incompat, RoCompat};
use crate::types::{Group, Ino, Lblk, Pblk};

/// Largest `s_log_block_size`: 64 KiB blocks.
pub(super) const MAX_LOG_BLOCK_SIZE: u32 = 6;
/// Largest `s_log_cluster_size`: 1 GiB clusters.
pub(super) const MAX_LOG_CLUSTER_SIZE: u32 = 20;

impl SuperBlock {
    /// Bytes per block: 1024 to 65536. 1024 when the field is out of range.
    pub fn block_size(&self) -> u32 {
        match self.disk().s_log_block_size {
            log @ 0..=MAX_LOG_BLOCK_SIZE => 1024 << log,
            _ => 1024,
        }
    }

    /// Log2 of `block_size()`.
    pub fn block_size_log2(&self) -> u32 {
        self.block_size().trailing_zeros()
    }

    /// Whether space is allocated in clusters of several blocks.
    pub fn has_bigalloc(&self) -> bool {
        self.has_ro_compat(RoCompat::BIGALLOC)
    }

    /// Blocks per cluster; 1 without bigalloc.
    pub fn cluster_ratio(&self) -> u32 {
        let disk = self.disk();
        if !self.has_bigalloc() || disk.s_log_cluster_size > MAX_LOG_CLUSTER_SIZE {
            return 1;
        }
        1 << disk
            .s_log_cluster_size
            .saturating_sub(disk.s_log_block_size)
    }

    /// Bytes per cluster; the block size without bigalloc.
    pub fn cluster_size(&self) -> u32 {
        self.block_size().saturating_mul(self.cluster_ratio())
    }

    /// Blocks per group, the last group excepted.
    pub fn blocks_per_group(&self) -> u32 {
        self.disk().s_blocks_per_group
    }

    /// Clusters per group; bits of a block bitmap.
    pub fn clusters_per_group(&self) -> u32 {
        if self.has_bigalloc() {
            self.disk().s_clusters_per_group
        } else {
            self.disk().s_blocks_per_group
        }
    }

    /// Inodes per group; bits of an inode bitmap.
    pub fn inodes_per_group(&self) -> u32 {
        self.disk().s_inodes_per_group
    }

    /// First block of group 0.
    pub fn first_data_block(&self) -> Pblk {
        Pblk(u64::from(self.disk().s_first_data_block))
    }

    /// Bytes per inode on disk.
    pub fn inode_size(&self) -> usize {
        if self.disk().s_rev_level == 0 {
            128
        } else {
            usize::from(self.disk().s_inode_size)
        }
    }

    /// Bytes per group descriptor: 32, or with 64bit what the superblock says (64 to 1024).
    pub fn desc_size(&self) -> usize {
        if self.is_64bit() {
            usize::from(self.disk().s_desc_size)
        } else {
            32
        }
    }

    /// Number of groups; 0 when the fields make none, `u32::MAX` when there would be more.
    pub fn group_count(&self) -> u32 {
        let per_group = u64::from(self.blocks_per_group());
        if per_group == 0 {
            return 0;
        }
        let blocks = self
            .blocks_count()
            .saturating_sub(self.first_data_block().0);
        u32::try_from(blocks.div_ceil(per_group)).unwrap_or(u32::MAX)
    }

    /// Descriptors per block.
    pub fn descs_per_block(&self) -> u32 {
        self.block_size() / (self.desc_size().max(32) as u32)
    }

    /// Blocks of the whole descriptor table.
    pub fn descriptor_blocks(&self) -> u32 {
        self.group_count().div_ceil(self.descs_per_block().max(1))
    }

    /// Blocks of one group's inode table.
    pub fn inode_table_blocks(&self) -> u32 {
        let bytes = u64::from(self.inodes_per_group()) * self.inode_size() as u64;
        u32::try_from(bytes.div_ceil(u64::from(self.block_size()))).unwrap_or(u32::MAX)
    }

    /// Descriptor blocks reserved for growth after each copy of the table.
    pub fn reserved_gdt_blocks(&self) -> u16 {
        self.disk().s_reserved_gdt_blocks
    }

    /// First descriptor block that lies in its own meta group, where `meta_bg` is set.
    pub fn first_meta_bg(&self) -> u32 {
        self.disk().s_first_meta_bg
    }

    /// Log2 of groups per flex group; 0 without `flex_bg`, or when the field is out of range.
    pub fn log_groups_per_flex(&self) -> u8 {
        match self.disk().s_log_groups_per_flex {
            log @ 1..=31 if self.has_incompat(Incompat::FLEX_BG) => log,
            _ => 0,
        }
    }

    /// First block of a group.
    pub fn group_first_block(&self, group: Group) -> Pblk {
        let blocks = u64::from(group.0) * u64::from(self.blocks_per_group());
        Pblk(blocks + self.first_data_block().0)
    }

    /// Blocks of a group: fewer in the last one, 0 past it.
    pub fn blocks_in_group(&self, group: Group) -> u32 {
        let left = self
            .blocks_count()
            .saturating_sub(self.group_first_block(group).0);
        left.min(u64::from(self.blocks_per_group())) as u32
    }

    /// Clusters of a group: bits of its block bitmap that mean something.
    pub fn clusters_in_group(&self, group: Group) -> u32 {
        self.blocks_in_group(group).div_ceil(self.cluster_ratio())
    }

    /// Blocks among which a group's bitmaps and inode table must lie: with `flex_bg` the whole file
    /// system, without it the group; behind the superblock and its descriptors.
    pub fn group_metadata_range(&self, group: Group) -> std::ops::Range<u64> {
        if self.has_incompat(Incompat::FLEX_BG) {
            return self.descriptors_end()..self.blocks_count();
        }
        let first = self.group_first_block(group).0;
        first.max(self.descriptors_end())..first + u64::from(self.blocks_in_group(group))
    }

    /// Where the descriptors behind the superblock end, without the blocks that are kept for more.
    fn descriptors_end(&self) -> u64 {
        let table = match self.has_meta_bg() {
            true => self.first_meta_bg().max(1),
            false => self.descriptor_blocks(),
        };
        self.superblock_block(Group(0)).0 + 1 + u64::from(table)
    }

    /// The group that holds a block, if the block belongs to the file system.
    pub fn group_of_block(&self, block: Pblk) -> Option<Group> {
        if block.0 >= self.blocks_count() {
            return None;
        }
        let offset = block.0.checked_sub(self.first_data_block().0)?;
        let group = offset.checked_div(u64::from(self.blocks_per_group()))?;
        u32::try_from(group).ok().map(Group)
    }

    /// Where an inode is: its group and its index within that group's table.
    pub fn inode_location(&self, ino: Ino) -> Option<(Group, u32)> {
        if ino.0 > self.inodes_count() {
            return None;
        }
        let index = ino.0.checked_sub(1)?;
        let per_group = self.inodes_per_group();
        Some((Group(index.checked_div(per_group)?), index % per_group))
    }

    /// Largest file, in blocks, that an inode can map: by extents, or by indirect blocks.
    pub fn max_lblk(&self, extents: bool) -> Lblk {
        if extents {
            Lblk(u32::MAX - 1)
        } else {
            crate::indirect::max_lblk(self.block_size())
        }
    }

    /// Whether a group starts with a superblock (primary or backup).
    pub fn group_has_super(&self, group: Group) -> bool {
        let group = group.0;
        if group == 0 {
            return true;
        }
        if self.has_sparse_super2() {
            return self.disk().s_backup_bgs.contains(&group);
        }
        if group == 1 || !self.has_ro_compat(RoCompat::SPARSE_SUPER) {
            return true;
        }
        [3, 5, 7].iter().any(|&base| is_power_of(group, base))
    }

    /// Where descriptors begin, as the resize inode has it, in group 0 and in each group with a backup: at the same
    /// place in all of them. With bigalloc and blocks of 1 KiB that is one block late in the backups; e2fsprogs
    /// counts so, and expects it.
    pub fn resize_inode_bases(&self) -> impl Iterator<Item = u64> + use<> {
        let own = self.superblock_block(Group(0)).0 + 1;
        let distance = u64::from(self.blocks_per_group());
        let backups = self
            .backup_groups()
            .map(move |group| own + u64::from(group.0) * distance);
        std::iter::once(own).chain(backups)
    }

    /// Groups with a backup of the superblock, in order. Takes no time per group without one.
    pub fn backup_groups(&self) -> impl Iterator<Item = Group> + use<> {
        let count = self.group_count();
        let listed = self.listed_backups();
        let every = if listed.is_none() { 1..count } else { 0..0 };
        let listed = listed.unwrap_or_default().into_iter();
        every
            .chain(listed.filter(move |group| (1..count).contains(group)))
            .map(Group)
    }

    /// The groups with a backup when not every group has one; sorted, some perhaps past the last.
    fn listed_backups(&self) -> Option<Vec<u32>> {
        let mut groups = if self.has_sparse_super2() {
            self.disk().s_backup_bgs.to_vec()
        } else if self.has_ro_compat(RoCompat::SPARSE_SUPER) {
            let powers =
                |base: u32| std::iter::successors(Some(base), move |p| p.checked_mul(base));
            [1].into_iter()
                .chain([3, 5, 7].into_iter().flat_map(powers))
                .collect()
        } else {
            return None;
        };
        groups.sort_unstable();
        groups.dedup();
        Some(groups)
    }

    fn has_sparse_super2(&self) -> bool {
        self.features().compat.contains(Compat::SPARSE_SUPER2)
    }

    /// Block of a group's superblock copy; the primary is at byte 1024 of the device.
    pub fn superblock_block(&self, group: Group) -> Pblk {
        let first = self.group_first_block(group);
        Pblk(first.0 + u64::from(self.shifted_by_boot_block(group)))
    }

    /// With 1 KiB blocks and bigalloc, group 0 starts at block 0, its superblock in block 1.
    fn shifted_by_boot_block(&self, group: Group) -> bool {
        group.0 == 0 && self.block_size() == 1024 && self.first_data_block().0 == 0
    }

    fn has_meta_bg(&self) -> bool {
        self.has_incompat(Incompat::META_BG)
    }

    /// Block of the primary copy of descriptor block `index` (counted from 0).
    pub fn descriptor_block(&self, index: u32) -> Pblk {
        if !self.has_meta_bg() || index < self.first_meta_bg() {
            return Pblk(self.superblock_block(Group(0)).0 + 1 + u64::from(index));
        }
        let group = Group(index.saturating_mul(self.descs_per_block()));
        let has_super = u64::from(self.group_has_super(group));
        Pblk(self.superblock_block(group).0 + has_super)
    }

    /// Blocks at the start of a group that hold the superblock and the descriptor table, with the
    /// blocks reserved for its growth (and with 1 KiB bigalloc the boot block of group 0).
    pub fn base_meta_blocks(&self, group: Group) -> u32 {
        let has_super = u32::from(self.group_has_super(group));
        let boot = u32::from(self.shifted_by_boot_block(group));
        let per_block = self.descs_per_block().max(1);
        let in_meta_bg = self.has_meta_bg() && group.0 / per_block >= self.first_meta_bg();
        let table = if in_meta_bg {
            let place = group.0 % per_block;
            u32::from(place <= 1 || place == per_block - 1)
        } else {
            has_super * self.old_table_blocks()
        };
        table.saturating_add(boot + has_super)
    }

    fn old_table_blocks(&self) -> u32 {
        if self.has_meta_bg() {
            self.first_meta_bg()
                .saturating_add(u32::from(self.reserved_gdt_blocks()))
        } else {
            self.descriptor_blocks()
                .saturating_add(u32::from(self.reserved_gdt_blocks()))
        }
    }
}

/// Whether `value` is `base` to a power of at least 1.
fn is_power_of(mut value: u32, base: u32) -> bool {
    while value > 1 && value.is_multiple_of(base) {
        value /= base;
    }
    value == 1
}

#[cfg(test)]
mod tests {
    use super::is_power_of;

    #[test]
    fn power_test_small_values_are_exact() {
        let powers: Vec<u32> = (2..400).filter(|&v| is_power_of(v, 7)).collect();
        assert_eq!(powers, [7, 49, 343]);
        assert!(!is_power_of(0, 3));
    }
}
