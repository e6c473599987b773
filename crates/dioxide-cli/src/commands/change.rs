//! `dioxide chmod` and `dioxide chown`: operands, recursion and references are the same, what is set is not.

use super::report::{Report, Telling};
use crate::address::Operand;
use crate::args::{ChmodArgs, ChownArgs, ImageArgs, ModeChange, Owner};
use crate::failure::{Failure, Status};
use crate::images::Purpose;
use crate::interrupt;
use crate::output::Out;
use crate::progress::Progress;
use crate::render::mode_string;
use crate::session::{Session, Target};
use crate::walk::{First, Next, Visit, When, walk};
use dioxide::{FileType, Metadata, SetAttributes};

/// What both have.
struct Change<'a> {
    operands: &'a [Operand],
    recursive: bool,
    telling: Telling,
    /// Symlinks are changed themselves.
    links: bool,
}

/// What is set of a file; none if it is so already.
type Decide<'a> = &'a dyn Fn(&Metadata) -> Option<Setting>;

struct Setting {
    set: SetAttributes,
    /// For people, behind the name.
    words: String,
    /// For programs.
    facts: Vec<(&'static str, u64)>,
}

pub fn chmod(args: &ChmodArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    begin(session, &args.open);
    let telling = Telling {
        verbose: args.verbose,
        json: args.json,
    };
    let report = Report::new(telling, out);
    let (change, operands) = match &args.reference {
        Some(file) => {
            let bits = session.target(file)?.metadata()?.permissions;
            (ModeChange::Octal { bits, digits: 5 }, &args.operands[..])
        }
        None => {
            let (word, operands) = split(&args.operands)?;
            (ChmodArgs::mode(word).map_err(Failure::plain)?, operands)
        }
    };
    let decide = |metadata: &Metadata| {
        let is_directory = metadata.file_type == FileType::Directory;
        let mode = change.apply(metadata.permissions, is_directory);
        let words = format!(
            "mode is now {mode:04o} ({})",
            &mode_string(metadata.file_type, mode)[1..]
        );
        (mode != metadata.permissions).then(|| Setting {
            set: SetAttributes::new().mode(mode),
            words,
            facts: vec![("permissions", mode.into())],
        })
    };
    let change = Change {
        operands,
        recursive: args.recursive,
        telling,
        links: false,
    };
    change.run(&decide, session, report)
}

pub fn chown(args: &ChownArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    begin(session, &args.open);
    let telling = Telling {
        verbose: args.verbose,
        json: args.json,
    };
    let report = Report::new(telling, out);
    let (owner, operands) = match &args.reference {
        Some(file) => {
            let metadata = session.target(file)?.metadata()?;
            let owner = Owner {
                uid: Some(metadata.uid),
                gid: Some(metadata.gid),
            };
            (owner, &args.operands[..])
        }
        None => {
            let (word, operands) = split(&args.operands)?;
            (ChownArgs::owner(word).map_err(Failure::plain)?, operands)
        }
    };
    let decide = |metadata: &Metadata| {
        let uid = owner.uid.unwrap_or(metadata.uid);
        let gid = owner.gid.unwrap_or(metadata.gid);
        Some(Setting {
            set: SetAttributes::new().uid(uid).gid(gid),
            words: format!("owner is now {uid}:{gid}"),
            facts: vec![("uid", uid.into()), ("gid", gid.into())],
        })
    };
    let change = Change {
        operands,
        recursive: args.recursive,
        telling,
        // What is in a tree is not what its links lead to.
        links: args.no_dereference || args.recursive,
    };
    change.run(&decide, session, report)
}

/// Begins a command that changes images: Ctrl-C ends it between two operations.
pub(super) fn begin(session: &mut Session, open: &ImageArgs) {
    interrupt::watch();
    session.begin(open, Purpose::Change);
}

fn split(operands: &[Operand]) -> Result<(&Operand, &[Operand]), Failure> {
    match operands {
        [first, rest @ ..] if !rest.is_empty() => Ok((first, rest)),
        _ => Err(Failure::plain(
            "which files? Write IMG:/path after what they get",
        )),
    }
}

impl Change<'_> {
    fn run(
        &self,
        decide: Decide<'_>,
        session: &mut Session,
        mut report: Report<'_>,
    ) -> Result<Status, Failure> {
        let mut worst = Status::Fine;
        let mut progress = match report.is_loud() {
            true => Progress::none(),
            false => Progress::of_count(),
        };
        let status = session.for_each(self.operands, |target| {
            let visit = &mut |visit: &Visit<'_>| {
                progress.advance(1);
                self.visit(visit, decide, &mut report)
            };
            let first = match self.links {
                true => First::Itself,
                false => First::Followed,
            };
            worst = worst.max(walk(&target, first, visit)?);
            Ok(())
        })?;
        report.finish()?;
        Ok(status.max(worst))
    }

    /// What symlinks below an operand lead to is not in the tree, and left alone.
    fn visit(
        &self,
        visit: &Visit<'_>,
        decide: Decide<'_>,
        report: &mut Report<'_>,
    ) -> Result<Next, Failure> {
        let is_link = visit.metadata.file_type == FileType::Symlink;
        if visit.when != When::After && (self.links || !is_link) {
            self.set(visit.target, decide(visit.metadata), report)?;
        }
        Ok(if self.recursive {
            Next::Enter
        } else {
            Next::Pass
        })
    }

    fn set(
        &self,
        target: &Target,
        setting: Option<Setting>,
        report: &mut Report<'_>,
    ) -> Result<(), Failure> {
        let Some(Setting { set, words, facts }) = setting else {
            return Ok(());
        };
        let done = match self.links {
            true => target.node()?.set_attributes(&set),
            false => target.fs.set_attributes(target.path(), &set),
        };
        done.map_err(|error| target.failure(&error))?;
        if self.telling.json {
            return report.tell_facts("changed", target, &facts);
        }
        report.tell_words(target, &words)
    }
}
