//! The shell at a terminal: line editing and history.
//!
//! A thread of its own edits lines, because nothing ends its waiting for a key: not even a signal, after which it reads on. The shell
//! waits for the line, and for being told to end; then the thread stays behind without the image, and the terminal is put back to what
//! it was.

use super::complete::{Helper, Shared};
use super::{Flow, Runner};
use crate::failure::{Failure, Status};
use crate::interrupt;
use crate::render::printable;
use dioxide::Fs;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{CompletionType, Config, Editor};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How soon a signal is noticed.
const PATIENCE: Duration = Duration::from_millis(100);

/// Runs what is typed until the end of the input. What fails was told, and is not the shell's failure.
pub(super) fn run(runner: &mut Runner<'_>, fs: Fs) -> Result<Status, Failure> {
    let lines = Lines::begin(fs)?;
    loop {
        let ask = Ask {
            prompt: prompt(runner),
            cwd: runner.cwd(),
        };
        let line = match lines.next(ask)? {
            Ok(line) => line,
            Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => continue,
            Err(ReadlineError::Eof) => return Ok(Status::Fine),
            Err(error) => return Err(told(error)),
        };
        match runner.line(line.as_bytes()) {
            Ok(Flow::End(asked)) => return Ok(asked.unwrap_or(Status::Fine)),
            Ok(Flow::Next(_)) => {}
            // Ctrl-C ends the command only.
            Err(Failure::Interrupted) => {}
            Err(failure) => return Err(failure),
        }
    }
}

fn told(error: ReadlineError) -> Failure {
    Failure::trouble("terminal", error)
}

/// What a line is asked for with.
struct Ask {
    prompt: String,
    /// Where completion begins.
    cwd: Vec<u8>,
}

type Line = rustyline::Result<String>;

/// The thread that edits lines.
struct Lines {
    ask: Sender<Ask>,
    line: Receiver<Line>,
    /// What names are completed in, until nobody asks for lines.
    fs: Shared,
    /// The terminal while nobody edits; nothing where it cannot be told.
    mode: Option<Termios>,
}

impl Lines {
    fn begin(fs: Fs) -> Result<Lines, Failure> {
        let mode = tcgetattr(io::stdin()).ok();
        let fs = Shared::new(fs);
        let mut editor = editor(&fs).map_err(told)?;
        let (ask, asks) = channel();
        let (found, line) = channel();
        let edit = move || {
            // With this it waits for signals as well as for keys, whichever thread they come to: a window that changes its size.
            let _printer = editor.create_external_printer();
            let history = history_file();
            if let Some(path) = &history {
                let _ = editor.load_history(path);
            }
            while let Ok(Ask { prompt, cwd }) = asks.recv() {
                if let Some(helper) = editor.helper_mut() {
                    helper.cwd = cwd;
                }
                let line = editor.readline(&prompt);
                if let (Ok(line), Some(path)) = (&line, &history) {
                    let _ = editor.add_history_entry(line);
                    let _ = editor.append_history(path);
                }
                if found.send(line).is_err() {
                    break;
                }
            }
        };
        let spawned = std::thread::Builder::new().name("lines".into()).spawn(edit);
        spawned.map_err(|error| Failure::host("thread", &error))?;
        Ok(Lines {
            ask,
            line,
            fs,
            mode,
        })
    }

    /// The next line, or why there is none.
    ///
    /// # Errors
    /// Somebody told the shell to end.
    fn next(&self, ask: Ask) -> Result<Line, Failure> {
        interrupt::forget_unless_told_to_end()?;
        let gone = || Failure::plain("nobody edits lines any more");
        self.ask.send(ask).map_err(|_| gone())?;
        loop {
            let found = self.line.recv_timeout(PATIENCE);
            // Ctrl-C that came too late for the last command is not for the next one.
            if let Err(interrupted) = interrupt::forget_unless_told_to_end() {
                if found.is_err() {
                    self.restore();
                }
                return Err(interrupted);
            }
            match found {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            }
        }
    }

    /// Makes the terminal what it was before a line was asked for.
    fn restore(&self) {
        const PASTE_AS_TYPED: &str = "\x1b[?2004l";
        if let Some(mode) = &self.mode {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, mode);
            let _ = writeln!(io::stdout(), "{PASTE_AS_TYPED}");
        }
    }
}

impl Drop for Lines {
    /// An image with other users than the shell cannot be closed.
    fn drop(&mut self) {
        self.fs.take();
    }
}

fn editor(fs: &Shared) -> rustyline::Result<Editor<Helper, DefaultHistory>> {
    let config = Config::builder()
        .completion_type(CompletionType::List)
        .history_ignore_space(true)
        .build();
    let mut editor = Editor::with_config(config)?;
    let cwd = b"/".to_vec();
    let fs = fs.clone();
    editor.set_helper(Some(Helper { fs, cwd }));
    Ok(editor)
}

fn prompt(runner: &mut Runner<'_>) -> String {
    let Some(shell) = runner.session.shell() else {
        return "> ".into();
    };
    let image = shell
        .image
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let cwd = String::from_utf8_lossy(&shell.cwd);
    format!("{}:{}> ", printable(&image), printable(&cwd))
}

/// Where other programs keep such things, too.
fn history_file() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.filter(|path| path.is_absolute());
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    let directory = state.or_else(home)?.join("dioxide");
    std::fs::create_dir_all(&directory).ok()?;
    Some(directory.join("history"))
}
