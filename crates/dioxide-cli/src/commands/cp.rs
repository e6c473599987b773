//! `dioxide cp`: files out of images, into them, and from one into another.
//!
//! Invariants: a file appears under its name when it is complete, and until then what has the name stays; nothing below a
//! destination is written through a symlink, so that no tree, however it was made, leads out of the place where its copy goes;
//! devices and pipes are only replaced by their like; what a run made it does not replace, though a file system may take two names
//! for one (`A` and `a`).

mod attributes;
mod content;

use super::destination::{Given, Operands, made_just_now};
use super::report::{Done, Named, Report, Telling};
use crate::args::{CpArgs, NewFiles};
use crate::failure::{Failure, Status, complain};
use crate::images::{Purpose, warn_if_written};
use crate::interrupt;
use crate::location::{Facts, Held, HostFile, Identity, Location, Pending, Stamp};
use crate::output::Out;
use crate::progress::Progress;
use crate::render::printable;
use crate::session::Session;
use crate::walk::{First, Next, Visit, When, walk};
use attributes::Attributes;
use dioxide::block::file::written_by;
use dioxide::{Buf, FileType};
use std::collections::{HashMap, HashSet};

pub fn run(args: &CpArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    interrupt::watch();
    let telling = Telling {
        verbose: args.verbose,
        json: args.json,
    };
    let mut report = Report::new(telling, out);
    session.begin(&args.open, Purpose::Look);
    let operands = Operands::split(
        &args.operands,
        &args.target_directory,
        args.no_target_directory,
    )?;
    let destination = operands.destination(session)?;
    if let (Some(_), Location::Host(_)) = (args.new_files.owner(), &destination.location) {
        let what = "is on the host; --owner is for copies in images";
        return Err(Failure::trouble(&destination.location, what));
    }
    let (sources, missing) = operands.find(session, &destination)?;
    let mut copier = Copier::new(Options::of(args));
    let mut worst = missing;
    for source in &sources {
        let place = destination.place(source.name());
        worst = worst.max(copier.copy(source, &place, &mut report)?);
    }
    report.finish()?;
    Ok(worst.max(copier.worst))
}

/// How is copied.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub recursive: bool,
    /// Mode, owner, times and access control lists.
    pub preserve: bool,
    /// Hard links and all extended attributes too.
    pub archive: bool,
    pub no_clobber: bool,
    /// The sources are removed then: copies on the host are durable, and no attribute may be missing.
    pub moving: bool,
    pub new_files: NewFiles,
}

impl Options {
    fn of(args: &CpArgs) -> Options {
        Options {
            recursive: args.recursive || args.archive,
            preserve: args.preserve || args.archive,
            archive: args.archive,
            no_clobber: args.no_clobber,
            moving: false,
            new_files: args.new_files,
        }
    }
}

/// One run: what is shared by all files.
pub(super) struct Copier {
    options: Options,
    progress: Progress,
    buf: Buf,
    attributes: Attributes,
    /// Where files with several names went, which file that is, and whether it has all that was to be kept.
    links: HashMap<Identity, (Location, Identity, Status)>,
    /// The other way: of which file a copy is the one in `links`, so that it can be forgotten when another takes its place.
    linked: HashMap<Identity, Identity>,
    /// How the files were that were copied, if they are moved.
    pub stamps: HashMap<Identity, Stamp>,
    /// For each directory that is entered: where that is copied to, and whether it was made.
    made: Vec<(Identity, bool)>,
    /// Directories that copies go into, which are not copied themselves.
    receiving: HashSet<Identity>,
    /// Operands, and where their copies go.
    operands: HashSet<(Identity, Vec<u8>)>,
    /// Names of the destination that this run has given to operands.
    pub given: Given,
    /// What it has made there, and below the operand that is being copied.
    placed: HashSet<Identity>,
    below: HashSet<Identity>,
    /// The file on the host that holds the image where the copy goes.
    image: Option<Identity>,
    /// Of what was told and did not end the copy of a file.
    pub worst: Status,
}

/// One read and write.
const CHUNK_BYTES: usize = 1 << 20;

type Visited<'a> = Visit<'a, Location>;

impl Copier {
    pub fn new(options: Options) -> Copier {
        Copier {
            progress: Progress::of_files(),
            buf: Buf::zeroed(CHUNK_BYTES),
            attributes: Attributes::new(&options),
            links: HashMap::new(),
            linked: HashMap::new(),
            stamps: HashMap::new(),
            made: Vec::new(),
            receiving: HashSet::new(),
            operands: HashSet::new(),
            given: Given::default(),
            placed: HashSet::new(),
            below: HashSet::new(),
            image: None,
            worst: Status::Fine,
            options,
        }
    }

    /// Copies a file, and what is in it, to a place. What fails is told.
    pub fn copy(
        &mut self,
        root: &Location,
        place: &Location,
        report: &mut Report<'_>,
    ) -> Result<Status, Failure> {
        if let (Location::Host(_), Location::Host(_)) = (root, place) {
            let what = "is on the host, and its copy would be; name one in an image as IMG:/path";
            return Ok(Failure::trouble(root, what).tell());
        }
        if report.is_loud() {
            self.progress = Progress::none();
        }
        let first = self.first();
        self.image = place.image_file();
        self.made.clear();
        self.below = HashSet::new();
        let prefix = root.shown().len();
        walk(root, first, &mut |visit: &Visited<'_>| {
            let below = &visit.target.shown()[prefix..];
            let start = below.iter().position(|&b| b != b'/').unwrap_or(below.len());
            match &below[start..] {
                b"" if self.is_again(visit, place) => Ok(Next::Pass),
                b"" => self.visit(visit, place, report),
                below => self.visit(visit, &place.child(below), report),
            }
        })
    }

    /// Whether this operand was one before, of the same copy; that is told.
    fn is_again(&mut self, visit: &Visited<'_>, place: &Location) -> bool {
        if self.options.moving || visit.when == When::After {
            return false;
        }
        let operand = (visit.metadata.identity, place.shown().to_vec());
        let is_again = !self.operands.insert(operand);
        if is_again {
            let kind = match visit.metadata.is_directory() {
                true => "directory",
                false => "file",
            };
            let source = visit.target.to_string();
            let source = printable(&source);
            complain(format_args!(
                "warning: source {kind} '{source}' specified more than once"
            ));
        }
        is_again
    }

    /// Whether a symlink that is an operand is copied itself.
    fn first(&self) -> First {
        match self.options.recursive {
            true => First::Itself,
            false => First::Followed,
        }
    }

    fn visit(
        &mut self,
        visit: &Visited<'_>,
        place: &Location,
        report: &mut Report<'_>,
    ) -> Result<Next, Failure> {
        match visit.when {
            When::Before if !self.options.recursive => Err(Failure::trouble(
                visit.target,
                "is a directory, and -r was not given",
            )),
            When::Before => self.enter(visit, place, report),
            When::After => self.leave(visit, place),
            When::Once => self.file(visit, place, report),
        }
    }

    fn enter(
        &mut self,
        visit: &Visited<'_>,
        place: &Location,
        report: &mut Report<'_>,
    ) -> Result<Next, Failure> {
        let source = visit.metadata;
        if self.receiving.contains(&source.identity) {
            return Err(Failure::trouble(visit.target, "is not copied into itself"));
        }
        // What goes into a directory is not told apart from it: `DIR/.` may lead there, but a name in it that does is no directory.
        let is_all_of_it = visit.depth == 0 && matches!(visit.target.name(), b"" | b"." | b"..");
        let first = match is_all_of_it {
            true => First::Followed,
            false => First::Itself,
        };
        let found = place.find(first)?;
        let (received, made) = match found {
            Some(found) if found.identity == source.identity => {
                return Err(same_file(visit.target, place));
            }
            Some(found) if found.is_directory() => {
                if visit.depth > 0 {
                    self.check_kept(place, found.identity, visit.depth)?;
                }
                (found.identity, false)
            }
            Some(_) => {
                let what = "is no directory, and not replaced by one";
                return Err(Failure::trouble(place, what));
            }
            None => {
                // Nobody else makes names in it before it is complete.
                let on_host = match self.options.preserve {
                    true => 0o700,
                    false => source.plain_permissions() & 0o1755 | 0o700,
                };
                let made = place.create_dir(&self.options.new_files.like(source), on_host)?;
                (made.identity, true)
            }
        };
        self.receiving.insert(received);
        self.keep(received, visit.depth);
        tell(visit.target, place, report)?;
        self.made.push((received, made));
        Ok(Next::Enter)
    }

    fn leave(&mut self, visit: &Visited<'_>, place: &Location) -> Result<Next, Failure> {
        let (received, made) = self.made.pop().expect("it was entered");
        if made && self.options.moving {
            // While it is open to this process.
            place.sync_names()?;
        }
        if made || self.options.preserve {
            // A symlink that led to the directory keeps what it has.
            let (directory, first) = match visit.depth {
                0 if !made => (&place.child(b"."), First::Followed),
                _ => (place, First::Itself),
            };
            let opened;
            let held = match directory {
                Location::Image(target) => Held::Image(target),
                Location::Host(path) => {
                    opened = HostFile::directory(path, first, received)?;
                    Held::Host(&opened)
                }
            };
            let kept = self
                .attributes
                .set(visit.target, visit.metadata, None, &held)?;
            self.worst = self.worst.max(kept);
        }
        Ok(Next::Pass)
    }

    fn file(
        &mut self,
        visit: &Visited<'_>,
        place: &Location,
        report: &mut Report<'_>,
    ) -> Result<Next, Failure> {
        let (source, facts) = (visit.target, visit.metadata);
        if self.image == Some(facts.identity) {
            let what = "is the image that the copy goes into, and is not copied";
            return Err(Failure::trouble(source, what));
        }
        let found = place.find(First::Itself)?;
        if found.is_some() && self.options.no_clobber {
            return Ok(Next::Pass);
        }
        // In a tree that would be looked for as often as it has files.
        if let (Location::Host(path), FileType::Regular, 0) = (source, facts.file_type, visit.depth)
        {
            if !self.options.moving {
                warn_if_written(path);
            } else if let Some(by) = written_by(path) {
                return Err(Failure::trouble(source, format!("{by}, and is not moved")));
            }
        }
        if let Some(found) = &found {
            check_replaced(source, facts, place, found)?;
            self.check_kept(place, found.identity, visit.depth)?;
        } else if place.says_directory() {
            return Err(Failure::trouble(place, "Not a directory"));
        }
        let several = self.options.archive && facts.nlink > 1;
        let first = self.links.get(&facts.identity).filter(|_| several);
        let old = found.as_ref().map(|found| found.identity);
        if let Some((first, copy, kept)) = first {
            self.worst = self.worst.max(*kept);
            // As a name of it, the place would stay, and the other name too.
            if old != Some(*copy) {
                Pending::link(place, first)?.place(place)?;
                self.forget(old);
            }
        } else {
            let Some(pending) = self.make(source, facts, place)? else {
                return Ok(Next::Pass);
            };
            // Only content is as if it had been written to what is there.
            let is_content = facts.file_type == FileType::Regular || !self.options.recursive;
            let is_old = |old: &Facts| is_content && old.file_type == FileType::Regular;
            let model = found.filter(is_old);
            let model = model.as_ref().map(|old| (place, old));
            let kept = self.attributes.set(source, facts, model, &pending.held())?;
            self.worst = self.worst.max(kept);
            let copy = pending.held().examine()?.identity;
            pending.place(place)?;
            self.forget(old);
            self.keep(copy, visit.depth);
            if several {
                let first = (place.clone(), copy, kept);
                self.links.insert(facts.identity, first);
                self.linked.insert(copy, facts.identity);
            }
        }
        if self.options.moving {
            // Other names get the copy of the first, which has what the file was then.
            let stamp = self.stamps.entry(facts.identity);
            stamp.or_insert(facts.stamp());
        }
        if visit.depth == 0 {
            self.given.add(place);
        }
        tell(source, place, report)?;
        Ok(Next::Pass)
    }

    /// This run made it.
    fn keep(&mut self, made: Identity, depth: usize) {
        match depth {
            0 => self.placed.insert(made),
            _ => self.below.insert(made),
        };
    }

    /// Whether what is there may be replaced, as far as this run made it.
    pub fn check_kept(
        &self,
        place: &Location,
        found: Identity,
        depth: usize,
    ) -> Result<(), Failure> {
        let kept = match depth {
            0 => self.placed.contains(&found),
            // In a directory that was made for the copy nothing else can rightly be.
            _ => self.made.last().is_some_and(|(_, made)| *made) || self.below.contains(&found),
        };
        match (kept, depth) {
            (true, _) => Err(made_just_now(place)),
            (false, 0) => self.given.check(place),
            (false, _) => Ok(()),
        }
    }

    /// What was replaced is no copy any more that other names could be given to.
    fn forget(&mut self, replaced: Option<Identity>) {
        if let Some(source) = replaced.and_then(|copy| self.linked.remove(&copy)) {
            self.links.remove(&source);
        }
    }

    /// The copy, complete but for its attributes, under another name beside `place`. None if it cannot be made, which was told.
    fn make(
        &mut self,
        source: &Location,
        facts: &Facts,
        place: &Location,
    ) -> Result<Option<Pending>, Failure> {
        let new = self.options.new_files.like(facts);
        match facts.file_type {
            FileType::Regular => self.regular(source, place, &new).map(Some),
            FileType::Symlink => Pending::symlink(place, &source.read_link()?, &new).map(Some),
            FileType::Directory | FileType::Unknown => {
                Err(Failure::trouble(source, "is of no known kind"))
            }
            _ if self.options.recursive => self.node(source, facts, place),
            _ => self.stream(source, place, &new).map(Some),
        }
    }

    fn node(
        &mut self,
        source: &Location,
        facts: &Facts,
        place: &Location,
    ) -> Result<Option<Pending>, Failure> {
        let new = self.options.new_files.like(facts);
        let device = facts.device.unwrap_or_default();
        let made = Pending::node(place, facts.file_type, device, &new)?;
        if made.is_none() {
            complain(format_args!(
                "{source}: warning: only root can make devices; it is left out"
            ));
            self.worst = self.worst.max(Status::Trouble);
        }
        Ok(made)
    }
}

fn tell(source: &Location, place: &Location, report: &mut Report<'_>) -> Result<(), Failure> {
    report.tell(&Done {
        action: "copied",
        words: "",
        file: Named::of(source),
        to: Some(Named::of(place)),
        facts: &[],
    })
}

pub(super) fn same_file(source: &Location, place: &Location) -> Failure {
    // A name has no line ends that are meant.
    let [source, place] = [source, place].map(|at| printable(&at.to_string()).into_owned());
    Failure::plain(format_args!("'{source}' and '{place}' are the same file"))
}

/// Whether what is there may be replaced.
fn check_replaced(
    source: &Location,
    facts: &Facts,
    place: &Location,
    found: &Facts,
) -> Result<(), Failure> {
    if found.is_directory() {
        let what = "is a directory, and not replaced";
        return Err(Failure::trouble(place, what));
    }
    // Where a symlink leads does not matter if that cannot be told.
    let behind = place.find(First::Followed).ok().flatten();
    let behind = behind.as_ref().unwrap_or(found);
    if [found.identity, behind.identity].contains(&facts.identity) {
        return Err(same_file(source, place));
    }
    let is_link = |facts: &Facts| facts.file_type == FileType::Symlink;
    if is_link(found) && !is_link(facts) && place.leads_to_descriptor() {
        let what = "leads to an open file, and is not replaced; cat writes into it";
        return Err(Failure::trouble(place, what));
    }
    let is_node = |file_type| {
        !matches!(
            file_type,
            FileType::Regular | FileType::Directory | FileType::Symlink
        )
    };
    if is_node(behind.file_type) && !is_node(facts.file_type) {
        let hint = match place {
            Location::Host(_) => "; cat writes into it",
            Location::Image(_) => "",
        };
        let what = format!("is a device, pipe or socket, and not replaced{hint}");
        return Err(Failure::trouble(place, what));
    }
    Ok(())
}
