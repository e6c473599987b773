//! The load generator: one loop per engine, the same for all targets.

mod psync;
mod queue;
mod target;

pub(crate) use target::{DeviceTarget, DioxideTarget, LoadTarget};

use crate::offsets::{Order, Random};
use crate::verify::Checker;
use crate::{Error, Result};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// How requests are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// One blocking request at a time.
    Psync,
    /// Many in flight.
    Queue {
        /// In flight per job.
        depth: u32,
        /// Per submission.
        batch: u32,
    },
}

impl Engine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Engine::Psync => "psync",
            Engine::Queue { .. } => "queue",
        }
    }

    pub(crate) fn depth(self) -> u32 {
        match self {
            Engine::Psync => 1,
            Engine::Queue { depth, .. } => depth,
        }
    }
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) engine: Engine,
    /// Reads among a hundred requests.
    pub(crate) read_percent: u8,
    pub(crate) block_size: u32,
    /// Threads.
    pub(crate) jobs: u32,
    pub(crate) seed: u64,
}

/// How long a round takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) warm_up: Duration,
    pub(crate) runtime: Duration,
}

/// Reads, or writes: what is counted apart.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    pub(crate) ops: u64,
    /// Nanoseconds.
    pub(crate) latency: Histogram<u64>,
}

impl Side {
    fn new() -> Side {
        let latency = Histogram::new_with_bounds(1, 60_000_000_000, 3);
        Side { ops: 0, latency: latency.expect("the bounds are constants") }
    }

    #[inline]
    fn record(&mut self, latency_ns: u64) {
        self.latency.saturating_record(latency_ns);
    }
}

/// What one thread did in the timed part.
#[derive(Debug)]
struct Tally {
    /// Reads, writes.
    sides: [Side; 2],
    elapsed: Duration,
}

/// What all threads did in the timed part of a round.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Requests a second: reads, writes.
    pub(crate) iops: [f64; 2],
    pub(crate) sides: [Side; 2],
    /// Processor time of the process per request.
    pub(crate) cpu_ns_per_io: f64,
}

impl Outcome {
    pub(crate) fn total_iops(&self) -> f64 {
        self.iops[0] + self.iops[1]
    }
}

const PREPARING: u8 = 0;
const WARMING: u8 = 1;
const MEASURING: u8 = 2;
const STOP: u8 = 3;

/// What all threads of a round look at.
struct Round<'a> {
    job: &'a Job,
    order: &'a Order,
    /// The order as the target wants it.
    positions: &'a [u64],
    phase: AtomicU8,
    ready: Barrier,
}

impl Round<'_> {
    #[inline]
    fn is(&self, phase: u8) -> bool {
        self.phase.load(Ordering::Relaxed) == phase
    }
}

/// Runs one round.
pub(crate) fn round<T: LoadTarget, C: Checker>(
    target: &T,
    checker: &C,
    job: &Job,
    order: &Order,
    timing: Timing,
) -> Result<Outcome> {
    let shared = Round {
        job,
        order,
        positions: target.positions(order),
        phase: AtomicU8::new(PREPARING),
        ready: Barrier::new(job.jobs as usize + 1),
    };
    std::thread::scope(|scope| {
        let shared = &shared;
        let threads: Vec<_> = (0..job.jobs)
            .map(|number| scope.spawn(move || thread(target, checker, shared, number)))
            .collect();
        shared.ready.wait();
        let cpu = conduct(&shared.phase, timing);
        let tallies: Result<Vec<Tally>> =
            threads.into_iter().map(|thread| thread.join().expect("a load thread panicked")).collect();
        Ok(add_up(&tallies?, cpu))
    })
}

/// Leads the threads through the phases. Returns the processor time of the timed part.
fn conduct(phase: &AtomicU8, timing: Timing) -> Duration {
    phase.store(WARMING, Ordering::Release);
    std::thread::sleep(timing.warm_up);
    let before = cpu_time();
    phase.store(MEASURING, Ordering::Release);
    std::thread::sleep(timing.runtime);
    phase.store(STOP, Ordering::Release);
    cpu_time() - before
}

fn add_up(tallies: &[Tally], cpu: Duration) -> Outcome {
    let mut sides = [Side::new(), Side::new()];
    let mut iops = [0.0; 2];
    for tally in tallies {
        for n in 0..2 {
            sides[n].ops += tally.sides[n].ops;
            sides[n].latency.add(&tally.sides[n].latency).expect("the same bounds");
            iops[n] += tally.sides[n].ops as f64 / tally.elapsed.as_secs_f64();
        }
    }
    let ops = sides[0].ops + sides[1].ops;
    let cpu_ns_per_io = cpu.as_nanos() as f64 / ops.max(1) as f64;
    Outcome { iops, sides, cpu_ns_per_io }
}

/// Processor time that the process has used.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn thread<T: LoadTarget, C: Checker>(
    target: &T,
    checker: &C,
    round: &Round<'_>,
    number: u32,
) -> Result<Tally> {
    match round.job.engine {
        Engine::Psync => {
            let mut runner = psync::Runner::new(target, checker, round, number);
            round.ready.wait();
            phases(round, |phase, pace| runner.run(phase, pace))
        }
        Engine::Queue { depth, batch } => {
            let runner = queue::Runner::new(target, checker, round, number, depth, batch);
            // The others wait at the barrier for this one, whether it got its queue or not.
            round.ready.wait();
            let mut runner = runner?;
            let tally = phases(round, |phase, pace| runner.run(phase, pace))?;
            runner.finish()?;
            Ok(tally)
        }
    }
}

/// Warm-up, then the timed part; the warm-up tells how often latencies are to be sampled.
fn phases(
    round: &Round<'_>,
    mut run: impl FnMut(u8, Pace) -> Result<[Side; 2]>,
) -> Result<Tally> {
    while round.is(PREPARING) {
        std::thread::yield_now();
    }
    let begin = Instant::now();
    let warm = run(WARMING, Pace::EVERY)?;
    let pace = Pace::of(warm[0].ops + warm[1].ops, begin.elapsed());
    let begin = Instant::now();
    let sides = run(MEASURING, pace)?;
    Ok(Tally { sides, elapsed: begin.elapsed() })
}

/// How often latencies are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    mask: u64,
}

impl Pace {
    const EVERY: Pace = Pace { mask: 0 };
    const EVERY_64TH: Pace = Pace { mask: 63 };

    /// Reading the clock twice costs some 50 ns: let that be invisible beside a request.
    fn of(ops: u64, elapsed: Duration) -> Pace {
        let per_op_ns = elapsed.as_nanos() / u128::from(ops.max(1));
        if per_op_ns < 2_000 { Pace::EVERY_64TH } else { Pace::EVERY }
    }

    #[inline]
    fn samples(self, n: u64) -> bool {
        n & self.mask == 0
    }
}

/// Decides which requests are writes.
#[derive(Debug)]
struct Dice {
    read_percent: u64,
    random: Random,
}

impl Dice {
    fn new(job: &Job, number: u32) -> Dice {
        let seed = job.seed ^ u64::from(number + 1) << 32;
        Dice { read_percent: u64::from(job.read_percent), random: Random::new(seed) }
    }

    #[inline]
    fn write(&mut self) -> bool {
        match self.read_percent {
            0 => true,
            100 => false,
            percent => self.random.below(100) >= percent,
        }
    }
}

/// Walks the shared order for ever.
#[derive(Debug)]
struct Cursor {
    at: usize,
    len: usize,
}

impl Cursor {
    fn new(round: &Round<'_>, number: u32) -> Cursor {
        Cursor { at: round.order.start(number, round.job.jobs), len: round.positions.len() }
    }

    #[inline]
    fn next(&mut self) -> usize {
        let at = self.at;
        self.at = if at + 1 == self.len { 0 } else { at + 1 };
        at
    }
}

/// An error of a target that moved fewer bytes than asked.
#[cold]
fn short(what: &str, at: u64, got: usize, wanted: usize) -> Error {
    Error::Setup(format!("{what} at {at} moved {got} of {wanted} bytes: is the file too small?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_of_fast_requests_is_sampled_sparsely() {
        assert_eq!(Pace::of(1_000_000, Duration::from_secs(1)), Pace::EVERY_64TH);
        assert_eq!(Pace::of(100, Duration::from_secs(1)), Pace::EVERY);
        assert!(Pace::EVERY_64TH.samples(128) && !Pace::EVERY_64TH.samples(129));
    }

    #[test]
    fn dice_follow_the_mix() {
        let job = |read_percent| Job {
            engine: Engine::Psync,
            read_percent,
            block_size: 4096,
            jobs: 1,
            seed: 1,
        };
        let writes = |percent| {
            let mut dice = Dice::new(&job(percent), 0);
            (0..10_000).filter(|_| dice.write()).count()
        };
        assert_eq!((writes(0), writes(100)), (10_000, 0));
        assert!((2_800..3_200).contains(&writes(70)));
    }

    #[test]
    fn rates_of_threads_add_up_over_their_own_times() {
        let tally = |ops, ms| Tally {
            sides: [Side { ops, ..Side::new() }, Side::new()],
            elapsed: Duration::from_millis(ms),
        };
        let outcome = add_up(&[tally(100, 1000), tally(100, 500)], Duration::from_micros(100));
        assert_eq!(outcome.iops, [300.0, 0.0]);
        assert_eq!(outcome.cpu_ns_per_io, 500.0);
    }
}
