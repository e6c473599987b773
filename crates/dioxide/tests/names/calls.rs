//! Random calls about names: where they come from, what the model makes of them, and how dioxide carries
//! them out.
//!
//! A call depends on the seed and on the model, on nothing else.

use crate::attributes::{ACCESS, DEFAULT, FLAGS, list};
use crate::random::Random;
use crate::tree::{Answer, Body, Id, ROOT, Tree, empty_dir};
use dioxide::format::inode::InodeFlags;
use dioxide::{
    Error, File, Fs, NewFile, OpenOptions, RenameMode, SetAttributes, Special, Timestamp, XattrMode,
};
use std::collections::{BTreeMap, VecDeque};

/// How many files may be held open.
const SLOTS: u64 = 4;
/// Attributes; [`Generator::xattr`] has values for the first five.
const XATTRS: [&str; 7] = [
    "user.a",
    "trusted.b",
    "user.block",
    "security.capability",
    "user.apart",
    ACCESS,
    DEFAULT,
];
/// Longest target of a symlink that is kept in the inode.
const IN_INODE: usize = 59;
/// No file becomes longer.
const MOST: u64 = 60_000;

pub type Path = Vec<u8>;

/// One call. Paths are from the root.
#[derive(Clone, PartialEq, Eq)]
pub enum Call {
    Create {
        path: Path,
        exclusive: bool,
        mode: u16,
    },
    Mkdir {
        path: Path,
        mode: u16,
    },
    Mknod {
        path: Path,
        special: Special,
        mode: u16,
    },
    Symlink {
        target: Path,
        path: Path,
    },
    Link {
        old: Path,
        new: Path,
    },
    Unlink {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    Rename {
        from: Path,
        to: Path,
        mode: RenameMode,
        /// `RENAME_WHITEOUT`.
        whiteout: bool,
    },
    /// Opens a file, writes, and closes it.
    Write {
        path: Path,
        at: u64,
        len: u64,
        seed: u64,
    },
    /// Opens a file with `O_TRUNC`.
    Truncate {
        path: Path,
    },
    Chmod {
        path: Path,
        mode: u16,
    },
    Chown {
        path: Path,
        uid: u32,
        gid: u32,
    },
    SetXattr {
        path: Path,
        name: &'static str,
        value: Vec<u8>,
        mode: XattrMode,
    },
    RemoveXattr {
        path: Path,
        name: &'static str,
    },
    /// Seconds since 1970.
    SetTimes {
        path: Path,
        atime: i64,
        mtime: i64,
    },
    /// Of [`FLAGS`].
    SetFlags {
        path: Path,
        flags: u32,
    },
    SetProject {
        path: Path,
        project: u32,
    },
    Open {
        path: Path,
        slot: u32,
    },
    /// `O_TMPFILE`.
    Unnamed {
        dir: Path,
        slot: u32,
    },
    /// `linkat` of what is open.
    LinkOpen {
        slot: u32,
        path: Path,
    },
    WriteOpen {
        slot: u32,
        at: u64,
        len: u64,
        seed: u64,
    },
    Close {
        slot: u32,
    },
    Fsync {
        path: Path,
    },
    Sync,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |path: &Path| {
            let text = String::from_utf8_lossy(path);
            match text.chars().count() {
                0..=120 => text.into_owned(),
                len => format!("{}...({len})", text.chars().take(40).collect::<String>()),
            }
        };
        match self {
            Call::Create {
                path,
                exclusive,
                mode,
            } => {
                write!(f, "create {} excl={exclusive} {mode:o}", short(path))
            }
            Call::Mkdir { path, mode } => write!(f, "mkdir {} {mode:o}", short(path)),
            Call::Mknod {
                path,
                special,
                mode,
            } => {
                write!(f, "mknod {} {special:?} {mode:o}", short(path))
            }
            Call::Symlink { target, path } => {
                write!(f, "symlink {} -> {}", short(path), short(target))
            }
            Call::Link { old, new } => write!(f, "link {} {}", short(old), short(new)),
            Call::Unlink { path } => write!(f, "unlink {}", short(path)),
            Call::Rmdir { path } => write!(f, "rmdir {}", short(path)),
            Call::Rename {
                from,
                to,
                mode,
                whiteout,
            } => {
                write!(f, "rename {} {} {mode:?}", short(from), short(to))?;
                f.write_str(if *whiteout { ", whiteout" } else { "" })
            }
            Call::Write { path, at, len, .. } => write!(f, "write {} {at}+{len}", short(path)),
            Call::Truncate { path } => write!(f, "truncate {}", short(path)),
            Call::Chmod { path, mode } => write!(f, "chmod {} {mode:o}", short(path)),
            Call::Chown { path, uid, gid } => write!(f, "chown {} {uid}:{gid}", short(path)),
            Call::SetXattr {
                path,
                name,
                value,
                mode,
            } => {
                let (path, len) = (short(path), value.len());
                write!(f, "setxattr {path} {name} {len} bytes {mode:?}")
            }
            Call::RemoveXattr { path, name } => write!(f, "removexattr {} {name}", short(path)),
            Call::SetTimes { path, atime, mtime } => {
                write!(f, "utimens {} {atime} {mtime}", short(path))
            }
            Call::SetFlags { path, flags } => {
                write!(f, "chattr {} ={}", short(path), InodeFlags(*flags))
            }
            Call::SetProject { path, project } => write!(f, "project {} {project}", short(path)),
            Call::Open { path, slot } => write!(f, "open {} as {slot}", short(path)),
            Call::Unnamed { dir, slot } => write!(f, "tmpfile {} as {slot}", short(dir)),
            Call::LinkOpen { slot, path } => write!(f, "link {slot} {}", short(path)),
            Call::WriteOpen { slot, at, len, .. } => write!(f, "write {slot} {at}+{len}"),
            Call::Close { slot } => write!(f, "close {slot}"),
            Call::Fsync { path } => write!(f, "fsync {}", short(path)),
            Call::Sync => f.write_str("sync"),
        }
    }
}

/// The data of a write.
pub fn data(len: u64, seed: u64) -> Vec<u8> {
    dioxide_testkit::pattern(seed, 0, len as usize)
}

/// What the model makes of a call.
pub fn apply(call: &Call, tree: &mut Tree) -> Answer {
    match call {
        Call::Create {
            path,
            exclusive,
            mode,
        } => {
            let known = tree.walk(path, true);
            let id = tree.open_create(path, *exclusive, *mode)?;
            match known.is_ok() {
                true => tree.writable(id),
                false => Ok(()),
            }
        }
        Call::Mkdir { path, mode } => tree.create_at(path, empty_dir(), *mode),
        Call::Mknod {
            path,
            special,
            mode,
        } => tree.create_at(path, Body::Special(*special), *mode),
        Call::Symlink { target, path } => {
            tree.create_at(path, Body::Symlink(target.clone()), 0o777)
        }
        Call::Link { old, new } => tree.link_at(old, new),
        Call::Unlink { path } => tree.unlink_at(path),
        Call::Rmdir { path } => tree.rmdir_at(path),
        Call::Rename {
            from,
            to,
            mode,
            whiteout,
        } => tree.rename_at(from, to, *mode, *whiteout),
        Call::Write {
            path,
            at,
            len,
            seed,
        } => {
            let id = opened(tree, path)?;
            tree.write(id, *at, &data(*len, *seed));
            Ok(())
        }
        Call::Truncate { path } => {
            let id = opened(tree, path)?;
            tree.set_len(id, 0);
            Ok(())
        }
        Call::Chmod { path, mode } => {
            let id = tree.walk(path, true)?;
            tree.set_mode(id, *mode)
        }
        Call::Chown { path, uid, gid } => {
            let id = tree.walk(path, true)?;
            tree.set_owner(id, *uid, *gid)
        }
        Call::SetXattr {
            path,
            name,
            value,
            mode,
        } => {
            let id = tree.walk(path, true)?;
            tree.set_xattr(id, name, value, *mode)
        }
        Call::RemoveXattr { path, name } => {
            let id = tree.walk(path, true)?;
            tree.remove_xattr(id, name)
        }
        Call::SetTimes { path, atime, mtime } => {
            let id = tree.walk(path, true)?;
            tree.set_times(id, *atime, *mtime)
        }
        Call::SetFlags { path, flags } => {
            let id = tree.walk(path, true)?;
            tree.set_flags(id, *flags);
            Ok(())
        }
        Call::SetProject { path, project } => {
            let id = tree.walk(path, true)?;
            tree.set_project(id, *project)
        }
        Call::Open { path, slot } => {
            let id = opened(tree, path)?;
            tree.open.insert(*slot, id);
            Ok(())
        }
        Call::Unnamed { dir, slot } => tree.open_unnamed(dir, 0o600, *slot),
        Call::LinkOpen { slot, path } => tree.link_id_at(tree.open[slot], path),
        Call::WriteOpen {
            slot,
            at,
            len,
            seed,
        } => {
            tree.write(tree.open[slot], *at, &data(*len, *seed));
            Ok(())
        }
        Call::Close { slot } => {
            tree.close(*slot);
            Ok(())
        }
        Call::Fsync { path } => tree.walk(path, true).map(drop),
        Call::Sync => Ok(()),
    }
}

/// What `open` for writing finds.
fn opened(tree: &Tree, path: &[u8]) -> Answer<Id> {
    let id = tree.walk(path, true)?;
    tree.writable(id).map(|()| id)
}

/// dioxide, with what is open.
pub struct Dioxide {
    pub fs: Fs,
    pub open: BTreeMap<u32, File>,
}

impl Dioxide {
    pub fn new(fs: Fs) -> Dioxide {
        Dioxide {
            fs,
            open: BTreeMap::new(),
        }
    }

    /// Carries a call out; the `errno` it fails with.
    pub fn run(&mut self, call: &Call) -> Answer {
        self.try_run(call).map_err(|error| error.errno())
    }

    pub fn try_run(&mut self, call: &Call) -> Result<(), Error> {
        let fs = &self.fs;
        // As root, of whom set-ID bits are not taken.
        let write = || OpenOptions::new().read(true).write(true).fsetid(true);
        let time = |secs| Timestamp { secs, nanos: 0 };
        match call {
            Call::Create {
                path,
                exclusive,
                mode,
            } => {
                let options = write().create(true).new_file(&NewFile::new(*mode));
                let options = match exclusive {
                    true => options.create_new(true),
                    false => options,
                };
                options.open(fs, path).map(drop)
            }
            Call::Mkdir { path, mode } => fs.create_dir(path, &NewFile::new(*mode)),
            Call::Mknod {
                path,
                special,
                mode,
            } => fs.mknod(path, *special, &NewFile::new(*mode)),
            Call::Symlink { target, path } => fs.symlink(target, path, &NewFile::new(0o777)),
            Call::Link { old, new } => fs.hard_link(old, new),
            Call::Unlink { path } => fs.remove_file(path),
            Call::Rmdir { path } => fs.remove_dir(path),
            Call::Rename {
                from,
                to,
                mode,
                whiteout: false,
            } => fs.rename(from, to, *mode),
            Call::Rename { from, to, mode, .. } => {
                fs.rename_whiteout(from, to, *mode, &NewFile::new(0))
            }
            Call::Write {
                path,
                at,
                len,
                seed,
            } => whole(&write().open(fs, path)?, *at, &data(*len, *seed)),
            Call::Truncate { path } => write().truncate(true).open(fs, path).map(drop),
            Call::Chmod { path, mode } => {
                fs.set_attributes(path, &SetAttributes::new().mode(*mode))
            }
            Call::Chown { path, uid, gid } => {
                fs.set_attributes(path, &SetAttributes::new().uid(*uid).gid(*gid))
            }
            Call::SetXattr {
                path,
                name,
                value,
                mode,
            } => fs.set_xattr(path, name, value, *mode),
            Call::RemoveXattr { path, name } => fs.remove_xattr(path, name),
            Call::SetTimes { path, atime, mtime } => {
                let times = SetAttributes::new().atime(time(*atime));
                fs.set_attributes(path, &times.mtime(time(*mtime)))
            }
            Call::SetFlags { path, flags } => {
                let others = fs.metadata(path)?.flags & !FLAGS;
                fs.set_attributes(path, &SetAttributes::new().flags(others | flags))
            }
            Call::SetProject { path, project } => {
                fs.set_attributes(path, &SetAttributes::new().project(*project))
            }
            Call::Open { path, slot } => {
                let file = write().open(fs, path)?;
                self.open.insert(*slot, file);
                Ok(())
            }
            Call::Unnamed { dir, slot } => {
                let options = write().new_file(&NewFile::new(0o600));
                let file = options.open_unnamed(fs, dir)?;
                self.open.insert(*slot, file);
                Ok(())
            }
            Call::LinkOpen { slot, path } => self.open[slot].link(path),
            Call::WriteOpen {
                slot,
                at,
                len,
                seed,
            } => whole(&self.open[slot], *at, &data(*len, *seed)),
            Call::Close { slot } => {
                self.open.remove(slot);
                Ok(())
            }
            Call::Fsync { path } => fs.node(path)?.sync(),
            Call::Sync => fs.sync(),
        }
    }
}

fn whole(file: &File, at: u64, bytes: &[u8]) -> Result<(), Error> {
    let written = file.write_at(bytes, at)?;
    assert_eq!(written, bytes.len(), "a write is whole or fails");
    Ok(())
}

pub struct Generator {
    pub random: Random,
    /// What a longer plan still wants.
    planned: VecDeque<Call>,
    /// Longest target of a symlink.
    target_most: u64,
    /// Whether there are attributes, and targets of symlinks that need a block.
    pub blocks: bool,
    /// Names of one plan; 0 for no plans.
    many: u64,
    made: u64,
}

impl Generator {
    pub fn new(seed: u64, block_bytes: u64, many: u64) -> Generator {
        Generator {
            random: Random::new(seed),
            planned: VecDeque::new(),
            target_most: block_bytes.min(4096) + 1,
            blocks: true,
            many,
            made: 0,
        }
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.random.pick(one_in) == 0
    }

    fn name(&mut self, dir: &[u8]) -> Vec<u8> {
        let letter = b"abcdefgh"[self.random.pick(8) as usize];
        match self.random.pick(40) {
            0 if dir != b"/" => [vec![letter], vec![b'n'; 254]].concat(),
            1 => [vec![letter], vec![b'n'; 255]].concat(),
            2 => b".".to_vec(),
            3 => b"..".to_vec(),
            4 => vec![0xff, letter, b' ', b'\n'],
            _ => vec![letter],
        }
    }

    fn any_path(&mut self, tree: &Tree) -> Path {
        // Most names are of a plan's large directory; do not prefer it.
        let paths: Vec<Path> = tree.paths().into_iter().map(|(path, _)| path).collect();
        let few: Vec<&Path> = paths.iter().filter(|path| path.len() < 12).collect();
        match self.chance(4) || few.is_empty() {
            true => paths[self.random.pick(paths.len() as u64) as usize].clone(),
            false => few[self.random.pick(few.len() as u64) as usize].clone(),
        }
    }

    fn dir(&mut self, tree: &Tree) -> Path {
        for _ in 0..8 {
            let path = self.any_path(tree);
            let is_dir = tree
                .walk(&path, true)
                .is_ok_and(|id| tree.node(id).is_dir());
            let is_deep = path.iter().filter(|&&b| b == b'/').count() > 4;
            if is_dir && !is_deep && !path.starts_with(b"/lost+found") {
                return path;
            }
        }
        b"/".to_vec()
    }

    /// A path, there or not, sometimes an odd one.
    fn path(&mut self, tree: &Tree) -> Path {
        let mut path = match self.random.pick(5) {
            0 | 1 => self.any_path(tree),
            2 => {
                let base = self.any_path(tree);
                let name = self.name(&base);
                [&base[..], b"/", &name].concat()
            }
            _ => {
                let base = self.dir(tree);
                let name = self.name(&base);
                [&base[..], b"/", &name].concat()
            }
        };
        match self.random.pick(24) {
            0 => path.push(b'/'),
            1 => path.splice(..0, *b"/./").for_each(drop),
            2 => path = [&path[..], b"/.."].concat(),
            _ => {}
        }
        // Names in these would outlast the tree.
        match path.windows(10).any(|part| part == b"lost+found") {
            true => b"/a".to_vec(),
            false => path,
        }
    }

    fn slot(&mut self) -> u32 {
        self.random.pick(SLOTS) as u32
    }

    fn span(&mut self) -> (u64, u64) {
        let len = match self.random.pick(4) {
            0 => self.random.below(1..100),
            1 => 4096,
            _ => self.random.below(1..20_000),
        };
        let at = match self.random.pick(3) {
            0 => self.random.below(0..MOST - len),
            _ => 0,
        };
        (at, len)
    }

    fn mode(&mut self) -> u16 {
        [0o644, 0o755, 0o600, 0o777, 0o400][self.random.pick(5) as usize]
    }

    fn special(&mut self) -> Special {
        match self.random.pick(5) {
            0 => Special::Fifo,
            1 => Special::Socket,
            2 => Special::CharDevice(self.random.pick(256) as u32, self.random.pick(256) as u32),
            3 => Special::BlockDevice(259, self.random.pick(1 << 20) as u32),
            _ => Special::CharDevice(4000, 7),
        }
    }

    fn target(&mut self, tree: &Tree) -> Path {
        match self.random.pick(8) {
            0 => vec![b't'; self.random.below(1..self.target_most + 1) as usize],
            1 => vec![b't'; [59, 60, 61][self.random.pick(3) as usize]],
            2 => vec![b't'; 5000],
            3 => self.name(b"/t"),
            4 => [b"../", &self.name(b"/t")[..]].concat(),
            _ => self.path(tree),
        }
    }

    /// The next call. It never opens what is no file or directory.
    pub fn next(&mut self, tree: &Tree) -> Call {
        loop {
            let call = match self.planned.pop_front() {
                Some(call) => call,
                None => self.any(tree),
            };
            if self.is_for_us(&call, tree) {
                return call;
            }
        }
    }

    fn is_for_us(&self, call: &Call, tree: &Tree) -> bool {
        let opens = |path: &Path| {
            let found = tree.walk(path, true).map(|id| &tree.node(id).body);
            !matches!(found, Ok(Body::Special(_)))
        };
        match call {
            Call::Create { path, .. }
            | Call::Write { path, .. }
            | Call::Truncate { path }
            | Call::SetFlags { path, .. }
            | Call::Fsync { path } => opens(path),
            Call::Open { path, slot } => opens(path) && !tree.open.contains_key(slot),
            Call::Unnamed { slot, .. } => !tree.open.contains_key(slot),
            Call::LinkOpen { slot, .. } | Call::WriteOpen { slot, .. } | Call::Close { slot } => {
                tree.open.contains_key(slot)
            }
            _ => true,
        }
    }

    fn any(&mut self, tree: &Tree) -> Call {
        let (path, mode, seed) = (self.path(tree), self.mode(), self.random.next());
        let (at, len) = self.span();
        let slot = self.slot();
        match self.random.pick(if self.blocks { 51 } else { 40 }) {
            40..=49 => self.attribute(tree, path),
            50 => {
                self.plan_fixed(tree, path.clone());
                Call::Close { slot }
            }
            0..=3 => Call::Create {
                path,
                exclusive: self.chance(2),
                mode,
            },
            4..=8 => Call::Mkdir { path, mode },
            9 => {
                let special = self.special();
                Call::Mknod {
                    path,
                    special,
                    mode,
                }
            }
            10..=12 => Call::Symlink {
                target: match (self.target(tree), self.blocks) {
                    (target, true) => target,
                    (target, false) => target.into_iter().take(IN_INODE).collect(),
                },
                path,
            },
            13..=15 => Call::Link {
                old: self.path(tree),
                new: path,
            },
            16..=18 => Call::Unlink { path },
            19..=20 => Call::Rmdir { path },
            21..=27 => {
                let mode = [
                    RenameMode::Replace,
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                ][self.random.pick(4) as usize];
                Call::Rename {
                    from: path,
                    to: self.path(tree),
                    mode,
                    whiteout: self.chance(4),
                }
            }
            28 | 29 => Call::Write {
                path,
                at,
                len,
                seed,
            },
            30 => Call::Truncate { path },
            31 => self.chmod(tree, path, mode),
            32 => Call::Chown {
                path,
                uid: self.random.pick(1 << 17) as u32,
                gid: self.random.pick(1 << 17) as u32,
            },
            33 => Call::Open { path, slot },
            34 => Call::Unnamed {
                dir: self.dir(tree),
                slot,
            },
            35 => Call::LinkOpen { slot, path },
            36 => Call::WriteOpen {
                slot,
                at,
                len,
                seed,
            },
            37 => Call::Close { slot },
            38 if self.chance(3) => Call::Fsync { path },
            38 if self.chance(6) => Call::Sync,
            _ if self.many > 0 && self.chance(8) => {
                self.plan(tree);
                Call::Close { slot }
            }
            _ => Call::Close { slot },
        }
    }

    /// Directories get the bits that only they keep through all changes.
    fn chmod(&mut self, tree: &Tree, path: Path, mode: u16) -> Call {
        let is_dir = tree
            .walk(&path, true)
            .is_ok_and(|id| tree.node(id).is_dir());
        // In a sticky directory that all may write to, the kernel protects others' files.
        let sticky = if mode & 2 == 0 { 0o1000 } else { 0 };
        let of_dir = [0, 0o2000, sticky][self.random.pick(3) as usize];
        let of_file = [0, 0o4000, 0o2000, 0o6000][self.random.pick(4) as usize];
        let mode = mode | if is_dir { of_dir } else { of_file };
        Call::Chmod { mode, path }
    }

    /// A call on what a file has besides its content.
    fn attribute(&mut self, tree: &Tree, path: Path) -> Call {
        match self.random.pick(10) {
            0..=3 => {
                let (name, value) = self.xattr(tree);
                let mode = [
                    XattrMode::Set,
                    XattrMode::Set,
                    XattrMode::Create,
                    XattrMode::Replace,
                ][self.random.pick(4) as usize];
                Call::SetXattr {
                    path,
                    name,
                    value,
                    mode,
                }
            }
            4 => Call::SetXattr {
                path,
                name: ACCESS,
                value: self.list(),
                mode: XattrMode::Set,
            },
            5 => Call::SetXattr {
                path,
                name: DEFAULT,
                value: self.list(),
                mode: XattrMode::Set,
            },
            6 | 7 => Call::RemoveXattr {
                path,
                name: XATTRS[self.random.pick(XATTRS.len() as u64) as usize],
            },
            8 => Call::SetTimes {
                path,
                atime: self.random.pick(1 << 30) as i64 - 1000,
                mtime: self.random.pick(1 << 30) as i64 - 1000,
            },
            _ if tree.has_projects && self.chance(2) => Call::SetProject {
                path,
                project: self.random.pick(4) as u32,
            },
            _ => Call::SetFlags {
                path,
                flags: [0, InodeFlags::NODUMP.0, InodeFlags::NOATIME.0]
                    [self.random.pick(3) as usize],
            },
        }
    }

    /// All values of a file but the last have room in a block together. Some are of several files.
    fn xattr(&mut self, tree: &Tree) -> (&'static str, Vec<u8>) {
        let name = XATTRS[self.random.pick(5) as usize];
        let (seed, some) = (self.random.pick(2), self.random.below(0..100));
        let value = match name {
            "user.a" => data(some % 13, seed),
            "trusted.b" => data(some, seed),
            "user.block" => data(300 + seed, seed),
            "security.capability" => [&[1, 0, 0, 2][..], &[seed as u8 + 1; 16]].concat(),
            _ => {
                let least = tree.value_most.map_or(300, |most| most as u64 + 1);
                data(least + some * 60, self.random.next())
            }
        };
        (name, value)
    }

    /// Others never write: in a sticky directory where they may, the kernel protects files.
    fn list(&mut self) -> Vec<u8> {
        const NO_ID: u32 = u32::MAX;
        let mut perm = || self.random.pick(8) as u8;
        let (user, named, group, mask, other) = (perm(), perm(), perm(), perm(), perm() & 5);
        match self.random.pick(4) {
            0 => list(&[]),
            1 => list(&[(1, user, NO_ID), (4, group, NO_ID), (0x20, other, NO_ID)]),
            id => list(&[
                (1, user, NO_ID),
                (2, named, 1000),
                (4, group, NO_ID),
                (8, named, 2000 + id as u32),
                (0x10, mask, NO_ID),
                (0x20, other, NO_ID),
            ]),
        }
    }

    /// What nobody may do with a file that is immutable or append-only, until it is not.
    fn plan_fixed(&mut self, tree: &Tree, path: Path) {
        let id = tree.walk(&path, false);
        if !id.is_ok_and(|id| matches!(tree.node(id).body, Body::File(_))) {
            return;
        }
        let flags = [InodeFlags::IMMUTABLE.0, InodeFlags::APPEND.0][self.random.pick(2) as usize];
        let other = [&path[..], b"'"].concat();
        let (at, len, seed, mode) = (0, 10, 1, 0o600);
        let calls = [
            Call::SetFlags {
                path: path.clone(),
                flags,
            },
            Call::Chmod {
                path: path.clone(),
                mode,
            },
            Call::Chown {
                path: path.clone(),
                uid: 1,
                gid: 1,
            },
            Call::SetXattr {
                path: path.clone(),
                name: "user.a",
                value: vec![1],
                mode: XattrMode::Set,
            },
            Call::SetXattr {
                path: path.clone(),
                name: ACCESS,
                value: self.list(),
                mode: XattrMode::Set,
            },
            Call::RemoveXattr {
                path: path.clone(),
                name: "user.a",
            },
            Call::SetTimes {
                path: path.clone(),
                atime: 1,
                mtime: 2,
            },
            Call::Create {
                path: path.clone(),
                exclusive: false,
                mode,
            },
            Call::Write {
                path: path.clone(),
                at,
                len,
                seed,
            },
            Call::Truncate { path: path.clone() },
            Call::Link {
                old: path.clone(),
                new: other.clone(),
            },
            Call::Rename {
                from: path.clone(),
                to: other,
                mode: RenameMode::Replace,
                whiteout: false,
            },
            Call::Unlink { path: path.clone() },
            Call::SetFlags { path, flags: 0 },
        ];
        self.planned.extend(calls);
    }

    /// Many names in one directory, most of which then go again, or move to another.
    fn plan(&mut self, tree: &Tree) {
        let dir = match self.dir(tree) {
            root if root == b"/" => b"/big".to_vec(),
            dir => dir,
        };
        let other = [&dir[..], b"/.."].concat();
        self.made += 1;
        let (made, filler) = (self.made, b"x".repeat(self.random.below(0..90) as usize));
        let name = |number: u64| {
            let tail = String::from_utf8_lossy(&filler).into_owned();
            format!("m{made}-{number}{tail}").into_bytes()
        };
        let at = |dir: &[u8], number| [dir, b"/", &name(number)].concat();
        let mode = 0o644;
        self.planned.push_back(Call::Mkdir {
            path: dir.clone(),
            mode: 0o755,
        });
        let first = at(&dir, 0);
        self.planned.push_back(Call::Create {
            path: first.clone(),
            exclusive: true,
            mode,
        });
        let count = self.random.below(self.many / 4..self.many);
        for number in 1..count {
            let new = at(&dir, number);
            let call = match number % 3 {
                0 => Call::Symlink {
                    target: new.clone(),
                    path: new,
                },
                1 => Call::Link {
                    old: first.clone(),
                    new,
                },
                _ => Call::Create {
                    path: new,
                    exclusive: true,
                    mode,
                },
            };
            self.planned.push_back(call);
        }
        let keep = self.random.below(2..8);
        let moves = other != b"/big/.." && self.chance(3);
        for number in (0..count).filter(|number| number % keep != 0) {
            let path = at(&dir, number);
            self.planned.push_back(match moves && number % 5 == 0 {
                true => Call::Rename {
                    from: path,
                    to: at(&dir, number / 2),
                    mode: RenameMode::Exchange,
                    whiteout: false,
                },
                false => Call::Unlink { path },
            });
        }
    }
}

/// The calls that remove all there is but `lost+found`, attributes of the root included.
pub fn remove_all(tree: &Tree) -> Vec<Call> {
    let path = b"/".to_vec();
    let of_root = XATTRS.into_iter().filter(|name| {
        let xattrs = &tree.node(ROOT).attributes.xattrs;
        xattrs.contains_key(name.as_bytes())
    });
    let of_root = of_root.map(|name| Call::RemoveXattr {
        path: path.clone(),
        name,
    });
    let frees = tree.paths().into_iter();
    let frees = frees.filter(|(_, id)| tree.node(*id).attributes.is_fixed());
    let frees = frees.map(|(path, _)| Call::SetFlags { path, flags: 0 });
    let closes = tree.open.keys().map(|&slot| Call::Close { slot });
    let remove = |(path, id): (Path, u32)| match tree.node(id).is_dir() {
        true => Call::Rmdir { path },
        false => Call::Unlink { path },
    };
    let paths = tree.paths().into_iter().rev();
    let removes = paths.filter(|(path, id)| *id != ROOT && path != b"/lost+found");
    let attributes = of_root.chain(frees);
    closes
        .chain(attributes)
        .chain(removes.map(remove))
        .collect()
}
