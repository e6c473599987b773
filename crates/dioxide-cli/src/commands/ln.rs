//! `dioxide ln`.

use super::change::begin;
use super::destination::{Destination, Given, Operands};
use super::report::{Done, Named, Report, Telling};
use crate::address::Operand;
use crate::args::LnArgs;
use crate::failure::{Failure, Status};
use crate::interrupt;
use crate::location::{Identity, Location, Pending};
use crate::output::Out;
use crate::session::{Place, Session, split_path, told};
use crate::walk::{First, Tree};
use std::os::unix::ffi::OsStrExt;

pub fn run(args: &LnArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    begin(session, &args.open);
    let telling = Telling {
        verbose: args.verbose,
        json: args.json,
    };
    let mut report = Report::new(telling, out);
    let operands = Operands::split(
        &args.operands,
        &args.target_directory,
        args.no_target_directory,
    )?;
    let mut destination = operands.destination(session)?;
    if let Location::Host(_) = destination.location {
        let what = "is on the host; ln makes links in images, at IMG:/PATH";
        return Err(Failure::trouble(&destination.location, what));
    }
    let is_link = |location: &Location| {
        let found = location.find(First::Itself);
        found.map(|found| found.is_some_and(|facts| !facts.is_directory()))
    };
    if args.no_dereference && args.target_directory.is_empty() && is_link(&destination.location)? {
        destination.into = false;
    }
    let status = match args.symbolic {
        true => symbolic(args, &operands, &destination, session, &mut report)?,
        false => hard(args, &operands, &destination, session, &mut report)?,
    };
    report.finish()?;
    Ok(status)
}

fn symbolic(
    args: &LnArgs,
    operands: &Operands<'_>,
    destination: &Destination,
    session: &mut Session,
    report: &mut Report<'_>,
) -> Result<Status, Failure> {
    if operands.sources.len() > 1 && !destination.into {
        return Err(Failure::trouble(&destination.location, "Not a directory"));
    }
    let (mut worst, mut given) = (Status::Fine, Given::default());
    for source in operands.sources {
        interrupt::check()?;
        let text = text(session, source, &destination.location)?;
        let place = destination.place(split_path(&text).1);
        let make = || {
            if place.find(First::Itself)?.is_some() && leads_to_itself(&place, &text)? {
                let what = "would lead to itself, and what is there would be lost";
                return Err(Failure::trouble(&place, what));
            }
            Pending::symlink(&place, &text, &args.new_files.with(0o777))
        };
        let made = put(args, &make, Named::Text(&text), &place, &mut given, report);
        worst = worst.max(told(made)?);
    }
    Ok(worst)
}

/// Whether a symlink at a place would be what it names.
fn leads_to_itself(place: &Location, text: &[u8]) -> Result<bool, Failure> {
    let Location::Image(link) = place else {
        return Ok(false);
    };
    let mut end = link.parent();
    match text {
        [b'/', ..] => end.address.path = text.to_vec(),
        text => end = end.child(text),
    }
    place.is_entry(&Location::Image(end))
}

/// What a symbolic link says.
fn text(session: &mut Session, word: &Operand, place: &Location) -> Result<Vec<u8>, Failure> {
    let literal = word.0.as_bytes().to_vec();
    if session.shell().is_some() {
        return Ok(literal);
    }
    let image = place.image_file();
    Ok(match session.place(word)? {
        Place::Image { address, .. } if Identity::of_file(&address.image) == image => address.path,
        _ => literal,
    })
}

fn hard(
    args: &LnArgs,
    operands: &Operands<'_>,
    destination: &Destination,
    session: &mut Session,
    report: &mut Report<'_>,
) -> Result<Status, Failure> {
    let (sources, mut worst) = operands.find(session, destination)?;
    let mut given = Given::default();
    for source in &sources {
        interrupt::check()?;
        let place = destination.place(source.name());
        let made = hard_one(args, source, &place, &mut given, report);
        worst = worst.max(told(made)?);
    }
    Ok(worst)
}

fn hard_one(
    args: &LnArgs,
    source: &Location,
    place: &Location,
    given: &mut Given,
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let facts = source.examine(First::Itself)?;
    if facts.is_directory() {
        let what = "is a directory, which has one name only";
        return Err(Failure::trouble(source, what));
    }
    if !source.shares_image(place) {
        return Err(Failure::trouble(place, "Invalid cross-device link"));
    }
    let found = place.find(First::Itself)?;
    if found.is_some_and(|found| found.identity == facts.identity) && args.force {
        return match source.is_entry(place)? {
            true => Err(super::cp::same_file(source, place)),
            false => tell(Named::of(source), place, report),
        };
    }
    let make = || Pending::link(place, source);
    put(args, &make, Named::of(source), place, given, report)
}

/// A link that takes its place at once, whatever is there.
fn put(
    args: &LnArgs,
    make: &dyn Fn() -> Result<Pending, Failure>,
    to: Named<'_>,
    place: &Location,
    given: &mut Given,
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    match place.find(First::Itself)? {
        Some(found) if found.is_directory() => {
            return Err(Failure::trouble(place, "is a directory, and not replaced"));
        }
        Some(_) if !args.force => return Err(Failure::trouble(place, "File exists")),
        Some(_) => given.check(place)?,
        None => {}
    }
    if place.says_directory() {
        return Err(Failure::trouble(place, "No such file or directory"));
    }
    make()?.place(place)?;
    given.add(place);
    tell(to, place, report)
}

fn tell(to: Named<'_>, place: &Location, report: &mut Report<'_>) -> Result<(), Failure> {
    report.tell(&Done {
        action: "linked",
        words: "",
        file: Named::of(place),
        to: Some(to),
        facts: &[],
    })
}
