//! What is changed of a file beside its content, and what is told of the file system as a whole.

use crate::alloc::Right;
use crate::inode::Inode;
use crate::io::direct::Wait;
use crate::io::direct::lock::lock;
use crate::io::direct::policy::LockMode;
use crate::mount::Mount;
use crate::mount::groups::Counts;
use crate::sync::slot;
use crate::txn::Writer;
use crate::txn::inode::INODE_CREDITS;
use crate::{Error, FileType, Result, Timestamp};
use dioxide_format::inode::{Inode as DiskInode, InodeFlags, Timestamp as DiskTime};

/// What `fallocate` does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FallocateMode {
    /// Allocates what is a hole, and makes the file longer if the range ends behind it. New blocks
    /// read as zeros.
    Allocate,
    /// `FALLOC_FL_KEEP_SIZE`: the same, and the file keeps its size.
    KeepSize,
    /// `FALLOC_FL_PUNCH_HOLE` (with KEEP_SIZE): frees whole blocks, and zeroes the rest.
    PunchHole,
    /// `FALLOC_FL_ZERO_RANGE`: zeroes the range without writing to whole blocks, allocates what is a
    /// hole, and makes the file longer if the range ends behind it.
    ZeroRange,
    /// The same, and the file keeps its size.
    ZeroRangeKeepSize,
    /// `FALLOC_FL_WRITE_ZEROES` (Linux 6.17): as [`FallocateMode::ZeroRange`], but the blocks are written, so that overwriting them
    /// changes no map later. *Linux* refuses it on devices that do not zero by unmapping; to others zeros are written here, which takes as
    /// long as it takes. If the last step fails, the range reads as zeros, and its blocks and the size stay.
    WriteZeroes,
    /// `FALLOC_FL_COLLAPSE_RANGE`: takes the range out; what is behind it moves forward. Whole
    /// clusters inside the file.
    CollapseRange,
    /// `FALLOC_FL_INSERT_RANGE`: makes room for a hole; what is behind it moves back. Whole clusters.
    InsertRange,
}

/// Changes of a file's attributes: what is not named stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    permissions: Option<u16>,
    uid: Option<u32>,
    gid: Option<u32>,
    atime: Option<Timestamp>,
    mtime: Option<Timestamp>,
    ctime: Option<Timestamp>,
    flags: Option<u32>,
    project: Option<u32>,
    now: bool,
    written_back: bool,
}

impl SetAttributes {
    /// No change, but of the time of the last change, as `chown(-1, -1)`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Permission bits, set-ID and sticky bits included: the low 12 bits.
    pub fn mode(mut self, permissions: u16) -> Self {
        self.permissions = Some(permissions & 0o7777);
        self
    }

    /// Owner. Strips set-user-ID, set-group-ID and capabilities from all but directories, as `chown` does.
    pub fn uid(mut self, uid: u32) -> Self {
        self.uid = Some(uid);
        self
    }

    /// Group. Strips as [`SetAttributes::uid`].
    pub fn gid(mut self, gid: u32) -> Self {
        self.gid = Some(gid);
        self
    }

    /// Last access.
    pub fn atime(mut self, time: Timestamp) -> Self {
        self.atime = Some(time);
        self
    }

    /// Last change of the content.
    pub fn mtime(mut self, time: Timestamp) -> Self {
        self.mtime = Some(time);
        self
    }

    /// Last change of the inode: now, if this is not set. For callers that keep times themselves, as the kernel
    /// does for a FUSE mount.
    pub fn ctime(mut self, time: Timestamp) -> Self {
        self.ctime = Some(time);
        self
    }

    /// The times that [`SetAttributes::atime`] and [`SetAttributes::mtime`] give are those of the moment, as with `UTIME_NOW`
    /// for both: an append-only file takes them, as in Linux. Sets no time by itself.
    pub fn now(mut self) -> Self {
        self.now = true;
        self
    }

    /// The times are those of writes that were allowed when they were made, and that a page cache has written back:
    /// no flag that was set since refuses them. As [`crate::OpenOptions::written_back`].
    pub fn written_back(mut self) -> Self {
        self.written_back = true;
        self
    }

    /// Inode flags (`EXT4_*_FL`). Those that only the file system itself sets stay as they are. `EOPNOTSUPP` for those
    /// that say how content is stored or names are compared, and for those that this kind of file does not have.
    pub fn flags(mut self, flags: u32) -> Self {
        self.flags = Some(flags);
        self
    }

    /// Project. `EOPNOTSUPP` for one that is not 0 on a file system without the feature `project`, and
    /// where the inode has no room for it.
    pub fn project(mut self, project: u32) -> Self {
        self.project = Some(project);
        self
    }
}

/// What `statfs` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct StatFs {
    /// File-system block in bytes.
    pub block_size: u32,
    /// Blocks that files can have: all but those of the fixed metadata.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for who may not use the reserve.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// Flags that a user may name: `EXT4_FL_USER_VISIBLE`.
const VISIBLE: u32 = 0x725b_dfff;

/// Of these, flags that say how content is stored or names are compared.
const FIXED: u32 = InodeFlags::JOURNAL_DATA.0 | InodeFlags::EXTENTS.0 | InodeFlags::CASEFOLD.0;

/// Of these, flags that a user may change.
const CHANGEABLE: u32 = InodeFlags::SECRM.0
    | InodeFlags::UNRM.0
    | InodeFlags::COMPR.0
    | InodeFlags::SYNC.0
    | InodeFlags::IMMUTABLE.0
    | InodeFlags::APPEND.0
    | InodeFlags::NODUMP.0
    | InodeFlags::NOATIME.0
    | InodeFlags::NOTAIL.0
    | InodeFlags::DIRSYNC.0
    | InodeFlags::TOPDIR.0
    | InodeFlags::DAX.0
    | InodeFlags::PROJINHERIT.0;

/// Of these, flags that only directories have.
const OF_DIRECTORIES: u32 =
    InodeFlags::DIRSYNC.0 | InodeFlags::TOPDIR.0 | InodeFlags::PROJINHERIT.0;

/// Of these, flags that files have that are neither regular nor directories.
const OF_OTHERS: u32 = InodeFlags::NODUMP.0 | InodeFlags::NOATIME.0;

pub(super) fn changeable(file_type: FileType) -> u32 {
    match file_type {
        FileType::Directory => CHANGEABLE,
        FileType::Regular => CHANGEABLE & !OF_DIRECTORIES,
        _ => OF_OTHERS,
    }
}

/// The flags that a file gets where a user asks for some, as Linux has it. What he cannot have is an error.
fn new_flags(before: u32, asked: u32, file_type: FileType) -> std::result::Result<u32, u32> {
    let of_type = changeable(file_type);
    let not_his = asked & !before & !(VISIBLE & !CHANGEABLE | of_type);
    match not_his | (asked ^ before) & FIXED {
        0 => Ok(asked & of_type | before & !of_type),
        refused => Err(refused),
    }
}

/// As Linux: what lies outside of the times that there are is cut to their ends, and there are no nanoseconds at
/// the ends.
pub(crate) fn to_disk(time: Timestamp, inode_size: usize) -> DiskTime {
    let least = i64::from(i32::MIN);
    let most = match inode_size {
        0..=128 => i64::from(i32::MAX),
        _ => least + (4 << 32) - 1,
    };
    let secs = time.secs.clamp(least, most);
    let is_end = secs == least || secs == most;
    let nsec = if is_end { 0 } else { time.nanos };
    DiskTime { secs, nsec }
}

/// # Errors
/// [`Error::Invalid`] if a time has a second or more of nanoseconds.
pub(crate) fn check_times(times: &[Option<Timestamp>]) -> Result<()> {
    let is_bad = |time: &Timestamp| time.nanos >= 1_000_000_000;
    match times.iter().flatten().any(is_bad) {
        true => Err(Error::Invalid("a time of over 999,999,999 ns".into())),
        false => Ok(()),
    }
}

/// # Errors
/// [`Error::Invalid`] for the number that has chown(2) leave an owner alone: no file can be its own.
pub(crate) fn check_owner(ids: [Option<u32>; 2]) -> Result<()> {
    match ids.contains(&Some(u32::MAX)) {
        true => Err(Error::Invalid(format!("{} is no user or group", u32::MAX))),
        false => Ok(()),
    }
}

impl Mount {
    /// Changes attributes of an inode, all in one transaction. Blocks.
    ///
    /// # Errors
    /// See [`crate::File::set_attributes`].
    pub(crate) fn set_attributes(&self, inode: &Inode, set: &SetAttributes) -> Result<()> {
        check_owner([set.uid, set.gid])?;
        let writer = self.writer()?;
        let names = inode.lock_names_of_dir();
        let exclusive = lock(
            self,
            inode,
            LockMode::Exclusive,
            Wait::Block,
            slot::current(),
        )?;
        let before = inode.flags().0;
        let after = match set.flags {
            Some(asked) => new_flags(before, asked, inode.file_type()).map_err(|refused| {
                let (names, ino) = (InodeFlags(refused), inode.ino);
                Error::Unsupported(format!("changing the flags {names} of inode {ino}"))
            })?,
            None => before,
        };
        self.check_fixed(inode, set, before & after, before ^ after)?;
        let set = &SetAttributes {
            flags: set.flags.map(|_| after),
            ..set.clone()
        };
        check_times(&[set.atime, set.mtime, set.ctime])?;
        self.check_project(inode, set)?;
        let changed = self.with_space(writer, || {
            self.strip_capability(writer, inode, set)?;
            self.apply(writer, inode, set)
        });
        if changed.is_ok() {
            let node = inode.node();
            inode.set_nosec(self.nosec(&node.disk, &node.raw, inode.ino));
        }
        drop((exclusive, names));
        // A list may have had its value in an inode.
        let reaped = self.reap_values(writer);
        changed?;
        reaped?;
        // Of attributes, Linux waits for these, for lists and for extended attributes.
        match set.flags {
            Some(_) => self.keep_in_step(inode),
            None => Ok(()),
        }
    }

    /// What an inode that is and stays immutable or append-only lets nobody change.
    fn check_fixed(
        &self,
        inode: &Inode,
        set: &SetAttributes,
        flags: u32,
        changed: u32,
    ) -> Result<()> {
        let refused = |what: &str| {
            let ino = inode.ino;
            Err(Error::NotPermitted(format!("inode {ino} is {what}")))
        };
        let has_times = [set.atime, set.mtime, set.ctime]
            .iter()
            .any(Option::is_some);
        let has_times = has_times && !set.written_back;
        let has_owner = set.permissions.is_some() || set.uid.is_some() || set.gid.is_some();
        let project = set
            .project
            .is_some_and(|project| project != self.project_of(&inode.node().disk));
        let is = |flag: InodeFlags| flags & flag.0 != 0;
        if is(InodeFlags::IMMUTABLE) && (has_times || has_owner || project || changed != 0) {
            return refused("immutable");
        }
        if is(InodeFlags::APPEND) && (has_owner || has_times && !set.now) {
            return refused("append-only");
        }
        Ok(())
    }

    fn check_project(&self, inode: &Inode, set: &SetAttributes) -> Result<()> {
        let Some(project) = set.project else {
            return Ok(());
        };
        let has_feature = self.has_projects();
        let has_room = inode.node().disk.clone().set_projid(project);
        match has_feature && has_room || project == 0 {
            true => Ok(()),
            false if has_feature => Err(Error::Unsupported(format!(
                "inode {} has no room for a project",
                inode.ino
            ))),
            false => Err(Error::Unsupported(
                "projects: the file system lacks the feature project".into(),
            )),
        }
    }

    /// Takes the capabilities of what gets another owner, before it does, as Linux has it.
    fn strip_capability(&self, writer: &Writer, inode: &Inode, set: &SetAttributes) -> Result<()> {
        let has_owner = set.uid.is_some() || set.gid.is_some();
        let node = inode.node();
        // Attributes that cannot be read do not keep the owner from changing.
        let has_capability = || self.has_capability(&node.disk, &node.raw, inode.ino);
        match has_owner && !node.disk.is_dir() && has_capability().unwrap_or(false) {
            true => self.remove_capability(writer, inode),
            false => Ok(()),
        }
    }

    fn apply(&self, writer: &Writer, inode: &Inode, set: &SetAttributes) -> Result<()> {
        let list = match set.permissions {
            Some(_) => self.access_list_len(inode)?,
            None => None,
        };
        let lists = list.map_or(Ok(0), |len| self.xattr_credits(inode, len))?;
        let mut handle = writer.begin(lists + INODE_CREDITS)?;
        let mut target = inode.node().disk.clone();
        apply(&mut target, set, self.now());
        self.prepare_quota(&mut handle, inode.ino, &target)?;
        if let Some(permissions) = set.permissions {
            self.acl_chmod(writer, &mut handle, inode, permissions)?;
        }
        let (now, lock) = (self.now(), inode.map.lock());
        let changed = self.change_inode(&mut handle, inode, &lock, &mut |disk| {
            apply(disk, set, now);
        });
        match set.permissions {
            Some(_) => changed.map_err(|error| self.fail(error))?,
            None => changed?,
        }
        inode.changed_in(handle.tid(), true);
        drop(lock);
        handle.stop()?;
        Ok(())
    }

    /// The numbers of the file system.
    pub(crate) fn statfs(&self) -> StatFs {
        let sb = &self.sb;
        let ratio = u64::from(sb.cluster_ratio());
        let (free, unclaimed, files_free) = match self.started_writer() {
            Some(writer) => {
                // What waits for a commit is to be had: an allocation that finds no room has one made.
                let blocks = &writer.blocks;
                let unclaimed =
                    blocks.available_clusters(Right::Resource) + blocks.pending_clusters();
                let files_free = writer.inodes.free_inodes();
                (
                    blocks.free_clusters() * ratio,
                    unclaimed * ratio,
                    files_free,
                )
            }
            None => {
                let Counts {
                    free_blocks: free,
                    free_inodes,
                } = self.free_counts();
                let unclaimed = free.saturating_sub(self.aside_clusters() * ratio);
                (free, unclaimed, free_inodes.into())
            }
        };
        StatFs {
            block_size: sb.block_size(),
            blocks: sb.blocks_count().saturating_sub(self.overhead()),
            blocks_free: free,
            blocks_available: unclaimed.saturating_sub(sb.reserved_blocks_count()),
            files: sb.inodes_count().into(),
            files_free,
            name_max: 255,
        }
    }
}

fn apply(disk: &mut DiskInode, set: &SetAttributes, now: DiskTime) {
    if set.uid.is_some() || set.gid.is_some() {
        disk.set_owner(set.uid.unwrap_or(disk.uid()), set.gid.unwrap_or(disk.gid()));
        let mode = u32::from(disk.permissions());
        let group = if mode & libc::S_IXGRP != 0 {
            libc::S_ISGID
        } else {
            0
        };
        if !disk.is_dir() {
            disk.set_permissions((mode & !(libc::S_ISUID | group)) as u16);
        }
    }
    if let Some(permissions) = set.permissions {
        disk.set_permissions(permissions);
    }
    if let Some(time) = set.atime {
        disk.set_atime(to_disk(time, disk.inode_size()));
    }
    if let Some(time) = set.mtime {
        disk.set_mtime(to_disk(time, disk.inode_size()));
    }
    if let Some(flags) = set.flags {
        disk.disk_mut().i_flags = flags;
    }
    if let Some(project) = set.project {
        // Without room it is 0, and stays so.
        let _ = disk.set_projid(project);
    }
    disk.set_ctime(
        set.ctime
            .map_or(now, |time| to_disk(time, disk.inode_size())),
    );
}
