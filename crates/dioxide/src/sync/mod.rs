//! The locking of an inode's direct I/O: what each part guards is in `docs/LOCKING.md`.
//!
//! | Module | What it is |
//! |---|---|
//! | [`fence`] | a fence that is free for the frequent side and dear for the rare side |
//! | [`slot`] | a small number that one thread or queue owns |
//! | [`rwsem`] | the inode's reader-writer lock, whose readers share no cache line |
//! | [`errand`] | what a worker does for a queue, and whether it has to wait for the file |
//! | [`rank`] | the order of locks, checked in debug builds |
//! | [`inflight`] | direct I/O in flight, and waiting for its end |
//! | [`record`] | a few words that are read and changed as one |
//! | [`buckets`] | records that are found by a hash, and become more |

pub(crate) mod buckets;
pub(crate) mod errand;
pub(crate) mod fence;
pub(crate) mod inflight;
mod prim;
pub(crate) mod rank;
pub(crate) mod record;
pub(crate) mod rwsem;
pub(crate) mod slot;
