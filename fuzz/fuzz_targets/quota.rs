#![no_main]
//! Quota files: heads, pointers and records of any bytes; what is found lies inside, and is written back the same.

#[path = "../../crates/dioxide-format/tests/support/any_bytes.rs"]
mod any_bytes;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_bytes::quota(data));
