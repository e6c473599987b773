#![no_main]
//! Hash indexes: roots and nodes of any bytes, search against a linear scan, hashes of any name.

#[path = "../../crates/dioxide-format/tests/support/any_bytes.rs"]
mod any_bytes;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_bytes::htree(data));
