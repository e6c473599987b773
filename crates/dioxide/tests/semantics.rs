//! What writes promise, as tests: a test for each row of the rules that direct I/O has had in ext4 and XFS,
//! and for each bug that was found in them. Names begin with the row: `d06_…` is invariant 6, `a4_…` the
//! rules on no-wait, `g_…` a bug that was found later, `e_…` what XFS does.
//!
//! All policies are run where a rule could depend on them. Images lie in memory, full of poison where nothing
//! was written yet; each is closed and checked by `e2fsck -fn` at the end, and so is what each crash leaves,
//! once recovered.
//!
//! Rows without a test here, for they are about a cache of file data, which dioxide does not have:
//!
//! | Row | Is about | What dioxide has instead |
//! |---|---|---|
//! | 3, 4 | reads while the page cache is written back | no cache: nothing is written but by a request, to blocks that nothing leads to yet |
//! | 5 | buffered writers that make pages dirty | every write is a request, and takes the inode's lock |
//! | 12, 13 | when cached pages are made invalid | nothing is cached; the map changes after the data is written, in one transaction with the size |
//! | 23 | clean pages under a write | no pages |
//! | table: buffered write, writeback | | as 5 and 3 |
//! | A4.4, A4.5 | times that block, cached pages | times of overwrites are in memory; no pages |
//! | G: end-of-I/O against delayed allocation, i_disksize and a failed writeback | delayed allocation | i_size is what the last transaction said, and is changed with it |
//! | G: page cache stale, flush before read off by one, buffered write against direct I/O | mixed I/O | no cache |
//!
//! Rows that need the inode's lock from inside are with the engine (`io/direct/tests.rs`): invariant 17 with a
//! reader that holds the lock, invariant 18 with a full queue.
//!
//! Where dioxide is meant to differ from ext4:
//! - Data is written before its blocks are mapped, so there are no orphans for extending writes, no unwritten
//!   extents for holes, and holes of files with indirect blocks are filled like any other (19).
//! - A no-wait write into unwritten blocks would block: converting them takes a transaction (A4.6).

#[path = "semantics/atomic.rs"]
mod atomic;
#[path = "semantics/attributes.rs"]
mod attributes;
#[path = "semantics/bed.rs"]
mod bed;
#[path = "semantics/bugs.rs"]
mod bugs;
#[path = "semantics/durable.rs"]
mod durable;
#[path = "semantics/entry.rs"]
mod entry;
#[path = "semantics/invariants.rs"]
mod invariants;
#[path = "semantics/kernel.rs"]
mod kernel;
#[path = "semantics/queued_sync.rs"]
mod queued_sync;
#[path = "semantics/xfs.rs"]
mod xfs;
