//! Completion: commands, options, paths in the image and on the host.

use super::words::{Last, last, quoted};
use crate::args::Cli;
use crate::session::join;
use clap::CommandFactory;
use dioxide::{DirEntry, FileType, Fs};
use rustyline::Context;
use rustyline::completion::{Completer, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The image that is looked into, which can be taken back.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<Option<Fs>>>);

impl Shared {
    pub(super) fn new(fs: Fs) -> Shared {
        Shared(Arc::new(Mutex::new(Some(fs))))
    }

    /// From now on there is nothing to look into. Waits for who does.
    pub(super) fn take(&self) {
        self.lock().take();
    }

    fn lock(&self) -> MutexGuard<'_, Option<Fs>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_dir(&self, path: &[u8]) -> Vec<DirEntry> {
        let fs = self.lock();
        let entries = fs.as_ref().and_then(|fs| fs.read_dir(path).ok());
        entries.unwrap_or_default()
    }
}

/// What the line editor asks.
pub(super) struct Helper {
    pub fs: Shared,
    pub cwd: Vec<u8>,
}

impl rustyline::Helper for Helper {}
impl Highlighter for Helper {}
impl Validator for Helper {}

impl Hinter for Helper {
    type Hint = String;
}

impl Completer for Helper {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let line = &line[..pos];
        let Some(last) = last(line.as_bytes()) else {
            return Ok((pos, Vec::new()));
        };
        let mut found = self.candidates(line, &last);
        found.sort_by(|a, b| a.display.cmp(&b.display));
        Ok((last.start, found))
    }
}

impl Helper {
    fn candidates(&self, line: &str, last: &Last) -> Vec<Pair> {
        let text = String::from_utf8_lossy(&last.text);
        if last.first {
            let names = super::commands().into_iter().map(|(name, _)| name);
            return names
                .filter(|name| name.starts_with(&*text))
                .map(|name| whole(&name))
                .collect();
        }
        let command = line.split_whitespace().next().unwrap_or_default();
        match text.strip_prefix("host:") {
            _ if text.starts_with('-') => options(command, &text),
            Some(path) => on_host(path, "host:"),
            None if command == "lcd" => on_host(&text, ""),
            None => self.in_image(&last.text, command == "cd"),
        }
    }

    fn in_image(&self, text: &[u8], directories_only: bool) -> Vec<Pair> {
        let (directory, prefix) = split(text);
        let place = match directory.starts_with(b"/") {
            true => directory.to_vec(),
            false => join(&self.cwd, directory),
        };
        let entries = self.fs.read_dir(&place);
        let dots = |name: &[u8]| name == b"." || name == b"..";
        let fitting = entries
            .into_iter()
            .filter(|entry| entry.name.starts_with(prefix) && !dots(&entry.name));
        fitting
            .filter(|entry| !directories_only || entry.file_type == FileType::Directory)
            // What cannot be typed is not offered.
            .filter_map(|entry| Some((String::from_utf8(entry.name).ok()?, entry.file_type)))
            .filter(|(name, _)| !name.chars().any(char::is_control))
            .map(|(name, kind)| {
                // It would be an option, an expression or a file of the host.
                let here = directory.is_empty() && is_more_than_a_name(&name);
                let directory = String::from_utf8_lossy(if here { b"./" } else { directory });
                path(&directory, &name, kind == FileType::Directory)
            })
            .collect()
    }
}

fn is_more_than_a_name(word: &str) -> bool {
    word.starts_with(['-', '(', ')', '!']) || word.starts_with("host:")
}

/// The part up to the last slash, and the rest.
fn split(text: &[u8]) -> (&[u8], &[u8]) {
    let slash = text.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
    text.split_at(slash)
}

fn path(directory: &str, name: &str, is_directory: bool) -> Pair {
    let end = if is_directory { "/" } else { " " };
    Pair {
        display: format!("{name}{}", end.trim_end()),
        replacement: format!("{}{end}", quoted(&format!("{directory}{name}"))),
    }
}

fn whole(word: &str) -> Pair {
    Pair {
        display: word.to_owned(),
        replacement: format!("{word} "),
    }
}

fn options(command: &str, prefix: &str) -> Vec<Pair> {
    let cli = Cli::command();
    let Some(command) = cli.find_subcommand(command) else {
        return Vec::new();
    };
    let names = command
        .get_arguments()
        .filter_map(|argument| argument.get_long());
    names
        .map(|name| format!("--{name}"))
        .filter(|name| name.starts_with(prefix))
        .map(|name| whole(&name))
        .collect()
}

fn on_host(text: &str, before: &str) -> Vec<Pair> {
    let (directory, prefix) = text.split_at(text.rfind('/').map_or(0, |at| at + 1));
    let place = if directory.is_empty() { "." } else { directory };
    let Ok(entries) = std::fs::read_dir(place) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path().is_dir())))
        .filter(|(name, _)| name.starts_with(prefix) && !name.chars().any(char::is_control))
        .map(|(name, is_directory)| path(&format!("{before}{directory}"), &name, is_directory))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dioxide::MountOptions;
    use rustyline::history::DefaultHistory;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    fn complete(helper: &Helper, line: &str) -> (usize, Vec<String>) {
        let history = DefaultHistory::new();
        let found = helper.complete(line, line.len(), &Context::new(&history));
        let (start, pairs) = found.unwrap();
        (
            start,
            pairs.into_iter().map(|pair| pair.replacement).collect(),
        )
    }

    #[test]
    fn completion_offers_commands_options_and_paths_of_the_image() {
        let tree = tempfile::tempdir().unwrap();
        for directory in ["dir one", "dir two/sub"] {
            std::fs::create_dir_all(tree.path().join(directory)).unwrap();
        }
        std::fs::write(tree.path().join("dir two/file"), "").unwrap();
        let odd = [
            "-l", "host:x", "!", "$x", "a'b", "a\\b", "\"", "*", "[a]", "#", "a;b", "\n", "ä",
        ];
        std::fs::create_dir(tree.path().join("odd")).unwrap();
        for name in odd {
            std::fs::write(tree.path().join("odd").join(name), "").unwrap();
        }
        let unreadable = OsStr::from_bytes(b"\xff");
        std::fs::write(tree.path().join("odd").join(unreadable), "").unwrap();
        let image = dioxide_testkit::Image::builder()
            .source(tree.path())
            .build();
        let fs = Fs::open(image.path(), &MountOptions::new().read_only(true)).unwrap();
        let mut helper = Helper {
            fs: Shared::new(fs),
            cwd: b"/dir two".to_vec(),
        };
        let complete = |line: &str| complete(&helper, line);
        assert_eq!(complete("trunc"), (0, vec!["truncate ".into()]));
        assert_eq!(complete("lc"), (0, vec!["lcd ".into()]));
        assert_eq!(complete("ls --rec"), (3, vec!["--recursive ".into()]));
        assert_eq!(complete("ls "), (3, vec!["file ".into(), "sub/".into()]));
        assert_eq!(complete("cd "), (3, vec!["sub/".into()]));
        assert_eq!(complete("ls /dir\\ o"), (3, vec!["/dir\\ one/".into()]));
        assert_eq!(complete("ls '/dir tw"), (3, vec!["/dir\\ two/".into()]));
        assert_eq!(complete("ls /none/"), (3, vec![]));
        let host = format!("cp x host:{}/dir", tree.path().display());
        assert_eq!(complete(&host).1.len(), 2);

        // What is offered names a file and does nothing else; what cannot be typed is not offered.
        helper.cwd = b"/odd".to_vec();
        let offered = super::tests::complete(&helper, "find ").1;
        assert_eq!(offered.len(), odd.len() - 1);
        for word in offered {
            let words = super::super::words::split(word.as_bytes()).unwrap();
            let [name] = &words[..] else {
                panic!("{word} is {words:?}")
            };
            let name = name.to_str().unwrap();
            assert!(!is_more_than_a_name(name), "{word}");
            let name = name.strip_prefix("./").unwrap_or(name);
            assert!(odd.contains(&name), "{word}");
        }
    }
}
