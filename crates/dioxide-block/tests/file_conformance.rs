//! What every device and queue must do, run over every backend of `file` and over `mem`.

mod host;

use dioxide_block::file::{Backend, FileOptions};
use dioxide_block::mem::MemDevice;
use dioxide_block::{
    Buf, BufPool, Device, Durability, Error, Event, Op, OpKind, Queue, QueueLane, QueueOptions,
    Segs, SlotId,
};
use host::{MIB, finish, flush_op, op, pattern, push, run_one, seg};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 8 * MIB;

/// A zeroed device of `SIZE` bytes, and what it stands on.
struct Fixture {
    device: Arc<dyn Device>,
    options: QueueOptions,
    _under: Box<dyn Any>,
}

impl Fixture {
    fn over(device: Arc<dyn Device>, under: impl Any) -> Fixture {
        assert_eq!(device.geometry().size_bytes, SIZE);
        Fixture {
            device,
            options: QueueOptions::default(),
            _under: Box::new(under),
        }
    }

    fn queue(&self, depth: u32) -> Box<dyn Queue> {
        let options = QueueOptions {
            depth,
            ..self.options.clone()
        };
        self.device.open_queue(&options).expect("a queue")
    }
}

fn mem() -> Option<Fixture> {
    Some(Fixture::over(Arc::new(MemDevice::new(SIZE)), ()))
}

fn shm(backend: Backend) -> Option<Fixture> {
    let file = host::shm_file(SIZE);
    let device = host::open(file.path(), &host::writable(backend));
    Some(Fixture::over(device, file))
}

fn sparse(img_offset: u64) -> Option<Fixture> {
    let file = host::shm_file(SIZE + img_offset);
    let options = FileOptions {
        img_offset,
        ..host::sparse()
    };
    let device = host::open(file.path(), &options);
    assert!(device.describe().contains("mapping"));
    Some(Fixture::over(device, file))
}

fn disk(options: FileOptions) -> Option<Fixture> {
    let file = host::disk_file(SIZE + options.img_offset);
    let device = host::open(file.path(), &options);
    Some(Fixture::over(device, file))
}

fn sqpoll() -> Option<Fixture> {
    let mut fixture = disk(host::writable(Backend::Uring))?;
    fixture.options.sqpoll = true;
    Some(fixture)
}

fn loop_device(backend: Backend) -> Option<Fixture> {
    if !host::is_root() {
        return None;
    }
    let file = host::disk_file(SIZE);
    let attached = host::LoopDevice::attach(file.path());
    let device = host::open(&attached.path, &host::writable(backend));
    Some(Fixture::over(device, (attached, file)))
}

macro_rules! conformance {
    ($($name:ident: $fixture:expr;)*) => {
        $(mod $name {
            use super::*;
            conformance!(@tests $fixture;
                written_bytes_any_memory_are_read_back
                durable_write_is_read_back
                zeroed_range_reads_as_zeros
                discarded_range_leaves_its_neighbours
                atomic_write_is_a_unit_or_refused
                misaligned_transfer_is_refused
                transfer_past_the_end_is_refused
                large_transfer_is_whole
                queued_write_then_read_returns_the_bytes
                queue_full_gives_the_operation_back
                slots_are_distinct_and_reused_after_reap
                lane_does_as_its_queue
                segments_each_go_to_their_place
                more_segments_than_the_rings_hold_complete_once
                empty_operation_completes
                bad_segment_completes_with_an_error
                buffers_come_back_with_their_memory
                flush_and_durable_write_complete
                wait_with_nothing_times_out
                waker_ends_a_wait_and_is_not_lost
                wake_by_a_waker_that_is_gone_ends_a_wait
                wake_beside_completions_is_harmless
                event_is_set_for_what_can_be_reaped
                dropped_queue_returns_its_buffers
                queue_used_on_another_thread_works
                idle_queue_moves_again_and_again
                pushed_but_not_submitted_moves
                random_operations_match_a_model);
        })*
    };
    (@tests $fixture:expr; $($test:ident)*) => {
        $(#[test]
        fn $test() {
            if let Some(fixture) = $fixture {
                super::$test(&fixture);
            }
        })*
    };
}

conformance! {
    on_mem: mem();
    on_pread_shm: shm(Backend::Pread);
    on_auto_shm: shm(Backend::Auto);
    on_uring_shm: shm(Backend::Uring);
    on_mmap_shm: shm(Backend::Mmap);
    on_sparse_shm: sparse(0);
    on_sparse_offset: sparse(512);
    on_mmap_disk: disk(host::writable(Backend::Mmap));
    on_mmap_offset: disk(FileOptions { img_offset: 512, ..host::writable(Backend::Mmap) });
    on_pread_disk: disk(host::writable(Backend::Pread));
    on_auto_disk: disk(host::writable(Backend::Auto));
    on_uring_disk: disk(host::writable(Backend::Uring));
    on_uring_offset: disk(FileOptions { img_offset: MIB, ..host::writable(Backend::Uring) });
    on_uring_odd_offset: disk(FileOptions { img_offset: 100, ..host::writable(Backend::Uring) });
    on_uring_cached: disk(FileOptions { buffered: true, ..host::writable(Backend::Uring) });
    on_uring_sqpoll: sqpoll();
    on_uring_loop: loop_device(Backend::Uring);
    on_pread_loop: loop_device(Backend::Pread);
    on_mmap_loop: loop_device(Backend::Mmap);
}

fn read(device: &dyn Device, offset: u64, len: usize) -> Buf {
    let mut buf = Buf::zeroed(len);
    device.read_at(offset, &mut buf).expect("read");
    buf
}

fn write(device: &dyn Device, offset: u64, bytes: &[u8]) {
    device
        .write_at(offset, bytes, Durability::Cached)
        .expect("write");
}

fn written_bytes_any_memory_are_read_back(f: &Fixture) {
    for shift in [0, 1, 8] {
        let source = pattern(shift as u64, 8192 + shift);
        write(&*f.device, 4096, &source[shift..]);
        let mut target = Buf::zeroed(8192 + 3);
        f.device.read_at(4096, &mut target[3..]).expect("read");
        assert_eq!(target[3..], source[shift..]);
    }
    assert!(read(&*f.device, 0, 4096).iter().all(|&b| b == 0));
}

fn durable_write_is_read_back(f: &Fixture) {
    let data = pattern(3, 4096);
    let fua = Durability::ForceUnitAccess;
    f.device.write_at(8192, &data, fua).expect("durable write");
    f.device
        .write_at(16384, &data[1..513], fua)
        .expect("durable write of unaligned memory");
    f.device.flush().expect("flush");
    assert_eq!(read(&*f.device, 8192, 4096)[..], data[..]);
    assert_eq!(read(&*f.device, 16384, 512)[..], data[1..513]);
}

fn zeroed_range_reads_as_zeros(f: &Fixture) {
    write(&*f.device, 0, &pattern(4, 65536));
    f.device.write_zeroes(512, 20480).expect("write zeroes");
    f.device.write_zeroes(0, 0).expect("nothing");
    let after = read(&*f.device, 0, 65536);
    assert!(after[512..512 + 20480].iter().all(|&b| b == 0));
    assert_eq!(after[..512], pattern(4, 65536)[..512]);
    assert_eq!(after[20992..], pattern(4, 65536)[20992..]);
}

fn discarded_range_leaves_its_neighbours(f: &Fixture) {
    write(&*f.device, 0, &pattern(5, 65536));
    match f.device.discard(4096, 8192) {
        Ok(()) => assert!(f.device.geometry().discard),
        Err(Error::Unsupported { .. }) => assert!(!f.device.geometry().discard),
        Err(e) => panic!("{e}"),
    }
    let after = read(&*f.device, 0, 65536);
    assert_eq!(after[..4096], pattern(5, 65536)[..4096]);
    assert_eq!(after[12288..], pattern(5, 65536)[12288..]);
}

fn misaligned_transfer_is_refused(f: &Fixture) {
    let mut buf = Buf::zeroed(4096);
    let offset = f.device.read_at(100, &mut buf);
    assert!(matches!(
        offset,
        Err(Error::Misaligned {
            what: "offset",
            required: 512,
            ..
        })
    ));
    let length = f.device.write_at(512, &buf[..100], Durability::Cached);
    assert!(matches!(
        length,
        Err(Error::Misaligned { what: "length", .. })
    ));
    assert!(matches!(
        f.device.discard(1, 512),
        Err(Error::Misaligned { .. })
    ));
    assert!(matches!(
        f.device.write_zeroes(0, 5),
        Err(Error::Misaligned { .. })
    ));
}

fn transfer_past_the_end_is_refused(f: &Fixture) {
    let mut buf = Buf::zeroed(4096);
    for offset in [SIZE - 512, SIZE, SIZE + 4096, u64::MAX - 511] {
        let read = f.device.read_at(offset, &mut buf);
        assert!(
            matches!(read, Err(Error::OutOfRange { size: SIZE, .. })),
            "{offset}"
        );
        let write = f.device.write_at(offset, &buf, Durability::Cached);
        assert!(matches!(write, Err(Error::OutOfRange { .. })), "{offset}");
        assert!(matches!(
            f.device.write_zeroes(offset, 4096),
            Err(Error::OutOfRange { .. })
        ));
    }
    f.device
        .read_at(SIZE - 4096, &mut buf)
        .expect("the last block");
}

fn large_transfer_is_whole(f: &Fixture) {
    let data = pattern(6, 5 << 20);
    write(&*f.device, 512, &data);
    assert!(read(&*f.device, 512, 5 << 20)[..] == data[..]);
    write(&*f.device, 0, &data[1..][..(4 << 20) + 512]);
    assert!(read(&*f.device, 0, (4 << 20) + 512)[..] == data[1..][..(4 << 20) + 512]);
}

fn queued_write_then_read_returns_the_bytes(f: &Fixture) {
    let mut queue = f.queue(4);
    let done = run_one(&mut *queue, op(OpKind::Write, pattern(7, 4096), 12288));
    done.result.expect("write");
    assert_eq!(read(&*f.device, 12288, 4096)[..], pattern(7, 4096)[..]);
    let done = run_one(&mut *queue, op(OpKind::Read, Buf::zeroed(4096), 12288));
    done.result.expect("read");
    assert_eq!(done.buf[..], pattern(7, 4096)[..]);
    assert_eq!(queue.in_flight(), 0);
}

fn queue_full_gives_the_operation_back(f: &Fixture) {
    let mut queue = f.queue(3);
    assert_eq!(queue.depth(), 4, "rounded up");
    for i in 0..4 {
        push(&mut *queue, op(OpKind::Write, pattern(i, 512), i * 512));
    }
    assert_eq!(queue.in_flight(), 4);
    let refused = queue
        .push(op(OpKind::Read, pattern(9, 512), 0))
        .expect_err("full");
    assert_eq!(refused.buf[..], pattern(9, 512)[..]);
    assert_eq!(finish(&mut *queue).len(), 4);
    run_one(&mut *queue, refused).result.expect("room again");
}

fn slots_are_distinct_and_reused_after_reap(f: &Fixture) {
    let mut queue = f.queue(8);
    for _ in 0..5 {
        let mut slots: Vec<_> = (0..8)
            .map(|i| push(&mut *queue, op(OpKind::Read, Buf::zeroed(512), i * 512)))
            .collect();
        let mut reaped: Vec<_> = finish(&mut *queue).iter().map(|c| c.slot).collect();
        slots.sort_unstable();
        reaped.sort_unstable();
        assert_eq!(slots, (0..8).collect::<Vec<_>>());
        assert_eq!(slots, reaped);
    }
}

/// What a lane was handed, by slot: all there is, waiting for it.
fn finish_lane(lane: &mut QueueLane, count: usize) -> HashMap<SlotId, (Buf, bool)> {
    let (mut done, begun) = (HashMap::new(), Instant::now());
    while done.len() < count {
        assert!(
            begun.elapsed() < host::PATIENCE,
            "{} of {count}",
            done.len()
        );
        lane.wait_for(1, Some(host::PATIENCE)).expect("wait");
        lane.reap(|slot, buf, result| {
            let twice = done.insert(slot, (buf, result.is_ok()));
            assert!(twice.is_none(), "slot {slot} in two requests at once");
        });
    }
    done
}

fn lane_does_as_its_queue(f: &Fixture) {
    let (mut lane, block) = (QueueLane::of(f.queue(4)), 4096);
    let memory = |byte| Buf::copy_of(&[byte; 4096]);
    for round in 0..3 {
        let written = [1, 2, 3, 4].map(|n| {
            let pushed = lane.push_whole(OpKind::Write, u64::from(n) * block, memory(n + round));
            pushed.expect("room")
        });
        let full = lane.push_whole(OpKind::Read, 0, memory(9));
        assert_eq!(full.expect_err("no room")[0], 9);
        lane.submit().expect("submit");
        let done = finish_lane(&mut lane, 4);
        assert!(written.iter().all(|slot| done[slot].1));
    }
    // As whole, beyond the end, unaligned, of nothing; and durable.
    for (kind, offset, bytes, is_good) in [
        (OpKind::Read, block, &[0; 4096][..], true),
        (OpKind::Read, SIZE, &[0; 4096], false),
        (OpKind::Write, u64::MAX - 4095, &[0; 4096], false),
        (OpKind::Read, block, &[], false),
        (OpKind::WriteFua, 2 * block, &[5; 4096], true),
    ] {
        let slot = lane.push_whole(kind, offset, Buf::copy_of(bytes));
        let slot = slot.expect("room");
        let done = finish_lane(&mut lane, 1);
        let (buf, good) = &done[&slot];
        assert_eq!(*good, is_good, "{kind:?} at {offset}");
        if is_good && kind == OpKind::Read {
            assert!(buf.iter().all(|byte| *byte == 3), "of the last round");
        }
    }
    assert!(read(&*f.device, 2 * block, 4096).iter().all(|b| *b == 5));
}

fn segments_each_go_to_their_place(f: &Fixture) {
    let mut queue = f.queue(2);
    let data = pattern(8, 8192);
    let segs = Segs::Many(Box::new([
        seg(65536, 0, 4096),
        seg(512, 4096, 512),
        seg(MIB, 5120, 3072),
    ]));
    let written = Op {
        kind: OpKind::Write,
        buf: Buf::copy_of(&data),
        segs: segs.clone(),
    };
    run_one(&mut *queue, written).result.expect("write");
    assert_eq!(read(&*f.device, 65536, 4096)[..], data[..4096]);
    assert_eq!(read(&*f.device, 512, 512)[..], data[4096..4608]);
    assert_eq!(read(&*f.device, MIB, 3072)[..], data[5120..]);
    let done = run_one(
        &mut *queue,
        Op {
            kind: OpKind::Read,
            buf: Buf::zeroed(8192),
            segs,
        },
    );
    done.result.expect("read");
    assert_eq!(done.buf[..4608], data[..4608]);
    assert!(
        done.buf[4608..5120].iter().all(|&b| b == 0),
        "between the segments"
    );
    assert_eq!(done.buf[5120..], data[5120..]);
}

fn more_segments_than_the_rings_hold_complete_once(f: &Fixture) {
    let mut queue = f.queue(2);
    let data = pattern(10, 512 * 301);
    // Every second block, backwards.
    let segs: Box<[_]> = (0..301u32)
        .map(|i| seg(u64::from(600 - 2 * i) * 512, i * 512, 512))
        .collect();
    for kind in [OpKind::Write, OpKind::Read] {
        let buf = match kind {
            OpKind::Write => Buf::copy_of(&data),
            _ => Buf::zeroed(data.len()),
        };
        push(
            &mut *queue,
            Op {
                kind,
                buf,
                segs: Segs::Many(segs.clone()),
            },
        );
        push(&mut *queue, op(OpKind::Read, Buf::zeroed(512), MIB));
        let done = finish(&mut *queue);
        assert_eq!(done.len(), 2);
        assert!(done.iter().all(|c| c.result.is_ok()));
        assert!(done.iter().any(|c| c.buf[..] == data[..]), "{kind:?}");
    }
    assert_eq!(read(&*f.device, 600 * 512, 512)[..], data[..512]);
    assert!(read(&*f.device, 599 * 512, 512).iter().all(|&b| b == 0));
}

fn empty_operation_completes(f: &Fixture) {
    let mut queue = f.queue(2);
    let holes_only = Op {
        kind: OpKind::Read,
        buf: pattern(1, 512),
        segs: Segs::Many(Box::new([])),
    };
    let done = run_one(&mut *queue, holes_only);
    done.result.expect("nothing to do");
    assert_eq!(done.buf[..], pattern(1, 512)[..]);
}

fn bad_segment_completes_with_an_error(f: &Fixture) {
    let mut queue = f.queue(4);
    let good = seg(0, 0, 512);
    let bad = [
        seg(100, 0, 512),
        seg(0, 0, 100),
        seg(0, 0, 0),
        seg(SIZE, 0, 512),
        seg(u64::MAX - 511, 0, 512),
        seg(0, 4096, 512),
        seg(0, u32::MAX - 511, 4096),
        seg(0, 3584, 1024),
    ];
    for bad in bad {
        for kind in [OpKind::Read, OpKind::Write] {
            for segs in [Segs::One(bad), Segs::Many(Box::new([good, bad]))] {
                let done = run_one(
                    &mut *queue,
                    Op {
                        kind,
                        buf: Buf::zeroed(4096),
                        segs,
                    },
                );
                assert!(done.result.is_err(), "{kind:?} {bad:?}");
                assert_eq!(done.buf.len(), 4096);
            }
        }
    }
    run_one(&mut *queue, op(OpKind::Read, Buf::zeroed(512), 0))
        .result
        .expect("still works");
}

fn buffers_come_back_with_their_memory(f: &Fixture) {
    let pool = BufPool::new(4, 4096);
    let options = QueueOptions {
        depth: 8,
        pool: Some(pool.clone()),
        ..f.options.clone()
    };
    let mut queue = f.device.open_queue(&options).expect("a queue");
    let mut addresses = Vec::new();
    for i in 0..4 {
        let mut buf = pool.take().expect("a buffer of the pool");
        buf.copy_from_slice(&pattern(i, 4096));
        addresses.push(buf.as_ptr() as usize);
        push(&mut *queue, op(OpKind::Write, buf, i * 4096));
        let other = pattern(i, 4096);
        addresses.push(other.as_ptr() as usize);
        push(&mut *queue, op(OpKind::Write, other, MIB + i * 4096));
    }
    assert!(pool.take().is_none());
    let done = finish(&mut *queue);
    let mut back: Vec<_> = done.iter().map(|c| c.buf.as_ptr() as usize).collect();
    addresses.sort_unstable();
    back.sort_unstable();
    assert_eq!(addresses, back);
    drop(done);
    for i in 0..4 {
        let done = run_one(
            &mut *queue,
            op(OpKind::Read, pool.take().expect("returned"), i * 4096),
        );
        done.result.expect("read");
        assert_eq!(done.buf[..], pattern(i, 4096)[..]);
        assert_eq!(
            read(&*f.device, MIB + i * 4096, 4096)[..],
            pattern(i, 4096)[..]
        );
    }
}

fn flush_and_durable_write_complete(f: &Fixture) {
    let mut queue = f.queue(4);
    let durable = op(OpKind::WriteFua, pattern(2, 4096), 0);
    run_one(&mut *queue, durable).result.expect("durable write");
    run_one(&mut *queue, flush_op()).result.expect("flush");
    assert_eq!(read(&*f.device, 0, 4096)[..], pattern(2, 4096)[..]);
}

fn wait_with_nothing_times_out(f: &Fixture) {
    let mut queue = f.queue(4);
    let begun = Instant::now();
    queue.wait(Some(Duration::from_millis(30))).expect("wait");
    assert!(begun.elapsed() >= Duration::from_millis(30));
    queue.wait(Some(Duration::ZERO)).expect("poll");
    assert_eq!(queue.reap(&mut Vec::new()), 0);
}

fn waker_ends_a_wait_and_is_not_lost(f: &Fixture) {
    let mut queue = f.queue(4);
    let waker = queue.waker();
    let limit = Some(Duration::from_secs(20));
    waker.wake();
    let begun = Instant::now();
    queue.wait(limit).expect("the next wait");
    for _ in 0..3 {
        let remote = waker.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            remote.wake();
        });
        queue.wait(limit).expect("the current wait");
        thread.join().expect("waker");
    }
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "not by the timeout"
    );
    assert!(
        begun.elapsed() >= Duration::from_millis(60),
        "each wake ends one wait"
    );
    run_one(&mut *queue, op(OpKind::Read, Buf::zeroed(512), 0))
        .result
        .expect("read");
    drop(queue);
    waker.wake();
}

fn wake_by_a_waker_that_is_gone_ends_a_wait(f: &Fixture) {
    let mut queue = f.queue(4);
    queue.waker().wake();
    let begun = Instant::now();
    queue.wait(Some(Duration::from_secs(5))).expect("a wait");
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "not by the timeout"
    );
}

fn wake_beside_completions_is_harmless(f: &Fixture) {
    let mut queue = f.queue(8);
    let waker = queue.waker();
    for round in 0..50 {
        for i in 0..8 {
            push(&mut *queue, op(OpKind::Read, Buf::zeroed(512), i * 512));
            if (i + round) % 3 == 0 {
                waker.wake();
            }
        }
        assert_eq!(finish(&mut *queue).len(), 8);
    }
}

fn event_is_set_for_what_can_be_reaped(f: &Fixture) {
    let (mut queue, event) = (f.queue(8), Event::new().expect("a descriptor"));
    run_one(&mut *queue, op(OpKind::Read, Buf::zeroed(512), 0))
        .result
        .expect("read");
    let rounds = move |queue: &mut dyn Queue, event: &Event| {
        for round in 0..20 {
            let count = 1 + round % 8;
            for i in 0..count {
                let kind = [OpKind::Write, OpKind::Read][i as usize % 2];
                push(queue, op(kind, Buf::zeroed(512), i * 512));
            }
            queue.submit().expect("submit");
            reap_by_event(queue, event, count as usize);
            // Of what fails before it meets the device, and what has nothing to do.
            push(queue, op(OpKind::Read, Buf::zeroed(512), 2 * SIZE));
            queue.submit().expect("submit");
            reap_by_event(queue, event, 1);
        }
    };
    // Elsewhere first, so that the ring's issuer is another thread.
    queue.tell(&event).expect("an event");
    let its = event.clone();
    let there = std::thread::spawn(move || {
        rounds(&mut *queue, &its);
        queue
    });
    rounds(&mut *there.join().expect("no panic"), &event);
}

fn reap_by_event(queue: &mut dyn Queue, event: &Event, count: usize) {
    let mut done = Vec::new();
    while done.len() < count {
        let mut fds = [PollFd::new(event, PollFlags::IN)];
        let limit = Timespec::try_from(Duration::from_secs(20)).expect("a time");
        match poll(&mut fds, Some(&limit)) {
            Ok(readable) => assert_eq!(readable, 1, "nobody told of a completion"),
            Err(error) => assert_eq!(error, Errno::INTR),
        }
        event.clear();
        queue.reap(&mut done);
    }
}

fn dropped_queue_returns_its_buffers(f: &Fixture) {
    let pool = BufPool::new(16, 65536);
    let options = QueueOptions {
        depth: 16,
        pool: Some(pool.clone()),
        ..f.options.clone()
    };
    for submitted in [true, false] {
        let mut queue = f.device.open_queue(&options).expect("a queue");
        let _waker = queue.waker();
        queue.wait(Some(Duration::ZERO)).expect("watches the waker");
        for i in 0..16 {
            let buf = pool.take().expect("all are back");
            push(&mut *queue, op(OpKind::Write, buf, i * 65536));
        }
        if submitted {
            queue.submit().expect("submit");
        }
        drop(queue);
        let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(all.len(), 16);
    }
}

fn queue_used_on_another_thread_works(f: &Fixture) {
    let mut queue = f.queue(4);
    std::thread::spawn(move || {
        run_one(&mut *queue, op(OpKind::Write, pattern(1, 4096), 0))
            .result
            .expect("write");
        run_one(&mut *queue, op(OpKind::Read, Buf::zeroed(4096), 0))
            .result
            .expect("read");
    })
    .join()
    .expect("the other thread");
    assert_eq!(read(&*f.device, 0, 4096)[..], pattern(1, 4096)[..]);
}

fn idle_queue_moves_again_and_again(f: &Fixture) {
    let pool = BufPool::new(2, 4096);
    let options = QueueOptions {
        depth: 4,
        pool: Some(pool.clone()),
        ..f.options.clone()
    };
    let mut queue = f.device.open_queue(&options).expect("a queue");
    for i in 0..4 {
        let mut buf = pool.take().expect("a buffer");
        buf.copy_from_slice(&pattern(i, 4096));
        queue = std::thread::spawn(move || {
            run_one(&mut *queue, op(OpKind::Write, buf, i * 4096))
                .result
                .expect("write");
            queue
        })
        .join()
        .expect("the other thread");
        let done = run_one(&mut *queue, op(OpKind::Read, Buf::zeroed(4096), i * 4096));
        done.result.expect("read");
        assert_eq!(done.buf[..], pattern(i, 4096)[..]);
        let waker = queue.waker();
        queue = std::thread::spawn(move || {
            waker.wake();
            queue.wait(Some(Duration::from_secs(20))).expect("woken");
            queue
        })
        .join()
        .expect("the other thread");
    }
}

fn pushed_but_not_submitted_moves(f: &Fixture) {
    let mut queue = f.queue(2);
    run_one(&mut *queue, op(OpKind::Read, Buf::zeroed(512), 0))
        .result
        .expect("bound here");
    let data = pattern(11, 512 * 40);
    let segs = (0..40u32)
        .map(|i| seg(u64::from(i) * 1024, i * 512, 512))
        .collect();
    let many = Op {
        kind: OpKind::Write,
        buf: Buf::copy_of(&data),
        segs: Segs::Many(segs),
    };
    push(&mut *queue, many);
    push(&mut *queue, flush_op());
    let done = std::thread::spawn(move || finish(&mut *queue))
        .join()
        .expect("the other thread");
    assert_eq!(done.len(), 2);
    assert!(done.iter().all(|c| c.result.is_ok()), "{done:?}");
    assert_eq!(read(&*f.device, 39 * 1024, 512)[..], data[39 * 512..]);
}

/// Operations on disjoint blocks, at random, with a random number in flight.
fn random_operations_match_a_model(f: &Fixture) {
    const BLOCK: usize = 2048;
    const BLOCKS: usize = 64;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut queue = f.queue(16);
    let mut model = vec![[0u8; BLOCK]; BLOCKS];
    let mut busy = [None; BLOCKS];
    let mut done = Vec::new();
    for step in 0..2000u64 {
        let block = random.below(BLOCKS);
        let kind = [OpKind::Read, OpKind::Write, OpKind::WriteFua][random.below(22) / 10];
        if busy[block].is_none() && queue.in_flight() < queue.depth() {
            let buf = pattern(step, BLOCK);
            if kind != OpKind::Read {
                model[block].copy_from_slice(&buf);
            }
            let slot = push(&mut *queue, op(kind, buf, (block * BLOCK) as u64));
            busy[block] = Some((slot, kind));
        }
        match random.below(8) {
            0 => queue.submit().expect("submit"),
            1 => queue.wait(Some(Duration::from_millis(1))).expect("wait"),
            _ => {}
        }
        if step == 1999 {
            done.extend(finish(&mut *queue));
        }
        // Some stay, behind which others are pushed.
        if random.below(4) == 0 || queue.in_flight() == queue.depth() {
            queue.reap(&mut done);
        }
        for completion in done.drain(..) {
            completion.result.expect("transfer");
            let owner =
                |b: &Option<(u32, OpKind)>| b.is_some_and(|(slot, _)| slot == completion.slot);
            let block = busy.iter().position(owner).expect("a slot in use");
            assert!(
                completion.buf[..] == model[block][..],
                "step {step} block {block}"
            );
            busy[block] = None;
        }
    }
    assert!(busy.iter().all(Option::is_none));
    for (i, expected) in model.iter().enumerate() {
        assert!(read(&*f.device, (i * BLOCK) as u64, BLOCK)[..] == expected[..]);
    }
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

fn atomic_write_is_a_unit_or_refused(fixture: &Fixture) {
    let device = &*fixture.device;
    let errno = |offset, len| {
        let buf = Buf::copy_of(&vec![9; len]);
        let blocking = device.write_atomic_at(offset, &buf, Durability::Cached);
        let mut queue = fixture.queue(2);
        let done = run_one(&mut *queue, Op::whole(OpKind::WriteAtomic, offset, buf));
        let queued = done.result.map_or_else(|e| e.errno(), |()| 0);
        assert_eq!(blocking.map_or_else(|e| e.errno(), |()| 0), queued);
        queued
    };
    let Some(units) = device.geometry().atomic else {
        assert_eq!(errno(0, 4096), libc::EOPNOTSUPP);
        let mut buf = vec![1; 4096];
        device.read_at(0, &mut buf).expect("read");
        return assert_eq!(buf, vec![0; 4096]);
    };
    let (min, max) = (units.min_bytes as usize, units.max_bytes as usize);
    assert_eq!((errno(0, min), errno(max as u64, max)), (0, 0));
    assert_eq!(errno(0, 2 * max), libc::EINVAL);
    assert_eq!(errno(min as u64 / 2, min), libc::EINVAL);
    let mut buf = vec![1; max];
    device.read_at(max as u64, &mut buf).expect("read");
    assert_eq!(buf, vec![9; max]);
}
