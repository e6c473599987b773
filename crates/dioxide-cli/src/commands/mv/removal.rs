//! The removal of what was copied from the host, where others may go on with it.
//!
//! Invariants: what is no longer as it was copied stays, and so does an image that somebody uses; each name is removed from a
//! directory that is held open, so that nobody leads the removal elsewhere by a symlink.

use crate::failure::{Failure, Status};
use crate::location::{Identity, Location, Stamp};
use crate::walk::{First, Next, Visit, When, walk};
use dioxide::block::file::Replacing;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Removes a file with all that is in it, as far as it is as it was copied. What fails is told.
pub(super) fn remove(
    source: &Location,
    copied: &HashMap<Identity, Stamp>,
) -> Result<Status, Failure> {
    let parent = source.parent();
    let opened = openat(CWD, parent.shown(), DIRECTORY, Mode::empty());
    let opened = opened.map_err(|errno| Failure::host(&parent, &errno.into()))?;
    let mut removal = Removal {
        copied,
        directories: vec![opened],
        failed: false,
    };
    walk(source, First::Itself, &mut |visit| {
        let done = removal.visit(visit);
        removal.failed |= done.is_err();
        done
    })
}

struct Removal<'a> {
    copied: &'a HashMap<Identity, Stamp>,
    /// The one that the source is in, and those that were entered.
    directories: Vec<OwnedFd>,
    /// Something below was not removed, so that what it is in cannot be.
    failed: bool,
}

impl Removal<'_> {
    fn visit(&mut self, visit: &Visit<'_, Location>) -> Result<Next, Failure> {
        let (file, facts) = (visit.target, visit.metadata);
        if visit.when == When::After {
            self.directories.pop();
        }
        let directory = self.directories.last().expect("the first stays");
        let done = match visit.when {
            When::Before => {
                let flags = DIRECTORY | OFlags::NOFOLLOW;
                let entered = openat(directory, file.name(), flags, Mode::empty());
                entered.map(|entered| self.directories.push(entered))
            }
            When::After => match unlinkat(directory, file.name(), AtFlags::REMOVEDIR) {
                // What is still in it was told.
                Err(Errno::NOTEMPTY) if self.failed => Ok(()),
                done => done,
            },
            When::Once if self.copied.get(&facts.identity) == Some(&facts.stamp()) => {
                // Of those in a tree that would be looked for as often as it has files.
                let _held = (visit.depth == 0)
                    .then(|| Replacing::begin(OsStr::from_bytes(file.shown())))
                    .transpose()
                    .map_err(|error| Failure::engine(file, b"", &error.into()))?;
                unlinkat(directory, file.name(), AtFlags::empty())
            }
            When::Once => {
                let what = "has changed or come since it was copied, and is not removed";
                return Err(Failure::trouble(file, what));
            }
        };
        done.map_err(|errno| Failure::host(file, &errno.into()))?;
        Ok(Next::Enter)
    }
}
