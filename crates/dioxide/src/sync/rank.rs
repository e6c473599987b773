//! The order of locks (`docs/LOCKING.md`), checked in debug builds: a thread that waits for a lock while it has one that comes
//! later panics, whether or not anybody is in its way.
//!
//! Each kind of lock has a [`Rank`]. The locks of this module know theirs, and others hold a [`Held`]. Who tries and does
//! not wait is in nobody's way: he is counted, and not judged. Who waits out of order for a reason says so with an [`Excuse`].
//! In release builds nothing of all this is left.

use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
#[cfg(debug_assertions)]
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// The ranks, each once, and in their order.
macro_rules! ranks {
    ($($(#[$about:meta])* $rank:ident,)*) => {
        /// A kind of lock, by its place in the order: first come those that are taken first.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub(crate) enum Rank {
            $($(#[$about])* $rank,)*
        }

        const RANKS: &[Rank] = &[$(Rank::$rank,)*];
    };
}

ranks! {
    /// The mount's, while a name moves from one directory to another.
    Renaming,
    /// The names of a directory. A thread may have several, from the upper ones down.
    Names,
    /// The rwsem of an inode.
    File,
    /// Who may be behind the end of a file.
    Appending,
    /// Waiting for requests in flight.
    Drain,
    /// A handle of the journal, or a commit that handles keep waiting.
    Handle,
    /// Attributes that inodes share.
    Xattrs,
    /// The orphans.
    Orphans,
    /// The map of an inode.
    Map,
    /// A quota file.
    Quota,
    /// The blocks or the inodes of a group.
    Group,
    /// A group's descriptor.
    Descriptor,
}

/// The rank of a lock as a type's parameter.
macro_rules! ranked {
    ($($name:ident = $lock:ident<$rank:ident>;)*) => {
        $(pub(crate) type $name<T = ()> = $lock<{ Rank::$rank as u8 }, T>;)*
    };
}

ranked! {
    RenamingLock = Mutex<Renaming>;
    NamesLock = RwLock<Names>;
    AppendingLock = RwLock<Appending>;
    XattrsLock = Mutex<Xattrs>;
    OrphansLock = Mutex<Orphans>;
    MapLock = Mutex<Map>;
    QuotaLock = Mutex<Quota>;
    GroupLock = Mutex<Group>;
    DescriptorLock = Mutex<Descriptor>;
}

/// That the calling thread has a lock of some rank. Dropped behind the lock.
#[derive(Debug)]
#[must_use]
pub(crate) struct Held {
    #[cfg(debug_assertions)]
    rank: Rank,
    /// It is the thread's that made it.
    _thread: PhantomData<*const ()>,
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: [Cell<u32>; RANKS.len()] = const { [const { Cell::new(0) }; RANKS.len()] };
    /// A bit for each rank that the thread is excused for.
    static EXCUSED: Cell<u16> = const { Cell::new(0) };
}

impl Held {
    /// Of a lock that is waited for.
    ///
    /// # Panics
    /// In debug builds, if the thread has one that comes later, or one of the same rank.
    #[inline(always)]
    pub(crate) fn wait(rank: Rank) -> Held {
        may_wait(rank);
        Held::taken(rank)
    }

    /// Of a lock that was there without waiting, or that is waited for out of order for a reason.
    #[inline(always)]
    pub(crate) fn taken(rank: Rank) -> Held {
        #[cfg(debug_assertions)]
        count(rank, 1);
        let _ = rank;
        Held {
            #[cfg(debug_assertions)]
            rank,
            _thread: PhantomData,
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        count(self.rank, u32::MAX);
    }
}

/// While a thread ends, its counts may be gone before its last locks are.
#[cfg(debug_assertions)]
fn count(rank: Rank, change: u32) {
    let _ = HELD.try_with(|held| {
        let cell = &held[rank as usize];
        cell.set(cell.get().wrapping_add(change));
    });
}

/// The calling thread is about to wait for a lock of this rank, or for what has its place.
///
/// # Panics
/// In debug builds, if the thread has a lock that comes later, or one of the same rank: of [`Rank::Names`] it may have several.
#[inline(always)]
pub(crate) fn may_wait(rank: Rank) {
    #[cfg(debug_assertions)]
    if EXCUSED.get() & 1 << rank as u16 == 0 {
        let first_later = match rank {
            Rank::Names => rank as usize + 1,
            _ => rank as usize,
        };
        let later = HELD.try_with(|held| {
            RANKS[first_later..]
                .iter()
                .find(|&&later| held[later as usize].get() > 0)
                .copied()
        });
        let later = later.ok().flatten();
        let later = later.or_else(|| {
            (rank <= Rank::Handle && dioxide_journal::journal::has_open_handle())
                .then_some(Rank::Handle)
        });
        if let Some(later) = later
            && !std::thread::panicking()
        {
            panic!("{rank:?} is waited for by a thread that has {later:?}: see docs/LOCKING.md");
        }
    }
    let _ = rank;
}

/// While it lives, its thread may wait for locks of some rank whatever it has.
#[derive(Debug)]
#[must_use]
pub(crate) struct Excuse {
    #[cfg(debug_assertions)]
    before: u16,
    _thread: PhantomData<*const ()>,
}

impl Excuse {
    /// For locks of this rank. Why that is right is said where it is made, and in `docs/LOCKING.md`.
    #[inline(always)]
    pub(crate) fn of(rank: Rank) -> Excuse {
        Excuse::of_all(1 << rank as u16)
    }

    /// For what no engine does: tests that play several threads in one.
    #[cfg(test)]
    pub(crate) fn of_a_test() -> Excuse {
        Excuse::of_all(u16::MAX)
    }

    #[inline(always)]
    fn of_all(_ranks: u16) -> Excuse {
        Excuse {
            #[cfg(debug_assertions)]
            before: EXCUSED.replace(EXCUSED.get() | _ranks),
            _thread: PhantomData,
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Excuse {
    fn drop(&mut self) {
        EXCUSED.set(self.before);
    }
}

/// A guard, and that it is held.
#[derive(Debug)]
#[must_use]
pub(crate) struct Guard<G> {
    guard: G,
    _held: Held,
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

pub(crate) type Locked<'a, T> = Guard<MutexGuard<'a, T>>;
pub(crate) type ReadLocked<'a, T> = Guard<RwLockReadGuard<'a, T>>;
pub(crate) type WriteLocked<'a, T> = Guard<RwLockWriteGuard<'a, T>>;

/// [`parking_lot::Mutex`] with the number of a [`Rank`].
#[derive(Debug, Default)]
pub(crate) struct Mutex<const RANK: u8, T>(parking_lot::Mutex<T>);

impl<const RANK: u8, T> Mutex<RANK, T> {
    pub(crate) const fn new(value: T) -> Self {
        Mutex(parking_lot::Mutex::new(value))
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        let _held = Held::wait(RANKS[RANK as usize]);
        Guard {
            guard: self.0.lock(),
            _held,
        }
    }

    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<Locked<'_, T>> {
        taken::<RANK, _>(self.0.try_lock())
    }
}

/// [`parking_lot::RwLock`] with the number of a [`Rank`].
#[derive(Debug, Default)]
pub(crate) struct RwLock<const RANK: u8, T>(parking_lot::RwLock<T>);

impl<const RANK: u8, T> RwLock<RANK, T> {
    pub(crate) const fn new(value: T) -> Self {
        RwLock(parking_lot::RwLock::new(value))
    }

    #[inline(always)]
    pub(crate) fn read(&self) -> ReadLocked<'_, T> {
        let _held = Held::wait(RANKS[RANK as usize]);
        Guard {
            guard: self.0.read(),
            _held,
        }
    }

    #[inline(always)]
    pub(crate) fn write(&self) -> WriteLocked<'_, T> {
        let _held = Held::wait(RANKS[RANK as usize]);
        Guard {
            guard: self.0.write(),
            _held,
        }
    }

    #[inline(always)]
    pub(crate) fn try_read(&self) -> Option<ReadLocked<'_, T>> {
        taken::<RANK, _>(self.0.try_read())
    }

    #[inline(always)]
    pub(crate) fn try_write(&self) -> Option<WriteLocked<'_, T>> {
        taken::<RANK, _>(self.0.try_write())
    }

    /// As [`RwLock::write`], but gives up when others had it for so long.
    pub(crate) fn try_write_for(&self, limit: Duration) -> Option<WriteLocked<'_, T>> {
        let _held = Held::wait(RANKS[RANK as usize]);
        let guard = self.0.try_write_for(limit)?;
        Some(Guard { guard, _held })
    }
}

#[inline(always)]
fn taken<const RANK: u8, G>(guard: Option<G>) -> Option<Guard<G>> {
    let _held = Held::taken(RANKS[RANK as usize]);
    Some(Guard {
        guard: guard?,
        _held,
    })
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    #[should_panic = "Names is waited for by a thread that has Map"]
    fn earlier_lock_is_not_waited_for() {
        let (map, names) = (MapLock::new(()), NamesLock::new(()));
        let _map = map.lock();
        let _names = names.read();
    }

    #[test]
    #[should_panic = "Group is waited for by a thread that has Group"]
    fn second_of_a_rank_is_not_waited_for() {
        let groups = [GroupLock::new(()), GroupLock::new(())];
        let _both = groups.each_ref().map(|group| group.lock());
    }

    #[test]
    fn what_is_in_order_tried_excused_or_given_back_is_fine() {
        let names = [NamesLock::new(()), NamesLock::new(())];
        let (map, orphans) = (MapLock::new(()), OrphansLock::new(()));
        let upper_and_lower = names.each_ref().map(|names| names.write());
        let first = orphans.lock();
        let second = map.lock();
        drop(upper_and_lower);
        drop(first);
        assert!(orphans.try_lock().is_some());
        let excuse = Excuse::of(Rank::Orphans);
        drop(orphans.lock());
        drop(excuse);
        drop(second);
        // In any order.
        drop(orphans.lock());
    }
}
