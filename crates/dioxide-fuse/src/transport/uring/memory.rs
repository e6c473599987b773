//! The memory that a ring's entry shares with the kernel: the headers of a request and its payload.
//!
//! Invariant: the kernel reads and writes it only while it holds the entry, and nobody here does then.
//!
//! Rejected: a buffer of the allocator's. It would fill it with zeros, and so use all of it from the beginning; most
//! requests need a page.
#![allow(unsafe_code)]

use crate::transport::wire::PAYLOAD_BYTES;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::ptr::NonNull;

/// `fuse_uring_req_header`: what every request has, what its opcode has, what the ring has.
pub(super) const HEADER_BYTES: usize = 288;
/// Where the list of the two parts is, for the kernel to read.
const PARTS_AT: usize = 512;
const PAGE_BYTES: usize = 4096;
const BYTES: usize = PAGE_BYTES + PAYLOAD_BYTES;

/// See the module header.
pub(super) struct Memory(NonNull<u8>);

// SAFETY: it owns its bytes as a `Box<[u8]>` does, so it may move between threads.
unsafe impl Send for Memory {}

impl Memory {
    pub(super) fn new() -> io::Result<Memory> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place that the kernel chooses changes no memory that exists.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), BYTES, protection, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut memory = Memory(base);
        // Two `struct iovec`.
        let address = base.as_ptr().expose_provenance();
        let parts = [address, HEADER_BYTES, address + PAGE_BYTES, PAYLOAD_BYTES];
        // SAFETY: the kernel does not know of it yet.
        let (front, _) = unsafe { memory.mine() };
        for (place, part) in front[PARTS_AT..]
            .chunks_exact_mut(size_of::<usize>())
            .zip(parts)
        {
            place.copy_from_slice(&part.to_ne_bytes());
        }
        Ok(memory)
    }

    /// The headers and the payload.
    ///
    /// # Safety
    /// The kernel does not hold the entry, and does not get it while what is returned is used.
    pub(super) unsafe fn mine(&mut self) -> (&mut [u8], &mut [u8]) {
        // SAFETY: `BYTES` bytes are mapped there until the drop, readable, writable and initialised (with zeros); they are
        // ours alone, and borrowed as long as `self`.
        let all = unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), BYTES) };
        all.split_at_mut(PAGE_BYTES)
    }

    /// The address of the list of the two parts: two `struct iovec`.
    pub(super) fn parts(&self) -> u64 {
        (self.0.as_ptr().addr() + PARTS_AT) as u64
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; nobody borrows it, and the kernel does not hold it (whoever cannot be sure of
        // that forgets it).
        let _ = unsafe { munmap(self.0.as_ptr().cast(), BYTES) };
    }
}
