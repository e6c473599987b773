//! Files: their blocks and their inodes.

use super::apply::{Apply, Old};
use super::names::{LINKS, add_blocks, first_entries};
use super::plan::{File, wrong};
use super::ranges::Backing;
use crate::alloc::Run;
use crate::map::tree::{Blocks, I_BLOCK_BYTES, Owner, State, Tree};
use crate::mount::zone::ZoneCheck;
use crate::txn::inode::TableBlock;
use crate::{Error, Place, Result};
use dioxide_format::extent::{Extent, LBLK_END};
use dioxide_format::inode::{FileType, Inode as DiskInode, InodeFlags};
use dioxide_format::types::{Ino, Lblk, Pblk};
use std::ops::Range;

const I_MODE_TO_BLOCK: Range<usize> = 0..0x28;
const I_BLOCK: Range<usize> = 0x28..0x64;
const BEHIND_I_BLOCK: usize = 0x64;
const I_DTIME: Range<usize> = 0x14..0x18;
const I_BLOCKS_LO: Range<usize> = 0x1C..0x20;
const I_BLOCKS_HIGH: Range<usize> = 0x74..0x76;
const HUGE_FILE: u32 = InodeFlags::HUGE_FILE.0;
const I_FLAGS: Range<usize> = 0x20..0x24;

/// What is to be done with a file's tree.
#[derive(Debug, Default)]
pub(super) struct Steps {
    remove: Vec<Range<u64>>,
    insert: Vec<Extent>,
    convert: Vec<(Range<u64>, State)>,
}

/// What backs a piece of a file on the device.
struct Piece {
    range: Range<u64>,
    backing: Backing,
}

impl Apply<'_> {
    /// If a number stands for another file than on the device, that file is gone: frees it.
    pub(super) fn clear_number(&mut self, ino: Ino) -> Result<()> {
        let known = self.known(ino);
        let Some(old) = known.old.clone().filter(|_| known.is_new) else {
            return Ok(());
        };
        let kind = old.disk.file_type();
        let was_dir = known.was_dir();
        let has_blocks = (was_dir || matches!(kind, Some(FileType::Regular | FileType::Symlink)))
            && !old.disk.has_inline_data()
            && !old.disk.is_fast_symlink();
        let is_odd = old.disk.file_acl().is_some() || has_blocks && !old.disk.uses_extents();
        if is_odd {
            return Err(Error::Unsupported(format!(
                "the number of file {ino}, which has more than extents, is in use again"
            )));
        }
        if has_blocks {
            let mut root = *old.disk.i_block();
            let owner = self.owner_of(ino, &old.disk);
            let allocator = self.blocks.clone();
            let mut blocks = self.file_blocks(&allocator, ino, was_dir);
            Tree::new(&owner, &mut root).remove(self.edit, &mut blocks, 0..LBLK_END)?;
        }
        if self.orphans.all().contains(&ino) {
            let inode = self.mount.orphan(ino)?;
            self.orphans.remove(self.mount, self.edit, &inode)?;
        }
        self.mount.inodes.forget(ino);
        // Perhaps nobody takes the number over, and what has links is in use to e2fsck.
        let at = self.mount.locate_inode(ino)?;
        let slot = at.offset..at.offset + old.raw.len();
        self.edit.modify(at.block, &TableBlock, &mut |block| {
            block[slot.clone()].fill(0);
            Ok(())
        })?;
        self.inodes.free(self.edit, ino, was_dir)
    }

    fn owner_of(&self, ino: Ino, disk: &DiskInode) -> Owner {
        let seed = self.mount.checksum_seed();
        Owner {
            ino,
            seed: seed.map(|seed| disk.seed(seed, ino)),
            physical: self.mount.physical_blocks(),
            cluster_ratio: 1,
        }
    }

    /// The tree that a file has on the device.
    fn old_root(&self, ino: Ino) -> [u8; I_BLOCK_BYTES] {
        let old = self.known(ino).same().map(|old| &old.disk);
        match old.filter(|disk| disk.uses_extents()) {
            Some(disk) => *disk.i_block(),
            None => Tree::empty_root(),
        }
    }

    /// Decides what to do with a file's tree, and takes the blocks that it did not have.
    ///
    /// # Errors
    /// Blocks that are in use or the file system's own; a file without extents.
    pub(super) fn take_blocks(&mut self, ino: Ino, file: &File) -> Result<Steps> {
        let mut steps = Steps::default();
        if file.ranges.is_empty() {
            return Ok(steps);
        }
        let disk = self.new_inode(ino, file)?;
        if !disk.uses_extents() || disk.file_type() == Some(FileType::Directory) {
            return Err(Error::Unsupported(format!(
                "blocks of file {ino}, which has no extents"
            )));
        }
        let pieces = self.pieces(ino, &disk)?;
        let mut zone = ZoneCheck::new(self.mount, ino);
        for (range, backing) in file.ranges.iter() {
            if let Backing::Blocks { start, .. } = backing
                && zone.hits(start, range.end - range.start)?
            {
                let what = format!("block {start} is added, which holds metadata");
                return Err(wrong(ino, &what));
            }
            steps.add(&pieces, range, backing);
        }
        for extent in &steps.insert {
            let (start, len) = (extent.pblk, extent.len.into());
            self.blocks.take_given(self.edit, Run { start, len })?;
        }
        Ok(steps)
    }

    /// What backs a file on the device.
    fn pieces(&self, ino: Ino, disk: &DiskInode) -> Result<Vec<Piece>> {
        let owner = self.owner_of(ino, disk);
        let mut root = self.old_root(ino);
        let mut pieces = Vec::new();
        Tree::new(&owner, &mut root).for_each(&*self.edit, 0..LBLK_END, &mut |extent| {
            pieces.push(Piece {
                range: extent.lblk.0.into()..extent.end(),
                backing: Backing::Blocks {
                    start: extent.pblk,
                    unwritten: extent.unwritten,
                },
            });
            Ok(())
        })?;
        Ok(pieces)
    }

    /// Changes a file's tree and writes its inode.
    pub(super) fn write_file(
        &mut self,
        ino: Ino,
        file: &File,
        steps: &Steps,
        links: u16,
    ) -> Result<()> {
        let mut disk = self.new_inode(ino, file)?;
        let is_dir = disk.file_type() == Some(FileType::Directory);
        let mut grown = 0;
        if disk.uses_extents() {
            let owner = self.owner_of(ino, &disk);
            let mut root = self.old_root(ino);
            let allocator = self.blocks.clone();
            let mut blocks = self.file_blocks(&allocator, ino, is_dir);
            steps.make(&owner, &mut root, self.edit, &mut blocks)?;
            grown = blocks.grown + steps.inserted();
            disk.set_i_block(&root);
        }
        add_blocks(self.mount, &mut disk, grown);
        self.write_inode(ino, &disk, links)
    }

    /// Makes a new directory with a first block.
    pub(super) fn make_directory(
        &mut self,
        ino: Ino,
        file: &File,
        parent: Ino,
        links: u16,
    ) -> Result<()> {
        let mut disk = self.new_inode(ino, file)?;
        if !disk.uses_extents() || !file.ranges.is_empty() {
            return Err(Error::Unsupported(format!(
                "making directory {ino}, which is not to have extents"
            )));
        }
        let owner = self.owner_of(ino, &disk);
        let mut root = Tree::empty_root();
        let allocator = self.blocks.clone();
        let mut blocks = self.file_blocks(&allocator, ino, true);
        let goal = self.goal(ino);
        let pblk = blocks.allocate_tree_block(self.edit, goal)?;
        let bytes = self.mount.new_dir_block(&first_entries(ino, parent))?;
        self.mount
            .create_dir_block(self.edit, pblk, owner.seed, &bytes)?;
        let extent = Extent {
            lblk: Lblk(0),
            len: 1,
            unwritten: false,
            pblk,
        };
        Tree::new(&owner, &mut root).insert(self.edit, &mut blocks, extent)?;
        disk.set_i_block(&root);
        disk.set_size(self.mount.block_bytes());
        add_blocks(self.mount, &mut disk, blocks.grown);
        self.write_inode(ino, &disk, links)
    }

    /// The inode as it is to be, but for its tree, the blocks that came and went, and its links.
    fn new_inode(&self, ino: Ino, file: &File) -> Result<DiskInode> {
        let size = self.mount.sb.inode_size();
        let old = self.known(ino).same();
        let mut raw = old.map_or_else(|| vec![0; size], |old| old.raw.to_vec());
        if let Some(record) = &file.raw {
            put_record(&mut raw, record, old);
        }
        let place = Place::ino(ino);
        let disk = DiskInode::parse(&raw, size).map_err(|error| Error::format(error, place))?;
        self.check_change(ino, &disk, old)?;
        Ok(disk)
    }

    fn check_change(&self, ino: Ino, disk: &DiskInode, old: Option<&Old>) -> Result<()> {
        let old = old.map(|old| &old.disk);
        if disk.file_acl() != old.and_then(DiskInode::file_acl) {
            return Err(Error::Unsupported(format!(
                "another block of attributes for file {ino}"
            )));
        }
        let maps = |disk: &DiskInode| {
            let nothing = disk.has_inline_data() || disk.is_fast_symlink() || disk.size() == 0;
            (disk.uses_extents(), nothing && !disk.uses_extents())
        };
        let Some(old) = old else { return Ok(()) };
        let ((was_tree, was_nothing), (is_tree, _)) = (maps(old), maps(disk));
        let leaves_inode = !is_tree && old.has_inline_data() != disk.has_inline_data();
        if was_tree != is_tree && !(is_tree && was_nothing) || leaves_inode {
            return Err(Error::Unsupported(format!(
                "file {ino} is mapped in another way than before"
            )));
        }
        Ok(())
    }

    /// Writes an inode, and takes its number if it is a new one.
    fn write_inode(&mut self, ino: Ino, disk: &DiskInode, links: u16) -> Result<()> {
        let mut raw = disk.encode();
        raw[LINKS].copy_from_slice(&links.to_le_bytes());
        let at = self.mount.locate_inode(ino)?;
        let place = Place::block(at.block.0).in_inode(ino).at(at.offset as u64);
        let mut disk =
            DiskInode::parse(&raw, raw.len()).map_err(|error| Error::format(error, place))?;
        if let Some(seed) = self.mount.checksum_seed() {
            disk.update_checksum(seed, ino);
        }
        self.mount.check_inode(&disk, ino, place)?;
        let raw = disk.encode();
        if self.known(ino).is_new {
            let is_dir = disk.file_type() == Some(FileType::Directory);
            self.inodes.take_given(self.edit, ino, is_dir)?;
        }
        let slot = at.offset..at.offset + raw.len();
        Ok(self.edit.modify(at.block, &TableBlock, &mut |block| {
            block[slot.clone()].copy_from_slice(&raw);
            Ok(())
        })?)
    }
}

/// Writes what a record says over an inode. What the record does not say stays: the blocks that the
/// file has, which ranges are for; the list of orphans; attributes.
fn put_record(raw: &mut [u8], record: &[u8], old: Option<&Old>) {
    let keep: Vec<(Range<usize>, Vec<u8>)> = [I_DTIME, I_BLOCKS_LO, I_BLOCKS_HIGH]
        .map(|field| (field.clone(), raw[field].to_vec()))
        .into();
    raw[I_MODE_TO_BLOCK].copy_from_slice(&record[I_MODE_TO_BLOCK]);
    let end = record.len().min(raw.len());
    raw[BEHIND_I_BLOCK..end].copy_from_slice(&record[BEHIND_I_BLOCK..end]);
    for (field, bytes) in keep {
        raw[field].copy_from_slice(&bytes);
    }
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0, |n, &byte| n << 8 | u32::from(byte))
    };
    let was_huge = old.map_or(0, |old| old.disk.flags().0) & HUGE_FILE;
    let flags = number(&record[I_FLAGS]) & !(HUGE_FILE | InodeFlags::INDEX.0) | was_huge;
    raw[I_FLAGS].copy_from_slice(&flags.to_le_bytes());
    let holds_blocks = flags & InodeFlags::EXTENTS.0 != 0;
    let mode = number(&record[..2]) as u16;
    let is_mapped = matches!(
        FileType::from_mode(mode),
        Some(FileType::Regular | FileType::Directory)
    );
    let is_inline = flags & InodeFlags::INLINE_DATA.0 != 0;
    if !holds_blocks && (is_inline || !is_mapped) {
        raw[I_BLOCK].copy_from_slice(&record[I_BLOCK]);
    }
}

impl Steps {
    /// A range is to be backed so, of a file that is backed by `pieces`.
    fn add(&mut self, pieces: &[Piece], range: Range<u64>, backing: Backing) {
        let mut at = range.start;
        let first = pieces.partition_point(|piece| piece.range.end <= at);
        for piece in &pieces[first..] {
            if piece.range.start >= range.end {
                break;
            }
            let start = piece.range.start.max(at);
            let end = piece.range.end.min(range.end);
            self.fill(at..start, &range, backing);
            self.change(start..end, piece, &range, backing);
            at = end;
        }
        self.fill(at..range.end, &range, backing);
    }

    /// `part` of `range` is a hole.
    fn fill(&mut self, part: Range<u64>, range: &Range<u64>, backing: Backing) {
        if let Backing::Blocks { start, unwritten } = backing
            && !part.is_empty()
        {
            self.insert.push(Extent {
                lblk: Lblk(part.start as u32),
                len: (part.end - part.start) as u16,
                unwritten,
                pblk: Pblk(start.0 + (part.start - range.start)),
            });
        }
    }

    /// `part` of `range` lies in `piece`.
    fn change(&mut self, part: Range<u64>, piece: &Piece, range: &Range<u64>, backing: Backing) {
        let block = |of: &Range<u64>, backing| match backing {
            Backing::Hole => None,
            Backing::Blocks { start, unwritten } => {
                Some((start.0 + (part.start - of.start), unwritten))
            }
        };
        let (was, is) = (block(&piece.range, piece.backing), block(range, backing));
        match (was, is) {
            (Some((old, was)), Some((new, unwritten))) if old == new => {
                let state = if unwritten {
                    State::Unwritten
                } else {
                    State::Written
                };
                if was != unwritten {
                    self.convert.push((part, state));
                }
            }
            _ => {
                self.remove.push(part.clone());
                self.fill(part, range, backing);
            }
        }
    }

    fn inserted(&self) -> i64 {
        self.insert.iter().map(|extent| i64::from(extent.len)).sum()
    }

    fn make(
        &self,
        owner: &Owner,
        root: &mut [u8; I_BLOCK_BYTES],
        edit: &mut dyn dioxide_journal::Edit,
        blocks: &mut dyn Blocks,
    ) -> Result<()> {
        let mut tree = Tree::new(owner, root);
        for range in &self.remove {
            tree.remove(edit, blocks, range.clone())?;
        }
        for (range, state) in &self.convert {
            tree.convert(edit, blocks, range.clone(), *state)?;
        }
        for extent in &self.insert {
            tree.insert(edit, blocks, *extent)?;
        }
        Ok(())
    }
}
