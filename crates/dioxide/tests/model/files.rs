//! Operations on a few files of one image, and what they should contain.

use crate::random::Random;
use crate::variants;
use dioxide::{Error, FallocateMode, File, Fs, MountOptions, OpenOptions};
use dioxide_testkit::{Image, e2fsck_clean};
use std::fmt::Write;
use std::ops::Range;

const FILES: usize = 3;
const MOST: u64 = 6 << 20;

/// One file: what it should contain.
struct Model {
    path: String,
    content: Vec<u8>,
}

struct Bed {
    image: Image,
    block: u64,
    extents: bool,
    random: Random,
    files: Vec<Model>,
    /// What was done, for the report of a failure.
    log: String,
}

fn image_with_files(builder: dioxide_testkit::ImageBuilder) -> Image {
    let tree = tempfile::tempdir().expect("a folder");
    for number in 0..FILES {
        std::fs::write(tree.path().join(format!("f{number}")), b"").expect("an empty file");
    }
    builder.source(tree.path()).build()
}

impl Bed {
    fn new(builder: dioxide_testkit::ImageBuilder, seed: u64) -> Bed {
        let image = image_with_files(builder);
        let files = (0..FILES).map(|number| Model {
            path: format!("/f{number}"),
            content: Vec::new(),
        });
        let mut bed = Bed {
            files: files.collect(),
            block: 0,
            extents: true,
            random: Random::new(seed),
            log: String::new(),
            image,
        };
        let fs = bed.open_fs();
        bed.block = fs.block_size().into();
        bed.extents = fs.metadata("/f0").expect("it exists").flags & 0x8_0000 != 0;
        fs.close().expect("a clean end");
        bed
    }

    fn open_fs(&self) -> Fs {
        let fs = Fs::open(self.image.path(), &MountOptions::new()).expect("it opens");
        assert_eq!(fs.read_only(), None);
        fs
    }

    fn open(&self, fs: &Fs, number: usize) -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(fs, &self.files[number].path)
            .expect("it exists")
    }

    /// An offset: often at a block's edge, often near the end.
    fn offset(&mut self, size: u64) -> u64 {
        let near = match self.random.pick(4) {
            0 => size,
            1 => size.saturating_sub(self.random.below(0..3 * self.block)),
            2 => self.random.below(0..size.max(1) + 3 * self.block),
            _ => self.random.below(0..MOST / 2),
        };
        match self.random.pick(3) {
            0 => near,
            1 => near / self.block * self.block,
            _ => near / 512 * 512,
        }
    }

    fn len(&mut self) -> u64 {
        match self.random.pick(6) {
            0 => self.random.below(1..700),
            1 => self.block,
            2 => 512 * self.random.below(1..20),
            3 => self.block * self.random.below(1..40),
            4 => self.random.below(1..100_000),
            _ => self.random.below(1..20 * self.block),
        }
    }

    fn whole_cluster(&mut self, fs: &Fs, size: u64) -> Range<u64> {
        let unit = u64::from(fs.superblock().cluster_size());
        let start = self.random.below(0..size / unit + 1) * unit;
        start..start + unit * self.random.below(1..8)
    }

    fn step(&mut self, fs: &Fs, number: usize, file: &File) {
        let size = self.files[number].content.len() as u64;
        let (offset, len) = (self.offset(size), self.len());
        let what = self.random.pick(16);
        writeln!(self.log, "f{number} ({size}): op {what} {offset}+{len}").expect("memory");
        match what {
            0..=6 => self.write(number, file, offset, len),
            7 => self.write(number, file, size, len),
            8 => self.truncate(number, file, offset),
            9 => self.truncate(number, file, size.saturating_sub(len)),
            10 => self.allocate(number, file, FallocateMode::Allocate, offset..offset + len),
            11 => self.allocate(number, file, FallocateMode::KeepSize, offset..offset + len),
            12 => self.allocate(number, file, FallocateMode::PunchHole, offset..offset + len),
            13 => {
                let mode = match self.random.pick(2) {
                    0 => FallocateMode::ZeroRange,
                    _ => FallocateMode::ZeroRangeKeepSize,
                };
                self.allocate(number, file, mode, offset..offset + len);
            }
            14 => {
                let range = self.whole_cluster(fs, size);
                let mode = match self.random.pick(2) {
                    0 => FallocateMode::CollapseRange,
                    _ => FallocateMode::InsertRange,
                };
                self.allocate(number, file, mode, range);
            }
            _ => match self.random.pick(3) {
                0 => file.sync_all().expect("a sync"),
                1 => file.sync_data().expect("a sync"),
                _ => fs.sync().expect("a sync"),
            },
        }
    }

    fn write(&mut self, number: usize, file: &File, offset: u64, len: u64) {
        if offset + len > MOST {
            return;
        }
        let mut data = vec![0; len as usize];
        dioxide_testkit::fill_pattern(self.random.next(), 0, &mut data);
        let written = file.write_at(&data, offset).expect("room");
        assert_eq!(written, data.len());
        let content = &mut self.files[number].content;
        let end = (offset + len) as usize;
        content.resize(content.len().max(end), 0);
        content[offset as usize..end].copy_from_slice(&data);
    }

    fn truncate(&mut self, number: usize, file: &File, size: u64) {
        if size <= MOST {
            file.set_len(size).expect("a new size");
            self.files[number].content.resize(size as usize, 0);
        }
    }

    fn allocate(&mut self, number: usize, file: &File, mode: FallocateMode, range: Range<u64>) {
        let size = self.files[number].content.len() as u64;
        if range.end > MOST || size + (range.end - range.start) > MOST {
            return;
        }
        let result = file.allocate(mode, range.start, range.end - range.start);
        if !self.extents && mode != FallocateMode::PunchHole {
            assert!(matches!(result, Err(Error::Unsupported(_))), "{result:?}");
            return;
        }
        let content = &mut self.files[number].content;
        let inside = |at: u64| at.min(size) as usize;
        let covered = inside(range.start)..inside(range.end);
        match mode {
            FallocateMode::Allocate => content.resize(size.max(range.end) as usize, 0),
            FallocateMode::PunchHole | FallocateMode::ZeroRangeKeepSize => content[covered].fill(0),
            FallocateMode::ZeroRange => {
                content[covered].fill(0);
                content.resize(size.max(range.end) as usize, 0);
            }
            FallocateMode::CollapseRange => {
                if range.end >= size {
                    assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
                    return;
                }
                content.drain(covered);
            }
            FallocateMode::InsertRange => {
                if range.start >= size {
                    assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
                    return;
                }
                let zeros = vec![0; (range.end - range.start) as usize];
                content.splice(covered.start..covered.start, zeros);
            }
            _ => {}
        }
        result.expect("room");
    }

    fn check(&self, file: &File, number: usize) {
        let model = &self.files[number];
        assert_eq!(
            file.len(),
            model.content.len() as u64,
            "size of {}",
            model.path
        );
        let mut found = vec![0xEE; model.content.len() + 100];
        let len = file.read_at(&mut found, 0).expect("a read");
        assert_eq!(len, model.content.len());
        if let Some(at) = (0..len).find(|&at| found[at] != model.content[at]) {
            panic!(
                "{} differs at {at}: {:#x}, expected {:#x}\n{}",
                model.path, found[at], model.content[at], self.log
            );
        }
    }

    fn round(&mut self, steps: u32) {
        let fs = self.open_fs();
        let files: Vec<File> = (0..FILES).map(|number| self.open(&fs, number)).collect();
        for _ in 0..steps {
            let number = self.random.pick(FILES as u64) as usize;
            self.step(&fs, number, &files[number]);
            self.check(&files[number], number);
        }
        drop(files);
        fs.close().expect("a clean end");
        e2fsck_clean(self.image.path());
        let fs = self.open_fs();
        for number in 0..FILES {
            self.check(&self.open(&fs, number), number);
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
                "{}, seed {}; last first:\n{}",
                self.1,
                self.2,
                tail.join("\n")
            );
        }
    }
}

#[test]
fn random_operations_leave_what_the_model_has() {
    for (name, builder) in variants() {
        for seed in 1..=3 {
            let mut bed = Bed::new(builder.clone(), seed);
            let report = Report(&mut bed, name, seed);
            for _ in 0..3 {
                report.0.round(60);
            }
        }
    }
}
