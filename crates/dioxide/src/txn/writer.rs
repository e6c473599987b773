//! What changes metadata, made at the first change of a mount, and its clean end.

use super::orphan::Orphans;
use super::quota::Quotas;
use super::superblock;
use super::sync::first_of;
use crate::alloc::{BlockAllocator, Groups, InodeAllocator};
use crate::mount::Mount;
use crate::namei::xattr::Sharing;
use crate::sync::rank::{self, Rank, XattrsLock};
use crate::{Error, Result, Shortage};
use dioxide_format::features::{Compat, Incompat, RoCompat};
use dioxide_format::superblock::STATE_CLEAN;
use dioxide_format::types::Pblk;
use dioxide_journal::buffer::BufferCache;
use dioxide_journal::journal::{Handle, Journal, JournalOptions};
use dioxide_journal::transaction::Tid;
use dioxide_journal::{Asked, Edit, Kind};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The parts of a mount that change metadata.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) journal: Journal,
    pub(crate) blocks: Arc<BlockAllocator>,
    pub(crate) inodes: InodeAllocator,
    pub(crate) orphans: Orphans,
    pub(crate) quotas: Quotas,
    /// See [`superblock::ByUse`].
    feature_credits: u32,
    /// Held while attributes that inodes share are changed; after handle start and before the orphans.
    pub(crate) xattrs: XattrsLock<Sharing>,
    has_journal: bool,
    /// Freed blocks are discarded once that is committed.
    discard: bool,
    /// Where what is written must not depend on when a transaction was committed: those that were, and have freed blocks.
    kept_back: Option<Arc<Mutex<Vec<u32>>>>,
    /// There is one transaction only, and nothing is written but by it: it may use again what it frees.
    pub(crate) uses_freed: bool,
    /// Files that are being freed now.
    ending: AtomicUsize,
}

/// Counts a file that is being freed.
pub(crate) struct Ending<'w>(&'w Writer);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.ending.fetch_sub(1, Ordering::Release);
    }
}

/// What is tried again when it found no space.
pub(crate) struct Tries {
    left: u32,
}

impl Default for Tries {
    fn default() -> Tries {
        Tries {
            left: COMMITS_FOR_SPACE,
        }
    }
}

impl Tries {
    /// Whether there may be space now; commits what may have set some free. No handle is open.
    pub(crate) fn another(
        &mut self,
        mount: &Mount,
        writer: &Writer,
        short: &Shortage,
    ) -> Result<bool> {
        // Values that found room where what is to name them did not.
        mount.reap_values(writer)?;
        if self.left == 0 || !short.may_pass() {
            return Ok(false);
        }
        // Where there is nothing to commit, what there was may have been committed since the try.
        self.left = match writer.commit_for_space(mount)? {
            true => self.left - 1,
            false => 0,
        };
        Ok(true)
    }
}

/// Most commits that one request for space waits for.
const COMMITS_FOR_SPACE: u32 = 3;
/// Who needs space waits so long for others to free files, and looks so often.
const MOST_WAIT: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(1);

impl Mount {
    /// What changes metadata. Made at the first call, which marks the file system as in use. Blocks.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] when nothing may be written; [`Error::Unsupported`] for a journal that
    /// cannot be; the device's; damage in the descriptors or the journal.
    pub(crate) fn writer(&self) -> Result<&Writer> {
        self.heed_passed_over();
        self.check_writable()?;
        if let Some(writer) = self.writer.get() {
            return Ok(writer);
        }
        let _one = self.starting.lock();
        if let Some(writer) = self.writer.get() {
            return Ok(writer);
        }
        let writer = Writer::start(self)?;
        writer.journal.on_abort(Box::new(self.refuser()));
        Ok(self.writer.get_or_init(|| writer))
    }

    /// Tries something, again after commits that may have set space free that it lacked. No handle is open.
    ///
    /// # Errors
    /// Those of the last try; those of the journal.
    pub(crate) fn with_space<T>(
        &self,
        writer: &Writer,
        mut try_once: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut tries = Tries::default();
        loop {
            match try_once() {
                Err(Error::NoSpace(short)) if tries.another(self, writer, &short)? => {}
                result => return result,
            }
        }
    }

    /// The writer, if anything was changed.
    pub(crate) fn started_writer(&self) -> Option<&Writer> {
        self.writer.get()
    }

    /// # Errors
    /// [`Error::ReadOnly`], with the reason.
    pub(crate) fn check_writable(&self) -> Result<()> {
        match self.why_read_only() {
            Some(why) => Err(Error::ReadOnly(why.to_owned())),
            None => Ok(()),
        }
    }

    /// Why nothing may be written: as it was opened, or since an error.
    pub(crate) fn why_read_only(&self) -> Option<&str> {
        self.read_only.as_deref().or_else(|| self.failure())
    }

    /// The failure after which nothing is written any more.
    pub(crate) fn failure(&self) -> Option<&str> {
        match self.failed.get() {
            Some(why) => Some(why),
            None => self.started_writer()?.journal.aborted(),
        }
    }

    /// Clusters that are kept for the maps of files: as in ext4 2 %, at most 4,096, and none where no
    /// file has extents or [`MountOptions::keep_for_maps`](crate::MountOptions::keep_for_maps) says so.
    pub(crate) fn aside_clusters(&self) -> u64 {
        let clusters = self.sb.blocks_count() / u64::from(self.sb.cluster_ratio());
        match self.keeps_for_maps {
            true => (clusters / 50).min(4096),
            false => 0,
        }
    }

    /// Reads metadata as an [`Edit`] that changes nothing.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader(&self.cache)
    }

    /// Makes everything durable, empties the log and marks the file system as clean. Blocks.
    ///
    /// # Errors
    /// Those of the device and the journal; the file system then stays as after a crash.
    pub(crate) fn close(&self) -> Result<()> {
        let mut reaped = Ok(());
        if let Some(writer) = self.started_writer() {
            reaped = self.reap_values(writer);
            self.finish_truncates(writer);
        }
        let synced = self.sync();
        first_of([reaped, synced])?;
        // What fails from here on is said once.
        self.closed.store(true, Ordering::Relaxed);
        let Some(writer) = self.started_writer() else {
            return Ok(());
        };
        writer.journal.flush()?;
        superblock::rewrite(self, &mut |sb| {
            sb.set_free_blocks_count(writer.blocks.free_clusters() * u64::from(sb.cluster_ratio()));
            sb.set_free_inodes_count(writer.inodes.free_inodes() as u32);
            self.damage.record_in(sb);
            let disk = sb.disk_mut();
            disk.s_state |= STATE_CLEAN & self.sb.state();
            disk.s_feature_incompat &= !Incompat::NEEDS_RECOVERY.bits();
            if writer.orphans.is_empty() {
                disk.s_feature_ro_compat &= !RoCompat::ORPHAN_PRESENT.bits();
            }
        })
    }
}

impl Writer {
    fn start(mount: &Mount) -> Result<Writer> {
        let sb = &mount.sb;
        let has_journal = sb.features().compat.contains(Compat::HAS_JOURNAL) && !mount.noload;
        let options = JournalOptions {
            commit_interval: mount.commit_interval,
            barrier: mount.barrier,
            checksum_v3: sb.features().metadata_csum(),
            wide: sb.is_64bit(),
            spares_fast_commits: sb.features().compat.contains(Compat::FAST_COMMIT),
            kept_clock: mount.clock.kept(),
            ..JournalOptions::default()
        };
        let log = match has_journal {
            true => Some(mount.log()?),
            false => None,
        };
        Writer::with(mount, has_journal, |orphans| {
            let cache = mount.cache.clone();
            let journal = match log {
                Some(log) => {
                    let super_block = log.read_superblock()?;
                    let (device, map) = (log.device().clone(), log.map().clone());
                    Journal::open(device, map, super_block, cache, &options)?
                }
                None => Journal::none(cache, &options)?,
            };
            // Last: where there is nothing that takes a change, there is none that a close could end.
            mark_in_use(mount, has_journal, orphans.in_file())?;
            Ok(journal)
        })
    }

    /// The parts around a journal, which is made last. Blocks.
    pub(crate) fn with(
        mount: &Mount,
        has_journal: bool,
        journal: impl FnOnce(&Orphans) -> Result<Journal>,
    ) -> Result<Writer> {
        let groups = Groups::new(mount.sb.clone(), mount.journal_zone());
        let mut groups = groups.telling(mount.damage.clone());
        let totals = groups.totals(&mount.reader())?;
        let groups = Arc::new(groups);
        let blocks = Arc::new(BlockAllocator::new(groups, totals, mount.aside_clusters()));
        let inodes = InodeAllocator::new(blocks.clone(), totals);
        let orphans = Orphans::open(mount)?;
        let quotas = Quotas::open(mount)?;
        let journal = journal(&orphans)?;
        Ok(Writer {
            journal,
            blocks,
            inodes,
            orphans,
            quotas,
            feature_credits: superblock::ByUse::credits(&mount.sb),
            xattrs: XattrsLock::default(),
            has_journal,
            ending: AtomicUsize::new(0),
            discard: mount.discard,
            uses_freed: false,
            kept_back: mount.clock.is_still().then(Arc::default),
        })
    }

    /// Credits that each handle has besides those that are asked for: of quota, and of features that come by use.
    fn own_credits(&self) -> u32 {
        self.quotas.credits() + self.feature_credits
    }

    /// Begins a change of at most `credits` metadata blocks; those of quota are added. Blocks; no lock
    /// below the handle's may be held.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] after an abort.
    pub(crate) fn begin(&self, credits: u32) -> Result<Handle<'_>> {
        rank::may_wait(Rank::Handle);
        Ok(self.journal.start(credits + self.own_credits())?)
    }

    /// Whether a change can ask for so many credits.
    pub(crate) fn may_have(&self, credits: u32) -> bool {
        credits + self.own_credits() <= self.journal.max_credits()
    }

    /// Most credits that a change should ask for: a part of what a transaction can have, so that
    /// changes do not wait for each other's room.
    pub(crate) fn ample_credits(&self) -> u32 {
        let max = self
            .journal
            .max_credits()
            .saturating_sub(self.own_credits());
        (max / 4).clamp(64.min(max), 1024)
    }

    /// When blocks that `handle` frees may be used again. Without a journal too: what was written of them as metadata may be
    /// on its way to the device, and would come after the data of who gets them.
    pub(crate) fn release(&self, handle: &Handle<'_>) -> crate::alloc::Release {
        match self.uses_freed {
            true => crate::alloc::Release::Now,
            // The number is only compared.
            false => crate::alloc::Release::After(handle.tid().0 as u32),
        }
    }

    /// Who records a claim by `handle`, if what it frees of that may be used again at once. Not where freed blocks are to be
    /// discarded, nor where what is written must not depend on when a transaction begins.
    pub(crate) fn recorder(&self, handle: &Handle<'_>) -> Option<u32> {
        let may = self.has_journal && !self.discard && self.kept_back.is_none();
        may.then(|| handle.tid().0 as u32)
    }

    /// Has the blocks that `handle` frees become allocatable when it is durable, or from then on when there are no others.
    pub(crate) fn release_on_commit(&self, mount: &Mount, handle: &mut Handle<'_>) {
        let tid = handle.tid().0 as u32;
        handle.on_commit(match &self.kept_back {
            None => {
                let releaser = self.releaser(mount);
                Box::new(move || releaser.release(tid))
            }
            Some(kept_back) => {
                let kept_back = kept_back.clone();
                Box::new(move || {
                    let mut kept_back = kept_back.lock();
                    if kept_back.last() != Some(&tid) {
                        kept_back.push(tid);
                    }
                })
            }
        });
    }

    fn releaser(&self, mount: &Mount) -> Releaser {
        Releaser {
            blocks: self.blocks.clone(),
            discarder: self.discard.then(|| mount.discarder()),
        }
    }

    /// To be held while a file is freed.
    pub(crate) fn ending(&self) -> Ending<'_> {
        self.ending.fetch_add(1, Ordering::Relaxed);
        Ending(self)
    }

    /// Commits what is pending if that sets free blocks that can be had, or waits until others have freed some. Whether
    /// there can be more now. No handle is open.
    pub(crate) fn commit_for_space(&self, mount: &Mount) -> Result<bool> {
        mount.free_deferred();
        if self.blocks.pending_clusters() == 0 && !self.wait_for_endings() {
            return Ok(false);
        }
        rank::may_wait(Rank::Handle);
        self.journal.force_commit()?;
        if let Some(kept_back) = &self.kept_back {
            let (releaser, all) = (self.releaser(mount), std::mem::take(&mut *kept_back.lock()));
            all.into_iter().for_each(|tid| releaser.release(tid));
        }
        Ok(true)
    }

    /// Waits for what is pending or can be had, as long as files are being freed. Whether any were.
    fn wait_for_endings(&self) -> bool {
        let until = Instant::now() + MOST_WAIT;
        let openings = self.blocks.openings();
        let mut any = false;
        while self.ending.load(Ordering::Acquire) > 0 && Instant::now() < until {
            any = true;
            if self.blocks.pending_clusters() > 0 || self.blocks.openings() != openings {
                break;
            }
            std::thread::sleep(LOOK);
        }
        any
    }

    /// Waits until a transaction is durable, where there is a journal to make it so.
    pub(crate) fn make_durable(&self, tid: Tid) -> Result<()> {
        if self.has_journal && !self.is_durable(tid) {
            rank::may_wait(Rank::Handle);
            self.journal.wait_commit(tid)?;
        }
        Ok(())
    }

    /// Whether a transaction is durable already.
    pub(crate) fn is_durable(&self, tid: Tid) -> bool {
        tid <= self.journal.committed()
    }
}

/// Says on the disk that the file system is in use, before anything in it changes.
fn mark_in_use(mount: &Mount, has_journal: bool, orphan_file: bool) -> Result<()> {
    superblock::rewrite(mount, &mut |sb| {
        let disk = sb.disk_mut();
        if has_journal {
            disk.s_feature_incompat |= Incompat::NEEDS_RECOVERY.bits();
        } else {
            disk.s_state &= !STATE_CLEAN;
        }
        if orphan_file {
            disk.s_feature_ro_compat |= RoCompat::ORPHAN_PRESENT.bits();
        }
        disk.s_mnt_count = disk.s_mnt_count.saturating_add(1);
        superblock::set_mount_time(mount, disk);
    })
}

/// Discards clusters; what goes wrong is only logged, for the blocks are free either way.
pub(crate) struct Discarder {
    device: Arc<dyn dioxide_block::Device>,
    block_bits: u32,
    cluster_ratio: u32,
    blocks_count: u64,
}

impl Discarder {
    /// Where a run of clusters begins on the device, and how long it is. The last cluster may end behind the file system, where
    /// somebody else's bytes are.
    fn bytes(&self, start: Pblk, clusters: u32) -> (u64, u64) {
        let blocks = u64::from(clusters) * u64::from(self.cluster_ratio);
        let blocks = blocks.min(self.blocks_count.saturating_sub(start.0));
        (start.0 << self.block_bits, blocks << self.block_bits)
    }

    fn discard(&self, start: Pblk, clusters: u32) -> Result<()> {
        let (at, len) = self.bytes(start, clusters);
        Ok(self.device.discard(at, len)?)
    }

    fn run(&self, start: Pblk, clusters: u32) {
        if let Err(error) = self.discard(start, clusters) {
            tracing::debug!(%error, block = start.0, clusters, "discard failed");
        }
    }
}

impl Mount {
    /// Discards free blocks of a range of bytes, in runs of at least `min_len` bytes.
    ///
    /// # Errors
    /// See [`crate::Fs::trim`].
    pub(crate) fn trim(&self, bytes: std::ops::Range<u64>, min_len: u64) -> Result<u64> {
        let writer = self.writer()?;
        let cluster = u64::from(self.sb.cluster_size());
        let start = bytes.start.div_ceil(self.block_bytes());
        let end = (bytes.end >> self.block_bits).max(start);
        let least = min_len.div_ceil(cluster).clamp(1, u32::MAX.into()) as u32;
        let discarder = self.discarder();
        let mut discard = |run: crate::alloc::Run| discarder.discard(run.start, run.len);
        let blocks = Pblk(start)..Pblk(end);
        let clusters = writer
            .blocks
            .trim(&self.reader(), blocks, least, &mut discard)?;
        Ok(clusters * cluster)
    }

    fn discarder(&self) -> Discarder {
        Discarder {
            device: self.device.clone(),
            block_bits: self.block_bits,
            cluster_ratio: self.sb.cluster_ratio(),
            blocks_count: self.sb.blocks_count(),
        }
    }
}

/// Makes freed blocks allocatable.
struct Releaser {
    blocks: Arc<BlockAllocator>,
    discarder: Option<Discarder>,
}

impl Releaser {
    /// What this transaction has freed. It is durable.
    fn release(&self, tid: u32) {
        self.blocks.committed(tid, &mut |run| {
            if let Some(discarder) = &self.discarder {
                discarder.run(run.start, run.len);
            }
        });
    }
}

/// Metadata for who only looks.
pub(crate) struct Reader<'a>(&'a BufferCache);

impl Reader<'_> {
    fn refuse<T>() -> dioxide_journal::Result<T> {
        Err(dioxide_journal::Error::OutOfCredits { credits: 0 })
    }
}

impl Edit for Reader<'_> {
    fn block_bytes(&self) -> usize {
        self.0.block_bytes()
    }

    fn read(&self, block: Pblk, kind: &dyn Kind) -> dioxide_journal::Result<Arc<[u8]>> {
        self.0.read(block, kind)
    }

    fn modify(
        &mut self,
        _: Pblk,
        _: &dyn Kind,
        _: &mut dyn FnMut(&mut [u8]) -> dioxide_journal::Result<()>,
    ) -> dioxide_journal::Result<()> {
        Self::refuse()
    }

    fn change_at_close(
        &mut self,
        _: Pblk,
        _: &dyn Kind,
        _: &mut Asked,
    ) -> dioxide_journal::Result<()> {
        Self::refuse()
    }

    fn create(&mut self, _: Pblk, _: &dyn Kind, _: &[u8]) -> dioxide_journal::Result<()> {
        Self::refuse()
    }

    fn forget(&mut self, _: Pblk) -> dioxide_journal::Result<()> {
        Self::refuse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dioxide_block::mem::MemDevice;

    #[test]
    fn discard_ends_with_the_file_system() {
        let discarder = Discarder {
            device: Arc::new(MemDevice::new(1 << 20)),
            block_bits: 10,
            cluster_ratio: 16,
            blocks_count: 1000,
        };
        assert_eq!(discarder.bytes(Pblk(960), 2), (960 << 10, 32 << 10));
        assert_eq!(discarder.bytes(Pblk(976), 2), (976 << 10, 24 << 10));
    }
}
