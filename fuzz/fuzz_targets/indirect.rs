#![no_main]
//! Indirect maps: paths that lead back to their block, pointer blocks of any bytes.

use dioxide_format::indirect;
use dioxide_format::types::Lblk;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&[a, b, c, d, log], data)) = data.split_first_chunk() else {
        return;
    };
    let (lblk, block_size) = (u32::from_le_bytes([a, b, c, d]), 1024u32 << (log % 7));
    let path = indirect::path(Lblk(lblk), block_size);
    assert_eq!(
        path.is_none(),
        lblk > indirect::max_lblk(block_size).0 && path.is_none()
    );
    if let Some(path) = path {
        let per = indirect::pointers_per_block(block_size);
        assert!(path.offsets()[0] < 15);
        assert!(path.offsets()[1..].iter().all(|&offset| offset < per));
        for &offset in path.offsets() {
            let _ = indirect::pointer_at(data, offset, &(1..1 << 32));
        }
    }
    let _ = indirect::validate(data, &(1..u64::from(lblk)));
    let words: Vec<u32> = indirect::pointers(data).collect();
    let mut copy = data.to_vec();
    copy[..words.len() * 4].fill(0);
    indirect::encode_into(&words, &mut copy);
    assert_eq!(copy, data);
});
