//! Attributes of files: permissions, owner, times, flags, project, extended attributes and among them access control
//! lists; and what calls make of them, as Linux has it.
//!
//! Not for: who may make a call, and whether there is room.

use dioxide::FileType;
use dioxide::format::inode::InodeFlags;
use std::collections::BTreeMap;
use std::fmt;

/// The access control list of a file.
pub const ACCESS: &str = "system.posix_acl_access";
/// The list that a directory hands on.
pub const DEFAULT: &str = "system.posix_acl_default";

/// Flags that let nobody change a file.
pub const FIXED: u32 = InodeFlags::IMMUTABLE.0 | InodeFlags::APPEND.0;
/// Flags that make changes durable at once: of a file, and of names in a directory.
pub const IN_STEP: u32 = InodeFlags::SYNC.0 | InodeFlags::DIRSYNC.0;
/// Flags that new files of every kind have of their directory.
const INHERITED: u32 = InodeFlags::NODUMP.0 | InodeFlags::NOATIME.0;
/// Flags that are looked at; the others stay as they are.
pub const FLAGS: u32 = FIXED | INHERITED | IN_STEP;

/// Of a directory's flags those that a new file has.
fn inherited(flags: u32, file_type: FileType) -> u32 {
    flags
        & match file_type {
            FileType::Directory => INHERITED | IN_STEP,
            FileType::Regular => INHERITED | InodeFlags::SYNC.0,
            _ => INHERITED,
        }
}

/// Seconds since 1970 that the clock has behind it: earlier times are those that were asked for.
pub(crate) const CLOCK: i64 = 1_500_000_000;

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;

/// Kinds of entries in a list.
const USER_OBJ: u8 = 0x01;
const GROUP_OBJ: u8 = 0x04;
const MASK: u8 = 0x10;
const OTHER: u8 = 0x20;

/// What a file has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// The low 12 bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Of [`FLAGS`].
    pub flags: u32,
    /// Project; 0 where there are none.
    pub project: u32,
    /// See [`asked_for`].
    pub atime: Option<i64>,
    /// See [`asked_for`].
    pub mtime: Option<i64>,
    /// Extended attributes, as `getxattr` gives them.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A time, in seconds, if a call asked for it; none if it is the clock's.
pub fn asked_for(secs: i64) -> Option<i64> {
    (secs < CLOCK).then_some(secs)
}

/// A list as `getxattr` gives it, of kinds, permissions (0 to 7) and numbers of users or groups.
pub fn list(entries: &[(u8, u8, u32)]) -> Vec<u8> {
    let mut list = 2u32.to_le_bytes().to_vec();
    for &(tag, perm, id) in entries {
        list.extend([tag, 0, perm, 0]);
        list.extend(id.to_le_bytes());
    }
    list
}

/// The permissions of the entries that stand for parts of a mode, and where in it they are.
fn parts(list: &mut [u8]) -> impl Iterator<Item = (&mut u8, u32)> {
    let has_mask = list[4..].chunks(8).any(|entry| entry[0] == MASK);
    let group = if has_mask { MASK } else { GROUP_OBJ };
    let part = move |entry: &'_ mut [u8]| -> Option<u32> {
        match entry[0] {
            USER_OBJ => Some(6),
            tag if tag == group => Some(3),
            OTHER => Some(0),
            _ => None,
        }
    };
    let entries = list[4..].chunks_mut(8);
    entries.filter_map(move |entry| part(entry).map(|shift| (&mut entry[2], shift)))
}

/// Whether a list says more than a mode can.
fn says_more(list: &[u8]) -> bool {
    let of_mode = [USER_OBJ, GROUP_OBJ, OTHER];
    let mut tags = list[4..].chunks(8).map(|entry| entry[0]);
    tags.any(|tag| !of_mode.contains(&tag))
}

impl Attributes {
    /// Of a file that belongs to root.
    pub fn new(mode: u16) -> Attributes {
        Attributes {
            mode,
            ..Attributes::default()
        }
    }

    /// Of a new file of this type in a directory; `mode` is what was asked for.
    pub fn of_new(dir: &Attributes, file_type: FileType, mode: u16) -> Attributes {
        let mut new = Attributes::new(mode);
        new.flags = inherited(dir.flags, file_type);
        if dir.mode & SET_GID != 0 {
            new.gid = dir.gid;
            if file_type == FileType::Directory {
                new.mode |= SET_GID;
            }
        }
        match dir.xattrs.get(DEFAULT.as_bytes()) {
            _ if file_type == FileType::Symlink => new.mode = 0o777,
            Some(list) => new.inherit(list, file_type == FileType::Directory),
            None => {}
        }
        new
    }

    fn inherit(&mut self, default: &[u8], is_dir: bool) {
        if is_dir {
            self.xattrs.insert(DEFAULT.into(), default.to_vec());
        }
        let mut access = default.to_vec();
        for (perm, shift) in parts(&mut access) {
            *perm &= (self.mode >> shift) as u8 & 7;
            self.mode &= !(7 << shift) | u16::from(*perm) << shift;
        }
        if says_more(&access) {
            self.xattrs.insert(ACCESS.into(), access);
        }
    }

    /// `chmod`.
    pub fn set_mode(&mut self, mode: u16) {
        self.mode = mode;
        if let Some(list) = self.xattrs.get_mut(ACCESS.as_bytes()) {
            for (perm, shift) in parts(list) {
                *perm = (mode >> shift) as u8 & 7;
            }
        }
    }

    /// `chown`.
    pub fn set_owner(&mut self, uid: u32, gid: u32, file_type: FileType) {
        (self.uid, self.gid) = (uid, gid);
        if file_type != FileType::Directory {
            let group = if self.mode & 0o010 != 0 { SET_GID } else { 0 };
            self.mode &= !(SET_UID | group);
        }
    }

    /// Sets one of [`ACCESS`] and [`DEFAULT`]. A list without entries, or an access list that says no more than a
    /// mode, is not stored.
    pub fn set_list(&mut self, name: &str, list: &[u8]) {
        let mut list = list.to_vec();
        let is_access = name == ACCESS;
        if is_access {
            for (perm, shift) in parts(&mut list) {
                self.mode = self.mode & !(7 << shift) | u16::from(*perm) << shift;
            }
        }
        let is_stored = list.len() > 4 && (!is_access || says_more(&list));
        match is_stored {
            true => self.xattrs.insert(name.into(), list),
            false => self.xattrs.remove(name.as_bytes()),
        };
    }

    /// Whether a flag keeps it as it is.
    pub fn is_fixed(&self) -> bool {
        self.flags & FIXED != 0
    }
}

/// Of values, the lengths.
impl fmt::Display for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attributes { uid, gid, .. } = self;
        write!(f, "{:o} {uid}:{gid}", self.mode)?;
        if self.flags != 0 {
            write!(f, " flags {}", InodeFlags(self.flags))?;
        }
        if self.project != 0 {
            write!(f, " project {}", self.project)?;
        }
        for (what, time) in [("atime", self.atime), ("mtime", self.mtime)] {
            if let Some(secs) = time {
                write!(f, " {what} {secs}")?;
            }
        }
        for (name, value) in &self.xattrs {
            write!(f, " {}={}", name.escape_ascii(), value.len())?;
        }
        Ok(())
    }
}
