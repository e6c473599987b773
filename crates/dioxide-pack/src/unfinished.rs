//! A file that gets its name, and takes the place of the one that has it, once it is complete.

use crate::entry::XATTR_VALUE_MAX;
use rustix::fs::{
    Gid, Mode, OFlags, Uid, XattrFlags, fchmod, fchown, fremovexattr, fsetxattr, lgetxattr,
};
use rustix::io::Errno;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use tempfile::TempPath;

/// Whom besides owner, group and others a file lets in.
const ACCESS_LIST: &str = "system.posix_acl_access";

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

/// Gives it its name, with the mode, and as far as rights go the owner and the access list, of the file that has it.
pub(crate) fn persist(unfinished: TempPath, path: &Path) -> io::Result<()> {
    if let Some(old) = replaced(path) {
        // Not where a symlink leads that somebody has put there meanwhile.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&*unfinished, flags, Mode::empty())?;
        let given = give(&file, Some(old.uid()), old.gid())? || give(&file, None, old.gid())?;
        let mut permissions = old.mode() & 0o777;
        if !copy_access_list(path, &file)? || !given {
            // The user's group, and whom a list names, have no more than all others.
            permissions = permissions & 0o707 | (permissions & 0o007) << 3;
        }
        match fchmod(&file, Mode::from_raw_mode(permissions)) {
            // It stays its owner's.
            Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NOSYS) => {}
            done => done?,
        }
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
        Err(Errno::PERM | Errno::INVAL | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NOSYS) => {
            Ok(false)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Gives a file the access list of another, or none, whatever its directory gave it. Whether the permissions of its group may be those of
/// the other: with a list they are those of everybody in it.
fn copy_access_list(from: &Path, to: &OwnedFd) -> io::Result<bool> {
    let mut list = vec![0; XATTR_VALUE_MAX];
    match lgetxattr(from, ACCESS_LIST, &mut list[..]) {
        Ok(len) => Ok(fsetxattr(to, ACCESS_LIST, &list[..len], XattrFlags::empty()).is_ok()),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => match fremovexattr(to, ACCESS_LIST)
        {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(true),
            Err(Errno::PERM | Errno::ACCESS) => Ok(false),
            Err(errno) => Err(errno.into()),
        },
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "old";

    /// The bytes of a list: the owner reads and writes, somebody and the mask as given, group and others nothing.
    fn list(named: u16) -> Vec<u8> {
        let nobody = u32::MAX;
        let entries = [
            (1, 6, nobody),
            (2, named, 12345),
            (4, 0, nobody),
            (16, named, nobody),
            (32, 0, nobody),
        ];
        let mut bytes = vec![2, 0, 0, 0];
        for (tag, may, id) in entries {
            bytes.extend(u16::to_le_bytes(tag));
            bytes.extend(may.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// Replaces a file that has a list or none, in a directory that gives one; the mode and the list that it has then.
    fn replace(listed: Option<&[u8]>) -> Option<(u32, Option<Vec<u8>>)> {
        let dir = tempfile::tempdir().unwrap();
        let old = dir.path().join(OLD);
        fs::write(&old, "old").unwrap();
        fs::set_permissions(&old, Permissions::from_mode(0o660)).unwrap();
        let set = |path: &Path, name, list: &[u8]| {
            rustix::fs::setxattr(path, name, list, XattrFlags::empty())
        };
        if let Some(listed) = listed {
            set(&old, ACCESS_LIST, listed).ok()?;
        }
        set(dir.path(), "system.posix_acl_default", &list(7)).ok()?;

        let (_, new) = unfinished(&old).unwrap();
        persist(new, &old).unwrap();
        assert_eq!(fs::read(&old).unwrap(), b"");
        let mut found = vec![0; XATTR_VALUE_MAX];
        let found = match lgetxattr(&old, ACCESS_LIST, &mut found[..]) {
            Ok(len) => Some(found[..len].to_vec()),
            Err(errno) => {
                assert_eq!(errno, Errno::NODATA);
                None
            }
        };
        Some((fs::metadata(&old).unwrap().mode() & 0o777, found))
    }

    #[test]
    fn list_of_who_may_is_that_of_the_file_which_is_replaced() {
        for listed in [None, Some(list(4)), Some(list(6))] {
            let mode = listed.as_ref().map_or(0o660, |list| {
                let named = u32::from(list[14]);
                0o600 | named << 3
            });
            match replace(listed.as_deref()) {
                Some(found) => assert_eq!(found, (mode, listed)),
                None => eprintln!("skipped: no access lists here"),
            }
        }
    }
}
