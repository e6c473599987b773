//! Pass 1: each inode by itself.

use super::Checker;
use super::finding::{At, Code, Pass};
use super::inodes::{EA_INODE, HIDDEN, ORPHAN, USED};
use super::links::DirInfo;
use dioxide_format::Error as FormatError;
use dioxide_format::extent::ExtentNode;
use dioxide_format::features::{Compat, Incompat, RoCompat};
use dioxide_format::group_desc::INODE_UNINIT;
use dioxide_format::indirect;
use dioxide_format::inode::{FileType, Inode, InodeFlags};
use dioxide_format::symlink;
use dioxide_format::types::{Group, Ino};

/// Bytes of an inode table that are read at once.
const CHUNK_BYTES: u32 = 256 << 10;
/// `EXT4_IMAGIC_FL`, of a system that is no more.
const IMAGIC: u32 = 0x2000;

impl Checker<'_> {
    pub(super) fn pass1(&mut self) {
        for group in (0..self.sb.group_count()).map(Group) {
            self.scan_table(group);
            self.step(Pass::Pass1);
            if self.is_cancelled() || self.inodes.is_over() {
                return;
            }
        }
        self.judge_root();
        self.judge_shared_xattrs();
    }

    /// How many inodes of a group were ever used.
    pub(super) fn scanned(&self, group: Group) -> u32 {
        let per_group = self.sb.inodes_per_group();
        let Some(state) = self.groups.get(group).filter(|state| state.usable) else {
            return 0;
        };
        match state.summed {
            true if state.desc.flags() & INODE_UNINIT != 0 => 0,
            true => per_group - state.desc.itable_unused().min(per_group),
            false => per_group,
        }
    }

    fn scan_table(&mut self, group: Group) {
        let count = self.scanned(group);
        let Some(state) = self.groups.get(group) else {
            return;
        };
        let table = state.desc.inode_table().0;
        let size = self.sb.inode_size();
        let block_bytes = self.sb.block_size();
        let per_chunk = CHUNK_BYTES.max(block_bytes) / size as u32;
        let blocks_per_chunk = CHUNK_BYTES.max(block_bytes) / block_bytes;
        for first in (0..count).step_by(per_chunk as usize) {
            let block = table + u64::from(first / per_chunk * blocks_per_chunk);
            let left = (count - first).min(per_chunk);
            let blocks = (left * size as u32).div_ceil(block_bytes);
            let place = At::group(group).in_block(block);
            let read = self.source.blocks(block, blocks);
            let Some(bytes) = self.readable(place, read) else {
                continue;
            };
            let ino = self.inodes.first_of(group) + first;
            for (ino, raw) in (ino..).zip(bytes.chunks_exact(size).take(left as usize)) {
                self.inode(Ino(ino), raw);
            }
        }
    }

    fn inode(&mut self, ino: Ino, raw: &[u8]) {
        if raw.iter().all(|byte| *byte == 0) {
            return;
        }
        // The superblock's validation allows no other sizes.
        let Ok(inode) = Inode::parse(raw, self.sb.inode_size()) else {
            return;
        };
        if let Some(seed) = self.seed
            && let Err(error) = inode.verify_checksum(seed, ino)
        {
            self.find(Code::InodeChecksum, At::ino(ino), error.to_string());
        }
        let is_orphan = self.inodes.get(ino).has(ORPHAN);
        self.judge_dtime(ino, &inode, is_orphan);
        let is_hidden = self.is_hidden(ino);
        if self.is_without_use(ino) {
            return self.unused_reserved_inode(ino, &inode, raw);
        }
        self.judge_left_file(ino, &inode);
        if inode.links_count() == 0 && !is_orphan && (!is_hidden || inode.mode() == 0) {
            return;
        }
        self.remember(ino, &inode, is_hidden);
        self.used_inode(ino, &inode, raw);
    }

    fn remember(&mut self, ino: Ino, inode: &Inode, is_hidden: bool) {
        let kind = inode.file_type().map_or(0, FileType::dirent_code);
        let is_value = inode.flags().contains(InodeFlags::EA_INODE);
        if let Some(info) = self.inodes.get_mut(ino) {
            info.links = inode.links_count();
            info.kind = kind;
            info.marks |= USED;
            info.marks |= if is_value { EA_INODE } else { 0 };
            info.marks |= if is_hidden { HIDDEN } else { 0 };
        }
        self.usage.inodes += u64::from(ino >= self.sb.first_ino());
        match inode.file_type() {
            Some(FileType::Directory) => self.usage.directories += 1,
            Some(FileType::Regular) => self.usage.files += u64::from(!is_hidden),
            Some(FileType::Symlink) => self.usage.symlinks += 1,
            Some(_) => self.usage.special += 1,
            None => {}
        }
        if inode.is_dir() && self.inodes.take::<DirInfo>(1) {
            self.dirs.add(ino);
        }
    }

    /// Times of making, mounting and writing that are small numbers say that no clock was there, and
    /// deletion times cannot be told from inode numbers.
    fn has_clock(&self) -> bool {
        let disk = self.sb.disk();
        let inodes = self.sb.inodes_count();
        let is_real = |time: u32| time == 0 || time >= inodes;
        is_real(disk.s_wtime) && is_real(disk.s_mtime) && is_real(disk.s_mkfs_time)
    }

    fn judge_dtime(&mut self, ino: Ino, inode: &Inode, is_orphan: bool) {
        let dtime = inode.dtime();
        let place = At::ino(ino);
        if is_orphan {
            return;
        }
        if inode.links_count() == 0 {
            let is_plain = ino >= self.sb.first_ino() && !self.is_hidden(ino);
            if dtime == 0 && inode.mode() != 0 && is_plain {
                self.find(Code::InodeDtime, place, "deleted without a time");
            } else if dtime != 0 && dtime < self.sb.inodes_count() && self.has_clock() {
                let text = format!("i_dtime is {dtime}: left over from a list of orphans");
                self.find(Code::InodeDtime, place, text);
            }
        } else if dtime != 0 {
            let text = format!("in use, and i_dtime is {dtime}");
            self.find(Code::InodeDtime, place, text);
        }
    }

    fn used_inode(&mut self, ino: Ino, inode: &Inode, raw: &[u8]) {
        self.judge_fields(ino, inode);
        self.judge_flags(ino, inode);
        self.judge_times(ino, inode);
        if ino == Ino::RESIZE {
            let xattrs = self.xattrs(ino, inode, raw);
            return self.resize_inode_blocks(inode, xattrs.blocks);
        }
        match inode.file_type() {
            Some(FileType::Regular | FileType::Directory) => {}
            Some(FileType::Symlink) => self.judge_symlink(ino, inode),
            Some(_) => self.judge_special(ino, inode),
            None => {}
        }
        self.contents(ino, inode, raw);
    }

    fn judge_fields(&mut self, ino: Ino, inode: &Inode) {
        let place = At::ino(ino);
        if let Err(error) = inode.validate(&self.sb)
            && !(ino < self.sb.first_ino() && inode.mode() == 0)
        {
            let code = match &error {
                FormatError::Corrupt { field, .. } => match *field {
                    "i_mode" => Code::InodeMode,
                    "i_extra_isize" => Code::InodeExtraSize,
                    "i_file_acl" => Code::XattrInvalid,
                    "i_size" => Code::InodeSize,
                    _ => Code::InodeField,
                },
                _ => Code::InodeField,
            };
            self.find(code, place.clone(), error.to_string());
        }
        let features = self.sb.features();
        let disk = inode.disk();
        let sized = matches!(
            inode.file_type(),
            Some(FileType::Regular | FileType::Directory)
        );
        let huge = features.ro_compat.contains(RoCompat::HUGE_FILE);
        let (block_high, acl_high) = (disk.l_i_blocks_high, disk.l_i_file_acl_high);
        let wrong = [
            ("i_faddr", disk.i_obso_faddr, true),
            ("i_blocks_high", block_high.into(), !huge),
            ("i_file_acl_high", acl_high.into(), !self.sb.is_64bit()),
            ("i_size_high", disk.i_size_high, !sized && inode.mode() != 0),
        ];
        for (field, value, must_be_zero) in wrong {
            if must_be_zero && value != 0 {
                let text = format!("{field} is {value}, expected 0");
                self.find(Code::InodeField, place.clone(), text);
            }
        }
    }

    pub(super) fn judge_flags(&mut self, ino: Ino, inode: &Inode) {
        let features = self.sb.features();
        let (incompat, flags) = (features.incompat, inode.flags());
        let has = |flag| flags.contains(flag);
        let lacks = |feature| !incompat.contains(feature);
        let is_dir = inode.is_dir();
        let index = features.compat.contains(Compat::DIR_INDEX);
        let verity = features.ro_compat.contains(RoCompat::VERITY);
        let (extents, inline) = (InodeFlags::EXTENTS, InodeFlags::INLINE_DATA);
        let wrong = [
            (
                has(extents) && has(inline),
                "has extents and inline data at once",
            ),
            (
                has(extents) && lacks(Incompat::EXTENTS),
                "has extents, without the feature",
            ),
            (
                self.sb.cluster_ratio() > 1
                    && ino != Ino::RESIZE
                    && inode.has_pointers()
                    && inode.i_block().iter().any(|&byte| byte != 0),
                "has a map of pointers to blocks, with bigalloc",
            ),
            (
                has(inline) && lacks(Incompat::INLINE_DATA),
                "has inline data, without the feature",
            ),
            (
                has(InodeFlags::INDEX) && !(is_dir && index),
                "has an index, and is no directory or lacks the feature",
            ),
            (
                has(InodeFlags::INDEX) && has(inline),
                "has an index and inline data at once",
            ),
            (
                has(InodeFlags::EA_INODE) && lacks(Incompat::EA_INODE),
                "holds an attribute's value, without the feature",
            ),
            (
                has(InodeFlags::CASEFOLD) && (lacks(Incompat::CASEFOLD) || !is_dir),
                "folds case, and is no directory or lacks the feature",
            ),
            (
                has(InodeFlags::ENCRYPT) && lacks(Incompat::ENCRYPT),
                "is encrypted, without the feature",
            ),
            (
                has(InodeFlags::VERITY) && !verity,
                "has verity, without the feature",
            ),
            (has(InodeFlags(IMAGIC)), "has the flag of AFS"),
        ];
        for (is_wrong, text) in wrong {
            if is_wrong {
                self.find(Code::InodeFlags, At::ino(ino), text);
            }
        }
    }

    /// Both bits of the epoch on a number below zero: a time from 2310 to 2378, or one before 1970 by a kernel
    /// that got them wrong. Files may have such a time, and `e2fsck -n` exits with 0: a note.
    fn judge_times(&mut self, ino: Ino, inode: &Inode) {
        let disk = inode.disk();
        let times = [
            ("i_atime", disk.i_atime, disk.i_atime_extra, 0x90),
            ("i_ctime", disk.i_ctime, disk.i_ctime_extra, 0x88),
            ("i_mtime", disk.i_mtime, disk.i_mtime_extra, 0x8C),
            ("i_crtime", disk.i_crtime, disk.i_crtime_extra, 0x98),
        ];
        for (field, secs, extra, end) in times {
            let there = inode.inode_size() > 128 && 128 + inode.extra_isize() >= end;
            if there && secs.cast_signed() < 0 && extra & 3 == 3 {
                self.find(
                    Code::InodeTime,
                    At::ino(ino),
                    format!("{field} is of 2310 or later, or meant to be before 1970"),
                );
            }
        }
    }

    fn judge_special(&mut self, ino: Ino, inode: &Inode) {
        let flags = inode.flags();
        let mapped = InodeFlags::EXTENTS.0 | InodeFlags::INDEX.0;
        // Linux does not clear what is behind the number, but sets none of these flags either.
        let odd = InodeFlags::IMMUTABLE.0 | InodeFlags::APPEND.0;
        let behind = inode.i_block()[16..].iter().any(|&byte| byte != 0);
        let wrong = [
            (flags.0 & mapped != 0, "has a map of blocks"),
            (inode.size() != 0, "has a size"),
            (
                flags.0 & odd != 0 && behind,
                "is immutable or append-only, and holds more than a number",
            ),
        ];
        for (is_wrong, text) in wrong {
            if is_wrong {
                self.find(Code::SpecialInode, At::ino(ino), text);
            }
        }
    }

    fn judge_symlink(&mut self, ino: Ino, inode: &Inode) {
        if inode.has_inline_data() {
            return;
        }
        if inode.is_fast_symlink() {
            if let Some(text) = wrong_target(inode, inode.i_block()) {
                self.find(Code::SymlinkInvalid, At::ino(ino), text);
            }
            return;
        }
        if inode.size() < 60 {
            let text = "the target has room in the inode, and lies in a block";
            return self.find(Code::SymlinkInvalid, At::ino(ino), text);
        }
        let Some(block) = self.only_block(inode) else {
            let text = "the target is not in one block";
            return self.find(Code::SymlinkInvalid, At::ino(ino), text);
        };
        if !self.physical().contains(&block) {
            // What is wrong with the map is told with that.
            return;
        }
        let read = self.source.block(block);
        let place = At::ino(ino).in_block(block);
        if let Some(block) = self.readable(place.clone(), read)
            && let Some(text) = wrong_target(inode, &block)
        {
            self.find(Code::SymlinkInvalid, place, text);
        }
    }

    /// The block of a file that has one, and whose map needs no block of its own.
    fn only_block(&self, inode: &Inode) -> Option<u64> {
        if !inode.uses_extents() {
            let mut pointers = indirect::pointers(inode.i_block());
            let first = pointers.next().filter(|first| *first != 0)?;
            return pointers.all(|pointer| pointer == 0).then_some(first.into());
        }
        let root = ExtentNode::parse(inode.i_block(), Some(0)).ok()?;
        match root.extents() {
            [only] if only.lblk.0 == 0 && only.len == 1 => Some(only.pblk.0),
            _ => None,
        }
    }

    fn judge_root(&mut self) {
        let root = self.inodes.get(Ino::ROOT);
        let readable = self.groups.get(Group(0)).is_some_and(|state| state.usable);
        if readable && !root.is_dir() {
            let text = "the root is no directory";
            self.find(Code::RootMissing, At::ino(Ino::ROOT), text);
        }
    }
}

/// What is wrong with the target of a symlink, if something is.
fn wrong_target(inode: &Inode, content: &[u8]) -> Option<String> {
    let size = inode.size();
    if inode.flags().contains(InodeFlags::ENCRYPT) {
        // Its length comes first.
        let len = u16::from_le_bytes(*content.first_chunk()?);
        let is_right = u64::from(len) + 2 == size && size < content.len() as u64;
        return (!is_right).then(|| format!("i_size is {size}, the target takes {len} and 2"));
    }
    match symlink::slow_target(content, size) {
        Err(error) => Some(error.to_string()),
        Ok(target) if content.get(target.len()).is_none_or(|byte| *byte == 0) => None,
        Ok(_) => Some("the target goes on behind its size".into()),
    }
}
