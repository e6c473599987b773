//! One module for each subcommand.

mod bench;
mod cat;
mod crash_test;
mod explain;
mod extents;
mod generate;
mod info;
mod ls;
mod stat;

use crate::args::Command;
use crate::failure::{Failure, Status};
use crate::output::Out;

/// Runs a subcommand.
pub fn run(command: &Command, out: &mut Out) -> Result<Status, Failure> {
    match command {
        Command::Info(args) => info::run(args, out),
        Command::Ls(args) => ls::run(args, out),
        Command::Stat(args) => stat::run(args, out),
        Command::Cat(args) => cat::run(args, out),
        Command::Extents(args) => extents::run(args, out),
        Command::Explain(args) => explain::run(args, out),
        Command::Bench(args) => bench::run(args, out),
        Command::CrashTest(args) => crash_test::run(args, out),
        Command::Gen(args) => generate::run(args),
    }
}
