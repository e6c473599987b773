//! Arguments of `dioxide find`: what comes after the options is find's own language.

use super::ImageArgs;
use clap::Args;
use std::ffi::OsString;

/// Finds files
#[derive(Args, Debug)]
#[command(after_help = "\
Options of dioxide come first, then where to look, then what to look for.

Tests:
  -name, -iname, -path, -ipath PATTERN   the name, or all that is printed; i: in either case
  -type f|d|l|b|c|p|s                    the kind, or several as in f,l
  -size [+-]N[cwbkMG]                    the size in such units, rounded up; blocks of 512 bytes
                                         if none is named
  -empty                                 a file of no bytes, or a directory of no files
  -mtime, -mmin [+-]N                    changed so many days or minutes ago; -atime, -amin,
                                         -ctime, -cmin as well
  -newer FILE                            changed after FILE, which may be IMG:/PATH or on the host
  -newermt DATE                          changed after DATE, as touch -d has it; -newerat,
                                         -newerct as well
  -samefile FILE                         another name of FILE
  -uid, -gid, -links, -inum [+-]N        numbers of the inode
  -perm [-/]MODE                         exactly, at least (-), or any (/) of these permissions
  -true, -false
Actions:
  -print, -print0, -ls, -prune
  -printf FORMAT                         %p path, %P below where it began, %H where that was,
                                         %f name, %h what is before it, %d depth, %y kind,
                                         %l where a link leads, %Y of what kind that is,
                                         %s bytes, %b and %k blocks, %m and %M mode, %n links,
                                         %i inode, %u %U %g %G owners as numbers, %F ext4,
                                         %a %c %t times, %A@ %C@ %T@ in seconds, or in place of
                                         @ letters of strftime; \\n and the like
  -delete                                removes it, after what is in it (as with -depth)
Anywhere:
  -maxdepth N, -mindepth N, -depth
Operators:
  ( ), !, -not, -a, -and, -o, -or

Examples:
  dioxide find disk.img:/etc -name '*.conf' -newer disk.img:/etc/hostname
  dioxide find disk.img:/ -path '*/proc' -prune -o -type f -size +1M -ls
  dioxide find --json disk.img:/home -perm /022 -not -type l")]
pub struct FindArgs {
    /// Let symbolic links stand for what they lead to, if that is there
    #[arg(short = 'L', long)]
    pub follow: bool,
    /// Print an array of JSON: an element for each file that would be printed
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: ImageArgs,
    /// Where to look, and for what
    #[arg(
        value_name = "IMG:/PATH|EXPRESSION",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub words: Vec<OsString>,
}
