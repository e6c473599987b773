#![no_main]
//! Group descriptors: round trip, checksums of both kinds, validation against any superblock.

use dioxide_format::group_desc::{GroupChecksum, GroupDesc};
use dioxide_format::superblock::SuperBlock;
use dioxide_format::system_zone::SystemZone;
use dioxide_format::types::Group;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&[lo, hi], data)) = data.split_first_chunk() else {
        return;
    };
    let size = usize::from(u16::from_le_bytes([lo, hi]) % 1100);
    let Ok(mut desc) = GroupDesc::parse(data, size) else {
        return;
    };
    assert_eq!(desc.encode(), &data[..size]);
    let kinds = [
        GroupChecksum::None,
        GroupChecksum::Crc16 { uuid: [lo; 16] },
        GroupChecksum::Crc32c { seed: hi.into() },
    ];
    for kind in kinds {
        desc.update_checksum(Group(1), kind);
        assert!(desc.verify_checksum(Group(1), kind).is_ok());
    }
    let Ok(sb) = SuperBlock::parse(&data[size..]) else {
        return;
    };
    for group in [0, 1, u32::MAX].map(Group) {
        let _ = desc.validate(&sb, group);
    }
    let zone = SystemZone::new(&sb, [&desc], []);
    // A range ends before the largest number, which is no block's: `validate` refuses it.
    let is_block = desc.block_bitmap().0 < u64::MAX;
    assert!(sb.group_count() == 0 || !is_block || zone.overlaps(desc.block_bitmap(), 1));
});
