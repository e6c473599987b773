//! Direct I/O in flight (`i_dio_count`), and draining it.
//!
//! The lock of an asynchronous request covers only its submission. What keeps its blocks from
//! being freed, or half-written blocks from being zeroed, until the device is done is the in-flight
//! count: raised before the lock is released (invariant 7), dropped last in completion. Whoever
//! must see it at zero holds the lock exclusive, so that it cannot rise, and drains.
//!
//! The count is not a number. Each queue has a table with one entry per request slot; an entry
//! names the inode of the request in it. Raising and dropping are plain stores into a cache line
//! that the request uses anyhow; draining, which is rare, looks at every entry of every queue of
//! the mount. I/O that has no slot (completions in a worker, synchronous I/O without the lock under
//! old policies) is counted in the inode itself.
//!
//! A request is in flight until its completion was reaped from its queue. A thread that drains a
//! file must therefore not be the one that has unreaped requests on it; that is found out and
//! refused as a deadlock.

use super::fence;
use super::prim::{AtomicU32, AtomicU64, Event, Ordering};
use super::slot::Slot;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// Entry of a request that is not in flight.
const NOBODY: u64 = 0;

/// What the queue itself keeps with a request. It lies beside the name of the inode, so that a
/// request costs one cache line and not two.
pub(crate) type Note = [u64; 3];

#[derive(Debug)]
#[repr(align(32))]
struct Entry {
    /// Inode of the request, or 0.
    inode: AtomicU64,
    /// Written and read by the queue alone.
    note: [std::sync::atomic::AtomicU64; 3],
}

/// One queue's requests in flight: entry = request slot.
#[derive(Debug)]
pub(crate) struct InFlightTable {
    entries: Box<[Entry]>,
    /// Slot number of the thread that pushed last.
    owner: AtomicU64,
    /// How many drains look at this table.
    drains: AtomicU32,
}

impl Entry {
    fn free() -> Entry {
        Entry {
            inode: AtomicU64::new(NOBODY),
            note: Default::default(),
        }
    }
}

/// The drain would wait for the calling thread itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitsForSelf;

impl InFlightTable {
    pub(crate) fn new(depth: usize) -> InFlightTable {
        InFlightTable {
            entries: (0..depth).map(|_| Entry::free()).collect(),
            owner: AtomicU64::new(Slot::NONE.index() as u64),
            drains: AtomicU32::new(0),
        }
    }

    /// Notes which thread uses the queue.
    #[inline]
    pub(crate) fn set_owner(&self, thread: Slot) {
        let owner = thread.index() as u64;
        if self.owner.load(Ordering::Relaxed) != owner {
            self.owner.store(owner, Ordering::Relaxed);
        }
    }

    fn owned_by(&self, thread: Slot) -> bool {
        thread != Slot::NONE && self.owner.load(Ordering::Relaxed) == thread.index() as u64
    }

    /// Counts the request in `slot` as direct I/O on `inode`. Called before the inode's lock is
    /// released, whose release makes the entry visible to the next exclusive holder.
    #[inline(always)]
    pub(crate) fn raise(&self, slot: usize, inode: &InFlight, note: Note) {
        let entry = &self.entries[slot];
        for (place, word) in entry.note.iter().zip(note) {
            place.store(word, Ordering::Relaxed);
        }
        entry.inode.store(inode.id, Ordering::Relaxed);
    }

    /// What was noted with the request in `slot`.
    #[inline(always)]
    pub(crate) fn note(&self, slot: usize) -> Note {
        let [a, b, c] = &self.entries[slot].note;
        [a, b, c].map(|word| word.load(Ordering::Relaxed))
    }

    /// Ends what [`InFlightTable::raise`] began. Once all that came back together has been ended,
    /// the queue asks [`InFlightTable::is_drained`].
    #[inline(always)]
    pub(crate) fn drop_last(&self, slot: usize) {
        self.entries[slot].inode.store(NOBODY, Ordering::Release);
    }

    /// Whether a drain may wait for a request that has left: then the queue wakes the drains of
    /// its inodes by [`InFlight::wake`].
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        // Pairs with the heavy fence in `drain`: either it sees the entries free, or we see it.
        fence::light();
        self.drains.load(Ordering::Relaxed) != 0
    }

    fn names(&self, id: u64) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.inode.load(Ordering::Acquire) == id)
    }
}

/// All tables of a mount.
#[derive(Debug, Default)]
pub(crate) struct InFlightRegistry {
    tables: Mutex<Vec<Weak<InFlightTable>>>,
}

impl InFlightRegistry {
    /// Adds a queue's table; it leaves when the queue is dropped.
    pub(crate) fn register(&self, table: &Arc<InFlightTable>) {
        let mut tables = self.tables.lock();
        tables.retain(|table| table.strong_count() > 0);
        tables.push(Arc::downgrade(table));
    }

    fn live(&self) -> Vec<Arc<InFlightTable>> {
        self.tables
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }
}

/// The inode's side of the count.
#[derive(Debug)]
pub(crate) struct InFlight {
    id: u64,
    /// How many threads are in [`InFlight::drain`]; with the lock exclusive, at most one.
    draining: AtomicU32,
    /// I/O that has no slot in a table: synchronous without the lock, or in a completion worker.
    counted: AtomicU32,
    left: Event,
}

impl InFlight {
    /// `id` names the inode in the tables; unique in the mount, not 0.
    pub(crate) fn new(id: u64) -> InFlight {
        assert_ne!(id, NOBODY, "0 means no inode");
        InFlight {
            id,
            draining: AtomicU32::new(0),
            counted: AtomicU32::new(0),
            left: Event::new(),
        }
    }

    /// The name in the tables.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Counts an I/O that has no slot in a table. Called before the lock is released; ended by
    /// [`InFlight::lower`].
    pub(crate) fn raise(&self) {
        self.counted.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends what [`InFlight::raise`] began.
    pub(crate) fn lower(&self) {
        self.counted.fetch_sub(1, Ordering::Release);
        // As in `is_drained`, with the count in place of the entries.
        fence::light();
        self.wake();
    }

    /// Wakes a drain that may wait for what has left.
    pub(crate) fn wake(&self) {
        if self.draining.load(Ordering::Relaxed) != 0 {
            self.left.notify();
        }
    }

    /// Whether no direct I/O on this inode is in flight. The caller holds the inode's lock exclusive.
    pub(crate) fn is_quiet(&self, registry: &InFlightRegistry) -> bool {
        let named = registry.live().iter().any(|table| table.names(self.id));
        !named && self.counted.load(Ordering::Acquire) == 0
    }

    /// Waits until no direct I/O on this inode is in flight (`inode_dio_wait`). The caller holds
    /// the inode's lock exclusive, so no new one starts. Returns whether it had to wait.
    ///
    /// # Errors
    /// If a queue that `thread` itself uses has unreaped requests on the inode.
    pub(crate) fn drain(
        &self,
        registry: &InFlightRegistry,
        thread: Slot,
    ) -> Result<bool, WaitsForSelf> {
        // None starts meanwhile: what was is to be seen, because the lock was released after it.
        if self.is_quiet(registry) {
            return Ok(false);
        }
        let tables = registry.live();
        if tables
            .iter()
            .any(|table| table.owned_by(thread) && table.names(self.id))
        {
            return Err(WaitsForSelf);
        }
        Ok(self.drain_tables(&tables))
    }

    fn drain_tables(&self, tables: &[Arc<InFlightTable>]) -> bool {
        let drains = tables.iter().map(|table| &table.drains);
        let announced = drains.chain([&self.draining]);
        announced.clone().for_each(|count| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        fence::heavy();
        let waited = self.left.wait_while(|| {
            // The tables first: a completion that is handed to a worker is counted before it leaves
            // its entry.
            tables.iter().any(|t| t.names(self.id)) || self.counted.load(Ordering::Acquire) > 0
        });
        announced.for_each(|count| {
            count.fetch_sub(1, Ordering::Relaxed);
        });
        waited
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn drain_waits_for_entry_and_counter() {
        let registry = InFlightRegistry::default();
        let table = Arc::new(InFlightTable::new(4));
        registry.register(&table);
        let inode = Arc::new(InFlight::new(9));
        table.raise(2, &inode, [0; 3]);
        inode.raise();
        let (done, drained) = std::sync::mpsc::channel();
        let drainer = {
            let inode = inode.clone();
            std::thread::spawn(move || {
                let waited = inode.drain(&registry, Slot::NONE);
                done.send(()).expect("the test waits");
                waited
            })
        };
        table.drop_last(2);
        if table.is_drained() {
            inode.wake();
        }
        assert!(drained.recv_timeout(Duration::from_millis(50)).is_err());
        inode.lower();
        assert!(drained.recv_timeout(Duration::from_secs(10)).is_ok());
        assert_eq!(drainer.join().expect("no panic"), Ok(true));
    }

    #[test]
    fn drain_of_another_inode_does_not_wait() {
        let registry = InFlightRegistry::default();
        let table = Arc::new(InFlightTable::new(4));
        registry.register(&table);
        table.raise(0, &InFlight::new(1), [0; 3]);
        assert_eq!(InFlight::new(2).drain(&registry, Slot::NONE), Ok(false));
    }

    #[test]
    fn drain_by_the_owner_of_the_queue_is_a_deadlock() {
        let registry = InFlightRegistry::default();
        let table = Arc::new(InFlightTable::new(4));
        registry.register(&table);
        table.set_owner(Slot::of(5));
        let inode = InFlight::new(1);
        table.raise(0, &inode, [0; 3]);
        assert_eq!(inode.drain(&registry, Slot::of(5)), Err(WaitsForSelf));
        table.drop_last(0);
        assert_eq!(inode.drain(&registry, Slot::of(5)), Ok(false));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::rwsem::{Presence, Rwsem};
    use loom::cell::UnsafeCell;
    use loom::thread;

    /// A block that a truncate frees and a request writes into; loom watches it.
    struct Block {
        lock: Rwsem,
        io: InFlight,
        table: Arc<InFlightTable>,
        block: UnsafeCell<u32>,
    }

    #[allow(unsafe_code)]
    // SAFETY: access to the cell is what the count under test must guard; loom checks every access.
    unsafe impl Sync for Block {}

    impl Block {
        fn new() -> Arc<Block> {
            Arc::new(Block {
                lock: Rwsem::biased(1, Presence::leaked()),
                io: InFlight::new(1),
                table: Arc::new(InFlightTable::new(1)),
                block: UnsafeCell::new(0),
            })
        }

        #[allow(unsafe_code)]
        fn touch(&self) {
            // SAFETY: loom aborts the model if two threads are here at once.
            self.block.with_mut(|block| unsafe { *block += 1 });
        }

        /// What every queued request does under the lock: it is in flight before the lock is gone.
        fn submit(&self) {
            let _together = self.lock.shared(Slot::of(0));
            self.table.raise(0, &self.io, [0; 3]);
        }

        /// What the queue does when it reaps.
        fn finish(&self) {
            self.table.drop_last(0);
            if self.table.is_drained() {
                self.io.wake();
            }
        }

        /// A truncate: alone, and after every request in flight.
        fn free(&self) {
            let _alone = self.lock.exclusive();
            self.io.drain_tables(std::slice::from_ref(&self.table));
            self.touch();
        }
    }

    #[test]
    fn loom_request_counted_before_unlock_is_drained() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Block::new();
            let request = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.submit();
                    shared.touch();
                    shared.finish();
                })
            };
            shared.free();
            request.join().expect("no panic");
        });
    }

    #[test]
    fn loom_completion_handed_to_a_worker_is_drained() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let shared = Block::new();
            let request = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.submit();
                    shared.io.raise();
                    shared.table.drop_last(0);
                    shared.touch();
                    shared.io.lower();
                })
            };
            shared.free();
            request.join().expect("no panic");
        });
    }
}
