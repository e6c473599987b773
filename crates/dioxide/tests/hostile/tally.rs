//! A device that counts the bytes it moves. What moves through its queues is not counted.

use dioxide::Backend;
use dioxide::block::file::{self, FileOptions};
use dioxide::block::{Device, Durability, Geometry, Queue, QueueOptions, Result};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub struct Tally {
    inner: Arc<dyn Device>,
    read: AtomicU64,
    written: AtomicU64,
}

impl Tally {
    /// Over an image.
    pub fn over(image: &Path) -> Arc<Tally> {
        let options = FileOptions {
            backend: Backend::Pread,
            write: true,
            ..FileOptions::default()
        };
        Arc::new(Tally {
            inner: file::open(image, &options).expect("an image"),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
        })
    }

    /// Bytes that `work` reads and writes.
    pub fn of(&self, work: impl FnOnce()) -> [u64; 2] {
        let now = || [&self.read, &self.written].map(|bytes| bytes.load(Ordering::Relaxed));
        let before = now();
        work();
        let after = now();
        [after[0] - before[0], after[1] - before[1]]
    }
}

impl Device for Tally {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        self.written.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.inner.write_at(offset, buf, durability)
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.write_zeroes(offset, len)
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        self.inner.open_queue(options)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
