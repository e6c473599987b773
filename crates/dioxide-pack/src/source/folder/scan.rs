//! All that is in a folder: one thread finds the names, and several look what they are.
//!
//! Looking at a file is some six system calls, and most of what reading a folder takes. So names go in batches to whoever has
//! nothing to do; the thread that finds them is one of those.
//!
//! Invariants: what was seen is added in the order in which it was found, by one thread, so that it does not matter who
//! looked; likewise the first error is told. What waits is bounded, in memory and in directories that are open.

use super::look::{Found, Seen, What};
use super::{FolderContents, Stamp, Way, failed, host_path};
use crate::entry::{Entry, FileData, Kind, join};
use crate::error::{Error, Result};
use crate::source::CHUNK_BYTES;
use crate::tree::{Builder, Tree, clean_path, weight};
use rustix::fs::{Dir, FileType, major, minor};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// So many names are looked at together.
const BATCH_NAMES: usize = 64;
/// Who looks at a batch leaves the others when what waits holds so many bytes: they are looked at when it is added.
const MOST_HELD: u64 = 16 << 20;
/// Threads that only look, at most.
const LOOKERS: usize = 3;
/// Batches that each of them may have before it.
const WAITING: usize = 2;
/// Batches that are under way, at most.
const UNDER_WAY: usize = 16;

/// Names in one directory.
struct Batch {
    here: Arc<OwnedFd>,
    /// Paths in the folder, and whether what is there is to be a directory.
    paths: Vec<(Vec<u8>, bool)>,
    /// What the first of them are.
    looks: Vec<Look>,
    /// What those hold.
    held: u64,
}

impl Batch {
    fn new(here: &Arc<OwnedFd>, paths: Vec<(Vec<u8>, bool)>) -> Batch {
        Batch {
            here: here.clone(),
            paths,
            looks: Vec::new(),
            held: 0,
        }
    }
}

type Look = Result<Option<Seen>>;

/// How a batch is looked at.
#[derive(Clone, Copy)]
struct Looker<'a> {
    root: &'a Path,
    left_out: Option<(u64, u64)>,
    most_held: u64,
}

impl Looker<'_> {
    fn look(self, here: &OwnedFd, path: &[u8]) -> Look {
        Found::new(here, self.root, path).look(self.left_out)
    }

    /// From the first to one that cannot be looked at, as long as what waits does not hold too much; `held` is what it holds.
    fn look_at(self, batch: &mut Batch, held: &AtomicU64) {
        for (path, _) in &batch.paths {
            if held.load(Ordering::Relaxed) + batch.held >= self.most_held {
                break;
            }
            let look = self.look(&batch.here, path);
            let failed = look.is_err();
            if let Ok(Some(seen)) = &look {
                batch.held += seen.weight();
            }
            batch.looks.push(look);
            if failed {
                break;
            }
        }
        held.fetch_add(batch.held, Ordering::Relaxed);
    }

    /// One of the threads.
    fn look_on(
        self,
        batches: &Mutex<Receiver<Numbered>>,
        seen: &Sender<Numbered>,
        held: &AtomicU64,
    ) {
        let next = || {
            let batches = batches.lock().unwrap_or_else(PoisonError::into_inner);
            batches.recv().ok()
        };
        while let Some(batch) = next() {
            let mut owed = Owed(seen, Some(batch));
            if let Some((_, batch)) = &mut owed.1 {
                self.look_at(batch, held);
            }
        }
    }
}

type Numbered = (usize, Batch);

/// A batch that somebody waits for, also if looking at it panics.
struct Owed<'a>(&'a Sender<Numbered>, Option<Numbered>);

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        if let Some(batch) = self.1.take() {
            // Perhaps nobody waits for it any more.
            let _ = self.0.send(batch);
        }
    }
}

impl Seen {
    /// What it takes in memory.
    fn weight(&self) -> u64 {
        let own = match &self.what {
            What::File(segments) => size_of_val(&segments[..]),
            What::Symlink(target) => target.len(),
            What::Other(_) => 0,
        };
        let left_out: usize = self.left_out.iter().map(Vec::len).sum();
        weight(&self.xattrs) + (own + left_out) as u64
    }
}

/// What becomes of the names of a folder.
pub(super) struct Scan<'a> {
    looker: Looker<'a>,
    builder: Builder,
    /// The first name of what has several.
    links: HashMap<(u64, u64), Vec<u8>>,
    stamps: Vec<Stamp>,
}

impl<'a> Scan<'a> {
    pub(super) fn new(root: &'a Path, builder: Builder) -> Scan<'a> {
        let left_out = builder.left_out();
        Scan {
            looker: Looker {
                root,
                left_out,
                most_held: MOST_HELD,
            },
            builder,
            links: HashMap::new(),
            stamps: Vec::new(),
        }
    }

    /// Adds all that is there. Blocks.
    ///
    /// # Errors
    /// As [`super::read`].
    pub(super) fn run(&mut self, way: &mut Way) -> Result<()> {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        let lookers = (processors - 1).min(LOOKERS);
        self.beside(lookers, |walk| walk.walk(way))
    }

    /// Walks beside so many threads that look.
    fn beside(
        &mut self,
        lookers: usize,
        work: impl FnOnce(&mut Walk<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        let (give, batches) = sync_channel(lookers * WAITING);
        let (done, seen) = channel();
        let (batches, looker) = (Arc::new(Mutex::new(batches)), self.looker);
        let held = &AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..lookers {
                let (batches, done) = (batches.clone(), done.clone());
                let look_on = move || looker.look_on(&batches, &done, held);
                // Where there are no more threads to be had, those that there are do it.
                let _ = std::thread::Builder::new().spawn_scoped(scope, look_on);
            }
            // Nobody takes what nobody is there to take, and who waits does not wait for himself.
            drop((batches, done));
            let mut walk = Walk {
                scan: self,
                held,
                give,
                seen,
                first: 0,
                under_way: VecDeque::new(),
            };
            let walked = work(&mut walk);
            // What was found before comes first, errors too.
            walk.add_rest()?;
            walked
        })
    }

    pub(super) fn into_tree(self, way: Way) -> Result<Tree> {
        self.builder.finish(Box::new(FolderContents {
            way,
            stamps: self.stamps,
            buf: vec![0; CHUNK_BYTES],
        }))
    }

    fn add_all(&mut self, batch: Batch) -> Result<()> {
        let mut looks = batch.looks.into_iter();
        for (path, is_dir) in &batch.paths {
            let look = looks.next();
            let look = look.unwrap_or_else(|| self.looker.look(&batch.here, path));
            if let Some(seen) = look? {
                self.add(path, seen, *is_dir)?;
            }
        }
        Ok(())
    }

    /// Adds a file, which is to be a directory or not.
    fn add(&mut self, path: &[u8], seen: Seen, is_dir: bool) -> Result<()> {
        let is_one = matches!(seen.what, What::Other(FileType::Directory));
        if is_one != is_dir {
            let name = host_path(self.looker.root, path).display().to_string();
            return Err(Error::Changed { name });
        }
        self.builder.hold(path, weight(&seen.xattrs))?;
        for name in &seen.left_out {
            let name = String::from_utf8_lossy(name);
            let what = format!("left out the attribute {name}, which ext4 cannot have");
            self.builder.warn(path, what);
        }
        let (id, linked, stamp) = (seen.id(), seen.is_linked(), seen.stamp());
        let (stat, mtime) = (seen.stat, seen.mtime());
        let kind = match self.links.get(&id).filter(|_| linked) {
            Some(first) => Kind::HardLink(first.clone()),
            None => self.kind(path, seen.what, &stat, stamp)?,
        };
        if linked {
            self.links.entry(id).or_insert_with(|| path.to_vec());
        }
        self.builder.add(Entry {
            path: path.to_vec(),
            kind,
            permissions: (stat.st_mode & 0o7777) as u16,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime,
            flags: 0,
            project: 0,
            xattrs: seen.xattrs,
        })
    }

    fn kind(
        &mut self,
        path: &[u8],
        what: What,
        stat: &rustix::fs::Stat,
        stamp: Stamp,
    ) -> Result<Kind> {
        let device = (major(stat.st_rdev), minor(stat.st_rdev));
        Ok(match what {
            What::File(segments) => {
                self.stamps.push(stamp);
                Kind::File(FileData {
                    size: stamp.size,
                    segments,
                    handle: self.stamps.len() as u64 - 1,
                })
            }
            What::Symlink(target) => Kind::Symlink(target),
            What::Other(FileType::Directory) => Kind::Directory,
            What::Other(FileType::CharacterDevice) => Kind::CharDevice(device.0, device.1),
            What::Other(FileType::BlockDevice) => Kind::BlockDevice(device.0, device.1),
            What::Other(FileType::Fifo) => Kind::Fifo,
            What::Other(FileType::Socket) => Kind::Socket,
            What::Other(_) => {
                return Err(failed(|| host_path(self.looker.root, path))(
                    Errno::OPNOTSUPP,
                ));
            }
        })
    }
}

/// The thread that finds the names.
struct Walk<'s, 'a> {
    scan: &'s mut Scan<'a>,
    /// Bytes that what was looked at and is not added yet holds.
    held: &'s AtomicU64,
    give: SyncSender<Numbered>,
    seen: Receiver<Numbered>,
    /// The number of the first batch that is under way, and what came back of it and those behind.
    first: usize,
    under_way: VecDeque<Option<Batch>>,
}

impl Walk<'_, '_> {
    fn walk(&mut self, way: &mut Way) -> Result<()> {
        self.hand_over(Batch::new(way.to(b"")?, vec![(Vec::new(), true)]))?;
        let mut directories = vec![Vec::new()];
        while let Some(directory) = directories.pop() {
            let here = way.to(&directory)?;
            let names = self.names(here, &directory)?;
            self.hand_over_all(here, &directory, names, &mut directories)?;
        }
        Ok(())
    }

    fn hand_over_all(
        &mut self,
        here: &Arc<OwnedFd>,
        directory: &[u8],
        names: Vec<(Vec<u8>, FileType)>,
        directories: &mut Vec<Vec<u8>>,
    ) -> Result<()> {
        let mut paths = Vec::new();
        for (name, file_type) in names {
            let found = match self.found(here, join(directory, &name), file_type) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(error) => {
                    // Those before it come first, with what is wrong with them.
                    self.hand_over(Batch::new(here, paths))?;
                    return Err(error);
                }
            };
            if let (path, true) = &found {
                directories.push(path.clone());
            }
            paths.push(found);
            if paths.len() == BATCH_NAMES {
                self.hand_over(Batch::new(here, std::mem::take(&mut paths)))?;
            }
        }
        if !paths.is_empty() {
            self.hand_over(Batch::new(here, paths))?;
        }
        Ok(())
    }

    /// Sorted, with what the directory says of their type.
    fn names(&self, here: &OwnedFd, directory: &[u8]) -> Result<Vec<(Vec<u8>, FileType)>> {
        let failed = failed(|| host_path(self.scan.looker.root, directory));
        let mut names = Vec::new();
        for entry in Dir::read_from(here).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push((name.to_vec(), entry.file_type()));
            }
        }
        names.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(names)
    }

    /// A path, and whether it is one of a directory. None of what is left out.
    fn found(
        &self,
        here: &OwnedFd,
        path: Vec<u8>,
        file_type: FileType,
    ) -> Result<Option<(Vec<u8>, bool)>> {
        clean_path(&path).map_err(|why| Error::refused(&path, why))?;
        if self.scan.builder.excludes(&path) {
            return Ok(None);
        }
        // File systems differ in what they call a directory there.
        if !matches!(file_type, FileType::Directory | FileType::Unknown) {
            return Ok(Some((path, false)));
        }
        let looker = self.scan.looker;
        let stat = Found::new(here, looker.root, &path).stat()?;
        if looker.left_out == Some((stat.st_dev, stat.st_ino)) {
            return Ok(None);
        }
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        Ok(Some((path, is_dir)))
    }

    /// To another thread, if one takes it.
    fn hand_over(&mut self, batch: Batch) -> Result<()> {
        let number = self.first + self.under_way.len();
        self.under_way.push_back(None);
        match self.give.try_send((number, batch)) {
            Ok(()) => {}
            Err(
                TrySendError::Full((_, mut batch)) | TrySendError::Disconnected((_, mut batch)),
            ) => {
                self.scan.looker.look_at(&mut batch, self.held);
                self.put((number, batch));
            }
        }
        while let Ok(batch) = self.seen.try_recv() {
            self.put(batch);
        }
        self.add_first()?;
        while self.under_way.len() >= UNDER_WAY {
            self.wait()?;
        }
        Ok(())
    }

    fn put(&mut self, (number, batch): Numbered) {
        self.under_way[number - self.first] = Some(batch);
    }

    fn wait(&mut self) -> Result<()> {
        let seen = self.seen.recv().expect("somebody looks at it");
        self.put(seen);
        self.add_first()
    }

    /// Adds those that nothing is missing before. After an error nothing is under way any more.
    fn add_first(&mut self) -> Result<()> {
        while let Some(batch) = self.under_way.front_mut().and_then(Option::take) {
            self.under_way.pop_front();
            self.first += 1;
            self.held.fetch_sub(batch.held, Ordering::Relaxed);
            let added = self.scan.add_all(batch);
            added.inspect_err(|_| self.under_way.clear())?;
        }
        Ok(())
    }

    fn add_rest(&mut self) -> Result<()> {
        while !self.under_way.is_empty() {
            self.wait()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Filter;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    fn scan(root: &Path) -> Scan<'_> {
        Scan::new(root, Builder::new(Filter::default()))
    }

    /// The entries, and the inode of each stamp.
    fn all(root: &Path, lookers: usize) -> (Vec<Entry>, Vec<u64>) {
        let mut scan = scan(root);
        let mut way = Way::new(root).unwrap();
        scan.beside(lookers, |walk| walk.walk(&mut way)).unwrap();
        let inodes = scan.stamps.iter().map(|stamp| stamp.ino).collect();
        let tree = scan.into_tree(way).unwrap();
        (tree.entries().to_vec(), inodes)
    }

    #[test]
    fn who_looks_makes_no_difference() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for dir in 0..12 {
            let dir = root.join(format!("{}/{dir}", dir % 3));
            fs::create_dir_all(&dir).unwrap();
            for file in 0..5 * BATCH_NAMES / 2 {
                let name = dir.join(format!("file-{file}"));
                fs::write(&name, vec![1; file]).unwrap();
                if file % 40 == 0 {
                    let other = root.join(format!("{}-{file}", dir.display()).replace('/', "-"));
                    fs::hard_link(&name, other).unwrap();
                    std::os::unix::fs::symlink(&name, dir.join(format!("link-{file}"))).unwrap();
                }
            }
        }
        let alone = all(root, 0);
        assert!(alone.0.len() > 12 * 5 * BATCH_NAMES / 2);
        for lookers in [1, 3] {
            assert_eq!(all(root, lookers), alone);
        }
    }

    #[test]
    fn error_of_what_was_found_first_is_told() {
        let folder = tempfile::tempdir().unwrap();
        for lookers in [0, 1, 3] {
            let mut scan = scan(folder.path());
            let mut way = Way::new(folder.path()).unwrap();
            let found = scan.beside(lookers, |walk| {
                let here = way.to(b"")?;
                for number in 0..2 * UNDER_WAY {
                    let path = format!("missing-{number}").into_bytes();
                    walk.hand_over(Batch::new(here, vec![(path, false)]))?;
                }
                Err(Error::Stopped)
            });
            let error = found.unwrap_err().to_string();
            assert!(error.contains("missing-0:"), "{lookers}: {error}");
        }
    }

    #[test]
    fn file_that_is_a_directory_by_now_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("dir")).unwrap();
        fs::write(folder.path().join("file"), b"").unwrap();
        for (name, is_dir) in [("dir", false), ("file", true)] {
            let mut scan = scan(folder.path());
            let mut way = Way::new(folder.path()).unwrap();
            let added = scan.beside(1, |walk| {
                let paths = vec![(name.as_bytes().to_vec(), is_dir)];
                walk.hand_over(Batch::new(way.to(b"")?, paths))
            });
            let error = added.unwrap_err();
            assert!(matches!(error, Error::Changed { .. }), "{error}");
        }
    }

    #[test]
    fn what_is_left_for_want_of_memory_is_looked_at_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for number in 0..9 {
            fs::write(root.join(number.to_string()), b"data").unwrap();
        }
        let mut way = Way::new(root).unwrap();
        let paths = (0..9).map(|number| (number.to_string().into_bytes(), false));
        let mut batch = Batch::new(way.to(b"").unwrap(), paths.collect());
        let mut scan = scan(root);
        scan.looker.most_held = 1;
        scan.looker.look_at(&mut batch, &AtomicU64::new(0));
        assert_eq!(batch.looks.len(), 1);
        scan.add_all(batch).unwrap();
        // And the root.
        assert_eq!(scan.into_tree(way).unwrap().entries().len(), 1 + 9);
    }

    #[test]
    fn error_of_a_name_comes_after_those_of_names_before_it() {
        let folder = tempfile::tempdir().unwrap();
        for lookers in [0, 1] {
            let mut scan = scan(folder.path());
            let mut way = Way::new(folder.path()).unwrap();
            let walked = scan.beside(lookers, |walk| {
                let names = [&b"gone"[..], b".."].map(|name| (name.to_vec(), FileType::Fifo));
                walk.hand_over_all(way.to(b"")?, b"", names.to_vec(), &mut Vec::new())
            });
            let error = walked.unwrap_err().to_string();
            assert!(error.contains("gone:"), "{error}");
        }
    }

    #[test]
    fn left_out_directory_is_not_entered() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir(root.join("out")).unwrap();
        fs::write(root.join("out/file"), b"").unwrap();
        fs::write(root.join("file"), b"").unwrap();
        let out = fs::metadata(root.join("out")).unwrap();
        let filter = Filter {
            exclude_file: Some((out.dev(), out.ino())),
            ..Filter::default()
        };
        let tree = super::super::read(root, filter).unwrap();
        let paths: Vec<_> = tree.entries().iter().map(|entry| &entry.path[..]).collect();
        assert_eq!(paths, [&b""[..], b"file"]);
    }
}
