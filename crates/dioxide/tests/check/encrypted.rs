//! Encrypted directories, which the kernel makes: their names are any bytes.

use crate::subject::{e2fsck, report};
use dioxide::resize::{ResizeOptions, Step, minimum, resize_telling};
use dioxide_testkit::{Image, need_root};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Adds a key by `FS_IOC_ADD_ENCRYPTION_KEY`, and has the directories that are named encrypt with it by
/// `FS_IOC_SET_ENCRYPTION_POLICY`. Without fscrypt, or a cipher of it, the first of them fails.
const ENCRYPT: &str = r#"
    my $key = pack("C64", 0 .. 63);
    my $add = pack("L2 x32 L L x32", 2, 0, length $key, 0) . $key;
    open(my $root, "<", shift) or exit 3;
    defined ioctl($root, 0xc0506617, $add) or exit 4;
    my $policy = pack("C4 x4 a16", 2, 1, 4, 2, substr($add, 8, 16));
    for my $name (@ARGV) {
        open(my $dir, "<", $name) or exit 3;
        defined ioctl($dir, 0x800c6613, $policy) or exit 5;
    }
"#;

/// Whether the kernel did it.
fn encrypt(root: &Path, dirs: &[PathBuf]) -> bool {
    let mut perl = Command::new("perl");
    let status = perl.args(["-e", ENCRYPT]).arg(root).args(dirs).status();
    match status.expect("perl").code() {
        Some(0) => true,
        Some(4 | 5) => false,
        code => panic!("{code:?}"),
    }
}

/// Encrypted directories in several groups, one with an index; false without fscrypt.
fn fill(root: &Path) -> bool {
    let dirs: Vec<PathBuf> = (0..8).map(|n| root.join(format!("dir{n}"))).collect();
    for dir in &dirs {
        fs::create_dir(dir).expect("a directory");
    }
    if !encrypt(root, &dirs) {
        return false;
    }
    let long = "L".repeat(100);
    for (number, dir) in (0..).zip(&dirs) {
        for n in 0..20u8 {
            let bytes = vec![n ^ number; 3000 * usize::from(n)];
            fs::write(dir.join(format!("{long}{n}")), bytes).expect("room");
        }
        fs::create_dir(dir.join("sub")).expect("a directory");
        fs::write(dir.join("sub/file"), "below").expect("room");
        symlink("short", dir.join("fast")).expect("a link");
        symlink(&long, dir.join("slow")).expect("a link");
    }
    let many = dirs.last().expect("a directory");
    for n in 0..400 {
        fs::write(many.join(format!("{long}-{n}")), []).expect("room");
    }
    true
}

/// Targets and contents by path.
fn seen(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut seen = BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            let kind = fs::symlink_metadata(&path).expect("its inode").file_type();
            let held = if kind.is_dir() {
                dirs.push(path.clone());
                Vec::new()
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).expect("a target");
                target.into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).expect("its content")
            };
            let name = path.strip_prefix(root).expect("it is below").to_owned();
            seen.insert(name, held);
        }
    }
    seen
}

fn assert_clean(image: &Image) {
    let (status, text) = e2fsck(image.path());
    assert_eq!(status, 0, "{text}");
    let report = report(image.path());
    let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.is_clean() && found.is_empty(), "{found:#?}");
}

#[test]
fn encrypted_directories_are_clean_and_the_same_after_shrinking() {
    need_root!();
    for features in ["encrypt,^flex_bg", "encrypt,^flex_bg,^has_journal"] {
        // Without flex_bg each directory of the root goes to a group of its own.
        let image = Image::builder().size(48 << 20).block_size(1024);
        let image = image.features(features).args(&["-N", "6144"]).build();
        let before = image.populate_with_kernel(|root| fill(root).then(|| seen(root)));
        let Some(before) = before else {
            eprintln!("skipped: needs a kernel with fscrypt");
            return;
        };
        assert!(before.len() > 8 * 24 + 400);
        assert_clean(&image);
        shrink(&image);
        assert_clean(&image);
        let after = image.populate_with_kernel(|root| {
            assert!(encrypt(root, &[]), "the key is taken again");
            seen(root)
        });
        assert!(before == after, "{features}");
    }
}

/// To the smallest size: blocks and inodes move.
fn shrink(image: &Image) {
    let options = ResizeOptions::default();
    let least = minimum(image.path(), &options).expect("there is one");
    let mut moved = [false; 2];
    let resized = resize_telling(image.path(), Some(least), &options, &mut |step, _, _| {
        moved[0] |= step == Step::Inodes;
        moved[1] |= step == Step::Blocks;
    });
    resized.expect("it shrinks");
    assert_eq!(moved, [true; 2]);
}
