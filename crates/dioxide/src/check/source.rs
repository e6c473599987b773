//! Reading what is checked: blocks of the device, or of the log in their place.
//!
//! Not for: caching. Passes read each block once, or a few times far apart.

use crate::mount::span::read_span;
use crate::{Error, Result};
use dioxide_block::Device;
use std::sync::Arc;

/// Where blocks come from.
#[derive(Clone, Debug)]
pub(super) struct Source {
    device: Arc<dyn Device>,
    block_bytes: u32,
}

impl Source {
    pub(super) fn new(device: Arc<dyn Device>, block_bytes: u32) -> Source {
        Source {
            device,
            block_bytes,
        }
    }

    pub(super) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.device.geometry().size_bytes
    }

    /// Bytes anywhere on the device.
    pub(super) fn bytes(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        read_span(&*self.device, at, len, "metadata")
    }

    /// One block.
    pub(super) fn block(&self, block: u64) -> Result<Vec<u8>> {
        self.blocks(block, 1)
    }

    /// Some blocks, which the caller has limited.
    pub(super) fn blocks(&self, block: u64, count: u32) -> Result<Vec<u8>> {
        let bytes = u64::from(self.block_bytes);
        let at = block.checked_mul(bytes);
        let at = at.ok_or_else(|| Error::Invalid(format!("block {block}")))?;
        self.bytes(at, count as usize * self.block_bytes as usize)
    }
}
