//! `dioxide fallocate`.

use super::change::begin;
use crate::args::FallocateArgs;
use crate::failure::{Failure, Status};
use crate::session::Session;
use dioxide::{FallocateMode, OpenOptions};

pub fn run(args: &FallocateArgs, session: &mut Session) -> Result<Status, Failure> {
    begin(session, &args.open);
    let target = session.target(&args.path)?;
    let file = target.open(&OpenOptions::new().write(true))?;
    let done = file.allocate(mode(args), args.offset, args.length);
    done.map_err(|error| target.failure(&error))?;
    Ok(Status::Fine)
}

fn mode(args: &FallocateArgs) -> FallocateMode {
    match () {
        () if args.punch_hole => FallocateMode::PunchHole,
        () if args.collapse_range => FallocateMode::CollapseRange,
        () if args.insert_range => FallocateMode::InsertRange,
        () if args.zero_range && args.keep_size => FallocateMode::ZeroRangeKeepSize,
        () if args.zero_range => FallocateMode::ZeroRange,
        () if args.keep_size => FallocateMode::KeepSize,
        () => FallocateMode::Allocate,
    }
}
