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
//!   each its own fields of it, inside `Edit::modify`, which makes that one step.
//!
//! Rejected: all groups in one vector. A sparse image may claim billions of them, so slots are made
//! in chunks, when a group of the chunk is first touched.

use super::kinds::DescBlock;
use super::pool::GroupBlocks;
use crate::txn::damage::Damage;
use crate::{Error, Place, Result};
use dioxide_format::bitmap;
use dioxide_format::group_desc::{GroupChecksum, GroupDesc};
use dioxide_format::superblock::SuperBlock;
use dioxide_format::system_zone::SystemZone;
use dioxide_format::types::{Group, Pblk};
use dioxide_journal::{Edit, Kind};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Slots that are made together.
const CHUNK: usize = 4096;
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

/// One group.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Free clusters, as the descriptor counts them.
    pub(super) free_clusters: Hint,
    /// At least the length of the longest run that can be allocated.
    pub(super) longest: Hint,
    /// Free inodes.
    pub(super) free_inodes: Hint,
    /// Inodes that are directories.
    pub(super) used_dirs: Hint,
    pub(super) blocks: Mutex<GroupBlocks>,
    pub(super) inodes: Mutex<GroupInodes>,
    /// Its block bitmap was written; it stays so.
    pub(super) initialised: AtomicBool,
    /// The descriptor was found right: from then on only this mount changes it.
    checked: AtomicBool,
}

/// What the inode allocator knows of a group, guarded by its lock.
#[derive(Debug, Default)]
pub(super) struct GroupInodes {
    pub(super) load: Load,
    /// The descriptor as this allocator left it; what it says of blocks may be old. All groups of a block of the
    /// table share that block, so it is not asked each time.
    pub(super) desc: Option<GroupDesc>,
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
    sb: Arc<SuperBlock>,
    zone: SystemZone,
    checksum: GroupChecksum,
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
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
    pub(super) bits: Arc<[u8]>,
    /// The bitmap is computed and was never written.
    pub(super) fresh: bool,
}

impl View {
    /// Gives up the bytes of a bitmap that was read, so that it can be changed in place.
    pub(super) fn let_go(&mut self) {
        if !self.fresh {
            self.bits = Arc::default();
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
            let mut bytes = self.bits.to_vec();
            change(&mut bytes).and_then(|()| edit.create(block, kind, &bytes))
        } else {
            edit.modify(block, kind, change)
        };
        Ok(changed?)
    }
}

impl Groups {
    /// `zone` holds the blocks that are never free: all fixed metadata that is known, and the
    /// journal. A group's own metadata is taken from its descriptor in any case.
    pub(crate) fn new(sb: Arc<SuperBlock>, zone: SystemZone) -> Groups {
        let chunks = (sb.group_count() as usize).div_ceil(CHUNK);
        Groups {
            checksum: GroupChecksum::of(&sb),
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            zone,
            sb,
            damage: Arc::new(Damage::new(None)),
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
        &self.sb
    }

    /// Number of groups.
    pub(super) fn count(&self) -> u32 {
        self.sb.group_count()
    }

    /// The group's slot. `group` must be one of the file system's.
    pub(super) fn slot(&self, group: Group) -> &Slot {
        let (chunk, at) = (group.0 as usize / CHUNK, group.0 as usize % CHUNK);
        let len = (self.count() as usize - chunk * CHUNK).min(CHUNK);
        &self.chunks[chunk].get_or_init(|| (0..len).map(|_| Slot::default()).collect())[at]
    }

    /// The block of the table that holds a descriptor, and the byte in it.
    fn desc_place(&self, group: Group) -> (Pblk, usize) {
        let per_block = self.sb.descs_per_block().max(1);
        let block = self.sb.descriptor_block(group.0 / per_block);
        (block, (group.0 % per_block) as usize * self.sb.desc_size())
    }

    fn parse(&self, group: Group, bytes: &[u8]) -> dioxide_format::Result<GroupDesc> {
        let desc = GroupDesc::parse(bytes, self.sb.desc_size())?;
        let slot = self.slot(group);
        if !slot.checked.load(Ordering::Relaxed) {
            desc.verify_checksum(group, self.checksum)?;
            desc.validate(&self.sb, group)?;
            slot.checked.store(true, Ordering::Relaxed);
        }
        Ok(desc)
    }

    /// The descriptor of a group, checked. Blocks on the device when it is not cached.
    pub(super) fn desc(&self, edit: &dyn Edit, group: Group) -> Result<GroupDesc> {
        let (block, at) = self.desc_place(group);
        let bytes = edit.read(block, &DescBlock).map_err(Error::from)?;
        self.parse_at(group, block, &bytes, at)
    }

    /// The descriptor at byte `at` of a block of the table.
    fn parse_at(&self, group: Group, block: Pblk, bytes: &[u8], at: usize) -> Result<GroupDesc> {
        self.parse(group, bytes.get(at..).unwrap_or(&[]))
            .map_err(|error| Error::format(error, Place::block(block.0).at(at as u64)))
    }

    /// Changes a descriptor as it is now, and makes its checksum right. If `change` fails, it stays
    /// as it was.
    pub(super) fn change_desc(
        &self,
        edit: &mut dyn Edit,
        group: Group,
        change: &mut dyn FnMut(Pblk, &mut GroupDesc) -> dioxide_journal::Result<()>,
    ) -> Result<()> {
        let (block, at) = self.desc_place(group);
        let fail = |source| dioxide_journal::Error::Block {
            block: block.0,
            source,
        };
        let mut on_block = |bytes: &mut [u8]| {
            let mut desc = self
                .parse(group, bytes.get(at..).unwrap_or(&[]))
                .map_err(fail)?;
            change(block, &mut desc)?;
            desc.update_checksum(group, self.checksum);
            let encoded = desc.encode();
            bytes[at..at + encoded.len()].copy_from_slice(&encoded);
            Ok(())
        };
        edit.modify(block, &DescBlock, &mut on_block)
            .map_err(Error::from)
    }

    /// Whether a group has a flag that counts: without descriptor checksums none does.
    pub(super) fn has_flag(&self, desc: &GroupDesc, flag: u16) -> bool {
        self.sb.features().group_csum() && desc.flags() & flag != 0
    }

    /// Bits of a group's block bitmap that are metadata: the group's own wherever it lies in it, and
    /// what the zone has there. May overlap and come in any order.
    pub(super) fn metadata_bits(&self, group: Group, desc: &GroupDesc) -> Vec<Range<usize>> {
        let first = self.sb.group_first_block(group).0;
        let blocks = first..first + u64::from(self.sb.blocks_in_group(group));
        let ratio = u64::from(self.sb.cluster_ratio());
        let own = desc.metadata_ranges(&self.sb, group);
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
        let mut bytes = vec![0; self.sb.block_size() as usize];
        for range in self.metadata_bits(group, desc) {
            bitmap::put_range(&mut bytes, range, true);
        }
        let bits = bytes.len() * 8;
        bitmap::put_range(
            &mut bytes,
            self.sb.clusters_in_group(group) as usize..bits,
            true,
        );
        bytes
    }

    /// Adds up all descriptors. The superblock's own totals are right only after a clean unmount, so
    /// whoever mounts for writing asks for these. Reads the whole table, each block once.
    ///
    /// # Errors
    /// The device's; damaged descriptors.
    pub(crate) fn totals(&self, edit: &dyn Edit) -> Result<Totals> {
        let mut totals = Totals::default();
        let per_block = self.sb.descs_per_block().max(1);
        for first in (0..self.count()).step_by(per_block as usize) {
            let end = first.saturating_add(per_block).min(self.count());
            let block = self.desc_place(Group(first)).0;
            let bytes = edit.read(block, &DescBlock).map_err(Error::from)?;
            for (i, group) in (first..end).map(Group).enumerate() {
                totals.add(&self.parse_at(group, block, &bytes, i * self.sb.desc_size())?);
            }
        }
        Ok(totals)
    }
}
