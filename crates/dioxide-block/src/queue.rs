//! The trait of asynchronous queues: owned operations in, completions out.
//!
//! A queue belongs to one thread at a time (`&mut self`). Memory that the device may touch is owned
//! by the queue from [`Queue::push`] until the [`Completion`] gives it back; a queue that is dropped
//! waits for what is in flight, and leaks those buffers if it cannot; the image then stays locked until the kernel is done.

use crate::{Buf, BufPool, Error, Geometry, Result};
use rustix::event::{EventfdFlags, eventfd};
use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Names an operation in flight. Below [`Queue::depth`]; free again once its completion was reaped.
pub type SlotId = u32;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// Memory to device, durable at completion.
    WriteFua,
    /// Memory to device, as [`Device::write_atomic_at`](crate::Device::write_atomic_at): of one piece.
    WriteAtomic,
    /// Makes earlier completed writes durable; carries no segments.
    Flush,
}

impl OpKind {
    /// The word for it in errors.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Read => "read",
            OpKind::Write | OpKind::WriteFua | OpKind::WriteAtomic => "write",
            OpKind::Flush => "flush",
        }
    }
}

/// One contiguous piece of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seg {
    /// First byte on the device; a multiple of the logical block.
    pub device_offset: u64,
    /// First byte inside the operation's buffer.
    pub buf_offset: u32,
    /// Length in bytes; a multiple of the logical block, not 0.
    pub len: u32,
}

impl Seg {
    /// Checks the piece against the device's alignment and size and the length of the operation's
    /// buffer. `op` names the operation in the error.
    ///
    /// # Errors
    /// [`Error::Misaligned`], [`Error::OutOfRange`], or [`Error::Io`] with `EFAULT` for a piece
    /// that is empty or not inside the buffer.
    #[inline]
    pub fn check(&self, op: &'static str, geometry: &Geometry, buf_len: usize) -> Result<()> {
        let len = u64::from(self.len);
        geometry.check(op, self.device_offset, len)?;
        if u64::from(self.buf_offset) + len > buf_len as u64 || len == 0 {
            return Err(self.outside_buffer(op));
        }
        if self.buf_offset & (geometry.mem_align_bytes - 1) != 0 {
            return Err(self.unaligned_memory(op, geometry.mem_align_bytes));
        }
        Ok(())
    }

    #[cold]
    pub(crate) fn outside_buffer(&self, op: &'static str) -> Error {
        Error::Io {
            op,
            offset: self.device_offset,
            len: u64::from(self.len),
            source: io::Error::from_raw_os_error(libc::EFAULT),
        }
    }

    #[cold]
    fn unaligned_memory(&self, op: &'static str, required: u32) -> Error {
        Error::Misaligned {
            op,
            offset: self.device_offset,
            len: u64::from(self.len),
            what: "memory address",
            required: u64::from(required),
        }
    }
}

/// The pieces of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segs {
    /// One piece: the usual case, without an allocation.
    One(Seg),
    /// Any number of pieces, in buffer order, not overlapping. Empty for a flush, and for a read
    /// that met holes only.
    Many(Box<[Seg]>),
}

impl Op {
    /// An operation that moves its whole buffer.
    #[inline(always)]
    pub fn whole(kind: OpKind, device_offset: u64, buf: Buf) -> Op {
        let segs = Segs::One(Seg {
            device_offset,
            buf_offset: 0,
            len: buf.len() as u32,
        });
        Op { kind, buf, segs }
    }
}

impl Op {
    /// Checks that this, an atomic write, is one that the device can make.
    ///
    /// # Errors
    /// As [`Geometry::check_atomic`] and [`Seg::check`]; [`Error::Unsupported`] for one of several pieces.
    pub(crate) fn check_atomic(&self, geometry: &Geometry) -> Result<()> {
        let Segs::One(seg) = &self.segs else {
            return Err(Error::Unsupported {
                what: "atomic writes of several pieces".into(),
            });
        };
        geometry.check_atomic(seg.device_offset, u64::from(seg.len))?;
        seg.check(self.kind.name(), geometry, self.buf.len())
    }
}

impl Segs {
    /// All pieces as a slice.
    pub fn as_slice(&self) -> &[Seg] {
        match self {
            Segs::One(seg) => std::slice::from_ref(seg),
            Segs::Many(segs) => segs,
        }
    }
}

/// An operation to push. It owns its memory.
#[derive(Debug)]
pub struct Op {
    /// What to do.
    pub kind: OpKind,
    /// The memory. For a flush, [`Buf::empty`].
    pub buf: Buf,
    /// Which parts of the memory go where.
    pub segs: Segs,
}

/// A finished operation.
#[derive(Debug)]
pub struct Completion {
    /// The slot that [`Queue::push`] returned; free for reuse from now on.
    pub slot: SlotId,
    /// The operation's memory.
    pub buf: Buf,
    /// Every byte was moved, or the first error.
    pub result: Result<(), Box<Error>>,
}

/// How to open a queue.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// How many operations may be in flight; rounded up to a power of two. 0 is taken for 1, and what is above
    /// [`QueueOptions::MAX_DEPTH`] for that: [`Queue::depth`] tells what it became.
    pub depth: u32,
    /// Buffers of this pool are registered with the device where it helps. Others work too.
    pub pool: Option<BufPool>,
    /// Busy-poll the device for completions (`IORING_SETUP_IOPOLL`). Over io_uring a device without poll queues, or without direct
    /// I/O, refuses the queue ([`Error::Unsupported`]); where the transfer is done at the push it means nothing.
    pub iopoll: bool,
    /// Let a kernel thread submit (`IORING_SETUP_SQPOLL`).
    pub sqpoll: bool,
}

impl QueueOptions {
    /// The deepest that queues are. A power of two.
    pub const MAX_DEPTH: u32 = 4096;

    /// The depth that a queue has which is opened so.
    pub(crate) fn real_depth(&self) -> u32 {
        self.depth.clamp(1, Self::MAX_DEPTH).next_power_of_two()
    }
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions {
            depth: 128,
            pool: None,
            iopoll: false,
            sqpoll: false,
        }
    }
}

/// Interrupts another thread's [`Queue::wait`]. Cheap to clone; may outlive the queue.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    /// A waker that calls `wake`.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Waker(Arc::new(wake))
    }

    /// Makes the current or the next `wait` return.
    pub fn wake(&self) {
        (self.0)()
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

/// An `eventfd`: what is set by one thread, and waited for and cleared by another. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Event(Arc<OwnedFd>);

impl Event {
    /// One that is not set.
    ///
    /// # Errors
    /// [`Error::Io`] if the process may have no more descriptors.
    pub fn new() -> Result<Event> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let event = event.map_err(|error| no_descriptor(error.into()))?;
        Ok(Event(Arc::new(event)))
    }

    /// One more descriptor of it.
    ///
    /// # Errors
    /// As [`Event::new`].
    pub fn descriptor(&self) -> Result<OwnedFd> {
        self.0.try_clone().map_err(no_descriptor)
    }

    /// Makes its descriptor readable.
    pub fn set(&self) {
        // Full means that it was set already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// True if it was set; clears it.
    pub fn clear(&self) -> bool {
        rustix::io::read(&*self.0, &mut [0u8; 8][..]).is_ok()
    }
}

fn no_descriptor(source: io::Error) -> Error {
    Error::Io {
        op: "eventfd",
        offset: 0,
        len: 0,
        source,
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A queue of asynchronous operations, used by one thread at a time.
///
/// A queue may move to another thread while nothing is in flight. A queue that the kernel ties to its
/// thread (io_uring) answers `submit` and `wait` elsewhere with [`Error::Unsupported`] as long as
/// operations are in flight, and if it is dropped there, it leaks their buffers.
///
/// Segments must lie inside the device and be aligned; a queue answers one that is not by a
/// completion with an error, never by undefined behaviour.
pub trait Queue: Send + Any {
    /// How many operations fit.
    fn depth(&self) -> u32;

    /// Pushed and not yet reaped.
    fn in_flight(&self) -> u32;

    /// Takes an operation. It starts now or at the next [`Queue::submit`]. Does not allocate for [`Segs::One`]. Over
    /// io_uring it does not block, but for a flush with `iopoll`; a queue without a ring (pread, mapping, memory,
    /// overlay) carries the operation out here, and blocks for as long as the device does. A full queue gives the
    /// operation back.
    ///
    /// # Errors
    /// The operation itself, when `depth` operations are in flight.
    #[allow(clippy::result_large_err)]
    fn push(&mut self, op: Op) -> Result<SlotId, Op>;

    /// Hands everything that was pushed to the device: by one system call if it fits into the ring. A queue without
    /// a ring makes the calls here of what it has put off, which are two operations at most.
    fn submit(&mut self) -> Result<()>;

    /// Appends what has completed to `done`, without waiting; returns how many.
    fn reap(&mut self, done: &mut Vec<Completion>) -> usize;

    /// Submits, then blocks until something can be reaped, the waker was called, or the timeout
    /// passed. Returns at once when something can be reaped; with nothing in flight it waits for
    /// the waker or the timeout.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<()>;

    /// As [`Queue::wait`], but a queue that can do so in one go waits until `want` operations can be
    /// reaped, not one. It may return with fewer. A waker need not interrupt it before that, so it is
    /// for callers that wait for the device only; `want` is at most what is in flight.
    fn wait_for(&mut self, want: u32, timeout: Option<Duration>) -> Result<()> {
        let _ = want;
        self.wait(timeout)
    }

    /// A handle that interrupts `wait` from another thread.
    fn waker(&self) -> Waker;

    /// From now on sets `event` when there is something to reap: as it completes, or at the next [`Queue::submit`]. It may be set
    /// without need, and is not for what could be reaped before.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where nobody learns of a completion but who waits: on polled rings, simulated devices, and by default.
    fn tell(&mut self, event: &Event) -> Result<()> {
        let _ = event;
        Err(Error::Unsupported {
            what: "an event for completions of this queue".into(),
        })
    }
}

/// Appends without the detour over the stack that `Vec::push` takes for the case that it must grow: what is put together there in
/// small pieces and taken away in large ones has to wait until it has left the processor's store buffer.
#[inline(always)]
pub fn push_in_place<T>(done: &mut Vec<T>, value: impl FnOnce() -> T) {
    if done.len() == done.capacity() {
        grow(done);
    }
    if done.len() < done.capacity() {
        done.push(value());
    }
}

#[cold]
#[inline(never)]
fn grow<T>(done: &mut Vec<T>) {
    done.reserve(1);
}
