//! Replaying the journal, before anything else looks at the image.
//!
//! Three outcomes. Where the file system may be written, what the log holds goes to the device, and
//! the log is emptied: from then on the image is as after a clean unmount, for everybody. Where it
//! may not (read-only mount or device, another host's lock, features that cannot be written, fast
//! commits), blocks of which the log has a newer copy are read from there, and the device stays as it is.
//! Where the log is damaged, nothing is replayed, files are shown as they were before it, and nothing is written.
//!
//! Not for: orphans, which are judged after the replay.
//!
//! Rejected: refusing a damaged log altogether. Whoever only wants to read the files out of it would
//! be sent away.

use super::Mount;
use super::open::{RO_COMPAT, read_superblock};
use super::span::write_span;
use super::zone::journal_blocks;
use crate::api::fs::MountOptions;
use crate::{Error, Result};
use dioxide_block::Device;
use dioxide_block::overlay::OverlayDevice;
use dioxide_format::features::{Compat, Incompat};
use dioxide_format::superblock::{STATE_ERROR, SuperBlock};
use dioxide_journal::log::{Log, LogMap};
use dioxide_journal::recovery::{FileSystem, Recovered, Recovery};
use std::sync::Arc;

/// What is mounted after the replay, and what is to be said of it.
pub(super) struct Replayed {
    pub(super) device: Arc<dyn Device>,
    pub(super) sb: SuperBlock,
    /// Why nothing may be written, if so.
    pub(super) read_only: Option<String>,
    pub(super) note: Option<String>,
}

/// Replays the journal of the file system with superblock `sb` at byte `at`, if it needs that.
/// Blocks.
///
/// # Errors
/// The device's.
pub(super) fn replay(
    device: Arc<dyn Device>,
    options: &MountOptions,
    sb: SuperBlock,
    at: u64,
) -> Result<Replayed> {
    // A backup superblock does not know of the journal's state.
    if !sb.needs_recovery() || options.sb.is_some() {
        return Ok(Replayed::as_it_is(device, sb, None));
    }
    let why = if options.noload {
        "the journal needs recovery, which `noload` leaves out".into()
    } else if !sb.features().compat.contains(Compat::HAS_JOURNAL) {
        "it says that a journal needs recovery, and has none: run e2fsck".into()
    } else if sb.journal_dev() != 0 || sb.journal_inum().is_none() {
        "the journal needs recovery and lies on another device, which dioxide does not open: mount the image or run e2fsck".into()
    } else {
        match replay_internal(&device, options, &sb, at) {
            Ok(replayed) => return Ok(replayed),
            Err(Error::Device(error)) => return Err(Error::Device(error)),
            Err(error) => format!(
                "the journal needs recovery, and is not fit for it ({error}): run e2fsck on a copy of the image"
            ),
        }
    };
    let why = format!("{why}; files are shown as they were before it");
    Ok(Replayed::as_it_is(device, sb, Some(why)))
}

fn replay_internal(
    device: &Arc<dyn Device>,
    options: &MountOptions,
    sb: &SuperBlock,
    at: u64,
) -> Result<Replayed> {
    let before = Mount::new(device.clone(), options, Arc::new(sb.clone()), at);
    let runs = journal_blocks(&before, &*before.journal_inode()?)?;
    let block_bytes = sb.block_size() as usize;
    let log = Log::new(device.clone(), LogMap::internal(runs)?, block_bytes);
    let fs = FileSystem {
        blocks: sb.blocks_count(),
        inode_bytes: sb.inode_size(),
    };
    let recovery = Recovery::plan(&log, fs)?;
    match why_not_on_device(device, options, sb, recovery.recovered()) {
        None => on_device(device, recovery, at),
        Some(reason) => by_redirection(device, &recovery, reason, at),
    }
}

/// Why the device stays as it is.
enum Reason {
    /// The mount will be read-only for a reason that is told elsewhere.
    ReadOnly,
    /// The mount must be read-only because of this.
    Because(String),
}

fn why_not_on_device(
    device: &Arc<dyn Device>,
    options: &MountOptions,
    sb: &SuperBlock,
    recovered: &Recovered,
) -> Option<Reason> {
    if recovered.fast_commits > 0 {
        let count = recovered.fast_commits;
        return Some(Reason::Because(format!(
            "{count} fast commits follow the journal, which dioxide does not replay: mount the image or run e2fsck; files are shown as they were before them"
        )));
    }
    let geometry = device.geometry();
    let read_only = options.read_only
        || geometry.read_only
        || !sb.features().ro_compat.unsupported(RO_COMPAT).is_empty()
        || sb.mmp_block().is_some()
        || geometry.size_bytes >> sb.block_size_log2() < sb.blocks_count();
    read_only.then_some(Reason::ReadOnly)
}

fn on_device(device: &Arc<dyn Device>, recovery: Recovery<'_>, at: u64) -> Result<Replayed> {
    let had_error = recovery.superblock().s_errno != 0;
    recovery.replay(&**device)?;
    // First the log, then the mark: an empty log that is marked does no harm.
    let recovered = recovery.reset()?;
    let mut sb = read_superblock(&**device, at)?;
    let disk = sb.disk_mut();
    disk.s_feature_incompat &= !Incompat::NEEDS_RECOVERY.bits();
    if had_error {
        disk.s_state |= STATE_ERROR;
    }
    sb.update_checksum();
    write_span(&**device, at, &sb.encode())?;
    device.flush()?;
    Ok(Replayed {
        note: Some(said("the journal was replayed", &recovered)),
        ..Replayed::as_it_is(device.clone(), sb, None)
    })
}

fn by_redirection(
    device: &Arc<dyn Device>,
    recovery: &Recovery<'_>,
    reason: Reason,
    at: u64,
) -> Result<Replayed> {
    let block_bytes = recovery.superblock().s_blocksize;
    let overlay = OverlayDevice::new(device.clone(), block_bytes, recovery.redirects()?);
    let overlay: Arc<dyn Device> = Arc::new(overlay);
    let sb = read_superblock(&*overlay, at)?;
    let read_only = match reason {
        Reason::ReadOnly => None,
        Reason::Because(why) => Some(why),
    };
    let note = said(
        "the journal is read in place of the blocks that it replaces, and the image left as it is",
        recovery.recovered(),
    );
    Ok(Replayed {
        note: Some(note),
        ..Replayed::as_it_is(overlay, sb, read_only)
    })
}

fn said(what: &str, recovered: &Recovered) -> String {
    let Recovered {
        transactions,
        blocks_replayed,
        ..
    } = recovered;
    let dropped = match recovered.dropped {
        None => String::new(),
        Some(tid) => format!("; it ends with transaction {tid}, whose commit block is damaged"),
    };
    format!("{what}: {transactions} transactions, {blocks_replayed} blocks{dropped}")
}

impl Replayed {
    fn as_it_is(device: Arc<dyn Device>, sb: SuperBlock, read_only: Option<String>) -> Replayed {
        Replayed {
            device,
            sb,
            read_only,
            note: None,
        }
    }
}
