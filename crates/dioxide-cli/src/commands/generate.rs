//! `dioxide gen`: man pages and completions, for packagers.

use crate::args::{Cli, GenArgs, Generated};
use crate::failure::{Failure, Status};
use clap::{CommandFactory, ValueEnum};
use clap_complete::Shell;
use std::io;

pub fn run(args: &GenArgs) -> Result<Status, Failure> {
    let made = std::fs::create_dir_all(&args.dir).and_then(|()| match args.what {
        Generated::Man => clap_mangen::generate_to(Cli::command(), &args.dir),
        Generated::Completions => completions(args),
    });
    made.map_err(|error| Failure::trouble(args.dir.display(), error))?;
    Ok(Status::Fine)
}

fn completions(args: &GenArgs) -> io::Result<()> {
    for shell in Shell::value_variants() {
        clap_complete::generate_to(*shell, &mut Cli::command(), "dioxide", &args.dir)?;
    }
    Ok(())
}
