//! `dioxide du`: sums up trees, a file once in a run, whatever names or operands lead to it.

use crate::args::DuArgs;
use crate::failure::{Failure, Status};
use crate::images::Purpose;
use crate::location::{Facts, Identity};
use crate::output::{JsonArray, Out};
use crate::progress::Progress;
use crate::render::human;
use crate::session::{JsonFile, Session, Target};
use crate::walk::{First, Next, Visit, When, walk};
use dioxide::{FileType, Metadata};
use serde::Serialize;
use std::collections::HashMap;
use std::io::Write;

pub fn run(args: &DuArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    session.begin(&args.open, Purpose::Look);
    let operands = session.or_here(&args.paths)?;
    let mut targets = Vec::new();
    let status = session.for_each(&operands, |target| {
        targets.push(target);
        Ok(())
    })?;
    let mut sums = Sums {
        args,
        progress: match args.summarize {
            true => Progress::of_count(),
            false => Progress::of_count_beside(out),
        },
        out,
        json: JsonArray::default(),
        seen: HashMap::new(),
        several: targets.len() > 1,
        operand: 0,
        open: Vec::new(),
        total: 0,
    };
    let mut worst = status;
    for target in &targets {
        sums.open.clear();
        sums.operand += 1;
        let visit = &mut |visit: &Visit<'_>| sums.visit(visit);
        worst = worst.max(walk(target, First::Itself, visit)?);
    }
    sums.finish()?;
    Ok(worst)
}

struct Sums<'a> {
    args: &'a DuArgs,
    out: &'a mut Out,
    json: JsonArray,
    /// Files that may be met again and were counted, and in the walk from which operand.
    seen: HashMap<Identity, usize>,
    /// Each file may be met again, from another operand.
    several: bool,
    operand: usize,
    /// The sum of each directory that is entered.
    open: Vec<u64>,
    total: u64,
    progress: Progress,
}

#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    file: JsonFile,
    bytes: u64,
}

/// The sum of all operands.
#[derive(Serialize)]
struct Total {
    total: bool,
    bytes: u64,
}

impl Sums<'_> {
    fn visit(&mut self, visit: &Visit<'_>) -> Result<Next, Failure> {
        self.progress.advance(1);
        let counted = visit.when == When::After || self.is_first(visit);
        match visit.when {
            When::Before if counted => {
                self.open.push(self.bytes(visit.metadata));
                return Ok(Next::Enter);
            }
            When::Once if counted => {
                let bytes = self.bytes(visit.metadata);
                self.add(bytes);
                if visit.depth == 0 || self.args.all {
                    self.tell(visit, bytes)?;
                }
            }
            When::After => {
                let bytes = self.open.pop().unwrap_or(0);
                self.add(bytes);
                self.tell(visit, bytes)?;
            }
            _ => {}
        }
        Ok(Next::Pass)
    }

    /// Whether a file is met for the first time. What the walk says of a directory that it meets twice is for it to say.
    fn is_first(&mut self, visit: &Visit<'_>) -> bool {
        let is_directory = visit.metadata.file_type == FileType::Directory;
        let again = self.several || is_directory || visit.metadata.nlink > 1;
        if self.args.count_links || !again {
            return true;
        }
        let file = Facts::of_image(visit.target, visit.metadata).identity;
        let before = self.seen.insert(file, self.operand);
        before.is_none() || is_directory && before == Some(self.operand)
    }

    fn bytes(&self, metadata: &Metadata) -> u64 {
        match self.args.bytes || self.args.apparent_size {
            true => metadata.size,
            false => metadata.blocks.saturating_mul(512),
        }
    }

    fn add(&mut self, bytes: u64) {
        match self.open.last_mut() {
            Some(sum) => *sum = sum.saturating_add(bytes),
            None => self.total = self.total.saturating_add(bytes),
        }
    }

    fn tell(&mut self, visit: &Visit<'_>, bytes: u64) -> Result<(), Failure> {
        let most = if self.args.summarize {
            0
        } else {
            self.args.max_depth.unwrap_or(usize::MAX)
        };
        if visit.depth > most {
            return Ok(());
        }
        self.line(visit.target, bytes)
    }

    fn line(&mut self, target: &Target, bytes: u64) -> Result<(), Failure> {
        if self.args.json {
            let line = Line {
                file: target.json(),
                bytes,
            };
            return self.json.push(&line, self.out);
        }
        write!(self.out, "{}\t", self.scaled(bytes))?;
        self.out.name(&target.shown)?;
        Ok(writeln!(self.out)?)
    }

    fn scaled(&self, bytes: u64) -> String {
        match self.args {
            DuArgs {
                human_readable: true,
                ..
            } => human(bytes),
            DuArgs { bytes: true, .. } => bytes.to_string(),
            _ => bytes.div_ceil(1024).to_string(),
        }
    }

    fn finish(&mut self) -> Result<(), Failure> {
        if self.args.json {
            if self.args.total {
                let (total, bytes) = (true, self.total);
                self.json.push(&Total { total, bytes }, self.out)?;
            }
            return self.json.finish(self.out);
        }
        if self.args.total {
            writeln!(self.out, "{}\ttotal", self.scaled(self.total))?;
        }
        Ok(())
    }
}
