//! Reading blocks of metadata.
//!
//! For: blocks that are read again and again while paths are walked: descriptors, inode tables,
//! directories, index nodes. They come from the cache that the journal protects, so that a reader sees
//! what was changed and is not durable yet. Not for: file data; and not for changing anything.
//!
//! Content is not judged here: whoever knows what a block is checks it each time, which costs less than
//! remembering what was checked.

use super::Mount;
use crate::{Error, Place, Result};
use dioxide_format::types::Pblk;
use dioxide_journal::Kind;
use std::sync::Arc;

/// A block of which the reader knows what it is.
#[derive(Debug)]
struct Unjudged;

impl Kind for Unjudged {
    fn name(&self) -> &'static str {
        "metadata"
    }

    fn verify(&self, _: Pblk, _: &[u8]) -> dioxide_format::Result<()> {
        Ok(())
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}
}

impl Mount {
    /// One block of metadata. Blocks on the device unless it is cached.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a block outside the file system; the device's.
    pub(crate) fn read_meta(&self, pblk: Pblk) -> Result<Arc<[u8]>> {
        let count = self.sb.blocks_count();
        if pblk.0 >= count {
            return Err(Error::Corrupt {
                structure: "block pointer",
                place: Place::block(pblk.0),
                what: format!("the file system has {count} blocks"),
            });
        }
        Ok(self.cache.read(pblk, &Unjudged)?)
    }
}
