//! Descriptor blocks: a header and a chain of tags, one for each data block that follows in the log.
//!
//! | Version | Bytes of a tag | Fields |
//! |---|---|---|
//! | none, v1 | 8, or 12 with 64-bit numbers | block (low half), checksum 16, flags 16, [block (high half)] |
//! | v2 | 10, or 14 | the same, and two bytes that mean nothing |
//! | v3 | 16 | block (low half), flags 32, block (high half), checksum 32 |
//!
//! A tag without `SAME_UUID` is followed by 16 bytes of UUID.

use super::{BlockHeader, BlockType, Checksums, JournalFormat, Tid};
use crate::layout::{be16, be32, layout};

layout! {
    /// A tag of versions before v3, up to the high half of its number.
    pub struct TagDisk[8] = "journal tag" {
        0x00 t_blocknr: be32,
        0x04 t_checksum: be16,
        0x06 t_flags: be16,
    }
}

layout! {
    /// A tag of v3.
    pub struct Tag3Disk[16] = "journal tag" {
        0x00 t_blocknr: be32,
        0x04 t_flags: be32,
        0x08 t_blocknr_high: be32,
        0x0C t_checksum: be32,
    }
}

/// Flags of a tag, `t_flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagFlags(pub u32);

impl TagFlags {
    /// The data begins with the magic number, which the log holds as zeros.
    pub const ESCAPE: Self = Self(1);
    /// No UUID follows the tag.
    pub const SAME_UUID: Self = Self(2);
    /// The block was deleted. Nobody sets it.
    pub const DELETED: Self = Self(4);
    /// The descriptor's last tag.
    pub const LAST_TAG: Self = Self(8);

    /// Whether every bit of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// One data block of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// Block of the file system where the data belongs.
    pub block: u64,
    /// Its flags.
    pub flags: TagFlags,
    /// Checksum of the data as it lies in the log: 16 bits of v2, 32 of v3, else meaningless.
    pub checksum: u32,
}

impl Tag {
    /// Whether the data is escaped.
    pub const fn is_escaped(&self) -> bool {
        self.flags.contains(TagFlags::ESCAPE)
    }
}

const UUID: usize = 16;

impl JournalFormat {
    /// Bytes of a tag, without a UUID.
    pub(crate) fn tag_bytes(&self) -> usize {
        let narrow = match self.checksums {
            Checksums::V3 => return Tag3Disk::SIZE,
            Checksums::V2 => TagDisk::SIZE + 2,
            Checksums::None | Checksums::Transaction => TagDisk::SIZE,
        };
        if self.wide { narrow + 4 } else { narrow }
    }

    fn parse_tag(&self, bytes: &[u8]) -> Option<Tag> {
        if self.checksums == Checksums::V3 {
            let disk = Tag3Disk::parse(bytes).ok()?;
            return Some(Tag {
                block: join(disk.t_blocknr_high, disk.t_blocknr, self.wide),
                flags: TagFlags(disk.t_flags),
                checksum: disk.t_checksum,
            });
        }
        let disk = TagDisk::parse(bytes).ok()?;
        let high = bytes.get(TagDisk::SIZE..).and_then(|b| b.first_chunk());
        Some(Tag {
            block: join(
                high.map_or(0, |b| u32::from_be_bytes(*b)),
                disk.t_blocknr,
                self.wide,
            ),
            flags: TagFlags(u32::from(disk.t_flags)),
            checksum: u32::from(disk.t_checksum),
        })
    }

    fn put_tag(&self, tag: &Tag, bytes: &mut [u8]) {
        let (high, low) = ((tag.block >> 32) as u32, tag.block as u32);
        assert!(
            self.wide || high == 0,
            "block {} in a journal of 32-bit numbers",
            tag.block
        );
        if self.checksums == Checksums::V3 {
            let disk = Tag3Disk {
                t_blocknr: low,
                t_flags: tag.flags.0,
                t_blocknr_high: high,
                t_checksum: tag.checksum,
            };
            bytes[..Tag3Disk::SIZE].copy_from_slice(&disk.encode());
            return;
        }
        let disk = TagDisk {
            t_blocknr: low,
            t_checksum: match self.checksums {
                Checksums::V2 => tag.checksum as u16,
                _ => 0,
            },
            t_flags: tag.flags.0 as u16,
        };
        bytes[..TagDisk::SIZE].copy_from_slice(&disk.encode());
        if self.wide {
            bytes[TagDisk::SIZE..TagDisk::SIZE + 4].copy_from_slice(&high.to_be_bytes());
        }
    }
}

fn join(high: u32, low: u32, wide: bool) -> u64 {
    let high = if wide { high } else { 0 };
    u64::from(high) << 32 | u64::from(low)
}

/// The tags of a whole descriptor block, in order, up to the last one or to the end of the block.
/// A data block follows for each.
pub fn tags<'a>(block: &'a [u8], format: &JournalFormat) -> Tags<'a> {
    let end = block.len().saturating_sub(format.tail_bytes());
    Tags {
        left: block.get(BlockHeader::SIZE..end).unwrap_or(&[]),
        format: *format,
    }
}

/// See [`tags`].
#[derive(Clone, Debug)]
pub struct Tags<'a> {
    left: &'a [u8],
    format: JournalFormat,
}

impl Iterator for Tags<'_> {
    type Item = Tag;

    fn next(&mut self) -> Option<Tag> {
        let (bytes, rest) = self.left.split_at_checked(self.format.tag_bytes())?;
        let tag = self.format.parse_tag(bytes)?;
        let skip = match tag.flags.contains(TagFlags::SAME_UUID) {
            true => 0,
            false => UUID,
        };
        self.left = match tag.flags.contains(TagFlags::LAST_TAG) {
            true => &[],
            false => rest.get(skip..).unwrap_or(&[]),
        };
        Some(tag)
    }
}

/// Fills a descriptor block.
#[derive(Debug)]
pub struct DescriptorWriter<'a> {
    block: &'a mut [u8],
    format: JournalFormat,
    /// Where the next tag goes.
    at: usize,
    /// The last tag that was written, and where.
    last: Option<(usize, Tag)>,
}

impl<'a> DescriptorWriter<'a> {
    /// Begins a descriptor of transaction `tid` in `block`, a whole block whose bytes are replaced.
    ///
    /// # Panics
    /// If the block is shorter than 128 bytes.
    pub fn new(block: &'a mut [u8], format: &JournalFormat, tid: Tid) -> Self {
        assert!(block.len() >= 128, "a block of {} bytes", block.len());
        block.fill(0);
        let header = BlockHeader::new(BlockType::Descriptor, tid);
        block[..BlockHeader::SIZE].copy_from_slice(&header.encode());
        Self {
            block,
            format: *format,
            at: BlockHeader::SIZE,
            last: None,
        }
    }

    /// How many tags a descriptor of `block_bytes` takes.
    pub fn capacity(block_bytes: usize, format: &JournalFormat) -> usize {
        let room = block_bytes.saturating_sub(BlockHeader::SIZE + UUID + format.tail_bytes());
        room / format.tag_bytes()
    }

    /// Whether it takes no more tags.
    pub fn is_full(&self) -> bool {
        let end = self.at + self.format.tag_bytes() + self.format.tail_bytes();
        end > self.block.len()
    }

    /// Adds the tag of one data block. Of its flags only `ESCAPE` counts.
    ///
    /// # Panics
    /// If the descriptor is full, or the number does not fit the journal's.
    pub fn push(&mut self, mut tag: Tag) {
        assert!(!self.is_full(), "a tag for a full descriptor");
        let first = self.last.is_none();
        let same = if first { 0 } else { TagFlags::SAME_UUID.0 };
        tag.flags = TagFlags(tag.flags.0 & TagFlags::ESCAPE.0 | same);
        self.put(self.at, &tag);
        self.last = Some((self.at, tag));
        self.at += self.format.tag_bytes();
        if first {
            self.block[self.at..self.at + UUID].copy_from_slice(&self.format.uuid);
            self.at += UUID;
        }
    }

    fn put(&mut self, at: usize, tag: &Tag) {
        self.format.put_tag(tag, &mut self.block[at..]);
    }

    /// Marks the last tag and writes the checksum.
    ///
    /// # Panics
    /// If there is no tag: such a descriptor would be read as one with a tag.
    pub fn seal(mut self) {
        let (at, mut tag) = self.last.expect("a descriptor has a tag");
        tag.flags.0 |= TagFlags::LAST_TAG.0;
        self.put(at, &tag);
        self.format.seal_tail(self.block);
    }
}
