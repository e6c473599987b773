//! Names that go, and files that go with their last name.
//!
//! A file that nobody has open and that has little goes in the transaction that takes its name. Any other is an
//! orphan until it is gone: until its last user closes it, or its blocks are freed. With requests in flight on it that comes once
//! they were reaped: whoever waits for a queue then, drops one, syncs or closes the file system frees it. So it is with a file whose
//! last user goes in a panic.

use super::create::remove_subdir;
use super::edit::REMOVE_NAME_CREDITS;
use crate::alloc::{BlockAllocator, InodeAllocator};
use crate::inode::{End, Inode};
use crate::map::tree::Progress;
use crate::mount::Mount;
use crate::sync::rwsem::Exclusive;
use crate::txn::Writer;
use crate::txn::file::Credits;
use crate::txn::inode::INODE_CREDITS;
use crate::txn::orphan::ORPHAN_CREDITS;
use crate::{Error, FileType, Result};
use dioxide_format::features::{Incompat, RoCompat};
use dioxide_format::inode::Inode as DiskInode;
use dioxide_journal::journal::Handle;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// What becomes of a file that lost a name.
pub(super) enum Fate<'a> {
    /// It has others, or somebody has it open.
    Stays,
    /// It ended, and waits to be freed: an orphan.
    Orphan,
    /// It went in the same transaction; nobody was in it meanwhile.
    Gone(#[allow(dead_code)] Option<Exclusive<'a>>),
}

/// Files that ended with requests in flight.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Deferred {
    /// Whether there are some; asked by every wait for completions.
    some: AtomicBool,
    files: Mutex<Vec<Arc<Inode>>>,
}

impl Deferred {
    fn put(&self, inode: Arc<Inode>) {
        let mut files = self.files.lock();
        files.push(inode);
        self.some.store(true, Ordering::Relaxed);
    }

    fn take(&self) -> Vec<Arc<Inode>> {
        let mut files = self.files.lock();
        self.some.store(false, Ordering::Relaxed);
        std::mem::take(&mut *files)
    }

    #[inline]
    fn may_have_some(&self) -> bool {
        self.some.load(Ordering::Relaxed)
    }
}

/// A file that is about to lose a name, and what was found out about it before the transaction.
pub(super) struct Victim<'a> {
    pub(super) inode: &'a Arc<Inode>,
    /// Held if it may go at once.
    alone: Option<Exclusive<'a>>,
    at_once: bool,
    /// [`Mount::emptying_credits`], if it may go at once.
    credits: u32,
}

/// Whether flags let a name of `inode` be taken out of a directory.
///
/// # Errors
/// [`Error::NotPermitted`].
pub(super) fn check_removable(dir: &Inode, inode: &Inode, text: impl Fn() -> String) -> Result<()> {
    match dir.is_append_only() || inode.is_immutable() || inode.is_append_only() {
        true => Err(Error::NotPermitted(format!(
            "{}: it or its directory is immutable or append-only",
            text()
        ))),
        false => Ok(()),
    }
}

pub(super) fn more_names_than_links(inode: &Inode) -> Error {
    inode.corrupt("inode", "it has more names than links".into())
}

impl Mount {
    /// Removes a name of anything but a directory. Blocks.
    ///
    /// # Errors
    /// Those that `crate::Fs::remove_file` names. Nothing has changed then.
    pub(crate) fn unlink(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        let is_directory = || Error::IsADirectory(String::from_utf8_lossy(name).into_owned());
        if matches!(name, b"" | b"." | b"..") {
            return Err(is_directory());
        }
        let writer = self.writer()?;
        let names = dir.names.write();
        let inode = self.removable(dir, name)?;
        if inode.file_type() == FileType::Directory {
            return Err(is_directory());
        }
        let removed = self.remove(writer, dir, name, &inode);
        drop(names);
        self.settle(writer, &inode, removed?);
        self.inodes.let_go(&inode);
        Ok(())
    }

    /// Removes an empty directory. Blocks.
    ///
    /// # Errors
    /// Those that `crate::Fs::remove_dir` names. Nothing has changed then.
    pub(crate) fn rmdir(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        let text = || String::from_utf8_lossy(name).into_owned();
        match name {
            b"" => return Err(Error::Busy("the root directory")),
            b"." => return Err(Error::Invalid("removing '.'".into())),
            b".." => return Err(Error::NotEmpty("..".into())),
            _ => {}
        }
        let writer = self.writer()?;
        let names = dir.names.write();
        let inode = self.removable(dir, name)?;
        if inode.file_type() != FileType::Directory {
            return Err(Error::NotADirectory(text()));
        }
        self.check_is_in(dir, name, &inode)?;
        // Nothing is made in it from here on: it has no links then.
        let its_names = self.names_below(dir, &inode)?;
        if !self.is_empty_dir(&inode)? {
            return Err(Error::NotEmpty(text()));
        }
        let removed = self.remove(writer, dir, name, &inode);
        drop((its_names, names));
        self.settle(writer, &inode, removed?);
        Ok(())
    }

    /// What a name stands for that may be removed. The caller has the directory's `names`.
    pub(super) fn removable(&self, dir: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
        self.check_dir_holds(dir)?;
        let inode = self.child_locked(dir, name)?;
        self.check_dir_changes(dir)?;
        let text = || String::from_utf8_lossy(name).into_owned();
        check_removable(dir, &inode, text)?;
        Ok(inode)
    }

    fn remove<'a>(
        &self,
        writer: &Writer,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &'a Arc<Inode>,
    ) -> Result<Fate<'a>> {
        let mut victim = self.victim(writer, inode)?;
        let credits = REMOVE_NAME_CREDITS + INODE_CREDITS + self.victim_credits(&victim);
        let mut handle = writer.begin(credits)?;
        if !self.remove_name(&mut handle, dir, name)? {
            return Err(dir.corrupt("directory", "a name is gone that was there".into()));
        }
        self.dentries.remove(dir, name);
        self.ways.left(inode);
        let is_dir = inode.file_type() == FileType::Directory;
        let fate = self
            .names_changed(&mut handle, dir, &mut |disk| {
                if is_dir {
                    remove_subdir(disk);
                }
            })
            .and_then(|()| self.lose_link(writer, &mut handle, &mut victim))
            .map_err(|error| self.fail(error))?;
        self.finish(handle, dir)?;
        Ok(fate)
    }

    /// Frees what waits to be freed. Its name is gone, whatever comes of that.
    pub(super) fn settle(&self, writer: &Writer, inode: &Arc<Inode>, fate: Fate<'_>) {
        match fate {
            Fate::Orphan => self.freed(inode, self.delete_or_defer(writer, inode)),
            Fate::Stays | Fate::Gone(_) => {}
        }
    }

    /// What came of freeing a removed file.
    fn freed(&self, inode: &Inode, deleted: Result<()>) {
        if let Err(error) = self.judged(deleted) {
            tracing::warn!(ino = inode.ino.0, %error, "a removed file waits for the next mount to be freed");
        }
    }

    /// Looks at a file that is about to lose a name. If it ends with that, the way to its blocks is whole, and its attributes are.
    ///
    /// # Errors
    /// Damage in its map or its attributes; [`Error::OnlyRead`] if it ends, and its blocks cannot be freed.
    pub(super) fn victim<'a>(&self, writer: &Writer, inode: &'a Arc<Inode>) -> Result<Victim<'a>> {
        let links = inode.node().disk.links_count();
        if links == 0 {
            return Err(more_names_than_links(inode));
        }
        let is_last = links <= 1 || inode.file_type() == FileType::Directory;
        if is_last
            && let Err(error) = self.check_map_changes(inode)
            && self.has_mapped(inode)?
        {
            return Err(error);
        }
        let has_attributes = is_last && self.has_attributes(inode);
        if has_attributes {
            self.check_xattrs(inode)?;
        }
        let (is_open, was_open) = inode.opens();
        // Requests of a handle that is closed may be under way still. Who would have to wait for them
        // does that later, without the locks of the directory.
        let alone = match is_last && !is_open && was_open {
            true => inode.rwsem.try_exclusive(),
            false => None,
        };
        let alone = alone.filter(|_| inode.in_flight.is_quiet(&self.in_flight));
        let quiet = alone.is_some() || !was_open;
        let credits = match is_last && !is_open {
            true => self.emptying_credits(inode)?,
            false => 0,
        };
        if credits > 0 {
            self.check_removal(writer, inode, credits)?;
        }
        // Who has been made shorter only in part is an orphan already.
        let may_go = !has_attributes && !inode.is_cut_short();
        let at_once = is_last && !is_open && quiet && may_go;
        Ok(Victim {
            inode,
            alone,
            at_once,
            credits: if at_once { credits } else { 0 },
        })
    }

    /// Whether a file that ended has no requests under way.
    fn is_quiet(&self, victim: &Victim<'_>) -> bool {
        let (_, was_open) = victim.inode.opens();
        let quiet = || victim.inode.in_flight.is_quiet(&self.in_flight);
        !was_open || victim.alone.is_some() && quiet()
    }

    /// Whether it has attributes that are more than a part of the inode.
    fn has_attributes(&self, inode: &Inode) -> bool {
        let ea_inodes = self.sb.features().incompat.contains(Incompat::EA_INODE);
        inode.node().disk.file_acl().is_some() || ea_inodes
    }

    /// Metadata blocks that [`Mount::lose_link`] changes at most.
    pub(super) fn victim_credits(&self, victim: &Victim<'_>) -> u32 {
        victim.credits + INODE_CREDITS + ORPHAN_CREDITS + InodeAllocator::FREE_CREDITS
    }

    /// Metadata blocks that [`Mount::empties`] changes at most.
    ///
    /// # Errors
    /// Damage in the root of its map.
    pub(crate) fn emptying_credits(&self, inode: &Inode) -> Result<u32> {
        Ok(match self.has_mapped(inode)? {
            true => Credits::remove(self, inode).max(4 * BlockAllocator::FREE_CREDITS_PER_GROUP),
            false => 0,
        })
    }

    /// One link less, and what comes of that.
    pub(super) fn lose_link<'a>(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        victim: &mut Victim<'a>,
    ) -> Result<Fate<'a>> {
        let inode = victim.inode;
        let now = self.now();
        let lock = inode.map.lock();
        let before = inode.node().disk.links_count();
        if before == 0 {
            return Err(more_names_than_links(inode));
        }
        let links = match inode.file_type() {
            FileType::Directory => 0,
            _ => before - 1,
        };
        inode.changed_in(handle.tid(), true);
        if links > 0 {
            self.change_inode(handle, inode, &lock, &mut |disk| {
                disk.set_links_count(links);
                disk.set_ctime(now);
            })?;
            return Ok(Fate::Stays);
        }
        // Somebody may have opened it since it was looked at, given it attributes or blocks, and closed it again with requests
        // under way.
        let at_once = victim.at_once
            && !self.has_attributes(inode)
            && inode.end_if_closed()
            && self.is_quiet(victim);
        if at_once && self.empties(writer, handle, inode, &lock, victim.credits)? {
            self.write_ended(handle, inode, &lock)?;
            drop(lock);
            self.free_inode(writer, handle, inode)?;
            return Ok(Fate::Gone(victim.alone.take()));
        }
        self.change_inode(handle, inode, &lock, &mut |disk| {
            disk.set_links_count(0);
            disk.set_ctime(now);
            if inode.file_type() == FileType::Directory {
                disk.set_size(0);
            }
        })?;
        drop(lock);
        writer.orphans.add(self, handle, inode)?;
        // Not before: whoever closes it last takes it from the orphans.
        Ok(match inode.unlinked() {
            End::Now => Fate::Orphan,
            End::Later => Fate::Stays,
        })
    }

    /// Frees a file's blocks if that fits into the transaction, else some of them, and none if it takes more than
    /// `most` credits. Whether it has none now.
    pub(crate) fn empties(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        inode: &Inode,
        lock: &crate::map::MapGuard<'_>,
        most: u32,
    ) -> Result<bool> {
        let credits = self.emptying_credits(inode)?;
        if credits == 0 || credits > most {
            return Ok(credits == 0);
        }
        let all = 0..self.map_end(inode);
        let progress = self.change_map(
            writer,
            handle,
            inode,
            lock,
            |map| map.remove(all, credits),
            &mut |_, _| {},
        )?;
        Ok(matches!(progress, Progress::Done))
    }

    /// Writes an inode that has ended, for the last time.
    pub(crate) fn write_ended(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        lock: &crate::map::MapGuard<'_>,
    ) -> Result<()> {
        let now = self.now_ns().div_euclid(1_000_000_000) as u32;
        let huge_file = self.sb.features().ro_compat.contains(RoCompat::HUGE_FILE);
        let left = inode.node().disk.sectors(huge_file, self.sb.block_size());
        // Values in inodes of their own are counted as long as there is an owner.
        if left > 0 && !self.has_value_inodes() {
            let what =
                format!("i_blocks counts {left} sectors more than it has: blocks may be lost");
            self.damage.pass_over(&inode.corrupt("inode", what));
        }
        self.end_inode(handle, inode, lock, &mut |disk: &mut DiskInode| {
            disk.set_links_count(0);
            disk.set_size(0);
            disk.set_dtime(now.max(1));
            disk.set_file_acl(None);
        })?;
        inode.give_back();
        Ok(())
    }

    /// Gives an inode's number back. It was written for the last time.
    pub(crate) fn free_inode(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        inode: &Inode,
    ) -> Result<()> {
        let was_dir = inode.file_type() == FileType::Directory;
        match was_dir {
            true => self.inodes.forget(inode.ino),
            false => self.inodes.forget_file(inode.ino),
        }
        writer.inodes.free(handle, inode.ino, was_dir)
    }

    /// Frees an orphan that has ended; later, if requests are in flight on it: who has to reap them may be this thread, or may
    /// wait for it.
    pub(crate) fn delete_or_defer(&self, writer: &Writer, inode: &Arc<Inode>) -> Result<()> {
        // Nobody opens it any more: without its lock too it stays quiet.
        let (_, was_open) = inode.opens();
        if was_open && !inode.in_flight.is_quiet(&self.in_flight) {
            self.deferred.put(inode.clone());
            return Ok(());
        }
        let _ending = writer.ending();
        self.delete(writer, inode)
    }

    /// Frees what was removed and closed while it had requests in flight, if these were reaped since. To be called where a
    /// thread may wait; does nothing, at no cost, where there is no such file.
    #[inline]
    pub(crate) fn free_deferred(&self) {
        if self.deferred.may_have_some() {
            self.free_deferred_now();
        }
    }

    #[cold]
    fn free_deferred_now(&self) {
        // What is dropped in a panic changes nothing: if that panicked too, the process would end.
        if self.why_read_only().is_some() || thread::panicking() {
            return;
        }
        let deleted = self.delete_deferred();
        if let Err(error) = self.judged(deleted) {
            tracing::warn!(%error, "a removed file waits for the next mount to be freed");
        }
    }

    /// Frees those that could not be freed when they ended, but for those that have requests in flight still.
    pub(crate) fn delete_deferred(&self) -> Result<()> {
        let deferred = self.deferred.take();
        let mut deleted = Ok(());
        for inode in deferred {
            let writer = self.writer();
            deleted = deleted.and(writer.and_then(|writer| self.delete_or_defer(writer, &inode)));
        }
        deleted
    }

    /// Somebody closes a file. The last one frees it, if it has no name; in a panic it is left to others, as is one with requests in
    /// flight.
    pub(crate) fn closed(&self, inode: &Arc<Inode>) {
        if !inode.close() || self.why_read_only().is_some() {
            return;
        }
        if thread::panicking() {
            return self.deferred.put(inode.clone());
        }
        let deleted = self
            .writer()
            .and_then(|writer| self.delete_or_defer(writer, inode));
        self.freed(inode, deleted);
    }

    /// Names in a directory have changed: its times, and what `also` changes.
    pub(crate) fn names_changed(
        &self,
        handle: &mut Handle<'_>,
        dir: &Inode,
        also: &mut dyn FnMut(&mut DiskInode),
    ) -> Result<()> {
        let now = self.now();
        let lock = dir.map.lock();
        self.change_inode(handle, dir, &lock, &mut |disk| {
            disk.set_mtime(now);
            disk.set_ctime(now);
            also(disk);
        })?;
        dir.changed_in(handle.tid(), true);
        Ok(())
    }
}
