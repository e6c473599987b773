//! Multi-mount protection: the block by which hosts see that another one uses the file system.
//!
//! For: the block and its sequence numbers. Not for: the waiting, which needs a clock.

use crate::Result;
use crate::checksum::crc32c;
use crate::error::{ensure, ensure_checksum};
use crate::layout::{byte, layout, le16, le32, le64};

const STRUCTURE: &str = "MMP block";
const CHECKSUM_AT: usize = 0x3FC;
/// `mmp_magic`.
pub const MAGIC: u32 = 0x004D_4D50;
/// Sequence of a file system that nobody uses.
pub const SEQ_CLEAN: u32 = 0xFF4D_4D50;
/// Sequence of a file system that is being checked.
pub const SEQ_FSCK: u32 = 0xE24D_4D50;
/// Largest sequence of a file system that is mounted.
pub const SEQ_MAX: u32 = 0xE24D_4D4F;

layout! {
    /// The block's first 1024 bytes as they lie on disk; the rest of the block means nothing.
    pub struct Mmp[1024] = "MMP block" {
        0x000 mmp_magic: le32,
        0x004 mmp_seq: le32,
        0x008 mmp_time: le64,
        0x010 mmp_nodename: [byte; 64],
        0x050 mmp_bdevname: [byte; 32],
        0x070 mmp_check_interval: le16,
        0x072 mmp_pad1: le16,
        0x074 mmp_pad2: [le32; 226],
        0x3FC mmp_checksum: le32,
    }
}

/// Who uses a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmpState {
    /// Nobody.
    Clean,
    /// A checker.
    Fsck,
    /// A mount; the number changes while it lives.
    Mounted(u32),
    /// A sequence outside the format.
    Unknown(u32),
}

impl Mmp {
    /// Who uses the file system.
    pub fn state(&self) -> MmpState {
        match self.mmp_seq {
            SEQ_CLEAN => MmpState::Clean,
            SEQ_FSCK => MmpState::Fsck,
            seq @ 1..=SEQ_MAX => MmpState::Mounted(seq),
            seq => MmpState::Unknown(seq),
        }
    }

    /// Checks the magic number.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn validate(&self) -> Result<()> {
        let magic = self.mmp_magic;
        let expected = format_args!("{MAGIC:#x}");
        ensure(
            magic == MAGIC,
            STRUCTURE,
            "mmp_magic",
            format_args!("{magic:#x}"),
            expected,
        )
    }

    fn computed_checksum(&self, fs_seed: u32) -> u32 {
        crc32c(fs_seed, &self.encode()[..CHECKSUM_AT])
    }

    /// Checks the checksum of a file system with `metadata_csum`. `fs_seed` is
    /// `SuperBlock::checksum_seed`.
    ///
    /// # Errors
    /// `Checksum`.
    pub fn verify_checksum(&self, fs_seed: u32) -> Result<()> {
        ensure_checksum(
            STRUCTURE,
            self.mmp_checksum,
            self.computed_checksum(fs_seed),
        )
    }

    /// Makes the checksum right, for a file system with `metadata_csum`.
    pub fn update_checksum(&mut self, fs_seed: u32) {
        self.mmp_checksum = self.computed_checksum(fs_seed);
    }
}
