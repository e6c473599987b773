//! Names: files made, looked at, opened, renamed and removed.
//!
//! A round is all five operations on as many files as there are, each operation timed on its own: in one
//! directory by one thread; and in two directories, by one thread and by two. The directory is fresh in
//! each round, and gone at its end. Nothing is synced while the clock runs and everything between the
//! operations, on all targets, so that no target pays for what it put off.
//!
//! `raw` has no names, and so no part in this. What two threads can be here at most is told beside what they are: the same
//! names in a table in memory, of which each thread has its own ([`Apart`]). Processors that share a core, a cache or a memory
//! are not two.
//!
//! Rejected: names in random order. Both directories and the kernel's are hashed; the order in which names
//! are made is not the order in which they lie.

use crate::compare::{median, there_and_back};
use crate::image::{self, Image};
use crate::processors::Distance;
use crate::report::Spread;
use crate::run::{Ticker, fsck_check};
use crate::{
    BenchOptions, Check, Error, Experiment, Latency, Report, Result, Row, Target, subject,
};
use dioxide::{Backend, Fs, NewFile, OpenOptions, RenameMode};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, fstatfs, fstatvfs, mkdirat, openat, renameat, statat, syncfs,
    unlinkat,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Instant;

const FILE: &str = "/bench.data";
const FOLDER: &str = "names.bench";
const FILES: u64 = 100_000;
const QUICK_FILES: u64 = 20_000;
/// One in each directory.
const LEAST_FILES: u64 = 2;
/// Those and the one that they are in.
const DIRS: u64 = 3;
/// What `statfs` says of the kernel's ext4, and of what a FUSE server has.
pub(crate) const EXT4_MAGIC: u64 = 0xef53;
const FUSE_MAGIC: u64 = 0x6573_5546;

/// What is done with each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Create,
    Stat,
    Open,
    Rename,
    Unlink,
}

impl Op {
    const ALL: [Op; 5] = [Op::Create, Op::Stat, Op::Open, Op::Rename, Op::Unlink];

    fn name(self) -> &'static str {
        match self {
            Op::Create => "create",
            Op::Stat => "stat",
            Op::Open => "open",
            Op::Rename => "rename",
            Op::Unlink => "unlink",
        }
    }

    /// How many times as fast as on such a mount it is to be; nothing: as fast as it is.
    fn goal(self, magic: u64) -> Option<f64> {
        match (magic, self) {
            (EXT4_MAGIC, Op::Create | Op::Stat | Op::Unlink) => Some(2.0),
            (EXT4_MAGIC, Op::Open | Op::Rename) => Some(1.5),
            // That is fuse2fs. Stat and open ask the library for what there the kernel may know.
            (FUSE_MAGIC, Op::Create | Op::Unlink | Op::Rename) => Some(20.0),
            _ => None,
        }
    }
}

/// A place that has names.
trait Ground: Sync {
    fn make_dir(&self, dir: &str) -> Result<()>;
    fn remove_dir(&self, dir: &str) -> Result<()>;
    fn sync(&self) -> Result<()>;
    /// Nothing where they are made as they are needed.
    fn free_inodes(&self) -> Option<u64>;
    /// `old` and `new` are paths from the root; `new` is for renaming.
    fn one(&self, op: Op, old: &str, new: &str) -> Result<()>;
}

impl Ground for Fs {
    fn make_dir(&self, dir: &str) -> Result<()> {
        Ok(self.create_dir(dir, &NewFile::new(0o755))?)
    }

    fn remove_dir(&self, dir: &str) -> Result<()> {
        Ok(Fs::remove_dir(self, dir)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(Fs::sync(self)?)
    }

    fn free_inodes(&self) -> Option<u64> {
        Some(self.statfs().files_free)
    }

    fn one(&self, op: Op, old: &str, new: &str) -> Result<()> {
        match op {
            Op::Create => drop(
                OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .open(self, old)?,
            ),
            Op::Stat => {
                self.metadata(old)?;
            }
            Op::Open => drop(OpenOptions::new().read(true).open(self, old)?),
            Op::Rename => self.rename(old, new, RenameMode::Replace)?,
            Op::Unlink => self.remove_file(new)?,
        }
        Ok(())
    }
}

/// A directory of a mounted file system.
struct Mounted {
    path: PathBuf,
    root: OwnedFd,
}

impl Mounted {
    fn open(path: &Path) -> Result<Mounted> {
        // A directory of it, or a file as the other experiments take one.
        let dir = match path.is_dir() {
            true => path,
            false => path.parent().unwrap_or(Path::new("/")),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let root = openat(CWD, dir, flags, Mode::empty());
        let failed = |errno: rustix::io::Errno| {
            Error::io(format!("cannot open {}", dir.display()))(errno.into())
        };
        Ok(Mounted {
            path: path.to_owned(),
            root: root.map_err(failed)?,
        })
    }

    /// What kind of file system it is.
    fn magic(&self) -> u64 {
        fstatfs(&self.root).map_or(0, |found| found.f_type as u64)
    }
}

/// A table of names in memory for each thread: nothing that threads share, but for the machine.
struct Apart;

thread_local! {
    static NAMES: RefCell<HashMap<String, u64>> = RefCell::default();
}

impl Ground for Apart {
    fn make_dir(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn remove_dir(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn free_inodes(&self) -> Option<u64> {
        None
    }

    fn one(&self, op: Op, old: &str, new: &str) -> Result<()> {
        NAMES.with_borrow_mut(|names| {
            match op {
                Op::Create => names.insert(old.into(), names.len() as u64),
                Op::Stat | Op::Open => names.get(old).copied(),
                Op::Rename => {
                    let inode = names.remove(old);
                    inode.and_then(|inode| names.insert(new.into(), inode))
                }
                Op::Unlink => names.remove(new),
            };
        });
        Ok(())
    }
}

fn at(path: &str) -> &str {
    path.trim_start_matches('/')
}

fn of_host(what: &str) -> impl FnOnce(rustix::io::Errno) -> Error {
    let what = format!("cannot {what}");
    move |errno| Error::io(what)(errno.into())
}

impl Ground for Mounted {
    fn make_dir(&self, dir: &str) -> Result<()> {
        mkdirat(&self.root, at(dir), Mode::from(0o755)).map_err(of_host("make a directory"))
    }

    fn remove_dir(&self, dir: &str) -> Result<()> {
        unlinkat(&self.root, at(dir), AtFlags::REMOVEDIR).map_err(of_host("remove a directory"))
    }

    fn sync(&self) -> Result<()> {
        syncfs(&self.root).map_err(of_host("sync"))
    }

    fn free_inodes(&self) -> Option<u64> {
        let told = fstatvfs(&self.root).ok().filter(|told| told.f_files > 0);
        told.map(|told| told.f_favail)
    }

    fn one(&self, op: Op, old: &str, new: &str) -> Result<()> {
        let (root, old, new) = (&self.root, at(old), at(new));
        let done = match op {
            Op::Create => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                openat(root, old, flags, Mode::from(0o644)).map(drop)
            }
            Op::Stat => statat(root, old, AtFlags::empty()).map(drop),
            Op::Open => openat(root, old, OFlags::RDONLY, Mode::empty()).map(drop),
            Op::Rename => renameat(root, old, root, new),
            Op::Unlink => unlinkat(root, new, AtFlags::empty()),
        };
        done.map_err(of_host(op.name()))
    }
}

/// Threads, and the directories that they share out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    threads: u32,
    dirs: u32,
}

const SHAPES: [Shape; 3] = [
    Shape {
        threads: 1,
        dirs: 1,
    },
    Shape {
        threads: 1,
        dirs: 2,
    },
    Shape {
        threads: 2,
        dirs: 2,
    },
];

/// Operations a second, by operation.
type Rates = [f64; Op::ALL.len()];

/// Names of one directory, old and new.
fn paths(base: &str, dir: u32, files: u64) -> Vec<(String, String)> {
    let path = |kind, number| format!("{base}/{dir}/{kind}-{number:07}");
    (0..files)
        .map(|number| (path("file", number), path("name", number)))
        .collect()
}

/// When a thread began and ended each operation: its own clock, because who opens the gate may get a processor only when
/// those behind it have ended.
type Spans = Vec<(Instant, Instant)>;

/// What a thread does in a round: each operation on all names of its directories, when the gate opens.
fn work(ground: &impl Ground, dirs: &[Vec<(String, String)>], gate: &Barrier) -> Result<Spans> {
    let (mut done, mut spans) = (Ok(()), Vec::new());
    for op in Op::ALL {
        gate.wait();
        let began = Instant::now();
        // Whoever failed still goes through the gate, where the others wait.
        if done.is_ok() {
            let mut names = dirs.iter().flatten();
            done = names.try_for_each(|(old, new)| ground.one(op, old, new));
        }
        spans.push((began, Instant::now()));
        gate.wait();
    }
    done.map(|()| spans)
}

/// From when the first thread began to when the last ended.
fn seconds(spans: &[Spans], op: usize) -> f64 {
    let spans = || spans.iter().map(|spans| spans[op]);
    let began = spans().map(|(began, _)| began).min();
    let ended = spans().map(|(_, ended)| ended).max();
    let (began, ended) = began.zip(ended).expect("a thread");
    (ended - began).as_secs_f64()
}

fn round(ground: &impl Ground, base: &str, shape: Shape, files: u64) -> Result<Rates> {
    ground.make_dir(base)?;
    let per_dir = files / u64::from(shape.dirs);
    let of_dirs: Vec<_> = (0..shape.dirs)
        .map(|dir| paths(base, dir, per_dir))
        .collect();
    let dirs = || (0..shape.dirs).map(|dir| format!("{base}/{dir}"));
    let made = dirs().try_for_each(|dir| ground.make_dir(&dir));
    let done = made.and_then(|()| rates(ground, &of_dirs, shape));
    if done.is_err() {
        for (old, new) in of_dirs.iter().flatten() {
            // What is not there fails.
            let _ = [old, new].map(|name| ground.one(Op::Unlink, "", name));
        }
    }
    let removed = dirs().map(|dir| ground.remove_dir(&dir));
    let removed = removed.fold(Ok(()), Result::and);
    let removed = removed.and(ground.remove_dir(base)).and(ground.sync());
    done.and_then(|rates| removed.map(|()| rates))
}

fn rates(ground: &impl Ground, of_dirs: &[Vec<(String, String)>], shape: Shape) -> Result<Rates> {
    let gate = Barrier::new(shape.threads as usize + 1);
    let of_thread = of_dirs.chunks(of_dirs.len() / shape.threads as usize);
    let spans = std::thread::scope(|scope| {
        let threads: Vec<_> = of_thread
            .map(|dirs| scope.spawn(|| work(ground, dirs, &gate)))
            .collect();
        let mut synced = Ok(());
        for _ in Op::ALL {
            synced = synced.and(ground.sync());
            gate.wait();
            gate.wait();
        }
        let joined = threads.into_iter().map(|thread| thread.join());
        let spans: Result<Vec<Spans>> = joined
            .map(|done| done.expect("a thread of the load"))
            .collect();
        synced.and(spans)
    })?;
    let all = of_dirs.iter().flatten().count() as f64;
    Ok(std::array::from_fn(|op| all / seconds(&spans, op)))
}

enum On {
    Dioxide(subject::Mounted),
    Path(Mounted),
    /// Not for a row of its own.
    Apart,
}

impl On {
    fn round(&self, base: &str, shape: Shape, files: u64) -> Result<Rates> {
        match self {
            On::Dioxide(fs) => round(&**fs, base, shape, files),
            On::Path(mounted) => round(mounted, FOLDER, shape, files),
            On::Apart => round(&Apart, FOLDER, shape, files),
        }
    }

    /// Refuses more files than there is room for, before there are any.
    fn check_inodes(&self, files: u64) -> Result<()> {
        let free = match self {
            On::Dioxide(fs) => fs.free_inodes(),
            On::Path(mounted) => mounted.free_inodes(),
            On::Apart => None,
        };
        let takes = files + DIRS;
        match free {
            Some(free) if free < takes => Err(Error::Setup(format!(
                "{} has {free} free inodes, `names` takes {takes}: ask for less by --files",
                self.name()
            ))),
            _ => Ok(()),
        }
    }

    fn name(&self) -> String {
        match self {
            On::Dioxide(_) => Target::Dioxide.to_string(),
            On::Path(mounted) => Target::Path(mounted.path.clone()).to_string(),
            On::Apart => "tables of their own".into(),
        }
    }
}

/// Runs all of it.
pub(crate) fn run(
    options: &BenchOptions,
    report: &mut Report,
    ticker: &mut Ticker<'_>,
) -> Result<()> {
    let usual = if options.quick { QUICK_FILES } else { FILES };
    let files = options.files.unwrap_or(usual);
    if files < LEAST_FILES {
        return Err(Error::Setup(format!(
            "`names` needs {LEAST_FILES} --files or more"
        )));
    }
    let runs = options.runs.unwrap_or(if options.quick { 3 } else { 7 });
    let image = image(options)?;
    let targets = open(options, image.as_ref())?;
    targets.iter().try_for_each(|on| on.check_inodes(files))?;
    let name = if options.image.is_some() {
        &options.file
    } else {
        FILE
    };
    let (dir, _) = name.rsplit_once('/').unwrap_or_default();
    let base = format!("{dir}/{FOLDER}");
    let of_shape = |shape| targets.iter().map(move |on| (on, shape));
    let mut entries: Vec<(&On, Shape)> = SHAPES.into_iter().flat_map(of_shape).collect();
    let [_, two_by_one, two] = SHAPES;
    entries.extend([two_by_one, two].map(|shape| (&On::Apart, shape)));
    ticker.expect(entries.len() as u64 * u64::from(runs + 1));
    let before = Distance::measure();
    let mut rates: Vec<Vec<Rates>> = entries.iter().map(|_| Vec::new()).collect();
    for run in 0..=runs as usize {
        for index in there_and_back(entries.len(), run) {
            let (on, shape) = entries[index];
            ticker.round(&format!("names × {} {}", shape.threads, on.name()));
            let measured = on.round(&base, shape, files)?;
            // The first one brings into memory what was never there.
            if run > 0 {
                rates[index].push(measured);
            }
        }
    }
    for ((on, shape), of_entry) in entries.iter().zip(&rates) {
        if !matches!(on, On::Apart) {
            report.rows.extend(rows(on, *shape, of_entry, runs));
        }
    }
    let distances = [before, Distance::measure()];
    report.checks.extend(goals(&entries, &rates, distances));
    drop(entries);
    for target in targets {
        if let On::Dioxide(fs) = target {
            fs.close()?;
        }
    }
    if let Some(image) = &image {
        let check = fsck_check(Experiment::Names, image, options.img_offset)?;
        report.checks.extend(check);
    }
    Ok(())
}

fn image(options: &BenchOptions) -> Result<Option<Image>> {
    if let Some(given) = Image::given(options) {
        return Ok(Some(given));
    }
    if !options.targets.contains(&Target::Dioxide) {
        return Ok(None);
    }
    const BYTES: u64 = 4 << 30;
    let dir = image::scratch(options.scratch.as_deref(), BYTES / 8);
    Image::blank(&dir, BYTES, &[]).map(Some)
}

fn open(options: &BenchOptions, image: Option<&Image>) -> Result<Vec<On>> {
    let mut targets = Vec::new();
    for target in &options.targets {
        match (target, image) {
            (Target::Dioxide, Some(image)) => {
                let backend = match options.backend {
                    Backend::Auto => Backend::Pread,
                    chosen => chosen,
                };
                let device = subject::open_image(image, backend, options.img_offset)?;
                let fs = Fs::open_device(device, &options.mount_options())?;
                targets.push(On::Dioxide(subject::Mounted::new(fs)));
            }
            (Target::Path(path), _) => targets.push(On::Path(Mounted::open(path)?)),
            (Target::Raw | Target::Dioxide, _) => {}
        }
    }
    Ok(targets)
}

fn rows(on: &On, shape: Shape, rates: &[Rates], runs: u32) -> Vec<Row> {
    let row = |(index, op): (usize, Op)| {
        let values: Vec<f64> = rates.iter().map(|of_round| of_round[index]).collect();
        let rate = median(values.iter().copied());
        let device = match on {
            On::Dioxide(fs) => fs.device().describe(),
            On::Path(mounted) => format!("{}", mounted.path.display()),
            On::Apart => String::new(),
        };
        Row {
            experiment: format!("names-{}-dirs", shape.dirs),
            target: on.name(),
            engine: "psync".into(),
            rw: op.name().into(),
            iodepth: 1,
            numjobs: shape.threads,
            iops: rate,
            lat_us: Latency {
                mean: 1e6 * f64::from(shape.threads) / rate,
                ..Latency::default()
            },
            spread: Spread::of(values.iter().copied()),
            rounds: values,
            runs,
            device,
            ..Row::default()
        }
    };
    Op::ALL.into_iter().enumerate().map(row).collect()
}

/// The median of the ratios within the rounds.
fn ratio(of: &[Rates], to: &[Rates], op: usize) -> f64 {
    median(of.iter().zip(to).map(|(of, to)| of[op] / to[op]))
}

fn goals(entries: &[(&On, Shape)], rates: &[Vec<Rates>], distances: [Distance; 2]) -> Vec<Check> {
    let [before, after] = distances;
    let find = |wanted: Shape, is: &dyn Fn(&On) -> bool| {
        let at = entries
            .iter()
            .position(|(on, shape)| *shape == wanted && is(on));
        at.map(|at| &rates[at])
    };
    let own = |on: &On| matches!(on, On::Dioxide(_));
    let apart = |on: &On| matches!(on, On::Apart);
    let mut checks = Vec::new();
    let mut check = |what: String, measured: f64, least: f64, note: Option<String>| {
        checks.push(Check {
            experiment: Experiment::Names.to_string(),
            what,
            target: format!("≥ {least}"),
            measured: format!("{measured:.3}"),
            pass: Some(measured >= least),
            damage: false,
            note,
        });
    };
    let [one, two_by_one, two] = SHAPES;
    for (index, op) in Op::ALL.into_iter().enumerate() {
        for (on, _) in entries
            .iter()
            .filter(|(on, shape)| *shape == one && !own(on))
        {
            let On::Path(mounted) = on else { continue };
            let same = |other: &On| std::ptr::eq(other, *on);
            if let (Some(ours), Some(theirs), Some(least)) =
                (find(one, &own), find(one, &same), op.goal(mounted.magic()))
            {
                let what = format!("{} ÷ {}", op.name(), on.name());
                check(what, ratio(ours, theirs, index), least, None);
            }
        }
        if let (Some(both), Some(alone)) = (find(two, &own), find(two_by_one, &own)) {
            let what = format!("{} by two threads in two directories ÷ by one", op.name());
            let [both_apart, alone_apart] = [two, two_by_one].map(|shape| find(shape, &apart));
            let machine = both_apart.zip(alone_apart);
            let note = machine.map(|(both, alone)| {
                let machine = ratio(both, alone, index);
                format!("two threads that share nothing: {machine:.3}; a line to the other processor and back: {before}, afterwards {after}")
            });
            check(what, ratio(both, alone, index), 1.7, note);
        }
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_of_names_depends_on_what_they_are_held_against() {
        let goals = |magic| Op::ALL.map(|op| op.goal(magic));
        let [two, one_and_a_half, twenty] = [2.0, 1.5, 20.0].map(Some);
        assert_eq!(
            goals(EXT4_MAGIC),
            [two, two, one_and_a_half, one_and_a_half, two]
        );
        assert_eq!(goals(FUSE_MAGIC), [twenty, None, None, twenty, twenty]);
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        assert_eq!(goals(TMPFS_MAGIC), [None; 5]);
    }
}
