//! Syncs by queue: what is on the media when one completes, what it waits for, and what it does not. And changes of ranges,
//! and what ends a wait.

use crate::bed::*;
use dioxide::block::sim::FaultOp;
use dioxide::{
    Backend, Buf, FallocateMode, File, Fs, MapKind, MountOptions, OpenOptions, Policy, Queue,
    QueueFull, QueueOptions,
};
use dioxide_testkit::{Dir, Image};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

type Push = fn(&mut Queue, &File, u64) -> Result<(), QueueFull>;

const BOTH: [(&str, Push); 2] = [("fdatasync", Queue::sync_data), ("fsync", Queue::sync_all)];

#[test]
fn queued_sync_makes_what_was_reaped_durable() {
    for policy in Policy::ALL {
        for (path, block) in [("/data", 0), ("/data", 70), ("/hole", 4), ("/unwritten", 4)] {
            for (name, sync) in BOTH {
                let bed = Bed::new(policy);
                let file = bed.open(path);
                let (mut writer, mut syncer) = (bed.queue(), bed.queue());
                let at = block * BLOCK;
                let pushed = writer.write(&file, at as u64, blocks(0xB1, 1), 1);
                pushed.expect("room");
                reap_all_ok(&mut writer, 1);
                sync(&mut syncer, &file, 2).expect("room");
                let done = reap(&mut syncer, 1).pop().expect("one");
                assert_eq!((done.tag, done.buf.len()), (2, 0));
                assert_eq!(done.result.expect("a sync"), 0);
                recover(&bed.crash_now(), |fs| {
                    let file = open_rw(fs, path);
                    assert!(file.len() as usize >= at + BLOCK, "{policy}, {name}");
                    assert_all(&read(&file, at..at + BLOCK), 0xB1);
                });
            }
        }
    }
}

#[test]
fn queued_sync_completes_with_the_flush_and_not_before() {
    for (_, sync) in BOTH {
        let bed = Bed::new(Policy::Best);
        let (file, mut queue) = (bed.open("/data"), bed.queue());
        let hold = bed.sim.hold(None, FaultOp::Flush);
        sync(&mut queue, &file, 1).expect("room");
        hold.wait_for(1);
        let mut done = Vec::new();
        let early = queue.wait_timeout(1, &mut done, Some(A_WHILE));
        assert_eq!(
            (early.expect("a working queue"), queue.outstanding()),
            (0, 1)
        );
        // The queue goes on meanwhile.
        queue.read(&file, 0, blocks(0, 1), 2).expect("room");
        assert_eq!(reap(&mut queue, 1)[0].tag, 2);
        hold.release();
        reap_all_ok(&mut queue, 1);
    }
}

#[test]
fn queued_sync_waits_for_nothing_in_flight() {
    let bed = Bed::new(Policy::Best);
    let (file, mut queue) = (bed.open("/data"), bed.queue());
    let hold = bed.sim.hold(None, FaultOp::Write);
    queue.write(&file, 0, blocks(1, 1), 1).expect("room");
    queue.submit().expect("a working queue");
    queue.sync_data(&file, 2).expect("room");
    assert_eq!(reap(&mut queue, 1)[0].tag, 2);
    hold.release();
    reap_all_ok(&mut queue, 1);
}

#[test]
fn queued_sync_takes_a_place_in_the_queue() {
    let bed = Bed::new(Policy::Best);
    let (file, mut queue) = (bed.open("/data"), bed.queue());
    let hold = bed.sim.hold(None, FaultOp::Flush);
    let depth = queue.depth();
    for tag in 0..depth as u64 {
        queue.sync_data(&file, tag).expect("room");
    }
    assert_eq!(queue.sync_data(&file, 99), Err(QueueFull));
    assert_eq!(queue.sync_all(&file, 99), Err(QueueFull));
    assert!(queue.read(&file, 0, blocks(0, 1), 99).is_err(), "no room");
    hold.release();
    let mut tags: Vec<u64> = reap(&mut queue, depth).iter().map(|it| it.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..depth as u64).collect::<Vec<_>>());
    assert_eq!(queue.outstanding(), 0);
}

#[test]
fn queued_sync_of_another_mounts_file_is_refused() {
    let (bed, other) = (Bed::new(Policy::Best), Bed::new(Policy::Best));
    let (file, mut queue) = (other.open("/data"), bed.queue());
    queue.sync_all(&file, 1).expect("room");
    let done = reap(&mut queue, 1).pop().expect("one");
    let error = done.result.expect_err("another mount");
    assert_eq!(error.errno(), libc::EINVAL);
}

#[test]
fn queued_punch_waits_for_the_queues_own_writes() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let (file, mut queue) = (bed.open("/data"), bed.queue());
        file.preload_map().expect("a sound tree");
        let (one, kind) = (BLOCK as u64, |block| {
            file.map(block, 1).expect("sound").kind
        });
        for block in [2, 3, 5] {
            let pushed = queue.write(&file, block * one, blocks(0xC1, 1), block);
            pushed.expect("room");
        }
        let punch = FallocateMode::PunchHole;
        queue
            .allocate(&file, punch, 2 * one, 2 * one, 9)
            .expect("room");
        queue.allocate(&file, punch, 0, 0, 10).expect("room");
        let done = reap(&mut queue, 5);
        for one in done {
            match one.tag {
                9 => assert_eq!((one.result.expect("room"), one.buf.len()), (0, 0)),
                10 => assert_eq!(
                    one.result.expect_err("an empty range").errno(),
                    libc::EINVAL
                ),
                _ => assert_eq!(one.result.expect("an overwrite"), BLOCK),
            }
        }
        assert_eq!(
            (kind(2), kind(3), kind(5)),
            (MapKind::Hole, MapKind::Hole, MapKind::Mapped)
        );
        assert_all(&read(&file, 5 * BLOCK..6 * BLOCK), 0xC1);
    }
}

#[test]
fn waker_ends_the_wait_that_is_under_way_or_the_next() {
    let bed = Bed::new(Policy::Best);
    let (file, mut queue) = (bed.open("/data"), bed.queue());
    let hold = bed.sim.hold(None, FaultOp::Write);
    queue.write(&file, 0, blocks(1, 1), 1).expect("room");
    let (waker, mut done) = (queue.waker(), Vec::new());
    waker.wake();
    assert_eq!(queue.wait(1, &mut done).expect("a working queue"), 0);
    let thread = start(move || {
        std::thread::sleep(A_WHILE);
        waker.wake();
    });
    assert_eq!(queue.wait(1, &mut done).expect("a working queue"), 0);
    finish(&thread);
    assert_eq!(queue.outstanding(), 1);
    hold.release();
    reap_all_ok(&mut queue, 1);
}

fn is_readable(event: &OwnedFd, within: Duration) -> bool {
    let limit = Timespec::try_from(within).expect("a time");
    let mut events = [PollFd::new(event, PollFlags::IN)];
    loop {
        match poll(&mut events, Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            readable => return readable.expect("a descriptor") == 1,
        }
    }
}

#[test]
fn event_fd_is_readable_when_something_can_be_reaped() {
    let cases = [
        (Dir::Tmpfs, Backend::Pread),
        (Dir::Tmpfs, Backend::Mmap),
        (Dir::Disk, Backend::Pread),
        (Dir::Disk, Backend::Auto),
    ];
    for (dir, backend) in cases {
        let image = Image::builder().dir(dir).size(16 << 20).build();
        let fs = Fs::open(image.path(), &MountOptions::new().backend(backend)).expect("it opens");
        let options = OpenOptions::new().read(true).write(true).create(true);
        let file = options.open(&fs, "/f").expect("room");
        file.write_at(&[1; 4 * BLOCK], 0).expect("room");
        let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
        // What is with a worker before is told of as well.
        queue.sync_all(&file, 0).expect("room");
        let (event, waker) = (queue.event_fd().expect("one"), queue.waker());
        let mut done = Vec::new();
        let mut reaped = |queue: &mut Queue, tag| {
            while done.is_empty() {
                assert!(is_readable(&event, SOON), "{backend:?}, request {tag}");
                queue.wait(0, &mut done).expect("a working queue");
            }
            let one = done.pop().expect("one");
            assert_eq!((one.tag, done.len()), (tag, 0), "{backend:?}");
            // The event was set from the beginning: whoever brought the first one may set it later.
            let until = Instant::now() + SOON;
            loop {
                queue.reap(&mut done);
                if !is_readable(&event, Duration::ZERO) {
                    break;
                }
                assert!(tag == 0 && Instant::now() < until, "{backend:?}, {tag}");
            }
        };
        reaped(&mut queue, 0);
        let end = |block: u64| block * BLOCK as u64;
        for round in 0..5 {
            // By the device, by a worker, and here: behind the end, and what is refused.
            queue.read(&file, 0, blocks(0, 1), 1).expect("room");
            queue.submit().expect("a working queue");
            reaped(&mut queue, 1);
            queue.write(&file, end(1), blocks(2, 1), 2).expect("room");
            queue.submit().expect("a working queue");
            reaped(&mut queue, 2);
            let hole = end(6 + 2 * round);
            queue.write(&file, hole, blocks(3, 1), 3).expect("room");
            reaped(&mut queue, 3);
            queue.sync_data(&file, 4).expect("room");
            reaped(&mut queue, 4);
            queue.read(&file, end(90), blocks(0, 1), 5).expect("room");
            queue.submit().expect("a working queue");
            reaped(&mut queue, 5);
            let empty = queue.allocate(&file, FallocateMode::PunchHole, 0, 0, 6);
            empty.expect("room");
            reaped(&mut queue, 6);
        }
        waker.wake();
        assert!(is_readable(&event, SOON), "{backend:?}");
        queue.reap(&mut Vec::new());
        assert!(!is_readable(&event, Duration::ZERO), "{backend:?}");
        drop((queue, file));
        fs.close().expect("a clean end");
        waker.wake();
        assert!(is_readable(&event, SOON), "{backend:?}");
    }
}

#[test]
fn event_fd_of_a_simulated_device_is_refused() {
    let error = Bed::new(Policy::Best).queue().event_fd();
    let error = error.expect_err("nobody tells of a completion");
    assert_eq!(error.errno(), libc::EOPNOTSUPP);
}

/// The device may be faster than whoever wakes, so it is tried often.
#[test]
fn waker_ends_a_wait_for_several_requests_over_io_uring_and_loses_none() {
    const MANY: usize = 32;
    const LEN: usize = 64 << 10;
    let image = Image::builder().size(16 << 20).dir(Dir::Disk).build();
    let options = MountOptions::new().backend(Backend::Uring);
    let fs = match Fs::open(image.path(), &options) {
        Ok(fs) => fs,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let options = OpenOptions::new().read(true).write(true).create(true);
    let file = options.open(&fs, "/data").expect("room");
    file.write_at(&[0xA1; MANY * LEN], 0).expect("room");
    let mut queue = fs.queue(&QueueOptions::default()).expect("a ring");
    let (waker, (wake, wakes)) = (queue.waker(), channel());
    let thread = start(move || wakes.iter().for_each(|()| waker.wake()));
    let (mut early, mut done) = (0, Vec::new());
    for round in 0..200 {
        for tag in 0..MANY {
            let buf = Buf::zeroed(LEN);
            let pushed = queue.read(&file, (tag * LEN) as u64, buf, tag as u64);
            pushed.expect("room");
        }
        wake.send(()).expect("it listens");
        let count = queue.wait(MANY, &mut done).expect("a working queue");
        early += usize::from(count < MANY);
        assert_eq!((done.len(), queue.outstanding()), (count, MANY - count));
        while queue.outstanding() > 0 {
            queue.wait(MANY, &mut done).expect("a working queue");
        }
        let mut tags: Vec<usize> = done.iter().map(|one| one.tag as usize).collect();
        tags.sort_unstable();
        assert!(tags.into_iter().eq(0..MANY), "round {round}");
        for one in done.drain(..) {
            assert_eq!(one.result.expect("readable"), LEN);
            assert_all(&one.buf, 0xA1);
        }
    }
    drop(wake);
    finish(&thread);
    println!("{early} of 200 waits were ended");
    assert!(early > 0, "none was ended by it");
}
