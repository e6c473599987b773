//! What each part of an image is used for, and how its free space is cut up.
//!
//! For: pictures. Counted while pass 1 goes through everything, in cells, of which there is a limited
//! number. Each group has the same number of them, the last of which may be shorter; where there are more
//! groups than cells, several groups are one. Blocks that several own are counted for each.

use super::{CheckOptions, Checker, Findings, Progress, superblock};
use crate::Result;
use dioxide_block::Device;
use dioxide_format::bitmap;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::Group;
use serde::{Serialize, Serializer};
use std::ops::Range;
use std::sync::Arc;

/// Cells of an image, at most twice as many.
const CELLS: u64 = 4096;

/// What blocks are used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Superblock and descriptors, what is kept free for more, and the block of multi-mount protection.
    Descriptors,
    /// Bitmaps of blocks and inodes.
    Bitmap,
    /// Inode tables.
    InodeTable,
    /// The journal.
    Journal,
    /// Directories.
    Directory,
    /// Contents of files, their maps and attributes.
    #[default]
    Data,
    /// Nothing.
    Free,
}

impl Kind {
    /// All of them, in the order of [`Cell::blocks`].
    pub const ALL: [Kind; 7] = [
        Kind::Descriptors,
        Kind::Bitmap,
        Kind::InodeTable,
        Kind::Journal,
        Kind::Directory,
        Kind::Data,
        Kind::Free,
    ];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Descriptors => "superblock and descriptors",
            Kind::Bitmap => "bitmaps",
            Kind::InodeTable => "inode tables",
            Kind::Journal => "journal",
            Kind::Directory => "directories",
            Kind::Data => "file data",
            Kind::Free => "free",
        }
    }
}

/// Blocks that follow each other, by use. As JSON an object with a member for each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Blocks of each of [`Kind::ALL`].
    pub blocks: [u64; 7],
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(Kind::ALL.into_iter().zip(self.blocks))
    }
}

impl Cell {
    /// Counts the blocks of another too.
    pub fn add(&mut self, other: &Cell) {
        for (sum, blocks) in self.blocks.iter_mut().zip(other.blocks) {
            *sum += blocks;
        }
    }

    /// What most of the blocks are used for; metadata counts before data, and data before free space,
    /// where they have equal parts.
    pub fn most(&self) -> Kind {
        let mut most = Kind::Free;
        for (kind, blocks) in Kind::ALL.into_iter().zip(self.blocks).rev() {
            if blocks >= self.blocks[most as usize] && blocks > 0 {
                most = kind;
            }
        }
        most
    }
}

/// Free runs of a size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FreeRuns {
    /// Shortest run that is counted here, in blocks; twice as much is the next.
    pub least_blocks: u64,
    /// How many there are.
    pub runs: u64,
    /// Blocks in them.
    pub blocks: u64,
}

/// A block group, or several where an image has more than 4,096.
#[derive(Clone, Debug, Serialize)]
pub struct GroupMap {
    /// The first, or only, group.
    pub group: u32,
    /// How many groups.
    pub groups: u32,
    /// The first block.
    pub first_block: u64,
    /// How many blocks.
    pub blocks: u64,
    /// Blocks of each kind in all.
    pub total: Cell,
    /// The cells, from the first block on.
    pub cells: Vec<Cell>,
}

/// An image in cells.
#[derive(Clone, Debug, Serialize)]
pub struct ImageMap {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Block groups.
    pub groups: u32,
    /// Blocks of a group.
    pub blocks_per_group: u32,
    /// Blocks of a cell; the last of a group may have fewer.
    pub cell_blocks: u64,
    /// Each group.
    pub by_group: Vec<GroupMap>,
    /// Blocks of each kind in all.
    pub total: Cell,
    /// Free runs by size, in powers of two; sizes without runs are left out.
    pub free_runs: Vec<FreeRuns>,
    /// The longest free run, in blocks.
    pub longest_free: u64,
}

/// The cells while they are counted.
#[derive(Debug)]
pub(super) struct Layout {
    first: u64,
    end: u64,
    /// Groups that are one here, and their blocks.
    joined: u32,
    stride: u64,
    cell_blocks: u64,
    by_group: Vec<Vec<Cell>>,
}

impl Layout {
    pub(super) fn new(sb: &SuperBlock) -> Layout {
        let (first, end) = (sb.first_data_block().0, sb.blocks_count());
        let joined = sb.group_count().div_ceil(CELLS as u32).max(1);
        let stride = u64::from(sb.blocks_per_group()).max(1) * u64::from(joined);
        let parts = (CELLS / u64::from(sb.group_count()).max(1)).max(1);
        let cell_blocks = stride.div_ceil(parts.min(stride));
        let cells = |start: u64| stride.min(end - start).div_ceil(cell_blocks) as usize;
        let starts = (first..end).step_by(stride as usize);
        Layout {
            first,
            end,
            joined,
            stride,
            cell_blocks,
            by_group: starts.map(|at| vec![Cell::default(); cells(at)]).collect(),
        }
    }

    fn into_groups(self, groups: u32) -> Vec<GroupMap> {
        let numbered = (0..groups).step_by(self.joined as usize).zip(self.by_group);
        let starts = (self.first..self.end).step_by(self.stride as usize);
        numbered
            .zip(starts)
            .map(|((group, cells), first_block)| {
                let mut total = Cell::default();
                cells.iter().for_each(|cell| total.add(cell));
                GroupMap {
                    group,
                    groups: self.joined.min(groups - group),
                    first_block,
                    blocks: self.stride.min(self.end - first_block),
                    total,
                    cells,
                }
            })
            .collect()
    }

    pub(super) fn paint(&mut self, kind: Kind, blocks: Range<u64>) {
        let mut at = blocks.start.max(self.first);
        let end = blocks.end.min(self.end);
        while at < end {
            let (group, within) = (
                (at - self.first) / self.stride,
                (at - self.first) % self.stride,
            );
            let index = within / self.cell_blocks;
            let ends = ((index + 1) * self.cell_blocks).min(self.stride);
            let next = (at - within + ends).min(end);
            let cells = &mut self.by_group[group as usize];
            cells[index as usize].blocks[kind as usize] += next - at;
            at = next;
        }
    }
}

/// Counts free runs, also those that go on in the next group.
struct Runs {
    by_size: [FreeRuns; 64],
    longest: u64,
    open: Range<u64>,
}

impl Runs {
    fn new() -> Runs {
        Runs {
            by_size: [FreeRuns::default(); 64],
            longest: 0,
            open: 0..0,
        }
    }

    fn add(&mut self, run: Range<u64>) {
        if self.open.end == run.start {
            self.open.end = run.end;
            return;
        }
        self.close();
        self.open = run;
    }

    fn close(&mut self) {
        let len = self.open.end - self.open.start;
        if len > 0 {
            let size = &mut self.by_size[len.ilog2() as usize];
            size.least_blocks = 1 << len.ilog2();
            size.runs += 1;
            size.blocks += len;
            self.longest = self.longest.max(len);
        }
        self.open = 0..0;
    }
}

/// What each part of an image is used for. Blocks for as long as it takes to read all inodes and maps.
///
/// # Errors
/// [`crate::Error::Invalid`] if there is no superblock, [`crate::Error::Corrupt`] if none is good; as [`super::check`].
pub fn image_map(
    device: Arc<dyn Device>,
    options: &CheckOptions,
    progress: &mut super::OnProgress<'_>,
) -> Result<ImageMap> {
    let mut findings = Findings::new(1);
    let found = superblock::need(&device, options, &mut findings)?;
    let mut forward = |step: &Progress| progress(step);
    let mut checker = Checker::new(device, options, found, findings, &mut forward)?;
    checker.recover_journal();
    checker.read_groups();
    checker.pass1();
    Ok(checker.into_map())
}

impl Checker<'_> {
    fn into_map(mut self) -> ImageMap {
        let runs = self.free_runs();
        let cell_blocks = self.layout.cell_blocks;
        let by_group = self.layout.into_groups(self.sb.group_count());
        let mut total = Cell::default();
        by_group.iter().for_each(|group| total.add(&group.total));
        ImageMap {
            block_size: self.sb.block_size(),
            blocks: self.sb.blocks_count(),
            groups: self.sb.group_count(),
            blocks_per_group: self.sb.blocks_per_group(),
            cell_blocks,
            by_group,
            total,
            free_runs: runs
                .by_size
                .into_iter()
                .filter(|size| size.runs > 0)
                .collect(),
            longest_free: runs.longest,
        }
    }

    /// Counts what is free, and paints it.
    fn free_runs(&mut self) -> Runs {
        let mut runs = Runs::new();
        let ratio = u64::from(self.sb.cluster_ratio());
        for group in (0..self.sb.group_count()).map(Group) {
            let clusters = self.sb.clusters_in_group(group) as usize;
            let first = self.sb.group_first_block(group).0;
            let end = first + u64::from(self.sb.blocks_in_group(group));
            let empty = vec![0; clusters.div_ceil(8)];
            let map = self.claims.group(group).unwrap_or(&empty);
            let mut from = 0;
            while let Some(run) = bitmap::next_free_run(map, from, clusters) {
                let block = |bit: usize| (first + bit as u64 * ratio).min(end);
                let blocks = block(run.start)..block(run.end);
                self.layout.paint(Kind::Free, blocks.clone());
                runs.add(blocks);
                from = run.end;
            }
        }
        runs.close();
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_runs_that_touch_are_one() {
        let mut runs = Runs::new();
        for run in [10..20, 20..42, 50..51] {
            runs.add(run);
        }
        runs.close();
        let sizes: Vec<_> = runs.by_size.iter().filter(|size| size.runs > 0).collect();
        assert_eq!((sizes.len(), runs.longest), (2, 32));
        assert_eq!((sizes[0].blocks, sizes[1].least_blocks), (1, 32));
    }

    #[test]
    fn no_cell_is_of_two_groups() {
        let mut layout = Layout {
            first: 1,
            end: 26,
            joined: 1,
            stride: 10,
            cell_blocks: 4,
            by_group: [3, 3, 2].map(|cells| vec![Cell::default(); cells]).into(),
        };
        layout.paint(Kind::Data, 9..24);
        let groups = layout.into_groups(3);
        let data = |group: &GroupMap| -> Vec<u64> {
            let cells = group.cells.iter();
            cells.map(|cell| cell.blocks[Kind::Data as usize]).collect()
        };
        assert_eq!(data(&groups[0]), [0, 0, 2]);
        assert_eq!(data(&groups[1]), [4, 4, 2]);
        assert_eq!(data(&groups[2]), [3, 0]);
        let last = &groups[2];
        assert_eq!((last.group, last.first_block, last.blocks), (2, 21, 5));
        assert_eq!(last.total.blocks[Kind::Data as usize], 3);
    }

    #[test]
    fn cell_shows_what_most_of_it_is() {
        let mut cell = Cell::default();
        assert_eq!(cell.most(), Kind::Free);
        cell.blocks = [0, 0, 3, 0, 0, 3, 2];
        assert_eq!(cell.most(), Kind::InodeTable);
    }
}
