//! Opening: judging an image before anything else looks at it.
//!
//! There are three verdicts. An image that dioxide would misread is refused. One that it can read
//! but must not write is opened read-only, with a warning that says why. Everything else is opened
//! as asked; what the user should know becomes a warning.
//!
//! Not for: repairing. A journal is replayed before ([`super::replay`]); nothing else is written.
//!
//! Rejected: judging at the first write. Whoever opened read-write learns it then, too late.

use super::fence::Fence;
use super::groups::DescTable;
use super::log::{LIES_ELSEWHERE, is_elsewhere, refuse_journal_device};
use super::mmp::{self, Protection, User};
use super::replay::replay;
use super::span::read_span;
use super::zone::{Zones, journal_blocks};
use super::{Knobs, Mount};
use crate::api::fs::{DataMode, MountOptions};
use crate::inode::{Inode, InodeCache};
use crate::io::clock::Clock;
use crate::io::direct::atomic;
use crate::io::worker::Workers;
use crate::namei::{Deferred, Dentries, Ways};
use crate::stats::Counters;
use crate::sync::inflight::InFlightRegistry;
use crate::sync::rank::RenamingLock;
use crate::sync::rwsem::Presence;
use crate::txn::damage::{self, Damage};
use crate::txn::quota::Quotas;
use crate::{Error, FileType, Place, Result, known};
use crossbeam_utils::CachePadded;
use dioxide_block::{Device, Lane};
use dioxide_format::dir::DirFormat;
use dioxide_format::features::{Compat, Incompat, RoCompat};
use dioxide_format::mmp::{Mmp, MmpState};
use dioxide_format::superblock::{STATE_CLEAN, SUPERBLOCK_OFFSET, SuperBlock};
use dioxide_format::types::Pblk;
use dioxide_journal::buffer::BufferCache;
use dioxide_journal::journal::Journal;
use parking_lot::Mutex;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// What can be read. Of encrypted files all but content and names.
const INCOMPAT: Incompat = known::INCOMPAT
    .union(Incompat::NEEDS_RECOVERY)
    .union(Incompat::ENCRYPT);

/// What can be written. ORPHAN_PRESENT is not a layout but a state, and judged as such. Files under verity are only
/// read, and not verified.
pub(super) const RO_COMPAT: RoCompat = known::RO_COMPAT
    .union(RoCompat::VERITY)
    .union(RoCompat::ORPHAN_PRESENT);

impl Mount {
    /// Opens the file system on a device. Blocks.
    ///
    /// # Errors
    /// See [`crate::Fs::open`].
    pub(crate) fn open(device: Arc<dyn Device>, options: &MountOptions) -> Result<Arc<Mount>> {
        if options.data == DataMode::Journal {
            return Err(Error::Unsupported(
                "data=journal: there are data=ordered and data=writeback".into(),
            ));
        }
        let at = options
            .sb
            .map_or(Some(SUPERBLOCK_OFFSET), |block| block.checked_mul(1024));
        let at = at.ok_or_else(|| Error::Invalid("sb: past the end of any device".into()))?;
        let sb = read_superblock(&*device, at);
        let mut sb = sb.map_err(|error| with_advice(error, options))?;
        fits_device(&sb, &*device)?;
        let mut options = options.with_journal(&sb)?;
        // Before anybody else has them, so that nobody writes past it.
        let fence = Fence::new(device);
        let device: Arc<dyn Device> = fence.clone();
        if let Some(journal) = &mut options.journal_device {
            *journal = fence.beside(journal.clone());
        }
        let options = &options;
        let mut mmp = protect(&device, options, &sb)?;
        if let Some(mmp) = &mut mmp {
            let kept = mmp.keep(fence.clone());
            kept.map_err(|source| dioxide_block::Error::Open {
                path: device.describe().into(),
                what: "no thread for multi-mount protection".into(),
                source,
            })?;
            // Another host may have written while this one waited.
            sb = read_superblock(&*device, at)?;
            fits_device(&sb, &*device)?;
        }
        let is_protected = options.is_protected || mmp.is_some();
        let replayed = replay(device, options, sb, at, is_protected)?;
        // The journal may have had another superblock.
        fits_device(&replayed.sb, &*replayed.device)?;
        let mut mount = Mount::new(replayed.device, options, Arc::new(replayed.sb), at);
        mount.fence = fence;
        mount.mmp = mmp;
        replayed.note.into_iter().for_each(|note| mount.warn(note));
        replayed
            .read_only
            .into_iter()
            .for_each(|why| mount.restrict(why));
        mount.judge(options)?;
        if options.moves_journal {
            mount.learn_journal(Vec::new());
        }
        if mount.has_orphans() {
            mount.clear_orphans();
        }
        let mount = Arc::new_cyclic(|weak| {
            mount.fence.guard(weak);
            mount
        });
        // It may have ended before there was anybody to tell.
        if let Some(writer) = mount.started_writer()
            && writer.journal.aborted().is_some()
        {
            mount.knobs.refuse_writes();
        }
        Ok(mount)
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
        match self.judged(self.recover_orphans()) {
            Ok((done, left)) => {
                if done > 0 {
                    self.warn(format!("{done} orphans were truncated or freed"));
                }
                if left > 0 {
                    let why = match self.has_errors() {
                        true => "are not freed where there are errors",
                        false => "can only be read",
                    };
                    self.warn(format!("{left} orphans {why}, and stay: run e2fsck"));
                }
            }
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
        let (resuid, resgid) = sb.default_reserve();
        Mount {
            block_bits: sb.block_size_log2(),
            block_mask: u64::from(block_bytes) - 1,
            logical_mask: u64::from(device.geometry().logical_block_bytes) - 1,
            atomic: atomic::units_of(device.geometry(), &sb),
            dioread_nolock: options.dioread_nolock,
            read_only: options.read_only.then(|| "opened read-only".to_owned()),
            restricted: None,
            warnings: Vec::new(),
            presence: Presence::of_process(),
            in_flight: InFlightRegistry::of_mount(),
            counters: Counters::new(),
            inodes: InodeCache::new(),
            dentries: Dentries::new(options.name_cache),
            ways: Ways::new(),
            renaming: RenamingLock::new(()),
            deferred: Deferred::default(),
            next_generations: first_generations(options),
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
            counts: None,
            cache: BufferCache::new(device.clone(), block_bytes as usize, options.metadata_cache),
            mmp: None,
            writer: OnceLock::new(),
            starting: Mutex::new(()),
            failed: OnceLock::new(),
            failed_growths: Mutex::default(),
            journal_device: options.journal_device.clone(),
            noload: options.noload,
            barrier: options.barrier,
            discard: options.discard,
            dirsync: options.dirsync,
            commit_interval: options.commit_interval,
            clock: options.clock.clone(),
            errors: options.errors.unwrap_or(sb.errors()),
            dir_reads_left: None,
            closed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            damage: Arc::new(Damage::new(options.clock.clone())),
            reserve: (
                options.resuid.unwrap_or(resuid),
                options.resgid.unwrap_or(resgid),
            ),
            grpid: options.grpid.unwrap_or(sb.has_bsd_groups()),
            keeps_for_maps: options.keeps_for_maps
                && sb.features().incompat.contains(Incompat::EXTENTS),
            lane: Lane::of(&device),
            // That of the mount comes when it is open.
            fence: Fence::new(device.clone()),
            device,
            sb,
        }
    }

    /// Tells the user, once: several who read a damaged block find the same.
    fn warn(&mut self, what: String) {
        if !self.warnings.contains(&what) {
            tracing::warn!("{what}");
            self.warnings.push(what);
        }
    }

    /// Nothing may be written, and the user is told.
    fn restrict(&mut self, why: String) {
        self.read_only.get_or_insert_with(|| why.clone());
        self.restricted.get_or_insert_with(|| why.clone());
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
            self.judge_mmp(options.is_protected || self.mmp.is_some())?;
        }
        self.judge_features();
        self.judge_size();
        self.judge_groups();
        self.judge_quotas();
        self.judge_journal();
        self.judge_options();
        Ok(())
    }

    /// What Linux would heed of the superblock's default mount options where it is not told otherwise.
    fn judge_options(&mut self) {
        if self.read_only.is_some() {
            return;
        }
        let mut unheeded = self.sb.default_data_options().join(",");
        let text = self.sb.mount_opts();
        if !text.is_empty() && !unheeded.is_empty() {
            unheeded.push(',');
        }
        unheeded.push_str(&text);
        if !unheeded.is_empty() {
            self.warn(format!(
                "default mount options in the superblock have no effect: {}",
                unheeded.escape_debug()
            ));
        }
    }

    /// What the superblock says of how the file system was left.
    fn judge_state(&mut self) {
        if self.has_errors() {
            let what = damage::told(self.sb.disk());
            self.warn(format!(
                "errors were found in this file system ({what}): run e2fsck"
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
        let features = self.sb.features();
        let has_clusters = features.ro_compat.contains(RoCompat::BIGALLOC);
        if has_clusters && !features.incompat.contains(Incompat::EXTENTS) {
            // Linux mounts no such file system.
            self.restrict("it has the feature bigalloc, and not the feature extents".into());
        }
        if let Err(error) = self.sb.validate_hash_version() {
            let place = Place::default().at(SUPERBLOCK_OFFSET);
            self.restrict(Error::format(error, place).to_string());
        }
    }

    fn judge_size(&mut self) {
        let size = self.device.geometry().size_bytes;
        let blocks = self.sb.blocks_count();
        if size >> self.block_bits < blocks {
            self.restrict(format!("the device has {size} bytes, the file system {blocks} blocks of {}: its end is missing", self.block_bytes()));
        }
    }

    /// Another host may use the file system; a mount that writes has made sure that none does.
    fn judge_mmp(&mut self, is_protected: bool) -> Result<()> {
        let block = match self.sb.mmp_block() {
            Ok(Some(block)) if !is_protected => block,
            Ok(_) => return Ok(()),
            Err(error) => {
                let error = Error::format(error, Place::default().at(SUPERBLOCK_OFFSET));
                self.restrict(format!("who uses the file system is not known: {error}"));
                return Ok(());
            }
        };
        match mmp::read(&*self.device, &self.sb, block.0) {
            Ok(mmp) if mmp.state() == MmpState::Clean => {}
            Ok(mmp) if self.read_only.is_none() => return Err(mmp::in_use(&*self.device, &mmp)),
            Ok(mmp) => self.warn(format!(
                "the file system is in use by {}: what is read may be changing",
                mmp_user(&mmp)
            )),
            Err(error) => self.restrict(format!("who uses the file system is not known: {error}")),
        }
        Ok(())
    }

    fn judge_groups(&mut self) {
        for error in self.learn_groups() {
            self.restrict(error.to_string());
        }
    }

    /// Where they cannot be counted nothing may change.
    fn judge_quotas(&mut self) {
        if self.read_only.is_none()
            && let Err(error) = Quotas::open(self)
        {
            self.restrict(error.to_string());
        }
    }

    fn judge_journal(&mut self) {
        if !self.sb.features().compat.contains(Compat::HAS_JOURNAL) {
            return;
        }
        if is_elsewhere(&self.sb) && self.journal_device.is_none() {
            // With `noload` it is as if there were none, as in Linux.
            if !self.noload {
                // Who does not write need not be told.
                if self.read_only.is_none() {
                    self.restrict(LIES_ELSEWHERE.into());
                }
                self.restricted.get_or_insert_with(|| LIES_ELSEWHERE.into());
            }
            return;
        }
        match self.look_at_journal() {
            Ok(is_empty) => {
                if !is_empty && !self.sb.needs_recovery() {
                    self.restrict("the journal is not empty: run e2fsck".into());
                }
            }
            Err(error) => self.restrict(error.to_string()),
        }
    }

    /// Checks and remembers where the journal is. Whether it is empty.
    fn look_at_journal(&mut self) -> Result<bool> {
        let log = self.log()?;
        if self.sb.journal_dev() == 0 {
            self.learn_journal(journal_blocks(self, &*self.journal_inode()?)?);
        }
        let superblock = log.read_superblock()?;
        if superblock.s_errno != 0 {
            let errno = superblock.s_errno.cast_signed();
            self.warn(format!(
                "the journal was aborted by an error (s_errno is {errno}): run e2fsck"
            ));
        }
        if !self.noload
            && let Err(error) = Journal::judge(&superblock)
        {
            self.restrict(Error::from(error).to_string());
        }
        Ok(superblock.is_empty())
    }

    pub(super) fn journal_inode(&self) -> Result<Arc<Inode>> {
        let in_superblock = Place::default().at(SUPERBLOCK_OFFSET);
        let ino = self
            .sb
            .journal_inum()
            .ok_or_else(|| no_journal(in_superblock, "s_journal_inum is 0"))?;
        let inode = self.inode(ino)?;
        if inode.file_type() == FileType::Regular && !inode.has_inline_data() {
            Ok(inode)
        } else {
            Err(no_journal(inode.place(), "it is no regular file"))
        }
    }
}

pub(super) fn no_journal(place: Place, what: &str) -> Error {
    Error::Corrupt {
        structure: "journal",
        place,
        what: what.to_owned(),
    }
}

/// Makes sure that no other host uses a file system that will be written to.
///
/// # Errors
/// `EBUSY` if one does. Damage is no error: the file system is then opened read-only.
fn protect(
    device: &Arc<dyn Device>,
    options: &MountOptions,
    sb: &SuperBlock,
) -> Result<Option<Protection>> {
    let writes = !options.read_only && options.sb.is_none() && !device.geometry().read_only;
    let unknown = sb.features().ro_compat.unsupported(RO_COMPAT);
    if !writes || !unknown.is_empty() || options.is_protected {
        return Ok(None);
    }
    let Ok(Some(block)) = sb.mmp_block() else {
        return Ok(None);
    };
    let mut tell = |why: &str| {
        if let Some(tell) = options.on_wait {
            tell(why);
        }
    };
    match Protection::take(device, sb, block.0, User::Mount, &mut tell) {
        Ok(protection) => Ok(Some(protection)),
        Err(Error::Corrupt { .. } | Error::Checksum { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn mmp_user(mmp: &Mmp) -> String {
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        bytes[..end].escape_ascii().to_string()
    };
    match mmp.state() {
        MmpState::Fsck => "e2fsck, or what resizes it".to_owned(),
        _ => format!(
            "host {} as {}",
            text(&mmp.mmp_nodename),
            text(&mmp.mmp_bdevname)
        ),
    }
}

/// The superblock at byte `at`, if it is one, is intact, and asks for nothing unknown.
pub(super) fn read_superblock(device: &dyn Device, at: u64) -> Result<SuperBlock> {
    let format = |error| Error::format(error, Place::default().at(at));
    let sb = find_superblock(device, at)?;
    refuse_unknown(&sb)?;
    sb.verify_checksum().map_err(format)?;
    sb.validate(None).map_err(format)?;
    Ok(sb)
}

/// What is at byte `at`, if it has a superblock's magic, and is no journal's.
///
/// # Errors
/// [`Error::Invalid`] if there is none, for which [`place_advice`] knows a way out.
pub(crate) fn find_superblock(device: &dyn Device, at: u64) -> Result<SuperBlock> {
    let size = device.geometry().size_bytes;
    if at.saturating_add(SuperBlock::SIZE as u64) > size {
        let why = format!("there are {size} bytes");
        return Err(Error::Invalid(none_there(at, &why)));
    }
    let bytes = read_span(device, at, SuperBlock::SIZE, "superblock")?;
    let sb = SuperBlock::parse(&bytes);
    let sb = sb.map_err(|error| Error::format(error, Place::default().at(at)))?;
    refuse_journal_device(device, &sb)?;
    if !sb.has_magic() {
        let found = sb.disk().s_magic;
        let why = format!("s_magic is {found:#06x}");
        return Err(Error::Invalid(none_there(at, &why)));
    }
    Ok(sb)
}

/// In words, for an [`Error::Invalid`], as `mount(2)` has it: what holds no file system is not damaged.
pub(crate) fn none_there(at: u64, why: &str) -> String {
    format!("no superblock of ext2, ext3 or ext4 at byte {at} ({why})")
}

/// The way out where there is no superblock: it depends on what was said of the place.
pub(crate) fn place_advice(img_offset: u64) -> String {
    match img_offset {
        0 => "; where the file system begins further in, say so (--img-offset, img_offset=)".into(),
        begin => {
            format!(" behind byte {begin} (img_offset); `fdisk -l` tells where partitions begin")
        }
    }
}

fn with_advice(error: Error, options: &MountOptions) -> Error {
    let Error::Invalid(what) = error else {
        return error;
    };
    let begin = place_advice(options.img_offset);
    let backup = match options.sb {
        None => "where the superblock is lost, name a backup (--sb, sb=)",
        Some(_) => "sb counts KiB: 8193 with blocks of 1 KiB, 131072 with blocks of 4 KiB",
    };
    Error::Invalid(format!("{what}{begin}; {backup}"))
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

/// Where generations begin: another place at each mount, unless all is to be the same.
fn first_generations<const N: usize>(options: &MountOptions) -> [CachePadded<AtomicU32>; N] {
    let first = match &options.clock {
        Clock::Still(_) => 0,
        Clock::Kept(ns) => ns.load(Ordering::Relaxed) as u32,
        Clock::Real => std::hash::RandomState::new().build_hasher().finish() as u32,
    };
    std::array::from_fn(|_| AtomicU32::new(first).into())
}

pub(super) fn fits_device(sb: &SuperBlock, device: &dyn Device) -> Result<()> {
    let logical = device.geometry().logical_block_bytes;
    if sb.block_size() >= logical {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "file-system blocks of {} bytes on a device with logical blocks of {logical}",
        sb.block_size()
    )))
}
