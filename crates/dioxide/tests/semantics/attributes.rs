//! Attributes, times that stay in memory (lazytime), and the end of a mount.

use crate::bed::*;
use dioxide::block::sim::{Fault, FaultKind, FaultOp};
use dioxide::check::{CheckOptions, check_path};
use dioxide::{
    CloseError, Error, FallocateMode, Fs, Metadata, MountOptions, NewFile, OpenOptions, Policy,
    SetAttributes, Timestamp, XattrMode,
};

use dioxide_format::inode::InodeFlags;
use dioxide_testkit::{Image, ImageBuilder, Mount, e2fsck_clean, need_root};
use std::os::unix::fs::MetadataExt;

const LONG_AGO: Timestamp = Timestamp {
    secs: 1_000_000_000,
    nanos: 123_456_789,
};

/// What is on the disk if the power fails now.
fn after_crash(bed: &Bed, path: &str) -> Metadata {
    let mut found = None;
    recover(&bed.crash_now(), |fs| {
        found = Some(fs.metadata(path).expect("it exists"));
    });
    found.expect("it was looked at")
}

/// A file that was changed long ago, and overwritten just now; the time of that.
fn overwritten(bed: &Bed) -> Timestamp {
    let set = SetAttributes::new().mtime(LONG_AGO);
    bed.set_attributes("/data", &set).expect("own file");
    bed.sync().expect("a sync");
    let file = bed.open("/data");
    file.write_at(&blocks(1, 1), 0).expect("an overwrite");
    let now = file.metadata().mtime;
    assert!(now > LONG_AGO);
    now
}

#[test]
fn set_attributes_changes_what_is_named_and_survives_a_crash() {
    let bed = Bed::new(Policy::Best);
    let before = bed.metadata("/data").expect("it exists");
    let flags = before.flags | InodeFlags::NODUMP.0 | InodeFlags::NOATIME.0;
    let later = Timestamp {
        secs: (1 << 33) + 5,
        nanos: 999_999_999,
    };
    let set = SetAttributes::new()
        .mode(0o2640)
        .uid(70_000)
        .gid(1 << 20)
        .atime(later)
        .mtime(LONG_AGO)
        .flags(flags);
    let file = bed.open("/data");
    file.set_attributes(&set).expect("own file");
    file.sync_all().expect("a sync");
    let here = file.metadata();
    let there = after_crash(&bed, "/data");
    assert_eq!(there, here);
    assert_eq!(
        (there.permissions, there.uid, there.gid),
        (0o2640, 70_000, 1 << 20)
    );
    assert_eq!(
        (there.atime, there.mtime, there.flags),
        (later, LONG_AGO, flags)
    );
    assert!(there.ctime > before.ctime);
    assert_eq!((there.size, there.blocks), (before.size, before.blocks));
}

#[test]
fn set_attributes_of_nothing_changes_ctime_only() {
    let bed = Bed::new(Policy::Best);
    let before = bed.metadata("/data").expect("it exists");
    bed.set_attributes("/data", &SetAttributes::new())
        .expect("nothing");
    let after = bed.metadata("/data").expect("it exists");
    let mut expected = before;
    expected.ctime = after.ctime;
    assert_eq!(after, expected);
}

#[test]
fn set_attributes_refuses_what_it_cannot_do_and_changes_nothing() {
    let bed = Bed::new(Policy::Best);
    let before = bed.metadata("/data").expect("it exists");
    let extents = before.flags & !InodeFlags::EXTENTS.0;
    let journal = before.flags | InodeFlags::JOURNAL_DATA.0;
    for flags in [extents, journal] {
        let set = SetAttributes::new().flags(flags).mode(0);
        let error = bed.set_attributes("/data", &set).expect_err("refused");
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
    }
    let odd = Timestamp {
        secs: 0,
        nanos: 1_000_000_000,
    };
    let error = bed
        .set_attributes("/data", &SetAttributes::new().atime(odd).mode(0))
        .expect_err("no time");
    assert_eq!(error.errno(), libc::EINVAL);
    let missing = bed.set_attributes("/none", &SetAttributes::new());
    assert_eq!(missing.expect_err("missing").errno(), libc::ENOENT);
    assert_eq!(bed.metadata("/data").expect("it exists"), before);
}

#[test]
fn set_attributes_of_an_immutable_file_is_eperm_until_the_flag_goes() {
    let bed = Bed::new(Policy::Best);
    let plain = bed.metadata("/data").expect("it exists").flags;
    for flag in [InodeFlags::IMMUTABLE.0, InodeFlags::APPEND.0] {
        let set = SetAttributes::new().flags(plain | flag);
        bed.set_attributes("/data", &set).expect("own file");
        for set in [
            SetAttributes::new().mode(0o600),
            SetAttributes::new().uid(5),
            SetAttributes::new().mtime(LONG_AGO),
        ] {
            let error = bed.set_attributes("/data", &set).expect_err("refused");
            assert_eq!(error.errno(), libc::EPERM);
        }
        let set = SetAttributes::new().flags(plain);
        bed.set_attributes("/data", &set).expect("own file");
    }
    let set = SetAttributes::new().mode(0o600);
    bed.set_attributes("/data", &set).expect("own file");
}

// A file with set-user-ID is not overwritten under the shared lock, from when the bit is there.
#[test]
fn set_attributes_of_set_uid_counts_for_the_next_write() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    file.write_at(&blocks(1, 1), 0).expect("an overwrite");
    let set = SetAttributes::new().mode(0o6755);
    file.set_attributes(&set).expect("own file");
    file.write_at(&blocks(1, 1), 0).expect("an overwrite");
    assert_eq!(file.metadata().permissions, 0o755);
}

#[test]
fn lazytime_overwrite_reaches_the_disk_by_sync_all() {
    let bed = Bed::new(Policy::Best);
    let now = overwritten(&bed);
    assert_eq!(after_crash(&bed, "/data").mtime, LONG_AGO);
    bed.open("/data").sync_all().expect("a sync");
    let found = after_crash(&bed, "/data");
    assert_eq!((found.mtime, found.ctime), (now, now));
}

#[test]
fn lazytime_overwrite_reaches_the_disk_by_fs_sync() {
    let bed = Bed::new(Policy::Best);
    let now = overwritten(&bed);
    bed.sync().expect("a sync");
    assert_eq!(after_crash(&bed, "/data").mtime, now);
}

#[test]
fn lazytime_overwrite_does_not_reach_the_disk_by_sync_data() {
    let bed = Bed::new(Policy::Best);
    overwritten(&bed);
    let file = bed.open("/data");
    file.sync_data().expect("a sync");
    file.sync_data().expect("a sync");
    let found = after_crash(&bed, "/data");
    assert_eq!(found.mtime, LONG_AGO);
}

// Nor by that of a file that nobody has open; which needs no commit for it either.
#[test]
fn lazytime_overwrite_reaches_the_disk_by_sync_of_a_node_and_not_by_its_sync_data() {
    let bed = Bed::new(Policy::Best);
    let now = overwritten(&bed);
    let node = bed.node("/data").expect("it exists");
    let commits = || bed.stats().journal_commits;
    let before = commits();
    node.sync_data().expect("a sync");
    assert_eq!(commits(), before);
    assert_eq!(after_crash(&bed, "/data").mtime, LONG_AGO);
    node.sync().expect("a sync");
    assert_eq!(commits(), before + 1);
    assert_eq!(after_crash(&bed, "/data").mtime, now);
}

#[test]
fn sync_data_of_a_node_makes_data_and_names_durable() {
    let bed = Bed::new(Policy::Best);
    let commits = || bed.stats().journal_commits;
    let (file, before) = (bed.open("/data"), commits());
    file.write_at(&blocks(1, 1), SIZE as u64).expect("room");
    let size = file.metadata().size;
    drop(file);
    let node = bed.node("/data").expect("it exists");
    node.sync_data().expect("a sync");
    assert_eq!(commits(), before + 1);
    assert_eq!(after_crash(&bed, "/data").size, size);
    bed.create_dir("/new", &NewFile::new(0o755)).expect("room");
    let root = bed.root().expect("there is one");
    root.sync_data().expect("a sync");
    assert_eq!(commits(), before + 2);
    assert_eq!(after_crash(&bed, "/new").permissions, 0o755);
}

// As in Linux, which sets them before. A part of what failed may be on the disk.
#[test]
fn a6_failed_write_changes_the_times() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let set = SetAttributes::new().mtime(LONG_AGO);
        for (path, offset, len) in [
            ("/data", 0, BLOCK),
            ("/data", 512, 512),
            ("/data", BLOCK, 3 * BLOCK),
            ("/hole", 0, BLOCK),
            ("/unwritten", 512, 512),
        ] {
            let file = bed.open(path);
            let fails = |write: &mut dyn FnMut() -> Result<usize, Box<Error>>| {
                file.set_attributes(&set).expect("own file");
                let fault = bed
                    .sim
                    .inject(Fault::once(FaultOp::Write, FaultKind::Io(libc::EIO)));
                write().expect_err("the device fails");
                assert_eq!(bed.sim.remove(fault), Some(1), "{policy}: {path}");
                let now = file.metadata().mtime;
                assert!(now > LONG_AGO, "{policy}: {len} at {offset} of {path}");
            };
            fails(&mut || Ok(file.write_at(&bytes(1, len), offset as u64)?));
            let mut queue = bed.queue();
            fails(&mut || {
                queue
                    .write(&file, offset as u64, bytes(1, len), 0)
                    .expect("room");
                reap(&mut queue, 1).pop().expect("one").result
            });
        }
    }
}

// Closing the file is not the end of its times: the mount keeps them.
#[test]
fn lazytime_overwrite_of_a_closed_file_reaches_the_disk_by_close() {
    let tree = tempfile::tempdir().expect("a folder");
    let path = tree.path().join("data");
    std::fs::write(&path, vec![1; BLOCK]).expect("room");
    let made = std::fs::File::options().write(true).open(path);
    let epoch = std::time::SystemTime::UNIX_EPOCH;
    made.and_then(|made| made.set_modified(epoch))
        .expect("own file");
    let image = Image::builder().size(16 << 20).source(tree.path()).build();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let file = open_rw(&fs, "/data");
    let before = file.metadata().mtime;
    file.write_at(&blocks(1, 1), 0).expect("an overwrite");
    let now = file.metadata().mtime;
    assert!(now > before, "{now:?}");
    drop(file);
    assert_eq!(fs.metadata("/data").expect("it exists").mtime, now);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert_eq!(fs.metadata("/data").expect("it exists").mtime, now);
    fs.close().expect("a clean end");
}

#[test]
fn time_of_a_new_file_is_judged_as_one_that_is_set() {
    let bed = Bed::new(Policy::Best);
    let make = |name: &str, time| bed.create_dir(name, &NewFile::new(0o755).time(time));
    for nanos in [1_000_000_000, u32::MAX] {
        let refused = make("/bad", Timestamp { secs: 1, nanos });
        let errno = refused.map_err(|error| error.errno());
        assert_eq!(errno, Err(libc::EINVAL), "{nanos}");
    }
    let latest = (4 << 32) + i64::from(i32::MIN) - 1;
    for (name, secs, has_nanos) in [("/early", latest - 1, true), ("/late", latest + 9, false)] {
        make(name, Timestamp { secs, nanos: 7 }).expect("room");
        let expected = Timestamp {
            secs: secs.min(latest),
            nanos: 7 * u32::from(has_nanos),
        };
        assert_eq!(bed.metadata(name).expect("it exists").mtime, expected);
    }
}

// Of a queued write, too.
#[test]
fn lazytime_queued_overwrite_reaches_the_disk_by_sync_all() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let set = SetAttributes::new().mtime(LONG_AGO);
        bed.set_attributes("/data", &set).expect("own file");
        let file = bed.open("/data");
        let mut queue = bed.queue();
        queue.write(&file, 0, blocks(1, 1), 0).expect("room");
        reap_all_ok(&mut queue, 1);
        let now = file.metadata().mtime;
        assert!(now > LONG_AGO, "{policy}");
        file.sync_all().expect("a sync");
        assert_eq!(after_crash(&bed, "/data").mtime, now, "{policy}");
    }
}

// And by a queued sync.
#[test]
fn lazytime_overwrite_reaches_the_disk_by_queued_sync_all() {
    let bed = Bed::new(Policy::Best);
    let now = overwritten(&bed);
    let (file, mut queue) = (bed.open("/data"), bed.queue());
    queue.sync_data(&file, 1).expect("room");
    reap_all_ok(&mut queue, 1);
    assert_eq!(after_crash(&bed, "/data").mtime, LONG_AGO);
    queue.sync_all(&file, 2).expect("room");
    reap_all_ok(&mut queue, 1);
    assert_eq!(after_crash(&bed, "/data").mtime, now);
}

// A change of something else does not undo what an overwrite did to the times.
#[test]
fn lazytime_overwrite_is_kept_by_a_chmod() {
    for set in [
        SetAttributes::new().mode(0o600),
        SetAttributes::new().uid(5),
        SetAttributes::new().atime(LONG_AGO),
    ] {
        let bed = Bed::new(Policy::Best);
        let now = overwritten(&bed);
        bed.set_attributes("/data", &set).expect("own file");
        assert_eq!(bed.metadata("/data").expect("it exists").mtime, now);
        bed.sync().expect("a sync");
        assert_eq!(after_crash(&bed, "/data").mtime, now);
    }
}

#[test]
fn lazytime_overwrite_before_utimes_does_not_come_back() {
    let bed = Bed::new(Policy::Best);
    overwritten(&bed);
    let set = SetAttributes::new().mtime(LONG_AGO);
    bed.set_attributes("/data", &set).expect("own file");
    bed.sync().expect("a sync");
    assert_eq!(after_crash(&bed, "/data").mtime, LONG_AGO);
    assert_eq!(bed.metadata("/data").expect("it exists").mtime, LONG_AGO);
}

#[test]
fn times_of_writes_that_change_metadata_need_no_sync_all() {
    for (offset, path) in [(SIZE, "/data"), (0, "/hole"), (0, "/unwritten")] {
        let bed = Bed::new(Policy::Best);
        let set = SetAttributes::new().mtime(LONG_AGO);
        bed.set_attributes(path, &set).expect("own file");
        let file = bed.open(path);
        file.write_at(&blocks(1, 1), offset as u64).expect("room");
        file.sync_data().expect("a sync");
        let there = after_crash(&bed, path).mtime;
        assert!(there > LONG_AGO, "{path}");
    }
}

#[test]
fn close_with_an_open_file_queue_or_clone_is_busy() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    let fs: Fs = Fs::clone(&bed);
    assert_eq!(fs.close().expect_err("a file is open").errno(), libc::EBUSY);
    file.write_at(&blocks(1, 1), SIZE as u64)
        .expect("it is still mounted");
    drop(file);
    let queue = bed.queue();
    let fs: Fs = Fs::clone(&bed);
    let error = fs.close().expect_err("a queue is open");
    assert!(matches!(error, Error::Busy(_)), "{error}");
    drop(queue);
    bed.open("/data").sync_all().expect("it is still mounted");
}

#[test]
fn try_close_gives_the_file_system_back_until_nobody_else_has_it() {
    let image = Image::builder().size(16 << 20).build();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let options = OpenOptions::new().write(true).create(true);
    let file = options.open(&fs, "/f").expect("room");
    let error = fs.try_close().expect_err("a file is open");
    assert_eq!(
        error.to_string(),
        "busy: files, queues or other handles are open"
    );
    let CloseError::Busy(fs) = error else {
        panic!("{error}");
    };
    file.write_at(&blocks(1, 1), 0)
        .expect("it is still mounted");
    drop(file);
    fs.try_close().expect("nobody else has it");
    e2fsck_clean(image.path());
    let told = dioxide_testkit::dumpe2fs(image.path());
    assert!(!told.contains("needs_recovery"), "{told}");
}

#[test]
fn dropped_fs_is_committed_and_not_clean() {
    let tree = tempfile::tempdir().expect("a folder");
    std::fs::write(tree.path().join("data"), b"").expect("room");
    let image = Image::builder().size(16 << 20).source(tree.path()).build();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let file = open_rw(&fs, "/data");
    file.write_at(&blocks(1, 3), 0).expect("room");
    drop(fs);
    drop(file);
    let told = dioxide_testkit::dumpe2fs(image.path());
    assert!(told.contains("needs_recovery"), "{told}");
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert_all(&read_all(&open_rw(&fs, "/data")), 1);
    fs.close().expect("a clean end");
    let told = dioxide_testkit::dumpe2fs(image.path());
    assert!(!told.contains("needs_recovery"), "{told}");
    e2fsck_clean(image.path());
}

#[test]
fn dropped_fs_that_only_overwrote_keeps_the_times() {
    let tree = tempfile::tempdir().expect("a folder");
    std::fs::write(tree.path().join("data"), vec![1; SIZE]).expect("room");
    let image = Image::builder().size(16 << 20).source(tree.path()).build();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let file = open_rw(&fs, "/data");
    let before = file.metadata().mtime;
    std::thread::sleep(std::time::Duration::from_millis(20));
    file.write_at(&blocks(1, 3), 0).expect("an overwrite");
    let after = file.metadata().mtime;
    assert_ne!(before, after);
    drop((fs, file));
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert_eq!(open_rw(&fs, "/data").metadata().mtime, after);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

// Who only reads, or overwrites, leaves no trace of use.
#[test]
fn mount_that_changes_nothing_stays_clean() {
    let bed = Bed::untouched();
    let file = bed.open("/data");
    file.write_at(&blocks(1, 1), 0).expect("an overwrite");
    assert_eq!(bed.record.log().entries().len(), 1);
}

#[test]
fn statfs_says_what_the_kernel_says() {
    need_root!();
    compare_statfs(&[
        Image::builder(),
        Image::builder().block_size(1024),
        Image::builder().features("^has_journal"),
        Image::builder().args(&["-m", "20"]),
    ]);
}

#[test]
fn statfs_of_bigalloc_says_what_the_kernel_says() {
    need_root!();
    let builder = Image::builder().features("bigalloc");
    compare_statfs(&[builder.args(&["-C", "16384"])]);
}

#[test]
fn statfs_without_extents_says_what_the_kernel_says() {
    need_root!();
    compare_statfs(&[Image::builder().features("^extents,^64bit,^orphan_file")]);
}

fn compare_statfs(variants: &[ImageBuilder]) {
    for (number, builder) in variants.iter().enumerate() {
        let image = builder.clone().build();
        image.populate_with_kernel(|root| {
            for (name, len) in [("one", 1 << 20), ("two", 5000)] {
                std::fs::write(root.join(name), vec![1; len]).expect("room");
            }
        });
        let mount = Mount::ext4(image.path(), "");
        let kernel = rustix::fs::statvfs(mount.path()).expect("a mount");
        mount.unmount();
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let check = |fs: &Fs, when: &str| {
            let ours = fs.statfs();
            let what = format!("{number}, {when}");
            assert_eq!(u64::from(ours.block_size), kernel.f_bsize, "{what}");
            assert_eq!(ours.blocks, kernel.f_blocks, "{what}");
            assert_eq!(ours.blocks_free, kernel.f_bfree, "{what}");
            assert_eq!(ours.blocks_available, kernel.f_bavail, "{what}");
            assert_eq!(ours.files, kernel.f_files, "{what}");
            assert_eq!(ours.files_free, kernel.f_ffree, "{what}");
            assert_eq!(u64::from(ours.name_max), kernel.f_namemax, "{what}");
        };
        check(&fs, "before the first change");
        let file = open_rw(&fs, "/two");
        let size = file.len();
        file.write_at(&bytes(1, 1 << 20), size).expect("room");
        assert!(fs.statfs().blocks_free < kernel.f_bfree);
        file.set_len(size).expect("a size");
        file.sync_all().expect("a sync");
        check(&fs, "after a change that was taken back");
        drop(file);
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

// What chown and chmod of set-ID bits give, bit by bit.
#[test]
fn chown_strips_what_the_kernel_strips() {
    need_root!();
    let modes = [0o4755, 0o2755, 0o6755, 0o2745, 0o6644, 0o1777, 0o7000];
    let tree = tempfile::tempdir().expect("a folder");
    for mode in modes {
        let path = tree.path().join(format!("{mode:o}"));
        std::fs::write(&path, b"x").expect("room");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&path, mode).expect("own file");
    }
    let image = Image::builder().size(16 << 20).source(tree.path()).build();
    let copy = image.copy();
    let kernel: Vec<u32> = copy.populate_with_kernel(|root| {
        let each = modes.iter().map(|mode| {
            let path = root.join(format!("{mode:o}"));
            std::os::unix::fs::chown(&path, Some(5), Some(6)).expect("root");
            std::fs::metadata(&path).expect("it exists").mode() & 0o7777
        });
        each.collect()
    });
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let ours: Vec<u32> = modes
        .iter()
        .map(|mode| {
            let path = format!("/{mode:o}");
            let set = SetAttributes::new().uid(5).gid(6);
            fs.set_attributes(&path, &set).expect("own file");
            u32::from(fs.metadata(&path).expect("it exists").permissions)
        })
        .collect();
    assert_eq!(ours, kernel);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

// The reserve is for who may use it.
#[test]
fn reserved_blocks_are_for_the_privileged() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/empty");
    let mut at = 0;
    while file
        .allocate(FallocateMode::KeepSize, at, 16 * BLOCK as u64)
        .is_ok()
    {
        at += 16 * BLOCK as u64;
    }
    let reserve = bed.statfs().blocks_free - bed.statfs().blocks_available;
    assert!(reserve > 16, "{:?}", bed.statfs());
    let far = 1 << 30;
    let error = file.write_at(&blocks(1, 16), far).expect_err("no room");
    assert_eq!(error.errno(), libc::ENOSPC);
    let privileged = OpenOptions::new().write(true).resource(true);
    let privileged = privileged.open(&bed, "/empty").expect("it exists");
    privileged
        .write_at(&blocks(1, 4), far)
        .expect("the reserve");
}

/// An empty file on an image with inodes of this size.
fn with_file(inode_bytes: u32) -> (Image, Fs) {
    let image = Image::builder().inode_size(inode_bytes).build();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let options = OpenOptions::new().write(true).create_new(true);
    options.open(&fs, "/file").expect("a new file");
    (image, fs)
}

#[test]
fn times_outside_of_what_inodes_hold_are_cut_as_linux_cuts_them() {
    for inode_bytes in [128, 256] {
        let (image, fs) = with_file(inode_bytes);
        let times = [
            i64::MIN,
            -(1 << 31),
            0,
            1 << 31,
            (1 << 34) - (1 << 31) - 1,
            1 << 40,
        ];
        for (at, secs) in times.into_iter().enumerate() {
            let path = format!("/{at}");
            let set = SetAttributes::new().mtime(Timestamp { secs, nanos: 5 });
            let options = OpenOptions::new().write(true).create_new(true);
            options.open(&fs, &path).expect("a new file");
            fs.set_attributes(&path, &set).expect("own file");
        }
        let ours: Vec<Timestamp> = (0..times.len())
            .map(|at| fs.metadata(format!("/{at}")).expect("it exists").mtime)
            .collect();
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
        let zero_nanos = ours.iter().filter(|time| time.nanos == 0).count();
        assert_eq!(zero_nanos, if inode_bytes == 128 { 6 } else { 4 });
        need_root!();
        let mount = Mount::ext4(image.path(), "");
        for (at, secs) in times.into_iter().enumerate() {
            let path = mount.path().join(at.to_string());
            let of = |path: &std::path::Path| {
                let about = path.metadata().expect("it exists");
                let nanos = about.mtime_nsec() as u32;
                let secs = about.mtime();
                Timestamp { secs, nanos }
            };
            assert_eq!(of(&path), ours[at], "what the kernel reads");
            let times = rustix::fs::Timestamps {
                last_access: rustix::fs::Timespec {
                    tv_sec: 0,
                    tv_nsec: rustix::fs::UTIME_OMIT,
                },
                last_modification: rustix::fs::Timespec {
                    tv_sec: secs,
                    tv_nsec: 5,
                },
            };
            let (dir, flags) = (rustix::fs::CWD, rustix::fs::AtFlags::empty());
            rustix::fs::utimensat(dir, &path, &times, flags).expect("own file");
            assert_eq!(of(&path), ours[at], "what the kernel makes of {secs}");
        }
    }
}

/// A write's time was told with nanoseconds, which inodes of 128 bytes have no room for: once it was written, the
/// file had another mtime, and programs that compare times took it for changed.
#[test]
fn time_of_a_write_does_not_change_when_it_is_written() {
    let (_image, fs) = with_file(128);
    let file = OpenOptions::new().read(true).write(true).open(&fs, "/file");
    let file = file.expect("it exists");
    file.write_at(b"some", 0).expect("room");
    let told = file.metadata().mtime;
    file.sync_all().expect("a sync");
    assert_eq!(file.metadata().mtime, told);
    assert_eq!(told.nanos, 0);
}

/// Without `huge_file` inodes count up to 2 TiB, and what could need more Linux neither reads nor removes.
#[test]
fn largest_sizes_are_those_of_linux() {
    need_root!();
    for (block_size, features) in [
        (4096, "^huge_file"),
        (1024, "^huge_file"),
        (4096, "^huge_file,^extent,^64bit"),
        (2048, "^huge_file,^extent,^64bit"),
        (1024, "^huge_file,^extent,^64bit"),
        (4096, "^extent,^64bit"),
        (4096, "huge_file"),
    ] {
        let image = Image::builder().block_size(block_size).features(features);
        let image = image.build();
        let mount = Mount::ext4(image.path(), "");
        let file = std::fs::File::create(mount.path().join("file")).expect("room");
        // The largest that it takes.
        let (mut taken, mut refused) = (0, 1 << 62);
        while refused - taken > 1 {
            let size = (taken + refused) / 2;
            match file.set_len(size) {
                Ok(()) => taken = size,
                Err(_) => refused = size,
            }
        }
        file.set_len(0).expect("its size");
        drop(file);
        mount.unmount();
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let file = OpenOptions::new().read(true).write(true).open(&fs, "/file");
        let file = file.expect("it exists");
        let about = format!("{block_size} {features}: {taken}");
        let error = file.set_len(refused).expect_err(&about);
        assert!(matches!(error, Error::TooLarge(_)), "{about}: {error}");
        file.set_len(taken).expect(&about);
        drop(file);
        fs.close().expect("it closes");
        e2fsck_clean(image.path());
        let mount = Mount::ext4(image.path(), "");
        let path = mount.path().join("file");
        assert_eq!(path.metadata().expect("it is there").len(), taken);
        std::fs::remove_file(path).expect("it goes");
        mount.unmount();
    }
}

/// An overwrite is now, also where the file has a time that is yet to come.
#[test]
fn overwrite_replaces_a_time_that_is_yet_to_come() {
    for inode_bytes in [128, 256] {
        let (image, fs) = with_file(inode_bytes);
        let file = OpenOptions::new().read(true).write(true).open(&fs, "/file");
        let file = file.expect("it exists");
        file.write_at(&[1; 4096], 0).expect("room");
        let (secs, nanos) = ((1 << 31) - 1, 0);
        let far = Timestamp { secs, nanos };
        let set = SetAttributes::new().mtime(far);
        fs.set_attributes("/file", &set).expect("own file");
        assert_eq!(file.metadata().mtime, far);
        file.write_at(&[2; 4096], 0).expect("it is there");
        let told = file.metadata().mtime;
        assert!(told < far, "{told:?}");
        file.sync_all().expect("a sync");
        assert_eq!(file.metadata().mtime, told);
        drop(file);
        fs.close().expect("it closes");
        e2fsck_clean(image.path());
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        assert_eq!(fs.metadata("/file").expect("it exists").mtime, told);
    }
}

/// Linux sets `large_file` with the first file of 2 GiB, and `ext_attr` with the first block of attributes;
/// e2fsck finds such files and blocks wrong without them.
#[test]
fn features_that_come_by_use_are_set_by_use() {
    let image = Image::builder().features("none,filetype,has_journal");
    let image = image.inode_size(128).build();
    let on_image = |change: &dyn Fn(&Fs), expected: [bool; 2]| {
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        change(&fs);
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
        let options = MountOptions::new().read_only(true);
        let fs = Fs::open(image.path(), &options).expect("it opens");
        let names = fs.superblock().features().names();
        let has = ["large_file", "ext_attr"].map(|name| names.iter().any(|set| set == name));
        assert_eq!(has, expected);
    };
    let file = |fs: &Fs, create| {
        let options = OpenOptions::new().write(true).create(create);
        options.open(fs, "/file").expect("own file")
    };
    on_image(
        &|fs| file(fs, true).set_len((1 << 31) - 1).expect("room"),
        [false, false],
    );
    on_image(
        &|fs| {
            let value = fs.set_xattr("/file", "user.some", b"value", XattrMode::Set);
            value.expect("room");
        },
        [false, true],
    );
    on_image(
        &|fs| {
            let written = file(fs, false).write_at(b"end", (1 << 31) - 2);
            assert_eq!(written.expect("room"), 3);
        },
        [true, true],
    );
}

/// Before revision 1 a superblock has no features, and nobody looks at where they would be.
#[test]
fn features_by_use_of_a_file_system_of_revision_0_make_it_one_of_revision_1() {
    let image = Image::builder().fs_type("ext2").size(16 << 20);
    let image = image.args(&["-r", "0", "-b", "1024"]).build();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
    assert_eq!(fs.superblock().features().names().len(), 0);
    let options = OpenOptions::new().write(true).create(true);
    let file = options.open(&fs, "/file").expect("room");
    file.set_len(3 << 30).expect("a size");
    drop(file);
    let value = fs.set_xattr("/file", "user.some", b"value", XattrMode::Set);
    value.expect("room");
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
    let found = check_path(image.path(), &CheckOptions::default(), &mut |_| {});
    let found = found.expect("it can be checked");
    // It notes that the backups are older, as of every feature by use.
    assert_eq!(found.errors, 0, "{:?}", found.findings);
    let fs = Fs::open(image.path(), &MountOptions::new().read_only(true)).expect("it opens");
    let mut names = fs.superblock().features().names();
    names.sort();
    assert_eq!(names, ["ext_attr", "large_file"]);
    let disk = fs.superblock().disk();
    let revision = (disk.s_rev_level, disk.s_first_ino, disk.s_inode_size);
    assert_eq!(revision, (1, 11, 128));
}
