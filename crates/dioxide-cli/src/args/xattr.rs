//! Arguments of `dioxide xattr`.

use super::ImageArgs;
use crate::address::Operand;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Tells and changes extended attributes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dioxide xattr list 'disk.img:/usr/bin/*'
  dioxide xattr get user.comment disk.img:/a
  dioxide xattr get --encoding hex security.capability disk.img:/usr/bin/ping
  dioxide xattr set user.comment 'made by hand' disk.img:/a
  dioxide xattr remove user.comment disk.img:/a
  dioxide xattr list -Rd disk.img:/ >attributes; dioxide xattr restore attributes")]
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
    /// Removes an attribute
    Remove(XattrRemoveArgs),
    /// Sets the attributes that `list --dump` or getfattr told
    Restore(XattrRestoreArgs),
    /// Sets an attribute
    Set(XattrSetArgs),
}

#[derive(Args, Debug)]
pub struct XattrGetArgs {
    /// The whole name, such as user.comment
    #[arg(value_name = "NAME")]
    pub name: OsString,
    /// Files of any kind; symbolic links are followed
    #[arg(value_name = "IMG:/PATH", required = true, value_parser = Operand::parser())]
    pub paths: Vec<Operand>,
    /// Symbolic links themselves
    #[arg(long)]
    pub no_dereference: bool,
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
    /// Symbolic links themselves
    #[arg(long)]
    pub no_dereference: bool,
    /// Values too
    #[arg(short, long)]
    pub dump: bool,
    /// How to print values; if nothing is said, text where it is text, base64 elsewhere, and in JSON the bytes as they are
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

#[derive(Args, Debug)]
pub struct XattrSetArgs {
    /// The whole name, such as user.comment
    #[arg(value_name = "NAME")]
    pub name: OsString,
    /// The value: as it is, or 0x and hexadecimal digits, or 0s and base64, or in quotes with \ and three octal digits for a byte
    #[arg(value_name = "VALUE", value_parser = Value::parser(), allow_hyphen_values = true)]
    pub value: Value,
    /// Files of any kind; symbolic links are followed
    #[arg(value_name = "IMG:/PATH", required = true, value_parser = Operand::parser())]
    pub paths: Vec<Operand>,
    /// Fail if it is there already
    #[arg(long, conflicts_with = "replace")]
    pub create: bool,
    /// Fail if it is not there yet
    #[arg(long)]
    pub replace: bool,
    /// Symbolic links themselves
    #[arg(long)]
    pub no_dereference: bool,
    /// Print an array of JSON: an element for each file that is changed
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: ImageArgs,
}

#[derive(Args, Debug)]
pub struct XattrRemoveArgs {
    /// The whole name, such as user.comment
    #[arg(value_name = "NAME")]
    pub name: OsString,
    /// Files of any kind; symbolic links are followed
    #[arg(value_name = "IMG:/PATH", required = true, value_parser = Operand::parser())]
    pub paths: Vec<Operand>,
    /// Symbolic links themselves
    #[arg(long)]
    pub no_dereference: bool,
    /// Print an array of JSON: an element for each file that is changed
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: ImageArgs,
}

#[derive(Args, Debug)]
pub struct XattrRestoreArgs {
    /// What was told; by default standard input
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The files are those in this directory, whatever image is named
    #[arg(long, value_name = "IMG:/DIR", value_parser = Operand::parser())]
    pub into: Option<Operand>,
    /// Symbolic links themselves
    #[arg(long)]
    pub no_dereference: bool,
    /// Print an array of JSON: an element for each file that is changed
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(pub Vec<u8>);

impl Value {
    fn parser() -> impl TypedValueParser<Value = Value> {
        let words = OsStringValueParser::new();
        words.try_map(|word| Value::decode(word.as_bytes()))
    }

    /// The value that a word stands for.
    pub fn decode(word: &[u8]) -> Result<Value, String> {
        let wrong = |what: &str| format!("'{}' {what}", String::from_utf8_lossy(word));
        let value = match word {
            [b'0', b'x' | b'X', digits @ ..] => {
                unhex(digits).ok_or_else(|| wrong("is not pairs of hexadecimal digits"))?
            }
            [b'0', b's' | b'S', digits @ ..] => {
                unbase64(digits).ok_or_else(|| wrong("is not base64"))?
            }
            [b'"', text @ .., b'"'] => unescape(text),
            [b'"', ..] => return Err(wrong("has no quote at its end")),
            text => text.to_vec(),
        };
        Ok(Value(value))
    }
}

fn unhex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| Some((byte as char).to_digit(16)? as u8);
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    pairs.collect()
}

fn unbase64(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let end = text.iter().position(|&b| b == b'=').unwrap_or(text.len());
    if !text.len().is_multiple_of(4)
        || text.len() - end > 2
        || text[end..].iter().any(|&b| b != b'=')
    {
        return None;
    }
    let mut value = Vec::new();
    for chunk in text[..end].chunks(4) {
        let mut bits = 0;
        for index in 0..4 {
            let next = chunk.get(index).map_or(Some(0), |&byte| digit(byte))?;
            bits = bits << 6 | u32::from(next);
        }
        value.extend_from_slice(&bits.to_be_bytes()[1..chunk.len()]);
    }
    Some(value)
}

/// Without `\\`: before three octal digits for a byte, and before any other byte for itself.
pub fn unescape(text: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let (byte, after) = match rest {
            [
                b'\\',
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] => ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), after),
            [b'\\', byte, after @ ..] => (*byte, after),
            _ => (*first, tail),
        };
        value.push(byte);
        rest = after;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_of_each_encoding_is_decoded() {
        let decode = |word: &[u8]| Value::decode(word).map(|value| value.0).ok();
        for (word, value) in [
            (&b"plain \\ text"[..], Some(&b"plain \\ text"[..])),
            (b"", Some(b"")),
            (b"0x00fF", Some(b"\0\xff")),
            (b"0x", Some(b"")),
            (b"0s", Some(b"")),
            (b"0sZg==", Some(b"f")),
            (b"0sZm8=", Some(b"fo")),
            (b"0sZm9v", Some(b"foo")),
            (br#""a\"\\\377\012""#, Some(b"a\"\\\xff\n")),
            (b"0x0", None),
            (b"0xzz", None),
            (b"0sZ", None),
            (b"0sZ===", None),
            (b"0sZg=a", None),
            (b"\"open", None),
        ] {
            assert_eq!(decode(word).as_deref(), value, "{}", word.escape_ascii());
        }
    }
}
