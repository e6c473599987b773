//! The fast-commit area: changes since the last full commit in a short, logical form. Numbers are
//! little-endian.
//!
//! For: reading. What a record means for the file system is for whoever knows inodes.
//!
//! Each record is a tag, the length of what follows, and that. A record does not cross blocks. A fast
//! commit ends with `TAIL`, which sums it and fills its block; the next one begins in the next block.
//! The area begins with `HEAD`, which names the transaction that the records come after.
//!
//! Invariant: [`Scan`] yields the records of whole fast commits only, in order.

use crate::Result;
use crate::checksum::crc32c;
use crate::error::Error;
use crate::extent::ExtentDisk;
use crate::journal::Tid;
use crate::layout::{layout, le16, le32};
use crate::types::{Ino, Lblk};

layout! {
    /// What each record begins with.
    pub struct RecordHead[4] = "fast-commit record" {
        0x00 fc_tag: le16,
        0x02 fc_len: le16,
    }
}

layout! {
    /// `HEAD`.
    pub struct Head[8] = "fast-commit head" {
        0x00 fc_features: le32,
        0x04 fc_tid: le32,
    }
}

layout! {
    /// `TAIL`.
    pub struct Tail[8] = "fast-commit tail" {
        0x00 fc_tid: le32,
        0x04 fc_crc: le32,
    }
}

const ADD_RANGE: u16 = 1;
const DEL_RANGE: u16 = 2;
const CREAT: u16 = 3;
const LINK: u16 = 4;
const UNLINK: u16 = 5;
const INODE: u16 = 6;
const PAD: u16 = 7;
const TAIL: u16 = 8;
const HEAD: u16 = 9;

/// Longest name of a directory entry.
const NAME_LEN: usize = 255;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The directory.
    pub parent: Ino,
    /// What the name stands for.
    pub ino: Ino,
    /// 1 to 255 bytes.
    pub name: Vec<u8>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A run of blocks was added to a file.
    AddRange {
        /// The file.
        ino: Ino,
        /// The run as it is in an extent tree; see [`crate::extent::Extent`].
        extent: ExtentDisk,
    },
    /// A range of a file was unmapped.
    DelRange {
        /// The file.
        ino: Ino,
        /// First block.
        lblk: Lblk,
        /// How many blocks.
        len: u32,
    },
    /// A file was created under a name.
    Creat(Name),
    /// A name was given to a file that exists.
    Link(Name),
    /// A name was removed.
    Unlink(Name),
    /// An inode is now like this.
    Inode {
        /// Its number.
        ino: Ino,
        /// Its bytes as in the inode table, at least 128.
        raw: Vec<u8>,
    },
}

/// Whether the area goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next block is part of it.
    More,
    /// Nothing more is to be read.
    End,
}

/// Reads the area block by block.
#[derive(Debug)]
pub struct Scan {
    tid: Tid,
    max_inode_bytes: usize,
    crc: u32,
    begun: bool,
    commits: u32,
    /// Records of whole fast commits, then those of the one being read.
    records: Vec<Record>,
    whole: usize,
}

impl Scan {
    /// Begins. `tid` is the number of the transaction that would follow the last one in the log, and
    /// `inode_bytes` the size of an inode in this file system.
    pub fn new(tid: Tid, inode_bytes: usize) -> Self {
        Self {
            tid,
            max_inode_bytes: inode_bytes,
            crc: 0,
            begun: false,
            commits: 0,
            records: Vec::new(),
            whole: 0,
        }
    }

    /// Reads the next whole block. What does not parse ends the area: nothing says that it was ever
    /// written whole.
    ///
    /// # Errors
    /// `UnsupportedFeature` when the head asks for something unknown. The area must not be dropped
    /// then.
    pub fn block(&mut self, block: &[u8]) -> Result<Next> {
        let mut at = 0;
        while let Some(head) = block.get(at..).and_then(|b| RecordHead::parse(b).ok()) {
            let body = at + RecordHead::SIZE;
            let end = body + usize::from(head.fc_len);
            let Some(value) = block.get(body..end) else {
                return Ok(Next::End);
            };
            if !self.begun && head.fc_tag != HEAD {
                return Ok(Next::End);
            }
            let next = match head.fc_tag {
                HEAD => self.head(value)?,
                TAIL => self.tail(&block[at..body], value),
                tag => self.record(tag, value),
            };
            if next == Next::End {
                return Ok(Next::End);
            }
            if head.fc_tag != TAIL {
                self.crc = crc32c(self.crc, &block[at..end]);
            }
            at = end;
        }
        Ok(Next::More)
    }

    /// How many whole fast commits there were, and their records in order.
    pub fn finish(mut self) -> (u32, Vec<Record>) {
        self.records.truncate(self.whole);
        (self.commits, self.records)
    }

    fn head(&mut self, value: &[u8]) -> Result<Next> {
        let Ok(head) = Head::parse(value) else {
            return Ok(Next::End);
        };
        if value.len() != Head::SIZE || head.fc_tid != self.tid.0 {
            return Ok(Next::End);
        }
        if head.fc_features != 0 {
            return Err(Error::UnsupportedFeature {
                feature: format!("fast-commit features {:#x}", head.fc_features),
            });
        }
        self.begun = true;
        Ok(Next::More)
    }

    fn tail(&mut self, head: &[u8], value: &[u8]) -> Next {
        let Ok(tail) = Tail::parse(value) else {
            return Next::End;
        };
        let crc = crc32c(crc32c(self.crc, head), &value[..4]);
        if tail.fc_tid != self.tid.0 || tail.fc_crc != crc {
            return Next::End;
        }
        self.crc = 0;
        self.commits += 1;
        self.whole = self.records.len();
        Next::More
    }

    fn record(&mut self, tag: u16, value: &[u8]) -> Next {
        let record = match tag {
            PAD => return Next::More,
            ADD_RANGE => add_range(value),
            DEL_RANGE => del_range(value),
            CREAT => name(value).map(Record::Creat),
            LINK => name(value).map(Record::Link),
            UNLINK => name(value).map(Record::Unlink),
            INODE => inode(value, self.max_inode_bytes),
            _ => None,
        };
        match record {
            Some(record) => self.records.push(record),
            None => return Next::End,
        }
        Next::More
    }
}

/// Splits off a number.
fn number(value: &[u8]) -> Option<(u32, &[u8])> {
    let (bytes, rest) = value.split_first_chunk()?;
    Some((u32::from_le_bytes(*bytes), rest))
}

fn add_range(value: &[u8]) -> Option<Record> {
    let (ino, raw) = number(value)?;
    let raw: &[u8; ExtentDisk::SIZE] = raw.try_into().ok()?;
    Some(Record::AddRange {
        ino: Ino(ino),
        extent: ExtentDisk::from_array(raw),
    })
}

fn del_range(value: &[u8]) -> Option<Record> {
    let (ino, rest) = number(value)?;
    let (lblk, rest) = number(rest)?;
    let (len, rest) = number(rest)?;
    rest.is_empty().then_some(Record::DelRange {
        ino: Ino(ino),
        lblk: Lblk(lblk),
        len,
    })
}

fn name(value: &[u8]) -> Option<Name> {
    let (parent, rest) = number(value)?;
    let (ino, name) = number(rest)?;
    (1..=NAME_LEN).contains(&name.len()).then(|| Name {
        parent: Ino(parent),
        ino: Ino(ino),
        name: name.to_vec(),
    })
}

fn inode(value: &[u8], max_bytes: usize) -> Option<Record> {
    let (ino, raw) = number(value)?;
    let allowed = crate::inode::GOOD_OLD_SIZE..=max_bytes;
    allowed.contains(&raw.len()).then(|| Record::Inode {
        ino: Ino(ino),
        raw: raw.to_vec(),
    })
}
