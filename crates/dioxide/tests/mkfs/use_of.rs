//! What was made is used: by dioxide, and by the kernel.

use super::{Made, from_words};
use dioxide::{Fs, MountOptions};
use dioxide_testkit::{Mount, e2fsck_clean, need_root, pattern};
use std::fs;
use std::process::Command;

/// One of each kind.
const KINDS: [&str; 12] = [
    "-t ext2",
    "-t ext3",
    "-t ext4",
    "-t ext4 -b 4096 -O orphan_file,metadata_csum_seed,fast_commit",
    "-t ext4 -O inline_data,large_dir,ea_inode",
    "-t ext4 -O bigalloc",
    "-t ext4 -b 4096 -O bigalloc -C 4096",
    "-t ext4 -O ^resize_inode,meta_bg,sparse_super2",
    "-t ext4 -O ^metadata_csum,uninit_bg,^64bit",
    "-t ext4 -O quota,project -b 4096",
    "-t ext4 -I 128 -O ^flex_bg,^has_journal",
    "-t ext4 -O encrypt,verity,stable_inodes",
];

#[test]
fn file_system_of_each_kind_opens_without_warnings() {
    for words in KINDS.iter().chain(&["-t ext4 -b 65536", "-t ext4 -O mmp"]) {
        let made = Made::new(&from_words(words), 64 << 20);
        let fs = Fs::open(made.path(), &MountOptions::new()).unwrap();
        assert_eq!(fs.warnings(), [""; 0], "{words}");
        assert_eq!(fs.read_only(), None, "{words}");
        let names: Vec<_> = fs
            .read_dir("/")
            .unwrap()
            .into_iter()
            .map(|e| e.name)
            .collect();
        assert!(names.contains(&b"lost+found".to_vec()), "{words}");
        fs.close().unwrap();
        e2fsck_clean(&made.path());
    }
}

#[test]
fn file_system_of_each_kind_is_filled_by_the_kernel() {
    need_root!();
    // A kernel mounts file systems with quota only if it was built for that.
    for words in KINDS.iter().filter(|words| !words.contains("quota")) {
        let made = Made::new(&from_words(words), 64 << 20);
        let mount = Mount::ext4(&made.path(), "");
        let dir = mount.path().join("dir");
        fs::create_dir(&dir).unwrap();
        for index in 0..200u64 {
            let contents = pattern(index, 0, 100 * index as usize);
            fs::write(dir.join(index.to_string()), contents).unwrap();
        }
        fs::write(mount.path().join("large"), pattern(1, 0, 5 << 20)).unwrap();
        mount.unmount();
        e2fsck_clean(&made.path());
        let fs = Fs::open(made.path(), &MountOptions::new()).unwrap();
        assert_eq!(fs.read_dir("/dir").unwrap().len(), 202, "{words}");
        assert_eq!(fs.metadata("/large").unwrap().size, 5 << 20, "{words}");
    }
}

#[test]
fn image_grows_into_what_was_kept_for_its_descriptors() {
    for words in ["-t ext4 -b 1024", "-t ext2 -b 1024"] {
        let made = Made::new(&from_words(words), 64 << 20);
        let mut command = Command::new("resize2fs");
        let system = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        let output = command
            .env("PATH", system)
            .arg("-f")
            .arg(made.path())
            .arg("2G")
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        e2fsck_clean(&made.path());
    }
}
