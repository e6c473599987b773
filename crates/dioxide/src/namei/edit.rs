//! Adding entries to directories and taking them out, through an [`Edit`].
//!
//! For: the blocks that hold names. Not for: link counts, times, and the directory's map: a directory
//! without room says so, and whoever has its map appends a block.
//!
//! Invariants: the chain of entries fills the block before and after; an index still leads to each
//! name, because a name only goes to the block that its hash leads to.
//!
//! Rejected: splitting a full block of an index here. It needs a block and a change of the index,
//! which belong to the creation of files; until then such a directory is refused before it is changed.

use super::dir::Descent;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::{Error, Place, Result};
use dioxide_format::dir::{self, DirEntry, DirFormat, DirTailDisk, min_rec_len};
use dioxide_format::htree;
use dioxide_format::inode::FileType;
use dioxide_format::types::{Ino, Lblk, Pblk};
use dioxide_journal::{Edit, Kind};

pub(crate) const REMOVE_NAME_CREDITS: u32 = 2;
/// A name that a directory is to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewEntry<'a> {
    /// 1 to 255 bytes, without `/` and NUL.
    pub(crate) name: &'a [u8],
    pub(crate) ino: Ino,
    pub(crate) file_type: FileType,
}

/// A block of names.
#[derive(Debug)]
struct LeafBlock {
    seed: Option<u32>,
}

impl Kind for LeafBlock {
    fn name(&self) -> &'static str {
        "directory block"
    }

    fn verify(&self, _: Pblk, bytes: &[u8]) -> dioxide_format::Result<()> {
        match self.seed {
            Some(seed) => dir::verify_checksum(bytes, seed),
            None => Ok(()),
        }
    }

    fn seal(&self, block: Pblk, bytes: &mut [u8]) {
        if let Some(seed) = self.seed {
            dir::update_checksum(bytes, seed)
                .unwrap_or_else(|error| panic!("directory block {block} was changed: {error}"));
        }
    }
}

/// Bytes of a block that entries may fill.
fn room(format: &DirFormat) -> usize {
    let tail = if format.checksum {
        DirTailDisk::SIZE
    } else {
        0
    };
    format.block_size as usize - tail
}

/// Puts an entry into a block, if it has room.
fn put(block: &mut [u8], format: &DirFormat, new: &NewEntry<'_>) -> dioxide_format::Result<bool> {
    let need = min_rec_len(new.name.len());
    let mut found = None;
    for slot in dir::slots(&block[..room(format)], format) {
        let slot = slot?;
        let kept = match slot.is_used() {
            true => min_rec_len(slot.name.len()),
            false => 0,
        };
        if slot.rec_len - kept >= need {
            found = Some((slot.offset, kept, slot.rec_len));
            break;
        }
    }
    let Some((offset, kept, rec_len)) = found else {
        return Ok(false);
    };
    if kept > 0 {
        set_rec_len(block, format, offset, kept)?;
    }
    encode(block, format, offset + kept, rec_len - kept, new)?;
    Ok(true)
}

fn encode(
    block: &mut [u8],
    format: &DirFormat,
    offset: usize,
    rec_len: usize,
    new: &NewEntry<'_>,
) -> dioxide_format::Result<()> {
    let type_byte = match format.filetype {
        true => new.file_type.dirent_code(),
        false => 0,
    };
    let entry = DirEntry {
        offset,
        rec_len,
        ino: new.ino,
        file_type: None,
        type_byte,
        name: new.name,
    };
    entry.encode_into(block)
}

/// Changes how far an entry reaches.
fn set_rec_len(
    block: &mut [u8],
    format: &DirFormat,
    offset: usize,
    rec_len: usize,
) -> dioxide_format::Result<()> {
    let copy = block.to_vec();
    let slots = dir::slots(&copy[..room(format)], format);
    let slot = slots
        .filter_map(|slot| slot.ok())
        .find(|slot| slot.offset == offset);
    let slot = slot.expect("a slot that was just seen");
    DirEntry { rec_len, ..slot }.encode_into(block)
}

/// Takes a name out of a block, if it is there: the entry before takes its bytes.
fn take(block: &mut [u8], format: &DirFormat, name: &[u8]) -> dioxide_format::Result<bool> {
    let mut before: Option<(usize, usize)> = None;
    let mut found = None;
    for slot in dir::slots(&block[..room(format)], format) {
        let slot = slot?;
        if slot.is_used() && slot.name == name {
            found = Some((slot.offset, slot.rec_len));
            break;
        }
        before = Some((slot.offset, slot.rec_len));
    }
    let Some((offset, rec_len)) = found else {
        return Ok(false);
    };
    match before {
        Some((at, len)) => set_rec_len(block, format, at, len + rec_len)?,
        None => block[offset..offset + 4].fill(0),
    }
    Ok(true)
}

impl Mount {
    /// Adds a name that the directory does not have, where there is room for it: one credit. `false`:
    /// there is none, and nothing was changed; a block of names may be appended. Blocks on metadata.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a directory that lies in its inode, and for an index whose block
    /// for this name is full; damage.
    pub(crate) fn add_entry(
        &self,
        edit: &mut dyn Edit,
        dir: &Inode,
        new: &NewEntry<'_>,
    ) -> Result<bool> {
        let indexed = self.is_indexed(dir);
        for lblk in self.blocks_for(dir, new.name)? {
            let format = self.dir_format;
            if self.change_leaf(edit, dir, lblk, &mut |block| put(block, &format, new))? {
                return Ok(true);
            }
            if indexed {
                return Err(Error::Unsupported(format!(
                    "splitting block {lblk} of the indexed directory {}",
                    dir.ino
                )));
            }
        }
        Ok(false)
    }

    /// Takes a name out of a directory, if it is there: one credit. Blocks on metadata.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a directory that lies in its inode; damage.
    pub(crate) fn remove_entry(
        &self,
        edit: &mut dyn Edit,
        dir: &Inode,
        name: &[u8],
    ) -> Result<bool> {
        let format = self.dir_format;
        for lblk in self.blocks_for(dir, name)? {
            if self.change_leaf(edit, dir, lblk, &mut |block| take(block, &format, name))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Has a name lead to another inode, if it is there: one credit.
    pub(crate) fn redirect_entry(
        &self,
        edit: &mut dyn Edit,
        dir: &Inode,
        name: &[u8],
        to: Ino,
        file_type: FileType,
    ) -> Result<bool> {
        let format = self.dir_format;
        let mut redirect = |block: &mut [u8]| {
            let copy = block.to_vec();
            for slot in dir::slots(&copy[..room(&format)], &format) {
                let slot = slot?;
                if slot.is_used() && slot.name == name {
                    let new = NewEntry {
                        name,
                        ino: to,
                        file_type,
                    };
                    encode(block, &format, slot.offset, slot.rec_len, &new)?;
                    return Ok(true);
                }
            }
            Ok(false)
        };
        for lblk in self.blocks_for(dir, name)? {
            if self.change_leaf(edit, dir, lblk, &mut redirect)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A block for a directory, with these entries and no others. The last takes what is left.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for entries that do not fit.
    pub(crate) fn new_dir_block(&self, entries: &[NewEntry<'_>]) -> Result<Vec<u8>> {
        let format = &self.dir_format;
        let mut block = vec![0; format.block_size as usize];
        let mut at = 0;
        for (index, entry) in entries.iter().enumerate() {
            let rec_len = match index + 1 == entries.len() {
                true => room(format).saturating_sub(at),
                false => min_rec_len(entry.name.len()),
            };
            encode(&mut block, format, at, rec_len, entry)
                .map_err(|error| Error::format(error, Place::default()))?;
            at += rec_len;
        }
        Ok(block)
    }

    /// Makes a block that was just allocated a directory's: one credit.
    ///
    /// # Errors
    /// Those of the journal.
    pub(crate) fn create_dir_block(
        &self,
        edit: &mut dyn Edit,
        block: Pblk,
        dir_seed: Option<u32>,
        bytes: &[u8],
    ) -> Result<()> {
        Ok(edit.create(block, &LeafBlock { seed: dir_seed }, bytes)?)
    }

    /// The blocks that may hold a name. In an index it belongs into the first.
    fn blocks_for(&self, dir: &Inode, name: &[u8]) -> Result<Vec<Lblk>> {
        if dir.has_inline_data() {
            return Err(Error::Unsupported(format!(
                "changing directory {}, which lies in its inode",
                dir.ino
            )));
        }
        dir::ensure_plain_names(&dir.node().disk)
            .map_err(|error| Error::format(error, dir.place()))?;
        if !self.is_indexed(dir) {
            return Ok((0..self.dir_blocks(dir)?).map(Lblk).collect());
        }
        let mut descent = Descent::start(self, dir, name)?;
        let mut blocks = Vec::new();
        while let Some(leaf) = descent.leaf()? {
            blocks.push(leaf);
        }
        Ok(blocks)
    }

    /// Changes a block of names if `change` says so.
    fn change_leaf(
        &self,
        edit: &mut dyn Edit,
        dir: &Inode,
        lblk: Lblk,
        change: &mut dyn FnMut(&mut [u8]) -> dioxide_format::Result<bool>,
    ) -> Result<bool> {
        let block = self.dir_block(dir, lblk)?;
        let format = |error| Error::format(error, block.place(dir));
        if self.is_indexed(dir) && htree::is_index_block(&block.bytes, lblk, &self.dir_format) {
            return Err(dir.corrupt("htree node", format!("it leads to its own block {lblk}")));
        }
        let mut bytes = block.bytes.to_vec();
        if !change(&mut bytes).map_err(format)? {
            return Ok(false);
        }
        let seed = self.checksum_seed();
        let kind = LeafBlock {
            seed: seed.map(|seed| dir.node().disk.seed(seed, dir.ino)),
        };
        edit.modify(block.pblk, &kind, &mut |now| {
            now.copy_from_slice(&bytes);
            Ok(())
        })?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(checksum: bool) -> DirFormat {
        DirFormat {
            block_size: 1024,
            filetype: true,
            checksum,
            max_ino: 1000,
            large_dir: false,
        }
    }

    /// A block without names.
    fn empty(format: &DirFormat) -> Vec<u8> {
        let mut block = vec![0; 1024];
        let rec_len = room(format) as u16;
        block[4..6].copy_from_slice(&rec_len.to_le_bytes());
        if format.checksum {
            dir::update_checksum(&mut block, 7).expect("a whole block");
        }
        block
    }

    fn names(block: &[u8], format: &DirFormat) -> Vec<(u32, Vec<u8>)> {
        let entries = dir::entries(block, format).map(|entry| entry.expect("a whole chain"));
        entries.map(|e| (e.ino.0, e.name.to_vec())).collect()
    }

    fn new(name: &[u8], ino: u32) -> NewEntry<'_> {
        NewEntry {
            name,
            ino: Ino(ino),
            file_type: FileType::Regular,
        }
    }

    #[test]
    fn block_filled_and_emptied_in_any_order_holds_what_was_put() {
        for format in [format(false), format(true)] {
            let mut block = empty(&format);
            let mut held = Vec::new();
            let mut number = 11u32;
            for round in 0..2000u32 {
                let name = vec![b'a' + (round % 26) as u8; 1 + (round * 7 % 40) as usize];
                number = number * 31 % 997;
                let is_there = held.iter().position(|(_, other)| *other == name);
                if let Some(at) = is_there {
                    assert_eq!(take(&mut block, &format, &name), Ok(true));
                    held.remove(at);
                } else if put(&mut block, &format, &new(&name, number)).expect("a whole chain") {
                    held.push((number, name));
                }
                let mut found = names(&block, &format);
                found.sort();
                held.sort();
                assert_eq!(found, held, "round {round}");
            }
            assert!(held.len() > 5);
            if format.checksum {
                dir::tail(&block).expect("the tail was left alone");
            }
        }
    }

    #[test]
    fn name_that_fits_no_gap_leaves_the_block_as_it_was() {
        let format = format(true);
        let mut block = empty(&format);
        let long = vec![b'x'; 250];
        for at in 0..3 {
            let name = [&long[..], &[b'0' + at]].concat();
            assert_eq!(put(&mut block, &format, &new(&name, 5)), Ok(true));
        }
        let before = block.clone();
        assert_eq!(put(&mut block, &format, &new(&long, 5)), Ok(false));
        assert_eq!(take(&mut block, &format, b"absent"), Ok(false));
        assert_eq!(block, before);
    }
}
