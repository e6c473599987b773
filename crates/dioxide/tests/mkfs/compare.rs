//! The layout is that of `mke2fs`: what `dumpe2fs` says of both is the same, line by line, and for
//! most options every byte is.

use super::{EPOCH, HASH_SEED, UUID, dir, from_words};
use dioxide_testkit::{dumpe2fs, e2fsck_clean, each_case};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const M: u64 = 1 << 20;
const G: u64 = 1 << 30;

/// What may differ: what was written in all, and the checksum over that; and in the block of
/// multi-mount protection the clock, which `mke2fs` does not take from its environment, and the names
/// of the host and the device, which would make images differ between machines.
const MAY_DIFFER: [&str; 6] = [
    "Lifetime writes:",
    "Checksum:",
    "    mmp_update_date:",
    "    mmp_update_time:",
    "    mmp_node_name:",
    "    mmp_device_name:",
];

/// How much is compared.
#[derive(Clone, Copy, PartialEq)]
enum Depth {
    /// Every byte but those of [`MAY_DIFFER`].
    Bytes,
    /// What dumpe2fs tells. Some bytes that it does not tell differ: see each use.
    Layout,
}
use Depth::{Bytes, Layout};

fn mke2fs(path: &Path, size_bytes: u64, words: &str) {
    File::create(path).unwrap().set_len(size_bytes).unwrap();
    mke2fs_on(path, words);
}

/// On an image or device that is there, and as large as that is.
pub(super) fn mke2fs_on(path: &Path, words: &str) {
    let words: Vec<&str> = words.split_whitespace().collect();
    let mut extended = format!("hash_seed={HASH_SEED}");
    let mut command = Command::new("mke2fs");
    let system = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    command
        .env("PATH", system)
        .env("E2FSPROGS_FAKE_TIME", EPOCH.to_string())
        .args(["-q", "-F", "-U", UUID]);
    for pair in words.chunks(2) {
        match pair[0] {
            // It heeds only the last -E.
            "-E" => extended += &format!(",{}", pair[1]),
            _ => _ = command.args(pair),
        }
    }
    let output = command.args(["-E", &extended]).arg(path).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

pub(super) fn lines(image: &Path) -> Vec<String> {
    let text = dumpe2fs(image);
    let told = |line: &&str| !MAY_DIFFER.iter().any(|start| line.starts_with(start));
    text.lines().filter(told).map(str::to_owned).collect()
}

/// Where the superblock and its backups lie, whose account and checksum may differ.
fn superblocks(image: &Path) -> Vec<u64> {
    let text = dumpe2fs(image);
    let value = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let word = line.unwrap().rsplit(' ').next().unwrap();
        word.parse::<u64>().unwrap()
    };
    let block_size = value("Block size:");
    let backups = text.lines().filter_map(|line| {
        let rest = line.trim().strip_prefix("Backup superblock at ")?;
        rest.split(',').next()?.parse::<u64>().ok()
    });
    let mut at: Vec<u64> = backups.map(|block| block * block_size).collect();
    at.push(1024);
    at
}

/// The first byte that differs, but for what superblocks may.
fn first_difference(ours: &Path, theirs: &Path, superblocks: &[u64]) -> Option<u64> {
    const CHUNK: usize = 64 << 10;
    let [ours, theirs] = [ours, theirs].map(|path| File::open(path).unwrap());
    let sizes = [&ours, &theirs].map(|file| file.metadata().unwrap().len());
    let size = sizes[0].min(sizes[1]);
    let (mut one, mut other) = (vec![0; CHUNK], vec![0; CHUNK]);
    for at in (0..size).step_by(CHUNK) {
        let len = (size - at).min(CHUNK as u64) as usize;
        for (file, bytes) in [(&ours, &mut one), (&theirs, &mut other)] {
            file.read_exact_at(&mut bytes[..len], at).unwrap();
            let inside = at..at + len as u64;
            for sb in superblocks.iter().filter(|sb| inside.contains(sb)) {
                let sb = &mut bytes[(sb - at) as usize..];
                sb[0x178..][..8].fill(0);
                sb[0x3FC..][..4].fill(0);
            }
        }
        if one[..len] != other[..len] {
            let differs = one.iter().zip(&other).position(|(a, b)| a != b);
            return differs.map(|first| at + first as u64);
        }
    }
    None
}

#[track_caller]
fn same(depth: Depth, size_bytes: u64, words: &str) {
    let dir = dir();
    let (theirs, ours) = (dir.path().join("theirs"), dir.path().join("ours"));
    mke2fs(&theirs, size_bytes, words);
    from_words(words).create(&ours, Some(size_bytes)).unwrap();
    let (expected, found) = (lines(&theirs), lines(&ours));
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!(found, expected, "{size_bytes} bytes, {words}");
    }
    assert_eq!(found.len(), expected.len(), "{size_bytes} bytes, {words}");
    e2fsck_clean(&ours);
    if depth == Bytes {
        let at = first_difference(&ours, &theirs, &superblocks(&ours)).map(|at| (at, at / 1024));
        assert_eq!(at, None, "byte, KiB: {size_bytes} bytes, {words}");
    }
}

#[test]
fn layout_of_each_type_is_that_of_mke2fs() {
    for (size, words) in [
        (64 * M, "-t ext2"),
        (64 * M, "-t ext3"),
        (64 * M, "-t ext4"),
        (64 * M, "-t ext4 -b 4096"),
        (300 * M, "-t ext3 -b 4096"),
        (129 * M, "-t ext2 -b 4096"),
        (M, "-t ext4"),
        (2 * M, "-t ext3"),
        (200 << 10, "-t ext2"),
    ] {
        same(Bytes, size, words);
    }
}

#[test]
fn layout_with_each_feature_is_that_of_mke2fs() {
    for features in [
        "^has_journal",
        "^metadata_csum",
        "^metadata_csum,uninit_bg",
        "^64bit",
        "^64bit,^extent",
        "^flex_bg",
        "^resize_inode",
        "^resize_inode,^sparse_super",
        "^resize_inode,meta_bg",
        "sparse_super2",
        "orphan_file,metadata_csum_seed",
        "fast_commit",
        "project,large_dir,ea_inode",
        "^dir_index,^filetype,^ext_attr",
        "bigalloc",
        "encrypt",
        "verity,stable_inodes",
        "none",
    ] {
        same(Bytes, 100 * M, &format!("-t ext4 -O {features}"));
    }
    same(Bytes, 100 * M, "-t ext3 -O orphan_file -b 2048");
    let large = "-t ext4 -b 1024 -O bigalloc -C 33554432 -N 64";
    same(Bytes, 300 * M, large);
    same(Bytes, 100 * M, "-t ext4 -O quota,project -b 4096");
    // Zero is the default.
    same(Layout, 100 * M, "-t ext4 -O mmp -E mmp_update_interval=0");
    // Multi-mount protection: see MAY_DIFFER. Quota files with blocks of 1 KiB lie in order here, and
    // lost+found does not grow out of its inode first.
    for features in ["mmp", "quota", "inline_data"] {
        same(Layout, 100 * M, &format!("-t ext4 -O {features}"));
    }
    same(
        Layout,
        100 * M,
        "-t ext4 -b 2048 -O sparse_super2,orphan_file,quota,project,mmp,inline_data",
    );
    // Inodes of lost+found, the project quota and the orphan file are in the second group, blocks only of the first.
    for words in [
        "-G 1 -O ^resize_inode,orphan_file,quota,project,mmp",
        "-G 2 -O ^resize_inode,orphan_file,quota,project,mmp",
        "-G 1 -O inline_data",
    ] {
        same(Layout, 100 * M, &format!("-t ext4 -N 1 {words}"));
    }
}

#[test]
fn layout_with_each_number_is_that_of_mke2fs() {
    for words in [
        "-I 128",
        "-I 1024",
        "-N 3000",
        "-N 0",
        // lost+found is in the second group, whose flex group is the first, or its own.
        "-N 1",
        "-N 1 -G 1",
        "-i 67108864 -b 4096",
        "-i 65536",
        "-i 1024",
        "-m 0",
        "-m 12.5",
        "-L hello",
        "-G 1",
        "-G 4",
        "-G 256",
        "-J size=8",
        "-b 2048",
        "-b 8192",
        "-b 16384",
        "-b 65536",
        "-O bigalloc -C 65536",
        // A journal that ends inside a cluster.
        "-b 1024 -O bigalloc,fast_commit -C 262144",
        "-b 4096 -O bigalloc -C 4096",
        // Backups: the resize inode has their descriptors a block late.
        "-b 1024 -O bigalloc -C 4096",
        // The resize inode is larger than 2 GiB.
        "-b 4096 -O ^large_file",
        "-O sparse_super2 -E num_backup_sb=1",
        "-E stride=16,stripe_width=32",
        "-E packed_meta_blocks=1",
        "-E resize=1G",
        // Not more than what one block of descriptors reaches to.
        "-b 4096 -E resize=1G",
        "-b 4096 -O quota -E quotatype=prjquota",
        "-J location=5000",
        "-O fast_commit -J fast_commit_size=512",
        "-O fast_commit -J size=8,fast_commit_size=20000",
        // The default.
        "-O fast_commit -J size=0,fast_commit_size=0",
        "-E root_owner=1000:1001",
        "-b 4096 -O quota -E root_owner=1000:1001",
        "-b 4096 -O quota -E root_owner=0:4294967294",
        "-b 4096 -O quota,project -E root_owner=305419896:255",
        "-E lazy_itable_init=0,lazy_journal_init=1",
        "-O ^flex_bg -E stride=16",
    ] {
        same(Bytes, 100 * M, &format!("-t ext4 {words}"));
    }
}

#[test]
fn layout_of_odd_sizes_is_that_of_mke2fs() {
    for kib in [8196, 33_000, 65_700, 65_800, 74_000] {
        same(Bytes, kib << 10, "-t ext4");
        same(Bytes, kib << 10, "-t ext2");
    }
    same(Bytes, 24 * M, "-t ext4 -b 1024 -i 67108864");
    same(Bytes, 24 * M, "-t ext2 -b 2048 -i 67108864");
}

#[test]
fn layout_of_large_file_systems_is_that_of_mke2fs() {
    // Inodes keep what was in them before a journal's extents moved out to a block.
    let cases = [
        // The longest first.
        (1024 * G, "-t ext4 -b 1024"),
        (1024 * G, "-t ext4"),
        (5 * G, "-t ext4"),
        (100 * G, "-t ext4"),
        (10 * G, "-t ext4 -O bigalloc -C 1048576"),
        (2 * G, "-t ext4 -b 1024 -O ^flex_bg"),
        (130 * G, "-t ext4 -O ^flex_bg"),
        (200 * G, "-t ext4 -O bigalloc"),
        (300 * G, "-t ext4 -G 512"),
    ];
    each_case(cases, |(size, words)| same(Layout, size, words));
}

#[test]
fn image_made_again_has_the_same_bytes() {
    let dir = dir();
    for words in [
        "-t ext4",
        "-t ext4 -O mmp,quota,orphan_file,inline_data",
        "-t ext4 -E lazy_itable_init=0,lazy_journal_init=0",
        "-t ext4 -E lazy_itable_init=1,lazy_journal_init=1",
    ] {
        let images = ["a", "b"].map(|name| {
            let path = dir.path().join(name);
            // The second time over what is there.
            let mkfs = from_words(words).force(true);
            mkfs.create(&path, Some(32 * M)).unwrap();
            std::fs::read(path).unwrap()
        });
        assert!(images[0] == images[1], "{words}");
    }
}

#[test]
fn image_on_a_device_of_noise_has_the_bytes_that_are_told() {
    use dioxide::block::Device;
    use dioxide::block::mem::MemDevice;
    let plan = from_words("-t ext4 -E lazy_itable_init=0")
        .plan(32 * M)
        .unwrap();
    let device = MemDevice::new(32 * M);
    let noise = vec![0xA5; 32 << 20];
    device.write_at(0, &noise, Default::default()).unwrap();
    plan.write(&device, &mut Default::default()).unwrap();
    let dir = dir();
    let path = dir.path().join("noise.img");
    let mut bytes = vec![0; 32 << 20];
    device.read_at(0, &mut bytes).unwrap();
    File::create(&path)
        .unwrap()
        .write_all_at(&bytes, 0)
        .unwrap();
    e2fsck_clean(&path);
}
