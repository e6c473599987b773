//! dioxide as a target. Files are opened without `direct`, so that any offset and length will do, but for atomic writes.

use crate::attributes::{Attributes, CLOCK, FLAGS, asked_for};
use crate::external::{self, Part};
use crate::names::{self, Change, Entry, Kind, NameOp, Over, Tree};
use crate::op::{Durable, Mode, Op};
use crate::target::{Call, Outcome, Seen, Session, Stamps, Target};
use dioxide::block::Device;
use dioxide::format::inode::InodeFlags;
use dioxide::format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use dioxide::{
    Buf, Error, FallocateMode, File, FileType, Fs, Metadata, MountOptions, NewFile, OpenOptions,
    Queue, QueueOptions, RenameMode, SetAttributes, Special, Timestamp, XattrMode,
};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// dioxide, mounted with these options.
#[derive(Clone, Debug)]
pub struct Dioxide {
    /// Options of every mount, of the workload and of recoveries; each has a clock of its own.
    pub options: MountOptions,
    /// Keep each file open from its first operation on. Otherwise it is closed after each, and what is
    /// known of it only in memory is put to the test.
    pub keep_open: bool,
}

impl Default for Dioxide {
    /// Nothing is committed by the clock, so that a workload writes the same each time; files are opened for
    /// each operation.
    fn default() -> Dioxide {
        Dioxide {
            options: MountOptions::new().commit_interval(Duration::from_secs(3600)),
            keep_open: false,
        }
    }
}

impl Dioxide {
    /// Each step of an operation is committed before the next one: as when the clock, or somebody else's `fsync`, commits there.
    pub fn committing_each() -> Dioxide {
        Dioxide {
            options: MountOptions::new().commit_interval(Duration::ZERO),
            ..Dioxide::default()
        }
    }
}

/// The clock of a mount. It goes on between operations alone, so that what an operation of one thread writes does not depend on how
/// long those before it took; now and then it stands, as that of the machine does, which ticks every few milliseconds.
#[derive(Clone, Debug)]
struct Clock {
    ns: Arc<AtomicI64>,
    ops: Arc<AtomicU64>,
}

impl Clock {
    const TICK_NS: i64 = 4_000_000;
    /// What passes between two mounts: more than the operations of any workload take.
    const PAUSE_SECS: i64 = 3600;
    /// As late as it begins.
    const LATEST: i64 = 1 << 32;

    /// Of a mount of what was last written at `secs`.
    fn after(secs: i64) -> Clock {
        let secs = (secs + Self::PAUSE_SECS).clamp(CLOCK, Self::LATEST);
        Clock {
            ns: Arc::new(AtomicI64::new(secs * 1_000_000_000)),
            ops: Arc::default(),
        }
    }

    fn next_op(&self) {
        if self.ops.fetch_add(1, Ordering::Relaxed) % 3 < 2 {
            self.ns.fetch_add(Self::TICK_NS, Ordering::Relaxed);
        }
    }
}

struct Mounted {
    fs: Fs,
    clock: Clock,
    keep_open: bool,
    open: Vec<(String, File)>,
    /// What was removed and is open.
    held: Option<File>,
}

impl Dioxide {
    /// Mounts what is on a device, with the journal behind it if that is elsewhere.
    fn mount(&self, device: Arc<dyn Device>) -> Result<(Fs, Clock), Error> {
        let mut bytes = vec![0; SuperBlock::SIZE];
        device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
        let superblock = SuperBlock::parse(&bytes).ok();
        let last = superblock.as_ref().map_or(0, SuperBlock::write_time);
        let clock = Clock::after(last);
        let options = self.options.clone().kept_clock(clock.ns.clone());
        let Some(at) = superblock.as_ref().and_then(external::journal_at) else {
            return Ok((Fs::open_device(device, &options)?, clock));
        };
        let journal = Part::new(&device, at..device.geometry().size_bytes);
        let options = options.journal_device(Arc::new(journal));
        let device = Arc::new(Part::new(&device, 0..at));
        Ok((Fs::open_device(device, &options)?, clock))
    }
}

impl Target for Dioxide {
    fn open(&self, device: Arc<dyn Device>) -> Result<Box<dyn Session>, String> {
        let (fs, clock) = self.mount(device).map_err(words)?;
        match fs.read_only() {
            Some(why) => Err(format!("read-only: {why}")),
            None => Ok(Box::new(Mounted {
                fs,
                clock,
                keep_open: self.keep_open,
                open: Vec::new(),
                held: None,
            })),
        }
    }
}

fn words(error: Error) -> String {
    error.to_string()
}

impl Mounted {
    /// As root, so that a change of data leaves modes as they are.
    fn open(&self, options: OpenOptions, name: &str) -> Result<File, Error> {
        let options = options.read(true).write(true).fsetid(true);
        options.open(&self.fs, name)
    }

    fn plain(&self, name: &str) -> Result<File, Error> {
        self.open(OpenOptions::new(), name)
    }

    fn hold(&mut self, name: &str) -> Result<(), Error> {
        let is_held = self.open.iter().any(|(held, _)| held == name);
        if self.keep_open && !is_held && !name.is_empty() {
            let file = self.plain(name)?;
            self.open.push((name.to_owned(), file));
        }
        Ok(())
    }

    fn do_it(&self, op: &Op, name: &str, data: &[u8]) -> Result<(), Error> {
        match *op {
            Op::Write {
                offset, durable, ..
            } => {
                let file = self.open(synchronous(durable), name)?;
                whole(data, file.write_at(data, offset)?)
            }
            Op::WriteQueued { .. }
            | Op::AppendQueued { .. }
            | Op::FsyncQueued { .. }
            | Op::FdatasyncQueued { .. } => self.queued(&[Call { op, name, data }]),
            Op::WriteAtomic {
                offset, durable, ..
            } => {
                let file = self.open(synchronous(durable).direct(true), name)?;
                whole(data, file.write_at_atomic(data, offset)?)
            }
            Op::Append { durable, .. } => {
                let file = self.open(synchronous(durable).append(true), name)?;
                whole(data, file.write_at(data, 0)?)
            }
            Op::SetLen { len, durable, .. } => self.open(synchronous(durable), name)?.set_len(len),
            Op::Allocate {
                mode,
                offset,
                len,
                durable,
                ..
            } => {
                let file = self.open(synchronous(durable), name)?;
                file.allocate(fallocate(mode), offset, len)
            }
            Op::SetMode { mode, .. } => self.set(name, &SetAttributes::new().mode(mode)),
            Op::SetTime { secs, .. } => {
                let time = Timestamp { secs, nanos: 0 };
                self.set(name, &SetAttributes::new().atime(time))
            }
            Op::Fsync { .. } => self.plain(name)?.sync_all(),
            Op::Fdatasync { .. } => self.plain(name)?.sync_data(),
            Op::Sync => self.fs.sync(),
            Op::Trim => self.fs.trim(0..u64::MAX, 0).map(drop),
            Op::Policy(policy) => {
                self.fs.set_policy(policy);
                Ok(())
            }
            Op::Together(_) | Op::Crash | Op::Name(_) => {
                unreachable!("these have functions of their own")
            }
        }
    }

    /// Pushes it; the file stays open until it is reaped.
    fn push(&self, queue: &mut Queue, call: &Call<'_>, tag: u64) -> Result<File, Error> {
        let (offset, durable, append) = match *call.op {
            Op::WriteQueued {
                offset, durable, ..
            } => (offset, durable, false),
            Op::AppendQueued { durable, .. } => (0, durable, true),
            Op::FsyncQueued { .. } | Op::FdatasyncQueued { .. } => (0, Durable::No, false),
            ref other => return Err(Error::Invalid(format!("{other} is not for a queue"))),
        };
        let file = self.open(synchronous(durable).append(append), call.name)?;
        let pushed = match *call.op {
            Op::FsyncQueued { .. } => queue.sync_all(&file, tag).is_ok(),
            Op::FdatasyncQueued { .. } => queue.sync_data(&file, tag).is_ok(),
            _ => queue
                .write(&file, offset, Buf::copy_of(call.data), tag)
                .is_ok(),
        };
        assert!(pushed, "a new queue has room");
        Ok(file)
    }

    /// All of them are pushed before one is reaped.
    fn queued(&self, calls: &[Call<'_>]) -> Result<(), Error> {
        let mut queue = self.fs.queue(&QueueOptions::default())?;
        let pushed = calls
            .iter()
            .zip(0..)
            .map(|(call, tag)| self.push(&mut queue, call, tag));
        let _open = pushed.collect::<Result<Vec<File>, Error>>()?;
        let mut done = Vec::new();
        while done.len() < calls.len() {
            queue.wait(1, &mut done)?;
        }
        done.into_iter().try_for_each(|completion| {
            let written = completion.result.map_err(|error| *error)?;
            whole(calls[completion.tag as usize].data, written)
        })
    }

    fn change_names(&mut self, op: NameOp) -> Result<(), Error> {
        let (fs, new) = (&self.fs, NewFile::new(names::OTHER_MODE));
        let write = OpenOptions::new().read(true).write(true).fsetid(true);
        let write = write.new_file(&NewFile::new(names::FILE_MODE));
        match op {
            NameOp::Create(path) => write.create_new(true).open(fs, path).map(drop),
            NameOp::Fill(path, len) => {
                let data = names::fill(path, len);
                whole(&data, write.open(fs, path)?.write_at(&data, 0)?)
            }
            NameOp::Mkdir(path) => fs.create_dir(path, &new),
            NameOp::Symlink(path, len) => fs.symlink(names::target(len), path, &new),
            NameOp::Mknod(path, special) => fs.mknod(path, special, &new),
            NameOp::Link(old, new) => fs.hard_link(old, new),
            NameOp::Unnamed(path) => {
                let file = write.open_unnamed(fs, "/")?;
                let data = names::fill(path, names::UNNAMED_LEN);
                whole(&data, file.write_at(&data, 0)?)?;
                file.link(path)
            }
            NameOp::Unlink(path) => fs.remove_file(path),
            NameOp::UnlinkHeld(path) => {
                let file = write.open(fs, path)?;
                let removed = fs.remove_file(path);
                self.held = Some(file);
                removed
            }
            NameOp::Rmdir(path) => fs.remove_dir(path),
            NameOp::Rename(from, to, Over::Whiteout) => {
                fs.rename_whiteout(from, to, RenameMode::NoReplace, &NewFile::new(0))
            }
            NameOp::Rename(from, to, over) => fs.rename(from, to, rename_mode(over)),
            NameOp::Change(path, change) => self.change(path, change),
            NameOp::Fsync(path) => fs.symlink_node(path)?.sync(),
            NameOp::Fdatasync(path) => fs.symlink_node(path)?.sync_data(),
        }
    }

    fn change(&self, path: &str, change: Change) -> Result<(), Error> {
        let (node, set) = (self.fs.symlink_node(path)?, SetAttributes::new());
        let time = |secs| Timestamp { secs, nanos: 0 };
        let set = match change {
            Change::Set(name, len) => {
                return node.set_xattr(name, &names::value(name, len), XattrMode::Set);
            }
            Change::List(name, list) => {
                return node.set_xattr(name, &list.value(), XattrMode::Set);
            }
            Change::Remove(name) => return node.remove_xattr(name),
            Change::Mode(mode) => set.mode(mode),
            Change::Owner(uid, gid) => set.uid(uid).gid(gid),
            Change::Times(atime, mtime) => set.atime(time(atime)).mtime(time(mtime)),
            Change::Flags(flags) => set.flags(node.metadata().flags & !FLAGS | flags),
            Change::Project(project) => set.project(project),
        };
        node.set_attributes(&set)
    }

    fn attributes(&self, path: &str, about: &Metadata, kind: &Kind) -> Result<Attributes, Error> {
        let xattrs = self.fs.symlink_node(path)?.xattrs()?;
        // Overwrites have their time later.
        let mtime = asked_for(about.mtime.secs).filter(|_| !matches!(kind, Kind::Known(_)));
        Ok(Attributes {
            mode: about.permissions,
            uid: about.uid,
            gid: about.gid,
            flags: about.flags & FLAGS,
            project: about.project.unwrap_or(0),
            atime: asked_for(about.atime.secs),
            mtime,
            xattrs: xattrs
                .into_iter()
                .map(|xattr| (xattr.name, xattr.value))
                .collect(),
        })
    }

    /// What is at a path, and its inode number.
    fn entry(&self, path: &str, known: &[u64]) -> Result<(u32, Entry), Error> {
        let about = self.fs.symlink_metadata(path)?;
        let file = known.iter().position(|&known| known == id(&about));
        let kind = match (about.file_type, file) {
            (FileType::Directory, _) => Kind::Dir,
            (_, Some(file)) => Kind::Known(file),
            (FileType::Regular, None) => {
                let mut data = vec![0; about.size as usize];
                let file = OpenOptions::new().read(true).open(&self.fs, path)?;
                file.read_at(&mut data, 0)?;
                Kind::File(data)
            }
            (FileType::Symlink, None) => Kind::Symlink(self.fs.read_link(path)?),
            (other, None) => Kind::Special(special(other, about.device).ok_or_else(|| {
                Error::Invalid(format!("{path}: a {other:?}, device {:?}", about.device))
            })?),
        };
        let links = if kind == Kind::Dir { 0 } else { about.nlink };
        let entry = Entry {
            first: path.to_owned(),
            links,
            attributes: self.attributes(path, &about, &kind)?,
            kind,
        };
        Ok((about.ino, entry))
    }

    fn names(&self, known: &[u64]) -> Result<Tree, Error> {
        let mut found: Vec<(String, (u32, Entry))> = Vec::new();
        let mut dirs = vec![String::new()];
        while let Some(dir) = dirs.pop() {
            for name in self.fs.read_dir(if dir.is_empty() { "/" } else { &dir })? {
                let name = String::from_utf8_lossy(&name.name).into_owned();
                if name == "." || name == ".." {
                    continue;
                }
                let path = format!("{dir}/{name}");
                let entry = self.entry(&path, known)?;
                if entry.1.kind == Kind::Dir {
                    dirs.push(path.clone());
                }
                found.push((path, entry));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let mut firsts: HashMap<u32, String> = HashMap::new();
        let each = |(path, (ino, entry)): (String, (u32, Entry))| {
            let first = firsts.entry(ino).or_insert_with(|| path.clone()).clone();
            (path, Entry { first, ..entry })
        };
        Ok(found.into_iter().map(each).collect())
    }

    fn set(&self, name: &str, attributes: &SetAttributes) -> Result<(), Error> {
        self.plain(name)?.set_attributes(attributes)
    }
}

fn stamps(about: &Metadata) -> Stamps {
    let ns = |time: Timestamp| time.secs * 1_000_000_000 + i64::from(time.nanos);
    Stamps {
        ctime_ns: ns(about.ctime),
        mtime_ns: ns(about.mtime),
    }
}

/// An inode that is used again has another generation.
fn id(about: &Metadata) -> u64 {
    u64::from(about.generation) << 32 | u64::from(about.ino)
}

fn special(file_type: FileType, device: Option<(u32, u32)>) -> Option<Special> {
    match (file_type, device) {
        (FileType::Fifo, None) => Some(Special::Fifo),
        (FileType::Socket, None) => Some(Special::Socket),
        (FileType::CharDevice, Some((major, minor))) => Some(Special::CharDevice(major, minor)),
        (FileType::BlockDevice, Some((major, minor))) => Some(Special::BlockDevice(major, minor)),
        _ => None,
    }
}

fn rename_mode(over: Over) -> RenameMode {
    match over {
        Over::Replace => RenameMode::Replace,
        Over::Exchange => RenameMode::Exchange,
        Over::Nothing | Over::Whiteout => RenameMode::NoReplace,
    }
}

fn synchronous(durable: Durable) -> OpenOptions {
    match durable {
        Durable::No => OpenOptions::new(),
        Durable::Data => OpenOptions::new().dsync(true),
        Durable::Full => OpenOptions::new().sync(true),
    }
}

/// Nothing in a workload is a reason to write less than asked.
fn whole(data: &[u8], written: usize) -> Result<(), Error> {
    match written == data.len() {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "short write: {written} of {} bytes",
            data.len()
        ))),
    }
}

fn fallocate(mode: Mode) -> FallocateMode {
    match mode {
        Mode::Allocate => FallocateMode::Allocate,
        Mode::KeepSize => FallocateMode::KeepSize,
        Mode::PunchHole => FallocateMode::PunchHole,
        Mode::ZeroRange => FallocateMode::ZeroRange,
        Mode::ZeroRangeKeepSize => FallocateMode::ZeroRangeKeepSize,
        Mode::WriteZeroes => FallocateMode::WriteZeroes,
        Mode::CollapseRange => FallocateMode::CollapseRange,
        Mode::InsertRange => FallocateMode::InsertRange,
    }
}

impl Session for Mounted {
    fn run(&mut self, op: &Op, name: &str, data: &[u8]) -> Result<Outcome, String> {
        self.clock.next_op();
        self.hold(name).map_err(words)?;
        let done = match *op {
            Op::Name(op) => self.change_names(op),
            _ => self.do_it(op, name, data),
        };
        match done {
            Ok(()) => Ok(Outcome::Done),
            Err(Error::Unsupported(why)) => Ok(Outcome::Unsupported(why)),
            Err(error) => Err(words(error)),
        }
    }

    fn run_together(&mut self, calls: &[Call<'_>]) -> Result<(), String> {
        self.clock.next_op();
        self.queued(calls).map_err(words)
    }

    fn another(&mut self) -> Option<Box<dyn Session + Send>> {
        Some(Box::new(Mounted {
            fs: self.fs.clone(),
            clock: self.clock.clone(),
            keep_open: self.keep_open,
            open: Vec::new(),
            held: None,
        }))
    }

    fn look(&mut self, name: &str) -> Result<Seen, String> {
        // It may have a flag by which nobody opens it for writing.
        let file = OpenOptions::new().read(true).open(&self.fs, name);
        let file = file.map_err(words)?;
        let mut data = vec![0; file.len() as usize];
        let read = file.read_at(&mut data, 0).map_err(words)?;
        if read != data.len() {
            return Err(format!("{read} bytes of {}", data.len()));
        }
        let about = file.metadata();
        Ok(Seen {
            is_gone: false,
            data,
            mode: about.permissions,
            atime: about.atime.secs,
            stamps: stamps(&about),
            shape: shape(&file, u64::from(about.block_size)).map_err(words)?,
        })
    }

    fn stamps(&mut self, name: &str) -> Result<Option<Stamps>, String> {
        let about = self.fs.symlink_metadata(name).map_err(words)?;
        // Who made the image may have had a later clock, and a change takes that back.
        let now = self.clock.ns.load(Ordering::Relaxed);
        Ok(Some(stamps(&about)).filter(|stamps| stamps.ctime_ns <= now))
    }

    fn id(&mut self, name: &str) -> Result<u64, String> {
        self.fs
            .symlink_metadata(name)
            .map(|about| id(&about))
            .map_err(words)
    }

    fn tree(&mut self, known: &[u64]) -> Result<Tree, String> {
        self.names(known).map_err(words)
    }

    fn free(&mut self) -> u64 {
        let counts = self.fs.statfs();
        let mut hasher = DefaultHasher::new();
        (counts.blocks_free, counts.files_free).hash(&mut hasher);
        hasher.finish()
    }

    fn close(mut self: Box<Self>) -> Result<(), String> {
        self.open.clear();
        self.held = None;
        self.fs.close().map_err(words)
    }
}

/// A hash of the space and the mappings, those behind the end included.
fn shape(file: &File, block_bytes: u64) -> Result<u64, Error> {
    let mut hasher = DefaultHasher::new();
    let about = file.metadata();
    (about.blocks, about.flags).hash(&mut hasher);
    let is_inline = about.flags & InodeFlags::INLINE_DATA.0 != 0;
    let blocks = about.size.div_ceil(block_bytes) + 64;
    let end = if is_inline { 0 } else { blocks };
    let mut at = 0;
    while at < end {
        let mapping = file.map(at as u32, (end - at) as u32)?;
        (at, mapping.len, mapping.pblk.0, mapping.kind as u8).hash(&mut hasher);
        at += u64::from(mapping.len);
    }
    Ok(hasher.finish())
}
