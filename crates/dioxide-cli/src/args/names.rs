//! Arguments of what makes and removes names: rm, mkdir, rmdir, ln, mknod.

use super::mode::{ModeChange, umask};
use super::{ImageArgs, NewFiles};
use crate::address::Operand;
use clap::Args;

/// Removes files
#[derive(Args, Debug)]
#[command(after_help = "\
With --no-preserve-root all that is in the root directory is removed, and the root itself stays.

Examples:
  dioxide rm disk.img:/etc/machine-id
  dioxide rm -rf 'disk.img:/tmp/*' disk.img:/var/cache
  dioxide rm -d disk.img:/mnt")]
pub struct RmArgs {
    /// Files of any kind; symbolic links themselves
    #[arg(value_name = "IMG:/PATH", value_parser = Operand::parser(), required_unless_present = "force")]
    pub paths: Vec<Operand>,
    /// Directories too, with what is in them
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Say nothing of what does not exist
    #[arg(short, long)]
    pub force: bool,
    /// Empty directories too
    #[arg(short, long)]
    pub dir: bool,
    /// Take the root directory as any other
    #[arg(long)]
    pub no_preserve_root: bool,
    /// Print what is removed
    #[arg(short, long)]
    pub verbose: bool,
    /// Print an array of JSON: an element for each file that is removed
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// Makes directories
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dioxide mkdir disk.img:/srv/data disk.img:/srv/log
  dioxide mkdir -p -m 750 --owner 1000:1000 disk.img:/home/me/a/b")]
pub struct MkdirArgs {
    /// Directories to be made
    #[arg(value_name = "IMG:/PATH", required = true, value_parser = Operand::parser())]
    pub paths: Vec<Operand>,
    /// Make what is missing on the way too, and leave alone what is there
    #[arg(short, long)]
    pub parents: bool,
    /// The mode, as for chmod; by default what the umask leaves of rwxrwxrwx
    #[arg(short, long, value_parser = parse_mode)]
    pub mode: Option<ModeChange>,
    /// Print what is made
    #[arg(short, long)]
    pub verbose: bool,
    /// Print an array of JSON: an element for each file that is made
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub new_files: NewFiles,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// Removes empty directories
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dioxide rmdir disk.img:/mnt disk.img:/media
  dioxide rmdir -p disk.img:/a/b/c")]
pub struct RmdirArgs {
    /// Directories
    #[arg(value_name = "IMG:/PATH", required = true, value_parser = Operand::parser())]
    pub paths: Vec<Operand>,
    /// Then the directories on the way, from the last to the first
    #[arg(short, long)]
    pub parents: bool,
    /// Say nothing of what is not empty
    #[arg(long)]
    pub ignore_fail_on_non_empty: bool,
    /// Print what is removed
    #[arg(short, long)]
    pub verbose: bool,
    /// Print an array of JSON: an element for each file that is removed
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// Makes hard and symbolic links
#[derive(Args, Debug)]
#[command(after_help = "\
The last operand is the link, or a directory that links go into. With -s what comes before is the text of the link, as it
is; written as IMG:/PATH with the image of the link, the path is.

Examples:
  dioxide ln disk.img:/bin/busybox disk.img:/bin/sh
  dioxide ln -s ../usr/lib disk.img:/lib
  dioxide ln -sf disk.img:/usr/share/zoneinfo/UTC disk.img:/etc/localtime")]
pub struct LnArgs {
    /// What the links lead to, and at last the link
    #[arg(value_name = "TARGET... LINK", required = true, value_parser = Operand::parser())]
    pub operands: Vec<Operand>,
    /// Symbolic links
    #[arg(short, long)]
    pub symbolic: bool,
    /// Replace files that are there already
    #[arg(short, long)]
    pub force: bool,
    /// A symbolic link to a directory is no directory that links go into
    #[arg(short, long)]
    pub no_dereference: bool,
    /// Make all links in this directory
    #[arg(short, long, value_name = "DIR", value_parser = Operand::parser(), conflicts_with = "no_target_directory")]
    pub target_directory: Vec<Operand>,
    /// The last operand is the link's name even if it is a directory
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,
    /// Print what is made
    #[arg(short, long)]
    pub verbose: bool,
    /// Print an array of JSON: an element for each file that is made
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub new_files: NewFiles,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// Makes devices, pipes and sockets
#[derive(Args, Debug)]
#[command(after_help = "\
A path is followed by its type: b (a block device) or c or u (a character device), with a major and a minor number; p (a
pipe) or s (a socket). With --fifo or --socket all operands are paths.

Examples:
  dioxide mknod -m 666 disk.img:/dev/null c 1 3
  dioxide mknod disk.img:/dev/initctl p
  dioxide mknod --fifo disk.img:/run/a disk.img:/run/b")]
pub struct MknodArgs {
    /// The path and its type, or paths
    #[arg(value_name = "IMG:/PATH", required = true, value_parser = Operand::parser())]
    pub operands: Vec<Operand>,
    /// Make pipes, as mkfifo does
    #[arg(long)]
    pub fifo: bool,
    /// Make sockets
    #[arg(long, conflicts_with = "fifo")]
    pub socket: bool,
    /// The mode, as for chmod; by default what the umask leaves of rw-rw-rw-
    #[arg(short, long, value_parser = parse_mode)]
    pub mode: Option<ModeChange>,
    /// Print what is made
    #[arg(short, long)]
    pub verbose: bool,
    /// Print an array of JSON: an element for each file that is made
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub new_files: NewFiles,
    #[command(flatten)]
    pub open: ImageArgs,
}

fn parse_mode(word: &str) -> Result<ModeChange, String> {
    ModeChange::parse(word, umask())
}
