//! `dioxide crash-test`: hands the arguments to the explorer, and its report to people.

use crate::args::CrashTestArgs;
use crate::failure::{Failure, Status, complain};
use crate::interrupt;
use crate::output::{Out, OutFile};
use crate::progress::Progress;
use crate::session::told;
use dioxide_crash::explore::{Check, Checks, Recover, Sample};
use dioxide_crash::fsck::E2fsck;
use dioxide_crash::kernel::Kernel;
use dioxide_crash::report::Report;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// One state in so many is recovered by e2fsck as well, and by the kernel.
const OTHERS_EVERY: u64 = 1000;

pub fn run(args: &CrashTestArgs, out: &mut Out) -> Result<Status, Failure> {
    // Before anything is mounted.
    interrupt::watch();
    let e2fsck = E2fsck::find().map_err(|what| complain(format!("not checked: {what}")));
    let kernel = Kernel::find();
    let kernel = kernel.map_err(|what| complain(format!("not recovered by the kernel: {what}")));
    let sample = |recover| Sample {
        recover,
        every: OTHERS_EVERY,
    };
    let e2fsck = e2fsck.as_ref().ok();
    let by_e2fsck = e2fsck.map(|e2fsck| sample(e2fsck as &dyn Recover));
    let by_kernel = kernel.as_ref().ok().map(|kernel| sample(kernel));
    let checks = Checks {
        consistent: e2fsck.map(|e2fsck| e2fsck as &dyn Check),
        others: by_e2fsck.into_iter().chain(by_kernel).collect(),
    };
    let (report, image) = match &args.replay {
        Some(replay) => replay.run(&args.target(), checks, args.fault, &interrupt::asked),
        None => explored(args, &checks).map(|mut report| {
            let image = report.first_bad.take();
            (report, image)
        }),
    }
    .map_err(trouble)?;
    let kept = match (&args.keep, image) {
        (Some(path), Some(image)) => {
            OutFile::create(path).and_then(|file| file.write(image.to_vec()))
        }
        _ => Ok(()),
    };
    // What was found is told all the same.
    let kept = told(kept)?;
    match args.json {
        true => out.json(&report)?,
        false => write!(out, "{report}")?,
    }
    if report.bad > 0 {
        return Ok(kept.max(Status::Negative));
    }
    interrupt::check()?;
    Ok(kept)
}

fn trouble(what: String) -> Failure {
    Failure::Told {
        about: None,
        what,
        status: Status::Trouble,
    }
}

fn explored(args: &CrashTestArgs, checks: &Checks<'_>) -> Result<Report, String> {
    let campaign = args.campaign();
    let bar = Mutex::new(Progress::of_long_steps("states"));
    let progress = |done: u64, total: u64, bad: u64| {
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        bar.set(done.min(total), total, format!("{bad} bad"));
    };
    let report = campaign.run(&args.target(), checks, &progress, &interrupt::asked);
    drop(bar);
    if interrupt::asked() {
        complain(format!(
            "interrupted: of {} states that were asked for, the report has what was checked",
            campaign.states
        ));
    }
    report
}
