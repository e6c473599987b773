//! Records that are found by a hash, of which as many are in use as there is need for: linear hashing.
//!
//! The first few of a range of records are in use. Growing takes one more, and moves to it
//! what belongs there from the one record that had it: the rest stays where it is, and only these two are locked.
//!
//! Invariants: who has a record's lock and finds that a hash belongs to it now has the only place of that hash until
//! he unlocks. The count grows only while both records of the move are locked. So a reader who uses a count of before
//! finds what was there before the move, or nothing.
//!
//! Rejected: a table of twice the size beside the one in use. Each lookup looks into both while names move, and the old one can go only
//! when nobody reads it.

use super::prim::{AtomicU64, Ordering, RwLock};
use super::record::Record;

/// How many buckets of a range are in use, and which has what hash.
#[derive(Debug)]
pub(crate) struct Buckets {
    count: AtomicU64,
    /// Held by who makes it grow.
    growing: RwLock<()>,
}

/// The bucket of a hash where so many are in use.
#[inline]
fn place(hash: u64, count: u64) -> u64 {
    let mask = count.next_power_of_two() - 1;
    let place = hash & mask;
    if place < count {
        place
    } else {
        place & (mask >> 1)
    }
}

impl Buckets {
    /// So many are in use, which are empty.
    pub(crate) fn new(count: u64) -> Buckets {
        Buckets {
            count: AtomicU64::new(count.max(1)),
            growing: RwLock::new(()),
        }
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The bucket that a hash belongs to, as long as it does not grow.
    #[inline]
    pub(crate) fn place(&self, hash: u64) -> u64 {
        // Who was told of a change finds no older count than the change was made by: looks at one number do not go back.
        place(hash, self.count.load(Ordering::Relaxed))
    }

    /// Changes the bucket that a hash belongs to.
    #[inline]
    pub(crate) fn change<'a, T, const N: usize>(
        &self,
        hash: u64,
        bucket: impl Fn(u64) -> Record<'a, N>,
        change: impl FnOnce(&mut [u64; N]) -> T,
    ) -> T {
        let mut change = Some(change);
        loop {
            let place = self.place(hash);
            let changed = bucket(place).change(|words| {
                (self.place(hash) == place).then(|| change.take().map(|change| change(words)))
            });
            if let Some(changed) = changed.flatten() {
                return changed;
            }
        }
    }

    /// Takes one more into use, if there are `most` at least. `split` moves from the first bucket to the second, which is empty, what its
    /// third argument says yes to.
    #[cold]
    pub(crate) fn grow<'a, const N: usize>(
        &self,
        most: u64,
        bucket: impl Fn(u64) -> Record<'a, N>,
        split: impl FnOnce(&mut [u64; N], &mut [u64; N], &dyn Fn(u64) -> bool),
    ) {
        let in_use = || self.count.load(Ordering::Relaxed);
        if in_use() >= most {
            return;
        }
        let Some(_growing) = self.growing.try_write() else {
            return;
        };
        let count = in_use();
        if count >= most {
            return;
        }
        let half = 1 << count.ilog2();
        bucket(count - half).change(|from| {
            bucket(count).change(|to| {
                split(from, to, &|hash| place(hash, count + 1) == count);
                self.count.store(count + 1, Ordering::Relaxed);
            });
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_more_bucket_takes_from_one_other_only() {
        for count in 1..300_u64 {
            let from = count - (1 << count.ilog2());
            for hash in (0..2000).map(|n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15)) {
                let (before, after) = (place(hash, count), place(hash, count + 1));
                assert!(before < count);
                assert!(before == after || (before == from && after == count));
            }
        }
    }

    /// Each bucket is a set of small numbers, which are their own hashes.
    #[test]
    fn what_many_threads_put_and_take_out_while_it_grows_is_where_it_belongs() {
        const MOST: u64 = 64;
        for round in 0..200 {
            let words: [[AtomicU64; 2]; MOST as usize] =
                std::array::from_fn(|_| Default::default());
            let (buckets, record) = (Buckets::new(1), |place| {
                let words: &[AtomicU64; 2] = &words[place as usize];
                Record::<1>::of(words)
            });
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let (buckets, record) = (&buckets, &record);
                    scope.spawn(move || {
                        for hash in (thread..64).step_by(4) {
                            buckets.change(hash, record, |[set]| *set |= 1 << hash);
                            buckets.grow(MOST, record, |[from], [to], goes| {
                                *to = (0..64)
                                    .filter(|&n| *from >> n & 1 == 1 && goes(n))
                                    .map(|n| 1 << n)
                                    .sum();
                                *from &= !*to;
                            });
                            if hash % 8 == round % 8 {
                                buckets.change(hash, record, |[set]| *set &= !(1 << hash));
                            }
                        }
                    });
                }
            });
            for hash in 0..64 {
                let [set] = record(buckets.place(hash))
                    .read()
                    .expect("nobody changes it");
                assert_eq!(set >> hash & 1, u64::from(hash % 8 != round % 8), "{hash}");
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Two records of one word each, a set of the hashes 0 and 1; one is in use.
    struct Shared {
        buckets: Buckets,
        words: [[AtomicU64; 2]; 2],
    }

    impl Shared {
        fn record<'a>(&'a self) -> impl Fn(u64) -> Record<'a, 1> {
            |place| Record::of(&self.words[place as usize])
        }

        fn put(&self, hash: u64) {
            self.buckets
                .change(hash, self.record(), |[set]| *set |= 1 << hash);
        }

        fn take_out(&self, hash: u64) {
            self.buckets
                .change(hash, self.record(), |[set]| *set &= !(1 << hash));
        }

        fn grow(&self) {
            self.buckets.grow(2, self.record(), |[from], [to], goes| {
                assert!(goes(1) && !goes(0));
                *to = *from & 2;
                *from &= !2;
            });
        }

        fn has(&self, hash: u64) -> Option<bool> {
            let [set] = self.record()(self.buckets.place(hash)).read()?;
            Some(set >> hash & 1 == 1)
        }
    }

    fn model(check: impl Fn(&Arc<Shared>) + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let buckets = Buckets::new(1);
            let words = std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)));
            check(&Arc::new(Shared { buckets, words }));
        });
    }

    #[test]
    fn loom_what_is_put_while_it_grows_is_where_it_belongs() {
        model(|shared| {
            let other = shared.clone();
            let grower = thread::spawn(move || other.grow());
            shared.put(1);
            grower.join().expect("no thread panics in a model");
            assert_eq!(shared.has(1), Some(true));
            assert_eq!(shared.has(0), Some(false));
        });
    }

    #[test]
    fn loom_who_was_told_of_a_removal_does_not_find_what_was_removed() {
        model(|shared| {
            shared.put(1);
            let other = shared.clone();
            let grower = thread::spawn(move || other.grow());
            let (other, told) = (shared.clone(), Arc::new(AtomicU64::new(0)));
            let tell = told.clone();
            let remover = thread::spawn(move || {
                other.take_out(1);
                tell.store(1, Ordering::Release);
            });
            if told.load(Ordering::Acquire) == 1 {
                assert_ne!(shared.has(1), Some(true));
            }
            grower.join().expect("no thread panics in a model");
            remover.join().expect("no thread panics in a model");
            assert_eq!(shared.has(1), Some(false));
        });
    }
}
