//! Files whose pages found no room when the kernel wrote them back, or lay behind the largest size.
//!
//! The kernel's page cache takes what is written whether there is room for it or not, and tells the error at `fsync` and `close`. A
//! program that writes until there is no more room would never end. Before it takes more, the kernel asks for attributes that it
//! does not have, with the handle: there the error can be told.

use crate::Errno;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Files that are remembered at once. To forget one costs a program another error at the end.
const MOST: usize = 1024;

/// By inode number: what was noted last.
#[derive(Debug, Default)]
pub(super) struct Full {
    any: AtomicBool,
    files: Mutex<HashMap<u32, Lost>>,
}

/// Why a page of a file could not be written back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lost {
    NoRoom(NoRoom),
    /// It lay behind the largest size. With the file's generation.
    TooLarge(u32),
}

/// A page of a file found no room.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoRoom {
    /// The file's, whose number may be another's by now.
    pub(super) generation: u32,
    /// How many blocks were free.
    pub(super) free: u64,
    /// Whether those that are reserved were to be had.
    pub(super) resource: bool,
}

impl Full {
    pub(super) fn note(&self, ino: u32, lost: Lost) {
        let mut files = self.files.lock();
        if files.len() >= MOST {
            files.clear();
        }
        files.insert(ino, lost);
        self.any.store(true, Ordering::Release);
    }

    /// Whether a page of the file was lost, as far as is known.
    pub(super) fn is_noted(&self, ino: u32) -> bool {
        self.any.load(Ordering::Acquire) && self.files.lock().contains_key(&ino)
    }

    /// What somebody is to be told because a page of the file was lost: that there is no room only if nothing has become free since.
    /// `now` is how that would be noted now.
    ///
    /// That is told once: what is written then may be for blocks that the file has. If it is not, the next page that is lost tells so
    /// again.
    pub(super) fn tell(&self, ino: u32, now: impl FnOnce() -> NoRoom) -> Option<Errno> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut files = self.files.lock();
        let then = *files.get(&ino)?;
        let now = now();
        let told = match then {
            Lost::NoRoom(then) if now.generation == then.generation => {
                if now.resource && !then.resource {
                    // Another one's want.
                    return None;
                }
                (now.free <= then.free).then_some(Errno::NOSPC)
            }
            Lost::TooLarge(generation) if now.generation == generation => Some(Errno::FBIG),
            Lost::NoRoom(_) | Lost::TooLarge(_) => None,
        };
        files.remove(&ino);
        self.any.store(!files.is_empty(), Ordering::Release);
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_ROOM: NoRoom = NoRoom {
        generation: 7,
        free: 3,
        resource: false,
    };

    #[test]
    fn want_of_room_is_told_once_and_only_while_there_is_none() {
        let full = Full::default();
        let unused = || unreachable!("nothing was noted");
        assert_eq!(full.tell(12, unused), None);
        full.note(12, Lost::NoRoom(NO_ROOM));
        assert!(full.tell(13, || NO_ROOM).is_none() && full.is_noted(12));
        assert_eq!(full.tell(12, || NO_ROOM), Some(Errno::NOSPC));
        assert!(!full.is_noted(12));
        assert_eq!(full.tell(12, unused), None);
        full.note(12, Lost::NoRoom(NO_ROOM));
        let more = NoRoom { free: 4, ..NO_ROOM };
        assert!(full.tell(12, || more).is_none() && !full.is_noted(12));
    }

    #[test]
    fn want_of_room_of_another_file_or_of_a_user_is_none() {
        let full = Full::default();
        full.note(12, Lost::NoRoom(NO_ROOM));
        let root = NoRoom {
            resource: true,
            ..NO_ROOM
        };
        assert!(full.tell(12, || root).is_none() && full.is_noted(12));
        let next = NoRoom {
            generation: 8,
            ..NO_ROOM
        };
        assert!(full.tell(12, || next).is_none() && !full.is_noted(12));
    }

    #[test]
    fn page_behind_the_largest_size_is_told_once_whatever_is_free() {
        let full = Full::default();
        let more = NoRoom { free: 4, ..NO_ROOM };
        full.note(12, Lost::TooLarge(7));
        assert_eq!(full.tell(12, || more), Some(Errno::FBIG));
        assert!(!full.is_noted(12));
        full.note(12, Lost::TooLarge(8));
        assert!(full.tell(12, || more).is_none() && !full.is_noted(12));
    }
}
