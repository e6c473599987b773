//! Reads all of an image through the crate: every checksum, validation and round trip on the way.

use super::Image;
use dioxide_format::dir::{self, DirFormat};
use dioxide_format::extent::{self, ExtentNode, LBLK_END};
use dioxide_format::group_desc::{BLOCK_UNINIT, GroupChecksum, GroupDesc, INODE_UNINIT};
use dioxide_format::htree::{self, DxEntries, DxNode, DxRoot};
use dioxide_format::inline_data::{self, InlineDir};
use dioxide_format::inode::{FileType, Inode};
use dioxide_format::journal::JournalSuperBlock;
use dioxide_format::mmp::Mmp;
use dioxide_format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use dioxide_format::system_zone::SystemZone;
use dioxide_format::types::{Group, Ino, Lblk, Pblk};
use dioxide_format::xattr::{self, XattrBlock, XattrEntry};
use dioxide_format::{bitmap, indirect, orphan_file, symlink};
use std::collections::BTreeMap;
use std::ops::Range;

/// How many of each structure were met: a walk that met none proves nothing about it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub backups: usize,
    pub groups: usize,
    pub inodes: usize,
    pub extent_blocks: usize,
    pub depth: u16,
    pub indirect_blocks: usize,
    pub dir_blocks: usize,
    pub dx_roots: usize,
    pub dx_nodes: usize,
    pub hashed_names: usize,
    pub xattr_blocks: usize,
    pub xattrs: usize,
    pub ea_inodes: usize,
    pub inline_files: usize,
    pub inline_dirs: usize,
    pub fast_symlinks: usize,
    pub slow_symlinks: usize,
    pub orphan_blocks: usize,
    pub mmp_blocks: usize,
}

/// What a path leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum Node {
    Dir,
    File(Vec<u8>),
    Link(Vec<u8>),
    Other,
}

/// An open image.
pub struct Walk<'i> {
    image: &'i Image,
    pub sb: SuperBlock,
    pub descs: Vec<GroupDesc>,
    zone: SystemZone,
    dirs: DirFormat,
    pub seen: Seen,
}

impl<'i> Walk<'i> {
    /// Reads superblock, backups and descriptors.
    pub fn open(image: &'i Image) -> Self {
        let raw = image.read(SUPERBLOCK_OFFSET, SuperBlock::SIZE);
        let sb = SuperBlock::parse(&raw).unwrap();
        assert_eq!(sb.encode().as_slice(), raw);
        sb.validate(Some(image.size())).unwrap();
        sb.verify_checksum().unwrap();
        let mut walk = Self {
            image,
            dirs: DirFormat::of(&sb),
            sb,
            descs: Vec::new(),
            zone: SystemZone::default(),
            seen: Seen::default(),
        };
        walk.read_backups();
        walk.read_descs();
        walk.read_mmp();
        walk
    }

    /// Everything else: bitmaps and all inodes with what belongs to them.
    pub fn run(&mut self) {
        for group in (0..self.sb.group_count()).map(Group) {
            self.check_bitmaps(group);
        }
        for ino in self.used_inodes() {
            self.check_inode(ino);
        }
    }

    fn csum(&self) -> bool {
        self.sb.features().metadata_csum()
    }

    fn block(&self, block: Pblk) -> Vec<u8> {
        let size = self.sb.block_size();
        self.image.read(block.0 * u64::from(size), size as usize)
    }

    fn physical(&self) -> Range<u64> {
        self.sb.first_data_block().0..self.sb.blocks_count()
    }

    fn read_backups(&mut self) {
        let backups: Vec<_> = self.sb.backup_groups().collect();
        for group in backups {
            let block = self.block(self.sb.superblock_block(group));
            let backup = SuperBlock::parse(&block).unwrap();
            backup.validate(Some(self.image.size())).unwrap();
            backup.verify_checksum().unwrap();
            assert_eq!(u32::from(backup.disk().s_block_group_nr), group.0);
            assert_eq!(backup.uuid(), self.sb.uuid());
            self.seen.backups += 1;
        }
    }

    fn read_descs(&mut self) {
        let (size, per_block) = (self.sb.desc_size(), self.sb.descs_per_block());
        let kind = GroupChecksum::of(&self.sb);
        for group in (0..self.sb.group_count()).map(Group) {
            let block = self.block(self.sb.descriptor_block(group.0 / per_block));
            let raw = &block[(group.0 % per_block) as usize * size..][..size];
            let mut desc = GroupDesc::parse(raw, size).unwrap();
            assert_eq!(desc.encode(), raw, "group {group}");
            desc.verify_checksum(group, kind).unwrap();
            desc.update_checksum(group, kind);
            assert_eq!(desc.encode(), raw, "group {group}");
            desc.validate(&self.sb, group).unwrap();
            self.descs.push(desc);
            self.seen.groups += 1;
        }
        self.zone = SystemZone::new(&self.sb, &self.descs, []);
    }

    fn read_mmp(&mut self) {
        let Some(block) = self.sb.mmp_block().unwrap() else {
            return;
        };
        let raw = self.block(block);
        let mmp = Mmp::parse(&raw).unwrap();
        mmp.validate().unwrap();
        assert_eq!(mmp.encode(), raw[..Mmp::SIZE]);
        if self.csum() {
            mmp.verify_checksum(self.sb.checksum_seed()).unwrap();
        }
        self.seen.mmp_blocks += 1;
    }

    fn check_bitmaps(&self, group: Group) {
        let desc = &self.descs[group.0 as usize];
        let uninit = |flag| self.sb.features().group_csum() && desc.flags() & flag != 0;
        if !uninit(BLOCK_UNINIT) {
            let bits = self.block(desc.block_bitmap());
            if self.csum() {
                bitmap::verify_block_bitmap(&bits, &self.sb, desc).unwrap();
            }
            let clusters = self.sb.clusters_in_group(group) as usize;
            let free = bitmap::count_free(&bits, clusters);
            assert_eq!(free, desc.free_clusters_count() as usize, "group {group}");
            self.check_zone_is_used(group, &bits);
        }
        if !uninit(INODE_UNINIT) {
            let bits = self.block(desc.inode_bitmap());
            if self.csum() {
                bitmap::verify_inode_bitmap(&bits, &self.sb, desc).unwrap();
            }
            let free = bitmap::count_free(&bits, self.sb.inodes_per_group() as usize);
            assert_eq!(free, desc.free_inodes_count() as usize, "group {group}");
        }
    }

    fn check_zone_is_used(&self, group: Group, bits: &[u8]) {
        let first = self.sb.group_first_block(group).0;
        for block in 0..u64::from(self.sb.blocks_in_group(group)) {
            if self.zone.overlaps(Pblk(first + block), 1) {
                let cluster = block / u64::from(self.sb.cluster_ratio());
                assert!(
                    bitmap::get(bits, cluster as usize),
                    "block {}",
                    first + block
                );
            }
        }
    }

    fn used_inodes(&self) -> Vec<Ino> {
        let mut inodes = Vec::new();
        let per_group = self.sb.inodes_per_group();
        for (group, desc) in self.descs.iter().enumerate() {
            if self.sb.features().group_csum() && desc.flags() & INODE_UNINIT != 0 {
                continue;
            }
            let bits = self.block(desc.inode_bitmap());
            let mut at = 0;
            while let Some(index) = bitmap::next_set(&bits, at, per_group as usize) {
                inodes.push(Ino(group as u32 * per_group + index as u32 + 1));
                at = index + 1;
            }
        }
        inodes
    }

    fn raw_inode(&self, ino: Ino) -> Vec<u8> {
        let (group, index) = self.sb.inode_location(ino).unwrap();
        let size = self.sb.inode_size();
        let table = self.descs[group.0 as usize].inode_table().0;
        let at = table * u64::from(self.sb.block_size()) + u64::from(index) * size as u64;
        self.image.read(at, size)
    }

    pub fn inode(&mut self, ino: Ino) -> (Inode, Vec<u8>) {
        let raw = self.raw_inode(ino);
        let mut inode = Inode::parse(&raw, raw.len()).unwrap();
        assert_eq!(inode.encode(), raw, "inode {ino}");
        if self.csum() {
            let seed = self.sb.checksum_seed();
            inode.verify_checksum(seed, ino).unwrap();
            if raw.iter().any(|&b| b != 0) {
                inode.update_checksum(seed, ino);
                assert_eq!(inode.encode(), raw, "inode {ino}");
            }
        }
        (inode, raw)
    }

    fn check_inode(&mut self, ino: Ino) {
        let (inode, raw) = self.inode(ino);
        self.seen.inodes += 1;
        let has_content = inode.mode() != 0;
        if has_content {
            inode
                .validate(&self.sb)
                .unwrap_or_else(|e| panic!("inode {ino}: {e}"));
        }
        self.check_xattrs(&inode, &raw);
        self.check_times(&inode);
        if inode.is_dir() {
            self.check_dir(ino, &inode, &raw);
        } else if has_content {
            self.content(ino, &inode, &raw);
        }
        if Some(ino) == self.sb.orphan_file_inum() {
            self.check_orphan_file(ino, &inode);
        }
        if Some(ino) == self.sb.journal_inum() {
            self.check_journal(ino, &inode);
        }
    }

    fn check_times(&self, inode: &Inode) {
        let mut copy = inode.clone();
        copy.set_atime(inode.atime());
        copy.set_ctime(inode.ctime());
        copy.set_mtime(inode.mtime());
        copy.set_size(inode.size());
        assert_eq!(&copy, inode);
    }

    fn check_entries(&mut self, entries: &[XattrEntry<'_>]) {
        for entry in entries {
            entry.full_name().unwrap();
            assert!(entry.hash_matches(), "{entry:?}");
            self.seen.xattrs += 1;
            self.seen.ea_inodes += usize::from(entry.bytes().is_none());
        }
    }

    fn check_xattrs(&mut self, inode: &Inode, raw: &[u8]) {
        let entries = xattr::parse_in_inode(inode.in_inode_xattrs(raw)).unwrap();
        self.check_entries(&entries);
        let Some(place) = inode.file_acl() else {
            return;
        };
        let mut block = self.block(place);
        let parsed = XattrBlock::parse(&block).unwrap();
        self.check_entries(&parsed.entries);
        assert_eq!(parsed.header.encode(), block[..32]);
        // e2fsprogs leaves the hash of a block 0.
        let hash = parsed.header.h_hash;
        assert!(hash == 0 || hash == xattr::block_hash(&parsed.entries));
        if self.csum() {
            let (seed, before) = (self.sb.checksum_seed(), block.clone());
            xattr::verify_checksum(&block, seed, place).unwrap();
            xattr::update_checksum(&mut block, seed, place).unwrap();
            assert_eq!(block, before);
        }
        self.seen.xattr_blocks += 1;
    }

    /// Physical blocks of a file, in logical order; holes and unwritten blocks are missing.
    pub fn blocks(&mut self, ino: Ino, inode: &Inode) -> BTreeMap<u32, Pblk> {
        let mut blocks = BTreeMap::new();
        if inode.uses_extents() {
            let seed = inode.seed(self.sb.checksum_seed(), ino);
            let root = ExtentNode::parse(inode.i_block(), None).unwrap();
            let mut copy = *inode.i_block();
            root.encode_into(&mut copy).unwrap();
            assert_eq!(&copy, inode.i_block());
            self.seen.depth = self.seen.depth.max(root.depth());
            self.extent_blocks(&root, 0..LBLK_END, seed, &mut blocks);
        } else if inode.file_type() != Some(FileType::Symlink) || !inode.is_fast_symlink() {
            for lblk in 0..inode.size().div_ceil(u64::from(self.sb.block_size())) {
                let lblk = Lblk(lblk as u32);
                if let Some(block) = self.indirect_block(inode, lblk) {
                    blocks.insert(lblk.0, block);
                }
            }
        }
        let system = ino.0 < self.sb.first_ino().0;
        let outside = |block: &Pblk| !self.zone.overlaps(*block, 1);
        assert!(
            system || blocks.values().all(outside),
            "inode {ino} claims metadata"
        );
        blocks
    }

    fn extent_blocks(
        &mut self,
        node: &ExtentNode,
        logical: Range<u64>,
        seed: u32,
        blocks: &mut BTreeMap<u32, Pblk>,
    ) {
        node.validate(logical.clone(), self.physical()).unwrap();
        for extent in node.extents().iter().filter(|e| !e.unwritten) {
            assert_eq!(node.find(extent.lblk), Some(*extent));
            for i in 0..u32::from(extent.len) {
                blocks.insert(extent.lblk.0 + i, Pblk(extent.pblk.0 + u64::from(i)));
            }
        }
        for (at, index) in node.indices().iter().enumerate() {
            let mut raw = self.block(index.leaf);
            if self.csum() {
                let before = raw.clone();
                extent::verify_checksum(&raw, seed).unwrap();
                extent::update_checksum(&mut raw, seed).unwrap();
                assert_eq!(raw, before);
            }
            let child = ExtentNode::parse(&raw, Some(node.depth() - 1)).unwrap();
            let mut copy = raw.clone();
            child.encode_into(&mut copy).unwrap();
            assert_eq!(copy, raw);
            assert_eq!(
                child.header.eh_max,
                extent::max_entries(self.sb.block_size())
            );
            self.seen.extent_blocks += 1;
            self.extent_blocks(&child, node.child_range(at, &logical), seed, blocks);
        }
    }

    fn indirect_block(&mut self, inode: &Inode, lblk: Lblk) -> Option<Pblk> {
        let path = indirect::path(lblk, self.sb.block_size()).unwrap();
        let mut bytes = inode.i_block().to_vec();
        let mut block = Pblk(0);
        for (depth, &offset) in path.offsets().iter().enumerate() {
            if depth > 0 {
                bytes = self.block(block);
                indirect::validate(&bytes, &self.physical()).unwrap();
                let mut copy = vec![0; bytes.len()];
                let words: Vec<u32> = indirect::pointers(&bytes).collect();
                indirect::encode_into(&words, &mut copy);
                assert_eq!(copy, bytes);
                self.seen.indirect_blocks += 1;
            }
            block = indirect::pointer_at(&bytes, offset, &self.physical()).unwrap()?;
        }
        Some(block)
    }

    /// The content of a file or the target of a symlink.
    pub fn content(&mut self, ino: Ino, inode: &Inode, raw: &[u8]) -> Vec<u8> {
        let is_link = inode.file_type() == Some(FileType::Symlink);
        if inode.is_fast_symlink() {
            self.seen.fast_symlinks += 1;
            return symlink::fast_target(inode).unwrap().to_vec();
        }
        if !is_link && inode.file_type() != Some(FileType::Regular) {
            return Vec::new();
        }
        let mut content = if inode.has_inline_data() {
            self.seen.inline_files += 1;
            let entries = xattr::parse_in_inode(inode.in_inode_xattrs(raw)).unwrap();
            let data = inline_data::system_data(&entries).unwrap_or(&[]);
            inline_data::file_content(inode, data)
        } else if ino.0 < self.sb.first_ino().0 && ino != Ino(self.sb.disk().s_journal_inum) {
            // The resize inode maps blocks of the descriptor table that mean nothing as content.
            return Vec::new();
        } else {
            self.mapped_content(ino, inode)
        };
        if is_link {
            self.seen.slow_symlinks += 1;
            content = symlink::slow_target(&content, inode.size())
                .unwrap()
                .to_vec();
        }
        content
    }

    fn mapped_content(&mut self, ino: Ino, inode: &Inode) -> Vec<u8> {
        let size = self.sb.block_size() as usize;
        let blocks = self.blocks(ino, inode);
        if Some(ino) == self.sb.journal_inum() {
            return Vec::new();
        }
        let mut content = vec![0; (inode.size() as usize).next_multiple_of(size)];
        for (lblk, block) in blocks {
            if let Some(slot) = content.chunks_exact_mut(size).nth(lblk as usize) {
                slot.copy_from_slice(&self.block(block));
            }
        }
        content.truncate(inode.size() as usize);
        content
    }

    /// The names of a directory with their inodes, `.` and `..` left out.
    pub fn names(&mut self, ino: Ino, inode: &Inode, raw: &[u8]) -> Vec<(Vec<u8>, Ino)> {
        let mut names = Vec::new();
        if inode.has_inline_data() {
            self.seen.inline_dirs += 1;
            let entries = xattr::parse_in_inode(inode.in_inode_xattrs(raw)).unwrap();
            let data = inline_data::system_data(&entries).unwrap_or(&[]);
            let dir = InlineDir::parse(inode, data, &self.dirs).unwrap();
            for entry in dir.entries(&self.dirs) {
                let entry = entry.unwrap();
                names.push((entry.name.to_vec(), entry.ino));
            }
            return names;
        }
        for (_, block) in self.blocks(ino, inode) {
            let bytes = self.block(block);
            for entry in dir::entries(&bytes, &self.dirs) {
                let entry = entry.unwrap();
                if entry.name != b"." && entry.name != b".." {
                    names.push((entry.name.to_vec(), entry.ino));
                }
            }
        }
        names
    }

    fn check_dir(&mut self, ino: Ino, inode: &Inode, raw: &[u8]) {
        self.names(ino, inode, raw);
        if inode.has_inline_data() {
            return;
        }
        let indexed = inode
            .flags()
            .contains(dioxide_format::inode::InodeFlags::INDEX);
        let seed = inode.seed(self.sb.checksum_seed(), ino);
        let blocks = self.blocks(ino, inode);
        for (&lblk, &block) in &blocks {
            let mut bytes = self.block(block);
            self.check_slots(&bytes);
            let is_index = indexed && htree::is_index_block(&bytes, Lblk(lblk), &self.dirs);
            if self.csum() {
                let before = bytes.clone();
                if is_index {
                    htree::verify_checksum(&bytes, &self.dirs, seed).unwrap();
                    htree::update_checksum(&mut bytes, &self.dirs, seed).unwrap();
                } else {
                    dir::verify_checksum(&bytes, seed).unwrap();
                    dir::update_checksum(&mut bytes, seed).unwrap();
                }
                assert_eq!(bytes, before);
            }
            self.seen.dir_blocks += 1;
        }
        if indexed {
            self.check_index(&blocks);
        }
    }

    fn check_slots(&self, bytes: &[u8]) {
        let mut copy = bytes.to_vec();
        for slot in dir::slots(bytes, &self.dirs) {
            slot.unwrap().encode_into(&mut copy).unwrap();
        }
        assert_eq!(copy, bytes);
    }

    /// Every name must be where its hash says.
    fn check_index(&mut self, blocks: &BTreeMap<u32, Pblk>) {
        let bytes = self.block(blocks[&0]);
        let root = DxRoot::parse(&bytes, &self.dirs).unwrap();
        let mut copy = bytes.clone();
        root.encode_into(&mut copy).unwrap();
        assert_eq!(copy, bytes);
        self.seen.dx_roots += 1;
        let version = root.hash_version(self.sb.hash_is_unsigned()).unwrap();
        let leaves = self.index_leaves(&root.entries, root.indirect_levels(), blocks);
        for leaf in &leaves {
            let bytes = self.block(blocks[&leaf.0]);
            for entry in dir::entries(&bytes, &self.dirs) {
                let name = entry.unwrap().name.to_vec();
                let hash = htree::hash(&name, version, self.sb.hash_seed());
                let found = self.lookup(&root, hash.major, blocks);
                assert!(found.contains(leaf), "{name:?} hashes to {hash:x?}");
                self.seen.hashed_names += 1;
            }
        }
    }

    fn node(&self, lblk: Lblk, blocks: &BTreeMap<u32, Pblk>) -> DxNode {
        let bytes = self.block(blocks[&lblk.0]);
        let node = DxNode::parse(&bytes, &self.dirs).unwrap();
        let mut copy = bytes.clone();
        node.encode_into(&mut copy).unwrap();
        assert_eq!(copy, bytes);
        node
    }

    fn index_leaves(
        &mut self,
        entries: &DxEntries,
        levels: u8,
        blocks: &BTreeMap<u32, Pblk>,
    ) -> Vec<Lblk> {
        entries.validate(blocks.len() as u32).unwrap();
        let children = entries.as_slice().iter().map(|entry| entry.block());
        if levels == 0 {
            return children.collect();
        }
        let mut leaves = Vec::new();
        for child in children {
            self.seen.dx_nodes += 1;
            let node = self.node(child, blocks);
            leaves.extend(self.index_leaves(&node.entries, levels - 1, blocks));
        }
        leaves
    }

    /// The leaves that may hold a hash: the one found and those it continues in.
    fn lookup(&self, root: &DxRoot, major: u32, blocks: &BTreeMap<u32, Pblk>) -> Vec<Lblk> {
        let mut entries = root.entries.clone();
        for _ in 0..root.indirect_levels() {
            let block = entries.as_slice()[entries.search(major)].block();
            entries = self.node(block, blocks).entries;
        }
        let at = entries.search(major);
        let found = entries.as_slice()[at];
        let more = &entries.as_slice()[at + 1..];
        let more = more.iter().take_while(|entry| entry.hash == major | 1);
        std::iter::once(found)
            .chain(more.copied())
            .map(|entry| entry.block())
            .collect()
    }

    fn check_orphan_file(&mut self, ino: Ino, inode: &Inode) {
        let seed = inode.seed(self.sb.checksum_seed(), ino);
        for (_, place) in self.blocks(ino, inode) {
            let mut bytes = self.block(place);
            let orphans = orphan_file::orphans(&bytes, self.sb.inodes_count()).unwrap();
            assert!(orphans.is_empty());
            if self.csum() {
                let before = bytes.clone();
                orphan_file::verify_checksum(&bytes, seed, place).unwrap();
                orphan_file::update_checksum(&mut bytes, seed, place).unwrap();
                assert_eq!(bytes, before);
            }
            self.seen.orphan_blocks += 1;
        }
    }

    fn check_journal(&mut self, ino: Ino, inode: &Inode) {
        let blocks = self.blocks(ino, inode);
        let bytes = self.block(blocks[&0]);
        let mut journal = JournalSuperBlock::parse(&bytes).unwrap();
        assert_eq!(journal.encode(), bytes[..JournalSuperBlock::SIZE]);
        journal.validate(self.sb.block_size()).unwrap();
        journal.verify_checksum().unwrap();
        journal.format().unwrap();
        journal.update_checksum();
        assert_eq!(journal.encode(), bytes[..JournalSuperBlock::SIZE]);
        assert!(journal.is_empty());
        assert!(!self.sb.needs_recovery());
    }

    /// The whole tree by path, `/` being the empty path.
    pub fn tree(&mut self) -> BTreeMap<String, Node> {
        let mut tree = BTreeMap::new();
        self.add_to_tree(String::new(), Ino::ROOT, &mut tree);
        tree
    }

    fn add_to_tree(&mut self, path: String, ino: Ino, tree: &mut BTreeMap<String, Node>) {
        let (inode, raw) = self.inode(ino);
        let node = match inode.file_type().unwrap() {
            FileType::Directory => {
                for (name, child) in self.names(ino, &inode, &raw) {
                    let name = String::from_utf8(name).unwrap();
                    self.add_to_tree(format!("{path}/{name}"), child, tree);
                }
                Node::Dir
            }
            FileType::Regular => Node::File(self.content(ino, &inode, &raw)),
            FileType::Symlink => Node::Link(self.content(ino, &inode, &raw)),
            _ => Node::Other,
        };
        tree.insert(path, node);
    }
}
