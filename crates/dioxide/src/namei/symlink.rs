//! Targets of symlinks, and content that lies in inodes.

use crate::inode::{Inode, Node};
use crate::map::{self, MapKind};
use crate::mount::Mount;
use crate::{Error, FileType, Result};
use dioxide_format::types::Lblk;
use dioxide_format::{inline_data, symlink, xattr};

impl Mount {
    /// The target of a symlink. Blocks on metadata.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no symlink, [`Error::NotFound`] if it was removed meanwhile; as [`Inode::check_readable`];
    /// damage.
    pub(crate) fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        let removed = || Error::NotFound(format!("inode {}, removed", inode.ino));
        self.living_target(inode)?.ok_or_else(removed)
    }

    /// As [`Mount::read_link`]; none if it was removed meanwhile: something else may have its name.
    ///
    /// # Errors
    /// As [`Mount::read_link`].
    pub(crate) fn living_target(&self, inode: &Inode) -> Result<Option<Vec<u8>>> {
        if inode.file_type() != FileType::Symlink {
            return Err(Error::Invalid(format!("inode {} is no symlink", inode.ino)));
        }
        inode.check_readable()?;
        let target = self.target(inode);
        match inode.has_ended() {
            // What was read may be another file's by now.
            true => Ok(None),
            false => target.map(Some),
        }
    }

    fn target(&self, inode: &Inode) -> Result<Vec<u8>> {
        let node = inode.node();
        let size = node.disk.size();
        let owned = |target: dioxide_format::Result<&[u8]>| {
            let target = target.map_err(|error| Error::format(error, inode.place()));
            Ok(target?.to_vec())
        };
        if node.disk.is_fast_symlink() {
            owned(symlink::fast_target(&node.disk))
        } else if inode.has_inline_data() {
            owned(symlink::slow_target(&self.inline_data(inode)?, size))
        } else {
            owned(symlink::slow_target(&self.slow_link_block(inode)?, size))
        }
    }

    fn slow_link_block(&self, inode: &Inode) -> Result<std::sync::Arc<[u8]>> {
        let mapping = map::load::lookup_or_load(self, inode, Lblk(0), 1)?;
        if mapping.kind != MapKind::Mapped {
            return Err(inode.corrupt(
                "symlink",
                format!("its block is not there ({:?})", mapping.kind),
            ));
        }
        self.read_meta(mapping.pblk)
    }

    /// The content of a file whose data lies in its inode, as far as it has room there; what follows up to its size are
    /// zeros. Does not block.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn inline_data(&self, inode: &Inode) -> Result<Vec<u8>> {
        inline_content(&inode.node(), inode)
    }
}

/// As [`Mount::inline_data`]; `node` is that of `inode`.
pub(crate) fn inline_content(node: &Node, inode: &Inode) -> Result<Vec<u8>> {
    let data = system_data(node, inode)?;
    Ok(inline_data::file_content(&node.disk, data))
}

/// The part of inline content that is kept as an attribute; empty when there is none. `node` is
/// that of `inode`.
pub(super) fn system_data<'a>(node: &'a Node, inode: &Inode) -> Result<&'a [u8]> {
    let area = node.disk.in_inode_xattrs(&node.raw);
    let entries =
        xattr::parse_in_inode(area).map_err(|error| Error::format(error, inode.place()))?;
    Ok(inline_data::system_data(&entries).unwrap_or(&[]))
}
