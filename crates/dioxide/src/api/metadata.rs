//! What `stat`, `readdir` and the attribute calls return.

use dioxide_format::types::Ino;
use std::fmt;
use std::time::{Duration, SystemTime};

/// What kind of file an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A directory entry that does not say, or an inode with no valid type.
    Unknown,
}

/// A point in time: seconds and nanoseconds since 1970-01-01T00:00:00Z.
///
/// It converts from and to [`SystemTime`] as it is, before 1970 too. What the disk cannot hold is cut to its ends when it is set
/// ([`crate::SetAttributes`]).
///
/// ```
/// use dioxide::Timestamp;
/// use std::time::{Duration, SystemTime};
///
/// let time = SystemTime::UNIX_EPOCH - Duration::from_millis(1500);
/// let (secs, nanos) = (-2, 500_000_000);
/// assert_eq!(Timestamp::from(time), Timestamp { secs, nanos });
/// assert_eq!(SystemTime::from(Timestamp { secs, nanos }), time);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Timestamp {
    /// Seconds; negative before 1970.
    pub secs: i64,
    /// Nanoseconds on top, below 1,000,000,000.
    pub nanos: u32,
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Timestamp {
        // Seconds are an i64 there too: the first of them has no positive counterpart.
        let (secs, nanos) = match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
            Err(before) => {
                let before = before.duration();
                let secs = (before.as_secs() as i64).wrapping_neg();
                match before.subsec_nanos() {
                    0 => (secs, 0),
                    nanos => (secs - 1, 1_000_000_000 - nanos),
                }
            }
        };
        Timestamp { secs, nanos }
    }
}

impl From<Timestamp> for SystemTime {
    /// Nanoseconds of a second or more, which a damaged inode may have, go on into the next one, if there is one.
    fn from(time: Timestamp) -> SystemTime {
        let whole = Duration::from_secs(time.secs.unsigned_abs());
        let second = match time.secs < 0 {
            true => SystemTime::UNIX_EPOCH - whole,
            false => SystemTime::UNIX_EPOCH + whole,
        };
        let nanos = Duration::from_nanos(time.nanos.into());
        second.checked_add(nanos).unwrap_or(second)
    }
}

/// What `stat` tells of a file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Metadata {
    /// Inode number.
    pub ino: u32,
    /// Kind of file.
    pub file_type: FileType,
    /// Permission bits, set-ID and sticky bits included: the low 12 bits of `st_mode`.
    pub permissions: u16,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project, where the image has projects.
    pub project: Option<u32>,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in 512-byte units, as in `st_blocks`.
    pub blocks: u64,
    /// File-system block in bytes.
    pub block_size: u32,
    /// Major and minor number of a device node.
    pub device: Option<(u32, u32)>,
    /// Last access, as on the disk: dioxide does not update it (as with `noatime`).
    pub atime: Timestamp,
    /// Last change of the data. Overwrites through this mount are included, though perhaps not on the disk
    /// before [`crate::File::sync_all`], [`crate::Fs::sync`] or the end of the mount.
    pub mtime: Timestamp,
    /// Last change of the inode. As for `mtime`.
    pub ctime: Timestamp,
    /// Creation, where the inode has room for it.
    pub crtime: Option<Timestamp>,
    /// Inode flags (`EXT4_*_FL`), as `lsattr` shows.
    pub flags: u32,
    /// Generation number.
    pub generation: u32,
    /// What [`crate::File::write_at_atomic`] takes, if the file and the device can do it (`STATX_WRITE_ATOMIC`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub atomic_write: Option<AtomicWrite>,
}

/// Lengths of atomic writes, in bytes, both powers of two, as are those between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct AtomicWrite {
    /// The shortest.
    pub min: u32,
    /// The longest.
    pub max: u32,
}

impl Metadata {
    /// The whole `st_mode`: type and permissions.
    pub fn mode(&self) -> u32 {
        self.file_type.mode() | u32::from(self.permissions)
    }

    /// Of its flags, those that [`crate::SetAttributes::flags`] gives to another file of this type.
    pub fn changeable_flags(&self) -> u32 {
        self.flags & super::attributes::changeable(self.file_type)
    }
}

impl FileType {
    /// The type in an `st_mode`; 0 if it is unknown.
    pub fn mode(self) -> u32 {
        match self {
            FileType::Regular => libc::S_IFREG,
            FileType::Directory => libc::S_IFDIR,
            FileType::Symlink => libc::S_IFLNK,
            FileType::CharDevice => libc::S_IFCHR,
            FileType::BlockDevice => libc::S_IFBLK,
            FileType::Fifo => libc::S_IFIFO,
            FileType::Socket => libc::S_IFSOCK,
            FileType::Unknown => 0,
        }
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileType::Regular => "regular file",
            FileType::Directory => "directory",
            FileType::Symlink => "symbolic link",
            FileType::CharDevice => "character device",
            FileType::BlockDevice => "block device",
            FileType::Fifo => "FIFO",
            FileType::Socket => "socket",
            FileType::Unknown => "file of no known kind",
        })
    }
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Inode it names.
    pub ino: Ino,
    /// The name: any bytes but `/` and NUL.
    pub name: Vec<u8>,
    /// The type that the entry records; [`FileType::Unknown`] on file systems without `filetype`.
    pub file_type: FileType,
}

/// One extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// Full name, with its prefix: `user.comment`.
    pub name: Vec<u8>,
    /// Value.
    pub value: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_to_system_time_and_back() {
        for secs in [i64::MIN, -2_147_483_648, -1, 0, 1, 15_032_385_535, i64::MAX] {
            for nanos in [0, 1, 999_999_999] {
                let time = Timestamp { secs, nanos };
                assert_eq!(Timestamp::from(SystemTime::from(time)), time);
            }
        }
        let before = SystemTime::UNIX_EPOCH - Duration::from_nanos(1);
        let (secs, nanos) = (-1, 999_999_999);
        assert_eq!(Timestamp::from(before), Timestamp { secs, nanos });
        let of_disk = |secs| Timestamp {
            secs,
            nanos: (1 << 30) - 1,
        };
        let next = SystemTime::UNIX_EPOCH + Duration::from_nanos((1 << 30) - 1);
        assert_eq!(SystemTime::from(of_disk(0)), next);
        let last = Timestamp {
            secs: i64::MAX,
            nanos: 0,
        };
        assert_eq!(SystemTime::from(of_disk(i64::MAX)), last.into());
    }
}
