//! One test per kind of file system: the kernel fills it, and both walk it.

use super::tree::{Amount, fill};
use super::walk::{Tree, assert_same, by_dioxide, by_kernel};
use dioxide::{Fs, MountOptions};
use dioxide_testkit::{Image, ImageBuilder, Mount, debugfs, need_root};

struct Variant {
    mib: u64,
    kind: &'static str,
    /// Arguments of mke2fs.
    args: &'static str,
    block: u64,
    amount: Amount,
    /// Commands of debugfs before the image is filled.
    debugfs: &'static [&'static str],
}

const USUAL: Amount = Amount {
    entries: 1500,
    fragments: 900,
    long_xattrs: false,
};
const DEFAULTS: Variant = Variant {
    mib: 96,
    kind: "ext4",
    args: "",
    block: 4096,
    amount: USUAL,
    debugfs: &[],
};

impl Variant {
    fn builder(&self) -> ImageBuilder {
        let args: Vec<&str> = self.args.split_whitespace().collect();
        Image::builder()
            .size(self.mib << 20)
            .fs_type(self.kind)
            .block_size(self.block as u32)
            .args(&args)
    }

    fn open(&self, image: &Image) -> Fs {
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("dioxide opens it");
        assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
        assert_eq!(u64::from(fs.block_size()), self.block);
        fs
    }
}

fn check(variant: &Variant) {
    let image = variant.builder().build();
    if !variant.debugfs.is_empty() {
        debugfs(image.path(), variant.debugfs);
    }
    image.populate_with_kernel(|root| fill(root, variant.block, variant.amount));
    let mounted = Mount::ext4(image.path(), "ro");
    let expected = by_kernel(mounted.path(), variant.block);
    mounted.unmount();
    assert_same(&expected, &by_dioxide(&variant.open(&image)));
}

macro_rules! variants {
    ($($name:ident: $($field:ident = $value:expr),*;)*) => {
        $(
            #[test]
            fn $name() {
                need_root!();
                check(&Variant { $($field: $value,)* ..DEFAULTS });
            }
        )*
    };
}

variants! {
    ext4_as_made_by_default_walks_as_the_kernel: mib = 96;
    ext4_with_10k_entries_walks_as_the_kernel: amount = Amount { entries: 10_000, ..USUAL };
    ext4_with_1k_blocks_walks_as_the_kernel: kind = "ext4", block = 1024;
    ext4_with_2k_blocks_walks_as_the_kernel: kind = "ext4", block = 2048;
    ext4_without_64bit_walks_as_the_kernel: args = "-O ^64bit";
    ext4_without_checksums_walks_as_the_kernel: args = "-O ^metadata_csum";
    ext4_with_group_checksums_walks_as_the_kernel: args = "-O ^metadata_csum,uninit_bg,^64bit", block = 1024;
    ext4_with_meta_bg_walks_as_the_kernel: args = "-O meta_bg,^resize_inode", block = 1024;
    ext4_without_flex_bg_walks_as_the_kernel: args = "-O ^flex_bg", block = 1024;
    ext4_with_bigalloc_walks_as_the_kernel: args = "-O bigalloc -C 16384", mib = 160;
    ext4_with_1k_bigalloc_walks_as_the_kernel: args = "-O bigalloc -C 4096", block = 1024;
    ext4_with_inline_data_walks_as_the_kernel: args = "-O inline_data -I 256";
    ext4_with_large_inodes_walks_as_the_kernel: args = "-O inline_data -I 1024";
    ext4_with_ea_inodes_walks_as_the_kernel: args = "-O ea_inode", amount = Amount { long_xattrs: true, ..USUAL };
    ext4_without_extents_walks_as_the_kernel: args = "-O ^extents,^64bit";
    ext4_with_128_byte_inodes_walks_as_the_kernel: args = "-I 128";
    ext4_with_sparse_super2_walks_as_the_kernel: args = "-O sparse_super2,^resize_inode", block = 1024;
    ext4_with_orphan_file_and_csum_seed_walks_as_the_kernel: args = "-O orphan_file,metadata_csum_seed";
    ext4_with_mmp_walks_as_the_kernel: args = "-O mmp";
    ext4_with_verity_feature_walks_as_the_kernel: args = "-O verity";
    ext4_with_encrypt_feature_walks_as_the_kernel: args = "-O encrypt";
    ext3_walks_as_the_kernel: kind = "ext3", block = 1024;
    ext2_walks_as_the_kernel: kind = "ext2", block = 1024;
    ext2_without_filetype_walks_as_the_kernel: kind = "ext2", args = "-O ^filetype,^dir_index";
    index_by_legacy_hash_walks_as_the_kernel: debugfs = &["ssv def_hash_version legacy"];
    index_by_half_md4_hash_walks_as_the_kernel: debugfs = &["ssv def_hash_version half_md4", "ssv flags 1"];
    index_by_tea_hash_walks_as_the_kernel: debugfs = &["ssv def_hash_version tea"], kind = "ext4", block = 1024;
    index_by_legacy_unsigned_hash_walks_as_the_kernel: debugfs = &["ssv def_hash_version legacy", "ssv flags 2"];
    index_by_half_md4_unsigned_hash_walks_as_the_kernel: debugfs = &["ssv def_hash_version half_md4", "ssv flags 2"];
    index_by_tea_unsigned_hash_walks_as_the_kernel: debugfs = &["ssv def_hash_version tea", "ssv flags 2"];
}

/// The kernel cannot mount these everywhere (pages of 4 KiB, or built without quota), so `mke2fs`
/// fills them from a folder, which is what the walk is compared with.
fn check_unmountable(variant: &Variant) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fill(folder.path(), 4096, variant.amount);
    let image = variant.builder().source(folder.path()).build();
    let expected = by_kernel(folder.path(), 4096);
    assert_same(
        &only_content(expected),
        &only_content(by_dioxide(&variant.open(&image))),
    );
}

/// What `mke2fs -d` keeps.
fn only_content(mut tree: Tree) -> Tree {
    tree.remove(&b"/lost+found"[..]);
    for record in tree.values_mut() {
        record.ino = 0;
        record.blocks = 0;
        record.times = Default::default();
        record.created = None;
        record.extents = None;
        let is_dir = record.mode & libc::S_IFMT == libc::S_IFDIR;
        if is_dir {
            record.size = 0;
            record.nlink = 0;
        }
    }
    // The root is mke2fs's own, and so are its links to lost+found.
    tree.remove(&b""[..]);
    tree
}

#[test]
fn ext4_with_64k_blocks_walks_as_its_source() {
    need_root!();
    check_unmountable(&Variant {
        block: 65536,
        mib: 256,
        ..DEFAULTS
    });
}

#[test]
fn ext4_with_quota_and_project_walks_as_its_source() {
    need_root!();
    check_unmountable(&Variant {
        args: "-O quota,project",
        ..DEFAULTS
    });
}
