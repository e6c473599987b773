//! What a whole tree looks like, whoever looks at it.

use dioxide::{FileType, Timestamp};
use std::collections::{BTreeMap, HashMap};

/// What a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    None,
    /// Of a symlink.
    Target(Vec<u8>),
    /// First byte and end of each range that `SEEK_DATA` and `SEEK_HOLE` tell, and a digest of all that
    /// is not zero.
    Data(Vec<(u64, u64)>, u64),
}

/// One name, and all that is told of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: FileType,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub size: u64,
    pub blocks: u64,
    pub device: Option<(u32, u32)>,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub crtime: Option<Timestamp>,
    pub ino: u64,
    /// Of files and directories.
    pub flags: Option<u32>,
    pub content: Content,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The first path of the same file.
    pub first: Vec<u8>,
}

/// By path.
pub type View = BTreeMap<Vec<u8>, Entry>;

/// The first path of each file.
#[derive(Default)]
pub struct Firsts(HashMap<u64, Vec<u8>>);

impl Firsts {
    pub fn note(&mut self, ino: u64, path: &[u8]) {
        let first = self.0.entry(ino).or_insert_with(|| path.to_vec());
        if path < &first[..] {
            *first = path.to_vec();
        }
    }

    pub fn resolve(&self, view: &mut View) {
        for entry in view.values_mut() {
            entry.first.clone_from(&self.0[&entry.ino]);
        }
    }
}

/// A digest of the bytes that are not zero, and of where they are. That of a whole is the sum of those of its
/// parts, each a multiple of 8 bytes from the first.
pub fn digest(at: u64, bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).zip((at / 8)..).map(|(chunk, index)| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        match u64::from_le_bytes(word) {
            0 => 0,
            word => (word ^ index.wrapping_mul(0x9E37_79B9_7F4A_7C15))
                .rotate_left(31)
                .wrapping_mul(0xBF58_476D_1CE4_E5B9),
        }
    });
    words.fold(0, u64::wrapping_add)
}

/// What does not depend on when, where and by whom a tree was made.
pub fn portable(view: &View) -> View {
    let entries = view.iter().map(|(path, entry)| {
        let mut entry = entry.clone();
        entry.blocks = 0;
        entry.ino = 0;
        entry.atime = Timestamp::default();
        entry.ctime = Timestamp::default();
        entry.crtime = None;
        // Whether blocks, extents or the inode hold it, and whether it has an index.
        entry.flags = entry.flags.map(|flags| flags & USERS_FLAGS);
        if !path.starts_with(b"/times/") {
            entry.mtime = Timestamp::default();
        }
        if entry.kind == FileType::Directory {
            entry.size = 0;
        }
        if let Content::Data(ranges, _) = &mut entry.content {
            // What reads as zeros may be data here and a hole there.
            ranges.clear();
        }
        (path.clone(), entry)
    });
    let lost = |path: &[u8]| path.starts_with(b"/lost+found");
    entries.filter(|(path, _)| !lost(path)).collect()
}

/// Synchronous, immutable, append-only, no dump, no atime, directories synchronous.
const USERS_FLAGS: u32 = 0x08 | 0x10 | 0x20 | 0x40 | 0x80 | 0x1_0000;

/// The first differences of two views; none if they are the same.
pub fn differences(found: &View, expected: &View) -> Result<(), String> {
    let mut all: Vec<&Vec<u8>> = found.keys().chain(expected.keys()).collect();
    all.sort();
    all.dedup();
    let differing = all
        .iter()
        .filter(|path| found.get(**path) != expected.get(**path));
    let lines: Vec<String> = differing
        .map(|path| {
            let name = path.escape_ascii().to_string();
            let name: String = name.chars().take(60).collect();
            match (found.get(*path), expected.get(*path)) {
                (Some(found), Some(expected)) => format!("{name}: {}", fields(found, expected)),
                (Some(_), None) => format!("{name}: should not be there"),
                _ => format!("{name}: is not there"),
            }
        })
        .collect();
    match lines.len() {
        0 => Ok(()),
        count => {
            let shown = lines[..count.min(5)].join("\n    ");
            Err(format!("{count} differ:\n    {shown}"))
        }
    }
}

fn fields(found: &Entry, expected: &Entry) -> String {
    let mut told = Vec::new();
    macro_rules! compare {
        ($($field:ident),*) => {
            $(if found.$field != expected.$field {
                let mut text = format!("{}: {:?}, not {:?}", stringify!($field), found.$field, expected.$field);
                text.truncate(text.floor_char_boundary(400));
                told.push(text);
            })*
        };
    }
    compare!(
        kind, mode, uid, gid, nlink, size, blocks, device, atime, mtime, ctime, crtime, ino, flags,
        content, xattrs, first
    );
    told.join("; ")
}
