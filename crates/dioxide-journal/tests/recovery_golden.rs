//! Journals as mke2fs makes them and as the kernel leaves them at a clean unmount, against dumpe2fs.

use dioxide_block::file::FileOptions;
use dioxide_block::{Device, Durability};
use dioxide_format::journal::{JournalIncompat, JournalSuperBlock};
use dioxide_format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use dioxide_journal::log::{Log, LogMap, Ring, fast_commit_area};
use dioxide_journal::recovery::{FileSystem, Recovery};
use dioxide_testkit::{Image, dumpe2fs, e2fsck_clean, have_root, leaf_extents};
use std::process::Command;
use std::sync::Arc;

fn open(image: &Image) -> (Arc<dyn Device>, SuperBlock) {
    let options = FileOptions {
        write: true,
        ..FileOptions::default()
    };
    let device = dioxide_block::file::open(image.path(), &options).unwrap();
    let mut bytes = vec![0; 4096];
    device.read_at(0, &mut bytes).unwrap();
    let sb = SuperBlock::parse(&bytes[SUPERBLOCK_OFFSET as usize..]).unwrap();
    (device, sb)
}

fn log_of(image: &Image) -> (Log, FileSystem) {
    let runs: Vec<_> = leaf_extents(image.path(), "<8>")
        .iter()
        .map(|e| e.physical..e.physical + e.len)
        .collect();
    let (device, sb) = open(image);
    let fs = FileSystem::of(&sb, &*device);
    let map = LogMap::internal(runs).unwrap();
    (Log::new(device, map, sb.block_size() as usize), fs)
}

/// A line of dumpe2fs.
fn dumped<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(key)?.strip_prefix(':');
    text.lines().find_map(value).map(str::trim)
}

/// Checks a journal that is empty; its superblock.
fn check(image: &Image) -> JournalSuperBlock {
    let text = dumpe2fs(image.path());
    let (log, fs) = log_of(image);
    let sb = log.read_superblock().unwrap();
    let shown = |key: &str| dumped(&text, key).unwrap_or_else(|| panic!("{key}\n{text}"));
    // e2fsprogs 1.47.0 has no name for that feature of a journal.
    let names: Vec<_> = [sb.compat().names(), sb.incompat().names()].concat();
    let names = names.join(" ").replace("fast_commit", "FEATURE_I5");
    let names = if names.is_empty() { "(none)" } else { &names };
    assert_eq!(shown("Journal features"), names);
    assert_eq!(shown("Total journal blocks"), sb.s_maxlen.to_string());
    assert_eq!(
        shown("Total journal blocks"),
        log.map().blocks().to_string()
    );
    assert_eq!(
        shown("Journal sequence"),
        format!("{:#010x}", sb.s_sequence)
    );
    assert_eq!(shown("Journal start"), "0");
    let checksum = dumped(&text, "Journal checksum").unwrap_or("0x00000000");
    assert_eq!(checksum, format!("{:#010x}", sb.s_checksum));
    let format = sb.format().unwrap();
    assert_eq!(format.wide, sb.incompat().contains(JournalIncompat::BIT64));
    let recovery = Recovery::plan(&log, fs).unwrap();
    assert_eq!(recovery.recovered().transactions, 0);
    let mut same = sb.clone();
    log.write_superblock(&mut same, Durability::Cached).unwrap();
    assert_eq!(same, sb, "the checksum was right");
    sb
}

/// Checks a journal new and after a mount.
fn check_both(image: &Image) -> JournalSuperBlock {
    check(image);
    if have_root() {
        image.populate_with_kernel(|root| std::fs::write(root.join("file"), "content").unwrap());
    }
    let sb = check(image);
    e2fsck_clean(image.path());
    sb
}

#[test]
fn journal_of_every_size_and_kind_agrees_with_dumpe2fs() {
    for block in [1024, 2048, 4096] {
        for size in ["size=4", "size=16"] {
            for features in ["64bit", "^64bit", "^metadata_csum", "^metadata_csum,^64bit"] {
                let builder = Image::builder().block_size(block).features(features);
                let sb = check_both(&builder.args(&["-J", size]).build());
                assert_eq!(sb.fast_commit_blocks(), 0);
                assert_eq!(Ring::of(&sb).len(), sb.s_maxlen - 1);
                if have_root() {
                    let has = |feature| sb.incompat().contains(feature);
                    let csum = !features.contains("^metadata_csum");
                    assert_eq!(has(JournalIncompat::CSUM_V3), csum);
                    assert_eq!(has(JournalIncompat::BIT64), !features.contains("^64bit"));
                }
            }
        }
    }
}

#[test]
fn journal_with_fast_commits_has_an_area_of_their_own() {
    for (size, blocks) in [("size=8,fast_commit_size=512", 128), ("size=8", 0)] {
        let builder = Image::builder().features("fast_commit");
        let mut sb = check_both(&builder.args(&["-J", size]).build());
        // The kernel sets the journal's feature only while it is mounted.
        assert_eq!(sb.fast_commit_blocks(), 0);
        sb.s_feature_incompat |= JournalIncompat::FAST_COMMIT.bits();
        let wanted = if blocks == 0 {
            sb.s_num_fc_blks
        } else {
            blocks
        };
        assert_eq!(sb.s_num_fc_blks, wanted);
        let wanted = if wanted == 0 { 256 } else { wanted };
        assert_eq!(sb.fast_commit_blocks(), wanted);
        assert_eq!(Ring::of(&sb).end, sb.s_maxlen - wanted);
        let area = fast_commit_area(&sb);
        assert_eq!(area, sb.s_maxlen - wanted + 1..sb.s_maxlen);
    }
}

#[test]
fn journal_device_has_its_superblock_after_that_of_ext4() {
    for block in [1024usize, 2048, 4096] {
        let image = Image::blank(Default::default(), 8 << 20);
        let made = Command::new("mke2fs")
            .args(["-q", "-F", "-O", "journal_dev", "-b", &block.to_string()])
            .arg(image.path())
            .status();
        assert!(made.unwrap().success());
        let (device, sb) = open(&image);
        assert_eq!(sb.blocks_count(), (8 << 20) / block as u64);
        let map = LogMap::external(sb.blocks_count(), block).unwrap();
        let log = Log::new(device, map, block);
        let journal = log.read_superblock().unwrap();
        assert_eq!(u64::from(journal.s_maxlen), sb.blocks_count());
        assert_eq!(journal.s_first, if block == 1024 { 3 } else { 2 });
        assert_eq!(journal.s_uuid, sb.uuid());
        assert!(journal.is_empty());
    }
}
