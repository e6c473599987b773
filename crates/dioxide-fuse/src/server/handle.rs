//! Open regular files.

use super::attributes::is_immutable;
use super::full::NoRoom;
use super::{Caller, Server, SyncMode, Told, WriteFlags};
use crate::stats::Op;
use crate::table::Nodes;
use crate::{Errno, Result};
use dioxide::format::inode::InodeFlags;
use dioxide::{File, Fs, Metadata, Node, OpenOptions};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What `open` tells the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Names the open file.
    pub handle: u64,
    /// Reads and writes go past the kernel's page cache, writes of several threads side by side.
    pub direct: bool,
}

/// An open file. The kernel uses one handle for different purposes, which the library tells apart when it opens a
/// file, so that there is one [`File`] for each purpose, made at first use of the one that was opened: what is allowed was judged
/// then.
pub(super) struct Handle {
    node: Arc<Node>,
    options: OpenOptions,
    flags: i32,
    /// Every write goes to the end of the file, which was append-only when it was opened.
    pub(super) appends: bool,
    /// The kernel has no pages for what it reads and writes by this handle, unless by a mapping.
    direct: bool,
    /// The kernel keeps the times, and tells them.
    writeback: bool,
    /// It was noted that the kernel does not see its writes.
    unseen: AtomicBool,
    /// How many the kernel may believe that there are.
    blocks: AtomicU64,
    gaps: Mutex<Gaps>,
    /// By purpose, and whether privileges are stripped.
    files: [[OnceLock<File>; 2]; 3],
}

/// Where parts of an append are missing, since later ones were written before them.
#[derive(Default)]
struct Gaps(Vec<Range<u64>>);

impl Gaps {
    /// More than threads may have taken such parts.
    const MOST: usize = 1024;

    fn note(&mut self, gap: Range<u64>) {
        if gap.is_empty() {
            return;
        }
        if self.0.len() == Self::MOST {
            self.0.remove(0);
        }
        self.0.push(gap);
    }

    /// Whether it is missing. It is not any more.
    fn fill(&mut self, offset: u64, len_bytes: usize) -> bool {
        let end = offset.saturating_add(len_bytes as u64);
        let is_in = |gap: &Range<u64>| gap.start <= offset && end <= gap.end;
        let Some(found) = self.0.iter().position(is_in) else {
            return false;
        };
        let gap = self.0.remove(found);
        self.note(gap.start..offset);
        self.note(end..gap.end);
        true
    }
}

/// What a handle is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The application reads and writes, or has the file changed otherwise.
    Plain,
    /// The same, at the device's alignment.
    Direct,
    /// The kernel's page cache reads and writes.
    Cached,
}

impl Purpose {
    fn of_transfer(direct: bool) -> Purpose {
        match direct {
            true => Purpose::Direct,
            false => Purpose::Plain,
        }
    }
}

impl Handle {
    /// The file as the application has opened it, for other things than reading and writing.
    pub(super) fn file(&self, strip: bool) -> Result<&File> {
        self.one(Purpose::Plain, strip)
    }

    /// The file as the application has it now: `O_DIRECT` wants alignment, `O_SYNC` a flush. The first can change while it is open.
    pub(super) fn for_transfer(&self, direct: bool, strip: bool) -> Result<&File> {
        self.one(Purpose::of_transfer(direct), strip)
    }

    /// The file as the kernel's page cache uses it: it synchronises by itself, keeps the times, and ends where the
    /// file ends.
    pub(super) fn cached(&self, strip: bool) -> Result<&File> {
        self.one(Purpose::Cached, strip)
    }

    /// The file as a copy within the kernel changes it: as the page cache, but at once.
    pub(super) fn for_copy(&self, strip: bool) -> Result<File> {
        let options = self.options_for(Purpose::Cached, strip);
        Ok(self.file(strip)?.used_as(&options.written_back(false)))
    }

    /// Whether the page cache may have data of this file that came by this handle: by a mapping for those of `O_DIRECT` too.
    pub(super) fn may_have_dirtied(&self, other: &Handle) -> bool {
        is_for_writing(self.flags) && self.node.ino() == other.node.ino()
    }

    /// Whether the page cache may have made this file longer by this handle. No mapping does.
    pub(super) fn may_have_extended(&self, other: &Handle) -> bool {
        !self.direct && self.may_have_dirtied(other)
    }

    /// Whether the page cache may have data of this file that came by this handle and belongs where it was written, not to the end.
    pub(super) fn may_have_placed(&self, other: &Handle) -> bool {
        !self.appends && self.may_have_dirtied(other)
    }

    /// What is asked by this handle cannot be for a read.
    pub(super) fn is_for_writing_only(&self) -> bool {
        self.flags & libc::O_ACCMODE == libc::O_WRONLY
    }

    /// What writes wait for.
    pub(super) fn sync_mode(&self) -> SyncMode {
        SyncMode::of(self.flags)
    }

    /// What a write that is to be so durable still waits for once the library has made it. Where the kernel has pages, it asks for
    /// `fsync` itself; where it has none, it tells with each write what is wanted.
    pub(super) fn still_to_wait_for(&self, wanted: SyncMode) -> SyncMode {
        match self.direct && wanted > self.sync_mode() {
            true => wanted,
            false => SyncMode::None,
        }
    }

    /// Whether the file has the blocks that it had when this was asked last, or when it was opened.
    pub(super) fn told(&self) -> Told {
        let blocks = self.node.metadata().blocks;
        match self.blocks.swap(blocks, Ordering::Relaxed) == blocks {
            true => Told::Well,
            false => Told::Stale,
        }
    }

    /// Notes that the file is about to be written past the kernel's cache, if that keeps the times.
    pub(super) fn note_unseen(&self, nodes: &Nodes) {
        if self.writeback && !self.unseen.load(Ordering::Relaxed) {
            nodes.note_unseen(&self.node);
            self.unseen.store(true, Ordering::Relaxed);
        }
    }

    /// The file's inode number.
    pub(super) fn ino(&self) -> u32 {
        self.node.ino()
    }

    /// The file's generation.
    pub(super) fn generation(&self) -> u32 {
        self.node.generation()
    }

    /// What is to be noted if a page of the file finds no room now.
    pub(super) fn no_room(&self, fs: &Fs) -> NoRoom {
        NoRoom {
            generation: self.generation(),
            free: fs.statfs().blocks_free,
            resource: self.has_reserve(),
        }
    }

    /// Whether reserved blocks are to be had.
    pub(super) fn has_reserve(&self) -> bool {
        self.file(false).is_ok_and(File::has_reserve)
    }

    /// Whether the file is immutable by now.
    pub(super) fn is_immutable(&self) -> bool {
        is_immutable(&self.node.metadata())
    }

    /// Whether it appends, and the file is append-only still.
    pub(super) fn must_append(&self) -> bool {
        self.appends && self.node.metadata().flags & InodeFlags::APPEND.0 != 0
    }

    /// A write by a handle that appends. One that the kernel has cut into parts comes in any order, and no other meanwhile: what is to lie
    /// behind the end is put there, as behind pages that were not written yet, and what comes late where it is missing.
    pub(super) fn append(&self, buf: &[u8], offset: u64, flags: WriteFlags) -> Result<usize> {
        let file = self.for_transfer(flags.direct, flags.kill_suidgid)?;
        let place = || {
            let purpose = Purpose::of_transfer(flags.direct);
            let options = self.options_for(purpose, flags.kill_suidgid);
            file.used_as(&options.append(false)).write_at(buf, offset)
        };
        if !flags.append {
            return match self.must_append() {
                true => Err(Errno::PERM),
                false => Ok(place()?),
            };
        }
        // The end stays where it is until this is written.
        let mut gaps = self.gaps.lock();
        let len = file.len();
        if offset <= len && !gaps.fill(offset, buf.len()) {
            return Ok(file.write_at(buf, offset)?);
        }
        let done = place()?;
        gaps.note(len..offset);
        Ok(done)
    }

    /// No part of an append is under way: the kernel changes the size, which it does after one that has failed too.
    pub(super) fn forget_gaps(&self) {
        *self.gaps.lock() = Gaps::default();
    }

    fn one(&self, purpose: Purpose, strip: bool) -> Result<&File> {
        let place = &self.files[purpose as usize][usize::from(strip)];
        if let Some(file) = place.get() {
            return Ok(file);
        }
        let first = self.files[Purpose::Plain as usize][0].get();
        let options = self.options_for(purpose, strip);
        let file = match first {
            Some(first) => first.used_as(&options),
            None => self.node.open(&options)?,
        };
        Ok(place.get_or_init(|| file))
    }

    fn options_for(&self, purpose: Purpose, strip: bool) -> OpenOptions {
        let cached = purpose == Purpose::Cached;
        let mut options = self.options.clone().fsetid(!strip);
        options = options.direct(purpose == Purpose::Direct);
        options = options.keep_times(cached && self.writeback);
        options = match cached {
            true => options.written_back(true),
            false => options.append(self.appends),
        };
        let sync = self.sync_mode();
        options
            .sync(!cached && sync == SyncMode::Full)
            .dsync(!cached && sync == SyncMode::Data)
    }
}

fn is_for_writing(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// Whether what is opened so may not be: data of the file, or of a new file in the directory, are journalled, and the page cache would
/// take what cannot be written back.
pub(super) fn is_refused(metadata: &Metadata, flags: i32) -> bool {
    is_for_writing(flags) && metadata.flags & InodeFlags::JOURNAL_DATA.0 != 0
}

impl Server {
    /// `open` of a regular file, with flags as `open(2)` has them. What the kernel has done already (making,
    /// truncating) is not done again.
    ///
    /// # Errors
    /// As [`Node::open`]; `EOPNOTSUPP` for writing to a file whose data are journalled.
    pub fn open(&self, caller: Caller, id: u64, flags: i32) -> Result<Opened> {
        let _timed = self.requests.time(Op::Open);
        let live = self.live()?;
        let node = live.node(id)?;
        let (handle, opened) = self.opened(caller, node, flags)?;
        Ok(Opened {
            handle: live.files.insert(handle),
            ..opened
        })
    }

    /// Opens a file, for [`super::Live::files`].
    pub(super) fn opened(
        &self,
        caller: Caller,
        node: Arc<Node>,
        flags: i32,
    ) -> Result<(Handle, Opened)> {
        let writes = is_for_writing(flags);
        let metadata = node.metadata();
        if is_refused(&metadata, flags) {
            return Err(Errno::OPNOTSUPP);
        }
        // Only with its flag do writes go to the end of an append-only file, wherever the kernel sees that.
        let append_only = metadata.flags & InodeFlags::APPEND.0 != 0;
        let appends = append_only && flags & libc::O_APPEND != 0;
        // The page cache fills up pages that are written in part.
        let options = self.options_of(caller).read(true).write(writes);
        let appends = writes && appends;
        // The page cache would keep what is to be durable. Without it a write comes at once, and the library makes it so.
        let waits = writes && metadata.flags & InodeFlags::SYNC.0 != 0 && self.gathers_writes();
        let direct = flags & libc::O_DIRECT != 0 || appends || waits;
        let handle = Handle {
            node,
            options,
            flags,
            appends,
            direct,
            writeback: self.options.writeback,
            unseen: AtomicBool::new(false),
            blocks: AtomicU64::new(metadata.blocks),
            gaps: Mutex::default(),
            files: Default::default(),
        };
        handle.file(false)?;
        Ok((handle, Opened { handle: 0, direct }))
    }

    /// What the caller may beside others.
    pub(super) fn options_of(&self, caller: Caller) -> OpenOptions {
        let Caller { uid, gid } = self.acting(caller);
        OpenOptions::new().resource(uid == 0).user(uid, gid)
    }

    /// Whether the kernel's page cache keeps writes, and can be gone past without being done without: mappings are of it.
    fn gathers_writes(&self) -> bool {
        self.options.writeback && self.maps_direct.load(Ordering::Relaxed)
    }

    /// `release`: the last who had it open has closed it. What goes wrong then is traced.
    ///
    /// # Errors
    /// None but `ENODEV`.
    pub fn release(&self, handle: u64) -> Result {
        let _timed = self.requests.time(Op::Release);
        self.live()?.files.remove(handle);
        Ok(())
    }
}
