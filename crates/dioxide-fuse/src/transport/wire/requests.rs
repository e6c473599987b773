//! One function for each kind of request: the opcode's structure and the payload taken apart, the server asked, and
//! what it says put where the payload was.

use super::abi::{self, fattr};
use super::{Call, In, Out};
use crate::server::{
    At, Change, Dirent, Entry, Opened, Seek, Stat, SyncMode, Told, WriteFlags, now,
};
use crate::{Errno, ROOT_ID, Result};
use dioxide::Timestamp;
use std::time::Duration;

/// Bytes of a `fuse_entry_out`, of a `fuse_dirent` without its name, and of a `fuse_ioctl_out`.
const ENTRY_BYTES: usize = 128;
const DIRENT_BYTES: usize = 24;
const IOCTL_OUT_BYTES: usize = 16;

impl Call<'_> {
    fn payload(&self) -> In<'_> {
        In(&self.buffer[..self.len])
    }

    fn out(&mut self) -> Out<'_> {
        Out::new(self.buffer)
    }

    /// The payload is a name in the directory that the request is about.
    fn at(&self) -> Result<At<'_>> {
        Ok(At {
            dir: self.head.node,
            name: self.payload().name()?,
        })
    }

    fn entry(mut self, entry: &Entry) -> Result<usize> {
        self.out().entry(entry).finish()
    }

    fn made(mut self, entry: &Entry, opened: &Opened) -> Result<usize> {
        self.out().entry(entry).opened(opened).finish()
    }

    fn stat(mut self, stat: &Stat) -> Result<usize> {
        self.out().stat(stat).finish()
    }

    fn bytes(mut self, bytes: &[u8]) -> Result<usize> {
        self.out().bytes(bytes).finish()
    }

    fn written(mut self, len: usize) -> Result<usize> {
        self.out().u32(len as u32).u32(0).finish()
    }

    pub(super) fn forget(mut self) -> Result {
        let lookups = self.op.u64()?;
        self.server.forget(self.head.node, lookups);
        Ok(())
    }

    pub(super) fn batch_forget(mut self) -> Result {
        let count = self.op.u32()?;
        let mut each = self.payload();
        for _ in 0..count {
            let (node, lookups) = (each.u64()?, each.u64()?);
            self.server.forget(node, lookups);
        }
        Ok(())
    }

    pub(super) fn interrupt(mut self) -> Result {
        self.asker.interrupts().add(self.op.u64()?);
        Ok(())
    }

    pub(super) fn lookup(mut self) -> Result<usize> {
        match self.server.lookup(self.at()?) {
            Err(Errno(libc::ENOENT)) => {
                let valid = self.server.absent_valid();
                self.out().absent(valid).finish()
            }
            found => self.entry(&found?),
        }
    }

    pub(super) fn getattr(mut self) -> Result<usize> {
        let flags = self.op.u32()?;
        self.op.skip(4)?;
        let handle = self.op.u64()?;
        let handle = (flags & abi::GETATTR_FH != 0).then_some(handle);
        let stat = self.server.getattr(self.head.node, handle)?;
        self.stat(&stat)
    }

    pub(super) fn statx(mut self) -> Result<usize> {
        let stat = self.server.getattr(self.head.node, None)?;
        self.out().statx(&stat).finish()
    }

    pub(super) fn setattr(mut self) -> Result<usize> {
        let change = change(&mut self.op)?;
        let stat = self
            .server
            .setattr(self.head.caller, self.head.node, &change)?;
        self.stat(&stat)
    }

    pub(super) fn readlink(self) -> Result<usize> {
        let target = self.server.readlink(self.head.node)?;
        self.bytes(&target)
    }

    pub(super) fn symlink(self) -> Result<usize> {
        let mut payload = self.payload();
        let at = At {
            dir: self.head.node,
            name: payload.name()?,
        };
        let made = self.server.symlink(self.head.caller, at, payload.name()?)?;
        self.entry(&made)
    }

    pub(super) fn mknod(mut self) -> Result<usize> {
        let (mode, rdev, umask) = (self.op.u32()?, self.op.u32()?, self.op.u32()?);
        let caller = self.head.caller;
        let made = self.server.mknod(caller, self.at()?, mode, umask, rdev)?;
        self.entry(&made)
    }

    pub(super) fn mkdir(mut self) -> Result<usize> {
        let (mode, umask) = (self.op.u32()?, self.op.u32()?);
        let made = self
            .server
            .mkdir(self.head.caller, self.at()?, mode, umask)?;
        self.entry(&made)
    }

    pub(super) fn unlink(self) -> Result<usize> {
        self.server.unlink(self.at()?)?;
        Ok(0)
    }

    pub(super) fn rmdir(self) -> Result<usize> {
        self.server.rmdir(self.at()?)?;
        Ok(0)
    }

    /// With flags or without.
    pub(super) fn rename(mut self, flags: bool) -> Result<usize> {
        let dir = self.op.u64()?;
        let flags = if flags { self.op.u32()? } else { 0 };
        let mut payload = self.payload();
        let from = At {
            dir: self.head.node,
            name: payload.name()?,
        };
        let to = At {
            dir,
            name: payload.name()?,
        };
        self.server.rename(self.head.caller, from, to, flags)?;
        Ok(0)
    }

    pub(super) fn link(mut self) -> Result<usize> {
        let id = self.op.u64()?;
        let entry = self.server.link(id, self.at()?)?;
        self.entry(&entry)
    }

    pub(super) fn open(mut self) -> Result<usize> {
        let flags = self.op.u32()? as i32;
        let opened = self.server.open(self.head.caller, self.head.node, flags)?;
        self.out().opened(&opened).finish()
    }

    pub(super) fn create(mut self) -> Result<usize> {
        let (flags, mode, umask) = (self.op.u32()? as i32, self.op.u32()?, self.op.u32()?);
        let caller = self.head.caller;
        let made = self.server.create(caller, self.at()?, mode, umask, flags);
        let (entry, opened) = made?;
        self.made(&entry, &opened)
    }

    pub(super) fn tmpfile(mut self) -> Result<usize> {
        let (flags, mode, umask) = (self.op.u32()? as i32, self.op.u32()?, self.op.u32()?);
        let (caller, dir) = (self.head.caller, self.head.node);
        let (entry, opened) = self
            .server
            .create_unnamed(caller, dir, mode, umask, flags)?;
        self.made(&entry, &opened)
    }

    /// Flags of the file as it is now. Behind its own flags, a read or write has the owner of a lock and these.
    fn file_flags(&mut self) -> Result<i32> {
        self.op.u64()?;
        Ok(self.op.u32()? as i32)
    }

    pub(super) fn read(mut self) -> Result<usize> {
        let (handle, offset) = (self.op.u64()?, self.op.u64()?);
        let (size, flags) = (self.op.u32()?, self.op.u32()?);
        // A page of a mapping has the file's flags too. The kernel has it locked until it is filled, so that to have pages written
        // then would be to wait for ourselves.
        let past_cache = flags & abi::READ_LOCKOWNER != 0;
        let direct = past_cache && self.file_flags()? & libc::O_DIRECT != 0;
        let buffer = self.buffer.get_mut(..size as usize).ok_or(Errno::INVAL)?;
        let bytes = self.server.read(handle, buffer, offset, direct)?;
        // Of the pages, the kernel has written only those that are read.
        let is_short = past_cache && bytes < buffer.len();
        if !is_short || !self.server.may_be_longer(handle)? {
            return Ok(bytes);
        }
        match self.asker.write_pages_for_read(self.head.node) {
            true => self.server.read(handle, buffer, offset, direct),
            false if self.asker.waits_for_pages() => Err(Errno::AGAIN),
            false => Ok(bytes),
        }
    }

    pub(super) fn write(mut self) -> Result<usize> {
        let (handle, offset) = (self.op.u64()?, self.op.u64()?);
        let (size, flags) = (self.op.u32()?, self.op.u32()?);
        let file_flags = self.file_flags()?;
        let flags = WriteFlags {
            cached: flags & abi::WRITE_CACHE != 0,
            direct: file_flags & libc::O_DIRECT != 0,
            append: file_flags & libc::O_APPEND != 0,
            sync: SyncMode::of(file_flags),
            kill_suidgid: flags & abi::WRITE_KILL_SUIDGID != 0,
        };
        let data = self.payload().0.get(..size as usize).ok_or(Errno::INVAL)?;
        let done = self.server.write(handle, data, offset, flags);
        if flags.cached && done.is_err() {
            self.asker.forget_attributes(self.head.node);
        }
        self.written(done?)
    }

    pub(super) fn statfs(mut self) -> Result<usize> {
        let told = self.server.statfs()?;
        let mut out = self.out();
        out.u64(told.blocks).u64(told.blocks_free);
        out.u64(told.blocks_available);
        out.u64(told.files).u64(told.files_free);
        out.u32(told.block_size).u32(told.name_max);
        out.u32(told.block_size).zeros(28).finish()
    }

    pub(super) fn release(mut self) -> Result<usize> {
        self.server.release(self.op.u64()?)?;
        Ok(0)
    }

    pub(super) fn fsync(mut self) -> Result<usize> {
        let (handle, flags) = (self.op.u64()?, self.op.u32()?);
        let data_only = flags & abi::FSYNC_FDATASYNC != 0;
        if self.server.fsync(handle, data_only)? == Told::Stale {
            self.asker.forget_attributes(self.head.node);
        }
        Ok(0)
    }

    pub(super) fn fsyncdir(self) -> Result<usize> {
        let node = self.head.node;
        if node == ROOT_ID && !self.asker.write_all(&self.server.written()?) {
            return Err(Errno(libc::EAGAIN));
        }
        self.server.fsyncdir(node)?;
        Ok(0)
    }

    pub(super) fn syncfs(self) -> Result<usize> {
        self.server.sync()?;
        Ok(0)
    }

    pub(super) fn setxattr(mut self) -> Result<usize> {
        let (size, flags) = (self.op.u32()?, self.op.u32()? as i32);
        // Only if it was agreed.
        let more = self.op.u32().unwrap_or(0);
        let mut payload = self.payload();
        let name = payload.name()?;
        let value = payload.0.get(..size as usize).ok_or(Errno::INVAL)?;
        self.server.setxattr(self.head.node, name, value, flags)?;
        // The kernel asks for it with the list for what will be made in there too, which is none of the directory's own.
        if more & abi::SETXATTR_ACL_KILL_SGID != 0 && name == b"system.posix_acl_access" {
            self.server.kill_sgid(self.head.node)?;
        }
        Ok(0)
    }

    pub(super) fn getxattr(mut self) -> Result<usize> {
        let size = self.op.u32()?;
        let value = self
            .server
            .getxattr(self.head.node, self.payload().name()?)?;
        self.sized(size, &value)
    }

    pub(super) fn listxattr(mut self) -> Result<usize> {
        let size = self.op.u32()?;
        let names = self.server.listxattr(self.head.caller, self.head.node)?;
        self.sized(size, &names)
    }

    /// Whoever asks with size 0 wants to know the size.
    fn sized(self, size: u32, value: &[u8]) -> Result<usize> {
        match size as usize {
            0 => self.written(value.len()),
            size if value.len() > size => Err(Errno::RANGE),
            _ => self.bytes(value),
        }
    }

    pub(super) fn removexattr(self) -> Result<usize> {
        let name = self.payload().name()?;
        self.server.removexattr(self.head.node, name)?;
        Ok(0)
    }

    /// Where to go on, and where the names go.
    fn listing(&mut self) -> Result<(u64, Out<'_>)> {
        self.op.skip(8)?;
        let (from, size) = (self.op.u64()?, self.op.u32()?);
        let size = self.buffer.len().min(size as usize);
        Ok((from, Out::new(&mut self.buffer[..size])))
    }

    pub(super) fn readdir(mut self) -> Result<usize> {
        let (server, dir) = (self.server, self.head.node);
        let (from, mut out) = self.listing()?;
        server.readdir(dir, from, &mut |name| {
            let room = out.room() >= dirent_bytes(name);
            if room {
                out.dirent(name);
            }
            room
        })?;
        out.finish()
    }

    pub(super) fn readdirplus(mut self) -> Result<usize> {
        let (server, dir) = (self.server, self.head.node);
        let (from, mut out) = self.listing()?;
        server.readdirplus(dir, from, &mut |name, entry| {
            let room = out.room() >= ENTRY_BYTES + dirent_bytes(name);
            match entry {
                _ if !room => {}
                Some(entry) => {
                    out.entry(entry).dirent(name);
                }
                // Node id 0: the kernel learns the name only.
                None => {
                    out.absent(Duration::ZERO).dirent(name);
                }
            }
            room
        })?;
        out.finish()
    }

    pub(super) fn ioctl(mut self) -> Result<usize> {
        self.op.skip(12)?;
        let command = self.op.u32()?;
        self.op.skip(8)?;
        let (in_len, out_len) = (self.op.u32()? as usize, self.op.u32()? as usize);
        let argument = self.payload().0.get(..in_len).ok_or(Errno::INVAL)?;
        let (caller, node) = (self.head.caller, self.head.node);
        let told = self
            .server
            .ioctl(caller, node, command, argument, out_len)?;
        if told.is_empty() {
            self.asker.forget_attributes(node);
        }
        self.out().zeros(IOCTL_OUT_BYTES).bytes(&told).finish()
    }

    pub(super) fn fallocate(mut self) -> Result<usize> {
        let (handle, offset, len) = (self.op.u64()?, self.op.u64()?, self.op.u64()?);
        let mode = self.op.u32()? as i32;
        let caller = self.head.caller;
        self.server.fallocate(caller, handle, mode, offset, len)?;
        Ok(0)
    }

    pub(super) fn lseek(mut self) -> Result<usize> {
        let (handle, offset) = (self.op.u64()?, self.op.u64()?);
        let what = match self.op.u32()? as i32 {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::INVAL),
        };
        if offset > i64::MAX as u64 {
            return Err(Errno::NXIO);
        }
        let found = match self.server.lseek(handle, offset, what) {
            Err(Errno(libc::ENOSYS)) if self.asker.waits_for_pages() => {
                if !self.asker.write_pages(self.head.node) {
                    // The kernel would remember that there are no holes.
                    return Err(Errno::AGAIN);
                }
                self.server.lseek_written(handle, offset, what)?
            }
            // Without holes from now on is better than without data that are on their way.
            found => found?,
        };
        self.out().u64(found).finish()
    }

    /// Told in 64 bits, or in 32.
    pub(super) fn copy_file_range(mut self, wide: bool) -> Result<usize> {
        let from = (self.op.u64()?, self.op.u64()?);
        self.op.skip(8)?;
        let to = (self.op.u64()?, self.op.u64()?);
        let len = self.op.u64()?;
        let (caller, unique) = (self.head.caller, self.head.unique);
        let is_given_up = || self.asker.interrupts().has(unique);
        let done = self
            .server
            .copy_file_range(caller, from, to, len, &is_given_up)?;
        match wide {
            true => self.out().u64(done as u64).finish(),
            false => self.written(done),
        }
    }
}

fn dirent_bytes(name: &Dirent<'_>) -> usize {
    (DIRENT_BYTES + name.name.len()).next_multiple_of(8)
}

/// `fuse_setattr_in`.
fn change(op: &mut In<'_>) -> Result<Change> {
    let valid = op.u32()?;
    op.skip(4)?;
    let (handle, size) = (op.u64()?, op.u64()?);
    op.skip(8)?;
    let secs = [op.u64()?, op.u64()?, op.u64()?];
    let nanos = [op.u32()?, op.u32()?, op.u32()?];
    let mode = op.u32()?;
    op.skip(4)?;
    let (uid, gid) = (op.u32()?, op.u32()?);
    let has = |flag: u32| valid & flag != 0;
    let time = |set: u32, is_now: u32, which: usize| {
        let told = Timestamp {
            secs: secs[which] as i64,
            nanos: nanos[which].min(999_999_999),
        };
        has(set).then(|| if has(is_now) { now() } else { told })
    };
    Ok(Change {
        mode: has(fattr::MODE).then_some(mode),
        uid: has(fattr::UID).then_some(uid),
        gid: has(fattr::GID).then_some(gid),
        size: has(fattr::SIZE).then_some(size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, 0),
        atime_now: has(fattr::ATIME_NOW),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, 1),
        mtime_now: has(fattr::MTIME_NOW),
        ctime: time(fattr::CTIME, 0, 2),
        handle: has(fattr::FH).then_some(handle),
        kill_suidgid: has(fattr::KILL_SUIDGID),
    })
}
