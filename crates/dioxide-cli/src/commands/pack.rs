//! `dioxide pack`: finds out what the source is, and hands it to the library.

use crate::address::Address;
use crate::args::PackArgs;
use crate::failure::{Failure, Status, complain};
use crate::images::Images;
use crate::output::Out;
use crate::progress::Progress;
use crate::render::{bytes_words, count_words};
use dioxide_pack::size::{Layout, Need, need};
use dioxide_pack::tar::ReadOptions;
use dioxide_pack::{Error, Totals, Tree, Warning, Watch, source, tar};
use serde::Serialize;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What a dry run tells.
#[derive(Serialize)]
struct Summary<'a> {
    totals: Totals,
    need: Need,
    block_size: u32,
    warnings: &'a [Warning],
}

pub fn run(args: &PackArgs, out: &mut Out) -> Result<Status, Failure> {
    if !args.dry_run {
        let what = "unsupported: writing a tree into an image; --dry-run checks the tree";
        return Err(Failure::trouble(args.image.display(), what));
    }
    let tree = tree(args)?;
    let mut layout = Layout::default();
    (layout.block_bytes, layout.cluster_bytes) = (args.block_size, args.block_size);
    let summary = Summary {
        totals: tree.totals(),
        need: need(tree.entries(), &layout).map_err(failure)?,
        block_size: args.block_size,
        warnings: tree.warnings(),
    };
    match args.json {
        true => out.json(&summary)?,
        false => print(&summary, out)?,
    }
    Ok(warn(summary.warnings))
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
    Ok(())
}

fn tree(args: &PackArgs) -> Result<Tree, Failure> {
    let filter = args.filter.filter()?;
    let path = Path::new(&args.source);
    if path.is_dir() {
        return source::folder::read(path, filter).map_err(failure);
    }
    if let Some(address) = image_address(&args.source) {
        let fs = Images::new(&args.open).fs(&address.image)?;
        return source::image::read(&fs, &address.path, filter).map_err(failure);
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
    tar::read(path, options, &mut Bar::new()).map_err(failure)
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

/// Whether a file has a superblock's magic, and none of an archive.
fn is_image(path: &Path) -> bool {
    let read = |offset, magic: &[u8]| {
        let mut buf = vec![0; magic.len()];
        let file = File::open(path);
        file.and_then(|file| file.read_exact_at(&mut buf, offset))
            .is_ok()
            && buf == magic
    };
    read(1024 + 56, &[0x53, 0xEF]) && !read(257, b"ustar")
}

/// A bar for whatever the library is at.
pub struct Bar(Progress);

impl Bar {
    pub fn new() -> Bar {
        Bar(Progress::none())
    }
}

impl Watch for Bar {
    fn expect(&mut self, bytes: u64) {
        self.0 = Progress::of_bytes(bytes);
    }

    fn done(&mut self, bytes: u64) {
        self.0.advance(bytes);
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
        Error::Image { name, source } => Failure::engine(&name, name.as_bytes(), &source),
        error => Failure::Told {
            about: None,
            what: error.to_string(),
            status: Status::Trouble,
        },
    }
}
