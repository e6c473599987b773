//! `dioxide check`: hands images to the checker, and its findings to people and programs.

use crate::args::CheckArgs;
use crate::failure::{Failure, Status, complain};
use crate::images::warn_if_used;
use crate::interrupt;
use crate::output::Out;
use crate::progress::Progress;
use crate::render::{Text, count_words};
use dioxide::block::file::FileOptions;
use dioxide::check::{CheckOptions, Code, EXIT_OPERATIONAL, Report, Severity, Usage, check};
use dioxide::{Error, Fs, MountOptions, open_image_part};
use serde::Serialize;
use std::io::Write;
use std::path::Path;

#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    image: Text,
    clean: bool,
    exit_status: u8,
    #[serde(flatten)]
    report: Report,
}

/// An image of which there is no report.
#[derive(Serialize)]
struct Unchecked {
    #[serde(flatten)]
    image: Text,
    clean: bool,
    exit_status: u8,
    error: String,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Element {
    Told(Box<Told>),
    Unchecked(Unchecked),
}

pub fn run(args: &CheckArgs, out: &mut Out) -> Result<Status, Failure> {
    let mut bits = 0;
    let told = match args.list_codes {
        true => list_codes(args.json, out),
        false => check_all(args, out, &mut bits),
    };
    match told.and_then(|()| out.finish()) {
        // Who reads has gone: what was found is found.
        Ok(()) | Err(Failure::PipeClosed) => Ok(Status(bits)),
        Err(failure) => Err(failure.with_status(Status(bits | EXIT_OPERATIONAL))),
    }
}

/// Checks all images, and tells of them. `bits` are what the exit status is of, whatever else happens.
fn check_all(args: &CheckArgs, out: &mut Out, bits: &mut u8) -> Result<(), Failure> {
    let mut all = Vec::new();
    for (number, image) in (1..).zip(&args.images) {
        warn_if_used(image);
        match check_image(args, image) {
            Ok(report) => {
                *bits |= report.exit_status();
                let cancelled = report.cancelled;
                if args.json {
                    all.push(Element::Told(Box::new(told(image, report))));
                } else if let Err(failure) = print(args, image, &report, out) {
                    if number < args.images.len() {
                        *bits |= EXIT_OPERATIONAL;
                    }
                    return Err(failure);
                }
                if cancelled {
                    complain(format_args!(
                        "{}: ended before all was checked",
                        image.display()
                    ));
                    break;
                }
            }
            Err(error) => {
                *bits |= EXIT_OPERATIONAL;
                let failure = Failure::engine(image.display(), b"", &error);
                failure.tell();
                all.push(Element::Unchecked(Unchecked {
                    image: Text::path("image", image),
                    clean: false,
                    exit_status: EXIT_OPERATIONAL,
                    error: failure.words(),
                }));
            }
        }
    }
    match args.json {
        true => out.json(&all),
        false => Ok(()),
    }
}

fn check_image(args: &CheckArgs, image: &Path) -> Result<Report, Error> {
    let options = FileOptions {
        backend: args.backend,
        img_offset: args.img_offset,
        ..FileOptions::default()
    };
    let device = open_image_part(image, &options)?;
    let options = CheckOptions {
        superblock_at: args.sb,
        max_findings: args.max_findings,
        max_memory: args.max_memory,
        journal: args.journal.open(args.backend)?,
        cancel: interrupt::watched(),
    };
    let mut bar = Progress::of_steps();
    check(device, &options, &mut |progress| {
        bar.set(progress.done, progress.total, progress.pass.to_string());
    })
}

fn told(image: &Path, report: Report) -> Told {
    Told {
        image: Text::path("image", image),
        clean: report.is_clean(),
        exit_status: report.exit_status(),
        report,
    }
}

fn print(args: &CheckArgs, image: &Path, report: &Report, out: &mut Out) -> Result<(), Failure> {
    let mut pass = None;
    for finding in &report.findings {
        if pass != Some(finding.code.pass()) && !args.quiet {
            writeln!(out, "{}", finding.code.pass())?;
        }
        pass = Some(finding.code.pass());
        let note = match finding.code.severity() {
            Severity::Note => "note: ",
            Severity::Error => "",
        };
        out.name(format!("{note}{finding}").as_bytes())?;
        writeln!(out)?;
    }
    let kept = report.findings.len() as u64;
    let found = report.errors + report.notes;
    if found > kept {
        writeln!(out, "and {} more findings", found - kept)?;
    }
    if args.quiet {
        return Ok(());
    }
    writeln!(out, "{}: {}", image.display(), summary(report))?;
    tell_if_none(args, image, report);
    Ok(())
}

/// Who named the wrong file, or the wrong place in it, is told so in the words of other commands.
fn tell_if_none(args: &CheckArgs, image: &Path, report: &Report) {
    let is_it = |code| matches!(code, Code::SuperblockInvalid);
    if !report.findings.iter().any(|finding| is_it(finding.code)) {
        return;
    }
    let options = MountOptions::new().read_only(true);
    let options = options.img_offset(args.img_offset);
    let options = match args.sb {
        Some(block) => options.superblock_at(block),
        None => options,
    };
    if let Err(Error::Invalid(what)) = Fs::open(image, &options) {
        complain(format_args!("{}: {what}", image.display()));
    }
}

fn summary(report: &Report) -> String {
    let verdict = match (report.errors, report.incomplete) {
        (0, _) if report.cancelled => "no errors so far".to_owned(),
        (errors, _) if report.cancelled => format!("{} so far", count_words(errors, "error")),
        (0, false) => "clean".to_owned(),
        (0, true) => "the check could not be made to its end".to_owned(),
        (errors, _) => count_words(errors, "error"),
    };
    let Some(Usage {
        inodes,
        inodes_total,
        blocks,
        blocks_total,
        files,
        fragmented_files,
        ..
    }) = report.usage
    else {
        return verdict;
    };
    let share = match files {
        0 => 0.0,
        files => 100.0 * fragmented_files as f64 / files as f64,
    };
    format!(
        "{verdict}, {inodes}/{inodes_total} inodes ({share:.1}% of files fragmented), {blocks}/{blocks_total} blocks"
    )
}

/// A code, for programs.
#[derive(Serialize)]
struct ToldCode {
    code: &'static str,
    pass: &'static str,
    severity: &'static str,
    about: &'static str,
}

fn list_codes(json: bool, out: &mut Out) -> Result<(), Failure> {
    if json {
        let told = Code::ALL.iter().map(|code| ToldCode {
            code: code.id(),
            pass: code.pass().id(),
            severity: code.severity().id(),
            about: code.about(),
        });
        return out.json(&told.collect::<Vec<_>>());
    }
    for code in Code::ALL {
        let (pass, severity) = (code.pass().id(), code.severity().id());
        writeln!(
            out,
            "{:24} {pass:2} {severity:5} {}",
            code.id(),
            code.about()
        )?;
    }
    Ok(())
}
