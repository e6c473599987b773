//! A workload that goes on after errors, and says which there were.

use crate::history::History;
use crate::ops::{self, FILES, Generator, Op, Shape, What};
use dioxide::{Buf, Fs, MountOptions, OpenOptions, Queue, QueueOptions};
use dioxide_testkit::{Image, e2fsck_consistent, e2fsck_consistent_with, e2fsck_mend};
use std::path::PathBuf;
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

/// The file that is opened with `O_DSYNC` where there is a queue.
const DURABLE: usize = 1;

/// Reads the beginning of a file through the queue, then carries an operation out as [`ops::run`] does, through the queue if that has it.
fn run_queued(
    what: &What,
    fs: &Fs,
    file: &dioxide::File,
    queue: &mut Queue,
    before: &[u8],
) -> dioxide::Result<()> {
    queue.read(file, 0, Buf::zeroed(8192), 1).expect("room");
    let (len, found) = completed(queue)?;
    assert!(found[..len] == before[..before.len().min(8192)]);
    match *what {
        What::Write { at, len, seed } => {
            let buf = Buf::copy_of(&ops::data(len, seed));
            queue.write(file, at, buf, 1).expect("room");
            let (written, _) = completed(queue)?;
            assert_eq!(written as u64, len, "a write is whole or fails");
            return Ok(());
        }
        What::Allocate(mode, at, len) => queue.allocate(file, mode, at, len, 1),
        What::SyncAll => queue.sync_all(file, 1),
        What::SyncData => queue.sync_data(file, 1),
        What::Truncate { .. } | What::SyncFs => return ops::run(what, fs, file),
    }
    .expect("room");
    completed(queue).map(drop)
}

/// What the one request under way came to.
fn completed(queue: &mut Queue) -> dioxide::Result<(usize, Buf)> {
    let mut done = Vec::new();
    queue.wait(1, &mut done).expect("a working queue");
    assert_eq!((done.len(), queue.outstanding()), (1, 0), "once");
    let completion = done.remove(0);
    match completion.result {
        Ok(bytes) => Ok((bytes, completion.buf)),
        Err(error) => Err(*error),
    }
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
    /// Where the journal lies, if elsewhere.
    pub journal: Option<PathBuf>,
    /// What a queue can do goes through one; and each change of the file [`DURABLE`] is durable at once.
    pub is_queued: bool,
    /// The device fails again and again, so that nothing that failed needs to be readable.
    pub fails_on: bool,
    /// Files that were changed since they were synced.
    changed: [bool; FILES],
    /// Files of which an operation failed and then reading: what they have is of before it or of after it. They are left alone.
    unknown: [bool; FILES],
    /// The file system was closed without an error.
    pub is_closed: bool,
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
            journal: None,
            is_queued: false,
            fails_on: false,
            changed: [false; FILES],
            unknown: [false; FILES],
            is_closed: false,
        }
    }

    /// Begins with this operation, on files that contain something.
    pub fn begin_with(&mut self, op: Op, contents: &[Vec<u8>]) {
        self.files = contents.to_vec();
        self.histories = contents.iter().cloned().map(History::new).collect();
        self.first = Some(op);
    }

    /// Does `steps` operations on a file system that was just opened, and closes it. `has_failed` tells whether the device
    /// has.
    pub fn run(&mut self, fs: Fs, steps: usize, has_failed: impl Fn() -> bool) {
        let files = self.open(&fs);
        self.run_on(fs, files, steps, has_failed);
    }

    /// As [`Workload::run`], on files that were opened by [`Workload::open`].
    pub fn run_on(
        &mut self,
        fs: Fs,
        files: Vec<dioxide::File>,
        steps: usize,
        has_failed: impl Fn() -> bool,
    ) {
        let mut queue = self.is_queued.then(|| {
            let queue = fs.queue(&QueueOptions::default());
            queue.expect("a queue")
        });
        for step in 0..steps {
            let next = || self.generator.next(&self.files);
            let op = self.first.take().unwrap_or_else(next);
            self.ops.push(op);
            self.step(&fs, &files, queue.as_mut(), step, &op);
            self.look(step, &has_failed);
        }
        drop((queue, files));
        self.is_closed = self.note(steps, fs.close());
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
    pub fn open(&mut self, fs: &Fs) -> Vec<dioxide::File> {
        let mut files = Vec::new();
        for (number, name) in ops::NAMES.iter().enumerate() {
            let options = OpenOptions::new().read(true).write(true);
            let options = options.dsync(self.is_queued && number == DURABLE);
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

    fn step(
        &mut self,
        fs: &Fs,
        files: &[dioxide::File],
        queue: Option<&mut Queue>,
        step: usize,
        op: &Op,
    ) {
        let (file, shape) = (&files[op.file], self.generator.shape);
        let changes = !self.is_sync(step);
        if changes && self.unknown[op.file] {
            return;
        }
        self.changed[op.file] |= changes;
        let before = &self.files[op.file];
        let mut content = before.clone();
        let expected = ops::apply(&op.what, &mut content, &shape);
        self.histories[op.file].begin(&content);
        let result = match queue {
            Some(queue) => run_queued(&op.what, fs, file, queue, before),
            None => ops::run(&op.what, fs, file),
        };
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
        if self.fails_on && !self.unknown[op.file] {
            match ops::try_content(file) {
                Ok(found) => assert!(found == self.files[op.file], "after {op:?}"),
                Err(error) => assert_eq!(error.errno(), libc::EIO, "{error}, after {op:?}"),
            }
        }
    }

    fn synced(&mut self, op: &Op) {
        let synced = match op.what {
            What::SyncAll | What::SyncData => op.file..op.file + 1,
            What::SyncFs => 0..FILES,
            _ if self.is_queued && op.file == DURABLE => op.file..op.file + 1,
            _ => return,
        };
        for file in synced {
            self.changed[file] = false;
            if !self.unknown[file] {
                self.histories[file].durable();
            }
        }
    }

    /// What a file has after a failed operation must be of before it or of after it, and a write leaves the
    /// size that it found.
    fn after_failure(&mut self, op: &Op, file: &dioxide::File) -> Vec<u8> {
        let found = match ops::try_content(file) {
            Ok(found) => found,
            Err(error) => {
                assert!(self.fails_on, "{error}, after {op:?}");
                self.unknown[op.file] = true;
                return self.files[op.file].clone();
            }
        };
        if let Some(complaint) = self.histories[op.file].complaint(&found) {
            panic!("{op:?} failed, and left {complaint}");
        }
        // It may be the sync behind it that failed.
        let is_durable = self.is_queued && op.file == DURABLE;
        if let What::Write { .. } = op.what
            && !is_durable
        {
            assert_eq!(found.len(), self.files[op.file].len(), "after {op:?}");
        }
        self.histories[op.file].begin(&found);
        found
    }

    /// Opens the image without the fault: what was synced is there, and the file system is whole.
    pub fn check(&self, image: &Image) {
        self.check_but(image, [false; FILES]);
    }

    /// Without a journal: [`Workload::check`] once `e2fsck` has mended what a failure left. Where that may be half of a
    /// change, nothing is promised of files that were changed since they were synced.
    pub fn check_mended(&self, image: &Image, by_half: bool) {
        e2fsck_mend(image.path());
        self.check_but(image, self.changed.map(|changed| changed && by_half));
    }

    fn check_but(&self, image: &Image, left_out: [bool; FILES]) {
        let mut options = MountOptions::new();
        if let Some(journal) = &self.journal {
            options = options.journal_path(journal);
        }
        let fs = Fs::open(image.path(), &options).expect("it opens");
        assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
        for (number, name) in ops::NAMES.iter().enumerate() {
            let file = OpenOptions::new().read(true).open(&fs, format!("/{name}"));
            let found = file.and_then(|file| ops::try_content(&file));
            // Nothing needs to be there, but looking must end.
            if left_out[number] {
                continue;
            }
            let found = found.expect("it exists, and reads");
            if let Some(complaint) = self.histories[number].complaint(&found) {
                panic!("{name}: {complaint}");
            }
        }
        let free = fs.statfs().blocks_free;
        fs.close().expect("a clean end");
        // A failure that aborted the journal is recorded.
        match &self.journal {
            Some(journal) => e2fsck_consistent_with(image.path(), journal),
            None => e2fsck_consistent(image.path()),
        }
        let fs = Fs::open(image.path(), &options).expect("it opens");
        assert_eq!(fs.statfs().blocks_free, free);
    }
}
