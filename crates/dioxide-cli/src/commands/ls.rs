//! `dioxide ls`: gathers what the operands name.

mod print;

use crate::args::LsArgs;
use crate::failure::{Failure, Status};
use crate::images::Purpose;
use crate::output::Out;
use crate::progress::Progress;
use crate::render::Text;
use crate::session::{JsonFile, Session, Target};
use crate::walk;
use dioxide::{FileType, Metadata};
use serde::Serialize;
use std::cmp::{Ordering, Reverse};
use std::collections::HashSet;

/// A line of a listing.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    name: Text,
    ino: u32,
    file_type: FileType,
    /// Only where it was asked for and could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Metadata>,
    #[serde(flatten)]
    target: Option<Text>,
    /// It has an access control list; only looked for in long listings.
    #[serde(skip)]
    has_acl: bool,
    /// The kind of what a symlink leads to, where it matters.
    #[serde(skip)]
    target_mark: &'static str,
}

/// What one operand names, or one directory below it.
#[derive(Serialize)]
struct Listing {
    #[serde(flatten)]
    file: JsonFile,
    /// Whether `entries` are those of a directory, or the operand itself.
    directory: bool,
    entries: Vec<Row>,
    #[serde(skip)]
    title: Vec<u8>,
}

pub fn run(args: &LsArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    session.begin(&args.open, Purpose::Look);
    let operands = session.or_here(&args.paths)?;
    let mut lister = Lister {
        args,
        worst: Status::Fine,
        progress: match args.recursive {
            true => Progress::of_count_beside(out),
            false => Progress::none(),
        },
    };
    let mut files = Vec::new();
    let mut directories = Vec::new();
    let status = session.for_each(&operands, |target| {
        let (row, is_directory) = lister.operand(&target)?;
        match is_directory {
            true => directories.push((row, target)),
            false => files.push((row, target)),
        }
        Ok(())
    })?;
    files.sort_by(|a, b| lister.order(&a.0, &b.0));
    directories.sort_by(|a, b| lister.order(&a.0, &b.0));
    let titles = args.recursive || files.len() + directories.len() > 1 || status > Status::Fine;
    let mut printer = print::Printer::new(args, titles);
    let files: Vec<_> = files
        .into_iter()
        .map(|(row, target)| one(row, &target))
        .collect();
    printer.files(files, out)?;
    for (_, target) in directories {
        lister.directory(target, &mut |listing| printer.directory(listing, out))?;
    }
    printer.finish(out)?;
    Ok(status.max(lister.worst))
}

/// A listing of an operand that is no directory, or is to be shown itself.
fn one(row: Row, target: &Target) -> Listing {
    Listing {
        file: target.json(),
        directory: false,
        entries: vec![row],
        title: Vec::new(),
    }
}

fn has_acl(target: &Target) -> bool {
    let names = target.fs.xattr_names(target.path()).unwrap_or_default();
    names
        .iter()
        .any(|name| name.starts_with(b"system.posix_acl_"))
}

struct Lister<'a> {
    args: &'a LsArgs,
    worst: Status,
    progress: Progress,
}

type Emit<'a> = &'a mut dyn FnMut(Listing) -> Result<(), Failure>;

impl Lister<'_> {
    /// The operand itself, and whether what is in it is to be listed.
    fn operand(&mut self, target: &Target) -> Result<(Row, bool), Failure> {
        let own = self.own_metadata(target)?;
        let is_directory = own.file_type == FileType::Directory && !self.args.directory;
        let row = self.row(target, target.shown.clone(), own.ino, Some(own));
        Ok((row, is_directory))
    }

    /// A link to a directory stands for the directory, except in a long listing and where marks tell.
    fn own_metadata(&self, target: &Target) -> Result<Metadata, Failure> {
        let args = self.args;
        if args.dereference {
            return target.metadata();
        }
        let own = target.symlink_metadata()?;
        if own.file_type == FileType::Symlink
            && !(args.is_long() || args.directory || args.classify)
        {
            return Ok(match target.metadata() {
                Ok(behind) if behind.file_type == FileType::Directory => behind,
                _ => own,
            });
        }
        Ok(own)
    }

    /// A directory, and with -R all below it.
    fn directory(&mut self, target: Target, emit: Emit<'_>) -> Result<(), Failure> {
        let mut left = vec![target];
        let mut seen = HashSet::new();
        while let Some(target) = left.pop() {
            crate::interrupt::check()?;
            let listing = match self.listing(&target) {
                Ok(listing) => listing,
                Err(failure) => {
                    self.worst = self.worst.max(failure.tell());
                    continue;
                }
            };
            if self.args.recursive {
                let below = listing.entries.iter().rev().filter(|row| {
                    let dots = row.name.bytes == b"." || row.name.bytes == b"..";
                    row.file_type == FileType::Directory && !dots && seen.insert(row.ino)
                });
                left.extend(below.map(|row| target.child(&row.name.bytes)));
            }
            emit(listing)?;
        }
        Ok(())
    }

    fn listing(&mut self, target: &Target) -> Result<Listing, Failure> {
        let mut entries = self.entries(target)?;
        entries.sort_by(|a, b| self.order(a, b));
        Ok(Listing {
            file: target.json(),
            directory: true,
            entries,
            title: target.shown.clone(),
        })
    }

    fn entries(&mut self, target: &Target) -> Result<Vec<Row>, Failure> {
        let entries = match self.args.all {
            true => target
                .fs
                .read_dir(target.path())
                .map_err(|error| target.failure(&error))?,
            false => {
                let (entries, damage) = walk::listed(target)?;
                if let Some(failure) = damage {
                    self.worst = self.worst.max(failure.tell());
                }
                entries
            }
        };
        let hidden = self.args.all || self.args.almost_all;
        let shown = entries
            .into_iter()
            .filter(|entry| hidden || !entry.name.starts_with(b"."));
        Ok(shown.map(|entry| self.entry(target, entry)).collect())
    }

    /// An inode that cannot be read is told, and its name still shown.
    fn entry(&mut self, directory: &Target, entry: dioxide::DirEntry) -> Row {
        self.progress.advance(1);
        let child = directory.child(&entry.name);
        let args = self.args;
        let sorted = args.is_by_time() || args.by_size;
        let wanted = args.is_long() || args.size || sorted || args.classify || args.dereference;
        let examined = || match args.dereference {
            true => child.metadata(),
            false => child.symlink_metadata(),
        };
        let unknown = entry.file_type == FileType::Unknown && args.recursive;
        let metadata = match (wanted || unknown).then(examined) {
            Some(Err(failure)) => {
                self.worst = self.worst.max(failure.tell());
                None
            }
            Some(Ok(metadata)) => Some(metadata),
            None => None,
        };
        let ino = metadata
            .as_ref()
            .map_or(entry.ino.0, |metadata| metadata.ino);
        let mut row = self.row(&child, entry.name, ino, metadata);
        if row.metadata.is_none() {
            row.file_type = entry.file_type;
        }
        row
    }

    fn row(&mut self, target: &Target, name: Vec<u8>, ino: u32, metadata: Option<Metadata>) -> Row {
        let file_type = metadata
            .as_ref()
            .map_or(FileType::Unknown, |metadata| metadata.file_type);
        let links = self.args.is_long() && file_type == FileType::Symlink;
        Row {
            name: Text::new("name", name),
            ino,
            file_type,
            metadata,
            has_acl: self.args.is_long() && !links && has_acl(target),
            target: links.then(|| self.link(target)).flatten(),
            target_mark: match links && self.args.classify {
                true => target
                    .fs
                    .metadata(target.path())
                    .as_ref()
                    .map_or("", print::mark),
                false => "",
            },
        }
    }

    fn link(&mut self, target: &Target) -> Option<Text> {
        let found = target.fs.read_link(target.path());
        let told = |error| self.worst = self.worst.max(target.failure(&error).tell());
        let text = found.map_err(told).ok()?;
        Some(Text::new("target", text))
    }

    fn order(&self, a: &Row, b: &Row) -> Ordering {
        let time = |row: &Row| row.metadata.as_ref().map(|own| self.args.time(own));
        let size = |row: &Row| row.metadata.as_ref().map(|metadata| metadata.size);
        let first = match () {
            () if self.args.is_by_time() => Reverse(time(a)).cmp(&Reverse(time(b))),
            () if self.args.by_size => Reverse(size(a)).cmp(&Reverse(size(b))),
            () => Ordering::Equal,
        };
        let order = first.then_with(|| a.name.bytes.cmp(&b.name.bytes));
        if self.args.reverse {
            order.reverse()
        } else {
            order
        }
    }
}
