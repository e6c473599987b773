//! `dioxide touch`.

use super::change::begin;
use super::report::{Report, Telling};
use crate::args::TouchArgs;
use crate::failure::{Failure, Status};
use crate::output::Out;
use crate::session::{Session, Target};
use dioxide::{Error, SetAttributes};
use std::time::SystemTime;

pub fn run(args: &TouchArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    begin(session, &args.open);
    let mut report = Report::new(Telling::json(args.json), out);
    let (atime, mtime) = match &args.reference {
        Some(file) => {
            let target = session.target(file)?;
            let metadata = match args.no_dereference {
                true => target.symlink_metadata()?,
                false => target.metadata()?,
            };
            (metadata.atime, metadata.mtime)
        }
        None => {
            let now = || SystemTime::now().into();
            let time = args.date.or(args.stamp).unwrap_or_else(now);
            (time, time)
        }
    };
    let both = args.access == args.modify;
    let mut set = SetAttributes::new();
    let is_told = args.reference.is_some() || args.date.or(args.stamp).is_some();
    if both && !is_told {
        // Allowed where no other time is: of a file that is append-only.
        set = set.now();
    }
    if both || args.access {
        set = set.atime(atime);
    }
    if both || args.modify {
        set = set.mtime(mtime);
    }
    let status =
        session.for_each_of(&args.paths, Session::targets_or_new, |target| match touch(
            args, &target, &set,
        )? {
            Some(action) => report.tell_facts(action, &target, &[]),
            None => Ok(()),
        })?;
    report.finish()?;
    Ok(status)
}

/// What was done; none if there is no such file, and none was to be made.
fn touch(
    args: &TouchArgs,
    target: &Target,
    set: &SetAttributes,
) -> Result<Option<&'static str>, Failure> {
    let told = |error| target.failure(&error);
    if args.no_dereference {
        let link = match target.node() {
            Err(failure) if failure.is_absence() && args.no_create => return Ok(None),
            link => link?,
        };
        link.set_attributes(set).map_err(told)?;
        return Ok(Some("changed"));
    }
    let set = || target.fs.set_attributes(target.path(), set);
    match set() {
        Err(Error::NotFound(_)) if args.no_create => Ok(None),
        Err(Error::NotFound(_)) => {
            let options = Target::writing().create(true);
            let options = options.new_file(&args.new_files.with(0o666));
            let made = options.open(&target.fs, target.path());
            made.and_then(|_| set()).map_err(told)?;
            Ok(Some("made"))
        }
        done => done.map(|()| Some("changed")).map_err(told),
    }
}
