//! Four threads at once in a few directories, which they hold by node: a lineariser finds an order of all
//! calls that explains what each answered; and many calls without it, after which `e2fsck` and free
//! counts are right.

use crate::attributes::{ACCESS, DEFAULT, FLAGS, list};
use crate::calls::data;
use crate::kinds::{kinds, with_quotas};
use crate::random::Random;
use crate::random_calls::open_fs;
use crate::tree::{Answer, Body, Id, ROOT, Tree, empty_dir};
use crate::view::{self, View};
use dioxide::format::inode::InodeFlags;
use dioxide::{
    File, Fs, MountOptions, NewFile, Node, OpenOptions, RenameMode, SetAttributes, Special,
    Timestamp, XattrMode,
};
use dioxide_testkit::{Image, e2fsck_clean, seeds, soaks};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

const THREADS: usize = 4;
const CALLS: usize = 6;
const NAMES: [&str; 3] = ["a", "b", "c"];
/// The directories, by their place in the list of nodes. The last lies in the one before.
const DIRS: [&str; 3] = ["/d0", "/d1", "/d1/a"];
/// Behind them in that list: a file, which is also open, and one that has no name yet.
const FILE: usize = DIRS.len();
const UNNAMED: usize = FILE + 1;
/// Slots for files that are made without a name; in the model they come behind what is held.
const SLOTS: usize = 2;
const FIRST_SLOT: usize = UNNAMED + 1;

/// A directory of [`DIRS`], and a name in it.
type Place = (usize, &'static str);

#[derive(Clone, Copy, Debug)]
enum Call {
    Create(Place),
    Mkdir(Place),
    /// Each target is of one call only.
    Symlink(Place, u64),
    /// Each device is of one call only.
    Mknod(Place, u64),
    /// Of a file that is held.
    Link(usize, Place),
    Unlink(Place),
    Rmdir(Place),
    Rename(Place, Place, RenameMode),
    Whiteout(Place, Place, RenameMode),
    /// Which file it is.
    Look(Place),
    List(usize),
    /// Of what is held, as all that follow: see [`value`].
    SetXattr(usize, u64, XattrMode),
    RemoveXattr(usize),
    Xattr(usize),
    /// An access control list, or that which a directory hands on: see [`acl`].
    SetList(usize, &'static str, u8),
    RemoveDefault(usize),
    Chmod(usize, u16),
    Chown(usize, u32),
    SetFlags(usize, u32),
    /// In seconds.
    SetTimes(usize, i64),
    SetProject(usize, u32),
    Mode(usize),
    /// To the file that is open, and no other: see [`part`].
    Write(u64),
    SetLen(u64),
    /// What [`part`] of the same number writes over.
    Read(u64),
    Size,
    /// A file without a name, in a slot.
    Unnamed(usize, usize),
    /// Of what is in the slot.
    LinkUnnamed(usize, Place),
}

/// An attribute of those that are held.
const XATTR: &str = "user.t";

/// Its values: in the inode, or in a block that some may share; or in an inode of their own, where there are such.
fn value(number: u64, is_apart: bool) -> Vec<u8> {
    match number % 3 {
        0 => number.to_le_bytes().to_vec(),
        1 if is_apart => data(3000, number % 2),
        seed => data(300, seed),
    }
}

/// Whether values have inodes of their own.
fn is_apart(tree: &Tree) -> bool {
    tree.value_most.is_none()
}

/// What a call writes, and where.
fn part(number: u64) -> (u64, Vec<u8>) {
    (number % 3 * 512, data(512, number))
}

/// Permissions of some users, and most that others have: for odd ones of so many that they need a block, which some may
/// share.
fn acl(perm: u8) -> Vec<u8> {
    let (users, none) = (if perm.is_multiple_of(2) { 1 } else { 12 }, u32::MAX);
    let named = (1000..1000 + users).map(|id| (2, perm, id));
    let others = [(4, 5, none), (0x10, perm, none), (0x20, 5, none)];
    let entries = [(1, 7, none)].into_iter().chain(named).chain(others);
    list(&entries.collect::<Vec<_>>())
}

/// Inode number and generation.
type Which = (u32, u32);

/// What a call answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// Made or found: its kind, and which it is.
    File(&'static str, Which),
    Names(Vec<String>),
    Value(Option<Vec<u8>>),
    Content(Vec<u8>),
    Size(u64),
    /// And flags.
    Mode(u16, u32),
}

#[derive(Debug)]
struct Event {
    call: Call,
    begin: u64,
    end: u64,
    found: Answer<Found>,
}

fn place(random: &mut Random) -> Place {
    let name = NAMES[random.pick(3) as usize];
    (random.pick(3) as usize, name)
}

fn call(random: &mut Random, unique: u64, has_projects: bool) -> Call {
    let (one, two) = (place(random), place(random));
    let held = random.pick(UNNAMED as u64 + 1) as usize;
    let file = FILE + random.pick(2) as usize;
    let perm = random.pick(8) as u8;
    let slot = random.pick(SLOTS as u64) as usize;
    match random.pick(52) {
        16 | 17 => Call::SetXattr(held, unique, XattrMode::Set),
        18 => Call::SetXattr(held, unique, XattrMode::Create),
        19 => Call::RemoveXattr(held),
        20 => Call::Xattr(held),
        21 => Call::SetList(held, ACCESS, perm),
        25 | 26 => Call::SetList(held, DEFAULT, perm),
        27 => Call::RemoveDefault(held),
        22 => Call::Chmod(held, 0o700 | u16::from(perm) << 3),
        23 => Call::Chown(held, perm.into()),
        24 => Call::Mode(held),
        0 | 1 => Call::Create(one),
        2 | 3 => Call::Mkdir(one),
        4 => Call::Symlink(one, unique),
        5 | 30 | 31 => Call::Link(file, one),
        32 | 33 => Call::Mknod(one, unique),
        34 => Call::SetFlags(held, INHERITED[random.pick(3) as usize]),
        35 => Call::SetFlags(file, InodeFlags::IMMUTABLE.0),
        36 => Call::SetFlags(file, 0),
        // What is immutable may have the project that it has.
        37 if has_projects => Call::SetProject(held % DIRS.len(), perm.into()),
        37 | 38 => Call::SetTimes(held, 1000 + unique as i64),
        39 | 40 => Call::Write(unique),
        41 => Call::SetLen(unique % 4 * 512),
        42..45 => Call::Read(unique),
        45..47 => Call::Size,
        47..49 => Call::Unnamed(slot, one.0),
        49..52 => Call::LinkUnnamed(slot, one),
        6 | 7 => Call::Unlink(one),
        8 | 9 => Call::Rmdir(one),
        10 | 11 => Call::Rename(one, two, RenameMode::Replace),
        12 => Call::Rename(one, two, RenameMode::NoReplace),
        13 => Call::Rename(one, two, RenameMode::Exchange),
        28 => Call::Whiteout(one, two, RenameMode::Replace),
        29 => Call::Whiteout(one, two, RenameMode::NoReplace),
        14 => Call::Look(one),
        _ => Call::List(one.0),
    }
}

/// Flags that new files have of their directory.
const INHERITED: [u32; 3] = [0, InodeFlags::NODUMP.0, InodeFlags::NOATIME.0];

/// What all calls are about.
struct Held {
    nodes: Vec<Node>,
    file: File,
    slots: [Mutex<Option<Node>>; SLOTS],
    is_apart: bool,
    has_projects: bool,
}

impl Held {
    /// Nothing keeps what is left from being removed.
    fn let_go(self) {
        for at in [FILE, UNNAMED] {
            set_flags(&self.nodes[at], 0).expect("it may be changed again");
        }
    }
}

fn file(node: &Node) -> Found {
    let kind = format!("{:?}", node.file_type());
    let kinds = ["Regular", "Directory", "Symlink", "CharDevice", "Fifo"];
    let known = kinds.into_iter().find(|known| *known == kind);
    Found::File(known.expect("of these"), which(node))
}

fn which(node: &Node) -> Which {
    (node.ino(), node.generation())
}

fn set_flags(node: &Node, flags: u32) -> dioxide::Result<()> {
    loop {
        let others = node.metadata().flags & !FLAGS;
        match node.set_attributes(&SetAttributes::new().flags(others | flags)) {
            // Its content went out of the inode meanwhile.
            Err(error) if error.errno() == libc::EOPNOTSUPP => {}
            done => return done,
        }
    }
}

fn special(unique: u64) -> Special {
    match unique % 3 {
        0 => Special::Fifo,
        _ => Special::CharDevice(7, unique as u32),
    }
}

/// Carries a call out.
fn run(held: &Held, call: Call) -> Answer<Found> {
    try_run(held, call).map_err(|error| error.errno())
}

fn try_run(held: &Held, call: Call) -> dioxide::Result<Found> {
    let dirs = &held.nodes;
    let new = NewFile::new(0o755);
    let done = |()| Found::Nothing;
    let set = |at: usize, set: SetAttributes| dirs[at].set_attributes(&set).map(done);
    match call {
        Call::SetXattr(at, number, mode) => {
            let value = value(number, held.is_apart);
            dirs[at].set_xattr(XATTR, &value, mode).map(done)
        }
        Call::RemoveXattr(at) => dirs[at].remove_xattr(XATTR).map(done),
        Call::Xattr(at) => dirs[at].xattr(XATTR).map(Found::Value),
        Call::SetList(at, which, perm) => dirs[at]
            .set_xattr(which, &acl(perm), XattrMode::Set)
            .map(done),
        Call::RemoveDefault(at) => dirs[at].remove_xattr(DEFAULT).map(done),
        Call::Chmod(at, mode) => set(at, SetAttributes::new().mode(mode)),
        Call::Chown(at, id) => set(at, SetAttributes::new().uid(id).gid(id)),
        Call::SetFlags(at, flags) => set_flags(&dirs[at], flags).map(done),
        Call::SetTimes(at, secs) => {
            let time = Timestamp { secs, nanos: 0 };
            set(at, SetAttributes::new().atime(time).mtime(time))
        }
        Call::SetProject(at, id) => set(at, SetAttributes::new().project(id)),
        Call::Mode(at) => {
            let about = dirs[at].metadata();
            Ok(Found::Mode(about.permissions, about.flags & FLAGS))
        }
        Call::Write(number) => {
            let (at, bytes) = part(number);
            let written = held.file.write_at(&bytes, at)?;
            assert_eq!(written, bytes.len());
            Ok(Found::Nothing)
        }
        Call::SetLen(len) => held.file.set_len(len).map(done),
        Call::Read(number) => {
            let (at, mut bytes) = part(number);
            let read = held.file.read_at(&mut bytes, at)?;
            bytes.truncate(read);
            Ok(Found::Content(bytes))
        }
        Call::Size => Ok(Found::Size(dirs[FILE].metadata().size)),
        Call::Unnamed(slot, dir) => {
            let mut slot = held.slots[slot].lock().expect("no panic");
            let made = dirs[dir].create_unnamed(&new)?;
            let found = file(&made);
            *slot = Some(made);
            Ok(found)
        }
        Call::LinkUnnamed(slot, (dir, name)) => {
            match &*held.slots[slot].lock().expect("no panic") {
                Some(node) => node.link(&dirs[dir], name.as_bytes()).map(done),
                None => Ok(Found::Nothing),
            }
        }
        Call::Mknod((dir, name), unique) => dirs[dir]
            .mknod(name.as_bytes(), special(unique), &new)
            .map(|node| file(&node)),
        Call::Create((dir, name)) => dirs[dir]
            .create(name.as_bytes(), &new)
            .map(|node| file(&node)),
        Call::Mkdir((dir, name)) => dirs[dir]
            .create_dir(name.as_bytes(), &new)
            .map(|node| file(&node)),
        Call::Symlink((dir, name), unique) => {
            let target = target(unique);
            dirs[dir]
                .symlink(&target, name.as_bytes(), &new)
                .map(|node| file(&node))
        }
        Call::Link(file, (dir, name)) => dirs[file].link(&dirs[dir], name.as_bytes()).map(done),
        Call::Unlink((dir, name)) => dirs[dir].remove_file(name.as_bytes()).map(done),
        Call::Rmdir((dir, name)) => dirs[dir].remove_dir(name.as_bytes()).map(done),
        Call::Rename((dir, name), (to, new), mode) => dirs[dir]
            .rename(name.as_bytes(), &dirs[to], new.as_bytes(), mode)
            .map(done),
        Call::Whiteout((dir, name), (to, new_name), mode) => dirs[dir]
            .rename_whiteout(
                name.as_bytes(),
                &dirs[to],
                new_name.as_bytes(),
                mode,
                &NewFile::new(0),
            )
            .map(done),
        Call::Look((dir, name)) => dirs[dir].lookup(name.as_bytes()).map(|node| file(&node)),
        Call::List(dir) => {
            let entries = dirs[dir].read_dir(0, 1000)?;
            let names = entries.into_iter().map(|(entry, _)| text(&entry.name));
            let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
            names.sort();
            Ok(Found::Names(names))
        }
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn target(unique: u64) -> Vec<u8> {
    // Some are too long for the inode.
    format!(
        "{unique:0width$}",
        width = if unique.is_multiple_of(2) { 5 } else { 100 }
    )
    .into_bytes()
}

/// The model's files, and which they are: what made them told.
#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    tree: Tree,
    which: BTreeMap<Id, Which>,
}

impl World {
    /// A file of the model as an answer. Of one that no answer named before, which it is is believed.
    fn file(&mut self, id: Id, said: &Answer<Found>) -> Found {
        let kind = match self.tree.node(id).body {
            Body::Dir { .. } => "Directory",
            Body::Symlink(_) => "Symlink",
            Body::Special(Special::Fifo) => "Fifo",
            Body::Special(_) => "CharDevice",
            Body::File(_) => "Regular",
        };
        match (self.which.get(&id), said) {
            (Some(which), _) => Found::File(kind, *which),
            (None, Ok(Found::File(_, which))) => {
                self.which.insert(id, *which);
                Found::File(kind, *which)
            }
            (None, _) => Found::Nothing,
        }
    }
}

/// What is in the file that is open.
fn content<'a>(tree: &'a Tree, dirs: &[Id]) -> &'a [u8] {
    match &tree.node(dirs[FILE]).body {
        Body::File(content) => content,
        other => panic!("{other:?} has no content"),
    }
}

/// What the model makes of it. `dirs` are the files that [`DIRS`] were at the beginning; one that went is gone.
fn model(world: &mut World, dirs: &[Id], call: Call, said: &Answer<Found>) -> Answer<Found> {
    let tree = &mut world.tree;
    let done = |()| Found::Nothing;
    let create = |world: &mut World, (dir, name): Place, body| {
        let made = world.tree.create(dirs[dir], name.as_bytes(), body, 0o755)?;
        Ok(world.file(made, said))
    };
    match call {
        Call::SetXattr(at, number, mode) => {
            let value = value(number, is_apart(tree));
            tree.set_xattr(dirs[at], XATTR, &value, mode).map(done)
        }
        Call::RemoveXattr(at) => tree.remove_xattr(dirs[at], XATTR).map(done),
        Call::Xattr(at) => {
            let xattrs = &tree.node(dirs[at]).attributes.xattrs;
            Ok(Found::Value(xattrs.get(XATTR.as_bytes()).cloned()))
        }
        Call::SetList(at, which, perm) => {
            let set = tree.set_xattr(dirs[at], which, &acl(perm), XattrMode::Set);
            set.map(done)
        }
        Call::RemoveDefault(at) => tree.remove_xattr(dirs[at], DEFAULT).map(done),
        Call::Chmod(at, mode) => tree.set_mode(dirs[at], mode).map(done),
        Call::Chown(at, id) => tree.set_owner(dirs[at], id, id).map(done),
        Call::SetFlags(at, flags) => {
            tree.set_flags(dirs[at], flags);
            Ok(Found::Nothing)
        }
        Call::SetTimes(at, secs) => tree.set_times(dirs[at], secs, secs).map(done),
        Call::SetProject(at, id) => tree.set_project(dirs[at], id).map(done),
        Call::Mode(at) => {
            let attributes = &tree.node(dirs[at]).attributes;
            Ok(Found::Mode(attributes.mode, attributes.flags))
        }
        Call::Write(number) => {
            tree.writable(dirs[FILE])?;
            let (at, bytes) = part(number);
            tree.write(dirs[FILE], at, &bytes);
            Ok(Found::Nothing)
        }
        Call::SetLen(len) => {
            tree.writable(dirs[FILE])?;
            tree.set_len(dirs[FILE], len);
            Ok(Found::Nothing)
        }
        Call::Read(number) => {
            let (content, (at, bytes)) = (content(tree, dirs), part(number));
            let end = content.len().min(at as usize + bytes.len());
            let read = content.get(at as usize..end).unwrap_or_default();
            Ok(Found::Content(read.to_vec()))
        }
        Call::Size => Ok(Found::Size(content(tree, dirs).len() as u64)),
        Call::Unnamed(slot, dir) => {
            let slot = (FIRST_SLOT + slot) as u32;
            let made = tree.create_unnamed(dirs[dir], 0o755)?;
            tree.close(slot);
            tree.open.insert(slot, made);
            Ok(world.file(made, said))
        }
        Call::LinkUnnamed(slot, (dir, name)) => {
            match tree.open.get(&((FIRST_SLOT + slot) as u32)) {
                Some(&file) => tree.link(file, dirs[dir], name.as_bytes()).map(done),
                None => Ok(Found::Nothing),
            }
        }
        Call::Mknod(place, unique) => create(world, place, Body::Special(special(unique))),
        Call::Create(place) => create(world, place, Body::File(Vec::new())),
        Call::Mkdir(place) => create(world, place, empty_dir()),
        Call::Symlink(place, unique) => create(world, place, Body::Symlink(target(unique))),
        Call::Link(file, (dir, name)) => {
            let link = tree.link(dirs[file], dirs[dir], name.as_bytes());
            link.map(done)
        }
        Call::Unlink((dir, name)) => tree.unlink(dirs[dir], name.as_bytes()).map(done),
        Call::Rmdir((dir, name)) => tree.rmdir(dirs[dir], name.as_bytes()).map(done),
        Call::Rename((dir, name), (to, new), mode) => {
            let (from, to) = ((dirs[dir], name.as_bytes()), (dirs[to], new.as_bytes()));
            tree.rename(from, to, mode, [false; 2]).map(done)
        }
        Call::Whiteout((dir, name), (to, new), mode) => {
            let (from, to) = ((dirs[dir], name.as_bytes()), (dirs[to], new.as_bytes()));
            tree.rename(from, to, mode, [false; 2])?;
            tree.white_out(from).map(done)
        }
        Call::Look((dir, name)) => {
            let id = tree
                .child(dirs[dir], name.as_bytes())?
                .ok_or(libc::ENOENT)?;
            Ok(world.file(id, said))
        }
        Call::List(dir) => {
            let names = tree.names(dirs[dir])?;
            match tree.node(dirs[dir]).nlink {
                0 => Err(libc::ENOENT),
                _ => Ok(Found::Names(names.keys().map(|name| text(name)).collect())),
            }
        }
    }
}

/// Searches an order in which the model answers as was found: of the calls that no other had ended before
/// they began, one is next. What was tried in vain is kept.
struct Search<'a> {
    events: &'a [Event],
    dirs: &'a [Id],
    failed: HashSet<(u32, World)>,
}

impl Search<'_> {
    /// The trees that are left by orders that fit; only whether there is one whose names are `last`.
    fn explains(&mut self, done: u32, world: &World, last: &dyn Fn(&Tree) -> bool) -> bool {
        if done.count_ones() as usize == self.events.len() {
            return last(&world.tree);
        }
        if self.failed.contains(&(done, world.clone())) {
            return false;
        }
        let left = (0..self.events.len()).filter(|at| done >> at & 1 == 0);
        let left: Vec<usize> = left.collect();
        let ends = left.iter().map(|&at| self.events[at].end);
        let first_end = ends.min().expect("some are left");
        for at in left {
            let event = &self.events[at];
            if event.begin > first_end {
                continue;
            }
            let mut next = world.clone();
            if model(&mut next, self.dirs, event.call, &event.found) == event.found
                && self.explains(done | 1 << at, &next, last)
            {
                return true;
            }
        }
        self.failed.insert((done, world.clone()));
        false
    }
}

/// The three directories and two files, made anew. They are held open in the model: what is removed stays known.
fn begin(fs: &Fs) -> (Held, World, Vec<Id>) {
    for dir in DIRS {
        fs.create_dir(dir, &NewFile::new(0o755)).expect("room");
    }
    let node = |dir: &str| fs.node(dir).expect("just made");
    let mut nodes: Vec<Node> = DIRS.map(node).into();
    let named = nodes[0].create(b"a", &NewFile::default()).expect("room");
    let unnamed = nodes[0].create_unnamed(&NewFile::default());
    let file = named.open(&OpenOptions::new().read(true).write(true));
    let file = file.expect("a regular file");
    nodes.extend([named, unnamed.expect("room")]);
    let mut tree = Tree::of(fs);
    let held = Held {
        nodes,
        file,
        slots: Default::default(),
        is_apart: is_apart(&tree),
        has_projects: tree.has_projects,
    };
    tree.rmdir(ROOT, b"lost+found").expect("empty");
    let mut dirs = Vec::new();
    for (slot, (parent, name)) in [(None, b"d0"), (None, b"d1"), (Some(1), b"a\0")]
        .into_iter()
        .enumerate()
    {
        let parent = parent.map_or(ROOT, |at: usize| dirs[at]);
        let name = name.strip_suffix(b"\0").unwrap_or(name);
        let id = tree
            .create(parent, name, empty_dir(), 0o755)
            .expect("empty");
        tree.open.insert(slot as u32, id);
        dirs.push(id);
    }
    let named = tree.create(dirs[0], b"a", Body::File(Vec::new()), 0o644);
    dirs.push(named.expect("empty"));
    tree.open.insert(FILE as u32, dirs[FILE]);
    tree.open_unnamed(b"/d0", 0o644, UNNAMED as u32)
        .expect("a directory");
    dirs.push(tree.open[&(UNNAMED as u32)]);
    let which = held.nodes.iter().map(which);
    let which = dirs.iter().copied().zip(which).collect();
    (held, World { tree, which }, dirs)
}

/// Runs the calls of all threads at once.
fn at_once(held: &Held, seed: u64) -> Vec<Event> {
    let (clock, barrier) = (AtomicU64::new(0), Barrier::new(THREADS));
    let now = || clock.fetch_add(1, Ordering::SeqCst);
    let work = |thread: usize| {
        let mut random = Random::new(seed * 64 + thread as u64);
        let calls: Vec<Call> = (0..CALLS)
            .map(|index| (thread * CALLS + index) as u64)
            .map(|unique| call(&mut random, unique, held.has_projects))
            .collect();
        barrier.wait();
        let one = |call| {
            let begin = now();
            let found = run(held, call);
            let end = now();
            Event {
                call,
                begin,
                end,
                found,
            }
        };
        calls.into_iter().map(one).collect::<Vec<Event>>()
    };
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        let events = threads.into_iter().map(|t| t.join().expect("no panic"));
        events.flatten().collect()
    })
}

/// What is below a directory, or several whose paths begin so.
fn below(fs: &Fs, dir: &str) -> View {
    only(view::of_dioxide(fs), dir)
}

fn only(mut view: View, dir: &str) -> View {
    view.retain(|path, _| path.starts_with(dir.as_bytes()));
    view
}

fn remove_below(fs: &Fs, view: &View) {
    for (path, entry) in view.iter().rev() {
        let removed = match entry.kind {
            dioxide::FileType::Directory => fs.remove_dir(path),
            _ => fs.remove_file(path),
        };
        removed.expect("nothing is in it any more");
    }
}

/// Tells what was done if looking at what it left fails.
struct Report<'a>(&'a [Event], u64);

impl Drop for Report<'_> {
    fn drop(&mut self) {
        let mut sorted: Vec<&Event> = self.0.iter().collect();
        sorted.sort_by_key(|event| event.begin);
        eprintln!("seed {}:", self.1);
        sorted.iter().for_each(|event| eprintln!("{event:?}"));
    }
}

fn check_round(fs: &Fs, seed: u64) {
    let (held, world, dirs) = begin(fs);
    let events = at_once(&held, seed);
    let report = Report(&events, seed);
    let left = below(fs, "/d");
    held.let_go();
    let mut search = Search {
        events: &events,
        dirs: &dirs,
        failed: HashSet::new(),
    };
    let is_last = |tree: &Tree| only(view::of_model(tree), "/d") == left;
    let explained = search.explains(0, &world, &is_last);
    assert!(
        explained,
        "seed {seed}: no order explains what left {left:?}"
    );
    std::mem::forget(report);
    remove_below(fs, &left);
}

#[test]
fn calls_of_four_threads_have_an_order_that_explains_them() {
    let rounds = seeds(250);
    let chosen = [
        "defaults",
        "1k blocks",
        "no journal",
        "inline data",
        "values in inodes",
        "quotas",
    ];
    let kinds = kinds().into_iter().chain([with_quotas()]);
    for (name, builder) in kinds.filter(|(name, _)| chosen.contains(name)) {
        let image = builder.build();
        let fs = open_fs(&image);
        let free = fs.statfs();
        for seed in rounds.clone() {
            check_round(&fs, seed);
        }
        fs.sync().expect("a sync");
        assert_eq!(fs.statfs(), free, "{name}");
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

/// The search is worth something only if it can fail.
#[test]
fn answers_that_no_order_gives_are_found() {
    let image = Image::builder().size(16 << 20).build();
    let fs = open_fs(&image);
    let (held, world, dirs) = begin(&fs);
    let make = Call::Create((0, NAMES[1]));
    let mark = Call::SetXattr(0, 1, XattrMode::Create);
    let at = |call, begin, found| Event {
        call,
        begin,
        end: begin + 5,
        found,
    };
    let look = Call::Look((0, NAMES[1]));
    let file = |ino| Ok(Found::File("Regular", (ino, 1)));
    let (exists, marked) = (Err(libc::EEXIST), Ok(Found::Nothing));
    let (write, done) = (Call::Write(2), Ok(Found::Nothing));
    let read = |number| Ok(Found::Content(part(number).1));
    let size = |bytes| Ok(Found::Size(bytes));
    let link = Call::LinkUnnamed(0, (0, NAMES[1]));
    for (one, other, explained) in [
        ((make, file(100)), (make, exists.clone()), true),
        ((make, file(100)), (make, file(101)), false),
        ((make, file(100)), (look, file(100)), true),
        ((make, file(100)), (look, Err(libc::ENOENT)), true),
        // Of the same kind, and another.
        ((make, file(100)), (look, file(101)), false),
        ((mark, marked.clone()), (mark, exists), true),
        ((mark, marked.clone()), (mark, marked), false),
        // Of the file that is open.
        ((write, done.clone()), (Call::Read(2), read(2)), true),
        ((write, done.clone()), (Call::Read(2), read(5)), false),
        ((write, done.clone()), (Call::Size, size(0)), true),
        ((write, done.clone()), (Call::Size, size(1024)), false),
        ((Call::Unnamed(0, 0), file(100)), (link, done.clone()), true),
        ((link, Err(libc::ENOENT)), (Call::Size, size(0)), false),
    ] {
        let events = [at(one.0, 0, one.1), at(other.0, 1, other.1)];
        let mut search = Search {
            events: &events,
            dirs: &dirs,
            failed: HashSet::new(),
        };
        assert_eq!(search.explains(0, &world, &|_| true), explained);
    }
    held.let_go();
    fs.close().expect("a clean end");
}

/// A call by what a path leads to, mostly a directory.
fn by_node(fs: &Fs, random: &mut Random, one: &str, two: &str) -> dioxide::Result<()> {
    let (node, new) = (fs.node(one)?, NewFile::new(0o755));
    let mut name = || format!("s{}", random.pick(4)).into_bytes();
    let (name, other) = (name(), name());
    match random.pick(7) {
        0 => node.create(&name, &new).map(drop),
        1 => node.create_dir(&name, &new).map(drop),
        2 => node.remove_file(&name),
        3 => node.remove_dir(&name),
        4 => node.rename(&name, &fs.node(two)?, &other, RenameMode::Replace),
        5 => node.link(&fs.node(two)?, &name),
        _ => {
            let (ino, generation) = (node.ino(), node.generation());
            drop(node);
            let same = fs.node_by_number(ino, Some(generation))?;
            same.read_dir(0, 100).map(drop)
        }
    }
}

/// Calls by path and by node in the same few directories, some of which move, with files written, held open, and
/// unlinked while they are.
fn stress(fs: &Fs, seed: u64, calls: usize) {
    let is_apart = is_apart(&Tree::of(fs));
    let mut random = Random::new(seed);
    let mut held = Vec::new();
    for _ in 0..calls {
        let path = |random: &mut Random| {
            let mut path = String::new();
            for _ in 0..random.below(1..4) {
                path += &format!("/s{}", random.pick(4));
            }
            path
        };
        let (one, two) = (path(&mut random), path(&mut random));
        let new = NewFile::new(0o755);
        let number = random.pick(6);
        let result = match random.pick(21) {
            17..21 => by_node(fs, &mut random, &one, &two),
            12 => fs.set_xattr(&one, XATTR, &value(number, is_apart), XattrMode::Set),
            13 => fs.remove_xattr(&one, XATTR),
            14 => {
                let name = if number.is_multiple_of(2) {
                    ACCESS
                } else {
                    DEFAULT
                };
                fs.set_xattr(&one, name, &acl(number as u8), XattrMode::Set)
            }
            15 => fs.set_attributes(&one, &SetAttributes::new().mode(0o750).uid(number as u32)),
            0 | 1 => fs.create_dir(&one, &new),
            2 => fs.symlink(&two, &one, &new),
            3 => fs.hard_link(&one, &two),
            4 | 5 => fs.remove_file(&one),
            6 => fs.remove_dir(&one),
            7 => fs.rename(&one, &two, RenameMode::Replace),
            8 => fs.rename(&one, &two, RenameMode::Exchange),
            16 => fs.rename_whiteout(&one, &two, RenameMode::Replace, &NewFile::new(0)),
            9 => {
                held.truncate(3);
                fs.read_dir(&one).map(drop)
            }
            _ => {
                let options = OpenOptions::new().read(true).write(true).create(true);
                options.open(fs, &one).and_then(|file| {
                    file.write_at(&[seed as u8; 3000], random.below(0..9000))?;
                    if random.pick(2) == 0 {
                        held.push(file);
                    }
                    Ok(())
                })
            }
        };
        if let Err(error) = result {
            let known = [
                libc::ENOENT,
                libc::EEXIST,
                libc::ENOTDIR,
                libc::EISDIR,
                libc::ENOTEMPTY,
                libc::EINVAL,
                libc::ELOOP,
                libc::EPERM,
                libc::ENODATA,
                libc::EACCES,
                // A whiteout is opened.
                libc::EOPNOTSUPP,
            ];
            assert!(known.contains(&error.errno()), "{one} {two}: {error}");
        }
    }
}

#[test]
fn many_calls_of_four_threads_leave_a_whole_file_system() {
    // Some with what is in memory lost again and again, some with commits all the time.
    let nothing_kept = || MountOptions::new().metadata_cache(0).name_cache(0);
    let options = |seed| match seed % 3 {
        0 => MountOptions::new(),
        1 => nothing_kept(),
        _ => nothing_kept().commit_interval(Duration::from_millis(1)),
    };
    for (name, builder) in kinds() {
        for seed in seeds(5) {
            let image = builder.clone().build();
            let fs = Fs::open(image.path(), &options(seed)).expect("it opens");
            let free = fs.statfs();
            std::thread::scope(|scope| {
                for thread in 0..THREADS as u64 {
                    let fs = &fs;
                    scope.spawn(move || stress(fs, seed * 16 + thread, 1500));
                }
            });
            let left = below(&fs, "/s");
            fs.close().expect("a clean end");
            e2fsck_clean(image.path());
            let fs = open_fs(&image);
            assert_eq!(below(&fs, "/s"), left, "{name}, seed {seed}");
            remove_below(&fs, &left);
            fs.sync().expect("a sync");
            assert_eq!(fs.statfs(), free, "{name}, seed {seed}");
            fs.close().expect("a clean end");
            e2fsck_clean(image.path());
        }
    }
}

/// A walk that had passed `/x` found it again below, where another thread had moved it meanwhile, and took that for
/// damage.
#[test]
fn walk_beside_directories_that_change_places_finds_no_damage() {
    let image = Image::builder().size(16 << 20).block_size(1024).build();
    let fs = open_fs(&image);
    let new = NewFile::new(0o755);
    for dir in ["/x", "/x/y", "/x/y/s"] {
        fs.create_dir(dir, &new).expect("room");
    }
    // Long enough for two renames while it is walked.
    let way = format!("/x/y{}/x", "/s/..".repeat(700));
    let deadline = Instant::now() + Duration::from_secs(if soaks() { 30 } else { 1 });
    let is_time = || Instant::now() < deadline;
    let rename = |from: &str, to: &str| {
        fs.rename(from, to, RenameMode::NoReplace)
            .expect("nobody else renames");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while is_time() {
                rename("/x/y", "/y");
                rename("/x", "/y/x");
                rename("/y/x", "/x");
                rename("/y", "/x/y");
            }
        });
        while is_time() {
            let found = fs.metadata(&way).map_err(|error| error.errno());
            assert!(matches!(found, Ok(_) | Err(libc::ENOENT)), "{found:?}");
        }
    });
    assert_eq!(fs.damage().count, 0);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

/// A file was found by a guessed number when the inode table had it and the inodes in memory had not: who found it had an
/// object of his own, whose size and locks were not the file's.
#[test]
fn file_that_is_found_by_its_number_while_it_is_made_is_the_one_that_is_made() {
    let image = Image::builder().size(64 << 20).build();
    let fs = open_fs(&image);
    let root = fs.root().expect("a sound root");
    let create = |name: &str| {
        let made = root.create(name.as_bytes(), &NewFile::new(0o644));
        made.expect("room")
    };
    let next = AtomicU64::new(u64::from(create("first").ino()) + 1);
    let (found, begin) = (Mutex::new(Vec::new()), Barrier::new(2));
    let deadline = Instant::now() + Duration::from_secs(if soaks() { 30 } else { 1 });
    let (mut met, mut others) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begin.wait();
            while Instant::now() < deadline {
                if let Ok(node) = fs.node_by_number(next.load(Ordering::Relaxed) as u32, None) {
                    found.lock().expect("no panic").push(node);
                }
            }
        });
        begin.wait();
        let numbers = (0..10_000).take_while(|_| Instant::now() < deadline);
        for name in numbers.map(|number: u32| number.to_string()) {
            let made = create(&name);
            let set = SetAttributes::new().mode(0o600);
            made.set_attributes(&set).expect("room");
            for node in found.lock().expect("no panic").drain(..) {
                if node.ino() == made.ino() {
                    met += 1;
                    others += u32::from(node.metadata() != made.metadata());
                }
            }
            next.store(u64::from(made.ino()) + 1, Ordering::Relaxed);
        }
    });
    assert!(met > 0);
    assert_eq!(others, 0, "of {met}");
    assert_eq!(fs.damage().count, 0);
    drop((found, root));
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}
