//! The engine's behaviour under concurrency: invariants of `docs/SEMANTICS.md` D, each on a real image behind a
//! simulated device that holds requests in flight.

mod explained;

use crate::io::direct::lock::Guard;
use crate::io::direct::policy::Policy;
use crate::io::direct::write::{self, Memory};
use crate::io::direct::{Wait, place};
use crate::sync::rank::Excuse;
use crate::sync::slot::Slot;
use crate::txn::inode::INODE_CREDITS;
use crate::{
    Buf, Completion, CompletionMode, Error, FallocateMode, File, Fs, MountOptions, OpenOptions,
    Queue, QueueOptions,
};
use dioxide_block::file::{self, FileOptions};
use dioxide_block::inline::InlineQueue;
use dioxide_block::sim::{Fault, FaultKind, FaultOp, SimDevice, SimSpec};
use dioxide_block::{Device, Durability, Geometry};
use dioxide_format::inode::Inode as DiskInode;
use std::io::IoSlice;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for anything that does not wait for a held request.
const SOON: Duration = Duration::from_secs(20);
/// Short, but enough to notice what should still wait.
const A_WHILE: Duration = Duration::from_millis(100);

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;
/// A file whose last block is half full.
const SIZE: usize = BLOCK * BLOCKS - BLOCK / 2;

/// An image with one file `/data`, each block of which is filled with its number plus 1, a setuid
/// copy of it, and a file that is all hole.
struct Bed {
    dir: tempfile::TempDir,
    sim: SimDevice,
    fs: Mounted,
}

/// Closed before the image is checked.
struct Mounted(Option<Fs>);

impl std::ops::Deref for Mounted {
    type Target = Fs;

    fn deref(&self) -> &Fs {
        self.0.as_ref().expect("it is closed last")
    }
}

fn content() -> Vec<u8> {
    (0..SIZE).map(|at| (at / BLOCK) as u8 + 1).collect()
}

impl Bed {
    fn new(policy: Policy) -> Bed {
        Bed::with(MountOptions::new().policy(policy))
    }

    fn with(options: MountOptions) -> Bed {
        Bed::over(options, |sim| Arc::new(sim))
    }

    /// On a device over the simulated one.
    fn over(options: MountOptions, over: impl FnOnce(SimDevice) -> Arc<dyn Device>) -> Bed {
        let dir = tempfile::tempdir().expect("a folder for the image");
        let tree = dir.path().join("tree");
        std::fs::create_dir(&tree).expect("a new folder");
        for name in ["data", "setuid", "setuid2"] {
            std::fs::write(tree.join(name), content()).expect("room");
        }
        let hole = std::fs::File::create(tree.join("hole")).expect("a new file");
        hole.set_len(SIZE as u64).expect("room");
        for name in ["setuid", "setuid2"] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
            std::fs::set_permissions(tree.join(name), mode).expect("own file");
        }
        let image = dir.path().join("image");
        run(Command::new("mke2fs")
            .args(["-q", "-t", "ext4", "-b", "4096", "-d"])
            .arg(&tree)
            .arg(&image)
            .arg("16M"));
        let writable = FileOptions {
            write: true,
            ..FileOptions::default()
        };
        let inner = file::open(&image, &writable).expect("a fresh image");
        let sim = SimDevice::new(inner, SimSpec::default());
        let fs = Fs::open_device(over(sim.clone()), &options).expect("a fresh image");
        Bed {
            dir,
            sim,
            fs: Mounted(Some(fs)),
        }
    }

    fn open(&self, path: &str) -> File {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&self.fs, path)
            .expect("it exists");
        file.preload_map().expect("a sound tree");
        file
    }

    fn queue(&self) -> Queue {
        queue_of(&self.fs)
    }
}

fn queue_of(fs: &Fs) -> Queue {
    fs.queue(&QueueOptions {
        depth: 8,
        ..QueueOptions::default()
    })
    .expect("a queue")
}

impl Drop for Bed {
    fn drop(&mut self) {
        let fs = self.fs.0.take();
        if !thread::panicking() {
            if let Some(fs) = fs {
                fs.close().expect("nothing else is open");
            }
            run(Command::new("e2fsck")
                .arg("-fn")
                .arg(image(self.dir.path())));
        }
    }
}

fn image(dir: &Path) -> std::path::PathBuf {
    dir.join("image")
}

fn run(command: &mut Command) {
    let path = format!(
        "{}:/usr/sbin:/sbin",
        std::env::var("PATH").unwrap_or_default()
    );
    let output = command
        .env("PATH", path)
        .output()
        .expect("e2fsprogs is installed");
    assert!(output.status.success(), "{command:?}: {output:?}");
}

fn block(value: u8) -> Buf {
    Buf::copy_of(&[value; BLOCK])
}

fn half(value: u8) -> Buf {
    Buf::copy_of(&[value; BLOCK / 2])
}

/// Runs `job` in a thread and tells when it is done.
fn start<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (done, receiver) = channel();
    thread::spawn(move || {
        let _ = done.send(job());
    });
    receiver
}

fn reap_one(queue: &mut Queue) -> Completion {
    let mut done = Vec::new();
    queue
        .wait_timeout(1, &mut done, Some(SOON))
        .expect("a working queue");
    done.pop().expect("one completion")
}

// Invariant 6: whoever needs the file alone waits for direct I/O in flight.
#[test]
fn exclusive_write_waits_for_queued_request_in_flight() {
    let bed = Bed::new(Policy::V56);
    let file = bed.open("/data");
    let mut queue = bed.queue();
    let hold = bed.sim.hold(None, FaultOp::Write);
    queue.write(&file, 0, block(0xaa), 1).expect("room");
    queue.submit().expect("a working queue");
    let writer = {
        let file = file.clone();
        start(move || {
            file.write_at(&half(0xbb), BLOCK as u64)
                .expect("an overwrite")
        })
    };
    // The unaligned write of 5.6 drains: it must not even reach the device.
    assert!(!hold.wait_for_timeout(2, A_WHILE));
    assert!(writer.try_recv().is_err());
    hold.release();
    assert_eq!(reap_one(&mut queue).tag, 1);
    assert_eq!(writer.recv_timeout(SOON), Ok(BLOCK / 2));
    assert_eq!(bed.fs.stats().drains, 1);
}

// The point of the 6.4 seed: the same two requests run side by side.
#[test]
fn unaligned_overwrites_since_6_4_run_side_by_side() {
    let bed = Bed::new(Policy::V64);
    let file = bed.open("/data");
    let mut queue = bed.queue();
    let hold = bed.sim.hold(None, FaultOp::Write);
    for tag in 0..4 {
        queue
            .write(&file, tag * BLOCK as u64 + 512, half(0xcc), tag)
            .expect("room");
    }
    queue.submit().expect("a working queue");
    hold.wait_for(4);
    hold.release();
    let mut done = Vec::new();
    assert_eq!(queue.wait(4, &mut done).expect("a working queue"), 4);
    let stats = bed.fs.stats();
    assert_eq!((stats.writes_shared, stats.punts, stats.drains), (4, 0, 0));
}

// Invariant 6 with completion in a worker: the device is through and the entry in the table is gone, but the count is
// dropped only when the worker is through.
#[test]
fn deferred_completion_is_still_in_flight_for_a_drain() {
    let options = MountOptions::new().policy(Policy::V56).workers(1);
    let bed = Bed::with(options.completion(CompletionMode::Deferred));
    let file = bed.open("/data");
    let mut queue = bed.queue();
    // The one thread that there is for completions has something else to do.
    let (go_on, gate) = channel::<()>();
    file.mount.ioend.run(move || {
        let _ = gate.recv();
    });
    queue.write(&file, 0, block(1), 1).expect("room");
    queue.submit().expect("a working queue");
    let mut done = Vec::new();
    while bed.fs.stats().completed_deferred == 0 {
        queue.reap(&mut done);
        thread::yield_now();
    }
    assert!(done.is_empty(), "it is with the worker");
    let truncated = {
        let file = file.clone();
        start(move || file.set_len(BLOCK as u64 + 100))
    };
    wait_for_a_drain_of(&file);
    assert!(truncated.recv_timeout(A_WHILE).is_err(), "it did not wait");
    drop(go_on);
    assert!(matches!(truncated.recv_timeout(SOON), Ok(Ok(()))));
    let reaped = reap_one(&mut queue);
    assert_eq!((reaped.tag, reaped.result.ok()), (1, Some(BLOCK)));
    assert_eq!(bed.fs.stats().drains, 1);
}

// Deferred completions had shared their threads with punted requests: every thread drained, and none
// was left to complete what they drained.
#[test]
fn deferred_completion_while_every_worker_drains_goes_through() {
    let options = MountOptions::new().policy(Policy::V56).workers(1);
    let bed = Bed::with(options.completion(CompletionMode::Deferred));
    let file = bed.open("/data");
    let mut queue = bed.queue();
    let hold = bed.sim.hold(None, FaultOp::Write);
    queue.write(&file, 0, block(1), 1).expect("room");
    queue.write(&file, BLOCK as u64, half(2), 2).expect("room");
    queue.submit().expect("a working queue");
    hold.wait_for(1);
    // The worker has the lock and waits for the first write.
    while file.inode.rwsem.try_shared(Slot::NONE).is_some() {
        thread::yield_now();
    }
    hold.release();
    let (done, reaped) = channel();
    thread::spawn(move || {
        let mut completions = Vec::new();
        let result = queue.wait_timeout(2, &mut completions, Some(SOON));
        let through = (result.is_ok(), completions.len());
        match through {
            (true, 2) => drop(queue),
            // Dropping it would hang.
            _ => std::mem::forget(queue),
        }
        let _ = done.send(through);
    });
    assert_eq!(reaped.recv_timeout(2 * SOON), Ok((true, 2)));
}

// Each buffer was looked for from the first one on: half a minute.
#[test]
fn write_of_very_many_buffers_takes_time_in_proportion() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/hole");
    let bytes: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8).collect();
    let bufs: Vec<IoSlice<'_>> = bytes.chunks(2).map(IoSlice::new).collect();
    let begun = Instant::now();
    let written = file.write_vectored_at(&bufs, 1).expect("room");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let mut found = vec![0; bytes.len()];
    file.read_at(&mut found, 1).expect("a sound file");
    assert!(written == bytes.len() && found == bytes);
}

// A thread that drains what it must reap itself would wait for ever.
#[test]
fn blocking_write_against_own_queue_is_a_deadlock_error() {
    let bed = Bed::new(Policy::V56);
    let file = bed.open("/data");
    let mut queue = bed.queue();
    queue.write(&file, 0, block(1), 1).expect("room");
    let error = file
        .write_at(&half(2), BLOCK as u64)
        .expect_err("it would wait for itself");
    assert!(matches!(error, Error::Deadlock(_)), "{error}");
    assert_eq!(reap_one(&mut queue).tag, 1);
    file.write_at(&half(2), BLOCK as u64).expect("reaped now");
}

// Nor does it wait for the lock of who waits for what it must reap.
#[test]
fn request_for_the_lock_of_who_drains_the_own_queue_is_a_deadlock_error() {
    let bed = Bed::new(Policy::V56);
    let file = bed.open("/data");
    let mut queue = bed.queue();
    queue.write(&file, 0, block(1), 1).expect("room");
    queue.submit().expect("a working queue");
    let cut = {
        let file = file.clone();
        start(move || file.set_len(10 * BLOCK as u64 + 1))
    };
    wait_for_a_drain_of(&file);
    let read = file.read_at(&mut block(0), 0);
    let written = file.write_at(&half(2), BLOCK as u64);
    for error in [read.expect_err("no"), written.expect_err("no")] {
        assert!(matches!(error, Error::Deadlock(_)), "{error}");
    }
    assert_eq!(reap_one(&mut queue).tag, 1);
    let cut = cut.recv_timeout(SOON).expect("it goes on");
    cut.expect("a size");
    file.read_at(&mut block(0), 0).expect("reaped now");
}

// Two threads that each had requests in flight on the file that the other one cut off waited for each other for ever.
#[test]
fn threads_that_drain_what_the_other_has_in_flight_do_not_wait_for_each_other() {
    let bed = Bed::new(Policy::V56);
    let (fs, one, other) = (bed.fs.clone(), bed.open("/data"), bed.open("/setuid"));
    in_time(move || {
        let mut queue = queue_of(&fs);
        queue.read(&one, 0, block(0), 1).expect("room");
        queue.submit().expect("a working queue");
        let cut = cuts_with_a_read_in_flight(&fs, &one, &other);
        check_deadlock(other.set_len(1).map(|()| 0));
        check_deadlock(other.write_at(&half(1), other.len() + 1));
        assert_eq!(reap_one(&mut queue).tag, 1);
        let cut = cut.recv_timeout(SOON).expect("it goes on");
        cut.expect("a size");
        other.set_len(1).expect("nothing is in flight");
    });
}

// What another thread had punted occupied the workers, and stood at a file of which this thread had to reap.
#[test]
fn wait_while_every_worker_is_at_what_another_thread_has_punted_is_a_deadlock_error() {
    let options = MountOptions::new().policy(Policy::V56).workers(1);
    let bed = Bed::with(options);
    let (fs, file, hole) = (bed.fs.clone(), bed.open("/data"), bed.open("/hole"));
    in_time(move || {
        let (mut one, mut other) = (queue_of(&fs), queue_of(&fs));
        let mut done = Vec::new();
        one.write(&file, 0, block(1), 1).expect("room");
        one.submit().expect("a working queue");
        let punted = {
            let file = file.clone();
            start(move || {
                let mut queue = queue_of(&fs);
                queue.write(&file, BLOCK as u64, half(2), 2).expect("room");
                reap_one(&mut queue).tag
            })
        };
        wait_for_a_drain_of(&file);
        other.write(&hole, 0, half(3), 3).expect("room");
        check_deadlock(other.wait(1, &mut done));
        assert_eq!(reap_one(&mut one).tag, 1);
        assert_eq!(punted.recv_timeout(SOON), Ok(2));
        assert_eq!(reap_one(&mut other).tag, 3);
    });
}

/// Waits until somebody waits for what is in flight on a file.
fn wait_for_a_drain_of(file: &File) {
    let begun = Instant::now();
    while !file.inode.in_flight.is_being_drained() {
        assert!(begun.elapsed() < SOON, "nobody waits for it");
        thread::yield_now();
    }
}

/// A thread with a read of one file in flight, which it reaps after it has cut off another, of which somebody has requests in flight.
fn cuts_with_a_read_in_flight(fs: &Fs, cut: &File, read: &File) -> Receiver<crate::Result<()>> {
    let started = {
        let (fs, cut, read) = (fs.clone(), cut.clone(), read.clone());
        start(move || {
            let mut queue = queue_of(&fs);
            queue.read(&read, 0, block(0), 2).expect("room");
            queue.submit().expect("a working queue");
            let cut = cut.set_len(1);
            assert_eq!(reap_one(&mut queue).tag, 2);
            cut
        })
    };
    wait_for_a_drain_of(cut);
    started
}

// The lock that it wants is of one who drains, as it drains what another one has in flight, who drains what this one has.
#[test]
fn request_for_the_lock_of_who_waits_for_the_own_queue_through_others_is_a_deadlock_error() {
    let bed = Bed::new(Policy::V56);
    let (fs, a, b) = (bed.fs.clone(), bed.open("/data"), bed.open("/setuid"));
    in_time(move || {
        let mut queue = queue_of(&fs);
        queue.read(&a, 0, block(0), 1).expect("room");
        queue.submit().expect("a working queue");
        let second = cuts_with_a_read_in_flight(&fs, &a, &b);
        let third = {
            let b = b.clone();
            start(move || b.set_len(1))
        };
        wait_for_a_drain_of(&b);
        check_deadlock(b.read_at(&mut block(0), 0));
        check_deadlock(b.write_at(&half(2), BLOCK as u64));
        assert_eq!(reap_one(&mut queue).tag, 1);
        for cut in [second, third] {
            cut.recv_timeout(SOON).expect("it goes on").expect("a size");
        }
    });
}

// A truncate that goes beside readers waited for a lock without a look at who had it.
#[test]
fn truncate_for_the_lock_of_who_waits_for_the_own_queue_through_others_is_a_deadlock_error() {
    let bed = Bed::new(Policy::V56);
    let (fs, one, other) = (bed.fs.clone(), bed.open("/setuid"), bed.open("/data"));
    read_often(&other);
    in_time(move || {
        let beside = other.inode.rwsem.beside_readers();
        let truncate = {
            let (fs, one, other) = (fs.clone(), one.clone(), other.clone());
            start(move || {
                let mut queue = queue_of(&fs);
                queue.read(&one, 0, block(0), 1).expect("room");
                queue.submit().expect("a working queue");
                let cut = other.set_len(BLOCK as u64);
                assert_eq!(reap_one(&mut queue).tag, 1);
                cut
            })
        };
        while fs.stats().lock_waits == 0 {
            thread::yield_now();
        }
        let second = cuts_with_a_read_in_flight(&fs, &one, &other);
        let alone = beside.exclusive();
        let drained = other.inode.in_flight.drain(&other.mount.in_flight);
        assert_eq!(drained, Ok(true));
        drop(alone);
        let cut = truncate.recv_timeout(SOON).expect("it goes on");
        check_deadlock(cut.map(|()| 0));
        let cut = second.recv_timeout(SOON).expect("it goes on");
        cut.expect("a size");
        other.set_len(BLOCK as u64).expect("nothing is in flight");
    });
}

// It looked so often that it was never the next whom the lock was given.
#[test]
fn thread_with_requests_in_flight_gets_a_lock_that_others_take_in_turns() {
    let bed = Bed::new(Policy::V56);
    let (fs, one, other) = (bed.fs.clone(), bed.open("/data"), bed.open("/hole"));
    let got_it = Arc::new(AtomicBool::new(false));
    let others = [(); 2].map(|()| {
        let (other, got_it) = (other.clone(), got_it.clone());
        thread::spawn(move || {
            while !got_it.load(Ordering::Relaxed) {
                let _alone = other.inode.rwsem.exclusive();
                thread::sleep(Duration::from_millis(30));
            }
        })
    });
    let truncated = {
        let other = other.clone();
        start(move || {
            let mut queue = queue_of(&fs);
            queue.read(&one, 0, block(0), 1).expect("room");
            queue.submit().expect("a working queue");
            thread::sleep(A_WHILE);
            other.set_len(1).expect("a size");
            assert_eq!(reap_one(&mut queue).tag, 1);
        })
    };
    let ended = truncated.recv_timeout(SOON);
    got_it.store(true, Ordering::Relaxed);
    for other in others {
        other.join().expect("no panic");
    }
    ended.expect("it gets its turn");
}

// A worker waits for a thread that waits for another queue of who waits for the worker.
#[test]
fn wait_for_a_worker_that_waits_for_another_queue_through_others_is_a_deadlock_error() {
    let bed = Bed::new(Policy::V56);
    let (fs, x, y) = (bed.fs.clone(), bed.open("/data"), bed.open("/setuid"));
    in_time(move || {
        let (mut one, mut other) = (queue_of(&fs), queue_of(&fs));
        other.read(&y, 0, block(0), 1).expect("room");
        other.submit().expect("a working queue");
        let second = cuts_with_a_read_in_flight(&fs, &y, &x);
        one.write(&x, 0, half(3), 3).expect("room");
        one.submit().expect("a working queue");
        wait_for_a_drain_of(&x);
        let mut done = Vec::new();
        check_deadlock(one.wait(1, &mut done));
        assert_eq!(reap_one(&mut other).tag, 1);
        second
            .recv_timeout(SOON)
            .expect("it goes on")
            .expect("a size");
        assert_eq!(reap_one(&mut one).tag, 3);
    });
}

/// Gives up on what hangs: a thread of its own that is not waited for.
fn in_time<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    start(job).recv_timeout(SOON).expect("it hangs, or failed")
}

fn check_deadlock(result: crate::Result<usize>) {
    let error = result.expect_err("it would wait for itself");
    assert!(matches!(error, Error::Deadlock(_)), "{error}");
    assert_eq!(error.errno(), libc::EDEADLK);
}

// A worker drained a file of requests in one queue, while the thread that had to reap them waited for the worker in another.
#[test]
fn wait_for_a_worker_that_waits_for_another_queue_of_the_thread_is_a_deadlock_error() {
    let bed = Bed::new(Policy::V56);
    let (fs, file, hole) = (bed.fs.clone(), bed.open("/data"), bed.open("/hole"));
    in_time(move || {
        let (mut one, mut other) = (queue_of(&fs), queue_of(&fs));
        let mut done = Vec::new();
        one.write(&file, 0, block(1), 1).expect("room");
        other.write(&file, BLOCK as u64, half(2), 2).expect("room");
        // This one comes back by itself.
        other.read(&hole, 0, block(0), 3).expect("room");
        check_deadlock(other.wait(2, &mut done));
        check_deadlock(other.wait_timeout(1, &mut done, Some(SOON)));
        assert_eq!((done.len(), done[0].tag, other.outstanding()), (1, 3, 1));
        // A short wait ends anyhow.
        let short = Some(Duration::from_millis(1));
        let waited = other.wait_timeout(1, &mut done, short);
        assert_eq!(waited.expect("a working queue"), 0);
        assert_eq!(reap_one(&mut one).tag, 1);
        let last = reap_one(&mut other);
        assert_eq!((last.tag, last.result.ok()), (2, Some(BLOCK / 2)));
    });
}

// As above, where the worker waits for the lock of who drains.
#[test]
fn wait_for_a_worker_that_waits_for_the_lock_of_who_drains_an_own_queue_is_a_deadlock_error() {
    let bed = Bed::new(Policy::V56);
    let (fs, file) = (bed.fs.clone(), bed.open("/data"));
    in_time(move || {
        let (mut one, mut other) = (queue_of(&fs), queue_of(&fs));
        one.write(&file, 0, block(1), 1).expect("room");
        one.submit().expect("a working queue");
        let cut = {
            let file = file.clone();
            start(move || file.set_len(10 * BLOCK as u64 + 1))
        };
        wait_for_a_drain_of(&file);
        other.read(&file, 0, block(0), 2).expect("room");
        check_deadlock(other.wait(1, &mut Vec::new()));
        assert_eq!(reap_one(&mut one).tag, 1);
        assert_eq!(reap_one(&mut other).result.ok(), Some(BLOCK));
        let cut = cut.recv_timeout(SOON).expect("it goes on");
        cut.expect("a size");
    });
}

// What no worker has taken up yet comes no sooner than a worker comes free.
#[test]
fn wait_while_every_worker_waits_for_another_queue_of_the_thread_is_a_deadlock_error() {
    let bed = Bed::with(MountOptions::new().policy(Policy::V56).workers(1));
    let (fs, file, second) = (bed.fs.clone(), bed.open("/data"), bed.open("/setuid"));
    in_time(move || {
        let (mut one, mut other) = (queue_of(&fs), queue_of(&fs));
        one.write(&file, 0, block(1), 1).expect("room");
        other.write(&file, BLOCK as u64, half(2), 2).expect("room");
        let at = BLOCK as u64;
        other.write(&second, at, half(3), 3).expect("room");
        let mut done = Vec::new();
        check_deadlock(other.wait(1, &mut done));
        assert_eq!(reap_one(&mut one).tag, 1);
        let waited = other.wait(2, &mut done);
        assert_eq!(waited.expect("a working queue"), 2);
    });
}

// None of these waits is for what only the waiting thread can end.
#[test]
fn wait_for_a_worker_that_others_let_go_on_is_no_deadlock() {
    let bed = Bed::new(Policy::V56);
    let (fs, file) = (bed.fs.clone(), bed.open("/data"));
    let first = file.map(0, 1).expect("a block").pblk.0 * BLOCK as u64;
    let hold = bed
        .sim
        .hold(Some(first..first + BLOCK as u64), FaultOp::Write);
    let (drained, goes_on) = channel();
    let other = {
        let (fs, file) = (fs.clone(), file.clone());
        start(move || {
            let mut queue = queue_of(&fs);
            queue.write(&file, 0, block(1), 1).expect("room");
            queue.submit().expect("a working queue");
            drained.send(()).expect("it is waited for");
            reap_one(&mut queue).tag
        })
    };
    goes_on.recv_timeout(SOON).expect("it is pushed");
    let (pushed, waits) = channel();
    let own = start(move || {
        let (mut unrelated, mut queue) = (queue_of(&fs), queue_of(&fs));
        let elsewhere = OpenOptions::new().read(true).open(&fs, "/hole");
        let elsewhere = elsewhere.expect("it exists");
        unrelated.read(&elsewhere, 0, block(0), 1).expect("room");
        queue.write(&file, BLOCK as u64, half(2), 2).expect("room");
        // Behind the other thread's request, or what waits for it.
        queue.read(&file, 0, half(0), 3).expect("room");
        pushed.send(()).expect("it is waited for");
        let mut done = Vec::new();
        let waited = queue.wait(2, &mut done);
        waited.map(|count| (count, reap_one(&mut unrelated).tag))
    });
    waits.recv_timeout(SOON).expect("it is pushed");
    thread::sleep(3 * A_WHILE);
    assert!(own.try_recv().is_err(), "it did not wait");
    hold.release();
    assert_eq!(other.recv_timeout(SOON), Ok(1));
    let own = own.recv_timeout(SOON).expect("it goes on");
    assert_eq!(own.expect("no deadlock"), (2, 1));
}

// A worker that is slow in the device stands for nobody, even where the file has requests in another queue.
#[test]
fn wait_for_a_worker_in_the_device_is_no_deadlock() {
    let bed = Bed::new(Policy::V64);
    let (fs, file) = (bed.fs.clone(), bed.open("/data"));
    let second = file.map(1, 1).expect("a block").pblk.0 * BLOCK as u64;
    let hold = bed
        .sim
        .hold(Some(second..second + BLOCK as u64), FaultOp::Read);
    let own = start(move || {
        let (mut one, mut other) = (queue_of(&fs), queue_of(&fs));
        one.write(&file, 0, block(1), 1).expect("room");
        let bytes = Buf::copy_of(&[0; 100]);
        other.read(&file, BLOCK as u64 + 1, bytes, 2).expect("room");
        let waited = other.wait(1, &mut Vec::new());
        waited.map(|count| (count, reap_one(&mut one).tag))
    });
    hold.wait_for(1);
    thread::sleep(A_WHILE);
    assert!(own.try_recv().is_err(), "it did not wait");
    assert_eq!(bed.fs.stats().punts, 1);
    hold.release();
    let own = own.recv_timeout(SOON).expect("it goes on");
    assert_eq!(own.expect("no deadlock"), (1, 1));
}

// Queues of one thread are dropped one after the other.
#[test]
fn dropped_queue_does_not_wait_for_another_queue_of_the_thread() {
    let bed = Bed::new(Policy::V56);
    let (fs, file) = (bed.fs.clone(), bed.open("/data"));
    let reader = file.clone();
    in_time(move || {
        let (mut one, mut other) = (queue_of(&fs), queue_of(&fs));
        one.write(&file, 0, block(1), 1).expect("room");
        other.write(&file, BLOCK as u64, half(2), 2).expect("room");
        other.write(&file, 0, block(3), 3).expect("room");
        drop(other);
        drop(one);
    });
    // What was pushed is carried out all the same.
    in_time(move || {
        let mut now = block(0);
        while now[0] != 2 {
            reader.read_at(&mut now, BLOCK as u64).expect("readable");
        }
        while Arc::strong_count(&reader.mount) > 2 {
            thread::yield_now();
        }
    });
}

/// Blocks and inodes that are free.
fn free(fs: &Fs) -> (u64, u64) {
    let free = fs.statfs();
    (free.blocks_free, free.files_free)
}

/// What is free once `/data` and its blocks are.
fn free_without_data(fs: &Fs) -> (u64, u64) {
    let (blocks, files) = free(fs);
    (blocks + BLOCKS as u64, files + 1)
}

/// Who closes a removed file last, and when.
#[derive(Clone, Copy, Debug)]
struct Last {
    completion: CompletionMode,
    /// Another thread than the queue's.
    by_another: bool,
    /// Before its name goes.
    named: bool,
}

fn check_removed_with_requests_in_flight(last: Last) {
    let bed = Bed::with(MountOptions::new().completion(last.completion));
    let file = bed.open("/data");
    let (before, after) = (free(&bed.fs), free_without_data(&bed.fs));
    let first = file.map(0, 1).expect("a block").pblk.0 * BLOCK as u64;
    let hold = bed
        .sim
        .hold(Some(first..first + BLOCK as u64), FaultOp::Write);
    let mut queue = bed.queue();
    queue.write(&file, 0, block(1), 1).expect("room");
    queue.submit().expect("a working queue");
    let fs = bed.fs.clone();
    let close = move || {
        let mut file = Some(file);
        if last.named {
            drop(file.take());
        }
        fs.remove_file("/data").expect("it exists");
        drop(file);
    };
    match last.by_another {
        true => in_time(close),
        false => close(),
    }
    assert_eq!(free(&bed.fs), before, "{last:?}");
    hold.release();
    let fs = bed.fs.clone();
    in_time(move || fs.sync()).expect("a sync");
    assert_eq!(free(&bed.fs), before, "{last:?}");
    assert_eq!(reap_one(&mut queue).tag, 1);
    assert_eq!(free(&bed.fs), after, "{last:?}");
}

// The last handle goes while a request is in flight: the file's blocks stay until it was reaped, and nobody waits.
#[test]
fn removed_file_that_is_closed_with_requests_in_flight_is_freed_when_they_were_reaped() {
    for completion in [CompletionMode::Inline, CompletionMode::Deferred] {
        for (by_another, named) in [(false, false), (false, true), (true, false), (true, true)] {
            check_removed_with_requests_in_flight(Last {
                completion,
                by_another,
                named,
            });
        }
    }
}

// What is only reaped, and not waited for, is freed with the queue, or with the next sync.
#[test]
fn removed_file_whose_requests_are_reaped_without_a_wait_is_freed_later() {
    for by_sync in [false, true] {
        let bed = Bed::new(Policy::Best);
        let file = bed.open("/data");
        let (before, after) = (free(&bed.fs), free_without_data(&bed.fs));
        let mut queue = bed.queue();
        queue.write(&file, 0, block(1), 1).expect("room");
        queue.submit().expect("a working queue");
        bed.fs.remove_file("/data").expect("it exists");
        drop(file);
        let mut done = Vec::new();
        while queue.reap(&mut done) == 0 {
            thread::yield_now();
        }
        assert_eq!(free(&bed.fs), before);
        match by_sync {
            true => bed.fs.sync().expect("a sync"),
            false => drop(queue),
        }
        assert_eq!(free(&bed.fs), after);
    }
}

// A worker had the last handle, and drained the file while the thread that had to reap waited for the worker.
#[test]
fn removed_file_that_a_worker_closes_last_is_freed_when_its_requests_were_reaped() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    let (before, after) = (free(&bed.fs), free_without_data(&bed.fs));
    let second = file.map(1, 1).expect("a block").pblk.0 * BLOCK as u64;
    let hold = bed
        .sim
        .hold(Some(second..second + BLOCK as u64), FaultOp::Read);
    let fs = bed.fs.clone();
    let (closed, goes_on) = channel();
    let reaped = start(move || {
        let (mut one, mut other) = (queue_of(&fs), queue_of(&fs));
        one.write(&file, 0, block(1), 1).expect("room");
        let bytes = Buf::copy_of(&[0; 100]);
        other.read(&file, BLOCK as u64 + 1, bytes, 2).expect("room");
        fs.remove_file("/data").expect("it exists");
        drop(file);
        closed.send(()).expect("it is waited for");
        let read = reap_one(&mut other).result.ok();
        (read, free(&fs), reap_one(&mut one).tag, free(&fs))
    });
    goes_on.recv_timeout(SOON).expect("it is closed");
    hold.wait_for(1);
    hold.release();
    let reaped = reaped.recv_timeout(SOON).expect("it goes on");
    assert_eq!(reaped, (Some(100), before, 1, after));
}

// Policies that read without the lock: a truncate closes the file to them before it looks who is in.
#[test]
fn reader_without_the_lock_waits_for_a_truncate_under_way() {
    let bed = Bed::new(Policy::Pre49Nolock);
    let file = bed.open("/data");
    let first = file.map(0, 1).expect("a block").pblk.0 * BLOCK as u64;
    let hold = bed
        .sim
        .hold(Some(first..first + BLOCK as u64), FaultOp::Read);
    let truncated = {
        let file = file.clone();
        start(move || file.set_len(100))
    };
    // It zeroes the rest of the first block.
    hold.wait_for(1);
    let read = {
        let file = file.clone();
        start(move || file.read_at(&mut block(0), 10 * BLOCK as u64))
    };
    assert!(read.recv_timeout(A_WHILE).is_err(), "it did not wait");
    hold.release();
    let truncated = truncated.recv_timeout(SOON).expect("it goes on");
    truncated.expect("a size");
    assert!(matches!(read.recv_timeout(SOON), Ok(Ok(0))));
}

// F: before 4.9 a reader had the lock alone to map and to submit, and gave it up before it waited. Since then it shares it for
// all of the I/O.
#[test]
fn reader_has_the_lock_that_its_policy_says_before_and_during_the_io() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/data");
        let another = file.inode.rwsem.shared(Slot::NONE);
        let tried = file.try_read_at(&mut block(0), 0);
        assert_eq!(tried.is_err(), policy == Policy::Pre49, "{policy}");
        drop(another);
        let at = file.map(2, 1).expect("a block").pblk.0 * BLOCK as u64;
        let hold = bed.sim.hold(Some(at..at + BLOCK as u64), FaultOp::Read);
        let read = {
            let file = file.clone();
            start(move || {
                let mut buf = block(0);
                file.read_at(&mut buf, 2 * BLOCK as u64).map(|_| buf)
            })
        };
        hold.wait_for(1);
        let unlocks = matches!(policy, Policy::Pre49 | Policy::Pre49Nolock);
        let alone = file.inode.rwsem.try_exclusive().is_some();
        assert_eq!(alone, unlocks, "{policy}");
        assert!(file.inode.rwsem.try_shared(Slot::NONE).is_some());
        let counted = !file.inode.in_flight.is_quiet(&file.mount.in_flight);
        assert_eq!(counted, unlocks, "{policy}: a drain waits for it");
        let overwrite = {
            let file = file.clone();
            start(move || file.write_at(&block(0xA6), 20 * BLOCK as u64))
        };
        // Who needs the lock alone gets it now, or when the read is done.
        let begins_alone = matches!(
            policy,
            Policy::Parallel | Policy::Iomap55 | Policy::Ilock | Policy::IlockNew
        );
        if begins_alone {
            assert!(overwrite.recv_timeout(A_WHILE).is_err(), "{policy}");
        } else {
            let written = overwrite.recv_timeout(SOON);
            assert!(matches!(written, Ok(Ok(BLOCK))), "{policy}");
        }
        hold.release();
        let read = read.recv_timeout(SOON).expect("it goes on");
        assert_eq!(read.expect("readable")[..], [3; BLOCK], "{policy}");
        if begins_alone {
            let written = overwrite.recv_timeout(SOON);
            assert!(matches!(written, Ok(Ok(BLOCK))), "{policy}");
        }
    }
}

// As in Linux 4.8, who unlocks for the I/O takes the lock once more behind it.
#[test]
fn writer_that_unlocked_for_the_io_locks_again() {
    let bed = Bed::new(Policy::Pre49Nolock);
    let file = bed.open("/data");
    let hold = bed.sim.hold(None, FaultOp::Write);
    let written = {
        let file = file.clone();
        start(move || file.write_at(&block(1), 0))
    };
    hold.wait_for(1);
    let lock = file.inode.rwsem.try_exclusive().expect("nobody has it");
    hold.release();
    while bed.fs.stats().lock_waits == 0 {
        std::thread::yield_now();
    }
    assert!(written.recv_timeout(A_WHILE).is_err(), "it did not lock");
    drop(lock);
    assert!(matches!(written.recv_timeout(SOON), Ok(Ok(BLOCK))));
    let stats = bed.fs.stats();
    assert_eq!((stats.writes_exclusive, stats.lock_waits), (1, 1));
}

// A request that may not wait does not wait for that either.
#[test]
fn no_wait_write_that_unlocked_for_the_io_does_not_lock_again() {
    let bed = Bed::new(Policy::Pre49Nolock);
    let file = bed.open("/data");
    let hold = bed.sim.hold(None, FaultOp::Write);
    let written = {
        let file = file.clone();
        start(move || file.try_write_at(&block(1), 0))
    };
    hold.wait_for(1);
    let lock = file.inode.rwsem.try_exclusive().expect("nobody has it");
    hold.release();
    assert!(matches!(written.recv_timeout(SOON), Ok(Ok(BLOCK))));
    drop(lock);
}

// A truncate between blocks goes beside readers, one within a block is alone; either waits for a write in flight.
#[test]
fn truncate_that_waits_for_a_request_in_flight_counts_a_drain() {
    for size in [BLOCK, BLOCK + 100] {
        let bed = Bed::new(Policy::Best);
        let file = bed.open("/data");
        let first = file.map(0, 1).expect("a block").pblk.0 * BLOCK as u64;
        let mut queue = bed.queue();
        let range = first..first + BLOCK as u64;
        let hold = bed.sim.hold(Some(range), FaultOp::Write);
        queue.write(&file, 0, block(9), 1).expect("room");
        queue.submit().expect("a working queue");
        hold.wait_for(1);
        let truncated = {
            let file = file.clone();
            start(move || file.set_len(size as u64))
        };
        wait_for_a_drain_of(&file);
        assert!(truncated.recv_timeout(A_WHILE).is_err(), "it did not wait");
        hold.release();
        assert_eq!(reap_one(&mut queue).tag, 1);
        assert!(matches!(truncated.recv_timeout(SOON), Ok(Ok(()))));
        assert_eq!(bed.fs.stats().drains, 1, "{size}");
    }
}

/// A device whose queues do each operation when it is pushed: what holds that holds a request that is not counted yet.
#[derive(Clone, Debug)]
struct AtOnce(SimDevice);

impl Device for AtOnce {
    fn geometry(&self) -> &Geometry {
        self.0.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> dioxide_block::Result<()> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8], how: Durability) -> dioxide_block::Result<()> {
        self.0.write_at(offset, buf, how)
    }

    fn flush(&self) -> dioxide_block::Result<()> {
        self.0.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> dioxide_block::Result<()> {
        self.0.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> dioxide_block::Result<()> {
        self.0.write_zeroes(offset, len)
    }

    fn open_queue(
        &self,
        options: &QueueOptions,
    ) -> dioxide_block::Result<Box<dyn dioxide_block::Queue>> {
        Ok(Box::new(InlineQueue::new(self.clone(), options)))
    }

    fn describe(&self) -> String {
        "at once".into()
    }
}

// Invariant 7: whoever wants the file alone waits for a request from its checks on until it is reaped, by the lock first and
// then by the count.
#[test]
fn queued_request_is_counted_before_its_lock_is_dropped() {
    let waits = |file: &File| {
        let quiet = file.inode.in_flight.is_quiet(&file.mount.in_flight);
        file.inode.rwsem.try_exclusive().is_none() || !quiet
    };
    for policy in Policy::ALL {
        let bed = Bed::over(MountOptions::new().policy(policy), |sim| {
            Arc::new(AtOnce(sim))
        });
        let file = bed.open("/data");
        let start_of = |lblk| file.map(lblk, 1).expect("a block").pblk.0 * BLOCK as u64;
        for (blocks, op) in [
            (1, FaultOp::Read),
            (2, FaultOp::Read),
            (1, FaultOp::Write),
            (2, FaultOp::Write),
        ] {
            // It always restarts with the lock alone, which a worker does.
            if (policy, op) == (Policy::Ilock, FaultOp::Write) {
                continue;
            }
            let at = start_of(4);
            let hold = bed.sim.hold(Some(at..at + BLOCK as u64), op);
            let pushed = {
                let (file, mut queue) = (file.clone(), bed.queue());
                start(move || {
                    let buf = Buf::copy_of(&vec![9; blocks * BLOCK]);
                    let at = 4 * BLOCK as u64;
                    let pushed = match op {
                        FaultOp::Write => queue.write(&file, at, buf, 1),
                        _ => queue.read(&file, at, buf, 1),
                    };
                    pushed.expect("room");
                    queue
                })
            };
            hold.wait_for(1);
            assert!(waits(&file), "{policy}, {op:?} of {blocks}: not pushed yet");
            hold.release();
            let mut queue = pushed.recv_timeout(SOON).expect("it is pushed");
            assert!(waits(&file), "{policy}, {op:?} of {blocks}: pushed");
            let reaped = reap_one(&mut queue).result.ok();
            assert_eq!(reaped, Some(blocks * BLOCK), "{policy}");
            assert!(!waits(&file), "{policy}, {op:?} of {blocks}: reaped");
        }
        assert_eq!(bed.fs.stats().punts, 0, "{policy}");
    }
}

// A queue that finds the file's map not in memory hands the read to a worker, which counts it.
#[test]
fn read_of_a_map_that_is_not_in_memory_is_counted_once() {
    let bed = Bed::new(Policy::Best);
    let options = OpenOptions::new().read(true).write(true);
    let file = options.open(&bed.fs, "/data").expect("it exists");
    let mut queue = bed.queue();
    queue.read(&file, 0, block(0), 1).expect("room");
    assert!(reap_one(&mut queue).result.is_ok());
    let stats = bed.fs.stats();
    assert_eq!(stats.reads_simple + stats.reads_general, 1, "{stats:?}");
    assert_eq!((stats.punts, stats.would_block), (1, 1), "{stats:?}");
}

#[test]
fn queue_that_is_never_empty_forgets_the_files_of_what_has_finished() {
    let bed = Bed::new(Policy::Parallel);
    let slow = bed.open("/data");
    let first = slow.map(0, 1).expect("a block").pblk.0 * BLOCK as u64;
    let mut queue = bed.queue();
    let hold = bed
        .sim
        .hold(Some(first..first + BLOCK as u64), FaultOp::Read);
    queue.read(&slow, 0, block(0), 1000).expect("room");
    queue.submit().expect("a working queue");
    for n in 0..100 {
        let options = OpenOptions::new().read(true).write(true).create_new(true);
        let file = options.open(&bed.fs, format!("/{n}")).expect("a new file");
        file.write_at(&block(n), 0).expect("room");
        let tag = u64::from(n);
        queue.read(&file, 0, block(0), tag).expect("room");
        let done = reap_one(&mut queue);
        assert_eq!((done.tag, done.result.ok()), (tag, Some(BLOCK)));
        assert!(done.buf[..] == block(n)[..]);
        assert!(queue.remembered() <= 16, "{n}");
    }
    hold.release();
    let done = reap_one(&mut queue);
    assert_eq!((done.tag, done.result.ok()), (1000, Some(BLOCK)));
    assert!(done.buf[..] == content()[..BLOCK]);
}

// The same write through the queue goes to a worker, and comes through.
#[test]
fn queued_exclusive_write_is_punted_and_completes() {
    let bed = Bed::new(Policy::V56);
    let file = bed.open("/data");
    let mut queue = bed.queue();
    queue.write(&file, 0, block(1), 1).expect("room");
    queue.write(&file, BLOCK as u64, half(2), 2).expect("room");
    let mut done = Vec::new();
    assert_eq!(queue.wait(2, &mut done).expect("a working queue"), 2);
    assert!(done.iter().all(|completion| completion.result.is_ok()));
    let stats = bed.fs.stats();
    assert_eq!((stats.punts, stats.would_block), (1, 1));
}

// Invariant 17: a restart looks at everything again.
#[test]
fn restarted_write_sees_the_new_end_of_file() {
    let bed = Bed::new(Policy::Ilock);
    let file = bed.open("/data");
    let reader = file.inode.rwsem.shared(Slot::NONE);
    let writer = {
        let file = file.clone();
        start(move || file.write_at(&block(0x55), 8 * BLOCK as u64))
    };
    while bed.fs.stats().lock_waits == 0 {
        thread::yield_now();
    }
    // It has passed its checks under the shared lock and waits for the exclusive one.
    file.inode.set_size(4 * BLOCK as u64);
    drop(reader);
    let result = writer.recv_timeout(SOON).expect("it goes on");
    assert_eq!(result.expect("room"), BLOCK);
    assert_eq!(file.len(), 9 * BLOCK as u64, "it is an extending write now");
    file.set_len(SIZE as u64).expect("room");
}

/// From the ninth read on they are announced, and need no underlying lock.
fn read_often(file: &File) {
    for _ in 0..8 {
        assert!(matches!(file.read_at(&mut block(0), 0), Ok(BLOCK)));
    }
}

// A truncate lets in who shares the lock: reads inside the new end, and nobody who would add to the file.
#[test]
fn truncate_under_way_lets_readers_go_on_and_keeps_appends_out() {
    let _excuse = Excuse::of_a_test();
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    read_often(&file);
    let end = 4 * BLOCK as u64;
    let truncate = file.inode.rwsem.beside_readers();
    file.inode.count_cut();
    file.inode.set_size(end);
    let mut buf = block(0);
    assert!(matches!(
        file.read_at(&mut buf, 3 * BLOCK as u64),
        Ok(BLOCK)
    ));
    assert_eq!(buf[..], block(4)[..]);
    assert!(matches!(file.read_at(&mut buf, end), Ok(0)));
    assert!(matches!(file.write_at(&block(7), 0), Ok(BLOCK)));
    // The blocks behind the end are still the file's, and are not to be written any more.
    let append = {
        let file = file.clone();
        start(move || file.write_at(&block(9), end))
    };
    assert!(append.recv_timeout(A_WHILE).is_err(), "it did not wait");
    file.inode.count_cut();
    drop(truncate);
    let appended = append.recv_timeout(SOON).expect("it goes on");
    assert!(matches!(appended, Ok(BLOCK)));
    file.set_len(SIZE as u64).expect("room");
}

// Who was there before the truncate, and has not begun: the new end is not a gap of its making, and the truncate may fail yet.
#[test]
fn append_that_a_truncate_overtakes_before_it_begins_zeroes_nothing() {
    let _excuse = Excuse::of_a_test();
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    let (old, new) = (60 * BLOCK as u64, 4 * BLOCK as u64);
    file.set_len(old).expect("a size");
    read_often(&file);
    let data = block(9);
    let request = file.write_request(Memory::of_one(&data), BLOCK, old, Wait::Block);
    let admitted = write::admit(&request).expect("a sound file");
    assert!(matches!(admitted.guard, Guard::Shared(_)));
    let truncate = file.inode.rwsem.beside_readers();
    file.inode.count_cut();
    file.inode.set_size(new);
    place::prepare(&request, admitted.pos, &admitted.facts).expect("nothing to do");
    file.inode.set_size(old);
    file.inode.count_cut();
    drop((truncate, admitted));
    let mut buf = block(0);
    assert!(matches!(file.read_at(&mut buf, new), Ok(BLOCK)));
    assert_eq!(buf[..], block(5)[..]);
    file.set_len(SIZE as u64).expect("room");
}

// Who was there before the truncate, and adds to the file after it, looks at everything again.
#[test]
fn append_that_a_truncate_overtakes_starts_over() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    read_often(&file);
    let (old, new) = (60 * BLOCK as u64, 4 * BLOCK as u64);
    file.set_len(old).expect("a size");
    let hold = bed.sim.hold(None, FaultOp::Write);
    let append = {
        let file = file.clone();
        start(move || file.write_at(&block(9), old))
    };
    hold.wait_for(1);
    let truncated = {
        let file = file.clone();
        start(move || file.set_len(new))
    };
    while file.len() != new {
        thread::yield_now();
    }
    hold.release();
    truncated
        .recv_timeout(SOON)
        .expect("it goes on")
        .expect("a size");
    let appended = append.recv_timeout(SOON).expect("it goes on");
    assert!(matches!(appended, Ok(BLOCK)));
    assert_eq!(bed.fs.stats().restarts, 1);
    assert_eq!(file.len(), old + BLOCK as u64);
    let mut buf = block(1);
    file.read_at(&mut buf, new).expect("a gap");
    assert_eq!(buf[..], block(0)[..]);
}

// All of it was there, and its end was the file's: a truncate then cuts off some of it, and no second copy comes behind that.
#[test]
fn append_that_is_cut_before_it_has_returned_is_not_made_again() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    let (old, cut) = (60 * BLOCK as u64, 61 * BLOCK as u64);
    file.set_len(old).expect("a size");
    read_often(&file);
    let mut data = Buf::zeroed(2 * BLOCK);
    data.fill(9);
    let request = file.write_request(Memory::of_one(&data), data.len(), old, Wait::Block);
    let admitted = write::admit(&request).expect("a sound file");
    assert!(matches!(admitted.guard, Guard::Shared(_)));
    let cuts = file.inode.cuts();
    let bufs = [IoSlice::new(&data)];
    let placed = place::placing(&request, &bufs, old, false, cuts, |placing| {
        assert!(matches!(placing.write(), Ok(place::Placed::Done)));
        assert_eq!(file.inode.i_size(), old + data.len() as u64);
        file.inode.count_cut();
        file.inode.set_size(cut);
        placing.end()
    });
    assert!(matches!(placed, Ok(place::Placed::Done)));
    file.inode.set_size(old + data.len() as u64);
    file.inode.count_cut();
    drop(admitted);
    file.set_len(SIZE as u64).expect("room");
}

/// Two extents of unwritten blocks that touch, one of which ends before `lblk`, where there was one.
fn split_unwritten(file: &File, lblk: u32) {
    let writer = file.mount.writer().expect("it may write");
    let mut handle = writer.begin(INODE_CREDITS).expect("a sound journal");
    let lock = file.inode.map.lock();
    let split = &mut |disk: &mut DiskInode| {
        let mut root = *disk.i_block();
        let entries = usize::from(root[2]);
        assert!(entries < 4 && root[6] == 0, "room in the root");
        let last = 12 * entries;
        let field = |at: usize| u32::from_le_bytes(root[at..at + 4].try_into().expect("four"));
        let (first, start) = (field(last), field(last + 8));
        let len = u32::from(root[last + 4]);
        assert!(root[last + 5] == 0x80 && first < lblk && lblk < first + len);
        root.copy_within(last..last + 12, last + 12);
        root[last + 4] = (lblk - first) as u8;
        root[last + 16] = (first + len - lblk) as u8;
        root[last + 12..last + 16].copy_from_slice(&lblk.to_le_bytes());
        root[last + 20..last + 24].copy_from_slice(&(start + lblk - first).to_le_bytes());
        root[2] += 1;
        disk.set_i_block(&root);
    };
    let changed = file
        .mount
        .change_inode(&mut handle, &file.inode, &lock, split);
    changed.expect("room");
    drop(lock);
    handle.stop().expect("a sound journal");
}

// The second of them may find no room for the map, when readers, and appends, have seen the end of the first.
#[test]
fn append_to_several_unwritten_extents_has_the_file_alone() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    let end = |block: u64| block * BLOCK as u64;
    file.set_len(end(60)).expect("a size");
    let allocated = file.allocate(FallocateMode::KeepSize, end(60), end(8));
    allocated.expect("room");
    let mut data = Buf::zeroed(4 * BLOCK);
    data.fill(9);
    let restarts = |data: &[u8], at: u64, expected: u64| {
        file.write_at(data, end(at)).expect("room");
        assert_eq!(bed.fs.stats().restarts, expected);
    };
    restarts(&data[..2 * BLOCK], 60, 0);
    split_unwritten(&file, 64);
    restarts(&data, 62, 1);
    assert_eq!(file.len(), end(66));
    let mut read = Buf::zeroed(6 * BLOCK);
    file.read_at(&mut read, end(60)).expect("written blocks");
    assert!(read.iter().all(|&byte| byte == 9));
}

// The journal is aborted when readers know the new end, and the change can still be part of no transaction.
#[test]
fn append_beside_which_the_journal_is_aborted_takes_its_size_back() {
    for unwritten in [false, true] {
        let mut bed = Bed::new(Policy::Best);
        let file = bed.open("/data");
        let old = 60 * BLOCK as u64;
        file.set_len(old).expect("a size");
        if unwritten {
            let allocated = file.allocate(FallocateMode::KeepSize, old, 4 * BLOCK as u64);
            allocated.expect("room");
        }
        bed.fs.sync().expect("a sound device");
        let inode = file.inode.hold();
        let append = {
            let file = file.clone();
            start(move || file.write_at(&block(9), old))
        };
        // All else is changed.
        while !file.inode.is_changing() {
            thread::yield_now();
        }
        file.mount.fail(Error::ReadOnly("a test".into()));
        drop(inode);
        let appended = append.recv_timeout(SOON).expect("it goes on");
        let error = appended.expect_err("its journal is aborted");
        assert_eq!(error.errno(), libc::EROFS, "{error}");
        assert_eq!(bed.fs.stats().writes_exclusive, 0);
        assert_eq!(file.len(), old, "unwritten: {unwritten}");
        assert!(matches!(file.read_at(&mut block(0), old), Ok(0)));
        drop((file, bed.fs.0.take()));
    }
}

#[test]
fn appends_that_fail_in_any_order_take_the_size_back() {
    let failed = || Err(Error::ReadOnly("a test".into()));
    for in_order in [false, true] {
        let mut bed = Bed::new(Policy::Best);
        let file = bed.open("/data");
        let ends = [60, 61, 62].map(|block| block * BLOCK as u64);
        file.set_len(ends[0]).expect("a size");
        bed.fs.sync().expect("a sound device");
        let data = block(9);
        let request = |at| file.write_request(Memory::of_one(&data), BLOCK, at, Wait::Block);
        let (first, second) = (request(ends[0]), request(ends[1]));
        let admitted = write::admit(&first).expect("a sound file");
        assert!(matches!(admitted.guard, Guard::Shared(_)));
        let (cuts, bufs) = (file.inode.cuts(), [IoSlice::new(&data)]);
        let (outer, inner) = match in_order {
            true => ((&second, ends[1]), (&first, ends[0])),
            false => ((&first, ends[0]), (&second, ends[1])),
        };
        let write = |placing: &place::Placing<'_, '_>| {
            assert!(matches!(placing.write(), Ok(place::Placed::Done)));
        };
        let placed = place::placing(outer.0, &bufs, outer.1, false, cuts, |later| {
            if !in_order {
                write(later);
            }
            let placed = place::placing(inner.0, &bufs, inner.1, false, cuts, |sooner| {
                write(sooner);
                if in_order {
                    write(later);
                }
                assert_eq!(file.len(), ends[2]);
                file.mount.fail(Error::ReadOnly("a test".into()));
                failed()
            });
            assert!(placed.is_err());
            // Readers have what is not known to have failed.
            assert_eq!(file.len(), if in_order { ends[2] } else { ends[1] });
            failed()
        });
        assert!(placed.is_err());
        assert_eq!(file.len(), ends[0]);
        drop(admitted);
        drop((file, bed.fs.0.take()));
    }
}

// Invariant 18, exit 1: the lock is taken.
#[test]
fn no_wait_with_the_lock_taken_would_block() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    let writer = file.inode.rwsem.exclusive();
    let mut buf = block(0);
    assert!(matches!(
        file.try_read_at(&mut buf, 0),
        Err(Error::WouldBlock(_))
    ));
    assert!(matches!(
        file.try_write_at(&buf, 0),
        Err(Error::WouldBlock(_))
    ));
    let mut queue = bed.queue();
    queue.read(&file, 0, buf, 7).expect("room");
    assert_eq!(bed.fs.stats().punts, 1);
    drop(writer);
    assert_eq!(reap_one(&mut queue).tag, 7);
    assert!(bed.fs.stats().would_block >= 2);
}

// Invariant 18: a full queue gives the buffer back instead of waiting.
#[test]
fn full_queue_gives_the_buffer_back() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    let mut queue = bed.queue();
    let hold = bed.sim.hold(None, FaultOp::Write);
    for tag in 0..queue.depth() as u64 {
        queue.write(&file, 0, block(3), tag).expect("room");
    }
    let back = queue.write(&file, 0, block(4), 99).expect_err("full");
    assert!(back.iter().all(|&byte| byte == 4));
    hold.release();
    let mut done = Vec::new();
    let depth = queue.depth();
    assert_eq!(
        queue.wait(depth, &mut done).expect("a working queue"),
        depth
    );
}

// The simple path and the general path give the same, at every edge.
#[test]
fn simple_and_general_reads_agree_everywhere() {
    let bed = Bed::new(Policy::Best);
    for path in ["/data", "/hole"] {
        let file = bed.open(path);
        for offset in (0..=SIZE as u64 + BLOCK as u64).step_by(512) {
            for len in [512, 1024, 2048, BLOCK] {
                let read = |simple| {
                    bed.fs.set_simple(simple);
                    let mut buf = vec![0xee; len];
                    let bytes = file.read_at(&mut buf, offset).expect("readable");
                    (bytes, buf[..bytes].to_vec())
                };
                assert_eq!(read(true), read(false), "{path}: {len} at {offset}");
            }
        }
    }
    let stats = bed.fs.stats();
    assert!(stats.reads_simple > 0 && stats.reads_general > stats.reads_simple);
}

#[test]
fn misaligned_read_is_refused_when_direct_and_copied_otherwise() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    let direct = OpenOptions::new()
        .read(true)
        .direct(true)
        .open(&bed.fs, "/data")
        .expect("it exists");
    let mut buf = vec![0; 5000];
    let error = direct.read_at(&mut buf, 3).expect_err("misaligned");
    assert_eq!(error.errno(), libc::EINVAL);
    let all = content();
    for (offset, len) in [(3, 5000), (4095, 2), (SIZE - 7, 4000), (0, 1)] {
        let mut buf = vec![0; len];
        let bytes = file.read_at(&mut buf, offset as u64).expect("readable");
        assert_eq!(
            buf[..bytes],
            all[offset..(offset + len).min(SIZE)],
            "{len} at {offset}"
        );
    }
}

#[test]
fn writes_that_need_metadata_work_under_every_policy() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/data");
        let hole = bed.open("/hole");
        let mut expected = content();
        let mut holes = vec![0; SIZE];
        let mut put = |file: &File, offset: usize, byte: u8, len: usize| {
            let content = match file.inode.ino == hole.inode.ino {
                true => &mut holes,
                false => &mut expected,
            };
            content.resize(content.len().max(offset + len), 0);
            content[offset..offset + len].fill(byte);
            let written = file.write_at(&vec![byte; len], offset as u64);
            assert_eq!(written.expect("room"), len, "{policy}");
        };
        put(&file, SIZE - BLOCK / 2, 7, BLOCK);
        put(&file, 100 * BLOCK, 8, BLOCK);
        put(&file, 101 * BLOCK + 100, 9, 1000);
        put(&hole, 0, 7, BLOCK);
        put(&hole, 3 * BLOCK + 512, 8, 512);
        put(&hole, 5 * BLOCK - 1, 9, 2 * BLOCK);
        let mut queue = bed.queue();
        queue
            .write(&hole, 20 * BLOCK as u64, block(7), 1)
            .expect("room");
        assert_eq!(
            reap_one(&mut queue).result.expect("room"),
            BLOCK,
            "{policy}"
        );
        holes[20 * BLOCK..21 * BLOCK].fill(7);
        for (file, expected) in [(&file, &expected), (&hole, &holes)] {
            let mut now = vec![0; expected.len() + 1];
            let len = file.read_at(&mut now, 0).expect("readable");
            assert_eq!(len, expected.len(), "{policy}");
            assert!(now[..len] == expected[..], "{policy}");
        }
    }
}

#[test]
fn overwrites_under_every_policy_are_read_back() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/data");
        let mut expected = content();
        let mut queue = bed.queue();
        let mut done = Vec::new();
        let requests = [
            (0, BLOCK),
            (512, 1024),
            (3 * BLOCK, 3 * BLOCK),
            (9 * BLOCK + 2048, 4096),
        ];
        for (number, (offset, len)) in requests.into_iter().enumerate() {
            let bytes = vec![0x80 + number as u8; len];
            assert_eq!(
                file.write_at(&bytes, offset as u64).expect("an overwrite"),
                len,
                "{policy}"
            );
            expected[offset..offset + len].copy_from_slice(&bytes);
        }
        for (number, (offset, len)) in requests.into_iter().enumerate() {
            let (at, bytes) = (offset + 20 * BLOCK, vec![0x90 + number as u8; len]);
            queue
                .write(&file, at as u64, Buf::copy_of(&bytes), 0)
                .expect("room");
            expected[at..at + len].copy_from_slice(&bytes);
            // Requests that overlap may complete in any order.
            assert_eq!(
                queue.wait(1, &mut done).expect("a working queue"),
                1,
                "{policy}"
            );
        }
        assert!(
            done.iter().all(|completion| completion.result.is_ok()),
            "{policy}: {done:?}"
        );
        let mut now = vec![0; SIZE];
        file.read_at(&mut now, 0).expect("readable");
        assert!(now == expected, "{policy}");
        assert!(file.metadata().mtime.secs > 1_600_000_000);
    }
}

#[test]
fn vectored_requests_are_one_request() {
    use std::io::{IoSlice, IoSliceMut};
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    let (one, two) = (vec![0xa1; 512], vec![0xa2; BLOCK]);
    let bytes = file
        .write_vectored_at(&[IoSlice::new(&one), IoSlice::new(&two)], 1024)
        .expect("an overwrite");
    assert_eq!(bytes, 512 + BLOCK);
    let (mut head, mut tail) = (vec![0; 1536], vec![0; BLOCK]);
    let bytes = file
        .read_vectored_at(
            &mut [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)],
            0,
        )
        .expect("readable");
    assert_eq!(bytes, 1536 + BLOCK);
    assert!(head[1024..].iter().all(|&byte| byte == 0xa1));
    assert!(tail.iter().all(|&byte| byte == 0xa2));
    let odd = vec![0xa3; 100];
    let bytes = file
        .write_vectored_at(&[IoSlice::new(&odd), IoSlice::new(&two[..412])], 0)
        .expect("odd pieces go through memory of their own");
    assert_eq!(bytes, 512);
    file.read_at(&mut head, 0).expect("readable");
    assert!(head[..100].iter().all(|&byte| byte == 0xa3));
    assert!(head[100..512].iter().all(|&byte| byte == 0xa2));
}

// After a failed flush nothing is written any more, by whichever way a request comes.
#[test]
fn failed_flush_refuses_blocking_and_queued_overwrites() {
    refused_after_failed_flush(|file, _| file.sync_data().map_err(Box::new));
}

#[test]
fn failed_flush_of_a_queue_refuses_blocking_and_queued_overwrites() {
    refused_after_failed_flush(|file, queue| {
        queue.sync_data(file, 1).expect("room");
        reap_one(queue).result.map(drop)
    });
}

fn refused_after_failed_flush(sync: impl Fn(&File, &mut Queue) -> Result<(), Box<Error>>) {
    let mut bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    let mut queue = bed.queue();
    bed.sim
        .inject(Fault::once(FaultOp::Flush, FaultKind::Io(libc::EIO)));
    for expected in [libc::EIO, libc::EROFS] {
        let error = sync(&file, &mut queue).expect_err("the flush fails");
        assert_eq!(error.errno(), expected);
    }
    let error = file.write_at(&block(7), 0).expect_err("it is latched");
    assert_eq!(error.errno(), libc::EROFS);
    queue.write(&file, 0, block(7), 1).expect("room");
    let error = reap_one(&mut queue).result.expect_err("it is latched");
    assert_eq!(error.errno(), libc::EROFS);
    let mut now = block(0);
    file.read_at(&mut now, 0).expect("readable");
    assert!(now.iter().all(|&byte| byte == 1), "nothing was written");
    drop((file, queue, bed.fs.0.take()));
}

#[test]
fn file_of_another_mount_is_refused() {
    let (bed, other) = (Bed::new(Policy::Best), Bed::new(Policy::Best));
    let file = other.open("/data");
    let mut queue = bed.queue();
    queue.read(&file, 0, block(0), 1).expect("room");
    let error = reap_one(&mut queue).result.expect_err("another device");
    assert_eq!(error.errno(), libc::EINVAL);
}

#[test]
fn dropped_queue_waits_for_what_is_in_flight() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    let mut queue = bed.queue();
    let hold = bed.sim.hold(None, FaultOp::Write);
    queue.write(&file, 0, block(0x77), 1).expect("room");
    queue.submit().expect("a working queue");
    let dropped = start(move || drop(queue));
    assert!(dropped.recv_timeout(A_WHILE).is_err());
    hold.release();
    assert_eq!(dropped.recv_timeout(SOON), Ok(()));
    let mut now = block(0);
    file.read_at(&mut now, 0).expect("readable");
    assert!(now.iter().all(|&byte| byte == 0x77));
}

#[test]
fn directory_of_another_mount_takes_no_names() {
    let (bed, other) = (Bed::new(Policy::Best), Bed::new(Policy::Best));
    let root = |bed: &Bed| bed.fs.root().expect("a root");
    let (here, there) = (root(&bed), root(&other));
    let mode = crate::RenameMode::Replace;
    let new = crate::NewFile::new(0o600);
    let file = here.lookup(b"data").expect("it exists");
    for result in [
        file.link(&there, b"new"),
        here.rename(b"data", &there, b"new", mode),
        here.rename_whiteout(b"data", &there, b"new", mode, &new),
    ] {
        assert_eq!(result.expect_err("another mount").errno(), libc::EXDEV);
    }
}

// What `explain` says and what a queue does.
#[test]
fn explain_tells_of_short_appending_and_indirect_writes_what_they_do() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    let most = file.mount.max_bytes_of(&file.inode);
    let explain = |file: &File, offset, len| {
        file.explain(crate::Direction::Write, offset, len, None)
            .expect("a sound tree")
    };
    let told = explain(&file, most - BLOCK as u64, 2 * BLOCK);
    assert_eq!((told.refused, told.len), (None, BLOCK));
    assert!(told.would_block);
    let append = crate::OpenOptions::new().append(true);
    let append = append.open(&bed.fs, "/data").expect("it exists");
    for offset in [0, u64::MAX - 4095, 1 << 44] {
        let told = explain(&append, offset, BLOCK);
        assert_eq!(told.refused, None);
        let mapping = told.steps.iter().find(|step| step.question == "mapping");
        let answer = &mapping.expect("a step").answer;
        assert!(answer.contains("of hole"), "{offset}: {answer}");
    }
}

// Explaining asks what the engine asks, limits included: no offset may overflow.
#[test]
fn explain_past_the_largest_file_is_refused() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    for offset in [u64::MAX - 4095, 1 << 63, 1 << 44] {
        let told = file
            .explain(crate::Direction::Write, offset, BLOCK, None)
            .expect("a sound tree");
        let refused = told.refused.expect("no file is that large");
        assert!(refused.contains("file too large"), "{refused}");
        let told = file
            .explain(crate::Direction::Read, offset, BLOCK, None)
            .expect("a sound tree");
        assert!(told.refused.is_none() && !told.simple, "reads end at EOF");
    }
}
