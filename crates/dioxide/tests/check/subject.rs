//! Images to damage, and the two that judge them.

use dioxide::check::{CheckOptions, Code, Report, check_path};
use dioxide::format::group_desc::GroupDesc;
use dioxide::format::inode::Inode;
use dioxide::format::superblock::SuperBlock;
use dioxide::format::types::{Group, Ino};
use dioxide_testkit::{Image, ImageBuilder, debugfs, debugfs_query, shape};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

/// An image with a tree in it.
pub struct Subject {
    pub image: Image,
    pub sb: SuperBlock,
}

/// What dioxide finds.
pub fn report(image: &Path) -> Report {
    check_path(image, &CheckOptions::default(), &mut |_| {}).expect("a check")
}

/// The codes of errors that dioxide finds, in order.
pub fn codes(report: &Report) -> Vec<Code> {
    report.findings.iter().map(|finding| finding.code).collect()
}

/// What `e2fsck -fn` finds: its exit status and words.
pub fn e2fsck(image: &Path) -> (i32, String) {
    e2fsprogs("e2fsck", &["-fn"], image)
}

/// What one of its programs makes of an image: exit status and words.
pub fn e2fsprogs(tool: &str, args: &[&str], image: &Path) -> (i32, String) {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(tool)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .env("LC_ALL", "C")
        .args(args)
        .arg(image)
        .output()
        .expect("e2fsprogs is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code().unwrap_or(-1), text)
}

/// A tree with files of all kinds.
fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("dir/sub")).expect("directories");
    fs::create_dir_all(at("big/sub")).expect("directories");
    for number in 0..500 {
        let name = format!("big/an-entry-with-a-name-of-some-length-{number:04}");
        File::create(at(&name)).expect("a file");
    }
    fs::write(at("file"), vec![7; 100_000]).expect("a file");
    fs::write(at("other"), vec![8; 30_000]).expect("a file");
    fs::write(at("dir/leaf"), "leaf").expect("a file");
    fs::write(at("tiny"), "tiny").expect("a file");
    symlink("target", at("fast")).expect("a link");
    symlink("t".repeat(200), at("slow")).expect("a link");
    dir
}

impl Subject {
    /// An image of a tree, with an index in its large directory, a pipe and attributes.
    pub fn new(builder: ImageBuilder) -> Subject {
        let tree = tree();
        let image = builder.source(tree.path()).build();
        let long = "v".repeat(300);
        let requests = [
            "mknod pipe p".to_owned(),
            "ea_set tiny user.small hello".to_owned(),
            format!("ea_set other user.long {long}"),
        ];
        debugfs(image.path(), &requests);
        // Makes indexes; e2fsck says with 1 that it changed something.
        let (status, text) = e2fsprogs("e2fsck", &["-fyD"], image.path());
        assert!(status <= 1, "{text}");
        let sb = read_superblock(image.path());
        Subject { image, sb }
    }

    pub fn path(&self) -> &Path {
        self.image.path()
    }

    /// Runs a debugfs request that writes.
    pub fn debugfs(&self, request: &str) {
        debugfs(self.path(), &[request]);
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let file = File::open(self.path()).expect("the image");
        file.read_exact_at(&mut bytes, at).expect("bytes");
        bytes
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        let file = File::options().write(true).open(self.path());
        file.expect("the image")
            .write_all_at(bytes, at)
            .expect("a write");
    }

    /// Flips bits of one byte.
    pub fn flip(&self, at: u64) {
        let byte = self.read(at, 1)[0];
        self.write(at, &[byte ^ 0x55]);
    }

    pub fn block_bytes(&self) -> u64 {
        self.sb.block_size().into()
    }

    /// Where a block begins.
    pub fn at_block(&self, block: u64) -> u64 {
        block * self.block_bytes()
    }

    /// Changes a block.
    pub fn edit_block(&self, block: u64, edit: impl FnOnce(&mut [u8])) {
        let mut bytes = self.read(self.at_block(block), self.block_bytes() as usize);
        edit(&mut bytes);
        self.write(self.at_block(block), &bytes);
    }

    pub fn desc(&self, group: u32) -> GroupDesc {
        let size = self.sb.desc_size();
        let at = self.at_block(self.sb.descriptor_block(0).0) + u64::from(group) * size as u64;
        GroupDesc::parse(&self.read(at, size), size).expect("a descriptor")
    }

    /// The number of a file.
    pub fn ino(&self, path: &str) -> Ino {
        let text = debugfs_query(self.path(), &format!("stat {path}"));
        let number = text.trim_start().strip_prefix("Inode: ");
        let number = number.and_then(|rest| rest.split_whitespace().next());
        Ino(number.and_then(|word| word.parse().ok()).expect("Inode: …"))
    }

    /// Where an inode begins.
    pub fn at_inode(&self, ino: Ino) -> u64 {
        let (Group(group), index) = self.sb.inode_location(ino).expect("an inode");
        let table = self.desc(group).inode_table().0;
        self.at_block(table) + u64::from(index) * self.sb.inode_size() as u64
    }

    /// Changes the bytes of an inode and makes its checksum right.
    pub fn edit_inode(&self, ino: Ino, edit: impl FnOnce(&mut [u8])) {
        let (at, size) = (self.at_inode(ino), self.sb.inode_size());
        let mut raw = self.read(at, size);
        edit(&mut raw);
        let mut inode = Inode::parse(&raw, size).expect("an inode");
        if self.sb.features().metadata_csum() {
            inode.update_checksum(self.sb.checksum_seed(), ino);
        }
        self.write(at, &inode.encode());
    }

    /// The blocks of a file, those of its map included.
    pub fn blocks(&self, path: &str) -> Vec<u64> {
        let text = debugfs_query(self.path(), &format!("blocks {path}"));
        let numbers = text.split_whitespace();
        numbers
            .map(|number| number.parse().expect("a block"))
            .collect()
    }

    /// Where the entry with a name begins, in a directory.
    pub fn entry(&self, dir: &str, name: &str) -> u64 {
        for block in self.blocks(dir) {
            let bytes = self.read(self.at_block(block), self.block_bytes() as usize);
            let found = bytes
                .windows(name.len())
                .position(|window| window == name.as_bytes());
            if let Some(at) = found {
                return self.at_block(block) + at as u64 - 8;
            }
        }
        panic!("no {name} in {dir}");
    }
}

pub fn read_superblock(image: &Path) -> SuperBlock {
    let mut bytes = [0; 1024];
    let file = File::open(image).expect("the image");
    file.read_exact_at(&mut bytes, 1024).expect("a superblock");
    SuperBlock::parse(&bytes).expect("1024 bytes")
}

/// With checksums, extents and a journal; blocks of 1 KiB.
pub fn modern() -> Subject {
    Subject::new(Image::builder().size(24 << 20).block_size(1024))
}

/// Without checksums, extents and journal: bytes may be changed as one likes.
pub fn plain() -> Subject {
    let builder = Image::builder().fs_type("ext2").size(24 << 20);
    Subject::new(builder.block_size(1024))
}

/// Without checksums, with extents, and a file whose tree has a block of its own.
pub fn unsummed() -> Subject {
    let features = "^metadata_csum,^uninit_bg,^has_journal,^64bit";
    let builder = Image::builder().size(24 << 20).block_size(1024);
    let subject = Subject::new(builder.features(features));
    shape::fragmented(&subject.image, "pieces", 40, 3);
    subject
}
