//! `dioxide mount`: in this process, or in one in the background that tells when it serves.
//!
//! The process in the background is this program, started again: a fork would have to come before the first thread, and
//! needs `unsafe`. It says one line on its standard output when the mount serves; if that ends without one, its exit status
//! is that of the command.
//!
//! A server in a sandbox can neither unmount nor run a program that does, and one that is killed cannot do anything. For them another
//! process, this program too, waits outside until it is told, or the server has ended: [`Outside`].

use super::umount;
use crate::args::MountArgs;
use crate::failure::{Failure, Status, complain, without_number};
use crate::interrupt;
use crate::progress::waiting;
use dioxide_fuse::{Error, MountPoint, Options, Unmounter};
use rustix::stdio;
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Mounts.
pub fn run(args: &MountArgs) -> Result<Status, Failure> {
    let words = args.options.join(",");
    if words.split(',').any(|word| word == "remount") {
        return change(args, &words);
    }
    if args.fake {
        tell(args, &options(args)?.1);
        return Ok(Status::Fine);
    }
    match args.foreground || args.background {
        true => serve(args),
        false => start(args),
    }
}

/// `mount -o remount`: what mount(8) would do itself for a file system that has no helper. Only flags of the mount can be
/// changed; the server goes on. What becomes read-only is made durable.
fn change(args: &MountArgs, words: &str) -> Result<Status, Failure> {
    let (flags, warnings) = Options::remount(words);
    tell(args, &warnings);
    let mut mount = Command::new("mount");
    mount.args(["-i", "-o", &flags.join(",")]).arg(&args.dir);
    match mount.status() {
        Ok(status) if status.success() && flags.contains(&"ro") => {
            // The kernel has given its pages away. A directory's fsync makes all durable that the server has.
            let dir = std::fs::File::open(&args.dir);
            let synced = dir.and_then(|dir| dir.sync_all());
            synced.map_err(|error| Failure::trouble(args.dir.display(), error))?;
            Ok(Status::Fine)
        }
        Ok(status) if status.success() => Ok(Status::Fine),
        Ok(_) => Ok(Status::Trouble),
        Err(error) => Err(Failure::trouble("mount", error)),
    }
}

/// The library's errors say what they are about, but for those of the image.
pub fn failed(error: Error) -> Failure {
    Failure::plain(without_number(&error.to_string()))
}

fn failed_with(image: &Path) -> impl Fn(Error) -> Failure {
    move |error| match error {
        Error::Image(error) => Failure::engine(image.display(), b"", &error),
        error => failed(error),
    }
}

fn serve(args: &MountArgs) -> Result<Status, Failure> {
    if args.background {
        // Signals of the terminal are not for it. It fails for who leads a group, which nobody does whom we have started.
        let _ = rustix::process::setsid();
    }
    let (options, warnings) = options(args)?;
    if args.background || options.sandbox {
        close_inherited().map_err(background)?;
    }
    tell(args, &warnings);
    end_at_a_bug();
    // Before the mount, so that none that comes after it is missed.
    let signals =
        Signals::new(interrupt::signals()).map_err(|error| Failure::trouble("signals", error))?;
    let mut mounted =
        MountPoint::mount(&args.image, &args.dir, &options).map_err(failed_with(&args.image))?;
    tell(args, mounted.warnings());
    let outside = Outside::start(args, &options, mounted.dir());
    let (outside, _watching) = match options.sandbox || options.auto_unmount {
        true => (Some(outside.map_err(background)?), None),
        // Whoever is served well without it is served.
        false => (None, outside.ok()),
    };
    let leaving = args.background.then(prepare_to_leave).transpose();
    let leaving = leaving.map_err(background)?;
    if options.sandbox {
        mounted = mounted.confine().map_err(|error| {
            outside.as_ref().inspect(|outside| outside.detach());
            failed(error)
        })?;
    }
    unmount_at_a_signal(signals, mounted.unmounter(), outside)?;
    let unmounter = mounted.unmounter();
    let serving = mounted.start().map_err(failed_with(&args.image))?;
    if let Some(null) = leaving {
        leave(&null).map_err(|error| {
            unmounter.unmount();
            background(error)
        })?;
    }
    serving.wait().map_err(failed_with(&args.image))?;
    Ok(Status::Fine)
}

/// Old kernels keep what they cannot close.
#[allow(unsafe_code)]
fn close_inherited() -> io::Result<()> {
    // SAFETY: this process has read its arguments and written to its standard output at most. There is one thread, and nothing is open.
    match unsafe { dioxide_fuse::close_inherited() } {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        closed => closed,
    }
}

fn background(error: io::Error) -> Failure {
    Failure::trouble("background", error)
}

fn options(args: &MountArgs) -> Result<(Options, Vec<String>), Failure> {
    let words = args.options.join(",");
    let (mut options, warnings) = Options::parse(&words).map_err(failed)?;
    // The process is ours alone.
    options.image = options.image.may_map(true).on_wait(waiting);
    options.sandbox |= args.sandbox;
    if args.stats.is_some() {
        options.stats.clone_from(&args.stats);
    }
    Ok((options, warnings))
}

/// A process that unmounts when it is told, or, if that is wanted, what this one leaves behind; and ends when this one does. If this one
/// is killed and cannot end, it lets it.
struct Outside(Child);

impl Outside {
    fn start(args: &MountArgs, options: &Options, dir: &Path) -> io::Result<Outside> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["umount", "--when-told"]);
        if options.auto_unmount {
            command.arg("--or-dead");
        }
        command.arg("--").arg(dir).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if args.background {
            command.stderr(Stdio::null());
        }
        command.spawn().map(Outside)
    }

    /// Has it unmount what is served, and so have the kernel write what it holds.
    fn unmount(&self) {
        self.tell(umount::UNMOUNT);
    }

    /// Has it unmount what nobody serves.
    fn detach(&self) {
        self.tell(umount::DETACH);
    }

    /// Returns when it has done so.
    fn tell(&self, word: u8) {
        let told = self
            .0
            .stdin
            .as_ref()
            .map(|mut words| words.write_all(&[word]));
        if matches!(told, Some(Ok(()))) {
            // It says nothing, and ends.
            let end = self.0.stdout.as_ref();
            let _ = end.map(|end| rustix::io::read(end, &mut [0]));
        }
    }
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

fn unmount_at_a_signal(
    mut signals: Signals,
    unmounter: Unmounter,
    outside: Option<Outside>,
) -> Result<(), Failure> {
    let wait = move || {
        for _ in signals.forever() {
            match &outside {
                None => unmounter.unmount(),
                Some(outside) => {
                    outside.unmount();
                    unmounter.unmounted();
                }
            }
        }
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread
        .spawn(wait)
        .map(drop)
        .map_err(|error| Failure::trouble("signals", error))
}

/// What a process in a sandbox cannot do any more.
fn prepare_to_leave() -> io::Result<File> {
    std::env::set_current_dir("/")?;
    File::options().read(true).write(true).open("/dev/null")
}

/// Tells that the mount serves, and holds nothing any more that belongs to who started it.
fn leave(null: &File) -> io::Result<()> {
    io::stdout().write_all(b"serving\n")?;
    io::stdout().flush()?;
    stdio::dup2_stdin(null)?;
    stdio::dup2_stdout(null)?;
    stdio::dup2_stderr(null)?;
    Ok(())
}

fn start(args: &MountArgs) -> Result<Status, Failure> {
    let mut words: Vec<OsString> = vec!["mount".into(), "--background".into()];
    for options in &args.options {
        words.extend(["-o".into(), options.into()]);
    }
    if args.sandbox {
        words.push("--sandbox".into());
    }
    if let Some(stats) = &args.stats {
        words.extend(["--stats".into(), stats.into()]);
    }
    words.extend([
        "--".into(),
        args.image.clone().into(),
        args.dir.clone().into(),
    ]);
    let program = std::env::current_exe().map_err(background)?;
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(background)?;
    let mut said = [0];
    let told = child.stdout.take().map(|mut out| out.read(&mut said));
    match told {
        Some(Ok(1)) => Ok(Status::Fine),
        // It has told why.
        _ => {
            child.wait().map_err(background)?;
            Ok(Status::Trouble)
        }
    }
}
