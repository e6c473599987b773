//! A device that is not written to before everything is known to go well.
//!
//! For: the changes that fast commits ask for. They go through the same code as all others, which notes in
//! the journal's superblock that a change failed half-way; here nothing has failed for those who can replay them.

use dioxide_block::{
    Device, Durability, Error, Geometry, Queue, QueueOptions, Result as BlockResult,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// `inner`, whose writes are refused until the gate is opened.
#[derive(Debug)]
pub(super) struct Gate {
    inner: Arc<dyn Device>,
    is_open: AtomicBool,
}

impl Gate {
    pub(super) fn new(inner: Arc<dyn Device>) -> Arc<Gate> {
        let is_open = AtomicBool::new(false);
        Arc::new(Gate { inner, is_open })
    }

    pub(super) fn inner(&self) -> &Arc<dyn Device> {
        &self.inner
    }

    pub(super) fn open(&self) {
        self.is_open.store(true, Ordering::Release);
    }

    fn check(&self, op: &'static str) -> BlockResult<()> {
        match self.is_open.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(Error::ReadOnly { op }),
        }
    }
}

impl Device for Gate {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> BlockResult<()> {
        self.inner.read_at(offset, buf)
    }

    fn read_past_cache_at(&self, offset: u64, buf: &mut [u8]) -> BlockResult<()> {
        self.inner.read_past_cache_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> BlockResult<()> {
        self.check("write")?;
        self.inner.write_at(offset, buf, durability)
    }

    fn write_atomic_at(&self, offset: u64, buf: &[u8], durability: Durability) -> BlockResult<()> {
        self.check("write")?;
        self.inner.write_atomic_at(offset, buf, durability)
    }

    fn flush(&self) -> BlockResult<()> {
        self.check("flush")?;
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> BlockResult<()> {
        self.check("discard")?;
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> BlockResult<()> {
        self.check("write zeroes")?;
        self.inner.write_zeroes(offset, len)
    }

    // Nobody opens one: metadata is read and written directly.
    fn open_queue(&self, options: &QueueOptions) -> BlockResult<Box<dyn Queue>> {
        self.check("queue")?;
        self.inner.open_queue(options)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
