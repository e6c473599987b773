#![no_main]
//! Hash indexes: roots and nodes of any bytes, search against a linear scan, hashes of any name.

use dioxide_format::dir::DirFormat;
use dioxide_format::htree::{self, DxEntries, DxNode, DxRoot, HashVersion};
use dioxide_format::types::Lblk;
use libfuzzer_sys::fuzz_target;

const ROOT_HEAD: &[u8] =
    b"\x02\0\0\0\x0c\0\x01\x02.\0\0\0\x02\0\0\0\xf4\x03\x02\x02..\0\0\0\0\0\0\x01\x08\0\0";
const NODE_HEAD: &[u8] = b"\0\0\0\0\0\x04\0\0";

fn check(entries: &DxEntries, major: u32) {
    let at = entries.search(major);
    let slots = entries.as_slice();
    assert!(at < slots.len());
    if entries.validate(u32::MAX).is_ok() {
        let scanned = slots[1..].iter().take_while(|entry| entry.hash <= major);
        assert_eq!(at, scanned.count());
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&[options, a, b, c, d], data)) = data.split_first_chunk() else {
        return;
    };
    let major = u32::from_le_bytes([a, b, c, d]);
    let format = DirFormat {
        block_size: 1024,
        filetype: true,
        checksum: options & 1 != 0,
        max_ino: u32::MAX,
        large_dir: options & 2 != 0,
        encrypted: false,
    };
    for version in 0..8 {
        if let Ok(version) = HashVersion::from_disk(version, options & 4 != 0) {
            let hash = htree::hash(&data[..data.len().min(255)], version, [major; 4]);
            assert!(hash.major & 1 == 0 && hash.major < 0xFFFF_FFFE);
        }
    }
    let _ = htree::is_index_block(data, Lblk(1), &format);
    let mut block = data.to_vec();
    for head in [&[], ROOT_HEAD, NODE_HEAD] {
        if block.len() >= head.len() {
            block[..head.len()].copy_from_slice(head);
        }
        let mut copy = block.clone();
        if let Ok(root) = DxRoot::parse(&block, &format) {
            root.encode_into(&mut copy).expect("what was read fits");
            let _ = (root.hash_version(true), root.dot(), root.dotdot());
            check(&root.entries, major);
        }
        if let Ok(node) = DxNode::parse(&block, &format) {
            node.encode_into(&mut copy).expect("what was read fits");
            check(&node.entries, major);
        }
        assert_eq!(copy, block);
        if htree::update_checksum(&mut copy, &format, 3).is_ok() {
            assert!(htree::verify_checksum(&copy, &format, 3).is_ok());
        }
    }
});
