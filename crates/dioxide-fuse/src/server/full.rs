//! Files whose pages found no room when the kernel wrote them back.
//!
//! The kernel's page cache takes what is written whether there is room or not, and tells the error at `fsync` and `close`. A
//! program that writes until there is no more room would never end. Before it takes more, the kernel asks for attributes that it
//! does not have, with the handle: there the error can be told.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Files that are remembered at once. To forget one costs a program another error at the end.
const MOST: usize = 1024;

/// By inode number: how many blocks were free when a page found no room.
#[derive(Debug, Default)]
pub(super) struct Full {
    any: AtomicBool,
    files: Mutex<HashMap<u32, u64>>,
}

impl Full {
    /// A page of a file found no room.
    pub(super) fn note(&self, ino: u32, free: u64) {
        let mut files = self.files.lock();
        if files.len() >= MOST {
            files.clear();
        }
        files.insert(ino, free);
        self.any.store(true, Ordering::Release);
    }

    /// Whether a page of the file found no room, as far as is known.
    pub(super) fn is_noted(&self, ino: u32) -> bool {
        self.any.load(Ordering::Acquire) && self.files.lock().contains_key(&ino)
    }

    /// Whether a page of the file found no room, and nothing has become free since. `free` tells how many blocks are.
    pub(super) fn has(&self, ino: u32, free: impl FnOnce() -> u64) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut files = self.files.lock();
        let Some(&then) = files.get(&ino) else {
            return false;
        };
        let is_full = free() <= then;
        if !is_full {
            files.remove(&ino);
            self.any.store(!files.is_empty(), Ordering::Release);
        }
        is_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_full_until_something_becomes_free() {
        let full = Full::default();
        assert!(!full.has(12, || unreachable!("nobody asked")));
        full.note(12, 3);
        assert!(full.has(12, || 3) && full.has(12, || 2) && full.is_noted(12));
        assert!(!full.has(13, || 3));
        assert!(!full.has(12, || 4));
        assert!(!full.has(12, || 3) && !full.is_noted(12));
    }
}
