//! One function for each kind of request.

use super::*;
use crate::server::Dirent;

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = wanted(self.server.options().writeback, self.permissions);
        let can = config.capabilities();
        // What the kernel cannot do is done without.
        let _ = config.add_capabilities(wanted & can);
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_background(self.max_background);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.server.lookup(at(parent, name)) {
            Err(Errno(libc::ENOENT)) => {
                let valid = self.server.absent_valid();
                reply.entry(&valid, &absent(), Generation(0));
            }
            found => self.entry(reply, found),
        }
    }

    fn forget(&self, _: &Request, id: INodeNo, lookups: u64) {
        self.server.forget(id.0, lookups);
    }

    fn getattr(&self, _: &Request, id: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let handle = handle.map(|handle| handle.0);
        attr(reply, self.server.getattr(id.0, handle));
    }

    fn setattr(
        &self,
        request: &Request,
        id: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = Change {
            mode,
            uid,
            gid,
            size,
            atime_now: matches!(atime, Some(TimeOrNow::Now)),
            atime: atime.map(time),
            mtime_now: matches!(mtime, Some(TimeOrNow::Now)),
            mtime: mtime.map(time),
            ctime: ctime.map(from_fuser),
            handle: handle.map(|handle| handle.0),
            kill_suidgid: None,
        };
        attr(reply, self.server.setattr(caller(request), id.0, &change));
    }

    fn readlink(&self, _: &Request, id: INodeNo, reply: ReplyData) {
        match self.server.readlink(id.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error.into()),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let server = &self.server;
        let made = server.mknod(caller(request), at(parent, name), mode, umask, rdev);
        self.entry(reply, made);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let server = &self.server;
        let made = server.mkdir(caller(request), at(parent, name), mode, umask);
        self.entry(reply, made);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.server.unlink(at(parent, name)));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.server.rmdir(at(parent, name)));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = target.as_os_str().as_bytes();
        let server = &self.server;
        self.entry(
            reply,
            server.symlink(caller(request), at(parent, name), target),
        );
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = (at(parent, name), at(new_parent, new_name));
        let renamed = self.server.rename(caller(request), from, to, flags.bits());
        empty(reply, renamed);
    }

    fn link(&self, _: &Request, id: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(reply, self.server.link(id.0, at(parent, name)));
    }

    fn open(&self, request: &Request, id: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.server.open(caller(request), id.0, flags.0) {
            Ok(opened) => reply.opened(FileHandle(opened.handle), open_flags(&opened)),
            Err(error) => reply.error(error.into()),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let server = &self.server;
        match server.create(caller(request), at(parent, name), mode, umask, flags) {
            // `fuser` has one time for both here: the shorter one.
            Ok((entry, opened)) => reply.created(
                &entry.attr_valid.min(entry.entry_valid),
                &file_attr(&entry.attr, entry.id),
                generation(&entry),
                FileHandle(opened.handle),
                open_flags(&opened),
            ),
            Err(error) => reply.error(error.into()),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        with_buffer(size as usize, |buffer| {
            match self.server.read(handle.0, buffer, offset) {
                Ok(len) => reply.data(&buffer[..len]),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        flags: fuser::WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let flags = WriteFlags {
            cached: flags.contains(fuser::WriteFlags::FUSE_WRITE_CACHE),
            kill_suidgid: flags.contains(fuser::WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        written(reply, self.server.write(handle.0, data, offset, flags));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // The kernel has written its pages before it asks, and does not ask again.
        reply.error(Errno::NOSYS.into());
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        empty(reply, self.server.release(handle.0));
    }

    fn fsync(
        &self,
        _: &Request,
        id: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let done = self.server.fsync(handle.0, data_only);
        if done == Ok(Told::Stale) {
            self.forget_attributes(id);
        }
        empty(reply, done.map(drop));
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Directories need not be opened, and the kernel does not ask again.
        reply.error(Errno::NOSYS.into());
    }

    fn readdir(
        &self,
        _: &Request,
        id: INodeNo,
        _: FileHandle,
        from: u64,
        mut reply: ReplyDirectory,
    ) {
        let done = self.server.readdir(id.0, from, &mut |entry| {
            let name = OsStr::from_bytes(entry.name);
            !reply.add(INodeNo(entry.ino), entry.next, kind(entry.file_type), name)
        });
        match done {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        id: INodeNo,
        _: FileHandle,
        from: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let done = self.server.readdirplus(id.0, from, &mut |name, entry| {
            let (attr, valid, generation) = match entry {
                Some(entry) => {
                    let attr = file_attr(&entry.attr, entry.id);
                    (
                        attr,
                        entry.attr_valid.min(entry.entry_valid),
                        generation(entry),
                    )
                }
                None => (only_named(name), Duration::ZERO, Generation(0)),
            };
            let text = OsStr::from_bytes(name.name);
            !reply.add(attr.ino, name.next, text, &valid, &attr, generation)
        });
        match done {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn fsyncdir(&self, _: &Request, id: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        empty(reply, self.server.fsyncdir(id.0));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.server.statfs() {
            Ok(told) => reply.statfs(
                told.blocks,
                told.blocks_free,
                told.blocks_available,
                told.files,
                told.files_free,
                told.block_size,
                told.name_max,
                told.block_size,
            ),
            Err(error) => reply.error(error.into()),
        }
    }

    fn setxattr(
        &self,
        _: &Request,
        id: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let done = self.server.setxattr(id.0, name.as_bytes(), value, flags);
        empty(reply, done);
    }

    fn getxattr(&self, _: &Request, id: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        xattr(reply, size, self.server.getxattr(id.0, name.as_bytes()));
    }

    fn listxattr(&self, request: &Request, id: INodeNo, size: u32, reply: ReplyXattr) {
        xattr(reply, size, self.server.listxattr(caller(request), id.0));
    }

    fn removexattr(&self, _: &Request, id: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.server.removexattr(id.0, name.as_bytes()));
    }

    fn ioctl(
        &self,
        request: &Request,
        id: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        argument: &[u8],
        out_len: u32,
        reply: ReplyIoctl,
    ) {
        let (server, out_len) = (&self.server, out_len as usize);
        match server.ioctl(caller(request), id.0, command, argument, out_len) {
            Ok(out) => {
                if out.is_empty() {
                    self.forget_attributes(id);
                }
                reply.ioctl(0, &out);
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let server = &self.server;
        let done = server.fallocate(caller(request), handle.0, mode, offset, len);
        empty(reply, done);
    }

    fn lseek(
        &self,
        _: &Request,
        id: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let what = match whence {
            libc::SEEK_DATA => Ok(Seek::Data),
            libc::SEEK_HOLE => Ok(Seek::Hole),
            _ => Err(Errno::INVAL),
        };
        let (what, offset) = match (what, u64::try_from(offset)) {
            (Ok(what), Ok(offset)) => (what, offset),
            (Err(error), _) => return reply.error(error.into()),
            (_, Err(_)) => return reply.error(Errno::NXIO.into()),
        };
        match self.server.lseek(handle.0, offset, what) {
            Err(Errno(libc::ENOSYS)) => self.lseek_written(id, handle.0, offset, what, reply),
            found => sought(reply, found),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _: INodeNo,
        from: FileHandle,
        from_offset: u64,
        _: INodeNo,
        to: FileHandle,
        to_offset: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to) = ((from.0, from_offset), (to.0, to_offset));
        let server = &self.server;
        written(
            reply,
            server.copy_file_range(caller(request), from, to, len),
        );
    }
}

fn attr(reply: ReplyAttr, told: Result<crate::server::Stat>) {
    match told {
        Ok(told) => {
            let ino = told.attr.metadata.ino.into();
            reply.attr(&told.valid, &file_attr(&told.attr, ino));
        }
        Err(error) => reply.error(error.into()),
    }
}

impl Adapter {
    /// Has the kernel ask again. It does so in time if that fails.
    fn forget_attributes(&self, id: INodeNo) {
        if let Some(kernel) = self.notifier.get() {
            let _ = kernel.inval_inode(id, -1, 0);
        }
    }

    /// Not by the thread that has the request: the kernel's writes need those who answer them.
    fn lseek_written(&self, id: INodeNo, handle: u64, offset: u64, what: Seek, reply: ReplyLseek) {
        let (server, notifier) = (self.server.clone(), self.notifier.clone());
        std::thread::spawn(move || {
            let written = notifier.get().map(|kernel| kernel.inval_inode(id, 0, 0));
            match written {
                Some(Ok(())) => sought(reply, server.lseek_written(handle, offset, what)),
                _ => reply.error(Errno(libc::ENOSYS).into()),
            }
        });
    }
}

fn sought(reply: ReplyLseek, found: Result<u64>) {
    match found {
        Ok(found) => reply.offset(found as i64),
        Err(error) => reply.error(error.into()),
    }
}

fn written(reply: ReplyWrite, done: Result<usize>) {
    match done {
        Ok(len) => reply.written(len as u32),
        Err(error) => reply.error(error.into()),
    }
}

/// Whoever asks with size 0 wants to know the size.
fn xattr(reply: ReplyXattr, size: u32, value: Result<Vec<u8>>) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::RANGE.into()),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(error.into()),
    }
}

/// What the kernel is told of a name and nothing else: it believes none of it for any time.
fn only_named(name: &Dirent<'_>) -> FileAttr {
    FileAttr {
        ino: INodeNo(name.ino),
        kind: kind(name.file_type),
        ..absent()
    }
}
