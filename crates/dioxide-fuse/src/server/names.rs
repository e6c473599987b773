//! Names: looked up, made, moved and removed.

use super::attributes::decode_device;
use super::handle::is_refused;
use super::{Caller, Entry, Live, Opened, Server};
use crate::stats::Op;
use crate::{Errno, Result};
use dioxide::{Node, RenameMode, Special};
use std::sync::Arc;
use std::time::Duration;

/// A name in a directory, which the kernel knows by its node id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At<'a> {
    /// The directory.
    pub dir: u64,
    /// The name in it.
    pub name: &'a [u8],
}

impl Server {
    /// `lookup`. `.` is the file of a file handle, of any kind.
    ///
    /// # Errors
    /// As [`Node::lookup`]; `ESTALE` for a handle of what is gone.
    pub fn lookup(&self, at: At<'_>) -> Result<Entry> {
        let _timed = self.requests.time(Op::Lookup);
        let live = self.live()?;
        if at.name == b"." {
            let node = live.nodes.find(&live.fs, at.dir)?;
            return Ok(self.tell(&live, &node));
        }
        let dir = live.node(at.dir)?;
        let tell = |metadata| self.tell_of(&live, metadata);
        if let Some(told) = dir.lookup_metadata(at.name, tell)? {
            return Ok(told);
        }
        let node = dir.lookup(at.name)?;
        Ok(self.tell(&live, &Arc::new(node)))
    }

    /// How long the kernel may go on believing that a name is not there.
    pub fn absent_valid(&self) -> Duration {
        self.options.entry_timeout
    }

    fn make(&self, dir: u64, make: impl FnOnce(&Node) -> dioxide::Result<Node>) -> Result<Entry> {
        let live = self.live()?;
        let node = make(&*live.node(dir)?)?;
        Ok(self.tell(&live, &Arc::new(node)))
    }

    /// `mknod`: of a regular file too.
    ///
    /// # Errors
    /// As [`Node::mknod`]; `EINVAL` for another kind of file.
    pub fn mknod(
        &self,
        caller: Caller,
        at: At<'_>,
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Result<Entry> {
        let _timed = self.requests.time(Op::Mknod);
        let new = self.new_file(caller, mode, umask);
        let (major, minor) = decode_device(rdev);
        let special = match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => None,
            libc::S_IFIFO => Some(Special::Fifo),
            libc::S_IFSOCK => Some(Special::Socket),
            libc::S_IFCHR => Some(Special::CharDevice(major, minor)),
            libc::S_IFBLK => Some(Special::BlockDevice(major, minor)),
            _ => return Err(Errno::INVAL),
        };
        self.make(at.dir, |dir| match special {
            None => dir.create(at.name, &new),
            Some(special) => dir.mknod(at.name, special, &new),
        })
    }

    /// `mkdir`.
    ///
    /// # Errors
    /// As [`Node::create_dir`].
    pub fn mkdir(&self, caller: Caller, at: At<'_>, mode: u32, umask: u32) -> Result<Entry> {
        let _timed = self.requests.time(Op::Mkdir);
        let new = self.new_file(caller, mode, umask);
        self.make(at.dir, |dir| dir.create_dir(at.name, &new))
    }

    /// `symlink`.
    ///
    /// # Errors
    /// As [`Node::symlink`].
    pub fn symlink(&self, caller: Caller, at: At<'_>, target: &[u8]) -> Result<Entry> {
        let _timed = self.requests.time(Op::Symlink);
        let new = self.new_file(caller, 0o777, 0);
        self.make(at.dir, |dir| dir.symlink(target, at.name, &new))
    }

    /// `link`: another name for the file `id`.
    ///
    /// # Errors
    /// As [`Node::link`].
    pub fn link(&self, id: u64, at: At<'_>) -> Result<Entry> {
        let _timed = self.requests.time(Op::Link);
        let live = self.live()?;
        let node = live.node(id)?;
        node.link(&*live.node(at.dir)?, at.name)?;
        live.nodes.release(&node);
        Ok(self.tell(&live, &node))
    }

    /// `create`: makes a regular file and opens it; opens one that is there, unless the flags have `O_EXCL`.
    ///
    /// # Errors
    /// As [`Node::create`] and [`Server::open`].
    pub fn create(
        &self,
        caller: Caller,
        at: At<'_>,
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Result<(Entry, Opened)> {
        let _timed = self.requests.time(Op::Create);
        let new = self.new_file(caller, mode, umask);
        let live = self.live()?;
        let dir = live.node(at.dir)?;
        if is_refused(&dir.metadata(), flags) && dir.lookup(at.name).is_err() {
            return Err(Errno::OPNOTSUPP);
        }
        let node = match dir.create(at.name, &new).map_err(Errno::from) {
            Err(Errno::EXIST) if flags & libc::O_EXCL == 0 => dir.lookup(at.name)?,
            made => made?,
        };
        self.tell_open(&live, caller, &Arc::new(node), flags)
    }

    /// `O_TMPFILE`: makes a regular file without a name, and opens it.
    ///
    /// # Errors
    /// As [`Node::create_unnamed`] and [`Server::open`].
    pub fn create_unnamed(
        &self,
        caller: Caller,
        dir: u64,
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Result<(Entry, Opened)> {
        let _timed = self.requests.time(Op::Tmpfile);
        let new = self.new_file(caller, mode, umask);
        let live = self.live()?;
        let dir = live.node(dir)?;
        if is_refused(&dir.metadata(), flags) {
            return Err(Errno::OPNOTSUPP);
        }
        let node = Arc::new(dir.create_unnamed(&new)?);
        let told = self.tell_open(&live, caller, &node, flags)?;
        live.nodes.hold(&node);
        Ok(told)
    }

    fn tell_open(
        &self,
        live: &Live,
        caller: Caller,
        node: &Arc<Node>,
        flags: i32,
    ) -> Result<(Entry, Opened)> {
        let (handle, opened) = self.opened(caller, node.clone(), flags)?;
        let opened = Opened {
            handle: live.files.insert(handle),
            ..opened
        };
        Ok((self.tell(live, node), opened))
    }

    /// `unlink`.
    ///
    /// # Errors
    /// As [`Node::remove_file`].
    pub fn unlink(&self, at: At<'_>) -> Result {
        let _timed = self.requests.time(Op::Unlink);
        self.remove(at, Node::remove_file)
    }

    /// `rmdir`.
    ///
    /// # Errors
    /// As [`Node::remove_dir`].
    pub fn rmdir(&self, at: At<'_>) -> Result {
        let _timed = self.requests.time(Op::Rmdir);
        self.remove(at, Node::remove_dir)
    }

    fn remove(&self, at: At<'_>, remove: fn(&Node, &[u8]) -> dioxide::Result<()>) -> Result {
        let live = self.live()?;
        let dir = live.node(at.dir)?;
        self.without_name(&live, &dir, at.name, || remove(&dir, at.name))
    }

    /// Takes away a name, and holds what loses its last one by that for as long as the kernel knows it. The kernel
    /// changes a directory's names one at a time, and those of a file, so that the name stands for the same file
    /// all the while, and nobody else holds or releases it.
    fn without_name(
        &self,
        live: &Live,
        dir: &Node,
        name: &[u8],
        change: impl FnOnce() -> dioxide::Result<()>,
    ) -> Result {
        // What is not there, or cannot be read, is for the change to judge.
        let Ok(loses) = dir.lookup(name).map(Arc::new) else {
            return Ok(change()?);
        };
        live.nodes.hold(&loses);
        let done = change();
        if loses.metadata().nlink > 0 {
            live.nodes.release(&loses);
        }
        Ok(done?)
    }

    /// `rename`, with flags of `renameat2(2)`.
    ///
    /// # Errors
    /// As [`Node::rename`]; `EINVAL` for flags that are unknown or exclude each other.
    pub fn rename(&self, caller: Caller, from: At<'_>, to: At<'_>, flags: u32) -> Result {
        let _timed = self.requests.time(Op::Rename);
        let whiteout = flags & libc::RENAME_WHITEOUT != 0;
        let mode = match flags & !libc::RENAME_WHITEOUT {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno::INVAL),
        };
        let live = self.live()?;
        let target = live.node(to.dir)?;
        let source = live.node(from.dir)?;
        let change = || match whiteout {
            true => {
                let new = self.new_file(caller, 0, 0);
                source.rename_whiteout(from.name, &target, to.name, mode, &new)
            }
            false => source.rename(from.name, &target, to.name, mode),
        };
        match mode {
            RenameMode::Replace => self.without_name(&live, &target, to.name, change),
            _ => Ok(change()?),
        }
    }
}
