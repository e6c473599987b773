//! What fsync and its kin wait for.
//!
//! | Call | Times | Transaction | Flush |
//! |---|---|---|---|
//! | fdatasync, `O_DSYNC` | no | the last that reading the data back needs | unless the commit had one |
//! | fsync, `O_SYNC` | yes | the last that changed the inode | unless the commit had one |
//! | sync | of all inodes | all | unless the commit had one |
//!
//! None of them waits for direct I/O in flight: what has not returned is promised nothing.

use crate::inode::Inode;
use crate::mount::Mount;
use crate::sync::rank::{self, Rank};
use crate::txn::inode::INODE_CREDITS;
use crate::{Error, Result};
use dioxide_journal::transaction::Tid;
use std::sync::Arc;
use std::thread;

/// Most closed files that are kept for their times.
const MOST_KEPT: usize = 1024;

impl Mount {
    /// Makes a file's completed writes durable; its times too unless `data_only`. Blocks.
    ///
    /// # Errors
    /// Those of the device and of the journal. After one of them nothing is written any more.
    pub(crate) fn sync_inode(&self, inode: &Inode, data_only: bool) -> Result<()> {
        let mut written = Ok(());
        if !data_only {
            written = self.write_times(inode);
            // Who has taken the times to write them is done with it then, and they belong to his transaction.
            drop(inode.map.lock());
        }
        let synced = self.commit_and_flush(|_| inode.last_change(data_only));
        first_of([written, synced])
    }

    /// Makes everything durable that has completed. Blocks.
    ///
    /// # Errors
    /// As [`Mount::sync_inode`].
    pub(crate) fn sync(&self) -> Result<()> {
        // What cannot be done keeps nothing else from being durable.
        let deleted = self.delete_deferred();
        let written = self.write_all_times();
        let synced = self.commit_and_flush(|writer| writer.journal.newest());
        first_of([deleted, written, synced])
    }

    /// Those of all files.
    fn write_all_times(&self) -> Result<()> {
        let mut written = Ok(());
        for inode in self.inodes.all() {
            written = first_of([written, self.write_times(&inode)]);
        }
        self.inodes.forget_modified();
        written
    }

    /// Writes the times of overwrites that were kept in memory.
    fn write_times(&self, inode: &Inode) -> Result<()> {
        if inode.modified_ns().is_none() || self.why_read_only().is_some() {
            return Ok(());
        }
        let mut handle = self.writer()?.begin(INODE_CREDITS)?;
        let lock = inode.map.lock();
        if inode.has_ended() {
            inode.take_modified_ns();
            return Ok(());
        }
        self.change_inode(&mut handle, inode, &lock, &mut |_| {})?;
        inode.changed_in(handle.tid(), false);
        drop(lock);
        handle.stop()?;
        Ok(())
    }

    fn commit_and_flush(&self, tid: impl Fn(&super::Writer) -> Tid) -> Result<()> {
        if let Some(why) = self.failed.get() {
            // Who asks first for what a commit in the background has lost gets its error.
            let untold = self.started_writer();
            let untold = untold.and_then(|writer| writer.journal.take_untold());
            return Err(untold.map_or_else(|| Error::ReadOnly(why.clone()), Error::from));
        }
        let flushed = match self.started_writer() {
            Some(writer) => {
                rank::may_wait(Rank::Handle);
                let committed = writer.journal.commit_if_needed(tid(writer));
                committed.map_err(|error| self.fail(error.into()))?
            }
            None => false,
        };
        if flushed || !self.barrier {
            return Ok(());
        }
        self.device.flush().map_err(|error| self.fail(error.into()))
    }

    /// Nothing may be written any more: what was acknowledged could not be made durable.
    pub(crate) fn fail(&self, error: Error) -> Error {
        if self.stop_writing(error.to_string()) && error.is_damage() {
            self.damage.note(&error);
            self.heed_damage();
        }
        error
    }

    /// Has nothing be written any more. Whether this is the first reason.
    pub(super) fn stop_writing(&self, reason: String) -> bool {
        if let Some(writer) = self.started_writer() {
            writer.journal.abort(&reason);
        }
        let is_first = self.failed.set(reason).is_ok();
        if is_first && let Some(reason) = self.failed.get() {
            tracing::error!("nothing is written any more: {reason}");
        }
        self.knobs.refuse_writes();
        is_first
    }

    /// Whether a change is durable already.
    pub(crate) fn is_durable(&self, tid: Tid) -> bool {
        match self.started_writer() {
            Some(writer) => writer.is_durable(tid),
            None => true,
        }
    }

    /// As [`Mount::keep_times`], where a thread must not wait. How many are kept.
    pub(crate) fn keep_times_at_once(&self, inode: &Arc<Inode>) -> usize {
        if inode.modified_ns().is_none() || inode.has_ended() || self.why_read_only().is_some() {
            return 0;
        }
        self.inodes.keep_modified(inode)
    }

    /// A file is closed: its times stay until the next sync, or so many are kept; those of one with a large map, which would stay
    /// with them, are written. Blocks then, but in a panic.
    pub(crate) fn keep_times(&self, inode: &Arc<Inode>) {
        if inode.modified_ns().is_none() {
            return;
        }
        let (is_open, _) = inode.opens();
        let panics = thread::panicking();
        let written = if !(is_open || inode.map.is_bare() || panics) {
            let written = self.write_times(inode);
            written.inspect(|()| self.inodes.forget_modified_one(inode.ino))
        } else if self.keep_times_at_once(inode) > MOST_KEPT && !panics {
            self.write_all_times()
        } else {
            Ok(())
        };
        if let Err(error) = written {
            tracing::warn!("times of overwrites were not written: {error}");
        }
    }
}

/// Of several results the error to tell: damage first, which something is to be done about, and last that nothing is written
/// any more, which comes of another.
pub(super) fn first_of<const N: usize>(results: [Result<()>; N]) -> Result<()> {
    let errors = results.into_iter().filter_map(Result::err);
    let rank = |error: &Error| (matches!(error, Error::ReadOnly(_)), !error.is_damage());
    match errors.min_by_key(rank) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}
