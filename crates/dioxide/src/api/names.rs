//! Making, linking, moving and removing files, by path.

use crate::mount::Mount;
use crate::namei::{At, Blueprint, check_mode};
use crate::{Error, FileType, Fs, Result, Timestamp};
use dioxide_format::inode::DeviceNumber;

/// How a new file is to be. Defaults: owner 0, group 0, no mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewFile {
    pub(crate) permissions: u16,
    pub(crate) umask: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) time: Option<Timestamp>,
    pub(crate) generation: Option<u32>,
}

impl Default for NewFile {
    /// With permissions 0o644.
    fn default() -> NewFile {
        NewFile::new(0o644)
    }
}

impl NewFile {
    /// With these permissions: the low 12 bits.
    pub fn new(permissions: u16) -> NewFile {
        NewFile {
            permissions: permissions & 0o7777,
            umask: 0,
            uid: 0,
            gid: 0,
            time: None,
            generation: None,
        }
    }

    /// Permissions that it does not get, unless the directory has a default access control list, which
    /// takes the mask's place.
    pub fn umask(mut self, umask: u16) -> Self {
        self.umask = umask & 0o777;
        self
    }

    /// Owner and group; 2^32 - 1 is none, and refused when the file is made. In a directory with set-group-ID the group is that of the directory.
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        (self.uid, self.gid) = (uid, gid);
        self
    }

    /// The time that it is made at, instead of now. The directory that it goes into gets the time
    /// that it is, or that of [`crate::MountOptions::clock`].
    pub fn time(mut self, time: Timestamp) -> Self {
        self.time = Some(time);
        self
    }

    /// The generation number, instead of one that was not used lately.
    pub fn generation(mut self, generation: u32) -> Self {
        self.generation = Some(generation);
        self
    }
}

/// What a special file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device of this major and minor number.
    CharDevice(u32, u32),
    /// A block device.
    BlockDevice(u32, u32),
}

/// What [`Fs::rename`] does when the new name is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RenameMode {
    /// Replaces it.
    #[default]
    Replace,
    /// `RENAME_NOREPLACE`: fails with `EEXIST`.
    NoReplace,
    /// `RENAME_EXCHANGE`: both names change what they stand for; both must be there.
    Exchange,
}

/// All of these follow symlinks on the way, but not in the last part of a path. What they change is seen by
/// all at once, and becomes durable as a whole: by [`Fs::sync`], by [`crate::File::sync_all`] of a file that was made or
/// renamed, or when the commit interval is over. They block on metadata.
///
/// Errors that all have: `ENOENT`, `ENOTDIR`, `ELOOP`, `ENAMETOOLONG` for the way to the directory; `EROFS`; `EPERM` in
/// a directory that is immutable, or of what is immutable or append-only, and for taking names from an append-only directory; `ENOSPC`; damage. After an error nothing has changed.
impl Fs {
    /// `mkdir`.
    ///
    /// # Errors
    /// `EEXIST`; `EMLINK`.
    pub fn create_dir(&self, path: impl AsRef<[u8]>, new: &NewFile) -> Result<()> {
        self.make(path.as_ref(), &Blueprint::Directory, new)
    }

    /// `mknod` of anything but a regular file.
    ///
    /// # Errors
    /// `EEXIST`; `EINVAL` for a device number above 4095:1048575.
    pub fn mknod(&self, path: impl AsRef<[u8]>, special: Special, new: &NewFile) -> Result<()> {
        self.make(path.as_ref(), &Blueprint::of(special)?, new)
    }

    /// `symlink`: a link that says `target`, which may be anything of 1 to 4095 bytes (less if blocks are small). Its
    /// permissions are 0o777, as in Linux.
    ///
    /// # Errors
    /// `EEXIST`; `ENAMETOOLONG` and `ENOENT` for a target that is too long or empty.
    pub fn symlink(
        &self,
        target: impl AsRef<[u8]>,
        path: impl AsRef<[u8]>,
        new: &NewFile,
    ) -> Result<()> {
        self.make(path.as_ref(), &Blueprint::symlink(target.as_ref())?, new)
    }

    fn make(&self, path: &[u8], what: &Blueprint<'_>, new: &NewFile) -> Result<()> {
        self.0.call(|| {
            let at = self.0.parent(path)?;
            if at.must_be_dir && !matches!(what, Blueprint::Directory) {
                return Err(self.0.not_a_new_directory(&at));
            }
            self.0.create(&at.dir, at.name, what, new).map(drop)
        })
    }

    /// `link`: another name for a file. Symlinks are linked themselves.
    ///
    /// # Errors
    /// `EPERM` for a directory; `EEXIST`; `EMLINK` over 65,000; `EXDEV` into a directory that hands on another project.
    pub fn hard_link(&self, file: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<()> {
        self.0.call(|| {
            let inode = self.0.lookup(file.as_ref(), false)?;
            let at = self.0.parent(path.as_ref())?;
            if at.must_be_dir {
                return Err(self.0.not_a_new_directory(&at));
            }
            self.0.link(&inode, &at.dir, at.name)
        })
    }

    /// `unlink`: removes a name of anything but a directory. A file without names goes when the last who has it open
    /// closes it.
    ///
    /// # Errors
    /// `EISDIR`.
    pub fn remove_file(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.0.call(|| {
            let at = self.0.parent(path.as_ref())?;
            if at.must_be_dir {
                return Err(self.not_unlinked(&at)?);
            }
            self.0.unlink(&at.dir, at.name)
        })
    }

    /// Why nothing is unlinked at a path that ends with a slash. A symlink there is not followed.
    fn not_unlinked(&self, at: &At<'_>) -> Result<Error> {
        if at.is_special() {
            return Ok(Error::IsADirectory(at.text()));
        }
        let inode = self.0.child(&at.dir, at.name)?;
        Ok(match inode.map(|inode| inode.file_type()) {
            None => Error::NotFound(at.text()),
            Some(FileType::Directory) => Error::IsADirectory(at.text()),
            Some(_) => Error::NotADirectory(at.text()),
        })
    }

    /// `rmdir`: removes a directory that is empty.
    ///
    /// # Errors
    /// `ENOTEMPTY`; `EINVAL` for `.`; `EBUSY` for the root.
    pub fn remove_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.0.call(|| {
            let at = self.0.parent(path.as_ref())?;
            self.0.rmdir(&at.dir, at.name)
        })
    }

    /// `renameat2`.
    ///
    /// # Errors
    /// As Linux: `EEXIST`, `ENOTEMPTY`, `EISDIR`, `ENOTDIR`; `EINVAL` for a directory that would go into
    /// itself; `EBUSY` for the root and for `.` and `..`; `EMLINK`; `EXDEV` as [`Fs::hard_link`].
    pub fn rename(
        &self,
        from: impl AsRef<[u8]>,
        to: impl AsRef<[u8]>,
        mode: RenameMode,
    ) -> Result<()> {
        self.move_name(from.as_ref(), to.as_ref(), mode, None)
    }

    /// `renameat2` with `RENAME_WHITEOUT`: the old name stands for a character device 0:0 then, owned as `whiteout` says,
    /// by which overlayfs hides what layers below have of that name.
    ///
    /// # Errors
    /// As [`Fs::rename`]; `EINVAL` for [`RenameMode::Exchange`].
    pub fn rename_whiteout(
        &self,
        from: impl AsRef<[u8]>,
        to: impl AsRef<[u8]>,
        mode: RenameMode,
        whiteout: &NewFile,
    ) -> Result<()> {
        self.move_name(from.as_ref(), to.as_ref(), mode, Some(whiteout))
    }

    fn move_name(
        &self,
        from: &[u8],
        to: &[u8],
        mode: RenameMode,
        whiteout: Option<&NewFile>,
    ) -> Result<()> {
        self.0.call(|| {
            check_mode(mode, whiteout)?;
            let from = self.0.parent_of_any(from)?;
            let to = self.0.parent_of_any(to)?;
            self.0.rename(&from, &to, mode, whiteout)
        })
    }
}

impl Mount {
    /// Why nothing but a directory can be made at a path that ends with a slash.
    pub(super) fn not_a_new_directory(&self, at: &At<'_>) -> Error {
        match at.is_special() {
            true => Error::Exists(at.text()),
            false => match self.child(&at.dir, at.name) {
                Ok(None) => Error::NotFound(at.text()),
                Ok(Some(_)) => Error::Exists(at.text()),
                Err(error) => error,
            },
        }
    }
}

impl Blueprint<'_> {
    /// # Errors
    /// [`Error::Invalid`] for a device number that neither Linux nor ext4 can hold.
    pub(super) fn of(special: Special) -> Result<Blueprint<'static>> {
        let number = |major: u32, minor: u32| match major >> 12 == 0 && minor >> 20 == 0 {
            true => Ok(DeviceNumber { major, minor }),
            false => Err(Error::Invalid(format!(
                "device {major}:{minor}: at most 4095:1048575"
            ))),
        };
        Ok(match special {
            Special::Fifo => Blueprint::Fifo,
            Special::Socket => Blueprint::Socket,
            Special::CharDevice(major, minor) => Blueprint::CharDevice(number(major, minor)?),
            Special::BlockDevice(major, minor) => Blueprint::BlockDevice(number(major, minor)?),
        })
    }
}
