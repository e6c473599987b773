//! Setting and removing attributes.

use crate::address::Operand;
use crate::args::{Value, XattrRemoveArgs, XattrRestoreArgs, XattrSetArgs, unescape};
use crate::commands::change::begin;
use crate::commands::report::{Report, Telling};
use crate::commands::write::Input;
use crate::failure::{Failure, Status};
use crate::interrupt;
use crate::output::Out;
use crate::progress::Progress;
use crate::render::Text;
use crate::session::{JsonFile, Place, Session, Target, told};
use dioxide::{Error, Node, XattrMode};
use serde::Serialize;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// What was done, for programs.
#[derive(Serialize)]
struct Changed {
    action: &'static str,
    #[serde(flatten)]
    file: JsonFile,
    #[serde(flatten)]
    name: Text,
}

fn tell(
    report: &mut Report<'_>,
    action: &'static str,
    target: &Target,
    name: &[u8],
) -> Result<(), Failure> {
    report.tell_json(&Changed {
        action,
        file: target.json(),
        name: Text::new("name", name),
    })
}

pub(super) fn set(
    args: &XattrSetArgs,
    session: &mut Session,
    out: &mut Out,
) -> Result<Status, Failure> {
    begin(session, &args.open);
    let mode = match (args.create, args.replace) {
        (true, _) => XattrMode::Create,
        (_, true) => XattrMode::Replace,
        _ => XattrMode::Set,
    };
    let mut report = Report::new(Telling::json(args.json), out);
    let status = session.for_each(&args.paths, |target| {
        let node = node(&target, args.no_dereference)?;
        let done = node.set_xattr(args.name.as_bytes(), &args.value.0, mode);
        done.map_err(|error| failure(&target, args.name.as_bytes(), &error))?;
        tell(&mut report, "set", &target, args.name.as_bytes())
    })?;
    report.finish()?;
    Ok(status)
}

pub(super) fn remove(
    args: &XattrRemoveArgs,
    session: &mut Session,
    out: &mut Out,
) -> Result<Status, Failure> {
    begin(session, &args.open);
    let mut report = Report::new(Telling::json(args.json), out);
    let status = session.for_each(&args.paths, |target| {
        let done = node(&target, args.no_dereference)?.remove_xattr(args.name.as_bytes());
        done.map_err(|error| failure(&target, args.name.as_bytes(), &error))?;
        tell(&mut report, "removed", &target, args.name.as_bytes())
    })?;
    report.finish()?;
    Ok(status)
}

fn node(target: &Target, itself: bool) -> Result<Node, Failure> {
    match itself {
        true => target.node(),
        false => {
            let node = target.fs.node(target.path());
            node.map_err(|error| target.failure(&error))
        }
    }
}

fn failure(target: &Target, name: &[u8], error: &Error) -> Failure {
    let text = String::from_utf8_lossy(name);
    let about = format!("{target}: {}", crate::render::printable(&text));
    match error {
        Error::NoAttribute(_) => Failure::engine(about, name, error),
        error => Failure::engine(about, target.path(), error),
    }
}

pub(super) fn restore(
    args: &XattrRestoreArgs,
    session: &mut Session,
    out: &mut Out,
) -> Result<Status, Failure> {
    begin(session, &args.open);
    let mut report = Report::new(Telling::json(args.json), out);
    let input = Input::of(args.file.as_deref(), session)?;
    let progress = match args.json {
        true => Progress::of_count_beside(report.out),
        false => Progress::of_count(),
    };
    let status = restore_all(args, session, input, progress, &mut report)?;
    report.finish()?;
    Ok(status)
}

fn restore_all(
    args: &XattrRestoreArgs,
    session: &mut Session,
    input: Input,
    mut progress: Progress,
    report: &mut Report<'_>,
) -> Result<Status, Failure> {
    let name = input.name().to_owned();
    let mut worst = Status::Fine;
    // None inside if it could not be found.
    let mut file: Option<Option<(Target, Node)>> = None;
    for (index, line) in input.lines().enumerate() {
        interrupt::check()?;
        let line = line?;
        let wrong =
            |what: String| Failure::trouble(format_args!("{name}: line {}", index + 1), what);
        if let Some(named) = line.strip_prefix(FILE) {
            progress.advance(1);
            match find(args, session, &unescape(named)) {
                Ok(found) => file = Some(Some(found)),
                Err(failure) => {
                    file = Some(None);
                    worst = worst.max(told(Err(failure))?);
                }
            }
            continue;
        }
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        match &file {
            None => return Err(wrong("an attribute before '# file:'".into())),
            Some(None) => {}
            Some(Some((target, node))) => {
                let (name, value) = attribute(&line).map_err(wrong)?;
                let done = node.set_xattr(&name, &value, XattrMode::Set);
                let done = done.map_err(|error| failure(target, &name, &error));
                let done = done.and_then(|()| tell(report, "set", target, &name));
                worst = worst.max(told(done)?);
            }
        }
    }
    Ok(worst)
}

/// What names a file in the form of getfattr.
const FILE: &[u8] = b"# file: ";

fn find(
    args: &XattrRestoreArgs,
    session: &mut Session,
    named: &[u8],
) -> Result<(Target, Node), Failure> {
    let operand = Operand(OsStr::from_bytes(named).into());
    let target = match &args.into {
        None => session.exact_target(&operand)?,
        Some(directory) => {
            let path = match session.place(&operand) {
                Ok(Place::Image { address, .. }) if session.shell().is_none() => address.path,
                _ => named.to_vec(),
            };
            let below = path.iter().position(|&b| b != b'/').unwrap_or(path.len());
            session.target(directory)?.child(&path[below..])
        }
    };
    let node = node(&target, args.no_dereference)?;
    Ok((target, node))
}

/// `name=value`, or a name alone for an empty value.
fn attribute(line: &[u8]) -> Result<(Vec<u8>, Vec<u8>), String> {
    match line.iter().position(|&byte| byte == b'=') {
        None => Ok((unescape(line), Vec::new())),
        Some(at) => {
            let value = Value::decode(&line[at + 1..])?;
            Ok((unescape(&line[..at]), value.0))
        }
    }
}
