//! What changes the file system: holes filled, files appended to and extended, and `fdatasync`.
//!
//! | Experiment | A round, from a file that was cut to 0 | Threads |
//! |---|---|---|
//! | `grow-hole` | set to its size, then each block of 4 KiB written once, in random order | 1; 4 on one file |
//! | `grow-append` | blocks of 4 KiB at the end, `fdatasync` after each 64 | 1 |
//! | `grow-extend` | blocks of 1 MiB at the end | 1 |
//! | `grow-fsync` | blocks of 4 KiB at the end, `fdatasync` after each | 1; 8 on files of their own |
//! | `grow-fsync` on a simulated device | the same, a flush takes 200 µs | 1; 8 |
//!
//! `grow-extend` has three times as many rounds. The number of writes of a round is fixed, not its time: the thousandth write into a sparse file is
//! not the first. What is not timed: cutting the files, and making everything durable before the writes
//! and after them, so that no target pays for another or for its own past. `raw` writes as much, with
//! the same calls, to where dioxide's files lie. The first round of each target is not counted: it brings
//! into memory what the image never held, and everything it wrote is read back and compared.
//!
//! A file system has one mount at a time, so an image is opened for one backend (and one layer) after
//! the other, and closed cleanly before e2fsck looks at it.
//!
//! Rejected: rounds of a fixed time, as the other experiments have them. The faster target would meet
//! the larger file.

mod ground;
#[cfg(test)]
mod tests;
mod work;

use crate::compare::{Rounds, ratio, size_name, there_and_back};
use crate::figures;
use crate::image::{self, Image, NewFile};
use crate::load::Outcome;
use crate::offsets::{Order, Pattern, Run};
use crate::plan;
use crate::run::{Ticker, fsck_check};
use crate::subject::{self, Layer, Subject};
use crate::{BenchOptions, Check, DeviceChoice, Error, Experiment, Report, Result, Row, Target};
use dioxide::{Backend, File, OpenOptions, Stats};
use ground::{Dioxide, Ground, Mounted, Raw};
use rustix::fs::{FallocateFlags, fallocate};
use std::cell::RefCell;
use work::{Files, Work};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The bench file of an image that is made.
const FILE: &str = "/bench.data";

/// The files that are cut and grown: one for all threads, and one for each.
const FILES: [&str; 9] = [
    "grow.data",
    "grow.0",
    "grow.1",
    "grow.2",
    "grow.3",
    "grow.4",
    "grow.5",
    "grow.6",
    "grow.7",
];
const SHARED: Files = Files::Shared(0);
const OWN: Files = Files::From(1);
const MOST_JOBS: u32 = 8;

/// Runs all of them.
pub(crate) fn run(
    options: &BenchOptions,
    report: &mut Report,
    ticker: &mut Ticker<'_>,
) -> Result<()> {
    let layer = layer(options)?;
    let usual = if options.quick { 64 * MIB } else { 256 * MIB };
    let size = options.size_bytes.unwrap_or(usual) & !(MIB - 1);
    if size == 0 {
        return Err(Error::Setup(
            "`grow` needs a --size of 1 MiB or more".into(),
        ));
    }
    let image = image(options, size)?;
    let mut bench = Bench {
        options,
        report,
        ticker,
        image: image.as_ref(),
        runs: options.runs.unwrap_or(if options.quick { 5 } else { 9 }),
        size,
    };
    for backend in bench.backends()? {
        bench.on(backend, &layer)?;
    }
    match &image {
        Some(image) => {
            let check = fsck_check(Experiment::Grow, image, options.img_offset)?;
            report.checks.extend(check);
            Ok(())
        }
        None => Ok(()),
    }
}

fn layer(options: &BenchOptions) -> Result<Layer> {
    match &options.device {
        DeviceChoice::Auto | DeviceChoice::Image => Ok(Layer::Bare),
        DeviceChoice::Sim(spec) => Ok(Layer::Sim(spec.clone())),
        DeviceChoice::Seed | DeviceChoice::Null => Err(Error::Setup(format!(
            "`grow` does not run on the device '{}'; take auto, image or sim:...",
            options.device
        ))),
    }
}

/// The image that is given, or one that is made; none if only paths are looked at.
fn image(options: &BenchOptions, size: u64) -> Result<Option<Image>> {
    if let Some(given) = Image::given(options) {
        return Ok(Some(given));
    }
    let on_path = |target: &Target| matches!(target, Target::Path(_));
    if options.targets.iter().all(on_path) {
        return Ok(None);
    }
    let bytes = size * 5 / 2 + 64 * MIB;
    let file = |name, bytes| NewFile {
        name,
        bytes,
        extents: 1,
    };
    let mut files = vec![file(&FILE[1..], size)];
    files.extend(FILES.map(|name| file(name, 4096)));
    let dir = image::scratch(options.scratch.as_deref(), bytes);
    let image = Image::make(&dir, bytes, &files)?;
    // Blocks that were never written cost their first writer the memory behind them.
    let host = std::fs::File::options().write(true).open(&image.path);
    let host = host.map_err(Error::io("cannot open the image"))?;
    fallocate(&host, FallocateFlags::empty(), 0, bytes)
        .map_err(|errno| Error::io("no room for the image")(errno.into()))?;
    Ok(Some(image))
}

/// The works of a round. `runs` say where the bench file lies, for raw.
struct Works {
    hole: [Work; 2],
    append: Work,
    extend: Work,
    fsync: [Work; 2],
}

impl Works {
    fn new(size: u64, runs: &[Run], seed: u64) -> Result<Works> {
        let random = Pattern::Shuffled { seed };
        let hole = Work {
            name: "grow-hole",
            random: true,
            block_size: 4096,
            jobs: 1,
            files: SHARED,
            hole: size,
            sync_every: None,
            order: Order::new(runs, size, 4096, random),
        };
        let append = Work {
            name: "grow-append",
            random: false,
            hole: 0,
            sync_every: Some(64),
            order: ascending(runs, size / 4, 4096, 1)?,
            ..hole.clone()
        };
        let extend = Work {
            name: "grow-extend",
            block_size: MIB as u32,
            sync_every: None,
            order: ascending(runs, size, MIB as u32, 1)?,
            ..append.clone()
        };
        let fsync = |jobs| -> Result<Work> {
            let per_job = (size / 64).max(4 * KIB);
            Ok(Work {
                name: "grow-fsync",
                jobs,
                files: OWN,
                sync_every: Some(1),
                order: ascending(runs, per_job, 4096, jobs)?,
                ..append.clone()
            })
        };
        Ok(Works {
            fsync: [fsync(1)?, fsync(MOST_JOBS)?],
            hole: [hole.clone(), Work { jobs: 4, ..hole }],
            append,
            extend,
        })
    }
}

/// Ascending blocks of as many files as there are jobs, each of `bytes`; for raw, as many blocks of
/// the bench file one behind the other, without those that are torn.
fn ascending(runs: &[Run], bytes: u64, block_size: u32, jobs: u32) -> Result<Order> {
    let whole = runs.iter().map(|run| run.file + run.len).max().unwrap_or(0);
    let places = Order::new(runs, whole, block_size, Pattern::Sequential).device;
    let block = u64::from(block_size);
    let per_job = (bytes / block).min(places.len() as u64 / u64::from(jobs));
    if per_job == 0 {
        return Err(Error::Setup(format!(
            "the bench file has not {jobs} blocks of {} in one piece",
            size_name(block_size)
        )));
    }
    let file = (0..jobs).flat_map(|_| (0..per_job).map(|n| n * block));
    Ok(Order {
        file: file.collect(),
        device: places[..(per_job * u64::from(jobs)) as usize].into(),
    })
}

/// What is open of an image with one backend, and of the mounted file systems.
struct Scene {
    image: Option<(Subject, Vec<File>)>,
    paths: Vec<Mounted>,
    size: u64,
    runs: Vec<Run>,
}

/// A work on a target.
struct Entry<'a> {
    on: On<'a>,
    work: &'a Work,
    /// Which entry is raw for this one.
    raw: Option<usize>,
}

#[derive(Clone, Copy)]
enum On<'a> {
    Raw(&'a Subject, &'a [File]),
    Dioxide(&'a Subject, &'a [File]),
    Path(&'a Mounted),
}

/// What is done with a target: a round, or a look at what it has left.
trait Visit {
    type Output;
    fn visit(&self, ground: &impl Ground) -> Result<Self::Output>;
}

struct Measure<'a>(&'a Work);

impl Visit for Measure<'_> {
    type Output = Outcome;
    fn visit(&self, ground: &impl Ground) -> Result<Outcome> {
        work::round(ground, self.0)
    }
}

struct ReadBack<'a>(&'a Work);

impl Visit for ReadBack<'_> {
    type Output = ();
    fn visit(&self, ground: &impl Ground) -> Result<()> {
        work::check(ground, self.0)
    }
}

/// Leaves the files empty.
struct Clear;

impl Visit for Clear {
    type Output = ();
    fn visit(&self, ground: &impl Ground) -> Result<()> {
        (0..FILES.len()).try_for_each(|file| ground.reset(file, 0))?;
        ground.sync()
    }
}

impl On<'_> {
    fn accept<V: Visit>(&self, visit: &V) -> Result<V::Output> {
        match self {
            On::Raw(subject, files) => visit.visit(&Raw {
                device: &subject.device,
                files,
            }),
            On::Dioxide(Subject { fs, .. }, files) => visit.visit(&Dioxide { fs, files }),
            On::Path(mounted) => visit.visit(*mounted),
        }
    }

    fn target(&self) -> Target {
        match self {
            On::Raw(..) => Target::Raw,
            On::Dioxide(..) => Target::Dioxide,
            On::Path(mounted) => Target::Path(mounted.path.clone()),
        }
    }

    fn device(&self) -> String {
        match self {
            On::Raw(subject, _) | On::Dioxide(subject, _) => subject.device.describe(),
            On::Path(mounted) => mounted.describe(),
        }
    }

    fn stats(&self) -> Option<Stats> {
        match self {
            On::Dioxide(subject, _) => Some(subject.fs.stats()),
            On::Raw(..) | On::Path(_) => None,
        }
    }
}

impl Scene {
    /// The targets, in the order in which they were named; no paths on a simulated device.
    fn targets(&self, wanted: &[Target], with_paths: bool) -> Vec<On<'_>> {
        let of = |target: &Target| match (target, &self.image) {
            (Target::Raw, Some((subject, files))) => Some(On::Raw(subject, files)),
            (Target::Dioxide, Some((subject, files))) => Some(On::Dioxide(subject, files)),
            (Target::Path(path), _) if with_paths => {
                let named = self.paths.iter().find(|mounted| mounted.path == *path);
                named.map(On::Path)
            }
            _ => None,
        };
        wanted.iter().filter_map(of).collect()
    }

    /// Leaves all files empty, and the image as after an unmount.
    fn close(self, targets: &[Target]) -> Result<()> {
        for on in self.targets(targets, true) {
            on.accept(&Clear)?;
        }
        if let Some((subject, files)) = self.image {
            let Subject { fs, file, .. } = subject;
            drop((file, files));
            fs.close()?;
        }
        Ok(())
    }
}

struct Bench<'a, 'b> {
    options: &'a BenchOptions,
    report: &'a mut Report,
    ticker: &'a mut Ticker<'b>,
    image: Option<&'a Image>,
    runs: u32,
    size: u64,
}

impl Bench<'_, '_> {
    /// Both ways to move bytes if the image is in memory and nobody has chosen one.
    fn backends(&self) -> Result<Vec<Backend>> {
        match (self.image, self.options.backend) {
            (Some(image), Backend::Auto) => {
                let device = subject::open_image(image, Backend::Auto, self.options.img_offset)?;
                let in_memory = device.geometry().inline;
                Ok(match in_memory {
                    true => vec![Backend::Pread, Backend::Mmap],
                    false => vec![Backend::Auto],
                })
            }
            (_, backend) => Ok(vec![backend]),
        }
    }

    /// Everything with one backend.
    fn on(&mut self, backend: Backend, layer: &Layer) -> Result<()> {
        let scene = self.open(backend, layer)?;
        let works = Works::new(scene.size, &scene.runs, self.options.seed)?;
        let targets = scene.targets(&self.options.targets, true);
        self.hole(&works, &targets, backend)?;
        self.append(&works, &targets, backend)?;
        self.extend(&works, &targets, backend)?;
        self.contest(&works.fsync, &targets, self.runs)?;
        scene.close(&self.options.targets)?;
        if self.options.device == DeviceChoice::Auto && self.image.is_some() {
            self.slow_flush(backend)?;
        }
        Ok(())
    }

    /// Threads that wait for flushes together.
    fn slow_flush(&mut self, backend: Backend) -> Result<()> {
        let spec = "flush=200us".parse()?;
        let scene = self.open(backend, &Layer::Sim(Box::new(spec)))?;
        let works = Works::new(scene.size.min(32 * MIB), &scene.runs, self.options.seed)?;
        let targets = scene.targets(&self.options.targets, false);
        let rounds = self.contest(&works.fsync, &targets, self.runs)?;
        if let Some(at) = position(&targets, is_dioxide) {
            let row = format!("fdatasync, 8 threads ÷ 1, flush 200 µs, {backend}");
            let measured = speed(&rounds[targets.len() + at], &rounds[at]);
            self.at_least(row, measured, 3.0);
        }
        scene.close(&self.options.targets)
    }

    fn hole(&mut self, works: &Works, targets: &[On<'_>], backend: Backend) -> Result<()> {
        let rounds = self.contest(&works.hole, targets, self.runs)?;
        self.against_kernel("4k into holes, 1 thread", targets, &rounds, backend, 1.5);
        Ok(())
    }

    fn append(&mut self, works: &Works, targets: &[On<'_>], backend: Backend) -> Result<()> {
        let rounds = self.contest(std::slice::from_ref(&works.append), targets, self.runs)?;
        self.against_kernel(
            "4k appends, fdatasync each 64",
            targets,
            &rounds,
            backend,
            1.5,
        );
        Ok(())
    }

    fn extend(&mut self, works: &Works, targets: &[On<'_>], backend: Backend) -> Result<()> {
        // Short rounds, and a ratio near 1: more of them tell it better.
        let works = std::slice::from_ref(&works.extend);
        let rounds = self.contest(works, targets, 3 * self.runs)?;
        let raw = position(targets, |on| matches!(on, On::Raw(..)));
        if let Some((raw, own)) = raw.zip(position(targets, is_dioxide)) {
            let row = format!("extending by 1 MiB ÷ raw, {backend}");
            self.at_least(row, speed(&rounds[own], &rounds[raw]), 0.9);
        }
        Ok(())
    }

    /// Compares dioxide with each mounted ext4, by the first work of a contest.
    fn against_kernel(
        &mut self,
        what: &str,
        targets: &[On<'_>],
        rounds: &[Rounds],
        backend: Backend,
        least: f64,
    ) {
        let Some(own) = position(targets, is_dioxide) else {
            return;
        };
        for (on, of_path) in targets.iter().zip(rounds) {
            if let On::Path(mounted) = on
                && mounted.is_ext4()
            {
                let row = format!("{what}, {backend} ÷ {}", on.target());
                self.at_least(row, speed(&rounds[own], of_path), least);
            }
        }
    }

    fn at_least(&mut self, what: String, measured: f64, least: f64) {
        self.report.checks.push(Check {
            experiment: Experiment::Grow.to_string(),
            what,
            target: format!("≥ {least}"),
            measured: format!("{measured:.3}"),
            pass: Some(measured >= least),
            damage: false,
            note: None,
        });
    }

    fn open(&self, backend: Backend, layer: &Layer) -> Result<Scene> {
        let paths = self
            .options
            .targets
            .iter()
            .filter_map(|target| match target {
                Target::Path(path) => Some(Mounted::open(path, &FILES)),
                Target::Raw | Target::Dioxide => None,
            });
        let paths = paths.collect::<Result<Vec<Mounted>>>()?;
        let Some(image) = self.image else {
            let run = Run {
                file: 0,
                device: 0,
                len: self.size,
            };
            return Ok(Scene {
                image: None,
                paths,
                size: self.size,
                runs: vec![run],
            });
        };
        let device = subject::open_image(image, backend, self.options.img_offset)?;
        let name = match self.options.image {
            Some(_) => &self.options.file,
            None => FILE,
        };
        let mount = self.options.mount_options();
        let subject = Subject::open_with(&device, layer, name, self.size, &mount)?;
        let (dir, _) = name.rsplit_once('/').unwrap_or_default();
        let open = |file: &&str| open_file(&subject, &format!("{dir}/{file}"));
        let files = FILES.iter().map(open).collect::<Result<Vec<File>>>()?;
        Ok(Scene {
            size: subject.size & !(MIB - 1),
            runs: subject.runs.clone(),
            image: Some((subject, files)),
            paths,
        })
    }

    /// Runs each work on each target, alternating. Returns the rounds of the first work on all targets,
    /// then those of the second.
    fn contest(&mut self, works: &[Work], targets: &[On<'_>], runs: u32) -> Result<Vec<Rounds>> {
        let raw = position(targets, |on| matches!(on, On::Raw(..)));
        let mut entries = Vec::new();
        for (number, work) in works.iter().enumerate() {
            entries.extend(targets.iter().map(|&on| Entry {
                on,
                work,
                raw: raw.map(|raw| number * targets.len() + raw),
            }));
        }
        self.ticker
            .expect(entries.len() as u64 * u64::from(runs + 1));
        for entry in &entries {
            self.ticker.round(&entry.label());
            entry.on.accept(&Measure(entry.work))?;
            entry.on.accept(&ReadBack(entry.work))?;
        }
        let ticker = RefCell::new(&mut *self.ticker);
        let step = |entry: &Entry<'_>| ticker.borrow_mut().round(&entry.label());
        let rounds = rounds(&entries, runs, step)?;
        for (entry, of_entry) in entries.iter().zip(&rounds) {
            let raw = entry.raw.map(|raw| &rounds[raw]);
            let mut row = make_row(entry, of_entry, raw);
            if let Some(image) = self.image {
                row.device = image.describe(&row.device);
            }
            self.report.rows.push(row);
        }
        Ok(rounds)
    }
}

fn rounds(entries: &[Entry<'_>], runs: u32, step: impl Fn(&Entry<'_>)) -> Result<Vec<Rounds>> {
    let none_yet = |entry: &Entry<'_>| Rounds {
        outcomes: Vec::new(),
        stats: entry.on.stats().map(|_| Stats::default()),
    };
    let mut rounds: Vec<Rounds> = entries.iter().map(none_yet).collect();
    for run in 0..runs as usize {
        for index in there_and_back(entries.len(), run) {
            let (entry, of_entry) = (&entries[index], &mut rounds[index]);
            step(entry);
            let earlier = entry.on.stats();
            of_entry
                .outcomes
                .push(entry.on.accept(&Measure(entry.work))?);
            if let (Some(sum), Some(now), Some(earlier)) =
                (&mut of_entry.stats, entry.on.stats(), earlier)
            {
                *sum = sum.plus(&now.since(&earlier));
            }
        }
    }
    Ok(rounds)
}

impl Entry<'_> {
    fn label(&self) -> String {
        let Work {
            name,
            block_size,
            jobs,
            ..
        } = self.work;
        format!(
            "{name} {} × {jobs} {}",
            size_name(*block_size),
            self.on.target()
        )
    }
}

fn make_row(entry: &Entry<'_>, rounds: &Rounds, raw: Option<&Rounds>) -> Row {
    let work = entry.work;
    let dioxide = match entry.on {
        On::Dioxide(subject, _) => Some(&subject.fs),
        On::Raw(..) | On::Path(_) => None,
    };
    Row {
        experiment: work.name.into(),
        target: entry.on.target().to_string(),
        policy: dioxide.map(|fs| fs.policy().to_string()),
        simple: dioxide.map(|fs| if fs.simple() { "on" } else { "off" }.into()),
        engine: "psync".into(),
        rw: plan::rw_name(!work.random, 0, 1).into(),
        iodepth: 1,
        numjobs: work.jobs,
        device: entry.on.device(),
        ..figures::measured(rounds, raw, work.block_size, 1, Outcome::total_iops)
    }
}

fn speed(of: &Rounds, to: &Rounds) -> f64 {
    ratio(of, to, Outcome::total_iops)
}

fn position(targets: &[On<'_>], is: impl Fn(&On<'_>) -> bool) -> Option<usize> {
    targets.iter().position(is)
}

fn is_dioxide(on: &On<'_>) -> bool {
    matches!(on, On::Dioxide(..))
}

fn open_file(subject: &Subject, name: &str) -> Result<File> {
    let options = OpenOptions::new()
        .read(true)
        .write(true)
        .direct(true)
        .fsetid(true);
    options.open(&subject.fs, name).map_err(|error| match error {
        dioxide::Error::NotFound(_) => Error::Setup(format!(
            "the image has no {name}: `grow` cuts and grows {} and {} to {} beside --file, which must \
             be there",
            FILES[0],
            FILES[1],
            FILES[FILES.len() - 1],
        )),
        other => other.into(),
    })
}
