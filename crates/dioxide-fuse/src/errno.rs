//! What a request is refused with.

use dioxide::Error;
use std::fmt;

/// An `errno`, as it goes to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);
    pub(crate) const BADF: Errno = Errno(libc::EBADF);
    pub(crate) const EXIST: Errno = Errno(libc::EEXIST);
    pub(crate) const FBIG: Errno = Errno(libc::EFBIG);
    pub(crate) const INVAL: Errno = Errno(libc::EINVAL);
    pub(crate) const IO: Errno = Errno(libc::EIO);
    pub(crate) const NODATA: Errno = Errno(libc::ENODATA);
    pub(crate) const NODEV: Errno = Errno(libc::ENODEV);
    pub(crate) const NOSYS: Errno = Errno(libc::ENOSYS);
    pub(crate) const NOTTY: Errno = Errno(libc::ENOTTY);
    pub(crate) const NXIO: Errno = Errno(libc::ENXIO);
    pub(crate) const OPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
    pub(crate) const PERM: Errno = Errno(libc::EPERM);
    pub(crate) const NOSPC: Errno = Errno(libc::ENOSPC);
    pub(crate) const RANGE: Errno = Errno(libc::ERANGE);
    pub(crate) const ROFS: Errno = Errno(libc::EROFS);
    pub(crate) const STALE: Errno = Errno(libc::ESTALE);
}

impl From<Error> for Errno {
    /// What users of the mount see of an error is a number, so that what only the text tells is traced.
    fn from(error: Error) -> Errno {
        match &error {
            Error::Device(_)
            | Error::Corrupt { .. }
            | Error::Checksum { .. }
            | Error::OnlyRead(_) => {
                tracing::error!(%error, "a request failed");
            }
            _ => {}
        }
        Errno(error.errno())
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

/// Shorthand for what a request comes to.
pub type Result<T = (), E = Errno> = std::result::Result<T, E>;
