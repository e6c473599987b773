//! What the maps on the disk need from the rest of the file system.

use crate::{Error, Place, Result};
use dioxide_format::types::{Ino, Pblk};
use dioxide_journal::Edit;
use std::ops::Range;

/// The inode whose map it is, and where its blocks may lie.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    /// Its number, for errors.
    pub(crate) ino: Ino,
    /// `Inode::seed`; none without metadata_csum.
    pub(crate) seed: Option<u32>,
    /// Blocks of the file system that may be pointed to.
    pub(crate) physical: Range<u64>,
    /// Blocks per cluster, a power of two; 1 without bigalloc.
    pub(crate) cluster_ratio: u32,
}

impl Owner {
    /// Coordinates of an error; no block is the inode itself.
    pub(crate) fn place(&self, block: Option<Pblk>) -> Place {
        Place {
            block: block.map(|block| block.0),
            ..Place::ino(self.ino)
        }
    }

    /// Damage of this file's map.
    pub(crate) fn corrupt(
        &self,
        structure: &'static str,
        block: Option<Pblk>,
        what: String,
    ) -> Error {
        Error::Corrupt {
            structure,
            place: self.place(block),
            what,
        }
    }
}

/// Blocks in a row on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PhysicalRun {
    /// The first.
    pub(crate) start: Pblk,
    /// How many.
    pub(crate) len: u32,
}

impl PhysicalRun {
    /// The whole clusters that hold any of these blocks.
    pub(crate) fn whole_clusters(self, ratio: u32) -> Self {
        let ratio = u64::from(ratio);
        let start = self.start.0 / ratio * ratio;
        let end = (self.start.0 + u64::from(self.len)).next_multiple_of(ratio);
        Self {
            start: Pblk(start),
            len: (end - start) as u32,
        }
    }

    /// Takes `next` in, if it follows right behind.
    pub(crate) fn join(&mut self, next: Self) -> bool {
        let follows = self.start.0 + u64::from(self.len) == next.start.0;
        let Some(len) = self.len.checked_add(next.len).filter(|_| follows) else {
            return false;
        };
        self.len = len;
        true
    }
}

/// Gives blocks to a map and takes them back, all through the same `Edit`. The allocator, and quota,
/// `i_blocks` and what else counts.
pub(crate) trait Blocks {
    /// A block for metadata of the map, near `goal` (0 if anywhere). With bigalloc the first of a
    /// cluster of its own. Changes at most [`CREDITS_PER_CLUSTER`](super::CREDITS_PER_CLUSTER)
    /// blocks.
    ///
    /// # Errors
    /// For want of space, with nothing changed; the journal's.
    fn allocate_tree_block(&mut self, edit: &mut dyn Edit, goal: Pblk) -> Result<Pblk>;

    /// Takes back blocks of the map or of data. With bigalloc these are whole clusters (the last
    /// may pass the end of the file system). `Edit::forget` was called for blocks of the map; for
    /// data that is metadata (directories) this must do it.
    ///
    /// # Errors
    /// `Corrupt` when they are not in use, with nothing changed; the journal's.
    fn free(&mut self, edit: &mut dyn Edit, run: PhysicalRun) -> Result<()>;

    /// Most metadata blocks that freeing `run` changes. Parts of a run cost no more than the run.
    fn free_credits(&self, run: PhysicalRun) -> u32;
}

/// Frees a tree block that was forgotten or never used.
pub(crate) fn free_tree_block(
    owner: &Owner,
    edit: &mut dyn Edit,
    blocks: &mut dyn Blocks,
    block: Pblk,
) -> Result<()> {
    let run = PhysicalRun {
        start: block,
        len: 1,
    };
    blocks.free(edit, run.whole_clusters(owner.cluster_ratio))
}
