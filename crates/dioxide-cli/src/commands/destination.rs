//! Where copies, moved files and links go: the last operand, or what -t names; into it if it is a directory.

use crate::address::Operand;
use crate::failure::{Failure, Status};
use crate::location::Location;
use crate::session::Session;
use crate::walk::First;
use std::collections::HashSet;

/// The operands of such a command, apart.
pub struct Operands<'a> {
    pub sources: &'a [Operand],
    destination: &'a Operand,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Into a directory that is there, and under the name itself otherwise.
    IfDirectory,
    /// -t
    Into,
    /// -T
    Exactly,
}

/// A place, and whether things go into it.
pub struct Destination {
    pub location: Location,
    pub into: bool,
}

/// Names that one run has given: what has such a name is not replaced in that run, since it would be lost.
#[derive(Default)]
pub struct Given(HashSet<Vec<u8>>);

impl Given {
    /// Whether a file that is there may be replaced, as far as this run made it.
    pub fn check(&self, place: &Location) -> Result<(), Failure> {
        match self.0.contains(place.shown()) {
            true => Err(made_just_now(place)),
            false => Ok(()),
        }
    }

    pub fn add(&mut self, place: &Location) {
        self.0.insert(place.shown().to_vec());
    }
}

pub fn made_just_now(place: &Location) -> Failure {
    Failure::trouble(place, "was made just now, and is not replaced")
}

impl<'a> Operands<'a> {
    /// Takes them apart.
    pub fn split(
        operands: &'a [Operand],
        into: &'a [Operand],
        exactly: bool,
    ) -> Result<Operands<'a>, Failure> {
        match into {
            [] => {}
            [destination] => {
                return Ok(Operands {
                    sources: operands,
                    destination,
                    how: How::Into,
                });
            }
            [_, more, ..] => {
                return Err(Failure::trouble(more, "is one directory too many, with -t"));
            }
        }
        match operands {
            [] | [_] => Err(Failure::plain("two operands are needed at least, or -t")),
            [_, _, extra, ..] if exactly => {
                Err(Failure::trouble(extra, "is one too many, with -T"))
            }
            [sources @ .., destination] => Ok(Operands {
                sources,
                destination,
                how: if exactly {
                    How::Exactly
                } else {
                    How::IfDirectory
                },
            }),
        }
    }

    /// Looks at the destination. Its image is opened to be changed: to be called before the sources are looked for.
    pub fn destination(&self, session: &mut Session) -> Result<Destination, Failure> {
        let location = session.destination(self.destination)?;
        let into = match self.how {
            How::Exactly => false,
            How::Into | How::IfDirectory => match location.find(First::Followed) {
                Ok(found) => found.is_some_and(|facts| facts.is_directory()),
                // A symlink that leads nowhere, round in a circle, or through a file, may be what is to be replaced.
                Err(_) if location.is_symlink()? => false,
                Err(failure) => return Err(failure),
            },
        };
        if self.how == How::Into && !into {
            return Err(not_into(&location)?);
        }
        Ok(Destination { location, into })
    }

    /// The files that the sources name; what cannot be found was told.
    pub fn find(
        &self,
        session: &mut Session,
        destination: &Destination,
    ) -> Result<(Vec<Location>, Status), Failure> {
        let mut found = Vec::new();
        let missing = session.for_each_of(self.sources, Session::locations, |source| {
            found.push(source);
            Ok(())
        })?;
        if found.len() > 1 && !destination.into {
            return Err(not_into(&destination.location)?);
        }
        Ok((found, missing))
    }
}

/// Nothing can go into it.
fn not_into(location: &Location) -> Result<Failure, Failure> {
    let what = match location.find(First::Followed)? {
        Some(_) => "Not a directory",
        None => {
            "No such file or directory, and copies and links can only go into a directory that is there"
        }
    };
    Ok(Failure::trouble(location, what))
}

impl Destination {
    /// Where something of this name goes.
    pub fn place(&self, name: &[u8]) -> Location {
        match name {
            b"" | b"." | b".." => self.location.clone(),
            name if self.into => self.location.child(name),
            _ => self.location.clone(),
        }
    }
}
