//! What a mount counts, and what it takes.

use crate::bed::{Bed, NO_RINGS, asked, dioxide, run, text, umount};
use crate::need_fuse;
use dioxide_testkit::Image;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

#[test]
fn stats_tell_of_each_request_that_came() {
    need_fuse!();
    let bed = Bed::new("nowriteback");
    let before = asked(bed.root());
    assert!(before["requests"]["write"].is_null(), "{before}");
    for round in 0..20 {
        fs::write(bed.at(&format!("f{round}")), vec![1; 4096]).unwrap();
    }
    File::open(bed.at("f3")).unwrap().sync_all().unwrap();
    let told = asked(bed.root());
    let write = &told["requests"]["write"];
    assert_eq!(write["count"], 20, "{told}");
    let times = ["p50_ns", "p99_ns", "p999_ns", "max_ns"].map(|name| write[name].as_u64().unwrap());
    assert!(times[0] > 0 && times.is_sorted(), "{write}");
    let bands = write["histogram"].as_array().unwrap();
    let counts = bands.iter().map(|band| band["count"].as_u64().unwrap());
    assert_eq!(counts.sum::<u64>(), 20, "{write}");
    assert_eq!(told["requests"]["create"]["count"], 20);
    assert_eq!(told["requests"]["fsync"]["count"], 1);
    let engine = |name: &str| told["engine"][name].as_u64().unwrap();
    assert!(
        engine("writes_shared") + engine("writes_exclusive") >= 20,
        "{told}"
    );
    assert!(engine("journal_commits") >= 1, "{told}");
    assert!(told["known_files"].as_u64().unwrap() >= 20, "{told}");
    let words = run(dioxide().arg("stats").arg(bed.root()));
    assert!(
        ["journal commits", "p99", "█"]
            .iter()
            .all(|part| words.contains(part)),
        "{words}"
    );
    bed.finish();
}

#[test]
fn stats_of_a_directory_that_is_no_mount_are_refused() {
    need_fuse!();
    let bed = Bed::new("");
    fs::create_dir(bed.at("d")).unwrap();
    for dir in [Path::new("/"), &bed.at("d")] {
        let output = dioxide().arg("stats").arg(dir).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let said = text(output.stderr);
        assert!(said.contains("no dioxide file system"), "{said}");
    }
    bed.finish();
}

#[test]
fn stats_file_is_there_from_the_beginning_and_has_the_end() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let image = Image::builder().size(32 << 20).build();
    let dir = home.path().join("dir");
    fs::create_dir(&dir).unwrap();
    // The server changes directory.
    run(dioxide()
        .args(["mount", "-o", NO_RINGS, "--stats", "told.json"])
        .args([image.path(), &dir])
        .current_dir(home.path()));
    let told = || -> Value {
        let json = fs::read(home.path().join("told.json")).expect("the file");
        serde_json::from_slice(&json).expect("whole JSON")
    };
    assert!(told()["requests"]["mkdir"].is_null());
    fs::create_dir(dir.join("d")).unwrap();
    umount(&dir);
    assert_eq!(told()["requests"]["mkdir"]["count"], 1);
    let left: Vec<_> = fs::read_dir(home.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn stats_file_replaces_regular_files_that_nobody_uses() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let image = Image::builder().size(16 << 20).build();
    let other = Image::builder().size(16 << 20).build();
    let (dir, pipe) = (home.path().join("dir"), home.path().join("pipe"));
    fs::create_dir(&dir).unwrap();
    run(crate::bed::limited("mkfifo").arg(&pipe));
    let _held = dioxide::Fs::open(other.path(), &dioxide::MountOptions::new()).unwrap();
    for (file, why) in [
        (image.path(), "is in use: "),
        (other.path(), "is in use: "),
        (&*pipe, "is no regular file"),
        (&*dir, "is no regular file"),
    ] {
        let output = dioxide()
            .args(["mount", "--stats"])
            .args([file, image.path(), &dir])
            .output()
            .unwrap();
        let said = text(output.stderr);
        let name = file.to_str().unwrap();
        assert!(said.contains(why) && said.contains(name), "{said}");
        assert_eq!(output.status.code(), Some(2));
        assert!(!crate::bed::is_mounted(&dir));
    }
    dioxide_testkit::e2fsck_clean(image.path());
    // What a killed process has left, and a link, are in nobody's way.
    let (told, link) = (home.path().join("told"), home.path().join("link"));
    fs::write(&told, "old").unwrap();
    std::os::unix::fs::symlink("told", &link).unwrap();
    run(dioxide()
        .args(["mount", "-o", NO_RINGS, "--stats"])
        .args([&*link, image.path(), &dir]));
    umount(&dir);
    assert!(link.is_symlink());
    let json = fs::read(&told).unwrap();
    assert!(serde_json::from_slice::<Value>(&json).is_ok());
}

#[test]
fn damage_that_a_mount_passes_over_is_told() {
    need_fuse!();
    // Where the allocator would look first.
    let image = Image::builder()
        .size(64 << 20)
        .args(&["-g", "8192"])
        .build();
    let groups = dioxide_testkit::dumpe2fs(image.path());
    let bitmap = groups
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Block bitmap at "))
        .filter_map(|rest| rest.split([' ', ',']).next()?.parse::<u64>().ok());
    let block_bytes = 4096;
    for block in bitmap.take(1) {
        let file = File::options().write(true).open(image.path()).unwrap();
        file.write_all_at(&[0x55; 64], block * block_bytes).unwrap();
    }
    let home = tempfile::tempdir().unwrap();
    run(dioxide()
        .args(["mount", "-o", NO_RINGS, "-o", "errors=continue"])
        .args([image.path(), home.path()]));
    fs::write(home.path().join("f"), [1; 100_000]).unwrap();
    File::open(home.path()).unwrap().sync_all().unwrap();
    let told = asked(home.path());
    let words = run(dioxide().arg("stats").arg(home.path()));
    umount(home.path());
    let first = told["damage"]["passed_over"][0]
        .as_str()
        .unwrap_or_default();
    assert!(first.contains("block bitmap"), "{told}");
    assert!(
        words.contains("damage passed over: ") && words.contains(first),
        "{words}"
    );
    let info = dioxide().arg("info").arg(image.path()).output().unwrap();
    let info = text(info.stdout);
    assert!(
        info.contains("errors were found") && info.contains("block bitmap"),
        "{info}"
    );
}

/// What a process has in memory, in KiB.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.and_then(|kib| kib.parse().ok()).expect("a number")
}

/// A file took 1.6 KiB when each that the kernel knew was an object.
#[test]
fn file_that_the_kernel_knows_takes_little_memory() {
    need_fuse!();
    const FILES: u64 = 50_000;
    let image = Image::builder()
        .size(64 << 20)
        .args(&["-N", "51000"])
        .build();
    let fs_ = dioxide::Fs::open(image.path(), &dioxide::MountOptions::new()).unwrap();
    let root = fs_.root().unwrap();
    let new = dioxide::NewFile::new(0o644);
    for dir in 0..FILES / 1000 {
        let dir = root.create_dir(format!("d{dir}").as_bytes(), &new).unwrap();
        for file in 0..999 {
            dir.create(format!("f{file}").as_bytes(), &new).unwrap();
        }
    }
    drop(root);
    fs_.close().unwrap();
    let bed = Bed::with(image, "");
    let count = |words: &[&str]| {
        let found = run(crate::bed::limited("find").arg(bed.root()).args(words));
        found.lines().count() as u64
    };
    // Caches of names and blocks, which have bounds of their own, fill up.
    assert_eq!(count(&["-maxdepth", "1", "-type", "d"]), FILES / 1000 + 2);
    let before = resident(bed.pid());
    assert_eq!(count(&["-newermt", "2001-01-01"]), FILES + 2);
    let told = asked(bed.root());
    assert!(
        told["known_files"].as_u64().unwrap() > FILES * 9 / 10,
        "{told}"
    );
    assert!(told["held_files"].as_u64().unwrap() < 2000, "{told}");
    let grown = (resident(bed.pid()) - before) * 1024;
    // Names in memory and cached blocks: 24 MiB, whatever the number of files.
    let bound = (24 << 20) + FILES * 64;
    assert!(grown < bound, "{} bytes for each file", grown / FILES);
    bed.finish();
}
