//! Blocks and inodes that somebody else chose: what a fast commit names was allocated before the
//! crash.
//!
//! Not for: choosing. While this is used nobody else allocates: a block that is claimed or pending
//! would be taken all the same.

use super::blocks::{BlockAllocator, Run};
use super::groups::{View, usable};
use super::inodes::{Change, InodeAllocator};
use super::kinds::InodeBitmap;
use super::space::Right;
use crate::mount::Mount;
use crate::{Error, Place, Result};
use dioxide_format::bitmap;
use dioxide_format::group_desc::{INODE_UNINIT, INODE_ZEROED};
use dioxide_format::types::{Group, Ino};
use dioxide_journal::Edit;

impl BlockAllocator {
    /// Makes free clusters used. Changes two metadata blocks for each group that the run touches;
    /// blocks on the device for bitmaps that are not cached.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for clusters that are in use or not the file system's; the groups before
    /// may have been changed.
    pub(crate) fn take_given(&self, edit: &mut dyn Edit, run: Run) -> Result<()> {
        for (group, bits) in self.pieces(run)? {
            let count = u64::from(bits.end - bits.start);
            let mut reservation = self.reserve(count, Right::Map)?;
            let mut state = self.slot(group).blocks.lock();
            let view = self.view(&*edit, group, &mut state)?;
            self.write(edit, group, &view, &bits, true)?;
            reservation.spend(count);
            self.space.used(count);
        }
        Ok(())
    }
}

impl InodeAllocator {
    /// Whether an inode is in use. Blocks on the device for a bitmap that is not cached.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a number that is no file's; damage.
    pub(crate) fn is_used(&self, edit: &dyn Edit, ino: Ino) -> Result<bool> {
        let (group, index) = self.place_of(ino)?;
        let mut state = self.slot(group).inodes.lock();
        let view = self.view(edit, group, &mut state)?;
        Ok(bitmap::get(view.bits(), index as usize))
    }

    /// The same, but of a group that is passed over it says yes.
    pub(crate) fn may_be_used(&self, edit: &dyn Edit, ino: Ino) -> Result<bool> {
        let (group, index) = self.place_of(ino)?;
        let mut state = self.slot(group).inodes.lock();
        let view = usable(self.view(edit, group, &mut state))?;
        Ok(view.is_none_or(|view| bitmap::get(view.bits(), index as usize)))
    }

    /// How many blocks of its table [`InodeAllocator::take_given`] of an inode makes zeros before that of the inode. Blocks on
    /// the device for a bitmap that is not cached.
    ///
    /// # Errors
    /// As [`InodeAllocator::is_used`].
    pub(crate) fn blocks_before(&self, edit: &dyn Edit, ino: Ino) -> Result<u32> {
        let (group, index) = self.place_of(ino)?;
        let mut state = self.slot(group).inodes.lock();
        let view = self.view(edit, group, &mut state)?;
        Ok(self.never_written(&view, index).count() as u32)
    }

    /// Makes a free inode used. Changes [`ALLOCATE_CREDITS`](Self::ALLOCATE_CREDITS) metadata blocks, and those
    /// of [`InodeAllocator::blocks_before`].
    ///
    /// # Errors
    /// As [`InodeAllocator::is_used`]; [`Error::Corrupt`] for one that is in use.
    pub(crate) fn take_given(&self, edit: &mut dyn Edit, ino: Ino, directory: bool) -> Result<()> {
        let (group, index) = self.place_of(ino)?;
        self.blocks.initialise(edit, group)?;
        let mut state = self.slot(group).inodes.lock();
        let view = self.view(&*edit, group, &mut state)?;
        if bitmap::get(view.bits(), index as usize) {
            return Err(wrong(ino, "taken, and in use already"));
        }
        let change = Change {
            index,
            used: true,
            directory,
        };
        self.write(edit, group, &mut state, &view, &change)?;
        // From now on a check looks at all that lies before the inode.
        self.never_written(&view, index)
            .try_for_each(|index| self.clear_table_block(edit, &view.desc, index))?;
        match self.alone(view.bits(), index) {
            true => self.clear_table_block(edit, &view.desc, index),
            false => Ok(()),
        }
    }

    /// The first inode of each block of the table that lies before that of an inode and behind all that were ever used: what is
    /// in them may be anything, unless the table was zeroed.
    fn never_written(&self, view: &View, index: u32) -> impl Iterator<Item = u32> {
        let (sb, desc) = (self.sb(), &view.desc);
        let per_block = sb.block_size() / sb.inode_size() as u32;
        let unused = match view.fresh {
            true => sb.inodes_per_group(),
            false => desc.itable_unused().min(sb.inodes_per_group()),
        };
        let is_known = !sb.features().group_csum() || self.groups().has_flag(desc, INODE_ZEROED);
        let ever_used = match is_known {
            true => index,
            false => sb.inodes_per_group() - unused,
        };
        (ever_used.next_multiple_of(per_block)..index / per_block * per_block)
            .step_by(per_block as usize)
            .filter(|first| !bitmap::get(view.bits(), *first as usize))
            .filter(|first| self.alone(view.bits(), *first))
    }

    fn place_of(&self, ino: Ino) -> Result<(Group, u32)> {
        let location = self.sb().inode_location(ino);
        let location = location.filter(|_| ino >= self.sb().first_ino() || ino == Ino::ROOT);
        location.ok_or_else(|| wrong(ino, "the number of no file"))
    }
}

impl Mount {
    /// As [`InodeAllocator::may_be_used`], where nothing was changed as well.
    pub(crate) fn may_be_used(&self, ino: Ino) -> Result<bool> {
        if let Some(writer) = self.started_writer() {
            return writer.inodes.may_be_used(&self.reader(), ino);
        }
        let sb = &self.sb;
        let (group, index) = sb
            .inode_location(ino)
            .ok_or_else(|| wrong(ino, "the number of no file"))?;
        let desc = &self.group_desc(group)?;
        if sb.features().group_csum() && desc.flags() & INODE_UNINIT != 0 {
            return Ok(false);
        }
        let bits = self
            .reader()
            .read(desc.inode_bitmap(), &InodeBitmap { sb, desc });
        match bits.map_err(Error::from) {
            Err(Error::Corrupt { .. } | Error::Checksum { .. }) => Ok(true),
            bits => Ok(bitmap::get(&bits?, index as usize)),
        }
    }
}

fn wrong(ino: Ino, what: &str) -> Error {
    Error::Corrupt {
        structure: "inode bitmap",
        place: Place::ino(ino),
        what: what.into(),
    }
}
