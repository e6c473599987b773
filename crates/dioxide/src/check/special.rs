//! Pass 0: what the superblock leads to besides groups: journal, orphans, resize inode, quota, MMP.

use super::Checker;
use super::claims::Claims;
use super::finding::{At, Code};
use super::inodes::ORPHAN;
use super::layout::{Kind, Layout};
use super::source::Source;
use super::superblock;
use super::walk::runs_of;
use crate::mount::log::{LIES_ELSEWHERE, external, is_elsewhere};
use crate::txn::orphan::FILE_BLOCKS;
use crate::txn::quota::may_hold;
use crate::{Error, Result};
use dioxide_block::Device;
use dioxide_format::features::{Compat, RoCompat};
use dioxide_format::group_desc::GroupDesc;
use dioxide_format::indirect;
use dioxide_format::inode::{FileType, Inode};
use dioxide_format::mmp::{Mmp, MmpState};
use dioxide_format::orphan_file;
use dioxide_format::quota::QuotaKind;
use dioxide_format::types::{Group, Ino};
use dioxide_journal::log::{Log, LogMap};
use dioxide_journal::recovery::{FileSystem, Recovery};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

/// Most pieces that a journal or an orphan file may have.
const MOST_PIECES: usize = 65536;
/// Index of the pointer to the resize inode's only block in `i_block`.
const DOUBLE: usize = 13;

impl Checker<'_> {
    /// An inode and its bytes, as they lie in its table; nothing if there is no such inode, or it cannot
    /// be read.
    pub(super) fn read_inode(&self, ino: Ino) -> Option<(Inode, Vec<u8>)> {
        let (group, index) = self.sb.inode_location(ino)?;
        let table = match self.groups.get(group) {
            Some(state) if state.usable => state.desc.inode_table(),
            Some(_) => return None,
            None => self.read_desc(group)?.inode_table(),
        };
        let size = self.sb.inode_size();
        let at = u64::from(index) * size as u64;
        let place = table.0.checked_mul(self.sb.block_size().into())?;
        let raw = self.source.bytes(place.checked_add(at)?, size).ok()?;
        Some((Inode::parse(&raw, size).ok()?, raw))
    }

    /// A descriptor, before all of them are read.
    fn read_desc(&self, group: Group) -> Option<GroupDesc> {
        let per_block = self.sb.descs_per_block().max(1);
        if group.0 >= per_block {
            return None;
        }
        let bytes = self.source.block(self.sb_block + 1).ok()?;
        let at = group.0 as usize * self.sb.desc_size();
        let desc = GroupDesc::parse(bytes.get(at..)?, self.sb.desc_size()).ok()?;
        self.is_usable(&desc, group).then_some(desc)
    }

    fn journal_invalid(&mut self, text: impl Into<String>) {
        let place = self.sb.journal_inum().map_or(At::default(), At::ino);
        self.find(Code::JournalInvalid, place, text);
    }

    /// Looks at the journal, and from then on reads what it holds in place of what it replaces.
    pub(super) fn recover_journal(&mut self) {
        if !self.sb.features().compat.contains(Compat::HAS_JOURNAL) {
            return;
        }
        let elsewhere = is_elsewhere(&self.sb);
        if elsewhere && self.journal.is_none() {
            return self.find(Code::JournalNotChecked, At::default(), LIES_ELSEWHERE);
        }
        let log = match self.journal_log() {
            Ok(log) => log,
            Err(text) => return self.journal_invalid(text),
        };
        let journal = match log.read_superblock() {
            Ok(journal) => journal,
            Err(error) => return self.journal_invalid(error.to_string()),
        };
        if journal.has_no_fast_commit_room() {
            self.journal_invalid("it has fast commits, and no room for them");
        }
        if !elsewhere && journal.s_nr_users > 1 {
            let text = format!(
                "it lies in the file system, and has {} users",
                journal.s_nr_users
            );
            self.journal_invalid(text);
        }
        if journal.s_errno != 0 {
            let text = format!(
                "the journal was aborted, s_errno is {}",
                journal.s_errno.cast_signed()
            );
            self.find(Code::JournalAborted, At::default(), text);
        }
        match (self.sb.needs_recovery() && self.primary, journal.is_empty()) {
            (true, true) if elsewhere => {}
            (true, _) => {
                if let Err(error) = self.read_through(&log) {
                    let text =
                        format!("the journal needs recovery, and is not fit for it: {error}");
                    self.find(Code::JournalDamaged, At::default(), text);
                }
            }
            (false, false) if self.primary => {
                self.journal_invalid("the journal holds changes, and is not marked so");
            }
            _ => {}
        }
    }

    /// The journal, in the file system or on the device that was given.
    pub(super) fn journal_log(&self) -> Result<Log, String> {
        let one_place = self.sb.validate_journal_place();
        one_place.map_err(|error| error.to_string())?;
        if self.sb.journal_dev() != 0 {
            let device = self.journal.as_ref().ok_or(LIES_ELSEWHERE)?;
            return external(device, &self.sb).map_err(|error| error.to_string());
        }
        let ino = self.sb.journal_inum().ok_or("s_journal_inum is 0")?;
        if self.sb.journal_uuid() != [0; 16] {
            return Err("s_journal_uuid names a device, and s_journal_inum an inode".into());
        }
        let (inode, _) = self
            .read_inode(ino)
            .ok_or_else(|| format!("inode {ino} cannot be read"))?;
        if inode.file_type() != Some(FileType::Regular) || inode.links_count() == 0 {
            return Err("the journal's inode is no regular file".into());
        }
        let runs = self.whole_file(ino, &inode)?;
        let map = LogMap::internal(runs).map_err(|error| error.to_string())?;
        let bytes = self.sb.block_size() as usize;
        Ok(Log::new(self.source.device().clone(), map, bytes))
    }

    /// The blocks of a file without holes.
    fn whole_file(&self, ino: Ino, inode: &Inode) -> Result<Vec<Range<u64>>, String> {
        let blocks = inode.size().div_ceil(self.sb.block_size().into());
        let runs = runs_of(&self.walk_context(ino, inode), inode, MOST_PIECES);
        let mut at = 0;
        let mut ranges = Vec::new();
        for run in runs {
            if run.lblk != at {
                break;
            }
            at += run.len;
            ranges.push(run.blocks());
        }
        match at >= blocks && blocks > 0 {
            true => Ok(ranges),
            false => Err(format!("it has {blocks} blocks, and a hole at block {at}")),
        }
    }

    fn read_through(&mut self, log: &Log) -> Result<()> {
        let device = self.source.device();
        let recovery = Recovery::plan(log, FileSystem::of(&self.sb, &**device))?;
        if self.sb.block_size() < device.geometry().logical_block_bytes {
            return Err(Error::Unsupported("small blocks on this device".into()));
        }
        let overlay = recovery.overlay(device)?;
        let recovered = recovery.recovered();
        let mut text = format!(
            "recovering: {} transactions with {} blocks were read from the journal",
            recovered.transactions, recovered.blocks_replayed
        );
        if recovered.fast_commits > 0 {
            text += &format!(
                "; {} fast commits that follow them were left out",
                recovered.fast_commits
            );
        }
        self.find(Code::JournalRecovering, At::default(), text);
        self.adopt(Arc::new(overlay))
    }

    /// Goes on with what the log makes of the file system.
    fn adopt(&mut self, overlay: Arc<dyn Device>) -> Result<()> {
        let at = dioxide_format::superblock::SUPERBLOCK_OFFSET;
        let sb = superblock::candidate(&*overlay, at)
            .map_err(|(_, text)| Error::Invalid(format!("its superblock: {text}")))?;
        if sb.block_size() != self.sb.block_size() || sb.group_count() != self.sb.group_count() {
            return Err(Error::Invalid("its superblock has another geometry".into()));
        }
        self.recovered = true;
        self.source = Source::new(overlay, sb.block_size());
        self.claims = Claims::new(&sb);
        self.inodes = self.inodes.made_anew(&sb);
        self.layout = Layout::new(&sb);
        self.usage.blocks_total = sb.blocks_count();
        self.sb = sb;
        Ok(())
    }

    /// Looks at the inodes and blocks that the superblock names.
    pub(super) fn special_inodes(&mut self) {
        self.judge_mmp();
        self.judge_quota();
        self.judge_resize_inode();
        if self.primary {
            self.judge_orphan_list();
            self.judge_orphan_file();
        }
    }

    fn judge_mmp(&mut self) {
        let block = match self.sb.mmp_block() {
            Ok(Some(block)) => block,
            Ok(None) => return,
            Err(error) => {
                return self.find(Code::MmpInvalid, At::default(), error.to_string());
            }
        };
        let place = At::block(block.0);
        let read = self.source.block(block.0);
        let Some(bytes) = self.readable(place.clone(), read) else {
            return;
        };
        let seed = self.seed;
        let judged = Mmp::parse(&bytes).and_then(|mmp| {
            mmp.validate()?;
            seed.map_or(Ok(()), |seed| mmp.verify_checksum(seed))?;
            Ok(mmp.state())
        });
        match judged {
            Ok(MmpState::Clean) => {}
            Ok(state) => {
                let by = match state {
                    MmpState::Fsck => "by a checker".to_owned(),
                    MmpState::Clean | MmpState::Mounted(_) => "mounted".to_owned(),
                    MmpState::Unknown(seq) => format!("mmp_seq is {seq:#x}"),
                };
                let text = format!("the file system may be in use: {by}");
                self.find(Code::MmpInUse, place, text);
            }
            Err(error) => self.find(Code::MmpInvalid, place, error.to_string()),
        }
    }

    fn judge_quota(&mut self) {
        if !self.has_quota() {
            return;
        }
        let names = ["user", "group", "project"];
        let named = QuotaKind::ALL.into_iter().zip(names);
        for ((kind, name), ino) in named.zip(self.sb.quota_inums().map(Ino)) {
            if ino.0 == 0 {
                continue;
            }
            if !may_hold(&self.sb, kind, ino) {
                let text = format!("the {name} quota is in an inode that can hold none");
                self.find(Code::QuotaInode, At::ino(ino), text);
                continue;
            }
            let inode = self.read_inode(ino).map(|(inode, _)| inode);
            let is_file = inode.is_some_and(|inode| {
                inode.file_type() == Some(FileType::Regular) && inode.links_count() > 0
            });
            if !is_file {
                let text = format!("the {name} quota is no regular file");
                self.find(Code::QuotaInode, At::ino(ino), text);
            }
        }
    }

    fn judge_orphan_list(&mut self) {
        let mut seen = HashSet::new();
        let mut next = self.sb.last_orphan();
        while let Some(ino) = next {
            let inode = self.read_inode(ino).map(|(inode, _)| inode);
            let usable = ino >= self.sb.first_ino();
            let Some(inode) = inode.filter(|_| usable && seen.insert(ino)) else {
                let text = format!("the list of orphans leads to inode {ino}");
                return self.find(Code::OrphanList, At::ino(ino), text);
            };
            self.mark_orphan(ino);
            next = Some(Ino(inode.dtime())).filter(|ino| ino.0 != 0);
        }
        self.tell_orphans(seen.len());
    }

    fn tell_orphans(&mut self, count: usize) {
        if count > 0 {
            let text = format!("{count} deleted or truncated files wait to be freed");
            self.find(Code::OrphansPending, At::default(), text);
        }
    }

    fn mark_orphan(&mut self, ino: Ino) {
        if let Some(info) = self.inodes.get_mut(ino) {
            info.marks |= ORPHAN;
        }
    }

    fn judge_orphan_file(&mut self) {
        let features = self.sb.features();
        if !features.compat.contains(Compat::ORPHAN_FILE) {
            return;
        }
        let present = features.ro_compat.contains(RoCompat::ORPHAN_PRESENT);
        let ino = Ino(self.sb.disk().s_orphan_file_inum);
        let inode = self.read_inode(ino).map(|(inode, _)| inode);
        let is_file =
            |inode: &Inode| inode.file_type() == Some(FileType::Regular) && inode.links_count() > 0;
        let Some(inode) = inode.filter(is_file) else {
            let text = "the orphan file is no regular file with links";
            return self.find(Code::OrphanFile, At::ino(ino), text);
        };
        let size = inode.size();
        if !size.is_multiple_of(self.sb.block_size().into()) {
            let text = format!("i_size is {size}, no whole blocks");
            self.find(Code::OrphanFile, At::ino(ino), text);
        }
        let blocks = size.div_ceil(self.sb.block_size().into());
        if blocks > FILE_BLOCKS {
            // Neither is it read when the file system is mounted.
            let text = format!("it has {blocks} blocks, and {FILE_BLOCKS} at most are read");
            return self.find(Code::OrphanFile, At::ino(ino), text);
        }
        let ranges = match self.whole_file(ino, &inode) {
            Ok(ranges) => ranges,
            Err(text) => return self.find(Code::OrphanFile, At::ino(ino), text),
        };
        let there: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        if there > blocks {
            let text = format!("i_size is {size}, and it has {there} blocks");
            self.find(Code::OrphanFile, At::ino(ino), text);
        }
        let mut count = 0;
        for block in ranges.into_iter().flatten().take(blocks as usize) {
            if self.is_cancelled() {
                return;
            }
            count += self.orphan_block(ino, &inode, block);
        }
        if count > 0 && !present {
            let text = format!("{count} orphans in a file that is not marked as having some");
            self.find(Code::OrphanFile, At::ino(ino), text);
        }
        // While it is in use it is marked before there are any.
        if count == 0 && present && !self.sb.needs_recovery() {
            let text = "marked as having orphans, and there are none";
            self.find(Code::OrphanFile, At::ino(ino), text);
        }
        self.tell_orphans(count);
    }

    /// The orphans in one block of the orphan file.
    fn orphan_block(&mut self, ino: Ino, inode: &Inode, block: u64) -> usize {
        let place = At::ino(ino).in_block(block);
        let read = self.source.block(block);
        let Some(bytes) = self.readable(place.clone(), read) else {
            return 0;
        };
        if let Some(seed) = self.seed.map(|seed| inode.seed(seed, ino)) {
            if let Err(error) = orphan_file::verify_checksum(&bytes, seed, block.into()) {
                self.find(Code::OrphanFile, place.clone(), error.to_string());
            }
        } else if !bytes.ends_with(&[0; 4]) {
            let text = "a checksum, without the feature";
            self.find(Code::OrphanFile, place.clone(), text);
        }
        match orphan_file::orphans(&bytes, self.sb.inodes_count()) {
            Ok(orphans) => {
                orphans.iter().for_each(|(_, ino)| self.mark_orphan(*ino));
                orphans.len()
            }
            Err(error) => {
                self.find(Code::OrphanFile, place, error.to_string());
                0
            }
        }
    }

    /// The resize inode maps the blocks that are reserved for descriptors: by one block of pointers to
    /// those after the primary table, each of which points to its copies.
    fn judge_resize_inode(&mut self) {
        let wanted = self.sb.features().compat.contains(Compat::RESIZE_INODE);
        let Some((inode, _)) = self.read_inode(Ino::RESIZE) else {
            return;
        };
        let pointers: Vec<u32> = indirect::pointers(inode.i_block()).collect();
        let place = At::ino(Ino::RESIZE);
        if !wanted {
            if pointers.iter().any(|pointer| *pointer != 0) {
                let text = "the resize inode has blocks, without the feature";
                self.find(Code::ResizeInode, place, text);
            }
            return;
        }
        let others = inode.uses_extents()
            || (0..)
                .zip(&pointers)
                .any(|(i, p): (usize, &u32)| i != DOUBLE && *p != 0);
        let is_file = inode.file_type() == Some(FileType::Regular) && inode.links_count() > 0;
        let double = u64::from(pointers[DOUBLE]);
        if others || !is_file || !self.physical().contains(&double) {
            let text = "the resize inode is not a file of one double-indirect block";
            return self.find(Code::ResizeInode, place, text);
        }
        if let Some(text) = self.wrong_reserve(double) {
            self.find(Code::ResizeInode, place, text);
        }
    }

    fn wrong_reserve(&mut self, double: u64) -> Option<String> {
        let bytes = self.resize_block(double)?;
        let mut slots: Vec<u32> = indirect::pointers(&bytes).collect();
        let table = u64::from(self.sb.descriptor_blocks());
        let first = self.sb.superblock_block(Group(0)).0 + 1 + table;
        for index in 0..u64::from(self.sb.reserved_gdt_blocks()) {
            let slot = (table + index) as usize % slots.len();
            let (found, block) = (std::mem::take(&mut slots[slot]), first + index);
            if u64::from(found) != block {
                return Some(format!("pointer {slot} is {found}, expected {block}"));
            }
            if let Some(text) = self.wrong_copies(block) {
                return Some(text);
            }
        }
        let odd = slots.iter().position(|pointer| *pointer != 0)?;
        Some(format!("pointer {odd} is {}, expected 0", slots[odd]))
    }

    /// A block that is reserved for descriptors holds where its copies are, and zeros.
    fn wrong_copies(&mut self, block: u64) -> Option<String> {
        let bytes = self.resize_block(block)?;
        let distance = |group: Group| u64::from(group.0) * u64::from(self.sb.blocks_per_group());
        let copies = self.sb.backup_groups().map(|group| block + distance(group));
        let expected = copies.chain(std::iter::repeat(0));
        let mut pairs = indirect::pointers(&bytes).map(u64::from).zip(expected);
        let (found, expected) = pairs.find(|(found, expected)| found != expected)?;
        Some(format!(
            "block {block} leads to {found}, expected {expected}"
        ))
    }

    fn resize_block(&mut self, block: u64) -> Option<Vec<u8>> {
        let read = self.source.block(block);
        self.readable(At::ino(Ino::RESIZE).in_block(block), read)
    }

    /// Pass 1 for the resize inode: all but one of its blocks are descriptors.
    pub(super) fn resize_inode_blocks(&mut self, inode: &Inode, xattr_blocks: u64) {
        let double = indirect::pointers(inode.i_block()).nth(DOUBLE).unwrap_or(0);
        let wanted = self.sb.features().compat.contains(Compat::RESIZE_INODE);
        if !self.physical().contains(&u64::from(double)) {
            return;
        }
        let (double, ratio) = (u64::from(double), u64::from(self.sb.cluster_ratio()));
        self.claims.claim(double..double + 1);
        if !wanted {
            return;
        }
        self.layout.paint(Kind::Descriptors, double..double + ratio);
        let large = self.sb.features().ro_compat.contains(RoCompat::LARGE_FILE);
        if inode.size() >= 1 << 31 && !large {
            let text = format!("i_size is {}, without large_file", inode.size());
            self.find(Code::InodeSize, At::ino(Ino::RESIZE), text);
        }
        let most = self.indirect_end();
        if inode.size() > most {
            let text = format!("i_size is {}, the map ends at {most}", inode.size());
            self.find(Code::InodeSize, At::ino(Ino::RESIZE), text);
        }
        let backups = self.sb.backup_groups().count() as u64;
        let reserved = u64::from(self.sb.reserved_gdt_blocks());
        let blocks = (1 + reserved * (1 + backups)) * ratio;
        let huge = self.sb.features().ro_compat.contains(RoCompat::HUGE_FILE);
        let stored = inode.sectors(huge, self.sb.block_size());
        let sectors = (blocks + xattr_blocks) * u64::from(self.sb.block_size() / 512);
        if stored != sectors {
            let text = format!("i_blocks is {stored}, {sectors} are in use");
            self.find(Code::InodeBlocks, At::ino(Ino::RESIZE), text);
        }
        if reserved == 0 || backups == 0 {
            return;
        }
        // Each reserved block is a block of pointers to its copies, at its number modulo their count.
        let pointers = u64::from(self.sb.block_size() / 4);
        let first = u64::from(self.sb.descriptor_blocks()) % pointers;
        let last = (first + reserved - 1).min(pointers - 1);
        let blocks = DOUBLE as u64 - 1 + pointers * (1 + last) + backups;
        let least = blocks * u64::from(self.sb.block_size());
        if inode.size() < least {
            let text = format!("i_size is {}, with blocks up to {least}", inode.size());
            self.find(Code::InodeSize, At::ino(Ino::RESIZE), text);
        }
    }

    /// Whether an inode is reserved, and for nothing that this file system has.
    pub(super) fn is_without_use(&self, ino: Ino) -> bool {
        let sb = &self.sb;
        let is_quota = self.has_quota() && sb.quota_inums().contains(&ino.0);
        let is_journal = sb.journal_inum() == Some(ino) || sb.orphan_file_inum() == Some(ino);
        let is_used = [Ino::ROOT, Ino::RESIZE].contains(&ino) || is_quota || is_journal;
        ino < sb.first_ino() && !is_used
    }

    /// Project quota and orphan file have no reserved inode: those that the superblock names are to be empty without the feature.
    pub(super) fn judge_left_file(&mut self, ino: Ino, inode: &Inode) {
        let sb = &self.sb;
        let [.., project] = sb.quota_inums();
        let is_quota = !self.has_quota() && project == ino.0;
        let has_orphan_file = sb.features().compat.contains(Compat::ORPHAN_FILE);
        let is_orphan_file = !has_orphan_file && sb.disk().s_orphan_file_inum == ino.0;
        if is_quota || is_orphan_file && sb.journal_inum() != Some(ino) {
            self.judge_emptiness(ino, inode);
        }
    }

    fn judge_emptiness(&mut self, ino: Ino, inode: &Inode) {
        let first = indirect::pointers(inode.i_block()).next();
        if inode.links_count() != 0 || inode.disk().i_blocks_lo != 0 || first != Some(0) {
            let text = "for a quota, a journal or orphans, which are not here, and not empty";
            self.find(Code::InodeField, At::ino(ino), text);
        }
    }

    /// Pass 1 for the list of bad blocks, and for inodes that are reserved for what is not here.
    pub(super) fn unused_reserved_inode(&mut self, ino: Ino, inode: &Inode, raw: &[u8]) {
        let disk = inode.disk();
        let place = At::ino(ino);
        if ino == Ino::BAD_BLOCKS {
            let owner = u32::from(disk.i_uid) | u32::from(disk.i_gid);
            let used = inode.mode() != 0 || inode.links_count() != 0 || owner != 0;
            if used || inode.has_inline_data() || inode.file_acl().is_some() {
                let text = "the list of bad blocks has a type, an owner, links or attributes";
                self.find(Code::InodeField, place, text);
            }
            self.map_blocks(ino, inode);
            return;
        }
        if [Ino::USER_QUOTA, Ino::GROUP_QUOTA, Ino::JOURNAL].contains(&ino) {
            self.judge_emptiness(ino, inode);
            // What it has is not free.
            self.map_blocks(ino, inode);
            return;
        }
        if inode.mode() != 0 && (ino != Ino::BOOT_LOADER || inode.is_dir()) {
            let text = format!("reserved, and its mode is {:o}", inode.mode());
            self.find(Code::InodeMode, place.clone(), text);
        }
        if inode.disk().i_size_high != 0 {
            let text = format!("reserved, and i_size is {}", inode.size());
            self.find(Code::InodeSize, place, text);
        }
        self.judge_flags(ino, inode);
        self.contents(ino, inode, raw);
    }
}
