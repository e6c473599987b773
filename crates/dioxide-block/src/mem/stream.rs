//! Copies that go past the processor's cache.
//!
//! An ordinary store to a line that is not in the cache reads the line first, holds up what follows until it has come, and later
//! pushes another out. A direct write replaces whole lines at a place that nobody has looked at lately. Storing past the
//! cache (non-temporal stores) reads nothing and waits for nothing: over 1 GiB at random 4 KiB take 210 ns in place of 560, and 512 bytes 117 in
//! place of 196; and what a program does before and after is hidden behind the stores, which leave by themselves.
//!
//! Where the same places are written again and again they are in the cache, and an ordinary copy is faster: over 4 MiB 55 against 180, and 10
//! against 115. So each thread remembers the pages where it wrote little last, and copies to those as usual.
//!
//! Invariant: such stores are not ordered with later ones until a fence. [`Streamed`] is that fence, and nobody else learns that the
//! bytes are there before it. Who forgets it lets others find old bytes for a while, as if they had looked earlier.

use std::{mem, ptr};

/// Bytes of a line of the cache.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Copies of more bytes than this are of those that fill a cache soon.
#[cfg(target_arch = "x86_64")]
const LITTLE: usize = 16 << 10;

/// What was written is there for the thread that wrote it. Dropped, it is there for all who then see a later store of this thread's.
#[derive(Debug)]
pub struct Streamed {
    past_cache: bool,
}

impl Streamed {
    /// By ordinary stores, or by the kernel.
    pub(crate) const AT_ONCE: Streamed = Streamed { past_cache: false };

    /// Whether copies go past the cache, on most processors of this architecture.
    pub(crate) const IS_USUAL: bool = cfg!(target_arch = "x86_64");

    /// Leaves the fence for `later` to the one of this.
    #[inline(always)]
    pub(crate) fn and(&mut self, later: Streamed) {
        self.past_cache |= later.past_cache;
        mem::forget(later);
    }
}

impl Drop for Streamed {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        if self.past_cache {
            // SAFETY: every processor of this architecture has it.
            unsafe { std::arch::x86_64::_mm_sfence() };
        }
    }
}

/// Copies `from` to `to`.
///
/// # Safety
/// `to` is writable for `from.len()` bytes, which `from` does not overlap.
#[inline(always)]
pub(super) unsafe fn copy(from: &[u8], to: *mut u8) -> Streamed {
    #[cfg(target_arch = "x86_64")]
    if (to.addr() | from.len()).is_multiple_of(LINE)
        && std::arch::is_x86_feature_detected!("avx")
        && (from.len() > LITTLE || recent::is_new(to))
    {
        // SAFETY: the processor has AVX, the address and the length are whole lines; the rest is the caller's.
        unsafe { past_cache(from, to) };
        return Streamed { past_cache: true };
    }
    // SAFETY: the caller's.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    Streamed::AT_ONCE
}

/// Copies whole lines by non-temporal stores.
///
/// # Safety
/// As [`copy`]; `to` and the length are multiples of [`LINE`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn past_cache(from: &[u8], to: *mut u8) {
    use std::arch::x86_64::{_mm256_loadu_si256, _mm256_stream_si256};
    for (line, at) in from.chunks_exact(LINE).zip((0..).step_by(LINE)) {
        let from = line.as_ptr();
        let to = to.wrapping_add(at);
        // SAFETY: a line of `from` is read whole; the same line of `to` is writable and aligned to it (caller).
        unsafe {
            let (first, second) = (
                _mm256_loadu_si256(from.cast()),
                _mm256_loadu_si256(from.add(LINE / 2).cast()),
            );
            _mm256_stream_si256(to.cast(), first);
            _mm256_stream_si256(to.add(LINE / 2).cast(), second);
        }
    }
}

/// Which pages a thread has written lately. A hint: what it forgets or mistakes costs time only.
#[cfg(target_arch = "x86_64")]
mod recent {
    use std::cell::Cell;

    /// So many pages of 4 KiB: more than these do not stay in a cache that others use too.
    const PAGES: usize = 2048;
    const PAGE_SHIFT: u32 = 12;

    thread_local! {
        /// Page numbers, each where its hash says.
        static RECENT: [Cell<u32>; PAGES] = const { [const { Cell::new(0) }; PAGES] };
    }

    /// Whether the page of `at` is none of those; it is one then.
    #[inline(always)]
    pub(super) fn is_new(at: *const u8) -> bool {
        let page = (at.addr() >> PAGE_SHIFT) as u32;
        let slot = page.wrapping_mul(0x9e37_79b1) >> (u32::BITS - PAGES.trailing_zeros());
        RECENT.with(|recent| recent[slot as usize].replace(page) != page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buf;

    /// Copies, and tells whether it went past the cache.
    fn copied(to: &mut [u8], from: &[u8]) -> bool {
        assert_eq!(to.len(), from.len());
        // SAFETY: two slices, one of them exclusive.
        let streamed = unsafe { copy(from, to.as_mut_ptr()) };
        let past_cache = streamed.past_cache;
        drop(streamed);
        assert_eq!(to, from);
        past_cache
    }

    fn pattern(len: usize, seed: u8) -> Vec<u8> {
        (0..len)
            .map(|n| (n as u8).wrapping_mul(31) ^ seed)
            .collect()
    }

    #[test]
    fn bytes_are_there_whatever_the_length_and_the_place() {
        let mut area = Buf::zeroed(64 << 10);
        let lens = [0, 1, 63, 64, 65, 512, 1000, 2048, 4096, 12_288];
        for (seed, len) in (0..).zip(lens) {
            for at in [0, 1, 16, 64, 4096 - 64, 8192] {
                for misaligned in [0, 1] {
                    let from = pattern(len + misaligned, seed);
                    copied(&mut area[at..at + len], &from[misaligned..]);
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn page_written_again_is_copied_by_the_usual_way() {
        if !std::arch::is_x86_feature_detected!("avx") {
            return;
        }
        let mut area = Buf::zeroed(16 << 20);
        let from = pattern(512, 3);
        assert!(copied(&mut area[8192..8704], &from));
        assert!(!copied(&mut area[8192..8704], &from), "the same place");
        assert!(!copied(&mut area[8704..9216], &from), "the same page");
        let pages = (0..area.len()).step_by(4096);
        let streamed = pages.filter(|&at| copied(&mut area[at..at + 512], &from));
        assert!(streamed.count() > 3000, "more than are remembered");
        assert!(!copied(&mut area[8192..8202], &from[..10]), "no whole line");
        let much = pattern(LITTLE + 64, 5);
        for _ in 0..2 {
            assert!(copied(&mut area[..much.len()], &much));
        }
    }
}
