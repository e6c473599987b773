#![no_main]
//! Directory blocks: iteration ends, entries lie inside, what was read writes back the same.

#[path = "../../crates/dioxide-format/tests/support/any_bytes.rs"]
mod any_bytes;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_bytes::dir_block(data));
