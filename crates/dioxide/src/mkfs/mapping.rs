//! Giving a file its blocks, and telling its inode where they are: by extents, or by pointers.
//!
//! Not for: what is in the blocks.
//!
//! Rejected: the extent trees of the engine's map. They change trees of any depth through the journal;
//! here a tree is made once, and has a leaf at most.

use super::plan::Plan;
use super::tables::touch;
use crate::{Error, Result};
use dioxide_format::extent::{self, Extent, ExtentEntries, ExtentIndex, ExtentNode, ROOT_ENTRIES};
use dioxide_format::features::Incompat;
use dioxide_format::indirect;
use dioxide_format::types::{Ino, Lblk, Pblk};
use std::ops::Range;

/// A file's blocks, and those that map them.
pub(super) struct Mapping {
    /// The file's blocks, in order.
    pub runs: Vec<Range<u64>>,
    pub i_block: [u8; 60],
    /// All blocks that the inode has.
    pub sectors: u64,
}

impl Plan {
    /// The first free cluster at or after `goal`.
    pub(super) fn take_cluster(&mut self, goal: u64) -> Result<u64> {
        Ok(self.take_run(goal, 1)?.start)
    }

    /// The first free run at or after `goal`, of whole clusters, `most` blocks at most.
    fn take_run(&mut self, goal: u64, most: u64) -> Result<Range<u64>> {
        let found = self.space.next_run(goal, most);
        let run =
            found.ok_or_else(|| Error::Invalid("too few blocks for the first files".into()))?;
        self.space.take(run.clone());
        touch(&self.sb, &mut self.places, run.clone(), u32::MAX);
        Ok(run)
    }

    pub(super) fn uses_extents(&self) -> bool {
        self.sb.features().incompat.contains(Incompat::EXTENTS)
    }

    /// Gives a file its blocks.
    pub(super) fn map(&mut self, ino: Ino, blocks: u64, goal: u64) -> Result<Mapping> {
        match self.uses_extents() {
            true => self.map_by_extents(ino, blocks, goal),
            false => self.map_by_pointers(blocks, goal),
        }
    }

    fn map_by_extents(&mut self, ino: Ino, blocks: u64, mut goal: u64) -> Result<Mapping> {
        let unit = self.space.unit();
        let longest = u64::from(extent::MAX_LEN) / unit * unit;
        if longest == 0 {
            return Err(Error::Unsupported(
                "clusters of more than 32768 blocks: use smaller ones, or larger blocks".into(),
            ));
        }
        let (mut runs, mut leaf, mut taken, mut left) = (Vec::new(), None, 0, blocks);
        while left > 0 {
            let run = self.take_run(goal, left.min(longest))?;
            taken += run.end - run.start;
            let len = left.min(run.end - run.start);
            left -= len;
            goal = run.end;
            runs.push(run.start..run.start + len);
            if runs.len() == usize::from(ROOT_ENTRIES) + 1 {
                leaf = Some(self.take_cluster(runs[0].start - 1)?);
                taken += unit;
            }
        }
        let i_block = self.extent_root(ino, &runs, leaf)?;
        Ok(Mapping {
            runs,
            i_block,
            sectors: taken * self.block_size() / 512,
        })
    }

    /// The root: all extents, or a pointer to the leaf that has them.
    fn extent_root(
        &mut self,
        ino: Ino,
        runs: &[Range<u64>],
        leaf: Option<u64>,
    ) -> Result<[u8; 60]> {
        let mut extents = Vec::with_capacity(runs.len());
        let mut lblk = 0;
        for run in runs {
            let len = (run.end - run.start) as u16;
            extents.push(Extent {
                lblk: Lblk(lblk),
                len,
                unwritten: false,
                pblk: Pblk(run.start),
            });
            lblk += u32::from(len);
        }
        let mut i_block = [0; 60];
        let place = |error| Error::format(error, crate::Place::ino(ino));
        let Some(leaf) = leaf else {
            let root = ExtentNode::new(ROOT_ENTRIES, 0, ExtentEntries::Leaf(extents));
            root.encode_into(&mut i_block).map_err(place)?;
            return Ok(i_block);
        };
        let most = extent::max_entries(self.sb.block_size());
        if extents.len() > usize::from(most) {
            return Err(Error::Unsupported(format!(
                "a journal in more than {most} pieces: make it smaller, or use flex_bg"
            )));
        }
        let mut block = vec![0; self.block_size() as usize];
        let entries = ExtentEntries::Leaf(extents);
        ExtentNode::new(most, 0, entries)
            .encode_into(&mut block)
            .map_err(place)?;
        if self.sb.features().metadata_csum() {
            extent::update_checksum(&mut block, self.inode_seed(ino)).map_err(place)?;
        }
        self.content.insert(leaf, block);
        let index = vec![ExtentIndex::new(Lblk(0), Pblk(leaf))];
        let root = ExtentNode::new(ROOT_ENTRIES, 1, ExtentEntries::Index(index));
        root.encode_into(&mut i_block).map_err(place)?;
        Ok(i_block)
    }

    /// Pointer blocks come right before what they point to.
    fn map_by_pointers(&mut self, blocks: u64, goal: u64) -> Result<Mapping> {
        let block_size = self.sb.block_size();
        let (mut runs, mut taken): (Vec<Range<u64>>, u64) = (Vec::new(), 0);
        let mut i_block = [0; 60];
        for lblk in 0..blocks {
            let path = u32::try_from(lblk).ok();
            let path = path.and_then(|lblk| indirect::path(Lblk(lblk), block_size));
            let path =
                path.ok_or_else(|| Error::Invalid("a journal of this size needs extents".into()))?;
            let (last, above) = path.offsets().split_last().expect("a path has an end");
            let mut parent = None;
            for at in above {
                parent = Some(match self.pointer(parent, &i_block, *at) {
                    0 => {
                        let block = self.take_cluster(goal)?;
                        taken += 1;
                        self.content.insert(block, vec![0; block_size as usize]);
                        self.set_pointer(parent, &mut i_block, *at, block);
                        block
                    }
                    block => block.into(),
                });
            }
            let block = self.take_cluster(goal)?;
            taken += 1;
            self.set_pointer(parent, &mut i_block, *last, block);
            match runs.last_mut().filter(|run| run.end == block) {
                Some(run) => run.end += 1,
                None => runs.push(block..block + 1),
            }
        }
        let sectors = taken * u64::from(block_size) / 512;
        Ok(Mapping {
            runs,
            i_block,
            sectors,
        })
    }

    fn pointer(&self, parent: Option<u64>, i_block: &[u8; 60], at: u32) -> u32 {
        let bytes = match parent {
            Some(block) => &self.content[&block][..],
            None => &i_block[..],
        };
        indirect::pointers(&bytes[at as usize * 4..])
            .next()
            .unwrap_or(0)
    }

    fn set_pointer(&mut self, parent: Option<u64>, i_block: &mut [u8; 60], at: u32, block: u64) {
        let bytes = match parent {
            Some(parent) => self
                .content
                .get_mut(&parent)
                .expect("made before")
                .as_mut_slice(),
            None => i_block,
        };
        indirect::encode_into(&[block as u32], &mut bytes[at as usize * 4..]);
    }
}
