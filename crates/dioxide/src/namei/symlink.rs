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
    /// [`Error::Invalid`] if it is no symlink; as [`Inode::check_readable`]; damage.
    pub(crate) fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        if inode.file_type() != FileType::Symlink {
            return Err(Error::Invalid(format!("inode {} is no symlink", inode.ino)));
        }
        inode.check_readable()?;
        let format = |error| Error::format(error, inode.place());
        let node = inode.node();
        let size = node.disk.size();
        if size == 0 && node.disk.links_count() == 0 {
            // Removed since it was looked up: what it had is no target any more.
            return Err(Error::NotFound(format!("inode {}, removed", inode.ino)));
        }
        let target = if node.disk.is_fast_symlink() {
            symlink::fast_target(&node.disk).map_err(format)?.to_vec()
        } else if inode.has_inline_data() {
            let content = self.inline_data(inode)?;
            symlink::slow_target(&content, size)
                .map_err(format)?
                .to_vec()
        } else {
            let block = self.slow_link_block(inode)?;
            symlink::slow_target(&block, size).map_err(format)?.to_vec()
        };
        Ok(target)
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

    /// The content of a file whose data lies in its inode. Does not block.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn inline_data(&self, inode: &Inode) -> Result<Vec<u8>> {
        let node = inode.node();
        let data = system_data(&node, inode)?;
        inline_data::file_content(&node.disk, data)
            .map_err(|error| Error::format(error, inode.place()))
    }
}

/// The part of inline content that is kept as an attribute; empty when there is none. `node` is
/// that of `inode`.
pub(super) fn system_data<'a>(node: &'a Node, inode: &Inode) -> Result<&'a [u8]> {
    let area = node.disk.in_inode_xattrs(&node.raw);
    let entries =
        xattr::parse_in_inode(area).map_err(|error| Error::format(error, inode.place()))?;
    Ok(inline_data::system_data(&entries).unwrap_or(&[]))
}
