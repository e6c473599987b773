//! `dioxide touch`.

use super::change::begin;
use crate::args::TouchArgs;
use crate::failure::{Failure, Status};
use crate::session::{Session, Target};
use dioxide::{Error, SetAttributes, Timestamp};

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
    session.for_each(&args.paths, |target| touch(args, &target, &set))
}

fn now() -> Timestamp {
    let now = jiff::Timestamp::now();
    Timestamp {
        secs: now.as_second(),
        nanos: now.subsec_nanosecond().unsigned_abs(),
    }
}

fn touch(args: &TouchArgs, target: &Target, set: &SetAttributes) -> Result<(), Failure> {
    match target.fs.set_attributes(target.path(), set) {
        Err(Error::NotFound(_)) if args.no_create => Ok(()),
        done => done.map_err(|error| target.failure(&error)),
    }
}
