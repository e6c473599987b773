//! From wishes and a size to the numbers of a superblock: groups, inodes, blocks kept for growth.
//!
//! Not for: where things go. What is decided here follows from the size alone, and everything else
//! rests on it.
//!
//! The numbers depend on each other in a circle: inodes per group on the number of groups, that on
//! the size, and the size on whether the last group has room for its own metadata. So they are worked
//! out again, with one thing smaller, until they agree; each round makes the groups or the file
//! system smaller, so it ends.

use super::options::Mkfs;
use super::profile::usage;
use crate::{Error, Result};
use dioxide_format::features::{Compat, Features, Incompat, RoCompat};
use dioxide_format::superblock::{MAGIC, STATE_CLEAN, SuperBlock};
use dioxide_format::types::Group;

/// Room that the last group must have beyond its metadata, in blocks.
const LAST_GROUP_ROOM: u32 = 50;
const FLAG_SIGNED_HASH: u32 = 1;
const HALF_MD4: u8 = 1;
/// What encrypts contents and names: AES-256-XTS, AES-256-CTS.
const ENCRYPT_ALGOS: [u8; 4] = [1, 4, 0, 0];
/// Default mount options: `user_xattr` and `acl`.
const MOUNT_OPTS: u32 = 0xC;
/// Groups whose places are kept in memory without a second thought.
const MAX_GROUPS: u32 = 1 << 24;
/// A backup in the last group, wherever that will be.
const LAST: u32 = u32::MAX;
const EXTRA_ISIZE: u16 = 32;

fn invalid(what: impl Into<String>) -> Error {
    Error::Invalid(what.into())
}

/// What does not change while the numbers are worked out.
struct Wishes<'a> {
    mkfs: &'a Mkfs,
    block_size: u32,
    ratio: u32,
    /// Blocks that there are, and that were asked for.
    blocks: u64,
    inodes: u32,
}

/// A superblock with everything but identity, times and counts of what is free.
pub(super) fn fit(mkfs: &Mkfs, size_bytes: u64) -> Result<SuperBlock> {
    let mut features = mkfs.resulting_features()?;
    let (block_size, ratio) = sizes(mkfs, &features, size_bytes)?;
    let blocks = size_bytes / u64::from(block_size);
    check_block_count(blocks, &mut features, mkfs)?;
    let inode_size = inode_size(mkfs, &features, block_size)?;
    let wishes = Wishes {
        mkfs,
        block_size,
        ratio,
        blocks,
        inodes: wanted_inodes(mkfs, &features, size_bytes, block_size * ratio, blocks)?,
    };
    check_inode_room(&wishes, inode_size)?;
    let mut sb = start(&wishes, &features, inode_size)?;
    settle(&mut sb, &wishes)?;
    place_backups(&mut sb);
    sb.validate(None)
        .map_err(|error| Error::format(error, crate::Place::default()))?;
    Ok(sb)
}

/// Bytes per block and blocks per cluster.
fn sizes(mkfs: &Mkfs, features: &Features, size_bytes: u64) -> Result<(u32, u32)> {
    let block_size = mkfs.block_size.unwrap_or(usage(size_bytes).0);
    let bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
    let cluster = match mkfs.cluster_size {
        Some(_) if !bigalloc => {
            return Err(invalid("a cluster size needs the feature bigalloc"));
        }
        Some(bytes) if bytes < block_size => {
            return Err(invalid(format!(
                "cluster size {bytes} is smaller than a block ({block_size})"
            )));
        }
        Some(bytes) => bytes,
        None if bigalloc => block_size * 16,
        None => block_size,
    };
    Ok((block_size, cluster / block_size))
}

fn check_block_count(blocks: u64, features: &mut Features, mkfs: &Mkfs) -> Result<()> {
    if blocks <= u64::from(u32::MAX) {
        return Ok(());
    }
    if !features.incompat.contains(Incompat::BIT64) {
        return Err(invalid(format!(
            "{blocks} blocks are too many without the feature 64bit"
        )));
    }
    if mkfs.extended.resize_bytes.is_some() {
        return Err(invalid("resize: not with more than 2^32 blocks"));
    }
    // Its pointers have 32 bits.
    features.compat = features.compat.unsupported(Compat::RESIZE_INODE);
    if blocks >= 1 << 48 {
        return Err(invalid(format!("{blocks} blocks are more than 2^48")));
    }
    Ok(())
}

fn inode_size(mkfs: &Mkfs, features: &Features, block_size: u32) -> Result<u32> {
    let size = mkfs.inode_size.unwrap_or(256);
    if size > block_size {
        return Err(invalid(format!(
            "inode size {size} is larger than a block ({block_size})"
        )));
    }
    let inline = features.incompat.contains(Incompat::INLINE_DATA);
    let project = features.ro_compat.contains(RoCompat::PROJECT);
    if size == 128 && (inline || project) {
        let name = if inline { "inline_data" } else { "project" };
        return Err(invalid(format!(
            "inodes of 128 bytes are too small for {name}"
        )));
    }
    Ok(size)
}

fn wanted_inodes(
    mkfs: &Mkfs,
    features: &Features,
    size_bytes: u64,
    cluster_bytes: u32,
    blocks: u64,
) -> Result<u32> {
    if let Some(count) = mkfs.inodes.filter(|&count| count > 0) {
        return Ok(count);
    }
    let block_size = u64::from(mkfs.block_size.unwrap_or(usage(size_bytes).0));
    let by_default = usage(size_bytes).1.max(u64::from(cluster_bytes));
    let ratio = mkfs.bytes_per_inode.unwrap_or(by_default);
    let count = u128::from(blocks) * u128::from(block_size) / u128::from(ratio);
    // One for each of less than a file system is none, and so many are asked for where nobody asks.
    let unasked = u128::from(blocks / 4096_u64.div_ceil(block_size));
    let count = if count == 0 { unasked } else { count };
    match u32::try_from(count) {
        Ok(count) => Ok(count),
        Err(_) if features.incompat.contains(Incompat::BIT64) => Ok(u32::MAX),
        Err(_) => Err(invalid(format!(
            "{count} inodes are too many: give more bytes per inode"
        ))),
    }
}

fn check_inode_room(wishes: &Wishes<'_>, inode_size: u32) -> Result<()> {
    if wishes.blocks == 0 {
        return Err(too_small(wishes));
    }
    let table = u128::from(wishes.inodes) * u128::from(inode_size);
    if table < u128::from(wishes.blocks) * u128::from(wishes.block_size) {
        return Ok(());
    }
    Err(invalid(format!(
        "{} inodes of {inode_size} bytes do not fit into {} blocks: ask for fewer, or for more bytes per inode",
        wishes.inodes, wishes.blocks
    )))
}

fn set_blocks(sb: &mut SuperBlock, blocks: u64) {
    let disk = sb.disk_mut();
    disk.s_blocks_count_lo = blocks as u32;
    disk.s_blocks_count_hi = (blocks >> 32) as u32;
}

fn set_reserved(sb: &mut SuperBlock, blocks: u64) {
    let disk = sb.disk_mut();
    disk.s_r_blocks_count_lo = blocks as u32;
    disk.s_r_blocks_count_hi = (blocks >> 32) as u32;
}

/// What needs no working out.
fn start(wishes: &Wishes<'_>, features: &Features, inode_size: u32) -> Result<SuperBlock> {
    let mkfs = wishes.mkfs;
    let mut sb = SuperBlock::parse(&[0; SuperBlock::SIZE]).expect("1024 zeros are enough");
    let disk = sb.disk_mut();
    disk.s_magic = MAGIC;
    disk.s_state = STATE_CLEAN;
    disk.s_errors = 1;
    disk.s_rev_level = 1;
    disk.s_max_mnt_count = u16::MAX;
    disk.s_first_ino = 11;
    disk.s_log_block_size = wishes.block_size.trailing_zeros() - 10;
    disk.s_log_cluster_size = disk.s_log_block_size + wishes.ratio.trailing_zeros();
    disk.s_first_data_block = u32::from(disk.s_log_cluster_size == 0);
    disk.s_feature_compat = features.compat.bits();
    disk.s_feature_incompat = features.incompat.bits();
    disk.s_feature_ro_compat = features.ro_compat.bits();
    disk.s_inode_size = inode_size as u16;
    if inode_size > 128 {
        disk.s_min_extra_isize = EXTRA_ISIZE;
        disk.s_want_extra_isize = EXTRA_ISIZE;
    }
    if features.incompat.contains(Incompat::BIT64) {
        disk.s_desc_size = 64;
    }
    disk.s_checksum_type = u8::from(features.metadata_csum());
    disk.s_default_mount_opts = MOUNT_OPTS;
    if features.incompat.contains(Incompat::ENCRYPT) {
        disk.s_encrypt_algos = ENCRYPT_ALGOS;
    }
    disk.s_def_hash_version = HALF_MD4;
    disk.s_flags = FLAG_SIGNED_HASH;
    disk.s_raid_stride = mkfs.extended.stride;
    disk.s_raid_stripe_width = mkfs.extended.stripe_width;
    disk.s_log_groups_per_flex = log_groups_per_flex(mkfs, features)?;
    if features.compat.contains(Compat::SPARSE_SUPER2) {
        let wanted = mkfs.extended.backups.unwrap_or(2);
        disk.s_backup_bgs = [u32::from(wanted >= 1), if wanted == 2 { LAST } else { 0 }];
    }
    let per_group = clusters_per_group(wishes.block_size);
    disk.s_clusters_per_group = per_group;
    disk.s_blocks_per_group = per_group.checked_mul(wishes.ratio).ok_or_else(|| {
        invalid("clusters of this size make groups of more than 2^32 blocks: use smaller ones")
    })?;
    Ok(sb)
}

/// As many as a bitmap of one block has bits; the counts of a descriptor have 16.
fn clusters_per_group(block_size: u32) -> u32 {
    (block_size * 8).min((1 << 16) - 8)
}

fn log_groups_per_flex(mkfs: &Mkfs, features: &Features) -> Result<u8> {
    let flex = features.incompat.contains(Incompat::FLEX_BG);
    if !flex && mkfs.flex_groups.is_some() {
        return Err(invalid("groups per flex group need the feature flex_bg"));
    }
    if !flex && mkfs.extended.packed {
        return Err(invalid("packed_meta_blocks needs the feature flex_bg"));
    }
    let groups = if flex {
        mkfs.flex_groups.unwrap_or(16)
    } else {
        1
    };
    Ok(groups.trailing_zeros() as u8)
}

/// Works out groups, inodes and the final size.
fn settle(sb: &mut SuperBlock, wishes: &Wishes<'_>) -> Result<()> {
    let mask = !u64::from(wishes.ratio - 1);
    let mut blocks = wishes.blocks & mask;
    let percent = wishes.mkfs.reserved_percent.unwrap_or(5.0);
    let asked = (percent * wishes.blocks as f64 / 100.0) as u64;
    let mut reserved = asked;
    loop {
        set_blocks(sb, blocks);
        if blocks <= sb.first_data_block().0 {
            return Err(too_small(wishes));
        }
        match settle_once(sb, wishes)? {
            Round::Done => break,
            Round::SmallerGroups => {
                let disk = sb.disk_mut();
                disk.s_blocks_per_group -= 8;
                disk.s_clusters_per_group = disk.s_blocks_per_group;
                blocks = wishes.blocks & mask;
            }
            Round::WithoutLastGroup(rest) => {
                blocks -= rest;
                // The same share of what is left.
                reserved = (asked as f64 / wishes.blocks as f64 * blocks as f64) as u64;
            }
        }
    }
    set_reserved(sb, reserved.min(blocks / 2));
    Ok(())
}

enum Round {
    Done,
    SmallerGroups,
    WithoutLastGroup(u64),
}

fn settle_once(sb: &mut SuperBlock, wishes: &Wishes<'_>) -> Result<Round> {
    let groups = sb.group_count();
    if groups > MAX_GROUPS {
        return Err(Error::Unsupported(format!(
            "more than {MAX_GROUPS} groups: use larger blocks"
        )));
    }
    let wanted = wishes.inodes.max(sb.first_ino().0 + 1);
    let per_group = wanted.div_ceil(groups);
    let bits = wishes.block_size * 8;
    if per_group > bits {
        if sb.has_bigalloc() || sb.blocks_per_group() < 256 {
            return Err(invalid(format!(
                "{wanted} inodes are more than {groups} groups can hold"
            )));
        }
        return Ok(Round::SmallerGroups);
    }
    set_inodes(
        sb,
        per_group.min((1 << 16) - wishes.block_size / sb.inode_size() as u32),
    );
    reserve_descriptors(sb, wishes)?;
    check_overhead(sb, wanted)?;
    judge_last_group(sb, wishes)
}

/// Fills the inode tables' last blocks, in eights, without passing 2^32 in all.
fn set_inodes(sb: &mut SuperBlock, mut wanted: u32) {
    let groups = u64::from(sb.group_count());
    let (size, block_size) = (sb.inode_size() as u64, u64::from(sb.block_size()));
    loop {
        let table = (u64::from(wanted) * size).next_multiple_of(block_size);
        let per_group = (table / size).max(8) as u32 & !7;
        let total = u64::from(per_group) * groups;
        if total <= u64::from(u32::MAX) || wanted <= 1 {
            let disk = sb.disk_mut();
            disk.s_inodes_per_group = per_group;
            disk.s_inodes_count = total as u32;
            return;
        }
        wanted -= 1;
    }
}

/// Blocks kept for more group descriptors: for 1024 times the size, or as asked.
fn reserve_descriptors(sb: &mut SuperBlock, wishes: &Wishes<'_>) -> Result<()> {
    let resize = Compat::RESIZE_INODE;
    let asked = wishes.mkfs.extended.resize_bytes;
    let mut blocks = 0;
    if let Some(amount) = asked {
        let most = amount.in_blocks(wishes.block_size);
        if most <= wishes.blocks {
            return Err(invalid("resize: not more than the file system has already"));
        }
        blocks = descriptors_up_to(sb, most, 0);
        let features = sb.features();
        if blocks > 0 && features.incompat.contains(Incompat::META_BG) {
            return Err(invalid("resize: not with meta_bg"));
        }
        if blocks > 0 && !features.ro_compat.contains(RoCompat::SPARSE_SUPER) {
            return Err(invalid("resize: not without sparse_super"));
        }
        if blocks > 0 {
            let disk = sb.disk_mut();
            disk.s_feature_compat |= resize.bits();
        }
    }
    // What the first descriptors reach to anyhow asks for nothing.
    if blocks == 0 && sb.features().compat.contains(resize) {
        let most = sb.blocks_count().saturating_mul(1024).min(u32::MAX.into());
        let most = if sb.blocks_count() < u64::from(u32::MAX / 1024) {
            most
        } else {
            u32::MAX.into()
        };
        blocks = descriptors_up_to(sb, most, sb.first_data_block().0);
    }
    let crowded = blocks + sb.descriptor_blocks() > sb.blocks_per_group() / 4 * 3;
    let disk = sb.disk_mut();
    if crowded {
        disk.s_feature_incompat |= Incompat::META_BG.bits();
        disk.s_feature_compat &= !resize.bits();
        blocks = 0;
    }
    disk.s_reserved_gdt_blocks = blocks as u16;
    Ok(())
}

/// Descriptor blocks that a file system of `most` blocks needs beyond those of this one, as far as
/// one block of pointers reaches.
fn descriptors_up_to(sb: &SuperBlock, most: u64, first: u64) -> u32 {
    let groups = (most - first).div_ceil(u64::from(sb.blocks_per_group()));
    let blocks = groups.div_ceil(u64::from(sb.descs_per_block()));
    let more = blocks.saturating_sub(u64::from(sb.descriptor_blocks()));
    more.min(u64::from(sb.block_size() / 4)) as u32
}

fn check_overhead(sb: &SuperBlock, wanted: u32) -> Result<()> {
    let most = sb.base_meta_blocks(Group(0)).saturating_add(2);
    if most.saturating_add(sb.inode_table_blocks()) <= sb.blocks_per_group() {
        return Ok(());
    }
    Err(invalid(format!(
        "{wanted} inodes leave no room for anything else in a group"
    )))
}

/// Whether the last group has room for its own metadata and something more.
fn judge_last_group(sb: &mut SuperBlock, wishes: &Wishes<'_>) -> Result<Round> {
    let last = sb.group_count() - 1;
    let mut judged = sb.clone();
    place_backups(&mut judged);
    let mut needed = 2 + sb.inode_table_blocks();
    if judged.group_has_super(Group(last)) {
        needed += 1 + sb.descriptor_blocks() + u32::from(sb.reserved_gdt_blocks());
    }
    let per_group = u64::from(sb.blocks_per_group());
    let rest = (sb.blocks_count() - sb.first_data_block().0) % per_group;
    if rest == 0 || rest >= u64::from(needed + LAST_GROUP_ROOM) {
        return Ok(Round::Done);
    }
    if last == 0 {
        return match rest < u64::from(needed) {
            true => Err(too_small(wishes)),
            false => Ok(Round::Done),
        };
    }
    Ok(Round::WithoutLastGroup(rest))
}

fn too_small(wishes: &Wishes<'_>) -> Error {
    invalid(format!(
        "{} blocks of {} are too few for a file system",
        wishes.blocks, wishes.block_size
    ))
}

/// Gives the backups of `sparse_super2` their groups.
fn place_backups(sb: &mut SuperBlock) {
    let last = sb.group_count() - 1;
    let disk = sb.disk_mut();
    let [mut a, mut b] = disk.s_backup_bgs.map(|group| group.min(last));
    if a == b {
        b = 0;
    }
    if a > b {
        (a, b) = (b, a);
    }
    disk.s_backup_bgs = [a, b];
}
