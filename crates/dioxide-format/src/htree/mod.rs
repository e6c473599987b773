//! Hash indexes of directories: the root in block 0, nodes below it, and the hashes of names.
//!
//! For: one index block at a time, its checks, search, changes and checksum. Not for: the descent.
//!
//! Invariants of a parsed block: limit and count are what the block size allows; after `validate`
//! hashes ascend and blocks lie inside the directory.
//!
//! Rejected: reading an index block as raw slots. The first slot holds limit and count instead of a
//! hash, which every caller would have to remember.

mod hash;

pub use hash::{HashVersion, NameHash, SIPHASH, hash};

use crate::Result;
use crate::checksum::crc32c;
use crate::dir::{DirFormat, decode_rec_len, encode_rec_len};
use crate::error::{corrupt, ensure, ensure_checksum, prefix};
use crate::layout::{byte, layout, le16, le32};
use crate::types::{Ino, Lblk};

const ROOT: &str = "htree root";
const NODE: &str = "htree node";
const ENTRY_SIZE: usize = 8;
const TAIL_SIZE: usize = 8;
const BLOCK_MASK: u32 = 0x0FFF_FFFF;

layout! {
    /// Head of the root: the entries `.` and `..` and the description of the index.
    pub struct DxRootDisk[32] = "htree root" {
        0x00 dot_inode: le32,
        0x04 dot_rec_len: le16,
        0x06 dot_name_len: byte,
        0x07 dot_file_type: byte,
        0x08 dot_name: [byte; 4],
        0x0C dotdot_inode: le32,
        0x10 dotdot_rec_len: le16,
        0x12 dotdot_name_len: byte,
        0x13 dotdot_file_type: byte,
        0x14 dotdot_name: [byte; 4],
        0x18 reserved_zero: le32,
        0x1C hash_version: byte,
        0x1D info_length: byte,
        0x1E indirect_levels: byte,
        0x1F unused_flags: byte,
    }
}

layout! {
    /// Head of a node: an unused entry that fills the block.
    pub struct DxNodeDisk[8] = "htree node" {
        0x00 fake_inode: le32,
        0x04 fake_rec_len: le16,
        0x06 fake_name_len: byte,
        0x07 fake_file_type: byte,
    }
}

layout! {
    /// The first slot of an index block: limit and count where later slots have the hash.
    pub struct DxCountLimitDisk[8] = "htree node" {
        0x00 limit: le16,
        0x02 count: le16,
        0x04 block: le32,
    }
}

/// An entry of an index block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DxEntry {
    /// Lowest hash of what `block` leads to; 0 for the first entry.
    pub hash: u32,
    /// The block as stored. Its upper four bits mean nothing.
    pub raw_block: u32,
}

impl DxEntry {
    /// Block of the directory that holds the next level or the names.
    pub fn block(&self) -> Lblk {
        Lblk(self.raw_block & BLOCK_MASK)
    }
}

/// The entries of an index block, root or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DxEntries {
    limit: u16,
    entries: Vec<DxEntry>,
}

/// The root of an index: block 0 of an indexed directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DxRoot {
    /// The head.
    pub head: DxRootDisk,
    /// The entries.
    pub entries: DxEntries,
}

/// An index block below the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DxNode {
    /// The head.
    pub head: DxNodeDisk,
    /// The entries.
    pub entries: DxEntries,
}

fn limit_for(head: usize, format: &DirFormat) -> usize {
    let tail = if format.checksum { TAIL_SIZE } else { 0 };
    (format.block_size as usize).saturating_sub(head + tail) / ENTRY_SIZE
}

/// The entries of an index block where they lie: for looking up, without a copy.
#[derive(Clone, Copy, Debug)]
pub struct DxView<'a> {
    slots: &'a [[u8; ENTRY_SIZE]],
    limit: u16,
}

impl<'a> DxView<'a> {
    fn parse(
        block: &'a [u8],
        head: usize,
        format: &DirFormat,
        structure: &'static str,
    ) -> Result<Self> {
        prefix(block, format.block_size as usize, structure)?;
        let first = DxCountLimitDisk::parse(&block[head..])?;
        let limit = limit_for(head, format);
        let found = first.limit;
        ensure(
            usize::from(found) == limit,
            structure,
            "limit",
            found,
            limit,
        )?;
        let count = first.count;
        let ok = (1..=found).contains(&count);
        ensure(ok, structure, "count", count, format_args!("1 to {limit}"))?;
        let (slots, _) = block[head..][..usize::from(count) * ENTRY_SIZE].as_chunks::<ENTRY_SIZE>();
        Ok(Self {
            slots,
            limit: found,
        })
    }

    /// Reads the entries of an index block below the root, and checks its head, limit and count.
    ///
    /// # Errors
    /// `TooShort`, `Corrupt`.
    pub fn of_node(block: &'a [u8], format: &DirFormat) -> Result<Self> {
        validate_node_head(block, format)?;
        Self::parse(block, DxNodeDisk::SIZE, format, NODE)
    }

    /// How many entries there are; at least one.
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// An entry.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn get(&self, position: usize) -> DxEntry {
        let entry = decode_slot(&self.slots[position]);
        match position {
            0 => DxEntry { hash: 0, ..entry },
            _ => entry,
        }
    }

    /// Position of the entry to follow for a name's `NameHash::major`.
    pub fn search(&self, major: u32) -> usize {
        // The first entry has the lowest hash by definition, so there is always one before.
        self.slots[1..].partition_point(|slot| decode_slot(slot).hash <= major)
    }
}

/// The root of an index where it lies.
#[derive(Clone, Debug)]
pub struct DxRootView<'a> {
    /// The head.
    pub head: DxRootDisk,
    /// The entries.
    pub entries: DxView<'a>,
}

impl<'a> DxRootView<'a> {
    /// Reads block 0 of an indexed directory and checks its head, limit and count.
    ///
    /// # Errors
    /// As `DxRoot::parse`.
    pub fn parse(block: &'a [u8], format: &DirFormat) -> Result<Self> {
        let head = DxRootDisk::parse(block)?;
        validate_root_head(&head, format)?;
        let entries = DxView::parse(block, DxRootDisk::SIZE, format, ROOT)?;
        Ok(Self { head, entries })
    }

    /// The hash of the index, as `DxRoot::hash_version`.
    ///
    /// # Errors
    /// As `HashVersion::from_disk`.
    pub fn hash_version(&self, unsigned: bool) -> Result<HashVersion> {
        HashVersion::from_disk(self.head.hash_version, unsigned)
    }
}

impl DxEntries {
    fn of(view: &DxView<'_>) -> Self {
        Self {
            limit: view.limit,
            entries: (0..view.count()).map(|at| view.get(at)).collect(),
        }
    }

    /// Puts an entry in at a position other than the first.
    ///
    /// # Errors
    /// `Corrupt` when the hash does not belong there.
    ///
    /// # Panics
    /// If the block is full, or has fewer entries.
    pub fn insert(&mut self, position: usize, entry: DxEntry) -> Result<()> {
        assert!(!self.is_full(), "no room for an entry");
        self.admits(position, entry.hash)?;
        self.entries.insert(position, entry);
        Ok(())
    }

    /// Checks that a hash belongs before the entry at a position other than the first.
    ///
    /// # Errors
    /// `Corrupt`.
    ///
    /// # Panics
    /// If there are fewer entries before.
    pub fn admits(&self, position: usize, hash: u32) -> Result<()> {
        let least = self.entries[position - 1].hash;
        let next = self.entries.get(position);
        let most = next.map_or(u32::MAX, |next| next.hash);
        let ok = (least..=most).contains(&hash);
        ensure(ok, NODE, "hash", hash, format_args!("{least} to {most}"))
    }

    /// Takes the entries from a position on.
    ///
    /// # Panics
    /// If none would stay.
    #[must_use]
    pub fn split_off(&mut self, position: usize) -> Vec<DxEntry> {
        assert!(position > 0, "an index block has an entry");
        self.entries.split_off(position)
    }

    /// Takes all entries, and leads to one block instead.
    #[must_use]
    pub fn replace_by(&mut self, block: Lblk) -> Vec<DxEntry> {
        let only = DxEntry {
            hash: 0,
            raw_block: block.0,
        };
        std::mem::replace(&mut self.entries, vec![only])
    }

    /// Whether there is no room for another.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= usize::from(self.limit)
    }

    fn encode_into(&self, slots: &mut [u8]) {
        for (slot, entry) in slots.chunks_exact_mut(ENTRY_SIZE).zip(&self.entries) {
            slot[..4].copy_from_slice(&entry.hash.to_le_bytes());
            slot[4..].copy_from_slice(&entry.raw_block.to_le_bytes());
        }
        slots[..2].copy_from_slice(&self.limit.to_le_bytes());
        slots[2..4].copy_from_slice(&(self.entries.len() as u16).to_le_bytes());
    }

    /// The entries; at least one.
    pub fn as_slice(&self) -> &[DxEntry] {
        &self.entries
    }

    /// Most entries that the block takes.
    pub fn limit(&self) -> u16 {
        self.limit
    }

    /// Position of the entry to follow for a name's `NameHash::major`.
    pub fn search(&self, major: u32) -> usize {
        // The first entry has the lowest hash by definition, so there is always one before.
        self.entries[1..].partition_point(|entry| entry.hash <= major)
    }

    /// Checks that hashes do not descend and blocks lie inside a directory of `dir_blocks` blocks.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn validate(&self, dir_blocks: u32) -> Result<()> {
        let mut least = 0;
        for entry in &self.entries {
            let (hash, block) = (entry.hash, entry.block());
            ensure(
                hash >= least,
                NODE,
                "hash",
                hash,
                format_args!("{least} or more"),
            )?;
            let ok = (1..dir_blocks).contains(&block.0);
            ensure(
                ok,
                NODE,
                "block",
                block,
                format_args!("1 to below {dir_blocks}"),
            )?;
            least = hash;
        }
        Ok(())
    }
}

fn decode_slot(slot: &[u8; ENTRY_SIZE]) -> DxEntry {
    let [h0, h1, h2, h3, b0, b1, b2, b3] = *slot;
    DxEntry {
        hash: u32::from_le_bytes([h0, h1, h2, h3]),
        raw_block: u32::from_le_bytes([b0, b1, b2, b3]),
    }
}

impl DxRoot {
    /// Reads block 0 of an indexed directory and checks its head, limit and count.
    ///
    /// # Errors
    /// `TooShort`; `Corrupt`, also for a hash that is none. One that is not implemented is a matter of [`DxRoot::hash_version`].
    pub fn parse(block: &[u8], format: &DirFormat) -> Result<Self> {
        let head = DxRootDisk::parse(block)?;
        validate_root_head(&head, format)?;
        let entries = DxEntries::of(&DxView::parse(block, DxRootDisk::SIZE, format, ROOT)?);
        Ok(Self { head, entries })
    }

    /// The root of a new index: of directory `dot` in `dotdot`, by the hash `version`, with these
    /// entries.
    ///
    /// # Panics
    /// If there are none, or more than a block takes.
    pub fn new(
        dot: Ino,
        dotdot: Ino,
        version: u8,
        format: &DirFormat,
        entries: Vec<DxEntry>,
    ) -> Self {
        let file_type = if format.filetype {
            crate::inode::FileType::Directory.dirent_code()
        } else {
            0
        };
        let head = DxRootDisk {
            dot_inode: dot.0,
            dot_rec_len: 12,
            dot_name_len: 1,
            dot_file_type: file_type,
            dot_name: *b".\0\0\0",
            dotdot_inode: dotdot.0,
            // At most 65524.
            dotdot_rec_len: (format.block_size - 12) as u16,
            dotdot_name_len: 2,
            dotdot_file_type: file_type,
            dotdot_name: *b"..\0\0",
            reserved_zero: 0,
            hash_version: version,
            info_length: 8,
            indirect_levels: 0,
            unused_flags: 0,
        };
        let entries = new_entries(DxRootDisk::SIZE, format, entries);
        Self { head, entries }
    }

    /// The directory's own inode, from `.`.
    pub fn dot(&self) -> Ino {
        Ino(self.head.dot_inode)
    }

    /// The parent directory, from `..`.
    pub fn dotdot(&self) -> Ino {
        Ino(self.head.dotdot_inode)
    }

    /// The hash of the index; `unsigned` is `SuperBlock::hash_is_unsigned`.
    ///
    /// # Errors
    /// As `HashVersion::from_disk`.
    pub fn hash_version(&self, unsigned: bool) -> Result<HashVersion> {
        HashVersion::from_disk(self.head.hash_version, unsigned)
    }

    /// Index blocks between the root and the names: 0 to 2.
    pub fn indirect_levels(&self) -> u8 {
        self.head.indirect_levels
    }

    /// Writes head and entries; other bytes of `block` are left alone.
    ///
    /// # Errors
    /// `TooShort` when they do not fit.
    pub fn encode_into(&self, block: &mut [u8]) -> Result<()> {
        encode_block(block, &self.head.encode(), &self.entries, ROOT)
    }
}

fn validate_root_head(head: &DxRootDisk, format: &DirFormat) -> Result<()> {
    let check = |ok, field, found: u32, expected: &str| ensure(ok, ROOT, field, found, expected);
    let rec_len = u32::from(head.dot_rec_len);
    check(rec_len == 12, "dot_rec_len", rec_len, "12")?;
    let rec_len = decode_rec_len(head.dotdot_rec_len, format.block_size) as u32;
    let ok = rec_len.checked_add(12) == Some(format.block_size);
    check(ok, "dotdot_rec_len", rec_len, "the rest of the block")?;
    let zero = head.reserved_zero;
    check(zero == 0, "reserved_zero", zero, "0")?;
    let len = u32::from(head.info_length);
    check(len == 8, "info_length", len, "8")?;
    let flags = u32::from(head.unused_flags);
    check(flags & 1 == 0, "unused_flags", flags, "lowest bit clear")?;
    if head.hash_version != SIPHASH {
        HashVersion::from_disk(head.hash_version, false)?;
    }
    let levels = u32::from(head.indirect_levels);
    let most = if format.large_dir { 2 } else { 1 };
    check(
        levels <= most,
        "indirect_levels",
        levels,
        if most == 2 { "0 to 2" } else { "0 or 1" },
    )
}

impl DxNode {
    /// Reads an index block below the root and checks its head, limit and count.
    ///
    /// # Errors
    /// `TooShort`, `Corrupt`.
    pub fn parse(block: &[u8], format: &DirFormat) -> Result<Self> {
        let head = validate_node_head(block, format)?;
        let entries = DxEntries::of(&DxView::parse(block, DxNodeDisk::SIZE, format, NODE)?);
        Ok(Self { head, entries })
    }

    /// A new index block with these entries.
    ///
    /// # Panics
    /// If there are none, or more than a block takes.
    pub fn new(format: &DirFormat, entries: Vec<DxEntry>) -> Self {
        let head = DxNodeDisk {
            fake_inode: 0,
            fake_rec_len: encode_rec_len(format.block_size as usize),
            fake_name_len: 0,
            fake_file_type: 0,
        };
        let entries = new_entries(DxNodeDisk::SIZE, format, entries);
        Self { head, entries }
    }

    /// Writes head and entries; other bytes of `block` are left alone.
    ///
    /// # Errors
    /// `TooShort` when they do not fit.
    pub fn encode_into(&self, block: &mut [u8]) -> Result<()> {
        encode_block(block, &self.head.encode(), &self.entries, NODE)
    }
}

fn new_entries(head: usize, format: &DirFormat, entries: Vec<DxEntry>) -> DxEntries {
    let limit = limit_for(head, format);
    assert!((1..=limit).contains(&entries.len()), "entries of one block");
    DxEntries {
        // A block of 64 KiB has room for 8,190.
        limit: limit as u16,
        entries,
    }
}

fn validate_node_head(block: &[u8], format: &DirFormat) -> Result<DxNodeDisk> {
    let head = DxNodeDisk::parse(block)?;
    let inode = head.fake_inode;
    ensure(inode == 0, NODE, "fake_inode", inode, 0)?;
    let rec_len = decode_rec_len(head.fake_rec_len, format.block_size);
    let block_size = format.block_size;
    let ok = rec_len == block_size as usize;
    ensure(ok, NODE, "fake_rec_len", rec_len, block_size)?;
    Ok(head)
}

fn encode_block(
    block: &mut [u8],
    head: &[u8],
    entries: &DxEntries,
    structure: &'static str,
) -> Result<()> {
    let end = head.len() + usize::from(entries.limit) * ENTRY_SIZE;
    prefix(block, end, structure)?;
    block[..head.len()].copy_from_slice(head);
    entries.encode_into(&mut block[head.len()..end]);
    Ok(())
}

/// Whether a block of an indexed directory belongs to the index rather than holding names.
pub fn is_index_block(block: &[u8], lblk: Lblk, format: &DirFormat) -> bool {
    let has_no_name = |head: DxNodeDisk| head.fake_name_len == 0;
    lblk.0 == 0 || validate_node_head(block, format).is_ok_and(has_no_name)
}

/// Limit and count of an index block, and where the checksum is.
struct Shape {
    used: usize,
    tail: usize,
}

fn shape(block: &[u8], format: &DirFormat) -> Result<Shape> {
    // As who reads it tells them apart: a checksum is where it is looked for.
    let head = match validate_node_head(block, format) {
        Ok(_) => DxNodeDisk::SIZE,
        Err(_) => DxRootDisk::SIZE,
    };
    prefix(block, format.block_size as usize, NODE)?;
    let first = DxCountLimitDisk::parse(&block[head..])?;
    let (limit, count) = (usize::from(first.limit), usize::from(first.count));
    let tail = head + limit * ENTRY_SIZE;
    if count > limit || tail + TAIL_SIZE > block.len() {
        let expected = format_args!("room for a checksum in {} bytes", block.len());
        return Err(corrupt(NODE, "limit", limit, expected));
    }
    let used = head + count * ENTRY_SIZE;
    Ok(Shape { used, tail })
}

/// The checksum covers the head and the used slots, then the tail with itself as zero.
fn computed_checksum(block: &[u8], shape: &Shape, inode_seed: u32) -> u32 {
    let crc = crc32c(inode_seed, &block[..shape.used]);
    let crc = crc32c(crc, &block[shape.tail..shape.tail + 4]);
    crc32c(crc, &[0; 4])
}

/// Checks the checksum of an index block, for a file system with `metadata_csum`. `inode_seed` is
/// `Inode::seed` of the directory.
///
/// # Errors
/// `TooShort`; `Corrupt` when there is no room for a checksum; `Checksum`.
pub fn verify_checksum(block: &[u8], format: &DirFormat, inode_seed: u32) -> Result<()> {
    let shape = shape(block, format)?;
    let mut stored = [0; 4];
    stored.copy_from_slice(&block[shape.tail + 4..shape.tail + 8]);
    let computed = computed_checksum(block, &shape, inode_seed);
    ensure_checksum(NODE, u32::from_le_bytes(stored), computed)
}

/// Makes the checksum of an index block right, for a file system with `metadata_csum`.
///
/// # Errors
/// `TooShort`; `Corrupt` when there is no room for a checksum.
pub fn update_checksum(block: &mut [u8], format: &DirFormat, inode_seed: u32) -> Result<()> {
    let shape = shape(block, format)?;
    let csum = computed_checksum(block, &shape, inode_seed);
    block[shape.tail + 4..shape.tail + 8].copy_from_slice(&csum.to_le_bytes());
    Ok(())
}
