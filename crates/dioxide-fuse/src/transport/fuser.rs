//! Requests through `/dev/fuse`, by the `fuser` crate: one descriptor and one thread for each request that is
//! answered at the same time.
//!
//! What `fuser` 0.18 does not hand over: `O_TMPFILE`, `statx` (birth times), `syncfs`, interrupts, and that a change of size
//! or an access control list strips set-ID bits. The kernel does without, or [`Server`] judges by the caller's user. The other
//! transport has them.
//!
//! With the kernel's writeback cache the kernel keeps the times of regular files, and does not learn those of direct writes: `stat`
//! shows them when the kernel has dropped the file from its cache. `nowriteback` shows them at once.

use super::{ConnectOptions, Transport};
use crate::server::{At, Attr, Caller, Change, Entry, Opened, Seek, Server, Told, WriteFlags, now};
use crate::{Errno, Result};
use dioxide::{Buf, FileType, Timestamp};
use fuser::{
    Config, CopyFileRangeFlags, FileAttr, FileHandle, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, SessionACL, TimeOrNow,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Largest request that carries data.
const MAX_WRITE: u32 = 1 << 20;

/// What is asked of the kernel, where it can.
fn wanted(writeback: bool, permissions: bool) -> InitFlags {
    let mut flags = InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | InitFlags::FUSE_CACHE_SYMLINKS
        | InitFlags::FUSE_HAS_IOCTL_DIR
        | InitFlags::FUSE_HANDLE_KILLPRIV_V2
        | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
        | InitFlags::FUSE_DONT_MASK
        | InitFlags::FUSE_NO_OPENDIR_SUPPORT
        | InitFlags::FUSE_EXPORT_SUPPORT;
    flags.set(InitFlags::FUSE_WRITEBACK_CACHE, writeback);
    flags.set(InitFlags::FUSE_POSIX_ACL, permissions);
    flags
}

/// A connection through `/dev/fuse`.
pub struct DevFuse(fuser::Session<Adapter>);

impl Transport for DevFuse {
    fn connect(server: Arc<Server>, dir: &Path, options: &ConnectOptions) -> io::Result<DevFuse> {
        let notifier = Arc::new(OnceLock::new());
        let adapter = Adapter {
            server,
            notifier: notifier.clone(),
            permissions: options.permissions,
            max_background: options.max_background,
        };
        let session = fuser::Session::new(adapter, dir, &config(options))?;
        let _ = notifier.set(session.notifier());
        Ok(DevFuse(session))
    }

    fn serve(self) -> io::Result<()> {
        self.0.run()
    }
}

fn config(options: &ConnectOptions) -> Config {
    let mut config = Config::default();
    let custom = options.mount_options.iter().map(|word| named(word));
    config.mount_options = custom.collect();
    let ours = &mut config.mount_options;
    ours.push(match options.read_only {
        true => MountOption::RO,
        false => MountOption::RW,
    });
    if options.permissions {
        ours.push(MountOption::DefaultPermissions);
    }
    if options.auto_unmount {
        ours.push(MountOption::AutoUnmount);
    }
    if options.allow_other {
        config.acl = SessionACL::All;
    }
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = options.clone_descriptors;
    config
}

/// `fuser` wants those that are flags of `mount(2)` by their names. A subtype it would take for the source.
fn named(word: &str) -> MountOption {
    match word {
        "dev" => MountOption::Dev,
        "nodev" => MountOption::NoDev,
        "suid" => MountOption::Suid,
        "nosuid" => MountOption::NoSuid,
        "exec" => MountOption::Exec,
        "noexec" => MountOption::NoExec,
        "sync" => MountOption::Sync,
        "dirsync" => MountOption::DirSync,
        "noatime" => MountOption::NoAtime,
        _ => match word.strip_prefix("fsname=") {
            Some(name) => MountOption::FSName(name.into()),
            None => MountOption::CUSTOM(word.into()),
        },
    }
}

struct Adapter {
    server: Arc<Server>,
    /// There when the session is.
    notifier: Arc<OnceLock<fuser::Notifier>>,
    permissions: bool,
    max_background: u16,
}

impl Adapter {
    fn entry(&self, reply: ReplyEntry, found: Result<Entry>) {
        match found {
            Ok(found) => reply.entry_with_ttls(
                &found.attr_valid,
                &found.entry_valid,
                &file_attr(&found.attr, found.id),
                generation(&found),
            ),
            Err(error) => reply.error(error.into()),
        }
    }
}

impl From<Errno> for fuser::Errno {
    fn from(error: Errno) -> fuser::Errno {
        fuser::Errno::from_i32(error.0)
    }
}

fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
    }
}

fn at(dir: INodeNo, name: &OsStr) -> At<'_> {
    At {
        dir: dir.0,
        name: name.as_bytes(),
    }
}

fn empty(reply: ReplyEmpty, done: Result) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

fn generation(entry: &Entry) -> Generation {
    Generation(entry.attr.metadata.generation.into())
}

fn to_system(time: Timestamp) -> SystemTime {
    let secs = Duration::from_secs(time.secs.unsigned_abs());
    let whole = match time.secs < 0 {
        true => UNIX_EPOCH - secs,
        false => UNIX_EPOCH + secs,
    };
    whole + Duration::from_nanos(time.nanos.into())
}

/// `fuser` takes the nanoseconds of a time before 1970 away where they are to be added.
fn from_fuser(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp {
            secs: since.as_secs() as i64,
            nanos: since.subsec_nanos(),
        },
        Err(before) => Timestamp {
            secs: -(before.duration().as_secs() as i64),
            nanos: before.duration().subsec_nanos(),
        },
    }
}

fn time(time: TimeOrNow) -> Timestamp {
    match time {
        TimeOrNow::SpecificTime(time) => from_fuser(time),
        TimeOrNow::Now => now(),
    }
}

fn kind(file_type: FileType) -> fuser::FileType {
    match file_type {
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::Regular | FileType::Unknown => fuser::FileType::RegularFile,
    }
}

/// `ino` is what `fuser` uses as the node id too, where it tells one.
fn file_attr(attr: &Attr, ino: u64) -> FileAttr {
    let metadata = &attr.metadata;
    FileAttr {
        ino: INodeNo(ino),
        size: metadata.size,
        blocks: metadata.blocks,
        atime: to_system(metadata.atime),
        mtime: to_system(metadata.mtime),
        ctime: to_system(metadata.ctime),
        crtime: to_system(metadata.crtime.unwrap_or_default()),
        kind: kind(metadata.file_type),
        perm: metadata.permissions,
        nlink: metadata.nlink,
        uid: metadata.uid,
        gid: metadata.gid,
        rdev: attr.rdev,
        blksize: metadata.block_size,
        flags: 0,
    }
}

/// A name that is not there: node id 0.
fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

fn open_flags(opened: &Opened) -> FopenFlags {
    match opened.direct {
        true => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
        false => FopenFlags::FOPEN_KEEP_CACHE,
    }
}

thread_local! {
    /// Where a thread reads into: aligned for any device, as large as the largest read so far.
    static BUFFER: RefCell<Buf> = const { RefCell::new(Buf::empty()) };
}

fn with_buffer<T>(len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < len {
            *buffer = Buf::zeroed(len.next_multiple_of(4096));
        }
        work(&mut buffer[..len])
    })
}

mod requests;
