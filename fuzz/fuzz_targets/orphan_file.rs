#![no_main]
//! Blocks of the orphan file: entries of any bytes, checksum.

use dioxide_format::orphan_file;
use dioxide_format::types::Pblk;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = orphan_file::orphans(data, 1000);
    let _ = orphan_file::verify_checksum(data, 1, Pblk(2));
    let mut block = data.to_vec();
    if orphan_file::update_checksum(&mut block, 1, Pblk(2)).is_ok() {
        assert!(orphan_file::verify_checksum(&block, 1, Pblk(2)).is_ok());
        let orphans = orphan_file::orphans(&block, u32::MAX).expect("the magic number is right");
        assert!(
            orphans
                .iter()
                .all(|(at, ino)| at * 4 + 4 <= block.len() && ino.0 != 0)
        );
        let _ = orphan_file::orphans(&block, 1000);
    }
});
