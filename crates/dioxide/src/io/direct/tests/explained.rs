//! What is told of a request beforehand is what becomes of it: the rows of `docs/SEMANTICS.md` A3, under every policy.

use super::*;
use crate::policy::{IoLock, LockMode};
use crate::{Direction, SetAttributes};

/// So many blocks has a file here, the last one half.
const LEN: usize = 16 * BLOCK - BLOCK / 2;

/// What a file is like; block 0 is written in all.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// One written extent.
    Written,
    /// Two, which lie apart between blocks 4 and 5.
    TwoExtents,
    /// Unwritten but for blocks 0 and 4.
    Unwritten,
    /// Holes but for block 0.
    Hole,
    /// A hole at block 5.
    Punched,
    /// Written, and set-user-ID.
    Setuid,
}
use Shape::*;

/// A file, and where a write of it begins and how long it is.
type Row = (Shape, usize, usize);

const ROWS: [Row; 20] = [
    // Aligned.
    (Written, 4 * BLOCK, BLOCK),
    (Unwritten, 8 * BLOCK, BLOCK),
    (Hole, 8 * BLOCK, BLOCK),
    (TwoExtents, 4 * BLOCK, 2 * BLOCK),
    (Unwritten, 4 * BLOCK, 2 * BLOCK),
    (Written, 15 * BLOCK, 2 * BLOCK),
    (Hole, 15 * BLOCK, 2 * BLOCK),
    (Written, 20 * BLOCK, BLOCK),
    (Setuid, 4 * BLOCK, BLOCK),
    // Unaligned, in logical blocks.
    (Written, 4 * BLOCK + 512, 512),
    (Written, LEN - 1024, 1024),
    (TwoExtents, 4 * BLOCK + 512, BLOCK),
    (Punched, 4 * BLOCK + 512, 2 * BLOCK),
    (Unwritten, 8 * BLOCK + 512, 512),
    (Hole, 8 * BLOCK + 512, 512),
    (Written, LEN - 512, 1024),
    (Written, 20 * BLOCK + 512, 512),
    (Setuid, 4 * BLOCK + 512, 512),
    // Not in logical blocks.
    (Written, 4 * BLOCK + 100, 50),
    (Hole, 8 * BLOCK + 100, 50),
];

impl Bed {
    fn shaped(&self, shape: Shape) -> File {
        let options = OpenOptions::new().read(true).write(true).create(true);
        let _ = self.fs.remove_file("/row");
        let file = options.open(&self.fs, "/row").expect("room");
        let bytes = |len: usize| Buf::copy_of(&vec![7; len]);
        let write = |at: usize, len: usize| file.write_at(&bytes(len), at as u64).expect("room");
        let allocate = |mode, at: usize, len: usize| {
            let done = file.allocate(mode, at as u64, len as u64);
            done.expect("room");
        };
        match shape {
            Written | Setuid => drop(write(0, LEN)),
            Punched => {
                write(0, LEN);
                allocate(FallocateMode::PunchHole, 5 * BLOCK, BLOCK);
            }
            TwoExtents => {
                write(0, LEN + BLOCK);
                allocate(FallocateMode::CollapseRange, 5 * BLOCK, BLOCK);
            }
            Hole | Unwritten => {
                file.set_len(LEN as u64).expect("a size");
                write(0, BLOCK);
            }
        }
        if shape == Unwritten {
            allocate(FallocateMode::KeepSize, 0, 16 * BLOCK);
            write(4 * BLOCK, BLOCK);
        }
        if shape == Setuid {
            let set = SetAttributes::new().mode(0o4755);
            file.set_attributes(&set).expect("own file");
        }
        assert_eq!(file.len(), LEN as u64);
        file
    }
}

/// Whether somebody waits for what is in flight on a file before `queue` has its write back.
fn drains_before_it_ends(file: &File, queue: &mut Queue, done: &mut Vec<Completion>) -> bool {
    let begun = Instant::now();
    while done.is_empty() && !file.inode.in_flight.is_being_drained() {
        assert!(begun.elapsed() < SOON, "it neither waits nor ends");
        queue.reap(done);
        thread::yield_now();
    }
    done.is_empty()
}

#[test]
fn explanation_of_a_queued_write_is_what_becomes_of_it() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        for (shape, offset, len) in ROWS {
            let file = bed.shaped(shape);
            let row = format!("{policy}: {len} bytes at {offset} of {shape:?}");
            let told = file.explain(Direction::Write, offset as u64, len, None);
            let told = told.expect("a sound tree");
            assert_eq!(told.refused, None, "{row}");
            let mut queue = bed.queue();
            let first = file.map(0, 1).expect("a block").pblk.0 * BLOCK as u64;
            let hold = bed
                .sim
                .hold(Some(first..first + BLOCK as u64), FaultOp::Read);
            queue.read(&file, 0, block(0), 1).expect("room");
            queue.submit().expect("a working queue");
            hold.wait_for(1);
            let before = bed.fs.stats();
            let data = Buf::copy_of(&vec![9; len]);
            queue.write(&file, offset as u64, data, 2).expect("room");
            let mut done = Vec::new();
            let drains = drains_before_it_ends(&file, &mut queue, &mut done);
            hold.release();
            let rest = 2 - done.len();
            let waited = queue.wait_timeout(rest, &mut done, Some(SOON));
            assert_eq!(waited.expect("a working queue"), rest, "{row}");
            for completion in done {
                completion.result.expect("room");
            }
            let stats = bed.fs.stats().since(&before);
            assert_eq!(told.drains, drains, "{row}");
            let locks = match told.lock {
                LockMode::Exclusive => (1, 0),
                LockMode::Shared | LockMode::None => (0, 1),
            };
            let found = (stats.writes_exclusive, stats.writes_shared);
            assert_eq!(locks, found, "{row}");
            assert_eq!(u64::from(told.restarts), stats.restarts, "{row}");
            let blocks = told.would_block || told.no_direct_path;
            let blocks = u64::from(blocks);
            assert_eq!((blocks, blocks), (stats.would_block, stats.punts), "{row}");
            let needs = told.restarts || told.drains || told.waits;
            assert!(!needs || blocks == 1, "{row}");
        }
    }
}

/// Who would get the lock now: another who shares it, and who wants it alone.
fn lets_in(file: &File) -> (bool, bool) {
    let rwsem = &file.inode.rwsem;
    let alone = rwsem.try_exclusive().is_some();
    (rwsem.try_shared(Slot::NONE).is_some(), alone)
}

#[test]
fn explanation_tells_what_becomes_of_the_lock_for_the_io() {
    for policy in Policy::ALL {
        let options = MountOptions::new().policy(policy);
        let bed = Bed::with(options.commit_interval(Duration::from_secs(3600)));
        for (shape, offset, len) in ROWS {
            // Behind a gap, what is written first is zeros, under another lock.
            if offset > LEN {
                continue;
            }
            for cut_short in [false, true] {
                let file = bed.shaped(shape);
                if cut_short {
                    file.inode.set_cut_short(true);
                }
                let row = format!("{policy}: {len} bytes at {offset} of {shape:?}, {cut_short}");
                let told = file.explain(Direction::Write, offset as u64, len, None);
                let told = told.expect("a sound tree");
                let hold = bed.sim.hold(None, FaultOp::Write);
                let written = {
                    let (file, data) = (file.clone(), Buf::copy_of(&vec![9; len]));
                    start(move || file.write_at(&data, offset as u64))
                };
                hold.wait_for(1);
                let expected = match (told.lock, told.io_lock) {
                    (_, IoLock::Release) | (LockMode::None, _) => (true, true),
                    (LockMode::Shared, _) | (_, IoLock::Downgrade) => (true, false),
                    (LockMode::Exclusive, IoLock::Keep) => (false, false),
                };
                assert_eq!(lets_in(&file), expected, "{row}");
                hold.release();
                let written = written.recv_timeout(SOON).expect("it goes on");
                assert_eq!(written.expect("room"), len, "{row}");
            }
        }
    }
}

// A try is as a queue's first attempt, but for unaligned writes under the policies by which only those of queues wait.
#[test]
fn explanation_tells_whether_a_try_would_block() {
    for policy in Policy::ALL {
        let tells_queues_apart = matches!(
            policy,
            Policy::Pre49 | Policy::Pre49Nolock | Policy::Parallel | Policy::Iomap55
        );
        let bed = Bed::new(policy);
        for (shape, offset, len) in ROWS {
            let file = bed.shaped(shape);
            let row = format!("{policy}: {len} bytes at {offset} of {shape:?}");
            let told = file.explain(Direction::Write, offset as u64, len, None);
            let told = told.expect("a sound tree");
            if tells_queues_apart && !told.facts.expect("it is not refused").aligned {
                continue;
            }
            let data = Buf::copy_of(&vec![9; len]);
            let expected = match file.try_write_at(&data, offset as u64) {
                Ok(_) => (false, false),
                Err(Error::WouldBlock(_)) => (true, false),
                Err(Error::Unsupported(_)) => (false, true),
                Err(error) => panic!("{row}: {error}"),
            };
            assert_eq!((told.would_block, told.no_direct_path), expected, "{row}");
        }
    }
}

#[test]
fn explanation_of_a_read_is_what_becomes_of_it() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        for (shape, offset, len) in ROWS {
            let file = bed.shaped(shape);
            for simple in [true, false] {
                bed.fs.set_simple(simple);
                let row = format!("{policy}, {simple}: {len} bytes at {offset} of {shape:?}");
                let told = file.explain(Direction::Read, offset as u64, len, None);
                let told = told.expect("a sound tree");
                assert_eq!((told.refused, told.would_block), (None, false), "{row}");
                let path = (u64::from(told.simple), u64::from(!told.simple));
                let mut queue = bed.queue();
                for queued in [true, false] {
                    let before = bed.fs.stats();
                    let mut buf = Buf::copy_of(&vec![0; len]);
                    if queued {
                        queue.read(&file, offset as u64, buf, 1).expect("room");
                        reap_one(&mut queue).result.expect("readable");
                    } else {
                        let read = file.try_read_at(&mut buf, offset as u64);
                        read.expect("nobody has the lock");
                    }
                    let stats = bed.fs.stats().since(&before);
                    let found = (stats.reads_simple, stats.reads_general);
                    assert_eq!(path, found, "{row}");
                    let drains = u64::from(told.drains);
                    assert_eq!((drains, 0), (stats.drains, stats.restarts), "{row}");
                }
            }
        }
    }
}
