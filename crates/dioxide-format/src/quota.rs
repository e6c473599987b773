//! Quota files: what each user, group or project uses, in the format that Linux calls vfsv1 (v2, r1).
//!
//! For: the blocks of such a file one by one. Not for: where the file lies, or who may use how much.
//!
//! The file is a tree of blocks of [`BLOCK`] bytes, whatever those of the file system: block 0 holds the
//! [`QuotaHeader`], block 1 is the root. Four levels of 256 pointers each, by the bytes of the id from
//! its highest on, lead to a block of records, which ids share as they come. Blocks of records with
//! room are linked, from the header on; so are blocks that nobody uses.

use crate::error::ensure;
use crate::layout::{layout, le16, le32, le64};
use crate::{Error, Result};

const STRUCTURE: &str = "quota file";

/// Bytes of a block of the tree.
pub const BLOCK: usize = 1024;
/// The block of the tree's root.
pub const ROOT: u32 = 1;
/// Levels of pointers between the header and the records.
pub const LEVELS: usize = 4;
/// Records in a block.
pub const RECORDS_PER_BLOCK: usize = (BLOCK - RecordsHead::SIZE) / Record::SIZE;
/// `dqh_version` of this format.
pub const VERSION: u32 = 1;

layout! {
    /// The head of the file: what it is, and what of it is used.
    pub struct QuotaHeader[32] = "quota file" {
        0x00 dqh_magic: le32,
        0x04 dqh_version: le32,
        0x08 dqi_bgrace: le32,
        0x0C dqi_igrace: le32,
        0x10 dqi_flags: le32,
        0x14 dqi_blocks: le32,
        0x18 dqi_free_blk: le32,
        0x1C dqi_free_entry: le32,
    }
}

layout! {
    /// The head of a block of records, and of one that nobody uses.
    pub struct RecordsHead[16] = "block of quota records" {
        0x00 dqdh_next_free: le32,
        0x04 dqdh_prev_free: le32,
        0x08 dqdh_entries: le16,
        0x0A dqdh_pad1: le16,
        0x0C dqdh_pad2: le32,
    }
}

layout! {
    /// What an id uses, and may use. Space in bytes, limits of it in units of 1024; 0 is no limit.
    pub struct Record[72] = "quota record" {
        0x00 dqb_id: le32,
        0x04 dqb_pad: le32,
        0x08 dqb_ihardlimit: le64,
        0x10 dqb_isoftlimit: le64,
        0x18 dqb_curinodes: le64,
        0x20 dqb_bhardlimit: le64,
        0x28 dqb_bsoftlimit: le64,
        0x30 dqb_curspace: le64,
        0x38 dqb_btime: le64,
        0x40 dqb_itime: le64,
    }
}

/// Whose use a file counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaKind {
    /// That of owners.
    User,
    /// That of groups.
    Group,
    /// That of projects.
    Project,
}

impl QuotaKind {
    /// All, in the order of their numbers.
    pub const ALL: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

    /// `dqh_magic` of such a file.
    pub fn magic(self) -> u32 {
        match self {
            QuotaKind::User => 0xD9C0_1F11,
            QuotaKind::Group => 0xD9C0_1927,
            QuotaKind::Project => 0xD9C0_3F14,
        }
    }
}

impl QuotaHeader {
    /// Checks the head of a file of a kind.
    ///
    /// # Errors
    /// `UnsupportedFeature` for a version other than [`VERSION`]; `Corrupt`.
    pub fn validate(&self, kind: QuotaKind) -> Result<()> {
        let (magic, expected) = (self.dqh_magic, kind.magic());
        let hex = |value: u32| format!("{value:#010x}");
        ensure(
            magic == expected,
            STRUCTURE,
            "dqh_magic",
            hex(magic),
            hex(expected),
        )?;
        if self.dqh_version != VERSION {
            let feature = format!("quota files of version {}", self.dqh_version);
            return Err(Error::UnsupportedFeature { feature });
        }
        let blocks = self.dqi_blocks;
        ensure(
            blocks > ROOT && blocks < 1 << 22,
            STRUCTURE,
            "dqi_blocks",
            blocks,
            "from 2 to 4194303",
        )?;
        self.check_block(self.dqi_free_blk, "dqi_free_blk")?;
        self.check_block(self.dqi_free_entry, "dqi_free_entry")
    }

    /// Checks a number that leads to a block of the file behind the root, or (0) nowhere.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn check_block(&self, block: u32, field: &'static str) -> Result<()> {
        ensure(
            block == 0 || block > ROOT && block < self.dqi_blocks,
            STRUCTURE,
            field,
            block,
            format_args!("0, or from 2 to {}", self.dqi_blocks.saturating_sub(1)),
        )
    }
}

impl Record {
    /// As it is written: one that is used must not be all zeros, as a free one is.
    pub fn encode_used(&self) -> [u8; Record::SIZE] {
        let mut bytes = self.encode();
        if is_free(&bytes) {
            let itime = Record {
                dqb_itime: 1,
                ..self.clone()
            };
            bytes = itime.encode();
        }
        bytes
    }
}

/// Whether a place for a record is free.
fn is_free(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// The byte of a block of pointers at which the pointer to what is below lies, for an id on a level (0
/// is the root's).
///
/// # Panics
/// On a level that there is not.
pub fn pointer_at(id: u32, level: usize) -> usize {
    usize::from(id.to_be_bytes()[level]) * 4
}

/// The pointer at a byte of a block.
///
/// # Errors
/// `TooShort`.
pub fn pointer(block: &[u8], at: usize) -> Result<u32> {
    let bytes = block.get(at..).and_then(|rest| rest.first_chunk());
    bytes
        .map(|bytes| u32::from_le_bytes(*bytes))
        .ok_or(Error::TooShort {
            structure: STRUCTURE,
            need: at + 4,
            have: block.len(),
        })
}

/// Where in a block of records each place is, and whether it is used.
fn places(block: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let starts = (0..RECORDS_PER_BLOCK).map(|slot| RecordsHead::SIZE + slot * Record::SIZE);
    starts.filter_map(|at| Some((at, block.get(at..at + Record::SIZE)?)))
}

/// The record of an id in a block of records, and the byte at which it lies.
pub fn find_record(block: &[u8], id: u32) -> Option<(usize, Record)> {
    places(block)
        .filter(|(_, bytes)| !is_free(bytes))
        .filter_map(|(at, bytes)| Some((at, Record::parse(bytes).ok()?)))
        .find(|(_, record)| record.dqb_id == id)
}

/// The records in a block of them, in their order.
pub fn records(block: &[u8]) -> impl Iterator<Item = Record> {
    let used = places(block).filter(|(_, bytes)| !is_free(bytes));
    used.filter_map(|(_, bytes)| Record::parse(bytes).ok())
}

/// The byte of a block of records at which a new one can go.
pub fn free_place(block: &[u8]) -> Option<usize> {
    let mut free = places(block).filter(|(_, bytes)| is_free(bytes));
    free.next().map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: u32) -> Record {
        Record {
            dqb_id: id,
            ..Record::zeroed()
        }
    }

    #[test]
    fn record_of_nobody_that_uses_nothing_is_not_free() {
        let mut block = vec![0; BLOCK];
        assert_eq!(free_place(&block), Some(16));
        block[16..88].copy_from_slice(&record(0).encode_used());
        assert_eq!(free_place(&block), Some(88));
        assert_eq!(find_record(&block, 0).map(|(at, _)| at), Some(16));
        assert_eq!(find_record(&block, 7), None);
    }

    #[test]
    fn block_of_records_is_full_after_fourteen() {
        let mut block = vec![0; BLOCK];
        for id in 1..=14 {
            let at = free_place(&block).expect("room");
            block[at..at + Record::SIZE].copy_from_slice(&record(id).encode_used());
        }
        assert_eq!(free_place(&block), None);
        assert!((1..=14).all(|id| find_record(&block, id).is_some()));
        assert!(records(&block).map(|record| record.dqb_id).eq(1..=14));
    }

    #[test]
    fn pointer_of_an_id_follows_its_bytes_from_the_highest() {
        let at = [0, 1, 2, 3].map(|level| pointer_at(0x0102_03FF, level));
        assert_eq!(at, [4, 8, 12, 1020]);
        assert!(pointer(&[0; 8], 6).is_err());
    }

    #[test]
    fn header_that_leads_out_of_the_file_is_refused() {
        let mut header = QuotaHeader::zeroed();
        header.dqh_magic = QuotaKind::Group.magic();
        header.dqh_version = VERSION;
        header.dqi_blocks = 6;
        header.dqi_free_entry = 5;
        assert_eq!(header.validate(QuotaKind::Group), Ok(()));
        assert!(header.validate(QuotaKind::User).is_err());
        header.dqi_free_blk = 6;
        assert!(header.validate(QuotaKind::Group).is_err());
    }
}
