#![no_main]
//! Quota files: heads, pointers and records of any bytes; what is found lies inside, and is written back the same.

use dioxide_format::quota::{self, LEVELS, QuotaHeader, QuotaKind, Record, RecordsHead};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(header) = QuotaHeader::parse(data) {
        assert!(data.starts_with(&header.encode()));
        for kind in QuotaKind::ALL {
            let magic = QuotaHeader {
                dqh_magic: kind.magic(),
                ..header.clone()
            };
            if magic.validate(kind).is_ok() {
                assert!(
                    magic.dqi_free_blk < magic.dqi_blocks
                        && magic.dqi_free_entry < magic.dqi_blocks
                );
            }
        }
        let _ = header.check_block(header.dqi_flags, "a pointer");
    }
    if let Ok(head) = RecordsHead::parse(data) {
        assert!(data.starts_with(&head.encode()));
    }
    for record in quota::records(data) {
        let (at, found) = quota::find_record(data, record.dqb_id).expect("it is there");
        assert!(data[at..at + Record::SIZE] == found.encode());
        for level in 0..LEVELS {
            let at = quota::pointer_at(record.dqb_id, level);
            assert_eq!(quota::pointer(data, at).is_ok(), at + 4 <= data.len());
        }
    }
    if let Some(at) = quota::free_place(data) {
        let mut block = data.to_vec();
        block[at..at + Record::SIZE].copy_from_slice(&Record::zeroed().encode_used());
        assert_eq!(
            quota::records(&block).count(),
            quota::records(data).count() + 1
        );
    }
});
