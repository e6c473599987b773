//! `dioxide bench`: hands the arguments to the load generator, and its report to files and people.

use crate::args::BenchArgs;
use crate::failure::{Failure, Status, without_number};
use crate::output::{Out, OutFile};
use crate::progress::Progress;
use std::io::Write;
use std::path::Path;

impl dioxide_bench::Progress for Progress {
    fn step(&mut self, done: u64, total: u64, what: &str) {
        self.set(done, total, what.to_owned());
    }
}

pub fn run(args: &BenchArgs, out: &mut Out) -> Result<Status, Failure> {
    // A run takes minutes: what cannot be written is better known before.
    let json = args.json.as_deref().map(Target::open).transpose()?;
    let html = args.html.as_deref().map(Target::open).transpose()?;
    let report = {
        let mut progress = Progress::of_steps();
        dioxide_bench::run(&args.options(), &mut progress).map_err(|error| in_words(args, error))?
    };
    let targets = [&json, &html];
    if !targets
        .iter()
        .any(|target| matches!(target, Some(Target::Stdout)))
    {
        out.write_all(report.to_table().as_bytes())?;
    }
    if let Some(json) = json {
        json.write(&report.to_json_lines(), out)?;
    }
    if let Some(html) = html {
        html.write(&report.to_html(), out)?;
    }
    Ok(if report.found_damage() {
        Status::Negative
    } else {
        Status::Fine
    })
}

fn in_words(args: &BenchArgs, error: dioxide_bench::Error) -> Failure {
    match (error, &args.options().image) {
        // What was asked of the image as a whole, which it does not name.
        (dioxide_bench::Error::Engine(error @ dioxide::Error::Invalid(_)), Some(image)) => {
            Failure::engine(image.display(), b"", &error)
        }
        (error, _) => Failure::plain(without_number(&error.to_string())),
    }
}

/// Where a form of the report goes.
enum Target {
    Stdout,
    File(OutFile),
}

impl Target {
    fn open(path: &Path) -> Result<Target, Failure> {
        match path.as_os_str() == "-" {
            true => Ok(Target::Stdout),
            false => Ok(Target::File(OutFile::create(path)?)),
        }
    }

    fn write(self, text: &str, out: &mut Out) -> Result<(), Failure> {
        match self {
            Target::Stdout => Ok(out.write_all(text.as_bytes())?),
            Target::File(file) => file.write(text),
        }
    }
}
