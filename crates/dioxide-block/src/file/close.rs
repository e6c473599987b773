//! The end of a file that was written.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};

/// Closes a file of the host that was written. Some file systems (NFS, FUSE) hold data back until then, and tell only here that
/// they found no room.
///
/// # Errors
/// Those of close(2). The descriptor is gone all the same.
pub fn close(file: impl Into<OwnedFd>) -> io::Result<()> {
    let fd = file.into().into_raw_fd();
    // SAFETY: it was owned, and nobody owns it now.
    match unsafe { libc::close(fd) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
