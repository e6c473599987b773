//! What a run found, and its forms.

mod html;
mod text;

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
    /// Median; nothing here and below: it was not measured.
    pub p50: Option<f64>,
    /// 99 of a hundred are faster.
    pub p99: Option<f64>,
    /// 999 of a thousand are faster.
    pub p999: Option<f64>,
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
#[derive(Clone, Debug, Default, Serialize)]
#[allow(non_snake_case)]
pub struct Row {
    /// Name of the experiment.
    pub experiment: String,
    /// `raw`, `dioxide`, `path:FILE`.
    pub target: String,
    /// Policy of the write lock; none for other targets than dioxide.
    pub policy: Option<String>,
    /// Completion mode, likewise; none where requests block.
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
    /// request of either kind. Nothing: it was not measured.
    pub cpu_ns_per_io: Option<f64>,
    /// Median over the rounds of iops ÷ raw's in the same round; none if raw did not run.
    pub ratio_to_raw: Option<f64>,
    /// Smallest and largest iops of the rounds.
    pub spread: Spread,
    /// Iops of each round, in order: whoever compares rows of one case divides those of the same round.
    pub rounds: Vec<f64>,
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
    /// Whether it held. Nothing: it was not measured.
    pub pass: Option<bool>,
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
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name"));
        let uname = rustix::system::uname();
        let part = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        Machine {
            cpu: model.map_or("unknown".into(), |m| {
                m.trim_start_matches(['\t', ' ', ':']).into()
            }),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get()),
            memory_mib: meminfo("MemTotal:").unwrap_or(0) >> 20,
            kernel: format!("{} {}", part(uname.sysname()), part(uname.release())),
        }
    }
}

impl Spread {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Spread {
        let start = Spread {
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
        };
        values.fold(start, |s, v| Spread {
            min: s.min.min(v),
            max: s.max.max(v),
        })
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
        self.checks.iter().filter(|check| check.pass == Some(false))
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
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    /// Three rows: raw and two policies; a check that holds and one that does not.
    pub(crate) fn report() -> Report {
        Report {
            machine: Machine {
                cpu: "Z80".into(),
                cpus: 2,
                memory_mib: 1,
                kernel: "Linux 6.18".into(),
            },
            config: vec![("seed".into(), "1".into())],
            rows: vec![
                row(None, 30_000.0, None),
                row(Some("parallel"), 7_000.0, Some(7_724.0)),
                row(Some("ilock+"), 30_000.0, Some(30_921.0)),
            ],
            checks: vec![
                check("order", Some(true)),
                check("e2fsck", Some(false)),
                check("rings", None),
            ],
        }
    }

    fn row(policy: Option<&str>, iops: f64, seed_iops: Option<f64>) -> Row {
        Row {
            experiment: "mixed-randrw".into(),
            target: if policy.is_some() { "dioxide" } else { "raw" }.into(),
            policy: policy.map(Into::into),
            completion: policy.map(|_| "inline".into()),
            simple: policy.map(|_| "on".into()),
            engine: "psync".into(),
            rw: "randrw:read".into(),
            block_size: 4096,
            iodepth: 1,
            numjobs: 8,
            iops,
            bw_MiBps: iops / 256.0,
            lat_us: Latency {
                mean: 1.5,
                p50: Some(1.0),
                p99: Some(2.0),
                p999: Some(3.0),
            },
            cpu_ns_per_io: Some(100.0),
            ratio_to_raw: Some(1.0),
            spread: Spread {
                min: iops - 1.0,
                max: iops + 1.0,
            },
            rounds: vec![iops - 1.0, iops, iops + 1.0],
            runs: 3,
            device: "mem".into(),
            seed_iops,
            stats: None,
            verified: None,
        }
    }

    fn check(what: &str, pass: Option<bool>) -> Check {
        Check {
            experiment: "mixed-randrw".into(),
            what: what.into(),
            target: "so".into(),
            measured: "thus".into(),
            pass,
            damage: pass == Some(false),
            note: Some("why".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_row_has_the_documented_keys_first_and_in_order() {
        let text = samples::report().to_json_lines();
        assert_eq!(text.lines().count(), 3);
        let keys = [
            "experiment",
            "target",
            "policy",
            "completion",
            "simple",
            "engine",
            "rw",
            "block_size",
            "iodepth",
            "numjobs",
            "iops",
            "bw_MiBps",
            "lat_us",
            "cpu_ns_per_io",
            "ratio_to_raw",
        ];
        for line in text.lines() {
            let mut at = 0;
            for key in keys {
                let found = line[at..].find(&format!("\"{key}\":"));
                at += found.unwrap_or_else(|| panic!("{key} is not next in {}", &line[at..]));
            }
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            for part in ["mean", "p50", "p99", "p999"] {
                assert!(row["lat_us"][part].is_number(), "{part}");
            }
        }
    }

    #[test]
    fn damage_is_told_from_a_missed_figure() {
        let mut report = samples::report();
        assert!(report.found_damage());
        assert_eq!(report.failures().count(), 1);
        report.checks[1].damage = false;
        assert!(!report.found_damage());
    }

    #[test]
    fn spread_is_smallest_and_largest() {
        assert_eq!(
            Spread::of([2.0, 1.0, 3.0].into_iter()),
            Spread { min: 1.0, max: 3.0 }
        );
    }
}
