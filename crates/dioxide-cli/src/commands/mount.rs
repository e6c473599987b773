//! `dioxide mount`: in this process, or in one in the background that tells when it serves.
//!
//! The process in the background is this program, started again: a fork would have to come before the first thread, and
//! needs `unsafe`. It says one line on its standard output when the mount serves; if that ends without one, its exit status
//! is that of the command.

use crate::args::MountArgs;
use crate::failure::{Failure, Status, complain};
use dioxide_fuse::{Error, MountPoint, Options, Unmounter};
use rustix::stdio;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};

/// Mounts.
pub fn run(args: &MountArgs) -> Result<Status, Failure> {
    match args.foreground || args.background {
        true => serve(args),
        false => start(args),
    }
}

/// The library's errors say what they are about.
pub fn failed(error: Error) -> Failure {
    Failure::Told {
        about: None,
        what: error.to_string(),
        status: Status::Trouble,
    }
}

fn serve(args: &MountArgs) -> Result<Status, Failure> {
    if args.background {
        // Signals of the terminal are not for it. It fails for who leads a group, which nobody does whom we have started.
        let _ = rustix::process::setsid();
    }
    let words = args.options.join(",");
    let (options, warnings) = Options::parse(&words).map_err(failed)?;
    tell(args, &warnings);
    end_at_a_bug();
    // Before the mount, so that none that comes after it is missed.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Failure::trouble("signals", error))?;
    let mounted = MountPoint::mount(&args.image, &args.dir, &options).map_err(failed)?;
    tell(args, mounted.warnings());
    unmount_at_a_signal(signals, mounted.unmounter())?;
    if args.background {
        leave().map_err(|error| Failure::trouble("background", error))?;
    }
    mounted.serve().map_err(failed)?;
    Ok(Status::Fine)
}

fn tell(args: &MountArgs, warnings: &[String]) {
    for warning in warnings {
        complain(format_args!("{}: warning: {warning}", args.image.display()));
    }
}

/// A thread that has met a bug would leave its request, and those of others that need what it holds, without an answer.
/// So the process ends, and the next mount recovers.
fn end_at_a_bug() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tell(info);
        std::process::abort();
    }));
}

fn unmount_at_a_signal(mut signals: Signals, unmounter: Unmounter) -> Result<(), Failure> {
    let wait = move || {
        for _ in signals.forever() {
            unmounter.unmount();
        }
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread
        .spawn(wait)
        .map(drop)
        .map_err(|error| Failure::trouble("signals", error))
}

/// Tells that the mount serves, and holds nothing any more that belongs to who started it.
fn leave() -> io::Result<()> {
    io::stdout().write_all(b"serving\n")?;
    io::stdout().flush()?;
    std::env::set_current_dir("/")?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    stdio::dup2_stdin(&null)?;
    stdio::dup2_stdout(&null)?;
    stdio::dup2_stderr(&null)?;
    Ok(())
}

fn start(args: &MountArgs) -> Result<Status, Failure> {
    let trouble = |error: io::Error| Failure::trouble("background", error);
    let mut words: Vec<OsString> = vec!["mount".into(), "--background".into()];
    for options in &args.options {
        words.extend(["-o".into(), options.into()]);
    }
    words.extend([
        "--".into(),
        args.image.clone().into(),
        args.dir.clone().into(),
    ]);
    let program = std::env::current_exe().map_err(trouble)?;
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(trouble)?;
    let mut said = [0];
    let told = child.stdout.take().map(|mut out| out.read(&mut said));
    match told {
        Some(Ok(1)) => Ok(Status::Fine),
        // It has told why.
        _ => {
            child.wait().map_err(trouble)?;
            Ok(Status::Trouble)
        }
    }
}
