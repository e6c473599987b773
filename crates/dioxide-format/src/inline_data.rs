//! Content inside the inode: the 60 bytes of `i_block`, then the attribute `system.data`.
//!
//! A directory spends the first four bytes on its parent; `.` and `..` are not stored.

use crate::Result;
use crate::dir::{self, DirEntry, DirFormat};
use crate::error::{corrupt, ensure};
use crate::inode::Inode;
use crate::types::Ino;
use crate::xattr::{self, INDEX_SYSTEM, XattrEntry, XattrEntryDisk};
use std::ops::Range;

const STRUCTURE: &str = "inline data";
/// Bytes of `i_block` that name a directory's parent.
pub const PARENT_SIZE: usize = 4;
/// The magic number of the attributes in an inode.
const MAGIC_SIZE: usize = 4;
const NAME: &[u8] = b"data";
const ENTRY_SIZE: usize = XattrEntryDisk::SIZE + NAME.len();

/// The value of `system.data` among the attributes in an inode; none when it is not there.
pub fn system_data<'a>(entries: &[XattrEntry<'a>]) -> Option<&'a [u8]> {
    entries
        .iter()
        .find(|entry| is_system_data(entry))
        .and_then(XattrEntry::bytes)
}

/// Whether this is `system.data`.
pub fn is_system_data(entry: &XattrEntry<'_>) -> bool {
    entry.head.e_name_index == INDEX_SYSTEM && entry.name == NAME
}

/// The attribute `system.data` in the bytes of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemData {
    /// The bytes of its value.
    pub value: Range<usize>,
    /// Where its entry begins.
    entry: usize,
}

impl SystemData {
    /// Finds it. `raw` is the whole inode.
    ///
    /// # Errors
    /// `Corrupt` for attributes that are damaged.
    pub fn find(inode: &Inode, raw: &[u8]) -> Result<Option<Self>> {
        let area = inode.in_inode_xattrs(raw);
        let first = raw.len() - area.len() + MAGIC_SIZE;
        let mut entry_at = first;
        for entry in xattr::parse_in_inode(area)? {
            if is_system_data(&entry) {
                let bytes = entry.bytes().unwrap_or(&[]);
                let start = match bytes.len() {
                    0 => first,
                    _ => first + usize::from(entry.head.e_value_offs),
                };
                return Ok(Some(Self {
                    value: start..start + bytes.len(),
                    entry: entry_at,
                }));
            }
            entry_at += entry_len(&entry);
        }
        Ok(None)
    }

    /// Puts another value of the same length in its place.
    ///
    /// # Panics
    /// If it is not of this inode, or the length differs.
    pub fn replace(&self, raw: &mut [u8], value: &[u8]) {
        raw[self.value.clone()].copy_from_slice(value);
        let hash = self.entry + XattrEntryDisk::SIZE - 4..self.entry + XattrEntryDisk::SIZE;
        // Who writes no hash in an inode writes 0.
        if raw[hash.clone()] != [0; 4] {
            raw[hash].copy_from_slice(&xattr::entry_hash(NAME, value, true).to_le_bytes());
        }
    }
}

fn entry_len(entry: &XattrEntry<'_>) -> usize {
    (XattrEntryDisk::SIZE + entry.name.len()).next_multiple_of(4)
}

/// The bytes of an inode with an empty `system.data`, without which inline content is not seen. None
/// where there is no room, or other attributes are there without it.
///
/// # Errors
/// `Corrupt` for attributes that are damaged.
pub fn with_system_data(inode: &Inode, raw: &[u8]) -> Result<Option<Vec<u8>>> {
    if SystemData::find(inode, raw)?.is_some() {
        return Ok(Some(raw.to_vec()));
    }
    let area = inode.in_inode_xattrs(raw);
    let start = raw.len() - area.len();
    let is_used = area.first_chunk() == Some(&xattr::MAGIC.to_le_bytes());
    if is_used || area.len() < MAGIC_SIZE + ENTRY_SIZE + 4 {
        return Ok(None);
    }
    let mut raw = raw.to_vec();
    raw[start..].fill(0);
    raw[start..start + MAGIC_SIZE].copy_from_slice(&xattr::MAGIC.to_le_bytes());
    let entry = start + MAGIC_SIZE;
    put_entry(
        &mut raw[entry..],
        &XattrEntryDisk::zeroed(),
        INDEX_SYSTEM,
        NAME,
    );
    Ok(Some(raw))
}

/// The bytes of an inode without `system.data`; the other attributes lie together.
///
/// # Errors
/// `Corrupt` for attributes that are damaged.
pub fn without_system_data(inode: &Inode, raw: &[u8]) -> Result<Vec<u8>> {
    let area = inode.in_inode_xattrs(raw);
    let start = raw.len() - area.len();
    let mut kept = xattr::parse_in_inode(area)?;
    kept.retain(|entry| !is_system_data(entry));
    let mut raw = raw.to_vec();
    let area = &mut raw[start..];
    area.fill(0);
    if kept.is_empty() {
        return Ok(raw);
    }
    area[..MAGIC_SIZE].copy_from_slice(&xattr::MAGIC.to_le_bytes());
    let body = &mut area[MAGIC_SIZE..];
    let (mut at, mut values) = (0, body.len());
    let end = kept.iter().map(entry_len).sum::<usize>() + 4;
    for entry in &kept {
        let mut head = entry.head.clone();
        if let Some(bytes) = entry.bytes().filter(|bytes| !bytes.is_empty()) {
            // Values of a damaged inode may share bytes.
            let start = values.checked_sub(bytes.len().next_multiple_of(4));
            let start = start.filter(|&start| start >= end);
            values = start.ok_or_else(|| {
                corrupt(
                    "xattr",
                    "e_value_offs",
                    head.e_value_offs,
                    "bytes of its own",
                )
            })?;
            body[values..values + bytes.len()].copy_from_slice(bytes);
            head.e_value_offs = values as u16;
        }
        put_entry(&mut body[at..], &head, head.e_name_index, entry.name);
        at += entry_len(entry);
    }
    Ok(raw)
}

fn put_entry(at: &mut [u8], head: &XattrEntryDisk, index: u8, name: &[u8]) {
    let head = XattrEntryDisk {
        e_name_len: name.len() as u8,
        e_name_index: index,
        ..head.clone()
    };
    at[..XattrEntryDisk::SIZE].copy_from_slice(&head.encode());
    at[XattrEntryDisk::SIZE..][..name.len()].copy_from_slice(name);
}

/// The content of a file or symlink, as far as the inode holds it. A file may be longer, as older Linux
/// leaves it after `truncate`: what follows are zeros. `data` is the value of `system.data`, empty when there
/// is none.
pub fn file_content(inode: &Inode, data: &[u8]) -> Vec<u8> {
    let mut content = [inode.i_block(), data].concat();
    content.truncate(usize::try_from(inode.size()).unwrap_or(usize::MAX));
    content
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
