//! `dioxide explain`: the engine's decision about one request, or every policy's in a table.

use crate::args::ExplainArgs;
use crate::failure::{Failure, Status};
use crate::images::Purpose;
use crate::output::Out;
use crate::session::{Session, Target};
use dioxide::policy::{IoLock, LockMode};
use dioxide::{Direction, Explanation, File, OpenOptions, Policy};
use std::io::{self, Write};

pub fn run(args: &ExplainArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    session.begin(&args.open, Purpose::Look);
    let target = &session.target(&args.path)?;
    let file = target.open(&OpenOptions::new().read(true).direct(true))?;
    match args.policy {
        Some(policy) => {
            let explanation = explain(args, target, &file, policy)?;
            if args.json {
                out.json(&explanation)?
            } else {
                print_steps(&title(args, target), &explanation, out)?
            }
        }
        None => {
            let all = Policy::ALL
                .iter()
                .map(|policy| explain(args, target, &file, *policy));
            let all = all.collect::<Result<Vec<_>, _>>()?;
            if args.json {
                out.json(&all)?
            } else {
                print_table(&title(args, target), &all, out)?
            }
        }
    }
    Ok(Status::Fine)
}

fn explain(
    args: &ExplainArgs,
    target: &Target,
    file: &File,
    policy: Policy,
) -> Result<Explanation, Failure> {
    file.explain(direction(args), args.offset, args.len, Some(policy))
        .map_err(|error| target.failure(&error))
}

fn direction(args: &ExplainArgs) -> Direction {
    match (args.atomic, args.write) {
        (true, _) => Direction::AtomicWrite,
        (false, true) => Direction::Write,
        (false, false) => Direction::Read,
    }
}

fn title(args: &ExplainArgs, target: &Target) -> String {
    let what = match direction(args) {
        Direction::Read => "read",
        Direction::Write => "write",
        Direction::AtomicWrite => "atomic write",
    };
    format!(
        "{target}: direct {what} of {} bytes at {}",
        args.len, args.offset
    )
}

fn print_steps(title: &str, explanation: &Explanation, out: &mut Out) -> io::Result<()> {
    writeln!(out, "{title}")?;
    let steps = &explanation.steps;
    let width = steps
        .iter()
        .map(|step| step.question.len())
        .max()
        .unwrap_or(0);
    for step in steps {
        writeln!(out, "  {:width$}  {}", step.question, step.answer)?;
    }
    Ok(())
}

const COLUMNS: [&str; 8] = [
    "POLICY", "LOCK", "RESTARTS", "DRAINS", "WAITS", "NO-WAIT", "PATH", "OUTCOME",
];

fn print_table(title: &str, all: &[Explanation], out: &mut Out) -> io::Result<()> {
    writeln!(out, "{title}")?;
    let mut refusals = Refusals::default();
    let mut rows = vec![COLUMNS.map(String::from)];
    rows.extend(all.iter().map(|told| cells(told, &mut refusals)));
    let widest = |column: usize| {
        rows.iter()
            .map(|row| width(&row[column]))
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; COLUMNS.len()] = std::array::from_fn(widest);
    for row in &rows {
        let padded = row
            .iter()
            .zip(widths)
            .map(|(cell, wide)| format!("{cell}{}", " ".repeat(wide - width(cell))));
        writeln!(
            out,
            "  {}",
            padded.collect::<Vec<_>>().join("  ").trim_end()
        )?;
    }
    writeln!(
        out,
        "  LOCK: at entry, as decided, during the I/O. --policy shows the steps."
    )?;
    if all.iter().any(|told| told.commits_first) {
        writeln!(
            out,
            "  Before the data goes to the device, the map is committed."
        )?;
    }
    for (index, refusal) in refusals.0.iter().enumerate() {
        writeln!(out, "  ({}) {refusal}", index + 1)?;
    }
    Ok(())
}

/// Arrows are three bytes and one column.
fn width(cell: &str) -> usize {
    cell.chars().count()
}

/// Reasons that are too long for a table, and mostly the same in every line.
#[derive(Default)]
struct Refusals(Vec<String>);

impl Refusals {
    fn number(&mut self, why: &str) -> usize {
        let known = self.0.iter().position(|refusal| refusal == why);
        known.unwrap_or_else(|| {
            self.0.push(why.into());
            self.0.len() - 1
        }) + 1
    }
}

fn cells(told: &Explanation, refusals: &mut Refusals) -> [String; COLUMNS.len()] {
    let yes_no = |on: bool| String::from(if on { "yes" } else { "no" });
    let no_wait = match (told.no_direct_path, told.would_block) {
        (true, _) => "EOPNOTSUPP",
        (false, true) => "EAGAIN",
        (false, false) => "ok",
    };
    let outcome = match &told.refused {
        Some(why) => format!("refused ({})", refusals.number(why)),
        None => "served".into(),
    };
    [
        told.policy.to_string(),
        locks(told),
        yes_no(told.restarts),
        yes_no(told.drains),
        yes_no(told.waits),
        no_wait.into(),
        if told.simple { "simple" } else { "general" }.into(),
        outcome,
    ]
}

/// `shared→exclusive`: each step that changes something.
fn locks(told: &Explanation) -> String {
    let mut held = Vec::new();
    if told.restarts {
        held.push(LockMode::Shared);
    }
    held.push(told.lock);
    match told.io_lock {
        IoLock::Keep => {}
        IoLock::Downgrade => held.push(LockMode::Shared),
        IoLock::Release => held.push(LockMode::None),
    }
    held.dedup();
    held.into_iter()
        .map(lock_word)
        .collect::<Vec<_>>()
        .join("→")
}

fn lock_word(lock: LockMode) -> &'static str {
    match lock {
        LockMode::None => "none",
        LockMode::Shared => "shared",
        LockMode::Exclusive => "exclusive",
    }
}
