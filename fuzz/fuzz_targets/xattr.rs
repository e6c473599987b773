#![no_main]
//! Extended attributes in inodes and blocks: values lie inside, heads write back the same.

#[path = "../../crates/dioxide-format/tests/support/any_bytes.rs"]
mod any_bytes;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_bytes::xattr(data));
