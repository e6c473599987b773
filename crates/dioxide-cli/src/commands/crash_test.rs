//! `dioxide crash-test`: hands the arguments to the explorer, and its report to people.

use crate::args::CrashTestArgs;
use crate::failure::{Failure, Status, complain};
use crate::interrupt;
use crate::output::{Out, OutFile};
use crate::progress::Progress;
use dioxide_crash::explore::{Check, Checks, Recover, Sample};
use dioxide_crash::fsck::E2fsck;
use dioxide_crash::kernel::Kernel;
use dioxide_crash::replay::Replay;
use dioxide_crash::report::Report;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

/// One state in so many is recovered by e2fsck as well, and by the kernel.
const OTHERS_EVERY: u64 = 1000;

pub fn run(args: &CrashTestArgs, out: &mut Out) -> Result<Status, Failure> {
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
    let report = match &args.replay {
        Some(replay) => replayed(args, replay, checks)?,
        None => explored(args, &checks)?,
    };
    if let (Some(path), None, Some(image)) = (&args.keep, &args.replay, &report.first_bad) {
        OutFile::create(path)?.write(image.to_vec())?;
    }
    match args.json {
        true => out.json(&report)?,
        false => write!(out, "{report}")?,
    }
    if report.bad > 0 {
        return Ok(Status::Negative);
    }
    interrupt::check()?;
    Ok(Status::Fine)
}

fn trouble(what: String) -> Failure {
    Failure::Told {
        about: None,
        what,
        status: Status::Trouble,
    }
}

fn explored(args: &CrashTestArgs, checks: &Checks<'_>) -> Result<Report, Failure> {
    interrupt::watch();
    let campaign = args.campaign();
    let bar = Mutex::new(Progress::of_long_steps("states"));
    let progress = |done: u64, total: u64, bad: u64| {
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        bar.set(done.min(total), total, format!("{bad} bad"));
        match interrupt::asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let report = campaign.run(&args.target(), checks, &progress);
    drop(bar);
    if interrupt::asked() {
        complain(format!(
            "interrupted: of {} states that were asked for, the report has what was checked",
            campaign.states
        ));
    }
    report.map_err(trouble)
}

fn replayed(args: &CrashTestArgs, replay: &Replay, checks: Checks<'_>) -> Result<Report, Failure> {
    let ran = replay.run(&args.target(), checks, args.fault);
    let (report, image) = ran.map_err(trouble)?;
    if let (Some(path), Some(image)) = (&args.keep, image) {
        OutFile::create(path)?.write(image.to_vec())?;
    }
    Ok(report)
}
