//! A mounted image, and directories in it whose names all lead to a few files.

use crate::inode::Inode;
use crate::map::tree::Tree;
use crate::mount::Mount;
use crate::namei::edit::{NewEntry, REMOVE_NAME_CREDITS};
use crate::txn::inode::{INODE_CREDITS, TableBlock};
use crate::{Fs, MountOptions, Result};
use dioxide_format::inode::{FileType, Inode as DiskInode, InodeFlags};
use dioxide_format::types::Ino;
use dioxide_journal::Edit;
use dioxide_testkit::{Image, ImageBuilder, debugfs, e2fsck_clean};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Files that names lead to: an inode has at most 65,000 links.
pub(super) const TARGETS: usize = 8;

/// How many names a transaction gets.
const PER_HANDLE: usize = 8;

pub(super) struct Bed {
    pub(super) image: Image,
    pub(super) fs: Fs,
    targets: Vec<Ino>,
    /// How many names each target has, but for the one of its own.
    links: Vec<u32>,
}

impl Bed {
    /// An image with directory `/d`, and the files that names lead to.
    pub(super) fn new(builder: ImageBuilder) -> Bed {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("d")).expect("a new directory");
        for number in 0..TARGETS {
            let target = folder.path().join(format!("t{number}"));
            std::fs::File::create(target).expect("a new file");
        }
        Bed::on(builder.source(folder.path()).build())
    }

    /// On an image that has all that.
    pub(super) fn on(image: Image) -> Bed {
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let target = |number| {
            let path = format!("/t{number}");
            let target = fs.0.lookup(path.as_bytes(), true).expect("it is there");
            let links = u32::from(target.node().disk.links_count());
            (target.ino, links - 1)
        };
        let (targets, links) = (0..TARGETS).map(target).unzip();
        Bed {
            targets,
            links,
            image,
            fs,
        }
    }

    pub(super) fn mount(&self) -> &Mount {
        &self.fs.0
    }

    pub(super) fn dir(&self, path: &str) -> Arc<Inode> {
        self.mount()
            .lookup(path.as_bytes(), true)
            .expect("it is there")
    }

    /// To which of the files a name leads.
    pub(super) fn target(&self, name: &[u8]) -> (usize, Ino) {
        let at = name
            .iter()
            .fold(0usize, |sum, &b| sum * 31 % 1009 + usize::from(b))
            % TARGETS;
        (at, self.targets[at])
    }

    pub(super) fn add(&mut self, dir: &Inode, name: &[u8]) -> Result<()> {
        self.add_all(dir, std::slice::from_ref(&name.to_vec()))
    }

    /// Adds names, up to the first error.
    pub(super) fn add_all(&mut self, dir: &Inode, names: &[Vec<u8>]) -> Result<()> {
        let mount = self.fs.0.clone();
        let writer = mount.writer().expect("it is writable");
        for names in names.chunks(PER_HANDLE) {
            let mut handle = writer.begin(0).expect("a handle");
            for name in names {
                let credits = mount.add_name_credits(dir);
                let missing = credits.saturating_sub(handle.credits());
                if !handle.extend(missing).expect("a journal") {
                    handle.restart(credits).expect("a journal");
                }
                let before = handle.credits();
                let (target, ino) = self.target(name);
                let new = NewEntry {
                    name,
                    ino,
                    file_type: FileType::Regular,
                };
                mount.add_name(writer, &mut handle, dir, &new)?;
                assert!(before - handle.credits() <= credits);
                self.links[target] += 1;
            }
            handle.stop().expect("a journal");
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, dir: &Inode, name: &[u8]) -> bool {
        let mount = self.fs.0.clone();
        let writer = mount.writer().expect("it is writable");
        let mut handle = writer.begin(REMOVE_NAME_CREDITS).expect("a handle");
        let was_there = mount.remove_name(&mut handle, dir, name);
        handle.stop().expect("a journal");
        let was_there = was_there.expect("the directory is intact");
        let target = self.target(name).0;
        self.links[target] -= u32::from(was_there);
        was_there
    }

    pub(super) fn find(&self, dir: &Inode, name: &[u8]) -> Option<Ino> {
        self.mount()
            .find_entry(dir, name)
            .expect("the directory is intact")
    }

    /// All names but `.` and `..`, in the order of the disk.
    pub(super) fn names(&self, dir: &Inode) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        let listed = self.mount().for_each_entry(dir, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.name.to_vec());
            }
            ControlFlow::Continue(())
        });
        listed.expect("the directory is intact");
        names
    }

    /// Checks that a directory has these names and no others, by every way to look.
    pub(super) fn check(&self, dir: &Inode, names: &BTreeSet<Vec<u8>>) {
        let listed = self.names(dir);
        assert_eq!(listed.len(), names.len());
        assert_eq!(&listed.into_iter().collect::<BTreeSet<_>>(), names);
        let (walked, _) = self.walk(dir, 0, usize::MAX);
        assert_eq!(walked.len(), names.len() + 2);
        let walked: BTreeSet<Vec<u8>> = walked.into_iter().skip(2).collect();
        assert_eq!(&walked, names);
        for name in names {
            assert_eq!(self.find(dir, name), Some(self.target(name).1), "{name:?}");
        }
        assert_eq!(self.find(dir, b"absent"), None);
        let is_empty = self.mount().is_empty_dir(dir).expect("it is intact");
        assert_eq!(is_empty, names.is_empty());
    }

    /// At most so many names from a cookie on, and the cookie to go on with.
    pub(super) fn walk(&self, dir: &Inode, cookie: u64, most: usize) -> (Vec<Vec<u8>>, u64) {
        let (mut names, mut last) = (Vec::new(), cookie);
        let visit = &mut |entry: &dioxide_format::dir::DirEntry<'_>, next: u64| {
            assert!(next > last && i64::try_from(next).is_ok());
            last = next;
            names.push(entry.name.to_vec());
            match names.len() < most {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        self.mount()
            .read_dir_from(dir, cookie, visit)
            .expect("it is intact");
        (names, last)
    }

    /// Makes a directory, as far as the disk is concerned, and gives it a name in another.
    pub(super) fn make_dir(&mut self, parent: &Inode, name: &[u8]) -> Arc<Inode> {
        let mount = self.fs.0.clone();
        let writer = mount.writer().expect("it is writable");
        let credits =
            3 + mount.new_dir_credits() + mount.add_name_credits(parent) + 2 * INODE_CREDITS;
        let mut handle = writer.begin(credits).expect("a handle");
        let kind = crate::alloc::InodeKind::Directory;
        let new = writer
            .inodes
            .allocate(&mut handle, parent.ino, kind)
            .expect("an inode");
        let disk = fresh_directory(mount.sb.inode_size(), mount.has_extents(), parent);
        write_inode(&mount, &mut handle, new.ino, disk);
        let dir = mount.inode(new.ino).expect("it is written");
        let before = handle.credits();
        mount
            .init_directory(writer, &mut handle, &dir, parent.ino)
            .expect("there is space");
        assert!(before - handle.credits() <= mount.new_dir_credits());
        let entry = NewEntry {
            name,
            ino: new.ino,
            file_type: FileType::Directory,
        };
        mount
            .add_name(writer, &mut handle, parent, &entry)
            .expect("there is space");
        let lock = parent.map.lock();
        let more = &mut |disk: &mut DiskInode| disk.disk_mut().i_links_count += 1;
        mount
            .change_inode(&mut handle, parent, &lock, more)
            .expect("a journal");
        drop(lock);
        handle.stop().expect("a journal");
        dir
    }

    /// Closes the file system, corrects the links of the files, and checks everything by e2fsck.
    pub(super) fn close(self) -> Image {
        let Bed {
            image, fs, links, ..
        } = self;
        fs.close().expect("it closes");
        let set =
            |(number, count): (usize, u32)| format!("sif /t{number} links_count {}", count + 1);
        let commands: Vec<String> = links.into_iter().enumerate().map(set).collect();
        debugfs(image.path(), &commands);
        e2fsck_clean(image.path());
        image
    }
}

fn fresh_directory(inode_size: usize, has_extents: bool, parent: &Inode) -> DiskInode {
    let mut disk = DiskInode::parse(&vec![0; inode_size], inode_size).expect("whole");
    let times = parent.node().disk.disk().i_mtime;
    let fields = disk.disk_mut();
    fields.i_mode = 0o40755;
    fields.i_links_count = 2;
    fields.i_generation = 0x1234_5678;
    (fields.i_atime, fields.i_ctime, fields.i_mtime) = (times, times, times);
    if inode_size > 128 {
        fields.i_extra_isize = 32;
    }
    if has_extents {
        disk.disk_mut().i_flags |= InodeFlags::EXTENTS.0;
        disk.set_i_block(&Tree::empty_root());
    }
    disk
}

fn write_inode(mount: &Mount, edit: &mut dyn Edit, ino: Ino, mut disk: DiskInode) {
    if let Some(seed) = mount.checksum_seed() {
        disk.update_checksum(seed, ino);
    }
    let at = mount.locate_inode(ino).expect("it exists");
    let raw = disk.encode();
    let written = edit.modify(at.block, &TableBlock, &mut |bytes| {
        bytes[at.offset..at.offset + raw.len()].copy_from_slice(&raw);
        Ok(())
    });
    written.expect("a journal");
}

/// A builder of small images with blocks of 1 KiB, which fill soon.
pub(super) fn small() -> ImageBuilder {
    Image::builder().size(64 << 20).block_size(1024)
}

/// Numbers that look random, the same ones in each run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// A name that number `at` has, of about `len` bytes.
pub(super) fn name(at: usize, len: usize) -> Vec<u8> {
    let mut name = format!("{at}-").into_bytes();
    while name.len() < len {
        name.push(b'a' + (name.len() * 7 + at) as u8 % 26);
    }
    name
}

pub(super) fn set(names: &[Vec<u8>]) -> BTreeSet<Vec<u8>> {
    names.iter().cloned().collect()
}

/// Looks at the directory `/d` by the kernel: how many names it lists, and that it finds some.
pub(super) fn check_by_kernel(image: &Image, names: &BTreeSet<Vec<u8>>) {
    use std::os::unix::ffi::OsStringExt;
    if !dioxide_testkit::have_root() {
        eprintln!("not looked at by the kernel: needs root");
        return;
    }
    let mount = dioxide_testkit::Mount::ext4(image.path(), "ro");
    let dir = mount.path().join("d");
    let listed = std::fs::read_dir(&dir).expect("it lists");
    let listed: BTreeSet<Vec<u8>> = listed
        .map(|entry| entry.expect("it lists").file_name().into_vec())
        .collect();
    assert_eq!(&listed, names);
    for name in names.iter().step_by(1 + names.len() / 500) {
        let name = std::ffi::OsString::from_vec(name.clone());
        std::fs::symlink_metadata(dir.join(name)).expect("the kernel finds it");
    }
    mount.unmount();
}
