//! A tree from an image, through the library's own interface; the image is only read.

use crate::entry::{Entry, FileData, Kind, join};
use crate::error::{Error, Result, shown};
use crate::filter::Filter;
use crate::source::{CHUNK_BYTES, segments};
use crate::tree::{Builder, Contents, Tree, clean_path, weight};
use dioxide::{Buf, File, FileType, Fs, Metadata, OpenOptions};
use std::collections::{HashMap, HashSet};

/// Reads the tree below the directory `root` of a file system, without contents. Blocks.
///
/// # Errors
/// [`Error::Image`] for what cannot be read; [`Error::Refused`].
pub fn read(fs: &Fs, root: &[u8], filter: Filter) -> Result<Tree> {
    let mut scan = Scan {
        fs,
        root,
        builder: Builder::new(filter),
        links: HashMap::new(),
        seen: HashSet::new(),
    };
    scan.add(b"")?;
    let mut directories = vec![Vec::new()];
    while let Some(directory) = directories.pop() {
        for name in scan.names(&directory)? {
            let path = join(&directory, &name);
            clean_path(&path).map_err(|why| Error::refused(&path, why))?;
            if !scan.builder.excludes(&path) && scan.add(&path)? {
                directories.push(path);
            }
        }
    }
    scan.builder.finish(Box::new(ImageContents {
        fs: fs.clone(),
        root: root.to_owned(),
        buf: Buf::zeroed(CHUNK_BYTES),
    }))
}

struct Scan<'a> {
    fs: &'a Fs,
    root: &'a [u8],
    builder: Builder,
    /// The first name of what has several.
    links: HashMap<u32, Vec<u8>>,
    /// Directories: a damaged image may have one in several places.
    seen: HashSet<u32>,
}

/// The path in the image. The root ends with a slash: it may be a symlink to a directory.
fn image_path(root: &[u8], path: &[u8]) -> Vec<u8> {
    [root, b"/", path].concat()
}

fn failed(path: &[u8]) -> impl Fn(dioxide::Error) -> Error {
    // The root's own.
    let named = path.strip_suffix(b"/").filter(|named| !named.is_empty());
    move |source| Error::Image {
        name: shown(named.unwrap_or(path)),
        source,
    }
}

fn open(fs: &Fs, root: &[u8], path: &[u8]) -> Result<File> {
    let path = image_path(root, path);
    OpenOptions::new()
        .read(true)
        .open(fs, &path)
        .map_err(failed(&path))
}

impl Scan<'_> {
    fn names(&self, directory: &[u8]) -> Result<Vec<Vec<u8>>> {
        let path = image_path(self.root, directory);
        let entries = self.fs.read_dir(&path).map_err(failed(&path))?;
        let names = entries.into_iter().map(|entry| entry.name);
        let (dots, mut names): (Vec<_>, Vec<_>) =
            names.partition(|name| name == b"." || name == b"..");
        if dots.len() > 2 {
            return Err(Error::refused(
                directory,
                "a directory with more than one '.' or '..'",
            ));
        }
        names.sort();
        Ok(names)
    }

    /// Adds a file; whether it is a directory.
    fn add(&mut self, path: &[u8]) -> Result<bool> {
        let full = image_path(self.root, path);
        let metadata = self.fs.symlink_metadata(&full).map_err(failed(&full))?;
        let is_directory = metadata.file_type == FileType::Directory;
        if is_directory && !self.seen.insert(metadata.ino) {
            return Err(Error::refused(path, "a directory with two names"));
        }
        let linked = !is_directory && metadata.nlink > 1;
        let kind = match self.links.get(&metadata.ino).filter(|_| linked) {
            Some(first) => Kind::HardLink(first.clone()),
            None => self.kind(path, &full, &metadata)?,
        };
        if linked {
            self.links
                .entry(metadata.ino)
                .or_insert_with(|| path.to_vec());
        }
        let node = self.fs.symlink_node(&full).map_err(failed(&full))?;
        let xattrs = node.xattrs().map_err(failed(&full))?;
        // Inodes may share them, so that there are more of them than bytes of the image.
        self.builder.hold(path, weight(&xattrs))?;
        self.builder.add(Entry {
            path: path.to_vec(),
            kind,
            permissions: metadata.permissions,
            uid: metadata.uid,
            gid: metadata.gid,
            mtime: metadata.mtime,
            flags: metadata.changeable_flags(),
            project: metadata.project.unwrap_or(0),
            xattrs,
        })?;
        Ok(is_directory)
    }

    fn kind(&self, path: &[u8], full: &[u8], metadata: &Metadata) -> Result<Kind> {
        let device = metadata.device.unwrap_or_default();
        Ok(match metadata.file_type {
            FileType::Directory => Kind::Directory,
            FileType::Regular => Kind::File(self.data(path, metadata.size)?),
            FileType::Symlink => Kind::Symlink(self.fs.read_link(full).map_err(failed(full))?),
            FileType::CharDevice => Kind::CharDevice(device.0, device.1),
            FileType::BlockDevice => Kind::BlockDevice(device.0, device.1),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::Unknown => return Err(Error::refused(path, "an inode of no valid type")),
        })
    }

    fn data(&self, path: &[u8], size: u64) -> Result<FileData> {
        let file = open(self.fs, self.root, path)?;
        let data = |at| file.seek_data(at).map_err(failed(path));
        let hole = |at| Ok(file.seek_hole(at).map_err(failed(path))?.unwrap_or(size));
        Ok(FileData {
            size,
            segments: segments(path, size, data, hole)?,
            handle: 0,
        })
    }
}

struct ImageContents {
    fs: Fs,
    root: Vec<u8>,
    buf: Buf,
}

impl Contents for ImageContents {
    fn read(
        &mut self,
        entry: &Entry,
        data: &FileData,
        each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        if data.segments.is_empty() {
            return Ok(());
        }
        let file = open(&self.fs, &self.root, &entry.path)?;
        for segment in &data.segments {
            let mut at = segment.start;
            while at < segment.end {
                let most = (segment.end - at).min(self.buf.len() as u64) as usize;
                let count = file
                    .read_at(&mut self.buf[..most], at)
                    .map_err(failed(&entry.path))?;
                if count == 0 {
                    return Err(Error::Changed {
                        name: shown(&entry.path),
                    });
                }
                each(at, &self.buf[..count])?;
                at += count as u64;
            }
        }
        Ok(())
    }
}
