//! `dioxide tree`: as `tree` draws it, or as `tree -J` writes it.

use crate::args::TreeArgs;
use crate::failure::{Failure, Status};
use crate::images::Purpose;
use crate::output::Out;
use crate::progress::Progress;
use crate::render::{Text, count_words, human};
use crate::session::Session;
use crate::walk::{First, Next, Visit, When, walk_some};
use dioxide::{DirEntry, FileType};
use serde::Serialize;
use std::io::Write;

pub fn run(args: &TreeArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    session.begin(&args.open, Purpose::Look);
    let operands = session.or_here(&args.paths)?;
    let mut drawer = Drawer {
        args,
        progress: Progress::of_count_beside(out),
        out,
        lines: Vec::new(),
        begun: Vec::new(),
        directories: 0,
        files: 0,
    };
    if args.json {
        write!(drawer.out, "[")?;
        drawer.begun.push(false);
    }
    let keep = |entry: &DirEntry| {
        let kind = entry.file_type;
        let is_directory = kind == FileType::Directory || kind == FileType::Unknown;
        (args.all || !entry.name.starts_with(b".")) && (is_directory || !args.directories)
    };
    let mut worst = Status::Fine;
    let status = session.for_each(&operands, |target| {
        worst = worst.max(walk_some(&target, First::Followed, &keep, &mut |visit| {
            drawer.visit(visit)
        })?);
        Ok(())
    })?;
    drawer.finish()?;
    Ok(status.max(worst))
}

struct Drawer<'a> {
    args: &'a TreeArgs,
    progress: Progress,
    out: &'a mut Out,
    /// For each directory that is entered below the first: whether others come after it.
    lines: Vec<bool>,
    /// JSON: for each array that is open, whether it has an element.
    begun: Vec<bool>,
    directories: u64,
    files: u64,
}

#[derive(Serialize)]
struct Node {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    name: Text,
    #[serde(flatten)]
    target: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

#[derive(Serialize)]
struct Report {
    #[serde(rename = "type")]
    kind: &'static str,
    directories: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<u64>,
}

impl Drawer<'_> {
    fn visit(&mut self, visit: &Visit<'_>) -> Result<Next, Failure> {
        if visit.when == When::After {
            self.leave(visit)?;
            return Ok(Next::Pass);
        }
        self.progress.advance(1);
        let is_directory = visit.when == When::Before;
        if visit.depth > 0 {
            // An entry may not say what it is.
            if self.args.directories && !is_directory {
                return Ok(Next::Pass);
            }
            match is_directory {
                true => self.directories += 1,
                false => self.files += 1,
            }
        }
        let most = self.args.level.unwrap_or(u32::MAX) as usize;
        let enters = is_directory && visit.depth < most;
        match self.args.json {
            true => self.node(visit, enters)?,
            false => self.draw(visit, enters)?,
        }
        Ok(if enters { Next::Enter } else { Next::Pass })
    }

    fn draw(&mut self, visit: &Visit<'_>, enters: bool) -> Result<(), Failure> {
        if visit.depth > 0 {
            for goes_on in &self.lines {
                self.out.write_all(if *goes_on {
                    "│   ".as_bytes()
                } else {
                    b"    "
                })?;
            }
            self.out.write_all(
                if visit.last {
                    "└── "
                } else {
                    "├── "
                }
                .as_bytes(),
            )?;
        }
        if enters && visit.depth > 0 {
            self.lines.push(!visit.last);
        }
        let size = visit.metadata.size;
        match (self.args.human_readable, self.args.size) {
            (true, _) => write!(self.out, "[{:>4}]  ", human(size))?,
            (_, true) => write!(self.out, "[{size:>11}]  ")?,
            _ => {}
        }
        self.out.name(shown(visit))?;
        let link = visit.target.link(visit.metadata);
        if let Ok(Some(text)) = &link {
            self.out.write_all(b" -> ")?;
            self.out.name(text)?;
        }
        writeln!(self.out)?;
        link.map(drop)
    }

    fn leave(&mut self, visit: &Visit<'_>) -> Result<(), Failure> {
        match self.args.json {
            true => {
                self.begun.pop();
                write!(self.out, "\n{}]}}", self.indent())?;
            }
            false if visit.depth > 0 => drop(self.lines.pop()),
            false => {}
        }
        Ok(())
    }

    fn indent(&self) -> String {
        "  ".repeat(self.begun.len().min(256))
    }

    /// An element of JSON; that of a directory that is entered stays open.
    fn node(&mut self, visit: &Visit<'_>, enters: bool) -> Result<(), Failure> {
        let sized = self.args.size || self.args.human_readable;
        let link = visit.target.link(visit.metadata);
        let text = link.as_ref().ok().and_then(Option::as_deref);
        let node = Node {
            kind: kind(visit.metadata.file_type),
            name: Text::new("name", shown(visit)),
            target: text.map(|text| Text::new("target", text)),
            size: sized.then_some(visit.metadata.size),
        };
        let text = serde_json::to_string(&node)?;
        self.element()?;
        match enters {
            true => {
                let open = text.strip_suffix('}').unwrap_or(&text);
                write!(self.out, "{open},\"contents\":[")?;
                self.begun.push(false);
            }
            false => write!(self.out, "{text}")?,
        }
        link.map(drop)
    }

    fn element(&mut self) -> Result<(), Failure> {
        let indent = self.indent();
        let begun = self
            .begun
            .last_mut()
            .is_some_and(|begun| std::mem::replace(begun, true));
        let comma = if begun { "," } else { "" };
        Ok(write!(self.out, "{comma}\n{indent}")?)
    }

    fn finish(&mut self) -> Result<(), Failure> {
        let files = (!self.args.directories).then_some(self.files);
        if self.args.json {
            let report = Report {
                kind: "report",
                directories: self.directories,
                files,
            };
            let text = serde_json::to_string(&report)?;
            self.element()?;
            return Ok(writeln!(self.out, "{text}\n]")?);
        }
        let directories = match self.directories {
            1 => "1 directory".to_owned(),
            more => format!("{more} directories"),
        };
        let files = files.map_or_else(String::new, |files| {
            format!(", {}", count_words(files, "file"))
        });
        Ok(writeln!(self.out, "\n{directories}{files}")?)
    }
}

/// The operand as it was typed; names below.
fn shown<'a>(visit: &Visit<'a>) -> &'a [u8] {
    match visit.depth {
        0 => &visit.target.shown,
        _ => visit.target.name(),
    }
}

fn kind(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "link",
        FileType::CharDevice => "char",
        FileType::BlockDevice => "block",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::Unknown => "unknown",
    }
}
