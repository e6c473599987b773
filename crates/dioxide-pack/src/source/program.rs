//! A tree that a program makes, entry by entry.
//!
//! What it gives goes the way of what an archive has: the same checks, the same order, so that the same tree gives
//! the same bytes wherever it comes from.

use super::CHUNK_BYTES;
use super::folder::{self, Stamp};
use crate::entry::{Entry, FileData, Kind};
use crate::error::{Error, Result, shown};
use crate::filter::Filter;
use crate::tree::{Builder, Contents, Tree, clean_path, clean_target, weight};
use rustix::fs::{Mode, OFlags};
use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Gathers the entries of a tree, in any order; a hard link behind its file.
///
/// Paths are as in an archive: relative to the root, `./` and doubled slashes mean nothing. Directories that nobody adds,
/// the root among them, are made with mode `0755`, for user and group 0, with [`Filter::latest`] or 1970 as their time.
///
/// ```
/// use dioxide_pack::image::{self, ImageOptions};
/// use dioxide_pack::source::program::{Content, TreeBuilder};
/// use dioxide_pack::{Entry, Filter, Kind};
///
/// let mut builder = TreeBuilder::new(Filter::default());
/// builder.add(Entry::new("etc", Kind::Directory, 0o755))?;
/// builder.add_file(Entry::file("etc/hostname", 0o644), Content::bytes(b"box\n"))?;
/// builder.add(Entry::new("etc/name", Kind::Symlink(b"hostname".to_vec()), 0o777))?;
/// builder.add(Entry::new("dev/null", Kind::CharDevice(1, 3), 0o666))?;
/// let mut swap = Entry::file("swap", 0o600);
/// swap.uid = 1000;
/// // Of 1 GiB, all but the first bytes a hole.
/// builder.add_file(swap, Content::sparse(1 << 30, vec![0..5], || Ok(&b"first"[..])))?;
/// let mut tree = builder.finish()?;
///
/// let dir = tempfile::tempdir().unwrap();
/// let options = ImageOptions::of(&tree)?;
/// let target = image::target(&dir.path().join("disk.img"))?;
/// image::write(&mut tree, target, &options, &mut ())?;
/// # Ok::<(), dioxide_pack::Error>(())
/// ```
pub struct TreeBuilder {
    builder: Builder,
    contents: Vec<Content>,
}

impl fmt::Debug for TreeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeBuilder").finish_non_exhaustive()
    }
}

impl TreeBuilder {
    /// No entries yet.
    pub fn new(filter: Filter) -> TreeBuilder {
        TreeBuilder {
            builder: Builder::new(filter),
            contents: Vec::new(),
        }
    }

    /// Adds an entry without content: anything but a regular file that is not empty.
    ///
    /// # Errors
    /// [`Error::Refused`] for what no tree may hold.
    pub fn add(&mut self, mut entry: Entry) -> Result<()> {
        let refused = |why: String| Err(Error::refused(&entry.path, why));
        match &mut entry.kind {
            Kind::File(data) if *data == FileData::default() => {
                return self.add_file(entry, Content::bytes(b""));
            }
            Kind::File(_) => {
                return refused("a regular file whose content is not added with it".into());
            }
            Kind::HardLink(target) => match clean_target(target) {
                Ok(clean) => *target = clean,
                Err(why) => return refused(why),
            },
            Kind::CharDevice(major, minor) | Kind::BlockDevice(major, minor)
                if *major >> 12 != 0 || *minor >> 20 != 0 =>
            {
                return refused(format!(
                    "the device {major}:{minor}: more than 12 and 20 bits"
                ));
            }
            _ => {}
        }
        self.put(entry)
    }

    /// Adds a regular file with its content, which is read when the tree is written.
    ///
    /// # Errors
    /// As [`TreeBuilder::add`].
    pub fn add_file(&mut self, mut entry: Entry, content: Content) -> Result<()> {
        if !matches!(entry.kind, Kind::File(_)) {
            return Err(Error::refused(
                &entry.path,
                "content for what is no regular file",
            ));
        }
        if !content.is_valid() {
            let why = "segments that are empty, out of order, not apart or behind the end";
            return Err(Error::refused(&entry.path, why));
        }
        entry.kind = Kind::File(FileData {
            size: content.size,
            segments: content.segments.clone(),
            handle: self.contents.len() as u64,
        });
        self.put(entry)?;
        self.contents.push(content);
        Ok(())
    }

    fn put(&mut self, mut entry: Entry) -> Result<()> {
        let refused = |why: String| Error::refused(&entry.path, why);
        if entry.permissions > 0o7777 || entry.mtime.nanos >= 1_000_000_000 {
            return Err(refused(
                "more than 12 bits of permissions, or a second of nanoseconds".into(),
            ));
        }
        // The root has no name.
        if !entry.path.is_empty() {
            entry.path = clean_path(&entry.path).map_err(refused)?;
        }
        self.builder.hold(&entry.path, weight(&entry.xattrs))?;
        self.builder.add(entry)
    }

    /// The tree.
    ///
    /// # Errors
    /// [`Error::Refused`] for an entry below what is no directory.
    pub fn finish(self) -> Result<Tree> {
        self.builder.finish(Box::new(ProgramContents {
            contents: self.contents,
            buf: vec![0; CHUNK_BYTES],
        }))
    }
}

/// The content of a regular file, and where its bytes come from when they are written.
///
/// That may be more than once, and in a thread of its own: an image that turns out too small is made anew.
pub struct Content {
    size: u64,
    segments: Vec<Range<u64>>,
    origin: Origin,
}

type Open = Box<dyn FnMut() -> io::Result<Box<dyn Read>> + Send>;

enum Origin {
    Bytes(Cow<'static, [u8]>),
    Reader(Open),
    Host(PathBuf, Stamp),
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content")
            .field("size", &self.size)
            .field("segments", &self.segments)
            .finish_non_exhaustive()
    }
}

impl Content {
    /// Bytes in memory.
    pub fn bytes(bytes: impl Into<Cow<'static, [u8]>>) -> Content {
        let bytes = bytes.into();
        let FileData { size, segments, .. } = FileData::whole(bytes.len() as u64, 0);
        Content {
            size,
            segments,
            origin: Origin::Bytes(bytes),
        }
    }

    /// What a reader gives, of `size` bytes. `open` is called each time it is read. A reader that has more or fewer bytes
    /// is [`Error::Changed`] then.
    pub fn reader<R: Read + 'static>(
        size: u64,
        open: impl FnMut() -> io::Result<R> + Send + 'static,
    ) -> Content {
        Content::sparse(size, FileData::whole(size, 0).segments, open)
    }

    /// A file of `size` bytes with holes: the reader gives the bytes of the segments, one behind the other. These must be as
    /// [`FileData::segments`].
    pub fn sparse<R: Read + 'static>(
        size: u64,
        segments: Vec<Range<u64>>,
        mut open: impl FnMut() -> io::Result<R> + Send + 'static,
    ) -> Content {
        Content {
            size,
            segments,
            origin: Origin::Reader(Box::new(move || Ok(Box::new(open()?)))),
        }
    }

    /// A file of the host, with its holes; symlinks are followed. It is looked at now and opened each time it is read; if it is another by
    /// then, or has another size or time, that is [`Error::Changed`]. Blocks.
    ///
    /// # Errors
    /// [`Error::Host`] for what cannot be read; [`Error::Refused`] for what is no regular file.
    pub fn host(path: impl Into<PathBuf>) -> Result<Content> {
        let path = path.into();
        let file = open(&path)?;
        let metadata = file.metadata();
        let metadata = metadata.map_err(|error| Error::host(path.display().to_string(), error))?;
        if !metadata.is_file() {
            let name = path.as_os_str().as_encoded_bytes();
            return Err(Error::refused(name, "is no regular file"));
        }
        let name = path.as_os_str().as_encoded_bytes();
        Ok(Content {
            size: metadata.len(),
            segments: folder::segments_of(&file, name, || path.clone(), metadata.len())?,
            origin: Origin::Host(path, Stamp::of(&metadata)),
        })
    }

    fn is_valid(&self) -> bool {
        let apart = |two: &[Range<u64>]| two[0].end < two[1].start;
        self.size <= i64::MAX as u64
            && self.segments.iter().all(|one| one.start < one.end)
            && self.segments.windows(2).all(apart)
            && self
                .segments
                .last()
                .is_none_or(|last| last.end <= self.size)
    }
}

/// Without waiting for whoever writes into a pipe.
fn open(path: &Path) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let opened = opened.map_err(|error| Error::host(path.display().to_string(), error))?;
    Ok(opened.into())
}

struct ProgramContents {
    contents: Vec<Content>,
    buf: Vec<u8>,
}

impl Contents for ProgramContents {
    fn read(
        &mut self,
        entry: &Entry,
        data: &FileData,
        each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let (segments, buf) = (&data.segments, &mut self.buf);
        match &mut self.contents[data.handle as usize].origin {
            Origin::Bytes(bytes) => read_all(entry, segments, &bytes[..], buf, each),
            Origin::Reader(open) => {
                let reader = open().map_err(|error| Error::host(shown(&entry.path), error))?;
                read_all(entry, segments, reader, buf, each)
            }
            Origin::Host(path, stamp) => {
                folder::read_same(&open(path)?, *stamp, || path.clone(), segments, buf, each)
            }
        }
    }
}

fn read_all(
    entry: &Entry,
    segments: &[Range<u64>],
    mut reader: impl Read,
    buf: &mut [u8],
    each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let name = || shown(&entry.path);
    let told = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::Changed { name: name() },
        _ => Error::host(name(), error),
    };
    for segment in segments {
        let mut at = segment.start;
        while at < segment.end {
            let most = (segment.end - at).min(buf.len() as u64) as usize;
            reader.read_exact(&mut buf[..most]).map_err(told)?;
            each(at, &buf[..most])?;
            at += most as u64;
        }
    }
    match reader.read_exact(&mut buf[..1]) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        Ok(()) => Err(Error::Changed { name: name() }),
        Err(error) => Err(told(error)),
    }
}
