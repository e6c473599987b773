//! Where the tests run: an image in memory, full of poison where nothing was written yet, behind a
//! device that records what would survive a power cut, behind one that holds and fails requests.

use dioxide::block::AtomicUnits;
use dioxide::block::record::RecordDevice;
use dioxide::block::record::states::{Cache, CowDevice, Media, Options, Snapshot, State, States};
use dioxide::block::sim::{SimDevice, SimSpec};
use dioxide::{
    Buf, Completion, File, Fs, MapKind, MountOptions, OpenOptions, Policy, Queue, QueueOptions,
    SetAttributes,
};
use dioxide_testkit::{e2fsck_clean, soaks};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Long enough for anything that does not wait for a held request.
pub const SOON: Duration = Duration::from_secs(20);
/// Short, but enough to notice what should still wait.
pub const A_WHILE: Duration = Duration::from_millis(20);

pub const BLOCK: usize = 4096;
pub const BLOCKS: usize = 64;
/// `/data` and `/hole` end in the middle of a block.
pub const SIZE: usize = BLOCK * BLOCKS - BLOCK / 2;
/// `/unwritten` has so many blocks, all allocated.
pub const UNWRITTEN: usize = 64;

/// What lies in blocks that no file has written.
pub const POISON: u8 = 0xBD;

/// A way to arrange the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// 4 KiB blocks, orphan file.
    Default,
    /// 4 KiB blocks, orphans in a list.
    OrphanList,
    /// 1 KiB blocks.
    Blocks1k,
    /// Indirect blocks instead of extents.
    Indirect,
    /// Small files lie in their inodes.
    Inline,
    /// 4 KiB blocks in clusters of 16 KiB.
    Clusters,
    /// No journal.
    NoJournal,
}

impl Layout {
    fn features(self) -> &'static str {
        match self {
            Layout::Default | Layout::Blocks1k => "orphan_file",
            Layout::OrphanList => "^orphan_file",
            Layout::Indirect => "^extent,^64bit",
            Layout::Inline => "inline_data",
            Layout::Clusters => "bigalloc",
            Layout::NoJournal => "^has_journal",
        }
    }

    fn block_bytes(self) -> &'static str {
        match self {
            Layout::Blocks1k => "1024",
            _ => "4096",
        }
    }

    /// A fresh image: `/data` (each block full of its number plus 1), `/setuid` (the same, mode
    /// 4755), `/hole`, `/empty`, `/small` (1000 bytes of 7) and, where there are extents, `/unwritten`.
    fn make(self) -> Snapshot {
        let dir = tempfile::tempdir().expect("a folder for the image");
        let tree = dir.path().join("tree");
        std::fs::create_dir(&tree).expect("a new folder");
        for name in ["data", "setuid"] {
            std::fs::write(tree.join(name), content()).expect("room");
        }
        let hole = std::fs::File::create(tree.join("hole")).expect("a new file");
        hole.set_len(SIZE as u64).expect("room");
        std::fs::write(tree.join("empty"), b"").expect("room");
        std::fs::write(tree.join("other"), b"").expect("room");
        std::fs::write(tree.join("unwritten"), b"").expect("room");
        for number in 0..MANY {
            std::fs::write(tree.join(format!("m{number}")), b"").expect("room");
        }
        let small = if self == Layout::Inline { 40 } else { 1000 };
        std::fs::write(tree.join("small"), vec![7; small]).expect("room");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
        std::fs::set_permissions(tree.join("setuid"), mode).expect("own file");
        let image = dir.path().join("image");
        std::fs::write(&image, vec![POISON; 16 << 20]).expect("room");
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-b", self.block_bytes()]);
        mke2fs.args(["-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]);
        mke2fs.args(["-O", self.features(), "-d"]).arg(&tree);
        if self == Layout::Clusters {
            mke2fs.args(["-C", "16384"]);
        }
        run(mke2fs.arg(&image));
        let snapshot = Snapshot::new(&std::fs::read(&image).expect("the image"));
        if matches!(self, Layout::Indirect | Layout::Inline) {
            return snapshot;
        }
        with_unwritten_file(&snapshot)
    }

    fn template(self) -> Snapshot {
        static MADE: Mutex<Option<HashMap<Layout, Snapshot>>> = Mutex::new(None);
        let mut made = MADE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let made = made.get_or_insert_default();
        made.entry(self).or_insert_with(|| self.make()).clone()
    }
}

fn with_unwritten_file(snapshot: &Snapshot) -> Snapshot {
    let device = CowDevice::new(snapshot, Cache::Volatile);
    let fs = Fs::open_device(Arc::new(device.clone()), &MountOptions::new()).expect("it opens");
    let file = open_rw(&fs, "/unwritten");
    file.allocate(
        dioxide::FallocateMode::Allocate,
        0,
        (UNWRITTEN * BLOCK) as u64,
    )
    .expect("room");
    drop(file);
    fs.close().expect("a clean end");
    device.snapshot()
}

fn run(command: &mut Command) {
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    let output = command.output().expect("e2fsprogs is installed");
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// What `/data` holds.
pub fn content() -> Vec<u8> {
    (0..SIZE).map(|at| (at / BLOCK) as u8 + 1).collect()
}

/// A mount to test on. It is closed and checked by e2fsck when it is dropped.
pub struct Bed {
    base: Snapshot,
    cow: CowDevice,
    pub record: RecordDevice,
    pub sim: SimDevice,
    fs: Option<Fs>,
}

impl std::ops::Deref for Bed {
    type Target = Fs;

    fn deref(&self) -> &Fs {
        self.fs.as_ref().expect("it is closed last")
    }
}

impl Bed {
    pub fn new(policy: Policy) -> Bed {
        Bed::with(Layout::Default, policy)
    }

    pub fn with(layout: Layout, policy: Policy) -> Bed {
        Bed::on(layout, MountOptions::new().policy(policy))
    }

    /// On a device that writes such units atomically.
    pub fn promising(layout: Layout, options: MountOptions, units: AtomicUnits) -> Bed {
        let bed = Bed::cold(layout.template(), options, Some(units));
        bed.in_use()
    }

    pub fn on(layout: Layout, options: MountOptions) -> Bed {
        Bed::over(layout.template(), options)
    }

    /// Nothing was changed yet.
    pub fn untouched() -> Bed {
        Bed::cold(Layout::Default.template(), MountOptions::new(), None)
    }

    /// Marked as in use already, so that the first write of a test is one of its own.
    fn over(base: Snapshot, options: MountOptions) -> Bed {
        Bed::cold(base, options, None).in_use()
    }

    fn in_use(self) -> Bed {
        let mut bed = self;
        bed.set_attributes("/other", &SetAttributes::new())
            .expect("a first change");
        bed.sync().expect("a sync");
        bed.base = bed.cow.snapshot();
        bed.record.take_log();
        bed
    }

    fn cold(base: Snapshot, options: MountOptions, atomic: Option<AtomicUnits>) -> Bed {
        let cow = CowDevice::new(&base, Cache::Volatile);
        let promises = SimSpec {
            atomic,
            ..SimSpec::default()
        };
        let media = SimDevice::new(Arc::new(cow.clone()), promises);
        let record = RecordDevice::new(Arc::new(media));
        let sim = SimDevice::new(Arc::new(record.clone()), SimSpec::default());
        let options = options.commit_interval(Duration::from_secs(3600));
        let fs = Fs::open_device(Arc::new(sim.clone()), &options).expect("a fresh image");
        assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
        Bed {
            base,
            cow,
            record,
            sim,
            fs: Some(fs),
        }
    }

    pub fn open(&self, path: &str) -> File {
        open_rw(self, path)
    }

    /// For who may use the reserve.
    pub fn open_privileged(&self, path: &str) -> File {
        let options = OpenOptions::new().read(true).write(true).resource(true);
        options.open(self, path).expect("it exists")
    }

    pub fn queue(&self) -> Queue {
        let options = QueueOptions {
            depth: 16,
            ..QueueOptions::default()
        };
        Fs::queue(self, &options).expect("a queue")
    }

    /// Free blocks, once everything that was freed is free.
    pub fn free(&self) -> u64 {
        self.sync().expect("a sync");
        self.statfs().blocks_free
    }

    /// The end of one whose device has failed: what is to be expected of the image is another test's.
    pub fn abandon(mut self) {
        drop(self.fs.take());
    }

    /// What is on the media if the power fails now and nothing is there that need not be.
    pub fn crash_now(&self) -> CowDevice {
        let log = self.record.log();
        let state = State {
            at: self.record.now(),
            parts: Vec::new(),
        };
        let mut media = Media::new(self.base.clone(), &log, Cache::Volatile);
        media.crash(&state).expect("a state of this log").0
    }

    /// Opens what each crash since the mount may have left, and shows it to `check`, with the state's name.
    pub fn each_crash(&self, check: &mut dyn FnMut(&Fs, &str)) {
        let log = self.record.log();
        let (exhaustive, samples, torn) = if soaks() { (4, 4, 2) } else { (3, 2, 1) };
        let options = Options {
            exhaustive,
            samples,
            torn,
            ..Options::default()
        };
        let mut media = Media::new(self.base.clone(), &log, Cache::Volatile);
        let mut count = 0;
        for state in States::new(&log, options) {
            let (device, _) = media.crash(&state).expect("a state of this log");
            let name = state.to_string();
            // Each state is checked by e2fsck while there are few, then one in 32.
            let fsck = count < 16 || count % 32 == 0;
            recover_from(&device, fsck, |fs: &Fs| check(fs, &name));
            count += 1;
        }
        assert!(count > 4, "only {count} states");
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(fs) = self.fs.take()
            && !thread::panicking()
        {
            fs.close().expect("nothing else is open");
            fsck(&self.cow);
        }
    }
}

/// Opens what a crash has left, shows it to `check`, closes it and runs e2fsck.
pub fn recover(device: &CowDevice, check: impl FnOnce(&Fs)) {
    recover_from(device, true, check);
}

fn recover_from(device: &CowDevice, check_it: bool, check: impl FnOnce(&Fs)) {
    let fs = Fs::open_device(Arc::new(device.clone()), &MountOptions::new()).expect("it recovers");
    assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
    check(&fs);
    fs.close().expect("a clean end");
    if check_it {
        fsck(device);
    }
}

fn fsck(device: &CowDevice) {
    let dir = if Path::new("/dev/shm").is_dir() {
        Path::new("/dev/shm").to_owned()
    } else {
        std::env::temp_dir()
    };
    let image = tempfile::NamedTempFile::new_in(dir).expect("a temporary file");
    // Without what e2fsck does not look at.
    let bytes = device.snapshot();
    bytes.write_sparse(image.as_file(), POISON).expect("room");
    e2fsck_clean(image.path());
}

pub fn open_rw(fs: &Fs, path: &str) -> File {
    let options = OpenOptions::new().read(true).write(true);
    let file = options.open(fs, path).expect("it exists");
    file.preload_map().expect("a sound tree");
    file
}

/// As much of a file as there is.
pub fn read_all(file: &File) -> Vec<u8> {
    let mut all = vec![0xEE; file.len() as usize + 1];
    let len = file.read_at(&mut all, 0).expect("readable");
    assert_eq!(len as u64, file.len());
    all.truncate(len);
    all
}

pub fn read(file: &File, bytes: Range<usize>) -> Vec<u8> {
    let mut part = vec![0xEE; bytes.len()];
    let len = file
        .read_at(&mut part, bytes.start as u64)
        .expect("readable");
    part.truncate(len);
    part
}

#[track_caller]
pub fn assert_all(bytes: &[u8], value: u8) {
    if let Some(at) = bytes.iter().position(|&byte| byte != value) {
        panic!("{:#x} at {at}, not {value:#x}", bytes[at]);
    }
}

pub fn kind(file: &File, lblk: u32) -> MapKind {
    file.map(lblk, 1).expect("a sound tree").kind
}

/// Where a block of a file lies on the device, in bytes.
pub fn place(file: &File, lblk: u32) -> Range<u64> {
    let start = file.map(lblk, 1).expect("a sound tree").pblk.0 * BLOCK as u64;
    start..start + BLOCK as u64
}

pub fn blocks(value: u8, count: usize) -> Buf {
    Buf::copy_of(&vec![value; count * BLOCK])
}

pub fn bytes(value: u8, len: usize) -> Buf {
    Buf::copy_of(&vec![value; len])
}

/// Runs `job` in a thread and tells when it is done.
pub fn start<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (done, receiver) = channel();
    thread::spawn(move || {
        let _ = done.send(job());
    });
    receiver
}

/// What a thread of [`start`] gives.
#[track_caller]
pub fn finish<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(SOON).expect("it goes on")
}

#[track_caller]
pub fn assert_waits<T>(receiver: &Receiver<T>) {
    assert!(receiver.recv_timeout(A_WHILE).is_err(), "it did not wait");
}

/// Reaps `count` requests.
#[track_caller]
pub fn reap(queue: &mut Queue, count: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    while done.len() < count {
        let more = queue.wait_timeout(1, &mut done, Some(SOON));
        assert!(more.expect("a working queue") > 0, "nothing completes");
    }
    done
}

pub fn reap_all_ok(queue: &mut Queue, count: usize) {
    for completion in reap(queue, count) {
        completion.result.expect("room");
    }
}

/// Files for [`take_every_block`], from `/m0` on.
const MANY: u64 = 100;

/// Leaves no free block: `/other` takes what files may have, and the maps of `/m0` and its kin take what is kept
/// aside for maps. Returns how many that was.
pub fn take_every_block(bed: &Bed) -> u64 {
    use dioxide::FallocateMode::{Allocate, KeepSize};
    let block = BLOCK as u64;
    let many = (0..MANY).map(|number| bed.open(&format!("/m{number}")));
    let many: Vec<File> = many.collect();
    for file in &many {
        // As many extents as an inode holds.
        for extent in 0..4 {
            file.allocate(Allocate, extent * 4 * block, 3 * block)
                .expect("room");
        }
    }
    let filler = bed.open_privileged("/other");
    let mut at = 0;
    for step in [256, 16, 1] {
        while filler.allocate(KeepSize, at, step * block).is_ok() {
            at += step * block;
        }
    }
    filler.set_len(at).expect("a size");
    let aside = bed.free();
    for file in &many {
        if bed.statfs().blocks_free > 0 {
            file.write_at(&blocks(1, 1), block).expect("it has blocks");
        }
    }
    assert_eq!(bed.free(), 0);
    aside
}

/// Leaves `holes` blocks that files may have, and those that are kept aside, no two of them neighbours.
pub fn leave_single_blocks(bed: &Bed, holes: u64) {
    let aside = take_every_block(bed);
    let filler = bed.open_privileged("/other");
    let punch = |block: u64, count: u64| {
        let (offset, len) = (block * BLOCK as u64, count * BLOCK as u64);
        let punched = filler.allocate(dioxide::FallocateMode::PunchHole, offset, len);
        punched.expect("it is allocated");
    };
    // Splitting extents takes blocks: first some from an end of one, which takes none.
    punch(0, 2);
    bed.sync().expect("a sync");
    for hole in 0..holes + aside {
        punch(2 * hole + 5, 1);
        if hole % 16 < 2 {
            bed.sync().expect("a sync");
        }
    }
    bed.sync().expect("a sync");
}
