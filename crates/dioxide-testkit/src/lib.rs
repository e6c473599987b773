//! Test images and oracles for dioxide's own tests.
//!
//! | Module | What it gives |
//! |---|---|
//! | [`image`] | images made by mke2fs, deleted on drop |
//! | [`mount`] | guards for loop devices and kernel mounts, undone on drop, in panics too |
//! | [`tools`] | debugfs, e2fsck and dumpe2fs as functions |
//! | [`pattern`](mod@pattern) | bytes that a file's seed and an offset determine |
//! | [`shape`] | files and directories of a certain shape |
//! | [`memory`] | an allocator that counts |
//!
//! Everything here is for tests: what goes wrong panics, with the output of the program that failed.
//! It needs e2fsprogs; what mounts needs root as well, so such tests begin with [`need_root!`].

pub mod image;
pub mod memory;
pub mod mount;
pub mod pattern;
pub mod shape;
pub mod tools;

pub use image::{Dir, Image, ImageBuilder};
pub use mount::{LoopDevice, Mount};
pub use pattern::{check_pattern, check_zero, fill_pattern, pattern};
pub use tools::{Extent, debugfs, debugfs_query, dumpe2fs, e2fsck_clean, leaf_extents};

/// Whether this process may attach loop devices and mount.
pub fn have_root() -> bool {
    rustix::process::geteuid().is_root() && std::path::Path::new("/dev/loop-control").exists()
}

/// Returns from the calling test, with a line that says so, unless [`have_root`].
#[macro_export]
macro_rules! need_root {
    () => {
        if !$crate::have_root() {
            eprintln!("skipped: needs root");
            return;
        }
    };
}
