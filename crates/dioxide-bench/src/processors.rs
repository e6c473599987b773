//! How far two processors are from each other: what two threads reach together depends on it.
//!
//! Two virtual processors lie in one group of cores or in two, and a host moves them. In one, a line that both change goes there and
//! back in some 45 ns, but they share one link to memory: two threads may write 4 KiB blocks only one and a half times as fast as one
//! does. In two groups they write twice as much, and the line takes 350 ns.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

/// Nanoseconds that a line of the cache takes to the other processor and back; none where there is one processor only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Distance(Option<f64>);

/// In a line of its own.
#[repr(align(128))]
struct Turn(AtomicU32);

impl Distance {
    /// Takes some milliseconds, and longer where others want the processors.
    pub(crate) fn measure() -> Distance {
        const ROUNDS: u32 = 5000;
        const TRIES: usize = 3;
        let Some(pair) = two_processors() else {
            return Distance(None);
        };
        let tries = (0..TRIES).filter_map(|_| there_and_back(pair, ROUNDS));
        Distance(tries.reduce(f64::min))
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ns) => write!(f, "{ns:.0} ns"),
            None => f.write_str("no other processor"),
        }
    }
}

fn two_processors() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut processors = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor));
    Some([processors.next()?, processors.next()?])
}

/// Nothing if a thread cannot be kept on its processor.
fn there_and_back(pair: [usize; 2], rounds: u32) -> Option<f64> {
    let turn = Turn(AtomicU32::new(0));
    let (both_kept, start) = (AtomicBool::new(true), Barrier::new(pair.len()));
    // Each waits for its numbers, and says the next one.
    let play = |player: u32| {
        let mut set = CpuSet::new();
        set.set(pair[player as usize]);
        if sched_setaffinity(None, &set).is_err() {
            both_kept.store(false, Ordering::Relaxed);
        }
        start.wait();
        if !both_kept.load(Ordering::Relaxed) {
            return None;
        }
        let wait_for = |number| {
            while turn.0.load(Ordering::Acquire) != number {
                std::hint::spin_loop();
            }
        };
        wait_for(player);
        let begin = Instant::now();
        for round in 0..rounds {
            wait_for(2 * round + player);
            turn.0.store(2 * round + player + 1, Ordering::Release);
        }
        Some(begin.elapsed().as_nanos() as f64 / f64::from(rounds))
    };
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|player| scope.spawn(move || play(player)));
        let [first, second] = threads.map(|thread| thread.join().expect("it only counts"));
        // Of the second, which began when the first was there.
        first.and(second)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_some_time_where_there_are_two_processors() {
        let Distance(measured) = Distance::measure();
        assert_eq!(measured.is_some(), two_processors().is_some());
        assert!(measured.is_none_or(|ns| ns > 1.0 && ns < 1e6));
    }
}
