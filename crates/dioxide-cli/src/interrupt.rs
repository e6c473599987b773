//! Ctrl-C, SIGTERM and a terminal that is closed (SIGHUP): while something is being changed or copied they ask for an end after the
//! current operation, so that an image is closed cleanly and nothing half-made stays. One that comes a second later ends the
//! process at once; the journal is there for that. Sooner it is the same asking: a terminal that is closed sends SIGHUP twice, and
//! `timeout` its signal to the process and to its group.

use crate::failure::Failure;
use rustix::event::Timespec;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Once, OnceLock};
use std::time::Instant;

/// When somebody first asked, in milliseconds since [`watch`], and one more; 0 if nobody did.
static ASKED_MS: AtomicU64 = AtomicU64::new(0);
/// By another signal than Ctrl-C's.
static TOLD_TO_END: AtomicBool = AtomicBool::new(false);

/// What comes sooner after the first is no second asking.
const SAME_MS: u64 = 1000;

static WATCHED: Once = Once::new();

/// How long to wait for others between two looks whether somebody asked: what a signal interrupts goes on.
pub const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// From now on signals ask. Where they cannot be caught they end the process, as before.
pub fn watch() {
    WATCHED.call_once(|| {
        let begun = Instant::now();
        for signal in signals() {
            let _ = ask_at(signal, begun);
        }
    });
}

#[allow(unsafe_code)]
fn ask_at(signal: i32, begun: Instant) -> io::Result<()> {
    let ask = move || {
        let now = begun.elapsed().as_millis() as u64 + 1;
        match ASKED_MS.compare_exchange(0, now, Relaxed, Relaxed) {
            Err(first) if now.saturating_sub(first) >= SAME_MS => low_level::exit(128 + signal),
            _ => {}
        }
        if signal != SIGINT {
            TOLD_TO_END.store(true, Relaxed);
        }
    };
    // SAFETY: it asks the clock, which is `clock_gettime`, changes atomics, and ends the process by `_exit`: a signal's handler may
    // do all of these. It takes no memory and no lock, and does not panic: nothing in it can overflow.
    unsafe { low_level::register(signal, ask) }.map(drop)
}

/// Whether signals ask, and do not end the process.
pub fn is_watched() -> bool {
    WATCHED.is_completed()
}

/// Those that ask for an end. Who started the command under `nohup` wants it to outlive the terminal.
pub fn signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut signals = vec![SIGINT, SIGTERM];
    signals.extend((!ignores(&status, SIGHUP)).then_some(SIGHUP));
    signals
}

/// Whether a process with this `/proc/PID/status` ignores a signal.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 != 0)
}

/// The same, for what looks at a flag of its own.
pub fn watched() -> Option<Arc<AtomicBool>> {
    static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    watch();
    let asked = ASKED.get_or_init(|| {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in signals() {
            let _ = flag::register(signal, asked.clone());
        }
        asked
    });
    Some(asked.clone())
}

/// Whether somebody asked since [`forget_unless_told_to_end`].
pub fn asked() -> bool {
    ASKED_MS.load(Relaxed) != 0
}

/// An error if somebody asked: to be called between operations.
pub fn check() -> Result<(), Failure> {
    match asked() {
        true => Err(Failure::Interrupted),
        false => Ok(()),
    }
}

/// What was asked has been done, and a shell goes on.
///
/// # Errors
/// It was not Ctrl-C, which ends a command only.
pub fn forget_unless_told_to_end() -> Result<(), Failure> {
    ASKED_MS.store(0, Relaxed);
    match TOLD_TO_END.load(Relaxed) {
        true => Err(Failure::Interrupted),
        false => Ok(()),
    }
}
