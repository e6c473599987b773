//! Operations on a few files of one image, and what they should contain.

use crate::compare;
use crate::ops::{self, FILES, Generator, NAMES, Op, Shape, What};
use crate::variants::{image_with, variants};
use dioxide::{File, Fs, MountOptions};
use dioxide_testkit::{Image, e2fsck_clean, each_case, seeds};
use std::fmt::Write;

const MOST: u64 = 6 << 20;

struct Bed {
    image: Image,
    generator: Generator,
    files: Vec<Vec<u8>>,
    /// What was done, for the report of a failure.
    log: String,
}

fn open_fs(image: &Image) -> Fs {
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert_eq!(fs.read_only(), None);
    fs
}

impl Bed {
    fn new(builder: dioxide_testkit::ImageBuilder, seed: u64) -> Bed {
        let image = image_with(builder, &NAMES);
        let fs = open_fs(&image);
        let shape = Shape::of(&fs, MOST);
        fs.close().expect("a clean end");
        Bed {
            image,
            generator: Generator::new(seed, shape),
            files: vec![Vec::new(); FILES],
            log: String::new(),
        }
    }

    fn check(&self, file: &dioxide::File, number: usize) {
        let found = ops::content(file);
        if let Some(difference) = compare::difference(&found, &self.files[number]) {
            panic!("f{number}: {difference}");
        }
    }

    fn carry_out(&mut self, fs: &Fs, files: &[File], op: &Op) {
        let content = &mut self.files[op.file];
        writeln!(self.log, "({}) {op:?}", content.len()).expect("memory");
        let expected = ops::apply(&op.what, content, &self.generator.shape);
        let result = ops::run(&op.what, fs, &files[op.file]);
        assert_eq!(result.map_err(|error| error.errno()), expected);
    }

    /// Has a file lie in so many pieces that cutting it off takes several transactions where the journal is small, and
    /// does that.
    fn cut_pieces(&mut self, fs: &Fs, files: &[File]) {
        let (file, len) = (0, self.generator.shape.cluster);
        for piece in 0..60 {
            let (at, seed) = (2 * piece * len, piece);
            let what = What::Write { at, len, seed };
            self.carry_out(fs, files, &Op { file, what });
        }
        let what = What::Truncate { size: len };
        self.carry_out(fs, files, &Op { file, what });
        self.check(&files[file], file);
    }

    fn round(&mut self, steps: u32) {
        let fs = open_fs(&self.image);
        let files = ops::open_files(&fs);
        self.cut_pieces(&fs, &files);
        for _ in 0..steps {
            let op = self.generator.next(&self.files);
            self.carry_out(&fs, &files, &op);
            self.check(&files[op.file], op.file);
        }
        drop(files);
        fs.close().expect("a clean end");
        e2fsck_clean(self.image.path());
        let fs = open_fs(&self.image);
        for (number, file) in ops::open_files(&fs).iter().enumerate() {
            self.check(file, number);
        }
        fs.close().expect("a clean end");
    }
}

struct Report<'a>(&'a mut Bed, &'static str, u64);

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let tail: Vec<&str> = self.0.log.lines().rev().take(30).collect();
            eprintln!(
                "{}, seed {}; (size before) operation, last first:\n{}",
                self.1,
                self.2,
                tail.join("\n")
            );
        }
    }
}

#[test]
fn random_operations_leave_what_the_model_has() {
    each_case(variants(), |(name, builder)| {
        for seed in seeds(1) {
            let mut bed = Bed::new(builder.clone(), seed);
            let report = Report(&mut bed, name, seed);
            for _ in 0..3 {
                report.0.round(60);
            }
        }
    });
}
