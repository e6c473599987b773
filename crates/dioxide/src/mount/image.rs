//! Opening what a file system, or its journal, lies on.

use super::span::read_span;
use dioxide_block::file::{self, FileOptions};
use dioxide_block::{Device, Result};
use dioxide_format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use std::path::Path;
use std::sync::Arc;

/// No file system has smaller blocks.
const LEAST_BLOCK_BYTES: u32 = 1024;

/// Opens an image file or a block device as [`file::open`] does, an image file so that each block of the file system in it
/// can be moved by itself.
///
/// A file may take direct I/O in whole sectors of its disk only, and these may be larger than the blocks: it goes through the
/// page cache then, as with [`FileOptions::buffered`]. A block device stays as it is, and a file system with blocks smaller than its
/// sectors is refused by who opens that, as by Linux.
///
/// # Errors
/// As [`file::open`].
pub fn open_image(path: impl AsRef<Path>, options: &FileOptions) -> Result<Arc<dyn Device>> {
    let path = path.as_ref();
    let device = file::open(path, options)?;
    let unit = device.geometry().logical_block_bytes;
    if unit <= LEAST_BLOCK_BYTES || has_blocks_of(&*device, unit) || !path.is_file() {
        return Ok(device);
    }
    // Two holders of its lock would be one too many.
    drop(device);
    // Multi-mount protection needs no direct I/O here: all who use a file of this host share its page cache, and see there
    // what each of them has written.
    let buffered = FileOptions {
        buffered: true,
        ..options.clone()
    };
    file::open(path, &buffered)
}

/// Whether it says of itself that its blocks have so many bytes or more.
fn has_blocks_of(device: &dyn Device, bytes: u32) -> bool {
    let found = read_span(device, SUPERBLOCK_OFFSET, SuperBlock::SIZE, "superblock");
    let sb = found.ok().and_then(|found| SuperBlock::parse(&found).ok());
    sb.is_some_and(|sb| sb.has_magic() && sb.block_size() >= bytes)
}
