//! What the recovery of a large journal costs, and which faults of the device it stands.

#[path = "recovery/builder.rs"]
#[allow(dead_code)]
mod builder;

use builder::{BLOCK, FS, Journal, Spec, V3, filled, home, superblock};
use dioxide_block::Durability;
use dioxide_block::mem::MemDevice;
use dioxide_block::sim::{Fault, FaultKind, FaultOp, SimDevice};
use dioxide_format::journal::{CommitBlock, DescriptorWriter, Tag, Tid, TransactionSum};
use dioxide_journal::log::{Log, LogMap};
use dioxide_journal::recovery::{FileSystem, Recovery};
use dioxide_testkit::memory::{Counting, peak_of};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Fills a journal of `blocks` blocks of 4 KiB with copies of as many blocks as fit, each once.
fn full_journal(blocks: u32) -> (Arc<MemDevice>, Log, FileSystem) {
    const SIZE: usize = 4096;
    let mut sb = superblock(&V3);
    (sb.s_blocksize, sb.s_maxlen) = (SIZE as u32, blocks);
    let format = sb.format().unwrap();
    let fs = FileSystem {
        blocks: 4 * u64::from(blocks),
        device_blocks: 4 * u64::from(blocks),
        inode_bytes: 256,
    };
    let device = Arc::new(MemDevice::new(fs.blocks * SIZE as u64));
    let map = LogMap::internal(std::iter::once(1..1 + u64::from(blocks))).unwrap();
    let log = Log::new(device.clone(), map, SIZE);
    log.write_superblock(&mut sb, Durability::Cached).unwrap();
    let (mut at, mut tid, mut block) = (1, Tid(10), vec![0; SIZE]);
    let put = |at: u32, block: &[u8]| log.write(at, block, Durability::Cached).unwrap();
    let tags = DescriptorWriter::capacity(SIZE, &format) as u32;
    while at + tags + 2 <= blocks {
        let mut writer = DescriptorWriter::new(&mut block, &format, tid);
        for n in 1..=tags {
            let data = vec![(at + n) as u8; SIZE];
            // Every other block, so that no two of them are one write.
            writer.push(Tag {
                block: u64::from(blocks) + 2 * u64::from(at + n),
                checksum: format.data_checksum(tid, &data),
                ..Tag::default()
            });
            put(at + n, &data);
        }
        writer.seal();
        put(at, &block);
        let commit = CommitBlock {
            tid,
            secs: 1,
            nsec: 0,
        };
        commit.write(&mut block, &format, &TransactionSum::default());
        put(at + tags + 1, &block);
        (at, tid) = (at + tags + 2, tid.next());
    }
    (device, log, fs)
}

#[test]
fn recovery_of_a_full_journal_of_128_mib_takes_little_memory() {
    let (device, log, fs) = full_journal(32768);
    let peak = peak_of(|| {
        let recovery = Recovery::plan(&log, fs).unwrap();
        recovery.replay(&*device).unwrap();
        let recovered = recovery.reset().unwrap();
        assert!(recovered.blocks_replayed > 32000, "{recovered:?}");
    });
    assert!(peak < 12 << 20, "{peak} bytes");
}

/// A journal over a device with faults.
fn faulty(journal: &Journal) -> (SimDevice, Log) {
    let spec = "".parse().unwrap();
    let sim = SimDevice::new(journal.device.clone(), spec);
    let log = Log::new(Arc::new(sim.clone()), journal.log.map().clone(), BLOCK);
    (sim, log)
}

fn some_transactions() -> Journal {
    let mut journal = Journal::new(Spec { start: 30, ..V3 });
    for n in 0..4 {
        journal.write(&[(n, filled(n as u8 + 1)), (n + 100, filled(n as u8 + 1))]);
        journal.commit();
    }
    journal
}

#[test]
fn unreadable_block_after_the_log_does_no_harm() {
    let journal = some_transactions();
    let (sim, log) = faulty(&journal);
    let bad = log.map().device_block(journal.at + 2).unwrap() * BLOCK as u64;
    sim.inject(Fault {
        range: Some(bad..bad + 1),
        ..Fault::every(FaultOp::Read, FaultKind::Io(5))
    });
    let recovery = Recovery::plan(&log, FS).unwrap();
    assert_eq!(recovery.recovered().transactions, 4);
}

#[test]
fn fault_at_every_read_write_and_flush_is_reported_and_recovery_can_be_made_again() {
    let mut sites = [0; 3];
    for (site, op) in [FaultOp::Read, FaultOp::Write, FaultOp::Flush]
        .into_iter()
        .enumerate()
    {
        for skip in 0.. {
            let journal = some_transactions();
            let (sim, log) = faulty(&journal);
            let fault = sim.inject(Fault {
                skip,
                ..Fault::once(op, FaultKind::Io(5))
            });
            let recover = |log: &Log| {
                let recovery = Recovery::plan(log, FS)?;
                recovery.replay(&sim)?;
                recovery.reset()
            };
            let result = recover(&log);
            if sim.hits(fault) == Some(0) {
                result.unwrap();
                break;
            }
            sites[site] += 1;
            // A read of many blocks that fails is made again for one.
            assert!(op == FaultOp::Read || result.is_err(), "{op:?} {skip}");
            recover(&log).unwrap();
            for n in 0..4 {
                assert_eq!(journal.read(n), filled(n as u8 + 1));
                assert_eq!(journal.read(n + 100), filled(n as u8 + 1));
            }
            assert_eq!(journal.read(4), home(4));
            assert!(log.read_superblock().unwrap().is_empty());
        }
    }
    println!("faults at {sites:?} reads, writes and flushes");
    assert!(sites.iter().all(|hit| *hit >= 2), "{sites:?}");
}
