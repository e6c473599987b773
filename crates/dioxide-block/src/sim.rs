//! A device that imitates a slower or a failing one: latency, ceilings, faults, requests held in
//! flight.
//!
//! [`SimDevice`] wraps any device. The data moves through the wrapped device as fast as that goes,
//! and the completion is then kept back until the time at which the imitated device would have
//! given it. [`SimSpec`] says what is imitated, and its documentation holds the grammar of its
//! text form.
//!
//! # The model
//! A request that is issued at `now` completes at
//! `max(now + latency, the end of its slot on the device's clock)`. The latency is drawn for each
//! request; the ceilings (requests per second, bytes per second, parallel channels) are one clock,
//! which each request moves forward by its share of the device's time. So a device below its
//! ceiling answers after its latency, and one at its ceiling answers at the ceiling's rate, however
//! many requests wait.
//!
//! # When data is visible
//! A write reaches the wrapped device, and a read takes its data from there, when the request is
//! issued: before `read_at` and `write_at` wait, and inside [`Queue::push`]. Visible early, reported
//! on time: a device may do that, and a test that relies on more is wrong. Only a request that is
//! held (see [`Hold`]) moves its data when it is let go. A write that a fault fails does not reach the
//! wrapped device, except the first part of one that [`FaultKind::Short`] or [`FaultKind::Torn`] cuts.
//!
//! # Time
//! `push` takes no time stamp; `submit` reads the clock once and issues everything pushed since the
//! last one, `reap` reads it once more. Blocking calls and [`Queue::wait`] sleep until shortly before
//! the time, learn how shortly that must be, and watch the clock for the rest. On two virtual
//! processors that other work loaded too, half of the blocking calls ended within 0.5 µs of their
//! time with one thread and within 6 µs with eight; `tests/sim.rs` measures it. The threads that
//! wait here get a timer slack of one nanosecond, for good.
//!
//! # Determinism
//! Latencies are a function of the seed, the stream and the request's number in it. The blocking
//! calls are one stream, each queue is one of its own, numbered as they are opened.
//!
//! # Rejected
//! A thread that owns the simulated device and completes requests: a hand-off between threads costs
//! more than the latencies to be imitated. Channels as separate servers: a request's latency
//! divided by the number of channels, on the same clock, gives the same rate and needs one atomic.

mod faults;
mod gate;
mod model;
mod pacer;
mod queue;
mod spec;

pub use faults::{Fault, FaultId, FaultKind, FaultOp};
pub use gate::Hold;
pub use spec::{Latency, SimSpec, Tail};

use crate::{Device, Durability, Geometry, Queue, QueueOptions, Result};
use faults::{Access, Payload, Rules};
use gate::Gate;
use model::{Model, Stream, Work};
use pacer::Pacer;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A simulated device. Clones are the same device. See the module's documentation.
#[derive(Clone, Debug)]
pub struct SimDevice(Arc<Sim>);

#[derive(Debug)]
struct Sim {
    inner: Arc<dyn Device>,
    geometry: Geometry,
    spec: SimSpec,
    model: Model,
    rules: Arc<Rules>,
    pacer: Pacer,
    blocking: Stream,
    queues: AtomicU64,
}

impl SimDevice {
    /// Imitates what `spec` says in front of `inner`.
    ///
    /// The geometry is that of `inner`, with these changes: it is never `inline`, a device whose
    /// flush takes time has a volatile cache, and atomic units are those of `spec`, if it has any.
    pub fn new(inner: Arc<dyn Device>, spec: SimSpec) -> SimDevice {
        let mut geometry = inner.geometry().clone();
        geometry.inline = false;
        geometry.volatile_cache |= !spec.flush.is_zero();
        if let Some(units) = spec.atomic {
            geometry.atomic = units.within(geometry.logical_block_bytes, units.max_bytes);
        }
        SimDevice(Arc::new(Sim {
            inner,
            geometry,
            model: Model::new(&spec),
            blocking: Stream::new(spec.seed, 0),
            spec,
            rules: Arc::default(),
            pacer: Pacer::default(),
            queues: AtomicU64::new(0),
        }))
    }

    /// What is imitated.
    pub fn spec(&self) -> &SimSpec {
        &self.0.spec
    }

    /// Arms a fault. It stays armed until its count is used up or it is removed.
    pub fn inject(&self, fault: Fault) -> FaultId {
        self.0.rules.inject(fault)
    }

    /// Removes a fault. Returns how many requests it has hit, or `None` if it was removed before.
    pub fn remove(&self, id: FaultId) -> Option<u64> {
        self.0.rules.remove(id)
    }

    /// How many requests a fault has hit; `None` once it was removed.
    pub fn hits(&self, id: FaultId) -> Option<u64> {
        self.0.rules.hits(id)
    }

    /// Holds every later request that touches `range` (bytes on the device; `None`: any request) and
    /// is of kind `op`, until the returned [`Hold`] lets it go or is dropped.
    pub fn hold(&self, range: Option<Range<u64>>, op: FaultOp) -> Hold {
        let gate = Arc::new(Gate::new(op, range));
        self.0.rules.add_gate(gate.clone());
        Hold::new(gate, self.0.rules.clone())
    }
}

impl Sim {
    /// One blocking request from its arrival to its completion time.
    fn block(&self, access: Access, payload: Payload<'_>) -> Result<()> {
        for ticket in self.rules.join(&access, None) {
            ticket.wait();
        }
        let work = Work::of(&access, &payload);
        let due = self
            .model
            .is_timed()
            .then(|| self.model.due(&work, &self.blocking, pacer::now_ns()));
        let verdict = self.rules.judge(&access);
        let result = faults::perform(&*self.inner, &access, payload, verdict.failure);
        match due {
            Some(due) => self.pacer.sleep_until(due + verdict.delay_ns),
            None if verdict.delay_ns > 0 => {
                self.pacer.sleep_until(pacer::now_ns() + verdict.delay_ns);
            }
            None => {}
        }
        result
    }
}

impl Device for SimDevice {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len() as u64;
        self.0.geometry.check("read", offset, len)?;
        let access = Access::new(FaultOp::Read, offset, len);
        self.0.block(access, Payload::Read(buf))
    }

    fn read_past_cache_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len() as u64;
        self.0.geometry.check("read", offset, len)?;
        let access = Access::new(FaultOp::Read, offset, len);
        self.0.block(access, Payload::ReadPastCache(buf))
    }

    fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        let len = buf.len() as u64;
        self.0.geometry.check("write", offset, len)?;
        let access = Access::new(FaultOp::Write, offset, len);
        self.0.block(access, Payload::Write(buf, durability))
    }

    fn write_atomic_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        let len = buf.len() as u64;
        self.0.geometry.check_atomic(offset, len)?;
        let access = Access::new(FaultOp::Write, offset, len);
        self.0.block(access, Payload::WriteAtomic(buf, durability))
    }

    fn flush(&self) -> Result<()> {
        let access = Access::new(FaultOp::Flush, 0, 0);
        self.0.block(access, Payload::Flush)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.geometry.check("discard", offset, len)?;
        let access = Access::new(FaultOp::Discard, offset, len);
        self.0.block(access, Payload::Discard)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.0.geometry.check("write zeroes", offset, len)?;
        let access = Access::new(FaultOp::Write, offset, len);
        self.0.block(access, Payload::Zeroes)
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        let number = self.0.queues.fetch_add(1, Ordering::Relaxed) + 1;
        let stream = Stream::new(self.0.spec.seed, number);
        Ok(Box::new(queue::SimQueue::new(
            self.0.clone(),
            stream,
            options,
        )))
    }

    fn describe(&self) -> String {
        format!("sim({}, {})", self.0.inner.describe(), self.0.spec)
    }
}
