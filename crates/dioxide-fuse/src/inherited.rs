//! What a process was started with.
#![allow(unsafe_code)]

use std::io;

/// Closes all descriptors but the three standard ones: what the shell or the program that started this one had open. A lock
/// among them would be held as long as the mount, and a [sandbox](crate::sandbox) would have a way out.
///
/// # Safety
/// Nothing in this process owns a descriptor above the third: call it before anything is opened.
///
/// # Errors
/// On kernels before Linux 5.9, which cannot.
pub unsafe fn close_inherited() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: it takes numbers, and closes what nobody in this process owns, as the caller promises.
    match unsafe { libc::close_range(FIRST, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
