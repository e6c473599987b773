//! Changing the names in one directory.
//!
//! For: adding, removing and redirecting a name; a new directory's first names. Not for: link counts,
//! times, and whether a name may be there.
//!
//! | Module | Holds |
//! |---|---|
//! | [`split`] | what an index and its leaves become, in memory |
//! | [`grow`] | blocks for a directory |
//!
//! Who changes a directory has it exclusive, and who reads it shared. Everything that can fail for the
//! device or for want of space is done before the first block is changed; what fails after that aborts
//! the journal.
//!
//! Invariants: the chain of entries fills a block before and after; an index still leads to each
//! name, because a name only goes to the block that its hash leads to. Blocks are never given back: as in
//! Linux, a directory does not shrink.
//!
//! Rejected: changing index blocks in place on the way up. A split that finds no room at the top would have
//! to be undone; so all blocks are made in memory first.

mod grow;
mod split;
#[cfg(test)]
mod tests;

use super::dir::block::{Block, Blocks, DirBlock, Role, Room, Sought, in_directory};
use super::dir::index::Descent;
use super::dir::index_makes_no_sense;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::txn::Writer;
use crate::txn::file::Credits;
use crate::txn::inode::INODE_CREDITS;
use crate::{Error, Place, Result};
use dioxide_format::dir::{self, DirEntry, DirFormat, Found};
use dioxide_format::features::Incompat;
use dioxide_format::inode::{FileType, InodeFlags};
use dioxide_format::types::{Ino, Lblk, Pblk};
use dioxide_journal::journal::Handle;
use dioxide_journal::{Edit, Kind};
use grow::Made;

/// Metadata blocks that removing or redirecting a name changes.
pub(crate) const REMOVE_NAME_CREDITS: u32 = 1;

/// A name that a directory is to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewEntry<'a> {
    /// 1 to 255 bytes, without `/` and NUL.
    pub(crate) name: &'a [u8],
    pub(crate) ino: Ino,
    pub(crate) file_type: FileType,
}

impl<'a> NewEntry<'a> {
    /// As an entry that has no place yet.
    fn on_disk(&self, format: &DirFormat) -> DirEntry<'a> {
        DirEntry {
            offset: 0,
            rec_len: 0,
            ino: self.ino,
            file_type: None,
            type_byte: match format.filetype {
                true => self.file_type.dirent_code(),
                false => 0,
            },
            name: self.name,
        }
    }
}

/// What became of a name that was to go where there is room.
enum Placed<'a> {
    Done,
    /// The leaf that it belongs to is full.
    LeafFull(Box<(Descent<'a>, Block)>),
    /// No block has room, and there is no index.
    NoRoom,
}

impl Mount {
    /// Metadata blocks that adding one name changes at most: an index that is split up to its root and
    /// gets a level, the new blocks' allocation and mapping included.
    pub(crate) fn add_name_credits(&self, dir: &Inode) -> u32 {
        let large_dir = self.dir_format.large_dir;
        let made = match self.has_dir_index() {
            false => 1,
            true => 2 + u32::from(large_dir),
        };
        let made = made + u32::from(dir.has_inline_data());
        // The leaf, the index blocks on the way, and the inode.
        let there = 1 + 2 + u32::from(large_dir) + INODE_CREDITS;
        there + made * (1 + Credits::insert(self, dir))
    }

    /// Metadata blocks that [`Mount::init_directory`] changes.
    pub(crate) fn new_dir_credits(&self) -> u32 {
        // The first block of a file needs no block for its map.
        INODE_CREDITS + 1 + crate::alloc::BlockAllocator::ALLOCATE_CREDITS
    }

    /// Adds a name that is not there: [`Mount::add_name_credits`]. Makes room for it: appends a
    /// block, makes an index, splits one, moves a directory out of its inode. The caller has the directory
    /// exclusive and its map unlocked. Blocks on metadata.
    ///
    /// # Errors
    /// [`Error::NoSpace`], also for an index that takes no more, with nothing changed;
    /// [`Error::Unsupported`] for a casefolded or encrypted directory; damage; the journal's.
    pub(crate) fn add_name(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        dir: &Inode,
        new: &NewEntry<'_>,
    ) -> Result<()> {
        self.add_name_at(writer, handle, dir, new, None)
    }

    /// As [`Mount::add_name`]; `room` is where the name goes, if who looked for it saw that, and nobody changed the
    /// directory since.
    pub(super) fn add_name_at(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        dir: &Inode,
        new: &NewEntry<'_>,
        room: Option<Room>,
    ) -> Result<()> {
        dir.changed_in(handle.tid(), true);
        if !self.has_dir_index() && dir.flags().contains(InodeFlags::INDEX) {
            // From when the file system kept them. A name lies where there is room now.
            self.forget_index(handle, dir)?;
        }
        if let Some(room) = room {
            return put_at(handle, dir, &room, new);
        }
        let placed = match self.place(handle, dir, new) {
            Err(error) if self.may_forget_index(dir, &error) => {
                tracing::warn!(ino = dir.ino.0, %error, "the directory loses its index");
                self.forget_index(handle, dir)?;
                return match self.place(handle, dir, new)? {
                    Placed::Done => Ok(()),
                    _ => self.append_name(writer, handle, dir, new),
                };
            }
            placed => placed?,
        };
        match placed {
            Placed::Done => Ok(()),
            Placed::LeafFull(full) => self.split_for(writer, handle, *full, new),
            Placed::NoRoom if dir.has_inline_data() => {
                self.move_dir_out(writer, handle, dir)?;
                self.add_name(writer, handle, dir, new)
            }
            Placed::NoRoom => self.lengthen(writer, handle, dir, new),
        }
    }

    /// Takes a name out; whether it was there. [`REMOVE_NAME_CREDITS`]. The caller has the directory
    /// exclusive and its map unlocked. Blocks on metadata.
    ///
    /// # Errors
    /// As [`Mount::add_name`].
    pub(crate) fn remove_name(
        &self,
        handle: &mut Handle<'_>,
        dir: &Inode,
        name: &[u8],
    ) -> Result<bool> {
        dir.changed_in(handle.tid(), true);
        self.remove_entry(handle, dir, name)
    }

    /// Has a name, or `..`, lead to another inode; whether it was there. [`REMOVE_NAME_CREDITS`]. The
    /// caller has the directory exclusive and its map unlocked. Blocks on metadata.
    ///
    /// # Errors
    /// As [`Mount::add_name`].
    pub(crate) fn redirect_name(
        &self,
        handle: &mut Handle<'_>,
        dir: &Inode,
        name: &[u8],
        to: Ino,
        file_type: FileType,
    ) -> Result<bool> {
        dir.changed_in(handle.tid(), true);
        if dir.has_inline_data() && name == b".." {
            return self.set_inline_parent(handle, dir, to).map(|()| true);
        }
        let format = self.dir_format;
        self.change_found(handle, dir, name, &mut |chain, found| {
            dir::redirect(chain, &format, found, to, file_type.dirent_code())
        })
    }

    /// Makes the first block of a new directory, or its inline form where the file system has that and
    /// the inode room: `.` and `..`. Sets size, map and flags of the inode; what its `i_block` holds is
    /// lost. [`Mount::new_dir_credits`]. The caller is the only one to know the directory. Blocks on
    /// metadata.
    ///
    /// # Errors
    /// [`Error::NoSpace`], with nothing changed; the journal's.
    pub(crate) fn init_directory(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        dir: &Inode,
        parent: Ino,
    ) -> Result<()> {
        dir.changed_in(handle.tid(), true);
        let may_be_inline = self.sb.features().incompat.contains(Incompat::INLINE_DATA);
        if may_be_inline && self.init_inline(handle, dir, parent)? {
            return Ok(());
        }
        let dots = [(&b"."[..], dir.ino), (b"..", parent)].map(|(name, ino)| NewEntry {
            name,
            ino,
            file_type: FileType::Directory,
        });
        let block = self.new_dir_block(&dots)?;
        let disk = dir.node().disk.clone();
        self.make_first_block(writer, handle, dir, &block, disk)
    }

    /// Takes a name out of a directory, if it is there: one credit. Blocks on metadata.
    ///
    /// # Errors
    /// Damage; the journal's.
    pub(crate) fn remove_entry(
        &self,
        edit: &mut dyn Edit,
        dir: &Inode,
        name: &[u8],
    ) -> Result<bool> {
        self.change_found(edit, dir, name, &mut |chain, found| {
            dir::remove(chain, found)
        })
    }

    /// A block for a directory, with these entries and no others. The last takes what is left.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for entries that do not fit.
    pub(crate) fn new_dir_block(&self, entries: &[NewEntry<'_>]) -> Result<Vec<u8>> {
        let format = &self.dir_format;
        let mut block = vec![0; format.block_size as usize];
        let entries = entries.iter().map(|entry| entry.on_disk(format));
        dir::fill(&mut block, format, entries)
            .map_err(|error| Error::format(error, Place::default()))?;
        Ok(block)
    }

    /// Puts a name where there is room for it, one credit, or says why there is none.
    fn place<'a>(
        &'a self,
        edit: &mut dyn Edit,
        dir: &'a Inode,
        new: &NewEntry<'_>,
    ) -> Result<Placed<'a>> {
        self.check_names(dir)?;
        let format = self.dir_format;
        if dir.has_inline_data() {
            let entry = new.on_disk(&format);
            let done = self.change_inline(edit, dir, &mut |chain| put(chain, &format, &entry))?;
            return Ok(if done { Placed::Done } else { Placed::NoRoom });
        }
        let blocks = Blocks::new(self, dir)?;
        if self.is_indexed(dir) {
            let (descent, _) = Descent::to_name(blocks, new.name)?;
            let leaf = descent.read_leaf()?;
            return Ok(match put_into(edit, dir, leaf, new)? {
                None => Placed::Done,
                Some(leaf) => Placed::LeafFull(Box::new((descent, leaf))),
            });
        }
        for lblk in 0..blocks.count {
            let leaf = blocks.read(Lblk(lblk), Role::Leaf)?;
            if put_into(edit, dir, leaf, new)?.is_none() {
                return Ok(Placed::Done);
            }
        }
        Ok(Placed::NoRoom)
    }

    /// Changes the entry of a name; whether it was there.
    fn change_found(
        &self,
        edit: &mut dyn Edit,
        dir: &Inode,
        name: &[u8],
        change: &mut dyn FnMut(&mut [u8], &Found) -> dioxide_format::Result<()>,
    ) -> Result<bool> {
        if name != b".." {
            self.check_names(dir)?;
        }
        let format = self.dir_format;
        if dir.has_inline_data() {
            return self.change_inline(
                edit,
                dir,
                &mut |chain| match dir::find(chain, &format, name)? {
                    Some(found) => change(chain, &found).map(|()| true),
                    None => Ok(false),
                },
            );
        }
        let Sought::There(block, found) = self.find_in_blocks(dir, name)? else {
            return Ok(false);
        };
        let kind = known_kind(&block);
        let kind = kind.map_err(|error| Error::format(error, block.place(dir)))?;
        let pblk = block.pblk;
        // Changed in place, since nobody has it.
        drop(block);
        modify(edit, dir, pblk, &kind, &mut |chain| change(chain, &found))?;
        Ok(true)
    }

    /// As Linux, and only where no checksum says that the index is what was written.
    fn may_forget_index(&self, dir: &Inode, error: &Error) -> bool {
        let is_damage = matches!(error, Error::Corrupt { .. }) && index_makes_no_sense(error);
        is_damage && self.checksum_seed().is_none() && self.is_indexed(dir)
    }

    /// The blocks of an index without the flag are blocks without names, but for the first.
    fn forget_index(&self, edit: &mut dyn Edit, dir: &Inode) -> Result<()> {
        let lock = dir.map.lock();
        self.change_inode(edit, dir, &lock, &mut |disk| {
            disk.disk_mut().i_flags &= !InodeFlags::INDEX.0;
        })
    }

    /// No block of a directory without an index has room.
    fn lengthen(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        dir: &Inode,
        new: &NewEntry<'_>,
    ) -> Result<()> {
        let version = self.default_hash().filter(|_| self.has_dir_index());
        let blocks = Blocks::new(self, dir)?;
        let Some(version) = version.filter(|_| blocks.count == 1) else {
            return self.append_name(writer, handle, dir, new);
        };
        let first = blocks.read(Lblk(0), Role::Leaf)?;
        let made = split::make_index(&blocks, &first, version, &new.on_disk(&self.dir_format))?;
        self.write_made(writer, handle, &blocks, made)
    }

    fn append_name(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        dir: &Inode,
        new: &NewEntry<'_>,
    ) -> Result<()> {
        let blocks = Blocks::new(self, dir)?;
        let mut made = Made::default();
        made.add(Role::Leaf, self.new_dir_block(std::slice::from_ref(new))?);
        self.write_made(writer, handle, &blocks, made)
    }

    fn split_for(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        (descent, leaf): (Descent<'_>, Block),
        new: &NewEntry<'_>,
    ) -> Result<()> {
        let made = split::split_leaf(&descent, &leaf, &new.on_disk(&self.dir_format))?;
        self.write_made(writer, handle, &descent.blocks, made)
    }

    /// Gives a directory that lies in its inode a block.
    fn move_dir_out(&self, writer: &Writer, handle: &mut Handle<'_>, dir: &Inode) -> Result<()> {
        let (block, disk) = self.moved_out(dir)?;
        self.make_first_block(writer, handle, dir, &block, disk)
    }
}

/// Puts an entry into a chain, if that has room.
fn put(chain: &mut [u8], format: &DirFormat, entry: &DirEntry<'_>) -> dioxide_format::Result<bool> {
    match dir::find_gap(chain, format, entry.name.len())? {
        Some(gap) => dir::insert(chain, &gap, entry).map(|()| true),
        None => Ok(false),
    }
}

/// Puts an entry into a block of names, one credit; gives the block back if that has no room.
fn put_into(
    edit: &mut dyn Edit,
    dir: &Inode,
    leaf: Block,
    new: &NewEntry<'_>,
) -> Result<Option<Block>> {
    let format = leaf.kind.format;
    let gap = dir::find_gap(leaf.chain(), &format, new.name.len())
        .map_err(|error| Error::format(error, leaf.place(dir)))?;
    let Some(gap) = gap else {
        return Ok(Some(leaf));
    };
    let room = Room::of(&leaf, gap);
    // Changed in place, since nobody has it.
    drop(leaf);
    put_at(edit, dir, &room, new)?;
    Ok(None)
}

/// Puts an entry where there is room for it, one credit.
fn put_at(edit: &mut dyn Edit, dir: &Inode, room: &Room, new: &NewEntry<'_>) -> Result<()> {
    let format = room.kind.format;
    let entry = new.on_disk(&format);
    modify(edit, dir, room.pblk, &room.kind, &mut |chain| {
        debug_assert_eq!(
            dir::find_gap(chain, &format, new.name.len()),
            Ok(Some(room.gap)),
            "nobody changed it"
        );
        dir::insert(chain, &room.gap, &entry)
    })
}

/// What a block is that a walk found a name in.
///
/// # Errors
/// It is nothing that keeps a checksum. Without checksums that does not matter.
fn known_kind(block: &Block) -> dioxide_format::Result<DirBlock> {
    let DirBlock { role, seed, .. } = block.kind;
    let verified = |role| {
        let kind = DirBlock { role, ..block.kind };
        kind.verify(block.pblk, &block.bytes).map(|()| kind)
    };
    // The root of an index that makes no sense is none.
    let known = match role {
        Role::Any { first: true } => verified(Role::Root).or_else(|_| verified(Role::Leaf)),
        Role::Any { first: false } => verified(Role::Leaf),
        _ => return Ok(block.kind),
    };
    match seed {
        Some(_) => known,
        None => Ok(known.unwrap_or(block.kind)),
    }
}

/// Changes the entries of a block that was read, and that nobody changed since.
fn modify(
    edit: &mut dyn Edit,
    dir: &Inode,
    pblk: Pblk,
    kind: &DirBlock,
    change: &mut dyn FnMut(&mut [u8]) -> dioxide_format::Result<()>,
) -> Result<()> {
    let mut apply = |bytes: &mut [u8]| {
        let end = kind.chain_end(bytes.len());
        change(&mut bytes[..end]).map_err(|source| dioxide_journal::Error::Block {
            block: pblk.0,
            source,
        })
    };
    edit.modify(pblk, kind, &mut apply)
        .map_err(|error| in_directory(error.into(), dir))
}
