//! What went wrong, in words on standard error and as an exit status.

use dioxide::{Error, block};
use std::fmt::Display;
use std::io;
use std::process::ExitCode;

/// The exit status; of several, the highest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// All is well.
    Fine = 0,
    /// A file is missing from the image, or a check says no.
    Negative = 1,
    /// Bad usage, or the image or a file cannot be read.
    Trouble = 2,
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> ExitCode {
        ExitCode::from(status as u8)
    }
}

/// Why something ended early.
#[derive(Debug)]
pub enum Failure {
    /// To be told.
    Told {
        /// What it is about: an image, a file in it, or nothing in particular.
        about: Option<String>,
        /// What happened.
        what: String,
        /// What it means for the exit status.
        status: Status,
    },
    /// Whoever read our output has gone, which is their business.
    PipeClosed,
}

impl Failure {
    /// Trouble with something.
    pub fn trouble(about: impl Display, what: impl Display) -> Failure {
        Failure::Told {
            about: Some(about.to_string()),
            what: what.to_string(),
            status: Status::Trouble,
        }
    }

    /// An error of the library while it dealt with `about`, whose path inside the image is `path`.
    pub fn engine(about: impl Display, path: &[u8], error: &Error) -> Failure {
        let status = match error {
            Error::NotFound(_) | Error::NoAttribute(_) => Status::Negative,
            _ => Status::Trouble,
        };
        Failure::Told {
            about: Some(about.to_string()),
            what: words(path, error),
            status,
        }
    }

    /// Tells it on standard error, and says what it means for the exit status.
    pub fn tell(&self) -> Status {
        match self {
            Failure::Told {
                about: Some(about),
                what,
                status,
            } => {
                complain(format_args!("{about}: {what}"));
                *status
            }
            Failure::Told {
                about: None,
                what,
                status,
            } => {
                complain(what);
                *status
            }
            Failure::PipeClosed => Status::Fine,
        }
    }
}

/// Writes a line to standard error. Nothing can be done if that fails.
pub fn complain(what: impl Display) {
    use io::Write;
    let _ = writeln!(io::stderr(), "dioxide: {what}");
}

/// The error without the file's name, which the line already begins with.
fn words(path: &[u8], error: &Error) -> String {
    match error {
        Error::Device(block::Error::Open { what, source, .. }) => {
            format!("cannot {what}: {source}")
        }
        Error::Device(block::Error::Busy { by, .. }) => format!("is in use: {by}"),
        _ => {
            let said = error.to_string();
            let prefix = format!("{}: ", String::from_utf8_lossy(path));
            said.strip_prefix(&prefix)
                .map(str::to_owned)
                .unwrap_or(said)
        }
    }
}

impl From<io::Error> for Failure {
    /// Only standard output is written with `?` on an `io::Error`.
    fn from(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::PipeClosed;
        }
        Failure::trouble("standard output", error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        io::Error::from(error).into()
    }
}

/// Runs over all operands: what fails is told, and the others still have their turn.
pub fn for_each<'a, T>(
    operands: &'a [T],
    mut run: impl FnMut(&'a T) -> Result<(), Failure>,
) -> Result<Status, Failure> {
    let mut worst = Status::Fine;
    for operand in operands {
        match run(operand) {
            Ok(()) => {}
            Err(Failure::PipeClosed) => return Err(Failure::PipeClosed),
            Err(told) => worst = worst.max(told.tell()),
        }
    }
    Ok(worst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_that_names_its_path_is_not_named_twice() {
        let error = Error::NotFound("/a/b".into());
        assert_eq!(words(b"/a/b", &error), "no such file or directory");
        assert_eq!(words(b"/a", &error), "/a/b: no such file or directory");
    }

    #[test]
    fn operands_after_a_failed_one_still_run_and_the_worst_status_counts() {
        let mut ran = Vec::new();
        let status = for_each(&[1, 2, 3], |operand| {
            ran.push(*operand);
            match operand {
                1 => Err(Failure::trouble("x", "y")),
                2 => Err(Failure::engine("x", b"/", &Error::NotFound("/".into()))),
                _ => Ok(()),
            }
        });
        assert_eq!((ran, status.unwrap()), (vec![1, 2, 3], Status::Trouble));
    }

    #[test]
    fn operands_after_a_closed_pipe_do_not_run() {
        let mut ran = 0;
        let result = for_each(&[1, 2], |_| {
            ran += 1;
            Err(Failure::PipeClosed)
        });
        assert!(matches!(result, Err(Failure::PipeClosed)));
        assert_eq!(ran, 1);
    }
}
