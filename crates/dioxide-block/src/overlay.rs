//! A device with some of its blocks replaced, read-only.
//!
//! For: looking at a file system whose journal was replayed in memory only. Not for: writing; a
//! replaced block would have two versions, and which of them is right only its owner knows.
//!
//! Invariant: each replaced block has `block_bytes` bytes, a multiple of the logical block.
//!
//! Rejected: a queue of its own that sends what is not replaced to the device's. Replayed blocks are
//! metadata, and an image that is read so is looked at, not worked on; so queued operations block.

use crate::inline::InlineQueue;
use crate::{Device, Durability, Error, Geometry, Queue, QueueOptions, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// See the module header. Clones share the blocks.
#[derive(Clone, Debug)]
pub struct OverlayDevice(Arc<Overlay>);

#[derive(Debug)]
struct Overlay {
    inner: Arc<dyn Device>,
    geometry: Geometry,
    block_bytes: usize,
    blocks: HashMap<u64, Arc<[u8]>>,
}

impl OverlayDevice {
    /// `inner` with `blocks`, by number, in place of its own. `block_bytes` is their size.
    ///
    /// # Panics
    /// If a block is of another size, or the size is no multiple of the logical block.
    pub fn new(
        inner: Arc<dyn Device>,
        block_bytes: usize,
        blocks: HashMap<u64, Arc<[u8]>>,
    ) -> OverlayDevice {
        let geometry = Geometry {
            read_only: true,
            fua: false,
            discard: false,
            ..inner.geometry().clone()
        };
        assert!(
            block_bytes.is_multiple_of(geometry.logical_block_bytes as usize) && block_bytes > 0,
            "blocks of {block_bytes} bytes"
        );
        assert!(
            blocks.values().all(|bytes| bytes.len() == block_bytes),
            "a block of another size than {block_bytes} bytes"
        );
        OverlayDevice(Arc::new(Overlay {
            inner,
            geometry,
            block_bytes,
            blocks,
        }))
    }

    fn refuse(op: &'static str) -> Result<()> {
        Err(Error::ReadOnly { op })
    }
}

impl Device for OverlayDevice {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let overlay = &*self.0;
        overlay.inner.read_at(offset, buf)?;
        let block_bytes = overlay.block_bytes as u64;
        let end = offset + buf.len() as u64;
        for block in offset / block_bytes..end.div_ceil(block_bytes) {
            let Some(bytes) = overlay.blocks.get(&block) else {
                continue;
            };
            let start = block * block_bytes;
            let (from, to) = (offset.max(start), end.min(start + block_bytes));
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    fn write_at(&self, _: u64, _: &[u8], _: Durability) -> Result<()> {
        OverlayDevice::refuse("write")
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        OverlayDevice::refuse("discard")
    }

    fn write_zeroes(&self, _: u64, _: u64) -> Result<()> {
        OverlayDevice::refuse("write zeroes")
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        Ok(Box::new(InlineQueue::new(self.clone(), options)))
    }

    fn describe(&self) -> String {
        let (inner, blocks) = (self.0.inner.describe(), self.0.blocks.len());
        format!("{inner} with {blocks} blocks replaced in memory")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::MemDevice;

    fn overlay() -> OverlayDevice {
        let inner = MemDevice::new(16 * 1024);
        inner
            .write_at(0, &[1; 16 * 1024], Durability::Cached)
            .expect("a range of the device");
        let block = |byte: u8| Arc::from([byte; 1024]);
        let blocks = HashMap::from([(2, block(7)), (3, block(8)), (15, block(9))]);
        OverlayDevice::new(Arc::new(inner), 1024, blocks)
    }

    #[test]
    fn read_across_replaced_and_own_blocks_sees_each() {
        let mut buf = vec![0; 16 * 1024];
        overlay().read_at(0, &mut buf).expect("a range");
        for (block, bytes) in buf.chunks(1024).enumerate() {
            let expected = match block {
                2 => 7,
                3 => 8,
                15 => 9,
                _ => 1,
            };
            assert!(bytes.iter().all(|&b| b == expected), "block {block}");
        }
    }

    #[test]
    fn read_of_parts_of_replaced_blocks_sees_them() {
        let mut buf = [0; 1024];
        overlay().read_at(2560, &mut buf).expect("a range");
        assert_eq!((buf[0], buf[511], buf[512], buf[1023]), (7, 7, 8, 8));
    }

    #[test]
    fn writes_and_reads_past_the_end_are_refused() {
        let overlay = overlay();
        let error = overlay.write_at(0, &[0; 512], Durability::Cached);
        assert!(matches!(error, Err(Error::ReadOnly { op: "write" })));
        let error = overlay.read_at(16 * 1024, &mut [0; 512]);
        assert!(matches!(error, Err(Error::OutOfRange { .. })));
    }
}
