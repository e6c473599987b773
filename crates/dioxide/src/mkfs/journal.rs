//! The journal of a new file system: how large, where, and its superblock.

use super::options::{Amount, Mkfs};
use super::plan::Plan;
use super::profile;
use crate::{Error, Result};
use dioxide_format::features::Compat;
use dioxide_format::indirect;
use dioxide_format::inode::FileType;
use dioxide_format::journal::{self, BlockType, JournalSuperBlock};
use dioxide_format::types::{Group, Ino};
use std::ops::RangeInclusive;

/// Log blocks that a journal has at least, and blocks in all at most.
const JOURNAL_BLOCKS: RangeInclusive<u64> = 1024..=10_240_000;
/// One fast-commit block for so many blocks of a log of the default size.
const FAST_COMMIT_SHARE: u64 = 64;

impl Plan {
    /// Blocks of the log, and of the area for fast commits. None: the file system is too small.
    fn wanted_journal(&self, mkfs: &Mkfs) -> Result<Option<(u64, u64)>> {
        let by_default = profile::journal_blocks(self.sb.blocks_count()).map(u64::from);
        let kib_per_block = self.block_size() / 1024;
        let log = match mkfs.journal.mib {
            Some(mib) => u64::from(mib) * 1024 / kib_per_block,
            None => match by_default {
                Some(blocks) => blocks,
                None if mkfs.journal.is_shaped() => {
                    return Err(Error::Invalid(
                        "the file system is too small for a journal, and for options of one".into(),
                    ));
                }
                None => return Ok(None),
            },
        };
        let mut fast = 0;
        if self.sb.features().compat.contains(Compat::FAST_COMMIT) {
            fast = match mkfs.journal.fast_commit_kib {
                // Of none Linux makes a number of its own.
                Some(kib) if u64::from(kib) < kib_per_block => {
                    return Err(Error::Invalid(format!(
                        "fast_commit_size {kib} KiB is less than a block ({kib_per_block} KiB)"
                    )));
                }
                Some(kib) => u64::from(kib) / kib_per_block,
                None => by_default.unwrap_or(0) / FAST_COMMIT_SHARE,
            };
        }
        let (all, most) = (log + fast, *JOURNAL_BLOCKS.end());
        if !JOURNAL_BLOCKS.contains(&log) || all > most {
            return Err(Error::Invalid(format!(
                "a journal of {log} blocks, and {fast} for fast commits: there must be at least {}, and {most} in all at most",
                JOURNAL_BLOCKS.start()
            )));
        }
        let free = self.free_blocks();
        let is_asked = mkfs.journal.mib.is_some() || mkfs.journal.fast_commit_kib.is_some();
        if is_asked && all > free / 2 {
            return Err(Error::Invalid(format!(
                "a journal of {all} blocks is more than half of the {free} free ones"
            )));
        }
        Ok(Some((log, fast)))
    }

    pub(super) fn add_journal(&mut self, mkfs: &Mkfs) -> Result<()> {
        let Some((log, fast)) = self.wanted_journal(mkfs)? else {
            self.drop_journal();
            return Ok(());
        };
        let unit = self.space.unit();
        let goal = match (mkfs.journal.location, self.uses_extents()) {
            (Some(location), _) => self.place_of(location)? / unit * unit,
            (None, _) if mkfs.extended.packed => self.first_goal(),
            (None, true) => self.middle(),
            (None, false) => self.first_goal(),
        };
        let blocks = log + fast;
        let mapping = self.map(Ino::JOURNAL, blocks, goal)?;
        let size = blocks * self.block_size();
        let inode = self.new_inode(FileType::Regular, 0o600, 1);
        self.finish_inode(Ino::JOURNAL, inode, size, &mapping);
        self.put_journal_superblock(mapping.runs[0].start, blocks, fast);
        self.sb_journal(&mapping.i_block, size);
        self.overhead += blocks.div_ceil(unit);
        self.journal = Some((blocks, mapping.runs));
        Ok(())
    }

    /// The block that was asked for.
    fn place_of(&self, location: Amount) -> Result<u64> {
        let block = location.in_blocks(self.sb.block_size());
        let blocks = self.sb.blocks_count();
        if block < blocks {
            return Ok(block);
        }
        Err(Error::Invalid(format!(
            "a journal at block {block}: the file system has {blocks} blocks"
        )))
    }

    /// The file system is too small for a journal, and for what needs one.
    fn drop_journal(&mut self) {
        let gone = Compat::HAS_JOURNAL | Compat::ORPHAN_FILE;
        self.sb.disk_mut().s_feature_compat &= !gone.bits();
        self.notes
            .push("too small for a journal: made without".into());
    }

    fn sb_journal(&mut self, i_block: &[u8; 60], size: u64) {
        let disk = self.sb.disk_mut();
        disk.s_journal_inum = Ino::JOURNAL.0;
        disk.s_jnl_backup_type = 1;
        for (slot, word) in disk
            .s_jnl_blocks
            .iter_mut()
            .zip(indirect::pointers(i_block))
        {
            *slot = word;
        }
        disk.s_jnl_blocks[15] = (size >> 32) as u32;
        disk.s_jnl_blocks[16] = size as u32;
    }

    fn put_journal_superblock(&mut self, block: u64, blocks: u64, fast: u64) {
        let mut jsb = JournalSuperBlock::zeroed();
        jsb.h_magic = journal::MAGIC;
        jsb.h_blocktype = BlockType::SuperBlockV2 as u32;
        jsb.s_blocksize = self.sb.block_size();
        jsb.s_maxlen = blocks as u32;
        jsb.s_first = 1;
        jsb.s_sequence = 1;
        jsb.s_nr_users = 1;
        jsb.s_num_fc_blks = fast as u32;
        jsb.s_uuid = self.sb.uuid();
        let mut bytes = vec![0; self.block_size() as usize];
        bytes[..JournalSuperBlock::SIZE].copy_from_slice(&jsb.encode());
        self.content.insert(block, bytes);
    }

    /// The start of the emptiest group about the middle.
    fn middle(&self) -> u64 {
        let sb = &self.sb;
        let (count, flex) = (sb.group_count(), 1 << sb.log_groups_per_flex());
        let half = (sb.blocks_count() - sb.first_data_block().0) / 2;
        let half = half.saturating_sub(sb.first_data_block().0);
        let mut group = (half / u64::from(sb.blocks_per_group())) as u32;
        let mut start = group.saturating_sub(1);
        if flex > 1 && group > flex {
            group &= !(flex - 1);
            let with_room = (group..count).find(|group| self.free_in(*group) > 0);
            group = with_room.unwrap_or(0);
            start = group;
        }
        let end = (group + 1).min(count - 1);
        let most = (start..=end).map(|group| self.free_in(group)).max();
        let best = (start..=end).find(|group| Some(self.free_in(*group)) == most);
        sb.group_first_block(Group(best.unwrap_or(start))).0
    }

    fn free_in(&self, group: u32) -> u64 {
        let first = self.sb.group_first_block(Group(group)).0;
        let len = u64::from(self.sb.blocks_in_group(Group(group)));
        len - self.space.taken_in(first..first + len).min(len)
    }
}
