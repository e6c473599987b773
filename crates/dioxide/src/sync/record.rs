//! A few words of shared memory that are read and changed as one: a sequence lock.
//!
//! A reader copies the words, and looks at the head before and after; it stores nothing, so readers do not meet. A
//! writer has the head's lowest bit for as long as a few words take to copy there and back; who meets it looks
//! again.
//!
//! Invariants: the words change only while the lowest bit of the head is set; when it is cleared the head is another number than
//! ever before. Memory of zeros is a record of zeros.
//!
//! Rejected: a mutex in the same memory, which a reader takes and gives back: two stores to a line that others
//! read.

use super::prim::{AtomicU64, Ordering, full_fence as fence};
#[cfg(loom)]
use loom::thread::yield_now;
#[cfg(not(loom))]
use std::thread::yield_now;

const LOCKED: u64 = 1;
const VERSION: u64 = 2;

/// A record of `N` words, behind its head.
#[derive(Clone, Copy)]
pub(crate) struct Record<'a, const N: usize> {
    head: &'a AtomicU64,
    words: &'a [AtomicU64; N],
}

/// Clears the bit, also if the change panics.
struct Locked<'a> {
    head: &'a AtomicU64,
    before: u64,
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        let after = self.before.wrapping_add(VERSION);
        #[cfg(not(loom))]
        self.head.store(after, Ordering::Release);
        // The same. Of a store the model checker does not know that it comes after what others exchanged since the lock was
        // taken, and lets them wait for ever.
        #[cfg(loom)]
        self.head.swap(after, Ordering::Release);
    }
}

impl<'a, const N: usize> Record<'a, N> {
    /// The first `1 + N` of these words. Everybody who uses them must use them so.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub(crate) fn of(words: &'a [AtomicU64]) -> Self {
        let (head, words) = words.split_first().expect("a head");
        let words = words.first_chunk().expect("a record's words");
        Record { head, words }
    }

    #[inline]
    fn copy(&self) -> [u64; N] {
        std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed))
    }

    /// What it says. `None`: it was being changed at each of a few looks.
    #[inline]
    pub(crate) fn read(&self) -> Option<[u64; N]> {
        const LOOKS: usize = if cfg!(loom) { 1 } else { 16 };
        for _ in 0..LOOKS {
            let before = self.head.load(Ordering::Acquire);
            let words = self.copy();
            // The copy is before the second look.
            fence(Ordering::Acquire);
            if before & LOCKED == 0 && self.head.load(Ordering::Relaxed) == before {
                return Some(words);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Changes it. Waits for whoever else does.
    #[inline]
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut [u64; N]) -> T) -> T {
        let _locked = self.lock();
        // Who finds one of the new words finds the bit, or a head that comes after.
        fence(Ordering::Release);
        let mut words = self.copy();
        let changed = change(&mut words);
        for (shared, word) in self.words.iter().zip(words) {
            shared.store(word, Ordering::Relaxed);
        }
        changed
    }

    #[inline]
    fn lock(&self) -> Locked<'a> {
        loop {
            // Not a load and an exchange: the model checker passes over what another thread did before such a load, and
            // tries one order only.
            let before = self.head.fetch_or(LOCKED, Ordering::Acquire);
            if before & LOCKED == 0 {
                return Locked {
                    head: self.head,
                    before,
                };
            }
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        const LOOKS: usize = if cfg!(loom) { 1 } else { 64 };
        for _ in 0..LOOKS {
            if self.head.load(Ordering::Relaxed) & LOCKED == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        // A writer that was interrupted needs the processor to end.
        yield_now();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_change_of_many_threads_is_lost_or_seen_in_part() {
        const CHANGES: u64 = 20_000;
        let words: [AtomicU64; 16] = std::array::from_fn(|_| AtomicU64::new(0));
        let record = Record::<15>::of(&words);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for _ in 0..CHANGES {
                        record.change(|words| words.iter_mut().for_each(|word| *word += 1));
                        if let Some(words) = record.read() {
                            assert_eq!(words, [words[0]; 15]);
                        }
                    }
                });
            }
        });
        assert_eq!(record.read(), Some([4 * CHANGES; 15]));
    }

    #[test]
    fn change_that_panics_leaves_the_record_as_it_was() {
        let words: [AtomicU64; 3] = std::array::from_fn(|_| AtomicU64::new(7));
        words[0].store(0, Ordering::Relaxed);
        let record = Record::<2>::of(&words);
        let panicked = std::panic::catch_unwind(|| record.change(|_| panic!("as it should")));
        assert!(panicked.is_err());
        assert_eq!(record.read(), Some([7, 7]));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    type Shared = Arc<[AtomicU64; 3]>;

    fn record(shared: &Shared) -> Record<'_, 2> {
        Record::of(&shared[..])
    }

    fn new() -> Shared {
        Arc::new(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    #[test]
    fn loom_changes_of_two_threads_are_both_there() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = new();
            let other = shared.clone();
            let add = |words: &mut [u64; 2]| words.iter_mut().for_each(|word| *word += 1);
            let writer = thread::spawn(move || record(&other).change(add));
            record(&shared).change(add);
            writer.join().expect("no thread panics in a model");
            assert_eq!(record(&shared).read(), Some([2, 2]));
        });
    }

    #[test]
    fn loom_reader_sees_all_of_a_change_or_nothing() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = new();
            let other = shared.clone();
            let writer = thread::spawn(move || {
                record(&other).change(|words| *words = [1, 1]);
                record(&other).change(|words| *words = [2, 2]);
            });
            if let Some([first, second]) = record(&shared).read() {
                assert_eq!(first, second);
            }
            writer.join().expect("no thread panics in a model");
            assert_eq!(record(&shared).read(), Some([2, 2]));
        });
    }
}
