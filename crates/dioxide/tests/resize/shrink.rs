//! Smaller.

use super::{M, builder, image, kernel_reads};
use dioxide::resize::{ResizeOptions, minimum, resize};
use dioxide::{Error, Fs, MountOptions, NewFile};
use dioxide_testkit::{debugfs, e2fsck_clean};
use std::os::unix::fs::FileExt;

/// Options of `mke2fs`, block size, and the size before in MiB.
const SETS: &[(&str, u32, u64)] = &[
    ("", 4096, 700),
    ("", 1024, 300),
    ("-O ^flex_bg", 1024, 300),
    ("-O ^metadata_csum,^uninit_bg", 1024, 300),
    ("-O sparse_super2", 1024, 300),
    ("-O ^resize_inode", 1024, 300),
    ("-O meta_bg,^resize_inode", 1024, 500),
    ("-t ext2", 1024, 300),
    ("-G 4", 2048, 700),
    ("-O bigalloc -C 16384", 4096, 3000),
    ("-O quota,project,orphan_file", 1024, 300),
];

#[test]
fn shrinking_to_the_minimum_is_clean_and_less_is_refused() {
    let options = ResizeOptions::default();
    for (args, block, before) in SETS {
        println!("{args} {block} {before}");
        let image = image(before * M, *block, args);
        let least = minimum(image.path(), &options).expect("there is one");
        assert!(least <= before * M);
        let refused = resize(image.path(), Some(least - u64::from(4 * block)), &options);
        match refused {
            Err(Error::Invalid(what)) => {
                assert!(what.contains(&least.to_string()), "{what}, not {least}");
            }
            other => assert!(least == before * M, "{other:?}"),
        }
        e2fsck_clean(image.path());
        let done = resize(image.path(), Some(least), &options).expect("it shrinks");
        let size = done.after.blocks_count() * u64::from(*block);
        assert_eq!(
            (size, std::fs::metadata(image.path()).expect("it").len()),
            (least, least)
        );
        e2fsck_clean(image.path());
        assert!(minimum(image.path(), &options).expect("there is one") <= least);
        resize(image.path(), Some(before * M), &options).expect("it grows");
        e2fsck_clean(image.path());
        if !args.contains("quota") {
            kernel_reads(&image);
            e2fsck_clean(image.path());
        }
    }
}

// The least size was told without them, and then refused.
#[test]
fn minimum_holds_what_cannot_be_moved() {
    let options = ResizeOptions::default();
    let list = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(list.path(), "30000\n").expect("room");
    let bad = format!("-l {}", list.path().display());
    // On a RAID the bitmaps of a group lie in its middle, and it is as long as that at least.
    let strided = "-O ^flex_bg,stable_inodes,^has_journal -E stride=600";
    for (args, block) in [
        (&bad[..], 30_000),
        ("-O stable_inodes", 2 * 8192),
        (strided, 2 * 8192),
    ] {
        let image = image(60 * M, 1024, args);
        if block < 30_000 {
            let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
            let in_last = (0..100).find(|n| {
                let name = format!("/top{n}");
                fs.create_dir(&name, &NewFile::new(0o755)).expect("room");
                fs.metadata(&name).expect("it is there").ino
                    > 3 * fs.superblock().inodes_per_group()
            });
            assert!(
                in_last.is_some(),
                "none is in the fourth group or behind it"
            );
            fs.close().expect("it closes");
        }
        let least = minimum(image.path(), &options).expect("there is one");
        assert!((block * 1024..60 * M).contains(&least), "{args}: {least}");
        let smaller = resize(image.path(), Some(least - 4096), &options);
        smaller.expect_err("what is there cannot be moved");
        e2fsck_clean(image.path());
        resize(image.path(), Some(least), &options).expect("it shrinks");
        e2fsck_clean(image.path());
    }
}

/// Without its last group, which may be short, it has room for what that has in use: where the tables of that group are,
/// which go at last. So there is no way to it, and the least size was told, and then refused.
#[test]
fn minimum_of_what_is_almost_full_can_be_had() {
    let args = "-m 0 -I 128 -N 6120 -O ^has_journal,^resize_inode,^metadata_csum";
    let args: Vec<&str> = args.split_whitespace().collect();
    let image = builder(16_692 << 10, 1024).args(&args).build();
    let options = MountOptions::new().read_only(true);
    let fs = Fs::open(image.path(), &options).expect("it opens");
    let (sb, left) = (fs.superblock(), 200);
    assert_eq!((sb.group_count(), sb.inode_table_blocks()), (3, 255));
    let file = tempfile::NamedTempFile::new().expect("a file");
    let len = (sb.free_blocks_count() - left) << 10;
    fs.close().expect("it closes");
    std::fs::write(file.path(), vec![7; len as usize]).expect("room");
    debugfs(
        image.path(),
        &[format!("write {} file", file.path().display())],
    );
    e2fsck_clean(image.path());
    let options = ResizeOptions::default();
    let least = minimum(image.path(), &options).expect("there is one");
    resize(image.path(), Some(least), &options).expect("it was told");
    e2fsck_clean(image.path());
}

/// The least size was that of one whose files can be moved, and then refused.
#[test]
fn minimum_of_what_no_mount_opens_is_what_is_in_use() {
    let options = ResizeOptions::default();
    let image = image(60 * M, 1024, "-O casefold");
    let least = minimum(image.path(), &options).expect("there is one");
    assert!(least < 60 * M, "{least}");
    let refused = resize(image.path(), Some(least - 4096), &options);
    let refused = refused.expect_err("nothing is moved");
    assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    for said in ["casefold", &least.to_string()] {
        assert!(refused.to_string().contains(said), "{refused}");
    }
    e2fsck_clean(image.path());
    resize(image.path(), Some(least), &options).expect("it shrinks");
    e2fsck_clean(image.path());
    assert_eq!(minimum(image.path(), &options).expect("still"), least);
}

#[test]
fn shrinking_in_steps_is_clean_at_each() {
    let options = ResizeOptions::default();
    let image = image(600 * M, 1024, "");
    let least = minimum(image.path(), &options).expect("there is one");
    for size in [599, 500, 333, 257, 129, 100] {
        let size = (size * M).max(least);
        resize(image.path(), Some(size), &options).expect("it shrinks");
        e2fsck_clean(image.path());
    }
}

#[test]
fn shrinking_below_what_is_in_use_says_how_far_that_goes() {
    let image = image(300 * M, 1024, "");
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    // At the top directories are spread over the groups.
    for n in 0..60 {
        fs.create_dir(format!("/top{n}"), &NewFile::new(0o755))
            .expect("a directory");
    }
    let last = (0..60).map(|n| fs.metadata(format!("/top{n}")).expect("it is there").ino);
    let last = last.max().expect("some");
    fs.close().expect("it closes");
    let refused = resize(image.path(), Some(3 * M), &ResizeOptions::default());
    let said = refused.expect_err("it has no room").to_string();
    assert!(said.contains(&format!("inode {last} ")), "{said}");
    e2fsck_clean(image.path());
}

/// The length of an image may be no multiple of what its file system is made of.
#[test]
fn image_is_made_shorter_with_what_its_file_system_left_over() {
    let options = ResizeOptions::default();
    for (args, block, before) in [
        ("", 1024, 20 * M + 3000),
        ("", 1024, 16 * M + 100_000),
        ("-O bigalloc -C 65536", 4096, 64 * M + 40_000),
    ] {
        for behind in [0, 7] {
            let image = image(before, block, args);
            let file = std::fs::OpenOptions::new().write(true).open(image.path());
            file.and_then(|file| file.write_all_at(&[behind], before - 1))
                .expect("the last byte");
            let least = minimum(image.path(), &options).expect("there is one");
            resize(image.path(), Some(least), &options).expect("it shrinks");
            let expected = if behind == 0 { least } else { before };
            let len = std::fs::metadata(image.path()).expect("it").len();
            assert_eq!(len, expected, "{args}, {before} bytes");
            e2fsck_clean(image.path());
        }
    }
}
