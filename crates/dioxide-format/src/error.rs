//! What can be wrong with bytes that claim to be a structure.
//!
//! An error names the structure and the field. Where the structure lies (block, inode, byte) is
//! known only to the caller, who adds it.

use std::fmt::Display;

/// Why bytes are not the structure that they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input ends before the structure does.
    #[error("{structure}: {need} bytes needed, {have} present")]
    TooShort {
        /// Structure that was asked for.
        structure: &'static str,
        /// Bytes that it needs.
        need: usize,
        /// Bytes that were given.
        have: usize,
    },
    /// A field holds a value that the format does not allow.
    #[error("{structure}: {field} is {found}, expected {expected}")]
    Corrupt {
        /// Structure that is damaged.
        structure: &'static str,
        /// Its field, by its disk name.
        field: &'static str,
        /// Value on disk.
        found: String,
        /// Values that would be right.
        expected: String,
    },
    /// The stored checksum does not match the bytes.
    #[error("{structure}: checksum is {found:#010x}, computed {expected:#010x}")]
    Checksum {
        /// Structure whose bytes do not match.
        structure: &'static str,
        /// Checksum on disk.
        found: u32,
        /// Checksum of the bytes.
        expected: u32,
    },
    /// The bytes may be right, but need something that this crate does not implement.
    #[error("unsupported feature: {feature}")]
    UnsupportedFeature {
        /// Name of the feature, as e2fsprogs prints it where it has one.
        feature: String,
    },
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A `Corrupt` error from displayable parts.
pub(crate) fn corrupt(
    structure: &'static str,
    field: &'static str,
    found: impl Display,
    expected: impl Display,
) -> Error {
    Error::Corrupt {
        structure,
        field,
        found: found.to_string(),
        expected: expected.to_string(),
    }
}

/// `Corrupt` unless `ok`. The texts are made only on failure.
pub(crate) fn ensure(
    ok: bool,
    structure: &'static str,
    field: &'static str,
    found: impl Display,
    expected: impl Display,
) -> Result<()> {
    if ok {
        Ok(())
    } else {
        Err(corrupt(structure, field, found, expected))
    }
}

/// `Checksum` unless both are equal.
pub(crate) fn ensure_checksum(structure: &'static str, found: u32, expected: u32) -> Result<()> {
    if found == expected {
        Ok(())
    } else {
        Err(Error::Checksum {
            structure,
            found,
            expected,
        })
    }
}

/// The first `need` bytes of `bytes`, or `TooShort`.
pub(crate) fn prefix<'a>(
    bytes: &'a [u8],
    need: usize,
    structure: &'static str,
) -> Result<&'a [u8]> {
    bytes.get(..need).ok_or(Error::TooShort {
        structure,
        need,
        have: bytes.len(),
    })
}
