//! One caller's part of a transaction.

use super::{Core, Journal};
use crate::buffer::{Buffer, Freed};
use crate::transaction::{OnCommit, Tid};
use crate::{Asked, Edit, Error, Kind, Result};
use dioxide_format::types::Pblk;
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One caller's part of the running transaction: what it changes becomes durable together. The
/// transaction cannot be closed before the handle ends, so handles are short and wait for no commit.
///
/// Dropping it is [`Handle::stop`] without waiting. A handle that is dropped by a panic leaves a
/// change that was not finished, and so aborts the journal.
pub struct Handle<'j> {
    journal: &'j Journal,
    tid: Tid,
    /// Of the journal's gate, by which it came in.
    part: usize,
    credits: u32,
    /// The different blocks that it has changed, by their numbers. They become the transaction's when it ends. Most handles
    /// change few, and need no memory for that.
    changed: SmallVec<[(u64, Changed); 6]>,
    /// What it has read last: likely to be changed next, and then need not be looked for again.
    last: Cell<Option<Arc<Buffer>>>,
    sync: bool,
    /// Part of the transaction. Not between the two halves of a restart, and not after `stop`.
    open: bool,
    /// It began in a panic of the caller's, who drops his files, say. Then that is not what ends it.
    in_a_panic: bool,
}

#[cfg(debug_assertions)]
thread_local! {
    /// Handles of this thread that are part of a transaction.
    static OPEN: Cell<u32> = const { Cell::new(0) };
}

thread_local! {
    /// By which part of a gate this thread's handles come in.
    static PART: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed)
    };
}

/// The thread's own, as long as it has anything of its own.
fn own_part() -> usize {
    PART.try_with(|part| *part).unwrap_or(0)
}

/// Whether the calling thread has a handle, and so must not wait for who may wait for a commit. Never in release builds.
pub fn has_open_handle() -> bool {
    #[cfg(debug_assertions)]
    let has = OPEN.try_with(|open| open.get() > 0).unwrap_or(false);
    #[cfg(not(debug_assertions))]
    let has = false;
    has
}

#[inline(always)]
fn count_open(_change: u32) {
    #[cfg(debug_assertions)]
    let _ = OPEN.try_with(|open| open.set(open.get().wrapping_add(_change)));
}

/// A block that a handle has changed; its buffer, unless the handle forgot it.
struct Changed(Option<(Arc<Buffer>, Freed)>);

impl<'j> Handle<'j> {
    pub(super) fn start(journal: &'j Journal, credits: u32) -> Result<Handle<'j>> {
        if journal.core.commits_each {
            journal.force_commit()?;
        }
        let part = own_part();
        Ok(Handle {
            journal,
            tid: join(journal, part, credits).inspect(|_| count_open(1))?,
            part,
            credits,
            changed: SmallVec::new(),
            last: Cell::new(None),
            sync: false,
            open: true,
            in_a_panic: std::thread::panicking(),
        })
    }

    /// The transaction it is part of; another one after [`Handle::restart`].
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// How many more different blocks it may change.
    pub fn credits(&self) -> u32 {
        self.credits - self.changed.len() as u32
    }

    /// Asks for more credits without waiting. Whether it got them: if not, finish what must be
    /// atomic and [`Handle::restart`].
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn extend(&mut self, more: u32) -> Result<bool> {
        let core = self.core();
        core.check_aborted()?;
        let state = core.state.lock();
        let fits = core.gate.extend(self.part, more);
        drop(state);
        if fits {
            self.credits += more;
        }
        Ok(fits)
    }

    /// Ends this part and begins another, perhaps in the next transaction: what was changed until now
    /// may become durable without what comes. Blocks as [`Journal::start`] does.
    ///
    /// # Errors
    /// As [`Journal::start`]. The handle can then only be dropped.
    pub fn restart(&mut self, credits: u32) -> Result<()> {
        self.leave();
        self.credits = 0;
        self.tid = join(self.journal, self.part, credits)?;
        self.credits = credits;
        self.open = true;
        count_open(1);
        Ok(())
    }

    /// [`Handle::stop`] is to return only when the changes are durable.
    pub fn mark_sync(&mut self) {
        self.sync = true;
    }

    /// Has `then` run once this transaction is durable, and before anybody learns that it is: blocks
    /// that were freed can be allocated from there on. It does not run if the commit fails. It must
    /// not start a handle or wait for a commit.
    pub fn on_commit(&mut self, then: OnCommit) {
        let mut state = self.core().state.lock();
        state.of_handle(self.tid).on_commit.push(then);
    }

    /// Ends it. Returns the transaction, to wait for; blocks until that is durable after
    /// [`Handle::mark_sync`].
    ///
    /// # Errors
    /// [`Error::Aborted`]: the changes will never be durable.
    pub fn stop(mut self) -> Result<Tid> {
        self.leave();
        match self.sync {
            true => self.journal.wait_commit(self.tid)?,
            false => self.core().check_aborted()?,
        }
        Ok(self.tid)
    }

    fn core(&self) -> &'j Core {
        &self.journal.core
    }

    fn leave(&mut self) {
        if !std::mem::replace(&mut self.open, false) {
            return;
        }
        count_open(u32::MAX);
        let core = self.core();
        // A block that was freed leaves the cache with the commit, which comes at the earliest now.
        self.last.set(None);
        let mut changed = std::mem::take(&mut self.changed);
        // Most blocks are part of it already: then there is nothing to do under the state's lock, which all handles share.
        changed.retain(|(_, Changed(buffer))| {
            buffer
                .as_ref()
                .is_some_and(|(buffer, _)| !buffer.is_in(self.tid))
        });
        let mut brought = 0;
        if !changed.is_empty() {
            let mut state = core.state.lock();
            let running = state.of_handle(self.tid);
            for (block, Changed(buffer)) in changed {
                // What another handle has freed since is no part of the transaction any more.
                if let Some((buffer, freed)) = buffer
                    && buffer.freed() == freed
                {
                    brought += u32::from(running.add(block, buffer));
                }
            }
        }
        if core.gate.leave(self.part, self.credits - brought) {
            let _waiter_sees_it = core.state.lock();
            core.idle.notify_all();
        }
    }

    /// Where a block is among those that it has changed, or would be.
    fn place(&self, block: Pblk) -> std::result::Result<usize, usize> {
        self.changed
            .binary_search_by_key(&block.0, |(number, _)| *number)
    }

    /// Whether it may change this block.
    fn check(&self, block: Pblk) -> Result<()> {
        self.core().check_aborted()?;
        match self.credits() > 0 || self.place(block).is_ok() {
            true => Ok(()),
            false => Err(Error::OutOfCredits {
                credits: self.credits,
            }),
        }
    }

    /// The buffer of a block to be changed.
    fn pin(&self, block: Pblk, kind: &dyn Kind) -> Result<Arc<Buffer>> {
        match self.last.take() {
            Some(buffer) if buffer.is_pinned(block, kind)? => Ok(buffer),
            _ => self.core().cache.pin(block, kind),
        }
    }

    fn add(&mut self, block: Pblk, buffer: Arc<Buffer>) {
        let freed = buffer.freed();
        let changed = Changed(Some((buffer, freed)));
        match self.place(block) {
            Ok(at) => self.changed[at].1 = changed,
            Err(at) => self.changed.insert(at, (block.0, changed)),
        }
    }
}

/// Makes a handle part of the running transaction, as soon as that takes it.
fn join(journal: &Journal, part: usize, credits: u32) -> Result<Tid> {
    let core = &*journal.core;
    let max = core.max_transaction;
    if credits > max {
        return Err(Error::HandleTooLarge { credits, max });
    }
    core.check_aborted()?;
    if let Some(tid) = core.gate.enter(part, credits) {
        return Ok(Tid(tid));
    }
    let mut state = core.state.lock();
    loop {
        core.check_aborted()?;
        if state.running.is_none() {
            state.begin(&core.gate);
        }
        if let Some(tid) = core.gate.enter_by_all(part, credits) {
            return Ok(Tid(tid));
        }
        // It has no room, or is being closed.
        let tid = state.newest;
        if core.has_log {
            if !core.gate.is_closed() {
                journal.timer.request(tid);
            }
            core.wait_start(&mut state);
        } else {
            // Nothing is won by going on meanwhile, and one thread alone does the same each time.
            drop(state);
            core.commit_to(tid)?;
            state = core.state.lock();
        }
    }
}

impl Edit for Handle<'_> {
    fn block_bytes(&self) -> usize {
        self.core().cache.block_bytes()
    }

    fn read(&self, block: Pblk, kind: &dyn Kind) -> Result<Arc<[u8]>> {
        let (buffer, bytes) = self.core().cache.get(block, kind)?;
        self.last.set(Some(buffer));
        Ok(bytes)
    }

    fn modify(
        &mut self,
        block: Pblk,
        kind: &dyn Kind,
        change: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.check(block)?;
        let buffer = self.pin(block, kind)?;
        buffer.change(kind, change)?;
        self.add(block, buffer);
        Ok(())
    }

    fn change_at_close(&mut self, block: Pblk, kind: &dyn Kind, asked: &mut Asked) -> Result<()> {
        // Who asked first may be open still. The transaction closes after it has ended.
        if asked.0 == self.tid {
            return self.core().check_aborted();
        }
        self.check(block)?;
        let buffer = self.pin(block, kind)?;
        buffer.complete_by(kind);
        self.add(block, buffer);
        asked.0 = self.tid;
        Ok(())
    }

    fn create(&mut self, block: Pblk, kind: &dyn Kind, bytes: &[u8]) -> Result<()> {
        assert_eq!(bytes.len(), self.block_bytes(), "a whole block");
        self.check(block)?;
        let buffer = self.core().cache.create(block, kind, bytes);
        self.add(block, buffer);
        Ok(())
    }

    fn forget(&mut self, block: Pblk) -> Result<()> {
        self.core().check_aborted()?;
        if let Ok(at) = self.place(block) {
            self.changed[at].1 = Changed(None);
        }
        let mut state = self.core().state.lock();
        // Handles that changed it and are still open: their change was before this.
        self.core().cache.free(block);
        let in_log = state.logged.contains_key(&block.0);
        if state.of_handle(self.tid).forget(block.0, in_log) {
            self.core().gate.give_back(1);
        }
        Ok(())
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if self.open && !self.in_a_panic && std::thread::panicking() {
            let reason = "a panic interrupted a change of metadata";
            self.journal.abort(reason);
        }
        self.leave();
    }
}
