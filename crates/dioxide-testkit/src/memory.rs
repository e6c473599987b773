//! Counting what is allocated, by the thread that allocates it.
//!
//! A test binary that counts declares the allocator for itself:
//!
//! ```
//! use dioxide_testkit::memory::{Counting, allocations_of};
//!
//! #[global_allocator]
//! static ALLOCATOR: Counting = Counting;
//!
//! assert_eq!(allocations_of(|| drop(std::hint::black_box(Box::new(1)))), 1);
//! ```
//!
//! The one unsafe part of the kit: an allocator cannot be written without. It passes every call on
//! to the system's.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with counters.
#[derive(Debug)]
pub struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
    /// Bytes that this thread has allocated and not freed. Below zero when it frees what others
    /// allocated.
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: each method passes its arguments on unchanged and returns what the system's allocator
// returns; the counters do not touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: the caller's promises are those of this call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        let _ = NOW.try_with(|now| now.set(now.get() - layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Neither allocates nor fails: the counters have no destructor and are made at compile time.
fn allocated(bytes: usize) {
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    let _ = NOW.try_with(|now| {
        now.set(now.get() + bytes as isize);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
    });
}

/// How often this thread allocated while `work` ran.
pub fn allocations_of(work: impl FnOnce()) -> usize {
    let before = CALLS.get();
    work();
    CALLS.get() - before
}

/// The most bytes that this thread had allocated at once while `work` ran, beyond those before it.
pub fn peak_of(work: impl FnOnce()) -> usize {
    let before = NOW.get();
    PEAK.set(before);
    work();
    (PEAK.get() - before) as usize
}
