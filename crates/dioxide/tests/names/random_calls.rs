//! Random calls against the model: what each answers, what is there after a remount, and that nothing
//! is lost when all is removed.

use crate::calls::{self, Call, Dioxide, Generator};
use crate::kinds::{kinds, with_quotas};
use crate::tree::Tree;
use crate::view;
use dioxide::{Fs, MountOptions, StatFs};
use dioxide_testkit::{Image, ImageBuilder, e2fsck_clean, seeds};

pub struct Bed {
    pub image: Image,
    pub tree: Tree,
    generator: Generator,
    /// What was done, for the report of a failure.
    log: Vec<String>,
}

pub fn open_fs(image: &Image) -> Fs {
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert_eq!(fs.read_only(), None);
    fs
}

impl Bed {
    fn new(builder: ImageBuilder, seed: u64, many: u64) -> Bed {
        let image = builder.build();
        let fs = open_fs(&image);
        let (block, tree) = (u64::from(fs.block_size()), Tree::of(&fs));
        fs.close().expect("a clean end");
        Bed {
            image,
            tree,
            generator: Generator::new(seed, block, many),
            log: Vec::new(),
        }
    }

    fn step(&mut self, side: &mut Dioxide, call: &Call) {
        let expected = calls::apply(call, &mut self.tree);
        self.log.push(format!("{call:?}: {expected:?}"));
        let answer = side.run(call);
        assert_eq!(answer, expected, "{call:?}");
    }

    /// Calls from a mount to a clean end, then what is there.
    fn round(&mut self, steps: usize) {
        let mut side = Dioxide::new(open_fs(&self.image));
        for _ in 0..steps {
            let call = self.generator.next(&self.tree);
            self.step(&mut side, &call);
        }
        for slot in self.tree.open.keys().copied().collect::<Vec<_>>() {
            self.step(&mut side, &Call::Close { slot });
        }
        let expected = view::of_model(&self.tree);
        view::assert_same("before the end", &view::of_dioxide(&side.fs), &expected);
        side.fs.close().expect("a clean end");
        e2fsck_clean(self.image.path());
        let fs = open_fs(&self.image);
        view::assert_same("mounted again", &view::of_dioxide(&fs), &expected);
        fs.close().expect("a clean end");
    }

    /// Removes all; what is free then.
    fn remove_all(&mut self) -> StatFs {
        let mut side = Dioxide::new(open_fs(&self.image));
        for call in calls::remove_all(&self.tree) {
            self.step(&mut side, &call);
        }
        side.fs.close().expect("a clean end");
        e2fsck_clean(self.image.path());
        free(&self.image)
    }
}

fn free(image: &Image) -> StatFs {
    let fs = open_fs(image);
    let free = fs.statfs();
    fs.close().expect("a clean end");
    free
}

struct Report<'a>(&'a mut Bed, &'static str, u64);

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let tail: Vec<&str> = self.0.log.iter().rev().take(40).map(|s| &s[..]).collect();
            let (name, seed) = (self.1, self.2);
            eprintln!("{name}, seed {seed}; last first:\n{}", tail.join("\n"));
        }
    }
}

fn check(name: &'static str, builder: ImageBuilder, seed: u64, many: u64, steps: usize) {
    let mut bed = Bed::new(builder, seed, many);
    let report = Report(&mut bed, name, seed);
    let before = free(&report.0.image);
    for _ in 0..3 {
        report.0.round(steps);
    }
    let mut after = report.0.remove_all();
    if report.0.tree.has_projects {
        // Whoever owned something has left blocks in the quota files.
        after.blocks_free = before.blocks_free;
        after.blocks_available = before.blocks_available;
    }
    assert_eq!(after, before, "free when all is removed");
}

#[test]
fn random_calls_leave_what_the_model_has() {
    for (name, builder) in kinds().into_iter().chain([with_quotas()]) {
        for seed in seeds(3) {
            check(name, builder.clone(), seed, 0, 250);
        }
    }
}

#[test]
fn random_calls_in_large_directories_leave_what_the_model_has() {
    for (name, builder) in kinds() {
        for seed in seeds(1) {
            check(name, builder.clone(), seed, 1500, 1000);
        }
    }
}
