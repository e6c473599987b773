//! Group descriptors, read when they are needed.
//!
//! Not for: keeping them. The blocks they lie in are cached like all metadata, and a descriptor is
//! decoded and checked at each use, which takes less than a microsecond. Only where inode tables lie is
//! remembered, of the first groups: that never changes, and each inode that is looked at asks for it.
//!
//! Rejected: reading the whole table at open. For 16 TiB it has 8 MiB.

use super::Mount;
use crate::{Error, Place, Result};
use dioxide_format::features::Incompat;
use dioxide_format::group_desc::{GroupChecksum, GroupDesc};
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::{Group, Pblk};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where descriptors are and how they are checked.
#[derive(Debug)]
pub(super) struct DescTable {
    /// The block of the superblock that the table follows.
    superblock: Pblk,
    checksum: GroupChecksum,
    /// Where the inode tables begin, by group; 0 is not known yet.
    inode_tables: Box<[AtomicU64]>,
}

/// Sums over all descriptors. The superblock has its own, which are those of the last clean end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) free_blocks: u64,
    pub(crate) free_inodes: u32,
}

impl Counts {
    pub(super) fn add(&mut self, sb: &SuperBlock, desc: &GroupDesc) {
        self.free_blocks += u64::from(desc.free_clusters_count()) * u64::from(sb.cluster_ratio());
        self.free_inodes = self.free_inodes.saturating_add(desc.free_inodes_count());
    }
}

/// Groups whose inode tables are remembered, at most.
const REMEMBERED: u32 = 16_384;

impl DescTable {
    /// `superblock` is the block of the superblock that is used.
    pub(super) fn new(sb: &SuperBlock, superblock: Pblk) -> DescTable {
        DescTable {
            superblock,
            checksum: GroupChecksum::of(sb),
            inode_tables: (0..sb.group_count().min(REMEMBERED))
                .map(|_| AtomicU64::new(0))
                .collect(),
        }
    }

    /// The block that holds block `index` of the table.
    fn block(&self, sb: &SuperBlock, index: u32) -> Pblk {
        let in_table =
            !sb.features().incompat.contains(Incompat::META_BG) || index < sb.first_meta_bg();
        if in_table {
            Pblk(self.superblock.0 + 1 + u64::from(index))
        } else {
            sb.descriptor_block(index)
        }
    }
}

impl Mount {
    /// Where a group's inode table begins. Blocks on metadata.
    ///
    /// # Errors
    /// As [`Mount::group_desc`].
    pub(crate) fn inode_table(&self, group: Group) -> Result<Pblk> {
        let known = self.descs.inode_tables.get(group.0 as usize);
        match known.map(|known| known.load(Ordering::Relaxed)) {
            Some(block) if block != 0 => return Ok(Pblk(block)),
            _ => {}
        }
        let block = self.group_desc(group)?.inode_table();
        if let Some(known) = known {
            known.store(block.0, Ordering::Relaxed);
        }
        Ok(block)
    }

    /// What is free, by the descriptors of all groups. Blocks on metadata.
    ///
    /// # Errors
    /// As [`Mount::group_desc`].
    pub(super) fn count_free(&self) -> Result<Counts> {
        let mut counts = Counts::default();
        for group in (0..self.sb.group_count()).map(Group) {
            counts.add(&self.sb, &self.group_desc(group)?);
        }
        Ok(counts)
    }

    /// The descriptor of a group, checked; of a mount that changes things, as of the last commit: what is free now its
    /// allocators know. Blocks on metadata.
    ///
    /// # Errors
    /// [`Error::Checksum`], or [`Error::Corrupt`] for one that points outside the file system.
    pub(crate) fn group_desc(&self, group: Group) -> Result<GroupDesc> {
        let per_block = self.sb.descs_per_block().max(1);
        let pblk = self.descs.block(&self.sb, group.0 / per_block);
        let at = (group.0 % per_block) as usize * self.sb.desc_size();
        let place = Place::block(pblk.0).at(at as u64);
        let format = |error| Error::format(error, place);
        let block = self.read_meta(pblk)?;
        let bytes = block.get(at..).unwrap_or(&[]);
        let desc = GroupDesc::parse(bytes, self.sb.desc_size()).map_err(format)?;
        desc.verify_checksum(group, self.descs.checksum)
            .map_err(format)?;
        desc.validate(&self.sb, group).map_err(format)?;
        Ok(desc)
    }
}
