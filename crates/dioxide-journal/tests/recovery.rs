//! Recovery of logs made by hand: every rule by itself.

#[path = "recovery/builder.rs"]
mod builder;

use builder::{
    BLOCK, FS, FS_BLOCKS, JOURNAL_BLOCKS, Journal, Spec, V3, filled, home, is_journal, magic,
    specs, superblock,
};
use dioxide_block::record::RecordDevice;
use dioxide_block::{Device, Durability};
use dioxide_format::checksum::crc32c;
use dioxide_format::journal::fast_commit::{Name, Record};
use dioxide_format::journal::{BlockHeader, BlockType, Checksums, JournalIncompat, Tid};
use dioxide_format::types::{Ino, Lblk};
use dioxide_journal::log::{Log, LogMap, fast_commit_area};
use dioxide_journal::recovery::{FileSystem, Recovery};
use proptest::prelude::*;
use std::sync::Arc;

#[test]
fn log_of_every_format_is_replayed_and_emptied() {
    for spec in specs() {
        let mut journal = Journal::new(spec);
        journal.write(&[(5, filled(1)), (6, magic(2)), (7, filled(3))]);
        journal.write(&[(8, filled(4))]);
        journal.commit();
        journal.transaction(5, filled(9));
        let recovered = journal.recover().unwrap();
        assert_eq!(recovered.transactions, 2, "{spec:?}");
        assert_eq!(recovered.blocks_replayed, 4);
        assert_eq!(recovered.blocks_escaped, 1);
        assert_eq!(recovered.next_sequence, Tid(13));
        assert_eq!((recovered.wrapped, recovered.dropped), (false, None));
        assert_eq!(journal.read(5), filled(9));
        assert_eq!(journal.read(6), magic(2));
        assert_eq!(journal.read(7), filled(3));
        assert_eq!(journal.read(8), filled(4));
        for block in (0..FS_BLOCKS).filter(|b| !(5..9).contains(b) && !is_journal(*b)) {
            assert_eq!(journal.read(block), home(block), "block {block}");
        }
        let sb = journal.log.read_superblock().unwrap();
        assert_eq!((sb.s_start, sb.s_sequence), (0, 13));
    }
}

#[test]
fn log_empty_writes_nothing() {
    let journal = Journal::new(Spec { start: 0, ..V3 });
    let before = journal.image();
    let recovered = journal.recover().unwrap();
    assert_eq!((recovered.transactions, recovered.blocks_replayed), (0, 0));
    assert_eq!(recovered.next_sequence, Tid(11));
    assert!(before == journal.image());
}

#[test]
fn log_started_but_without_transactions_is_emptied() {
    let journal = Journal::new(V3);
    let recovered = journal.recover().unwrap();
    assert_eq!(recovered.transactions, 0);
    let sb = journal.log.read_superblock().unwrap();
    assert_eq!((sb.s_start, sb.s_sequence), (0, 11));
}

#[test]
fn revoke_of_same_or_earlier_transaction_hides_a_copy() {
    for spec in specs() {
        let mut journal = Journal::new(spec);
        journal.write(&[
            (5, filled(1)),
            (6, filled(1)),
            (7, filled(1)),
            (8, filled(1)),
        ]);
        journal.commit();
        journal.revoke(&[5, 7, FS_BLOCKS + 9]);
        journal.write(&[(7, filled(2)), (6, filled(2))]);
        journal.revoke(&[6]);
        journal.commit();
        journal.transaction(5, filled(3));
        let recovered = journal.recover().unwrap();
        assert_eq!((recovered.transactions, recovered.blocks_revoked), (3, 2));
        assert_eq!(recovered.blocks_replayed, 2);
        assert_eq!(journal.read(5), filled(3), "used again after it was freed");
        assert_eq!(
            journal.read(6),
            home(6),
            "freed in the transaction that wrote it"
        );
        assert_eq!(
            journal.read(7),
            home(7),
            "freed before it was written, in the same one"
        );
        assert_eq!(journal.read(8), filled(1), "never freed");
    }
}

#[test]
fn revoke_without_commit_hides_nothing() {
    let mut journal = Journal::new(V3);
    journal.transaction(5, filled(1));
    journal.revoke(&[5]);
    journal.write(&[(6, filled(2))]);
    let recovered = journal.recover().unwrap();
    assert_eq!((recovered.transactions, recovered.blocks_revoked), (1, 0));
    assert_eq!((journal.read(5), journal.read(6)), (filled(1), home(6)));
}

#[test]
fn log_that_goes_round_is_read_across_its_end() {
    for spec in specs() {
        for start in JOURNAL_BLOCKS - 9..JOURNAL_BLOCKS {
            let mut journal = Journal::new(Spec { start, ..spec });
            journal.revoke(&[8]);
            journal.write(&[(5, filled(1)), (6, magic(2))]);
            journal.commit();
            journal.revoke(&[5]);
            journal.write(&[(7, filled(3)), (8, filled(4))]);
            journal.commit();
            let recovered = journal.recover().unwrap();
            assert!(recovered.wrapped, "{spec:?} from {start}");
            assert_eq!((recovered.transactions, recovered.blocks_revoked), (2, 1));
            assert_eq!((journal.read(5), journal.read(6)), (home(5), magic(2)));
            assert_eq!((journal.read(7), journal.read(8)), (filled(3), filled(4)));
        }
    }
}

#[test]
fn sequence_numbers_that_wrap_are_in_order() {
    let mut journal = Journal::new(Spec {
        first: Tid(u32::MAX - 1),
        ..V3
    });
    journal.transaction(5, filled(1));
    journal.revoke(&[5]);
    journal.commit();
    journal.transaction(6, filled(2));
    journal.revoke(&[6]);
    journal.write(&[(5, filled(3))]);
    journal.commit();
    let recovered = journal.recover().unwrap();
    assert_eq!(
        (recovered.transactions, recovered.next_sequence),
        (4, Tid(3))
    );
    assert_eq!((journal.read(5), journal.read(6)), (filled(3), home(6)));
}

#[test]
fn log_that_fills_its_ring_ends_where_it_began() {
    let mut journal = Journal::new(V3);
    for n in 0..21 {
        journal.transaction(n, filled(n as u8 + 1));
    }
    assert_eq!(journal.at, 1, "the ring has 63 blocks");
    assert_eq!(journal.recover().unwrap().transactions, 21);
    let mut journal = Journal::new(V3);
    for _ in 0..JOURNAL_BLOCKS {
        journal.revoke(&[5]);
    }
    assert_eq!(
        journal.recover().unwrap().transactions,
        0,
        "for ever one transaction"
    );
}

#[test]
fn transaction_without_commit_block_is_not_replayed() {
    for spec in specs() {
        let mut journal = Journal::new(spec);
        journal.transaction(5, filled(1));
        let at = journal.write(&[(6, filled(2))]);
        let recovered = journal.recover().unwrap();
        assert_eq!((recovered.transactions, recovered.dropped), (1, None));
        assert_eq!(journal.read(6), home(6));
        let mut journal = Journal::new(spec);
        journal.transaction(5, filled(1));
        journal.write(&[(6, filled(2))]);
        journal.damage(at, BLOCK - 1);
        assert_eq!(
            journal.recover().unwrap().transactions,
            1,
            "a torn descriptor"
        );
    }
}

#[test]
fn leftovers_of_an_earlier_round_are_not_replayed() {
    let mut journal = Journal::new(V3);
    for n in 0..4 {
        journal.transaction(n, filled(1));
    }
    let mut sb = journal.log.read_superblock().unwrap();
    sb.s_sequence = 20;
    journal
        .log
        .write_superblock(&mut sb, Durability::Cached)
        .unwrap();
    (journal.at, journal.tid) = (1, Tid(20));
    journal.transaction(9, filled(2));
    let recovered = journal.recover().unwrap();
    assert_eq!((recovered.transactions, recovered.blocks_replayed), (1, 1));
    assert_eq!(journal.read(1), home(1));
}

/// Three transactions, one of them with a revoke block; the places of descriptor, data, revoke and
/// commit of the one in the middle and of the last.
fn three(spec: Spec) -> (Journal, [[u32; 4]; 2]) {
    let mut journal = Journal::new(spec);
    journal.transaction(5, filled(1));
    let places = [0u8, 1].map(|n| {
        let revoke = journal.revoke(&[400]);
        let descriptor = journal.write(&[(6 + u64::from(n), filled(2))]);
        [descriptor, descriptor + 1, revoke, journal.commit()]
    });
    (journal, places)
}

#[test]
fn committed_transaction_with_damaged_descriptor_data_or_revoke_is_refused() {
    for checksums in [Checksums::V2, Checksums::V3] {
        for place in 0..2 {
            for block in 0..3 {
                let (journal, places) = three(Spec { checksums, ..V3 });
                journal.damage(places[place][block], 500);
                journal.assert_refused("checksum");
            }
        }
    }
}

/// A lost block is no header any more, so that the log seems to end there.
#[test]
fn missing_descriptor_revoke_or_commit_among_what_was_committed_is_refused() {
    for checksums in [Checksums::V2, Checksums::V3] {
        for (place, block) in [(0, 0), (0, 2), (0, 3), (1, 0), (1, 2)] {
            for byte in [0, 7, 11] {
                let (journal, places) = three(Spec { checksums, ..V3 });
                journal.damage(places[place][block], byte);
                journal.assert_refused("no block of transaction");
            }
        }
        let (journal, places) = three(Spec { checksums, ..V3 });
        journal.damage(places[1][3], 0);
        let recovered = journal.recover().unwrap();
        assert_eq!((recovered.transactions, recovered.dropped), (2, None));
    }
}

#[test]
fn damaged_descriptor_that_hides_the_next_block_is_refused() {
    let (journal, places) = three(V3);
    // The only tag is no longer the last: where the commit block is does not follow any more.
    journal.damage(places[0][0], 19);
    let mut block = filled(0);
    journal.log.read(places[0][0], &mut block).unwrap();
    block[19] = 0;
    journal
        .log
        .write(places[0][0], &block, Durability::Cached)
        .unwrap();
    journal.assert_refused("checksum");
}

#[test]
fn damaged_commit_block_ends_the_log_or_is_refused_in_its_middle() {
    for checksums in [Checksums::Transaction, Checksums::V2, Checksums::V3] {
        let (journal, places) = three(Spec { checksums, ..V3 });
        let byte = if checksums == Checksums::Transaction {
            0x10
        } else {
            0x3A
        };
        journal.damage(places[0][3], byte);
        journal.assert_refused("commit");
        let (journal, places) = three(Spec { checksums, ..V3 });
        journal.damage(places[1][3], byte);
        let recovered = journal.recover().unwrap();
        assert_eq!(
            (recovered.transactions, recovered.dropped),
            (2, Some(Tid(12)))
        );
        assert_eq!((journal.read(6), journal.read(7)), (filled(2), home(7)));
    }
}

#[test]
fn transaction_sum_covers_descriptors_and_data() {
    for block in 0..2 {
        let spec = Spec {
            checksums: Checksums::Transaction,
            ..V3
        };
        let (journal, places) = three(spec);
        journal.damage(places[0][block], 500);
        journal.assert_refused("commit");
        let (journal, places) = three(spec);
        journal.damage(places[1][block], 500);
        assert_eq!(journal.recover().unwrap().dropped, Some(Tid(12)));
    }
}

#[test]
fn commit_block_torn_after_its_first_sector_is_one() {
    let (journal, places) = three(V3);
    let mut block = filled(0);
    journal.log.read(places[1][3], &mut block).unwrap();
    block[512..].fill(0xEE);
    journal
        .log
        .write(places[1][3], &block, Durability::Cached)
        .unwrap();
    assert_eq!(journal.recover().unwrap().transactions, 3);
}

#[test]
fn damaged_transaction_older_than_the_one_before_it_ends_the_log() {
    for block in [0, 3] {
        let mut journal = Journal::new(V3);
        journal.transaction(5, filled(1));
        journal.secs = 500;
        let descriptor = journal.write(&[(6, filled(2))]);
        let commit = journal.commit();
        let at = if block == 0 { descriptor } else { commit };
        journal.damage(at, if block == 0 { 500 } else { 0x3A });
        let recovered = journal.recover().unwrap();
        assert_eq!((recovered.transactions, recovered.dropped), (1, None));
    }
}

#[test]
fn async_commit_with_bad_data_at_the_end_ends_the_log() {
    let spec = Spec {
        is_async: true,
        ..V3
    };
    let (journal, places) = three(spec);
    journal.damage(places[1][1], 500);
    let recovered = journal.recover().unwrap();
    assert_eq!(
        (recovered.transactions, recovered.dropped),
        (2, Some(Tid(12)))
    );
    assert_eq!((journal.read(6), journal.read(7)), (filled(2), home(7)));
    let (journal, places) = three(spec);
    journal.damage(places[0][1], 500);
    journal.assert_refused("checksum");
}

#[test]
fn bad_copy_that_is_not_replayed_does_no_harm() {
    let mut journal = Journal::new(V3);
    let at = journal.write(&[(5, filled(1)), (6, filled(1))]);
    journal.commit();
    journal.revoke(&[5]);
    journal.write(&[(6, filled(2))]);
    journal.commit();
    journal.damage(at + 1, 9);
    journal.damage(at + 2, 9);
    assert_eq!(journal.recover().unwrap().blocks_replayed, 1);
    assert_eq!((journal.read(5), journal.read(6)), (home(5), filled(2)));
}

#[test]
fn copy_of_a_block_that_must_not_be_written_is_refused() {
    for spec in specs() {
        for target in [200, 223, 300, 339, FS_BLOCKS, u64::from(u32::MAX)] {
            let mut journal = Journal::new(spec);
            journal.transaction(5, filled(1));
            journal.transaction(target, filled(2));
            let what = if target >= FS_BLOCKS {
                "of a file system of"
            } else {
                "holds the journal"
            };
            journal.assert_refused(what);
        }
        for target in [199, 224, 299, 340, FS_BLOCKS - 1, 0] {
            let mut journal = Journal::new(spec);
            journal.transaction(target, filled(2));
            journal.recover().unwrap();
            assert_eq!(journal.read(target), filled(2));
        }
    }
}

#[test]
fn log_of_a_growth_is_replayed_as_far_as_its_superblock_goes() {
    let fs = FileSystem { blocks: 400, ..FS };
    for (grown, is_kept) in [(None, false), (Some(450), true), (Some(300), false)] {
        let mut journal = Journal::new(V3);
        journal.transaction(440, filled(2));
        journal.transaction(460, filled(3));
        journal.transaction(5, filled(4));
        if let Some(blocks) = grown {
            let mut superblock = filled(0);
            superblock[4..8].copy_from_slice(&u32::to_le_bytes(blocks));
            superblock[0x38..0x3a].copy_from_slice(&[0x53, 0xef]);
            journal.transaction(1, superblock);
        }
        let recovery = Recovery::plan(&journal.log, fs).unwrap();
        recovery.replay(&*journal.device).unwrap();
        let kept = if is_kept { filled(2) } else { home(440) };
        assert_eq!(journal.read(440), kept, "{grown:?}");
        assert_eq!((journal.read(460), journal.read(5)), (home(460), filled(4)));
    }
}

#[test]
fn descriptor_without_last_tag_is_read_to_its_end() {
    let spec = Spec {
        checksums: Checksums::None,
        wide: false,
        ..V3
    };
    let mut journal = Journal::new(spec);
    let at = journal.write(&[(5, filled(1))]);
    journal.commit();
    let mut block = filled(0);
    journal.log.read(at, &mut block).unwrap();
    block[19] = 0;
    journal.log.write(at, &block, Durability::Cached).unwrap();
    let recovered = journal.recover().unwrap();
    assert_eq!(
        recovered.transactions, 0,
        "a hundred tags, and no commit block after them"
    );
}

#[test]
fn revoke_block_with_a_count_past_its_end_is_refused() {
    let mut journal = Journal::new(Spec {
        checksums: Checksums::None,
        ..V3
    });
    let mut block = filled(0);
    let header = BlockHeader::new(BlockType::Revoke, journal.tid);
    block[..12].copy_from_slice(&header.encode());
    block[12..16].copy_from_slice(&1025u32.to_be_bytes());
    journal.put(&block);
    journal.transaction(5, filled(1));
    journal.assert_refused("r_count is 1025");
}

#[test]
fn superblock_that_does_not_fit_is_refused() {
    let refuse = |change: &dyn Fn(&mut dioxide_format::journal::JournalSuperBlock), what: &str| {
        let journal = Journal::new(V3);
        let mut sb = superblock(&V3);
        change(&mut sb);
        sb.update_checksum();
        journal
            .log
            .write(0, &sb.encode(), Durability::Cached)
            .unwrap();
        journal.assert_refused(what);
    };
    refuse(&|sb| sb.h_magic = 1, "h_magic");
    refuse(&|sb| sb.s_blocksize = 1024 * 2, "s_blocksize");
    refuse(&|sb| sb.s_maxlen = JOURNAL_BLOCKS + 1, "s_maxlen is 65");
    refuse(&|sb| sb.s_start = JOURNAL_BLOCKS, "s_start");
    refuse(&|sb| sb.s_first = 0, "s_first");
    refuse(&|sb| sb.s_feature_incompat |= 0x40, "FEATURE_I6");
    refuse(
        &|sb| sb.s_feature_incompat |= 0x8,
        "one version of checksums",
    );
    refuse(&|sb| sb.s_feature_ro_compat = 2, "ro_compat 0x2");
    refuse(&|sb| sb.s_checksum_type = 1, "s_checksum_type");
    let journal = Journal::new(V3);
    journal.damage(0, 0x20);
    journal.assert_refused("checksum");
}

#[test]
fn superblock_of_the_first_version_has_no_features() {
    let spec = Spec {
        checksums: Checksums::None,
        wide: false,
        ..V3
    };
    let mut journal = Journal::new(spec);
    let mut sb = superblock(&spec);
    sb.h_blocktype = BlockType::SuperBlockV1 as u32;
    // Fields that the first version does not have.
    (sb.s_feature_incompat, sb.s_feature_ro_compat) = (u32::MAX, u32::MAX);
    journal
        .log
        .write_superblock(&mut sb, Durability::Cached)
        .unwrap();
    journal.transaction(5, filled(1));
    assert_eq!(journal.recover().unwrap().transactions, 1);
    assert_eq!(journal.read(5), filled(1));
}

fn busy() -> Journal {
    let mut journal = Journal::new(Spec { start: 50, ..V3 });
    for n in 0..6u64 {
        journal.revoke(&[20 + n]);
        journal.write(&[
            (n, filled(n as u8)),
            (20 + n, magic(7)),
            (21 + n, filled(8)),
        ]);
        journal.commit();
    }
    journal
}

#[test]
fn overlay_shows_what_a_replay_writes_and_writes_nothing() {
    let mut journal = busy();
    journal.transaction(60, magic(9));
    let before = journal.image();
    let device: Arc<dyn Device> = journal.device.clone();
    let overlay = journal.plan().unwrap().overlay(&device).unwrap();
    let mut seen = vec![0; before.len()];
    overlay.read_at(0, &mut seen).unwrap();
    assert!(before == journal.image());
    assert_eq!(seen[60 * BLOCK..61 * BLOCK], magic(9));
    journal.recover().unwrap();
    for block in (0..FS_BLOCKS).filter(|block| !is_journal(*block)) {
        let bytes = &seen[block as usize * BLOCK..][..BLOCK];
        assert_eq!(journal.read(block), bytes, "block {block}");
    }
}

#[test]
fn replay_cut_at_any_write_and_made_again_gives_the_same() {
    let journal = busy();
    let recorded = RecordDevice::new(journal.device.clone());
    let log = Log::new(Arc::new(recorded.clone()), journal.log.map().clone(), BLOCK);
    let before = journal.image();
    let recovery = Recovery::plan(&log, FS).unwrap();
    recovery.replay(&recorded).unwrap();
    recovery.reset().unwrap();
    let after = journal.image();
    assert!(before != after);
    let writes = recorded.log();
    let flushes = writes
        .epochs()
        .filter(|epoch| epoch.flush.is_some())
        .count();
    assert_eq!(flushes, 2, "what is replayed, then the superblock");
    for upto in 0..=writes.entries().len() {
        let journal = busy();
        for entry in &writes.entries()[..upto] {
            entry.apply(&*journal.device).unwrap();
        }
        journal.recover().unwrap();
        assert!(journal.image() == after, "cut at {upto}");
        journal.recover().unwrap();
        assert!(journal.image() == after, "cut at {upto}, again");
    }
}

/// A record of the fast-commit area.
fn record(tag: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = tag.to_le_bytes().to_vec();
    bytes.extend((value.len() as u16).to_le_bytes());
    bytes.extend(value);
    bytes
}

/// Ends a fast commit: the block that `crc` covers so far.
fn tail(mut block: Vec<u8>, tid: Tid) -> Vec<u8> {
    let len = (BLOCK - block.len() - 4) as u16;
    block.extend(8u16.to_le_bytes());
    block.extend(len.to_le_bytes());
    block.extend(tid.0.to_le_bytes());
    let crc = crc32c(0, &block);
    block.extend(crc.to_le_bytes());
    block.resize(BLOCK, 0);
    block
}

#[test]
fn fast_commits_after_the_log_are_handed_out() {
    const LOG: u32 = 1100;
    let runs = [1000..2000u64, 3000..3200];
    let device = Arc::new(dioxide_block::mem::MemDevice::new(4096 * BLOCK as u64));
    let log = Log::new(device, LogMap::internal(runs).unwrap(), BLOCK);
    let mut sb = superblock(&V3);
    (sb.s_maxlen, sb.s_num_fc_blks) = (LOG, 20);
    sb.s_feature_incompat |= JournalIncompat::FAST_COMMIT.bits();
    log.write_superblock(&mut sb, Durability::Cached).unwrap();
    let area = fast_commit_area(&sb);
    assert_eq!(area, 1081..1100);
    let fs = FileSystem {
        blocks: 4096,
        device_blocks: 4096,
        inode_bytes: 256,
    };
    let write = |tid: Tid, blocks: &[Vec<u8>]| {
        for (at, block) in area.clone().zip(blocks) {
            log.write(at, block, Durability::Cached).unwrap();
        }
        let recovery = Recovery::plan(&log, fs).unwrap();
        let recovered = recovery.recovered().clone();
        assert_eq!(recovered.next_sequence, tid.next());
        (recovered.fast_commits, recovered.fast_commit_records)
    };
    let head = |tid: Tid| record(9, &[0, 0, 0, 0, tid.0 as u8, 0, 0, 0]);
    let creat = record(3, b"\x02\0\0\0\x0c\0\0\0name");
    let del = record(2, &[12, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0]);
    let first = |tid| tail([head(tid), creat.clone(), record(7, &[0; 5])].concat(), tid);
    let (tid, second) = (Tid(10), tail(del.clone(), Tid(10)));
    let name = Name {
        parent: Ino(2),
        ino: Ino(12),
        name: b"name".to_vec(),
    };
    let wanted = [
        Record::Creat(name),
        Record::DelRange {
            ino: Ino(12),
            lblk: Lblk(1),
            len: 3,
        },
    ];
    assert_eq!(
        write(tid, &[first(tid), second.clone()]),
        (2, wanted.to_vec())
    );
    let mut torn = second;
    torn[700] ^= 1;
    torn[8] ^= 1;
    assert_eq!(write(tid, &[first(tid), torn]), (1, wanted[..1].to_vec()));
    assert_eq!(
        write(tid, &[first(Tid(11))]),
        (0, Vec::new()),
        "of another transaction"
    );
    let unknown = record(9, &[1, 0, 0, 0, 10, 0, 0, 0]);
    log.write(area.start, &tail(unknown, tid), Durability::Cached)
        .unwrap();
    let error = Recovery::plan(&log, fs).unwrap_err().to_string();
    assert!(error.contains("fast-commit features 0x1"), "{error}");
}

#[test]
fn map_of_runs_that_overlap_or_are_empty_is_refused() {
    let refused = |runs: &[(u64, u64)]| {
        LogMap::internal(runs.iter().map(|&(start, end)| start..end)).is_err()
    };
    assert!(refused(&[]));
    assert!(refused(&[(5, 5)]));
    assert!(refused(&[(9, 5)]));
    assert!(refused(&[(5, 9), (8, 12)]));
    assert!(refused(&[(0, 1 << 33)]));
    let map = LogMap::internal([5..9, 2..5]).unwrap();
    assert_eq!((map.place(3), map.place(4)), (Some((8, 1)), Some((2, 3))));
    assert_eq!((map.place(7), map.blocks()), (None, 7));
    let held: Vec<u64> = (0..20).filter(|block| map.holds(*block)).collect();
    assert_eq!(held, (2..9).collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 1500 } else { 20000 }))]

    /// Bit flips and random bytes in a log: an error that wrote nothing, or a replay inside the file
    /// system that leaves the journal's own blocks alone.
    #[test]
    fn log_damaged_anywhere_never_writes_where_it_must_not(
        flips in proptest::collection::vec((0..JOURNAL_BLOCKS, 0..BLOCK, any::<u8>()), 1..12),
        spec in 0..8usize,
        is_async in any::<bool>(),
        fill in proptest::option::weighted(0.1, any::<[u8; 32]>()),
    ) {
        let spec = Spec { is_async, start: 40, ..specs().nth(spec).unwrap() };
        let mut journal = Journal::new(spec);
        for n in 0..7u64 {
            journal.revoke(&[20 + n]);
            journal.write(&[(n, filled(n as u8)), (20 + n, magic(7)), (21 + n, filled(8))]);
            journal.commit();
        }
        let mut block = filled(0);
        for (at, byte, flip) in flips {
            // Half of the damage goes where it is felt: into the headers and first tags.
            let byte = if flip & 1 == 0 { byte } else { byte % 64 };
            journal.log.read(at, &mut block).unwrap();
            block[byte] ^= flip;
            if let Some(bytes) = fill {
                for chunk in block[16..].chunks_mut(32) {
                    chunk.copy_from_slice(&bytes[..chunk.len()]);
                }
            }
            journal.log.write(at, &block, Durability::Cached).unwrap();
        }
        let before = journal.image();
        match journal.recover() {
            Err(_) => prop_assert!(before == journal.image()),
            Ok(recovered) => {
                let after = journal.image();
                let same = |block: &u64| {
                    let bytes = *block as usize * BLOCK..(*block as usize + 1) * BLOCK;
                    before[bytes.clone()] == after[bytes]
                };
                let changed = (0..FS_BLOCKS).filter(|block| !same(block));
                // Of the journal, the superblock at its first block.
                let home: Vec<u64> = changed.filter(|block| *block != 300).collect();
                prop_assert!(home.len() as u64 <= recovered.blocks_replayed);
                prop_assert!(!home.iter().any(|block| is_journal(*block)));
            }
        }
    }
}
