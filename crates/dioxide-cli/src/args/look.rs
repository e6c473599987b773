//! Arguments of what only looks: ls, cat, stat, du, df, tree.

use super::{ImageArgs, parse_size};
use crate::address::Operand;
use crate::render::TimeStyle;
use clap::{ArgAction, Args};
use dioxide::{Metadata, Timestamp};

/// Lists directories
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "\
Names are sorted by their bytes, one in a line. Owners are numbers: their names are the image's
affair. --json prints an array with an element for each directory, and for each other operand.

Examples:
  dioxide ls disk.img:/
  dioxide ls -la disk.img:/etc disk.img:/var/log
  dioxide ls -lSr 'disk.img:/var/log/*.gz'
  dioxide ls --json disk.img:/home"
)]
pub struct LsArgs {
    /// Directories, or files
    #[arg(value_name = "IMG:/PATH", value_parser = Operand::parser())]
    pub paths: Vec<Operand>,
    /// Show mode, links, owner, group, size, time
    #[arg(short, long)]
    pub long: bool,
    /// Show names that begin with a dot
    #[arg(short, long)]
    pub all: bool,
    /// The same, but not '.' and '..'
    #[arg(short = 'A', long)]
    pub almost_all: bool,
    /// Show sizes as 1.5K, 23M
    #[arg(short, long)]
    pub human_readable: bool,
    /// Show inode numbers
    #[arg(short, long)]
    pub inode: bool,
    /// Show how much space is allocated, in KiB
    #[arg(short, long)]
    pub size: bool,
    /// What is in directories, too
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// One name in a line, as always
    #[arg(short = '1')]
    pub one: bool,
    /// Newest first
    #[arg(short = 't', overrides_with = "by_size")]
    pub by_time: bool,
    /// The time when the inode changed: to show with -l, else to sort by
    #[arg(short = 'c', overrides_with = "by_access")]
    pub by_change: bool,
    /// The time of the last access, likewise
    #[arg(short = 'u')]
    pub by_access: bool,
    /// Times in this form: full-iso, long-iso, iso, locale, or +FORMAT as of strftime
    #[arg(long, value_name = "STYLE", default_value = "locale")]
    pub time_style: TimeStyle,
    /// As -l with --time-style=full-iso
    #[arg(long)]
    pub full_time: bool,
    /// Tell of what symbolic links lead to
    #[arg(short = 'L', long)]
    pub dereference: bool,
    /// Largest first
    #[arg(short = 'S')]
    pub by_size: bool,
    /// The other way round
    #[arg(short, long)]
    pub reverse: bool,
    /// Show directories themselves, not what is in them
    #[arg(short, long)]
    pub directory: bool,
    /// Mark directories by /, programs by *, links by @, pipes by |, sockets by =
    #[arg(short = 'F', long)]
    pub classify: bool,
    /// Numeric owners, as always
    #[arg(short = 'n', long)]
    pub numeric_uid_gid: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    pub open: ImageArgs,
}

impl LsArgs {
    /// Whether lines have all that is known of a file.
    pub fn is_long(&self) -> bool {
        self.long || self.full_time
    }

    /// Whether the newest come first.
    pub fn is_by_time(&self) -> bool {
        let is_asked = (self.by_change || self.by_access) && !self.is_long();
        self.by_time || is_asked && !self.by_size
    }

    /// The time that is meant.
    pub fn time(&self, metadata: &Metadata) -> Timestamp {
        match (self.by_change, self.by_access) {
            (true, _) => metadata.ctime,
            (_, true) => metadata.atime,
            _ => metadata.mtime,
        }
    }
}

/// Tells all about files: size, owner, times, flags, attributes
#[derive(Args, Debug)]
#[command(after_help = "\
A format may have: %n name, %N quoted name with a link's target, %s size, %b blocks of %B bytes, %o block of the file
system, %f raw mode, %a mode, %A mode as in ls, %F type, %i inode, %h links, %u owner, %g group, %t and %T device, %x %y
%z %w times of access, change, change of the inode, birth (%X %Y %Z %W in seconds); with flags, width and precision as in printf.
--json prints an array with an element for each operand.

Examples:
  dioxide stat disk.img:/etc/passwd
  dioxide stat -L disk.img:/bin
  dioxide stat --format '%a %u:%g %s %n' 'disk.img:/etc/*'
  dioxide stat --json disk.img:/a disk.img:/b")]
pub struct StatArgs {
    /// Files of any kind
    #[arg(value_name = "IMG:/PATH", required = true, value_parser = Operand::parser())]
    pub paths: Vec<Operand>,
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    pub dereference: bool,
    /// Print a line of this form for each
    #[arg(short = 'c', long, value_name = "FORMAT", conflicts_with_all = ["printf", "json"])]
    pub format: Option<String>,
    /// Print a line of numbers for each
    #[arg(short, long, conflicts_with_all = ["format", "printf", "json"])]
    pub terse: bool,
    /// The same, with escapes such as \n, and without line ends of its own
    #[arg(long, value_name = "FORMAT", conflicts_with = "json")]
    pub printf: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// Copies files to standard output
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dioxide cat disk.img:/etc/os-release
  dioxide cat 'disk.img:/var/log/*.log' | sort
  dioxide cat --img-offset 1M card.img:/boot/vmlinuz >vmlinuz")]
pub struct CatArgs {
    /// Regular files
    #[arg(value_name = "IMG:/PATH", required = true, value_parser = Operand::parser())]
    pub paths: Vec<Operand>,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// Tells how much space files take
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "\
Counts in KiB; files with several names once. --json prints an array of the lines, in bytes.

Examples:
  dioxide du -sh disk.img:/home
  dioxide du -ab disk.img:/etc
  dioxide du -d 1 'disk.img:/*'"
)]
pub struct DuArgs {
    /// Directories, or files
    #[arg(value_name = "IMG:/PATH", value_parser = Operand::parser())]
    pub paths: Vec<Operand>,
    /// Show files too, not only directories
    #[arg(short, long, conflicts_with = "summarize")]
    pub all: bool,
    /// Show the operands only
    #[arg(short, long, conflicts_with = "max_depth")]
    pub summarize: bool,
    /// Show sizes as 1.5K, 23M
    #[arg(short, long)]
    pub human_readable: bool,
    /// Show what lies so many directories deep at most
    #[arg(short = 'd', long, value_name = "N")]
    pub max_depth: Option<usize>,
    /// Sizes of files rather than the space that they take
    #[arg(long)]
    pub apparent_size: bool,
    /// The same, in bytes
    #[arg(short, long)]
    pub bytes: bool,
    /// Show a total; in JSON the element with "total": true
    #[arg(short = 'c', long)]
    pub total: bool,
    /// Count files as often as they have names
    #[arg(short = 'l', long)]
    pub count_links: bool,
    /// Count in KiB, as always
    #[arg(short = 'k', overrides_with_all = ["human_readable", "bytes"])]
    kib: bool,
    /// Stay in one file system, as always
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// Tells how much space images have left
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  dioxide df disk.img
  dioxide df -hT disk.img root.img
  dioxide df -i disk.img"
)]
pub struct DfArgs {
    /// Images; a path inside makes no difference
    #[arg(value_name = "IMG", value_parser = Operand::parser())]
    pub images: Vec<Operand>,
    /// Show sizes as 1.5K, 23M
    #[arg(short, long)]
    pub human_readable: bool,
    /// Inodes instead of blocks
    #[arg(short, long)]
    pub inodes: bool,
    /// Show the type of the file system
    #[arg(short = 'T', long)]
    pub print_type: bool,
    /// Count in KiB, as always
    #[arg(short = 'k', overrides_with_all = ["human_readable", "block_size"])]
    kib: bool,
    /// The words of POSIX above the columns
    #[arg(short = 'P', long)]
    pub portability: bool,
    /// Count in blocks of so many bytes
    #[arg(short = 'B', long, value_name = "BYTES", value_parser = parse_block_size, conflicts_with = "human_readable")]
    pub block_size: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    pub open: ImageArgs,
}

fn parse_block_size(word: &str) -> Result<u64, String> {
    let with_one = match word.starts_with(|c: char| c.is_ascii_digit()) {
        true => word.to_owned(),
        false => format!("1{word}"),
    };
    match parse_size(&with_one)? {
        0 => Err("blocks of no bytes".into()),
        bytes => Ok(bytes),
    }
}

/// Shows directories as a tree
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  dioxide tree disk.img:/etc
  dioxide tree -L 2 -d disk.img:/
  dioxide tree --json disk.img:/home"
)]
pub struct TreeArgs {
    /// Directories
    #[arg(value_name = "IMG:/PATH", value_parser = Operand::parser())]
    pub paths: Vec<Operand>,
    /// Show names that begin with a dot
    #[arg(short, long)]
    pub all: bool,
    /// So many levels at most
    #[arg(short = 'L', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub level: Option<u32>,
    /// Directories only
    #[arg(short)]
    pub directories: bool,
    /// Show sizes in bytes
    #[arg(short)]
    pub size: bool,
    /// Show sizes as 1.5K, 23M
    #[arg(short)]
    pub human_readable: bool,
    /// Print JSON, in the form of tree -J
    #[arg(long)]
    pub json: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    pub open: ImageArgs,
}
