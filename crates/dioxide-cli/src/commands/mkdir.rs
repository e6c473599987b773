//! `dioxide mkdir` and `dioxide rmdir`.

use super::change::begin;
use super::report::{Done, Named, Report, Telling};
use crate::args::{MkdirArgs, RmdirArgs};
use crate::failure::{Failure, Status};
use crate::output::Out;
use crate::session::{Session, Target};
use dioxide::{Error, FileType, SetAttributes};

pub fn mkdir(args: &MkdirArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    begin(session, &args.open);
    let telling = Telling {
        verbose: args.verbose,
        json: args.json,
    };
    let mut report = Report::new(telling, out);
    let find = |session: &mut Session, operand: &_| Ok(vec![session.new_target(operand)?]);
    let status = session.for_each_of(&args.paths, find, |target| {
        if args.parents {
            make_parents(args, &target, &mut report)?;
            if is_directory(&target)? {
                return Ok(());
            }
        }
        make(args, &target, &mut report)
    })?;
    report.finish()?;
    Ok(status)
}

fn make(args: &MkdirArgs, target: &Target, report: &mut Report<'_>) -> Result<(), Failure> {
    let Some(change) = &args.mode else {
        return make_one(args, target, 0o777, report);
    };
    make_one(args, target, 0o700, report)?;
    // Set-group-ID comes from the directory that it is in.
    let before = 0o777 | target.metadata()?.permissions & 0o7000;
    let set = SetAttributes::new().mode(change.apply(before, true));
    let done = target.fs.set_attributes(target.path(), &set);
    done.map_err(|error| target.failure(&error))
}

fn make_one(
    args: &MkdirArgs,
    target: &Target,
    permissions: u16,
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let new = args.new_files.with(permissions);
    let made = target.fs.create_dir(target.path(), &new);
    made.map_err(|error| target.failure(&error))?;
    report.tell(&Done {
        action: "made",
        words: "created directory ",
        file: Named::Image(target),
        to: None,
        facts: &[],
    })
}

/// What is missing on the way, from the first on. The user can go through what is made, whatever the umask says.
fn make_parents(args: &MkdirArgs, target: &Target, report: &mut Report<'_>) -> Result<(), Failure> {
    let mut missing = Vec::new();
    let mut next = target.parent();
    while !next.name().is_empty() && !is_directory(&next)? {
        missing.push(next.clone());
        next = next.parent();
    }
    for directory in missing.iter().rev() {
        // `.` and `..` are there when what they are in is.
        if is_directory(directory)? {
            continue;
        }
        make_one(args, directory, 0o777, report)?;
        let permissions = directory.metadata()?.permissions;
        if permissions & 0o300 != 0o300 {
            let set = SetAttributes::new().mode(permissions | 0o300);
            let done = directory.fs.set_attributes(directory.path(), &set);
            done.map_err(|error| directory.failure(&error))?;
        }
    }
    Ok(())
}

fn is_directory(target: &Target) -> Result<bool, Failure> {
    match target.fs.metadata(target.path()) {
        Ok(metadata) => Ok(metadata.file_type == FileType::Directory),
        Err(Error::NotFound(_)) => Ok(false),
        Err(error) => Err(target.failure(&error)),
    }
}

pub fn rmdir(args: &RmdirArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    begin(session, &args.open);
    let telling = Telling {
        verbose: args.verbose,
        json: args.json,
    };
    let mut report = Report::new(telling, out);
    let status = session.for_each(&args.paths, |target| {
        let mut next = target;
        loop {
            match next.fs.remove_dir(next.path()) {
                Err(Error::NotEmpty(_)) if args.ignore_fail_on_non_empty => return Ok(()),
                done => done.map_err(|error| next.failure(&error))?,
            }
            report.tell(&Done {
                action: "removed",
                words: "removed directory ",
                file: Named::Image(&next),
                to: None,
                facts: &[],
            })?;
            next = next.parent();
            if !args.parents || next.name().is_empty() {
                return Ok(());
            }
        }
    })?;
    report.finish()?;
    Ok(status)
}
