//! Content inside the inode: the 60 bytes of `i_block`, then the attribute `system.data`.
//!
//! A directory spends the first four bytes on its parent; `.` and `..` are not stored.

use crate::Result;
use crate::dir::{self, DirEntry, DirFormat};
use crate::error::ensure;
use crate::inode::Inode;
use crate::types::Ino;
use crate::xattr::{INDEX_SYSTEM, XattrEntry};

const STRUCTURE: &str = "inline data";
const PARENT_SIZE: usize = 4;

/// The value of `system.data` among the attributes in an inode; none when it is not there.
pub fn system_data<'a>(entries: &[XattrEntry<'a>]) -> Option<&'a [u8]> {
    entries
        .iter()
        .find(|entry| entry.head.e_name_index == INDEX_SYSTEM && entry.name == b"data")
        .and_then(XattrEntry::bytes)
}

/// The content of a file or symlink. `data` is the value of `system.data`, empty when there is none.
///
/// # Errors
/// `Corrupt` when the size is more than the inode holds.
pub fn file_content(inode: &Inode, data: &[u8]) -> Result<Vec<u8>> {
    let head = inode.i_block();
    let (size, most) = (inode.size(), head.len() + data.len());
    let ok = size <= most as u64;
    ensure(
        ok,
        STRUCTURE,
        "i_size",
        size,
        format_args!("at most {most}"),
    )?;
    let mut content = [head, data].concat();
    content.truncate(size as usize);
    Ok(content)
}

/// An inline directory.
#[derive(Clone, Copy, Debug)]
pub struct InlineDir<'a> {
    /// The parent directory.
    pub parent: Ino,
    head: &'a [u8],
    data: &'a [u8],
}

impl<'a> InlineDir<'a> {
    /// From the inode and the value of `system.data`, empty when there is none.
    ///
    /// # Errors
    /// `Corrupt` when the parent is no inode.
    pub fn parse(inode: &'a Inode, data: &'a [u8], format: &DirFormat) -> Result<Self> {
        let (parent, head) = inode.i_block().split_at(PARENT_SIZE);
        let parent = parent
            .first_chunk()
            .map_or(0, |raw| u32::from_le_bytes(*raw));
        let most = format.max_ino;
        let ok = (1..=most).contains(&parent);
        ensure(ok, STRUCTURE, "parent", parent, format_args!("1 to {most}"))?;
        Ok(Self {
            parent: Ino(parent),
            head,
            data,
        })
    }

    /// The entries that name an inode. Their offsets count from the start of `i_block` through
    /// `system.data`. After an error in one part, the other is still read.
    pub fn entries(
        &self,
        format: &DirFormat,
    ) -> impl Iterator<Item = Result<DirEntry<'a>>> + use<'a> {
        let second = PARENT_SIZE + self.head.len();
        let shift = |by: usize| {
            move |entry: Result<DirEntry<'a>>| {
                entry.map(|e| DirEntry {
                    offset: e.offset + by,
                    ..e
                })
            }
        };
        let head = dir::entries(self.head, format).map(shift(PARENT_SIZE));
        head.chain(dir::entries(self.data, format).map(shift(second)))
    }
}
