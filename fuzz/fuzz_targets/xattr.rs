#![no_main]
//! Extended attributes in inodes and blocks: values lie inside, heads write back the same.

use dioxide_format::types::Pblk;
use dioxide_format::xattr::{self, XattrBlock, XattrEntry};
use libfuzzer_sys::fuzz_target;

fn check(entries: &[XattrEntry<'_>], area: &[u8]) {
    let _ = xattr::block_hash(entries);
    for entry in entries {
        let _ = (entry.full_name(), entry.hash_matches());
        let head = entry.head.encode();
        let stored: [&[u8]; 2] = [&head, entry.name];
        let stored = stored.concat();
        assert!(area.windows(stored.len()).any(|window| window == stored));
        assert!(entry.bytes().is_none_or(|bytes| bytes.len() <= area.len()));
    }
}

fuzz_target!(|data: &[u8]| {
    let mut area = data.to_vec();
    if let Some(head) = area.first_chunk_mut() {
        *head = [0, 0, 2, 0xEA, 1, 0, 0, 0, 1, 0, 0, 0];
    }
    if let Ok(entries) = xattr::parse_in_inode(&area) {
        check(&entries, &area);
    }
    if let Ok(block) = XattrBlock::parse(&area) {
        assert!(area.starts_with(&block.header.encode()));
        check(&block.entries, &area);
    }
    let _ = (xattr::parse_in_inode(data), XattrBlock::parse(data).is_ok());
    if xattr::update_checksum(&mut area, 1, Pblk(2)).is_ok() {
        assert!(xattr::verify_checksum(&area, 1, Pblk(2)).is_ok());
    }
});
