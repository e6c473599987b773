//! A queue over a device that completes in the caller's thread.
//!
//! For memory, tmpfs and mappings, a transfer is a copy: handing it to the kernel or to another
//! thread would cost more than doing it. [`InlineQueue`] does each operation inside
//! [`Queue::push`] through the device's blocking methods, and keeps the completion until
//! [`Queue::reap`]. It also serves as the queue of any device that has nothing better (pread on a
//! block device): then `push` blocks.
//!
//! Invariants: `done` holds every operation that was pushed and not reaped, in order, so an
//! operation's slot is its index there; `done` never grows past the capacity it was made with.
//!
//! Rejected: a ring of slots with a free list. Everything in flight is reaped at once, so an index
//! into a vector is already unique.

use crate::{
    Buf, Completion, Device, Durability, Error, Op, OpKind, Queue, QueueOptions, Result, Seg, Segs,
    SlotId, Waker,
};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Executes each operation at `push`. See the module header.
#[derive(Debug)]
pub struct InlineQueue<D> {
    device: D,
    depth: u32,
    done: Vec<Completion>,
    park: Arc<Park>,
}

impl<D: Device> InlineQueue<D> {
    /// A queue over `device`. Allocates all it will ever need.
    pub fn new(device: D, options: &QueueOptions) -> Self {
        let depth = options.depth.clamp(1, 1 << 16).next_power_of_two();
        InlineQueue {
            device,
            depth,
            done: Vec::with_capacity(depth as usize),
            park: Arc::default(),
        }
    }

    #[inline]
    fn run(&self, op: &mut Op) -> Result<(), Box<Error>> {
        // The usual case first and apart: a slice made from either case makes the processor read a
        // length where two fields have just been written, and wait for them.
        match (&op.segs, op.kind) {
            (_, OpKind::Flush) => self.device.flush()?,
            (Segs::One(seg), kind) => self.transfer(kind, seg, &mut op.buf)?,
            (Segs::Many(_), OpKind::WriteAtomic) => op.check_atomic(self.device.geometry())?,
            (Segs::Many(segs), kind) => {
                for seg in segs {
                    self.transfer(kind, seg, &mut op.buf)?;
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn transfer(&self, kind: OpKind, seg: &Seg, buf: &mut [u8]) -> Result<()> {
        let start = seg.buf_offset as usize;
        let bytes = match buf.get_mut(start..start + seg.len as usize) {
            Some(bytes) if !bytes.is_empty() => bytes,
            _ => return Err(seg.outside_buffer(kind.name())),
        };
        match kind {
            OpKind::Read => self.device.read_at(seg.device_offset, bytes),
            OpKind::Write => {
                let cached = Durability::Cached;
                self.device.write_at(seg.device_offset, bytes, cached)
            }
            OpKind::WriteAtomic => {
                let cached = Durability::Cached;
                self.device
                    .write_atomic_at(seg.device_offset, bytes, cached)
            }
            _ => {
                let durable = Durability::ForceUnitAccess;
                self.device.write_at(seg.device_offset, bytes, durable)
            }
        }
    }
}

/// Appends without the detour over the stack that `Vec::push` takes for the case that it must grow.
#[inline]
pub(crate) fn push_in_place(
    done: &mut Vec<Completion>,
    slot: SlotId,
    buf: Buf,
    result: Result<(), Box<Error>>,
) {
    if done.len() == done.capacity() {
        grow(done);
    }
    if done.len() < done.capacity() {
        done.push(Completion { slot, buf, result });
    }
}

#[cold]
#[inline(never)]
fn grow(done: &mut Vec<Completion>) {
    done.reserve(1);
}

impl<D: Device + 'static> Queue for InlineQueue<D> {
    fn depth(&self) -> u32 {
        self.depth
    }

    fn in_flight(&self) -> u32 {
        self.done.len() as u32
    }

    fn push(&mut self, mut op: Op) -> Result<SlotId, Op> {
        if self.done.len() >= self.depth as usize {
            return Err(op);
        }
        let result = self.run(&mut op);
        let slot = self.done.len() as u32;
        push_in_place(&mut self.done, slot, op.buf, result);
        Ok(slot)
    }

    fn submit(&mut self) -> Result<()> {
        Ok(())
    }

    fn reap(&mut self, done: &mut Vec<Completion>) -> usize {
        let count = self.done.len();
        done.append(&mut self.done);
        count
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        if self.done.is_empty() {
            self.park.park(timeout);
        }
        Ok(())
    }

    fn waker(&self) -> Waker {
        let park = self.park.clone();
        Waker::new(move || park.wake())
    }
}

/// Where `wait` sleeps when nothing is in flight.
#[derive(Debug, Default)]
struct Park {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Park {
    fn park(&self, timeout: Option<Duration>) {
        // A deadline too far to be expressed is none.
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let mut woken = self.woken.lock();
        while !*woken {
            match deadline {
                None => self.changed.wait(&mut woken),
                Some(at) if self.changed.wait_until(&mut woken, at).timed_out() => break,
                Some(_) => {}
            }
        }
        *woken = false;
    }

    fn wake(&self) {
        *self.woken.lock() = true;
        self.changed.notify_all();
    }
}
