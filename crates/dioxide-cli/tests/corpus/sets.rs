//! The kinds of file systems: what `mke2fs` and `dioxide mkfs` are told.

/// One kind.
#[derive(Clone, Copy, Debug)]
pub struct Set {
    pub name: &'static str,
    /// Arguments of both, in words.
    pub args: &'static str,
    /// What dioxide does with it.
    pub ours: Ours,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ours {
    /// Makes, reads and changes it.
    All,
    /// Reads and changes it, and does not make it.
    Changes,
    /// Refuses it, naming this feature, and does not make it.
    Refuses(&'static str),
}

/// Words in the arguments of what a kernel need not write: it may have no quota format and no casefolding, and
/// may take no blocks that are larger than its pages.
const OPTIONAL: [&str; 5] = ["quota", "project", "casefold", "-b 8192", "-b 65536"];

impl Set {
    /// Whether the kernel may do without this kind.
    pub fn is_optional(&self) -> bool {
        OPTIONAL.iter().any(|words| self.args.contains(words))
    }
}

const fn all(name: &'static str, args: &'static str) -> Set {
    Set {
        name,
        args,
        ours: Ours::All,
    }
}

/// Those that run with all tests: one of each family.
pub const QUICK: [&str; 4] = ["ext4", "ext2, 1k", "inline_data, 256", "bigalloc"];

/// All of them.
pub const SETS: &[Set] = &[
    // Types and sizes of blocks.
    all("ext4", "-t ext4 -b 4096"),
    all("ext4, 1k", "-t ext4 -b 1024"),
    all("ext4, 2k", "-t ext4 -b 2048"),
    all("ext4, 8k", "-t ext4 -b 8192"),
    all("ext4, 64k", "-t ext4 -b 65536"),
    all("ext3", "-t ext3 -b 4096"),
    all("ext3, 1k", "-t ext3 -b 1024"),
    all("ext3, 2k", "-t ext3 -b 2048"),
    all("ext2", "-t ext2 -b 4096"),
    all("ext2, 1k", "-t ext2 -b 1024"),
    all("ext2, 2k", "-t ext2 -b 2048"),
    all("ext2 of old", "-t ext2 -b 1024 -I 128 -O none"),
    all(
        "ext2, only filetype",
        "-t ext2 -b 4096 -I 128 -O none,filetype",
    ),
    // Sizes of inodes.
    all("inodes of 128", "-t ext4 -b 4096 -I 128"),
    all("inodes of 128, 1k", "-t ext4 -b 1024 -I 128"),
    all("inodes of 512", "-t ext4 -b 4096 -I 512"),
    all("inodes of 1024", "-t ext4 -b 4096 -I 1024"),
    all("inodes of 1024, 1k", "-t ext4 -b 1024 -I 1024"),
    all("inodes of 4096", "-t ext4 -b 4096 -I 4096"),
    // Features off, one by one.
    all("^has_journal", "-t ext4 -b 4096 -O ^has_journal"),
    all("^extent", "-t ext4 -b 4096 -O ^extent,^64bit"),
    all("^extent, 1k", "-t ext4 -b 1024 -O ^extent,^64bit"),
    all("^64bit", "-t ext4 -b 4096 -O ^64bit"),
    all("^64bit, 1k", "-t ext4 -b 1024 -O ^64bit"),
    all("^metadata_csum", "-t ext4 -b 4096 -O ^metadata_csum"),
    all("^metadata_csum, 1k", "-t ext4 -b 1024 -O ^metadata_csum"),
    all("uninit_bg", "-t ext4 -b 4096 -O ^metadata_csum,uninit_bg"),
    all(
        "uninit_bg, ^64bit, 1k",
        "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg,^64bit",
    ),
    all("^flex_bg", "-t ext4 -b 4096 -O ^flex_bg"),
    all("^flex_bg, 1k", "-t ext4 -b 1024 -O ^flex_bg"),
    all("^filetype", "-t ext4 -b 4096 -O ^filetype"),
    all("^dir_index", "-t ext4 -b 4096 -O ^dir_index"),
    all("^dir_index, 1k", "-t ext4 -b 1024 -O ^dir_index"),
    all("^dir_nlink", "-t ext4 -b 4096 -O ^dir_nlink"),
    all("^extra_isize", "-t ext4 -b 4096 -O ^extra_isize"),
    all("^huge_file", "-t ext4 -b 4096 -O ^huge_file"),
    all("^large_file", "-t ext4 -b 4096 -O ^large_file"),
    all(
        "^sparse_super",
        "-t ext4 -b 1024 -O ^sparse_super,^resize_inode",
    ),
    all("^resize_inode", "-t ext4 -b 4096 -O ^resize_inode"),
    all("^ext_attr", "-t ext4 -b 4096 -O ^ext_attr"),
    // Features on.
    all("bigalloc", "-t ext4 -b 4096 -O bigalloc -C 16384"),
    all("bigalloc, 64k", "-t ext4 -b 4096 -O bigalloc -C 65536"),
    all("bigalloc, 1k", "-t ext4 -b 1024 -O bigalloc -C 8192"),
    all(
        "bigalloc, ^metadata_csum",
        "-t ext4 -b 4096 -O bigalloc,^metadata_csum -C 32768",
    ),
    all(
        "bigalloc, ^has_journal",
        "-t ext4 -b 1024 -O bigalloc,^has_journal -C 4096",
    ),
    all("inline_data, 256", "-t ext4 -b 4096 -O inline_data -I 256"),
    all(
        "inline_data, 512, 1k",
        "-t ext4 -b 1024 -O inline_data -I 512",
    ),
    all(
        "inline_data, 1024",
        "-t ext4 -b 4096 -O inline_data -I 1024",
    ),
    all(
        "inline_data, ^metadata_csum",
        "-t ext4 -b 4096 -O inline_data,^metadata_csum -I 256",
    ),
    all(
        "inline_data, bigalloc",
        "-t ext4 -b 4096 -O inline_data,bigalloc -C 16384 -I 256",
    ),
    all(
        "inline_data, ^has_journal, 1k",
        "-t ext4 -b 1024 -O inline_data,^has_journal -I 256",
    ),
    all("orphan_file", "-t ext4 -b 4096 -O orphan_file"),
    all("orphan_file, 1k", "-t ext4 -b 1024 -O orphan_file"),
    all(
        "orphan_file, ^metadata_csum",
        "-t ext4 -b 4096 -O orphan_file,^metadata_csum",
    ),
    all("fast_commit", "-t ext4 -b 4096 -O fast_commit"),
    all(
        "fast_commit, 1k",
        "-t ext4 -b 1024 -O fast_commit,orphan_file",
    ),
    all("meta_bg", "-t ext4 -b 4096 -O meta_bg,^resize_inode"),
    all("meta_bg, 1k", "-t ext4 -b 1024 -O meta_bg,^resize_inode"),
    all(
        "meta_bg, ^64bit, ^flex_bg, 1k",
        "-t ext4 -b 1024 -O meta_bg,^resize_inode,^64bit,^flex_bg",
    ),
    all(
        "sparse_super2",
        "-t ext4 -b 1024 -O sparse_super2,^resize_inode",
    ),
    all(
        "sparse_super2, one backup",
        "-t ext4 -b 1024 -O sparse_super2,^resize_inode -E num_backup_sb=1",
    ),
    all(
        "sparse_super2, no backup",
        "-t ext4 -b 1024 -O sparse_super2,^resize_inode -E num_backup_sb=0",
    ),
    all(
        "sparse_super2, resize_inode",
        "-t ext4 -b 4096 -O sparse_super2",
    ),
    all(
        "metadata_csum_seed",
        "-t ext4 -b 4096 -O metadata_csum_seed",
    ),
    all("large_dir", "-t ext4 -b 1024 -O large_dir"),
    all("ea_inode", "-t ext4 -b 4096 -O ea_inode"),
    all("ea_inode, 1k", "-t ext4 -b 1024 -O ea_inode"),
    all(
        "ea_inode, ^metadata_csum",
        "-t ext4 -b 4096 -O ea_inode,^metadata_csum",
    ),
    all(
        "ea_inode, inline_data",
        "-t ext4 -b 4096 -O ea_inode,inline_data -I 512",
    ),
    all("quota", "-t ext4 -b 4096 -O quota"),
    all(
        "quota, project",
        "-t ext4 -b 4096 -O quota,project -I 256 -E quotatype=usrquota:grpquota:prjquota",
    ),
    all(
        "quota, 1k, bigalloc",
        "-t ext4 -b 1024 -O quota,bigalloc -C 4096",
    ),
    all(
        "quota, ^extent, ea_inode",
        "-t ext4 -b 4096 -O quota,ea_inode,^extent,^64bit",
    ),
    all("project", "-t ext4 -b 4096 -O project"),
    all("mmp", "-t ext4 -b 4096 -O mmp -E mmp_update_interval=1"),
    // Layouts.
    all("flex_bg of 1", "-t ext4 -b 1024 -G 1"),
    all("flex_bg of 4", "-t ext4 -b 1024 -G 4"),
    all("flex_bg of 64", "-t ext4 -b 1024 -G 64"),
    all(
        "packed_meta_blocks",
        "-t ext4 -b 1024 -G 64 -E packed_meta_blocks=1",
    ),
    all(
        "stride and stripe",
        "-t ext4 -b 4096 -E stride=4,stripe_width=16",
    ),
    all("small journal", "-t ext4 -b 4096 -J size=4"),
    all(
        "journal in the middle",
        "-t ext4 -b 4096 -J size=8,location=10000",
    ),
    all("lazy tables", "-t ext4 -b 1024 -E lazy_itable_init=1"),
    all(
        "root_owner, no reserve",
        "-t ext4 -b 4096 -m 0 -E root_owner=1000:1001",
    ),
    // The usual together, and as many as go together.
    all(
        "as ext3 grown to ext4",
        "-t ext3 -b 4096 -O extent,dir_nlink,extra_isize,huge_file",
    ),
    all(
        "ext4 without what ext3 has not",
        "-t ext4 -b 1024 -O ^has_journal,^extent,^64bit,^flex_bg,^metadata_csum,^huge_file",
    ),
    all(
        "all new",
        "-t ext4 -b 4096 -I 512 -O inline_data,ea_inode,large_dir,orphan_file,fast_commit,metadata_csum_seed,project,quota",
    ),
    all(
        "all new, 1k, bigalloc",
        "-t ext4 -b 1024 -I 256 -C 4096 -O bigalloc,inline_data,ea_inode,large_dir,orphan_file,metadata_csum_seed,meta_bg,^resize_inode",
    ),
    all(
        "all new, no checksums",
        "-t ext4 -b 2048 -I 256 -O inline_data,ea_inode,large_dir,orphan_file,^metadata_csum",
    ),
    // What dioxide knows and does not take part in.
    Set {
        name: "stable_inodes",
        args: "-t ext4 -b 4096 -O stable_inodes",
        ours: Ours::Changes,
    },
    Set {
        name: "verity",
        args: "-t ext4 -b 4096 -O verity",
        ours: Ours::Changes,
    },
    Set {
        name: "encrypt",
        args: "-t ext4 -b 4096 -O encrypt",
        ours: Ours::Changes,
    },
    Set {
        name: "casefold",
        args: "-t ext4 -b 4096 -O casefold",
        ours: Ours::Refuses("casefold"),
    },
];
