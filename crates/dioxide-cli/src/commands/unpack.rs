//! `dioxide unpack`.

use super::pack::{Bar, failure, warn};
use crate::args::UnpackArgs;
use crate::failure::{Failure, Status};
use crate::images::Images;
use crate::interrupt;
use crate::output::{Descriptor, Out};
use dioxide_pack::sink::folder::{FolderOptions, FolderSink};
use dioxide_pack::tar::Compression;
use dioxide_pack::tar::write::TarSink;
use dioxide_pack::{Error, Sink, Totals, Warning, source};
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;

/// What was unpacked.
#[derive(Serialize)]
struct Summary<'a> {
    totals: Totals,
    warnings: &'a [Warning],
}

pub fn run(args: &UnpackArgs, out: &mut Out) -> Result<Status, Failure> {
    let to_stdout = args.target.as_os_str() == "-";
    if to_stdout && args.json {
        return Err(Failure::trouble(
            "--json",
            "standard output is the archive's",
        ));
    }
    let name = args.target.as_os_str().as_bytes();
    let is_other = |end: &&str| name.ends_with(end.as_bytes());
    if compression(args).is_none() && !args.target.is_dir() && OTHER_ARCHIVES.iter().any(is_other) {
        let what = "no such archive is written: there are .tar, .tar.gz, .tgz, .tar.zst and .tzst; for a folder of this name make it first";
        return Err(Failure::trouble(args.target.display(), what));
    }
    let filter = args.filter.filter(None)?;
    let fs = Images::new(&args.open).fs(&args.source.image)?;
    let read = source::image::read(&fs, &args.source.path, filter);
    let mut tree = read.map_err(|error| in_image(args, error))?;
    // Nothing was made before this, and nothing is left of an archive that goes to a pipe, whose reader may make it wait.
    if !to_stdout {
        interrupt::watch();
    }
    let mut sink: Box<dyn Sink> = match compression(args) {
        None => {
            let options = FolderOptions {
                merge: args.merge,
                ..FolderOptions::default()
            };
            Box::new(FolderSink::new(&args.target, options).map_err(failure)?)
        }
        Some(how) if to_stdout => {
            Box::new(TarSink::new("standard output", Descriptor, how).map_err(failure)?)
        }
        Some(how) => Box::new(TarSink::create(&args.target, how).map_err(failure)?),
    };
    let written = tree.write_to(&mut *sink, &mut Bar::new(false));
    written.map_err(|error| in_image(args, error))?;
    let warnings = [tree.warnings(), sink.warnings()].concat();
    if args.json {
        out.json(&Summary {
            totals: tree.totals(),
            warnings: &warnings,
        })?;
    }
    Ok(warn(&warnings))
}

/// Files of the image are named with it.
fn in_image(args: &UnpackArgs, error: Error) -> Failure {
    match error {
        Error::Image { name, source } => {
            let image = args.source.image.display();
            let about = format!("{image}:{name}");
            Failure::engine(about, name.as_bytes(), &source).with_status(Status::Trouble)
        }
        error => match failure(error) {
            // Of an archive a part is worth nothing, which whoever waits for it may not see.
            Failure::PipeClosed => Failure::trouble("standard output", "Broken pipe"),
            failure => failure,
        },
    }
}

/// Ends of names that archives have, and that nothing is written as. Nobody wants a folder of such a name.
const OTHER_ARCHIVES: &[&str] = &[
    ".zip",
    ".7z",
    ".cpio",
    ".rar",
    ".tar.xz",
    ".txz",
    ".tar.bz2",
    ".tbz2",
    ".tar.lz4",
    ".tar.lzma",
];

/// How the archive is compressed; none for a folder.
fn compression(args: &UnpackArgs) -> Option<Compression> {
    let flags = [
        (args.tar, Compression::None),
        (args.gzip, Compression::Gzip),
        (args.zstd, Compression::Zstd),
    ];
    if let Some((_, how)) = flags.iter().find(|(given, _)| *given) {
        return Some(*how);
    }
    match args.target.as_os_str().as_bytes() {
        b"-" => Some(Compression::None),
        _ if args.target.is_dir() => None,
        name => Compression::of_name(name),
    }
}
