//! `dioxide truncate`.

use super::change::begin;
use super::report::{Report, Telling};
use crate::args::{SizeChange, TruncateArgs};
use crate::failure::{Failure, Status};
use crate::output::Out;
use crate::session::{Session, Target};
use dioxide::Error;

pub fn run(args: &TruncateArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    begin(session, &args.open);
    let mut report = Report::new(Telling::json(args.json), out);
    let change = match (&args.reference, args.size) {
        (Some(file), _) => SizeChange::To(session.target(file)?.metadata()?.size),
        (None, Some(change)) => change,
        (None, None) => return Err(Failure::plain("no size")),
    };
    let status = session.for_each_of(
        &args.paths,
        Session::targets_or_new,
        |target| match truncate(args, &target, change)? {
            Some(size) => report.tell_facts("truncated", &target, &[("size", size)]),
            None => Ok(()),
        },
    )?;
    report.finish()?;
    Ok(status)
}

/// The size that it has now; none if there is no such file, and none was to be made.
fn truncate(
    args: &TruncateArgs,
    target: &Target,
    change: SizeChange,
) -> Result<Option<u64>, Failure> {
    let told = |error: Error| target.failure(&error);
    let options = Target::writing().create(!args.no_create);
    let options = options.new_file(&args.new_files.with(0o666));
    let file = match options.open(&target.fs, target.path()) {
        Err(Error::NotFound(_)) if args.no_create => return Ok(None),
        opened => opened.map_err(told)?,
    };
    let size = change.apply(file.len());
    let size = size.ok_or_else(|| Failure::trouble(target, "File too large"))?;
    file.set_len(size).map_err(told)?;
    Ok(Some(size))
}
