//! A mounted file system: the device, the superblock, and what all its files share.
//!
//! | Part | What it does |
//! |---|---|
//! | [`open`] | judges an image: refuse it, open it read-only and say why, or open it |
//! | [`groups`] | group descriptors, read when needed |
//! | [`zone`] | which blocks no file may claim |
//! | [`meta`] | blocks of metadata, kept in a bounded cache |
//!
//! Nothing here grows with the size of the file system: what is read at open, and what is kept,
//! has a limit.

mod groups;
mod meta;
mod open;
pub(crate) mod zone;

use crate::inode::InodeCache;
use crate::io::direct::policy::Policy;
use crate::io::ioend::CompletionMode;
use crate::io::worker::Workers;
use crate::stats::Counters;
use crate::sync::inflight::InFlightRegistry;
use crate::sync::rwsem::Presence;
use dioxide_block::Device;
use dioxide_format::dir::DirFormat;
use dioxide_format::extent::LBLK_END;
use dioxide_format::superblock::SuperBlock;
use groups::DescTable;
use meta::MetaCache;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use zone::Zones;

/// What [`crate::Fs`] points to.
#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) sb: SuperBlock,
    /// log2 of the file-system block in bytes.
    pub(crate) block_bits: u32,
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
    pub(crate) workers: Workers,
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
        1 << self.block_bits
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

/// What may be switched while mounted; each request samples it once.
#[derive(Debug)]
pub(crate) struct Knobs {
    policy: AtomicU8,
    deferred: AtomicBool,
    simple: AtomicBool,
}

impl Knobs {
    pub(crate) fn new(policy: Policy, completion: CompletionMode, simple: bool) -> Knobs {
        Knobs {
            policy: AtomicU8::new(policy.to_u8()),
            deferred: AtomicBool::new(completion == CompletionMode::Deferred),
            simple: AtomicBool::new(simple),
        }
    }

    #[inline]
    pub(crate) fn policy(&self) -> Policy {
        Policy::from_u8(self.policy.load(Ordering::Relaxed))
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        self.policy.store(policy.to_u8(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn completion(&self) -> CompletionMode {
        if self.deferred.load(Ordering::Relaxed) {
            CompletionMode::Deferred
        } else {
            CompletionMode::Inline
        }
    }

    pub(crate) fn set_completion(&self, mode: CompletionMode) {
        self.deferred
            .store(mode == CompletionMode::Deferred, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn simple(&self) -> bool {
        self.simple.load(Ordering::Relaxed)
    }

    pub(crate) fn set_simple(&self, on: bool) {
        self.simple.store(on, Ordering::Relaxed);
    }
}
