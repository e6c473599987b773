//! Opening: judging an image before anything else looks at it.
//!
//! There are three verdicts. An image that dioxide would misread is refused. One that it can read
//! but must not write is opened read-only, with a warning that says why. Everything else is opened
//! as asked; what the user should know becomes a warning.
//!
//! Not for: repairing. A journal is replayed before ([`super::replay`]); nothing else is written.
//!
//! Rejected: judging at the first write. Whoever opened read-write learns it then, too late.

use super::groups::DescTable;
use super::meta::BUDGET_BYTES;
use super::replay::replay;
use super::span::read_span;
use super::zone::{Zones, journal_blocks};
use super::{Knobs, Mount};
use crate::api::fs::{DataMode, MountOptions};
use crate::inode::{Inode, InodeCache};
use crate::io::worker::Workers;
use crate::stats::Counters;
use crate::sync::inflight::InFlightRegistry;
use crate::sync::rwsem::Presence;
use crate::{Error, FileType, Place, Result};
use dioxide_block::{Device, Lane};
use dioxide_format::dir::DirFormat;
use dioxide_format::features::{Compat, Incompat, RoCompat};
use dioxide_format::journal::JournalSuperBlock;
use dioxide_format::mmp::{Mmp, MmpState};
use dioxide_format::superblock::{STATE_CLEAN, STATE_ERROR, SUPERBLOCK_OFFSET, SuperBlock};
use dioxide_format::types::Pblk;
use dioxide_journal::buffer::BufferCache;
use dioxide_journal::log::LogMap;
use parking_lot::Mutex;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

/// What can be read.
const INCOMPAT: Incompat = Incompat::FILETYPE
    .union(Incompat::NEEDS_RECOVERY)
    .union(Incompat::META_BG)
    .union(Incompat::EXTENTS)
    .union(Incompat::BIT64)
    .union(Incompat::MMP)
    .union(Incompat::FLEX_BG)
    .union(Incompat::EA_INODE)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::LARGE_DIR)
    .union(Incompat::INLINE_DATA);

/// What can be written. ORPHAN_PRESENT is not a layout but a state, and judged as such.
pub(super) const RO_COMPAT: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::QUOTA)
    .union(RoCompat::BIGALLOC)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::PROJECT)
    .union(RoCompat::ORPHAN_PRESENT);

impl Mount {
    /// Opens the file system on a device. Blocks.
    ///
    /// # Errors
    /// See [`crate::Fs::open`].
    pub(crate) fn open(device: Arc<dyn Device>, options: &MountOptions) -> Result<Arc<Mount>> {
        if options.data == DataMode::Journal {
            return Err(Error::Unsupported("data=journal".into()));
        }
        let at = options
            .sb
            .map_or(Some(SUPERBLOCK_OFFSET), |block| block.checked_mul(1024));
        let at = at.ok_or_else(|| Error::Invalid("sb: past the end of any device".into()))?;
        let sb = read_superblock(&*device, at)?;
        fits_device(&sb, &*device)?;
        let replayed = replay(device, options, sb, at)?;
        // The journal may have had another superblock.
        fits_device(&replayed.sb, &*replayed.device)?;
        let mut mount = Mount::new(replayed.device, options, Arc::new(replayed.sb), at);
        replayed.note.into_iter().for_each(|note| mount.warn(note));
        replayed
            .read_only
            .into_iter()
            .for_each(|why| mount.restrict(why));
        mount.judge(options)?;
        if mount.has_orphans() {
            mount.clear_orphans();
        }
        Ok(Arc::new(mount))
    }

    fn has_orphans(&self) -> bool {
        let present = RoCompat::ORPHAN_PRESENT;
        self.sb.last_orphan().is_some() || self.sb.features().ro_compat.contains(present)
    }

    /// Finishes what a crash has left to do.
    fn clear_orphans(&mut self) {
        if self.read_only.is_some() {
            return self.warn("deleted files wait to be freed (orphans)".into());
        }
        match self.recover_orphans() {
            Ok(0) => {}
            Ok(count) => self.warn(format!("{count} orphans were truncated or freed")),
            Err(error) => self.restrict(format!("orphans could not be freed: {error}")),
        }
    }

    pub(super) fn new(
        device: Arc<dyn Device>,
        options: &MountOptions,
        sb: Arc<SuperBlock>,
        sb_at: u64,
    ) -> Mount {
        let block_bytes = sb.block_size();
        Mount {
            block_bits: sb.block_size_log2(),
            block_mask: u64::from(block_bytes) - 1,
            logical_mask: u64::from(device.geometry().logical_block_bytes) - 1,
            dioread_nolock: options.dioread_nolock,
            read_only: options.read_only.then(|| "opened read-only".to_owned()),
            warnings: Vec::new(),
            presence: Arc::new(Presence::new()),
            in_flight: InFlightRegistry::default(),
            counters: Counters::new(),
            inodes: InodeCache::new(),
            workers: Workers::new("dioxide-worker", options.workers),
            ioend: Workers::new("dioxide-ioend", options.workers),
            knobs: Knobs::new(
                options.policy,
                options.completion,
                options.simple,
                options.dioread_nolock,
            ),
            dir_format: DirFormat::of(&sb),
            descs: DescTable::new(&sb, Pblk(sb_at / u64::from(block_bytes))),
            zones: Zones::unknown(),
            cache: BufferCache::new(device.clone(), block_bytes as usize, BUDGET_BYTES),
            writer: OnceLock::new(),
            starting: Mutex::new(()),
            failed: OnceLock::new(),
            noload: options.noload,
            barrier: options.barrier,
            discard: options.discard,
            commit_interval: options.commit_interval,
            errors: options.errors.unwrap_or(sb.errors()),
            damaged: AtomicBool::new(false),
            reserve: (
                options.resuid.unwrap_or(sb.disk().s_def_resuid.into()),
                options.resgid.unwrap_or(sb.disk().s_def_resgid.into()),
            ),
            lane: Lane::of(&device),
            device,
            sb,
        }
    }

    fn warn(&mut self, what: String) {
        tracing::warn!("{what}");
        self.warnings.push(what);
    }

    /// Nothing may be written, and the user is told.
    fn restrict(&mut self, why: String) {
        self.read_only.get_or_insert_with(|| why.clone());
        self.warn(format!("read-only: {why}"));
    }

    fn judge(&mut self, options: &MountOptions) -> Result<()> {
        if self.device.geometry().read_only {
            self.read_only
                .get_or_insert_with(|| "the device is read-only".into());
        }
        if options.sb.is_some() {
            self.restrict(
                "opened by a backup superblock, which does not know the file system's state".into(),
            );
        } else {
            self.judge_state();
            self.judge_mmp()?;
        }
        self.judge_features();
        self.judge_size();
        self.judge_groups();
        self.judge_journal();
        Ok(())
    }

    /// What the superblock says of how the file system was left.
    fn judge_state(&mut self) {
        if self.sb.state() & STATE_ERROR != 0 {
            let count = self.sb.error_count();
            self.warn(format!(
                "errors were found in this file system ({count} recorded): run e2fsck"
            ));
        } else if self.sb.state() & STATE_CLEAN == 0 {
            self.warn("the file system was not unmounted cleanly: run e2fsck".into());
        }
    }

    fn judge_features(&mut self) {
        let unknown = self.sb.features().ro_compat.unsupported(RO_COMPAT);
        if !unknown.is_empty() {
            self.restrict(format!("dioxide cannot write with the features: {unknown}"));
        }
    }

    fn judge_size(&mut self) {
        let size = self.device.geometry().size_bytes;
        let blocks = self.sb.blocks_count();
        if size >> self.block_bits < blocks {
            self.restrict(format!("the device has {size} bytes, the file system {blocks} blocks of {}: its end is missing", self.block_bytes()));
        }
    }

    /// Another host may use the file system.
    ///
    /// # Errors
    /// `EBUSY` when one does and this mount would write.
    fn judge_mmp(&mut self) -> Result<()> {
        let Some(pblk) = self.sb.mmp_block() else {
            return Ok(());
        };
        let by = match self.read_mmp(pblk) {
            Ok(mmp) if mmp.state() == MmpState::Clean => {
                self.restrict("multi-mount protection (mmp) is not kept up by dioxide yet".into());
                return Ok(());
            }
            Ok(mmp) => mmp_user(&mmp),
            Err(error) => {
                self.restrict(format!("who uses the file system is not known: {error}"));
                return Ok(());
            }
        };
        if self.read_only.is_none() {
            return Err(Error::Device(dioxide_block::Error::Busy {
                path: PathBuf::from(self.device.describe()),
                by: format!(
                    "{by}, says multi-mount protection; if that is not so, `tune2fs -f -E clear_mmp` says so, or open read-only"
                ),
            }));
        }
        self.warn(format!(
            "the file system is in use by {by}: what is read may be changing"
        ));
        Ok(())
    }

    fn read_mmp(&self, pblk: Pblk) -> Result<Mmp> {
        let block = self.read_meta(pblk)?;
        let place = Place::block(pblk.0);
        let check = || {
            let mmp = Mmp::parse(&block)?;
            mmp.validate()?;
            self.checksum_seed()
                .map_or(Ok(()), |seed| mmp.verify_checksum(seed))?;
            Ok(mmp)
        };
        check().map_err(|error| Error::format(error, place))
    }

    fn judge_groups(&mut self) {
        for error in self.learn_groups() {
            self.restrict(error.to_string());
        }
    }

    fn judge_journal(&mut self) {
        if !self.sb.features().compat.contains(Compat::HAS_JOURNAL) || self.sb.journal_dev() != 0 {
            return;
        }
        match self.find_journal() {
            Ok((blocks, super_block)) => {
                self.learn_journal(blocks);
                if !super_block.is_empty() && !self.sb.needs_recovery() {
                    self.restrict("the journal is not empty: run e2fsck".into());
                }
            }
            Err(error) => self.restrict(error.to_string()),
        }
    }

    /// Where the journal is, and its superblock.
    fn find_journal(&self) -> Result<(Vec<Range<u64>>, JournalSuperBlock)> {
        let journal = self.journal_inode()?;
        let blocks = journal_blocks(self, &journal)?;
        let Some(first) = blocks.first().map(|range| Pblk(range.start)) else {
            return Err(no_journal("it has no blocks"));
        };
        let block = self.read_meta(first)?;
        let place = Place::block(first.0).in_inode(journal.ino);
        let format = |error| Error::format(error, place);
        let super_block = JournalSuperBlock::parse(&block).map_err(format)?;
        super_block.validate(self.sb.block_size()).map_err(format)?;
        super_block.verify_checksum().map_err(format)?;
        Ok((blocks, super_block))
    }

    /// The journal of the file system, to be written to.
    pub(crate) fn open_log(&self) -> Result<(LogMap, JournalSuperBlock)> {
        let (blocks, super_block) = self.find_journal()?;
        Ok((LogMap::internal(blocks)?, super_block))
    }

    pub(super) fn journal_inode(&self) -> Result<Arc<Inode>> {
        let ino = self
            .sb
            .journal_inum()
            .ok_or_else(|| no_journal("s_journal_inum is 0"))?;
        let inode = self.inode(ino)?;
        if inode.file_type() == FileType::Regular && !inode.has_inline_data() {
            Ok(inode)
        } else {
            Err(no_journal("its inode is no regular file"))
        }
    }
}

fn no_journal(what: &str) -> Error {
    Error::Corrupt {
        structure: "journal",
        place: Place::default(),
        what: what.to_owned(),
    }
}

fn mmp_user(mmp: &Mmp) -> String {
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        bytes[..end].escape_ascii().to_string()
    };
    match mmp.state() {
        MmpState::Fsck => "e2fsck".to_owned(),
        _ => format!(
            "host {} as {}",
            text(&mmp.mmp_nodename),
            text(&mmp.mmp_bdevname)
        ),
    }
}

/// The superblock at byte `at`, if it is one, is intact, and asks for nothing unknown.
pub(super) fn read_superblock(device: &dyn Device, at: u64) -> Result<SuperBlock> {
    let place = Place::default().at(at);
    let format = |error| Error::format(error, place);
    let bytes = read_span(device, at, SuperBlock::SIZE)?;
    let sb = SuperBlock::parse(&bytes).map_err(format)?;
    if sb.has_magic() {
        refuse_unknown(&sb)?;
        sb.verify_checksum().map_err(format)?;
    }
    sb.validate(None).map_err(format)?;
    Ok(sb)
}

fn refuse_unknown(sb: &SuperBlock) -> Result<()> {
    let unknown = sb.features().incompat.unsupported(INCOMPAT);
    if unknown.is_empty() {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "the file system has the features: {unknown}"
    )))
}

fn fits_device(sb: &SuperBlock, device: &dyn Device) -> Result<()> {
    let logical = device.geometry().logical_block_bytes;
    if sb.block_size() >= logical {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "file-system blocks of {} bytes on a device with logical blocks of {logical}",
        sb.block_size()
    )))
}
