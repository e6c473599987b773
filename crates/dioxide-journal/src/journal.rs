//! The live journal: handles, group commit, checkpoint, abort.
//!
//! A [`Handle`] is one caller's part of the running transaction. A commit closes that transaction,
//! writes it to the log and makes it durable, while the next one already takes changes. A checkpoint
//! writes what was committed to where it belongs and frees its part of the log.
//!
//! It is not recovery: a [`Journal`] is opened on a log that holds nothing. It knows no inodes and waits
//! for no data: what a transaction leads to has been written before its handle begins, and a flush of
//! each commit covers it (data=ordered).
//!
//! Without a log ([`Journal::none`]) a commit flushes, and writes its blocks home; but a crash in the
//! middle leaves some of the blocks, as on any file system without a journal.
//!
//! # Who commits
//! Whoever waits: the first waiter becomes the committer, the others wait for it, and the next
//! transaction collects what comes meanwhile. So many waiters share one commit, and one waiter
//! alone pays no switch of threads. A thread of its own commits what nobody waits for, after
//! [`JournalOptions::commit_interval`].
//!
//! # Room in the log
//! A transaction has at most a quarter of the log, so that it always fits once all others are
//! checkpointed; the committer does that when it must. So a handle never waits for room
//! itself, only for the transaction before its own.
//!
//! # Locking
//! Order: `log` → `state` → the cache's (see [`crate::buffer`]).
//!
//! | State | Guarded by |
//! |---|---|
//! | position in the log, its superblock, committed versions that are not home yet | `log`, held over device I/O: it serialises commits and checkpoints |
//! | running transaction, phase of the committing one, newest durable tid, which blocks the log holds a copy of | `state`, held briefly, never over I/O or a caller's closure, but for what completes blocks ([`crate::Kind::complete`]) |
//! | who commits | `State::committer` under `state`: the others wait on a condition, not on `log`, so that they are all woken by the commit that they need |
//! | reason of the abort, and who is told of it | written once; set under `state`, read without |
//! | what a commit that nobody waits for has met | `untold`, held by the thread that does it until it is done; otherwise taken by who may wait for a commit |
//!
//! A handle begins and ends at a part of the gate. Of the locks it takes `state` only, to bring the transaction blocks
//! that it does not have yet, to forget one, and when it must wait; what a handle changes becomes the
//! transaction's when it ends. Another handle may have freed such a block meanwhile, since the locks of whoever changed it are gone before its
//! handle is; so freeing counts in the buffer, and a change that is older than that is left out. Readers of cached blocks take neither.
//! Closures for after the commit run with neither held, and before anybody learns that the transaction
//! is durable; they may not start handles or wait for commits.
//!
//! # Rejected
//! jbd2's commit thread for every commit: two switches of threads for each fsync. Reserving log space
//! when a handle starts: it makes handles wait for checkpoints with their callers' locks held.

mod checkpoint;
mod commit;
mod gate;
mod gather;
mod handle;
mod ring;
mod timer;

pub use handle::{Handle, has_open_handle};

use crate::buffer::BufferCache;
use crate::log::LogMap;
use crate::transaction::{Running, State as Phase, Tid};
use crate::{Error, Result};
use dioxide_block::Device;
use dioxide_format::journal::JournalSuperBlock;
use gate::Gate;
use parking_lot::{Condvar, Mutex, MutexGuard};
use ring::Ring;
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// Largest transaction without a log to bound it, in blocks.
const MAX_WITHOUT_LOG: u32 = 4096;

/// How to run a journal.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// A transaction is committed at the latest so long after it began. ext4's `commit=`. Zero: each handle has a transaction of
    /// its own, which is committed before the next handle starts.
    pub commit_interval: Duration,
    /// Flush the device's cache where durability needs it. Without, a power cut may lose or destroy
    /// what was committed.
    pub barrier: bool,
    /// Largest transaction in blocks; at most, and by default, a quarter of the log, if it need not be the only one.
    pub max_transaction: u32,
    /// Use checksums of version 3 in a log that has none. Linux does so if the file system has
    /// `metadata_csum`.
    pub checksum_v3: bool,
    /// Use block numbers of 64 bits. Linux does so if the file system has `64bit`.
    pub wide: bool,
    /// The log is followed by fast commits, whose changes are to be one transaction, the only one: it may have all
    /// of the log. Its superblock has it begin at its first block, with the number that they name, and nothing in it: one that is
    /// written for a failure before the changes are there leaves the fast commits to the next replay. Without, what the log says of fast commits is forgotten: none are written, and a log
    /// with them means something else to `e2fsck`.
    pub replays_fast_commits: bool,
    /// The file system has fast commits. Linux sets the end of the log apart for them when it mounts, after it has found where
    /// the log ends, and goes on there; so the log must never end in those blocks, and they are left alone.
    pub spares_fast_commits: bool,
    /// Commits have the time that is kept there, in nanoseconds since 1970: for tests that write the same each time. Without, the time
    /// that it is.
    pub kept_clock: Option<Arc<AtomicI64>>,
}

impl Default for JournalOptions {
    /// 5 seconds, barriers, and the features that the log has.
    fn default() -> Self {
        JournalOptions {
            commit_interval: Duration::from_secs(5),
            barrier: true,
            max_transaction: u32::MAX,
            checksum_v3: false,
            wide: false,
            replays_fast_commits: false,
            spares_fast_commits: false,
            kept_clock: None,
        }
    }
}

/// A live journal. Dropping it commits nothing and leaves the log as after a crash; see
/// [`Journal::close`].
pub struct Journal {
    core: Arc<Core>,
    timer: timer::Timer,
}

struct Core {
    cache: BufferCache,
    barrier: bool,
    has_log: bool,
    /// Each handle has a transaction of its own.
    commits_each: bool,
    max_transaction: u32,
    log: Mutex<Log>,
    state: Alone<Mutex<State>>,
    /// How handles begin and end.
    gate: Gate,
    /// A new transaction may be started.
    can_start: Condvar,
    /// The last handle of a locked transaction stopped.
    idle: Condvar,
    /// A transaction became durable, or nobody commits any more.
    done: Condvar,
    aborted: OnceLock<String>,
    /// What the thread that commits by itself has met, until somebody is told.
    untold: Mutex<Option<Error>>,
    /// Told of the abort.
    on_abort: Mutex<Option<OnAbort>>,
}

/// On cache lines of its own: what is beside it is read at each change of a block, by all threads.
#[repr(align(128))]
struct Alone<T>(T);

impl<T> Deref for Alone<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Called once, when the journal aborts.
pub type OnAbort = Box<dyn FnOnce() + Send>;

/// What commits and checkpoints work on.
struct Log {
    /// `None`: a file system without a journal.
    ring: Option<Ring>,
    /// The newest committed version of each block that is not written home yet.
    home: HashMap<u64, checkpoint::Pending>,
    /// Pins of a transaction whose commit failed, so that readers go on seeing one state.
    stuck: Vec<crate::transaction::Frozen>,
    /// The superblock says that the journal was aborted.
    is_noted: bool,
}

struct State {
    running: Option<Running>,
    committing: Option<(Tid, Phase)>,
    /// The newest transaction that was begun, and the newest that is durable.
    newest: Tid,
    committed: Tid,
    commits: u64,
    committer: bool,
    /// Blocks of which the log holds a copy, with the last transaction that wrote one.
    logged: HashMap<u64, Tid>,
}

impl State {
    /// Whether a commit could bring `tid` nearer.
    fn is_pending(&self, tid: Tid) -> bool {
        self.committed < tid.min(self.newest)
    }

    fn phase(&self, tid: Tid, gate: &Gate) -> Option<Phase> {
        match (&self.running, self.committing) {
            _ if tid <= self.committed => Some(Phase::Finished),
            (_, Some((committing, phase))) if committing == tid => Some(phase),
            (Some(running), _) if running.tid == tid => Some(match gate.is_closed() {
                true => Phase::Locked,
                false => Phase::Running,
            }),
            _ => None,
        }
    }

    /// The running transaction of an open handle.
    fn of_handle(&mut self, tid: Tid) -> &mut Running {
        let running = self.running.as_mut();
        running
            .filter(|running| running.tid == tid)
            .expect("a transaction with an open handle is not closed")
    }

    /// The next transaction.
    fn begin(&mut self, gate: &Gate) {
        self.newest = Tid(self.newest.0 + 1);
        self.running = Some(Running::new(self.newest));
        gate.open(self.newest.0);
    }
}

impl Journal {
    /// A journal on a log that is empty: clean, or recovered. With [`JournalOptions::replays_fast_commits`] it is one that begins anew.
    ///
    /// `device` holds the log, `map` says where on it. `cache` is of the file system's device, which
    /// is the same one unless the journal is external.
    ///
    /// # Errors
    /// [`Error::Log`] for a log that is not empty or too small; [`Error::Unsupported`] for features
    /// that cannot be written, by name.
    pub fn open(
        device: Arc<dyn Device>,
        map: LogMap,
        superblock: JournalSuperBlock,
        cache: BufferCache,
        options: &JournalOptions,
    ) -> Result<Journal> {
        let ring = Ring::open(device, map, superblock, &cache, options)?;
        let most = match options.replays_fast_commits {
            true => ring.most_at_once(),
            false => ring.usable() / 4,
        };
        let max = options.max_transaction.min(most);
        Journal::new(cache, Some(ring), max, options)
    }

    /// Whether a log can be written, by its superblock: what [`Journal::open`] finds out too late for who
    /// opens read-write.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn judge(superblock: &JournalSuperBlock) -> Result<()> {
        ring::judge(superblock)
    }

    /// For a file system without a journal: [`Journal::flush`] and every commit write changed blocks
    /// home, after a flush, and not atomically.
    ///
    /// # Errors
    /// [`Error::NoThread`].
    pub fn none(cache: BufferCache, options: &JournalOptions) -> Result<Journal> {
        let max = options.max_transaction.min(MAX_WITHOUT_LOG);
        Journal::new(cache, None, max, options)
    }

    fn new(
        cache: BufferCache,
        ring: Option<Ring>,
        max_transaction: u32,
        options: &JournalOptions,
    ) -> Result<Journal> {
        let core = Arc::new(Core {
            cache,
            barrier: options.barrier,
            has_log: ring.is_some(),
            commits_each: options.commit_interval.is_zero(),
            max_transaction,
            log: Mutex::new(Log {
                ring,
                home: HashMap::new(),
                stuck: Vec::new(),
                is_noted: false,
            }),
            state: Alone(Mutex::new(State {
                running: None,
                committing: None,
                newest: Tid(0),
                committed: Tid(0),
                commits: 0,
                committer: false,
                logged: HashMap::new(),
            })),
            gate: Gate::new(max_transaction),
            can_start: Condvar::new(),
            idle: Condvar::new(),
            done: Condvar::new(),
            aborted: OnceLock::new(),
            untold: Mutex::new(None),
            on_abort: Mutex::new(None),
        });
        let timer = timer::Timer::start(core.clone(), options.commit_interval)?;
        Ok(Journal { core, timer })
    }

    /// Begins a part of the running transaction that changes at most `credits` different blocks.
    ///
    /// Blocks while the running transaction is full or being closed; it is then committed first. A
    /// thread has at most one handle: a second one could wait for the first for ever.
    ///
    /// # Errors
    /// [`Error::Aborted`]; [`Error::HandleTooLarge`].
    pub fn start(&self, credits: u32) -> Result<Handle<'_>> {
        Handle::start(self, credits)
    }

    /// Makes everything durable that handles stopped so far have changed. Blocks.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn force_commit(&self) -> Result<()> {
        let newest = self.core.state.lock().newest;
        self.wait_commit(newest)
    }

    /// Waits until a transaction is durable, committing it if nobody does.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn wait_commit(&self, tid: Tid) -> Result<()> {
        self.commit_if_needed(tid).map(drop)
    }

    /// As [`Journal::wait_commit`]. Whether a flush that was issued after this call began has
    /// completed: if not (the transaction was durable before, or its flush was on its way), a caller
    /// that needs its data durable flushes the device itself.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn commit_if_needed(&self, tid: Tid) -> Result<bool> {
        self.core.commit_to(tid).map_err(|error| match error {
            Error::Aborted(_) => self.take_untold().unwrap_or(error),
            error => error,
        })
    }

    /// Commits everything and writes it home; the log is empty and says so, unless handles were
    /// started meanwhile. Blocks.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn flush(&self) -> Result<()> {
        self.force_commit()?;
        self.core.checkpoint_all()
    }

    /// [`Journal::flush`], and the end of the journal.
    ///
    /// # Errors
    /// [`Error::Aborted`]: the log is then as after a crash.
    pub fn close(self) -> Result<()> {
        self.flush()
    }

    /// Stops the journal for good, as after a failed write: every later change and commit fails with
    /// this reason, if it is the first.
    pub fn abort(&self, reason: &str) {
        self.core.abort(reason.into());
    }

    /// Runs `write` while nobody commits, checkpoints, or writes any block to its place: for who has to write beside a
    /// journal that was aborted.
    pub fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        let nobody_writes = self.core.log.lock();
        let written = write();
        drop(nobody_writes);
        self.core.note_abort();
        written
    }

    /// Has `then` called when the journal aborts, by whoever finds the reason: perhaps the thread that
    /// commits what nobody waits for, perhaps with locks of the journal held. It must not wait, nor use
    /// the journal.
    pub fn on_abort(&self, then: OnAbort) {
        *self.core.on_abort.lock() = Some(then);
    }

    /// Why the journal was aborted, if it was.
    pub fn aborted(&self) -> Option<&str> {
        self.core.aborted.get().map(String::as_str)
    }

    /// The error of a commit that nobody waited for, and of one under way when it is known. It is told once.
    pub fn take_untold(&self) -> Option<Error> {
        self.core.untold.lock().take()
    }

    /// How far a transaction is; `None` for one that never began.
    pub fn state(&self, tid: Tid) -> Option<Phase> {
        self.core.state.lock().phase(tid, &self.core.gate)
    }

    /// The newest transaction that was begun; 0 if there is none.
    pub fn newest(&self) -> Tid {
        Tid(self.core.gate.newest())
    }

    /// How many transactions this journal has made durable.
    pub fn commits(&self) -> u64 {
        self.core.state.lock().commits
    }

    /// The newest transaction that is durable; 0 if there is none.
    pub fn committed(&self) -> Tid {
        self.core.state.lock().committed
    }

    /// The cache that it protects.
    pub fn cache(&self) -> &BufferCache {
        &self.core.cache
    }

    /// Largest number of credits of a handle.
    pub fn max_credits(&self) -> u32 {
        self.core.max_transaction
    }
}

impl Core {
    fn check_aborted(&self) -> Result<()> {
        match self.aborted.get() {
            None => Ok(()),
            Some(reason) => Err(Error::Aborted(reason.clone())),
        }
    }

    /// Latches the abort and wakes everybody who waits.
    fn latch(&self, reason: String) {
        let _waiters_see_it = self.state.lock();
        if self.aborted.set(reason).is_ok() {
            tracing::error!("journal aborted: {}", self.aborted.get().expect("just set"));
            if let Some(then) = self.on_abort.lock().take() {
                then();
            }
        }
        self.can_start.notify_all();
        self.idle.notify_all();
        self.done.notify_all();
    }

    /// Latches, and notes it in the log's superblock, or leaves that to who has the log.
    fn abort(&self, reason: String) {
        self.latch(reason);
        self.note_abort();
    }

    /// Has the log's superblock say that the journal was aborted, if it was. Whoever gives the log back asks, since
    /// somebody may have aborted meanwhile, who does not wait for the log.
    fn note_abort(&self) {
        if self.aborted.get().is_some()
            && let Some(mut log) = self.log.try_lock()
        {
            log.note_failure();
        }
    }

    /// [`Core::abort`] by somebody who has the log. The error goes to this caller, all others hear of
    /// the abort.
    fn fail(&self, log: &mut Log, error: Error) -> Error {
        self.latch(error.to_string());
        log.note_failure();
        error
    }

    fn wait_start(&self, state: &mut MutexGuard<'_, State>) {
        self.can_start.wait(state);
    }
}

impl Log {
    /// Best effort: the journal is lost for writing in any case.
    fn note_failure(&mut self) {
        let (Some(ring), false) = (&mut self.ring, self.is_noted) else {
            return;
        };
        match catch_unwind(AssertUnwindSafe(|| ring.note_failure())) {
            Ok(noted) => self.is_noted = noted.is_ok(),
            // It may be lost by a panic of the device. A second one of this thread would end the process.
            Err(panic) if !thread::panicking() => resume_unwind(panic),
            Err(_) => {}
        }
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("cache", &self.core.cache)
            .field("committed", &self.committed())
            .field("aborted", &self.aborted())
            .finish()
    }
}
