//! The `dioxide` command: a translation of words into calls of the library, and back. It holds no
//! file-system logic.
//!
//! | Module | Holds |
//! |---|---|
//! | `args` | the one definition of the command line: parsing, help, man pages, completions |
//! | `address` | `IMG:/path` |
//! | `commands` | one module per subcommand |
//! | `failure` | what went wrong, in words and as an exit status |
//! | `images` | opened images |
//! | `output` | standard output: streaming, closed pipes, terminals |
//! | `progress` | bars on standard error for what takes long |
//! | `render` | modes, times and names as text |

mod address;
mod args;
mod commands;
mod failure;
mod images;
mod output;
mod progress;
mod render;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    let mut out = output::Out::stdout();
    let result = commands::run(&cli.command, &mut out).and_then(|status| {
        out.finish()?;
        Ok(status)
    });
    match result {
        Ok(status) => status.into(),
        Err(failure) => failure.tell().into(),
    }
}
