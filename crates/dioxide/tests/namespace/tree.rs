//! A tree with everything in it that a file system can hold.

use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// How much of it.
#[derive(Clone, Copy)]
pub struct Amount {
    /// Entries of the large directory.
    pub entries: u32,
    /// Blocks of the fragmented file, every second of them a hole.
    pub fragments: u64,
    /// Whether attributes may be longer than a block.
    pub long_xattrs: bool,
}

/// Fills a mounted file system with blocks of `block` bytes.
pub fn fill(root: &Path, block: u64, amount: Amount) {
    names(root);
    links(root);
    devices(root);
    files(root, block, amount.fragments);
    modes_and_times(root);
    xattrs(root, amount.long_xattrs);
    acls(root);
    large_dir(&root.join("large"), amount.entries);
    holey_dir(&root.join("holey"));
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn names(root: &Path) {
    let dir = root.join("names");
    fs::create_dir(&dir).expect("a new directory");
    for name in [
        &b"with space"[..],
        b"new\nline",
        b"\xFF\xFEbytes",
        "übung".as_bytes(),
        b".hidden",
        b"a",
    ] {
        write(&dir.join(OsStr::from_bytes(name)), name);
    }
    write(&dir.join("n".repeat(255)), b"255");
    let mut deep = dir;
    for level in 0..20 {
        deep = deep.join(format!("level{level}"));
        fs::create_dir(&deep).expect("a new directory");
    }
    write(&deep.join("bottom"), b"down here");
}

fn links(root: &Path) {
    let dir = root.join("links");
    fs::create_dir(&dir).expect("a new directory");
    write(&dir.join("target"), b"the target");
    let to_link =
        |target: &str, name: &str| symlink(target, dir.join(name)).expect("a new symlink");
    to_link("target", "fast");
    to_link("/links/target", "absolute");
    to_link("../links/./target", "dotted");
    to_link("..", "up");
    to_link("missing", "dangling");
    to_link("loop2", "loop1");
    to_link("loop1", "loop2");
    for len in [58, 59, 60, 61, 150, 1000] {
        to_link(&"x".repeat(len), &format!("len{len}"));
    }
    // Forty in a row are followed, one more is not.
    to_link("target", "chain0");
    for at in 1..=41 {
        to_link(&format!("chain{}", at - 1), &format!("chain{at}"));
    }
    fs::hard_link(dir.join("target"), dir.join("hard1")).expect("a hard link");
    fs::hard_link(dir.join("target"), root.join("hard2")).expect("a hard link");
}

fn devices(root: &Path) {
    let dir = root.join("devices");
    fs::create_dir(&dir).expect("a new directory");
    let node = |name: &str, kind, device| {
        mknodat(
            CWD,
            dir.join(name),
            kind,
            Mode::from_raw_mode(0o640),
            device,
        )
        .expect("mknod");
    };
    node("null", FileType::CharacterDevice, makedev(1, 3));
    node("far", FileType::BlockDevice, makedev(259, 70000));
    node("wide", FileType::CharacterDevice, makedev(4000, 5));
    node("fifo", FileType::Fifo, 0);
    node("socket", FileType::Socket, 0);
}

fn files(root: &Path, block: u64, fragments: u64) {
    let dir = root.join("files");
    fs::create_dir(&dir).expect("a new directory");
    for len in [0usize, 1, 59, 60, 61, 100, 150, 1000, 5000, 70_000] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
        write(&dir.join(format!("len{len}")), &bytes);
    }
    let new = |name: &str| File::create(dir.join(name)).expect("a new file");
    let sparse = new("sparse");
    for at in [0, 7, 300, 5000, 70_000, 262_143, 262_144, 300_000] {
        sparse
            .write_all_at(&vec![7; block as usize], at * block)
            .expect("room");
    }
    sparse.set_len(301_000 * block).expect("a longer file");
    let fragmented = new("fragmented");
    for at in 0..fragments {
        fragmented
            .write_all_at(&[at as u8 | 1; 512], 2 * at * block)
            .expect("room");
    }
    // Indirect maps have no unwritten blocks: fallocate is refused there.
    let unwritten = new("unwritten");
    let wanted = rustix::fs::fallocate(
        &unwritten,
        rustix::fs::FallocateFlags::empty(),
        0,
        40 * block,
    );
    if wanted.is_ok() {
        unwritten
            .write_all_at(&vec![9; block as usize], 10 * block)
            .expect("room");
        let beyond = new("beyond-eof");
        beyond.write_all_at(b"short", 0).expect("room");
        rustix::fs::fallocate(
            &beyond,
            rustix::fs::FallocateFlags::KEEP_SIZE,
            0,
            20 * block,
        )
        .expect("fallocate");
    }
}

fn modes_and_times(root: &Path) {
    let dir = root.join("modes");
    fs::create_dir(&dir).expect("a new directory");
    for mode in [0o000, 0o644, 0o4755, 0o2755, 0o6711, 0o1777] {
        let path = dir.join(format!("{mode:o}"));
        write(&path, b"");
        chown(&path, Some(100_000 + mode), Some(70_000)).expect("chown");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
    }
    let epoch = SystemTime::UNIX_EPOCH;
    let times = [
        ("y2040", epoch + Duration::new(2_208_988_800, 123_456_789)),
        ("y1960", epoch - Duration::new(300_000_000, 1)),
        ("y1999", epoch + Duration::new(941_000_000, 999_999_999)),
    ];
    for (name, time) in times {
        write(&dir.join(name), b"");
        let file = File::options()
            .write(true)
            .open(dir.join(name))
            .expect("it was just made");
        let both = fs::FileTimes::new().set_accessed(time).set_modified(time);
        file.set_times(both).expect("utimens");
    }
}

fn set(path: &Path, name: &str, value: &[u8]) {
    setxattr(path, name, value, XattrFlags::empty())
        .unwrap_or_else(|error| panic!("{} {name}: {error}", path.display()));
}

fn xattrs(root: &Path, long: bool) {
    let dir = root.join("xattrs");
    fs::create_dir(&dir).expect("a new directory");
    set(&dir, "user.on.directory", b"yes");
    let file = |name: &str| {
        let path = dir.join(name);
        write(&path, b"content");
        path
    };
    let small = file("small");
    set(&small, "user.one", b"1");
    set(&small, "trusted.two", b"22");
    set(&small, "security.three", b"333");
    set(&small, "user.empty", b"");
    let many = file("many");
    for at in 0..12 {
        set(&many, &format!("user.number{at}"), &[at; 40]);
    }
    // Two files with the same attributes share a block.
    for name in ["shared1", "shared2"] {
        let path = file(name);
        set(&path, "user.big", &[5; 600]);
    }
    set(
        &file("capable"),
        "security.capability",
        &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    );
    if long {
        let path = file("long");
        set(
            &path,
            "user.long",
            &(0..30_000u32).map(|i| i as u8).collect::<Vec<_>>(),
        );
        set(&path, "user.short", b"s");
    }
}

fn acls(root: &Path) {
    let dir = root.join("acls");
    fs::create_dir(&dir).expect("a new directory");
    write(&dir.join("file"), b"");
    let mut acl = 2u32.to_le_bytes().to_vec();
    let entries = [
        (0x01u16, 7u16, u32::MAX),
        (0x02, 5, 1234),
        (0x04, 5, u32::MAX),
        (0x08, 4, 99_999),
        (0x10, 5, u32::MAX),
        (0x20, 0, u32::MAX),
    ];
    for (tag, perm, id) in entries {
        acl.extend(tag.to_le_bytes());
        acl.extend(perm.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    set(&dir.join("file"), "system.posix_acl_access", &acl);
    set(&dir, "system.posix_acl_default", &acl);
    write(&dir.join("heir"), b"");
}

fn large_dir(dir: &Path, entries: u32) {
    fs::create_dir(dir).expect("a new directory");
    for at in 0..entries {
        write(
            &dir.join(format!("entry-{at:06}-{}", "é".repeat(at as usize % 9))),
            b"",
        );
    }
}

/// A directory whose blocks have unused entries, and one that is empty.
fn holey_dir(dir: &Path) {
    fs::create_dir(dir).expect("a new directory");
    for at in 0..600 {
        write(&dir.join(format!("gone-or-not-{at}")), b"");
    }
    for at in (0..600).filter(|at| at % 3 != 0) {
        fs::remove_file(dir.join(format!("gone-or-not-{at}"))).expect("it was just made");
    }
    fs::create_dir(dir.join("empty")).expect("a new directory");
}
