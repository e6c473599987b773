//! Arguments of `dioxide journal` and `dioxide map`.

use super::size::parse_size;
use super::{IMAGE_OPTIONS, JournalPlace, backend_parser};
use clap::Args;
use dioxide::check::CheckOptions;
use dioxide::{Backend, block};
use std::path::PathBuf;
use std::sync::Arc;

/// An image that is looked at as it is.
#[derive(Args, Clone, Debug)]
pub struct RawArgs {
    /// Image file or block device
    #[arg(value_name = "IMG")]
    pub image: PathBuf,
    /// How bytes move between memory and the image
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = backend_parser(), help_heading = IMAGE_OPTIONS)]
    pub backend: Backend,
    /// Where the file system begins in the image: the start of a partition, say
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size, help_heading = IMAGE_OPTIONS)]
    pub img_offset: u64,
    #[command(flatten, next_help_heading = IMAGE_OPTIONS)]
    pub journal: JournalPlace,
}

impl RawArgs {
    /// Opens the image for reading.
    pub fn open(&self) -> block::Result<Arc<dyn block::Device>> {
        let options = block::file::FileOptions {
            backend: self.backend,
            img_offset: self.img_offset,
            ..block::file::FileOptions::default()
        };
        dioxide::open_image_part(&self.image, &options)
    }

    /// How to look at it.
    pub fn check_options(&self) -> block::Result<CheckOptions> {
        Ok(CheckOptions {
            journal: self.journal.open(self.backend)?,
            ..CheckOptions::default()
        })
    }
}

/// Tells what the journal of an image holds
#[derive(Args, Debug)]
#[command(after_help = "\
IMG may also be the device of a journal that is outside of its file system, or an image of it. To replay
that, name the file system, and the journal with --journal.

Examples:
  dioxide journal disk.img
  dioxide journal --list --json disk.img
  dioxide journal --replay disk.img
  dioxide journal --replay --journal journal.img disk.img")]
pub struct JournalArgs {
    /// List the transactions that wait to be replayed
    #[arg(long)]
    pub list: bool,
    /// Replay the journal, as a mount that may write does
    #[arg(long, conflicts_with = "list")]
    pub replay: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    // Last, as what follows would stand below its options.
    #[command(flatten)]
    pub image: RawArgs,
}

/// Shows what each part of an image is used for, and how its free space is cut up
#[derive(Args, Debug)]
#[command(after_help = "\
Each sign, or square, is a part of a block group, and shows what most of it is used for. Each group
begins a line; of very many, some share one. --json and --html have figures for each group. Free runs are
counted by length, in powers of two.

Examples:
  dioxide map disk.img
  dioxide map --html map.html disk.img
  dioxide map --json disk.img")]
pub struct MapArgs {
    /// Write a picture; - is standard output
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write a page with a picture and the figures; - is standard output
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    // Last, as what follows would stand below its options.
    #[command(flatten)]
    pub image: RawArgs,
}
