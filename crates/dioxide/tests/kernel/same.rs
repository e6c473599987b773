//! The same operations on dioxide, on the kernel's ext4, and on a model in memory: contents, sizes,
//! what backs each block, and free counts agree.
//!
//! Each round begins with two copies of one image, one for each side. Then the kernel goes on with what
//! dioxide wrote, and dioxide reads that.
//!
//! Two differences are the kernel's choice. Splitting a short unwritten extent it writes zeros instead,
//! which is switched off. A hole that is punched over the end of the file ends there, rounded up to a
//! page; so these do so here from the start. As extent trees may take different numbers of blocks, it is
//! free blocks plus allocated ones that must be equal.

use crate::compare;
use crate::linux;
use crate::ops::{self, FILES, Generator, NAMES, Op, Shape, What};
use crate::variants::{image_with, variants};
use dioxide::{FallocateMode, Fs, MapKind, MountOptions};
use dioxide_testkit::{
    Image, ImageBuilder, dumpe2fs, e2fsck_clean, leaf_extents, need_root, seeds,
};
use std::os::unix::fs::MetadataExt;

const MOST: u64 = 3 << 20;
const PAGE: u64 = 4096;

struct Bed {
    image: Image,
    generator: Generator,
    files: Vec<Vec<u8>>,
    /// What was done, for the report of a failure.
    log: Vec<String>,
}

/// What one side made of the image.
#[derive(Debug, PartialEq)]
struct Side {
    /// What backs each block of each file.
    kinds: Vec<Vec<MapKind>>,
    /// Of all files, in units of 512 bytes.
    allocated: u64,
    free_blocks: u64,
}

fn open_fs(image: &Image) -> Fs {
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert_eq!(fs.read_only(), None);
    fs
}

fn kinds_by_dioxide(file: &dioxide::File, blocks: u32) -> Vec<MapKind> {
    let mut kinds = Vec::new();
    while (kinds.len() as u32) < blocks {
        let at = kinds.len() as u32;
        let mapping = file.map(at, blocks - at).expect("a mapping");
        kinds.extend((0..mapping.len).map(|_| mapping.kind));
    }
    kinds
}

fn kinds_by_debugfs(image: &Image, number: usize, blocks: u32) -> Vec<MapKind> {
    let mut kinds = vec![MapKind::Hole; blocks as usize];
    for extent in leaf_extents(image.path(), &format!("f{number}")) {
        let kind = match extent.unwritten {
            true => MapKind::Unwritten,
            false => MapKind::Mapped,
        };
        kinds[extent.logical as usize..][..extent.len as usize].fill(kind);
    }
    kinds
}

fn free_blocks(image: &Image) -> u64 {
    let text = dumpe2fs(image.path());
    let row = text
        .lines()
        .find_map(|row| row.strip_prefix("Free blocks:"));
    row.expect("it is there").trim().parse().expect("a number")
}

impl Bed {
    fn new(builder: ImageBuilder, seed: u64) -> Bed {
        let image = image_with(builder, &NAMES);
        let fs = open_fs(&image);
        let shape = Shape::of(&fs, MOST);
        fs.close().expect("a clean end");
        Bed {
            image,
            generator: Generator::new(seed, shape),
            files: vec![Vec::new(); FILES],
            log: Vec::new(),
        }
    }

    fn blocks(&self) -> u32 {
        (MOST / self.generator.shape.block) as u32
    }

    /// The next operations, and what each must return.
    fn plan(&mut self, steps: usize) -> Vec<(Op, Result<(), i32>)> {
        let mut plan = Vec::new();
        while plan.len() < steps {
            let mut op = self.generator.next(&self.files);
            let content = &mut self.files[op.file];
            if let What::Allocate(FallocateMode::PunchHole, at, len) = &mut op.what {
                let size = content.len() as u64;
                if *at >= size {
                    continue;
                }
                if *at + *len > size {
                    *len = size.next_multiple_of(PAGE) - *at;
                }
            }
            self.log.push(format!("({}) {op:?}", content.len()));
            plan.push((op, ops::apply(&op.what, content, &self.generator.shape)));
        }
        plan
    }

    fn compare(&self, who: &str, number: usize, found: &[u8]) {
        if let Some(difference) = compare::difference(found, &self.files[number]) {
            panic!("f{number} by {who}: {difference}");
        }
    }

    fn by_dioxide(&self, plan: &[(Op, Result<(), i32>)]) -> Side {
        let fs = open_fs(&self.image);
        let files = ops::open_files(&fs);
        for (op, expected) in plan {
            let result = ops::run(&op.what, &fs, &files[op.file]);
            let result = result.map_err(|error| error.errno());
            assert_eq!(result, *expected, "dioxide: {op:?}");
        }
        let mut side = Side {
            kinds: Vec::new(),
            allocated: 0,
            free_blocks: fs.statfs().blocks_free,
        };
        for (number, file) in files.iter().enumerate() {
            self.compare("dioxide", number, &ops::content(file));
            side.kinds.push(kinds_by_dioxide(file, self.blocks()));
            side.allocated += file.metadata().blocks;
        }
        drop(files);
        fs.close().expect("a clean end");
        e2fsck_clean(self.image.path());
        assert_eq!(side.free_blocks, free_blocks(&self.image), "statfs");
        if self.generator.shape.extents {
            for (number, kinds) in side.kinds.iter().enumerate() {
                let found = kinds_by_debugfs(&self.image, number, self.blocks());
                assert_same_kinds("dioxide, debugfs", number, kinds, &found);
            }
        }
        side
    }

    fn by_kernel(&self, image: &Image, plan: &[(Op, Result<(), i32>)]) -> Side {
        let mount = linux::mount(image.path());
        let files = linux::open_files(&mount);
        for (op, expected) in plan {
            let result = linux::run(&op.what, &files[op.file]);
            let result = result.map_err(|error| error.raw_os_error().expect("an errno"));
            assert_eq!(result, *expected, "the kernel: {op:?}");
        }
        let mut side = Side {
            kinds: Vec::new(),
            allocated: 0,
            free_blocks: 0,
        };
        for (number, file) in files.iter().enumerate() {
            self.compare("the kernel", number, &linux::content(file));
            let data = linux::data_blocks(file, self.generator.shape.block);
            let kind = |&data: &bool| if data { MapKind::Mapped } else { MapKind::Hole };
            side.kinds.push(data.iter().map(kind).collect());
            side.allocated += file.metadata().expect("it is open").blocks();
        }
        drop(files);
        mount.unmount();
        e2fsck_clean(image.path());
        side.free_blocks = free_blocks(image);
        if self.generator.shape.extents {
            let kinds = |number| kinds_by_debugfs(image, number, self.blocks());
            side.kinds = (0..FILES).map(kinds).collect();
        }
        side
    }

    fn round(&mut self, steps: usize) {
        let copy = self.image.copy();
        let plan = self.plan(steps);
        let (ours, theirs) = (self.by_dioxide(&plan), self.by_kernel(&copy, &plan));
        self.assert_same(&ours, &theirs);
        self.read_by_dioxide(&copy, &theirs);
        // The kernel goes on where dioxide ended, and dioxide after it.
        let plan = self.plan(steps / 4);
        let theirs = self.by_kernel(&self.image, &plan);
        self.read_by_dioxide(&self.image, &theirs);
    }

    fn assert_same(&self, ours: &Side, theirs: &Side) {
        for number in 0..FILES {
            let blocks = self.files[number].len() as u64;
            let inside = blocks.div_ceil(self.generator.shape.block) as usize;
            // Files without extents have nothing behind their end.
            let end = match self.generator.shape.extents {
                true => self.blocks() as usize,
                false => inside,
            };
            let (a, b) = (&ours.kinds[number][..end], &theirs.kinds[number][..end]);
            assert_same_kinds("dioxide, kernel", number, a, b);
        }
        let unit = self.generator.shape.block / 512;
        assert_eq!(
            ours.free_blocks + ours.allocated / unit,
            theirs.free_blocks + theirs.allocated / unit,
            "free and allocated blocks"
        );
    }

    /// What the kernel left is what dioxide reads.
    fn read_by_dioxide(&self, image: &Image, theirs: &Side) {
        let fs = open_fs(image);
        let mut allocated = 0;
        for (number, file) in ops::open_files(&fs).iter().enumerate() {
            self.compare("dioxide, of the kernel's", number, &ops::content(file));
            let kinds = kinds_by_dioxide(file, self.blocks());
            let theirs = &theirs.kinds[number];
            assert_same_kinds(
                "dioxide, of the kernel's",
                number,
                &kinds[..theirs.len()],
                theirs,
            );
            allocated += file.metadata().blocks;
        }
        assert_eq!(allocated, theirs.allocated);
        assert_eq!(fs.statfs().blocks_free, theirs.free_blocks);
        fs.close().expect("a clean end");
    }
}

fn assert_same_kinds(who: &str, number: usize, a: &[MapKind], b: &[MapKind]) {
    let differs = (0..a.len().max(b.len())).find(|&at| a.get(at) != b.get(at));
    if let Some(at) = differs {
        let count = (0..a.len()).filter(|&at| a.get(at) != b.get(at)).count();
        panic!(
            "f{number} by {who}: block {at} is {:?} and {:?}; {count} blocks differ",
            a.get(at),
            b.get(at)
        );
    }
}

struct Report<'a>(&'a mut Bed, &'static str, u64);

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = &self.0.log;
            let tail = &log[log.len().saturating_sub(120)..];
            eprintln!("{}, seed {}:\n{}", self.1, self.2, tail.join("\n"));
        }
    }
}

#[test]
fn random_operations_leave_what_the_kernel_leaves() {
    need_root!();
    for (name, builder) in variants() {
        for seed in seeds(1) {
            let mut bed = Bed::new(builder.clone(), seed);
            let report = Report(&mut bed, name, seed);
            for _ in 0..3 {
                report.0.round(60);
            }
        }
    }
}
