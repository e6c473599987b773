//! One round of an experiment: a fixed number of writes to files that were cut before.

use super::ground::Ground;
use crate::load::{Outcome, cpu_time, no_latencies};
use crate::offsets::Order;
use crate::{Error, Result};
use dioxide::Buf;
use hdrhistogram::Histogram;
use std::ops::Range;
use std::sync::Barrier;
use std::time::Instant;

/// What is done in each round of an experiment.
#[derive(Clone, Debug)]
pub(super) struct Work {
    /// Name of the experiment.
    pub(super) name: &'static str,
    /// Blocks come in random order.
    pub(super) random: bool,
    pub(super) block_size: u32,
    /// Threads; each has its own part of the order.
    pub(super) jobs: u32,
    pub(super) files: Files,
    /// Bytes that a file has when the round begins, all of them a hole.
    pub(super) hole: u64,
    /// `fdatasync` after so many writes of a thread.
    pub(super) sync_every: Option<u32>,
    /// Where the writes go.
    pub(super) order: Order,
}

/// Which of the files the threads write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Files {
    /// All to this one.
    Shared(usize),
    /// Each to one of its own, from this one on.
    From(usize),
}

impl Work {
    pub(super) fn file(&self, job: u32) -> usize {
        match self.files {
            Files::Shared(file) => file,
            Files::From(first) => first + job as usize,
        }
    }

    fn all_files(&self) -> Range<usize> {
        self.file(0)..self.file(self.jobs - 1) + 1
    }

    /// The part of the order that a thread writes.
    pub(super) fn part(&self, job: u32) -> Range<usize> {
        let cut = |job: u32| self.order.file.len() * job as usize / self.jobs as usize;
        cut(job)..cut(job + 1)
    }

    /// Brings all files into the state that a round begins with. Durable, so that nobody pays for
    /// what was before.
    fn prepare(&self, ground: &impl Ground) -> Result<()> {
        for file in self.all_files() {
            ground.reset(file, self.hole)?;
        }
        ground.sync()
    }
}

/// What a thread did.
struct Leg {
    begin: Instant,
    end: Instant,
    latencies: Histogram<u64>,
}

/// Prepares the files, makes the writes, and lets everything settle. The writes alone are timed.
pub(super) fn round(ground: &impl Ground, work: &Work) -> Result<Outcome> {
    work.prepare(ground)?;
    // Nobody waits for a thread that found no place, and no round pays for the search.
    let positions = (0..work.jobs).map(|job| ground.positions(work, job));
    let positions: Vec<_> = positions.collect::<Result<_>>()?;
    let ready = Barrier::new(work.jobs as usize + 1);
    let (cpu, legs) = std::thread::scope(|scope| {
        let ready = &ready;
        let start = |(job, positions): (u32, _)| {
            scope.spawn(move || write_part(ground, work, job, positions, ready))
        };
        let positions = positions.iter().map(|positions| &positions[..]);
        let threads: Vec<_> = (0..).zip(positions).map(start).collect();
        let before = cpu_time();
        ready.wait();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Leg>>| {
            thread.join().expect("a load thread panicked")
        };
        let legs: Result<Vec<Leg>> = threads.into_iter().map(join).collect();
        legs.map(|legs| (cpu_time() - before, legs))
    })?;
    ground.sync()?;
    let writes = work.order.file.len() as f64;
    let begin = legs.iter().map(|leg| leg.begin).min();
    let end = legs.iter().map(|leg| leg.end).max();
    let seconds = end.zip(begin).expect("at least one thread");
    let mut latencies = no_latencies();
    for leg in &legs {
        latencies[1].add(&leg.latencies).expect("the same bounds");
    }
    Ok(Outcome {
        iops: [0.0, writes / (seconds.0 - seconds.1).as_secs_f64()],
        latencies,
        cpu_ns_per_io: cpu.as_nanos() as f64 / writes,
    })
}

fn write_part(
    ground: &impl Ground,
    work: &Work,
    job: u32,
    positions: &[u64],
    ready: &Barrier,
) -> Result<Leg> {
    let file = work.file(job);
    let mut buf = Buf::zeroed(work.block_size as usize);
    buf.fill(FILL);
    let [_, mut latencies] = no_latencies();
    ready.wait();
    let begin = Instant::now();
    let (mut last, mut unsynced) = (begin, 0);
    for &at in positions {
        stamp(&mut buf, at);
        ground.write(file, at, &buf)?;
        unsynced += 1;
        if work.sync_every == Some(unsynced) {
            ground.sync_data(file)?;
            unsynced = 0;
        }
        let now = Instant::now();
        latencies.saturating_record((now - last).as_nanos() as u64);
        last = now;
    }
    Ok(Leg {
        begin,
        end: last,
        latencies,
    })
}

const FILL: u8 = 0xd1;

/// Tells a block's position in its first bytes.
fn stamp(buf: &mut [u8], at: u64) {
    buf[..8].copy_from_slice(&at.to_le_bytes());
}

/// Reads everything that a round has written. A ground that loses writes is not fast, but wrong.
pub(super) fn check(ground: &impl Ground, work: &Work) -> Result<()> {
    let mut found = Buf::zeroed(work.block_size as usize);
    let mut expected = vec![FILL; work.block_size as usize];
    for job in 0..work.jobs {
        let file = work.file(job);
        for &at in ground.positions(work, job)?.iter() {
            ground.read(file, at, &mut found)?;
            stamp(&mut expected, at);
            if found[..] != expected[..] {
                let name = work.name;
                let lost = format!("{name}: what was written at {at} is not what is read there");
                return Err(Error::Setup(lost));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::sync::Mutex;

    /// Files in a table, and what was done to them.
    #[derive(Default)]
    struct Table {
        blocks: Mutex<HashMap<(usize, u64), Vec<u8>>>,
        calls: Mutex<Vec<&'static str>>,
        loses: Option<u64>,
    }

    impl Table {
        fn called(&self, call: &'static str) {
            self.calls.lock().unwrap().push(call);
        }

        fn count(&self, call: &str) -> usize {
            let calls = self.calls.lock().unwrap();
            calls.iter().filter(|made| **made == call).count()
        }
    }

    impl Ground for Table {
        fn reset(&self, file: usize, _size: u64) -> Result<()> {
            self.called("reset");
            self.blocks.lock().unwrap().retain(|key, _| key.0 != file);
            Ok(())
        }

        fn sync(&self) -> Result<()> {
            self.called("sync");
            Ok(())
        }

        fn write(&self, file: usize, at: u64, buf: &[u8]) -> Result<()> {
            self.called("write");
            if self.loses != Some(at) {
                self.blocks.lock().unwrap().insert((file, at), buf.to_vec());
            }
            Ok(())
        }

        fn sync_data(&self, _file: usize) -> Result<()> {
            self.called("sync_data");
            Ok(())
        }

        fn read(&self, file: usize, at: u64, buf: &mut [u8]) -> Result<()> {
            match self.blocks.lock().unwrap().get(&(file, at)) {
                Some(block) => buf.copy_from_slice(block),
                None => buf.fill(0),
            }
            Ok(())
        }
    }

    fn work(jobs: u32, files: Files) -> Work {
        let file: Box<[u64]> = (0..10).map(|n| n * 4096).collect();
        Work {
            name: "test",
            random: false,
            block_size: 4096,
            jobs,
            files,
            hole: 0,
            sync_every: Some(2),
            order: Order {
                device: file.clone(),
                file,
            },
        }
    }

    #[test]
    fn round_writes_each_block_once_and_syncs_before_and_after() {
        for (jobs, files, resets) in [(1, Files::Shared(0), 1), (3, Files::From(1), 3)] {
            let (table, work) = (Table::default(), work(jobs, files));
            let outcome = round(&table, &work).unwrap();
            check(&table, &work).unwrap();
            assert_eq!((table.count("reset"), table.count("write")), (resets, 10));
            let calls = table.calls.lock().unwrap();
            assert_eq!((calls[resets], calls.last()), ("sync", Some(&"sync")));
            assert_eq!(outcome.latencies[1].len(), 10);
            assert!(outcome.iops[1] > 0.0 && outcome.iops[0] == 0.0);
        }
    }

    #[test]
    fn fdatasync_follows_every_so_many_writes_of_a_thread() {
        let table = Table::default();
        // Parts of 3, 3 and 4 writes: one, one and two.
        round(&table, &work(3, Files::From(1))).unwrap();
        assert_eq!(table.count("sync_data"), 4);
    }

    #[test]
    fn write_that_is_lost_is_found() {
        let table = Table {
            loses: Some(8192),
            ..Table::default()
        };
        let work = work(1, Files::Shared(0));
        round(&table, &work).unwrap();
        let error = check(&table, &work).unwrap_err().to_string();
        assert!(error.contains("8192"), "{error}");
    }
}
