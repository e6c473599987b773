//! Listing directories. Nothing is remembered between two requests: the place in a directory that the library tells
//! with each name stays right however the directory changes, so that directories need not be opened.

use super::{Entry, Server};
use crate::Result;
use crate::stats::Op;
use crate::table::ROOT_ID;
use dioxide::{DirEntry, FileType};

/// One name of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Dirent<'a> {
    /// Inode number.
    pub ino: u64,
    /// Where to go on behind it.
    pub next: u64,
    /// Kind of file, where the directory tells.
    pub file_type: FileType,
    /// The name.
    pub name: &'a [u8],
}

/// So many names are taken from the library at once.
const BATCH: usize = 128;
/// As many as one reply of the kernel's smallest buffer has room for, so that no more inodes are looked at.
const PLUS_BATCH: usize = 24;

impl Server {
    /// `readdir`: hands out names from a place on, of [`Dirent::next`] or 0, while `take` has room for them.
    ///
    /// # Errors
    /// As [`dioxide::Node::read_dir`], if not one name was handed out.
    pub fn readdir(&self, id: u64, from: u64, take: &mut dyn FnMut(&Dirent<'_>) -> bool) -> Result {
        let _timed = self.requests.time(Op::Readdir);
        let live = self.live()?;
        let dir = live.node(id)?;
        let list = |from| dir.read_dir(from, BATCH);
        each_name(list, from, &mut |(name, next)| {
            take(&dirent(&name, next)).then_some(next)
        })
    }

    /// `readdirplus`: as [`Server::readdir`], with what each name stands for. None for `.` and `..`, and for what
    /// cannot be read. What is not taken does not count as a lookup.
    ///
    /// # Errors
    /// As [`Server::readdir`].
    pub fn readdirplus(
        &self,
        id: u64,
        from: u64,
        take: &mut dyn FnMut(&Dirent<'_>, Option<&Entry>) -> bool,
    ) -> Result {
        let _timed = self.requests.time(Op::Readdirplus);
        let live = self.live()?;
        let dir = live.node(id)?;
        let list = |from| dir.read_dir_plus(from, PLUS_BATCH);
        each_name(list, from, &mut |(name, next, metadata)| {
            let entry = metadata.map(|told| self.tell_of(&live, told));
            let taken = take(&dirent(&name, next), entry.as_ref());
            if let Some(entry) = entry.filter(|_| !taken) {
                live.nodes.forget(entry.id, 1);
            }
            taken.then_some(next)
        })
    }

    /// `fsync` of a directory; of the root it makes everything durable that the kernel has handed over, because
    /// the kernel does not tell us of `syncfs`. The transport has it hand over what it has of files that are [`Server::written`] before.
    ///
    /// # Errors
    /// As [`dioxide::Node::sync`]; of the root as [`Server::tell_lost`] too.
    pub fn fsyncdir(&self, id: u64) -> Result {
        let _timed = self.requests.time(Op::Fsyncdir);
        let live = self.live()?;
        match id {
            ROOT_ID => {
                live.fs.sync()?;
                self.tell_lost()?;
            }
            _ => live.node(id)?.sync()?,
        }
        Ok(())
    }
}

/// Visits names until the visitor, which tells where to go on, has enough. An error behind the first name is for the
/// request that comes to it.
fn each_name<T>(
    list: impl Fn(u64) -> dioxide::Result<Vec<T>>,
    mut from: u64,
    visit: &mut dyn FnMut(T) -> Option<u64>,
) -> Result {
    let mut first = true;
    loop {
        let names = match list(from) {
            Err(_) if !first => return Ok(()),
            names => names?,
        };
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            match visit(name) {
                Some(next) => (from, first) = (next, false),
                None => return Ok(()),
            }
        }
    }
}

fn dirent(entry: &DirEntry, next: u64) -> Dirent<'_> {
    Dirent {
        ino: entry.ino.0.into(),
        next,
        file_type: entry.file_type,
        name: &entry.name,
    }
}
