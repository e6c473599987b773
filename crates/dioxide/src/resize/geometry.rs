//! From a size to the numbers of a superblock: those that `resize2fs` comes to.

use crate::{Error, Result};
use dioxide_format::features::{Compat, Incompat};
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::Group;

/// Room that the last group must have beyond its metadata, in blocks.
const LAST_GROUP_ROOM: u32 = 50;
/// Groups whose descriptors are kept in memory without a second thought.
const MAX_GROUPS: u32 = 1 << 24;

fn invalid(what: String) -> Error {
    Error::Invalid(what)
}

/// A superblock for `blocks` blocks or a little less. Counts of what is free are not right yet.
///
/// # Errors
/// [`Error::Invalid`].
pub(super) fn resized(sb: &SuperBlock, blocks: u64) -> Result<SuperBlock> {
    let mut new = sb.clone();
    let mut blocks = blocks - blocks % u64::from(sb.cluster_ratio());
    loop {
        check_count(sb, blocks)?;
        set_blocks(&mut new, blocks);
        adjust_descriptors(sb, &mut new)?;
        match too_short_last_group(&new)? {
            0 => break,
            rest => blocks -= rest,
        }
    }
    if blocks == sb.blocks_count() {
        return Ok(sb.clone());
    }
    let inodes = u64::from(sb.inodes_per_group()) * u64::from(new.group_count());
    let Ok(inodes) = u32::try_from(inodes) else {
        return Err(invalid(format!("{inodes} inodes are more than 2^32")));
    };
    new.disk_mut().s_inodes_count = inodes;
    // The kernel counts again.
    new.disk_mut().s_overhead_clusters = 0;
    keep_reserve(sb, &mut new);
    Ok(new)
}

fn check_count(sb: &SuperBlock, blocks: u64) -> Result<()> {
    let features = sb.features();
    // Pointers of the resize inode have 32 bits, and meta groups cannot take its place where there are some.
    let stays = features.incompat.contains(Incompat::META_BG)
        && features.compat.contains(Compat::RESIZE_INODE);
    let most = match sb.is_64bit() && !stays {
        true => 1 << 48,
        false => u64::from(u32::MAX),
    };
    if blocks > most {
        return Err(invalid(format!(
            "{blocks} blocks are more than the {most} that there can be with its features (more than 2^32 need 64bit)"
        )));
    }
    if blocks <= sb.first_data_block().0 {
        return Err(invalid(format!(
            "{blocks} blocks are too few for a file system"
        )));
    }
    Ok(())
}

fn set_blocks(sb: &mut SuperBlock, blocks: u64) {
    let disk = sb.disk_mut();
    disk.s_blocks_count_lo = blocks as u32;
    disk.s_blocks_count_hi = (blocks >> 32) as u32;
}

/// The share that is kept for the super user stays what it was.
fn keep_reserve(sb: &SuperBlock, new: &mut SuperBlock) {
    let percent = 100.0 * sb.reserved_blocks_count() as f64 / sb.blocks_count() as f64;
    let reserved = (percent * new.blocks_count() as f64 / 100.0) as u64;
    let disk = new.disk_mut();
    disk.s_r_blocks_count_lo = reserved as u32;
    disk.s_r_blocks_count_hi = (reserved >> 32) as u32;
}

/// Blocks for more descriptors come from those that are kept; where they do not suffice, the rest goes
/// into meta groups. Beyond 2^32 blocks there is no resize inode. Backups of `sparse_super2` follow the last group.
fn adjust_descriptors(sb: &SuperBlock, new: &mut SuperBlock) -> Result<()> {
    if new.group_count() > MAX_GROUPS {
        return Err(invalid(format!("more than {MAX_GROUPS} groups")));
    }
    let (features, kept) = (sb.features(), u32::from(sb.reserved_gdt_blocks()));
    let (had, needs) = (sb.descriptor_blocks(), new.descriptor_blocks());
    let has_32bits = u32::try_from(new.blocks_count()).is_ok();
    let disk = new.disk_mut();
    disk.s_rev_level = sb.disk().s_rev_level;
    disk.s_feature_incompat = features.incompat.bits();
    disk.s_feature_compat = features.compat.bits();
    disk.s_first_meta_bg = sb.first_meta_bg();
    disk.s_reserved_gdt_blocks = kept as u16;
    disk.s_backup_bgs = sb.disk().s_backup_bgs;
    if features.incompat.contains(Incompat::META_BG) && needs < sb.first_meta_bg() {
        disk.s_feature_incompat &= !Incompat::META_BG.bits();
        disk.s_first_meta_bg = 0;
    }
    if !features.incompat.contains(Incompat::META_BG) {
        let resize_inode = features.compat.contains(Compat::RESIZE_INODE);
        let left = match resize_inode {
            true => (had + kept).checked_sub(needs),
            false if needs <= had => Some(kept),
            false => None,
        };
        match left {
            Some(_) if resize_inode && !has_32bits => {
                disk.s_feature_compat &= !Compat::RESIZE_INODE.bits();
                disk.s_reserved_gdt_blocks = 0;
            }
            Some(left) => disk.s_reserved_gdt_blocks = left.min(sb.block_size() / 4) as u16,
            None => {
                new.make_dynamic();
                let disk = new.disk_mut();
                disk.s_feature_incompat |= Incompat::META_BG.bits();
                disk.s_feature_compat &= !Compat::RESIZE_INODE.bits();
                disk.s_first_meta_bg = had + kept;
                disk.s_reserved_gdt_blocks = 0;
            }
        }
    }
    if features.compat.contains(Compat::SPARSE_SUPER2) {
        move_backups(sb, new);
    }
    Ok(())
}

fn move_backups(sb: &SuperBlock, new: &mut SuperBlock) {
    let (last, old_last) = (new.group_count() - 1, sb.group_count() - 1);
    let [mut first, mut second] = sb.disk().s_backup_bgs;
    if last > old_last {
        if old_last == 0 {
            first = 1;
        }
        if old_last < 2 && last > 1 || second != 0 {
            second = last;
        }
    } else if last < old_last {
        // Another group may have no room for one: there is one backup less.
        [first, second] = [first, second].map(|group| if group > last { 0 } else { group });
    }
    new.disk_mut().s_backup_bgs = [first, second];
}

fn own_metadata(sb: &SuperBlock, group: u32) -> u32 {
    let own = 2 + sb.inode_table_blocks();
    match sb.group_has_super(Group(group)) {
        true => own + 1 + sb.descriptor_blocks() + u32::from(sb.reserved_gdt_blocks()),
        false => own,
    }
}

/// The fewest blocks that a group can have as the last one.
pub(super) fn least_last_group(sb: &SuperBlock, group: u32) -> u64 {
    u64::from(own_metadata(sb, group)) + u64::from(LAST_GROUP_ROOM)
}

/// Blocks of a last group that has no room for its own metadata and something more.
fn too_short_last_group(sb: &SuperBlock) -> Result<u64> {
    let last = sb.group_count() - 1;
    let needed = own_metadata(sb, last);
    let blocks = sb.blocks_count() - sb.first_data_block().0;
    let rest = blocks % u64::from(sb.blocks_per_group());
    if last == 0 && rest != 0 && rest < u64::from(needed) {
        return Err(invalid(format!(
            "{} blocks are too few for a file system",
            sb.blocks_count()
        )));
    }
    match last > 0 && rest != 0 && rest < u64::from(needed + LAST_GROUP_ROOM) {
        true => Ok(rest),
        false => Ok(0),
    }
}
