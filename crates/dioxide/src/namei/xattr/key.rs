//! Names of attributes, as `setxattr` takes them.

use crate::inode::Inode;
use crate::{Error, FileType, Result};
use dioxide_format::xattr::{self, XattrEntry};

pub(super) const INDEX_USER: u8 = 1;
pub(super) const INDEX_ACL_ACCESS: u8 = 2;
pub(super) const INDEX_ACL_DEFAULT: u8 = 3;
pub(super) const INDEX_SECURITY: u8 = 6;

/// Longest name, prefix included, as Linux has it (XATTR_NAME_MAX).
const NAME_MAX: usize = 255;

/// A name: the index of its prefix, and the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key<'a> {
    pub(super) index: u8,
    pub(super) name: &'a [u8],
}

impl<'a> Key<'a> {
    /// # Errors
    /// [`Error::OutOfRange`] (`ERANGE`) for a name without bytes or with over 255; [`Error::Invalid`]
    /// for a prefix alone; [`Error::Unsupported`] for an unknown one.
    pub(super) fn parse(name: &'a [u8]) -> Result<Key<'a>> {
        let shown = || name.escape_ascii().to_string();
        if name.is_empty() || name.len() > NAME_MAX {
            let what = format!("an attribute's name of {} bytes", name.len());
            return Err(Error::OutOfRange(what));
        }
        let (index, rest) = xattr::split_name(name)
            .ok_or_else(|| Error::Unsupported(format!(
                    "attributes such as {}: names begin with user., trusted., security., gnu. or system.posix_acl_",
                    shown()
                )))?;
        let key = Key { index, name: rest };
        if rest.contains(&0) || rest.is_empty() && !key.is_acl() {
            return Err(Error::Invalid(format!("{} names no attribute", shown())));
        }
        Ok(key)
    }

    pub(super) fn is_acl(&self) -> bool {
        matches!(self.index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT)
    }

    /// Whether an entry has this name.
    pub(super) fn names(&self, entry: &XattrEntry<'_>) -> bool {
        (entry.head.e_name_index, entry.name) == (self.index, self.name)
    }

    /// The whole name, for errors.
    pub(super) fn shown(&self) -> String {
        let prefix = xattr::name_prefix(self.index).unwrap_or_default();
        format!("{prefix}{}", self.name.escape_ascii())
    }

    /// # Errors
    /// [`Error::NotPermitted`] where Linux knows no `user.` attributes; [`Error::Unsupported`] for the
    /// access control list of a symlink.
    pub(super) fn check_for(&self, inode: &Inode) -> Result<()> {
        let file_type = inode.file_type();
        let has_user = matches!(file_type, FileType::Regular | FileType::Directory);
        if self.index == INDEX_USER && !has_user {
            let what = format!("{} of what is no file or directory", self.shown());
            return Err(Error::NotPermitted(what));
        }
        if self.is_acl() && file_type == FileType::Symlink {
            return Err(Error::Unsupported(
                "access control lists of symlinks".into(),
            ));
        }
        Ok(())
    }
}
