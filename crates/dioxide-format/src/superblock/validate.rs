//! Whether the superblock describes a file system that can exist.

use super::geometry::{MAX_LOG_BLOCK_SIZE, MAX_LOG_CLUSTER_SIZE};
use super::{MAGIC, STRUCTURE, SuperBlock};
use crate::Result;
use crate::error::ensure;
use crate::features::{Compat, Incompat};
use std::fmt::Display;

fn check(ok: bool, field: &'static str, found: impl Display, expected: impl Display) -> Result<()> {
    ensure(ok, STRUCTURE, field, found, expected)
}

impl SuperBlock {
    /// Checks every field that the geometry rests on, and that the file system fits a device of
    /// `device_size_bytes`. The checksum is not looked at, nor whether features are supported.
    ///
    /// # Errors
    /// `Corrupt`, naming the first field that is wrong.
    pub fn validate(&self, device_size_bytes: Option<u64>) -> Result<()> {
        let magic = self.disk().s_magic;
        check(
            magic == MAGIC,
            "s_magic",
            format_args!("{magic:#06x}"),
            "0xef53",
        )?;
        let rev = self.disk().s_rev_level;
        check(rev <= 1, "s_rev_level", rev, "0 or 1")?;
        self.validate_sizes()?;
        self.validate_groups()?;
        self.validate_inodes()?;
        self.validate_descriptors()?;
        self.validate_device(device_size_bytes)
    }

    fn validate_sizes(&self) -> Result<()> {
        let disk = self.disk();
        let (log, cluster) = (disk.s_log_block_size, disk.s_log_cluster_size);
        check(log <= MAX_LOG_BLOCK_SIZE, "s_log_block_size", log, "0 to 6")?;
        if self.has_bigalloc() {
            let ok = (log..=MAX_LOG_CLUSTER_SIZE).contains(&cluster);
            check(
                ok,
                "s_log_cluster_size",
                cluster,
                format_args!("{log} to 20"),
            )?;
        } else {
            check(cluster == log, "s_log_cluster_size", cluster, log)?;
        }
        let first = u32::from(self.block_size() == 1024 && self.cluster_ratio() == 1);
        let found = disk.s_first_data_block;
        check(found == first, "s_first_data_block", found, first)
    }

    fn validate_groups(&self) -> Result<()> {
        let bits = self.block_size() * 8;
        let clusters = self.clusters_per_group();
        let ok = (1..=bits).contains(&clusters) && clusters.is_multiple_of(8);
        let expected = format_args!("a multiple of 8 up to {bits}");
        let field = if self.has_bigalloc() {
            "s_clusters_per_group"
        } else {
            "s_blocks_per_group"
        };
        check(ok, field, clusters, expected)?;
        if !self.has_bigalloc() {
            // Fragments were its name once, and there are none. Linux and libext2fs refuse another number.
            let found = self.disk().s_clusters_per_group;
            check(found == clusters, "s_clusters_per_group", found, clusters)?;
        }
        let blocks = u64::from(clusters) * u64::from(self.cluster_ratio());
        let found = self.blocks_per_group();
        check(
            u64::from(found) == blocks,
            "s_blocks_per_group",
            found,
            blocks,
        )?;
        self.validate_block_count()
    }

    fn validate_block_count(&self) -> Result<()> {
        let (count, first) = (self.blocks_count(), self.first_data_block().0);
        check(
            count > first,
            "s_blocks_count",
            count,
            format_args!("more than {first}"),
        )?;
        let groups = (count - first).div_ceil(u64::from(self.blocks_per_group()));
        let bytes = count.checked_mul(u64::from(self.block_size()));
        let ok = groups < u64::from(u32::MAX) && bytes.is_some_and(|b| i64::try_from(b).is_ok());
        check(
            ok,
            "s_blocks_count",
            count,
            "less than 2^63 bytes and 2^32 groups",
        )
    }

    fn validate_inodes(&self) -> Result<()> {
        let (size, block) = (self.inode_size(), self.block_size());
        let ok = size.is_power_of_two() && (128..=block as usize).contains(&size);
        let expected = format_args!("a power of two from 128 to {block}");
        check(ok, "s_inode_size", size, expected)?;
        let first = self.first_ino().0;
        check(first >= 11, "s_first_ino", first, "11 or more")?;
        let per_group = self.inodes_per_group();
        let range = (block / size as u32).max(1)..=block * 8;
        let ok = range.contains(&per_group) && per_group.is_multiple_of(8);
        let expected = format_args!("a multiple of 8 from {} to {}", range.start(), range.end());
        check(ok, "s_inodes_per_group", per_group, expected)?;
        let total = u64::from(per_group) * u64::from(self.group_count());
        let found = self.inodes_count();
        check(u64::from(found) == total, "s_inodes_count", found, total)
    }

    fn validate_descriptors(&self) -> Result<()> {
        let size = self.desc_size();
        let ok = !self.is_64bit() || (size.is_power_of_two() && (64..=1024).contains(&size));
        check(ok, "s_desc_size", size, "a power of two from 64 to 1024")?;
        let (reserved, most) = (u32::from(self.reserved_gdt_blocks()), self.block_size() / 4);
        let ok = reserved <= most;
        check(
            ok,
            "s_reserved_gdt_blocks",
            reserved,
            format_args!("at most {most}"),
        )?;
        let (first, blocks) = (self.first_meta_bg(), self.descriptor_blocks());
        let ok = !self.has_incompat(Incompat::META_BG) || first <= blocks;
        check(
            ok,
            "s_first_meta_bg",
            first,
            format_args!("at most {blocks}"),
        )?;
        // Also without the feature: libext2fs refuses it then too.
        let log = self.disk().s_log_groups_per_flex;
        check(log <= 31, "s_log_groups_per_flex", log, "0 to 31")?;
        let kind = self.disk().s_checksum_type;
        let ok = !self.features().metadata_csum() || kind == 1;
        check(ok, "s_checksum_type", kind, "1 (crc32c)")
    }

    /// Checks the hash of new indexes, on which nothing rests that is read. Linux mounts nothing with an unknown one.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn validate_hash_version(&self) -> Result<()> {
        let found = self.def_hash_version();
        let both = Incompat::CASEFOLD.union(Incompat::ENCRYPT);
        let most = if self.has_incompat(both) { 6 } else { 5 };
        let expected = format_args!("0 to {most}");
        check(found <= most, "s_def_hash_version", found, expected)
    }

    /// Checks that the journal, where there is one, is at one place. Linux mounts nothing that names two.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn validate_journal_place(&self) -> Result<()> {
        let has_journal = self.features().compat.contains(Compat::HAS_JOURNAL);
        let (device, inode) = (self.journal_dev(), self.disk().s_journal_inum);
        let ok = !has_journal || device == 0 || inode == 0;
        let expected = format_args!("0, as s_journal_inum is {inode}");
        check(ok, "s_journal_dev", format_args!("{device:#x}"), expected)
    }

    fn validate_device(&self, device_size_bytes: Option<u64>) -> Result<()> {
        let Some(device) = device_size_bytes else {
            return Ok(());
        };
        let fits = device / u64::from(self.block_size());
        let count = self.blocks_count();
        let expected = format_args!("at most {fits}, the blocks of the device");
        check(count <= fits, "s_blocks_count", count, expected)
    }
}
