//! Where bitmaps and inode tables go.
//!
//! Without `flex_bg` they follow the group's own copies of the superblock; with it those of several
//! groups lie together at the start of the first; packed, those of all groups at the start of all.
//! Every rule here is what `mke2fs` does, so that the layouts are alike block by block.

use super::space::Space;
use crate::{Error, Result};
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::Group;

/// Where a group's metadata is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub block_bitmap: u64,
    pub inode_bitmap: u64,
    pub inode_table: u64,
    /// Something lies in the group that its descriptor does not tell, so that its bitmap must be
    /// written.
    pub touched: bool,
}

/// All places, and the space that they take.
pub(crate) struct Tables<'a> {
    sb: &'a SuperBlock,
    pub space: Space,
    pub places: Vec<Place>,
    table_blocks: u64,
}

/// Groups whose metadata lie together.
struct Flex {
    first: u32,
    last: u32,
    /// Groups from the one in question to the last.
    left: u64,
    size: u32,
}

impl<'a> Tables<'a> {
    /// Places everything.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no room.
    pub fn place(sb: &'a SuperBlock, packed: bool) -> Result<Tables<'a>> {
        let groups = sb.group_count();
        let mut tables = Tables {
            sb,
            space: Space::new(sb.first_data_block().0..sb.blocks_count()),
            places: vec![Place::default(); groups as usize],
            table_blocks: sb.inode_table_blocks().into(),
        };
        tables.reserve_bases(0);
        if packed {
            tables.pack()?;
        } else {
            (0..groups).try_for_each(|group| tables.place_group(group))?;
        }
        tables.space.round_to_clusters(sb.cluster_ratio());
        Ok(tables)
    }

    /// Places what groups from `first` on need in a file system that has those before. `space` says
    /// which of their blocks are taken; `places`, one for each group, where their own metadata is.
    ///
    /// # Errors
    /// As [`Tables::place`].
    pub fn extend(
        sb: &'a SuperBlock,
        space: Space,
        places: Vec<Place>,
        first: u32,
    ) -> Result<Tables<'a>> {
        let table_blocks = sb.inode_table_blocks().into();
        let mut tables = Tables {
            sb,
            space,
            places,
            table_blocks,
        };
        tables.reserve_bases(first);
        (first..sb.group_count()).try_for_each(|group| tables.place_group(group))?;
        tables.space.round_to_clusters(sb.cluster_ratio());
        Ok(tables)
    }

    /// Superblocks and descriptors, with their copies.
    fn reserve_bases(&mut self, from: u32) {
        for group in from..self.sb.group_count() {
            let len = u64::from(self.sb.base_meta_blocks(Group(group)));
            if len > 0 {
                let first = self.first_block(group);
                self.space.take(first..first + len);
            }
        }
    }

    fn first_block(&self, group: u32) -> u64 {
        self.sb.group_first_block(Group(group)).0
    }

    fn last_block(&self, group: u32) -> u64 {
        self.first_block(group) + u64::from(self.sb.blocks_in_group(Group(group))) - 1
    }

    fn flex(&self, group: u32) -> Option<Flex> {
        let size = 1u32 << self.sb.log_groups_per_flex();
        let first = group & !(size - 1);
        let last = (group | (size - 1)).min(self.sb.group_count() - 1);
        (size > 1).then_some(Flex {
            first,
            last,
            left: u64::from(last - group) + 1,
            size,
        })
    }

    fn place_group(&mut self, group: u32) -> Result<()> {
        match self.flex(group) {
            Some(flex) => self.place_in_flex(group, &flex),
            None => self.place_alone(group),
        }
    }

    fn place_alone(&mut self, group: u32) -> Result<()> {
        let (first, last) = (self.first_block(group), self.last_block(group));
        let start = self.strided(group, first, last)?;
        let bitmap = |tables: &mut Self| {
            let found = tables.space.find(start, last, 1);
            let found = found.or_else(|| tables.space.find(first, last, 1));
            tables.claim(found, 1, group)
        };
        let place = Place {
            block_bitmap: bitmap(self)?,
            inode_bitmap: bitmap(self)?,
            inode_table: 0,
            touched: false,
        };
        let table = self.space.find(first, last, self.table_blocks);
        let inode_table = self.claim(table, self.table_blocks, group)?;
        self.places[group as usize] = Place {
            inode_table,
            ..place
        };
        Ok(())
    }

    /// Where the bitmaps begin: on a RAID, on another disk in each group.
    fn strided(&self, group: u32, first: u64, last: u64) -> Result<u64> {
        let stride = u64::from(self.sb.disk().s_raid_stride);
        if stride == 0 {
            return Ok(first);
        }
        let free = self.space.find(first, last, 1).ok_or_else(no_room)?;
        let start = free + self.table_blocks;
        if start > last {
            return Ok(first);
        }
        let start = start + stride * u64::from(group) % (last - start + 1);
        Ok(if start >= last { first } else { start })
    }

    fn place_in_flex(&mut self, group: u32, flex: &Flex) -> Result<()> {
        let before = (group != flex.first).then(|| self.places[group as usize - 1]);
        let last = self.last_block(flex.last);
        let kind = flex.kind_blocks(group, self.sb.group_count());
        let block_bitmap = self.near(before.map(|b| b.block_bitmap + 1), flex, last, 1)?;
        let near = before.map_or(block_bitmap + kind, |b| b.inode_bitmap + 1);
        let inode_bitmap = self.near(Some(near), flex, last, 1)?;
        let near = before.map_or(inode_bitmap + kind, |b| b.inode_table + self.table_blocks);
        let inode_table = self.near(Some(near), flex, last, self.table_blocks)?;
        let place = &mut self.places[group as usize];
        place.block_bitmap = block_bitmap;
        place.inode_bitmap = inode_bitmap;
        place.inode_table = inode_table;
        Ok(())
    }

    /// Takes `len` blocks at `near` or shortly after it; failing that where all that is left of the
    /// flex group fits, failing that anywhere.
    fn near(&mut self, near: Option<u64>, flex: &Flex, last: u64, len: u64) -> Result<u64> {
        let room = (flex.left * len).min(u64::from(self.sb.blocks_per_group() / 4));
        let start = near
            .filter(|near| *near < self.sb.blocks_count())
            .and_then(|near| self.space.find(near, near + room, len))
            .or_else(|| self.space.find(self.first_block(flex.first), last, room))
            .or_else(|| self.space.find(self.first_block(flex.first), last, len))
            .or_else(|| self.space.find(0, last, len));
        let start = start.ok_or_else(no_room)?;
        let found = self.space.find(start, last, len);
        let taken = self.claim(found, len, u32::MAX)?;
        Ok(taken)
    }

    /// Everything at the start: block bitmaps, inode bitmaps, tables.
    fn pack(&mut self) -> Result<()> {
        let mut goal = 0;
        let last = self.sb.blocks_count() - 1;
        for group in 0..self.places.len() {
            goal = self.claim(self.space.find(goal, goal, 1), 1, u32::MAX)?;
            self.places[group].block_bitmap = goal;
        }
        for group in 0..self.places.len() {
            goal = self.claim(self.space.find(goal, goal, 1), 1, u32::MAX)?;
            self.places[group].inode_bitmap = goal;
        }
        for group in 0..self.places.len() {
            let found = self.space.find(goal, last, self.table_blocks);
            goal = self.claim(found, self.table_blocks, u32::MAX)?;
            self.places[group].inode_table = goal;
        }
        Ok(())
    }

    /// Takes blocks; groups other than `own` are touched by it.
    fn claim(&mut self, found: Option<u64>, len: u64, own: u32) -> Result<u64> {
        let start = found.ok_or_else(no_room)?;
        self.space.take(start..start + len);
        touch(self.sb, &mut self.places, start..start + len, own);
        Ok(start)
    }
}

/// Marks the groups of `run`, except `own`.
pub(crate) fn touch(sb: &SuperBlock, places: &mut [Place], run: std::ops::Range<u64>, own: u32) {
    let of = |block: u64| (block - sb.first_data_block().0) / u64::from(sb.blocks_per_group());
    for group in of(run.start)..=of(run.end - 1) {
        if let Some(place) = places.get_mut(group as usize) {
            place.touched |= group != u64::from(own);
        }
    }
}

impl Flex {
    /// Blocks between the first block bitmap, the first inode bitmap and the first table. In the
    /// last flex group, which may be short, there is room for its own groups only.
    fn kind_blocks(&self, group: u32, groups: u32) -> u64 {
        let short = self.last & (self.size - 1);
        if group == self.first && self.last == groups - 1 && short != 0 {
            u64::from(short) + 1
        } else {
            self.size.into()
        }
    }
}

fn no_room() -> Error {
    Error::Invalid("there is no room for bitmaps and inode tables: ask for fewer inodes".into())
}
