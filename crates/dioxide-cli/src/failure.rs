//! What went wrong, in words on standard error and as an exit status.

use crate::address::Address;
use crate::interrupt;
use crate::render::printable;
use dioxide::{Error, block};
use std::fmt::Display;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The exit status; of several, the highest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Status(pub u8);

#[expect(
    non_upper_case_globals,
    reason = "these are all but those of a check and of a shell's exit"
)]
impl Status {
    /// All is well.
    pub const Fine: Status = Status(0);
    /// A file is missing from the image, or a check says no.
    pub const Negative: Status = Status(1);
    /// Bad usage, or the image or a file cannot be read.
    pub const Trouble: Status = Status(2);
    /// Bad usage of a check: its statuses are `e2fsck`'s.
    pub const CheckUsage: Status = Status(16);
    /// Somebody pressed Ctrl-C; as a shell counts a process that a SIGINT ended.
    pub const Interrupted: Status = Status(130);
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> ExitCode {
        ExitCode::from(status.0)
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
    /// Somebody pressed Ctrl-C.
    Interrupted,
}

/// A failure was told.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Which command complains.
static COMMAND: Mutex<String> = Mutex::new(String::new());

/// Complaints name this command from now on.
pub fn set_command(name: &str) {
    name.clone_into(&mut COMMAND.lock().unwrap_or_else(PoisonError::into_inner));
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

    /// Something is not there.
    pub fn absence(about: impl Display, what: impl Display) -> Failure {
        Failure::Told {
            about: Some(about.to_string()),
            what: what.to_string(),
            status: Status::Negative,
        }
    }

    /// An error of the library while it dealt with `about`, whose path inside the image is `path`.
    pub fn engine(about: impl Display, path: &[u8], error: &Error) -> Failure {
        let status = match error {
            Error::NotFound(_) | Error::NoAttribute(_) => Status::Negative,
            _ => Status::Trouble,
        };
        let about = match error {
            // The journal's device, say.
            Error::Device(block::Error::Open { path, .. } | block::Error::Busy { path, .. }) => {
                path.display().to_string()
            }
            _ => about.to_string(),
        };
        Failure::Told {
            about: Some(about),
            what: words(path, error),
            status,
        }
    }

    /// Nothing in particular is wrong, but this.
    pub fn plain(what: impl Display) -> Failure {
        Failure::Told {
            about: None,
            what: what.to_string(),
            status: Status::Trouble,
        }
    }

    /// Trouble with something on the host: errors as the C library words them.
    pub fn host(about: impl Display, error: &io::Error) -> Failure {
        let words = io_words(error);
        match error.kind() {
            // Not the image.
            io::ErrorKind::StorageFull => Failure::trouble(
                about,
                format_args!("{words}: the host's file system is full"),
            ),
            _ => Failure::trouble(about, words),
        }
    }

    /// Tells it on standard error, and says what it means for the exit status.
    pub fn tell(&self) -> Status {
        TOLD.store(true, Ordering::Relaxed);
        match self {
            Failure::Told {
                about: Some(about),
                what,
                status,
            } => {
                // A name has no line ends that are meant.
                complain(format_args!("{}: {what}", printable(about)));
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
            Failure::Interrupted => Status::Interrupted,
        }
    }

    /// The same, with another meaning for the exit status if it is to be told.
    pub fn with_status(mut self, meant: Status) -> Failure {
        if let Failure::Told { status, .. } = &mut self {
            *status = meant;
        }
        self
    }

    /// What happened, without what it is about.
    pub fn words(self) -> String {
        match self {
            Failure::Told { what, .. } => what,
            Failure::PipeClosed | Failure::Interrupted => String::new(),
        }
    }

    /// Whether something is not there.
    pub fn is_absence(&self) -> bool {
        matches!(
            self,
            Failure::Told {
                status: Status::Negative,
                ..
            }
        )
    }

    /// Whether it ends the command, and not one operand only.
    pub fn ends_all(&self) -> bool {
        matches!(self, Failure::PipeClosed | Failure::Interrupted)
    }
}

/// Whether any failure was told.
pub fn any_told() -> bool {
    TOLD.load(Ordering::Relaxed)
}

/// `No such file or directory`, without the number that Rust adds.
pub fn io_words(error: &io::Error) -> String {
    without_number(&error.to_string())
}

/// Words of an error without the number that Rust adds to the system's.
pub fn without_number(said: &str) -> String {
    const BEFORE: &str = " (os error ";
    let Some((start, rest)) = said.split_once(BEFORE) else {
        return said.to_owned();
    };
    let end = rest.split_once(')').map_or("", |(_, end)| end);
    format!("{start}{end}")
}

/// Writes a line to standard error, or several; names in it cannot drive a terminal. Nothing can be done if that fails.
pub fn complain(what: impl Display) {
    use io::Write;
    let command = COMMAND.lock().unwrap_or_else(PoisonError::into_inner);
    let colon = if command.is_empty() { "" } else { ": " };
    let what = what.to_string();
    let lines: Vec<_> = what.split('\n').map(printable).collect();
    let what = lines.join("\n");
    let _ = writeln!(io::stderr(), "dioxide: {command}{colon}{what}");
}

/// The error without the file's name, which the line already begins with; in the words of the C library
/// where it has any.
fn words(path: &[u8], error: &Error) -> String {
    match error {
        Error::Device(block::Error::Open { what, source, path }) => match source.kind() {
            io::ErrorKind::NotFound => match Address::parse(path.as_os_str()) {
                // A file in it was named where the image was to be.
                Ok(Address { image, .. }) if image.is_file() => {
                    format!(
                        "{}; name the image alone: {}",
                        io_words(source),
                        image.display()
                    )
                }
                _ => io_words(source),
            },
            io::ErrorKind::InvalidInput => what.clone(),
            _ => format!("{what}: {}", io_words(source)),
        },
        Error::Device(block::Error::Busy { by, .. }) => format!("is in use: {by}"),
        // What was asked of an image as a whole says what it is about.
        Error::Invalid(what) if path.is_empty() => what.clone(),
        Error::NoSpace(short) => {
            let words = io_words(&io::Error::from_raw_os_error(error.errno()));
            format!("{words}: {short}")
        }
        _ => {
            let said = without_number(&error.to_string());
            let path = format!("/{}/", String::from_utf8_lossy(path).trim_matches('/'));
            // It names the file, a directory on the way, or the name that it stumbled over.
            let named = said.match_indices(": ").find_map(|(at, _)| {
                let (named, what) = (said[..at].trim_matches('/'), &said[at + 2..]);
                path.contains(&format!("/{named}/"))
                    .then(|| capitalised(what))
            });
            // What it names is in the image.
            printable(&named.unwrap_or(said)).into_owned()
        }
    }
}

fn capitalised(what: &str) -> String {
    let mut chars = what.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(chars).collect()
    })
}

impl From<io::Error> for Failure {
    /// Only standard output is written with `?` on an `io::Error`.
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::PipeClosed,
            // Nobody took it after that.
            io::ErrorKind::Other if interrupt::asked() => Failure::Interrupted,
            _ => Failure::trouble("standard output", io_words(&error)),
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        io::Error::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_an_error_is_left_out_wherever_it_is() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(io_words(&error), "No such file or directory");
        assert_eq!(
            without_number(&format!("a: {error} at b")),
            "a: No such file or directory at b"
        );
    }

    #[test]
    fn full_file_system_of_the_host_is_no_full_image() {
        let error = io::Error::from_raw_os_error(28);
        let told = Failure::host("a", &error).words();
        assert_eq!(
            told,
            "No space left on device: the host's file system is full"
        );
    }

    #[test]
    fn error_that_names_its_path_is_not_named_twice() {
        let error = Error::NotFound("/a/b".into());
        assert_eq!(words(b"/a/b", &error), "No such file or directory");
        assert_eq!(words(b"/c/a", &Error::Exists("a".into())), "File exists");
        assert_eq!(words(b"/a", &error), "/a/b: no such file or directory");
    }
}
