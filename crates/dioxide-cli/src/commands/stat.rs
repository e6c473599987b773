//! `dioxide stat`: in the shape of `stat`, and below it what only ext4 has; or in any form.

mod format;

use crate::args::StatArgs;
use crate::failure::{Failure, Status};
use crate::images::Purpose;
use crate::output::{JsonArray, Out};
use crate::render::{Text, mode_string};
use crate::session::{JsonFile, Session, Target};
use dioxide::format::inode::InodeFlags;
use dioxide::{Error, FileType, Metadata, Xattr};
use format::Format;
use serde::Serialize;
use std::io::{self, Write};

/// All that is told of one file.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(skip)]
    shown: &'a [u8],
    #[serde(flatten)]
    file: JsonFile,
    #[serde(flatten)]
    metadata: Metadata,
    mode: String,
    flag_names: Vec<&'static str>,
    #[serde(flatten)]
    target: Option<Text>,
    xattrs: Vec<JsonXattr>,
}

#[derive(Serialize)]
struct JsonXattr {
    #[serde(flatten)]
    name: Text,
    #[serde(flatten)]
    value: Text,
}

const HEAD: &str =
    "  Size: %-10s\tBlocks: %-10b IO Block: %-6o %F\nDevice: %Hd,%Ld\tInode: %-10i  Links: ";
const TAIL: &str = "\nAccess: (%04a/%10.10A)  Uid: (%5u/%8U)   Gid: (%5g/%8G)\n\
    Access: %x\nModify: %y\nChange: %z\n Birth: %w\n";

const TERSE: &str = "%n %s %b %f %u %g %D %i %h %t %T %X %Y %Z %W %o";

pub fn run(args: &StatArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    let wrong = |what| Failure::trouble("format", what);
    let lines = args.format.as_ref().map(|text| Format::parse(text, false));
    let printf = args.printf.as_ref().map(|text| Format::parse(text, true));
    let terse = args.terse.then(|| Format::parse(TERSE, false));
    let form = lines.or(printf).or(terse);
    let form = form.transpose().map_err(wrong)?;
    session.begin(&args.open, Purpose::Look);
    let mut array = JsonArray::default();
    let status = session.for_each(&args.paths, |target| {
        let failure = |error| target.failure(&error);
        let (told, read) = gather(&target, args.dereference).map_err(failure)?;
        match &form {
            _ if args.json => array.push(&told, out)?,
            None => print(&told, out)?,
            Some(form) => {
                form.write(&told, out)?;
                out.write_all(if args.printf.is_some() { b"" } else { b"\n" })?;
            }
        }
        read.map_err(failure)
    })?;
    if args.json {
        array.finish(out)?;
    }
    Ok(status)
}

/// What is told, and whether all of it could be read.
fn gather(target: &Target, follow: bool) -> Result<(Told<'_>, Result<(), Error>), Error> {
    let (fs, path) = (&target.fs, target.path());
    let node = match follow {
        true => fs.node(path)?,
        false => fs.symlink_node(path)?,
    };
    let metadata = node.metadata();
    let is_link = metadata.file_type == FileType::Symlink;
    let mut read = Ok(());
    let xattrs = node.xattrs().unwrap_or_else(|error| {
        read = Err(error);
        Vec::new()
    });
    let link = is_link.then(|| node.read_link()).transpose();
    let link = link.unwrap_or_else(|error| {
        read = Err(error);
        None
    });
    let told = Told {
        shown: &target.shown,
        file: target.json(),
        mode: mode_string(metadata.file_type, metadata.permissions),
        flag_names: InodeFlags(metadata.flags).names(),
        metadata,
        target: link.map(|text| Text::new("target", text)),
        xattrs: xattrs.into_iter().map(json_xattr).collect(),
    };
    Ok((told, read))
}

fn json_xattr(xattr: Xattr) -> JsonXattr {
    JsonXattr {
        name: Text::new("name", xattr.name),
        value: Text::new("value", xattr.value),
    }
}

fn print(told: &Told<'_>, out: &mut Out) -> io::Result<()> {
    out.write_all(b"  File: ")?;
    out.name(told.shown)?;
    if let Some(target) = &told.target {
        out.write_all(b" -> ")?;
        out.name(&target.bytes)?;
    }
    let links = match told.metadata.device {
        Some(_) => "%-5h Device type: %Hr,%Lr",
        None => "%h",
    };
    let form = Format::parse(&format!("\n{HEAD}{links}{TAIL}"), false);
    form.expect("the format is a constant").write(told, out)?;
    print_ext4(told, out)
}

fn print_ext4(told: &Told<'_>, out: &mut Out) -> io::Result<()> {
    let Metadata {
        flags,
        generation,
        project,
        atomic_write,
        ..
    } = told.metadata;
    let names = match told.flag_names.join(", ") {
        names if names.is_empty() => "none".into(),
        names => names,
    };
    writeln!(
        out,
        " Flags: {flags:#x} ({names})  Generation: {generation}"
    )?;
    if let Some(project) = project {
        writeln!(out, "Project: {project}")?;
    }
    if let Some(units) = atomic_write {
        writeln!(
            out,
            "Atomic: writes of {} to {} bytes",
            units.min, units.max
        )?;
    }
    for xattr in &told.xattrs {
        out.write_all(b" Xattr: ")?;
        out.name(&xattr.name.bytes)?;
        writeln!(out, "={}", xattr.value.bytes.escape_ascii())?;
    }
    Ok(())
}
