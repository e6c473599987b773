//! `dioxide truncate`.

use super::change::begin;
use crate::args::{SizeChange, TruncateArgs};
use crate::failure::{Failure, Status};
use crate::session::{Session, Target};
use dioxide::{Error, OpenOptions};

pub fn run(args: &TruncateArgs, session: &mut Session) -> Result<Status, Failure> {
    begin(session, &args.open);
    let change = match (&args.reference, args.size) {
        (Some(file), _) => SizeChange::To(session.target(file)?.metadata()?.size),
        (None, Some(change)) => change,
        (None, None) => return Err(Failure::plain("no size")),
    };
    session.for_each_of(&args.paths, Session::targets_or_new, |target| {
        truncate(args, &target, change)
    })
}

fn truncate(args: &TruncateArgs, target: &Target, change: SizeChange) -> Result<(), Failure> {
    let told = |error: Error| target.failure(&error);
    let options = OpenOptions::new().write(true).create(!args.no_create);
    let options = options.new_file(&args.new_files.with(0o666));
    let file = match options.open(&target.fs, target.path()) {
        Err(Error::NotFound(_)) if args.no_create => return Ok(()),
        opened => opened.map_err(told)?,
    };
    let size = change.apply(file.len());
    let size = size.ok_or_else(|| Failure::trouble(target, "File too large"))?;
    file.set_len(size).map_err(told)
}
