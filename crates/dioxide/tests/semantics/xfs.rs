//! Section E: the policy `xfs`.

use crate::bed::*;
use dioxide::block::sim::FaultOp;
use dioxide::{Error, File, OpenOptions, Policy};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Instant;

fn write(file: &File, value: u8, offset: usize, len: usize) -> Receiver<dioxide::Result<usize>> {
    let file = file.clone();
    start(move || file.write_at(&bytes(value, len), offset as u64))
}

/// Restarts, writes under the shared lock, under the exclusive, drains.
fn counts(bed: &Bed) -> (u64, u64, u64, u64) {
    let stats = bed.stats();
    (
        stats.restarts,
        stats.writes_shared,
        stats.writes_exclusive,
        stats.drains,
    )
}

#[test]
fn e_misaligned_to_the_sector_is_einval() {
    let bed = Bed::new(Policy::Xfs);
    let file = OpenOptions::new().write(true).direct(true);
    let file = file.open(&bed, "/data").expect("it exists");
    for (offset, len) in [(1, 512), (512, 100), (SIZE as u64, 1)] {
        let error = file.write_at(&bytes(1, len), offset).expect_err("odd");
        assert_eq!(error.errno(), libc::EINVAL);
    }
    file.write_at(&bytes(1, 512), 512).expect("a sector");
}

#[test]
fn e_aligned_extending_writes_run_side_by_side() {
    let bed = Bed::new(Policy::Xfs);
    let file = bed.open("/empty");
    let hold = bed.sim.hold(None, FaultOp::Write);
    let first = write(&file, 1, 0, BLOCK);
    hold.wait_for(1);
    // Both end past i_size, and begin where it is.
    let second = write(&file, 2, 0, 3 * BLOCK);
    hold.wait_for(2);
    assert_eq!(file.len(), 0, "no size before its data");
    hold.release();
    finish(&first).expect("room");
    finish(&second).expect("room");
    assert_eq!(counts(&bed), (0, 2, 0, 0));
    let now = read_all(&file);
    assert_eq!(now.len(), 3 * BLOCK);
    assert_all(&now[BLOCK..], 2);
    assert!(now[0] == 1 || now[0] == 2);
    assert_all(&now[..BLOCK], now[0]);
}

#[test]
fn e_appending_aio_raises_the_size_when_it_ends() {
    let bed = Bed::new(Policy::Xfs);
    let file = bed.open("/empty");
    let mut queue = bed.queue();
    for block in 0..8u8 {
        let at = u64::from(block) * BLOCK as u64;
        queue
            .write(&file, at, blocks(block + 1, 1), 0)
            .expect("room");
    }
    reap_all_ok(&mut queue, 8);
    let now = read_all(&file);
    assert_eq!(now.len(), 8 * BLOCK);
    for (number, block) in now.chunks_exact(BLOCK).enumerate() {
        assert_all(block, number as u8 + 1);
    }
}

#[test]
fn e_aligned_write_behind_a_gap_is_demoted_before_its_io() {
    let bed = Bed::new(Policy::Xfs);
    let file = bed.open("/empty");
    file.write_at(&blocks(1, 4), 0).expect("room");
    let before = counts(&bed);
    assert_eq!(before, (0, 1, 0, 0));
    let hold = bed.sim.hold(None, FaultOp::Write);
    let gap = write(&file, 2, 8 * BLOCK, BLOCK);
    hold.wait_for(1);
    let beside = write(&file, 3, 0, BLOCK);
    assert!(hold.wait_for_timeout(2, SOON), "it was not demoted");
    hold.release();
    finish(&gap).expect("room");
    finish(&beside).expect("an overwrite");
    assert_eq!(counts(&bed), (1, 2, 1, 0));
    let now = read_all(&file);
    assert_eq!(now.len(), 9 * BLOCK);
    assert_all(&now[..BLOCK], 3);
    assert_all(&now[4 * BLOCK..8 * BLOCK], 0);
    assert_all(&now[8 * BLOCK..], 2);
}

/// A thread that is started is not at its lock yet.
fn wait_for_a_restart(bed: &Bed) {
    let until = Instant::now() + SOON;
    while bed.stats().restarts == 0 {
        assert!(Instant::now() < until, "it does not restart");
        thread::yield_now();
    }
}

#[test]
fn e_aligned_write_behind_a_gap_drains_first() {
    let bed = Bed::new(Policy::Xfs);
    let file = bed.open("/data");
    let mut queue = bed.queue();
    let hold = bed.sim.hold(Some(place(&file, 63)), FaultOp::Write);
    queue
        .write(&file, 63 * BLOCK as u64, bytes(1, 512), 0)
        .expect("room");
    queue.submit().expect("a working queue");
    hold.wait_for(1);
    let gap = write(&file, 2, 70 * BLOCK, BLOCK);
    wait_for_a_restart(&bed);
    assert_waits(&gap);
    hold.release();
    reap_all_ok(&mut queue, 1);
    finish(&gap).expect("room");
    assert_eq!(bed.stats().drains, 1);
    assert_all(&read(&file, 63 * BLOCK..63 * BLOCK + 512), 1);
    assert_all(&read(&file, SIZE..70 * BLOCK), 0);
}

// Filling the gap with zeros belongs to what is done alone: a write that came into the last block of the file
// after the demotion must not be zeroed.
#[test]
fn e_gap_is_zeroed_before_the_demotion() {
    let bed = Bed::new(Policy::Xfs);
    let file = bed.open("/small");
    let last = place(&file, 0);
    let hold = bed.sim.hold(Some(last), FaultOp::Read);
    let gap = write(&file, 2, 2 * BLOCK, BLOCK);
    hold.wait_for(1);
    let beside = write(&file, 3, 0, BLOCK);
    let early = beside.recv_timeout(A_WHILE).ok();
    hold.release();
    let written = early.unwrap_or_else(|| finish(&beside));
    assert_eq!(written.expect("room"), BLOCK);
    finish(&gap).expect("room");
    let now = read_all(&file);
    assert_eq!(now.len(), 3 * BLOCK);
    assert_all(&now[..BLOCK], 3);
    assert_all(&now[BLOCK..2 * BLOCK], 0);
    assert_all(&now[2 * BLOCK..], 2);
}

#[test]
fn e_aligned_write_of_a_setuid_file_is_demoted_before_its_io() {
    let bed = Bed::new(Policy::Xfs);
    let file = bed.open("/setuid");
    let hold = bed.sim.hold(Some(place(&file, 0)), FaultOp::Write);
    let first = write(&file, 1, 0, BLOCK);
    hold.wait_for(1);
    assert_eq!(file.metadata().permissions, 0o755);
    let beside = write(&file, 2, BLOCK, BLOCK);
    assert_eq!(finish(&beside).expect("an overwrite"), BLOCK);
    hold.release();
    finish(&first).expect("an overwrite");
    assert_eq!(counts(&bed), (1, 1, 1, 0));
}

#[test]
fn e_unaligned_written_overwrites_run_side_by_side() {
    let bed = Bed::new(Policy::Xfs);
    let file = bed.open("/data");
    let hold = bed.sim.hold(None, FaultOp::Write);
    let writers = [write(&file, 1, 512, 512), write(&file, 2, 1024, 512)];
    hold.wait_for(2);
    hold.release();
    for writer in &writers {
        finish(writer).expect("an overwrite");
    }
    assert_eq!(counts(&bed), (0, 2, 0, 0));
}

#[test]
fn e_unaligned_write_restarts_where_the_mapping_does_not_serve() {
    for (path, offset, len) in [
        ("/hole", 512, 512),
        ("/unwritten", BLOCK + 512, 512),
        // Two mappings.
        ("/unwritten", 3 * BLOCK - 512, 1024),
    ] {
        let bed = Bed::new(Policy::Xfs);
        let file = bed.open(path);
        if offset > 2 * BLOCK {
            file.write_at(&blocks(1, 3), 0).expect("room");
        }
        let before = counts(&bed);
        let result = file.try_write_at(&bytes(2, len), offset as u64);
        assert!(matches!(result, Err(Error::WouldBlock(_))), "{path}");
        file.write_at(&bytes(2, len), offset as u64).expect("room");
        let now = counts(&bed);
        assert_eq!((now.0, now.2), (before.0 + 1, before.2 + 1), "{path}");
        assert_all(&read(&file, offset..offset + len), 2);
    }
}

#[test]
fn e_unaligned_restart_drains() {
    let bed = Bed::new(Policy::Xfs);
    let file = bed.open("/unwritten");
    file.write_at(&blocks(1, 1), 0).expect("room");
    let mut queue = bed.queue();
    let hold = bed.sim.hold(Some(place(&file, 0)), FaultOp::Write);
    queue.write(&file, 0, blocks(2, 1), 0).expect("room");
    queue.submit().expect("a working queue");
    hold.wait_for(1);
    let unaligned = write(&file, 3, BLOCK + 512, 512);
    wait_for_a_restart(&bed);
    assert_waits(&unaligned);
    hold.release();
    reap_all_ok(&mut queue, 1);
    finish(&unaligned).expect("room");
    assert_eq!(bed.stats().drains, 1);
}

// With XFS's `>=`: also one that only ends where the file does.
#[test]
fn e_unaligned_write_up_to_eof_is_exclusive_at_once() {
    for (offset, len) in [(SIZE - 512, 512), (SIZE - 512, 1024), (SIZE + 512, 512)] {
        let bed = Bed::new(Policy::Xfs);
        let file = bed.open("/data");
        file.write_at(&bytes(1, len), offset as u64).expect("room");
        assert_eq!(counts(&bed), (0, 0, 1, 0), "{len} at {offset}");
        let end = SIZE.max(offset + len);
        assert_eq!(file.len(), end as u64);
    }
}
