//! Calls carried out by the kernel's ext4, on a loop mount.
//!
//! They run in a thread whose root directory is the mount, so that paths and symlinks mean what they
//! mean in the image.

use crate::attributes::{Attributes, FLAGS, asked_for};
use crate::calls::{Call, data};
use crate::tree::Answer;
use crate::view::{Entry, Firsts, View, shown};
use dioxide::{FileType, RenameMode, Special, XattrMode};
use rustix::fs::{
    AtFlags, CWD, Gid, IFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags,
    chmod, chown, ioctl_getflags, ioctl_setflags, lgetxattr, linkat, llistxattr, makedev, mkdir,
    mknodat, openat, removexattr, renameat_with, setxattr, symlink, syncfs, unlinkat, utimensat,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::thread;

/// What is open.
#[derive(Default)]
struct Linux(BTreeMap<u32, OwnedFd>);

/// Carries calls out in the mounted tree; what each answered.
pub fn run_all(mount: &Path, calls: &[Call]) -> Vec<Answer> {
    let work = || {
        enter(mount);
        let mut linux = Linux::default();
        let run = |call: &Call| linux.run(call).map_err(Errno::raw_os_error);
        calls.iter().map(run).collect()
    };
    thread::scope(|scope| scope.spawn(work).join().expect("the calls"))
}

/// Makes a directory the root of this thread, and of no other.
#[allow(
    deprecated,
    reason = "what is not safe in general is files, which stay shared"
)]
fn enter(root: &Path) {
    rustix::thread::unshare(rustix::thread::UnshareFlags::FS).expect("a root of its own");
    rustix::process::chroot(root).expect("root may");
    rustix::process::chdir("/").expect("the root");
    rustix::process::umask(Mode::empty());
}

fn open(path: &[u8], flags: OFlags, mode: u16) -> Result<OwnedFd, Errno> {
    let mode = Mode::from_raw_mode(mode.into());
    openat(CWD, path, flags | OFlags::CLOEXEC, mode)
}

fn write(fd: &OwnedFd, at: u64, bytes: &[u8]) -> Result<(), Errno> {
    const INLINE_DATA: IFlags = IFlags::from_bits_retain(0x1000_0000);
    const PAGE: u64 = 4096;
    // Linux (6.18) loses what is written behind the first page of a file whose content has left its inode and is not on
    // the disk yet, where blocks are smaller than pages: it leaves the inode first, by a zero that nobody sees.
    let is_inline = ioctl_getflags(fd)?.contains(INLINE_DATA);
    if is_inline && at + bytes.len() as u64 > PAGE {
        rustix::io::pwrite(fd, &[0], PAGE - 1)?;
        rustix::fs::fsync(fd)?;
    }
    let written = rustix::io::pwrite(fd, bytes, at)?;
    assert_eq!(written, bytes.len());
    match is_inline {
        true => rustix::fs::fsync(fd),
        false => Ok(()),
    }
}

fn mknod(path: &[u8], special: Special, mode: u16) -> Result<(), Errno> {
    use rustix::fs::FileType as Kind;
    let (kind, device) = match special {
        Special::Fifo => (Kind::Fifo, 0),
        Special::Socket => (Kind::Socket, 0),
        Special::CharDevice(major, minor) => (Kind::CharacterDevice, makedev(major, minor)),
        Special::BlockDevice(major, minor) => (Kind::BlockDevice, makedev(major, minor)),
    };
    mknodat(CWD, path, kind, Mode::from_raw_mode(mode.into()), device)
}

fn rename_flags(mode: RenameMode) -> RenameFlags {
    match mode {
        RenameMode::Replace => RenameFlags::empty(),
        RenameMode::NoReplace => RenameFlags::NOREPLACE,
        RenameMode::Exchange => RenameFlags::EXCHANGE,
    }
}

fn xattr_flags(mode: XattrMode) -> XattrFlags {
    match mode {
        XattrMode::Set => XattrFlags::empty(),
        XattrMode::Create => XattrFlags::CREATE,
        XattrMode::Replace => XattrFlags::REPLACE,
    }
}

fn set_flags(path: &[u8], flags: u32) -> Result<(), Errno> {
    let file = open(path, OFlags::RDONLY, 0)?;
    let others = ioctl_getflags(&file)?.bits() & !FLAGS;
    ioctl_setflags(&file, IFlags::from_bits_retain(others | flags))
}

fn set_times(path: &[u8], atime: i64, mtime: i64) -> Result<(), Errno> {
    let time = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
    let times = Timestamps {
        last_access: time(atime),
        last_modification: time(mtime),
    };
    utimensat(CWD, path, &times, AtFlags::empty())
}

impl Linux {
    fn run(&mut self, call: &Call) -> Result<(), Errno> {
        let both = OFlags::RDWR;
        match call {
            Call::Create {
                path,
                exclusive,
                mode,
            } => {
                let exclusive = if *exclusive {
                    OFlags::EXCL
                } else {
                    OFlags::empty()
                };
                open(path, both | OFlags::CREATE | exclusive, *mode).map(drop)
            }
            Call::Mkdir { path, mode } => mkdir(&path[..], Mode::from_raw_mode((*mode).into())),
            Call::Mknod {
                path,
                special,
                mode,
            } => mknod(path, *special, *mode),
            Call::Symlink { target, path } => symlink(&target[..], &path[..]),
            Call::Link { old, new } => linkat(CWD, &old[..], CWD, &new[..], AtFlags::empty()),
            Call::Unlink { path } => unlinkat(CWD, &path[..], AtFlags::empty()),
            Call::Rmdir { path } => unlinkat(CWD, &path[..], AtFlags::REMOVEDIR),
            Call::Rename {
                from,
                to,
                mode,
                whiteout,
            } => {
                let mut flags = rename_flags(*mode);
                flags.set(RenameFlags::WHITEOUT, *whiteout);
                renameat_with(CWD, &from[..], CWD, &to[..], flags)
            }
            Call::Write {
                path,
                at,
                len,
                seed,
            } => write(&open(path, both, 0)?, *at, &data(*len, *seed)),
            Call::Truncate { path } => open(path, both | OFlags::TRUNC, 0).map(drop),
            Call::Chmod { path, mode } => chmod(&path[..], Mode::from_raw_mode((*mode).into())),
            Call::Chown { path, uid, gid } => chown(
                &path[..],
                Some(Uid::from_raw(*uid)),
                Some(Gid::from_raw(*gid)),
            ),
            Call::SetXattr {
                path,
                name,
                value,
                mode,
            } => setxattr(&path[..], *name, value, xattr_flags(*mode)),
            Call::RemoveXattr { path, name } => removexattr(&path[..], *name),
            Call::SetTimes { path, atime, mtime } => set_times(path, *atime, *mtime),
            Call::SetFlags { path, flags } => set_flags(path, *flags),
            Call::SetProject { .. } => panic!("for dioxide only"),
            Call::Open { path, slot } => self.keep(*slot, open(path, both, 0)?),
            Call::Unnamed { dir, slot } => {
                self.keep(*slot, open(dir, both | OFlags::TMPFILE, 0o600)?)
            }
            Call::LinkOpen { slot, path } => {
                linkat(&self.0[slot], "", CWD, &path[..], AtFlags::EMPTY_PATH)
            }
            Call::WriteOpen {
                slot,
                at,
                len,
                seed,
            } => write(&self.0[slot], *at, &data(*len, *seed)),
            Call::Close { slot } => {
                self.0.remove(slot);
                Ok(())
            }
            Call::Fsync { path } => rustix::fs::fsync(open(path, OFlags::RDONLY, 0)?),
            Call::Sync => syncfs(open(b"/", OFlags::RDONLY, 0)?),
        }
    }

    fn keep(&mut self, slot: u32, fd: OwnedFd) -> Result<(), Errno> {
        self.0.insert(slot, fd);
        Ok(())
    }
}

/// What the mounted tree looks like.
pub fn view(mount: &Path) -> View {
    let (mut view, mut firsts) = (View::new(), Firsts::default());
    let mut paths = vec![b"/".to_vec()];
    let mut next = 0;
    while let Some(path) = paths.get(next).cloned() {
        next += 1;
        let host = mount.join(OsStr::from_bytes(&path[1..]));
        let about = fs::symlink_metadata(&host).expect("it is listed");
        let kind = kind(about.file_type());
        let bytes = match kind {
            FileType::Regular => fs::read(&host).expect("it reads"),
            FileType::Symlink => {
                let target = fs::read_link(&host).expect("a symlink");
                target.into_os_string().into_vec()
            }
            FileType::Directory => {
                paths.extend(children(&host, &path));
                Vec::new()
            }
            _ => Vec::new(),
        };
        let is_device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
        let device = (
            rustix::fs::major(about.rdev()),
            rustix::fs::minor(about.rdev()),
        );
        let entry = Entry {
            kind,
            attributes: attributes(&host, &about, kind),
            nlink: about.nlink() as u32,
            device: is_device.then_some(device),
            bytes,
            first: firsts.of(about.ino(), &path),
        };
        view.insert(path, entry);
    }
    view
}

fn attributes(host: &Path, about: &fs::Metadata, kind: FileType) -> Attributes {
    let flags = match kind {
        FileType::Regular | FileType::Directory => {
            let file = fs::File::open(host).expect("it is listed");
            ioctl_getflags(&file).expect("ext4 has flags").bits()
        }
        _ => 0,
    };
    Attributes {
        mode: (about.mode() & 0o7777) as u16,
        uid: about.uid(),
        gid: about.gid(),
        flags: shown(kind, flags),
        project: 0,
        atime: asked_for(about.atime()),
        mtime: asked_for(about.mtime()),
        xattrs: xattrs(host),
    }
}

fn xattrs(host: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65536];
    let len = llistxattr(host, &mut names[..]).expect("it is listed");
    let names = names[..len].split(|&b| b == 0);
    let value = |name: &[u8]| {
        let mut value = vec![0; 65536];
        let len = lgetxattr(host, name, &mut value[..]).expect("it is listed");
        value.truncate(len);
        (name.to_vec(), value)
    };
    names.filter(|name| !name.is_empty()).map(value).collect()
}

fn children(host: &Path, path: &[u8]) -> Vec<Vec<u8>> {
    let base = if path == b"/" { b"" } else { path };
    let entries = fs::read_dir(host).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut paths: Vec<_> = names
        .map(|name| [base, b"/", name.as_bytes()].concat())
        .collect();
    paths.sort();
    paths
}

fn kind(of: fs::FileType) -> FileType {
    match of {
        of if of.is_file() => FileType::Regular,
        of if of.is_dir() => FileType::Directory,
        of if of.is_symlink() => FileType::Symlink,
        of if of.is_fifo() => FileType::Fifo,
        of if of.is_socket() => FileType::Socket,
        of if of.is_char_device() => FileType::CharDevice,
        _ => FileType::BlockDevice,
    }
}
