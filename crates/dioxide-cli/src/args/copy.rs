//! Arguments of `dioxide cp` and `dioxide mv`.

use super::{ImageArgs, NewFiles};
use crate::address::Operand;
use clap::Args;

/// Copies files out of images, into them and inside them
#[derive(Args, Debug)]
#[command(after_help = "\
Each operand is IMG:/PATH or a path on the host, in any mixture but from host to host. The last is where copies go: a
directory, or the name of one copy. Holes stay holes. A copy appears under its name when it is complete, and replaces what had
the name then, a symbolic link too; without -p it keeps the mode, the owner and the attributes of a file that it replaces, as
if that had been written to. --owner goes before all that: it is the owner of every copy. With -r symbolic links are copied as such.

Examples:
  dioxide cp disk.img:/etc/passwd .
  dioxide cp -a disk.img:/home backup
  dioxide cp 'disk.img:/var/log/*.gz' other.img:/var/log/syslog logs/
  dioxide cp -r --owner 0:0 build/rootfs/. disk.img:/
  dioxide cp -p old.img:/etc/fstab disk.img:/etc/
  dioxide cp disk.img:/etc/fstab disk.img:/etc/fstab.old")]
pub struct CpArgs {
    /// Files, and at last where they go
    #[arg(value_name = "FROM... TO", required = true, value_parser = Operand::parser())]
    pub operands: Vec<Operand>,
    /// Directories too, with what is in them; symbolic links, devices and pipes as such
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Keep mode, owner, times and access control lists
    #[arg(short, long)]
    pub preserve: bool,
    /// As -r -p, with hard links and extended attributes; one that is not for this user or file system is left out
    #[arg(short, long)]
    pub archive: bool,
    /// Leave files alone that are there already
    #[arg(short, long, overrides_with = "force")]
    pub no_clobber: bool,
    /// Replace files that are there already: the default
    #[arg(short, long, overrides_with = "no_clobber")]
    pub force: bool,
    /// Copy all operands into this directory
    #[arg(short, long, value_name = "DIR", value_parser = Operand::parser(), conflicts_with = "no_target_directory")]
    pub target_directory: Vec<Operand>,
    /// The last operand is the copy's name even if it is a directory
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,
    /// Print what is copied
    #[arg(short, long)]
    pub verbose: bool,
    /// Print an array of JSON: an element for each file that is copied
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub new_files: NewFiles,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// Moves and renames files
#[derive(Args, Debug)]
#[command(after_help = "\
Each operand is IMG:/PATH or a path on the host, in any mixture but from host to host. Inside one image files are renamed. Between
images, and between an image and the host, they are copied as by cp -a, and removed once the copy is durable; if anything of a
tree could not be copied, an attribute too, nothing of it is removed. An image that is in use stays. Owners are no such thing: who may give files to nobody else
gets the copies, as with mv of GNU.

Examples:
  dioxide mv disk.img:/etc/fstab disk.img:/etc/fstab.old
  dioxide mv 'disk.img:/var/log/*.gz' logs/
  dioxide mv -t disk.img:/srv/data one.db two.db")]
pub struct MvArgs {
    /// Files, and at last where they go
    #[arg(value_name = "FROM... TO", required = true, value_parser = Operand::parser())]
    pub operands: Vec<Operand>,
    /// Leave files alone that are there already
    #[arg(short, long, overrides_with = "force")]
    pub no_clobber: bool,
    /// Replace files that are there already: the default
    #[arg(short, long, overrides_with = "no_clobber")]
    pub force: bool,
    /// Move all operands into this directory
    #[arg(short, long, value_name = "DIR", value_parser = Operand::parser(), conflicts_with = "no_target_directory")]
    pub target_directory: Vec<Operand>,
    /// The last operand is the new name even if it is a directory
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,
    /// Print what is moved
    #[arg(short, long)]
    pub verbose: bool,
    /// Print an array of JSON: an element for each file that is moved
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: ImageArgs,
}
