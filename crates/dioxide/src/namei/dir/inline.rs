//! Directories that lie in their inode: entries in `i_block` behind the number of the parent, and in
//! the attribute `system.data`.
//!
//! For: reading them, changing them where they are, making an empty one. Not for: making
//! `system.data` longer: a directory that has no room becomes one with a block, as if it had none.
//!
//! Invariants: both parts are whole chains. `.` and `..` are not stored.

use crate::inode::{Inode, Node};
use crate::mount::Mount;
use crate::namei::dir::Visitor;
use crate::namei::symlink::system_data;
use crate::{Error, Result};
use dioxide_format::dir;
use dioxide_format::inline_data::{self, InlineDir, PARENT_SIZE, SystemData};
use dioxide_format::inode::{FileType, Inode as DiskInode, InodeFlags};
use dioxide_format::types::Ino;
use dioxide_journal::Edit;

/// Bytes of a new inline directory: all of `i_block`.
pub(in crate::namei) const EMPTY_BYTES: u64 = 60;
/// Where the entries of `i_block` come to lie in a block, and what that adds to their place in the
/// inode: `.` and `..` come before them, where the inode has the parent.
pub(in crate::namei) const IN_BLOCK: usize = 24;
pub(super) const SHIFT: u64 = (IN_BLOCK - PARENT_SIZE) as u64;

/// A change of a chain of entries; whether it was one.
pub(in crate::namei) type ChangeChain<'a> =
    dyn FnMut(&mut [u8]) -> dioxide_format::Result<bool> + 'a;

impl Mount {
    /// As [`Mount::for_each_entry`].
    pub(super) fn for_each_inline(
        &self,
        dir: &Inode,
        node: &Node,
        visit: &mut Visitor<'_>,
    ) -> Result<()> {
        let format = |error| Error::format(error, dir.place());
        let inline = self.inline_dir(node, dir)?;
        for entry in self.dots(dir.ino, inline.parent) {
            if visit(&entry).is_break() {
                return Ok(());
            }
        }
        for entry in inline.entries(&self.dir_format) {
            if visit(&entry.map_err(format)?).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// As [`Mount::find_entry`].
    pub(super) fn find_inline(&self, dir: &Inode, node: &Node, name: &[u8]) -> Result<Option<Ino>> {
        let mut found = None;
        self.for_each_inline(dir, node, &mut |entry| {
            if entry.name != name {
                return std::ops::ControlFlow::Continue(());
            }
            found = Some(entry.ino);
            std::ops::ControlFlow::Break(())
        })?;
        Ok(found)
    }

    pub(super) fn inline_dir<'n>(&self, node: &'n Node, dir: &Inode) -> Result<InlineDir<'n>> {
        let data = system_data(node, dir)?;
        InlineDir::parse(&node.disk, data, &self.dir_format)
            .map_err(|error| Error::format(error, dir.place()))
    }

    /// `.` and `..` of a directory that does not store them as entries.
    pub(super) fn dots(&self, ino: Ino, parent: Ino) -> [dir::DirEntry<'static>; 2] {
        let has_type = self.dir_format.filetype;
        let entry = |name: &'static [u8], ino| dir::DirEntry {
            offset: 0,
            rec_len: dir::min_rec_len(name.len()),
            ino,
            file_type: has_type.then_some(FileType::Directory),
            type_byte: if has_type {
                FileType::Directory.dirent_code()
            } else {
                0
            },
            name,
        };
        [entry(b".", ino), entry(b"..", parent)]
    }

    /// Changes one of the two chains of an inline directory: the first that `change` takes. One credit.
    ///
    /// # Errors
    /// Damage, with nothing changed; the journal's.
    pub(in crate::namei) fn change_inline(
        &self,
        edit: &mut dyn Edit,
        dir: &Inode,
        change: &mut ChangeChain<'_>,
    ) -> Result<bool> {
        let lock = dir.map.lock();
        let node = dir.node();
        let Some(changed) = self
            .changed_inline(&node, change)
            .map_err(|e| Error::format(e, dir.place()))?
        else {
            return Ok(false);
        };
        self.change_inode(edit, dir, &lock, &mut |disk| {
            *disk = with_times_of(&changed, disk);
        })?;
        Ok(true)
    }

    fn changed_inline(
        &self,
        node: &Node,
        change: &mut ChangeChain<'_>,
    ) -> dioxide_format::Result<Option<DiskInode>> {
        let mut head = *node.disk.i_block();
        dir::validate(&head[PARENT_SIZE..], &self.dir_format)?;
        let mut raw = node.raw.to_vec();
        let data = SystemData::find(&node.disk, &raw)?;
        if let Some(data) = &data {
            dir::validate(&raw[data.value.clone()], &self.dir_format)?;
        }
        if change(&mut head[PARENT_SIZE..])? {
            let mut disk = node.disk.clone();
            disk.set_i_block(&head);
            return Ok(Some(disk));
        }
        let Some(data) = data else { return Ok(None) };
        let mut value = raw[data.value.clone()].to_vec();
        if !change(&mut value)? {
            return Ok(None);
        }
        data.replace(&mut raw, &value);
        DiskInode::parse(&raw, raw.len()).map(Some)
    }

    /// Has an inline directory lead to another parent. One credit.
    pub(in crate::namei) fn set_inline_parent(
        &self,
        edit: &mut dyn Edit,
        dir: &Inode,
        parent: Ino,
    ) -> Result<()> {
        let lock = dir.map.lock();
        self.change_inode(edit, dir, &lock, &mut |disk| {
            let mut head = *disk.i_block();
            head[..PARENT_SIZE].copy_from_slice(&parent.0.to_le_bytes());
            disk.set_i_block(&head);
        })
    }

    /// Makes a new directory an inline one, if its inode has room. One credit.
    pub(in crate::namei) fn init_inline(
        &self,
        edit: &mut dyn Edit,
        dir: &Inode,
        parent: Ino,
    ) -> Result<bool> {
        let lock = dir.map.lock();
        let node = dir.node();
        let format = |error| Error::format(error, dir.place());
        let raw = inline_data::with_system_data(&node.disk, &node.raw).map_err(format)?;
        let Some(raw) = raw else { return Ok(false) };
        let mut made = DiskInode::parse(&raw, raw.len()).map_err(format)?;
        let mut head = [0; EMPTY_BYTES as usize];
        head[..PARENT_SIZE].copy_from_slice(&parent.0.to_le_bytes());
        // One unused entry.
        head[PARENT_SIZE + 4] = (head.len() - PARENT_SIZE) as u8;
        made.set_i_block(&head);
        made.set_size(EMPTY_BYTES);
        let flags = &mut made.disk_mut().i_flags;
        *flags &= !InodeFlags::EXTENTS.0;
        *flags |= InodeFlags::INLINE_DATA.0;
        self.change_inode(edit, dir, &lock, &mut |disk| {
            *disk = with_times_of(&made, disk);
        })?;
        dir.set_size(EMPTY_BYTES);
        Ok(true)
    }

    /// The first block of a directory that leaves its inode, and the inode without it: no map yet.
    ///
    /// # Errors
    /// Damage.
    pub(in crate::namei) fn moved_out(&self, dir: &Inode) -> Result<(Vec<u8>, DiskInode)> {
        let node = dir.node();
        let parent = self.inline_dir(&node, dir)?.parent;
        let moved = || {
            let head = &node.disk.i_block()[PARENT_SIZE..];
            let data = SystemData::find(&node.disk, &node.raw)?;
            let data = data.map_or(&[][..], |data| &node.raw[data.value]);
            dir::validate(head, &self.dir_format)?;
            dir::validate(data, &self.dir_format)?;
            let mut block = vec![0; self.dir_format.block_size as usize];
            dir::fill(&mut block, &self.dir_format, self.dots(dir.ino, parent))?;
            // Entries keep their places, so that who lists the directory finds where it was.
            block[IN_BLOCK - 8..IN_BLOCK - 6].copy_from_slice(&12u16.to_le_bytes());
            let used = IN_BLOCK + head.len() + data.len();
            block[IN_BLOCK..IN_BLOCK + head.len()].copy_from_slice(head);
            block[IN_BLOCK + head.len()..used].copy_from_slice(data);
            let room = dir::room(&self.dir_format);
            dir::stretch_last(&mut block[..room], used, &self.dir_format)?;
            let raw = inline_data::without_system_data(&node.disk, &node.raw)?;
            Ok((block, DiskInode::parse(&raw, raw.len())?))
        };
        moved().map_err(|error| Error::format(error, dir.place()))
    }
}

/// An inode that was made from what was in memory, with the times of overwrites that
/// [`Mount::change_inode`] adds.
pub(in crate::namei) fn with_times_of(made: &DiskInode, now: &DiskInode) -> DiskInode {
    let mut made = made.clone();
    made.set_mtime(now.mtime());
    made.set_ctime(now.ctime());
    made
}
