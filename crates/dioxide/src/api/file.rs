//! Opening files, and reading and writing them synchronously.

use crate::explain::{Direction, Explanation};
use crate::inode::Inode;
use crate::io::direct::policy::Policy;
use crate::io::direct::write::{Memory, WriteRequest};
use crate::io::direct::{Access, SyncMode, Wait, atomic, read, simple, write};
use crate::mount::Mount;
use crate::sync::slot;
use crate::{
    Error, FallocateMode, FileType, Fs, Mapping, Metadata, NewFile, Node, Result, SetAttributes,
    map,
};
use dioxide_format::inode::InodeFlags;
use dioxide_format::types::Lblk;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// How to open a file. Names as in [`std::fs::OpenOptions`].
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    access: Access,
    dsync: bool,
    sync: bool,
    user: Option<(u32, u32)>,
    create: bool,
    create_new: bool,
    truncate: bool,
    new: NewFile,
}

impl OpenOptions {
    /// Nothing allowed yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// For reading.
    pub fn read(mut self, on: bool) -> Self {
        self.access.read = on;
        self
    }

    /// For writing.
    pub fn write(mut self, on: bool) -> Self {
        self.access.write = on;
        self
    }

    /// For writing, and every write goes to the end of the file, whatever its offset.
    pub fn append(mut self, on: bool) -> Self {
        self.access.append = on;
        self
    }

    /// `O_DIRECT`: offsets and the length of each buffer must be multiples of the device's logical
    /// block; otherwise requests fail with `EINVAL`. Without it they may be anything: an edge that is
    /// not aligned is read through a copy, and written with what surrounds it while nobody else writes to the file. Memory may lie anywhere either way; where the
    /// device needs aligned memory, other memory costs a copy.
    pub fn direct(mut self, on: bool) -> Self {
        self.access.direct = on;
        self
    }

    /// The writer has `CAP_FSETID`, so that writing does not strip set-user-ID and set-group-ID.
    /// Off by default, as for an unprivileged process.
    pub fn fsetid(mut self, on: bool) -> Self {
        self.access.fsetid = on;
        self
    }

    /// `O_DSYNC`: a write, [`File::set_len`] and [`File::allocate`] return when they are durable, with what reading
    /// back needs.
    pub fn dsync(mut self, on: bool) -> Self {
        self.dsync = on;
        self
    }

    /// `O_SYNC`: as [`OpenOptions::dsync`], times included; with both, this one counts. A file with the flag SYNC
    /// (`chattr +S`) is so for every handle, for as long as it has the flag.
    pub fn sync(mut self, on: bool) -> Self {
        self.sync = on;
        self
    }

    /// The writer has `CAP_SYS_RESOURCE`, and so may use the file system's reserved blocks. Off by
    /// default.
    pub fn resource(mut self, on: bool) -> Self {
        self.access.resource = on;
        self
    }

    /// Writing leaves the file's times as they are, for who keeps them himself and sets them afterwards
    /// ([`SetAttributes::mtime`]), as the kernel's page cache does. Not for writes through a [`crate::Queue`].
    pub fn keep_times(mut self, on: bool) -> Self {
        self.access.keep_times = on;
        self
    }

    /// Writes were allowed when they were made, and come now, as from a page cache: an immutable or append-only file
    /// takes them, and capabilities stay: who took the writes has stripped them. Neither resizing nor allocating is a write.
    pub fn written_back(mut self, on: bool) -> Self {
        self.access.written_back = on;
        self
    }

    /// Who writes: may use the reserved blocks if they are kept for this user or group
    /// ([`crate::MountOptions::resuid`]).
    pub fn user(mut self, uid: u32, gid: u32) -> Self {
        self.user = Some((uid, gid));
        self
    }

    /// `O_CREAT`: makes the file if it is not there, as [`OpenOptions::new_file`] says.
    pub fn create(mut self, on: bool) -> Self {
        self.create = on;
        self
    }

    /// `O_CREAT | O_EXCL`: makes the file, and fails with `EEXIST` if anything of its name is there. With it,
    /// [`OpenOptions::create`] and [`OpenOptions::truncate`] say nothing more.
    pub fn create_new(mut self, on: bool) -> Self {
        self.create_new = on;
        self
    }

    /// `O_TRUNC`: cuts the file off at 0 bytes when it is opened for writing, and frees what is allocated behind its end.
    pub fn truncate(mut self, on: bool) -> Self {
        self.truncate = on;
        self
    }

    /// How a file is that is made: by default with permissions 0o644, of user and group 0.
    pub fn new_file(mut self, new: &NewFile) -> Self {
        self.new = *new;
        self
    }

    /// `O_TMPFILE`: makes a regular file without a name, on the file system of the directory `dir`. It goes
    /// when it is closed, unless [`File::link`] gives it a name; with [`OpenOptions::create_new`] (`O_EXCL`) it gets none. Blocks.
    ///
    /// # Errors
    /// As [`Fs::create_dir`]; `ENOTDIR`; `EINVAL` without [`OpenOptions::write`].
    pub fn open_unnamed(&self, fs: &Fs, dir: impl AsRef<[u8]>) -> Result<File> {
        fs.0.call(|| self.make_unnamed(fs, dir.as_ref()))
    }

    fn make_unnamed(&self, fs: &Fs, path: &[u8]) -> Result<File> {
        let dir = fs.0.lookup(path, true)?;
        let text = || String::from_utf8_lossy(path).into_owned();
        if dir.file_type() != FileType::Directory {
            return Err(Error::NotADirectory(text()));
        }
        if !self.asked().write {
            return Err(Error::Invalid(format!(
                "{}: a file that is not for writing",
                text()
            )));
        }
        let inode = fs.0.create_unnamed(&dir, &self.new, !self.create_new)?;
        self.opened(&fs.0, inode, path, true)
    }

    /// Opens a regular file. Symlinks are followed. Blocks on metadata, and with [`OpenOptions::truncate`] as
    /// [`File::set_len`] does.
    ///
    /// # Errors
    /// As [`Fs::metadata`], and of making or cutting the file where that is asked for; `EISDIR`; `EROFS` for writing on a read-only mount; `EPERM` for writing
    /// an immutable file, one under verity, or an append-only file without [`OpenOptions::append`]; `EINVAL` for
    /// neither reading nor writing; [`Error::Unsupported`] for devices, pipes and sockets, and for encrypted files.
    pub fn open(&self, fs: &Fs, path: impl AsRef<[u8]>) -> Result<File> {
        let path = path.as_ref();
        self.asked().check_named(path)?;
        fs.0.call(|| {
            let (inode, made) = match (self.create_new, self.create) {
                (true, _) => (fs.0.create_file(path, &self.new)?, true),
                (false, true) => fs.0.lookup_or_create(path, &self.new)?,
                (false, false) => (fs.0.lookup_open(path, true)?, false),
            };
            self.opened(&fs.0, inode, path, made)
        })
    }

    /// Opens the file of a node.
    pub(crate) fn open_node(&self, node: &Node) -> Result<File> {
        let path = format!("inode {}", node.ino());
        self.asked().check_named(path.as_bytes())?;
        node.mount.call(|| {
            let inode = held(node.inode.clone())?;
            self.opened(&node.mount, inode, path.as_bytes(), false)
        })
    }

    /// Who appends writes.
    fn asked(&self) -> Access {
        Access {
            write: self.access.write || self.access.append,
            ..self.access
        }
    }

    fn access_on(&self, mount: &Mount) -> Access {
        let user = self.user.is_some_and(|user| mount.has_reserve(user));
        let sync = match (self.sync, self.dsync) {
            (true, _) => SyncMode::Full,
            (false, true) => SyncMode::Data,
            (false, false) => SyncMode::None,
        };
        Access {
            resource: self.access.resource || user,
            sync,
            ..self.asked()
        }
    }

    /// The handle of an inode that was opened, and maybe `made` for it.
    fn opened(
        &self,
        mount: &Arc<Mount>,
        inode: Arc<Inode>,
        path: &[u8],
        made: bool,
    ) -> Result<File> {
        let access = self.access_on(mount);
        let mount = mount.clone();
        let file = File {
            mount,
            inode,
            access,
        };
        access.check(&file.mount, &file.inode, path)?;
        // An empty file may have blocks behind its end, and its times change too.
        if self.truncate && access.write && !made {
            file.mount.set_len(&file.inode, 0, access)?;
            file.mount.make_durable(&file.inode, access)?;
        }
        Ok(file)
    }
}

/// The first `room` bytes.
#[cold]
fn clipped<'a>(bufs: &'a [IoSlice<'_>], mut room: u64) -> Vec<IoSlice<'a>> {
    let clip = |buf: &'a IoSlice<'_>| {
        let len = room.min(buf.len() as u64);
        room -= len;
        IoSlice::new(&buf[..len as usize])
    };
    bufs.iter().map(clip).collect()
}

/// Opens an inode that was found.
fn held(inode: Arc<Inode>) -> Result<Arc<Inode>> {
    match inode.open() {
        true => Ok(inode),
        false => Err(Error::NotFound(format!("inode {}, removed", inode.ino))),
    }
}

/// An open regular file. Clones and threads may use it at the same time; it has no position.
///
/// Reads and writes go straight to the device: there is no cache of file data. A write that returned is
/// seen by every read; it survives a crash once it was synced ([`File::sync_data`], [`File::sync_all`],
/// [`Fs::sync`], or [`OpenOptions::dsync`]). The times of overwrites stay in memory at first; [`File::sync_all`],
/// [`Fs::sync`], [`OpenOptions::sync`] and closing the mount make them durable.
#[derive(Debug)]
pub struct File {
    pub(crate) mount: Arc<Mount>,
    pub(crate) inode: Arc<Inode>,
    pub(crate) access: Access,
}

impl File {
    /// The same open file, used as `options` say: in alignment, durability, appending, times and rights. It is for reading and
    /// writing as far as both say. What was allowed when it was opened is not judged again: whoever hands this on to others, as
    /// `F_SETFL` is, must keep an append-only file appending himself.
    pub fn used_as(&self, options: &OpenOptions) -> File {
        let access = options.access_on(&self.mount);
        let mut file = self.clone();
        file.access = Access {
            read: access.read && self.access.read,
            write: access.write && self.access.write,
            ..access
        };
        file
    }

    /// Reads into `buf` from `offset`; returns how many bytes, less than asked only at EOF. Blocks.
    ///
    /// # Errors
    /// `EBADF`; `EINVAL` for a misaligned request on a file opened with [`OpenOptions::direct`], unless it is empty or begins at
    /// or behind EOF; `EDEADLK` as [`File::set_len`]; device errors; damage in the extent tree.
    #[inline(always)]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        read::read_one(
            &self.mount,
            &self.inode,
            self.access,
            buf,
            offset,
            Wait::Block,
        )
    }

    /// As [`File::read_at`], but fails with [`Error::WouldBlock`] instead of waiting for a lock or
    /// for metadata. (It does wait for the device's answer.)
    ///
    /// # Errors
    /// As [`File::read_at`]; `EAGAIN`.
    pub fn try_read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        read::read_one(
            &self.mount,
            &self.inode,
            self.access,
            buf,
            offset,
            Wait::NoWait,
        )
    }

    /// As [`File::read_at`], into several buffers in turn, as one request.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        self.access.check_readable()?;
        let (mount, inode) = (&self.mount, &self.inode);
        mount.call(|| read::read_general(mount, inode, self.access, bufs, offset, Wait::Block))
    }

    /// Writes `buf` at `offset`, or at the end of a file opened for appending; returns its length. The
    /// file grows as needed; a gap reads as zeros. Blocks.
    ///
    /// # Errors
    /// `EBADF`; `EPERM` for a file that became immutable; `EINVAL` for a misaligned request on a file opened with
    /// [`OpenOptions::direct`]; `ENOSPC`; `EFBIG` for one that begins at the largest size, or appends past it; `EROFS`; `EDEADLK` as
    /// [`File::set_len`]; [`Error::Unsupported`] for journalled files; device errors. Of one that passes the largest size what fits is
    /// written. After an error the file has its old size, unless what failed is the sync of [`OpenOptions::dsync`] or
    /// [`OpenOptions::sync`], and any part of what lies inside it may have been written.
    #[inline(always)]
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        let (mount, inode, slot) = (&self.mount, &self.inode, slot::current());
        let memory = Memory::of_one(buf);
        match simple::shared_overwrite(mount, inode, self.access, offset, memory, slot) {
            Some(short) => write::write_short(mount, inode, buf, &short, slot),
            None => self.write_slices(&[IoSlice::new(buf)], offset, Wait::Block),
        }
    }

    /// As [`File::write_at`], but fails with [`Error::WouldBlock`] instead of waiting for a lock,
    /// for metadata, or for other requests on the file.
    ///
    /// # Errors
    /// As [`File::write_at`]; `EAGAIN`; [`Error::Unsupported`], as in Linux, for what is not direct I/O: a content that
    /// lies in the inode, and edges that are not whole logical blocks.
    pub fn try_write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.write_slices(&[IoSlice::new(buf)], offset, Wait::NoWait)
    }

    /// As [`File::write_at`], from several buffers in turn, as one request.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        self.write_slices(bufs, offset, Wait::Block)
    }

    /// `RWF_ATOMIC`: as [`File::write_at`], but a crash leaves all of `buf` or what was there before, and no mixture of them.
    /// The length is a power of two within [`Metadata::atomic_write`], the offset a multiple of it. It is not durable
    /// for that: see [`File::sync_data`]. Whoever reads at the same time may see a part. Blocks; may wait for a commit.
    ///
    /// # Errors
    /// As [`File::write_at`]; [`Error::Unsupported`] if the device promises nothing of that kind, the file is not mapped by
    /// extents or was not opened with [`OpenOptions::direct`]; `EINVAL` for another length or offset, also of an append that
    /// would begin where it cannot. After an error the range is as it was, or zeros for a hole, or written as a whole.
    pub fn write_at_atomic(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.access.check_writable()?;
        let request = self.write_request(Memory::of_one(buf), buf.len(), offset, Wait::Block);
        self.mount.call(|| atomic::write(&request, buf))
    }

    #[inline(never)]
    fn write_slices(&self, bufs: &[IoSlice<'_>], offset: u64, wait: Wait) -> Result<usize> {
        self.access.check_writable()?;
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let room = self.room_at(offset, len);
        if room < len {
            return self.write_slices(&clipped(bufs, room as u64), offset, wait);
        }
        let request = self.write_request(Memory::of(bufs), len, offset, wait);
        self.mount.call(|| write::write(&request, bufs))
    }

    /// How much of a write of `len` bytes the largest size leaves; all of one that cannot even begin, and fails.
    #[inline]
    pub(crate) fn room_at(&self, offset: u64, len: usize) -> usize {
        match self.mount.max_bytes_of(&self.inode).checked_sub(offset) {
            Some(room @ 1..) if (len as u64) > room && !self.access.append => room as usize,
            _ => len,
        }
    }

    #[inline]
    pub(crate) fn write_request(
        &self,
        memory: Memory,
        len: usize,
        offset: u64,
        wait: Wait,
    ) -> WriteRequest<'_> {
        WriteRequest {
            mount: &self.mount,
            inode: &self.inode,
            access: self.access,
            policy: self.mount.knobs.sample().policy(),
            offset,
            len,
            memory,
            asynchronous: false,
            wait,
            slot: slot::current(),
        }
    }

    /// `fdatasync`: makes every write that returned before this call durable, with the size, the blocks and the names that
    /// reading it back needs. Blocks.
    ///
    /// # Errors
    /// Those of the device and of the journal; nothing is written any more after one of them.
    pub fn sync_data(&self) -> Result<()> {
        self.mount.call(|| self.mount.sync_inode(&self.inode, true))
    }

    /// `fsync`: as [`File::sync_data`], and the times and other attributes. Blocks.
    ///
    /// # Errors
    /// As [`File::sync_data`].
    pub fn sync_all(&self) -> Result<()> {
        self.mount
            .call(|| self.mount.sync_inode(&self.inode, false))
    }

    /// `ftruncate`: cuts the file off at `size` bytes, or makes it longer by a hole. Waits for the
    /// file's direct I/O in flight. Blocks.
    ///
    /// # Errors
    /// `EBADF`, `EROFS`, `EFBIG`; `EDEADLK` if this thread's own queue has requests in flight on the
    /// file, or on one that somebody waits for who has requests in flight on this one; `EPERM` for an immutable or append-only file;
    /// [`Error::Unsupported`] for verity, encrypted and journalled files; damage.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.access.check_writable()?;
        let (mount, inode) = (&self.mount, &self.inode);
        mount.call(|| {
            mount.set_len(inode, size, self.access)?;
            mount.make_durable(inode, self.access)
        })
    }

    /// `fallocate`: allocates, frees, zeroes or moves a range. Waits for the file's direct I/O in
    /// flight. Blocks.
    ///
    /// # Errors
    /// As [`File::set_len`], but blocks may be allocated for an append-only file; `EINVAL` for an empty range, or one that is not whole clusters inside the
    /// file where the mode needs that; `ENOSPC` if there is no room for all of it: then nothing is allocated, while a range may have
    /// been zeroed in part, and a file whose map takes many transactions have been moved in part;
    /// [`Error::Unsupported`] for files without extents, but for punching holes.
    pub fn allocate(&self, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        self.access.check_writable()?;
        let end = offset.checked_add(len).filter(|_| len > 0);
        let end =
            end.ok_or_else(|| Error::Invalid(format!("a range of {len} bytes at {offset}")))?;
        let (mount, inode) = (&self.mount, &self.inode);
        mount.call(|| {
            mount.fallocate(inode, mode, offset..end, self.access)?;
            mount.make_durable(inode, self.access)
        })
    }

    /// `SEEK_DATA`: the first byte at or behind `offset` that is data; none (`ENXIO`) if there is no
    /// more. Unwritten blocks are holes. Blocks on metadata, and while another thread collapses or inserts a range.
    ///
    /// # Errors
    /// Damage in the extent tree; `EDEADLK` if that thread waits for requests of this one's queue.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.mount
            .call(|| self.mount.seek(&self.inode, offset, true))
    }

    /// `SEEK_HOLE`: the first byte at or behind `offset` that is no data; the end of the file is a
    /// hole. None (`ENXIO`) for an offset at or behind the end. Blocks as [`File::seek_data`].
    ///
    /// # Errors
    /// As [`File::seek_data`].
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.mount
            .call(|| self.mount.seek(&self.inode, offset, false))
    }

    /// `chmod`, `chown`, `utimensat` and `FS_IOC_SETFLAGS` in one. All changes become durable together.
    /// Blocks.
    ///
    /// # Errors
    /// `EROFS`; `EPERM` for an immutable file that stays so, and for mode, owner and times of an append-only file that stays
    /// so (but see [`SetAttributes::now`]); `EINVAL` for a time of 10⁹ nanoseconds or more and for owner 2³² − 1; `ENOSPC`; `EDEADLK`
    /// as [`File::set_len`]; [`Error::Unsupported`] as [`SetAttributes::flags`] and
    /// [`SetAttributes::project`] say.
    pub fn set_attributes(&self, set: &SetAttributes) -> Result<()> {
        self.mount
            .call(|| self.mount.set_attributes(&self.inode, set))
    }

    /// `linkat` with `AT_EMPTY_PATH`: gives the file another name, or one to a file of
    /// [`OpenOptions::open_unnamed`]. Blocks.
    ///
    /// # Errors
    /// As [`Fs::hard_link`]; `ENOENT` for a file whose last name was removed, or that is to have none.
    pub fn link(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.mount.call(|| {
            let at = self.mount.parent(path.as_ref())?;
            if at.must_be_dir {
                return Err(self.mount.not_a_new_directory(&at));
            }
            self.mount.link(&self.inode, &at.dir, at.name)
        })
    }

    /// Whether what is written through it may take reserved blocks: [`OpenOptions::resource`], [`OpenOptions::user`].
    pub fn has_reserve(&self) -> bool {
        self.access.resource
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.inode.i_size()
    }

    /// Whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `fstat`.
    pub fn metadata(&self) -> Metadata {
        self.mount.metadata(&self.inode)
    }

    /// The mapping that covers file-system block `lblk` of the file: as much of it as one lookup
    /// tells, at most `want` blocks. Past the last extent it is a hole; and so may be what another thread
    /// moves meanwhile, by collapsing or inserting a range. Blocks on metadata.
    ///
    /// # Errors
    /// Damage in the extent tree; `EINVAL` if `want` is 0; [`Error::Unsupported`] for a file whose
    /// data lies in its inode.
    pub fn map(&self, lblk: u32, want: u32) -> Result<Mapping> {
        if want == 0 {
            return Err(Error::Invalid("a mapping of no blocks".into()));
        }
        let (mount, inode) = (&self.mount, &self.inode);
        mount.call(|| map::load::lookup_or_load(mount, inode, Lblk(lblk), want))
    }

    /// Reads the whole extent map into memory, so that no later request waits for it. Blocks. Nothing, where the content lies
    /// in the inode.
    ///
    /// # Errors
    /// Damage in the extent tree.
    pub fn preload_map(&self) -> Result<()> {
        if self.inode.has_inline_data() {
            return Ok(());
        }
        let blocks = self.len().div_ceil(self.mount.block_bytes());
        self.mount
            .call(|| map::load::preload(&self.mount, &self.inode, blocks))
    }

    /// What the engine would do with a request of a queue, step by step, and why; under `policy`, or under the
    /// mount's. Nothing is read, written or locked. Blocks on metadata. The same request by a call of this type takes the
    /// same locks; but under the policies up to `iomap55` it neither drains nor waits for being unaligned.
    ///
    /// # Errors
    /// Damage in the extent tree.
    pub fn explain(
        &self,
        direction: Direction,
        offset: u64,
        len: usize,
        policy: Option<Policy>,
    ) -> Result<Explanation> {
        let policy = policy.unwrap_or_else(|| self.mount.knobs.sample().policy());
        self.mount
            .call(|| crate::explain::explain(self, direction, offset, len, policy))
    }
}

impl Clone for File {
    fn clone(&self) -> File {
        assert!(self.inode.open(), "what is open has not ended");
        File {
            mount: self.mount.clone(),
            inode: self.inode.clone(),
            access: self.access,
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.mount.closed(&self.inode);
        self.mount.keep_times(&self.inode);
        self.mount.inodes.let_go(&self.inode);
    }
}

impl Access {
    fn check(&self, mount: &Mount, inode: &Inode, path: &[u8]) -> Result<()> {
        let name = || String::from_utf8_lossy(path).into_owned();
        match inode.file_type() {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsADirectory(name())),
            other => {
                return Err(Error::Unsupported(format!("{}: opening a {other}", name())));
            }
        }
        inode.check_readable()?;
        if self.write {
            self.check_write(mount, inode, name)?;
        }
        Ok(())
    }

    fn check_named(&self, path: &[u8]) -> Result<()> {
        match self.read || self.write {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "{}: opened for neither reading nor writing",
                String::from_utf8_lossy(path)
            ))),
        }
    }

    fn check_write(&self, mount: &Mount, inode: &Inode, name: impl Fn() -> String) -> Result<()> {
        if let Some(why) = mount.why_read_only() {
            return Err(Error::ReadOnly(format!("{}: {why}", name())));
        }
        if self.written_back {
            return Ok(());
        }
        if inode.is_immutable() {
            return Err(Error::NotPermitted(format!("{} is immutable", name())));
        }
        if inode.flags().contains(InodeFlags::VERITY) {
            let what = "is under verity, and only read; copy it to change the copy";
            return Err(Error::NotPermitted(format!("{} {what}", name())));
        }
        if inode.is_append_only() && !self.append {
            return Err(Error::NotPermitted(format!("{} is append-only", name())));
        }
        Ok(())
    }
}
