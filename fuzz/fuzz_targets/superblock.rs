#![no_main]
//! The superblock: round trip, every accessor, validation, geometry of chosen groups.

#[path = "../../crates/dioxide-format/tests/support/any_bytes.rs"]
mod any_bytes;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_bytes::superblock(data));
