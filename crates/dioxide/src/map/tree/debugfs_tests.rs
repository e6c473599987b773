//! Trees in images of mke2fs, read by debugfs and by the kernel. Block bitmaps know nothing of
//! them, and so e2fsck is not asked.

use super::testing::{Memory, Pool};
use super::*;
use dioxide_format::extent::LBLK_END;
use dioxide_format::inode::Inode;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::Ino;
use dioxide_testkit::{Image, Mount, debugfs, debugfs_query, have_root, leaf_extents};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

const INO: Ino = Ino(12);
const SIZE: u64 = 128 << 20;
/// Behind all metadata: there are few inodes, and no backups of the superblock.
const DATA: u64 = 4000;

/// An image with a file of one block, to be given another tree.
struct Victim {
    image: Image,
    file: File,
    sb: SuperBlock,
    inode: Inode,
    inode_at: u64,
}

impl Victim {
    fn new(block_bytes: u32, features: &str) -> Victim {
        let image = Image::builder()
            .size(SIZE)
            .block_size(block_bytes)
            .features(&format!(
                "sparse_super2,^resize_inode,^has_journal,{features}"
            ))
            .extended("num_backup_sb=0")
            .args(&["-N", "64", "-G", "1024"])
            .build();
        let source = tempfile::NamedTempFile::new().expect("temporary file");
        fs::write(source.path(), "one block").expect("temporary file");
        debugfs(
            image.path(),
            &[format!("write {} f", source.path().display())],
        );
        let file = File::options()
            .read(true)
            .write(true)
            .open(image.path())
            .expect("image");
        let sb = SuperBlock::parse(&read(&file, 1024, 1024)).expect("superblock");
        let inode_at = inode_offset(&image, block_bytes);
        let size = sb.inode_size();
        let inode = Inode::parse(&read(&file, inode_at, size), size).expect("inode");
        Victim {
            image,
            file,
            sb,
            inode,
            inode_at,
        }
    }

    fn owner(&self, block_bytes: u64) -> Owner {
        let csum = self.sb.features().metadata_csum();
        Owner {
            ino: INO,
            seed: csum.then(|| self.inode.seed(self.sb.checksum_seed(), INO)),
            physical: 1..SIZE / block_bytes,
            cluster_ratio: 1,
        }
    }

    /// Writes the tree and the inode, and into each block of data its place in the file.
    fn write(&mut self, root: &[u8; I_BLOCK_BYTES], edit: &Memory, extents: &[Extent]) {
        let block_bytes = edit.block_bytes() as u64;
        for (block, bytes) in edit.blocks.iter().filter(|(block, _)| **block < 1 << 48) {
            self.file
                .write_all_at(bytes, block * block_bytes)
                .expect("image");
        }
        for extent in extents {
            for step in 0..u64::from(extent.len) {
                let number = (u64::from(extent.lblk.0) + step + 1).to_le_bytes();
                let at = (extent.pblk.0 + step) * block_bytes;
                self.file.write_all_at(&number, at).expect("image");
            }
        }
        let end = extents.last().map_or(0, Extent::end);
        let disk = self.inode.disk_mut();
        disk.i_block = *root;
        disk.i_size_lo = (end * block_bytes) as u32;
        if self.sb.features().metadata_csum() {
            self.inode.update_checksum(self.sb.checksum_seed(), INO);
        }
        self.file
            .write_all_at(&self.inode.encode(), self.inode_at)
            .expect("image");
        self.file.sync_all().expect("image");
    }

    /// The kernel reads numbers where blocks are written, and else zeros.
    fn check_with_kernel(&self, block_bytes: usize, extents: &[Extent]) {
        if !have_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let mount = Mount::ext4(self.image.path(), "ro");
        let content = fs::read(mount.path().join("f")).expect("the kernel accepts the tree");
        mount.unmount();
        let mut expected = vec![0u64; content.len() / block_bytes];
        for extent in extents.iter().filter(|e| !e.unwritten) {
            for at in u64::from(extent.lblk.0)..extent.end() {
                expected[at as usize] = at + 1;
            }
        }
        for (block, expected) in content.chunks(block_bytes).zip(expected) {
            let (number, rest) = block.split_at(8);
            assert_eq!(number, expected.to_le_bytes());
            assert!(rest.iter().all(|byte| *byte == 0));
        }
    }
}

fn read(file: &File, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).expect("image");
    bytes
}

/// From `located at block 37, offset 0x0b00`.
fn inode_offset(image: &Image, block_bytes: u32) -> u64 {
    let text = debugfs_query(image.path(), &format!("imap <{INO}>"));
    let (_, place) = text.split_once("block ").expect("a group");
    let (_, place) = place.split_once("block ").expect("a block");
    let (block, offset) = place.split_once(", offset 0x").expect("an offset");
    let block: u64 = block.parse().expect("a number");
    let offset = u64::from_str_radix(offset.trim(), 16).expect("a number");
    block * u64::from(block_bytes) + offset
}

/// Builds a tree of `count` extents back to front, so that nodes are half full, then changes it here
/// and there; debugfs and the kernel must see what we see.
fn build_and_check(block_bytes: u32, features: &str, count: u32, depth: u16) {
    let mut victim = Victim::new(block_bytes, features);
    let owner = victim.owner(block_bytes.into());
    let mut edit = Memory::new(block_bytes as usize);
    let mut pool = Pool::new(&owner, 1);
    let mut root = Tree::empty_root();
    let mut tree = Tree::new(&owner, &mut root);
    pool.data(DATA, 1);
    for at in (0..count).rev() {
        let len = 1 + at % 3;
        let extent = Extent {
            lblk: Lblk(at * 4),
            len: len as u16,
            pblk: pool.data(at as u64 % 2, len.into()),
            unwritten: at % 5 == 0,
        };
        tree.insert(&mut edit, &mut pool, extent).expect("space");
    }
    let blocks = u64::from(count) * 4;
    let all = u32::MAX;
    tree.remove_some(&mut edit, &mut pool, blocks / 3..blocks / 3 + 9, all)
        .expect("space");
    for (range, to) in [
        (1..blocks / 4, State::Written),
        (blocks / 2..blocks - 5, State::Unwritten),
    ] {
        tree.convert_some(&mut edit, &mut pool, range, to, all)
            .expect("space");
    }
    for (start, delta) in [(blocks / 2, 7), (blocks / 2 + 7, -6)] {
        tree.shift_some(&mut edit, &mut pool, start..LBLK_END, delta, all)
            .expect("space");
    }
    let mut extents = Vec::new();
    tree.for_each(&edit, 0..LBLK_END, &mut |e| {
        extents.push(e);
        Ok(())
    })
    .expect("whole");
    assert_eq!(Tree::depth_of(&root), depth);

    victim.write(&root, &edit, &extents);
    let seen = leaf_extents(victim.image.path(), &format!("<{INO}>"));
    let ours = extents.iter().map(|e| dioxide_testkit::Extent {
        logical: e.lblk.0.into(),
        physical: e.pblk.0,
        len: e.len.into(),
        unwritten: e.unwritten,
    });
    assert!(seen.into_iter().eq(ours));
    let stat = debugfs_query(victim.image.path(), &format!("stat <{INO}>"));
    assert!(stat.contains("EXTENTS"), "{stat}");
    victim.check_with_kernel(block_bytes as usize, &extents);
}

#[test]
fn root_alone_is_what_debugfs_and_the_kernel_read() {
    build_and_check(4096, "metadata_csum", 3, 0);
}

#[test]
fn tree_of_depth_1_is_what_debugfs_and_the_kernel_read() {
    build_and_check(4096, "metadata_csum", 500, 1);
    build_and_check(1024, "^metadata_csum", 100, 1);
}

#[test]
fn tree_of_depth_2_is_what_debugfs_and_the_kernel_read() {
    build_and_check(4096, "^metadata_csum", 1500, 2);
    build_and_check(1024, "metadata_csum", 1500, 2);
}

#[test]
fn tree_of_depth_3_is_what_debugfs_and_the_kernel_read() {
    build_and_check(1024, "metadata_csum", 12_000, 3);
    build_and_check(1024, "^metadata_csum", 12_000, 3);
}
