//! The crate's one error type.

use crate::size::{Free, Need};
use std::fmt::Display;
use std::io;

/// What can go wrong between two trees.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An entry that no tree may hold. Nothing was written.
    #[error("{name}: {why}")]
    Refused {
        /// The entry, as its source names it.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The archive contradicts itself, or ends too early. Nothing was written.
    #[error("{archive}: at byte {offset}: {what}")]
    Archive {
        /// The archive.
        archive: String,
        /// Where in it, uncompressed.
        offset: u64,
        /// What was expected and found.
        what: String,
    },
    /// The host refused.
    #[error("{name}: {source}")]
    Host {
        /// The file on the host.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The image could not be read, or written.
    #[error("{name}: {source}")]
    Image {
        /// The file in the image.
        name: String,
        /// Why.
        source: dioxide::Error,
    },
    /// A file is not any more what it was when the tree was read.
    #[error("{name}: changed while it was read")]
    Changed {
        /// The file.
        name: String,
    },
    /// A folder to write into has something in it already.
    #[error("{name}: is not empty")]
    NotEmpty {
        /// The folder.
        name: String,
    },
    /// The image is to be of a size in which the tree has no room.
    #[error("too small: the tree takes up to {} blocks and {} inodes, and there is room for {} and {}", need.blocks, need.inodes, free.blocks, free.inodes)]
    TooSmall {
        /// What the tree takes at most.
        need: Need,
        /// What there is for files.
        free: Free,
    },
    /// Who looks on asked for the end ([`crate::Watch::stops`]). What a sink was given is incomplete; an image or an archive that was
    /// being made is gone.
    #[error("stopped before the end")]
    Stopped,
    /// A word of a filter that makes no sense, or wishes for an image that do not go together.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    pub(crate) fn refused(name: &[u8], why: impl Display) -> Error {
        Error::Refused {
            name: shown(name),
            why: why.to_string(),
        }
    }

    /// A file of the host that cannot be replaced.
    pub(crate) fn kept(name: impl Into<String>, source: dioxide::block::Error) -> Error {
        Error::Image {
            name: name.into(),
            source: source.into(),
        }
    }

    pub(crate) fn host(name: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::Host {
            name: name.into(),
            source: source.into(),
        }
    }
}

/// A name from a source, which may be any bytes, as text. Control characters could drive a terminal.
pub(crate) fn shown(name: &[u8]) -> String {
    match name {
        b"" => ".".into(),
        _ => String::from_utf8_lossy(name).replace(char::is_control, "?"),
    }
}

/// Shorthand for this crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;
