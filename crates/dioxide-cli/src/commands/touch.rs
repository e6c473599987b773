//! `dioxide touch`.

use super::change::begin;
use crate::args::TouchArgs;
use crate::failure::{Failure, Status};
use crate::session::{Session, Target};
use dioxide::{Error, OpenOptions, SetAttributes, Timestamp};

pub fn run(args: &TouchArgs, session: &mut Session) -> Result<Status, Failure> {
    begin(session, &args.open);
    let (atime, mtime) = match &args.reference {
        Some(file) => {
            let metadata = session.target(file)?.metadata()?;
            (metadata.atime, metadata.mtime)
        }
        None => {
            let time = args.date.or(args.stamp).unwrap_or_else(now);
            (time, time)
        }
    };
    let both = args.access == args.modify;
    let mut set = SetAttributes::new();
    if both || args.access {
        set = set.atime(atime);
    }
    if both || args.modify {
        set = set.mtime(mtime);
    }
    session.for_each_of(&args.paths, Session::targets_or_new, |target| {
        touch(args, &target, &set)
    })
}

fn now() -> Timestamp {
    let now = jiff::Timestamp::now();
    Timestamp {
        secs: now.as_second(),
        nanos: now.subsec_nanosecond().unsigned_abs(),
    }
}

fn touch(args: &TouchArgs, target: &Target, set: &SetAttributes) -> Result<(), Failure> {
    if args.no_dereference {
        let link = match target.node() {
            Err(failure) if failure.is_absence() && args.no_create => return Ok(()),
            link => link?,
        };
        let done = link.set_attributes(set);
        return done.map_err(|error| target.failure(&error));
    }
    let set = || target.fs.set_attributes(target.path(), set);
    let done = match set() {
        Err(Error::NotFound(_)) if args.no_create => return Ok(()),
        Err(Error::NotFound(_)) => {
            let options = OpenOptions::new().write(true).create(true);
            let options = options.new_file(&args.new_files.with(0o666));
            options.open(&target.fs, target.path()).and_then(|_| set())
        }
        done => done,
    };
    done.map_err(|error| target.failure(&error))
}
