//! `IMG:/path`: a file inside an image.
//!
//! The first `:/` parts the image from the path, which keeps its slash. Image names may contain
//! colons; one that contains `:/` needs the colon written as `\:` (and `\\` is then a backslash).

use crate::render::printable;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A file inside an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The image file or block device.
    pub image: PathBuf,
    /// The absolute path inside it.
    pub path: Vec<u8>,
}

/// A word where a file is named, as it was typed: [`crate::session`] knows what it names, which in a
/// shell is not the same as outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand(pub OsString);

impl Operand {
    /// For clap: any bytes are fine.
    pub fn parser() -> impl clap::builder::TypedValueParser<Value = Operand> {
        use clap::builder::{OsStringValueParser, TypedValueParser};
        OsStringValueParser::new().map(Operand)
    }
}

impl Address {
    /// The address that a word is; what is wrong with it otherwise.
    pub fn parse(word: &OsStr) -> Result<Address, String> {
        let mut image = Vec::new();
        let mut rest = word.as_bytes();
        while let Some((byte, tail)) = first_byte(rest) {
            if rest.starts_with(b":/") {
                return Address::new(image, tail);
            }
            image.push(byte);
            rest = tail;
        }
        Err(no_path(word))
    }

    fn new(image: Vec<u8>, path: &[u8]) -> Result<Address, String> {
        if image.is_empty() {
            return Err("no image before ':/'; write IMG:/path".into());
        }
        Ok(Address {
            image: OsString::from_vec(image).into(),
            path: path.to_vec(),
        })
    }
}

/// The path on the host that a word is which names no file in an image: as it was typed, unless it has a `\:/`.
pub fn host_path(word: &OsStr) -> PathBuf {
    let bytes = word.as_bytes();
    if !bytes.windows(3).any(|part| part == br"\:/") {
        return word.into();
    }
    let mut path = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((byte, tail)) = first_byte(rest) {
        path.push(byte);
        rest = tail;
    }
    OsString::from_vec(path).into()
}

/// What the front of a word stands for, and what is behind it.
fn first_byte(word: &[u8]) -> Option<(u8, &[u8])> {
    match word {
        [b'\\', byte @ (b':' | b'\\'), rest @ ..] | [byte, rest @ ..] => Some((*byte, rest)),
        [] => None,
    }
}

/// What is wrong with a word that names no file in an image.
fn no_path(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let word = printable(&text);
    match word.split_once(':') {
        Some((image, path)) if !path.is_empty() && !image.is_empty() => {
            format!("no ':/' in it; write IMG:/path, such as {image}:/{path}")
        }
        _ => {
            let word = word.strip_suffix(':').unwrap_or(&word);
            // The colon is what was forgotten, not the path.
            let is_file = |image: &&Path| image.is_file();
            if let Some(image) = Path::new(word).ancestors().skip(1).find(is_file) {
                let (image, path) = word.split_at(image.as_os_str().len());
                return format!("no ':/' in it; write IMG:/path, such as {image}:{path}");
            }
            // Nor can it be an image on the host that is not there yet.
            let is_there = |parent: &Path| parent.is_dir();
            if word.starts_with('/') && !Path::new(word).parent().is_none_or(is_there) {
                return format!("no image before it; write IMG:/path, such as disk.img:{word}");
            }
            format!("no ':/' in it; write IMG:/path, such as {word}:/ for the root directory")
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = String::from_utf8_lossy(&self.path);
        write!(f, "{}:{}", self.image.display(), printable(&path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(word: &str) -> (String, String) {
        let Address { image, path } = Address::parse(OsStr::new(word)).unwrap();
        (
            image.to_str().unwrap().into(),
            String::from_utf8(path).unwrap(),
        )
    }

    #[test]
    fn address_with_several_colons_splits_at_first_colon_slash() {
        assert_eq!(parse("a:b.img:/x:/y"), ("a:b.img".into(), "/x:/y".into()));
        assert_eq!(parse("disk.img:/"), ("disk.img".into(), "/".into()));
    }

    #[test]
    fn address_with_escaped_colon_keeps_it_in_the_image() {
        assert_eq!(
            parse(r"odd\:/disk.img:/f"),
            ("odd:/disk.img".into(), "/f".into())
        );
        assert_eq!(parse(r"odd\\:/f"), (r"odd\".into(), "/f".into()));
        assert_eq!(parse(r"od\d:/f\:"), (r"od\d".into(), r"/f\:".into()));
    }

    #[test]
    fn address_without_path_or_image_is_refused_with_a_way_out() {
        let error = Address::parse(OsStr::new("disk.img")).unwrap_err();
        assert!(error.contains(" disk.img:/ for the root"), "{error}");
        let error = Address::parse(OsStr::new("disk.img:")).unwrap_err();
        assert!(error.contains(" disk.img:/ for the root"), "{error}");
        let error = Address::parse(OsStr::new("disk.img:etc")).unwrap_err();
        assert!(error.ends_with(" disk.img:/etc"), "{error}");
        let error = Address::parse(OsStr::new(":/x")).unwrap_err();
        assert!(error.starts_with("no image before"), "{error}");
    }
}
