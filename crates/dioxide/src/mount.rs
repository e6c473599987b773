//! A mounted file system: the device, the superblock, and what all its files share.

use crate::inode::InodeCache;
use crate::io::direct::policy::Policy;
use crate::io::ioend::CompletionMode;
use crate::io::worker::Workers;
use crate::stats::Counters;
use crate::sync::inflight::InFlightRegistry;
use crate::sync::rwsem::Presence;
use dioxide_block::Device;
use dioxide_format::superblock::SuperBlock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

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
        self.deferred.store(mode == CompletionMode::Deferred, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn simple(&self) -> bool {
        self.simple.load(Ordering::Relaxed)
    }

    pub(crate) fn set_simple(&self, on: bool) {
        self.simple.store(on, Ordering::Relaxed);
    }
}
use crate::inode::Inode;
use crate::*;
impl Mount {
    pub(crate) fn open(_d: Arc<dyn Device>, _o: &MountOptions) -> Result<Arc<Mount>> { todo!() }
    pub(crate) fn block_bytes(&self) -> u64 { 1 << self.block_bits }
    pub(crate) fn max_file_bytes(&self) -> u64 { 1 << 44 }
    pub(crate) fn lookup(&self, _p: &[u8], _f: bool) -> Result<Arc<Inode>> { todo!() }
    pub(crate) fn metadata(&self, _i: &Inode) -> Metadata { todo!() }
    pub(crate) fn read_dir(&self, _i: &Arc<Inode>, _p: &[u8]) -> Result<Vec<DirEntry>> { todo!() }
    pub(crate) fn read_link(&self, _i: &Inode) -> Result<Vec<u8>> { todo!() }
    pub(crate) fn xattrs(&self, _i: &Inode) -> Result<Vec<Xattr>> { todo!() }
    pub(crate) fn inline_data(&self, _i: &Inode) -> Result<Vec<u8>> { todo!() }
}
