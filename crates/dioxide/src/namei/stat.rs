//! What `stat` tells of an inode.

use super::create::check_lives;
use crate::inode::{Inode, Location};
use crate::mount::Mount;
use crate::{Error, FileType, Metadata, Place, Result, Timestamp};
use dioxide_format::features::RoCompat;
use dioxide_format::inode::{
    FileType as DiskType, Inode as DiskInode, InodeFlags, Timestamp as DiskTime,
};
use dioxide_format::types::Ino;
use std::sync::atomic::Ordering;

const NANOS: i64 = 1_000_000_000;

impl From<DiskTime> for Timestamp {
    /// The disk has room for up to 1.07 s in the nanoseconds; that is damage, and is cut.
    fn from(time: DiskTime) -> Timestamp {
        Timestamp {
            secs: time.secs,
            nanos: time.nsec.min(NANOS as u32 - 1),
        }
    }
}

impl Mount {
    /// The metadata of the file at a path; a symlink at the end is followed if `follow`. Blocks on
    /// metadata.
    ///
    /// # Errors
    /// As [`Mount::lookup`].
    pub(crate) fn stat(&self, path: &[u8], follow: bool) -> Result<Metadata> {
        let at = self.parent(path)?;
        if !at.is_special()
            && !at.must_be_dir
            && let Some(found) = self.stat_child(&at.dir, at.name)?
            && !(follow && found.file_type == FileType::Symlink)
        {
            return Ok(found);
        }
        let inode = self.lookup(path, follow)?;
        Ok(self.metadata(&inode))
    }

    /// The metadata of the file that a name in a directory stands for, if that can be told without an
    /// inode in memory: who walks over many files asks once for each.
    fn stat_child(&self, dir: &Inode, name: &[u8]) -> Result<Option<Metadata>> {
        if let Some((ino, version)) = self.known_name(dir, name) {
            let found = self.stat_number(ino);
            // The number may have become another file's meanwhile.
            if dir.names_version.load(Ordering::Acquire) == version {
                return found;
            }
        }
        self.tell_child(dir, name, |told| told)
    }

    /// Hands on the metadata of the file that a name in a directory stands for, if [`Mount::stat_number`] tells them. The name
    /// stays meanwhile.
    pub(crate) fn tell_child<T>(
        &self,
        dir: &Inode,
        name: &[u8],
        tell: impl FnOnce(Metadata) -> T,
    ) -> Result<Option<T>> {
        let _names = dir.names.read();
        // What was removed while a walk was in it has nothing, and its blocks may be others' by now.
        if check_lives(dir).is_err() {
            return Ok(None);
        }
        match self.find_name(dir, name)? {
            Some(ino) => Ok(self.stat_number(ino)?.map(tell)),
            None => Ok(None),
        }
    }

    /// None for what only a lookup judges: the file system's own inodes, those without links, and
    /// directories, which may be linked below themselves.
    pub(crate) fn stat_number(&self, ino: Ino) -> Result<Option<Metadata>> {
        if ino < self.sb.first_ino() {
            return Ok(None);
        }
        let found = self.metadata_of(ino)?;
        let is_plain = found.nlink > 0
            && found.file_type != FileType::Directory
            && found.flags & InodeFlags::EA_INODE.0 == 0;
        Ok(is_plain.then_some(found))
    }

    /// The metadata of an inode by its number, whether it is in memory or not. Blocks on metadata. It holds while nobody
    /// can give the number to another file.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn metadata_of(&self, ino: Ino) -> Result<Metadata> {
        match self.inodes.get(ino) {
            Some(inode) => Ok(self.metadata(&inode)),
            None => self.stat_on_disk(ino),
        }
    }

    /// The metadata of an inode that is not in memory.
    fn stat_on_disk(&self, ino: Ino) -> Result<Metadata> {
        let Location { block, offset } = self.locate_inode(ino)?;
        let place = Place::block(block.0).in_inode(ino).at(offset as u64);
        let table = self.read_meta(block)?;
        let size = self.sb.inode_size();
        let disk = DiskInode::parse(&table[offset..offset + size], size)
            .map_err(|error| Error::format(error, place))?;
        self.check_inode(&disk, ino, place)?;
        Ok(self.tell(&disk, ino, disk.size(), None))
    }

    /// The metadata of an inode. Does not block.
    pub(crate) fn metadata(&self, inode: &Inode) -> Metadata {
        let (node, modified) = (inode.node(), inode.modified_ns());
        let size = match inode.file_type() {
            // One that was removed has none, and keeps what it had in memory.
            FileType::Directory => node.disk.size(),
            _ => inode.i_size(),
        };
        self.tell(&node.disk, inode.ino, size, modified)
    }

    /// The project of an inode: the default one where the file system has none, whatever stays in the inode from earlier.
    pub(crate) fn project_of(&self, disk: &DiskInode) -> u32 {
        match self.has_projects() {
            true => disk.projid(),
            false => 0,
        }
    }

    /// Whether inodes have projects.
    pub(crate) fn has_projects(&self) -> bool {
        self.has_ro_compat(RoCompat::PROJECT)
    }

    /// `modified` is the time of an overwrite that is kept in memory. It is told as the inode will have it: a time that is
    /// told must not change when it is written.
    fn tell(&self, disk: &DiskInode, ino: Ino, size: u64, modified: Option<i64>) -> Metadata {
        let has_nanos = self.sb.inode_size() > 128;
        let changed = |time: DiskTime| {
            let mut time = modified.map_or(time, |ns| self.overwritten(time, ns));
            time.nsec *= u32::from(has_nanos);
            Timestamp::from(time)
        };
        Metadata {
            ino: ino.0,
            file_type: disk.file_type().into(),
            permissions: disk.permissions(),
            nlink: disk.links_count().into(),
            uid: disk.uid(),
            gid: disk.gid(),
            project: self.has_projects().then(|| disk.projid()),
            size,
            blocks: self.sectors(disk, size),
            block_size: self.sb.block_size(),
            device: disk
                .device_number()
                .map(|number| (number.major, number.minor)),
            atime: disk.atime().into(),
            mtime: changed(disk.mtime()),
            ctime: changed(disk.ctime()),
            crtime: disk.crtime().map(Timestamp::from),
            flags: disk.flags().0,
            generation: disk.generation(),
            atomic_write: self.atomic_write_of(disk),
        }
    }

    fn has_ro_compat(&self, feature: RoCompat) -> bool {
        self.sb.features().ro_compat.contains(feature)
    }

    /// `st_blocks`. As in Linux, a file whose content lies in its inode counts as if it had sectors
    /// of its own: `tar` and others take a file without any for one hole.
    fn sectors(&self, disk: &DiskInode, size: u64) -> u64 {
        let huge_file = self.has_ro_compat(RoCompat::HUGE_FILE);
        let sectors = disk.sectors(huge_file, self.sb.block_size());
        if disk.has_inline_data() && disk.file_type() == Some(DiskType::Regular) {
            return sectors + size.div_ceil(512);
        }
        sectors
    }
}
