//! Where the journal is: in a file of the file system, or on a device of its own.

use super::Mount;
use super::open::no_journal;
use super::span::read_span;
use super::zone::journal_blocks;
use crate::{Error, Place, Result};
use dioxide_block::Device;
use dioxide_format::features::Incompat;
use dioxide_format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use dioxide_journal::log::{Log, LogMap};
use std::sync::Arc;

/// The journal on a device of its own, if it is that of the file system.
///
/// # Errors
/// [`Error::Invalid`] for a device that holds no journal, or another file system's; the device's.
pub(super) fn external(device: &Arc<dyn Device>, sb: &SuperBlock) -> Result<Log> {
    let wrong = |what: String| Error::Invalid(format!("{}: {what}", device.describe()));
    let bytes = read_span(&**device, SUPERBLOCK_OFFSET, SuperBlock::SIZE)?;
    let place = Place::default().at(SUPERBLOCK_OFFSET);
    let theirs = SuperBlock::parse(&bytes).map_err(|error| Error::format(error, place))?;
    let is_journal =
        theirs.has_magic() && theirs.features().incompat.contains(Incompat::JOURNAL_DEV);
    if !is_journal {
        return Err(wrong("it is no journal device".into()));
    }
    if theirs.uuid() != sb.journal_uuid() {
        return Err(wrong("it is another file system's journal".into()));
    }
    let bytes = sb.block_size();
    if theirs.block_size() != bytes {
        return Err(wrong(format!("its blocks are not of {bytes} bytes")));
    }
    let there = device.geometry().size_bytes / u64::from(bytes);
    let blocks = theirs.blocks_count().min(there);
    let map = LogMap::external(blocks, bytes as usize)?;
    Ok(Log::new(device.clone(), map, bytes as usize))
}

impl Mount {
    /// The journal of the file system.
    ///
    /// # Errors
    /// Damage; [`Error::Unsupported`] if it lies on a device that was not given.
    pub(crate) fn log(&self) -> Result<Log> {
        if self.sb.journal_dev() == 0 {
            let inode = self.journal_inode()?;
            let blocks = journal_blocks(self, &inode)?;
            if blocks.is_empty() {
                return Err(no_journal(inode.place(), "it has no blocks"));
            }
            let map = LogMap::internal(blocks)?;
            return Ok(Log::new(
                self.device.clone(),
                map,
                self.block_bytes() as usize,
            ));
        }
        match &self.journal_device {
            Some(device) => external(device, &self.sb),
            None => Err(Error::Unsupported(
                "the journal lies on another device: name it (journal_path)".into(),
            )),
        }
    }
}
