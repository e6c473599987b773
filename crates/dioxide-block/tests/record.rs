//! The recording device: order, epochs and replay.

use dioxide_block::mem::MemDevice;
use dioxide_block::record::{Action, Entry, Log, RecordDevice};
use dioxide_block::sim::{Fault, FaultKind, FaultOp, SimDevice};
use dioxide_block::{
    Buf, Completion, Device, Durability, Op, OpKind, Queue, QueueOptions, Seg, Segs,
};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const SIZE: u64 = 1 << 16;
const FUA: Durability = Durability::ForceUnitAccess;

fn recorded(inner: impl Device + 'static) -> RecordDevice {
    RecordDevice::new(Arc::new(inner))
}

fn mem() -> MemDevice {
    MemDevice::new(SIZE)
}

fn contents(device: &dyn Device) -> Vec<u8> {
    let mut all = vec![0; SIZE as usize];
    device.read_at(0, &mut all).expect("read");
    all
}

fn write(device: &dyn Device, sector: u64, byte: u8) {
    device
        .write_at(sector * 512, &[byte; 512], Durability::Cached)
        .expect("write");
}

fn replay(entries: &[Entry], copy: &dyn Device) {
    for entry in entries {
        entry.apply(copy).expect("a change that was taken before");
    }
}

fn entry(issued: u64, completed: impl Into<Option<u64>>, action: Action) -> Entry {
    Entry {
        issued,
        completed: completed.into(),
        action,
    }
}

fn wrote(sector: u64, byte: u8, fua: bool) -> Action {
    Action::Write {
        offset: sector * 512,
        bytes: [byte; 512].into(),
        fua,
        atomic: false,
    }
}

fn op(kind: OpKind, sectors: &[u64], byte: u8) -> Op {
    let mut buf = Buf::zeroed(sectors.len() * 512);
    buf.fill(byte);
    let seg = |(i, sector): (usize, &u64)| Seg {
        device_offset: sector * 512,
        buf_offset: i as u32 * 512,
        len: 512,
    };
    let segs = Segs::Many(sectors.iter().enumerate().map(seg).collect());
    Op { kind, buf, segs }
}

fn reap(queue: &mut dyn Queue, count: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    while done.len() < count {
        queue.wait(Some(Duration::from_secs(30))).expect("wait");
        assert!(queue.reap(&mut done) > 0, "nothing for 30 s");
    }
    done
}

#[test]
fn log_of_blocking_calls_has_everything_in_order() {
    let device = recorded(mem());
    write(&device, 1, 7);
    device.flush().expect("flush");
    device.write_at(0, &[8; 512], FUA).expect("write");
    device.write_zeroes(512, 1024).expect("zeroes");
    device.discard(4096, 512).expect("discard");
    contents(&device);
    let zeroes = Action::WriteZeroes {
        offset: 512,
        len: 1024,
    };
    let discard = Action::Discard {
        offset: 4096,
        len: 512,
    };
    let want = [
        entry(0, 1, wrote(1, 7, false)),
        entry(2, 3, Action::Flush),
        entry(4, 5, wrote(0, 8, true)),
        entry(6, 7, zeroes),
        entry(8, 9, discard),
    ];
    assert_eq!(device.log().entries(), want);
    assert_eq!(device.take_log().entries(), want);
    assert!(device.take_log().entries().is_empty());
}

#[test]
fn log_of_a_failed_write_has_no_completion() {
    let sim = SimDevice::new(Arc::new(mem()), "".parse().expect("spec"));
    sim.inject(Fault::once(FaultOp::Write, FaultKind::Short));
    let device = recorded(sim);
    assert!(device.write_at(0, &[1; 512], Durability::Cached).is_err());
    write(&device, 1, 2);
    let want = [
        entry(1, 2, wrote(1, 2, false)),
        entry(0, None, wrote(0, 1, false)),
    ];
    assert_eq!(device.log().entries(), want);
}

#[test]
fn log_leaves_out_what_the_device_refuses() {
    let device = recorded(mem());
    assert!(device.write_at(1, &[1; 512], FUA).is_err());
    assert!(device.write_zeroes(SIZE, 512).is_err());
    assert!(device.discard(0, 100).is_err());
    let mut queue = device.open_queue(&QueueOptions::default()).expect("queue");
    let past_the_end = op(OpKind::Write, &[SIZE / 512], 1);
    queue.push(past_the_end).expect("room");
    assert!(reap(&mut *queue, 1)[0].result.is_err());
    assert!(device.log().entries().is_empty());
}

#[test]
fn log_of_a_write_that_races_with_a_flush_puts_it_after_the_flush() {
    let sim = SimDevice::new(Arc::new(mem()), "".parse().expect("spec"));
    let device = recorded(sim.clone());
    write(&device, 0, 1);
    let hold = sim.hold(None, FaultOp::Flush);
    thread::scope(|s| {
        let flush = s.spawn(|| device.flush());
        hold.wait_for(1);
        write(&device, 1, 2);
        hold.release();
        flush.join().expect("no panic").expect("flush");
    });
    let log = device.take_log();
    let epochs: Vec<_> = log.epochs().collect();
    assert_eq!(epochs.len(), 2);
    assert_eq!(epochs[0].changes, [entry(0, 1, wrote(0, 1, false))]);
    assert_eq!(epochs[0].flush, Some(&entry(2, 5, Action::Flush)));
    assert_eq!(epochs[1].changes, [entry(3, 4, wrote(1, 2, false))]);
    assert_eq!(epochs[1].flush, None);
}

#[test]
fn log_taken_while_a_write_is_in_flight_has_it_in_both() {
    let sim = SimDevice::new(Arc::new(mem()), "".parse().expect("spec"));
    let device = recorded(sim.clone());
    let hold = sim.hold(None, FaultOp::Write);
    thread::scope(|s| {
        s.spawn(|| write(&device, 0, 1));
        hold.wait_for(1);
        assert_eq!(
            device.take_log().entries(),
            [entry(0, None, wrote(0, 1, false))]
        );
        hold.release();
    });
    assert_eq!(
        device.take_log().entries(),
        [entry(0, 1, wrote(0, 1, false))]
    );
}

#[test]
fn epochs_end_at_completed_flushes_only() {
    let log = Log::new(vec![
        entry(0, 1, wrote(0, 1, false)),
        entry(2, None, Action::Flush),
        entry(3, 4, wrote(1, 1, false)),
        entry(5, 6, Action::Flush),
    ]);
    let epochs: Vec<_> = log.epochs().collect();
    assert_eq!(epochs.len(), 1);
    assert_eq!(
        (epochs[0].changes.len(), epochs[0].flush.is_some()),
        (3, true)
    );
    assert_eq!(Log::default().epochs().count(), 0);
}

#[test]
fn queue_logs_pieces_at_push_and_reap() {
    let device = recorded(mem());
    let options = QueueOptions {
        depth: 2,
        ..QueueOptions::default()
    };
    let mut queue = device.open_queue(&options).expect("queue");
    queue.push(op(OpKind::WriteFua, &[3, 1], 9)).expect("room");
    queue.push(op(OpKind::Flush, &[], 0)).expect("room");
    assert!(queue.push(op(OpKind::Write, &[5], 1)).is_err(), "full");
    let in_flight = device.log();
    assert_eq!(in_flight.entries().len(), 3);
    assert!(in_flight.entries().iter().all(|e| e.completed.is_none()));
    reap(&mut *queue, 2);
    queue.push(op(OpKind::Read, &[1], 0)).expect("room");
    assert_eq!(reap(&mut *queue, 1)[0].buf[..], [9; 512]);
    // The flush was issued before anything completed, so it stands first and covers nothing.
    let want = [
        entry(2, 5, Action::Flush),
        entry(0, 3, wrote(3, 9, true)),
        entry(1, 4, wrote(1, 9, true)),
    ];
    assert_eq!(device.take_log().entries(), want);
}

#[test]
fn queue_with_a_bad_piece_logs_the_rest_without_completion() {
    let device = recorded(mem());
    let mut queue = device.open_queue(&QueueOptions::default()).expect("queue");
    let mut bad = op(OpKind::Write, &[0, 1], 4);
    bad.buf.set_len(512);
    queue.push(bad).expect("room");
    assert!(reap(&mut *queue, 1)[0].result.is_err());
    assert_eq!(device.log().entries(), [entry(0, None, wrote(0, 4, false))]);
}

#[test]
fn replay_of_a_prefix_gives_the_state_of_that_moment() {
    let device = recorded(mem());
    let mut states = vec![contents(&device)];
    let mut step = |change: &dyn Fn()| {
        change();
        states.push(contents(&device));
    };
    step(&|| write(&device, 0, 1));
    step(&|| device.flush().expect("flush"));
    step(&|| write(&device, 0, 2));
    step(&|| device.write_at(1024, &[3; 2048], FUA).expect("write"));
    step(&|| device.write_zeroes(1536, 512).expect("zeroes"));
    step(&|| device.discard(0, 512).expect("discard"));
    let log = device.take_log();
    for (upto, state) in states.iter().enumerate() {
        let copy = mem();
        replay(&log.entries()[..upto], &copy);
        assert_eq!(&contents(&copy), state, "after {upto}");
    }
}

#[test]
fn recorded_threads_replay_to_the_same_contents() {
    let device = recorded(mem());
    thread::scope(|s| {
        for t in 0..4u8 {
            let device = &device;
            s.spawn(move || {
                let mut queue = device.open_queue(&QueueOptions::default()).expect("queue");
                for i in 0..200u64 {
                    let sector = u64::from(t) * 32 + i % 32;
                    write(device, sector, i as u8);
                    queue.push(op(OpKind::Write, &[sector], t)).expect("room");
                    reap(&mut *queue, 1);
                }
            });
        }
    });
    let log = device.take_log();
    assert_eq!(log.entries().len(), 1600);
    let numbers = log
        .entries()
        .iter()
        .flat_map(|e| [Some(e.issued), e.completed]);
    let mut numbers: Vec<_> = numbers.map(|n| n.expect("all completed")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..3200).collect::<Vec<_>>());
    let copy = mem();
    replay(log.entries(), &copy);
    assert!(contents(&copy) == contents(&device));
}

#[test]
fn atomic_writes_are_marked() {
    let spec = "atomic=2KiB".parse().expect("spec");
    let device = recorded(SimDevice::new(Arc::new(mem()), spec));
    device
        .write_atomic_at(2048, &[1; 2048], Durability::Cached)
        .expect("a unit");
    device
        .write_atomic_at(1024, &[2; 1024], FUA)
        .expect("a unit");
    let mut queue = device
        .open_queue(&QueueOptions::default())
        .expect("a queue");
    let buf = Buf::copy_of(&[3; 1024]);
    queue
        .push(Op::whole(OpKind::WriteAtomic, 4096, buf))
        .expect("room");
    // In two pieces it is none.
    queue
        .push(op(OpKind::WriteAtomic, &[0, 1], 4))
        .expect("room");
    let refused = reap(&mut *queue, 2)
        .into_iter()
        .filter(|it| it.result.is_err());
    assert_eq!(refused.count(), 1);
    let log = device.log();
    let told: Vec<(u64, usize, bool)> = log
        .entries()
        .iter()
        .map(|entry| match &entry.action {
            Action::Write {
                offset,
                bytes,
                fua,
                atomic: true,
            } => (*offset, bytes.len(), *fua),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        told,
        [(2048, 2048, false), (1024, 1024, true), (4096, 1024, false)]
    );
}
