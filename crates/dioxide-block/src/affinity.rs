//! Where threads of the library's own run.

use rustix::process::getpid;
use rustix::thread::{sched_getaffinity, sched_setaffinity};

/// Lets the calling thread run where the process's first one may, which is what `taskset` says. A thread begins where the one may run that
/// started it, and that may be kept on one processor, for itself.
pub fn roam() {
    if let (Ok(own), Ok(first)) = (sched_getaffinity(None), sched_getaffinity(Some(getpid())))
        && own != first
    {
        // Refused, it stays where it is.
        let _ = sched_setaffinity(None, &first);
    }
}
