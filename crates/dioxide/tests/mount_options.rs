//! What each mount option does, seen from outside.
//!
//! Elsewhere: `ro`, `sb=`, `noload`, MMP (`namespace`), `barrier` (`dioxide-crash`), the journal's device
//! (`namespace`), policies and `dioread_lock` (`semantics`, `io/direct/policy`).

use dioxide::block::mem::MemDevice;
use dioxide::block::record::{Action, RecordDevice};
use dioxide::block::{Device, Durability};
use dioxide::format::inode::InodeFlags;
use dioxide::{
    DataMode, ErrorPolicy, Fs, MountOptions, NewFile, OpenOptions, QueueOptions, RenameMode,
    SetAttributes, Special, Timestamp,
};
use dioxide_testkit::{Image, ImageBuilder, Mount, debugfs, e2fsck_clean, have_root, leaf_extents};
use rustix::process::{Pid, getpid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;

/// A file system with `/dir/file` and `/data`, of so many blocks.
fn image(data_blocks: usize) -> Image {
    let tree = tempfile::tempdir().expect("a folder");
    fs::create_dir(tree.path().join("dir")).expect("a new folder");
    fs::write(tree.path().join("dir/file"), b"in a directory").expect("room");
    let data = vec![7; data_blocks * BLOCK as usize];
    fs::write(tree.path().join("data"), data).expect("room");
    made_of(tree.path())
        .features("^resize_inode")
        .args(&["-J", "size=4"])
        .build()
}

fn made_of(tree: &Path) -> ImageBuilder {
    Image::builder().size(16 << 20).source(tree)
}

fn load(bytes: &[u8]) -> Arc<MemDevice> {
    let device = MemDevice::new(bytes.len() as u64);
    let written = device.write_at(0, bytes, Durability::Cached);
    written.expect("all of the device");
    Arc::new(device)
}

fn device(image: &Image) -> Arc<MemDevice> {
    load(&fs::read(image.path()).expect("the image"))
}

fn open(device: Arc<dyn Device>, options: &MountOptions) -> Fs {
    Fs::open_device(device, options).expect("it opens")
}

fn create(fs: &Fs, path: &str) -> dioxide::Result<dioxide::File> {
    OpenOptions::new().write(true).create(true).open(fs, path)
}

#[test]
fn errors_says_what_damage_does_to_the_mount() {
    let image = image(1);
    let at = leaf_extents(image.path(), "/dir")[0].physical * BLOCK;
    for (policy, goes_on) in [
        (ErrorPolicy::Continue, true),
        (ErrorPolicy::RemountReadOnly, false),
        (ErrorPolicy::Panic, false),
    ] {
        let device = device(&image);
        device
            .write_at(at + 512, &[0xFF; 512], Durability::Cached)
            .expect("a block");
        let fs = open(device, &MountOptions::new().errors(policy));
        let error = fs.remove_dir("/dir").expect_err("it is damaged");
        assert!(
            [libc::EUCLEAN, libc::EBADMSG].contains(&error.errno()),
            "{policy:?}: {error}"
        );
        match (create(&fs, "/new"), goes_on) {
            (Ok(_), true) => {}
            (Err(error), false) if policy == ErrorPolicy::Panic => {
                assert_eq!(error.errno(), libc::EIO, "{error}");
            }
            (Err(error), false) => assert_eq!(error.errno(), libc::EROFS, "{error}"),
            (other, _) => panic!("{policy:?}: {other:?}"),
        }
    }
}

#[test]
fn data_journal_is_refused_and_the_others_are_not() {
    let image = image(1);
    for mode in [DataMode::Ordered, DataMode::Writeback] {
        let fs = open(device(&image), &MountOptions::new().data(mode));
        let file = create(&fs, "/new").expect("room");
        file.write_at(b"bytes", 0).expect("room");
        file.sync_all().expect("a sync");
    }
    let options = MountOptions::new().data(DataMode::Journal);
    let error = Fs::open_device(device(&image), &options).expect_err("not supported");
    assert!(error.to_string().contains("data=journal"), "{error}");
}

#[test]
fn file_whose_data_is_journalled_is_read_and_not_written() {
    let image = image(3);
    // EXTENTS and JOURNAL_DATA.
    debugfs(image.path(), &["set_inode_field /data flags 0x84000"]);
    let fs = open(device(&image), &MountOptions::new());
    let file = OpenOptions::new().read(true).write(true);
    let file = file.open(&fs, "/data").expect("a file");
    let mut buf = [0; 4096];
    assert_eq!(file.read_at(&mut buf, 4096).expect("its data"), 4096);
    assert_eq!(buf, [7; 4096]);
    let error = file.write_at(&[1; 100], 0).expect_err("it is journalled");
    assert!(error.to_string().contains("journal"), "{error}");
}

#[test]
fn discard_tells_the_device_what_was_freed_and_only_after_it_is_durable() {
    let tree = tempfile::tempdir().expect("a folder");
    fs::write(tree.path().join("data"), vec![7; 64 * BLOCK as usize]).expect("room");
    let without = made_of(tree.path()).features("^has_journal,^resize_inode");
    for (image, discards) in [
        (image(64), false),
        (image(64), true),
        (without.build(), true),
    ] {
        let runs = leaf_extents(image.path(), "/data");
        let recorder = Arc::new(RecordDevice::new(device(&image)));
        let fs = open(recorder.clone(), &MountOptions::new().discard(discards));
        fs.remove_file("/data").expect("a file");
        let told = |recorder: &RecordDevice| -> u64 {
            let log = recorder.log();
            let entries = log.entries().iter();
            let bytes = entries.filter_map(|entry| match &entry.action {
                Action::Discard { offset, len } => {
                    let freed = runs.iter().any(|run| {
                        let (start, end) = (run.physical * BLOCK, (run.physical + run.len) * BLOCK);
                        start <= *offset && offset + len <= end
                    });
                    Some(if freed { *len } else { 0 })
                }
                _ => None,
            });
            bytes.sum()
        };
        assert_eq!(told(&recorder), 0, "nothing was committed yet");
        fs.sync().expect("a sync");
        let expected = if discards { 64 * BLOCK } else { 0 };
        assert_eq!(told(&recorder), expected);
    }
}

#[test]
fn commit_interval_is_how_long_a_change_stays_in_memory() {
    let image = image(1);
    let crashed = |device: &MemDevice| {
        let mut bytes = vec![0; device.geometry().size_bytes as usize];
        device.read_at(0, &mut bytes).expect("all of it");
        open(load(&bytes), &MountOptions::new())
            .metadata("/new")
            .is_ok()
    };
    let begin = |interval: Duration| {
        let device = device(&image);
        let options = MountOptions::new().commit_interval(interval);
        let fs = open(device.clone(), &options);
        create(&fs, "/new").expect("room");
        (device, fs)
    };
    let (device, _fs) = begin(Duration::from_millis(50));
    let deadline = Instant::now() + Duration::from_secs(30);
    while !crashed(&device) {
        assert!(Instant::now() < deadline, "it was never committed");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (device, _fs) = begin(Duration::from_secs(3600));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!crashed(&device), "it was committed long before its time");
}

#[test]
fn resuid_and_resgid_say_who_has_the_reserve() {
    let options = MountOptions::new().resuid(1234).resgid(4321);
    has_reserve(&open(device(&image(1)), &options), (1234, 4321));
}

/// Both have 32 bits there.
#[test]
fn superblock_says_who_has_the_reserve() {
    let tree = tempfile::tempdir().expect("a folder");
    let image = made_of(tree.path()).features("^metadata_csum").build();
    let mut bytes = fs::read(image.path()).expect("the image");
    for (at, half) in [(0x50, 2_u16), (0x284, 1), (0x52, 4), (0x286, 3)] {
        bytes[1024 + at..][..2].copy_from_slice(&half.to_le_bytes());
    }
    let who = (1 << 16 | 2, 3 << 16 | 4);
    has_reserve(&open(load(&bytes), &MountOptions::new()), who);
}

/// This user and this group have it, root has it, and nobody else.
fn has_reserve(fs: &Fs, (uid, gid): (u32, u32)) {
    let file = create(fs, "/filler").expect("room");
    let piece = vec![1; 64 << 10];
    let mut at = 0;
    while file.write_at(&piece, at).is_ok() {
        at += piece.len() as u64;
    }
    let mut at = 1 << 30;
    for (user, may) in [
        ((uid, 1), true),
        ((1, gid), true),
        ((0, 1), true),
        ((1, 1), false),
        ((gid, uid), false),
        ((uid & 0xffff, gid & 0xffff), uid <= 0xffff),
    ] {
        let file = OpenOptions::new().write(true).user(user.0, user.1);
        let file = file.open(fs, "/filler").expect("a file");
        let written = file.write_at(&piece, at);
        at += piece.len() as u64;
        match (written, may) {
            (Ok(_), true) => {}
            (Err(error), false) => assert_eq!(error.errno(), libc::ENOSPC, "{user:?}"),
            (other, _) => panic!("{user:?}: {other:?}"),
        }
    }
}

/// What is made in each of `/plain` and `/setgid`.
const MADE: [&str; 6] = ["f", "d", "s", "p", "d/d", "d/f"];

#[test]
fn default_mount_options_that_have_no_effect_are_told_where_it_is_written() {
    let image = made_of(tempfile::tempdir().expect("a folder").path()).build();
    let told = |options: &MountOptions| {
        let fs = open(device(&image), options);
        let told = fs.warnings().to_vec();
        fs.close().expect("nothing to do");
        told
    };
    assert_eq!(told(&MountOptions::new()), [""; 0]);
    let script = [
        "ssv default_mount_opts 0x52c",
        "ssv mount_opts data=journal,commit=7",
    ];
    debugfs(image.path(), &script);
    let options = "journal_data,nobarrier,discard,data=journal,commit=7";
    let expected = format!("default mount options in the superblock have no effect: {options}");
    assert_eq!(told(&MountOptions::new()), [expected]);
    assert_eq!(told(&MountOptions::new().read_only(true)), [""; 0]);
}

/// An image with two directories of other groups, one with the setgid bit, and what its superblock says of new files.
fn of_groups(bsd_groups: bool) -> Image {
    let image = made_of(tempfile::tempdir().expect("a folder").path()).build();
    let mut script = vec![
        "mkdir /plain",
        "sif /plain mode 040777",
        "sif /plain gid 100",
    ];
    script.extend([
        "mkdir /setgid",
        "sif /setgid mode 042777",
        "sif /setgid gid 200",
    ]);
    if bsd_groups {
        script.push("ssv default_mount_opts 0xe");
    }
    debugfs(image.path(), &script);
    image
}

/// Modes and groups of what a user makes on a mount of ours.
fn made_by_us(image: &Image, options: &MountOptions) -> Vec<(String, u32, u32)> {
    let fs = open(device(image), options);
    let new = |permissions| NewFile::new(permissions).owner(1000, 1000);
    let mut made = Vec::new();
    for dir in ["/plain", "/setgid"] {
        for name in MADE {
            let path = format!("{dir}/{name}");
            let done = match name.rsplit('/').next() {
                Some("f") => {
                    let file = OpenOptions::new().write(true).new_file(&new(0o644));
                    file.create_new(true).open(&fs, &path).map(drop)
                }
                Some("d") => fs.create_dir(&path, &new(0o755)),
                Some("s") => fs.symlink("target", &path, &new(0o777)),
                _ => fs.mknod(&path, Special::Fifo, &new(0o644)),
            };
            done.expect("room");
            let metadata = fs.symlink_metadata(&path).expect("it is there");
            made.push((path, metadata.permissions.into(), metadata.gid));
        }
    }
    fs.close().expect("a clean end");
    made
}

/// The same, by Linux.
fn made_by_linux(image: &Image, options: &str) -> Vec<(String, u32, u32)> {
    let mount = Mount::ext4(image.path(), options);
    let script = "umask 022; for d in plain setgid; do
        touch $d/f; mkdir $d/d; ln -s target $d/s; mkfifo $d/p; mkdir $d/d/d; touch $d/d/f
    done";
    let mut user = Command::new("setpriv");
    user.args([
        "--reuid=1000",
        "--regid=1000",
        "--clear-groups",
        "sh",
        "-ec",
        script,
    ]);
    let status = user.current_dir(mount.path()).status();
    assert!(status.expect("setpriv").success());
    let mut made = Vec::new();
    for dir in ["/plain", "/setgid"] {
        for name in MADE {
            let path = format!("{dir}/{name}");
            let metadata = fs::symlink_metadata(mount.path().join(&path[1..]));
            let metadata = metadata.expect("it is there");
            made.push((path, metadata.mode() & 0o7777, metadata.gid()));
        }
    }
    mount.unmount();
    made
}

#[test]
fn grpid_gives_new_files_the_group_of_their_directory_as_in_linux() {
    for (bsd_groups, grpid) in [
        (false, None),
        (false, Some(true)),
        (false, Some(false)),
        (true, None),
        (true, Some(false)),
    ] {
        let image = of_groups(bsd_groups);
        let (options, words) = match grpid {
            None => (MountOptions::new(), ""),
            Some(true) => (MountOptions::new().grpid(true), "grpid"),
            Some(false) => (MountOptions::new().grpid(false), "nogrpid"),
        };
        let made = made_by_us(&image, &options);
        let on = grpid.unwrap_or(bsd_groups);
        let group_of = |path: &str| {
            let made = made.iter().find(|(made, _, _)| made == path);
            made.expect("it was made").2
        };
        assert_eq!(group_of("/plain/f"), if on { 100 } else { 1000 });
        assert_eq!(group_of("/plain/d/d"), if on { 100 } else { 1000 });
        assert_eq!(group_of("/setgid/d/f"), 200);
        if have_root() {
            assert_eq!(made, made_by_linux(&image, words), "{bsd_groups} {words}");
        }
    }
}

/// Without a sync: by the option, and by the flags of one of two directories.
#[test]
fn names_in_directories_that_are_in_step_are_durable_at_once() {
    let image = image(1);
    let flags = [InodeFlags::DIRSYNC.0, InodeFlags::SYNC.0];
    let one_of_two = flags.map(|flags| [("/from", flags), ("/to", flags)]);
    let mut cases: Vec<(bool, Option<(&str, u32)>)> = vec![(true, None), (false, None)];
    cases.extend(
        one_of_two
            .as_flattened()
            .iter()
            .map(|&flag| (false, Some(flag))),
    );
    for (option, flag) in cases {
        let device = device(&image);
        let options = MountOptions::new().dirsync(option);
        let fs = open(
            device.clone(),
            &options.commit_interval(Duration::from_secs(3600)),
        );
        let dir = NewFile::new(0o755);
        for path in ["/from", "/to"] {
            fs.create_dir(path, &dir).expect("room");
        }
        drop(create(&fs, "/from/f").expect("room"));
        if let Some((path, flags)) = flag {
            let set =
                SetAttributes::new().flags(fs.metadata(path).expect("it is there").flags | flags);
            fs.set_attributes(path, &set).expect("a flag");
        }
        fs.sync().expect("a sync");
        fs.rename("/from/f", "/to/g", RenameMode::Replace)
            .expect("a rename");
        let mut bytes = vec![0; device.geometry().size_bytes as usize];
        device.read_at(0, &mut bytes).expect("all of it");
        let after = open(load(&bytes), &MountOptions::new());
        let durable = option || flag.is_some();
        assert_eq!(
            after.metadata("/to/g").is_ok(),
            durable,
            "{option} {flag:?}"
        );
        assert_eq!(
            after.metadata("/from/f").is_ok(),
            !durable,
            "{option} {flag:?}"
        );
    }
}

/// Blocks of the device that a file has.
fn blocks_of(image: &Path, file: &str) -> BTreeSet<u64> {
    let extents = leaf_extents(image, file).into_iter();
    extents
        .flat_map(|extent| extent.physical..extent.physical + extent.len)
        .collect()
}

// When a change is committed depends on what else the machine does, and what is written then must not.
#[test]
fn clock_keeps_freed_blocks_until_there_are_no_others() {
    let time = Timestamp { secs: 1, nanos: 0 };
    let options = MountOptions::new().clock(time);
    for until_full in [false, true] {
        let image = image(256);
        let freed = blocks_of(image.path(), "/data");
        let fs = Fs::open(image.path(), &options).expect("it opens");
        OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&fs, "/data")
            .expect("it exists");
        fs.sync().expect("a sync");
        let new = OpenOptions::new().write(true).create(true).resource(true);
        let new = new.open(&fs, "/new").expect("room");
        let piece = vec![8; 64 << 10];
        let mut end = 0;
        while until_full || end < 1 << 20 {
            match new.write_at(&piece, end) {
                Ok(wrote) => end += wrote as u64,
                Err(error) => {
                    assert!(until_full && error.errno() == libc::ENOSPC, "{error}");
                    break;
                }
            }
        }
        drop(new);
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
        let new = blocks_of(image.path(), "/new");
        match until_full {
            // Some are kept aside.
            true => assert!(!freed.is_disjoint(&new), "none was used again"),
            false => assert!(freed.is_disjoint(&new), "one was used again"),
        }
    }
}

/// The names of the threads that the library has, and where each may run.
fn own_threads() -> Vec<(String, CpuSet)> {
    let tasks = fs::read_dir("/proc/self/task").expect("our own");
    let names = tasks.filter_map(|task| {
        let task = task.ok()?;
        let id = task.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        Some((name, sched_getaffinity(Pid::from_raw(id)).ok()?))
    });
    names.filter(|it| it.0.starts_with("dioxide-")).collect()
}

#[test]
fn threads_do_not_stay_on_the_processor_of_who_needed_them() {
    let everywhere = sched_getaffinity(Some(getpid())).expect("our own");
    let kept = std::thread::spawn(move || {
        let mut one = CpuSet::new();
        one.set((0..).find(|&it| everywhere.is_set(it)).expect("one"));
        sched_setaffinity(None, &one).expect("one of ours");
        let fs = open(device(&image(1)), &MountOptions::new());
        let file = create(&fs, "/new").expect("room");
        let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
        queue.sync_all(&file, 1).expect("room");
        queue.wait(1, &mut Vec::new()).expect("a working queue");
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            // A thread that has just begun has the name and the place of who started it.
            let threads = own_threads();
            let is_there = |name| threads.iter().any(|it| it.0 == name);
            if ["dioxide-commit\n", "dioxide-worker\n"]
                .into_iter()
                .all(is_there)
                && threads.iter().all(|it| it.1 == everywhere)
            {
                break;
            }
            assert!(Instant::now() < until, "{threads:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(sched_getaffinity(None).expect("our own") == one);
    });
    kept.join().expect("no panic");
}
