//! Threads that run jobs. A mount has two pools, because the jobs of one wait for those of the other:
//! requests that would block a queue (as io_uring's io-wq), which may drain direct I/O in flight, and
//! deferred completions (as the kernels' `s_dio_done_wq`), which end it and wait for nothing but the device.
//!
//! Threads start when a job comes and no thread is idle, up to a limit, and end with the mount. Where the system gives not a single
//! one, jobs run in the thread that has them: slower, and nothing is lost.

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::thread;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
pub(crate) struct Workers {
    name: &'static str,
    limit: usize,
    started: AtomicUsize,
    /// Held while one is started.
    starting: Mutex<()>,
    /// Threads that wait for a job, less jobs that wait for a thread.
    spare: Arc<AtomicIsize>,
    jobs: Sender<Job>,
    inbox: Receiver<Job>,
}

impl Workers {
    /// A pool of at most `limit` threads of this name, none of them started.
    pub(crate) fn new(name: &'static str, limit: usize) -> Workers {
        let (jobs, inbox) = unbounded();
        Workers {
            name,
            limit: limit.max(1),
            started: AtomicUsize::new(0),
            starting: Mutex::new(()),
            spare: Arc::new(AtomicIsize::new(0)),
            jobs,
            inbox,
        }
    }

    /// How many jobs run at once at most.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Runs `job` in a worker, as soon as one is free. Jobs start in the order they came.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        // One job takes one thread: what a job waits for may be another one, which must not lie behind it.
        let has_one = self.spare.fetch_sub(1, Ordering::Relaxed) > 0;
        let served = has_one || self.start_one();
        self.jobs
            .send(Box::new(job))
            .expect("the pool holds a receiver");
        if !served && let Ok(job) = self.inbox.try_recv() {
            self.spare.fetch_add(1, Ordering::Relaxed);
            job();
        }
    }

    /// Starts a thread, if there may be one more. Whether there is any.
    fn start_one(&self) -> bool {
        if self.started.load(Ordering::Relaxed) == self.limit {
            return true;
        }
        // One at a time: a thread that another is about to fail to start is none.
        let _starting = self.starting.lock();
        let started = self.started.load(Ordering::Relaxed);
        if started == self.limit {
            return true;
        }
        let (inbox, spare) = (self.inbox.clone(), self.spare.clone());
        let spawned = thread::Builder::new()
            .name(self.name.into())
            .spawn(move || work(&inbox, &spare));
        if spawned.is_ok() {
            self.started.store(started + 1, Ordering::Relaxed);
        }
        // With one thread at work every job still gets its turn.
        spawned.is_ok() || started > 0
    }
}

fn work(inbox: &Receiver<Job>, spare: &AtomicIsize) {
    dioxide_block::roam();
    loop {
        spare.fetch_add(1, Ordering::Relaxed);
        match inbox.recv() {
            // A panic was told of by its hook, and by what the job drops. The thread is for the next one.
            Ok(job) => drop(catch_unwind(AssertUnwindSafe(job))),
            // The mount is gone.
            Err(_) => return,
        }
    }
}

/// Runs what a destructor has to do, while a panic unwinds in a thread of its own: a second panic of this one would end the process, and
/// a change or a commit that began in the first would not abort the journal. Where the system gives no thread it is run here.
///
/// # Errors
/// What it panicked with in a thread of its own.
pub(crate) fn apart<T: Send>(work: impl Fn() -> T + Sync) -> thread::Result<T> {
    if !thread::panicking() {
        return Ok(work());
    }
    thread::scope(|scope| {
        let its_own = thread::Builder::new().name("dioxide-drop".into());
        match its_own.spawn_scoped(scope, &work) {
            Ok(thread) => thread.join(),
            Err(_) => Ok(work()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn jobs_more_than_threads_all_run() {
        let workers = Workers::new("test", 2);
        let (done, results) = unbounded();
        for number in 0..100 {
            let done = done.clone();
            workers.run(move || done.send(number).expect("the test still listens"));
        }
        let mut got: Vec<i32> = (0..100)
            .map(|_| {
                results
                    .recv_timeout(Duration::from_secs(10))
                    .expect("a result")
            })
            .collect();
        got.sort_unstable();
        assert_eq!(got, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn job_that_panics_takes_no_thread_with_it() {
        let workers = Workers::new("test", 1);
        let (done, results) = unbounded();
        workers.run(|| panic!("on purpose"));
        workers.run(move || done.send(()).expect("the test still listens"));
        assert!(results.recv_timeout(Duration::from_secs(10)).is_ok());
    }

    /// As of requests that two threads hand over at once, of which one waits for the other.
    #[test]
    fn jobs_that_come_at_once_have_a_thread_each() {
        const LONG: Duration = Duration::from_secs(10);
        for _ in 0..200 {
            let workers = Workers::new("test", 2);
            let (ready, is_ready) = unbounded();
            workers.run(move || ready.send(()).expect("the test still listens"));
            assert!(is_ready.recv_timeout(LONG).is_ok());
            let (here, there) = (unbounded(), unbounded());
            let meet = |send: Sender<()>, receive: Receiver<()>| {
                let (done, result) = unbounded();
                workers.run(move || {
                    let _ = send.send(());
                    let _ = done.send(receive.recv_timeout(LONG).is_ok());
                });
                result
            };
            let start = std::sync::Barrier::new(2);
            let results = thread::scope(|scope| {
                let other = scope.spawn(|| {
                    start.wait();
                    meet(here.0.clone(), there.1.clone())
                });
                start.wait();
                let own = meet(there.0.clone(), here.1.clone());
                [own, other.join().expect("no panic")]
            });
            for result in results {
                assert_eq!(result.recv_timeout(2 * LONG), Ok(true));
            }
        }
    }

    #[test]
    fn blocked_job_leaves_the_other_threads_working() {
        let workers = Workers::new("test", 2);
        let (release, gate) = unbounded::<()>();
        let (done, results) = unbounded();
        workers.run(move || {
            let _ = gate.recv();
        });
        workers.run(move || done.send(()).expect("the test still listens"));
        assert!(results.recv_timeout(Duration::from_secs(10)).is_ok());
        drop(release);
    }
}
