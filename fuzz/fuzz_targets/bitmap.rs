#![no_main]
//! Bitmaps: searches and counts against single bits, checksums against any superblock.

use dioxide_format::bitmap;
use dioxide_format::group_desc::GroupDesc;
use dioxide_format::superblock::SuperBlock;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&[a, b, c, d, wide], data)) = data.split_first_chunk() else {
        return;
    };
    let from = usize::from(u16::from_le_bytes([a, b]));
    let end = usize::from(u16::from_le_bytes([c, d]));
    let bits = end.min(data.len() * 8);
    let free = |i: &usize| !bitmap::get(data, *i);
    let used = |i: &usize| bitmap::get(data, *i);
    assert_eq!(
        bitmap::count_free(data, end),
        (0..bits).filter(free).count()
    );
    assert_eq!(bitmap::next_zero(data, from, end), (from..bits).find(free));
    assert_eq!(bitmap::next_set(data, from, end), (from..bits).find(used));
    let mut copy = data.to_vec();
    bitmap::put(&mut copy, from, true);
    bitmap::put(&mut copy, from, bitmap::get(data, from));
    assert_eq!(copy, data);
    let Ok(sb) = SuperBlock::parse(data) else {
        return;
    };
    let size = if wide & 1 == 0 { 32 } else { 64 };
    let mut desc = GroupDesc::parse(&[0; 64], size).expect("both sizes exist");
    if bitmap::update_block_bitmap(data, &sb, &mut desc).is_ok() {
        assert!(bitmap::verify_block_bitmap(data, &sb, &desc).is_ok());
    }
    if bitmap::update_inode_bitmap(data, &sb, &mut desc).is_ok() {
        assert!(bitmap::verify_inode_bitmap(data, &sb, &desc).is_ok());
    }
});
