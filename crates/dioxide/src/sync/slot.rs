//! Small numbers, each owned by one thread or one queue at a time.
//!
//! The owner of number `n` is the only writer of entry `n` of every per-owner table (the presence
//! tables of the locks, the statistics), so that those entries need no atomic read-modify-write.
//! Numbers run out at [`SLOTS`]; whoever has none takes the slower, shared way, which is always
//! there.

use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many numbers there are.
pub(crate) const SLOTS: usize = 128;

static FREE: Mutex<u128> = Mutex::new(u128::MAX);
const _: () = assert!(SLOTS == u128::BITS as usize);

/// An owner's number, or that it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(usize);

impl Slot {
    /// The owner has no number of its own.
    pub(crate) const NONE: Slot = Slot(SLOTS);

    #[cfg(test)]
    pub(crate) fn of(number: usize) -> Slot {
        Slot(number)
    }

    /// As an index: below [`SLOTS`] for an owner with a number, [`SLOTS`] for all others.
    #[inline(always)]
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// Ownership of a number, given back when dropped.
#[derive(Debug)]
pub(crate) struct Claim(u8);

impl Claim {
    /// The lowest free number, or `None` when all are taken.
    pub(crate) fn take() -> Option<Claim> {
        let mut free = FREE.lock();
        let number = free.trailing_zeros();
        if number == u128::BITS {
            return None;
        }
        *free &= !(1 << number);
        Some(Claim(number as u8))
    }

    /// The number.
    pub(crate) fn slot(&self) -> Slot {
        Slot(usize::from(self.0))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        *FREE.lock() |= 1 << self.0;
    }
}

/// The calling thread's own number, claimed at its first use and held until the thread ends.
/// [`Slot::NONE`] when none was free then, or while the thread is being torn down.
#[inline(always)]
pub(crate) fn current() -> Slot {
    let number = NUMBER.get();
    if number <= SLOTS {
        Slot(number)
    } else {
        first_use()
    }
}

/// A number of the calling thread that no other ever has, and not 0.
#[inline(always)]
pub(crate) fn thread_id() -> u64 {
    match ID.get() {
        0 => first_id(),
        id => id,
    }
}

#[cold]
fn first_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    ID.set(id);
    id
}

const UNKNOWN: usize = usize::MAX;

thread_local! {
    /// What `thread_id` returns, or 0.
    static ID: Cell<u64> = const { Cell::new(0) };
    /// What `current` returns, without a destructor so that reading it is one instruction.
    static NUMBER: Cell<usize> = const { Cell::new(UNKNOWN) };
    /// Owns the number. Forgets it before it is given back.
    static OWNER: Owner = Owner(Claim::take());
}

struct Owner(Option<Claim>);

impl Drop for Owner {
    fn drop(&mut self) {
        NUMBER.set(SLOTS);
    }
}

#[cold]
fn first_use() -> Slot {
    let claimed = OWNER.try_with(|owner| owner.0.as_ref().map(Claim::slot));
    let slot = claimed.unwrap_or(None).unwrap_or(Slot::NONE);
    NUMBER.set(slot.0);
    slot
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_dropped_then_number_free_again() {
        let first = Claim::take().expect("fewer than 128 threads in this test");
        let number = first.slot();
        let second = Claim::take().expect("fewer than 128 threads in this test");
        assert_ne!(second.slot(), number);
        drop(first);
        let taken: Vec<Claim> = std::iter::from_fn(Claim::take).collect();
        assert!(taken.iter().any(|claim| claim.slot() == number));
    }

    #[test]
    fn current_in_one_thread_stays() {
        assert_eq!(current(), current());
    }
}
