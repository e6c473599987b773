//! Arguments of `pack` and `unpack`, and of what both do on the way.

use super::ImageArgs;
use super::size::parse_size;
use crate::address::Address;
use crate::failure::Failure;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgGroup, Args};
use dioxide::Timestamp;
use dioxide_pack::{Filter, OwnerRule, Pattern};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What is left out or changed on the way.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "What is packed")]
pub struct FilterArgs {
    /// Leave out what matches, with everything below; may be repeated. As with tar, * and ? also stand for slashes, and a pattern may match from behind any slash; one that begins with a slash matches from the root on
    #[arg(long, value_name = "GLOB", value_parser = pattern_parser())]
    pub exclude: Vec<Pattern>,
    /// Change owners; may be repeated, the first that knows an ID decides. UID:GID for all files; u:FROM:TO or u:FROM:TO:COUNT for users, g: for groups, b: for both. Names never count, numbers do
    #[arg(long, value_name = "MAP")]
    pub owner_map: Vec<OwnerRule>,
    /// Let no file be younger than this, in seconds since 1970; without it, than SOURCE_DATE_EPOCH if that is set
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub mtime: Option<i64>,
}

impl FilterArgs {
    /// What the library calls it.
    pub fn filter(&self) -> Result<Filter, Failure> {
        let epoch = || match std::env::var_os("SOURCE_DATE_EPOCH") {
            None => Ok(None),
            Some(word) => match word.to_str().and_then(|word| word.parse().ok()) {
                Some(secs) => Ok(Some(secs)),
                None => Err(Failure::trouble(
                    "SOURCE_DATE_EPOCH",
                    "is no number of seconds",
                )),
            },
        };
        let latest = match self.mtime {
            Some(secs) => Some(secs),
            None => epoch()?,
        };
        Ok(Filter {
            exclude: self.exclude.clone(),
            owners: self.owner_map.clone(),
            latest: latest.map(|secs| Timestamp { secs, nanos: 0 }),
        })
    }
}

fn pattern_parser() -> impl TypedValueParser<Value = Pattern> {
    OsStringValueParser::new().map(|word: OsString| Pattern::new(word.as_bytes()))
}

/// Makes an image of a folder, an archive or another image
#[derive(Args, Debug)]
#[command(after_help = "\
SRC is a folder, an archive (tar: ustar, GNU or PAX; plain, gzip, zstd or xz; - for standard input)
or an image, or IMG:/dir for a directory in one. Entries are packed in the order of their paths, so
that the outcome does not depend on the order in SRC. An archive with an entry that no tree may hold
(an absolute path, '..', a path that comes twice, an entry below a symbolic link, a hard link out of
the tree) or that is damaged is refused before anything is written. Directories that an archive
implies and does not describe get mode 0755 and belong to root.

Writing images is not there yet: --dry-run checks SRC, and tells what it takes.

Examples:
  dioxide pack --dry-run rootfs disk.img
  dioxide pack -n --json --owner-map 0:0 --exclude '*.o' tree disk.img
  zstd -dc rootfs.tar.zst | dioxide pack -n - disk.img")]
pub struct PackArgs {
    /// Folder, archive or image
    #[arg(value_name = "SRC")]
    pub source: OsString,
    /// Image file
    #[arg(value_name = "IMG")]
    pub image: PathBuf,
    /// Check SRC and tell how much it takes; write nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Block size of the file system
    #[arg(short, long, value_name = "BYTES", default_value = "4k", value_parser = parse_block_size)]
    pub block_size: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub filter: FilterArgs,
    #[command(flatten)]
    pub open: ImageArgs,
}

fn parse_block_size(word: &str) -> Result<u32, String> {
    match parse_size(word)? {
        size @ 1024..=65536 if size.is_power_of_two() => Ok(size as u32),
        _ => Err(format!("'{word}' is no power of 2 from 1k to 64k")),
    }
}

/// Copies a tree out of an image, into a folder or an archive
#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("compression").args(["tar", "gzip", "zstd"]),
    after_help = "\
TARGET is an archive if it is -, if its name ends in .tar, .tar.gz, .tgz, .tar.zst or .tzst and it is
no folder, or if an option says so; otherwise a folder. Kept are owners (in a folder: by root), modes,
times, hard links, devices (in a folder: by root; sockets only in a folder), attributes, access control
lists and holes. The same tree gives the same bytes of an archive each time.

A file that cannot be kept as it is, is told; the exit status is 1 then. An archive gets its name when
it is complete.

Examples:
  dioxide unpack disk.img rootfs
  dioxide unpack disk.img:/etc etc.tar.zst
  dioxide unpack disk.img - | tar -tv
  dioxide unpack --merge --exclude /lost+found disk.img:/ rootfs")]
pub struct UnpackArgs {
    /// Image, or a directory in one
    #[arg(value_name = "IMG[:/DIR]", value_parser = tree_parser())]
    pub source: Address,
    /// Folder or archive; - is an archive on standard output
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
    /// Write into a folder that is not empty; files that are there are replaced
    #[arg(long)]
    pub merge: bool,
    /// Write an archive, not compressed
    #[arg(long)]
    pub tar: bool,
    /// Write an archive, compressed by gzip
    #[arg(long)]
    pub gzip: bool,
    /// Write an archive, compressed by zstd
    #[arg(long)]
    pub zstd: bool,
    /// Print JSON: how much was unpacked
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub filter: FilterArgs,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// `IMG:/dir`, or an image as a whole.
fn tree_parser() -> impl TypedValueParser<Value = Address> {
    OsStringValueParser::new().map(|word: OsString| {
        Address::parse(&word).unwrap_or_else(|_| Address {
            image: word.into(),
            path: b"/".to_vec(),
        })
    })
}
