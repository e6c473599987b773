//! What a request costs besides the transfer: allocations and system calls, counted.
//!
//! The allocations are counted by this binary's allocator. The system calls are counted by strace,
//! which runs this very binary again with one of the `counted_*` loops.
use dioxide::{
    Backend, Buf, BufPool, Completion, File, Fs, MountOptions, OpenOptions, QueueOptions,
};
use dioxide_testkit::memory::{Counting, allocations_of};
use dioxide_testkit::{Dir, Image, debugfs, e2fsck_clean, pattern};
use std::path::{Path, PathBuf};
use std::process::Command;

#[global_allocator]
static COUNTING: Counting = Counting;

const BLOCKS: u64 = 256;
const REQUESTS: u64 = 10_000;
const BATCH: u64 = 32;

fn image(dir: Dir) -> Image {
    let image = Image::builder().dir(dir).size(16 << 20).build();
    let host = tempfile::NamedTempFile::new().expect("room");
    std::fs::write(host.path(), pattern(1, 0, (BLOCKS * 4096) as usize)).expect("room");
    debugfs(
        image.path(),
        &[format!("write {} data", host.path().display())],
    );
    image
}

fn open(image: &Path, backend: Backend) -> (Fs, File) {
    let fs = Fs::open(image, &MountOptions::new().backend(backend)).expect("a fresh image");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/data")
        .expect("written above");
    file.preload_map().expect("a sound tree");
    (fs, file)
}

fn offset(number: u64) -> u64 {
    number * 7 % BLOCKS * 4096
}

fn blocking(file: &File, buf: &mut Buf, requests: u64) {
    for number in 0..requests {
        file.read_at(buf, offset(number)).expect("readable");
        file.write_at(buf, offset(number)).expect("an overwrite");
        file.write_at(&buf[..512], offset(number) + 1024)
            .expect("an unaligned overwrite");
    }
}

/// Batches of reads and overwrites through a queue, two requests out of three aligned.
struct Batches {
    queue: dioxide::Queue,
    pool: BufPool,
    done: Vec<Completion>,
}

impl Batches {
    fn new(fs: &Fs) -> Batches {
        let pool = BufPool::new(BATCH as usize, 4096);
        let options = QueueOptions {
            depth: BATCH as u32,
            pool: Some(pool.clone()),
            ..QueueOptions::default()
        };
        let queue = fs.queue(&options).expect("a queue");
        Batches {
            queue,
            pool,
            done: Vec::with_capacity(2 * BATCH as usize),
        }
    }

    fn run(&mut self, file: &File) {
        for number in 0..BATCH {
            let mut buf = self.pool.take().expect("all came back");
            let pushed = match number % 3 {
                0 => self.queue.read(file, offset(number), buf, number),
                1 => self.queue.write(file, offset(number), buf, number),
                _ => {
                    buf.set_len(512);
                    self.queue.write(file, offset(number) + 2048, buf, number)
                }
            };
            pushed.expect("room");
        }
        self.queue
            .wait(BATCH as usize, &mut self.done)
            .expect("a working queue");
        for completion in self.done.drain(..) {
            completion.result.expect("no error");
        }
    }
}

/// Many blocks, of one mapping.
const LONG: usize = 64 << 10;

fn long_queue(fs: &Fs) -> dioxide::Queue {
    let options = QueueOptions {
        depth: 1,
        ..QueueOptions::default()
    };
    fs.queue(&options).expect("a queue")
}

/// Allocations that `load` makes each time. What happens once in a process, such as the start of the
/// thread that keeps the time, is not a cost of requests.
fn repeated(mut load: impl FnMut()) -> usize {
    let times = (0..3).map(|_| allocations_of(&mut load));
    times.min().expect("three times")
}

#[test]
fn requests_on_every_backend_allocate_nothing() {
    let cases = [
        (Dir::Tmpfs, Backend::Pread),
        (Dir::Tmpfs, Backend::Mmap),
        (Dir::Disk, Backend::Auto),
    ];
    for (dir, backend) in cases {
        let image = image(dir);
        let (fs, file) = open(image.path(), backend);
        let mut buf = Buf::zeroed(4096);
        blocking(&file, &mut buf, 10);
        let counted = repeated(|| blocking(&file, &mut buf, 1000));
        assert_eq!(counted, 0, "blocking, {}", fs.device().describe());
        let mut batches = Batches::new(&fs);
        batches.run(&file);
        let counted = repeated(|| (0..50).for_each(|_| batches.run(&file)));
        assert_eq!(counted, 0, "queued, {}", fs.device().describe());
        let stats = fs.stats();
        assert_eq!((stats.punts, stats.reads_general), (0, 0));
        let mut long = Buf::zeroed(LONG);
        let counted = repeated(|| {
            for _ in 0..100 {
                file.read_at(&mut long, 4096).expect("readable");
            }
        });
        assert_eq!(counted, 0, "long, blocking, {}", fs.device().describe());
        let mut queue = long_queue(&fs);
        let mut long = Some(long);
        let mut done = Vec::with_capacity(1);
        let mut read = || {
            let buf = long.take().expect("it came back");
            queue.read(&file, 4096, buf, 1).expect("room");
            queue.wait(1, &mut done).expect("a working queue");
            long = done.pop().map(|completion| completion.buf);
        };
        read();
        let counted = repeated(|| (0..100).for_each(|_| read()));
        assert_eq!(counted, 0, "long, queued, {}", fs.device().describe());
        assert!(fs.stats().reads_general >= 600);
        drop((queue, batches, file));
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

/// Set for the runs under strace: the image, the backend, and how.
const CHILD: &str = "DIOXIDE_COUNTED_LOOP";

/// Not a test by itself: what strace runs.
#[test]
fn counted_loop() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    let [path, backend, how] = what.split('|').collect::<Vec<_>>()[..] else {
        panic!("{CHILD} is {what}")
    };
    let (fs, file) = open(Path::new(path), backend.parse().expect("a backend"));
    if how == "blocking" {
        blocking(&file, &mut Buf::zeroed(4096), REQUESTS / 2);
    } else {
        let mut batches = Batches::new(&fs);
        (0..REQUESTS / BATCH).for_each(|_| batches.run(&file));
    }
}

/// How often the loop made each system call.
fn calls(image: &Path, backend: Backend, how: &str) -> Vec<(String, u64)> {
    let out = tempfile::NamedTempFile::new().expect("room");
    let me: PathBuf = std::env::current_exe().expect("a running test");
    let run = Command::new("strace")
        .args(["-f", "-c", "-U", "name,calls", "-o"])
        .arg(out.path())
        .arg(me)
        .args(["counted_loop", "--exact", "--test-threads", "1"])
        .env(CHILD, format!("{}|{backend}|{how}", image.display()))
        .output()
        .expect("strace is installed");
    assert!(run.status.success(), "{run:?}");
    let table = std::fs::read_to_string(out.path()).expect("strace's table");
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
    };
    table
        .lines()
        .filter_map(row)
        .filter(|(name, _)| name != "total")
        .collect()
}

/// What opening the image, the test runner and the loader may call, each.
const SET_UP: u64 = 150;

fn assert_calls(image: &Path, backend: Backend, how: &str, per_loop: &[(&str, u64)]) {
    let counted = calls(image, backend, how);
    assert!(!counted.is_empty(), "strace counted nothing");
    for (name, count) in counted {
        let allowed = per_loop
            .iter()
            .find(|(call, _)| *call == name)
            .map_or(0, |(_, allowed)| *allowed);
        assert!(
            count <= allowed + SET_UP,
            "{backend} {how}: {count} times {name}, {allowed} allowed"
        );
    }
}

#[test]
fn system_calls_per_request_are_as_few_as_the_backend_allows() {
    let image_in_memory = image(Dir::Tmpfs);
    let half = REQUESTS / 2;
    let one_each = [("pread64", half), ("pwrite64", 2 * half)];
    assert_calls(
        image_in_memory.path(),
        Backend::Pread,
        "blocking",
        &one_each,
    );
    assert_calls(image_in_memory.path(), Backend::Mmap, "blocking", &[]);
    assert_calls(image_in_memory.path(), Backend::Mmap, "queued", &[]);
    let on_disk = image(Dir::Disk);
    let enters = [("io_uring_enter", REQUESTS / BATCH)];
    assert_calls(on_disk.path(), Backend::Uring, "queued", &enters);
}
