//! Direct reads: the entry order of `docs/SEMANTICS.md` B1, synchronous.
//!
//! Lock as the policy says → simple path if the read is small → general path: sample i_size, then
//! mapping by mapping: holes and unwritten blocks are zeros, mapped blocks come from the device;
//! what passes the sampled size is cut off. (Queued reads share everything but the transfer: see
//! `api/queue`.)

use super::iter::{Piece, Pieces};
use super::lock::{Guard, lock};
use super::policy::{IoLock, LockMode, read_lock};
use super::{Access, Wait, simple};
use crate::inode::Inode;
use crate::map::MapKind;
use crate::mount::Mount;
use crate::stats::Count;
use crate::sync::slot::{self, Slot};
use crate::{Error, Result};
use dioxide_block::Buf;
use smallvec::SmallVec;
use std::io::IoSliceMut;

/// Longest piece that a read with misaligned edges copies through memory of its own at a time.
const BOUNCE_BYTES: usize = 1 << 20;

/// Reads into one buffer. Inlined into the caller's loop: a call costs as much as the lock.
#[inline(always)]
pub(crate) fn read_one(
    mount: &Mount,
    inode: &Inode,
    access: Access,
    buf: &mut [u8],
    offset: u64,
    wait: Wait,
) -> Result<usize> {
    let slot = slot::current();
    match simple::small_read(mount, inode, access, offset, buf.len(), slot) {
        Some(short) => read_simple(mount, short.device_offset, buf, slot),
        None => read_one_slowly(mount, inode, access, buf, offset, wait),
    }
}

/// The transfer of the simple path, with the lock held.
#[inline(always)]
fn read_simple(mount: &Mount, device_offset: u64, buf: &mut [u8], slot: Slot) -> Result<usize> {
    mount.counters.add(slot, Count::ReadSimple);
    match mount.lane.read_at(device_offset, buf) {
        Ok(()) => Ok(buf.len()),
        Err(error) => device_failed(mount, error),
    }
}

/// The answer to a failed transfer. Out of line, so that the usual answer stays a number in a
/// register and no large `Result` is moved from frame to frame.
#[cold]
#[inline(never)]
pub(super) fn device_failed(mount: &Mount, error: dioxide_block::Error) -> Result<usize> {
    mount.fence.look_at(&error);
    Err(error.into())
}

/// When the lock could not be had by announcing, or the read is not for the simple path.
#[cold]
#[inline(never)]
fn read_one_slowly(
    mount: &Mount,
    inode: &Inode,
    access: Access,
    buf: &mut [u8],
    offset: u64,
    wait: Wait,
) -> Result<usize> {
    access.check_readable()?;
    mount.call(|| {
        if simple::is_small(mount, buf.len()) {
            let slot = slot::current();
            let _held = ReadLock::take(mount, inode, wait, slot)?;
            if let Some(device_offset) = simple::locate_read(mount, inode, offset, buf.len()) {
                return read_simple(mount, device_offset, buf, slot);
            }
        }
        let bufs = &mut [IoSliceMut::new(buf)];
        read_general(mount, inode, access, bufs, offset, wait)
    })
}

/// What protects a read: the inode's lock, the in-flight count, or first one and then the other.
pub(crate) struct ReadLock<'a> {
    inode: &'a Inode,
    guard: Guard<'a>,
    io_lock: IoLock,
    counted: bool,
}

impl<'a> ReadLock<'a> {
    /// Enters a read under the mount's policy.
    #[inline]
    pub(crate) fn take(mount: &Mount, inode: &'a Inode, wait: Wait, slot: Slot) -> Result<Self> {
        let (mut mode, io_lock) = read_lock(mount.knobs.sample().policy());
        let counted = mode == LockMode::None && inode.in_flight.raise_unlocked();
        if mode == LockMode::None && !counted {
            mode = LockMode::Shared;
        }
        let guard = match lock(mount, inode, mode, wait, slot) {
            Ok(guard) => guard,
            Err(error) => return Err(count_would_block(mount, slot, error)),
        };
        Ok(ReadLock {
            inode,
            guard,
            io_lock,
            counted,
        })
    }

    /// Mapping is done: keeps the lock for the I/O, or trades it for the in-flight count.
    #[inline]
    fn begin_io(&mut self) {
        if self.io_lock == IoLock::Release {
            self.count();
            self.guard = Guard::None;
        }
    }

    fn count(&mut self) {
        if !self.counted {
            self.inode.in_flight.raise();
            self.counted = true;
        }
    }
}

impl Drop for ReadLock<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.counted {
            self.inode.in_flight.lower();
        }
    }
}

/// Counts an EAGAIN on its way out.
pub(crate) fn count_would_block(mount: &Mount, slot: Slot, error: Error) -> Error {
    if matches!(error, Error::WouldBlock(_)) {
        mount.counters.add(slot, Count::WouldBlock);
    }
    error
}

/// The general path: any number of buffers, any mappings.
pub(crate) fn read_general(
    mount: &Mount,
    inode: &Inode,
    access: Access,
    bufs: &mut [IoSliceMut<'_>],
    offset: u64,
    wait: Wait,
) -> Result<usize> {
    let slot = slot::current();
    let mut held = ReadLock::take(mount, inode, wait, slot)?;
    mount.counters.add(slot, Count::ReadGeneral);
    let len: usize = bufs.iter().map(|buf| buf.len()).sum();
    if inode.has_inline_data() {
        return read_inline(mount, inode, bufs, offset);
    }
    // As in Linux, where nothing is read nobody asks how it is aligned.
    let Some(request) = InFile::clamp(mount, inode, offset, len) else {
        return Ok(0);
    };
    let aligned = mount.aligned(offset) && bufs.iter().all(|buf| mount.aligned(buf.len() as u64));
    if !aligned && access.direct {
        return Err(mount.misaligned("read", offset, len));
    }
    let pieces = collect(mount, inode, &request, wait)
        .map_err(|error| count_would_block(mount, slot, error))?;
    held.begin_io();
    if aligned {
        transfer(mount, bufs, &pieces)?;
        zero_range(bufs, request.bytes, request.span);
    } else {
        bounce(mount, bufs, &request, &pieces)?;
    }
    Ok(request.bytes)
}

/// A read as far as the file goes.
#[derive(Clone, Copy)]
pub(crate) struct InFile {
    /// First byte that the device is asked for: the offset, rounded down to a logical block.
    pub(crate) start: u64,
    /// How many bytes the device is asked for, a multiple of the logical block.
    pub(crate) span: usize,
    /// Bytes of the first logical block that were not asked for.
    pub(crate) skip: usize,
    /// How many bytes the caller gets.
    pub(crate) bytes: usize,
}

impl InFile {
    /// `None` if the read is empty, or begins at or past i_size, sampled here once.
    pub(crate) fn clamp(mount: &Mount, inode: &Inode, offset: u64, len: usize) -> Option<InFile> {
        let left = inode.i_size().checked_sub(offset)?;
        let bytes = (len as u64).min(left) as usize;
        if bytes == 0 {
            return None;
        }
        let block = u64::from(mount.device.geometry().logical_block_bytes);
        let start = offset - offset % block;
        let end = (offset + bytes as u64).next_multiple_of(block);
        Some(InFile {
            start,
            span: (end - start) as usize,
            skip: (offset - start) as usize,
            bytes,
        })
    }
}

/// A few pieces, as most reads have, need no memory of their own.
pub(crate) type PieceList = SmallVec<[Piece; 4]>;

/// All pieces of a read, before any of it is transferred.
pub(crate) fn collect(
    mount: &Mount,
    inode: &Inode,
    request: &InFile,
    wait: Wait,
) -> Result<PieceList> {
    Pieces::new(mount, inode, request.start, request.span, wait).collect()
}

/// Reads the pieces into the buffers. Every piece boundary and buffer length is a multiple of the
/// logical block.
fn transfer(mount: &Mount, bufs: &mut [IoSliceMut<'_>], pieces: &[Piece]) -> Result<()> {
    let mut bufs = bufs.iter_mut();
    let mut room: &mut [u8] = &mut [];
    for piece in pieces {
        let mut done = 0;
        while done < piece.len {
            if room.is_empty() {
                room = bufs.next().expect("pieces are no longer than the buffers");
                continue;
            }
            let now = room.len().min(piece.len - done);
            let (part, rest) = std::mem::take(&mut room).split_at_mut(now);
            fetch(mount, piece, done, part)?;
            room = rest;
            done += now;
        }
    }
    Ok(())
}

/// Reads bytes `done ..` of a piece.
fn fetch(mount: &Mount, piece: &Piece, done: usize, part: &mut [u8]) -> Result<()> {
    match piece.kind {
        MapKind::Mapped => Ok(mount
            .device
            .read_at(piece.device_offset + done as u64, part)?),
        MapKind::Hole | MapKind::Unwritten => {
            part.fill(0);
            Ok(())
        }
    }
}

/// Reads through memory of its own, for requests whose edges are not aligned.
fn bounce(
    mount: &Mount,
    bufs: &mut [IoSliceMut<'_>],
    request: &InFile,
    pieces: &[Piece],
) -> Result<()> {
    let mut copy = Buf::zeroed(request.span.min(BOUNCE_BYTES));
    let mut out = Scatter::new(bufs, request.skip, request.bytes);
    for piece in pieces {
        let mut done = 0;
        while done < piece.len {
            let now = (piece.len - done).min(copy.len());
            fetch(mount, piece, done, &mut copy[..now])?;
            out.put(&copy[..now]);
            done += now;
        }
    }
    Ok(())
}

/// Spreads a stream of bytes over buffers, leaving out its head and what passes the end.
struct Scatter<'a, 'b> {
    bufs: std::slice::IterMut<'a, IoSliceMut<'b>>,
    room: &'a mut [u8],
    skip: usize,
    left: usize,
}

impl<'a, 'b> Scatter<'a, 'b> {
    fn new(bufs: &'a mut [IoSliceMut<'b>], skip: usize, left: usize) -> Self {
        Scatter {
            bufs: bufs.iter_mut(),
            room: &mut [],
            skip,
            left,
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        let mut bytes = &bytes[skipped..];
        bytes = &bytes[..bytes.len().min(self.left)];
        while !bytes.is_empty() {
            if self.room.is_empty() {
                self.room = self
                    .bufs
                    .next()
                    .expect("no more bytes than the buffers hold");
                continue;
            }
            let now = self.room.len().min(bytes.len());
            let (part, rest) = std::mem::take(&mut self.room).split_at_mut(now);
            part.copy_from_slice(&bytes[..now]);
            self.room = rest;
            self.left -= now;
            bytes = &bytes[now..];
        }
    }
}

/// Zeros bytes `from .. to` of the buffers: what the device put behind the end of the file.
fn zero_range(bufs: &mut [IoSliceMut<'_>], from: usize, to: usize) {
    let mut before = 0;
    for buf in bufs {
        let inside = |at: usize| at.saturating_sub(before).min(buf.len());
        let range = inside(from)..inside(to);
        before += buf.len();
        buf[range].fill(0);
    }
}

/// A read of a file whose data lies in its inode; what that has no room for are zeros. Waits for nothing.
pub(crate) fn read_inline(
    mount: &Mount,
    inode: &Inode,
    bufs: &mut [IoSliceMut<'_>],
    offset: u64,
) -> Result<usize> {
    let data = mount.inline_data(inode)?;
    let from = usize::try_from(offset).map_or(data.len(), |offset| offset.min(data.len()));
    let asked: usize = bufs.iter().map(|buf| buf.len()).sum();
    let left = inode.i_size().saturating_sub(offset);
    let len = usize::try_from(left).map_or(asked, |left| left.min(asked));
    let bytes = &data[from..][..len.min(data.len() - from)];
    Scatter::new(bufs, 0, bytes.len()).put(bytes);
    zero_range(bufs, bytes.len(), len);
    Ok(len)
}

impl Mount {
    /// Whether `bytes` is a multiple of the device's logical block.
    #[inline]
    pub(crate) fn aligned(&self, bytes: u64) -> bool {
        bytes & self.logical_mask == 0
    }

    /// The error of a request that the device's logical block does not divide.
    pub(crate) fn misaligned(&self, what: &str, offset: u64, len: usize) -> Error {
        Error::Invalid(format!(
            "direct {what} of {len} bytes at {offset}: offset, length and each buffer must be multiples of {} bytes",
            self.logical_mask + 1
        ))
    }
}
