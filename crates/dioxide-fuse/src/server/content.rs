//! Reading and writing, and what else is done with an open file.

use super::full::{Lost, NoRoom};
use super::handle::Handle;
use super::{Caller, Live, Server};
use crate::stats::Op;
use crate::{Errno, Result};
use dioxide::{Buf, Error, FallocateMode, File, Node};
use std::sync::Arc;

/// What `lseek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

/// What a write waits for before it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncMode {
    /// Nothing.
    #[default]
    None,
    /// `O_DSYNC`: that the data can be read back after a crash.
    Data,
    /// `O_SYNC`: and the times too.
    Full,
}

impl SyncMode {
    /// As flags of `open(2)` say.
    pub fn of(flags: i32) -> SyncMode {
        let has = |flag: i32| flags & flag == flag;
        // The first has the bit of the second too.
        match (has(libc::O_SYNC), has(libc::O_DSYNC)) {
            (true, _) => SyncMode::Full,
            (false, true) => SyncMode::Data,
            (false, false) => SyncMode::None,
        }
    }

    pub(super) fn wait(self, file: &File) -> Result {
        match self {
            SyncMode::None => Ok(()),
            SyncMode::Data => Ok(file.sync_data()?),
            SyncMode::Full => Ok(file.sync_all()?),
        }
    }

    /// The same for attributes, which only a sync of all makes durable.
    pub(super) fn wait_for_attributes(self, node: &Node) -> Result {
        match self {
            SyncMode::None => Ok(()),
            SyncMode::Data | SyncMode::Full => Ok(node.sync()?),
        }
    }
}

/// A write: who, and on whose behalf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// The page cache writes back.
    pub cached: bool,
    /// The file has `O_DIRECT`.
    pub direct: bool,
    /// It has `O_APPEND`.
    pub append: bool,
    /// Set-user-ID and set-group-ID go.
    pub kill_suidgid: bool,
    /// As the file has it, the write itself (`RWF_DSYNC`, `RWF_SYNC`) or the mount (`-o sync`).
    pub sync: SyncMode,
}

/// What the kernel was told of the blocks of a file, which its page cache does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// That is how it is, as far as it came by this handle.
    Well,
    /// There are others by now.
    Stale,
}

/// One request copies so much at most, so that it does not keep its thread for long: the caller goes on.
const COPY_BYTES: u64 = 64 << 20;
const COPY_STEP: usize = 1 << 20;

impl Server {
    /// `read`, past the page cache of a file that has `O_DIRECT` if `direct`: returns how many bytes, less than asked only at the end
    /// of the file.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read(&self, handle: u64, buf: &mut [u8], offset: u64, direct: bool) -> Result<usize> {
        let _timed = self.requests.time(Op::Read);
        let live = self.live()?;
        let handle = live.files.get(handle)?;
        Ok(handle.for_transfer(direct, false)?.read_at(buf, offset)?)
    }

    /// Whether the file may be longer than the file system knows, since what lies behind its end may be in the kernel's page cache alone:
    /// a read that bypasses that, and came to the end, is to be tried again once the kernel has written its pages.
    ///
    /// # Errors
    /// If there is no such handle.
    pub fn may_be_longer(&self, handle: u64) -> Result<bool> {
        if !self.options.writeback {
            return Ok(false);
        }
        let live = self.live()?;
        let asked = live.files.get(handle)?;
        Ok(live.files.any(|other| other.may_have_extended(&asked)))
    }

    /// `write`. Where pages cannot be written back, the kernel is to forget the file's attributes: it asks for them before it takes
    /// more, and may be told then.
    ///
    /// # Errors
    /// As [`File::write_at`]. `EPERM` if `O_APPEND` was taken off a file that is append-only: the kernel does not know that it is.
    pub fn write(&self, handle: u64, buf: &[u8], offset: u64, flags: WriteFlags) -> Result<usize> {
        let _timed = self.requests.time(Op::Write);
        let live = self.live()?;
        let handle = live.files.get(handle)?;
        // The kernel writes pages back by the handle that was opened last. Who had the file open before it became append-only may
        // have written to them.
        let others_place = || live.files.any(|other| other.may_have_placed(&handle));
        match flags.cached {
            // The pages of a mapping, where each write is to go to the end.
            true if handle.appends && !others_place() => Err(self.lose(Errno::PERM)),
            true => self
                .write_back(&live, &handle, buf, offset, flags.kill_suidgid)
                .map_err(|error| self.lose(error)),
            false => {
                let file = handle.for_transfer(flags.direct, flags.kill_suidgid)?;
                handle.note_unseen(&live.nodes);
                let done = match handle.appends {
                    true => handle.append(buf, offset, flags)?,
                    false => file.write_at(buf, offset)?,
                };
                handle.still_to_wait_for(flags.sync).wait(file)?;
                Ok(done)
            }
        }
    }

    /// For [`Server::tell_lost`].
    fn lose(&self, error: Errno) -> Errno {
        *self.lost.lock() = Some(error);
        error
    }

    /// Writes pages of the kernel's cache. What finds no room is tried again, by a handle that can have reserved blocks if there is one:
    /// the pages may be those of whoever has it open.
    fn write_back(
        &self,
        live: &Live,
        handle: &Arc<Handle>,
        buf: &[u8],
        offset: u64,
        strip: bool,
    ) -> Result<usize> {
        let write = |by: &Handle| write_pages(by.cached(strip)?, buf, offset);
        let done = write(handle);
        match done {
            Err(Errno::NOSPC) => {}
            Err(Errno::FBIG) => {
                let lost = Lost::TooLarge(handle.generation());
                self.full.note(handle.ino(), lost);
                return done;
            }
            _ => return done,
        }
        let reserve = |other: &Handle| other.has_reserve() && other.may_have_dirtied(handle);
        let other = match handle.has_reserve() {
            true => None,
            false => live.files.find(reserve),
        };
        let by = other.as_ref().unwrap_or(handle);
        // What is free is counted before a last try, because others may give back blocks after it, or take some.
        let before = by.no_room(&live.fs);
        write(by).inspect_err(|error| {
            if *error == Errno::NOSPC {
                let free = before.free.min(by.no_room(&live.fs).free);
                let lost = Lost::NoRoom(NoRoom { free, ..before });
                self.full.note(by.ino(), lost);
            }
        })
    }

    /// `fsync`, or `fdatasync`.
    ///
    /// # Errors
    /// As [`File::sync_all`].
    pub fn fsync(&self, handle: u64, data_only: bool) -> Result<Told> {
        let _timed = self.requests.time(Op::Fsync);
        let live = self.live()?;
        let handle = live.files.get(handle)?;
        let file = handle.file(false)?;
        match data_only {
            true => file.sync_data()?,
            false => file.sync_all()?,
        }
        Ok(handle.told())
    }

    /// `fallocate`, with `mode` of `fallocate(2)`.
    ///
    /// # Errors
    /// As [`File::allocate`]; `EOPNOTSUPP` for an unknown mode.
    pub fn fallocate(
        &self,
        caller: Caller,
        handle: u64,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> Result {
        let _timed = self.requests.time(Op::Fallocate);
        let mode = fallocate_mode(mode).ok_or(Errno::OPNOTSUPP)?;
        let live = self.live()?;
        let handle = live.files.get(handle)?;
        let file = handle.file(self.acting(caller).uid != 0)?;
        file.allocate(mode, offset, len)?;
        // The kernel asks for nothing after it.
        self.options.sync.wait(file)
    }

    /// `lseek`, of a file that nobody has open for writing.
    ///
    /// # Errors
    /// As [`Server::lseek_written`]. `ENOSYS` where somebody has: his data may be in the kernel's page cache alone, and
    /// would be told as a hole. A transport that can have the pages written calls `lseek_written` then; one that
    /// hands the error over gets files without holes, and is not asked again.
    pub fn lseek(&self, handle: u64, offset: u64, what: Seek) -> Result<u64> {
        let _timed = self.requests.time(Op::Lseek);
        let live = self.live()?;
        let asked = live.files.get(handle)?;
        match live.files.any(|other| other.may_have_dirtied(&asked)) {
            true => Err(Errno(libc::ENOSYS)),
            false => seek(&asked, offset, what),
        }
    }

    /// `lseek`, of a file whose pages the kernel has written.
    ///
    /// # Errors
    /// As [`File::seek_data`]; `ENXIO` where there is no more.
    pub fn lseek_written(&self, handle: u64, offset: u64, what: Seek) -> Result<u64> {
        let _timed = self.requests.time(Op::Lseek);
        seek(&*self.live()?.files.get(handle)?, offset, what)
    }

    /// `copy_file_range`: returns how many bytes, which may be less than asked: where the file ends, in the end of a request,
    /// and soon after the caller has given it up.
    ///
    /// # Errors
    /// As [`File::read_at`] and [`File::write_at`].
    pub fn copy_file_range(
        &self,
        caller: Caller,
        from: (u64, u64),
        to: (u64, u64),
        len: u64,
        is_given_up: &dyn Fn() -> bool,
    ) -> Result<usize> {
        let _timed = self.requests.time(Op::CopyFileRange);
        let live = self.live()?;
        let (source, target) = (live.files.get(from.0)?, live.files.get(to.0)?);
        // The kernel refuses those with `O_APPEND`.
        if target.is_immutable() || target.must_append() {
            return Err(Errno::PERM);
        }
        let strip = self.acting(caller).uid != 0;
        let file = target.for_copy(strip)?;
        let done = copy(
            (source.cached(false)?, from.1),
            (&file, to.1),
            len.min(COPY_BYTES),
            is_given_up,
        )?;
        // The kernel asks for nothing after it, and does not tell what the mount wants.
        if done > 0 {
            target.sync_mode().max(self.options.sync).wait(&file)?;
        }
        Ok(done)
    }
}

/// Writes pages of the kernel's cache, which are gone whatever becomes of them: where there is no room for all, as many of
/// the first as there is room for.
///
/// # Errors
/// As [`File::write_at`]; `ENOSPC` too if only a part was written.
fn write_pages(file: &File, buf: &[u8], offset: u64) -> Result<usize> {
    const PAGE: usize = 4096;
    let (mut done, mut most) = (0, buf.len());
    loop {
        let rest = &buf[done..];
        match file.write_at(&rest[..most.min(rest.len())], offset + done as u64) {
            Ok(wrote) => done += wrote,
            Err(Error::NoSpace(_)) if most > PAGE => most = (most / 2).next_multiple_of(PAGE),
            Err(error) => return Err(error.into()),
        }
        if done == buf.len() {
            return Ok(done);
        }
    }
}

fn seek(handle: &Handle, offset: u64, what: Seek) -> Result<u64> {
    let file = handle.file(false)?;
    let found = match what {
        Seek::Data => file.seek_data(offset)?,
        Seek::Hole => file.seek_hole(offset)?,
    };
    found.ok_or(Errno::NXIO)
}

/// What was copied before an error counts. Something always is: programs do not expect `EINTR`.
fn copy(
    from: (&File, u64),
    to: (&File, u64),
    len: u64,
    is_given_up: &dyn Fn() -> bool,
) -> Result<usize> {
    let mut buf = Buf::zeroed(len.min(COPY_STEP as u64) as usize);
    let mut done = 0;
    while done < len && (done == 0 || !is_given_up()) {
        let want = (len - done).min(buf.len() as u64) as usize;
        let step = from.0.read_at(&mut buf[..want], from.1 + done);
        let step = step.and_then(|got| to.0.write_at(&buf[..got], to.1 + done));
        match step {
            Ok(0) => break,
            Ok(wrote) => done += wrote as u64,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done as usize)
}

fn fallocate_mode(mode: i32) -> Option<FallocateMode> {
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    /// `FALLOC_FL_WRITE_ZEROES`, which the kernel does not ask for yet.
    const WRITE_ZEROES: i32 = 0x80;
    Some(match mode {
        0 => FallocateMode::Allocate,
        libc::FALLOC_FL_KEEP_SIZE => FallocateMode::KeepSize,
        PUNCH => FallocateMode::PunchHole,
        libc::FALLOC_FL_ZERO_RANGE => FallocateMode::ZeroRange,
        ZERO_KEEP => FallocateMode::ZeroRangeKeepSize,
        WRITE_ZEROES => FallocateMode::WriteZeroes,
        libc::FALLOC_FL_COLLAPSE_RANGE => FallocateMode::CollapseRange,
        libc::FALLOC_FL_INSERT_RANGE => FallocateMode::InsertRange,
        _ => return None,
    })
}
