//! A file in an image or on the host, for commands that take both: cp and mv.
//!
//! What differs between the two ends here, so that a copy is written once and not four times. Each call is one
//! operation of either side, and its error names the file as the user calls it.

mod content;
mod held;
mod pending;

pub use content::{Content, write_all_at};
pub use held::{Held, HostFile};
pub use pending::Pending;

use crate::failure::Failure;
use crate::render::printable;
use crate::session::{Target, split_path};
use crate::walk::{First, Names, Tree, listed};
use dioxide::{DirEntry, Error, FileType, Metadata, NewFile, Timestamp, Xattr};
use rustix::fs::PROC_SUPER_MAGIC;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file in an image or on the host.
#[derive(Clone)]
pub enum Location {
    Image(Target),
    Host(PathBuf),
}

/// What tells a file from all others, whatever its names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// The address of the image's device in memory, which is open for as long as a command runs.
    Image {
        device: usize,
        ino: u32,
    },
    Host {
        dev: u64,
        ino: u64,
    },
}

impl Identity {
    /// That of a file on the host, whatever it is called; none where it cannot be told.
    pub fn of_file(path: &Path) -> Option<Identity> {
        let metadata = fs::metadata(path).ok()?;
        Some(Facts::of_host(&metadata).identity)
    }
}

/// What changes with the content of a file: its size and mtime. ctime does too, but also with another name of the file.
pub type Stamp = (u64, Timestamp);

/// Why an attribute was not set.
pub struct XattrFailure {
    /// The file system has no such attributes, or not for this process: it would be so with every file.
    pub is_refusal: bool,
    pub why: String,
}

/// What is known of a file on either side.
#[derive(Clone, Debug)]
pub struct Facts {
    pub identity: Identity,
    pub file_type: FileType,
    /// The low 12 bits of the mode.
    pub permissions: u16,
    pub nlink: u64,
    pub uid: u32,
    pub gid: u32,
    /// Major and minor number of a device.
    pub device: Option<(u32, u32)>,
    pub size: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
}

impl Location {
    /// What the user calls it.
    pub fn shown(&self) -> &[u8] {
        match self {
            Location::Image(target) => &target.shown,
            Location::Host(path) => path.as_os_str().as_bytes(),
        }
    }

    /// The last name of the path; empty for a root.
    pub fn name(&self) -> &[u8] {
        match self {
            Location::Image(target) => target.name(),
            Location::Host(path) => split_path(path.as_os_str().as_bytes()).1,
        }
    }

    /// Whether the path ends with a slash, and so names a directory.
    pub fn says_directory(&self) -> bool {
        self.shown().ends_with(b"/")
    }

    /// The directory that the last name is in.
    pub fn parent(&self) -> Location {
        match self {
            Location::Image(target) => Location::Image(target.parent()),
            Location::Host(path) => {
                let parent = split_path(path.as_os_str().as_bytes()).0;
                let parent = if parent.is_empty() { b"." } else { parent };
                Location::Host(OsStr::from_bytes(parent).into())
            }
        }
    }

    pub fn child(&self, name: &[u8]) -> Location {
        match self {
            Location::Image(target) => Location::Image(target.child(name)),
            Location::Host(path) => Location::Host(path.join(OsStr::from_bytes(name))),
        }
    }

    /// What tells the file on the host that holds the image from all others; none on the host, and where that cannot be told.
    pub fn image_file(&self) -> Option<Identity> {
        let Location::Image(target) = self else {
            return None;
        };
        Identity::of_file(&target.address.image)
    }

    /// Whether both are one entry of one directory, whatever ways lead to it.
    pub fn is_entry(&self, other: &Location) -> Result<bool, Failure> {
        if self.name() != other.name() {
            return Ok(false);
        }
        let directory = |of: &Location| of.parent().find(First::Followed);
        let (a, b) = (directory(self)?, directory(other)?);
        Ok(a.zip(b).is_some_and(|(a, b)| a.identity == b.identity))
    }

    /// What is there, or that nothing is.
    pub fn find(&self, first: First) -> Result<Option<Facts>, Failure> {
        match self {
            Location::Image(target) => {
                let found = match first {
                    First::Itself => target.fs.symlink_metadata(target.path()),
                    First::Followed => target.fs.metadata(target.path()),
                };
                match found {
                    Ok(metadata) => Ok(Some(Facts::of_image(target, &metadata))),
                    Err(Error::NotFound(_)) => Ok(None),
                    Err(error) => Err(target.failure(&error)),
                }
            }
            Location::Host(path) => match examine_host(path, first) {
                Ok(metadata) => Ok(Some(Facts::of_host(&metadata))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(Failure::host(self, &error)),
            },
        }
    }

    /// Whether it is a symlink, wherever that leads.
    pub fn is_symlink(&self) -> Result<bool, Failure> {
        let found = self.find(First::Itself)?;
        Ok(found.is_some_and(|facts| facts.file_type == FileType::Symlink))
    }

    /// Whether it is a symlink that leads to the descriptor of some process, as `/dev/stdout` does.
    pub fn leads_to_descriptor(&self) -> bool {
        // As many symlinks as Linux follows.
        const MOST: usize = 40;
        let Location::Host(path) = self else {
            return false;
        };
        let mut path = Path::new(".").join(path);
        for _ in 0..MOST {
            let (Ok(link), Some(directory)) = (fs::read_link(&path), path.parent()) else {
                return false;
            };
            path = directory.join(link);
            let within = path.parent().filter(|within| within.ends_with("fd"));
            let within = within.and_then(|within| rustix::fs::statfs(within).ok());
            if within.is_some_and(|found| found.f_type == PROC_SUPER_MAGIC) {
                return true;
            }
        }
        false
    }

    /// The target of a symlink.
    pub fn read_link(&self) -> Result<Vec<u8>, Failure> {
        match self {
            Location::Image(target) => {
                let link = target.fs.read_link(target.path());
                link.map_err(|error| target.failure(&error))
            }
            Location::Host(path) => {
                let link = fs::read_link(path).map_err(|error| Failure::host(self, &error))?;
                Ok(link.into_os_string().into_vec())
            }
        }
    }

    /// Extended attributes, those of a symlink itself. On the host, those that it lets this process see.
    pub fn xattrs(&self) -> Result<Vec<Xattr>, Failure> {
        match self {
            Location::Image(target) => {
                let found = target.node()?.xattrs();
                found.map_err(|error| target.failure(&error))
            }
            Location::Host(path) => match host_xattrs(path) {
                Err(Errno::OPNOTSUPP) => Ok(Vec::new()),
                found => found.map_err(|errno| Failure::host(self, &errno.into())),
            },
        }
    }

    /// Makes a directory. In an image it is made as `new` says; on the host with these permissions, as far as the umask or what the
    /// directory that it is in hands on lets it have them. What is known of it then.
    pub fn create_dir(&self, new: &NewFile, on_host: u16) -> Result<Facts, Failure> {
        match self {
            Location::Image(target) => {
                let made = target.fs.create_dir(target.path(), new);
                made.map_err(|error| target.failure(&error))?;
                self.examine(First::Itself)
            }
            Location::Host(path) => {
                let made = fs::DirBuilder::new().mode(on_host.into()).create(path);
                made.map_err(|error| Failure::host(self, &error))?;
                HostFile::made_directory(path)?.examine()
            }
        }
    }

    /// Which permissions new files in this directory of the host may have: those of its default access control list, or where it
    /// has none those that the umask leaves.
    pub fn new_permissions(&self, umask: u16) -> Result<u16, Failure> {
        let Location::Host(path) = self else {
            unreachable!("in images files are made with theirs");
        };
        match sized(|buf| rustix::fs::getxattr(path, "system.posix_acl_default", buf)) {
            Ok(acl) => Ok(acl_permissions(&acl).unwrap_or(!umask)),
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => Ok(!umask),
            Err(errno) => Err(Failure::host(self, &errno.into())),
        }
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self) -> Result<(), Failure> {
        match self {
            Location::Image(target) => {
                let done = target.fs.remove_dir(target.path());
                done.map_err(|error| target.failure(&error))
            }
            Location::Host(path) => {
                fs::remove_dir(path).map_err(|error| Failure::host(self, &error))
            }
        }
    }

    /// Makes all durable that the file system was given in which this file has its name, and that name.
    pub fn sync(&self) -> Result<(), Failure> {
        match self {
            Location::Image(target) => {
                let done = target.fs.sync();
                done.map_err(|error| target.failure(&error))
            }
            Location::Host(_) => {
                let directory = self.parent();
                let opened = fs::File::open(OsStr::from_bytes(directory.shown()));
                let synced = opened.and_then(|fd| Ok(rustix::fs::syncfs(fd)?));
                synced.map_err(|error| Failure::host(&directory, &error))?;
                directory.sync_names()
            }
        }
    }

    /// Makes the names in a directory of the host durable: a server of FUSE is told of no syncfs. In an image [`Location::sync`]
    /// does it.
    pub fn sync_names(&self) -> Result<(), Failure> {
        let Location::Host(path) = self else {
            return Ok(());
        };
        match fs::File::open(path).map(rustix::fs::fsync) {
            // Some file systems have nothing to do for a directory.
            Ok(Ok(()) | Err(Errno::INVAL)) => Ok(()),
            Ok(Err(errno)) => Err(Failure::host(self, &errno.into())),
            Err(error) => Err(Failure::host(self, &error)),
        }
    }

    /// Whether both are in one image.
    pub fn shares_image(&self, other: &Location) -> bool {
        match (self, other) {
            (Location::Image(a), Location::Image(b)) => device_of(a) == device_of(b),
            _ => false,
        }
    }
}

fn device_of(target: &Target) -> usize {
    Arc::as_ptr(target.fs.device()).cast::<()>().addr()
}

fn examine_host(path: &Path, first: First) -> io::Result<fs::Metadata> {
    match first {
        First::Itself => fs::symlink_metadata(path),
        First::Followed => fs::metadata(path),
    }
}

fn host_xattrs(path: &Path) -> Result<Vec<Xattr>, Errno> {
    let names = sized(|buf| rustix::fs::llistxattr(path, buf))?;
    let mut found = Vec::new();
    for name in names
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
    {
        let os_name = OsStr::from_bytes(name);
        match sized(|buf| rustix::fs::lgetxattr(path, os_name, buf)) {
            Ok(value) => found.push(Xattr {
                name: name.to_vec(),
                value,
            }),
            // Gone since, or for others only.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(found)
}

/// The permissions that an access control list in the form of `getxattr` grants at most; the higher bits of the mode are not its
/// affair.
fn acl_permissions(acl: &[u8]) -> Option<u16> {
    let (version, entries) = acl.split_at_checked(4)?;
    if version != 2_u32.to_le_bytes() {
        return None;
    }
    // The mask, if there is one, stands for the group.
    let find = |tag: u16| {
        let mut entries = entries.chunks_exact(8);
        let found = entries.find(|entry| entry[..2] == tag.to_le_bytes())?;
        Some(u16::from_le_bytes([found[2], found[3]]) & 0o7)
    };
    let group = find(0x10).or_else(|| find(0x04))?;
    Some(!0o777 | find(0x01)? << 6 | group << 3 | find(0x20)?)
}

/// What a call fills in whose result is at most 64 KiB, as Linux has it for names and values.
fn sized(call: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; 64 << 10];
    let len = call(&mut buf)?;
    buf.truncate(len);
    Ok(buf)
}

impl Facts {
    pub fn of_image(target: &Target, metadata: &Metadata) -> Facts {
        Facts {
            identity: Identity::Image {
                device: device_of(target),
                ino: metadata.ino,
            },
            file_type: metadata.file_type,
            permissions: metadata.permissions,
            nlink: metadata.nlink.into(),
            uid: metadata.uid,
            gid: metadata.gid,
            device: metadata.device,
            size: metadata.size,
            atime: metadata.atime,
            mtime: metadata.mtime,
        }
    }

    fn of_host(metadata: &fs::Metadata) -> Facts {
        let time = |secs: i64, nanos: i64| Timestamp {
            secs,
            nanos: u32::try_from(nanos).unwrap_or(0),
        };
        let file_type = host_type(metadata.file_type());
        let is_device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
        let rdev = metadata.rdev();
        Facts {
            identity: Identity::Host {
                dev: metadata.dev(),
                ino: metadata.ino(),
            },
            file_type,
            permissions: (metadata.mode() & 0o7777) as u16,
            nlink: metadata.nlink(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            device: is_device.then(|| (rustix::fs::major(rdev), rustix::fs::minor(rdev))),
            size: metadata.len(),
            atime: time(metadata.atime(), metadata.atime_nsec()),
            mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        }
    }

    /// Those of its permissions that a copy has which preserves nothing: but for the umask.
    pub fn plain_permissions(&self) -> u16 {
        match self.is_directory() {
            true => self.permissions & 0o1777,
            false => self.permissions & 0o777,
        }
    }

    /// What changes with the content.
    pub fn stamp(&self) -> Stamp {
        (self.size, self.mtime)
    }

    pub fn is_directory(&self) -> bool {
        self.file_type == FileType::Directory
    }
}

fn host_type(kind: fs::FileType) -> FileType {
    match () {
        () if kind.is_file() => FileType::Regular,
        () if kind.is_dir() => FileType::Directory,
        () if kind.is_symlink() => FileType::Symlink,
        () if kind.is_char_device() => FileType::CharDevice,
        () if kind.is_block_device() => FileType::BlockDevice,
        () if kind.is_fifo() => FileType::Fifo,
        () if kind.is_socket() => FileType::Socket,
        () => FileType::Unknown,
    }
}

impl Tree for Location {
    type Metadata = Facts;
    type Identity = Identity;

    fn examine(&self, first: First) -> Result<Facts, Failure> {
        match self {
            Location::Image(target) => Ok(Facts::of_image(target, &target.examine(first)?)),
            Location::Host(path) => match examine_host(path, first) {
                Ok(metadata) => Ok(Facts::of_host(&metadata)),
                Err(error) => Err(Failure::host(self, &error)),
            },
        }
    }

    fn directory(facts: &Facts) -> Option<Identity> {
        facts.is_directory().then_some(facts.identity)
    }

    fn names(&self, keep: &dyn Fn(&DirEntry) -> bool) -> Result<Names, Failure> {
        match self {
            Location::Image(target) => {
                let (entries, damage) = listed(target)?;
                let kept = entries.into_iter().filter(|entry| keep(entry));
                Ok((kept.map(|entry| entry.name).collect(), damage))
            }
            Location::Host(path) => {
                let names = fs::read_dir(path).and_then(|entries| {
                    let names = entries.map(|entry| Ok(entry?.file_name().into_vec()));
                    names.collect()
                });
                let names = names.map_err(|error| Failure::host(self, &error))?;
                Ok((names, None))
            }
        }
    }

    fn child(&self, name: &[u8]) -> Location {
        Location::child(self, name)
    }

    fn path_len(&self) -> usize {
        self.shown().len()
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&String::from_utf8_lossy(self.shown())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_control_list_grants_what_its_owner_mask_and_others_have() {
        let acl = |entries: &[(u16, u16)]| {
            let mut acl = 2_u32.to_le_bytes().to_vec();
            for (tag, rights) in entries {
                acl.extend([tag.to_le_bytes(), rights.to_le_bytes(), [0; 2], [0; 2]].concat());
            }
            acl
        };
        for (entries, found) in [
            (&[(1, 7), (4, 5), (0x20, 1)][..], Some(0o751)),
            (&[(1, 6), (2, 7), (4, 7), (0x10, 4), (0x20, 0)], Some(0o640)),
            (&[(1, 7), (4, 5)], None),
        ] {
            let found = found.map(|found: u16| !0o777 | found);
            assert_eq!(acl_permissions(&acl(entries)), found, "{entries:?}");
        }
        assert_eq!(acl_permissions(b"\x01\0\0"), None);
    }
}
