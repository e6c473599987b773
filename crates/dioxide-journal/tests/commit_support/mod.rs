//! A small file system of metadata blocks with a log, and an independent reader of logs, for the
//! tests of the live journal.
#![allow(dead_code)]

pub mod explore;
pub mod reader;
pub mod workload;

use dioxide_block::Device;
use dioxide_block::mem::MemDevice;
use dioxide_format::checksum::crc32c;
use dioxide_format::journal::{JournalSuperBlock, MAGIC};
use dioxide_format::types::Pblk;
use dioxide_journal::Kind;
use dioxide_journal::buffer::BufferCache;
use dioxide_journal::journal::{Journal, JournalOptions};
use dioxide_journal::log::LogMap;
use std::sync::Arc;
use std::time::Duration;

pub const BLOCK: usize = 1024;
/// Blocks of metadata: 0 up to here. The log follows, and then one block for marks.
pub const HOME: u64 = 48;
pub const LOG: u64 = HOME;
pub const LOG_BLOCKS: u32 = 97;
pub const MARKS: u64 = LOG + LOG_BLOCKS as u64;
pub const DEVICE_BYTES: u64 = (MARKS + 1) * BLOCK as u64;

/// Blocks that end with a checksum of their number and bytes.
#[derive(Debug)]
pub struct Summed;

const BODY: usize = BLOCK - 4;

fn sum(block: Pblk, bytes: &[u8]) -> [u8; 4] {
    crc32c(block.0 as u32, &bytes[..BODY]).to_le_bytes()
}

impl Kind for Summed {
    fn name(&self) -> &'static str {
        "summed block"
    }

    fn verify(&self, block: Pblk, bytes: &[u8]) -> dioxide_format::Result<()> {
        match bytes[BODY..] == sum(block, bytes) {
            true => Ok(()),
            false => Err(dioxide_format::Error::Checksum {
                structure: self.name(),
                found: 0,
                expected: 0,
            }),
        }
    }

    fn seal(&self, block: Pblk, bytes: &mut [u8]) {
        let sum = sum(block, bytes);
        bytes[BODY..].copy_from_slice(&sum);
    }

    fn keep(&self) -> Option<Arc<dyn Kind>> {
        Some(Arc::new(Summed))
    }
}

/// What version `version` of a block is, sealed. Each fifth begins with the journal's magic number.
pub fn content(block: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = (block as u8).wrapping_mul(31) ^ (version as u8).wrapping_mul(7) ^ (i / 64) as u8;
    }
    let magic = if version % 5 == 4 { MAGIC } else { 0x1234_5678 };
    bytes[..4].copy_from_slice(&magic.to_be_bytes());
    bytes[8..16].copy_from_slice(&block.to_le_bytes());
    bytes[16..24].copy_from_slice(&version.to_le_bytes());
    Summed.seal(Pblk(block), &mut bytes);
    bytes
}

/// The version that `content` wrote, from the block's bytes.
pub fn version_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[16..24].try_into().expect("8 bytes"))
}

/// Which form the log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Plain,
    V1,
    V2,
    V3,
}

pub fn superblock(form: Form, sequence: u32) -> JournalSuperBlock {
    let mut sb = JournalSuperBlock::zeroed();
    (sb.h_magic, sb.h_blocktype) = (MAGIC, 4);
    (sb.s_blocksize, sb.s_maxlen, sb.s_first) = (BLOCK as u32, LOG_BLOCKS, 1);
    sb.s_sequence = sequence;
    sb.s_nr_users = 1;
    sb.s_uuid = *b"dioxide journal!";
    match form {
        Form::Plain => {}
        Form::V1 => sb.s_feature_compat = 1,
        Form::V2 => (sb.s_feature_incompat, sb.s_checksum_type) = (0x8 | 0x2, 4),
        Form::V3 => (sb.s_feature_incompat, sb.s_checksum_type) = (0x10 | 0x2, 4),
    }
    sb.update_checksum();
    sb
}

pub fn log_map() -> LogMap {
    // In two pieces, so that gathered writes are cut.
    let middle = LOG + 40;
    LogMap::internal([LOG..middle, middle..LOG + u64::from(LOG_BLOCKS)]).expect("a log")
}

/// A device with version 0 of every block and an empty log.
pub fn fresh(form: Form, sequence: u32) -> (MemDevice, Vec<u8>) {
    let device = MemDevice::new(DEVICE_BYTES);
    let mut image = vec![0; DEVICE_BYTES as usize];
    for block in 0..HOME {
        let at = block as usize * BLOCK;
        image[at..at + BLOCK].copy_from_slice(&content(block, 0));
    }
    let at = LOG as usize * BLOCK;
    image[at..at + 1024].copy_from_slice(&superblock(form, sequence).encode());
    device
        .write_at(0, &image, Default::default())
        .expect("memory");
    (device, image)
}

/// Never commits by time, so that tests decide.
pub fn options() -> JournalOptions {
    JournalOptions {
        commit_interval: Duration::from_secs(3600),
        ..JournalOptions::default()
    }
}

/// A journal on a device made by [`fresh`] or wrapped around one.
pub fn open(device: Arc<dyn Device>, form: Form, sequence: u32) -> Journal {
    open_with(device, form, sequence, &options())
}

pub fn open_with(
    device: Arc<dyn Device>,
    form: Form,
    sequence: u32,
    options: &JournalOptions,
) -> Journal {
    // Room for 16 blocks only: eviction is part of every test.
    let cache = BufferCache::new(device.clone(), BLOCK, 16 * BLOCK);
    let mut begun = superblock(form, sequence);
    if options.replays_fast_commits {
        begun.s_start = begun.s_first;
    }
    Journal::open(device, log_map(), begun, cache, options).expect("journal")
}

/// A random-number generator (splitmix64).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
