//! The crate's one error type.

use crate::AtomicUnits;
use std::io;
use std::path::PathBuf;

/// What went wrong below the file system.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device or the kernel refused or failed one transfer.
    #[error("{op} of {len} bytes at device offset {offset}: {source}")]
    Io {
        /// `read`, `write`, `flush`, `discard` or `write zeroes`.
        op: &'static str,
        /// First byte of the transfer on the device.
        offset: u64,
        /// Length of the transfer in bytes; 0 for a flush.
        len: u64,
        /// What the operating system said.
        source: io::Error,
    },
    /// The request does not fit the device's alignment.
    #[error(
        "{op} of {len} bytes at device offset {offset}: {what} must be a multiple of {required} bytes"
    )]
    Misaligned {
        /// The operation.
        op: &'static str,
        /// First byte of the transfer on the device.
        offset: u64,
        /// Length of the transfer in bytes.
        len: u64,
        /// `offset`, `length` or `memory address`.
        what: &'static str,
        /// Required alignment in bytes.
        required: u64,
    },
    /// The transfer reaches past the end of the device.
    #[error("{op} of {len} bytes at device offset {offset} passes the device's end at {size}")]
    OutOfRange {
        /// The operation.
        op: &'static str,
        /// First byte of the transfer on the device.
        offset: u64,
        /// Length of the transfer in bytes.
        len: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// The device does not write such a range atomically.
    #[error(
        "atomic write of {len} bytes at device offset {offset}: the device takes powers of two from {} to {}, at multiples of \
         themselves",
        units.min_bytes, units.max_bytes
    )]
    NotAtomic {
        /// First byte of the transfer on the device.
        offset: u64,
        /// Length of the transfer in bytes.
        len: u64,
        /// What the device writes atomically.
        units: AtomicUnits,
    },
    /// The device was opened read-only, or cannot be written.
    #[error("{op} on a read-only device")]
    ReadOnly {
        /// The operation.
        op: &'static str,
    },
    /// The image or device could not be opened.
    #[error("{}: {what}: {source}", path.display())]
    Open {
        /// The path that was given.
        path: PathBuf,
        /// What could not be done, or is wrong with it, as a phrase: `cannot open it`.
        what: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// Somebody else has the image or device: it is mounted, attached to a loop device, or locked.
    #[error("{} is in use: {by}", path.display())]
    Busy {
        /// The path that was given.
        path: PathBuf,
        /// Who has it, and what to do about it.
        by: String,
    },
    /// The backend, kernel or device has no such ability.
    #[error("unsupported: {what}")]
    Unsupported {
        /// What is missing.
        what: String,
    },
    /// A specification string (of a simulated device, say) cannot be understood.
    #[error("cannot understand '{spec}': {what}")]
    Spec {
        /// The whole string.
        spec: String,
        /// What is wrong with it, and what would be right.
        what: String,
    },
}

impl Error {
    /// Of an operation in which the device panicked.
    #[cold]
    pub(crate) fn panicked(op: &'static str, offset: u64, len: u64) -> Error {
        Error::Io {
            op,
            offset,
            len,
            source: io::Error::other("the device panicked"),
        }
    }

    /// The `errno` that Linux would give for this error.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Io { source, .. } | Error::Open { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            Error::Misaligned { .. } | Error::NotAtomic { .. } | Error::Spec { .. } => libc::EINVAL,
            Error::OutOfRange { .. } => libc::EIO,
            Error::ReadOnly { .. } => libc::EROFS,
            Error::Busy { .. } => libc::EBUSY,
            Error::Unsupported { .. } => libc::EOPNOTSUPP,
        }
    }
}

/// Shorthand for this crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;
