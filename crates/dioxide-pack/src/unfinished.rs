//! A file that gets its name, and takes the place of the one that has it, once it is complete.

use rustix::fs::{Gid, Mode, OFlags, Uid, fchmod, fchown};
use rustix::io::Errno;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use tempfile::TempPath;

/// A file beside that of this path: what is to take the place of one is its user's only until then, since nobody else may
/// be allowed to read that.
pub(crate) fn unfinished(path: &Path) -> io::Result<(File, TempPath)> {
    let mode = match replaced(path) {
        Some(_) => 0o600,
        None => 0o666,
    };
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let file = tempfile::Builder::new()
        .prefix(".dioxide-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(directory.unwrap_or(Path::new(".")))?;
    Ok(file.into_parts())
}

/// Gives it its name, with the mode, and as far as rights go the owner, of the file that has it.
pub(crate) fn persist(unfinished: TempPath, path: &Path) -> io::Result<()> {
    if let Some(old) = replaced(path) {
        // Not where a symlink leads that somebody has put there meanwhile.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&*unfinished, flags, Mode::empty())?;
        let mut permissions = old.mode() & 0o777;
        if !give(&file, Some(old.uid()), old.gid())? && !give(&file, None, old.gid())? {
            // The user's group has no more than all others.
            permissions = permissions & 0o707 | (permissions & 0o007) << 3;
        }
        fchmod(&file, Mode::from_raw_mode(permissions))?;
    }
    unfinished.persist(path).map_err(|error| error.error)
}

/// The regular file of that name.
fn replaced(path: &Path) -> Option<Metadata> {
    let found = fs::symlink_metadata(path).ok();
    found.filter(Metadata::is_file)
}

/// Whether the rights of this process are enough for it.
fn give(file: &OwnedFd, uid: Option<u32>, gid: u32) -> io::Result<bool> {
    let (uid, gid) = (uid.map(Uid::from_raw), Some(Gid::from_raw(gid)));
    match fchown(file, uid, gid) {
        Ok(()) => Ok(true),
        Err(Errno::PERM | Errno::INVAL) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}
