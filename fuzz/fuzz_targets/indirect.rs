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
    let most = indirect::max_lblk(block_size).0;
    // Where all numbers have a path, the largest that is told is the largest that there is.
    assert!(path.is_some() || lblk > most);
    assert!(path.is_none() || lblk <= most || most >= u32::MAX - 1);
    if let Some(path) = path {
        let per = indirect::pointers_per_block(block_size);
        let (levels, offsets) = (path.levels() as u32, path.offsets());
        assert!(offsets[1..].iter().all(|&offset| offset < per));
        let (base, digits) = match levels {
            0 => (0, offsets),
            _ => (12, &offsets[1..]),
        };
        assert!(levels == 0 || offsets[0] == 11 + levels);
        let per = u64::from(per);
        let before: u64 = (1..levels).map(|level| per.pow(level)).sum();
        let rest = digits
            .iter()
            .fold(0, |n, &digit| n * per + u64::from(digit));
        assert_eq!(base + before + rest, u64::from(lblk));
        for &offset in offsets {
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
