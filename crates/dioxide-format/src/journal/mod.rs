//! The structures of the journal (jbd2). Numbers are big-endian, but for the fast-commit area.
//!
//! For: one block of the log at a time. Not for: where the blocks lie, in which order they are
//! written, and what a whole log means; that belongs to the journal's crate.
//!
//! | Block | Holds |
//! |---|---|
//! | [`JournalSuperBlock`] | where the log begins, its features |
//! | descriptor: [`tags`], [`DescriptorWriter`] | to where each of the blocks that follow it belongs |
//! | revoke: [`revokes`], [`RevokeWriter`] | blocks whose earlier copies must not be replayed |
//! | commit: [`CommitBlock`] | that the transaction is whole |
//! | [`fast_commit`] | changes in a short form, in an area of their own |
//!
//! Descriptor, revoke and commit blocks begin with a [`BlockHeader`]. A data block that happens to
//! begin with the magic number is *escaped*: its first four bytes are zero in the log, and its tag
//! says so.

mod commit;
mod descriptor;
pub mod fast_commit;
mod revoke;
mod superblock;

pub use commit::{CommitBlock, CommitHeader, TransactionSum};
pub use descriptor::{DescriptorWriter, Tag, TagFlags, Tags, tags};
pub use revoke::{RevokeHeader, RevokeWriter, revokes};
pub use superblock::{
    Checksums, DEFAULT_FAST_COMMIT_BLOCKS, JournalCompat, JournalFormat, JournalIncompat,
    JournalSuperBlock, MIN_LOG_BLOCKS,
};

use crate::checksum::{crc32c, crc32c_with_hole};
use crate::error::{ensure_checksum, prefix};
use crate::layout::{be32, layout};
use std::fmt;

/// `h_magic`, with which every block of the log but the data blocks begins.
pub const MAGIC: u32 = 0xC03B_3998;
/// Bytes of the checksum at the end of descriptor and revoke blocks.
const TAIL: usize = 4;

layout! {
    /// The first bytes of each block that the journal itself writes.
    pub struct BlockHeader[12] = "journal block header" {
        0x00 h_magic: be32,
        0x04 h_blocktype: be32,
        0x08 h_sequence: be32,
    }
}

/// What a block of the log is, `h_blocktype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum BlockType {
    /// Describes the data blocks that follow it.
    Descriptor = 1,
    /// Ends a transaction.
    Commit = 2,
    /// A superblock of the first version, without features.
    SuperBlockV1 = 3,
    /// A superblock.
    SuperBlockV2 = 4,
    /// Names blocks that were freed.
    Revoke = 5,
}

impl BlockHeader {
    /// The header of a block of this kind.
    pub fn new(kind: BlockType, tid: Tid) -> Self {
        Self {
            h_magic: MAGIC,
            h_blocktype: kind as u32,
            h_sequence: tid.0,
        }
    }

    /// Kind and transaction of a block of the log; nothing if it does not begin with a header.
    pub fn of(block: &[u8]) -> Option<(BlockType, Tid)> {
        let header = Self::parse(block).ok()?;
        let kind = match header.h_blocktype {
            1 => BlockType::Descriptor,
            2 => BlockType::Commit,
            3 => BlockType::SuperBlockV1,
            4 => BlockType::SuperBlockV2,
            5 => BlockType::Revoke,
            _ => return None,
        };
        (header.h_magic == MAGIC).then_some((kind, Tid(header.h_sequence)))
    }
}

/// Number of a transaction, `h_sequence`. Numbers wrap around, so they have no total order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tid(pub u32);

impl Tid {
    /// The number of the transaction after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Whether this transaction came after `other`, the two being less than 2^31 apart.
    pub const fn is_after(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) > 0
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Whether a block must be escaped before it goes into the log.
pub fn needs_escape(data: &[u8]) -> bool {
    data.starts_with(&MAGIC.to_be_bytes())
}

/// Makes a block that [`needs_escape`] fit for the log.
///
/// # Panics
/// If the block has less than four bytes.
pub fn escape(data: &mut [u8]) {
    data[..4].fill(0);
}

/// Undoes [`escape`].
///
/// # Panics
/// If the block has less than four bytes.
pub fn unescape(data: &mut [u8]) {
    data[..4].copy_from_slice(&MAGIC.to_be_bytes());
}

impl JournalFormat {
    /// The checksum of a data block as it lies in the log (escaped), of transaction `tid`.
    pub fn data_checksum(&self, tid: Tid, data: &[u8]) -> u32 {
        crc32c(crc32c(self.seed, &tid.0.to_be_bytes()), data)
    }

    /// Checks a data block as it lies in the log against its tag; without checksums all is right.
    ///
    /// # Errors
    /// `Checksum`.
    pub fn verify_data(&self, tag: &Tag, tid: Tid, data: &[u8]) -> crate::Result<()> {
        let mask = match self.checksums {
            Checksums::None | Checksums::Transaction => return Ok(()),
            Checksums::V2 => 0xFFFF,
            Checksums::V3 => u32::MAX,
        };
        let computed = self.data_checksum(tid, data) & mask;
        ensure_checksum("journal data block", tag.checksum, computed)
    }

    /// Bytes at the end of descriptor and revoke blocks that hold their checksum: 0 or 4.
    pub(crate) fn tail_bytes(&self) -> usize {
        if self.checksums.per_block() { TAIL } else { 0 }
    }

    /// Checks the checksum of a whole descriptor or revoke block, where the journal has them.
    ///
    /// # Errors
    /// `TooShort`, `Checksum`.
    pub fn verify_tail(&self, block: &[u8]) -> crate::Result<()> {
        if !self.checksums.per_block() {
            return Ok(());
        }
        let structure = "journal block tail";
        prefix(block, BlockHeader::SIZE + TAIL, structure)?;
        let (_, tail) = block.split_at(block.len() - TAIL);
        let stored = u32::from_be_bytes([tail[0], tail[1], tail[2], tail[3]]);
        ensure_checksum(structure, stored, self.tail_checksum(block))
    }

    fn tail_checksum(&self, block: &[u8]) -> u32 {
        crc32c_with_hole(self.seed, block, block.len() - TAIL..block.len())
    }

    fn seal_tail(&self, block: &mut [u8]) {
        if self.checksums.per_block() {
            let sum = self.tail_checksum(block);
            let at = block.len() - TAIL;
            block[at..].copy_from_slice(&sum.to_be_bytes());
        }
    }
}
