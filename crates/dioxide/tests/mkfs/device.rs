//! Block devices that hold something else: what must be zero is made so.

use super::{dir, from_words};
use dioxide_testkit::{LoopDevice, Mount, e2fsck_clean, need_root};
use std::fs;

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
