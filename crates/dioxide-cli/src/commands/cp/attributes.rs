//! Owner, mode, times and extended attributes of a copy, as far as the host allows.

use crate::args::{CpArgs, umask};
use crate::failure::{Failure, complain};
use crate::session::Target;
use dioxide::{FileType, Metadata};
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, lsetxattr,
    utimensat,
};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What is kept.
pub(super) struct Attributes {
    preserve: bool,
    xattrs: bool,
    umask: u32,
    /// Attributes that the host does not take, and that was told of.
    refused: HashSet<Vec<u8>>,
}

impl Attributes {
    pub(super) fn new(args: &CpArgs) -> Attributes {
        Attributes {
            preserve: args.preserve || args.archive,
            xattrs: args.archive,
            umask: umask().into(),
            refused: HashSet::new(),
        }
    }

    /// Sets those of the copy at `place`, symlinks themselves.
    pub(super) fn set(
        &mut self,
        target: &Target,
        metadata: &Metadata,
        place: &Path,
    ) -> Result<(), Failure> {
        let told = |errno: Errno| Failure::host(place.display(), &errno.into());
        let is_link = metadata.file_type == FileType::Symlink;
        let owned = self.preserve && chown(metadata, place);
        // Before the mode, which may take the right to do so from this process.
        if self.xattrs && !is_link {
            self.set_xattrs(target, place)?;
        }
        if !is_link {
            let mode = u32::from(metadata.permissions);
            let mode = match (self.preserve, owned) {
                (true, true) => mode,
                // Rights of another user are not lent to this one.
                (true, false) => mode & 0o1777,
                (false, _) => mode & 0o777 & !self.umask,
            };
            chmodat(CWD, place, Mode::from_raw_mode(mode), AtFlags::empty()).map_err(told)?;
        }
        if self.preserve {
            let time = |time: dioxide::Timestamp| Timespec {
                tv_sec: time.secs,
                tv_nsec: i64::from(time.nanos),
            };
            let times = Timestamps {
                last_access: time(metadata.atime),
                last_modification: time(metadata.mtime),
            };
            utimensat(CWD, place, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(told)?;
        }
        Ok(())
    }

    /// Attributes that need more rights than there are, or another file system, are left out.
    fn set_xattrs(&mut self, target: &Target, place: &Path) -> Result<(), Failure> {
        let found = target.fs.xattrs(target.path());
        for xattr in found.map_err(|error| target.failure(&error))? {
            let name = OsStr::from_bytes(&xattr.name);
            let Err(errno) = lsetxattr(place, name, &xattr.value, XattrFlags::empty()) else {
                continue;
            };
            if self.refused.insert(xattr.name.clone()) {
                let why = crate::failure::io_words(&errno.into());
                let name = name.display();
                complain(format_args!(
                    "{target}: warning: attribute {name} is not kept: {why}"
                ));
            }
        }
        Ok(())
    }
}

/// Whether the copy has the owner that the file has.
fn chown(metadata: &Metadata, place: &Path) -> bool {
    let (uid, gid) = (Uid::from_raw(metadata.uid), Gid::from_raw(metadata.gid));
    chownat(CWD, place, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).is_ok()
}
