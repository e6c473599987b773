//! The superblock: 1024 bytes at byte 1024 of the device, with copies in backup groups.
//!
//! For: its fields as numbers in one unit, its checksum, its validation, and the geometry that
//! follows from it alone (where groups, descriptors and backups are). Not for: reading it.
//!
//! Invariant: every accessor is total. Before `validate` they may return nonsense, never panic;
//! after it, the geometry is consistent and all products fit their types.
//!
//! Rejected: a separate validated type. The same accessors serve `info` on damaged images.

mod disk;
mod geometry;
mod validate;

pub use disk::SuperBlockDisk;

use crate::Result;
use crate::checksum::crc32c;
use crate::error::{ensure, ensure_checksum};
use crate::features::{Compat, Features, Incompat, RoCompat};
use crate::types::{Ino, Pblk};

/// Byte offset of the primary superblock on the device.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// `s_magic`.
pub const MAGIC: u16 = 0xEF53;
/// Bit of `state()`: cleanly unmounted.
pub const STATE_CLEAN: u16 = 1;
/// Bit of `state()`: errors were found.
pub const STATE_ERROR: u16 = 2;
/// Bit of `state()`: the legacy orphan list is being processed.
pub const STATE_ORPHAN: u16 = 4;

const STRUCTURE: &str = "superblock";
const CHECKSUM_AT: usize = 0x3FC;
const FLAG_UNSIGNED_HASH: u32 = 2;
const DEFAULT_BSD_GROUPS: u32 = 2;
const DEFAULT_UID16: u32 = 0x10;
/// How data are journalled: none, `journal_data`, `journal_data_ordered`, `journal_data_writeback`.
const DEFAULT_DATA: u32 = 0x60;
const DEFAULT_DATA_JOURNAL: u32 = 0x20;
const DEFAULT_DATA_WRITEBACK: u32 = 0x60;
const DEFAULT_NOBARRIER: u32 = 0x100;
const DEFAULT_DISCARD: u32 = 0x400;

/// What to do when an error is found, `s_errors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorPolicy {
    /// Go on.
    Continue,
    /// Turn read-only.
    RemountReadOnly,
    /// Panic, in Linux; fail everything, in dioxide.
    Panic,
    /// A value outside the format; Linux turns read-only then too.
    Unknown(u16),
}

/// The superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuperBlock {
    disk: SuperBlockDisk,
}

/// A 32-bit time with the high byte that extends it.
fn time40(lo: u32, hi: u8) -> i64 {
    i64::from(lo) | (i64::from(hi) << 32)
}

fn hi_lo(hi: u32, lo: u32) -> u64 {
    (u64::from(hi) << 32) | u64::from(lo)
}

impl SuperBlock {
    /// Bytes on disk.
    pub const SIZE: usize = SuperBlockDisk::SIZE;

    /// Reads the superblock from the start of `bytes` (1024 needed). Nothing is judged.
    ///
    /// # Errors
    /// `TooShort`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        Ok(Self {
            disk: SuperBlockDisk::parse(bytes)?,
        })
    }

    /// The 1024 bytes.
    pub fn encode(&self) -> [u8; SuperBlockDisk::SIZE] {
        self.disk.encode()
    }

    /// The fields by their disk names.
    pub fn disk(&self) -> &SuperBlockDisk {
        &self.disk
    }

    /// The fields by their disk names, to change. `update_checksum` afterwards.
    pub fn disk_mut(&mut self) -> &mut SuperBlockDisk {
        &mut self.disk
    }

    /// Whether the magic number is right.
    pub fn has_magic(&self) -> bool {
        self.disk.s_magic == MAGIC
    }

    fn computed_checksum(&self) -> u32 {
        crc32c(!0, &self.encode()[..CHECKSUM_AT])
    }

    /// Checks the checksum, where the file system has one.
    ///
    /// # Errors
    /// `Checksum`.
    pub fn verify_checksum(&self) -> Result<()> {
        if !self.features().metadata_csum() {
            return Ok(());
        }
        ensure_checksum(STRUCTURE, self.disk.s_checksum, self.computed_checksum())
    }

    /// Makes the checksum right, where the file system has one.
    pub fn update_checksum(&mut self) {
        if self.features().metadata_csum() {
            self.disk.s_checksum = self.computed_checksum();
        }
    }

    /// The feature sets. As Linux and libext2fs have it, they count in revision 0 too.
    pub fn features(&self) -> Features {
        Features {
            compat: Compat(self.disk.s_feature_compat),
            incompat: Incompat(self.disk.s_feature_incompat),
            ro_compat: RoCompat(self.disk.s_feature_ro_compat),
        }
    }

    /// Makes revision 0 what it has to be before a feature is set: revision 1, with the fields that
    /// count from then on.
    pub fn make_dynamic(&mut self) {
        if self.disk.s_rev_level == 0 {
            self.disk.s_rev_level = 1;
            self.disk.s_first_ino = 11;
            self.disk.s_inode_size = 128;
        }
    }

    pub(crate) fn has_incompat(&self, feature: Incompat) -> bool {
        self.features().incompat.contains(feature)
    }

    pub(crate) fn has_ro_compat(&self, feature: RoCompat) -> bool {
        self.features().ro_compat.contains(feature)
    }

    /// Whether block numbers have 48 bits and descriptors `desc_size()` bytes.
    pub fn is_64bit(&self) -> bool {
        self.has_incompat(Incompat::BIT64)
    }

    /// Whether the journal holds changes that are not in place yet.
    pub fn needs_recovery(&self) -> bool {
        self.has_incompat(Incompat::NEEDS_RECOVERY)
    }

    /// Whether who had the file system last closed it, and found no errors.
    pub fn was_closed(&self) -> bool {
        self.state() == STATE_CLEAN && !self.needs_recovery()
    }

    /// The seed of all metadata checksums but the superblock's own: stored, or from the uuid.
    pub fn checksum_seed(&self) -> u32 {
        if self.has_incompat(Incompat::CSUM_SEED) {
            self.disk.s_checksum_seed
        } else {
            crc32c(!0, &self.disk.s_uuid)
        }
    }

    /// The uuid.
    pub fn uuid(&self) -> [u8; 16] {
        self.disk.s_uuid
    }

    /// The label, up to its first NUL; bytes that are not UTF-8 are replaced.
    pub fn volume_name(&self) -> String {
        text(&self.disk.s_volume_name)
    }

    /// The directory of the last mount, as `volume_name`.
    pub fn last_mounted(&self) -> String {
        text(&self.disk.s_last_mounted)
    }

    /// Default mount options as text, as `volume_name`.
    pub fn mount_opts(&self) -> String {
        text(&self.disk.s_mount_opts)
    }

    /// State bits: `STATE_CLEAN`, `STATE_ERROR`, `STATE_ORPHAN`.
    pub fn state(&self) -> u16 {
        self.disk.s_state
    }

    /// Whether new files have the group of their directory, if a mount does not say otherwise.
    pub fn has_bsd_groups(&self) -> bool {
        self.disk.s_default_mount_opts & DEFAULT_BSD_GROUPS != 0
    }

    /// Default mount options that have a mount treat data in another way, by the names that tune2fs has.
    pub fn default_data_options(&self) -> Vec<&'static str> {
        let all = self.disk.s_default_mount_opts;
        let data = match all & DEFAULT_DATA {
            DEFAULT_DATA_JOURNAL => Some("journal_data"),
            DEFAULT_DATA_WRITEBACK => Some("journal_data_writeback"),
            _ => None,
        };
        let others = [
            (DEFAULT_UID16, "uid16"),
            (DEFAULT_NOBARRIER, "nobarrier"),
            (DEFAULT_DISCARD, "discard"),
        ];
        let others = others.into_iter().filter(|(bit, _)| all & bit != 0);
        data.into_iter()
            .chain(others.map(|(_, name)| name))
            .collect()
    }

    /// The user and the group that the reserved blocks are kept for, if a mount does not say otherwise.
    pub fn default_reserve(&self) -> (u32, u32) {
        let disk = &self.disk;
        let joined = |high: u16, low: u16| u32::from(high) << 16 | u32::from(low);
        (
            joined(disk.s_def_resuid_hi, disk.s_def_resuid),
            joined(disk.s_def_resgid_hi, disk.s_def_resgid),
        )
    }

    /// What to do when an error is found.
    pub fn errors(&self) -> ErrorPolicy {
        match self.disk.s_errors {
            1 => ErrorPolicy::Continue,
            2 => ErrorPolicy::RemountReadOnly,
            3 => ErrorPolicy::Panic,
            other => ErrorPolicy::Unknown(other),
        }
    }

    /// Number of inodes.
    pub fn inodes_count(&self) -> u32 {
        self.disk.s_inodes_count
    }

    /// Number of free inodes.
    pub fn free_inodes_count(&self) -> u32 {
        self.disk.s_free_inodes_count
    }

    fn hi32(&self, hi: u32) -> u32 {
        if self.is_64bit() { hi } else { 0 }
    }

    /// Number of blocks.
    pub fn blocks_count(&self) -> u64 {
        hi_lo(
            self.hi32(self.disk.s_blocks_count_hi),
            self.disk.s_blocks_count_lo,
        )
    }

    /// Number of free blocks (in blocks, also with bigalloc).
    pub fn free_blocks_count(&self) -> u64 {
        hi_lo(
            self.hi32(self.disk.s_free_blocks_hi),
            self.disk.s_free_blocks_count_lo,
        )
    }

    /// Stores the number of free inodes. `update_checksum` afterwards.
    pub fn set_free_inodes_count(&mut self, count: u32) {
        self.disk.s_free_inodes_count = count;
    }

    /// Stores the number of free blocks (in blocks, also with bigalloc). `update_checksum`
    /// afterwards.
    pub fn set_free_blocks_count(&mut self, count: u64) {
        self.disk.s_free_blocks_count_lo = count as u32;
        self.disk.s_free_blocks_hi = self.hi32((count >> 32) as u32);
    }

    /// Blocks kept for the super user.
    pub fn reserved_blocks_count(&self) -> u64 {
        hi_lo(
            self.hi32(self.disk.s_r_blocks_count_hi),
            self.disk.s_r_blocks_count_lo,
        )
    }

    /// First inode that is not reserved.
    pub fn first_ino(&self) -> Ino {
        Ino(if self.disk.s_rev_level == 0 {
            11
        } else {
            self.disk.s_first_ino
        })
    }

    /// Seed of the directory hash; all zero means the hash's own default.
    pub fn hash_seed(&self) -> [u32; 4] {
        self.disk.s_hash_seed
    }

    /// Hash version of new indexed directories, as stored (see `htree::HashVersion`).
    pub fn def_hash_version(&self) -> u8 {
        self.disk.s_def_hash_version
    }

    /// Hash version that the roots of new indexed directories store: of the unsigned ones (3 to 5) the
    /// signed one, as whether names are unsigned stands in the superblock alone.
    pub fn root_hash_version(&self) -> u8 {
        match self.disk.s_def_hash_version {
            version @ 3..=5 => version - 3,
            version => version,
        }
    }

    /// Whether directory hashes take names as unsigned bytes.
    pub fn hash_is_unsigned(&self) -> bool {
        self.disk.s_flags & FLAG_UNSIGNED_HASH != 0
    }

    /// Inode of the journal, when it is inside the file system.
    pub fn journal_inum(&self) -> Option<Ino> {
        nonzero(self.disk.s_journal_inum)
    }

    /// Device number of an external journal, 0 for none.
    pub fn journal_dev(&self) -> u32 {
        self.disk.s_journal_dev
    }

    /// Uuid of an external journal.
    pub fn journal_uuid(&self) -> [u8; 16] {
        self.disk.s_journal_uuid
    }

    /// Inodes of the quotas, in the order of [`QuotaKind::ALL`](crate::quota::QuotaKind::ALL), 0 for none. They count with the
    /// feature only.
    pub fn quota_inums(&self) -> [u32; 3] {
        let disk = &self.disk;
        [
            disk.s_usr_quota_inum,
            disk.s_grp_quota_inum,
            disk.s_prj_quota_inum,
        ]
    }

    /// Head of the legacy orphan list.
    pub fn last_orphan(&self) -> Option<Ino> {
        nonzero(self.disk.s_last_orphan)
    }

    /// Inode of the orphan file, where the feature is set.
    pub fn orphan_file_inum(&self) -> Option<Ino> {
        if self.features().compat.contains(Compat::ORPHAN_FILE) {
            nonzero(self.disk.s_orphan_file_inum)
        } else {
            None
        }
    }

    /// Block of multi-mount protection, where the feature is set.
    ///
    /// # Errors
    /// `Corrupt` if it is set, and there is no such block: nobody can tell who uses the file system.
    pub fn mmp_block(&self) -> Result<Option<Pblk>> {
        if !self.has_incompat(Incompat::MMP) {
            return Ok(None);
        }
        let (first, end) = (self.first_data_block().0, self.blocks_count());
        let block = self.disk.s_mmp_block;
        let expected = format_args!("more than {first}, less than {end}");
        let ok = block > first && block < end;
        ensure(ok, STRUCTURE, "s_mmp_block", block, expected)?;
        Ok(Some(Pblk(block)))
    }

    /// Seconds between two updates of the MMP block.
    pub fn mmp_interval_secs(&self) -> u16 {
        self.disk.s_mmp_interval
    }

    /// When the file system was made, seconds since 1970.
    pub fn mkfs_time(&self) -> i64 {
        time40(self.disk.s_mkfs_time, self.disk.s_mkfs_time_hi)
    }

    /// When it was last mounted, seconds since 1970; 0 for never.
    pub fn mount_time(&self) -> i64 {
        time40(self.disk.s_mtime, self.disk.s_mtime_hi)
    }

    /// When the superblock was last written, seconds since 1970.
    pub fn write_time(&self) -> i64 {
        time40(self.disk.s_wtime, self.disk.s_wtime_hi)
    }

    /// When it was last checked, seconds since 1970.
    pub fn check_time(&self) -> i64 {
        time40(self.disk.s_lastcheck, self.disk.s_lastcheck_hi)
    }

    /// Mounts since the last check.
    pub fn mount_count(&self) -> u16 {
        self.disk.s_mnt_count
    }

    /// Mounts after which a check is due; none for never.
    pub fn max_mount_count(&self) -> Option<u16> {
        let count = self.disk.s_max_mnt_count;
        (count != 0 && count != u16::MAX).then_some(count)
    }

    /// KiB written over the life of the file system.
    pub fn kbytes_written(&self) -> u64 {
        self.disk.s_kbytes_written
    }

    /// Encoding of names (1 = utf8-12.1), where `casefold` is set.
    pub fn encoding(&self) -> Option<u16> {
        self.has_incompat(Incompat::CASEFOLD)
            .then_some(self.disk.s_encoding)
    }

    /// Number of errors that were recorded.
    pub fn error_count(&self) -> u32 {
        self.disk.s_error_count
    }
}

fn nonzero(ino: u32) -> Option<Ino> {
    (ino != 0).then_some(Ino(ino))
}

fn text(bytes: &[u8]) -> String {
    let len = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}
