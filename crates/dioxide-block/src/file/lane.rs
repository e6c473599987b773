//! Blocking transfers that are compiled into their caller.
//!
//! Through [`Device`] a transfer is a call by a table: registers saved and restored, arguments
//! moved. That is some thirty instructions, a third of them stores, and beside a copy of 512 bytes
//! between two places in memory it shows. A lane knows which of the file devices it has, and makes
//! the same transfer, no less guarded, without the call.

use super::FileDevice;
use super::mapping::MappedDevice;
use super::uring::UringQueue;
use crate::inline::InlineQueue;
use crate::mem::Streamed;
use crate::{
    Buf, Completion, Device, Durability, Error, Event, Op, OpKind, Queue, Result, SlotId, Waker,
};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The shortest way to a device's bytes.
#[derive(Clone, Debug)]
pub struct Lane(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Mapping(MappedDevice),
    File(FileDevice),
    Any(Arc<dyn Device>),
}

impl Lane {
    /// The lane of a device: its own, or the one through the trait.
    pub fn of(device: &Arc<dyn Device>) -> Lane {
        device
            .lane()
            .unwrap_or_else(|| Lane(Kind::Any(device.clone())))
    }

    pub(super) fn mapping(device: MappedDevice) -> Lane {
        Lane(Kind::Mapping(device))
    }

    pub(super) fn file(device: FileDevice) -> Lane {
        Lane(Kind::File(device))
    }

    /// As [`Device::read_at`]; where the device does not care about alignment, neither does this.
    ///
    /// # Errors
    /// The same.
    #[inline(always)]
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        match &self.0 {
            Kind::Mapping(device) => device.read_bytes(offset, buf),
            Kind::File(device) => device.read_at(offset, buf),
            Kind::Any(device) => device.read_at(offset, buf),
        }
    }

    /// As [`Device::write_at`], durable with a later flush; other threads see it when what is returned is dropped. What the
    /// caller writes down before that costs no time beside the copy.
    ///
    /// # Errors
    /// The same.
    #[inline(always)]
    pub fn write_at(&self, offset: u64, buf: &[u8]) -> Result<Streamed> {
        match &self.0 {
            Kind::Mapping(device) => return device.write_bytes(offset, buf),
            Kind::File(device) => device.write_at(offset, buf, Durability::Cached)?,
            Kind::Any(device) => device.write_at(offset, buf, Durability::Cached)?,
        }
        Ok(Streamed::AT_ONCE)
    }
}

/// The shortest way to a queue: what is reaped goes to where it is wanted without a vector between.
pub struct QueueLane(QueueKind);

enum QueueKind {
    Uring(Box<UringQueue>),
    Mapping(Box<InlineQueue<MappedDevice>>),
    Any(Box<dyn Queue>, Vec<Completion>),
}

impl QueueLane {
    /// The lane of a queue: its own, or the one through the trait.
    pub fn of(queue: Box<dyn Queue>) -> QueueLane {
        let queue = match known(queue) {
            Ok(uring) => return QueueLane(QueueKind::Uring(uring)),
            Err(queue) => queue,
        };
        QueueLane(match known(queue) {
            Ok(mapping) => QueueKind::Mapping(mapping),
            Err(queue) => {
                let done = Vec::with_capacity(queue.depth() as usize);
                QueueKind::Any(queue, done)
            }
        })
    }

    #[inline(always)]
    fn queue(&self) -> &dyn Queue {
        match &self.0 {
            QueueKind::Uring(queue) => &**queue,
            QueueKind::Mapping(queue) => &**queue,
            QueueKind::Any(queue, _) => &**queue,
        }
    }

    #[inline(always)]
    fn queue_mut(&mut self) -> &mut dyn Queue {
        match &mut self.0 {
            QueueKind::Uring(queue) => &mut **queue,
            QueueKind::Mapping(queue) => &mut **queue,
            QueueKind::Any(queue, _) => &mut **queue,
        }
    }

    /// As [`Queue::depth`].
    pub fn depth(&self) -> u32 {
        self.queue().depth()
    }

    /// As [`Queue::push`].
    ///
    /// # Errors
    /// The same.
    #[allow(clippy::result_large_err)]
    pub fn push(&mut self, op: Op) -> Result<SlotId, Op> {
        self.queue_mut().push(op)
    }

    /// As [`Queue::push`] of [`Op::whole`].
    ///
    /// # Errors
    /// The buffer, when the queue is full.
    #[inline(always)]
    pub fn push_whole(
        &mut self,
        kind: OpKind,
        device_offset: u64,
        buf: Buf,
    ) -> Result<SlotId, Buf> {
        match &mut self.0 {
            QueueKind::Uring(queue) => queue.push_whole(kind, device_offset, buf),
            QueueKind::Mapping(queue) => queue.push_whole(kind, device_offset, buf),
            QueueKind::Any(queue, _) => {
                let pushed = queue.push(Op::whole(kind, device_offset, buf));
                pushed.map_err(|op| op.buf)
            }
        }
    }

    /// As [`Queue::submit`].
    ///
    /// # Errors
    /// The same.
    pub fn submit(&mut self) -> Result<()> {
        self.queue_mut().submit()
    }

    /// As [`Queue::reap`], but hands each completion to `each`.
    #[inline(always)]
    pub fn reap(&mut self, mut each: impl FnMut(SlotId, Buf, Result<(), Box<Error>>)) {
        match &mut self.0 {
            QueueKind::Uring(queue) => queue.reap_each(each),
            QueueKind::Mapping(queue) => queue.reap_each(each),
            QueueKind::Any(queue, done) => {
                queue.reap(done);
                for Completion { slot, buf, result } in done.drain(..) {
                    each(slot, buf, result);
                }
            }
        }
    }

    /// As [`Queue::wait_for`].
    ///
    /// # Errors
    /// The same.
    pub fn wait_for(&mut self, want: u32, timeout: Option<Duration>) -> Result<()> {
        self.queue_mut().wait_for(want, timeout)
    }

    /// As [`Queue::waker`].
    pub fn waker(&self) -> Waker {
        self.queue().waker()
    }

    /// As [`Queue::tell`].
    ///
    /// # Errors
    /// The same.
    pub fn tell(&mut self, event: &Event) -> Result<()> {
        self.queue_mut().tell(event)
    }
}

/// The queue, if it is a `Q`.
fn known<Q: Queue>(queue: Box<dyn Queue>) -> Result<Box<Q>, Box<dyn Queue>> {
    let any: &dyn Any = &*queue;
    if !any.is::<Q>() {
        return Err(queue);
    }
    let any: Box<dyn Any> = queue;
    Ok(any.downcast().expect("it was asked what it is"))
}

impl fmt::Debug for QueueLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueLane").finish_non_exhaustive()
    }
}
