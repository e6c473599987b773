//! Encrypted directories, which the kernel makes: their names are any bytes.

use crate::damage::Oracle::Agrees;
use crate::damage::{Case, get32, one, put32, run};
use crate::subject::{Subject, codes, e2fsck, e2fsprogs, read_superblock, report};
use dioxide::check::Code;
use dioxide::format::dir::{self, DirEntry, DirFormat};
use dioxide::format::htree::{self, DxRoot, SIPHASH};
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

/// Names as long as encrypted ones.
const DIR: &str = "secret/a-directory-of-some-name";
const FAST: &str = "secret/a-fast-link-of-some-name";
const SLOW: &str = "secret/a-slow-link-of-some-name";
const CASEFOLD: u32 = 0x4000_0000;

fn file(number: usize) -> String {
    format!("secret/a-file-with-a-name-of-some-length-{number:04}")
}

/// Adds flags and a context, of the policy that a byte stands for, to an inode without attributes.
fn make_encrypted(raw: &mut [u8], policy: u8, flags: u32) {
    put32(raw, 0x20, get32(raw, 0x20) | 0x800 | flags);
    let area = &mut raw[128 + 32..];
    area.fill(0);
    put32(area, 0, 0xEA02_0000);
    let entries = &mut area[4..];
    (entries[0], entries[1], entries[2], entries[16]) = (1, 9, 52, b'c');
    put32(entries, 8, 40);
    let value = &mut entries[52..];
    value[..3].copy_from_slice(&[2, 1, 4]);
    value[8..24].fill(policy);
}

/// A directory of an index, with files of all kinds that are encrypted, as a kernel makes it: without one.
fn secret(flags: u32) -> Subject {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| tree.path().join(name);
    fs::create_dir_all(at(DIR)).expect("directories");
    let files: Vec<String> = (0..80).map(file).collect();
    for name in &files {
        fs::write(at(name), []).expect("a file");
    }
    symlink("x".repeat(18), at(FAST)).expect("a link");
    symlink("x".repeat(100), at(SLOW)).expect("a link");
    let image = Image::builder().size(24 << 20).block_size(1024);
    let features = "encrypt,casefold,^metadata_csum,^has_journal";
    let image = image.features(features).source(tree.path()).build();
    let (status, text) = e2fsprogs("e2fsck", &["-fyD"], image.path());
    assert!(status <= 1, "{text}");
    let sb = read_superblock(image.path());
    let subject = Subject { image, sb };
    for name in ["secret", DIR] {
        subject.edit_inode(subject.ino(name), |raw| make_encrypted(raw, 1, flags));
    }
    for name in [FAST, SLOW]
        .into_iter()
        .chain(files.iter().map(String::as_str))
    {
        subject.edit_inode(subject.ino(name), |raw| make_encrypted(raw, 1, 0));
    }
    subject.edit_inode(subject.ino(FAST), |raw| {
        raw[0x28..0x2A].copy_from_slice(&[16, 0])
    });
    subject.edit_block(subject.blocks(SLOW)[0], |block| {
        block[..2].copy_from_slice(&[98, 0]);
    });
    if flags == CASEFOLD {
        put_hashes(&subject);
    }
    subject
}

/// Of an encrypted directory that folds case, each entry holds its hash.
fn put_hashes(subject: &Subject) {
    let format = DirFormat::of(&subject.sb);
    let blocks = subject.blocks("secret");
    let root = subject.read(subject.at_block(blocks[0]), 1024);
    let root = DxRoot::parse(&root, &format).expect("an index");
    let version = root.hash_version(subject.sb.hash_is_unsigned());
    let version = version.expect("a hash that is known");
    for block in &blocks[1..] {
        subject.edit_block(*block, |bytes| {
            let old = bytes.to_vec();
            let entries: Vec<_> = dir::entries(&old, &format).map(Result::unwrap).collect();
            bytes.fill(0);
            let mut at = 0;
            for (number, entry) in (1..).zip(&entries) {
                let end = at + 8 + entry.name.len().next_multiple_of(4);
                let rec_len = match number == entries.len() {
                    true => bytes.len() - at,
                    false => end + 8 - at,
                };
                let entry = DirEntry {
                    offset: at,
                    rec_len,
                    ..*entry
                };
                entry.encode_into(bytes).expect("room");
                let hash = htree::hash(entry.name, version, subject.sb.hash_seed());
                put32(bytes, end, hash.major);
                put32(bytes, end + 4, hash.minor);
                at += rec_len;
            }
        });
    }
    subject.edit_block(blocks[0], |root| root[0x1C] = SIPHASH);
}

/// Both agree that nothing is wrong; what dioxide notes.
fn notes(subject: &Subject) -> Vec<Code> {
    let (status, text) = e2fsck(subject.path());
    assert_eq!(status, 0, "{text}");
    let found = report(subject.path());
    assert!(found.is_clean(), "{:#?}", found.findings);
    codes(&found)
}

const CASES: &[Case] = &[
    (
        "file that is not encrypted",
        Code::EntryInode,
        Agrees,
        |s| {
            s.edit_inode(s.ino(&file(7)), |raw| put32(raw, 0x20, 0x80000));
        },
    ),
    (
        "directory that is not encrypted",
        Code::EntryInode,
        Agrees,
        |s| {
            s.edit_inode(s.ino(DIR), |raw| put32(raw, 0x20, 0x80000));
        },
    ),
    (
        "link that is not encrypted",
        Code::EntryInode,
        Agrees,
        |s| {
            s.edit_inode(s.ino(FAST), |raw| {
                put32(raw, 0x20, 0);
                raw[0x28..0x2A].copy_from_slice(b"xx");
            });
        },
    ),
    ("another policy", Code::EntryInode, Agrees, |s| {
        s.edit_inode(s.ino(&file(7)), |raw| make_encrypted(raw, 2, 0));
    }),
    ("short name", Code::EntryName, Agrees, |s| {
        let name = file(7);
        let (_, name) = name.split_once('/').expect("a path");
        s.write(s.entry("secret", name) + 6, &[15]);
    }),
    ("name in another leaf", Code::HtreeHash, Agrees, |s| {
        let blocks = s.blocks("secret");
        let last = s.read(s.at_block(*blocks.last().expect("leaves")), 1024);
        let format = DirFormat::of(&s.sb);
        let is_file = |name: &[u8]| name.len() == file(0).len() - 7;
        let mut names = dir::entries(&last, &format).map(|entry| entry.unwrap().name);
        let other = names.find(|name| is_file(name)).expect("a file");
        s.edit_block(blocks[1], |bytes| {
            let old = bytes.to_vec();
            let mut entries = dir::entries(&old, &format).map(Result::unwrap);
            let entry = entries.find(|entry| is_file(entry.name)).expect("a file");
            bytes[entry.offset + 8..][..other.len()].copy_from_slice(other);
        });
    }),
    ("version of another hash", Code::HtreeRoot, Agrees, |s| {
        s.edit_block(s.blocks("secret")[0], |root| root[0x1C] = SIPHASH);
    }),
    ("length of a fast link", Code::SymlinkInvalid, Agrees, |s| {
        s.edit_inode(s.ino(FAST), |raw| raw[0x28] = 17);
    }),
    ("length of a slow link", Code::SymlinkInvalid, Agrees, |s| {
        s.edit_block(s.blocks(SLOW)[0], |block| block[0] = 97);
    }),
];

#[test]
fn damage_to_encrypted_directories_is_found_by_its_code_and_by_e2fsck() {
    let subject = secret(0);
    assert_eq!(notes(&subject), []);
    run(&subject, CASES);
}

#[test]
fn encrypted_directories_that_fold_case_are_clean_and_have_their_own_hash() {
    let subject = secret(CASEFOLD);
    assert_eq!(notes(&subject), [Code::NotChecked]);
    let resized = Subject {
        image: subject.image.copy(),
        sb: subject.sb.clone(),
    };
    let larger = resize_telling(
        resized.path(),
        Some(32 << 20),
        &ResizeOptions::default(),
        &mut |_, _, _| {},
    );
    larger.expect("it grows");
    assert_eq!(notes(&resized), [Code::NotChecked]);
    subject.edit_block(subject.blocks("secret")[0], |root| root[0x1C] = 1);
    one(&subject, "version", Code::HtreeRoot, Agrees);
}
