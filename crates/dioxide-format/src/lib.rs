//! ext4 on-disk structures: parse, encode, checksum, validate.
//!
//! This crate turns bytes into structures and back. It does no I/O, takes no locks, reads no clock
//! and depends on no other part of dioxide.
//!
//! Four steps, apart from each other:
//! * **parse** reads the fields. Of a fixed-size structure any bytes of the right length parse, so
//!   that a damaged file system can still be looked at. Variable-length structures (extent nodes,
//!   directory blocks, attributes) are checked as far as reading them needs.
//! * **verify_checksum** compares the stored checksum with the bytes.
//! * **validate** judges the fields, against the superblock where that is needed. An error names
//!   the structure and the field; the caller knows the block or inode and adds it.
//! * **encode** writes the fields. Bytes whose meaning is not known are kept: `encode(parse(x)) == x`.
//!
//! Sizes are in bytes or in file-system blocks, as the names say. No function blocks. Bytes from a
//! disk never panic, never loop for ever, and never make memory be allocated beyond a small
//! multiple of their own length.
//!
//! ```
//! use dioxide_format::superblock::SuperBlock;
//!
//! let sb = SuperBlock::parse(&[0; 1024])?;
//! let error = sb.validate(None).unwrap_err();
//! assert_eq!(error.to_string(), "superblock: s_magic is 0x0000, expected 0xef53");
//! # Ok::<(), dioxide_format::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod bitmap;
pub mod bytes;
pub mod checksum;
pub mod dir;
mod error;
pub mod extent;
pub mod features;
pub mod group_desc;
pub mod htree;
pub mod indirect;
pub mod inline_data;
pub mod inode;
pub mod journal;
mod layout;
pub mod mmp;
pub mod orphan_file;
pub mod quota;
pub mod superblock;
pub mod symlink;
pub mod system_zone;
pub mod types;
pub mod xattr;

pub use error::{Error, Result};
