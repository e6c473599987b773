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
//! - Who leaves a closed part last is told so, and wakes who waits for that under the state, and looks at all parts: nobody waits in
//!   vain.
//!
//! Rejected: one word for all. Two threads that make files on processors with caches of their own spent a tenth of their time on its line.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

const CLOSED: u64 = 1 << 63;
const HANDLE: u64 = 1 << 40;
const FREE: u64 = HANDLE - 1;
/// More than these gain nothing: a handle holds its part for a moment, and is open for much longer.
const PARTS: usize = if cfg!(loom) { 2 } else { 8 };
/// So many credits a part gets beyond what is asked for.
const AHEAD: u64 = if cfg!(loom) { 1 } else { 64 };

/// On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Apart(AtomicU64);

impl Apart {
    fn new(word: u64) -> Apart {
        Apart(AtomicU64::new(word))
    }

    /// Takes as many credits as there are, up to `most`. Of the rest, which has nothing else.
    fn take(&self, most: u64) -> u64 {
        let taken = |free: u64| Some(free - free.min(most));
        let before = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, taken);
        before.unwrap_or(0).min(most)
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

    /// Lets a handle in by some part, any number, if there are so many credits for it. The transaction.
    pub(crate) fn enter(&self, part: usize, credits: u32) -> Option<u64> {
        self.reserve(part, HANDLE, credits.into())
            .then(|| self.newest())
    }

    /// Gives a handle that came in by this part more credits, if there are.
    pub(crate) fn extend(&self, part: usize, credits: u32) -> bool {
        self.reserve(part, 0, credits.into())
    }

    fn reserve(&self, part: usize, handles: u64, credits: u64) -> bool {
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
        let Some(got) = self.gather(credits) else {
            return false;
        };
        let with = |word: u64| (word & CLOSED == 0).then(|| word + handles + got - credits);
        let is_open = part.fetch_update(Ordering::AcqRel, Ordering::Acquire, with);
        is_open.inspect_err(|_| self.give_back(got)).is_ok()
    }

    /// So many credits and some more, if there are so many that are free.
    fn gather(&self, credits: u64) -> Option<u64> {
        let mut got = self.rest.take(credits + AHEAD);
        for Apart(part) in &self.parts {
            if got >= credits {
                return Some(got);
            }
            got += part.fetch_and(!FREE, Ordering::AcqRel) & FREE;
        }
        if got >= credits {
            return Some(got);
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

    fn free(gate: &Gate) -> u64 {
        let parts = gate.parts.iter().chain([&gate.rest]);
        parts
            .map(|Apart(word)| word.load(Ordering::Relaxed) & FREE)
            .sum()
    }

    #[test]
    fn room_counts_blocks_and_reserved_credits() {
        let gate = Gate::new(10);
        assert_eq!(gate.enter(0, 0), None, "there is no transaction");
        gate.open(1);
        assert_eq!(gate.enter(0, 6), Some(1));
        assert_eq!(gate.enter(1, 5), None);
        assert!(!gate.extend(0, 5));
        assert!(gate.extend(0, 4) && !gate.extend(0, 1));
        // Of ten credits it has used one: a block.
        assert!(!gate.leave(0, 9), "the gate is open");
        assert_eq!(gate.enter(1, 10), None);
        assert_eq!(gate.enter(1, 9), Some(1));
        assert!(!gate.leave(1, 9));
        gate.give_back(1);
        assert_eq!(gate.enter(2, 10), Some(1));
        assert_eq!(gate.enter(3, u32::MAX), None);
        assert_eq!(gate.enter(3, 0), Some(1));
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
        assert_eq!(gate.enter(0, 0), None);
        assert!(!gate.extend(0, 1));
        assert!(!gate.leave(0, 1), "another one is inside by this part");
        assert!(gate.leave(0, 0));
        assert!(!gate.close(), "one is inside by another part");
        assert!(gate.leave(3, 2));
        assert!(gate.close(), "nobody is inside");
        // Three blocks.
        gate.give_back(3);
        gate.open(8);
        assert_eq!((gate.enter(0, 10), gate.newest()), (Some(8), 8));
    }

    #[test]
    fn credits_that_other_parts_have_are_found() {
        let gate = Gate::new(AHEAD as u32 + 20);
        gate.open(1);
        for part in 0..PARTS {
            assert_eq!(gate.enter(part, 1), Some(1));
        }
        for part in 0..PARTS {
            assert!(!gate.leave(part, 1));
        }
        for part in 0..PARTS {
            assert_eq!(gate.enter(part, AHEAD as u32 + 20), Some(1), "{part}");
            assert!(!gate.leave(part, AHEAD as u32 + 20));
        }
    }

    #[test]
    fn no_credit_is_made_or_lost_by_many_threads() {
        const MAX: u32 = 100;
        let gate = Gate::new(MAX);
        gate.open(1);
        let inside = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (gate, inside) = (&gate, &inside);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let credits = (round * 7 + thread as u32 * 3) % 60;
                        if gate.enter(thread, credits).is_none() {
                            continue;
                        }
                        let all = inside.fetch_add(credits.into(), Ordering::AcqRel);
                        assert!(all + u64::from(credits) <= MAX.into());
                        inside.fetch_sub(credits.into(), Ordering::AcqRel);
                        gate.leave(thread, credits);
                    }
                });
            }
        });
        assert_eq!(free(&gate), MAX.into());
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
            let gate = Arc::new(Gate::new(4));
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
                            gate.enter(part, 1).expect("it stays open")
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
            let (gate, inside) = (Arc::new(Gate::new(3)), Arc::new(AtomicU64::new(0)));
            gate.open(1);
            assert_eq!(gate.enter(1, 1), Some(1));
            assert!(!gate.leave(1, 1));
            let handles: Vec<_> = (0..2)
                .map(|part| {
                    let (gate, inside) = (gate.clone(), inside.clone());
                    thread::spawn(move || {
                        if gate.enter(part, 2).is_some() {
                            assert_eq!(inside.fetch_add(1, Ordering::AcqRel), 0);
                            inside.fetch_sub(1, Ordering::AcqRel);
                            gate.leave(part, 2);
                        }
                    })
                })
                .collect();
            for handle in handles {
                handle.join().expect("no thread panics");
            }
            let words = gate.parts.iter().chain([&gate.rest]);
            let free = words.map(|Apart(word)| word.load(Ordering::Acquire) & FREE);
            assert_eq!(free.sum::<u64>(), 3);
        });
    }
}
