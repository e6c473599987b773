//! Threads that run jobs. A mount has two pools, because the jobs of one wait for those of the other:
//! requests that would block a queue (as io_uring's io-wq), which may drain direct I/O in flight, and
//! deferred completions (as the kernels' `s_dio_done_wq`), which end it and wait for nothing.
//!
//! Threads start when a job comes and no thread is idle, up to a limit, and end with the mount. Where the system gives not a single
//! one, jobs run in the thread that has them: slower, and nothing is lost.

use crossbeam_channel::{Receiver, Sender, unbounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
pub(crate) struct Workers {
    name: &'static str,
    limit: usize,
    started: AtomicUsize,
    idle: Arc<AtomicUsize>,
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
            idle: Arc::new(AtomicUsize::new(0)),
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
        let served = self.start_one_if_needed();
        self.jobs
            .send(Box::new(job))
            .expect("the pool holds a receiver");
        if !served && let Ok(job) = self.inbox.try_recv() {
            job();
        }
    }

    /// Whether there is a thread now.
    fn start_one_if_needed(&self) -> bool {
        if self.idle.load(Ordering::Relaxed) > self.jobs.len() {
            return true;
        }
        let claim = |started| (started < self.limit).then_some(started + 1);
        if self
            .started
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim)
            .is_err()
        {
            return true;
        }
        let (inbox, idle) = (self.inbox.clone(), self.idle.clone());
        let spawned = thread::Builder::new()
            .name(self.name.into())
            .spawn(move || work(&inbox, &idle));
        // With one thread at work every job still gets its turn.
        spawned.is_ok() || self.started.fetch_sub(1, Ordering::Relaxed) > 1
    }
}

fn work(inbox: &Receiver<Job>, idle: &AtomicUsize) {
    loop {
        idle.fetch_add(1, Ordering::Relaxed);
        let job = inbox.recv();
        idle.fetch_sub(1, Ordering::Relaxed);
        match job {
            // A panic was told of by its hook, and by what the job drops. The thread is for the next one.
            Ok(job) => drop(catch_unwind(AssertUnwindSafe(job))),
            // The mount is gone.
            Err(_) => return,
        }
    }
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
