//! `dioxide bench`: hands the arguments to the load generator, and its report to files and people.

use crate::args::BenchArgs;
use crate::failure::{Failure, Status};
use crate::output::{Out, write_file};
use crate::progress::Progress;
use dioxide_bench::Report;
use std::io::Write;
use std::path::Path;

impl dioxide_bench::Progress for Progress {
    fn step(&mut self, done: u64, total: u64, what: &str) {
        self.set(done, total, what.to_owned());
    }
}

pub fn run(args: &BenchArgs, out: &mut Out) -> Result<Status, Failure> {
    let report = {
        let mut progress = Progress::of_steps();
        dioxide_bench::run(&args.options(), &mut progress).map_err(|error| Failure::Told {
            about: None,
            what: error.to_string(),
            status: Status::Trouble,
        })?
    };
    write_files(args, &report)?;
    if args.json.as_deref().is_some_and(is_stdout) {
        out.write_all(report.to_json_lines().as_bytes())?;
    } else {
        out.write_all(report.to_table().as_bytes())?;
    }
    Ok(if report.found_damage() {
        Status::Negative
    } else {
        Status::Fine
    })
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn write_files(args: &BenchArgs, report: &Report) -> Result<(), Failure> {
    if let Some(path) = args.json.as_deref().filter(|path| !is_stdout(path)) {
        write_file(path, report.to_json_lines())?;
    }
    match &args.html {
        Some(path) => write_file(path, report.to_html()),
        None => Ok(()),
    }
}
