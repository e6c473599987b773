//! Reads an archive as a tree.
//!
//! One pass: headers become entries; data stays where it is if the archive is a plain file, which must not change until
//! all is read, and is otherwise copied into a file without a name. What is held in memory at once is bounded whatever
//! the headers say: an extended header is read as far as it is there, and up to a limit.

use super::codec::{Compression, MAGIC_BYTES, decoder, detect};
use super::header::{self, Header};
use super::pax;
use super::records::{Records, Table};
use super::sparse::Map;
use super::{BLOCK, EXTENDED_MAX, LONG_NAME_MAX, padding};
use crate::entry::{Entry, FileData, Kind};
use crate::error::{Error, Result, shown};
use crate::filter::Filter;
use crate::source::CHUNK_BYTES;
use crate::source::folder::Stamp;
use crate::tree::{Builder, Contents, Tree, Watch, clean_path, clean_target, go_on, weight};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// How much of an archive is read at a time.
const BUFFER_BYTES: usize = 1 << 17;
const PART: &str = "part of an incremental or split archive, which dioxide does not unpack";

/// How to read an archive.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// What to leave out and to change.
    pub filter: Filter,
    /// Where data waits that cannot be read twice: a directory with room for it. By default the
    /// system's directory for temporary files.
    pub spool: Option<PathBuf>,
}

/// Reads an archive; `-` is standard input. Blocks.
///
/// Directories that entries lie in and that the archive does not describe are made with mode `0755`,
/// for user and group 0, which [`Filter::owners`] maps as all others, with [`Filter::latest`] or 1970 as their time. What follows the end mark is
/// ignored; that it is not there is among the tree's warnings. Names of users and groups are ignored as well: only numbers count.
///
/// # Errors
/// [`Error::Archive`] for a damaged or truncated archive, and what cannot be unpacked; [`Error::Refused`] for entries;
/// [`Error::Changed`] if it changes meanwhile, where its data are read again; [`Error::Host`].
pub fn read(archive: &Path, options: ReadOptions, watch: &mut dyn Watch) -> Result<Tree> {
    let name = archive.display().to_string();
    let told = |error: io::Error| Error::host(&name, error);
    let from_stdin = archive.as_os_str() == "-";
    let mut file = match from_stdin {
        true => File::from(io::stdin().as_fd().try_clone_to_owned().map_err(told)?),
        false => File::open(archive).map_err(told)?,
    };
    let metadata = file.metadata().map_err(told)?;
    let in_place = metadata.is_file() && !from_stdin;
    if in_place {
        watch.expect(metadata.len());
    }
    let consumed = Rc::new(Cell::new(0));
    // A pipe may give a byte at a time.
    let mut start = Vec::new();
    let read = Read::by_ref(&mut file)
        .take(MAGIC_BYTES)
        .read_to_end(&mut start);
    read.map_err(told)?;
    let compression = detect(&start).map_err(|kind| Error::Archive {
        archive: name.clone(),
        offset: 0,
        what: format!("it is compressed by {kind}, which dioxide does not unpack"),
    })?;
    let input = match compression {
        Compression::None if in_place => {
            file.rewind().map_err(told)?;
            Input::InPlace {
                reader: BufReader::with_capacity(BUFFER_BYTES, file),
                len: metadata.len(),
                stamp: Stamp::of(&metadata),
            }
        }
        _ => {
            let dir = options.spool.unwrap_or_else(std::env::temp_dir);
            let spool = tempfile::tempfile_in(&dir);
            let spool_name = format!("temporary file in {}", dir.display());
            let counted = Counted {
                inner: BufReader::with_capacity(BUFFER_BYTES, Cursor::new(start).chain(file)),
                count: consumed.clone(),
            };
            Input::Stream {
                reader: decoder(compression, counted),
                spool: spool.map_err(|error| Error::host(&spool_name, error))?,
                spool_name,
                spooled: 0,
            }
        }
    };
    let mut reader = Reader {
        name,
        input,
        pos: 0,
        builder: Builder::new(options.filter),
        global: Table::default(),
        buf: vec![0; 1 << 16],
        no_end: false,
    };
    let mut done = 0;
    while reader.next_entry()? {
        let now = reader.consumed(&consumed);
        watch.done(now - done);
        go_on(watch)?;
        done = now;
    }
    reader.finish()
}

/// Counts compressed bytes.
struct Counted<R> {
    inner: R,
    count: Rc<Cell<u64>>,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buf)?;
        self.count.set(self.count.get() + count as u64);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.count.set(self.count.get() + count as u64);
        self.inner.consume(count);
    }
}

enum Input {
    InPlace {
        reader: BufReader<File>,
        len: u64,
        stamp: Stamp,
    },
    Stream {
        reader: Box<dyn Read>,
        spool: File,
        /// What it is to who reads of it.
        spool_name: String,
        spooled: u64,
    },
}

struct Reader {
    name: String,
    input: Input,
    /// In the archive, uncompressed.
    pos: u64,
    builder: Builder,
    /// Records of global headers.
    global: Table,
    buf: Vec<u8>,
    /// It ended behind an entry, without an end mark.
    no_end: bool,
}

/// What extended headers say of the entry behind them.
#[derive(Default)]
struct Extension {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    records: Table,
}

impl Reader {
    fn damaged(&self, what: impl Into<String>) -> Error {
        Error::Archive {
            archive: self.name.clone(),
            offset: self.pos,
            what: what.into(),
        }
    }

    fn failed(&self, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged("it is truncated"),
            _ => self.damaged(error.to_string()),
        }
    }

    fn consumed(&self, packed: &Cell<u64>) -> u64 {
        match self.input {
            Input::InPlace { .. } => self.pos,
            Input::Stream { .. } => packed.get(),
        }
    }

    /// Fills `buf` unless the archive ends right here; whether it did.
    fn fill(&mut self, buf: &mut [u8]) -> Result<bool> {
        let mut filled = 0;
        while filled < buf.len() {
            let read = match &mut self.input {
                Input::InPlace { reader, .. } => reader.read(&mut buf[filled..]),
                Input::Stream { reader, .. } => reader.read(&mut buf[filled..]),
            };
            match read {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(self.damaged("it is truncated")),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.pos += buf.len() as u64;
        Ok(true)
    }

    fn block(&mut self) -> Result<[u8; BLOCK]> {
        let mut block = [0; BLOCK];
        match self.fill(&mut block)? {
            true => Ok(block),
            false => Err(self.damaged("it is truncated")),
        }
    }

    /// The next header; none at the end mark, behind which nothing is left to read then, and where the archive ends without one.
    fn header(&mut self) -> Result<Option<Header>> {
        let start = self.pos;
        let mut block = [0; BLOCK];
        if !self.fill(&mut block)? {
            self.no_end = true;
            return Ok(None);
        }
        let header = Header(block);
        if header.is_end() {
            self.drain()?;
            return Ok(None);
        }
        if !header.is_valid() {
            self.pos = start;
            return Err(self.damaged(match start {
                0 => "no tar archive, or the checksum of its first header is wrong",
                _ => "the checksum of a header is wrong",
            }));
        }
        Ok(Some(header))
    }

    /// A compressed file has checksums at its end.
    fn drain(&mut self) -> Result<()> {
        let drained = match &mut self.input {
            Input::InPlace { .. } => Ok(0),
            Input::Stream { reader, .. } => io::copy(reader, &mut io::sink()),
        };
        drained.map(drop).map_err(|error| self.failed(error))
    }

    /// Reads one entry with what is before it; false at the end.
    fn next_entry(&mut self) -> Result<bool> {
        let mut extension = Extension::default();
        let mut extended = false;
        loop {
            let Some(header) = self.header()? else {
                return match (self.no_end, extended) {
                    (true, true) => Err(self.damaged("it is truncated")),
                    (true, false) if self.pos == 0 => Err(self.damaged("it is truncated")),
                    (false, true) => Err(self.damaged("an extended header without its entry")),
                    (_, false) => Ok(false),
                };
            };
            extended = true;
            match header.kind() {
                b'x' | b'X' => {
                    let data = self.small(&header, EXTENDED_MAX)?;
                    extension.records = Table::default();
                    let read = extension.records.read(&data);
                    read.map_err(|what| self.damaged(what))?;
                }
                b'g' => {
                    let data = self.small(&header, EXTENDED_MAX)?;
                    let read = self.global.read_global(&data);
                    read.map_err(|what| self.damaged(what))?;
                    extended = false;
                }
                b'L' => extension.path = Some(self.long_name(&header)?),
                b'K' => extension.link = Some(self.long_name(&header)?),
                // The name of a volume.
                b'V' => {
                    let size = self.size(&header, b"volume label")?;
                    self.skip(size)?;
                }
                _ => {
                    self.entry(&header, extension)?;
                    return Ok(true);
                }
            }
        }
    }

    fn size(&self, header: &Header, name: &[u8]) -> Result<u64> {
        let size = header
            .number(header::SIZE)
            .and_then(|size| u64::try_from(size).map_err(|_| format!("a size of {size} bytes")));
        let size = size.map_err(|why| Error::refused(name, format!("size: {why}")))?;
        // What it takes with its padding is less than 2^64 then, wherever in the archive it is.
        match size <= i64::MAX as u64 / 2 {
            true => Ok(size),
            false => Err(Error::refused(name, format!("a size of {size} bytes"))),
        }
    }

    fn long_name(&mut self, header: &Header) -> Result<Vec<u8>> {
        let mut name = self.small(header, LONG_NAME_MAX)?;
        // Some programs fill the block up.
        let end = name.iter().position(|&byte| byte == 0);
        name.truncate(end.unwrap_or(name.len()));
        Ok(name)
    }

    /// The content of an extended header: memory grows as bytes come.
    fn small(&mut self, header: &Header, most: u64) -> Result<Vec<u8>> {
        let size = self.size(header, b"extended header")?;
        if size > most {
            return Err(self.damaged(format!(
                "an extended header of {size} bytes; {most} is the most"
            )));
        }
        let mut data = Vec::new();
        while (data.len() as u64) < size {
            data.extend_from_slice(&self.block()?);
        }
        data.truncate(size as usize);
        Ok(data)
    }

    fn entry(&mut self, header: &Header, extension: Extension) -> Result<()> {
        let info = Records {
            global: &self.global,
            own: &extension.records,
        };
        let raw = info
            .last(b"GNU.sparse.name")
            .or(info.last(b"path"))
            .map(<[u8]>::to_vec);
        let raw = raw.or(extension.path).unwrap_or_else(|| header.path());
        let refused = |why: String| Error::refused(&raw, why);
        // A volume that begins inside a file: that of 'M' in PAX.
        if info.last(b"GNU.volume.offset").is_some() {
            return Err(refused(PART.into()));
        }
        let path = clean_path(&raw).map_err(refused)?;
        let link = info
            .last(b"linkpath")
            .map(<[u8]>::to_vec)
            .or(extension.link);
        let link = link.unwrap_or_else(|| header.text(header::LINK).to_vec());
        let mut entry = info.attributes(header).map_err(refused)?;
        let map = info.map().map_err(refused)?;
        let stored = match info.number(b"size").map_err(refused)? {
            Some(size) if size > i64::MAX as u64 / 2 => {
                return Err(refused(format!("a size of {size} bytes")));
            }
            Some(size) => size,
            None => self.size(header, &raw)?,
        };
        let sparse = Sparse {
            // 0.0 and 0.1 call it size, 1.0 realsize.
            size: match info.number(b"GNU.sparse.realsize").map_err(refused)? {
                None => info.number(b"GNU.sparse.size").map_err(refused)?,
                size => size,
            },
            map,
            in_data: info.last(b"GNU.sparse.major") == Some(b"1"),
        };
        let (all, own) = (weight(&entry.xattrs), extension.records.weight());
        self.builder.copy(&raw, all.saturating_sub(own), 1)?;
        self.builder.hold(&raw, all.min(own))?;
        let device = || device(header).map_err(refused);
        // What is no regular file has no data, whatever its size says: some programs put there the
        // size of the file that a hard link leads to.
        entry.kind = match header.kind() {
            b'0' | 0 | b'7' if raw.ends_with(b"/") && stored == 0 => Kind::Directory,
            b'0' | 0 | b'7' => Kind::File(self.file(&raw, stored, sparse)?),
            b'S' => Kind::File(self.old_sparse(header, &raw, stored)?),
            b'1' => Kind::HardLink(clean_target(&link).map_err(refused)?),
            b'2' => Kind::Symlink(link),
            b'3' => device().map(|(major, minor)| Kind::CharDevice(major, minor))?,
            b'4' => device().map(|(major, minor)| Kind::BlockDevice(major, minor))?,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            b'D' | b'M' | b'N' => return Err(refused(PART.into())),
            other => {
                return Err(refused(format!(
                    "an entry of unknown type '{}'",
                    other.escape_ascii()
                )));
            }
        };
        entry.path = path;
        self.builder.add(entry)
    }

    fn file(&mut self, raw: &[u8], stored: u64, sparse: Sparse) -> Result<FileData> {
        let mut map = sparse.map;
        let mut stored = stored;
        if sparse.in_data {
            let before = self.pos;
            map = Some(self.map_in_data(raw)?);
            let rest = stored.checked_sub(self.pos - before);
            stored = rest
                .ok_or_else(|| Error::refused(raw, "a sparse file's map longer than the file"))?;
        }
        let size = match &map {
            Some(_) => sparse
                .size
                .ok_or_else(|| Error::refused(raw, "a sparse file without its size"))?,
            None => stored,
        };
        self.data(raw, size, stored, map)
    }

    /// PAX 1.0: decimal numbers, a line each, in whole blocks before the data.
    fn map_in_data(&mut self, raw: &[u8]) -> Result<Map> {
        let bad = || Error::refused(raw, "a sparse file's map that is none");
        let mut text: Vec<u8> = Vec::new();
        let mut map = Map::default();
        let mut count = None;
        let mut offset = None;
        while count != Some(0) {
            text.extend_from_slice(&self.block()?);
            while let Some(end) = text.iter().position(|&byte| byte == b'\n') {
                let number = pax::decimal(&text[..end]).ok_or_else(bad)?;
                text.drain(..=end);
                match (&mut count, offset.take()) {
                    (None, _) => count = Some(number),
                    (Some(_), None) => offset = Some(number),
                    (Some(left), Some(offset)) => {
                        map.push(offset, number)
                            .map_err(|why| Error::refused(raw, why))?;
                        *left -= 1;
                    }
                }
                if count == Some(0) {
                    break;
                }
            }
            if count != Some(0) && text.len() >= BLOCK {
                return Err(bad());
            }
        }
        Ok(map)
    }

    fn old_sparse(&mut self, header: &Header, raw: &[u8], stored: u64) -> Result<FileData> {
        let refused = |why| Error::refused(raw, why);
        let mut map = Map::default();
        map.push_old(&header.0[header::SPARSE_MAP])
            .map_err(refused)?;
        let mut more = header.0[header::SPARSE_MORE];
        while more != 0 {
            let block = self.block()?;
            map.push_old(&block[..504]).map_err(refused)?;
            more = block[504];
        }
        let size = header.number(header::SPARSE_SIZE).map_err(refused)?;
        let size = u64::try_from(size).map_err(|_| refused(format!("a size of {size} bytes")))?;
        self.data(raw, size, stored, Some(map))
    }

    fn data(&mut self, raw: &[u8], size: u64, stored: u64, map: Option<Map>) -> Result<FileData> {
        if size > i64::MAX as u64 {
            return Err(Error::refused(raw, format!("a size of {size} bytes")));
        }
        let whole = FileData::whole(size, 0);
        let segments = match map {
            Some(map) => map
                .segments(size, stored)
                .map_err(|why| Error::refused(raw, why))?,
            None => whole.segments,
        };
        let offset = self.pos;
        let handle = self.keep(stored).map_err(|error| match error {
            Error::Archive { archive, what, .. } => Error::Archive {
                archive,
                offset,
                what: format!("{what}, in {}", shown(raw)),
            },
            other => other,
        })?;
        Ok(FileData {
            size,
            segments,
            handle,
        })
    }

    /// Passes over data and its padding; where it can be read again. That of what is left out, too: another name of it may be kept.
    fn keep(&mut self, stored: u64) -> Result<u64> {
        let handle = match &self.input {
            Input::InPlace { .. } => self.pos,
            Input::Stream { spooled, .. } => *spooled,
        };
        match &self.input {
            Input::InPlace { .. } => self.skip(stored)?,
            Input::Stream { .. } => {
                self.spool(stored)?;
                self.skip_bytes(padding(stored))?;
            }
        }
        Ok(handle)
    }

    fn spool(&mut self, bytes: u64) -> Result<()> {
        let mut left = bytes;
        let mut buf = std::mem::take(&mut self.buf);
        while left > 0 {
            let part = &mut buf[..left.min(1 << 16) as usize];
            if !self.fill(part)? {
                return Err(self.damaged("it is truncated"));
            }
            if let Input::Stream {
                spool,
                spool_name,
                spooled,
                ..
            } = &mut self.input
            {
                let written = spool.write_all_at(part, *spooled);
                written.map_err(|error| Error::host(&*spool_name, error))?;
                *spooled += part.len() as u64;
            }
            left -= part.len() as u64;
        }
        self.buf = buf;
        Ok(())
    }

    /// Passes over data with its padding.
    fn skip(&mut self, bytes: u64) -> Result<()> {
        self.skip_bytes(bytes + padding(bytes))
    }

    fn skip_bytes(&mut self, bytes: u64) -> Result<()> {
        let skipped = match &mut self.input {
            Input::InPlace { len, .. } if len.saturating_sub(self.pos) < bytes => {
                return Err(self.damaged("it is truncated"));
            }
            // Less than the length of a file, so it fits.
            Input::InPlace { reader, .. } => reader.seek_relative(bytes as i64).map(|()| bytes),
            Input::Stream { reader, .. } => io::copy(&mut reader.take(bytes), &mut io::sink()),
        };
        let skipped = skipped.map_err(|error| self.failed(error))?;
        self.pos += skipped;
        match skipped == bytes {
            true => Ok(()),
            false => Err(self.damaged("it is truncated")),
        }
    }

    fn finish(mut self) -> Result<Tree> {
        if self.no_end {
            let what = "has no end mark: if it was cut off, entries are missing";
            self.builder.warn(self.name.as_bytes(), what);
        }
        let (file, stamp) = match self.input {
            Input::InPlace { reader, stamp, .. } => (reader.into_inner(), Some(stamp)),
            Input::Stream { spool, .. } => (spool, None),
        };
        let contents = ArchiveContents {
            name: self.name,
            file,
            stamp,
            buf: vec![0; CHUNK_BYTES],
        };
        contents.check()?;
        self.builder.finish(Box::new(contents))
    }
}

/// Major and minor number.
fn device(header: &Header) -> Result<(u32, u32), String> {
    if !header.has_device() {
        return Err("a device without numbers".into());
    }
    // More than that ext4 cannot hold, and Linux does not know.
    let part = |field, bits: u32| {
        let number = header.number(field)?;
        let held = u32::try_from(number)
            .ok()
            .filter(|held: &u32| *held >> bits == 0);
        held.ok_or_else(|| format!("a device number of {number}: more than {bits} bits"))
    };
    Ok((part(header::MAJOR, 12)?, part(header::MINOR, 20)?))
}

/// What headers say of a sparse file in PAX's forms.
struct Sparse {
    size: Option<u64>,
    map: Option<Map>,
    in_data: bool,
}

/// Data that lies in one file, each file's segments one behind the other.
struct ArchiveContents {
    name: String,
    file: File,
    /// Of the archive itself when it was opened.
    stamp: Option<Stamp>,
    buf: Vec<u8>,
}

impl ArchiveContents {
    /// That it is what it was.
    fn check(&self) -> Result<()> {
        let Some(stamp) = self.stamp else {
            return Ok(());
        };
        let now = self.file.metadata();
        match now.map_err(|error| Error::host(&self.name, error))? {
            now if Stamp::of(&now) == stamp => Ok(()),
            _ => Err(Error::Changed {
                name: self.name.clone(),
            }),
        }
    }
}

impl Contents for ArchiveContents {
    fn read(
        &mut self,
        _entry: &Entry,
        data: &FileData,
        each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut stored = data.handle;
        for segment in &data.segments {
            let mut at = segment.start;
            while at < segment.end {
                let part = (segment.end - at).min(self.buf.len() as u64) as usize;
                let part = &mut self.buf[..part];
                let read = self.file.read_exact_at(part, stored);
                read.map_err(|error| Error::host(&self.name, error))?;
                each(at, part)?;
                at += part.len() as u64;
                stored += part.len() as u64;
            }
        }
        self.check()
    }
}
