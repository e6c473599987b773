//! Damage that a mount meets: what `errors=` has it do, and what the superblock is told.
//!
//! Every public call hands its result through [`Mount::call`] or [`Mount::judged`], so damage takes effect wherever in the
//! engine it was met, and where nothing is locked and no transaction is open. What fails no call (a group that an
//! allocator passes over) is noted by who meets it, and takes effect at the next change.
//!
//! Not for: failures of the device and of the journal ([`Mount::fail`] alone).
//!
//! Rejected: acting where an error is made. There are a hundred such places; most do not know the mount, and many hold locks
//! under which nothing can be written.

use super::superblock;
use crate::io::clock::Clock;
use crate::mount::Mount;
use crate::{Error, Place, Result};
use dioxide_format::superblock::{ErrorPolicy, STATE_ERROR, SuperBlock, SuperBlockDisk};
use dioxide_format::types::Ino;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// Linux's numbers in `s_first_error_errcode` and `s_last_error_errcode`.
const ERR_EIO: u8 = 2;
const ERR_EFSBADCRC: u8 = 4;
const ERR_EFSCORRUPTED: u8 = 5;

/// One error, as the superblock has it.
#[derive(Clone, Debug)]
struct Incident {
    secs: i64,
    place: Place,
    /// Stands where Linux names a function: we tell the structure.
    structure: &'static str,
    errcode: u8,
}

#[derive(Debug, Default)]
struct Unrecorded {
    count: u32,
    first_and_last: Option<(Incident, Incident)>,
}

/// What was found damaged.
#[derive(Debug)]
pub(crate) struct Damage {
    clock: Clock,
    /// What the superblock does not say yet. A leaf among the locks.
    unrecorded: Mutex<Unrecorded>,
    /// The first that failed no call, if any.
    passed_over: OnceLock<String>,
    /// For [`crate::Fs::damage`]. A leaf too.
    met: Mutex<DamageMet>,
}

/// Damage that was met since a file system was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct DamageMet {
    /// How many times.
    pub count: u64,
    /// What failed a call, the first times.
    pub failed: Vec<String>,
    /// What was passed over and failed none, as groups whose bitmaps cannot be used; the first times.
    pub passed_over: Vec<String>,
}

/// So many are kept in words.
const WORDS_KEPT: usize = 16;

impl Damage {
    pub(crate) fn new(clock: Clock) -> Damage {
        Damage {
            clock,
            unrecorded: Mutex::default(),
            passed_over: OnceLock::new(),
            met: Mutex::default(),
        }
    }

    fn count(&self, error: &Error, list: fn(&mut DamageMet) -> &mut Vec<String>) {
        let mut met = self.met.lock();
        met.count += 1;
        let words = list(&mut met);
        if words.len() < WORDS_KEPT {
            words.push(error.to_string());
        }
    }

    pub(crate) fn met(&self) -> DamageMet {
        self.met.lock().clone()
    }

    /// Notes an error, if it tells of damage.
    pub(super) fn note(&self, error: &Error) {
        let (structure, place, errcode) = match error {
            Error::Corrupt {
                structure, place, ..
            } => (*structure, *place, ERR_EFSCORRUPTED),
            Error::Checksum {
                structure, place, ..
            } => (*structure, *place, ERR_EFSBADCRC),
            _ => return,
        };
        let secs = self.clock.now_ns() / 1_000_000_000;
        let incident = Incident {
            secs,
            place,
            structure,
            errcode,
        };
        let mut unrecorded = self.unrecorded.lock();
        unrecorded.count = unrecorded.count.saturating_add(1);
        unrecorded.first_and_last = Some(match unrecorded.first_and_last.take() {
            Some((first, _)) => (first, incident),
            None => (incident.clone(), incident),
        });
    }

    /// Notes what fails no call.
    pub(crate) fn pass_over(&self, error: &Error) {
        tracing::warn!("passed over: {error}");
        self.count(error, |met| &mut met.passed_over);
        self.note(error);
        self.passed_over.get_or_init(|| error.to_string());
    }

    fn is_recorded(&self) -> bool {
        self.unrecorded.lock().count == 0
    }

    /// Hands on what the superblock does not say yet.
    pub(crate) fn record_in(&self, sb: &mut SuperBlock) {
        let unrecorded = std::mem::take(&mut *self.unrecorded.lock());
        if let Some((first, last)) = &unrecorded.first_and_last {
            record(sb.disk_mut(), unrecorded.count, first, last);
        }
    }
}

fn record(disk: &mut SuperBlockDisk, count: u32, first: &Incident, last: &Incident) {
    disk.s_state |= STATE_ERROR;
    disk.s_error_count = disk.s_error_count.saturating_add(count);
    if disk.s_first_error_time == 0 && disk.s_first_error_time_hi == 0 {
        (disk.s_first_error_time, disk.s_first_error_time_hi) = superblock::split(first.secs);
        disk.s_first_error_ino = first.place.ino.map_or(0, |ino| ino.0);
        disk.s_first_error_block = first.place.block.unwrap_or(0);
        disk.s_first_error_func = function(first.structure);
        disk.s_first_error_line = 0;
        disk.s_first_error_errcode = first.errcode;
    }
    (disk.s_last_error_time, disk.s_last_error_time_hi) = superblock::split(last.secs);
    disk.s_last_error_ino = last.place.ino.map_or(0, |ino| ino.0);
    disk.s_last_error_block = last.place.block.unwrap_or(0);
    disk.s_last_error_func = function(last.structure);
    disk.s_last_error_line = 0;
    disk.s_last_error_errcode = last.errcode;
}

fn function(name: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    let len = name.len().min(bytes.len());
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    bytes
}

/// What a superblock says of errors: how many, and where the last was.
pub(crate) fn told(disk: &SuperBlockDisk) -> String {
    let count = disk.s_error_count;
    if count == 0 {
        return "none recorded".into();
    }
    let func = &disk.s_last_error_func;
    let end = func
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(func.len());
    let place = Place {
        ino: (disk.s_last_error_ino != 0).then_some(Ino(disk.s_last_error_ino)),
        block: (disk.s_last_error_block != 0).then_some(disk.s_last_error_block),
        ..Place::default()
    };
    let func = func[..end].escape_ascii();
    let last = match (end == 0, place == Place::default()) {
        (true, true) => String::new(),
        (true, false) => format!(", the last at {place}"),
        (false, true) => format!(", the last: {func}"),
        (false, false) => format!(", the last: {func} at {place}"),
    };
    format!("{count} recorded{last}")
}

/// Records that a journal was aborted by who could not say more.
pub(crate) fn record_abort(disk: &mut SuperBlockDisk, now_ns: i64) {
    let incident = Incident {
        secs: now_ns / 1_000_000_000,
        place: Place::default(),
        structure: "journal",
        errcode: ERR_EIO,
    };
    record(disk, 1, &incident, &incident);
}

/// Takes over what an older superblock says of errors: a journal's copy may be from before it, for what is found once
/// nothing can be journalled any more is written to its place at once. As in Linux.
pub(crate) fn keep_recorded(disk: &mut SuperBlockDisk, before: &SuperBlockDisk) {
    disk.s_state |= before.s_state & STATE_ERROR;
    if before.s_error_count <= disk.s_error_count {
        return;
    }
    disk.s_error_count = before.s_error_count;
    disk.s_first_error_time = before.s_first_error_time;
    disk.s_first_error_time_hi = before.s_first_error_time_hi;
    disk.s_first_error_ino = before.s_first_error_ino;
    disk.s_first_error_block = before.s_first_error_block;
    disk.s_first_error_func = before.s_first_error_func;
    disk.s_first_error_line = before.s_first_error_line;
    disk.s_first_error_errcode = before.s_first_error_errcode;
    disk.s_last_error_time = before.s_last_error_time;
    disk.s_last_error_time_hi = before.s_last_error_time_hi;
    disk.s_last_error_ino = before.s_last_error_ino;
    disk.s_last_error_block = before.s_last_error_block;
    disk.s_last_error_func = before.s_last_error_func;
    disk.s_last_error_line = before.s_last_error_line;
    disk.s_last_error_errcode = before.s_last_error_errcode;
}

impl Mount {
    /// Runs a public call. Nothing is locked here.
    #[inline]
    pub(crate) fn call<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check_running()?;
        self.judged(run())
    }

    /// # Errors
    /// [`Error::Stopped`] once damage was found, with `errors=panic`.
    #[inline]
    pub(crate) fn check_running(&self) -> Result<()> {
        match self.stopped.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(self.why_stopped()),
        }
    }

    #[cold]
    fn why_stopped(&self) -> Error {
        Error::Stopped(self.failed.get().cloned().unwrap_or_default())
    }

    /// Passes a result on; if it says that metadata is damaged, does what `errors=` says. Nothing is locked here,
    /// and each error comes by once.
    #[inline]
    pub(crate) fn judged<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Err(error) if error.is_damage() => Err(self.met(error)),
            result => result,
        }
    }

    #[cold]
    fn met(&self, error: Error) -> Error {
        self.damage.count(&error, |met| &mut met.failed);
        // Opened so, nothing is written; turned so, it was for an error that is recorded.
        if self.why_read_only().is_some() {
            return error;
        }
        if self.errors != ErrorPolicy::Continue {
            return self.fail(error);
        }
        tracing::error!("{error}");
        self.damage.note(&error);
        if let Err(failed) = self.record() {
            tracing::warn!("it is not recorded in the superblock: {failed}");
        }
        error
    }

    /// Has damage that failed no call take effect: no transaction of this thread's is open.
    pub(crate) fn heed_passed_over(&self) {
        if let Some(what) = self.damage.passed_over.get()
            && self.errors != ErrorPolicy::Continue
            && self.why_read_only().is_none()
            && self.stop_writing(what.clone())
        {
            self.heed_damage();
        }
    }

    /// Damage is why nothing is written any more. Records it beside the journal, which is aborted.
    pub(super) fn heed_damage(&self) {
        if self.errors == ErrorPolicy::Panic {
            self.stopped.store(true, Ordering::Relaxed);
            self.knobs.refuse_all();
        }
        if self.read_only.is_some() || self.damage.is_recorded() {
            return;
        }
        let rewrite = || superblock::rewrite(self, &mut |sb| self.damage.record_in(sb));
        let _starting = self.starting.lock();
        let recorded = match self.started_writer() {
            Some(writer) => {
                // It may have been made since nothing is to be written.
                writer
                    .journal
                    .abort(self.failed.get().map_or("", String::as_str));
                writer.journal.aside(rewrite)
            }
            None => rewrite(),
        };
        if let Err(failed) = recorded {
            tracing::warn!("damage is not recorded in the superblock: {failed}");
        }
    }

    /// Writes what was found into the superblock: in a transaction, once there are any.
    fn record(&self) -> Result<()> {
        let starting = self.starting.lock();
        let Some(writer) = self.started_writer() else {
            return superblock::rewrite(self, &mut |sb| self.damage.record_in(sb));
        };
        drop(starting);
        let mut handle = writer.begin(1)?;
        superblock::change(self, &mut handle, &mut |sb| self.damage.record_in(sb))?;
        handle.stop()?;
        Ok(())
    }
}
