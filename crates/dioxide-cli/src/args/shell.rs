//! Arguments of `dioxide shell`.

use super::ImageArgs;
use clap::Args;
use std::path::PathBuf;

/// Opens an image once, and takes commands for it
#[derive(Args, Debug)]
#[command(after_help = "\
The commands are those of dioxide, with a path where IMG:/PATH is elsewhere, from the current directory if
it does not begin with a slash; host:PATH is a file outside. Besides there are cd (- goes back), pwd, lcd (on the host), help and exit
(exit 3 ends with that status).
Quotes and backslashes are as in a shell, without pipes, redirections and several commands in a line; '#'
begins a comment. From a script, the first command that fails ends it, and its exit status is the shell's.

Examples:
  dioxide shell disk.img
  dioxide shell -c 'cd /etc' -c 'cp -a . host:etc' disk.img
  dioxide shell -k disk.img commands.txt")]
pub struct ShellArgs {
    /// Image file or block device
    #[arg(value_name = "IMG")]
    pub image: PathBuf,
    /// File of commands; by default they come from standard input
    #[arg(value_name = "SCRIPT", conflicts_with = "command")]
    pub script: Option<PathBuf>,
    /// A command; may be given several times
    #[arg(short, long, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// Go on after a command that failed
    #[arg(short, long)]
    pub keep_going: bool,
    /// Do not write to the image
    #[arg(short, long)]
    pub read_only: bool,
    #[command(flatten)]
    pub open: ImageArgs,
}
