//! Writes a tree as an archive: PAX, with the attributes of star and the sparse files of GNU tar
//! (form 1.0), which GNU tar and bsdtar read. The same tree gives the same bytes.
//!
//! An archive has no sockets, and so they are left out with a warning.

use super::codec::{Compression, Encoder, encoder};
use super::header::{self, USTAR};
use super::{BLOCK, acl, padding, pax};
use crate::entry::{Entry, FileData, Kind, join, split};
use crate::error::{Error, Result};
use crate::sink::Sink;
use crate::tree::Warning;
use crate::unfinished;
use dioxide::Timestamp;
use dioxide::block::file::{Replacing, close};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use tempfile::TempPath;

/// Archives are whole records of so many bytes.
const RECORD_BYTES: u64 = 20 * BLOCK as u64;
/// Largest numbers of the fields of 8 and 12 bytes.
const SMALL_MAX: u64 = 0o7777777;
const LARGE_MAX: u64 = 0o77777777777;

/// Writes a tree as an archive.
pub struct TarSink {
    name: String,
    out: Box<dyn Encoder>,
    pos: u64,
    warnings: Vec<Warning>,
    left_out: HashSet<Vec<u8>>,
    /// What is stored of the file that is being written: in blocks, which segments need not be.
    pieces: Vec<Range<u64>>,
    /// The file, the name that it has until it is complete, and its own.
    unfinished: Option<(File, TempPath, Replacing)>,
    /// Which piece comes next, and how far it is written.
    piece: usize,
    at: u64,
}

impl std::fmt::Debug for TarSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TarSink")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl TarSink {
    /// An archive that is written to `out`; `name` is for messages.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a compression that is only read.
    pub fn new(
        name: impl Into<String>,
        out: impl Write + 'static,
        compression: Compression,
    ) -> Result<TarSink> {
        let out = encoder(compression, BufWriter::with_capacity(1 << 18, out));
        Ok(TarSink {
            name: name.into(),
            out: out.map_err(|why| Error::Invalid(why.into()))?,
            pos: 0,
            warnings: Vec::new(),
            left_out: HashSet::new(),
            unfinished: None,
            pieces: Vec::new(),
            piece: 0,
            at: 0,
        })
    }

    /// An archive in a file, which gets its name once the archive is complete. What is there and no
    /// regular file is written into; a symlink to one, or to nothing, is refused.
    ///
    /// # Errors
    /// As [`TarSink::new`]; [`Error::Host`]; [`Error::Image`] if a file of that name is in use.
    pub fn create(path: &Path, compression: Compression) -> Result<TarSink> {
        let name = path.display().to_string();
        let told = |error| Error::host(&name, error);
        let found = fs::metadata(path).ok();
        if found
            .as_ref()
            .is_some_and(|found| found.file_type().is_block_device())
        {
            // Of a file system, most likely.
            let why = io::Error::other("is a block device, and not written over");
            return Err(told(why));
        }
        if found.is_some_and(|found| !found.is_file()) {
            let file = File::options().write(true).open(path).map_err(told)?;
            return TarSink::new(name, file, compression);
        }
        // /dev/stdout is one.
        if fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) {
            return Err(told(io::Error::other("is a symlink, and is not replaced")));
        }
        let target = Replacing::begin(path).map_err(|error| Error::kept(&name, error))?;
        let (file, unfinished) = unfinished::unfinished(path).map_err(told)?;
        let same = file.try_clone().map_err(told)?;
        let mut sink = TarSink::new(name, file, compression)?;
        sink.unfinished = Some((same, unfinished, target));
        Ok(sink)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.pos += bytes.len() as u64;
        self.out
            .write_all(bytes)
            .map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::host(&self.name, error)
    }

    fn zeros(&mut self, mut count: u64) -> Result<()> {
        while count > 0 {
            let part = count.min(4096);
            self.write(&[0; 4096][..part as usize])?;
            count -= part;
        }
        Ok(())
    }

    fn leave_out(&mut self, entry: &Entry) {
        self.warnings.push(Warning::new(
            &entry.path,
            "left out: an archive has no sockets",
        ));
        self.left_out.insert(entry.path.clone());
    }

    fn header(&mut self, entry: &Entry, path: &[u8], sparse: Option<Vec<u8>>) -> Result<()> {
        let mut block = Block::new();
        let mut records = Vec::new();
        let stored: u64 = self
            .pieces
            .iter()
            .map(|piece| piece.end - piece.start)
            .sum();
        let size = stored + sparse.as_ref().map_or(0, |map| map.len() as u64);
        if let (Some(_), Kind::File(data)) = (&sparse, &entry.kind) {
            pax::push(&mut records, b"GNU.sparse.major", b"1");
            pax::push(&mut records, b"GNU.sparse.minor", b"0");
            pax::push(&mut records, b"GNU.sparse.name", path);
            pax::push(
                &mut records,
                b"GNU.sparse.realsize",
                data.size.to_string().as_bytes(),
            );
            // Whoever knows no sparse files sees this name, cut: a record `path` would replace the
            // other for programs that take the last.
            block.text(header::NAME, &beside(path, b"GNUSparseFile.0"));
        } else {
            block.path(&mut records, path);
        }
        block.number(header::MODE, entry.permissions.into());
        for (key, field, id) in [
            (&b"uid"[..], header::UID, entry.uid),
            (b"gid", header::GID, entry.gid),
        ] {
            block.number_or_record(&mut records, key, field, id.into());
        }
        block.number_or_record(&mut records, b"size", header::SIZE, size);
        block.time(&mut records, entry.mtime);
        block.kind(&mut records, &entry.kind);
        attributes(&mut records, entry);
        if !records.is_empty() {
            self.extended(path, &records)?;
        }
        self.write(&block.finish())?;
        self.write(&sparse.unwrap_or_default())
    }

    fn extended(&mut self, path: &[u8], records: &[u8]) -> Result<()> {
        let mut block = Block::new();
        block.text(
            header::NAME,
            &beside(path.strip_suffix(b"/").unwrap_or(path), b"PaxHeaders"),
        );
        block.number(header::MODE, 0o644);
        block.number(header::SIZE, records.len() as u64);
        block.0[header::TYPE] = b'x';
        self.write(&block.finish())?;
        self.write(records)?;
        self.zeros(padding(records.len() as u64))
    }

    /// Zeros up to an offset of the file, as far as they are stored.
    fn fill_to(&mut self, offset: u64) -> Result<()> {
        while let Some(piece) = self.pieces.get(self.piece).cloned() {
            let end = piece.end.min(offset);
            if self.at < end {
                self.zeros(end - self.at)?;
                self.at = end;
            }
            if self.at < piece.end {
                return Ok(());
            }
            self.piece += 1;
            self.at = self.pieces.get(self.piece).map_or(0, |piece| piece.start);
        }
        Ok(())
    }
}

/// `dir/name` as `dir/between/name`.
fn beside(path: &[u8], between: &[u8]) -> Vec<u8> {
    let (directory, name) = split(path);
    join(&join(directory, between), name)
}

/// Whole blocks around the segments: GNU tar reads each from a new block on.
fn pieces(data: &FileData) -> Vec<Range<u64>> {
    let block = BLOCK as u64;
    let mut pieces: Vec<Range<u64>> = Vec::new();
    for segment in &data.segments {
        let start = segment.start / block * block;
        let end = segment.end.next_multiple_of(block).min(data.size);
        match pieces.last_mut() {
            Some(last) if last.end >= start => last.end = end,
            _ => pieces.push(start..end),
        }
    }
    pieces
}

/// The map of form 1.0, in whole blocks. A hole at the end is an empty piece.
fn sparse_map(pieces: &[Range<u64>], size: u64) -> Vec<u8> {
    let mut all: Vec<(u64, u64)> = pieces
        .iter()
        .map(|piece| (piece.start, piece.end - piece.start))
        .collect();
    if pieces.last().is_none_or(|last| last.end < size) {
        all.push((size, 0));
    }
    let mut text = format!("{}\n", all.len());
    for (offset, len) in all {
        text += &format!("{offset}\n{len}\n");
    }
    let mut map = text.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

fn attributes(records: &mut Vec<u8>, entry: &Entry) {
    // Another name has the attributes of the file already.
    if matches!(entry.kind, Kind::HardLink(_)) {
        return;
    }
    for xattr in &entry.xattrs {
        let key = match &xattr.name[..] {
            b"system.posix_acl_access" => Some(&b"SCHILY.acl.access"[..]),
            b"system.posix_acl_default" => Some(&b"SCHILY.acl.default"[..]),
            _ => None,
        };
        // Programs differ in which of the two they heed.
        if let (Some(key), Some(text)) = (key, acl::to_text(&xattr.value)) {
            pax::push(records, key, text.as_bytes());
        }
        let key = [b"SCHILY.xattr.", &pax::escape(&xattr.name)[..]].concat();
        pax::push(records, &key, &xattr.value);
    }
}

/// A header that is being made.
struct Block([u8; BLOCK]);

impl Block {
    fn new() -> Block {
        let mut block = Block([0; BLOCK]);
        block.0[header::MAGIC].copy_from_slice(USTAR);
        for field in [
            header::UID,
            header::GID,
            header::SIZE,
            header::MTIME,
            header::MAJOR,
            header::MINOR,
        ] {
            block.number(field, 0);
        }
        block
    }

    /// As much of a text as there is room for.
    fn text(&mut self, field: Range<usize>, text: &[u8]) {
        let len = text.len().min(field.len());
        self.0[field.start..][..len].copy_from_slice(&text[..len]);
    }

    fn number(&mut self, field: Range<usize>, value: u64) {
        let digits = format!("{value:0width$o}", width = field.len() - 1);
        self.text(field, digits.as_bytes());
    }

    fn number_or_record(
        &mut self,
        records: &mut Vec<u8>,
        key: &[u8],
        field: Range<usize>,
        value: u64,
    ) {
        let most = if field.len() == 12 {
            LARGE_MAX
        } else {
            SMALL_MAX
        };
        match value <= most {
            true => self.number(field, value),
            false => pax::push(records, key, value.to_string().as_bytes()),
        }
    }

    fn path(&mut self, records: &mut Vec<u8>, path: &[u8]) {
        self.text(header::NAME, path);
        if path.len() > header::NAME.len() {
            pax::push(records, b"path", path);
        }
    }

    fn link(&mut self, records: &mut Vec<u8>, target: &[u8]) {
        self.text(header::LINK, target);
        if target.len() > header::LINK.len() {
            pax::push(records, b"linkpath", target);
        }
    }

    fn time(&mut self, records: &mut Vec<u8>, time: Timestamp) {
        match u64::try_from(time.secs) {
            Ok(secs) if secs <= LARGE_MAX => {
                self.number(header::MTIME, secs);
                if time.nanos == 0 {
                    return;
                }
            }
            _ => {}
        }
        pax::push(records, b"mtime", pax::time_text(time).as_bytes());
    }

    fn kind(&mut self, records: &mut Vec<u8>, kind: &Kind) {
        self.0[header::TYPE] = match kind {
            Kind::File(_) => b'0',
            Kind::HardLink(_) => b'1',
            Kind::Symlink(_) => b'2',
            Kind::CharDevice(..) => b'3',
            Kind::BlockDevice(..) => b'4',
            Kind::Directory => b'5',
            Kind::Fifo => b'6',
            Kind::Socket => unreachable!("sockets are left out"),
        };
        match kind {
            Kind::HardLink(target) => self.link(records, &[b"./", &target[..]].concat()),
            Kind::Symlink(target) => self.link(records, target),
            // Of ext4: majors of 12 bits, minors of 20.
            Kind::CharDevice(major, minor) | Kind::BlockDevice(major, minor) => {
                self.number(header::MAJOR, u64::from(*major) & SMALL_MAX);
                self.number(header::MINOR, u64::from(*minor) & SMALL_MAX);
            }
            _ => {}
        }
    }

    fn finish(mut self) -> [u8; BLOCK] {
        self.0[header::CHECKSUM].fill(b' ');
        let sum: u64 = self.0.iter().map(|&byte| u64::from(byte)).sum();
        self.text(header::CHECKSUM, format!("{sum:06o}\0 ").as_bytes());
        self.0
    }
}

impl Sink for TarSink {
    fn begin(&mut self, entry: &Entry) -> Result<()> {
        self.pieces.clear();
        let mut sparse = None;
        match &entry.kind {
            Kind::Socket => {
                self.leave_out(entry);
                return Ok(());
            }
            Kind::HardLink(target) if self.left_out.contains(target) => {
                self.leave_out(entry);
                return Ok(());
            }
            Kind::File(data) => {
                self.pieces = pieces(data);
                sparse = data
                    .is_sparse()
                    .then(|| sparse_map(&self.pieces, data.size));
            }
            _ => {}
        }
        self.piece = 0;
        self.at = self.pieces.first().map_or(0, |piece| piece.start);
        let slash = if entry.is_directory() && !entry.path.is_empty() {
            "/"
        } else {
            ""
        };
        let path = [b"./", &entry.path[..], slash.as_bytes()].concat();
        self.header(entry, &path, sparse)
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.fill_to(offset)?;
        debug_assert_eq!(self.at, offset);
        self.at += bytes.len() as u64;
        self.write(bytes)
    }

    fn end(&mut self, entry: &Entry) -> Result<()> {
        if !self.left_out.contains(&entry.path) {
            self.warnings.extend(Warning::image_only(entry));
        }
        if let Kind::File(data) = &entry.kind {
            self.fill_to(data.size)?;
            self.zeros(padding(self.pos))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let end = (self.pos + 2 * BLOCK as u64).next_multiple_of(RECORD_BYTES);
        self.zeros(end - self.pos)?;
        self.out.finish().map_err(|error| self.failed(error))?;
        let Some((file, unfinished, mut target)) = self.unfinished.take() else {
            return Ok(());
        };
        // What it replaces may be the only other one.
        let durable = file.sync_all().and_then(|()| close(file));
        durable.map_err(|error| self.failed(error))?;
        let checked = target.check();
        checked.map_err(|error| Error::kept(&self.name, error))?;
        let persisted = unfinished::persist(unfinished, target.path());
        persisted.map_err(|error| self.failed(error))
    }

    fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}
