//! Random handles from several threads, and what they did, to compare crash states with.
//!
//! Every handle changes block 0, whose version so tells up to which transaction a state goes.
//! Versions come from one counter, drawn where the block is locked, so that they ascend in each block.

use super::{BLOCK, MARKS, Rng, Summed, content, version_of};
use dioxide_block::record::RecordDevice;
use dioxide_block::{Device, Durability};
use dioxide_format::types::Pblk;
use dioxide_journal::Edit;
use dioxide_journal::journal::{Handle, Journal};
use dioxide_journal::transaction::Tid;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Blocks that every thread changes; each thread's own follow.
const SHARED: u64 = 16;
const OWN: u64 = 7;
pub const THREADS: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Has the content of its version.
    Metadata,
    /// Was freed.
    Freed,
}

#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub tid: Tid,
    pub block: u64,
    pub version: u64,
    pub what: What,
}

/// A mark in the log: something is durable from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// All transactions up to this one.
    Acknowledged(Tid),
    /// The file data that a block got, after the event of that version freed it.
    Data { block: u64, freed: u64, value: u64 },
}

impl Mark {
    fn encode(self) -> Vec<u8> {
        let fields = match self {
            Mark::Acknowledged(tid) => [1, tid.0, 0, 0],
            Mark::Data {
                block,
                freed,
                value,
            } => [2, block, freed, value],
        };
        let mut bytes: Vec<u8> = fields.iter().flat_map(|f| f.to_le_bytes()).collect();
        bytes.resize(BLOCK, 0);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Mark {
        let field = |i: usize| u64::from_le_bytes(bytes[i * 8..][..8].try_into().expect("8"));
        match field(0) {
            1 => Mark::Acknowledged(Tid(field(1))),
            _ => Mark::Data {
                block: field(1),
                freed: field(2),
                value: field(3),
            },
        }
    }
}

/// The bytes of file data.
pub fn data(value: u64) -> Vec<u8> {
    vec![value as u8 | 0x80; BLOCK]
}

/// What the threads share.
pub struct World<'a> {
    pub journal: &'a Journal,
    /// Below whatever the journal writes through.
    pub record: RecordDevice,
    versions: AtomicU64,
    pub events: Mutex<Vec<Event>>,
}

impl<'a> World<'a> {
    pub fn new(journal: &'a Journal, record: RecordDevice) -> World<'a> {
        World {
            journal,
            record,
            versions: AtomicU64::new(1),
            events: Mutex::default(),
        }
    }

    fn draw(&self) -> u64 {
        self.versions.fetch_add(1, Ordering::SeqCst)
    }

    fn note(&self, tid: Tid, block: u64, version: u64, what: What) {
        self.events.lock().push(Event {
            tid,
            block,
            version,
            what,
        });
    }

    pub fn mark(&self, mark: Mark) {
        let offset = MARKS * BLOCK as u64;
        self.record
            .write_at(offset, &mark.encode(), Durability::Cached)
            .expect("memory");
    }

    pub fn modify(&self, handle: &mut Handle<'_>, block: u64) {
        let mut version = 0;
        handle
            .modify(Pblk(block), &Summed, &mut |bytes| {
                let old = version_of(bytes);
                assert_eq!(bytes, content(block, old), "what was there before");
                version = self.draw();
                assert!(version > old);
                bytes.copy_from_slice(&content(block, version));
                bytes[BLOCK - 4..].fill(0);
                Ok(())
            })
            .expect("modify");
        self.note(handle.tid(), block, version, What::Metadata);
    }

    fn create(&self, handle: &mut Handle<'_>, block: u64) {
        let version = self.draw();
        let bytes = content(block, version);
        handle.create(Pblk(block), &Summed, &bytes).expect("create");
        self.note(handle.tid(), block, version, What::Metadata);
    }

    fn forget(&self, handle: &mut Handle<'_>, block: u64) -> u64 {
        let version = self.draw();
        handle.forget(Pblk(block)).expect("forget");
        self.note(handle.tid(), block, version, What::Freed);
        version
    }

    /// Lets `THREADS` threads do `handles` handles each.
    pub fn run(&self, seed: u64, handles: u64) {
        thread::scope(|scope| {
            for number in 0..THREADS {
                scope.spawn(move || Worker::new(self, seed, number).run(handles));
            }
        });
    }
}

enum Own {
    Metadata,
    /// Freed by the event of that version; the flag is set once that is durable.
    Freed(u64, Arc<AtomicBool>),
    /// In use for file data.
    Data,
}

struct Worker<'a> {
    world: &'a World<'a>,
    rng: Rng,
    first: u64,
    own: Vec<Own>,
}

impl<'a> Worker<'a> {
    fn new(world: &'a World<'a>, seed: u64, number: u64) -> Worker<'a> {
        Worker {
            world,
            rng: Rng(seed ^ number << 32),
            first: SHARED + number * OWN,
            own: (0..OWN).map(|_| Own::Metadata).collect(),
        }
    }

    fn run(mut self, handles: u64) {
        for _ in 0..handles {
            let mut handle = self.world.journal.start(6).expect("start");
            self.step(&mut handle);
            if self.rng.chance(10) {
                handle.restart(6).expect("restart");
                self.step(&mut handle);
            }
            let is_sync = self.rng.chance(20);
            if is_sync {
                handle.mark_sync();
            }
            let tid = handle.stop().expect("stop");
            if is_sync {
                self.world.mark(Mark::Acknowledged(tid));
            }
            self.between(tid);
        }
    }

    /// What one atomic part does: at most six blocks.
    fn step(&mut self, handle: &mut Handle<'_>) {
        self.world.modify(handle, 0);
        for _ in 0..self.rng.below(3) {
            // So that commits meet handles that are half done.
            thread::yield_now();
            let block = 1 + self.rng.below(SHARED - 1);
            self.world.modify(handle, block);
        }
        for _ in 0..2 {
            let index = self.rng.below(OWN) as usize;
            self.change_own(handle, index);
        }
    }

    fn change_own(&mut self, handle: &mut Handle<'_>, index: usize) {
        let block = self.first + index as u64;
        match &self.own[index] {
            Own::Metadata if self.rng.chance(50) => self.world.modify(handle, block),
            Own::Metadata => {
                let freed = self.world.forget(handle, block);
                let is_durable = Arc::<AtomicBool>::default();
                let flag = is_durable.clone();
                handle.on_commit(Box::new(move || flag.store(true, Ordering::SeqCst)));
                self.own[index] = Own::Freed(freed, is_durable);
                if self.rng.chance(15) {
                    self.world.create(handle, block);
                    self.own[index] = Own::Metadata;
                }
            }
            Own::Freed(..) if self.rng.chance(70) => {}
            Own::Freed(..) | Own::Data => {
                self.world.create(handle, block);
                self.own[index] = Own::Metadata;
            }
        }
    }

    fn between(&mut self, tid: Tid) {
        let world = self.world;
        match self.rng.below(100) {
            0..15 => {
                world.journal.force_commit().expect("commit");
                world.mark(Mark::Acknowledged(tid));
            }
            15..17 => world.journal.flush().expect("flush"),
            _ => {}
        }
        for index in 0..self.own.len() {
            self.use_for_data(index);
        }
    }

    /// A block whose freeing is durable becomes a file's, which writes past the journal.
    fn use_for_data(&mut self, index: usize) {
        let Own::Freed(freed, is_durable) = &self.own[index] else {
            return;
        };
        if !is_durable.load(Ordering::SeqCst) || !self.rng.chance(40) {
            return;
        }
        let (world, freed) = (self.world, *freed);
        let (block, value) = (self.first + index as u64, world.draw());
        let offset = block * BLOCK as u64;
        let record = &world.record;
        record
            .write_at(offset, &data(value), Durability::Cached)
            .expect("memory");
        record.flush().expect("memory");
        world.mark(Mark::Data {
            block,
            freed,
            value,
        });
        self.own[index] = Own::Data;
    }
}
