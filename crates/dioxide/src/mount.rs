//! A mounted file system: the device, the superblock, and what all its files share.
//!
//! | Part | What it does |
//! |---|---|
//! | [`open`] | judges an image: refuse it, open it read-only and say why, or open it |
//! | [`knobs`] | what may be switched while mounted |
//! | [`groups`] | group descriptors, read when needed |
//! | [`zone`] | which blocks no file may claim |
//! | [`meta`] | blocks of metadata, kept in a bounded cache |
//!
//! Nothing here grows with the size of the file system: what is read at open, and what is kept,
//! has a limit.

mod groups;
mod knobs;
mod meta;
mod open;
mod replay;
pub(crate) mod zone;

use crate::inode::InodeCache;
use crate::io::worker::Workers;
use crate::stats::Counters;
use crate::sync::inflight::InFlightRegistry;
use crate::sync::rwsem::Presence;
use dioxide_block::{Device, Lane};
use dioxide_format::dir::DirFormat;
use dioxide_format::extent::LBLK_END;
use dioxide_format::superblock::SuperBlock;
use groups::DescTable;
use knobs::Knobs;
use meta::MetaCache;
use std::ops::Range;
use std::sync::Arc;
use zone::Zones;

/// What [`crate::Fs`] points to.
#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) device: Arc<dyn Device>,
    /// The same device, for the short paths.
    pub(crate) lane: Lane,
    pub(crate) sb: SuperBlock,
    /// log2 of the file-system block in bytes.
    pub(crate) block_bits: u32,
    /// The file-system block in bytes, less 1.
    pub(crate) block_mask: u64,
    /// The device's logical block in bytes, less 1.
    pub(crate) logical_mask: u64,
    /// Option dioread_nolock.
    pub(crate) dioread_nolock: bool,
    /// Why nothing may be written, if so.
    pub(crate) read_only: Option<String>,
    /// What the user should know about this image.
    pub(crate) warnings: Vec<String>,
    pub(crate) presence: Arc<Presence>,
    pub(crate) in_flight: InFlightRegistry,
    pub(crate) counters: Counters,
    pub(crate) inodes: InodeCache,
    /// For requests that would block a queue.
    pub(crate) workers: Workers,
    /// For deferred completions.
    pub(crate) ioend: Workers,
    pub(crate) knobs: Knobs,
    /// What reading directories needs of the superblock.
    pub(crate) dir_format: DirFormat,
    descs: DescTable,
    zones: Zones,
    meta: MetaCache,
}

impl Mount {
    /// File-system block in bytes.
    #[inline]
    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_mask + 1
    }

    /// The largest size that a file can have, in bytes: as many blocks as have numbers, less one.
    #[inline]
    pub(crate) fn max_file_bytes(&self) -> u64 {
        (LBLK_END - 1) << self.block_bits
    }

    /// The blocks that an inode may point to: all but the first, which holds the boot sector or
    /// the superblock.
    pub(crate) fn physical_blocks(&self) -> Range<u64> {
        self.sb.first_data_block().0 + 1..self.sb.blocks_count()
    }

    /// The seed of metadata checksums, if the file system has them.
    pub(crate) fn checksum_seed(&self) -> Option<u32> {
        self.sb
            .features()
            .metadata_csum()
            .then(|| self.sb.checksum_seed())
    }
}
