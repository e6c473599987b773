#![no_main]
//! Group descriptors: round trip, checksums of both kinds, validation against any superblock.

#[path = "../../crates/dioxide-format/tests/support/any_bytes.rs"]
mod any_bytes;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_bytes::group_desc(data));
