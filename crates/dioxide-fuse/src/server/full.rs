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

/// By inode number: what was noted last.
#[derive(Debug, Default)]
pub(super) struct Full {
    any: AtomicBool,
    files: Mutex<HashMap<u32, NoRoom>>,
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
    pub(super) fn note(&self, ino: u32, no_room: NoRoom) {
        let mut files = self.files.lock();
        if files.len() >= MOST {
            files.clear();
        }
        files.insert(ino, no_room);
        self.any.store(true, Ordering::Release);
    }

    /// Whether a page of the file found no room, as far as is known.
    pub(super) fn is_noted(&self, ino: u32) -> bool {
        self.any.load(Ordering::Acquire) && self.files.lock().contains_key(&ino)
    }

    /// Whether somebody is to be told that a page of the file found no room, because nothing has become free since. `now` is how that
    /// would be noted now.
    ///
    /// That is told once: what is written then may be for blocks that the file has. If it is not, the next page that finds no room
    /// tells so again.
    pub(super) fn tell(&self, ino: u32, now: impl FnOnce() -> NoRoom) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut files = self.files.lock();
        let Some(&then) = files.get(&ino) else {
            return false;
        };
        let now = now();
        if now.generation == then.generation && now.resource && !then.resource {
            // Another one's want.
            return false;
        }
        files.remove(&ino);
        self.any.store(!files.is_empty(), Ordering::Release);
        now.generation == then.generation && now.free <= then.free
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
        assert!(!full.tell(12, || unreachable!("nothing was noted")));
        full.note(12, NO_ROOM);
        assert!(!full.tell(13, || NO_ROOM) && full.is_noted(12));
        assert!(full.tell(12, || NO_ROOM) && !full.is_noted(12));
        assert!(!full.tell(12, || unreachable!("it was told")));
        full.note(12, NO_ROOM);
        let more = NoRoom { free: 4, ..NO_ROOM };
        assert!(!full.tell(12, || more) && !full.is_noted(12));
    }

    #[test]
    fn want_of_room_of_another_file_or_of_a_user_is_none() {
        let full = Full::default();
        full.note(12, NO_ROOM);
        let root = NoRoom {
            resource: true,
            ..NO_ROOM
        };
        assert!(!full.tell(12, || root) && full.is_noted(12));
        let next = NoRoom {
            generation: 8,
            ..NO_ROOM
        };
        assert!(!full.tell(12, || next) && !full.is_noted(12));
    }
}
