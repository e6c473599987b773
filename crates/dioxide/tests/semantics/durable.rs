//! Section A7: what is on the media when a durable write returns.
//!
//! The worst crash that the device allows is made at the moment at which the call returns: what was not
//! flushed, and not written with force unit access, is lost.

use crate::bed::*;
use dioxide::block::record::Action;
use dioxide::block::sim::{Fault, FaultKind, FaultOp};
use dioxide::{FallocateMode, File, MountOptions, OpenOptions, Policy, SetAttributes, Timestamp};

/// Writes of the device since `from` with and without force unit access, and flushes.
fn counted(bed: &Bed, from: u64) -> (usize, usize, usize) {
    let log = bed.record.log();
    let mut counts = (0, 0, 0);
    for entry in log.entries().iter().filter(|entry| entry.issued >= from) {
        match entry.action {
            Action::Write { fua: true, .. } => counts.0 += 1,
            Action::Flush => counts.2 += 1,
            _ => counts.1 += 1,
        }
    }
    counts
}

/// `O_DSYNC` and `O_SYNC`.
fn modes() -> [(&'static str, OpenOptions); 2] {
    let options = OpenOptions::new().read(true).write(true);
    [
        ("dsync", options.clone().dsync(true)),
        ("sync", options.sync(true)),
    ]
}

#[test]
fn a7_dsync_overwrite_with_nothing_pending_is_one_fua_write() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = OpenOptions::new().write(true).dsync(true);
        let file = file.open(&bed, "/data").expect("it exists");
        for (offset, len) in [(0, BLOCK), (3 * BLOCK + 512, 1024), (8 * BLOCK, 4 * BLOCK)] {
            let from = bed.record.now();
            file.write_at(&bytes(0xF1, len), offset as u64)
                .expect("an overwrite");
            assert_eq!(
                counted(&bed, from),
                (1, 0, 0),
                "{policy}: {len} at {offset}"
            );
        }
        recover(&bed.crash_now(), |fs| {
            let file = open_rw(fs, "/data");
            assert_all(&read(&file, 0..BLOCK), 0xF1);
            assert_all(&read(&file, 8 * BLOCK..12 * BLOCK), 0xF1);
        });
    }
}

/// A queue that has one write of a handle that is durable, and how it went.
fn queued(bed: &Bed, file: &File, offset: usize, value: u8) -> Result<usize, i32> {
    let mut queue = bed.queue();
    let buf = blocks(value, 1);
    queue.write(file, offset as u64, buf, 0).expect("room");
    let result = reap(&mut queue, 1).remove(0).result;
    result.map_err(|error| error.errno())
}

#[test]
fn a7_queued_dsync_overwrite_with_nothing_pending_is_one_fua_write_of_the_queue() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = OpenOptions::new().write(true).dsync(true);
        let file = file.open(&bed, "/data").expect("it exists");
        file.preload_map().expect("a sound tree");
        let went = |file: &File| {
            let before = bed.stats();
            assert_eq!(queued(&bed, file, 8 * BLOCK, 0xF1), Ok(BLOCK));
            let done = bed.stats().since(&before);
            (done.punts, done.completed_inline)
        };
        let plain = went(&bed.open("/data"));
        let from = bed.record.now();
        assert_eq!(went(&file), plain, "{policy}");
        assert_eq!(counted(&bed, from), (1, 0, 0), "{policy}");
        assert!(policy != Policy::Best || plain == (0, 1), "{plain:?}");
        recover(&bed.crash_now(), |fs| {
            assert_all(&read(&open_rw(fs, "/data"), 8 * BLOCK..9 * BLOCK), 0xF1)
        });
        let from = bed.record.now();
        if file.try_write_at(&blocks(0xF2, 1), 0).is_ok() {
            assert_eq!(counted(&bed, from), (1, 0, 0), "{policy}");
        }
    }
}

#[test]
fn a7_queued_dsync_overwrite_with_a_change_pending_commits() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        bed.open("/hole").write_at(&blocks(1, 1), 0).expect("room");
        let file = OpenOptions::new().write(true).dsync(true);
        let file = file.open(&bed, "/hole").expect("it exists");
        let before = bed.stats();
        assert_eq!(queued(&bed, &file, 0, 0xF3), Ok(BLOCK));
        assert_eq!(bed.stats().since(&before).punts, 1, "{policy}");
        recover(&bed.crash_now(), |fs| {
            assert_all(&read(&open_rw(fs, "/hole"), 0..BLOCK), 0xF3)
        });
    }
}

// The blocks are written, but a crash would forget that: the write alone would be lost.
#[test]
fn a7_dsync_overwrite_with_a_change_pending_commits() {
    for policy in Policy::ALL {
        for (path, block) in [("/hole", 4), ("/unwritten", 4), ("/data", 70)] {
            let bed = Bed::new(policy);
            let at = block * BLOCK as u64;
            bed.open(path).write_at(&blocks(1, 1), at).expect("room");
            let file = OpenOptions::new().write(true).dsync(true);
            let file = file.open(&bed, path).expect("it exists");
            let from = bed.record.now();
            file.write_at(&blocks(0xF2, 1), at).expect("an overwrite");
            assert!(counted(&bed, from).2 > 0, "{policy}, {path}: no flush");
            recover(&bed.crash_now(), |fs| {
                let file = open_rw(fs, path);
                let at = at as usize;
                assert_all(&read(&file, at..at + BLOCK), 0xF2);
            });
            // Now it is not pending any more.
            let from = bed.record.now();
            file.write_at(&blocks(0xF3, 1), at).expect("an overwrite");
            assert_eq!(counted(&bed, from), (1, 0, 0), "{policy}, {path}");
        }
    }
}

// It is no sync: what another write left in the device's cache may be lost after it.
#[test]
fn a7_dsync_overwrite_covers_no_earlier_write() {
    let bed = Bed::new(Policy::Best);
    let old = read(&bed.open("/data"), 0..BLOCK);
    let file = OpenOptions::new().write(true).dsync(true);
    let file = file.open(&bed, "/data").expect("it exists");
    let plain = bed.open("/data").write_at(&blocks(0xF5, 1), 0);
    plain.expect("an overwrite");
    file.write_at(&blocks(0xF6, 1), 8 * BLOCK as u64)
        .expect("an overwrite");
    let after = |first: &dyn Fn(Vec<u8>)| {
        recover(&bed.crash_now(), |fs| {
            let file = open_rw(fs, "/data");
            assert_all(&read(&file, 8 * BLOCK..9 * BLOCK), 0xF6);
            first(read(&file, 0..BLOCK));
        });
    };
    after(&|first| assert_eq!(first, old));
    bed.open("/data").sync_data().expect("a sync");
    after(&|first| assert_all(&first, 0xF5));
}

// What a file's times do is nothing that its data needs.
#[test]
fn a7_dsync_overwrite_with_only_times_pending_is_fua() {
    let bed = Bed::new(Policy::Best);
    let file = OpenOptions::new().write(true).dsync(true);
    let file = file.open(&bed, "/data").expect("it exists");
    bed.open("/data").write_at(&blocks(1, 1), 0).expect("room");
    let from = bed.record.now();
    file.write_at(&blocks(1, 1), 0).expect("an overwrite");
    assert_eq!(counted(&bed, from), (1, 0, 0));
}

// The device has the block of two extents in two places: no one write is all of it.
#[test]
fn a7_dsync_overwrite_of_two_extents_flushes() {
    let bed = Bed::new(Policy::Best);
    let plain = bed.open("/data");
    let one = BLOCK as u64;
    plain
        .allocate(FallocateMode::InsertRange, 4 * one, one)
        .expect("room");
    plain.write_at(&blocks(1, 1), 4 * one).expect("room");
    bed.sync().expect("a sync");
    let file = OpenOptions::new().write(true).dsync(true);
    let file = file.open(&bed, "/data").expect("it exists");
    file.write_at(&blocks(0xF4, 4), 2 * one)
        .expect("an overwrite");
    recover(&bed.crash_now(), |fs| {
        let file = open_rw(fs, "/data");
        assert_all(&read(&file, 2 * BLOCK..6 * BLOCK), 0xF4);
    });
}

#[test]
fn a7_nobarrier_overwrite_forces_nothing() {
    let bed = Bed::on(Layout::Default, MountOptions::new().barrier(false));
    let file = OpenOptions::new().write(true).dsync(true);
    let file = file.open(&bed, "/data").expect("it exists");
    let from = bed.record.now();
    file.write_at(&blocks(1, 1), 0).expect("an overwrite");
    assert_eq!(counted(&bed, from), (0, 1, 0));
}

/// A write that must be there after a crash at its return: file, offset, length.
const PLACES: [(&str, usize, usize); 12] = [
    ("/unwritten", 4 * BLOCK, 2 * BLOCK),
    ("/unwritten", 4 * BLOCK + 512, 512),
    ("/hole", 8 * BLOCK, BLOCK),
    ("/hole", 8 * BLOCK + 700, 5000),
    ("/hole", SIZE - 512, 512),
    ("/empty", 0, BLOCK),
    ("/empty", 0, 1),
    ("/small", 1000, 24),
    ("/data", SIZE, BLOCK / 2),
    ("/data", 63 * BLOCK, 3 * BLOCK),
    ("/data", 64 * BLOCK, 2 * BLOCK),
    ("/data", 70 * BLOCK + 9, 100),
];

fn check_durable(policy: Policy, layout: Layout, (path, offset, len): (&str, usize, usize)) {
    for (name, options) in modes() {
        for queued in [false, true] {
            let bed = Bed::with(layout, policy);
            let file = options.open(&bed, path).expect("it exists");
            let data = bytes(0xF5, len);
            if queued {
                let mut queue = bed.queue();
                queue.write(&file, offset as u64, data, 0).expect("room");
                reap_all_ok(&mut queue, 1);
            } else {
                file.write_at(&data, offset as u64).expect("room");
            }
            let (size, mtime) = (file.len(), file.metadata().mtime);
            recover(&bed.crash_now(), |fs| {
                let file = open_rw(fs, path);
                let what = format!("{policy}, {name}, {layout:?}: {len} at {offset} of {path}");
                assert_eq!(file.len(), size, "{what}");
                let now = read(&file, offset..offset + len);
                assert!(now == vec![0xF5; len], "{what}");
                if name == "sync" {
                    assert_eq!(file.metadata().mtime, mtime, "{what}");
                }
            });
        }
    }
}

/// One of each way to lock.
const POLICIES: [Policy; 3] = [Policy::Pre49Nolock, Policy::Best, Policy::Xfs];

fn extends(&(path, offset, len): &(&str, usize, usize)) -> bool {
    match path {
        "/unwritten" => false,
        "/empty" | "/small" => true,
        _ => offset + len > SIZE,
    }
}

#[test]
fn d10_durable_extending_write_keeps_its_size() {
    for policy in POLICIES {
        for place in PLACES.into_iter().filter(extends) {
            check_durable(policy, Layout::Default, place);
        }
    }
}

#[test]
fn d11_dsync_to_unwritten_and_holes_never_skips_the_commit() {
    for policy in POLICIES {
        for place in PLACES.into_iter().filter(|place| !extends(place)) {
            check_durable(policy, Layout::Default, place);
        }
    }
}

#[test]
fn d11_durable_writes_of_other_layouts_are_there() {
    for layout in [Layout::Blocks1k, Layout::Indirect] {
        for place in PLACES.into_iter().skip(1).step_by(2) {
            check_durable(Policy::Best, layout, place);
        }
    }
}

// Through every crash until it returns: old or new, never what lay there before; after it: new.
#[test]
fn d11_dsync_write_exposes_nothing_on_its_way() {
    for (path, offset, len) in PLACES {
        let bed = Bed::new(Policy::Best);
        let file = OpenOptions::new().read(true).write(true).dsync(true);
        let file = file.open(&bed, path).expect("it exists");
        let mut old = read_all(&file);
        file.write_at(&bytes(0xF6, len), offset as u64)
            .expect("room");
        let new = read_all(&file);
        bed.each_crash(&mut |fs, state| {
            let now = read_all(&open_rw(fs, path));
            old.resize(now.len(), 0);
            let good = now
                .iter()
                .enumerate()
                .all(|(at, &byte)| byte == old[at] || Some(&byte) == new.get(at));
            assert!(good, "{len} at {offset} of {path}: {state}");
        });
    }
}

// Without a journal metadata goes to its place, and leads to the data from there.
#[test]
fn d11_without_a_journal_data_is_flushed_before_what_leads_to_it() {
    let bed = Bed::with(Layout::NoJournal, Policy::Best);
    let file = bed.open("/empty");
    let from = bed.record.now();
    file.write_at(&blocks(0xF8, 2), 0).expect("room");
    file.sync_data().expect("a sync");
    let data = place(&file, 0).start..place(&file, 1).end;
    let log = bed.record.log();
    let since = log.entries().iter().filter(|entry| entry.issued >= from);
    let kinds: Vec<_> = since
        .map(|entry| match &entry.action {
            Action::Flush => "flush",
            Action::Write { offset, .. } if data.contains(offset) => "data",
            _ => "metadata",
        })
        .collect();
    let first = kinds.iter().position(|&kind| kind == "metadata");
    let before = &kinds[..first.expect("the file is longer")];
    assert_eq!(before, ["data", "flush"], "{kinds:?}");
    assert_eq!(kinds.last(), Some(&"flush"));
}

fn mtime_after_crash(bed: &Bed, path: &str) -> Timestamp {
    let mut found = None;
    recover(&bed.crash_now(), |fs| {
        found = Some(fs.metadata(path).expect("it exists").mtime);
    });
    found.expect("it was looked at")
}

#[test]
fn a7_o_sync_overwrite_includes_the_times_and_o_dsync_does_not() {
    let long_ago = Timestamp {
        secs: 1_000_000_000,
        nanos: 1,
    };
    for (name, options) in modes() {
        for policy in Policy::ALL {
            let bed = Bed::new(policy);
            let set = SetAttributes::new().mtime(long_ago);
            bed.set_attributes("/data", &set).expect("own file");
            bed.sync().expect("a sync");
            let file = options.open(&bed, "/data").expect("it exists");
            file.write_at(&blocks(1, 1), 0).expect("an overwrite");
            let in_memory = file.metadata().mtime;
            assert!(in_memory > long_ago, "{policy}");
            let expected = if name == "sync" { in_memory } else { long_ago };
            assert_eq!(
                mtime_after_crash(&bed, "/data"),
                expected,
                "{policy}, {name}"
            );
        }
    }
}

// First the lock, then the flush.
#[test]
fn a7_others_go_on_while_a_durable_write_is_made_durable() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/hole");
        file.write_at(&blocks(1, 1), 0).expect("room");
        bed.sync().expect("a sync");
        let durable = OpenOptions::new().write(true).dsync(true);
        let durable = durable.open(&bed, "/hole").expect("it exists");
        let hold = bed.sim.hold(None, FaultOp::Flush);
        let fill = start(move || durable.write_at(&blocks(2, 1), 8 * BLOCK as u64));
        hold.wait_for(1);
        let others = start(move || {
            file.write_at(&blocks(3, 1), 0).expect("an overwrite");
            (read(&file, 0..BLOCK), read(&file, 8 * BLOCK..9 * BLOCK))
        });
        let (overwritten, filled) = finish(&others);
        assert_all(&overwritten, 3);
        assert_all(&filled, 2);
        assert_waits(&fill);
        hold.release();
        finish(&fill).expect("room");
    }
}

#[test]
fn a7_dsync_appends_are_each_durable() {
    let bed = Bed::new(Policy::Best);
    let file = OpenOptions::new().append(true).dsync(true);
    let file = file.open(&bed, "/empty").expect("it exists");
    file.write_at(&bytes(1, 100), 0).expect("room");
    for round in 2..6 {
        let from = bed.record.now();
        file.write_at(&bytes(round, 100), 0).expect("room");
        let (fua, plain, flushes) = counted(&bed, from);
        assert!(fua + flushes > 0 && plain > 0, "{fua}, {plain}, {flushes}");
        recover(&bed.crash_now(), |fs| {
            let now = read_all(&open_rw(fs, "/empty"));
            assert_eq!(now.len(), 100 * usize::from(round));
            assert_all(&now[now.len() - 100..], round);
        });
    }
}

#[test]
fn a7_dsync_after_fallocate_keep_size_is_durable() {
    for policy in POLICIES {
        let bed = Bed::new(policy);
        bed.open("/data")
            .allocate(FallocateMode::KeepSize, 0, 80 * BLOCK as u64)
            .expect("room");
        let file = OpenOptions::new().write(true).dsync(true);
        let file = file.open(&bed, "/data").expect("it exists");
        file.write_at(&blocks(0xF7, 2), 70 * BLOCK as u64)
            .expect("room");
        recover(&bed.crash_now(), |fs| {
            let file = open_rw(fs, "/data");
            assert_eq!(file.len(), 72 * BLOCK as u64, "{policy}");
            assert_all(&read(&file, SIZE..70 * BLOCK), 0);
            assert_all(&read(&file, 70 * BLOCK..72 * BLOCK), 0xF7);
        });
    }
}

/// A change of what a file has, its name, and what it leaves to be seen of `/data`, which had [`SIZE`] bytes.
type Change = (&'static str, fn(&dioxide::File) -> dioxide::Result<()>);

const CHANGES: [Change; 10] = [
    ("shorter", |file| file.set_len(5 * BLOCK as u64)),
    ("shorter, inside a block", |file| file.set_len(100)),
    ("longer", |file| file.set_len(90 * BLOCK as u64)),
    ("allocate", |file| {
        file.allocate(FallocateMode::Allocate, SIZE as u64, 9 * BLOCK as u64)
    }),
    ("keep size", |file| {
        file.allocate(FallocateMode::KeepSize, SIZE as u64, 9 * BLOCK as u64)
    }),
    ("punch", |file| {
        file.allocate(FallocateMode::PunchHole, BLOCK as u64, 5000)
    }),
    ("zero", |file| {
        file.allocate(FallocateMode::ZeroRange, 700, 9 * BLOCK as u64)
    }),
    ("write zeros", |file| {
        file.allocate(FallocateMode::WriteZeroes, 700, 9 * BLOCK as u64)
    }),
    ("collapse", |file| {
        file.allocate(FallocateMode::CollapseRange, 0, BLOCK as u64)
    }),
    ("insert", |file| {
        file.allocate(FallocateMode::InsertRange, 0, BLOCK as u64)
    }),
];

/// All that a change may change, but times.
fn seen(file: &dioxide::File) -> (u64, u64, Vec<u8>) {
    (file.len(), file.metadata().blocks, read_all(file))
}

fn set_sync_flag(bed: &Bed, on: bool) {
    let flags = bed.metadata("/data").expect("it exists").flags;
    let sync = dioxide_format::inode::InodeFlags::SYNC.0;
    let flags = if on { flags | sync } else { flags & !sync };
    let set = SetAttributes::new().flags(flags);
    bed.set_attributes("/data", &set).expect("own file");
    bed.sync().expect("a sync");
}

/// Makes the change, and compares what is seen with what is seen after a crash at its return.
fn check_change(bed: &Bed, file: &dioxide::File, (name, change): Change, durable: bool) {
    let before = seen(file);
    change(file).unwrap_or_else(|error| panic!("{name}: {error}"));
    let after = seen(file);
    assert!(before != after, "{name}: nothing changes");
    recover(&bed.crash_now(), |fs| {
        let now = seen(&open_rw(fs, "/data"));
        assert_eq!(now == after, durable, "{name}");
    });
}

// As ext4: fallocate of an O_SYNC file commits, and a truncate of an inode with the flag. Here each is so for both.
#[test]
fn a7_truncate_and_fallocate_of_a_synchronous_handle_are_durable() {
    for (_, options) in modes() {
        for change in CHANGES {
            let bed = Bed::new(Policy::Best);
            let file = options.open(&bed, "/data").expect("it exists");
            check_change(&bed, &file, change, true);
        }
    }
}

#[test]
fn a7_truncate_on_opening_with_o_sync_is_durable() {
    for (_, options) in modes() {
        let bed = Bed::new(Policy::Best);
        let file = options
            .truncate(true)
            .open(&bed, "/data")
            .expect("it exists");
        assert!(file.is_empty());
        recover(&bed.crash_now(), |fs| {
            assert!(open_rw(fs, "/data").is_empty())
        });
    }
}

#[test]
fn a7_flag_sync_counts_from_when_it_is_set_until_it_is_taken_away() {
    let write: Change = ("write", |file| {
        file.write_at(&blocks(0xF8, 1), 70 * BLOCK as u64).map(drop)
    });
    for change in CHANGES.into_iter().chain([write]) {
        let bed = Bed::new(Policy::Best);
        let file = bed.open("/data");
        set_sync_flag(&bed, true);
        check_change(&bed, &file, change, true);
        set_sync_flag(&bed, false);
        let longer: Change = ("longer", |file| file.set_len(99 * BLOCK as u64));
        check_change(&bed, &file, longer, false);
    }
}

#[test]
fn a7_flag_sync_makes_overwrites_durable_whichever_way_they_go() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/data");
        file.write_at(&blocks(1, 1), 0).expect("an overwrite");
        set_sync_flag(&bed, true);
        file.write_at(&blocks(0xFA, 1), 0).expect("an overwrite");
        let mut queue = bed.queue();
        let at = 2 * BLOCK as u64;
        queue.write(&file, at, blocks(0xFB, 1), 0).expect("room");
        reap_all_ok(&mut queue, 1);
        let mtime = file.metadata().mtime;
        recover(&bed.crash_now(), |fs| {
            let file = open_rw(fs, "/data");
            assert_all(&read(&file, 0..BLOCK), 0xFA);
            assert_all(&read(&file, 2 * BLOCK..3 * BLOCK), 0xFB);
            assert_eq!(file.metadata().mtime, mtime, "{policy}");
        });
    }
}

// O_SYNC | O_DSYNC is O_SYNC, in whatever order they are said.
#[test]
fn a7_of_dsync_and_sync_the_stronger_counts() {
    let long_ago = Timestamp {
        secs: 1_000_000_000,
        nanos: 1,
    };
    let options = || OpenOptions::new().read(true).write(true);
    for (options, data, times) in [
        (options().dsync(true).sync(true), true, true),
        (options().sync(true).dsync(true), true, true),
        (options().sync(true).dsync(false), true, true),
        (options().dsync(true).sync(false), true, false),
        (options().sync(false).dsync(true), true, false),
        (options().sync(true).sync(false), false, false),
    ] {
        let bed = Bed::new(Policy::Best);
        let set = SetAttributes::new().mtime(long_ago);
        bed.set_attributes("/data", &set).expect("own file");
        bed.sync().expect("a sync");
        let file = options.open(&bed, "/data").expect("it exists");
        file.write_at(&blocks(0xFC, 1), 0).expect("an overwrite");
        recover(&bed.crash_now(), |fs| {
            let now = read(&open_rw(fs, "/data"), 0..BLOCK);
            assert_eq!(now == vec![0xFC; BLOCK], data, "{options:?}");
        });
        let kept = mtime_after_crash(&bed, "/data") > long_ago;
        assert_eq!(kept, times, "{options:?}");
    }
}

/// A write, and another with force unit access, which fails so often; its error, and what a sync of the first says.
fn after_failed_dsync(times: u64, is_queued: bool) -> (i32, dioxide::Result<()>) {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    file.write_at(&blocks(1, 1), 0).expect("an overwrite");
    let durable = OpenOptions::new().write(true).dsync(true);
    let durable = durable.open(&bed, "/data").expect("it exists");
    durable.preload_map().expect("a sound tree");
    let fault = Fault {
        count: times,
        ..Fault::once(FaultOp::Write, FaultKind::Io(libc::EIO))
    };
    bed.sim.inject(fault);
    let errno = match is_queued {
        true => queued(&bed, &durable, 8 * BLOCK, 2).expect_err("a fault"),
        false => {
            let failed = durable.write_at(&blocks(2, 1), 8 * BLOCK as u64);
            failed.expect_err("a fault").errno()
        }
    };
    let synced = file.sync_data();
    drop((file, durable));
    bed.abandon();
    (errno, synced)
}

// What it is that failed, the write or the flush that came with it, no error says.
#[test]
fn a7_failed_dsync_overwrite_may_have_lost_what_others_wrote() {
    for is_queued in [false, true] {
        let (errno, synced) = after_failed_dsync(1, is_queued);
        assert_eq!(errno, libc::EIO);
        let error = synced.expect_err("the device may have dropped it");
        assert_eq!(error.errno(), libc::EROFS);
    }
}

#[test]
fn a7_dsync_overwrite_of_a_bad_sector_is_its_own_error() {
    for is_queued in [false, true] {
        let (errno, synced) = after_failed_dsync(2, is_queued);
        assert_eq!(errno, libc::EIO);
        synced.expect("the first write is on the device");
    }
}

// The kernel tells an error of what was written behind its back once, to whichever flush comes first.
#[test]
fn a7_sync_beside_another_whose_flush_fails_fails_too() {
    let bed = Bed::new(Policy::Best);
    let sync_a_write = |block: u64| {
        let file = bed.open("/data");
        let written = file.write_at(&blocks(1, 1), block * BLOCK as u64);
        written.expect("an overwrite");
        start(move || file.sync_data())
    };
    let hold = bed.sim.hold(None, FaultOp::Flush);
    let flush = Fault::once(FaultOp::Flush, FaultKind::Io(libc::EIO));
    bed.sim.inject(flush);
    let first = sync_a_write(0);
    hold.wait_for(1);
    let second = sync_a_write(8);
    assert_waits(&second);
    hold.release();
    finish(&first).expect_err("its flush failed");
    finish(&second).expect_err("its data may have been lost with that");
    bed.abandon();
}
