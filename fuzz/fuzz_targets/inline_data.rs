#![no_main]
//! Content inside the inode: files, symlinks and directories from any inode.

#[path = "../../crates/dioxide-format/tests/support/any_bytes.rs"]
mod any_bytes;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_bytes::inline_data(data));
