//! What is in use or holds something is not overwritten, and what was not finished is no file system.

use super::{dir, fixed};
use dioxide::block::mem::MemDevice;
use dioxide::block::{Device, Durability, Geometry, Queue, QueueOptions};
use dioxide::{Error, Fs, MountOptions};
use dioxide_testkit::{LoopDevice, Mount, need_root};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

const SIZE: u64 = 16 << 20;

#[track_caller]
fn refused(path: &Path, why: &str) {
    let before = fs::read(path).unwrap();
    let error = fixed().create(path, None).unwrap_err().to_string();
    assert!(error.contains(why), "{error}");
    assert!(fs::read(path).unwrap() == before, "{why}");
}

#[test]
fn image_that_holds_something_is_refused_unless_forced() {
    let dir = dir();
    let path = dir.path().join("disk.img");
    for (at, bytes, name) in [
        (0, &b"XFSB"[..], "XFS"),
        (65600, b"_BHRfS_M", "btrfs"),
        (0, b"LUKS\xBA\xBE", "LUKS"),
        (512, b"EFI PART", "GPT"),
        (4086, b"SWAPSPACE2", "swap"),
    ] {
        let mut contents = vec![0; SIZE as usize];
        contents[at..][..bytes.len()].copy_from_slice(bytes);
        fs::write(&path, contents).unwrap();
        refused(&path, name);
        fixed().force(true).create(&path, None).unwrap();
        let left = fixed().found_on(&path).unwrap();
        assert!(left.is_some_and(|what| what.contains("ext4")), "{name}");
        refused(&path, "ext4");
    }
}

#[test]
fn partition_table_counts_only_with_a_partition() {
    let dir = dir();
    let path = dir.path().join("disk.img");
    let mut contents = vec![0; SIZE as usize];
    contents[510..512].copy_from_slice(&[0x55, 0xAA]);
    fs::write(&path, &contents).unwrap();
    assert_eq!(fixed().found_on(&path).unwrap(), None);
    contents[446 + 4] = 0x83;
    fs::write(&path, &contents).unwrap();
    refused(&path, "partition table");
}

#[test]
fn image_that_is_open_in_dioxide_is_refused_even_when_forced() {
    let dir = dir();
    let path = dir.path().join("disk.img");
    fixed().create(&path, Some(SIZE)).unwrap();
    let fs = Fs::open(&path, &MountOptions::new()).unwrap();
    let error = fixed().force(true).create(&path, None).unwrap_err();
    assert!(matches!(error, Error::Device(_)), "{error}");
    assert!(error.to_string().contains("in use"), "{error}");
    fs.close().unwrap();
    fixed().force(true).create(&path, None).unwrap();
}

#[test]
fn image_that_is_attached_or_mounted_is_refused_even_when_forced() {
    need_root!();
    let dir = dir();
    let path = dir.path().join("disk.img");
    fixed().create(&path, Some(SIZE)).unwrap();
    let device = LoopDevice::attach(&path);
    assert!(fixed().force(true).create(&path, None).is_err());
    let mount = Mount::ext4(device.path(), "");
    let error = fixed().force(true).create(device.path(), None).unwrap_err();
    assert!(error.to_string().contains("mounted"), "{error}");
    mount.unmount();
    fixed().force(true).create(device.path(), None).unwrap();
}

#[test]
fn image_that_is_missing_needs_a_size() {
    let dir = dir();
    let path = dir.path().join("disk.img");
    let error = fixed().create(&path, None).unwrap_err();
    assert!(error.to_string().contains("size"), "{error}");
    assert!(!path.exists());
}

#[test]
fn dangling_link_is_neither_followed_nor_removed() {
    let dir = dir();
    let path = dir.path().join("link");
    std::os::unix::fs::symlink("nowhere", &path).unwrap();
    assert!(fixed().create(&path, Some(SIZE)).is_err());
    assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
}

#[test]
fn image_that_is_too_small_grows_and_one_that_is_larger_stays() {
    let dir = dir();
    let path = dir.path().join("disk.img");
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    fixed().create(&path, Some(SIZE)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), SIZE);
    fixed().force(true).create(&path, Some(SIZE / 2)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), SIZE);
    dioxide_testkit::e2fsck_clean(&path);
}

/// Fails every write after so many.
#[derive(Debug)]
struct Failing {
    inner: MemDevice,
    left: AtomicI64,
}

impl Failing {
    fn spend(&self, op: &'static str, offset: u64, len: u64) -> dioxide::block::Result<()> {
        if self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
            return Ok(());
        }
        Err(dioxide::block::Error::Io {
            op,
            offset,
            len,
            source: std::io::Error::other("worn out"),
        })
    }
}

impl Device for Failing {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> dioxide::block::Result<()> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, at: u64, buf: &[u8], how: Durability) -> dioxide::block::Result<()> {
        self.spend("write", at, buf.len() as u64)?;
        self.inner.write_at(at, buf, how)
    }
    fn flush(&self) -> dioxide::block::Result<()> {
        self.spend("flush", 0, 0)?;
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> dioxide::block::Result<()> {
        self.inner.discard(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> dioxide::block::Result<()> {
        self.spend("write zeroes", offset, len)?;
        self.inner.write_zeroes(offset, len)
    }
    fn open_queue(&self, options: &QueueOptions) -> dioxide::block::Result<Box<dyn Queue>> {
        self.inner.open_queue(options)
    }
    fn describe(&self) -> String {
        "failing".into()
    }
}

fn has_magic(device: &dyn Device) -> bool {
    let mut head = vec![0; 4096];
    device.read_at(0, &mut head).unwrap();
    head[1080..1082] == [0x53, 0xEF]
}

#[test]
fn write_that_fails_anywhere_leaves_no_file_system() {
    let plan = fixed().plan(SIZE).unwrap();
    let device = Failing {
        inner: MemDevice::new(SIZE),
        left: AtomicI64::new(i64::MAX),
    };
    plan.write(&device, &mut Default::default()).unwrap();
    let operations = i64::MAX - device.left.load(Ordering::Relaxed);
    assert!(operations > 20 && has_magic(&device));
    // The last two are the superblock and the flush after it. The first leaves what was there.
    for left in 1..operations - 1 {
        device.left.store(left, Ordering::Relaxed);
        plan.write(&device, &mut Default::default()).unwrap_err();
        assert!(!has_magic(&device), "after {left} of {operations}");
        device.left.store(i64::MAX, Ordering::Relaxed);
        plan.write(&device, &mut Default::default()).unwrap();
    }
}

#[test]
fn device_that_is_too_small_or_too_coarse_is_refused_untouched() {
    let plan = fixed().plan(SIZE).unwrap();
    let small = MemDevice::new(SIZE / 2);
    assert!(plan.write(&small, &mut Default::default()).is_err());
    let coarse = MemDevice::with_logical_block(SIZE, 4096);
    let error = plan.write(&coarse, &mut Default::default()).unwrap_err();
    assert!(error.to_string().contains("sectors"), "{error}");
}

/// It is refused before what is on it is discarded.
#[test]
fn device_of_large_sectors_keeps_what_it_has_where_blocks_are_smaller() {
    need_root!();
    let dir = dir();
    let file = dir.path().join("device");
    let before = vec![7; SIZE as usize];
    fs::write(&file, &before).unwrap();
    let device = LoopDevice::attach_with(&file, &["--sector-size=4096"]);
    let small = fixed().block_size(1024).unwrap().force(true);
    let refused = small.create(device.path(), None).unwrap_err();
    assert!(refused.to_string().contains("sectors"), "{refused}");
    drop(device);
    assert!(fs::read(&file).unwrap() == before);
}
