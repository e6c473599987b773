//! Writes of single blocks, gathered where they are neighbours on the device.

use crate::Result;
use dioxide_block::{Buf, Device, Durability};

/// A write is at most so long.
const MAX_BYTES: usize = 256 << 10;

pub(super) struct Gather<'a> {
    device: &'a dyn Device,
    block_bytes: usize,
    buf: Buf,
    /// First block of the write that is being gathered, and how many there are.
    first: u64,
    count: usize,
}

impl<'a> Gather<'a> {
    /// For so many blocks at the most. Memory for a large write costs more than a small commit.
    pub(super) fn new(device: &'a dyn Device, block_bytes: usize, blocks: usize) -> Gather<'a> {
        let most = MAX_BYTES.max(block_bytes) / block_bytes;
        Gather {
            device,
            block_bytes,
            buf: Buf::zeroed(blocks.clamp(1, most) * block_bytes),
            first: 0,
            count: 0,
        }
    }

    /// Writes one block, now or together with the next.
    pub(super) fn push(&mut self, block: u64, bytes: &[u8]) -> Result<()> {
        let filled = self.count * self.block_bytes;
        let follows = block == self.first + self.count as u64;
        if !follows || filled == self.buf.len() {
            self.write()?;
            self.first = block;
        }
        let at = self.count * self.block_bytes;
        self.buf[at..at + self.block_bytes].copy_from_slice(bytes);
        self.count += 1;
        Ok(())
    }

    /// Writes the rest.
    pub(super) fn finish(mut self) -> Result<()> {
        self.write()
    }

    fn write(&mut self) -> Result<()> {
        let bytes = &self.buf[..std::mem::take(&mut self.count) * self.block_bytes];
        if !bytes.is_empty() {
            let offset = self.first.saturating_mul(self.block_bytes as u64);
            self.device.write_at(offset, bytes, Durability::Cached)?;
        }
        Ok(())
    }
}
