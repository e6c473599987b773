//! Making a file system smaller: only what nobody uses goes.

use super::geometry;
use super::groups::{block_bitmap, inode_bitmap, put, read_descriptors, used_runs};
use super::kept::Kept;
use super::layout::{Groups, Plan};
use crate::{Error, Result};
use dioxide_block::Device;
use dioxide_format::bitmap;
use dioxide_format::group_desc::GroupDesc;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::{Group, Ino};
use std::collections::BTreeMap;
use std::ops::Range;

/// What a smaller file system must still hold.
struct InUse {
    /// The last block that is more than a group's own metadata.
    block: u64,
    /// The last group of whose inodes one is used, and its last used inode.
    group: u32,
    ino: Ino,
}

/// The blocks of a group's own metadata: its bitmaps, its table, and the copies that begin it.
fn own_blocks(sb: &SuperBlock, group: u32, desc: &GroupDesc) -> [Range<u64>; 4] {
    desc.metadata_ranges(sb, Group(group))
}

impl InUse {
    fn find(device: &dyn Device, sb: &SuperBlock, descs: &[GroupDesc]) -> Result<InUse> {
        let (group, ino) = last_inode(device, sb, descs)?;
        Ok(InUse {
            block: last_block(device, sb, descs)?,
            group,
            ino,
        })
    }
}

fn last_inode(device: &dyn Device, sb: &SuperBlock, descs: &[GroupDesc]) -> Result<(u32, Ino)> {
    let per_group = sb.inodes_per_group();
    for (group, desc) in (0..descs.len() as u32).zip(descs).rev() {
        let bits = inode_bitmap(device, sb, desc)?;
        let used = (0..per_group as usize)
            .rev()
            .find(|&at| bitmap::get(&bits, at));
        if let Some(index) = used {
            return Ok((group, Ino(group * per_group + index as u32 + 1)));
        }
    }
    Ok((0, Ino(0)))
}

fn last_block(device: &dyn Device, sb: &SuperBlock, descs: &[GroupDesc]) -> Result<u64> {
    let ratio = u64::from(sb.cluster_ratio());
    let all = (0..).zip(descs);
    let mut own: Vec<Range<u64>> = all
        .flat_map(|(group, desc)| own_blocks(sb, group, desc))
        .filter(|range| !range.is_empty())
        .collect();
    own.sort_unstable_by_key(|range| range.start);
    for (group, desc) in (0..descs.len() as u32).zip(descs).rev() {
        let mut bits = block_bitmap(device, sb, Group(group), desc)?;
        let first = sb.group_first_block(Group(group)).0;
        let end = first + u64::from(sb.blocks_in_group(Group(group)));
        // None is longer than a group.
        let from = first.saturating_sub(sb.blocks_per_group().into());
        let from = own.partition_point(|range| range.start < from);
        let here = own[from..].iter().take_while(|range| range.start < end);
        here.for_each(|range| put(&mut bits, sb, Group(group), range, false));
        if let Some(run) = used_runs(&bits, sb, Group(group)).last() {
            return Ok((run.end - 1).min(end - 1));
        }
    }
    Ok(sb.first_data_block().0.next_multiple_of(ratio))
}

/// The end of what the first `groups` groups have of metadata.
fn metadata_end(sb: &SuperBlock, descs: &[GroupDesc], groups: u32) -> u64 {
    let kept = (0..groups).zip(descs);
    let ends = kept.flat_map(|(group, desc)| own_blocks(sb, group, desc).map(|range| range.end));
    ends.max().unwrap_or(0)
}

/// The fewest blocks that can be had.
///
/// # Errors
/// Damage; the device's.
pub(super) fn least_blocks(device: &dyn Device, sb: &SuperBlock) -> Result<u64> {
    let descs = read_descriptors(device, sb)?;
    let in_use = InUse::find(device, sb, &descs)?;
    least(sb, &descs, &in_use)
}

fn least(sb: &SuperBlock, descs: &[GroupDesc], in_use: &InUse) -> Result<u64> {
    let holder = sb.group_of_block(dioxide_format::types::Pblk(in_use.block));
    let first = holder.map_or(0, |group| group.0).max(in_use.group);
    let ratio = u64::from(sb.cluster_ratio());
    for last in first..sb.group_count() {
        let start = sb.group_first_block(Group(last)).0;
        let end = start + u64::from(sb.blocks_in_group(Group(last)));
        let needed = metadata_end(sb, descs, last + 1).max(in_use.block + 1);
        if needed > end {
            continue;
        }
        let room = geometry::least_last_group(sb, last);
        let blocks = needed.max(start + room).next_multiple_of(ratio).min(end);
        // A last group that is too short for that can only stay whole.
        for blocks in [blocks, end] {
            if geometry::resized(sb, blocks)?.blocks_count() == blocks {
                return Ok(blocks);
            }
        }
    }
    Ok(sb.blocks_count())
}

/// Works out a smaller file system.
///
/// # Errors
/// [`Error::Invalid`] when something is in the way: what, and how small it can be made. Damage; the
/// device's.
pub(super) fn shrink(device: &dyn Device, old: &SuperBlock, new: SuperBlock) -> Result<Plan> {
    let descs = read_descriptors(device, old)?;
    check(device, old, &new, &descs)?;
    let (gone, blocks) = (new.group_count(), new.blocks_count());
    let removed: Vec<Range<u64>> = (gone..)
        .zip(&descs[gone as usize..])
        .flat_map(|(group, desc)| own_blocks(old, group, desc))
        .filter(|range| range.start < blocks && !range.is_empty())
        .collect();
    let mut groups = Groups {
        device,
        old,
        new: &new,
        descs,
        bitmaps: BTreeMap::new(),
    };
    groups.bitmap(gone - 1)?;
    groups.move_copies()?;
    for range in removed {
        groups.free(&range)?;
    }
    let kept = Kept::plan(device, old, &mut groups)?;
    groups.descs.truncate(gone as usize);
    groups.finish(new.clone(), kept)
}

fn check(
    device: &dyn Device,
    old: &SuperBlock,
    new: &SuperBlock,
    descs: &[GroupDesc],
) -> Result<()> {
    let in_use = InUse::find(device, old, descs)?;
    let (groups, blocks) = (new.group_count(), new.blocks_count());
    let metadata = metadata_end(old, descs, groups);
    let in_the_way = if in_use.group >= groups {
        format!("inode {} of group {}", in_use.ino, in_use.group)
    } else if in_use.block >= blocks {
        format!("block {}", in_use.block)
    } else if metadata > blocks {
        format!("block {}, metadata of a group that stays,", metadata - 1)
    } else {
        return Ok(());
    };
    let least = least(old, descs, &in_use)?;
    Err(Error::Invalid(format!(
        "{in_the_way} is in use, and nothing is moved: the smallest size is {} bytes ({least} blocks)",
        least * u64::from(old.block_size())
    )))
}
