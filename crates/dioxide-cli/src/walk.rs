//! Trees of files, visited one by one: what find, du, tree, cp -r, chmod -R have in common.
//!
//! Invariants: entries are visited in the order of their names' bytes; symlinks below the first file are not followed; a
//! directory is entered once, so that a damaged image whose directories have several names
//! cannot make a tree of endless size; the stack is on the heap, and paths end at [`PATH_MOST`] bytes.

use crate::failure::{Failure, Status};
use crate::interrupt;
use crate::session::Target;
use dioxide::{DirEntry, FileType, Metadata};
use std::collections::HashSet;

/// Longest path that is walked. A lookup costs what the path is long, and so a tree the square of its depth.
const PATH_MOST: usize = 16 << 10;

/// When a file is visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The only time: it is no directory.
    Once,
    /// A directory, before what is in it.
    Before,
    /// A directory, after what is in it, if it was entered.
    After,
}

/// What comes after a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// What is in the directory.
    Enter,
    /// What comes after the directory. Without a visit [`When::After`].
    Pass,
}

/// A file that is visited.
pub struct Visit<'a> {
    pub target: &'a Target,
    pub metadata: &'a Metadata,
    /// 0 for the file that the walk began with.
    pub depth: usize,
    pub when: When,
    /// No other comes after it in its directory.
    pub last: bool,
}

/// Whether a symlink that a walk begins with stands for what it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    Itself,
    Followed,
}

/// A directory that was entered.
struct Level {
    target: Target,
    metadata: Metadata,
    last: bool,
    /// What is still to be visited, the next at the end.
    names: Vec<Vec<u8>>,
}

/// Visits a file and all below it. What fails is told, and the walk goes on. Blocks on metadata.
///
/// # Errors
/// What ends the whole command.
pub fn walk(root: &Target, first: First, visit: Visitor<'_>) -> Result<Status, Failure> {
    walk_some(root, first, &|_| true, visit)
}

/// As [`walk`], without the entries that `keep` says no to, so that [`Visit::last`] does not count them.
///
/// # Errors
/// As [`walk`].
pub fn walk_some(
    root: &Target,
    first: First,
    keep: &dyn Fn(&DirEntry) -> bool,
    visit: Visitor<'_>,
) -> Result<Status, Failure> {
    let metadata = match first {
        First::Itself => root.symlink_metadata(),
        First::Followed => root.metadata(),
    };
    let mut walk = Walk {
        visit,
        keep,
        levels: Vec::new(),
        entered: HashSet::new(),
        worst: Status::Fine,
    };
    match metadata {
        Ok(metadata) => walk.meet(root.clone(), metadata, true)?,
        Err(failure) => walk.tell(failure)?,
    }
    while walk.step()? {}
    Ok(walk.worst)
}

/// What is called for each file.
pub type Visitor<'a> = &'a mut dyn FnMut(&Visit<'_>) -> Result<Next, Failure>;

struct Walk<'a> {
    visit: Visitor<'a>,
    keep: &'a dyn Fn(&DirEntry) -> bool,
    levels: Vec<Level>,
    entered: HashSet<u32>,
    worst: Status,
}

impl Walk<'_> {
    fn tell(&mut self, failure: Failure) -> Result<(), Failure> {
        if failure.ends_all() {
            return Err(failure);
        }
        self.worst = self.worst.max(failure.tell());
        Ok(())
    }

    /// One file more; false at the end.
    fn step(&mut self) -> Result<bool, Failure> {
        interrupt::check()?;
        let Some(level) = self.levels.last_mut() else {
            return Ok(false);
        };
        match level.names.pop() {
            Some(name) => {
                let last = level.names.is_empty();
                let target = level.target.child(&name);
                match target.symlink_metadata() {
                    Ok(metadata) => self.meet(target, metadata, last)?,
                    Err(failure) => self.tell(failure)?,
                }
            }
            None => self.leave()?,
        }
        Ok(true)
    }

    fn leave(&mut self) -> Result<(), Failure> {
        let Some(level) = self.levels.pop() else {
            return Ok(());
        };
        let visit = Visit {
            target: &level.target,
            metadata: &level.metadata,
            depth: self.levels.len(),
            when: When::After,
            last: level.last,
        };
        match (self.visit)(&visit) {
            Ok(_) => Ok(()),
            Err(failure) => self.tell(failure),
        }
    }

    fn meet(&mut self, target: Target, metadata: Metadata, last: bool) -> Result<(), Failure> {
        let is_directory = metadata.file_type == FileType::Directory;
        let visit = Visit {
            target: &target,
            metadata: &metadata,
            depth: self.levels.len(),
            when: if is_directory {
                When::Before
            } else {
                When::Once
            },
            last,
        };
        match (self.visit)(&visit) {
            Ok(Next::Enter) if is_directory => self.enter(target, metadata, last),
            Ok(_) => Ok(()),
            Err(failure) => self.tell(failure),
        }
    }

    /// A directory that cannot be read is entered all the same, and empty.
    fn enter(&mut self, target: Target, metadata: Metadata, last: bool) -> Result<(), Failure> {
        let names = match self.names(&target, metadata.ino) {
            Ok(names) => names,
            Err(failure) => {
                self.tell(failure)?;
                Vec::new()
            }
        };
        self.levels.push(Level {
            target,
            metadata,
            last,
            names,
        });
        Ok(())
    }

    fn names(&mut self, target: &Target, ino: u32) -> Result<Vec<Vec<u8>>, Failure> {
        if !self.entered.insert(ino) {
            let what = format_args!(
                "directory {ino} has another name too; run e2fsck on a copy of the image"
            );
            return Err(Failure::trouble(target, what));
        }
        if target.path().len() > PATH_MOST {
            return Err(Failure::trouble(target, "File name too long"));
        }
        let kept = entries(target)?
            .into_iter()
            .filter(|entry| (self.keep)(entry));
        let mut names: Vec<_> = kept.map(|entry| entry.name).collect();
        names.sort_by(|a, b| b.cmp(a));
        Ok(names)
    }
}

/// The entries of a directory but for `.` and `..`.
pub fn entries(target: &Target) -> Result<Vec<DirEntry>, Failure> {
    let mut entries = target
        .fs
        .read_dir(target.path())
        .map_err(|error| target.failure(&error))?;
    entries.retain(|entry| entry.name != b"." && entry.name != b"..");
    Ok(entries)
}
