//! `dioxide cp`: files out of images.
//!
//! Invariants: a file appears under its name when it is complete; nothing below a destination is written through
//! a symlink, so that no image, however it was made, leads out of the place where its copy goes; devices and
//! pipes of the host are only replaced by their like.

mod attributes;
mod content;

use crate::args::CpArgs;
use crate::failure::{Failure, Status, complain};
use crate::images::Purpose;
use crate::interrupt;
use crate::output::Out;
use crate::progress::Progress;
use crate::session::{Place, Session, Target};
use crate::walk::{First, Next, Visit, When, walk};
use attributes::Attributes;
use dioxide::{Buf, FileType, Metadata};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use tempfile::TempPath;

pub fn run(args: &CpArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    interrupt::watch();
    session.begin(&args.open, Purpose::Look);
    let Some((last, sources)) = args.operands.split_last() else {
        return Err(Failure::plain("which files?"));
    };
    let Place::Host(destination) = session.place(last)? else {
        let what = "copying into an image is not supported yet; to copy out of one, name a place on the host at last";
        return Err(Failure::trouble(last, what));
    };
    let mut targets = Vec::new();
    let missing = session.for_each(sources, |target| {
        targets.push(target);
        Ok(())
    })?;
    let into = destination.is_dir();
    let named_as_directory = destination.as_os_str().as_bytes().ends_with(b"/");
    if !into && (targets.len() > 1 || named_as_directory && !args.recurses()) {
        return Err(Failure::trouble(destination.display(), "Not a directory"));
    }
    let mut copier = Copier::new(args, out);
    let mut worst = missing;
    for target in &targets {
        let place = match target.name() {
            b"" | b"." | b".." => destination.clone(),
            _ if into => destination.join(target.os_name()),
            _ => destination.clone(),
        };
        worst = worst.max(copier.copy(target, &place)?);
    }
    Ok(worst.max(copier.worst))
}

impl CpArgs {
    fn recurses(&self) -> bool {
        self.recursive || self.archive
    }
}

/// One run: what is shared by all files.
struct Copier<'a> {
    args: &'a CpArgs,
    out: &'a mut Out,
    progress: Progress,
    buf: Buf,
    attributes: Attributes,
    /// Where files with several names went.
    links: HashMap<(PathBuf, u32), PathBuf>,
    /// For each directory that is entered: whether it was made.
    made: Vec<bool>,
    /// Of what was told and did not end the copy of a file.
    worst: Status,
}

/// One read and write.
const CHUNK_BYTES: usize = 1 << 20;

impl<'a> Copier<'a> {
    fn new(args: &'a CpArgs, out: &'a mut Out) -> Copier<'a> {
        Copier {
            args,
            out,
            progress: Progress::of_files(),
            buf: Buf::zeroed(CHUNK_BYTES),
            attributes: Attributes::new(args),
            links: HashMap::new(),
            made: Vec::new(),
            worst: Status::Fine,
        }
    }

    fn copy(&mut self, root: &Target, place: &Path) -> Result<Status, Failure> {
        let first = match self.args.recurses() {
            true => First::Itself,
            false => First::Followed,
        };
        self.made.clear();
        let prefix = root.path().len();
        walk(root, first, &mut |visit| {
            let below = &visit.target.path()[prefix..];
            let start = below.iter().position(|&b| b != b'/').unwrap_or(below.len());
            match &below[start..] {
                b"" => self.visit(visit, place),
                below => self.visit(visit, &place.join(OsStr::from_bytes(below))),
            }
        })
    }

    fn visit(&mut self, visit: &Visit<'_>, place: &Path) -> Result<Next, Failure> {
        match visit.when {
            When::Before if !self.args.recurses() => Err(Failure::trouble(
                visit.target,
                "is a directory, and -r was not given",
            )),
            When::Before => self.enter(visit, place),
            When::After => self.leave(visit, place),
            When::Once => self.file(visit, place),
        }
    }

    fn enter(&mut self, visit: &Visit<'_>, place: &Path) -> Result<Next, Failure> {
        let found = match visit.depth {
            0 => fs::metadata(place),
            _ => fs::symlink_metadata(place),
        };
        let made = match found {
            Ok(found) if found.is_dir() => false,
            Ok(_) => {
                let what = "is no directory, and not replaced by one";
                return Err(Failure::trouble(place.display(), what));
            }
            Err(_) => {
                let made = fs::DirBuilder::new().mode(0o700).create(place);
                made.map_err(|error| Failure::host(place.display(), &error))?;
                true
            }
        };
        self.told(visit.target, place)?;
        self.made.push(made);
        Ok(Next::Enter)
    }

    fn leave(&mut self, visit: &Visit<'_>, place: &Path) -> Result<Next, Failure> {
        let made = self.made.pop().unwrap_or(false);
        if made || self.args.preserve || self.args.archive {
            self.attributes.set(visit.target, visit.metadata, place)?;
        }
        Ok(Next::Pass)
    }

    fn file(&mut self, visit: &Visit<'_>, place: &Path) -> Result<Next, Failure> {
        let (target, metadata) = (visit.target, visit.metadata);
        if self.leaves_alone(metadata.file_type, place)? {
            return Ok(Next::Pass);
        }
        let several = self.args.archive && metadata.nlink > 1;
        let key = (target.address.image.clone(), metadata.ino);
        if let Some(first) = self.links.get(&key).filter(|_| several) {
            link(first, place).map_err(|error| Failure::host(place.display(), &error))?;
        } else {
            let Some(temporary) = self.make(target, metadata, place)? else {
                return Ok(Next::Pass);
            };
            self.attributes.set(target, metadata, &temporary)?;
            let placed = temporary.persist(place);
            placed.map_err(|error| Failure::host(place.display(), &error.error))?;
            if several {
                self.links.insert(key, place.to_owned());
            }
        }
        self.told(target, place)?;
        Ok(Next::Pass)
    }

    /// Whether what is there stays.
    fn leaves_alone(&self, copied: FileType, place: &Path) -> Result<bool, Failure> {
        let Ok(found) = fs::symlink_metadata(place) else {
            return Ok(false);
        };
        if found.is_dir() {
            return Err(Failure::trouble(
                place.display(),
                "is a directory, and not replaced",
            ));
        }
        let behind = fs::metadata(place).map_or(found.file_type(), |behind| behind.file_type());
        let node = !(behind.is_file() || behind.is_dir() || behind.is_symlink());
        if node && matches!(copied, FileType::Regular | FileType::Symlink) {
            let what = "is a device, pipe or socket, and not replaced; cat writes into it";
            return Err(Failure::trouble(place.display(), what));
        }
        Ok(self.args.no_clobber)
    }

    /// The copy, complete but for its attributes, under another name beside `place`. None if it cannot be made, which was told.
    fn make(
        &mut self,
        target: &Target,
        metadata: &Metadata,
        place: &Path,
    ) -> Result<Option<TempPath>, Failure> {
        let told = |error: io::Error| Failure::host(place.display(), &error);
        match metadata.file_type {
            FileType::Regular => self.content(target, place).map(Some),
            FileType::Symlink => {
                let link = target.fs.read_link(target.path());
                let link = link.map_err(|error| target.failure(&error))?;
                let make = |path: &Path| std::os::unix::fs::symlink(OsStr::from_bytes(&link), path);
                beside(place, make).map(Some).map_err(told)
            }
            FileType::Directory | FileType::Unknown => {
                Err(Failure::trouble(target, "is of no known kind"))
            }
            _ if !self.args.recurses() => Err(Failure::trouble(
                target,
                "is no regular file, and -r was not given",
            )),
            _ => self.node(metadata, target, place),
        }
    }

    fn node(
        &mut self,
        metadata: &Metadata,
        target: &Target,
        place: &Path,
    ) -> Result<Option<TempPath>, Failure> {
        use rustix::fs::{CWD, Mode, makedev, mknodat};
        let kind = rustix::fs::FileType::from_raw_mode(metadata.mode());
        let (major, minor) = metadata.device.unwrap_or_default();
        let make = |path: &Path| {
            let made = mknodat(
                CWD,
                path,
                kind,
                Mode::from_raw_mode(0o600),
                makedev(major, minor),
            );
            made.map_err(io::Error::from)
        };
        match beside(place, make) {
            Ok(temporary) => Ok(Some(temporary)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                complain(format_args!(
                    "{target}: warning: only root can make devices; it is left out"
                ));
                self.worst = self.worst.max(Status::Trouble);
                Ok(None)
            }
            Err(error) => Err(Failure::host(place.display(), &error)),
        }
    }

    fn told(&mut self, target: &Target, place: &Path) -> Result<(), Failure> {
        if self.args.verbose {
            write!(self.out, "'")?;
            self.out.name(&target.shown)?;
            write!(self.out, "' -> '")?;
            self.out.name(place.as_os_str().as_bytes())?;
            writeln!(self.out, "'")?;
        }
        Ok(())
    }
}

/// Makes something under a name of its own beside `place`, gone with the value unless it is kept.
fn beside(place: &Path, mut make: impl FnMut(&Path) -> io::Result<()>) -> io::Result<TempPath> {
    let parent = match place.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let made = tempfile::Builder::new()
        .prefix(".dioxide-")
        .make_in(parent, |path| make(path));
    // Its error names the directory too, which is not what the user named.
    made.map(tempfile::NamedTempFile::into_temp_path)
        .map_err(
            |error| match error.get_ref().and_then(|_| error.raw_os_error()) {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::from(error.kind()),
            },
        )
}

/// Another name of what was copied before.
fn link(first: &Path, place: &Path) -> io::Result<()> {
    let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    let own = fs::symlink_metadata(first)?;
    if fs::symlink_metadata(place).is_ok_and(|there| same(own, there)) {
        return Ok(());
    }
    let temporary = beside(place, |path| fs::hard_link(first, path))?;
    temporary.persist(place).map_err(|error| error.error)
}
