//! Extended attributes: in the inode, in a block that inodes may share, and values in inodes of
//! their own.
//!
//! Names and values are as `getxattr` gives them: access control lists are converted from their
//! form on the disk. `system.data`, which holds inline content, is not an attribute to the user.
//!
//! | Part | What it does |
//! |---|---|
//! | this | reading |
//! | [`key`] | names, and what Linux says of them |
//! | [`change`] | changing one attribute; freeing all |
//! | [`area`] | what an inode has, and where what it is to have fits |
//! | [`block`] | blocks that inodes share |
//! | [`value`] | values that are inodes |
//! | [`lists`] | access control lists |

mod area;
mod block;
mod change;
mod key;
mod lists;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use area::{area_len, put_area};
pub use change::XattrMode;
pub(crate) use value::Sharing;

use super::acl;
use crate::inode::Inode;
use crate::io::direct::Wait;
use crate::io::direct::lock::lock;
use crate::io::direct::policy::LockMode;
use crate::map::{self, MapKind};
use crate::mount::Mount;
use crate::sync::slot;
use crate::{Error, FileType, Place, Result, Xattr};
use dioxide_format::checksum::crc32c;
use dioxide_format::inode::{Inode as DiskInode, InodeFlags};
use dioxide_format::types::{Ino, Lblk, Pblk};
use dioxide_format::xattr::{self, XattrBlock, XattrEntry, XattrValue};
use key::{INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, INDEX_SECURITY, Key};
use std::sync::Arc;

/// Longest value, as Linux has it (XATTR_SIZE_MAX).
const VALUE_MAX: u32 = 65536;
/// Most bytes of values that one file's attributes may have. Values in inodes of their own make
/// it possible to name the same 64 KiB any number of times.
const TOTAL_MAX: usize = 16 << 20;

impl Mount {
    /// All extended attributes of a file that Linux lists, those in the inode first. Takes the file's lock shared, and
    /// blocks on metadata.
    ///
    /// # Errors
    /// Damage; [`Error::Unsupported`] for more than 16 MiB of values.
    pub(crate) fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        let mut found = Vec::new();
        let mut total = 0;
        self.for_each_listed(inode, &mut |name, entry| {
            let value = self.value_of(inode, entry)?;
            total += value.len();
            if total > TOTAL_MAX {
                return Err(Error::Unsupported(format!(
                    "inode {} has over {TOTAL_MAX} bytes of attributes",
                    inode.ino
                )));
            }
            found.push(Xattr { name, value });
            Ok(())
        })?;
        Ok(found)
    }

    /// The names of those that [`Mount::xattrs`] gives. As in Linux, no value is looked at. Takes the file's lock shared,
    /// and blocks on metadata.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn xattr_names(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.for_each_listed(inode, &mut |name, _| {
            names.push(name);
            Ok(())
        })?;
        Ok(names)
    }

    fn for_each_listed(
        &self,
        inode: &Inode,
        visit: &mut dyn FnMut(Vec<u8>, &XattrEntry<'_>) -> Result<()>,
    ) -> Result<()> {
        let _unchanged = lock(self, inode, LockMode::Shared, Wait::Block, slot::current())?;
        let node = inode.node();
        self.for_each_xattr(&node.disk, &node.raw, inode.ino, &mut |entry| {
            if !xattr::is_listed(entry.head.e_name_index) {
                return Ok(());
            }
            let name = entry.full_name();
            visit(
                name.map_err(|error| Error::format(error, inode.place()))?,
                entry,
            )
        })
    }

    /// Whether an inode has the attribute `security.capability`. Blocks on metadata.
    pub(crate) fn has_capability(&self, disk: &DiskInode, raw: &[u8], ino: Ino) -> Result<bool> {
        let mut found = false;
        self.for_each_xattr(disk, raw, ino, &mut |entry| {
            found |= entry.head.e_name_index == INDEX_SECURITY && entry.name == b"capability";
            Ok(())
        })?;
        Ok(found)
    }

    fn for_each_xattr(
        &self,
        disk: &DiskInode,
        raw: &[u8],
        ino: Ino,
        visit: &mut dyn FnMut(&XattrEntry<'_>) -> Result<()>,
    ) -> Result<()> {
        let area = disk.in_inode_xattrs(raw);
        let entries =
            xattr::parse_in_inode(area).map_err(|error| Error::format(error, Place::ino(ino)))?;
        entries.iter().try_for_each(&mut *visit)?;
        let Some(pblk) = disk.file_acl() else {
            return Ok(());
        };
        let bytes = self.xattr_block(pblk, ino)?;
        let place = Place::block(pblk.0).in_inode(ino);
        let block = XattrBlock::parse(&bytes).map_err(|error| Error::format(error, place))?;
        block.entries.iter().try_for_each(visit)
    }

    fn xattr_block(&self, pblk: Pblk, ino: Ino) -> Result<Arc<[u8]>> {
        let bytes = self.read_meta(pblk)?;
        if let Some(seed) = self.checksum_seed() {
            let place = Place::block(pblk.0).in_inode(ino);
            xattr::verify_checksum(&bytes, seed, pblk)
                .map_err(|error| Error::format(error, place))?;
        }
        Ok(bytes)
    }

    /// A value as `getxattr` gives it.
    fn value_of(&self, inode: &Inode, entry: &XattrEntry<'_>) -> Result<Vec<u8>> {
        let value = self.stored_value(inode, entry)?;
        match entry.head.e_name_index {
            INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT => {
                acl::to_xattr(&value).map_err(|what| inode.corrupt("access control list", what))
            }
            _ => Ok(value),
        }
    }

    /// A value as it lies on the disk.
    fn stored_value(&self, inode: &Inode, entry: &XattrEntry<'_>) -> Result<Vec<u8>> {
        match entry.value {
            XattrValue::Bytes(bytes) => Ok(bytes.to_vec()),
            XattrValue::Inode { ino, size } => self.ea_inode_value(inode, ino, size),
        }
    }

    /// One attribute's value, as `getxattr` gives it; none if the file does not have it. The caller has
    /// the file's lock, in any mode: values and blocks are freed under it. Blocks on metadata.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Invalid`] and [`Error::Unsupported`] for what is no name; damage.
    pub(crate) fn xattr(&self, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.value_by_key(inode, &Key::parse(name)?)
    }

    fn value_by_key(&self, inode: &Inode, key: &Key<'_>) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        let node = inode.node();
        self.for_each_xattr(&node.disk, &node.raw, inode.ino, &mut |entry| {
            if found.is_none() && key.names(entry) {
                found = Some(self.value_of(inode, entry)?);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// A value that is the content of another inode.
    fn ea_inode_value(&self, owner: &Inode, ino: Ino, size: u32) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        let fits = inode.flags().contains(InodeFlags::EA_INODE)
            && inode.file_type() == FileType::Regular
            && inode.i_size() == u64::from(size);
        if !fits {
            let what = format!("inode {ino} does not hold an attribute's value of {size} bytes");
            return Err(owner.corrupt("xattr", what));
        }
        // Lustre writes such. No call of Linux takes one.
        if size > VALUE_MAX {
            return Err(Error::TooBig(format!(
                "an attribute of inode {} has a value of {size} bytes, of which {VALUE_MAX} are the most that is read",
                owner.ino
            )));
        }
        let value = self.small_content(&inode, size as usize)?;
        self.check_ea_inode(owner, &inode, &value)?;
        Ok(value)
    }

    /// The value's inode keeps its hash where others have the time of the last access. Values that
    /// Lustre wrote have none; they name their owner instead.
    fn check_ea_inode(&self, owner: &Inode, inode: &Inode, value: &[u8]) -> Result<()> {
        let node = inode.node();
        let disk = node.disk.disk();
        let (found, expected) = (disk.i_atime, crc32c(self.sb.checksum_seed(), value));
        if found == expected || value::is_by_lustre(owner, inode) {
            return Ok(());
        }
        Err(Error::Checksum {
            structure: "attribute's value",
            place: inode.place(),
            found,
            expected,
        })
    }

    /// The first `len` bytes of a small file that is metadata.
    fn small_content(&self, inode: &Inode, len: usize) -> Result<Vec<u8>> {
        if inode.has_inline_data() {
            let content = self.inline_data(inode)?;
            return match content.len() < len {
                true => Err(inode.corrupt("attribute's value", "it is too short".into())),
                false => Ok(content),
            };
        }
        let mut content = Vec::with_capacity(len);
        for lblk in (0..).map(Lblk) {
            if content.len() >= len {
                break;
            }
            let mapping = map::load::lookup_or_load(self, inode, lblk, 1)?;
            if mapping.kind != MapKind::Mapped {
                return Err(inode.corrupt(
                    "attribute's value",
                    format!("its block {lblk} is not there ({:?})", mapping.kind),
                ));
            }
            content.extend_from_slice(&self.read_meta(mapping.pblk)?);
        }
        content.truncate(len);
        Ok(content)
    }
}
