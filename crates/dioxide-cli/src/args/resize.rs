//! Arguments of `dioxide resize` and `dioxide trim`.

use super::size::parse_size;
use super::{IMAGE_OPTIONS, JournalPlace, backend_parser};
use clap::Args;
use dioxide::Backend;
use std::path::PathBuf;

/// Makes the file system in an image larger or smaller
#[derive(Args, Debug)]
#[command(after_help = "\
The file system must not be mounted, and must have been closed cleanly. Without SIZE it gets all that
the device or image has. An image that is too short is made longer, and shorter with its file system.
The size that comes of it may be a little less: a last group needs room for its own metadata. It is more,
and the exit status 1, if groups that were to make room for what is moved turn out to be needed; -M is content.

The file system is checked before, whether it is to be larger or smaller, and nothing is changed if it
has errors. That reads all metadata, as `dioxide check` does.

What is in the way of a smaller size is moved: blocks of files to free blocks, inodes to free numbers.
A crash while files are moved leaves it as large as it was, with all files: `dioxide sync` it, and resize
it again. A crash while the end is cut off, or groups are added, leaves one that e2fsck brings in order.
So does any crash if it has no journal, or has it on another device. With stable_inodes, inodes keep their
numbers; with casefold nothing is moved.

Examples:
  dioxide resize disk.img 2G
  dioxide resize --minimum disk.img
  dioxide resize -M disk.img
  dioxide resize /dev/vg0/data")]
pub struct ResizeArgs {
    /// Image file or block device
    #[arg(value_name = "IMG")]
    pub image: PathBuf,
    /// The size that it is to have; without it, that of IMG. With --img-offset it must be said
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Only print the smallest size that is possible, in bytes
    #[arg(long, conflicts_with = "size")]
    pub minimum: bool,
    /// Make it as small as that
    #[arg(short = 'M', long, conflicts_with_all = ["size", "minimum"])]
    pub shrink: bool,
    /// Most memory for what is in use, while it is checked
    #[arg(long, value_name = "BYTES", default_value = "8G", value_parser = parse_size)]
    pub max_memory: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Where the file system begins in the image: the start of a partition, say
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size, help_heading = IMAGE_OPTIONS)]
    pub img_offset: u64,
}

/// Gives the free space of an image back: to the host, or the device
#[derive(Args, Debug)]
#[command(after_help = "\
Free blocks of an image file become holes, so that it takes less room where it lies; a device is told
that it need not keep them. Like fstrim, without mounting.

Examples:
  dioxide trim disk.img
  dioxide trim --min 1M --json disk.img")]
pub struct TrimArgs {
    /// Image file or block device
    #[arg(value_name = "IMG")]
    pub image: PathBuf,
    /// Where in the file system to begin
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    pub offset: u64,
    /// How many bytes to look at; without it all that follow
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub length: Option<u64>,
    /// Leave free runs that are shorter than this
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    pub min: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// How bytes move between memory and the image
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = backend_parser(), help_heading = IMAGE_OPTIONS)]
    pub backend: Backend,
    /// Where the file system begins in the image: the start of a partition, say
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size, help_heading = IMAGE_OPTIONS)]
    pub img_offset: u64,
    #[command(flatten, next_help_heading = IMAGE_OPTIONS)]
    pub journal: JournalPlace,
}
