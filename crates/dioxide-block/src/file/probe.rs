//! Opening a path and finding out what it is.
//!
//! Everything that the rest of the crate believes about a file is asked here, once: kind, size,
//! alignment, whether it lives in memory, what its cache and its discard do. Where an old kernel or
//! an odd file system does not answer, it is tried; where trying fails, the page cache is used,
//! which takes any alignment.

use super::io::FileIo;
use super::{Backend, FileOptions, guard};
use crate::{AtomicUnits, BUF_ALIGN, Buf, Error, Geometry, Result};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, SeekFrom, Stat, StatxFlags};
use rustix::io::{self as rio, Errno};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
/// The kernel's constant, which rustix does not have.
const STATX_WRITE_ATOMIC: u32 = 0x0001_0000;
/// What files are addressed in when nothing asks for more.
const SECTOR_BYTES: u32 = 512;
/// A process that another thread of this one is just starting holds copies of all descriptors so long at most, mostly: also of one by
/// which this process had the device to itself, and that is closed.
const COPIES_LAST: Duration = Duration::from_millis(100);
const NO_IMAGE: &str = "neither a regular file nor a block device";

/// Opens, guards and describes `path`.
pub(super) fn open(path: &Path, options: &FileOptions) -> Result<FileIo> {
    let kind = kind_of(path)?;
    let block_device = kind == FileType::BlockDevice;
    let in_memory = !block_device && lives_in_memory(path)?;
    let want_direct = !in_memory && !options.buffered && options.backend != Backend::Mmap;
    let fd = open_fd(path, options.write, block_device, want_direct)?;
    let stat = fs::fstat(&fd).map_err(|e| step(path, "cannot stat it", e))?;
    if FileType::from_raw_mode(stat.st_mode) != kind {
        return Err(step(path, "was replaced while it was opened", Errno::STALE));
    }
    if options.write && block_device && is_write_protected(stat.st_rdev) {
        return Err(step(path, "cannot open it for writing", Errno::ROFS));
    }
    // A device does not grow: what lies behind it in its backing file is others'.
    let end = match block_device {
        true => end_of(path, &fd)?,
        false => u64::MAX,
    };
    let size = options.size_bytes.unwrap_or(u64::MAX);
    let part = options.img_offset..options.img_offset.saturating_add(size).min(end);
    let (fd, behind) = guard::check_and_lock(path, fd, &stat, part, options.write)?;

    let alignment = match want_direct {
        true => direct_alignment(&fd, options.img_offset),
        false => None,
    };
    if want_direct && alignment.is_none() {
        leave_direct(&fd).map_err(|e| step(path, "cannot leave O_DIRECT", e))?;
    }
    let sector = sector_bytes(&fd, block_device);
    let (logical, mem_align) = match alignment {
        Some(a) => (a.offset.max(sector), a.memory),
        None => (sector, 1),
    };
    let file_size = end_of(path, &fd)?;
    let size_bytes = device_size(path, file_size, options)? & !(u64::from(logical) - 1);
    let queue = BlockQueue::of(&stat, block_device);
    let disk = if block_device {
        stat.st_rdev
    } else {
        stat.st_dev
    };
    let discard = match block_device {
        // Whole sectors of the device only.
        true => queue.discard && options.img_offset.is_multiple_of(sector.into()),
        false => options.write && FileIo::can_punch(&fd, file_size),
    };
    Ok(FileIo {
        base: options.img_offset,
        geometry: Geometry {
            size_bytes,
            logical_block_bytes: logical,
            mem_align_bytes: mem_align,
            direct: in_memory || alignment.is_some(),
            volatile_cache: !in_memory && queue.volatile_cache,
            // Through the page cache it is a flush of all.
            fua: queue.fua && (in_memory || alignment.is_some()),
            discard: options.write && discard,
            read_only: !options.write,
            inline: false,
            atomic: match alignment {
                Some(_) => atomic_units(&fd, options.img_offset, logical),
                None => None,
            },
        },
        direct: alignment.is_some(),
        past_cache: match block_device && alignment.is_none() {
            true => open_past_cache(path, &stat),
            false => None,
        },
        mem_mask: mem_align as usize - 1,
        block_device,
        in_memory,
        polls: queue_attribute(disk, "io_poll").as_deref() == Some("1"),
        name: short_name(path),
        fd,
        behind,
    })
}

fn end_of(path: &Path, fd: impl AsFd) -> Result<u64> {
    fs::seek(fd, SeekFrom::End(0)).map_err(|e| step(path, "cannot find its size", e))
}

fn kind_of(path: &Path) -> Result<FileType> {
    let stat = fs::stat(path).map_err(|e| step(path, "cannot stat it", e))?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    match kind {
        FileType::RegularFile | FileType::BlockDevice => Ok(kind),
        FileType::Directory => Err(step(path, NO_IMAGE, Errno::ISDIR)),
        _ => Err(step(path, NO_IMAGE, Errno::NOTBLK)),
    }
}

fn lives_in_memory(path: &Path) -> Result<bool> {
    let statfs = fs::statfs(path).map_err(|e| step(path, "cannot statfs it", e))?;
    // The field's width and sign differ between architectures; the magic is 32 bits of it.
    let magic = statfs.f_type as u64 & 0xffff_ffff;
    Ok(magic == TMPFS_MAGIC || magic == RAMFS_MAGIC)
}

fn open_fd(path: &Path, write: bool, block_device: bool, direct: bool) -> Result<OwnedFd> {
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
    flags |= if write { OFlags::RDWR } else { OFlags::RDONLY };
    if block_device && write {
        flags |= OFlags::EXCL;
    }
    // Each read would else look whether the file's own time has to be written; only its owner may do without.
    let open = |flags| match fs::open(path, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => fs::open(path, flags, Mode::empty()),
        opened => opened,
    };
    let open = || match direct {
        true => match open(flags | OFlags::DIRECT) {
            Err(Errno::INVAL) => open(flags),
            other => other,
        },
        false => open(flags),
    };
    let until = Instant::now() + COPIES_LAST;
    let opened = loop {
        match open() {
            Err(Errno::BUSY)
                if block_device && Instant::now() < until && guard::in_use_by(path).is_none() =>
            {
                thread::sleep(COPIES_LAST / 50);
            }
            opened => break opened,
        }
    };
    match opened {
        Err(Errno::BUSY) if block_device => Err(guard::busy_device(path)),
        // It may well be read.
        Err(e) if write => Err(step(path, "cannot open it for writing", e)),
        other => other.map_err(|e| step(path, "cannot open it", e)),
    }
}

/// A block device once more, to read it past the page cache, if it takes that.
fn open_past_cache(path: &Path, of: &Stat) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOCTTY;
    let fd = fs::open(path, flags, Mode::empty()).ok()?;
    (fs::fstat(&fd).ok()?.st_rdev == of.st_rdev).then_some(fd)
}

/// `O_DIRECT` off; nothing to do where the file never had it.
fn leave_direct(fd: &OwnedFd) -> rio::Result<()> {
    let flags = fs::fcntl_getfl(fd)?;
    match flags.contains(OFlags::DIRECT) {
        true => fs::fcntl_setfl(fd, flags - OFlags::DIRECT),
        false => Ok(()),
    }
}

/// What direct I/O asks of a request, in bytes.
#[derive(Clone, Copy)]
struct DioAlign {
    offset: u32,
    memory: u32,
}

/// `None` if the file does not take direct I/O, or not from `img_offset`, or with alignments that
/// our buffers do not have.
fn direct_alignment(fd: &OwnedFd, img_offset: u64) -> Option<DioAlign> {
    if !fs::fcntl_getfl(fd).ok()?.contains(OFlags::DIRECT) {
        return None;
    }
    let align = told_alignment(fd).unwrap_or_else(|| tried_alignment(fd))?;
    let usable = |a: u32| a.is_power_of_two() && a as usize <= BUF_ALIGN;
    let fits = img_offset.is_multiple_of(u64::from(align.offset.max(1)));
    (usable(align.offset) && usable(align.memory) && fits).then_some(align)
}

/// What `statx` says: `None` if the kernel does not say, `Some(None)` for "no direct I/O".
fn told_alignment(fd: &OwnedFd) -> Option<Option<DioAlign>> {
    let statx = fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    if statx.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return None;
    }
    let (offset, memory) = (statx.stx_dio_offset_align, statx.stx_dio_mem_align);
    Some((offset != 0).then_some(DioAlign {
        // A piece of a request may begin in its memory wherever one on the device ends.
        offset: offset.max(memory),
        memory,
    }))
}

/// What `statx` says (Linux 6.11) of atomic writes with `O_DIRECT`. They are aligned in the file, so as long as
/// `img_offset` is.
fn atomic_units(fd: &OwnedFd, img_offset: u64, logical: u32) -> Option<AtomicUnits> {
    let mask = StatxFlags::from_bits_retain(STATX_WRITE_ATOMIC);
    let statx = fs::statx(fd, "", AtFlags::EMPTY_PATH, mask).ok()?;
    if statx.stx_mask & STATX_WRITE_ATOMIC == 0 {
        return None;
    }
    let told = AtomicUnits::new(
        statx.stx_atomic_write_unit_min,
        statx.stx_atomic_write_unit_max,
    )?;
    told.within(logical, longest_at(img_offset))
}

/// The longest unit whose multiples are multiples of it from `offset` on too.
fn longest_at(offset: u64) -> u32 {
    1 << offset.trailing_zeros().min(30)
}

/// The smallest read that works.
fn tried_alignment(fd: &OwnedFd) -> Option<DioAlign> {
    [SECTOR_BYTES, 4096].into_iter().find_map(|a| {
        let mut buf = Buf::zeroed(a as usize);
        rio::pread(fd, &mut buf[..], u64::from(a)).ok()?;
        Some(DioAlign {
            offset: a,
            memory: a,
        })
    })
}

fn sector_bytes(fd: &OwnedFd, block_device: bool) -> u32 {
    match block_device {
        true => fs::ioctl_blksszget(fd.as_fd()).unwrap_or(SECTOR_BYTES),
        false => SECTOR_BYTES,
    }
}

fn device_size(path: &Path, file_size: u64, options: &FileOptions) -> Result<u64> {
    let offset = options.img_offset;
    let past = |what: String| {
        let what = format!("{what} past the end at byte {file_size}");
        step(path, what, Errno::INVAL)
    };
    let rest = file_size
        .checked_sub(offset)
        .ok_or_else(|| past(format!("img_offset {offset} is")))?;
    match options.size_bytes {
        None => Ok(rest),
        Some(size) if size <= rest => Ok(size),
        Some(size) => Err(past(format!("size_bytes {size} from {offset} on reaches"))),
    }
}

/// What sysfs says of a block device's queue. A file has a cache and can be made durable piecewise.
struct BlockQueue {
    volatile_cache: bool,
    fua: bool,
    discard: bool,
}

impl BlockQueue {
    fn of(stat: &Stat, block_device: bool) -> BlockQueue {
        if !block_device {
            return BlockQueue {
                volatile_cache: true,
                fua: true,
                discard: false,
            };
        }
        let ask = |name: &str| queue_attribute(stat.st_rdev, name).unwrap_or_default();
        BlockQueue {
            // When in doubt there is a cache.
            volatile_cache: ask("write_cache") != "write through",
            fua: ask("fua") == "1",
            discard: !matches!(ask("discard_max_bytes").as_str(), "" | "0"),
        }
    }
}

/// Whether a block device refuses writes, for which Linux opens it nevertheless.
fn is_write_protected(device: u64) -> bool {
    let path = format!(
        "/sys/dev/block/{}:{}/ro",
        fs::major(device),
        fs::minor(device)
    );
    std::fs::read_to_string(path).is_ok_and(|told| told.trim() == "1")
}

/// A partition has no queue of its own: its disk has.
fn queue_attribute(disk: u64, name: &str) -> Option<String> {
    let dir = guard::sysfs_dir(disk);
    let read = |at: &str| std::fs::read_to_string(format!("{dir}/{at}/{name}")).ok();
    let value = read("queue").or_else(|| read("../queue"))?;
    Some(value.trim().into())
}

fn short_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

pub(super) fn step(path: &Path, what: impl Into<String>, e: Errno) -> Error {
    Error::Open {
        path: path.into(),
        what: what.into(),
        source: e.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_offset_bounds_atomic_units() {
        let units = AtomicUnits::new(512, 65536).unwrap();
        let at = |offset| units.within(512, longest_at(offset));
        assert_eq!(at(0), Some(units));
        assert_eq!(at(1 << 20), Some(units));
        assert_eq!(at(3 << 12), AtomicUnits::new(512, 4096));
        assert_eq!(at(63 * 512), AtomicUnits::new(512, 512));
        assert_eq!(at(100), None);
    }
}
