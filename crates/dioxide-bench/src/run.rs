//! Runs the cases of the experiments and makes rows and checks of them.

use crate::compare::{On, Rounds, Variant, contest, median, ratio, size_name};
use crate::image::{self, Image, NewFile};
use crate::load::{Outcome, Timing};
use crate::offsets::{Order, Pattern};
use crate::plan::{self, Case};
use crate::report::{Latency, Machine, Spread};
use crate::subject::{self, Layer, PathSubject, Subject};
use crate::verify::Ledger;
use crate::{
    BenchOptions, Check, DeviceChoice, Error, Experiment, Progress, Report, Result, Row, Target,
    Verified,
};
use crate::{rows, seeds};
use dioxide::Backend;
use dioxide::block::Device;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// The file of an image that is made.
const FILE: &str = "bench.data";

/// Everything that is asked for.
pub(crate) fn run(options: &BenchOptions, progress: &mut dyn Progress) -> Result<Report> {
    let asked: &[Experiment] = match options.experiments.as_slice() {
        [] => &Experiment::SEEDS,
        some => some,
    };
    let mut report = Report {
        machine: Machine::here(),
        ..Report::default()
    };
    let (runs, timing) = plan::timing(options, false);
    report.config = config(options, runs, timing);
    let mut cases = Vec::new();
    for &experiment in asked.iter().filter(|&&e| e != Experiment::Rows) {
        cases.extend(plan::cases(experiment, options)?);
    }
    let mut ticker = Ticker::new(progress);
    ticker.expect(
        cases
            .iter()
            .map(|case| variants_of(case, options) * u64::from(runs))
            .sum(),
    );
    let wants_rows = asked.contains(&Experiment::Rows);
    if !cases.is_empty() {
        Runner::open(options)?.run(&cases, runs, timing, &mut report, &mut ticker)?;
    }
    if wants_rows {
        rows::run(options, &mut report, &mut ticker)?;
    }
    ticker.done();
    Ok(report)
}

fn variants_of(case: &Case, options: &BenchOptions) -> u64 {
    let of = |target: &Target| match target {
        Target::Dioxide => case.settings.len() as u64,
        Target::Raw | Target::Path(_) => 1,
    };
    options.targets.iter().map(of).sum()
}

fn config(options: &BenchOptions, runs: u32, timing: Timing) -> Vec<(String, String)> {
    let image = match &options.image {
        Some(path) => path.display().to_string(),
        None => "made for the run".into(),
    };
    let pairs = [
        ("image", image),
        ("device", options.device.to_string()),
        ("backend", options.backend.to_string()),
        (
            "rounds",
            format!(
                "{runs} of {:?}, warm-up {:?}",
                timing.runtime, timing.warm_up
            ),
        ),
        ("seed", options.seed.to_string()),
        ("verify", if options.verify { "on" } else { "off" }.into()),
    ];
    pairs.map(|(name, value)| (name.to_string(), value)).into()
}

/// Counts rounds for a progress bar.
pub(crate) struct Ticker<'a> {
    progress: &'a mut dyn Progress,
    done: u64,
    total: u64,
}

impl<'a> Ticker<'a> {
    fn new(progress: &'a mut dyn Progress) -> Self {
        Ticker {
            progress,
            done: 0,
            total: 0,
        }
    }

    /// So many more rounds will come.
    pub(crate) fn expect(&mut self, rounds: u64) {
        self.total += rounds;
    }

    pub(crate) fn say(&mut self, what: &str) {
        self.progress.step(self.done, self.total, what);
    }

    pub(crate) fn round(&mut self, what: &str) {
        self.say(what);
        self.done += 1;
    }

    fn done(&mut self) {
        self.done = self.total;
        self.say("done");
    }
}

/// An image and what is open of it.
struct Runner<'a> {
    options: &'a BenchOptions,
    image: Image,
    made: bool,
    size: u64,
    open: Option<(Backend, Arc<dyn Device>)>,
}

impl<'a> Runner<'a> {
    fn open(options: &'a BenchOptions) -> Result<Self> {
        let usual = if options.quick { 256 * MIB } else { 1024 * MIB };
        let size = options.size_bytes.unwrap_or(usual) & !4095;
        if size == 0 {
            return Err(Error::Setup(
                "the file must have at least 4096 bytes".into(),
            ));
        }
        let (image, made) = match &options.image {
            Some(path) => (Image::given(path.clone()), false),
            None => {
                let dir = image::scratch(options.scratch.as_deref(), size);
                let file = NewFile {
                    name: FILE,
                    bytes: size,
                    extents: 1,
                };
                (
                    Image::make(&dir, size + size / 8 + 32 * MIB, &[file])?,
                    true,
                )
            }
        };
        let mut runner = Runner {
            options,
            image,
            made,
            size,
            open: None,
        };
        if made {
            runner.subject(&Layer::Bare)?.fill()?;
        }
        Ok(runner)
    }

    fn run(
        mut self,
        cases: &[Case],
        runs: u32,
        timing: Timing,
        report: &mut Report,
        ticker: &mut Ticker<'_>,
    ) -> Result<()> {
        for of_experiment in cases.chunk_by(|a, b| a.experiment == b.experiment) {
            let experiment = of_experiment[0].experiment;
            let mut results = Vec::new();
            for case in of_experiment {
                let variants = self.variants(case)?;
                let label = |v: &Variant| format!("{experiment} {}", v.label());
                let rounds = contest(&variants, runs, timing, |variant| {
                    ticker.round(&label(variant))
                })?;
                let verified = self.scan(&variants)?;
                report
                    .checks
                    .extend(verified_check(experiment, case, verified));
                let pairs = variants.iter().zip(&rounds);
                report
                    .rows
                    .extend(pairs.flat_map(|(v, r)| make_rows(case, v, r, &rounds)));
                results.push((case, variants, rounds));
            }
            report.checks.extend(crate::goals::of(&results));
            drop(results);
            if of_experiment.iter().any(|case| case.job.read_percent < 100) {
                report.checks.extend(fsck_check(
                    experiment,
                    &self.image,
                    self.options.img_offset,
                )?);
            }
        }
        Ok(())
    }

    /// The file through a layer over the image. No other may be open through another backend.
    fn subject(&mut self, layer: &Layer) -> Result<Arc<Subject>> {
        let backend = match (self.options.backend, layer) {
            // The imitated device is to be the slow part.
            (Backend::Auto, Layer::Sim(_)) if self.made => Backend::Mmap,
            (backend, _) => backend,
        };
        if self.open.as_ref().is_none_or(|(open, _)| *open != backend) {
            // An image is locked by whoever writes it.
            self.open = None;
            let device = subject::open_image(&self.image, backend, self.options.img_offset)?;
            self.open = Some((backend, device));
        }
        let (_, device) = self.open.as_ref().expect("opened above");
        let name = if self.made { FILE } else { &self.options.file };
        let subject = match Subject::open(device, layer, name, self.size) {
            // Where io_uring is not permitted there is no such meter; the image will do.
            Err(Error::Device(dioxide::block::Error::Unsupported { .. }))
                if *layer == Layer::Null && self.options.device == DeviceChoice::Auto =>
            {
                Subject::open(device, &Layer::Bare, name, self.size)?
            }
            other => other?,
        };
        let asked = self.options.size_bytes.unwrap_or(0);
        if subject.size < asked {
            return Err(Error::Setup(format!(
                "{name} has {} bytes, {asked} are asked for",
                subject.size
            )));
        }
        Ok(Arc::new(subject))
    }

    fn variants(&mut self, case: &Case) -> Result<Vec<Variant>> {
        let subject = self.subject(&case.layer)?;
        let pattern = match case.sequential {
            true => Pattern::Sequential,
            false => Pattern::Shuffled {
                seed: self.options.seed,
            },
        };
        let order = Order::new(&subject.runs, subject.size, case.job.block_size, pattern);
        if order.file.is_empty() {
            let size = size_name(case.job.block_size);
            return Err(Error::Setup(format!(
                "no block of {size} of the file is in one piece"
            )));
        }
        let order = Arc::new(order);
        let ledger = self.ledger(case, subject.size);
        if ledger.is_some() {
            subject.fill()?;
        }
        let mut variants = Vec::new();
        for target in &self.options.targets {
            let on = match target {
                Target::Raw => vec![(On::Raw(subject.clone()), ledger.clone())],
                Target::Dioxide => {
                    let one = |&setting| (On::Dioxide(subject.clone(), setting), ledger.clone());
                    case.settings.iter().map(one).collect()
                }
                Target::Path(path) => {
                    let file = PathSubject::open(path, Backend::Auto, subject.size)?;
                    if self.options.verify {
                        file.fill(subject.size)?;
                    }
                    vec![(On::Path(Arc::new(file)), self.ledger(case, subject.size))]
                }
            };
            variants.extend(on.into_iter().map(|(on, ledger)| Variant {
                on,
                job: case.job,
                order: order.clone(),
                ledger,
                raw: None,
            }));
        }
        let raw = variants
            .iter()
            .position(|variant| matches!(variant.on, On::Raw(_)));
        variants.iter_mut().for_each(|variant| variant.raw = raw);
        Ok(variants)
    }

    fn ledger(&self, case: &Case, size: u64) -> Option<Arc<Ledger>> {
        self.options
            .verify
            .then(|| Arc::new(Ledger::new(size, case.job.block_size)))
    }

    /// After the rounds, every sector is what was acknowledged last: through the file, and as it
    /// lies on the device. Returns what all ledgers have found in total.
    fn scan(&self, variants: &[Variant]) -> Result<Option<Verified>> {
        let mut sum = Verified::default();
        let mut seen: Vec<&Arc<Ledger>> = Vec::new();
        for variant in variants {
            let Some(ledger) = &variant.ledger else {
                return Ok(None);
            };
            match &variant.on {
                On::Raw(subject) => {
                    ledger.scan_order(&variant.order, &variant.order.device, |at, buf| {
                        Ok(subject.device.read_at(at, buf)?)
                    })?
                }
                On::Dioxide(subject, _) => {
                    ledger.scan_order(&variant.order, &variant.order.file, |at, buf| {
                        Ok(subject.file.read_at(buf, at).map(|_| ())?)
                    })?
                }
                On::Path(subject) => {
                    ledger.scan_order(&variant.order, &variant.order.file, |at, buf| {
                        Ok(subject.device.read_at(at, buf)?)
                    })?
                }
            }
            if !seen.iter().any(|known| Arc::ptr_eq(known, ledger)) {
                seen.push(ledger);
            }
        }
        seen.iter()
            .for_each(|ledger| sum = sum.plus(&ledger.found()));
        Ok(Some(sum))
    }
}

fn verified_check(experiment: Experiment, case: &Case, found: Option<Verified>) -> Option<Check> {
    let found = found?;
    let wrong = found.torn + found.lost + found.misplaced;
    Some(Check {
        experiment: experiment.to_string(),
        what: format!("verify, {}", size_name(case.job.block_size)),
        target: "no sector torn, lost or misplaced".into(),
        measured: match wrong {
            0 => format!("{} sectors, none", found.sectors),
            _ => format!(
                "{} torn, {} lost, {} misplaced",
                found.torn, found.lost, found.misplaced
            ),
        },
        pass: wrong == 0,
        damage: true,
        note: None,
    })
}

/// Whether the file system is still clean; nothing if e2fsck is not installed.
pub(crate) fn fsck_check(
    experiment: Experiment,
    image: &Image,
    img_offset: u64,
) -> Result<Option<Check>> {
    Ok(image.check(img_offset)?.map(|verdict| Check {
        experiment: experiment.to_string(),
        what: "e2fsck -fn".into(),
        target: "clean".into(),
        pass: verdict.is_ok(),
        measured: verdict.err().unwrap_or_else(|| "clean".into()),
        damage: true,
        note: None,
    }))
}

/// A variant's rows: one, or in a mix one for reads and one for writes.
pub(crate) fn make_rows(
    case: &Case,
    variant: &Variant,
    rounds: &Rounds,
    all: &[Rounds],
) -> Vec<Row> {
    let sides: &[usize] = match case.job.read_percent {
        100 => &[0],
        0 => &[1],
        _ => &[0, 1],
    };
    let raw = variant.raw.map(|index| &all[index]);
    sides
        .iter()
        .map(|&side| make_row(case, variant, rounds, raw, side))
        .collect()
}

fn make_row(
    case: &Case,
    variant: &Variant,
    rounds: &Rounds,
    raw: Option<&Rounds>,
    side: usize,
) -> Row {
    let job = &variant.job;
    let setting = variant.on.setting();
    let iops = |outcome: &Outcome| outcome.iops[side];
    let rate = median(rounds.outcomes.iter().map(iops));
    Row {
        experiment: case.experiment.to_string(),
        target: variant.on.target().to_string(),
        policy: setting.map(|s| s.policy.to_string()),
        completion: setting.map(|s| s.completion.to_string()),
        simple: setting.map(|s| if s.simple { "on" } else { "off" }.into()),
        engine: job.engine.name().into(),
        rw: plan::rw_name(case.sequential, job.read_percent, side).into(),
        block_size: job.block_size,
        iodepth: job.engine.depth(),
        numjobs: job.jobs,
        iops: rate,
        bw_MiBps: rate * f64::from(job.block_size) / MIB as f64,
        lat_us: latency(&rounds.outcomes, side),
        cpu_ns_per_io: median(rounds.outcomes.iter().map(|outcome| outcome.cpu_ns_per_io)),
        ratio_to_raw: raw.map(|raw| ratio(rounds, raw, iops)),
        spread: Spread::of(rounds.outcomes.iter().map(iops)),
        runs: rounds.outcomes.len() as u32,
        device: variant.on.device(),
        seed_iops: seed_iops(case, variant),
        stats: rounds.stats,
        verified: rounds.verified,
    }
}

fn latency(outcomes: &[Outcome], side: usize) -> Latency {
    let mut all = outcomes[0].latencies[side].clone();
    for outcome in &outcomes[1..] {
        all.add(&outcome.latencies[side]).expect("the same bounds");
    }
    let us = |ns: u64| ns as f64 / 1000.0;
    Latency {
        mean: all.mean() / 1000.0,
        p50: us(all.value_at_quantile(0.5)),
        p99: us(all.value_at_quantile(0.99)),
        p999: us(all.value_at_quantile(0.999)),
    }
}

fn seed_iops(case: &Case, variant: &Variant) -> Option<f64> {
    let name = match (case.experiment, variant.on.setting(), &variant.on) {
        (_, None, On::Raw(_)) => "raw".to_string(),
        (Experiment::MixedRandrw | Experiment::UnalignedOverwrite, Some(s), _) => {
            s.policy.to_string()
        }
        (Experiment::AioCompletion, Some(s), _) => s.completion.to_string(),
        (_, Some(s), _) => if s.simple { "simple on" } else { "simple off" }.into(),
        _ => return None,
    };
    let Case {
        experiment, job, ..
    } = case;
    seeds::figure(*experiment, &name, job.block_size, job.engine.depth())
}
