//! Taking the inode's lock for a request, and counting when that had to wait.

use super::Wait;
use super::policy::LockMode;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::stats::Count;
use crate::sync::errand;
use crate::sync::inflight::Endless;
use crate::sync::rank::{self, Rank};
use crate::sync::rwsem::{Beside, Exclusive, Shared};
use crate::sync::slot::Slot;
use crate::{Error, Result};
use std::time::Duration;

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
/// [`Error::WouldBlock`] instead of waiting; [`Error::Deadlock`] if who has the lock waits for requests in the calling thread's
/// own queue.
#[inline]
pub(crate) fn lock<'a>(
    mount: &Mount,
    inode: &'a Inode,
    mode: LockMode,
    wait: Wait,
    slot: Slot,
) -> Result<Guard<'a>> {
    if wait == Wait::Block && mode != LockMode::None {
        rank::may_wait(Rank::File);
    }
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

/// Takes the lock beside readers. Blocks, and counts when it had to wait. The calling thread has no requests in flight on the inode.
///
/// # Errors
/// As [`lock`].
pub(crate) fn beside_readers<'a>(
    mount: &Mount,
    inode: &'a Inode,
    slot: Slot,
) -> Result<Beside<'a>> {
    rank::may_wait(Rank::File);
    let lock = &inode.rwsem;
    if let Some(beside) = lock.try_beside_readers() {
        return Ok(beside);
    }
    mount.counters.add(slot, Count::LockWait);
    match mount.in_flight.has_own_requests() {
        true => {
            wait_with_requests_in_flight(mount, inode, |limit| lock.beside_readers_within(limit))
        }
        false => Ok(lock.beside_readers()),
    }
}

/// Waits until no direct I/O on the inode is in flight, and counts when that had to wait. The lock is exclusive.
///
/// # Errors
/// [`Error::Deadlock`] if it would wait for ever.
pub(crate) fn drain(mount: &Mount, inode: &Inode, slot: Slot) -> Result<()> {
    rank::may_wait(Rank::Drain);
    if inode.in_flight.drain(&mount.in_flight)? {
        mount.counters.add(slot, Count::Drain);
    }
    Ok(())
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
    let lock = &inode.rwsem;
    if mount.in_flight.has_own_requests() {
        return wait_with_requests_in_flight(mount, inode, |limit| match mode {
            LockMode::None => Some(Guard::None),
            LockMode::Shared => lock.shared_within(slot, limit).map(Guard::Shared),
            LockMode::Exclusive => lock.exclusive_within(limit).map(Guard::Exclusive),
        });
    }
    let _standing = errand::stand(inode.in_flight.id());
    Ok(match mode {
        LockMode::None => Guard::None,
        LockMode::Shared => Guard::Shared(lock.shared(slot)),
        LockMode::Exclusive => Guard::Exclusive(lock.exclusive()),
    })
}

/// When a thread that has requests in flight, and waits for the lock of a file, looks first whether who has the lock waits for it. From
/// look to look it waits twice as long, up to the longest time: each look costs it its place among those who wait.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// `take` waits for the lock for so long.
fn wait_with_requests_in_flight<T>(
    mount: &Mount,
    inode: &Inode,
    take: impl Fn(Duration) -> Option<T>,
) -> Result<T> {
    let (in_flight, registry) = (&inode.in_flight, &mount.in_flight);
    let _noted = registry.note_lock(in_flight);
    let mut limit = FIRST_LOOK;
    loop {
        match take(limit) {
            Some(guard) => return Ok(guard),
            None if in_flight.is_being_drained() && in_flight.is_awaited_by_self(registry) => {
                return Err(Endless::OwnQueue.into());
            }
            None if registry.waits_for_self(in_flight) => return Err(Endless::Circle.into()),
            None => limit = (2 * limit).min(LONGEST_WAIT),
        }
    }
}
