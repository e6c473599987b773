//! Arguments of what changes files that exist: chmod, chown, touch, truncate, fallocate, write, sync.

use super::mode::umask;
use super::size::{SizeChange, parse_size};
use super::time::{parse_stamp, parse_time};
use super::{ImageArgs, ModeChange, NewFiles, Owner};
use crate::address::Operand;
use clap::{ArgAction, ArgGroup, Args};
use dioxide::Timestamp;
use std::path::PathBuf;

/// Changes permissions
#[derive(Args, Debug)]
#[command(after_help = "\
A mode is a number of up to four octal digits, or as in u=rwx,go-w,+X or +4000. One that begins with '-' comes after '--'.

Examples:
  dioxide chmod 755 disk.img:/usr/local/bin/tool
  dioxide chmod -R u+rwX,go-w disk.img:/home
  dioxide chmod --reference disk.img:/etc/passwd disk.img:/etc/group")]
pub struct ChmodArgs {
    /// The mode, unless it is that of another file; and the files
    #[arg(value_name = "MODE IMG:/PATH...", required = true, value_parser = Operand::parser())]
    pub operands: Vec<Operand>,
    /// What is in directories, too
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// The mode of this file
    #[arg(long, value_name = "IMG:/PATH", value_parser = Operand::parser())]
    pub reference: Option<Operand>,
    /// Print what is changed
    #[arg(short, long)]
    pub verbose: bool,
    /// Print an array of JSON: an element for each file that is changed
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: ImageArgs,
}

impl ChmodArgs {
    /// The word of the mode, if it is one.
    pub fn mode(word: &Operand) -> Result<ModeChange, String> {
        ModeChange::parse(&word.0.to_string_lossy(), umask())
    }
}

/// Changes owners
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "\
Owners are numbers: their names are the image's affair. As UID, UID:GID or :GID.

Examples:
  dioxide chown 0:0 disk.img:/etc/shadow
  dioxide chown -R 1000:1000 disk.img:/home/me
  dioxide chown --reference disk.img:/srv disk.img:/srv/new"
)]
pub struct ChownArgs {
    /// The owner, unless it is that of another file; and the files
    #[arg(value_name = "OWNER IMG:/PATH...", required = true, value_parser = Operand::parser())]
    pub operands: Vec<Operand>,
    /// What is in directories, too
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// The owner and group of this file
    #[arg(long, value_name = "IMG:/PATH", value_parser = Operand::parser())]
    pub reference: Option<Operand>,
    /// Change symlinks themselves, as -R does
    #[arg(short = 'h', long)]
    pub no_dereference: bool,
    /// Print what is changed
    #[arg(short, long)]
    pub verbose: bool,
    /// Print an array of JSON: an element for each file that is changed
    #[arg(long)]
    pub json: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    pub open: ImageArgs,
}

impl ChownArgs {
    /// The word of the owner, if it is one.
    pub fn owner(word: &Operand) -> Result<Owner, String> {
        word.0.to_string_lossy().parse()
    }
}

/// Sets times of access and change, and makes files
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "\
A file that is not there is made. A date is now, @SECONDS, or as in 2026-11-21, 2026-11-21 10:02:37.5, 2026-11-21T10:02:37Z, 2026-11-21T10:02+01:00, 2026-11-21 10:02:37 +0100,
2026-11-21 10:02 UTC, Sat, 21 Nov 2026 10:02:37 +0100, or 10:02 of this day; without an offset it is in the local time zone.

Examples:
  dioxide touch disk.img:/etc/hostname
  dioxide touch -d '2026-11-21 10:02:37' disk.img:/a
  dioxide touch -m -r disk.img:/a disk.img:/b"
)]
pub struct TouchArgs {
    /// Files of any kind
    #[arg(value_name = "IMG:/PATH", required = true, value_parser = Operand::parser())]
    pub paths: Vec<Operand>,
    /// Only the time of the last access
    #[arg(short = 'a')]
    pub access: bool,
    /// Only the time of the last change
    #[arg(short = 'm')]
    pub modify: bool,
    /// Leave out what does not exist
    #[arg(short = 'c', long)]
    pub no_create: bool,
    /// Change a symlink itself; none is made
    #[arg(short = 'h', long)]
    pub no_dereference: bool,
    /// This time instead of now
    #[arg(short, long, value_name = "DATE", value_parser = parse_time, conflicts_with_all = ["reference", "stamp"])]
    pub date: Option<Timestamp>,
    /// The same, in the form of touch
    #[arg(short = 't', value_name = "[[CC]YY]MMDDhhmm[.ss]", value_parser = parse_stamp, conflicts_with = "reference")]
    pub stamp: Option<Timestamp>,
    /// The times of this file
    #[arg(short, long, value_name = "IMG:/PATH", value_parser = Operand::parser())]
    pub reference: Option<Operand>,
    /// Print an array of JSON: an element for each file that is changed
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub new_files: NewFiles,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// Sets sizes of files
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("how").required(true).args(["size", "reference"])), after_help = "\
A size may begin with + (longer by), - (shorter by), < (at most), > (at least), / (rounded down to a
multiple) or % (rounded up). What is added is a hole. A file that is not there is made.

Examples:
  dioxide truncate -s 0 disk.img:/var/log/syslog
  dioxide truncate -s +1G disk.img:/swap
  dioxide truncate -r disk.img:/a disk.img:/b")]
pub struct TruncateArgs {
    /// Regular files
    #[arg(value_name = "IMG:/PATH", required = true, value_parser = Operand::parser())]
    pub paths: Vec<Operand>,
    /// The size, or how it changes
    #[arg(short, long, value_name = "SIZE", allow_hyphen_values = true)]
    pub size: Option<SizeChange>,
    /// The size of this file
    #[arg(short, long, value_name = "IMG:/PATH", value_parser = Operand::parser())]
    pub reference: Option<Operand>,
    /// Leave out what does not exist
    #[arg(short = 'c', long)]
    pub no_create: bool,
    /// Print an array of JSON: an element for each file that is changed
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub new_files: NewFiles,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// Allocates, frees, zeroes or moves a range of a file
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("what").args(["punch_hole", "zero_range", "write_zeroes", "collapse_range", "insert_range"])), after_help = "\
A file that is not there is made to allocate a range of it, and for nothing else.

Examples:
  dioxide fallocate -l 1G disk.img:/swap
  dioxide fallocate -n -o 1M -l 64k disk.img:/log
  dioxide fallocate --punch-hole -o 4k -l 8k disk.img:/data")]
pub struct FallocateArgs {
    /// A regular file
    #[arg(value_name = "IMG:/PATH", value_parser = Operand::parser())]
    pub path: Operand,
    /// Where the range begins
    #[arg(short, long, value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    pub offset: u64,
    /// How long it is
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size)]
    pub length: u64,
    /// The file keeps its size
    #[arg(short = 'n', long, conflicts_with_all = ["write_zeroes", "collapse_range", "insert_range"])]
    pub keep_size: bool,
    /// Free the range; the file keeps its size
    #[arg(short, long)]
    pub punch_hole: bool,
    /// Zero the range without writing to it
    #[arg(short, long)]
    pub zero_range: bool,
    /// Write zeros to the range, so that overwriting it changes no metadata later
    #[arg(short, long)]
    pub write_zeroes: bool,
    /// Take the range out; what is behind it moves forward
    #[arg(short, long)]
    pub collapse_range: bool,
    /// Make room for a hole; what is behind it moves back
    #[arg(short, long)]
    pub insert_range: bool,
    /// Print an array of JSON: an element for each file that is changed
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub new_files: NewFiles,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// Writes standard input into a file
#[derive(Args, Debug)]
#[command(after_help = "\
The file must exist, unless --create is given; what is not written over stays. When the command ends well, all of it is durable.

Examples:
  dioxide write disk.img:/etc/hostname --truncate <hostname
  dioxide write disk.img:/var/db/data --offset 1M --input page.bin
  date | dioxide write --create --truncate disk.img:/etc/built
  journalctl | dioxide write --append disk.img:/var/log/journal.txt")]
pub struct WriteArgs {
    /// A regular file
    #[arg(value_name = "IMG:/PATH", value_parser = Operand::parser())]
    pub path: Operand,
    /// Where the first byte goes
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    pub offset: u64,
    /// Write at the end of the file
    #[arg(short, long, conflicts_with_all = ["offset", "truncate"])]
    pub append: bool,
    /// The file ends behind what is written
    #[arg(short, long)]
    pub truncate: bool,
    /// All as one write, which a crash leaves whole or not at all, if device and file can do that (`dioxide stat`): its
    /// length is a power of two, the offset a multiple of it
    #[arg(long, conflicts_with = "truncate")]
    pub atomic: bool,
    /// Make the file if it is not there
    #[arg(short, long)]
    pub create: bool,
    /// The mode of a file that is made, in octal; by default what the umask leaves of rw-rw-rw-
    #[arg(short, long, requires = "create", value_parser = parse_permissions)]
    pub mode: Option<u16>,
    /// Read this file instead of standard input
    #[arg(short, long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Print an array of JSON: an element for each file that is changed
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub new_files: NewFiles,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// Makes everything durable, and replays a journal that needs it
#[derive(Args, Debug)]
#[command(after_help = "\
What commands changed is durable when they end; only in a shell is there more to do. An image that was not
closed cleanly is recovered.

Examples:
  dioxide sync disk.img")]
pub struct SyncArgs {
    /// Images; a path inside makes no difference
    #[arg(value_name = "IMG", value_parser = Operand::parser())]
    pub images: Vec<Operand>,
    /// Print an array of JSON: an element for each image that is synced
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: ImageArgs,
}

fn parse_permissions(word: &str) -> Result<u16, String> {
    let octal = !word.starts_with('+');
    match u16::from_str_radix(word, 8) {
        Ok(bits) if octal && bits <= 0o7777 => Ok(bits),
        _ => Err(format!("'{word}' is no mode of up to four octal digits")),
    }
}
