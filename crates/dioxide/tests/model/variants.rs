//! Kinds of file systems.

use dioxide_testkit::{Image, ImageBuilder};

/// The ways that file systems differ in what matters to files.
pub fn variants() -> Vec<(&'static str, ImageBuilder)> {
    let image = || Image::builder().size(64 << 20);
    let small = || image().block_size(1024).size(32 << 20);
    vec![
        ("defaults", image()),
        ("1k blocks", small()),
        ("32-byte descriptors", image().features("^64bit")),
        ("no checksums", image().features("^metadata_csum")),
        // With a small journal, so that truncates take several transactions.
        (
            "orphan file",
            small().features("orphan_file").args(&["-J", "size=1"]),
        ),
        (
            "no orphan file",
            small().features("^orphan_file").args(&["-J", "size=1"]),
        ),
        ("no journal", image().features("^has_journal,^orphan_file")),
        (
            "bigalloc",
            image().features("bigalloc").args(&["-C", "16384"]),
        ),
        ("no extents", image().features("^extents,^64bit")),
        ("no extents, 1k blocks", small().features("^extents,^64bit")),
        ("ext2", small().fs_type("ext2")),
    ]
}

/// An image with empty files of these names.
pub fn image_with(builder: ImageBuilder, names: &[&str]) -> Image {
    let tree = tempfile::tempdir().expect("a folder");
    for name in names {
        std::fs::write(tree.path().join(name), b"").expect("an empty file");
    }
    builder.source(tree.path()).build()
}
