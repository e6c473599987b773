//! Section D: the invariants, by their numbers, and the rows of the table above them.

use crate::bed::*;
use dioxide::block::sim::{Fault, FaultKind, FaultOp};
use dioxide::{FallocateMode, MapKind, OpenOptions, Policy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SECTOR: usize = 512;

#[test]
fn d01_unaligned_writers_of_one_unwritten_block_keep_both() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        for path in ["/unwritten", "/hole"] {
            let file = bed.open(path);
            let hold = bed.sim.hold(None, FaultOp::Write);
            let write = |value: u8, at: usize| {
                let file = file.clone();
                start(move || file.write_at(&bytes(value, SECTOR), at as u64))
            };
            let first = write(1, BLOCK);
            hold.wait_for(1);
            let second = write(2, BLOCK + SECTOR);
            assert_waits(&second);
            assert_eq!(hold.waiting(), 1, "{policy}: both write at the same time");
            hold.release();
            for writer in [first, second] {
                assert_eq!(finish(&writer).expect("room"), SECTOR, "{policy}");
            }
            let block = read(&file, BLOCK..2 * BLOCK);
            assert_all(&block[..SECTOR], 1);
            assert_all(&block[SECTOR..2 * SECTOR], 2);
            assert_all(&block[2 * SECTOR..], 0);
        }
    }
}

#[test]
fn d01_queued_unaligned_writers_of_one_unwritten_block_keep_all() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/unwritten");
        let mut queue = bed.queue();
        for sector in 0..8 {
            let at = (3 * BLOCK + sector * SECTOR) as u64;
            let data = bytes(sector as u8 + 1, SECTOR);
            queue.write(&file, at, data, 0).expect("room");
        }
        reap_all_ok(&mut queue, 8);
        for sector in 0..8 {
            let at = 3 * BLOCK + sector * SECTOR;
            assert_all(&read(&file, at..at + SECTOR), sector as u8 + 1);
        }
    }
}

// generic/538: what is written beside an unaligned write is never zeroed late.
#[test]
fn d02_unaligned_then_overlapping_aligned_aio_is_safe() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/unwritten");
        let mut queue = bed.queue();
        for block in 0..32 {
            let at = block * BLOCK;
            let (part, whole) = (bytes(1, SECTOR), blocks(2, 1));
            queue
                .write(&file, (at + SECTOR) as u64, part, 0)
                .expect("room");
            queue.write(&file, at as u64, whole, 1).expect("room");
            reap_all_ok(&mut queue, 2);
            let now = read(&file, at..at + BLOCK);
            assert_all(&now[..SECTOR], 2);
            assert_all(&now[2 * SECTOR..], 2);
            let both = &now[SECTOR..2 * SECTOR];
            assert!(both == [1; SECTOR] || both == [2; SECTOR], "{policy}");
        }
    }
}

/// Everything that has the file alone, each on blocks of its own of `/data`; what frees it all comes last.
fn alone() -> Vec<(u64, Job)> {
    let allocate = |mode, at: u64| -> Job {
        Box::new(move |file| file.allocate(mode, at * BLOCK as u64, 2 * BLOCK as u64))
    };
    vec![
        (4, allocate(FallocateMode::PunchHole, 4)),
        (8, allocate(FallocateMode::ZeroRange, 8)),
        (12, allocate(FallocateMode::CollapseRange, 12)),
        (16, allocate(FallocateMode::InsertRange, 16)),
        (20, allocate(FallocateMode::Allocate, 20)),
        (22, allocate(FallocateMode::KeepSize, 22)),
        (24, allocate(FallocateMode::ZeroRangeKeepSize, 24)),
        (28, allocate(FallocateMode::WriteZeroes, 28)),
        (26, Box::new(|file| file.set_len(file.len() + BLOCK as u64))),
        (
            30,
            Box::new(|file| file.set_len(30 * BLOCK as u64 + SECTOR as u64)),
        ),
        (0, Box::new(|file| file.set_len(0))),
    ]
}

type Job = Box<dyn FnOnce(&dioxide::File) -> dioxide::Result<()> + Send>;

// Also the rows on truncate and fallocate: with a request in flight they have the file alone, and drain.
#[test]
fn d06_freed_block_receives_no_late_dio() {
    for policy in Policy::ALL {
        for op in [FaultOp::Write, FaultOp::Read] {
            let bed = Bed::new(policy);
            let file = bed.open("/data");
            let mut queue = bed.queue();
            for (block, job) in alone() {
                let hold = bed.sim.hold(Some(place(&file, block as u32)), op);
                let at = block * BLOCK as u64;
                match op {
                    FaultOp::Write => queue.write(&file, at, blocks(0xA1, 1), 0),
                    _ => queue.read(&file, at, blocks(0, 1), 0),
                }
                .expect("room");
                queue.submit().expect("a working queue");
                hold.wait_for(1);
                let changed = {
                    let file = file.clone();
                    start(move || job(&file))
                };
                assert_waits(&changed);
                hold.release();
                // Its completion does not need the lock that the other waits with: invariant 20.
                reap_all_ok(&mut queue, 1);
                finish(&changed).expect("room");
            }
            assert_eq!(file.len(), 0);
        }
    }
}

// The same for writes that wait in the call, and so hold the lock, or not (pre49+nolock).
#[test]
fn d06_truncate_waits_for_blocking_writes_and_reads() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/data");
        for op in [FaultOp::Write, FaultOp::Read] {
            let hold = bed.sim.hold(Some(place(&file, 2)), op);
            let under_way = {
                let file = file.clone();
                start(move || match op {
                    FaultOp::Write => file.write_at(&blocks(5, 1), 2 * BLOCK as u64),
                    _ => file.read_at(&mut blocks(5, 1), 2 * BLOCK as u64),
                })
            };
            hold.wait_for(1);
            let truncated = {
                let file = file.clone();
                start(move || file.set_len(4 * BLOCK as u64))
            };
            assert_waits(&truncated);
            hold.release();
            finish(&under_way).expect("readable");
            finish(&truncated).expect("a size");
        }
    }
}

/// Runs `jobs`, again and again, each in a thread, while `work` runs.
fn beside(jobs: Vec<Box<dyn FnMut() + Send>>, work: impl FnOnce()) {
    let stop = Arc::new(AtomicBool::new(false));
    let repeat = |mut job: Box<dyn FnMut() + Send>| {
        let stop = stop.clone();
        start(move || {
            while !stop.load(Ordering::Relaxed) {
                job();
            }
        })
    };
    let threads: Vec<_> = jobs.into_iter().map(repeat).collect();
    work();
    stop.store(true, Ordering::Relaxed);
    threads.iter().for_each(finish);
}

/// Reads one block of the first `count` after the other; `judge` is shown those that are inside the file.
fn read_in_turn(
    file: &dioxide::File,
    count: usize,
    judge: fn(usize, &[u8]),
) -> Box<dyn FnMut() + Send> {
    let (file, mut block, mut buf) = (file.clone(), 0, blocks(0, 1));
    Box::new(move || {
        block = (block + 5) % count;
        let len = file
            .read_at(&mut buf, (block * BLOCK) as u64)
            .expect("readable");
        assert!(len == 0 || len == BLOCK, "{len}");
        judge(block, &buf[..len]);
    })
}

/// Blocks that were freed become another file's for a moment.
fn overwrite_freed(bed: &Bed, victim: &dioxide::File) {
    bed.sync().expect("a sync");
    victim.write_at(&blocks(0xEE, BLOCKS), 0).expect("room");
    let whole = (BLOCKS * BLOCK) as u64;
    let freed = victim.allocate(FallocateMode::PunchHole, 0, whole);
    freed.expect("it is allocated");
}

// Truncates that let readers go on, and a victim that gets the freed blocks at once.
#[test]
fn d06_reader_beside_truncates_finds_no_block_of_others() {
    const KEPT: usize = 8;
    for policy in [
        Policy::Pre49,
        Policy::Pre49Nolock,
        Policy::V64,
        Policy::Best,
    ] {
        let bed = Bed::new(policy);
        let (file, victim) = (bed.open("/data"), bed.open("/hole"));
        file.set_len((KEPT * BLOCK) as u64).expect("a size");
        let judge = |block, bytes: &[u8]| {
            assert_all(bytes, if block < KEPT { block as u8 + 1 } else { 0x77 });
        };
        let readers = (0..2)
            .map(|_| read_in_turn(&file, 2 * KEPT, judge))
            .collect();
        beside(readers, || {
            for _ in 0..100 {
                let end = (KEPT * BLOCK) as u64;
                file.write_at(&blocks(0x77, KEPT), end).expect("room");
                file.set_len(end).expect("a size");
                overwrite_freed(&bed, &victim);
            }
        });
    }
}

// Who adds blocks under the shared lock while the file is cut off adds them to the file as it is then.
#[test]
fn d06_writers_beside_truncates_leave_a_sound_file() {
    const KEPT: usize = 8;
    for policy in [Policy::V64, Policy::Newest, Policy::Best, Policy::Xfs] {
        let bed = Bed::new(policy);
        let (file, victim) = (bed.open("/data"), bed.open("/hole"));
        file.set_len((KEPT * BLOCK) as u64).expect("a size");
        let judge = |block, bytes: &[u8]| {
            // Who is late writes behind a gap.
            let in_gap = block >= KEPT && bytes.first() == Some(&0);
            let value = if block < KEPT { block as u8 + 1 } else { 0x77 };
            assert_all(bytes, if in_gap { 0 } else { value });
        };
        let appends = (0..2).map(|_| -> Box<dyn FnMut() + Send> {
            let file = file.clone();
            Box::new(move || {
                let end = file.len().min((5 * KEPT * BLOCK) as u64);
                file.write_at(&blocks(0x77, 1), end)
                    .map(drop)
                    .expect("room");
            })
        });
        let mut jobs: Vec<_> = appends.collect();
        jobs.push(read_in_turn(&file, 6 * KEPT, judge));
        beside(jobs, || {
            for round in 0..100 {
                file.set_len((KEPT * BLOCK) as u64).expect("a size");
                if round % 8 == 0 {
                    overwrite_freed(&bed, &victim);
                }
            }
        });
        for (block, bytes) in read_all(&file).chunks(BLOCK).enumerate() {
            judge(block, bytes);
        }
    }
}

// A writer of queued requests against one who truncates, and a victim that gets the freed blocks.
#[test]
fn d07_count_is_raised_before_the_lock_is_released() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let (file, victim) = (bed.open("/data"), bed.open("/hole"));
        let stop = Arc::new(AtomicBool::new(false));
        let writer = {
            let (file, stop, mut queue) = (file.clone(), stop.clone(), bed.queue());
            start(move || {
                while !stop.load(Ordering::Relaxed) {
                    for block in 0..8 {
                        let at = block * BLOCK as u64;
                        queue.write(&file, at, blocks(0xA7, 1), 0).expect("room");
                    }
                    reap_all_ok(&mut queue, 8);
                }
            })
        };
        for round in 0..6u8 {
            file.set_len(0).expect("a size");
            bed.sync().expect("a sync");
            let mine = blocks(round + 1, 16);
            victim.write_at(&mine, 0).expect("room");
            std::thread::yield_now();
            assert_all(&read(&victim, 0..16 * BLOCK), round + 1);
            let whole = 16 * BLOCK as u64;
            victim
                .allocate(FallocateMode::PunchHole, 0, whole)
                .expect("it is allocated");
        }
        stop.store(true, Ordering::Relaxed);
        finish(&writer);
    }
}

#[test]
fn d08_crash_in_an_extension_leaves_the_old_or_the_new_file() {
    for layout in [Layout::Default, Layout::OrphanList, Layout::Blocks1k] {
        for (offset, len) in [
            (SIZE, 3 * BLOCK),
            (64 * BLOCK, 2 * BLOCK),
            (SIZE + 100, 1000),
            (70 * BLOCK, BLOCK),
        ] {
            let bed = Bed::with(layout, Policy::Best);
            let file = bed.open("/data");
            file.write_at(&bytes(0xA8, len), offset as u64)
                .expect("room");
            file.sync_data().expect("a sync");
            let mut seen = [false; 2];
            bed.each_crash(&mut |fs, state| {
                let now = read_all(&open_rw(fs, "/data"));
                let mut expected = content();
                if now.len() > SIZE {
                    expected.resize(offset, 0);
                    expected.resize(offset + len, 0xA8);
                }
                assert!(now == expected, "{layout:?}, {len} at {offset}: {state}");
                seen[usize::from(now.len() > SIZE)] = true;
            });
            assert_eq!(seen, [true; 2], "crashes before and after");
        }
    }
}

// The data goes to blocks that are known beforehand, so that only it can be held.
#[test]
fn d09_size_on_disk_advances_only_after_data() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let (file, other) = (bed.open("/data"), bed.open("/hole"));
        let end = 66 * BLOCK as u64;
        file.allocate(FallocateMode::KeepSize, 0, end)
            .expect("room");
        bed.sync().expect("a sync");
        let hold = bed.sim.hold(Some(place(&file, 65)), FaultOp::Write);
        let writer = {
            let file = file.clone();
            start(move || file.write_at(&blocks(9, 2), 64 * BLOCK as u64))
        };
        hold.wait_for(1);
        assert_eq!(file.len(), SIZE as u64, "{policy}");
        other.write_at(&blocks(9, 1), 0).expect("room");
        other.sync_all().expect("a sync");
        recover(&bed.crash_now(), |fs| {
            assert!(read_all(&open_rw(fs, "/data")) == content(), "{policy}");
        });
        hold.release();
        finish(&writer).expect("room");
        file.sync_data().expect("a sync");
        recover(&bed.crash_now(), |fs| {
            let file = open_rw(fs, "/data");
            assert_eq!(file.len(), end, "{policy}");
            assert_all(&read(&file, SIZE..64 * BLOCK), 0);
            assert_all(&read(&file, 64 * BLOCK..66 * BLOCK), 9);
        });
    }
}

#[test]
fn d14_failed_device_write_leaves_the_extent_unwritten() {
    for policy in Policy::ALL {
        for len in [BLOCK, SECTOR, 1000] {
            let bed = Bed::new(policy);
            let (file, hole) = (bed.open("/unwritten"), bed.open("/hole"));
            let before = bed.free();
            for (file, was) in [(&file, MapKind::Unwritten), (&hole, MapKind::Hole)] {
                let fault = Fault::once(FaultOp::Write, FaultKind::Io(libc::EIO));
                let fault = bed.sim.inject(fault);
                let error = file
                    .write_at(&bytes(3, len), 5 * BLOCK as u64)
                    .expect_err("the device failed");
                assert_eq!(error.errno(), libc::EIO, "{policy}");
                assert_eq!(bed.sim.remove(fault), Some(1));
                assert_eq!(kind(file, 5), was, "{policy}, {len} bytes");
                assert_all(&read(file, 5 * BLOCK..6 * BLOCK), 0);
            }
            assert_eq!(bed.free(), before, "{policy}, {len} bytes");
            recover(&bed.crash_now(), |fs| {
                let file = open_rw(fs, "/unwritten");
                assert_eq!(kind(&file, 5), MapKind::Unwritten);
            });
        }
    }
}

// The device takes a part of the data and fails. Nothing of what lay there before may show.
#[test]
fn d15_short_device_write_exposes_nothing() {
    for policy in Policy::ALL {
        for what in [FaultKind::Short, FaultKind::Torn(700)] {
            let bed = Bed::new(policy);
            for (path, size) in [("/hole", SIZE), ("/unwritten", UNWRITTEN * BLOCK)] {
                let file = bed.open(path);
                for (offset, len) in [
                    (3 * BLOCK, 2 * BLOCK),
                    (7 * BLOCK + 100, 900),
                    (size, 2 * BLOCK),
                ] {
                    bed.sim.inject(Fault::once(FaultOp::Write, what));
                    file.write_at(&bytes(3, len), offset as u64)
                        .expect_err("the device failed");
                    assert_eq!(file.len(), size as u64, "{policy}: {len} at {offset}");
                    assert_all(&read_all(&file), 0);
                }
                file.set_len(70 * BLOCK as u64).expect("a size");
                assert_all(&read_all(&file), 0);
            }
        }
    }
}

#[test]
fn d16_setuid_is_stripped_before_data() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/setuid");
        let hold = bed.sim.hold(Some(place(&file, 0)), FaultOp::Write);
        let writer = {
            let file = file.clone();
            start(move || file.write_at(&blocks(9, 1), 0))
        };
        hold.wait_for(1);
        assert_eq!(file.metadata().permissions, 0o755, "{policy}");
        bed.open("/empty").sync_all().expect("a sync");
        hold.release();
        finish(&writer).expect("room");
        let stats = bed.stats();
        assert_eq!(
            (stats.writes_exclusive, stats.writes_shared),
            (1, 0),
            "{policy}"
        );
        file.write_at(&blocks(9, 1), 0).expect("room");
        if policy == Policy::Best {
            let restarts = (stats.restarts, bed.stats().restarts);
            assert_eq!(restarts, (1, 1), "nothing is left to strip");
        }
        file.sync_all().expect("a sync");
        recover(&bed.crash_now(), |fs| {
            let found = fs.metadata("/setuid").expect("it exists").permissions;
            assert_eq!(found, 0o755, "{policy}");
        });
    }
}

#[test]
fn d16_capable_writer_keeps_setuid() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let options = OpenOptions::new().write(true).fsetid(true);
        let file = options.open(&bed, "/setuid").expect("it exists");
        file.write_at(&blocks(9, 1), 0).expect("room");
        file.set_len(BLOCK as u64).expect("a size");
        assert_eq!(file.metadata().permissions, 0o4755, "{policy}");
    }
}

// What a write learnt before it had the lock alone does not count: each appends to where the file ends then.
#[test]
fn d17_appends_of_many_threads_do_not_overlap() {
    const EACH: usize = 12;
    for policy in Policy::ALL {
        for len in [BLOCK, 700] {
            let bed = Bed::new(policy);
            let options = OpenOptions::new().read(true).append(true);
            let file = options.open(&bed, "/empty").expect("it exists");
            let write = |value: u8| {
                let file = file.clone();
                start(move || {
                    for _ in 0..EACH {
                        let data = bytes(value, len);
                        assert_eq!(file.write_at(&data, 3).expect("room"), len);
                    }
                })
            };
            let writers = [write(1), write(2), write(3)];
            writers.iter().for_each(finish);
            let all = read_all(&file);
            assert_eq!(all.len(), 3 * EACH * len, "{policy}");
            let mut counts = [0; 4];
            for record in all.chunks_exact(len) {
                assert_all(record, record[0]);
                counts[usize::from(record[0])] += 1;
            }
            assert_eq!(counts, [0, EACH, EACH, EACH], "{policy}");
        }
    }
}

// An append is under way, and somebody else writes where the file ends: one comes before the other.
#[test]
fn d17_append_and_a_write_at_the_end_are_one_after_the_other() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/empty");
        file.allocate(FallocateMode::KeepSize, 0, 4 * BLOCK as u64)
            .expect("room");
        let append = OpenOptions::new().read(true).append(true);
        let append = append.open(&bed, "/empty").expect("it exists");
        let hold = bed.sim.hold(Some(place(&file, 0)), FaultOp::Write);
        let appended = start(move || append.write_at(&blocks(1, 1), 0));
        hold.wait_for(1);
        let other = file.clone();
        let written = start(move || other.write_at(&blocks(2, 1), 0));
        assert!(!hold.wait_for_timeout(2, A_WHILE), "{policy}");
        hold.release();
        finish(&appended).expect("room");
        finish(&written).expect("room");
        let all = read_all(&file);
        match all.len() / BLOCK {
            1 => assert_all(&all, 2),
            _ => assert_all(&all[BLOCK..], 1),
        }
    }
}

#[test]
fn d17_queued_appends_do_not_overlap() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let options = OpenOptions::new().read(true).append(true);
        let file = options.open(&bed, "/empty").expect("it exists");
        let mut queue = bed.queue();
        for value in 1..=8 {
            queue.write(&file, 0, bytes(value, 1000), 0).expect("room");
        }
        reap_all_ok(&mut queue, 8);
        let all = read_all(&file);
        assert_eq!(all.len(), 8000, "{policy}");
        let mut values: Vec<u8> = all.chunks_exact(1000).map(|record| record[0]).collect();
        values.sort_unstable();
        assert_eq!(values, (1..=8).collect::<Vec<u8>>(), "{policy}");
    }
}

// A write that waits for the lock meets another end of the file when it has it.
#[test]
fn d17_write_behind_a_truncate_sees_the_new_end() {
    let mut behind = 0;
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/data");
        let mut queue = bed.queue();
        let hold = bed.sim.hold(Some(place(&file, 1)), FaultOp::Write);
        queue
            .write(&file, BLOCK as u64, blocks(9, 1), 0)
            .expect("room");
        queue.submit().expect("a working queue");
        hold.wait_for(1);
        // It has the lock alone, and waits for the request.
        let truncated = {
            let file = file.clone();
            start(move || file.set_len(4 * BLOCK as u64))
        };
        assert_waits(&truncated);
        let writer = {
            let file = file.clone();
            start(move || file.write_at(&bytes(0x55, 1000), 8 * BLOCK as u64 + 100))
        };
        assert_waits(&writer);
        hold.release();
        reap_all_ok(&mut queue, 1);
        finish(&truncated).expect("a size");
        finish(&writer).expect("room");
        // On a busy machine the writer may come first.
        if file.len() == 4 * BLOCK as u64 {
            continue;
        }
        behind += 1;
        assert_eq!(file.len(), 8 * BLOCK as u64 + 1100, "{policy}");
        assert_all(&read(&file, 4 * BLOCK..8 * BLOCK + 100), 0);
        assert_all(&read(&file, 8 * BLOCK + 100..9 * BLOCK), 0x55);
    }
    assert!(behind > 0, "the writer was never behind");
}

// ext4 falls back to the page cache; here the blocks are filled before they are mapped.
#[test]
fn d19_hole_fill_of_an_indirect_file_exposes_nothing() {
    for (offset, len) in [(5 * BLOCK, 2 * BLOCK), (20 * BLOCK + 100, 5000)] {
        let bed = Bed::with(Layout::Indirect, Policy::Best);
        let file = bed.open("/hole");
        file.write_at(&bytes(0xA9, len), offset as u64)
            .expect("room");
        file.sync_data().expect("a sync");
        let mut expected = vec![0; SIZE];
        expected[offset..offset + len].fill(0xA9);
        let mut all_there = false;
        bed.each_crash(&mut |fs, state| {
            let now = read_all(&open_rw(fs, "/hole"));
            let strange = now
                .iter()
                .zip(&expected)
                .any(|(&now, &new)| now != 0 && now != new);
            assert!(!strange && now.len() == SIZE, "{state}");
            all_there |= now == expected;
        });
        assert!(all_there);
    }
}

#[test]
fn d20_inline_completion_with_the_lock_taken_does_not_wait() {
    // `ilock` always restarts with the lock alone, and a queue leaves that to a worker.
    for policy in Policy::ALL.into_iter().filter(|&p| p != Policy::Ilock) {
        let bed = Bed::new(policy);
        let file = bed.open("/data");
        let mut queue = bed.queue();
        queue.write(&file, 0, blocks(5, 1), 0).expect("room");
        queue.submit().expect("a working queue");
        // It has the lock alone, and waits until the request is reaped.
        let truncated = {
            let file = file.clone();
            start(move || file.set_len(BLOCK as u64))
        };
        assert_waits(&truncated);
        reap_all_ok(&mut queue, 1);
        finish(&truncated).expect("a size");
        assert_eq!(bed.stats().completed_inline, 1, "{policy}");
    }
}

// Under the policies that let both in, both claim blocks; who is second gives them back.
#[test]
fn d21_two_aligned_writers_of_one_hole_allocate_once() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/hole");
        let before = bed.free();
        let hold = bed.sim.hold(None, FaultOp::Write);
        let write = |value: u8, block: usize| {
            let file = file.clone();
            start(move || file.write_at(&blocks(value, 4), (block * BLOCK) as u64))
        };
        let writers = [write(1, 8), write(2, 8), write(3, 10)];
        let shared = matches!(policy, Policy::Newest | Policy::Best | Policy::Xfs);
        let limit = if shared { SOON } else { A_WHILE };
        let together = hold.wait_for_timeout(3, limit);
        assert_eq!(together, shared, "{policy}");
        hold.release();
        for writer in &writers {
            finish(writer).expect("room");
        }
        assert_eq!(before - bed.free(), 6, "{policy}");
        let now = read(&file, 8 * BLOCK..14 * BLOCK);
        for (number, block) in now.chunks_exact(BLOCK).enumerate() {
            assert_all(block, block[0]);
            let writers: &[u8] = match number {
                0..2 => &[1, 2],
                2..4 => &[1, 2, 3],
                _ => &[3],
            };
            assert!(writers.contains(&block[0]), "{policy}: {}", block[0]);
        }
    }
}

#[test]
fn d22_read_across_eof_is_cut_off() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/data");
        let all = content();
        let mut queue = bed.queue();
        for (offset, len) in [
            (SIZE - BLOCK, 3 * BLOCK),
            (SIZE - 512, 512),
            (SIZE - 512, 1024),
            (SIZE, BLOCK),
            (SIZE + BLOCK, BLOCK),
            (62 * BLOCK, 2 * BLOCK),
        ] {
            let expected = &all[offset.min(SIZE)..(offset + len).min(SIZE)];
            assert_eq!(read(&file, offset..offset + len), expected, "{policy}");
            queue
                .read(&file, offset as u64, bytes(0xEE, len), 0)
                .expect("room");
            let done = reap(&mut queue, 1).pop().expect("one");
            assert_eq!(done.result.expect("readable"), expected.len(), "{policy}");
            assert_eq!(&done.buf[..expected.len()], expected, "{policy}");
        }
        let mut buf = vec![0xEE; 3 * BLOCK];
        let across = file.read_at(&mut buf, (SIZE - BLOCK) as u64);
        assert_eq!(across.expect("readable"), BLOCK, "{policy}");
        assert_all(&buf[2 * BLOCK..], 0xEE);
        let behind = file.read_at(&mut buf, u64::MAX - 5000);
        assert_eq!(behind.expect("readable"), 0, "{policy}");
    }
}

// What an extending write adds while a read is under way may be seen or not, but nothing else.
#[test]
fn d22_read_during_an_extension_sees_the_old_or_the_new_end() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/empty");
        let writer = {
            let file = file.clone();
            start(move || {
                for block in 0..40 {
                    let at = (block * BLOCK) as u64;
                    file.write_at(&blocks(6, 1), at).expect("room");
                }
            })
        };
        let mut seen = 0;
        while seen < 40 * BLOCK {
            let now = read(&file, 0..64 * BLOCK);
            assert!(
                now.len() >= seen && now.len().is_multiple_of(BLOCK),
                "{policy}"
            );
            assert_all(&now, 6);
            seen = now.len();
        }
        finish(&writer);
    }
}

#[test]
fn d_table_truncate_is_resumed_after_a_crash() {
    for layout in [Layout::Default, Layout::OrphanList, Layout::Indirect] {
        for size in [0, 100, 3 * BLOCK, SIZE - BLOCK] {
            let bed = Bed::with(layout, Policy::Best);
            let file = bed.open("/data");
            file.set_len(size as u64).expect("a size");
            file.sync_all().expect("a sync");
            let mut seen = [false; 2];
            bed.each_crash(&mut |fs, state| {
                let file = open_rw(fs, "/data");
                let now = read_all(&file);
                assert!(now.len() == size || now.len() == SIZE, "{state}");
                // The rest of the last block is zeroed at any time before the commit, as in ext4.
                let block_end = size.next_multiple_of(BLOCK).min(now.len());
                let old = content();
                assert!(now[..size] == old[..size], "{layout:?}, {size}: {state}");
                let rest = now[size..block_end].iter().zip(&old[size..]);
                assert!(rest.into_iter().all(|(now, old)| *now == 0 || now == old));
                assert!(now[block_end..] == old[block_end..now.len()], "{state}");
                seen[usize::from(now.len() == size)] = true;
                // What was cut off does not come back.
                file.set_len(now.len() as u64 + BLOCK as u64)
                    .expect("a size");
                assert_all(&read(&file, now.len()..SIZE + BLOCK), 0);
            });
            assert_eq!(seen, [true; 2], "crashes before and after");
        }
    }
}

// i_size and what is on the disk change together: also when it grows.
#[test]
fn d_table_truncate_up_reads_zeros() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/small");
        file.write_at(&blocks(8, 1), 0).expect("room");
        file.set_len(1000).expect("a size");
        file.set_len(9000).expect("a size");
        assert_all(&read(&file, 0..1000), 8);
        assert_all(&read(&file, 1000..9000), 0);
        file.sync_data().expect("a sync");
        recover(&bed.crash_now(), |fs| {
            let now = read_all(&open_rw(fs, "/small"));
            assert_eq!(now.len(), 9000);
            assert_all(&now[1000..], 0);
        });
    }
}

#[test]
fn d_table_fallocate_strips_privileges_in_every_mode() {
    let modes = [
        FallocateMode::Allocate,
        FallocateMode::KeepSize,
        FallocateMode::PunchHole,
        FallocateMode::ZeroRange,
        FallocateMode::ZeroRangeKeepSize,
        FallocateMode::WriteZeroes,
        FallocateMode::CollapseRange,
        FallocateMode::InsertRange,
    ];
    for mode in modes {
        let bed = Bed::new(Policy::Best);
        let file = bed.open("/setuid");
        file.allocate(mode, BLOCK as u64, BLOCK as u64)
            .expect("room");
        assert_eq!(file.metadata().permissions, 0o755, "{mode:?}");
    }
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/setuid");
    file.set_len(5).expect("a size");
    assert_eq!(file.metadata().permissions, 0o755);
}

// Blocks become written once they are zeros: no crash shows what lay there before.
#[test]
fn d_table_write_zeroes_makes_written_blocks_and_exposes_nothing() {
    for (path, offset, len) in [
        ("/hole", 5 * BLOCK + 100, 20 * BLOCK),
        ("/unwritten", BLOCK, 9 * BLOCK),
        ("/data", 700, 80 * BLOCK),
        ("/data", SIZE + 3 * BLOCK, 1000),
    ] {
        let bed = Bed::new(Policy::Best);
        let file = bed.open(path);
        let (before, end) = (read_all(&file), offset + len);
        file.allocate(FallocateMode::WriteZeroes, offset as u64, len as u64)
            .expect("room");
        let mut expected = before.clone();
        expected.resize(before.len().max(end), 0);
        expected[offset..end].fill(0);
        assert!(read_all(&file) == expected, "{path}, {len} at {offset}");
        let mut touched = offset / BLOCK..end.div_ceil(BLOCK);
        assert!(touched.all(|lblk| kind(&file, lblk as u32) == MapKind::Mapped));
        file.sync_data().expect("a sync");
        let mut all_there = false;
        bed.each_crash(&mut |fs, state| {
            let now = read_all(&open_rw(fs, path));
            let mut bytes = now.iter().enumerate();
            let sound = bytes.all(|(at, byte)| *byte == 0 || before.get(at) == Some(byte));
            assert!(sound, "{path}, {len} at {offset}: {state}");
            all_there |= now == expected;
        });
        assert!(all_there, "{path}, {len} at {offset}");
    }
}

// fsync takes no lock and waits for nothing in flight.
#[test]
fn d_table_fsync_does_not_wait_for_writes_in_flight() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/data");
        file.write_at(&blocks(1, 1), 5 * BLOCK as u64)
            .expect("room");
        let mut queue = bed.queue();
        let hold = bed.sim.hold(Some(place(&file, 1)), FaultOp::Write);
        queue
            .write(&file, BLOCK as u64, blocks(9, 1), 0)
            .expect("room");
        queue.submit().expect("a working queue");
        hold.wait_for(1);
        let truncated = {
            let file = file.clone();
            start(move || file.set_len(16 * BLOCK as u64))
        };
        assert_waits(&truncated);
        for data in [true, false] {
            let file = file.clone();
            let synced = start(move || match data {
                true => file.sync_data(),
                false => file.sync_all(),
            });
            finish(&synced).expect("a sync");
        }
        hold.release();
        reap_all_ok(&mut queue, 1);
        finish(&truncated).expect("a size");
    }
}
