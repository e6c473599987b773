#![no_main]
//! Blocks of the log and of the fast-commit area: any bytes, by every layout; what was written is
//! read back.

use dioxide_format::journal::fast_commit::Scan;
use dioxide_format::journal::{
    BlockHeader, Checksums, CommitBlock, DescriptorWriter, JournalFormat, JournalSuperBlock,
    RevokeWriter, Tag, Tid, TransactionSum, revokes, tags,
};
use libfuzzer_sys::fuzz_target;

fn format(kind: u8) -> JournalFormat {
    use Checksums::{None, Transaction, V2, V3};
    JournalFormat {
        checksums: [None, Transaction, V2, V3][usize::from(kind % 4)],
        wide: kind & 4 != 0,
        seed: 7,
        uuid: [3; 16],
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, block)) = data.split_first() else {
        return;
    };
    let format = format(*kind);
    let _ = (BlockHeader::of(block), CommitBlock::parse(block));
    let sum = TransactionSum::default();
    let _ = CommitBlock::verify(block, &format, &sum);
    let _ = format.verify_tail(block);
    read_back_tags(block, &format);
    read_back_revokes(block, &format);
    if let Ok(sb) = JournalSuperBlock::parse(block) {
        let _ = (sb.format(), sb.fast_commit_blocks(), sb.validate(1024));
    }
    let mut scan = Scan::new(Tid(0), 256);
    for part in block.chunks(1024) {
        if scan.block(part).is_err() {
            break;
        }
    }
    let (commits, records) = scan.finish();
    assert!(commits > 0 || records.is_empty());
});

fn read_back_tags(block: &[u8], format: &JournalFormat) {
    let found: Vec<Tag> = tags(block, format).collect();
    assert!(found.len() <= block.len() / 8);
    let mut written = vec![0; 1024];
    let mut writer = DescriptorWriter::new(&mut written, format, Tid(1));
    let fit = found.len().min(DescriptorWriter::capacity(1024, format));
    if fit == 0 {
        return;
    }
    found[..fit].iter().for_each(|tag| writer.push(*tag));
    writer.seal();
    assert!(format.verify_tail(&written).is_ok());
    let read: Vec<Tag> = tags(&written, format).collect();
    let same = |(a, b): (&Tag, &Tag)| a.block == b.block && a.is_escaped() == b.is_escaped();
    assert!(read.len() == fit && read.iter().zip(&found).all(same));
}

fn read_back_revokes(block: &[u8], format: &JournalFormat) {
    let Ok(numbers) = revokes(block, format).map(Iterator::collect::<Vec<u64>>) else {
        return;
    };
    let mut written = vec![0; block.len().max(128)];
    let mut writer = RevokeWriter::new(&mut written, format, Tid(1));
    numbers.iter().for_each(|number| writer.push(*number));
    writer.seal();
    let read = revokes(&written, format).expect("just written");
    assert!(read.eq(numbers));
}
