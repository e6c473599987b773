//! The journal's superblock, as far as it tells whether the journal is empty.
//!
//! Not for: the log itself, which belongs to the journal's crate.

use crate::Result;
use crate::checksum::crc32c_with_hole;
use crate::error::{ensure, ensure_checksum};
use crate::layout::{be32, byte, layout};

const STRUCTURE: &str = "journal superblock";
const CHECKSUM: std::ops::Range<usize> = 0xFC..0x100;
/// `h_magic`.
pub const MAGIC: u32 = 0xC03B_3998;
/// Incompatible feature bits that mean checksums: version 2 and version 3.
const CSUM_V2_V3: u32 = 0x08 | 0x10;

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

    /// Checks the checksum, where the journal has one.
    ///
    /// # Errors
    /// `Checksum`.
    pub fn verify_checksum(&self) -> Result<()> {
        if self.s_feature_incompat & CSUM_V2_V3 == 0 {
            return Ok(());
        }
        let computed = crc32c_with_hole(!0, &self.encode(), CHECKSUM);
        ensure_checksum(STRUCTURE, self.s_checksum, computed)
    }
}
