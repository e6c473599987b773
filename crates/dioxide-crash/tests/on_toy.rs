//! The explorer on a toy: finds nothing wrong with it as long as it is right, and something as soon
//! as it, or the device under it, is broken.

mod toy;

use dioxide::block::record::states::{Cache, Snapshot};
use dioxide::block::{Device, Durability};
use dioxide_crash::explore::{Check, Checks, Explorer, Limits, Recover, Sample, Stop};
use dioxide_crash::fault::Fault;
use dioxide_crash::image::Layout;
use dioxide_crash::op::Op;
use dioxide_crash::report::{Bad, Report};
use dioxide_crash::run::{Disk, Start, record};
use dioxide_crash::target::{Outcome, Seen, Session, Target};
use dioxide_crash::workload::Workload;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use toy::{Bug, Toy, start};

fn limits() -> Limits {
    Limits {
        states: 120,
        interrupt_every: 200,
        ..Limits::default()
    }
}

/// Workloads that between them do everything: each operation alone, and random mixes.
fn workloads(seed: u64, random: u64) -> Vec<Workload> {
    let mixes = (0..random).map(|index| Workload::Random { seed: seed + index });
    // It has no names, and little space.
    let is_single = |workload: &Workload| matches!(workload, Workload::Single { .. });
    let singles = Workload::singles(Layout::K1).into_iter().filter(is_single);
    mixes.chain(singles).collect()
}

/// Explores until something bad is found.
fn explore(bug: Bug, fault: Option<Fault>, workloads: &[Workload]) -> Report {
    let target = Toy(bug);
    let explorer = Explorer {
        target: &target,
        checks: Checks::default(),
        limits: limits(),
        stop: &|| false,
    };
    let mut report = Report::default();
    for (workload, cache) in workloads
        .iter()
        .zip([Cache::Volatile, Cache::NoFua].repeat(workloads.len()))
    {
        let disk = Disk { cache, fault };
        let ops = workload.ops(Layout::K1).expect("operations of the layout");
        match record(&target, &start(), &[ops], disk) {
            Ok(recorded) => explorer.explore(&recorded, &workload.to_string(), &mut report),
            Err(what) => panic!("{workload}: {what}"),
        }
        if report.bad > 0 {
            break;
        }
    }
    report
}

/// The same each time: of the bugs that few states show, some random mixes show none.
fn seed() -> u64 {
    match std::env::var("DIOXIDE_SEED") {
        Ok(seed) => seed.parse().expect("DIOXIDE_SEED is a number"),
        Err(_) => 2026,
    }
}

#[test]
fn toy_that_is_right_is_never_bad() {
    let seed = seed();
    println!("DIOXIDE_SEED={seed}");
    let all = workloads(seed, 150);
    let pairs = Workload::pairs(Layout::K1)
        .into_iter()
        .skip(seed as usize % 37)
        .step_by(37);
    let report = explore(
        Bug::None,
        None,
        &all.into_iter().chain(pairs).collect::<Vec<_>>(),
    );
    println!("{report}");
    assert_eq!(report.bad, 0, "DIOXIDE_SEED={seed}");
    assert_eq!(report.unsupported, 0);
    assert!(report.states > 10_000 && report.reopened > 0);
    // One state in 200 at least, each at several points.
    assert!((1..report.states / 50).contains(&report.interrupted));
}

fn is_caught(bug: Bug, fault: Option<Fault>) {
    let seed = seed();
    let report = explore(bug, fault, &workloads(seed, 60));
    let Some(bad) = report.examples.first() else {
        panic!("{bug:?}, {fault:?}: not noticed, DIOXIDE_SEED={seed}\n{report}");
    };
    println!(
        "{bug:?} {fault:?}: after {} states: {}",
        report.states, bad.what
    );
}

macro_rules! bugs {
    ($($name:ident: $bug:expr, $fault:expr;)*) => {
        $(#[test]
        fn $name() {
            is_caught($bug, $fault);
        })*
    };
}

bugs! {
    commit_without_flush_before_is_caught: Bug::NoFlushBeforeCommit, None;
    commit_without_flush_after_is_caught: Bug::NoFlushAfterCommit, None;
    commit_over_the_newest_is_caught: Bug::SamePlace, None;
    metadata_without_checksum_is_caught: Bug::NoChecksum, None;
    free_before_commit_is_caught: Bug::FreeBeforeCommit, None;
    data_after_metadata_is_caught: Bug::DataLate, None;
    dsync_without_commit_is_caught: Bug::DsyncWithoutCommit, None;
    dsync_without_flush_is_caught: Bug::DsyncWithoutFlush, None;
    fsync_of_metadata_only_is_caught: Bug::FsyncOnlyMetadata, None;
    fsync_without_attributes_is_caught: Bug::FsyncForgetsAttributes, None;
    new_block_that_is_not_zeroed_is_caught: Bug::NoZeroing, None;
    tail_that_is_not_zeroed_is_caught: Bug::NoTailZeroing, None;
    unwritten_block_that_shows_is_caught: Bug::UnwrittenShows, None;
    recovery_that_does_not_last_is_caught: Bug::CloseLosesMetadata, None;
    collapse_in_steps_is_caught: Bug::CollapseInSteps, None;
    device_without_flushes_is_caught: Bug::None, Some(Fault::NoFlush);
    device_that_forgets_fua_is_caught: Bug::None, Some(Fault::NoFua);
    device_with_every_second_flush_is_caught: Bug::None, Some(Fault::EverySecondFlush);
    device_that_writes_past_flushes_is_caught: Bug::None, Some(Fault::LatePastFlush);
    device_that_loses_writes_is_caught: Bug::None, Some(Fault::LostWrite(5));
    device_that_writes_short_is_caught: Bug::None, Some(Fault::ShortWrite(5));
    device_that_misplaces_writes_is_caught: Bug::None, Some(Fault::Misplaced(5));
}

/// Sectors that the toy has no use for: the mark that it is in use, and a block that it takes then.
const MARK: u64 = 31 << 10;
const TAKEN: u64 = MARK + 512;

/// The toy, which takes a block while it is in use. Its recovery gives the block back, and takes the mark off before or after.
struct Marked {
    mark_first: bool,
}

struct Marking {
    inner: Box<dyn Session>,
    device: Arc<dyn Device>,
    in_use: bool,
}

fn set(device: &dyn Device, sector: u64, to: u8) -> Result<(), String> {
    let written = device.write_at(sector, &[to; 512], Durability::Cached);
    written
        .and_then(|()| device.flush())
        .map_err(|e| e.to_string())
}

fn is_set(image: &Snapshot, sector: u64) -> bool {
    image.to_vec()[sector as usize] != 0
}

impl Target for Marked {
    fn open(&self, device: Arc<dyn Device>) -> Result<Box<dyn Session>, String> {
        let mut mark = [0; 512];
        device.read_at(MARK, &mut mark).map_err(|e| e.to_string())?;
        if mark[0] != 0 {
            let order = match self.mark_first {
                true => [MARK, TAKEN],
                false => [TAKEN, MARK],
            };
            order.into_iter().try_for_each(|it| set(&*device, it, 0))?;
        }
        Ok(Box::new(Marking {
            inner: Toy(Bug::None).open(device.clone())?,
            device,
            in_use: false,
        }))
    }
}

impl Session for Marking {
    fn run(&mut self, op: &Op, name: &str, data: &[u8]) -> Result<Outcome, String> {
        if !self.in_use {
            let order = [MARK, TAKEN].into_iter();
            order
                .into_iter()
                .try_for_each(|it| set(&*self.device, it, 1))?;
            self.in_use = true;
        }
        self.inner.run(op, name, data)
    }

    fn look(&mut self, name: &str) -> Result<Seen, String> {
        self.inner.look(name)
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        self.inner.close()?;
        let order = [TAKEN, MARK].into_iter();
        let mut order = order.filter(|_| self.in_use);
        order.try_for_each(|it| set(&*self.device, it, 0))
    }
}

/// Finds the block that nobody gave back.
struct NoLeak;

impl Check for NoLeak {
    fn check(&self, image: &Snapshot) -> Result<(), String> {
        match is_set(image, TAKEN) {
            true => Err("a block is lost".into()),
            false => Ok(()),
        }
    }
}

/// Takes the mark off, and forgets the block.
struct Forgetful;

impl Recover for Forgetful {
    fn name(&self) -> &str {
        "another"
    }

    fn recover(&self, image: &Snapshot) -> Result<Option<Snapshot>, String> {
        let mut bytes = image.to_vec();
        bytes[MARK as usize] = 0;
        Ok(Some(Snapshot::new(&bytes)))
    }
}

/// Has what was there before the workload.
struct Nothing(Snapshot);

impl Recover for Nothing {
    fn name(&self) -> &str {
        "nothing"
    }

    fn recover(&self, _: &Snapshot) -> Result<Option<Snapshot>, String> {
        Ok(Some(self.0.clone()))
    }
}

/// What a marked file system begins with.
fn unmarked() -> Start {
    let mut image = start().image.to_vec();
    image[MARK as usize..][..1024].fill(0);
    Start {
        image: Snapshot::new(&image),
        ..start()
    }
}

fn explore_marked(mark_first: bool, others: Vec<Sample<'_>>) -> Report {
    let target = Marked { mark_first };
    let explorer = Explorer {
        target: &target,
        checks: Checks {
            consistent: Some(&NoLeak),
            others,
        },
        limits: Limits {
            interrupt_every: 1,
            ..limits()
        },
        stop: &|| false,
    };
    let workload = Workload::Single {
        op: 0,
        synced: true,
    };
    let ops = workload.ops(Layout::K1).expect("operations of the layout");
    let disk = Disk {
        cache: Cache::Volatile,
        fault: None,
    };
    let recorded = record(&target, &unmarked(), &[ops], disk).expect("it runs");
    let mut report = Report::default();
    explorer.explore(&recorded, &workload.to_string(), &mut report);
    println!("{report}");
    report
}

#[test]
fn exploration_that_is_stopped_counts_what_it_has_checked() {
    let (asked, target) = (AtomicU64::new(0), Toy(Bug::None));
    let explore = |stop: Stop<'_>| {
        let explorer = Explorer {
            target: &target,
            checks: Checks::default(),
            limits: limits(),
            stop,
        };
        let workload = Workload::Random { seed: 1 };
        let ops = workload.ops(Layout::K1).expect("operations of the layout");
        let disk = Disk {
            cache: Cache::Volatile,
            fault: None,
        };
        let recorded = record(&target, &start(), &[ops], disk).expect("it runs");
        let mut report = Report::default();
        explorer.explore(&recorded, "random", &mut report);
        report
    };
    let whole = explore(&|| false);
    // A state asks again for each cut of its recovery.
    let part = explore(&|| asked.fetch_add(1, Ordering::Relaxed) >= 30);
    assert!((1..=30).contains(&part.states), "{part}");
    assert!(part.left_out_in_order > whole.left_out_in_order);
    let listed = |report: &Report| report.states + report.duplicates + report.left_out;
    assert_eq!(listed(&part), listed(&whole));
}

#[test]
fn recovery_that_loses_a_block_when_it_is_cut_is_caught() {
    let right = explore_marked(false, Vec::new());
    assert_eq!(right.bad, 0);
    assert_eq!(right.interrupted, right.states);
    assert!(right.cuts > right.interrupted);
    assert_eq!(right.consistent, right.states + right.cuts);
    let wrong = explore_marked(true, Vec::new());
    let bad = wrong.examples.first().expect("a block is lost");
    assert!(bad.what.starts_with("its recovery cut at ") && bad.what.ends_with("a block is lost"));
}

#[test]
fn block_that_another_recovery_loses_is_found() {
    let another = Sample {
        recover: &Forgetful,
        every: 1,
    };
    let report = explore_marked(false, vec![another]);
    let bad = report.examples.first().expect("a block is lost");
    assert_eq!(bad.what, "recovered by another: a block is lost");
}

/// What it leaves out was promised to nobody.
#[test]
fn recovery_that_shows_less_than_another_is_found() {
    let nothing = Sample {
        recover: &Nothing(unmarked().image),
        every: 1,
    };
    let report = explore_marked(false, vec![nothing]);
    let is_found = |bad: &Bad| {
        bad.what.starts_with("recovered by nothing: f")
            && bad.what.contains("is not as the first recovery showed")
    };
    assert!(report.examples.iter().any(is_found), "{report}");
}
