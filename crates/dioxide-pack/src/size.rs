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
use dioxide::format::superblock::SuperBlock;
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
            hash_version: HashVersion::from_disk(sb.def_hash_version(), sb.hash_is_unsigned())
                .unwrap_or(HashVersion::HalfMd4),
            hash_seed: sb.hash_seed(),
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
/// [`Error::Refused`] for a file whose attributes have no room in this layout, or that is too large for it.
pub fn need(entries: &[Entry], layout: &Layout) -> Result<Need> {
    let mut sum = Sum {
        layout,
        clusters: 0,
        inodes: 0,
    };
    let mut above: Vec<(&Entry, Vec<&[u8]>)> = Vec::new();
    for entry in entries {
        while let Some((directory, names)) = above.pop_if(|(directory, _)| {
            !entry.path.is_empty() && split(&entry.path).0 != directory.path
        }) {
            sum.directory(directory, &names)?;
        }
        if let Some((_, names)) = above.last_mut() {
            names.push(entry.name());
        }
        match &entry.kind {
            Kind::Directory => above.push((entry, Vec::new())),
            Kind::HardLink(_) => {}
            _ => sum.file(entry)?,
        }
    }
    while let Some((directory, names)) = above.pop() {
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
            Kind::Symlink(target) if target.len() >= 60 => self.clusters += 1,
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
    let prefixes: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];
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
}
