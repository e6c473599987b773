//! The last pass: what the log holds, to its places, or where to read it instead.

use super::{Copy, Recovery};
use crate::Result;
use dioxide_block::overlay::{OverlayDevice, Redirect};
use dioxide_block::{Device, Durability};
use dioxide_format::journal::{MAGIC, unescape};
use std::sync::Arc;

/// Bytes that are read from the log, put in order and written together.
const BATCH_BYTES: usize = 4 << 20;

impl Recovery<'_> {
    /// Writes what the log holds to the device of the file system, and flushes. Blocks. The log stays
    /// as it is, so that a replay that was cut short can be made again.
    ///
    /// # Errors
    /// The device's.
    pub fn replay(&self, device: &dyn Device) -> Result<()> {
        if self.superblock.is_empty() {
            return Ok(());
        }
        let per_batch = BATCH_BYTES / self.log.block_bytes();
        for batch in self.copies.chunks(per_batch) {
            self.replay_batch(batch, device)?;
        }
        Ok(device.flush()?)
    }

    /// Blocks that lie one after the other are one write.
    fn replay_batch(&self, batch: &[Copy], device: &dyn Device) -> Result<()> {
        let mut batch = batch.to_vec();
        batch.sort_unstable_by_key(|copy| copy.tag.block);
        let size = self.log.block_bytes();
        for run in batch.chunk_by(|a, b| a.tag.block + 1 == b.tag.block) {
            let mut bytes = vec![0; run.len() * size];
            for (copy, block) in run.iter().zip(bytes.chunks_exact_mut(size)) {
                self.read_copy(copy, block)?;
            }
            let offset = run[0].tag.block * size as u64;
            device.write_at(offset, &bytes, Durability::Cached)?;
        }
        Ok(())
    }

    fn read_copy(&self, copy: &Copy, block: &mut [u8]) -> Result<()> {
        self.log.read(copy.at, block)?;
        if copy.tag.is_escaped() {
            unescape(block);
        }
        Ok(())
    }

    /// The device of the file system as a replay would leave it, to be read only: blocks that the log holds are read there.
    ///
    /// # Errors
    /// [`crate::Error::Log`] for a copy outside the journal.
    ///
    /// # Panics
    /// If the logical blocks of either device are larger than those of the file system.
    pub fn overlay(&self, device: &Arc<dyn Device>) -> Result<OverlayDevice> {
        let redirect = |copy: &Copy| {
            let block = self.log.map().device_block(copy.at)?;
            let head = copy.tag.is_escaped().then(|| MAGIC.to_be_bytes());
            Ok((copy.tag.block, Redirect { block, head }))
        };
        let redirects = self.copies.iter().map(redirect).collect::<Result<_>>()?;
        let (device, log) = (device.clone(), self.log.device().clone());
        let block_bytes = self.log.block_bytes() as u32;
        Ok(OverlayDevice::new(device, log, block_bytes, redirects))
    }
}
