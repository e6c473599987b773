//! Commit: from the running transaction to a durable one.

use super::checkpoint::Pending;
use super::gather::Gather;
use super::{Core, Log, State};
use crate::Result;
use crate::transaction::{Closed, Frozen, State as Phase, Tid};

impl Core {
    /// Waits until `tid` is durable, committing when nobody else does. Whether a flush came after the
    /// call.
    pub(super) fn commit_to(&self, tid: Tid) -> Result<bool> {
        self.check_aborted()?;
        let mut state = self.state.lock();
        let flush_to_come =
            state.phase(tid, &self.gate) < Some(Phase::Commit) && state.is_pending(tid);
        while state.is_pending(tid) {
            self.check_aborted()?;
            if state.committer {
                self.done.wait(&mut state);
                continue;
            }
            state.committer = true;
            drop(state);
            let turn = Turn::new(self);
            self.commit_running()?;
            drop(turn);
            state = self.state.lock();
        }
        Ok(flush_to_come)
    }

    /// Commits the running transaction, if there is one. The caller is the committer.
    fn commit_running(&self) -> Result<()> {
        let result = self.commit_closed();
        self.note_abort();
        result
    }

    fn commit_closed(&self) -> Result<()> {
        let mut log = self.log.lock();
        let Some(mut closed) = self.close_running()? else {
            return Ok(());
        };
        let (tid, on_commit) = (closed.tid, std::mem::take(&mut closed.on_commit));
        let mut under_way = UnderWay {
            log: &mut log,
            closed,
        };
        let UnderWay { log: of, closed } = &mut under_way;
        let written = self.write(of, closed);
        if written.is_ok() {
            self.retire(of, closed);
        }
        drop(under_way);
        written.map_err(|error| self.fail(&mut log, error))?;
        drop(log);
        on_commit.into_iter().for_each(|then| then());
        let mut state = self.state.lock();
        state.committed = tid;
        state.commits += 1;
        state.committing = None;
        Ok(())
    }

    /// Waits for the running transaction's handles, takes it out, and lets the next one begin.
    fn close_running(&self) -> Result<Option<Closed>> {
        let mut state = self.state.lock();
        loop {
            self.check_aborted()?;
            if state.running.is_none() {
                return Ok(None);
            }
            if self.gate.close() {
                break;
            }
            self.idle.wait(&mut state);
        }
        let closed = state.running.take().map(|running| running.close());
        if let Some(closed) = &closed {
            self.gate.give_back(closed.blocks.len() as u64);
            state.committing = Some((closed.tid, Phase::Flush));
            state.note_logged(closed, self.has_log);
        }
        self.can_start.notify_all();
        Ok(closed)
    }

    fn write(&self, log: &mut Log, closed: &mut Closed) -> Result<()> {
        closed.verify()?;
        if closed.is_empty() {
            self.enter_commit(closed.tid);
            return self.flush_home();
        }
        if log.ring.is_none() {
            if !closed.blocks.is_empty() {
                // Data that was written before: these blocks lead to it as soon as they are there.
                self.flush_home()?;
            }
            self.write_home(&closed.blocks)?;
            self.enter_commit(closed.tid);
            return self.flush_home();
        }
        self.make_room(log, closed)?;
        let ring = log.ring.as_mut().expect("checked above");
        ring.write_body(closed)?;
        self.enter_commit(closed.tid);
        if ring.is_external(&self.cache) {
            self.flush_home()?;
        }
        ring.write_commit(closed)
    }

    /// From here on a flush is on its way.
    fn enter_commit(&self, tid: Tid) {
        self.state.lock().committing = Some((tid, Phase::Commit));
    }

    /// Takes a durable transaction's blocks over for the checkpoint, and drops those it freed.
    fn retire(&self, log: &mut Log, closed: &mut Closed) {
        for block in &closed.forgotten {
            log.home.remove(block);
        }
        let blocks = std::mem::take(&mut closed.blocks);
        if log.ring.is_some() {
            let pending = |frozen: Frozen| (frozen.block, Pending::new(frozen, closed.tid));
            log.home.extend(blocks.into_iter().map(pending));
        }
        for &block in &closed.forgotten {
            self.cache.remove(block.into());
        }
    }

    /// Writes blocks to where they belong on the file system's device. They ascend.
    pub(super) fn write_home(&self, blocks: &[Frozen]) -> Result<()> {
        let device = &**self.cache.device();
        let mut out = Gather::new(device, self.cache.block_bytes(), blocks.len());
        for frozen in blocks {
            out.push(frozen.block, &frozen.bytes)?;
        }
        out.finish()
    }

    pub(super) fn flush_home(&self) -> Result<()> {
        if self.barrier {
            self.cache.device().flush()?;
        }
        Ok(())
    }
}

impl State {
    fn note_logged(&mut self, closed: &Closed, has_log: bool) {
        if has_log {
            let logged = closed.blocks.iter().map(|b| (b.block, closed.tid));
            self.logged.extend(logged);
        }
    }
}

/// A transaction on its way. Unless it is durable when this ends, also by a panic of the device, its blocks stay pinned.
struct UnderWay<'a> {
    log: &'a mut Log,
    closed: Closed,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.log.stuck.append(&mut self.closed.blocks);
    }
}

/// Being the committer. Ends with it, also by a panic, which aborts the journal.
struct Turn<'a> {
    core: &'a Core,
    /// Of the caller's, which is no concern of ours: it drops its files now.
    in_a_panic: bool,
}

impl<'a> Turn<'a> {
    fn new(core: &'a Core) -> Turn<'a> {
        let in_a_panic = std::thread::panicking();
        Turn { core, in_a_panic }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let core = self.core;
        if !self.in_a_panic && std::thread::panicking() {
            core.abort("a panic interrupted a commit".into());
        }
        core.state.lock().committer = false;
        core.done.notify_all();
    }
}
