//! Atomic writes: rule A1.2 on which are taken, A5 on mappings, and what crashes leave of them.

use crate::bed::*;
use dioxide::block::AtomicUnits;
use dioxide::block::record::{Action, Entry};
use dioxide::block::sim::{Fault, FaultKind, FaultOp};
use dioxide::policy::LockMode;
use dioxide::{
    AtomicWrite, Direction, FallocateMode, File, Fs, MapKind, MountOptions, OpenOptions, Policy,
    SetAttributes, Timestamp,
};
use std::time::Duration;

/// Blocks of a cluster of [`Layout::Clusters`].
const RATIO: usize = 4;
const CLUSTER: usize = RATIO * BLOCK;
/// What atomic writes write here.
const NEW: u8 = 0xA7;

fn direct(fs: &Fs, path: &str) -> File {
    let options = OpenOptions::new().read(true).write(true).direct(true);
    options.open(fs, path).expect("it exists")
}

fn bed(layout: Layout, policy: Policy, units: u32) -> Bed {
    let units = AtomicUnits::new(512, units).expect("powers of two");
    Bed::promising(layout, MountOptions::new().policy(policy), units)
}

/// What both ways to write atomically answer.
fn errno(bed: &Bed, file: &File, len: usize, offset: u64) -> i32 {
    let answer = |result: Result<usize, i32>| match result {
        Ok(written) => {
            assert_eq!(written, len);
            0
        }
        Err(errno) => errno,
    };
    let buf = bytes(NEW, len);
    let blocking = file.write_at_atomic(&buf, offset);
    let blocking = answer(blocking.map_err(|error| error.errno()));
    let mut queue = bed.queue();
    queue.write_atomic(file, offset, buf, 7).expect("room");
    let done = reap(&mut queue, 1).pop().expect("one");
    let queued = answer(done.result.map_err(|error| error.errno()));
    assert_eq!(blocking, queued, "{len} at {offset}");
    blocking
}

#[test]
fn a1_atomic_length_and_offset_are_judged_before_direct_io() {
    for policy in Policy::ALL {
        let bed = bed(Layout::Default, policy, 65536);
        let (file, plain) = (direct(&bed, "/data"), bed.open("/data"));
        let units = AtomicWrite {
            min: 4096,
            max: 4096,
        };
        assert_eq!(file.metadata().atomic_write, Some(units));
        let block = BLOCK as u64;
        for (len, offset, direct, otherwise) in [
            (BLOCK, 0, 0, libc::EOPNOTSUPP),
            (BLOCK, 63 * block, 0, libc::EOPNOTSUPP),
            (BLOCK, 100 * block, 0, libc::EOPNOTSUPP),
            (0, 3, 0, 0),
            (2048, 0, libc::EINVAL, libc::EINVAL),
            (3 * BLOCK / 2, 0, libc::EINVAL, libc::EINVAL),
            (2 * BLOCK, 0, libc::EINVAL, libc::EINVAL),
            (BLOCK, 512, libc::EINVAL, libc::EINVAL),
            (BLOCK, u64::MAX - 4095, libc::EFBIG, libc::EOPNOTSUPP),
        ] {
            assert_eq!(
                errno(&bed, &file, len, offset),
                direct,
                "{policy}: {len} at {offset}"
            );
            assert_eq!(
                errno(&bed, &plain, len, offset),
                otherwise,
                "{policy}: {len} at {offset}"
            );
        }
        assert_all(&read(&file, 0..BLOCK), NEW);
        let options = OpenOptions::new().read(true).direct(true);
        let reader = options.open(&bed, "/data").expect("it exists");
        assert_eq!(errno(&bed, &reader, 3, 1), libc::EBADF);
    }
}

#[test]
fn a1_atomic_where_file_or_device_cannot_is_eopnotsupp() {
    for (layout, path) in [(Layout::Indirect, "/data"), (Layout::Inline, "/small")] {
        let bed = bed(layout, Policy::Best, 65536);
        let file = direct(&bed, path);
        assert_eq!(file.metadata().atomic_write, None);
        for (len, offset) in [(BLOCK, 0), (3, 1)] {
            assert_eq!(errno(&bed, &file, len, offset), libc::EOPNOTSUPP);
        }
        assert_eq!(errno(&bed, &file, 0, 0), 0);
    }
    let small = bed(Layout::Default, Policy::Best, 2048);
    for bed in [small, Bed::new(Policy::Best)] {
        let file = direct(&bed, "/data");
        assert_eq!(file.metadata().atomic_write, None);
        assert_eq!(errno(&bed, &file, BLOCK, 0), libc::EOPNOTSUPP);
        assert_eq!(bed.metadata("/data").expect("it exists").atomic_write, None);
    }
}

#[test]
fn a1_atomic_units_reach_up_to_the_cluster() {
    for (device, most) in [(8192, 8192), (CLUSTER as u32, 16384), (1 << 20, 16384)] {
        let bed = bed(Layout::Clusters, Policy::Best, device);
        let file = direct(&bed, "/data");
        let units = AtomicWrite {
            min: 4096,
            max: most,
        };
        assert_eq!(file.metadata().atomic_write, Some(units));
        for (len, offset) in [(4096, 4096), (8192, 8192), (16384, 32768)] {
            let fits = len <= most as usize;
            let expected = if fits { 0 } else { libc::EINVAL };
            assert_eq!(
                errno(&bed, &file, len, offset),
                expected,
                "{len} at {offset}"
            );
        }
        assert_eq!(errno(&bed, &file, 32768, 0), libc::EINVAL);
        assert_eq!(errno(&bed, &file, 8192, 4096), libc::EINVAL);
        for path in ["/", "/m0"] {
            let told = bed.metadata(path).expect("it exists").atomic_write;
            assert_eq!(told.is_some(), path == "/m0", "{path}");
        }
    }
}

#[test]
fn a1_atomic_append_goes_where_a_unit_may_begin() {
    let bed = bed(Layout::Clusters, Policy::Best, CLUSTER as u32);
    let options = OpenOptions::new().append(true).direct(true);
    let file = options.open(&bed, "/empty").expect("it exists");
    assert_eq!(
        file.write_at_atomic(&blocks(NEW, 4), 0).expect("aligned"),
        CLUSTER
    );
    assert_eq!(
        file.write_at_atomic(&blocks(NEW, 1), 0).expect("aligned"),
        BLOCK
    );
    let error = file
        .write_at_atomic(&blocks(1, 2), 0)
        .expect_err("not aligned");
    assert_eq!(error.errno(), libc::EINVAL);
    assert_eq!(file.len(), (CLUSTER + BLOCK) as u64);
    assert_all(&read_all(&bed.open("/empty")), NEW);
}

/// What the blocks of a cluster are before a write.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Was {
    Hole,
    Unwritten,
    Written,
}

/// All ways to fill a cluster, by number.
fn pattern(number: usize) -> [Was; RATIO] {
    let kinds = [Was::Hole, Was::Unwritten, Was::Written];
    std::array::from_fn(|at| kinds[number / 3usize.pow(at as u32) % 3])
}

/// Gives a cluster of a file its pattern; written blocks are full of their number.
fn arrange(file: &File, cluster: usize, pattern: [Was; RATIO]) {
    for (at, was) in pattern.into_iter().enumerate() {
        let block = cluster * RATIO + at;
        let offset = (block * BLOCK) as u64;
        match was {
            Was::Hole => {}
            Was::Unwritten => file
                .allocate(FallocateMode::KeepSize, offset, BLOCK as u64)
                .expect("room"),
            Was::Written => drop(
                file.write_at(&blocks(block as u8 + 1, 1), offset)
                    .expect("room"),
            ),
        }
    }
}

/// Writes since `from` that are atomic.
fn atomics(bed: &Bed, from: u64) -> Vec<usize> {
    let log = bed.record.log();
    let len = |entry: &Entry| match &entry.action {
        Action::Write {
            bytes,
            atomic: true,
            ..
        } if entry.issued >= from => Some(bytes.len()),
        _ => None,
    };
    log.entries().iter().filter_map(len).collect()
}

#[test]
fn a5_atomic_write_is_one_write_whatever_was_there() {
    for (number, policy) in (0..81).zip(Policy::ALL.into_iter().cycle()) {
        let bed = bed(Layout::Clusters, policy, CLUSTER as u32);
        let plain = bed.open("/empty");
        plain.set_len(16 * CLUSTER as u64).expect("a size");
        let (file, mut queue) = (direct(&bed, "/empty"), bed.queue());
        for (cluster, queued) in [(1, false), (4, true)] {
            arrange(&plain, cluster, pattern(number));
            arrange(&plain, cluster + 1, pattern(number));
            let from = bed.record.now();
            let offset = (cluster * CLUSTER) as u64;
            match queued {
                false => drop(
                    file.write_at_atomic(&blocks(NEW, RATIO), offset)
                        .expect("room"),
                ),
                true => {
                    let buf = blocks(NEW, RATIO);
                    queue.write_atomic(&file, offset, buf, 0).expect("room");
                    reap_all_ok(&mut queue, 1);
                }
            }
            let name = format!("{policy}: {:?}, queued: {queued}", pattern(number));
            assert_eq!(atomics(&bed, from), [CLUSTER], "{name}");
            let half = (offset as usize + CLUSTER) as u64;
            file.write_at_atomic(&blocks(NEW, 2), half).expect("room");
            assert_eq!(atomics(&bed, from), [CLUSTER, CLUSTER / 2], "{name}");
            let whole = offset as usize..offset as usize + CLUSTER + CLUSTER / 2;
            assert_all(&read(&file, whole), NEW);
            for (at, was) in pattern(number).into_iter().enumerate().skip(2) {
                let block = (cluster + 1) * RATIO + at;
                let value = if was == Was::Written {
                    block as u8 + 1
                } else {
                    0
                };
                assert_all(&read(&file, block * BLOCK..(block + 1) * BLOCK), value);
            }
        }
        drop(queue);
    }
}

/// What is told beforehand is what happens, for each pattern and policy.
#[test]
fn a5_explanation_of_an_atomic_write_is_what_it_does() {
    let units = AtomicUnits::new(512, CLUSTER as u32).expect("powers of two");
    for (number, policy) in (0..81).zip(Policy::ALL.into_iter().cycle()) {
        let options = MountOptions::new().policy(policy);
        let options = options.commit_interval(Duration::from_secs(3600));
        let bed = Bed::promising(Layout::Clusters, options, units);
        let (file, plain) = (direct(&bed, "/empty"), bed.open("/empty"));
        plain.set_len(16 * CLUSTER as u64).expect("a size");
        for (cluster, len, synced) in [
            (1, RATIO, false),
            (2, RATIO, true),
            (3, 2, true),
            (4, 1, false),
        ] {
            arrange(&plain, cluster, pattern(number));
            if synced {
                plain.sync_all().expect("a sync");
            }
            let offset = (cluster * CLUSTER) as u64;
            let told = file.explain(Direction::AtomicWrite, offset, len * BLOCK, None);
            let told = told.expect("a sound tree");
            let before = bed.stats();
            file.write_at_atomic(&blocks(NEW, len), offset)
                .expect("room");
            let after = bed.stats();
            let name = format!(
                "{policy}: {len} of {:?}, synced: {synced}: {told:?}",
                pattern(number)
            );
            assert_eq!(told.refused, None, "{name}");
            assert_eq!(told.restarts, after.restarts > before.restarts, "{name}");
            assert_eq!(
                told.commits_first,
                after.journal_commits > before.journal_commits,
                "{name}"
            );
            let exclusive = after.writes_exclusive > before.writes_exclusive;
            assert_eq!(told.lock == LockMode::Exclusive, exclusive, "{name}");
        }
    }
    let bed = bed(Layout::Clusters, Policy::Best, CLUSTER as u32);
    let file = direct(&bed, "/data");
    for (len, offset) in [(3 * BLOCK, 0), (2 * BLOCK, BLOCK as u64), (BLOCK / 2, 0)] {
        let told = file.explain(Direction::AtomicWrite, offset, len, None);
        let refused = told.expect("a sound tree").refused;
        assert!(
            refused.is_some_and(|why| why.contains("powers of two")),
            "{len} at {offset}"
        );
    }
}

#[test]
fn a5_aligned_atomic_overwrite_keeps_the_lock_of_its_policy() {
    for policy in Policy::ALL {
        let bed = bed(Layout::Default, policy, 4096);
        let (file, plain) = (direct(&bed, "/data"), bed.open("/data"));
        let locks = || {
            let stats = bed.stats();
            (stats.writes_shared, stats.writes_exclusive)
        };
        let buf = blocks(NEW, 1);
        let before = locks();
        plain.write_at(&buf, 0).expect("room");
        let between = locks();
        file.write_at_atomic(&buf, 0).expect("room");
        let after = locks();
        let moved = |a: (u64, u64), b: (u64, u64)| (b.0 - a.0, b.1 - a.1);
        assert_eq!(moved(before, between), moved(between, after), "{policy}");
    }
}

/// A torn range has some sectors of the new write, and others that are not of it.
fn is_torn(range: &[u8]) -> bool {
    let new = range.iter().filter(|&&byte| byte == NEW).count();
    new != 0 && new != range.len()
}

/// Patterns with something of each kind at the front, in the middle and at the end.
const PATTERNS: [usize; 9] = [0, 40, 80, 2, 54, 7, 19, 73, 32];

#[test]
fn a5_crash_leaves_all_or_nothing_of_an_atomic_write() {
    for number in PATTERNS {
        for synced in [false, true] {
            let bed = bed(Layout::Clusters, Policy::Best, CLUSTER as u32);
            let plain = bed.open("/empty");
            arrange(&plain, 1, pattern(number));
            if synced {
                bed.sync().expect("a sync");
            }
            let file = direct(&bed, "/empty");
            let offset = CLUSTER as u64;
            file.write_at_atomic(&blocks(NEW, RATIO), offset)
                .expect("room");
            bed.sync().expect("a sync");
            bed.each_crash(&mut |fs, name| {
                let range = read(&open_rw(fs, "/empty"), CLUSTER..2 * CLUSTER);
                assert!(!is_torn(&range), "{:?}, {synced}: {name}", pattern(number));
            });
        }
    }
}

// What the map was before is not durable yet, and shows other blocks of the range.
#[test]
fn a5_crash_finds_no_older_map_below_an_atomic_write() {
    use FallocateMode::{PunchHole, ZeroRange};
    for mode in [ZeroRange, PunchHole] {
        for range in [0..2, 1..4, 0..4] {
            let bed = bed(Layout::Clusters, Policy::Best, CLUSTER as u32);
            let plain = bed.open("/data");
            plain
                .allocate(PunchHole, 2 * BLOCK as u64, BLOCK as u64)
                .expect("room");
            bed.sync().expect("a sync");
            let (offset, len) = (
                range.start * BLOCK as u64,
                (range.end - range.start) * BLOCK as u64,
            );
            plain.allocate(mode, offset, len).expect("room");
            let file = direct(&bed, "/data");
            file.write_at_atomic(&blocks(NEW, RATIO), 0).expect("room");
            bed.each_crash(&mut |fs, name| {
                let read = read(&open_rw(fs, "/data"), 0..CLUSTER);
                assert!(!is_torn(&read), "{mode:?} of {range:?}: {name}");
            });
        }
    }
}

#[test]
fn a5_crash_in_an_extending_atomic_write_leaves_all_or_nothing() {
    // `/data` ends in the middle of a block; `/small` has part of one.
    for (path, offset) in [
        ("/empty", 0),
        ("/data", SIZE / CLUSTER * CLUSTER),
        ("/small", 0),
    ] {
        for sync in [false, true] {
            let bed = bed(Layout::Clusters, Policy::Best, CLUSTER as u32);
            let options = OpenOptions::new().write(true).direct(true).dsync(sync);
            let file = options.open(&bed, path).expect("it exists");
            file.write_at_atomic(&blocks(NEW, RATIO), offset as u64)
                .expect("room");
            assert_eq!(file.len(), (offset + CLUSTER) as u64);
            let returned = bed.crash_now();
            bed.sync().expect("a sync");
            bed.each_crash(&mut |fs, name| {
                let range = read(&open_rw(fs, path), offset..offset + CLUSTER);
                assert!(!is_torn(&range), "{path}: {name}");
            });
            if sync {
                recover(&returned, |fs| {
                    let range = read(&open_rw(fs, path), offset..offset + CLUSTER);
                    assert_eq!(range, vec![NEW; CLUSTER], "{path}");
                });
            }
        }
    }
}

#[test]
fn a5_failed_atomic_write_leaves_nothing_of_it() {
    for number in PATTERNS {
        for what in [
            FaultKind::Io(libc::EIO),
            FaultKind::Short,
            FaultKind::Torn(5000),
        ] {
            let bed = bed(Layout::Clusters, Policy::Best, CLUSTER as u32);
            let plain = bed.open("/empty");
            arrange(&plain, 1, pattern(number));
            let (file, size) = (direct(&bed, "/empty"), plain.len());
            // What comes before it: zeros for what holds no data, and the commit of these.
            arrange_zeros(&plain, pattern(number));
            let past = Timestamp { secs: 1, nanos: 0 };
            let past = SetAttributes::new().mtime(past);
            bed.set_attributes("/empty", &past).expect("room");
            bed.sync().expect("a sync");
            let fault = bed.sim.inject(Fault::every(FaultOp::Write, what));
            let error = file.write_at_atomic(&blocks(NEW, RATIO), CLUSTER as u64);
            assert_eq!(error.expect_err("it fails").errno(), libc::EIO);
            bed.sim.remove(fault);
            assert_eq!(plain.len(), size, "{:?}", pattern(number));
            assert!(plain.metadata().mtime.secs > 1, "{:?}", pattern(number));
            let range = read(&plain, CLUSTER..2 * CLUSTER);
            assert!(!range.contains(&NEW), "{:?}", pattern(number));
            file.write_at_atomic(&blocks(NEW, RATIO), CLUSTER as u64)
                .expect("room");
            assert_all(&read(&plain, CLUSTER..2 * CLUSTER), NEW);
        }
    }
}

/// Makes a mixture one kind, so that the data is all there is to write.
fn arrange_zeros(file: &File, pattern: [Was; RATIO]) {
    if pattern.iter().all(|&was| was == pattern[0]) {
        return;
    }
    for at in (0..RATIO).filter(|&at| pattern[at] != Was::Written) {
        let block = (RATIO + at) as u32;
        if u64::from(block) * (BLOCK as u64) < file.len() && kind(file, block) != MapKind::Mapped {
            file.write_at(&blocks(0, 1), u64::from(block) * BLOCK as u64)
                .expect("room");
        }
    }
}

#[test]
fn a5_atomic_writers_of_one_hole_leave_one_of_them() {
    for policy in Policy::ALL {
        let bed = bed(Layout::Clusters, policy, CLUSTER as u32);
        bed.open("/empty")
            .set_len(64 * CLUSTER as u64)
            .expect("a size");
        let writers: Vec<_> = (1..=4u8)
            .map(|value| {
                let file = direct(&bed, "/empty");
                start(move || {
                    for cluster in 0..32 {
                        let offset = (cluster * CLUSTER) as u64;
                        file.write_at_atomic(&blocks(value, RATIO), offset)
                            .expect("room");
                    }
                })
            })
            .collect();
        writers.iter().for_each(finish);
        let all = read_all(&bed.open("/empty"));
        for cluster in all.chunks(CLUSTER).take(32) {
            assert!((1..=4).contains(&cluster[0]), "{policy}");
            assert_all(cluster, cluster[0]);
        }
    }
}
