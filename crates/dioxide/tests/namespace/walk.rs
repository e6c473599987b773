//! What there is to know of every file of a tree: as the kernel tells it, and as dioxide does.

use dioxide::{FileType, Fs, MapKind, OpenOptions};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// Files up to this size are compared byte by byte.
const CONTENT_MAX: u64 = 1 << 20;

/// A run of blocks: first in the file, first on the device, length, unwritten.
pub type Extent = (u64, u64, u64, bool);

/// What is known of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub ino: u64,
    pub mode: u32,
    pub nlink: u64,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub blocks: u64,
    pub device: Option<(u32, u32)>,
    pub times: [(i64, i64); 3],
    pub created: Option<(i64, i64)>,
    pub target: Option<Vec<u8>>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub content: Option<Vec<u8>>,
    pub extents: Option<Vec<Extent>>,
}

/// Every file by its path, the root as the empty path.
pub type Tree = BTreeMap<Vec<u8>, Record>;

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    [dir, b"/", name].concat()
}

/// Walks a mounted file system.
pub fn by_kernel(root: &Path, block: u64) -> Tree {
    let mut tree = Tree::new();
    let mut to_do = vec![Vec::new()];
    while let Some(path) = to_do.pop() {
        let full = root.join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(&path)));
        let meta = fs::symlink_metadata(&full).expect("lstat");
        if meta.is_dir() {
            for entry in fs::read_dir(&full).expect("a directory") {
                to_do.push(join(
                    &path,
                    &entry.expect("an entry").file_name().into_vec(),
                ));
            }
        }
        tree.insert(path, kernel_record(&full, &meta, block));
    }
    tree
}

fn kernel_record(path: &Path, meta: &fs::Metadata, block: u64) -> Record {
    let kind = meta.mode() & libc::S_IFMT;
    let is_device = kind == libc::S_IFCHR || kind == libc::S_IFBLK;
    let is_file = meta.is_file();
    Record {
        ino: meta.ino(),
        mode: meta.mode(),
        nlink: meta.nlink(),
        uid: meta.uid(),
        gid: meta.gid(),
        size: meta.size(),
        blocks: meta.blocks(),
        device: is_device.then(|| {
            (
                rustix::fs::major(meta.rdev()),
                rustix::fs::minor(meta.rdev()),
            )
        }),
        times: [
            (meta.atime(), meta.atime_nsec()),
            (meta.mtime(), meta.mtime_nsec()),
            (meta.ctime(), meta.ctime_nsec()),
        ],
        created: meta.created().ok().map(|time| {
            let since = time
                .duration_since(std::time::UNIX_EPOCH)
                .expect("made after 1970");
            (since.as_secs() as i64, i64::from(since.subsec_nanos()))
        }),
        target: meta.is_symlink().then(|| {
            fs::read_link(path)
                .expect("readlink")
                .into_os_string()
                .into_vec()
        }),
        xattrs: if meta.is_symlink() {
            BTreeMap::new()
        } else {
            kernel_xattrs(path)
        },
        content: (is_file && meta.size() <= CONTENT_MAX)
            .then(|| fs::read(path).expect("a readable file")),
        extents: (is_file && meta.blocks() > 0).then(|| filefrag(path, block)),
    }
}

fn kernel_xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65536];
    let len = rustix::fs::llistxattr(path, &mut names[..]).expect("listxattr");
    let mut found = BTreeMap::new();
    for name in names[..len]
        .split(|&b| b == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0; 65536];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..]).expect("getxattr");
        value.truncate(len);
        found.insert(name.to_vec(), value);
    }
    found
}

/// The extents as `filefrag -v` prints them; none for inline data.
fn filefrag(path: &Path, block: u64) -> Vec<Extent> {
    let size = format!("-b{block}");
    let output = Command::new("filefrag")
        .arg("-v")
        .arg(size)
        .arg(path)
        .output();
    let output = output.expect("filefrag of e2fsprogs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let said = String::from_utf8_lossy(&output.stdout);
    let mut extents = Vec::new();
    for line in said.lines() {
        let fields: Vec<&str> = line.split(':').map(str::trim).collect();
        let [number, logical, physical, len, flags @ ..] = &fields[..] else {
            continue;
        };
        let first = |range: &str| {
            range
                .split("..")
                .next()
                .and_then(|n| n.trim().parse::<u64>().ok())
        };
        let (Ok(_), Some(logical), Some(physical)) =
            (number.parse::<u64>(), first(logical), first(physical))
        else {
            continue;
        };
        let flags = flags.concat();
        if flags.contains("inline") {
            return Vec::new();
        }
        let len = len.parse().expect("a length");
        extents.push((logical, physical, len, flags.contains("unwritten")));
    }
    join_runs(extents)
}

/// One extent where two continue each other, so that both sides cut alike.
fn join_runs(extents: Vec<Extent>) -> Vec<Extent> {
    let mut joined: Vec<Extent> = Vec::new();
    for (logical, physical, len, unwritten) in extents {
        match joined.last_mut() {
            Some((l, p, n, u)) if *l + *n == logical && *p + *n == physical && *u == unwritten => {
                *n += len
            }
            _ => joined.push((logical, physical, len, unwritten)),
        }
    }
    joined
}

/// Walks a file system through dioxide.
pub fn by_dioxide(fs: &Fs) -> Tree {
    let mut tree = Tree::new();
    let mut to_do = vec![Vec::new()];
    while let Some(path) = to_do.pop() {
        let full: &[u8] = if path.is_empty() { b"/" } else { &path };
        let meta = fs.symlink_metadata(full).expect("lstat");
        if meta.file_type == FileType::Directory {
            for entry in fs.read_dir(full).expect("a directory") {
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                let child = join(&path, &entry.name);
                let found = fs
                    .symlink_metadata(&child)
                    .expect("an entry leads to an inode");
                assert_eq!(found.ino, entry.ino.0);
                assert!(entry.file_type == FileType::Unknown || entry.file_type == found.file_type);
                to_do.push(child);
            }
        }
        let record = dioxide_record(fs, full, &meta);
        tree.insert(path, record);
    }
    tree
}

fn dioxide_record(fs: &Fs, path: &[u8], meta: &dioxide::Metadata) -> Record {
    let time = |time: dioxide::Timestamp| (time.secs, i64::from(time.nanos));
    let is_link = meta.file_type == FileType::Symlink;
    let is_file = meta.file_type == FileType::Regular;
    let file = is_file.then(|| {
        OpenOptions::new()
            .read(true)
            .open(fs, path)
            .expect("a file")
    });
    let xattrs = if is_link {
        Vec::new()
    } else {
        fs.xattrs(path).expect("attributes")
    };
    Record {
        ino: meta.ino.into(),
        mode: meta.mode(),
        nlink: meta.nlink.into(),
        uid: meta.uid,
        gid: meta.gid,
        size: meta.size,
        blocks: meta.blocks,
        device: meta.device,
        times: [time(meta.atime), time(meta.mtime), time(meta.ctime)],
        created: meta.crtime.map(time),
        target: is_link.then(|| fs.read_link(path).expect("a symlink")),
        xattrs: xattrs
            .into_iter()
            .map(|xattr| (xattr.name, xattr.value))
            .collect(),
        content: file
            .as_ref()
            .filter(|_| meta.size <= CONTENT_MAX)
            .map(content),
        extents: file.as_ref().filter(|_| meta.blocks > 0).map(extents),
    }
}

fn content(file: &dioxide::File) -> Vec<u8> {
    let mut bytes = vec![0; file.len() as usize];
    let len = file.read_at(&mut bytes, 0).expect("a readable file");
    assert_eq!(len, bytes.len());
    bytes
}

/// All extents of a file, those behind its end included.
pub fn extents(file: &dioxide::File) -> Vec<Extent> {
    let mut extents = Vec::new();
    let mut at = 0u32;
    loop {
        let mapping = match file.map(at, u32::MAX - at) {
            Ok(mapping) => mapping,
            // Inline data.
            Err(dioxide::Error::Unsupported(_)) => return Vec::new(),
            Err(error) => panic!("map at {at}: {error}"),
        };
        if mapping.kind != MapKind::Hole {
            let unwritten = mapping.kind == MapKind::Unwritten;
            extents.push((at.into(), mapping.pblk.0, mapping.len.into(), unwritten));
        }
        // Nothing lies this far behind the end in these trees.
        let end = file.len().div_ceil(1024) + 1000;
        at += mapping.len;
        if u64::from(at) > end || at == u32::MAX {
            return join_runs(extents);
        }
    }
}

/// Fails with the first path that differs.
pub fn assert_same(kernel: &Tree, dioxide: &Tree) {
    for (path, record) in kernel {
        let name = String::from_utf8_lossy(path);
        let ours = dioxide
            .get(path)
            .unwrap_or_else(|| panic!("dioxide does not list {name}"));
        let mut expected = record.clone();
        // Without room for it in the inode, the kernel has no time of creation to tell.
        if ours.created.is_none() {
            expected.created = None;
        }
        assert_eq!(ours, &expected, "at {name}");
    }
    for path in dioxide.keys() {
        assert!(
            kernel.contains_key(path),
            "dioxide lists {} too",
            String::from_utf8_lossy(path)
        );
    }
}
