//! `dioxide pack`: finds out what the source is, and hands it to the library.

use super::mkfs::wishes;
use crate::address::Address;
use crate::args::{ImageArgs, PackArgs};
use crate::failure::{Failure, Status, complain, io_words};
use crate::images::Images;
use crate::interrupt;
use crate::output::Out;
use crate::progress::Progress;
use crate::render::{Text, bytes_words, count_words};
use crate::streams;
use dioxide::block::file::Replacing;
use dioxide::mkfs::uuid_string;
use dioxide::{Backend, Shortage};
use dioxide_pack::image::{self, ImageOptions, ImageSize, Reserve};
use dioxide_pack::size::Need;
use dioxide_pack::tar::ReadOptions;
use dioxide_pack::{Error, Filter, Totals, Tree, Warning, Watch, source, tar};
use serde::Serialize;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What was made, or would be.
#[derive(Serialize)]
struct Summary<'a> {
    #[serde(flatten)]
    image: Text,
    made: bool,
    totals: Totals,
    need: Need,
    size_bytes: u64,
    block_size: u32,
    blocks: u64,
    inodes: u32,
    label: String,
    uuid: String,
    /// What was decided otherwise than asked.
    notes: &'a [String],
    warnings: &'a [Warning],
}

pub fn run(args: &PackArgs, out: &mut Out) -> Result<Status, Failure> {
    let target = match args.dry_run {
        true => None,
        false => Some(target(args)?),
    };
    let tree = tree(args).map_err(|failure| failure.with_status(Status::Trouble));
    let mut tree = tree?;
    // Nothing was made before this, and a signal ends the waiting for an archive from a pipe at once.
    interrupt::watch();
    let options = options(args, &tree)?;
    let packed = match target {
        None => image::plan(&tree, &options),
        Some(target) => image::write(&mut tree, target, &options, &mut Bar::new(args.quiet)),
    };
    let packed = packed.map_err(|error| in_words(args, error))?;
    let warnings = [tree.warnings(), &packed.warnings].concat();
    let sb = packed.plan.superblock();
    let summary = Summary {
        image: Text::path("image", &args.image),
        made: !args.dry_run,
        totals: tree.totals(),
        need: packed.need,
        size_bytes: packed.size_bytes(),
        block_size: sb.block_size(),
        blocks: sb.blocks_count(),
        inodes: sb.inodes_count(),
        label: sb.volume_name(),
        uuid: uuid_string(sb.uuid()),
        notes: packed.plan.notes(),
        warnings: &warnings,
    };
    match args.json {
        true => out.json(&summary)?,
        false if args.quiet => {}
        false => print(&summary, out)?,
    }
    Ok(warn(&warnings))
}

/// An error in words: what is full, and the way out.
fn in_words(args: &PackArgs, error: Error) -> Failure {
    const ROOM: &str = "the host's disk is full; make room there, or put the image elsewhere";
    let image = args.image.display();
    let larger = match args.size {
        Some(_) => "give a larger --size (-n without it tells one), or --fit in its place",
        None => "--reserve makes it larger",
    };
    let given = args.fs.inodes.is_some() || args.fs.bytes_per_inode.is_some();
    match error {
        Error::TooSmall { need, free } if given && need.blocks <= free.blocks => Failure::trouble(
            image,
            format!("{error}; ask for more inodes: a larger -N, a smaller -i, or neither"),
        ),
        Error::TooSmall { .. } => Failure::trouble(image, format!("{error}; {larger}")),
        Error::Invalid(_) => Failure::trouble(image, error),
        Error::Image {
            name,
            source:
                dioxide::Error::NoSpace(
                    Shortage::Clusters { .. } | Shortage::ScatteredClusters | Shortage::Inodes,
                ),
        } => Failure::trouble(
            image,
            format!("too small: there is no room for {name}; {larger}"),
        ),
        // Which file was at hand then says nothing: the host is written to behind it.
        Error::Image {
            source: dioxide::Error::Device(error),
            ..
        } if is_full(&host_error(&error)) => {
            Failure::trouble(image, format!("{}: {ROOM}", io_words(&host_error(&error))))
        }
        Error::Host { name, source } if is_full(&source) => {
            Failure::trouble(name, format!("{}: {ROOM}", io_words(&source)))
        }
        error => failure(error),
    }
}

fn host_error(error: &dioxide::block::Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

/// The image's name, with the file that has it kept from others.
fn target(args: &PackArgs) -> Result<Replacing, Failure> {
    let source = image_address(&args.source).map(|address| address.image);
    let same = |file: PathBuf| Some((file.metadata().ok()?, args.image.metadata().ok()?));
    if let Some((a, b)) = source.and_then(same)
        && (a.dev(), a.ino()) == (b.dev(), b.ino())
    {
        let what = "it is what is packed; give the image another name";
        return Err(Failure::trouble(args.image.display(), what));
    }
    image::target(&args.image).map_err(failure)
}

fn options(args: &PackArgs, tree: &Tree) -> Result<ImageOptions, Failure> {
    if args.fs.extended.iter().any(|list| list.contains("offset=")) {
        let what = "an image that is made begins with its file system";
        return Err(Failure::trouble("-E offset", what));
    }
    let failed = |error: dioxide::Error| Failure::trouble(args.image.display(), error);
    let mut options = ImageOptions::of(tree).map_err(failure)?;
    options.mkfs = wishes(&args.fs, options.mkfs).map_err(failed)?;
    options.keep_inodes = args.fs.inodes.is_some() || args.fs.bytes_per_inode.is_some();
    let reserve = args.reserve.map_or(Reserve::Bytes(0), |word| word.0);
    options.size = match args.size {
        Some(bytes) => ImageSize::Bytes(bytes),
        None => ImageSize::Fit(reserve),
    };
    Ok(options)
}

fn print(summary: &Summary<'_>, out: &mut Out) -> Result<(), Failure> {
    let Totals {
        directories,
        files,
        symlinks,
        hard_links,
        special,
        data_bytes,
        ..
    } = summary.totals;
    writeln!(
        out,
        "{directories} directories, {files} files, {symlinks} symbolic links, {hard_links} hard links, {special} devices, pipes and sockets"
    )?;
    writeln!(out, "Data: {}", bytes_words(data_bytes))?;
    let Need { blocks, inodes, .. } = summary.need;
    writeln!(
        out,
        "Takes {} of {} and {}",
        count_words(blocks, "block"),
        bytes_words(summary.block_size.into()),
        count_words(inodes, "inode")
    )?;
    let dry = if summary.made { "" } else { ", not made" };
    writeln!(
        out,
        "{}: {}, {} and {}{dry}",
        summary.image,
        bytes_words(summary.size_bytes),
        count_words(summary.blocks, "block"),
        count_words(summary.inodes.into(), "inode"),
    )?;
    for note in summary.notes {
        writeln!(out, "{}: {note}", summary.image)?;
    }
    Ok(())
}

fn tree(args: &PackArgs) -> Result<Tree, Failure> {
    let filter = args.filter.filter(args.fs.epoch)?;
    let path = Path::new(&args.source);
    let address = image_address(&args.source).filter(|_| !path.is_dir());
    if address.is_none() {
        refuse_image_options(args)?;
    }
    if path.is_dir() {
        // It may lie in there, of an earlier time.
        let image = args.image.metadata().ok();
        let filter = Filter {
            exclude_file: image.map(|image| (image.dev(), image.ino())),
            ..filter
        };
        return source::folder::read(path, filter).map_err(failure);
    }
    if let Some(address) = address {
        let fs = Images::new(&args.open).fs(&address.image)?;
        return source::image::read(&fs, &address.path, filter).map_err(|error| match error {
            Error::Image { name, source } => {
                let about = format!("{}:{name}", address.image.display());
                Failure::engine(about, name.as_bytes(), &source)
            }
            error => failure(error),
        });
    }
    // Data that has to wait is of the size of the image, and so waits where that will be.
    let beside = match args.image.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Some(Path::new(".")),
        parent => parent.filter(|parent| parent.is_dir()),
    };
    let options = ReadOptions {
        filter,
        spool: beside.map(Path::to_owned),
    };
    if args.source == "-" {
        streams::check_input().map_err(|error| Failure::host("standard input", &error))?;
    }
    let read = tar::read(path, options, &mut Bar::new(args.quiet));
    read.map_err(|error| in_words(args, error))
}

/// How to open an image means nothing where the source is none.
fn refuse_image_options(args: &PackArgs) -> Result<(), Failure> {
    let ImageArgs {
        backend,
        img_offset,
        sb,
        ..
    } = args.open;
    let given = [
        ("--img-offset", img_offset != 0),
        ("--sb", sb.is_some()),
        ("--backend", backend != Backend::Auto),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => {
            let source = args.source.display();
            let what = format!("it is for an image as SRC, and {source} is none");
            Err(Failure::trouble(option, what))
        }
        None => Ok(()),
    }
}

/// The tree that a word names, if it is one in an image.
fn image_address(word: &OsStr) -> Option<Address> {
    match Path::new(word).exists() {
        true => is_image(Path::new(word)).then(|| Address {
            image: word.into(),
            path: b"/".to_vec(),
        }),
        false => Address::parse(word).ok(),
    }
}

/// Whether a file has a superblock's magic, and none of an archive, plain or compressed.
fn is_image(path: &Path) -> bool {
    // A pipe is opened once, by who reads all of it.
    let is_seekable =
        |metadata: Metadata| metadata.is_file() || metadata.file_type().is_block_device();
    if !path.metadata().is_ok_and(is_seekable) {
        return false;
    }
    let read = |offset, magic: &[u8]| {
        let mut buf = vec![0; magic.len()];
        let file = File::open(path);
        file.and_then(|file| file.read_exact_at(&mut buf, offset))
            .is_ok()
            && buf == magic
    };
    let compressed: [&[u8]; 4] = [b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"BZh"];
    let is_archive = read(257, b"ustar") || compressed.iter().any(|magic| read(0, magic));
    read(1024 + 56, &[0x53, 0xEF]) && !is_archive
}

/// A bar for whatever the library is at, unless nothing is to be shown.
pub struct Bar {
    quiet: bool,
    bar: Progress,
}

impl Bar {
    pub fn new(quiet: bool) -> Bar {
        let bar = Progress::none();
        Bar { quiet, bar }
    }
}

impl Watch for Bar {
    fn expect(&mut self, bytes: u64) {
        if !self.quiet {
            self.bar = Progress::of_bytes(bytes);
        }
    }

    fn done(&mut self, bytes: u64) {
        self.bar.advance(bytes);
    }

    fn stops(&self) -> bool {
        interrupt::asked()
    }
}

/// Tells what was left out; that is no success.
pub fn warn(warnings: &[Warning]) -> Status {
    for Warning { path, what } in warnings {
        complain(format_args!("{path}: {what}"));
    }
    match warnings {
        [] => Status::Fine,
        _ => Status::Negative,
    }
}

/// An error of the library in words.
pub fn failure(error: Error) -> Failure {
    match error {
        Error::Host { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe => {
            Failure::PipeClosed
        }
        Error::Stopped => Failure::Interrupted,
        Error::Image { name, source } => Failure::engine(&name, name.as_bytes(), &source),
        Error::Host { name, source } => {
            // Of a file under another name meanwhile, which the system's words would name.
            let words = io_words(&source);
            let words = words.split(" at path ").next().unwrap_or_default();
            Failure::trouble(name, words)
        }
        error => Failure::plain(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    /// There is no file system yet that anybody could remove files from.
    #[test]
    fn image_without_room_for_a_file_is_to_be_larger() {
        for (option, way_out) in [
            ("--size=1M", "give a larger --size"),
            ("--fit", "--reserve makes it larger"),
        ] {
            let cli = Cli::try_parse_from(["dioxide", "pack", option, "tree", "new.img"]);
            let Command::Pack(args) = cli.unwrap().command else {
                panic!("not pack")
            };
            let error = Error::Image {
                name: "a/b".into(),
                source: dioxide::Error::NoSpace(Shortage::Inodes),
            };
            let words = in_words(&args, error).words();
            let begin = format!("too small: there is no room for a/b; {way_out}");
            assert!(words.starts_with(&begin), "{words}");
        }
    }
}
