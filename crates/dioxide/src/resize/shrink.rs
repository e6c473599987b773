//! Making a file system smaller: what is in the way is moved, and then the end is cut off.
//!
//! What groups have of their own goes only with them. Where that is needed for what is moved, it takes more than one go:
//! the file system is cut off as far as it can be, and then again.

use super::groups::read_descriptors;
use super::kept::Kept;
use super::layout::{Groups, Plan};
use super::relocate::{Task, relocate};
use super::survey::Survey;
use super::{OnProgress, ResizeOptions, geometry, mmp_block, read_superblock, refuse_errors};
use crate::{Error, Result};
use dioxide_block::Device;
use dioxide_format::features::Compat;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::{Group, Ino};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The fewest blocks that can be had.
///
/// # Errors
/// Damage; the device's.
pub(super) fn least_blocks(
    device: &dyn Device,
    sb: &SuperBlock,
    progress: &mut OnProgress<'_>,
) -> Result<u64> {
    let mut survey = Survey::new(device, sb, progress)?;
    survey.read_maps(progress)?;
    survey.least()
}

/// Makes the file system as small as `new`, which is smaller; or, where it turns out on the way that groups cannot go, as
/// small as it could be made.
///
/// # Errors
/// [`Error::Invalid`] when what is in use has no room in that: how small it can be made. [`Error::Unsupported`] for what
/// cannot be moved. Damage, which is looked for before anything is moved. With none of these anything was changed. The device's.
pub(super) fn shrink(
    device: &Arc<dyn Device>,
    new: SuperBlock,
    options: &ResizeOptions,
    progress: &mut OnProgress<'_>,
) -> Result<SuperBlock> {
    let target = new.blocks_count();
    let mut is_checked = false;
    loop {
        let old = read_superblock(&**device)?;
        let mut survey = Survey::new(&**device, &old, progress)?;
        let (inodes, clusters) = survey.in_the_way(target)?;
        let metadata = survey.metadata_end(target);
        if metadata > target || (inodes, clusters) != (0, 0) {
            survey.read_maps(progress)?;
        } else {
            if !is_checked {
                refuse_errors(device, options, progress)?;
            }
            let new = geometry::resized(&old, target)?;
            return cut(&**device, &old, new)?.write(&**device, progress);
        }
        if !is_checked {
            movable(&old, &new, &survey)?;
            let least = survey.least()?;
            if metadata > target || target < least {
                return Err(refused(&old, &survey, target, least));
            }
        }
        let reached = survey.reachable(target)?;
        let (inodes, clusters) = survey.in_the_way(reached)?;
        if reached >= old.blocks_count() {
            return match is_checked {
                // What there is room for was told from sums, and the groups that were to go have not all gone.
                true => Ok(old),
                false => Err(refused(&old, &survey, target, reached)),
            };
        }
        let smaller = geometry::resized(&old, reached)?;
        if !std::mem::replace(&mut is_checked, true) {
            refuse_errors(device, options, progress)?;
        }
        let mut task = Task {
            new: &smaller,
            progress,
            inodes,
            clusters,
        };
        relocate(device, &mut task)?;
        let old = read_superblock(&**device)?;
        let survey = Survey::new(&**device, &old, progress)?;
        if survey.in_the_way(reached)? != (0, 0) {
            let (ino, block) = survey.last();
            let what = format!(
                "moving all that is in the way of {reached} blocks (inode {ino} or block {block} is still in use)"
            );
            return Err(Error::Unsupported(what));
        }
        cut(&**device, &old, geometry::resized(&old, reached)?)?.write(&**device, progress)?;
        if reached == target {
            return read_superblock(&**device);
        }
    }
}

fn refused(sb: &SuperBlock, survey: &Survey<'_>, target: u64, least: u64) -> Error {
    let (ino, block) = survey.last();
    let block_bytes = u64::from(sb.block_size());
    let metadata = survey.metadata_end(target);
    let in_use = format!("what is in use (up to inode {ino} and block {block})");
    let why = if metadata > target {
        let last = metadata - 1;
        format!("block {last}, metadata of a group that stays, is not moved")
    } else if survey.moves() {
        format!("{in_use} has no room in {target} blocks")
    } else {
        format!("{in_use} is not moved in a file system with the feature casefold")
    };
    Error::Invalid(format!(
        "{why}: the smallest size is {} bytes ({least} blocks)",
        least * block_bytes
    ))
}

/// Refuses what would be in the way and cannot be moved: see [`Survey::least`].
fn movable(old: &SuperBlock, new: &SuperBlock, survey: &Survey<'_>) -> Result<()> {
    let limit = new.blocks_count();
    let last = Ino(new.inodes_count());
    let refuse = |what: String| Err(Error::Unsupported(what));
    if let Some(block) = mmp_block(old)?.filter(|block| block.0 >= limit) {
        return refuse(format!(
            "moving block {block}, of multi-mount protection: take the feature mmp off first"
        ));
    }
    let (inodes, _) = survey.in_the_way(limit)?;
    if inodes > 0 && old.features().compat.contains(Compat::STABLE_INODES) {
        return refuse(format!(
            "giving inodes (the last is {}) other numbers, with the feature stable_inodes",
            survey.last().0
        ));
    }
    if let Some(ino) = old.journal_inum().filter(|ino| *ino > last) {
        return refuse(format!(
            "giving the journal, inode {ino}, another number: let e2fsck make it inode 8"
        ));
    }
    let bad = survey.bad_blocks()?;
    match bad.into_iter().find(|block| *block >= limit) {
        Some(block) => refuse(format!(
            "moving bad block {block}: empty the list of bad blocks first"
        )),
        None => Ok(()),
    }
}

/// Cuts off what nobody uses.
fn cut(device: &dyn Device, old: &SuperBlock, new: SuperBlock) -> Result<Plan> {
    let descs = read_descriptors(device, old)?;
    let (gone, blocks) = (new.group_count(), new.blocks_count());
    let removed: Vec<Range<u64>> = (gone..)
        .zip(&descs[gone as usize..])
        .flat_map(|(group, desc)| desc.metadata_ranges(old, Group(group)))
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
