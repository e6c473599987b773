//! `dioxide mknod`.

use super::change::begin;
use super::report::{Done, Named, Report, Telling};
use crate::address::Operand;
use crate::args::MknodArgs;
use crate::failure::{Failure, Status};
use crate::output::Out;
use crate::session::{Session, Target};
use dioxide::{SetAttributes, Special};

pub fn run(args: &MknodArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    let telling = Telling {
        verbose: args.verbose,
        json: args.json,
    };
    let mut report = Report::new(telling, out);
    let (paths, special) = match (args.fifo, args.socket) {
        (true, _) => (&args.operands[..], Special::Fifo),
        (_, true) => (&args.operands[..], Special::Socket),
        _ => typed(&args.operands)?,
    };
    begin(session, &args.open);
    let find = |session: &mut Session, operand: &_| Ok(vec![session.new_target(operand)?]);
    let status = session.for_each_of(paths, find, |target| {
        make(args, special, &target)?;
        report.tell(&Done {
            action: "made",
            words: "created ",
            file: Named::Image(&target),
            to: None,
            facts: &[],
        })
    })?;
    report.finish()?;
    Ok(status)
}

/// `PATH TYPE [MAJOR MINOR]`
fn typed(operands: &[Operand]) -> Result<(&[Operand], Special), Failure> {
    let words: Vec<_> = operands[1..]
        .iter()
        .map(|operand| operand.0.to_str().unwrap_or_default())
        .collect();
    let number = |word: &str| {
        let (digits, radix) = match word.strip_prefix('0') {
            None | Some("") => (word, 10),
            Some(octal) => match octal.strip_prefix(['x', 'X']) {
                Some(digits) => (digits, 16),
                None => (octal, 8),
            },
        };
        let parsed = u32::from_str_radix(digits, radix);
        parsed.map_err(|_| Failure::plain(format_args!("'{word}' is no number of a device")))
    };
    let special = match words[..] {
        ["p"] => Special::Fifo,
        ["s"] => Special::Socket,
        ["b", major, minor] => Special::BlockDevice(number(major)?, number(minor)?),
        ["c" | "u", major, minor] => Special::CharDevice(number(major)?, number(minor)?),
        _ => {
            let what = "which type? Write b, c or u with a major and a minor number, or p, or s, after the path";
            return Err(Failure::plain(what));
        }
    };
    Ok((&operands[..1], special))
}

fn make(args: &MknodArgs, special: Special, target: &Target) -> Result<(), Failure> {
    let told = |error| target.failure(&error);
    let new = args.new_files.with(0o666);
    target
        .fs
        .mknod(target.path(), special, &new)
        .map_err(told)?;
    let Some(change) = &args.mode else {
        return Ok(());
    };
    let set = SetAttributes::new().mode(change.apply(0o666, false));
    target.fs.set_attributes(target.path(), &set).map_err(told)
}
