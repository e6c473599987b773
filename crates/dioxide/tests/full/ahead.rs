//! fallocate without room: all of a range or nothing of it, by one thread and by four.

use crate::random::Random;
use crate::variants::{image_with, variants};
use dioxide::block::file::FileOptions;
use dioxide::block::sim::{Fault, FaultKind, FaultOp, SimDevice, SimSpec};
use dioxide::{FallocateMode, File, Fs, MapKind, MountOptions, OpenOptions};
use dioxide_testkit::{Image, ImageBuilder, e2fsck_clean};
use std::sync::Arc;
use std::time::Duration;

const MODES: [FallocateMode; 5] = [
    FallocateMode::Allocate,
    FallocateMode::KeepSize,
    FallocateMode::ZeroRange,
    FallocateMode::ZeroRangeKeepSize,
    FallocateMode::WriteZeroes,
];

/// Where nothing of any file lies.
const FAR: u64 = 1 << 30;

fn open(fs: &Fs, name: &str) -> File {
    let options = OpenOptions::new().read(true).write(true);
    options.open(fs, name).expect("it exists")
}

fn with_extents() -> impl Iterator<Item = (&'static str, ImageBuilder)> {
    let with = |(name, _): &(&str, ImageBuilder)| !name.contains("no extents") && *name != "ext2";
    variants().into_iter().filter(with)
}

/// What a call that fails must not change: free blocks, size, what is allocated and where, contents.
fn state(fs: &Fs, file: &File) -> (u64, u64, u64, Vec<MapKind>, Vec<u8>) {
    fs.sync().expect("a sync");
    let kind = |lblk| file.map(lblk, 1).expect("a sound map").kind;
    let mut content = vec![0; file.len() as usize];
    file.read_at(&mut content, 0).expect("a read");
    (
        fs.statfs().blocks_free,
        file.len(),
        file.metadata().blocks,
        (0..64).map(kind).collect(),
        content,
    )
}

/// A file with holes between its blocks, unwritten ones, and part of a cluster behind its end.
fn patchy(fs: &Fs) -> File {
    let file = open(fs, "a");
    let block = u64::from(fs.block_size());
    for lblk in [1, 2, 5, 11, 30] {
        let data = vec![lblk as u8; block as usize];
        file.write_at(&data, lblk * block).expect("room");
    }
    file.allocate(FallocateMode::KeepSize, 40 * block, 3 * block)
        .expect("room");
    file
}

#[test]
fn fallocate_without_room_changes_nothing() {
    for (name, builder) in with_extents() {
        let image = image_with(builder, &["a"]);
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let file = patchy(&fs);
        let before = state(&fs, &file);
        for mode in MODES {
            for (offset, len) in [(0, 100 << 30), (700, 64 << 20), (FAR, 1 << 40)] {
                let error = file.allocate(mode, offset, len).expect_err("no room");
                assert_eq!(error.errno(), libc::ENOSPC, "{name}, {mode:?}: {error}");
                assert!(state(&fs, &file) == before, "{name}, {mode:?}");
            }
        }
        drop(file);
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

// Neither more nor less is asked for than the range takes: what fits to the last cluster is allocated.
#[test]
fn fallocate_takes_what_fits_to_the_last_cluster() {
    for (name, builder) in with_extents() {
        let image = image_with(builder, &["a"]);
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let file = patchy(&fs);
        let (cluster, block) = (fs.superblock().cluster_size(), fs.block_size());
        let (cluster, block) = (u64::from(cluster), u64::from(block));
        // From inside a hole, over all that the file has.
        let range = |clusters: u64| (3 * block, clusters * cluster - 3 * block);
        let fits = |clusters: u64| {
            let (offset, len) = range(clusters);
            let fits = file.allocate(FallocateMode::KeepSize, offset, len).is_ok();
            if fits {
                file.set_len(0).expect("an empty file");
                patchy(&fs);
            }
            fits
        };
        let (mut yes, mut no) = (64, (64 << 20) / cluster);
        while no - yes > 1 {
            let middle = u64::midpoint(yes, no);
            match fits(middle) {
                true => yes = middle,
                false => no = middle,
            }
        }
        let (offset, len) = range(yes);
        file.allocate(FallocateMode::KeepSize, offset, len)
            .expect("it did fit");
        let other = file.write_at(&[1], FAR).expect_err("nothing is left");
        assert_eq!(other.errno(), libc::ENOSPC, "{name}");
        drop(file);
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

#[test]
fn fallocate_of_four_threads_without_room_leaves_nothing_behind() {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    for (name, builder) in with_extents() {
        let image = image_with(builder, &NAMES);
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        fs.sync().expect("a sync");
        let free = fs.statfs().blocks_free;
        let failed: usize = std::thread::scope(|scope| {
            let threads = NAMES.map(|owner| {
                let file = open(&fs, owner);
                scope.spawn(move || (0..60).filter(|&turn| take(&file, owner, turn)).count())
            });
            threads
                .map(|thread| thread.join().expect("no panic"))
                .into_iter()
                .sum()
        });
        assert!(failed > 0, "{name}: it was never full");
        fs.sync().expect("a sync");
        let taken: u64 = NAMES
            .iter()
            .map(|file| open(&fs, file).metadata().blocks)
            .sum();
        let sectors = u64::from(fs.block_size() / 512);
        assert_eq!(fs.statfs().blocks_free, free - taken / sectors, "{name}");
        for owner in NAMES {
            open(&fs, owner).set_len(0).expect("an empty file");
        }
        fs.sync().expect("a sync");
        assert_eq!(fs.statfs().blocks_free, free, "{name}");
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

/// Allocates a range that may be too large, or makes room. Whether it was too large.
fn take(file: &File, owner: &str, turn: u64) -> bool {
    let mut random = Random::new(u64::from(owner.as_bytes()[0]) << 32 | turn);
    let (offset, len) = (random.below(0..FAR), random.below(1..24 << 20));
    let before = (file.len(), file.metadata().blocks);
    match file.allocate(MODES[random.pick(MODES.len() as u64) as usize], offset, len) {
        Ok(()) => {
            if random.pick(2) == 0 {
                file.set_len(0).expect("an empty file");
            }
            false
        }
        Err(error) => {
            assert_eq!(error.errno(), libc::ENOSPC, "{error}");
            let after = (file.len(), file.metadata().blocks);
            assert_eq!(after, before, "{owner}, {len} at {offset}");
            true
        }
    }
}

/// Two groups whose bitmaps are in use.
fn two_groups() -> Image {
    let builder = Image::builder().block_size(1024).size(16 << 20);
    let image = image_with(builder, &["a"]);
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert_eq!(fs.superblock().group_count(), 2);
    let file = open(&fs, "a");
    let most = fs.statfs().blocks_available * 9 / 10 * 1024;
    file.allocate(FallocateMode::KeepSize, 0, most)
        .expect("room");
    file.set_len(0).expect("an empty file");
    drop(file);
    fs.close().expect("a clean end");
    image
}

// The room is there, and half of it cannot be had, since the bitmap cannot be read.
#[test]
fn fallocate_that_fails_late_gives_back_what_it_took() {
    let image = two_groups();
    let options = FileOptions {
        write: true,
        ..FileOptions::default()
    };
    let device = dioxide::block::file::open(image.path(), &options).expect("it opens");
    let sim = SimDevice::new(device, SimSpec::default());
    // No commit meets a fault.
    let options = MountOptions::new().commit_interval(Duration::from_secs(3600));
    let fs = Fs::open_device(Arc::new(sim.clone()), &options).expect("it opens");
    let file = patchy(&fs);
    let before = state(&fs, &file);
    let armed = sim.inject(Fault::every(FaultOp::Read, FaultKind::Io(libc::EIO)));
    let most = fs.statfs().blocks_available * 9 / 10 * 1024;
    let error = file.allocate(FallocateMode::Allocate, 0, most);
    assert_eq!(error.expect_err("unreadable").errno(), libc::EIO);
    sim.remove(armed);
    assert!(state(&fs, &file) == before);
    // The room is there as well, and cannot be zeroed.
    let armed = sim.inject(Fault::every(FaultOp::Write, FaultKind::Io(libc::EIO)));
    let error = file.allocate(FallocateMode::WriteZeroes, 1 << 20, 1 << 20);
    assert_eq!(error.expect_err("not writable").errno(), libc::EIO);
    sim.remove(armed);
    assert!(state(&fs, &file) == before);
    file.allocate(FallocateMode::Allocate, 0, most)
        .expect("now it can be read");
    drop(file);
    fs.close().expect("a clean end");
    drop(sim);
    e2fsck_clean(image.path());
}
