//! `dioxide ls`: one name in a line, or the long shape of `ls -l`.

use crate::address::Address;
use crate::args::LsArgs;
use crate::failure::{Failure, Status, for_each};
use crate::images::Images;
use crate::output::Out;
use crate::render::{JsonName, list_time, mode_string, now_secs};
use dioxide::{FileType, Fs, Metadata};
use serde::Serialize;
use std::io::{self, Write};

/// A line of a listing.
#[derive(Serialize)]
struct Row {
    #[serde(skip)]
    name: Vec<u8>,
    #[serde(flatten)]
    json_name: JsonName,
    ino: u32,
    file_type: FileType,
    /// Only where it was asked for and could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Metadata>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<JsonName>,
    #[serde(skip)]
    target_bytes: Option<Vec<u8>>,
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
        print(args, files, &directories, out)?;
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
            vec![row(
                self.title().into_bytes(),
                own.ino,
                own.file_type,
                Some(own),
                target,
            )]
        };
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Listing {
            image: self.address.image.display().to_string(),
            path: String::from_utf8_lossy(path).into_owned(),
            directory,
            entries,
            title: self.title(),
        })
    }

    fn title(&self) -> String {
        self.address.to_string()
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
            return row(entry.name, entry.ino.0, entry.file_type, None, None);
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
        row(entry.name, entry.ino.0, file_type, metadata, target)
    }

    fn target(&mut self, path: &[u8], file_type: FileType) -> Option<Vec<u8>> {
        if !self.args.long || file_type != FileType::Symlink {
            return None;
        }
        self.fs
            .read_link(path)
            .map_err(|error| self.tell(path, &error))
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

fn row(
    name: Vec<u8>,
    ino: u32,
    file_type: FileType,
    metadata: Option<Metadata>,
    target_bytes: Option<Vec<u8>>,
) -> Row {
    Row {
        json_name: JsonName::new(&name),
        name,
        ino,
        file_type,
        metadata,
        target: target_bytes.as_deref().map(JsonName::new),
        target_bytes,
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

/// Files first, then directories, each under its name if there is more than one operand.
fn print(
    args: &LsArgs,
    files: Vec<Listing>,
    directories: &[Listing],
    out: &mut Out,
) -> Result<(), Failure> {
    let titles = args.paths.len() > 1;
    let mut apart = !files.is_empty();
    let rows: Vec<Row> = files
        .into_iter()
        .flat_map(|listing| listing.entries)
        .collect();
    print_rows(args.long, &rows, out)?;
    for listing in directories {
        if apart {
            writeln!(out)?;
        }
        apart = true;
        if titles {
            writeln!(out, "{}:", listing.title)?;
        }
        if args.long {
            let blocks: u64 = listing
                .entries
                .iter()
                .flat_map(|row| &row.metadata)
                .map(|m| m.blocks)
                .sum();
            writeln!(out, "total {}", blocks.div_ceil(2))?;
        }
        print_rows(args.long, &listing.entries, out)?;
    }
    Ok(())
}

fn print_rows(long: bool, rows: &[Row], out: &mut Out) -> io::Result<()> {
    let lines: Vec<Long> = if long {
        rows.iter().map(long_line).collect()
    } else {
        Vec::new()
    };
    let widths = Long::widths(&lines);
    for (index, row) in rows.iter().enumerate() {
        if let Some(line) = lines.get(index) {
            line.print(&widths, out)?;
        }
        out.name(&row.name)?;
        if let Some(target) = &row.target_bytes {
            out.write_all(b" -> ")?;
            out.name(target)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// The columns of a long line that stand before the name; all but mode and time flush right.
struct Long {
    mode: String,
    numbers: [String; 4],
    time: String,
}

fn long_line(row: &Row) -> Long {
    let unknown = || "?".to_owned();
    let Some(metadata) = &row.metadata else {
        return Long {
            mode: "?".repeat(10),
            numbers: std::array::from_fn(|_| unknown()),
            time: format!("{:>12}", "?"),
        };
    };
    let size = match metadata.device {
        Some((major, minor)) => format!("{major}, {minor}"),
        None => metadata.size.to_string(),
    };
    Long {
        mode: mode_string(metadata.file_type, metadata.permissions),
        numbers: [
            metadata.nlink.to_string(),
            metadata.uid.to_string(),
            metadata.gid.to_string(),
            size,
        ],
        time: list_time(metadata.mtime, now_secs()),
    }
}

impl Long {
    fn widths(lines: &[Long]) -> [usize; 4] {
        std::array::from_fn(|column| {
            lines
                .iter()
                .map(|line| line.numbers[column].len())
                .max()
                .unwrap_or(0)
        })
    }

    fn print(&self, widths: &[usize; 4], out: &mut Out) -> io::Result<()> {
        write!(out, "{}", self.mode)?;
        for (number, width) in self.numbers.iter().zip(widths) {
            write!(out, " {number:>width$}")?;
        }
        write!(out, " {} ", self.time)
    }
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
