//! Images that are made, as the kernel and e2fsprogs see them.

use crate::refusals::{archive, file, pax};
use crate::support::*;
use dioxide::format::inode::InodeFlags;
use dioxide::mkfs::FsType;
use dioxide::{Fs, Mkfs, MountOptions, SetAttributes};
use dioxide_pack::image::{self, ImageOptions, ImageSize, Reserve};
use dioxide_pack::{Error, Filter, Tree, source};
use dioxide_testkit::{Mount, dumpe2fs, e2fsck_clean, need_root, pattern};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

fn folder(root: &Path) -> Tree {
    source::folder::read(root, Filter::default()).unwrap()
}

fn options(tree: &Tree, change: impl FnOnce(Mkfs) -> Mkfs) -> ImageOptions {
    let mut options = ImageOptions::of(tree).unwrap();
    options.mkfs = change(options.mkfs);
    options
}

/// Packs, and has the image checked.
#[track_caller]
fn pack(tree: &mut Tree, image: &Path, options: &ImageOptions) -> Vec<String> {
    let packed = image::write(tree, image::target(image).unwrap(), options, &mut ()).unwrap();
    assert_eq!(fs::metadata(image).unwrap().len(), packed.size_bytes());
    e2fsck_clean(image);
    packed.warnings.iter().map(|w| w.path.clone()).collect()
}

/// The tree in an image as the kernel shows it, without what a new file system has.
fn mounted(image: &Path) -> std::collections::BTreeMap<PathBuf, Seen> {
    let mount = Mount::ext4(image, "ro");
    let mut found = walk(mount.path());
    found.remove(Path::new("lost+found"));
    mount.unmount();
    found
}

#[test]
fn image_of_a_folder_has_all_that_the_folder_has() {
    need_root!();
    let dir = scratch();
    let root = dir.path().join("tree");
    fs::create_dir(&root).unwrap();
    fill(&root, Without::default());
    let expected = walk(&root);
    type Wish = fn(Mkfs) -> Mkfs;
    let kinds: [(&str, Wish); 6] = [
        ("ext4", |mkfs| mkfs),
        ("1k", |mkfs| mkfs.block_size(1024).unwrap()),
        ("no journal", |mkfs| mkfs.features("^has_journal").unwrap()),
        ("bigalloc", |mkfs| mkfs.features("bigalloc").unwrap()),
        ("inline data", |mkfs| mkfs.features("inline_data").unwrap()),
        ("ext2", |mkfs| {
            mkfs.fs_type(FsType::Ext2).inode_size(256).unwrap()
        }),
    ];
    for (what, change) in kinds {
        println!("{what}");
        let image = dir.path().join("disk.img");
        let mut tree = folder(&root);
        let options = options(&tree, change);
        assert_eq!(pack(&mut tree, &image, &options), [""; 0], "{what}");
        let mut found = mounted(&image);
        let mut expected = expected.clone();
        for (path, seen) in found.iter_mut().chain(&mut expected) {
            // What is a hole depends on the size of blocks; what is unwritten is read as zeros.
            if path == Path::new("unwritten") || !["ext4", "no journal", "ext2"].contains(&what) {
                seen.data = joined(seen);
            }
        }
        assert_same(&found, &expected);
    }
}

/// The content as one piece.
fn joined(seen: &Seen) -> Vec<(u64, Vec<u8>)> {
    let mut whole = vec![0; seen.size as usize];
    for (at, bytes) in &seen.data {
        whole[*at as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    vec![(0, whole)]
}

#[test]
fn image_of_an_archive_and_of_that_image_hold_the_same() {
    need_root!();
    let dir = scratch();
    let root = dir.path().join("tree");
    fs::create_dir(&root).unwrap();
    fill(&root, Without::default());
    fs::remove_file(root.join("socket")).unwrap();
    let archive = dir.path().join("tree.tar.gz");
    assert_eq!(to_archive(&mut folder(&root), &archive), [""; 0]);
    let [first, second] = ["first", "second"].map(|name| dir.path().join(name));
    let mut tree = from_archive(&archive).unwrap();
    let wishes = ImageOptions::of(&tree).unwrap();
    pack(&mut tree, &first, &wishes);
    assert_same(&mounted(&first), &walk(&root));
    let fs = dioxide::Fs::open(&first, &dioxide::MountOptions::new().read_only(true)).unwrap();
    let mut tree = source::image::read(&fs, b"/", Filter::default()).unwrap();
    pack(&mut tree, &second, &wishes);
    assert_same(&mounted(&second), &mounted(&first));
}

/// The values that have inodes of their own were not counted: there were too few inodes, or no room was said to be.
#[test]
fn values_have_inodes_of_their_own_where_the_block_has_no_room() {
    let dir = scratch();
    let (source, image) = (dir.path().join("a.tar"), dir.path().join("a.img"));
    let one = |number: usize| -> Vec<Vec<u8>> {
        let value = vec![b'v'; 3706];
        let name = format!("f{number}");
        vec![
            pax(&[("SCHILY.xattr.user.a", &value)]),
            file(name.as_bytes()),
        ]
    };
    let several = {
        let (large, middle, small) = (vec![1; 4000], vec![2; 3000], vec![3; 900]);
        let [second, third] =
            ["q", "s"].map(|name| format!("SCHILY.xattr.user.{name}{}", "n".repeat(240)));
        vec![
            pax(&[
                ("SCHILY.xattr.user.q", &large[..]),
                (&second, &middle),
                (&third, &small),
            ]),
            file(b"one"),
        ]
    };
    for parts in [(0..30).flat_map(one).collect(), several] {
        fs::write(&source, archive(&parts)).unwrap();
        let mut tree = from_archive(&source).unwrap();
        let options = options(&tree, |mkfs| mkfs.features("ea_inode").unwrap());
        assert_eq!(pack(&mut tree, &image, &options), [""; 0]);
        let packed = Fs::open(&image, &MountOptions::new().read_only(true)).unwrap();
        for (at, part) in parts.iter().enumerate().filter(|(at, _)| at % 2 == 1) {
            let path = part[..100].split(|&byte| byte == 0).next().unwrap();
            let listed = packed.xattrs(path).unwrap().len();
            assert_eq!(listed, if path == b"one" { 3 } else { 1 }, "{at}");
        }
        fs::remove_file(&image).unwrap();
    }
}

/// A tree for anybody, made in one order or the other.
fn plain(root: &Path, backwards: bool) {
    let mut names: Vec<u32> = (0..600).collect();
    if backwards {
        names.reverse();
    }
    for dir in ["", "many", "few"] {
        fs::create_dir(root.join(dir)).unwrap();
    }
    for i in names {
        let path = root
            .join("many")
            .join(format!("{i:04}{}", "n".repeat(i as usize % 90)));
        match i % 7 {
            0 => symlink("t".repeat(i as usize % 99 + 1), path).unwrap(),
            _ => fs::write(path, pattern(i.into(), 0, (i as usize * 977) % 20_000)).unwrap(),
        }
    }
    fs::write(root.join("few/large"), pattern(1, 0, 9 << 20)).unwrap();
    fs::hard_link(root.join("few/large"), root.join("zlink")).unwrap();
    same_times(root);
}

fn same_times(root: &Path) {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    for path in walk(root).into_keys() {
        let time = Timespec {
            tv_sec: 1_700_000_000 + path.as_os_str().len() as i64,
            tv_nsec: 987_654_321,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        utimensat(CWD, root.join(path), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

#[test]
fn image_is_the_same_whatever_the_order_and_time_and_whoever_runs_beside() {
    let dir = scratch();
    let images = [false, true].map(|backwards| {
        let root = dir.path().join(format!("tree-{backwards}"));
        plain(&root, backwards);
        root
    });
    let made: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> = [0, 1, 0, 1]
            .iter()
            .enumerate()
            .map(|(at, which)| {
                let (root, image) = (&images[*which], dir.path().join(format!("{at}.img")));
                scope.spawn(move || {
                    std::thread::sleep(std::time::Duration::from_millis(1100 * at as u64));
                    let mut tree = folder(root);
                    let options = ImageOptions::of(&tree).unwrap();
                    pack(&mut tree, &image, &options);
                    fs::read(image).unwrap()
                })
            })
            .collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    assert!(made.iter().all(|bytes| *bytes == made[0]));
    // One file more makes another.
    fs::write(images[0].join("few/more"), "").unwrap();
    let mut tree = folder(&images[0]);
    let image = dir.path().join("more.img");
    let options = ImageOptions::of(&tree).unwrap();
    pack(&mut tree, &image, &options);
    assert!(fs::read(image).unwrap() != made[0]);
}

#[test]
fn image_that_fits_has_little_room_left_and_keeps_its_reserve() {
    let dir = scratch();
    let root = dir.path().join("tree");
    plain(&root, false);
    let mut tree = folder(&root);
    let mut left = Vec::new();
    for reserve in [
        Reserve::Bytes(0),
        Reserve::Bytes(5 << 20),
        Reserve::Percent(50),
    ] {
        let image = dir.path().join("fit.img");
        let mut options = ImageOptions::of(&tree).unwrap();
        options.size = ImageSize::Fit(reserve);
        pack(&mut tree, &image, &options);
        let text = dumpe2fs(&image);
        let field = |name: &str| -> u64 {
            let row = text.lines().find_map(|row| row.strip_prefix(name)).unwrap();
            row.trim().parse().unwrap()
        };
        let blocks = field("Block count:");
        let kept = field("Free blocks:");
        assert!(field("Free inodes:") < 400 || reserve != Reserve::Bytes(0));
        left.push((kept, blocks));
    }
    let taken = image::plan(&tree, &ImageOptions::of(&tree).unwrap()).unwrap();
    let half = taken.need.blocks.div_ceil(2);
    let slack = |blocks: u64| blocks / 1024 + 8;
    assert!(left[0].0 <= slack(left[0].1), "{left:?}");
    assert!(
        (1280..=1280 + slack(left[1].1)).contains(&left[1].0),
        "{left:?}"
    );
    assert!(
        (half..=half + slack(left[2].1)).contains(&left[2].0),
        "{half}: {left:?}"
    );
}

#[test]
fn image_of_a_size_that_is_too_small_is_refused_and_nothing_is_left() {
    let dir = scratch();
    let root = dir.path().join("tree");
    plain(&root, false);
    let image = dir.path().join("small.img");
    fs::write(&image, "old").unwrap();
    let mut tree = folder(&root);
    let mut options = ImageOptions::of(&tree).unwrap();
    options.size = ImageSize::Bytes(8 << 20);
    let error =
        image::write(&mut tree, image::target(&image).unwrap(), &options, &mut ()).unwrap_err();
    assert!(matches!(error, Error::TooSmall { .. }), "{error}");
    assert_eq!(fs::read(&image).unwrap(), b"old");
    options.size = ImageSize::Bytes(64 << 20);
    pack(&mut tree, &image, &options);
    assert_eq!(fs::metadata(&image).unwrap().size(), 64 << 20);
}

#[test]
fn source_that_changes_while_it_is_packed_leaves_no_image() {
    let dir = scratch();
    let root = dir.path().join("tree");
    plain(&root, false);
    let mut tree = folder(&root);
    let options = ImageOptions::of(&tree).unwrap();
    fs::write(root.join("few/large"), "shorter").unwrap();
    let into = dir.path().join("into");
    fs::create_dir(&into).unwrap();
    let error = image::write(
        &mut tree,
        image::target(&into.join("x.img")).unwrap(),
        &options,
        &mut (),
    )
    .unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    assert_eq!(fs::read_dir(&into).unwrap().count(), 0);
}

#[test]
fn target_that_is_no_regular_file_is_not_replaced() {
    let dir = scratch();
    let root = dir.path().join("tree");
    plain(&root, false);
    let error = image::target(&root).unwrap_err();
    assert!(error.to_string().contains("no regular file"), "{error}");
    assert!(root.is_dir());
}

#[test]
fn lost_and_found_of_the_source_takes_the_place_of_the_new_one() {
    let dir = scratch();
    for (at, is_dir) in [true, false].into_iter().enumerate() {
        let root = dir.path().join(format!("tree-{at}"));
        plain(&root, false);
        let path = root.join("lost+found");
        match is_dir {
            true => {
                fs::create_dir(&path).unwrap();
                fs::write(path.join("#12"), "found").unwrap();
            }
            false => fs::write(&path, "a file").unwrap(),
        }
        let mut tree = folder(&root);
        let image = dir.path().join("disk.img");
        let options = ImageOptions::of(&tree).unwrap();
        image::write(&mut tree, image::target(&image).unwrap(), &options, &mut ()).unwrap();
        let fs = dioxide::Fs::open(&image, &dioxide::MountOptions::new().read_only(true)).unwrap();
        let packed = source::image::read(&fs, b"/", Filter::default()).unwrap();
        let paths = |tree: &Tree| -> Vec<_> {
            tree.entries()
                .iter()
                .map(|entry| entry.path.clone())
                .collect()
        };
        assert_eq!(paths(&packed), paths(&tree));
        if is_dir {
            e2fsck_clean(&image);
        }
    }
}

#[test]
fn flags_and_projects_go_from_image_to_image_and_nowhere_else_silently() {
    let given = [
        ("", InodeFlags::PROJINHERIT, 7),
        ("dir", InodeFlags::DIRSYNC, 0),
        ("dir/kept", InodeFlags::IMMUTABLE, 8),
        ("dir/log", InodeFlags::APPEND, 0),
        ("link", InodeFlags::NOATIME, 9),
    ];
    let dir = scratch();
    let root = dir.path().join("tree");
    fs::create_dir_all(root.join("dir")).unwrap();
    fs::write(root.join("dir/kept"), "kept").unwrap();
    fs::write(root.join("dir/log"), "log").unwrap();
    fs::hard_link(root.join("dir/kept"), root.join("other")).unwrap();
    symlink("dir", root.join("link")).unwrap();
    let [first, second, plain] = ["1.img", "2.img", "3.img"].map(|name| dir.path().join(name));
    let with_projects = |tree: &Tree| options(tree, |mkfs| mkfs.features("project").unwrap());

    let mut tree = folder(&root);
    let wished = with_projects(&tree);
    assert_eq!(pack(&mut tree, &first, &wished), [""; 0]);
    let image = Fs::open(&first, &MountOptions::new()).unwrap();
    for (path, flags, project) in given {
        let node = image.symlink_node(format!("/{path}")).unwrap();
        let flags = node.metadata().flags | flags.0;
        let set = SetAttributes::new().flags(flags).project(project);
        node.set_attributes(&set).unwrap();
    }
    image.close().unwrap();

    let read = |image: &Path| {
        let fs = Fs::open(image, &MountOptions::new().read_only(true)).unwrap();
        let tree = source::image::read(&fs, b"/", Filter::default()).unwrap();
        let flagged: Vec<_> = tree
            .entries()
            .iter()
            .filter(|entry| (entry.flags, entry.project) != (0, 0))
            .map(|entry| (entry.path.clone(), InodeFlags(entry.flags), entry.project))
            .collect();
        (tree, flagged)
    };
    let (mut tree, flagged) = read(&first);
    let mut expected = given.map(|(path, flags, project)| (path.into(), flags, project));
    let other = (b"other".to_vec(), InodeFlags::IMMUTABLE, 8);
    assert_eq!(flagged, [&expected[..], &[other]].concat());
    let wished = with_projects(&tree);
    assert_eq!(pack(&mut tree, &second, &wished), [""; 0]);
    assert_eq!(read(&second).1, flagged);

    // Without the feature, projects are told, and nothing else is missing.
    let wished = options(&tree, |mkfs| mkfs);
    assert_eq!(pack(&mut tree, &plain, &wished), ["dir/kept", "link", "."]);
    expected.iter_mut().for_each(|told| told.2 = 0);
    let other = (b"other".to_vec(), InodeFlags::IMMUTABLE, 0);
    assert_eq!(read(&plain).1, [&expected[..], &[other]].concat());

    let told = [
        "dir/kept: no flags Immutable, no project 8: only images have them",
        "dir/log: no flags Append_Only: only images have them",
        "dir: no flags Synchronous_Directory_Updates: only images have them",
        "link: no flags No_Atime, no project 9: only images have them",
        ".: no flags Project_Hierarchy, no project 7: only images have them",
    ];
    assert_eq!(to_folder(&mut tree, &dir.path().join("out")), told);
    assert_eq!(to_archive(&mut tree, &dir.path().join("out.tar")), told);
}
