//! What is being made under another name beside the place where it is to be, and is gone if it is not put there.
//!
//! A regular file in an image has no name at all while it is written (`O_TMPFILE`), so that not even the end of the
//! process leaves any of it behind.

use super::{Content, Facts, Held, HostFile, Location};
use crate::failure::Failure;
use crate::session::Target;
use dioxide::block::file::Replacing;
use dioxide::{Error, FileType, NewFile, RenameMode, Special};
use rustix::fs::{CWD, Mode, makedev, mknodat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempPath;

/// A file under a temporary name. Removed with the value unless it is placed.
pub enum Pending {
    Image(Name),
    /// The file, unless it had a name before.
    Host(TempPath, Option<HostFile>),
}

/// A temporary name in an image; none once it is in its place.
pub struct Name(Option<Target>);

impl Pending {
    /// It, for its attributes.
    pub fn held(&self) -> Held<'_> {
        match self {
            Pending::Image(Name(target)) => {
                Held::Image(target.as_ref().expect("it has not been placed"))
            }
            Pending::Host(_, file) => Held::Host(file.as_ref().expect("a link has attributes")),
        }
    }

    /// Gives it its name; what has the name is replaced at once, unless it is an image in use.
    pub fn place(self, place: &Location) -> Result<(), Failure> {
        match (self, place) {
            (Pending::Host(path, file), Location::Host(place)) => {
                file.map_or(Ok(()), HostFile::close)?;
                // An image that somebody uses would go on under no name.
                let _held = Replacing::begin(place)
                    .map_err(|error| Failure::engine(place.display(), b"", &error.into()))?;
                path.persist(place)
                    .map_err(|error| Failure::host(place.display(), &error.error))
            }
            (Pending::Image(mut name), Location::Image(place)) => {
                let from = name.0.as_ref().expect("it has not been placed");
                let renamed = place
                    .fs
                    .rename(from.path(), place.path(), RenameMode::Replace);
                renamed.map_err(|error| place.failure(&error))?;
                name.0 = None;
                Ok(())
            }
            _ => unreachable!("it was made beside its place"),
        }
    }

    /// A symlink.
    pub fn symlink(place: &Location, text: &[u8], new: &NewFile) -> Result<Pending, Failure> {
        match place {
            Location::Image(place) => in_image(place, |path| place.fs.symlink(text, path, new)),
            Location::Host(place) => {
                let made = on_host(place, |path| {
                    std::os::unix::fs::symlink(OsStr::from_bytes(text), path)
                });
                let path = made.map_err(|error| Failure::host(place.display(), &error))?;
                held(path, place, |facts| facts.file_type == FileType::Symlink)
            }
        }
    }

    /// Another name for a file on the same side.
    pub fn link(place: &Location, first: &Location) -> Result<Pending, Failure> {
        match (place, first) {
            (Location::Image(place), Location::Image(first)) => {
                let failure =
                    |error: &_| first.failure_at("cannot have another name,", place, error);
                let link = |path: &[u8]| place.fs.hard_link(first.path(), path);
                in_image_or(place, link, failure)
            }
            (Location::Host(place), Location::Host(first)) => {
                let linked = on_host(place, |path| fs::hard_link(first, path));
                let path = linked.map_err(|error| Failure::host(place.display(), &error))?;
                Ok(Pending::Host(path, None))
            }
            _ => Err(Failure::trouble(place, "Invalid cross-device link")),
        }
    }

    /// A device, a pipe or a socket; none if it is a device, and only root can make them there.
    pub fn node(
        place: &Location,
        file_type: FileType,
        (major, minor): (u32, u32),
        new: &NewFile,
    ) -> Result<Option<Pending>, Failure> {
        match place {
            Location::Image(place) => {
                let special = match file_type {
                    FileType::CharDevice => Special::CharDevice(major, minor),
                    FileType::BlockDevice => Special::BlockDevice(major, minor),
                    FileType::Socket => Special::Socket,
                    _ => Special::Fifo,
                };
                in_image(place, |path| place.fs.mknod(path, special, new)).map(Some)
            }
            Location::Host(place) => {
                let is_device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
                let kind = match file_type {
                    FileType::CharDevice => rustix::fs::FileType::CharacterDevice,
                    FileType::BlockDevice => rustix::fs::FileType::BlockDevice,
                    FileType::Socket => rustix::fs::FileType::Socket,
                    _ => rustix::fs::FileType::Fifo,
                };
                let mode = Mode::from_raw_mode(0o600);
                let device = makedev(major, minor);
                match on_host(place, |path| Ok(mknodat(CWD, path, kind, mode, device)?)) {
                    Ok(path) => held(path, place, |facts| {
                        let device = facts.device.unwrap_or((major, minor));
                        facts.file_type == file_type && device == (major, minor)
                    })
                    .map(Some),
                    Err(error)
                        if is_device && Errno::from_io_error(&error) == Some(Errno::PERM) =>
                    {
                        Ok(None)
                    }
                    Err(error) => Err(Failure::host(place.display(), &error)),
                }
            }
        }
    }

    /// A regular file whose content `fill` writes. In an image it is made as `new` says; on the host for its user only, and its
    /// content is there to stay if it is to be `durable`.
    pub fn regular(
        place: &Location,
        new: &NewFile,
        durable: bool,
        fill: &mut dyn FnMut(&Content) -> Result<(), Failure>,
    ) -> Result<Pending, Failure> {
        match place {
            Location::Image(place) => {
                let content = Content::unnamed(&place.parent(), place, new)?;
                fill(&content)?;
                let Content::Image(file, _) = &content else {
                    unreachable!("it was made in the image");
                };
                in_image(place, |path| file.link(path))
            }
            Location::Host(place) => {
                let mut made = None;
                let path = on_host(place, |path| {
                    let mut options = fs::OpenOptions::new();
                    let options = options.write(true).create_new(true).mode(0o600);
                    made = Some(options.open(path)?);
                    Ok(())
                });
                let path = path.map_err(|error| Failure::host(place.display(), &error))?;
                let content = Content::Host(made.expect("it was made"), place.clone());
                fill(&content)?;
                let Content::Host(file, _) = content else {
                    unreachable!("it was made on the host");
                };
                // By the descriptor that wrote: others are not told what failed.
                let synced = if durable { file.sync_all() } else { Ok(()) };
                synced.map_err(|error| Failure::host(place.display(), &error))?;
                Ok(Pending::Host(path, Some(HostFile::regular(file, place))))
            }
        }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if let Some(target) = &self.0 {
            // Why it was not placed was told; what is left of it is all that more words could add.
            let _ = target.fs.remove_file(target.path());
        }
    }
}

/// Tries names until one is not taken.
fn in_image(
    place: &Target,
    make: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<Pending, Failure> {
    in_image_or(place, make, |error| place.failure(error))
}

/// As [`in_image`], where an error is what `failure` makes of it.
fn in_image_or(
    place: &Target,
    mut make: impl FnMut(&[u8]) -> Result<(), Error>,
    failure: impl Fn(&Error) -> Failure,
) -> Result<Pending, Failure> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    const TRIES: u64 = 1 << 16;
    let directory = place.parent();
    let mut made = Ok(());
    for _ in 0..TRIES {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".dioxide-{}-{count}", std::process::id());
        let target = directory.child(name.as_bytes());
        made = make(target.path());
        match made {
            Ok(()) => return Ok(Pending::Image(Name(Some(target)))),
            Err(Error::Exists(_)) => {}
            Err(_) => break,
        }
    }
    Err(made.map_or_else(
        |error| failure(&error),
        |()| Failure::trouble(place, "no name is free beside it"),
    ))
}

/// What was just made as `path`.
fn held(
    path: TempPath,
    place: &Path,
    is_it: impl FnOnce(&Facts) -> bool,
) -> Result<Pending, Failure> {
    let made = HostFile::made(&path, place, is_it)?;
    Ok(Pending::Host(path, Some(made)))
}

fn on_host(place: &Path, mut make: impl FnMut(&Path) -> io::Result<()>) -> io::Result<TempPath> {
    let parent = match place.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut code = None;
    let made = tempfile::Builder::new()
        .prefix(".dioxide-")
        .make_in(parent, |path| {
            make(path).inspect_err(|error| code = error.raw_os_error())
        });
    match made {
        Ok(named) => Ok(named.into_temp_path()),
        // Its error names a file that the user has not named.
        Err(error) => Err(code.map_or(error, io::Error::from_raw_os_error)),
    }
}
