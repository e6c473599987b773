//! How handles become part of the running transaction, and leave it.
//!
//! One word says whether it takes handles, how many are open, and how many blocks it has or may still get. So a handle begins
//! and ends by one change of one cache line, and takes the journal's state only where there is something to wait for.
//!
//! | Bits | |
//! |---|---|
//! | 63 | closed: there is no running transaction, or it takes no more handles |
//! | 40 to 62 | open handles |
//! | 0 to 39 | *outstanding*: the blocks of the transaction, and the credits that its handles have not used |
//!
//! # Invariants
//! - The gate is opened, and closed for good, under the journal's state. While a handle is inside, the transaction stays.
//! - Who leaves last through a closed gate is told so, and wakes who waits for that under the state: nobody waits in vain.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

const CLOSED: u64 = 1 << 63;
const HANDLE: u64 = 1 << 40;
const OUTSTANDING: u64 = HANDLE - 1;

/// On cache lines of its own: all threads change it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Gate {
    word: AtomicU64,
    /// The newest transaction that was begun: the running one, if there is one.
    newest: AtomicU64,
}

impl Gate {
    /// Closed, before the first transaction.
    pub(crate) fn new() -> Gate {
        Gate {
            word: AtomicU64::new(CLOSED),
            newest: AtomicU64::new(0),
        }
    }

    /// The newest transaction that was begun; 0 if there is none.
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// A transaction has begun that has no blocks. The gate is closed and nobody is inside.
    pub(crate) fn open(&self, tid: u64) {
        self.newest.store(tid, Ordering::Release);
        self.word.store(0, Ordering::Release);
    }

    /// Takes no more handles. Whether nobody is inside.
    pub(crate) fn close(&self) -> bool {
        is_empty(self.word.fetch_or(CLOSED, Ordering::AcqRel))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.word.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Lets a handle in, if `credits` more fit into a transaction of at most `max` blocks. The transaction.
    pub(crate) fn enter(&self, credits: u32, max: u32) -> Option<u64> {
        self.reserve(HANDLE, credits, max)
            .then(|| self.newest.load(Ordering::Acquire))
    }

    /// Gives a handle that is inside more credits, if they fit.
    pub(crate) fn extend(&self, credits: u32, max: u32) -> bool {
        self.reserve(0, credits, max)
    }

    fn reserve(&self, handles: u64, credits: u32, max: u32) -> bool {
        let more = handles + u64::from(credits);
        let fits = |word: u64| {
            let is_room = (word & OUTSTANDING) + u64::from(credits) <= u64::from(max);
            (word & CLOSED == 0 && is_room).then(|| word + more)
        };
        self.word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits)
            .is_ok()
    }

    /// A handle ends, and `returned` of what is outstanding with it: its credits, without the blocks that it has brought.
    /// Whether it was the last one inside a closed gate.
    pub(crate) fn leave(&self, returned: u32) -> bool {
        let word = self
            .word
            .fetch_sub(HANDLE + u64::from(returned), Ordering::AcqRel)
            - HANDLE;
        word & CLOSED != 0 && is_empty(word)
    }

    /// The transaction has one block less.
    pub(crate) fn forget_block(&self) {
        self.word.fetch_sub(1, Ordering::AcqRel);
    }
}

fn is_empty(word: u64) -> bool {
    word & !CLOSED < HANDLE
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn room_counts_blocks_and_reserved_credits() {
        let gate = Gate::new();
        assert_eq!(gate.enter(0, 10), None, "there is no transaction");
        gate.open(1);
        assert_eq!(gate.enter(6, 10), Some(1));
        assert_eq!(gate.enter(5, 10), None);
        assert!(!gate.extend(5, 10));
        assert!(gate.extend(4, 10) && !gate.extend(1, 10));
        // Of ten credits it has used one: a block.
        assert!(!gate.leave(9), "the gate is open");
        assert_eq!(gate.enter(10, 10), None);
        assert_eq!(gate.enter(9, 10), Some(1));
        assert!(!gate.leave(9));
        gate.forget_block();
        assert_eq!(gate.enter(10, 10), Some(1));
        assert_eq!(gate.enter(u32::MAX, u32::MAX), None);
    }

    #[test]
    fn closed_gate_takes_nobody_and_tells_the_last_who_leaves() {
        let gate = Gate::new();
        gate.open(7);
        assert_eq!(gate.enter(2, 10), Some(7));
        assert_eq!(gate.enter(2, 10), Some(7));
        assert!(!gate.close());
        assert!(gate.is_closed());
        assert_eq!(gate.enter(0, 10), None);
        assert!(!gate.extend(0, 10));
        assert!(!gate.leave(1), "another one is inside");
        assert!(gate.leave(0));
        assert!(gate.close(), "nobody is inside");
        gate.open(8);
        assert_eq!((gate.enter(10, 10), gate.newest()), (Some(8), 8));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    /// Two handles, while the first transaction is closed and the next one begins.
    #[test]
    fn loom_transaction_is_closed_with_all_that_its_handles_did() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let gate = Arc::new(Gate::new());
            let state = Arc::new((Mutex::new(()), Condvar::new()));
            let changed: Arc<[AtomicU64; 2]> = Arc::new(Default::default());
            gate.open(1);
            let handles: Vec<_> = (0..2)
                .map(|_| {
                    let (gate, state, changed) = (gate.clone(), state.clone(), changed.clone());
                    thread::spawn(move || {
                        let tid = gate.enter(1, 10).unwrap_or_else(|| {
                            let mut guard = state.0.lock().expect("no thread panics");
                            while gate.is_closed() {
                                guard = state.1.wait(guard).expect("no thread panics");
                            }
                            gate.enter(1, 10).expect("it stays open")
                        });
                        changed[tid as usize - 1].fetch_add(1, Ordering::Relaxed);
                        if gate.leave(1) {
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
}
