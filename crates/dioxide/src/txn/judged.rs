//! What has become of a block is judged before it is committed: each kind that can be judged alone keeps itself for that.

use super::orphan::ORPHAN_CREDITS;
use super::superblock;
use crate::{Fs, MountOptions, NewFile, OpenOptions, XattrMode};
use dioxide_format::extent::ExtentNode;
use dioxide_format::types::Pblk;
use dioxide_journal::{Edit, Error, Kind};
use dioxide_testkit::{Image, debugfs_query, e2fsck_consistent};
use std::time::Duration;

/// Says that it is of another kind, and looks at nothing. Who was to judge the block still is.
#[derive(Debug)]
struct Careless(&'static str);

impl Kind for Careless {
    fn name(&self) -> &'static str {
        self.0
    }

    fn verify(&self, _: Pblk, _: &[u8]) -> dioxide_format::Result<()> {
        Ok(())
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}
}

#[test]
fn superblock_that_was_spoilt_is_not_committed() {
    check("superblock", "extent", |fs, _| {
        let mut handle = fs.0.writer().expect("a writer").begin(1).expect("room");
        superblock::change(&fs.0, &mut handle, &mut |_| ()).expect("a sound superblock");
        handle.stop().expect("no commit yet");
        superblock::place(&fs.0).0
    });
}

#[test]
fn block_of_the_orphan_file_that_was_spoilt_is_not_committed() {
    check("orphan file block", "orphan_file", |fs, image| {
        let writer = fs.0.writer().expect("a writer");
        let inode = fs.0.lookup(b"/f", false).expect("it exists");
        let mut handle = writer.begin(ORPHAN_CREDITS).expect("room");
        let added = writer.orphans.add(&fs.0, &mut handle, &inode);
        added.expect("a free entry");
        handle.stop().expect("no commit yet");
        let blocks = debugfs_query(image.path(), "blocks <12>");
        let first = blocks.split_whitespace().next().expect("the orphan file");
        Pblk(first.parse().expect("a number"))
    });
}

#[test]
fn extent_node_that_was_spoilt_is_not_committed() {
    check("extent node", "extent", |fs, _| {
        write_blocks(fs, &[0, 2, 4, 6, 8, 10]);
        let root = ExtentNode::parse(&i_block(fs, "/f"), None).expect("a sound root");
        root.indices()[0].leaf
    });
}

#[test]
fn indirect_block_that_was_spoilt_is_not_committed() {
    check("indirect block", "^extent", |fs, _| {
        write_blocks(fs, &[12]);
        let pointer = i_block(fs, "/f")[48..52].try_into().expect("four bytes");
        Pblk(u32::from_le_bytes(pointer).into())
    });
}

#[test]
fn directory_block_that_was_spoilt_is_not_committed() {
    check("directory block", "extent", |fs, _| {
        fs.create_dir("/d", &NewFile::new(0o755)).expect("room");
        let root = ExtentNode::parse(&i_block(fs, "/"), None).expect("a sound root");
        root.extents()[0].pblk
    });
}

#[test]
fn xattr_block_that_was_spoilt_is_not_committed() {
    check("xattr block", "extent", |fs, _| {
        let set = fs.set_xattr("/f", "user.large", &[7; 600], XattrMode::Set);
        set.expect("room");
        let inode = fs.0.lookup(b"/f", false).expect("it exists");
        let block = inode.node().disk.file_acl();
        block.expect("more than the inode has room for")
    });
}

fn write_blocks(fs: &Fs, lblks: &[u64]) {
    let file = OpenOptions::new().write(true).open(fs, "/f");
    let file = file.expect("it exists");
    for lblk in lblks {
        file.write_at(&[7; 4096], lblk * 4096).expect("room");
    }
}

fn i_block(fs: &Fs, path: &str) -> [u8; 60] {
    let inode = fs.0.lookup(path.as_bytes(), false).expect("it exists");
    *inode.node().disk.i_block()
}

fn options() -> MountOptions {
    MountOptions::new().commit_interval(Duration::from_secs(3600))
}

/// `change` changes a block of this kind, of a file system with a file `/f` and these features, and tells which.
fn check(kind: &'static str, features: &str, change: fn(&Fs, &Image) -> Pblk) {
    for checksums in ["metadata_csum", "^metadata_csum"] {
        let features = format!("^64bit,{features},{checksums}");
        let image = Image::builder().size(16 << 20).features(&features).build();
        let fs = Fs::open(image.path(), &options()).expect("it opens");
        let new = OpenOptions::new().write(true).create(true);
        drop(new.open(&fs, "/f").expect("room"));
        let block = change(&fs, &image);
        let writer = fs.0.writer().expect("a writer");
        let mut handle = writer.begin(1).expect("room");
        let spoil = &mut |bytes: &mut [u8]| {
            bytes.fill(0xFF);
            Ok(())
        };
        let spoilt = handle.modify(block, &Careless(kind), spoil);
        spoilt.expect("nobody has looked at it yet");
        handle.stop().expect("no commit yet");
        match writer.journal.force_commit() {
            Err(Error::Damaged {
                kind: found,
                block: at,
                ..
            }) => assert_eq!((found, at), (kind, block.0), "{checksums}"),
            other => panic!("{checksums}: {other:?}"),
        }
        drop(fs);
        let fs = Fs::open(image.path(), &options()).expect("it opens");
        assert_eq!(fs.read_only(), None, "{checksums}");
        fs.close().expect("a clean end");
        // The failure is recorded.
        e2fsck_consistent(image.path());
    }
}
