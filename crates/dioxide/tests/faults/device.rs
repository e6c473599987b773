//! A workload is run again and again, and each time another request of it fails: the n-th read, write or
//! flush, for every n.
//!
//! - Exactly one operation gets the device's error, or the close does: the one in which the device failed, or,
//!   of a commit in the background, a sync after it.
//! - From a failed flush, or a failed write of the log, on, nothing is written any more: each later change
//!   and each sync is refused with `EROFS`, and from `ESHUTDOWN` on, whoever met it. After another failure all goes on.
//! - Opened again, without the fault, the file system is whole and has what was synced.
//!
//! Without a journal a failed write may leave half of what was changed since the last sync. Then `e2fsck` is able to
//! mend it, and has its say before the last rule is looked at.

use crate::ops::{self, NAMES, Op as FileOp, Shape, What};
use crate::variants::image_with;
use crate::workload::{Workload, in_time};
use dioxide::block::file::FileOptions;
use dioxide::block::inline::InlineQueue;
use dioxide::block::sim::{Fault, FaultKind, FaultOp, SimDevice, SimSpec};
use dioxide::block::{self, Device, Durability, Geometry, Op, OpKind, Queue, SlotId, Waker};
use dioxide::format::features::{Compat, Incompat};
use dioxide::format::mmp::{Mmp, MmpState};
use dioxide::format::superblock::SuperBlock;
use dioxide::{
    Backend, Buf, Error, File, Fs, MountOptions, NewFile, OpenOptions, QueueOptions, SetAttributes,
};
use dioxide_testkit::{
    Dir, Image, ImageBuilder, debugfs, debugfs_query, dumpe2fs, e2fsck_clean, e2fsck_consistent,
    e2fsck_mend, leaf_extents, seeds, shape,
};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MOST: u64 = 256 << 10;
const STEPS: usize = 24;

fn small() -> ImageBuilder {
    Image::builder().size(8 << 20).block_size(1024)
}

fn sim(image: &Image) -> SimDevice {
    let options = FileOptions {
        write: true,
        ..FileOptions::default()
    };
    let device = dioxide::block::file::open(image.path(), &options).expect("it opens");
    SimDevice::new(device, SimSpec::default())
}

/// Somebody else has the device.
const FENCED: FaultKind = FaultKind::Io(libc::ESHUTDOWN);

/// From when on the device fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Since {
    /// As soon as the file system is open. The first change marks it as in use.
    Open,
    /// After a first change.
    Change,
}

/// How its files are read and written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Calls,
    /// Through a queue of the device's.
    Queue,
    /// Through one that does what it is given at once, as that of a file without a ring.
    Inline,
}

/// Where a workload runs.
struct Ground {
    image: Image,
    /// Where its journal lies, if elsewhere.
    journal: Option<Image>,
    /// That is what fails.
    in_journal: bool,
    way: Way,
    shape: Shape,
    /// What the files have.
    contents: Vec<Vec<u8>>,
    /// How long a change waits for a commit that nobody asks for.
    interval: Duration,
    has_journal: bool,
}

impl Ground {
    fn check(&self, workload: &Workload, image: &Image, writes_fail: bool) {
        if self.has_journal || workload.is_closed {
            workload.check(image);
        } else {
            workload.check_mended(image, writes_fail);
        }
    }

    /// The workload, which begins with many transactions.
    fn workload(&self, seed: u64) -> Workload {
        let mut workload = Workload::new(seed, self.shape);
        let size = self.shape.cluster;
        let first = FileOp {
            file: PIECES,
            what: What::Truncate { size },
        };
        workload.begin_with(first, &self.contents);
        workload
    }
}

/// No commit comes in the background.
const NEVER: Duration = Duration::from_secs(3600);

/// The file that lies in so many pieces, with holes between them, that cutting it off takes several transactions.
const PIECES: usize = 2;
const COUNT: u64 = 100;

/// Runs the workload with one fault, and checks all that the module says. `false` if the workload ends
/// without meeting it.
fn survive(ground: &Ground, seed: u64, since: Since, fault: Fault) -> bool {
    let copy = ground.image.copy();
    let journal = ground.journal.as_ref().map(Image::copy);
    let what = format!("seed {seed}, since {since:?}, {fault:?}");
    let mut workload = ground.workload(seed);
    workload.is_queued = ground.way != Way::Calls;
    workload.journal = journal.as_ref().map(|journal| journal.path().into());
    let device = sim(&copy);
    let mut options = MountOptions::new().commit_interval(ground.interval);
    let elsewhere = journal.as_ref().map(sim);
    if let Some(journal) = &elsewhere {
        options = options.journal_device(Arc::new(journal.clone()));
    }
    let opened: Arc<dyn Device> = match ground.way {
        Way::Calls | Way::Queue => Arc::new(device.clone()),
        Way::Inline => Arc::new(PanicsLate::over(device.clone())),
    };
    let fs = Fs::open_device(opened, &options).expect("it opens");
    if since == Since::Change {
        let nothing = SetAttributes::new();
        fs.set_attributes("/f0", &nothing).expect("a change");
        if ground.interval != NEVER {
            // Or its commit may meet the fault.
            fs.sync().expect("a sync");
        }
    }
    if fault.what == FENCED {
        // The workload begins by opening them, which needs a mount that writes.
        for name in NAMES {
            fs.metadata(name).expect("it exists");
        }
    }
    let failing = elsewhere.filter(|_| ground.in_journal);
    let failing = failing.unwrap_or_else(|| device.clone());
    let armed = failing.inject(fault.clone());
    let report = Report(
        &what,
        in_time(&what, || {
            let has_failed = || failing.hits(armed) > Some(0);
            workload.run(fs, STEPS, has_failed);
            workload
        }),
    );
    let hits = failing.hits(armed).expect("it is armed");
    drop((device, failing, options));
    let workload = &report.1;
    let reported = !workload.failures.is_empty();
    // What could not be read may not be needed: another group has room too.
    let silent = hits > 0 && fault.op == FaultOp::Read;
    assert!(reported == (hits > 0) || silent, "{hits} hits");
    if reported {
        check_failures(workload, &fault, ground.interval);
    }
    ground.check(workload, &copy, fault.op == FaultOp::Write);
    hits > 0
}

fn check_failures(workload: &Workload, fault: &Fault, interval: Duration) {
    let failures = &workload.failures;
    let expected = match fault.what {
        FaultKind::Enospc => libc::ENOSPC,
        FaultKind::Io(errno) => errno,
        _ => libc::EIO,
    };
    let met = workload.met.expect("it was hit");
    // A read that could be done without stops the mount all the same, and nobody is told why.
    let untold = fault.what == FENCED && fault.op == FaultOp::Read && failures[0].step > met;
    let told = failures
        .iter()
        .position(|failure| untold || failure.errno == expected);
    let told = told.unwrap_or_else(|| panic!("nobody gets {expected}: {failures:?}"));
    if untold {
        assert_eq!(failures[0].errno, libc::EROFS, "{failures:?}");
    } else if interval == NEVER {
        assert_eq!((told, failures[0].step), (0, met), "{failures:?}");
    } else {
        // Changes may be refused before.
        let step = failures[told].step;
        let late = (met..step).any(|step| workload.is_sync(step));
        assert!(
            step == met || workload.is_sync(step) && !late,
            "{met}: {failures:?}"
        );
    }
    let mut others = failures.iter().enumerate().filter(|(at, _)| *at != told);
    assert!(
        others.all(|(_, failure)| failure.errno == libc::EROFS),
        "{failures:?}"
    );
    let fenced = fault.what == FENCED;
    let latched = fault.op == FaultOp::Flush || fenced || failures.len() > 1;
    if latched {
        let succeeded = workload
            .succeeded
            .iter()
            .filter(|&&at| at > failures[0].step);
        assert_eq!(
            succeeded.count(),
            0,
            "after a failure for good: {failures:?}"
        );
    }
}

/// Tells which run failed.
struct Report<'a>(&'a str, Workload);

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let failures = &self.1.failures;
            eprintln!("{}: failures {failures:?} of\n{:#?}", self.0, self.1.ops);
        }
    }
}

fn prepare(builder: ImageBuilder) -> Ground {
    let image = image_with(builder, &NAMES);
    // mke2fs charges nobody for files that it copies.
    e2fsck_mend(image.path());
    prepare_image(image, None)
}

fn prepare_image(image: Image, journal: Option<Image>) -> Ground {
    let mut options = MountOptions::new();
    if let Some(journal) = &journal {
        options = options.journal_path(journal.path());
    }
    let fs = Fs::open(image.path(), &options).expect("it opens");
    let features = fs.superblock().features();
    let shape = Shape {
        settles: true,
        // Files in their inodes look as if they had none.
        extents: features.incompat.contains(Incompat::EXTENTS),
        ..Shape::of(&fs, MOST)
    };
    let files = ops::open_files(&fs);
    if features.incompat.contains(Incompat::INLINE_DATA) {
        files[0].write_at(&[9; 50], 0).expect("room");
        files[1].write_at(&[8; 100], 0).expect("room");
    }
    let file = &files[PIECES];
    for piece in 0..COUNT {
        let data = vec![piece as u8 + 1; shape.cluster as usize];
        file.write_at(&data, 2 * piece * shape.cluster)
            .expect("room");
    }
    let contents = files.iter().map(ops::content).collect();
    drop(files);
    fs.close().expect("a clean end");
    Ground {
        image,
        journal,
        in_journal: false,
        way: Way::Calls,
        shape,
        contents,
        interval: NEVER,
        has_journal: features.compat.contains(Compat::HAS_JOURNAL),
    }
}

/// `fault` tells what happens to the first that it concerns.
fn survive_everywhere(name: &str, builder: ImageBuilder, fault: Fault) {
    survive_everywhere_on(name, &prepare(builder), fault);
}

fn survive_everywhere_on(name: &str, ground: &Ground, fault: Fault) {
    for seed in seeds(1) {
        let (mut sites, mut bad) = (0, Vec::new());
        loop {
            let fault = Fault {
                skip: sites,
                ..fault.clone()
            };
            // All that fail are worth knowing.
            let run = AssertUnwindSafe(|| survive(ground, seed, Since::Change, fault));
            match catch_unwind(run) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => bad.push(sites),
            }
            // It may fail without a fault too.
            if bad.len() > 20 {
                break;
            }
            sites += 1;
        }
        let what = format!("{name}, seed {seed}: {:?} {:?}", fault.op, fault.what);
        println!("{what} at {sites} sites");
        // A log is read when it is opened.
        let needs_none = ground.in_journal && fault.op == FaultOp::Read;
        assert!(sites > 0 || needs_none, "the workload has none");
        assert!(bad.is_empty(), "{what}: bad at {bad:?} of {sites}");
    }
}

fn grounds() -> Vec<(&'static str, Ground)> {
    let large = || Image::builder().size(16 << 20);
    let layouts = [
        ("extents", small()),
        ("no extents", small().features("^extents,^64bit")),
        (
            "no checksums",
            small().features("^metadata_csum,^orphan_file"),
        ),
        ("orphan file", small().features("orphan_file")),
        ("4k blocks", large()),
        (
            "bigalloc",
            large().features("bigalloc").args(&["-C", "16384"]),
        ),
        ("no journal", small().features("^has_journal,^orphan_file")),
        ("ext2", small().fs_type("ext2")),
        (
            "inline data",
            small().features("inline_data").inode_size(256),
        ),
        (
            "quotas",
            small()
                .features("quota,project")
                .extended("quotatype=usrquota:grpquota:prjquota"),
        ),
    ];
    let layouts = layouts.map(|(name, builder)| (name, prepare(builder)));
    let [image, journal] = images_apart();
    let apart = prepare_image(image, Some(journal));
    let copy = |image: &Image| Some(image.copy());
    let in_journal = Ground {
        image: apart.image.copy(),
        journal: apart.journal.as_ref().and_then(copy),
        in_journal: true,
        contents: apart.contents.clone(),
        ..apart
    };
    let elsewhere = [
        ("journal elsewhere", apart),
        ("in the journal elsewhere", in_journal),
    ];
    layouts.into_iter().chain(elsewhere).collect()
}

#[test]
fn failed_write_at_every_site_is_reported_once_and_loses_nothing() {
    for (name, ground) in grounds() {
        survive_everywhere_on(
            name,
            &ground,
            Fault::once(FaultOp::Write, FaultKind::Io(libc::EIO)),
        );
    }
}

#[test]
fn failure_of_a_queued_request_at_every_site_is_told_its_completion_once() {
    for (name, builder) in [
        ("extents", small()),
        ("no extents", small().features("^extents,^64bit")),
        ("no journal", small().features("^has_journal,^orphan_file")),
    ] {
        for way in [Way::Queue, Way::Inline] {
            let ground = Ground {
                way,
                ..prepare(builder.clone())
            };
            for op in [FaultOp::Read, FaultOp::Write, FaultOp::Flush] {
                let fault = Fault::once(op, FaultKind::Io(libc::EIO));
                survive_everywhere_on(name, &ground, fault);
            }
        }
    }
}

/// Commits come beside the operations. No file has extents, so none is left half moved.
#[test]
fn failed_commit_in_the_background_is_told_once_to_who_syncs() {
    let ground = Ground {
        interval: Duration::from_millis(1),
        ..prepare(small().features("^extents,^64bit"))
    };
    for op in [FaultOp::Write, FaultOp::Flush] {
        let fault = Fault::once(op, FaultKind::Io(libc::EIO));
        survive_everywhere_on("commits all the time", &ground, fault);
    }
}

/// The superblock is left out: its checksum lies in its second half, so one that is torn is of no use to
/// anybody.
#[test]
fn short_write_at_every_site_is_reported_once_and_loses_nothing() {
    for (name, ground) in grounds() {
        let fault = Fault {
            range: Some(2048..u64::MAX),
            ..Fault::once(FaultOp::Write, FaultKind::Short)
        };
        survive_everywhere_on(name, &ground, fault);
    }
}

/// What the memory has then is partly new, and nobody may take it for read.
#[test]
fn short_read_at_every_site_is_reported_once_and_changes_nothing() {
    for (name, ground) in grounds() {
        survive_everywhere_on(name, &ground, Fault::once(FaultOp::Read, FaultKind::Short));
    }
}

/// Whoever needs what lay behind the end gets the device's error, each time, and finds what else there is as it was. Nothing
/// that was synced is lost: it is there when the device has its end again.
#[test]
fn end_of_the_device_that_vanishes_fails_what_needs_it_and_loses_nothing() {
    // Groups with bitmaps and inode tables of their own, so that there is metadata behind each end.
    let groups = |features| small().features(features).args(&["-g", "1024"]);
    let reads_and_writes = [FaultOp::Read, FaultOp::Write];
    for (name, builder) in [
        ("extents", groups("^flex_bg")),
        ("no extents", groups("^flex_bg,^extents,^64bit")),
        ("no journal", groups("^flex_bg,^has_journal,^orphan_file")),
        ("ext2", groups("^flex_bg").fs_type("ext2")),
    ] {
        let ground = prepare(builder);
        for ops in [
            &reads_and_writes[..],
            &reads_and_writes[..1],
            &reads_and_writes[1..],
        ] {
            let mut met = 0;
            // From right behind the first superblock to where no file is.
            for end in (0..16).map(|step| (step * 96 + 2) << 10) {
                for seed in seeds(1) {
                    met += u64::from(outlive_the_end(&ground, seed, ops, end));
                }
            }
            println!("{name}: {ops:?} met in {met} runs");
            assert!(met > 3, "{name}: {ops:?} met in {met} runs");
        }
    }
}

/// Runs the workload on a device whose end vanishes when the files are open. Whether anything met that.
fn outlive_the_end(ground: &Ground, seed: u64, gone: &[FaultOp], end: u64) -> bool {
    let copy = ground.image.copy();
    let what = format!("seed {seed}, {gone:?} from {end} on");
    let mut workload = ground.workload(seed);
    workload.fails_on = true;
    let device = sim(&copy);
    let options = MountOptions::new().commit_interval(NEVER).metadata_cache(0);
    let open = || Fs::open_device(Arc::new(device.clone()), &options);
    let fs = open().expect("it opens");
    let files = workload.open(&fs);
    let armed = gone.iter().map(|&op| {
        device.inject(Fault {
            range: Some(end..u64::MAX),
            ..Fault::every(op, FaultKind::Io(libc::EIO))
        })
    });
    let armed: Vec<_> = armed.collect();
    let hits = || -> u64 { armed.iter().filter_map(|&id| device.hits(id)).sum() };
    let report = Report(
        &what,
        in_time(&what, || {
            workload.run_on(fs, files, STEPS, || hits() > 0);
            workload
        }),
    );
    let (hits, workload) = (hits(), &report.1);
    let failures = &workload.failures;
    let errno = |at: usize| failures.get(at).map(|failure| failure.errno);
    let writes_fail = gone.contains(&FaultOp::Write);
    assert!(hits > 0 || failures.is_empty(), "an error out of nothing");
    assert!(
        hits == 0 || errno(0).is_some() || !writes_fail,
        "{hits} hits"
    );
    assert!(matches!(errno(0), None | Some(libc::EIO)), "{failures:?}");
    let refused = failures.iter().find(|failure| failure.errno != libc::EIO);
    if let Some(refused) = refused {
        assert_eq!(refused.errno, libc::EROFS, "{failures:?}");
        let later = |&&at: &&usize| at > refused.step;
        let later = workload.succeeded.iter().filter(later).count();
        assert_eq!(later, 0, "after a failure for good: {failures:?}");
    }
    // Who opens it meanwhile has no more luck, and does no harm.
    in_time(&what, || match open() {
        Ok(fs) => drop(fs),
        Err(error) => assert_eq!(error.errno(), libc::EIO, "{error}"),
    });
    drop(device);
    ground.check(workload, &copy, writes_fail);
    hits > 0
}

#[test]
fn write_without_room_on_the_device_at_every_site_is_reported_once() {
    survive_everywhere(
        "extents",
        small(),
        Fault::once(FaultOp::Write, FaultKind::Enospc),
    );
}

#[test]
fn failed_flush_at_every_site_latches_and_loses_nothing() {
    for (name, ground) in grounds() {
        survive_everywhere_on(
            name,
            &ground,
            Fault::once(FaultOp::Flush, FaultKind::Io(libc::EIO)),
        );
    }
}

#[test]
fn failed_read_at_every_site_is_reported_once_and_changes_nothing() {
    for (name, ground) in grounds() {
        survive_everywhere_on(
            name,
            &ground,
            Fault::once(FaultOp::Read, FaultKind::Io(libc::EIO)),
        );
    }
}

#[test]
fn fenced_device_latches_at_every_site_and_loses_nothing() {
    for op in [FaultOp::Read, FaultOp::Write, FaultOp::Flush] {
        survive_everywhere("extents", small(), Fault::once(op, FENCED));
    }
}

/// Each way to the device, by itself: the request gets the device's error, and nothing is written after it.
#[test]
fn fenced_device_is_not_written_to_again_whoever_meets_it() {
    type Ask = fn(&Fs, &dioxide::File) -> dioxide::Result<()>;
    let asks: [(&str, FaultOp, Ask); 9] = [
        ("short read", FaultOp::Read, |_, file| {
            file.read_at(&mut [0; 1024], 0).map(drop)
        }),
        ("long read", FaultOp::Read, |_, file| {
            file.read_at(&mut [0; 9000], 0).map(drop)
        }),
        ("queued read", FaultOp::Read, |fs, file| {
            queued(fs, &|queue| {
                queue.read(file, 0, Buf::zeroed(1024), 0).expect("room");
            })
        }),
        ("overwrite", FaultOp::Write, |_, file| {
            file.write_at(&[1; 1024], 0).map(drop)
        }),
        ("queued overwrite", FaultOp::Write, |fs, file| {
            queued(fs, &|queue| {
                queue.write(file, 0, Buf::zeroed(1024), 0).expect("room");
            })
        }),
        ("write into a hole", FaultOp::Write, |_, file| {
            file.write_at(&[1; 1024], 64 << 10).map(drop)
        }),
        ("flush", FaultOp::Flush, |fs, _| fs.sync()),
        ("commit", FaultOp::Write, |fs, file| {
            file.set_len(99 << 10).expect("a size");
            fs.sync()
        }),
        ("metadata", FaultOp::Read, |fs, _| {
            fs.metadata("/f1").map(drop)
        }),
    ];
    for (name, op, ask) in asks {
        let image = image_with(small(), &NAMES);
        let device = sim(&image);
        let options = MountOptions::new().metadata_cache(0);
        let fs = Fs::open_device(Arc::new(device.clone()), &options).expect("it opens");
        let options = OpenOptions::new().read(true).write(true);
        let file = options.open(&fs, "/f0").expect("it exists");
        file.write_at(&[1; 16 << 10], 0).expect("room");
        fs.sync().expect("a sync");
        let armed = device.inject(Fault::once(op, FENCED));
        let errno = |result: dioxide::Result<()>| result.expect_err(name).errno();
        assert_eq!(errno(ask(&fs, &file)), libc::ESHUTDOWN, "{name}");
        assert_eq!(device.hits(armed), Some(1), "{name}");
        let writes = device.inject(Fault::every(FaultOp::Write, FENCED));
        let flushes = device.inject(Fault::every(FaultOp::Flush, FENCED));
        for _ in 0..2 {
            let overwrite = file.write_at(&[2; 1024], 0).map(drop);
            assert_eq!(errno(overwrite), libc::EROFS, "{name}");
            let queued = queued(&fs, &|queue| {
                queue.write(&file, 0, Buf::zeroed(1024), 0).expect("room");
            });
            assert_eq!(errno(queued), libc::EROFS, "{name}");
            assert_eq!(errno(file.set_len(0)), libc::EROFS, "{name}");
            assert_eq!(errno(file.sync_data()), libc::EROFS, "{name}");
            assert_eq!(errno(fs.sync()), libc::EROFS, "{name}");
        }
        file.read_at(&mut [0; 1024], 0)
            .expect("the device answers reads");
        drop(file);
        let _ = fs.close();
        let hits = (device.hits(writes), device.hits(flushes));
        assert_eq!(hits, (Some(0), Some(0)), "{name}: it was tried again");
    }
}

/// A file system, and its journal on a device of its own.
fn apart() -> (SimDevice, SimDevice, [Image; 2]) {
    let images = images_apart();
    (sim(&images[0]), sim(&images[1]), images)
}

fn images_apart() -> [Image; 2] {
    let image = image_with(small().features("^has_journal"), &NAMES);
    let journal = small().features("journal_dev").build();
    let read = |image: &Image| {
        let mut bytes = vec![0; SuperBlock::SIZE];
        let file = std::fs::File::open(image.path()).expect("the image");
        file.read_exact_at(&mut bytes, 1024).expect("a superblock");
        SuperBlock::parse(&bytes).expect("a superblock")
    };
    let theirs = read(&journal);
    let mut sb = read(&image);
    let disk = sb.disk_mut();
    disk.s_feature_compat |= Compat::HAS_JOURNAL.bits();
    disk.s_journal_uuid = theirs.uuid();
    // Any number: it is told where the journal lies.
    disk.s_journal_dev = 0x700;
    sb.update_checksum();
    let file = std::fs::File::options().write(true).open(image.path());
    let file = file.expect("the image");
    file.write_all_at(&sb.encode(), 1024).expect("room");
    [image, journal]
}

/// Who has the one device may have the other one too, with a journal that is newer than ours.
#[test]
fn journal_elsewhere_is_fenced_off_with_the_file_system_and_that_with_the_journal() {
    for in_journal in [false, true] {
        let (device, journal, _images) = apart();
        let options = MountOptions::new().journal_device(Arc::new(journal.clone()));
        let fs = Fs::open_device(Arc::new(device.clone()), &options).expect("it opens");
        assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
        let mode = |mode| fs.set_attributes("/f0", &SetAttributes::new().mode(mode));
        mode(0o600).expect("a change");
        fs.sync().expect("a sync");
        if in_journal {
            // Then the commit meets it, and otherwise the flush.
            mode(0o640).expect("a change");
        }
        let armed = [&device, &journal].map(|device| {
            let changes = [FaultOp::Write, FaultOp::Flush];
            changes.map(|op| device.inject(Fault::every(op, FENCED)))
        });
        let error = fs.sync().expect_err("it is fenced off");
        assert_eq!(error.errno(), libc::ESHUTDOWN, "{error}");
        assert_eq!(mode(0o644).expect_err("after that").errno(), libc::EROFS);
        let _ = fs.close();
        let hits = |of: usize, device: &SimDevice| -> u64 {
            armed[of].iter().filter_map(|&id| device.hits(id)).sum()
        };
        let hits = (hits(0, &device), hits(1, &journal));
        let expected = if in_journal { (0, 1) } else { (1, 0) };
        assert_eq!(hits, expected, "file system and journal, {in_journal}");
    }
}

/// The superblock, and the block of multi-mount protection, of 1 KiB.
fn sb_and_mmp(image: &Image) -> (SuperBlock, Mmp) {
    let file = std::fs::File::open(image.path()).expect("the image");
    let mut bytes = vec![0; 1024];
    file.read_exact_at(&mut bytes, 1024).expect("a superblock");
    let sb = SuperBlock::parse(&bytes).expect("a superblock");
    let block = sb.mmp_block().expect("a block").expect("it has one");
    file.read_exact_at(&mut bytes, block.0 * 1024)
        .expect("all of it");
    (sb, Mmp::parse(&bytes).expect("a block of MMP"))
}

fn mmp_of(image: &Image) -> Mmp {
    sb_and_mmp(image).1
}

fn change_mmp(image: &Image, change: impl FnOnce(&mut Mmp)) {
    let (sb, mut mmp) = sb_and_mmp(image);
    change(&mut mmp);
    mmp.update_checksum(sb.checksum_seed());
    let block = sb.mmp_block().expect("a block").expect("it has one");
    let file = std::fs::File::options().write(true).open(image.path());
    let written = file.and_then(|file| file.write_all_at(&mmp.encode(), block.0 * 1024));
    written.expect("room");
}

fn within_a_minute(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Multi-mount protection counts on by itself, and ends with the mount: neither may be written where somebody else has the
/// device. Opening takes the eleven seconds that another host would have to show itself.
#[test]
fn fenced_device_gets_no_number_of_mmp() {
    let image = image_with(small().features("mmp"), &NAMES);
    let device = sim(&image);
    let fs = Fs::open_device(Arc::new(device.clone()), &MountOptions::new()).expect("it opens");
    let counts = Duration::from_secs(fs.superblock().mmp_interval_secs().into());
    device.inject(Fault::once(FaultOp::Flush, FENCED));
    let error = fs.sync().expect_err("the flush fails");
    assert_eq!(error.errno(), libc::ESHUTDOWN, "{error}");
    let writes = device.inject(Fault::every(FaultOp::Write, FENCED));
    let flushes = device.inject(Fault::every(FaultOp::Flush, FENCED));
    std::thread::sleep(counts + Duration::from_secs(1));
    let _ = fs.close();
    let hits = (device.hits(writes), device.hits(flushes));
    assert_eq!(hits, (Some(0), Some(0)), "it was tried again");
}

/// Nothing is written any more, but the number: others are to stay away from what is still read, and to find a clean end.
#[test]
fn mmp_counts_on_after_a_flush_that_failed_and_ends_clean() {
    let image = image_with(small().features("mmp"), &NAMES);
    let device = sim(&image);
    let fs = Fs::open_device(Arc::new(device.clone()), &MountOptions::new()).expect("it opens");
    let counts = Duration::from_secs(fs.superblock().mmp_interval_secs().into());
    let mmp = || mmp_of(&image);
    device.inject(Fault::once(FaultOp::Flush, FaultKind::Io(libc::EIO)));
    let error = fs.sync().expect_err("the flush fails");
    assert_eq!(error.errno(), libc::EIO, "{error}");
    let before = mmp().mmp_seq;
    std::thread::sleep(counts + Duration::from_secs(1));
    assert_ne!(mmp().mmp_seq, before);
    let _ = fs.close();
    assert_eq!(mmp().state(), MmpState::Clean);
}

/// Others see the number without a flush, and who waits for a slow one would be taken for dead.
#[test]
fn mmp_counts_on_while_the_device_is_flushed() {
    let image = image_with(small().features("mmp"), &NAMES);
    let device = sim(&image);
    let fs = Fs::open_device(Arc::new(device.clone()), &MountOptions::new()).expect("it opens");
    let hold = device.hold(None, FaultOp::Flush);
    std::thread::scope(|scope| {
        let synced = scope.spawn(|| fs.sync());
        assert!(hold.wait_for_timeout(1, Duration::from_secs(60)));
        for _ in 0..2 {
            let before = mmp_of(&image).mmp_seq;
            within_a_minute("it counts no more", || mmp_of(&image).mmp_seq != before);
        }
        hold.release();
        synced.join().expect("no panic").expect("a sync");
    });
    fs.close().expect("a clean end");
    assert_eq!(mmp_of(&image).state(), MmpState::Clean);
    e2fsck_clean(image.path());
}

/// A file system under multi-mount protection on a device through the page cache, where each number is flushed.
fn buffered_with_mmp(options: &MountOptions) -> (Image, SimDevice, Fs) {
    let image = image_with(small().features("mmp").dir(Dir::Disk), &NAMES);
    // Longer than until the next number.
    change_mmp(&image, |mmp| mmp.mmp_check_interval += 1);
    let through_cache = FileOptions {
        write: true,
        buffered: true,
        ..FileOptions::default()
    };
    let device = dioxide::block::file::open(image.path(), &through_cache).expect("it opens");
    let device = SimDevice::new(device, SimSpec::default());
    let fs = Fs::open_device(Arc::new(device.clone()), options).expect("it opens");
    (image, device, fs)
}

/// Holds a flush of a number for longer than others wait at least. How long that is in seconds.
fn stall(image: &Image, device: &SimDevice, meanwhile: impl FnOnce()) -> u16 {
    let least = mmp_of(image).mmp_check_interval + 1;
    let hold = device.hold(None, FaultOp::Flush);
    assert!(hold.wait_for_timeout(1, Duration::from_secs(60)));
    meanwhile();
    std::thread::sleep(Duration::from_secs(least.into()));
    hold.release();
    least
}

#[test]
fn mmp_has_others_wait_longer_where_it_is_slow() {
    let (image, device, fs) = buffered_with_mmp(&MountOptions::new());
    let before = mmp_of(&image);
    let took = stall(&image, &device, || ());
    within_a_minute("its interval stays", || {
        mmp_of(&image).mmp_check_interval >= 2 * took
    });
    within_a_minute("it is never shorter again", || {
        mmp_of(&image).mmp_check_interval == before.mmp_check_interval
    });
    assert_eq!(fs.failure(), None);
    fs.close().expect("a clean end");
    assert_eq!(mmp_of(&image).state(), MmpState::Clean);
    e2fsck_clean(image.path());
}

/// It was there from when its writing began, and others may have waited for the next in vain.
#[test]
fn mmp_that_was_late_is_looked_at_before_it_counts_on() {
    let (image, device, fs) = buffered_with_mmp(&MountOptions::new());
    stall(&image, &device, || {
        change_mmp(&image, |mmp| {
            mmp.mmp_seq = 7;
            mmp.mmp_nodename[..6].copy_from_slice(b"other\0");
        });
    });
    within_a_minute("it goes on", || fs.failure().is_some());
    let why = fs.failure().unwrap_or_default();
    assert!(why.contains("host other"), "{why}");
    let _ = fs.close();
    assert_eq!(mmp_of(&image).mmp_seq, 7);
}

/// A flush of a commit that nobody waits for. Nothing is written any more, but the number.
#[test]
fn mmp_counts_on_after_a_commit_in_the_background_that_failed_and_ends_clean() {
    let options = MountOptions::new().commit_interval(Duration::from_millis(20));
    let (image, device, fs) = buffered_with_mmp(&options);
    let change = |mode| fs.set_attributes("/f0", &SetAttributes::new().mode(mode));
    // The first one marks the file system as in use.
    change(0o600).expect("a change");
    fs.sync().expect("a sync");
    device.inject(Fault::once(FaultOp::Flush, FaultKind::Io(libc::EIO)));
    change(0o640).expect("a change");
    within_a_minute("nobody knows of it", || fs.failure().is_some());
    let counts = fs.superblock().mmp_interval_secs();
    for _ in 0..2 {
        let before = mmp_of(&image).mmp_seq;
        std::thread::sleep(Duration::from_secs(u64::from(counts) + 1));
        assert_ne!(mmp_of(&image).mmp_seq, before);
    }
    let _ = fs.close();
    assert_eq!(mmp_of(&image).state(), MmpState::Clean);
}

/// Opening takes as long as it takes, and the number counts meanwhile: another host that looks for a sign of life finds one.
#[test]
fn mmp_of_file_system_that_is_being_opened_gives_a_sign_of_life() {
    let image = image_with(small().features("mmp"), &NAMES);
    let device = sim(&image);
    let open = || Fs::open_device(Arc::new(device.clone()), &MountOptions::new());
    // The group descriptors, which are read when the protection is there.
    let block = 1024;
    let hold = device.hold(Some(2 * block..3 * block), FaultOp::Read);
    std::thread::scope(|scope| {
        let first = scope.spawn(open);
        assert!(hold.wait_for_timeout(1, Duration::from_secs(60)));
        let second = scope.spawn(open);
        let until = Instant::now() + Duration::from_secs(60);
        while !second.is_finished() && !hold.wait_for_timeout(2, Duration::from_millis(100)) {
            assert!(Instant::now() < until, "it neither opens nor is refused");
        }
        hold.release();
        let error = second.join().expect("no panic").expect_err("it is in use");
        assert_eq!(error.errno(), libc::EBUSY, "{error}");
        let fs = first.join().expect("no panic").expect("it opens");
        assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
        fs.close().expect("a clean end");
    });
    e2fsck_clean(image.path());
}

/// One request through a queue.
fn queued(fs: &Fs, push: &dyn Fn(&mut dioxide::Queue)) -> dioxide::Result<()> {
    let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
    push(&mut queue);
    let mut done = Vec::new();
    queue.wait(1, &mut done).expect("it works");
    let result = done.pop().expect("one").result;
    result.map(drop).map_err(|error| *error)
}

#[test]
fn failure_when_the_first_change_begins_latches() {
    let ground = prepare(small());
    for op in [FaultOp::Flush, FaultOp::Write] {
        let fault = Fault::once(op, FaultKind::Io(libc::EIO));
        assert!(survive(&ground, 1, Since::Open, fault));
    }
}

/// Nothing can be written to a journal whose superblock is of version 1.
#[test]
fn journal_that_cannot_be_written_to_leaves_the_image_as_it_was() {
    let image = image_with(small(), &NAMES);
    let at = leaf_extents(image.path(), "<8>")[0].physical * 1024;
    let file = std::fs::File::options().write(true).open(image.path());
    let file = file.expect("the image");
    // `h_blocktype`, and all features.
    file.write_all_at(&3_u32.to_be_bytes(), at + 4).expect("it");
    file.write_all_at(&[0; 12], at + 0x24).expect("it");
    let before = std::fs::read(image.path()).expect("the image");
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let why = fs.read_only().expect("it is read-only");
    assert!(why.contains("superblock of version 1"), "{why}");
    let mode = SetAttributes::new().mode(0o600);
    let error = fs.set_attributes("/f0", &mode).expect_err("it cannot");
    assert_eq!(error.errno(), libc::EROFS, "{error}");
    fs.close().expect("nothing was changed");
    assert!(before == std::fs::read(image.path()).expect("the image"));
    // As if there were none.
    let fs = Fs::open(image.path(), &MountOptions::new().noload(true)).expect("it opens");
    assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
    fs.set_attributes("/f0", &mode).expect("it can");
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

#[test]
fn sync_whose_commit_fails_gets_the_devices_error() {
    let image = image_with(small(), &NAMES);
    let device = sim(&image);
    let fs = Fs::open_device(Arc::new(device.clone()), &MountOptions::new()).expect("it opens");
    let options = OpenOptions::new().read(true).write(true);
    let file = options.open(&fs, "/f0").expect("it exists");
    file.write_at(&[1; 1 << 10], 0).expect("room");
    device.inject(Fault::once(FaultOp::Write, FaultKind::Io(libc::EIO)));
    let errno = |result: dioxide::Result<()>| result.expect_err("it cannot").errno();
    assert_eq!(errno(file.sync_all()), libc::EIO, "who met it");
    assert_eq!(errno(file.sync_all()), libc::EROFS, "who comes later");
    assert_eq!(errno(file.set_len(0)), libc::EROFS);
    assert_eq!(
        errno(file.write_at(&[2; 1 << 10], 0).map(drop)),
        libc::EROFS
    );
    let mut found = [0; 1 << 10];
    file.read_at(&mut found, 0).expect("reading goes on");
    assert_eq!(found, [1; 1 << 10]);
}

/// A commit that nobody waits for fails: whoever syncs first is told of it as what it was.
#[test]
fn error_of_a_commit_in_the_background_is_told_to_the_first_who_syncs() {
    let image = image_with(small(), &NAMES);
    let device = sim(&image);
    let interval = Duration::from_millis(20);
    let options = MountOptions::new().commit_interval(interval);
    let fs = Fs::open_device(Arc::new(device.clone()), &options).expect("it opens");
    fs.sync().expect("a sync");
    let mode = SetAttributes::new().mode(0o600);
    fs.set_attributes("/f0", &mode).expect("a change");
    fs.sync().expect("a sync");
    let armed = device.inject(Fault::once(FaultOp::Write, FaultKind::Io(libc::EIO)));
    let mode = SetAttributes::new().mode(0o640);
    fs.set_attributes("/f0", &mode).expect("a change");
    let until = Instant::now() + Duration::from_secs(20);
    while device.hits(armed) == Some(0) {
        assert!(Instant::now() < until, "nothing is committed");
        std::thread::sleep(interval);
    }
    within_a_minute("nobody knows of it", || fs.failure().is_some());
    let errno = |result: dioxide::Result<()>| result.expect_err("it cannot").errno();
    assert_eq!(errno(fs.sync()), libc::EIO, "who asks first");
    assert_eq!(errno(fs.sync()), libc::EROFS, "who comes later");
}

/// Wherever reading fails, the file is what it was, or shorter and whole up to there.
#[test]
fn truncate_that_cannot_read_the_map_leaves_the_data() {
    const LEN: usize = 400 << 10;
    let options = OpenOptions::new().read(true).write(true);
    for features in ["^bigalloc", "^extents,^64bit"] {
        let image = image_with(small().features(features), &NAMES);
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let file = options.open(&fs, "/f0").expect("it exists");
        file.set_len(0).expect("a size");
        // Every second block, so that the map has several blocks.
        for at in (0..LEN as u64).step_by(2 << 10) {
            file.write_at(&[7; 1 << 10], at).expect("room");
        }
        drop(file);
        fs.close().expect("a close");
        let mut failed = 0;
        for skip in 0.. {
            let copy = image.copy();
            let device = sim(&copy);
            let fs = Fs::open_device(Arc::new(device.clone()), &MountOptions::new());
            let fs = fs.expect("it opens");
            let file = options.open(&fs, "/f0").expect("it exists");
            let fault = Fault::once(FaultOp::Read, FaultKind::Io(libc::EIO));
            let armed = device.inject(Fault { skip, ..fault });
            let cut = file.set_len(2048 + 100);
            if device.hits(armed) == Some(0) {
                break;
            }
            if let Err(error) = cut {
                assert_eq!(error.errno(), libc::EIO);
                if file.len() < 3 << 10 {
                    // It was cut, and what was behind is freed later.
                    continue;
                }
                failed += 1;
                let mut found = [0; 1 << 10];
                file.read_at(&mut found, 2048).expect("the device answers");
                assert!(found == [7; 1 << 10], "{features}, read {skip}");
            }
        }
        assert!(failed > 2, "{features}: {failed} reads failed");
    }
}

/// What the inode leads to by itself stays the file's if it cannot be freed.
#[test]
fn truncate_that_cannot_read_a_bitmap_loses_no_blocks() {
    let options = OpenOptions::new().read(true).write(true);
    for features in ["^bigalloc", "^extents,^64bit"] {
        let image = image_with(small().features(features), &NAMES);
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let file = options.open(&fs, "/f0").expect("it exists");
        for at in [0, 4096] {
            file.write_at(&[7; 1 << 10], at).expect("room");
        }
        let before = ops::content(&file);
        drop(file);
        fs.close().expect("a close");
        let mut failed = 0;
        for skip in 0.. {
            let copy = image.copy();
            let device = sim(&copy);
            let fs = Fs::open_device(Arc::new(device.clone()), &MountOptions::new());
            let fs = fs.expect("it opens");
            let file = options.open(&fs, "/f0").expect("it exists");
            let fault = Fault::once(FaultOp::Read, FaultKind::Io(libc::EIO));
            let armed = device.inject(Fault { skip, ..fault });
            let cut = file.set_len(0);
            if device.hits(armed) == Some(0) {
                break;
            }
            drop((file, device));
            let _ = fs.close();
            let fs = Fs::open(copy.path(), &MountOptions::new()).expect("it opens");
            let file = options.open(&fs, "/f0").expect("it exists");
            match cut {
                Ok(()) => assert!(file.is_empty(), "{features}, read {skip}"),
                Err(error) => {
                    assert_eq!(error.errno(), libc::EIO);
                    assert!(ops::content(&file) == before, "{features}, read {skip}");
                    failed += 1;
                }
            }
            drop(file);
            fs.close().expect("a clean end");
            // The failure is recorded.
            e2fsck_consistent(copy.path());
        }
        assert!(failed > 0, "{features}");
    }
}

/// What was cut off goes before the file grows over it, also where the file was closed and forgotten meanwhile.
#[test]
fn truncate_that_fails_between_its_transactions_is_finished_before_the_file_grows() {
    const LEN: u64 = 1200 * 8192;
    let options = OpenOptions::new().read(true).write(true);
    for features in ["^orphan_file", "orphan_file"] {
        let image = Image::builder().size(64 << 20).features(features);
        let image = image.args(&["-J", "size=4"]).build();
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let file = options.clone().create(true).open(&fs, "/f").expect("room");
        for at in (0..LEN).step_by(8192) {
            file.write_at(&[7; 4096], at).expect("room");
        }
        drop(file);
        fs.close().expect("a close");
        let mut cut_short = 0;
        for skip in 0.. {
            let copy = image.copy();
            let device = sim(&copy);
            let fs = Fs::open_device(Arc::new(device.clone()), &MountOptions::new());
            let fs = fs.expect("it opens");
            let file = options.open(&fs, "/f").expect("it exists");
            let fault = Fault::once(FaultOp::Read, FaultKind::Io(libc::EIO));
            let armed = device.inject(Fault { skip, ..fault });
            let cut = file.set_len(4096);
            if device.hits(armed) == Some(0) {
                break;
            }
            if cut.is_ok() || file.len() != 4096 || fs.failure().is_some() {
                continue;
            }
            drop(file);
            let file = options.open(&fs, "/f").expect("it exists");
            file.set_len(LEN).expect("a size");
            let mut found = vec![0xff; LEN as usize - 4096];
            file.read_at(&mut found, 4096).expect("the device answers");
            let old = found.iter().position(|&byte| byte != 0);
            assert_eq!(old, None, "{features}, read {skip}");
            drop(file);
            fs.close().expect("a close");
            e2fsck_clean(copy.path());
            cut_short += 1;
        }
        assert!(cut_short > 0, "{features}");
    }
}

/// What stops in the middle, when the file is no orphan any more, is not committed.
#[test]
fn removed_file_whose_number_cannot_be_given_back_stays_an_orphan() {
    for features in ["^orphan_file", "orphan_file"] {
        let image = small().features(features).build();
        let write = OpenOptions::new().write(true).create(true);
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        drop(write.open(&fs, "/f").expect("room"));
        let free = fs.statfs().files_free;
        fs.close().expect("a clean end");
        let groups = dumpe2fs(image.path());
        let bitmap = groups.split_once("Inode bitmap at ").expect("a group").1;
        let end = bitmap.find(|c: char| !c.is_ascii_digit()).expect("more");
        let bitmap: u64 = bitmap[..end].parse().expect("digits");
        let device = sim(&image);
        let fs = Fs::open_device(Arc::new(device.clone()), &MountOptions::new()).expect("it opens");
        let file = write.open(&fs, "/f").expect("it exists");
        fs.remove_file("/f").expect("it goes");
        fs.sync().expect("a sync");
        let fault = Fault::once(FaultOp::Read, FaultKind::Io(libc::EIO));
        let armed = device.inject(Fault {
            range: Some(bitmap * 1024..(bitmap + 1) * 1024),
            ..fault
        });
        drop(file);
        assert_eq!(device.hits(armed), Some(1), "{features}");
        assert!(fs.failure().is_some(), "{features}");
        assert_eq!(fs.sync().expect_err("it stopped").errno(), libc::EROFS);
        drop((fs, device));
        // The journal was aborted, and nothing is freed where there may be errors.
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let told = fs.warnings().join("; ");
        assert!(told.contains("1 orphans are not freed"), "{told}");
        fs.close().expect("a clean end");
        debugfs(image.path(), &["ssv state 1"]);
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        assert_eq!(fs.statfs().files_free, free + 1, "{features}");
        fs.close().expect("a clean end");
        // The failure is recorded.
        e2fsck_consistent(image.path());
    }
}

/// A ring serves the thread that made it. What another drops is in flight for ever, also for who opens the file again; unless it
/// was done at once.
#[test]
fn file_of_a_queue_that_another_thread_dropped_is_never_quiet_again() {
    let is_lost = (0..20).any(|_| match set_len_after_lost_queue() {
        Some(Ok(())) => false,
        Some(Err(errno)) => {
            assert_eq!(errno, libc::EDEADLK);
            true
        }
        None => true,
    });
    assert!(is_lost, "it may still be written");
}

/// What it came to; none where there are no rings.
fn set_len_after_lost_queue() -> Option<std::result::Result<(), i32>> {
    let image = Image::builder().size(16 << 20).dir(Dir::Disk).build();
    let options = MountOptions::new().backend(Backend::Uring);
    let fs = match Fs::open(image.path(), &options) {
        Ok(fs) => fs,
        Err(error) => {
            eprintln!("skipped: {error}");
            return None;
        }
    };
    let read_write = OpenOptions::new().read(true).write(true);
    let file = read_write.clone().create(true).open(&fs, "/f");
    let file = file.expect("room");
    file.write_at(&[1; 8192], 0).expect("room");
    let mut queue = fs.queue(&QueueOptions::default()).expect("a ring");
    let pushed = queue.write(&file, 0, Buf::zeroed(4096), 1);
    pushed.expect("room");
    queue.submit().expect("a ring");
    drop(file);
    fs.sync().expect("a sync");
    std::thread::scope(|scope| {
        scope.spawn(|| drop(queue));
    });
    let file = read_write.open(&fs, "/f").expect("it exists");
    Some(file.set_len(0).map_err(|error| error.errno()))
}

/// Sixteen queued writes, the sixth of which fails, over written blocks or into a hole.
fn check_queued(over: Option<u8>) {
    let image = image_with(small(), &NAMES);
    let device = sim(&image);
    let fs = Fs::open_device(Arc::new(device.clone()), &MountOptions::new()).expect("it opens");
    let options = OpenOptions::new().read(true).write(true);
    let file = options.open(&fs, "/f0").expect("it exists");
    file.set_len(16 << 10).expect("a size");
    if let Some(byte) = over {
        file.write_at(&[byte; 16 << 10], 0).expect("room");
    }
    file.sync_all().expect("a sync");
    let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
    let armed = device.inject(Fault {
        skip: 5,
        ..Fault::once(FaultOp::Write, FaultKind::Io(libc::EIO))
    });
    for tag in 0..16 {
        let mut buf = Buf::zeroed(1024);
        buf.fill(2);
        queue.write(&file, tag * 1024, buf, tag).expect("room");
    }
    let mut done = Vec::new();
    queue.wait(16, &mut done).expect("it works");
    assert_eq!((device.hits(armed), done.len()), (Some(1), 16));
    for completion in &done {
        let mut found = [0xEE; 1024];
        let at = completion.tag * 1024;
        file.read_at(&mut found, at).expect("a read");
        let expected = match &completion.result {
            Ok(1024) => 2,
            Ok(other) => panic!("{other} bytes"),
            Err(error) => {
                assert_eq!(error.errno(), libc::EIO);
                over.unwrap_or(0)
            }
        };
        assert_eq!(found, [expected; 1024], "write {}", completion.tag);
    }
    let failed = done.iter().filter(|completion| completion.result.is_err());
    assert_eq!(failed.count(), 1);
}

#[test]
fn queued_write_that_fails_is_told_its_own_completion_only() {
    check_queued(Some(1));
    check_queued(None);
}

/// Panics instead of reading or taking an operation while it is armed: a defect.
#[derive(Debug)]
struct Panics {
    device: SimDevice,
    armed: Arc<AtomicBool>,
    /// Instead of writing.
    writes: AtomicBool,
    geometry: Geometry,
}

impl Panics {
    fn new(image: &Image) -> Arc<Panics> {
        Panics::with(image, |_| ())
    }

    fn with(image: &Image, change: impl FnOnce(&mut Geometry)) -> Arc<Panics> {
        let device = sim(image);
        let mut geometry = device.geometry().clone();
        change(&mut geometry);
        Arc::new(Panics {
            device,
            armed: Arc::default(),
            writes: AtomicBool::new(false),
            geometry,
        })
    }
}

/// A queue of [`Panics`].
struct PanicsOnPush {
    queue: Box<dyn Queue>,
    armed: Arc<AtomicBool>,
}

impl Queue for PanicsOnPush {
    fn depth(&self) -> u32 {
        self.queue.depth()
    }

    fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }

    fn push(&mut self, op: Op) -> Result<SlotId, Op> {
        assert!(!self.armed.load(Ordering::Relaxed), "on purpose");
        self.queue.push(op)
    }

    fn submit(&mut self) -> block::Result<()> {
        self.queue.submit()
    }

    fn reap(&mut self, done: &mut Vec<block::Completion>) -> usize {
        self.queue.reap(done)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> block::Result<()> {
        self.queue.wait(timeout)
    }

    fn waker(&self) -> Waker {
        self.queue.waker()
    }
}

impl Device for Panics {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> block::Result<()> {
        assert!(!self.armed.load(Ordering::Relaxed), "on purpose");
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> block::Result<()> {
        assert!(!self.writes.load(Ordering::Relaxed), "on purpose");
        self.device.write_at(offset, buf, durability)
    }

    fn flush(&self) -> block::Result<()> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> block::Result<()> {
        self.device.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> block::Result<()> {
        self.device.write_zeroes(offset, len)
    }

    fn open_queue(&self, options: &QueueOptions) -> block::Result<Box<dyn Queue>> {
        let queue = self.device.open_queue(options)?;
        let armed = self.armed.clone();
        Ok(Box::new(PanicsOnPush { queue, armed }))
    }

    fn describe(&self) -> String {
        "a device that panics".into()
    }
}

/// Not ours: who panics with files open drops them, and the mount, which commits what it can.
#[test]
fn panic_of_the_caller_leaves_what_was_written_and_a_sound_journal() {
    let image = small().build();
    let device = sim(&image);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let fs = Fs::open_device(Arc::new(device.clone()), &MountOptions::new()).expect("it opens");
        let options = OpenOptions::new().write(true).create(true);
        for name in ["/a", "/b"] {
            let file = options.open(&fs, name).expect("room");
            file.write_at(&[7; 5000], 0).expect("room");
        }
        let _held = options.open(&fs, "/a").expect("it is there");
        fs.remove_file("/a").expect("it is there");
        panic!("on purpose");
    }));
    panicked.expect_err("it does");
    let device: Arc<dyn Device> = Arc::new(device);
    let looks = MountOptions::new().read_only(true);
    let fs = Fs::open_device(device.clone(), &looks).expect("it opens");
    let aborted = |warning: &String| warning.contains("aborted");
    assert!(!fs.warnings().iter().any(aborted), "{:?}", fs.warnings());
    drop(fs);
    let fs = Fs::open_device(device, &MountOptions::new()).expect("it opens");
    assert_eq!(fs.metadata("/b").expect("it was committed").size, 5000);
    fs.metadata("/a").expect_err("so was this");
    fs.close().expect("nothing holds it");
    e2fsck_clean(image.path());
}

#[test]
fn request_whose_worker_panics_comes_back_and_the_next_ones_are_served() {
    let image = small().build();
    shape::fragmented(&image, "f", 64, 1);
    let device = Panics::new(&image);
    let fs = Fs::open_device(device.clone(), &MountOptions::new()).expect("it opens");
    let options = OpenOptions::new().read(true).direct(true);
    let file = options.open(&fs, "/f").expect("it is there");
    let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
    let mut done = Vec::new();
    // More than there are workers. Each has to read the file's map, which nobody has in memory.
    device.armed.store(true, Ordering::Relaxed);
    in_time("reads whose worker panics", || {
        for tag in 0..32 {
            let pushed = queue.read(&file, 0, Buf::zeroed(1024), tag);
            pushed.expect("there is room");
            queue.wait(1, &mut done).expect("it comes back");
        }
    });
    for (tag, completion) in (0..).zip(&done) {
        let error = completion.result.as_ref().expect_err("it was not read");
        assert!(matches!(**error, Error::Panicked), "{error}");
        assert_eq!((completion.tag, completion.buf.len()), (tag, 1024));
    }
    assert_eq!(done.len(), 32);
    device.armed.store(false, Ordering::Relaxed);
    in_time("a read after that", || {
        let pushed = queue.read(&file, 0, Buf::zeroed(1024), 32);
        pushed.expect("there is room");
        queue.wait(1, &mut done).expect("it comes back");
    });
    let last = done.pop().expect("one more");
    assert_eq!((last.tag, last.result.ok()), (32, Some(1024)));
    drop((queue, file));
    fs.close().expect("nothing holds it");
    e2fsck_clean(image.path());
}

// Its place in the queue has gone by then, and what counts it in its stead must go too.
#[test]
fn forced_write_whose_second_try_panics_comes_back_and_nobody_waits_for_it_for_ever() {
    let image = small().build();
    shape::fragmented(&image, "f", 64, 1);
    let device = Panics::with(&image, |geometry| geometry.fua = true);
    let fs = Fs::open_device(device.clone(), &MountOptions::new()).expect("it opens");
    let options = OpenOptions::new().write(true).direct(true).dsync(true);
    let file = options.open(&fs, "/f").expect("it is there");
    file.preload_map().expect("a sound map");
    let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
    let mut done = Vec::new();
    let fault = Fault::once(FaultOp::Write, FaultKind::Io(libc::EIO));
    let fault = device.device.inject(fault);
    device.writes.store(true, Ordering::Relaxed);
    in_time("a write whose second try panics", || {
        let pushed = queue.write(&file, 0, Buf::zeroed(1024), 1);
        pushed.expect("there is room");
        queue.wait(1, &mut done).expect("it comes back");
    });
    device.writes.store(false, Ordering::Relaxed);
    assert_eq!(device.device.remove(fault), Some(1));
    let error = done.remove(0).result.expect_err("it was not written");
    assert!(matches!(*error, Error::Panicked), "{error}");
    in_time("what waits for all requests", || file.set_len(1024)).expect("a shorter file");
    drop((queue, file));
    fs.close().expect("nothing holds it");
    e2fsck_clean(image.path());
}

/// Pushes one block, several, and the end of a file of 7700 bytes to a device that panics.
fn push_in_vain(queue: &mut dioxide::Queue, file: &File) {
    for (offset, len) in [(0, 1024), (1024, 4096), (7168, 1024)] {
        for write in [false, true] {
            let buf = Buf::zeroed(len);
            // An append is for a worker.
            if write && offset + len as u64 > 7700 {
                continue;
            }
            let pushed = catch_unwind(AssertUnwindSafe(|| match write {
                true => queue.write(file, offset, buf, 1),
                false => queue.read(file, offset, buf, 1),
            }));
            assert!(pushed.is_err(), "{offset}, {len}, {write}");
        }
    }
}

#[test]
fn device_that_panics_when_it_is_pushed_to_leaves_nothing_to_wait_for() {
    let image = small().build();
    let device = Panics::new(&image);
    let fs = Fs::open_device(device.clone(), &MountOptions::new()).expect("it opens");
    let options = OpenOptions::new().read(true).write(true).create(true);
    let file = options.open(&fs, "/f").expect("room");
    file.write_at(&[7; 7700], 0).expect("room");
    file.preload_map().expect("a sound tree");
    let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
    let mut done = Vec::new();
    fs.sync().expect("a sync");
    // The long way to the device, and, after some readers, the short one.
    for readers in [0, 2000] {
        for _ in 0..readers {
            file.read_at(&mut [0; 1024], 0).expect("readable");
        }
        device.armed.store(true, Ordering::Relaxed);
        push_in_vain(&mut queue, &file);
        device.armed.store(false, Ordering::Relaxed);
    }
    in_time("a wait for nothing", || queue.wait(1, &mut done)).expect("a queue");
    assert_eq!((done.len(), queue.outstanding()), (0, 0));
    // It would be a deadlock if the file had requests in flight.
    in_time("a truncate", || file.set_len(5000)).expect("a size");
    in_time("a read", || {
        let pushed = queue.read(&file, 4096, Buf::zeroed(1024), 2);
        pushed.expect("room");
        queue.wait(1, &mut done).expect("a queue");
    });
    let last = done.pop().expect("one");
    assert_eq!((last.tag, last.result.ok()), (2, Some(5000 - 4096)));
    assert!(last.buf[..904] == [7; 904] && last.buf[904..] == [0; 120]);
    in_time("a queue that goes", || drop(queue));
    drop(file);
    fs.close().expect("nothing holds it");
    e2fsck_clean(image.path());
}

/// Puts off what is queued, and panics while it is armed instead of doing it.
#[derive(Clone, Debug)]
struct PanicsLate {
    device: SimDevice,
    armed: Arc<AtomicBool>,
}

impl PanicsLate {
    fn new(image: &Image) -> PanicsLate {
        PanicsLate::over(sim(image))
    }

    fn over(device: SimDevice) -> PanicsLate {
        let armed = Arc::default();
        PanicsLate { device, armed }
    }

    fn mount(&self) -> Fs {
        let device = Arc::new(self.clone());
        Fs::open_device(device, &MountOptions::new()).expect("it opens")
    }

    fn check(&self) {
        assert!(!self.armed.load(Ordering::Relaxed), "on purpose");
    }
}

impl Device for PanicsLate {
    fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> block::Result<()> {
        self.check();
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> block::Result<()> {
        self.check();
        self.device.write_at(offset, buf, durability)
    }

    fn flush(&self) -> block::Result<()> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> block::Result<()> {
        self.device.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> block::Result<()> {
        self.device.write_zeroes(offset, len)
    }

    fn open_queue(&self, options: &QueueOptions) -> block::Result<Box<dyn Queue>> {
        Ok(Box::new(InlineQueue::new(self.clone(), options)))
    }

    fn defers(&self, _: OpKind, _: u64) -> bool {
        true
    }

    fn describe(&self) -> String {
        "a device that panics late".into()
    }
}

/// The panic is that of a request pushed before: this one is not taken, and nothing of it is left.
#[test]
fn device_that_panics_over_an_earlier_request_takes_no_later_one() {
    let image = small().build();
    let device = PanicsLate::new(&image);
    let fs = device.mount();
    let options = OpenOptions::new().read(true).write(true).create(true);
    let file = options.open(&fs, "/f").expect("room");
    file.write_at(&[7; 7700], 0).expect("room");
    file.preload_map().expect("a sound tree");
    fs.sync().expect("a sync");
    let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
    let mut done = Vec::new();
    let arm = |armed| device.armed.store(armed, Ordering::Relaxed);
    let push = |queue: &mut dioxide::Queue, tag, write, offset| {
        let buf = Buf::copy_of(&[7; 1024]);
        let pushed = match write {
            true => queue.write(&file, offset, buf, tag),
            false => queue.read(&file, offset, buf, tag),
        };
        pushed.expect("room");
    };
    // The long way to the device, and, after some readers, the short one; the last is a read of the file's end.
    for (readers, write, at) in [
        (0, false, 2048),
        (2000, false, 2048),
        (0, true, 2048),
        (0, false, 7168),
    ] {
        for _ in 0..readers {
            file.read_at(&mut [0; 1024], 0).expect("readable");
        }
        push(&mut queue, 0, write, 0);
        push(&mut queue, 1, write, 1024);
        arm(true);
        let third = catch_unwind(AssertUnwindSafe(|| push(&mut queue, 2, write, at)));
        third.expect_err("the first panics");
        arm(false);
        assert_eq!(queue.outstanding(), 2);
        in_time("what was taken", || queue.wait(2, &mut done)).expect("a queue");
        let mut ends: Vec<_> = done.iter().map(|it| (it.tag, it.result.is_ok())).collect();
        ends.sort_unstable();
        assert_eq!(ends, [(0, false), (1, true)]);
        assert_eq!(queue.outstanding(), 0);
        done.clear();
        // It would be a deadlock if the file had requests in flight.
        for size in [7600, 7700] {
            in_time("a truncate", || file.set_len(size)).expect("a size");
        }
    }
    // A completion that is there already, and a panic in the reap: neither is lost.
    push(&mut queue, 3, false, 0);
    push(&mut queue, 4, false, 1 << 20);
    arm(true);
    let reaped = catch_unwind(AssertUnwindSafe(|| queue.reap(&mut done)));
    reaped.expect_err("the first panics");
    arm(false);
    in_time("both", || queue.wait(2, &mut done)).expect("a queue");
    let mut ends: Vec<_> = done.iter().map(|it| (it.tag, it.result.is_ok())).collect();
    ends.sort_unstable();
    assert_eq!(
        (ends, queue.outstanding()),
        (vec![(3, false), (4, true)], 0)
    );
    drop(queue);
    // A queue goes while the panic of its device unwinds, and the device panics again.
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
        push(&mut queue, 0, true, 0);
        push(&mut queue, 1, true, 1024);
        arm(true);
        push(&mut queue, 2, true, 2048);
    }));
    unwound.expect_err("it does");
    arm(false);
    in_time("a truncate", || file.set_len(5000)).expect("a size");
    let mut buf = [0; 5000];
    file.read_at(&mut buf, 0).expect("readable");
    assert!(buf == [7; 5000]);
    drop(file);
    fs.close().expect("nothing holds it");
    e2fsck_clean(image.path());
}

/// A thread waits for the requests of a queue that goes, and the device panics in them.
#[test]
fn queue_that_goes_ends_what_others_wait_for_though_its_device_panics() {
    let image = small().build();
    let device = PanicsLate::new(&image);
    let fs = device.mount();
    let options = OpenOptions::new().read(true).write(true).create(true);
    let file = options.open(&fs, "/f").expect("room");
    file.write_at(&[7; 7168], 0).expect("room");
    file.preload_map().expect("a sound tree");
    let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
    for tag in 0..2 {
        let pushed = queue.read(&file, 1024 * tag, Buf::zeroed(1024), tag);
        pushed.expect("room");
    }
    thread::scope(|scope| {
        let truncate = scope.spawn(|| in_time("a truncate", || file.set_len(1024)));
        // Long enough for it to wait, as a rule.
        thread::sleep(Duration::from_millis(200));
        device.armed.store(true, Ordering::Relaxed);
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(queue)));
        dropped.expect_err("it was told of the panic");
        device.armed.store(false, Ordering::Relaxed);
        let cut = truncate.join().expect("no panic of its own");
        cut.expect("a size");
    });
    drop(file);
    fs.close().expect("nothing holds it");
    e2fsck_clean(image.path());
}

/// A second panic that came out of what is dropped in the first would end the process.
#[test]
fn removed_file_that_goes_in_a_panic_is_freed_later() {
    // It goes with its last handle, or with the queue that has a request in flight on it.
    for in_flight in [false, true] {
        let image = small().build();
        shape::fragmented(&image, "f", 64, 1);
        let device = Panics::new(&image);
        let fs = Fs::open_device(device.clone(), &MountOptions::new()).expect("it opens");
        let options = OpenOptions::new().read(true).direct(true);
        let before = fs.statfs().blocks_free;
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
            let mut file = Some(options.open(&fs, "/f").expect("it is there"));
            fs.remove_file("/f").expect("it is there");
            if in_flight && let Some(file) = file.take() {
                file.preload_map().expect("a sound tree");
                let pushed = queue.read(&file, 0, Buf::zeroed(1024), 0);
                pushed.expect("room");
            }
            // Freeing it has to read what cannot be read.
            device.armed.store(true, Ordering::Relaxed);
            panic!("on purpose");
        }));
        unwound.expect_err("it does");
        device.armed.store(false, Ordering::Relaxed);
        assert_eq!(fs.statfs().blocks_free, before);
        drop(fs.queue(&QueueOptions::default()).expect("a queue"));
        fs.sync().expect("the journal is sound");
        let freed = fs.statfs().blocks_free - before;
        assert!(freed >= 64, "{freed} blocks were freed");
        fs.close().expect("nothing holds it");
        e2fsck_clean(image.path());
    }
}

fn create(fs: &Fs, name: &str) {
    let options = OpenOptions::new().write(true).create(true);
    drop(options.open(fs, name).expect("room"));
}

/// `/a` and not `/b`; the mount ends.
fn only_the_synced_is_there(fs: Fs) {
    fs.metadata("/a").expect("it was synced");
    fs.metadata("/b").expect_err("it was not");
    fs.close().expect("nothing holds it");
}

/// Nor can it be noted in the log then why the journal was aborted.
#[test]
fn device_that_panics_in_a_commit_and_after_it_leaves_a_mount_that_only_reads() {
    let image = small().build();
    let device = PanicsLate::new(&image);
    let fs = device.mount();
    create(&fs, "/a");
    fs.sync().expect("a sync");
    create(&fs, "/b");
    device.armed.store(true, Ordering::Relaxed);
    let synced = catch_unwind(AssertUnwindSafe(|| fs.sync()));
    synced.expect_err("the device panics");
    device.armed.store(false, Ordering::Relaxed);
    let later = fs.sync().expect_err("the journal was aborted");
    assert_eq!(later.errno(), libc::EROFS);
    fs.metadata("/b").expect("it is in memory");
    drop(fs);
    only_the_synced_is_there(device.mount());
    // The sync that came later has noted it.
    e2fsck_consistent(image.path());
}

/// It commits what was changed; a second panic would end the process, and half a commit must not be taken for a whole one.
#[test]
fn file_system_that_goes_in_a_panic_outlives_another_of_its_device() {
    let image = small().build();
    let device = PanicsLate::new(&image);
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let fs = device.mount();
        create(&fs, "/a");
        fs.sync().expect("a sync");
        create(&fs, "/b");
        device.armed.store(true, Ordering::Relaxed);
        panic!("on purpose");
    }));
    unwound.expect_err("it does");
    device.armed.store(false, Ordering::Relaxed);
    only_the_synced_is_there(device.mount());
    e2fsck_clean(image.path());
}

/// What it has in one block of inodes, or in what a removed file had, is no reason to lose all else.
#[test]
fn sync_makes_durable_what_it_can_beside_times_that_it_cannot_write() {
    let image = image_with(small(), &NAMES);
    let options = OpenOptions::new().write(true);
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let file = options.open(&fs, "/f0").expect("it exists");
    file.write_at(&[1; 1024], 0).expect("room");
    drop(file);
    fs.close().expect("a clean end");
    let said = debugfs_query(image.path(), "imap f0");
    let at = said.split("located at block ").nth(1);
    let at = at.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
    let at = at.expect("imap tells it") * 1024;

    let device = sim(&image);
    let nothing_kept = MountOptions::new().metadata_cache(0).commit_interval(NEVER);
    let fs = Fs::open_device(Arc::new(device.clone()), &nothing_kept).expect("it opens");
    fs.create_dir("/first", &NewFile::new(0o755)).expect("room");
    fs.sync().expect("a sync");
    let file = options.open(&fs, "/f0").expect("it exists");
    // Until the clock has ticked.
    std::thread::sleep(Duration::from_millis(20));
    file.write_at(&[2; 1024], 0).expect("an overwrite");
    let fault = Fault::every(FaultOp::Read, FaultKind::Io(libc::EIO));
    let armed = device.inject(Fault {
        range: Some(at..at + 1024),
        ..fault
    });
    let made = (0..32).map(|number| format!("/made{number}"));
    let made = made.filter(|path| fs.create_dir(path, &NewFile::new(0o755)).is_ok());
    let made: Vec<String> = made.collect();
    assert!(!made.is_empty(), "none has its inode elsewhere");
    let error = fs.sync().expect_err("the times of f0");
    assert_eq!(error.errno(), libc::EIO, "{error}");
    assert!(device.hits(armed) > Some(0));
    drop(file);
    drop(fs);
    device.remove(armed);
    drop(device);

    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    for path in &made {
        fs.metadata(path).expect("it was made durable");
    }
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}
