//! Attributes: told, and changed.

use super::{Caller, Live, Server};
use crate::stats::Op;
use crate::table::ROOT_ID;
use crate::{Errno, Result};
use dioxide::format::inode::InodeFlags;
use dioxide::{FileType, Metadata, Node, SetAttributes, StatFs, Timestamp};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Set-user-ID and set-group-ID.
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

/// What the kernel is told of a file.
#[derive(Clone, Debug)]
pub struct Attr {
    /// As the library tells it, with the mount's owner and permissions.
    pub metadata: Metadata,
    /// Device number, as the kernel writes it for user space in 32 bits.
    pub rdev: u32,
}

/// Attributes, and how long they hold.
#[derive(Clone, Debug)]
pub struct Stat {
    /// The attributes.
    pub attr: Attr,
    /// How long the kernel may use them.
    pub valid: Duration,
}

/// What a name stands for.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Node id: the kernel knows the file by it until it forgets it.
    pub id: u64,
    /// The attributes.
    pub attr: Attr,
    /// How long the kernel may use the attributes.
    pub attr_valid: Duration,
    /// How long the kernel may use the name.
    pub entry_valid: Duration,
}

/// What `setattr` changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<Timestamp>,
    /// That is the time that it is.
    pub atime_now: bool,
    /// Last change of the content.
    pub mtime: Option<Timestamp>,
    /// That is the time that it is; not told by a kernel that keeps the times.
    pub mtime_now: bool,
    /// Last change of the inode; the time that it is, if another thing changes.
    pub ctime: Option<Timestamp>,
    /// The file, if it is open.
    pub handle: Option<u64>,
    /// Whether a change of size strips set-user-ID and set-group-ID.
    pub kill_suidgid: bool,
}

impl Change {
    /// Times of writes, which the kernel tells with the handle of an open file, and nobody else does without a size.
    fn comes_from_page_cache(&self) -> bool {
        self.handle.is_some() && self.is_of_last_change()
    }

    /// When the file has changed last, and nothing else: as the kernel keeps it, or as somebody sets it.
    fn is_of_last_change(&self) -> bool {
        let times_alone = Change {
            mtime: self.mtime,
            ctime: self.ctime,
            handle: self.handle,
            kill_suidgid: self.kill_suidgid,
            ..Change::default()
        };
        self.ctime.is_some() && *self == times_alone
    }

    /// A `chown` that names neither user nor group: of what it is, the kernel tells at most a time. A write that takes away
    /// privileges has none where the kernel keeps the times.
    fn is_chown_to_nobody(&self, keeps_times: bool) -> bool {
        let nothing = Change {
            ctime: self.ctime,
            kill_suidgid: self.kill_suidgid,
            ..Change::default()
        };
        *self == nothing && (self.ctime.is_some() || !keeps_times)
    }

    fn attributes(&self) -> Option<SetAttributes> {
        let none = SetAttributes::new();
        let mut set = none.clone();
        if let Some(mode) = self.mode {
            set = set.mode(mode as u16 & 0o7777);
        }
        if let Some(uid) = self.uid {
            set = set.uid(uid);
        }
        if let Some(gid) = self.gid {
            set = set.gid(gid);
        }
        if let Some(time) = self.atime {
            set = set.atime(time);
        }
        if let Some(time) = self.mtime {
            set = set.mtime(time);
        }
        if let Some(time) = self.ctime {
            set = set.ctime(time);
        }
        if self.atime_now && (self.mtime_now || self.mtime.is_some() && self.mtime == self.ctime) {
            set = set.now();
        }
        if self.comes_from_page_cache() {
            set = set.written_back();
        }
        (set != none).then_some(set)
    }
}

/// The time that it is.
pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// As `new_encode_dev` of Linux.
fn encode_device((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// The reverse.
pub(super) fn decode_device(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | (rdev >> 12) & 0xfff00)
}

pub(super) fn is_immutable(metadata: &Metadata) -> bool {
    metadata.flags & InodeFlags::IMMUTABLE.0 != 0
}

/// A change without those times that the kernel keeps and that are older than writes that it has not seen. With a change of
/// another kind (of a name, say) it tells all times, and those of an open file late.
fn unless_older(live: &Live, node: &Node, change: &Change) -> Change {
    let mut change = change.clone();
    let told = change.mtime;
    let before = told.and_then(|told| live.nodes.see(node.ino(), told));
    if before.is_none() || !change.is_of_last_change() {
        return change;
    }
    let (has, now) = (node.metadata(), now());
    let is_older = |told: Option<Timestamp>, has| told.is_some_and(|told| told < has && has <= now);
    if told == before || change.handle.is_some() && is_older(told, has.mtime) {
        change.mtime = None;
    }
    if is_older(change.ctime, has.ctime) {
        change.ctime = Some(has.ctime);
    }
    change
}

impl Server {
    /// `getattr`, by a handle if the kernel is about to use that.
    ///
    /// # Errors
    /// `ESTALE` for a file that the kernel does not know. For a handle that can only be for writing, because the page cache would
    /// take what is written: `EPERM` for a file that has become immutable, `EROFS` where nothing is written any more, `ENOSPC` or
    /// `EFBIG`, once, for one whose pages found no room or lay behind the largest size.
    pub fn getattr(&self, id: u64, handle: Option<u64>) -> Result<Stat> {
        let _timed = self.requests.time(Op::Getattr);
        let live = self.live()?;
        let node = live.node(id)?;
        let handle = handle.map(|handle| live.files.get(handle)).transpose()?;
        let has_failed = live.fs.failure().is_some();
        if let Some(handle) = handle.filter(|handle| handle.is_for_writing_only()) {
            if is_immutable(&node.metadata()) {
                return Err(Errno::PERM);
            }
            if has_failed {
                return Err(Errno::ROFS);
            }
            if let Some(error) = self.full.tell(node.ino(), || handle.no_room(&live.fs)) {
                return Err(error);
            }
        }
        let mut stat = self.stat(&node);
        if has_failed {
            // The kernel is to ask before it writes.
            stat.valid = Duration::ZERO;
        }
        Ok(stat)
    }

    /// `setattr`. A size that changes strips set-user-ID and set-group-ID, if [`Change::kill_suidgid`] wants it.
    ///
    /// # Errors
    /// As [`dioxide::File::set_len`] and [`dioxide::File::set_attributes`].
    pub fn setattr(&self, caller: Caller, id: u64, change: &Change) -> Result<Stat> {
        let _timed = self.requests.time(Op::Setattr);
        let live = self.live()?;
        let node = live.node(id)?;
        if let Some(size) = change.size {
            self.resize(&live, caller, &node, size, change)?;
        }
        if let Some(set) = unless_older(&live, &node, change).attributes() {
            node.set_attributes(&set)?;
        }
        let keeps_times = self.options.writeback && node.file_type() == FileType::Regular;
        if change.is_chown_to_nobody(keeps_times) && node.file_type() != FileType::Directory {
            self.strip(caller, &node)?;
        }
        Ok(self.stat(&node))
    }

    /// The kernel asks for nothing after it, whatever the mount wants.
    fn resize(
        &self,
        live: &Live,
        caller: Caller,
        node: &Node,
        size: u64,
        change: &Change,
    ) -> Result {
        let (strip, sync) = (change.kill_suidgid, self.options.sync);
        if let Some(handle) = change.handle {
            let handle = live.files.get(handle)?;
            handle.forget_gaps();
            let file = handle.file(strip)?;
            file.set_len(size)?;
            return sync.wait(file);
        }
        match node.file_type() {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno(libc::EISDIR)),
            _ => return Err(Errno::INVAL),
        }
        let options = self.options_of(caller).write(true).fsetid(!strip);
        let file = node.open(&options)?;
        file.set_len(size)?;
        sync.wait(&file)
    }

    /// What a `chown` takes away, whoever becomes the owner. Nothing for who does not own the file: the kernel may ask the same
    /// for a write, which takes it away itself, and not say which it is.
    fn strip(&self, caller: Caller, node: &Node) -> Result {
        let metadata = node.metadata();
        match self.is_owner(caller, &metadata) {
            true => Ok(node.set_attributes(&SetAttributes::new().uid(metadata.uid))?),
            false => Ok(()),
        }
    }

    /// Whether a file is the caller's, as the mount shows it. Root's are all.
    pub(super) fn is_owner(&self, caller: Caller, metadata: &Metadata) -> bool {
        let by = self.acting(caller).uid;
        by == 0 || by == self.options.uid.unwrap_or(metadata.uid)
    }

    pub(super) fn stat(&self, node: &Node) -> Stat {
        let attr = self.attr(node.metadata());
        let valid = self.valid(&attr);
        Stat { attr, valid }
    }

    /// The kernel is told of a file, which is likely to be used next.
    pub(super) fn tell(&self, live: &Live, node: &Arc<Node>) -> Entry {
        let entry = self.tell_of(live, node.metadata());
        if entry.attr.metadata.nlink == 0 {
            live.nodes.hold(node);
        }
        live.nodes.keep_recent(node);
        entry
    }

    /// The kernel is told of a file that has a name.
    pub(super) fn tell_of(&self, live: &Live, metadata: Metadata) -> Entry {
        let id = live.nodes.learn(metadata.ino, metadata.generation);
        let attr = self.attr(metadata);
        Entry {
            id,
            attr_valid: self.valid(&attr),
            attr,
            entry_valid: self.options.entry_timeout,
        }
    }

    fn valid(&self, attr: &Attr) -> Duration {
        match attr.metadata.file_type {
            // The kernel is to ask before it writes.
            FileType::Regular if is_immutable(&attr.metadata) => Duration::ZERO,
            FileType::Regular if self.full.is_noted(attr.metadata.ino) => Duration::ZERO,
            // A write takes them away, which the kernel does not see: it would run the file by the mode that it has.
            FileType::Regular if u32::from(attr.metadata.permissions) & SET_ID != 0 => {
                Duration::ZERO
            }
            FileType::Regular => self.options.attr_timeout,
            _ => self.options.entry_timeout,
        }
    }

    pub(super) fn attr(&self, mut metadata: Metadata) -> Attr {
        let options = &self.options;
        metadata.uid = options.uid.unwrap_or(metadata.uid);
        metadata.gid = options.gid.unwrap_or(metadata.gid);
        if metadata.file_type != FileType::Symlink {
            metadata.permissions &= !options.umask.unwrap_or(0);
        }
        let rdev = metadata.device.map_or(0, encode_device);
        Attr { metadata, rdev }
    }

    /// `statfs`.
    ///
    /// # Errors
    /// None but `ENODEV`.
    pub fn statfs(&self) -> Result<StatFs> {
        let _timed = self.requests.time(Op::Statfs);
        Ok(self.live()?.fs.statfs())
    }

    /// `readlink`.
    ///
    /// # Errors
    /// As [`Node::read_link`].
    pub fn readlink(&self, id: u64) -> Result<Vec<u8>> {
        let _timed = self.requests.time(Op::Readlink);
        let live = self.live()?;
        Ok(live.node(id)?.read_link()?)
    }

    /// `forget`: the kernel has dropped so many of the lookups that it was told of.
    pub fn forget(&self, id: u64, lookups: u64) {
        let _timed = self.requests.time(Op::Forget);
        if id == ROOT_ID {
            return;
        }
        if let Ok(live) = self.live() {
            live.nodes.forget(id, lookups);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_number_of_every_width_comes_back() {
        for device in [(0, 0), (8, 1), (259, 0xfffff), (0xfff, 0x12345)] {
            assert_eq!(decode_device(encode_device(device)), device);
        }
        assert_eq!(encode_device((8, 17)), 0x811);
    }

    #[test]
    fn change_of_the_size_alone_changes_no_attributes() {
        let change = Change {
            size: Some(1),
            ..Change::default()
        };
        assert_eq!(change.attributes(), None);
    }

    #[test]
    fn chown_to_nobody_is_told_from_other_changes() {
        let change = Change {
            ctime: Some(Timestamp::default()),
            ..Change::default()
        };
        assert!(change.is_chown_to_nobody(true));
        assert!(Change::default().is_chown_to_nobody(false));
        for other in [
            Change::default(),
            Change {
                mode: Some(0o755),
                ..change.clone()
            },
            Change {
                handle: Some(1),
                mtime: Some(Timestamp::default()),
                ..change
            },
        ] {
            assert!(!other.is_chown_to_nobody(true));
        }
    }

    #[test]
    fn times_of_the_page_cache_are_told_from_those_of_users() {
        let times = Change {
            mtime: Some(Timestamp::default()),
            ctime: Some(Timestamp::default()),
            ..Change::default()
        };
        assert!(!times.comes_from_page_cache());
        let cached = Change {
            handle: Some(1),
            ..times
        };
        assert!(cached.comes_from_page_cache());
        let truncated = Change {
            size: Some(0),
            ..cached
        };
        assert!(!truncated.comes_from_page_cache());
    }
}
