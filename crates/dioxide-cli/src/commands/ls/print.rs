//! Listings for people: one name in a line, or the long shape of `ls -l`; or as JSON.

use super::{Listing, Row};
use crate::args::LsArgs;
use crate::failure::Failure;
use crate::output::{JsonArray, Out};
use crate::render::{TimeStyle, human, mode_string, now_secs};
use dioxide::{FileType, Metadata};
use std::io::{self, Write};

/// Prints listings one after the other.
pub(super) struct Printer<'a> {
    args: &'a LsArgs,
    /// Directories are shown under their names.
    titles: bool,
    /// Something stands above.
    apart: bool,
    now_secs: i64,
    style: TimeStyle,
    json: JsonArray,
}

impl<'a> Printer<'a> {
    pub(super) fn new(args: &'a LsArgs, titles: bool) -> Printer<'a> {
        Printer {
            args,
            titles,
            apart: false,
            now_secs: now_secs(),
            style: match args.full_time {
                true => TimeStyle::full(),
                false => args.time_style.clone(),
            },
            json: JsonArray::default(),
        }
    }

    /// Operands that are no directories, in one listing.
    pub(super) fn files(&mut self, files: Vec<Listing>, out: &mut Out) -> Result<(), Failure> {
        if self.args.json {
            return files
                .iter()
                .try_for_each(|listing| self.json.push(listing, out));
        }
        self.apart = !files.is_empty();
        let rows: Vec<Row> = files
            .into_iter()
            .flat_map(|listing| listing.entries)
            .collect();
        Ok(self.rows(&rows, out)?)
    }

    /// What is in a directory.
    pub(super) fn directory(&mut self, listing: Listing, out: &mut Out) -> Result<(), Failure> {
        if self.args.json {
            return self.json.push(&listing, out);
        }
        if self.apart {
            writeln!(out)?;
        }
        self.apart = true;
        if self.titles {
            out.name(&listing.title)?;
            writeln!(out, ":")?;
        }
        if self.args.is_long() || self.args.size {
            let metadata = listing.entries.iter().flat_map(|row| &row.metadata);
            writeln!(
                out,
                "total {}",
                self.space(metadata.map(|m| m.blocks).sum())
            )?;
        }
        Ok(self.rows(&listing.entries, out)?)
    }

    /// What comes after the last.
    pub(super) fn finish(&mut self, out: &mut Out) -> Result<(), Failure> {
        match self.args.json {
            true => self.json.finish(out),
            false => Ok(()),
        }
    }

    /// Allocated space: from units of 512 bytes.
    fn space(&self, blocks: u64) -> String {
        match self.args.human_readable {
            true => human(blocks.saturating_mul(512)),
            false => blocks.div_ceil(2).to_string(),
        }
    }

    fn rows(&self, rows: &[Row], out: &mut Out) -> io::Result<()> {
        let lines: Vec<Line> = rows.iter().map(|row| self.line(row)).collect();
        let widths = Line::widths(&lines);
        for (row, line) in rows.iter().zip(&lines) {
            line.print(&widths, out)?;
            out.name(&row.name.bytes)?;
            match &row.target {
                Some(target) => {
                    out.write_all(b" -> ")?;
                    out.name(&target.bytes)?;
                    out.write_all(row.target_mark.as_bytes())?;
                }
                None if self.args.classify => {
                    let mark = row.metadata.as_ref().map_or("", mark);
                    out.write_all(mark.as_bytes())?;
                }
                None => {}
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn line(&self, row: &Row) -> Line {
        let unknown = || "?".to_owned();
        let metadata = row.metadata.as_ref();
        let space = metadata.map_or_else(unknown, |metadata| self.space(metadata.blocks));
        Line {
            inode: self.args.inode.then(|| row.ino.to_string()),
            space: self.args.size.then_some(space),
            long: self.args.is_long().then(|| match metadata {
                Some(metadata) => self.long(metadata, row.has_acl),
                None => Long::unknown(),
            }),
        }
    }

    fn long(&self, metadata: &Metadata, has_acl: bool) -> Long {
        let size = match self.args.human_readable {
            true => human(metadata.size),
            false => metadata.size.to_string(),
        };
        Long {
            mode: mode_string(metadata.file_type, metadata.permissions)
                + if has_acl { "+" } else { "" },
            numbers: [
                metadata.nlink.to_string(),
                metadata.uid.to_string(),
                metadata.gid.to_string(),
            ],
            size: match metadata.device {
                Some((major, minor)) => Size::Device([major.to_string(), minor.to_string()]),
                None => Size::Bytes(size),
            },
            time: self.style.show(self.args.time(metadata), self.now_secs),
        }
    }
}

/// What tells the kind of a file, behind its name.
pub(super) fn mark(metadata: &Metadata) -> &'static str {
    match metadata.file_type {
        FileType::Directory => "/",
        FileType::Symlink => "@",
        FileType::Fifo => "|",
        FileType::Socket => "=",
        FileType::Regular if metadata.permissions & 0o111 != 0 => "*",
        _ => "",
    }
}

/// The columns that stand before the name, as far as they are asked for.
struct Line {
    inode: Option<String>,
    space: Option<String>,
    long: Option<Long>,
}

/// All but mode and time are flush right.
struct Long {
    mode: String,
    numbers: [String; 3],
    size: Size,
    time: String,
}

enum Size {
    Bytes(String),
    Device([String; 2]),
}

#[derive(Default)]
struct Widths {
    inode: usize,
    space: usize,
    mode: usize,
    numbers: [usize; 3],
    size: usize,
    device: [usize; 2],
}

impl Long {
    fn unknown() -> Long {
        Long {
            mode: "?".repeat(10),
            numbers: std::array::from_fn(|_| "?".to_owned()),
            size: Size::Bytes("?".into()),
            time: format!("{:>12}", "?"),
        }
    }

    fn widen(&self, widths: &mut Widths) {
        widths.mode = widths.mode.max(self.mode.len());
        for (width, number) in widths.numbers.iter_mut().zip(&self.numbers) {
            *width = number.len().max(*width);
        }
        match &self.size {
            Size::Bytes(bytes) => widths.size = widths.size.max(bytes.len()),
            Size::Device(numbers) => {
                for (width, number) in widths.device.iter_mut().zip(numbers) {
                    *width = number.len().max(*width);
                }
                let [major, minor] = widths.device;
                widths.size = widths.size.max(major + 2 + minor);
            }
        }
    }

    fn print(&self, widths: &Widths, out: &mut Out) -> io::Result<()> {
        write!(out, "{:width$}", self.mode, width = widths.mode)?;
        for (number, width) in self.numbers.iter().zip(widths.numbers) {
            write!(out, " {number:>width$}")?;
        }
        let size = match &self.size {
            Size::Bytes(bytes) => bytes.clone(),
            Size::Device([major, minor]) => {
                format!("{major}, {minor:>width$}", width = widths.device[1])
            }
        };
        write!(out, " {size:>width$} {} ", self.time, width = widths.size)
    }
}

impl Line {
    fn widths(lines: &[Line]) -> Widths {
        let mut widths = Widths::default();
        for line in lines {
            let wide = |cell: &Option<String>| cell.as_ref().map_or(0, String::len);
            widths.inode = widths.inode.max(wide(&line.inode));
            widths.space = widths.space.max(wide(&line.space));
            if let Some(long) = &line.long {
                long.widen(&mut widths);
            }
        }
        widths
    }

    fn print(&self, widths: &Widths, out: &mut Out) -> io::Result<()> {
        let columns = [(&self.inode, widths.inode), (&self.space, widths.space)];
        for (cell, width) in columns {
            if let Some(cell) = cell {
                write!(out, "{cell:>width$} ")?;
            }
        }
        match &self.long {
            Some(long) => long.print(widths, out),
            None => Ok(()),
        }
    }
}
