//! What a command that changes files did, file by file: nothing, in the words of GNU's programs, or as JSON.
//!
//! Begun before anything can fail: an array is one whatever ends the command.

use crate::failure::Failure;
use crate::location::Location;
use crate::output::{JsonArray, Out};
use crate::render::Text;
use crate::session::Target;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether it is told, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Telling {
    pub verbose: bool,
    pub json: bool,
}

impl Telling {
    /// For what says nothing but JSON.
    pub fn json(json: bool) -> Telling {
        Telling {
            verbose: false,
            json,
        }
    }
}

/// What was done with one file.
#[derive(Clone, Copy)]
pub struct Done<'a> {
    /// For programs.
    pub action: &'static str,
    /// What stands before the name.
    pub words: &'static str,
    pub file: Named<'a>,
    /// Where a copy or a link leads.
    pub to: Option<Named<'a>>,
    /// What is true of it now, for programs.
    pub facts: &'a [(&'static str, u64)],
}

/// A file, or what a link says.
#[derive(Clone, Copy)]
pub enum Named<'a> {
    Image(&'a Target),
    Host(&'a Path),
    Text(&'a [u8]),
}

impl<'a> Named<'a> {
    pub fn of(location: &'a Location) -> Named<'a> {
        match location {
            Location::Image(target) => Named::Image(target),
            Location::Host(path) => Named::Host(path),
        }
    }

    fn shown(self) -> &'a [u8] {
        match self {
            Named::Image(target) => &target.shown,
            Named::Host(path) => path.as_os_str().as_bytes(),
            Named::Text(text) => text,
        }
    }

    fn image(self, key: &'static str) -> Option<Text> {
        match self {
            Named::Image(target) => Some(Text::path(key, &target.address.image)),
            Named::Host(_) | Named::Text(_) => None,
        }
    }

    fn path(self, key: &'static str) -> Text {
        match self {
            Named::Image(target) => Text::new(key, target.path()),
            other => Text::new(key, other.shown()),
        }
    }
}

#[derive(Serialize)]
struct JsonDone<'a> {
    action: &'a str,
    #[serde(flatten)]
    image: Option<Text>,
    #[serde(flatten)]
    path: Text,
    #[serde(flatten)]
    to_image: Option<Text>,
    #[serde(flatten)]
    to: Option<Text>,
    #[serde(flatten)]
    facts: BTreeMap<&'static str, u64>,
}

/// Standard output of such a command.
pub struct Report<'a> {
    pub out: &'a mut Out,
    telling: Telling,
    array: JsonArray,
    /// Why nothing more is told.
    failure: Option<Failure>,
    finished: bool,
}

impl<'a> Report<'a> {
    pub fn new(telling: Telling, out: &'a mut Out) -> Report<'a> {
        Report {
            out,
            telling,
            array: JsonArray::default(),
            failure: None,
            finished: false,
        }
    }

    /// Whether lines come while it works, so that a bar would be in their way.
    pub fn is_loud(&self) -> bool {
        self.telling.verbose || self.telling.json
    }

    /// What was done with a file, for programs only.
    pub fn tell_facts(
        &mut self,
        action: &'static str,
        target: &Target,
        facts: &[(&'static str, u64)],
    ) -> Result<(), Failure> {
        self.tell(&Done {
            action,
            words: "",
            file: Named::Image(target),
            to: None,
            facts,
        })
    }

    pub fn tell(&mut self, done: &Done<'_>) -> Result<(), Failure> {
        let written = self.write(done);
        self.read_or_not(written)
    }

    /// The same in words of its own, for people only.
    pub fn tell_words(&mut self, target: &Target, words: &str) -> Result<(), Failure> {
        if !self.telling.verbose {
            return Ok(());
        }
        let named = self.out.name(&target.shown);
        let written = named.and_then(|()| writeln!(self.out, ": {words}"));
        self.read_or_not(written.map_err(Failure::from))
    }

    /// The same as an element of its own, for programs only.
    pub fn tell_json(&mut self, element: &impl Serialize) -> Result<(), Failure> {
        if !self.telling.json {
            return Ok(());
        }
        let written = self.array.push(element, self.out);
        self.read_or_not(written)
    }

    /// Nothing more is told once nobody reads, or that fails: that is no reason to leave what is being changed half done.
    fn read_or_not(&mut self, written: Result<(), Failure>) -> Result<(), Failure> {
        match written {
            Ok(()) | Err(Failure::Interrupted) => return written,
            Err(Failure::PipeClosed) => {}
            Err(failure) => self.failure = Some(failure),
        }
        self.telling = Telling::default();
        Ok(())
    }

    fn write(&mut self, done: &Done<'_>) -> Result<(), Failure> {
        if self.telling.json {
            let json = JsonDone {
                action: done.action,
                image: done.file.image("image"),
                path: done.file.path("path"),
                to_image: done.to.and_then(|to| to.image("to_image")),
                to: done.to.map(|to| to.path("to")),
                facts: done.facts.iter().copied().collect(),
            };
            return self.array.push(&json, self.out);
        }
        if !self.telling.verbose {
            return Ok(());
        }
        write!(self.out, "{}'", done.words)?;
        self.out.name(done.file.shown())?;
        if let Some(to) = done.to {
            write!(self.out, "' -> '")?;
            self.out.name(to.shown())?;
        }
        Ok(writeln!(self.out, "'")?)
    }

    /// Ends the array, if it is one.
    ///
    /// # Errors
    /// Not all could be told.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.end()?;
        self.failure.take().map_or(Ok(()), Err)
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.finished = true;
        let written = match self.telling.json {
            true => self.array.finish(self.out),
            false => Ok(()),
        };
        self.read_or_not(written)
    }
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // What ended the command is told, and counts.
            let _ = self.end();
        }
    }
}
