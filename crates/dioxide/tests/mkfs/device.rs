//! Block devices that hold something else: what must be zero is made so.

use super::compare::{lines, mke2fs_on};
use super::{dir, from_words};
use dioxide::block::Device;
use dioxide::check::{CheckOptions, check_path};
use dioxide::{Fs, MountOptions, OpenOptions};
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

/// A file there takes direct I/O in whole sectors only, which smaller blocks are not.
#[test]
fn image_with_blocks_smaller_than_the_sectors_below_it_is_read_and_written() {
    need_root!();
    let dir = dir();
    let disk = dir.path().join("disk.img");
    File::create(&disk).unwrap().set_len(256 << 20).unwrap();
    let device = LoopDevice::attach_with(&disk, &["--sector-size=4096"]);
    from_words("-t ext4").create(device.path(), None).unwrap();
    let mount = Mount::ext4(device.path(), "");
    let path = mount.path().join("made.img");
    for (words, img_offset) in [
        ("-t ext4", 0),
        ("-t ext4 -b 2048", 0),
        ("-t ext2 -b 1024", 0),
        ("-t ext4 -E offset=1048576", 1 << 20),
    ] {
        // One block is behind the last whole sector.
        let mkfs = from_words(words);
        let size = SIZE as u64 + (2 << 20) + 2048;
        let plan = mkfs.create(&path, Some(size)).unwrap();
        let sb = plan.superblock();
        let bytes = sb.blocks_count() * u64::from(sb.block_size());
        assert_ne!(bytes % 4096, 0, "{words}");
        let options = MountOptions::new().img_offset(img_offset);
        let fs = Fs::open(&path, &options).unwrap();
        assert_eq!(fs.read_only(), None, "{words}");
        assert_eq!(fs.device().geometry().size_bytes, bytes, "{words}");
        let open = OpenOptions::new().read(true).write(true).create(true);
        let file = open.direct(true).open(&fs, "/f").unwrap();
        file.write_at(&[7; 6144], 2048).unwrap();
        file.sync_all().unwrap();
        drop(file);
        fs.close().unwrap();
        let fs = Fs::open(&path, &options.read_only(true)).unwrap();
        let file = OpenOptions::new().read(true).open(&fs, "/f").unwrap();
        let mut read = [1; 8192];
        assert_eq!(file.read_at(&mut read, 0).unwrap(), 8192);
        assert!(read[..2048] == [0; 2048] && read[2048..] == [7; 6144]);
        drop(file);
        fs.close().unwrap();
        if img_offset > 0 {
            let all = fs::read(&path).unwrap();
            fs::write(&path, &all[img_offset as usize..]).unwrap();
        }
        let report = check_path(&path, &CheckOptions::default(), &mut |_| {}).unwrap();
        assert!(report.is_clean(), "{words}: {:?}", report.findings);
        e2fsck_clean(&path);
        fs::remove_file(&path).unwrap();
    }
    mount.unmount();
    e2fsck_clean(device.path());
}
