//! The way through the index of a directory.
//!
//! For: the blocks where a name may be, and all leaves in the order of hashes. Not for: changing the
//! index.
//!
//! Invariants: an index leads to no more leaves than the directory has blocks, and to no block of its
//! own way; the blocks that it leads to lie inside the directory, and are not block 0.

use super::block::{Block, Blocks, Role};
use crate::{Error, Result};
use dioxide_format::htree::{self, DxEntry, DxRootView, DxView, HashVersion};
use dioxide_format::types::Lblk;

/// Most index blocks between the root and the names, with `large_dir`.
const MOST_LEVELS: usize = 2;

/// An index block on the way, and the entry that was followed.
#[derive(Debug)]
pub(in crate::namei) struct Frame {
    pub(in crate::namei) block: Block,
    pub(in crate::namei) at: usize,
}

/// A leaf, and the way to it through the index. There are several where a name may be, when names
/// share its hash.
pub(in crate::namei) struct Descent<'a> {
    pub(in crate::namei) blocks: Blocks<'a>,
    pub(in crate::namei) version: HashVersion,
    levels: usize,
    /// Root first.
    pub(in crate::namei) frames: Vec<Frame>,
    /// How many leaves may still be visited.
    budget: u32,
}

impl<'a> Descent<'a> {
    /// Reads the root; [`Descent::seek`] comes next.
    ///
    /// # Errors
    /// An index that makes no sense; a hash that is not known; damage.
    pub(in crate::namei) fn open(blocks: Blocks<'a>) -> Result<Descent<'a>> {
        let block = blocks.read(Lblk(0), Role::Root)?;
        let format = |error| Error::format(error, block.place(blocks.dir));
        let root = DxRootView::parse(&block.bytes, &block.kind.format).map_err(format)?;
        let unsigned = blocks.mount.sb.hash_is_unsigned();
        let version = root.hash_version(unsigned).map_err(format)?;
        let levels = usize::from(root.head.indirect_levels);
        let mut frames = Vec::with_capacity(1 + MOST_LEVELS);
        frames.push(Frame { block, at: 0 });
        Ok(Descent {
            blocks,
            version,
            levels,
            frames,
            budget: blocks.count,
        })
    }

    /// The way to the first leaf where `name` may be, and the hash that says so.
    ///
    /// # Errors
    /// As [`Descent::open`].
    pub(in crate::namei) fn to_name(blocks: Blocks<'a>, name: &[u8]) -> Result<(Descent<'a>, u32)> {
        let mut descent = Descent::open(blocks)?;
        let major = htree::hash(name, descent.version, blocks.mount.sb.hash_seed()).major;
        descent.seek(major)?;
        Ok((descent, major))
    }

    /// Goes to the leaf where a hash begins. To be called once.
    ///
    /// # Errors
    /// As [`Descent::open`].
    pub(in crate::namei) fn seek(&mut self, major: u32) -> Result<()> {
        self.frames[0].at = self.view(0)?.search(major);
        self.descend(|entries| entries.search(major))
    }

    /// The leaf's block in the directory.
    pub(in crate::namei) fn leaf(&self) -> Result<Lblk> {
        self.followed(self.frames.len() - 1)
    }

    /// Reads the leaf.
    pub(in crate::namei) fn read_leaf(&self) -> Result<Block> {
        let leaf = self.blocks.read(self.leaf()?, Role::Leaf)?;
        // Without checksums the two look alike.
        if self
            .frames
            .iter()
            .any(|frame| frame.block.pblk == leaf.pblk)
        {
            return Err(self.wrong("it leads to its own block".into()));
        }
        Ok(leaf)
    }

    /// Where the leaf begins.
    pub(in crate::namei) fn hash(&self) -> Result<u32> {
        for depth in (0..self.frames.len()).rev() {
            // The first of a node begins where the node does.
            if let at @ 1.. = self.frames[depth].at {
                return Ok(self.view(depth)?.get(at).hash);
            }
        }
        Ok(0)
    }

    /// Where the next leaf begins; none behind the last. If its lowest bit is set, the leaf goes on with
    /// names of the same hash.
    pub(in crate::namei) fn next_hash(&self) -> Result<Option<u32>> {
        Ok(self.next_entry()?.map(|(_, entry)| entry.hash))
    }

    /// Goes on to the next leaf; whether there is one.
    ///
    /// # Errors
    /// As [`Descent::open`].
    pub(in crate::namei) fn advance(&mut self) -> Result<bool> {
        let Some((depth, _)) = self.next_entry()? else {
            return Ok(false);
        };
        self.budget = self.budget.checked_sub(1).ok_or_else(|| {
            self.wrong("the index leads to more blocks than the directory has".into())
        })?;
        self.frames[depth].at += 1;
        self.frames.truncate(depth + 1);
        self.descend(|_| 0)?;
        Ok(true)
    }

    /// The entries of a frame.
    fn view(&self, depth: usize) -> Result<DxView<'_>> {
        let block = &self.frames[depth].block;
        let entries = match depth {
            0 => DxRootView::parse(&block.bytes, &block.kind.format).map(|root| root.entries),
            _ => DxView::of_node(&block.bytes, &block.kind.format),
        };
        entries.map_err(|error| Error::format(error, block.place(self.blocks.dir)))
    }

    /// The lowest frame that has an entry behind the one that was followed, and that entry.
    fn next_entry(&self) -> Result<Option<(usize, DxEntry)>> {
        for depth in (0..self.frames.len()).rev() {
            let (view, next) = (self.view(depth)?, self.frames[depth].at + 1);
            if next < view.count() {
                return Ok(Some((depth, view.get(next))));
            }
        }
        Ok(None)
    }

    /// Goes down to the leaf, by the entry that `choose` picks in each node.
    fn descend(&mut self, choose: impl Fn(&DxView<'_>) -> usize) -> Result<()> {
        while self.frames.len() <= self.levels {
            let depth = self.frames.len();
            let lblk = self.followed(depth - 1)?;
            let block = self.blocks.read(lblk, Role::Node)?;
            self.frames.push(Frame { block, at: 0 });
            self.frames[depth].at = choose(&self.view(depth)?);
        }
        Ok(())
    }

    /// The block that the entry leads to which was followed in a frame.
    fn followed(&self, depth: usize) -> Result<Lblk> {
        let lblk = self.view(depth)?.get(self.frames[depth].at).block();
        if (1..self.blocks.count).contains(&lblk.0) {
            return Ok(lblk);
        }
        let count = self.blocks.count;
        Err(self.wrong(format!(
            "it leads to block {lblk}, expected 1 to below {count}"
        )))
    }

    fn wrong(&self, what: String) -> Error {
        let lowest = self.frames.last().expect("the root is always there");
        Error::Corrupt {
            structure: "htree node",
            place: lowest.block.place(self.blocks.dir),
            what,
        }
    }
}
