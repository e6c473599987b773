//! A file system whose journal is on another device: one image, and one recorded device, for both.
//!
//! The file system comes first, and its journal behind it. To the engine each [`Part`] is a device of its own, with a cache of
//! its own: a flush of one says nothing of the other. The recorded device knows only flushes of everything, so a part is never
//! flushed: what was written to it since its last flush is written again, with force unit access.

use crate::fsck::superblock;
use dioxide::block::inline::InlineQueue;
use dioxide::block::record::states::Snapshot;
use dioxide::block::{Device, Durability, Geometry, Queue, QueueOptions, Result};
use dioxide::format::features::Compat;
use dioxide::format::superblock::SuperBlock;
use parking_lot::{Mutex, RwLock};
use std::ops::Range;
use std::sync::Arc;

/// Where the journal's device begins, in bytes, if the file system has one.
pub(crate) fn journal_at(superblock: &SuperBlock) -> Option<u64> {
    let journal = superblock.features().compat.contains(Compat::HAS_JOURNAL);
    let bytes = superblock.blocks_count() * u64::from(superblock.block_size());
    (journal && superblock.journal_dev() != 0).then_some(bytes)
}

/// The same, of an image.
pub(crate) fn journal_in(image: &Snapshot) -> Option<u64> {
    superblock(image).as_ref().and_then(journal_at)
}

/// Part of a device, as a device.
#[derive(Clone, Debug)]
pub(crate) struct Part(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    whole: Arc<dyn Device>,
    start: u64,
    geometry: Geometry,
    /// What was written since the last flush, in bytes of the part.
    written: Mutex<Vec<Range<u64>>>,
    /// Shared by what writes, exclusive for a flush: what a flush writes again is no older than what is there.
    writing: RwLock<()>,
}

impl Part {
    /// These bytes of a device.
    pub(crate) fn new(whole: &Arc<dyn Device>, bytes: Range<u64>) -> Part {
        Part(Arc::new(Inner {
            whole: whole.clone(),
            start: bytes.start,
            geometry: Geometry {
                size_bytes: bytes.end - bytes.start,
                atomic: None,
                ..whole.geometry().clone()
            },
            written: Mutex::default(),
            writing: RwLock::default(),
        }))
    }

    /// Does something to a place in the whole, which the next flush writes again.
    fn change(
        &self,
        offset: u64,
        len: u64,
        change: impl FnOnce(&dyn Device, u64) -> Result<()>,
    ) -> Result<()> {
        let _shared = self.0.writing.read();
        self.0.written.lock().push(offset..offset + len);
        change(&*self.0.whole, self.0.start + offset)
    }
}

impl Device for Part {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.geometry.check("read", offset, buf.len() as u64)?;
        self.0.whole.read_at(self.0.start + offset, buf)
    }

    fn read_past_cache_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.geometry.check("read", offset, buf.len() as u64)?;
        self.0.whole.read_past_cache_at(self.0.start + offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        self.0.geometry.check("write", offset, buf.len() as u64)?;
        self.change(offset, buf.len() as u64, |whole, at| {
            whole.write_at(at, buf, durability)
        })
    }

    fn flush(&self) -> Result<()> {
        let _alone = self.0.writing.write();
        let written = std::mem::take(&mut *self.0.written.lock());
        for Range { start, end } in written {
            let mut bytes = vec![0; (end - start) as usize];
            let at = self.0.start + start;
            self.0.whole.read_at(at, &mut bytes)?;
            let durability = Durability::ForceUnitAccess;
            self.0.whole.write_at(at, &bytes, durability)?;
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.geometry.check("discard", offset, len)?;
        self.change(offset, len, |whole, at| whole.discard(at, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.0.geometry.check("write zeroes", offset, len)?;
        self.change(offset, len, |whole, at| whole.write_zeroes(at, len))
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        Ok(Box::new(InlineQueue::new(self.clone(), options)))
    }

    fn describe(&self) -> String {
        format!("{} at {}", self.0.whole.describe(), self.0.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dioxide::block::mem::MemDevice;

    /// Behind a page cache, where everything is zero, and nothing on the device itself is.
    #[derive(Debug)]
    struct Cached(MemDevice);

    impl Device for Cached {
        fn geometry(&self) -> &Geometry {
            self.0.geometry()
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.0.read_at(offset, buf)
        }

        fn read_past_cache_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            buf.fill((offset / 512) as u8);
            Ok(())
        }

        fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
            self.0.write_at(offset, buf, durability)
        }

        fn flush(&self) -> Result<()> {
            self.0.flush()
        }

        fn discard(&self, offset: u64, len: u64) -> Result<()> {
            self.0.discard(offset, len)
        }

        fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
            self.0.write_zeroes(offset, len)
        }

        fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
            self.0.open_queue(options)
        }

        fn describe(&self) -> String {
            "cached".into()
        }
    }

    #[test]
    fn part_reads_past_the_cache_below_it_and_no_further_than_its_end() {
        let whole: Arc<dyn Device> = Arc::new(Cached(MemDevice::new(1 << 16)));
        let part = Part::new(&whole, 4096..8192);
        let mut buf = [0; 512];
        part.read_past_cache_at(1024, &mut buf).expect("readable");
        assert_eq!(buf, [10; 512]);
        part.read_past_cache_at(4096, &mut buf)
            .expect_err("another part");
    }
}
