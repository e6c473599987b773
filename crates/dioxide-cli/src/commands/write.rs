//! `dioxide write`: standard input, or a file on the host, into a file of the image.

use super::change::begin;
use super::report::{Report, Telling};
use crate::args::WriteArgs;
use crate::failure::{Failure, Status};
use crate::interrupt;
use crate::location::write_all_at;
use crate::output::Out;
use crate::progress::Progress;
use crate::session::{Session, Target};
use crate::streams;
use dioxide::{Buf, Error};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// One write: large, so that few transactions are needed for what grows.
const CHUNK_BYTES: usize = 1 << 20;

pub fn run(args: &WriteArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    begin(session, &args.open);
    let mut report = Report::new(Telling::json(args.json), out);
    let target = match args.create {
        true => session.new_or_only(&args.path)?,
        false => session.target(&args.path)?,
    };
    let input = Input::of(args.input.as_deref(), session)?;
    let written = write(args, &target, input)?;
    let facts = [
        ("offset", written.start),
        ("bytes", written.end - written.start),
    ];
    report.tell_facts("written", &target, &facts)?;
    report.finish()?;
    Ok(Status::Fine)
}

/// Where bytes come from. Ctrl-C and SIGTERM end the waiting for them.
pub(super) struct Input {
    file: File,
    name: String,
    /// How many there are, if that is known.
    bytes: u64,
    /// There are no more: a terminal would be asked again.
    ended: bool,
}

impl Input {
    /// A file on the host that is named, or standard input.
    pub(super) fn of(named: Option<&Path>, session: &mut Session) -> Result<Input, Failure> {
        match (named, session.shell()) {
            (None, Some(shell)) if shell.reads_stdin => {
                let what = "standard input is the script; name a file instead";
                Err(Failure::plain(what))
            }
            (None, _) => Input::standard(),
            // In a shell other files are on the host only with this.
            (Some(path), Some(_)) => {
                let name = path.as_os_str().as_bytes();
                let name = name.strip_prefix(b"host:").unwrap_or(name);
                Input::of_file(Path::new(OsStr::from_bytes(name)))
            }
            (Some(path), None) => Input::of_file(path),
        }
    }

    pub(super) fn of_file(path: &Path) -> Result<Input, Failure> {
        let is_fifo = |found: Metadata| found.file_type().is_fifo();
        let flags = match fs::metadata(path).is_ok_and(is_fifo) {
            // Not for its writer, either: it is waited for as all that is read.
            true => OFlags::NONBLOCK,
            false => OFlags::empty(),
        };
        let mut options = File::options();
        let options = options.read(true).custom_flags(flags.bits() as i32);
        Input::new(path.display().to_string(), options.open(path))
    }

    pub(super) fn standard() -> Result<Input, Failure> {
        let stdin = streams::check_input().and_then(|()| io::stdin().as_fd().try_clone_to_owned());
        Input::new("standard input".to_owned(), stdin.map(File::from))
    }

    fn new(name: String, opened: io::Result<File>) -> Result<Input, Failure> {
        let told = |error: io::Error| Failure::host(&name, &error);
        let file = opened.map_err(told)?;
        let metadata = file.metadata().map_err(told)?;
        let bytes = if metadata.is_file() {
            metadata.len()
        } else {
            0
        };
        Ok(Input {
            file,
            name,
            bytes,
            ended: false,
        })
    }

    /// Fills the buffer as far as there is anything.
    pub(super) fn fill(&mut self, buf: &mut [u8]) -> Result<usize, Failure> {
        let mut filled = 0;
        while filled < buf.len() && !self.ended {
            self.wait()?;
            match self.file.read(&mut buf[filled..]) {
                Ok(0) => self.ended = true,
                Ok(count) => filled += count,
                Err(error) if is_early(&error) => {}
                Err(error) => return Err(Failure::host(&self.name, &error)),
            }
        }
        Ok(filled)
    }

    /// As errors have it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The lines, as they come.
    pub(super) fn lines(self) -> impl Iterator<Item = Result<Vec<u8>, Failure>> {
        let name = self.name.clone();
        let lines = BufReader::new(self).split(b'\n');
        lines.map(move |line| {
            line.map_err(|error| match interrupt::check() {
                Err(interrupted) => interrupted,
                Ok(()) => Failure::host(&name, &error),
            })
        })
    }

    /// Waits until there is something to read, and looks for Ctrl-C meanwhile: it does not end a read.
    fn wait(&self) -> Result<(), Failure> {
        loop {
            interrupt::check()?;
            let mut fds = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut fds, Some(&interrupt::PATIENCE)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                // What cannot be waited for can be read.
                Ok(_) | Err(_) => return Ok(()),
            }
        }
    }
}

impl Read for Input {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            // Not as what is tried again.
            self.wait().map_err(|_| io::Error::other("interrupted"))?;
            match self.file.read(buf) {
                Err(error) if is_early(&error) => {}
                read => return read,
            }
        }
    }
}

/// Whether there may be more later: another process may have read what there was.
fn is_early(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
    )
}

/// Which bytes of the file are new.
fn write(args: &WriteArgs, target: &Target, mut input: Input) -> Result<Range<u64>, Failure> {
    let new = match args.mode {
        Some(permissions) => args.new_files.exactly(permissions),
        None => args.new_files.with(0o666),
    };
    let options = Target::writing().append(args.append);
    let options = options.direct(args.atomic);
    let options = options.create(args.create).new_file(&new);
    let file = match options.open(&target.fs, target.path()) {
        Err(Error::NotFound(_)) if !args.create => {
            let what = "No such file or directory; --create makes it";
            return Err(Failure::absence(target, what));
        }
        opened => opened.map_err(|error| target.failure(&error))?,
    };
    let told = |error| target.failure(&error);
    let mut progress = Progress::of_bytes(input.bytes);
    let mut buf = Buf::zeroed(CHUNK_BYTES);
    let start = if args.append { file.len() } else { args.offset };
    let mut offset = start;
    loop {
        let count = input.fill(&mut buf)?;
        if count == 0 {
            break;
        }
        let part = &buf[..count];
        if args.atomic && input.fill(&mut [0])? > 0 {
            let what = format!("an atomic write is at most {CHUNK_BYTES} bytes");
            return Err(Failure::plain(what));
        }
        match args.atomic {
            true => file.write_at_atomic(part, offset).map(drop),
            false => write_all_at(&file, part, offset),
        }
        .map_err(told)?;
        offset += count as u64;
        progress.advance(count as u64);
    }
    if args.truncate {
        file.set_len(offset).map_err(told)?;
    }
    file.sync_data().map_err(told)?;
    Ok(start..offset)
}
