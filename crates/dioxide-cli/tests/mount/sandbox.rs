//! A server in a sandbox.

use crate::bed::{Bed, Point, dioxide, is_mounted, limited, run, text};
use crate::need_fuse;
use dioxide_testkit::{Image, check_pattern, e2fsck_clean, pattern, soaks};
use rustix::process::Signal;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;

/// What is said of every thread of a process.
fn each_thread(pid: u32, wanted: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let threads = tasks.map(|task| {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        assert!(status.contains(wanted), "{wanted} is not in:\n{status}");
    });
    threads.count()
}

fn work(bed: &Bed) {
    fs::create_dir(bed.at("d")).unwrap();
    let mut file = File::create(bed.at("d/f")).unwrap();
    file.write_all(&pattern(7, 0, 3 << 20)).unwrap();
    file.sync_all().unwrap();
    fs::rename(bed.at("d/f"), bed.at("d/g")).unwrap();
    fs::hard_link(bed.at("d/g"), bed.at("h")).unwrap();
    std::os::unix::fs::symlink("d/g", bed.at("link")).unwrap();
    let found = fs::read(bed.at("link")).unwrap();
    check_pattern(7, 0, &found);
    let mut direct = File::options();
    direct.read(true).write(true).custom_flags(libc::O_DIRECT);
    let direct = direct.open(bed.at("h")).unwrap();
    let mut buf = dioxide::Buf::zeroed(4096);
    direct.write_all_at(&buf, 8192).unwrap();
    direct.read_exact_at(&mut buf, 4096).unwrap();
    check_pattern(7, 4096, &buf);
    // It takes a thread that is made for it.
    File::open(bed.root()).unwrap().sync_all().unwrap();
    run(limited("setfattr")
        .args(["-n", "user.a", "-v", "b"])
        .arg(bed.at("h")));
    run(limited("fallocate")
        .args(["-p", "-o", "0", "-l", "4096"])
        .arg(bed.at("h")));
    run(limited("truncate").args(["-s", "1M"]).arg(bed.at("h")));
    fs::remove_file(bed.at("d/g")).unwrap();
    assert_eq!(fs::read_dir(bed.at("d")).unwrap().count(), 0);
    let told = run(limited("stat").args(["-f", "-c", "%l"]).arg(bed.root()));
    assert_eq!(told.trim(), "255");
}

#[test]
fn server_in_a_sandbox_works_with_every_backend() {
    need_fuse!();
    for backend in ["auto", "pread", "mmap", "uring"] {
        let bed = Bed::new(&format!("sandbox,backend={backend}"));
        work(&bed);
        let threads = each_thread(bed.pid(), "Seccomp:\t2");
        assert!(threads > 2, "{threads} threads");
        each_thread(bed.pid(), "NoNewPrivs:\t1");
        bed.finish();
    }
}

#[test]
fn server_in_a_sandbox_ends_when_it_is_told_to() {
    need_fuse!();
    for open in [false, true] {
        let bed = Bed::new("sandbox");
        let file = File::create(bed.at("f")).unwrap();
        let file = open.then_some(file);
        bed.signal(Signal::TERM);
        let dir = bed.root().to_owned();
        bed.ended(true);
        assert!(!is_mounted(&dir));
        drop(file);
    }
}

#[test]
fn image_that_was_not_closed_is_recovered_and_then_confined() {
    need_fuse!();
    let bed = Bed::new("commit=300");
    let file = File::create(bed.at("gone")).unwrap();
    file.sync_all().unwrap();
    // An orphan: freeing it starts the journal's thread.
    fs::remove_file(bed.at("gone")).unwrap();
    File::open(bed.root()).unwrap().sync_all().unwrap();
    let image = bed.kill();
    drop(file);
    let again = Bed::with(image, "sandbox");
    each_thread(again.pid(), "Seccomp:\t2");
    assert!(!again.at("gone").exists());
    fs::write(again.at("f"), "x").unwrap();
    again.finish();
}

#[track_caller]
fn refused(image: &Image, options: &str, why: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut mount = dioxide();
    mount
        .args(["mount", "-o", options])
        .args([image.path(), dir.path()]);
    let output = mount.output().unwrap();
    let said = text(output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(why), "{said}");
    assert!(!is_mounted(dir.path()));
    e2fsck_clean(image.path());
}

#[test]
fn sandbox_together_with_a_file_of_stats_is_refused() {
    need_fuse!();
    let image = Image::builder().size(16 << 20).build();
    refused(
        &image,
        "sandbox,stats=/tmp/dioxide-refused",
        "opens no files",
    );
}

/// Takes 11 s: so long whoever opens such an image looks for others.
#[test]
fn sandbox_for_an_image_that_a_thread_guards_is_refused_and_the_image_closed() {
    need_fuse!();
    if !soaks() {
        eprintln!("skipped: takes long, set DIOXIDE_SOAK");
        return;
    }
    let image = Image::builder().size(16 << 20).features("mmp").build();
    refused(&image, "sandbox", "multi-mount");
}

/// Runs `work` on a thread for which, and for whose programs, the kernel does not have a call.
fn without<T: Send>(call: libc::c_long, work: impl FnOnce() -> T + Send) -> T {
    let missing = SeccompAction::Errno(libc::ENOSYS as u32);
    let rules = BTreeMap::from([(call, Vec::new())]);
    let machine = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, missing, machine);
    let filter = BpfProgram::try_from(filter.unwrap()).unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            apply_filter(&filter).unwrap();
            work()
        });
        thread.join().expect("the filtered thread")
    })
}

/// Nobody answers the kernel yet, so that whoever unmounts must not ask it for pages. Without `seccomp`, Landlock is in force by then.
#[test]
fn sandbox_that_cannot_be_entered_is_told_and_nothing_stays_mounted() {
    need_fuse!();
    for (call, why) in [
        (libc::SYS_landlock_create_ruleset, "has no Landlock"),
        (libc::SYS_seccomp, "sandbox: "),
    ] {
        let image = Image::builder().size(16 << 20).build();
        let dir = Point::new();
        let mut mount = Command::new("timeout");
        mount.args(["-k", "1", "20", env!("CARGO_BIN_EXE_dioxide")]);
        mount.args(["mount", "-f", "--sandbox"]);
        mount.args([image.path(), dir.path()]);
        let output = without(call, || mount.output().unwrap());
        let said = text(output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why), "{said}");
        assert!(!is_mounted(dir.path()));
        e2fsck_clean(image.path());
    }
}

#[test]
fn sandbox_needs_no_root() {
    need_fuse!();
    if let Some(said) = crate::users::mount_as_nobody("--sandbox") {
        assert!(said.ends_with("\nx\n"), "{said}");
    }
}
