//! Orphans that a crash left: what a writing mount makes of them.

use dioxide::format::superblock::{STATE_ERROR, SuperBlock};
use dioxide::{Fs, MountOptions, OpenOptions};
use dioxide_testkit::{Image, Mount, debugfs, dumpe2fs, e2fsck_clean, have_root, need_root};
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

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

// More than the orphan file holds, so that the others stand in the list; they end in no order.
#[test]
fn many_removed_files_that_are_open_are_freed_by_whom_they_are_left_to() {
    const FILES: u32 = 9000;
    for features in FEATURES {
        let image = Image::builder().block_size(1024).features(features);
        let image = image.args(&["-N", "10000"]).build();
        let fs = open(&image);
        let free = fs.statfs().files_free;
        let new = OpenOptions::new().write(true).create_new(true).clone();
        let mut files: Vec<_> = (0..FILES)
            .map(|number| Some(new.open(&fs, format!("/{number}")).expect("room")))
            .collect();
        for number in 0..FILES {
            fs.remove_file(format!("/{number}")).expect("it is there");
        }
        let mut order = (0..FILES).map(|at| (at * 7919 % FILES) as usize);
        for at in order.by_ref().take(FILES as usize / 2) {
            drop(files[at].take());
        }
        fs.sync().expect("a sync");
        let copy = image.copy();
        for at in order {
            drop(files[at].take());
        }
        assert_eq!(fs.statfs().files_free, free, "{features}");
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
        let fs = open(&copy);
        let told = fs.warnings().join("; ");
        assert!(told.contains(&format!("{} orphans", FILES / 2)), "{told}");
        assert_eq!(fs.statfs().files_free, free, "{features}");
        fs.close().expect("a clean end");
        e2fsck_clean(copy.path());
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

/// Has the superblock say that there are errors.
fn mark_errors(image: &Image) {
    let mut bytes = vec![0; SuperBlock::SIZE];
    let mut options = fs::File::options();
    let file = options.read(true).write(true).open(image.path());
    let file = file.expect("the image");
    file.read_exact_at(&mut bytes, 1024).expect("a superblock");
    let mut sb = SuperBlock::parse(&bytes).expect("all of it");
    sb.disk_mut().s_state |= STATE_ERROR;
    sb.update_checksum();
    let written = file.write_all_at(&sb.encode(), 1024);
    written.expect("a write");
}

/// `e2fsck -fy`, after which nothing is left to do: what is free then.
fn repaired(image: &Image) -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut e2fsck = Command::new("e2fsck");
    e2fsck.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    let output = e2fsck.arg("-fy").arg(image.path()).output();
    let output = output.expect("e2fsprogs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    e2fsck_clean(image.path());
    let told = dumpe2fs(image.path());
    let free = told.lines().filter(|line| line.starts_with("Free "));
    free.collect()
}

/// Who is listed may be what was damaged. Linux frees none of them either.
#[test]
fn orphans_of_a_file_system_with_errors_stay() {
    for features in FEATURES {
        let image = Image::builder().features(features).build();
        let fs = open(&image);
        let new = OpenOptions::new().write(true).create_new(true).clone();
        let files = ["/0", "/1", "/2"].map(|path| {
            let file = new.open(&fs, path).expect("room");
            file.write_at(&[7; 1 << 20], 0).expect("room");
            fs.remove_file(path).expect("it is there");
            file
        });
        new.open(&fs, "/stays").expect("room");
        fs.sync().expect("a sync");
        let (copy, free) = (image.copy(), fs.statfs());
        drop(files);
        drop(fs);
        mark_errors(&copy);
        let theirs = copy.copy();

        let left = |image: &Image, told: &str| {
            let fs = open(image);
            let warnings = fs.warnings().join("; ");
            assert!(warnings.contains(told), "{features}: {warnings}");
            fs
        };
        let remove_new = |fs: &Fs| {
            let file = new.open(fs, "/new").expect("room");
            file.write_at(&[7; 1 << 20], 0).expect("room");
            fs.remove_file("/new").expect("it is there");
            file
        };
        // New ones come before them, and go.
        for _ in 0..2 {
            let fs = left(&copy, "3 orphans are not freed");
            let now = fs.statfs();
            assert_eq!(now.files_free, free.files_free, "{features}");
            assert_eq!(now.blocks_free, free.blocks_free, "{features}");
            drop(remove_new(&fs));
            fs.close().expect("a clean end");
        }
        let fs = left(&copy, "3 orphans are not freed");
        let file = remove_new(&fs);
        fs.sync().expect("a sync");
        let crashed = copy.copy();
        drop(file);
        fs.close().expect("a clean end");
        drop(left(&crashed, "4 orphans are not freed"));
        repaired(&crashed);
        let ours = repaired(&copy);
        if have_root() {
            let mount = Mount::ext4(theirs.path(), "");
            let statvfs = rustix::fs::statvfs(mount.path()).expect("it is mounted");
            assert_eq!(statvfs.f_ffree, free.files_free, "{features}");
            mount.unmount();
            assert_eq!(repaired(&theirs), ours, "{features}");
        }
    }
}

/// What is in the table there leads to blocks of another file.
#[test]
fn orphan_that_is_not_in_use_frees_nothing() {
    let tree = tempfile::tempdir().expect("a folder");
    fs::write(tree.path().join("file"), vec![7; 300_000]).expect("room");
    for features in ["^orphan_file", "^orphan_file,^metadata_csum"] {
        let image = Image::builder()
            .features(features)
            .source(tree.path())
            .build();
        let stray = [
            "copy_inode <12> <20>",
            "sif <20> size 0",
            "ssv last_orphan 20",
        ];
        debugfs(image.path(), &stray);
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it can be read");
        let free = fs.statfs().blocks_free;
        let why = fs.read_only().expect("it is damaged");
        assert!(
            why.contains("inode 20: no inode of a file, or not in use"),
            "{why}"
        );
        let file = fs.metadata("/file").expect("it is there");
        assert_eq!((file.ino, file.size), (12, 300_000));
        drop(fs);
        debugfs(
            image.path(),
            &["clri <20>", "ssv last_orphan 0", "ssv state 1"],
        );
        let fs = open(&image);
        assert_eq!(fs.statfs().blocks_free, free);
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

/// Linux frees an inode in steps, the first of which sets its size to 0.
#[test]
fn symlink_that_was_being_freed_goes() {
    let tree = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink("x".repeat(100), tree.path().join("link")).expect("room");
    let image = Image::builder().source(tree.path()).build();
    let free = open(&image).statfs().files_free;
    let freed = [
        "sif link size 0",
        "sif link links_count 0",
        "unlink link",
        "ssv last_orphan 12",
    ];
    debugfs(image.path(), &freed);
    let fs = open(&image);
    assert_eq!(fs.statfs().files_free, free + 1);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

/// A file that was being made shorter shows nothing of what was behind its end, and keeps it while nobody changes it.
#[test]
fn unfinished_truncate_in_a_file_system_with_errors_is_left_until_the_file_grows() {
    let tree = tempfile::tempdir().expect("a folder");
    fs::write(tree.path().join("file"), vec![7; 3_000_000]).expect("room");
    let image = Image::builder().source(tree.path()).build();
    let cut = ["sif file size 102400", "ssv last_orphan 12", "ssv state 3"];
    debugfs(image.path(), &cut);
    let fs = open(&image);
    let warnings = fs.warnings().join("; ");
    assert!(warnings.contains("1 orphans are not freed"), "{warnings}");
    let blocks = fs.metadata("/file").expect("it is there").blocks;
    assert!(blocks > 5_000, "{blocks}");
    let other = OpenOptions::new().write(true).create(true);
    other.open(&fs, "/other").expect("room");
    fs.close().expect("a clean end");

    let fs = open(&image);
    assert_eq!(fs.metadata("/file").expect("it is there").blocks, blocks);
    let file = OpenOptions::new().read(true).write(true);
    let file = file.open(&fs, "/file").expect("it is there");
    file.set_len(200_000).expect("room");
    let mut bytes = vec![1; 200_000];
    file.read_at(&mut bytes, 0).expect("its content");
    assert!(bytes[..102_400].iter().all(|&byte| byte == 7));
    assert!(bytes[102_400..].iter().all(|&byte| byte == 0));
    drop(file);
    fs.close().expect("a clean end");
    debugfs(image.path(), &["ssv state 1"]);
    e2fsck_clean(image.path());
}

/// A truncate in many steps made it no orphan any more: after a crash nobody would have freed it.
#[test]
fn removed_file_that_was_truncated_in_steps_is_freed_by_whom_it_is_left_to() {
    const EXTENTS: u64 = 3000;
    for features in FEATURES {
        let image = Image::builder().block_size(1024).features(features).build();
        let fs = open(&image);
        let options = OpenOptions::new().read(true).write(true);
        let free = fs.statfs();
        let named = options.clone().create(true).open(&fs, "/named");
        let unnamed = options.open_unnamed(&fs, "/");
        for file in [named.expect("room"), unnamed.expect("room")] {
            for extent in 0..EXTENTS {
                file.write_at(&[7; 1024], extent * 2048).expect("room");
            }
            // Whether it has a name once does not matter: that one has none, or loses it.
            let _ = fs.remove_file("/named");
            file.set_len(0).expect("a size");
            file.write_at(&[8; 1024], 0).expect("room");
            fs.sync().expect("a sync");
            let copy = image.copy();
            let left = open(&copy);
            assert_eq!(left.statfs(), free, "{features}");
            left.close().expect("a clean end");
            e2fsck_clean(copy.path());
        }
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

/// As above, and then it gets a name: nothing is left to be done with it.
#[test]
fn file_that_gets_a_name_after_a_truncate_in_steps_is_no_orphan() {
    for features in FEATURES {
        let image = Image::builder().block_size(1024).features(features).build();
        let fs = open(&image);
        let file = OpenOptions::new().read(true).write(true);
        let file = file.open_unnamed(&fs, "/").expect("room");
        for extent in 0..3000 {
            file.write_at(&[7; 1024], extent * 2048).expect("room");
        }
        file.set_len(0).expect("a size");
        file.link("/name").expect("room");
        drop(file);
        fs.sync().expect("a sync");
        let copy = image.copy();
        let left = open(&copy);
        assert!(left.metadata("/name").is_ok(), "{features}");
        assert!(
            !left.warnings().join(" ").contains("1 orphans"),
            "{features}"
        );
        left.close().expect("a clean end");
        fs.close().expect("a clean end");
        e2fsck_clean(copy.path());
        e2fsck_clean(image.path());
    }
}

#[test]
fn list_that_leads_back_into_itself_frees_nothing() {
    for next in [[13, 12], [12, 0]] {
        let image = Image::builder().features("^orphan_file").build();
        debugfs(image.path(), &["write /dev/null a", "write /dev/null b"]);
        let free = open(&image).statfs();
        let orphan = |(at, next): (u32, u32)| {
            let ino = 12 + at;
            [
                format!("sif <{ino}> links_count 0"),
                format!("sif <{ino}> dtime {next}"),
            ]
        };
        let links = (0..).zip(next).flat_map(orphan);
        let list = links.chain(["ssv last_orphan 12".to_owned()]);
        debugfs(image.path(), &list.collect::<Vec<_>>());
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it can be read");
        let why = fs.read_only().expect("it is damaged");
        assert!(
            why.contains("inode 12: it leads back to this inode"),
            "{why}"
        );
        assert_eq!(fs.statfs(), free);
    }
}
