//! `dioxide rm`.

use super::change::begin;
use super::report::{Done, Named, Report, Telling};
use crate::args::RmArgs;
use crate::failure::{Failure, Status};
use crate::output::Out;
use crate::progress::Progress;
use crate::session::{Session, Target};
use crate::walk::{First, Next, Visit, When, walk};
use dioxide::{Error, FileType};

pub fn run(args: &RmArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    begin(session, &args.open);
    let telling = Telling {
        verbose: args.verbose,
        json: args.json,
    };
    let mut report = Report::new(telling, out);
    let mut removal = Removal {
        recursive: args.recursive,
        empty: args.dir,
        whole_root: args.no_preserve_root,
        failed: false,
        progress: match report.is_loud() {
            true => Progress::none(),
            false => Progress::of_count(),
        },
    };
    let mut worst = Status::Fine;
    let find = |session: &mut Session, operand: &_| match session.targets(operand) {
        Err(failure) if args.force && failure.is_absence() => Ok(Vec::new()),
        found => found,
    };
    let status = session.for_each_of(&args.paths, find, |target| {
        if args.force && is_absent(&target)? {
            return Ok(());
        }
        worst = worst.max(removal.remove(&target, &mut report)?);
        Ok(())
    })?;
    report.finish()?;
    Ok(status.max(worst))
}

fn is_absent(target: &Target) -> Result<bool, Failure> {
    match target.fs.symlink_metadata(target.path()) {
        Err(Error::NotFound(_) | Error::NotADirectory(_)) => Ok(true),
        Err(error) => Err(target.failure(&error)),
        Ok(_) => Ok(false),
    }
}

/// Removes a file with all that is in it. What fails is told.
pub(super) fn remove_tree(target: &Target, report: &mut Report<'_>) -> Result<Status, Failure> {
    let mut removal = Removal {
        recursive: true,
        empty: true,
        whole_root: false,
        failed: false,
        progress: Progress::of_count(),
    };
    removal.remove(target, report)
}

struct Removal {
    recursive: bool,
    /// Empty directories too.
    empty: bool,
    whole_root: bool,
    /// Something below was not removed, so that what it is in cannot be.
    failed: bool,
    progress: Progress,
}

impl Removal {
    fn remove(&mut self, target: &Target, report: &mut Report<'_>) -> Result<Status, Failure> {
        if matches!(target.name(), b"." | b"..") {
            let what = "'.' and '..' are not removed";
            return Err(Failure::trouble(target, what));
        }
        self.failed = false;
        walk(target, First::Itself, &mut |visit| {
            self.progress.advance(1);
            let done = self.visit(visit, report);
            self.failed |= done.is_err();
            done
        })
    }

    fn visit(&mut self, visit: &Visit<'_>, report: &mut Report<'_>) -> Result<Next, Failure> {
        let target = visit.target;
        let told = |error| target.failure(&error);
        // By whatever path: a link with a slash behind it leads there too.
        let is_root = visit.metadata.ino == ROOT_INO;
        if is_root && !self.whole_root {
            let what = "is the root directory, and not removed; --no-preserve-root says otherwise";
            return Err(Failure::trouble(target, what));
        }
        match visit.when {
            When::Before if self.recursive => return Ok(Next::Enter),
            When::Before if !self.empty => return Err(Failure::trouble(target, "Is a directory")),
            When::After if is_root => return Ok(Next::Pass),
            When::Before => target.fs.remove_dir(target.path()).map_err(told)?,
            When::After => match target.fs.remove_dir(target.path()) {
                // What is still in it was told.
                Err(Error::NotEmpty(_)) if self.failed => return Ok(Next::Pass),
                done => done.map_err(told)?,
            },
            When::Once => target.fs.remove_file(target.path()).map_err(told)?,
        }
        let is_directory = visit.metadata.file_type == FileType::Directory;
        report.tell(&Done {
            action: "removed",
            words: match is_directory {
                true => "removed directory ",
                false => "removed ",
            },
            file: Named::Image(target),
            to: None,
            facts: &[],
        })?;
        Ok(Next::Pass)
    }
}

/// The root directory of ext4.
pub(super) const ROOT_INO: u32 = 2;
