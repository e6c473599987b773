#![no_main]
//! Indirect maps: paths that lead back to their block, pointer blocks of any bytes.

#[path = "../../crates/dioxide-format/tests/support/any_bytes.rs"]
mod any_bytes;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_bytes::indirect(data));
