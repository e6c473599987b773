//! `dioxide fallocate`.

use super::change::begin;
use super::report::{Report, Telling};
use crate::args::FallocateArgs;
use crate::failure::{Failure, Status};
use crate::interrupt;
use crate::output::Out;
use crate::progress::Progress;
use crate::session::{Session, Target};
use dioxide::FallocateMode;

/// A device that does not zero by itself takes its time.
const ZEROED_AT_ONCE: u64 = 256 << 20;

pub fn run(args: &FallocateArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    begin(session, &args.open);
    let mut report = Report::new(Telling::json(args.json), out);
    let mode = mode(args);
    let creates = matches!(mode, FallocateMode::Allocate | FallocateMode::KeepSize);
    let target = match creates {
        true => session.new_or_only(&args.path)?,
        false => session.target(&args.path)?,
    };
    let options = Target::writing().create(creates);
    let file = target.open(&options.new_file(&args.new_files.with(0o666)))?;
    let told = |error| target.failure(&error);
    match mode {
        FallocateMode::WriteZeroes => {
            // There is room for all of it, or nothing is changed.
            let ahead = file.allocate(FallocateMode::Allocate, args.offset, args.length);
            ahead.map_err(told)?;
            let mut progress = Progress::of_bytes(args.length);
            let (mut at, end) = (args.offset, args.offset.saturating_add(args.length));
            while at < end {
                interrupt::check()?;
                let len = ZEROED_AT_ONCE.min(end - at);
                file.allocate(mode, at, len).map_err(told)?;
                progress.advance(len);
                at += len;
            }
        }
        _ => file
            .allocate(mode, args.offset, args.length)
            .map_err(told)?,
    }
    let facts = [
        ("offset", args.offset),
        ("length", args.length),
        ("size", file.len()),
    ];
    report.tell_facts(action(mode), &target, &facts)?;
    report.finish()?;
    Ok(Status::Fine)
}

fn action(mode: FallocateMode) -> &'static str {
    match mode {
        FallocateMode::PunchHole => "punched",
        FallocateMode::CollapseRange => "collapsed",
        FallocateMode::InsertRange => "inserted",
        FallocateMode::ZeroRange
        | FallocateMode::ZeroRangeKeepSize
        | FallocateMode::WriteZeroes => "zeroed",
        _ => "allocated",
    }
}

fn mode(args: &FallocateArgs) -> FallocateMode {
    match () {
        () if args.punch_hole => FallocateMode::PunchHole,
        () if args.collapse_range => FallocateMode::CollapseRange,
        () if args.insert_range => FallocateMode::InsertRange,
        () if args.zero_range && args.keep_size => FallocateMode::ZeroRangeKeepSize,
        () if args.zero_range => FallocateMode::ZeroRange,
        () if args.write_zeroes => FallocateMode::WriteZeroes,
        () if args.keep_size => FallocateMode::KeepSize,
        () => FallocateMode::Allocate,
    }
}
