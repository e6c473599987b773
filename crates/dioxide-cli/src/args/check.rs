//! Arguments of `dioxide check`.

use super::size::parse_size;
use super::{IMAGE_OPTIONS, JournalPlace, backend_parser};
use clap::Args;
use dioxide::Backend;
use std::path::PathBuf;

/// Checks whether file systems are consistent; changes nothing
#[derive(Args, Debug)]
#[command(after_help = "\
Looks at what e2fsck -fn looks at, in its passes, and prints a line for each finding: where, what, and
the code of the finding in brackets. A journal that needs recovery is read in place of the blocks that
it replaces, so that what is checked is what the next mount makes of it. Codes are stable, texts are not;
--list-codes prints all of them. --json prints an array with an element for each image, or code.

Exit status, a sum as e2fsck's:
  0   no errors
  4   errors were found, and left
  8   a check could not be made, or not to its end
  16  bad usage
  32  ended by Ctrl-C, SIGTERM or a closed terminal; what was found until then is told, and
      images after that one are not checked

Examples:
  dioxide check disk.img
  dioxide check --json --img-offset 1M card.img
  dioxide check --sb 131072 damaged.img")]
pub struct CheckArgs {
    /// Image files or block devices
    #[arg(value_name = "IMG", required_unless_present = "list_codes")]
    pub images: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print only what is found, no summary
    #[arg(short, long)]
    pub quiet: bool,
    /// Findings to keep; more are only counted
    #[arg(long, value_name = "N", default_value = "10000")]
    pub max_findings: usize,
    /// Most memory for what is in use; a check that needs more ends, and says so
    #[arg(long, value_name = "BYTES", default_value = "8G", value_parser = parse_size)]
    pub max_memory: u64,
    /// Print all codes, what they mean and where they are found
    #[arg(long, conflicts_with_all = ["images", "quiet", "sb"])]
    pub list_codes: bool,
    /// How bytes move between memory and the image
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = backend_parser(), help_heading = IMAGE_OPTIONS)]
    pub backend: Backend,
    /// Where the file system begins in the image: the start of a partition, say
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size, help_heading = IMAGE_OPTIONS)]
    pub img_offset: u64,
    /// Use the backup superblock at this block, counted in KiB as in mount's sb= (131072 with blocks of 4 KiB, 8193 with 1 KiB)
    #[arg(long, value_name = "KIB", help_heading = IMAGE_OPTIONS)]
    pub sb: Option<u64>,
    #[command(flatten, next_help_heading = IMAGE_OPTIONS)]
    pub journal: JournalPlace,
}
