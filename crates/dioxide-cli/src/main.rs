//! The `dioxide` command: a translation of words into calls of the library, and back. It holds no
//! file-system logic.
//!
//! | Module | Holds |
//! |---|---|
//! | `args` | the one definition of the command line: parsing, help, man pages, completions |
//! | `address` | `IMG:/path` |
//! | `commands` | one module per subcommand |
//! | `failure` | what went wrong, in words and as an exit status |
//! | `glob` | patterns of names |
//! | `helper` | the words that `mount` and `umount` use for their helpers |
//! | `images` | opened images |
//! | `interrupt` | Ctrl-C |
//! | `location` | files in images and on the host alike |
//! | `output` | standard output: streaming, closed pipes, terminals |
//! | `progress` | bars on standard error for what takes long |
//! | `render` | modes, times and names as text |
//! | `session` | what operands name, outside and in a shell |
//! | `streams` | standard streams that were closed from the beginning |
//! | `walk` | trees, file by file |

mod address;
mod args;
mod commands;
mod failure;
mod glob;
mod helper;
mod images;
mod interrupt;
mod location;
mod output;
mod progress;
mod render;
mod session;
mod streams;
mod walk;

use clap::{ArgMatches, FromArgMatches};
use failure::{Failure, Status};
use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words = match helper::translate(std::env::args_os()) {
        Ok(words) => words,
        Err(failure) => return failure.tell().into(),
    };
    let matches = match args::command().try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(error) => return refuse(&error),
    };
    failure::set_command(name(&matches));
    let cli = args::Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let mut out = output::Out::stdout();
    let mut session = session::Session::default();
    let status = match commands::run(&cli.command, &mut session, &mut out) {
        // What was found counts no less because nobody could be told.
        Ok(status) => match out.finish() {
            Ok(()) => status,
            Err(failure) => status.max(failure.tell()),
        },
        Err(failure) => failure.tell(),
    };
    status.max(session.end()).into()
}

/// The name of the subcommand.
fn name(matches: &ArgMatches) -> &str {
    matches.subcommand_name().unwrap_or_default()
}

/// Help is no error; bad usage of `check` has the exit status that `e2fsck` gives it.
fn refuse(error: &clap::Error) -> ExitCode {
    let open = match error.use_stderr() {
        true => Ok(()),
        false => streams::check_output(),
    };
    let printed = open
        .and_then(|()| error.print())
        .and_then(|()| io::stdout().flush());
    let is_check = std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == "check");
    let status = match (error.use_stderr(), printed) {
        (true, _) if is_check => Status::CheckUsage,
        (true, _) => Status::Trouble,
        (false, Ok(())) => Status::Fine,
        (false, Err(error)) => Failure::from(error).tell(),
    };
    status.into()
}
