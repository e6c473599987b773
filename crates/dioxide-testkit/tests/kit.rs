//! The kit must catch what it is there to catch, and leave nothing behind.

use dioxide_testkit::{
    Dir, Extent, Image, LoopDevice, Mount, check_pattern, check_zero, debugfs, debugfs_query,
    dumpe2fs, e2fsck_clean, e2fsck_consistent, fill_pattern, leaf_extents, need_root, pattern,
    shape,
};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

/// The message of the panic that `f` must end in.
fn panic_of(f: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(f)).expect_err("no panic");
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload.downcast::<&str>().expect("a message").to_string(),
    }
}

fn is_mounted(point: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    mounts.contains(point.to_str().expect("UTF-8"))
}

fn is_attached(file: &Path) -> bool {
    let devices = fs::read_dir("/sys/block").expect("sysfs");
    devices.flatten().any(|device| {
        let backing = fs::read_to_string(device.path().join("loop/backing_file"));
        backing.is_ok_and(|name| Path::new(name.trim_end()) == file)
    })
}

#[test]
fn image_is_clean_has_its_options_and_is_deleted() {
    let image = Image::builder()
        .size(16 * MIB)
        .block_size(1024)
        .features("^has_journal,metadata_csum")
        .inode_size(512)
        .extended("num_backup_sb=1,packed_meta_blocks=1")
        .dir(Dir::Disk)
        .build();
    e2fsck_clean(image.path());
    let text = dumpe2fs(image.path());
    for (name, value) in [
        ("Block size:", "1024"),
        ("Inode size:", "512"),
        ("Filesystem UUID:", "d10c1de0-0000-4000-8000-000000000001"),
        (
            "Directory Hash Seed:",
            "d10c1de0-0000-4000-8000-000000000002",
        ),
    ] {
        let row = text.lines().find_map(|row| row.strip_prefix(name));
        assert_eq!(row.map(str::trim), Some(value), "{name}");
    }
    assert!(!text.contains("has_journal"));
    let path = image.path().to_owned();
    assert!(path.starts_with(std::env::temp_dir()));
    drop(image);
    assert!(!path.exists());
}

#[test]
fn image_made_twice_is_the_same() {
    let make = || Image::builder().size(16 * MIB).build();
    let (a, b) = (make(), make());
    assert!(fs::read(a.path()).expect("a") == fs::read(b.path()).expect("b"));
    let copy = a.copy();
    assert!(fs::read(a.path()).expect("a") == fs::read(copy.path()).expect("copy"));
}

#[test]
fn image_that_cannot_be_made_panics_with_what_mke2fs_says() {
    let message = panic_of(|| drop(Image::builder().features("no_such_feature").build()));
    assert!(
        message.contains("no_such_feature") && message.contains("mke2fs"),
        "{message}"
    );
}

#[test]
fn image_from_a_tree_holds_it() {
    let tree = tempfile::tempdir().expect("directory");
    shape::directory(&tree.path().join("many"), 300);
    shape::sparse(&tree.path().join("holes"), MIB, &[0..4096, 65536..70000], 5);
    let image = Image::builder().size(16 * MIB).source(tree.path()).build();
    e2fsck_clean(image.path());
    let names = debugfs_query(image.path(), "ls /many");
    assert!(names.contains(&shape::entry_name(0)) && names.contains(&shape::entry_name(299)));
    let extents = leaf_extents(image.path(), "/holes");
    let logical: Vec<_> = extents.iter().map(|e| (e.logical, e.len)).collect();
    assert_eq!(logical, [(0, 1), (16, 2)]);
}

#[test]
fn e2fsck_clean_of_a_damaged_image_panics_with_the_damage() {
    let image = Image::builder().size(16 * MIB).build();
    debugfs(image.path(), &["set_inode_field / links_count 7"]);
    let message = panic_of(|| e2fsck_clean(image.path()));
    assert!(message.contains("ref count"), "{message}");
    let torn = Image::builder().size(16 * MIB).build();
    let file = File::options()
        .write(true)
        .open(torn.path())
        .expect("image");
    file.write_all_at(&[0xFF; 64], 1024).expect("write");
    panic_of(|| e2fsck_clean(torn.path()));
}

#[test]
fn e2fsck_clean_of_an_image_that_nobody_closed_panics() {
    for (change, word) in [
        ("feature needs_recovery", "needs_recovery"),
        ("set_super_value state 0", "state 0x0"),
        ("set_super_value state 3", "state 0x3"),
        (
            "set_super_value last_orphan 11",
            "orphans: the first is inode 11",
        ),
    ] {
        let image = Image::builder().size(16 * MIB).build();
        debugfs(image.path(), &[change]);
        e2fsck_consistent(image.path());
        let message = panic_of(|| e2fsck_clean(image.path()));
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn debugfs_populates_and_panics_when_a_command_fails() {
    let image = Image::builder().size(16 * MIB).build();
    let host = tempfile::NamedTempFile::new().expect("file");
    fs::write(host.path(), pattern(1, 0, 10_000)).expect("write");
    let write = format!("write {} data", host.path().display());
    let commands = [
        &*write,
        "symlink link data",
        "ea_set data user.key value",
        "mkdir sub",
    ];
    debugfs(image.path(), &commands);
    e2fsck_clean(image.path());
    assert!(debugfs_query(image.path(), "stat link").contains("Fast link dest: \"data\""));
    assert!(debugfs_query(image.path(), "ea_get data user.key").contains("value"));
    for bad in [
        "write /no/such/file x",
        "no_such_command",
        "stat /missing",
        "rm missing",
    ] {
        panic_of(|| drop(debugfs(image.path(), &[bad])));
        panic_of(|| drop(debugfs_query(image.path(), bad)));
    }
}

#[test]
fn fragmented_file_has_that_many_extents_and_its_data() {
    for extents in [3u64, 1000] {
        let image = Image::builder().size(64 * MIB).block_size(1024).build();
        shape::fragmented(&image, "frag", extents, 9);
        e2fsck_clean(image.path());
        let got = leaf_extents(image.path(), "/frag");
        assert_eq!(got.len() as u64, extents);
        assert!(
            got.iter()
                .zip(0..)
                .all(|(e, i)| (e.logical, e.len, e.unwritten) == (i, 1, false))
        );
        let file = File::open(image.path()).expect("image");
        for extent in got {
            let mut block = vec![0; 1024];
            file.read_exact_at(&mut block, extent.physical * 1024)
                .expect("read");
            check_pattern(9, extent.logical * 1024, &block);
        }
    }
}

#[test]
fn pattern_is_the_same_however_it_is_cut() {
    let whole = pattern(3, 1000, 500);
    for (from, to) in [(0, 1), (1, 9), (7, 64), (100, 500)] {
        let mut part = vec![0; to - from];
        fill_pattern(3, 1000 + from as u64, &mut part);
        assert_eq!(part, whole[from..to]);
        check_pattern(3, 1000 + from as u64, &part);
    }
    let words = |seed| pattern(seed, 0, 1 << 16);
    let mut all: Vec<[u8; 8]> = [words(0), words(1)]
        .concat()
        .chunks_exact(8)
        .map(|w| w.try_into().expect("8 bytes"))
        .collect();
    all.sort_unstable();
    assert!(
        all.windows(2).all(|pair| pair[0] != pair[1]),
        "a word that is not unique"
    );
}

#[test]
fn pattern_that_is_wrong_panics_with_its_place() {
    let mut bytes = pattern(3, 4096, 4096);
    bytes[77] ^= 1;
    let message = panic_of(|| check_pattern(3, 4096, &bytes));
    assert!(
        message.contains("1 of 4096 bytes differ, the first at 4173"),
        "{message}"
    );
    panic_of(|| check_pattern(3, 4088, &pattern(3, 4096, 8)));
    panic_of(|| check_pattern(4, 0, &pattern(3, 0, 8)));
    check_zero(0, &[0; 100]);
    panic_of(|| check_zero(0, &[0, 0, 1]));
}

#[test]
fn kernel_populated_image_has_the_shapes() {
    need_root!();
    let image = Image::builder().build();
    image.populate_with_kernel(|mnt| {
        shape::contiguous(&mnt.join("full"), MIB, 1);
        shape::sparse(&mnt.join("holes"), MIB, &[8192..16384, 65536..65537], 2);
        shape::unwritten(&mnt.join("unwritten"), MIB);
        shape::punched(&mnt.join("punched"), 100, 4096, 3);
        shape::directory(&mnt.join("many"), 2000);
    });
    assert!(!is_attached(image.path()));
    e2fsck_clean(image.path());
    let extents = |name| leaf_extents(image.path(), name);
    let written = |e: &Extent| (e.logical, e.len, e.unwritten);
    let blocks: u64 = extents("/full").iter().map(|e| e.len).sum();
    assert!(blocks == 256 && extents("/full").iter().all(|e| !e.unwritten));
    assert_eq!(
        extents("/holes").iter().map(written).collect::<Vec<_>>(),
        [(2, 2, false), (16, 1, false)]
    );
    assert!(extents("/unwritten").iter().all(|e| e.unwritten));
    let punched = extents("/punched");
    assert_eq!(punched.len(), 100);
    assert!(
        punched
            .iter()
            .zip(0..)
            .all(|(e, i)| written(e) == (2 * i, 1, false))
    );
    let file = File::open(image.path()).expect("image");
    let mut block = vec![0; 4096];
    file.read_exact_at(&mut block, punched[7].physical * 4096)
        .expect("read");
    check_pattern(3, 14 * 4096, &block);
    assert!(debugfs_query(image.path(), "htree_dump /many").contains("Root node dump"));
}

#[test]
fn populate_that_panics_leaves_nothing_mounted_or_attached() {
    need_root!();
    let image = Image::builder().size(16 * MIB).build();
    let mut point = PathBuf::new();
    let message = panic_of(|| {
        image.populate_with_kernel(|mnt| {
            point = mnt.to_owned();
            assert!(is_mounted(mnt) && is_attached(image.path()));
            panic!("on purpose");
        })
    });
    assert_eq!(message, "on purpose");
    assert!(!is_mounted(&point) && !point.exists() && !is_attached(image.path()));
    e2fsck_clean(image.path());
}

#[test]
fn mount_that_fails_leaves_nothing_attached() {
    need_root!();
    let blank = Image::blank(Dir::Tmpfs, MIB);
    let message = panic_of(|| drop(Mount::ext4(blank.path(), "")));
    assert!(message.contains("mount"), "{message}");
    assert!(!is_attached(blank.path()));
}

#[test]
fn mount_of_a_loop_device_leaves_the_device_to_its_owner() {
    need_root!();
    let image = Image::builder().size(16 * MIB).build();
    let device = LoopDevice::attach_with(image.path(), &["--sector-size=4096"]);
    let mount = Mount::ext4(device.path(), "ro");
    assert!(mount.device().is_none());
    assert!(mount.path().join("lost+found").is_dir());
    let point = mount.path().to_owned();
    drop(mount);
    assert!(!is_mounted(&point) && is_attached(image.path()));
    drop(device);
    assert!(!is_attached(image.path()));
}
