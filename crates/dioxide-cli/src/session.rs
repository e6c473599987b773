//! What operands name: files inside images, or on the host.
//!
//! Outside a shell `IMG:/path` lies in an image, and anything else is a path on the host. In
//! a shell every word is a path in the shell's image, from its current directory; `host:PATH` is on the host.
//! Patterns are expanded here, so that no command knows of them.
//!
//! Invariant: each image is opened once in a session, and [`Session::end`] closes it.

use crate::address::{Address, Operand, host_path};
use crate::args::ImageArgs;
use crate::failure::{Failure, Status};
use crate::glob;
use crate::images::{Images, Purpose};
use crate::location::Location;
use crate::render::{Text, printable};
use dioxide::{Error, File, FileType, Fs, Metadata, Node, OpenOptions};
use serde::Serialize;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
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
    /// Standard input is where the commands come from.
    pub reads_stdin: bool,
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

    /// The same, whatever the command as a whole does, or the shell.
    pub fn fs_for(&mut self, image: &Path, purpose: Purpose) -> Result<Fs, Failure> {
        match &mut self.images {
            Some(images) => images.fs_for(image, purpose),
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
        if word.is_empty() {
            return Err(Failure::absence("''", "No such file or directory"));
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
            Place::Host(_) => {
                let wrong = Address::parse(&operand.0).err();
                let wrong = wrong.unwrap_or_else(|| "is on the host; write IMG:/path".to_owned());
                Err(Failure::trouble(operand, wrong))
            }
        }
    }

    /// The files that an operand names, for what makes those that are not there: a pattern that nothing
    /// fits is a name.
    pub fn targets_or_new(&mut self, operand: &Operand) -> Result<Vec<Target>, Failure> {
        match self.targets(operand) {
            Err(failure) if failure.is_absence() => Ok(vec![self.new_target(operand)?]),
            found => found,
        }
    }

    /// As [`Session::targets_or_new`], for one file.
    pub fn new_or_only(&mut self, operand: &Operand) -> Result<Target, Failure> {
        let found = self.targets_or_new(operand)?;
        only(found, operand)
    }

    /// The one file that is to be made: patterns are not looked for, and `\\` before their characters is left out.
    pub fn new_target(&mut self, operand: &Operand) -> Result<Target, Failure> {
        let mut target = self.exact_target(operand)?;
        if glob::is_pattern(target.path()) {
            target.address.path = glob::literal(target.path());
            target.shown = glob::literal(&target.shown);
        }
        Ok(target)
    }

    /// The file of just this path.
    pub fn exact_target(&mut self, operand: &Operand) -> Result<Target, Failure> {
        let Place::Image {
            address,
            shown,
            unsaid,
        } = self.place(operand)?
        else {
            // Told as everywhere.
            return self.target(operand);
        };
        let said = address.path.get(unsaid..).unwrap_or_default();
        Ok(Target {
            shown: [&shown[..], said].concat(),
            fs: self.fs(&address.image)?,
            address,
        })
    }

    /// The files that an operand names, in an image or on the host.
    pub fn locations(&mut self, operand: &Operand) -> Result<Vec<Location>, Failure> {
        match self.place(operand)? {
            Place::Host(path) => Ok(vec![Location::Host(path)]),
            Place::Image { .. } => {
                let targets = self.targets(operand)?;
                Ok(targets.into_iter().map(Location::Image).collect())
            }
        }
    }

    /// Where something is to be put. Its image is opened to be changed: to be called before [`Session::locations`].
    pub fn destination(&mut self, operand: &Operand) -> Result<Location, Failure> {
        let address = match self.place(operand)? {
            Place::Host(path) => return Ok(Location::Host(path)),
            Place::Image { address, .. } => address,
        };
        self.fs_for(&address.image, Purpose::Change)?;
        self.new_or_only(operand).map(Location::Image)
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
            return Err(Failure::absence(&literal, "no file fits this pattern"));
        }
        Ok(found.into_iter().map(target).collect())
    }

    /// The one file that an operand names.
    pub fn target(&mut self, operand: &Operand) -> Result<Target, Failure> {
        let found = self.targets(operand)?;
        only(found, operand)
    }

    /// Runs over the files that operands name: what fails is told, and the others still have their turn. All are found before the
    /// first is changed: a pattern is to fit nothing only because what was named before is gone.
    pub fn for_each(
        &mut self,
        operands: &[Operand],
        run: impl FnMut(Target) -> Result<(), Failure>,
    ) -> Result<Status, Failure> {
        self.for_each_of(operands, Session::targets, run)
    }

    /// The same with another way to find what operands name.
    pub fn for_each_of<T>(
        &mut self,
        operands: &[Operand],
        find: impl Fn(&mut Session, &Operand) -> Result<Vec<T>, Failure>,
        mut run: impl FnMut(T) -> Result<(), Failure>,
    ) -> Result<Status, Failure> {
        let all: Vec<_> = operands.iter().map(|one| find(self, one)).collect();
        let mut worst = Status::Fine;
        for found in all {
            let status = found.and_then(|found| {
                let mut worst = Status::Fine;
                for one in found {
                    crate::interrupt::check()?;
                    worst = worst.max(told(run(one))?);
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

fn only(mut found: Vec<Target>, operand: &Operand) -> Result<Target, Failure> {
    match (found.pop(), found.len()) {
        (Some(only), 0) => Ok(only),
        _ => Err(Failure::trouble(
            operand,
            "several files fit; one is needed",
        )),
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
        return Ok(Place::Host(host_path(word)));
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

/// A file inside an image, for programs, to be flattened: `image` and `path`.
#[derive(Serialize)]
pub struct JsonFile {
    #[serde(flatten)]
    image: Text,
    #[serde(flatten)]
    path: Text,
}

impl Target {
    /// For programs.
    pub fn json(&self) -> JsonFile {
        JsonFile {
            image: Text::path("image", &self.address.image),
            path: Text::new("path", self.path()),
        }
    }

    /// The absolute path inside the image.
    pub fn path(&self) -> &[u8] {
        &self.address.path
    }

    /// The last name of the path; empty for the root.
    pub fn name(&self) -> &[u8] {
        split_path(self.path()).1
    }

    /// The directory that the last name is in.
    pub fn parent(&self) -> Target {
        let path = split_path(self.path()).0;
        let shown = split_path(&self.shown).0;
        Target {
            fs: self.fs.clone(),
            address: Address {
                image: self.address.image.clone(),
                path: if path.is_empty() { b"/" } else { path }.to_vec(),
            },
            shown: shown.to_vec(),
        }
    }

    /// The file, held; a symlink itself.
    pub fn node(&self) -> Result<Node, Failure> {
        let (directory, name) = split_path(self.path());
        let found = match name {
            b"" | b"." | b".." => self.fs.node(self.path()),
            name => self
                .fs
                .node(if directory.is_empty() {
                    b"/"
                } else {
                    directory
                })
                .and_then(|directory| directory.lookup(name)),
        };
        found.map_err(|error| self.failure(&error))
    }

    /// What the library's error means for this file.
    pub fn failure(&self, error: &Error) -> Failure {
        Failure::engine(self, self.path(), error)
    }

    /// An error of the library while it gave this file another name, at `place`: about both, unless it can only be about the place.
    pub fn failure_at(&self, doing: &str, place: &Target, error: &Error) -> Failure {
        match error {
            Error::NotFound(_)
            | Error::NotADirectory(_)
            | Error::IsADirectory(_)
            | Error::TooManySymlinks(_)
            | Error::NameTooLong(_)
            | Error::Exists(_)
            | Error::NotEmpty(_)
            | Error::NoSpace(_) => place.failure(error),
            error => {
                let what = place.failure(error).words();
                Failure::trouble(self, format_args!("{doing} '{place}': {what}"))
            }
        }
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

    /// What it says if it is a symlink.
    pub fn link(&self, metadata: &Metadata) -> Result<Option<Vec<u8>>, Failure> {
        let is_link = metadata.file_type == FileType::Symlink;
        let found = is_link.then(|| self.fs.read_link(self.path()));
        let found = found.transpose();
        found.map_err(|error| self.failure(&error))
    }

    /// How it is opened for writing: by the image's super user, for whom blocks are kept.
    pub fn writing() -> OpenOptions {
        OpenOptions::new().write(true).resource(true)
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

/// The part of a path before its last name, and that name; slashes at the end do not count.
pub fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
    let start = path[..end]
        .iter()
        .rposition(|&b| b == b'/')
        .map_or(0, |at| at + 1);
    let (directory, name) = path[..end].split_at(start);
    // The root keeps its slash.
    let cut = directory
        .iter()
        .rposition(|&b| b != b'/')
        .map_or(1, |at| at + 1);
    (&directory[..cut.min(directory.len())], name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_split_before_its_last_name() {
        for (path, directory, name) in [
            ("/a", "/", "a"),
            ("/a//b/", "/a", "b"),
            ("a", "", "a"),
            ("i:/a", "i:", "a"),
            ("/", "", ""),
            ("", "", ""),
            ("//a", "/", "a"),
            ("/a/.", "/a", "."),
        ] {
            let expected = (directory.as_bytes(), name.as_bytes());
            assert_eq!(split_path(path.as_bytes()), expected, "{path}");
        }
    }

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
