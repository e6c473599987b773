//! What operands name: files inside images, or on the host.
//!
//! Outside a shell `IMG:/path` lies in an image, and anything else is a path on the host. In
//! a shell every word is a path in the shell's image, from its current directory; `host:PATH` is on the host.
//! Patterns are expanded here, so that no command knows of them.
//!
//! Invariant: each image is opened once in a session, and [`Session::end`] closes it.

use crate::address::{Address, Operand};
use crate::args::ImageArgs;
use crate::failure::{Failure, Status};
use crate::glob;
use crate::images::{Images, Purpose};
use crate::render::printable;
use dioxide::{Error, File, Fs, Metadata, OpenOptions};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The images of one command, or of a shell.
#[derive(Default)]
pub struct Session {
    images: Option<Images>,
    shell: Option<Shell>,
}

/// Where a shell is.
#[derive(Clone)]
pub struct Shell {
    pub image: PathBuf,
    /// The current directory: absolute, without `.`, `..` or a slash at the end but for the root's.
    pub cwd: Vec<u8>,
}

/// A file inside an opened image.
#[derive(Clone)]
pub struct Target {
    pub fs: Fs,
    pub address: Address,
    /// How the user calls it: what messages and listings show.
    pub shown: Vec<u8>,
}

/// What a word names.
pub enum Place {
    Image {
        address: Address,
        /// Bytes of the word that stand before the path, as in `disk.img:`.
        shown: Vec<u8>,
        /// So many bytes of the path were not typed.
        unsaid: usize,
    },
    Host(PathBuf),
}

impl Session {
    /// A session of a shell whose images are open.
    pub fn of_shell(images: Images, shell: Shell) -> Session {
        Session {
            images: Some(images),
            shell: Some(shell),
        }
    }

    /// Where the shell is, if it is one.
    pub fn shell(&mut self) -> Option<&mut Shell> {
        self.shell.as_mut()
    }

    /// Begins a command. A shell's image is open already, however it was.
    pub fn begin(&mut self, open: &ImageArgs, purpose: Purpose) {
        if self.shell.is_none() {
            self.images = Some(Images::with(open, purpose));
        }
    }

    /// Closes what was changed; what fails is told.
    pub fn end(&mut self) -> Status {
        self.images.take().map_or(Status::Fine, Images::close)
    }

    /// The file system in `image`; a session that has not begun has none.
    pub fn fs(&mut self, image: &Path) -> Result<Fs, Failure> {
        match &mut self.images {
            Some(images) => images.fs(image),
            None => Err(Failure::plain("no image is open")),
        }
    }

    /// What a word names.
    pub fn place(&self, operand: &Operand) -> Result<Place, Failure> {
        let word = operand.0.as_bytes();
        let Some(shell) = &self.shell else {
            return outside(&operand.0);
        };
        if let Some(path) = word.strip_prefix(b"host:") {
            return Ok(Place::Host(OsStr::from_bytes(path).into()));
        }
        let unsaid = match word {
            [b'/', ..] => Vec::new(),
            _ if shell.cwd == b"/" => b"/".to_vec(),
            _ => [&shell.cwd[..], b"/"].concat(),
        };
        Ok(Place::Image {
            address: Address {
                image: shell.image.clone(),
                path: [&unsaid[..], word].concat(),
            },
            shown: Vec::new(),
            unsaid: unsaid.len(),
        })
    }

    /// The files that an operand names: one, or all that fit its pattern.
    pub fn targets(&mut self, operand: &Operand) -> Result<Vec<Target>, Failure> {
        match self.place(operand)? {
            Place::Image {
                address,
                shown,
                unsaid,
            } => self.expand(&address, &shown, unsaid),
            Place::Host(_) if self.shell.is_some() => Err(Failure::trouble(
                operand,
                "is on the host; here a path inside the image is needed",
            )),
            Place::Host(_) => Err(Failure::trouble(
                operand,
                format_args!(
                    "no ':/' in it; write IMG:/path, such as {operand}:/ for the root directory"
                ),
            )),
        }
    }

    fn expand(
        &mut self,
        address: &Address,
        shown: &[u8],
        unsaid: usize,
    ) -> Result<Vec<Target>, Failure> {
        let fs = self.fs(&address.image)?;
        let target = |path: Vec<u8>| Target {
            shown: [shown, path.get(unsaid..).unwrap_or(&path)].concat(),
            address: Address {
                image: address.image.clone(),
                path,
            },
            fs: fs.clone(),
        };
        let literal = target(address.path.clone());
        if !glob::is_pattern(&address.path) {
            return Ok(vec![literal]);
        }
        let found = glob::expand(&fs, &address.path).map_err(|error| literal.failure(&error))?;
        if found.is_empty() {
            let text = String::from_utf8_lossy(&address.path).into_owned();
            return Err(literal.failure(&Error::NotFound(text)));
        }
        Ok(found.into_iter().map(target).collect())
    }

    /// The one file that an operand names.
    pub fn target(&mut self, operand: &Operand) -> Result<Target, Failure> {
        let mut targets = self.targets(operand)?;
        match (targets.pop(), targets.len()) {
            (Some(only), 0) => Ok(only),
            _ => Err(Failure::trouble(
                operand,
                "several files fit; one is needed",
            )),
        }
    }

    /// Runs over the files that operands name: what fails is told, and the others still have their turn.
    pub fn for_each(
        &mut self,
        operands: &[Operand],
        mut run: impl FnMut(Target) -> Result<(), Failure>,
    ) -> Result<Status, Failure> {
        let mut worst = Status::Fine;
        for operand in operands {
            let status = self.targets(operand).and_then(|targets| {
                let mut worst = Status::Fine;
                for target in targets {
                    crate::interrupt::check()?;
                    worst = worst.max(told(run(target))?);
                }
                Ok(worst)
            });
            worst = worst.max(match status {
                Ok(status) => status,
                Err(failure) => told(Err(failure))?,
            });
        }
        Ok(worst)
    }

    /// The operands, or the shell's current directory if there is none.
    pub fn or_here(&self, operands: &[Operand]) -> Result<Vec<Operand>, Failure> {
        match (operands, &self.shell) {
            ([], None) => Err(Failure::plain("which file? Write IMG:/path")),
            ([], Some(_)) => Ok(vec![Operand(".".into())]),
            _ => Ok(operands.to_vec()),
        }
    }
}

/// Tells a failure, unless it ends the whole command.
pub fn told(result: Result<(), Failure>) -> Result<Status, Failure> {
    match result {
        Ok(()) => Ok(Status::Fine),
        Err(failure) if failure.ends_all() => Err(failure),
        Err(failure) => Ok(failure.tell()),
    }
}

fn outside(word: &OsStr) -> Result<Place, Failure> {
    let Ok(address) = Address::parse(word) else {
        return Ok(Place::Host(word.into()));
    };
    let image = word.len() - address.path.len();
    Ok(Place::Image {
        shown: word.as_bytes()[..image].to_vec(),
        address,
        unsaid: 0,
    })
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.0.to_string_lossy()))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&String::from_utf8_lossy(&self.shown)))
    }
}

impl Target {
    /// The absolute path inside the image.
    pub fn path(&self) -> &[u8] {
        &self.address.path
    }

    /// The last name of the path; empty for the root.
    pub fn name(&self) -> &[u8] {
        let path = self.path();
        let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
        let start = path[..end]
            .iter()
            .rposition(|&b| b == b'/')
            .map_or(0, |at| at + 1);
        &path[start..end]
    }

    /// The host's idea of the name.
    pub fn os_name(&self) -> OsString {
        OsString::from_vec(self.name().to_vec())
    }

    /// What the library's error means for this file.
    pub fn failure(&self, error: &Error) -> Failure {
        Failure::engine(self, self.path(), error)
    }

    /// A file in this directory.
    pub fn child(&self, name: &[u8]) -> Target {
        Target {
            fs: self.fs.clone(),
            address: Address {
                image: self.address.image.clone(),
                path: join(self.path(), name),
            },
            shown: join(&self.shown, name),
        }
    }

    /// `lstat`.
    pub fn symlink_metadata(&self) -> Result<Metadata, Failure> {
        let found = self.fs.symlink_metadata(self.path());
        found.map_err(|error| self.failure(&error))
    }

    /// `stat`.
    pub fn metadata(&self) -> Result<Metadata, Failure> {
        let found = self.fs.metadata(self.path());
        found.map_err(|error| self.failure(&error))
    }

    /// Opens the regular file.
    pub fn open(&self, options: &OpenOptions) -> Result<File, Failure> {
        let opened = options.open(&self.fs, self.path());
        opened.map_err(|error| self.failure(&error))
    }

    /// Opens the regular file for reading.
    pub fn open_read(&self) -> Result<File, Failure> {
        self.open(&OpenOptions::new().read(true))
    }
}

/// `directory/name`, with one slash.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if directory.ends_with(b"/") || directory.is_empty() {
        b""
    } else {
        b"/"
    };
    [directory, slash, name].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_joins_root_and_other_directories_with_one_slash() {
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/d", b"a"), b"/d/a");
        assert_eq!(join(b"/d/", b"a"), b"/d/a");
    }

    #[test]
    fn word_outside_a_shell_is_an_address_or_on_the_host() {
        let session = Session::default();
        let place = |word: &str| session.place(&Operand(word.into())).unwrap();
        let Place::Image { address, shown, .. } = place(r"a\:/b.img:/x/y") else {
            panic!("not in an image")
        };
        assert_eq!(address.image, Path::new("a:/b.img"));
        assert_eq!(address.path, b"/x/y");
        assert_eq!(shown, br"a\:/b.img:");
        assert!(matches!(place("dir/x"), Place::Host(path) if path == Path::new("dir/x")));
    }
}
