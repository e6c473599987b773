//! How handles become part of the running transaction, and leave it.
//!
//! A transaction has room for so many blocks: *credits*. Each is a block's that it has, a handle's that is open, free in one of the
//! gate's parts, or in the rest. A thread begins and ends its handles at one part, which gets credits from the rest for several handles at a
//! time; so threads at different parts change no line of the processor's cache together, and take the journal's state only where there is
//! something to wait for.
//!
//! | Bits of a part | |
//! |---|---|
//! | 63 | closed: there is no running transaction, or it takes no more handles |
//! | 40 to 62 | open handles that began here |
//! | 0 to 39 | free credits |
//!
//! # Invariants
//! - No credit is made or lost: those of a transaction's blocks come back when it is closed for good.
//! - The gate is opened, and closed for good, under the journal's state. While a handle is inside, the transaction stays.
//! - Credits that are on their way from the rest to a part are about to be a handle's, but for [`AHEAD`] where there are plenty. So
//!   who takes the journal's state and looks everywhere ([`Gate::enter_by_all`]) misses none, and only one at a time does.
//! - Who leaves a closed part last is told so, and wakes who waits for that under the state, and looks at all parts: nobody waits in
//!   vain.
//!
//! Rejected: one word for all, which costs two threads that make files on processors with caches of their own (docs/PERFORMANCE.md).

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

const CLOSED: u64 = 1 << 63;
const HANDLE: u64 = 1 << 40;
const FREE: u64 = HANDLE - 1;
/// Threads beyond so many share them.
const PARTS: usize = if cfg!(loom) { 2 } else { 8 };
/// So many credits a part gets beyond what is asked for, as long as the rest has [`PLENTY`].
const AHEAD: u64 = if cfg!(loom) { 1 } else { 64 };
const PLENTY: u64 = if cfg!(loom) { 3 } else { 8 * AHEAD };

/// On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Apart(AtomicU64);

impl Apart {
    fn new(word: u64) -> Apart {
        Apart(AtomicU64::new(word))
    }
}

#[derive(Debug)]
pub(crate) struct Gate {
    parts: [Apart; PARTS],
    rest: Apart,
    /// The newest transaction that was begun: the running one, if there is one.
    newest: Apart,
}

impl Gate {
    /// Closed, before the first transaction, of which each has room for so many blocks.
    pub(crate) fn new(max: u32) -> Gate {
        Gate {
            parts: std::array::from_fn(|_| Apart::new(CLOSED)),
            rest: Apart::new(max.into()),
            newest: Apart::new(0),
        }
    }

    /// The newest transaction that was begun; 0 if there is none.
    pub(crate) fn newest(&self) -> u64 {
        self.newest.0.load(Ordering::Acquire)
    }

    /// A transaction has begun that has no blocks. The gate is closed and nobody is inside.
    pub(crate) fn open(&self, tid: u64) {
        self.newest.0.store(tid, Ordering::Release);
        for Apart(part) in &self.parts {
            part.fetch_and(!CLOSED, Ordering::AcqRel);
        }
    }

    /// Takes no more handles. Whether nobody is inside.
    pub(crate) fn close(&self) -> bool {
        let close = |Apart(part): &Apart| part.fetch_or(CLOSED, Ordering::AcqRel);
        // Each of them.
        let inside = self.parts.iter().filter(|part| !is_empty(close(part)));
        inside.count() == 0
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.parts[0].0.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Lets a handle in by some part, any number, if that or the rest has so many credits. The transaction.
    pub(crate) fn enter(&self, part: usize, credits: u32) -> Option<u64> {
        self.reserve(part, HANDLE, credits.into(), Gate::take)
            .then(|| self.newest())
    }

    /// The same, if there are so many anywhere. The caller has the journal's state.
    pub(crate) fn enter_by_all(&self, part: usize, credits: u32) -> Option<u64> {
        self.reserve(part, HANDLE, credits.into(), Gate::gather)
            .then(|| self.newest())
    }

    /// Gives a handle that came in by this part more credits, if there are so many anywhere. The caller has the journal's state.
    pub(crate) fn extend(&self, part: usize, credits: u32) -> bool {
        self.reserve(part, 0, credits.into(), Gate::gather)
    }

    fn reserve(
        &self,
        part: usize,
        handles: u64,
        credits: u64,
        get: impl FnOnce(&Gate, u64) -> Option<u64>,
    ) -> bool {
        let Apart(part) = &self.parts[part % PARTS];
        let fits = |word: u64| {
            let is_open = word & CLOSED == 0;
            (is_open && word & FREE >= credits).then(|| word + handles - credits)
        };
        match part.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits) {
            Ok(_) => return true,
            Err(word) if word & CLOSED != 0 => return false,
            Err(_) => {}
        }
        let Some(got) = get(self, credits) else {
            return false;
        };
        let with = |word: u64| (word & CLOSED == 0).then(|| word + handles + got - credits);
        let is_open = part.fetch_update(Ordering::AcqRel, Ordering::Acquire, with);
        is_open.inspect_err(|_| self.give_back(got)).is_ok()
    }

    /// So many credits of the rest, and some more if it has plenty.
    fn take(&self, credits: u64) -> Option<u64> {
        let most = |free: u64| credits + if free >= PLENTY { AHEAD } else { 0 };
        let taken = |free: u64| free.checked_sub(most(free));
        let before = self
            .rest
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, taken);
        before.ok().map(most)
    }

    /// So many credits, wherever they are.
    fn gather(&self, credits: u64) -> Option<u64> {
        let mut got = 0;
        for Apart(from) in [&self.rest].into_iter().chain(&self.parts) {
            got += from.fetch_and(!FREE, Ordering::AcqRel) & FREE;
            if got >= credits {
                self.give_back(got - credits);
                return Some(credits);
            }
        }
        self.give_back(got);
        None
    }

    /// A handle ends that came in by this part, and gives these credits back: its own, without the blocks that it has brought.
    /// Whether it was the last one of a closed part.
    pub(crate) fn leave(&self, part: usize, returned: u32) -> bool {
        let Apart(part) = &self.parts[part % PARTS];
        let change = u64::from(returned).wrapping_sub(HANDLE);
        let word = part
            .fetch_add(change, Ordering::AcqRel)
            .wrapping_add(change);
        word & CLOSED != 0 && is_empty(word)
    }

    /// Credits that are nobody's: of so many blocks that the transaction has no more, or was closed for good with.
    pub(crate) fn give_back(&self, credits: u64) {
        self.rest.0.fetch_add(credits, Ordering::AcqRel);
    }
}

fn is_empty(word: u64) -> bool {
    word & !CLOSED < HANDLE
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    fn free(gate: &Gate) -> u64 {
        let parts = gate.parts.iter().chain([&gate.rest]);
        parts
            .map(|Apart(word)| word.load(Ordering::Relaxed) & FREE)
            .sum()
    }

    fn enter(gate: &Gate, part: usize, credits: u32) -> Option<u64> {
        let entered = gate.enter(part, credits);
        entered.or_else(|| gate.enter_by_all(part, credits))
    }

    #[test]
    fn room_counts_blocks_and_reserved_credits() {
        let gate = Gate::new(10);
        assert_eq!(enter(&gate, 0, 0), None, "there is no transaction");
        gate.open(1);
        assert_eq!(enter(&gate, 0, 6), Some(1));
        assert_eq!(enter(&gate, 1, 5), None);
        assert!(!gate.extend(0, 5));
        assert!(gate.extend(0, 4) && !gate.extend(0, 1));
        // Of ten credits it has used one: a block.
        assert!(!gate.leave(0, 9), "the gate is open");
        assert_eq!(enter(&gate, 1, 10), None);
        assert_eq!(enter(&gate, 1, 9), Some(1));
        assert!(!gate.leave(1, 9));
        gate.give_back(1);
        assert_eq!(enter(&gate, 2, 10), Some(1));
        assert_eq!(enter(&gate, 3, u32::MAX), None);
        assert_eq!(enter(&gate, 3, 0), Some(1));
    }

    #[test]
    fn closed_gate_takes_nobody_and_tells_the_last_who_leaves() {
        let gate = Gate::new(10);
        gate.open(7);
        assert_eq!(gate.enter(0, 2), Some(7));
        assert_eq!(gate.enter(0, 2), Some(7));
        assert_eq!(gate.enter(PARTS + 3, 2), Some(7));
        assert!(!gate.close());
        assert!(gate.is_closed());
        assert_eq!(enter(&gate, 0, 0), None);
        assert!(!gate.extend(0, 1));
        assert!(!gate.leave(0, 1), "another one is inside by this part");
        assert!(gate.leave(0, 0));
        assert!(!gate.close(), "one is inside by another part");
        assert!(gate.leave(3, 2));
        assert!(gate.close(), "nobody is inside");
        // Three blocks.
        gate.give_back(3);
        gate.open(8);
        assert_eq!((enter(&gate, 0, 10), gate.newest()), (Some(8), 8));
    }

    #[test]
    fn credits_that_other_parts_have_are_found() {
        let max = (PLENTY + AHEAD * PARTS as u64) as u32;
        let gate = Gate::new(max);
        gate.open(1);
        for part in 0..PARTS {
            assert_eq!(gate.enter(part, 1), Some(1));
        }
        for part in 0..PARTS {
            assert!(!gate.leave(part, 1));
        }
        for part in 0..PARTS {
            assert_eq!(gate.enter(part, max), None, "{part}");
            assert_eq!(gate.enter_by_all(part, max), Some(1), "{part}");
            assert!(!gate.leave(part, max));
        }
    }

    #[test]
    fn no_credit_is_made_or_lost_by_many_threads_and_transactions() {
        const MAX: u32 = 1000;
        let gate = Gate::new(MAX);
        gate.open(1);
        let (inside, blocks, entered) = Default::default();
        let (inside, blocks, entered): (&AtomicU64, &AtomicU64, &AtomicU64) =
            (&inside, &blocks, &entered);
        let state = Mutex::new(());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (gate, state) = (&gate, &state);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let (part, credits) = (thread % 3, (round * 7 + thread as u32 * 3) % 600);
                        let by_all = || {
                            let _state = state.lock();
                            gate.enter_by_all(part, credits)
                        };
                        if gate.enter(part, credits).or_else(by_all).is_none() {
                            // The next transaction.
                            let _state = state.lock();
                            if gate.close() {
                                gate.give_back(blocks.swap(0, Ordering::AcqRel));
                                gate.open(gate.newest() + 1);
                            }
                            continue;
                        }
                        entered.fetch_add(1, Ordering::Relaxed);
                        let all = inside.fetch_add(credits.into(), Ordering::AcqRel);
                        assert!(all + u64::from(credits) <= MAX.into());
                        let brought = credits.min(round % 4);
                        blocks.fetch_add(brought.into(), Ordering::AcqRel);
                        inside.fetch_sub(credits.into(), Ordering::AcqRel);
                        gate.leave(part, credits - brought);
                    }
                });
            }
        });
        gate.give_back(blocks.load(Ordering::Acquire));
        assert_eq!(free(&gate), MAX.into());
        assert!(entered.load(Ordering::Acquire) > 10_000 && gate.newest() > 100);
        assert!(gate.close());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    /// Two handles, while the first transaction is closed and the next one begins.
    fn close_beside_handles_at(parts: [usize; 2]) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let gate = Arc::new(Gate::new(2));
            let state = Arc::new((Mutex::new(()), Condvar::new()));
            let changed: Arc<[AtomicU64; 2]> = Arc::new(Default::default());
            gate.open(1);
            let handles: Vec<_> = parts
                .into_iter()
                .map(|part| {
                    let (gate, state, changed) = (gate.clone(), state.clone(), changed.clone());
                    thread::spawn(move || {
                        let tid = gate.enter(part, 1).unwrap_or_else(|| {
                            let mut guard = state.0.lock().expect("no thread panics");
                            while gate.is_closed() {
                                guard = state.1.wait(guard).expect("no thread panics");
                            }
                            gate.enter_by_all(part, 1)
                                .expect("it stays open, with room")
                        });
                        changed[tid as usize - 1].fetch_add(1, Ordering::Relaxed);
                        if gate.leave(part, 1) {
                            let _state = state.0.lock().expect("no thread panics");
                            state.1.notify_all();
                        }
                        tid
                    })
                })
                .collect();
            let mut guard = state.0.lock().expect("no thread panics");
            while !gate.close() {
                guard = state.1.wait(guard).expect("no thread panics");
            }
            let first = changed[0].load(Ordering::Relaxed);
            gate.open(2);
            state.1.notify_all();
            drop(guard);
            let tids: Vec<u64> = handles
                .into_iter()
                .map(|h| h.join().expect("no thread panics"))
                .collect();
            let in_first = tids.iter().filter(|tid| **tid == 1).count() as u64;
            assert_eq!(first, in_first, "all was seen when it was closed");
        });
    }

    #[test]
    fn loom_transaction_is_closed_with_all_that_its_handles_did() {
        close_beside_handles_at([0, 1]);
    }

    /// The second has what the first gives back.
    #[test]
    fn loom_closed_part_takes_nobody_for_what_is_free_there() {
        close_beside_handles_at([0, 0]);
    }

    /// Each wants what the other may have.
    #[test]
    fn loom_no_credit_is_made_or_lost() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let (gate, state) = (Arc::new(Gate::new(3)), Arc::new(Mutex::new(())));
            let inside = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            gate.open(1);
            assert_eq!(gate.enter(1, 1), Some(1));
            assert!(!gate.leave(1, 1));
            let handles: Vec<_> = (0..2)
                .map(|part| {
                    let (gate, state, inside) = (gate.clone(), state.clone(), inside.clone());
                    thread::spawn(move || {
                        let by_all = || {
                            let _state = state.lock().expect("no thread panics");
                            gate.enter_by_all(part, 2)
                        };
                        let [now, ever] = &*inside;
                        if gate.enter(part, 2).or_else(by_all).is_some() {
                            assert_eq!(now.fetch_add(1, Ordering::AcqRel), 0);
                            ever.fetch_add(1, Ordering::AcqRel);
                            now.fetch_sub(1, Ordering::AcqRel);
                            gate.leave(part, 2);
                        }
                    })
                })
                .collect();
            for handle in handles {
                handle.join().expect("no thread panics");
            }
            assert!(inside[1].load(Ordering::Acquire) > 0, "one finds room");
            let words = gate.parts.iter().chain([&gate.rest]);
            let free = words.map(|Apart(word)| word.load(Ordering::Acquire) & FREE);
            assert_eq!(free.sum::<u64>(), 3);
        });
    }
}
