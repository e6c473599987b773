//! The journal in what a workload wrote: its transactions, and the metadata that they make.
//!
//! A log of the device is read in its order, so it needs no map of the journal: a descriptor tells how many of the blocks that
//! are written next are copies. Whoever commits writes nothing else meanwhile.

use dioxide::block::Device;
use dioxide::block::record::states::{Cache, CowDevice, Snapshot};
use dioxide::block::record::{Action, Entry};
use dioxide::format::dir::DirFormat;
use dioxide::format::extent::{Extent, ExtentNode};
use dioxide::format::group_desc::GroupDesc;
use dioxide::format::htree::DxRoot;
use dioxide::format::inode::{Inode, InodeFlags};
use dioxide::format::journal::{
    BlockHeader, BlockType, JournalFormat, JournalSuperBlock, Tag, Tid, tags,
};
use dioxide::format::orphan_file;
use dioxide::format::superblock::SuperBlock;
use dioxide::format::types::{Group, Ino, Lblk, Pblk};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// Where a superblock begins.
const SUPERBLOCK_AT: usize = 1024;

/// A block of the journal: which write it is part of, and which bytes of it.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    pub(crate) entry: usize,
    pub(crate) bytes: Range<usize>,
}

/// The copy of a block.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) tag: Tag,
    pub(crate) spot: Spot,
}

/// A descriptor and the copies that it tells of.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub(crate) spot: Spot,
    pub(crate) copies: Vec<Copy>,
}

/// A transaction that was committed.
#[derive(Clone, Debug)]
pub(crate) struct Transaction {
    pub(crate) tid: Tid,
    pub(crate) format: JournalFormat,
    pub(crate) revokes: Vec<Spot>,
    pub(crate) described: Vec<Described>,
    /// The write of the commit block.
    pub(crate) commit: usize,
}

impl Transaction {
    /// Its first write.
    pub(crate) fn first(&self) -> usize {
        let described = self.described.iter().map(|one| one.spot.entry);
        let all = described.chain(self.revokes.iter().map(|spot| spot.entry));
        all.min().unwrap_or(self.commit)
    }

    pub(crate) fn copies(&self) -> impl Iterator<Item = &Copy> {
        self.described.iter().flat_map(|one| &one.copies)
    }
}

/// The bytes that an entry wrote; none if it is no write.
pub(crate) fn written(entry: &Entry) -> &[u8] {
    match &entry.action {
        Action::Write { bytes, .. } => bytes,
        _ => &[],
    }
}

/// The committed transactions, in order.
pub(crate) fn transactions(entries: &[Entry]) -> Vec<Transaction> {
    let mut reader = Reader::default();
    for (index, entry) in entries.iter().enumerate() {
        reader.write(index, written(entry));
    }
    reader.done
}

#[derive(Default)]
struct Reader {
    /// As the journal's superblock says, with the bytes of a block.
    format: Option<(JournalFormat, usize)>,
    revokes: Vec<Spot>,
    described: Vec<Described>,
    /// Tags whose copies are still to come.
    due: VecDeque<Tag>,
    done: Vec<Transaction>,
}

impl Reader {
    fn write(&mut self, entry: usize, bytes: &[u8]) {
        if self.due.is_empty()
            && let Some((BlockType::SuperBlockV2, _)) = BlockHeader::of(bytes)
            && let Ok(sb) = JournalSuperBlock::parse(bytes)
        {
            self.format = sb.format().ok().map(|it| (it, sb.s_blocksize as usize));
            return;
        }
        let Some((format, block_bytes)) = self.format else {
            return;
        };
        for (index, block) in bytes.chunks_exact(block_bytes).enumerate() {
            let start = index * block_bytes;
            let spot = Spot {
                entry,
                bytes: start..start + block_bytes,
            };
            if !self.block(&format, block, spot) {
                return;
            }
        }
    }

    /// One block; whether it is part of the log.
    fn block(&mut self, format: &JournalFormat, block: &[u8], spot: Spot) -> bool {
        if let (Some(tag), Some(described)) = (self.due.pop_front(), self.described.last_mut()) {
            described.copies.push(Copy { tag, spot });
            return true;
        }
        match BlockHeader::of(block) {
            Some((BlockType::Descriptor, _)) => {
                self.due.extend(tags(block, format));
                self.described.push(Described {
                    spot,
                    copies: Vec::new(),
                });
            }
            Some((BlockType::Revoke, _)) => self.revokes.push(spot),
            Some((BlockType::Commit, tid)) => self.done.push(Transaction {
                tid,
                format: *format,
                revokes: std::mem::take(&mut self.revokes),
                described: std::mem::take(&mut self.described),
                commit: spot.entry,
            }),
            _ => return false,
        }
        true
    }
}

/// The metadata of an image, as transactions change it one after the other.
pub(crate) struct Metadata {
    base: CowDevice,
    pub(crate) sb: SuperBlock,
    pub(crate) block_bytes: usize,
    groups: Vec<GroupDesc>,
    /// What was committed last of each block.
    blocks: HashMap<u64, Vec<u8>>,
    orphan_file: Vec<Pblk>,
}

impl Metadata {
    /// The metadata of an image; none if it is not one of ext4.
    pub(crate) fn of(base: &Snapshot) -> Option<Metadata> {
        let base = CowDevice::new(base, Cache::Volatile);
        let read = |offset: u64, len: usize| {
            let mut bytes = vec![0; len];
            base.read_at(offset, &mut bytes).ok().map(|()| bytes)
        };
        let sb = SuperBlock::parse(&read(SUPERBLOCK_AT as u64, SuperBlock::SIZE)?).ok()?;
        if !sb.has_magic() {
            return None;
        }
        let block_bytes = sb.block_size() as usize;
        let per_block = sb.descs_per_block();
        let group = |number: u32| {
            let block = sb.descriptor_block(number / per_block).0;
            let bytes = read(block * block_bytes as u64, block_bytes)?;
            let within = (number % per_block) as usize * sb.desc_size();
            GroupDesc::parse(&bytes[within..], sb.desc_size()).ok()
        };
        let groups = (0..sb.group_count()).map(group).collect::<Option<_>>()?;
        let mut metadata = Metadata {
            sb,
            block_bytes,
            groups,
            blocks: HashMap::new(),
            orphan_file: Vec::new(),
            base,
        };
        metadata.orphan_file = metadata.orphan_blocks().unwrap_or_default();
        Some(metadata)
    }

    /// The blocks of the orphan file, whose few extents lie in its inode.
    fn orphan_blocks(&self) -> Option<Vec<Pblk>> {
        let inode = self.inode(self.sb.orphan_file_inum()?)?;
        let node = ExtentNode::parse(inode.i_block(), Some(0)).ok()?;
        let blocks = |extent: &Extent| extent.pblk.0..extent.pblk.0 + u64::from(extent.len);
        Some(node.extents().iter().flat_map(blocks).map(Pblk).collect())
    }

    /// A block as it is now.
    pub(crate) fn block(&self, block: u64) -> Vec<u8> {
        self.blocks.get(&block).cloned().unwrap_or_else(|| {
            let mut bytes = vec![0; self.block_bytes];
            let offset = block.saturating_mul(self.block_bytes as u64);
            // Behind the end there is nothing.
            let _ = self.base.read_at(offset, &mut bytes);
            bytes
        })
    }

    /// A transaction is committed.
    pub(crate) fn commit(&mut self, entries: &[Entry], transaction: &Transaction) {
        for Copy { tag, spot } in transaction.copies() {
            let bytes = &written(&entries[spot.entry])[spot.bytes.clone()];
            self.blocks.insert(tag.block, bytes.to_vec());
        }
    }

    /// Where the superblock lies in a block, if it does.
    pub(crate) fn superblock_in(&self, block: u64) -> Option<Range<usize>> {
        let at = SUPERBLOCK_AT % self.block_bytes;
        (block == (SUPERBLOCK_AT / self.block_bytes) as u64).then_some(at..at + SuperBlock::SIZE)
    }

    /// The inodes that a block of an inode table holds, with their bytes in it; none for other blocks.
    pub(crate) fn inodes_in(&self, block: u64) -> Vec<(Ino, Range<usize>)> {
        let (size, table) = (
            self.sb.inode_size(),
            u64::from(self.sb.inode_table_blocks()),
        );
        let tables = (0..)
            .zip(&self.groups)
            .map(|(number, group)| (number, group.inode_table().0));
        let found = tables
            .into_iter()
            .find(|(_, first)| (*first..first + table).contains(&block));
        let Some((group, first)) = found else {
            return Vec::new();
        };
        let per_block = self.block_bytes / size;
        let before = (block - first) as u32 * per_block as u32 + self.sb.inodes_per_group() * group;
        let inode = |at: usize| (Ino(before + at as u32 + 1), at * size..(at + 1) * size);
        (0..per_block).map(inode).collect()
    }

    /// An inode as it is now.
    pub(crate) fn inode(&self, ino: Ino) -> Option<Inode> {
        let (group, index) = self.sb.inode_location(ino)?;
        let at = index as usize * self.sb.inode_size();
        let table = self.groups.get(group.0 as usize)?.inode_table().0;
        let block = self.block(table + (at / self.block_bytes) as u64);
        Inode::parse(&block[at % self.block_bytes..], self.sb.inode_size()).ok()
    }

    /// The depth of an inode's extent tree, if the inode is in use and has one.
    pub(crate) fn depth(&self, ino: Ino) -> Option<u16> {
        let inode = self
            .inode(ino)
            .filter(|it| it.links_count() > 0 && it.uses_extents())?;
        let root = ExtentNode::parse(inode.i_block(), None).ok()?;
        Some(root.depth())
    }

    /// Whether a directory lies in its inode; none of what is no directory in use.
    pub(crate) fn is_inline_dir(&self, ino: Ino) -> Option<bool> {
        let inode = self.inode(ino);
        let dir = inode.filter(|it| it.links_count() > 0 && it.is_dir())?;
        Some(dir.has_inline_data())
    }

    /// The index of a directory in use: its levels below the root, and the entries of the root. None if it has no index, or
    /// its first block is mapped by more than its inode.
    pub(crate) fn index(&self, ino: Ino) -> Option<(u8, usize)> {
        let is_indexed =
            |it: &Inode| it.links_count() > 0 && it.flags().contains(InodeFlags::INDEX);
        let dir = self.inode(ino).filter(|it| it.is_dir() && is_indexed(it))?;
        let first = match dir.uses_extents() {
            true => {
                let node = ExtentNode::parse(dir.i_block(), Some(0)).ok()?;
                node.find(Lblk(0))?.pblk.0
            }
            false => dir
                .i_block()
                .first_chunk()
                .copied()
                .map(u32::from_le_bytes)?
                .into(),
        };
        let root = DxRoot::parse(&self.block(first), &DirFormat::of(&self.sb)).ok()?;
        Some((root.indirect_levels(), root.entries.as_slice().len()))
    }

    /// The group whose block bitmap a block is.
    pub(crate) fn bitmap_of(&self, block: u64) -> Option<Group> {
        let found = self
            .groups
            .iter()
            .position(|group| group.block_bitmap().0 == block);
        found.map(|group| Group(group as u32))
    }

    /// Whether a block is one of the orphan file's.
    pub(crate) fn is_of_orphan_file(&self, block: u64) -> bool {
        self.orphan_file.contains(&Pblk(block))
    }

    /// The orphans as they are now, of the list and of the file.
    pub(crate) fn orphans(&self) -> Vec<Ino> {
        let in_file = |block: &Pblk| {
            let found = orphan_file::orphans(&self.block(block.0), self.sb.inodes_count());
            found.unwrap_or_default()
        };
        let mut all: Vec<Ino> = self
            .orphan_file
            .iter()
            .flat_map(in_file)
            .map(|(_, ino)| ino)
            .collect();
        let block = self.block((SUPERBLOCK_AT / self.block_bytes) as u64);
        let sb = SuperBlock::parse(&block[SUPERBLOCK_AT % self.block_bytes..]);
        let mut next = sb.ok().and_then(|sb| sb.last_orphan());
        while let Some(ino) = next.filter(|ino| !all.contains(ino)) {
            all.push(ino);
            let dtime = self.inode(ino).map_or(0, |inode| inode.dtime());
            next = (dtime != 0).then_some(Ino(dtime));
        }
        all
    }
}
