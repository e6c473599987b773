//! Standard output: buffered in large pieces, quiet when its reader leaves, and safe to show names
//! that came from a disk.
//!
//! Rejected: [`std::io::Stdout`]. It looks for line ends in everything that it passes on.

use crate::failure::Failure;
use crate::interrupt;
use crate::render::printable;
use crate::streams;
use dioxide::block;
use dioxide::block::file::{Replacing, close};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Standard output.
pub struct Out {
    file: BufWriter<Descriptor>,
    terminal: bool,
}

/// That of standard output itself, and no copy: a mount closes what else is open, and whoever closes a copy is told what
/// [`Out::finish`] is to learn.
pub struct Descriptor;

impl Write for Descriptor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        streams::check_output()?;
        let bytes = match interrupt::is_watched() && is_pipe() {
            true => {
                wait_for_reader()?;
                &bytes[..bytes.len().min(PIPE_BUF)]
            }
            false => bytes,
        };
        Ok(rustix::io::write(io::stdout(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a pipe takes at once where it takes anything.
const PIPE_BUF: usize = 4096;

fn is_pipe() -> bool {
    let found = rustix::fs::fstat(io::stdout());
    found.is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_fifo())
}

/// Waits for whoever reads, and not for long if somebody asked for an end.
fn wait_for_reader() -> io::Result<()> {
    let stdout = io::stdout();
    loop {
        let mut fds = [PollFd::new(&stdout, PollFlags::OUT)];
        match poll(&mut fds, Some(&interrupt::PATIENCE)) {
            // Not as what is tried again.
            Ok(0) if interrupt::asked() => return Err(io::Error::other("interrupted")),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return Ok(()),
        }
    }
}

impl Out {
    /// Takes over standard output.
    pub fn stdout() -> Out {
        Out {
            file: BufWriter::with_capacity(1 << 16, Descriptor),
            terminal: io::stdout().is_terminal(),
        }
    }

    /// Whether a person is looking.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Writes a name from a disk: as it is, but without control characters on a terminal.
    pub fn name(&mut self, name: &[u8]) -> io::Result<()> {
        if !self.terminal {
            return self.write_all(name);
        }
        let text = String::from_utf8_lossy(name);
        self.write_all(printable(&text).as_bytes())
    }

    /// Writes a value as JSON, with a line end.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        serde_json::to_writer_pretty(&mut *self, value)?;
        Ok(self.write_all(b"\n")?)
    }

    /// Writes a file; `-` is standard output.
    pub fn file(&mut self, path: &Path, text: &str) -> Result<(), Failure> {
        if path.as_os_str() == "-" {
            return Ok(self.write_all(text.as_bytes())?);
        }
        OutFile::create(path)?.write(text)
    }

    /// Hands over what is still buffered, and learns what closing would: it is not told when the process ends.
    pub fn finish(&mut self) -> Result<(), Failure> {
        self.file.flush()?;
        let same = rustix::io::dup(io::stdout()).map_err(io::Error::from)?;
        Ok(close(same)?)
    }
}

/// Refuses pictures on standard output, for which `-` stands, where something else goes there.
pub fn check_pictures(json: bool, pictures: [&Option<PathBuf>; 2]) -> Result<(), Failure> {
    let there = pictures.into_iter().flatten();
    let there = there.filter(|path| path.as_os_str() == "-").count();
    match there + usize::from(json) {
        0 | 1 => Ok(()),
        _ => {
            let what = "standard output takes one of --json, --svg - and --html -";
            Err(Failure::plain(what))
        }
    }
}

/// A file that was asked for. One of that name, or where a symlink of that name leads, is overwritten, unless it is an image
/// that is in use, or a block device; until there is something to write it stays as it is.
pub struct OutFile {
    held: Replacing,
    file: File,
}

impl OutFile {
    pub fn create(path: &Path) -> Result<OutFile, Failure> {
        let failed = |error: block::Error| Failure::engine(path.display(), b"", &error.into());
        // A pipe that /dev/stdout leads to has no other name.
        let place = fs::canonicalize(path).unwrap_or_else(|_| path.into());
        if fs::metadata(&place).is_ok_and(|found| found.file_type().is_block_device()) {
            let what = "is a block device, and not written over";
            return Err(Failure::trouble(path.display(), what));
        }
        let held = Replacing::begin(&place).map_err(failed)?;
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(false).open(place);
        let file = file.map_err(|error| Failure::host(path.display(), &error))?;
        Ok(OutFile { held, file })
    }

    pub fn write(mut self, bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
        let path = self.held.path().to_owned();
        let failed = |error: block::Error| Failure::engine(path.display(), b"", &error.into());
        self.held.check().map_err(failed)?;
        let written = self.file.metadata().and_then(|found| {
            // Others have no length.
            if found.is_file() {
                self.file.set_len(0)?;
            }
            self.file.write_all(bytes.as_ref())
        });
        let closed = written.and_then(|()| close(self.file));
        closed.map_err(|error| Failure::host(path.display(), &error))
    }
}

/// An array of JSON whose elements are written as they come.
#[derive(Default)]
pub struct JsonArray {
    begun: bool,
}

impl JsonArray {
    /// Writes one element.
    pub fn push(&mut self, value: &impl Serialize, out: &mut Out) -> Result<(), Failure> {
        out.write_all(if self.begun { b",\n" } else { b"[\n" })?;
        self.begun = true;
        Ok(serde_json::to_writer(&mut *out, value)?)
    }

    /// Ends the array.
    pub fn finish(&mut self, out: &mut Out) -> Result<(), Failure> {
        Ok(out.write_all(if self.begun { b"\n]\n" } else { b"[]\n" })?)
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
