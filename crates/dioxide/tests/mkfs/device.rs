//! Block devices that hold something else: what must be zero is made so.

use super::compare::{lines, mke2fs_on};
use super::{dir, from_words};
use dioxide_testkit::{LoopDevice, Mount, e2fsck_clean, need_root};
use std::fs::{self, File};

const SIZE: usize = 64 << 20;

#[test]
fn device_of_noise_becomes_a_file_system_that_the_kernel_fills() {
    need_root!();
    let dir = dir();
    let path = dir.path().join("disk.img");
    for words in [
        "-t ext4 -E nodiscard",
        "-t ext4 -E nodiscard,lazy_itable_init=0",
        "-t ext4",
        "-t ext3 -E nodiscard",
        "-t ext2 -E nodiscard",
    ] {
        fs::write(&path, vec![0xA5; SIZE]).unwrap();
        let device = LoopDevice::attach(&path);
        from_words(words).create(device.path(), None).unwrap();
        e2fsck_clean(device.path());
        let mount = Mount::ext4(device.path(), "");
        for index in 0..300 {
            fs::write(mount.path().join(format!("file{index}")), vec![7; 5000]).unwrap();
        }
        mount.unmount();
        e2fsck_clean(device.path());
    }
}

#[test]
fn image_of_noise_without_discard_becomes_a_file_system() {
    let dir = dir();
    let path = dir.path().join("disk.img");
    for words in [
        "-t ext4 -E nodiscard",
        "-t ext2 -E nodiscard",
        "-t ext4 -E lazy_itable_init=0",
    ] {
        fs::write(&path, vec![0xA5; SIZE]).unwrap();
        from_words(words).create(&path, None).unwrap();
        e2fsck_clean(&path);
    }
}

#[test]
fn file_system_at_an_offset_leaves_what_is_before_it() {
    let dir = dir();
    let path = dir.path().join("disk.img");
    fs::write(&path, vec![0xA5; 1 << 20]).unwrap();
    let mkfs = from_words("-t ext4 -E offset=1048576");
    mkfs.create(&path, Some(SIZE as u64)).unwrap();
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len(), SIZE + (1 << 20));
    assert!(bytes[..1 << 20].iter().all(|byte| *byte == 0xA5));
    let again = mkfs.create(&path, None).unwrap_err();
    assert!(again.to_string().contains("holds"), "{again}");
    fs::write(&path, &bytes[1 << 20..]).unwrap();
    e2fsck_clean(&path);
}

/// As `mke2fs` chooses. Elsewhere so small a file system has blocks of 1 KiB.
#[test]
fn blocks_are_no_smaller_than_the_sectors_of_the_device() {
    need_root!();
    let dir = dir();
    let path = dir.path().join("disk.img");
    File::create(&path).unwrap().set_len(SIZE as u64).unwrap();
    let device = LoopDevice::attach_with(&path, &["--sector-size=4096"]);
    for words in [
        "-t ext4",
        "-t ext2",
        "-t ext4 -O bigalloc",
        "-t ext4 -N 5000",
    ] {
        mke2fs_on(device.path(), words);
        let expected = lines(device.path());
        let mkfs = from_words(words).force(true);
        let planned = mkfs.plan_on(device.path(), None).unwrap();
        assert_eq!(planned.superblock().block_size(), 4096, "{words}");
        mkfs.create(device.path(), None).unwrap();
        assert_eq!(lines(device.path()), expected, "{words}");
        e2fsck_clean(device.path());
    }
    let smaller = from_words("-b 1024").plan_on(device.path(), None);
    let refused = smaller.unwrap_err().to_string();
    assert!(refused.contains("sectors"), "{refused}");
}
