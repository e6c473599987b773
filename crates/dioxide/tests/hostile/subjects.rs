//! The images that are damaged. None needs root to make.

use super::read_all::{Found, scan};
use dioxide::{Fs, MountOptions};
use dioxide_testkit::{Image, ImageBuilder, debugfs};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// What the data blocks of files are filled with, so that they are told from metadata.
const DATA: u8 = 0xDA;

pub struct Subject {
    pub name: &'static str,
    pub bytes: Arc<Vec<u8>>,
    pub block: usize,
    /// The blocks that hold metadata.
    pub metadata: Vec<u64>,
    /// Every structure that reading needs has a checksum.
    pub checksummed: bool,
    /// What reading the intact image finds.
    pub found: Found,
}

impl Subject {
    /// It has a log that is to be replayed.
    pub fn is_dirty(&self) -> bool {
        self.name.contains("dirty")
    }
}

fn small(features: &str, block: u32) -> ImageBuilder {
    let image = Image::builder()
        .size(6 << 20)
        .block_size(block)
        .args(&["-N", "512"]);
    if features.is_empty() {
        image
    } else {
        image.features(features)
    }
}

/// The subjects: with checksums, to be found out at once; without, so that what was changed gets
/// deep inside.
pub fn all() -> Vec<Subject> {
    vec![
        subject("ext4, 1k blocks", small("", 1024)),
        subject("ext4, no checksums", small("^metadata_csum", 1024)),
        subject("ext4, dirty journal", small("", 1024)),
        subject(
            "ext4, dirty journal, no checksums",
            small("^metadata_csum", 1024),
        ),
        subject("ext2", small("", 1024).fs_type("ext2")),
        subject("ext4, 4k blocks", small("^has_journal", 4096)),
        subject(
            "ext4, inline data, no checksums",
            small("inline_data,^metadata_csum", 1024).inode_size(512),
        ),
        subject(
            "ext4, ea_inode, no checksums",
            small("ea_inode,^metadata_csum", 1024),
        ),
        subject(
            "ext4, bigalloc, no checksums",
            small("bigalloc,^metadata_csum", 1024).args(&["-C", "4096"]),
        ),
        subject(
            "ext4, indirect, no checksums",
            small("^extents,^64bit,^metadata_csum,^has_journal", 1024),
        ),
        subject(
            "ext4, no flex_bg, meta_bg",
            small("^flex_bg,meta_bg,^resize_inode,^metadata_csum", 1024),
        ),
        subject(
            "ext4, quota, orphan file, fast commit, no checksums",
            small("quota,project,orphan_file,fast_commit,^metadata_csum", 1024).inode_size(256),
        ),
    ]
}

fn subject(name: &'static str, builder: ImageBuilder) -> Subject {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fill(folder.path(), name.contains("ea_inode"));
    let image = builder.source(folder.path()).build();
    fragment(&image);
    // Gives directories of several blocks an index.
    let path = format!(
        "{}:/usr/sbin:/sbin",
        std::env::var("PATH").unwrap_or_default()
    );
    let fixed = Command::new("e2fsck")
        .args(["-fyD"])
        .arg(image.path())
        .env("PATH", path)
        .output();
    assert!(
        fixed
            .expect("e2fsck")
            .status
            .code()
            .is_some_and(|code| code < 4)
    );
    if name.contains("dirty") {
        journal(&image);
    }
    let bytes = Arc::new(fs::read(image.path()).expect("the image"));
    let options = MountOptions::new().read_only(true);
    let fs = Fs::open(image.path(), &options).expect("it opens");
    assert_eq!(name.contains("dirty"), !fs.warnings().is_empty(), "{name}");
    let block = fs.block_size() as usize;
    Subject {
        name,
        metadata: metadata_blocks(&bytes, block),
        block,
        checksummed: fs.superblock().features().metadata_csum(),
        found: scan(&fs, false),
        bytes,
    }
}

/// Blocks that are committed to the journal and wiped where they belong: nothing reads them there.
const JOURNALED: std::ops::Range<u64> = 40..80;

/// Moves some blocks of metadata into the journal, in two transactions.
fn journal(image: &Image) {
    const BLOCK: u64 = 1024;
    let file = File::options().read(true).write(true).open(image.path());
    let file = file.expect("the image");
    let mut commands = vec!["jo".to_owned()];
    let parts = [40..60, 60..80].map(|blocks: std::ops::Range<u64>| {
        let copy = tempfile::NamedTempFile::new().expect("a temporary file");
        let mut bytes = vec![0; ((blocks.end - blocks.start) * BLOCK) as usize];
        file.read_exact_at(&mut bytes, blocks.start * BLOCK)
            .expect("blocks of the image");
        fs::write(copy.path(), bytes).expect("room");
        let numbers: Vec<String> = blocks.map(|block| block.to_string()).collect();
        let path = copy.path().display();
        commands.push(format!("jw -b {} {path}", numbers.join(",")));
        copy
    });
    commands.push("jc".to_owned());
    debugfs(image.path(), &commands);
    drop(parts);
    for block in JOURNALED {
        file.write_all_at(&[0xEE; BLOCK as usize], block * BLOCK)
            .expect("a block of the image");
    }
}

fn metadata_blocks(bytes: &[u8], block: usize) -> Vec<u64> {
    let is_metadata =
        |bytes: &[u8]| bytes.iter().any(|&b| b != 0) && bytes.iter().any(|&b| b != DATA);
    let blocks = bytes.chunks(block).enumerate();
    blocks
        .filter(|(_, bytes)| is_metadata(bytes))
        .map(|(number, _)| number as u64)
        .collect()
}

fn fill(root: &Path, long_xattr: bool) {
    let new_dir = |name: &str| {
        fs::create_dir(root.join(name)).expect("a new directory");
        root.join(name)
    };
    let indexed = new_dir("indexed");
    for at in 0..120 {
        File::create(indexed.join(format!("an entry with a rather long name, number {at}")))
            .expect("a new file");
    }
    let deep = new_dir("deep").join("a/b/c/d");
    fs::create_dir_all(&deep).expect("new directories");
    let file = |name: &str| File::create(deep.join(name)).expect("a new file");
    for len in [1, 100, 1024, 30_000] {
        file(&format!("len{len}"))
            .write_all_at(&vec![DATA; len], 0)
            .expect("room");
    }
    let sparse = file("sparse");
    for at in [0u64, 13, 300, 80_000, 300_000] {
        sparse.write_all_at(&[DATA; 4096], at * 4096).expect("room");
    }
    let links = new_dir("links");
    symlink("fast", links.join("fast")).expect("a new symlink");
    symlink("slow".repeat(40), links.join("slow")).expect("a new symlink");
    fs::hard_link(deep.join("len1"), links.join("hard")).expect("a hard link");
    for at in 0..6 {
        let path = links.join(format!("xattrs{at}"));
        fs::write(&path, [DATA; 10]).expect("a new file");
        let big = if at < 3 { 20 } else { 300 };
        let set = |name: &str, value: &[u8]| {
            let set = rustix::fs::setxattr(&path, name, value, rustix::fs::XattrFlags::empty());
            set.unwrap_or_else(|error| panic!("{} {name}: {error}", path.display()));
        };
        set("user.one", &vec![at; big]);
        set("user.two", b"value");
        if long_xattr {
            set("user.long", &[DATA; 3000]);
        }
    }
}

/// Adds a file in so many pieces that its map needs a block or more.
fn fragment(image: &Image) {
    let host = tempfile::NamedTempFile::new().expect("a temporary file");
    for at in 0..700u64 {
        host.as_file()
            .write_all_at(&[DATA; 1024], at * 8192)
            .expect("room");
    }
    debugfs(
        image.path(),
        &[format!("write {} fragmented", host.path().display())],
    );
}
