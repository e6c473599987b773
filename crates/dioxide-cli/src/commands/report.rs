//! What a command that changes files did, file by file: nothing, in the words of GNU's programs, or as JSON.

use crate::failure::Failure;
use crate::output::{JsonArray, Out};
use crate::render::Name;
use serde::Serialize;
use std::io::Write;

/// Whether it is told, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Telling {
    pub verbose: bool,
    pub json: bool,
}

/// What was done with one file.
#[derive(Clone, Copy, Debug)]
pub struct Done<'a> {
    /// For programs.
    pub action: &'static str,
    /// What stands before the name.
    pub words: &'static str,
    pub path: &'a [u8],
    /// Where a copy or a link leads.
    pub to: Option<&'a [u8]>,
}

#[derive(Serialize)]
struct JsonDone<'a> {
    action: &'a str,
    path: Name,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<Name>,
}

/// Standard output of such a command.
pub struct Report<'a> {
    pub out: &'a mut Out,
    telling: Telling,
    array: JsonArray,
}

impl<'a> Report<'a> {
    pub fn new(telling: Telling, out: &'a mut Out) -> Report<'a> {
        Report {
            out,
            telling,
            array: JsonArray::default(),
        }
    }

    /// Whether lines come while it works, so that a bar would be in their way.
    pub fn is_loud(&self) -> bool {
        self.telling.verbose || self.telling.json
    }

    pub fn tell(&mut self, done: &Done<'_>) -> Result<(), Failure> {
        if self.telling.json {
            let json = JsonDone {
                action: done.action,
                path: Name(done.path.to_vec()),
                to: done.to.map(|to| Name(to.to_vec())),
            };
            return self.array.push(&json, self.out);
        }
        if !self.telling.verbose {
            return Ok(());
        }
        write!(self.out, "{}'", done.words)?;
        self.out.name(done.path)?;
        if let Some(to) = done.to {
            write!(self.out, "' -> '")?;
            self.out.name(to)?;
        }
        Ok(writeln!(self.out, "'")?)
    }

    /// Ends the array, if it is one.
    pub fn finish(mut self) -> Result<(), Failure> {
        match self.telling.json {
            true => self.array.finish(self.out),
            false => Ok(()),
        }
    }
}
