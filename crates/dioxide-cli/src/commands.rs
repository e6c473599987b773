//! One module for each subcommand.

mod bench;
mod cat;
mod change;
mod check;
mod cp;
mod crash_test;
mod destination;
mod df;
mod directive;
mod du;
mod explain;
mod extents;
mod fallocate;
mod find;
mod generate;
mod info;
mod journal;
mod ln;
mod ls;
mod map;
mod mkdir;
mod mkfs;
mod mknod;
mod mount;
mod mv;
mod pack;
mod report;
mod resize;
mod rm;
mod shell;
mod stat;
mod stats;
mod sync;
mod touch;
mod tree;
mod trim;
mod truncate;
mod umount;
mod unpack;
mod write;
mod xattr;

use crate::args::Command;
use crate::failure::{Failure, Status};
use crate::output::Out;
use crate::session::Session;

/// Runs a subcommand, and closes what it changed.
pub fn run(command: &Command, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    match command {
        Command::Bench(args) => bench::run(args, out),
        Command::Cat(args) => cat::run(args, session, out),
        Command::Check(args) => check::run(args, out),
        Command::Chmod(args) => change::chmod(args, session, out),
        Command::Chown(args) => change::chown(args, session, out),
        Command::Cp(args) => cp::run(args, session, out),
        Command::CrashTest(args) => crash_test::run(args, out),
        Command::Df(args) => df::run(args, session, out),
        Command::Du(args) => du::run(args, session, out),
        Command::Explain(args) => explain::run(args, session, out),
        Command::Extents(args) => extents::run(args, session, out),
        Command::Fallocate(args) => fallocate::run(args, session, out),
        Command::Find(args) => find::run(args, session, out),
        Command::Gen(args) => generate::run(args),
        Command::Info(args) => info::run(args, out),
        Command::Journal(args) => journal::run(args, out),
        Command::Ln(args) => ln::run(args, session, out),
        Command::Ls(args) => ls::run(args, session, out),
        Command::Map(args) => map::run(args, out),
        Command::Mkdir(args) => mkdir::mkdir(args, session, out),
        Command::Mkfs(args) => mkfs::run(args, out),
        Command::Mknod(args) => mknod::run(args, session, out),
        Command::Mount(args) => mount::run(args),
        Command::Mv(args) => mv::run(args, session, out),
        Command::Pack(args) => pack::run(args, out),
        Command::Resize(args) => resize::run(args, out),
        Command::Rm(args) => rm::run(args, session, out),
        Command::Rmdir(args) => mkdir::rmdir(args, session, out),
        Command::Shell(args) => shell::run(args, out),
        Command::Stat(args) => stat::run(args, session, out),
        Command::Stats(args) => stats::run(args, out),
        Command::Sync(args) => sync::run(args, session, out),
        Command::Touch(args) => touch::run(args, session, out),
        Command::Tree(args) => tree::run(args, session, out),
        Command::Trim(args) => trim::run(args, out),
        Command::Truncate(args) => truncate::run(args, session, out),
        Command::Umount(args) => umount::run(args),
        Command::Unpack(args) => unpack::run(args, out),
        Command::Write(args) => write::run(args, session, out),
        Command::Xattr(args) => xattr::run(args, session, out),
    }
}

/// Commands that a shell does not have: they name images themselves, or need none.
pub const NOT_IN_SHELL: &[&str] = &[
    "bench",
    "check",
    "crash-test",
    "gen",
    "info",
    "journal",
    "map",
    "mkfs",
    "mount",
    "pack",
    "resize",
    "shell",
    "stats",
    "trim",
    "umount",
    "unpack",
];
