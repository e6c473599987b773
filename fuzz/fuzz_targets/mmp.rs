#![no_main]
//! The block of multi-mount protection, and the journal's superblock: round trip and checksums.

use dioxide_format::journal::JournalSuperBlock;
use dioxide_format::mmp::Mmp;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(mut mmp) = Mmp::parse(data) {
        assert!(data.starts_with(&mmp.encode()));
        let _ = (mmp.validate(), mmp.state());
        mmp.update_checksum(1);
        assert!(mmp.verify_checksum(1).is_ok());
    }
    if let Ok(journal) = JournalSuperBlock::parse(data) {
        assert!(data.starts_with(&journal.encode()));
        let _ = (
            journal.validate(1024),
            journal.verify_checksum(),
            journal.is_empty(),
        );
    }
});
