//! What one side left when it was killed, the other recovers: what was synced is there, and `e2fsck`
//! finds nothing.
//!
//! dioxide is killed in a process of its own: this binary again, running
//! [`child_that_is_killed`] on an image that the environment names. It says what it has begun and done.
//! The kernel's side is either shut down under load (by `xfs_io`, where that is installed), as if the power
//! went, or its image is copied between bursts of operations while nothing is synced. Such a copy counts
//! if a second one is the same, so that it shows one moment.

use crate::history::History;
use crate::linux;
use crate::names::recovered_alike;
use crate::ops::{self, FILES, Generator, NAMES, Op, Shape, What};
use crate::random::Random;
use crate::variants::{image_with, variants};
use dioxide::{Fs, MountOptions, OpenOptions};
use dioxide_testkit::{Image, ImageBuilder, Mount, e2fsck_clean, need_root, seeds};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MOST: u64 = 384 << 10;
const IMAGE: &str = "DIOXIDE_TEST_IMAGE";
/// The file that the child opens with `O_DSYNC`.
const DSYNC: usize = 2;
const SEED: &str = "DIOXIDE_TEST_SEED";

pub fn journalled() -> impl Iterator<Item = (&'static str, ImageBuilder)> {
    let has_journal = |(name, _): &(&str, _)| !["no journal", "ext2"].contains(name);
    variants().into_iter().filter(has_journal)
}

pub fn open_fs(image: &Path) -> Fs {
    let fs = Fs::open(image, &MountOptions::new()).expect("it opens");
    assert_eq!(fs.read_only(), None);
    fs
}

/// Operations, and what the files may contain if the next one is cut off.
struct Run {
    generator: Generator,
    files: Vec<Vec<u8>>,
    histories: Vec<History>,
    /// The file whose writes are durable when they return.
    dsync: Option<usize>,
}

impl Run {
    fn new(seed: u64, image: &Path) -> Run {
        let fs = open_fs(image);
        let shape = Shape {
            settles: true,
            ..Shape::of(&fs, MOST)
        };
        fs.close().expect("a clean end");
        Run {
            generator: Generator::new(seed, shape),
            files: vec![Vec::new(); FILES],
            histories: vec![History::new(Vec::new()); FILES],
            dsync: None,
        }
    }

    /// The next operation, and the `errno` of one that must be refused.
    fn begin(&mut self) -> (Op, Option<i32>) {
        let op = self.generator.next(&self.files);
        let content = &mut self.files[op.file];
        let refused = ops::apply(&op.what, content, &self.generator.shape).err();
        self.histories[op.file].begin(content);
        (op, refused)
    }

    fn done(&mut self, op: &Op) {
        match op.what {
            What::SyncAll | What::SyncData => self.histories[op.file].durable(),
            What::SyncFs => self.histories.iter_mut().for_each(History::durable),
            What::Write { .. } if self.dsync == Some(op.file) => {
                self.histories[op.file].durable();
            }
            _ => {}
        }
    }

    fn check(&self, who: &str, number: usize, found: &[u8]) {
        if let Some(complaint) = self.histories[number].complaint(found) {
            panic!("f{number} by {who}: {complaint}");
        }
    }

    /// Recovers by a kernel mount.
    fn check_by_kernel(&self, image: &Image) {
        let mount = Mount::ext4(image.path(), "");
        for (number, file) in linux::open_files(&mount).iter().enumerate() {
            self.check("the kernel", number, &linux::content(file));
        }
        mount.unmount();
        e2fsck_clean(image.path());
    }

    /// Recovers by dioxide.
    fn check_by_dioxide(&self, image: &Image) {
        let fs = open_fs(image.path());
        for (number, file) in ops::open_files(&fs).iter().enumerate() {
            self.check("dioxide", number, &ops::content(file));
        }
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

#[test]
fn child_that_is_killed() {
    let (Ok(image), Ok(seed)) = (std::env::var(IMAGE), std::env::var(SEED)) else {
        return;
    };
    let mut run = Run::new(seed.parse().expect("a number"), image.as_ref());
    let fs = open_fs(image.as_ref());
    let mut files = ops::open_files(&fs);
    let options = OpenOptions::new().read(true).write(true).dsync(true);
    files[DSYNC] = options.open(&fs, "/f2").expect("it exists");
    println!();
    for step in 0..4000 {
        let (op, refused) = run.begin();
        println!("begun {step}");
        let done = ops::run(&op.what, &fs, &files[op.file]);
        assert_eq!(
            done.as_ref().err().map(dioxide::Error::errno),
            refused,
            "{op:?}: {done:?}"
        );
        println!("done {step}");
        run.done(&op);
    }
}

/// Runs the child until it has done so many operations, kills it, and tells how many it had begun and
/// done.
fn kill_after(image: &Image, seed: u64, steps: usize) -> (usize, usize) {
    let mut child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "crash::child_that_is_killed", "--nocapture"])
        .env(IMAGE, image.path())
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut counts = (0, 0);
    let mut killed = false;
    for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
        let line = line.expect("text");
        counts.0 += usize::from(line.starts_with("begun "));
        counts.1 += usize::from(line.starts_with("done "));
        if counts.1 >= steps && !killed {
            child.kill().expect("it runs");
            killed = true;
        }
    }
    let status = child.wait().expect("it ends");
    assert!(killed, "it ended by itself: {status}, after {counts:?}");
    counts
}

#[test]
fn killed_dioxide_is_recovered_by_the_kernel_and_by_itself() {
    need_root!();
    for (name, builder) in journalled() {
        for seed in seeds(2) {
            let image = image_with(builder.clone(), &NAMES);
            let mut run = Run::new(seed, image.path());
            run.dsync = Some(DSYNC);
            let steps = Random::new(seed).below(20..160) as usize;
            let (begun, done) = kill_after(&image, seed, steps);
            println!("{name}, seed {seed}: {begun} begun, {done} done");
            for step in 0..begun {
                let (op, _) = run.begin();
                if step < done {
                    run.done(&op);
                }
            }
            run.check_by_dioxide(&image.copy());
            run.check_by_kernel(&image);
        }
    }
}

fn has_xfs_io() -> bool {
    Command::new("xfs_io").arg("-V").output().is_ok()
}

#[test]
fn kernel_shut_down_under_load_is_recovered_by_dioxide() {
    need_root!();
    if !has_xfs_io() {
        eprintln!("skipped: needs xfs_io");
        return;
    }
    for (name, builder) in journalled() {
        for seed in seeds(2) {
            let image = image_with(builder.clone(), &NAMES);
            let mut run = Run::new(seed, image.path());
            let mount = Mount::ext4(image.path(), "");
            let files = linux::open_files(&mount);
            let stopped = AtomicBool::new(false);
            let steps = std::thread::scope(|scope| {
                let load = scope.spawn(|| load_until_it_stops(&mut run, &files, &stopped));
                let pause = Random::new(seed).below(20..150);
                std::thread::sleep(Duration::from_millis(pause));
                stopped.store(true, Ordering::SeqCst);
                shut_down(mount.path());
                load.join().expect("a load that ends")
            });
            println!("{name}, seed {seed}: {steps} steps");
            drop(files);
            drop(mount);
            run.check_by_dioxide(&image);
        }
    }
}

/// What ends after `stopped` was set is not durable, whatever it says: the kernel's syncfs says yes
/// on a file system that was shut down.
fn load_until_it_stops(run: &mut Run, files: &[std::fs::File], stopped: &AtomicBool) -> usize {
    for step in 0.. {
        let (op, refused) = run.begin();
        let result = linux::run(&op.what, &files[op.file]);
        if stopped.load(Ordering::SeqCst) {
            return step;
        }
        is_as_expected(&op, result, refused);
        run.done(&op);
    }
    unreachable!("operations do not end")
}

fn is_as_expected(op: &Op, done: std::io::Result<()>, refused: Option<i32>) {
    assert_eq!(
        done.err().and_then(|error| error.raw_os_error()),
        refused,
        "{op:?}"
    );
}

/// As if the power went: nothing more reaches the device, the log neither.
fn shut_down(point: &Path) {
    let command = ["-x", "-c", "shutdown"];
    let status = Command::new("xfs_io").args(command).arg(point).status();
    assert!(status.expect("it starts").success());
}

/// A copy of the image of a live mount that shows one moment.
pub fn moment(image: &Image) -> Image {
    let bytes = |image: &Image| std::fs::read(image.path()).expect("it is there");
    for _ in 0..50 {
        let (first, second) = (image.copy(), image.copy());
        if bytes(&first) == bytes(&second) {
            return first;
        }
    }
    panic!("the file system never rests");
}

#[test]
fn kernel_copied_between_bursts_is_recovered_by_dioxide() {
    need_root!();
    for (name, builder) in journalled() {
        let image = image_with(builder.size(32 << 20), &NAMES);
        let mut run = Run::new(7, image.path());
        let mount = Mount::ext4(image.path(), "");
        let files = linux::open_files(&mount);
        for burst in 0..3 {
            for _ in 0..40 {
                let (op, refused) = run.begin();
                is_as_expected(&op, linux::run(&op.what, &files[op.file]), refused);
                run.done(&op);
            }
            println!("{name}, burst {burst}");
            let left = moment(&image);
            recovered_alike(&left.copy());
            run.check_by_dioxide(&left);
        }
        drop(files);
        mount.unmount();
    }
}
