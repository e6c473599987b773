//! A log as a file.
//!
//! All numbers are little-endian. A header, the entries in the log's order, and a trailer:
//!
//! | Bytes | Header |
//! |---|---|
//! | 8 | magic `DIOXREC1` |
//!
//! | Bytes | Entry |
//! |---|---|
//! | 1 | kind: 1 write, 2 write with force unit access, 3 write-zeroes, 4 discard, 5 flush, 6 atomic write, 7 the same with force unit access |
//! | 8 | number of issue |
//! | 8 | number of completion; all ones if there is none |
//! | 8 | offset in bytes; 0 for a flush |
//! | 8 | length in bytes; 0 for a flush |
//! | length | the bytes; for kinds 1, 2, 6 and 7 only |
//! | 8 | checksum of the entry so far |
//!
//! | Bytes | Trailer |
//! |---|---|
//! | 1 | 0 |
//! | 8 | number of entries |
//! | 8 | checksum of the trailer so far |
//!
//! The checksum is FNV-1a of 64 bits: damage is found, not intent. Each step of it is a bijection of
//! its state, so that one wrong byte never goes unseen.

use super::{Action, Entry, Log};
use std::io::{self, Read, Write};

const MAGIC: &[u8; 8] = b"DIOXREC1";
const END: u8 = 0;
const NONE: u64 = u64::MAX;

impl Log {
    /// Writes the log in the format that [`Log::read_from`] reads.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(MAGIC)?;
        for entry in &self.entries {
            write_entry(entry, out)?;
        }
        let mut sum = Summed::new(&mut *out);
        sum.write_all(&[END])?;
        sum.write_all(&(self.entries.len() as u64).to_le_bytes())?;
        sum.finish()
    }

    /// Reads a log.
    ///
    /// # Errors
    /// Those of `from`; `UnexpectedEof` for a log that was cut; `InvalidData`, with the number of the
    /// entry, for one that is damaged.
    pub fn read_from(from: &mut impl Read) -> io::Result<Log> {
        let mut magic = [0; MAGIC.len()];
        from.read_exact(&mut magic)?;
        if &magic != MAGIC {
            return Err(damaged("no record log: wrong magic".into()));
        }
        let mut entries = Vec::new();
        while let Some(entry) = read_entry(entries.len() as u64, from)? {
            entries.push(entry);
        }
        let in_order = entries.is_sorted_by_key(Entry::place);
        match in_order {
            true => Ok(Log { entries }),
            false => Err(damaged("record log: entries out of order".into())),
        }
    }
}

fn damaged(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The fields of an entry as they stand in the file.
fn raw(action: &Action) -> (u8, u64, u64, &[u8]) {
    match action {
        Action::Write {
            offset,
            bytes,
            fua,
            atomic,
        } => {
            let kind = if *atomic { 6 } else { 1 };
            (kind + u8::from(*fua), *offset, bytes.len() as u64, bytes)
        }
        Action::WriteZeroes { offset, len } => (3, *offset, *len, &[]),
        Action::Discard { offset, len } => (4, *offset, *len, &[]),
        Action::Flush => (5, 0, 0, &[]),
    }
}

fn write_entry(entry: &Entry, out: &mut impl Write) -> io::Result<()> {
    let (kind, offset, len, bytes) = raw(&entry.action);
    let mut sum = Summed::new(out);
    sum.write_all(&[kind])?;
    for number in [entry.issued, entry.completed.unwrap_or(NONE), offset, len] {
        sum.write_all(&number.to_le_bytes())?;
    }
    sum.write_all(bytes)?;
    sum.finish()
}

/// Entry `index`, or nothing at the trailer.
fn read_entry(index: u64, from: &mut impl Read) -> io::Result<Option<Entry>> {
    let mut sum = Summed::new(from);
    let mut kind = [0];
    sum.read_exact(&mut kind)?;
    let [kind] = kind;
    if kind == END {
        let count = sum.number()?;
        sum.verify(index)?;
        return match count == index {
            true => Ok(None),
            false => Err(damaged(format!("record log: {index} entries, not {count}"))),
        };
    }
    let (issued, completed) = (sum.number()?, sum.number()?);
    let (offset, len) = (sum.number()?, sum.number()?);
    let action = match kind {
        1 | 2 | 6 | 7 => Action::Write {
            offset,
            bytes: sum.bytes(len)?.into(),
            fua: kind == 2 || kind == 7,
            atomic: kind > 5,
        },
        3 => Action::WriteZeroes { offset, len },
        4 => Action::Discard { offset, len },
        5 => Action::Flush,
        _ => return Err(damaged(format!("record log: entry {index} of kind {kind}"))),
    };
    sum.verify(index)?;
    Ok(Some(Entry {
        issued,
        completed: (completed != NONE).then_some(completed),
        action,
    }))
}

/// Sums what passes through to or from a stream.
struct Summed<S> {
    stream: S,
    sum: u64,
}

impl<S> Summed<S> {
    fn new(stream: S) -> Self {
        Summed {
            stream,
            sum: 0xCBF2_9CE4_8422_2325,
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.sum = (self.sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }
}

impl<S: Write> Summed<S> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.add(bytes);
        self.stream.write_all(bytes)
    }

    fn finish(mut self) -> io::Result<()> {
        self.stream.write_all(&self.sum.to_le_bytes())
    }
}

impl<S: Read> Summed<S> {
    fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.stream.read_exact(bytes)?;
        self.add(bytes);
        Ok(())
    }

    fn number(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// `len` bytes. Memory grows with what the stream has, not with what the length claims.
    fn bytes(&mut self, len: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.stream.by_ref().take(len).read_to_end(&mut bytes)?;
        if (bytes.len() as u64) < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.add(&bytes);
        Ok(bytes)
    }

    fn verify(mut self, index: u64) -> io::Result<()> {
        let mut stored = [0; 8];
        self.stream.read_exact(&mut stored)?;
        match u64::from_le_bytes(stored) == self.sum {
            true => Ok(()),
            false => Err(damaged(format!("record log: entry {index} is damaged"))),
        }
    }
}
