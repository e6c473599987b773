//! The queue of a simulated device.
//!
//! Invariants: each slot below the depth is in exactly one place: `free`, `held`, `pushed` or
//! `timeline`. `slots[i]` holds the operation's memory and result while `i` is in one of the last
//! two. Nothing here grows past the depth, except that holds, which only tests use, allocate.
//! An operation that was held has a slot before it meets the device, so one in which the device panics
//! completes, with an error.

use super::Sim;
use super::faults::{self, Access, FaultOp, Payload};
use super::gate::Ticket;
use super::model::{Stream, Work};
use super::pacer::{Park, now_ns};
use crate::{
    Buf, Completion, Durability, Error, Op, OpKind, Queue, QueueOptions, Result, Seg, SlotId, Waker,
};
use std::any::Any;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct SimQueue {
    sim: Arc<Sim>,
    stream: Stream,
    depth: u32,
    slots: Vec<Slot>,
    free: Vec<SlotId>,
    held: Vec<Held>,
    pushed: Vec<Pushed>,
    /// Due time in nanoseconds, and slot; the earliest on top.
    timeline: BinaryHeap<Reverse<(u64, SlotId)>>,
    park: Arc<Park>,
}

#[derive(Debug)]
struct Slot {
    buf: Buf,
    result: Result<(), Box<Error>>,
}

/// Waits for gates; has not touched the device.
#[derive(Debug)]
struct Held {
    slot: SlotId,
    op: Op,
    tickets: Vec<Ticket>,
}

/// Has moved its data; its time begins at the next submit.
#[derive(Clone, Copy, Debug)]
struct Pushed {
    slot: SlotId,
    work: Work,
    delay_ns: u64,
}

impl Pushed {
    fn new(slot: SlotId, kind: OpKind) -> Pushed {
        Pushed {
            slot,
            work: Work {
                kind,
                bytes: 0,
                pieces: 0,
            },
            delay_ns: 0,
        }
    }
}

/// What a device panicked with.
type Panic = Box<dyn Any + Send>;

impl SimQueue {
    pub(super) fn new(sim: Arc<Sim>, stream: Stream, options: &QueueOptions) -> SimQueue {
        let depth = options.real_depth();
        let size = depth as usize;
        let empty = || Slot {
            buf: Buf::empty(),
            result: Ok(()),
        };
        SimQueue {
            sim,
            stream,
            depth,
            slots: (0..depth).map(|_| empty()).collect(),
            free: (0..depth).rev().collect(),
            held: Vec::new(),
            pushed: Vec::with_capacity(size),
            timeline: BinaryHeap::with_capacity(size),
            park: Arc::default(),
        }
    }

    /// Moves the data of an operation and queues it for the next submit.
    fn start(&mut self, slot: SlotId, mut op: Op) {
        let mut pushed = Pushed::new(slot, op.kind);
        let result = self.run(&mut op, &mut pushed);
        self.queue(pushed, op, result);
    }

    /// As `start`, of one that has its slot. What the device panicked with, if it did.
    fn start_held(&mut self, slot: SlotId, mut op: Op) -> Option<Panic> {
        let mut pushed = Pushed::new(slot, op.kind);
        let ran = catch_unwind(AssertUnwindSafe(|| self.run(&mut op, &mut pushed)));
        let (result, panic) = match ran {
            Ok(result) => (result, None),
            Err(panic) => (Err(panicked(&op)), Some(panic)),
        };
        self.queue(pushed, op, result);
        panic
    }

    fn queue(&mut self, pushed: Pushed, op: Op, result: Result<()>) {
        self.slots[pushed.slot as usize] = Slot {
            buf: op.buf,
            result: result.map_err(Box::new),
        };
        self.pushed.push(pushed);
    }

    fn run(&self, op: &mut Op, pushed: &mut Pushed) -> Result<()> {
        if op.kind == OpKind::Flush {
            let access = Access::new(FaultOp::Flush, 0, 0);
            return self.piece(access, Payload::Flush, pushed);
        }
        if op.kind == OpKind::WriteAtomic {
            op.check_atomic(&self.sim.geometry)?;
        }
        for seg in op.segs.as_slice() {
            seg.check(op.kind.name(), &self.sim.geometry, op.buf.len())?;
            let from = seg.buf_offset as usize;
            let bytes = &mut op.buf[from..from + seg.len as usize];
            pushed.work.bytes += u64::from(seg.len);
            pushed.work.pieces += 1;
            self.piece(access(op.kind, seg), payload(op.kind, bytes), pushed)?;
        }
        Ok(())
    }

    fn piece(&self, access: Access, payload: Payload<'_>, pushed: &mut Pushed) -> Result<()> {
        let verdict = self.sim.rules.judge(&access);
        pushed.delay_ns += verdict.delay_ns;
        faults::perform(&*self.sim.inner, &access, payload, verdict.failure)
    }

    fn join_gates(&self, op: &Op) -> Vec<Ticket> {
        let join = |access: &Access| self.sim.rules.join(access, Some(&self.park));
        match op.kind {
            OpKind::Flush => join(&Access::new(FaultOp::Flush, 0, 0)),
            kind => {
                let segs = op.segs.as_slice().iter();
                segs.flat_map(|seg| join(&access(kind, seg))).collect()
            }
        }
    }

    /// Starts what was held and may go on. The first panic of the device, if there was one.
    fn start_released(&mut self) -> Option<Panic> {
        let (mut at, mut first) = (0, None);
        while at < self.held.len() {
            match self.held[at].tickets.iter().all(Ticket::may_pass) {
                true => {
                    let held = self.held.remove(at);
                    let panic = self.start_held(held.slot, held.op);
                    first = first.or(panic);
                }
                false => at += 1,
            }
        }
        first
    }

    /// Gives everything pushed its completion time.
    fn issue(&mut self) {
        let panic = self.start_released();
        self.issue_pushed();
        // Last: all the others are under way. A second panic of a thread would end the process.
        if let Some(panic) = panic
            && !thread::panicking()
        {
            resume_unwind(panic);
        }
    }

    fn issue_pushed(&mut self) {
        if self.pushed.is_empty() {
            return;
        }
        let now = now_ns();
        for pushed in self.pushed.drain(..) {
            let due = self.sim.model.due(&pushed.work, &self.stream, now);
            self.timeline
                .push(Reverse((due + pushed.delay_ns, pushed.slot)));
        }
    }

    fn next_due(&self) -> Option<u64> {
        self.timeline.peek().map(|&Reverse((due, _))| due)
    }
}

/// The error of an operation in which the device panicked: of its first piece, if it has any.
fn panicked(op: &Op) -> Error {
    let first = op.segs.as_slice().first();
    let (offset, len) = first.map_or((0, 0), |seg| (seg.device_offset, u64::from(seg.len)));
    Error::panicked(op.kind.name(), offset, len)
}

fn access(kind: OpKind, seg: &Seg) -> Access {
    let op = match kind {
        OpKind::Read => FaultOp::Read,
        _ => FaultOp::Write,
    };
    Access::new(op, seg.device_offset, u64::from(seg.len))
}

fn payload(kind: OpKind, bytes: &mut [u8]) -> Payload<'_> {
    match kind {
        OpKind::Read => Payload::Read(bytes),
        OpKind::WriteFua => Payload::Write(bytes, Durability::ForceUnitAccess),
        OpKind::WriteAtomic => Payload::WriteAtomic(bytes, Durability::Cached),
        _ => Payload::Write(bytes, Durability::Cached),
    }
}

impl Queue for SimQueue {
    fn depth(&self) -> u32 {
        self.depth
    }

    fn in_flight(&self) -> u32 {
        self.depth - self.free.len() as u32
    }

    fn push(&mut self, op: Op) -> Result<SlotId, Op> {
        let Some(&slot) = self.free.last() else {
            return Err(op);
        };
        let tickets = self.join_gates(&op);
        match tickets.is_empty() {
            true => self.start(slot, op),
            false => self.held.push(Held { slot, op, tickets }),
        }
        // Last: an operation in which the device panics has none.
        self.free.pop();
        Ok(slot)
    }

    fn submit(&mut self) -> Result<()> {
        self.issue();
        Ok(())
    }

    fn reap(&mut self, done: &mut Vec<Completion>) -> usize {
        if !self.held.is_empty() {
            self.issue();
        }
        let before = done.len();
        let Some(first) = self.next_due() else {
            return 0;
        };
        let now = now_ns();
        let mut due = first;
        while due <= now {
            let Some(Reverse((_, slot))) = self.timeline.pop() else {
                break;
            };
            let it = &mut self.slots[slot as usize];
            done.push(Completion {
                slot,
                buf: std::mem::replace(&mut it.buf, Buf::empty()),
                result: std::mem::replace(&mut it.result, Ok(())),
            });
            self.free.push(slot);
            due = self.next_due().unwrap_or(u64::MAX);
        }
        done.len() - before
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.issue();
        let now = now_ns();
        let limit =
            timeout.map(|t| now.saturating_add(t.as_nanos().min(u128::from(u64::MAX)) as u64));
        let until = match (self.next_due(), limit) {
            (Some(due), _) if due <= now => return Ok(()),
            (Some(due), Some(limit)) => Some(due.min(limit)),
            (due, limit) => due.or(limit),
        };
        self.park.wait_until(until, &self.sim.pacer);
        self.issue();
        Ok(())
    }

    fn waker(&self) -> Waker {
        let park = self.park.clone();
        Waker::new(move || park.wake())
    }
}
