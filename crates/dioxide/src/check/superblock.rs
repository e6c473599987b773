//! Pass 0: finding a superblock to check by, and judging it and its backups.

use super::finding::{At, Code, Findings};
use super::{CheckOptions, Checker};
use crate::mount::log::{journal_device, refuse_journal_device};
use crate::mount::open::{find_superblock, none_there};
use crate::mount::span::read_span;
use crate::{Error, Place, Result, known};
use dioxide_block::Device;
use dioxide_format::features::{Compat, Incompat, RoCompat};
use dioxide_format::superblock::{STATE_CLEAN, STATE_ERROR, SUPERBLOCK_OFFSET, SuperBlock};
use dioxide_format::types::Group;
use std::sync::Arc;

/// What the check knows.
const COMPAT: Compat = Compat::DIR_PREALLOC
    .union(Compat::IMAGIC_INODES)
    .union(Compat::HAS_JOURNAL)
    .union(Compat::EXT_ATTR)
    .union(Compat::RESIZE_INODE)
    .union(Compat::DIR_INDEX)
    .union(Compat::SPARSE_SUPER2)
    .union(Compat::FAST_COMMIT)
    .union(Compat::STABLE_INODES)
    .union(Compat::ORPHAN_FILE);
const INCOMPAT: Incompat = known::INCOMPAT
    .union(Incompat::NEEDS_RECOVERY)
    .union(Incompat::ENCRYPT)
    .union(Incompat::CASEFOLD);
const RO_COMPAT: RoCompat = known::RO_COMPAT
    .union(RoCompat::READONLY)
    .union(RoCompat::VERITY)
    .union(RoCompat::ORPHAN_PRESENT);

/// The only encoding of names that Linux knows.
const UTF8_12_1: u16 = 1;

/// The superblock that is used.
pub(super) struct Found {
    pub(super) sb: SuperBlock,
    pub(super) block: u64,
    pub(super) primary: bool,
}

/// A superblock at byte `at`, sound enough to check by; otherwise what is wrong with it.
pub(super) fn candidate(device: &dyn Device, at: u64) -> Result<SuperBlock, (Code, String)> {
    let invalid = |error: String| (Code::SuperblockInvalid, error);
    let bytes = read_span(device, at, SuperBlock::SIZE, "superblock");
    let bytes = bytes.map_err(|error| match error {
        Error::Corrupt { what, .. } => invalid(what),
        error => invalid(error.to_string()),
    })?;
    let sb = SuperBlock::parse(&bytes).map_err(|error| invalid(error.to_string()))?;
    if sb.has_magic() {
        let summed = sb.verify_checksum();
        summed.map_err(|error| (Code::SuperblockChecksum, error.to_string()))?;
    }
    sb.validate(None)
        .map_err(|error| invalid(error.to_string()))?;
    let least = sb.desc_size();
    let reachable = sb.descs_per_block() > 0 && (least == 32 || least >= 64);
    match reachable {
        true => Ok(sb),
        false => Err(invalid(format!("descriptors of {least} bytes"))),
    }
}

/// Where backups may be when nothing is known, in bytes: that of group 1, for each size of blocks.
fn usual_backups() -> impl Iterator<Item = u64> {
    (0..=6).map(|log: u32| {
        let block_bytes = 1024u64 << log;
        let first = u64::from(block_bytes == 1024);
        (block_bytes * 8 + first) * block_bytes
    })
}

/// Finds a superblock. None if there is no good one; then that is a finding.
///
/// # Errors
/// [`Error::Unsupported`] for features that are not known, and for a device that is a journal.
pub(super) fn find(
    device: &Arc<dyn Device>,
    options: &CheckOptions,
    findings: &mut Findings,
) -> Result<Option<Found>> {
    if let Some(sb) = journal_device(&**device) {
        refuse_journal_device(&**device, &sb)?;
    }
    let at = place(options);
    let (code, text) = match candidate(&**device, at) {
        Ok(sb) => return known(sb, at, at == SUPERBLOCK_OFFSET).map(Some),
        Err(wrong) => wrong,
    };
    findings.add(code, At::default().offset(at), text);
    for backup in usual_backups().filter(|backup| *backup != at) {
        if let Ok(sb) = candidate(&**device, backup) {
            // A file inside may hold an image, and so a superblock.
            let block = backup / u64::from(sb.block_size());
            if !is_backup(&sb, block) {
                continue;
            }
            let text = format!("the backup at block {block} is used");
            findings.add(Code::SuperblockFromBackup, At::block(block), text);
            return known(sb, backup, false).map(Some);
        }
    }
    Ok(None)
}

/// Where the superblock is looked for first.
fn place(options: &CheckOptions) -> u64 {
    let asked = options.superblock_at.map(|kib| kib.saturating_mul(1024));
    asked.unwrap_or(SUPERBLOCK_OFFSET)
}

/// Finds a superblock, for what cannot go on without.
///
/// # Errors
/// As [`find`]; [`Error::Invalid`] if there is none, [`Error::Corrupt`] if there is no good one.
pub(super) fn need(
    device: &Arc<dyn Device>,
    options: &CheckOptions,
    findings: &mut Findings,
) -> Result<Found> {
    if let Some(found) = find(device, options, findings)? {
        return Ok(found);
    }
    let why = findings
        .kept_mut()
        .first()
        .map(|finding| finding.text.as_str());
    let (at, why) = (place(options), why.unwrap_or("it is damaged"));
    // What holds no file system is not damaged.
    if matches!(find_superblock(&**device, at), Err(Error::Invalid(_))) {
        return Err(Error::Invalid(format!(
            "{}, and no backup was found",
            none_there(at, why)
        )));
    }
    Err(Error::Corrupt {
        structure: "superblock",
        place: Place::default().at(at),
        what: format!("{why}, and no backup was found"),
    })
}

fn is_backup(sb: &SuperBlock, block: u64) -> bool {
    sb.backup_groups()
        .take(1)
        .any(|group| sb.superblock_block(group).0 == block)
}

fn known(sb: SuperBlock, at: u64, primary: bool) -> Result<Found> {
    let features = sb.features();
    let mut unknown = features.incompat.unsupported(INCOMPAT).names();
    unknown.extend(features.ro_compat.unsupported(RO_COMPAT).names());
    if !unknown.is_empty() {
        return Err(Error::Unsupported(format!(
            "the file system has the features: {}",
            unknown.join(" ")
        )));
    }
    let block = at / u64::from(sb.block_size());
    Ok(Found { sb, block, primary })
}

impl Checker<'_> {
    /// Judges what the geometry does not rest on.
    pub(super) fn fields(&mut self) {
        let device = self.source.size_bytes() / u64::from(self.sb.block_size());
        let blocks = self.sb.blocks_count();
        if blocks > device {
            let text = format!("the file system has {blocks} blocks, the device {device}");
            self.find(Code::DeviceTooSmall, At::default(), text);
        }
        self.judge_state();
        self.judge_features();
        for (is_wrong, text) in self.wrong_fields() {
            if is_wrong {
                self.find(Code::SuperblockField, At::default(), text);
            }
        }
    }

    fn judge_state(&mut self) {
        if !self.primary {
            return;
        }
        let state = self.sb.state();
        if state & STATE_ERROR != 0 {
            let text = format!("errors were found before, {} times", self.sb.error_count());
            self.find(Code::StateError, At::default(), text);
        } else if state & STATE_CLEAN == 0 && !self.sb.needs_recovery() {
            let text = "the file system was not unmounted cleanly";
            self.find(Code::StateNotClean, At::default(), text);
        }
    }

    fn judge_features(&mut self) {
        let features = self.sb.features();
        let (compat, incompat) = (features.compat, features.incompat);
        let ro = features.ro_compat;
        let unknown = compat.unsupported(COMPAT);
        if !unknown.is_empty() {
            let text = format!("what these features ask for was not looked at: {unknown}");
            self.find(Code::FeatureUnknown, At::default(), text);
        }
        let journal = compat.contains(Compat::HAS_JOURNAL);
        let conflicts = [
            (
                ro.contains(RoCompat::GDT_CSUM) && features.metadata_csum(),
                "uninit_bg and metadata_csum are both set",
            ),
            (
                incompat.contains(Incompat::CSUM_SEED) && !features.metadata_csum(),
                "metadata_csum_seed without metadata_csum",
            ),
            (
                self.sb.needs_recovery() && !journal,
                "needs_recovery without a journal",
            ),
            (
                !journal && self.sb.journal_inum().is_some(),
                "s_journal_inum without a journal",
            ),
            (
                !journal && self.sb.journal_uuid() != [0; 16],
                "s_journal_uuid without a journal",
            ),
            (
                compat.contains(Compat::RESIZE_INODE) && incompat.contains(Incompat::META_BG),
                "resize_inode and meta_bg are both set",
            ),
            (
                ro.contains(RoCompat::BIGALLOC) && !incompat.contains(Incompat::EXTENTS),
                "bigalloc without extents",
            ),
            (
                ro.contains(RoCompat::ORPHAN_PRESENT) && !compat.contains(Compat::ORPHAN_FILE),
                "orphan_present without orphan_file",
            ),
            (
                compat.contains(Compat::ORPHAN_FILE) && !journal,
                "orphan_file without a journal",
            ),
        ];
        for (conflict, text) in conflicts {
            if conflict {
                self.find(Code::FeatureConflict, At::default(), text);
            }
        }
    }

    fn wrong_fields(&self) -> Vec<(bool, String)> {
        let (sb, disk) = (&self.sb, self.sb.disk());
        let blocks = sb.blocks_count();
        let room = sb.inode_size().saturating_sub(128);
        let is_odd = |extra: u16| usize::from(extra) > room || !extra.is_multiple_of(4);
        let extra = |name: &str, value: u16| format!("{name} is {value}, of {room}");
        let resize = sb.features().compat.contains(Compat::RESIZE_INODE);
        let reserved = sb.reserved_blocks_count();
        vec![
            (
                reserved > blocks / 2,
                format!("s_r_blocks_count is {reserved} of {blocks} blocks"),
            ),
            // Nothing rests on it without 64bit. libext2fs refuses it all the same.
            (
                !sb.is_64bit() && odd_desc_size(disk.s_desc_size),
                format!("s_desc_size is {} without 64bit", disk.s_desc_size),
            ),
            (
                is_odd(disk.s_min_extra_isize),
                extra("s_min_extra_isize", disk.s_min_extra_isize),
            ),
            (
                is_odd(disk.s_want_extra_isize),
                extra("s_want_extra_isize", disk.s_want_extra_isize),
            ),
            (
                sb.reserved_gdt_blocks() > 0 && !resize,
                format!(
                    "s_reserved_gdt_blocks is {} without resize_inode",
                    sb.reserved_gdt_blocks()
                ),
            ),
            (
                self.primary && sb.free_blocks_count() > blocks,
                format!("{} of {blocks} blocks are free", sb.free_blocks_count()),
            ),
            (
                self.primary && sb.free_inodes_count() > sb.inodes_count(),
                format!(
                    "{} of {} inodes are free",
                    sb.free_inodes_count(),
                    sb.inodes_count()
                ),
            ),
            (
                sb.first_ino().0 > sb.inodes_count(),
                format!("s_first_ino is {}", sb.first_ino()),
            ),
            (
                sb.validate_hash_version().is_err(),
                format!("s_def_hash_version is {}", sb.def_hash_version()),
            ),
            (
                sb.encoding().is_some_and(|encoding| encoding != UTF8_12_1),
                format!("s_encoding is {}", disk.s_encoding),
            ),
        ]
    }

    /// Judges the copies of the superblock.
    pub(super) fn backups(&mut self) {
        for group in self.sb.backup_groups() {
            if u64::from(self.sb.group_count()) <= u64::from(group.0) {
                break;
            }
            self.backup(group);
        }
    }

    fn backup(&mut self, group: Group) {
        let block = self.sb.superblock_block(group).0;
        let at = block * u64::from(self.sb.block_size());
        let place = At::group(group).in_block(block);
        match candidate(self.source.device().as_ref(), at) {
            Err((_, text)) => self.find(Code::BackupInvalid, place, text),
            Ok(backup) => {
                let differing = differing(&self.sb, &backup);
                if !differing.is_empty() {
                    let text = format!("the backup differs in {}", differing.join(", "));
                    self.find(Code::BackupStale, place, text);
                }
            }
        }
    }
}

/// A power of two up to 1024, or 0 for the size without 64bit.
fn odd_desc_size(size: u16) -> bool {
    size != 0 && !(size.is_power_of_two() && size <= 1024)
}

/// The fields in which a backup should be like the superblock and is not.
fn differing(sb: &SuperBlock, backup: &SuperBlock) -> Vec<&'static str> {
    let recovery = Incompat::NEEDS_RECOVERY;
    let orphans = RoCompat::ORPHAN_PRESENT;
    let fields = |sb: &SuperBlock| {
        let features = sb.features();
        [
            ("s_blocks_count", sb.blocks_count()),
            ("s_inodes_count", sb.inodes_count().into()),
            ("s_log_block_size", sb.block_size().into()),
            ("s_blocks_per_group", sb.blocks_per_group().into()),
            ("s_inodes_per_group", sb.inodes_per_group().into()),
            ("s_inode_size", sb.inode_size() as u64),
            ("s_feature_compat", features.compat.bits().into()),
            (
                "s_feature_incompat",
                features.incompat.unsupported(recovery).bits().into(),
            ),
            (
                "s_feature_ro_compat",
                features.ro_compat.unsupported(orphans).bits().into(),
            ),
        ]
    };
    let pairs = fields(sb).into_iter().zip(fields(backup));
    let differing = pairs.filter(|(a, b)| a.1 != b.1);
    let mut names: Vec<_> = differing.map(|(a, _)| a.0).collect();
    if sb.uuid() != backup.uuid() {
        names.push("s_uuid");
    }
    names
}
