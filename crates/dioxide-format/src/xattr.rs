//! Extended attributes: in the inode after its extra fields, and in one block that inodes may share.
//!
//! For: the entries of one area with every check, names, hashes, the block's checksum. Not for:
//! values that are inodes of their own (`ea_inode`); those are named, not read.
//!
//! Invariants of a parsed area: entries end inside it, values lie inside it and past the entries.
//!
//! Rejected: a lazy iterator. An area is small, is read whole, and half of it is no good if the
//! other half is damaged.

use crate::Result;
use crate::checksum::{crc32c, crc32c_with_hole};
use crate::error::{corrupt, ensure, ensure_checksum, prefix};
use crate::layout::{byte, layout, le16, le32};
use crate::types::{Ino, Pblk};

mod build;

pub use build::{build_block, build_in_inode, entry_hash_of_inode, split_name};

const STRUCTURE: &str = "xattr";
const BLOCK: &str = "xattr block";
/// `h_magic`, of both kinds of area.
pub const MAGIC: u32 = 0xEA02_0000;
/// Most inodes that share a block.
pub const MAX_REFCOUNT: u32 = 1024;
/// Longest value, in bytes.
pub const MAX_VALUE: u32 = 1 << 24;
const CHECKSUM: std::ops::Range<usize> = 0x10..0x14;
/// Index of names that start with `system.`; inline data is `data` there.
pub const INDEX_SYSTEM: u8 = 7;
/// `e_name_index` of the context of a file's encryption, which has the name `c`.
pub const INDEX_ENCRYPTION: u8 = 9;

layout! {
    /// Header of a block as it lies on disk.
    pub struct XattrHeader[32] = "xattr block" {
        0x00 h_magic: le32,
        0x04 h_refcount: le32,
        0x08 h_blocks: le32,
        0x0C h_hash: le32,
        0x10 h_checksum: le32,
        0x14 h_reserved: [le32; 3],
    }
}

layout! {
    /// Head of an entry as it lies on disk; the name follows, padded to four bytes.
    pub struct XattrEntryDisk[16] = "xattr" {
        0x00 e_name_len: byte,
        0x01 e_name_index: byte,
        0x02 e_value_offs: le16,
        0x04 e_value_inum: le32,
        0x08 e_value_size: le32,
        0x0C e_hash: le32,
    }
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrValue<'a> {
    /// Here.
    Bytes(&'a [u8]),
    /// The content of another inode.
    Inode {
        /// That inode.
        ino: Ino,
        /// Bytes of the value.
        size: u32,
    },
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XattrEntry<'a> {
    /// The head.
    pub head: XattrEntryDisk,
    /// Name without the prefix that `head.e_name_index` stands for.
    pub name: &'a [u8],
    /// Value.
    pub value: XattrValue<'a>,
}

impl<'a> XattrEntry<'a> {
    /// The whole name, as `getxattr` takes it.
    ///
    /// # Errors
    /// `Corrupt` for an index that stands for no prefix.
    pub fn full_name(&self) -> Result<Vec<u8>> {
        let index = self.head.e_name_index;
        let prefix = name_prefix(index)
            .ok_or_else(|| corrupt(STRUCTURE, "e_name_index", index, "a known prefix"))?;
        Ok([prefix.as_bytes(), self.name].concat())
    }

    /// The value, when it is not in another inode.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        match self.value {
            XattrValue::Bytes(bytes) => Some(bytes),
            XattrValue::Inode { .. } => None,
        }
    }

    /// Whether `head.e_hash` fits name and value. Old writers took names as signed bytes; both are
    /// right. Entries in an inode may have 0 instead, and of a value in another inode the hash
    /// needs that inode: both pass.
    pub fn hash_matches(&self) -> bool {
        let stored = self.head.e_hash;
        let Some(value) = self.bytes() else {
            return true;
        };
        stored == 0
            || [true, false]
                .iter()
                .any(|&u| entry_hash(self.name, value, u) == stored)
    }
}

/// The prefix of a name, by `e_name_index`.
pub fn name_prefix(index: u8) -> Option<&'static str> {
    Some(match index {
        0 => "",
        1 => "user.",
        2 => "system.posix_acl_access",
        3 => "system.posix_acl_default",
        4 => "trusted.",
        6 => "security.",
        7 => "system.",
        8 => "system.richacl",
        10 => "gnu.",
        _ => return None,
    })
}

/// Whether attributes of this `e_name_index` are listed, as Linux does: not the engine's own (inline data, 7), nor those of
/// encryption (9).
pub fn is_listed(index: u8) -> bool {
    matches!(index, 1..=4 | 6 | 10)
}

/// The hash of an entry. `unsigned` says how bytes of the name are taken; new entries are unsigned.
pub fn entry_hash(name: &[u8], value: &[u8], unsigned: bool) -> u32 {
    let hash = name.iter().fold(0u32, |hash, &b| {
        let wide = if unsigned {
            u32::from(b)
        } else {
            i32::from(b.cast_signed()).cast_unsigned()
        };
        hash.rotate_left(5) ^ wide
    });
    value.chunks(4).fold(hash, |hash, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

/// The hash of a block from those of its entries, by which equal blocks are found; 0 when an entry
/// has none.
pub fn block_hash(entries: &[XattrEntry<'_>]) -> u32 {
    if entries.iter().any(|entry| entry.head.e_hash == 0) {
        return 0;
    }
    entries
        .iter()
        .fold(0u32, |hash, entry| hash.rotate_left(16) ^ entry.head.e_hash)
}

/// Reads the attributes in an inode. `area` is `Inode::in_inode_xattrs`; it holds none when it does
/// not start with the magic number.
///
/// # Errors
/// `Corrupt`.
pub fn parse_in_inode(area: &[u8]) -> Result<Vec<XattrEntry<'_>>> {
    let magic = area.first_chunk().map(|raw| u32::from_le_bytes(*raw));
    if magic != Some(MAGIC) {
        return Ok(Vec::new());
    }
    parse_entries(&area[4..], 0)
}

/// A block of attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XattrBlock<'a> {
    /// The header.
    pub header: XattrHeader,
    /// The attributes.
    pub entries: Vec<XattrEntry<'a>>,
}

impl<'a> XattrBlock<'a> {
    /// Reads a whole block.
    ///
    /// # Errors
    /// `TooShort`, `Corrupt`.
    pub fn parse(block: &'a [u8]) -> Result<Self> {
        let header = XattrHeader::parse(block)?;
        let magic = header.h_magic;
        ensure(
            magic == MAGIC,
            BLOCK,
            "h_magic",
            format_args!("{magic:#x}"),
            "0xea020000",
        )?;
        let blocks = header.h_blocks;
        ensure(blocks == 1, BLOCK, "h_blocks", blocks, 1)?;
        let count = header.h_refcount;
        let ok = (1..=MAX_REFCOUNT).contains(&count);
        ensure(ok, BLOCK, "h_refcount", count, "1 to 1024")?;
        let entries = parse_entries(block, XattrHeader::SIZE)?;
        Ok(Self { header, entries })
    }
}

/// Reads entries from `start` of `area`; offsets of values count from the start of `area`.
fn parse_entries(area: &[u8], start: usize) -> Result<Vec<XattrEntry<'_>>> {
    let end = entries_end(area, start)?;
    let mut entries = Vec::new();
    let mut at = start;
    while at + 4 < end {
        let (head, name) = entry_head(area, at)?;
        let value = entry_value(area, &head, end)?;
        at += entry_len(name.len());
        entries.push(XattrEntry { head, name, value });
    }
    Ok(entries)
}

fn entry_len(name_len: usize) -> usize {
    (XattrEntryDisk::SIZE + name_len).next_multiple_of(4)
}

/// One past the four zero bytes that end the entries.
fn entries_end(area: &[u8], start: usize) -> Result<usize> {
    let mut at = start;
    loop {
        let mark = prefix(area, at + 4, STRUCTURE)?;
        if mark[at..] == [0; 4] {
            return Ok(at + 4);
        }
        at += entry_len(entry_head(area, at)?.1.len());
    }
}

fn entry_head(area: &[u8], at: usize) -> Result<(XattrEntryDisk, &[u8])> {
    let head = XattrEntryDisk::parse(&area[at..])?;
    let len = usize::from(head.e_name_len);
    let entry = prefix(&area[at..], entry_len(len), STRUCTURE)?;
    let name = &entry[XattrEntryDisk::SIZE..][..len];
    // Those of access control lists have no name but their prefix.
    let whole = name_prefix(head.e_name_index)
        .is_some_and(|prefix| !prefix.is_empty() && !prefix.ends_with('.'));
    let named = len > 0 || whole;
    ensure(named, STRUCTURE, "e_name_len", 0, "1 or more")?;
    ensure(
        !name.contains(&0),
        STRUCTURE,
        "e_name",
        name.escape_ascii(),
        "no NUL",
    )?;
    Ok((head, name))
}

fn entry_value<'a>(area: &'a [u8], head: &XattrEntryDisk, end: usize) -> Result<XattrValue<'a>> {
    let size = head.e_value_size;
    if head.e_value_inum != 0 {
        let ok = size <= MAX_VALUE;
        ensure(ok, STRUCTURE, "e_value_size", size, "at most 2^24")?;
        let ino = Ino(head.e_value_inum);
        return Ok(XattrValue::Inode { ino, size });
    }
    if size == 0 {
        return Ok(XattrValue::Bytes(&[]));
    }
    let start = usize::from(head.e_value_offs);
    let padded = u64::from(size).next_multiple_of(4);
    let ok = start >= end && start as u64 + padded <= area.len() as u64;
    let found = format_args!("{start}+{size}");
    let expected = format_args!("within {end}..{}", area.len());
    ensure(ok, STRUCTURE, "e_value_offs", found, expected)?;
    Ok(XattrValue::Bytes(&area[start..start + size as usize]))
}

fn computed_checksum(block: &[u8], fs_seed: u32, place: Pblk) -> u32 {
    let seed = crc32c(fs_seed, &place.0.to_le_bytes());
    crc32c_with_hole(seed, block, CHECKSUM)
}

/// Checks the checksum of a block that lies at `place`, for a file system with `metadata_csum`.
/// `fs_seed` is `SuperBlock::checksum_seed`.
///
/// # Errors
/// `TooShort`, `Checksum`.
pub fn verify_checksum(block: &[u8], fs_seed: u32, place: Pblk) -> Result<()> {
    let found = XattrHeader::parse(block)?.h_checksum;
    ensure_checksum(BLOCK, found, computed_checksum(block, fs_seed, place))
}

/// Makes the checksum of a block that lies at `place` right.
///
/// # Errors
/// `TooShort`.
pub fn update_checksum(block: &mut [u8], fs_seed: u32, place: Pblk) -> Result<()> {
    prefix(block, XattrHeader::SIZE, BLOCK)?;
    let csum = computed_checksum(block, fs_seed, place);
    block[CHECKSUM].copy_from_slice(&csum.to_le_bytes());
    Ok(())
}
