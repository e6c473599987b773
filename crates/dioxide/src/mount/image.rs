//! Opening what a file system, or its journal, lies on.

use super::span::read_span;
use dioxide_block::file::{self, FileOptions};
use dioxide_block::{Device, Result};
use dioxide_format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
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

/// As [`open_image`], to read a file system that may be one of several in an image: of what begins inside of it, only as much as
/// its superblock says. What follows may be another partition, which others may have open.
///
/// # Errors
/// As [`file::open`].
pub fn open_image_part(path: impl AsRef<Path>, options: &FileOptions) -> Result<Arc<dyn Device>> {
    let path = path.as_ref();
    let told = (options.img_offset > 0).then(|| told_bytes(path, options.img_offset));
    let options = FileOptions {
        size_bytes: told.flatten().map(|(told, _)| told),
        write: false,
        ..options.clone()
    };
    open_image(path, &options)
}

/// As [`open_image`], of what begins inside an image only so many bytes, or what it has if that is less.
pub(crate) fn open_bytes(
    path: &Path,
    options: &FileOptions,
    bytes: u64,
) -> Result<Arc<dyn Device>> {
    let rest = (options.img_offset > 0).then(|| bytes_behind(path, options.img_offset));
    let options = FileOptions {
        size_bytes: rest.flatten().map(|rest| rest.min(bytes)),
        ..options.clone()
    };
    open_image(path, &options)
}

/// What an image or device has from there on, if that can be told.
pub(crate) fn bytes_behind(path: &Path, img_offset: u64) -> Option<u64> {
    let end = look_at(path)?.seek(SeekFrom::End(0)).ok()?;
    end.checked_sub(img_offset)
}

/// Opens it without a lock, and waits for nobody.
fn look_at(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_NONBLOCK);
    options.open(path).ok()
}

/// How long a file system is by its superblock, if that can be read and all of it is there; and what the image has from its
/// beginning on.
pub(crate) fn told_bytes(path: &Path, img_offset: u64) -> Option<(u64, u64)> {
    let mut file = look_at(path)?;
    let mut bytes = [0; SuperBlock::SIZE];
    file.read_exact_at(&mut bytes, img_offset.checked_add(SUPERBLOCK_OFFSET)?)
        .ok()?;
    let sb = SuperBlock::parse(&bytes).ok()?;
    // Where there is none, what is said of it is that.
    sb.has_magic().then_some(())?;
    let told = sb.blocks_count().checked_mul(sb.block_size().into())?;
    let rest = file.seek(SeekFrom::End(0)).ok()?.checked_sub(img_offset)?;
    (told <= rest).then_some((told, rest))
}

/// Whether it says of itself that its blocks have so many bytes or more.
fn has_blocks_of(device: &dyn Device, bytes: u32) -> bool {
    let found = read_span(device, SUPERBLOCK_OFFSET, SuperBlock::SIZE, "superblock");
    let sb = found.ok().and_then(|found| SuperBlock::parse(&found).ok());
    sb.is_some_and(|sb| sb.has_magic() && sb.block_size() >= bytes)
}
