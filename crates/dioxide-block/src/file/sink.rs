//! A meter of the software above the device.

use super::guard::Locked;
use super::io::FileIo;
use super::probe::step;
use super::uring::{self, UringQueue};
use crate::{Device, Durability, Geometry, Queue, QueueOptions, Result};
use rustix::fs::{self, Mode, OFlags};
use std::path::Path;
use std::sync::Arc;

/// A device that does no data I/O: a meter, useless for anything else.
///
/// Blocking calls, which metadata uses, go to a real device. Queued operations go through a real
/// io_uring, with the settings of a real queue (registered file and buffers), to `/dev/null`:
/// every transfer, **reads too**, is issued as a write of the same buffer, which costs the
/// kernel as little as any request can. A queued read leaves its buffer as it was. So what remains
/// is the cost of the file system and the ring.
#[derive(Debug)]
pub struct NullSink {
    metadata: Arc<dyn Device>,
    io: Arc<FileIo>,
}

impl NullSink {
    /// A sink with the geometry and metadata of `metadata`.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] without io_uring; [`crate::Error::Open`] without `/dev/null`.
    pub fn new(metadata: Arc<dyn Device>) -> Result<NullSink> {
        uring::available()?;
        let path = Path::new("/dev/null");
        let fd = fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| step(path, "cannot open it", e))?;
        let geometry = Geometry {
            inline: false,
            atomic: None,
            ..metadata.geometry().clone()
        };
        let io = Arc::new(FileIo {
            fd: Locked::new(fd),
            base: 0,
            geometry,
            direct: false,
            past_cache: None,
            mem_mask: 0,
            block_device: false,
            in_memory: false,
            polls: false,
            name: "null".into(),
            behind: Vec::new(),
        });
        Ok(NullSink { metadata, io })
    }
}

impl Device for NullSink {
    fn geometry(&self) -> &Geometry {
        &self.io.geometry
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.metadata.read_at(offset, buf)
    }

    fn read_past_cache_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.metadata.read_past_cache_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        self.metadata.write_at(offset, buf, durability)
    }

    fn flush(&self) -> Result<()> {
        self.metadata.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.metadata.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.metadata.write_zeroes(offset, len)
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        Ok(Box::new(UringQueue::open(self.io.clone(), options, true)?))
    }

    fn describe(&self) -> String {
        format!("null sink over {}", self.metadata.describe())
    }
}
