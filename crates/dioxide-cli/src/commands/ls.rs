//! `dioxide ls`: gathers what the operands name.

mod print;

use crate::address::Address;
use crate::args::LsArgs;
use crate::failure::{Failure, Status, for_each};
use crate::images::Images;
use crate::output::Out;
use crate::render::Name;
use dioxide::{FileType, Fs, Metadata};
use serde::Serialize;

/// A line of a listing.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    name: Name,
    ino: u32,
    file_type: FileType,
    /// Only where it was asked for and could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Metadata>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Name>,
}

/// What one operand names.
#[derive(Serialize)]
struct Listing {
    image: String,
    path: String,
    /// Whether `entries` are those of a directory, or the operand itself.
    directory: bool,
    entries: Vec<Row>,
    #[serde(skip)]
    title: String,
}

pub fn run(args: &LsArgs, out: &mut Out) -> Result<Status, Failure> {
    let mut images = Images::new(&args.open);
    let mut inodes_failed = Status::Fine;
    let mut files = Vec::new();
    let mut directories = Vec::new();
    let status = for_each(&args.paths, |address| {
        let fs = images.fs(&address.image)?;
        let mut lister = Lister {
            fs: &fs,
            address,
            args,
            worst: &mut inodes_failed,
        };
        let listing = lister.list()?;
        if listing.directory {
            directories.push(listing)
        } else {
            files.push(listing)
        }
        Ok(())
    })?;
    if args.json {
        files.append(&mut directories);
        out.json(&files)?;
    } else {
        print::print(args, files, &directories, out)?;
    }
    Ok(status.max(inodes_failed))
}

/// Gathers one listing.
struct Lister<'a> {
    fs: &'a Fs,
    address: &'a Address,
    args: &'a LsArgs,
    worst: &'a mut Status,
}

impl Lister<'_> {
    fn list(&mut self) -> Result<Listing, Failure> {
        let path = &self.address.path;
        let own = self.own_metadata()?;
        let directory = own.file_type == FileType::Directory;
        let mut entries = if directory {
            self.entries()?
        } else {
            let target = self.target(path, own.file_type);
            vec![Row {
                name: Name(self.address.to_string().into_bytes()),
                ino: own.ino,
                file_type: own.file_type,
                metadata: Some(own),
                target,
            }]
        };
        entries.sort_by(|a, b| a.name.0.cmp(&b.name.0));
        Ok(Listing {
            image: self.address.image.display().to_string(),
            path: String::from_utf8_lossy(path).into_owned(),
            directory,
            entries,
            title: self.address.to_string(),
        })
    }

    /// A link to a directory stands for the directory, except in a long listing.
    fn own_metadata(&self) -> Result<Metadata, Failure> {
        let path = &self.address.path;
        let told = |error| Failure::engine(self.address, path, &error);
        let own = self.fs.symlink_metadata(path).map_err(told)?;
        if own.file_type == FileType::Symlink && !self.args.long {
            return Ok(match self.fs.metadata(path) {
                Ok(behind) if behind.file_type == FileType::Directory => behind,
                _ => own,
            });
        }
        Ok(own)
    }

    fn entries(&mut self) -> Result<Vec<Row>, Failure> {
        let path = &self.address.path;
        let entries = self
            .fs
            .read_dir(path)
            .map_err(|error| Failure::engine(self.address, path, &error))?;
        let shown = |name: &[u8]| self.args.all || !name.starts_with(b".");
        let shown: Vec<_> = entries
            .into_iter()
            .filter(|entry| shown(&entry.name))
            .collect();
        Ok(shown.into_iter().map(|entry| self.entry(entry)).collect())
    }

    /// An inode that cannot be read is told, and its name still shown.
    fn entry(&mut self, entry: dioxide::DirEntry) -> Row {
        if !self.args.long {
            return Row {
                name: Name(entry.name),
                ino: entry.ino.0,
                file_type: entry.file_type,
                metadata: None,
                target: None,
            };
        }
        let path = join(&self.address.path, &entry.name);
        let metadata = match self.fs.symlink_metadata(&path) {
            Ok(metadata) => Some(metadata),
            Err(error) => {
                self.tell(&path, &error);
                None
            }
        };
        let file_type = metadata
            .as_ref()
            .map_or(entry.file_type, |metadata| metadata.file_type);
        let target = self.target(&path, file_type);
        Row {
            name: Name(entry.name),
            ino: entry.ino.0,
            file_type,
            metadata,
            target,
        }
    }

    fn target(&mut self, path: &[u8], file_type: FileType) -> Option<Name> {
        if !self.args.long || file_type != FileType::Symlink {
            return None;
        }
        self.fs
            .read_link(path)
            .map_err(|error| self.tell(path, &error))
            .map(Name)
            .ok()
    }

    fn tell(&mut self, path: &[u8], error: &dioxide::Error) {
        let about = Address {
            image: self.address.image.clone(),
            path: path.to_vec(),
        };
        *self.worst = (*self.worst).max(Failure::engine(about, path, error).tell());
    }
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_joins_root_and_other_directories_with_one_slash() {
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/d", b"a"), b"/d/a");
        assert_eq!(join(b"/d/", b"a"), b"/d/a");
    }
}
