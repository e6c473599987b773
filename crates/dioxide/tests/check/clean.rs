//! Nothing is found in what nothing is wrong with.

use crate::subject::{Subject, codes, e2fsck, modern, report};
use dioxide::block::file::{self, FileOptions};
use dioxide::check::layout::{ImageMap, Kind, image_map};
use dioxide::check::{
    CheckOptions, Code, EXIT_CANCELLED, EXIT_UNCORRECTED, Progress, Severity, check_path,
};
use dioxide::resize::{ResizeOptions, resize};
use dioxide::{Fs, Mkfs, MountOptions, NewFile, OpenOptions, SetAttributes, Timestamp};
use dioxide_testkit::{Image, debugfs_query, leaf_extents, need_root, shape};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Options of mke2fs; each kind of file system that the format knows.
const KINDS: &[(&str, &str, u32, &str)] = &[
    ("ext4", "ext4", 4096, ""),
    ("small blocks", "ext4", 1024, ""),
    ("ext3", "ext3", 1024, ""),
    ("ext2", "ext2", 1024, ""),
    (
        "no checksums",
        "ext4",
        1024,
        "^metadata_csum,^uninit_bg,^64bit",
    ),
    ("crc16", "ext4", 4096, "^metadata_csum,uninit_bg"),
    ("no flex_bg", "ext4", 1024, "^flex_bg"),
    ("meta_bg", "ext4", 1024, "meta_bg,^resize_inode"),
    ("sparse_super2", "ext4", 1024, "sparse_super2"),
    (
        "no sparse_super",
        "ext4",
        1024,
        "^sparse_super,^resize_inode",
    ),
    ("bigalloc", "ext4", 4096, "bigalloc"),
    ("inline data", "ext4", 4096, "inline_data"),
    ("quota", "ext4", 4096, "quota,project"),
    ("orphan file", "ext4", 4096, "orphan_file"),
    ("mmp", "ext4", 4096, "mmp"),
    ("ea_inode", "ext4", 4096, "ea_inode"),
    ("seed", "ext4", 4096, "metadata_csum_seed,large_dir"),
    ("no journal", "ext4", 4096, "^has_journal"),
];

/// What quota files say of use is not changed by debugfs; and mounting needs what kernels may lack.
const NOT_MOUNTED: &[&str] = &["quota", "mmp"];

fn builder(kind: &(&str, &str, u32, &str)) -> dioxide_testkit::ImageBuilder {
    let (_, fs_type, block_bytes, features) = *kind;
    let builder = Image::builder().fs_type(fs_type).size(24 << 20);
    let builder = builder.block_size(block_bytes).args(&["-N", "4096"]);
    match features {
        "" => builder,
        features => builder.features(features),
    }
}

fn assert_clean(name: &str, image: &Path) {
    let (status, text) = e2fsck(image);
    assert_eq!(status, 0, "{name}: {text}");
    let report = report(image);
    let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.is_clean() && found.is_empty(), "{name}: {found:#?}");
    assert_eq!(report.exit_status(), 0);
    let usage = report.usage.expect("it was checked to its end");
    let files = format!("{}/{} files", usage.inodes, usage.inodes_total);
    let blocks = format!("{}/{} blocks", usage.blocks, usage.blocks_total);
    assert!(text.contains(&files), "{name}: {files}, {text}");
    assert!(text.contains(&blocks), "{name}: {blocks}, {text}");
}

#[test]
fn check_of_image_that_mke2fs_made_finds_nothing() {
    for kind in KINDS {
        assert_clean(kind.0, builder(kind).build().path());
    }
}

#[test]
fn check_of_image_that_e2fsprogs_filled_finds_nothing() {
    for kind in KINDS.iter().filter(|kind| !NOT_MOUNTED.contains(&kind.0)) {
        assert_clean(kind.0, Subject::new(builder(kind)).path());
    }
}

/// `mkfs -U clear` asks for it, and it was an error for the check and so for every resize.
#[test]
fn uuid_of_zeros_is_no_damage() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let image = dir.path().join("image");
    let mkfs = Mkfs::new().uuid([0; 16]).hash_seed([0; 16]).epoch(0);
    mkfs.create(&image, Some(4 << 20)).expect("it is made");
    assert_clean("no uuid", &image);
    resize(&image, Some(16 << 20), &ResizeOptions::default()).expect("it grows");
    assert_clean("no uuid, larger", &image);
}

fn map_of(image: &Path) -> ImageMap {
    let device = file::open(image, &FileOptions::default()).expect("it opens");
    image_map(device, &CheckOptions::default(), &mut |_| {}).expect("a map")
}

/// With clusters, what is left of those of fixed metadata is neither.
#[test]
fn each_block_of_a_map_is_used_or_free() {
    for kind in KINDS.iter().filter(|kind| kind.0 != "bigalloc") {
        let image = builder(kind).build();
        let map = map_of(image.path());
        for group in &map.by_group {
            let counted: u64 = group.total.blocks.iter().sum();
            assert_eq!(counted, group.blocks, "{}, group {}", kind.0, group.group);
        }
    }
}

#[test]
fn map_shows_clusters_whose_first_blocks_are_holes_where_they_are() {
    const CLUSTER: u64 = 16;
    let tree = tempfile::tempdir().expect("a folder");
    let last_blocks = (0..200).map(|at| {
        let start = (at * CLUSTER + CLUSTER - 1) * 4096;
        start..start + 4096
    });
    let last_blocks: Vec<_> = last_blocks.collect();
    shape::sparse(
        &tree.path().join("file"),
        200 * CLUSTER * 4096,
        &last_blocks,
        1,
    );
    let image = Image::builder().size(24 << 20).features("bigalloc");
    let image = image.source(tree.path()).build();
    let extents = leaf_extents(image.path(), "/file");
    assert!(extents.iter().any(|run| run.physical % CLUSTER != 0));
    let map = map_of(image.path());
    let cells = &map.by_group[0].cells;
    let mut expected = vec![0; cells.len()];
    for run in extents {
        assert_eq!(run.len, 1);
        expected[(run.physical / map.cell_blocks) as usize] += CLUSTER;
    }
    // The node that leads to them has a cluster too. Level, entries, logical blocks, physical block.
    let nodes = debugfs_query(image.path(), "dump_extents -n /file");
    let node = nodes.lines().last().expect("one node");
    let words: Vec<&str> = node.split_whitespace().collect();
    let node: u64 = words[7].parse().expect("a block");
    expected[(node / map.cell_blocks) as usize] += CLUSTER;
    let found = cells.iter().map(|cell| cell.blocks[Kind::Data as usize]);
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

/// They lie where the device has them, whatever the clusters.
#[test]
fn list_of_bad_blocks_with_clusters_is_clean() {
    let list = tempfile::NamedTempFile::new().expect("a file");
    fs::write(list.path(), "5000\n5001\n5003\n6001\n").expect("its content");
    let image = Image::builder().size(16 << 20).block_size(1024);
    let image = image.features("bigalloc").args(&["-C", "4096", "-l"]);
    let image = image.args(&[list.path().to_str().expect("a name")]).build();
    assert_clean("bad blocks", image.path());
}

/// debugfs waits for other hosts.
#[test]
fn check_of_image_with_mmp_that_e2fsprogs_filled_finds_nothing() {
    let kind = KINDS.iter().find(|kind| kind.0 == "mmp");
    let kind = kind.expect("it is one of them");
    assert_clean(kind.0, Subject::new(builder(kind)).path());
}

fn fill(root: &Path, kind: &str) {
    fs::create_dir_all(root.join("a/b/c")).expect("directories");
    shape::directory(&root.join("big"), 2000);
    for number in (0..2000).step_by(5) {
        fs::remove_file(root.join("big").join(shape::entry_name(number))).expect("a file");
    }
    shape::sparse(
        &root.join("sparse"),
        1 << 20,
        &[0..5000, 300_000..400_000],
        1,
    );
    if kind != "ext2" && kind != "ext3" {
        shape::punched(&root.join("punched"), 200, 4096, 2);
        shape::unwritten(&root.join("unwritten"), 100_000);
    }
    fs::write(root.join("tiny"), "tiny").expect("a file");
    fs::hard_link(root.join("tiny"), root.join("a/hard")).expect("a link");
    symlink("t".repeat(40), root.join("fast")).expect("a link");
    symlink("t".repeat(400), root.join("slow")).expect("a link");
    for (path, name, len) in [
        ("tiny", "user.small", 5),
        ("a", "user.long", 500),
        ("a/b", "user.long", 500),
        (
            "sparse",
            "user.larger",
            if kind == "ea_inode" { 9000 } else { 600 },
        ),
        (
            "big",
            "user.larger",
            if kind == "ea_inode" { 9000 } else { 600 },
        ),
    ] {
        let value = vec![b'v'; len];
        let set = rustix::fs::setxattr(
            root.join(path),
            name,
            &value,
            rustix::fs::XattrFlags::empty(),
        );
        set.unwrap_or_else(|error| panic!("{kind}: {name} of {path}: {error}"));
    }
}

#[test]
fn check_of_image_that_the_kernel_filled_finds_nothing() {
    need_root!();
    for kind in KINDS.iter().filter(|kind| !NOT_MOUNTED.contains(&kind.0)) {
        let image = builder(kind).build();
        image.populate_with_kernel(|root| fill(root, kind.0));
        assert_clean(kind.0, image.path());
    }
}

#[test]
fn check_of_image_in_use_reads_its_journal_and_says_so() {
    need_root!();
    let image = Image::builder().size(24 << 20).build();
    let mount = dioxide_testkit::Mount::ext4(image.path(), "");
    fs::create_dir(mount.path().join("dir")).expect("a directory");
    for number in 0..40 {
        let file = fs::File::create(mount.path().join(format!("dir/{number}"))).expect("a file");
        file.sync_all().expect("a sync");
    }
    let copy = image.copy();
    mount.unmount();
    let before = fs::read(copy.path()).expect("the image");
    let report = report(copy.path());
    let codes: Vec<_> = report
        .findings
        .iter()
        .map(|finding| finding.code.id())
        .collect();
    assert_eq!(codes, ["journal-recovering"], "{:#?}", report.findings);
    assert_eq!(report.findings[0].code.severity(), Severity::Note);
    assert_eq!(report.exit_status(), 0);
    let usage = report.usage.expect("what is in use");
    assert_eq!((usage.files, usage.directories), (40, 3));
    assert!(before == fs::read(copy.path()).expect("the image"));
}

#[test]
fn time_after_2310_is_noted_and_no_error() {
    let image = builder(&KINDS[0]).build();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let options = OpenOptions::new().write(true).create(true);
    options
        .new_file(&NewFile::new(0o644))
        .open(&fs, "/late")
        .expect("a new file");
    // 2350.
    let secs = 11_991_456_000;
    let late = SetAttributes::new().mtime(Timestamp { secs, nanos: 0 });
    fs.set_attributes("/late", &late).expect("a time it holds");
    fs.close().expect("a clean end");
    assert_eq!(e2fsck(image.path()).0, 0);
    let report = report(image.path());
    assert!(report.is_clean(), "{:?}", report.findings);
    assert_eq!(codes(&report), [Code::InodeTime]);
}

/// Later passes need all of the earlier ones: they must not run, and find what is not there.
#[test]
fn check_that_is_ended_anywhere_finds_nothing_in_a_clean_image() {
    let subject = modern();
    let status = |errors: u8| errors | EXIT_CANCELLED;
    let mut steps = 0;
    let ended_after = |subject: &Subject, most: u32, steps: &mut u32| {
        let cancel = Arc::new(AtomicBool::new(most == 0));
        let options = CheckOptions {
            cancel: Some(cancel.clone()),
            ..CheckOptions::default()
        };
        *steps = 0;
        let mut count = |_: &Progress| {
            *steps += 1;
            cancel.store(*steps >= most, Ordering::Relaxed);
        };
        check_path(subject.path(), &options, &mut count).expect("a report")
    };
    let whole = ended_after(&subject, u32::MAX, &mut steps);
    assert!(whole.is_clean() && !whole.cancelled && steps > 6);
    let last = steps;
    for most in 0..=last {
        let found = ended_after(&subject, most, &mut steps);
        assert_eq!((found.errors, found.notes), (0, 0), "{most}: {found:#?}");
        assert!(found.cancelled && !found.is_clean() && found.usage.is_none());
        assert_eq!((steps, found.exit_status()), (most, status(0)), "of {last}");
    }
    let (exits, text) = e2fsck(subject.path());
    assert_eq!(exits, 0, "{text}");
    // What is found before counts.
    subject.debugfs("sif file blocks 2");
    let found = ended_after(&subject, 1, &mut steps);
    assert_eq!(codes(&found), [Code::InodeBlocks]);
    assert_eq!(found.exit_status(), status(EXIT_UNCORRECTED));
}
