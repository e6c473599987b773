//! Fast commits: changes since the last full commit, said of inodes and names. They are applied
//! before anybody else looks at the file system.
//!
//! All of them together become one transaction. Fast commits follow the log's last transaction and
//! name the number that comes after it; as soon as a transaction with that number is committed, they
//! mean nothing any more, to us, to Linux and to e2fsck. So:
//!
//! 1. the log is replayed on the device ([`super::replay`]);
//! 2. the records are folded into what they come to ([`plan`]) and changed in memory ([`apply`]);
//! 3. the journal's superblock says that the log begins anew, with the number that the fast commits
//!    name, and nothing in it;
//! 4. the changes are committed under that number, written home, and the log is emptied.
//!
//! # Invariants
//! - Until the commit block is durable the fast commits are as they were, and the image is that of the
//!   last full commit; afterwards the log holds all they ask for. A crash anywhere in between is
//!   followed by the one replay or the other.
//! - What cannot be applied is found in step 2, when nothing can be written yet ([`gate`]). The changes fit
//!   in a transaction, as the kernel has them in one.
//!
//! Rejected: applying record by record on the device, as Linux does. Each step must then bear being
//! done twice, on top of any part of itself, bitmaps above all.
//!
//! Names, maps, attributes and quota change through the code that changes them always; what is chosen
//! already is [`crate::alloc`]'s business. Rejected: the same for each operation as a whole. A fast commit
//! tells of an inode what it has become, not how.

mod apply;
mod files;
mod gate;
mod names;
mod plan;
mod ranges;
pub(crate) mod set;

use super::Mount;
use super::groups::Counts;
use super::zone::journal_blocks;
use crate::api::fs::MountOptions;
use crate::txn::Writer;
use crate::{Error, Result};
use apply::Apply;
use dioxide_block::{Device, Durability};
use dioxide_format::journal::JournalSuperBlock;
use dioxide_format::superblock::SuperBlock;
use dioxide_journal::journal::{Journal, JournalOptions};
use dioxide_journal::log::{Log, Ring};
use dioxide_journal::recovery::Recovery;
use gate::Gate;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Nothing is to be committed before all of it is there.
const NEVER: Duration = Duration::from_secs(1 << 30);

/// Most blocks of directories that are read: names are looked for one by one, and there may be as many of them as a directory
/// has blocks.
const DIR_READS: i64 = 1 << 22;

/// Applies the fast commits that follow `log`, whose transactions are on the device already. `sb` is
/// the superblock as it is after them, at byte `at`. Blocks. The log is left to be reset.
///
/// # Errors
/// [`Error::Unsupported`] and damage, with nothing changed; the device's.
pub(super) fn replay(
    device: &Arc<dyn Device>,
    options: &MountOptions,
    sb: &SuperBlock,
    at: u64,
    log: &Log,
    recovery: &Recovery<'_>,
) -> Result<Counts> {
    let gate = Gate::new(device.clone());
    let device: Arc<dyn Device> = gate.clone();
    let mount = prepare(&device, options, sb, at)?;
    let next = following(recovery);
    let log_gate = Gate::new(log.device().clone());
    // Who has one device for both knows it by that.
    let log_device = match Arc::ptr_eq(log.device(), gate.inner()) {
        true => device,
        false => log_gate.clone(),
    };
    let journal = Journal::open(
        log_device,
        log.map().clone(),
        next.clone(),
        mount.cache.clone(),
        &JournalOptions {
            commit_interval: NEVER,
            checksum_v3: sb.features().metadata_csum(),
            wide: sb.is_64bit(),
            replays_fast_commits: true,
            ..JournalOptions::default()
        },
    )?;
    let mut writer = Writer::with(&mount, true, |_| Ok(journal))?;
    writer.uses_freed = true;
    let writer = mount.writer.get_or_init(|| writer);
    let mut apply = Apply::new(&mount, writer)?;
    apply.run(&recovery.recovered().fast_commit_records)?;
    let counts = apply.finish()?;
    // What is freed in a damaged group is lost until e2fsck runs, and nobody would be told of this mount's damage.
    if let Some(what) = mount.damage.met().passed_over.first() {
        let what = format!("fast commits beside damage: {what}");
        return Err(Error::Unsupported(what));
    }
    gate.open();
    log_gate.open();
    log.write_superblock(&mut next.clone(), Durability::Cached)?;
    log.flush()?;
    writer.journal.flush()?;
    Ok(counts)
}

/// The superblock of a log that holds nothing, and is followed by the same fast commits.
fn following(recovery: &Recovery<'_>) -> JournalSuperBlock {
    let superblock = recovery.superblock();
    JournalSuperBlock {
        s_start: Ring::of(superblock).first,
        // Recovery leaves out the number of the fast commits.
        s_sequence: recovery.recovered().next_sequence.0.wrapping_sub(1),
        ..superblock.clone()
    }
}

/// The file system without its fast commits.
fn prepare(
    device: &Arc<dyn Device>,
    options: &MountOptions,
    sb: &SuperBlock,
    at: u64,
) -> Result<Mount> {
    let mut mount = Mount::new(device.clone(), options, Arc::new(sb.clone()), at);
    // What was not carried out to its end is not made durable.
    mount.closed.store(true, Ordering::Relaxed);
    mount.dir_reads_left = Some(DIR_READS.into());
    if let Some(error) = mount.learn_groups().into_iter().next() {
        return Err(error);
    }
    if sb.journal_dev() == 0 {
        let blocks = journal_blocks(&mount, &*mount.journal_inode()?)?;
        mount.learn_journal(blocks);
    }
    Ok(mount)
}
