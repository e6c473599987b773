//! Trees with everything in them, and what the host sees of a tree.

use dioxide_pack::sink::folder::{FolderOptions, FolderSink};
use dioxide_pack::tar::write::TarSink;
use dioxide_pack::tar::{self, Compression, ReadOptions};
use dioxide_pack::{Result, Sink, Tree};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, SeekFrom, Timespec, Timestamps, XattrFlags,
    fallocate, lgetxattr, llistxattr, lsetxattr, makedev, mknodat, seek, utimensat,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the host sees of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, i64),
    pub device: u64,
    pub size: u64,
    pub target: Option<PathBuf>,
    /// Offset and bytes of what is data.
    pub data: Vec<(u64, Vec<u8>)>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first of its names.
    pub first: PathBuf,
}

/// A whole tree as the host sees it.
pub fn walk(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut found = BTreeMap::new();
    let mut firsts = BTreeMap::new();
    let mut left = vec![PathBuf::new()];
    while let Some(path) = left.pop() {
        let host = if path.as_os_str().is_empty() {
            root.into()
        } else {
            root.join(&path)
        };
        let metadata = fs::symlink_metadata(&host).unwrap();
        if metadata.is_dir() {
            left.extend(
                fs::read_dir(&host)
                    .unwrap()
                    .map(|entry| path.join(entry.unwrap().file_name())),
            );
        }
        let id = (metadata.dev(), metadata.ino());
        let first: &mut PathBuf = firsts.entry(id).or_insert_with(|| path.clone());
        *first = first.clone().min(path.clone());
        found.insert(path.clone(), (id, seen(&host, &metadata)));
    }
    let named = found.into_iter().map(|(path, (id, seen))| {
        let first = firsts[&id].clone();
        (path, Seen { first, ..seen })
    });
    named.collect()
}

fn seen(host: &Path, metadata: &fs::Metadata) -> Seen {
    let is_dir = metadata.is_dir();
    Seen {
        mode: metadata.mode(),
        owner: (metadata.uid(), metadata.gid()),
        mtime: (metadata.mtime(), metadata.mtime_nsec()),
        device: metadata.rdev(),
        size: if is_dir { 0 } else { metadata.size() },
        target: fs::read_link(host).ok(),
        data: if metadata.is_file() {
            data(host)
        } else {
            Vec::new()
        },
        xattrs: xattrs(host),
        first: PathBuf::new(),
    }
}

fn data(host: &Path) -> Vec<(u64, Vec<u8>)> {
    let file = File::open(host).unwrap();
    let mut found = Vec::new();
    let mut at = 0;
    while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
        at = seek(&file, SeekFrom::Hole(start)).unwrap();
        let mut bytes = vec![0; (at - start) as usize];
        file.read_exact_at(&mut bytes, start).unwrap();
        found.push((start, bytes));
    }
    found
}

fn xattrs(host: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 1 << 16];
    let len = llistxattr(host, &mut names[..]).unwrap();
    let names = names[..len]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 1 << 16];
        let len = lgetxattr(host, OsStr::from_bytes(name), &mut value[..]).unwrap();
        value.truncate(len);
        value
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

/// Compares two trees, and names what differs.
#[track_caller]
pub fn assert_same(found: &BTreeMap<PathBuf, Seen>, expected: &BTreeMap<PathBuf, Seen>) {
    let paths = |tree: &BTreeMap<PathBuf, Seen>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(paths(found), paths(expected));
    for (path, seen) in found {
        let (mut a, mut b) = (seen.clone(), expected[path].clone());
        if a.data != b.data {
            let spans = |seen: &Seen| {
                seen.data
                    .iter()
                    .map(|(at, bytes)| *at..*at + bytes.len() as u64)
                    .collect::<Vec<_>>()
            };
            assert_eq!(spans(&a), spans(&b), "data of {}", path.display());
            panic!("bytes of {} differ", path.display());
        }
        (a.data, b.data) = (vec![], vec![]);
        assert_eq!(a, b, "{}", path.display());
    }
}

/// What [`fill`] leaves out.
#[derive(Clone, Copy, Default)]
pub struct Without {
    pub sockets: bool,
    pub xattrs: bool,
    pub sparse: bool,
}

/// An access control list with a user and a group: of six entries.
pub fn acl() -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, perm, id) in [
        (1u16, 6u16, none),
        (2, 4, 54_321),
        (4, 4, none),
        (8, 6, 54_322),
        (0x10, 6, none),
        (0x20, 4, none),
    ] {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn set(path: &Path, name: &str, value: &[u8]) {
    lsetxattr(path, name, value, XattrFlags::empty())
        .unwrap_or_else(|e| panic!("{name} of {}: {e}", path.display()));
}

/// Fills a directory with everything; takes root.
pub fn fill(root: &Path, without: Without) {
    let write = |name: &str, bytes: &[u8]| fs::write(root.join(name), bytes).unwrap();
    for dir in ["dir", "dir/deep", "dir-x", "sticky", "z"] {
        fs::create_dir(root.join(dir)).unwrap();
    }
    write("empty", b"");
    write("small", b"hello\n");
    write("dir/block", &dioxide_testkit::pattern(1, 0, 512));
    write(
        "dir/deep/large",
        &dioxide_testkit::pattern(2, 0, (3 << 20) + 17),
    );
    write(&format!("z/{}", "n".repeat(255)), b"long name");
    let long = format!("dir/{}", "d".repeat(200));
    fs::create_dir(root.join(&long)).unwrap();
    write(&format!("{long}/{}", "e".repeat(120)), b"long path");
    fs::write(root.join(OsStr::from_bytes(b"odd\xff\n=%name")), "odd").unwrap();
    for (name, len) in [
        ("fast", 20),
        ("slow", 99),
        ("slower", 100),
        ("slowest", 101),
        ("longest", 1000),
    ] {
        symlink("x".repeat(len), root.join("z").join(name)).unwrap();
    }
    symlink("../../outside", root.join("up")).unwrap();
    symlink("dir", root.join("to-dir")).unwrap();
    fs::hard_link(root.join("small"), root.join("a-link")).unwrap();
    fs::hard_link(root.join("small"), root.join("z/link")).unwrap();
    fs::hard_link(root.join("up"), root.join("z/link-to-symlink")).unwrap();
    if !without.sparse {
        sparse(root);
    }
    nodes(root, without);
    fs::hard_link(root.join("fifo"), root.join("z/fifo2")).unwrap();
    if !without.xattrs {
        attributes(root);
    }
    for (name, mode) in [
        ("small", 0o4751),
        ("sticky", 0o1777),
        ("dir-x", 0o2750),
        ("empty", 0),
    ] {
        fs::set_permissions(root.join(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    for (name, uid, gid) in [
        ("dir", 1, 2),
        ("small", 1000, 1000),
        ("up", 7, 8),
        ("empty", 3_000_000_000, 4_000_000_000),
    ] {
        lchown(root.join(name), Some(uid), Some(gid)).unwrap();
    }
    fs::set_permissions(root.join("small"), PermissionsExt::from_mode(0o4751)).unwrap();
    times(root);
}

#[expect(clippy::single_range_in_vec_init, reason = "one range is meant")]
fn sparse(root: &Path) {
    let blocks = |ranges: &[std::ops::Range<u64>]| {
        ranges
            .iter()
            .map(|range| range.start * 4096..range.end * 4096)
            .collect::<Vec<_>>()
    };
    let shape = |name: &str, len, written: &[std::ops::Range<u64>]| {
        dioxide_testkit::shape::sparse(&root.join(name), len, &blocks(written), 5);
    };
    shape("sparse-middle", 40 << 20, &[10..12, 5000..5001]);
    shape("sparse-start", 1 << 20, &[0..1]);
    shape("sparse-end", 1 << 20, &[255..256]);
    shape(
        "sparse-many",
        4 << 20,
        &(0..200).map(|i| 3 * i..3 * i + 1).collect::<Vec<_>>(),
    );
    shape("hole", 12345, &[]);
    let file = File::create(root.join("unwritten")).unwrap();
    // Where that cannot be, it is one hole, which looks the same.
    if fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).is_err() {
        file.set_len(1 << 20).unwrap();
    }
}

fn nodes(root: &Path, without: Without) {
    let node = |name: &str, kind, device| {
        mknodat(
            CWD,
            root.join(name),
            kind,
            Mode::from_raw_mode(0o640),
            device,
        )
        .unwrap();
    };
    node("char", FileType::CharacterDevice, makedev(5, 1));
    node("block", FileType::BlockDevice, makedev(259, 70000));
    node("fifo", FileType::Fifo, 0);
    if !without.sockets {
        node("socket", FileType::Socket, 0);
    }
}

fn attributes(root: &Path) {
    set(&root.join("small"), "user.comment", b"a = b\n\0c");
    set(&root.join("small"), "user.empty", b"");
    set(&root.join("small"), "user.odd=%3D", b"x");
    set(&root.join("dir"), "trusted.long", &[7; 700]);
    set(&root.join("dir"), "system.posix_acl_default", &acl());
    set(&root.join("dir/block"), "system.posix_acl_access", &acl());
    set(&root.join("char"), "trusted.of.device", b"node");
    // cap_net_raw=ep.
    let capability = [
        1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    set(&root.join("empty"), "security.capability", &capability);
}

fn times(root: &Path) {
    let mut paths: Vec<PathBuf> = walk(root).into_keys().collect();
    paths.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    for (i, path) in paths.into_iter().enumerate() {
        let mtime = match i {
            0 => Timespec {
                tv_sec: -1,
                tv_nsec: 500_000_000,
            },
            1 => Timespec {
                tv_sec: 9_000_000_000,
                tv_nsec: 0,
            },
            _ => Timespec {
                tv_sec: 1_600_000_000 + i as i64,
                tv_nsec: 123_456_789 * (i as i64 % 2),
            },
        };
        let times = Timestamps {
            last_access: mtime,
            last_modification: mtime,
        };
        utimensat(CWD, root.join(path), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// A directory for trees, on a file system that keeps all of one.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

pub fn write(tree: &mut Tree, sink: &mut dyn Sink) -> Vec<String> {
    tree.write_to(sink, &mut ()).unwrap();
    sink.warnings()
        .iter()
        .map(|warning| format!("{}: {}", warning.path, warning.what))
        .collect()
}

pub fn to_folder(tree: &mut Tree, folder: &Path) -> Vec<String> {
    write(
        tree,
        &mut FolderSink::new(folder, FolderOptions::default()).unwrap(),
    )
}

pub fn to_archive(tree: &mut Tree, archive: &Path) -> Vec<String> {
    let name = archive.as_os_str().as_bytes();
    let compression = Compression::of_name(name).unwrap();
    write(tree, &mut TarSink::create(archive, compression).unwrap())
}

pub fn from_archive(archive: &Path) -> Result<Tree> {
    tar::read(archive, ReadOptions::default(), &mut ())
}

/// Runs a program of the host.
#[track_caller]
pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).env("LC_ALL", "C").output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {args:?}: {}\n{said}",
        output.status
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}
