//! `dioxide resize` and `dioxide trim`: what they do, tell and refuse.

mod support;

use dioxide::{Fs, MountOptions, OpenOptions};
use dioxide_testkit::{Dir, Image, debugfs, e2fsck_clean, need_root};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use support::{command, dioxide, ends_soon, tell_to_end};

fn path(image: &Image) -> &str {
    image.path().to_str().expect("a path in UTF-8")
}

fn len_of(path: &Path) -> u64 {
    std::fs::metadata(path).expect("the image").len()
}

#[test]
fn resize_grows_and_shrinks_image_and_file() {
    let image = Image::builder().size(64 << 20).build();
    let ran = dioxide(["resize", path(&image), "100M"]);
    assert!(ran.text().contains("104857600 bytes"), "{}", ran.text());
    assert_eq!(len_of(image.path()), 100 << 20);
    e2fsck_clean(image.path());
    let told = dioxide(["resize", "--json", path(&image), "80M"]).json();
    assert_eq!(told["size_bytes"], 80 << 20);
    assert_eq!(told["size_bytes_before"], 100 << 20);
    assert_eq!(len_of(image.path()), 80 << 20);
    e2fsck_clean(image.path());
    let same = dioxide(["resize", path(&image)]);
    assert!(same.text().ends_with("as before\n"), "{}", same.text());
}

#[test]
fn resize_tells_the_bytes_of_a_name_that_is_not_utf_8() {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let image = Image::builder().size(64 << 20).build();
    let mut name = image.path().as_os_str().as_bytes().to_vec();
    name.push(b'\xff');
    let odd = std::path::PathBuf::from(std::ffi::OsString::from_vec(name));
    std::fs::rename(image.path(), &odd).expect("it is there");
    let words = ["resize", "--json", "--minimum"].map(std::ffi::OsStr::new);
    let told =
        [&words[..2], &words[..]].map(|words| dioxide(words.iter().chain([&odd.as_os_str()])));
    std::fs::rename(&odd, image.path()).expect("it is there");
    for told in told.map(|ran| ran.json()) {
        let hex = told["image_hex"].as_str().expect("the exact bytes");
        assert!(hex.ends_with("ff"), "{told}");
    }
    e2fsck_clean(image.path());
}

#[test]
fn resize_minimum_is_the_size_that_a_refusal_names() {
    let image = Image::builder().size(64 << 20).build();
    let least = dioxide(["resize", "--minimum", path(&image)]);
    let least = least.text().trim().to_owned();
    let refused = dioxide(["resize", path(&image), "8M"]);
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains(&least), "{}", refused.stderr);
    let told = dioxide(["resize", "--minimum", "--json", path(&image)]).json();
    assert_eq!(told["minimum_bytes"].to_string(), least);
    dioxide(["resize", path(&image), &least]).text();
    e2fsck_clean(image.path());
}

#[test]
fn resize_makes_it_as_small_as_can_be() {
    let image = Image::builder().size(256 << 20).build();
    let least = dioxide(["resize", "--minimum", path(&image)]);
    let told = dioxide(["resize", "-M", "--json", path(&image)]).json();
    assert_eq!(told["size_bytes"].to_string(), least.text().trim());
    assert!(len_of(image.path()) < 40 << 20);
    e2fsck_clean(image.path());
}

#[test]
fn resize_of_what_is_as_small_as_can_be_leaves_it_so() {
    let image = Image::builder().build();
    dioxide(["resize", "-M", path(&image)]).text();
    let before = fs::read(path(&image)).unwrap();
    let again = dioxide(["resize", "-M", path(&image)]);
    assert!(again.text().ends_with(" as before\n"), "{}", again.text());
    assert!(fs::read(path(&image)).unwrap() == before);
    e2fsck_clean(image.path());
}

#[test]
fn resize_of_what_is_not_clean_says_so() {
    let image = Image::builder().size(64 << 20).build();
    debugfs(image.path(), &["ssv state 0"]);
    let refused = dioxide(["resize", path(&image), "100M"]);
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("e2fsck"), "{}", refused.stderr);
    assert_eq!(len_of(image.path()), 64 << 20);
}

#[test]
fn resize_of_what_is_mounted_is_refused() {
    need_root!();
    let image = Image::builder().size(64 << 20).build();
    let mount = dioxide_testkit::Mount::ext4(image.path(), "");
    let refused = dioxide(["resize", path(&image), "100M"]);
    let minimum = dioxide(["resize", "--minimum", path(&image)]);
    mount.unmount();
    for refused in [refused, minimum] {
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        // And not that its journal has to be replayed.
        assert!(refused.stderr.contains("mounted on"), "{}", refused.stderr);
    }
    assert_eq!(len_of(image.path()), 64 << 20);
}

#[test]
fn trim_makes_holes_of_free_space() {
    let image = Image::builder().size(64 << 20).dir(Dir::Tmpfs).build();
    // Written in full, free blocks and all.
    let bytes = std::fs::read(image.path()).expect("the image");
    let filled: Vec<u8> = bytes;
    std::fs::remove_file(image.path()).expect("it goes");
    std::fs::write(image.path(), &filled).expect("it is written");
    let taken = |image: &Image| std::fs::metadata(image.path()).expect("it").blocks() * 512;
    let before = taken(&image);
    assert!(before >= 64 << 20);
    let part = dioxide([
        "trim",
        "--json",
        "--offset",
        "16M",
        "--length",
        "16M",
        path(&image),
    ]);
    let trimmed = part.json()["trimmed_bytes"].as_u64().expect("a number");
    assert!((1..=16 << 20).contains(&trimmed), "{trimmed}");
    assert_eq!(before - taken(&image), trimmed);
    let none = dioxide(["trim", "--min", "1G", path(&image)]);
    assert!(none.text().contains(" 0 bytes"), "{}", none.text());
    dioxide(["trim", path(&image)]).text();
    assert!(taken(&image) < 16 << 20, "{}", taken(&image));
    e2fsck_clean(image.path());
}

/// As a crash leaves it: the journal is to be replayed, and a file without names waits to be freed.
#[test]
fn what_is_to_be_recovered_is_told_by_trim_and_refused_by_resize() {
    let image = Image::builder().size(64 << 20).build();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let options = OpenOptions::new().write(true).create_new(true);
    let file = options.open(&fs, "/f").expect("it is made");
    fs.remove_file("/f").expect("it is there");
    fs.sync().expect("it is durable");
    let (left, twin) = (image.copy(), image.copy());
    drop(file);
    fs.close().expect("nobody has it");
    let refused = dioxide(["resize", path(&left), "100M"]);
    assert_eq!(refused.status, Some(2));
    assert!(
        refused.stderr.contains("`dioxide sync`"),
        "{}",
        refused.stderr
    );
    let synced = dioxide(["sync", path(&twin)]);
    let trimmed = dioxide(["trim", path(&left)]);
    let told = synced.stderr.replace(path(&twin), path(&left));
    let told = told.replace("dioxide: sync: ", "dioxide: trim: ");
    assert!(
        told.contains("replayed") && told.contains("1 orphans"),
        "{told}"
    );
    assert_eq!(trimmed.stderr, told);
    e2fsck_clean(left.path());
    e2fsck_clean(twin.path());
}

// The image stayed marked as in use.
#[test]
fn trim_that_is_interrupted_leaves_a_clean_image() {
    let groups = ["-g", "256", "-O", "^resize_inode"];
    let builder = Image::builder().size(64 << 20).block_size(1024);
    // Now and then it ends before the signal comes.
    for _ in 0..50 {
        let image = builder.clone().args(&groups).build();
        let mut child = command().args(["trim", path(&image)]).spawn().unwrap();
        tell_to_end(&mut child);
        let ended = ends_soon(&mut child);
        e2fsck_clean(image.path());
        match ended {
            Some(130) => return,
            ended => assert_eq!(ended, Some(0)),
        }
    }
    panic!("no signal ended it");
}

#[test]
fn trim_of_many_groups_is_that_of_all_at_once() {
    let many = || {
        let groups = ["-g", "256", "-O", "^resize_inode"];
        let builder = Image::builder().size(64 << 20).block_size(1024);
        builder.args(&groups).build()
    };
    let image = many();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert!(fs.superblock().group_count() > 200);
    let all = fs.trim(0..u64::MAX, 0).expect("it can be trimmed");
    fs.close().expect("nobody has it");
    let image = many();
    let trimmed = |args: &[&str]| {
        let args = [&["trim", "--json"], args, &[path(&image)]].concat();
        let told = dioxide(args).json();
        told["trimmed_bytes"].as_u64().expect("a number")
    };
    for beyond in ["64M", "1G", "16383P"] {
        assert_eq!(trimmed(&["--offset", beyond]), 0);
    }
    assert_eq!(trimmed(&["--length", "0"]), 0);
    let parts = [
        ["--offset", "0", "--length", "40000000"],
        ["--offset", "40000000", "--length", "16383P"],
    ];
    let parts = parts.map(|part| trimmed(&part));
    // A block may lie on both sides.
    assert!(
        (all - 1024..=all).contains(&(parts[0] + parts[1])),
        "{all}, {parts:?}"
    );
    assert_eq!(trimmed(&[]), all);
    e2fsck_clean(image.path());
}
