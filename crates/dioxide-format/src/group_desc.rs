//! Group descriptors: where a group's bitmaps and inode table are, and its counts.
//!
//! A descriptor has 32 bytes; with `64bit` it has 64 or more, whose upper half extends the fields
//! of the lower. Bytes past 64 are kept as they are.
//!
//! Rejected: two types for the two sizes. Every caller would have to match on them.

use crate::Result;
use crate::checksum::{crc16, crc32c, crc32c_with_hole};
use crate::error::{ensure, ensure_checksum, prefix};
use crate::layout::{layout, le16, le32};
use crate::superblock::SuperBlock;
use crate::types::{Group, Pblk};
use std::ops::Range;

const STRUCTURE: &str = "group descriptor";
const CHECKSUM_AT: usize = 0x1E;

layout! {
    /// The first 64 bytes of a descriptor as they lie on disk.
    pub struct GroupDescDisk[64] = "group descriptor" {
        0x00 bg_block_bitmap_lo: le32,
        0x04 bg_inode_bitmap_lo: le32,
        0x08 bg_inode_table_lo: le32,
        0x0C bg_free_blocks_count_lo: le16,
        0x0E bg_free_inodes_count_lo: le16,
        0x10 bg_used_dirs_count_lo: le16,
        0x12 bg_flags: le16,
        0x14 bg_exclude_bitmap_lo: le32,
        0x18 bg_block_bitmap_csum_lo: le16,
        0x1A bg_inode_bitmap_csum_lo: le16,
        0x1C bg_itable_unused_lo: le16,
        0x1E bg_checksum: le16,
        0x20 bg_block_bitmap_hi: le32,
        0x24 bg_inode_bitmap_hi: le32,
        0x28 bg_inode_table_hi: le32,
        0x2C bg_free_blocks_count_hi: le16,
        0x2E bg_free_inodes_count_hi: le16,
        0x30 bg_used_dirs_count_hi: le16,
        0x32 bg_itable_unused_hi: le16,
        0x34 bg_exclude_bitmap_hi: le32,
        0x38 bg_block_bitmap_csum_hi: le16,
        0x3A bg_inode_bitmap_csum_hi: le16,
        0x3C bg_reserved: le32,
    }
}

/// Bit of `flags()`: the inode table and bitmap were never written.
pub const INODE_UNINIT: u16 = 1;
/// Bit of `flags()`: the block bitmap was never written.
pub const BLOCK_UNINIT: u16 = 2;
/// Bit of `flags()`: the inode table is zeroed.
pub const INODE_ZEROED: u16 = 4;

/// Which checksum descriptors carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupChecksum {
    /// None.
    None,
    /// crc16, from the uuid (`uninit_bg`).
    Crc16 {
        /// The file system's uuid.
        uuid: [u8; 16],
    },
    /// crc32c cut to 16 bits (`metadata_csum`).
    Crc32c {
        /// The file system's checksum seed.
        seed: u32,
    },
}

impl GroupChecksum {
    /// The kind that a file system uses.
    pub fn of(sb: &SuperBlock) -> Self {
        if sb.features().metadata_csum() {
            Self::Crc32c {
                seed: sb.checksum_seed(),
            }
        } else if sb.features().group_csum() {
            Self::Crc16 { uuid: sb.uuid() }
        } else {
            Self::None
        }
    }
}

/// A group descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDesc {
    disk: GroupDescDisk,
    /// Bytes past the first 64.
    extra: Box<[u8]>,
    wide: bool,
}

impl GroupDesc {
    /// Reads a descriptor of `desc_size` bytes (32, or 64 and more) from the start of `bytes`.
    ///
    /// # Errors
    /// `TooShort`; `Corrupt` for a `desc_size` that the format does not have.
    pub fn parse(bytes: &[u8], desc_size: usize) -> Result<Self> {
        let ok = desc_size == 32 || (64..=1024).contains(&desc_size);
        ensure(ok, STRUCTURE, "size", desc_size, "32 or 64 to 1024")?;
        let bytes = prefix(bytes, desc_size, STRUCTURE)?;
        let mut head = [0; GroupDescDisk::SIZE];
        let len = desc_size.min(head.len());
        head[..len].copy_from_slice(&bytes[..len]);
        Ok(Self {
            disk: GroupDescDisk::from_array(&head),
            extra: bytes[len..].into(),
            wide: desc_size >= 64,
        })
    }

    /// Bytes on disk.
    pub fn desc_size(&self) -> usize {
        if self.wide { 64 + self.extra.len() } else { 32 }
    }

    /// The `desc_size()` bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.disk.encode()[..if self.wide { 64 } else { 32 }].to_vec();
        bytes.extend_from_slice(&self.extra);
        bytes
    }

    /// The fields by their disk names.
    pub fn disk(&self) -> &GroupDescDisk {
        &self.disk
    }

    /// The fields by their disk names, to change. Upper halves of a 32-byte descriptor are not
    /// written. `update_checksum` afterwards.
    pub fn disk_mut(&mut self) -> &mut GroupDescDisk {
        &mut self.disk
    }

    /// Block of the block bitmap.
    pub fn block_bitmap(&self) -> Pblk {
        block48(self.disk.bg_block_bitmap_hi, self.disk.bg_block_bitmap_lo)
    }

    /// Block of the inode bitmap.
    pub fn inode_bitmap(&self) -> Pblk {
        block48(self.disk.bg_inode_bitmap_hi, self.disk.bg_inode_bitmap_lo)
    }

    /// First block of the inode table.
    pub fn inode_table(&self) -> Pblk {
        block48(self.disk.bg_inode_table_hi, self.disk.bg_inode_table_lo)
    }

    /// Free clusters (blocks without bigalloc).
    pub fn free_clusters_count(&self) -> u32 {
        both(
            self.disk.bg_free_blocks_count_hi,
            self.disk.bg_free_blocks_count_lo,
        )
    }

    /// Free inodes.
    pub fn free_inodes_count(&self) -> u32 {
        both(
            self.disk.bg_free_inodes_count_hi,
            self.disk.bg_free_inodes_count_lo,
        )
    }

    /// Inodes that are directories.
    pub fn used_dirs_count(&self) -> u32 {
        both(
            self.disk.bg_used_dirs_count_hi,
            self.disk.bg_used_dirs_count_lo,
        )
    }

    /// Inodes at the end of the table that were never used.
    pub fn itable_unused(&self) -> u32 {
        both(self.disk.bg_itable_unused_hi, self.disk.bg_itable_unused_lo)
    }

    /// `INODE_UNINIT`, `BLOCK_UNINIT`, `INODE_ZEROED`. They count only when descriptors carry a
    /// checksum (`Features::group_csum`).
    pub fn flags(&self) -> u16 {
        self.disk.bg_flags
    }

    /// Checksum of the block bitmap; 16 bits in a 32-byte descriptor.
    pub fn block_bitmap_csum(&self) -> u32 {
        both(
            self.disk.bg_block_bitmap_csum_hi,
            self.disk.bg_block_bitmap_csum_lo,
        )
    }

    /// Checksum of the inode bitmap; 16 bits in a 32-byte descriptor.
    pub fn inode_bitmap_csum(&self) -> u32 {
        both(
            self.disk.bg_inode_bitmap_csum_hi,
            self.disk.bg_inode_bitmap_csum_lo,
        )
    }

    /// Stores the number of free clusters, cut to what the descriptor holds.
    pub fn set_free_clusters_count(&mut self, count: u32) {
        self.disk.bg_free_blocks_count_lo = count as u16;
        self.disk.bg_free_blocks_count_hi = self.upper(count);
    }

    /// Stores the number of free inodes, cut to what the descriptor holds.
    pub fn set_free_inodes_count(&mut self, count: u32) {
        self.disk.bg_free_inodes_count_lo = count as u16;
        self.disk.bg_free_inodes_count_hi = self.upper(count);
    }

    /// Stores the number of directories, cut to what the descriptor holds.
    pub fn set_used_dirs_count(&mut self, count: u32) {
        self.disk.bg_used_dirs_count_lo = count as u16;
        self.disk.bg_used_dirs_count_hi = self.upper(count);
    }

    /// Stores the number of inodes at the end of the table that were never used, cut to what the
    /// descriptor holds.
    pub fn set_itable_unused(&mut self, count: u32) {
        self.disk.bg_itable_unused_lo = count as u16;
        self.disk.bg_itable_unused_hi = self.upper(count);
    }

    /// Clears bits of `flags()`.
    pub fn clear_flags(&mut self, flags: u16) {
        self.disk.bg_flags &= !flags;
    }

    /// The blocks that hold the group's metadata, wherever they lie: superblock and descriptor
    /// copies, block bitmap, inode bitmap, inode table. Some may be empty.
    pub fn metadata_ranges(&self, sb: &SuperBlock, group: Group) -> [Range<u64>; 4] {
        [
            (sb.group_first_block(group), sb.base_meta_blocks(group)),
            (self.block_bitmap(), 1),
            (self.inode_bitmap(), 1),
            (self.inode_table(), sb.inode_table_blocks()),
        ]
        .map(|(start, len)| start.0..start.0.saturating_add(u64::from(len)))
    }

    /// Stores the checksum of the block bitmap, cut to what the descriptor holds.
    pub fn set_block_bitmap_csum(&mut self, csum: u32) {
        self.disk.bg_block_bitmap_csum_lo = csum as u16;
        self.disk.bg_block_bitmap_csum_hi = self.upper(csum);
    }

    /// Stores the checksum of the inode bitmap, cut to what the descriptor holds.
    pub fn set_inode_bitmap_csum(&mut self, csum: u32) {
        self.disk.bg_inode_bitmap_csum_lo = csum as u16;
        self.disk.bg_inode_bitmap_csum_hi = self.upper(csum);
    }

    /// The mask of bitmap checksum bits that this descriptor holds.
    pub fn bitmap_csum_mask(&self) -> u32 {
        if self.wide { u32::MAX } else { 0xFFFF }
    }

    fn upper(&self, value: u32) -> u16 {
        if self.wide { (value >> 16) as u16 } else { 0 }
    }

    fn computed_checksum(&self, group: Group, kind: GroupChecksum) -> u16 {
        let number = group.0.to_le_bytes();
        let fields = self.disk.encode();
        let fields = &fields[..if self.wide { 64 } else { 32 }];
        match kind {
            GroupChecksum::None => self.disk.bg_checksum,
            GroupChecksum::Crc16 { uuid } => {
                let crc = crc16(crc16(!0, &uuid), &number);
                let crc = crc16(crc, &fields[..CHECKSUM_AT]);
                crc16(crc16(crc, &fields[CHECKSUM_AT + 2..]), &self.extra)
            }
            GroupChecksum::Crc32c { seed } => {
                let hole = CHECKSUM_AT..CHECKSUM_AT + 2;
                let crc = crc32c_with_hole(crc32c(seed, &number), fields, hole);
                crc32c(crc, &self.extra) as u16
            }
        }
    }

    /// Checks the descriptor's own checksum.
    ///
    /// # Errors
    /// `Checksum`.
    pub fn verify_checksum(&self, group: Group, kind: GroupChecksum) -> Result<()> {
        let computed = self.computed_checksum(group, kind);
        ensure_checksum(STRUCTURE, self.disk.bg_checksum.into(), computed.into())
    }

    /// Makes the descriptor's own checksum right.
    pub fn update_checksum(&mut self, group: Group, kind: GroupChecksum) {
        self.disk.bg_checksum = self.computed_checksum(group, kind);
    }

    /// Checks that bitmaps and inode table lie inside the file system (inside the group without
    /// `flex_bg`) and that counts do not exceed the group.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn validate(&self, sb: &SuperBlock, group: Group) -> Result<()> {
        let range = sb.group_metadata_range(group);
        let places = [
            ("bg_block_bitmap", self.block_bitmap(), 1),
            ("bg_inode_bitmap", self.inode_bitmap(), 1),
            (
                "bg_inode_table",
                self.inode_table(),
                sb.inode_table_blocks(),
            ),
        ];
        for (field, start, len) in places {
            let end = start.0.saturating_add(u64::from(len));
            let ok = start.0 >= range.start && end <= range.end;
            let expected = format_args!("{len} blocks in {}..{}", range.start, range.end);
            ensure(ok, STRUCTURE, field, start, expected)?;
        }
        self.validate_counts(sb, group)
    }

    fn validate_counts(&self, sb: &SuperBlock, group: Group) -> Result<()> {
        let (clusters, inodes) = (sb.clusters_in_group(group), sb.inodes_per_group());
        let counts = [
            ("bg_free_blocks_count", self.free_clusters_count(), clusters),
            ("bg_free_inodes_count", self.free_inodes_count(), inodes),
            ("bg_used_dirs_count", self.used_dirs_count(), inodes),
            ("bg_itable_unused", self.itable_unused(), inodes),
        ];
        for (field, found, most) in counts {
            ensure(
                found <= most,
                STRUCTURE,
                field,
                found,
                format_args!("at most {most}"),
            )?;
        }
        Ok(())
    }
}

fn block48(hi: u32, lo: u32) -> Pblk {
    Pblk((u64::from(hi) << 32) | u64::from(lo))
}

fn both(hi: u16, lo: u16) -> u32 {
    (u32::from(hi) << 16) | u32::from(lo)
}
