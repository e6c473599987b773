//! What a mount counts, and what it takes.

use crate::bed::{Bed, dioxide, run, text};
use crate::need_fuse;
use dioxide_testkit::Image;
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;

fn asked(dir: &Path) -> Value {
    let json = run(dioxide().args(["stats", "--json"]).arg(dir));
    serde_json::from_str(&json).expect("JSON")
}

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
        words.contains("journal commits") && words.contains("p99"),
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
        .args(["mount", "--stats", "told.json"])
        .args([image.path(), &dir])
        .current_dir(home.path()));
    let told = || -> Value {
        let json = fs::read(home.path().join("told.json")).expect("the file");
        serde_json::from_slice(&json).expect("whole JSON")
    };
    assert!(told()["requests"]["mkdir"].is_null());
    fs::create_dir(dir.join("d")).unwrap();
    run(dioxide().arg("umount").arg(&dir));
    assert_eq!(told()["requests"]["mkdir"]["count"], 1);
    let left: Vec<_> = fs::read_dir(home.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
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
