//! Arguments of `pack` and `unpack`, and of what both do on the way.

use super::size::parse_size;
use super::{FsArgs, ImageArgs, source_date_epoch};
use crate::address::Address;
use crate::failure::Failure;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgGroup, Args};
use dioxide::Timestamp;
use dioxide_pack::image::Reserve;
use dioxide_pack::{Filter, OwnerRule, Pattern};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

/// What is left out or changed on the way.
#[derive(Args, Clone, Debug)]
pub struct FilterArgs {
    /// Leave out what matches, with everything below; may be repeated. As with tar, * and ? also stand for slashes, and a pattern may match from behind any slash; one that begins with a slash matches from the root on. ? and a set in brackets, which may have ranges and classes and begin with !, stand for one character; a backslash takes the next one as it is
    #[arg(long, value_name = "GLOB", value_parser = pattern_parser())]
    pub exclude: Vec<Pattern>,
    /// Change owners; may be repeated, the first that knows an ID decides. UID:GID for all files; u:FROM:TO or u:FROM:TO:COUNT for users, g: for groups, b: for both: also those that access control lists and capabilities name. Names never count, numbers do
    #[arg(long, value_name = "MAP")]
    pub owner_map: Vec<OwnerRule>,
    /// Let no file be younger than this, in seconds since 1970; without it, than SOURCE_DATE_EPOCH if that is set
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub mtime: Option<i64>,
}

impl FilterArgs {
    /// What the library calls it. `epoch` is a limit too, but `--mtime` goes first.
    pub fn filter(&self, epoch: Option<i64>) -> Result<Filter, Failure> {
        let latest = match self.mtime.or(epoch) {
            Some(secs) => Some(secs),
            None => source_date_epoch().map_err(Failure::plain)?,
        };
        Ok(Filter {
            exclude: self.exclude.clone(),
            exclude_file: None,
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
#[command(mut_arg("block_size", |arg| arg.help("Bytes per block: 1k to 64k; 4k if not given")), after_help = "\
SRC is a folder, an archive (tar: ustar, GNU or PAX; plain, gzip, zstd or xz; - for standard input)
or an image, or IMG:/dir for a directory in one. Entries are packed in the order of their paths, so
that the outcome does not depend on the order in SRC. A file stays under those of its names that are
not excluded; so what is excluded of an archive that is compressed or comes through a pipe takes room
for temporary files as well. An archive with an entry that no tree may hold
(an absolute path, '..', a path that comes twice, an entry below a symbolic link, a hard link out of
the tree) or that is damaged is refused before anything is written; one without its end mark is taken, with a warning. A directory may come twice if it is
the same in everything: archives that were added to have such. Directories that an archive
implies and does not describe get mode 0755 and belong to root, which --owner-map maps too. Access control
lists must have numbers: GNU tar --acls writes names alone, which are other numbers on another
machine, unless --numeric-owner is given too.

The same entries and options give the same bytes, on every run and machine. What is random or the
time elsewhere comes from the tree: uuid and hash seed from its names and attributes, the time of the
file system (and when files were made and changed) is that of the youngest file. --epoch, or
SOURCE_DATE_EPOCH in the environment, sets that time, and no file is younger then. Where a sparse file
has its holes is a part of it: a file system that keeps other holes makes another image.

IMG gets its name when it is complete; a file of that name, whose mode and owner it keeps, is replaced,
unless it is mounted, attached to a loop device or locked, as by another dioxide. The exit status is 1
if something could not be kept as it is, which is told; 2 if there is no image.

Examples:
  dioxide pack rootfs disk.img
  dioxide pack --reserve 20% -L root -m 0 rootfs.tar.zst disk.img
  dioxide pack --size 1G --owner-map 0:0 --exclude '*.o' tree disk.img
  dioxide pack -n --json old.img:/home new.img
  zstd -dc rootfs.tar.zst | dioxide pack -O ^has_journal - disk.img")]
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
    /// Make the image as small as SRC fits in by a count, with a thousandth and eight clusters to spare; it is so without --size.
    /// Of many small files it is smaller with -b 1024
    #[arg(long, conflicts_with = "size")]
    pub fit: bool,
    /// Keep so much free besides, in bytes or as 10% of what SRC takes; not with --size, which says all
    #[arg(long, value_name = "BYTES|%", conflicts_with = "size")]
    pub reserve: Option<ReserveWord>,
    /// Size of the image; -n without it tells one that is enough
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Print nothing
    #[arg(short, long)]
    pub quiet: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten, next_help_heading = "What is packed")]
    pub filter: FilterArgs,
    #[command(flatten)]
    pub fs: FsArgs,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// What is to stay free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveWord(pub Reserve);

impl FromStr for ReserveWord {
    type Err = String;

    fn from_str(word: &str) -> Result<ReserveWord, String> {
        let Some(percent) = word.strip_suffix('%') else {
            return Ok(ReserveWord(Reserve::Bytes(parse_size(word)?)));
        };
        let percent = percent.parse();
        let percent = percent.map_err(|_| format!("'{word}' is no whole number of percent"))?;
        Ok(ReserveWord(Reserve::Percent(percent)))
    }
}

/// Copies a tree out of an image, into a folder or an archive
#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("compression").args(["tar", "gzip", "zstd"]),
    after_help = "\
TARGET is an archive if it is -, if its name ends in .tar, .tar.gz, .tgz, .tar.zst or .tzst and it is
no folder, or if an option says so; otherwise a folder. Kept are owners (in a folder: by root), modes
(set-ID bits in a folder: by root, or of files that are yours), times, hard links, devices (in a folder: by root; sockets only in a folder), attributes, access control
lists and holes; inode flags and projects only images have. The same tree gives the same bytes of an archive each
time.

A file that cannot be kept as it is, is told; the exit status is 1 then. An archive gets its name when
it is complete, and keeps the mode and owner of a file that had the name.

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
    #[command(flatten, next_help_heading = "What is unpacked")]
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
