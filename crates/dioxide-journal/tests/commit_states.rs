//! The life of transactions: handles and credits, states, group commit, checkpoint, revocation.

mod commit_support;

use commit_support::reader::replay;
use commit_support::{
    BLOCK, DEVICE_BYTES, Form, HOME, LOG, LOG_BLOCKS, Rng, Summed, content, fresh, log_map, open,
    open_with, options, superblock, version_of,
};
use dioxide_block::mem::MemDevice;
use dioxide_block::record::{Action, RecordDevice};
use dioxide_block::sim::{FaultOp, SimDevice, SimSpec};
use dioxide_block::{Device, Durability};
use dioxide_format::journal::{BlockHeader, BlockType};
use dioxide_format::types::Pblk;
use dioxide_journal::buffer::BufferCache;
use dioxide_journal::journal::{Handle, Journal, JournalOptions};
use dioxide_journal::log::{Log, LogMap};
use dioxide_journal::recovery::{FileSystem, Recovery};
use dioxide_journal::transaction::{State, Tid};
use dioxide_journal::{Asked, Edit, Error, Kind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const FORM: Form = Form::V3;

fn journal() -> (MemDevice, Journal) {
    let (memory, _) = fresh(FORM, 1);
    let journal = open(Arc::new(memory.clone()), FORM, 1);
    (memory, journal)
}

fn image(device: &dyn Device) -> Vec<u8> {
    let mut image = vec![0; DEVICE_BYTES as usize];
    device.read_at(0, &mut image).expect("memory");
    image
}

fn set(handle: &mut Handle<'_>, block: u64, version: u64) -> dioxide_journal::Result<()> {
    handle.modify(Pblk(block), &Summed, &mut |bytes| {
        bytes.copy_from_slice(&content(block, version));
        Ok(())
    })
}

/// One handle that changes one block.
fn change(journal: &Journal, block: u64, version: u64) -> Tid {
    let mut handle = journal.start(1).expect("start");
    set(&mut handle, block, version).expect("modify");
    handle.stop().expect("stop")
}

fn forget(journal: &Journal, block: u64) -> Tid {
    let mut handle = journal.start(0).expect("start");
    handle.forget(Pblk(block)).expect("forget");
    handle.stop().expect("stop")
}

fn version(journal: &Journal, block: u64) -> u64 {
    version_of(&journal.cache().read(Pblk(block), &Summed).expect("read"))
}

/// Version of a block after a replay of the log as it is.
fn recovered(device: &dyn Device, block: u64) -> u64 {
    let mut image = image(device);
    replay(&mut image).expect("replay");
    version_of(&image[block as usize * BLOCK..])
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("4 bytes"))
}

/// `s_start` and `s_sequence` as they are on the device.
fn tail(device: &dyn Device) -> (u32, u32) {
    let image = image(device);
    let sb = &image[LOG as usize * BLOCK..];
    (be32(&sb[0x1C..]), be32(&sb[0x18..]))
}

/// Revoke blocks in the log, old ones included.
fn revoke_blocks(device: &dyn Device) -> usize {
    let image = image(device);
    let log = &image[LOG as usize * BLOCK..][..LOG_BLOCKS as usize * BLOCK];
    let is_revoke = |b: &&[u8]| be32(b) == 0xC03B_3998 && be32(&b[4..]) == 5;
    log.chunks(BLOCK).filter(is_revoke).count()
}

#[test]
fn handle_changes_as_many_blocks_as_it_has_credits() {
    let (_, journal) = journal();
    let mut handle = journal.start(2).expect("start");
    for version in 1..4 {
        set(&mut handle, 3, version).expect("one block, one credit");
    }
    assert_eq!(handle.credits(), 1);
    set(&mut handle, 4, 1).expect("the other");
    let error = set(&mut handle, 5, 1).expect_err("a third");
    assert!(matches!(error, Error::OutOfCredits { credits: 2 }));
    let error = handle.create(Pblk(5), &Summed, &content(5, 1));
    assert!(matches!(error, Err(Error::OutOfCredits { credits: 2 })));
    set(&mut handle, 4, 2).expect("what it has, it may change");
    assert!(handle.extend(1).expect("extend"));
    set(&mut handle, 5, 1).expect("now it may");
    drop(handle);
    assert_eq!(version(&journal, 5), 1);
}

#[test]
fn handle_larger_than_a_transaction_is_refused() {
    let (_, journal) = journal();
    let max = journal.max_credits();
    assert_eq!(max, (LOG_BLOCKS - 1) / 4);
    let error = journal.start(max + 1).map(drop).expect_err("too many");
    assert!(matches!(error, Error::HandleTooLarge { credits, .. } if credits == max + 1));
    let mut handle = journal.start(max).expect("all of it");
    assert!(!handle.extend(1).expect("extend"));
}

#[test]
fn handle_that_changes_nothing_gives_its_credits_back() {
    let (_, journal) = journal();
    for _ in 0..10 {
        let handle = journal.start(journal.max_credits()).expect("start");
        assert_eq!(handle.stop().expect("stop"), Tid(1));
    }
}

#[test]
fn full_transaction_makes_the_next_handle_wait_for_the_next_one() {
    let (_, journal) = journal();
    let mut handle = journal.start(journal.max_credits()).expect("start");
    set(&mut handle, 0, 1).expect("modify");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| journal.start(1).expect("start").stop().expect("stop"));
        while journal.state(Tid(1)) != Some(State::Locked) {
            thread::yield_now();
        }
        assert!(!handle.extend(1).expect("extend"), "it is being closed");
        assert!(!waiting.is_finished());
        drop(handle);
        assert_eq!(waiting.join().expect("thread"), Tid(2));
    });
}

#[test]
fn restart_goes_on_with_new_credits() {
    let (_, journal) = journal();
    let mut handle = journal.start(1).expect("start");
    set(&mut handle, 3, 1).expect("modify");
    handle.restart(2).expect("restart");
    assert_eq!(handle.credits(), 2);
    set(&mut handle, 4, 1).expect("modify");
    set(&mut handle, 5, 1).expect("modify");
    assert!(set(&mut handle, 6, 1).is_err());
}

#[test]
fn restart_lets_a_commit_through() {
    let (memory, journal) = journal();
    let mut handle = journal.start(1).expect("start");
    set(&mut handle, 3, 1).expect("modify");
    thread::scope(|scope| {
        scope.spawn(|| journal.wait_commit(Tid(1)).expect("commit"));
        while journal.state(Tid(1)) != Some(State::Locked) {
            thread::yield_now();
        }
        handle.restart(1).expect("restart");
        assert_eq!(handle.tid(), Tid(2));
        set(&mut handle, 4, 1).expect("modify");
    });
    assert_eq!((recovered(&memory, 3), recovered(&memory, 4)), (1, 0));
}

#[test]
fn modify_that_fails_leaves_the_block_and_the_transaction() {
    let (memory, journal) = journal();
    let mut handle = journal.start(1).expect("start");
    let failed = handle.modify(Pblk(3), &Summed, &mut |_| {
        Err(Error::Unsupported("this".into()))
    });
    assert!(failed.is_err());
    assert_eq!(handle.credits(), 1);
    drop(handle);
    journal.force_commit().expect("commit");
    assert_eq!(version(&journal, 3), 0);
    assert_eq!(tail(&memory), (0, 1), "nothing was logged");
}

/// A device whose flushes are held.
fn held() -> (SimDevice, Journal) {
    let (memory, _) = fresh(FORM, 1);
    let sim = SimDevice::new(Arc::new(memory), SimSpec::default());
    let journal = open(Arc::new(sim.clone()), FORM, 1);
    (sim, journal)
}

#[test]
fn state_goes_from_running_to_finished() {
    let (sim, journal) = held();
    assert_eq!(journal.state(Tid(1)), None);
    let mut handle = journal.start(1).expect("start");
    set(&mut handle, 3, 1).expect("modify");
    assert_eq!(journal.state(Tid(1)), Some(State::Running));
    let (writes, flushes) = (
        sim.hold(None, FaultOp::Write),
        sim.hold(None, FaultOp::Flush),
    );
    thread::scope(|scope| {
        scope.spawn(|| journal.force_commit().expect("commit"));
        while journal.state(Tid(1)) != Some(State::Locked) {
            thread::yield_now();
        }
        drop(handle);
        writes.wait_for(1);
        assert_eq!(journal.state(Tid(1)), Some(State::Flush));
        writes.release();
        flushes.wait_for(1);
        assert_eq!(journal.state(Tid(1)), Some(State::Commit));
        assert_eq!(journal.committed(), Tid(0));
        flushes.release();
    });
    assert_eq!(journal.state(Tid(1)), Some(State::Finished));
    assert_eq!(journal.committed(), Tid(1));
}

#[test]
fn block_changed_during_a_commit_keeps_both_versions() {
    let (sim, journal) = held();
    change(&journal, 3, 1);
    let writes = sim.hold(None, FaultOp::Write);
    thread::scope(|scope| {
        scope.spawn(|| journal.wait_commit(Tid(1)).expect("commit"));
        writes.wait_for(1);
        assert_eq!(version(&journal, 3), 1, "a reader does not wait");
        assert_eq!(change(&journal, 3, 2), Tid(2), "nor does a writer");
        assert_eq!(version(&journal, 3), 2);
        writes.release();
    });
    assert_eq!(recovered(&sim, 3), 1);
    change(&journal, 4, 1);
    journal.force_commit().expect("commit");
    assert_eq!((recovered(&sim, 3), recovered(&sim, 4)), (2, 1));
}

#[test]
fn checkpoint_writes_the_committed_version_only() {
    let (sim, journal) = held();
    change(&journal, 3, 1);
    journal.force_commit().expect("commit");
    let writes = sim.hold(Some(3 * BLOCK as u64..4 * BLOCK as u64), FaultOp::Write);
    thread::scope(|scope| {
        scope.spawn(|| journal.flush().expect("flush"));
        writes.wait_for(1);
        change(&journal, 3, 2);
        writes.release();
    });
    let home = image(&sim);
    assert_eq!(version_of(&home[3 * BLOCK..]), 1);
    assert_eq!(version(&journal, 3), 2);
    journal.flush().expect("flush");
    assert_eq!(version_of(&image(&sim)[3 * BLOCK..]), 2);
}

#[test]
fn commit_if_needed_tells_whether_a_flush_came_after() {
    let (sim, journal) = held();
    let tid = change(&journal, 3, 1);
    assert!(
        journal.commit_if_needed(tid).expect("commit"),
        "it was running"
    );
    assert!(
        !journal.commit_if_needed(tid).expect("commit"),
        "it was durable"
    );
    let tid = change(&journal, 3, 2);
    let flushes = sim.hold(None, FaultOp::Flush);
    thread::scope(|scope| {
        scope.spawn(|| journal.wait_commit(tid).expect("commit"));
        flushes.wait_for(1);
        let late = scope.spawn(|| journal.commit_if_needed(tid).expect("commit"));
        thread::sleep(std::time::Duration::from_millis(20));
        assert!(!late.is_finished());
        flushes.release();
        assert!(!late.join().expect("thread"), "the flush was on its way");
    });
}

#[test]
fn group_commit_serves_all_waiters_with_one() {
    let (memory, _) = fresh(FORM, 1);
    let record = RecordDevice::new(Arc::new(memory));
    let sim = SimDevice::new(Arc::new(record.clone()), SimSpec::default());
    let journal = open(Arc::new(sim.clone()), FORM, 1);
    change(&journal, 0, 1);
    let flushes = sim.hold(None, FaultOp::Flush);
    thread::scope(|scope| {
        scope.spawn(|| journal.force_commit().expect("commit"));
        flushes.wait_for(1);
        let tids: Vec<Tid> = (1..7).map(|block| change(&journal, block, 1)).collect();
        assert!(tids.iter().all(|&tid| tid == Tid(2)));
        for tid in tids {
            let journal = &journal;
            scope.spawn(move || journal.wait_commit(tid).expect("commit"));
        }
        flushes.release();
    });
    let log = record.log();
    let is_fua = |action: &Action| matches!(action, Action::Write { fua: true, .. });
    let commits = log.entries().iter().filter(|e| is_fua(&e.action)).count();
    assert_eq!(commits, 2);
}

#[test]
fn hook_runs_after_the_commit_block() {
    let (memory, journal) = journal();
    let mut handle = journal.start(1).expect("start");
    set(&mut handle, 3, 1).expect("modify");
    let (seen, ran) = (memory.clone(), Arc::<AtomicBool>::default());
    let flag = ran.clone();
    handle.on_commit(Box::new(move || {
        assert_eq!(recovered(&seen, 3), 1, "durable");
        flag.store(true, Ordering::SeqCst);
    }));
    handle.mark_sync();
    handle.stop().expect("stop");
    assert!(ran.load(Ordering::SeqCst));
}

#[test]
fn barrier_off_issues_neither_flush_nor_fua() {
    let (memory, _) = fresh(FORM, 1);
    let record = RecordDevice::new(Arc::new(memory));
    let mut options = options();
    options.barrier = false;
    let journal = commit_support::open_with(Arc::new(record.clone()), FORM, 1, &options);
    change(&journal, 3, 1);
    journal.flush().expect("flush");
    for entry in record.log().entries() {
        assert!(
            matches!(entry.action, Action::Write { fua: false, .. }),
            "{entry:?}"
        );
    }
}

#[test]
fn flush_empties_the_log_and_the_next_commit_fills_it_again() {
    let (memory, journal) = journal();
    change(&journal, 3, 1);
    journal.force_commit().expect("commit");
    assert_eq!(tail(&memory), (1, 1));
    journal.flush().expect("flush");
    assert_eq!(tail(&memory), (0, 2));
    change(&journal, 3, 2);
    journal.force_commit().expect("commit");
    assert_eq!(tail(&memory), (4, 2));
    assert_eq!(recovered(&memory, 3), 2);
    drop(journal);
    assert_eq!(tail(&memory), (4, 2), "a dropped journal is not clean");
    assert_eq!(version_of(&image(&memory)[3 * BLOCK..]), 1);
}

#[test]
fn log_that_is_full_is_checkpointed_and_goes_round() {
    let (memory, journal) = journal();
    for round in 1..200 {
        change(&journal, round % 40, round);
        journal.force_commit().expect("commit");
        assert_eq!(recovered(&memory, round % 40), round);
    }
    let (start, sequence) = tail(&memory);
    assert!(start > 0 && sequence > 100, "{start} {sequence}");
    journal.close().expect("close");
    assert_eq!(tail(&memory), (0, 200));
}

#[test]
fn largest_transactions_fit() {
    let (memory, journal) = journal();
    let max = u64::from(journal.max_credits());
    for round in 1..20 {
        let mut handle = journal.start(max as u32).expect("start");
        for block in 0..max {
            set(&mut handle, block, round).expect("modify");
        }
        handle.mark_sync();
        handle.stop().expect("stop");
        assert_eq!(recovered(&memory, max - 1), round);
    }
}

#[test]
fn forget_of_an_unlogged_block_writes_no_revoke() {
    let (memory, journal) = journal();
    change(&journal, 4, 1);
    change(&journal, 3, 1);
    forget(&journal, 3);
    journal.force_commit().expect("commit");
    assert_eq!(revoke_blocks(&memory), 0);
    assert_eq!((recovered(&memory, 3), recovered(&memory, 4)), (0, 1));
    assert_eq!(version(&journal, 3), 0, "not cached any more");
}

#[test]
fn forget_of_a_logged_block_revokes_it() {
    let (memory, journal) = journal();
    change(&journal, 3, 1);
    journal.force_commit().expect("commit");
    forget(&journal, 3);
    journal.force_commit().expect("commit");
    assert_eq!(revoke_blocks(&memory), 1);
    assert_eq!(recovered(&memory, 3), 0);
    journal.flush().expect("flush");
    assert_eq!(
        version_of(&image(&memory)[3 * BLOCK..]),
        0,
        "nor written home"
    );
}

#[test]
fn forget_during_the_commit_of_the_block_revokes_it() {
    let (sim, journal) = held();
    change(&journal, 3, 1);
    let writes = sim.hold(None, FaultOp::Write);
    thread::scope(|scope| {
        scope.spawn(|| journal.wait_commit(Tid(1)).expect("commit"));
        writes.wait_for(1);
        assert_eq!(forget(&journal, 3), Tid(2));
        writes.release();
    });
    journal.force_commit().expect("commit");
    assert_eq!((revoke_blocks(&sim), recovered(&sim, 3)), (1, 0));
}

#[test]
fn forget_after_the_checkpoint_writes_no_revoke() {
    let (memory, journal) = journal();
    change(&journal, 3, 1);
    journal.flush().expect("flush");
    forget(&journal, 3);
    change(&journal, 4, 1);
    journal.force_commit().expect("commit");
    assert_eq!(revoke_blocks(&memory), 0);
    assert_eq!(recovered(&memory, 3), 1);
}

#[test]
fn block_used_again_in_the_same_transaction_cancels_the_revoke() {
    let (memory, journal) = journal();
    change(&journal, 3, 1);
    journal.force_commit().expect("commit");
    let mut handle = journal.start(1).expect("start");
    handle.forget(Pblk(3)).expect("forget");
    handle
        .create(Pblk(3), &Summed, &content(3, 2))
        .expect("create");
    handle.mark_sync();
    handle.stop().expect("stop");
    assert_eq!((revoke_blocks(&memory), recovered(&memory, 3)), (0, 2));
}

#[test]
fn block_used_again_later_is_replayed_from_there() {
    let (memory, journal) = journal();
    change(&journal, 3, 1);
    journal.force_commit().expect("commit");
    forget(&journal, 3);
    journal.force_commit().expect("commit");
    let mut handle = journal.start(1).expect("start");
    handle
        .create(Pblk(3), &Summed, &content(3, 2))
        .expect("create");
    handle.mark_sync();
    handle.stop().expect("stop");
    assert_eq!((revoke_blocks(&memory), recovered(&memory, 3)), (1, 2));
}

#[test]
fn change_by_a_handle_that_is_open_when_the_block_is_freed_is_left_out() {
    let (memory, journal) = journal();
    change(&journal, 3, 1);
    journal.force_commit().expect("commit");
    let mut open = journal.start(2).expect("start");
    set(&mut open, 3, 2).expect("modify");
    set(&mut open, 4, 2).expect("modify");
    forget(&journal, 3);
    open.mark_sync();
    open.stop().expect("stop");
    assert_eq!((revoke_blocks(&memory), recovered(&memory, 3)), (1, 0));
    assert_eq!(recovered(&memory, 4), 2);
    journal.flush().expect("flush");
    assert_eq!(version_of(&image(&memory)[3 * BLOCK..]), 0);
}

#[test]
fn block_of_the_transaction_that_was_freed_is_out_of_it_until_it_is_changed_again() {
    let (memory, journal) = journal();
    change(&journal, 3, 1);
    change(&journal, 4, 1);
    let mut open = journal.start(1).expect("start");
    set(&mut open, 3, 2).expect("modify");
    forget(&journal, 3);
    forget(&journal, 4);
    open.stop().expect("stop");
    let tid = change(&journal, 4, 2);
    journal.wait_commit(tid).expect("commit");
    assert_eq!((recovered(&memory, 3), recovered(&memory, 4)), (0, 2));
}

#[test]
fn change_after_another_handle_freed_the_block_is_kept() {
    let (memory, journal) = journal();
    change(&journal, 3, 1);
    journal.force_commit().expect("commit");
    let mut open = journal.start(1).expect("start");
    set(&mut open, 3, 2).expect("modify");
    forget(&journal, 3);
    set(&mut open, 3, 3).expect("modify");
    open.mark_sync();
    open.stop().expect("stop");
    assert_eq!((revoke_blocks(&memory), recovered(&memory, 3)), (0, 3));
}

#[test]
fn revoke_outlives_the_checkpoint_of_part_of_the_log() {
    let (memory, journal) = journal();
    change(&journal, 3, 1);
    journal.force_commit().expect("commit");
    forget(&journal, 3);
    journal.force_commit().expect("commit");
    for round in 1..200 {
        change(&journal, 5 + round % 8, round);
        journal.force_commit().expect("commit");
        assert_eq!(recovered(&memory, 3), 0);
    }
}

#[test]
fn open_refuses_what_it_cannot_write() {
    let try_open = |change: &dyn Fn(&mut dioxide_format::journal::JournalSuperBlock)| {
        let (memory, _) = fresh(FORM, 1);
        let device: Arc<dyn Device> = Arc::new(memory);
        let mut sb = superblock(FORM, 1);
        change(&mut sb);
        let cache = BufferCache::new(device.clone(), BLOCK, 16 * BLOCK);
        Journal::open(device, log_map(), sb, cache, &options()).map(drop)
    };
    try_open(&|_| {}).expect("a good one");
    let not_recovered = try_open(&|sb| sb.s_start = 1);
    assert!(matches!(not_recovered, Err(Error::Log { .. })));
    let too_small = try_open(&|sb| sb.s_maxlen = 10);
    assert!(matches!(too_small, Err(Error::Log { .. })));
    let too_large = try_open(&|sb| sb.s_maxlen = LOG_BLOCKS + 1);
    assert!(matches!(too_large, Err(Error::Log { .. })));
    let version_1 = try_open(&|sb| sb.h_blocktype = 3);
    assert!(matches!(version_1, Err(Error::Unsupported(_))));
    let feature = try_open(&|sb| sb.s_feature_incompat |= 0x1000);
    assert!(matches!(feature, Err(Error::Unsupported(_))));
}

#[test]
fn eviction_never_drops_what_is_not_home() {
    // The cache's budget is 16 blocks; more are changed, none is home.
    let (_, journal) = journal();
    for block in 0..40 {
        change(&journal, block, 1 + block);
    }
    journal.force_commit().expect("commit");
    for block in 0..40 {
        assert_eq!(version(&journal, block), 1 + block);
    }
    assert_eq!(journal.cache().stats().pinned, 40);
    journal.flush().expect("flush");
    let stats = journal.cache().stats();
    assert_eq!(stats.pinned, 0);
    assert!(stats.blocks <= 16, "{stats:?}");
}

/// Blocks that count in memory, and get the count when a transaction closes.
#[derive(Clone, Debug, Default)]
struct Later(Arc<AtomicU64>);

impl Kind for Later {
    fn name(&self) -> &'static str {
        Summed.name()
    }

    fn verify(&self, block: Pblk, bytes: &[u8]) -> dioxide_format::Result<()> {
        Summed.verify(block, bytes)
    }

    fn seal(&self, block: Pblk, bytes: &mut [u8]) {
        Summed.seal(block, bytes);
    }

    fn keep(&self) -> Option<Arc<dyn Kind>> {
        Some(Arc::new(self.clone()))
    }

    fn complete(&self, _: Pblk, bytes: &mut [u8]) {
        bytes[16..24].copy_from_slice(&self.0.load(Ordering::Relaxed).to_le_bytes());
    }
}

#[test]
fn change_at_close_commits_what_the_owner_had_when_the_transaction_closed() {
    let (memory, journal) = journal();
    let (later, mut asked) = (Later::default(), Asked::default());
    let mut count = |to: u64, credits: u32| {
        let mut handle = journal.start(credits).expect("start");
        let done = handle.change_at_close(Pblk(3), &later, &mut asked);
        if done.is_ok() {
            later.0.store(to, Ordering::Relaxed);
        }
        handle.stop().expect("stop");
        done
    };
    assert!(count(9, 0).is_err(), "the first one needs a credit");
    for to in [1, 2] {
        count(to, 2 - to as u32).expect("the second one needs none");
    }
    assert_eq!(version(&journal, 3), 0, "not before the transaction closes");
    assert_eq!(recovered(&memory, 3), 0);
    journal.force_commit().expect("commit");
    assert_eq!(recovered(&memory, 3), 2);
    assert_eq!(version(&journal, 3), 2);
    // Nobody asks in the next one.
    later.0.store(7, Ordering::Relaxed);
    change(&journal, 4, 1);
    journal.force_commit().expect("commit");
    assert_eq!((recovered(&memory, 3), recovered(&memory, 4)), (2, 1));
    assert!(count(8, 0).is_err(), "it is another transaction");
    count(8, 1).expect("it asks again");
    journal.force_commit().expect("commit");
    assert_eq!(recovered(&memory, 3), 8);
}

/// Another name for a block that is sealed alike.
#[derive(Debug)]
struct Other;

impl Kind for Other {
    fn name(&self) -> &'static str {
        "other block"
    }

    fn verify(&self, block: Pblk, bytes: &[u8]) -> dioxide_format::Result<()> {
        Summed.verify(block, bytes)
    }

    fn seal(&self, block: Pblk, bytes: &mut [u8]) {
        Summed.seal(block, bytes);
    }
}

#[test]
fn change_at_close_of_a_block_that_other_kinds_change_is_not_lost() {
    let (memory, journal) = journal();
    let (later, mut asked) = (Later::default(), Asked::default());
    // One of the same name was there before, and one of another name comes behind.
    change(&journal, 3, 1);
    journal.force_commit().expect("commit");
    let mut handle = journal.start(1).expect("start");
    let done = handle.change_at_close(Pblk(3), &later, &mut asked);
    done.expect("room for it");
    later.0.store(5, Ordering::Relaxed);
    let done = handle.modify(Pblk(3), &Other, &mut |bytes| {
        bytes[40] ^= 1;
        Ok(())
    });
    done.expect("it has the block");
    handle.stop().expect("stop");
    journal.force_commit().expect("commit");
    assert_eq!(recovered(&memory, 3), 5);
}

/// Accepts no block.
#[derive(Debug)]
struct Nothing;

impl Kind for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn verify(&self, _: Pblk, _: &[u8]) -> dioxide_format::Result<()> {
        Err(dioxide_format::Error::Checksum {
            structure: self.name(),
            found: 0,
            expected: 0,
        })
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}
}

#[test]
fn what_a_handle_read_last_is_changed_if_it_is_that_block_and_of_that_kind() {
    let (memory, journal) = journal();
    let mut handle = journal.start(2).expect("start");
    let mut put = |block: u64, kind: &dyn Kind, version: u64| {
        // Block 3 is the one that was read last each time.
        handle.read(Pblk(3), &Summed).expect("it is whole");
        handle.modify(Pblk(block), kind, &mut |bytes| {
            bytes.copy_from_slice(&content(block, version));
            Ok(())
        })
    };
    put(4, &Summed, 1).expect("another block than was read");
    put(3, &Summed, 2).expect("the block that was read");
    let refused = put(3, &Nothing, 3).expect_err("no such block");
    assert!(
        matches!(refused, Error::Block { block: 3, .. }),
        "{refused}"
    );
    handle.stop().expect("stop");
    assert_eq!((version(&journal, 3), version(&journal, 4)), (2, 1));
    journal.force_commit().expect("commit");
    assert_eq!((recovered(&memory, 3), recovered(&memory, 4)), (2, 1));
}

#[test]
fn block_that_a_handle_read_last_and_freed_leaves_the_cache_with_the_commit() {
    let (_memory, journal) = journal();
    let mut handle = journal.start(1).expect("start");
    handle.read(Pblk(3), &Summed).expect("it is whole");
    handle.forget(Pblk(3)).expect("it is freed");
    assert_eq!(journal.cache().stats().blocks, 1);
    handle.mark_sync();
    handle.stop().expect("stop");
    assert_eq!(journal.cache().stats().blocks, 0);
}

#[test]
fn versions_of_readers_stay_while_memory_of_others_is_used_again() {
    let (memory, journal) = journal();
    change(&journal, 3, 1);
    journal.force_commit().expect("commit");
    let read = journal.cache().read(Pblk(3), &Summed).expect("cached");
    for round in 2..40 {
        for block in [3, 4, 5] {
            change(&journal, block, round);
        }
        journal.force_commit().expect("commit");
    }
    journal.flush().expect("flush");
    assert_eq!(read[..], content(3, 1)[..]);
    for block in [3, 4, 5] {
        assert_eq!(recovered(&memory, block), 39);
    }
}

#[test]
fn replay_of_fast_commits_may_have_more_of_the_log_than_others() {
    let credits = |replays_fast_commits| {
        let (device, _) = fresh(Form::V3, 1);
        let options = JournalOptions {
            replays_fast_commits,
            ..options()
        };
        let journal = open_with(Arc::new(device), Form::V3, 1, &options);
        let max = journal.max_credits();
        let mut handle = journal.start(max).expect("start");
        for block in 0..u64::from(max).min(HOME) {
            set(&mut handle, block, 1).expect("modify");
        }
        handle.stop().expect("stop");
        journal.force_commit().expect("it fits");
        max
    };
    let (one, all) = (credits(false), credits(true));
    assert!(all > 3 * one, "{all}, others {one}");
}

/// Linux takes on the log where it finds its end, and then has fast commits in the last blocks.
#[test]
fn log_that_spares_fast_commits_never_ends_in_their_blocks() {
    let (blocks, spared) = (1100, 64);
    let ends = LOG + u64::from(blocks);
    let device = MemDevice::new(ends * BLOCK as u64);
    let (_, home) = fresh(FORM, 1);
    let write = |device: &MemDevice, bytes: &[u8]| {
        let written = device.write_at(0, bytes, Durability::Cached);
        written.expect("memory");
    };
    write(&device, &home[..LOG as usize * BLOCK]);
    let map = LogMap::internal(std::iter::once(LOG..ends)).expect("a log");
    let log_on = |device: &MemDevice| Log::new(Arc::new(device.clone()), map.clone(), BLOCK);
    let mut sb = superblock(FORM, 1);
    (sb.s_maxlen, sb.s_num_fc_blks) = (blocks, spared);
    let written = log_on(&device).write_superblock(&mut sb, Durability::Cached);
    written.expect("memory");
    let options = JournalOptions {
        spares_fast_commits: true,
        ..options()
    };
    let shared: Arc<dyn Device> = Arc::new(device.clone());
    let cache = BufferCache::new(shared.clone(), BLOCK, 16 * BLOCK);
    let journal = Journal::open(shared, map.clone(), sb, cache, &options).expect("journal");
    let file_system = FileSystem {
        blocks: ends,
        device_blocks: ends,
        inode_bytes: 256,
    };
    let mut rng = Rng(11);
    let (mut laps, mut last) = (0, 0);
    for version in 1.. {
        let changed = 1 + rng.below(HOME);
        for block in 0..changed {
            change(&journal, block, version);
        }
        journal.force_commit().expect("commit");
        let crashed = MemDevice::new(ends * BLOCK as u64);
        let mut bytes = vec![0; ends as usize * BLOCK];
        device.read_at(0, &mut bytes).expect("memory");
        write(&crashed, &bytes);
        let head = head(&bytes[LOG as usize * BLOCK..]);
        assert!(head < blocks - spared, "it ends at {head}");
        laps += u32::from(head < last);
        last = head;
        let log = log_on(&crashed);
        let recovery = Recovery::plan(&log, file_system).expect("a log");
        recovery.replay(&crashed).expect("memory");
        crashed.read_at(0, &mut bytes).expect("memory");
        for block in 0..changed {
            let found = version_of(&bytes[block as usize * BLOCK..]);
            assert_eq!(found, version, "block {block}");
        }
        if laps == 3 {
            break;
        }
        // The log has copies of it, which the next transaction revokes unless it has one.
        forget(&journal, rng.below(HOME));
    }
}

/// The block behind the newest commit block of a log.
fn head(log: &[u8]) -> u32 {
    let numbered = log.chunks(BLOCK).zip(0..);
    let commits = numbered.filter_map(|(block, at)| match BlockHeader::of(block) {
        Some((BlockType::Commit, tid)) => Some((tid.0, at + 1)),
        _ => None,
    });
    commits.max().expect("a transaction").1
}
