//! The primitives under the locks: the real ones, or the model checker's.

#[cfg(not(loom))]
pub(crate) use super::rank::{Held, Rank};
#[cfg(not(loom))]
pub(crate) use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence as full_fence};

#[cfg(loom)]
pub(crate) use super::fence::full_fence;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom_shim::{Held, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(loom)]
use loom::sync::{Condvar, Mutex};
#[cfg(not(loom))]
use parking_lot::{Condvar, Mutex};

/// Lets rare waiters sleep until a condition that is kept in atomics has changed.
#[derive(Debug)]
pub(crate) struct Event {
    mutex: Mutex<()>,
    changed: Condvar,
}

impl Event {
    pub(crate) fn new() -> Event {
        Event {
            mutex: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    /// Sleeps as long as `condition` holds. Returns whether it had to sleep at all. The condition
    /// is evaluated under the event's mutex, so a [`Event::notify`] that follows the change cannot
    /// be missed.
    pub(crate) fn wait_while(&self, mut condition: impl FnMut() -> bool) -> bool {
        let mut slept = false;
        #[cfg(not(loom))]
        {
            let mut guard = self.mutex.lock();
            while condition() {
                slept = true;
                self.changed.wait(&mut guard);
            }
        }
        #[cfg(loom)]
        {
            let mut guard = self.mutex.lock().expect("no thread panics in a model");
            while condition() {
                slept = true;
                guard = self
                    .changed
                    .wait(guard)
                    .expect("no thread panics in a model");
            }
        }
        slept
    }

    /// Wakes the waiters; to be called after the change.
    #[cold]
    pub(crate) fn notify(&self) {
        let _guard = self.mutex.lock();
        self.changed.notify_all();
    }
}

/// parking_lot's shape over loom's types.
#[cfg(loom)]
mod loom_shim {
    pub(crate) use loom::sync::{RwLockReadGuard, RwLockWriteGuard};

    /// The models have one lock, and no order.
    #[derive(Debug)]
    pub(crate) struct Held;

    pub(crate) enum Rank {
        File,
    }

    impl Held {
        pub(crate) fn wait(_: Rank) -> Held {
            Held
        }
        pub(crate) fn taken(_: Rank) -> Held {
            Held
        }
    }

    #[derive(Debug)]
    pub(crate) struct RwLock<T>(loom::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> Self {
            RwLock(loom::sync::RwLock::new(value))
        }
        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("no thread panics in a model")
        }
        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("no thread panics in a model")
        }
        pub(crate) fn try_read_for(
            &self,
            _: std::time::Duration,
        ) -> Option<RwLockReadGuard<'_, T>> {
            Some(self.read())
        }
        pub(crate) fn try_write_for(
            &self,
            _: std::time::Duration,
        ) -> Option<RwLockWriteGuard<'_, T>> {
            Some(self.write())
        }
        pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }
        pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }
    }
}
