//! The size model, compared with what e2fsprogs and the kernel take.

use crate::support::scratch;
use dioxide::{Fs, MountOptions};
use dioxide_pack::size::{Layout, need};
use dioxide_pack::{Entry, Filter, Kind, Tree, source};
use dioxide_testkit::{Image, ImageBuilder, each_case, need_root, pattern};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// A small generator of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// A tree of some hundred files of all sizes, some of them sparse, in directories of all sizes.
fn random_tree(root: &Path, seed: u64) {
    let mut random = Random(seed);
    let mut directories = vec![root.to_owned()];
    for i in 0..20 {
        let parent = directories[random.below(directories.len() as u64) as usize].clone();
        let path = parent.join(format!("dir-{i}"));
        fs::create_dir(&path).unwrap();
        directories.push(path);
    }
    for i in 0..300 {
        let parent = &directories[random.below(directories.len() as u64) as usize];
        let path = parent.join(format!("{}-{i}", "f".repeat(random.below(60) as usize + 1)));
        match random.below(10) {
            0 => symlink("t".repeat(random.below(200) as usize + 1), path).unwrap(),
            1 => {
                let pieces: Vec<_> = (0..random.below(40) + 1)
                    .map(|piece| piece * 40960 + 4096..piece * 40960 + 4096 * (2 + random.below(8)))
                    .collect();
                dioxide_testkit::shape::sparse(&path, 2 << 20, &pieces, seed);
            }
            2 => fs::write(path, pattern(seed, 0, random.below(600_000) as usize)).unwrap(),
            _ => fs::write(path, pattern(seed, 0, random.below(20_000) as usize)).unwrap(),
        }
    }
}

/// Files whose names fill directories of several blocks.
fn large_directories(root: &Path, seed: u64, counts: &[u64]) {
    let mut random = Random(seed);
    for (at, &count) in counts.iter().enumerate() {
        let dir = root.join(format!("large-{at}"));
        fs::create_dir(&dir).unwrap();
        for i in 0..count {
            let name = format!("{i:06}{}", "x".repeat(random.below(30) as usize));
            fs::write(dir.join(name), "").unwrap();
        }
    }
}

struct Used {
    blocks: u64,
    inodes: u64,
}

fn used(image: &Image) -> Used {
    let text = dioxide_testkit::dumpe2fs(image.path());
    let field = |name: &str| -> u64 {
        let row = text.lines().find_map(|row| row.strip_prefix(name)).unwrap();
        row.trim().parse().unwrap()
    };
    Used {
        blocks: field("Block count:") - field("Free blocks:"),
        inodes: field("Inode count:") - field("Free inodes:"),
    }
}

/// Checks the model against an image with the tree, and one without.
#[track_caller]
fn check(what: &str, tree: &Tree, full: &Image, empty: &Image, slack: u64) {
    let fs = Fs::open(empty.path(), &MountOptions::new().read_only(true)).unwrap();
    let need = need(tree.entries(), &Layout::of(fs.superblock())).unwrap();
    each_file_has_enough(what, tree, full, &Layout::of(fs.superblock()));
    let (full, empty) = (used(full), used(empty));
    let taken = full.blocks - empty.blocks;
    println!(
        "{what}: {} blocks are taken, {} were expected",
        taken, need.blocks
    );
    assert_eq!(need.inodes, full.inodes - empty.inodes, "{what}");
    assert!(
        need.blocks >= taken,
        "{what}: {} of {taken} blocks",
        need.blocks
    );
    assert!(
        need.blocks <= taken + taken * 3 / 100 + slack,
        "{what}: {} for {taken} blocks",
        need.blocks
    );
}

/// Of no file the model expects less than it has, but of the root, whose first block it leaves out.
#[track_caller]
fn each_file_has_enough(what: &str, tree: &Tree, image: &Image, layout: &Layout) {
    let fs = Fs::open(image.path(), &MountOptions::new().read_only(true)).unwrap();
    for entry in &tree.entries()[1..] {
        let in_it = |other: &&Entry| {
            let name = other.path.strip_prefix(&entry.path[..]);
            let name = name.filter(|name| name.starts_with(b"/"));
            name.is_some_and(|name| name.len() > 1 && !name[1..].contains(&b'/'))
        };
        let mut part = vec![entry.clone()];
        if entry.kind == Kind::Directory {
            // Names, which take nothing by themselves.
            part.extend(
                tree.entries()
                    .iter()
                    .filter(in_it)
                    .cloned()
                    .map(|other| Entry {
                        kind: Kind::HardLink(Vec::new()),
                        ..other
                    }),
            );
        }
        let expected = need(&part, layout).unwrap().blocks;
        let path = [b"/", &entry.path[..]].concat();
        let has = fs.symlink_metadata(&path).unwrap().blocks * 512 / u64::from(layout.block_bytes);
        assert!(
            expected >= has,
            "{what}, {}: {expected} of {has} blocks",
            path.escape_ascii()
        );
    }
}

fn kinds() -> Vec<(&'static str, ImageBuilder)> {
    let image = || Image::builder().size(256 << 20).args(&["-N", "16000"]);
    vec![
        ("4k", image()),
        ("1k", image().block_size(1024)),
        ("ext2", image().fs_type("ext2")),
        ("ext2 1k", image().fs_type("ext2").block_size(1024)),
        ("no checksums", image().features("^metadata_csum")),
        ("inodes of 128", image().inode_size(128)),
    ]
}

fn folder(root: &Path) -> Tree {
    source::folder::read(root, Filter::default()).unwrap()
}

#[test]
fn model_of_random_trees_is_never_below_mke2fs_and_close_to_it() {
    let dirs = [0, 1, 2].map(|seed| {
        let dir = scratch();
        random_tree(dir.path(), seed);
        dir
    });
    for (what, builder) in kinds() {
        let empty = builder.clone().build();
        for (seed, dir) in dirs.iter().enumerate() {
            let full = builder.clone().source(dir.path()).build();
            check(
                &format!("{what}, {seed}"),
                &folder(dir.path()),
                &full,
                &empty,
                8,
            );
        }
    }
}

#[test]
fn model_of_random_trees_is_never_below_the_kernel_and_close_to_it() {
    need_root!();
    let mut kinds = kinds();
    kinds.push((
        "bigalloc",
        Image::builder()
            .size(256 << 20)
            .args(&["-N", "16000", "-C", "16384"])
            .features("bigalloc"),
    ));
    kinds.push((
        "inline data",
        Image::builder()
            .size(256 << 20)
            .args(&["-N", "16000"])
            .features("inline_data"),
    ));
    each_case(kinds, |(what, builder)| {
        let dir = scratch();
        random_tree(dir.path(), 7);
        large_directories(dir.path(), 7, &[80, 100, 150, 300, 700, 2000]);
        if !what.contains("128") {
            xattrs(dir.path());
        }
        let (empty, full) = (builder.clone().build(), builder.build());
        full.populate_with_kernel(|root| {
            let options = dioxide_pack::sink::folder::FolderOptions {
                merge: true,
                owners: true,
            };
            let mut sink = dioxide_pack::sink::folder::FolderSink::new(root, options).unwrap();
            assert_eq!(
                crate::support::write(&mut folder(dir.path()), &mut sink),
                [""; 0]
            );
        });
        let slack = if what == "inline data" { 40 } else { 8 };
        check(what, &folder(dir.path()), &full, &empty, slack);
    });
}

fn xattrs(root: &Path) {
    use rustix::fs::{XattrFlags, lsetxattr};
    for i in 0..40usize {
        let path = root.join(format!("with-xattrs-{i}"));
        fs::write(&path, "x").unwrap();
        // Around what fits into an inode.
        let value = vec![i as u8; 5 * i];
        lsetxattr(&path, "user.value", &value, XattrFlags::empty()).unwrap();
        lsetxattr(&path, "user.another", b"short", XattrFlags::empty()).unwrap();
        if i % 3 == 0 {
            lsetxattr(
                &path,
                "system.posix_acl_access",
                &crate::support::acl(),
                XattrFlags::empty(),
            )
            .unwrap();
        }
    }
}
