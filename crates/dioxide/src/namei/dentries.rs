//! Names that were looked up, in memory: what they stand for, or that they are not there.
//!
//! Invariants: an entry is right whenever the directory's `names` lock is held; it is put under that
//! lock, shared or exclusive, and changed by whoever changes the directory, before the number that a
//! name stood for can be another file's. Each change counts the directory's version up, after the entry
//! was changed: who reads an entry without the lock looks at the version before, and again when he has the
//! inode.
//!
//! The key has the directory's generation, so that entries of a directory that is gone are not those of the next
//! with its number; they leave as all do that nobody asks for.
//!
//! Rejected: entries that hold inodes. Inodes have a cache of their own, whose entries are larger, and
//! a name that is not there has none. A cache crate: each entry is found by way of four lines of memory that are far
//! from each other, and takes three times as much of it (see [`table`]).

mod table;

use super::create::check_lives;
use super::dir::block::Room;
use super::remove::more_names_than_links;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::{Error, Result};
use dioxide_format::inode::InodeFlags;
use dioxide_format::types::Ino;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use table::{Key, Table};

/// The names in memory of a mount.
pub(crate) struct Dentries(Table);

impl fmt::Debug for Dentries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dentries")
    }
}

fn key<'a>(dir: &Inode, name: &'a [u8]) -> Key<'a> {
    let dir = (dir.ino, dir.generation);
    Key { dir, name }
}

/// What names may take where nobody says.
fn usual_bytes() -> usize {
    const MOST: u64 = 1 << 30;
    const PART: u64 = 16;
    let machine = rustix::system::sysinfo();
    let machine = (machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit));
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let container = container.and_then(|bytes| bytes.trim().parse().ok());
    let bytes = machine.min(container.unwrap_or(u64::MAX)) / PART;
    bytes.min(MOST) as usize
}

pub(super) fn bad_entry(dir: &Inode, name: &[u8], ino: Ino, what: &str) -> Error {
    let name = name.escape_ascii();
    dir.corrupt(
        "directory entry",
        format!("'{name}' names inode {ino}, {what}"),
    )
}

impl Dentries {
    /// Names that take at most this many bytes.
    pub(crate) fn new(bytes: Option<usize>) -> Dentries {
        Dentries(Table::new(bytes.unwrap_or_else(usual_bytes)))
    }

    fn get(&self, dir: &Inode, name: &[u8]) -> Option<Option<Ino>> {
        self.0.get(key(dir, name))
    }

    /// A name stands for this from now on. The caller has the directory's `names` exclusive, and has not
    /// given back the number that it stood for.
    pub(crate) fn change(&self, dir: &Inode, name: &[u8], ino: Ino) {
        self.put(dir, name, Some(ino));
        dir.names_version.fetch_add(1, Ordering::AcqRel);
    }

    /// A name stands for nothing from now on. The caller is as in [`Dentries::change`].
    ///
    /// Nothing is kept of it: names that were removed would crowd out those that are there.
    pub(crate) fn remove(&self, dir: &Inode, name: &[u8]) {
        self.0.remove(key(dir, name));
        dir.names_version.fetch_add(1, Ordering::AcqRel);
    }

    /// A name was found to stand for this, or for nothing. The caller has the directory's `names`.
    fn put(&self, dir: &Inode, name: &[u8], ino: Option<Ino>) {
        self.0.put(key(dir, name), ino);
    }
}

impl Mount {
    /// What a name in a directory stands for, if that is in memory, and the version of the directory that
    /// says so: what is found out about the number holds if the version is the same afterwards.
    pub(super) fn known_name(&self, dir: &Inode, name: &[u8]) -> Option<(Ino, u64)> {
        let version = dir.names_version.load(Ordering::Acquire);
        let ino = self.dentries.get(dir, name).flatten()?;
        Some((ino, version))
    }

    /// What a name in a directory stands for. The caller has its `names` lock. Blocks on metadata.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn find_name(&self, dir: &Inode, name: &[u8]) -> Result<Option<Ino>> {
        if let Some(known) = self.dentries.get(dir, name) {
            return Ok(known);
        }
        let found = self.find_on_disk(dir, name)?.ok();
        if found.is_none() {
            self.remember(dir, name, None);
        }
        Ok(found)
    }

    /// As [`Mount::find_name`], for who is about to make a name that is not there, and has `names` exclusive: where it
    /// goes, if that was seen.
    pub(super) fn find_name_or_room(
        &self,
        dir: &Inode,
        name: &[u8],
    ) -> Result<std::result::Result<Ino, Option<Room>>> {
        match self.dentries.get(dir, name) {
            Some(known) => Ok(known.ok_or(None)),
            None => self.find_on_disk(dir, name),
        }
    }

    fn find_on_disk(
        &self,
        dir: &Inode,
        name: &[u8],
    ) -> Result<std::result::Result<Ino, Option<Room>>> {
        let found = self.find_entry_or_room(dir, name)?;
        if let Ok(ino) = found {
            if self.is_own_inode(ino) {
                return Err(bad_entry(dir, name, ino, "which is the file system's own"));
            }
            self.remember(dir, name, Some(ino));
        }
        Ok(found)
    }

    /// Keeps in memory what a name stands for. Not of `.` and `..`: a directory that moves has another `..`, and no name
    /// of its changes.
    fn remember(&self, dir: &Inode, name: &[u8], ino: Option<Ino>) {
        if !matches!(name, b"." | b"..") {
            self.dentries.put(dir, name, ino);
        }
    }

    /// Whether an inode is one of the file system's own, which no name stands for.
    pub(crate) fn is_own_inode(&self, ino: Ino) -> bool {
        ino != Ino::ROOT && ino < self.sb.first_ino()
            || self.sb.quota_inums().contains(&ino.0)
            || self.sb.disk().s_orphan_file_inum == ino.0
    }

    /// The inode of a name.
    fn named(&self, dir: &Inode, name: &[u8], ino: Ino) -> Result<Arc<Inode>> {
        // Whoever has the directory's names locked is about to lock those of what is in it.
        if ino == dir.ino && !matches!(name, b"." | b"..") {
            return Err(bad_entry(dir, name, ino, "the directory that it is in"));
        }
        let inode = self.inode(ino)?;
        match inode.flags().contains(InodeFlags::EA_INODE) {
            true => Err(bad_entry(
                dir,
                name,
                ino,
                "which holds an attribute's value",
            )),
            false => Ok(inode),
        }
    }

    /// The inode that a name in a directory stands for. Blocks on metadata, unless both are in memory.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn child(&self, dir: &Inode, name: &[u8]) -> Result<Option<Arc<Inode>>> {
        let version = dir.names_version.load(Ordering::Acquire);
        if let Some(known) = self.dentries.get(dir, name) {
            let Some(ino) = known else { return Ok(None) };
            let inode = self.named(dir, name, ino);
            if dir.names_version.load(Ordering::Acquire) == version
                && inode.as_ref().is_ok_and(|inode| !inode.has_ended())
            {
                return inode.map(Some);
            }
        }
        let _names = dir.names.read();
        // What was removed while a walk was in it has nothing, and its blocks may be others' by now.
        if check_lives(dir).is_err() {
            return Ok(None);
        }
        let Some(ino) = self.find_name(dir, name)? else {
            return Ok(None);
        };
        let inode = self.named(dir, name, ino)?;
        match inode.has_ended() {
            // Who ends a file has taken its name away before, under this lock.
            true => Err(more_names_than_links(&inode)),
            false => Ok(Some(inode)),
        }
    }

    /// As [`Mount::child`], for who has the directory's `names` lock, and a name that must be there.
    pub(crate) fn child_locked(&self, dir: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
        let absent = || Error::NotFound(String::from_utf8_lossy(name).into_owned());
        let ino = self.find_name(dir, name)?.ok_or_else(absent)?;
        self.named(dir, name, ino)
    }
}
