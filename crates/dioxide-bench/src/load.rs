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
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
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

/// Latencies in nanoseconds: of reads, of writes.
pub(crate) type Latencies = [Histogram<u64>; 2];

pub(crate) fn no_latencies() -> Latencies {
    [(); 2].map(|()| {
        Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are constants")
    })
}

/// How many reads and writes a thread has finished. Only the thread writes it, so that counting is
/// a plain store; a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count([AtomicU64; 2]);

impl Count {
    /// Publishes what the owner has counted.
    #[inline]
    fn publish(&self, ops: &[u64; 2]) {
        self.0[0].store(ops[0], Ordering::Relaxed);
        self.0[1].store(ops[1], Ordering::Relaxed);
    }
}

/// What all threads did in the timed part of a round.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Requests a second: reads, writes.
    pub(crate) iops: [f64; 2],
    pub(crate) latencies: Latencies,
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
    counts: Box<[Count]>,
}

impl Round<'_> {
    #[inline]
    fn is(&self, phase: u8) -> bool {
        self.phase.load(Ordering::Relaxed) == phase
    }

    /// Leads the threads through the phases. Returns where they were before and after the timed
    /// one.
    fn conduct(&self, timing: Timing) -> (Snapshot, Snapshot) {
        self.phase.store(WARMING, Ordering::Release);
        std::thread::sleep(timing.warm_up);
        self.phase.store(MEASURING, Ordering::Release);
        let before = self.snapshot();
        std::thread::sleep(timing.runtime);
        let after = self.snapshot();
        self.phase.store(STOP, Ordering::Release);
        (before, after)
    }

    fn snapshot(&self) -> Snapshot {
        let side = |n: usize| {
            self.counts
                .iter()
                .map(|count| count.0[n].load(Ordering::Relaxed))
                .sum()
        };
        Snapshot {
            at: Instant::now(),
            cpu: cpu_time(),
            ops: [side(0), side(1)],
        }
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
        counts: (0..job.jobs).map(|_| Count::default()).collect(),
    };
    std::thread::scope(|scope| {
        let shared = &shared;
        let threads: Vec<_> = (0..job.jobs)
            .map(|number| scope.spawn(move || thread(target, checker, shared, number)))
            .collect();
        shared.ready.wait();
        let (before, after) = shared.conduct(timing);
        let mut latencies = no_latencies();
        for thread in threads {
            let of_thread = thread.join().expect("a load thread panicked")?;
            for (sum, one) in latencies.iter_mut().zip(&of_thread) {
                sum.add(one).expect("the same bounds");
            }
        }
        Ok(outcome(&before, &after, latencies))
    })
}

/// Where all threads were at one moment.
#[derive(Debug)]
struct Snapshot {
    at: Instant,
    cpu: Duration,
    ops: [u64; 2],
}

fn outcome(before: &Snapshot, after: &Snapshot, latencies: Latencies) -> Outcome {
    let seconds = (after.at - before.at).as_secs_f64();
    let ops = [0, 1].map(|side| (after.ops[side] - before.ops[side]) as f64);
    let cpu_ns = (after.cpu - before.cpu).as_nanos() as f64;
    let cpu_ns_per_io = cpu_ns / (ops[0] + ops[1]).max(1.0);
    Outcome {
        iops: ops.map(|ops| ops / seconds),
        latencies,
        cpu_ns_per_io,
    }
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
) -> Result<Latencies> {
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
            let latencies = phases(round, |phase, pace| runner.run(phase, pace))?;
            runner.finish()?;
            Ok(latencies)
        }
    }
}

/// What a thread did in a phase.
struct Leg {
    ops: u64,
    latencies: Latencies,
}

/// Warm-up, then the timed part; the warm-up tells at what pace requests come.
fn phases(round: &Round<'_>, mut run: impl FnMut(u8, Pace) -> Result<Leg>) -> Result<Latencies> {
    while round.is(PREPARING) {
        std::thread::yield_now();
    }
    let begin = Instant::now();
    let warm = run(WARMING, Pace::UNKNOWN)?;
    let pace = Pace::of(warm.ops, begin.elapsed());
    Ok(run(MEASURING, pace)?.latencies)
}

/// How fast a thread's requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    /// Latencies are sampled where these bits of a request's number are 0.
    mask: u64,
    /// A queue waits for a single completion, not for a batch: requests are so slow that batches
    /// would blur the count.
    slow: bool,
}

impl Pace {
    const UNKNOWN: Pace = Pace {
        mask: 0,
        slow: true,
    };

    /// Reading the clock twice costs some 50 ns: let that be invisible beside a request.
    fn of(ops: u64, elapsed: Duration) -> Pace {
        let per_op_ns = elapsed.as_nanos() / u128::from(ops.max(1));
        Pace {
            mask: if per_op_ns < 2_000 { 63 } else { 0 },
            slow: per_op_ns > 50_000,
        }
    }

    #[inline]
    fn samples(self, n: u64) -> bool {
        n & self.mask == 0
    }
}

/// Decides which requests are writes: deals a shuffled deck with the right share of them, over and
/// over, so that a short round has the right mix too.
#[derive(Debug)]
struct Dice {
    /// Whether each is a write.
    deck: Vec<bool>,
    at: usize,
    random: Random,
}

impl Dice {
    fn new(job: &Job, number: u32) -> Dice {
        let percent = u32::from(job.read_percent);
        // The smallest deck that has the exact share.
        let smallest = [1, 2, 4, 5, 10, 20, 25, 50, 100].into_iter();
        let cards = smallest
            .filter(|cards| percent * cards % 100 == 0)
            .min()
            .unwrap_or(100);
        let reads = percent * cards / 100;
        Dice {
            deck: (0..cards).map(|card| card >= reads).collect(),
            at: 0,
            random: Random::new(job.seed ^ u64::from(number + 1) << 32),
        }
    }

    #[inline]
    fn write(&mut self) -> bool {
        if let [only] = self.deck[..] {
            return only;
        }
        if self.at == 0 {
            crate::offsets::shuffle(&mut self.deck, self.random.next());
        }
        let write = self.deck[self.at];
        self.at = (self.at + 1) % self.deck.len();
        write
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
        Cursor {
            at: round.order.start(number, round.job.jobs),
            len: round.positions.len(),
        }
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
pub(crate) fn short(what: &str, at: u64, got: usize, wanted: usize) -> Error {
    Error::Setup(format!(
        "{what} at {at} moved {got} of {wanted} bytes: is the file too small?"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offsets::{Pattern, Run};
    use crate::verify::Ledger;
    use dioxide::block::Device;
    use dioxide::block::mem::MemDevice;
    use std::sync::Arc;

    #[test]
    fn latency_of_fast_requests_is_sampled_sparsely() {
        let fast = Pace::of(1_000_000, Duration::from_secs(1));
        assert!(fast.samples(128) && !fast.samples(129) && !fast.slow);
        let slow = Pace::of(100, Duration::from_secs(1));
        assert!(slow.samples(129) && slow.slow);
    }

    #[test]
    fn dice_follow_the_mix_exactly() {
        let job = |read_percent| Job {
            engine: Engine::Psync,
            read_percent,
            block_size: 4096,
            jobs: 1,
            seed: 1,
        };
        for (percent, writes) in [(0, 1000), (100, 0), (50, 500), (70, 300), (99, 10)] {
            let mut dice = Dice::new(&job(percent), 0);
            assert_eq!(
                (0..1000).filter(|_| dice.write()).count(),
                writes,
                "{percent} % reads"
            );
        }
        let mut dice = Dice::new(&job(50), 0);
        let firsts: Vec<bool> = (0..40).map(|_| (dice.write(), dice.write()).0).collect();
        assert!(firsts.contains(&true) && firsts.contains(&false));
    }

    #[test]
    fn writes_that_were_not_made_are_not_counted() {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(1 << 16));
        let target = DeviceTarget {
            device: &device,
            by_file: true,
        };
        let run = Run {
            file: 0,
            device: 0,
            len: 1 << 16,
        };
        let order = Order::new(&[run], 1 << 16, 4096, Pattern::Sequential);
        // Every write meets another in flight.
        let ledger = Ledger::new(1 << 16, 4096);
        for offset in order.file.iter() {
            assert!(ledger.claim(*offset, 9, &mut [0; 4096]).is_some());
        }
        let ms = Duration::from_millis(5);
        let timing = Timing {
            warm_up: ms,
            runtime: ms,
        };
        let queue = Engine::Queue { depth: 4, batch: 2 };
        for engine in [Engine::Psync, queue] {
            let job = Job {
                engine,
                read_percent: 0,
                block_size: 4096,
                jobs: 2,
                seed: 1,
            };
            let outcome = round(&target, &ledger, &job, &order, timing).unwrap();
            assert_eq!(outcome.total_iops(), 0.0, "{engine:?}");
            assert_eq!(outcome.latencies[1].len(), 0, "{engine:?}");
        }
    }

    #[test]
    fn rates_are_those_between_two_snapshots() {
        let at = Instant::now();
        let before = Snapshot {
            at,
            cpu: Duration::ZERO,
            ops: [10, 20],
        };
        let after = Snapshot {
            at: at + Duration::from_millis(500),
            cpu: Duration::from_micros(150),
            ops: [110, 220],
        };
        let outcome = outcome(&before, &after, no_latencies());
        assert_eq!(outcome.iops, [200.0, 400.0]);
        assert_eq!(outcome.cpu_ns_per_io, 500.0);
    }
}
