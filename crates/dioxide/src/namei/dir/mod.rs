//! Directories: listing them, and finding a name in one.
//!
//! | Module | Holds |
//! |---|---|
//! | [`block`] | the blocks: reading each as what it is |
//! | [`index`] | the way through the index |
//! | [`cookie`] | listing from a place on, while names come and go |
//! | [`inline`] | directories that lie in their inode |
//!
//! Not for: changing them ([`super::edit`]).
//!
//! Invariants: a directory has no more blocks than the file system, so that no walk over one is
//! longer than the image; one block is held at a time.
//!
//! A name is looked up through the hash index where there is one. An index that makes no sense is
//! passed over, as Linux does: the names are in the blocks, whatever the index says. A block whose
//! checksum is wrong is an error either way.

pub(super) mod block;
mod cookie;
pub(super) mod index;
pub(super) mod inline;

use super::create::check_lives;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::{DirEntry, Error, FileType, Result};
use block::{Block, Blocks, Room, Sought};
use dioxide_format::dir::{self, Search};
use dioxide_format::features::Compat;
use dioxide_format::inode::InodeFlags;
use dioxide_format::types::{Ino, Lblk};
use index::Descent;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Called for each entry that names an inode; says whether to go on.
pub(crate) type Visitor<'a> = dyn FnMut(&dir::DirEntry<'_>) -> ControlFlow<()> + 'a;

/// `.` or `..`, which lie in the first block and have no hash.
fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
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
        let _names = dir.names.read();
        // It may have been removed since it was found, and its blocks be others' by now.
        check_lives(dir)?;
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
    /// As [`Mount::check_names`]; damage, after the entries of the blocks before were visited.
    pub(crate) fn for_each_entry(&self, dir: &Inode, visit: &mut Visitor<'_>) -> Result<()> {
        self.check_names(dir)?;
        if dir.has_inline_data() {
            return self.for_each_inline(dir, &dir.node(), visit);
        }
        let blocks = Blocks::new(self, dir)?;
        let mut met = HashSet::new();
        for lblk in 0..blocks.count {
            let block = blocks.read(Lblk(lblk), blocks.role_in_walk(lblk))?;
            // A list of the names would otherwise be longer than the image lets it be.
            if blocks.count > 1 && !met.insert(block.pblk) {
                let what = format!("it has block {} in two places", block.pblk);
                return Err(dir.corrupt("directory", what));
            }
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
    /// As [`Mount::check_names`]; damage.
    pub(crate) fn find_entry(&self, dir: &Inode, name: &[u8]) -> Result<Option<Ino>> {
        Ok(self.find_entry_or_room(dir, name)?.ok())
    }

    /// As [`Mount::find_entry`]; where a name that is not there goes, if that was seen.
    pub(super) fn find_entry_or_room(
        &self,
        dir: &Inode,
        name: &[u8],
    ) -> Result<std::result::Result<Ino, Option<Room>>> {
        if !is_dot(name) {
            self.check_names(dir)?;
        }
        if dir.has_inline_data() {
            // Of one moment: `..` is looked for beside changes, and the inode may lead to a block by now.
            let node = dir.node();
            if node.disk.has_inline_data() {
                return Ok(self.find_inline(dir, &node, name)?.ok_or(None));
            }
        }
        Ok(match self.find_in_blocks(dir, name)? {
            Sought::There(_, found) => Ok(found.ino),
            Sought::Absent(room) => Err(room),
        })
    }

    /// Whether the names in a directory are what they are on the disk.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for encrypted ones.
    pub(super) fn check_names(&self, dir: &Inode) -> Result<()> {
        const SPECIAL: u32 = InodeFlags::ENCRYPT.0 | InodeFlags::CASEFOLD.0;
        if dir.flags().0 & SPECIAL == 0 {
            return Ok(());
        }
        dir::ensure_plain_names(&dir.node().disk).map_err(|error| {
            let ino = dir.ino;
            Error::Unsupported(format!(
                "names in directory {ino}: {error}; Linux has them, with the key"
            ))
        })
    }

    /// Whether a directory has no names but `.` and `..`. Blocks on metadata; looks at every block of
    /// one that was large.
    ///
    /// # Errors
    /// Damage, and more than one `.` or `..`: they are other files.
    pub(crate) fn is_empty_dir(&self, dir: &Inode) -> Result<bool> {
        let mut is_empty = true;
        // `.`, `..`
        let mut dots = [0_u32; 2];
        self.for_each_entry(dir, &mut |entry| {
            is_empty = is_dot(entry.name);
            match is_empty {
                true => {
                    dots[entry.name.len() - 1] += 1;
                    ControlFlow::Continue(())
                }
                false => ControlFlow::Break(()),
            }
        })?;
        match is_empty && dots.iter().any(|&count| count > 1) {
            true => Err(dir.corrupt("directory", "it has more than one '.' or '..'".into())),
            false => Ok(is_empty),
        }
    }

    /// Looks for a name in a directory that has blocks.
    pub(super) fn find_in_blocks(&self, dir: &Inode, name: &[u8]) -> Result<Sought> {
        let blocks = Blocks::new(self, dir)?;
        if self.is_indexed(dir) && !is_dot(name) {
            match find_by_index(blocks, name) {
                Err(error) if index_makes_no_sense(&error) => {
                    tracing::warn!(ino = dir.ino.0, %error, "directory is searched without its index");
                }
                found => return found,
            }
        }
        blocks.find_by_walk(name)
    }

    pub(super) fn is_indexed(&self, dir: &Inode) -> bool {
        self.has_dir_index() && dir.flags().contains(InodeFlags::INDEX) && !dir.has_inline_data()
    }

    /// Whether directories may have an index.
    pub(super) fn has_dir_index(&self) -> bool {
        self.sb.features().compat.contains(Compat::DIR_INDEX)
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
}

fn find_by_index(blocks: Blocks<'_>, name: &[u8]) -> Result<Sought> {
    let (mut descent, major) = Descent::to_name(blocks, name)?;
    // A name goes to the first leaf of its hash, or that is split.
    let mut room = None;
    for is_first in std::iter::once(true).chain(std::iter::repeat(false)) {
        let leaf = descent.read_leaf()?;
        match leaf.search(blocks.dir, name)? {
            Search::Found(found) => return Ok(Sought::There(leaf, found)),
            Search::Absent(gap) if is_first => room = gap.map(|gap| Room::of(&leaf, gap)),
            Search::Absent(_) => {}
        }
        let goes_on = descent.next_hash()? == Some(major | 1);
        if !(goes_on && descent.advance()?) {
            break;
        }
    }
    Ok(Sought::Absent(room))
}

pub(super) fn index_makes_no_sense(error: &Error) -> bool {
    match error {
        Error::Corrupt { structure, .. } => structure.starts_with("htree"),
        Error::Unsupported(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MountOptions, map};
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

    fn by_index(mount: &Mount, dir: &Inode, name: &str) -> Option<Ino> {
        let blocks = Blocks::new(mount, dir).expect("whole blocks");
        let found = find_by_index(blocks, name.as_bytes()).expect("the index is intact");
        match found {
            Sought::There(_, found) => Some(found.ino),
            Sought::Absent(_) => None,
        }
    }

    #[test]
    fn index_of_every_hash_finds_every_name_and_no_other() {
        for hash in ["legacy", "half_md4", "tea"] {
            for flags in ["1", "2"] {
                let mount = open(&indexed("metadata_csum", hash, flags));
                let dir = mount.lookup(b"/d", true).expect("it is there");
                assert!(mount.is_indexed(&dir));
                for at in 0..NAMES {
                    assert!(
                        by_index(&mount, &dir, &name(at)).is_some(),
                        "{hash} {flags}: {at}"
                    );
                }
                assert_eq!(by_index(&mount, &dir, "absent"), None);
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
            let blocks = Blocks::new(&mount, &dir).expect("whole blocks");
            let error = find_by_index(blocks, b"absent").err();
            let error = error.expect("the index is damaged");
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
    fn inode_is_let_go_by_its_last_holder_only() {
        let mount = open(&indexed("metadata_csum", "half_md4", "1"));
        let path = format!("/d/{}", name(0));
        let look = || mount.lookup(path.as_bytes(), true).expect("it is there");
        let (one, two) = (look(), look());
        let before = mount.inodes.len();
        mount.inodes.let_go(&one);
        assert_eq!(mount.inodes.len(), before);
        assert!(Arc::ptr_eq(&one, &look()));
        drop(two);
        mount.inodes.let_go(&one);
        assert_eq!(mount.inodes.len(), before - 1);
    }

    #[test]
    fn memory_of_an_inode_is_used_again_once_nobody_holds_it() {
        let mount = open(&indexed("metadata_csum", "half_md4", "1"));
        let look = |at| {
            let path = format!("/d/{}", name(at));
            mount.lookup(path.as_bytes(), true).expect("it is there")
        };
        let first = look(0);
        let (ino, place) = (first.ino, Arc::as_ptr(&first));
        mount.inodes.let_go(&first);
        // Whoever lets it go has it still.
        let second = look(1);
        assert_ne!(Arc::as_ptr(&second), place);
        assert_eq!(first.ino, ino);
        mount.inodes.let_go(&first);
        drop(first);
        let third = look(2);
        assert_eq!(Arc::as_ptr(&third), place);
        assert!(third.ino != ino && third.ino != second.ino);
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
