//! How much of a file system a tree takes.
//!
//! A pure function of a tree and a layout: what to look for in a file system for [`smallest`] to find
//! the smallest that holds the tree. It counts what writing the tree in its order takes: data, extent
//! trees or indirect blocks, directories with their indices, attributes. What is fixed when the file
//! system is made (bitmaps, tables, journal, the root directory's first block, `lost+found`) is not its
//! business.
//!
//! It is never too small where blocks are given out as Linux does, on a file system that is not
//! fragmented, and as little too large as can be. Where the outcome depends on the allocator, the
//! worse is assumed: that no two blocks of a directory touch, that no two files share an attribute block.

mod directory;
mod map;

use crate::entry::{Entry, Kind, split};
use crate::error::{Error, Result};
use dioxide::Xattr;
use dioxide::format::features::{Compat, Incompat, RoCompat};
use dioxide::format::htree::HashVersion;
use dioxide::format::inode::LINK_MAX;
use dioxide::format::superblock::SuperBlock;
use std::collections::HashMap;
use std::ops::Range;

/// What of a file system matters to how much a tree takes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layout {
    /// File-system block in bytes.
    pub block_bytes: u32,
    /// Cluster in bytes; the same as a block without `bigalloc`.
    pub cluster_bytes: u32,
    /// Inode in bytes.
    pub inode_bytes: u16,
    /// Files have extents, not indirect blocks.
    pub extents: bool,
    /// Large directories have an index.
    pub dir_index: bool,
    /// Directory and extent blocks end in checksums.
    pub metadata_csum: bool,
    /// Small files lie in their inodes.
    pub inline_data: bool,
    /// Long attributes have inodes of their own.
    pub ea_inode: bool,
    /// Files can have more than 2^32 sectors.
    pub huge_file: bool,
    /// Directories with an index can have any number of others in them.
    pub dir_nlink: bool,
    /// How an index orders names.
    pub hash_version: HashVersion,
    /// As in the superblock.
    pub hash_seed: [u32; 4],
}

impl Default for Layout {
    /// mke2fs's for ext4: blocks of 4 KiB, inodes of 256 bytes.
    fn default() -> Self {
        Layout {
            block_bytes: 4096,
            cluster_bytes: 4096,
            inode_bytes: 256,
            extents: true,
            dir_index: true,
            metadata_csum: true,
            inline_data: false,
            ea_inode: false,
            huge_file: true,
            dir_nlink: true,
            hash_version: HashVersion::HalfMd4,
            hash_seed: [0; 4],
        }
    }
}

impl Layout {
    /// That of a file system.
    pub fn of(sb: &SuperBlock) -> Layout {
        let features = sb.features();
        Layout {
            block_bytes: sb.block_size(),
            cluster_bytes: sb.cluster_size(),
            // Read from 16 bits.
            inode_bytes: sb.inode_size() as u16,
            extents: features.incompat.contains(Incompat::EXTENTS),
            dir_index: features.compat.contains(Compat::DIR_INDEX),
            metadata_csum: features.ro_compat.contains(RoCompat::METADATA_CSUM),
            inline_data: features.incompat.contains(Incompat::INLINE_DATA),
            ea_inode: features.incompat.contains(Incompat::EA_INODE),
            huge_file: features.ro_compat.contains(RoCompat::HUGE_FILE),
            dir_nlink: features.ro_compat.contains(RoCompat::DIR_NLINK),
            hash_version: HashVersion::from_disk(sb.root_hash_version(), sb.hash_is_unsigned())
                .unwrap_or(HashVersion::HalfMd4),
            hash_seed: sb.hash_seed(),
        }
    }

    /// Directories that one can have in it: each is a link to it, as its name and its `.` are.
    fn most_subdirs(&self) -> u32 {
        match self.dir_nlink && self.dir_index {
            true => u32::MAX,
            false => u32::from(LINK_MAX) - 2,
        }
    }

    fn blocks(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.block_bytes.into())
    }

    fn cluster_blocks(&self) -> u64 {
        u64::from(self.cluster_bytes / self.block_bytes)
    }

    /// Bytes for attributes in an inode, without what every inode's have around them.
    fn in_inode(&self) -> u64 {
        // Behind 128 bytes of old and 32 of new fields: a header, and a zero at the end.
        u64::from(self.inode_bytes).saturating_sub(128 + 32 + 4 + 4)
    }
}

/// What a tree takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Need {
    /// File-system blocks, whole clusters.
    pub blocks: u64,
    /// Inodes.
    pub inodes: u64,
}

/// What a tree takes. Entries as in [`crate::Tree::entries`].
///
/// # Errors
/// [`Error::Refused`] for a file whose attributes, target, names or directories have no room in this layout, or that is too
/// large for it.
pub fn need(entries: &[Entry], layout: &Layout) -> Result<Need> {
    let mut sum = Sum {
        layout,
        clusters: 0,
        inodes: 0,
    };
    // Directories, the names in them, and how many of these are directories.
    let mut above: Vec<(&Entry, Vec<&[u8]>, u32)> = Vec::new();
    // Names beside the first.
    let mut links: HashMap<&[u8], u32> = HashMap::new();
    for entry in entries {
        while let Some((directory, names, _)) = above.pop_if(|(directory, ..)| {
            !entry.path.is_empty() && split(&entry.path).0 != directory.path
        }) {
            sum.directory(directory, &names)?;
        }
        if let Some((_, names, subdirs)) = above.last_mut() {
            names.push(entry.name());
            // The one that is there was counted.
            *subdirs += u32::from(entry.is_directory() && entry.path != LOST_AND_FOUND);
            if *subdirs > layout.most_subdirs() {
                let why = "too many links: the directory has as many others as it can have";
                return Err(Error::refused(&entry.path, why));
            }
        }
        match &entry.kind {
            Kind::Directory => {
                let subdirs = u32::from(entry.path.is_empty());
                above.push((entry, Vec::new(), subdirs));
            }
            Kind::HardLink(target) => {
                let links = links.entry(target).or_insert(1);
                *links += 1;
                if *links > LINK_MAX.into() {
                    let why = format!("too many links: a file has {LINK_MAX} at most");
                    return Err(Error::refused(&entry.path, why));
                }
            }
            _ => sum.file(entry)?,
        }
    }
    while let Some((directory, names, _)) = above.pop() {
        sum.directory(directory, &names)?;
    }
    Ok(Need {
        blocks: sum.clusters * layout.cluster_blocks(),
        inodes: sum.inodes,
    })
}

/// The name of the directory that is there from the beginning.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Its size, and the least number of its blocks.
const LOST_AND_FOUND_BYTES: u64 = 16 << 10;

/// Inline data has an entry of its own among the attributes.
const INLINE_ENTRY_BYTES: u64 = 20;

struct Sum<'a> {
    layout: &'a Layout,
    clusters: u64,
    inodes: u64,
}

impl Sum<'_> {
    fn directory(&mut self, directory: &Entry, names: &[&[u8]]) -> Result<()> {
        let layout = self.layout;
        let is_root = directory.path.is_empty();
        let mut all = Vec::new();
        if is_root {
            all.push(LOST_AND_FOUND);
        }
        all.extend(
            names
                .iter()
                .filter(|name| !(is_root && **name == LOST_AND_FOUND)),
        );
        let inline = !is_root && layout.inline_data && directory::fits_inline(&all);
        let blocks = if inline {
            0
        } else {
            directory::blocks(&all, layout)
        };
        let mut clusters = blocks.div_ceil(layout.cluster_blocks());
        // Its blocks come one by one, and those of files between them.
        clusters += map::nodes_of_scattered(blocks, layout);
        let there = match &directory.path[..] {
            b"" => Some(1),
            LOST_AND_FOUND => Some(
                layout
                    .blocks(LOST_AND_FOUND_BYTES)
                    .max(2)
                    .div_ceil(layout.cluster_blocks()),
            ),
            _ => None,
        };
        self.clusters += clusters.saturating_sub(there.unwrap_or(0));
        self.inodes += u64::from(there.is_none());
        self.xattrs(directory).map(drop)
    }

    fn file(&mut self, entry: &Entry) -> Result<()> {
        self.inodes += 1;
        let in_inode = self.xattrs(entry)?;
        match &entry.kind {
            Kind::File(data) => {
                // With the hole at its end.
                map::check_size(self.layout.blocks(data.size), self.layout)
                    .map_err(|why| Error::refused(&entry.path, why))?;
                // Past the 60 bytes of the map; a value takes whole words.
                if self.layout.inline_data && data.size <= 60 + in_inode / 4 * 4 {
                    return Ok(());
                }
                let runs = self.runs(&data.segments);
                let clusters = map::clusters(&runs, self.layout);
                let nodes = map::nodes(&runs, self.layout)
                    .map_err(|why| Error::refused(&entry.path, why))?;
                self.clusters += clusters + nodes;
            }
            // Shorter ones lie in the inode.
            Kind::Symlink(target) if target.len() >= 60 => {
                let (len, most) = (target.len(), self.layout.block_bytes as usize - 1);
                if len > most {
                    let why =
                        format!("a target of {len} bytes, where {most} fit: file name too long");
                    return Err(Error::refused(&entry.path, why));
                }
                self.clusters += 1;
            }
            _ => {}
        }
        Ok(())
    }

    /// The file's blocks that are not holes.
    fn runs(&self, segments: &[Range<u64>]) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for segment in segments {
            let start = segment.start / u64::from(self.layout.block_bytes);
            let end = self.layout.blocks(segment.end);
            match runs.last_mut() {
                Some(last) if last.end >= start => last.end = end,
                _ => runs.push(start..end),
            }
        }
        runs
    }

    /// Places attributes one after the other: in the inode, the block, an inode of their own. What is
    /// left in the inode.
    fn xattrs(&mut self, entry: &Entry) -> Result<u64> {
        let block_bytes = u64::from(self.layout.block_bytes);
        let mut in_inode = self.layout.in_inode();
        if self.layout.inline_data && matches!(entry.kind, Kind::File(_) | Kind::Directory) {
            in_inode = in_inode.saturating_sub(INLINE_ENTRY_BYTES);
        }
        let mut in_block = block_bytes - 32 - 4;
        let whole_block = in_block;
        // Where a value may have an inode of its own, large ones do, and the others leave room for names in the block.
        let (mut for_values, largest) = match self.layout.ea_inode {
            true => (block_bytes - (block_bytes / 8).min(1024), block_bytes - 56),
            false => (block_bytes, block_bytes),
        };
        for xattr in &entry.xattrs {
            let (head, value) = on_disk(xattr);
            let padded = value.next_multiple_of(4);
            let taken = head + padded;
            if taken <= in_inode && padded <= largest {
                in_inode -= taken;
            } else if taken <= in_block && padded <= for_values.min(largest) {
                in_block -= taken;
                for_values -= padded;
            } else if self.layout.ea_inode && head <= in_block {
                in_block -= head;
                self.inodes += 1;
                self.clusters += self
                    .layout
                    .blocks(value)
                    .div_ceil(self.layout.cluster_blocks());
            } else {
                let why = match self.layout.ea_inode {
                    true => "its attributes have no room",
                    false => {
                        "its attributes have no room; with -O ea_inode values have inodes of their own"
                    }
                };
                return Err(Error::refused(&entry.path, why));
            }
        }
        self.clusters += u64::from(in_block < whole_block);
        Ok(in_inode)
    }
}

/// What an attribute's entry and value take; the prefix of its name is a number on the disk.
fn on_disk(xattr: &Xattr) -> (u64, u64) {
    let prefixes: [&[u8]; 5] = [b"user.", b"trusted.", b"security.", b"gnu.", b"system."];
    let value = xattr.value.len() as u64;
    if xattr.name.starts_with(b"system.posix_acl_") {
        // A header of 4 bytes, and entries of 8; those without an ID have 4 on the disk.
        let (entries, _) = xattr.value.get(4..).unwrap_or_default().as_chunks::<8>();
        let named = |entry: &&[u8; 8]| matches!(entry[0], 2 | 8);
        let with_id = entries.iter().filter(named).count() as u64;
        return (16, 4 + 8 * with_id + 4 * (entries.len() as u64 - with_id));
    }
    let name = prefixes
        .iter()
        .find_map(|prefix| xattr.name.strip_prefix(*prefix));
    let name_len = name.unwrap_or(&xattr.name).len() as u64;
    (16 + name_len.next_multiple_of(4), value)
}

/// What a file system has for files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// Free blocks, those included that are kept for root.
    pub blocks: u64,
    /// Free inodes.
    pub inodes: u64,
}

/// The smallest file system that holds `need`, in blocks; none up to `most`. `free` tells what one of
/// so many blocks has, and none for a size that cannot be.
///
/// What is returned does hold it. It is the smallest if a larger one never has less; around the size
/// of a whole group it may have a little less.
pub fn smallest(need: Need, most: u64, mut free: impl FnMut(u64) -> Option<Free>) -> Option<u64> {
    let mut fits = |blocks| {
        free(blocks).is_some_and(|free| free.blocks >= need.blocks && free.inodes >= need.inodes)
    };
    let mut low = need.blocks;
    let mut high = low.max(1);
    while !fits(high) {
        if high >= most {
            return None;
        }
        low = high;
        high = high.saturating_mul(2).min(most);
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match fits(middle) {
            true => high = middle,
            false => low = middle,
        }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::FileData;
    use dioxide::Timestamp;

    #[test]
    fn smallest_size_that_fits_is_found_and_none_if_none_does() {
        let need = Need {
            blocks: 1000,
            inodes: 300,
        };
        let free = |blocks: u64| {
            (blocks >= 64).then_some(Free {
                blocks: blocks.saturating_sub(200),
                inodes: blocks / 5,
            })
        };
        assert_eq!(smallest(need, 1 << 40, free), Some(1500));
        let few = Need { inodes: 1, ..need };
        assert_eq!(smallest(few, 1 << 40, free), Some(1200));
        assert_eq!(smallest(need, 1400, free), None);
    }

    fn entry(path: String, kind: Kind) -> Entry {
        let root = Entry::default_directory(path.into_bytes(), Timestamp::default());
        Entry { kind, ..root }
    }

    /// What is said of a tree of a root with this in it; nothing if it has room.
    fn refused(
        layout: &Layout,
        first: Option<Kind>,
        count: u32,
        kind: impl Fn() -> Kind,
    ) -> String {
        let root = entry(String::new(), Kind::Directory);
        let first = first.map(|kind| entry("0".into(), kind));
        let rest = (1..=count).map(|number| entry(number.to_string(), kind()));
        let entries: Vec<_> = [root].into_iter().chain(first).chain(rest).collect();
        need(&entries, layout).map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn links_that_no_file_can_have_are_refused() {
        let layout = Layout::default();
        let links = |count| {
            let file = Kind::File(FileData::default());
            refused(&layout, Some(file), count, || Kind::HardLink(b"0".into()))
        };
        assert_eq!(links(64_999), "");
        assert!(links(65_000).starts_with("65000: too many links"));
    }

    #[test]
    fn directories_that_none_can_have_are_refused_without_dir_nlink() {
        let mut layout = Layout::default();
        let in_root = |layout: &_, count| refused(layout, None, count, || Kind::Directory);
        assert_eq!(in_root(&layout, 64_998), "");
        layout.dir_nlink = false;
        // With lost+found.
        assert_eq!(in_root(&layout, 64_997), "");
        assert!(in_root(&layout, 64_998).starts_with("64998: too many links"));
    }

    #[test]
    fn hole_that_ends_behind_the_largest_file_is_refused() {
        let huge = Layout::default();
        let few = Layout {
            huge_file: false,
            ..Layout::default()
        };
        let indirect = Layout {
            extents: false,
            ..Layout::default()
        };
        let most = 12 + 1024 + (1 << 20) + (1 << 30);
        for (layout, blocks) in [
            (huge, (1 << 32) - 1),
            (few, (1 << 29) - 1),
            (indirect, most),
        ] {
            let hole = |blocks: u64| {
                let data = || FileData {
                    size: blocks * 4096,
                    ..FileData::default()
                };
                refused(&layout, None, 1, || Kind::File(data()))
            };
            assert_eq!(hole(blocks), "");
            let why = hole(blocks + 1);
            assert!(why.starts_with("1: larger than a file"), "{why}");
        }
    }
}
