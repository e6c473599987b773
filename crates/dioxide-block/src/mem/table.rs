//! Tables that are looked into at random places, in large pages.
//!
//! A look at a random place of 4 KiB pages misses the processor's cache of addresses too, which takes as long again as
//! fetching the line. Tables of [`HALF`] bytes therefore lie two to a large page of 2 MiB, and those of [`SEVENTH`] bytes seven;
//! others are plain boxes.
//!
//! Invariant: a part of a page belongs to one table, or is a spare one.

use super::Region;
use parking_lot::{Mutex, MutexGuard};
use rustix::mm::{self, Advice};
use std::fmt;
use std::ops::{Deref, Range};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Bytes of a table that lies in half a large page.
pub const HALF: usize = PAGE / 2;

/// Bytes of one of which seven lie in a large page, with 32 KiB left.
pub const SEVENTH: usize = 288 << 10;

const PAGE: usize = 2 << 20;

/// A boxed slice, which lies in a large page where that helps.
pub struct Table<T> {
    items: NonNull<[T]>,
    /// Where they lie, if not in a box.
    part: Option<Part>,
}

// SAFETY: a table owns its items, as a box does.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Table<T> {}

/// Part of a large page. Nobody else uses these bytes.
struct Part {
    begin: NonNull<u8>,
    bytes: usize,
    /// Keeps the page; its other parts have the same.
    page: Arc<Region>,
}

// SAFETY: a range of addresses that its owner alone uses.
unsafe impl Send for Part {}
// SAFETY: as above; a shared reference gives nothing but the address.
unsafe impl Sync for Part {}

/// Parts that are free, of each size: fewer than a page has.
static SPARE: [(usize, Mutex<Vec<Part>>); 2] = [
    (HALF, Mutex::new(Vec::new())),
    (SEVENTH, Mutex::new(Vec::new())),
];

fn spare(bytes: usize) -> Option<MutexGuard<'static, Vec<Part>>> {
    let (_, parts) = SPARE.iter().find(|(size, _)| *size == bytes)?;
    Some(parts.lock())
}

impl Part {
    /// `None`: there are no parts of this size, or there is no memory.
    fn take(bytes: usize) -> Option<Part> {
        let mut spare = spare(bytes)?;
        if let Some(part) = spare.pop() {
            return Some(part);
        }
        // Twice as large, so that there is a whole page in it.
        let region = Region::anonymous(2 * PAGE).ok()?;
        let begin = region.base.as_ptr();
        let page = begin.wrapping_add(begin.align_offset(PAGE));
        // SAFETY: the range is in the region, which is our own and empty. Without large pages it is slower.
        let _ = unsafe { mm::madvise(page.cast(), PAGE, Advice::LinuxHugepage) };
        let region = Arc::new(region);
        let parts = (0..PAGE / bytes).filter_map(|number| {
            let begin = NonNull::new(page.wrapping_add(number * bytes))?;
            let page = region.clone();
            Some(Part { begin, bytes, page })
        });
        spare.extend(parts);
        spare.pop()
    }

    fn give_back(self) {
        let Some(mut spare) = spare(self.bytes) else {
            return;
        };
        if spare.len() + 1 < PAGE / self.bytes {
            spare.push(self);
        } else if Arc::strong_count(&self.page) > 1 {
            let begin = self.begin.as_ptr();
            let pages = whole_pages(begin.addr(), self.bytes, rustix::param::page_size());
            let begin = begin.wrapping_add(pages.start);
            // SAFETY: nobody uses these bytes any more, whole pages of a region that is private and anonymous.
            let _ = unsafe { mm::madvise(begin.cast(), pages.len(), Advice::LinuxDontNeed) };
        }
    }
}

/// The pages that lie in so many bytes from `begin` on, from there.
fn whole_pages(begin: usize, bytes: usize, page: usize) -> Range<usize> {
    let start = begin.next_multiple_of(page) - begin;
    let end = (begin + bytes) / page * page;
    start..end.saturating_sub(begin).max(start)
}

impl<T> From<Vec<T>> for Table<T> {
    fn from(mut items: Vec<T>) -> Table<T> {
        let bytes = size_of_val(items.as_slice());
        // Parts begin at small pages.
        let fits = align_of::<T>() <= 4096;
        if let Some(part) = fits.then(|| Part::take(bytes)).flatten() {
            let begin = part.begin.cast::<T>();
            let len = items.len();
            // SAFETY: the part is of as many bytes as the items, aligned to a small page, writable, and nobody
            // else's. The items are moved: the vector forgets them before anything can fail.
            unsafe {
                items.set_len(0);
                ptr::copy_nonoverlapping(items.as_ptr(), begin.as_ptr(), len);
            }
            return Table {
                items: NonNull::slice_from_raw_parts(begin, len),
                part: Some(part),
            };
        }
        Table {
            items: NonNull::from(Box::leak(items.into_boxed_slice())),
            part: None,
        }
    }
}

impl<T> Deref for Table<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: initialised, and ours until drop; nobody has it for writing.
        unsafe { self.items.as_ref() }
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        match self.part.take() {
            Some(part) => {
                // SAFETY: initialised, and nobody looks at them any more.
                unsafe { ptr::drop_in_place(self.items.as_ptr()) };
                part.give_back();
            }
            // SAFETY: a box that was leaked when the table was made.
            None => drop(unsafe { Box::from_raw(self.items.as_ptr()) }),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn pages_that_are_given_back_are_the_parts_own() {
        for page in [4 << 10, 16 << 10, 64 << 10] {
            for part in 0..PAGE / SEVENTH {
                let begin = PAGE + part * SEVENTH;
                let pages = whole_pages(begin, SEVENTH, page);
                assert!((begin + pages.start).is_multiple_of(page));
                assert!(pages.len().is_multiple_of(page) && pages.end <= SEVENTH);
                assert!(pages.len() >= SEVENTH - 2 * page, "{page}");
            }
        }
        assert!(whole_pages(4096, 8192, 64 << 10).is_empty());
    }

    #[test]
    fn items_are_what_the_vector_held() {
        let around = [HALF, SEVENTH]
            .into_iter()
            .flat_map(|bytes| [bytes / 8 - 1, bytes / 8, bytes / 8 + 1]);
        for len in around.chain([0, 1, 1000]) {
            let table = Table::from((0..len as u64).collect::<Vec<_>>());
            assert!(table.iter().copied().eq(0..len as u64));
            assert_eq!(table.part.is_some(), [HALF / 8, SEVENTH / 8].contains(&len));
            assert!(table.part.is_none() || table.as_ptr().addr().is_multiple_of(4096));
        }
    }

    #[test]
    fn tables_do_not_share_bytes_while_they_come_and_go() {
        let table = |value: u64| Table::from(vec![value; [HALF, SEVENTH][value as usize % 2] / 8]);
        let mut tables: Vec<_> = (0..9).map(|value| (value, table(value))).collect();
        for step in 0..60 {
            let value = 100 + step as u64;
            let gone = step * 7 % tables.len();
            tables.swap_remove(gone);
            if step % 3 != 0 || tables.len() < 4 {
                tables.push((value, table(value)));
                tables.push((value + 1000, table(value + 1000)));
            }
            for (value, table) in &tables {
                assert!(table.iter().all(|item| item == value));
            }
        }
    }

    #[test]
    fn each_item_is_dropped_once() {
        static LEFT: AtomicUsize = AtomicUsize::new(0);
        struct Counted([u8; 1024]);
        impl Drop for Counted {
            fn drop(&mut self) {
                LEFT.fetch_sub(usize::from(self.0[0]), Ordering::Relaxed);
            }
        }
        for len in [3, HALF / 1024, SEVENTH / 1024] {
            LEFT.store(len, Ordering::Relaxed);
            let items: Vec<_> = (0..len).map(|_| Counted([1; 1024])).collect();
            let table = Table::from(items);
            assert_eq!(LEFT.load(Ordering::Relaxed), len);
            drop(table);
            assert_eq!(LEFT.load(Ordering::Relaxed), 0);
        }
    }
}
