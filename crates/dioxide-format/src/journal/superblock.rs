//! The journal's superblock, and what its features say of the other blocks.

use super::MAGIC;
use crate::Result;
use crate::checksum::{crc32c, crc32c_with_hole};
use crate::error::{corrupt, ensure, ensure_checksum};
use crate::features::feature_set;
use crate::layout::{be32, byte, layout};
use std::fmt;

const STRUCTURE: &str = "journal superblock";
const CHECKSUM: std::ops::Range<usize> = 0xFC..0x100;
/// `s_checksum_type` of crc32c.
const TYPE_CRC32C: u8 = 4;
/// Blocks of the fast-commit area when `s_num_fc_blks` is 0.
pub const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;
/// A journal that would have fewer blocks than this left for its log has no fast-commit area.
pub const MIN_LOG_BLOCKS: u32 = 1024;

feature_set! {
    /// Features of the journal that a reader may ignore.
    JournalCompat, "C" {
        0x0001 CHECKSUM "journal_checksum",
    }
}

feature_set! {
    /// Features of the journal without which it must not be replayed.
    JournalIncompat, "I" {
        0x0001 REVOKE "journal_incompat_revoke",
        0x0002 BIT64 "journal_64bit",
        0x0004 ASYNC_COMMIT "journal_async_commit",
        0x0008 CSUM_V2 "journal_checksum_v2",
        0x0010 CSUM_V3 "journal_checksum_v3",
        0x0020 FAST_COMMIT "fast_commit",
    }
}

/// Which checksums the blocks of the log carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksums {
    /// None.
    #[default]
    None,
    /// The commit block has the crc32 of the transaction's descriptors and data (`journal_checksum`).
    Transaction,
    /// crc32c in every block, 16 bits of it in a tag.
    V2,
    /// crc32c in every block, all of it in a tag.
    V3,
}

impl Checksums {
    /// Whether each block has its own.
    pub const fn per_block(self) -> bool {
        matches!(self, Self::V2 | Self::V3)
    }
}

/// All that is needed to read or write a block of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalFormat {
    /// Which checksums there are.
    pub checksums: Checksums,
    /// Block numbers have 64 bits.
    pub wide: bool,
    /// Seed of the checksums: the crc32c of the journal's UUID.
    pub seed: u32,
    /// The journal's UUID, which goes after the first tag of a descriptor.
    pub uuid: [u8; 16],
}

layout! {
    /// The journal's superblock as it lies on disk, in block 0 of the journal. Numbers are
    /// big-endian.
    pub struct JournalSuperBlock[1024] = "journal superblock" {
        0x00 h_magic: be32,
        0x04 h_blocktype: be32,
        0x08 h_sequence: be32,
        0x0C s_blocksize: be32,
        0x10 s_maxlen: be32,
        0x14 s_first: be32,
        0x18 s_sequence: be32,
        0x1C s_start: be32,
        0x20 s_errno: be32,
        0x24 s_feature_compat: be32,
        0x28 s_feature_incompat: be32,
        0x2C s_feature_ro_compat: be32,
        0x30 s_uuid: [byte; 16],
        0x40 s_nr_users: be32,
        0x44 s_dynsuper: be32,
        0x48 s_max_transaction: be32,
        0x4C s_max_trans_data: be32,
        0x50 s_checksum_type: byte,
        0x51 s_padding2: [byte; 3],
        0x54 s_num_fc_blks: be32,
        0x58 s_head: be32,
        0x5C s_padding: [be32; 40],
        0xFC s_checksum: be32,
        0x100 s_users: [byte; 768],
    }
}

impl JournalSuperBlock {
    /// Whether nothing is to be replayed.
    pub fn is_empty(&self) -> bool {
        self.s_start == 0
    }

    /// Checks magic number, kind, block size and lengths. `block_size` is the file system's.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn validate(&self, block_size: u32) -> Result<()> {
        let check =
            |ok, field, found: u32, expected: String| ensure(ok, STRUCTURE, field, found, expected);
        let magic = self.h_magic;
        check(magic == MAGIC, "h_magic", magic, MAGIC.to_string())?;
        let kind = self.h_blocktype;
        check(
            (3..=4).contains(&kind),
            "h_blocktype",
            kind,
            "3 or 4".to_owned(),
        )?;
        let size = self.s_blocksize;
        check(
            size == block_size,
            "s_blocksize",
            size,
            block_size.to_string(),
        )?;
        let (first, len) = (self.s_first, self.s_maxlen);
        let ok = first > 0 && first < len;
        check(ok, "s_first", first, format!("1 to below {len}"))?;
        let start = self.s_start;
        let ok = start == 0 || (first..len).contains(&start);
        check(ok, "s_start", start, format!("0 or {first} to below {len}"))
    }

    /// The compatible features; none in a superblock of the first version.
    pub fn compat(&self) -> JournalCompat {
        JournalCompat(if self.is_v1() {
            0
        } else {
            self.s_feature_compat
        })
    }

    /// The incompatible features; none in a superblock of the first version.
    pub fn incompat(&self) -> JournalIncompat {
        JournalIncompat(if self.is_v1() {
            0
        } else {
            self.s_feature_incompat
        })
    }

    fn is_v1(&self) -> bool {
        self.h_blocktype == super::BlockType::SuperBlockV1 as u32
    }

    /// How the blocks of the log look.
    ///
    /// # Errors
    /// `Corrupt` for checksums of more than one version, or of an unknown kind.
    pub fn format(&self) -> Result<JournalFormat> {
        Ok(JournalFormat {
            checksums: self.checksums()?,
            wide: self.incompat().contains(JournalIncompat::BIT64),
            seed: crc32c(!0, &self.s_uuid),
            uuid: self.s_uuid,
        })
    }

    fn checksums(&self) -> Result<Checksums> {
        let has = |feature| self.incompat().contains(feature);
        let found = [
            self.compat().contains(JournalCompat::CHECKSUM),
            has(JournalIncompat::CSUM_V2),
            has(JournalIncompat::CSUM_V3),
        ];
        let checksums = match found {
            [false, false, false] => Checksums::None,
            [true, false, false] => Checksums::Transaction,
            [false, true, false] => Checksums::V2,
            [false, false, true] => Checksums::V3,
            _ => {
                let names = format!("{} {}", self.compat(), self.incompat());
                return Err(corrupt(
                    STRUCTURE,
                    "s_feature_incompat",
                    names,
                    "one version of checksums",
                ));
            }
        };
        let kind = self.s_checksum_type;
        let ok = !checksums.per_block() || kind == TYPE_CRC32C;
        ensure(ok, STRUCTURE, "s_checksum_type", kind, TYPE_CRC32C)?;
        Ok(checksums)
    }

    /// Blocks at the journal's end that are set apart for fast commits: 0 without them.
    pub fn fast_commit_blocks(&self) -> u32 {
        match self.incompat().contains(JournalIncompat::FAST_COMMIT) {
            true => self.fast_commit_room(),
            false => 0,
        }
    }

    /// Blocks at the journal's end that are set apart as soon as there are fast commits: 0 where it is too small for them.
    pub fn fast_commit_room(&self) -> u32 {
        let wanted = match self.s_num_fc_blks {
            0 => DEFAULT_FAST_COMMIT_BLOCKS,
            blocks => blocks,
        };
        let left = self.s_maxlen.checked_sub(wanted);
        left.filter(|left| *left >= MIN_LOG_BLOCKS)
            .map_or(0, |_| wanted)
    }

    /// Nothing is set apart for fast commits any more. The log is empty.
    pub fn forget_fast_commits(&mut self) {
        self.s_feature_incompat &= !JournalIncompat::FAST_COMMIT.bits();
    }

    /// Whether it is to have fast commits, and is too small for them.
    pub fn has_no_fast_commit_room(&self) -> bool {
        let wanted = self.incompat().contains(JournalIncompat::FAST_COMMIT);
        wanted && self.fast_commit_blocks() == 0
    }

    /// Checks the checksum, where the journal has one.
    ///
    /// # Errors
    /// `Checksum`.
    pub fn verify_checksum(&self) -> Result<()> {
        if !self.has_checksum() {
            return Ok(());
        }
        ensure_checksum(STRUCTURE, self.s_checksum, self.computed_checksum())
    }

    /// Brings the checksum up to date, where the journal has one.
    pub fn update_checksum(&mut self) {
        if self.has_checksum() {
            self.s_checksum = self.computed_checksum();
        }
    }

    fn has_checksum(&self) -> bool {
        let either = JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3;
        self.incompat().bits() & either.bits() != 0
    }

    fn computed_checksum(&self) -> u32 {
        crc32c_with_hole(!0, &self.encode(), CHECKSUM)
    }
}
