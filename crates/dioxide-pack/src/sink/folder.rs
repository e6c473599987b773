//! Writes a tree into a folder of the host.
//!
//! Every name is made in a directory that is open, and every directory is opened by its name in the
//! one above, never through a symlink: whatever others do in the target meanwhile, nothing is written
//! outside of it. What was made by its name and opened by it must be what was made, and what gets another name must be
//! what was written under the first. Rejected: paths from the root of the target, which the kernel would walk again for
//! each file, through whatever lies there by then.
//!
//! A regular file has no name until it is whole, or another one where the file system has no files without: what has its name
//! stays until then, and nothing unfinished is left where the sink ends early. Rejected: another name everywhere. Directories grow
//! by it.
//!
//! While it is being written, a directory and a file are open to their owner only. Directories stay so until all is there where
//! the process is not root: others of their names may be given to files that lie in them.

use crate::entry::{Entry, Kind, XATTR_VALUE_MAX, split};
use crate::error::{Error, Result, shown};
use crate::sink::Sink;
use crate::tree::Warning;
use dioxide::block::file::{Replacing, close};
use dioxide::{Timestamp, Xattr};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_OMIT, Uid,
    XattrFlags, chmod, chownat, fstat, linkat, listxattr, makedev, mkdirat, mknodat, openat,
    removexattr, renameat, renameat_with, setxattr, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What is done in the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FolderOptions {
    /// Write into a folder that has something in it: directories keep what the tree has not, other
    /// files are replaced. By default that is refused.
    pub merge: bool,
    /// Give files to their owners, and make devices, which takes root. By default if the process is root. Otherwise set-ID bits stay where
    /// the owner and group are those wanted anyway, and others are told.
    pub owners: bool,
}

impl Default for FolderOptions {
    fn default() -> Self {
        FolderOptions {
            merge: false,
            owners: geteuid().is_root(),
        }
    }
}

/// Writes a tree into a folder of the host.
#[derive(Debug)]
pub struct FolderSink {
    name: String,
    options: FolderOptions,
    /// The directories from the root to where the tree is.
    above: Vec<OwnedFd>,
    file: Option<File>,
    /// What is being written.
    unfinished: Option<Unfinished>,
    /// Whether the file system has files without names, as far as is known.
    unnamed: bool,
    /// Another name for a file in its directory, and how many were taken before it.
    temporary: String,
    taken: u64,
    /// Directories that are complete, and get their attributes at the end.
    complete: Vec<Entry>,
    warnings: Vec<Warning>,
    /// What could not be made, and its other names.
    left_out: HashSet<Vec<u8>>,
    /// Files that have further names, by the first, once they are there.
    linked: HashMap<Vec<u8>, Option<Identity>>,
}

/// What tells a file from others. Once it is removed, its inode may be that of another: of whoever may remove it, so its owner counts.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    ino: u64,
    uid: u32,
    file_type: FileType,
}

/// A regular file that has not its name yet.
#[derive(Debug)]
struct Unfinished {
    /// As errors have it.
    name: String,
    /// Whether it has another one.
    is_named: bool,
    /// What has the name, held until it is replaced.
    _replacing: Option<Replacing>,
}

/// Bits by which a file lends the rights of its owner or group.
const SET_IDS: u16 = 0o6000;

/// For a file of its owner, under a name that is free.
const NEW: OFlags = OFlags::CREATE
    .union(OFlags::EXCL)
    .union(OFlags::WRONLY)
    .union(OFlags::CLOEXEC);

const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

impl FolderSink {
    /// Opens the folder; makes it if it is not there, but not what is above it.
    ///
    /// # Errors
    /// [`Error::NotEmpty`]; [`Error::Host`].
    pub fn new(folder: &Path, options: FolderOptions) -> Result<FolderSink> {
        let name = folder.display().to_string();
        let told = |error: io::Error| Error::host(&name, error);
        match fs::create_dir(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(told(error)),
            Err(_) if !options.merge && fs::read_dir(folder).map_err(told)?.next().is_some() => {
                return Err(Error::NotEmpty { name });
            }
            _ => {}
        }
        let root = openat(
            CWD,
            folder,
            OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let root = root.map_err(|error| Error::host(&name, error))?;
        Ok(FolderSink {
            name,
            options,
            above: vec![root],
            file: None,
            unfinished: None,
            // The way to give them one.
            unnamed: Path::new("/proc/self/fd").is_dir(),
            temporary: temporary(0),
            taken: 0,
            complete: Vec::new(),
            warnings: Vec::new(),
            left_out: HashSet::new(),
            linked: HashMap::new(),
        })
    }

    fn named(&self, entry: &Entry) -> String {
        format!("{}/{}", self.name, shown(&entry.path))
    }

    fn failed(&self, entry: &Entry) -> impl Fn(Errno) -> Error + use<> {
        let name = self.named(entry);
        move |error| Error::host(&name, error)
    }

    fn here(&self) -> &OwnedFd {
        self.above.last().expect("the root stays")
    }

    /// That what is to be replaced is no image that somebody uses.
    fn check_replaced(&self, entry: &Entry) -> Result<Replacing> {
        let here = format!("/proc/self/fd/{}", self.here().as_raw_fd());
        let path = Path::new(&here).join(OsStr::from_bytes(entry.name()));
        let replacing = Replacing::begin(&path);
        replacing.map_err(|error| Error::kept(self.named(entry), error))
    }

    fn make(&mut self, entry: &Entry) -> io::Result<()> {
        let name = OsStr::from_bytes(entry.name());
        if self.options.merge && !matches!(entry.kind, Kind::Directory | Kind::File(_)) {
            match unlinkat(self.here(), name, AtFlags::empty()) {
                Err(Errno::NOENT) => {}
                removed => removed?,
            }
        }
        match &entry.kind {
            Kind::Directory => {
                let made = mkdirat(self.here(), name, Mode::RWXU);
                let is_merged = self.options.merge && made == Err(Errno::EXIST);
                if !is_merged {
                    made?;
                }
                let directory = openat(self.here(), name, DIRECTORY, Mode::empty())?;
                if !is_merged {
                    self.check_made(entry, &directory)?;
                }
                self.above.push(directory);
            }
            Kind::File(_) => unreachable!("it is made without its name"),
            Kind::Symlink(target) => symlinkat(OsStr::from_bytes(target), self.here(), name)?,
            Kind::HardLink(target) => self.link(target, name)?,
            Kind::CharDevice(major, minor) => {
                self.node(name, FileType::CharacterDevice, makedev(*major, *minor))?;
            }
            Kind::BlockDevice(major, minor) => {
                self.node(name, FileType::BlockDevice, makedev(*major, *minor))?;
            }
            Kind::Fifo => self.node(name, FileType::Fifo, 0)?,
            Kind::Socket => self.node(name, FileType::Socket, 0)?,
        }
        Ok(())
    }

    /// Makes a regular file that has not its name yet.
    fn make_file(
        &mut self,
        entry: &Entry,
        size: u64,
        replacing: Option<Replacing>,
    ) -> Result<(), Errno> {
        let mode = Mode::RUSR | Mode::WUSR;
        let mut made = None;
        if self.unnamed {
            let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
            match openat(self.here(), ".", flags, mode) {
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => {
                    self.unnamed = false;
                }
                opened => made = Some(opened?),
            }
        }
        let is_named = made.is_none();
        let file = match made {
            Some(file) => file,
            None => self.under_another_name(entry, |here, name| openat(here, name, NEW, mode))?,
        };
        self.unfinished = Some(Unfinished {
            name: self.named(entry),
            is_named,
            _replacing: replacing,
        });
        let file = File::from(file);
        rustix::fs::ftruncate(&file, size)?;
        self.file = Some(file);
        Ok(())
    }

    /// Makes something under a name that is free, and not the entry's.
    fn under_another_name<T>(
        &mut self,
        entry: &Entry,
        make: impl Fn(&OwnedFd, &str) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        loop {
            if self.temporary.as_bytes() != entry.name() {
                match make(self.here(), &self.temporary) {
                    Err(Errno::EXIST) => {}
                    made => return made,
                }
            }
            self.taken += 1;
            self.temporary = temporary(self.taken);
        }
    }

    /// Closes a regular file that is whole, and gives it its name.
    fn place(&mut self, entry: &Entry, fd: OwnedFd) -> Result<()> {
        let failed = self.failed(entry);
        let name = OsStr::from_bytes(entry.name());
        if self.unfinished.as_ref().is_some_and(|file| !file.is_named) {
            match link_opened(&fd, self.here(), name) {
                Err(Errno::EXIST) if self.options.merge => {}
                linked => {
                    linked.map_err(&failed)?;
                    self.unfinished = None;
                    return close(fd).map_err(|error| Error::host(self.named(entry), error));
                }
            }
            let link = |here: &OwnedFd, name: &str| link_opened(&fd, here, OsStr::new(name));
            self.under_another_name(entry, link).map_err(&failed)?;
            if let Some(file) = &mut self.unfinished {
                file.is_named = true;
            }
        }
        close(fd).map_err(|error| Error::host(self.named(entry), error))?;
        self.rename(name).map_err(failed)?;
        self.unfinished = None;
        Ok(())
    }

    /// From another name to its own.
    fn rename(&self, name: &OsStr) -> Result<(), Errno> {
        let (here, temporary) = (self.here(), &*self.temporary);
        if self.options.merge {
            return renameat(here, temporary, here, name);
        }
        match renameat_with(here, temporary, here, name, RenameFlags::NOREPLACE) {
            // Not every file system can be told so: the name is taken first.
            Err(Errno::INVAL | Errno::NOSYS) => {
                openat(here, name, NEW, Mode::RUSR | Mode::WUSR)?;
                renameat(here, temporary, here, name)
            }
            renamed => renamed,
        }
    }

    /// That what was opened by its name is what was made, as far as can be told: others may have given the name to another file.
    fn check_made(&mut self, entry: &Entry, fd: &OwnedFd) -> io::Result<()> {
        let stat = fstat(fd)?;
        let (file_type, device) = match entry.kind {
            Kind::Directory => (FileType::Directory, None),
            Kind::File(_) | Kind::HardLink(_) => (FileType::RegularFile, None),
            Kind::Symlink(_) => (FileType::Symlink, None),
            Kind::CharDevice(major, minor) => {
                (FileType::CharacterDevice, Some(makedev(major, minor)))
            }
            Kind::BlockDevice(major, minor) => (FileType::BlockDevice, Some(makedev(major, minor))),
            Kind::Fifo => (FileType::Fifo, None),
            Kind::Socket => (FileType::Socket, None),
        };
        let is_made = FileType::from_raw_mode(stat.st_mode) == file_type
            && device.is_none_or(|device| stat.st_rdev == device)
            && (entry.is_directory() || stat.st_nlink <= 1)
            && (stat.st_uid == geteuid().as_raw() || stat.st_uid == self.owner_of_new(entry)?);
        match is_made {
            true => Ok(()),
            false => Err(io::Error::other("another file has its name by now")),
        }
    }

    /// Whose a new file is, where the file system has owners of its own.
    fn owner_of_new(&mut self, entry: &Entry) -> Result<u32, Errno> {
        let mode = Mode::RUSR | Mode::WUSR;
        let made = self.under_another_name(entry, |here, name| openat(here, name, NEW, mode))?;
        unlinkat(self.here(), &*self.temporary, AtFlags::empty())?;
        Ok(fstat(made)?.st_uid)
    }

    fn node(&self, name: &OsStr, file_type: FileType, device: u64) -> Result<(), Errno> {
        mknodat(
            self.here(),
            name,
            file_type,
            Mode::RUSR | Mode::WUSR,
            device,
        )
    }

    /// A name for a file that was made before, somewhere in the target.
    fn link(&self, target: &[u8], name: &OsStr) -> io::Result<()> {
        let (directory, file) = split(target);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = OsStr::from_bytes(file);
        let file = openat(self.directory(directory)?, file, flags, Mode::empty())?;
        if self.linked.get(target) != Some(&Some(identity(&file)?)) {
            let what = format!("another file is {} by now", shown(target));
            return Err(io::Error::other(what));
        }
        Ok(link_opened(&file, self.here(), name)?)
    }

    /// A directory that was made before.
    fn directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let mut at = self.above[0].try_clone().map_err(|_| Errno::MFILE)?;
        for part in path
            .split(|&byte| byte == b'/')
            .filter(|part| !part.is_empty())
        {
            at = openat(
                &at,
                OsStr::from_bytes(part),
                DIRECTORY | OFlags::PATH,
                Mode::empty(),
            )?;
        }
        Ok(at)
    }

    fn attributes(&mut self, entry: &Entry, fd: &OwnedFd) -> Result<()> {
        let failed = self.failed(entry);
        // The only way to all of these that takes a descriptor of any kind of file.
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let path = Path::new(&path);
        let is_symlink = matches!(entry.kind, Kind::Symlink(_));
        if self.options.owners {
            let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
            chownat(fd, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH).map_err(&failed)?;
        }
        // What its owner may not write takes these no more once it has its mode; lists come after that, since they are part of it.
        let (before, after): (Vec<_>, Vec<_>) = entry
            .xattrs
            .iter()
            .partition(|xattr| xattr.name.starts_with(b"user."));
        self.set_xattrs(entry, path, &before);
        if !is_symlink {
            self.clear_acls(path);
            let lent = entry.permissions & SET_IDS;
            // Rights of this user are not lent where those of another one are meant.
            let permissions = match lent == 0 || is_owned(entry, fd).map_err(&failed)? {
                true => entry.permissions,
                false => entry.permissions & !SET_IDS,
            };
            chmod(path, Mode::from_raw_mode(permissions.into())).map_err(&failed)?;
            // Of a group that the user is not in, the kernel drops the bit without a word.
            if lent != 0 && fstat(fd).map_err(&failed)?.st_mode & u32::from(SET_IDS) != lent.into()
            {
                let (uid, gid) = (entry.uid, entry.gid);
                let what = format!("no set-ID bits: they take root, or user {uid} in group {gid}");
                self.warnings.push(Warning::new(&entry.path, what));
            }
        }
        self.set_xattrs(entry, path, &after);
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT,
            },
            last_modification: timespec(entry.mtime),
        };
        utimensat(CWD, path, &times, AtFlags::empty()).map_err(failed)
    }

    fn set_xattrs(&mut self, entry: &Entry, path: &Path, xattrs: &[&Xattr]) {
        for xattr in xattrs {
            debug_assert!(xattr.value.len() <= XATTR_VALUE_MAX);
            let name = OsStr::from_bytes(&xattr.name);
            if let Err(error) = setxattr(path, name, &xattr.value, XattrFlags::empty()) {
                let what = format!("no attribute {}: {error}", shown(&xattr.name));
                self.warnings.push(Warning::new(&entry.path, what));
            }
        }
    }

    /// The lists that it got from the directory that it is in, or had before it was merged into, would change what its mode means.
    fn clear_acls(&self, path: &Path) {
        let mut names = vec![0; XATTR_VALUE_MAX];
        let len = listxattr(path, &mut names[..]).unwrap_or(0);
        let names = names[..len].split(|&byte| byte == 0);
        for name in names.filter(|name| name.starts_with(b"system.posix_acl_")) {
            let _ = removexattr(path, OsStr::from_bytes(name));
        }
    }

    fn needs_root(&self, entry: &Entry) -> bool {
        match &entry.kind {
            Kind::HardLink(target) => self.left_out.contains(target),
            kind => matches!(kind, Kind::CharDevice(..) | Kind::BlockDevice(..)),
        }
    }
}

impl Drop for FolderSink {
    fn drop(&mut self) {
        if self.unfinished.as_ref().is_some_and(|file| file.is_named) {
            // Why it was not finished was told.
            let _ = unlinkat(self.here(), &*self.temporary, AtFlags::empty());
        }
    }
}

fn temporary(taken: u64) -> String {
    format!(".dioxide-{}-{taken}", std::process::id())
}

/// Gives a name to an open file, the way that takes no rights.
fn link_opened(fd: &OwnedFd, directory: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    linkat(CWD, path, directory, name, AtFlags::SYMLINK_FOLLOW)
}

fn identity(fd: &OwnedFd) -> Result<Identity, Errno> {
    let stat = fstat(fd)?;
    Ok(Identity {
        device: stat.st_dev,
        ino: stat.st_ino,
        uid: stat.st_uid,
        file_type: FileType::from_raw_mode(stat.st_mode),
    })
}

/// Whether a file belongs to whom the entry does.
fn is_owned(entry: &Entry, fd: &OwnedFd) -> Result<bool, Errno> {
    let stat = fstat(fd)?;
    Ok((stat.st_uid, stat.st_gid) == (entry.uid, entry.gid))
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec {
        tv_sec: time.secs,
        tv_nsec: time.nanos.into(),
    }
}

impl Sink for FolderSink {
    fn expect(&mut self, entries: &[Entry]) {
        let first = |entry: &Entry| match &entry.kind {
            Kind::HardLink(first) => Some((first.clone(), None)),
            _ => None,
        };
        self.linked = entries.iter().filter_map(first).collect();
    }

    fn begin(&mut self, entry: &Entry) -> Result<()> {
        if entry.path.is_empty() {
            return Ok(());
        }
        if !self.options.owners && self.needs_root(entry) {
            self.left_out.insert(entry.path.clone());
            let what = "left out: making a device takes root";
            self.warnings.push(Warning::new(&entry.path, what));
            return Ok(());
        }
        let mut replacing = None;
        if self.options.merge && !entry.is_directory() {
            replacing = Some(self.check_replaced(entry)?);
        }
        let failed = self.failed(entry);
        match &entry.kind {
            Kind::File(data) => self.make_file(entry, data.size, replacing).map_err(failed),
            _ => self
                .make(entry)
                .map_err(|error| Error::host(self.named(entry), error)),
        }
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let file = self.file.as_ref().expect("a file was begun");
        file.write_all_at(bytes, offset).map_err(|error| {
            let unfinished = self.unfinished.as_ref();
            Error::host(&unfinished.expect("a file was begun").name, error)
        })
    }

    fn end(&mut self, entry: &Entry) -> Result<()> {
        let fd = match &entry.kind {
            Kind::HardLink(_) => return Ok(()),
            _ if self.left_out.contains(&entry.path) => return Ok(()),
            Kind::Directory if entry.path.is_empty() => {
                let root = self.here().as_fd().try_clone_to_owned();
                root.map_err(|error| Error::host(&self.name, error))?
            }
            Kind::Directory => self.above.pop().expect("it was begun"),
            Kind::File(_) => self.file.take().expect("it was begun").into(),
            _ => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let name = OsStr::from_bytes(entry.name());
                let opened = openat(self.here(), name, flags, Mode::empty());
                let fd = opened.map_err(self.failed(entry))?;
                let made = self.check_made(entry, &fd);
                made.map_err(|error| Error::host(self.named(entry), error))?;
                fd
            }
        };
        self.warnings.extend(Warning::image_only(entry));
        if entry.is_directory() && !self.options.owners {
            self.complete.push(entry.clone());
            return Ok(());
        }
        self.attributes(entry, &fd)?;
        let failed = self.failed(entry);
        if let Some(linked) = self.linked.get_mut(&entry.path) {
            *linked = Some(identity(&fd).map_err(failed)?);
        }
        match &entry.kind {
            Kind::File(_) => self.place(entry, fd),
            _ => close(fd).map_err(|error| Error::host(self.named(entry), error)),
        }
    }

    fn finish(&mut self) -> Result<()> {
        // Each comes before the one that it is in, without which it could not be reached.
        for entry in std::mem::take(&mut self.complete) {
            let fd = self.directory(&entry.path).map_err(self.failed(&entry))?;
            self.attributes(&entry, &fd)?;
        }
        Ok(())
    }

    fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Filter;
    use crate::source;
    use std::os::unix::fs::MetadataExt;

    /// As on file systems that have no files without names.
    #[test]
    fn file_that_had_another_name_gets_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
        fs::create_dir(&from).unwrap();
        for name in [&*temporary(0), "a"] {
            fs::write(from.join(name), name).unwrap();
        }
        for merge in [false, true] {
            let options = FolderOptions {
                merge,
                ..FolderOptions::default()
            };
            let mut sink = FolderSink::new(&to, options).unwrap();
            sink.unnamed = false;
            let mut tree = source::folder::read(&from, Filter::default()).unwrap();
            tree.write_to(&mut sink, &mut ()).unwrap();
            for name in [&*temporary(0), "a"] {
                assert_eq!(fs::read(to.join(name)).unwrap(), name.as_bytes());
                fs::write(to.join(name), "old").unwrap();
            }
            assert_eq!(fs::read_dir(&to).unwrap().count(), 2);
        }
    }

    #[test]
    fn another_file_that_got_the_name_of_a_new_one_keeps_its_attributes() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        let link: fn(&Path, &Path) = |other, name| fs::hard_link(other, name).unwrap();
        let rename: fn(&Path, &Path) = |other, name| fs::rename(other, name).unwrap();
        let chown: fn(&Path, &Path) = |other, name| {
            std::os::unix::fs::chown(other, Some(7), None).unwrap();
            fs::rename(other, name).unwrap();
        };
        let device: fn(&Path, &Path) = |_, name| {
            let kind = FileType::CharacterDevice;
            mknodat(CWD, name, kind, Mode::RUSR, makedev(1, 3)).unwrap();
        };
        let mut cases = vec![
            (Kind::Fifo, FileType::RegularFile, rename),
            (Kind::Fifo, FileType::Fifo, link),
            (Kind::Socket, FileType::Fifo, rename),
            (Kind::Symlink(b"target".into()), FileType::Fifo, rename),
        ];
        if geteuid().is_root() {
            cases.push((Kind::Fifo, FileType::Fifo, chown));
            cases.push((Kind::CharDevice(1, 5), FileType::Fifo, device));
        }
        for (number, (kind, others, gives)) in cases.into_iter().enumerate() {
            let to = dir.path().join(number.to_string());
            let mut sink = FolderSink::new(&to, FolderOptions::default()).unwrap();
            let entry = Entry {
                kind,
                permissions: 0o666,
                uid: 5,
                ..Entry::default_directory(b"a".into(), Timestamp::default())
            };
            mknodat(CWD, &other, others, Mode::RUSR, 0).unwrap();
            sink.begin(&entry).unwrap();
            let name = to.join("a");
            fs::remove_file(&name).unwrap();
            gives(&other, &name);
            let before = fs::symlink_metadata(&name).unwrap();
            let error = sink.end(&entry).unwrap_err().to_string();
            assert!(
                error.ends_with("a: another file has its name by now"),
                "{error}"
            );
            let after = fs::symlink_metadata(&name).unwrap();
            let attributes = |seen: &fs::Metadata| (seen.ino(), seen.mode(), seen.uid());
            assert_eq!(attributes(&after), attributes(&before));
            assert_eq!(fs::read_dir(&to).unwrap().count(), 1);
            let _ = fs::remove_file(&other);
        }
    }
}
