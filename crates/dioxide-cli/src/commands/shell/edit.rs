//! The shell at a terminal: line editing and history.

use super::complete::Helper;
use super::{Flow, Runner};
use crate::failure::{Failure, Status};
use crate::interrupt;
use crate::render::printable;
use dioxide::Fs;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{CompletionType, Config, Editor};
use std::path::PathBuf;

/// Runs what is typed until the end of the input. What fails was told, and is not the shell's failure.
pub(super) fn run(runner: &mut Runner<'_>, fs: Fs) -> Result<Status, Failure> {
    let told = |error: ReadlineError| Failure::trouble("terminal", error);
    let config = Config::builder()
        .completion_type(CompletionType::List)
        .history_ignore_space(true)
        .build();
    let mut editor: Editor<Helper, DefaultHistory> = Editor::with_config(config).map_err(told)?;
    let helper = Helper {
        fs,
        cwd: runner.cwd(),
    };
    editor.set_helper(Some(helper));
    let history = history_file();
    if let Some(path) = &history {
        let _ = editor.load_history(path);
    }
    loop {
        let line = match editor.readline(&prompt(runner)) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(told(error)),
        };
        let _ = editor.add_history_entry(&line);
        // Ctrl-C that came too late for the last command is not for this one.
        interrupt::forget();
        match runner.line(line.as_bytes()) {
            Ok(Flow::End) => break,
            Ok(Flow::Next(_)) => {}
            Err(Failure::Interrupted) => {}
            Err(failure) => return Err(failure),
        }
        if let Some(helper) = editor.helper_mut() {
            helper.cwd = runner.cwd();
        }
    }
    if let Some(path) = &history {
        let _ = editor.save_history(path);
    }
    Ok(Status::Fine)
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
