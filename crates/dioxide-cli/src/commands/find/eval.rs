//! Evaluating an expression for one file.

use super::{Action, Count, Expr, MINUTE, Matching, Number, Test, Time};
use crate::failure::Failure;
use crate::location::Facts;
use crate::output::{JsonArray, Out};
use crate::render::{list_time, mode_string};
use crate::session::JsonFile;
use crate::walk::{Visit, entries};
use dioxide::{FileType, Metadata, Timestamp};
use dioxide_pack::glob::{Case, fits};
use serde::Serialize;
use std::io::Write;

/// What an expression says of a file.
pub(super) struct Verdict {
    holds: bool,
    /// What is in the directory is not looked at.
    pub(super) prune: bool,
}

impl Expr {
    pub(super) fn eval(
        &self,
        visit: &Visit<'_>,
        printer: &mut Printer<'_>,
    ) -> Result<Verdict, Failure> {
        let plain = |holds| Verdict {
            holds,
            prune: false,
        };
        let (exprs, until) = match self {
            Expr::All(exprs) => (exprs, false),
            Expr::Any(exprs) => (exprs, true),
            Expr::Not(expr) => {
                let verdict = expr.eval(visit, printer)?;
                return Ok(Verdict {
                    holds: !verdict.holds,
                    ..verdict
                });
            }
            Expr::Test(test) => return Ok(plain(test.holds(visit, printer.now)?)),
            Expr::Action(Action::Prune) => {
                return Ok(Verdict {
                    holds: true,
                    prune: true,
                });
            }
            Expr::Action(action) => {
                printer.act(action, visit)?;
                return Ok(plain(true));
            }
        };
        let mut verdict = plain(!until);
        for expr in exprs {
            let one = expr.eval(visit, printer)?;
            verdict.holds = one.holds;
            verdict.prune |= one.prune;
            if one.holds == until {
                break;
            }
        }
        Ok(verdict)
    }
}

impl Count {
    pub(super) fn meets(self, number: u64) -> bool {
        match self {
            Count::Exactly(wanted) => number == wanted,
            Count::MoreThan(bound) => number > bound,
            Count::LessThan(bound) => number < bound,
        }
    }
}

impl Time {
    pub(super) fn of(self, metadata: &Metadata) -> Timestamp {
        match self {
            Time::Access => metadata.atime,
            Time::Modify => metadata.mtime,
            Time::Change => metadata.ctime,
        }
    }
}

impl Test {
    fn holds(&self, visit: &Visit<'_>, now_secs: i64) -> Result<bool, Failure> {
        let metadata = visit.metadata;
        Ok(match self {
            Test::Constant(holds) => *holds,
            Test::Name {
                pattern,
                ignore_case,
                whole,
            } => {
                let case = if *ignore_case {
                    Case::Ignored
                } else {
                    Case::Exact
                };
                let name = if *whole {
                    &visit.target.shown[..]
                } else {
                    name(visit)
                };
                fits(pattern, name, case)
            }
            Test::Kind(kinds) => kinds.contains(&metadata.file_type),
            Test::Size { unit, count } => count.meets(metadata.size.div_ceil(*unit)),
            Test::Empty => is_empty(visit)?,
            Test::Age {
                which,
                unit_secs,
                count,
            } => has_age(metadata, *which, *unit_secs, *count, now_secs),
            Test::Newer { which, than } => which.of(metadata) > *than,
            Test::SameFile(file) => *file == Some(Facts::of_image(visit.target, metadata).identity),
            Test::Number { which, count } => count.meets(number(metadata, *which).into()),
            Test::Permissions { bits, how } => match how {
                Matching::Exactly => metadata.permissions == *bits,
                Matching::AllOf => metadata.permissions & bits == *bits,
                Matching::AnyOf => *bits == 0 || metadata.permissions & bits != 0,
            },
        })
    }
}

/// The last name; the root's is a slash.
pub(super) fn name<'a>(visit: &Visit<'a>) -> &'a [u8] {
    match visit.target.name() {
        b"" => b"/",
        name => name,
    }
}

fn is_empty(visit: &Visit<'_>) -> Result<bool, Failure> {
    match visit.metadata.file_type {
        FileType::Regular => Ok(visit.metadata.size == 0),
        FileType::Directory => Ok(entries(visit.target)?.is_empty()),
        _ => Ok(false),
    }
}

fn number(metadata: &Metadata, which: Number) -> u32 {
    match which {
        Number::Uid => metadata.uid,
        Number::Gid => metadata.gid,
        Number::Links => metadata.nlink,
        Number::Inode => metadata.ino,
    }
}

/// Days count when they are over. Of minutes the one under way counts, but for what is to be less than so many. A file of the
/// future has an age below 0.
fn has_age(metadata: &Metadata, which: Time, unit_secs: i64, count: Count, now_secs: i64) -> bool {
    let time = which.of(metadata);
    let age = now_secs.saturating_sub(time.secs).div_euclid(unit_secs);
    let under_way = unit_secs == MINUTE && !matches!(count, Count::LessThan(_));
    let age = age + i64::from(under_way);
    match u64::try_from(age) {
        Ok(age) => count.meets(age),
        Err(_) => matches!(count, Count::LessThan(_)),
    }
}

fn delete(visit: &Visit<'_>) -> Result<(), Failure> {
    if visit.target.shown == b"." {
        // As GNU has it: by this name nothing can be removed.
        return Ok(());
    }
    let (fs, path) = (&visit.target.fs, visit.target.path());
    let removed = match visit.metadata.file_type {
        FileType::Directory => fs.remove_dir(path),
        _ => fs.remove_file(path),
    };
    removed.map_err(|error| visit.target.failure(&error))
}

/// A name as -ls has it: spaces and what cannot be printed behind a backslash.
fn escaped(name: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(name.len());
    for &byte in name {
        match byte {
            b'\\' | b'"' | b' ' => escaped.extend([b'\\', byte]),
            b'\n' => escaped.extend(br"\n"),
            b'\t' => escaped.extend(br"\t"),
            b'\r' => escaped.extend(br"\r"),
            8 => escaped.extend(br"\b"),
            12 => escaped.extend(br"\f"),
            b'!'..=b'~' => escaped.push(byte),
            other => escaped.extend(format!("\\{other:03o}").into_bytes()),
        }
    }
    escaped
}

/// Where files go that an action names.
pub(super) struct Printer<'a> {
    pub(super) out: &'a mut Out,
    pub(super) json: Option<JsonArray>,
    pub(super) now: i64,
    /// What the walk began with.
    pub(super) root: Vec<u8>,
}

#[derive(Serialize)]
struct Found<'a> {
    #[serde(flatten)]
    file: JsonFile,
    depth: usize,
    #[serde(flatten)]
    metadata: &'a Metadata,
}

impl Printer<'_> {
    fn act(&mut self, action: &Action, visit: &Visit<'_>) -> Result<(), Failure> {
        if *action == Action::Delete {
            return delete(visit);
        }
        if let Some(array) = &mut self.json {
            let found = Found {
                file: visit.target.json(),
                depth: visit.depth,
                metadata: visit.metadata,
            };
            return array.push(&found, self.out);
        }
        match action {
            Action::Print => {
                self.out.name(&visit.target.shown)?;
                writeln!(self.out)?;
            }
            Action::Print0 => {
                self.out.write_all(&visit.target.shown)?;
                self.out.write_all(b"\0")?;
            }
            Action::Printf(format) => format.write(visit, &self.root, self.out)?,
            Action::Ls => self.ls(visit)?,
            Action::Prune | Action::Delete => {}
        }
        Ok(())
    }

    /// The columns of find -ls.
    fn ls(&mut self, visit: &Visit<'_>) -> Result<(), Failure> {
        let metadata = visit.metadata;
        let size = match metadata.device {
            Some((major, minor)) => format!("{major:3}, {minor:3}"),
            None => metadata.size.to_string(),
        };
        write!(
            self.out,
            "{:9} {:6} {} {:3} {:<8} {:<8} {size:>8} {} ",
            metadata.ino,
            metadata.blocks.div_ceil(2),
            mode_string(metadata.file_type, metadata.permissions),
            metadata.nlink,
            metadata.uid,
            metadata.gid,
            list_time(metadata.mtime, self.now),
        )?;
        self.out.write_all(&escaped(&visit.target.shown))?;
        let link = visit.target.link(metadata);
        if let Ok(Some(text)) = &link {
            self.out.write_all(b" -> ")?;
            self.out.write_all(&escaped(text))?;
        }
        writeln!(self.out)?;
        link.map(drop)
    }

    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        match &mut self.json {
            Some(array) => array.finish(self.out),
            None => Ok(()),
        }
    }
}
