//! What a request is handed to.

use super::short;
use crate::Result;
use crate::offsets::Order;
use dioxide::block::{self, Device, Durability, Op, OpKind};
use dioxide::{Buf, File, Fs, QueueOptions};
use std::sync::Arc;

/// A target. Positions are offsets in the file or on the device, as the target has it.
pub(crate) trait LoadTarget: Sync {
    type Queue: LoadQueue;

    /// The order as positions of this target.
    fn positions<'a>(&self, order: &'a Order) -> &'a [u64];

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<()>;

    fn write(&self, at: u64, buf: &[u8]) -> Result<()>;

    fn open_queue(&self, options: &QueueOptions) -> Result<Self::Queue>;
}

/// A target's queue, for one thread.
pub(crate) trait LoadQueue {
    type Done;

    /// A full queue is a mistake of the caller's.
    fn push(&mut self, write: bool, at: u64, buf: Buf, tag: u64) -> Result<()>;

    fn submit(&mut self) -> Result<()>;

    /// Without waiting.
    fn reap(&mut self, done: &mut Vec<Self::Done>);

    /// Submits, and waits for `min` completions.
    fn wait(&mut self, min: usize, done: &mut Vec<Self::Done>) -> Result<()>;

    /// Tag and buffer of a completion that moved everything.
    fn take(&mut self, done: Self::Done) -> Result<(u64, Buf)>;
}

/// A device: the image (`raw`, `by_file` off) or a file of a mounted file system.
#[derive(Debug)]
pub(crate) struct DeviceTarget<'a> {
    pub(crate) device: &'a Arc<dyn Device>,
    /// Positions are offsets in the file, not where it lies on the image.
    pub(crate) by_file: bool,
}

impl LoadTarget for DeviceTarget<'_> {
    type Queue = DeviceQueue;

    fn positions<'a>(&self, order: &'a Order) -> &'a [u64] {
        if self.by_file {
            &order.file
        } else {
            &order.device
        }
    }

    #[inline(always)]
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        Ok(self.device.read_at(at, buf)?)
    }

    #[inline(always)]
    fn write(&self, at: u64, buf: &[u8]) -> Result<()> {
        Ok(self.device.write_at(at, buf, Durability::Cached)?)
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<DeviceQueue> {
        let queue = self.device.open_queue(options)?;
        let tags = vec![0; queue.depth() as usize].into();
        Ok(DeviceQueue { queue, tags })
    }
}

/// A device's queue, with the tag of each slot: what any user of it needs to find his request.
pub(crate) struct DeviceQueue {
    queue: Box<dyn block::Queue>,
    tags: Box<[u64]>,
}

impl LoadQueue for DeviceQueue {
    type Done = block::Completion;

    #[inline(always)]
    fn push(&mut self, write: bool, at: u64, buf: Buf, tag: u64) -> Result<()> {
        let kind = if write { OpKind::Write } else { OpKind::Read };
        let slot = self
            .queue
            .push(Op::whole(kind, at, buf))
            .expect("the queue has room");
        self.tags[slot as usize] = tag;
        Ok(())
    }

    #[inline]
    fn submit(&mut self) -> Result<()> {
        Ok(self.queue.submit()?)
    }

    #[inline]
    fn reap(&mut self, done: &mut Vec<block::Completion>) {
        self.queue.reap(done);
    }

    fn wait(&mut self, min: usize, done: &mut Vec<block::Completion>) -> Result<()> {
        let mut count = self.queue.reap(done);
        if count >= min {
            return Ok(self.queue.submit()?);
        }
        while count < min && self.queue.in_flight() > 0 {
            self.queue.wait_for((min - count) as u32, None)?;
            count += self.queue.reap(done);
        }
        Ok(())
    }

    #[inline(always)]
    fn take(&mut self, done: block::Completion) -> Result<(u64, Buf)> {
        done.result.map_err(|error| *error)?;
        Ok((self.tags[done.slot as usize], done.buf))
    }
}

/// A file in dioxide.
#[derive(Debug)]
pub(crate) struct DioxideTarget<'a> {
    pub(crate) fs: &'a Fs,
    pub(crate) file: &'a File,
}

impl LoadTarget for DioxideTarget<'_> {
    type Queue = DioxideQueue;

    fn positions<'a>(&self, order: &'a Order) -> &'a [u64] {
        &order.file
    }

    #[inline(always)]
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        let wanted = buf.len();
        match self.file.read_at(buf, at)? {
            got if got == wanted => Ok(()),
            got => Err(short("a read", at, got, wanted)),
        }
    }

    #[inline(always)]
    fn write(&self, at: u64, buf: &[u8]) -> Result<()> {
        match self.file.write_at(buf, at)? {
            got if got == buf.len() => Ok(()),
            got => Err(short("a write", at, got, buf.len())),
        }
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<DioxideQueue> {
        Ok(DioxideQueue {
            queue: self.fs.queue(options)?,
            file: self.file.clone(),
        })
    }
}

/// A queue of dioxide's.
pub(crate) struct DioxideQueue {
    queue: dioxide::Queue,
    file: File,
}

impl LoadQueue for DioxideQueue {
    type Done = dioxide::Completion;

    #[inline(always)]
    fn push(&mut self, write: bool, at: u64, buf: Buf, tag: u64) -> Result<()> {
        let pushed = match write {
            true => self.queue.write(&self.file, at, buf, tag),
            false => self.queue.read(&self.file, at, buf, tag),
        };
        pushed.expect("the queue has room");
        Ok(())
    }

    #[inline]
    fn submit(&mut self) -> Result<()> {
        Ok(self.queue.submit()?)
    }

    #[inline]
    fn reap(&mut self, done: &mut Vec<dioxide::Completion>) {
        self.queue.reap(done);
    }

    fn wait(&mut self, min: usize, done: &mut Vec<dioxide::Completion>) -> Result<()> {
        self.queue.wait(min, done)?;
        Ok(())
    }

    #[inline(always)]
    fn take(&mut self, done: dioxide::Completion) -> Result<(u64, Buf)> {
        match done.result {
            Ok(got) if got == done.buf.len() => Ok((done.tag, done.buf)),
            Ok(got) => Err(short("a request", 0, got, done.buf.len())),
            Err(error) => Err((*error).into()),
        }
    }
}
