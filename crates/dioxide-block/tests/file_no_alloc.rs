//! The hot paths allocate nothing: counted by this binary's allocator.
mod host;

use dioxide_block::file::{Backend, NullSink};
use dioxide_block::mem::MemDevice;
use dioxide_block::sim::SimDevice;
use dioxide_block::{Buf, BufPool, Completion, Device, Durability, OpKind, QueueOptions};
use dioxide_testkit::memory::{Counting, allocations_of};
use host::{MIB, op, push, writable};
use std::sync::Arc;

#[global_allocator]
static COUNTING: Counting = Counting;

fn blocking(device: &dyn Device) -> usize {
    let mut buf = Buf::zeroed(4096);
    allocations_of(|| {
        for i in 0..200 {
            device.write_at(i * 4096, &buf, Durability::Cached).unwrap();
            device.read_at(i * 4096, &mut buf).unwrap();
        }
    })
}

fn queued(device: &dyn Device) -> usize {
    let pool = BufPool::new(32, 4096);
    let options = QueueOptions {
        depth: 32,
        pool: Some(pool.clone()),
        ..QueueOptions::default()
    };
    let mut queue = device.open_queue(&options).unwrap();
    let mut done: Vec<Completion> = Vec::with_capacity(64);
    let mut round = || {
        for i in 0..32 {
            let kind = [OpKind::Read, OpKind::Write][i as usize % 2];
            push(&mut *queue, op(kind, pool.take().unwrap(), i * 4096));
        }
        queue.submit().unwrap();
        while queue.in_flight() > 0 {
            queue.wait(None).unwrap();
            queue.reap(&mut done);
            done.drain(..).for_each(|c| c.result.unwrap());
        }
    };
    round();
    allocations_of(|| (0..50).for_each(|_| round()))
}

fn check(device: &dyn Device) {
    assert_eq!(blocking(device), 0, "blocking, {}", device.describe());
    assert_eq!(queued(device), 0, "queued, {}", device.describe());
}

#[test]
fn counter_sees_an_allocation() {
    assert_eq!(
        allocations_of(|| drop(std::hint::black_box(Box::new(1)))),
        1
    );
}

#[test]
fn memory_allocates_nothing_per_request() {
    check(&MemDevice::new(MIB));
}

#[test]
fn files_allocate_nothing_per_request() {
    for backend in [Backend::Pread, Backend::Mmap, Backend::Uring] {
        for file in [host::shm_file(MIB), host::disk_file(MIB)] {
            check(&*host::open(file.path(), &writable(backend)));
        }
    }
}

#[test]
fn null_sink_allocates_nothing_per_request() {
    check(&NullSink::new(Arc::new(MemDevice::new(MIB))).unwrap());
}

#[test]
fn simulated_device_allocates_nothing_per_request() {
    let spec = "latency=5us..20us,iops=2M".parse().unwrap();
    check(&SimDevice::new(Arc::new(MemDevice::new(MIB)), spec));
}
