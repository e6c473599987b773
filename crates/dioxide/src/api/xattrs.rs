//! Changing extended attributes.

use crate::inode::Inode;
use crate::io::direct::Wait;
use crate::io::direct::lock::lock;
use crate::io::direct::policy::LockMode;
use crate::mount::Mount;
use crate::sync::slot;
use crate::txn::inode::INODE_CREDITS;
use crate::{Error, File, Fs, Node, Result, XattrMode};
use dioxide_format::inode::InodeFlags;

/// Names are as `setxattr` takes them, with their prefix: `user.comment`. Access control lists
/// (`system.posix_acl_access`, `system.posix_acl_default`) are given and taken in the form of `getxattr`; setting the
/// access list changes the permissions, and an empty value takes a list away. All block.
///
/// Errors that all have: `ENODATA`, `EOPNOTSUPP` for a prefix that is none, `EPERM` for `user.` on anything but
/// files and directories and for immutable and append-only files, `ERANGE` for a name that is too long, `E2BIG` for a value of over 64 KiB, `ENOSPC` also
/// where the inode and a block have no room, `EINVAL` and `EACCES` for lists, `EROFS`; damage. Nothing has changed then.
impl Fs {
    /// `getxattr`: one attribute; none if it is not there. Symlinks are followed.
    ///
    /// # Errors
    /// As [`Fs::metadata`].
    pub fn xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.node(path)?.xattr(name)
    }

    /// `setxattr`. Symlinks are followed.
    ///
    /// # Errors
    /// `EEXIST` and `ENODATA` as `mode` says.
    pub fn set_xattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.node(path)?.set_xattr(name, value, mode)
    }

    /// `removexattr`. Symlinks are followed.
    ///
    /// # Errors
    /// `ENODATA`.
    pub fn remove_xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<()> {
        self.node(path)?.remove_xattr(name)
    }
}

impl Node {
    /// As [`Fs::xattr`].
    ///
    /// # Errors
    /// As there.
    pub fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.mount
            .call(|| self.mount.get_xattr(&self.inode, name.as_ref()))
    }

    /// As [`Fs::set_xattr`].
    ///
    /// # Errors
    /// As there.
    pub fn set_xattr(&self, name: impl AsRef<[u8]>, value: &[u8], mode: XattrMode) -> Result<()> {
        let (mount, inode) = (&self.mount, &self.inode);
        mount.call(|| mount.set_xattr(inode, name.as_ref(), Some(value), mode))
    }

    /// As [`Fs::remove_xattr`].
    ///
    /// # Errors
    /// As there.
    pub fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<()> {
        let (mount, inode) = (&self.mount, &self.inode);
        mount.call(|| mount.set_xattr(inode, name.as_ref(), None, XattrMode::Replace))
    }
}

impl File {
    /// As [`Fs::set_xattr`].
    ///
    /// # Errors
    /// As there.
    pub fn set_xattr(&self, name: impl AsRef<[u8]>, value: &[u8], mode: XattrMode) -> Result<()> {
        let (mount, inode) = (&self.mount, &self.inode);
        mount.call(|| mount.set_xattr(inode, name.as_ref(), Some(value), mode))
    }
}

impl Mount {
    fn get_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let slot = slot::current();
        let _shared = lock(self, inode, LockMode::Shared, Wait::Block, slot)?;
        self.xattr(inode, name)
    }

    fn set_xattr(
        &self,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let writer = self.writer()?;
        let slot = slot::current();
        let names = inode.lock_names_of_dir();
        let exclusive = lock(self, inode, LockMode::Exclusive, Wait::Block, slot)?;
        let fixed = InodeFlags::IMMUTABLE.0 | InodeFlags::APPEND.0;
        if inode.flags().0 & fixed != 0 {
            return Err(Error::NotPermitted(format!(
                "inode {} is immutable or append-only",
                inode.ino
            )));
        }
        let changed = self.with_space(writer, || {
            let len = value.map_or(0, <[u8]>::len);
            let credits = self.xattr_credits(inode, len)? + INODE_CREDITS;
            let mut handle = writer.begin(credits)?;
            if !self.change_xattr(writer, &mut handle, inode, name, value, mode)? {
                return handle.stop().map(|_| ()).map_err(Error::from);
            }
            let (now, lock) = (self.now(), inode.map.lock());
            let stamped = self.change_inode(&mut handle, inode, &lock, &mut |disk| {
                disk.set_ctime(now);
            });
            stamped.map_err(|error| self.fail(error))?;
            inode.changed_in(handle.tid(), true);
            drop(lock);
            handle.stop()?;
            Ok(())
        });
        if changed.is_ok() {
            let node = inode.node();
            inode.set_nosec(self.nosec(&node.disk, &node.raw, inode.ino));
        }
        drop((exclusive, names));
        // A value may have found room and the attribute none.
        let reaped = self.reap_values(writer);
        changed?;
        reaped?;
        self.keep_in_step(inode)
    }
}
