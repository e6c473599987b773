//! The kernel's side: a mounted tree.

use crate::op::{Answer, Op};
use crate::view::{Content, Entry, Firsts, View, digest};
use dioxide::{FallocateMode, FileType, Special, Timestamp};
use dioxide_testkit::pattern;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, IFlags, Mode, OFlags, RenameFlags, SeekFrom, StatxFlags,
    Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chmod, chownat, fallocate, ftruncate,
    ioctl_getflags, ioctl_setflags, lgetxattr, linkat, llistxattr, lremovexattr, lsetxattr,
    makedev, mkdir, mknodat, openat, readlinkat, renameat_with, seek, statx, symlink, unlinkat,
    utimensat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Longest value and list of names that Linux gives.
const XATTR_MAX: usize = 65_536;

/// Carries the calls out below `root`; what each answered.
pub fn run(root: &Path, ops: &[Op]) -> Vec<Answer> {
    let run = |op: &Op| one(root, op).map_err(Errno::raw_os_error);
    ops.iter().map(run).collect()
}

fn host(root: &Path, path: &[u8]) -> PathBuf {
    root.join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)))
}

fn open(path: &Path, flags: OFlags, mode: u16) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat(CWD, path, flags, Mode::from_raw_mode(mode.into()))
}

fn one(root: &Path, op: &Op) -> Result<(), Errno> {
    let at = |path: &Vec<u8>| host(root, path);
    match op {
        Op::Dir(path, mode) => mkdir(at(path), Mode::from_raw_mode((*mode).into())),
        Op::File(path, mode) => {
            let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            open(&at(path), new, *mode).map(drop)
        }
        Op::Symlink(target, path) => symlink(OsStr::from_bytes(target), at(path)),
        Op::Special(path, special) => mknod(&at(path), *special),
        Op::Link(old, new) => linkat(CWD, at(old), CWD, at(new), AtFlags::empty()),
        Op::Unlink(path) => unlinkat(CWD, at(path), AtFlags::empty()),
        Op::Rmdir(path) => unlinkat(CWD, at(path), AtFlags::REMOVEDIR),
        Op::Rename(from, to) => renameat_with(CWD, at(from), CWD, at(to), RenameFlags::empty()),
        Op::Exchange(from, to) => renameat_with(CWD, at(from), CWD, at(to), RenameFlags::EXCHANGE),
        Op::Write(path, offset, len, seed) => {
            let fd = open(&at(path), OFlags::WRONLY, 0)?;
            let bytes = pattern(*seed, *offset, *len);
            assert_eq!(rustix::io::pwrite(fd, &bytes, *offset)?, *len);
            Ok(())
        }
        Op::Truncate(path, len) => ftruncate(open(&at(path), OFlags::WRONLY, 0)?, *len),
        Op::Fallocate(path, mode, offset, len) => {
            let fd = open(&at(path), OFlags::WRONLY, 0)?;
            fallocate(fd, flags_of(*mode), *offset, *len)
        }
        Op::Xattr(path, name, value) => lsetxattr(at(path), *name, value, XattrFlags::empty()),
        Op::RemoveXattr(path, name) => lremovexattr(at(path), *name),
        Op::Chmod(path, mode) => chmod(at(path), Mode::from_raw_mode((*mode).into())),
        Op::Chown(path, uid, gid) => {
            let (uid, gid) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            chownat(CWD, at(path), Some(uid), Some(gid), flags)
        }
        Op::Mtime(path, time) => set_mtime(&at(path), *time),
        Op::Flags(path, flags) => {
            let fd = open(&at(path), OFlags::RDONLY, 0)?;
            let flags = ioctl_getflags(&fd)? | IFlags::from_bits_retain(*flags);
            ioctl_setflags(&fd, flags)
        }
    }
}

fn mknod(path: &Path, special: Special) -> Result<(), Errno> {
    use rustix::fs::FileType as Kind;
    let (kind, device) = match special {
        Special::Fifo => (Kind::Fifo, 0),
        Special::Socket => (Kind::Socket, 0),
        Special::CharDevice(major, minor) => (Kind::CharacterDevice, makedev(major, minor)),
        Special::BlockDevice(major, minor) => (Kind::BlockDevice, makedev(major, minor)),
    };
    mknodat(CWD, path, kind, Mode::from_raw_mode(0o640), device)
}

fn set_mtime(path: &Path, time: Timestamp) -> Result<(), Errno> {
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: time.secs,
            tv_nsec: time.nanos.into(),
        },
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
}

fn flags_of(mode: FallocateMode) -> FallocateFlags {
    let keep = FallocateFlags::KEEP_SIZE;
    match mode {
        FallocateMode::Allocate => FallocateFlags::empty(),
        FallocateMode::KeepSize => keep,
        FallocateMode::PunchHole => FallocateFlags::PUNCH_HOLE | keep,
        FallocateMode::ZeroRange => FallocateFlags::ZERO_RANGE,
        FallocateMode::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | keep,
        FallocateMode::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
        FallocateMode::InsertRange => FallocateFlags::INSERT_RANGE,
        other => panic!("{other:?} is no call of Linux"),
    }
}

/// What the mounted tree looks like.
pub fn view(root: &Path) -> View {
    let (mut view, mut firsts) = (View::new(), Firsts::default());
    let mut paths = vec![b"/".to_vec()];
    while let Some(path) = paths.pop() {
        let host = host(root, &path);
        let entry = entry(&host, &path, &mut firsts);
        if entry.kind == FileType::Directory {
            paths.extend(children(&host, &path));
        }
        view.insert(path, entry);
    }
    firsts.resolve(&mut view);
    view
}

fn children(host: &Path, path: &[u8]) -> Vec<Vec<u8>> {
    let base = if path == b"/" { b"" } else { path };
    let entries = fs::read_dir(host).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names
        .map(|name| [base, b"/", name.as_bytes()].concat())
        .collect()
}

fn entry(host: &Path, path: &[u8], firsts: &mut Firsts) -> Entry {
    let all = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let about = statx(CWD, host, AtFlags::SYMLINK_NOFOLLOW, all).expect("it is listed");
    let time = |of: rustix::fs::StatxTimestamp| Timestamp {
        secs: of.tv_sec,
        nanos: of.tv_nsec,
    };
    let kind = kind(about.stx_mode);
    let is_device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
    let has_btime = about.stx_mask & StatxFlags::BTIME.bits() != 0;
    firsts.note(about.stx_ino, path);
    Entry {
        kind,
        mode: about.stx_mode & 0o7777,
        uid: about.stx_uid,
        gid: about.stx_gid,
        nlink: about.stx_nlink,
        size: about.stx_size,
        blocks: about.stx_blocks,
        device: is_device.then_some((about.stx_rdev_major, about.stx_rdev_minor)),
        atime: time(about.stx_atime),
        mtime: time(about.stx_mtime),
        ctime: time(about.stx_ctime),
        crtime: has_btime.then(|| time(about.stx_btime)),
        ino: about.stx_ino,
        flags: flags(host, kind),
        content: content(host, kind, about.stx_size),
        xattrs: xattrs(host),
        first: Vec::new(),
    }
}

fn kind(mode: u16) -> FileType {
    use rustix::fs::FileType as Kind;
    match Kind::from_raw_mode(mode.into()) {
        Kind::RegularFile => FileType::Regular,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::CharacterDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::Unknown => FileType::Unknown,
    }
}

fn flags(host: &Path, kind: FileType) -> Option<u32> {
    if !matches!(kind, FileType::Regular | FileType::Directory) {
        return None;
    }
    let fd = open(host, OFlags::RDONLY, 0).expect("it opens");
    Some(ioctl_getflags(fd).expect("flags").bits())
}

fn content(host: &Path, kind: FileType, size: u64) -> Content {
    match kind {
        FileType::Symlink => {
            let target = readlinkat(CWD, host, Vec::new()).expect("a symlink");
            Content::Target(target.into_bytes())
        }
        FileType::Regular => data(host, size),
        _ => Content::None,
    }
}

/// All ranges first: what was read ahead counts as data afterwards, even where nothing was written.
fn data(host: &Path, size: u64) -> Content {
    let fd = open(host, OFlags::RDONLY, 0).expect("it opens");
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(&fd, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => panic!("{}: {error}", host.display()),
        };
        at = seek(&fd, SeekFrom::Hole(start)).expect("a hole, or the end");
        ranges.push((start, at));
    }
    let digests = ranges
        .iter()
        .map(|&(start, end)| digest(start, &read(&fd, start, end)));
    let sum = digests.fold(0, u64::wrapping_add);
    Content::Data(ranges, sum)
}

fn read(fd: &OwnedFd, start: u64, end: u64) -> Vec<u8> {
    let mut bytes = vec![0; (end - start) as usize];
    let mut done = 0;
    while done < bytes.len() {
        let read = rustix::io::pread(fd, &mut bytes[done..], start + done as u64);
        match read.expect("it reads") {
            0 => panic!("it ends before its size"),
            read => done += read,
        }
    }
    bytes
}

fn xattrs(host: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut list = vec![0; XATTR_MAX];
    let len = llistxattr(host, &mut list[..]).expect("attributes");
    let names = list[..len].split(|&byte| byte == 0);
    let names = names.filter(|name| !name.is_empty());
    let mut xattrs: Vec<_> = names
        .map(|name| {
            let mut value = vec![0; XATTR_MAX];
            let len = lgetxattr(host, OsStr::from_bytes(name), &mut value[..]).expect("listed");
            value.truncate(len);
            (name.to_vec(), value)
        })
        .collect();
    xattrs.sort();
    xattrs
}
