//! Ctrl-C, SIGTERM and a terminal that is closed (SIGHUP): while something is being changed or copied they ask for an end after the
//! current operation, so that an image is closed cleanly and nothing half-made stays. A second one ends the process at once; the journal
//! is there for that.

use crate::failure::Failure;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// By another signal than Ctrl-C's.
static TOLD_TO_END: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on signals ask. Where they cannot be caught they end the process, as before.
pub fn watch() {
    ASKED.get_or_init(|| {
        let asked = Arc::new(AtomicBool::new(false));
        let told_to_end = TOLD_TO_END.get_or_init(Arc::default);
        for signal in signals() {
            let second = flag::register_conditional_shutdown(signal, 128 + signal, asked.clone());
            let _ = second.and_then(|_| flag::register(signal, asked.clone()));
            if signal != SIGINT {
                let _ = flag::register(signal, told_to_end.clone());
            }
        }
        asked
    });
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
    watch();
    ASKED.get().cloned()
}

/// Whether somebody asked since [`forget_unless_told_to_end`].
pub fn asked() -> bool {
    ASKED
        .get()
        .is_some_and(|asked| asked.load(Ordering::Relaxed))
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
    if let Some(asked) = ASKED.get() {
        asked.store(false, Ordering::Relaxed);
    }
    let told_to_end = TOLD_TO_END.get();
    match told_to_end.is_some_and(|told| told.load(Ordering::Relaxed)) {
        true => Err(Failure::Interrupted),
        false => Ok(()),
    }
}
