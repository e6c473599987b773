//! Arguments of `dioxide xattr`.

use super::ImageArgs;
use crate::address::Operand;
use clap::{Args, Subcommand, ValueEnum};

/// Tells extended attributes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dioxide xattr list 'disk.img:/usr/bin/*'
  dioxide xattr get user.comment disk.img:/a
  dioxide xattr get --encoding hex security.capability disk.img:/usr/bin/ping")]
pub struct XattrArgs {
    #[command(subcommand)]
    pub command: XattrCommand,
}

/// What is done with attributes.
#[derive(Debug, Subcommand)]
pub enum XattrCommand {
    /// Prints one attribute's value
    Get(XattrGetArgs),
    /// Lists the attributes of files, as getfattr does
    List(XattrListArgs),
}

#[derive(Args, Debug)]
pub struct XattrGetArgs {
    /// The whole name, such as user.comment
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Files of any kind; symbolic links are followed
    #[arg(value_name = "IMG:/PATH", required = true, value_parser = Operand::parser())]
    pub paths: Vec<Operand>,
    /// How to print it; the bytes as they are, if nothing is said
    #[arg(short, long, value_enum)]
    pub encoding: Option<Encoding>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: ImageArgs,
}

#[derive(Args, Debug)]
pub struct XattrListArgs {
    /// Files of any kind; symbolic links are followed
    #[arg(value_name = "IMG:/PATH", required = true, value_parser = Operand::parser())]
    pub paths: Vec<Operand>,
    /// Values too
    #[arg(short, long)]
    pub dump: bool,
    /// How to print values; text where it is text, base64 elsewhere, if nothing is said
    #[arg(short, long, value_enum)]
    pub encoding: Option<Encoding>,
    /// What is in directories, too
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Encoding {
    /// In quotes, with octal escapes
    Text,
    /// 0x and two digits for each byte
    Hex,
    /// 0s and base64
    Base64,
}
