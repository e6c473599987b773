//! `dioxide shell`: commands for one image, which is opened once; from a terminal or a script.
//!
//! It has no variables, pipes or jobs: whoever needs those has a shell, and the image's commands in it.

mod complete;
mod edit;
mod words;

use super::NOT_IN_SHELL;
use super::write::Input;
use crate::address::Operand;
use crate::args::{self, Cli, ShellArgs};
use crate::failure::{Failure, Status, set_command};
use crate::images::{Images, Purpose};
use crate::interrupt;
use crate::output::Out;
use crate::session::{Session, Shell, Target};
use clap::{CommandFactory, FromArgMatches};
use dioxide::{FileType, Fs};
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// What only a shell has.
const BUILTINS: [(&str, &str); 6] = [
    (
        "cd",
        "Changes the current directory: cd [DIR]; - is the one before",
    ),
    (
        "exit",
        "Ends the shell, as the end of the input does: exit [STATUS]",
    ),
    ("help", "Lists the commands"),
    (
        "lcd",
        "Changes the current directory on the host: lcd [DIR]",
    ),
    ("pwd", "Prints the current directory"),
    ("quit", "Ends the shell: quit [STATUS]"),
];

pub fn run(args: &ShellArgs, out: &mut Out) -> Result<Status, Failure> {
    interrupt::watch();
    let purpose = match args.read_only {
        true => Purpose::Look,
        false => Purpose::Change,
    };
    let mut images = Images::with(&args.open, purpose);
    let fs = images.fs(&args.image)?;
    // By its name from here, `lcd` would lose it.
    let image = std::path::absolute(&args.image);
    let place = Shell {
        image: image.map_err(|error| Failure::host(args.image.display(), &error))?,
        cwd: b"/".to_vec(),
        reads_stdin: args.command.is_empty() && args.script.is_none() && !io::stdin().is_terminal(),
    };
    let mut runner = Runner {
        session: Session::of_shell(images, place),
        before: None,
        out,
        keep_going: args.keep_going,
        worst: Status::Fine,
    };
    let ended = runner.all(args, fs);
    set_command("shell");
    let closed = runner.session.end();
    Ok(ended?.max(closed))
}

struct Runner<'a> {
    session: Session,
    /// The current directory before the last `cd`.
    before: Option<Vec<u8>>,
    out: &'a mut Out,
    keep_going: bool,
    worst: Status,
}

/// What comes after a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next(Status),
    /// With the status that was asked for.
    End(Option<Status>),
}

impl Runner<'_> {
    fn all(&mut self, args: &ShellArgs, fs: Fs) -> Result<Status, Failure> {
        if !args.command.is_empty() {
            let lines = args.command.iter().flat_map(|text| text.lines());
            return self.script(lines.map(|line| Ok(line.as_bytes().to_vec())));
        }
        match &args.script {
            Some(path) => self.script(Input::of_file(path)?.lines()),
            None if io::stdin().is_terminal() => edit::run(self, fs),
            None => self.script(Input::standard()?.lines()),
        }
    }

    /// Runs lines up to the first that fails.
    fn script(
        &mut self,
        lines: impl Iterator<Item = Result<Vec<u8>, Failure>>,
    ) -> Result<Status, Failure> {
        for line in lines {
            match self.line(&line?)? {
                Flow::End(asked) => return Ok(asked.unwrap_or(self.worst)),
                Flow::Next(status) => {
                    self.worst = self.worst.max(status);
                    if status > Status::Fine && !self.keep_going {
                        break;
                    }
                }
            }
        }
        Ok(self.worst)
    }

    /// Runs one line. What fails is told. That nobody reads what a command prints ends it at the most, and not what comes after it.
    fn line(&mut self, line: &[u8]) -> Result<Flow, Failure> {
        set_command("shell");
        let result = words::split(line)
            .map_err(Failure::plain)
            .and_then(|words| self.words(&words));
        let shown = self.out.finish();
        let flow = match result {
            Ok(flow) => flow,
            Err(Failure::PipeClosed) => Flow::Next(Status::Fine),
            Err(failure) if failure.ends_all() => return Err(failure),
            Err(failure) => Flow::Next(failure.tell()),
        };
        match shown {
            Ok(()) | Err(Failure::PipeClosed) => Ok(flow),
            Err(failure) => Err(failure),
        }
    }

    fn words(&mut self, words: &[OsString]) -> Result<Flow, Failure> {
        let Some((name, operands)) = words.split_first() else {
            return Ok(Flow::Next(Status::Fine));
        };
        let fine = |()| Flow::Next(Status::Fine);
        match (name.as_bytes(), operands) {
            (b"exit" | b"quit", []) => Ok(Flow::End(None)),
            (b"exit" | b"quit", [status]) => {
                exit_status(status).map(|asked| Flow::End(Some(asked)))
            }
            (b"pwd", []) => self.pwd().map(fine),
            (b"cd", []) => self.cd(&"/".into()).map(fine),
            (b"cd", [directory]) if directory == "-" => self.cd_back().map(fine),
            (b"cd", [directory]) => self.cd(directory).map(fine),
            (b"lcd", []) => lcd(&std::env::var_os("HOME").unwrap_or_default()).map(fine),
            (b"lcd", [directory]) => lcd(directory).map(fine),
            (b"help", []) => self.help().map(fine),
            (name, _)
                if BUILTINS
                    .iter()
                    .any(|(builtin, _)| builtin.as_bytes() == name && name != b"help") =>
            {
                Err(Failure::plain("too many words; 'help' lists the commands"))
            }
            (name, _)
                if NOT_IN_SHELL
                    .iter()
                    .any(|outside| outside.as_bytes() == name) =>
            {
                set_command(&String::from_utf8_lossy(name));
                Err(Failure::plain("is not for a shell; run it outside"))
            }
            _ => self.command(words).map(Flow::Next),
        }
    }

    /// Runs a command of dioxide.
    fn command(&mut self, words: &[OsString]) -> Result<Status, Failure> {
        let all = std::iter::once(OsString::from("dioxide")).chain(words.iter().cloned());
        let parsed = args::command().try_get_matches_from(all);
        let parsed = parsed.and_then(|matches| {
            let name = crate::name(&matches);
            set_command(name);
            Ok((
                NOT_IN_SHELL.contains(&name),
                Cli::from_arg_matches(&matches)?,
            ))
        });
        let (outside, cli) = match parsed {
            Ok(parsed) => parsed,
            Err(error) => {
                let _ = error.print();
                return Ok(match error.use_stderr() {
                    true => Status::Trouble,
                    false => Status::Fine,
                });
            }
        };
        if outside {
            return Err(Failure::plain("is not for a shell; run it outside"));
        }
        super::run(&cli.command, &mut self.session, self.out)
    }

    fn pwd(&mut self) -> Result<(), Failure> {
        let cwd = self.cwd();
        self.out.name(&cwd)?;
        Ok(writeln!(self.out)?)
    }

    fn cwd(&mut self) -> Vec<u8> {
        self.session
            .shell()
            .map_or_else(Vec::new, |shell| shell.cwd.clone())
    }

    /// As `cd -` of other shells, which print where they are then.
    fn cd_back(&mut self) -> Result<(), Failure> {
        let before = self.before.clone();
        let before = before.ok_or_else(|| Failure::plain("there was no directory before"))?;
        let operand = Operand(OsString::from_vec(before));
        let target = self.session.exact_target(&operand)?;
        self.change_directory(target)?;
        self.pwd()
    }

    fn cd(&mut self, directory: &OsString) -> Result<(), Failure> {
        let target = self.session.target(&Operand(directory.clone()))?;
        self.change_directory(target)
    }

    fn change_directory(&mut self, target: Target) -> Result<(), Failure> {
        let cwd = resolved(target.path());
        let target = Target {
            address: crate::address::Address {
                path: cwd.clone(),
                ..target.address
            },
            ..target
        };
        if target.metadata()?.file_type != FileType::Directory {
            return Err(Failure::trouble(&target, "Not a directory"));
        }
        if let Some(shell) = self.session.shell() {
            self.before = Some(std::mem::replace(&mut shell.cwd, cwd));
        }
        Ok(())
    }

    fn help(&mut self) -> Result<(), Failure> {
        for (name, about) in commands() {
            writeln!(self.out, "  {name:<12} {about}")?;
        }
        Ok(writeln!(
            self.out,
            "COMMAND --help tells more. host:PATH is a file on the host."
        )?)
    }
}

fn exit_status(word: &OsString) -> Result<Status, Failure> {
    let status = word.to_str().and_then(|word| word.parse().ok());
    let what = || format!("'{}' is no exit status: 0 to 255", word.display());
    status.map(Status).ok_or_else(|| Failure::plain(what()))
}

/// All commands of a shell, by name, with what they do.
fn commands() -> Vec<(String, String)> {
    let cli = Cli::command();
    let own = BUILTINS
        .iter()
        .map(|(name, about)| (name.to_string(), about.to_string()));
    let of_cli = cli
        .get_subcommands()
        .filter(|sub| !NOT_IN_SHELL.contains(&sub.get_name()))
        .map(|sub| {
            let about = sub.get_about().map(ToString::to_string);
            (sub.get_name().to_owned(), about.unwrap_or_default())
        });
    let mut all: Vec<_> = own.chain(of_cli).collect();
    all.sort();
    all
}

/// A path without `.`, `..` and needless slashes, as shells count: by names, whatever symlinks say.
fn resolved(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|&b| b == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    [b"/", &names.join(&b'/')[..]].concat()
}

fn lcd(directory: &OsString) -> Result<(), Failure> {
    let changed = std::env::set_current_dir(directory);
    changed.map_err(|error| Failure::host(directory.display(), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_directory_is_resolved_by_names() {
        for (path, cwd) in [
            ("/", "/"),
            ("/a/../b/./c//", "/b/c"),
            ("/..", "/"),
            ("/a/b/../..", "/"),
        ] {
            assert_eq!(resolved(path.as_bytes()), cwd.as_bytes());
        }
    }
}
