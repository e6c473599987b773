//! Flushes of one device, one after the other.
//!
//! The kernel tells an error of write-back once for each open file, to whichever flush asks first, though it is the data of
//! all others that was lost; a later flush goes well. So here a flush that failed is every later one's error, and none begins
//! while another is under way, which may have met such an error and not returned yet. Who comes meanwhile shares the next.

use dioxide_block::{Error, Result};
use parking_lot::{Condvar, Mutex};

/// Of a device that all flush through here.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    state: Mutex<State>,
    one_ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many began, and how many ended: at most one less.
    begun: u64,
    ended: u64,
    /// What the first that failed has met.
    lost: Option<i32>,
}

impl Flushes {
    /// Returns when a flush that began after this call has ended, `flush` perhaps, and none has failed so far.
    ///
    /// # Errors
    /// Those of `flush`, its own or one before.
    pub(super) fn flush(&self, flush: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        let wanted = state.begun + 1;
        while state.begun > state.ended {
            self.one_ended.wait(&mut state);
            if state.ended >= wanted {
                return state.judge();
            }
        }
        state.judge()?;
        state.begun += 1;
        drop(state);
        let mut turn = Turn {
            of: self,
            lost: Some(libc::EIO),
        };
        let result = flush();
        turn.lost = result.as_ref().err().map(Error::errno);
        result
    }
}

impl State {
    fn judge(&self) -> Result<()> {
        match self.lost {
            None => Ok(()),
            Some(errno) => Err(Error::Io {
                op: "flush",
                offset: 0,
                len: 0,
                source: std::io::Error::from_raw_os_error(errno),
            }),
        }
    }
}

/// A flush under way. It ends by a panic too, which is a failure.
struct Turn<'a> {
    of: &'a Flushes,
    lost: Option<i32>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state.lock();
        state.ended += 1;
        state.lost = state.lost.or(self.lost);
        drop(state);
        self.of.one_ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    fn failed() -> Error {
        let state = State {
            lost: Some(libc::ENOSPC),
            ..State::default()
        };
        state.judge().expect_err("so it says")
    }

    /// Runs `count` flushes that come while a first one is under way and ends so. How many were begun, how many went well.
    fn beside(first: Result<()>, count: usize) -> (usize, usize) {
        let flushes = Flushes::default();
        let begun = AtomicUsize::new(0);
        let (is_under_way, told) = channel();
        let (end, is_to_end) = channel::<()>();
        thread::scope(|scope| {
            let (flushes, begun) = (&flushes, &begun);
            let first = scope.spawn(move || {
                flushes.flush(|| {
                    is_under_way.send(()).expect("somebody waits");
                    is_to_end.recv().expect("it is told");
                    first
                })
            });
            told.recv().expect("it begins");
            let (arrived, has_arrived) = channel();
            let others = (0..count).map(|_| {
                let arrived = arrived.clone();
                scope.spawn(move || {
                    arrived.send(()).expect("somebody counts");
                    flushes.flush(|| {
                        begun.fetch_add(1, Ordering::Relaxed);
                        Ok(())
                    })
                })
            });
            let others: Vec<_> = others.collect();
            (0..count).for_each(|_| has_arrived.recv().expect("each comes"));
            // Most of them wait by then.
            thread::sleep(Duration::from_millis(100));
            assert_eq!(begun.load(Ordering::Relaxed), 0);
            end.send(()).expect("it waits");
            let first = first.join().expect("no panic");
            let went_well = others.into_iter().map(|it| it.join().expect("no panic"));
            let went_well = went_well.filter(Result::is_ok).count();
            drop(first);
            (begun.load(Ordering::Relaxed), went_well)
        })
    }

    #[test]
    fn flushes_that_come_beside_another_begin_after_it_and_go_well() {
        let (begun, went_well) = beside(Ok(()), 8);
        assert!((1..8).contains(&begun), "{begun} are shared by nobody");
        assert_eq!(went_well, 8);
    }

    #[test]
    fn flush_that_failed_is_the_error_of_all_that_follow() {
        assert_eq!(beside(Err(failed()), 8), (0, 0));
        let flushes = Flushes::default();
        flushes.flush(|| Err(failed())).expect_err("its own");
        let later = flushes.flush(|| unreachable!("it is known by then"));
        assert_eq!(later.expect_err("the same").errno(), libc::ENOSPC);
    }

    #[test]
    fn flush_that_panics_has_failed() {
        let flushes = Flushes::default();
        thread::scope(|scope| {
            let flush = || flushes.flush(|| panic!("a device with a fault"));
            scope.spawn(flush).join().expect_err("it panics");
        });
        let later = flushes.flush(|| Ok(()));
        assert_eq!(later.expect_err("nobody knows").errno(), libc::EIO);
    }

    /// One that began before a call may have missed what that call is to make durable.
    #[test]
    fn flush_that_nobody_else_makes_is_made_each_time() {
        let (flushes, begun) = (Flushes::default(), AtomicUsize::new(0));
        for _ in 0..3 {
            let flush = || {
                begun.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            flushes.flush(flush).expect("it goes well");
        }
        assert_eq!(begun.into_inner(), 3);
    }
}
