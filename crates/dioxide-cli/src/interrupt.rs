//! Ctrl-C and SIGTERM: while something is being changed or copied they ask for an end after the current operation, so that
//! an image is closed cleanly and nothing half-made stays. A second one ends the process at once; the journal is there for that.

use crate::failure::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on signals ask. Where they cannot be caught they end the process, as before.
pub fn watch() {
    ASKED.get_or_init(|| {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            let second = flag::register_conditional_shutdown(signal, 128 + signal, asked.clone());
            let _ = second.and_then(|_| flag::register(signal, asked.clone()));
        }
        asked
    });
}

/// Whether somebody asked since [`forget`].
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

/// What was asked has been done.
pub fn forget() {
    if let Some(asked) = ASKED.get() {
        asked.store(false, Ordering::Relaxed);
    }
}
