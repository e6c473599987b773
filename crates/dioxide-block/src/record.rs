//! A device that logs what changes it: writes, write-zeroes, discards and flushes.
//!
//! A [`RecordDevice`] wraps any device. Each operation gets a number when it is issued and one when
//! it completes, from one counter, so that a log answers the question that crash tests ask: what had
//! completed before this flush was issued? Only that is durable once the flush has completed; a write
//! with force unit access is durable by itself when it completes.
//!
//! # Order of a log
//! Writes, write-zeroes and discards stand at their completion, flushes where they were *issued*,
//! since that decides what they cover. Operations that never completed, or failed, have no
//! completion: the device may have done all, part or nothing of them, at any time after their issue.
//! They come last (a flush that did not complete stands at its issue, and covers nothing).
//! [`Log::epochs`] cuts the log at its completed flushes.
//!
//! # Crash states
//! [`states`] lists what the media may hold if the power fails while a log is written. What was
//! promised by then is the business of whoever ran the work: [`RecordDevice::now`] tells the time in the
//! log's own numbers, so that an oracle notes it when a call returns.
//!
//! # What it is not
//! Not a log of what the device refused (misaligned, past its end, read-only): that changed nothing.
//! Not a way to slow down or fail a device: put [`sim`](crate::sim) under it or over it. Reads are
//! not logged. The log is kept in memory, with a copy of every byte written, until it is taken.
//!
//! # Rejected
//! The kernel's log-writes format: it logs completions only, so it cannot tell a write that was
//! acknowledged before a flush was issued from one that raced with it.

mod queue;
pub mod states;

use crate::{Device, Durability, Geometry, Queue, QueueOptions, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What an operation did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Wrote bytes.
    Write {
        /// First byte on the device.
        offset: u64,
        /// What was written.
        bytes: Arc<[u8]>,
        /// With force unit access.
        fua: bool,
        /// Wholly or not at all.
        atomic: bool,
    },
    /// Made a range read as zeros.
    WriteZeroes {
        /// First byte on the device.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Discarded a range.
    Discard {
        /// First byte on the device.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Flushed.
    Flush,
}

impl Action {
    fn of_write(offset: u64, buf: &[u8], durability: Durability, atomic: bool) -> Action {
        Action::Write {
            offset,
            bytes: buf.into(),
            fua: durability == Durability::ForceUnitAccess,
            atomic,
        }
    }

    /// Whether the media takes it as a whole.
    fn is_atomic(&self) -> bool {
        matches!(self, Action::Write { atomic: true, .. })
    }
}

/// One logged operation, or one piece of a queued operation with several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number in the order of all issues and completions.
    pub issued: u64,
    /// The number of its completion; `None` if it was in flight when the log was taken, or failed.
    pub completed: Option<u64>,
    /// What it did.
    pub action: Action,
}

impl Entry {
    /// Where it stands in a log: see the module's documentation.
    fn place(&self) -> (u64, u64) {
        let place = match (&self.action, self.completed) {
            (Action::Flush, _) => self.issued,
            (_, Some(completed)) => completed,
            (_, None) => u64::MAX,
        };
        (place, self.issued)
    }

    /// Whether it is a flush that completed.
    fn is_barrier(&self) -> bool {
        self.action == Action::Flush && self.completed.is_some()
    }

    /// Does it again, on `device`, which need not write atomically.
    pub fn apply(&self, device: &dyn Device) -> Result<()> {
        match &self.action {
            Action::Write {
                offset, bytes, fua, ..
            } => {
                let durability = match fua {
                    true => Durability::ForceUnitAccess,
                    false => Durability::Cached,
                };
                device.write_at(*offset, bytes, durability)
            }
            Action::WriteZeroes { offset, len } => device.write_zeroes(*offset, *len),
            Action::Discard { offset, len } => device.discard(*offset, *len),
            Action::Flush => device.flush(),
        }
    }
}

/// What a device was told, in the order that the module's documentation defines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    entries: Vec<Entry>,
}

impl Log {
    /// The log of `entries`, in any order.
    pub fn new(mut entries: Vec<Entry>) -> Log {
        entries.sort_by_key(Entry::place);
        Log { entries }
    }

    /// All operations, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The log cut after each completed flush. An epoch's changes may reach the media in any order
    /// and in any part; all of them have, once its flush has completed. The last epoch may have no
    /// flush; a log that ends with one has no empty epoch after it.
    pub fn epochs(&self) -> impl Iterator<Item = Epoch<'_>> {
        let parts = self.entries.split_inclusive(Entry::is_barrier);
        parts.map(|part| match part.split_last() {
            Some((flush, changes)) if flush.is_barrier() => Epoch {
                changes,
                flush: Some(flush),
            },
            _ => Epoch {
                changes: part,
                flush: None,
            },
        })
    }
}

/// The operations between two completed flushes.
#[derive(Clone, Copy, Debug)]
pub struct Epoch<'a> {
    /// Everything but the flush that ends it. May hold flushes that did not complete.
    pub changes: &'a [Entry],
    /// The flush that makes the changes durable.
    pub flush: Option<&'a Entry>,
}

/// Logs what changes the wrapped device. Clones share the log. See the module's documentation.
#[derive(Clone, Debug)]
pub struct RecordDevice(Arc<Record>);

#[derive(Debug)]
struct Record {
    inner: Arc<dyn Device>,
    geometry: Geometry,
    book: Mutex<Book>,
}

/// Every entry is either open (in flight) or closed.
#[derive(Debug, Default)]
struct Book {
    next: u64,
    /// By number of issue.
    open: BTreeMap<u64, Action>,
    closed: Vec<Entry>,
}

impl Book {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn issue(&mut self, action: Action) -> u64 {
        let issued = self.number();
        self.open.insert(issued, action);
        issued
    }

    fn close(&mut self, issued: u64, ok: bool) {
        let completed = ok.then(|| self.number());
        if let Some(action) = self.open.remove(&issued) {
            self.closed.push(Entry {
                issued,
                completed,
                action,
            });
        }
    }

    /// `closed` and what is in flight.
    fn log(&self, closed: Vec<Entry>) -> Log {
        let open = self.open.iter().map(|(&issued, action)| Entry {
            issued,
            completed: None,
            action: action.clone(),
        });
        Log::new(closed.into_iter().chain(open).collect())
    }
}

impl RecordDevice {
    /// Logs what goes to `inner` from now on. The geometry is that of `inner`.
    pub fn new(inner: Arc<dyn Device>) -> RecordDevice {
        let geometry = inner.geometry().clone();
        RecordDevice(Arc::new(Record {
            inner,
            geometry,
            book: Mutex::default(),
        }))
    }

    /// The number that the next issue or completion will get. What returned before this call had all
    /// its operations issued and completed under lower numbers: at a crash at this number or later,
    /// it had been acknowledged.
    pub fn now(&self) -> u64 {
        self.0.book.lock().next
    }

    /// A copy of the log so far.
    pub fn log(&self) -> Log {
        let book = self.0.book.lock();
        book.log(book.closed.clone())
    }

    /// The log so far, which is forgotten, except for what is in flight: that is in this log without
    /// a completion, and once more in a later one, with its fate.
    pub fn take_log(&self) -> Log {
        let mut book = self.0.book.lock();
        let closed = std::mem::take(&mut book.closed);
        book.log(closed)
    }
}

impl Record {
    /// Whether the device will look at it at all. What it refuses for its place or its form changes
    /// nothing, and could not be replayed.
    fn takes(&self, action: &Action) -> bool {
        let (offset, len) = match action {
            Action::Write { offset, bytes, .. } => (*offset, bytes.len() as u64),
            Action::WriteZeroes { offset, len } | Action::Discard { offset, len } => {
                (*offset, *len)
            }
            Action::Flush => return true,
        };
        !self.geometry.read_only && self.geometry.check("", offset, len).is_ok()
    }

    fn logged(&self, action: Action, run: impl FnOnce(&dyn Device) -> Result<()>) -> Result<()> {
        if !self.takes(&action) {
            return run(&*self.inner);
        }
        let issued = self.book.lock().issue(action);
        let result = run(&*self.inner);
        self.book.lock().close(issued, result.is_ok());
        result
    }
}

impl Device for RecordDevice {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.inner.read_at(offset, buf)
    }

    fn read_past_cache_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.inner.read_past_cache_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        let action = Action::of_write(offset, buf, durability, false);
        self.0
            .logged(action, |inner| inner.write_at(offset, buf, durability))
    }

    fn write_atomic_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        self.0.geometry.check_atomic(offset, buf.len() as u64)?;
        let action = Action::of_write(offset, buf, durability, true);
        self.0.logged(action, |inner| {
            inner.write_atomic_at(offset, buf, durability)
        })
    }

    fn flush(&self) -> Result<()> {
        self.0.logged(Action::Flush, |inner| inner.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let action = Action::Discard { offset, len };
        self.0.logged(action, |inner| inner.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let action = Action::WriteZeroes { offset, len };
        self.0
            .logged(action, |inner| inner.write_zeroes(offset, len))
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        let inner = self.0.inner.open_queue(options)?;
        Ok(Box::new(queue::RecordQueue::new(self.0.clone(), inner)))
    }

    fn describe(&self) -> String {
        format!("record({})", self.0.inner.describe())
    }
}
