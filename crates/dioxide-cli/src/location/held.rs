//! A file that gets its owner, mode, times and extended attributes.
//!
//! On the host it is open: whoever may write to its directory can put another file under its name, and that one must not get
//! what is meant for this one. In an image a name will do, since nobody else writes to it.

use super::{Facts, Identity, Location, XattrFailure, sized};
use crate::failure::{Failure, io_words};
use crate::session::Target;
use crate::walk::{First, Tree};
use dioxide::block::file::close;
use dioxide::{SetAttributes, Timestamp, Xattr, XattrMode};
use rustix::fs::{
    AtFlags, CWD, Dir, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmod, chownat,
    fchmod, flistxattr, fremovexattr, fsetxattr, futimens, listxattr, removexattr, setxattr,
    utimensat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file on either side.
pub enum Held<'a> {
    Image(&'a Target),
    Host(&'a HostFile),
}

/// An open file of the host.
pub struct HostFile {
    file: File,
    /// Opened as a place only: by a path to the descriptor it can do what others can.
    is_path: bool,
    /// What it is called.
    path: PathBuf,
}

impl HostFile {
    /// A regular file that this process writes.
    pub(super) fn regular(file: File, path: &Path) -> HostFile {
        HostFile {
            file,
            is_path: false,
            path: path.to_owned(),
        }
    }

    /// A symlink, device, pipe or socket that has just been made as `at`, and is known by what it is. It has no other name: what
    /// has may be anybody's.
    pub(super) fn made(
        at: &Path,
        path: &Path,
        is_it: impl FnOnce(&Facts) -> bool,
    ) -> Result<HostFile, Failure> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let opened = open(at, flags).map_err(|error| Failure::host(path.display(), &error))?;
        let made = HostFile {
            file: opened,
            is_path: true,
            path: path.to_owned(),
        };
        let facts = made.examine()?;
        match facts.nlink <= 1 && is_it(&facts) {
            true => Ok(made),
            false => Err(replaced(path)),
        }
    }

    /// A directory that has just been made.
    pub(super) fn made_directory(path: &Path) -> Result<HostFile, Failure> {
        let made = HostFile::open_directory(path, First::Itself)?;
        let is_empty = || {
            Dir::read_from(&made.file)?.try_fold(true, |is_empty, entry| {
                Ok(is_empty && matches!(entry?.file_name().to_bytes(), b"." | b".."))
            })
        };
        // Who may not read it does not own it.
        let is_empty: Result<bool, Errno> = if made.is_path { Ok(true) } else { is_empty() };
        match is_empty {
            Ok(true) => Ok(made),
            Ok(false) => Err(replaced(path)),
            Err(errno) => Err(Failure::host(path.display(), &errno.into())),
        }
    }

    /// The directory that was found before.
    pub fn directory(path: &Path, first: First, found: Identity) -> Result<HostFile, Failure> {
        let directory = HostFile::open_directory(path, first)?;
        match directory.examine()?.identity == found {
            true => Ok(directory),
            false => Err(replaced(path)),
        }
    }

    fn open_directory(path: &Path, first: First) -> Result<HostFile, Failure> {
        let flags = OFlags::DIRECTORY
            | match first {
                First::Itself => OFlags::NOFOLLOW,
                First::Followed => OFlags::empty(),
            };
        let (opened, is_path) = match open(path, flags) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                (open(path, flags | OFlags::PATH), true)
            }
            opened => (opened, false),
        };
        let file = opened.map_err(|error| Failure::host(path.display(), &error))?;
        Ok(HostFile {
            file,
            is_path,
            path: path.to_owned(),
        })
    }

    pub(super) fn examine(&self) -> Result<Facts, Failure> {
        match self.file.metadata() {
            Ok(metadata) => Ok(Facts::of_host(&metadata)),
            Err(error) => Err(self.failure(&error)),
        }
    }

    /// Closes it, and learns what had to be written then and was not.
    pub(super) fn close(self) -> Result<(), Failure> {
        close(self.file).map_err(|error| Failure::host(self.path.display(), &error))
    }

    fn failure(&self, error: &io::Error) -> Failure {
        Failure::host(self.path.display(), error)
    }

    /// The way to it for calls that take no descriptor of its kind; there is none without `/proc`.
    fn through_proc(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    fn xattr_names(&self) -> Result<Vec<u8>, Errno> {
        let found = sized(|buf| match self.is_path {
            true => listxattr(self.through_proc(), buf),
            false => flistxattr(&self.file, buf),
        });
        match found {
            Err(Errno::OPNOTSUPP) => Ok(Vec::new()),
            Err(Errno::NOENT) if self.is_path => Ok(Vec::new()),
            found => found,
        }
    }

    fn set_xattr(&self, xattr: &Xattr) -> Result<(), Errno> {
        let (name, value) = (OsStr::from_bytes(&xattr.name), &xattr.value);
        match self.is_path {
            true => setxattr(self.through_proc(), name, value, XattrFlags::empty()),
            false => fsetxattr(&self.file, name, value, XattrFlags::empty()),
        }
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        let name = OsStr::from_bytes(name);
        match self.is_path {
            true => removexattr(self.through_proc(), name),
            false => fremovexattr(&self.file, name),
        }
    }

    fn set_mode(&self, mode: Mode) -> Result<(), Errno> {
        match self.is_path {
            true => chmod(self.through_proc(), mode),
            false => fchmod(&self.file, mode),
        }
    }

    fn set_times(&self, times: &Timestamps) -> Result<(), Errno> {
        if !self.is_path {
            return futimens(&self.file, times);
        }
        match utimensat(&self.file, "", times, AtFlags::EMPTY_PATH) {
            // Before Linux 5.8.
            Err(Errno::INVAL) => utimensat(CWD, self.through_proc(), times, AtFlags::empty()),
            done => done,
        }
    }
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let mut options = fs::OpenOptions::new();
    let options = options.read(true).custom_flags(flags.bits() as i32);
    options.open(path)
}

fn replaced(path: &Path) -> Failure {
    let what = "somebody else has put another file in its place";
    Failure::trouble(path.display(), what)
}

impl Held<'_> {
    pub fn examine(&self) -> Result<Facts, Failure> {
        match *self {
            Held::Image(target) => Ok(Facts::of_image(target, &target.examine(First::Itself)?)),
            Held::Host(file) => file.examine(),
        }
    }

    /// Names of its extended attributes.
    pub fn xattr_names(&self) -> Result<Vec<Vec<u8>>, Failure> {
        match *self {
            Held::Image(target) => {
                let found = target.node()?.xattrs();
                let found = found.map_err(|error| target.failure(&error))?;
                Ok(found.into_iter().map(|xattr| xattr.name).collect())
            }
            Held::Host(file) => {
                let found = file.xattr_names();
                let names = found.map_err(|errno| file.failure(&errno.into()))?;
                Ok(names.split(|&byte| byte == 0).map(Vec::from).collect())
            }
        }
    }

    /// Sets one, of a symlink itself; the error in words, since it does not end a copy.
    pub fn set_xattr(&self, xattr: &Xattr) -> Result<(), XattrFailure> {
        let failure = |errno, why| XattrFailure {
            is_refusal: matches!(errno, Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS),
            why,
        };
        match *self {
            Held::Image(target) => {
                let found = target.fs.symlink_node(target.path());
                let set = found
                    .and_then(|node| node.set_xattr(&xattr.name, &xattr.value, XattrMode::Set));
                set.map_err(|error| {
                    failure(Errno::from_raw_os_error(error.errno()), error.to_string())
                })
            }
            Held::Host(file) => {
                let set = file.set_xattr(xattr);
                set.map_err(|errno| failure(errno, io_words(&errno.into())))
            }
        }
    }

    /// Removes one, of a symlink itself.
    pub fn remove_xattr(&self, name: &[u8]) -> Result<(), Failure> {
        match *self {
            Held::Image(target) => {
                let done = target.node()?.remove_xattr(name);
                done.map_err(|error| target.failure(&error))
            }
            Held::Host(file) => {
                let done = file.remove_xattr(name);
                done.map_err(|errno| file.failure(&errno.into()))
            }
        }
    }

    /// Whether the owner could be changed: on the host that is a matter of rights, and of the numbers that it knows.
    pub fn set_owner(&self, uid: u32, gid: u32) -> Result<bool, Failure> {
        match *self {
            Held::Image(target) => {
                let set = SetAttributes::new().uid(uid).gid(gid);
                set_in_image(target, &set).map(|()| true)
            }
            // chown(2) takes it for no change.
            Held::Host(_) if [uid, gid].contains(&u32::MAX) => Ok(false),
            Held::Host(file) => {
                let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                match chownat(&file.file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH) {
                    Err(Errno::PERM | Errno::ACCESS | Errno::INVAL | Errno::OVERFLOW) => Ok(false),
                    done => done
                        .map(|()| true)
                        .map_err(|errno| file.failure(&errno.into())),
                }
            }
        }
    }

    /// Permissions of anything but a symlink. That a file system of the host has none, or not for this process, is an error only
    /// where they are `needed`.
    pub fn set_permissions(&self, permissions: u16, needed: bool) -> Result<(), Failure> {
        match *self {
            Held::Image(target) => set_in_image(target, &SetAttributes::new().mode(permissions)),
            Held::Host(file) => match file.set_mode(Mode::from_raw_mode(permissions.into())) {
                Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NOSYS) if !needed => {
                    Ok(())
                }
                Err(Errno::NOENT) if file.is_path => {
                    let what = "its permissions cannot be set without /proc";
                    Err(Failure::trouble(file.path.display(), what))
                }
                done => done.map_err(|errno| file.failure(&errno.into())),
            },
        }
    }

    pub fn set_times(&self, atime: Timestamp, mtime: Timestamp) -> Result<(), Failure> {
        match *self {
            Held::Image(target) => {
                set_in_image(target, &SetAttributes::new().atime(atime).mtime(mtime))
            }
            Held::Host(file) => {
                let time = |time: Timestamp| Timespec {
                    tv_sec: time.secs,
                    tv_nsec: time.nanos.into(),
                };
                let times = Timestamps {
                    last_access: time(atime),
                    last_modification: time(mtime),
                };
                let done = file.set_times(&times);
                done.map_err(|errno| file.failure(&errno.into()))
            }
        }
    }

    /// Which permissions new files beside this one may have, on the host.
    pub fn new_permissions(&self, umask: u16) -> Result<u16, Failure> {
        match *self {
            Held::Image(_) => unreachable!("in images files are made with theirs"),
            Held::Host(file) => Location::Host(file.path.clone())
                .parent()
                .new_permissions(umask),
        }
    }
}

fn set_in_image(target: &Target, set: &SetAttributes) -> Result<(), Failure> {
    let done = target.node()?.set_attributes(set);
    done.map_err(|error| target.failure(&error))
}

#[cfg(test)]
mod tests {
    use super::super::Pending;
    use super::*;
    use dioxide::{FileType, NewFile};
    use std::os::unix::fs::PermissionsExt;

    // As root into another user's directory: a program of that user became one that runs as root.
    #[test]
    fn file_that_takes_the_name_of_a_copy_does_not_get_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let [place, other] = ["place", "other"].map(|name| dir.path().join(name));
        let place = Location::Host(place);
        let pending =
            Pending::regular(&place, &NewFile::new(0o600), false, &mut |_| Ok(())).unwrap();
        let Pending::Host(path, _) = &pending else {
            unreachable!("it was made on the host");
        };
        fs::write(&other, "").unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&other, path).unwrap();
        let held = pending.held();
        held.set_permissions(0o4711, true).unwrap();
        held.set_times(Timestamp::default(), Timestamp::default())
            .unwrap();
        let other = fs::metadata(path).unwrap();
        assert_eq!(other.permissions().mode() & 0o7777, 0o755);
        assert!(other.modified().unwrap() > std::time::UNIX_EPOCH);
    }

    #[test]
    fn directory_that_takes_the_name_of_another_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let [place, other] = ["place", "other"].map(|name| dir.path().join(name));
        let made = Location::Host(place.clone()).create_dir(&NewFile::new(0o600), 0o700);
        let made = made.unwrap().identity;
        assert!(HostFile::directory(&place, First::Itself, made).is_ok());
        fs::rename(&place, &other).unwrap();
        std::os::unix::fs::symlink(&other, &place).unwrap();
        assert!(HostFile::directory(&place, First::Itself, made).is_err());
        fs::remove_file(&place).unwrap();
        fs::create_dir(&place).unwrap();
        fs::write(place.join("file"), "").unwrap();
        assert!(HostFile::directory(&place, First::Itself, made).is_err());
        assert!(HostFile::made_directory(&place).is_err());
    }

    #[test]
    fn symlink_that_has_another_name_was_not_made_just_now() {
        let dir = tempfile::tempdir().unwrap();
        let [link, file] = ["link", "file"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink("x", &link).unwrap();
        fs::write(&file, "").unwrap();
        let is_link = |facts: &Facts| facts.file_type == FileType::Symlink;
        let made = |path: &Path| HostFile::made(path, path, is_link);
        assert!(made(&link).is_ok() && made(&file).is_err());
        fs::hard_link(&link, dir.path().join("again")).unwrap();
        assert!(made(&link).is_err());
    }
}
