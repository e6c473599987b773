//! An open file with a geometry, and its blocking transfers.
//!
//! Invariants: `fd` is open with the access that `geometry.read_only` says, holds our lock, and has
//! `O_DIRECT` exactly if `direct`. Offsets handed in are device offsets; only this module and the
//! queue add `base`.
//!
//! The fast path is a bounds check and one system call; whatever is unusual (a short transfer, a
//! signal, memory that direct I/O would refuse) goes to a cold function.
#![allow(unsafe_code)]

use super::guard::Locked;
use crate::{BUF_ALIGN, Buf, Durability, Error, Geometry, Result};
use rustix::fs::{self, FallocateFlags};
use rustix::io::{self as rio, Errno, ReadWriteFlags};
use rustix::ioctl;
use std::io::{self, IoSlice, IoSliceMut};
use std::iter;
use std::os::fd::{AsFd, OwnedFd};

/// Unaligned memory is copied through a buffer of at most this size.
const BOUNCE_BYTES: usize = 1 << 20;

/// rustix does not have it.
const RWF_ATOMIC: ReadWriteFlags = ReadWriteFlags::from_bits_retain(libc::RWF_ATOMIC as u32);

const BLKDISCARD: ioctl::Opcode = ioctl::opcode::none(0x12, 119);
const BLKZEROOUT: ioctl::Opcode = ioctl::opcode::none(0x12, 127);

#[derive(Debug)]
pub(super) struct FileIo {
    pub(super) fd: Locked,
    /// What lies behind it, locked as long.
    pub(super) behind: Vec<Locked>,
    /// Byte of the file where the device begins.
    pub(super) base: u64,
    pub(super) geometry: Geometry,
    pub(super) direct: bool,
    /// A block device that is not, for reads past the page cache.
    pub(super) past_cache: Option<OwnedFd>,
    /// Memory addresses must have none of these bits: the alignment minus 1, or 0.
    pub(super) mem_mask: usize,
    pub(super) block_device: bool,
    /// On a file system that lives in memory and has no write-back.
    pub(super) in_memory: bool,
    /// The disk has queues for polled I/O.
    pub(super) polls: bool,
    /// For reports.
    pub(super) name: String,
}

impl FileIo {
    /// The locks last as long as any ring in which the files are registered: the kernel has those until it has done all that
    /// the ring was given.
    pub(super) fn stay_locked(&self) {
        self.files().for_each(Locked::stay_locked);
    }

    /// What a ring is given, the image first: with it what lies behind, which the ring keeps locked for as long.
    pub(super) fn files(&self) -> impl Iterator<Item = &Locked> {
        iter::once(&self.fd).chain(&self.behind)
    }

    #[inline]
    pub(super) fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.geometry.check("read", offset, buf.len() as u64)?;
        if buf.as_ptr() as usize & self.mem_mask != 0 {
            return self.read_bounced(offset, buf);
        }
        self.read_all(offset, buf)
    }

    #[inline]
    pub(super) fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        self.writable("write")?;
        self.geometry.check("write", offset, buf.len() as u64)?;
        if buf.as_ptr() as usize & self.mem_mask != 0 {
            return self.write_bounced(offset, buf, durability);
        }
        self.write_all(offset, buf, durability)
    }

    /// As [`FileIo::read_at`], past the page cache of a block device.
    pub(super) fn read_past_cache_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.direct || !self.block_device {
            return self.read_at(offset, buf);
        }
        let len = buf.len() as u64;
        self.geometry.check("read", offset, len)?;
        let Some(fd) = &self.past_cache else {
            return Err(Error::Unsupported {
                what: format!("reading {} past the page cache, by O_DIRECT", self.name),
            });
        };
        // What direct I/O asks for may not suit where the device begins.
        let at = self.base + offset;
        let unit = BUF_ALIGN as u64;
        let start = at / unit * unit;
        let mut whole = Buf::zeroed(((at + len).next_multiple_of(unit) - start) as usize);
        let there = rio::retry_on_intr(|| rio::pread(fd, &mut whole[..], start))
            .map_err(|e| failed("read", offset, len, e))?;
        let range = (at - start) as usize..(at - start) as usize + buf.len();
        if there < range.end {
            return Err(failed("read", offset, len, io::ErrorKind::UnexpectedEof));
        }
        buf.copy_from_slice(&whole[range]);
        Ok(())
    }

    /// As [`FileIo::read_at`], of a range that was checked and memory that suits.
    #[inline]
    pub(super) fn read_all(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        match rio::pread(&self.fd, &mut *buf, self.base + offset) {
            Ok(n) if n == buf.len() => Ok(()),
            first => self.read_rest(first, offset, buf),
        }
    }

    #[cold]
    fn read_rest(&self, first: rio::Result<usize>, offset: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len();
        complete(("read", offset, len), first, |done| {
            rio::pread(&self.fd, &mut buf[done..], self.base + offset + done as u64)
        })
    }

    /// As [`FileIo::write_at`], of a range that was checked and memory that suits.
    #[inline]
    pub(super) fn write_all(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        if durability == Durability::ForceUnitAccess {
            return self.write_durable(offset, buf);
        }
        match rio::pwrite(&self.fd, buf, self.base + offset) {
            Ok(n) if n == buf.len() => Ok(()),
            first => self.write_rest(first, offset, buf),
        }
    }

    #[cold]
    fn write_rest(&self, first: rio::Result<usize>, offset: u64, buf: &[u8]) -> Result<()> {
        complete(("write", offset, buf.len()), first, |done| {
            rio::pwrite(&self.fd, &buf[done..], self.base + offset + done as u64)
        })
    }

    fn write_durable(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let dsync = |done: usize| {
            let slices = [IoSlice::new(&buf[done..])];
            let at = self.base + offset + done as u64;
            rio::pwritev2(&self.fd, &slices, at, ReadWriteFlags::DSYNC)
        };
        match dsync(0) {
            // A file system without the flag.
            Err(Errno::OPNOTSUPP) => {
                self.write_all(offset, buf, Durability::Cached)?;
                self.flush()
            }
            first => complete(("write", offset, buf.len()), first, dsync),
        }
    }

    /// One system call, which does all or nothing, and is not repeated for a rest.
    pub(super) fn write_atomic_at(
        &self,
        offset: u64,
        buf: &[u8],
        durability: Durability,
    ) -> Result<()> {
        self.writable("write")?;
        self.geometry.check_atomic(offset, buf.len() as u64)?;
        if buf.as_ptr() as usize & self.mem_mask != 0 {
            return self.write_atomic_at(offset, &Buf::copy_of(buf), durability);
        }
        let flags = match durability {
            Durability::Cached => RWF_ATOMIC,
            Durability::ForceUnitAccess => RWF_ATOMIC | ReadWriteFlags::DSYNC,
        };
        let slices = [IoSlice::new(buf)];
        loop {
            match rio::pwritev2(&self.fd, &slices, self.base + offset, flags) {
                Ok(n) if n == buf.len() => return Ok(()),
                Ok(_) => return Err(stopped("write", offset, buf.len() as u64)),
                Err(Errno::INTR) => {}
                Err(e) => return Err(failed("write", offset, buf.len() as u64, e)),
            }
        }
    }

    #[cold]
    fn read_bounced(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut bounce = Buf::zeroed(buf.len().min(BOUNCE_BYTES));
        for (i, part) in buf.chunks_mut(BOUNCE_BYTES).enumerate() {
            let aligned = &mut bounce[..part.len()];
            self.read_all(offset + (i * BOUNCE_BYTES) as u64, aligned)?;
            part.copy_from_slice(aligned);
        }
        Ok(())
    }

    #[cold]
    fn write_bounced(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        let mut bounce = Buf::zeroed(buf.len().min(BOUNCE_BYTES));
        for (i, part) in buf.chunks(BOUNCE_BYTES).enumerate() {
            let aligned = &mut bounce[..part.len()];
            aligned.copy_from_slice(part);
            self.write_all(offset + (i * BOUNCE_BYTES) as u64, aligned, durability)?;
        }
        Ok(())
    }

    pub(super) fn flush(&self) -> Result<()> {
        if self.geometry.read_only || self.in_memory {
            return Ok(());
        }
        rio::retry_on_intr(|| fs::fdatasync(&self.fd)).map_err(|e| failed("flush", 0, 0, e))
    }

    pub(super) fn discard(&self, offset: u64, len: u64) -> Result<()> {
        const OP: &str = "discard";
        self.writable(OP)?;
        self.geometry.check(OP, offset, len)?;
        if !self.geometry.discard {
            return Err(Error::Unsupported {
                what: format!("discard on {}", self.name),
            });
        }
        if len == 0 {
            return Ok(());
        }
        let done = rio::retry_on_intr(|| match self.block_device {
            true => self.block_ioctl::<BLKDISCARD>(offset, len),
            false => self.punch_hole(offset, len),
        });
        done.map_err(|e| failed(OP, offset, len, e))
    }

    pub(super) fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        const OP: &str = "write zeroes";
        self.writable(OP)?;
        self.geometry.check(OP, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let sector = u64::from(self.geometry.logical_block_bytes);
        if self.block_device && !self.base.is_multiple_of(sector) {
            // The device wants whole sectors of its own.
            return self.write_zeroes_by_hand(offset, len);
        }
        let done = rio::retry_on_intr(|| match self.block_device {
            true => self.block_ioctl::<BLKZEROOUT>(offset, len),
            false => self.zero_range(offset, len),
        });
        match done {
            Err(Errno::OPNOTSUPP | Errno::NOTTY) => self.write_zeroes_by_hand(offset, len),
            other => other.map_err(|e| failed(OP, offset, len, e)),
        }
    }

    fn block_ioctl<const OP: ioctl::Opcode>(&self, offset: u64, len: u64) -> rio::Result<()> {
        let range = [self.base + offset, len];
        // SAFETY: BLKDISCARD and BLKZEROOUT, the only two that are asked for, read two u64 (start
        // and length in bytes) and touch no other memory.
        unsafe { ioctl::ioctl(&self.fd, ioctl::Setter::<OP, [u64; 2]>::new(range)) }
    }

    /// Zeros that keep the space allocated; a hole where the file system knows no such thing.
    fn zero_range(&self, offset: u64, len: u64) -> rio::Result<()> {
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        match fs::fallocate(&self.fd, flags, self.base + offset, len) {
            Err(Errno::OPNOTSUPP) => self.punch_hole(offset, len),
            other => other,
        }
    }

    fn punch_hole(&self, offset: u64, len: u64) -> rio::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fs::fallocate(&self.fd, flags, self.base + offset, len)
    }

    fn write_zeroes_by_hand(&self, mut offset: u64, len: u64) -> Result<()> {
        let zeros = Buf::zeroed(len.min(BOUNCE_BYTES as u64) as usize);
        let end = offset + len;
        while offset < end {
            let step = (end - offset).min(BOUNCE_BYTES as u64);
            self.write_all(offset, &zeros[..step as usize], Durability::Cached)?;
            offset += step;
        }
        Ok(())
    }

    #[inline]
    pub(super) fn writable(&self, op: &'static str) -> Result<()> {
        match self.geometry.read_only {
            true => Err(Error::ReadOnly { op }),
            false => Ok(()),
        }
    }

    /// Whether the file can say "this would block", without which io_uring hands each request to a
    /// kernel thread.
    pub(super) fn has_nowait(&self) -> bool {
        let mut block = Buf::zeroed(self.geometry.logical_block_bytes as usize);
        let mut slices = [IoSliceMut::new(&mut block)];
        let read = rio::preadv2(&self.fd, &mut slices, self.base, ReadWriteFlags::NOWAIT);
        read != Err(Errno::OPNOTSUPP)
    }

    /// Whether holes can be punched: asked beyond the end of the file, where there is nothing.
    pub(super) fn can_punch(fd: impl AsFd, file_size: u64) -> bool {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let beyond = file_size.next_multiple_of(1 << 16);
        fs::fallocate(fd, flags, beyond, 1 << 16) != Err(Errno::OPNOTSUPP)
    }

    pub(super) fn describe(&self, backend: &str) -> String {
        let how = match (self.in_memory, self.direct) {
            (true, _) => " (memory)",
            (false, true) => " (direct)",
            (false, false) => " (page cache)",
        };
        format!("{backend} on {}{how}", self.name)
    }
}

/// Repeats `step` from where the last one ended until the whole transfer is done.
fn complete(
    (op, offset, len): (&'static str, u64, usize),
    first: rio::Result<usize>,
    mut step: impl FnMut(usize) -> rio::Result<usize>,
) -> Result<()> {
    let (mut done, mut moved) = (0, first);
    loop {
        match moved {
            Ok(n) if done + n == len => return Ok(()),
            Ok(0) => return Err(stopped(op, offset + done as u64, (len - done) as u64)),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(failed(op, offset, len as u64, e)),
        }
        moved = step(done);
    }
}

/// A transfer that moved nothing more: the file ended where the device does not.
pub(super) fn stopped(op: &'static str, offset: u64, len: u64) -> Error {
    let kind = match op {
        "read" => io::ErrorKind::UnexpectedEof,
        _ => io::ErrorKind::WriteZero,
    };
    failed(op, offset, len, kind)
}

pub(super) fn failed(
    op: &'static str,
    offset: u64,
    len: u64,
    source: impl Into<io::Error>,
) -> Error {
    Error::Io {
        op,
        offset,
        len,
        source: source.into(),
    }
}
