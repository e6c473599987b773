//! Blocks of the log, read many at a time.

use super::Context;
use crate::Result;
use crate::log::{Log, Ring};

/// Bytes that are read at once.
const WINDOW_BYTES: usize = 256 << 10;

/// The last blocks that were read.
pub(super) struct Window<'l> {
    log: &'l Log,
    ring: Ring,
    first: u32,
    bytes: Vec<u8>,
}

impl<'l> Window<'l> {
    pub(super) fn new(context: &Context<'l>) -> Window<'l> {
        Window {
            log: context.log,
            ring: context.ring,
            first: 0,
            bytes: Vec::new(),
        }
    }

    /// A block of the ring.
    pub(super) fn block(&mut self, at: u32) -> Result<&[u8]> {
        let size = self.log.block_bytes();
        let have = self.first..self.first + (self.bytes.len() / size) as u32;
        if !have.contains(&at) {
            self.load(at)?;
        }
        let skip = (at - self.first) as usize * size;
        Ok(&self.bytes[skip..skip + size])
    }

    fn load(&mut self, at: u32) -> Result<()> {
        let size = self.log.block_bytes();
        let blocks = (WINDOW_BYTES / size).min((self.ring.end - at) as usize);
        self.first = at;
        self.bytes.resize(blocks * size, 0);
        let Err(error) = self.log.read(at, &mut self.bytes) else {
            return Ok(());
        };
        tracing::debug!(%error, "reading one block of the log instead of many");
        // What cannot be read may lie past what is wanted.
        self.bytes.truncate(size);
        let single = self.log.read(at, &mut self.bytes);
        if single.is_err() {
            self.bytes.clear();
        }
        single
    }
}
