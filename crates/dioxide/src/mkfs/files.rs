//! The files that a new file system has: directories, the resize inode, quota and orphan
//! files, and the block of multi-mount protection.
//!
//! Not for: files with contents of the user's.
//!
//! Blocks are given out in the order in which the files are made, each search beginning at the place
//! that `mke2fs` gives the file; so the files lie where they lie in its file systems.

use super::mapping::Mapping;
use super::options::Mkfs;
use super::plan::Plan;
use super::profile;
use super::quota::{self, QuotaKind, Usage};
use crate::{Error, Result};
use dioxide_format::dir::{self, DirEntry};
use dioxide_format::features::{Compat, Incompat, RoCompat};
use dioxide_format::indirect;
use dioxide_format::inode::{FileType, Inode, InodeFlags, Timestamp};
use dioxide_format::mmp::{self, Mmp};
use dioxide_format::orphan_file;
use dioxide_format::types::{Group, Ino, Pblk};

/// Most blocks of an orphan file that Linux mounts.
const ORPHAN_BLOCKS_MAX: u64 = 512;

const LOST_AND_FOUND: Ino = Ino(11);
/// What lost+found is to hold without growing.
const LOST_AND_FOUND_BYTES: u64 = 16 << 10;
const EXTRA_ISIZE: u16 = 32;

impl Plan {
    /// Makes all files.
    pub(super) fn add_files(&mut self, mkfs: &Mkfs) -> Result<()> {
        self.add_reserved_inodes();
        self.add_directories(mkfs)?;
        self.add_bad_blocks();
        let features = self.sb.features();
        if features.compat.contains(Compat::RESIZE_INODE) {
            self.add_resize_inode()?;
        }
        if features.compat.contains(Compat::HAS_JOURNAL) {
            self.add_journal(mkfs)?;
        }
        if features.incompat.contains(Incompat::MMP) {
            self.add_mmp(mkfs)?;
        }
        if features.ro_compat.contains(RoCompat::QUOTA) {
            self.add_quota(mkfs)?;
        }
        if self.sb.features().compat.contains(Compat::ORPHAN_FILE) {
            self.add_orphan_file(mkfs)?;
        }
        Ok(())
    }

    pub(super) fn block_size(&self) -> u64 {
        self.sb.block_size().into()
    }

    /// Where files begin to look for blocks, wherever their inodes are.
    pub(super) fn first_goal(&self) -> u64 {
        self.sb.first_data_block().0
    }

    /// Where a directory does: where the flex group of its inode begins.
    fn dir_goal(&self, ino: Ino) -> u64 {
        let group = self.sb.inode_location(ino).map_or(0, |(group, _)| group.0);
        let flex = 1 << self.sb.log_groups_per_flex();
        self.sb.group_first_block(Group(group & !(flex - 1))).0
    }

    pub(super) fn inode_seed(&self, ino: Ino) -> u32 {
        dioxide_format::checksum::inode_seed(self.sb.checksum_seed(), ino, 0)
    }

    fn blank_inode(&self) -> Inode {
        Inode::zeroed(self.sb.inode_size()).expect("the size was checked")
    }

    /// A new inode of some kind that has nothing yet.
    pub(super) fn new_inode(&self, file_type: FileType, permissions: u16, links: u16) -> Inode {
        let mut inode = self.blank_inode();
        let time = Timestamp {
            secs: self.now,
            nsec: 0,
        };
        if inode.inode_size() > 128 {
            inode.disk_mut().i_extra_isize = EXTRA_ISIZE;
        }
        inode.set_atime(time);
        inode.set_ctime(time);
        inode.set_mtime(time);
        let (secs, extra) = (inode.disk().i_ctime, inode.disk().i_ctime_extra);
        let disk = inode.disk_mut();
        if disk.i_extra_isize > 0 {
            disk.i_crtime = secs;
            disk.i_crtime_extra = extra;
        }
        disk.i_mode = file_type.mode_bits() | permissions;
        disk.i_links_count = links;
        inode
    }

    /// Gives an inode its blocks.
    pub(super) fn finish_inode(
        &mut self,
        ino: Ino,
        mut inode: Inode,
        size: u64,
        mapping: &Mapping,
    ) {
        inode.set_size(size);
        inode.set_i_block(&mapping.i_block);
        if self.uses_extents() {
            inode.disk_mut().i_flags |= InodeFlags::EXTENTS.0;
        }
        self.add_inode(ino, inode, mapping.sectors);
    }

    fn add_inode(&mut self, ino: Ino, mut inode: Inode, sectors: u64) {
        let huge = self.sb.features().ro_compat.contains(RoCompat::HUGE_FILE);
        let fits = inode.set_sectors(sectors, huge, self.sb.block_size());
        assert!(fits, "the first files are small");
        self.last_ino = self.last_ino.max(ino.0);
        self.inodes.insert(ino, inode);
    }

    /// The inodes before the first free one are there, if only as zeros.
    fn add_reserved_inodes(&mut self) {
        for ino in 1..self.sb.first_ino().0 {
            let blank = self.blank_inode();
            self.add_inode(Ino(ino), blank, 0);
        }
    }

    fn add_bad_blocks(&mut self) {
        let mut inode = self.blank_inode();
        let time = Timestamp {
            secs: self.now,
            nsec: 0,
        };
        inode.set_atime(time);
        inode.set_ctime(time);
        inode.set_mtime(time);
        self.add_inode(Ino::BAD_BLOCKS, inode, 0);
    }

    fn add_directories(&mut self, mkfs: &Mkfs) -> Result<()> {
        let root = self.map(Ino::ROOT, 1, self.dir_goal(Ino::ROOT))?;
        let entries: [(&[u8], Ino); 3] = [
            (b".", Ino::ROOT),
            (b"..", Ino::ROOT),
            (b"lost+found", LOST_AND_FOUND),
        ];
        self.put_dir_block(Ino::ROOT, root.runs[0].start, &entries)?;
        let mut inode = self.new_inode(FileType::Directory, 0o755, 3);
        let (uid, gid) = mkfs.extended.root_owner;
        inode.set_owner(uid, gid);
        self.finish_inode(Ino::ROOT, inode, self.block_size(), &root);
        self.add_lost_and_found()
    }

    fn add_lost_and_found(&mut self) -> Result<()> {
        let mut blocks =
            (LOST_AND_FOUND_BYTES / self.block_size()).clamp(2, indirect::DIRECT.into());
        let mut goal = self.dir_goal(LOST_AND_FOUND);
        if self.sb.features().incompat.contains(Incompat::INLINE_DATA) {
            // The first step out of the inode counts as one of growth, and goes anywhere.
            blocks -= 1;
            goal = self.first_goal();
        }
        let mapping = self.map(LOST_AND_FOUND, blocks, goal)?;
        let all: Vec<u64> = mapping.runs.iter().cloned().flatten().collect();
        let entries: [(&[u8], Ino); 2] = [(b".", LOST_AND_FOUND), (b"..", Ino::ROOT)];
        self.put_dir_block(LOST_AND_FOUND, all[0], &entries)?;
        for block in &all[1..] {
            self.put_dir_block(LOST_AND_FOUND, *block, &[(b"", Ino(0))])?;
        }
        let inode = self.new_inode(FileType::Directory, 0o700, 2);
        self.finish_inode(LOST_AND_FOUND, inode, blocks * self.block_size(), &mapping);
        Ok(())
    }

    /// A block with these entries, all of directories; the last one fills it.
    fn put_dir_block(&mut self, ino: Ino, block: u64, entries: &[(&[u8], Ino)]) -> Result<()> {
        let mut bytes = vec![0; self.block_size() as usize];
        let csum = self.sb.features().metadata_csum();
        let filetype = self.sb.features().incompat.contains(Incompat::FILETYPE);
        let end = bytes.len() - if csum { dir::DirTailDisk::SIZE } else { 0 };
        let place = |error| Error::format(error, crate::Place::ino(ino));
        let mut offset = 0;
        for (index, (name, target)) in entries.iter().enumerate() {
            let is_last = index + 1 == entries.len();
            let rec_len = match is_last {
                true => end - offset,
                false => dir::min_rec_len(name.len()),
            };
            let code = FileType::Directory.dirent_code();
            let entry = DirEntry {
                offset,
                rec_len,
                ino: *target,
                file_type: None,
                type_byte: if filetype && target.0 != 0 { code } else { 0 },
                name,
            };
            entry.encode_into(&mut bytes).map_err(place)?;
            offset += rec_len;
        }
        if csum {
            dir::update_checksum(&mut bytes, self.inode_seed(ino)).map_err(place)?;
        }
        self.content.insert(block, bytes);
        Ok(())
    }

    /// The inode that holds the blocks kept for group descriptors: a block of pointers, whose targets,
    /// the kept blocks of group 0, point to their copies in the backups.
    fn add_resize_inode(&mut self) -> Result<()> {
        let sb = &self.sb;
        let (old, kept) = (sb.descriptor_blocks(), u32::from(sb.reserved_gdt_blocks()));
        let per_block = indirect::pointers_per_block(sb.block_size());
        let block_size = u64::from(sb.block_size());
        let bases: Vec<u64> = sb.resize_inode_bases().collect();
        let own = sb.superblock_block(Group(0)).0;
        let goal = own + u64::from(old + kept + 2 + sb.inode_table_blocks());
        let dind = self.take_cluster(goal)?;
        let mut pointers = vec![0; per_block as usize];
        for index in old..old + kept {
            let at = |base: &u64| (base + u64::from(index)) as u32;
            pointers[(index % per_block) as usize] = at(&bases[0]);
            let copies: Vec<u32> = bases[1..].iter().map(at).collect();
            self.put_pointers(at(&bases[0]).into(), &copies);
        }
        self.put_pointers(dind, &pointers);
        let mut i_block = [0; 60];
        indirect::encode_into(&[dind as u32], &mut i_block[13 * 4..]);
        let mut inode = self.new_inode(FileType::Regular, 0o600, 1);
        let per = u64::from(per_block);
        inode.set_size((u64::from(indirect::DIRECT) + per + per * per) * block_size);
        if inode.size() > i32::MAX as u64 {
            let large = RoCompat::LARGE_FILE.bits();
            self.sb.disk_mut().s_feature_ro_compat |= large;
        }
        inode.set_i_block(&i_block);
        // With bigalloc each block counts as a cluster, though several share one.
        let clusters = 1 + u64::from(kept) * bases.len() as u64;
        let sectors = clusters * self.space.unit() * block_size / 512;
        let huge = self.sb.features().ro_compat.contains(RoCompat::HUGE_FILE);
        if !inode.set_sectors(sectors, huge, self.sb.block_size()) {
            return Err(Error::Invalid(format!(
                "a resize inode of {sectors} sectors: make the file system without resize_inode, or with huge_file"
            )));
        }
        self.add_inode(Ino::RESIZE, inode, sectors);
        Ok(())
    }

    fn put_pointers(&mut self, block: u64, pointers: &[u32]) {
        let mut bytes = vec![0; self.block_size() as usize];
        indirect::encode_into(pointers, &mut bytes);
        self.content.insert(block, bytes);
    }

    fn add_mmp(&mut self, mkfs: &Mkfs) -> Result<()> {
        let block = self.take_cluster(self.first_goal())?;
        let interval = mkfs.extended.mmp_interval.unwrap_or(5);
        let mut mmp = Mmp::zeroed();
        mmp.mmp_magic = mmp::MAGIC;
        mmp.mmp_seq = mmp::SEQ_CLEAN;
        mmp.mmp_time = self.now.cast_unsigned();
        mmp.mmp_check_interval = interval;
        if self.sb.features().metadata_csum() {
            mmp.update_checksum(self.sb.checksum_seed());
        }
        let mut bytes = vec![0; self.block_size() as usize];
        bytes[..Mmp::SIZE].copy_from_slice(&mmp.encode());
        self.content.insert(block, bytes);
        let disk = self.sb.disk_mut();
        disk.s_mmp_block = block;
        disk.s_mmp_interval = interval;
        Ok(())
    }

    /// An inode number that nobody has.
    fn next_ino(&self) -> Ino {
        Ino(self.last_ino + 1)
    }

    fn add_quota(&mut self, mkfs: &Mkfs) -> Result<()> {
        let project = self.sb.features().ro_compat.contains(RoCompat::PROJECT);
        let kinds = mkfs.extended.quota_types.unwrap_or([true, true, project]);
        let (uid, gid) = mkfs.extended.root_owner;
        for (kind, _) in QuotaKind::ALL.into_iter().zip(kinds).filter(|(_, on)| *on) {
            let (ino, owner) = match kind {
                QuotaKind::User => (Ino::USER_QUOTA, uid),
                QuotaKind::Group => (Ino::GROUP_QUOTA, gid),
                QuotaKind::Project => (self.next_ino(), 0),
            };
            let contents = quota::contents(kind, &self.usages(owner));
            self.add_file(ino, &contents, InodeFlags::IMMUTABLE)?;
            let disk = self.sb.disk_mut();
            match kind {
                QuotaKind::User => disk.s_usr_quota_inum = ino.0,
                QuotaKind::Group => disk.s_grp_quota_inum = ino.0,
                QuotaKind::Project => disk.s_prj_quota_inum = ino.0,
            }
        }
        Ok(())
    }

    /// What the directories use: `lost+found` is of id 0, and the root of its owner.
    fn usages(&self, owner: u32) -> Vec<Usage> {
        let usage = |id, directories: &[Ino]| {
            let sectors = directories
                .iter()
                .map(|ino| self.inodes[ino].sectors(false, self.sb.block_size()));
            Usage {
                id,
                inodes: directories.len() as u64,
                bytes: sectors.sum::<u64>() * 512,
            }
        };
        match owner {
            0 => vec![usage(0, &[Ino::ROOT, LOST_AND_FOUND])],
            owner => vec![usage(0, &[LOST_AND_FOUND]), usage(owner, &[Ino::ROOT])],
        }
    }

    fn add_file(&mut self, ino: Ino, contents: &[u8], flags: InodeFlags) -> Result<()> {
        let block_size = self.block_size() as usize;
        let blocks = contents.len().div_ceil(block_size) as u64;
        let mapping = self.map(ino, blocks, self.first_goal())?;
        let places = mapping.runs.iter().cloned().flatten();
        for (block, part) in places.zip(contents.chunks(block_size)) {
            let mut bytes = part.to_vec();
            bytes.resize(block_size, 0);
            self.content.insert(block, bytes);
        }
        let mut inode = self.new_inode(FileType::Regular, 0o600, 1);
        inode.disk_mut().i_flags = flags.0;
        self.finish_inode(ino, inode, contents.len() as u64, &mapping);
        Ok(())
    }

    fn add_orphan_file(&mut self, mkfs: &Mkfs) -> Result<()> {
        let unit = self.space.unit();
        let blocks = match mkfs.extended.orphan_file_bytes {
            Some(amount) => amount.in_blocks(self.sb.block_size()),
            None => profile::orphan_file_blocks(self.sb.blocks_count()),
        };
        let whole = blocks.next_multiple_of(unit);
        if blocks == 0 || whole > ORPHAN_BLOCKS_MAX {
            return Err(Error::Invalid(format!(
                "an orphan file of {blocks} blocks, in clusters of {unit}: there must be from 1 to {ORPHAN_BLOCKS_MAX}; \
                 -O ^orphan_file does without"
            )));
        }
        let blocks = whole;
        let ino = self.next_ino();
        let mapping = self.map(ino, blocks, self.first_goal())?;
        for block in mapping.runs.iter().cloned().flatten() {
            let mut bytes = vec![0; self.block_size() as usize];
            let seed = self.inode_seed(ino);
            orphan_file::update_checksum(&mut bytes, seed, Pblk(block))
                .map_err(|error| Error::format(error, crate::Place::block(block)))?;
            if !self.sb.features().metadata_csum() {
                let end = bytes.len();
                bytes[end - 4..].fill(0);
            }
            self.content.insert(block, bytes);
        }
        let inode = self.new_inode(FileType::Regular, 0o600, 1);
        self.finish_inode(ino, inode, blocks * self.block_size(), &mapping);
        self.sb.disk_mut().s_orphan_file_inum = ino.0;
        Ok(())
    }
}
