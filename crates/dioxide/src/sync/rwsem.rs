//! The inode's reader-writer lock (`i_rwsem`).
//!
//! Threads that read or overwrite one file all take it shared, millions of times a second, so two
//! of them must not meet in a cache line. A reader therefore announces itself in an entry of a
//! [`Presence`] table that only it writes, and needs no atomic read-modify-write; a writer takes
//! the underlying lock, revokes the *bias*, and waits until no entry names this lock. After a
//! revocation readers use the underlying lock, which queues fairly, until [`REBIAS_AFTER`] of them
//! came in without a writer between. (The published idea is BRAVO, biased locking for
//! reader-writer locks; the single-writer entries and the asymmetric fence are ours.)
//!
//! A writer that lets readers go on needs them to announce themselves in an order that it sees, and not a fence of the
//! kernel's each time: while such writers come often the bias is [`FENCED`], and each announcement has a fence of its own.
//!
//! Invariants:
//! - `bias` becomes [`BIASED`] or [`FENCED`] only under the underlying lock held shared, as the last thing that a writer does,
//!   or from one of the two to the other, and leaves these two only under the underlying lock held exclusive. So while a
//!   writer that keeps readers out holds the lock, no reader can announce itself.
//! - A reader is inside if its entry names the lock *and* it then saw [`BIASED`], or [`FENCED`] after a fence.
//! - In state [`UNBIASED`] no entry names the lock for longer than an attempt takes.
//! - A writer that leaves the bias alone ([`Rwsem::beside_readers`]) keeps out all but readers that announce
//!   themselves. Once it has seen each entry that named the lock change ([`Beside::all_have_left`]), whoever was inside when it
//!   began to look has left, and whoever is inside came after what it had stored before.
//! - One owner has one entry per table, so a nested shared lock takes the underlying lock.
//!
//! Rejected: a per-CPU or sharded reader count. It needs a read-modify-write on lock and unlock,
//! several cache lines per inode, and on two cores gains nothing over this.

use super::fence;
use super::prim::{
    AtomicU32, AtomicU64, Event, Held, Ordering, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard,
    full_fence,
};
#[cfg(not(loom))]
use super::slot::SLOTS;
use super::slot::Slot;
use crossbeam_utils::CachePadded;
use std::time::Duration;

/// Shared acquisitions of the underlying lock, none exclusive between, after which readers may
/// use the table again. A revocation costs a few microseconds, the underlying lock about 10 ns
/// more than an entry: this many make a revocation worth its price.
#[cfg(not(loom))]
const REBIAS_AFTER: u32 = 1024;
#[cfg(loom)]
const REBIAS_AFTER: u32 = 1;

/// The same for a lock that is new: many files are never read, but changed or removed, and there is nothing to revoke then.
#[cfg(not(loom))]
const FIRST_BIAS_AFTER: u32 = 8;
#[cfg(loom)]
const FIRST_BIAS_AFTER: u32 = 1;

/// A writer that would have let readers go on counts as so many: each may have a reader of the underlying lock sleep.
const BESIDE_COUNTS_AS: u32 = REBIAS_AFTER.div_ceil(8);

/// After so many announcements with a fence a reader spares the next ones theirs: together they cost as much
/// as an interrupt of each processor that reads.
#[cfg(not(loom))]
const UNFENCE_AFTER: u64 = 8192;
#[cfg(loom)]
const UNFENCE_AFTER: u64 = 2;

/// Readers announce themselves in the table.
const BIASED: u32 = 1;
/// The same, each with a full fence, until one has come in [`UNFENCE_AFTER`] times.
const FENCED: u32 = 3;
/// The bias was revoked, and readers that announced themselves before may still be inside.
const REVOKING: u32 = 2;
/// Readers use the underlying lock.
const UNBIASED: u32 = 0;

/// Where readers announce themselves: one entry per owner, for all locks of the process. Locks hold a reference
/// that nobody counts, because making inodes is where threads would meet in the count.
#[derive(Debug)]
pub(crate) struct Presence {
    entries: [CachePadded<AtomicU64>; ENTRIES],
    /// Whether locks may be biased: only where the fences are asymmetric, since with full fences the
    /// underlying lock is as cheap.
    biased: bool,
}

#[cfg(not(loom))]
const ENTRIES: usize = SLOTS;
#[cfg(loom)]
const ENTRIES: usize = 3;

/// No lock: entry is free.
const NOBODY: u64 = 0;
/// An entry is the name of a lock above a count of announcements, which tells a reader that came back from one that
/// stayed: the two stores of leaving and coming back may become visible together.
const COUNT_BITS: u32 = 16;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// How often a writer looks at readers that are to leave before it sleeps between two looks: some tens of microseconds,
/// where a reader that copies from memory takes one.
#[cfg(not(loom))]
const GLANCES: u32 = 1000;
#[cfg(loom)]
const GLANCES: u32 = 1;

/// How often it then looks, the sleeps doubling from 16 µs: a millisecond in all. A reader that was taken off its processor is
/// back by then; who keeps readers out instead has them all sleep, and wakes them.
#[cfg(not(loom))]
const NAPS: u32 = 6;
#[cfg(loom)]
const NAPS: u32 = 0;
const FIRST_NAP: Duration = Duration::from_micros(16);

impl Presence {
    fn new() -> Presence {
        Presence {
            entries: std::array::from_fn(|_| CachePadded::new(AtomicU64::new(NOBODY))),
            biased: fence::init(),
        }
    }

    #[cfg(not(loom))]
    pub(crate) fn of_process() -> &'static Presence {
        static TABLE: std::sync::OnceLock<Presence> = std::sync::OnceLock::new();
        TABLE.get_or_init(Presence::new)
    }

    #[cfg(loom)]
    pub(crate) fn of_process() -> &'static Presence {
        Presence::leaked()
    }

    #[cfg(any(test, loom))]
    pub(crate) fn leaked() -> &'static Presence {
        Box::leak(Box::new(Presence::new()))
    }

    fn names(&self, id: u64) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.load(Ordering::Acquire) >> COUNT_BITS == id)
    }
}

/// A full fence behind an announcement. Where each atomic exchange is one, it is cheaper than the instruction that is
/// nothing else, which waits for the copies of earlier requests as well.
#[inline]
fn announced_to_all(entry: &AtomicU64, announcement: u64) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    entry.swap(announcement, Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    {
        let _ = (entry, announcement);
        full_fence(Ordering::SeqCst);
    }
}

/// The lock. `id` is unique among the locks that share a presence table, and not 0. What readers who announce themselves
/// look at is the first half.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Rwsem {
    id: u64,
    presence: &'static Presence,
    /// [`BIASED`], [`FENCED`], [`REVOKING`] or [`UNBIASED`].
    bias: AtomicU32,
    /// Shared acquisitions of `raw` since the bias was revoked, and writers beside readers.
    unbiased_reads: AtomicU32,
    raw: RwLock<()>,
    /// A writer waits here for announced readers to leave.
    left: Event,
}

/// Proof that the lock is held shared.
#[derive(Debug)]
#[must_use]
pub(crate) enum Shared<'a> {
    /// Announced in the table.
    Announced(#[allow(dead_code)] Announced<'a>),
    /// Through the underlying lock.
    Raw(
        #[allow(dead_code)] RwLockReadGuard<'a, ()>,
        #[allow(dead_code)] Held,
    ),
}

/// An announcement, withdrawn when dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Announced<'a> {
    sem: &'a Rwsem,
    entry: &'a AtomicU64,
    _held: Held,
}

impl Drop for Announced<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Ours: nobody else writes it.
        let count = self.entry.load(Ordering::Relaxed) & COUNT_MASK;
        self.entry.store(count, Ordering::Release);
        // Pairs with the writer's heavy fence: either it sees the entry free, or we see the bias
        // revoked and wake it.
        fence::light_only();
        if self.sem.bias.load(Ordering::Relaxed) == REVOKING {
            self.sem.left.notify();
        }
    }
}

/// Proof that the lock is held exclusive.
#[derive(Debug)]
#[must_use]
pub(crate) struct Exclusive<'a> {
    sem: &'a Rwsem,
    raw: RwLockWriteGuard<'a, ()>,
    held: Held,
}

impl<'a> Exclusive<'a> {
    /// Becomes shared without letting another writer in between.
    pub(crate) fn downgrade(self) -> Shared<'a> {
        #[cfg(not(loom))]
        return Shared::Raw(RwLockWriteGuard::downgrade(self.raw), self.held);
        #[cfg(loom)]
        unreachable!("the models do not downgrade {:?}", self.raw)
    }

    /// Ends it, and lets readers announce themselves at once: for who did not want to keep them out.
    pub(crate) fn leave_to_readers(self) {
        if self.sem.presence.biased {
            self.sem.bias.store(FENCED, Ordering::Release);
        }
    }
}

/// Proof that nobody else has the lock but readers that have announced themselves, who come and go.
#[derive(Debug)]
#[must_use]
pub(crate) struct Beside<'a> {
    sem: &'a Rwsem,
    raw: RwLockWriteGuard<'a, ()>,
    held: Held,
}

impl<'a> Beside<'a> {
    /// Whether everybody who was inside has left since the call; waits a moment for it. Who comes meanwhile finds
    /// what the caller stored before.
    pub(crate) fn all_have_left(&self) -> bool {
        // A read-modify-write, even where it changes nothing: who spares readers their fences does so before or after it. If
        // before, this has the heavy fence; if after, he has seen what was stored before this, and so has who
        // announces himself without a fence because of him.
        let fenced = |bias| (bias == BIASED || bias == FENCED).then_some(FENCED);
        let bias = self
            .sem
            .bias
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fenced);
        // Pairs with the fence of an announcement: either its entry is seen here, or it sees what was stored
        // before.
        match bias {
            Ok(FENCED) => full_fence(Ordering::SeqCst),
            Err(UNBIASED) => {
                self.sem
                    .unbiased_reads
                    .fetch_add(BESIDE_COUNTS_AS, Ordering::Relaxed);
                return true;
            }
            _ => fence::heavy(),
        }
        let (mut glances, mut naps) = (0..GLANCES, 0..NAPS);
        self.sem.presence.entries.iter().all(|entry| {
            let first = entry.load(Ordering::Acquire);
            if first >> COUNT_BITS != self.sem.id {
                return true;
            }
            while entry.load(Ordering::Acquire) == first {
                if glances.next().is_some() {
                    std::hint::spin_loop();
                } else if let Some(nap) = naps.next() {
                    std::thread::sleep(FIRST_NAP * (1 << nap));
                } else {
                    return false;
                }
            }
            true
        })
    }

    /// Waits for the readers, and keeps them out.
    pub(crate) fn exclusive(self) -> Exclusive<'a> {
        self.sem.keep_out();
        Exclusive {
            sem: self.sem,
            raw: self.raw,
            held: self.held,
        }
    }
}

impl Rwsem {
    /// How many bytes of it who announces himself looks at.
    #[cfg(not(loom))]
    pub(crate) const SEEN_BY_READERS: usize = std::mem::offset_of!(Rwsem, raw);

    pub(crate) fn new(id: u64, presence: &'static Presence) -> Rwsem {
        assert!(id != NOBODY && id << COUNT_BITS >> COUNT_BITS == id, "{id}");
        Rwsem {
            id,
            bias: AtomicU32::new(UNBIASED),
            unbiased_reads: AtomicU32::new(REBIAS_AFTER - FIRST_BIAS_AFTER),
            raw: RwLock::new(()),
            left: Event::new(),
            presence,
        }
    }

    /// One that readers have used.
    #[cfg(any(test, loom))]
    pub(crate) fn biased(id: u64, presence: &'static Presence) -> Rwsem {
        let sem = Rwsem::new(id, presence);
        for _ in 0..FIRST_BIAS_AFTER {
            drop(sem.shared(Slot::NONE));
        }
        sem
    }

    /// What it is named in the table.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Takes the lock shared through the table if that is possible at once. `slot` is the
    /// caller's own number.
    #[inline(always)]
    pub(crate) fn announce(&self, slot: Slot) -> Option<Announced<'_>> {
        let entry: &AtomicU64 = self.presence.entries.get(slot.index())?;
        let last = entry.load(Ordering::Relaxed);
        if last > COUNT_MASK {
            return None;
        }
        let count = last.wrapping_add(1) & COUNT_MASK;
        // Release: whoever sees this has seen the reader leave before.
        entry.store(self.id << COUNT_BITS | count, Ordering::Release);
        fence::light_only();
        // Acquire: whoever set the bias again did so after the last writer left.
        if self.bias.load(Ordering::Acquire) == BIASED {
            return Some(self.announced(entry));
        }
        self.announce_fenced(entry, count)
    }

    #[inline(always)]
    fn announced<'a>(&'a self, entry: &'a AtomicU64) -> Announced<'a> {
        Announced {
            sem: self,
            entry,
            _held: Held::taken(Rank::File),
        }
    }

    /// The rest of an announcement where the light fence is not enough, or the bias was revoked.
    #[cold]
    fn announce_fenced<'a>(&'a self, entry: &'a AtomicU64, count: u64) -> Option<Announced<'a>> {
        let announced = self.announced(entry);
        announced_to_all(entry, self.id << COUNT_BITS | count);
        match self.bias.load(Ordering::Acquire) {
            BIASED => Some(announced),
            FENCED => {
                if count.is_multiple_of(UNFENCE_AFTER) {
                    // Not if it was revoked meanwhile. Release and acquire: see `all_have_left`.
                    let (new, order) = (BIASED, Ordering::AcqRel);
                    let _ = self
                        .bias
                        .compare_exchange(FENCED, new, order, Ordering::Relaxed);
                }
                Some(announced)
            }
            _ => None,
        }
    }

    /// Takes the lock shared if that is possible without waiting.
    #[inline]
    pub(crate) fn try_shared(&self, slot: Slot) -> Option<Shared<'_>> {
        match self.announce(slot) {
            Some(announced) => Some(Shared::Announced(announced)),
            None => self.try_shared_raw(),
        }
    }

    #[cold]
    fn try_shared_raw(&self) -> Option<Shared<'_>> {
        let guard = self.raw.try_read()?;
        self.count_unbiased_read();
        Some(Shared::Raw(guard, Held::taken(Rank::File)))
    }

    /// Takes the lock shared, waiting for writers.
    pub(crate) fn shared(&self, slot: Slot) -> Shared<'_> {
        if let Some(announced) = self.announce(slot) {
            return Shared::Announced(announced);
        }
        let held = Held::wait(Rank::File);
        let guard = self.raw.read();
        self.count_unbiased_read();
        Shared::Raw(guard, held)
    }

    /// As [`Rwsem::shared`], but gives up when a writer had it for so long.
    pub(crate) fn shared_within(&self, slot: Slot, limit: Duration) -> Option<Shared<'_>> {
        if let Some(announced) = self.announce(slot) {
            return Some(Shared::Announced(announced));
        }
        let held = Held::wait(Rank::File);
        let guard = self.raw.try_read_for(limit)?;
        self.count_unbiased_read();
        Some(Shared::Raw(guard, held))
    }

    /// As [`Rwsem::exclusive`], but gives up when others had the underlying lock for so long.
    pub(crate) fn exclusive_within(&self, limit: Duration) -> Option<Exclusive<'_>> {
        let held = Held::wait(Rank::File);
        let raw = self.raw.try_write_for(limit)?;
        self.keep_out();
        Some(self.alone(raw, held))
    }

    /// Called with `raw` held shared.
    fn count_unbiased_read(&self) {
        if self.presence.biased
            && matches!(self.bias.load(Ordering::Relaxed), UNBIASED | REVOKING)
            && self.unbiased_reads.fetch_add(1, Ordering::Relaxed) + 1 >= REBIAS_AFTER
        {
            self.bias.store(BIASED, Ordering::Release);
        }
    }

    /// Takes the lock exclusive, waiting for everybody.
    pub(crate) fn exclusive(&self) -> Exclusive<'_> {
        let held = Held::wait(Rank::File);
        let raw = self.raw.write();
        self.keep_out();
        self.alone(raw, held)
    }

    /// Waits until announced readers have left, and no more come. Called with `raw` held exclusive.
    fn keep_out(&self) {
        if self.revoke() {
            self.left.wait_while(|| self.presence.names(self.id));
            self.bias.store(UNBIASED, Ordering::Relaxed);
        }
    }

    /// Takes the lock beside readers that announce themselves, waiting for everybody else.
    pub(crate) fn beside_readers(&self) -> Beside<'_> {
        let held = Held::wait(Rank::File);
        let raw = self.raw.write();
        self.beside(raw, held)
    }

    /// As [`Rwsem::beside_readers`], but gives up when others had it for so long.
    pub(crate) fn beside_readers_within(&self, limit: Duration) -> Option<Beside<'_>> {
        let held = Held::wait(Rank::File);
        let raw = self.raw.try_write_for(limit)?;
        Some(self.beside(raw, held))
    }

    /// As [`Rwsem::beside_readers`], if nobody else has it.
    pub(crate) fn try_beside_readers(&self) -> Option<Beside<'_>> {
        let raw = self.raw.try_write()?;
        Some(self.beside(raw, Held::taken(Rank::File)))
    }

    /// Takes the lock exclusive if nobody has it. Revokes the bias even when it fails.
    pub(crate) fn try_exclusive(&self) -> Option<Exclusive<'_>> {
        let raw = self.raw.try_write()?;
        if self.revoke() {
            if self.presence.names(self.id) {
                return None;
            }
            self.bias.store(UNBIASED, Ordering::Relaxed);
        }
        Some(self.alone(raw, Held::taken(Rank::File)))
    }

    fn alone<'a>(&'a self, raw: RwLockWriteGuard<'a, ()>, held: Held) -> Exclusive<'a> {
        Exclusive {
            sem: self,
            raw,
            held,
        }
    }

    fn beside<'a>(&'a self, raw: RwLockWriteGuard<'a, ()>, held: Held) -> Beside<'a> {
        Beside {
            sem: self,
            raw,
            held,
        }
    }

    /// Called with `raw` held exclusive. Whether readers that announced themselves may still be inside.
    fn revoke(&self) -> bool {
        self.unbiased_reads.store(0, Ordering::Relaxed);
        match self.bias.load(Ordering::Relaxed) {
            UNBIASED => return false,
            REVOKING => return true,
            _ => {}
        }
        // A swap, because a reader may change one bias into the other meanwhile.
        self.bias.swap(REVOKING, Ordering::AcqRel);
        fence::heavy();
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::rank::Excuse;
    use crate::sync::slot;
    use std::cell::Cell;
    use std::thread;

    fn sem() -> Rwsem {
        Rwsem::biased(7, Presence::leaked())
    }

    #[test]
    fn exclusive_while_announced_reader_inside_is_refused() {
        let sem = sem();
        let reader = sem.shared(Slot::of(3));
        assert!(matches!(reader, Shared::Announced(_)));
        assert!(sem.try_exclusive().is_none());
        drop(reader);
        assert!(sem.try_exclusive().is_some());
    }

    #[test]
    fn shared_while_exclusive_is_refused() {
        let sem = sem();
        let writer = sem.exclusive();
        assert!(sem.try_shared(Slot::of(3)).is_none());
        assert!(sem.try_shared(Slot::NONE).is_none());
        drop(writer);
        assert!(sem.try_shared(Slot::of(3)).is_some());
    }

    #[test]
    fn readers_of_a_new_lock_announce_themselves_after_a_few_reads() {
        let sem = Rwsem::new(7, Presence::leaked());
        for _ in 0..FIRST_BIAS_AFTER {
            assert!(matches!(sem.shared(Slot::of(3)), Shared::Raw(..)));
        }
        assert!(matches!(sem.shared(Slot::of(3)), Shared::Announced(_)));
    }

    #[test]
    fn readers_announce_again_after_enough_unbiased_reads() {
        let sem = sem();
        drop(sem.exclusive());
        for _ in 0..REBIAS_AFTER {
            assert!(matches!(sem.shared(Slot::of(3)), Shared::Raw(..)));
        }
        assert!(matches!(sem.shared(Slot::of(3)), Shared::Announced(_)));
    }

    #[test]
    fn nested_shared_uses_the_underlying_lock() {
        let _excuse = Excuse::of_a_test();
        let (sem, other) = (sem(), Rwsem::biased(8, Presence::leaked()));
        let outer = sem.shared(Slot::of(3));
        assert!(matches!(sem.shared(Slot::of(3)), Shared::Raw(..)));
        assert!(matches!(other.shared(Slot::of(3)), Shared::Announced(_)));
        drop(outer);
    }

    #[test]
    fn writers_beside_readers_bring_the_bias_back() {
        let sem = sem();
        drop(sem.exclusive());
        let announced = || matches!(sem.shared(Slot::of(3)), Shared::Announced(_));
        assert!(!announced());
        for _ in 0..REBIAS_AFTER / BESIDE_COUNTS_AS {
            assert!(!announced());
            assert!(sem.beside_readers().all_have_left());
        }
        assert!(!announced(), "this one sets it");
        assert!(announced());
    }

    /// As a reader that lost its processor does: it is waited for, and not kept out. In one of some rounds, because a sleep
    /// may take longer than it was to; a writer that only looks does not wait so long in any.
    #[test]
    fn reader_that_is_late_is_waited_for_beside_others() {
        let waited_for = || {
            let (sem, inside) = (sem(), std::sync::Barrier::new(2));
            thread::scope(|scope| {
                scope.spawn(|| {
                    let _reader = sem.shared(Slot::of(3));
                    inside.wait();
                    thread::sleep(FIRST_NAP * (1 << NAPS) / 2);
                });
                inside.wait();
                sem.beside_readers().all_have_left()
            })
        };
        assert!((0..50).any(|_| waited_for()));
    }

    #[test]
    fn writer_beside_readers_lets_them_announce_and_keeps_all_others_out() {
        let sem = sem();
        let writer = sem.beside_readers();
        let inside = sem.try_shared(Slot::of(3));
        assert!(matches!(inside, Some(Shared::Announced(_))));
        assert!(sem.try_shared(Slot::of(3)).is_none(), "the underlying lock");
        assert!(sem.try_exclusive().is_none());
        assert!(!writer.all_have_left());
        drop(inside);
        assert!(writer.all_have_left());
        let alone = writer.exclusive();
        assert!(sem.try_shared(Slot::of(3)).is_none());
        drop(alone);
        assert!(sem.try_shared(Slot::of(3)).is_some());
    }

    #[test]
    fn downgraded_lock_lets_readers_in_and_writers_not() {
        let sem = sem();
        let shared = sem.exclusive().downgrade();
        assert!(sem.try_shared(Slot::of(3)).is_some());
        assert!(sem.try_exclusive().is_none());
        drop(shared);
        assert!(sem.try_exclusive().is_some());
    }

    /// Writers keep two cells equal; a reader that saw them differ was let in beside a writer.
    #[test]
    fn many_threads_never_meet_a_writer() {
        struct Guarded(AtomicU64, AtomicU64, Rwsem);
        let guarded = Guarded(AtomicU64::new(0), AtomicU64::new(0), sem());
        thread::scope(|scope| {
            for number in 0..4u64 {
                let guarded = &guarded;
                scope.spawn(move || {
                    let torn = Cell::new(0u32);
                    for step in 0..20_000u64 {
                        if step % (40 + number) == 0 {
                            let _alone = guarded.2.exclusive();
                            guarded.0.fetch_add(1, Ordering::Relaxed);
                            guarded.1.fetch_add(1, Ordering::Relaxed);
                        } else {
                            let _together = guarded.2.shared(slot::current());
                            let seen = guarded.0.load(Ordering::Relaxed);
                            if guarded.1.load(Ordering::Relaxed) != seen {
                                torn.set(torn.get() + 1);
                            }
                        }
                    }
                    assert_eq!(torn.get(), 0);
                });
            }
        });
    }
}

/// Every interleaving of small numbers of threads, by the model checker:
/// compiled by the crate `dioxide-models`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::thread;
    use std::sync::Arc;

    /// A counter that loom watches: concurrent access to it fails the model.
    struct Watched(Rwsem, UnsafeCell<u32>);

    // The models hand references to threads through an Arc.
    #[allow(unsafe_code)]
    // SAFETY: access to the cell is what the lock under test must guard; loom checks every access.
    unsafe impl Sync for Watched {}

    fn watched() -> Arc<Watched> {
        Arc::new(Watched(
            Rwsem::biased(1, Presence::leaked()),
            UnsafeCell::new(0),
        ))
    }

    #[allow(unsafe_code)]
    fn write(watched: &Watched) {
        // SAFETY: loom aborts the model if the access is not exclusive.
        watched.1.with_mut(|value| unsafe { *value += 1 });
    }

    #[allow(unsafe_code)]
    fn read(watched: &Watched) -> u32 {
        // SAFETY: loom aborts the model if a writer is inside.
        watched.1.with(|value| unsafe { *value })
    }

    #[test]
    fn loom_reader_and_writer_exclude_each_other() {
        loom::model(|| {
            let shared = watched();
            let reader = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let _together = shared.0.shared(Slot::of(0));
                    read(&shared)
                })
            };
            {
                let _alone = shared.0.exclusive();
                write(&shared);
            }
            reader.join().expect("no panic");
        });
    }

    #[test]
    fn loom_two_readers_and_a_writer_exclude_each_other() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = watched();
            let readers: Vec<_> = (0..2)
                .map(|slot| {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        let _together = shared.0.shared(Slot::of(slot));
                        read(&shared)
                    })
                })
                .collect();
            {
                let _alone = shared.0.exclusive();
                write(&shared);
            }
            for reader in readers {
                reader.join().expect("no panic");
            }
        });
    }

    #[test]
    fn loom_rebias_between_writers_is_sound() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = watched();
            drop(shared.0.exclusive());
            let reader = {
                let shared = shared.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        let _together = shared.0.shared(Slot::of(0));
                        read(&shared);
                    }
                })
            };
            {
                let _alone = shared.0.exclusive();
                write(&shared);
            }
            reader.join().expect("no panic");
        });
    }

    #[test]
    fn loom_try_exclusive_excludes_readers() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = watched();
            let reader = {
                let shared = shared.clone();
                thread::spawn(move || {
                    if let Some(_together) = shared.0.try_shared(Slot::of(0)) {
                        read(&shared);
                    }
                })
            };
            if let Some(_alone) = shared.0.try_exclusive() {
                write(&shared);
            }
            {
                let _alone = shared.0.exclusive();
                write(&shared);
            }
            reader.join().expect("no panic");
        });
    }

    /// Cuts at the end, each of which takes one block: the first finds readers without fences, later ones may find them
    /// with.
    #[test]
    fn loom_several_cuts_beside_a_reader_that_comes_again() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let blocks = [(); 2].map(|()| UnsafeCell::new(0));
            let shared = Arc::new((watched(), AtomicU64::new(2), Blocks(blocks)));
            let reader = {
                let shared = shared.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        let _together = shared.0.0.shared(Slot::of(0));
                        let end = shared.1.load(Ordering::Relaxed);
                        (0..end as usize).for_each(|block| shared.2.read(block));
                    }
                })
            };
            for end in [1, 0] {
                let beside = shared.0.0.beside_readers();
                shared.1.store(end as u64, Ordering::Relaxed);
                match beside.all_have_left() {
                    true => shared.2.take(end),
                    false => {
                        let alone = beside.exclusive();
                        shared.2.take(end);
                        alone.leave_to_readers();
                    }
                }
            }
            reader.join().expect("no panic");
        });
    }

    struct Blocks([UnsafeCell<u32>; 2]);

    #[allow(unsafe_code)]
    // SAFETY: as for `Watched`.
    unsafe impl Sync for Blocks {}

    #[allow(unsafe_code)]
    impl Blocks {
        fn read(&self, block: usize) {
            // SAFETY: loom aborts the model if somebody takes it meanwhile.
            self.0[block].with(|value| unsafe { *value });
        }

        fn take(&self, block: usize) {
            // SAFETY: loom aborts the model if a reader has it.
            self.0[block].with_mut(|value| unsafe { *value += 1 });
        }
    }

    /// What truncate does: a block is given away once nobody can have found it any more.
    #[test]
    fn loom_what_is_behind_the_end_is_freed_beside_readers() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let (shared, end) = (watched(), Arc::new(AtomicU64::new(1)));
            let readers: Vec<_> = (0..2)
                .map(|slot| {
                    let (shared, end) = (shared.clone(), end.clone());
                    thread::spawn(move || {
                        let _together = shared.0.shared(Slot::of(slot));
                        if end.load(Ordering::Relaxed) > 0 {
                            read(&shared);
                        }
                    })
                })
                .collect();
            let beside = shared.0.beside_readers();
            end.store(0, Ordering::Relaxed);
            match beside.all_have_left() {
                true => write(&shared),
                false => {
                    let alone = beside.exclusive();
                    write(&shared);
                    alone.leave_to_readers();
                }
            }
            for reader in readers {
                reader.join().expect("no panic");
            }
        });
    }
}
