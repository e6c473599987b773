//! Extent tree nodes: the 60 bytes in the inode and the blocks below.
//!
//! For: one node at a time. Not for: walking the tree, or caching it; the engine's map does that.
//!
//! Invariants of a node that passed `parse` and `validate`: entries fit the node, are sorted, do
//! not overlap, lie in the range that the parent gave, and point inside the file system.
//!
//! Rejected: searching the raw bytes without decoding. It saves a copy of one block per node read
//! from the device, and leaves every caller with unchecked entries.

use crate::Result;
use crate::checksum::crc32c;
use crate::error::{corrupt, ensure, ensure_checksum, prefix};
use crate::layout::{layout, le16, le32};
use crate::types::{Lblk, Pblk};
use std::ops::Range;

const STRUCTURE: &str = "extent node";
/// `eh_magic`.
pub const MAGIC: u16 = 0xF30A;
/// Deepest tree, counted from 0 for a root that is a leaf.
pub const MAX_DEPTH: u16 = 5;
/// Longest written extent, in blocks. An unwritten one is at most one block shorter.
pub const MAX_LEN: u16 = 32768;
/// One past the largest logical block.
pub const LBLK_END: u64 = 1 << 32;
/// Entries of the node in an inode.
pub const ROOT_ENTRIES: u16 = 4;
const ENTRY_SIZE: usize = 12;
const TAIL_SIZE: usize = 4;

layout! {
    /// Header of a node as it lies on disk.
    pub struct ExtentHeader[12] = "extent node" {
        0x00 eh_magic: le16,
        0x02 eh_entries: le16,
        0x04 eh_max: le16,
        0x06 eh_depth: le16,
        0x08 eh_generation: le32,
    }
}

layout! {
    /// Entry of a leaf as it lies on disk.
    pub struct ExtentDisk[12] = "extent" {
        0x00 ee_block: le32,
        0x04 ee_len: le16,
        0x06 ee_start_hi: le16,
        0x08 ee_start_lo: le32,
    }
}

layout! {
    /// Entry of an index node as it lies on disk.
    pub struct ExtentIndexDisk[12] = "extent index" {
        0x00 ei_block: le32,
        0x04 ei_leaf_lo: le32,
        0x08 ei_leaf_hi: le16,
        0x0A ei_unused: le16,
    }
}

/// A run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First logical block.
    pub lblk: Lblk,
    /// Blocks, 1 to `MAX_LEN`.
    pub len: u16,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
    /// First physical block.
    pub pblk: Pblk,
}

impl Extent {
    /// One past the last logical block.
    pub fn end(&self) -> u64 {
        u64::from(self.lblk.0) + u64::from(self.len)
    }

    fn from_disk(disk: &ExtentDisk) -> Self {
        let unwritten = disk.ee_len > MAX_LEN;
        Self {
            lblk: Lblk(disk.ee_block),
            len: disk.ee_len - if unwritten { MAX_LEN } else { 0 },
            unwritten,
            pblk: block48(disk.ee_start_hi, disk.ee_start_lo),
        }
    }

    /// The entry as it lies on disk. An unwritten extent is at most `MAX_LEN - 1` blocks long.
    pub fn to_disk(&self) -> ExtentDisk {
        debug_assert!(self.len <= MAX_LEN - u16::from(self.unwritten));
        ExtentDisk {
            ee_block: self.lblk.0,
            ee_len: self.len + if self.unwritten { MAX_LEN } else { 0 },
            ee_start_hi: (self.pblk.0 >> 32) as u16,
            ee_start_lo: self.pblk.0 as u32,
        }
    }
}

/// A reference to the node that covers logical blocks from `lblk` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExtentIndex {
    /// First logical block that the node covers.
    pub lblk: Lblk,
    /// Block of the node.
    pub leaf: Pblk,
    /// Unused bytes, kept as found; zero in a new entry.
    pub unused: u16,
}

impl ExtentIndex {
    /// A new entry.
    pub fn new(lblk: Lblk, leaf: Pblk) -> Self {
        Self {
            lblk,
            leaf,
            unused: 0,
        }
    }

    fn from_disk(disk: &ExtentIndexDisk) -> Self {
        Self {
            lblk: Lblk(disk.ei_block),
            leaf: block48(disk.ei_leaf_hi, disk.ei_leaf_lo),
            unused: disk.ei_unused,
        }
    }

    /// The entry as it lies on disk.
    pub fn to_disk(&self) -> ExtentIndexDisk {
        ExtentIndexDisk {
            ei_block: self.lblk.0,
            ei_leaf_lo: self.leaf.0 as u32,
            ei_leaf_hi: (self.leaf.0 >> 32) as u16,
            ei_unused: self.unused,
        }
    }
}

fn block48(hi: u16, lo: u32) -> Pblk {
    Pblk((u64::from(hi) << 32) | u64::from(lo))
}

/// The entries of a node; which kind follows from its depth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtentEntries {
    /// Depth 0.
    Leaf(Vec<Extent>),
    /// Depth 1 and more.
    Index(Vec<ExtentIndex>),
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentNode {
    /// The header. `encode_into` writes the real number of entries, whatever it says.
    pub header: ExtentHeader,
    /// The entries.
    pub entries: ExtentEntries,
}

impl ExtentNode {
    /// A node with room for `max` entries, `depth` levels above the leaves.
    pub fn new(max: u16, depth: u16, entries: ExtentEntries) -> Self {
        let header = ExtentHeader {
            eh_magic: MAGIC,
            eh_entries: 0,
            eh_max: max,
            eh_depth: depth,
            eh_generation: 0,
        };
        Self { header, entries }
    }

    /// Reads a node from `bytes`: the 60 bytes of `i_block`, or a whole block. Checks the header
    /// and that the entries fit; `expected_depth` is the parent's less one.
    ///
    /// # Errors
    /// `TooShort`, `Corrupt`.
    pub fn parse(bytes: &[u8], expected_depth: Option<u16>) -> Result<Self> {
        let header = ExtentHeader::parse(bytes)?;
        validate_header(&header, bytes.len(), expected_depth)?;
        let used = usize::from(header.eh_entries) * ENTRY_SIZE;
        let (raw, _) = bytes[ExtentHeader::SIZE..][..used].as_chunks::<ENTRY_SIZE>();
        // With room for the entry that a change mostly adds.
        let room = raw.len() + 1;
        let entries = if header.eh_depth == 0 {
            let mut leaf = Vec::with_capacity(room);
            leaf.extend(
                raw.iter()
                    .map(|r| Extent::from_disk(&ExtentDisk::from_array(r))),
            );
            ExtentEntries::Leaf(leaf)
        } else {
            let mut index = Vec::with_capacity(room);
            index.extend(
                raw.iter()
                    .map(|r| ExtentIndex::from_disk(&ExtentIndexDisk::from_array(r))),
            );
            ExtentEntries::Index(index)
        };
        Ok(Self { header, entries })
    }

    /// Checks every entry. `logical` is what the parent's entries leave to this node (for a root
    /// `0..LBLK_END`), `physical` the blocks of the file system that may be pointed to.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn validate(&self, logical: Range<u64>, physical: Range<u64>) -> Result<()> {
        match &self.entries {
            ExtentEntries::Leaf(extents) => validate_leaf(extents, logical, physical),
            ExtentEntries::Index(index) => validate_index(index, logical, physical),
        }
    }

    /// Distance to the leaves; 0 for a leaf.
    pub fn depth(&self) -> u16 {
        self.header.eh_depth
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        match &self.entries {
            ExtentEntries::Leaf(extents) => extents.len(),
            ExtentEntries::Index(index) => index.len(),
        }
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The extents of a leaf; none in an index node.
    pub fn extents(&self) -> &[Extent] {
        match &self.entries {
            ExtentEntries::Leaf(extents) => extents,
            ExtentEntries::Index(_) => &[],
        }
    }

    /// The entries of an index node; none in a leaf.
    pub fn indices(&self) -> &[ExtentIndex] {
        match &self.entries {
            ExtentEntries::Leaf(_) => &[],
            ExtentEntries::Index(index) => index,
        }
    }

    /// Position of the last entry that starts at or before `lblk`. In an index node that is the
    /// child to descend to; in a leaf the extent, if it reaches that far.
    pub fn search(&self, lblk: Lblk) -> Option<usize> {
        let after = match &self.entries {
            ExtentEntries::Leaf(extents) => extents.partition_point(|e| e.lblk <= lblk),
            ExtentEntries::Index(index) => index.partition_point(|i| i.lblk <= lblk),
        };
        after.checked_sub(1)
    }

    /// The extent of a leaf that holds `lblk`.
    pub fn find(&self, lblk: Lblk) -> Option<Extent> {
        let extent = self.extents().get(self.search(lblk)?)?;
        (u64::from(lblk.0) < extent.end()).then_some(*extent)
    }

    /// The logical blocks that the child at `position` of an index node may hold, given those of
    /// this node.
    pub fn child_range(&self, position: usize, logical: &Range<u64>) -> Range<u64> {
        let start_of = |i: &ExtentIndex| u64::from(i.lblk.0);
        let index = self.indices();
        let start = index.get(position).map_or(logical.end, start_of);
        let end = index.get(position + 1).map_or(logical.end, start_of);
        start..end
    }

    /// Writes header and entries to the start of `bytes`; what follows is left alone.
    ///
    /// # Errors
    /// `TooShort` when they do not fit; `Corrupt` when there are more than `eh_max`.
    pub fn encode_into(&self, bytes: &mut [u8]) -> Result<()> {
        let (len, max) = (self.len(), usize::from(self.header.eh_max));
        ensure(
            len <= max,
            STRUCTURE,
            "eh_entries",
            len,
            format_args!("at most {max}"),
        )?;
        prefix(bytes, ExtentHeader::SIZE + len * ENTRY_SIZE, STRUCTURE)?;
        let mut header = self.header.clone();
        header.eh_entries = len as u16;
        bytes[..ExtentHeader::SIZE].copy_from_slice(&header.encode());
        let slots = bytes[ExtentHeader::SIZE..].chunks_exact_mut(ENTRY_SIZE);
        match &self.entries {
            ExtentEntries::Leaf(extents) => {
                slots
                    .zip(extents)
                    .for_each(|(s, e)| s.copy_from_slice(&e.to_disk().encode()));
            }
            ExtentEntries::Index(index) => {
                slots
                    .zip(index)
                    .for_each(|(s, i)| s.copy_from_slice(&i.to_disk().encode()));
            }
        }
        Ok(())
    }
}

/// That this is a node, with slots that lie in `bytes`, header included.
fn validate_size(header: &ExtentHeader, bytes: usize) -> Result<()> {
    let magic = header.eh_magic;
    ensure(magic == MAGIC, STRUCTURE, "eh_magic", magic, MAGIC)?;
    let fits = bytes.saturating_sub(ExtentHeader::SIZE) / ENTRY_SIZE;
    let max = header.eh_max;
    let ok = max > 0 && usize::from(max) <= fits;
    let expected = format_args!("1 to {fits}");
    ensure(ok, STRUCTURE, "eh_max", max, expected)
}

fn validate_header(header: &ExtentHeader, bytes: usize, expected_depth: Option<u16>) -> Result<()> {
    validate_size(header, bytes)?;
    let (entries, max, depth) = (header.eh_entries, header.eh_max, header.eh_depth);
    let at_most = format_args!("at most {max}");
    ensure(entries <= max, STRUCTURE, "eh_entries", entries, at_most)?;
    match expected_depth {
        Some(expected) => ensure(depth == expected, STRUCTURE, "eh_depth", depth, expected)?,
        None => {
            let at_most = format_args!("at most {MAX_DEPTH}");
            ensure(depth <= MAX_DEPTH, STRUCTURE, "eh_depth", depth, at_most)?;
        }
    }
    let ok = depth == 0 || entries > 0;
    let some = "1 or more in an index node";
    ensure(ok, STRUCTURE, "eh_entries", entries, some)
}

fn validate_leaf(extents: &[Extent], logical: Range<u64>, physical: Range<u64>) -> Result<()> {
    // No file has the last block that a number of 32 bits can name, and Linux takes no extent with it.
    let end = logical.end.min(LBLK_END - 1);
    let mut from = logical.start;
    for extent in extents {
        ensure(extent.len > 0, STRUCTURE, "ee_len", extent.len, "1 or more")?;
        let start = u64::from(extent.lblk.0);
        let ok = start >= from && extent.end() <= end;
        if !ok {
            let found = format_args!("{start}+{}", extent.len);
            let expected = format_args!("within {from}..{end}");
            return Err(corrupt(STRUCTURE, "ee_block", found, expected));
        }
        validate_target("ee_start", extent.pblk, extent.len, &physical)?;
        from = extent.end();
    }
    Ok(())
}

fn validate_index(index: &[ExtentIndex], logical: Range<u64>, physical: Range<u64>) -> Result<()> {
    let mut from = logical.start;
    for entry in index {
        let start = u64::from(entry.lblk.0);
        let expected = format_args!("within {from}..{}", logical.end);
        let ok = start >= from && start < logical.end;
        ensure(ok, STRUCTURE, "ei_block", start, expected)?;
        validate_target("ei_leaf", entry.leaf, 1, &physical)?;
        from = start + 1;
    }
    Ok(())
}

fn validate_target(field: &'static str, start: Pblk, len: u16, allowed: &Range<u64>) -> Result<()> {
    if start.0 >= allowed.start && start.0 + u64::from(len) <= allowed.end {
        return Ok(());
    }
    let found = format_args!("{start}+{len}");
    let expected = format_args!("within {}..{}", allowed.start, allowed.end);
    Err(corrupt(STRUCTURE, field, found, expected))
}

/// Where the checksum of a node's block is: right after the last slot. What is no node has none, and
/// its `eh_max` could be anything.
fn tail_at(block: &[u8]) -> Result<usize> {
    let header = ExtentHeader::parse(block)?;
    validate_size(&header, block.len() - TAIL_SIZE)?;
    Ok(ExtentHeader::SIZE + usize::from(header.eh_max) * ENTRY_SIZE)
}

fn stored_tail(block: &[u8], at: usize) -> u32 {
    let mut raw = [0; TAIL_SIZE];
    raw.copy_from_slice(&block[at..at + TAIL_SIZE]);
    u32::from_le_bytes(raw)
}

/// Checks the checksum of a node's block (not of a root in an inode), for a file system with
/// `metadata_csum`. `inode_seed` is `Inode::seed`.
///
/// # Errors
/// `Corrupt` for what is no node, or an `eh_max` that leaves no room for the checksum; `Checksum`.
pub fn verify_checksum(block: &[u8], inode_seed: u32) -> Result<()> {
    let at = tail_at(block)?;
    ensure_checksum(
        STRUCTURE,
        stored_tail(block, at),
        crc32c(inode_seed, &block[..at]),
    )
}

/// Makes the checksum of a node's block right, for a file system with `metadata_csum`.
///
/// # Errors
/// `Corrupt` for what is no node, or an `eh_max` that leaves no room for the checksum.
pub fn update_checksum(block: &mut [u8], inode_seed: u32) -> Result<()> {
    let at = tail_at(block)?;
    let csum = crc32c(inode_seed, &block[..at]);
    block[at..at + TAIL_SIZE].copy_from_slice(&csum.to_le_bytes());
    Ok(())
}

/// Entries of a node that takes a whole block. The room left over holds the checksum.
pub fn max_entries(block_size: u32) -> u16 {
    ((block_size as usize - ExtentHeader::SIZE) / ENTRY_SIZE) as u16
}
