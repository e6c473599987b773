//! How many requests of each kind came, and how long each took.
//!
//! A histogram is an array of counters, eight for each power of two, so that a quantile is right within 7 %. Nobody waits
//! for anybody: threads count with relaxed additions, spread over a few copies that are added up when somebody asks. What
//! is counted while somebody adds up is counted in this report or in the next one.
//!
//! The time is that of the server: from the request taken apart to its answer known. How long it lay in the kernel's queue
//! is not seen from here.

use dioxide::{DamageMet, Stats};
use serde::Serialize;
use std::array::from_fn;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Attribute of the root that holds the report as JSON. It is not listed, and no file has one of this name on the disk.
pub const STATS_XATTR: &str = "system.dioxide.stats";
/// Attribute of the root that holds the path of the image; as [`STATS_XATTR`].
pub const IMAGE_XATTR: &str = "system.dioxide.image";
/// Attribute of the root that holds the byte of the image where the file system begins; as [`STATS_XATTR`].
pub const OFFSET_XATTR: &str = "system.dioxide.offset";
/// Attribute of the root that holds the server's process, and the namespace of which that is a number; as [`STATS_XATTR`].
pub const PROCESS_XATTR: &str = "system.dioxide.process";
/// Attribute of the root that holds the bits of the superblock's state that are set again when the image is closed; as
/// [`STATS_XATTR`]. There is none where nothing is written.
pub const STATE_XATTR: &str = "system.dioxide.state";

macro_rules! operations {
    ($($kind:ident $name:literal,)*) => {
        /// A kind of request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Op { $($kind,)* }

        const NAMES: &[&str] = &[$($name,)*];
    };
}

operations! {
    Lookup "lookup",
    Getattr "getattr",
    Setattr "setattr",
    Readlink "readlink",
    Mknod "mknod",
    Mkdir "mkdir",
    Symlink "symlink",
    Link "link",
    Create "create",
    Tmpfile "tmpfile",
    Unlink "unlink",
    Rmdir "rmdir",
    Rename "rename",
    Open "open",
    Release "release",
    Read "read",
    Write "write",
    Fsync "fsync",
    Fallocate "fallocate",
    Lseek "lseek",
    CopyFileRange "copy_file_range",
    Readdir "readdir",
    Readdirplus "readdirplus",
    Fsyncdir "fsyncdir",
    Statfs "statfs",
    Getxattr "getxattr",
    Listxattr "listxattr",
    Setxattr "setxattr",
    Removexattr "removexattr",
    Ioctl "ioctl",
    Syncfs "syncfs",
    Forget "forget",
}

/// Buckets for each power of two, as a power of two.
const STEP_BITS: u32 = 3;
/// Nanoseconds below this have a bucket each.
const EXACT: u64 = 2 << STEP_BITS;
/// What takes longer than 2^40 ns, 18 minutes, is counted in the last bucket.
const TOP_BIT: u32 = 40;
const BUCKETS: usize = EXACT as usize + ((TOP_BIT - STEP_BITS - 1) << STEP_BITS) as usize;
const COPIES: usize = 4;

fn bucket(nanos: u64) -> usize {
    if nanos < EXACT {
        return nanos as usize;
    }
    let bit = nanos.ilog2();
    let step = nanos >> (bit - STEP_BITS) & ((1 << STEP_BITS) - 1);
    let at = EXACT + (u64::from(bit - STEP_BITS - 1) << STEP_BITS) + step;
    (at as usize).min(BUCKETS - 1)
}

/// The middle of a bucket.
fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let Some(above) = bucket.checked_sub(EXACT) else {
        return bucket;
    };
    let shift = (above >> STEP_BITS) as u32 + 1;
    let from = ((1 << STEP_BITS) + (above & ((1 << STEP_BITS) - 1))) << shift;
    from + (1 << shift) / 2
}

/// Counters of one kind of request, by one copy.
struct Times {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
    longest: AtomicU64,
}

impl Times {
    fn new() -> Times {
        Times {
            buckets: from_fn(|_| AtomicU64::new(0)),
            nanos: AtomicU64::new(0),
            longest: AtomicU64::new(0),
        }
    }

    fn add(&self, nanos: u64) {
        self.buckets[bucket(nanos)].fetch_add(1, Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
        if self.longest.load(Relaxed) < nanos {
            self.longest.fetch_max(nanos, Relaxed);
        }
    }
}

/// Counts requests.
pub(crate) struct Recorder {
    since: Instant,
    /// By operation, [`COPIES`] of each.
    times: Box<[Times]>,
}

/// Counts one request when it is dropped.
pub(crate) struct Timed<'a> {
    times: &'a Times,
    since: Instant,
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.times.add(self.since.elapsed().as_nanos() as u64);
    }
}

thread_local! {
    static COPY: Cell<usize> = Cell::new(NEXT.fetch_add(1, Relaxed) % COPIES);
}
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// How long requests of one kind took, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// How many there were.
    pub count: u64,
    /// The average.
    pub mean_ns: u64,
    /// Half of them took at most so long, within 7 %.
    pub p50_ns: u64,
    /// 99 % of them.
    pub p99_ns: u64,
    /// 99.9 % of them.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// All of them by powers of two, shortest first; those that none fell between are left out.
    pub histogram: Vec<Band>,
}

/// Requests that took about as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Band {
    /// They took less than this power of two, and half of it or more; the last, 2^40, has all that took longer, too.
    pub below_ns: u64,
    /// How many there were.
    pub count: u64,
}

/// What a mount has counted since it was mounted.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Of this program.
    pub version: &'static str,
    /// Seconds since it was mounted.
    pub uptime_secs: f64,
    /// Nothing is written, from the beginning.
    pub read_only: bool,
    /// Why nothing is written any more, if so.
    pub failure: Option<String>,
    /// Damage that was met.
    pub damage: DamageMet,
    /// Files that the kernel knows.
    pub known_files: usize,
    /// Those of them that are held as objects.
    pub held_files: usize,
    /// Open files.
    pub open_files: usize,
    /// Requests by their name in the FUSE protocol; those that never came are left out.
    pub requests: BTreeMap<&'static str, Latency>,
    /// What the library has counted: requests by the path they took, and what slowed them down.
    pub engine: Stats,
}

impl Recorder {
    pub(crate) fn new() -> Recorder {
        let times = (0..NAMES.len() * COPIES).map(|_| Times::new());
        Recorder {
            since: Instant::now(),
            times: times.collect(),
        }
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.since.elapsed()
    }

    /// Counts a request from here to the drop of what is returned.
    pub(crate) fn time(&self, op: Op) -> Timed<'_> {
        Timed {
            times: &self.times[op as usize * COPIES + COPY.get()],
            since: Instant::now(),
        }
    }

    pub(crate) fn latencies(&self) -> BTreeMap<&'static str, Latency> {
        let copies = self.times.chunks(COPIES);
        let all = NAMES.iter().zip(copies);
        all.filter_map(|(name, copies)| Some((*name, latency(copies)?)))
            .collect()
    }
}

/// None if there were no requests.
fn latency(copies: &[Times]) -> Option<Latency> {
    let sum = |of: &dyn Fn(&Times) -> u64| copies.iter().map(of).sum::<u64>();
    let counts: Vec<u64> = (0..BUCKETS)
        .map(|at| sum(&|times| times.buckets[at].load(Relaxed)))
        .collect();
    let count: u64 = counts.iter().sum();
    let longest = copies.iter().map(|times| times.longest.load(Relaxed));
    let max_ns = longest.max().unwrap_or(0);
    let quantile =
        |per_mille: u64| at_rank(&counts, (count * per_mille).div_ceil(1000)).min(max_ns);
    (count > 0).then(|| Latency {
        count,
        mean_ns: sum(&|times| times.nanos.load(Relaxed)) / count,
        p50_ns: quantile(500),
        p99_ns: quantile(990),
        p999_ns: quantile(999),
        max_ns,
        histogram: bands(&counts),
    })
}

fn bands(counts: &[u64]) -> Vec<Band> {
    let below = |at: usize| (middle(at) + 1).next_power_of_two();
    let buckets = (0..counts.len()).collect::<Vec<_>>();
    let bands = buckets.chunk_by(|&one, &other| below(one) == below(other));
    let band = |of: &[usize]| Band {
        below_ns: below(of[0]),
        count: of.iter().map(|&at| counts[at]).sum(),
    };
    bands.map(band).filter(|band| band.count > 0).collect()
}

/// The time of the `rank`-th shortest, from 1.
fn at_rank(counts: &[u64], rank: u64) -> u64 {
    let mut seen = 0;
    let found = counts.iter().position(|&count| {
        seen += count;
        seen >= rank
    });
    middle(found.unwrap_or(BUCKETS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_falls_into_a_bucket_whose_middle_is_near() {
        let mut before = 0;
        for nanos in (0..40).flat_map(|bit| [1_u64 << bit, (1 << bit) + (1 << bit) / 3]) {
            let (at, told) = (bucket(nanos), middle(bucket(nanos)));
            assert!(at >= before, "{nanos} before what is shorter");
            assert!(
                told.abs_diff(nanos) * 100 <= nanos * 7,
                "{nanos} told as {told}"
            );
            before = at;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn buckets_lie_side_by_side() {
        for at in EXACT as usize..BUCKETS - 1 {
            assert_eq!(bucket(middle(at)), at);
            assert!(middle(at) < middle(at + 1));
        }
    }

    #[test]
    fn bands_are_powers_of_two() {
        let of = |nanos: u64| {
            let mut counts = vec![0; BUCKETS];
            counts[bucket(nanos)] = 3;
            bands(&counts)
        };
        for nanos in [
            0_u64,
            1,
            2,
            3,
            4,
            15,
            16,
            31,
            32,
            1000,
            1 << 20,
            (1 << 21) - 1,
        ] {
            let below_ns = (nanos + 1).next_power_of_two();
            assert_eq!(of(nanos), [Band { below_ns, count: 3 }], "{nanos}");
        }
        assert_eq!(bands(&[1; BUCKETS]).len(), TOP_BIT as usize + 1);
    }

    #[test]
    fn quantiles_of_known_times_are_told() {
        let recorder = Recorder::new();
        for times in &recorder.times[Op::Read as usize * COPIES..][..COPIES] {
            (0..249).for_each(|_| times.add(1_000));
            times.add(1_000_000);
        }
        let all = recorder.latencies();
        assert_eq!(all.len(), 1);
        let told = &all["read"];
        assert_eq!((told.count, told.max_ns), (1000, 1_000_000));
        assert_eq!(told.mean_ns, (996 * 1_000 + 4 * 1_000_000) / 1000);
        let band = |below_ns, count| Band { below_ns, count };
        assert_eq!(told.histogram, [band(1 << 10, 996), band(1 << 20, 4)]);
        for (quantile, expected) in [
            (told.p50_ns, 1_000),
            (told.p99_ns, 1_000),
            (told.p999_ns, 1_000_000),
        ] {
            assert!(
                quantile.abs_diff(expected) * 100 <= expected * 7,
                "{told:?}"
            );
        }
    }

    #[test]
    fn request_is_counted_when_it_ends() {
        let recorder = Recorder::new();
        let timed = recorder.time(Op::Fsync);
        assert!(recorder.latencies().is_empty());
        std::thread::sleep(Duration::from_millis(2));
        drop(timed);
        let told = &recorder.latencies()["fsync"];
        assert!(told.count == 1 && told.mean_ns >= 2_000_000, "{told:?}");
    }
}
