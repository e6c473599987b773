//! The blocks of a directory, each as what it is.
//!
//! For: reading them from the cache of metadata. A block is judged (its checksum, its chain of
//! entries, the order of an index) when it comes from the device, and not again while it is cached:
//! looking into one costs no more than walking it.
//!
//! Invariants: a block that was accepted as one kind and is read as another is judged again. So a leaf is
//! never taken for a part of the index, whatever the index says.
//!
//! Rejected: one kind that accepts both, as a linear walk needs it, for all readers. Who adds a name
//! must know that it holds a leaf.

use super::is_dot;
use crate::inode::Inode;
use crate::map::{self, MapKind};
use crate::mount::Mount;
use crate::{Error, Place, Result};
use dioxide_format::dir::{self, DirFormat, Found, Gap, Search};
use dioxide_format::htree::{self, DxNode, DxRoot};
use dioxide_format::types::{Lblk, Pblk};
use dioxide_journal::Kind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a block of a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::namei) enum Role {
    /// Names.
    Leaf,
    /// Block 0 of an indexed directory.
    Root,
    /// An index block below the root.
    Node,
    /// Any block of an indexed directory, to who reads all of them; `first` is block 0.
    Any { first: bool },
}

/// How a block of one directory is checked and sealed.
#[derive(Clone, Copy, Debug)]
pub(in crate::namei) struct DirBlock {
    pub(in crate::namei) role: Role,
    pub(in crate::namei) format: DirFormat,
    /// Of the directory; none without metadata_csum.
    pub(in crate::namei) seed: Option<u32>,
}

impl DirBlock {
    /// What a block of an indexed directory looks like.
    fn looks_like_index(&self, bytes: &[u8]) -> bool {
        let lblk = match self.role {
            Role::Any { first: true } => Lblk(0),
            _ => Lblk(1),
        };
        htree::is_index_block(bytes, lblk, &self.format)
    }

    /// How many bytes of a block hold entries.
    pub(in crate::namei) fn chain_end(&self, block_bytes: usize) -> usize {
        match self.role {
            Role::Leaf => dir::room(&self.format),
            _ => block_bytes,
        }
    }

    fn is_index(&self, bytes: &[u8]) -> bool {
        match self.role {
            Role::Leaf => false,
            Role::Root | Role::Node => true,
            Role::Any { .. } => self.looks_like_index(bytes),
        }
    }
}

impl Kind for DirBlock {
    fn name(&self) -> &'static str {
        match self.role {
            Role::Leaf => "directory block",
            Role::Root => "htree root",
            Role::Node => "htree node",
            Role::Any { .. } => "directory or htree block",
        }
    }

    fn verify(&self, _: Pblk, bytes: &[u8]) -> dioxide_format::Result<()> {
        let is_index = self.is_index(bytes);
        match self.seed {
            Some(seed) if is_index => htree::verify_checksum(bytes, &self.format, seed)?,
            Some(seed) => dir::verify_checksum(bytes, seed)?,
            None => {}
        }
        match self.role {
            Role::Leaf => dir::validate(&bytes[..dir::room(&self.format)], &self.format),
            Role::Any { .. } => dir::validate(bytes, &self.format),
            Role::Root => DxRoot::parse(bytes, &self.format)?
                .entries
                .validate(u32::MAX),
            Role::Node => DxNode::parse(bytes, &self.format)?
                .entries
                .validate(u32::MAX),
        }
    }

    fn seal(&self, block: Pblk, bytes: &mut [u8]) {
        let Some(seed) = self.seed else { return };
        let sealed = match self.is_index(bytes) {
            true => htree::update_checksum(bytes, &self.format, seed),
            false => dir::update_checksum(bytes, seed),
        };
        sealed.unwrap_or_else(|error| panic!("directory block {block} was changed: {error}"));
    }

    fn keep(&self) -> Option<Arc<dyn Kind>> {
        Some(Arc::new(*self))
    }
}

/// A block of a directory, and where it came from.
#[derive(Clone, Debug)]
pub(in crate::namei) struct Block {
    pub(in crate::namei) pblk: Pblk,
    pub(in crate::namei) kind: DirBlock,
    pub(in crate::namei) bytes: Arc<[u8]>,
}

impl Block {
    pub(in crate::namei) fn place(&self, dir: &Inode) -> Place {
        Place::block(self.pblk.0).in_inode(dir.ino)
    }

    /// The bytes that hold entries.
    pub(in crate::namei) fn chain(&self) -> &[u8] {
        &self.bytes[..self.kind.chain_end(self.bytes.len())]
    }

    /// The entry of this name, or where one fits.
    pub(super) fn search(&self, dir: &Inode, name: &[u8]) -> Result<Search> {
        dir::search(self.chain(), &self.kind.format, name)
            .map_err(|error| Error::format(error, self.place(dir)))
    }
}

/// Where a name that is not there goes: true for as long as nobody changes the directory, and for that name alone.
#[derive(Clone, Copy, Debug)]
pub(in crate::namei) struct Room {
    pub(in crate::namei) pblk: Pblk,
    pub(in crate::namei) kind: DirBlock,
    pub(in crate::namei) gap: Gap,
}

impl Room {
    /// A place of a leaf.
    pub(in crate::namei) fn of(leaf: &Block, gap: Gap) -> Room {
        Room {
            pblk: leaf.pblk,
            kind: leaf.kind,
            gap,
        }
    }
}

/// What a search through the blocks of a directory came to.
pub(in crate::namei) enum Sought {
    /// The entry of the name, and its block.
    There(Block, Found),
    /// It is not there. Where it goes, if the walk came by a place.
    Absent(Option<Room>),
}

/// One directory whose blocks are read.
#[derive(Clone, Copy)]
pub(in crate::namei) struct Blocks<'a> {
    pub(in crate::namei) mount: &'a Mount,
    pub(in crate::namei) dir: &'a Inode,
    format: DirFormat,
    seed: Option<u32>,
    pub(in crate::namei) count: u32,
}

impl<'a> Blocks<'a> {
    /// # Errors
    /// [`Error::Corrupt`] for a size that no directory has.
    pub(in crate::namei) fn new(mount: &'a Mount, dir: &'a Inode) -> Result<Blocks<'a>> {
        Ok(Blocks {
            mount,
            dir,
            format: mount.dir_format.with_flags(dir.flags()),
            seed: mount.dir_seed(dir),
            count: mount.dir_blocks(dir)?,
        })
    }

    /// How a block of it is checked and sealed.
    pub(in crate::namei) fn kind(&self, role: Role) -> DirBlock {
        DirBlock {
            role,
            format: self.format,
            seed: self.seed,
        }
    }

    /// Reads a block.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Checksum`]; the device's.
    pub(in crate::namei) fn read(&self, lblk: Lblk, role: Role) -> Result<Block> {
        if let Some(left) = &self.mount.dir_reads_left
            && left.fetch_sub(1, Ordering::Relaxed) <= 0
        {
            let what = "too many names for directories as large as these";
            return Err(Error::Unsupported(what.into()));
        }
        let pblk = self.locate(lblk)?;
        let kind = self.kind(role);
        let bytes = self.mount.cache.read(pblk, &kind);
        let bytes = bytes.map_err(|error| in_directory(error.into(), self.dir))?;
        Ok(Block { pblk, kind, bytes })
    }

    fn locate(&self, lblk: Lblk) -> Result<Pblk> {
        let mapping = map::load::lookup_or_load(self.mount, self.dir, lblk, 1)?;
        if mapping.kind == MapKind::Mapped {
            return Ok(mapping.pblk);
        }
        Err(self.dir.corrupt(
            "directory",
            format!("its block {lblk} is not there ({:?})", mapping.kind),
        ))
    }

    /// What a linear walk reads a block as.
    pub(in crate::namei) fn role_in_walk(&self, lblk: u32) -> Role {
        match self.mount.is_indexed(self.dir) {
            true => Role::Any { first: lblk == 0 },
            false => Role::Leaf,
        }
    }

    /// Looks for a name in every block.
    pub(super) fn find_by_walk(&self, name: &[u8]) -> Result<Sought> {
        // They are in the first block, also in that of an index.
        let end = if is_dot(name) { 1 } else { self.count };
        let mut room = None;
        for lblk in 0..end {
            let block = self.read(Lblk(lblk), self.role_in_walk(lblk))?;
            match block.search(self.dir, name)? {
                Search::Found(found) => return Ok(Sought::There(block, found)),
                // Under an index a name goes to the block of its hash.
                Search::Absent(gap) if block.kind.role == Role::Leaf => {
                    room = room.or(gap.map(|gap| Room::of(&block, gap)));
                }
                Search::Absent(_) => {}
            }
        }
        Ok(Sought::Absent(room))
    }
}

impl Mount {
    /// Seed of the checksums of a directory's blocks.
    pub(in crate::namei) fn dir_seed(&self, dir: &Inode) -> Option<u32> {
        self.checksum_seed()
            .map(|seed| dir.node().disk.seed(seed, dir.ino))
    }

    /// How many blocks a directory has.
    pub(in crate::namei) fn dir_blocks(&self, dir: &Inode) -> Result<u32> {
        let (size, block) = (dir.i_size(), self.block_bytes());
        let most = self.sb.blocks_count().min(u64::from(u32::MAX));
        let blocks = size >> self.block_bits;
        if size & (block - 1) == 0 && (1..=most).contains(&blocks) {
            // At most `most`, which fits.
            return Ok(blocks as u32);
        }
        Err(dir.corrupt(
            "directory",
            format!("i_size is {size}, expected 1 to {most} whole blocks of {block}"),
        ))
    }
}

/// Adds the directory to what an error of the cache says.
pub(in crate::namei) fn in_directory(error: Error, dir: &Inode) -> Error {
    let ino = Some(dir.ino);
    match error {
        Error::Corrupt {
            structure,
            place,
            what,
        } => Error::Corrupt {
            structure,
            place: Place { ino, ..place },
            what,
        },
        Error::Checksum {
            structure,
            place,
            found,
            expected,
        } => Error::Checksum {
            structure,
            place: Place { ino, ..place },
            found,
            expected,
        },
        other => other,
    }
}
