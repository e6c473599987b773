//! The direct-I/O engine. One request, in the order it runs:
//!
//! [`policy`] decides the lock → [`read`] or [`write`] takes it and checks → [`simple`] serves a
//! small read by one lookup, [`iter`] everything else mapping by mapping → the device. Writes that need
//! blocks, or a new size, go through [`place`]; those that must be there as a whole, through [`atomic`].

pub(crate) mod atomic;
pub(crate) mod iter;
pub(crate) mod lock;
pub(crate) mod place;
pub mod policy;
pub(crate) mod read;
pub(crate) mod simple;
pub(crate) mod write;

#[cfg(all(test, not(loom)))]
mod tests;

use crate::alloc::Right;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::{Error, Result};
use dioxide_format::inode::InodeFlags;

/// What a handle may do, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) direct: bool,
    pub(crate) fsetid: bool,
    /// May use blocks that are kept for the super user.
    pub(crate) resource: bool,
    pub(crate) sync: SyncMode,
    /// Writing leaves the times alone.
    pub(crate) keep_times: bool,
    /// Writes come late, and were allowed.
    pub(crate) written_back: bool,
}

/// What a change waits for before it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SyncMode {
    /// Nothing.
    #[default]
    None,
    /// `O_DSYNC`: that the data can be read back after a crash.
    Data,
    /// `O_SYNC`: and the times too.
    Full,
}

impl Access {
    /// # Errors
    /// `EBADF`.
    pub(crate) fn check_readable(self) -> Result<()> {
        match self.read {
            true => Ok(()),
            false => Err(Error::BadAccess("reading")),
        }
    }

    /// Which of the free blocks a write may use.
    pub(crate) fn right(self) -> Right {
        match self.resource {
            true => Right::Resource,
            false => Right::Everyone,
        }
    }

    /// # Errors
    /// `EBADF`.
    pub(crate) fn check_writable(self) -> Result<()> {
        match self.write {
            true => Ok(()),
            false => Err(Error::BadAccess("writing")),
        }
    }

    /// What a change of this file waits for: its flag SYNC counts for every handle, and as soon as it is set.
    pub(crate) fn sync_of(self, inode: &Inode) -> SyncMode {
        match inode.flags().contains(InodeFlags::SYNC) {
            true => SyncMode::Full,
            false => self.sync,
        }
    }

    /// For resizing and allocating, which no page cache does late.
    pub(crate) fn at_once(self) -> Access {
        Access {
            written_back: false,
            ..self
        }
    }

    /// Whether a write goes where the caller says, need not be durable when it returns, and stamps the file.
    #[inline(always)]
    pub(crate) fn overwrites(self) -> bool {
        let is_plain = !self.append && !self.keep_times && !self.written_back;
        self.write && is_plain && matches!(self.sync, SyncMode::None)
    }
}

impl Mount {
    /// Makes a change of a file's attributes durable if its flag SYNC wants that.
    ///
    /// # Errors
    /// As [`Mount::sync_inode`].
    pub(crate) fn keep_in_step(&self, inode: &Inode) -> Result<()> {
        match inode.flags().contains(InodeFlags::SYNC) {
            true => self.sync_inode(inode, false),
            false => Ok(()),
        }
    }

    /// Makes a change that was made through a handle as durable as the handle, or the file, wants.
    ///
    /// # Errors
    /// As [`Mount::sync_inode`].
    pub(crate) fn make_durable(&self, inode: &Inode, access: Access) -> Result<()> {
        match access.sync_of(inode) {
            SyncMode::None => Ok(()),
            SyncMode::Data => self.sync_inode(inode, true),
            SyncMode::Full => self.sync_inode(inode, false),
        }
    }
}

/// Whether a request may wait for locks, metadata and other requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Block,
    /// `IOCB_NOWAIT`: EAGAIN instead.
    NoWait,
}
