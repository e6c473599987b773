#![no_main]
//! Extent nodes: round trip, validation, search against a linear scan, checksum.

use dioxide_format::extent::{self, ExtentNode, LBLK_END};
use dioxide_format::types::Lblk;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((probe, data)) = data.split_first_chunk() else {
        return;
    };
    let mut block = data.to_vec();
    // A right magic number, so that more than one input in 65536 gets past it.
    if let Some(magic) = block.first_chunk_mut() {
        *magic = extent::MAGIC.to_le_bytes();
    }
    let probe = Lblk(u32::from_le_bytes(*probe));
    if let Ok(node) = ExtentNode::parse(&block, None) {
        let mut copy = block.clone();
        node.encode_into(&mut copy).expect("what was read fits");
        assert_eq!(copy, block);
        let found = node.find(probe);
        if node.validate(0..LBLK_END, 1..1 << 48).is_ok() {
            let holds = |e: &&extent::Extent| e.lblk <= probe && u64::from(probe.0) < e.end();
            assert_eq!(found, node.extents().iter().find(holds).copied());
            for at in 0..node.indices().len() {
                assert!(!node.child_range(at, &(0..LBLK_END)).is_empty());
            }
        }
    }
    let _ = extent::verify_checksum(&block, 1);
    if extent::update_checksum(&mut block, 1).is_ok() {
        assert!(extent::verify_checksum(&block, 1).is_ok());
    }
});
