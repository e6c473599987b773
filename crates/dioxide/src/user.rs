//! For whom a thread works, which decides who may use the reserved blocks.
//!
//! Files say it when they are opened ([`crate::OpenOptions::user`]). Names and attributes take blocks in places that are
//! far from their callers, so for them it belongs to the thread, as in the kernel (`setfsuid(2)`).

use crate::alloc::Right;
use crate::mount::Mount;
use std::cell::Cell;

thread_local! {
    static USER: Cell<Option<(u32, u32)>> = const { Cell::new(None) };
}

/// Gives the thread back to whom it worked for, also when the work panics.
struct Before(Option<(u32, u32)>);

impl Drop for Before {
    fn drop(&mut self) {
        USER.set(self.0);
    }
}

/// Runs `work`, whose calls on this thread are made for a user and a group: directories, symlinks and attributes take
/// reserved blocks only if these are kept for one of both ([`crate::MountOptions::resuid`]), and fail with `ENOSPC`
/// otherwise. Outside of it calls are the super user's. Permissions are not checked, and who opens a file says so
/// there ([`crate::OpenOptions::user`]).
///
/// ```no_run
/// # let fs = dioxide::Fs::open("disk.img", &dioxide::MountOptions::new())?;
/// dioxide::as_user(1000, 1000, || fs.create_dir("/home/a/b", &dioxide::NewFile::new(0o755)))?;
/// # Ok::<(), dioxide::Error>(())
/// ```
pub fn as_user<T>(uid: u32, gid: u32, work: impl FnOnce() -> T) -> T {
    let _before = Before(USER.replace(Some((uid, gid))));
    work()
}

impl Mount {
    /// Which of the free blocks the thread's user may use for names and attributes.
    pub(crate) fn right(&self) -> Right {
        match USER.get().is_none_or(|user| self.has_reserve(user)) {
            true => Right::Resource,
            false => Right::Everyone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{USER, as_user};

    #[test]
    fn the_user_is_the_innermost_and_ends_with_the_work() {
        let inner = as_user(1, 2, || {
            assert_eq!(as_user(3, 4, || USER.get()), Some((3, 4)));
            USER.get()
        });
        assert_eq!(inner, Some((1, 2)));
        let failed = std::panic::catch_unwind(|| as_user(1, 2, || panic!("on purpose")));
        assert!(failed.is_err());
        assert_eq!(USER.get(), None);
    }
}
