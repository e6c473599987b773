//! What a run found, and its forms.

use crate::image::meminfo;
use dioxide::Stats;
use serde::Serialize;

/// The machine that ran it. Names no host.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Logical processors that the process may use.
    pub cpus: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Name and release of the operating system.
    pub kernel: String,
}

/// Latency of requests, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99 of a hundred are faster.
    pub p99: f64,
    /// 999 of a thousand are faster.
    pub p999: f64,
}

/// The smallest and the largest of the rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

/// What verification found in the rounds of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Sectors that were checked while writes went on, and afterwards.
    pub sectors: u64,
    /// Sectors whose parts were of different writes, and stayed so when read again.
    pub torn: u64,
    /// Sectors older than the last write that had been acknowledged.
    pub lost: u64,
    /// Sectors that belong elsewhere, or that nobody wrote.
    pub misplaced: u64,
    /// Sectors read again, because they were being written at the time.
    pub reread: u64,
}

/// One figure: one variant of one case. Serialised as one JSON object.
#[derive(Clone, Debug, Serialize)]
#[allow(non_snake_case)]
pub struct Row {
    /// Name of the experiment.
    pub experiment: String,
    /// `raw`, `dioxide`, `path:FILE`.
    pub target: String,
    /// Policy of the write lock; none for other targets than dioxide.
    pub policy: Option<String>,
    /// Completion mode, likewise.
    pub completion: Option<String>,
    /// Simple read path: `on` or `off`, likewise.
    pub simple: Option<String>,
    /// `psync` or `queue`.
    pub engine: String,
    /// `read`, `write`, `randread`, `randwrite`, `randrw:read`, `randrw:write`.
    pub rw: String,
    /// Request size in bytes.
    pub block_size: u32,
    /// Requests in flight per job.
    pub iodepth: u32,
    /// Threads.
    pub numjobs: u32,
    /// Requests a second, all jobs together: median of the rounds.
    pub iops: f64,
    /// The same in MiB a second.
    pub bw_MiBps: f64,
    /// Latencies, of all rounds together.
    pub lat_us: Latency,
    /// Processor time of the process per request, in nanoseconds: median of the rounds. In a mix, per
    /// request of either kind.
    pub cpu_ns_per_io: f64,
    /// Median over the rounds of iops ÷ raw's in the same round; none if raw did not run.
    pub ratio_to_raw: Option<f64>,
    /// Smallest and largest iops of the rounds.
    pub spread: Spread,
    /// Rounds.
    pub runs: u32,
    /// The devices under the target.
    pub device: String,
    /// What the mail measured in this place, in requests a second.
    pub seed_iops: Option<f64>,
    /// What the engine counted, in all rounds.
    pub stats: Option<Stats>,
    /// What verification found, if it ran.
    pub verified: Option<Verified>,
}

/// Something that must hold, and whether it did.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Name of the experiment.
    pub experiment: String,
    /// What must hold.
    pub what: String,
    /// What was asked for.
    pub target: String,
    /// What was found.
    pub measured: String,
    /// Whether it held.
    pub pass: bool,
    /// A miss is damage (data, file system), not a figure that may be better on a quiet machine.
    pub damage: bool,
    /// Why it is as it is, where that needs saying.
    pub note: Option<String>,
}

/// Everything that a run found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The machine.
    pub machine: Machine,
    /// What was asked for and chosen: name, value.
    pub config: Vec<(String, String)>,
    /// The figures.
    pub rows: Vec<Row>,
    /// What must hold.
    pub checks: Vec<Check>,
}

impl Machine {
    /// This one.
    pub(crate) fn here() -> Machine {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
        let uname = rustix::system::uname();
        let part = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        Machine {
            cpu: model.map_or("unknown".into(), |m| m.trim_start_matches(['\t', ' ', ':']).into()),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get()),
            memory_mib: meminfo("MemTotal:").unwrap_or(0) >> 20,
            kernel: format!("{} {}", part(uname.sysname()), part(uname.release())),
        }
    }
}

impl Spread {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Spread {
        let start = Spread { min: f64::INFINITY, max: f64::NEG_INFINITY };
        values.fold(start, |s, v| Spread { min: s.min.min(v), max: s.max.max(v) })
    }
}

impl Verified {
    /// Both together.
    pub(crate) fn plus(&self, other: &Verified) -> Verified {
        Verified {
            sectors: self.sectors + other.sectors,
            torn: self.torn + other.torn,
            lost: self.lost + other.lost,
            misplaced: self.misplaced + other.misplaced,
            reread: self.reread + other.reread,
        }
    }
}

impl Report {
    /// The checks that did not hold.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| !check.pass)
    }

    /// Whether data or the file system was found damaged.
    pub fn found_damage(&self) -> bool {
        self.failures().any(|check| check.damage)
    }

    /// One JSON object per row, each on a line.
    pub fn to_json_lines(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            text += &serde_json::to_string(row).expect("plain fields");
            text.push('\n');
        }
        text
    }

    /// One self-contained HTML page.
    pub fn to_html(&self) -> String {
        String::new()
    }

    /// For a terminal.
    pub fn to_table(&self) -> String {
        String::new()
    }
}
