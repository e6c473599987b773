//! Descriptors and bitmaps as they are on the device.

use crate::mount::span::read_span;
use crate::{Error, Place, Result};
use dioxide_block::Device;
use dioxide_format::bitmap;
use dioxide_format::group_desc::{BLOCK_UNINIT, GroupChecksum, GroupDesc, INODE_UNINIT};
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::Group;
use std::ops::Range;

pub(super) fn read_block(device: &dyn Device, sb: &SuperBlock, block: u64) -> Result<Vec<u8>> {
    let size = sb.block_size();
    read_span(device, block * u64::from(size), size as usize, "metadata")
}

/// All descriptors, checked.
///
/// # Errors
/// Damage; the device's.
pub(super) fn read_descriptors(device: &dyn Device, sb: &SuperBlock) -> Result<Vec<GroupDesc>> {
    let (size, per_block) = (sb.desc_size(), sb.descs_per_block());
    let mut descs = Vec::new();
    for index in 0..sb.descriptor_blocks() {
        let block = sb.descriptor_block(index).0;
        let bytes = read_block(device, sb, block)?;
        for slot in 0..per_block.min(sb.group_count() - index * per_block) {
            let at = slot as usize * size;
            let group = Group(index * per_block + slot);
            let failed = |error| Error::format(error, Place::block(block).at(at as u64));
            let desc = GroupDesc::parse(&bytes[at..], size).map_err(failed)?;
            desc.verify_checksum(group, GroupChecksum::of(sb))
                .map_err(failed)?;
            desc.validate(sb, group).map_err(failed)?;
            descs.push(desc);
        }
    }
    Ok(descs)
}

/// Whether a bitmap follows from the descriptor.
fn is_uninit(sb: &SuperBlock, desc: &GroupDesc, flag: u16) -> bool {
    sb.features().group_csum() && desc.flags() & flag != 0
}

/// The block bitmap of a group: bits past its last cluster are set.
///
/// # Errors
/// A wrong checksum; the device's.
pub(super) fn block_bitmap(
    device: &dyn Device,
    sb: &SuperBlock,
    group: Group,
    desc: &GroupDesc,
) -> Result<Vec<u8>> {
    if is_uninit(sb, desc, BLOCK_UNINIT) {
        return Ok(implied_bitmap(sb, group, desc));
    }
    let block = desc.block_bitmap().0;
    let bits = read_block(device, sb, block)?;
    if sb.features().metadata_csum() {
        bitmap::verify_block_bitmap(&bits, sb, desc)
            .map_err(|error| Error::format(error, Place::block(block)))?;
    }
    Ok(bits)
}

/// What a bitmap that was never written stands for: the group's own metadata, as far as it lies in it.
fn implied_bitmap(sb: &SuperBlock, group: Group, desc: &GroupDesc) -> Vec<u8> {
    let mut bits = vec![0; sb.block_size() as usize];
    for range in desc.metadata_ranges(sb, group) {
        mark(&mut bits, sb, group, &range);
    }
    pad(&mut bits, sb, group);
    bits
}

/// Marks what of `blocks` lies in a group as used.
pub(super) fn mark(bits: &mut [u8], sb: &SuperBlock, group: Group, blocks: &Range<u64>) {
    put(bits, sb, group, blocks, true);
}

/// Marks what of `blocks` lies in a group as used or free: whole clusters.
pub(super) fn put(bits: &mut [u8], sb: &SuperBlock, group: Group, blocks: &Range<u64>, used: bool) {
    let first = sb.group_first_block(group).0;
    let end = first + u64::from(sb.blocks_in_group(group));
    let (from, to) = (blocks.start.max(first), blocks.end.min(end));
    if from < to {
        let ratio = u64::from(sb.cluster_ratio());
        let range = (from - first) / ratio..(to - first).div_ceil(ratio);
        bitmap::put_range(bits, range.start as usize..range.end as usize, used);
    }
}

/// Sets the bits past a group's last cluster.
pub(super) fn pad(bits: &mut [u8], sb: &SuperBlock, group: Group) {
    let clusters = sb.clusters_in_group(group) as usize;
    let end = bits.len() * 8;
    bitmap::put_range(bits, clusters..end, true);
}

/// The inodes of a group that are used, as bits.
///
/// # Errors
/// A wrong checksum; the device's.
pub(super) fn inode_bitmap(
    device: &dyn Device,
    sb: &SuperBlock,
    desc: &GroupDesc,
) -> Result<Vec<u8>> {
    if is_uninit(sb, desc, INODE_UNINIT) {
        return Ok(vec![0; sb.block_size() as usize]);
    }
    let block = desc.inode_bitmap().0;
    let bits = read_block(device, sb, block)?;
    if sb.features().metadata_csum() {
        bitmap::verify_inode_bitmap(&bits, sb, desc)
            .map_err(|error| Error::format(error, Place::block(block)))?;
    }
    Ok(bits)
}

/// The runs of used clusters of a group, in blocks.
pub(super) fn used_runs(bits: &[u8], sb: &SuperBlock, group: Group) -> Vec<Range<u64>> {
    let (first, ratio) = (sb.group_first_block(group).0, u64::from(sb.cluster_ratio()));
    let clusters = sb.clusters_in_group(group) as usize;
    let (mut runs, mut at) = (Vec::new(), 0);
    while let Some(start) = bitmap::next_set(bits, at, clusters) {
        let end = bitmap::next_zero(bits, start, clusters).unwrap_or(clusters);
        runs.push(first + start as u64 * ratio..first + end as u64 * ratio);
        at = end;
    }
    runs
}
