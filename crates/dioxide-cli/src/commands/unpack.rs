//! `dioxide unpack`.

use super::pack::{Bar, failure, warn};
use crate::args::UnpackArgs;
use crate::failure::{Failure, Status};
use crate::images::Images;
use crate::output::Out;
use dioxide_pack::sink::folder::{FolderOptions, FolderSink};
use dioxide_pack::tar::Compression;
use dioxide_pack::tar::write::TarSink;
use dioxide_pack::{Sink, Totals, Warning, source};
use serde::Serialize;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
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
    let filter = args.filter.filter(None)?;
    let fs = Images::new(&args.open).fs(&args.source.image)?;
    let mut tree = source::image::read(&fs, &args.source.path, filter).map_err(failure)?;
    let mut sink: Box<dyn Sink> = match compression(args) {
        None => {
            let options = FolderOptions {
                merge: args.merge,
                ..FolderOptions::default()
            };
            Box::new(FolderSink::new(&args.target, options).map_err(failure)?)
        }
        Some(how) if to_stdout => {
            let stdout = io::stdout().as_fd().try_clone_to_owned()?;
            Box::new(TarSink::new("standard output", File::from(stdout), how).map_err(failure)?)
        }
        Some(how) => Box::new(TarSink::create(&args.target, how).map_err(failure)?),
    };
    tree.write_to(&mut *sink, &mut Bar::new())
        .map_err(failure)?;
    let warnings = [tree.warnings(), sink.warnings()].concat();
    if args.json {
        out.json(&Summary {
            totals: tree.totals(),
            warnings: &warnings,
        })?;
    }
    Ok(warn(&warnings))
}

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
