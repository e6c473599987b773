//! A workload that goes on after errors, and says which there were.

use crate::history::History;
use crate::ops::{self, FILES, Generator, Op, Shape, What};
use dioxide::{Fs, MountOptions, OpenOptions};
use dioxide_testkit::{Image, e2fsck_clean};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Longest time that a workload may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `work` in a thread of its own.
///
/// # Panics
/// If it does, or takes too long.
pub fn in_time<T: Send>(what: &str, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (done, waits) = channel();
        let worker = scope.spawn(move || {
            let result = work();
            let _ = done.send(());
            result
        });
        if let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = waits.recv_timeout(PATIENCE) {
            eprintln!("{what}: hangs");
            // A scope would wait for it.
            std::process::abort();
        }
        worker
            .join()
            .unwrap_or_else(|_| panic!("{what}: the workload panicked"))
    })
}

/// An operation that failed.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// Its number; the close is the last.
    pub step: usize,
    pub errno: i32,
}

pub struct Workload {
    generator: Generator,
    files: Vec<Vec<u8>>,
    histories: Vec<History>,
    pub failures: Vec<Failure>,
    /// The step in which the device failed, or before it, where nobody waited.
    pub met: Option<usize>,
    /// What was done after each failure, if it changes or syncs something.
    pub succeeded: Vec<usize>,
    pub ops: Vec<Op>,
    /// What is done first.
    first: Option<Op>,
}

impl Workload {
    pub fn new(seed: u64, shape: Shape) -> Workload {
        Workload {
            generator: Generator::new(seed, shape),
            files: vec![Vec::new(); FILES],
            histories: vec![History::new(Vec::new()); FILES],
            failures: Vec::new(),
            met: None,
            succeeded: Vec::new(),
            ops: Vec::new(),
            first: None,
        }
    }

    /// Begins with this operation, on a file that contains something.
    pub fn begin_with(&mut self, op: Op, content: &[u8]) {
        self.files[op.file] = content.to_vec();
        self.histories[op.file] = History::new(content.to_vec());
        self.first = Some(op);
    }

    /// Does `steps` operations on a file system that was just opened, and closes it. `has_failed` tells whether the device
    /// has.
    pub fn run(&mut self, fs: Fs, steps: usize, has_failed: impl Fn() -> bool) {
        let files = self.open(&fs);
        for step in 0..steps {
            let next = || self.generator.next(&self.files);
            let op = self.first.take().unwrap_or_else(next);
            self.ops.push(op);
            self.step(&fs, &files, step, &op);
            self.look(step, &has_failed);
        }
        drop(files);
        self.note(steps, fs.close());
        self.look(steps, &has_failed);
    }

    /// Whether a step waits for a commit: a sync, or the close.
    pub fn is_sync(&self, step: usize) -> bool {
        let syncs = |op: &Op| matches!(op.what, What::SyncAll | What::SyncData | What::SyncFs);
        self.ops.get(step).is_none_or(syncs)
    }

    fn look(&mut self, step: usize, has_failed: impl Fn() -> bool) {
        if self.met.is_none() && has_failed() {
            self.met = Some(step);
        }
    }

    /// Opens the files; one that fails is noted, and opened again.
    fn open(&mut self, fs: &Fs) -> Vec<dioxide::File> {
        let options = OpenOptions::new().read(true).write(true);
        let mut files = Vec::new();
        for name in ops::NAMES {
            let path = format!("/{name}");
            files.push(options.open(fs, &path).unwrap_or_else(|error| {
                self.note(0, Err(error));
                options.open(fs, &path).expect("it fails once")
            }));
        }
        files
    }

    fn note(&mut self, step: usize, result: dioxide::Result<()>) -> bool {
        match &result {
            Ok(()) => self.succeeded.push(step),
            Err(error) => self.failures.push(Failure {
                step,
                errno: error.errno(),
            }),
        }
        result.is_ok()
    }

    fn step(&mut self, fs: &Fs, files: &[dioxide::File], step: usize, op: &Op) {
        let (file, shape) = (&files[op.file], self.generator.shape);
        let mut content = self.files[op.file].clone();
        let expected = ops::apply(&op.what, &mut content, &shape);
        self.histories[op.file].begin(&content);
        let result = ops::run(&op.what, fs, file);
        if let (Err(errno), Err(error)) = (expected, &result)
            && errno == error.errno()
        {
            return;
        }
        if !self.note(step, result) {
            content = self.after_failure(op, file);
        }
        self.files[op.file] = content;
        if !self.failures.iter().any(|failure| failure.step == step) {
            self.synced(op);
        }
    }

    fn synced(&mut self, op: &Op) {
        match op.what {
            What::SyncAll | What::SyncData => self.histories[op.file].durable(),
            What::SyncFs => self.histories.iter_mut().for_each(History::durable),
            _ => {}
        }
    }

    /// What a file has after a failed operation must be of before it or of after it, and a write leaves the
    /// size that it found.
    fn after_failure(&mut self, op: &Op, file: &dioxide::File) -> Vec<u8> {
        let found = ops::content(file);
        if let Some(complaint) = self.histories[op.file].complaint(&found) {
            panic!("{op:?} failed, and left {complaint}");
        }
        if let What::Write { .. } = op.what {
            assert_eq!(found.len(), self.files[op.file].len(), "after {op:?}");
        }
        self.histories[op.file].begin(&found);
        found
    }

    /// Opens the image without the fault: what was synced is there, and the file system is whole.
    pub fn check(&self, image: &Image) {
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
        for (number, file) in ops::open_files(&fs).iter().enumerate() {
            if let Some(complaint) = self.histories[number].complaint(&ops::content(file)) {
                panic!("f{number}: {complaint}");
            }
        }
        let free = fs.statfs().blocks_free;
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        assert_eq!(fs.statfs().blocks_free, free);
    }
}
