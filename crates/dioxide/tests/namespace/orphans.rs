//! Orphans that a crash left: what a writing mount makes of them.

use dioxide::{Fs, MountOptions};
use dioxide_testkit::{Image, Mount, debugfs, e2fsck_clean, need_root};
use std::fs;
use std::os::unix::fs::FileExt;

const FEATURES: [&str; 3] = ["orphan_file", "^orphan_file", "^orphan_file,^metadata_csum"];

fn open(image: &Image) -> Fs {
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
    fs
}

/// An image that was in use by the kernel while `unlink` files of a megabyte each were open and
/// deleted.
fn with_deleted_files(features: &str, unlink: u32) -> Image {
    let image = Image::builder().features(features).build();
    let mount = Mount::ext4(image.path(), "");
    let path = |number: u32| mount.path().join(number.to_string());
    let open: Vec<fs::File> = (0..unlink + 2)
        .map(|number| {
            let file = fs::File::create_new(path(number)).expect("a new file");
            file.write_all_at(&vec![number as u8; 1 << 20], 0)
                .expect("room");
            file.sync_all().expect("a sync");
            file
        })
        .collect();
    (0..unlink).for_each(|number| fs::remove_file(path(number)).expect("it is there"));
    fs::File::open(mount.path())
        .and_then(|dir| dir.sync_all())
        .expect("a sync");
    let copy = image.copy();
    drop(open);
    mount.unmount();
    copy
}

#[test]
fn deleted_open_files_of_a_crashed_kernel_are_freed() {
    need_root!();
    for features in FEATURES {
        let image = with_deleted_files(features, 5);
        let fs = open(&image);
        let told = fs.warnings().join("; ");
        assert!(told.contains("5 orphans"), "{features}: {told}");
        assert_eq!(fs.read_dir("/").expect("the root").len(), 5, "{features}");
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

// A truncate that was cut short by a crash: the size is there, the blocks are not freed yet.
#[test]
fn unfinished_truncate_is_finished() {
    for features in ["extent,^64bit", "^extent,^64bit"] {
        let tree = tempfile::tempdir().expect("a folder");
        fs::write(tree.path().join("file"), vec![7; 3_000_000]).expect("room");
        let image = Image::builder()
            .features(features)
            .source(tree.path())
            .build();
        debugfs(
            image.path(),
            &["sif file size 100000", "ssv last_orphan 12"],
        );
        let fs = open(&image);
        assert!(
            fs.warnings()[0].contains("1 orphans"),
            "{:?}",
            fs.warnings()
        );
        let metadata = fs.metadata("/file").expect("it is there");
        assert_eq!((metadata.ino, metadata.size), (12, 100_000));
        assert!(metadata.blocks <= 216, "{}", metadata.blocks);
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}
