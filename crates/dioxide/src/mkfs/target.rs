//! Images and devices: what is on them, whether they may be used, and making new ones.
//!
//! An image or device that is mounted, attached or locked is refused when it is opened, whatever is
//! asked; one that holds something is refused unless that is forced. An image that was made here is
//! removed again if it could not be used, or the file system not be written.

use super::options::Mkfs;
use super::plan::Plan;
use super::profile;
use super::write::WriteOptions;
use crate::mount::image::{bytes_behind, open_bytes};
use crate::{Error, Result};
use dioxide_block::file::{self, FileOptions};
use dioxide_block::{Buf, Device};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// Where a signature is, its bytes, and whose it is.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (1080, &[0x53, 0xEF], "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (65536 + 64, b"_BHRfS_M", "a btrfs file system"),
    (1024, &[0x10, 0x20, 0xF5, 0xF2], "an F2FS file system"),
    (1024, &[0xE2, 0xE1, 0xF5, 0xE0], "an EROFS file system"),
    (0, b"hsqs", "a squashfs file system"),
    (32769, b"CD001", "an ISO 9660 file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (54, b"FAT1", "a FAT file system"),
    (82, b"FAT32", "a FAT file system"),
    (0, b"LUKS\xBA\xBE", "a LUKS volume"),
    (512, b"LABELONE", "an LVM volume"),
    (4086, b"SWAPSPACE2", "a swap area"),
    (4096, &[0xFC, 0x4E, 0x2B, 0xA9], "a RAID member"),
    (0, b"QFI\xFB", "a qcow2 image"),
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
];
/// Bytes that hold all signatures.
const HEAD_BYTES: u64 = 65536 + 4096;
/// What `mke2fs` rounds the size of a device to.
const PAGE_BYTES: u64 = 4096;

fn options(write: bool, img_offset: u64) -> FileOptions {
    FileOptions {
        write,
        img_offset,
        // Any alignment, and the page cache gathers what is written piece by piece.
        buffered: true,
        ..FileOptions::default()
    }
}

fn found_on_device(device: &dyn Device) -> Result<Option<String>> {
    let len = device.geometry().size_bytes.min(HEAD_BYTES);
    let mut head = Buf::zeroed(len as usize);
    device.read_at(0, &mut head)?;
    let has = |at: usize, bytes: &[u8]| head.get(at..at + bytes.len()) == Some(bytes);
    let found = SIGNATURES.iter().find(|(at, bytes, _)| has(*at, bytes));
    Ok(match found {
        Some((_, _, whose)) => Some((*whose).to_owned()),
        None if has_partitions(&head) => Some("a partition table".into()),
        None => None,
    })
}

/// A master boot record with an entry that is used.
fn has_partitions(head: &[u8]) -> bool {
    let entries = head.get(446..510).unwrap_or_default();
    head.get(510..512) == Some(&[0x55, 0xAA]) && entries.chunks_exact(16).any(|entry| entry[4] != 0)
}

/// Whether a path still leads to a file.
fn is_at(file: &File, path: &Path) -> bool {
    let same = |at: &Metadata, is: &Metadata| (at.dev(), at.ino()) == (is.dev(), is.ino());
    match (fs::symlink_metadata(path), file.metadata()) {
        (Ok(at), Ok(is)) => same(&at, &is),
        _ => false,
    }
}

fn holds_nothing(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.blocks() == 0)
}

/// An image or device that may be written.
struct Target {
    device: Arc<dyn Device>,
    is_image: bool,
    /// It was made here, of zeros.
    is_new: bool,
}

impl Mkfs {
    /// Makes a file system on an image or block device, `size_bytes` large or as large as that is. An
    /// image that is not there is made, one that is too small is enlarged. Blocks.
    ///
    /// # Errors
    /// As [`Mkfs::plan_on`] and [`Plan::write`]; [`Error::Device`] when it is in use;
    /// [`Error::Invalid`] when it holds something and [`Mkfs::force`] is not set, naming what.
    pub fn create(&self, path: &Path, size_bytes: Option<u64>) -> Result<Plan> {
        self.create_with(path, size_bytes, None)
    }

    /// As [`Mkfs::create`], telling from time to time how many groups are done, and of how many.
    ///
    /// # Errors
    /// As [`Mkfs::create`].
    pub fn create_with(
        &self,
        path: &Path,
        size_bytes: Option<u64>,
        progress: Option<&mut dyn FnMut(u64, u64)>,
    ) -> Result<Plan> {
        let plan = self.plan_on(path, size_bytes)?;
        let made = match path.exists() {
            true => None,
            false => {
                let file = OpenOptions::new().write(true).create_new(true).open(path);
                Some(file.map_err(|error| failed(path, "cannot make it", error))?)
            }
        };
        let sb = plan.superblock();
        let needed = sb.blocks_count() * u64::from(sb.block_size());
        let target = self.open(path, made.as_ref(), needed);
        let was_had = target.is_ok();
        let written = target.and_then(|target| {
            let mut options = WriteOptions {
                reads_zero: self.discard(&target, needed),
                progress,
            };
            plan.write(&*target.device, &mut options)
        });
        // If it was not had, others may have it by now, and what they wrote.
        let is_ours = |made: &File| is_at(made, path) && (was_had || holds_nothing(made));
        if written.is_err() && made.as_ref().is_some_and(is_ours) {
            // What went wrong first is what matters.
            let _ = fs::remove_file(path);
        }
        written.map(|()| plan)
    }

    /// What an image or device holds where the file system is to be, in words; none when nothing is
    /// recognised, or when there is no such file. Opens it for reading only.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn found_on(&self, path: &Path) -> Result<Option<String>> {
        match path.exists() {
            true => self.recognise(path, false, HEAD_BYTES),
            false => Ok(None),
        }
    }

    /// Opens so many bytes, which refuses what is in use, and looks.
    fn recognise(&self, path: &Path, write: bool, bytes: u64) -> Result<Option<String>> {
        let offset = self.extended.offset;
        if offset > 0 && bytes_behind(path, offset).is_none_or(|bytes| bytes == 0) {
            // It is about to be made longer.
            file::open(path, &options(write, 0))?;
            return Ok(None);
        }
        found_on_device(&*open_bytes(path, &options(write, offset), bytes)?)
    }

    /// As [`Mkfs::plan`], of a file system on an image or device, `size_bytes` large or as large as that is. Blocks that
    /// are not asked for otherwise are no smaller than its sectors. Opens it for reading only. Blocks.
    ///
    /// # Errors
    /// As [`Mkfs::plan`]; [`Error::Invalid`] when no size is given and the image is not there, or when the device is too
    /// small, or its sectors are larger than the blocks that are asked for; [`Error::Device`].
    pub fn plan_on(&self, path: &Path, size_bytes: Option<u64>) -> Result<Plan> {
        let is_there = path.exists();
        if let Some(bytes) = size_bytes
            && (!is_there || is_image(path)?)
        {
            // It is made, or grows.
            return self.plan(bytes);
        }
        if !is_there {
            let what = "there is no such image: give a size, and it is made";
            return Err(Error::Invalid(what.into()));
        }
        let device = file::open(path, &options(false, self.extended.offset))?;
        let geometry = device.geometry();
        let size = size_bytes.unwrap_or(geometry.size_bytes / PAGE_BYTES * PAGE_BYTES);
        let mut mkfs = self.clone();
        let by_default = profile::usage(size).0.max(geometry.logical_block_bytes);
        mkfs.block_size.get_or_insert(by_default);
        let plan = mkfs.plan(size)?;
        plan.check_device(&*device)?;
        Ok(plan)
    }

    /// Opens it for itself. `made`: a file that was made for it.
    fn open(&self, path: &Path, made: Option<&File>, needed: u64) -> Result<Target> {
        let end = self.extended.offset.checked_add(needed);
        let end = end.ok_or_else(|| Error::Invalid("the offset is too large".into()))?;
        if made.is_none() {
            self.refuse(self.recognise(path, true, needed)?)?;
        }
        let is_image = is_image(path)?;
        if is_image {
            enlarge(path, end).map_err(|error| failed(path, "cannot make it that large", error))?;
        }
        let device = open_bytes(path, &options(true, self.extended.offset), needed)?;
        // Nobody else has it from here on; somebody may have had since it was made or looked at.
        let is_new = made.is_some_and(holds_nothing);
        if !is_new {
            self.refuse(found_on_device(&*device)?)?;
        }
        Ok(Target {
            device,
            is_image,
            is_new,
        })
    }

    fn refuse(&self, found: Option<String>) -> Result<()> {
        match found.filter(|_| !self.force) {
            Some(found) => Err(Error::Invalid(format!(
                "it holds {found}, and is overwritten if that is forced (--force, -F)"
            ))),
            None => Ok(()),
        }
    }

    /// Gives back what is not needed. Whether everything reads as zeros then.
    fn discard(&self, target: &Target, needed: u64) -> bool {
        let possible = target.device.geometry().discard && !self.extended.no_discard;
        if target.is_new || !possible {
            return target.is_new;
        }
        // Holes read as zeros; what a device gives back may be anything.
        target.device.discard(0, needed).is_ok() && target.is_image
    }
}

fn is_image(path: &Path) -> Result<bool> {
    let metadata = fs::metadata(path).map_err(|error| failed(path, "cannot stat it", error))?;
    Ok(!metadata.file_type().is_block_device())
}

/// Never makes the image smaller.
fn enlarge(path: &Path, size_bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    if file.metadata()?.len() < size_bytes {
        file.set_len(size_bytes)?;
    }
    Ok(())
}

fn failed(path: &Path, what: &'static str, source: io::Error) -> Error {
    Error::Device(dioxide_block::Error::Open {
        path: path.into(),
        what: what.into(),
        source,
    })
}
