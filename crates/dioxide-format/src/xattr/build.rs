//! Writing attributes: whole areas from lists of entries.
//!
//! Rejected: moving entries and values inside an area, as the format allows. An area is small, and one
//! that is built anew needs no care for what lay between its values.

use super::{
    MAGIC, XattrEntry, XattrEntryDisk, XattrHeader, XattrValue, block_hash, entry_hash, entry_len,
};
use crate::types::Ino;

/// The four zero bytes behind the last entry.
const MARK: usize = 4;
/// `h_magic` of the area in an inode.
const IN_INODE_HEADER: usize = 4;

/// The prefixes of names that a user may set, with their index.
const PREFIXES: [(u8, &[u8]); 4] = [
    (1, b"user."),
    (4, b"trusted."),
    (6, b"security."),
    (10, b"gnu."),
];
/// Names that are all prefix.
const WHOLE: [(u8, &[u8]); 2] = [
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
];

/// Index and rest of a name as `setxattr` takes it; none if it begins with no prefix that a user may
/// set. The rest is empty for `user.`, which is no name.
pub fn split_name(name: &[u8]) -> Option<(u8, &[u8])> {
    let whole = WHOLE.iter().find(|(_, whole)| *whole == name);
    if let Some((index, _)) = whole {
        return Some((*index, &[]));
    }
    let by_prefix = |&(index, prefix): &(u8, &[u8])| Some((index, name.strip_prefix(prefix)?));
    PREFIXES.iter().find_map(by_prefix)
}

/// The hash of an entry whose value is another inode's content, from the hash of that.
pub fn entry_hash_of_inode(name: &[u8], value_hash: u32) -> u32 {
    entry_hash(name, &value_hash.to_le_bytes(), true)
}

impl<'a> XattrEntry<'a> {
    /// An attribute with its value. `name` has at most 255 bytes, and the value less than 2^32.
    pub fn new(index: u8, name: &'a [u8], value: &'a [u8]) -> Self {
        Self::with_head(index, name, XattrValue::Bytes(value), 0)
    }

    /// An attribute whose value of `size` bytes is another inode's content, which has this hash.
    pub fn new_in_inode(index: u8, name: &'a [u8], ino: Ino, size: u32, value_hash: u32) -> Self {
        let hash = entry_hash_of_inode(name, value_hash);
        Self::with_head(index, name, XattrValue::Inode { ino, size }, hash)
    }

    fn with_head(index: u8, name: &'a [u8], value: XattrValue<'a>, e_hash: u32) -> Self {
        let (e_value_inum, e_value_size) = match value {
            XattrValue::Bytes(bytes) => (0, bytes.len() as u32),
            XattrValue::Inode { ino, size } => (ino.0, size),
        };
        let head = XattrEntryDisk {
            e_name_len: name.len() as u8,
            e_name_index: index,
            e_value_offs: 0,
            e_value_inum,
            e_value_size,
            e_hash,
        };
        Self { head, name, value }
    }

    /// By which entries of a block are in order.
    pub fn order(&self) -> (u8, usize, &'a [u8]) {
        (self.head.e_name_index, self.name.len(), self.name)
    }

    /// Bytes that its value takes in an area.
    fn value_room(&self) -> usize {
        self.bytes()
            .map_or(0, |bytes| bytes.len().next_multiple_of(4))
    }
}

/// Bytes that entries take in an area of which `header` bytes are something else, and how many of
/// them are values, which lie at its end.
fn room(entries: &[XattrEntry<'_>], header: usize) -> (usize, usize) {
    let heads: usize = entries.iter().map(|one| entry_len(one.name.len())).sum();
    let values = entries.iter().map(XattrEntry::value_room).sum();
    (header + heads + MARK + values, values)
}

/// Puts entries into an area of zeros, from `start` on, and their values at its end; offsets of values
/// count from `base`.
fn put(area: &mut [u8], base: usize, start: usize, entries: &[XattrEntry<'_>]) {
    let (mut at, mut end) = (start, area.len());
    for entry in entries {
        let mut head = entry.head.clone();
        head.e_value_offs = 0;
        if let Some(value) = entry.bytes().filter(|value| !value.is_empty()) {
            end -= entry.value_room();
            area[end..end + value.len()].copy_from_slice(value);
            head.e_value_offs = (end - base) as u16;
        }
        area[at..at + XattrEntryDisk::SIZE].copy_from_slice(&head.encode());
        area[at + XattrEntryDisk::SIZE..][..entry.name.len()].copy_from_slice(entry.name);
        at += entry_len(entry.name.len());
    }
}

/// The area in an inode that holds these attributes, `len` bytes: zeros if there are none. None if it
/// has no room for them.
pub fn build_in_inode(entries: &[XattrEntry<'_>], len: usize) -> Option<Vec<u8>> {
    let mut area = vec![0; len];
    if entries.is_empty() {
        return Some(area);
    }
    if room(entries, IN_INODE_HEADER).0 > len {
        return None;
    }
    area[..IN_INODE_HEADER].copy_from_slice(&MAGIC.to_le_bytes());
    let entries: Vec<_> = entries.iter().map(in_inode).collect();
    put(&mut area, IN_INODE_HEADER, IN_INODE_HEADER, &entries);
    Some(area)
}

/// In an inode an entry has no hash, unless its value is another inode's content.
fn in_inode<'a>(entry: &XattrEntry<'a>) -> XattrEntry<'a> {
    let mut entry = entry.clone();
    if entry.bytes().is_some() {
        entry.head.e_hash = 0;
    }
    entry
}

/// A block of `len` bytes that holds these attributes, used by one inode and without checksum. At
/// least `reserve` bytes stay free for more names. None if it has no room.
pub fn build_block(entries: &[XattrEntry<'_>], len: usize, reserve: usize) -> Option<Vec<u8>> {
    let (all, values) = room(entries, XattrHeader::SIZE);
    let crowded = values > 0 && len.checked_sub(values)? < reserve;
    if all > len || crowded {
        return None;
    }
    let mut entries: Vec<_> = entries.iter().map(in_block).collect();
    entries.sort_by(|a, b| a.order().cmp(&b.order()));
    let header = XattrHeader {
        h_magic: MAGIC,
        h_refcount: 1,
        h_blocks: 1,
        h_hash: block_hash(&entries),
        h_checksum: 0,
        h_reserved: [0; 3],
    };
    let mut block = vec![0; len];
    block[..XattrHeader::SIZE].copy_from_slice(&header.encode());
    put(&mut block, 0, XattrHeader::SIZE, &entries);
    Some(block)
}

fn in_block<'a>(entry: &XattrEntry<'a>) -> XattrEntry<'a> {
    let mut entry = entry.clone();
    if let Some(value) = entry.bytes() {
        entry.head.e_hash = entry_hash(entry.name, value, true);
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::super::{XattrBlock, parse_in_inode};
    use super::*;

    fn plain<'a>(entries: &[XattrEntry<'a>]) -> Vec<(u8, &'a [u8], XattrValue<'a>)> {
        let of = |one: &XattrEntry<'a>| (one.head.e_name_index, one.name, one.value);
        entries.iter().map(of).collect()
    }

    #[test]
    fn area_built_and_parsed_gives_the_same_entries() {
        let entries = [
            XattrEntry::new(1, b"a", b"value"),
            XattrEntry::new(6, b"empty", b""),
            XattrEntry::new_in_inode(4, b"far", Ino(77), 70_000, 5),
        ];
        let area = build_in_inode(&entries, 4 + 20 + 24 + 20 + 4 + 8).expect("it just fits");
        let parsed = parse_in_inode(&area).expect("well built");
        assert_eq!(plain(&parsed), plain(&entries));
        assert_eq!(parsed[0].head.e_hash, 0);
        assert_eq!(parsed[2].head.e_hash, entry_hash_of_inode(b"far", 5));
        assert_eq!(build_in_inode(&entries, 4 + 20 + 24 + 20 + 4 + 4), None);
        assert_eq!(build_in_inode(&[], 8), Some(vec![0; 8]));
        assert_eq!(build_in_inode(&entries[..1], 0), None);
    }

    #[test]
    fn block_built_is_sorted_hashed_and_parsed_again() {
        let entries = [
            XattrEntry::new(6, b"selinux", b"label"),
            XattrEntry::new(1, b"bb", b"2"),
            XattrEntry::new(1, b"z", b"1"),
        ];
        let block = build_block(&entries, 1024, 128).expect("room");
        let parsed = XattrBlock::parse(&block).expect("well built");
        let names: Vec<_> = parsed.entries.iter().map(|one| one.name).collect();
        assert_eq!(names, [&b"z"[..], b"bb", b"selinux"]);
        assert!(parsed.entries.iter().all(XattrEntry::hash_matches));
        assert_eq!(parsed.header.h_hash, block_hash(&parsed.entries));
        assert_ne!(parsed.header.h_hash, 0);
    }

    #[test]
    fn block_that_is_too_small_or_leaves_too_little_is_not_built() {
        let value = [7; 968];
        let entries = [XattrEntry::new(1, b"a", &value)];
        assert!(build_block(&entries, 1024, 0).is_some());
        assert_eq!(build_block(&entries, 1024, 128), None);
        assert_eq!(build_block(&entries, 1020, 0), None);
    }

    #[test]
    fn names_split_where_the_prefix_ends() {
        assert_eq!(split_name(b"user.x"), Some((1, &b"x"[..])));
        assert_eq!(split_name(b"user."), Some((1, &b""[..])));
        assert_eq!(split_name(b"trusted.a.b"), Some((4, &b"a.b"[..])));
        assert_eq!(
            split_name(b"security.capability"),
            Some((6, &b"capability"[..]))
        );
        assert_eq!(split_name(b"system.posix_acl_default"), Some((3, &b""[..])));
        assert_eq!(split_name(b"system.posix_acl_defaults"), None);
        assert_eq!(split_name(b"system.data"), None);
        assert_eq!(split_name(b"gnu.x"), Some((10, &b"x"[..])));
        assert_eq!(split_name(b"gnus.x"), None);
    }
}
