//! From images that the kernel filled.

use crate::support::*;
use dioxide::{Fs, MountOptions};
use dioxide_pack::sink::folder::{FolderOptions, FolderSink};
use dioxide_pack::tar::Compression;
use dioxide_pack::{Filter, Tree, source};
use dioxide_testkit::{Image, ImageBuilder, Mount, debugfs, need_root};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

fn tree_of(image: &Image, root: &[u8]) -> Tree {
    let fs = Fs::open(image.path(), &MountOptions::new().read_only(true)).unwrap();
    source::image::read(&fs, root, Filter::default()).unwrap()
}

fn filled(builder: ImageBuilder) -> Image {
    let image = builder.build();
    image.populate_with_kernel(|root| fill(root, Without::default()));
    image
}

// The second was passed over as if it were the first.
#[test]
fn directory_with_two_parents_is_refused() {
    let tree = scratch();
    fs::write(tree.path().join("Q1"), "lost").unwrap();
    let builder = Image::builder().features("^metadata_csum");
    let image = builder.source(tree.path()).build();
    let mut bytes = fs::read(image.path()).unwrap();
    let at = bytes.windows(4).position(|bytes| bytes == b"\x02\x01Q1");
    let at = at.expect("its entry") + 2;
    bytes[at..at + 2].copy_from_slice(b"..");
    fs::write(image.path(), bytes).unwrap();
    let fs = Fs::open(image.path(), &MountOptions::new().read_only(true)).unwrap();
    let refused = source::image::read(&fs, b"/", Filter::default());
    let refused = refused.map(drop).unwrap_err().to_string();
    assert!(refused.contains("more than one"), "{refused}");
}

#[test]
fn image_filled_by_the_kernel_comes_out_in_a_folder_as_the_kernel_shows_it() {
    need_root!();
    for builder in [
        Image::builder(),
        Image::builder().features("inline_data"),
        Image::builder()
            .features("^extent,^64bit")
            .block_size(1024)
            .size(128 << 20),
    ] {
        let image = filled(builder);
        let dir = scratch();
        let target = dir.path().join("out");
        assert_eq!(to_folder(&mut tree_of(&image, b"/"), &target), [""; 0]);
        let mount = Mount::ext4(image.path(), "ro");
        let expected = walk(mount.path());
        let found = walk(&target);
        // The block of the host is larger than 1 KiB: holes between may be filled.
        assert_same(&found, &expected);
        mount.unmount();
    }
}

// As older Linux leaves it after a truncate.
#[test]
fn file_that_is_longer_than_its_inode_comes_out_with_a_hole() {
    need_root!();
    let tree = scratch();
    fs::write(tree.path().join("f"), [7; 50]).unwrap();
    let builder = Image::builder().features("inline_data");
    let image = builder.source(tree.path()).build();
    debugfs(image.path(), &["set_inode_field f size 1000000"]);
    let dir = scratch();
    let target = dir.path().join("out");
    assert_eq!(to_folder(&mut tree_of(&image, b"/"), &target), [""; 0]);
    let expected = [vec![7; 50], vec![0; 999_950]].concat();
    assert!(fs::read(target.join("f")).unwrap() == expected);
    let blocks = fs::metadata(target.join("f")).unwrap().blocks();
    assert!(blocks < 100, "{blocks}");
}

#[test]
fn image_filled_by_the_kernel_comes_out_of_an_archive_as_the_kernel_shows_it() {
    need_root!();
    let image = filled(Image::builder());
    let dir = scratch();
    let mount = Mount::ext4(image.path(), "ro");
    let mut expected = walk(mount.path());
    expected.remove(Path::new("socket"));
    for ending in ["tar", "tar.gz", "tar.zst"] {
        let archive = dir.path().join(format!("a.{ending}"));
        let said = to_archive(&mut tree_of(&image, b"/"), &archive);
        assert_eq!(said, ["socket: left out: an archive has no sockets"]);
        let ours = dir.path().join(format!("ours-{ending}"));
        assert_eq!(
            to_folder(&mut from_archive(&archive).unwrap(), &ours),
            [""; 0]
        );
        assert_same(&walk(&ours), &expected);
        gnu_tar_extracts(&archive, &expected);
    }
    mount.unmount();
}

#[track_caller]
fn gnu_tar_extracts(
    archive: &Path,
    expected: &std::collections::BTreeMap<std::path::PathBuf, Seen>,
) {
    let target = scratch();
    let keep = [
        "--xattrs",
        "--xattrs-include=*",
        "--acls",
        "--numeric-owner",
        "--same-owner",
        "-p",
        "-S",
    ];
    let place = ["-C", name(target.path()), "-xf", name(archive)];
    run("tar", &[&keep[..], &place].concat());
    assert_same(&walk(target.path()), expected);
    let listed = run("tar", &["-tf", name(archive)]);
    assert_eq!(listed.lines().count(), expected.len());
}

#[test]
fn archive_of_the_same_image_has_the_same_bytes_each_time() {
    need_root!();
    let image = filled(Image::builder());
    let dir = scratch();
    for ending in ["tar", "tar.gz", "tar.zst"] {
        let [a, b] = ["a", "b"].map(|name| {
            let archive = dir.path().join(format!("{name}.{ending}"));
            to_archive(&mut tree_of(&image, b"/"), &archive);
            fs::read(archive).unwrap()
        });
        assert!(a == b, "{ending}");
        assert!(a.len() > 10_000, "{ending}: {} bytes", a.len());
    }
    assert_eq!(Compression::of_name(b"x.tar.bz2"), None);
}

#[test]
fn directory_in_an_image_is_a_tree_of_its_own() {
    need_root!();
    let image = filled(Image::builder());
    for path in [&b"/dir"[..], b"/dir/", b"/to-dir"] {
        let tree = tree_of(&image, path);
        let paths: Vec<_> = tree
            .entries()
            .iter()
            .map(|entry| entry.path.clone())
            .collect();
        assert_eq!(
            paths[..4],
            [
                &b""[..],
                b"block",
                b"d".repeat(200).as_slice(),
                [b"d".repeat(200), b"/".to_vec(), b"e".repeat(120)]
                    .concat()
                    .as_slice()
            ]
        );
        assert_eq!((tree.entries()[0].uid, tree.entries()[0].gid), (1, 2));
    }
}

#[test]
fn folder_that_is_not_empty_is_refused_without_merge_and_kept_with_it() {
    need_root!();
    let image = filled(Image::builder());
    let dir = scratch();
    let target = dir.path().join("out");
    fs::create_dir_all(target.join("dir")).unwrap();
    fs::write(target.join("dir/mine"), "mine").unwrap();
    fs::write(target.join("small"), "old").unwrap();
    let error = FolderSink::new(&target, FolderOptions::default()).unwrap_err();
    assert!(error.to_string().ends_with("is not empty"), "{error}");
    let merge = FolderOptions {
        merge: true,
        ..FolderOptions::default()
    };
    for _ in 0..2 {
        let mut sink = FolderSink::new(&target, merge).unwrap();
        assert_eq!(write(&mut tree_of(&image, b"/"), &mut sink), [""; 0]);
        assert_eq!(fs::read(target.join("dir/mine")).unwrap(), b"mine");
        assert_eq!(fs::read(target.join("small")).unwrap(), b"hello\n");
    }
    let mount = Mount::ext4(image.path(), "ro");
    let mut found = walk(&target);
    found.remove(Path::new("dir/mine"));
    assert_same(&found, &walk(mount.path()));
    mount.unmount();
}

#[test]
fn symlink_in_the_way_is_never_written_through() {
    need_root!();
    let image = filled(Image::builder());
    let dir = scratch();
    let outside = dir.path().join("outside");
    let target = dir.path().join("out");
    fs::create_dir(&outside).unwrap();
    fs::create_dir(&target).unwrap();
    std::os::unix::fs::symlink(&outside, target.join("dir")).unwrap();
    std::os::unix::fs::symlink(outside.join("small"), target.join("small")).unwrap();
    let merge = FolderOptions {
        merge: true,
        ..FolderOptions::default()
    };
    let mut sink = FolderSink::new(&target, merge).unwrap();
    let before = walk(&outside);
    let error = tree_of(&image, b"/")
        .write_to(&mut sink, &mut ())
        .unwrap_err();
    assert!(error.to_string().contains("/dir: "), "{error}");
    assert_same(&walk(&outside), &before);
    fs::remove_file(target.join("dir")).unwrap();
    let mut sink = FolderSink::new(&target, merge).unwrap();
    write(&mut tree_of(&image, b"/"), &mut sink);
    assert_same(&walk(&outside), &before);
}
