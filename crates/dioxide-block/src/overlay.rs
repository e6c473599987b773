//! A device some of whose blocks are read from elsewhere, on it or on another one, read-only.
//!
//! For: looking at a file system whose journal holds newer copies of its blocks, without writing them
//! to their places. Not for: writing; a redirected block would have two versions, and which of them
//! is right only its owner knows.
//!
//! Rejected: copies of the blocks in memory. A log may claim as many as its device is large.
//! Rejected: a queue of its own that sends what is not redirected to the device's. Redirected blocks are
//! metadata, and an image that is read so is looked at, not worked on; so queued operations block.

use crate::inline::InlineQueue;
use crate::{Device, Durability, Error, Geometry, Queue, QueueOptions, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// Where a block is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The block that has its contents.
    pub block: u64,
    /// What the first bytes are, if not those found there.
    pub head: Option<[u8; 4]>,
}

/// See the module header. Clones share the table.
#[derive(Clone, Debug)]
pub struct OverlayDevice(Arc<Overlay>);

#[derive(Debug)]
struct Overlay {
    inner: Arc<dyn Device>,
    /// Has what redirected blocks are read from.
    source: Arc<dyn Device>,
    geometry: Geometry,
    block_bytes: u64,
    redirects: HashMap<u64, Redirect>,
}

impl OverlayDevice {
    /// `inner` with blocks, by number, read from elsewhere on `source`, which may be the same. `block_bytes` is their size.
    ///
    /// # Panics
    /// If the size is no multiple of the logical block of either.
    pub fn new(
        inner: Arc<dyn Device>,
        source: Arc<dyn Device>,
        block_bytes: u32,
        redirects: HashMap<u64, Redirect>,
    ) -> OverlayDevice {
        let logical = inner.geometry().logical_block_bytes;
        let geometry = Geometry {
            read_only: true,
            logical_block_bytes: logical.max(source.geometry().logical_block_bytes),
            fua: false,
            discard: false,
            atomic: None,
            ..inner.geometry().clone()
        };
        assert!(
            block_bytes > 0 && block_bytes.is_multiple_of(geometry.logical_block_bytes),
            "blocks of {block_bytes} bytes"
        );
        OverlayDevice(Arc::new(Overlay {
            inner,
            source,
            geometry,
            block_bytes: u64::from(block_bytes),
            redirects,
        }))
    }
}

/// A way to read a device.
type Read = fn(&(dyn Device + 'static), u64, &mut [u8]) -> Result<()>;

impl Overlay {
    /// Reads with `read`, of whichever device has it.
    fn read_by(&self, read: Read, offset: u64, buf: &mut [u8]) -> Result<()> {
        // A block that a power cut left half written may be unreadable, and is not needed where it is replaced.
        let in_one = read(&*self.inner, offset, buf);
        let block_bytes = self.block_bytes;
        let end = offset + buf.len() as u64;
        for block in offset / block_bytes..end.div_ceil(block_bytes) {
            let start = block * block_bytes;
            let (from, to) = (offset.max(start), end.min(start + block_bytes));
            let part = &mut buf[(from - offset) as usize..(to - offset) as usize];
            match self.redirects.get(&block) {
                Some(&redirect) => self.read_part(read, redirect, from - start, part)?,
                None if in_one.is_err() => read(&*self.inner, from, part)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Reads part of a block, `skip` bytes into it.
    fn read_part(&self, read: Read, redirect: Redirect, skip: u64, part: &mut [u8]) -> Result<()> {
        let offset = redirect.block.checked_mul(self.block_bytes);
        let offset = offset.and_then(|offset| offset.checked_add(skip));
        // A place beyond all devices gives the error of one beyond this device.
        read(&*self.source, offset.unwrap_or(u64::MAX - 4095), part)?;
        if let (Some(head), 0) = (redirect.head, skip) {
            part[..head.len()].copy_from_slice(&head);
        }
        Ok(())
    }
}

fn refuse(op: &'static str) -> Result<()> {
    Err(Error::ReadOnly { op })
}

impl Device for OverlayDevice {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read_by(<dyn Device>::read_at, offset, buf)
    }

    fn read_past_cache_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0
            .read_by(<dyn Device>::read_past_cache_at, offset, buf)
    }

    fn write_at(&self, _: u64, _: &[u8], _: Durability) -> Result<()> {
        refuse("write")
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        refuse("discard")
    }

    fn write_zeroes(&self, _: u64, _: u64) -> Result<()> {
        refuse("write zeroes")
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        Ok(Box::new(InlineQueue::new(self.clone(), options)))
    }

    fn describe(&self) -> String {
        let (inner, blocks) = (self.0.inner.describe(), self.0.redirects.len());
        format!("{inner} with {blocks} blocks from its journal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::MemDevice;
    use crate::sim::{Fault, FaultKind, FaultOp, SimDevice, SimSpec};

    /// 16 blocks, each full of its number; 2 and 3 are read from 12 and 13, the last with a head.
    fn overlay() -> OverlayDevice {
        let inner = MemDevice::new(16 * 1024);
        for block in 0..16 {
            let bytes = [block as u8; 1024];
            inner
                .write_at(block * 1024, &bytes, Durability::Cached)
                .expect("a block of the device");
        }
        let head = Some([0xAA, 0xBB, 0xCC, 0xDD]);
        let redirects = HashMap::from([
            (
                2,
                Redirect {
                    block: 12,
                    head: None,
                },
            ),
            (3, Redirect { block: 13, head }),
            (
                9,
                Redirect {
                    block: 1 << 60,
                    head: None,
                },
            ),
        ]);
        let inner = Arc::new(inner);
        OverlayDevice::new(inner.clone(), inner, 1024, redirects)
    }

    #[test]
    fn read_across_redirected_and_own_blocks_sees_each() {
        let mut buf = vec![0; 6 * 1024];
        overlay().read_at(0, &mut buf).expect("a range");
        let firsts: Vec<u8> = buf.chunks(1024).map(|block| block[4]).collect();
        assert_eq!(firsts, [0, 1, 12, 13, 4, 5]);
        assert_eq!(buf[3 * 1024..][..4], [0xAA, 0xBB, 0xCC, 0xDD]);
    }

    #[test]
    fn block_that_is_replaced_need_not_be_readable() {
        let sim = SimDevice::new(Arc::new(MemDevice::new(16 * 1024)), SimSpec::default());
        sim.inject(Fault {
            range: Some(2 * 1024..3 * 1024),
            ..Fault::every(FaultOp::Read, FaultKind::Io(libc::EIO))
        });
        let source = overlay().0.inner.clone();
        let redirect = Redirect {
            block: 12,
            head: None,
        };
        let of = |block| {
            let redirects = HashMap::from([(block, redirect)]);
            OverlayDevice::new(Arc::new(sim.clone()), source.clone(), 1024, redirects)
        };
        let mut buf = vec![0xFF; 6 * 1024];
        of(2).read_at(0, &mut buf).expect("the others can be read");
        let firsts: Vec<u8> = buf.chunks(1024).map(|block| block[4]).collect();
        assert_eq!(firsts, [0, 0, 12, 0, 0, 0]);
        of(3).read_at(0, &mut buf).expect_err("the second cannot");
    }

    #[test]
    fn read_of_parts_of_redirected_blocks_sees_them() {
        let mut buf = [0; 1024];
        overlay().read_at(2560, &mut buf).expect("a range");
        assert_eq!((buf[0], buf[511], buf[512], buf[516]), (12, 12, 0xAA, 13));
        overlay().read_at(3584, &mut buf[..512]).expect("a range");
        assert_eq!(buf[0], 13);
    }

    #[test]
    fn writes_and_reads_past_the_end_are_refused() {
        let overlay = overlay();
        let error = overlay.write_at(0, &[0; 512], Durability::Cached);
        assert!(matches!(error, Err(Error::ReadOnly { op: "write" })));
        for offset in [16 * 1024, 9 * 1024] {
            let error = overlay.read_at(offset, &mut [0; 512]);
            assert!(matches!(error, Err(Error::OutOfRange { .. })), "{error:?}");
        }
    }
}
