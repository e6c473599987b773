//! Quota: what each user, group and project uses, kept right in the files that the superblock names.
//!
//! For: usage, exact and in the same transaction as what changes it. Not for: limits. They are kept in
//! the files and enforced by nobody here: whoever can write the image decides for himself.
//!
//! An inode counts with `i_blocks` and as one inode, and one more for each attribute whose value has an
//! inode of its own; it counts from when it is made until it is freed. Reserved inodes, the files of
//! quota and orphans, and inodes that hold attributes' values count for nobody.
//!
//! Invariants: all writing of inodes passes [`Mount::count_change`]; what an id needs in a file is made before
//! anything is counted, so that want of space changes nothing. A record that nobody uses stays.
//!
//! Locks: each file's own, after map locks and before the allocator's; a thread holds one at a time. No one
//! holds the map's lock of a quota file but its holder.
//!
//! Rejected: keeping usage in memory and writing it at the end, as Linux did before journaled quota: a
//! crash would leave it wrong. Rejected too: growing the file in a transaction of its own ahead of need,
//! which saves some credits and needs a bound on how many ids threads can meet at once.

use super::Writer;
use crate::alloc::BlockAllocator;
use crate::inode::Inode;
use crate::map::load::lookup_or_load;
use crate::map::{MapKind, indirect, tree};
use crate::mount::Mount;
use crate::sync::rank::{Excuse, Locked, QuotaLock, Rank};
use crate::{Error, FileType, Place, Result};
use dioxide_format::features::RoCompat;
use dioxide_format::inode::{Inode as DiskInode, InodeFlags};
use dioxide_format::quota::{
    self, BLOCK, LEVELS, QuotaHeader, QuotaKind, RECORDS_PER_BLOCK, ROOT, Record, RecordsHead,
};
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::{Ino, Lblk, Pblk};
use dioxide_journal::{Edit, Kind};
use std::sync::Arc;

/// Inodes that one transaction changes at most: both directories, the file and one that it replaces.
const MOST_INODES: u32 = 4;
/// Blocks of the tree that a new id needs at most: below the root, and one of records.
const MOST_NEW: u32 = LEVELS as u32;

/// The quota files of a mount.
#[derive(Debug)]
pub(crate) struct Quotas {
    files: Vec<QuotaFile>,
    /// Metadata blocks that counting changes in one transaction.
    credits: u32,
}

#[derive(Debug)]
struct QuotaFile {
    kind: QuotaKind,
    inode: Arc<Inode>,
    /// Held while the file is read and changed.
    lock: QuotaLock,
}

/// A file-system block of a quota file. It has no checksum; what is in it is judged where it is used.
#[derive(Debug)]
struct QuotaBlock;

impl Kind for QuotaBlock {
    fn name(&self) -> &'static str {
        "quota file"
    }

    fn verify(&self, _: Pblk, _: &[u8]) -> dioxide_format::Result<()> {
        Ok(())
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}
}

/// What an inode counts, and for whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    ids: [u32; 3],
    bytes: u64,
}

/// A record: its block, its byte there, and itself.
type Found = (u32, usize, Record);

fn record_of(id: u32) -> Record {
    Record {
        dqb_id: id,
        ..Record::zeroed()
    }
}

/// What is added to an id's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Delta {
    inodes: i64,
    bytes: i64,
}

/// Whether an inode is one that a kind of quota may have, as Linux has it: an ordinary file would count itself.
pub(crate) fn may_hold(sb: &SuperBlock, kind: QuotaKind, ino: Ino) -> bool {
    match kind {
        QuotaKind::User => ino == Ino::USER_QUOTA,
        QuotaKind::Group => ino == Ino::GROUP_QUOTA,
        QuotaKind::Project => ino >= sb.first_ino(),
    }
}

impl Quotas {
    /// The files that are there. Blocks.
    ///
    /// # Errors
    /// Damage in a head; an inode that can hold none; [`Error::Unsupported`] for a version that is not known;
    /// the device's.
    pub(crate) fn open(mount: &Mount) -> Result<Quotas> {
        let inums = mount.sb.quota_inums();
        let mut files = Vec::new();
        if mount.sb.features().ro_compat.contains(RoCompat::QUOTA) {
            for (kind, ino) in QuotaKind::ALL
                .into_iter()
                .zip(inums.map(Ino))
                .filter(|(_, ino)| ino.0 != 0)
            {
                if !may_hold(&mount.sb, kind, ino) {
                    return Err(Error::Corrupt {
                        structure: "quota file",
                        place: Place::ino(ino),
                        what: "the superblock names an inode that can hold none".into(),
                    });
                }
                files.push(QuotaFile::open(mount, kind, ino)?);
            }
        }
        let each = files.iter().map(|file| file.credits(mount)).sum();
        Ok(Quotas {
            files,
            credits: each,
        })
    }

    /// Metadata blocks that counting changes in one transaction, beside those of what is counted.
    pub(crate) fn credits(&self) -> u32 {
        self.credits
    }
}

impl QuotaFile {
    fn open(mount: &Mount, kind: QuotaKind, ino: Ino) -> Result<QuotaFile> {
        let inode = mount.inode(ino)?;
        if inode.file_type() != FileType::Regular || inode.has_inline_data() {
            return Err(inode.corrupt("quota file", "it is no regular file with blocks".into()));
        }
        let lock = QuotaLock::new(());
        let file = QuotaFile { kind, inode, lock };
        file.header(mount, &mount.reader())?;
        Ok(file)
    }

    fn credits(&self, mount: &Mount) -> u32 {
        // Each inode's record; of a new id the header, the pointers and records that lead to it, and
        // two neighbours in the list of blocks with room.
        let records = MOST_INODES + 1 + 1 + MOST_NEW + 1 + 2;
        let map = match self.inode.is_extent_mapped() {
            true => tree::credits_for_insert(2),
            false => indirect::CREDITS_FOR_SET,
        };
        let per_block = mount.block_bytes() / BLOCK as u64;
        // With blocks of 1 KiB each takes one; they lie together, mostly.
        let blocks = MOST_NEW.div_ceil(per_block as u32) + u32::from(per_block > 1);
        records + 1 + map + blocks * BlockAllocator::ALLOCATE_CREDITS
    }

    fn damage(&self, error: dioxide_format::Error) -> Error {
        Error::format(error, Place::ino(self.inode.ino))
    }

    /// Where a block of the tree lies: the block of the file, and the byte in it.
    fn split(mount: &Mount, block: u32) -> (Lblk, usize) {
        let at = u64::from(block) * BLOCK as u64;
        let lblk = Lblk((at >> mount.block_bits) as u32);
        (lblk, (at & mount.block_mask) as usize)
    }

    fn place(&self, mount: &Mount, block: u32) -> Result<(Pblk, usize)> {
        let (lblk, at) = Self::split(mount, block);
        let mapping = lookup_or_load(mount, &self.inode, lblk, 1)?;
        match mapping.kind {
            MapKind::Mapped => Ok((mapping.pblk, at)),
            _ => {
                let what = format!("its block {block} of {BLOCK} bytes is not there");
                Err(self.inode.corrupt("quota file", what))
            }
        }
    }

    fn read(&self, mount: &Mount, edit: &dyn Edit, block: u32) -> Result<Vec<u8>> {
        let (pblk, at) = self.place(mount, block)?;
        let bytes = edit.read(pblk, &QuotaBlock)?;
        Ok(bytes[at..at + BLOCK].to_vec())
    }

    fn write(
        &self,
        mount: &Mount,
        edit: &mut dyn Edit,
        block: u32,
        at: usize,
        new: &[u8],
    ) -> Result<()> {
        let (pblk, start) = self.place(mount, block)?;
        edit.modify(pblk, &QuotaBlock, &mut |bytes| {
            bytes[start + at..start + at + new.len()].copy_from_slice(new);
            Ok(())
        })?;
        Ok(())
    }

    fn header(&self, mount: &Mount, edit: &dyn Edit) -> Result<QuotaHeader> {
        let bytes = self.read(mount, edit, 0)?;
        let header = QuotaHeader::parse(&bytes).map_err(|error| self.damage(error))?;
        header
            .validate(self.kind)
            .map_err(|error| self.damage(error))?;
        let (blocks, size) = (header.dqi_blocks, self.inode.i_size());
        if u64::from(blocks) * BLOCK as u64 > size {
            let what = format!("dqi_blocks is {blocks}, i_size is {size}");
            return Err(self.inode.corrupt("quota file", what));
        }
        Ok(header)
    }

    /// The blocks that lead to an id's record, from the root on, as far as they are there.
    fn path(
        &self,
        mount: &Mount,
        edit: &dyn Edit,
        header: &QuotaHeader,
        id: u32,
    ) -> Result<Vec<u32>> {
        let mut path = vec![ROOT];
        for level in 0..LEVELS {
            let bytes = self.read(mount, edit, path[level])?;
            let next = quota::pointer(&bytes, quota::pointer_at(id, level))
                .and_then(|next| header.check_block(next, "pointer").map(|()| next))
                .map_err(|error| self.damage(error))?;
            match next {
                0 => break,
                next => path.push(next),
            }
        }
        Ok(path)
    }

    fn find(&self, mount: &Mount, edit: &dyn Edit, id: u32) -> Result<Option<Found>> {
        let header = self.header(mount, edit)?;
        let path = self.path(mount, edit, &header, id)?;
        let Some(&block) = path.get(LEVELS) else {
            return Ok(None);
        };
        match quota::find_record(&self.read(mount, edit, block)?, id) {
            Some((at, record)) => Ok(Some((block, at, record))),
            None => {
                let what = format!("block {block} has no record of id {id}, whom it is for");
                Err(self.inode.corrupt("quota file", what))
            }
        }
    }

    /// The file's records. Whoever has this may wait for the map of the file, which is behind it unlike other maps: who has
    /// that asks for no records.
    fn lock(&self) -> (Locked<'_, ()>, Excuse) {
        (self.lock.lock(), Excuse::of(Rank::Map))
    }

    /// Adds to what an id uses. Taking more than there is leaves 0: the count was wrong.
    fn add(
        &self,
        mount: &Mount,
        writer: &Writer,
        edit: &mut dyn Edit,
        id: u32,
        delta: Delta,
    ) -> Result<()> {
        let _one = self.lock();
        let (block, at, mut record) = match self.find(mount, edit, id)? {
            Some(found) => found,
            None => self.insert(mount, writer, edit, id)?,
        };
        record.dqb_curinodes = record.dqb_curinodes.saturating_add_signed(delta.inodes);
        record.dqb_curspace = record.dqb_curspace.saturating_add_signed(delta.bytes);
        self.write(mount, edit, block, at, &record.encode_used())
    }

    /// Makes a record for an id that has none.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and damage: no record was made.
    fn make(&self, mount: &Mount, writer: &Writer, edit: &mut dyn Edit, id: u32) -> Result<()> {
        let _one = self.lock();
        match self.find(mount, edit, id)? {
            Some(_) => Ok(()),
            None => self.insert(mount, writer, edit, id).map(drop),
        }
    }

    fn insert(
        &self,
        mount: &Mount,
        writer: &Writer,
        edit: &mut dyn Edit,
        id: u32,
    ) -> Result<Found> {
        let insert = Insert::plan(self, mount, edit, id)?;
        self.make_room(mount, writer, edit, insert.header.dqi_blocks)?;
        insert.carry_out(edit).map_err(|error| mount.fail(error))?;
        Ok((insert.records.0, insert.at, record_of(id)))
    }

    /// Sees to it that the file has all blocks below `end`.
    fn make_room(
        &self,
        mount: &Mount,
        writer: &Writer,
        edit: &mut dyn Edit,
        end: u32,
    ) -> Result<()> {
        let size = u64::from(end) * BLOCK as u64;
        if size <= self.inode.i_size() {
            return Ok(());
        }
        let first = self.inode.i_size() >> mount.block_bits;
        for lblk in first..size.div_ceil(mount.block_bytes()) {
            let lblk = Lblk(lblk as u32);
            if lookup_or_load(mount, &self.inode, lblk, 1)?.kind == MapKind::Hole {
                mount.add_metadata_block(writer, edit, &self.inode, lblk, &QuotaBlock)?;
            }
            // With each block: the next may find no space, and blocks behind the end are damage.
            let size = size.min((u64::from(lblk.0) + 1) << mount.block_bits);
            let lock = self.inode.map.lock();
            mount.change_inode(edit, &self.inode, &lock, &mut |disk| disk.set_size(size))?;
            self.inode.set_size(size);
        }
        Ok(())
    }
}

/// A new record, and what must change for it.
struct Insert<'a> {
    file: &'a QuotaFile,
    mount: &'a Mount,
    id: u32,
    /// As it is to be.
    header: QuotaHeader,
    /// The blocks that are there on the way, and those that are new.
    path: Vec<u32>,
    new: Vec<u32>,
    /// The block of records: which one, and as it is to be.
    records: (u32, Vec<u8>),
    /// The new record's byte there.
    at: usize,
    /// Heads of neighbours in the list of blocks with room, as they are to be.
    heads: Vec<(u32, RecordsHead)>,
}

impl<'a> Insert<'a> {
    /// Reads and judges all that is needed, and changes nothing.
    fn plan(file: &'a QuotaFile, mount: &'a Mount, edit: &dyn Edit, id: u32) -> Result<Self> {
        let header = file.header(mount, edit)?;
        let mut insert = Insert {
            path: file.path(mount, edit, &header, id)?,
            file,
            mount,
            id,
            header,
            new: Vec::new(),
            records: (0, Vec::new()),
            at: 0,
            heads: Vec::new(),
        };
        for _ in insert.path.len()..LEVELS {
            let block = insert.take_block(edit)?;
            insert.new.push(block);
        }
        insert.records = match insert.header.dqi_free_entry {
            0 => {
                let block = insert.take_block(edit)?;
                insert.header.dqi_free_entry = block;
                (block, vec![0; BLOCK])
            }
            block => (block, file.read(mount, edit, block)?),
        };
        insert.put_record(edit)?;
        Ok(insert)
    }

    /// A block that nobody uses: one that was, or a new one at the end.
    fn take_block(&mut self, edit: &dyn Edit) -> Result<u32> {
        let block = match self.header.dqi_free_blk {
            0 => {
                let end = self.header.dqi_blocks;
                self.header.dqi_blocks += 1;
                end
            }
            block => {
                self.header.dqi_free_blk = self.head(edit, block)?.dqdh_next_free;
                block
            }
        };
        self.header
            .validate(self.file.kind)
            .map_err(|error| self.file.damage(error))?;
        Ok(block)
    }

    fn head(&self, edit: &dyn Edit, block: u32) -> Result<RecordsHead> {
        let bytes = self.file.read(self.mount, edit, block)?;
        self.parse_head(&bytes)
    }

    fn parse_head(&self, bytes: &[u8]) -> Result<RecordsHead> {
        let head = RecordsHead::parse(bytes).and_then(|head| {
            self.header
                .check_block(head.dqdh_next_free, "dqdh_next_free")?;
            self.header
                .check_block(head.dqdh_prev_free, "dqdh_prev_free")?;
            Ok(head)
        });
        head.map_err(|error| self.file.damage(error))
    }

    /// Puts the record into its block, and that out of the list of those with room if it is full then.
    fn put_record(&mut self, edit: &dyn Edit) -> Result<()> {
        let (block, bytes) = &self.records;
        let (block, mut bytes) = (*block, bytes.clone());
        let mut head = self.parse_head(&bytes)?;
        let Some(at) = quota::free_place(&bytes) else {
            let what = format!("block {block} is full, and listed as one with room");
            return Err(self.file.inode.corrupt("quota file", what));
        };
        head.dqdh_entries = head.dqdh_entries.saturating_add(1);
        if usize::from(head.dqdh_entries) >= RECORDS_PER_BLOCK {
            self.unlink(edit, &mut head)?;
        }
        bytes[..RecordsHead::SIZE].copy_from_slice(&head.encode());
        bytes[at..at + Record::SIZE].copy_from_slice(&record_of(self.id).encode_used());
        self.records = (block, bytes);
        self.at = at;
        Ok(())
    }

    /// Takes a block out of the list of those with room.
    fn unlink(&mut self, edit: &dyn Edit, head: &mut RecordsHead) -> Result<()> {
        let (next, prev) = (head.dqdh_next_free, head.dqdh_prev_free);
        if next != 0 {
            let mut other = self.head(edit, next)?;
            other.dqdh_prev_free = prev;
            self.heads.push((next, other));
        }
        if prev != 0 {
            let mut other = self.head(edit, prev)?;
            other.dqdh_next_free = next;
            self.heads.push((prev, other));
        } else {
            self.header.dqi_free_entry = next;
        }
        (head.dqdh_next_free, head.dqdh_prev_free) = (0, 0);
        Ok(())
    }

    fn carry_out(&self, edit: &mut dyn Edit) -> Result<()> {
        let (file, mount) = (self.file, self.mount);
        file.write(mount, edit, self.records.0, 0, &self.records.1)?;
        for (block, head) in &self.heads {
            file.write(mount, edit, *block, 0, &head.encode())?;
        }
        // From the records up: nothing leads to what is not there.
        let mut below = self.records.0;
        let whole: Vec<u32> = self.path.iter().chain(&self.new).copied().collect();
        for (level, &block) in whole.iter().enumerate().take(LEVELS).rev() {
            let at = quota::pointer_at(self.id, level);
            if level < self.path.len() {
                file.write(mount, edit, block, at, &below.to_le_bytes())?;
                break;
            }
            let mut bytes = vec![0; BLOCK];
            bytes[at..at + 4].copy_from_slice(&below.to_le_bytes());
            file.write(mount, edit, block, 0, &bytes)?;
            below = block;
        }
        file.write(mount, edit, 0, 0, &self.header.encode())
    }
}

impl Mount {
    /// The writer, where the file system counts.
    fn counting(&self) -> Option<&Writer> {
        let writer = self.started_writer()?;
        (!writer.quotas.files.is_empty()).then_some(writer)
    }

    /// What an inode counts, if it counts at all.
    fn usage(&self, ino: Ino, disk: &DiskInode) -> Option<Usage> {
        let sb = &self.sb;
        if self.is_own_inode(ino) || disk.flags().contains(InodeFlags::EA_INODE) {
            return None;
        }
        let huge_file = sb.features().ro_compat.contains(RoCompat::HUGE_FILE);
        Some(Usage {
            ids: [disk.uid(), disk.gid(), disk.projid()],
            bytes: disk.sectors(huge_file, sb.block_size()).saturating_mul(512),
        })
    }

    /// Makes what the owners of an inode need to be counted, ahead of other changes: from then on
    /// counting it finds no want of space.
    ///
    /// # Errors
    /// [`Error::NoSpace`] and damage, with no change but perhaps of a quota file's size; the journal's.
    pub(crate) fn prepare_quota(
        &self,
        edit: &mut dyn Edit,
        ino: Ino,
        disk: &DiskInode,
    ) -> Result<()> {
        let (Some(writer), Some(usage)) = (self.counting(), self.usage(ino, disk)) else {
            return Ok(());
        };
        for file in &writer.quotas.files {
            file.make(self, writer, edit, usage.ids[file.kind as usize])?;
        }
        Ok(())
    }

    /// An inode changes from one state to another; none is one that is not there. `inodes` is how many
    /// it counts as, if not as 1: it is asked where that matters. True if that changed what is counted.
    ///
    /// # Errors
    /// As [`Mount::prepare_quota`].
    pub(crate) fn count_change(
        &self,
        edit: &mut dyn Edit,
        ino: Ino,
        before: Option<&DiskInode>,
        after: Option<&DiskInode>,
        inodes: impl FnOnce(&dyn Edit) -> Result<u64>,
    ) -> Result<bool> {
        let Some(writer) = self.counting() else {
            return Ok(false);
        };
        let usage = |disk: Option<&DiskInode>| disk.and_then(|disk| self.usage(ino, disk));
        let (old, new) = (usage(before), usage(after));
        if old == new {
            return Ok(false);
        }
        let moves = old.map(|old| old.ids) != new.map(|new| new.ids);
        if let (true, Some(after)) = (moves, after) {
            self.prepare_quota(edit, ino, after)?;
        }
        let inodes = match (moves, old, new) {
            (true, Some(_), Some(_)) => inodes(edit)? as i64,
            _ => 1,
        };
        for file in &writer.quotas.files {
            self.count_in(writer, file, edit, old, new, inodes)
                .map_err(|error| self.fail(error))?;
        }
        Ok(true)
    }

    fn count_in(
        &self,
        writer: &Writer,
        file: &QuotaFile,
        edit: &mut dyn Edit,
        old: Option<Usage>,
        new: Option<Usage>,
        inodes: i64,
    ) -> Result<()> {
        let id = |usage: Usage| usage.ids[file.kind as usize];
        let bytes = |usage: Usage| i64::try_from(usage.bytes).unwrap_or(i64::MAX);
        if let (Some(old), Some(new)) = (old, new)
            && id(old) == id(new)
        {
            let delta = Delta {
                inodes: 0,
                bytes: bytes(new) - bytes(old),
            };
            return match delta.bytes {
                0 => Ok(()),
                _ => file.add(self, writer, edit, id(new), delta),
            };
        }
        if let Some(old) = old {
            let delta = Delta {
                inodes: -inodes,
                bytes: -bytes(old),
            };
            file.add(self, writer, edit, id(old), delta)?;
        }
        if let Some(new) = new {
            let delta = Delta {
                inodes,
                bytes: bytes(new),
            };
            file.add(self, writer, edit, id(new), delta)?;
        }
        Ok(())
    }

    /// An inode has more or fewer attributes whose values have inodes of their own.
    ///
    /// # Errors
    /// Damage; the journal's. Both end the writing.
    pub(crate) fn count_values(&self, edit: &mut dyn Edit, inode: &Inode, more: i64) -> Result<()> {
        let Some(writer) = self.counting().filter(|_| more != 0) else {
            return Ok(());
        };
        let Some(usage) = self.usage(inode.ino, &inode.node().disk) else {
            return Ok(());
        };
        let delta = Delta {
            inodes: more,
            bytes: 0,
        };
        for file in &writer.quotas.files {
            file.add(self, writer, edit, usage.ids[file.kind as usize], delta)
                .map_err(|error| self.fail(error))?;
        }
        Ok(())
    }
}
