//! Another name for a file.

use super::create::check_new_name;
use super::dir::block::Room;
use super::edit::{NewEntry, REMOVE_NAME_CREDITS};
use crate::inode::Inode;
use crate::map::MapGuard;
use crate::mount::Mount;
use crate::txn::Writer;
use crate::txn::inode::INODE_CREDITS;
use crate::txn::orphan::ORPHAN_CREDITS;
use crate::{Error, FileType, Result};
use dioxide_format::inode::{InodeFlags, LINK_MAX};
use dioxide_journal::journal::Handle;
use std::sync::Arc;

impl Mount {
    /// Gives a file another name, or a first one to a file that was made without. Blocks.
    ///
    /// # Errors
    /// Those that `crate::Fs::hard_link` names. Nothing has changed then.
    pub(crate) fn link(&self, inode: &Arc<Inode>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        check_new_name(name)?;
        let _names = dir.names.write();
        self.check_dir_holds(dir)?;
        let text = || String::from_utf8_lossy(name).into_owned();
        let Err(mut room) = self.find_name_or_room(dir, name)? else {
            return Err(Error::Exists(text()));
        };
        let writer = self.writer()?;
        self.check_dir_grows(dir)?;
        if inode.file_type() == FileType::Directory {
            return Err(Error::NotPermitted(format!(
                "{}: a link to a directory",
                text()
            )));
        }
        if inode.is_immutable() || inode.is_append_only() {
            return Err(Error::NotPermitted(format!(
                "inode {} is immutable or append-only",
                inode.ino
            )));
        }
        check_more_links(inode, &inode.map.lock())?;
        self.check_project_of(inode, dir, text)?;
        self.with_space(writer, || {
            // Once: what is undone leaves another place.
            self.link_once(writer, inode, dir, name, room.take())
        })
    }

    /// In a directory that hands its project on, all files are of it.
    pub(super) fn check_project_of(
        &self,
        inode: &Inode,
        dir: &Inode,
        name: impl FnOnce() -> String,
    ) -> Result<()> {
        let hands_on = dir.flags().contains(InodeFlags::PROJINHERIT);
        match hands_on && self.project_of(&dir.node().disk) != self.project_of(&inode.node().disk) {
            true => Err(Error::CrossProject(name())),
            false => Ok(()),
        }
    }

    fn link_once(
        &self,
        writer: &Writer,
        inode: &Arc<Inode>,
        dir: &Arc<Inode>,
        name: &[u8],
        room: Option<Room>,
    ) -> Result<()> {
        let credits = self.add_name_credits(dir) + REMOVE_NAME_CREDITS;
        let mut handle = writer.begin(credits + 2 * INODE_CREDITS + ORPHAN_CREDITS)?;
        let entry = NewEntry {
            name,
            ino: inode.ino,
            file_type: self.disk_type(inode)?,
        };
        self.add_name_at(writer, &mut handle, dir, &entry, room)?;
        // Not before: who sees the link may take away another, or give the file a second name, and it is not taken back.
        let is_first = match self.add_link(&mut handle, inode) {
            Ok(is_first) => is_first,
            Err(error) => {
                let removed = self.remove_name(&mut handle, dir, name);
                return Err(removed.err().map_or(error, |fatal| self.fail(fatal)));
            }
        };
        let rest = match is_first {
            true => writer.orphans.remove_if_done(self, &mut handle, inode),
            false => Ok(()),
        };
        rest.and_then(|()| self.names_changed(&mut handle, dir, &mut |_| {}))
            .map_err(|error| self.fail(error))?;
        self.dentries.change(dir, name, inode.ino);
        self.finish(handle, dir)
    }

    /// Counts one more link. True if it is the first one of a file that was made without a name.
    fn add_link(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<bool> {
        // Whoever takes away the last link looks at the count under the same lock.
        let lock = inode.map.lock();
        let links = check_more_links(inode, &lock)?;
        let now = self.now();
        self.change_inode(handle, inode, &lock, &mut |disk| {
            disk.set_links_count(links + 1);
            disk.set_ctime(now);
        })?;
        // While the lock is held: who syncs the file may have found its times taken.
        inode.changed_in(handle.tid(), true);
        let is_first = inode.is_unnamed();
        if is_first {
            inode.named();
        }
        Ok(is_first)
    }

    /// What an entry says that an inode is.
    pub(super) fn disk_type(&self, inode: &Inode) -> Result<dioxide_format::inode::FileType> {
        let file_type = inode.node().disk.file_type();
        file_type.ok_or_else(|| inode.corrupt("inode", "its mode names no type".into()))
    }
}

/// How many links a file has, which may have one more.
///
/// # Errors
/// [`Error::NotFound`] if it was removed; [`Error::TooManyLinks`].
fn check_more_links(inode: &Inode, _lock: &MapGuard<'_>) -> Result<u16> {
    let links = inode.node().disk.links_count();
    if inode.has_ended() || links == 0 && !inode.is_unnamed() {
        return Err(Error::NotFound(format!("inode {}, removed", inode.ino)));
    }
    match links >= LINK_MAX {
        true => Err(Error::TooManyLinks(format!("inode {}", inode.ino))),
        false => Ok(links),
    }
}
