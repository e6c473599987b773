//! Which blocks hold metadata at fixed places, so that no file may claim them.
//!
//! For: superblocks, descriptor tables, bitmaps, inode tables, and what the caller adds (the
//! journal). Not for: blocks that belong to inodes (extent nodes, directories).
//!
//! Invariant: ranges are sorted, disjoint and not adjacent. With `flex_bg` that leaves about one
//! range per flex group.
//!
//! Rejected: a bitmap. It would need memory in proportion to the device.

use crate::group_desc::GroupDesc;
use crate::superblock::SuperBlock;
use crate::types::{Group, Pblk};
use std::fmt;
use std::ops::Range;

/// The blocks of fixed metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemZone {
    ranges: Vec<Range<u64>>,
}

impl SystemZone {
    /// From the superblock, the groups' descriptors in order, and ranges that the caller knows of
    /// (the blocks of the journal).
    pub fn new<'a>(
        sb: &SuperBlock,
        descs: impl IntoIterator<Item = &'a GroupDesc>,
        others: impl IntoIterator<Item = Range<u64>>,
    ) -> Self {
        let mut all = Gathered::default();
        for (group, desc) in (0..sb.group_count()).map(Group).zip(descs) {
            all.add(desc.metadata_ranges(sb, group));
        }
        all.zone(others)
    }

    /// The ranges, in order.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Whether any of `len` blocks from `start` on holds metadata.
    pub fn overlaps(&self, start: Pblk, len: u64) -> bool {
        let next = self.ranges.partition_point(|range| range.end <= start.0);
        let end = start.0.saturating_add(len);
        self.ranges.get(next).is_some_and(|range| range.start < end)
    }
}

/// What the blocks of a group's fixed metadata hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixedKind {
    /// A copy of the superblock and of the descriptors.
    Descriptors,
    /// Which blocks are in use.
    BlockBitmap,
    /// Which inodes are in use.
    InodeBitmap,
    /// The inodes.
    InodeTable,
}

impl FixedKind {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            FixedKind::Descriptors => "superblock and descriptors",
            FixedKind::BlockBitmap => "block bitmap",
            FixedKind::InodeBitmap => "inode bitmap",
            FixedKind::InodeTable => "inode table",
        }
    }
}

/// Blocks of fixed metadata.
#[derive(Clone, Debug)]
pub struct Fixed {
    /// The blocks.
    pub blocks: Range<u64>,
    /// What they hold.
    pub kind: FixedKind,
    /// The group that they belong to, wherever they lie.
    pub group: Group,
}

impl Fixed {
    /// The metadata of a group. Some may have no blocks.
    pub fn of(sb: &SuperBlock, group: Group, desc: &GroupDesc) -> [Fixed; KINDS] {
        let [descriptors, block_bitmap, inode_bitmap, inode_table] =
            desc.metadata_ranges(sb, group);
        [
            (descriptors, FixedKind::Descriptors),
            (block_bitmap, FixedKind::BlockBitmap),
            (inode_bitmap, FixedKind::InodeBitmap),
            (inode_table, FixedKind::InodeTable),
        ]
        .map(|(blocks, kind)| Fixed {
            blocks,
            kind,
            group,
        })
    }
}

impl fmt::Display for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of group {}", self.kind.name(), self.group)
    }
}

/// Sorts metadata by where it begins, without what has no blocks. Gives the neighbours that overlap:
/// there are some if anything does.
pub fn overlaps(all: &mut Vec<Fixed>) -> impl Iterator<Item = (&Fixed, &Fixed)> {
    all.retain(|fixed| !fixed.blocks.is_empty());
    all.sort_unstable_by_key(|fixed| fixed.blocks.start);
    let pairs = all.iter().zip(all.iter().skip(1));
    pairs.filter(|(a, b)| b.blocks.start < a.blocks.end)
}

/// Kinds of metadata that every group has.
const KINDS: usize = 4;

/// The metadata of groups, gathered one group after the other. Joins each group's ranges to those of the group before, kind
/// by kind: with `flex_bg` they mostly touch, and what is kept and sorted shrinks by the size of a flex group.
#[derive(Debug, Default)]
pub struct Gathered {
    ranges: Vec<Range<u64>>,
    open: [Range<u64>; KINDS],
}

impl Gathered {
    /// Takes in the next group's, as [`GroupDesc::metadata_ranges`] has them. Some may be empty.
    pub fn add(&mut self, group: [Range<u64>; KINDS]) {
        for (open, range) in self.open.iter_mut().zip(group) {
            if range.is_empty() {
                continue;
            }
            if range.start == open.end {
                open.end = range.end;
            } else {
                self.ranges.push(std::mem::replace(open, range));
            }
        }
    }

    /// All of it, and `others`.
    pub fn zone(mut self, others: impl IntoIterator<Item = Range<u64>>) -> SystemZone {
        self.ranges.extend(self.open);
        self.ranges.extend(others);
        SystemZone {
            ranges: joined(self.ranges),
        }
    }
}

/// What ranges in any order hold, as ranges in order that are not empty, and neither overlap nor touch.
pub fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}
