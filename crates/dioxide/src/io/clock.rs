//! The time that an overwrite stamps on its inode: of the last timer tick, as the kernel's.
//!
//! Asking the C library is some fifty instructions, ten of them stores. That is nothing beside a
//! system call, and 3 % of a copy of 2 KiB through a mapping. So when more than [`RUSH`] stamps come
//! within one tick, a thread keeps the time in a variable for a while, and stamping is one load. A
//! program that writes less never has that thread; it sleeps as soon as the while is over.
//!
//! The variable lags by as much as the thread is late, which is a tick unless the machine is so busy
//! that a sleeper is not woken. After a suspend, or a stop of the process, it is old until then. Rejected: the time-stamp counter, which needs unsafe code and a
//! conversion that knows about suspends; stamping only when somebody looks, which is wrong by the
//! time in between.

use parking_lot::{Condvar, Mutex};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

/// Where a mount has the time from that it stamps.
#[derive(Clone, Debug, Default)]
pub(crate) enum Clock {
    /// It is the time that it is.
    #[default]
    Real,
    /// Always the same, and so is what is written, whenever it is.
    Still(i64),
    /// What is kept there.
    Kept(Arc<AtomicI64>),
}

impl Clock {
    /// Nanoseconds since 1970.
    #[inline]
    pub(crate) fn now_ns(&self) -> i64 {
        self.own_ns().unwrap_or_else(coarse_now_ns)
    }

    /// The same, if it is not the time that it is.
    #[inline]
    pub(crate) fn own_ns(&self) -> Option<i64> {
        match self {
            Clock::Real => None,
            Clock::Still(ns) => Some(*ns),
            Clock::Kept(ns) => Some(ns.load(Ordering::Relaxed)),
        }
    }

    /// Where it is kept, if it is.
    pub(crate) fn kept(&self) -> Option<Arc<AtomicI64>> {
        match self {
            Clock::Kept(ns) => Some(ns.clone()),
            Clock::Real | Clock::Still(_) => None,
        }
    }

    /// Whether what is written must not depend on when that is.
    pub(crate) fn is_still(&self) -> bool {
        matches!(self, Clock::Still(_))
    }
}

/// Stamps within a tick that are worth a thread.
const RUSH: u32 = 1000;
const TICK: Duration = Duration::from_millis(4);
/// Ticks for which the variable is kept up without asking again whether it is worth it.
const TICKS: u32 = 64;
/// The variable is not kept up.
const STOPPED: i64 = 0;

static NOW: AtomicI64 = AtomicI64::new(STOPPED);
/// Begin of the tick in which stamps are counted, and how many came.
static COUNTING_SINCE: AtomicI64 = AtomicI64::new(0);
static COUNTED: AtomicU32 = AtomicU32::new(0);
static SPAWNED: AtomicBool = AtomicBool::new(false);
static WANTED: Mutex<bool> = Mutex::new(false);
static WANT: Condvar = Condvar::new();

/// Nanoseconds since 1970, at most a few milliseconds ago.
#[inline(always)]
pub(crate) fn coarse_now_ns() -> i64 {
    match NOW.load(Ordering::Relaxed) {
        STOPPED => ask_and_count(),
        now => now,
    }
}

fn ask() -> i64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

#[inline(never)]
fn ask_and_count() -> i64 {
    let now = ask();
    // Threads may count past each other: whether the thread starts a tick sooner does not matter.
    if now != COUNTING_SINCE.load(Ordering::Relaxed) {
        COUNTING_SINCE.store(now, Ordering::Relaxed);
        COUNTED.store(0, Ordering::Relaxed);
    } else if COUNTED.fetch_add(1, Ordering::Relaxed) == RUSH {
        start();
    }
    now
}

#[cold]
fn start() {
    *WANTED.lock() = true;
    WANT.notify_one();
    if !SPAWNED.swap(true, Ordering::Relaxed) {
        let thread = std::thread::Builder::new().name("dioxide-clock".into());
        if thread.spawn(keep).is_err() {
            SPAWNED.store(false, Ordering::Relaxed);
        }
    }
}

/// The thread.
fn keep() {
    dioxide_block::roam();
    loop {
        let mut wanted = WANTED.lock();
        WANT.wait_while(&mut wanted, |wanted| !*wanted);
        *wanted = false;
        drop(wanted);
        for _ in 0..TICKS {
            NOW.store(ask(), Ordering::Relaxed);
            std::thread::sleep(TICK);
        }
        NOW.store(STOPPED, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Instant;

    /// A second, for machines that do not wake a sleeper at once.
    const LAG_NS: i64 = 1_000_000_000;

    #[test]
    fn rush_starts_the_thread_and_time_goes_on() {
        let begin = Instant::now();
        let (mut last, mut kept) = (0, false);
        while begin.elapsed() < Duration::from_millis(600) {
            let now = coarse_now_ns();
            assert!(ask() - now < LAG_NS, "{now} lags");
            assert!(now >= last, "the time ran backwards from {last} to {now}");
            last = now;
            kept |= NOW.load(Ordering::Relaxed) != STOPPED;
        }
        assert!(kept, "nobody kept the time");
        // Without a rush the thread stops, and the time is asked for again.
        let until = Instant::now() + Duration::from_secs(20);
        while NOW.load(Ordering::Relaxed) != STOPPED {
            assert!(Instant::now() < until, "it does not stop");
            std::thread::sleep(TICK);
        }
        assert!(ask() - coarse_now_ns() < LAG_NS);
    }
}
