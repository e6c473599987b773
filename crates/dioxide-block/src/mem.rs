//! A device in memory, for tests and as the base of simulated devices; and memory for tables, [`Words`] and [`Table`].
//!
//! One sparse anonymous mapping: untouched pages cost nothing and read as zeros. Nothing survives
//! the process, so a flush has nothing to do.
//!
//! # Concurrency
//! There are no locks. Transfers that do not overlap are independent. Transfers that overlap in
//! time and place give, like a disk, some mixture of the old and new bytes; the file system above
//! orders them. The mapping is touched only by copies through raw pointers, never through a Rust
//! reference, so the compiler assumes nothing about its contents.
//!
//! Rejected: chunks under locks. They cost more than the copy of a small transfer, and a disk does
//! not promise what they would give.
#![allow(unsafe_code)]

mod stream;
mod table;

pub use stream::Streamed;
pub use table::{SEVENTH, Table};

use crate::inline::InlineQueue;
use crate::{Device, Durability, Geometry, Queue, QueueOptions, Result};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Bytes of a large page of the processor's, where it has any.
pub(crate) const LARGE_PAGE: usize = 2 << 20;

/// A mapping of `len` bytes that lives as long as the value. Invariant: `base..base+len` is mapped
/// readable (and writable, unless it was mapped read-only) until drop, and is owned by no Rust object.
pub(crate) struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a Region is an address range; see `copy_out` and `copy_in` for the rules of access.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// Has the processor fetch the cache line of `place`, which is needed soon, and does not wait for it. Nothing where the
/// processor cannot be asked.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    fetch(std::ptr::from_ref(place).cast());
}

#[inline(always)]
fn fetch(at: *const u8) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint: it faults for no address, and changes nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
        true
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = at;
        false
    }
}

impl Region {
    /// Sparse zeroed memory.
    pub(crate) fn anonymous(len: usize) -> io::Result<Region> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: without MAP_FIXED the kernel chooses free addresses; nothing is replaced.
        let base = unsafe { mm::mmap_anonymous(ptr::null_mut(), len, prot, flags)? };
        Region::own(base, len)
    }

    /// `len` bytes of a file from `offset`, a multiple of the page size, shared with everybody else
    /// who uses the file. Where the file has large pages they can be mapped as such.
    pub(crate) fn shared(
        fd: impl std::os::fd::AsFd,
        offset: u64,
        len: usize,
        write: bool,
    ) -> io::Result<Region> {
        let prot = match write {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        let whole = len.next_multiple_of(rustix::param::page_size());
        let reserved = whole + LARGE_PAGE;
        let unused = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: as in `anonymous`.
        let room =
            unsafe { mm::mmap_anonymous(ptr::null_mut(), reserved, ProtFlags::empty(), unused)? };
        let room = Region::own(room, reserved)?;
        // What lies at the beginning of a large page of the file is to lie at that of one of memory.
        let ahead = (offset as usize).wrapping_sub(room.base.addr().get()) % LARGE_PAGE;
        let start = room.base.as_ptr().wrapping_add(ahead);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range that it replaces lies in the room, which is our own and unused.
        let base = unsafe { mm::mmap(start.cast(), len, prot, flags, fd, offset) };
        // A mapping that fails may have taken the range away already, and somebody else's may lie there now: nothing of the
        // room is given back then.
        std::mem::forget(room);
        let base = base?;
        let behind = start.wrapping_add(whole);
        // SAFETY: the parts of the room before and behind the new mapping, which nobody uses. Before it there may be none,
        // which is refused.
        unsafe {
            let _ = mm::munmap(start.wrapping_sub(ahead).cast(), ahead);
            let _ = mm::munmap(behind.cast(), LARGE_PAGE - ahead);
        }
        Region::own(base, len)
    }

    fn own(base: *mut c_void, len: usize) -> io::Result<Region> {
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Region { base, len })
    }

    /// First address and length, for registration and advice.
    pub(crate) fn span(&self) -> (*mut u8, usize) {
        (self.base.as_ptr(), self.len)
    }

    /// Copies from the region.
    ///
    /// # Safety
    /// `offset + buf.len() <= len`.
    #[inline]
    pub(crate) unsafe fn copy_out(&self, offset: usize, buf: &mut [u8]) {
        debug_assert!(offset + buf.len() <= self.len);
        // SAFETY: the source lies inside the region (caller), which is mapped until drop; the
        // destination is an exclusive Rust slice, so it cannot overlap the region (invariant).
        // Another thread or process may change the source meanwhile: that gives mixed bytes.
        unsafe {
            ptr::copy_nonoverlapping(self.base.as_ptr().add(offset), buf.as_mut_ptr(), buf.len())
        }
    }

    /// Copies into the region.
    ///
    /// # Safety
    /// `offset + buf.len() <= len`, and the region is writable.
    #[inline]
    pub(crate) unsafe fn copy_in(&self, offset: usize, buf: &[u8]) {
        debug_assert!(offset + buf.len() <= self.len);
        // SAFETY: as in `copy_out`, the other way round.
        unsafe { ptr::copy_nonoverlapping(buf.as_ptr(), self.base.as_ptr().add(offset), buf.len()) }
    }

    /// As [`Region::copy_in`], by the way that suits the place.
    ///
    /// # Safety
    /// As [`Region::copy_in`].
    #[inline(always)]
    pub(crate) unsafe fn stream_in(&self, offset: usize, buf: &[u8]) -> Streamed {
        debug_assert!(offset + buf.len() <= self.len);
        let to = self.base.as_ptr().wrapping_add(offset);
        // SAFETY: as in `copy_in`.
        unsafe { stream::copy(buf, to) }
    }

    /// Has the processor fetch the line at `offset`, and where its page is. Returns whether it does.
    #[inline(always)]
    pub(crate) fn prefetch(&self, offset: usize) -> bool {
        fetch(self.base.as_ptr().wrapping_add(offset))
    }

    /// Zeroes part of a private anonymous region and gives whole pages back.
    ///
    /// # Safety
    /// `offset + len <= self.len`, and the region is writable, private and anonymous.
    unsafe fn zero(&self, offset: usize, len: usize) {
        let page = rustix::param::page_size();
        let (start, end) = (offset, offset + len);
        let first = start.next_multiple_of(page).min(end);
        let last = (end / page * page).max(first);
        let at = |o: usize| self.base.as_ptr().wrapping_add(o);
        // SAFETY: all ranges lie inside `start..end`, inside the region (caller); dropping whole
        // private anonymous pages makes them read as zeros.
        unsafe {
            ptr::write_bytes(at(start), 0, first - start);
            ptr::write_bytes(at(last), 0, end - last);
            let whole = last - first;
            if whole > 0 && mm::madvise(at(first).cast(), whole, Advice::LinuxDontNeed).is_err() {
                ptr::write_bytes(at(first), 0, whole);
            }
        }
    }
}

/// Words that are 0 until somebody stores to them, for large tables: only pages that were stored to take memory. What lies
/// beyond the first 32 MiB is asked for in large pages, without which each look at a random place misses the processor's
/// cache of addresses too.
#[derive(Debug)]
pub struct Words(Region);

/// Of a table that is smaller, a few pages of 4 KiB that are in use should not become a few of 2 MiB.
const SMALL: usize = 32 << 20;

impl Words {
    /// So many words; they begin at a page.
    ///
    /// # Errors
    /// The system has no such range of addresses.
    pub fn zeroed(words: usize) -> io::Result<Words> {
        let bytes = words.checked_mul(size_of::<u64>());
        let region = Region::anonymous(bytes.ok_or(io::ErrorKind::OutOfMemory)?)?;
        Ok(Words(region))
    }

    /// The same for what is filled from the begin on: in large pages, where the system has them, but for the first.
    ///
    /// # Errors
    /// As [`Words::zeroed`].
    pub fn zeroed_dense(words: usize) -> io::Result<Words> {
        let words = Words::zeroed(words)?;
        let (base, len) = words.0.span();
        if len > SMALL {
            let base = base.wrapping_add(SMALL).cast();
            // SAFETY: the range is in the region, which is our own, and this advice changes no content. Without large
            // pages it is slower.
            let _ = unsafe { mm::madvise(base, len - SMALL, Advice::LinuxHugepage) };
        }
        Ok(words)
    }
}

impl Deref for Words {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        let (base, len) = self.0.span();
        // SAFETY: the mapping is readable and writable, aligned to pages, initialised (to zeros), of `len` bytes, and
        // lives as long as self. Nobody has its address but by this slice.
        unsafe { std::slice::from_raw_parts(base.cast(), len / size_of::<u64>()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length; copies borrow self, so none is running.
        // It cannot fail for a range that is mapped.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("len", &self.len).finish()
    }
}

/// A sparse device in memory. Clones share the contents.
#[derive(Clone, Debug)]
pub struct MemDevice(Arc<Mem>);

#[derive(Debug)]
struct Mem {
    geometry: Geometry,
    region: Region,
}

impl MemDevice {
    /// A zeroed device of `size_bytes` with logical blocks of 512 bytes.
    ///
    /// # Panics
    /// As [`MemDevice::with_logical_block`].
    pub fn new(size_bytes: u64) -> MemDevice {
        MemDevice::with_logical_block(size_bytes, 512)
    }

    /// A zeroed device with logical blocks of another size, as 4Kn disks have.
    ///
    /// # Panics
    /// If the block is not a power of two from 512 to 4096, the size is 0 or not a multiple of it,
    /// or the address space is exhausted.
    pub fn with_logical_block(size_bytes: u64, logical_block_bytes: u32) -> MemDevice {
        assert!(
            logical_block_bytes.is_power_of_two() && (512..=4096).contains(&logical_block_bytes),
            "logical block of {logical_block_bytes} bytes"
        );
        assert!(
            size_bytes > 0 && size_bytes.is_multiple_of(u64::from(logical_block_bytes)),
            "{size_bytes} bytes are no whole number of blocks of {logical_block_bytes}"
        );
        let len = usize::try_from(size_bytes).expect("64-bit addresses");
        let region = Region::anonymous(len).expect("address space for a memory device");
        let geometry = Geometry {
            size_bytes,
            logical_block_bytes,
            mem_align_bytes: 1,
            direct: true,
            volatile_cache: false,
            fua: true,
            discard: true,
            read_only: false,
            inline: true,
            // Nothing of it survives what an atomic write is to survive.
            atomic: None,
        };
        MemDevice(Arc::new(Mem { geometry, region }))
    }
}

impl Device for MemDevice {
    #[inline]
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    #[inline]
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.geometry.check("read", offset, buf.len() as u64)?;
        // SAFETY: the range is inside the device, whose size is the region's.
        unsafe { self.0.region.copy_out(offset as usize, buf) };
        Ok(())
    }

    #[inline]
    fn write_at(&self, offset: u64, buf: &[u8], _: Durability) -> Result<()> {
        self.0.geometry.check("write", offset, buf.len() as u64)?;
        // SAFETY: as in `read_at`; the region is writable.
        unsafe { self.0.region.copy_in(offset as usize, buf) };
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.geometry.check("discard", offset, len)?;
        // SAFETY: as in `write_at`; the region is private and anonymous.
        unsafe { self.0.region.zero(offset as usize, len as usize) };
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.0.geometry.check("write zeroes", offset, len)?;
        // SAFETY: as in `discard`.
        unsafe { self.0.region.zero(offset as usize, len as usize) };
        Ok(())
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        Ok(Box::new(InlineQueue::new(self.clone(), options)))
    }

    fn describe(&self) -> String {
        "mem".into()
    }
}
