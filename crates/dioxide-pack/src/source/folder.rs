//! A tree from a folder of the host.
//!
//! Reads metadata first and contents when they are written; a file that is another by then, or has
//! another size or time, is an error. What cannot be read is an error too, with its name; mount points
//! are crossed. Symlinks are never followed.

use crate::entry::{Entry, FileData, Kind, join};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::source::{CHUNK_BYTES, segments};
use crate::tree::{Builder, Contents, Tree, clean_path};
use dioxide::{Timestamp, Xattr};
use rustix::fs::{
    FileType, Mode, OFlags, SeekFrom, lgetxattr, llistxattr, lstat, major, minor, open, readlink,
    seek,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Attributes that an ext4 can have.
const KEPT: [&[u8]; 5] = [
    b"user.",
    b"trusted.",
    b"security.",
    b"system.posix_acl_access",
    b"system.posix_acl_default",
];

/// No file so small is asked for holes if it has a block: asking takes opening it. Some file systems call much more a block.
const SMALL_BYTES: u64 = 4096;

/// Reads the tree below `root`, without contents. Blocks.
///
/// # Errors
/// [`Error::Host`] for what cannot be read; [`Error::Refused`].
pub fn read(root: &Path, filter: Filter) -> Result<Tree> {
    let mut scan = Scan {
        root,
        builder: Builder::new(filter),
        links: HashMap::new(),
        stamps: Vec::new(),
    };
    if !fs::metadata(root)
        .map_err(|error| Error::host(root.display().to_string(), error))?
        .is_dir()
    {
        return Err(Error::host(root.display().to_string(), Errno::NOTDIR));
    }
    let mut directories = vec![Vec::new()];
    scan.add(b"")?;
    while let Some(directory) = directories.pop() {
        for name in scan.names(&directory)? {
            let path = join(&directory, &name);
            clean_path(&path).map_err(|why| Error::refused(&path, why))?;
            if !scan.builder.excludes(&path) && scan.add(&path)? {
                directories.push(path);
            }
        }
    }
    let contents = FolderContents {
        root: root.to_owned(),
        stamps: scan.stamps,
        buf: vec![0; CHUNK_BYTES],
    };
    scan.builder.finish(Box::new(contents))
}

/// What tells that a file is still the same.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    dev: u64,
    ino: u64,
    size: u64,
    mtime: (i64, i64),
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Stamp {
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
    fn names(&self, directory: &[u8]) -> Result<Vec<Vec<u8>>> {
        let host = host_path(self.root, directory);
        let told = |error| Error::host(host.display().to_string(), error);
        let entries = fs::read_dir(&host).map_err(told)?;
        let name =
            |entry: std::io::Result<fs::DirEntry>| Ok(entry?.file_name().as_bytes().to_vec());
        let mut names: Vec<Vec<u8>> = entries
            .map(name)
            .collect::<std::io::Result<_>>()
            .map_err(told)?;
        names.sort();
        Ok(names)
    }

    /// Adds a file; whether it is a directory.
    fn add(&mut self, path: &[u8]) -> Result<bool> {
        let host = host_path(self.root, path);
        let stat = lstat(&host).map_err(failed(&host))?;
        let file_type = FileType::from_raw_mode(stat.st_mode);
        let id = (stat.st_dev, stat.st_ino);
        if self.builder.leaves_out(id) {
            return Ok(false);
        }
        let linked = file_type != FileType::Directory && stat.st_nlink > 1;
        let kind = match self.links.get(&id).filter(|_| linked) {
            Some(first) => Kind::HardLink(first.clone()),
            None => self.kind(&host, file_type, &stat)?,
        };
        if linked {
            self.links.entry(id).or_insert_with(|| path.to_vec());
        }
        let xattrs = self.xattrs(&host, path)?;
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

    fn kind(&mut self, host: &Path, file_type: FileType, stat: &rustix::fs::Stat) -> Result<Kind> {
        let device = (major(stat.st_rdev), minor(stat.st_rdev));
        Ok(match file_type {
            FileType::Directory => Kind::Directory,
            FileType::RegularFile => Kind::File(self.data(host, stat)?),
            FileType::Symlink => {
                Kind::Symlink(readlink(host, vec![]).map_err(failed(host))?.into_bytes())
            }
            FileType::CharacterDevice => Kind::CharDevice(device.0, device.1),
            FileType::BlockDevice => Kind::BlockDevice(device.0, device.1),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            _ => return Err(Error::host(host.display().to_string(), Errno::OPNOTSUPP)),
        })
    }

    /// Asks for holes unless it is one block, and is there: of several, a hole may hide behind as many blocks that are of attributes, or
    /// lie beyond the end.
    fn data(&mut self, host: &Path, stat: &rustix::fs::Stat) -> Result<FileData> {
        let size = stat.st_size as u64;
        self.stamps.push(Stamp {
            dev: stat.st_dev,
            ino: stat.st_ino,
            size,
            mtime: (stat.st_mtime, stat.st_mtime_nsec as i64),
        });
        let whole = FileData::whole(size, self.stamps.len() as u64 - 1);
        let block = (stat.st_blksize as u64).max(512);
        let needed = size..=size.next_multiple_of(block);
        if size <= block.min(SMALL_BYTES)
            && needed.contains(&(stat.st_blocks as u64).saturating_mul(512))
        {
            return Ok(whole);
        }
        let file = open_file(host)?;
        let data = |at| match seek(&file, SeekFrom::Data(at)) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(failed(host)(error)),
        };
        let hole = |at| seek(&file, SeekFrom::Hole(at)).map_err(failed(host));
        let segments = segments(size, data, hole)?;
        Ok(FileData { segments, ..whole })
    }

    fn xattrs(&mut self, host: &Path, path: &[u8]) -> Result<Vec<Xattr>> {
        let names = match bytes(|buf| llistxattr(host, buf)) {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            names => names.map_err(failed(host))?,
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
            let value = bytes(|buf| lgetxattr(host, OsStr::from_bytes(name), buf));
            xattrs.push(Xattr {
                name: name.to_vec(),
                value: value.map_err(failed(host))?,
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

/// Not through a symlink, and without waiting for whoever writes into a pipe that took its place.
fn open_file(host: &Path) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(open(host, flags, Mode::empty())
        .map_err(failed(host))?
        .into())
}

struct FolderContents {
    root: PathBuf,
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
        let host = host_path(&self.root, &entry.path);
        let told = |error| Error::host(host.display().to_string(), error);
        let file = open_file(&host)?;
        let same = || Ok(Stamp::of(&file.metadata()?) == self.stamps[data.handle as usize]);
        let check = |same: std::io::Result<bool>| match same.map_err(told) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Changed {
                name: host.display().to_string(),
            }),
            Err(error) => Err(error),
        };
        check(same())?;
        for segment in &data.segments {
            let mut at = segment.start;
            while at < segment.end {
                let most = (segment.end - at).min(self.buf.len() as u64) as usize;
                let count = file.read_at(&mut self.buf[..most], at).map_err(told)?;
                check(Ok(count > 0))?;
                each(at, &self.buf[..count])?;
                at += count as u64;
            }
        }
        check(same())
    }
}
