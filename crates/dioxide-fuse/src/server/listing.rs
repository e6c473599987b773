//! Listing directories. Nothing is remembered between two requests: the place in a directory that the library tells
//! with each name stays right however the directory changes, so that directories need not be opened.

use super::{Entry, Server};
use crate::Result;
use dioxide::{DirEntry, Error, FileType, Node};

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

impl Server {
    /// `readdir`: hands out names from a place on, of [`Dirent::next`] or 0, while `take` has room for them.
    ///
    /// # Errors
    /// As [`Node::read_dir`], if not one name was handed out.
    pub fn readdir(&self, id: u64, from: u64, take: &mut dyn FnMut(&Dirent<'_>) -> bool) -> Result {
        each_name(&*self.node(id)?, from, take)
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
        let live = self.live()?;
        let dir = live.nodes.get(id)?;
        each_name(&dir, from, &mut |name| {
            let node = match name.name {
                b"." | b".." => None,
                text => match dir.lookup(text) {
                    Ok(node) => Some(node),
                    Err(Error::NotFound(_)) => return true,
                    // Whoever looks closer is told what is wrong.
                    Err(_) => None,
                },
            };
            let entry = node.map(|node| self.tell(&live, node));
            let taken = take(name, entry.as_ref());
            if let Some(entry) = entry.filter(|_| !taken) {
                live.nodes.forget(entry.id, 1);
            }
            taken
        })
    }

    /// `fsync` of a directory.
    ///
    /// # Errors
    /// As [`Node::sync`].
    pub fn fsyncdir(&self, id: u64) -> Result {
        Ok(self.node(id)?.sync()?)
    }
}

/// Visits names until the visitor has enough. An error behind the first name is for the request that comes
/// to it.
fn each_name(dir: &Node, mut from: u64, visit: &mut dyn FnMut(&Dirent<'_>) -> bool) -> Result {
    let mut first = true;
    loop {
        let names = match dir.read_dir(from, BATCH) {
            Err(_) if !first => return Ok(()),
            names => names?,
        };
        for (entry, next) in &names {
            if !visit(&dirent(entry, *next)) {
                return Ok(());
            }
            (from, first) = (*next, false);
        }
        if names.is_empty() {
            return Ok(());
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
