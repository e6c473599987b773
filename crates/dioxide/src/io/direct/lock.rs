//! Taking the inode's lock for a request, and counting when that had to wait.

use super::Wait;
use super::policy::LockMode;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::stats::Count;
use crate::sync::rwsem::{Exclusive, Shared};
use crate::sync::slot::Slot;
use crate::{Error, Result};

/// The inode's lock as a request holds it.
#[derive(Debug)]
#[must_use]
pub(crate) enum Guard<'a> {
    None,
    Shared(#[allow(dead_code)] Shared<'a>),
    Exclusive(Exclusive<'a>),
}

/// Takes the lock in `mode`.
///
/// # Errors
/// [`Error::WouldBlock`] instead of waiting.
#[inline]
pub(crate) fn lock<'a>(
    mount: &Mount,
    inode: &'a Inode,
    mode: LockMode,
    wait: Wait,
    slot: Slot,
) -> Result<Guard<'a>> {
    let guard = match mode {
        LockMode::None => Some(Guard::None),
        LockMode::Shared => inode.rwsem.try_shared(slot).map(Guard::Shared),
        LockMode::Exclusive => inode.rwsem.try_exclusive().map(Guard::Exclusive),
    };
    match guard {
        Some(guard) => Ok(guard),
        None => contended(mount, inode, mode, wait, slot),
    }
}

#[cold]
fn contended<'a>(
    mount: &Mount,
    inode: &'a Inode,
    mode: LockMode,
    wait: Wait,
    slot: Slot,
) -> Result<Guard<'a>> {
    if wait == Wait::NoWait {
        return Err(Error::WouldBlock("the inode lock is taken"));
    }
    mount.counters.add(slot, Count::LockWait);
    Ok(match mode {
        LockMode::None => Guard::None,
        LockMode::Shared => Guard::Shared(inode.rwsem.shared(slot)),
        LockMode::Exclusive => Guard::Exclusive(inode.rwsem.exclusive()),
    })
}
