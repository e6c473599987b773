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
pub use tools::{
    Extent, assert_closed, debugfs, debugfs_query, dumpe2fs, e2fsck_clean, e2fsck_consistent,
    e2fsck_consistent_with, e2fsck_mend, leaf_extents,
};

use std::num::NonZero;
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::thread;

/// Whether tests take as long as they like, and look at everything: `make soak`.
pub fn soaks() -> bool {
    std::env::var_os("DIOXIDE_SOAK").is_some()
}

/// A test looks at one case in so many: at all of them in a soak, at one in `n` otherwise.
pub fn one_in(n: usize) -> usize {
    if soaks() { 1 } else { n }
}

/// The seeds to run with: `usual` of them, or what `DIOXIDE_SOAK` says, a number of seeds or `first-last`.
pub fn seeds(usual: u64) -> RangeInclusive<u64> {
    let Ok(soak) = std::env::var("DIOXIDE_SOAK") else {
        return 1..=usual;
    };
    let number = |text: &str| text.parse::<u64>().expect("DIOXIDE_SOAK: a number");
    match soak.split_once('-') {
        Some((first, last)) => number(first)..=number(last),
        // `make soak` says 1.
        None if soak == "1" => 1..=20 * usual,
        None => 1..=number(&soak),
    }
}

/// Calls `test` with each case, on as many threads as there are processors: for a long test of cases that have nothing to do
/// with each other, behind which the other processors would have nothing to do.
///
/// # Panics
/// If a call did, once all others have ended.
pub fn each_case<T>(cases: impl IntoIterator<Item = T, IntoIter: Send>, test: impl Fn(T) + Sync) {
    let cases = Mutex::new(cases.into_iter());
    let next = || cases.lock().expect("no panic with it").next();
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| std::iter::from_fn(next).for_each(&test));
        }
    });
}

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
