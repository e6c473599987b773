//! Blocks of metadata in memory.
//!
//! For: blocks that are read again and again while paths are walked: descriptors, inode tables,
//! directories, index nodes. Not for: file data; and not for changing anything.
//!
//! Invariants: the cache holds at most [`BUDGET_BYTES`]; a block gets in only after it was read
//! whole, so a failed read is tried again by the next caller. Content is not judged here: whoever
//! knows what a block is checks it each time, which costs less than remembering what was checked.
//!
//! Rejected: a map with one list of use. It would be one lock for all, and needs a limit per entry
//! kind; sets of a few blocks each need neither.

use super::Mount;
use crate::{Error, Place, Result};
use dioxide_block::Buf;
use dioxide_format::types::Pblk;
use parking_lot::Mutex;
use std::sync::Arc;

/// Most bytes that the cache keeps.
const BUDGET_BYTES: usize = 8 << 20;
/// Blocks per set, the last used first.
const WAYS: usize = 4;

type Slot = Option<(Pblk, Arc<[u8]>)>;

/// A set-associative cache of blocks.
#[derive(Debug)]
pub(super) struct MetaCache {
    sets: Box<[Mutex<[Slot; WAYS]>]>,
}

impl MetaCache {
    pub(super) fn new(block_bytes: usize) -> MetaCache {
        let sets = (BUDGET_BYTES / block_bytes / WAYS).max(1);
        MetaCache {
            sets: (0..sets).map(|_| Mutex::default()).collect(),
        }
    }

    fn set(&self, pblk: Pblk) -> &Mutex<[Slot; WAYS]> {
        // Fibonacci hashing: tables lie at strides that a plain remainder would map to one set.
        let hash = pblk.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        &self.sets[hash as usize % self.sets.len()]
    }

    fn get(&self, pblk: Pblk) -> Option<Arc<[u8]>> {
        let mut slots = self.set(pblk).lock();
        let at = slots
            .iter()
            .position(|slot| matches!(slot, Some((at, _)) if *at == pblk))?;
        slots[..=at].rotate_right(1);
        slots[0].as_ref().map(|(_, bytes)| bytes.clone())
    }

    fn put(&self, pblk: Pblk, bytes: Arc<[u8]>) {
        let mut slots = self.set(pblk).lock();
        slots.rotate_right(1);
        slots[0] = Some((pblk, bytes));
    }
}

impl Mount {
    /// One block of metadata. Blocks on the device unless it is cached.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a block outside the file system; the device's.
    pub(crate) fn read_meta(&self, pblk: Pblk) -> Result<Arc<[u8]>> {
        if let Some(bytes) = self.meta.get(pblk) {
            return Ok(bytes);
        }
        let bytes = self.read_block(pblk)?;
        self.meta.put(pblk, bytes.clone());
        Ok(bytes)
    }

    fn read_block(&self, pblk: Pblk) -> Result<Arc<[u8]>> {
        let count = self.sb.blocks_count();
        if pblk.0 >= count {
            return Err(Error::Corrupt {
                structure: "block pointer",
                place: Place::block(pblk.0),
                what: format!("the file system has {count} blocks"),
            });
        }
        let mut buf = Buf::zeroed(self.block_bytes() as usize);
        self.device.read_at(pblk.0 << self.block_bits, &mut buf)?;
        Ok(Arc::from(&buf[..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(byte: u8) -> Arc<[u8]> {
        Arc::from([byte; 4])
    }

    #[test]
    fn cache_filled_beyond_budget_keeps_its_size_and_the_last_used() {
        let cache = MetaCache::new(BUDGET_BYTES / WAYS);
        assert_eq!(cache.sets.len(), 1);
        for number in 0..WAYS as u64 {
            cache.put(Pblk(number), block(number as u8));
        }
        assert_eq!(cache.get(Pblk(0)), Some(block(0)));
        cache.put(Pblk(100), block(100));
        assert_eq!(
            cache.get(Pblk(1)),
            None,
            "the one that was not used for longest leaves"
        );
        assert_eq!(cache.get(Pblk(0)), Some(block(0)));
        assert_eq!(cache.get(Pblk(100)), Some(block(100)));
    }

    #[test]
    fn cache_same_block_put_twice_returns_the_newer() {
        let cache = MetaCache::new(4096);
        cache.put(Pblk(7), block(1));
        cache.put(Pblk(7), block(2));
        assert_eq!(cache.get(Pblk(7)), Some(block(2)));
    }
}
