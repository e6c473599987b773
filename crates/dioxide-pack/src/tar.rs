//! Archives: what is read as a tree, and what a tree is written as.
//!
//! Read are v7, ustar, GNU (long names, sparse files of the old form) and PAX (with GNU's three
//! forms of sparse files, and the attributes of star, GNU tar and libarchive); plain or compressed by
//! gzip, zstd or xz. Written is PAX.
//!
//! Rejected: the crate `tar`. It knows none of PAX's sparse files, holds extensions of any length in
//! memory, and takes an archive that ends in the middle for one that ends.

mod acl;
mod codec;
mod header;
mod pax;
mod reader;
mod records;
mod sparse;
pub mod write;

pub use codec::Compression;
pub use reader::{ReadOptions, read};

/// What everything in an archive is a multiple of.
const BLOCK: usize = 512;

/// Longest extended header, and most of all global ones that is kept: attributes make them long.
const EXTENDED_MAX: u64 = 16 << 20;
/// Longest name or link target of GNU's form.
const LONG_NAME_MAX: u64 = 1 << 16;

/// How many bytes fill the last block.
fn padding(bytes: u64) -> u64 {
    bytes.wrapping_neg() % BLOCK as u64
}
