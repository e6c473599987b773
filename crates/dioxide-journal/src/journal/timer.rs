//! The thread that commits what nobody waits for.
//!
//! It looks four times per interval whether a transaction has begun, and then sleeps until that is
//! due: nobody has to wake it when a transaction begins.

use super::Core;
use crate::transaction::Tid;
use crate::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub(super) struct Timer {
    asked: Arc<Asked>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Asked {
    what: Mutex<What>,
    changed: Condvar,
}

#[derive(Default)]
struct What {
    commit: Option<Tid>,
    stop: bool,
}

impl Timer {
    pub(super) fn start(core: Arc<Core>, interval: Duration) -> Result<Timer> {
        // The last change has nobody behind it who commits it.
        const AFTER_THE_LAST: Duration = Duration::from_secs(5);
        let interval = match interval.is_zero() {
            true => AFTER_THE_LAST,
            false => interval,
        };
        let asked = Arc::<Asked>::default();
        let theirs = asked.clone();
        let thread = thread::Builder::new()
            .name("dioxide-commit".into())
            .spawn(move || run(&core, &theirs, interval))
            .map_err(Error::NoThread)?;
        Ok(Timer {
            asked,
            thread: Some(thread),
        })
    }

    /// Has a transaction committed soon.
    pub(super) fn request(&self, tid: Tid) {
        let mut what = self.asked.what.lock();
        what.commit = what.commit.max(Some(tid));
        self.asked.changed.notify_one();
    }
}

fn run(core: &Core, asked: &Asked, interval: Duration) {
    dioxide_block::roam();
    let mut pause = Duration::ZERO;
    loop {
        let mut what = asked.what.lock();
        if what.commit.is_none() && !what.stop {
            asked.changed.wait_for(&mut what, pause);
        }
        if what.stop {
            return;
        }
        let request = what.commit.take();
        drop(what);
        let due = request.max(core.overdue(interval));
        if let Some(tid) = due {
            // Held until it is known: who finds the journal aborted meanwhile waits to be told why.
            let mut untold = core.untold.lock();
            if let Err(error) = core.commit_to(tid) {
                if !matches!(error, Error::Aborted(_)) {
                    *untold = Some(error);
                }
                return;
            }
        }
        pause = core.until_due(interval);
    }
}

impl Core {
    /// The running transaction, if it is as old as that.
    fn overdue(&self, interval: Duration) -> Option<Tid> {
        let state = self.state.lock();
        let running = state.running.as_ref()?;
        (running.started.elapsed() >= interval).then_some(running.tid)
    }

    fn until_due(&self, interval: Duration) -> Duration {
        match &self.state.lock().running {
            None => interval / 4,
            Some(running) => interval.saturating_sub(running.started.elapsed()),
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.asked.what.lock().stop = true;
        self.asked.changed.notify_one();
        // Who is the last to leave the mount may be that thread itself.
        let others = |thread: &JoinHandle<()>| thread.thread().id() != thread::current().id();
        if let Some(thread) = self.thread.take().filter(others) {
            // A panic there has aborted the journal.
            let _ = thread.join();
        }
    }
}
