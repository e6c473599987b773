//! Logs of this journal, read by e2fsprogs and by the kernel.

mod commit_support;

use commit_support::Rng;
use dioxide_block::file::{FileOptions, open};
use dioxide_block::{Device, Durability};
use dioxide_format::journal::MAGIC;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::Pblk;
use dioxide_journal::buffer::BufferCache;
use dioxide_journal::journal::{Journal, JournalOptions};
use dioxide_journal::log::{Log, LogMap};
use dioxide_journal::{Edit, Kind};
use dioxide_testkit::{Image, Mount, debugfs_query, e2fsck_clean, leaf_extents, need_root};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Any block.
#[derive(Debug)]
struct Raw;

impl Kind for Raw {
    fn name(&self) -> &'static str {
        "block"
    }
    fn verify(&self, _: Pblk, _: &[u8]) -> dioxide_format::Result<()> {
        Ok(())
    }
    fn seal(&self, _: Pblk, _: &mut [u8]) {}
}

/// What the image is, and what of Linux's habits the log is to follow.
#[derive(Clone, Copy, Debug)]
struct Variant {
    features: &'static str,
    block: u32,
    checksum_v3: bool,
    wide: bool,
}

const VARIANTS: [Variant; 4] = [
    Variant {
        features: "metadata_csum,64bit",
        block: 4096,
        checksum_v3: true,
        wide: true,
    },
    Variant {
        features: "metadata_csum,64bit",
        block: 1024,
        checksum_v3: true,
        wide: true,
    },
    Variant {
        features: "^metadata_csum,^64bit",
        block: 4096,
        checksum_v3: false,
        wide: false,
    },
    Variant {
        features: "^metadata_csum,64bit",
        block: 1024,
        checksum_v3: false,
        wide: true,
    },
];

const FILE_BLOCKS: usize = 40;

/// An image with a file, whose blocks stand for metadata here.
fn image(variant: Variant) -> Image {
    let tree = tempfile::tempdir().expect("directory");
    let bytes = vec![b'0'; FILE_BLOCKS * variant.block as usize];
    std::fs::write(tree.path().join("file"), bytes).expect("file");
    Image::builder()
        .block_size(variant.block)
        .features(variant.features)
        .source(tree.path())
        .build()
}

fn blocks_of(image: &Path, file: &str) -> Vec<u64> {
    let extents = leaf_extents(image, file);
    let blocks = extents.iter().map(|e| e.physical..e.physical + e.len);
    blocks.flatten().collect()
}

fn open_device(image: &Path) -> Arc<dyn Device> {
    let options = FileOptions {
        write: true,
        ..FileOptions::default()
    };
    open(image, &options).expect("image")
}

/// Does to the file-system superblock what a mount does.
fn set_needs_recovery(device: &dyn Device) {
    let mut block = vec![0; 4096];
    device.read_at(0, &mut block).expect("read");
    let mut sb = SuperBlock::parse(&block[1024..2048]).expect("superblock");
    sb.disk_mut().s_feature_incompat |= 4;
    sb.update_checksum();
    block[1024..2048].copy_from_slice(&sb.encode());
    device
        .write_at(0, &block, Durability::Cached)
        .expect("write");
}

/// Leaves the image as a crash does after several transactions. What the file must then hold.
fn leave_dirty(image: &Path, variant: Variant) -> Vec<u8> {
    let log_runs = leaf_extents(image, "<8>");
    let runs = log_runs.iter().map(|e| e.physical..e.physical + e.len);
    let map = LogMap::internal(runs).expect("journal's blocks");
    let file = blocks_of(image, "/file");
    let size = variant.block as usize;
    let device = open_device(image);
    let log = Log::new(device.clone(), map.clone(), size);
    let sb = log.read_superblock().expect("journal superblock");
    let options = JournalOptions {
        checksum_v3: variant.checksum_v3,
        wide: variant.wide,
        ..JournalOptions::default()
    };
    let cache = BufferCache::new(device.clone(), size, 1 << 20);
    let journal = Journal::open(device.clone(), map, sb, cache, &options).expect("journal");
    set_needs_recovery(&*device);
    let mut want = vec![b'0'; FILE_BLOCKS * size];
    let mut rng = Rng(7);
    for round in 0..20u8 {
        let mut handle = journal.start(8).expect("start");
        for _ in 0..6 {
            // The last two blocks are for the revoke below.
            let index = rng.below(FILE_BLOCKS as u64 - 2) as usize;
            let bytes = &mut want[index * size..][..size];
            bytes.fill(b'a' + round);
            if index.is_multiple_of(3) {
                bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
            }
            let bytes = &*bytes;
            let set = &mut |block: &mut [u8]| {
                block.copy_from_slice(bytes);
                Ok(())
            };
            handle.modify(Pblk(file[index]), &Raw, set).expect("modify");
        }
        handle.stop().expect("stop");
        journal.force_commit().expect("commit");
    }
    revoke(&journal, &*device, &file, &mut want, size);
    want
}

/// Two blocks are logged and freed; one is then used for data, the other as metadata again.
fn revoke(journal: &Journal, device: &dyn Device, file: &[u64], want: &mut [u8], size: usize) {
    let last = FILE_BLOCKS - 2..FILE_BLOCKS;
    let mut handle = journal.start(2).expect("start");
    for index in last.clone() {
        let bytes = vec![b'!'; size];
        handle
            .create(Pblk(file[index]), &Raw, &bytes)
            .expect("create");
    }
    handle.mark_sync();
    handle.stop().expect("stop");
    let mut handle = journal.start(2).expect("start");
    for index in last.clone() {
        handle.forget(Pblk(file[index])).expect("forget");
    }
    handle.mark_sync();
    handle.stop().expect("stop");
    let (data, again) = (last.start, last.start + 1);
    want[data * size..][..size].fill(b'D');
    want[again * size..][..size].fill(b'M');
    let offset = file[data] * size as u64;
    device
        .write_at(offset, &want[data * size..][..size], Durability::Cached)
        .expect("write");
    let mut handle = journal.start(1).expect("start");
    let bytes = &want[again * size..][..size];
    handle
        .create(Pblk(file[again]), &Raw, bytes)
        .expect("create");
    handle.mark_sync();
    handle.stop().expect("stop");
}

fn file_of(image: &Path) -> Vec<u8> {
    let out = tempfile::NamedTempFile::new().expect("file");
    debugfs_query(image, &format!("dump /file {}", out.path().display()));
    std::fs::read(out.path()).expect("file")
}

fn e2fsck(image: &Path, args: &[&str]) -> String {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new("e2fsck")
        .env("PATH", path)
        .env("LC_ALL", "C")
        .args(args)
        .arg(image)
        .output()
        .expect("e2fsck");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let code = output.status.code();
    assert!(
        matches!(code, Some(0 | 1)),
        "e2fsck {args:?}: {code:?}\n{text}"
    );
    text
}

#[test]
fn dirty_log_is_replayed_by_e2fsck() {
    for variant in VARIANTS {
        let image = image(variant);
        let want = leave_dirty(image.path(), variant);
        assert_ne!(
            file_of(image.path()),
            want,
            "{variant:?}: nothing is home yet"
        );
        let said = e2fsck(image.path(), &["-fy", "-E", "journal_only"]);
        assert!(
            !said.contains("error") && !said.contains("corrupt") && !said.contains("invalid"),
            "{variant:?}: {said}"
        );
        assert!(file_of(image.path()) == want, "{variant:?}: {said}");
        e2fsck_clean(image.path());
    }
}

#[test]
fn dirty_log_is_listed_by_debugfs() {
    for variant in VARIANTS {
        let image = image(variant);
        leave_dirty(image.path(), variant);
        let listing = debugfs_query(image.path(), "logdump -a");
        let count = |what: &str| listing.matches(what).count();
        assert_eq!(count("(commit block)"), 23, "{variant:?}\n{listing}");
        assert_eq!(count("(revoke table)"), 1, "{variant:?}\n{listing}");
        assert!(count("(descriptor block)") >= 22, "{variant:?}\n{listing}");
    }
}

#[test]
fn dirty_log_is_replayed_by_the_kernel() {
    need_root!();
    for variant in VARIANTS {
        let image = image(variant);
        let want = leave_dirty(image.path(), variant);
        let mount = Mount::ext4(image.path(), "");
        let found = std::fs::read(mount.path().join("file")).expect("file");
        mount.unmount();
        assert!(found == want, "{variant:?}");
        e2fsck_clean(image.path());
    }
}

#[test]
fn closed_journal_is_clean_and_home() {
    for variant in VARIANTS {
        let image = image(variant);
        let file = blocks_of(image.path(), "/file");
        let runs = leaf_extents(image.path(), "<8>");
        let runs = runs.iter().map(|e| e.physical..e.physical + e.len);
        let map = LogMap::internal(runs).expect("journal's blocks");
        let size = variant.block as usize;
        let device = open_device(image.path());
        let sb = Log::new(device.clone(), map.clone(), size)
            .read_superblock()
            .expect("journal superblock");
        let cache = BufferCache::new(device.clone(), size, 1 << 20);
        let options = JournalOptions::default();
        let journal = Journal::open(device.clone(), map, sb, cache, &options).expect("journal");
        let mut handle = journal.start(1).expect("start");
        let bytes = vec![b'x'; size];
        handle.create(Pblk(file[0]), &Raw, &bytes).expect("create");
        handle.stop().expect("stop");
        journal.close().expect("close");
        drop(device);
        assert_eq!(file_of(image.path())[..size], bytes);
        e2fsck_clean(image.path());
    }
}
