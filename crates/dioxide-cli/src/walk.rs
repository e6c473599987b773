//! Trees of files, visited one by one: what find, du, tree, cp -r, chmod -R have in common.
//!
//! Invariants: entries are visited in the order of their names' bytes; symlinks below the first file are not followed, unless
//! that is asked for, and then not back into a directory that the walk is in; else a directory is entered once, so that a damaged image whose directories have several names
//! cannot make a tree of endless size; the stack is on the heap, and paths end at [`PATH_MOST`] bytes.

use crate::failure::{Failure, Status};
use crate::interrupt;
use crate::session::Target;
use dioxide::{DirEntry, FileType, Metadata};
use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;

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
pub struct Visit<'a, T: Tree = Target> {
    pub target: &'a T,
    pub metadata: &'a T::Metadata,
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

/// What can be walked: files in an image, and for copies those on the host too.
pub trait Tree: Clone + fmt::Display {
    type Metadata;
    /// What no two directories have in common.
    type Identity: Eq + Hash;

    /// `lstat`, or `stat`.
    fn examine(&self, first: First) -> Result<Self::Metadata, Failure>;
    /// Which directory it is, if it is one.
    fn directory(metadata: &Self::Metadata) -> Option<Self::Identity>;
    /// The names in the directory that are to be visited, but for `.` and `..`; and what is wrong if those are not all.
    fn names(&self, keep: &dyn Fn(&DirEntry) -> bool) -> Result<Names, Failure>;
    fn child(&self, name: &[u8]) -> Self;
    fn path_len(&self) -> usize;
}

/// Names, and why some are left out.
pub type Names = (Vec<Vec<u8>>, Option<Failure>);

impl Tree for Target {
    type Metadata = Metadata;
    type Identity = u32;

    fn examine(&self, first: First) -> Result<Metadata, Failure> {
        match first {
            First::Itself => self.symlink_metadata(),
            First::Followed => self.metadata(),
        }
    }

    fn directory(metadata: &Metadata) -> Option<u32> {
        (metadata.file_type == FileType::Directory).then_some(metadata.ino)
    }

    fn names(&self, keep: &dyn Fn(&DirEntry) -> bool) -> Result<Names, Failure> {
        let (entries, damage) = listed(self)?;
        let kept = entries.into_iter().filter(|entry| keep(entry));
        Ok((kept.map(|entry| entry.name).collect(), damage))
    }

    fn child(&self, name: &[u8]) -> Target {
        Target::child(self, name)
    }

    fn path_len(&self) -> usize {
        self.path().len()
    }
}

/// A directory that was entered.
struct Level<T: Tree> {
    target: T,
    metadata: T::Metadata,
    last: bool,
    /// What is still to be visited, the next at the end.
    names: Vec<Vec<u8>>,
}

/// Visits a file and all below it. What fails is told, and the walk goes on. Blocks on metadata.
///
/// # Errors
/// What ends the whole command.
pub fn walk<T: Tree>(root: &T, first: First, visit: Visitor<'_, T>) -> Result<Status, Failure> {
    walk_some(root, first, &|_| true, visit)
}

/// As [`walk`], where each symlink stands for what it leads to, if that is there.
///
/// # Errors
/// As [`walk`].
pub fn walk_through<T: Tree>(root: &T, visit: Visitor<'_, T>) -> Result<Status, Failure> {
    Walk::new(&|_| true, visit, true).run(root, First::Itself)
}

/// As [`walk`], without the entries that `keep` says no to, so that [`Visit::last`] does not count them.
///
/// # Errors
/// As [`walk`].
pub fn walk_some<T: Tree>(
    root: &T,
    first: First,
    keep: &dyn Fn(&DirEntry) -> bool,
    visit: Visitor<'_, T>,
) -> Result<Status, Failure> {
    Walk::new(keep, visit, false).run(root, first)
}

/// What is called for each file.
pub type Visitor<'a, T = Target> = &'a mut dyn FnMut(&Visit<'_, T>) -> Result<Next, Failure>;

struct Walk<'a, T: Tree> {
    visit: Visitor<'a, T>,
    keep: &'a dyn Fn(&DirEntry) -> bool,
    /// Symlinks stand for what they lead to.
    through: bool,
    levels: Vec<Level<T>>,
    entered: HashSet<T::Identity>,
    worst: Status,
}

impl<'a, T: Tree> Walk<'a, T> {
    fn new(
        keep: &'a dyn Fn(&DirEntry) -> bool,
        visit: Visitor<'a, T>,
        through: bool,
    ) -> Walk<'a, T> {
        Walk {
            visit,
            keep,
            through,
            levels: Vec::new(),
            entered: HashSet::new(),
            worst: Status::Fine,
        }
    }

    fn run(mut self, root: &T, first: First) -> Result<Status, Failure> {
        match self.examine(root, first) {
            Ok(metadata) => self.meet(root.clone(), metadata, true)?,
            Err(failure) => self.tell(failure)?,
        }
        while self.step()? {}
        Ok(self.worst)
    }

    fn examine(&self, target: &T, first: First) -> Result<T::Metadata, Failure> {
        if self.through {
            match target.examine(First::Followed) {
                // It leads nowhere, or is not there itself.
                Err(failure) if failure.is_absence() => {}
                examined => return examined,
            }
        }
        target.examine(first)
    }

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
                match self.examine(&target, First::Itself) {
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

    fn meet(&mut self, target: T, metadata: T::Metadata, last: bool) -> Result<(), Failure> {
        let directory = T::directory(&metadata);
        if self.through && directory.is_some() {
            let is_it = |level: &Level<T>| T::directory(&level.metadata) == directory;
            if let Some(level) = self.levels.iter().find(|level| is_it(level)) {
                let what = format!("leads back to {}", level.target);
                return self.tell(Failure::trouble(&target, what));
            }
        }
        let visit = Visit {
            target: &target,
            metadata: &metadata,
            depth: self.levels.len(),
            when: if directory.is_some() {
                When::Before
            } else {
                When::Once
            },
            last,
        };
        match ((self.visit)(&visit), directory) {
            (Ok(Next::Enter), Some(directory)) => self.enter(target, metadata, directory, last),
            (Ok(_), _) => Ok(()),
            (Err(failure), _) => self.tell(failure),
        }
    }

    /// A directory that cannot be read is entered all the same, and empty.
    fn enter(
        &mut self,
        target: T,
        metadata: T::Metadata,
        directory: T::Identity,
        last: bool,
    ) -> Result<(), Failure> {
        let names = match self.names(&target, directory) {
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

    fn names(&mut self, target: &T, directory: T::Identity) -> Result<Vec<Vec<u8>>, Failure> {
        if !self.through && !self.entered.insert(directory) {
            let what = "this directory has another name too; run e2fsck on a copy of the image";
            return Err(Failure::trouble(target, what));
        }
        if target.path_len() > PATH_MOST {
            return Err(Failure::trouble(target, "File name too long"));
        }
        let (mut names, damage) = target.names(self.keep)?;
        if let Some(failure) = damage {
            self.tell(failure)?;
        }
        names.sort_by(|a, b| b.cmp(a));
        Ok(names)
    }
}

/// The entries of a directory but for `.` and `..`.
///
/// # Errors
/// It has several of these: damage, since they are other files.
pub fn entries(target: &Target) -> Result<Vec<DirEntry>, Failure> {
    match listed(target)? {
        (entries, None) => Ok(entries),
        (_, Some(damage)) => Err(damage),
    }
}

/// As [`entries`], where that damage comes with all other entries.
pub fn listed(target: &Target) -> Result<(Vec<DirEntry>, Option<Failure>), Failure> {
    let mut entries = target
        .fs
        .read_dir(target.path())
        .map_err(|error| target.failure(&error))?;
    let of_name = |name: &[u8]| entries.iter().filter(|entry| entry.name == name).count();
    let damage = (of_name(b".") > 1 || of_name(b"..") > 1).then(|| {
        let what =
            "this directory has more than one '.' or '..'; run e2fsck on a copy of the image";
        Failure::trouble(target, what)
    });
    entries.retain(|entry| entry.name != b"." && entry.name != b"..");
    Ok((entries, damage))
}
