//! Access control lists as attributes: what setting one changes, and what new inodes and `chmod` make
//! of them.

use super::change::{Change, XattrMode};
use super::key::{INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, Key};
use crate::inode::Inode;
use crate::mount::Mount;
use crate::namei::acl::{self, Acl, Inherited};
use crate::txn::Writer;
use crate::{Error, FileType, Result};
use dioxide_format::inode::FileType as DiskType;
use dioxide_journal::journal::Handle;
use std::borrow::Cow;

const ACCESS: Key<'static> = Key {
    index: INDEX_ACL_ACCESS,
    name: b"",
};
const DEFAULT: Key<'static> = Key {
    index: INDEX_ACL_DEFAULT,
    name: b"",
};

/// What setting a list, or removing it, changes. An access list changes the mode, and one that says
/// no more than a mode is not stored. An empty value removes it.
pub(super) fn change_of<'a>(
    inode: &Inode,
    key: Key<'a>,
    value: Option<&[u8]>,
) -> Result<Change<'a>> {
    let list = match value {
        Some(value) if !value.is_empty() => Acl::from_xattr(value)?,
        _ => None,
    };
    let mut change = Change {
        key,
        value: None,
        mode: XattrMode::Set,
        permissions: None,
    };
    let Some(list) = list else { return Ok(change) };
    if key.index == INDEX_ACL_DEFAULT {
        if inode.file_type() != FileType::Directory {
            let what = "a default access control list of what is no directory";
            return Err(Error::AccessDenied(what.into()));
        }
        list.check()?;
        change.value = Some(Cow::Owned(list.to_disk()));
        return Ok(change);
    }
    list.check()?;
    let (permissions, is_equivalent) = list.equiv_mode();
    let old = inode.node().disk.permissions();
    let new = old & !0o777 | permissions;
    change.permissions = (new != old).then_some(new);
    change.value = (!is_equivalent).then(|| Cow::Owned(list.to_disk()));
    Ok(change)
}

impl Mount {
    fn list(&self, inode: &Inode, key: &Key<'_>) -> Result<Option<Acl>> {
        let value = self.value_by_key(inode, key)?;
        value.map_or(Ok(None), |value| Acl::from_xattr(&value))
    }

    /// What a new inode in a directory gets of it. `mode` is what was asked for; other bits than
    /// permissions are passed on. Symlinks get nothing. The caller has the directory's lock, in any mode. Blocks on metadata.
    ///
    /// # Errors
    /// Damage; [`Error::Invalid`] for a list that Linux would not take.
    pub(crate) fn acl_inherit(
        &self,
        dir: &Inode,
        file_type: DiskType,
        mode: u16,
        umask: u16,
    ) -> Result<Inherited> {
        if file_type == DiskType::Symlink {
            return Ok(Inherited {
                mode,
                access: None,
                default: None,
            });
        }
        let default = self.list(dir, &DEFAULT)?;
        // Before there is a name for what would not get it.
        if let Some(list) = &default {
            list.check()?;
        }
        let is_dir = file_type == DiskType::Directory;
        let (mode, access, default) = acl::inherit(default.as_ref(), mode, umask, is_dir);
        Ok(Inherited {
            mode,
            access: access.as_ref().map(Acl::to_xattr),
            default: default.as_ref().map(Acl::to_xattr),
        })
    }

    /// Gives a new inode the lists that it inherits; it has their mode. Credits:
    /// [`Mount::new_xattr_credits`] for each list.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: one of them may be there. Others as [`Mount::change_xattr`].
    pub(crate) fn store_acls(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        inode: &Inode,
        lists: &Inherited,
    ) -> Result<()> {
        for (key, list) in [(ACCESS, &lists.access), (DEFAULT, &lists.default)] {
            if let Some(list) = list {
                let change = change_of(inode, key, Some(list))?;
                self.apply_xattr(writer, handle, inode, &change)?;
            }
        }
        Ok(())
    }

    /// How long the access list of a file is as an attribute's value, which `chmod` makes anew.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn access_list_len(&self, inode: &Inode) -> Result<Option<usize>> {
        let list = self.value_by_key(inode, &ACCESS)?;
        Ok(list.map(|list| list.len()))
    }

    /// Brings the access list, if there is one, in line with a mode that `chmod` sets; the mode itself
    /// is the caller's. The file is exclusive. Credits: [`Mount::xattr_credits`].
    ///
    /// # Errors
    /// As [`Mount::change_xattr`].
    pub(crate) fn acl_chmod(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        inode: &Inode,
        mode: u16,
    ) -> Result<()> {
        if inode.file_type() == FileType::Symlink {
            return Ok(());
        }
        let Some(list) = self.list(inode, &ACCESS)? else {
            return Ok(());
        };
        let change = Change {
            key: ACCESS,
            value: Some(Cow::Owned(list.chmod(mode).to_disk())),
            mode: XattrMode::Set,
            permissions: None,
        };
        self.apply_xattr(writer, handle, inode, &change)?;
        Ok(())
    }
}
