//! A device that writes in a thread of its own, behind who writes.
//!
//! Making an image is as much copying into the host's file as finding out where to, so two threads take half
//! of the time. Small files lie one behind the other, and what is gathered meanwhile goes to the host in large pieces.
//!
//! Invariants: the device is written in the order of the calls; whoever reads sees what was written before. An error of
//! the thread is told at the next write or flush, and nothing is written after it. What waits is bounded.
//! Nothing is on the device for certain before [`Device::flush`].

use dioxide::block::inline::InlineQueue;
use dioxide::block::{Device, Durability, Error, Geometry, Queue, QueueOptions, Result};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A batch is handed over when it has so many bytes or extents.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_EXTENTS: usize = 256;
/// How many batches wait at most.
const WAITING: usize = 4;

/// What was written, in order.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Where on the device; their bytes follow each other.
    extents: Vec<Range<u64>>,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH_BYTES || self.extents.len() >= BATCH_EXTENTS
    }

    fn add(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        match self.extents.last_mut() {
            Some(last) if last.end == offset => last.end = end,
            _ => self.extents.push(offset..end),
        }
        self.bytes.extend_from_slice(bytes);
    }

    fn write_to(&self, device: &dyn Device) -> Result<()> {
        let mut rest = &self.bytes[..];
        for extent in &self.extents {
            let (bytes, after) = rest.split_at((extent.end - extent.start) as usize);
            device.write_at(extent.start, bytes, Durability::Cached)?;
            rest = after;
        }
        Ok(())
    }
}

fn meet(extents: &[Range<u64>], wanted: &Range<u64>) -> bool {
    extents
        .iter()
        .any(|extent| extent.start < wanted.end && wanted.start < extent.end)
}

#[derive(Default)]
struct State {
    filling: Batch,
    waiting: VecDeque<Batch>,
    /// What the thread is writing.
    writing: Vec<Range<u64>>,
    is_writing: bool,
    /// Batches that were written, for their memory.
    empty: Vec<Batch>,
    failed: Option<Error>,
    has_failed: bool,
    closed: bool,
}

impl State {
    fn is_settled(&self) -> bool {
        self.waiting.is_empty() && !self.is_writing
    }

    fn hand_over(&mut self) {
        if !self.filling.extents.is_empty() {
            let next = self.empty.pop().unwrap_or_default();
            self.waiting
                .push_back(std::mem::replace(&mut self.filling, next));
        }
    }

    fn meets(&self, wanted: &Range<u64>) -> bool {
        let waiting = self.waiting.iter().map(|batch| &batch.extents);
        waiting
            .chain([&self.filling.extents, &self.writing])
            .any(|extents| meet(extents, wanted))
    }

    /// The error of the thread; at first its own, then that there was one.
    fn check(&mut self) -> Result<()> {
        match self.failed.take() {
            Some(error) => Err(error),
            None if self.has_failed => Err(Error::Io {
                op: "write",
                offset: 0,
                len: 0,
                source: io::Error::other("an earlier write has failed"),
            }),
            None => Ok(()),
        }
    }
}

struct Shared {
    device: Arc<dyn Device>,
    state: Mutex<State>,
    /// There is something to write, or nobody writes any more.
    more: Condvar,
    /// A batch was written.
    done: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, on: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        on.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all is on the device.
    fn settle(&self) -> Result<()> {
        let mut state = self.lock();
        state.hand_over();
        self.more.notify_one();
        while !state.is_settled() {
            state = self.wait(&self.done, state);
        }
        state.check()
    }

    /// The thread.
    fn write_all(&self) {
        let mut state = self.lock();
        loop {
            let Some(mut batch) = state.waiting.pop_front() else {
                if state.closed {
                    return;
                }
                state = self.wait(&self.more, state);
                continue;
            };
            (state.writing, state.is_writing) = (batch.extents.clone(), true);
            let written = match state.has_failed {
                true => Ok(()),
                false => {
                    drop(state);
                    let written = batch.write_to(&*self.device);
                    state = self.lock();
                    written
                }
            };
            if let Err(error) = written {
                (state.failed, state.has_failed) = (Some(error), true);
            }
            state.writing.clear();
            state.is_writing = false;
            batch.bytes.clear();
            batch.extents.clear();
            state.empty.push(batch);
            self.done.notify_all();
        }
    }
}

/// See the module header. Clones are the same device. Dropping the last writes what waits, and tells of no error.
#[derive(Clone)]
pub(super) struct Behind(Arc<Thread>);

struct Thread {
    shared: Arc<Shared>,
    handle: Option<JoinHandle<()>>,
}

impl Behind {
    /// # Errors
    /// There is no thread to be had.
    pub(super) fn new(device: Arc<dyn Device>) -> io::Result<Behind> {
        let shared = Arc::new(Shared {
            device,
            state: Mutex::default(),
            more: Condvar::new(),
            done: Condvar::new(),
        });
        let handle = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("write-behind".into())
                .spawn(move || shared.write_all())?
        };
        let handle = Some(handle);
        Ok(Behind(Arc::new(Thread { shared, handle })))
    }

    /// Waits until all is on the device.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn settle(&self) -> Result<()> {
        self.0.shared.settle()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.hand_over();
        state.closed = true;
        drop(state);
        self.shared.more.notify_one();
        if let Some(handle) = self.handle.take() {
            // It panics only if the device does, which has been told then.
            let _ = handle.join();
        }
    }
}

impl fmt::Debug for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

impl Device for Behind {
    fn geometry(&self) -> &Geometry {
        self.0.shared.device.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let wanted = offset..offset.saturating_add(buf.len() as u64);
        if self.0.shared.lock().meets(&wanted) {
            self.settle()?;
        }
        self.0.shared.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        if durability != Durability::Cached {
            self.settle()?;
            return self.0.shared.device.write_at(offset, buf, durability);
        }
        self.geometry().check("write", offset, buf.len() as u64)?;
        let mut state = self.0.shared.lock();
        state.check()?;
        state.filling.add(offset, buf);
        if state.filling.is_full() {
            while state.waiting.len() >= WAITING {
                state = self.0.shared.wait(&self.0.shared.done, state);
            }
            state.hand_over();
            self.0.shared.more.notify_one();
        }
        Ok(())
    }

    fn write_atomic_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        self.settle()?;
        self.0
            .shared
            .device
            .write_atomic_at(offset, buf, durability)
    }

    fn flush(&self) -> Result<()> {
        self.settle()?;
        self.0.shared.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.settle()?;
        self.0.shared.device.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.settle()?;
        self.0.shared.device.write_zeroes(offset, len)
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        Ok(Box::new(InlineQueue::new(self.clone(), options)))
    }

    fn describe(&self) -> String {
        format!("write-behind({})", self.0.shared.device.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dioxide::block::mem::MemDevice;
    use dioxide::block::sim::{Fault, FaultKind, FaultOp};

    const BLOCK: usize = 4096;

    #[test]
    fn what_was_written_is_read_and_is_there_after_a_flush() {
        let inner: Arc<dyn Device> = Arc::new(MemDevice::new(16 << 20));
        let behind = Behind::new(inner.clone()).unwrap();
        let block = |number: u64| vec![(number % 251) as u8 + 1; BLOCK];
        // Neighbours, and some that come twice; several batches of them.
        let order = || (0..2048u64).map(|number| number * 5 % 2048).chain(0..64);
        for number in order() {
            let at = number * BLOCK as u64;
            behind
                .write_at(at, &block(number), Durability::Cached)
                .unwrap();
            let mut buf = vec![0; BLOCK];
            if number % 7 == 0 {
                behind.read_at(at, &mut buf).unwrap();
                assert_eq!(buf, block(number));
            }
        }
        behind.flush().unwrap();
        for number in order() {
            let mut buf = vec![0; BLOCK];
            inner.read_at(number * BLOCK as u64, &mut buf).unwrap();
            assert_eq!(buf, block(number), "block {number}");
        }
    }

    #[test]
    fn later_write_of_a_block_wins() {
        let inner: Arc<dyn Device> = Arc::new(MemDevice::new(1 << 20));
        let behind = Behind::new(inner.clone()).unwrap();
        for round in 0..100 {
            let bytes = [round; BLOCK];
            behind.write_at(0, &bytes, Durability::Cached).unwrap();
        }
        drop(behind);
        let mut buf = [0; BLOCK];
        inner.read_at(0, &mut buf).unwrap();
        assert_eq!(buf, [99; BLOCK]);
    }

    #[test]
    fn failed_write_is_told_and_nothing_is_written_after_it() {
        let memory: Arc<dyn Device> = Arc::new(MemDevice::new(1 << 20));
        let sim = dioxide::block::sim::SimDevice::new(memory.clone(), Default::default());
        sim.inject(Fault::once(FaultOp::Write, FaultKind::Io(5)));
        let behind = Behind::new(Arc::new(sim)).unwrap();
        let bytes = [7; BLOCK];
        behind.write_at(0, &bytes, Durability::Cached).unwrap();
        assert!(behind.flush().unwrap_err().to_string().contains("write of"));
        behind
            .write_at(BLOCK as u64, &bytes, Durability::Cached)
            .unwrap_err();
        behind.flush().unwrap_err();
        drop(behind);
        let mut buf = [0; 2 * BLOCK];
        memory.read_at(0, &mut buf).unwrap();
        assert_eq!(buf, [0; 2 * BLOCK]);
    }
}
