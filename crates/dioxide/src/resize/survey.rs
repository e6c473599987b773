//! What is in use, and how small the file system could be.
//!
//! Two sizes are asked for: what can be reached in one go, with the tables of groups that go still in their places;
//! and what can be reached at all. Both are upper bounds: a file's map may take more blocks when what it leads to lies in
//! more pieces, and the new one is there before the old one goes. See [`Survey::slack`].

use super::groups::{self, block_bitmap, inode_bitmap, put, read_block, read_descriptors};
use super::relocate::inodes_of_group;
use super::relocate::map::{Map, has_map};
use super::{OnProgress, Step, geometry, mmp_block};
use crate::{Error, Place, Result};
use dioxide_block::Device;
use dioxide_format::bitmap;
use dioxide_format::extent::max_entries;
use dioxide_format::features::{Compat, Incompat};
use dioxide_format::group_desc::GroupDesc;
use dioxide_format::indirect;
use dioxide_format::inode::Inode;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::{Group, Ino, Pblk};
use std::ops::Range;

/// Clusters beyond all bounds, so that the last group can go as a whole.
const ROOM: u64 = 64;

/// What a part of the file system has, in clusters.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// In use, and more than a group's own metadata.
    data: u64,
    free: u64,
    /// Runs of free clusters.
    runs: u64,
    inodes: u64,
    free_inodes: u64,
}

impl Sums {
    fn plus(self, other: Sums) -> Sums {
        Sums {
            data: self.data + other.data,
            free: self.free + other.free,
            runs: self.runs + other.runs,
            inodes: self.inodes + other.inodes,
            free_inodes: self.free_inodes + other.free_inodes,
        }
    }
}

/// What maps of files take.
#[derive(Clone, Copy, Debug, Default)]
struct Maps {
    /// Files with extents.
    files: u64,
    /// Those with so many nodes that one more may need another above.
    large: u64,
    /// Nodes of the largest.
    most: u64,
}

pub(super) struct Survey<'a> {
    device: &'a dyn Device,
    sb: &'a SuperBlock,
    descs: Vec<GroupDesc>,
    own: Vec<Range<u64>>,
    /// Of all groups before one.
    before: Vec<Sums>,
    /// Clusters of their own metadata, and where it ends.
    own_before: Vec<(u64, u64)>,
    maps: Maps,
    /// The last used inode, and the last block that is more than a group's own.
    last_inode: Ino,
    last_block: u64,
}

/// The blocks of a group's own metadata: its bitmaps, its table, and the copies that begin it.
fn own_blocks(sb: &SuperBlock, group: u32, desc: &GroupDesc) -> [Range<u64>; 4] {
    desc.metadata_ranges(sb, Group(group))
}

impl<'a> Survey<'a> {
    /// # Errors
    /// Damage; the device's.
    pub fn new(
        device: &'a dyn Device,
        sb: &'a SuperBlock,
        progress: &mut OnProgress<'_>,
    ) -> Result<Survey<'a>> {
        let descs = read_descriptors(device, sb)?;
        let mut own: Vec<Range<u64>> = (0..)
            .zip(&descs)
            .flat_map(|(group, desc)| own_blocks(sb, group, desc))
            .filter(|range| !range.is_empty())
            .collect();
        own.sort_unstable_by_key(|range| range.start);
        let ratio = u64::from(sb.cluster_ratio());
        let (mut sum, mut furthest) = (0, 0);
        let mut own_before = vec![(0, 0)];
        for (group, desc) in (0..).zip(&descs) {
            for range in own_blocks(sb, group, desc) {
                sum += (range.end - range.start).div_ceil(ratio);
                furthest = range.end.max(furthest);
            }
            own_before.push((sum, furthest));
        }
        let mut survey = Survey {
            device,
            sb,
            descs,
            own,
            before: vec![Sums::default()],
            own_before,
            maps: Maps::default(),
            last_inode: Ino(0),
            last_block: sb.first_data_block().0,
        };
        for group in 0..sb.group_count() {
            progress(Step::Survey, group.into(), sb.group_count().into());
            let sums = survey.group(group)?;
            let before = survey.before.last().expect("there is a first");
            let all = before.plus(sums);
            survey.before.push(all);
        }
        Ok(survey)
    }

    /// Looks at the maps of all files.
    ///
    /// # Errors
    /// Damage; the device's.
    pub fn read_maps(&mut self, progress: &mut OnProgress<'_>) -> Result<()> {
        let (device, sb) = (self.device, self.sb);
        let read = |block| Ok(read_block(device, sb, block)?.into());
        let physical = sb.first_data_block().0 + 1..sb.blocks_count();
        let mut maps = Maps::default();
        for (group, desc) in (0..).zip(&self.descs) {
            progress(Step::Survey, group.into(), sb.group_count().into());
            inodes_of_group(device, sb, group, desc, &read, &mut |ino, inode| {
                if has_map(&inode) && ino != Ino::RESIZE {
                    let map = Map::read(ino, &inode, sb.block_size(), &physical, &read)?;
                    let nodes = map.nodes.len() as u64;
                    maps.files += u64::from(!map.extents.is_empty() && inode.uses_extents());
                    maps.large += u64::from(nodes >= 4);
                    maps.most = maps.most.max(nodes);
                }
                Ok(())
            })?;
        }
        self.maps = maps;
        Ok(())
    }

    /// The block bitmap of a group, and the same without groups' own metadata.
    fn bits(&self, group: u32) -> Result<(Vec<u8>, Vec<u8>)> {
        let (sb, desc) = (self.sb, &self.descs[group as usize]);
        let bits = block_bitmap(self.device, sb, Group(group), desc)?;
        let mut data = bits.clone();
        let first = sb.group_first_block(Group(group)).0;
        let end = first + u64::from(sb.blocks_in_group(Group(group)));
        // None is longer than a group.
        let from = first.saturating_sub(sb.blocks_per_group().into());
        let from = self.own.partition_point(|range| range.start < from);
        let here = self.own[from..]
            .iter()
            .take_while(|range| range.start < end);
        here.for_each(|range| put(&mut data, sb, Group(group), range, false));
        Ok((bits, data))
    }

    fn group(&mut self, group: u32) -> Result<Sums> {
        let sb = self.sb;
        let clusters = sb.clusters_in_group(Group(group)) as usize;
        let (bits, data) = self.bits(group)?;
        let mut sums = count(&bits, &data, 0..clusters);
        if let Some(run) = groups::used_runs(&data, sb, Group(group)).last() {
            let end = sb.group_first_block(Group(group)).0;
            let end = end + u64::from(sb.blocks_in_group(Group(group)));
            self.last_block = self.last_block.max((run.end - 1).min(end - 1));
        }
        let desc = &self.descs[group as usize];
        let inodes = inode_bitmap(self.device, sb, desc)?;
        let per_group = sb.inodes_per_group() as usize;
        sums.free_inodes = bitmap::count_free(&inodes, per_group) as u64;
        sums.inodes = per_group as u64 - sums.free_inodes;
        let last = (0..per_group).rev().find(|&at| bitmap::get(&inodes, at));
        if let Some(index) = last {
            self.last_inode = Ino(group * sb.inodes_per_group() + index as u32 + 1);
        }
        Ok(sums)
    }

    fn all(&self) -> Sums {
        *self.before.last().expect("there is a first")
    }

    /// How many groups a file system of so many blocks has.
    fn groups(&self, blocks: u64) -> u32 {
        let group = self.sb.group_of_block(Pblk(blocks - 1));
        group.map_or(self.sb.group_count(), |group| group.0 + 1)
    }

    /// What lies before a block.
    fn before(&self, blocks: u64) -> Result<Sums> {
        let sb = self.sb;
        let group = self.groups(blocks) - 1;
        let first = sb.group_first_block(Group(group)).0;
        let whole = blocks >= first + u64::from(sb.blocks_in_group(Group(group)));
        if whole {
            return Ok(self.before[group as usize + 1]);
        }
        let end = (blocks - first) / u64::from(sb.cluster_ratio());
        let (bits, data) = self.bits(group)?;
        let part = count(&bits, &data, 0..end as usize);
        let inodes = self.before[group as usize + 1];
        let sums = self.before[group as usize].plus(part);
        Ok(Sums {
            inodes: inodes.inodes,
            free_inodes: inodes.free_inodes,
            ..sums
        })
    }

    /// Inodes and clusters that are in the way of a file system of so many blocks.
    ///
    /// # Errors
    /// The device's.
    pub fn in_the_way(&self, blocks: u64) -> Result<(u64, u64)> {
        let (before, all) = (self.before(blocks)?, self.all());
        Ok((all.inodes - before.inodes, all.data - before.data))
    }

    /// The end of what the groups of a file system of so many blocks have of their own.
    pub fn metadata_end(&self, blocks: u64) -> u64 {
        self.own_before[self.groups(blocks) as usize].1
    }

    /// What maps may need beyond what they have. Files are cut into more pieces where a free run ends: each
    /// piece is one more extent, of which a new node holds many, but for the first of a file; and the nodes of one
    /// file are there twice.
    fn slack(&self, runs: u64) -> u64 {
        let per_node = u64::from(max_entries(self.sb.block_size()));
        let grown = match self.sb.features().incompat.contains(Incompat::EXTENTS) {
            true => runs.min(self.maps.files) + runs.min(self.maps.large) + 2 * runs / per_node + 2,
            false => 0,
        };
        grown + self.maps.most + 2
    }

    /// Whether what is in the way has room where nothing is now.
    fn fits_now(&self, blocks: u64) -> Result<bool> {
        let (inodes, clusters) = self.in_the_way(blocks)?;
        let before = self.before(blocks)?;
        let needed = match clusters {
            0 => 0,
            _ => clusters + self.slack(before.runs),
        };
        Ok(inodes <= before.free_inodes && needed <= before.free)
    }

    /// Whether all has room when the tables of groups that go have gone.
    fn fits_at_last(&self, blocks: u64) -> Result<bool> {
        let (inodes, clusters) = self.in_the_way(blocks)?;
        let (before, all) = (self.before(blocks)?, self.all());
        if inodes > before.free_inodes {
            return Ok(false);
        }
        if clusters == 0 {
            return Ok(true);
        }
        let first = self.sb.first_data_block().0;
        let room = (blocks - first) / u64::from(self.sb.cluster_ratio());
        let own = self.own_before[self.groups(blocks) as usize].0;
        let gaps = 2 * u64::from(self.sb.group_count());
        let needed = own + all.data + self.slack(before.runs + gaps) + ROOM;
        Ok(needed <= room)
    }

    /// The smallest size of at least `from` blocks that `fits` accepts.
    fn smallest(&self, from: u64, fits: &dyn Fn(u64) -> Result<bool>) -> Result<u64> {
        let (sb, ratio) = (self.sb, u64::from(self.sb.cluster_ratio()));
        for last in self.groups(from) - 1..sb.group_count() {
            let start = sb.group_first_block(Group(last)).0;
            let end = start + u64::from(sb.blocks_in_group(Group(last)));
            let metadata = self.metadata_end(end);
            if metadata > end || !fits(end)? {
                continue;
            }
            let least = start + geometry::least_last_group(sb, last);
            let least = from.max(metadata).max(least).next_multiple_of(ratio);
            let (mut low, mut high) = (least / ratio, end / ratio);
            while low < high {
                let middle = low + (high - low) / 2;
                match fits(middle * ratio)? {
                    true => high = middle,
                    false => low = middle + 1,
                }
            }
            // A last group that is too short for that can only stay whole.
            for blocks in [high * ratio, end] {
                if blocks >= from && geometry::resized(sb, blocks)?.blocks_count() == blocks {
                    return Ok(blocks);
                }
            }
        }
        Ok(sb.blocks_count())
    }

    /// The fewest blocks of at least `from` that can be had in one go.
    ///
    /// # Errors
    /// The device's.
    pub fn reachable(&self, from: u64) -> Result<u64> {
        self.smallest(from, &|blocks| self.fits_now(blocks))
    }

    /// The fewest blocks that can be had.
    ///
    /// # Errors
    /// Damage; the device's.
    pub fn least(&self) -> Result<u64> {
        let least = self.smallest(self.fixed_end()?, &|blocks| match self.moves() {
            true => self.fits_at_last(blocks),
            false => Ok(self.in_the_way(blocks)? == (0, 0)),
        })?;
        // What there is room for at last may have no room at first.
        let all = self.sb.blocks_count();
        Ok(match self.reachable(least)? < all {
            true => least,
            false => all,
        })
    }

    /// The fewest blocks that hold what stays where it is: bad blocks, the block of multi-mount protection, the
    /// journal's inode; and with `stable_inodes` all others.
    fn fixed_end(&self) -> Result<u64> {
        let sb = self.sb;
        let stable = sb.features().compat.contains(Compat::STABLE_INODES);
        let inodes = stable.then_some(self.last_inode).into_iter();
        let groups = inodes.chain(sb.journal_inum());
        let groups = groups.filter_map(|ino| sb.inode_location(ino));
        let starts = groups.map(|(group, _)| sb.group_first_block(group).0);
        let blocks = starts.chain(self.bad_blocks()?);
        let blocks = blocks.chain(mmp_block(sb)?.map(|block| block.0));
        Ok(blocks.max().unwrap_or(0).max(sb.first_data_block().0) + 1)
    }

    /// The list of bad blocks.
    ///
    /// # Errors
    /// Damage; the device's.
    pub fn bad_blocks(&self) -> Result<Vec<u64>> {
        let sb = self.sb;
        let failed = |error| Error::format(error, Place::ino(Ino::BAD_BLOCKS));
        let read = |block| read_block(self.device, sb, block);
        let block = read(self.descs[0].inode_table().0)?;
        let inode = Inode::parse(&block, sb.inode_size()).map_err(failed)?;
        if indirect::pointers(inode.i_block()).all(|pointer| pointer == 0) {
            return Ok(Vec::new());
        }
        let physical = sb.first_data_block().0 + 1..sb.blocks_count();
        let read = |block| Ok(read(block)?.into());
        let map = Map::read(Ino::BAD_BLOCKS, &inode, sb.block_size(), &physical, &read)?;
        let runs = map.extents.iter();
        let ends = runs.map(|extent| extent.pblk.0 + u64::from(extent.len) - 1);
        Ok(ends.chain(map.nodes.iter().copied()).collect())
    }

    /// Whether anything can be moved: by a mount, and none opens file systems with the feature casefold.
    pub fn moves(&self) -> bool {
        !self.sb.features().incompat.contains(Incompat::CASEFOLD)
    }

    /// What is last, for who is refused.
    pub fn last(&self) -> (Ino, u64) {
        (self.last_inode, self.last_block)
    }
}

fn count(bits: &[u8], data: &[u8], clusters: Range<usize>) -> Sums {
    let end = clusters.end;
    let (mut runs, mut at) = (0, 0);
    while let Some(run) = bitmap::next_free_run(bits, at, end) {
        (runs, at) = (runs + 1, run.end);
    }
    let used = (end - bitmap::count_free(bits, end)) as u64;
    let data = (end - bitmap::count_free(data, end)) as u64;
    Sums {
        data,
        free: end as u64 - used,
        runs,
        ..Sums::default()
    }
}
