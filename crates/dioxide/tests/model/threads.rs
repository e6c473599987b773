//! Four threads on one file and on several: two write and read, one does so through a queue, and one
//! changes sizes, holes and allocation, and syncs; every read is judged, one that ends early as zeros from there, and so is
//! what is there at the end.

use crate::ops::{FILES, NAMES, open_files};
use crate::random::Random;
use crate::stamps::{self, CELL, Log};
use crate::variants::{image_with, variants};
use dioxide::block::file::{self, FileOptions};
use dioxide::block::sim::{SimDevice, SimSpec};
use dioxide::{Buf, FallocateMode, File, Fs, MountOptions, Policy, Queue, QueueOptions};
use dioxide_testkit::{Image, e2fsck_clean, seeds, soaks};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MOST: u64 = 1 << 20;

const POLICIES: [Policy; 6] = [
    Policy::Best,
    Policy::Newest,
    Policy::V64,
    Policy::IlockPlus,
    Policy::Xfs,
    Policy::Pre49,
];

/// The files that a run uses, and what was done to each.
struct Arena<'a> {
    fs: &'a Fs,
    files: &'a [File],
    logs: Vec<Log>,
    block: u64,
    extents: bool,
}

/// One thread of it.
struct Worker<'a> {
    arena: &'a Arena<'a>,
    random: Random,
    writer: u8,
    seq: u32,
}

impl Worker<'_> {
    fn file(&mut self) -> usize {
        self.random.pick(self.arena.files.len() as u64) as usize
    }

    /// Some whole cells.
    fn range(&mut self) -> (u64, usize) {
        let unit = match self.random.pick(4) {
            0 => CELL,
            1 => 512,
            _ => self.arena.block,
        };
        let most = 1 << self.random.below(4..17);
        let len = (self.random.below(0..most) / unit + 1) * unit;
        let at = self.random.below(0..MOST - len) / unit * unit;
        (at, len as usize)
    }

    fn next_author(&mut self) -> (u8, u32) {
        self.seq += 1;
        (self.writer, self.seq)
    }

    fn write(&mut self) {
        let (number, (at, len)) = (self.file(), self.range());
        let author = self.next_author();
        let mut bytes = vec![0; len];
        stamps::fill(author, number, at, &mut bytes);
        let log = &self.arena.logs[number];
        let act = log.begin(Some(author), at..at + len as u64);
        let written = self.arena.files[number].write_at(&bytes, at);
        log.end(act);
        assert_eq!(written.expect("room"), len);
    }

    fn read(&mut self) {
        let (number, (at, len)) = (self.file(), self.range());
        let mut bytes = vec![0xEE; len];
        let log = &self.arena.logs[number];
        let begin = log.now();
        let found = self.arena.files[number].read_at(&mut bytes, at);
        log.check_read(number, at, &mut bytes, found.expect("a read"), begin);
    }

    fn make_zeros(&self, number: usize, bytes: std::ops::Range<u64>, act: impl FnOnce(&File)) {
        let log = &self.arena.logs[number];
        let number_of_act = log.begin(None, bytes);
        act(&self.arena.files[number]);
        log.end(number_of_act);
    }

    /// Changes what backs a file.
    fn reshape(&mut self) {
        use FallocateMode::*;
        let (number, (at, len)) = (self.file(), self.range());
        let (len, file) = (len as u64, &self.arena.files[number]);
        let (range, all) = (at..at + len, at..1 << 24);
        let kinds = if self.arena.extents { 8 } else { 5 };
        match self.random.pick(kinds) {
            0 => self.make_zeros(number, all, |file| file.set_len(at).expect("a size")),
            1 => {
                let size = file.len().saturating_sub(len).next_multiple_of(CELL);
                self.make_zeros(number, size..1 << 24, |file| {
                    file.set_len(size).expect("a size");
                });
            }
            2 | 3 => self.make_zeros(number, range, |file| {
                file.allocate(PunchHole, at, len).expect("a hole");
            }),
            4 => file.sync_data().expect("a sync"),
            5 => self.make_zeros(number, range, |file| {
                let mode = if len.is_multiple_of(3) {
                    WriteZeroes
                } else {
                    ZeroRange
                };
                file.allocate(mode, at, len).expect("room");
            }),
            6 => file.allocate(Allocate, at, len).expect("room"),
            _ => file.allocate(KeepSize, at, len).expect("room"),
        }
    }

    fn queue(&mut self, running: &AtomicBool) {
        let mut queue = self.arena.fs.queue(&QueueOptions::default()).expect("one");
        let mut pending = HashMap::new();
        while running.load(Ordering::Relaxed) {
            let most = self.random.below(1..12) as usize;
            while pending.len() < most {
                self.push(&mut queue, &mut pending);
            }
            self.reap(&mut queue, &mut pending, 2);
        }
        self.reap(&mut queue, &mut pending, usize::MAX);
        assert!(pending.is_empty());
    }

    fn push(&mut self, queue: &mut Queue, pending: &mut HashMap<u64, Pending>) {
        let (number, (at, len)) = (self.file(), self.range());
        let (file, log) = (&self.arena.files[number], &self.arena.logs[number]);
        let (writer, seq) = self.next_author();
        let (mut buf, tag) = (Buf::zeroed(len), u64::from(seq));
        if seq.is_multiple_of(2) {
            let begin = log.now();
            pending.insert(tag, Pending::Read { number, at, begin });
            queue.read(file, at, buf, tag).expect("room in the queue");
        } else {
            stamps::fill((writer, seq), number, at, &mut buf);
            let act = log.begin(Some((writer, seq)), at..at + len as u64);
            pending.insert(tag, Pending::Write { number, act });
            queue.write(file, at, buf, tag).expect("room in the queue");
        }
    }

    fn reap(&mut self, queue: &mut Queue, pending: &mut HashMap<u64, Pending>, least: usize) {
        let mut done = Vec::new();
        queue.wait(least, &mut done).expect("a queue that works");
        for mut completion in done {
            let len = completion.result.expect("it works");
            match pending.remove(&completion.tag).expect("it was pushed") {
                Pending::Write { number, act } => self.arena.logs[number].end(act),
                Pending::Read { number, at, begin } => {
                    let (log, bytes) = (&self.arena.logs[number], &mut completion.buf);
                    log.check_read(number, at, bytes, len, begin);
                }
            }
        }
    }
}

/// A request in a queue.
enum Pending {
    Write { number: usize, act: usize },
    Read { number: usize, at: u64, begin: u64 },
}

/// Ends the loop of the others when the thread that counts ends, by a panic too.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

fn run(fs: &Fs, files: &[File], seed: u64, steps: u32, reshapes: bool) {
    let arena = Arena {
        fs,
        files,
        logs: files.iter().map(|_| Log::default()).collect(),
        block: fs.block_size().into(),
        extents: files[0].metadata().flags & 0x8_0000 != 0,
    };
    let worker = |writer: u8| Worker {
        arena: &arena,
        random: Random::new(seed * 16 + u64::from(writer)),
        writer,
        seq: 0,
    };
    let running = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for writer in [1, 2] {
            let (mut worker, running) = (worker(writer), &running);
            scope.spawn(move || {
                let _stop = Stop(running);
                for _ in 0..steps {
                    worker.write();
                    worker.read();
                }
            });
        }
        let (mut queue, running) = (worker(3), &running);
        scope.spawn(move || {
            let _stop = Stop(running);
            queue.queue(running);
        });
        if reshapes {
            let mut worker = worker(0);
            scope.spawn(move || {
                let _stop = Stop(running);
                while running.load(Ordering::Relaxed) {
                    worker.reshape();
                }
            });
        }
    });
    for (number, file) in files.iter().enumerate() {
        let log = &arena.logs[number];
        let begin = log.now();
        let mut found = crate::ops::content(file);
        let len = found.len();
        assert_eq!(file.len(), len as u64);
        assert!(len as u64 <= MOST);
        if !reshapes {
            assert_eq!(file.len(), log.end_of_writes());
        }
        found.resize(MOST as usize, 0);
        log.check_read(number, 0, &mut found, len, begin);
    }
}

/// A run: how many files, whether they are reshaped, and what the device imitates. A slow one has other
/// threads run between a request's steps.
const RUNS: [(usize, bool, &str); 4] = [
    (1, true, ""),
    (FILES, true, ""),
    (1, false, ""),
    (1, true, "latency=5us..300us"),
];

fn open_fs(image: &Image, imitated: &str) -> Fs {
    let options = FileOptions {
        write: true,
        ..FileOptions::default()
    };
    let spec: SimSpec = imitated.parse().expect("a good one");
    let mut device = file::open(image.path(), &options).expect("it opens");
    let mut mount = MountOptions::new();
    if spec != SimSpec::default() {
        device = Arc::new(SimDevice::new(device, spec));
        // Commits all the time too, and metadata that is read again and again.
        let often = Duration::from_millis(1);
        mount = mount.metadata_cache(0).commit_interval(often);
    }
    Fs::open_device(device, &mount).expect("it opens")
}

fn run_all_policies(image: &Image, name: &str, seed: u64, steps: u32) {
    for (files, reshapes, imitated) in RUNS {
        for policy in POLICIES {
            let fs = open_fs(image, imitated);
            fs.set_policy(policy);
            let open = open_files(&fs);
            // All begin with nothing.
            let empty = |file: &File| file.set_len(0).expect("a size");
            open.iter().for_each(empty);
            println!(
                "{name}, seed {seed}, {policy:?}, {files} files, reshapes {reshapes}, {imitated}"
            );
            run(&fs, &open[..files], seed, steps, reshapes);
            drop(open);
            fs.close().expect("a clean end");
            e2fsck_clean(image.path());
        }
    }
}

#[test]
fn four_threads_under_each_policy_read_what_was_written() {
    for (name, builder) in variants() {
        if !soaks() && !["defaults", "1k blocks", "bigalloc"].contains(&name) {
            continue;
        }
        for seed in seeds(1) {
            let image = image_with(builder.clone(), &NAMES);
            run_all_policies(&image, name, seed, 60);
        }
    }
}
