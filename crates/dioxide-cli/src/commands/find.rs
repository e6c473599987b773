//! `dioxide find`: walks trees, and evaluates an expression for each file.

mod eval;
mod parse;
mod printf;

use super::change::begin;
use crate::address::Operand;
use crate::args::FindArgs;
use crate::failure::{Failure, Status};
use crate::images::Purpose;
use crate::location::{Facts, Identity};
use crate::output::{JsonArray, Out};
use crate::progress::Progress;
use crate::render::now_secs;
use crate::session::{Place, Session};
use crate::walk::{First, Next, When, walk, walk_through};
use dioxide::{FileType, Timestamp};
use eval::Printer;
use parse::Parser;
use printf::Format;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

/// In seconds.
const MINUTE: i64 = 60;

/// What an expression is made of.
#[derive(Debug)]
enum Expr {
    All(Vec<Expr>),
    Any(Vec<Expr>),
    Not(Box<Expr>),
    Test(Test),
    Action(Action),
}

#[derive(Debug)]
enum Test {
    Constant(bool),
    Name {
        pattern: Vec<u8>,
        ignore_case: bool,
        /// All that is shown of the path.
        whole: bool,
    },
    Kind(Vec<FileType>),
    Size {
        unit: u64,
        count: Count,
    },
    Empty,
    Age {
        which: Time,
        unit_secs: i64,
        count: Count,
    },
    Newer {
        which: Time,
        than: Timestamp,
    },
    /// None of these if it is on the host.
    SameFile(Option<Identity>),
    Number {
        which: Number,
        count: Count,
    },
    Permissions {
        bits: u16,
        how: Matching,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Time {
    Access,
    Modify,
    Change,
}

#[derive(Clone, Copy, Debug)]
enum Number {
    Uid,
    Gid,
    Links,
    Inode,
}

#[derive(Clone, Copy, Debug)]
enum Matching {
    Exactly,
    AllOf,
    AnyOf,
}

/// `5`, `+5`, `-5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Exactly(u64),
    MoreThan(u64),
    LessThan(u64),
}

#[derive(Debug, PartialEq, Eq)]
enum Action {
    Print,
    Print0,
    Printf(Format),
    Ls,
    Prune,
    Delete,
}

/// All that was asked for.
struct Query {
    expr: Expr,
    min_depth: usize,
    max_depth: usize,
    /// Directories come after what is in them.
    depth_first: bool,
}

pub fn run(args: &FindArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    let is_expression =
        |word: &[u8]| word == b"(" || word == b"!" || word.len() > 1 && word.starts_with(b"-");
    let split = args
        .words
        .iter()
        .position(|word| is_expression(word.as_bytes()));
    let (paths, expression) = args.words.split_at(split.unwrap_or(args.words.len()));
    let paths: Vec<_> = paths.iter().cloned().map(Operand).collect();
    let changes = expression.iter().any(|word| word == "-delete");
    match changes {
        true => begin(session, &args.open),
        false => session.begin(&args.open, Purpose::Look),
    }
    let operands = session.or_here(&paths)?;
    let mut refer = |word: &Operand| reference(session, word, args.follow);
    let query = Parser::new(expression, &mut refer).query()?;
    let mut progress = Progress::of_count_beside(out);
    let mut printer = Printer {
        out,
        json: args.json.then(JsonArray::default),
        now: now_secs(),
        root: Vec::new(),
    };
    let mut worst = Status::Fine;
    let status = session.for_each(&operands, |target| {
        printer.root.clone_from(&target.shown);
        let visit = &mut |visit: &crate::walk::Visit<'_>| {
            progress.advance(u64::from(visit.when != When::After));
            query.visit(visit, &mut printer)
        };
        worst = worst.max(match args.follow {
            true => walk_through(&target, visit)?,
            false => walk(&target, First::Itself, visit)?,
        });
        Ok(())
    });
    // Whatever ended it.
    printer.finish()?;
    Ok(status?.max(worst))
}

impl Query {
    fn visit(
        &self,
        visit: &crate::walk::Visit<'_>,
        printer: &mut Printer<'_>,
    ) -> Result<Next, Failure> {
        let shallow = visit.depth < self.min_depth;
        let next = match visit.depth < self.max_depth {
            true => Next::Enter,
            false => Next::Pass,
        };
        // A directory that is not entered is not left either.
        let turn = match visit.when {
            When::Once => true,
            When::Before => !self.depth_first || next == Next::Pass,
            When::After => self.depth_first,
        };
        if !turn || shallow {
            return Ok(next);
        }
        let verdict = self.expr.eval(visit, printer)?;
        match verdict.prune && !self.depth_first {
            true => Ok(Next::Pass),
            false => Ok(next),
        }
    }
}

/// A file that a test names: itself if it is a symlink, unless these are followed.
struct Reference {
    mtime: Timestamp,
    /// In an image.
    file: Option<Identity>,
}

fn reference(session: &mut Session, word: &Operand, follow: bool) -> Result<Reference, Failure> {
    match session.place(word)? {
        Place::Image { .. } => {
            let target = session.target(word)?;
            let metadata = match follow {
                true => target.metadata()?,
                false => target.symlink_metadata()?,
            };
            Ok(Reference {
                mtime: metadata.mtime,
                file: Some(Facts::of_image(&target, &metadata).identity),
            })
        }
        Place::Host(path) => {
            let found = match follow {
                true => std::fs::metadata(&path),
                false => std::fs::symlink_metadata(&path),
            };
            let found = found.map_err(|error| Failure::host(word, &error))?;
            let mtime = Timestamp {
                secs: found.mtime(),
                nanos: found.mtime_nsec() as u32,
            };
            Ok(Reference { mtime, file: None })
        }
    }
}
