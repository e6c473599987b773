//! `dioxide mv`: a rename inside an image; elsewhere a copy, and the removal of what was copied once the copy is durable.
//!
//! Invariant: nothing is removed before all operands were copied. So hard links between them stay, one sync is enough for all,
//! and whatever ends the command before leaves every source as it was.

mod removal;

use super::change::begin;
use super::cp::{Copier, Options, same_file};
use super::destination::Operands;
use super::report::{Done, Named, Report, Telling};
use super::rm::{ROOT_INO, remove_tree};
use crate::args::{MvArgs, NewFiles};
use crate::failure::{Failure, Status};
use crate::interrupt;
use crate::location::{Facts, Identity, Location};
use crate::output::Out;
use crate::session::{Session, told};
use crate::walk::{First, Tree};
use dioxide::{Error, RenameMode};

pub fn run(args: &MvArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    begin(session, &args.open);
    let telling = Telling {
        verbose: args.verbose,
        json: args.json,
    };
    let report = Report::new(telling, out);
    let operands = Operands::split(
        &args.operands,
        &args.target_directory,
        args.no_target_directory,
    )?;
    let destination = operands.destination(session)?;
    let (sources, mut worst) = operands.find(session, &destination)?;
    let mut mover = Mover {
        no_clobber: args.no_clobber,
        copier: Copier::new(Options {
            recursive: true,
            preserve: true,
            archive: true,
            no_clobber: false,
            moving: true,
            new_files: NewFiles::default(),
        }),
        copied: Vec::new(),
        report,
    };
    for source in &sources {
        interrupt::check()?;
        let place = destination.place(source.name());
        worst = worst.max(told(mover.move_one(source, &place))?);
    }
    worst = worst.max(mover.remove_copied()?);
    mover.report.finish()?;
    Ok(worst)
}

struct Mover<'a> {
    no_clobber: bool,
    copier: Copier,
    /// What is to be removed, and where its copy is.
    copied: Vec<(Location, Location)>,
    report: Report<'a>,
}

impl Mover<'_> {
    fn move_one(&mut self, source: &Location, place: &Location) -> Result<(), Failure> {
        let facts = source.examine(First::Itself)?;
        let is_root = matches!(facts.identity, Identity::Image { ino: ROOT_INO, .. });
        if is_root || matches!(source.name(), b"" | b"." | b"..") {
            return Err(Failure::trouble(source, "Device or resource busy"));
        }
        let found = place.find(First::Itself)?;
        if let Some(found) = &found {
            if self.no_clobber {
                return Ok(());
            }
            check_replaced(source, &facts, place, found)?;
            // Two names of one file: rename would leave both. Of a symlink and where it leads, the link to itself.
            let leads_to = source.find(First::Followed).ok().flatten();
            let ends = [facts.identity, leads_to.unwrap_or(facts).identity];
            if ends.contains(&found.identity) {
                return Err(same_file(source, place));
            }
            self.copier.check_kept(place, found.identity, 0)?;
        } else if place.says_directory() && !facts.is_directory() {
            return Err(Failure::trouble(place, "Not a directory"));
        }
        match (source, place) {
            (Location::Image(from), Location::Image(to)) if source.shares_image(place) => {
                let renamed = from.fs.rename(from.path(), to.path(), RenameMode::Replace);
                renamed.map_err(|error| match error {
                    Error::Invalid(_) => {
                        let what = format_args!("cannot be moved into itself, '{to}'");
                        Failure::trouble(from, what)
                    }
                    error => from.failure_at("cannot be moved to", to, &error),
                })?;
                self.copier.given.add(place);
                self.tell("renamed ", source, place)
            }
            _ => self.copy(source, place, found.as_ref()),
        }
    }

    fn copy(
        &mut self,
        source: &Location,
        place: &Location,
        found: Option<&Facts>,
    ) -> Result<(), Failure> {
        if found.is_some_and(Facts::is_directory) {
            // Only an empty one is replaced.
            place.remove_dir()?;
        }
        let mut quiet = Report::new(Telling::default(), self.report.out);
        self.copier.worst = Status::Fine;
        let copied = self.copier.copy(source, place, &mut quiet)?;
        if copied.max(self.copier.worst) != Status::Fine {
            let what = "is not removed, since not all of it was copied";
            return Err(Failure::trouble(source, what));
        }
        self.copied.push((source.clone(), place.clone()));
        Ok(())
    }

    fn remove_copied(&mut self) -> Result<Status, Failure> {
        let copied = std::mem::take(&mut self.copied);
        let mut worst = Status::Fine;
        if let Some((_, place)) = copied.first() {
            // All are in one directory.
            place.sync()?;
        }
        for (source, place) in copied {
            interrupt::check()?;
            let moved = self
                .remove(&source)
                .and_then(|()| self.tell("copied ", &source, &place));
            worst = worst.max(told(moved)?);
        }
        Ok(worst)
    }

    fn remove(&mut self, source: &Location) -> Result<(), Failure> {
        let removed = match source {
            Location::Image(target) => {
                let mut quiet = Report::new(Telling::default(), self.report.out);
                remove_tree(target, &mut quiet)?
            }
            Location::Host(_) => removal::remove(source, &self.copier.stamps)?,
        };
        match removed {
            Status::Fine => Ok(()),
            _ => {
                let what = "was copied, and not all of it could be removed";
                Err(Failure::trouble(source, what))
            }
        }
    }

    fn tell(
        &mut self,
        words: &'static str,
        source: &Location,
        place: &Location,
    ) -> Result<(), Failure> {
        self.report.tell(&Done {
            action: words.trim_end(),
            words,
            file: Named::of(source),
            to: Some(Named::of(place)),
            facts: &[],
        })
    }
}

fn check_replaced(
    source: &Location,
    facts: &Facts,
    place: &Location,
    found: &Facts,
) -> Result<(), Failure> {
    match (facts.is_directory(), found.is_directory()) {
        (false, true) => Err(Failure::trouble(
            place,
            format_args!("is a directory, and not replaced by '{source}', which is none"),
        )),
        (true, false) => Err(Failure::trouble(
            place,
            format_args!("is no directory, and not replaced by '{source}', which is one"),
        )),
        _ => Ok(()),
    }
}
