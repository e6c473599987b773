//! What happens when the device fails, a caller panics, or there is no log.

mod commit_support;

use commit_support::reader::replay;
use commit_support::{
    BLOCK, DEVICE_BYTES, Form, Summed, content, fresh, open, options, version_of,
};
use dioxide_block::Device;
use dioxide_block::mem::MemDevice;
use dioxide_block::sim::{Fault, FaultKind, FaultOp, SimDevice, SimSpec};
use dioxide_format::journal::JournalSuperBlock;
use dioxide_format::types::Pblk;
use dioxide_journal::buffer::BufferCache;
use dioxide_journal::journal::{Handle, Journal, JournalOptions};
use dioxide_journal::{Edit, Error, Kind, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const EIO: i32 = 5;
const FORM: Form = Form::V3;

fn image(device: &MemDevice) -> Vec<u8> {
    let mut image = vec![0; DEVICE_BYTES as usize];
    device.read_at(0, &mut image).expect("memory");
    image
}

fn set(journal: &Journal, blocks: &[u64], version: u64) -> Result<()> {
    let mut handle = journal.start(blocks.len() as u32)?;
    for &block in blocks {
        handle.modify(Pblk(block), &Summed, &mut |bytes| {
            bytes.copy_from_slice(&content(block, version));
            Ok(())
        })?;
    }
    handle.stop().map(drop)
}

/// Commits and checkpoints until something fails or all is done; the last version that was durable.
fn work(journal: &Journal) -> (u64, Result<()>) {
    for version in 1..=12 {
        let step = || {
            set(journal, &[0, 1 + version % 7], version)?;
            match version % 4 {
                0 => journal.flush(),
                _ => journal.force_commit(),
            }
        };
        if let Err(error) = step() {
            return (version - 1, Err(error));
        }
    }
    (12, Ok(()))
}

fn assert_aborted(journal: &Journal) {
    let reason = journal.aborted().expect("aborted").to_owned();
    for result in [
        journal.start(1).map(drop),
        journal.force_commit(),
        journal.flush(),
    ] {
        match result {
            Err(Error::Aborted(why)) => assert_eq!(why, reason),
            other => panic!("{other:?} after an abort"),
        }
    }
}

fn fault_everywhere(op: FaultOp) -> u64 {
    for skip in 0.. {
        let (memory, _) = fresh(FORM, 1);
        let sim = SimDevice::new(Arc::new(memory.clone()), SimSpec::default());
        let journal = open(Arc::new(sim.clone()), FORM, 1);
        let fault = sim.inject(Fault {
            skip,
            ..Fault::once(op, FaultKind::Io(EIO))
        });
        let (durable, result) = work(&journal);
        if sim.hits(fault) == Some(0) {
            result.expect("no fault, no error");
            return skip;
        }
        let error = result.expect_err("a fault is an error");
        assert!(matches!(error, Error::Device(_)), "{error:?}");
        assert_aborted(&journal);
        drop(journal);
        let mut image = image(&memory);
        let errno = (48 * BLOCK) + 0x20;
        assert_eq!(image[errno..errno + 4], (-EIO).to_be_bytes(), "s_errno");
        replay(&mut image).expect("a log that can be replayed");
        let found = version_of(&image[..BLOCK]);
        assert!(
            (durable..=durable + 1).contains(&found),
            "{op:?} {skip}: version {found}, durable was {durable}"
        );
        let other = (1 + found % 7) as usize;
        assert!(found == 0 || version_of(&image[other * BLOCK..]) == found);
    }
    unreachable!()
}

/// A commit waits for a handle whose owner aborts the journal, and who does not wait for the commit.
#[test]
fn abort_beside_a_commit_that_waits_for_handles_is_noted_in_the_log() {
    let (memory, _) = fresh(FORM, 1);
    let journal = open(Arc::new(memory.clone()), FORM, 1);
    set(&journal, &[0], 1).expect("room");
    let handle = journal.start(1).expect("room");
    thread::scope(|scope| {
        let committer = scope.spawn(|| journal.force_commit());
        // It has the log by then, most likely: if not, the journal is aborted with nobody beside it.
        thread::sleep(Duration::from_millis(100));
        journal.abort("a device that cannot be read");
        drop(handle);
        let result = committer.join().expect("no panic");
        assert!(matches!(result, Err(Error::Aborted(_))), "{result:?}");
    });
    drop(journal);
    let errno = (48 * BLOCK) + 0x20;
    assert_eq!(
        image(&memory)[errno..errno + 4],
        (-EIO).to_be_bytes(),
        "s_errno"
    );
}

#[test]
fn write_fault_anywhere_latches() {
    let sites = fault_everywhere(FaultOp::Write);
    assert!(sites > 30, "{sites} writes");
}

#[test]
fn flush_fault_anywhere_latches() {
    let sites = fault_everywhere(FaultOp::Flush);
    assert!(sites > 12, "{sites} flushes");
}

#[test]
fn read_fault_is_reported_and_not_kept() {
    let (memory, _) = fresh(FORM, 1);
    let sim = SimDevice::new(Arc::new(memory), SimSpec::default());
    let journal = open(Arc::new(sim.clone()), FORM, 1);
    sim.inject(Fault::once(FaultOp::Read, FaultKind::Io(EIO)));
    let failed = set(&journal, &[3], 1);
    assert!(matches!(failed, Err(Error::Device(_))), "{failed:?}");
    assert_eq!(journal.aborted(), None);
    set(&journal, &[3], 1).expect("the next read");
    journal.close().expect("close");
}

#[test]
fn write_fault_wakes_every_waiter() {
    let (memory, _) = fresh(FORM, 1);
    let sim = SimDevice::new(Arc::new(memory), SimSpec::default());
    let journal = open(Arc::new(sim.clone()), FORM, 1);
    sim.inject(Fault {
        skip: 40,
        ..Fault::every(FaultOp::Write, FaultKind::Io(EIO))
    });
    // Who ran into the fault hears of it, all others of the abort.
    let told = AtomicU32::new(0);
    thread::scope(|scope| {
        for number in 0..6 {
            let (journal, told) = (&journal, &told);
            scope.spawn(move || {
                for version in 1.. {
                    let done = set(journal, &[number], version).and(journal.force_commit());
                    match done {
                        Ok(_) => {}
                        Err(Error::Device(_)) => {
                            told.fetch_add(1, Ordering::Relaxed);
                            return;
                        }
                        Err(error) => {
                            assert!(matches!(error, Error::Aborted(_)), "{error:?}");
                            return;
                        }
                    }
                }
            });
        }
    });
    assert_aborted(&journal);
    assert_eq!(told.into_inner(), 1);
}

/// Changes [`Summed`] blocks and forgets their checksum.
#[derive(Debug)]
struct Careless;

impl Kind for Careless {
    fn name(&self) -> &'static str {
        "careless block"
    }

    fn verify(&self, block: Pblk, bytes: &[u8]) -> dioxide_format::Result<()> {
        Summed.verify(block, bytes)
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}

    fn keep(&self) -> Option<Arc<dyn Kind>> {
        Some(Arc::new(Careless))
    }
}

fn spoil(handle: &mut Handle<'_>, block: u64) {
    let spoil = &mut |bytes: &mut [u8]| {
        bytes[100] ^= 1;
        Ok(())
    };
    let changed = handle.modify(Pblk(block), &Careless, spoil);
    changed.expect("nobody has looked at it yet");
}

/// What fails before the changes are in the log leaves it as it was: begun anew, and followed by the fast commits.
#[test]
fn failed_replay_of_fast_commits_leaves_them_to_the_next() {
    let (memory, _) = fresh(FORM, 1);
    let options = JournalOptions {
        replays_fast_commits: true,
        ..options()
    };
    let journal = commit_support::open_with(Arc::new(memory.clone()), FORM, 7, &options);
    set(&journal, &[0], 1).expect("room");
    let mut handle = journal.start(1).expect("room");
    spoil(&mut handle, 0);
    handle.stop().expect("no commit yet");
    journal.flush().expect_err("a damaged block");
    assert_aborted(&journal);
    let image = image(&memory);
    let left = JournalSuperBlock::parse(&image[48 * BLOCK..]).expect("a superblock");
    left.verify_checksum().expect("a good one");
    assert_eq!((left.s_start, left.s_sequence), (left.s_first, 7));
}

#[test]
fn transaction_with_a_damaged_block_is_not_committed() {
    let (memory, _) = fresh(FORM, 1);
    let journal = open(Arc::new(memory.clone()), FORM, 1);
    set(&journal, &[5, 6], 1).expect("room");
    journal.force_commit().expect("sealed blocks");
    set(&journal, &[6], 2).expect("room");
    let mut handle = journal.start(1).expect("room");
    spoil(&mut handle, 5);
    let ran = Arc::<AtomicBool>::default();
    let flag = ran.clone();
    handle.on_commit(Box::new(move || flag.store(true, Ordering::SeqCst)));
    handle.stop().expect("no commit yet");
    match journal.force_commit() {
        Err(Error::Damaged { kind, block, .. }) => assert_eq!((kind, block), ("careless block", 5)),
        other => panic!("{other:?}"),
    }
    assert_aborted(&journal);
    assert!(!ran.load(Ordering::SeqCst), "not durable");
    drop(journal);
    let mut image = image(&memory);
    replay(&mut image).expect("a log that can be replayed");
    for block in [5, 6] {
        assert_eq!(version_of(&image[block * BLOCK..]), 1, "block {block}");
    }
}

#[test]
fn handle_dropped_by_a_panic_aborts() {
    let (memory, _) = fresh(FORM, 1);
    let journal = open(Arc::new(memory), FORM, 1);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut handle = journal.start(2).expect("start");
        let _ = handle.modify(Pblk(0), &Summed, &mut |_| panic!("on purpose"));
    }));
    assert!(panicked.is_err());
    assert_aborted(&journal);
}

/// Panics when a commit judges it.
#[derive(Debug)]
struct Panicking {
    in_commit: bool,
}

impl Kind for Panicking {
    fn name(&self) -> &'static str {
        "panicking block"
    }

    fn verify(&self, _: Pblk, _: &[u8]) -> dioxide_format::Result<()> {
        assert!(!self.in_commit, "on purpose");
        Ok(())
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}

    fn keep(&self) -> Option<Arc<dyn Kind>> {
        Some(Arc::new(Panicking { in_commit: true }))
    }
}

/// The cache has room for 16 blocks: without their pins, the next reads would get older ones from the device.
#[test]
fn panic_in_a_commit_leaves_readers_the_state_that_it_had() {
    let (memory, _) = fresh(FORM, 1);
    let journal = open(Arc::new(memory), FORM, 1);
    let blocks: Vec<u64> = (0..4).collect();
    set(&journal, &blocks, 1).expect("room");
    let mut handle = journal.start(1).expect("room");
    let kind = Panicking { in_commit: false };
    let changed = handle.modify(Pblk(0), &kind, &mut |_| Ok(()));
    changed.expect("it is not judged yet");
    handle.stop().expect("no error yet");
    let panicked = catch_unwind(AssertUnwindSafe(|| journal.force_commit()));
    assert!(panicked.is_err());
    assert_aborted(&journal);
    let version = |block| version_of(&journal.cache().read(Pblk(block), &Summed).expect("sound"));
    for block in 4..40 {
        assert_eq!(version(block), 0);
    }
    for block in blocks {
        assert_eq!(version(block), 1, "block {block}");
    }
}

#[test]
fn commit_interval_commits_by_itself() {
    let (memory, _) = fresh(FORM, 1);
    let mut options = options();
    options.commit_interval = Duration::from_millis(50);
    let journal = commit_support::open_with(Arc::new(memory), FORM, 1, &options);
    set(&journal, &[0], 1).expect("set");
    let start = Instant::now();
    while journal.committed().0 == 0 {
        assert!(start.elapsed() < Duration::from_secs(4), "no commit");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn none_writes_home_at_a_commit() {
    let (memory, _) = fresh(FORM, 1);
    let device: Arc<dyn Device> = Arc::new(memory.clone());
    let journal =
        Journal::none(BufferCache::new(device, BLOCK, 16 * BLOCK), &options()).expect("a thread");
    set(&journal, &[0, 5], 1).expect("set");
    assert_eq!(version_of(&image(&memory)), 0, "not before");
    journal.force_commit().expect("commit");
    let image = image(&memory);
    assert_eq!(image[..BLOCK], content(0, 1));
    assert_eq!(image[5 * BLOCK..6 * BLOCK], content(5, 1));
    assert_eq!(image[48 * BLOCK + 0x1C..][..4], [0; 4], "the log is empty");
    journal.close().expect("close");
}

#[test]
fn none_write_fault_latches() {
    let (memory, _) = fresh(FORM, 1);
    let sim = SimDevice::new(Arc::new(memory), SimSpec::default());
    let device: Arc<dyn Device> = Arc::new(sim.clone());
    let journal =
        Journal::none(BufferCache::new(device, BLOCK, 16 * BLOCK), &options()).expect("a thread");
    sim.inject(Fault::once(FaultOp::Write, FaultKind::Io(EIO)));
    set(&journal, &[0], 1).expect("set");
    journal.force_commit().expect_err("write fails");
    assert_aborted(&journal);
}

/// Commits for each that is asked for, of so many threads that ask.
fn commits_for_each(threads: u64) -> f64 {
    const TIMES: u64 = 40;
    let (memory, _) = fresh(FORM, 1);
    let spec: SimSpec = "flush=5ms".parse().expect("spec");
    let sim = SimDevice::new(Arc::new(memory), spec);
    let journal = open(Arc::new(sim), FORM, 1);
    thread::scope(|scope| {
        for number in 0..threads {
            let journal = &journal;
            scope.spawn(move || {
                for version in 1..=TIMES {
                    set(journal, &[number], version).expect("set");
                    journal.force_commit().expect("commit");
                }
            });
        }
    });
    journal.commits() as f64 / (threads * TIMES) as f64
}

#[test]
fn group_commit_of_eight_threads_is_three_times_one() {
    let (one, eight) = (commits_for_each(1), commits_for_each(8));
    println!("commits for each that is asked for: {one:.2} alone, {eight:.2} of eight threads");
    assert!(one >= 3.0 * eight, "{one:.2} {eight:.2}");
}
