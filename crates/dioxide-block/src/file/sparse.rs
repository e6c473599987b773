//! A mapping that takes no memory for the holes of an image: a transfer is a copy where the file has pages, and a system call
//! where it has none.
//!
//! A file in memory takes a page for a hole that is read through a mapping, which for a sparse image means all of its size in
//! the end. So this device knows which pages are there: it asks once for each [`WINDOW_PAGES`], and its own writes tell of the
//! rest, since nobody else writes to an image that is locked.
//!
//! Invariant: what the table says costs memory or time when it is wrong, never contents: the mapping and the calls show the
//! same page cache. A page that is punched while somebody notes that it is there is such a case.
//!
//! Lanes and queues, the data of small requests, copy. Transfers through the trait, metadata mostly, are calls always: pages that
//! are mapped count as memory of the process, and a cache keeps them anyway.
#![allow(unsafe_code)]

use super::Lane;
use super::io::FileIo;
use super::mapping::MappedDevice;
use crate::mem::{Region, Words};
use crate::{Device, Durability, Geometry, Queue, QueueOptions, Result};
use rustix::fs::{Access, access};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

/// How many pages are asked for at once: 2 MiB of pages of 4 KiB.
const WINDOW_PAGES: usize = 512;

/// Which pages of a region the file has.
#[derive(Debug)]
pub(super) struct Present {
    /// A bit for each page; set if it is there.
    pages: Words,
    /// A bit for each window; set if the kernel was asked.
    asked: Words,
    page_shift: u32,
}

impl Present {
    /// Of a region of so many bytes, of which nothing is known.
    pub(super) fn unknown(len: usize) -> io::Result<Present> {
        let page = rustix::param::page_size();
        let pages = len.div_ceil(page);
        Ok(Present {
            // One more than there are: where an empty range begins that is at the end.
            pages: Words::zeroed(pages / 64 + 1)?,
            asked: Words::zeroed(pages / WINDOW_PAGES / 64 + 1)?,
            page_shift: page.trailing_zeros(),
        })
    }

    /// Whether the kernel says of this file's pages which are there: to those who may write it, and to its owner. To others it
    /// says that all are.
    pub(super) fn is_told(io: &FileIo) -> bool {
        let path = || format!("/proc/self/fd/{}", io.fd.as_raw_fd());
        !io.geometry.read_only || access(path(), Access::WRITE_OK).is_ok()
    }

    fn span(&self, at: usize, len: usize) -> (usize, usize) {
        let last = at + len.max(1) - 1;
        (at >> self.page_shift, last >> self.page_shift)
    }

    /// Whether all pages of a range of the region are known to be there.
    #[inline(always)]
    pub(super) fn has(&self, at: usize, len: usize) -> bool {
        let (first, last) = self.span(at, len);
        match first == last {
            true => self.pages[first / 64].load(Ordering::Relaxed) >> (first % 64) & 1 == 1,
            false => self.has_all(first, last),
        }
    }

    #[inline(never)]
    fn has_all(&self, first: usize, last: usize) -> bool {
        masks(first, last).all(|(word, mask)| {
            let word = &self.pages[word];
            word.load(Ordering::Relaxed) & mask == mask
        })
    }

    /// Notes a range that was written.
    pub(super) fn written(&self, at: usize, len: usize) {
        let (first, last) = self.span(at, len);
        for (word, mask) in masks(first, last) {
            self.pages[word].fetch_or(mask, Ordering::Relaxed);
        }
    }

    /// Forgets a range, before it is punched.
    pub(super) fn punched(&self, at: usize, len: usize) {
        let (first, last) = self.span(at, len);
        for (word, mask) in masks(first, last) {
            self.pages[word].fetch_and(!mask, Ordering::Relaxed);
        }
    }

    /// Asks the kernel about the windows of a range, if nobody has.
    pub(super) fn ask(&self, region: &Region, at: usize, len: usize) {
        let (first, last) = self.span(at, len);
        for window in first / WINDOW_PAGES..=last / WINDOW_PAGES {
            let mask = 1 << (window % 64);
            if self.asked[window / 64].fetch_or(mask, Ordering::Relaxed) & mask == 0 {
                self.ask_window(region, window * WINDOW_PAGES);
            }
        }
    }

    /// What is not answered is as a hole.
    fn ask_window(&self, region: &Region, first: usize) {
        let (base, len) = region.span();
        let at = first << self.page_shift;
        let bytes = (len - at).min(WINDOW_PAGES << self.page_shift);
        let mut there = [0u8; WINDOW_PAGES];
        // SAFETY: the range begins at a page of the region and ends in it; the kernel rounds it up to pages, of which there are
        // no more than `there` has bytes.
        let told = unsafe { libc::mincore(base.add(at).cast(), bytes, there.as_mut_ptr()) };
        if told != 0 {
            return;
        }
        for (i, bits) in there.chunks(64).enumerate() {
            let bit = |word, (n, byte): (usize, &u8)| word | u64::from(byte & 1) << n;
            let bits = bits.iter().enumerate().fold(0, bit);
            if bits != 0 {
                self.pages[first / 64 + i].fetch_or(bits, Ordering::Relaxed);
            }
        }
    }
}

/// The words and the bits in them of the pages `first..=last`.
fn masks(first: usize, last: usize) -> impl Iterator<Item = (usize, u64)> {
    (first / 64..=last / 64).map(move |word| {
        let from = if word == first / 64 { first % 64 } else { 0 };
        let to = if word == last / 64 { last % 64 } else { 63 };
        (word, (u64::MAX >> (63 - to)) & (u64::MAX << from))
    })
}

/// See the module header.
#[derive(Debug)]
pub(super) struct SparseDevice(MappedDevice);

impl SparseDevice {
    /// `mapped` knows which pages are there.
    pub(super) fn new(mapped: MappedDevice) -> SparseDevice {
        SparseDevice(mapped)
    }
}

impl Device for SparseDevice {
    #[inline]
    fn geometry(&self) -> &Geometry {
        self.0.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.io().read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        self.0.io().write_at(offset, buf, durability)?;
        self.0.note_written(offset, buf.len());
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.0.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.0.write_zeroes(offset, len)
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        self.0.open_queue(options)
    }

    fn lane(&self) -> Option<Lane> {
        self.0.lane()
    }

    fn describe(&self) -> String {
        self.0.io().describe("mapping, and pread for holes,")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_cover_a_range_of_pages() {
        let all = |first, last| masks(first, last).collect::<Vec<_>>();
        assert_eq!(all(3, 3), [(0, 8)]);
        assert_eq!(all(62, 65), [(0, 3 << 62), (1, 3)]);
        assert_eq!(all(64, 191), [(1, u64::MAX), (2, u64::MAX)]);
    }
}
