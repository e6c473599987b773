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
//! refused as a deadlock. So is a drain that would make a circle of threads, each of which drains what
//! the next one has to reap, in one mount or in several, and a drain of what nobody can reap any more: the table of a queue that
//! was dropped before its requests had ended stays for ever.
//!
//! Old policies read without the lock, so holding it keeps no such reader out. Who frees blocks
//! therefore closes the inode to them first ([`InFlight::close`]); a reader that finds it closed once
//! it has raised its count takes the lock like everybody else.

use super::errand::{self, AllStanding};
use super::fence;
use super::prim::{AtomicU32, AtomicU64, Event, Ordering, full_fence};
use super::slot::thread_id;
use crate::Error;
use parking_lot::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock, Weak};

/// Of [`InFlight::draining`]: no reader without the lock comes in.
const CLOSED: u32 = 1 << 31;

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
    /// Of the thread that used the queue last, or 0.
    owner: AtomicU64,
    /// The queue is gone, and what is in flight was left to the device.
    lost: AtomicBool,
    /// How many drains look at this table.
    drains: AtomicU32,
    /// [`fence::init`], beside what is looked at with it.
    asymmetric: bool,
}

impl Entry {
    fn free() -> Entry {
        Entry {
            inode: AtomicU64::new(NOBODY),
            note: Default::default(),
        }
    }
}

/// Why a drain would never end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endless {
    /// It would wait for requests in a queue of the calling thread's own.
    OwnQueue,
    /// It would wait for a thread that waits for requests in a queue of the calling thread's own, be it through others.
    Circle,
    /// It would wait for requests that nobody can reap.
    LostQueue,
}

impl From<Endless> for Error {
    fn from(why: Endless) -> Error {
        Error::Deadlock(match why {
            Endless::OwnQueue => {
                "the file has requests in this thread's own queue; reap them first"
            }
            Endless::Circle => {
                "the file has requests in the queue of a thread that waits for those in this thread's own queue; reap these first"
            }
            Endless::LostQueue => return Error::LostQueue,
        })
    }
}

impl InFlightTable {
    pub(crate) fn new(depth: usize) -> InFlightTable {
        InFlightTable {
            entries: (0..depth).map(|_| Entry::free()).collect(),
            owner: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            drains: AtomicU32::new(0),
            asymmetric: fence::init(),
        }
    }

    /// Notes that the calling thread uses the queue.
    #[inline(always)]
    pub(crate) fn set_owner(&self) {
        let owner = thread_id();
        if self.owner.load(Ordering::Relaxed) != owner {
            self.owner.store(owner, Ordering::Relaxed);
        }
    }

    fn owner(&self) -> u64 {
        self.owner.load(Ordering::Relaxed)
    }

    fn is_own(&self) -> bool {
        self.owner() == thread_id()
    }

    /// Whether the calling thread can reap what is in it.
    fn is_reaped_here(&self) -> bool {
        self.is_own() && !self.lost.load(Ordering::Relaxed)
    }

    /// The queue goes, and leaves what is in flight to the device: these inodes are never quiet again, for as long as they are in
    /// memory. True if there was something: then the queue wakes the drains of its inodes by [`InFlight::wake`].
    pub(crate) fn lose(self: &Arc<Self>) -> bool {
        let loses = self.used().next().is_some();
        if loses {
            self.lost.store(true, Ordering::Release);
            // Pairs with the heavy fence in `drain`: either it sees that, or we see it.
            full_fence(Ordering::SeqCst);
            // The registry has no other.
            std::mem::forget(self.clone());
        }
        loses
    }

    /// Counts the request in `slot` as direct I/O on `inode`. Called before the inode's lock is
    /// released, whose release makes the entry visible to the next exclusive holder.
    #[inline(always)]
    pub(crate) fn raise(&self, slot: usize, inode: &InFlight, note: Note) {
        self.renote(slot, note);
        self.entries[slot].inode.store(inode.id, Ordering::Relaxed);
    }

    /// What was noted with the request in `slot`.
    #[inline(always)]
    pub(crate) fn note(&self, slot: usize) -> Note {
        let [a, b, c] = &self.entries[slot].note;
        [a, b, c].map(|word| word.load(Ordering::Relaxed))
    }

    /// Notes something else with the request in `slot`. By the queue alone.
    #[inline(always)]
    pub(crate) fn renote(&self, slot: usize, note: Note) {
        for (place, word) in self.entries[slot].note.iter().zip(note) {
            place.store(word, Ordering::Relaxed);
        }
    }

    /// The slots of requests in flight. By the queue alone.
    pub(crate) fn used(&self) -> impl Iterator<Item = usize> + '_ {
        let entries = self.entries.iter().enumerate();
        let used = entries.filter(|(_, entry)| entry.inode.load(Ordering::Relaxed) != NOBODY);
        used.map(|(slot, _)| slot)
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
        fence::light_as(self.asymmetric);
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
    tables: Tables,
    /// Where the mount's workers stand, whichever queue sent them.
    standing: Arc<AllStanding>,
    all: Arc<AllInFlight>,
}

/// What is in flight in several mounts, and who waits: threads can wait for each other across mounts.
#[derive(Debug, Default)]
struct AllInFlight {
    tables: Tables,
    /// Drains that wait, and threads with requests in flight that want the lock of a file. Few, and a thread is there once at most.
    waiting: Mutex<Vec<Waiting>>,
}

/// Those whose queues are there.
#[derive(Debug, Default)]
struct Tables(Mutex<Vec<Weak<InFlightTable>>>);

impl Tables {
    fn add(&self, table: &Arc<InFlightTable>) {
        let mut tables = self.0.lock();
        tables.retain(|table| table.strong_count() > 0);
        tables.push(Arc::downgrade(table));
    }

    fn live(&self) -> Vec<Arc<InFlightTable>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// A thread that waits for what is in flight on an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    thread: u64,
    inode: u64,
    /// It drains. Else it wants the lock, and waits for what is in flight as long as who has it drains.
    drains: bool,
}

/// The calling thread waits until this is dropped.
pub(crate) struct Noted<'a>(&'a AllInFlight, Waiting);

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.0.waiting.lock().retain(|waiting| *waiting != self.1);
    }
}

impl InFlightRegistry {
    /// Of one more mount of the process.
    pub(crate) fn of_mount() -> InFlightRegistry {
        static ALL: LazyLock<Arc<AllInFlight>> = LazyLock::new(Arc::default);
        InFlightRegistry::beside(&ALL)
    }

    fn beside(all: &Arc<AllInFlight>) -> InFlightRegistry {
        InFlightRegistry {
            tables: Tables::default(),
            standing: Arc::default(),
            all: all.clone(),
        }
    }

    /// Adds a queue's table; it leaves when the queue is dropped.
    pub(crate) fn register(&self, table: &Arc<InFlightTable>) {
        self.tables.add(table);
        self.all.tables.add(table);
    }

    /// The tables of the calling thread's queues, but for `table`. A queue is of the thread that used it last.
    pub(crate) fn others_of_this_thread(
        &self,
        table: &Arc<InFlightTable>,
    ) -> Vec<Arc<InFlightTable>> {
        let mut tables = self.all.tables.live();
        tables.retain(|other| other.is_reaped_here() && !Arc::ptr_eq(other, table));
        tables
    }

    /// Notes that the calling thread is about to wait for what is in flight on an inode. None if it would wait for itself through
    /// others: what it waits for is in tables of threads that wait themselves, and so on to a table of its own. Who closes such a
    /// circle is the last to come, and nothing of it changes while they wait.
    fn note(&self, inode: u64) -> Option<Noted<'_>> {
        let tables = self.all.tables.live();
        let mut waiting = self.all.waiting.lock();
        if leads_to(&waiting, inode, &tables, |table| table.is_own()) {
            return None;
        }
        let own = Waiting {
            thread: thread_id(),
            inode,
            drains: true,
        };
        waiting.push(own);
        Some(Noted(&self.all, own))
    }

    /// Whether the calling thread has requests in flight that only it can reap.
    pub(crate) fn has_own_requests(&self) -> bool {
        let tables = self.all.tables.live();
        let mut own = tables.iter().filter(|table| table.is_reaped_here());
        own.any(|table| table.used().next().is_some())
    }

    /// Notes that the calling thread, which has requests in flight, wants the lock of an inode.
    pub(crate) fn note_lock(&self, inode: &InFlight) -> Noted<'_> {
        let own = Waiting {
            thread: thread_id(),
            inode: inode.id,
            drains: false,
        };
        self.all.waiting.lock().push(own);
        Noted(&self.all, own)
    }

    /// Whether who has the lock of an inode drains it, and waits for the calling thread by that, be it through others.
    pub(crate) fn waits_for_self(&self, inode: &InFlight) -> bool {
        let tables = self.all.tables.live();
        let waiting = self.all.waiting.lock();
        is_drained(&waiting, inode.id)
            && leads_to(&waiting, inode.id, &tables, |table| table.is_own())
    }

    /// Whether who drains an inode waits for requests in some tables, be it through others.
    pub(crate) fn waits_for(&self, inode: &InFlight, goal: &[Arc<InFlightTable>]) -> bool {
        let tables = self.all.tables.live();
        let waiting = self.all.waiting.lock();
        let is_goal = |table: &Arc<_>| goal.iter().any(|other| Arc::ptr_eq(other, table));
        is_drained(&waiting, inode.id) && leads_to(&waiting, inode.id, &tables, is_goal)
    }

    /// Where errands tell that they stand.
    pub(crate) fn standing(&self) -> Arc<AllStanding> {
        self.standing.clone()
    }

    /// How many workers stand at files that are drained of requests in these tables.
    pub(crate) fn stand_for(&self, tables: &[Arc<InFlightTable>]) -> usize {
        let live = self.all.tables.live();
        let waiting = self.all.waiting.lock().clone();
        let is_goal = |table: &Arc<_>| tables.iter().any(|other| Arc::ptr_eq(other, table));
        let drained = waiting.iter().filter(|it| it.drains).map(|it| it.inode);
        let awaited: Vec<u64> = drained
            .filter(|inode| leads_to(&waiting, *inode, &live, is_goal))
            .collect();
        let standing = self.standing.lock();
        standing
            .iter()
            .filter(|inode| awaited.contains(inode))
            .count()
    }

    fn live(&self) -> Vec<Arc<InFlightTable>> {
        self.tables.live()
    }
}

fn is_drained(waiting: &[Waiting], inode: u64) -> bool {
    waiting.iter().any(|it| it.drains && it.inode == inode)
}

/// Whether who waits for what is in flight on an inode waits for requests in a table that is the goal: that has some on it, or is one of
/// a thread that waits, and so on.
fn leads_to(
    waiting: &[Waiting],
    inode: u64,
    tables: &[Arc<InFlightTable>],
    is_goal: impl Fn(&Arc<InFlightTable>) -> bool,
) -> bool {
    let mut awaited = vec![inode];
    let mut next = 0;
    while let Some(&inode) = awaited.get(next) {
        next += 1;
        for table in tables.iter().filter(|table| table.names(inode)) {
            if is_goal(table) {
                return true;
            }
            let owner = table.owner();
            let of_owner = waiting.iter().filter(|it| it.thread == owner);
            for it in of_owner.filter(|it| it.drains || is_drained(waiting, it.inode)) {
                if !awaited.contains(&it.inode) {
                    awaited.push(it.inode);
                }
            }
        }
    }
    false
}

/// The inode's side of the count.
#[derive(Debug)]
pub(crate) struct InFlight {
    id: u64,
    /// How many threads are in [`InFlight::drain`]; with the lock exclusive, at most one. And [`CLOSED`], while somebody who has
    /// the lock exclusive keeps out readers without it: in one word, because what comes behind is where readers look.
    draining: AtomicU32,
    /// I/O that has no slot in a table: synchronous without the lock, or in a completion worker.
    counted: AtomicU32,
    left: Event,
}

/// Keeps readers without the lock out until it is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Closed<'a>(&'a InFlight);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.draining.fetch_and(!CLOSED, Ordering::Release);
    }
}

impl InFlight {
    /// `id` names the inode in the tables; unique in the process, not 0.
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

    /// As [`InFlight::raise`], by a reader who has no lock. Whether it may go on; otherwise nothing is counted, and it
    /// takes the lock.
    pub(crate) fn raise_unlocked(&self) -> bool {
        self.raise();
        // Pairs with the fence in `close`: either it sees the count, or we see that it is closed.
        full_fence(Ordering::SeqCst);
        // Acquire: who opened it has changed the map before.
        let open = self.draining.load(Ordering::Acquire) & CLOSED == 0;
        if !open {
            self.lower();
        }
        open
    }

    /// Lets no more readers in that have no lock. The caller has the lock exclusive, keeps it for as long, and waits for
    /// those who are in by [`InFlight::drain`].
    pub(crate) fn close(&self) -> Closed<'_> {
        self.draining.fetch_or(CLOSED, Ordering::Relaxed);
        full_fence(Ordering::SeqCst);
        Closed(self)
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
        if self.is_being_drained() {
            self.left.notify();
        }
    }

    /// Whether no direct I/O on this inode is in flight. The caller holds the inode's lock exclusive.
    pub(crate) fn is_quiet(&self, registry: &InFlightRegistry) -> bool {
        self.is_quiet_in(&registry.live())
    }

    fn is_quiet_in(&self, tables: &[Arc<InFlightTable>]) -> bool {
        // The count on both sides of the tables: a reader without the lock is counted until it has its entry, a
        // completion that is handed to a worker before it leaves its.
        let is_uncounted = || self.counted.load(Ordering::Acquire) == 0;
        is_uncounted() && !tables.iter().any(|table| table.names(self.id)) && is_uncounted()
    }

    /// Whether somebody waits for what is in flight.
    pub(crate) fn is_being_drained(&self) -> bool {
        self.draining.load(Ordering::Relaxed) & !CLOSED != 0
    }

    /// Whether somebody waits for requests on this inode that are in these tables.
    pub(crate) fn is_awaited_in(&self, tables: &[Arc<InFlightTable>]) -> bool {
        // Acquire: who drains has the lock, and is seen after all that those did who had it before.
        let drained = self.draining.load(Ordering::Acquire) & !CLOSED != 0;
        drained && tables.iter().any(|table| table.names(self.id))
    }

    /// Whether the calling thread's own queues have unreaped requests on this inode.
    pub(crate) fn is_awaited_by_self(&self, registry: &InFlightRegistry) -> bool {
        let tables = registry.live();
        tables
            .iter()
            .any(|table| table.is_own() && table.names(self.id))
    }

    /// Waits until no direct I/O on this inode is in flight (`inode_dio_wait`). The caller holds
    /// the inode's lock exclusive, so no new one starts, but of readers without the lock: see [`InFlight::close`]. Returns
    /// whether it had to wait.
    ///
    /// # Errors
    /// If it would wait for ever.
    pub(crate) fn drain(&self, registry: &InFlightRegistry) -> Result<bool, Endless> {
        let tables = registry.live();
        // None starts meanwhile: what was is to be seen, because the lock was released after it.
        if self.is_quiet_in(&tables) {
            return Ok(false);
        }
        let not_lost = || match self.is_lost_in(&tables) {
            true => Err(Endless::LostQueue),
            false => Ok(()),
        };
        not_lost()?;
        let mut own = tables.iter().filter(|table| table.is_own());
        if own.any(|table| table.names(self.id)) {
            return Err(Endless::OwnQueue);
        }
        let noted = registry.note(self.id).ok_or(Endless::Circle)?;
        let waited = self.drain_tables(&tables);
        drop(noted);
        not_lost()?;
        Ok(waited)
    }

    /// Whether a queue that is gone has left requests on this inode.
    fn is_lost_in(&self, tables: &[Arc<InFlightTable>]) -> bool {
        let is_lost = |table: &&Arc<InFlightTable>| table.lost.load(Ordering::Acquire);
        let mut lost = tables.iter().filter(is_lost);
        lost.any(|table| table.names(self.id))
    }

    fn drain_tables(&self, tables: &[Arc<InFlightTable>]) -> bool {
        let _standing = errand::stand(self.id);
        let drains = tables.iter().map(|table| &table.drains);
        let announced = drains.chain([&self.draining]);
        announced.clone().for_each(|count| {
            count.fetch_add(1, Ordering::Release);
        });
        fence::heavy();
        let waited = self
            .left
            .wait_while(|| !self.is_quiet_in(tables) && !self.is_lost_in(tables));
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
                let waited = inode.drain(&registry);
                done.send(()).expect("the test waits");
                waited
            })
        };
        while !inode.is_being_drained() {
            std::thread::yield_now();
        }
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
        assert_eq!(InFlight::new(2).drain(&registry), Ok(false));
    }

    #[test]
    fn drain_by_the_owner_of_the_queue_is_a_deadlock() {
        let registry = InFlightRegistry::default();
        let table = Arc::new(InFlightTable::new(4));
        registry.register(&table);
        table.set_owner();
        let inode = InFlight::new(1);
        table.raise(0, &inode, [0; 3]);
        assert_eq!(inode.drain(&registry), Err(Endless::OwnQueue));
        let elsewhere = std::thread::scope(|scope| {
            let asked = scope.spawn(|| inode.is_awaited_by_self(&registry));
            asked.join().expect("no panic")
        });
        assert!(!elsewhere);
        table.drop_last(0);
        assert_eq!(inode.drain(&registry), Ok(false));
    }

    // Each waited for the other for ever.
    #[test]
    fn drain_that_closes_a_circle_of_threads_is_a_deadlock() {
        let registry = InFlightRegistry::default();
        let tables = [1, 2, 3].map(|_| Arc::new(InFlightTable::new(4)));
        tables.iter().for_each(|table| registry.register(table));
        let inodes = [1, 2, 3].map(InFlight::new);
        // Each has requests on an inode that the one before drains.
        let (registry, tables, inodes) = (&registry, &tables, &inodes);
        let wait_for = |at: usize| {
            while !inodes[at].is_being_drained() {
                std::thread::yield_now();
            }
        };
        tables[0].set_owner();
        tables[0].raise(0, &inodes[0], [0; 3]);
        std::thread::scope(|scope| {
            let others = [1, 2].map(|at| {
                let drain = scope.spawn(move || {
                    tables[at].set_owner();
                    tables[at].raise(0, &inodes[at], [0; 3]);
                    let drained = inodes[at - 1].drain(registry);
                    tables[at].drop_last(0);
                    inodes[at].wake();
                    drained
                });
                wait_for(at - 1);
                drain
            });
            assert_eq!(inodes[2].drain(registry), Err(Endless::Circle));
            tables[0].drop_last(0);
            inodes[0].wake();
            for drain in others {
                // It may have been noted and not have waited yet when the circle was broken.
                assert!(drain.join().expect("no panic").is_ok());
            }
        });
        assert_eq!(inodes[2].drain(registry), Ok(false));
        assert!(registry.all.waiting.lock().is_empty());
    }

    // Each waited for the other for ever.
    #[test]
    fn drain_that_closes_a_circle_through_two_mounts_is_a_deadlock() {
        let first = InFlightRegistry::default();
        let second = InFlightRegistry::beside(&first.all);
        let (registries, inodes) = ([&first, &second], [1, 2].map(InFlight::new));
        let tables = [1, 2].map(|_| Arc::new(InFlightTable::new(4)));
        for at in 0..2 {
            registries[at].register(&tables[at]);
        }
        tables[0].set_owner();
        tables[0].raise(0, &inodes[0], [0; 3]);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                tables[1].set_owner();
                tables[1].raise(0, &inodes[1], [0; 3]);
                inodes[0].drain(&first)
            });
            while !inodes[0].is_being_drained() {
                std::thread::yield_now();
            }
            assert_eq!(inodes[1].drain(&second), Err(Endless::Circle));
            tables[0].drop_last(0);
            inodes[0].wake();
            // It may have been noted and not have waited yet when the circle was broken.
            assert!(other.join().expect("no panic").is_ok());
        });
    }

    #[test]
    fn drain_of_what_a_lost_queue_left_is_refused() {
        let registry = InFlightRegistry::default();
        let table = Arc::new(InFlightTable::new(4));
        registry.register(&table);
        let inode = InFlight::new(1);
        table.raise(0, &inode, [0; 3]);
        table.lose();
        drop(table);
        assert!(!inode.is_quiet(&registry));
        assert_eq!(inode.drain(&registry), Err(Endless::LostQueue));
        assert_eq!(InFlight::new(2).drain(&registry), Ok(false));
    }

    #[test]
    fn drain_ends_when_the_queue_that_it_waits_for_is_lost() {
        let registry = InFlightRegistry::default();
        let table = Arc::new(InFlightTable::new(4));
        registry.register(&table);
        let inode = Arc::new(InFlight::new(1));
        table.raise(0, &inode, [0; 3]);
        let (done, drained) = std::sync::mpsc::channel();
        {
            let inode = inode.clone();
            std::thread::spawn(move || done.send(inode.drain(&registry)))
        };
        assert!(drained.recv_timeout(Duration::from_millis(50)).is_err());
        assert!(table.lose());
        inode.wake();
        let ended = drained.recv_timeout(Duration::from_secs(10));
        assert_eq!(ended, Ok(Err(Endless::LostQueue)));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::rwsem::{Presence, Rwsem};
    use crate::sync::slot::Slot;
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

        /// What a reader does under policies that take no lock.
        fn read_unlocked(&self) {
            match self.io.raise_unlocked() {
                true => {
                    self.look();
                    self.io.lower();
                }
                false => {
                    let _together = self.lock.shared(Slot::of(1));
                    self.look();
                }
            }
        }

        #[allow(unsafe_code)]
        fn look(&self) {
            // SAFETY: loom aborts the model if somebody changes it meanwhile.
            self.block
                .with(|block| unsafe { std::hint::black_box(*block) });
        }

        /// A truncate: alone, and after every request in flight.
        fn free(&self) {
            let _alone = self.lock.exclusive();
            let _closed = self.io.close();
            let tables = std::slice::from_ref(&self.table);
            if !self.io.is_quiet_in(tables) {
                self.io.drain_tables(tables);
            }
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
    fn loom_reader_without_the_lock_and_a_truncate_keep_apart() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Block::new();
            let reader = {
                let shared = shared.clone();
                thread::spawn(move || shared.read_unlocked())
            };
            shared.free();
            reader.join().expect("no panic");
        });
    }

    #[test]
    fn loom_queued_reader_without_the_lock_is_drained() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Block::new();
            let reader = {
                let shared = shared.clone();
                thread::spawn(move || {
                    if shared.io.raise_unlocked() {
                        shared.table.raise(0, &shared.io, [0; 3]);
                        shared.io.lower();
                        shared.look();
                        shared.finish();
                    }
                })
            };
            shared.free();
            reader.join().expect("no panic");
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
