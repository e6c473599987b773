#![no_main]
//! Inodes of all sizes: round trip, every accessor, times, checksum, validation.

#[path = "../../crates/dioxide-format/tests/support/any_bytes.rs"]
mod any_bytes;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_bytes::inode(data));
