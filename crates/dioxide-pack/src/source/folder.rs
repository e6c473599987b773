//! A tree from a folder of the host.
//!
//! Reads metadata first and contents when they are written; a file that is another by then, or has
//! another size or time, is an error. What cannot be read is an error too, with its name; mount points
//! are crossed. Symlinks are never followed: every directory is opened by its name in the one above, and
//! what is in it is looked at and opened from there, so that whatever others do in the folder meanwhile,
//! nothing is read outside of it. That takes a descriptor for each level.

use crate::entry::{Entry, FileData, Kind, join, split};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::source::{CHUNK_BYTES, segments};
use crate::tree::{Builder, Contents, Tree, clean_path};
use dioxide::{Timestamp, Xattr};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, SeekFrom, fgetxattr, flistxattr, lgetxattr,
    llistxattr, major, minor, openat, readlinkat, seek, statat,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
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

/// Reads the tree below `root`, without contents. Blocks.
///
/// # Errors
/// [`Error::Host`] for what cannot be read; [`Error::Refused`].
pub fn read(root: &Path, filter: Filter) -> Result<Tree> {
    let mut way = Way::new(root)?;
    let mut scan = Scan {
        root,
        builder: Builder::new(filter),
        links: HashMap::new(),
        stamps: Vec::new(),
    };
    let mut directories = vec![Vec::new()];
    scan.add(way.to(b"")?, b"")?;
    while let Some(directory) = directories.pop() {
        let here = way.to(&directory)?;
        for name in scan.names(here, &directory)? {
            let path = join(&directory, &name);
            clean_path(&path).map_err(|why| Error::refused(&path, why))?;
            if !scan.builder.excludes(&path) && scan.add(here, &path)? {
                directories.push(path);
            }
        }
    }
    let contents = FolderContents {
        way,
        stamps: scan.stamps,
        buf: vec![0; CHUNK_BYTES],
    };
    scan.builder.finish(Box::new(contents))
}

/// What tells that a file is still the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    dev: u64,
    ino: u64,
    size: u64,
    mtime: (i64, i64),
}

impl Stamp {
    pub(crate) fn of(metadata: &fs::Metadata) -> Stamp {
        Stamp {
            dev: metadata.dev(),
            ino: metadata.ino(),
            size: metadata.size(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

struct Scan<'a> {
    root: &'a Path,
    builder: Builder,
    /// The first name of what has several.
    links: HashMap<(u64, u64), Vec<u8>>,
    stamps: Vec<Stamp>,
}

/// The way from the folder to a directory in it, held open.
struct Way {
    root: PathBuf,
    opened: OwnedFd,
    /// The directories on it, with their paths.
    below: Vec<(Vec<u8>, OwnedFd)>,
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

impl Way {
    /// The folder itself may be a symlink.
    fn new(root: &Path) -> Result<Way> {
        let opened = openat(CWD, root, DIRECTORY, Mode::empty());
        Ok(Way {
            root: root.to_owned(),
            opened: opened.map_err(failed(root))?,
            below: Vec::new(),
        })
    }

    /// Goes back as far as needed, and from there to `directory`.
    fn to(&mut self, directory: &[u8]) -> Result<&OwnedFd> {
        let leads_there = |path: &[u8]| match directory.strip_prefix(path) {
            Some(rest) => matches!(rest, [] | [b'/', ..]),
            None => false,
        };
        while self.below.pop_if(|(path, _)| !leads_there(path)).is_some() {}
        while let Some(next) = self.next(directory) {
            let name = OsStr::from_bytes(split(next).1);
            let entered = openat(
                self.here(),
                name,
                DIRECTORY | OFlags::NOFOLLOW,
                Mode::empty(),
            );
            let entered = entered.map_err(|error| failed(&host_path(&self.root, next))(error))?;
            self.below.push((next.to_vec(), entered));
        }
        Ok(self.here())
    }

    fn here(&self) -> &OwnedFd {
        self.below.last().map_or(&self.opened, |(_, opened)| opened)
    }

    /// The path of what comes next on the way to `directory`, which leads through here.
    fn next<'a>(&self, directory: &'a [u8]) -> Option<&'a [u8]> {
        let done = self.below.last().map_or(0, |(path, _)| path.len() + 1);
        let rest = directory.get(done..).filter(|rest| !rest.is_empty())?;
        let len = rest.iter().position(|&byte| byte == b'/');
        Some(&directory[..done + len.unwrap_or(rest.len())])
    }
}

fn host_path(root: &Path, path: &[u8]) -> PathBuf {
    match path {
        // With a slash, in case it is a symlink.
        b"" => root.join("."),
        _ => root.join(OsStr::from_bytes(path)),
    }
}

fn failed(path: &Path) -> impl Fn(Errno) -> Error {
    move |error| Error::host(path.display().to_string(), error)
}

impl Scan<'_> {
    fn names(&self, here: &OwnedFd, directory: &[u8]) -> Result<Vec<Vec<u8>>> {
        let host = host_path(self.root, directory);
        let entries = Dir::read_from(here).map_err(failed(&host))?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_bytes().to_vec()));
        let names: rustix::io::Result<Vec<Vec<u8>>> = names.collect();
        let mut names = names.map_err(failed(&host))?;
        names.retain(|name| name != b"." && name != b"..");
        names.sort();
        Ok(names)
    }

    /// Adds a file of the directory that is open; whether it is a directory.
    fn add(&mut self, here: &OwnedFd, path: &[u8]) -> Result<bool> {
        let host = host_path(self.root, path);
        let mut file = Found::new(here, path, &host);
        let stat = statat(here, file.name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(failed(&host))?;
        let file_type = FileType::from_raw_mode(stat.st_mode);
        let id = (stat.st_dev, stat.st_ino);
        if self.builder.leaves_out(id) {
            return Ok(false);
        }
        if file_type == FileType::RegularFile {
            file.opened = Some(file.open()?);
        }
        let linked = file_type != FileType::Directory && stat.st_nlink > 1;
        let kind = match self.links.get(&id).filter(|_| linked) {
            Some(first) => Kind::HardLink(first.clone()),
            None => self.kind(&file, path, file_type, &stat)?,
        };
        if linked {
            self.links.entry(id).or_insert_with(|| path.to_vec());
        }
        let xattrs = self.xattrs(&file, path)?;
        self.builder.add(Entry {
            path: path.to_vec(),
            kind,
            permissions: (stat.st_mode & 0o7777) as u16,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: Timestamp {
                secs: stat.st_mtime,
                nanos: stat.st_mtime_nsec as u32,
            },
            flags: 0,
            project: 0,
            xattrs,
        })?;
        Ok(file_type == FileType::Directory)
    }

    fn kind(
        &mut self,
        file: &Found<'_>,
        path: &[u8],
        file_type: FileType,
        stat: &rustix::fs::Stat,
    ) -> Result<Kind> {
        let device = (major(stat.st_rdev), minor(stat.st_rdev));
        Ok(match file_type {
            FileType::Directory => Kind::Directory,
            FileType::RegularFile => Kind::File(self.data(file, path, stat)?),
            FileType::Symlink => {
                let target = readlinkat(file.here, file.name, vec![]);
                Kind::Symlink(target.map_err(failed(file.host))?.into_bytes())
            }
            FileType::CharacterDevice => Kind::CharDevice(device.0, device.1),
            FileType::BlockDevice => Kind::BlockDevice(device.0, device.1),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            _ => return Err(failed(file.host)(Errno::OPNOTSUPP)),
        })
    }

    /// Asks every file for holes, whatever its count of blocks says: as many may be of attributes, or lie beyond the end.
    fn data(
        &mut self,
        found: &Found<'_>,
        path: &[u8],
        stat: &rustix::fs::Stat,
    ) -> Result<FileData> {
        let size = stat.st_size as u64;
        self.stamps.push(Stamp {
            dev: stat.st_dev,
            ino: stat.st_ino,
            size,
            mtime: (stat.st_mtime, stat.st_mtime_nsec as i64),
        });
        let file = found.opened.as_ref().expect("it is a regular file");
        Ok(FileData {
            size,
            segments: segments_of(file, path, found.host, size)?,
            handle: self.stamps.len() as u64 - 1,
        })
    }

    fn xattrs(&mut self, file: &Found<'_>, path: &[u8]) -> Result<Vec<Xattr>> {
        let names = match bytes(|buf| file.list_xattrs(buf)) {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            names => names.map_err(failed(file.host))?,
        };
        let mut xattrs = Vec::new();
        for name in names
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
        {
            if !KEPT.iter().any(|kept| name.starts_with(kept)) {
                let name = String::from_utf8_lossy(name);
                self.builder.warn(
                    path,
                    format!("left out the attribute {name}, which ext4 cannot have"),
                );
                continue;
            }
            let value = bytes(|buf| file.xattr(OsStr::from_bytes(name), buf));
            xattrs.push(Xattr {
                name: name.to_vec(),
                value: value.map_err(failed(file.host))?,
            });
        }
        Ok(xattrs)
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

/// A file in a directory that is open.
struct Found<'a> {
    here: &'a OwnedFd,
    name: &'a OsStr,
    /// As errors have it.
    host: &'a Path,
    opened: Option<File>,
}

impl<'a> Found<'a> {
    fn new(here: &'a OwnedFd, path: &'a [u8], host: &'a Path) -> Found<'a> {
        let name = match path {
            b"" => OsStr::new("."),
            _ => OsStr::from_bytes(split(path).1),
        };
        Found {
            here,
            name,
            host,
            opened: None,
        }
    }

    /// Not through a symlink, and without waiting for whoever writes into a pipe that took its place.
    fn open(&self) -> Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = openat(self.here, self.name, flags, Mode::empty());
        Ok(opened.map_err(failed(self.host))?.into())
    }

    fn list_xattrs(&self, buf: &mut [u8]) -> rustix::io::Result<usize> {
        match &self.opened {
            Some(file) => flistxattr(file, buf),
            None => llistxattr(self.path(), buf),
        }
    }

    fn xattr(&self, name: &OsStr, buf: &mut [u8]) -> rustix::io::Result<usize> {
        match &self.opened {
            Some(file) => fgetxattr(file, name, buf),
            None => lgetxattr(self.path(), name, buf),
        }
    }

    /// The only way to attributes from an open directory; slower than opening the file.
    fn path(&self) -> PathBuf {
        let here = PathBuf::from(format!("/proc/self/fd/{}", self.here.as_raw_fd()));
        match here.exists() {
            true => here.join(self.name),
            // Nothing is mounted on /proc.
            false => self.host.to_owned(),
        }
    }
}

struct FolderContents {
    way: Way,
    stamps: Vec<Stamp>,
    buf: Vec<u8>,
}

impl Contents for FolderContents {
    fn read(
        &mut self,
        entry: &Entry,
        data: &FileData,
        each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let host = host_path(&self.way.root, &entry.path);
        let here = self.way.to(split(&entry.path).0)?;
        let file = Found::new(here, &entry.path, &host).open()?;
        let stamp = self.stamps[data.handle as usize];
        read_same(&file, stamp, &host, &data.segments, &mut self.buf, each)
    }
}

/// Where the data of a regular file are.
///
/// # Errors
/// Those of the host; [`Error::Refused`].
pub(super) fn segments_of(
    file: &File,
    path: &[u8],
    host: &Path,
    size: u64,
) -> Result<Vec<Range<u64>>> {
    let failed = failed(host);
    let data = |at| match seek(file, SeekFrom::Data(at)) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NXIO) => Ok(None),
        // A file system that knows no holes has none.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(at)),
        Err(error) => Err(failed(error)),
    };
    let hole = |at| match seek(file, SeekFrom::Hole(at)) {
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(size),
        found => found.map_err(&failed),
    };
    segments(path, size, data, hole)
}

/// Reads the segments of a file that must be what its stamp says.
///
/// # Errors
/// Those of the host, and of `each`; [`Error::Changed`].
pub(super) fn read_same(
    file: &File,
    stamp: Stamp,
    host: &Path,
    segments: &[Range<u64>],
    buf: &mut [u8],
    each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let told = |error| Error::host(host.display().to_string(), error);
    let same = || Ok(Stamp::of(&file.metadata()?) == stamp);
    let check = |same: std::io::Result<bool>| match same.map_err(told) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Changed {
            name: host.display().to_string(),
        }),
        Err(error) => Err(error),
    };
    check(same())?;
    for segment in segments {
        let mut at = segment.start;
        while at < segment.end {
            let most = (segment.end - at).min(buf.len() as u64) as usize;
            let count = file.read_at(&mut buf[..most], at).map_err(told)?;
            check(Ok(count > 0))?;
            each(at, &buf[..count])?;
            at += count as u64;
        }
    }
    check(same())
}
