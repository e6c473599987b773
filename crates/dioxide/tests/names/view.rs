//! What a whole tree looks like, whoever looks at it.

use crate::attributes::{Attributes, FLAGS, asked_for};
use crate::tree::{Body, Tree};
use dioxide::{FileType, Fs, Metadata, OpenOptions};
use std::collections::{BTreeMap, HashMap};

/// One name.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    pub kind: FileType,
    pub attributes: Attributes,
    pub nlink: u32,
    pub device: Option<(u32, u32)>,
    /// Content, or target.
    pub bytes: Vec<u8>,
    /// The first path of the same file.
    pub first: Vec<u8>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} {} nlink {} {:?}, {} bytes {:?}, first {:?}",
            self.kind,
            self.attributes,
            self.nlink,
            self.device,
            self.bytes.len(),
            String::from_utf8_lossy(&self.bytes[..self.bytes.len().min(24)]),
            String::from_utf8_lossy(&self.first),
        )
    }
}

/// By path.
pub type View = BTreeMap<Vec<u8>, Entry>;

/// Finds the first path of each file.
#[derive(Default)]
pub struct Firsts(HashMap<u64, Vec<u8>>);

impl Firsts {
    pub fn of(&mut self, ino: u64, path: &[u8]) -> Vec<u8> {
        self.0.entry(ino).or_insert_with(|| path.to_vec()).clone()
    }
}

/// Of the model.
pub fn of_model(tree: &Tree) -> View {
    let mut firsts = Firsts::default();
    let entry = |(path, id): (Vec<u8>, u32)| {
        let node = tree.node(id);
        let (device, bytes) = match &node.body {
            Body::Dir { .. } => (None, Vec::new()),
            Body::File(bytes) | Body::Symlink(bytes) => (None, bytes.clone()),
            Body::Special(special) => (device(*special), Vec::new()),
        };
        let kind = node.body.file_type();
        let entry = Entry {
            kind,
            attributes: Attributes {
                flags: shown(kind, node.attributes.flags),
                ..node.attributes.clone()
            },
            nlink: node.nlink,
            device,
            bytes,
            first: firsts.of(id.into(), &path),
        };
        (path, entry)
    };
    tree.paths().into_iter().map(entry).collect()
}

fn device(special: dioxide::Special) -> Option<(u32, u32)> {
    use dioxide::Special::{BlockDevice, CharDevice, Fifo, Socket};
    match special {
        Fifo | Socket => None,
        CharDevice(major, minor) | BlockDevice(major, minor) => Some((major, minor)),
    }
}

/// The flags that are looked at: Linux tells those of files and directories only.
pub fn shown(kind: FileType, flags: u32) -> u32 {
    match kind {
        FileType::Regular | FileType::Directory => flags & FLAGS,
        _ => 0,
    }
}

fn attributes(fs: &Fs, path: &[u8], about: &Metadata) -> Attributes {
    let node = fs.symlink_node(path).expect("it is listed");
    let xattrs = node.xattrs().expect("they are whole").into_iter();
    Attributes {
        mode: about.permissions,
        uid: about.uid,
        gid: about.gid,
        flags: shown(about.file_type, about.flags),
        project: about.project.unwrap_or(0),
        atime: asked_for(about.atime.secs),
        mtime: asked_for(about.mtime.secs),
        xattrs: xattrs.map(|xattr| (xattr.name, xattr.value)).collect(),
    }
}

/// Of dioxide. Entries and attributes must name the same inode and type.
pub fn of_dioxide(fs: &Fs) -> View {
    let (mut view, mut firsts) = (View::new(), Firsts::default());
    let mut paths = vec![b"/".to_vec()];
    let mut next = 0;
    while let Some(path) = paths.get(next).cloned() {
        next += 1;
        let about = fs.symlink_metadata(&path).expect("it is listed");
        let bytes = match about.file_type {
            FileType::Regular => content(fs, &path),
            FileType::Symlink => fs.read_link(&path).expect("a symlink"),
            FileType::Directory => {
                paths.extend(children(fs, &path));
                Vec::new()
            }
            _ => Vec::new(),
        };
        let first = firsts.of(about.ino.into(), &path);
        let entry = Entry {
            kind: about.file_type,
            attributes: attributes(fs, &path, &about),
            nlink: about.nlink,
            device: about.device,
            bytes,
            first,
        };
        view.insert(path, entry);
    }
    view
}

fn content(fs: &Fs, path: &[u8]) -> Vec<u8> {
    let file = OpenOptions::new().read(true).open(fs, path);
    let file = file.expect("it is listed");
    let mut bytes = vec![0xEE; file.len() as usize];
    let read = file.read_at(&mut bytes, 0).expect("it reads");
    assert_eq!(read, bytes.len());
    bytes
}

/// The paths of what is in a directory.
fn children(fs: &Fs, dir: &[u8]) -> Vec<Vec<u8>> {
    let here = fs.metadata(dir).expect("it is listed").ino;
    let base = if dir == b"/" { b"" } else { dir };
    let mut paths = Vec::new();
    for entry in fs.read_dir(dir).expect("a directory") {
        match &entry.name[..] {
            b"." => assert_eq!(entry.ino.0, here, "."),
            b".." => {
                let up = fs.metadata([dir, b"/.."].concat()).expect("it has one");
                assert_eq!(entry.ino.0, up.ino, "..");
            }
            name => {
                let path = [base, b"/", name].concat();
                let about = fs.symlink_metadata(&path).expect("it is listed");
                let is_told = entry.file_type != FileType::Unknown;
                assert_eq!(entry.ino.0, about.ino);
                assert!(!is_told || entry.file_type == about.file_type);
                paths.push(path);
            }
        }
    }
    paths.sort();
    paths
}

/// Panics with the first differences of two views.
pub fn assert_same(what: &str, found: &View, expected: &View) {
    if found == expected {
        return;
    }
    let all = found.keys().chain(expected.keys());
    let mut lines: Vec<String> = all
        .filter(|path| found.get(*path) != expected.get(*path))
        .map(|path| {
            let name = String::from_utf8_lossy(path);
            let name: String = name.chars().take(80).collect();
            format!(
                "{name}: {:?}, not {:?}",
                found.get(path),
                expected.get(path)
            )
        })
        .collect();
    lines.dedup();
    panic!(
        "{what}: {} differ:\n{}",
        lines.len(),
        lines[..lines.len().min(6)].join("\n")
    );
}
