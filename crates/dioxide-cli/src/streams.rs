//! Which standard streams were closed when the process began.
//!
//! Before `main`, Rust's runtime opens `/dev/null` in their place, so that no other file gets their numbers. After that nobody
//! can tell: who throws output away may have opened it in the same way. What is written there would be lost, and what is read
//! there is no empty file; a C program is told of both by its first call.

use rustix::io::{Errno, fcntl_getfd};
use rustix::stdio::{stdin, stdout};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static INPUT_CLOSED: AtomicBool = AtomicBool::new(false);
static OUTPUT_CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn look() {
    let is_closed = |found| matches!(found, Err(Errno::BADF));
    INPUT_CLOSED.store(is_closed(fcntl_getfd(stdin())), Relaxed);
    OUTPUT_CLOSED.store(is_closed(fcntl_getfd(stdout())), Relaxed);
}

// SAFETY: the C library calls what is listed there once, in the only thread, before the runtime begins. `look` needs neither
// runtime nor memory: it makes two system calls that change nothing, and stores what they say.
#[allow(unsafe_code)]
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Whether there is a standard input.
pub fn check_input() -> io::Result<()> {
    check(&INPUT_CLOSED)
}

/// Whether there is a standard output.
pub fn check_output() -> io::Result<()> {
    check(&OUTPUT_CLOSED)
}

fn check(closed: &AtomicBool) -> io::Result<()> {
    match closed.load(Relaxed) {
        true => Err(Errno::BADF.into()),
        false => Ok(()),
    }
}
