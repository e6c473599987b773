//! Arguments of `dioxide bench`.

use super::size::{parse_duration, parse_request_size, parse_size};
use super::{JournalPlace, backend_parser, policy_parser};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use dioxide::{Backend, CompletionMode, Policy};
use dioxide_bench::{BenchOptions, DeviceChoice, Experiment, SimpleChoice, Target};
use std::path::PathBuf;
use std::time::Duration;

/// Measures direct I/O in images, and compares it with raw images and mounts
#[derive(Args, Debug)]
#[command(after_help = "\
Without --image, an image is made in memory and removed at the end. With it, the contents of --file
are overwritten; nothing else is, except by `grow`: that cuts and grows the files grow.data and grow.0
to grow.7 beside --file, and beside the FILE of path:FILE, and leaves them empty. In an image they must
be there. `names` makes the directory names.bench beside --file, and beside FILE or in it if that is a
directory, and removes it. What wrote is checked with e2fsck at the end, if that is there.
Exits with 1 if that, or --verify, finds damage. A figure that misses its target is marked. An option that
none of the experiments uses is refused: --verify and those of the engine are not for `rows`, `grow` and `names`;
those of the engine need the target dioxide, those of the image it or raw; --batch and --completion need queues.

Examples:
  dioxide bench --quick
  dioxide bench mixed-randrw --policy parallel,ilock+ --block-size 4k,64k
  dioxide bench unaligned-overwrite --device sim:latency=100us,iops=500k --html page.html
  dioxide bench simple-read --image disk.img --file /data --verify --json rows.json
  dioxide bench rows --row 1,2,4
  dioxide bench rows --row 6,7 --image disk.img --target dioxide --target path:/mnt/bench.data
  dioxide bench grow --image disk.img --target raw --target dioxide --target path:/mnt/bench.data")]
pub struct BenchArgs {
    /// What to run; all but `rows`, `grow` and `names` if none is named
    #[arg(value_name = "EXPERIMENT", value_parser = experiment_parser())]
    experiments: Vec<Experiment>,
    /// Of `rows`, these only; several with commas
    #[arg(long = "row", value_name = "N", value_delimiter = ',', value_parser = parse_row)]
    rows: Vec<u8>,
    /// What to put the load on: raw, dioxide, path:FILE. May be repeated
    #[arg(long = "target", value_name = "TARGET", default_values = ["raw", "dioxide"])]
    targets: Vec<Target>,
    /// About a minute for everything, with rougher figures
    #[arg(long)]
    quick: bool,
    /// Stamp every sector, and check that none is torn, lost or misplaced
    #[arg(long)]
    verify: bool,
    /// Write one JSON object for each row; - is standard output, without the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with bars beside the figures of the mails; - is standard output, without the table
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    engine: Engine,
    #[command(flatten)]
    load: Load,
}

/// Where it runs.
#[derive(Args, Debug)]
#[command(next_help_heading = "Image and device")]
struct Place {
    /// Image file or block device to use
    #[arg(long, value_name = "IMG")]
    image: Option<PathBuf>,
    /// File inside it, without holes. Its contents are overwritten
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/bench.data",
        requires = "image"
    )]
    file: String,
    /// Where the file system begins in the image
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    img_offset: u64,
    #[command(flatten)]
    journal: JournalPlace,
    /// What lies between: auto, image, sim, sim:latency=TIME,iops=N, null
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: DeviceChoice,
    /// How bytes move between memory and the image
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = backend_parser())]
    backend: Backend,
    /// Bytes of the file to use; for `grow`, that its file grows to
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<u64>,
    /// Directory to make images in [default: in memory if there is room]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
}

/// What is varied in dioxide. Nothing said: what the experiment varies.
#[derive(Args, Debug)]
#[command(next_help_heading = "Engine")]
struct Engine {
    /// Whose rules decide about locks; several with commas
    #[arg(long = "policy", value_name = "POLICY", value_delimiter = ',', value_parser = policy_parser())]
    policies: Vec<Policy>,
    /// Where completions run: inline, deferred; both with a comma
    #[arg(long = "completion", value_name = "MODE", value_delimiter = ',')]
    completions: Vec<CompletionMode>,
    /// Whether small reads take the simple path: on, off, both
    #[arg(long, value_name = "WHEN")]
    simple: Option<SimpleChoice>,
}

/// The load. Nothing said: the parameters of the mails.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
struct Load {
    /// Timed part of each round: 500ms, 2s, 1m; 1ms or more. Not for `grow` and `names`, which count what they do
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    runtime: Option<Duration>,
    /// Rounds, of which the median counts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Request sizes; several with commas
    #[arg(long = "block-size", value_name = "BYTES", value_delimiter = ',', value_parser = parse_request_size)]
    block_sizes: Vec<u32>,
    /// Requests in flight per thread, 4096 at most; several with commas
    #[arg(long = "iodepth", value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    iodepths: Vec<u32>,
    /// Requests per submission in queues
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    numjobs: Option<u32>,
    /// Reads among a hundred requests
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    mix: Option<u8>,
    /// Files of `names` [default: 100000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    files: Option<u64>,
    /// Seed of the order of blocks
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl BenchArgs {
    pub fn options(&self) -> BenchOptions {
        let BenchArgs {
            place,
            engine,
            load,
            ..
        } = self;
        BenchOptions {
            experiments: self.experiments.clone(),
            rows: self.rows.clone(),
            targets: self.targets.clone(),
            image: place.image.clone(),
            file: place.file.clone(),
            img_offset: place.img_offset,
            journal: place.journal.path().map(Into::into),
            device: place.device.clone(),
            policies: engine.policies.clone(),
            completions: engine.completions.clone(),
            simple: engine.simple,
            backend: place.backend,
            runtime: load.runtime,
            runs: load.runs,
            block_sizes: load.block_sizes.clone(),
            iodepths: load.iodepths.clone(),
            numjobs: load.numjobs,
            batch: load.batch,
            mix: load.mix,
            seed: load.seed,
            verify: self.verify,
            quick: self.quick,
            files: load.files,
            size_bytes: place.size,
            scratch: place.scratch.clone(),
        }
    }
}

fn parse_row(number: &str) -> Result<u8, String> {
    let of_table = |row: &u8| row.to_string() == number;
    let row = Experiment::TABLE.iter().copied().find(of_table);
    row.ok_or_else(|| format!("the rows are {:?}", Experiment::TABLE))
}

fn experiment_parser() -> impl TypedValueParser<Value = Experiment> {
    let value =
        |experiment: Experiment| PossibleValue::new(experiment.id()).help(experiment.summary());
    PossibleValuesParser::new(Experiment::ALL.map(value)).try_map(|name| name.parse::<Experiment>())
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, Command};
    use clap::Parser;
    use dioxide::{Backend, CompletionMode, Policy};
    use dioxide_bench::{BenchOptions, DeviceChoice, Experiment, SimpleChoice, Target};
    use std::time::Duration;

    fn options(words: &[&str]) -> BenchOptions {
        let cli = Cli::try_parse_from([&["dioxide", "bench"], words].concat()).unwrap();
        let Command::Bench(args) = cli.command else {
            panic!("not bench")
        };
        args.options()
    }

    #[test]
    fn bench_without_flags_asks_for_the_defaults() {
        let (asked, default) = (options(&[]), BenchOptions::default());
        assert_eq!(format!("{asked:?}"), format!("{default:?}"));
    }

    #[test]
    fn every_flag_of_bench_reaches_its_option() {
        let words = "simple-read rows grow --row 4,12 --target path:/mnt/a,b --quick --verify --image i --file /f --img-offset 1M --journal j \
                     --device sim:latency=231us,iops=801k --backend mmap --size 2M --scratch /s --policy v6.2,xfs \
                     --completion inline,deferred --simple both --runtime 1500ms --runs 9 --block-size 512,4k \
                     --iodepth 1,64 --batch 8 --numjobs 3 --mix 70 --files 9 --seed 42";
        let asked = options(&words.split_whitespace().collect::<Vec<_>>());
        let expected = BenchOptions {
            experiments: vec![Experiment::SimpleRead, Experiment::Rows, Experiment::Grow],
            rows: vec![4, 12],
            targets: vec![Target::Path("/mnt/a,b".into())],
            image: Some("i".into()),
            file: "/f".into(),
            img_offset: 1 << 20,
            journal: Some("j".into()),
            device: "sim:latency=231us,iops=801k"
                .parse::<DeviceChoice>()
                .unwrap(),
            policies: vec![Policy::V56, Policy::Xfs],
            completions: vec![CompletionMode::Inline, CompletionMode::Deferred],
            simple: Some(SimpleChoice::Both),
            backend: Backend::Mmap,
            runtime: Some(Duration::from_millis(1500)),
            runs: Some(9),
            block_sizes: vec![512, 4096],
            iodepths: vec![1, 64],
            numjobs: Some(3),
            batch: Some(8),
            mix: Some(70),
            seed: 42,
            verify: true,
            quick: true,
            files: Some(9),
            size_bytes: Some(2 << 20),
            scratch: Some("/s".into()),
        };
        assert_eq!(format!("{asked:?}"), format!("{expected:?}"));
    }

    #[test]
    fn bench_with_values_out_of_range_is_refused() {
        for words in [
            &["--mix", "101"][..],
            &["--runs", "0"],
            &["--block-size", "100"],
            &["--runtime", "soon"],
            &["--device", "tape"],
            &["--row", "14"],
            &["--files", "1"],
            &["nonsense"],
            &["--file", "/f"],
        ] {
            assert!(
                Cli::try_parse_from([&["dioxide", "bench"], words].concat()).is_err(),
                "{words:?}"
            );
        }
    }
}
