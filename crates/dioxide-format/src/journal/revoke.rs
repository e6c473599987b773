//! Revoke blocks: a header and an array of block numbers of 32 or 64 bits.

use super::{BlockHeader, BlockType, JournalFormat, Tid};
use crate::Result;
use crate::error::ensure;
use crate::layout::{be32, layout};

const STRUCTURE: &str = "journal revoke block";

layout! {
    /// The head of a revoke block.
    pub struct RevokeHeader[16] = "journal revoke block" {
        0x00 h_magic: be32,
        0x04 h_blocktype: be32,
        0x08 h_sequence: be32,
        0x0C r_count: be32,
    }
}

impl JournalFormat {
    fn revoke_bytes(&self) -> usize {
        if self.wide { 8 } else { 4 }
    }
}

/// The block numbers of a whole revoke block.
///
/// # Errors
/// `TooShort`; `Corrupt` when `r_count`, the bytes in use with the header, goes past the block.
pub fn revokes<'a>(
    block: &'a [u8],
    format: &JournalFormat,
) -> Result<impl Iterator<Item = u64> + use<'a>> {
    let header = RevokeHeader::parse(block)?;
    let end = block.len().saturating_sub(format.tail_bytes());
    let count = header.r_count as usize;
    let ok = (RevokeHeader::SIZE..=end).contains(&count);
    let expected = format_args!("{} to {end}", RevokeHeader::SIZE);
    ensure(ok, STRUCTURE, "r_count", count, expected)?;
    let numbers = block[RevokeHeader::SIZE..count].chunks_exact(format.revoke_bytes());
    Ok(numbers.map(|bytes| {
        bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    }))
}

/// Fills a revoke block.
#[derive(Debug)]
pub struct RevokeWriter<'a> {
    block: &'a mut [u8],
    format: JournalFormat,
    at: usize,
}

impl<'a> RevokeWriter<'a> {
    /// Begins a revoke block of transaction `tid` in `block`, a whole block whose bytes are replaced.
    ///
    /// # Panics
    /// If the block is shorter than 128 bytes.
    pub fn new(block: &'a mut [u8], format: &JournalFormat, tid: Tid) -> Self {
        assert!(block.len() >= 128, "a block of {} bytes", block.len());
        block.fill(0);
        let header = BlockHeader::new(BlockType::Revoke, tid);
        block[..BlockHeader::SIZE].copy_from_slice(&header.encode());
        Self {
            block,
            format: *format,
            at: RevokeHeader::SIZE,
        }
    }

    /// How many numbers a revoke block of `block_bytes` takes.
    pub fn capacity(block_bytes: usize, format: &JournalFormat) -> usize {
        let room = block_bytes.saturating_sub(RevokeHeader::SIZE + format.tail_bytes());
        room / format.revoke_bytes()
    }

    /// Whether it takes no more numbers.
    pub fn is_full(&self) -> bool {
        self.at + self.format.revoke_bytes() + self.format.tail_bytes() > self.block.len()
    }

    /// Adds a block.
    ///
    /// # Panics
    /// If the block is full, or the number does not fit the journal's.
    pub fn push(&mut self, block: u64) {
        assert!(!self.is_full(), "a number for a full revoke block");
        let bytes = block.to_be_bytes();
        let (high, number) = bytes.split_at(8 - self.format.revoke_bytes());
        assert!(
            high.iter().all(|byte| *byte == 0),
            "block {block} in a journal of 32-bit numbers"
        );
        self.block[self.at..self.at + number.len()].copy_from_slice(number);
        self.at += number.len();
    }

    /// Writes count and checksum.
    pub fn seal(self) {
        let count = self.at as u32;
        self.block[0x0C..0x10].copy_from_slice(&count.to_be_bytes());
        self.format.seal_tail(self.block);
    }
}
