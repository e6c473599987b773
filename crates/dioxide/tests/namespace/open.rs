//! Which images are opened, how, and what is said of them.

use dioxide::block::Device;
use dioxide::block::mem::MemDevice;
use dioxide::format::features::Incompat;
use dioxide::format::mmp::{Mmp, MmpState};
use dioxide::format::superblock::SuperBlock;
use dioxide::{Backend, Error, Fs, MountOptions, NewFile};
use dioxide_testkit::{Image, LoopDevice, debugfs, e2fsck_clean, need_root};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

fn small(features: &str) -> Image {
    let builder = Image::builder().size(16 << 20).block_size(1024);
    let image = if features.is_empty() {
        builder
    } else {
        builder.features(features)
    }
    .build();
    debugfs(image.path(), &["mkdir /dir", "symlink /dir/link target"]);
    image
}

fn open(image: &Image) -> Result<Fs, Error> {
    Fs::open(image.path(), &MountOptions::new())
}

fn read_only_reason(image: &Image) -> String {
    let fs = open(image).expect("it opens");
    let why = fs.read_only().expect("it is read-only").to_owned();
    assert!(
        fs.warnings().iter().any(|line| line.contains(&why)),
        "{:?}",
        fs.warnings()
    );
    assert_eq!(
        fs.read_link("/dir/link").expect("it can be read"),
        b"target"
    );
    why
}

/// Changes bytes of an image.
fn poke(image: &Image, at: u64, bytes: &[u8]) {
    let file = File::options()
        .write(true)
        .open(image.path())
        .expect("the image");
    file.write_all_at(bytes, at).expect("a write");
}

#[test]
fn intact_image_opens_read_write_without_warnings() {
    let image = small("");
    let fs = open(&image).expect("it opens");
    assert_eq!((fs.read_only(), fs.warnings()), (None, &[][..]));
    assert_eq!(
        fs.superblock().inodes_count(),
        fs.superblock().inodes_per_group() * fs.superblock().group_count()
    );
}

#[test]
fn image_opened_read_only_says_so_without_a_warning() {
    let image = small("");
    let fs = Fs::open(image.path(), &MountOptions::new().read_only(true)).expect("it opens");
    assert_eq!(fs.read_only(), Some("opened read-only"));
    assert!(fs.warnings().is_empty());
}

#[test]
fn incompatible_features_are_refused_by_name() {
    for (command, name) in [
        ("feature casefold", "casefold"),
        ("feature dirdata", "dirdata"),
        ("feature compression", "compression"),
        ("feature FEATURE_I31", "FEATURE_I31"),
    ] {
        let image = small("");
        debugfs(image.path(), &[command]);
        let error = open(&image).expect_err("it is refused");
        assert!(
            matches!(&error, Error::Unsupported(what) if what.ends_with(name)),
            "{error}"
        );
    }
}

#[test]
fn several_incompatible_features_are_all_named() {
    let image = small("");
    debugfs(image.path(), &["feature dirdata casefold"]);
    let error = open(&image).expect_err("it is refused");
    assert!(error.to_string().ends_with("dirdata casefold"), "{error}");
}

#[test]
fn external_journal_device_is_refused_by_name() {
    let image = Image::builder()
        .size(16 << 20)
        .args(&["-O", "journal_dev"])
        .build();
    let error = open(&image).expect_err("it is refused");
    assert!(
        error
            .to_string()
            .contains("external journal (journal_dev) of no file"),
        "{error}"
    );
}

#[test]
fn features_that_cannot_be_written_open_read_only() {
    for name in ["shared_blocks", "read-only", "FEATURE_R30"] {
        let image = small("");
        debugfs(image.path(), &[format!("feature {name}")]);
        assert!(read_only_reason(&image).contains(name));
    }
}

#[test]
fn journal_that_is_no_journal_opens_read_only() {
    let image = small("");
    debugfs(image.path(), &["clri <8>"]);
    assert!(read_only_reason(&image).contains("inode 8"));
    let image = small("");
    debugfs(image.path(), &["ssv journal_inum 0"]);
    assert!(read_only_reason(&image).contains("journal"));
}

/// Whatever is damaged by what they overlap: files, the journal, descriptors.
#[test]
fn metadata_of_groups_that_overlaps_opens_read_only() {
    let ext3 = Image::builder().fs_type("ext3").size(20 << 20);
    let ext3 = ext3.block_size(1024).build();
    for (request, what) in [
        (
            "set_bg 1 inode_table 8260",
            "inode table of group 1 overlaps superblock and descriptors of group 1",
        ),
        (
            "set_bg 2 inode_bitmap 16400",
            "inode bitmap of group 2 overlaps inode table of group 2",
        ),
        ("set_bg 0 block_bitmap 2", "bg_block_bitmap"),
    ] {
        let image = ext3.copy();
        debugfs(image.path(), &[request]);
        let before = std::fs::read(image.path()).expect("the image");
        let fs = open(&image).expect("it opens");
        let why = fs.read_only().expect("it is read-only");
        assert!(why.contains(what), "{why}");
        // The root is in group 0, whose inodes cannot be read either then.
        let expected = if what.contains("overlaps") {
            libc::EROFS
        } else {
            libc::EUCLEAN
        };
        let error = fs.create_dir("/new", &NewFile::new(0o755));
        let error = error.expect_err("nothing is written");
        assert_eq!(error.errno(), expected, "{error}");
        drop(fs);
        assert!(std::fs::read(image.path()).expect("the image") == before);
    }
}

/// As libext2fs and Linux have it: `tune2fs -j` leaves revision 0 as it is.
#[test]
fn features_count_whatever_the_revision() {
    let old = Image::builder().fs_type("ext3").size(8 << 20);
    let old = old.block_size(1024).inode_size(128);
    let old = old.args(&["-O", "none,has_journal"]).build();
    let tree = ["mkdir /dir", "symlink /dir/link target"];
    debugfs(old.path(), &[&tree[..], &["ssv rev_level 0"]].concat());

    let unknown = old.copy();
    debugfs(unknown.path(), &["feature FEATURE_I31"]);
    let error = open(&unknown).expect_err("it is refused");
    assert!(matches!(error, Error::Unsupported(_)), "{error}");

    let block = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(block.path(), [7; 1024]).expect("its content");
    let log = format!("jw -b 5000 {}", block.path().display());
    debugfs(old.path(), &["jo", &log, "jc"]);
    let fs = open(&old).expect("it opens");
    assert_eq!(fs.superblock().disk().s_rev_level, 0);
    fs.close().expect("a clean end");
    let bytes = std::fs::read(old.path()).expect("the image");
    assert!(bytes[5000 << 10..][..1024] == [7; 1024], "it is replayed");
    e2fsck_clean(old.path());
}

#[test]
fn superblock_whose_revision_is_damaged_is_refused_by_its_checksum() {
    let image = small("");
    poke(&image, 1024 + 0x4C, &[0]);
    let error = open(&image).expect_err("it is refused");
    assert!(matches!(error, Error::Checksum { .. }), "{error}");
}

/// The superblock may name the unsigned hashes, a root may not.
#[test]
fn roots_of_indexes_hold_no_unsigned_hash() {
    let image = small("");
    debugfs(image.path(), &["ssv def_hash_version HASHALG_4"]);
    let fs = open(&image).expect("it opens");
    for n in 0..60 {
        let path = format!("/dir/{n:040}");
        fs.create_dir(path, &NewFile::new(0o755)).expect("room");
    }
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
    assert_eq!(open(&image).expect("it opens").read_only(), None);
    let fs = open(&image).expect("it opens");
    fs.metadata(format!("/dir/{:040}", 59)).expect("its name");
}

/// Of what an image is opened read-only, a resize refuses all that it would hand on.
fn resize_refuses(image: &Image, field: &str) {
    let options = dioxide::resize::ResizeOptions::default();
    let before = std::fs::read(image.path()).expect("the image");
    let error = dioxide::resize::resize(image.path(), Some(12 << 20), &options);
    let error = error.expect_err("it is refused");
    assert_eq!(error.errno(), libc::EUCLEAN, "{error}");
    assert!(error.to_string().contains(field), "{error}");
    assert!(std::fs::read(image.path()).expect("the image") == before);
}

#[test]
fn fields_that_linux_mounts_nothing_with_open_read_only() {
    for (command, field) in [
        ("ssv def_hash_version HASHALG_6", "s_def_hash_version"),
        ("ssv def_hash_version HASHALG_7", "s_def_hash_version"),
        ("ssv journal_dev 0x801", "s_journal_dev"),
    ] {
        let image = small("");
        debugfs(image.path(), &[command]);
        assert!(read_only_reason(&image).contains(field));
        resize_refuses(&image, field);
    }
    // Whatever journal is named, and if it is to be left alone.
    let image = small("");
    debugfs(image.path(), &["ssv journal_dev 0x801"]);
    let journal = Image::builder().size(8 << 20).args(&["-O", "journal_dev"]);
    let journal = journal.build();
    let options = MountOptions::new();
    for options in [
        options.clone().noload(true),
        options.journal_path(journal.path()),
    ] {
        let fs = Fs::open(image.path(), &options).expect("it opens");
        let why = fs.read_only().expect("it is read-only");
        assert!(why.contains("s_journal_dev"), "{why}");
    }
}

#[test]
fn fields_that_libext2fs_opens_nothing_with_are_refused() {
    for (command, field) in [
        ("ssv clusters_per_group 8184", "s_clusters_per_group"),
        ("ssv log_groups_per_flex 32", "s_log_groups_per_flex"),
    ] {
        let image = small("");
        debugfs(image.path(), &[command]);
        let error = open(&image).expect_err("it is refused");
        assert_eq!(error.errno(), libc::EUCLEAN, "{error}");
        assert!(error.to_string().contains(field), "{error}");
        resize_refuses(&image, field);
        let fs = Fs::open(image.path(), &MountOptions::new().superblock_at(8193));
        let fs = fs.expect("the backup opens");
        assert!(fs.read_only().expect("it is read-only").contains("backup"));
    }
}

/// Its journal is on a device that nobody gives.
#[test]
fn journal_elsewhere_that_is_not_given_opens_read_only() {
    let image = small("^has_journal");
    let of_journal = [
        "ssv journal_uuid 11111111-1111-1111-1111-111111111111",
        "ssv journal_dev 1",
        "feature has_journal",
    ];
    debugfs(image.path(), &of_journal);
    assert!(read_only_reason(&image).contains("journal_path="));
    let fs = open(&image).expect("it opens");
    let error = fs.create_dir("/new", &NewFile::new(0o755));
    let error = error.expect_err("nothing is written");
    assert_eq!(error.errno(), libc::EROFS);
    assert!(error.to_string().contains("journal_path="), "{error}");
    drop(fs);
    let options = MountOptions::new().read_only(true);
    let fs = Fs::open(image.path(), &options).expect("it opens");
    assert_eq!(fs.read_only(), Some("opened read-only"));
    assert!(fs.warnings().is_empty(), "{:?}", fs.warnings());
    drop(fs);
    // As in Linux it is then as without a journal.
    let fs = Fs::open(image.path(), &MountOptions::new().noload(true)).expect("it opens");
    assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
    fs.create_dir("/new", &NewFile::new(0o755)).expect("room");
    fs.close().expect("a clean end");
    let without = [
        "feature ^has_journal",
        "ssv journal_dev 0",
        "ssv journal_uuid clear",
    ];
    debugfs(image.path(), &without);
    e2fsck_clean(image.path());
}

#[test]
fn orphans_are_left_alone_by_a_reading_mount() {
    let image = small("");
    debugfs(image.path(), &["ssv last_orphan 13"]);
    let fs = Fs::open(image.path(), &MountOptions::new().read_only(true)).expect("it opens");
    assert!(fs.warnings()[0].contains("orphans"), "{:?}", fs.warnings());
    drop(fs);
    let fs = open(&image).expect("it opens");
    assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
    assert_eq!(fs.superblock().last_orphan().map(|ino| ino.0), Some(13));
}

#[test]
fn errors_and_unclean_state_are_warned_of() {
    let image = small("^has_journal");
    debugfs(image.path(), &["ssv state 2"]);
    let fs = open(&image).expect("it opens");
    assert_eq!(fs.read_only(), None);
    assert!(
        fs.warnings()[0].contains("errors were found"),
        "{:?}",
        fs.warnings()
    );
    drop(fs);
    debugfs(image.path(), &["ssv state 0"]);
    let fs = open(&image).expect("it opens");
    assert!(
        fs.warnings()[0].contains("not unmounted cleanly"),
        "{:?}",
        fs.warnings()
    );
}

/// The MMP block of an image with blocks of 1 KiB: where it is, and what it holds.
fn mmp_of(image: &Image) -> (u64, Mmp) {
    let mut bytes = vec![0; 1024];
    let file = File::open(image.path()).expect("the image");
    file.read_exact_at(&mut bytes, 1024).expect("a superblock");
    let sb = SuperBlock::parse(&bytes).expect("1024 bytes");
    let at = sb.mmp_block().unwrap().expect("it has one").0 * 1024;
    file.read_exact_at(&mut bytes, at).expect("a block");
    (at, Mmp::parse(&bytes).expect("1024 bytes"))
}

/// With multi-mount protection, and nothing in it: debugfs would wait as long as who opens it.
fn guarded() -> Image {
    let image = Image::builder().size(16 << 20).block_size(1024);
    image.features("mmp,^metadata_csum").build()
}

/// Another host puts its number.
fn put_mmp(image: &Image, seq: u32) {
    let (at, mut mmp) = mmp_of(image);
    mmp.mmp_seq = seq;
    mmp.mmp_nodename[..5].copy_from_slice(b"other");
    poke(image, at, &mmp.encode());
}

#[test]
fn mmp_block_that_is_none_opens_read_only() {
    for block in [0, 1, 16 << 10] {
        let image = Image::builder().size(16 << 20).block_size(1024);
        let image = image.features("^metadata_csum").build();
        debugfs(image.path(), &["mkdir /dir", "symlink /dir/link target"]);
        let mut bytes = vec![0; 1024];
        let file = File::open(image.path()).expect("the image");
        file.read_exact_at(&mut bytes, 1024).expect("a superblock");
        let mut sb = SuperBlock::parse(&bytes).expect("1024 bytes");
        sb.disk_mut().s_feature_incompat |= Incompat::MMP.bits();
        sb.disk_mut().s_mmp_block = block;
        poke(&image, 1024, &sb.encode());
        assert!(read_only_reason(&image).contains("s_mmp_block"));
        resize_refuses(&image, "s_mmp_block");
    }
}

static WAITS: Mutex<Vec<String>> = Mutex::new(Vec::new());

// Waiting for a sign of life takes as long as in Linux, so these tests are slow.
#[test]
fn mmp_of_a_living_host_is_busy() {
    let image = guarded();
    put_mmp(&image, 77);
    let fs = Fs::open(image.path(), &MountOptions::new().read_only(true)).expect("it can be read");
    assert!(fs.warnings()[0].contains("other"), "{:?}", fs.warnings());
    drop(fs);
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_secs(2));
            put_mmp(&image, 78);
        });
        open(&image).expect_err("it is in use")
    });
    assert_eq!(error.errno(), libc::EBUSY);
    assert!(error.to_string().contains("other"), "{error}");
}

/// The image of which another host puts a number while it is waited for.
static WAITED_FOR: Mutex<Option<Image>> = Mutex::new(None);

/// What other hosts write goes past the page cache of this one, which a mapping reads.
#[test]
fn mmp_of_a_living_host_is_seen_on_a_block_device_through_the_page_cache() {
    need_root!();
    let image = guarded();
    put_mmp(&image, 77);
    let device = LoopDevice::attach(image.path());
    *WAITED_FOR.lock().expect("unpoisoned") = Some(image);
    let put = |_: &str| {
        let image = WAITED_FOR.lock().expect("unpoisoned");
        put_mmp(image.as_ref().expect("it is there"), 78);
    };
    let options = MountOptions::new().backend(Backend::Mmap).on_wait(put);
    let error = Fs::open(device.path(), &options).expect_err("it is in use");
    assert_eq!(error.errno(), libc::EBUSY);
    assert!(error.to_string().contains("other"), "{error}");
    drop(device);
    *WAITED_FOR.lock().expect("unpoisoned") = None;
}

#[test]
fn mmp_of_a_crashed_host_is_taken_over() {
    let image = guarded();
    put_mmp(&image, 78);
    let options =
        MountOptions::new().on_wait(|why| WAITS.lock().expect("unpoisoned").push(why.into()));
    let fs = Fs::open(image.path(), &options).expect("nobody counts any more");
    let waits = WAITS.lock().expect("unpoisoned");
    assert!(
        waits[0].contains("waiting 11s, for a sign of life"),
        "{waits:?}"
    );
    assert!(waits[1].contains("waiting 11s, to see"), "{waits:?}");
    assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
    let held = mmp_of(&image).1.state();
    assert!(
        matches!(held, MmpState::Mounted(seq) if seq != 78),
        "{held:?}"
    );
    fs.close().expect("a clean end");
    assert_eq!(mmp_of(&image).1.state(), MmpState::Clean);
    e2fsck_clean(image.path());
}

#[test]
fn device_shorter_than_the_file_system_opens_read_only() {
    let image = small("");
    let file = File::options()
        .write(true)
        .open(image.path())
        .expect("the image");
    file.set_len(12 << 20).expect("truncate");
    assert!(read_only_reason(&image).contains("its end is missing"));
}

#[test]
fn damaged_group_descriptor_opens_read_only_and_names_it() {
    let image = small("");
    // 64 bytes each, in block 2; the second one's inode table.
    poke(&image, 2 * 1024 + 64 + 8, &[0xFF; 4]);
    let why = read_only_reason(&image);
    assert!(
        why.contains("group descriptor") && why.contains("block 2, offset 64"),
        "{why}"
    );
    let fs = open(&image).expect("it can be read");
    let told = fs.warnings().iter().filter(|told| told.contains(&why));
    assert_eq!(told.count(), 1, "{:?}", fs.warnings());
}

#[test]
fn damaged_superblock_is_refused_and_its_backup_opens_read_only() {
    let image = small("");
    poke(&image, 1024 + 0x68, b"other");
    let error = open(&image).expect_err("its checksum is wrong");
    assert!(
        matches!(
            error,
            Error::Checksum {
                structure: "superblock",
                ..
            }
        ),
        "{error}"
    );
    poke(&image, 0, &[0; 4096]);
    let error = open(&image).expect_err("nothing is there");
    assert!(error.to_string().contains("s_magic"), "{error}");
    // Superblock and descriptors are gone; group 1 begins with copies of both.
    let fs =
        Fs::open(image.path(), &MountOptions::new().superblock_at(8193)).expect("the backup opens");
    assert!(fs.read_only().expect("it is read-only").contains("backup"));
    assert_eq!(fs.superblock().disk().s_block_group_nr, 1);
    assert_eq!(
        fs.read_link("/dir/link").expect("it can be read"),
        b"target"
    );
}

#[test]
fn device_too_short_or_empty_is_refused() {
    for bytes in [512, 1024, 1536, 4096, 1 << 20] {
        let device = std::sync::Arc::new(MemDevice::new(bytes));
        let error = Fs::open_device(device, &MountOptions::new()).expect_err("nothing is there");
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        assert!(error.to_string().contains("no superblock"), "{error}");
    }
}

#[test]
fn device_with_larger_logical_blocks_is_refused() {
    let image = small("");
    let bytes = std::fs::read(image.path()).expect("the image");
    let device = MemDevice::with_logical_block(16 << 20, 4096);
    device
        .write_at(0, &bytes, Default::default())
        .expect("a write");
    let error = Fs::open_device(std::sync::Arc::new(device), &MountOptions::new())
        .expect_err("it cannot be");
    assert!(
        error.to_string().contains("logical blocks of 4096"),
        "{error}"
    );
}
