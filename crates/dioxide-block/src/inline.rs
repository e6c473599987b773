//! A queue over a device that completes in the caller's thread.
//!
//! For memory, tmpfs and mappings, a transfer is a copy: handing it to the kernel or to another
//! thread would cost more than doing it. [`InlineQueue`] does each operation inside
//! [`Queue::push`] through the device's blocking methods, and keeps the completion until
//! [`Queue::reap`]. It also serves as the queue of any device that has nothing better (pread on a
//! block device): then `push` blocks.
//!
//! A copy from a place in memory that was not used lately waits for the processor to find out where the page is, and
//! for its first bytes. So a device may ask for an operation to be done a little later ([`Device::defers`]): after the next `AHEAD`,
//! or at the next call that is not a push. Others see what such operations have written when that call is made, at one price for
//! all of them.
//!
//! Invariants: `done` holds every operation that was pushed and not reaped, in order, so an
//! operation's slot is its index there; `done` never grows past the capacity it was made with. Operations are done in the order
//! in which they were pushed: the first `ran` of them are, and the others, of which there are `AHEAD` at most, lie in `ahead`.
//! One in which the device panics is done, with an error.
//!
//! Rejected: a ring of slots with a free list. Everything in flight is reaped at once, so an index
//! into a vector is already unique.

use crate::mem::Streamed;
use crate::{
    Buf, Completion, Device, Durability, Error, Event, Op, OpKind, Queue, QueueOptions, Result,
    Seg, Segs, SlotId, Waker, push_in_place,
};
use parking_lot::{Condvar, Mutex};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How many operations are pushed before one is done whose memory is being fetched.
const AHEAD: usize = 2;

/// Executes each operation at `push`, or soon after. See the module header.
#[derive(Debug)]
pub struct InlineQueue<D: Device> {
    device: D,
    depth: u32,
    done: Vec<Completion>,
    ran: usize,
    /// What was done since others last saw it.
    streamed: Streamed,
    /// What operation `n` is to do, at `n % AHEAD`.
    ahead: [(OpKind, Seg); AHEAD],
    park: Arc<Park>,
    event: Option<Event>,
}

impl<D: Device> InlineQueue<D> {
    /// A queue over `device`. Allocates all it will ever need.
    pub fn new(device: D, options: &QueueOptions) -> Self {
        let depth = options.real_depth();
        InlineQueue {
            device,
            depth,
            done: Vec::with_capacity(depth as usize),
            ran: 0,
            streamed: Streamed::AT_ONCE,
            ahead: [(OpKind::Read, NOTHING); AHEAD],
            park: Arc::default(),
            event: None,
        }
    }

    /// Does the first operation that was not done.
    #[inline]
    fn run_next(&mut self) {
        let (kind, seg) = self.ahead[self.ran % AHEAD];
        let Completion { buf, result, .. } = &mut self.done[self.ran];
        // First: what panics is not done again.
        self.ran += 1;
        let unfinished = Unfinished { kind, seg, result };
        let moved = transfer(&self.device, kind, &seg, buf);
        mem::forget(unfinished);
        match moved {
            Ok(streamed) => self.streamed.and(streamed),
            Err(error) => *result = Err(error.into()),
        }
    }

    /// Does all that was not done, and lets others see it.
    #[inline]
    fn run_all(&mut self) {
        if self.ran < self.done.len() && thread::panicking() {
            self.run_all_in_a_panic();
        }
        while self.ran < self.done.len() {
            self.run_next();
        }
        drop(mem::replace(&mut self.streamed, Streamed::AT_ONCE));
    }

    /// Of a queue that goes while a panic unwinds: another one of the device's that came out of here would end the process.
    #[cold]
    fn run_all_in_a_panic(&mut self) {
        while self.ran < self.done.len() {
            // The operation has its error.
            drop(catch_unwind(AssertUnwindSafe(|| self.run_next())));
        }
    }

    /// As `push` of an operation that moves its whole buffer.
    #[inline(always)]
    pub(crate) fn push_whole(
        &mut self,
        kind: OpKind,
        device_offset: u64,
        buf: Buf,
    ) -> Result<SlotId, Buf> {
        let seg = Seg {
            device_offset,
            buf_offset: 0,
            len: buf.len() as u32,
        };
        match self.done.len() < self.depth as usize && self.device.defers(kind, seg.device_offset) {
            true => Ok(self.push_waiting(kind, seg, buf)),
            false => self.push_oddly(kind, device_offset, buf),
        }
    }

    #[inline(never)]
    fn push_oddly(&mut self, kind: OpKind, device_offset: u64, buf: Buf) -> Result<SlotId, Buf> {
        let pushed = self.push_op(Op::whole(kind, device_offset, buf));
        pushed.map_err(|op| op.buf)
    }

    #[inline(always)]
    fn push_op(&mut self, mut op: Op) -> Result<SlotId, Op> {
        if self.done.len() >= self.depth as usize {
            return Err(op);
        }
        if let Segs::One(seg) = op.segs
            && self.device.defers(op.kind, seg.device_offset)
        {
            return Ok(self.push_waiting(op.kind, seg, op.buf));
        }
        self.run_all();
        let result = self.run(&mut op);
        let slot = self.done.len() as u32;
        let buf = op.buf;
        push_in_place(&mut self.done, || Completion { slot, buf, result });
        self.ran = self.done.len();
        Ok(slot)
    }

    #[inline(always)]
    fn push_waiting(&mut self, kind: OpKind, seg: Seg, buf: Buf) -> SlotId {
        let slot = self.done.len();
        // First: if the device panics in that one, this one was not pushed.
        if slot - self.ran == AHEAD {
            self.run_next();
        }
        self.ahead[slot % AHEAD] = (kind, seg);
        push_in_place(&mut self.done, || Completion {
            slot: slot as u32,
            buf,
            result: Ok(()),
        });
        slot as SlotId
    }

    /// As [`Queue::reap`], but hands each completion to `each`.
    #[inline(always)]
    pub(crate) fn reap_each(&mut self, mut each: impl FnMut(SlotId, Buf, Result<(), Box<Error>>)) {
        self.run_all();
        self.ran = 0;
        for Completion { slot, buf, result } in self.done.drain(..) {
            each(slot, buf, result);
        }
    }

    #[inline]
    fn run(&self, op: &mut Op) -> Result<(), Box<Error>> {
        // The usual case first and apart: a slice made from either case makes the processor read a
        // length where two fields have just been written, and wait for them.
        match (&op.segs, op.kind) {
            (_, OpKind::Flush) => self.device.flush()?,
            (Segs::One(seg), kind) => drop(transfer(&self.device, kind, seg, &mut op.buf)?),
            (Segs::Many(_), OpKind::WriteAtomic) => op.check_atomic(self.device.geometry())?,
            (Segs::Many(segs), kind) => {
                for seg in segs {
                    drop(transfer(&self.device, kind, seg, &mut op.buf)?);
                }
            }
        }
        Ok(())
    }
}

/// An operation in which the device may panic. It would have gone well else, for who reaps it later.
struct Unfinished<'a> {
    kind: OpKind,
    seg: Seg,
    result: &'a mut Result<(), Box<Error>>,
}

impl Drop for Unfinished<'_> {
    #[cold]
    fn drop(&mut self) {
        let (offset, len) = (self.seg.device_offset, u64::from(self.seg.len));
        let error = Error::panicked(self.kind.name(), offset, len);
        *self.result = Err(Box::new(error));
    }
}

#[inline]
fn transfer(device: &impl Device, kind: OpKind, seg: &Seg, buf: &mut [u8]) -> Result<Streamed> {
    let start = seg.buf_offset as usize;
    let bytes = match buf.get_mut(start..start + seg.len as usize) {
        Some(bytes) if !bytes.is_empty() => bytes,
        _ => return Err(seg.outside_buffer(kind.name())),
    };
    let at = seg.device_offset;
    match kind {
        OpKind::Write => return device.write_streamed_at(at, bytes),
        OpKind::Read => device.read_at(at, bytes)?,
        OpKind::WriteAtomic => device.write_atomic_at(at, bytes, Durability::Cached)?,
        _ => device.write_at(at, bytes, Durability::ForceUnitAccess)?,
    }
    Ok(Streamed::AT_ONCE)
}

const NOTHING: Seg = Seg {
    device_offset: 0,
    buf_offset: 0,
    len: 0,
};

impl<D: Device + 'static> Queue for InlineQueue<D> {
    fn depth(&self) -> u32 {
        self.depth
    }

    fn in_flight(&self) -> u32 {
        self.done.len() as u32
    }

    fn push(&mut self, op: Op) -> Result<SlotId, Op> {
        self.push_op(op)
    }

    fn submit(&mut self) -> Result<()> {
        self.run_all();
        if let Some(event) = &self.event
            && !self.done.is_empty()
        {
            event.set();
        }
        Ok(())
    }

    fn reap(&mut self, done: &mut Vec<Completion>) -> usize {
        self.run_all();
        self.ran = 0;
        let count = self.done.len();
        done.append(&mut self.done);
        count
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.run_all();
        if self.done.is_empty() {
            self.park.park(timeout);
        }
        Ok(())
    }

    fn waker(&self) -> Waker {
        let park = self.park.clone();
        Waker::new(move || park.wake())
    }

    fn tell(&mut self, event: &Event) -> Result<()> {
        self.event = Some(event.clone());
        Ok(())
    }
}

impl<D: Device> Drop for InlineQueue<D> {
    fn drop(&mut self) {
        self.run_all();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Geometry;
    use crate::mem::MemDevice;

    /// Memory that asks for time, and remembers what it did. Block 7 fails, and block 13 panics.
    #[derive(Clone, Debug)]
    struct Slow {
        memory: MemDevice,
        done: Arc<Mutex<Vec<u64>>>,
    }

    impl Slow {
        fn new() -> Slow {
            Slow {
                memory: MemDevice::new(1 << 20),
                done: Arc::default(),
            }
        }

        fn queue(&self, depth: u32) -> InlineQueue<Slow> {
            let options = QueueOptions {
                depth,
                ..QueueOptions::default()
            };
            InlineQueue::new(self.clone(), &options)
        }

        fn did(&self) -> Vec<u64> {
            self.done.lock().clone()
        }

        fn does(&self, offset: u64) -> Result<()> {
            self.done.lock().push(offset / 512);
            match offset / 512 {
                7 => Err(Error::ReadOnly { op: "write" }),
                13 => panic!("a device that panics"),
                _ => Ok(()),
            }
        }
    }

    impl Device for Slow {
        fn geometry(&self) -> &Geometry {
            self.memory.geometry()
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.does(offset)?;
            self.memory.read_at(offset, buf)
        }

        fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
            self.does(offset)?;
            self.memory.write_at(offset, buf, durability)
        }

        fn flush(&self) -> Result<()> {
            self.done.lock().push(1000);
            Ok(())
        }

        fn discard(&self, offset: u64, len: u64) -> Result<()> {
            self.memory.discard(offset, len)
        }

        fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
            self.memory.write_zeroes(offset, len)
        }

        fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
            Ok(Box::new(InlineQueue::new(self.clone(), options)))
        }

        fn defers(&self, kind: OpKind, _: u64) -> bool {
            matches!(kind, OpKind::Read | OpKind::Write)
        }

        fn describe(&self) -> String {
            "slow".into()
        }
    }

    fn write(queue: &mut InlineQueue<Slow>, block: u64) -> SlotId {
        let buf = Buf::copy_of(&[block as u8; 512]);
        queue
            .push(Op::whole(OpKind::Write, block * 512, buf))
            .expect("room")
    }

    #[test]
    fn operation_that_waits_is_done_after_the_next_ones_and_in_order() {
        let device = Slow::new();
        let mut queue = device.queue(8);
        let slots: Vec<SlotId> = (0..5).map(|block| write(&mut queue, block)).collect();
        assert_eq!(slots, [0, 1, 2, 3, 4]);
        assert_eq!(device.did(), [0, 1, 2]);
        assert_eq!(queue.in_flight(), 5);
        queue.submit().unwrap();
        assert_eq!(device.did(), [0, 1, 2, 3, 4]);
        let read = queue.push_whole(OpKind::Read, 4 * 512, Buf::zeroed(512));
        assert_eq!(read.unwrap(), 5);
        let mut done = Vec::new();
        assert_eq!(queue.reap(&mut done), 6);
        assert_eq!(done[5].buf[..], [4; 512]);
        assert!(done.iter().all(|done| done.result.is_ok()));
    }

    #[test]
    fn flush_and_durable_write_come_after_what_waits() {
        let device = Slow::new();
        let mut queue = device.queue(8);
        write(&mut queue, 1);
        let flush = Op {
            kind: OpKind::Flush,
            buf: Buf::empty(),
            segs: Segs::Many([].into()),
        };
        queue.push(flush).unwrap();
        assert_eq!(device.did(), [1, 1000]);
        write(&mut queue, 2);
        let durable = Op::whole(OpKind::WriteFua, 3 * 512, Buf::zeroed(512));
        queue.push(durable).unwrap();
        assert_eq!(device.did(), [1, 1000, 2, 3]);
    }

    #[test]
    fn error_comes_with_the_operation_that_has_it() {
        let device = Slow::new();
        let mut queue = device.queue(4);
        for block in [6, 7, 8] {
            write(&mut queue, block);
        }
        assert!(queue.push_whole(OpKind::Read, 0, Buf::zeroed(512)).is_ok());
        assert!(queue.push_whole(OpKind::Read, 0, Buf::zeroed(512)).is_err());
        let mut failed = Vec::new();
        queue.reap_each(|slot, buf, result| failed.push((slot, buf.len(), result.is_err())));
        let expected = [
            (0, 512, false),
            (1, 512, true),
            (2, 512, false),
            (3, 512, false),
        ];
        assert_eq!(failed, expected);
        // The next ones begin anew.
        assert_eq!(write(&mut queue, 9), 0);
        queue.wait(None).unwrap();
        assert_eq!(device.did(), [6, 7, 8, 0, 9]);
    }

    #[test]
    fn operation_in_which_the_device_panicked_has_an_error_and_is_not_done_again() {
        let device = Slow::new();
        let mut queue = device.queue(4);
        write(&mut queue, 13);
        write(&mut queue, 1);
        let submit = AssertUnwindSafe(|| queue.submit());
        assert!(catch_unwind(submit).is_err());
        let mut done = Vec::new();
        assert_eq!(queue.reap(&mut done), 2);
        let errors: Vec<i32> = done
            .iter()
            .map(|done| done.result.as_ref().map_or_else(|e| e.errno(), |()| 0))
            .collect();
        assert_eq!(errors, [libc::EIO, 0]);
        assert_eq!(device.did(), [13, 1]);
        drop(queue);
        assert_eq!(device.did(), [13, 1]);
    }

    #[test]
    fn operation_whose_push_meets_the_panic_of_another_is_not_taken() {
        let device = Slow::new();
        let mut queue = device.queue(4);
        write(&mut queue, 13);
        write(&mut queue, 1);
        let push = AssertUnwindSafe(|| write(&mut queue, 2));
        assert!(catch_unwind(push).is_err());
        assert_eq!(queue.in_flight(), 2);
        // It has the slot that the other would have had.
        assert_eq!(write(&mut queue, 3), 2);
        let mut done = Vec::new();
        assert_eq!(queue.reap(&mut done), 3);
        let failed = done.iter().map(|done| done.result.is_err());
        assert_eq!(failed.collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(device.did(), [13, 1, 3]);
    }

    #[test]
    fn queue_that_goes_in_a_panic_outlives_more_of_its_device() {
        let device = Slow::new();
        // The device's own panic, and one of whoever has the queue.
        for (blocks, did) in [([13, 13, 2], [13, 13]), ([13, 1, 2], [13, 1])] {
            device.done.lock().clear();
            let unwound = catch_unwind(AssertUnwindSafe(|| {
                let mut queue = device.queue(4);
                for block in blocks {
                    write(&mut queue, block);
                }
            }));
            assert!(unwound.is_err());
            assert_eq!(device.did(), did);
        }
        device.done.lock().clear();
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let mut queue = device.queue(4);
            write(&mut queue, 13);
            write(&mut queue, 2);
            panic!("who has the queue");
        }));
        assert!(unwound.is_err());
        assert_eq!(device.did(), [13, 2]);
    }

    #[test]
    fn queue_that_is_dropped_has_done_what_was_pushed() {
        let device = Slow::new();
        let mut queue = device.queue(8);
        write(&mut queue, 1);
        assert!(device.did().is_empty());
        drop(queue);
        assert_eq!(device.did(), [1]);
    }
}
