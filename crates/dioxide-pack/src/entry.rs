//! One file of a tree, whatever the tree comes from or goes to.

use dioxide::{Timestamp, Xattr};
use std::ops::Range;

/// Longest name in a path, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest value of an extended attribute, as Linux has it.
pub const XATTR_VALUE_MAX: usize = 65536;

/// One file of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it is in the tree: names with one `/` between them; empty for the root.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Permission bits, set-ID and sticky bits included: the low 12 bits of `st_mode`.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Inode flags (`EXT4_*_FL`) that a user may change. Only images have them.
    pub flags: u32,
    /// Project; 0 where there are none. Only images have them.
    pub project: u32,
    /// Extended attributes, sorted by name; values, those of access control lists too, as
    /// `getxattr` gives them.
    pub xattrs: Vec<Xattr>,
}

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File(FileData),
    /// A symbolic link, and its target.
    Symlink(Vec<u8>),
    /// Another name of the file that has this path, which comes earlier in the tree. The attributes
    /// of such an entry are those of that file.
    HardLink(Vec<u8>),
    /// A character device: major and minor number.
    CharDevice(u32, u32),
    /// A block device: major and minor number.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// The content of a regular file, without its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileData {
    /// Size in bytes.
    pub size: u64,
    /// Bytes that are data: not empty, in order, apart, below the size. The others are holes.
    pub segments: Vec<Range<u64>>,
    /// What its source finds the bytes by.
    pub(crate) handle: u64,
}

impl FileData {
    /// Data without a hole.
    pub(crate) fn whole(size: u64, handle: u64) -> FileData {
        FileData {
            size,
            segments: Some(0..size)
                .filter(|all| !all.is_empty())
                .into_iter()
                .collect(),
            handle,
        }
    }

    /// How many bytes are data.
    pub fn data_bytes(&self) -> u64 {
        self.segments
            .iter()
            .map(|segment| segment.end - segment.start)
            .sum()
    }

    /// Whether there is a hole.
    pub fn is_sparse(&self) -> bool {
        self.data_bytes() < self.size
    }
}

impl Entry {
    /// An entry of user and group 0, with 1970 as its time and without attributes.
    pub fn new(path: impl Into<Vec<u8>>, kind: Kind, permissions: u16) -> Entry {
        Entry {
            kind,
            permissions,
            ..Entry::default_directory(path.into(), Timestamp::default())
        }
    }

    /// The same for a regular file, which is empty unless content is added with it.
    pub fn file(path: impl Into<Vec<u8>>, permissions: u16) -> Entry {
        Entry::new(path, Kind::File(FileData::default()), permissions)
    }

    /// A directory that nobody described: `0755`, of user and group 0.
    pub(crate) fn default_directory(path: Vec<u8>, mtime: Timestamp) -> Entry {
        Entry {
            path,
            kind: Kind::Directory,
            permissions: 0o755,
            uid: 0,
            gid: 0,
            mtime,
            flags: 0,
            project: 0,
            xattrs: Vec::new(),
        }
    }

    /// The last name of the path; empty for the root.
    pub fn name(&self) -> &[u8] {
        split(&self.path).1
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }
}

/// The path of the directory, and the name in it.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// The path of `name` in the directory `parent`.
pub(crate) fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    match parent {
        b"" => name.to_vec(),
        _ => [parent, b"/", name].concat(),
    }
}
