//! Names and attributes: what operations do with them, and what a tree looks like.
//!
//! Files that data operations work on ([`crate::model`]) are in the tree too, without their content. All others are
//! written once, while they are empty, so that a tree with their contents is of one state or of none:
//! nothing is ever written over what an older tree shows.

use crate::attributes::{ACCESS, Attributes, DEFAULT, IN_STEP, list};
use crate::op::FileNo;
use dioxide::format::inode::InodeFlags;
use dioxide::format::journal::MAGIC;
use dioxide::{FileType, Special};
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// What a rename does when the new name is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Over {
    /// Replaces it.
    Replace,
    /// The two change places.
    Exchange,
    /// The new name is not there.
    Nothing,
    /// The same, and the old name stands for a whiteout then.
    Whiteout,
}

/// What stands for a name that layers below have and this one has not.
pub(crate) const WHITEOUT: Special = Special::CharDevice(0, 0);
/// Its mode.
const WHITEOUT_MODE: u16 = 0;

/// One call. Paths are from the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NameOp {
    /// A new, empty file.
    Create(&'static str),
    /// Writes so many bytes into an empty file.
    Fill(&'static str, usize),
    /// A new directory.
    Mkdir(&'static str),
    /// A symlink, with a target of so many bytes.
    Symlink(&'static str, usize),
    /// A special file.
    Mknod(&'static str, Special),
    /// Another name for a file.
    Link(&'static str, &'static str),
    /// `O_TMPFILE`, 2000 bytes, and a name.
    Unnamed(&'static str),
    /// Removes a name.
    Unlink(&'static str),
    /// The same, of a file that stays open until the next such call or the unmount.
    UnlinkHeld(&'static str),
    /// Removes an empty directory.
    Rmdir(&'static str),
    /// Moves a name.
    Rename(&'static str, &'static str, Over),
    /// Changes an attribute. Symlinks are not followed.
    Change(&'static str, Change),
    /// `fsync` of a file or directory.
    Fsync(&'static str),
    /// `fdatasync` of a file or directory.
    Fdatasync(&'static str),
}

/// One call on the attributes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// `setxattr`, of so many bytes: see [`value`].
    Set(&'static str, usize),
    /// `removexattr`.
    Remove(&'static str),
    /// `setxattr` of [`ACCESS`] or [`DEFAULT`].
    List(&'static str, List),
    /// `chmod`.
    Mode(u16),
    /// `chown`.
    Owner(u32, u32),
    /// `utimens`: last access and last change, in seconds since 1970.
    Times(i64, i64),
    /// Of [`crate::attributes::FLAGS`].
    Flags(u32),
    /// The project.
    Project(u32),
}

/// Access control lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum List {
    /// Names a user, and has a mask.
    Named,
    /// As a mode, 0o651.
    Plain,
    /// Without entries.
    Empty,
}

impl List {
    /// As `setxattr` takes it.
    pub fn value(self) -> Vec<u8> {
        const NO_ID: u32 = u32::MAX;
        list(match self {
            List::Named => &[
                (0x01, 7, NO_ID),
                (0x02, 6, 1000),
                (0x04, 5, NO_ID),
                (0x10, 6, NO_ID),
                (0x20, 4, NO_ID),
            ],
            List::Plain => &[(0x01, 6, NO_ID), (0x04, 5, NO_ID), (0x20, 1, NO_ID)],
            List::Empty => &[],
        })
    }
}

/// What a name is of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The first path of the same file.
    pub first: String,
    /// Its count of links; 0 for directories, of which it follows from the tree.
    pub links: u32,
    /// What it is.
    pub kind: Kind,
    /// What it has.
    pub attributes: Attributes,
}

/// Kinds of files, with content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A directory.
    Dir,
    /// A regular file.
    File(Vec<u8>),
    /// A file that data operations work on, whose content is not looked at here.
    Known(FileNo),
    /// A symlink.
    Symlink(Vec<u8>),
    /// A pipe, a socket, a device.
    Special(Special),
}

/// By path; without the root.
pub type Tree = BTreeMap<String, Entry>;

/// What [`NameOp::Fill`] and [`NameOp::Unnamed`] write.
pub fn fill(path: &str, len: usize) -> Vec<u8> {
    let seed = path.bytes().fold(7u8, |a, b| a.wrapping_mul(31) ^ b);
    (0..len).map(|at| seed ^ (at % 251) as u8 | 1).collect()
}

/// What [`Change::Set`] sets: the same for all files, so that they may share it.
pub fn value(name: &str, len: usize) -> Vec<u8> {
    fill(name, len)
}

/// Permissions that new files are asked to have, and all else that is new.
pub(crate) const FILE_MODE: u16 = 0o644;
pub(crate) const OTHER_MODE: u16 = 0o755;

/// Bytes of an unnamed file that gets a name.
pub const UNNAMED_LEN: usize = 2000;

/// The longest target that is kept in the inode.
const IN_INODE: usize = 59;

/// The target of a symlink. One that takes a block of its own begins with the journal's magic number, so that it is
/// escaped in the log.
pub fn target(len: usize) -> Vec<u8> {
    let mut target = vec![b't'; len];
    if len > IN_INODE {
        target[..4].copy_from_slice(&MAGIC.to_be_bytes());
    }
    target
}

/// A path with a name of 240 bytes.
macro_rules! long {
    ($first:literal) => {
        concat!($first, long!())
    };
    () => {
        concat!(
            "-------------------------------------------------------------------------------",
            "--------------------------------------------------------------------------------",
            "--------------------------------------------------------------------------------"
        )
    };
}

/// Names of which three fit into a block of 1024 bytes: with a fourth the directory gets an index.
pub(crate) const LONG: [&str; 5] = [
    long!("/h/a"),
    long!("/h/b"),
    long!("/h/c"),
    long!("/h/d"),
    long!("/h/e"),
];

/// Names for which an inode has no room, whether it has others or not.
pub(crate) const WIDE: [&str; 2] = [long!("/i/w"), long!("/a/e/w")];

/// New names in a directory that has an index, and no room in the blocks that it leads to: see [`full`].
pub(crate) const FULL: [&str; 2] = [long!("/d/n"), long!("/d/x")];

/// The first `count` names of `/d`, all of one file.
pub(crate) fn full(count: usize) -> Vec<String> {
    let name = |number: usize| format!("/d/{number:03}{}", long!());
    (0..count).map(name).collect()
}

/// What the image begins with, besides the files that data operations work on: directories, files with
/// so many bytes, and a symlink.
pub(crate) const DIRS: [&str; 6] = ["/a", "/b", "/a/e", "/h", "/i", "/d"];
pub(crate) const FILES: [(&str, usize); 7] = [
    ("/a/x", 3000),
    ("/b/y", 6000),
    ("/i/one", 0),
    ("/i/two", 0),
    (LONG[0], 0),
    (LONG[1], 0),
    (LONG[2], 0),
];
pub(crate) const LINK: (&str, usize) = ("/a/s", 5);

/// The operations that workloads are made of. Some need what another makes.
pub fn operations() -> Vec<NameOp> {
    use NameOp::*;
    vec![
        Create("/a/n"),
        Create("/n"),
        Fill("/a/n", 5000),
        Mkdir("/a/m"),
        Mkdir("/m"),
        Symlink("/a/t", 20),
        Symlink("/b/l", 90),
        Mknod("/b/p", Special::Fifo),
        Link("/a/x", "/b/x2"),
        Link("/f0", "/a/f"),
        Unnamed("/b/u"),
        Unlink("/a/x"),
        Unlink("/a/s"),
        UnlinkHeld("/b/y"),
        Rmdir("/a/e"),
        Rename("/a/x", "/b/y", Over::Replace),
        Rename("/a/x", "/a/z", Over::Nothing),
        Rename("/a/e", "/b/e", Over::Nothing),
        Rename("/a/e", "/a/m", Over::Replace),
        Rename("/b", "/a/b", Over::Nothing),
        Rename("/a/n", "/b/y", Over::Replace),
        Rename("/b/u", "/a/x", Over::Replace),
        Rename("/a/x", "/b/y", Over::Exchange),
        Rename("/a/e", "/b/y", Over::Exchange),
        Mknod("/b/c", Special::CharDevice(1, 3)),
        Mknod("/a/d", Special::BlockDevice(259, 70_000)),
        Mknod("/b/k", Special::Socket),
        Rename("/a/x", "/b/z", Over::Whiteout),
        Fill("/n", 40),
        Create(LONG[3]),
        Mkdir(LONG[4]),
        Rename(LONG[0], "/b/z", Over::Nothing),
        Create("/a/e/n"),
        Rename("/a/x", "/a/e/x", Over::Nothing),
        Mkdir("/i/m"),
        Unlink("/i/one"),
        Rename("/i/two", "/a/e/two", Over::Nothing),
        Rename("/a/x", "/i/one", Over::Replace),
        Create(WIDE[0]),
        Rename("/i/one", WIDE[1], Over::Nothing),
        Create(FULL[0]),
        Rename("/a/x", FULL[1], Over::Nothing),
        Rename("/f0", "/a/g", Over::Nothing),
        Rename("/f0", "/f1", Over::Replace),
        Rename("/f0", "/f3", Over::Exchange),
        Rename("/f1", "/b/y", Over::Exchange),
        Rename("/a/x", "/f0", Over::Replace),
        Unlink("/f0"),
        Unlink("/f3"),
        UnlinkHeld("/f1"),
    ]
}

/// Values that lie in the inode, in a block, and in an inode of their own.
const SHORT: (&str, usize) = ("user.short", 12);
const BLOCK: (&str, usize) = ("user.block", 600);
const APART: (&str, usize) = ("user.apart", 3000);

fn set(path: &'static str, (name, len): (&'static str, usize)) -> NameOp {
    NameOp::Change(path, Change::Set(name, len))
}

/// What operations on attributes begin with: two files that share a block, one with a short value too, and a
/// directory that hands a list on. `apart`: they share a value in an inode of its own as well, where that is possible.
pub(crate) fn given(apart: bool) -> Vec<NameOp> {
    let mut given = vec![
        set("/a/x", BLOCK),
        set("/b/y", BLOCK),
        set("/a/x", SHORT),
        NameOp::Change("/b", Change::List(DEFAULT, List::Named)),
    ];
    if apart {
        given.extend([set("/a/x", APART), set("/b/y", APART)]);
    }
    given
}

/// The operations on attributes that workloads are made of. Each is possible after what such workloads begin with.
pub fn attribute_operations(apart: bool) -> Vec<NameOp> {
    use Change::*;
    let mut operations = vec![
        set("/a/x", ("user.short", 20)),
        set("/a/e", SHORT),
        set("/a/x", ("user.block", 400)),
        set("/b/y", ("user.block", 400)),
        set("/f0", BLOCK),
        set("/a/e", BLOCK),
        set("/a/s", ("trusted.short", 12)),
    ];
    operations.extend(
        [
            ("/a/x", Remove("user.short")),
            ("/a/x", Remove("user.block")),
            ("/b/y", Remove("user.block")),
            ("/a/x", List(ACCESS, self::List::Named)),
            ("/f2", List(ACCESS, self::List::Named)),
            ("/a/x", List(ACCESS, self::List::Plain)),
            ("/a/x", List(ACCESS, self::List::Empty)),
            ("/a", List(DEFAULT, self::List::Named)),
            ("/b", List(DEFAULT, self::List::Empty)),
            ("/b", Remove(DEFAULT)),
            ("/a/x", Mode(0o640)),
            ("/b/y", Mode(0o6755)),
            ("/a", Mode(0o2775)),
            ("/b/y", Owner(1000, 1000)),
            ("/a", Owner(70_000, 70_000)),
            ("/f1", Owner(70_000, 70_000)),
            ("/a/x", Times(100_000_000, 200_000_000)),
            ("/a", Times(-1000, 300_000_000)),
            ("/f0", Times(400_000_000, 500_000_000)),
            ("/a/x", Flags(InodeFlags::NODUMP.0)),
            ("/a", Flags(InodeFlags::NOATIME.0)),
            ("/b/y", Flags(InodeFlags::APPEND.0)),
            ("/b/y", Flags(InodeFlags::IMMUTABLE.0)),
            ("/b/y", Flags(0)),
            ("/a/x", Flags(InodeFlags::SYNC.0)),
            ("/f0", Flags(InodeFlags::SYNC.0)),
            ("/a", Flags(InodeFlags::DIRSYNC.0)),
            ("/b", Flags(InodeFlags::SYNC.0)),
        ]
        .map(|(path, change)| NameOp::Change(path, change)),
    );
    if apart {
        operations.extend([
            set("/a/x", ("user.apart", 2500)),
            set("/f0", APART),
            set("/a/e", APART),
            NameOp::Change("/a/x", Remove("user.apart")),
            NameOp::Change("/b/y", Remove("user.apart")),
        ]);
    }
    operations
}

impl NameOp {
    /// What makes it durable: `fsync` of what has a new name, or of the directory that has changed.
    pub fn sync(self) -> NameOp {
        match self {
            NameOp::Create(path)
            | NameOp::Fill(path, _)
            | NameOp::Link(_, path)
            | NameOp::Unnamed(path)
            | NameOp::Change(path, _)
            | NameOp::Rename(_, path, _) => NameOp::Fsync(path),
            NameOp::Mkdir(path)
            | NameOp::Symlink(path, _)
            | NameOp::Mknod(path, _)
            | NameOp::Unlink(path)
            | NameOp::UnlinkHeld(path)
            | NameOp::Rmdir(path)
            | NameOp::Fsync(path)
            | NameOp::Fdatasync(path) => NameOp::Fsync(parent(path)),
        }
    }
}

impl NameOp {
    /// Each `fsync` that makes it durable: that of [`NameOp::sync`], and of a directory in which it changes names; and each `fdatasync`
    /// that does.
    pub(crate) fn syncs(self) -> Vec<NameOp> {
        let mut syncs = vec![self.sync()];
        for sync in self.dirs().into_iter().map(NameOp::Fsync) {
            if !syncs.contains(&sync) {
                syncs.push(sync);
            }
        }
        if !matches!(self, NameOp::Change(..)) {
            let of_data = syncs.iter().filter_map(|sync| match *sync {
                NameOp::Fsync(path) => Some(NameOp::Fdatasync(path)),
                _ => None,
            });
            syncs.extend(of_data.collect::<Vec<_>>());
        }
        syncs
    }

    /// The directories in which it changes names.
    fn dirs(self) -> Vec<&'static str> {
        match self {
            NameOp::Create(path)
            | NameOp::Mkdir(path)
            | NameOp::Symlink(path, _)
            | NameOp::Mknod(path, _)
            | NameOp::Link(_, path)
            | NameOp::Unnamed(path)
            | NameOp::Unlink(path)
            | NameOp::UnlinkHeld(path)
            | NameOp::Rmdir(path) => vec![parent(path)],
            NameOp::Rename(from, to, _) => vec![parent(from), parent(to)],
            NameOp::Fill(..) | NameOp::Change(..) | NameOp::Fsync(_) | NameOp::Fdatasync(_) => {
                Vec::new()
            }
        }
    }

    /// Whether it takes a name from a file that data operations work on, or changes an attribute of one, as it is at first.
    pub(crate) fn meddles_with_data(self) -> bool {
        let is_data = |path: &str| path.starts_with("/f");
        match self {
            NameOp::Rename(from, to, _) => is_data(from) || is_data(to),
            NameOp::Change(path, _) | NameOp::Unlink(path) | NameOp::UnlinkHeld(path) => {
                is_data(path)
            }
            _ => false,
        }
    }

    /// The files that flags may keep as they are.
    fn changed(self) -> Vec<&'static str> {
        match self {
            NameOp::Change(_, Change::Flags(_)) => Vec::new(),
            NameOp::Fill(path, _)
            | NameOp::Link(path, _)
            | NameOp::Unlink(path)
            | NameOp::UnlinkHeld(path)
            | NameOp::Rmdir(path)
            | NameOp::Change(path, _) => vec![path],
            NameOp::Rename(from, to, _) => vec![from, to],
            _ => Vec::new(),
        }
    }
}

impl Kind {
    fn file_type(&self) -> FileType {
        match self {
            Kind::Dir => FileType::Directory,
            Kind::File(_) | Kind::Known(_) => FileType::Regular,
            Kind::Symlink(_) => FileType::Symlink,
            Kind::Special(special) => match special {
                Special::Fifo => FileType::Fifo,
                Special::Socket => FileType::Socket,
                Special::CharDevice(..) => FileType::CharDevice,
                Special::BlockDevice(..) => FileType::BlockDevice,
            },
        }
    }

    /// Whether such a file has what a change is about.
    fn takes(&self, change: Change) -> bool {
        let file_type = self.file_type();
        match change {
            Change::Set(name, _) if name.starts_with("user.") => {
                matches!(file_type, FileType::Regular | FileType::Directory)
            }
            Change::List(DEFAULT, list) => file_type == FileType::Directory || list == List::Empty,
            Change::List(..) | Change::Mode(_) => file_type != FileType::Symlink,
            _ => true,
        }
    }
}

impl Change {
    /// What it makes of a file's attributes; `false` if it removes what is not there.
    fn apply(self, attributes: &mut Attributes, kind: &Kind) -> bool {
        match self {
            Change::Set(name, len) => {
                let value = value(name, len);
                attributes.xattrs.insert(name.into(), value);
            }
            Change::Remove(name) => return attributes.xattrs.remove(name.as_bytes()).is_some(),
            Change::List(name, list) => attributes.set_list(name, &list.value()),
            Change::Mode(mode) => attributes.set_mode(mode),
            Change::Owner(uid, gid) => attributes.set_owner(uid, gid, kind.file_type()),
            Change::Times(atime, mtime) => {
                attributes.atime = Some(atime);
                attributes.mtime = Some(mtime).filter(|_| !matches!(kind, Kind::Known(_)));
            }
            Change::Flags(flags) => attributes.flags = flags,
            Change::Project(project) => attributes.project = project,
        }
        true
    }
}

fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

type Number = usize;

/// All names in a state.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The root is file 0, without a path.
    paths: BTreeMap<String, Number>,
    kinds: Vec<Kind>,
    attributes: Vec<Attributes>,
    /// By file: the last state in which it was changed, or in it if it is a directory.
    changed: Vec<u32>,
    /// The same, of its names and data alone, or names in it.
    data_changed: Vec<u32>,
    /// The files that data operations work on.
    known: BTreeMap<FileNo, Number>,
}

impl Names {
    /// As a tree was found. No operation is on the attributes of the root.
    pub fn new(tree: &Tree) -> Names {
        let mut names = Names {
            paths: BTreeMap::new(),
            kinds: vec![Kind::Dir],
            attributes: vec![Attributes::new(0o755)],
            changed: vec![0],
            data_changed: vec![0],
            known: BTreeMap::new(),
        };
        let mut firsts: HashMap<&str, Number> = HashMap::new();
        for (path, entry) in tree {
            let number = *firsts.entry(&entry.first).or_insert_with(|| {
                names.kinds.push(entry.kind.clone());
                names.attributes.push(entry.attributes.clone());
                names.changed.push(0);
                names.data_changed.push(0);
                names.kinds.len() - 1
            });
            names.paths.insert(path.clone(), number);
            if let Kind::Known(file) = entry.kind {
                names.known.insert(file, number);
            }
        }
        names
    }

    /// What it looks like.
    pub fn tree(&self) -> Tree {
        let mut firsts: HashMap<Number, String> = HashMap::new();
        let entry = |(path, &number): (&String, &Number)| {
            let first = firsts.entry(number).or_insert_with(|| path.clone()).clone();
            let kind = self.kinds[number].clone();
            let links = match kind {
                Kind::Dir => 0,
                _ => self
                    .paths
                    .values()
                    .filter(|&&other| other == number)
                    .count() as u32,
            };
            let entry = Entry {
                first,
                links,
                kind,
                attributes: self.attributes[number].clone(),
            };
            (path.clone(), entry)
        };
        self.paths.iter().map(entry).collect()
    }

    /// Whether an operation is durable when it returns, since a flag wants that of a directory or file.
    pub(crate) fn is_in_step(&self, op: NameOp) -> bool {
        let has = |path: &str, flags: u32| {
            let attributes = self.attributes(path);
            attributes.is_some_and(|attributes| attributes.flags & flags != 0)
        };
        match op {
            NameOp::Fill(path, _)
            | NameOp::Change(
                path,
                Change::Set(..) | Change::Remove(_) | Change::List(..) | Change::Flags(_),
            ) => has(path, InodeFlags::SYNC.0),
            _ => op.dirs().into_iter().any(|dir| has(dir, IN_STEP)),
        }
    }

    /// The state that `fsync` of a path promises.
    pub(crate) fn promised(&self, path: &str) -> u32 {
        self.number(path).map_or(0, |number| self.changed[number])
    }

    /// The state that `fdatasync` of a path promises, as far as names go.
    pub(crate) fn promised_data(&self, path: &str) -> u32 {
        self.number(path)
            .map_or(0, |number| self.data_changed[number])
    }

    fn number(&self, path: &str) -> Option<Number> {
        match path {
            "/" => Some(0),
            path => self.paths.get(path).copied(),
        }
    }

    pub(crate) fn attributes(&self, path: &str) -> Option<&Attributes> {
        self.number(path).map(|number| &self.attributes[number])
    }

    /// Where a file is: the first of its names, if it has any.
    pub(crate) fn path_of(&self, file: FileNo) -> Option<&str> {
        let number = self.known.get(&file)?;
        let found = self.paths.iter().find(|(_, other)| *other == number);
        found.map(|(path, _)| path.as_str())
    }

    /// Whether a file had names and has none.
    pub(crate) fn is_gone(&self, file: FileNo) -> bool {
        self.known.contains_key(&file) && self.path_of(file).is_none()
    }

    /// Whether a file has a name, and no flag keeps it as it is.
    pub(crate) fn is_writable(&self, file: FileNo) -> bool {
        self.path_of(file).is_some_and(|path| !self.is_fixed(path))
    }

    fn is_dir(&self, path: &str) -> bool {
        self.number(path)
            .is_some_and(|number| self.kinds[number] == Kind::Dir)
    }

    fn below<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a String> {
        let is_below = move |other: &&String| {
            let rest = other.strip_prefix(path);
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        self.paths.keys().filter(is_below)
    }

    fn is_free(&self, path: &str) -> bool {
        self.number(path).is_none() && self.is_dir(parent(path))
    }

    fn touch(&mut self, number: Number, state: u32) {
        self.changed[number] = state;
        self.data_changed[number] = state;
    }

    fn touch_dir_of(&mut self, path: &str, state: u32) {
        if let Some(number) = self.number(parent(path)) {
            self.attributes[number].mtime = None;
            self.touch(number, state);
        }
    }

    fn make(&mut self, path: &str, kind: Kind, state: u32) -> bool {
        self.make_in(parent(path), path, kind, state)
    }

    /// Makes what has its attributes of `dir`.
    fn make_in(&mut self, dir: &str, path: &str, kind: Kind, state: u32) -> bool {
        let Some(dir) = self.number(dir) else {
            return false;
        };
        let is_free = self.is_free(path);
        if is_free {
            let mode = match kind {
                Kind::File(_) => FILE_MODE,
                _ => OTHER_MODE,
            };
            let of_new = Attributes::of_new(&self.attributes[dir], kind.file_type(), mode);
            self.attributes.push(of_new);
            self.kinds.push(kind);
            self.changed.push(state);
            self.data_changed.push(state);
            self.paths.insert(path.into(), self.kinds.len() - 1);
            self.touch_dir_of(path, state);
        }
        is_free
    }

    fn remove(&mut self, path: &str, state: u32) {
        if let Some(number) = self.paths.remove(path) {
            self.touch(number, state);
        }
        self.touch_dir_of(path, state);
    }

    /// Does an operation that leads to `state`; `false`, and nothing changes, if it cannot be done.
    pub fn apply(&mut self, op: NameOp, state: u32) -> bool {
        if op.changed().into_iter().any(|path| self.is_fixed(path)) {
            return false;
        }
        match op {
            NameOp::Create(path) => self.make(path, Kind::File(Vec::new()), state),
            NameOp::Mkdir(path) => self.make(path, Kind::Dir, state),
            NameOp::Symlink(path, len) => self.make(path, Kind::Symlink(target(len)), state),
            NameOp::Mknod(path, special) => self.make(path, Kind::Special(special), state),
            NameOp::Unnamed(path) => {
                let kind = Kind::File(fill(path, UNNAMED_LEN));
                self.make_in("/", path, kind, state)
            }
            NameOp::Change(path, change) => self.change(path, change, state),
            NameOp::Fill(path, len) => self.fill(path, len, state),
            NameOp::Link(old, new) => self.link(old, new, state),
            NameOp::Unlink(path) | NameOp::UnlinkHeld(path) => self.unlink(op, path, state),
            NameOp::Rmdir(path) => {
                let possible = self.is_dir(path) && self.below(path).next().is_none();
                if possible {
                    self.remove(path, state);
                }
                possible
            }
            NameOp::Rename(from, to, over) => self.rename(from, to, over, state),
            NameOp::Fsync(path) | NameOp::Fdatasync(path) => self.number(path).is_some(),
        }
    }

    fn fill(&mut self, path: &str, len: usize, state: u32) -> bool {
        let Some(number) = self.number(path) else {
            return false;
        };
        let is_empty = self.kinds[number] == Kind::File(Vec::new());
        if is_empty {
            self.kinds[number] = Kind::File(fill(path, len));
            self.attributes[number].mtime = None;
            self.touch(number, state);
        }
        is_empty
    }

    fn is_fixed(&self, path: &str) -> bool {
        self.attributes(path).is_some_and(Attributes::is_fixed)
    }

    /// Changes attributes; `false`, and nothing changes, if the file has none such.
    pub(crate) fn change(&mut self, path: &str, change: Change, state: u32) -> bool {
        let Some(number) = self.number(path) else {
            return false;
        };
        let kind = &self.kinds[number];
        let mut attributes = self.attributes[number].clone();
        let possible = kind.takes(change) && change.apply(&mut attributes, kind);
        if possible && attributes != self.attributes[number] {
            self.attributes[number] = attributes;
            self.changed[number] = state;
        }
        possible
    }

    /// The time of last access, alone.
    pub(crate) fn set_atime(&mut self, path: &str, secs: i64, state: u32) {
        if let Some(number) = self.number(path) {
            self.attributes[number].atime = Some(secs);
            self.changed[number] = state;
        }
    }

    fn link(&mut self, old: &str, new: &str, state: u32) -> bool {
        let possible = self.number(old).is_some() && !self.is_dir(old) && self.is_free(new);
        if let (true, Some(number)) = (possible, self.number(old)) {
            self.paths.insert(new.into(), number);
            self.touch(number, state);
            self.touch_dir_of(new, state);
        }
        possible
    }

    fn unlink(&mut self, op: NameOp, path: &str, state: u32) -> bool {
        let kind = self.number(path).map(|number| &self.kinds[number]);
        // Only regular files can be held open.
        let possible = matches!(
            (kind, op),
            (Some(Kind::File(_) | Kind::Known(_)), _)
                | (Some(Kind::Symlink(_) | Kind::Special(_)), NameOp::Unlink(_))
        );
        if possible {
            self.remove(path, state);
        }
        possible
    }

    fn rename(&mut self, from: &str, to: &str, over: Over, state: u32) -> bool {
        let (one, two) = (self.number(from), self.number(to));
        let into_itself = |a: &str, b: &str| b.starts_with(a) && b[a.len()..].starts_with('/');
        let (Some(one), true) = (one, self.is_dir(parent(to))) else {
            return false;
        };
        let possible = match (over, two) {
            (Over::Nothing | Over::Whiteout, two) => two.is_none() && !into_itself(from, to),
            (_, None) => false,
            (Over::Exchange, Some(two)) => {
                one != two && !into_itself(from, to) && !into_itself(to, from)
            }
            (Over::Replace, Some(two)) => {
                let dirs = [self.is_dir(from), self.is_dir(to)];
                let empty = self.below(to).next().is_none();
                one != two && dirs[0] == dirs[1] && empty && !into_itself(from, to)
            }
        };
        if !possible {
            return false;
        }
        let moved = self.take(from);
        let other = self.take(to);
        self.put(moved, to);
        match over {
            Over::Exchange => self.put(other, from),
            Over::Whiteout => {
                self.kinds.push(Kind::Special(WHITEOUT));
                let dir = self.number(parent(from)).expect("it had the name");
                let of_new =
                    Attributes::of_new(&self.attributes[dir], FileType::CharDevice, WHITEOUT_MODE);
                self.attributes.push(of_new);
                self.changed.push(state);
                self.data_changed.push(state);
                self.paths.insert(from.into(), self.kinds.len() - 1);
            }
            Over::Replace | Over::Nothing => {}
        }
        [one]
            .into_iter()
            .chain(two)
            .for_each(|number| self.touch(number, state));
        self.touch_dir_of(from, state);
        self.touch_dir_of(to, state);
        true
    }

    /// A name and all below it, by what comes after it.
    fn take(&mut self, path: &str) -> Vec<(String, Number)> {
        let mut all: Vec<String> = self.below(path).cloned().collect();
        all.extend(self.paths.contains_key(path).then(|| path.to_owned()));
        let each = |name: String| {
            let number = self.paths.remove(&name).expect("just listed");
            (name[path.len()..].to_owned(), number)
        };
        all.into_iter().map(each).collect()
    }

    fn put(&mut self, taken: Vec<(String, Number)>, path: &str) {
        let each = |(rest, number)| (format!("{path}{rest}"), number);
        self.paths.extend(taken.into_iter().map(each));
    }
}

/// What differs between two trees, in words.
pub(crate) fn difference(found: &Tree, expected: &Tree) -> String {
    let about = |entry: Option<&Entry>| match entry {
        None => "absent".to_owned(),
        Some(entry) => {
            let Entry { first, links, .. } = entry;
            let kind = match &entry.kind {
                Kind::File(bytes) => format!("file of {} bytes", bytes.len()),
                other => format!("{other:?}"),
            };
            format!("{first} x{links}, {kind}, {}", entry.attributes)
        }
    };
    let paths = found.keys().chain(expected.keys());
    let mut differ: Vec<String> = paths
        .filter(|path| found.get(*path) != expected.get(*path))
        .map(|path| {
            format!(
                "{path} is {}, not {}",
                about(found.get(path)),
                about(expected.get(path))
            )
        })
        .collect();
    differ.sort();
    differ.dedup();
    differ.join("; ")
}

impl fmt::Display for NameOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            NameOp::Create(path) => write!(f, "create {path}"),
            NameOp::Fill(path, len) => write!(f, "fill {path} {len}"),
            NameOp::Mkdir(path) => write!(f, "mkdir {path}"),
            NameOp::Symlink(path, len) => write!(f, "symlink {path} ({len} bytes)"),
            NameOp::Mknod(path, special) => write!(f, "mknod {path} {special:?}"),
            NameOp::Link(old, new) => write!(f, "link {old} {new}"),
            NameOp::Unnamed(path) => write!(f, "tmpfile, link {path}"),
            NameOp::Unlink(path) => write!(f, "unlink {path}"),
            NameOp::UnlinkHeld(path) => write!(f, "unlink open {path}"),
            NameOp::Rmdir(path) => write!(f, "rmdir {path}"),
            NameOp::Rename(from, to, Over::Exchange) => write!(f, "exchange {from} {to}"),
            NameOp::Rename(from, to, Over::Whiteout) => write!(f, "rename {from} {to}, whiteout"),
            NameOp::Rename(from, to, _) => write!(f, "rename {from} {to}"),
            NameOp::Change(path, change) => change.describe(path, f),
            NameOp::Fsync(path) => write!(f, "fsync {path}"),
            NameOp::Fdatasync(path) => write!(f, "fdatasync {path}"),
        }
    }
}

impl Change {
    fn describe(self, path: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Set(name, len) => write!(f, "setxattr {path} {name} {len}"),
            Change::Remove(name) => write!(f, "removexattr {path} {name}"),
            Change::List(name, list) => write!(f, "setxattr {path} {name} {list:?}"),
            Change::Mode(mode) => write!(f, "chmod {path} {mode:o}"),
            Change::Owner(uid, gid) => write!(f, "chown {path} {uid}:{gid}"),
            Change::Times(atime, mtime) => write!(f, "utimens {path} {atime} {mtime}"),
            Change::Flags(flags) => write!(f, "chattr {path} ={}", InodeFlags(flags)),
            Change::Project(project) => write!(f, "chattr {path} -p {project}"),
        }
    }
}
