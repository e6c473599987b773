//! Images whose journal the kernel left dirty: what is mounted, what is written, what is said.

use dioxide::block::mem::MemDevice;
use dioxide::block::record::RecordDevice;
use dioxide::block::{Device, Durability};
use dioxide::format::features::Incompat;
use dioxide::format::superblock::SuperBlock;
use dioxide::{Fs, MountOptions, OpenOptions};
use dioxide_testkit::{Dir, Image, Mount, debugfs, e2fsck_clean, leaf_extents, need_root};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const FILES: u32 = 40;

/// A copy of a file system in use: everything that `run` made was synced file by file, so it is in the
/// journal and not yet where it belongs.
fn dirty(features: &str) -> Image {
    let image = Image::builder().size(64 << 20).features(features).build();
    let mount = Mount::ext4(image.path(), "");
    fs::create_dir(mount.path().join("dir")).expect("a directory");
    for number in 0..FILES {
        let mut file = File::create(mount.path().join(format!("dir/{number}"))).expect("a file");
        write!(file, "file {number}").expect("room");
        file.sync_all().expect("a sync");
    }
    let copy = image.copy();
    mount.unmount();
    copy
}

fn open(image: &Image, options: &MountOptions) -> Fs {
    Fs::open(image.path(), options).expect("it opens")
}

fn assert_files(fs: &Fs) {
    for number in 0..FILES {
        let path = format!("/dir/{number}");
        let file = OpenOptions::new().read(true).open(fs, &path);
        let mut text = vec![0; 100];
        let len = file.expect(&path).read_at(&mut text, 0).expect(&path);
        assert_eq!(text[..len], *format!("file {number}").as_bytes(), "{path}");
    }
}

fn needs_recovery(image: &Image) -> bool {
    let mut bytes = vec![0; 1024];
    let file = File::open(image.path()).expect("the image");
    file.read_exact_at(&mut bytes, 1024).expect("a superblock");
    let sb = SuperBlock::parse(&bytes).expect("1024 bytes");
    sb.needs_recovery()
}

#[test]
fn dirty_journal_is_replayed_on_the_device_by_a_writing_mount() {
    need_root!();
    for features in ["", "^metadata_csum", "^64bit"] {
        let image = dirty(features);
        assert!(needs_recovery(&image));
        let fs = open(&image, &MountOptions::new());
        assert_eq!(fs.read_only(), None, "{features}: {:?}", fs.warnings());
        assert!(fs.warnings()[0].contains("was replayed"));
        assert_files(&fs);
        drop(fs);
        assert!(!needs_recovery(&image));
        let again = open(&image, &MountOptions::new());
        assert_eq!(again.warnings(), &[] as &[String]);
        drop(again);
        e2fsck_clean(image.path());
    }
}

/// What is logged tells of the groups, and the superblock's own counts are those of the last clean end.
#[test]
fn free_counts_of_a_journal_that_dioxide_left_are_those_of_the_groups() {
    let image = Image::builder().size(64 << 20).build();
    let fs = open(&image, &MountOptions::new());
    for number in 0..FILES {
        let options = OpenOptions::new().write(true).create(true);
        let file = options.open(&fs, format!("/{number}")).expect("a file");
        file.write_at(&[7; 5000], 0).expect("room");
        file.sync_all().expect("a sync");
    }
    let (copy, expected) = (image.copy(), fs.statfs());
    fs.close().expect("a clean end");
    assert!(needs_recovery(&copy));
    for read_only in [true, false, true] {
        let fs = open(&copy, &MountOptions::new().read_only(read_only));
        let found = fs.statfs();
        assert_eq!(found.blocks_free, expected.blocks_free, "{read_only}");
        assert_eq!(found.files_free, expected.files_free, "{read_only}");
        fs.close().expect("nothing to do");
    }
    e2fsck_clean(copy.path());
}

#[test]
fn dirty_journal_is_read_in_place_by_a_reading_mount() {
    need_root!();
    let image = dirty("");
    let before = fs::read(image.path()).expect("the image");
    let fs = open(&image, &MountOptions::new().read_only(true));
    assert!(
        fs.warnings()[0].contains("read in place"),
        "{:?}",
        fs.warnings()
    );
    assert_files(&fs);
    drop(fs);
    assert!(before == fs::read(image.path()).expect("the image"));
}

#[test]
fn dirty_journal_under_noload_is_left_alone() {
    need_root!();
    let image = dirty("");
    let before = fs::read(image.path()).expect("the image");
    let fs = open(&image, &MountOptions::new().noload(true));
    let why = fs.read_only().expect("read-only");
    assert!(why.contains("noload"), "{why}");
    assert!(
        fs.read_dir("/dir").is_err(),
        "the directory is only in the journal"
    );
    drop(fs);
    assert!(before == fs::read(image.path()).expect("the image"));
}

/// Who leaves it alone does not take over either that it was aborted.
#[test]
fn aborted_journal_under_noload_is_left_alone() {
    let image = Image::builder().size(16 << 20).features("^metadata_csum");
    let image = image.build();
    let journal = leaf_extents(image.path(), "<8>")[0].physical * 4096;
    let file = File::options().write(true).open(image.path());
    let file = file.expect("the image");
    // `s_errno`.
    let errno = (-libc::EIO).to_be_bytes();
    file.write_all_at(&errno, journal + 0x20).expect("a write");
    let before = fs::read(image.path()).expect("the image");
    let noload = open(&image, &MountOptions::new().noload(true));
    let told = noload.warnings().join("; ");
    assert!(told.contains("aborted by an error"), "{told}");
    drop(noload);
    assert!(before == fs::read(image.path()).expect("the image"));
    let fs = open(&image, &MountOptions::new());
    assert!(fs.warnings()[0].contains("before it was closed"));
    drop(fs);
    assert!(before != fs::read(image.path()).expect("the image"));
}

const M: u64 = 1 << 20;

/// A file system of 24 MiB that grew to 48 MiB, as far as its journal goes: its superblock is the old one.
fn grown_in_its_journal() -> Image {
    let small = Image::builder().size(24 * M).block_size(1024);
    let small = small.features("^resize_inode").build();
    let image = small.copy();
    let options = dioxide::resize::ResizeOptions::default();
    dioxide::resize::resize(image.path(), Some(48 * M), &options).expect("it grows");
    let mut old = fs::read(small.path()).expect("the image");
    let mut new = fs::read(image.path()).expect("the image");
    old.resize(new.len(), 0);
    for bytes in [&mut old, &mut new] {
        let mut sb = SuperBlock::parse(&bytes[1024..]).expect("a superblock");
        sb.disk_mut().s_feature_incompat |= Incompat::NEEDS_RECOVERY.bits();
        sb.update_checksum();
        bytes[1024..2048].copy_from_slice(&sb.encode());
    }
    let (old, new) = (old.as_chunks::<1024>().0, new.as_chunks::<1024>().0);
    let changed = (0..new.len()).filter(|&block| old[block] != new[block]);
    let changed: Vec<usize> = changed.collect();
    let copies: Vec<u8> = changed.iter().flat_map(|&block| new[block]).collect();
    let log = tempfile::NamedTempFile::new().expect("a file");
    fs::write(log.path(), copies).expect("room");
    let list: Vec<String> = changed.iter().map(usize::to_string).collect();
    let write = format!("jw -b {} {}", list.join(","), log.path().display());
    debugfs(image.path(), &["jo", &write, "jc"]);

    let file = File::options().write(true).open(image.path());
    let file = file.expect("the image");
    for block in changed {
        let written = file.write_all_at(&old[block], 1024 * block as u64);
        written.expect("room");
    }
    image
}

/// What lies behind it is others' only from where the journal says: its superblock is older.
#[test]
fn journal_in_which_a_file_system_between_others_grew_is_replayed() {
    let parts = [
        grown_in_its_journal(),
        Image::builder().size(8 * M).block_size(1024).build(),
    ];
    let whole = Image::blank(Dir::Tmpfs, 57 * M);
    let file = File::options().write(true).open(whole.path());
    let file = file.expect("the image");
    for (part, at) in parts.iter().zip([M, 49 * M]) {
        let bytes = fs::read(part.path()).expect("the image");
        file.write_all_at(&bytes, at).expect("room");
    }
    let behind = open(&whole, &MountOptions::new().img_offset(49 * M));
    for read_only in [true, false] {
        let options = MountOptions::new().img_offset(M).read_only(read_only);
        let fs = open(&whole, &options);
        let told = fs.warnings().join("; ");
        assert!(!told.contains("read-only"), "{told}");
        assert_eq!(fs.superblock().blocks_count(), 48 << 10, "{told}");
        if !read_only {
            let file = OpenOptions::new().write(true).create(true);
            let file = file.open(&fs, "/large").expect("room");
            file.write_at(&vec![7; 30 << 20], 0).expect("room");
        }
        fs.close().expect("a clean end");
    }
    behind.close().expect("a clean end");
    let bytes = fs::read(whole.path()).expect("the image");
    let (first, second) = bytes[M as usize..].split_at(48 << 20);
    for (part, bytes) in parts.iter().zip([first, second]) {
        fs::write(part.path(), bytes).expect("room");
        e2fsck_clean(part.path());
    }
}

#[test]
fn damaged_journal_is_not_replayed_and_nothing_is_written() {
    need_root!();
    let image = dirty("");
    // The second block of the journal, a descriptor, in the middle of what was committed.
    let first = dioxide_testkit::leaf_extents(image.path(), "<8>")[0].physical;
    let file = File::options().write(true).open(image.path());
    let file = file.expect("the image");
    file.write_all_at(&[0xA5; 64], first * 4096 + 4096 + 200)
        .expect("a write");
    let before = fs::read(image.path()).expect("the image");
    let fs = open(&image, &MountOptions::new());
    let why = fs.read_only().expect("read-only");
    assert!(why.contains("journal"), "{why}");
    drop(fs);
    assert!(before == fs::read(image.path()).expect("the image"));
}

#[test]
fn mark_without_anything_to_replay_is_taken_off() {
    let image = Image::builder().size(16 << 20).block_size(1024).build();
    debugfs(image.path(), &["feature needs_recovery"]);
    let fs = open(&image, &MountOptions::new());
    assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
    drop(fs);
    assert!(!needs_recovery(&image));
    e2fsck_clean(image.path());
}

/// The image in memory.
fn loaded(bytes: &[u8]) -> Arc<MemDevice> {
    let device = MemDevice::new(bytes.len() as u64);
    device
        .write_at(0, bytes, Durability::Cached)
        .expect("all of the device");
    Arc::new(device)
}

#[test]
fn replay_cut_after_any_write_is_finished_by_the_next_open() {
    need_root!();
    let image = dirty("");
    let bytes = fs::read(image.path()).expect("the image");
    let recorder = Arc::new(RecordDevice::new(loaded(&bytes)));
    drop(Fs::open_device(recorder.clone(), &MountOptions::new()).expect("it opens"));
    let log = recorder.take_log();
    let writes = log.entries().len();
    assert!(writes > 5, "a replay of {writes} writes and flushes");
    for done in 0..=writes {
        let device = loaded(&bytes);
        for entry in &log.entries()[..done] {
            entry.apply(&*device).expect("a write");
        }
        let fs = Fs::open_device(device.clone(), &MountOptions::new()).expect("it opens");
        assert_eq!(
            fs.read_only(),
            None,
            "cut after {done}: {:?}",
            fs.warnings()
        );
        assert_files(&fs);
        drop(fs);
        let mut after = vec![0; bytes.len()];
        device.read_at(0, &mut after).expect("all of the device");
        fs::write(image.path(), after).expect("room");
        e2fsck_clean(image.path());
    }
}
