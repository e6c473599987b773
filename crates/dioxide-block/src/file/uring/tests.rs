//! What only the inside of the queue can show: odd transfers, odd rings, odd ends.

use super::setup::builders;
use super::*;
use crate::BufPool;
use crate::file::guard::Locked;
use crate::file::{Backend, FileOptions, probe};
use std::os::fd::BorrowedFd;

fn polled(file: &tempfile::NamedTempFile) -> UringQueue {
    let options = QueueOptions {
        iopoll: true,
        ..QueueOptions::default()
    };
    over(file, options)
}

fn over(file: &tempfile::NamedTempFile, options: QueueOptions) -> UringQueue {
    let open = FileOptions {
        backend: Backend::Uring,
        ..FileOptions::default()
    };
    let io = probe::open(file.path(), &open).expect("opens");
    let options = QueueOptions {
        depth: 4,
        ..options
    };
    UringQueue::new(Arc::new(io), &options, false).expect("a ring")
}

fn sparse() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    file
}

/// Holes need no device, so a polled ring can read them on any machine.
#[test]
fn polled_ring_completes_reads_and_flushes() {
    let file = sparse();
    let mut queue = polled(&file);
    for kind in [OpKind::Read, OpKind::Flush, OpKind::Read] {
        let segs = Segs::One(Seg {
            device_offset: 4096,
            buf_offset: 0,
            len: 4096,
        });
        let buf = Buf::copy_of(&[7; 4096]);
        queue.push(Op { kind, buf, segs }).expect("room");
    }
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.wait(None).unwrap();
        queue.reap(&mut done);
    }
    assert_eq!(done.len(), 3);
    for completion in done {
        completion.result.unwrap();
        let expected = if completion.slot == 1 { 7 } else { 0 };
        assert!(completion.buf.iter().all(|&b| b == expected));
    }
}

#[test]
fn polled_ring_wakes_and_times_out() {
    let file = sparse();
    let mut queue = polled(&file);
    let waker = queue.waker();
    let begun = Instant::now();
    queue.wait(Some(Duration::from_millis(20))).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(20));
    let thread = std::thread::spawn(move || waker.wake());
    queue.wait(Some(Duration::from_secs(20))).unwrap();
    thread.join().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10));
}

/// The kernel's thread completes what needs no device before it says that there is room where the entries were.
#[test]
fn ring_with_a_thread_of_the_kernel_does_not_sleep_for_what_it_has_not_got() {
    const PATIENCE: Duration = Duration::from_secs(20);
    let file = sparse();
    let begun = Instant::now();
    let rounds = |queue: &mut UringQueue| {
        let mut done = Vec::new();
        for _ in 0..10 {
            for at in 0..4 {
                let op = Op::whole(OpKind::Read, at * 512, Buf::zeroed(512));
                queue.push(op).expect("room");
            }
            while queue.in_flight() > 0 {
                queue.wait(Some(PATIENCE)).unwrap();
                queue.reap(&mut done);
            }
            done.drain(..).for_each(|done| done.result.unwrap());
        }
    };
    let rings = || {
        while begun.elapsed() < Duration::from_secs(3) {
            let options = QueueOptions {
                sqpoll: true,
                ..QueueOptions::default()
            };
            rounds(&mut over(&file, options));
        }
    };
    // The kernel's thread loses its processor between the two if there are more threads than processors.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(rings);
        }
    });
    assert!(begun.elapsed() < PATIENCE);
}

#[test]
fn registered_parts_hold_whole_buffers() {
    let io = probe::open(sparse().path(), &FileOptions::default()).unwrap();
    let ring = build_ring(&QueueOptions::default()).unwrap();
    let pool = BufPool::new(3, 1 << 20);
    let registered = register(&ring, &io, Some(&pool)).unwrap().expect("3 MiB");
    assert_eq!(registered.part_bytes, 1 << 30);
    let odd = BufPool::new(2, 3 << 20);
    let ring = build_ring(&QueueOptions::default()).unwrap();
    let registered = register(&ring, &io, Some(&odd)).unwrap().expect("6 MiB");
    assert_eq!(
        registered.part_bytes % (3 << 20),
        0,
        "no buffer straddles two parts"
    );
}

/// Every kind of ring that some kernel may leave us with.
#[test]
fn older_rings_read_flush_and_wake() {
    let file = sparse();
    let options = QueueOptions {
        depth: 4,
        ..QueueOptions::default()
    };
    for builder in builders(&options) {
        let io = probe::open(file.path(), &FileOptions::default()).unwrap();
        let mut queue = UringQueue::new(Arc::new(io), &options, false).unwrap();
        queue.ring = builder.build(4).unwrap();
        register(&queue.ring, &queue.io, None).unwrap();
        let waker = queue.waker();
        waker.wake();
        queue.wait(None).unwrap();
        for round in 0..20 {
            let kind = [OpKind::Read, OpKind::Flush][round % 2];
            let segs = Segs::One(Seg {
                device_offset: 0,
                buf_offset: 0,
                len: 512,
            });
            let buf = Buf::copy_of(&[7; 512]);
            queue.push(Op { kind, buf, segs }).expect("room");
            queue.wait(None).unwrap();
            let mut done = Vec::new();
            assert_eq!(queue.reap(&mut done), 1);
            done.pop().unwrap().result.unwrap();
        }
    }
}

/// Rings before Linux 5.18 stop at an entry that the kernel refuses.
#[test]
fn what_follows_a_refused_entry_is_submitted_too() {
    let file = sparse();
    let mut queue = over(&file, QueueOptions::default());
    let plain = builders(&queue.options).pop().expect("a plain ring");
    queue.ring = plain.build(4).unwrap();
    register(&queue.ring, &queue.io, None).unwrap();
    let refused = io_uring::opcode::Nop::new().build();
    let refused = refused.flags(io_uring::squeue::Flags::BUFFER_SELECT);
    // SAFETY: a `Nop` has no memory.
    unsafe { queue.ring.submission().push(&refused.user_data(WAKER)) }.expect("room");
    let segs = Segs::One(Seg {
        device_offset: 0,
        buf_offset: 0,
        len: 512,
    });
    let buf = Buf::copy_of(&[7; 512]);
    let kind = OpKind::Read;
    queue.push(Op { kind, buf, segs }).expect("room");
    queue.submit().unwrap();
    assert!(queue.ring.submission().is_empty());
    let mut done = Vec::new();
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while queue.reap(&mut done) == 0 {
        assert!(std::time::Instant::now() < until, "it was left in the ring");
    }
}

/// A pipe gives what is there, which is how a short transfer is had at will.
#[test]
fn short_transfer_is_issued_again_for_the_rest() {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut io = probe::open(sparse().path(), &FileOptions::default()).unwrap();
    io.fd = Locked::new(reader.into());
    let options = QueueOptions {
        depth: 2,
        ..QueueOptions::default()
    };
    let mut queue = UringQueue::new(Arc::new(io), &options, false).unwrap();
    let buf = Buf::zeroed(4096);
    let piece = |buf_offset| Seg {
        device_offset: 0,
        buf_offset,
        len: 1024,
    };
    let segs = Segs::Many(Box::new([piece(2048)]));
    let kind = OpKind::Read;
    queue.push(Op { kind, buf, segs }).expect("room");
    let mut done = Vec::new();
    for part in [&[1u8; 600][..], &[2; 400], &[3; 24]] {
        assert!(done.is_empty());
        rustix::io::write(&writer, part).unwrap();
        queue.wait(Some(Duration::from_millis(20))).unwrap();
        queue.reap(&mut done);
    }
    let completion = done.pop().expect("complete");
    completion.result.unwrap();
    let mut expected = [0; 4096];
    expected[2048..2648].fill(1);
    expected[2648..3048].fill(2);
    expected[3048..3072].fill(3);
    assert!(completion.buf[..] == expected);
}

/// The ring has room for seven pieces. What lies behind them is left alone once one has failed.
#[test]
fn operation_that_has_failed_issues_nothing_more() {
    let file = sparse();
    let mut queue = over(&file, QueueOptions::default());
    file.as_file().set_len(512 << 10).unwrap();
    let piece = |at: u32| Seg {
        // The first is beyond what is left of the file.
        device_offset: if at == 0 { 768 << 10 } else { 4096 },
        buf_offset: at * 4096,
        len: 4096,
    };
    for _ in 0..6 {
        let buf = Buf::copy_of(&[7; 40 * 4096]);
        let segs = Segs::Many((0..40).map(piece).collect());
        let kind = OpKind::Read;
        queue.push(Op { kind, buf, segs }).expect("room");
        let mut done = Vec::new();
        while queue.in_flight() > 0 {
            queue.wait(None).unwrap();
            queue.reap(&mut done);
        }
        let [completion] = &done[..] else {
            panic!("{} completions", done.len());
        };
        completion
            .result
            .as_ref()
            .expect_err("it has a piece that is not there");
        assert!(completion.buf[20 * 4096..].iter().all(|&byte| byte == 7));
    }
}

/// A queue that reads from a pipe, and the pipe's other end.
fn on_a_pipe() -> (UringQueue, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut io = probe::open(sparse().path(), &FileOptions::default()).unwrap();
    io.fd = Locked::new(reader.into());
    let queue = UringQueue::new(Arc::new(io), &QueueOptions::default(), false);
    (queue.unwrap(), writer)
}

fn read_512(buf: Buf) -> Op {
    let segs = Segs::One(Seg {
        device_offset: 0,
        buf_offset: 0,
        len: 512,
    });
    let kind = OpKind::Read;
    Op { kind, buf, segs }
}

#[test]
fn dropped_queue_waits_for_what_is_in_flight() {
    let (send, receive) = std::sync::mpsc::channel();
    let (mut queue, writer) = on_a_pipe();
    let thread = std::thread::spawn(move || {
        queue.push(read_512(Buf::zeroed(512))).expect("room");
        queue.submit().unwrap();
        drop(queue);
        send.send(()).unwrap();
    });
    let early = receive.recv_timeout(Duration::from_millis(100));
    assert!(early.is_err(), "dropped while the kernel had the buffer");
    rustix::io::write(&writer, &[1; 512]).unwrap();
    receive.recv_timeout(Duration::from_secs(20)).unwrap();
    thread.join().unwrap();
}

#[test]
fn queue_dropped_elsewhere_with_operations_in_flight_leaks_them() {
    let pool = BufPool::new(1, 4096);
    let (mut queue, _writer) = on_a_pipe();
    queue.push(read_512(pool.take().unwrap())).expect("room");
    queue.submit().unwrap();
    std::thread::spawn(move || drop(queue)).join().unwrap();
    assert!(pool.take().is_none(), "the kernel may still write into it");
}

/// Of a queue that is lost, the kernel may still write: nobody else gets the image until it has taken the ring apart.
#[test]
fn image_of_a_lost_queue_stays_locked_as_long_as_its_ring_is_there() {
    let (image, behind) = (sparse(), sparse());
    let open = FileOptions {
        backend: Backend::Uring,
        write: true,
        ..FileOptions::default()
    };
    let mut io = probe::open(image.path(), &open).expect("opens");
    let other = probe::open(behind.path(), &open).expect("opens");
    io.behind.push(other.fd);
    let mut queue = UringQueue::new(Arc::new(io), &QueueOptions::default(), false).unwrap();
    // A request that has no end.
    let (reader, _writer) = std::io::pipe().unwrap();
    let reader_fd = io_uring::types::Fd(reader.as_raw_fd());
    let poll = opcode::PollAdd::new(reader_fd, libc::POLLIN as u32).build();
    // SAFETY: a poll touches no memory of ours.
    unsafe { queue.ring.submission().push(&poll.user_data(0)) }.expect("room");
    queue.written += 1;
    queue.submit().unwrap();
    // SAFETY: the queue has the ring's descriptor.
    let ring = unsafe { BorrowedFd::borrow_raw(queue.ring.as_raw_fd()) };
    let ring = ring.try_clone_to_owned().unwrap();
    std::thread::spawn(move || drop(queue)).join().unwrap();
    for file in [&image, &behind] {
        let opened = probe::open(file.path(), &open);
        assert!(matches!(opened, Err(Error::Busy { .. })), "{opened:?}");
    }
    drop(ring);
    let until = Instant::now() + Duration::from_secs(20);
    while [&image, &behind].map(|file| probe::open(file.path(), &open).is_err()) != [false; 2] {
        assert!(Instant::now() < until, "the locks stay for ever");
        std::thread::yield_now();
    }
}

#[test]
fn short_transfer_moves_to_another_thread_once() {
    let (mut queue, writer) = on_a_pipe();
    rustix::io::write(&writer, &[1; 500]).unwrap();
    queue.push(read_512(Buf::zeroed(512))).expect("room");
    queue.submit().unwrap();
    let mut done = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            queue.wait(Some(Duration::from_millis(20))).unwrap();
            rustix::io::write(&writer, &[2; 100]).unwrap();
            queue.wait(None).unwrap();
            queue.reap(&mut done);
            assert_eq!((queue.in_flight(), queue.outstanding()), (0, 0));
        });
    });
    let buf = done.pop().expect("complete").buf;
    assert_eq!((buf[499], buf[500], buf[511]), (1, 2, 2));
}

#[test]
fn transfer_that_stops_is_an_error() {
    let (mut queue, writer) = on_a_pipe();
    rustix::io::write(&writer, &[1; 100]).unwrap();
    drop(writer);
    queue.push(read_512(Buf::zeroed(512))).expect("room");
    queue.wait(None).unwrap();
    let mut done = Vec::new();
    assert_eq!(queue.reap(&mut done), 1);
    let error = done.pop().unwrap().result.unwrap_err();
    assert!(matches!(*error, Error::Io { len: 412, .. }), "{error}");
}

/// No file system here promises anything; the kernel must hear all the same what it is asked for, and refuse it. Buffers
/// that are registered would be refused for another reason.
#[test]
fn kernel_is_asked_for_atomic_writes() {
    let file = sparse();
    let open = FileOptions {
        backend: Backend::Uring,
        write: true,
        ..FileOptions::default()
    };
    let mut io = probe::open(file.path(), &open).expect("opens");
    if io.geometry.atomic.is_some() {
        return;
    }
    io.geometry.atomic = crate::AtomicUnits::new(4096, 65536);
    let pool = BufPool::new(1, 4096);
    let options = QueueOptions {
        pool: Some(pool.clone()),
        depth: 4,
        ..QueueOptions::default()
    };
    for durability in [
        crate::Durability::Cached,
        crate::Durability::ForceUnitAccess,
    ] {
        let error = io.write_atomic_at(4096, &[7; 4096], durability);
        assert_eq!(error.expect_err("no promise").errno(), libc::EOPNOTSUPP);
    }
    let mut queue = UringQueue::new(Arc::new(io), &options, false).expect("a ring");
    let mut registered = pool.take().expect("one");
    registered.fill(7);
    for buf in [Buf::copy_of(&[7; 4096]), registered] {
        let op = Op::whole(OpKind::WriteAtomic, 4096, buf);
        queue.push(op).expect("room");
    }
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.wait(None).unwrap();
        queue.reap(&mut done);
    }
    assert_eq!(done.len(), 2);
    for completion in done {
        let error = completion.result.expect_err("no promise");
        assert_eq!(error.errno(), libc::EOPNOTSUPP);
    }
    assert!(std::fs::read(file.path()).unwrap().iter().all(|&b| b == 0));
}
