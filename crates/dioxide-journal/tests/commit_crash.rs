//! Power cuts: random work from several threads, recorded; every state that a crash can leave is
//! recovered, and must be the state after some transaction, not an older one than was promised.

mod commit_support;

use commit_support::explore::{Explored, Model, Recover, by_both, by_reader, explore};
use commit_support::workload::World;
use commit_support::{BLOCK, Form, LOG, LOG_BLOCKS, Rng, fresh, open};
use dioxide_block::record::{Log, RecordDevice};
use dioxide_block::{Device, Durability, Geometry, Queue, QueueOptions};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SEQUENCE: u32 = u32::MAX - 20;

/// What a run leaves: the image before it, what was written, what was done.
struct Run {
    base: Vec<u8>,
    log: Log,
    model: Model,
}

fn run(form: Form, seed: u64, handles: u64, wrap: &dyn Fn(RecordDevice) -> Arc<dyn Device>) -> Run {
    let (memory, base) = fresh(form, SEQUENCE);
    let record = RecordDevice::new(Arc::new(memory));
    let journal = open(wrap(record.clone()), form, SEQUENCE);
    let world = World::new(&journal, record.clone());
    world.run(seed, handles);
    let model = Model::new(std::mem::take(&mut *world.events.lock()));
    drop(journal);
    Run {
        base,
        log: record.take_log(),
        model,
    }
}

fn explore_run(
    run: &Run,
    losses: u64,
    seed: u64,
    recover: Recover<'_>,
) -> Result<Explored, String> {
    let mut rng = Rng(seed);
    explore(&run.base, &run.log, &run.model, losses, &mut rng, recover)
}

fn seed() -> u64 {
    match std::env::var("DIOXIDE_SEED") {
        Ok(seed) => seed.parse().expect("DIOXIDE_SEED is a number"),
        Err(_) => std::process::id().into(),
    }
}

#[test]
fn crash_anywhere_recovers_to_a_transaction() {
    let first = seed();
    let mut total = Explored::default();
    for (round, form) in [Form::V3, Form::Plain, Form::V2, Form::V1]
        .into_iter()
        .enumerate()
    {
        let seed = first + round as u64;
        let run = run(form, seed, 40, &|record| Arc::new(record));
        let explored = explore_run(&run, 8, seed, &by_both)
            .unwrap_or_else(|what| panic!("DIOXIDE_SEED={first}, {form:?}: {what}"));
        total.states += explored.states;
        total.flushes += explored.flushes;
        total.seen.add(&explored.seen);
    }
    println!("DIOXIDE_SEED={first}: {total:?}");
    assert!(total.states >= 2000, "{total:?}");
    let seen = &total.seen;
    for met in [seen.replayed, seen.revoked, seen.escaped, seen.wrapped] {
        assert!(met > 0, "a run that never met it proves nothing: {total:?}");
    }
}

/// A device that lies.
struct Liar {
    inner: RecordDevice,
    lie: Lie,
    /// The last write was not to the log.
    at_home: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// Flushes do nothing.
    Flush,
    /// Flushes do nothing right after blocks were written home.
    HomeFlush,
    /// Force unit access does nothing.
    Fua,
    /// Revoke blocks are written without their records.
    Revoke,
    /// Escaped blocks lose their flag.
    Escape,
}

impl Liar {
    fn twist(&self, bytes: &mut [u8]) {
        for block in bytes.chunks_mut(BLOCK) {
            let word = |at: usize| u32::from_be_bytes(block[at..at + 4].try_into().expect("4"));
            let is_ours = word(0) == 0xC03B_3998;
            match (self.lie, is_ours, word(4)) {
                (Lie::Revoke, true, 5) => block[12..16].copy_from_slice(&16u32.to_be_bytes()),
                (Lie::Escape, true, 1) => {
                    // Tags of 8 bytes; the UUID follows the first.
                    block[12 + 7] &= !1;
                    let rest = block[36..].chunks_exact_mut(8);
                    rest.for_each(|tag| tag[7] &= !1);
                }
                _ => {}
            }
        }
    }
}

impl fmt::Debug for Liar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Liar({:?})", self.lie)
    }
}

impl Device for Liar {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> dioxide_block::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8], how: Durability) -> dioxide_block::Result<()> {
        let log = LOG..LOG + u64::from(LOG_BLOCKS);
        let is_home = !log.contains(&(offset / BLOCK as u64));
        self.at_home.store(is_home, Ordering::SeqCst);
        let mut bytes = buf.to_vec();
        self.twist(&mut bytes);
        let how = match self.lie {
            Lie::Fua => Durability::Cached,
            _ => how,
        };
        self.inner.write_at(offset, &bytes, how)
    }

    fn flush(&self) -> dioxide_block::Result<()> {
        match self.lie {
            Lie::Flush => Ok(()),
            Lie::HomeFlush if self.at_home.load(Ordering::SeqCst) => Ok(()),
            _ => self.inner.flush(),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> dioxide_block::Result<()> {
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> dioxide_block::Result<()> {
        self.inner.write_zeroes(offset, len)
    }

    fn open_queue(&self, options: &QueueOptions) -> dioxide_block::Result<Box<dyn Queue>> {
        self.inner.open_queue(options)
    }

    fn describe(&self) -> String {
        format!("liar({})", self.inner.describe())
    }
}

/// The exploration must fail over a device that lies like this; in a few runs, since one may not
/// meet what the lie is about.
fn is_caught(lie: Lie) {
    let first = seed();
    let complaint = (0..10).find_map(|round| {
        let seed = first + round;
        let liar = |inner| -> Arc<dyn Device> {
            let at_home = AtomicBool::new(false);
            Arc::new(Liar {
                inner,
                lie,
                at_home,
            })
        };
        let run = run(Form::Plain, seed, 40, &liar);
        explore_run(&run, 4, seed, &by_reader).err()
    });
    let complaint = complaint.unwrap_or_else(|| panic!("{lie:?} was not noticed, seed {first}"));
    println!("{lie:?}: {complaint}");
}

#[test]
fn mutant_without_flushes_is_caught() {
    is_caught(Lie::Flush);
}

#[test]
fn mutant_without_flush_of_home_is_caught() {
    is_caught(Lie::HomeFlush);
}

#[test]
fn mutant_without_fua_is_caught() {
    is_caught(Lie::Fua);
}

#[test]
fn mutant_without_revokes_is_caught() {
    is_caught(Lie::Revoke);
}

#[test]
fn mutant_without_escapes_is_caught() {
    is_caught(Lie::Escape);
}
