//! Random operations on files, against a model in memory and `e2fsck`.

#[path = "model/files.rs"]
mod files;
#[path = "model/random.rs"]
mod random;

use dioxide_testkit::{Image, ImageBuilder};

/// The ways that file systems differ in what matters to files.
fn variants() -> Vec<(&'static str, ImageBuilder)> {
    let image = || Image::builder().size(64 << 20);
    vec![
        ("defaults", image()),
        ("1k blocks", image().block_size(1024).size(32 << 20)),
        ("32-byte descriptors", image().features("^64bit")),
        ("no checksums", image().features("^metadata_csum")),
        ("no orphan file", image().features("^orphan_file")),
        ("no journal", image().features("^has_journal")),
        (
            "bigalloc",
            image().features("bigalloc").args(&["-C", "16384"]),
        ),
        ("no extents", image().features("^extents,^64bit")),
        (
            "no extents, 1k blocks",
            image()
                .features("^extents,^64bit")
                .block_size(1024)
                .size(32 << 20),
        ),
        (
            "ext2",
            image().fs_type("ext2").block_size(1024).size(32 << 20),
        ),
    ]
}
