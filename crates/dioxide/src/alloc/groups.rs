//! What is known of each block group, and its descriptor.
//!
//! For: the two allocators, which share it. Not for: choosing a group.
//!
//! Invariants:
//! - A group's bitmap bytes live in the metadata cache behind [`Edit`]; here are only sums of them.
//! - `free_clusters` and `longest` are stored under the lock of `blocks`, `free_inodes` and
//!   `used_dirs` under that of `inodes`; all four may be read without it, as hints. [`UNKNOWN`]
//!   until the group is first looked at.
//! - Block bitmap and inode bitmap of a group have different locks. Both change one descriptor,
//!   each its own fields of it, under the lock of [`Slot::desc`].
//! - A descriptor is here as it is now once it was looked at. All groups of a block of the table share that block, so it is not
//!   changed each time: it gets the descriptors that changed when the transaction closes ([`Edit::change_at_close`]).
//!   Whoever reads the block itself finds them as of the last commit.
//!
//! Locks: a group's `blocks` or `inodes`, then `desc`, then the cache's. Completing a block takes the `desc` of those groups
//! that changed, which are in memory, so that nobody reads the block with such a lock.
//!
//! Slots are made in parts, when a group of the part is first changed. Of a group without one only its counts are kept
//! ([`Glance`]): who places a directory looks at all groups, of which 16 TiB have 131,072.
//!
//! Rejected: all groups in one vector. A sparse image may claim billions of them.

use super::kinds::{DescBlock, DescRead};
use super::pool::GroupBlocks;
use crate::io::clock::Clock;
use crate::sync::rank::{DescriptorLock, GroupLock};
use crate::txn::damage::Damage;
use crate::{Error, Place, Result};
use dioxide_format::bitmap;
use dioxide_format::group_desc::{GroupChecksum, GroupDesc};
use dioxide_format::superblock::SuperBlock;
use dioxide_format::system_zone::{Gathered, SystemZone};
use dioxide_format::types::{Group, Pblk};
use dioxide_journal::{Asked, Edit, Kind};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Groups whose counts, and places for slots, are made together.
const CHUNK: usize = 4096;
/// Slots that are made together.
const PART: usize = 64;
/// The value of a hint before its group was looked at; more than any group has.
pub(super) const UNKNOWN: u32 = u32::MAX;

/// Whether a group's bitmap was checked against its descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Load {
    /// Not looked at yet.
    #[default]
    No,
    /// It was, and they agree.
    Ready,
    /// They do not. Nothing is allocated here or freed for as long as the file system is mounted.
    Damaged,
}

/// A hint that others read without a lock. Who reads one also sees what was done before it was set.
#[derive(Debug)]
pub(super) struct Hint(AtomicU32);

impl Hint {
    pub(super) fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Under the lock that guards it.
    pub(super) fn set(&self, value: u32) {
        self.0.store(value, Ordering::Release);
    }
}

impl Default for Hint {
    fn default() -> Hint {
        Hint(AtomicU32::new(UNKNOWN))
    }
}

/// One group. On cache lines of its own: neighbours are changed by different threads.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Slot {
    /// Free clusters, as the descriptor counts them.
    pub(super) free_clusters: Hint,
    /// At least the length of the longest run that can be allocated.
    pub(super) longest: Hint,
    /// Free inodes.
    pub(super) free_inodes: Hint,
    /// Inodes that are directories.
    pub(super) used_dirs: Hint,
    pub(super) blocks: GroupLock<GroupBlocks>,
    pub(super) inodes: GroupLock<GroupInodes>,
    /// Its block bitmap was written; it stays so.
    pub(super) initialised: AtomicBool,
    desc: DescriptorLock<Known>,
    /// The block of the table does not have the descriptor as it is now. Changed under the lock of `desc`.
    is_ahead: AtomicBool,
}

/// What the descriptor of a group without a slot counts: nobody has changed it, so that whoever sets these hints sets the same.
#[derive(Debug, Default)]
struct Glance {
    free_clusters: Hint,
    free_inodes: Hint,
    used_dirs: Hint,
}

/// `CHUNK` groups.
#[derive(Debug)]
struct Chunk {
    glances: OnceLock<Box<[Glance]>>,
    parts: Box<[OnceLock<Box<[Slot]>>]>,
}

impl Chunk {
    fn new() -> Chunk {
        Chunk {
            glances: OnceLock::new(),
            parts: (0..CHUNK / PART).map(|_| OnceLock::new()).collect(),
        }
    }
}

/// A descriptor.
#[derive(Debug, Default)]
struct Known {
    /// Once it was found right: from then on only this mount changes it. Its own checksum may be old.
    desc: Option<GroupDesc>,
    asked: Asked,
}

/// What the inode allocator knows of a group, guarded by its lock.
#[derive(Debug, Default)]
pub(super) struct GroupInodes {
    pub(super) load: Load,
    /// The inodes before this index are in use.
    pub(super) used_before: u32,
}

/// Sums over all descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Free clusters.
    pub(crate) free_clusters: u64,
    /// Free inodes.
    pub(crate) free_inodes: u64,
    /// Directories.
    pub(crate) directories: u64,
}

impl Totals {
    fn add(&mut self, desc: &GroupDesc) {
        self.free_clusters += u64::from(desc.free_clusters_count());
        self.free_inodes += u64::from(desc.free_inodes_count());
        self.directories += u64::from(desc.used_dirs_count());
    }
}

/// All groups of a file system.
#[derive(Debug)]
pub(crate) struct Groups {
    table: Arc<Table>,
    zone: SystemZone,
    /// Who is told of groups that are passed over.
    damage: Arc<Damage>,
}

/// What a closure inside `Edit::modify` returns when `block` contradicts what was found before.
pub(super) fn contradiction(
    block: Pblk,
    structure: &'static str,
    field: &'static str,
    found: u32,
    expected: String,
) -> dioxide_journal::Error {
    dioxide_journal::Error::Block {
        block: block.0,
        source: dioxide_format::Error::Corrupt {
            structure,
            field,
            found: found.to_string(),
            expected,
        },
    }
}

/// One group's descriptor and one of its bitmaps as they are now.
#[derive(Debug)]
pub(super) struct View {
    pub(super) desc: GroupDesc,
    /// Until it is given up.
    bits: Option<Arc<[u8]>>,
    /// The bitmap is computed and was never written.
    pub(super) fresh: bool,
}

/// A view of a group to free something in; none if it is damaged, which was told. As in Linux its bits stay as they are,
/// and what is freed there is lost until `e2fsck` runs.
pub(super) fn usable(view: Result<View>) -> Result<Option<View>> {
    match view {
        Err(Error::Corrupt { .. } | Error::Checksum { .. }) => Ok(None),
        view => view.map(Some),
    }
}

impl View {
    pub(super) fn new(desc: GroupDesc, bits: Arc<[u8]>, fresh: bool) -> View {
        let bits = Some(bits);
        View { desc, bits, fresh }
    }

    /// Without the bytes of the bitmap, which is not fresh.
    pub(super) fn unread(desc: GroupDesc) -> View {
        View {
            desc,
            bits: None,
            fresh: false,
        }
    }

    /// The bitmap; nothing once it was given up.
    pub(super) fn bits(&self) -> &[u8] {
        self.bits.as_deref().unwrap_or_default()
    }

    /// Gives up the bytes of a bitmap that was read, so that it can be changed in place.
    pub(super) fn let_go(&mut self) {
        if !self.fresh {
            self.bits = None;
        }
    }

    /// Changes the bitmap, which lies in `block`.
    pub(super) fn change_bitmap(
        &self,
        edit: &mut dyn Edit,
        block: Pblk,
        kind: &dyn Kind,
        change: &mut dyn FnMut(&mut [u8]) -> dioxide_journal::Result<()>,
    ) -> Result<()> {
        let changed = if self.fresh {
            let mut bytes = self.bits().to_vec();
            change(&mut bytes).and_then(|()| edit.create(block, kind, &bytes))
        } else {
            edit.modify(block, kind, change)
        };
        Ok(changed?)
    }
}

/// The slots, and where each group's descriptor lies.
#[derive(Debug)]
pub(super) struct Table {
    sb: Arc<SuperBlock>,
    checksum: GroupChecksum,
    chunks: Box<[OnceLock<Chunk>]>,
}

impl Table {
    fn new(sb: Arc<SuperBlock>) -> Table {
        let chunks = (sb.group_count() as usize).div_ceil(CHUNK);
        Table {
            checksum: GroupChecksum::of(&sb),
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            sb,
        }
    }

    fn chunk(&self, group: Group) -> (&Chunk, usize) {
        let (chunk, at) = (group.0 as usize / CHUNK, group.0 as usize % CHUNK);
        (self.chunks[chunk].get_or_init(Chunk::new), at)
    }

    /// Values for the groups that lie together with one, by so many, as far as there are groups.
    fn made<T: Default>(&self, group: Group, together: usize) -> Box<[T]> {
        let group = group.0 as usize;
        let rest = self.sb.group_count() as usize - (group - group % together);
        (0..rest.min(together)).map(|_| T::default()).collect()
    }

    fn slot(&self, group: Group) -> &Slot {
        let (chunk, at) = self.chunk(group);
        &chunk.parts[at / PART].get_or_init(|| self.made(group, PART))[at % PART]
    }

    /// The group's slot, if there is one yet.
    fn slot_made(&self, group: Group) -> Option<&Slot> {
        let (chunk, at) = self.chunk(group);
        Some(&chunk.parts[at / PART].get()?[at % PART])
    }

    fn glance(&self, group: Group) -> &Glance {
        let (chunk, at) = self.chunk(group);
        &chunk.glances.get_or_init(|| self.made(group, CHUNK))[at]
    }

    /// The groups whose descriptors one block of the table holds.
    fn groups_of(&self, index: u32) -> Range<u32> {
        let per_block = self.sb.descs_per_block().max(1);
        let first = index.saturating_mul(per_block);
        first..first.saturating_add(per_block).min(self.sb.group_count())
    }

    /// The index of the block of the table that holds a descriptor, and the byte in it.
    fn place(&self, group: Group) -> (u32, usize) {
        let per_block = self.sb.descs_per_block().max(1);
        let at = (group.0 % per_block) as usize * self.sb.desc_size();
        (group.0 / per_block, at)
    }

    /// Brings one block of the table up to date.
    pub(super) fn complete(&self, index: u32, bytes: &mut [u8]) {
        for group in self.groups_of(index).map(Group) {
            let Some(slot) = self.slot_made(group) else {
                continue;
            };
            if !slot.is_ahead.load(Ordering::Acquire) {
                continue;
            }
            let mut known = slot.desc.lock();
            let desc = known.desc.as_mut().expect("it was changed in memory");
            desc.update_checksum(group, self.checksum);
            let (_, at) = self.place(group);
            let encoded = desc.encode();
            bytes[at..at + encoded.len()].copy_from_slice(&encoded);
            slot.is_ahead.store(false, Ordering::Release);
        }
    }
}

impl Groups {
    /// `zone` holds blocks that are never free: those of the journal. A group's own metadata is taken from its descriptor, and
    /// that of others once [`Groups::totals`] has read theirs.
    pub(crate) fn new(sb: Arc<SuperBlock>, zone: SystemZone) -> Groups {
        Groups {
            table: Arc::new(Table::new(sb)),
            zone,
            damage: Arc::new(Damage::new(Clock::default())),
        }
    }

    /// Has groups that turn out damaged be told there.
    pub(crate) fn telling(self, damage: Arc<Damage>) -> Groups {
        Groups { damage, ..self }
    }

    /// A group is damaged, and passed over from now on.
    pub(super) fn pass_over(&self, error: &Error) {
        self.damage.pass_over(error);
    }

    pub(crate) fn sb(&self) -> &SuperBlock {
        &self.table.sb
    }

    /// Number of groups.
    pub(super) fn count(&self) -> u32 {
        self.sb().group_count()
    }

    /// The group's slot. `group` must be one of the file system's.
    pub(super) fn slot(&self, group: Group) -> &Slot {
        self.table.slot(group)
    }

    /// The group's slot, if there is one yet.
    pub(super) fn slot_made(&self, group: Group) -> Option<&Slot> {
        self.table.slot_made(group)
    }

    /// The counts of a group that has no slot. Blocks on the device when it was not looked at before.
    fn glance(&self, edit: &dyn Edit, group: Group) -> Result<&Glance> {
        let glance = self.table.glance(group);
        if glance.free_clusters.get() == UNKNOWN {
            let desc = self.read_desc(edit, group)?;
            glance.used_dirs.set(desc.used_dirs_count());
            glance.free_inodes.set(desc.free_inodes_count());
            glance.free_clusters.set(desc.free_clusters_count());
        }
        Ok(glance)
    }

    /// Free clusters of a group that has no slot. Blocks, as [`Groups::desc`].
    pub(super) fn glance_clusters(&self, edit: &dyn Edit, group: Group) -> Result<u32> {
        Ok(self.glance(edit, group)?.free_clusters.get())
    }

    /// Free inodes of a group that has no slot. Blocks, as [`Groups::desc`].
    pub(super) fn glance_inodes(&self, edit: &dyn Edit, group: Group) -> Result<u32> {
        Ok(self.glance(edit, group)?.free_inodes.get())
    }

    /// Directories of a group whose inodes were looked at.
    pub(super) fn used_dirs(&self, group: Group) -> u32 {
        let by_slot = self.slot_made(group).map(|slot| slot.used_dirs.get());
        let known = by_slot.filter(|&dirs| dirs != UNKNOWN);
        known.unwrap_or_else(|| self.table.glance(group).used_dirs.get())
    }

    /// The block of the table that holds a descriptor, and the byte in it.
    fn desc_place(&self, group: Group) -> (Pblk, usize) {
        let (index, at) = self.table.place(group);
        (self.sb().descriptor_block(index), at)
    }

    /// The descriptor at byte `at` of a block of the table, checked.
    fn parse(&self, group: Group, block: Pblk, bytes: &[u8], at: usize) -> Result<GroupDesc> {
        let sb = self.sb();
        let desc = || {
            let desc = GroupDesc::parse(bytes.get(at..).unwrap_or(&[]), sb.desc_size())?;
            desc.verify_checksum(group, self.table.checksum)?;
            desc.validate(sb, group)?;
            Ok(desc)
        };
        desc().map_err(|error| Error::format(error, Place::block(block.0).at(at as u64)))
    }

    /// The descriptor of a group, checked. Blocks on the device when it was not looked at before.
    pub(super) fn desc(&self, edit: &dyn Edit, group: Group) -> Result<GroupDesc> {
        let mut known = self.slot(group).desc.lock();
        self.look(edit, group, &mut known).cloned()
    }

    fn look<'a>(
        &self,
        edit: &dyn Edit,
        group: Group,
        known: &'a mut Known,
    ) -> Result<&'a GroupDesc> {
        match &mut known.desc {
            Some(desc) => Ok(desc),
            none => Ok(none.insert(self.read_desc(edit, group)?)),
        }
    }

    /// A descriptor that nobody has changed, from its block.
    fn read_desc(&self, edit: &dyn Edit, group: Group) -> Result<GroupDesc> {
        let (block, at) = self.desc_place(group);
        let bytes = edit.read(block, &DescRead).map_err(Error::from)?;
        self.parse(group, block, &bytes, at)
    }

    /// Changes a descriptor as it is now; its checksum is made right when the transaction closes. If `change` fails, it stays
    /// as it was.
    pub(super) fn change_desc(
        &self,
        edit: &mut dyn Edit,
        group: Group,
        change: &mut dyn FnMut(Pblk, &mut GroupDesc) -> dioxide_journal::Result<()>,
    ) -> Result<()> {
        let slot = self.slot(group);
        let mut known = slot.desc.lock();
        let mut desc = self.look(&*edit, group, &mut known)?.clone();
        let (index, _) = self.table.place(group);
        let block = self.sb().descriptor_block(index);
        change(block, &mut desc)?;
        let kind = DescBlock {
            table: &self.table,
            index,
        };
        edit.change_at_close(block, &kind, &mut known.asked)?;
        known.desc = Some(desc);
        slot.is_ahead.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether a group has a flag that counts: without descriptor checksums none does.
    pub(super) fn has_flag(&self, desc: &GroupDesc, flag: u16) -> bool {
        self.sb().features().group_csum() && desc.flags() & flag != 0
    }

    fn blocks_of(&self, group: Group) -> Range<u64> {
        let first = self.sb().group_first_block(group).0;
        first..first + u64::from(self.sb().blocks_in_group(group))
    }

    /// The metadata of a group that do not lie in it as a whole. On a huge file system the others would be too many to keep.
    fn outside(&self, group: Group, desc: &GroupDesc) -> [Range<u64>; 4] {
        let own = self.blocks_of(group);
        desc.metadata_ranges(self.sb(), group).map(|range| {
            match own.start <= range.start && range.end <= own.end {
                true => 0..0,
                false => range,
            }
        })
    }

    /// Bits of a group's block bitmap that are metadata: the group's own wherever it lies in it, and
    /// what the zone has there. May overlap and come in any order.
    pub(super) fn metadata_bits(&self, group: Group, desc: &GroupDesc) -> Vec<Range<usize>> {
        let blocks = self.blocks_of(group);
        let first = blocks.start;
        let ratio = u64::from(self.sb().cluster_ratio());
        let own = desc.metadata_ranges(self.sb(), group);
        let all = self.zone.ranges();
        let known = &all[all.partition_point(|range| range.end <= blocks.start)..];
        known
            .iter()
            .take_while(|range| range.start < blocks.end)
            .chain(&own)
            .map(|range| range.start.max(blocks.start)..range.end.min(blocks.end))
            .filter(|range| range.start < range.end)
            .map(|range| (range.start - first) / ratio..(range.end - first).div_ceil(ratio))
            .map(|range| range.start as usize..range.end as usize)
            .collect()
    }

    /// The block bitmap of a group whose bitmap was never written.
    pub(super) fn initial_block_bitmap(&self, group: Group, desc: &GroupDesc) -> Vec<u8> {
        let mut bytes = vec![0; self.sb().block_size() as usize];
        for range in self.metadata_bits(group, desc) {
            bitmap::put_range(&mut bytes, range, true);
        }
        let bits = bytes.len() * 8;
        bitmap::put_range(
            &mut bytes,
            self.sb().clusters_in_group(group) as usize..bits,
            true,
        );
        bytes
    }

    /// Adds up all descriptors, and learns which metadata lie outside of their own group: with `flex_bg` most do, and their
    /// group does not say so. The superblock's own totals are right only after a clean unmount, so
    /// whoever mounts for writing asks for these. Reads the whole table, each block once.
    ///
    /// # Errors
    /// The device's; damaged descriptors.
    pub(crate) fn totals(&mut self, edit: &dyn Edit) -> Result<Totals> {
        let (mut totals, mut outside) = (Totals::default(), Gathered::default());
        let per_block = self.sb().descs_per_block().max(1);
        for index in 0..self.count().div_ceil(per_block) {
            let block = self.sb().descriptor_block(index);
            let bytes = edit.read(block, &DescRead).map_err(Error::from)?;
            for group in self.table.groups_of(index).map(Group) {
                let (_, at) = self.table.place(group);
                let desc = self.parse(group, block, &bytes, at)?;
                totals.add(&desc);
                outside.add(self.outside(group, &desc));
            }
        }
        self.zone = outside.zone(self.zone.ranges().iter().cloned());
        Ok(totals)
    }
}
