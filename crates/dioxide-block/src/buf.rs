//! Aligned memory that can be lent to a device.
//!
//! Invariant: a [`Buf`] is the only owner of the bytes `ptr..ptr+cap`, all of them initialised, until it is dropped.
//! Pool buffers return to their pool, heap buffers to the allocator. Moving a `Buf` does not move
//! its bytes, which is why a queue can own one while the device writes into it.
//!
//! Rejected: borrowing the caller's slices for asynchronous operations. A future or queue that is
//! forgotten would let the device write into freed memory.
#![allow(unsafe_code)]

use parking_lot::Mutex;
use std::alloc::{self, Layout};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of every buffer's first byte: satisfies every device's memory alignment.
pub const BUF_ALIGN: usize = 4096;

/// Owned, aligned, initialised memory of a fixed capacity and an adjustable length.
pub struct Buf {
    ptr: NonNull<u8>,
    len: u32,
    cap: u32,
    pool: Option<Arc<PoolInner>>,
}

// SAFETY: a Buf owns its bytes exclusively (module invariant), so it may move between threads
// and be read through shared references like a Box<[u8]>.
unsafe impl Send for Buf {}
// SAFETY: as above; `&Buf` only gives `&[u8]`.
unsafe impl Sync for Buf {}

impl Buf {
    /// A zeroed heap buffer of `len` bytes, aligned to [`BUF_ALIGN`].
    ///
    /// # Panics
    /// If `len` is over 2 GiB (a caller's bug: requests are limited to that), or memory is exhausted.
    pub fn zeroed(len: usize) -> Buf {
        assert!(len <= 1 << 31, "buffer of {len} bytes: the limit is 2 GiB");
        if len == 0 {
            return Buf::empty();
        }
        let layout = Buf::layout(len as u32);
        // SAFETY: the layout's size is not zero.
        let ptr = unsafe { alloc::alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else {
            alloc::handle_alloc_error(layout)
        };
        Buf {
            ptr,
            len: len as u32,
            cap: len as u32,
            pool: None,
        }
    }

    /// A buffer of no bytes, without an allocation.
    pub const fn empty() -> Buf {
        Buf {
            ptr: NonNull::dangling(),
            len: 0,
            cap: 0,
            pool: None,
        }
    }

    /// A heap buffer with a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        let mut buf = Buf::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    fn layout(cap: u32) -> Layout {
        // The size is at most 2 GiB and the alignment a power of two, so this cannot fail.
        Layout::from_size_align(cap as usize, BUF_ALIGN).expect("2 GiB aligned to 4096 fits")
    }

    /// How many bytes it could hold.
    pub fn capacity(&self) -> usize {
        self.cap as usize
    }

    /// Changes the length. Bytes that become visible hold whatever was there before.
    ///
    /// # Panics
    /// If `len` is over the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.cap as usize,
            "length {len} over capacity {}",
            self.cap
        );
        self.len = len as u32;
    }

    /// The first byte, for handing to the kernel. Valid for `capacity` bytes while the `Buf` lives.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Whether this buffer belongs to `pool`, so that a device that registered the pool can use
    /// its registration.
    pub fn is_of(&self, pool: &BufPool) -> bool {
        self.pool
            .as_ref()
            .is_some_and(|mine| Arc::ptr_eq(mine, &pool.0))
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` is valid and initialised for `cap >= len` bytes, owned by self.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len as usize) }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        match self.pool.take() {
            Some(pool) => pool.give_back(self.ptr),
            None if self.cap > 0 => {
                // SAFETY: allocated in `zeroed` with this very layout, and dropped once.
                unsafe { alloc::dealloc(self.ptr.as_ptr(), Buf::layout(self.cap)) }
            }
            None => {}
        }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("len", &self.len)
            .field("capacity", &self.cap)
            .field("pooled", &self.pool.is_some())
            .finish()
    }
}

struct PoolInner {
    base: NonNull<u8>,
    count: u32,
    size: u32,
    free: Mutex<Vec<u32>>,
}

// SAFETY: `base` is only used to compute addresses of buffers; each byte is owned by one Buf or by
// the free list, never by two.
unsafe impl Send for PoolInner {}
// SAFETY: as above.
unsafe impl Sync for PoolInner {}

impl PoolInner {
    fn layout(&self) -> Layout {
        Layout::from_size_align(self.count as usize * self.size as usize, BUF_ALIGN)
            .expect("checked when the pool was made")
    }

    fn give_back(&self, ptr: NonNull<u8>) {
        let index = (ptr.as_ptr() as usize - self.base.as_ptr() as usize) / self.size as usize;
        self.free.lock().push(index as u32);
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        // SAFETY: allocated in `BufPool::new` with this layout; every Buf holds an Arc of the
        // pool, so none is left.
        unsafe { alloc::dealloc(self.base.as_ptr(), self.layout()) }
    }
}

/// Equal buffers cut from one region, so that a queue can register the region once.
#[derive(Clone)]
pub struct BufPool(Arc<PoolInner>);

impl BufPool {
    /// `count` zeroed buffers of `size` bytes; `size` is rounded up to [`BUF_ALIGN`].
    ///
    /// # Panics
    /// If either is 0, the whole is over 1 TiB, or memory is exhausted.
    pub fn new(count: usize, size: usize) -> BufPool {
        assert!(
            count > 0 && size > 0,
            "a pool of no buffers or of empty buffers"
        );
        let size = size.next_multiple_of(BUF_ALIGN);
        assert!(size <= 1 << 31 && count <= (1 << 40) / size, "pool too big");
        let layout = Layout::from_size_align(size * count, BUF_ALIGN).expect("at most 1 TiB");
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else {
            alloc::handle_alloc_error(layout)
        };
        BufPool(Arc::new(PoolInner {
            base,
            count: count as u32,
            size: size as u32,
            free: Mutex::new((0..count as u32).rev().collect()),
        }))
    }

    /// A buffer of the pool's full size, or `None` if all are taken. Contents are whatever was
    /// there before.
    pub fn take(&self) -> Option<Buf> {
        let index = self.0.free.lock().pop()?;
        // SAFETY: index < count, so the address stays inside the region.
        let ptr = unsafe { self.0.base.add(index as usize * self.0.size as usize) };
        Some(Buf {
            ptr,
            len: self.0.size,
            cap: self.0.size,
            pool: Some(self.0.clone()),
        })
    }

    /// Size of each buffer in bytes.
    pub fn buf_size(&self) -> usize {
        self.0.size as usize
    }

    /// Address and length of the whole region, for registration. It stays allocated as long as a
    /// clone of the pool lives.
    pub fn region(&self) -> (*mut u8, usize) {
        (
            self.0.base.as_ptr(),
            self.0.count as usize * self.0.size as usize,
        )
    }
}

impl fmt::Debug for BufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufPool")
            .field("count", &self.0.count)
            .field("size", &self.0.size)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_buffer_is_aligned_and_zero() {
        let buf = Buf::zeroed(5000);
        assert_eq!(buf.as_ptr() as usize % BUF_ALIGN, 0);
        assert!(buf.iter().all(|&b| b == 0));
        assert_eq!(buf.len(), 5000);
    }

    #[test]
    fn pool_take_all_then_none_then_return() {
        let pool = BufPool::new(2, 512);
        let a = pool.take().expect("first");
        let b = pool.take().expect("second");
        assert!(pool.take().is_none());
        assert!(a.is_of(&pool));
        assert_ne!(a.as_ptr(), b.as_ptr());
        drop(a);
        assert!(pool.take().is_some());
    }

    #[test]
    fn pool_outlived_by_its_buffers() {
        let pool = BufPool::new(1, 4096);
        let mut buf = pool.take().expect("one");
        drop(pool);
        buf[0] = 7;
        assert_eq!(buf[0], 7);
    }
}
