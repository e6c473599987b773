//! A mounted file system: the device, the superblock, and what all its files share.
//!
//! | Part | What it does |
//! |---|---|
//! | [`open`] | judges an image: refuse it, open it read-only and say why, or open it |
//! | [`knobs`] | what may be switched while mounted |
//! | [`groups`] | group descriptors, read when needed |
//! | [`zone`] | which blocks no file may claim |
//! | [`mmp`] | keeping other hosts away |
//! | [`log`] | where the journal is |
//! | [`meta`] | reading blocks of metadata |
//! | [`span`] | bytes on the device, whatever its logical block |
//!
//! Nothing here grows with the size of the file system: what is read at open, and what is kept,
//! has a limit.

pub(crate) mod fast_commit;
mod fence;
mod flushes;
pub(crate) mod groups;
pub(crate) mod image;
mod knobs;
pub(crate) mod log;
mod meta;
pub(crate) mod mmp;
pub(crate) mod open;
pub(crate) mod replay;
pub(crate) mod span;
pub(crate) mod zone;

use crate::Error;
use crate::inode::InodeCache;
use crate::io::clock::Clock;
use crate::io::direct::place::Growth;
use crate::io::worker::{Workers, apart};
use crate::namei::{Deferred, Dentries, Ways};
use crate::stats::Counters;
use crate::sync::inflight::InFlightRegistry;
use crate::sync::rank::RenamingLock;
use crate::sync::rwsem::Presence;
use crate::txn::Writer;
use crate::txn::damage::Damage;
use crossbeam_utils::CachePadded;
use dioxide_block::{AtomicUnits, Device, Lane};
use dioxide_format::dir::DirFormat;
use dioxide_format::extent::LBLK_END;
use dioxide_format::features::Incompat;
use dioxide_format::superblock::{ErrorPolicy, STATE_ERROR, SuperBlock};
use dioxide_journal::buffer::BufferCache;
use fence::Fence;
use groups::{Counts, DescTable};
use knobs::Knobs;
use mmp::Protection;
use parking_lot::Mutex;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use zone::Zones;

/// What [`crate::Fs`] points to. What the short paths look at comes first, in one line of the processor's cache.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Mount {
    /// The file-system block in bytes, less 1.
    pub(crate) block_mask: u64,
    /// The device's logical block in bytes, less 1.
    pub(crate) logical_mask: u64,
    /// log2 of the file-system block in bytes.
    pub(crate) block_bits: u32,
    pub(crate) knobs: Knobs,
    /// Files that ended, and could not be freed then.
    pub(crate) deferred: Deferred,
    pub(crate) device: Arc<dyn Device>,
    /// The same, to be shown errors that did not come through it.
    pub(crate) fence: Arc<Fence>,
    /// The same device, for the short paths.
    pub(crate) lane: Lane,
    /// As it was when the file system was opened.
    pub(crate) sb: Arc<SuperBlock>,
    /// What files can have written atomically, if anything.
    pub(crate) atomic: Option<AtomicUnits>,
    /// Option dioread_nolock.
    pub(crate) dioread_nolock: bool,
    /// Why nothing may be written, if so.
    pub(crate) read_only: Option<String>,
    /// Why it would not be written whoever asked for it.
    pub(crate) restricted: Option<String>,
    /// What the user should know about this image.
    pub(crate) warnings: Vec<String>,
    pub(crate) presence: &'static Presence,
    pub(crate) in_flight: InFlightRegistry,
    pub(crate) counters: Counters,
    pub(crate) inodes: InodeCache,
    /// Names in memory.
    pub(crate) dentries: Dentries,
    pub(crate) ways: Ways,
    /// Held while a name moves from one directory to another.
    pub(crate) renaming: RenamingLock,
    /// Of the next inode that is made: by its number, so that who makes files elsewhere changes another line of memory.
    pub(crate) next_generations: [CachePadded<AtomicU32>; 16],
    /// For requests that would block a queue.
    pub(crate) workers: Workers,
    /// For deferred completions.
    pub(crate) ioend: Workers,
    /// What reading directories needs of the superblock.
    pub(crate) dir_format: DirFormat,
    descs: DescTable,
    zones: Zones,
    /// What was free when it was opened, if all groups were looked at then.
    counts: Option<Counts>,
    /// Blocks of metadata, changes included that are not durable yet.
    pub(crate) cache: BufferCache,
    /// What changes metadata, once something did.
    pub(crate) writer: OnceLock<Writer>,
    /// Held while it is made.
    pub(crate) starting: Mutex<()>,
    /// Why nothing is written any more, if so.
    pub(crate) failed: OnceLock<String>,
    /// What failed writes had made of sizes before others made them larger still: they are in memory only, once nothing is
    /// written any more.
    pub(crate) failed_growths: Mutex<Vec<Growth>>,
    /// Changes of all directories are durable at once.
    pub(crate) dirsync: bool,
    /// Where the journal lies, if not in the file system.
    journal_device: Option<Arc<dyn Device>>,
    pub(crate) noload: bool,
    pub(crate) barrier: bool,
    pub(crate) discard: bool,
    pub(crate) commit_interval: Duration,
    /// Where the time is from that is stamped.
    pub(crate) clock: Clock,
    /// What to do when metadata turns out damaged.
    pub(crate) errors: ErrorPolicy,
    /// How many more blocks of directories may be read; any number by default.
    pub(crate) dir_reads_left: Option<AtomicI64>,
    /// It was closed cleanly.
    pub(crate) closed: AtomicBool,
    /// Nothing is read any more either: damage was found, with `errors=panic`.
    pub(crate) stopped: AtomicBool,
    /// What was found damaged.
    pub(crate) damage: Arc<Damage>,
    /// User and group that the reserved blocks are kept for.
    reserve: (u32, u32),
    /// New files have the group of their directory.
    pub(crate) grpid: bool,
    /// [`Mount::aside_clusters`] are some.
    pub(crate) keeps_for_maps: bool,
    /// Keeps other hosts away, where the file system has that. Given up last.
    mmp: Option<Protection>,
}

/// Closing without [`Mount::close`]: what was changed becomes durable as far as that is possible, also in a panic, and
/// the file system stays marked as in use.
impl Drop for Mount {
    fn drop(&mut self) {
        let changed = self.started_writer().is_some() || self.inodes.has_modified();
        if changed
            && !self.closed.load(Ordering::Relaxed)
            && self.why_read_only().is_none()
            && let Err(error) = apart(|| self.sync()).unwrap_or(Err(Error::Panicked))
        {
            tracing::error!("what was changed last is lost: {error}");
        }
    }
}

impl Mount {
    /// File-system block in bytes.
    #[inline]
    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_mask + 1
    }

    /// Whether errors were found in the file system before it was opened.
    pub(crate) fn has_errors(&self) -> bool {
        self.sb.state() & STATE_ERROR != 0
    }

    /// Whether files that are made have extents. Others may be there without, or with.
    pub(crate) fn has_extents(&self) -> bool {
        self.sb.features().incompat.contains(Incompat::EXTENTS)
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

    /// Whether the reserved blocks are kept for this user or group.
    pub(crate) fn has_reserve(&self, (uid, gid): (u32, u32)) -> bool {
        let (resuid, resgid) = self.reserve;
        uid == 0 || uid == resuid || (gid == resgid && resgid != 0)
    }

    /// What refuses all writes to files from then on, to be called from any place.
    pub(crate) fn refuser(&self) -> impl FnOnce() + Send + 'static {
        // The mount may not be open yet; the device is not kept for this.
        let fence = Arc::downgrade(&self.fence);
        move || {
            let Some(mount) = fence.upgrade().and_then(|fence| fence.mount()) else {
                return;
            };
            mount.knobs.refuse_writes();
            // All others may have left it meanwhile. It must not end here, where locks of the journal may be held.
            if let Some(mount) = Arc::into_inner(mount).map(ManuallyDrop::new) {
                let thread = std::thread::Builder::new().name("dioxide-abort".into());
                if let Err(error) = thread.spawn(|| drop(ManuallyDrop::into_inner(mount))) {
                    tracing::error!("the image stays open: {error}");
                }
            }
        }
    }

    /// What is free while nothing has changed.
    pub(crate) fn free_counts(&self) -> Counts {
        self.counts.unwrap_or(Counts {
            free_blocks: self.sb.free_blocks_count(),
            free_inodes: self.sb.free_inodes_count(),
        })
    }

    /// The seed of metadata checksums, if the file system has them.
    pub(crate) fn checksum_seed(&self) -> Option<u32> {
        self.sb
            .features()
            .metadata_csum()
            .then(|| self.sb.checksum_seed())
    }
}
