//! Paths: from a name to an inode.
//!
//! Invariants: a walk follows at most [`MAX_SYMLINKS`] symlinks, so it ends; a directory is never
//! entered below itself. `..` leads back along the way that was taken, which is where the disk's
//! `..` leads too unless it is damaged.
//!
//! Rejected: resolving `..` in the text, which is wrong behind a symlink.

use super::dentries::bad_entry;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::{Error, FileType, Result};
use dioxide_format::dir::NAME_MAX;
use dioxide_format::types::Ino;
use std::borrow::Cow;
use std::sync::Arc;

pub(super) const MAX_SYMLINKS: u32 = 40;

impl Mount {
    /// As [`Mount::lookup`], and opens it: what has the name when that is done, so that a name which is always there, and is
    /// replaced meanwhile, is found.
    ///
    /// # Errors
    /// As [`Mount::lookup`].
    pub(crate) fn lookup_open(&self, path: &[u8], follow: bool) -> Result<Arc<Inode>> {
        loop {
            let inode = self.lookup(path, follow)?;
            if inode.open() {
                return Ok(inode);
            }
        }
    }

    /// As [`Mount::lookup`], and the target of what must be a symlink.
    ///
    /// # Errors
    /// As [`Mount::lookup`] and [`Mount::read_link`].
    pub(crate) fn lookup_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        loop {
            let inode = self.lookup(path, false)?;
            if let Some(target) = self.living_target(&inode)? {
                return Ok(target);
            }
        }
    }

    /// The inode at a path from the root; a leading `/` makes no difference. A symlink at the end
    /// is followed if `follow`, or if a `/` comes after it. Blocks on metadata.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`], [`Error::TooManySymlinks`],
    /// [`Error::NameTooLong`]; damage.
    pub(crate) fn lookup(&self, path: &[u8], follow: bool) -> Result<Arc<Inode>> {
        if let Some(found) = self.lookup_known(path)? {
            return Ok(found);
        }
        match self.walk(path, follow) {
            // Where directories are moved meanwhile, one that was passed may be found again below. Nobody moves one
            // under this lock.
            Err(Error::Corrupt { .. }) => {
                let _unmoved = self.renaming.lock();
                self.walk(path, follow)
            }
            walked => walked,
        }
    }

    fn walk(&self, path: &[u8], follow: bool) -> Result<Arc<Inode>> {
        let version = self.ways.version();
        let mut walk = Walk {
            mount: self,
            path,
            follow,
            way: self.way_from_root()?,
            symlinks: 0,
        };
        walk.go()?;
        let found = walk.way.pop().expect("the root is always there");
        let last = LastName::of(path);
        if let Some(dir) = walk.way.last()
            && walk.symlinks == 0
            && !last.is_special()
        {
            self.ways.put(last.before, version, dir);
        }
        Ok(found)
    }

    /// As [`Mount::lookup`], for a file in a directory whose path is in memory. None if it takes a walk: also for
    /// a directory, which must not be one of those above it, and a symlink.
    fn lookup_known(&self, path: &[u8]) -> Result<Option<Arc<Inode>>> {
        let last = LastName::of(path);
        if last.is_special() || last.must_be_dir || last.name.len() > NAME_MAX {
            return Ok(None);
        }
        let Some(dir) = self.ways.get(last.before) else {
            return Ok(None);
        };
        let child = self.child(&dir, last.name)?;
        let child = child.ok_or_else(|| Error::NotFound(text(path)))?;
        let takes_a_walk = matches!(child.file_type(), FileType::Directory | FileType::Symlink);
        Ok((!takes_a_walk).then_some(child))
    }

    /// The directory at a path, which is empty for the root.
    fn lookup_dir(&self, path: &[u8]) -> Result<Arc<Inode>> {
        if let Some(dir) = self.ways.get(path) {
            return Ok(dir);
        }
        let version = self.ways.version();
        let dir = match path {
            b"" => self.inode(Ino::ROOT)?,
            _ => self.lookup(path, true)?,
        };
        self.ways.put(path, version, &dir);
        Ok(dir)
    }
    fn way_from_root(&self) -> Result<Vec<Arc<Inode>>> {
        // Deep enough for most.
        let mut way = Vec::with_capacity(8);
        way.push(self.inode(Ino::ROOT)?);
        Ok(way)
    }
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// A path and its last name.
#[derive(Clone, Copy, Debug)]
struct LastName<'a> {
    /// What comes before the name, with its slashes.
    before: &'a [u8],
    name: &'a [u8],
    /// A `/` comes after the name.
    must_be_dir: bool,
}

impl<'a> LastName<'a> {
    fn of(path: &'a [u8]) -> LastName<'a> {
        let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
        let start = path[..end].iter().rposition(|&b| b == b'/');
        let start = start.map_or(0, |at| at + 1);
        LastName {
            before: &path[..start],
            name: &path[start..end],
            must_be_dir: end < path.len(),
        }
    }

    /// Whether it is no name but `.`, `..` or the root.
    fn is_special(&self) -> bool {
        is_special(self.name)
    }
}

fn is_special(name: &[u8]) -> bool {
    matches!(name, b"" | b"." | b"..")
}

/// Where a name is, or is to be.
#[derive(Debug)]
pub(crate) struct At<'a> {
    /// The path as it was given.
    path: &'a [u8],
    pub(crate) dir: Arc<Inode>,
    pub(crate) name: &'a [u8],
    /// A `/` comes after the name.
    pub(crate) must_be_dir: bool,
}

impl<'a> At<'a> {
    /// A name in a directory that is known.
    pub(crate) fn in_dir(dir: &Arc<Inode>, name: &'a [u8]) -> At<'a> {
        At {
            path: name,
            dir: dir.clone(),
            name,
            must_be_dir: false,
        }
    }

    /// Whether it is no name but `.`, `..` or the root.
    pub(crate) fn is_special(&self) -> bool {
        is_special(self.name)
    }

    /// The path for errors.
    pub(crate) fn text(&self) -> String {
        text(self.path)
    }
}

impl Mount {
    /// The directory that the last name of a path is in or is to be in. Blocks on metadata.
    ///
    /// # Errors
    /// As [`Mount::lookup`], for the way there.
    pub(crate) fn parent<'a>(&self, path: &'a [u8]) -> Result<At<'a>> {
        let at = self.parent_of_any(path)?;
        match at.name.len() > NAME_MAX {
            true => Err(Error::NameTooLong(at.text())),
            false => Ok(at),
        }
    }

    /// As [`Mount::parent`]; the last name may be too long, which is found out when it is made.
    pub(crate) fn parent_of_any<'a>(&self, path: &'a [u8]) -> Result<At<'a>> {
        if path.is_empty() {
            return Err(Error::NotFound("an empty path".into()));
        }
        let last = LastName::of(path);
        let dir = self.lookup_dir(last.before)?;
        if dir.file_type() != FileType::Directory {
            return Err(Error::NotADirectory(text(path)));
        }
        Ok(At {
            path,
            dir,
            name: last.name,
            must_be_dir: last.must_be_dir,
        })
    }
}

/// A path being walked.
struct Walk<'a> {
    mount: &'a Mount,
    /// As it was given, for errors.
    path: &'a [u8],
    follow: bool,
    /// The directories from the root to where the walk is; at the end perhaps another file.
    way: Vec<Arc<Inode>>,
    symlinks: u32,
}

/// The first name of `rest`, and what follows it, its slashes included.
fn split(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = rest.iter().position(|&b| b != b'/')?;
    let rest = &rest[start..];
    let end = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
    Some(rest.split_at(end))
}

impl Walk<'_> {
    fn name(&self) -> String {
        text(self.path)
    }

    fn here(&self) -> &Arc<Inode> {
        self.way.last().expect("the root is always there")
    }

    fn go(&mut self) -> Result<()> {
        if self.path.is_empty() {
            return Err(Error::NotFound("an empty path".into()));
        }
        let mut rest = Cow::Borrowed(self.path);
        let mut at = 0;
        while let Some((name, after)) = split(&rest[at..]) {
            match self.step(name, after)? {
                None => at = rest.len() - after.len(),
                Some(target) => (rest, at) = (Cow::Owned([&target, after].concat()), 0),
            }
        }
        Ok(())
    }

    /// Takes one step. Returns the target of a symlink, which is to be walked instead of its name.
    fn step(&mut self, name: &[u8], after: &[u8]) -> Result<Option<Vec<u8>>> {
        self.must_be_directory_if(true)?;
        match name {
            b"." => {}
            b".." if self.way.len() > 1 => drop(self.way.pop()),
            b".." => {}
            _ => loop {
                let child = self.child(name)?;
                let passes = self.follow || !after.is_empty();
                if child.file_type() != FileType::Symlink || !passes {
                    self.way.push(child);
                    break;
                }
                let target = self.follow(&child)?;
                if target.is_some() {
                    return Ok(target);
                }
            },
        }
        self.must_be_directory_if(!after.is_empty())?;
        Ok(None)
    }

    fn must_be_directory_if(&self, must: bool) -> Result<()> {
        if must && self.here().file_type() != FileType::Directory {
            return Err(Error::NotADirectory(self.name()));
        }
        Ok(())
    }

    fn child(&self, name: &[u8]) -> Result<Arc<Inode>> {
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong(self.name()));
        }
        let dir = self.here();
        let child = self.mount.child(dir, name)?;
        let child = child.ok_or_else(|| Error::NotFound(self.name()))?;
        if self.way.iter().any(|above| above.ino == child.ino) {
            return Err(bad_entry(dir, name, child.ino, "a directory above it"));
        }
        Ok(child)
    }

    /// The target of a symlink; none if it was removed meanwhile.
    fn follow(&mut self, symlink: &Inode) -> Result<Option<Vec<u8>>> {
        if self.symlinks == MAX_SYMLINKS {
            return Err(Error::TooManySymlinks(self.name()));
        }
        let Some(target) = self.mount.living_target(symlink)? else {
            return Ok(None);
        };
        self.symlinks += 1;
        if target.first() == Some(&b'/') {
            self.way.truncate(1);
        }
        Ok(Some(target))
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn path_with_repeated_and_trailing_slashes_splits_into_names() {
        assert_eq!(split(b"//a//b/"), Some((&b"a"[..], &b"//b/"[..])));
        assert_eq!(split(b"//b/"), Some((&b"b"[..], &b"/"[..])));
        assert_eq!(split(b"/"), None);
        assert_eq!(split(b""), None);
    }
}
