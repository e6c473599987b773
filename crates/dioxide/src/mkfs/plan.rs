//! Everything that a new file system consists of, before anything is written.
//!
//! Invariant: after `new` the superblock's counts, the places and the space agree; `write` only reads.

use super::fit::fit;
use super::options::Mkfs;
use super::space::Space;
use super::tables::{Place, Tables};
use crate::{Error, Result};
use dioxide_format::features::{Incompat, RoCompat};
use dioxide_format::inode::Inode;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::{Group, Ino};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// The last time of a superblock, whose times have 40 bits and no sign.
const LAST_SECS: i64 = (1 << 40) - 1;

/// A file system that is laid out but not written.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) sb: SuperBlock,
    pub(super) places: Vec<Place>,
    pub(super) space: Space,
    /// Whole blocks: directories, pointers, the journal's superblock and the like.
    pub(super) content: BTreeMap<u64, Vec<u8>>,
    pub(super) inodes: BTreeMap<Ino, Inode>,
    /// All inodes up to this are used.
    pub(super) last_ino: u32,
    /// Blocks of the journal: how many, and where.
    pub(super) journal: Option<(u64, Vec<Range<u64>>)>,
    /// Clusters that files can never have.
    pub(super) overhead: u64,
    pub(super) now: i64,
    pub(super) notes: Vec<String>,
    pub(super) lazy_itable: bool,
    pub(super) lazy_journal: bool,
    pub(super) prezeroed: bool,
}

impl Plan {
    pub(super) fn new(mkfs: &Mkfs, size_bytes: u64) -> Result<Plan> {
        let mut sb = fit(mkfs, size_bytes)?;
        let now = mkfs.epoch.map_or_else(now_secs, Ok)?;
        identify(&mut sb, mkfs, now)?;
        let tables = Tables::place(&sb, mkfs.extended.packed)?;
        let (space, places) = (tables.space, tables.places);
        let unit = u64::from(sb.cluster_ratio());
        let mut plan = Plan {
            overhead: space.taken_in(0..u64::MAX) / unit + sb.first_data_block().0,
            lazy_itable: sb.features().group_csum() && !mkfs.extended.full_itable,
            lazy_journal: mkfs.extended.lazy_journal,
            prezeroed: mkfs.extended.prezeroed,
            sb,
            places,
            space,
            content: BTreeMap::new(),
            inodes: BTreeMap::new(),
            last_ino: 0,
            journal: None,
            now,
            notes: Vec::new(),
        };
        plan.add_files(mkfs)?;
        plan.check_inodes()?;
        plan.count();
        Ok(plan)
    }

    /// The superblock as it will be, but for its account of what was written.
    pub fn superblock(&self) -> &SuperBlock {
        &self.sb
    }

    /// When it is made, in seconds since 1970, or before: where a superblock can have that, its time too.
    pub fn made_at(&self) -> i64 {
        self.now
    }

    /// Blocks of the journal; none without one.
    pub fn journal_blocks(&self) -> Option<u64> {
        self.journal.as_ref().map(|(blocks, _)| *blocks)
    }

    /// First blocks of the copies of the superblock, in order.
    pub fn backups(&self) -> Vec<u64> {
        let groups = self.sb.backup_groups();
        groups
            .map(|group| self.sb.superblock_block(group).0)
            .collect()
    }

    /// What was decided otherwise than asked, in words.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Blocks that are not taken.
    pub(super) fn free_blocks(&self) -> u64 {
        let all = self.sb.blocks_count() - self.sb.first_data_block().0;
        let all = all.next_multiple_of(self.space.unit());
        all - self.space.taken_in(0..u64::MAX)
    }

    /// The blocks of a group.
    pub(super) fn group_blocks(&self, group: Group) -> Range<u64> {
        let first = self.sb.group_first_block(group).0;
        first..first + u64::from(self.sb.blocks_in_group(group))
    }

    /// How many of a group's inodes are used: the first ones.
    pub(super) fn used_inodes(&self, group: Group) -> u32 {
        let per_group = self.sb.inodes_per_group();
        let before = u64::from(group.0) * u64::from(per_group);
        u64::from(self.last_ino)
            .saturating_sub(before)
            .min(per_group.into()) as u32
    }

    /// A tiny file system may have fewer inodes than its first files need.
    fn check_inodes(&self) -> Result<()> {
        let (needed, there) = (self.last_ino, self.sb.inodes_count());
        if needed <= there {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "{there} inodes are too few for the first files, which need {needed}: ask for more (-N), or for a larger file system"
        )))
    }

    /// Brings the superblock's counts up to date.
    fn count(&mut self) {
        let free = self.free_blocks();
        self.sb.set_free_blocks_count(free);
        let inodes = self.sb.inodes_count() - self.last_ino;
        self.sb.set_free_inodes_count(inodes);
        self.sb.disk_mut().s_overhead_clusters = self.overhead as u32;
    }
}

/// Uuid, label, seeds and times.
fn identify(sb: &mut SuperBlock, mkfs: &Mkfs, now: i64) -> Result<()> {
    let uuid = mkfs.uuid.map_or_else(random_uuid, Ok)?;
    let seed = mkfs.hash_seed.map_or_else(random_uuid, Ok)?;
    let counts_writes = counts_writes(sb);
    let disk = sb.disk_mut();
    disk.s_uuid = uuid;
    disk.s_volume_name[..mkfs.label.len()].copy_from_slice(&mkfs.label);
    let (words, _) = seed.as_chunks::<4>();
    for (slot, word) in disk.s_hash_seed.iter_mut().zip(words) {
        *slot = u32::from_le_bytes(*word);
    }
    let secs = now.clamp(0, LAST_SECS);
    let (low, high) = (secs as u32, (secs >> 32) as u8);
    disk.s_mkfs_time = low;
    disk.s_lastcheck = low;
    disk.s_wtime = low;
    disk.s_mkfs_time_hi = high;
    disk.s_lastcheck_hi = high;
    disk.s_wtime_hi = high;
    disk.s_kbytes_written = u64::from(counts_writes);
    if sb.features().incompat.contains(Incompat::CSUM_SEED) {
        sb.disk_mut().s_checksum_seed = dioxide_format::checksum::crc32c(!0, &uuid);
    }
    Ok(())
}

/// Whether the superblock keeps an account of what was written over its life.
pub(super) fn counts_writes(sb: &SuperBlock) -> bool {
    let features = sb.features();
    let ro_compat = RoCompat::HUGE_FILE
        | RoCompat::GDT_CSUM
        | RoCompat::METADATA_CSUM
        | RoCompat::DIR_NLINK
        | RoCompat::EXTRA_ISIZE;
    features.incompat.contains(Incompat::FLEX_BG) || features.ro_compat.0 & ro_compat.0 != 0
}

fn now_secs() -> Result<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let secs = since
        .ok()
        .and_then(|since| i64::try_from(since.as_secs()).ok());
    secs.ok_or_else(|| Error::Invalid("the clock is before 1970: give a time".into()))
}

/// A uuid of the random kind.
fn random_uuid() -> Result<[u8; 16]> {
    let mut uuid = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut uuid));
    read.map_err(|error| {
        Error::Invalid(format!(
            "no random numbers ({error}): give a uuid and a hash seed"
        ))
    })?;
    uuid[6] = uuid[6] & 0x0F | 0x40;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    Ok(uuid)
}
