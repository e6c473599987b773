//! New files: an inode, and its name.
//!
//! One transaction makes the inode, what it begins with and the name. What can fail for want of space is
//! undone step by step; what fails for the disk comes before anything is changed, or aborts the journal.

use crate::alloc::{InodeAllocator, InodeKind, NewInode};
use crate::api::attributes::{check_owner, check_times, to_disk};
use crate::api::names::NewFile;
use crate::inode::{Inode, Location, Node, Nosec, new_id, sets_id};
use crate::io::direct::Wait;
use crate::io::direct::lock::lock;
use crate::io::direct::policy::LockMode;
use crate::map::tree::Tree;
use crate::mount::Mount;
use crate::namei::dir::block::Room;
use crate::namei::edit::NewEntry;
use crate::namei::path::MAX_SYMLINKS;
use crate::sync::rwsem::Rwsem;
use crate::sync::slot;
use crate::txn::Writer;
use crate::txn::file::Credits;
use crate::txn::inode::{INODE_CREDITS, TableBlock};
use crate::txn::orphan::ORPHAN_CREDITS;
use crate::{Error, Place, Result};
use dioxide_format::features::{Incompat, RoCompat};
use dioxide_format::inline_data;
use dioxide_format::inode::{
    DeviceNumber, FileType, GOOD_OLD_SIZE, Inode as DiskInode, InodeFlags, LINK_MAX, Timestamp,
};
use dioxide_format::types::{Ino, Lblk};
use dioxide_journal::journal::Handle;
use dioxide_journal::{Edit, Kind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What the fields beyond the first 128 bytes take.
const EXTRA_ISIZE: u16 = 32;
/// Inodes in a row have their generations from one counter.
const INODES_OF_A_GENERATION: usize = 1 << 12;
/// Longest target of a symlink that `i_block` holds, with the zero that ends it.
const FAST_SYMLINK: usize = 60;
/// PATH_MAX: longest target, with its zero.
const PATH_MAX: usize = 4096;

/// What a new file is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Blueprint<'a> {
    Regular,
    Directory,
    Symlink(&'a [u8]),
    Fifo,
    Socket,
    CharDevice(DeviceNumber),
    BlockDevice(DeviceNumber),
}

impl<'a> Blueprint<'a> {
    /// A symlink to `target`. Whether that fits into a block is for the file system to say.
    ///
    /// # Errors
    /// [`Error::NotFound`] for an empty target, [`Error::NameTooLong`], [`Error::Invalid`] for one with NUL.
    pub(crate) fn symlink(target: &'a [u8]) -> Result<Blueprint<'a>> {
        match target.len() {
            0 => Err(Error::NotFound("an empty target of a symlink".into())),
            len if len >= PATH_MAX => Err(target_too_long(len, PATH_MAX - 1)),
            _ if target.contains(&0) => Err(Error::Invalid("a target with NUL".into())),
            _ => Ok(Blueprint::Symlink(target)),
        }
    }

    /// What a name leaves behind that is to hide the same name of a layer below.
    pub(super) const WHITEOUT: Blueprint<'static> =
        Blueprint::CharDevice(DeviceNumber { major: 0, minor: 0 });

    fn file_type(&self) -> FileType {
        match self {
            Blueprint::Regular => FileType::Regular,
            Blueprint::Directory => FileType::Directory,
            Blueprint::Symlink(_) => FileType::Symlink,
            Blueprint::Fifo => FileType::Fifo,
            Blueprint::Socket => FileType::Socket,
            Blueprint::CharDevice(_) => FileType::CharDevice,
            Blueprint::BlockDevice(_) => FileType::BlockDevice,
        }
    }

    fn is_dir(&self) -> bool {
        matches!(self, Blueprint::Directory)
    }

    /// A target that does not lie in the inode.
    fn slow_target(&self) -> Option<&[u8]> {
        match self {
            Blueprint::Symlink(target) if target.len() >= FAST_SYMLINK => Some(target),
            _ => None,
        }
    }

    /// Whether blocks hold its content.
    fn is_mapped(&self) -> bool {
        matches!(self, Blueprint::Regular | Blueprint::Directory) || self.slow_target().is_some()
    }
}

fn target_too_long(len: usize, most: usize) -> Error {
    Error::NameTooLong(format!("a target of {len} bytes, where {most} fit"))
}

/// A file whose content lies in its inode for as long as it has room there; none if not even an empty one has.
fn begun_inline(disk: &DiskInode) -> Result<Option<DiskInode>> {
    let failed = |error| Error::format(error, Place::default());
    let raw = inline_data::with_system_data(disk, &disk.encode()).map_err(failed)?;
    let Some(raw) = raw else { return Ok(None) };
    let mut inline = DiskInode::parse(&raw, raw.len()).map_err(failed)?;
    inline.disk_mut().i_flags |= InodeFlags::INLINE_DATA.0;
    Ok(Some(inline))
}

/// Whether a directory was not removed. The caller has its `names`.
///
/// # Errors
/// [`Error::NotFound`].
pub(super) fn check_lives(dir: &Inode) -> Result<()> {
    match dir.node().disk.links_count() == 0 || dir.has_ended() {
        true => Err(Error::NotFound(format!("directory {}, removed", dir.ino))),
        false => Ok(()),
    }
}

/// Whether changes of a directory are durable at once.
pub(super) fn is_in_step(dir: &Inode) -> bool {
    dir.flags().0 & (InodeFlags::DIRSYNC.0 | InodeFlags::SYNC.0) != 0
}

/// An inode that has a number, and is not written yet.
pub(super) struct Planned {
    pub(super) numbered: NewInode,
    location: Location,
    disk: DiskInode,
}

/// The block of a long symlink: its target and zeros. Nothing in it can be judged.
#[derive(Debug)]
struct TargetBlock;

impl Kind for TargetBlock {
    fn name(&self) -> &'static str {
        "symlink"
    }

    fn verify(&self, _: dioxide_format::types::Pblk, _: &[u8]) -> dioxide_format::Result<()> {
        Ok(())
    }

    fn seal(&self, _: dioxide_format::types::Pblk, _: &mut [u8]) {}
}

/// Flags that a file takes over from its directory, by what it is.
fn inherited_flags(dir: InodeFlags, file_type: FileType) -> u32 {
    const ALL: u32 = InodeFlags::SECRM.0
        | InodeFlags::UNRM.0
        | InodeFlags::COMPR.0
        | InodeFlags::SYNC.0
        | InodeFlags::NODUMP.0
        | InodeFlags::NOATIME.0
        | InodeFlags::NOCOMPR.0
        | InodeFlags::JOURNAL_DATA.0
        | InodeFlags::NOTAIL.0
        | InodeFlags::DIRSYNC.0
        | InodeFlags::PROJINHERIT.0
        | InodeFlags::DAX.0;
    let of_type = match file_type {
        FileType::Directory => ALL,
        FileType::Regular => ALL & !(InodeFlags::DIRSYNC.0 | InodeFlags::PROJINHERIT.0),
        _ => InodeFlags::NODUMP.0 | InodeFlags::NOATIME.0,
    };
    dir.0 & of_type
}

/// Checks a name that is to be made.
pub(super) fn check_new_name(name: &[u8]) -> Result<()> {
    let text = || String::from_utf8_lossy(name).into_owned();
    match name {
        b"" | b"." | b".." => Err(Error::Exists(text())),
        _ if name.len() > dioxide_format::dir::NAME_MAX => Err(Error::NameTooLong(text())),
        _ if name.iter().any(|&b| b == b'/' || b == 0) => {
            Err(Error::Invalid("a name with / or NUL".into()))
        }
        _ => Ok(()),
    }
}

impl Mount {
    /// Makes a file in a directory. Blocks.
    ///
    /// # Errors
    /// Those that `crate::Fs` names. Nothing has changed then.
    pub(crate) fn create(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        what: &Blueprint<'_>,
        new: &NewFile,
    ) -> Result<Arc<Inode>> {
        self.create_and(dir, name, what, new, |inode| inode)
    }

    /// As [`Mount::create`]; `then` has the file before anybody can remove it again.
    pub(crate) fn create_and<T>(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        what: &Blueprint<'_>,
        new: &NewFile,
        then: impl FnOnce(Arc<Inode>) -> T,
    ) -> Result<T> {
        check_new_name(name)?;
        let _names = dir.names.write();
        self.check_dir_holds(dir)?;
        let Err(mut room) = self.find_name_or_room(dir, name)? else {
            return Err(Error::Exists(String::from_utf8_lossy(name).into_owned()));
        };
        let writer = self.writer()?;
        self.check_dir_grows(dir)?;
        self.check_target_fits(what)?;
        if what.is_dir() {
            self.check_more_subdirs(dir)?;
        }
        let made = self.with_space(writer, || {
            // Once: what is undone leaves another place.
            let name = Some((name, room.take()));
            self.create_once(writer, dir, name, what, new)
        });
        made.map(then)
    }

    /// Makes a regular file at a path, and opens it before anybody can remove it. Blocks.
    ///
    /// # Errors
    /// As [`Mount::create`]; [`Error::IsADirectory`] for a path that ends in `/`.
    pub(crate) fn create_file(&self, path: &[u8], new: &NewFile) -> Result<Arc<Inode>> {
        let at = self.parent_of_any(path)?;
        if at.must_be_dir && !at.is_special() {
            return Err(Error::IsADirectory(at.text()));
        }
        let opened = |inode: Arc<Inode>| {
            assert!(inode.open(), "nobody can have removed it");
            inode
        };
        self.create_and(&at.dir, at.name, &Blueprint::Regular, new, opened)
    }

    /// Opens the file at a path, symlinks followed; made if it is not there. Tells whether it was made. Blocks.
    ///
    /// # Errors
    /// As [`Mount::lookup`] and [`Mount::create_file`].
    pub(crate) fn lookup_or_create(
        &self,
        path: &[u8],
        new: &NewFile,
    ) -> Result<(Arc<Inode>, bool)> {
        let mut path = path.to_vec();
        for _ in 0..MAX_SYMLINKS {
            if path.ends_with(b"/") {
                let at = self.parent_of_any(&path)?;
                if !at.is_special() {
                    return Err(Error::IsADirectory(at.text()));
                }
            }
            match self.lookup(&path, true) {
                Err(Error::NotFound(_)) => {}
                // It may be a symlink whose target has a slash behind it.
                Err(error @ (Error::NotADirectory(_) | Error::TooManySymlinks(_))) => {
                    let target = self.through_symlink(&path)?;
                    if target == path {
                        return Err(error);
                    }
                    path = target;
                    continue;
                }
                // What is there now is opened, or it is made.
                Ok(inode) if !inode.open() => continue,
                found => return found.map(|inode| (inode, false)),
            }
            match self.create_file(&path, new) {
                // It is there now; or it is a symlink that leads to nothing yet; or it is gone already.
                Err(Error::Exists(_)) => match self.through_symlink(&path) {
                    Err(Error::NotFound(_)) => {}
                    target => path = target?,
                },
                made => return made.map(|inode| (inode, true)),
            }
        }
        let path = String::from_utf8_lossy(&path).into_owned();
        Err(Error::TooManySymlinks(path))
    }

    /// The path that the symlink at a path leads to; the path itself if there is none.
    fn through_symlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        let inode = self.lookup(path, false)?;
        if inode.file_type() != crate::FileType::Symlink {
            return Ok(path.to_vec());
        }
        let Some(target) = self.living_target(&inode)? else {
            return Ok(path.to_vec());
        };
        let dir = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
        Ok(match target.first() {
            Some(b'/') => target,
            _ => [&path[..dir], &target].concat(),
        })
    }

    /// Makes a regular file without a name, an orphan until it is linked, which it may never be, and opens it. Blocks.
    ///
    /// # Errors
    /// As [`Mount::create`]; [`Error::NotPermitted`] in a directory that was removed.
    pub(crate) fn create_unnamed(
        &self,
        dir: &Arc<Inode>,
        new: &NewFile,
        may_be_linked: bool,
    ) -> Result<Arc<Inode>> {
        let writer = self.writer()?;
        let _names = dir.names.write();
        // As by Linux, where only a name that is looked for is not there.
        if check_lives(dir).is_err() {
            let what = format!("directory {}, removed", dir.ino);
            return Err(Error::NotPermitted(what));
        }
        self.check_names(dir)?;
        self.check_dir_grows(dir)?;
        let inode = self.with_space(writer, || {
            self.create_once(writer, dir, None, &Blueprint::Regular, new)
        })?;
        inode.made_open(may_be_linked);
        Ok(inode)
    }

    /// Whether a symlink's target has room in a block.
    fn check_target_fits(&self, what: &Blueprint<'_>) -> Result<()> {
        let most = self.block_bytes() as usize - 1;
        match what {
            Blueprint::Symlink(target) if target.len() > most => {
                Err(target_too_long(target.len(), most))
            }
            _ => Ok(()),
        }
    }

    /// Whether a directory has names that can be looked for. The caller has its `names`.
    pub(super) fn check_dir_holds(&self, dir: &Inode) -> Result<()> {
        check_lives(dir)?;
        self.check_names(dir)
    }

    /// Whether names in a directory may change where there are some. What is there, or is not, is told first, as by Linux.
    pub(super) fn check_dir_changes(&self, dir: &Inode) -> Result<()> {
        match dir.is_immutable() {
            true => Err(Error::NotPermitted(format!(
                "directory {} is immutable",
                dir.ino
            ))),
            false => Ok(()),
        }
    }

    /// The same, and whether more names may come, for which it may need blocks.
    pub(super) fn check_dir_grows(&self, dir: &Inode) -> Result<()> {
        self.check_dir_changes(dir)?;
        self.check_map_changes(dir)
    }

    /// Whether a directory can have one more in it.
    pub(super) fn check_more_subdirs(&self, dir: &Inode) -> Result<()> {
        let counts_on = self.has_dir_nlink() && dir.flags().contains(InodeFlags::INDEX);
        match dir.node().disk.links_count() < LINK_MAX || counts_on {
            true => Ok(()),
            false => Err(Error::TooManyLinks(format!("directory {}", dir.ino))),
        }
    }

    pub(super) fn has_dir_nlink(&self) -> bool {
        self.sb.features().ro_compat.contains(RoCompat::DIR_NLINK)
    }

    fn create_once(
        &self,
        writer: &Writer,
        dir: &Arc<Inode>,
        name: Option<(&[u8], Option<Room>)>,
        what: &Blueprint<'_>,
        new: &NewFile,
    ) -> Result<Arc<Inode>> {
        let (name, room) = name.unzip();
        let permissions = match what {
            Blueprint::Symlink(_) => 0o777,
            _ => new.permissions,
        };
        // What is inherited stays the directory's until the name is there, and nobody frees it meanwhile.
        let _attributes = lock(self, dir, LockMode::Shared, Wait::Block, slot::current())?;
        let acls = self.acl_inherit(dir, what.file_type(), permissions, new.umask)?;
        let mut handle = writer.begin(self.create_credits(dir, name, what, &acls))?;
        let mut planned = self.plan_new(writer, &mut handle, dir, what, new, &acls)?;
        let ino = planned.numbered.ino;
        if name.is_none() {
            planned.disk.set_links_count(0);
        }
        let unmake = |handle: &mut Handle<'_>, error| {
            self.give_number_back(writer, handle, ino, what.is_dir(), error)
        };
        if let Some(name) = name {
            let entry = NewEntry {
                name,
                ino,
                file_type: what.file_type(),
            };
            let added = self.add_name_at(writer, &mut handle, dir, &entry, room.flatten());
            if let Err(error) = added {
                return Err(unmake(&mut handle, error));
            }
        }
        let inode = self
            .store_planned(&mut handle, planned)
            .map_err(|error| self.fail(error))?;
        if let Err(error) = self.furnish(writer, &mut handle, dir, &inode, what, &acls) {
            if !matches!(error, Error::NoSpace(_)) {
                return Err(self.fail(error));
            }
            self.unfurnish(writer, &mut handle, dir, name, &inode)
                .map_err(|error| self.fail(error))?;
            return Err(unmake(&mut handle, error));
        }
        match name {
            Some(_) => {
                self.names_changed(&mut handle, dir, &mut |disk| {
                    if what.is_dir() {
                        add_subdir(disk);
                    }
                })
                .map_err(|error| self.fail(error))?;
            }
            None => {
                inode.set_unnamed();
                let added = writer.orphans.add(self, &mut handle, &inode);
                added.map_err(|error| self.fail(error))?;
            }
        }
        inode.changed_in(handle.tid(), true);
        if let Some(name) = name {
            // First, since who finds the name in memory waits for no lock, and opens it.
            inode.made();
            self.dentries.change(dir, name, inode.ino);
        }
        self.finish(handle, dir)?;
        Ok(inode)
    }

    /// Ends a change of a directory; waits for it if the directory is to be in step with the disk.
    pub(super) fn finish(&self, mut handle: Handle<'_>, dir: &Inode) -> Result<()> {
        if self.dirsync || is_in_step(dir) {
            handle.mark_sync();
        }
        handle.stop()?;
        Ok(())
    }

    fn create_credits(
        &self,
        dir: &Inode,
        name: Option<&[u8]>,
        what: &Blueprint<'_>,
        acls: &super::Inherited,
    ) -> u32 {
        let named = match name {
            Some(_) => self.add_name_credits(dir) + INODE_CREDITS,
            None => ORPHAN_CREDITS,
        };
        let content = match what {
            Blueprint::Directory => self.new_dir_credits(),
            _ if what.slow_target().is_some() => 1 + Credits::insert_new(self),
            _ => 0,
        };
        let acls = self.acl_credits(acls);
        InodeAllocator::ALLOCATE_CREDITS + INODE_CREDITS + named + content + acls
    }

    /// Metadata blocks that [`Mount::store_acls`] changes.
    pub(super) fn acl_credits(&self, acls: &super::Inherited) -> u32 {
        let bytes = |list: &Option<Vec<u8>>| list.as_ref().map_or(0, Vec::len);
        match bytes(&acls.access) + bytes(&acls.default) {
            0 => 0,
            bytes => 2 * self.new_xattr_credits(bytes),
        }
    }

    fn inode_kind(&self, dir: &Inode, what: &Blueprint<'_>) -> InodeKind {
        let is_top = dir.ino == Ino::ROOT || dir.flags().contains(InodeFlags::TOPDIR);
        match (what.is_dir(), is_top) {
            (false, _) => InodeKind::File,
            (true, false) => InodeKind::Directory,
            (true, true) => InodeKind::TopDirectory,
        }
    }

    /// Gives a new inode its number. If it fails nothing was changed.
    pub(super) fn plan_new(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        dir: &Inode,
        what: &Blueprint<'_>,
        new: &NewFile,
        acls: &super::Inherited,
    ) -> Result<Planned> {
        check_owner([Some(new.uid), Some(new.gid)])?;
        check_times(&[new.time])?;
        let kind = self.inode_kind(dir, what);
        let numbered = writer.inodes.allocate(handle, dir.ino, kind)?;
        let ino = numbered.ino;
        let planned = self.plan_inode(handle, dir, &numbered, what, new, acls);
        let planned = planned.and_then(|(location, disk)| {
            self.prepare_quota(handle, ino, &disk)?;
            Ok((location, disk))
        });
        match planned {
            Ok((location, disk)) => Ok(Planned {
                numbered,
                location,
                disk,
            }),
            Err(error) => Err(self.give_number_back(writer, handle, ino, what.is_dir(), error)),
        }
    }

    /// What comes of an error if the inode that was numbered is not made.
    pub(super) fn give_number_back(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        ino: Ino,
        is_dir: bool,
        error: Error,
    ) -> Error {
        match writer.inodes.free(handle, ino, is_dir) {
            Ok(()) => error,
            Err(fatal) => self.fail(fatal),
        }
    }

    pub(super) fn store_planned(
        &self,
        handle: &mut Handle<'_>,
        planned: Planned,
    ) -> Result<Arc<Inode>> {
        let Planned {
            numbered,
            location,
            disk,
        } = planned;
        self.store_new(handle, &numbered, location, disk)
    }

    /// Another one than that number has had in this mount.
    fn next_generation(&self, ino: Ino) -> u32 {
        let near = ino.0 as usize / INODES_OF_A_GENERATION % self.next_generations.len();
        self.next_generations[near].fetch_add(1, Ordering::Relaxed)
    }

    /// The inode as it will be, but for what its content needs. What can fail for the disk fails here.
    fn plan_inode(
        &self,
        handle: &Handle<'_>,
        dir: &Inode,
        numbered: &NewInode,
        what: &Blueprint<'_>,
        new: &NewFile,
        acls: &super::Inherited,
    ) -> Result<(Location, DiskInode)> {
        let location = self.locate_inode(numbered.ino)?;
        handle.read(location.block, &TableBlock)?;
        let time = new
            .time
            .map_or_else(|| self.now(), |time| to_disk(time, self.sb.inode_size()));
        let mut disk = self.blank_inode(what.file_type(), time)?;
        let parent = dir.node();
        // With `grpid` all directories are alike, and the bit is not handed on.
        let is_set_gid = !self.grpid && parent.disk.permissions() & libc::S_ISGID as u16 != 0;
        let in_group = self.grpid || is_set_gid;
        let gid = if in_group { parent.disk.gid() } else { new.gid };
        let set_gid = match is_set_gid && what.is_dir() {
            true => libc::S_ISGID as u16,
            false => 0,
        };
        disk.set_mode(what.file_type(), acls.mode | set_gid);
        if what.is_dir() {
            disk.set_links_count(2);
        }
        disk.set_owner(new.uid, gid);
        let flags = inherited_flags(parent.disk.flags(), what.file_type());
        disk.disk_mut().i_flags |= flags;
        if parent.disk.flags().contains(InodeFlags::PROJINHERIT) {
            disk.set_projid(self.project_of(&parent.disk));
        }
        disk.disk_mut().i_generation = new
            .generation
            .unwrap_or_else(|| self.next_generation(numbered.ino));
        let incompat = self.sb.features().incompat;
        let inline = match what {
            Blueprint::Regular if incompat.contains(Incompat::INLINE_DATA) => begun_inline(&disk)?,
            _ => None,
        };
        if let Some(inline) = inline {
            disk = inline;
        } else if what.is_mapped() && self.has_extents() {
            disk.disk_mut().i_flags |= InodeFlags::EXTENTS.0;
            disk.set_i_block(&Tree::empty_root());
        }
        self.put_content(&mut disk, what);
        Ok((location, disk))
    }

    /// An inode of a type with times and one link, and nothing else.
    pub(crate) fn blank_inode(&self, file_type: FileType, time: Timestamp) -> Result<DiskInode> {
        let size = self.sb.inode_size();
        let disk = DiskInode::zeroed(size);
        let mut disk = disk.map_err(|error| Error::format(error, Place::default()))?;
        if size > GOOD_OLD_SIZE {
            disk.disk_mut().i_extra_isize = self.extra_isize();
        }
        disk.set_mode(file_type, 0);
        disk.set_links_count(1);
        disk.set_atime(time);
        disk.set_mtime(time);
        disk.set_ctime(time);
        disk.set_crtime(time);
        Ok(disk)
    }

    /// What a new inode has beyond its first 128 bytes, where it has more.
    fn extra_isize(&self) -> u16 {
        let disk = self.sb.disk();
        let room = self.sb.inode_size() - GOOD_OLD_SIZE;
        // It is a multiple of 4.
        let wanted = disk.s_want_extra_isize.max(disk.s_min_extra_isize) & !3;
        match usize::from(wanted) <= room {
            true => wanted.max(EXTRA_ISIZE),
            false => EXTRA_ISIZE,
        }
    }

    /// What lies in the inode itself.
    fn put_content(&self, disk: &mut DiskInode, what: &Blueprint<'_>) {
        match what {
            Blueprint::Symlink(target) => {
                disk.set_size(target.len() as u64);
                if what.slow_target().is_none() {
                    let mut block = [0; 60];
                    block[..target.len()].copy_from_slice(target);
                    disk.set_i_block(&block);
                }
            }
            Blueprint::CharDevice(number) | Blueprint::BlockDevice(number) => {
                disk.set_device_number(*number);
            }
            _ => {}
        }
    }

    /// Writes a new inode into its place in the table. Nobody but the caller opens it before it is [`Inode::made`].
    pub(crate) fn store_new(
        &self,
        edit: &mut dyn Edit,
        numbered: &NewInode,
        location: Location,
        mut disk: DiskInode,
    ) -> Result<Arc<Inode>> {
        if let Some(seed) = self.checksum_seed() {
            disk.update_checksum(seed, numbered.ino);
        }
        self.count_change(edit, numbered.ino, None, Some(&disk), |_| Ok(1))?;
        let raw: Box<[u8]> = disk.encode()[..].into();
        let set_id = sets_id(&disk);
        let inode = Inode::new(
            self.inodes.spare(numbered.ino),
            numbered.ino,
            Rwsem::new(new_id(), self.presence),
            location,
            Node { disk, raw },
            Nosec {
                set_id,
                capability: false,
            },
        );
        inode.set_being_made();
        // Before it is in the table: who looks for its number there would make an object of his own.
        let inode = self.inodes.put_new(inode);
        let node = inode.node();
        let slot = location.offset..location.offset + node.raw.len();
        edit.modify(location.block, &TableBlock, &mut |block| {
            block[slot.clone()].copy_from_slice(&node.raw);
            Ok(())
        })?;
        Ok(inode)
    }

    /// Gives a new inode what it begins with outside of itself.
    fn furnish(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        dir: &Inode,
        inode: &Arc<Inode>,
        what: &Blueprint<'_>,
        acls: &super::Inherited,
    ) -> Result<()> {
        if what.is_dir() {
            self.init_directory(writer, handle, inode, dir.ino)?;
        }
        if let Some(target) = what.slow_target() {
            self.store_target(writer, handle, inode, target)?;
        }
        self.store_acls(writer, handle, inode, acls)
    }

    fn store_target(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        inode: &Inode,
        target: &[u8],
    ) -> Result<()> {
        let mut bytes = vec![0; self.block_bytes() as usize];
        bytes[..target.len()].copy_from_slice(target);
        let lock = inode.map.lock();
        let add = |map: &mut crate::txn::file::MapChange<'_, '_>| {
            let block = map.add_metadata_block(Lblk(0))?;
            Ok(map.handle.create(block, &TargetBlock, &bytes)?)
        };
        self.change_map(writer, handle, inode, &lock, add, &mut |_, _| {})
    }

    /// Takes back the name of a file that could not be furnished, and clears its place in the table.
    pub(super) fn unfurnish(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        dir: &Inode,
        name: Option<&[u8]>,
        inode: &Arc<Inode>,
    ) -> Result<()> {
        if let Some(name) = name {
            self.remove_name(handle, dir, name)?;
        }
        // Of two lists the first may have got its place.
        self.release_xattrs_in(writer, handle, inode)?;
        let mut block = *inode.node().disk.i_block();
        let lock = inode.map.lock();
        if self.has_mapped(inode)? {
            let credits = handle.credits();
            let remove = |map: &mut crate::txn::file::MapChange<'_, '_>| {
                map.remove(0..self.map_end(inode), credits)
            };
            self.change_map(writer, handle, inode, &lock, remove, &mut |_, _| {})?;
            block = *inode.node().disk.i_block();
        }
        // Without a time of deletion e2fsck takes it for damaged.
        let now = self.now().secs as u32;
        self.end_inode(handle, inode, &lock, &mut |disk| {
            disk.set_i_block(&block);
            disk.set_links_count(0);
            disk.set_dtime(now.max(1));
            disk.set_size(0);
        })?;
        self.inodes.forget(inode.ino);
        Ok(())
    }
}

/// Counts one more directory in a directory; 1 stands for more than can be counted.
pub(super) fn add_subdir(disk: &mut DiskInode) {
    let links = disk.links_count();
    let many = links >= LINK_MAX || links == 1;
    disk.set_links_count(if many { 1 } else { links + 1 });
}

/// Counts one less.
pub(super) fn remove_subdir(disk: &mut DiskInode) {
    let links = disk.links_count();
    if links > 2 {
        disk.set_links_count(links - 1);
    }
}
