//! The file system under test, as the explorer sees it.

use crate::names::Tree;
use crate::op::Op;
use dioxide::block::Device;
use std::sync::Arc;

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Done,
    /// The target cannot do this (on such a file, or not yet), says why, and changed nothing.
    Unsupported(String),
}

/// A file that data operations work on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its path at first.
    pub name: String,
    /// See [`Session::id`].
    pub id: u64,
}

/// When a file was changed, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamps {
    /// Anything of it: no call sets that time.
    pub ctime_ns: i64,
    /// Its contents.
    pub mtime_ns: i64,
}

/// A file as it reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// It has no name any more, and there is nothing to read.
    pub is_gone: bool,
    /// Contents; their length is the size.
    pub data: Vec<u8>,
    /// Permissions.
    pub mode: u16,
    /// Time of last access, in seconds.
    pub atime: i64,
    /// When it was changed.
    pub stamps: Stamps,
    /// Anything that tells one arrangement on the disk from another: a hash of the mappings, say.
    pub shape: u64,
}

impl Seen {
    /// A file without a name.
    pub fn gone() -> Seen {
        Seen {
            is_gone: true,
            ..Seen::default()
        }
    }
}

/// All that is to be seen of a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// The files of the workload.
    pub files: Vec<Seen>,
    /// All names.
    pub tree: Tree,
    /// What is free: a hash of the counts, say. Tells leaks apart that nothing else shows.
    pub free: u64,
}

/// An operation as [`Session::run`] takes it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What is done.
    pub op: &'a Op,
    /// The file's path.
    pub name: &'a str,
    /// What a write writes.
    pub data: &'a [u8],
}

/// A file system that can be opened on a device.
pub trait Target: Sync {
    /// Opens it, read-write, after whatever recovery it needs.
    ///
    /// # Errors
    /// In words.
    fn open(&self, device: Arc<dyn Device>) -> Result<Box<dyn Session>, String>;
}

/// An open file system. Dropping one is no clean unmount.
pub trait Session {
    /// Does one operation; `data` is what a write writes. `name` is the file's path, empty for
    /// [`Op::Sync`].
    ///
    /// # Errors
    /// In words.
    fn run(&mut self, op: &Op, name: &str, data: &[u8]) -> Result<Outcome, String>;

    /// Does several writes, appends among them, all of which are under way before any is waited for.
    ///
    /// # Errors
    /// In words, also of what the target cannot do.
    fn run_together(&mut self, calls: &[Call<'_>]) -> Result<(), String> {
        calls
            .iter()
            .try_for_each(|&Call { op, name, data }| match self.run(op, name, data)? {
                Outcome::Done => Ok(()),
                Outcome::Unsupported(why) => Err(why),
            })
    }

    /// The same file system for another thread. None if the target is for one thread only.
    fn another(&mut self) -> Option<Box<dyn Session + Send>> {
        None
    }

    /// Reads a file.
    ///
    /// # Errors
    /// In words.
    fn look(&mut self, name: &str) -> Result<Seen, String>;

    /// When a file was changed. None if the target does not know, or the next change may be earlier.
    ///
    /// # Errors
    /// In words.
    fn stamps(&mut self, name: &str) -> Result<Option<Stamps>, String> {
        let _ = name;
        Ok(None)
    }

    /// What a file is known by, wherever it is, and no other file before or after it. 0 if the target knows nothing of names.
    ///
    /// # Errors
    /// In words.
    fn id(&mut self, name: &str) -> Result<u64, String> {
        let _ = name;
        Ok(0)
    }

    /// All names. Files that are known by one of these are told without content. Empty if the target knows nothing of names.
    ///
    /// # Errors
    /// In words.
    fn tree(&mut self, known: &[u64]) -> Result<Tree, String> {
        let _ = known;
        Ok(Tree::new())
    }

    /// See [`Sight::free`]. 0 if the target does not count.
    fn free(&mut self) -> u64 {
        0
    }

    /// Unmounts.
    ///
    /// # Errors
    /// In words.
    fn close(self: Box<Self>) -> Result<(), String>;
}
