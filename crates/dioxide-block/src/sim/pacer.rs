//! Waiting for a point in time, to within a few microseconds.
//!
//! A sleeping thread comes back late: the timer's interrupt has to wake an idle processor and the
//! scheduler has to run the thread, which in a virtual machine takes 5 to 60 µs and changes with the
//! load. So [`Pacer`] sleeps until shortly before the time, and watches the clock for the rest. How
//! shortly is learned from how late the sleeps before it ended: their mean plus twice their mean
//! deviation, as in the retransmission timers of TCP. While it watches, it offers the processor to
//! other threads, so that eight threads on two cores wait side by side; only the last two
//! microseconds are spun through, since a thread that yields comes back when it pleases.
//!
//! Rejected: sleeping alone (tens of µs late); spinning alone (eight spinning threads on two cores
//! delay one another by milliseconds); a fixed margin (too long for a busy machine, where it burns
//! the cores, too short for an idle one).

use parking_lot::{Condvar, Mutex};
use rustix::thread::{clock_nanosleep_absolute, sched_yield, set_current_timer_slack};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The part of a wait that is spun through.
const SPIN_NS: u64 = 2_000;
/// The longest part of a wait that is not slept.
const MARGIN_MAX_NS: u64 = 60_000;
/// Sleeps that end later than this say more about other processes than about timers.
const LATE_MAX_NS: u64 = 100_000;
const NS_PER_S: u64 = 1_000_000_000;

/// Nanoseconds since boot.
#[inline]
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * NS_PER_S + now.tv_nsec as u64
}

/// Learns how late sleeps end. Races between threads lose an observation, no more.
#[derive(Debug)]
pub(super) struct Pacer {
    late_ns: AtomicU64,
    deviation_ns: AtomicU64,
}

impl Default for Pacer {
    fn default() -> Self {
        Pacer {
            late_ns: AtomicU64::new(20_000),
            deviation_ns: AtomicU64::new(5_000),
        }
    }
}

impl Pacer {
    /// Blocks until [`now_ns`] is `due_ns`.
    pub(super) fn sleep_until(&self, due_ns: u64) {
        let wake_ns = due_ns.saturating_sub(self.margin_ns());
        if now_ns() < wake_ns {
            sharpen_timers();
            let wake = Timespec {
                tv_sec: (wake_ns / NS_PER_S) as i64,
                tv_nsec: (wake_ns % NS_PER_S) as _,
            };
            // The only error of an absolute time is a signal; then the sleep goes on.
            while clock_nanosleep_absolute(ClockId::Monotonic, &wake).is_err() {}
            self.learn(now_ns().saturating_sub(wake_ns));
        }
        watch(due_ns, || false);
    }

    fn margin_ns(&self) -> u64 {
        let late = self.late_ns.load(Ordering::Relaxed);
        let deviation = self.deviation_ns.load(Ordering::Relaxed);
        (late + 2 * deviation).min(MARGIN_MAX_NS)
    }

    fn learn(&self, late_ns: u64) {
        let late = late_ns.min(LATE_MAX_NS);
        let mean = self.late_ns.load(Ordering::Relaxed);
        let deviation = self.deviation_ns.load(Ordering::Relaxed);
        let blend = |old: u64, new: u64| (old * 15 + new) / 16;
        self.late_ns.store(blend(mean, late), Ordering::Relaxed);
        let off = late.abs_diff(mean);
        self.deviation_ns
            .store(blend(deviation, off), Ordering::Relaxed);
    }
}

/// Watches the clock until `due_ns` or until `stop` says so.
fn watch(due_ns: u64, stop: impl Fn() -> bool) {
    loop {
        let now = now_ns();
        if now >= due_ns || stop() {
            return;
        }
        match due_ns - now > SPIN_NS {
            true => sched_yield(),
            false => std::hint::spin_loop(),
        }
    }
}

/// Lets this thread's timers end on time instead of up to 50 µs late (Linux's default slack).
fn sharpen_timers() {
    thread_local!(static SHARP: Cell<bool> = const { Cell::new(false) });
    SHARP.with(|sharp| {
        if !sharp.replace(true) {
            // Refused only where the system call does not exist; then waits are less precise.
            let _ = set_current_timer_slack(NonZeroU64::new(1));
        }
    });
}

/// Where a queue's owner waits, and others wake it.
#[derive(Debug, Default)]
pub(super) struct Park {
    woken: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Park {
    /// Ends the current or the next wait.
    pub(super) fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        // A waiter is either before its look at `woken`, or inside `changed`.
        drop(self.lock.lock());
        self.changed.notify_all();
    }

    /// Blocks until `due_ns`, or until woken. `None`: no limit.
    pub(super) fn wait_until(&self, due_ns: Option<u64>, pacer: &Pacer) {
        match due_ns {
            None => self.sleep(None),
            Some(due_ns) => {
                let wake_ns = due_ns.saturating_sub(pacer.margin_ns());
                let now = now_ns();
                if now < wake_ns && !self.woken.load(Ordering::Acquire) {
                    self.sleep(Some(Duration::from_nanos(wake_ns - now)));
                    if !self.woken.load(Ordering::Acquire) {
                        pacer.learn(now_ns().saturating_sub(wake_ns));
                    }
                }
                watch(due_ns, || self.woken.load(Ordering::Acquire));
            }
        }
        self.woken.store(false, Ordering::Relaxed);
    }

    fn sleep(&self, limit: Option<Duration>) {
        sharpen_timers();
        let mut guard = self.lock.lock();
        while !self.woken.load(Ordering::Acquire) {
            match limit {
                None => self.changed.wait(&mut guard),
                Some(limit) => {
                    self.changed.wait_for(&mut guard, limit);
                    return;
                }
            }
        }
    }
}
