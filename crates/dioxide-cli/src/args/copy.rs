//! Arguments of `dioxide cp`.

use super::ImageArgs;
use crate::address::Operand;
use clap::Args;

/// Copies files out of images
#[derive(Args, Debug)]
#[command(after_help = "\
The last operand is where copies go: a directory, or the name of one copy. Holes stay holes. A copy
appears under its name when it is complete.

Examples:
  dioxide cp disk.img:/etc/passwd .
  dioxide cp -a disk.img:/home backup
  dioxide cp 'disk.img:/var/log/*.gz' other.img:/var/log/syslog logs/")]
pub struct CpArgs {
    /// Files, and at last where they go
    #[arg(value_name = "IMG:/PATH... HOST", required = true, num_args = 2.., value_parser = Operand::parser())]
    pub operands: Vec<Operand>,
    /// Directories too, with what is in them; symbolic links as such
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Keep mode, owner and times
    #[arg(short, long)]
    pub preserve: bool,
    /// As -r -p, with hard links, extended attributes and access control lists
    #[arg(short, long)]
    pub archive: bool,
    /// Leave files alone that are there already
    #[arg(short, long)]
    pub no_clobber: bool,
    /// Print what is copied
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub open: ImageArgs,
}
