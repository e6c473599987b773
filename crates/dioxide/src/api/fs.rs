//! Opening a file system, and what is asked of it as a whole.

use crate::io::clock::Clock;
use crate::io::direct::policy::Policy;
use crate::io::ioend::CompletionMode;
use crate::mount::Mount;
use crate::mount::image::{open_image, told_bytes};
use crate::mount::log::refuse_needless;
use crate::mount::replay::bytes_in_log;
use crate::txn::damage::DamageMet;
use crate::{
    Backend, DirEntry, Error, Metadata, Queue, QueueOptions, Result, SetAttributes, StatFs, Stats,
    Timestamp, Xattr,
};
use dioxide_block::Device;
use dioxide_block::file::FileOptions;
use dioxide_format::superblock::{ErrorPolicy, SuperBlock};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

/// How to open a file system.
///
/// The defaults: read-write, backend chosen by probing, policy `best`, inline completion, simple
/// path on, dioread_nolock, 8 workers.
#[derive(Clone, Debug)]
pub struct MountOptions {
    pub(crate) read_only: bool,
    pub(crate) backend: Backend,
    pub(crate) img_offset: u64,
    pub(crate) sb: Option<u64>,
    pub(crate) noload: bool,
    pub(crate) policy: Policy,
    pub(crate) completion: CompletionMode,
    pub(crate) simple: bool,
    pub(crate) dioread_nolock: bool,
    pub(crate) workers: usize,
    pub(crate) populate: bool,
    pub(crate) may_map: bool,
    pub(crate) barrier: bool,
    pub(crate) discard: bool,
    pub(crate) dirsync: bool,
    pub(crate) commit_interval: Duration,
    pub(crate) clock: Clock,
    pub(crate) errors: Option<ErrorPolicy>,
    pub(crate) data: DataMode,
    pub(crate) resuid: Option<u32>,
    pub(crate) resgid: Option<u32>,
    pub(crate) grpid: Option<bool>,
    pub(crate) journal_path: Option<PathBuf>,
    pub(crate) journal_device: Option<Arc<dyn Device>>,
    pub(crate) on_wait: Option<fn(&str)>,
    pub(crate) metadata_cache: usize,
    pub(crate) name_cache: Option<usize>,
    /// The blocks of the journal may be freed: who sets it gives it others.
    pub(crate) moves_journal: bool,
    /// Other hosts are kept away by who opens it.
    pub(crate) is_protected: bool,
    pub(crate) keeps_for_maps: bool,
}

const METADATA_CACHE_BYTES: usize = 32 << 20;

/// `data=`: what a commit orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataMode {
    /// `ordered`: data is on the device before the transaction that makes a file lead to it.
    #[default]
    Ordered,
    /// `writeback`: nothing is promised. dioxide writes data before it maps it in any case, so that this
    /// is the same as `ordered`.
    Writeback,
    /// `journal`: data goes through the journal. Refused by [`Fs::open`]: dioxide does not do it.
    Journal,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            read_only: false,
            backend: Backend::Auto,
            img_offset: 0,
            sb: None,
            noload: false,
            policy: Policy::default(),
            completion: CompletionMode::default(),
            simple: true,
            dioread_nolock: true,
            workers: 8,
            populate: false,
            may_map: false,
            barrier: true,
            discard: false,
            dirsync: false,
            commit_interval: Duration::from_secs(5),
            clock: Clock::Real,
            errors: None,
            data: DataMode::default(),
            resuid: None,
            resgid: None,
            grpid: None,
            journal_path: None,
            journal_device: None,
            on_wait: None,
            metadata_cache: METADATA_CACHE_BYTES,
            name_cache: None,
            moves_journal: false,
            is_protected: false,
            keeps_for_maps: true,
        }
    }
}

impl MountOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// `ro`: never write.
    pub fn read_only(mut self, on: bool) -> Self {
        self.read_only = on;
        self
    }

    /// How bytes move between memory and the image.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Where the file system begins in the image, in bytes: for partitioned images.
    pub fn img_offset(mut self, bytes: u64) -> Self {
        self.img_offset = bytes;
        self
    }

    /// `sb=`: the block, in units of 1 KiB as in `mount`, of a backup superblock to use instead of
    /// the first, which is at 1. Opens read-only.
    pub fn superblock_at(mut self, block_1k: u64) -> Self {
        self.sb = (block_1k != 1).then_some(block_1k);
        self
    }

    /// `noload` (or `norecovery`): leave a journal that needs recovery alone. The file system is shown
    /// as it was before the journal, which may be inconsistent, and is read-only.
    /// Any other file system opens for writing, without its journal: after a crash run e2fsck.
    pub fn noload(mut self, on: bool) -> Self {
        self.noload = on;
        self
    }

    /// Which rules decide about inode locks. [`Fs::set_policy`] changes it later.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Where the completion of queued writes runs. [`Fs::set_completion`] changes it later.
    pub fn completion(mut self, mode: CompletionMode) -> Self {
        self.completion = mode;
        self
    }

    /// Whether small reads take the simple path. [`Fs::set_simple`] changes it later.
    pub fn simple(mut self, on: bool) -> Self {
        self.simple = on;
        self
    }

    /// `dioread_nolock` or `dioread_lock`: matters to the policies that ask for it.
    pub fn dioread_nolock(mut self, on: bool) -> Self {
        self.dioread_nolock = on;
        self
    }

    /// Threads that run what would block a queue, and at most as many again that run deferred completions; started at first need.
    /// At least 1.
    pub fn workers(mut self, threads: usize) -> Self {
        self.workers = threads.max(1);
        self
    }

    /// Fill the page tables of a mapping when it is opened, instead of at first touch.
    pub fn populate(mut self, on: bool) -> Self {
        self.populate = on;
        self
    }

    /// Lets [`Backend::Auto`] choose a mapping for an image in memory: small requests are copies where the image has
    /// pages, and holes take no memory. For programs, not libraries: it installs a process-wide `SIGBUS` handler.
    pub fn may_map(mut self, on: bool) -> Self {
        self.may_map = on;
        self
    }

    /// `barrier` or `nobarrier`: whether the device's cache is flushed where durability needs it. Without,
    /// a power cut may lose what was synced, and damage the file system.
    pub fn barrier(mut self, on: bool) -> Self {
        self.barrier = on;
        self
    }

    /// `discard`: tell the device which blocks were freed, once that is durable.
    pub fn discard(mut self, on: bool) -> Self {
        self.discard = on;
        self
    }

    /// `dirsync`: changes of directories are durable when the call that makes them returns.
    pub fn dirsync(mut self, on: bool) -> Self {
        self.dirsync = on;
        self
    }

    /// `commit=`: how long a change stays in memory at most, if nobody syncs it. Zero commits each step of a change before the
    /// next one begins, which is slow, and shows what a crash between them leaves (`-o commit=0` is the default of 5 s).
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.commit_interval = interval;
        self
    }

    /// Stamps this time on all that changes, instead of the time that it is: for images that are to be the
    /// same whenever they are made. From 1901 to 2262. Blocks that are freed are used again only when there are no others, since when the
    /// change that freed them is committed depends on what else the machine does.
    pub fn clock(mut self, time: Timestamp) -> Self {
        let ns = i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
        self.clock = Clock::Still(ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64);
        self
    }

    /// Stamps the time that is kept there, in nanoseconds since 1970: for tests that write the same each time. Blocks that are freed
    /// are used again as without it.
    #[doc(hidden)]
    pub fn kept_clock(mut self, ns: Arc<AtomicI64>) -> Self {
        self.clock = Clock::Kept(ns);
        self
    }

    /// The caller keeps everybody else off the device (one without a name yet, say): multi-mount protection is neither
    /// checked nor waited for, and its block stays as it is. Default false.
    pub fn protected(mut self, protected: bool) -> Self {
        self.is_protected = protected;
        self
    }

    /// Whether some free blocks are kept for the maps of files, as in ext4: 2 %, at most 4,096 clusters. Without them a file system can
    /// be filled to its last block; then what makes a file smaller may fail for want of one. Default true.
    pub fn keep_for_maps(mut self, keep: bool) -> Self {
        self.keeps_for_maps = keep;
        self
    }

    /// `errors=`: what to do when metadata turns out damaged. By default what the superblock says.
    /// [`ErrorPolicy::Panic`] fails every call from there on with [`Error::Stopped`](crate::Error::Stopped), reads too; it never
    /// ends the process. What was found is recorded in the superblock, unless the mount is read-only from the
    /// start: then the policy does nothing.
    pub fn errors(mut self, policy: ErrorPolicy) -> Self {
        self.errors = Some(policy);
        self
    }

    /// `data=`.
    pub fn data(mut self, mode: DataMode) -> Self {
        self.data = mode;
        self
    }

    /// `resuid=`: who may use the reserved blocks, see [`crate::OpenOptions::user`]. By default whom
    /// the superblock names.
    pub fn resuid(mut self, uid: u32) -> Self {
        self.resuid = Some(uid);
        self
    }

    /// `resgid=`: the group that may. As [`MountOptions::resuid`].
    pub fn resgid(mut self, gid: u32) -> Self {
        self.resgid = Some(gid);
        self
    }

    /// New files get their directory's group (`grpid`) or their maker's (`nogrpid`). With `grpid` a new directory does
    /// not inherit the setgid bit, as in Linux; with `nogrpid` a directory with that bit still hands on its group.
    /// By default what the superblock says.
    pub fn grpid(mut self, on: bool) -> Self {
        self.grpid = Some(on);
        self
    }

    /// `journal_path=`: the image or device that holds the journal, for a file system whose journal is
    /// not in itself. Without, such a file system opens read-only, but with [`MountOptions::noload`], which does
    /// without a journal. For others it is an error.
    pub fn journal_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.journal_path = Some(path.into());
        self
    }

    /// As [`MountOptions::journal_path`], a device that is open already.
    pub fn journal_device(mut self, device: Arc<dyn Device>) -> Self {
        self.journal_device = Some(device);
        self
    }

    /// Is told, before it waits for many seconds, why opening does so: multi-mount protection.
    pub fn on_wait(mut self, tell: fn(&str)) -> Self {
        self.on_wait = Some(tell);
        self
    }

    /// How many bytes of metadata blocks (inode tables, directories, bitmaps, extent trees) are kept in memory at most,
    /// beside those that wait for the journal. 32 MiB by default. Where a working set of metadata is larger, each miss
    /// is a read of the device and a checksum: a directory of ten million names has 400 MB.
    pub fn metadata_cache(mut self, bytes: usize) -> Self {
        self.metadata_cache = bytes;
        self
    }

    /// How many bytes of names that were looked up are kept in memory at most. Memory is taken when there are names for it, some 60 bytes
    /// for one of 13 bytes, so that a directory of ten million takes 0.6 GiB. By default a sixteenth
    /// of the machine's memory, or of what its container may use, but 1 GiB at most. Names of more than 233 bytes are not kept.
    pub fn name_cache(mut self, bytes: usize) -> Self {
        self.name_cache = Some(bytes);
        self
    }

    /// The journal's device is open, if this file system has one.
    pub(crate) fn with_journal(&self, sb: &SuperBlock) -> Result<MountOptions> {
        let mut options = self.clone();
        if self.journal_path.is_some() || self.journal_device.is_some() {
            refuse_needless(sb)?;
        }
        if let Some(path) = &self.journal_path
            && self.journal_device.is_none()
        {
            let file_options = FileOptions {
                img_offset: 0,
                may_map: false,
                ..self.file_options()
            };
            let device = open_image(path, &file_options)?;
            options.journal_device = Some(device);
        }
        Ok(options)
    }

    fn file_options(&self) -> FileOptions {
        FileOptions {
            backend: self.backend,
            write: !self.read_only,
            img_offset: self.img_offset,
            populate: self.populate,
            may_map: self.may_map,
            ..FileOptions::default()
        }
    }
}

/// Opens what the file system has that begins inside an image. What follows may be other partitions, which others may have.
fn open_part(path: &Path, options: &MountOptions) -> Result<Arc<dyn Device>> {
    let mut file_options = options.file_options();
    let told = told_bytes(path, options.img_offset);
    file_options.size_bytes = told.map(|(told, _)| told);
    let device = open_image(path, &file_options)?;
    // If it grew just before a crash, only the journal knows.
    if let Some((told, rest)) = told
        && let Some(size) = bytes_in_log(&device, options)
        && told < size
        && size <= rest
    {
        drop(device);
        file_options.size_bytes = Some(size);
        return Ok(open_image(path, &file_options)?);
    }
    Ok(device)
}

/// A mounted file system. Cheap to clone.
///
/// It does not go through `fork` without `exec`: its threads stay behind, both processes would write to the image, and the
/// first that ends gives the lock on it back. Who becomes a daemon forks before opening it.
///
/// Threads that it starts (workers, the journal's, one that keeps the time) run where the process's first thread may, not where the
/// thread may that needed them: one that is kept on a processor keeps it.
///
/// [`Fs::close`] ends it cleanly. When the last clone and file are only dropped, what was changed is
/// committed as far as that is possible, and the file system stays marked as in use: whoever opens it
/// next replays its journal.
#[derive(Clone, Debug)]
pub struct Fs(pub(crate) Arc<Mount>);

const IN_USE: Error = Error::Busy("files, queues or other handles are open");

/// Why [`Fs::try_close`] did not end the mount as it should. As [`Error`], it is what [`Fs::close`] tells.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// Files, queues or other clones are there.
    #[error("{}", IN_USE)]
    Busy(Fs),
    /// The device or the journal failed.
    #[error(transparent)]
    Failed(Error),
}

impl From<CloseError> for Error {
    fn from(error: CloseError) -> Error {
        match error {
            CloseError::Busy(_) => IN_USE,
            CloseError::Failed(error) => error,
        }
    }
}

impl Fs {
    /// Opens an image file or block device. Blocks: it reads metadata, replays the journal and frees orphans, and may wait
    /// some seconds to see that no other host has a file system under multi-mount protection.
    ///
    /// A journal that needs recovery is replayed: on the device where the mount may write; else
    /// what the journal has newer is read from there. A file system with features that dioxide cannot write, or a damaged journal, opens
    /// read-only; [`Fs::warnings`] says so.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if it cannot be opened, is in use, or is locked;
    /// [`Error::Unsupported`](crate::Error::Unsupported) naming the features that dioxide cannot
    /// read, and for [`crate::DataMode::Journal`]; [`Error::Corrupt`](crate::Error::Corrupt) or
    /// [`Error::Checksum`](crate::Error::Checksum) if the superblock is damaged (where group descriptors are, it opens
    /// read-only); [`Error::Invalid`](crate::Error::Invalid) if there is no superblock, and for a
    /// [`MountOptions::journal_path`] where the journal is inside.
    pub fn open(path: impl AsRef<Path>, options: &MountOptions) -> Result<Fs> {
        let path = path.as_ref();
        let device = match options.img_offset != 0 && options.sb.is_none() {
            true => open_part(path, options)?,
            false => open_image(path, &options.file_options())?,
        };
        Fs::open_device(device, options)
    }

    /// Opens a file system on any device; `backend` and `img_offset` of the options have no effect.
    ///
    /// # Errors
    /// As [`Fs::open`].
    pub fn open_device(device: Arc<dyn Device>, options: &MountOptions) -> Result<Fs> {
        Ok(Fs(Mount::open(device, options)?))
    }

    /// The device underneath.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0.device
    }

    /// The superblock as it was when the file system was opened.
    pub fn superblock(&self) -> &SuperBlock {
        &self.0.sb
    }

    /// File-system block in bytes.
    pub fn block_size(&self) -> u32 {
        1 << self.0.block_bits
    }

    /// Why the mount is read-only, if it is.
    pub fn read_only(&self) -> Option<&str> {
        self.0.why_read_only()
    }

    /// The failure after which nothing is written any more, if there was one: the call that met it had it as its error, or, of a
    /// commit in the background, the first sync after it has.
    pub fn failure(&self) -> Option<&str> {
        self.0.failure()
    }

    /// The damage that was met since it was opened.
    pub fn damage(&self) -> DamageMet {
        self.0.damage.met()
    }

    /// What the user should know about this image, a line each.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// `stat`: follows symlinks. Blocks on metadata.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ELOOP`, `ENAMETOOLONG`, or damage on the way.
    pub fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        self.0.call(|| self.0.stat(path.as_ref(), true))
    }

    /// `lstat`: a symlink itself. As [`Fs::metadata`] otherwise.
    ///
    /// # Errors
    /// As [`Fs::metadata`].
    pub fn symlink_metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        self.0.call(|| self.0.stat(path.as_ref(), false))
    }

    /// The entries of a directory in disk order, `.` and `..` included. Blocks on metadata.
    ///
    /// # Errors
    /// As [`Fs::metadata`]; `ENOTDIR`.
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Vec<DirEntry>> {
        self.0.call(|| {
            let inode = self.0.lookup(path.as_ref(), true)?;
            self.0.read_dir(&inode, path.as_ref())
        })
    }

    /// The target of a symlink. Blocks on metadata.
    ///
    /// # Errors
    /// As [`Fs::metadata`]; `EINVAL` if it is no symlink.
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.0.call(|| self.0.lookup_link(path.as_ref()))
    }

    /// All extended attributes of a file; symlinks are followed. Blocks on metadata and on the file's lock.
    ///
    /// # Errors
    /// As [`Fs::metadata`]; [`Error::Unsupported`](crate::Error::Unsupported) for more than 16 MiB of values.
    pub fn xattrs(&self, path: impl AsRef<[u8]>) -> Result<Vec<Xattr>> {
        self.node(path)?.xattrs()
    }

    /// `listxattr`: the names of those that [`Fs::xattrs`] gives, without reading any value. Blocks as that.
    ///
    /// # Errors
    /// As [`Fs::metadata`].
    pub fn xattr_names(&self, path: impl AsRef<[u8]>) -> Result<Vec<Vec<u8>>> {
        self.node(path)?.xattr_names()
    }

    /// Changes attributes of a file; symlinks are followed. Blocks.
    ///
    /// # Errors
    /// As [`Fs::metadata`] and [`crate::File::set_attributes`].
    pub fn set_attributes(&self, path: impl AsRef<[u8]>, set: &SetAttributes) -> Result<()> {
        self.node(path)?.set_attributes(set)
    }

    /// `statfs`: how much there is and how much is free. Does not block.
    pub fn statfs(&self) -> StatFs {
        self.0.statfs()
    }

    /// `syncfs`: makes everything durable that has returned, times included. Blocks.
    ///
    /// # Errors
    /// Those of the device and of the journal; nothing is written any more after one of them.
    pub fn sync(&self) -> Result<()> {
        self.0.call(|| self.0.sync())
    }

    /// `FITRIM`: tells the device which of the bytes in `range` are free, in runs of at least
    /// `min_len` bytes; returns how many bytes that were. Blocks freed and not yet committed are left
    /// out. Blocks.
    ///
    /// # Errors
    /// `EROFS`; those of the device.
    pub fn trim(&self, range: Range<u64>, min_len: u64) -> Result<u64> {
        self.0.call(|| self.0.trim(range, min_len))
    }

    /// Ends the mount: makes everything durable, empties the journal and marks the file system as
    /// clean. Blocks. Its threads end too, some of them a moment later; one that keeps the time for busy mounts stays with the process.
    ///
    /// # Errors
    /// `EBUSY` while files, queues or other clones are there: nothing happens then, as if this clone
    /// was dropped; [`Fs::try_close`] gives it back. Those of the device and of the journal: as there.
    pub fn close(self) -> Result<()> {
        match Arc::into_inner(self.0) {
            Some(mount) => mount.close(),
            None => Err(IN_USE),
        }
    }

    /// As [`Fs::close`], for who wants to try again once the others have let go. Of clones that are closed so at the same
    /// time, each may find the others.
    ///
    /// # Errors
    /// [`CloseError::Busy`] with the file system; nothing happened. [`CloseError::Failed`]: it is closed, as after a crash. What was
    /// durable stays so, the image can be opened again, and its journal is replayed then; what was not may be lost.
    pub fn try_close(self) -> Result<(), CloseError> {
        let mount = Arc::try_unwrap(self.0).map_err(|mount| CloseError::Busy(Fs(mount)))?;
        mount.close().map_err(CloseError::Failed)
    }

    /// Opens a queue for one thread's asynchronous requests.
    ///
    /// # Errors
    /// If the device cannot give one.
    pub fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        Queue::new(self.0.clone(), options)
    }

    /// What was counted since the file system was opened.
    pub fn stats(&self) -> Stats {
        let writer = self.0.started_writer();
        let commits = writer.map_or(0, |writer| writer.journal.commits());
        self.0.counters.snapshot(commits)
    }

    /// The policy in force.
    pub fn policy(&self) -> Policy {
        self.0.knobs.sample().policy()
    }

    /// Changes the policy. Requests under way finish under the old one.
    pub fn set_policy(&self, policy: Policy) {
        self.0.knobs.set_policy(policy);
    }

    /// Where completions of queued writes run.
    pub fn completion(&self) -> CompletionMode {
        self.0.knobs.sample().completion()
    }

    /// Changes where completions of queued writes run.
    pub fn set_completion(&self, mode: CompletionMode) {
        self.0.knobs.set_completion(mode);
    }

    /// Whether small reads take the simple path.
    pub fn simple(&self) -> bool {
        self.0.knobs.sample().simple()
    }

    /// Switches the simple path on or off.
    pub fn set_simple(&self, on: bool) {
        self.0.knobs.set_simple(on);
    }
}
