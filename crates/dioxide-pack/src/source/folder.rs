//! A tree from a folder of the host.
//!
//! Reads metadata first and contents when they are written; a file that is another by then, or has
//! another size or time, is an error. What cannot be read is an error too, with its name; mount points
//! are crossed. Symlinks are never followed: every directory is opened by its name in the one above, and
//! what is in it is looked at and opened from there, so that whatever others do in the folder meanwhile,
//! nothing is read outside of it. That takes a descriptor for each level, and some for directories of which
//! files are being looked at.

mod look;
mod scan;

use crate::entry::{Entry, FileData, split};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::source::segments;
use crate::tree::{Builder, Contents, Tree};
use look::Found;
use rustix::fs::{CWD, Mode, OFlags, SeekFrom, openat, seek};
use rustix::io::Errno;
use scan::Scan;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Reads the tree below `root`, without contents. Blocks.
///
/// # Errors
/// [`Error::Host`] for what cannot be read; [`Error::Refused`].
pub fn read(root: &Path, filter: Filter) -> Result<Tree> {
    let mut way = Way::new(root)?;
    let mut scan = Scan::new(root, Builder::new(filter));
    scan.run(&mut way)?;
    scan.into_tree(way)
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

/// The way from the folder to a directory in it, held open.
struct Way {
    root: PathBuf,
    opened: Arc<OwnedFd>,
    /// The directories on it, with their paths.
    below: Vec<(Vec<u8>, Arc<OwnedFd>)>,
}

const NO_SIZE: &str = "it has content, but its size is 0, as files of /proc have: leave it out";
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

impl Way {
    /// The folder itself may be a symlink.
    fn new(root: &Path) -> Result<Way> {
        let opened = openat(CWD, root, DIRECTORY, Mode::empty());
        Ok(Way {
            root: root.to_owned(),
            opened: Arc::new(opened.map_err(failed(|| root.to_owned()))?),
            below: Vec::new(),
        })
    }

    /// Goes back as far as needed, and from there to `directory`.
    fn to(&mut self, directory: &[u8]) -> Result<&Arc<OwnedFd>> {
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
            let entered = entered.map_err(failed(|| host_path(&self.root, next)))?;
            self.below.push((next.to_vec(), Arc::new(entered)));
        }
        Ok(self.here())
    }

    fn here(&self) -> &Arc<OwnedFd> {
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

fn failed(path: impl Fn() -> PathBuf) -> impl Fn(Errno) -> Error {
    move |error| Error::host(path().display().to_string(), error)
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
        self.way.to(split(&entry.path).0)?;
        let found = Found::new(self.way.here(), &self.way.root, &entry.path);
        let (stamp, buf) = (self.stamps[data.handle as usize], &mut self.buf);
        let host = || found.host();
        read_same(&found.open()?, stamp, host, &data.segments, buf, each)
    }
}

/// Where the data of a regular file are.
///
/// # Errors
/// Those of the host; [`Error::Refused`].
pub(super) fn segments_of(
    file: &File,
    path: &[u8],
    host: impl Fn() -> PathBuf,
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
/// Those of the host, also for content that no size tells of, and of `each`; [`Error::Changed`].
pub(super) fn read_same(
    file: &File,
    stamp: Stamp,
    host: impl Fn() -> PathBuf,
    segments: &[Range<u64>],
    buf: &mut [u8],
    each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let name = || host().display().to_string();
    let told = |error: io::Error| Error::host(name(), error);
    let same = || Ok(Stamp::of(&file.metadata()?) == stamp);
    let check = |same: io::Result<bool>| match same.map_err(told) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Changed { name: name() }),
        Err(error) => Err(error),
    };
    check(same())?;
    if stamp.size == 0 && file.read_at(&mut [0], 0).map_err(told)? > 0 {
        check(same())?;
        return Err(told(io::Error::other(NO_SIZE)));
    }
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
