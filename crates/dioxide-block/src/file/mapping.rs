//! A shared mapping of the whole image: a transfer is a copy, without a system call.
//!
//! The pages are the page cache's own, so a mapping, pread and other processes see the same bytes.
//! It suits images in memory, and images on disk that fit there.
//!
//! Invariants: the mapping is touched only by the copies in this file. Each copy is followed by a
//! look at the *lost* mark ([`super::sigbus`] explains it and proves that it cannot be missed); a
//! transfer whose copy saw the mark is repeated by pread or pwrite, and once the mark is set, all
//! transfers go that way. So a full file system gives `ENOSPC` and a truncated image an end of file,
//! as they would have from the start, and never a signal that ends the program.
//!
//! Copies race with other writers of the same bytes (threads, processes) as in [`crate::mem`].
//!
//! A mapping may know which pages the file has ([`super::sparse`]): what is not there is not copied then, but transferred by a call.
//!
//! Rejected: `msync` per durable write. `fdatasync` writes back what was dirtied through the
//! mapping as well, and is still right after the mapping was lost.
#![allow(unsafe_code)]

use super::Lane;
use super::io::{FileIo, failed};
use super::sigbus::Watch;
use super::sparse::Present;
use crate::inline::InlineQueue;
use crate::mem::{Region, Streamed};
use crate::{Device, Durability, Geometry, OpKind, Queue, QueueOptions, Result};
use rustix::fs::{self, SeekFrom};
use std::ffi::c_int;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

/// Copies look at the mark at least this often, which bounds how many pages a handler replaces.
const CHUNK_BYTES: usize = 1 << 20;

/// Clones share the mapping.
#[derive(Clone, Debug)]
pub(super) struct MappedDevice(Arc<Mapping>);

#[derive(Debug)]
struct Mapping {
    io: FileIo,
    /// Bytes of the region before the device's first: mappings begin on pages.
    lead: usize,
    /// Which pages may be copied; all, if `None`.
    present: Option<Present>,
    // Order of drop: no watch may outlive the range that it covers.
    watch: Watch,
    region: Region,
}

/// Puts what lies in whole large pages into such (Linux 6.1); not every C library has a name for it.
const MADV_COLLAPSE: c_int = 25;

/// What makes a mapping of an open file.
pub(super) struct Parts {
    lead: usize,
    watch: Watch,
    region: Region,
}

impl Parts {
    /// Maps what `io` describes; `io` must not be direct.
    pub(super) fn new(io: &FileIo) -> Result<Parts> {
        debug_assert!(!io.direct);
        let page = rustix::param::page_size() as u64;
        let lead = (io.base % page) as usize;
        let len = io.geometry.size_bytes as usize + lead;
        let write = !io.geometry.read_only;
        let region = Region::shared(&io.fd, io.base - lead as u64, len, write)
            .map_err(|e| failed("map", 0, io.geometry.size_bytes, e))?;
        // The last page is ours to its end.
        let (start, len) = (region.span().0, len.next_multiple_of(page as usize));
        let watch = Watch::new(start, len)?;
        Ok(Parts {
            lead,
            watch,
            region,
        })
    }

    /// A table for the pages of this region.
    pub(super) fn present(&self) -> Result<Present> {
        let len = self.region.span().1;
        Present::unknown(len).map_err(|e| failed("map", 0, len as u64, e))
    }
}

impl MappedDevice {
    /// `parts` are those of `io`.
    pub(super) fn new(mut io: FileIo, parts: Parts, present: Option<Present>) -> MappedDevice {
        io.geometry.inline = true;
        // Elsewhere a durable write is a write and a flush.
        io.geometry.fua = io.in_memory;
        MappedDevice(Arc::new(Mapping {
            io,
            present,
            lead: parts.lead,
            watch: parts.watch,
            region: parts.region,
        }))
    }

    pub(super) fn io(&self) -> &FileIo {
        &self.0.io
    }
}

impl Mapping {
    /// Whether a copy that has just ended was whole.
    #[inline]
    fn kept(&self) -> bool {
        compiler_fence(Ordering::SeqCst);
        !self.watch.lost()
    }

    /// Whether a range may be copied.
    #[inline(always)]
    fn copies(&self, offset: u64, len: usize) -> bool {
        let there = match &self.present {
            None => true,
            Some(present) => present.has(self.lead + offset as usize, len),
        };
        there && !self.watch.lost()
    }

    #[inline(always)]
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.copies(offset, buf.len()) {
            // SAFETY: the caller checked the range against the device's size, and the region is
            // `lead` longer.
            unsafe { self.region.copy_out(self.lead + offset as usize, buf) };
            if self.kept() {
                return Ok(());
            }
        }
        self.read_by_call(offset, buf)
    }

    #[inline(always)]
    fn write(&self, offset: u64, buf: &[u8]) -> Result<Streamed> {
        if self.copies(offset, buf.len()) {
            // SAFETY: as in `read`; the caller checked that the device is writable.
            let streamed = unsafe { self.region.stream_in(self.lead + offset as usize, buf) };
            if self.kept() {
                return Ok(streamed);
            }
        }
        self.write_by_call(offset, buf)?;
        Ok(Streamed::AT_ONCE)
    }

    #[inline(never)]
    fn read_in_chunks(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let places = (offset..).step_by(CHUNK_BYTES);
        let mut chunks = buf.chunks_mut(CHUNK_BYTES).zip(places);
        chunks.try_for_each(|(chunk, at)| self.read(at, chunk))
    }

    #[inline(never)]
    fn write_in_chunks(&self, offset: u64, buf: &[u8]) -> Result<Streamed> {
        for (chunk, at) in buf.chunks(CHUNK_BYTES).zip((offset..).step_by(CHUNK_BYTES)) {
            drop(self.write(at, chunk)?);
        }
        Ok(Streamed::AT_ONCE)
    }

    #[cold]
    fn read_by_call(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if let Some(present) = &self.present {
            present.ask(&self.region, self.lead + offset as usize, buf.len());
        }
        self.io.read_all(offset, buf)
    }

    #[cold]
    fn write_by_call(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.io.write_all(offset, buf, Durability::Cached)?;
        self.note_written(offset, buf.len());
        Ok(())
    }

    fn note_written(&self, offset: u64, len: usize) {
        if let Some(present) = &self.present {
            present.written(self.lead + offset as usize, len);
        }
    }

    /// Before a range of the device is punched, or may be.
    fn note_punched(&self, offset: u64, len: u64) {
        if let Some(present) = &self.present {
            present.punched(self.lead + offset as usize, len as usize);
        }
    }

    /// Reads the data of the file, not its holes, and maps it, in large pages where the file can have them. As much as works:
    /// what fails here fails again, with an error, when it is used.
    fn populate(&self) {
        let populate = match self.io.geometry.read_only {
            true => libc::MADV_POPULATE_READ,
            false => libc::MADV_POPULATE_WRITE,
        };
        let end = self.io.base + self.io.geometry.size_bytes;
        let mut from = self.io.base;
        while let Some(data) = self.next_data(from, end) {
            from = data.end;
            if let Err(error) = self.advise(&data, populate) {
                tracing::debug!(%error, image = %self.io.name, "populate stopped");
                return;
            }
            if let Err(error) = self.advise(&data, MADV_COLLAPSE) {
                tracing::debug!(%error, image = %self.io.name, "not all pages are large");
            }
        }
    }

    /// The next range of the file in `from..end` that has data; all of it where the file cannot say.
    fn next_data(&self, from: u64, end: u64) -> Option<Range<u64>> {
        if from >= end {
            return None;
        }
        let start = match fs::seek(&self.io.fd, SeekFrom::Data(from)) {
            Ok(start) if start < end => start,
            Err(rustix::io::Errno::INVAL) => return Some(from..end),
            _ => return None,
        };
        let hole = fs::seek(&self.io.fd, SeekFrom::Hole(start)).unwrap_or(end);
        Some(start..hole.clamp(start + 1, end))
    }

    fn advise(&self, file: &Range<u64>, advice: c_int) -> io::Result<()> {
        let page = rustix::param::page_size();
        let map_start = self.io.base - self.lead as u64;
        let first = (file.start - map_start) as usize / page * page;
        let end = (file.end - map_start) as usize;
        // SAFETY: the range lies inside the region (`file` is inside the device), and neither populating nor
        // collapsing changes any contents.
        let done = unsafe {
            let at = self.region.span().0.add(first);
            libc::madvise(at.cast(), end - first, advice)
        };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl MappedDevice {
    /// Fills the page tables where the file has data.
    pub(super) fn populate(&self) {
        self.0.populate();
    }

    /// After a range was written by a call.
    pub(super) fn note_written(&self, offset: u64, len: usize) {
        self.0.note_written(offset, len);
    }

    /// Reads at any offset of the device.
    #[inline(always)]
    pub(super) fn read_bytes(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let map = &*self.0;
        let len = buf.len();
        map.io.geometry.check_inside("read", offset, len as u64)?;
        match len <= CHUNK_BYTES {
            true => map.read(offset, buf),
            false => map.read_in_chunks(offset, buf),
        }
    }

    /// Writes at any offset of the device.
    #[inline(always)]
    pub(super) fn write_bytes(&self, offset: u64, buf: &[u8]) -> Result<Streamed> {
        let map = &*self.0;
        let len = buf.len();
        map.io.writable("write")?;
        map.io.geometry.check_inside("write", offset, len as u64)?;
        match len <= CHUNK_BYTES {
            true => map.write(offset, buf),
            false => map.write_in_chunks(offset, buf),
        }
    }
}

impl Device for MappedDevice {
    #[inline]
    fn geometry(&self) -> &Geometry {
        &self.0.io.geometry
    }

    #[inline(always)]
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.geometry().check("read", offset, buf.len() as u64)?;
        self.read_bytes(offset, buf)
    }

    fn read_past_cache_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.io.read_past_cache_at(offset, buf)
    }

    #[inline(always)]
    fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        drop(self.write_streamed_at(offset, buf)?);
        match durability {
            Durability::Cached => Ok(()),
            Durability::ForceUnitAccess => self.0.io.flush(),
        }
    }

    #[inline(always)]
    fn write_streamed_at(&self, offset: u64, buf: &[u8]) -> Result<Streamed> {
        self.geometry().check("write", offset, buf.len() as u64)?;
        self.write_bytes(offset, buf)
    }

    fn flush(&self) -> Result<()> {
        self.0.io.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().check("discard", offset, len)?;
        self.0.note_punched(offset, len);
        self.0.io.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().check("write zeroes", offset, len)?;
        self.0.note_punched(offset, len);
        self.0.io.write_zeroes(offset, len)
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        Ok(Box::new(InlineQueue::new(self.clone(), options)))
    }

    #[inline(always)]
    fn defers(&self, kind: OpKind, offset: u64) -> bool {
        let map = &*self.0;
        let copied =
            || map.io.geometry.check_inside("defer", offset, 1).is_ok() && map.copies(offset, 1);
        match kind {
            OpKind::Read => copied() && map.region.prefetch(map.lead + offset as usize),
            // What goes past the cache is not to be fetched.
            OpKind::Write => Streamed::IS_USUAL && copied(),
            _ => false,
        }
    }

    fn lane(&self) -> Option<Lane> {
        Some(Lane::mapping(self.clone()))
    }

    fn describe(&self) -> String {
        self.0.io.describe("mapping")
    }
}
