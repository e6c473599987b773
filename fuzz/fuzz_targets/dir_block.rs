#![no_main]
//! Directory blocks: iteration ends, entries lie inside, what was read writes back the same.

use dioxide_format::dir::{self, DirFormat};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&[options, ino], data)) = data.split_first_chunk() else {
        return;
    };
    let format = DirFormat {
        block_size: 1024 << (options % 7),
        filetype: options & 0x80 != 0,
        checksum: options & 0x40 != 0,
        max_ino: u32::from(ino) << 8,
        large_dir: false,
        encrypted: options & 0x20 != 0,
    };
    let mut copy = data.to_vec();
    let mut exact = true;
    let mut at = 0;
    for slot in dir::slots(data, &format) {
        let Ok(entry) = slot else { break };
        assert_eq!(entry.offset, at);
        at += entry.rec_len;
        assert!(at <= data.len());
        assert!(!entry.is_used() || format.encrypted || dir::validate_name(entry.name).is_ok());
        // With 64 KiB blocks 0 and 65535 both mean the whole block.
        exact &= entry.rec_len < 65536;
        entry.encode_into(&mut copy).expect("what was read fits");
    }
    assert!(!exact || copy == data);
    let _ = dir::validate(data, &format);
    let _ = dir::verify_checksum(data, 1);
    if dir::update_checksum(&mut copy, 1).is_ok() {
        assert!(dir::verify_checksum(&copy, 1).is_ok());
    }
});
