//! Kinds of file systems, by what matters to names.

use dioxide_testkit::{Image, ImageBuilder};

pub fn kinds() -> Vec<(&'static str, ImageBuilder)> {
    let image = || Image::builder().size(48 << 20).args(&["-N", "4096"]);
    let small = || {
        let image = Image::builder().size(24 << 20).block_size(1024);
        image.args(&["-N", "4096"])
    };
    vec![
        ("defaults", image()),
        ("1k blocks", small()),
        ("no checksums", small().features("^metadata_csum")),
        ("orphan file", small().features("orphan_file")),
        ("no orphan file", image().features("^orphan_file")),
        ("no journal", image().features("^has_journal,^orphan_file")),
        (
            "bigalloc",
            image().features("bigalloc").args(&["-C", "16384"]),
        ),
        ("no extents", small().features("^extents,^64bit")),
        ("ext2", small().fs_type("ext2")),
        ("no dir_index", small().features("^dir_index")),
        (
            "inline data",
            small().features("inline_data").inode_size(256),
        ),
        (
            "inline data, 4k",
            image().features("inline_data").inode_size(512),
        ),
        ("no filetype", small().features("^filetype")),
        (
            "small inodes",
            small().features("^metadata_csum").inode_size(128),
        ),
        ("values in inodes", small().features("ea_inode")),
    ]
}

/// With quotas of users, groups and projects, which not every kernel can keep.
pub fn with_quotas() -> (&'static str, ImageBuilder) {
    let image = Image::builder().size(24 << 20).block_size(1024);
    let image = image.features("ea_inode,quota,project");
    ("quotas", image.args(&["-N", "4096"]))
}
