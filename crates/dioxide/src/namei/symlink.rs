//! Targets of symlinks, and content that lies in inodes.

use crate::inode::Inode;
use crate::map::{self, MapKind};
use crate::mount::Mount;
use crate::{Error, FileType, Result};
use dioxide_format::types::Lblk;
use dioxide_format::{inline_data, symlink, xattr};

impl Mount {
    /// The target of a symlink. Blocks on metadata.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no symlink; damage.
    pub(crate) fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        if inode.file_type() != FileType::Symlink {
            return Err(Error::Invalid(format!("inode {} is no symlink", inode.ino)));
        }
        let format = |error| Error::format(error, inode.place());
        let size = inode.i_size();
        let target = if inode.disk.is_fast_symlink() {
            symlink::fast_target(&inode.disk).map_err(format)?.to_vec()
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
        let data = self.system_data(inode)?;
        inline_data::file_content(&inode.disk, data)
            .map_err(|error| Error::format(error, inode.place()))
    }

    /// The part of inline content that is kept as an attribute; empty when there is none.
    pub(super) fn system_data<'a>(&self, inode: &'a Inode) -> Result<&'a [u8]> {
        let area = inode.disk.in_inode_xattrs(&inode.raw);
        let entries =
            xattr::parse_in_inode(area).map_err(|error| Error::format(error, inode.place()))?;
        Ok(inline_data::system_data(&entries).unwrap_or(&[]))
    }
}
