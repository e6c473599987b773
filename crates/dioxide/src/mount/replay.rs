//! Replaying the journal, before anything else looks at the image.
//!
//! Three outcomes. Where the file system may be written, what the log holds goes to the device, and
//! the log is emptied: from then on the image is as after a clean unmount, for everybody. The fast
//! commits that follow the log are part of that ([`super::fast_commit`]); where they cannot be applied,
//! the log stays, and nothing more is written. Where it may not (read-only mount or device, another
//! host's lock, features that cannot be written), blocks of which the log has a newer copy are read
//! from there, and the device stays as it is. Where the log is damaged, nothing is replayed, files are
//! shown as they were before it, and nothing is written.
//!
//! Not for: orphans, which are judged after the replay.
//!
//! Rejected: refusing a damaged log altogether. Whoever only wants to read the files out of it would
//! be sent away.

use super::Mount;
use super::fast_commit;
use super::groups::Counts;
use super::log::{LIES_ELSEWHERE, is_elsewhere};
use super::open::{RO_COMPAT, fits_device, read_superblock};
use super::span::write_span;
use crate::api::fs::MountOptions;
use crate::txn::damage;
use crate::{Error, Result};
use dioxide_block::{Device, Durability};
use dioxide_format::features::{Compat, Incompat};
use dioxide_format::superblock::{STATE_ERROR, SUPERBLOCK_OFFSET, SuperBlock, SuperBlockDisk};
use dioxide_journal::log::Log;
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
    // Other hosts are kept away.
    protected: bool,
) -> Result<Replayed> {
    // A backup superblock does not know of the journal's state.
    if options.sb.is_some() {
        return Ok(Replayed::as_it_is(device, sb, None));
    }
    if !sb.needs_recovery() {
        return take_over_abort(device, options, sb, at, protected);
    }
    let why = if options.noload {
        "the journal needs recovery, which `noload` leaves out".into()
    } else if !sb.features().compat.contains(Compat::HAS_JOURNAL) {
        "it says that a journal needs recovery, and has none: run e2fsck".into()
    } else if is_elsewhere(&sb) && options.journal_device.is_none() {
        format!("it needs recovery, and {LIES_ELSEWHERE}")
    } else {
        match replay_log(&device, options, &sb, at, protected) {
            Ok(replayed) => return Ok(replayed),
            Err(Error::Device(error)) => return Err(Error::Device(error)),
            Err(error) => {
                // Most errors end with it.
                let advice = "run e2fsck on a copy of the image";
                let error = error.to_string();
                let error = error.trim_end_matches(advice).trim_end_matches("; ");
                format!("the journal needs recovery, and is not fit for it ({error}): {advice}")
            }
        }
    };
    let why = format!("{why}; files are shown as they were before it");
    Ok(Replayed::as_it_is(device, sb, Some(why)))
}

/// An empty log may tell that the journal was aborted by the very last that was written. A mount that may write moves that to the
/// file system's superblock, as Linux does: e2fsck cannot even look at such an image without writing.
fn take_over_abort(
    device: Arc<dyn Device>,
    options: &MountOptions,
    sb: SuperBlock,
    at: u64,
    protected: bool,
) -> Result<Replayed> {
    let has_journal = sb.features().compat.contains(Compat::HAS_JOURNAL);
    let is_known = sb.journal_dev() == 0 || options.journal_device.is_some();
    if options.noload || !has_journal || !is_known || is_read_only(&device, options, &sb, protected)
    {
        return Ok(Replayed::as_it_is(device, sb, None));
    }
    let mount = Mount::new(device.clone(), options, Arc::new(sb.clone()), at);
    // What is wrong with a journal is told when it is looked at.
    let superblock = mount.log().and_then(|log| Ok(log.read_superblock()?));
    let Ok(mut superblock) = superblock else {
        return Ok(Replayed::as_it_is(device, sb, None));
    };
    if !superblock.is_empty() || superblock.s_errno == 0 {
        return Ok(Replayed::as_it_is(device, sb, None));
    }
    let sb = record_abort(&device, options, at)?;
    superblock.s_errno = 0;
    let log = mount.log()?;
    log.write_superblock(&mut superblock, Durability::Cached)?;
    log.flush()?;
    Ok(Replayed {
        note: Some("the journal was aborted by an error before it was closed".into()),
        ..Replayed::as_it_is(device, sb, None)
    })
}

/// Has the file system's superblock say that the journal was aborted. Flushes.
fn record_abort(device: &Arc<dyn Device>, options: &MountOptions, at: u64) -> Result<SuperBlock> {
    change_superblock(device, at, |sb| {
        let disk = sb.disk_mut();
        if disk.s_error_count == 0 {
            damage::record_abort(disk, options.clock.now_ns());
        }
        disk.s_state |= STATE_ERROR;
    })
}

fn replay_log(
    device: &Arc<dyn Device>,
    options: &MountOptions,
    sb: &SuperBlock,
    at: u64,
    protected: bool,
) -> Result<Replayed> {
    let log = Mount::new(device.clone(), options, Arc::new(sb.clone()), at).log()?;
    let recovery = Recovery::plan(&log, FileSystem::of(sb, &**device))?;
    let waiting = recovery.recovered().fast_commits;
    if is_read_only(device, options, sb, protected) {
        let reason = match waiting {
            0 => Reason::ReadOnly,
            _ => Reason::Because(not_shown(
                waiting,
                "which only a mount that may write replays",
            )),
        };
        return by_redirection(device, &recovery, reason, at, sb.disk());
    }
    recovery.replay(&**device)?;
    let aborted = recovery.superblock().s_errno != 0;
    if aborted || sb.state() & STATE_ERROR != 0 {
        change_superblock(device, at, |now| {
            let disk = now.disk_mut();
            damage::keep_recorded(disk, sb.disk());
            disk.s_state |= STATE_ERROR;
        })?;
    }
    let counts = match waiting {
        // Transactions say nothing of the superblock's counts. Where a descriptor is damaged, they stay.
        0 => {
            let sb = read_superblock(&**device, at)?;
            let mount = Mount::new(device.clone(), options, Arc::new(sb), at);
            mount.count_free().ok()
        }
        _ => match apply_fast_commits(device, options, sb, at, &log, &recovery, protected) {
            Ok(counts) => Some(counts),
            Err(Error::Device(error)) => return Err(Error::Device(error)),
            Err(error) => {
                let why =
                    format!("which cannot be replayed ({error}): mount the image or run e2fsck");
                let sb = read_superblock(&**device, at)?;
                let why = not_shown(waiting, &why);
                return Ok(Replayed::as_it_is(device.clone(), sb, Some(why)));
            }
        },
    };
    finish(device, recovery, at, counts, options)
}

/// Why the device stays as it is.
enum Reason {
    /// The mount will be read-only for a reason that is told elsewhere.
    ReadOnly,
    /// The mount must be read-only because of this.
    Because(String),
}

fn not_shown(count: u32, why: &str) -> String {
    format!(
        "{count} fast commits follow the journal, {why}; files are shown as they were before them"
    )
}

fn is_read_only(
    device: &Arc<dyn Device>,
    options: &MountOptions,
    sb: &SuperBlock,
    protected: bool,
) -> bool {
    let geometry = device.geometry();
    options.read_only
        || geometry.read_only
        || !sb.features().ro_compat.unsupported(RO_COMPAT).is_empty()
        || (!matches!(sb.mmp_block(), Ok(None)) && !protected)
        || sb.validate_hash_version().is_err()
        || geometry.size_bytes >> sb.block_size_log2() < sb.blocks_count()
}

/// Applies the fast commits to what the log's replay left on the device.
fn apply_fast_commits(
    device: &Arc<dyn Device>,
    options: &MountOptions,
    before: &SuperBlock,
    at: u64,
    log: &Log,
    recovery: &Recovery<'_>,
    protected: bool,
) -> Result<Counts> {
    let sb = read_superblock(&**device, at)?;
    if is_read_only(device, options, &sb, protected) || sb.block_size() != before.block_size() {
        return Err(Error::Unsupported(
            "a superblock in the journal with which nothing can be written".into(),
        ));
    }
    fast_commit::replay(device, options, &sb, at, log, recovery)
}

/// How many bytes the file system has by the copy of its superblock in the journal, if that is to be replayed and has one.
/// The device may end where the superblock itself says. Writes nothing. Blocks.
pub(crate) fn bytes_in_log(device: &Arc<dyn Device>, options: &MountOptions) -> Option<u64> {
    let at = SUPERBLOCK_OFFSET;
    let sb = read_superblock(&**device, at).ok()?;
    fits_device(&sb, &**device).ok()?;
    if options.noload || !sb.needs_recovery() {
        return None;
    }
    let options = options.with_journal(&sb).ok()?;
    let log = Mount::new(device.clone(), &options, Arc::new(sb.clone()), at);
    let log = log.log().ok()?;
    let anywhere = FileSystem {
        device_blocks: u64::MAX,
        ..FileSystem::of(&sb, &**device)
    };
    let blocks = Recovery::plan(&log, anywhere).ok()?.blocks().ok()??;
    blocks.checked_mul(sb.block_size().into())
}

/// What the log asked for is on the device: empties it and takes off the mark.
fn finish(
    device: &Arc<dyn Device>,
    recovery: Recovery<'_>,
    at: u64,
    counts: Option<Counts>,
    options: &MountOptions,
) -> Result<Replayed> {
    if recovery.superblock().s_errno != 0 {
        record_abort(device, options, at)?;
    }
    // First the log, then the mark: an empty log that is marked does no harm.
    let recovered = recovery.reset()?;
    let sb = change_superblock(device, at, |sb| {
        if let Some(counts) = counts {
            sb.set_free_blocks_count(counts.free_blocks);
            sb.set_free_inodes_count(counts.free_inodes);
        }
        sb.disk_mut().s_feature_incompat &= !Incompat::NEEDS_RECOVERY.bits();
    })?;
    let note = match recovered.fast_commits {
        0 => said("the journal was replayed", &recovered),
        count => {
            let what = format!("the journal and {count} fast commits were replayed");
            said(&what, &recovered)
        }
    };
    Ok(Replayed {
        note: Some(note),
        ..Replayed::as_it_is(device.clone(), sb, None)
    })
}

/// Changes the superblock on the device and flushes.
fn change_superblock(
    device: &Arc<dyn Device>,
    at: u64,
    change: impl FnOnce(&mut SuperBlock),
) -> Result<SuperBlock> {
    let mut sb = read_superblock(&**device, at)?;
    change(&mut sb);
    sb.update_checksum();
    write_span(&**device, at, &sb.encode())?;
    device.flush()?;
    Ok(sb)
}

fn by_redirection(
    device: &Arc<dyn Device>,
    recovery: &Recovery<'_>,
    reason: Reason,
    at: u64,
    before: &SuperBlockDisk,
) -> Result<Replayed> {
    let overlay: Arc<dyn Device> = Arc::new(recovery.overlay(device)?);
    let mut sb = read_superblock(&*overlay, at)?;
    damage::keep_recorded(sb.disk_mut(), before);
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
