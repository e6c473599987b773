//! The file system is full but for a few blocks, for every number of them that the workload may miss, so
//! that each of its allocations fails in turn.
//!
//! An operation that gets `ENOSPC` leaves of each byte what was there or what should come; all others do
//! what they should. Nothing is lost of what is free.

use crate::ops::{NAMES, Shape};
use crate::variants::{image_with, variants};
use crate::workload::{Workload, in_time};
use dioxide::{File, Fs, MountOptions, OpenOptions};
use dioxide_testkit::{Image, ImageBuilder, seeds};

const STEPS: usize = 30;
const MOST: u64 = 48 << 10;

fn open_fs(image: &Image) -> Fs {
    Fs::open(image.path(), &MountOptions::new()).expect("it opens")
}

/// Fills an image up, and hands out the file that fills it.
fn filled(builder: ImageBuilder) -> Image {
    let names = [&NAMES[..], &["filler"]].concat();
    let image = image_with(builder.size(8 << 20).args(&["-m", "0"]), &names);
    let fs = open_fs(&image);
    let filler = filler(&fs);
    for step in [64, 1] {
        let bytes = vec![7; step * fs.superblock().cluster_size() as usize];
        while filler.write_at(&bytes, filler.len()).is_ok() {}
    }
    drop(filler);
    fs.close().expect("a clean end");
    image
}

fn filler(fs: &Fs) -> File {
    let options = OpenOptions::new().write(true);
    options.open(fs, "/filler").expect("it exists")
}

/// Makes so many clusters free, and a little more where the filler's tree shrinks.
fn free(fs: &Fs, clusters: u64) {
    let filler = filler(fs);
    let bytes = clusters * u64::from(fs.superblock().cluster_size());
    filler
        .set_len(filler.len() - bytes)
        .expect("a shorter file");
    fs.sync().expect("a sync");
}

/// Runs the workload with so many clusters free. How often it met `ENOSPC`.
fn run_short(full: &Image, name: &str, seed: u64, clusters: u64) -> usize {
    let image = full.copy();
    let fs = open_fs(&image);
    let shape = Shape {
        settles: true,
        ..Shape::of(&fs, MOST)
    };
    free(&fs, clusters);
    let what = format!("{name}, seed {seed}, {clusters} clusters left");
    let workload = in_time(&what, || {
        let mut workload = Workload::new(seed, shape);
        workload.run(fs, STEPS, || false);
        workload
    });
    let failures = &workload.failures;
    assert!(
        failures.iter().all(|failure| failure.errno == libc::ENOSPC),
        "{what}: {failures:?} of {:#?}",
        workload.ops
    );
    workload.check(&image);
    failures.len()
}

#[test]
fn allocation_without_room_at_every_site_is_reported_and_loses_nothing() {
    for (name, builder) in variants() {
        let full = filled(builder);
        for seed in seeds(1) {
            let mut clusters = 0;
            while run_short(&full, name, seed, clusters) > 0 {
                clusters += 1;
                assert!(clusters < 400, "the workload needs less");
            }
            println!("{name}, seed {seed}: all done with {clusters} clusters");
            assert!(clusters > 0, "the image is full");
        }
    }
}
