//! Directories: listing them, and finding a name in one.
//!
//! Invariants: a directory has no more blocks than the file system, so that no walk over one is
//! longer than the image; one block is held at a time; every block is checked each time it is
//! used.
//!
//! A name is looked up through the hash index where there is one. An index that makes no sense is
//! passed over, as Linux does: the names are in the blocks, whatever the index says. A block whose
//! checksum is wrong is an error either way.

use super::symlink::system_data;
use crate::inode::Inode;
use crate::map::{self, MapKind};
use crate::mount::Mount;
use crate::{DirEntry, Error, FileType, Place, Result};
use dioxide_format::dir;
use dioxide_format::features::Compat;
use dioxide_format::htree::{self, DxEntries, DxNode, DxRoot};
use dioxide_format::inline_data::InlineDir;
use dioxide_format::inode::InodeFlags;
use dioxide_format::types::{Ino, Lblk, Pblk};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Called for each entry that names an inode; says whether to go on.
pub(crate) type Visitor<'a> = dyn FnMut(&dir::DirEntry<'_>) -> ControlFlow<()> + 'a;

/// A block of a directory, and where it came from.
pub(super) struct Block {
    pub(super) pblk: Pblk,
    pub(super) bytes: Arc<[u8]>,
}

impl Mount {
    /// The entries of a directory, in disk order, `.` and `..` included. `path` is for errors.
    /// Blocks on metadata.
    ///
    /// # Errors
    /// [`Error::NotADirectory`]; damage.
    pub(crate) fn read_dir(&self, dir: &Arc<Inode>, path: &[u8]) -> Result<Vec<DirEntry>> {
        if dir.file_type() != FileType::Directory {
            return Err(Error::NotADirectory(
                String::from_utf8_lossy(path).into_owned(),
            ));
        }
        let mut entries = Vec::new();
        self.for_each_entry(dir, &mut |entry| {
            entries.push(DirEntry {
                ino: entry.ino,
                name: entry.name.to_vec(),
                file_type: entry.file_type.into(),
            });
            ControlFlow::Continue(())
        })?;
        Ok(entries)
    }

    /// Calls `visit` for the entries of a directory, in disk order, holding one block at a time.
    /// Blocks on metadata.
    ///
    /// # Errors
    /// Damage, after the entries before it were visited.
    pub(crate) fn for_each_entry(&self, dir: &Inode, visit: &mut Visitor<'_>) -> Result<()> {
        if dir.has_inline_data() {
            return self.for_each_inline(dir, visit);
        }
        for lblk in 0..self.dir_blocks(dir)? {
            let block = self.dir_block(dir, Lblk(lblk))?;
            if self.scan(dir, &block, visit)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The inode that `name` stands for in a directory; `.` and `..` as the disk has them. Blocks
    /// on metadata.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn find_entry(&self, dir: &Inode, name: &[u8]) -> Result<Option<Ino>> {
        if self.is_indexed(dir) {
            match self.find_by_index(dir, name) {
                Err(error) if index_makes_no_sense(&error) => {
                    tracing::warn!(ino = dir.ino.0, %error, "directory is searched without its index");
                }
                found => return found,
            }
        }
        let mut found = None;
        self.for_each_entry(dir, &mut |entry| note_if_named(entry, name, &mut found))?;
        Ok(found)
    }

    pub(super) fn is_indexed(&self, dir: &Inode) -> bool {
        self.sb.features().compat.contains(Compat::DIR_INDEX)
            && dir.flags().contains(InodeFlags::INDEX)
            && !dir.has_inline_data()
    }

    fn for_each_inline(&self, dir: &Inode, visit: &mut Visitor<'_>) -> Result<()> {
        let format = |error| Error::format(error, dir.place());
        let node = dir.node();
        let data = system_data(&node, dir)?;
        let inline = InlineDir::parse(&node.disk, data, &self.dir_format).map_err(format)?;
        for (name, ino) in [(&b"."[..], dir.ino), (b"..", inline.parent)] {
            let entry = dir::DirEntry {
                offset: 0,
                rec_len: dir::min_rec_len(name.len()),
                ino,
                file_type: self
                    .dir_format
                    .filetype
                    .then_some(dioxide_format::inode::FileType::Directory),
                type_byte: 0,
                name,
            };
            if visit(&entry).is_break() {
                return Ok(());
            }
        }
        for entry in inline.entries(&self.dir_format) {
            if visit(&entry.map_err(format)?).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// How many blocks a directory has.
    pub(super) fn dir_blocks(&self, dir: &Inode) -> Result<u32> {
        let (size, block) = (dir.i_size(), self.block_bytes());
        let most = self.sb.blocks_count().min(u64::from(u32::MAX));
        let blocks = size / block;
        if size.is_multiple_of(block) && (1..=most).contains(&blocks) {
            // At most `most`, which fits.
            return Ok(blocks as u32);
        }
        Err(dir.corrupt(
            "directory",
            format!("i_size is {size}, expected 1 to {most} whole blocks of {block}"),
        ))
    }

    /// A block of a directory, its checksum verified.
    pub(super) fn dir_block(&self, dir: &Inode, lblk: Lblk) -> Result<Block> {
        let mapping = map::load::lookup_or_load(self, dir, lblk, 1)?;
        if mapping.kind != MapKind::Mapped {
            return Err(dir.corrupt(
                "directory",
                format!("its block {lblk} is not there ({:?})", mapping.kind),
            ));
        }
        let block = Block {
            pblk: mapping.pblk,
            bytes: self.read_meta(mapping.pblk)?,
        };
        self.verify_dir_block(dir, lblk, &block)?;
        Ok(block)
    }

    fn verify_dir_block(&self, dir: &Inode, lblk: Lblk, block: &Block) -> Result<()> {
        let Some(seed) = self.checksum_seed() else {
            return Ok(());
        };
        let seed = dir.node().disk.seed(seed, dir.ino);
        let is_index =
            self.is_indexed(dir) && htree::is_index_block(&block.bytes, lblk, &self.dir_format);
        let verified = if is_index {
            htree::verify_checksum(&block.bytes, &self.dir_format, seed)
        } else {
            dir::verify_checksum(&block.bytes, seed)
        };
        verified.map_err(|error| Error::format(error, block.place(dir)))
    }

    fn scan(&self, dir: &Inode, block: &Block, visit: &mut Visitor<'_>) -> Result<ControlFlow<()>> {
        for entry in dir::entries(&block.bytes, &self.dir_format) {
            let entry = entry.map_err(|error| Error::format(error, block.place(dir)))?;
            if visit(&entry).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn find_by_index(&self, dir: &Inode, name: &[u8]) -> Result<Option<Ino>> {
        let mut descent = Descent::start(self, dir, name)?;
        while let Some(leaf) = descent.leaf()? {
            let block = self.dir_block(dir, leaf)?;
            let mut found = None;
            let flow = self.scan(dir, &block, &mut |entry| {
                note_if_named(entry, name, &mut found)
            })?;
            if flow.is_break() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

fn note_if_named(
    entry: &dir::DirEntry<'_>,
    name: &[u8],
    found: &mut Option<Ino>,
) -> ControlFlow<()> {
    if entry.name != name {
        return ControlFlow::Continue(());
    }
    *found = Some(entry.ino);
    ControlFlow::Break(())
}

fn index_makes_no_sense(error: &Error) -> bool {
    match error {
        Error::Corrupt { structure, .. } => structure.starts_with("htree"),
        Error::Unsupported(_) => true,
        _ => false,
    }
}

impl Block {
    pub(super) fn place(&self, dir: &Inode) -> Place {
        Place::block(self.pblk.0).in_inode(dir.ino)
    }
}

/// The way through the index to the blocks where a name may be. There are several when names share
/// its hash.
pub(super) struct Descent<'a> {
    mount: &'a Mount,
    dir: &'a Inode,
    dir_blocks: u32,
    major: u32,
    /// The index blocks on the way, root first, and the entry that was followed in each.
    frames: Vec<(DxEntries, usize)>,
    /// How many leaves may still be visited: a directory has no more than it has blocks.
    budget: u32,
    started: bool,
}

impl<'a> Descent<'a> {
    pub(super) fn start(mount: &'a Mount, dir: &'a Inode, name: &[u8]) -> Result<Descent<'a>> {
        let dir_blocks = mount.dir_blocks(dir)?;
        let block = mount.dir_block(dir, Lblk(0))?;
        let format = |error| Error::format(error, block.place(dir));
        let root = DxRoot::parse(&block.bytes, &mount.dir_format).map_err(format)?;
        root.entries.validate(dir_blocks).map_err(format)?;
        let version = root
            .hash_version(mount.sb.hash_is_unsigned())
            .map_err(format)?;
        let major = htree::hash(name, version, mount.sb.hash_seed()).major;
        let levels = usize::from(root.indirect_levels());
        let at = root.entries.search(major);
        let frames = vec![(root.entries, at)];
        let mut descent = Descent {
            mount,
            dir,
            dir_blocks,
            major,
            frames,
            budget: dir_blocks,
            started: false,
        };
        descent.descend(levels, |entries| entries.search(major))?;
        Ok(descent)
    }

    /// Goes `levels` index blocks further down, to the entry that `choose` picks in each.
    fn descend(&mut self, levels: usize, choose: impl Fn(&DxEntries) -> usize) -> Result<()> {
        for _ in 0..levels {
            let block = self.mount.dir_block(self.dir, self.followed())?;
            let format = |error| Error::format(error, block.place(self.dir));
            let entries = DxNode::parse(&block.bytes, &self.mount.dir_format)
                .map_err(format)?
                .entries;
            entries.validate(self.dir_blocks).map_err(format)?;
            let at = choose(&entries);
            self.frames.push((entries, at));
        }
        Ok(())
    }

    /// The block that the lowest frame leads to.
    fn followed(&self) -> Lblk {
        let (entries, at) = self.frames.last().expect("the root is always there");
        entries.as_slice()[*at].block()
    }

    /// The next block where the name may be, if there is one.
    pub(super) fn leaf(&mut self) -> Result<Option<Lblk>> {
        if self.started && !self.advance()? {
            return Ok(None);
        }
        self.started = true;
        let left = self.budget.checked_sub(1);
        self.budget = left.ok_or_else(|| {
            self.dir.corrupt(
                "htree node",
                "the index leads to more blocks than the directory has".into(),
            )
        })?;
        Ok(Some(self.followed()))
    }

    /// Goes on to the next leaf, if names of the same hash go on there.
    fn advance(&mut self) -> Result<bool> {
        let depth = self.frames.len();
        let lowest = self
            .frames
            .iter()
            .rposition(|(entries, at)| at + 1 < entries.as_slice().len());
        let Some(lowest) = lowest else {
            return Ok(false);
        };
        let (entries, at) = &mut self.frames[lowest];
        if !entries.continues_after(*at, self.major) {
            return Ok(false);
        }
        *at += 1;
        self.frames.truncate(lowest + 1);
        self.descend(depth - lowest - 1, |_| 0)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use dioxide_testkit::{Image, debugfs};
    use std::os::unix::fs::FileExt;
    use std::process::Command;

    const NAMES: u32 = 700;

    fn name(at: u32) -> String {
        format!("{at} {}", "é".repeat(at as usize % 40))
    }

    /// An image whose directory `/d` has an index, made by e2fsck.
    fn indexed(features: &str, hash: &str, flags: &str) -> Image {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("d")).expect("a new directory");
        for at in 0..NAMES {
            std::fs::File::create(folder.path().join("d").join(name(at))).expect("a new file");
        }
        let image = Image::builder()
            .size(16 << 20)
            .block_size(1024)
            .features(features);
        let image = image.source(folder.path()).build();
        debugfs(
            image.path(),
            &[
                format!("ssv def_hash_version {hash}"),
                format!("ssv flags {flags}"),
            ],
        );
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
        image
    }

    fn open(image: &Image) -> Arc<Mount> {
        let options = dioxide_block::file::FileOptions {
            write: false,
            ..Default::default()
        };
        let device = dioxide_block::file::open(image.path(), &options).expect("it opens");
        Mount::open(device, &MountOptions::new()).expect("it opens")
    }

    #[test]
    fn index_of_every_hash_finds_every_name_and_no_other() {
        for hash in ["legacy", "half_md4", "tea"] {
            for flags in ["1", "2"] {
                let mount = open(&indexed("metadata_csum", hash, flags));
                let dir = mount.lookup(b"/d", true).expect("it is there");
                assert!(mount.is_indexed(&dir));
                for at in 0..NAMES {
                    let found = mount
                        .find_by_index(&dir, name(at).as_bytes())
                        .expect("the index is intact");
                    assert!(found.is_some(), "{hash} {flags}: {at}");
                }
                assert_eq!(
                    mount
                        .find_by_index(&dir, b"absent")
                        .expect("the index is intact"),
                    None
                );
            }
        }
    }

    /// Where block 0 of `/d` lies.
    fn root_of_index(mount: &Mount) -> u64 {
        let dir = mount.lookup(b"/d", true).expect("it is there");
        let mapping = map::load::lookup_or_load(mount, &dir, Lblk(0), 1).expect("it is mapped");
        mapping.pblk.0 << mount.block_bits
    }

    #[test]
    fn index_that_makes_no_sense_is_passed_over() {
        for (at, byte) in [(0x1C, 9), (0x1D, 7), (0x1E, 3), (0x20, 1), (0x24, 0)] {
            let image = indexed("^metadata_csum", "half_md4", "1");
            let root = root_of_index(&open(&image));
            let file = std::fs::File::options()
                .write(true)
                .open(image.path())
                .expect("the image");
            file.write_all_at(&[byte], root + at).expect("a write");
            let mount = open(&image);
            let dir = mount.lookup(b"/d", true).expect("it is there");
            let error = mount
                .find_by_index(&dir, b"absent")
                .expect_err("the index is damaged");
            assert!(index_makes_no_sense(&error), "{error}");
            for number in [0, NAMES - 1] {
                assert!(
                    mount
                        .find_entry(&dir, name(number).as_bytes())
                        .expect("the names are intact")
                        .is_some()
                );
            }
        }
    }

    #[test]
    fn index_block_with_wrong_checksum_is_an_error() {
        let image = indexed("metadata_csum", "half_md4", "1");
        let root = root_of_index(&open(&image));
        let file = std::fs::File::options()
            .write(true)
            .open(image.path())
            .expect("the image");
        file.write_all_at(&[9], root + 0x1C).expect("a write");
        let mount = open(&image);
        let dir = mount.lookup(b"/d", true).expect("it is there");
        let error = mount
            .find_entry(&dir, name(0).as_bytes())
            .expect_err("the checksum is wrong");
        assert_eq!(error.errno(), libc::EBADMSG, "{error}");
    }

    #[test]
    fn lookups_at_the_same_time_get_the_same_inode() {
        let mount = open(&indexed("metadata_csum", "half_md4", "1"));
        for at in 0..50 {
            let path = format!("/d/{}", name(at));
            let look = || mount.lookup(path.as_bytes(), true).expect("it is there");
            let (one, two) = std::thread::scope(|scope| {
                let other = scope.spawn(look);
                (look(), other.join().expect("no panic"))
            });
            assert!(Arc::ptr_eq(&one, &two));
        }
    }

    #[test]
    fn inodes_that_nobody_holds_are_forgotten() {
        let mount = open(&indexed("metadata_csum", "half_md4", "1"));
        for at in 0..NAMES {
            mount
                .lookup(format!("/d/{}", name(at)).as_bytes(), true)
                .expect("it is there");
        }
        assert!(
            mount.inodes.len() <= 16 * 65,
            "{} are remembered",
            mount.inodes.len()
        );
        let ids: Vec<u64> = (0..2)
            .map(|_| {
                let path = format!("/d/{}", name(0));
                mount
                    .lookup(path.as_bytes(), true)
                    .expect("it is there")
                    .in_flight
                    .id()
            })
            .collect();
        assert_ne!(ids[0], ids[1], "a dropped inode's id is not used again");
    }
}
