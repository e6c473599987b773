//! A file's map as a whole: read, and made anew.
//!
//! Not for: changing a map in place. Who moves a file's blocks writes a new tree beside the old one, so that
//! at each moment one of them is whole, with a journal or without.

use super::space::Free;
use crate::{Error, Place, Result};
use dioxide_format::extent::{
    self, Extent, ExtentEntries, ExtentIndex, ExtentNode, MAX_LEN, ROOT_ENTRIES,
};
use dioxide_format::indirect::{self, DIRECT};
use dioxide_format::inode::{FileType, Inode};
use dioxide_format::types::{Ino, Lblk, Pblk};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Reads a block of metadata.
pub(in crate::resize) type ReadBlock<'r> = dyn Fn(u64) -> Result<Arc<[u8]>> + 'r;

/// Whether `i_block` leads to blocks.
pub(in crate::resize) fn has_map(inode: &Inode) -> bool {
    use FileType::{Directory, Regular, Symlink};
    let mapped = matches!(inode.file_type(), Some(Regular | Directory | Symlink));
    mapped && !inode.has_inline_data() && !inode.is_fast_symlink()
}

/// What a file's map says.
#[derive(Debug, Default)]
pub(in crate::resize) struct Map {
    /// In the order of the file; those of indirect maps joined to extents.
    pub extents: Vec<Extent>,
    /// Blocks of the map itself.
    pub nodes: Vec<u64>,
}

/// Reading one.
struct Reader<'a> {
    ino: Ino,
    block_bytes: u32,
    physical: &'a Range<u64>,
    read: &'a ReadBlock<'a>,
    met: HashSet<u64>,
    map: Map,
}

impl Map {
    /// # Errors
    /// Damage; those of `read`.
    pub fn read(
        ino: Ino,
        inode: &Inode,
        block_bytes: u32,
        physical: &Range<u64>,
        read: &ReadBlock<'_>,
    ) -> Result<Map> {
        let mut reader = Reader {
            ino,
            block_bytes,
            physical,
            read,
            met: HashSet::new(),
            map: Map::default(),
        };
        match inode.uses_extents() {
            true => reader.node(inode.i_block(), None, None)?,
            false => reader.pointers(inode)?,
        }
        Ok(reader.map)
    }

    /// Whether all data lies before a block.
    pub fn data_is_below(&self, limit: u64) -> bool {
        let mut extents = self.extents.iter();
        extents.all(|extent| extent.pblk.0 + u64::from(extent.len) <= limit)
    }

    /// Whether all of it lies before a block.
    pub fn is_below(&self, limit: u64) -> bool {
        self.data_is_below(limit) && self.nodes.iter().all(|node| *node < limit)
    }
}

impl Reader<'_> {
    fn failed(&self, block: Option<u64>) -> impl Fn(dioxide_format::Error) -> Error + use<> {
        let place = Place {
            block,
            ..Place::ino(self.ino)
        };
        move |error| Error::format(error, place)
    }

    /// A block of the map is met, for the first time.
    fn enter(&mut self, block: u64) -> Result<Arc<[u8]>> {
        if !self.physical.contains(&block) || !self.met.insert(block) {
            return Err(Error::Corrupt {
                structure: "block map",
                place: Place::ino(self.ino),
                what: format!("it leads to block {block}, outside or for the second time"),
            });
        }
        self.map.nodes.push(block);
        (self.read)(block)
    }

    /// Its depth is less than its parent's, so that this ends.
    fn node(&mut self, bytes: &[u8], depth: Option<u16>, block: Option<u64>) -> Result<()> {
        let node = ExtentNode::parse(bytes, depth).map_err(self.failed(block))?;
        for extent in node.extents() {
            let end = extent.pblk.0.saturating_add(extent.len.into());
            if extent.pblk.0 < self.physical.start || end > self.physical.end {
                return Err(Error::Corrupt {
                    structure: "extent tree",
                    place: Place::ino(self.ino),
                    what: format!("{extent:?} lies outside"),
                });
            }
        }
        self.map.extents.extend(node.extents());
        for index in node.indices() {
            let bytes = self.enter(index.leaf.0)?;
            self.node(&bytes, Some(node.depth() - 1), Some(index.leaf.0))?;
        }
        Ok(())
    }

    fn pointers(&mut self, inode: &Inode) -> Result<()> {
        let root: Vec<u32> = indirect::pointers(inode.i_block()).collect();
        for (lblk, pointer) in (0..).zip(&root[..DIRECT as usize]) {
            self.data(lblk, *pointer)?;
        }
        let mut lblk = u64::from(DIRECT);
        let per = u64::from(indirect::pointers_per_block(self.block_bytes));
        for levels in 1..=3 {
            self.table(root[DIRECT as usize + levels as usize - 1], levels, lblk)?;
            lblk += per.pow(levels);
        }
        Ok(())
    }

    fn table(&mut self, pointer: u32, levels: u32, first: u64) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        let bytes = self.enter(pointer.into())?;
        let per = u64::from(indirect::pointers_per_block(self.block_bytes));
        for (index, pointer) in (0..).zip(indirect::pointers(&bytes)) {
            let lblk = first + index * per.pow(levels - 1);
            match levels {
                1 => self.data(lblk, pointer)?,
                _ => self.table(pointer, levels - 1, lblk)?,
            }
        }
        Ok(())
    }

    fn data(&mut self, lblk: u64, pointer: u32) -> Result<()> {
        let Some(lblk) = u32::try_from(lblk).ok().filter(|_| pointer != 0) else {
            return Ok(());
        };
        if !self.physical.contains(&pointer.into()) {
            return Err(Error::Corrupt {
                structure: "indirect block",
                place: Place::ino(self.ino),
                what: format!("block {lblk} of the file is block {pointer}"),
            });
        }
        let extent = Extent {
            lblk: Lblk(lblk),
            len: 1,
            unwritten: false,
            pblk: Pblk(pointer.into()),
        };
        push(&mut self.map.extents, extent);
        Ok(())
    }
}

/// Adds an extent behind the last, or makes that longer.
fn push(extents: &mut Vec<Extent>, next: Extent) {
    if let Some(last) = extents.last_mut()
        && last.end() == u64::from(next.lblk.0)
        && last.pblk.0 + u64::from(last.len) == next.pblk.0
        && last.unwritten == next.unwritten
        && u32::from(last.len) + u32::from(next.len)
            <= u32::from(MAX_LEN - u16::from(next.unwritten))
    {
        last.len += next.len;
    } else {
        extents.push(next);
    }
}

/// Where blocks go: from the first of a run to its length and its new place. Whole clusters.
#[derive(Debug, Default)]
pub(super) struct Moves(BTreeMap<u64, (u64, u64)>);

impl Moves {
    pub fn add(&mut self, from: u64, len: u64, to: u64) {
        self.0.insert(from, (len, to));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Old place, length, new place.
    pub fn all(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.0.iter().map(|(&from, &(len, to))| (from, len, to))
    }

    /// Where a block comes to lie, and for how many from it on that is in a row; at most `most`.
    pub fn of(&self, block: u64, most: u64) -> (u64, u64) {
        if let Some((&from, &(len, to))) = self.0.range(..=block).next_back()
            && block < from + len
        {
            return (to + (block - from), most.min(from + len - block));
        }
        let next = self.0.range(block..).next();
        let same = next.map_or(most, |(&from, _)| most.min(from - block));
        (block, same)
    }

    /// Whether a block moves.
    pub fn has(&self, block: u64) -> bool {
        self.of(block, 1).0 != block
    }

    /// A map as it is after the moves.
    pub fn applied(&self, extents: &[Extent]) -> Vec<Extent> {
        let mut moved = Vec::with_capacity(extents.len());
        for extent in extents {
            let (mut at, len) = (0, u64::from(extent.len));
            while at < len {
                let (to, count) = self.of(extent.pblk.0 + at, len - at);
                let piece = Extent {
                    lblk: Lblk(extent.lblk.0 + at as u32),
                    len: count as u16,
                    unwritten: extent.unwritten,
                    pblk: Pblk(to),
                };
                push(&mut moved, piece);
                at += count;
            }
        }
        moved
    }
}

/// A map that is to be: the inode's part, and the blocks of the rest.
pub(super) struct Built {
    pub i_block: [u8; 60],
    pub nodes: Vec<(u64, Vec<u8>)>,
}

/// A tree of full nodes; none if there is no room for them.
///
/// # Errors
/// For what fits in no tree.
pub(super) fn build_tree(
    ino: Ino,
    extents: Vec<Extent>,
    block_bytes: u32,
    seed: Option<u32>,
    free: &mut Free,
) -> Result<Option<Built>> {
    let failed = |error| Error::format(error, Place::ino(ino));
    let most = extent::max_entries(block_bytes);
    let mut built = Built {
        i_block: [0; 60],
        nodes: Vec::new(),
    };
    let (mut entries, mut depth) = (ExtentEntries::Leaf(extents), 0);
    loop {
        let parts: Vec<(Lblk, ExtentEntries)> = match entries {
            ExtentEntries::Leaf(ref list) if list.len() > ROOT_ENTRIES.into() => list
                .chunks(most.into())
                .map(|part| (part[0].lblk, ExtentEntries::Leaf(part.to_vec())))
                .collect(),
            ExtentEntries::Index(ref list) if list.len() > ROOT_ENTRIES.into() => list
                .chunks(most.into())
                .map(|part| (part[0].lblk, ExtentEntries::Index(part.to_vec())))
                .collect(),
            _ => break,
        };
        let mut above = Vec::with_capacity(parts.len());
        for (lblk, part) in parts {
            let Some(block) = free.take_one() else {
                built
                    .nodes
                    .iter()
                    .for_each(|(block, _)| free.give_one(*block));
                return Ok(None);
            };
            let mut bytes = vec![0; block_bytes as usize];
            ExtentNode::new(most, depth, part)
                .encode_into(&mut bytes)
                .map_err(failed)?;
            if let Some(seed) = seed {
                extent::update_checksum(&mut bytes, seed).map_err(failed)?;
            }
            built.nodes.push((block, bytes));
            above.push(ExtentIndex::new(lblk, Pblk(block)));
        }
        entries = ExtentEntries::Index(above);
        depth += 1;
    }
    let root = ExtentNode::new(ROOT_ENTRIES, depth, entries);
    root.encode_into(&mut built.i_block).map_err(failed)?;
    Ok(Some(built))
}

/// Makes the blocks of pointers anew that change or lie behind the end, and those above them.
pub(super) struct Rewrite<'a> {
    pub moves: &'a Moves,
    pub limit: u64,
    pub block_bytes: u32,
    pub read: &'a ReadBlock<'a>,
    pub free: &'a mut Free,
    pub built: Built,
    /// Blocks of pointers that are not used any more.
    pub dropped: Vec<u64>,
}

impl Rewrite<'_> {
    /// Whether there was room; if not, what was taken was given back.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn run(&mut self, inode: &Inode) -> Result<bool> {
        let mut root: Vec<u32> = indirect::pointers(inode.i_block()).collect();
        let (data, tables) = root.split_at_mut(DIRECT as usize);
        let mut has_room = true;
        for pointer in data.iter_mut().filter(|pointer| **pointer != 0) {
            *pointer = self.moves.of((*pointer).into(), 1).0 as u32;
        }
        for (pointer, levels) in tables.iter_mut().zip(1..) {
            match self.table(*pointer, levels)? {
                Some(new) => *pointer = new,
                None => has_room = false,
            }
        }
        indirect::encode_into(&root, &mut self.built.i_block);
        if !has_room {
            for (block, _) in &self.built.nodes {
                self.free.give_one(*block);
            }
        }
        Ok(has_room)
    }

    /// Where a block of pointers comes to lie; none if there is no room.
    fn table(&mut self, block: u32, levels: u32) -> Result<Option<u32>> {
        if block == 0 {
            return Ok(Some(0));
        }
        let bytes = (self.read)(block.into())?;
        let before: Vec<u32> = indirect::pointers(&bytes).collect();
        let mut pointers = before.clone();
        for pointer in pointers.iter_mut().filter(|pointer| **pointer != 0) {
            let new = match levels {
                1 => Some(self.moves.of((*pointer).into(), 1).0 as u32),
                _ => self.table(*pointer, levels - 1)?,
            };
            let Some(new) = new else { return Ok(None) };
            *pointer = new;
        }
        if pointers == before && u64::from(block) < self.limit {
            return Ok(Some(block));
        }
        let Some(new) = self.free.take_one() else {
            return Ok(None);
        };
        let mut bytes = vec![0; self.block_bytes as usize];
        indirect::encode_into(&pointers, &mut bytes);
        self.built.nodes.push((new, bytes));
        self.dropped.push(block.into());
        Ok(Some(new as u32))
    }
}
