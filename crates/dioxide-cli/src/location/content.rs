//! The bytes of a regular file on either side, with its holes.

use super::Location;
use crate::failure::Failure;
use crate::session::Target;
use crate::walk::First;
use dioxide::Error;
use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

/// An open file.
pub enum Content {
    Image(dioxide::File, Target),
    Host(fs::File, PathBuf),
}

impl Location {
    /// Opens a file for reading. One of the host that is meant itself is not opened if a symlink has taken its place since it
    /// was looked at.
    pub fn open(&self, first: First) -> Result<Content, Failure> {
        match self {
            Location::Image(target) => Ok(Content::Image(target.open_read()?, target.clone())),
            Location::Host(path) => {
                let flags = match first {
                    First::Itself => OFlags::NOFOLLOW | OFlags::NONBLOCK,
                    First::Followed => OFlags::empty(),
                };
                let opened = fs::OpenOptions::new()
                    .read(true)
                    .custom_flags(flags.bits() as i32)
                    .open(path);
                let file = opened.map_err(|error| Failure::host(self, &error))?;
                Ok(Content::Host(file, path.clone()))
            }
        }
    }
}

impl Content {
    /// A new file that nobody else has, in the image.
    pub(super) fn unnamed(
        directory: &Target,
        place: &Target,
        new: &dioxide::NewFile,
    ) -> Result<Content, Failure> {
        let options = Target::writing().new_file(new);
        let opened = options.open_unnamed(&directory.fs, directory.path());
        let file = opened.map_err(|error| place.failure(&error))?;
        Ok(Content::Image(file, place.clone()))
    }

    /// How long it is now.
    pub fn len(&self) -> Result<u64, Failure> {
        match self {
            Content::Image(file, _) => Ok(file.len()),
            Content::Host(file, path) => match file.metadata() {
                Ok(metadata) => Ok(metadata.len()),
                Err(error) => Err(Failure::host(path.display(), &error)),
            },
        }
    }

    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Failure> {
        match self {
            Content::Image(file, target) => file
                .read_at(buf, offset)
                .map_err(|error| target.failure(&error)),
            Content::Host(file, path) => loop {
                match file.read_at(buf, offset) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    read => return read.map_err(|error| Failure::host(path.display(), &error)),
                }
            },
        }
    }

    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Failure> {
        match self {
            Content::Image(file, target) => {
                write_all_at(file, bytes, offset).map_err(|error| target.failure(&error))
            }
            Content::Host(file, path) => file
                .write_all_at(bytes, offset)
                .map_err(|error| Failure::host(path.display(), &error)),
        }
    }

    pub fn set_len(&self, len: u64) -> Result<(), Failure> {
        match self {
            Content::Image(file, target) => {
                file.set_len(len).map_err(|error| target.failure(&error))
            }
            Content::Host(file, path) => file
                .set_len(len)
                .map_err(|error| Failure::host(path.display(), &error)),
        }
    }

    /// The next run of data at or behind `offset`: where it begins and ends; none if there is no more.
    pub fn data(&self, offset: u64, len: u64) -> Result<Option<(u64, u64)>, Failure> {
        let Some(begin) = self.seek(offset, Kind::Data)? else {
            return Ok(None);
        };
        Ok(run(begin, self.seek(begin, Kind::Hole)?, len))
    }

    fn seek(&self, offset: u64, kind: Kind) -> Result<Option<u64>, Failure> {
        match self {
            Content::Image(file, target) => {
                let found = match kind {
                    Kind::Data => file.seek_data(offset),
                    Kind::Hole => file.seek_hole(offset),
                };
                found.map_err(|error| target.failure(&error))
            }
            Content::Host(file, path) => {
                let found = match kind {
                    Kind::Data => seek(file, SeekFrom::Data(offset)),
                    Kind::Hole => seek(file, SeekFrom::Hole(offset)),
                };
                match (found, kind) {
                    (Ok(at), _) => Ok(Some(at)),
                    (Err(Errno::NXIO), _) => Ok(None),
                    // A file system that knows no holes has none.
                    (Err(Errno::INVAL | Errno::OPNOTSUPP), Kind::Data) => Ok(Some(offset)),
                    (Err(Errno::INVAL | Errno::OPNOTSUPP), Kind::Hole) => Ok(None),
                    (Err(errno), _) => Err(Failure::host(path.display(), &errno.into())),
                }
            }
        }
    }
}

/// The run of data from `begin` to `hole`, in a file of `len` bytes; none behind its end. Where the hole begins no later, somebody
/// has punched it meanwhile, or a file system contradicts itself: all that follows is read.
fn run(begin: u64, hole: Option<u64>, len: u64) -> Option<(u64, u64)> {
    let end = hole.filter(|&hole| hole > begin).unwrap_or(len).min(len);
    (begin < end).then_some((begin, end))
}

/// Writes all of it: what passes the largest size of a file is an error, and not left out.
pub fn write_all_at(file: &dioxide::File, mut bytes: &[u8], mut offset: u64) -> Result<(), Error> {
    while !bytes.is_empty() {
        let written = file.write_at(bytes, offset)?;
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Kind {
    Data,
    Hole,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_of_data_where_a_hole_was_punched_meanwhile_goes_to_the_end() {
        for (begin, hole, len, found) in [
            (10, Some(20), 100, Some((10, 20))),
            (10, Some(120), 100, Some((10, 100))),
            (10, None, 100, Some((10, 100))),
            (10, Some(10), 100, Some((10, 100))),
            (10, Some(5), 100, Some((10, 100))),
            (100, Some(100), 100, None),
            (100, None, 100, None),
        ] {
            assert_eq!(run(begin, hole, len), found, "{begin} {hole:?}");
        }
    }
}
