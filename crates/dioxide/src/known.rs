//! The features that the engine knows, in one place for all that asks: mount, mkfs, check and resize.
//!
//! Each adds what only it can live with: a state that it brings to an end, or a layout that it need not
//! understand to keep.

use dioxide_format::features::{Incompat, RoCompat};

/// What must be known to read, and what a new file system can have.
pub(crate) const INCOMPAT: Incompat = Incompat::FILETYPE
    .union(Incompat::META_BG)
    .union(Incompat::EXTENTS)
    .union(Incompat::BIT64)
    .union(Incompat::MMP)
    .union(Incompat::FLEX_BG)
    .union(Incompat::EA_INODE)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::LARGE_DIR)
    .union(Incompat::INLINE_DATA);

/// What must be known to write, and what a new file system can have.
pub(crate) const RO_COMPAT: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::QUOTA)
    .union(RoCompat::BIGALLOC)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::PROJECT);
