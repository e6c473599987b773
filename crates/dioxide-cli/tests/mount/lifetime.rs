//! From mounting to an image that is closed, in peace and otherwise.
#![allow(unsafe_code)]

use crate::bed::{
    Bed, NO_RINGS, Point, RINGS, Rings, SOON, asked, dioxide, each, is_mounted, limited, patiently,
    run, text, transports, umount,
};
use crate::need_fuse;
use dioxide_testkit::{Image, check_pattern, dumpe2fs, e2fsck_clean, pattern};
use rustix::fs::{FlockOperation, SeekFrom, fcntl_lock};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[test]
fn mount_in_the_background_serves_when_it_returns_and_umount_waits() {
    need_fuse!();
    let image = Image::builder().size(32 << 20).build();
    let dir = tempfile::tempdir().unwrap();
    // What is mounted may go by another name.
    for (round, options) in ["rw", "fsname=shown", "rw"].into_iter().enumerate() {
        let options = format!("{NO_RINGS},{options}");
        let round = round as u64;
        let file = dir.path().join(format!("f{round}"));
        let mut mount = dioxide();
        run(mount
            .args(["mount", "-o", &options])
            .args([image.path(), dir.path()]));
        fs::write(&file, pattern(round, 0, 100_000)).unwrap();
        umount(dir.path());
        assert!(!is_mounted(dir.path()));
        e2fsck_clean(image.path());
        assert!(!dumpe2fs(image.path()).contains("needs_recovery"));
    }
}

/// The system's own `umount` does not wait for the server, which has much to write.
#[test]
fn image_is_mounted_again_while_its_last_server_closes_it() {
    need_fuse!();
    let image = Image::builder().size(64 << 20).build();
    let dir = tempfile::tempdir().unwrap();
    let mount = || {
        let options = ["mount", "-o", NO_RINGS];
        run(dioxide().args(options).args([image.path(), dir.path()]));
    };
    for round in 0..5 {
        mount();
        for n in 0..300 {
            fs::write(dir.path().join(format!("{round}.{n}")), "few").unwrap();
        }
        let done = patiently(limited("umount").arg("-i").arg(dir.path()));
        assert!(done.status.success(), "{done:?}");
    }
    mount();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1501);
    umount(dir.path());
    e2fsck_clean(image.path());
}

/// Somebody who waits for the image has it before `umount` sees that the server has not.
#[test]
fn umount_does_not_wait_for_who_opens_the_image_next() {
    need_fuse!();
    let bed = Bed::new("");
    let mut image = File::options();
    let image = image.read(true).write(true).open(bed.image()).unwrap();
    let (told, ended) = std::sync::mpsc::channel::<()>();
    let next = std::thread::spawn(move || {
        let until = Instant::now() + SOON;
        while fcntl_lock(&image, FlockOperation::NonBlockingLockExclusive).is_err() {
            assert!(Instant::now() < until, "the server has not ended");
        }
        ended.recv_timeout(SOON).is_ok()
    });
    let done = patiently(dioxide().arg("umount").arg(bed.root()));
    told.send(()).unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    assert!(next.join().unwrap(), "umount waited for it");
    bed.ended(true);
}

#[test]
fn umount_waits_for_the_server_though_the_image_has_another_name() {
    need_fuse!();
    let bed = Bed::new("commit=300");
    for n in 0..2000 {
        fs::create_dir(bed.at(&n.to_string())).unwrap();
    }
    let moved = bed.image().with_extension("moved");
    fs::rename(bed.image(), &moved).unwrap();
    umount(bed.root());
    let stat = fs::read_to_string(format!("/proc/{}/stat", bed.pid())).unwrap();
    fs::rename(&moved, bed.image()).unwrap();
    assert!(stat.contains(") Z "), "it has not ended: {stat}");
    bed.ended(true);
}

#[test]
fn umount_of_one_mount_of_several_does_not_wait_for_the_others() {
    need_fuse!();
    let image = Image::builder().size(32 << 20).build();
    let (dir, other) = (Point::new(), Point::new());
    let options = ["mount", "-o", NO_RINGS];
    run(dioxide().args(options).args([image.path(), dir.path()]));
    run(limited("mount")
        .arg("--bind")
        .args([dir.path(), other.path()]));
    let done = dioxide().arg("umount").arg(dir.path()).output().unwrap();
    assert!(done.status.success());
    let said = text(done.stderr);
    assert!(said.contains("mounted elsewhere too"), "{said}");
    fs::write(other.path().join("f"), "still served").unwrap();
    umount(other.path());
    assert!(!is_mounted(other.path()));
    e2fsck_clean(image.path());
}

/// The namespace of the test keeps its mount, and the other one has no list of connections, or no sysfs at all.
#[test]
fn umount_does_not_wait_for_a_mount_of_another_namespace() {
    need_fuse!();
    for (access, hidden, why) in [
        ("rw", "/sys/fs/fuse/connections", "mounted elsewhere too"),
        ("ro", "/sys/fs/fuse/connections", "mounted elsewhere too"),
        ("rw", "/sys", "nothing tells whether its server has ended"),
    ] {
        let image = Image::builder().size(32 << 20).build();
        let dir = Point::new();
        run(dioxide()
            .args(["mount", "-o", access, "-o", NO_RINGS])
            .args([image.path(), dir.path()]));
        // Other tests' mounts are to end with their own.
        let script = r#"
            while read -r _ at kind _; do
                case $kind in fuse*) [ "$at" = "$3" ] || umount -l "$at" ;; esac
            done </proc/self/mounts
            umount -lR "$1" 2>/dev/null
            exec timeout -k 5 60 "$2" umount "$3"
        "#;
        let mut apart = limited("unshare");
        apart.args(["--mount", "--propagation", "private", "sh", "-c"]);
        apart.args([script, "sh", hidden, env!("CARGO_BIN_EXE_dioxide")]);
        let done = apart.arg(dir.path()).output().unwrap();
        let said = text(done.stderr);
        assert!(done.status.success() && said.contains(why), "{said}");
        let found = fs::read_dir(dir.path().join("lost+found")).map(drop);
        assert!(found.is_ok(), "still served");
        umount(dir.path());
        e2fsck_clean(image.path());
    }
}

#[test]
fn detached_mount_that_is_terminated_keeps_what_was_written() {
    need_fuse!();
    let bed = Bed::new("");
    let written = pattern(9, 0, 100_000);
    let mut file = File::create(bed.at("f")).unwrap();
    file.write_all(&written).unwrap();
    run(dioxide().args(["umount", "--lazy"]).arg(bed.root()));
    assert!(!is_mounted(bed.root()));
    bed.signal(Signal::TERM);
    let image = bed.ended(true);
    drop(file);
    let fs = dioxide::Fs::open(image.path(), &dioxide::MountOptions::new().read_only(true));
    let file = dioxide::OpenOptions::new()
        .read(true)
        .open(&fs.unwrap(), "/f");
    let mut found = vec![0; written.len()];
    assert_eq!(file.unwrap().read_at(&mut found, 0).unwrap(), found.len());
    assert!(found == written);
}

#[test]
fn detached_mount_is_said_to_be_in_use_while_files_are_open() {
    need_fuse!();
    for open in [true, false] {
        let bed = Bed::new("");
        let file = open.then(|| File::create(bed.at("f")).unwrap());
        let mut umount = dioxide();
        let done = umount.args(["umount", "--lazy"]).arg(bed.root()).output();
        let said = text(done.unwrap().stderr);
        assert_eq!(said.contains("the image is in use"), open, "{said}");
        assert_eq!(said.is_empty(), !open, "{said}");
        drop(file);
        bed.ended(true);
    }
}

#[test]
fn server_in_the_background_keeps_nothing_of_who_started_it() {
    need_fuse!();
    let image = Image::builder().size(32 << 20).build();
    let (dir, scratch) = (Point::new(), tempfile::tempdir().unwrap());
    let lock = scratch.path().join("lock");
    let script = r#"exec 9>"$1"; flock 9; exec "$2" mount "$3" "$4""#;
    let mut shell = limited("sh");
    shell.args(["-c", script, "sh"]).arg(&lock);
    run(shell
        .arg(env!("CARGO_BIN_EXE_dioxide"))
        .args([image.path(), dir.path()]));
    run(limited("flock").arg("--nonblock").arg(&lock).arg("true"));
    umount(dir.path());
    e2fsck_clean(image.path());
}

#[test]
fn mount_that_fails_says_why_and_exits_with_2() {
    need_fuse!();
    let image = Image::builder().size(16 << 20).build();
    let nothing = Image::blank(dioxide_testkit::Dir::Tmpfs, 1 << 20);
    let dir = tempfile::tempdir().unwrap();
    let fails = |image: &Path, dir: &Path, options: &str, why: &str| {
        let mut mount = dioxide();
        mount.args(["mount", "-o", options]).args([image, dir]);
        let output = mount.output().unwrap();
        let said = text(output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why), "{said}");
        assert!(!is_mounted(dir));
    };
    fails(image.path(), Path::new("/nowhere"), "rw", "No such file");
    fails(Path::new("/nowhere"), dir.path(), "rw", "No such file");
    fails(nothing.path(), dir.path(), "rw", "superblock");
    fails(image.path(), dir.path(), "frobnicate", "not known");
    fails(image.path(), dir.path(), "journal_path=/x", "inside");
    // A file is no directory: it is mounted nowhere, and the image closed again.
    fails(image.path(), image.path(), "rw", "cannot mount");
    e2fsck_clean(image.path());
}

#[test]
fn second_mount_of_an_image_is_refused() {
    need_fuse!();
    let bed = Bed::new("");
    let other = tempfile::tempdir().unwrap();
    let mut mount = dioxide();
    let output = mount
        .arg("mount")
        .args([bed.image(), other.path()])
        .output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = text(output.stderr);
    assert!(said.contains("in use"), "{said}");
    bed.finish();
}

/// Also by another name: that of a loop device. Nobody else is told of it.
#[test]
fn mount_of_a_loop_device_whose_image_is_mounted_is_refused() {
    need_fuse!();
    let bed = Bed::new("");
    let attached = dioxide_testkit::LoopDevice::attach(bed.image());
    let other = tempfile::tempdir().unwrap();
    for options in ["rw", "ro"] {
        let mut mount = dioxide();
        mount.args(["mount", "-o", options]).arg(attached.path());
        let output = mount.arg(other.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = text(output.stderr);
        assert!(said.contains("its backing file is locked"), "{said}");
    }
    drop(attached);
    bed.finish();
}

#[test]
fn umount_of_what_is_busy_or_no_mount_of_ours_is_refused() {
    need_fuse!();
    let bed = Bed::new("");
    let umount = |dir: &Path| text(dioxide().arg("umount").arg(dir).output().unwrap().stderr);
    let file = File::create(bed.at("f")).unwrap();
    assert!(umount(bed.root()).contains("busy"));
    drop(file);
    assert!(umount(Path::new("/")).contains("no dioxide file system"));
    bed.finish();
}

#[test]
fn terminated_server_flushes_and_closes_though_a_file_is_open() {
    need_fuse!();
    for (open, bed) in [false, true]
        .iter()
        .flat_map(|open| each("").map(move |bed| (*open, bed)))
    {
        fs::create_dir(bed.at("d")).unwrap();
        let mut file = File::create(bed.at("d/f")).unwrap();
        file.write_all(&pattern(3, 0, 500_000)).unwrap();
        let file = open.then_some(file);
        bed.signal(Signal::TERM);
        let image = bed.ended(true);
        assert!(!dumpe2fs(image.path()).contains("needs_recovery"));
        drop(file);
        let kernel = dioxide_testkit::Mount::ext4(image.path(), "ro");
        let found = fs::read(kernel.path().join("d/f")).unwrap();
        assert_eq!(found.len(), 500_000);
        check_pattern(3, 0, &found);
    }
}

/// More pages than the kernel has under way wait for their turn, for longer than a server goes on that was told to end.
#[test]
fn terminated_server_waits_for_what_the_kernel_has_of_open_files() {
    need_fuse!();
    for bed in each("max_background=1,max_threads=1") {
        let _open = scattered(&bed, 4096);
        bed.signal(Signal::TERM);
        let until = Instant::now() + SOON;
        while is_mounted(bed.root()) {
            assert!(Instant::now() < until, "it stays mounted");
            std::thread::sleep(Duration::from_micros(100));
        }
        bed.signal(Signal::STOP);
        std::thread::sleep(Duration::from_secs(4));
        bed.signal(Signal::CONT);
        let again = Bed::with(bed.ended(true), "ro");
        check_scattered(&again, 4096);
        again.finish();
    }
}

#[test]
fn killed_server_loses_nothing_that_was_synced() {
    need_fuse!();
    for bed in each("commit=300") {
        fs::create_dir(bed.at("d")).unwrap();
        let mut file = File::create(bed.at("d/synced")).unwrap();
        file.write_all(&pattern(4, 0, 1 << 20)).unwrap();
        fs::rename(bed.at("d/synced"), bed.at("d/renamed")).unwrap();
        file.sync_all().unwrap();
        File::open(bed.at("d")).unwrap().sync_all().unwrap();
        fs::write(bed.at("d/not"), pattern(5, 0, 1 << 20)).unwrap();
        drop(file);
        let image = bed.kill();
        assert!(dumpe2fs(image.path()).contains("needs_recovery"));
        let again = Bed::with(image, "");
        let found = fs::read(again.at("d/renamed")).unwrap();
        assert_eq!(found.len(), 1 << 20);
        check_pattern(4, 0, &found);
        again.finish();
    }
}

/// `SEEK_DATA` has the kernel write its pages, by requests of its own that the same server answers; who is killed answers none.
#[test]
fn server_that_is_killed_while_the_kernel_writes_pages_for_it_ends() {
    need_fuse!();
    for bed in each("") {
        let seeks = AtomicU64::new(0);
        let file = |thread: u64| File::create(bed.at(&format!("f{thread}"))).unwrap();
        let files: Vec<_> = (0..8).map(file).collect();
        let image = std::thread::scope(|scope| {
            for file in files {
                let seeks = &seeks;
                scope.spawn(move || {
                    for at in (0..16).cycle().map(|hole| hole << 16) {
                        let wrote = file.write_all_at(&[1; 4096], at);
                        if wrote.is_err() || rustix::fs::seek(&file, SeekFrom::Data(at)).is_err() {
                            break;
                        }
                        seeks.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let until = Instant::now() + SOON;
            while seeks.load(Ordering::Relaxed) < 300 {
                assert!(Instant::now() < until, "too few seeks");
                std::thread::sleep(Duration::from_millis(5));
            }
            bed.kill()
        });
        Bed::with(image, "").finish();
    }
}

/// Mounts, and kills the server; the root of the mount is open.
fn killed(image: &OsStr, dir: &Path, options: &str) -> File {
    let mut server = Command::new(env!("CARGO_BIN_EXE_dioxide"));
    server
        .args(["mount", "--background", "-o", options])
        .arg(image);
    let mut server = server.arg(dir).stdout(Stdio::piped()).spawn().unwrap();
    let out = server.stdout.as_mut().unwrap();
    out.read_exact(&mut [0; 8]).unwrap();
    let root = File::open(dir).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    root
}

/// "Transport endpoint is not connected": nothing on the mount works, and who is in it keeps it busy.
#[test]
fn mount_of_a_killed_server_is_detached_by_umount_and_by_the_next_mount() {
    need_fuse!();
    for transport in transports() {
        let _rings = (*transport == RINGS).then(|| Rings::set("Y"));
        let image = Image::builder().size(16 << 20).build();
        let dir = Point::new();
        let (disk, point) = (image.path().as_os_str(), dir.path().as_os_str());
        let said = |words: &[&OsStr], status: i32| {
            let output = dioxide().args(words).output().unwrap();
            let said = text(output.stderr);
            assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
            said
        };
        let (mount, umount) = ("mount".as_ref(), "umount".as_ref());

        let _root = killed(disk, dir.path(), transport);
        let stats = said(&["stats".as_ref(), point], 2);
        assert!(stats.contains("died; dioxide umount"), "{stats}");
        let detached = said(&[umount, point], 0);
        assert!(detached.contains("died: detached"), "{detached}");
        assert!(!is_mounted(dir.path()));
        said(&[umount, point], 2);

        let _root = killed(disk, dir.path(), transport);
        let recovered = said(&[mount, disk, point], 0);
        assert!(recovered.contains("died had left"), "{recovered}");
        fs::write(dir.path().join("f"), "x").unwrap();
        assert_eq!(said(&[umount, point], 0), "");
        assert!(!is_mounted(dir.path()));

        let options = format!("auto_unmount,{transport}");
        let _root = killed(disk, dir.path(), &options);
        let until = Instant::now() + SOON;
        while is_mounted(dir.path()) {
            assert!(Instant::now() < until, "it stays mounted");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(said(&[mount, disk, point], 0).matches("left").count(), 0);
        said(&[umount, point], 0);
        e2fsck_clean(image.path());
    }
}

/// The kernel does not tell the server of `syncfs`, but of `fsync` of the root.
#[test]
fn killed_server_loses_nothing_that_came_before_a_sync_of_the_root() {
    need_fuse!();
    for bed in each("commit=300") {
        fs::create_dir(bed.at("d")).unwrap();
        File::open(bed.at("d")).unwrap().sync_all().unwrap();
        fs::create_dir(bed.at("d/e")).unwrap();
        fs::write(bed.at("d/e/f"), pattern(6, 0, 1 << 20)).unwrap();
        File::open(bed.root()).unwrap().sync_all().unwrap();
        let again = Bed::with(bed.kill(), "");
        check_pattern(6, 0, &fs::read(again.at("d/e/f")).unwrap());
        again.finish();
    }
}

/// Linux waits for these on such a mount, and the kernel asks a FUSE server for nothing after them.
#[test]
fn attributes_and_flags_on_a_mount_with_sync_are_durable_when_they_are_set() {
    need_fuse!();
    for transport in transports() {
        let mut image = Image::builder().size(32 << 20).build();
        for words in [
            &["setfattr", "-n", "user.new", "-v", "value"][..],
            &["setfattr", "-x", "user.new"],
            &["chattr", "+d"],
        ] {
            let bed = Bed::with(image, &format!("{transport},sync,commit=300"));
            if !bed.at("f").exists() {
                File::create(bed.at("f")).unwrap().sync_all().unwrap();
            }
            run(limited(words[0]).args(&words[1..]).arg(bed.at("f")));
            let listed = |bed: &Bed| {
                let of = ["getfattr", "lsattr"].map(|tool| {
                    let mut tool = limited(tool);
                    run(tool.arg("f").current_dir(bed.root()))
                });
                of.concat()
            };
            let expected = listed(&bed);
            let again = Bed::with(bed.kill(), transport);
            assert_eq!(listed(&again), expected, "{words:?}");
            image = again.finish();
        }
    }
}

/// Nobody tells the server of the `syncfs` either by which `mv` makes sure of other file systems.
#[test]
fn what_mv_has_moved_to_a_mount_is_there_though_the_server_is_killed() {
    need_fuse!();
    let tree = tempfile::tempdir().unwrap();
    fs::create_dir_all(tree.path().join("d/e")).unwrap();
    fs::write(tree.path().join("d/e/f"), pattern(8, 0, 1 << 20)).unwrap();
    std::os::unix::fs::symlink("e", tree.path().join("d/link")).unwrap();
    fs::write(tree.path().join("g"), "g").unwrap();
    for bed in each("commit=300") {
        let from = Image::builder().source(tree.path()).build();
        let at = |name: &str| format!("{}:/{name}", from.path().display());
        run(dioxide().args(["mv", &at("d"), &at("g")]).arg(bed.root()));
        let again = Bed::with(bed.kill(), "");
        check_pattern(8, 0, &fs::read(again.at("d/e/f")).unwrap());
        assert_eq!(fs::read_link(again.at("d/link")).unwrap(), Path::new("e"));
        assert_eq!(fs::read(again.at("g")).unwrap(), b"g");
        again.finish();
        let left = dioxide().args(["ls", "-A", &at("")]).output().unwrap();
        assert_eq!(text(left.stdout), "lost+found\n");
        e2fsck_clean(from.path());
    }
}

/// Writes every second page of so many to a new file, which stays open: the kernel writes each back by a request of its own.
fn scattered(bed: &Bed, pages: u64) -> File {
    let file = File::create(bed.at("f")).unwrap();
    for page in (0..pages).step_by(2) {
        file.write_all_at(&pattern(7, page << 12, 4096), page << 12)
            .unwrap();
    }
    file
}

/// The same pages are in the file.
#[track_caller]
fn check_scattered(bed: &Bed, pages: u64) {
    let found = fs::read(bed.at("f")).unwrap();
    assert_eq!(found.len() as u64, (pages - 1) << 12);
    for (page, found) in found.chunks(4096).enumerate().step_by(2) {
        check_pattern(7, (page as u64) << 12, found);
    }
}

/// What the kernel has not written yet, and what waits for its turn to be, though `syncfs` has returned. Of the times, which only that hands
/// over, the recipe loses none.
#[test]
fn sync_of_the_root_has_the_kernel_write_files_that_are_open() {
    need_fuse!();
    for handed_over in [false, true] {
        for bed in each("commit=300,max_background=1,max_threads=1") {
            let open = scattered(&bed, 1024);
            let root = File::open(bed.root()).unwrap();
            if handed_over {
                rustix::fs::syncfs(&root).unwrap();
            }
            root.sync_all().unwrap();
            let modified = open.metadata().unwrap().modified().unwrap();
            let bed = Bed::with(bed.kill(), "");
            check_scattered(&bed, 1024);
            if handed_over {
                let kept = fs::metadata(bed.at("f")).unwrap().modified().unwrap();
                assert_eq!(kept, modified);
            }
            bed.finish();
        }
    }
}

/// Who has mapped a file may write to it without having it open.
#[test]
fn sync_of_the_root_has_the_kernel_write_files_that_are_mapped() {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    need_fuse!();
    const LEN: usize = 3 * 4096;
    for bed in each("commit=300") {
        let mut open = File::options();
        let file = open.read(true).write(true).create(true).open(bed.at("f"));
        let file = file.unwrap();
        file.set_len(LEN as u64).unwrap();
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: it is a new mapping, which nothing else knows of.
        let start = unsafe { mmap(std::ptr::null_mut(), LEN, access, flags, &file, 0) };
        let start = start.unwrap().cast::<u8>();
        drop(file);
        // It goes on after it was synced.
        for seed in 0..2 {
            let data = pattern(seed, 0, LEN);
            // SAFETY: so long it is, and nobody else looks at it.
            unsafe { start.copy_from_nonoverlapping(data.as_ptr(), LEN) };
            File::open(bed.root()).unwrap().sync_all().unwrap();
        }
        let again = Bed::with(bed.kill(), "");
        // SAFETY: nobody uses it any more.
        unsafe { munmap(start.cast(), LEN) }.unwrap();
        check_pattern(1, 0, &fs::read(again.at("f")).unwrap());
        again.finish();
    }
}

#[test]
fn mount_that_is_to_read_only_writes_nothing() {
    need_fuse!();
    let bed = Bed::new("");
    fs::write(bed.at("f"), "x").unwrap();
    let image = bed.finish();
    let before = fs::read(image.path()).unwrap();
    let bed = Bed::with(image, "ro");
    assert_eq!(fs::read_to_string(bed.at("f")).unwrap(), "x");
    for refused in [fs::write(bed.at("f"), "y"), fs::remove_file(bed.at("f"))] {
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EROFS));
    }
    let image = bed.finish();
    assert!(
        before == fs::read(image.path()).unwrap(),
        "the image has changed"
    );
}

/// Whoever has a request under way then gets an error, and the server ends.
#[test]
fn connection_that_is_aborted_ends_the_server_and_the_image_is_closed() {
    need_fuse!();
    for bed in each("") {
        fs::write(bed.at("f"), "x").unwrap();
        File::open(bed.at("f")).unwrap().sync_all().unwrap();
        // Its connection's number is that of its device.
        let device = rustix::fs::minor(fs::metadata(bed.root()).unwrap().dev());
        let control = tempfile::tempdir().unwrap();
        let own = control.path();
        run(limited("mount").args(["-t", "fusectl", "none"]).arg(own));
        let aborted = fs::write(own.join(device.to_string()).join("abort"), "1");
        run(limited("umount").arg(own));
        aborted.unwrap();
        assert!(fs::metadata(bed.at("f")).is_err());
        bed.ended(true);
    }
}

/// A disk that has no room for the image's journal: what it holds of the image was zeros.
#[test]
fn file_system_that_has_failed_takes_nothing_more_and_says_so_at_the_end() {
    need_fuse!();
    for transport in transports() {
        let disk = Point::new();
        let mut mount = limited("mount");
        run(mount
            .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
            .arg(disk.path()));
        let (image, dir) = (disk.path().join("image"), Point::new());
        let file = File::create(&image).unwrap();
        file.set_len(64 << 20).unwrap();
        run(dioxide().arg("mkfs").arg(&image));
        let options = format!("{transport},errors=continue,commit=300");
        let options = ["mount", "-o", NO_RINGS, "-o", &options];
        run(dioxide().args(options).args([&image, dir.path()]));
        let mut file = File::create(dir.path().join("f")).unwrap();
        file.write_all(b"before").unwrap();
        file.sync_all().unwrap();
        let mut fill = limited("dd");
        let fill = fill.args(["if=/dev/zero", "of=full", "bs=4k", "status=none"]);
        assert!(!fill.current_dir(disk.path()).status().unwrap().success());
        let until = Instant::now() + SOON;
        let root = File::open(dir.path()).unwrap();
        let mut made = 0;
        while asked(dir.path())["failure"].is_null() {
            assert!(Instant::now() < until, "it does not fail");
            for _ in 0..100 {
                let _ = fs::create_dir(dir.path().join(made.to_string()));
                made += 1;
            }
            let _ = root.sync_all();
        }
        let failure = asked(dir.path())["failure"].clone();
        let failure = failure.as_str().unwrap();
        // What the kernel knew of the file holds for a second.
        let refused = loop {
            match file.write_all(b"after") {
                Ok(()) => std::thread::sleep(Duration::from_millis(100)),
                Err(error) => break error,
            }
            assert!(Instant::now() < until, "it takes more and more");
        };
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        // Who asks for the attributes otherwise does not make it take more.
        let _ = fs::metadata(dir.path().join("f"));
        assert!(file.write_all(b"after").is_err());
        drop((file, root));
        let ended = patiently(dioxide().arg("umount").arg(dir.path()));
        let said = text(ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(said.contains(failure) && said.contains("could not close"));
        assert!(!is_mounted(dir.path()));
    }
}

/// Without a journal, what was written last comes to the disk when the image is closed.
#[test]
fn umount_tells_whether_the_server_has_closed_the_image() {
    need_fuse!();
    for features in ["", "^has_journal"] {
        let disk = Point::new();
        run(limited("mount")
            .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
            .arg(disk.path()));
        let (image, dir) = (disk.path().join("image"), Point::new());
        let file = File::create(&image).unwrap();
        file.set_len(64 << 20).unwrap();
        run(dioxide().args(["mkfs", "-O", features]).arg(&image));
        let mount = || {
            let options = ["mount", "-o", NO_RINGS, "-o", "commit=300"];
            run(dioxide().args(options).args([&image, dir.path()]));
            for n in 0..500 {
                fs::create_dir(dir.path().join(n.to_string())).unwrap();
            }
        };
        let umount = || {
            let ended = patiently(dioxide().arg("umount").arg(dir.path()));
            (ended.status.code(), text(ended.stderr))
        };
        mount();
        let full = disk.path().join("full");
        let filled = fs::write(&full, vec![1; 8 << 20]);
        assert!(filled.is_err());
        let (status, said) = umount();
        assert_eq!(status, Some(2), "{features}: {said}");
        assert!(said.contains("could not close"), "{said}");
        fs::remove_file(&full).unwrap();
        run(dioxide()
            .arg("mkfs")
            .arg("-F")
            .args(["-O", features])
            .arg(&image));
        mount();
        assert_eq!(umount(), (Some(0), String::new()), "{features}");
    }
}
