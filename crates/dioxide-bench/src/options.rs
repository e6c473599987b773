//! What can be asked for.

use crate::Error;
use dioxide::block::sim::SimSpec;
use dioxide::{Backend, CompletionMode, MountOptions, Policy};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// What to run, on what, and how.
///
/// The default runs every experiment of the mails with the mails' own parameters, raw and dioxide
/// side by side, on an image that is made for it and removed afterwards.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Which experiments; empty: [`Experiment::SEEDS`].
    pub experiments: Vec<Experiment>,
    /// Rows of the performance table that [`Experiment::Rows`] measures, by their numbers; empty: all of them.
    pub rows: Vec<u8>,
    /// What to run them on. `raw` and `dioxide` by default.
    pub targets: Vec<Target>,
    /// An image or block device to use; `None`: make one, and remove it at the end.
    pub image: Option<PathBuf>,
    /// The file inside the image, which must exist, have no holes and be written. **Its contents
    /// are overwritten.**
    pub file: String,
    /// Where the file system begins in the image, in bytes.
    pub img_offset: u64,
    /// The journal of the file system in the image, if it lies outside.
    pub journal: Option<PathBuf>,
    /// What lies between the engine and the image.
    pub device: DeviceChoice,
    /// Policies of the write lock; empty: those of the experiment.
    pub policies: Vec<Policy>,
    /// Completion modes; empty: those of the experiment.
    pub completions: Vec<CompletionMode>,
    /// Simple read path; `None`: as the experiment has it.
    pub simple: Option<SimpleChoice>,
    /// How bytes move between memory and the image. `Auto` means the mapping under a simulated
    /// device, so that the imitated device is the slow part, where the image is made or lies in memory, and the engine's own
    /// choice otherwise.
    /// Files of mounted file systems are always driven by the best that they take.
    pub backend: Backend,
    /// Length of the timed part of each round; `None`: 1 s, or 200 ms if `quick` (`rows`: 30 and 20 ms;
    /// `grow` counts writes, not time).
    pub runtime: Option<Duration>,
    /// Rounds, of which the median counts; `None`: 5, or 3 if `quick` (`rows`: 41 and 21,
    /// `grow`: 9 and 5).
    pub runs: Option<u32>,
    /// Request sizes in bytes, multiples of 512; empty: those of the experiment.
    pub block_sizes: Vec<u32>,
    /// Requests in flight per job, at most [`dioxide::QueueOptions::MAX_DEPTH`]; empty: those of the experiment.
    pub iodepths: Vec<u32>,
    /// Threads; `None`: as the experiment has it.
    pub numjobs: Option<u32>,
    /// Requests per submission in queues; `None`: a quarter of the depth, from 1 to 32.
    pub batch: Option<u32>,
    /// Reads among a hundred requests, 0 to 100; `None`: as the experiment has it.
    pub mix: Option<u8>,
    /// Seed of the order of blocks and of the mix.
    pub seed: u64,
    /// Stamp every sector and check what is read. Costs time, so the figures are not comparable with
    /// those of a run without it.
    pub verify: bool,
    /// About a minute for all experiments instead of several.
    pub quick: bool,
    /// Files of `names`, 2 or more; `None`: 100,000, or 20,000 if `quick`.
    pub files: Option<u64>,
    /// Bytes of the file to use; `None`: 1 GiB, or 256 MiB if `quick`, or the whole of a given file
    /// if that is smaller. `grow`: the size that its file grows to; a quarter of that by default.
    pub size_bytes: Option<u64>,
    /// Where to make images; `None`: `/dev/shm` if there is room, else the directory for temporary
    /// files.
    pub scratch: Option<PathBuf>,
}

impl BenchOptions {
    /// How the file system in a given image is opened.
    pub(crate) fn mount_options(&self) -> MountOptions {
        match &self.journal {
            Some(path) => MountOptions::new().journal_path(path),
            None => MountOptions::new(),
        }
    }
}

impl Default for BenchOptions {
    fn default() -> Self {
        BenchOptions {
            experiments: Vec::new(),
            rows: Vec::new(),
            targets: vec![Target::Raw, Target::Dioxide],
            image: None,
            file: "/bench.data".into(),
            img_offset: 0,
            journal: None,
            device: DeviceChoice::default(),
            policies: Vec::new(),
            completions: Vec::new(),
            simple: None,
            backend: Backend::Auto,
            runtime: None,
            runs: None,
            block_sizes: Vec::new(),
            iodepths: Vec::new(),
            numjobs: None,
            batch: None,
            mix: None,
            seed: 1,
            verify: false,
            quick: false,
            files: None,
            size_bytes: None,
            scratch: None,
        }
    }
}

/// What can be run, by the names of the mails' table of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Experiment {
    /// Blocking random reads and writes, half and half, 8 threads, 4k to 1M; seven policies.
    /// (Qi, Harjani and Kara, 2019.)
    MixedRandrw,
    /// Queued sequential overwrites of 2k, 8 threads, depth 256; before and after concurrent
    /// unaligned overwrites. (Foster, 2023.)
    UnalignedOverwrite,
    /// Queued sequential overwrites, 1 thread, depth 64, 4k to 16k; completion inline and deferred.
    /// (Bongio, 2023.)
    AioCompletion,
    /// Queued 4k random reads, 1 thread, depth 512; simple path on and off. (Chang, 2026.)
    SimpleRead,
    /// The same at depths 1 to 256.
    SimpleReadSweep,
    /// The rows of the performance table, each with its target and a verdict. Makes its own
    /// images.
    Rows,
    /// What changes the file system: writes into holes, appends, extending writes, and `fdatasync` by
    /// one thread and by eight. Cuts and grows files of its own: `grow.data` and `grow.0` to `grow.7`
    /// in the directory of [`BenchOptions::file`], and beside the file of a [`Target::Path`].
    Grow,
    /// Names: 100,000 files made, looked at, opened, renamed and removed, in a directory `names.bench` beside the file of
    /// [`BenchOptions::file`], and beside that of a [`Target::Path`].
    Names,
}

impl Experiment {
    /// The mails' experiments: what an empty list stands for.
    pub const SEEDS: [Experiment; 5] = [
        Experiment::MixedRandrw,
        Experiment::UnalignedOverwrite,
        Experiment::AioCompletion,
        Experiment::SimpleRead,
        Experiment::SimpleReadSweep,
    ];

    /// Everything that can be named.
    pub const ALL: [Experiment; 8] = [
        Experiment::MixedRandrw,
        Experiment::UnalignedOverwrite,
        Experiment::AioCompletion,
        Experiment::SimpleRead,
        Experiment::SimpleReadSweep,
        Experiment::Rows,
        Experiment::Grow,
        Experiment::Names,
    ];

    /// The numbers of the rows that [`Experiment::Rows`] has.
    pub const TABLE: [u8; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16];

    /// The name.
    pub const fn id(self) -> &'static str {
        match self {
            Experiment::MixedRandrw => "mixed-randrw",
            Experiment::UnalignedOverwrite => "unaligned-overwrite",
            Experiment::AioCompletion => "aio-completion",
            Experiment::SimpleRead => "simple-read",
            Experiment::SimpleReadSweep => "simple-read-sweep",
            Experiment::Rows => "rows",
            Experiment::Grow => "grow",
            Experiment::Names => "names",
        }
    }

    /// One line on what it shows.
    pub const fn summary(self) -> &'static str {
        match self {
            Experiment::MixedRandrw => {
                "8 threads read and overwrite one file at random, under seven write-lock policies"
            }
            Experiment::UnalignedOverwrite => {
                "8 queues overwrite half blocks, before and after concurrent unaligned overwrites"
            }
            Experiment::AioCompletion => {
                "one queue overwrites in order, completion inline and deferred to a worker"
            }
            Experiment::SimpleRead => "one deep queue reads 4k blocks, simple path on and off",
            Experiment::SimpleReadSweep => "the same at depths 1 to 256",
            Experiment::Rows => "the rows of the performance table, each with its target",
            Experiment::Grow => {
                "writes that change the file system: holes filled, files extended, fdatasync"
            }
            Experiment::Names => "files made, looked at, opened, renamed and removed",
        }
    }
}

impl fmt::Display for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

impl FromStr for Experiment {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let found = Experiment::ALL.into_iter().find(|e| e.id() == name);
        found.ok_or_else(|| {
            let names = Experiment::ALL.map(Experiment::id).join(", ");
            Error::Setup(format!("no experiment '{name}'; there are {names}"))
        })
    }
}

/// What the load is put on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The blocks of the file, straight on the device underneath.
    Raw,
    /// The file, through dioxide.
    Dioxide,
    /// A file of a mounted file system, by `O_DIRECT` where it takes that. **Its contents are
    /// overwritten.**
    Path(PathBuf),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Raw => f.pad("raw"),
            Target::Dioxide => f.pad("dioxide"),
            Target::Path(path) => write!(f, "path:{}", path.display()),
        }
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name.split_once(':') {
            None if name == "raw" => Ok(Target::Raw),
            None if name == "dioxide" => Ok(Target::Dioxide),
            Some(("path", path)) if !path.is_empty() => Ok(Target::Path(path.into())),
            _ => Err(Error::Setup(format!(
                "no target '{name}'; there are raw, dioxide, path:FILE"
            ))),
        }
    }
}

/// What lies between the engine and the image.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum DeviceChoice {
    /// What suits the experiment: a simulated device with the latency that the mail's figures imply
    /// for mixed-randrw and unaligned-overwrite, the sink of [`DeviceChoice::Null`] for simple-read
    /// (unless it is to be verified), the image itself for the others.
    #[default]
    Auto,
    /// Nothing: the image itself.
    Image,
    /// A simulated device with what the mail's figures imply, for every experiment.
    Seed,
    /// A simulated device as described.
    Sim(Box<SimSpec>),
    /// A sink for data: only metadata reaches the image. Measures the cost of the software. Queues
    /// only.
    Null,
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.pad("auto"),
            DeviceChoice::Image => f.pad("image"),
            DeviceChoice::Seed => f.pad("sim"),
            DeviceChoice::Sim(spec) => write!(f, "sim:{spec}"),
            DeviceChoice::Null => f.pad("null"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name.split_once(':') {
            None if name == "auto" => Ok(DeviceChoice::Auto),
            None if name == "image" => Ok(DeviceChoice::Image),
            None if name == "sim" => Ok(DeviceChoice::Seed),
            None if name == "null" => Ok(DeviceChoice::Null),
            Some(("sim", spec)) => Ok(DeviceChoice::Sim(Box::new(spec.parse()?))),
            _ => Err(Error::Setup(format!(
                "no device '{name}'; there are auto, image, sim, sim:latency=...,iops=..., null"
            ))),
        }
    }
}

/// Whether reads take the simple path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimpleChoice {
    /// Yes.
    On,
    /// No.
    Off,
    /// First no, then yes.
    Both,
}

impl SimpleChoice {
    /// The settings to run, before the change first.
    pub(crate) fn settings(self) -> Vec<bool> {
        match self {
            SimpleChoice::On => vec![true],
            SimpleChoice::Off => vec![false],
            SimpleChoice::Both => vec![false, true],
        }
    }
}

impl FromStr for SimpleChoice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "on" => Ok(SimpleChoice::On),
            "off" => Ok(SimpleChoice::Off),
            "both" => Ok(SimpleChoice::Both),
            _ => Err(Error::Setup(format!(
                "'{name}': the simple path is on, off or both"
            ))),
        }
    }
}

/// Is told how far a run is.
pub trait Progress {
    /// `done` of `total` rounds are over; `what` comes next.
    fn step(&mut self, done: u64, total: u64, what: &str);
}

/// Nobody wants to know.
impl Progress for () {
    fn step(&mut self, _done: u64, _total: u64, _what: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiment_and_target_names_round_trip() {
        for experiment in Experiment::ALL {
            assert_eq!(
                experiment.to_string().parse::<Experiment>().unwrap(),
                experiment
            );
        }
        for name in ["raw", "dioxide", "path:/mnt/file:with:colons"] {
            assert_eq!(name.parse::<Target>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn unknown_name_is_refused_with_the_known_ones() {
        let says = |error: Error, word: &str| assert!(error.to_string().contains(word), "{error}");
        says("randrw".parse::<Experiment>().unwrap_err(), "mixed-randrw");
        says("path:".parse::<Target>().unwrap_err(), "path:FILE");
        says("disk".parse::<DeviceChoice>().unwrap_err(), "null");
        says("maybe".parse::<SimpleChoice>().unwrap_err(), "both");
    }

    #[test]
    fn device_spec_is_parsed_and_shown() {
        let device: DeviceChoice = "sim:latency=231us,iops=801k".parse().unwrap();
        let DeviceChoice::Sim(spec) = &device else {
            panic!("{device}")
        };
        assert_eq!(spec.read_iops, Some(801_000));
        assert_eq!(device.to_string().parse::<DeviceChoice>().unwrap(), device);
        assert!("sim:latency=soon".parse::<DeviceChoice>().is_err());
    }
}
