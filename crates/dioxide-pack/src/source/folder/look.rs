//! What a file of a folder is, without its contents.

use super::{Stamp, failed, host_path, segments_of};
use crate::entry::split;
use crate::error::Result;
use dioxide::{Timestamp, Xattr};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fgetxattr, flistxattr, lgetxattr, llistxattr, openat,
    readlinkat, statat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Attributes that an ext4 can have.
const KEPT: [&[u8]; 6] = [
    b"user.",
    b"trusted.",
    b"security.",
    b"gnu.",
    b"system.posix_acl_access",
    b"system.posix_acl_default",
];

/// What was found out about a file.
pub(super) struct Seen {
    pub(super) stat: Stat,
    pub(super) what: What,
    pub(super) xattrs: Vec<Xattr>,
    /// Names of attributes that ext4 cannot have.
    pub(super) left_out: Vec<Vec<u8>>,
}

/// What it has beside its metadata.
pub(super) enum What {
    /// Where its data are.
    File(Vec<Range<u64>>),
    /// Where it leads.
    Symlink(Vec<u8>),
    Other(FileType),
}

impl Seen {
    pub(super) fn id(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }

    pub(super) fn stamp(&self) -> Stamp {
        Stamp {
            dev: self.stat.st_dev,
            ino: self.stat.st_ino,
            size: self.stat.st_size as u64,
            mtime: (self.stat.st_mtime, self.stat.st_mtime_nsec as i64),
        }
    }

    pub(super) fn mtime(&self) -> Timestamp {
        Timestamp {
            secs: self.stat.st_mtime,
            nanos: self.stat.st_mtime_nsec as u32,
        }
    }

    /// It has other names, perhaps.
    pub(super) fn is_linked(&self) -> bool {
        !matches!(self.what, What::Other(FileType::Directory)) && self.stat.st_nlink > 1
    }
}

/// A file in a directory that is open.
pub(super) struct Found<'a> {
    here: &'a OwnedFd,
    name: &'a OsStr,
    /// The folder, and the file's path in it: for errors.
    root: &'a Path,
    path: &'a [u8],
}

impl<'a> Found<'a> {
    pub(super) fn new(here: &'a OwnedFd, root: &'a Path, path: &'a [u8]) -> Found<'a> {
        let name = match path {
            b"" => OsStr::new("."),
            _ => OsStr::from_bytes(split(path).1),
        };
        Found {
            here,
            name,
            root,
            path,
        }
    }

    pub(super) fn host(&self) -> PathBuf {
        host_path(self.root, self.path)
    }

    pub(super) fn stat(&self) -> Result<Stat> {
        let stat = statat(self.here, self.name, AtFlags::SYMLINK_NOFOLLOW);
        stat.map_err(failed(|| self.host()))
    }

    /// Not through a symlink, and without waiting for whoever writes into a pipe that took its place.
    pub(super) fn open(&self) -> Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = openat(self.here, self.name, flags, Mode::empty());
        Ok(opened.map_err(failed(|| self.host()))?.into())
    }

    /// All of it but its contents. None of the file that is left out.
    pub(super) fn look(&self, left_out: Option<(u64, u64)>) -> Result<Option<Seen>> {
        let stat = self.stat()?;
        if left_out == Some((stat.st_dev, stat.st_ino)) {
            return Ok(None);
        }
        let (what, opened) = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let (file, size) = (self.open()?, stat.st_size as u64);
                // Whatever its count of blocks says: as many may be of attributes, or lie beyond the end.
                let segments = segments_of(&file, self.path, || self.host(), size)?;
                (What::File(segments), Some(file))
            }
            FileType::Symlink => {
                let target = readlinkat(self.here, self.name, vec![]);
                let target = target.map_err(failed(|| self.host()))?;
                (What::Symlink(target.into_bytes()), None)
            }
            other => (What::Other(other), None),
        };
        let (xattrs, left_out) = self.xattrs(opened.as_ref())?;
        Ok(Some(Seen {
            stat,
            what,
            xattrs,
            left_out,
        }))
    }

    /// Those that are kept, and the names of the others.
    fn xattrs(&self, opened: Option<&File>) -> Result<(Vec<Xattr>, Vec<Vec<u8>>)> {
        let (mut xattrs, mut left_out) = (Vec::new(), Vec::new());
        let names = match bytes(|buf| self.list_xattrs(opened, buf)) {
            Err(Errno::OPNOTSUPP) => return Ok((xattrs, left_out)),
            names => names.map_err(failed(|| self.host()))?,
        };
        for name in names
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
        {
            if !KEPT.iter().any(|kept| name.starts_with(kept)) {
                left_out.push(name.to_vec());
                continue;
            }
            let value = bytes(|buf| self.xattr(opened, OsStr::from_bytes(name), buf));
            xattrs.push(Xattr {
                name: name.to_vec(),
                value: value.map_err(failed(|| self.host()))?,
            });
        }
        Ok((xattrs, left_out))
    }

    fn list_xattrs(&self, opened: Option<&File>, buf: &mut [u8]) -> rustix::io::Result<usize> {
        match opened {
            Some(file) => flistxattr(file, buf),
            None => llistxattr(self.path_here(), buf),
        }
    }

    fn xattr(
        &self,
        opened: Option<&File>,
        name: &OsStr,
        buf: &mut [u8],
    ) -> rustix::io::Result<usize> {
        match opened {
            Some(file) => fgetxattr(file, name, buf),
            None => lgetxattr(self.path_here(), name, buf),
        }
    }

    /// The only way to attributes from an open directory; slower than opening the file.
    fn path_here(&self) -> PathBuf {
        let here = PathBuf::from(format!("/proc/self/fd/{}", self.here.as_raw_fd()));
        match here.exists() {
            true => here.join(self.name),
            // Nothing is mounted on /proc.
            false => self.host(),
        }
    }
}

/// What a call fills a buffer with that must be large enough.
fn bytes(
    mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    let mut buf = vec![0; 1024];
    loop {
        match call(&mut buf) {
            Ok(len) => {
                buf.truncate(len);
                return Ok(buf);
            }
            // Linux has no list and no value of over 64 KiB.
            Err(Errno::RANGE) if buf.len() < 1 << 17 => buf.resize(buf.len() * 4, 0),
            Err(error) => return Err(error),
        }
    }
}
