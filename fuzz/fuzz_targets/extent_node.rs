#![no_main]
//! Extent nodes: round trip, validation, search against a linear scan, checksum.

#[path = "../../crates/dioxide-format/tests/support/any_bytes.rs"]
mod any_bytes;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_bytes::extent_node(data));
