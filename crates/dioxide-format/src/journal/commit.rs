//! Commit blocks, and the checksum of a whole transaction that the first version put there.

use super::{BlockHeader, BlockType, Checksums, JournalFormat, Tid};
use crate::Result;
use crate::checksum::crc32c_with_hole;
use crate::error::{corrupt, ensure_checksum, prefix};
use crate::layout::{be32, be64, byte, layout};
use crc_fast::{CrcAlgorithm, Digest};

const STRUCTURE: &str = "journal commit block";
/// `h_chksum[0]`.
const CHECKSUM: std::ops::Range<usize> = 0x10..0x14;
/// `h_chksum_type` of crc32.
const TYPE_CRC32: u8 = 1;

layout! {
    /// The used part of a commit block; the rest of the block is zero.
    pub struct CommitHeader[60] = "journal commit block" {
        0x00 h_magic: be32,
        0x04 h_blocktype: be32,
        0x08 h_sequence: be32,
        0x0C h_chksum_type: byte,
        0x0D h_chksum_size: byte,
        0x0E h_padding: [byte; 2],
        0x10 h_chksum: [be32; 8],
        0x30 h_commit_sec: be64,
        0x38 h_commit_nsec: be32,
    }
}

/// The crc32 of a transaction's descriptor and data blocks as they lie in the log, in its order
/// ([`Checksums::Transaction`]). Revoke blocks are not part of it. Its bits are not reflected, and
/// there is no final inversion.
#[derive(Clone, Debug)]
pub struct TransactionSum(Digest);

impl Default for TransactionSum {
    fn default() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Mpeg2))
    }
}

impl TransactionSum {
    /// Adds the next block.
    pub fn add(&mut self, block: &[u8]) {
        self.0.update(block);
    }

    /// The checksum so far.
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

/// What a commit block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitBlock {
    /// The transaction that it ends.
    pub tid: Tid,
    /// When it was written, in seconds since 1970.
    pub secs: u64,
    /// And nanoseconds.
    pub nsec: u32,
}

impl CommitBlock {
    /// Reads a commit block, without judging its checksum.
    ///
    /// # Errors
    /// `TooShort`; `Corrupt` when it is none.
    pub fn parse(block: &[u8]) -> Result<Self> {
        let header = CommitHeader::parse(block)?;
        match BlockHeader::of(block) {
            Some((BlockType::Commit, tid)) => Ok(Self {
                tid,
                secs: header.h_commit_sec,
                nsec: header.h_commit_nsec,
            }),
            _ => Err(corrupt(
                STRUCTURE,
                "h_blocktype",
                header.h_blocktype,
                "that of a commit block",
            )),
        }
    }

    /// Writes a whole commit block with its checksum. `sum` is that of the transaction, which only a
    /// journal with [`Checksums::Transaction`] stores.
    ///
    /// # Panics
    /// If the block is shorter than the structure.
    pub fn write(&self, block: &mut [u8], format: &JournalFormat, sum: &TransactionSum) {
        let mut header = CommitHeader::zeroed();
        let head = BlockHeader::new(BlockType::Commit, self.tid);
        (header.h_magic, header.h_blocktype) = (head.h_magic, head.h_blocktype);
        header.h_sequence = head.h_sequence;
        (header.h_commit_sec, header.h_commit_nsec) = (self.secs, self.nsec);
        if format.checksums == Checksums::Transaction {
            (header.h_chksum_type, header.h_chksum_size) = (TYPE_CRC32, 4);
            header.h_chksum[0] = sum.value();
        }
        block.fill(0);
        block[..CommitHeader::SIZE].copy_from_slice(&header.encode());
        if format.checksums.per_block() {
            let sum = crc32c_with_hole(format.seed, block, CHECKSUM);
            block[CHECKSUM].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Checks the checksum of a whole commit block, and with [`Checksums::Transaction`] that of the
    /// transaction, `sum`. A block of which only the first sectors were written, so that what is past
    /// the structure is not its own, is right too.
    ///
    /// # Errors
    /// `TooShort`, `Checksum`.
    pub fn verify(block: &[u8], format: &JournalFormat, sum: &TransactionSum) -> Result<()> {
        prefix(block, CommitHeader::SIZE, STRUCTURE)?;
        match format.checksums {
            Checksums::None => Ok(()),
            Checksums::Transaction => verify_transaction(&CommitHeader::parse(block)?, sum),
            Checksums::V2 | Checksums::V3 => verify_block(block, format.seed),
        }
    }
}

/// A writer that does not sum leaves all its fields zero.
fn verify_transaction(header: &CommitHeader, sum: &TransactionSum) -> Result<()> {
    let found = header.h_chksum[0];
    match (header.h_chksum_type, header.h_chksum_size, found) {
        (0, 0, 0) => Ok(()),
        (TYPE_CRC32, 4, _) => ensure_checksum(STRUCTURE, found, sum.value()),
        (kind, size, _) => Err(corrupt(
            STRUCTURE,
            "h_chksum_type",
            format_args!("{kind} of {size} bytes"),
            "1 of 4 bytes",
        )),
    }
}

fn verify_block(block: &[u8], seed: u32) -> Result<()> {
    let found = CommitHeader::parse(block)?.h_chksum[0];
    if found == crc32c_with_hole(seed, block, CHECKSUM) {
        return Ok(());
    }
    let mut whole = vec![0; block.len()];
    whole[..CommitHeader::SIZE].copy_from_slice(&block[..CommitHeader::SIZE]);
    ensure_checksum(STRUCTURE, found, crc32c_with_hole(seed, &whole, CHECKSUM))
}
