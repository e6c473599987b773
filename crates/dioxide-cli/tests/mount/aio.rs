//! Reads and writes by `io_submit`, as databases make them: the kernel sends them without waiting, and has so many under way as
//! `max_background` says.
#![allow(unsafe_code)]

use crate::bed::{Bed, SOON, each, limited, run, transports};
use crate::need_fuse;
use dioxide::Buf;
use dioxide_testkit::Image;
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// `struct iocb` of a read or write and `struct io_event`, in words of 64 bits.
type Iocb = [u64; 8];
type Event = [u64; 4];

/// A context of `io_setup`. Its end would wait for what is under way: it has none.
struct Context(libc::c_ulong);

impl Context {
    fn new() -> Context {
        let mut context = 0;
        // SAFETY: the kernel writes the one word.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, 8, &raw mut context) };
        assert_eq!(made, 0);
        Context(context)
    }

    /// Submits a read of 4 KiB.
    fn read(&self, file: &File, offset: u64) {
        const PREAD: u64 = 0;
        self.submit(PREAD, file, Buf::zeroed(4096), offset);
    }

    /// Submits a write.
    fn write(&self, file: &File, data: &[u8], offset: u64) {
        const PWRITE: u64 = 1;
        self.submit(PWRITE, file, Buf::copy_of(data), offset);
    }

    /// The memory is never given back: it could be long before what goes there comes.
    fn submit(&self, command: u64, file: &File, buf: Buf, offset: u64) {
        let operation = command | (file.as_raw_fd() as u64) << 32;
        let buf = Box::leak(Box::new(buf));
        let at = buf.as_mut_ptr() as u64;
        let mut one: Iocb = [0, 0, operation, at, buf.len() as u64, offset, 0, 0];
        let mut all = [&raw mut one];
        // SAFETY: the kernel copies the structure, and uses the buffer alone, which nobody else does.
        let given = unsafe { libc::syscall(libc::SYS_io_submit, self.0, 1, all.as_mut_ptr()) };
        assert_eq!(given, 1);
    }

    /// What one came to; none if that takes too long.
    fn wait(&self) -> Option<i64> {
        let mut event: Event = [0; 4];
        let most = libc::timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        let (event_at, most) = (&raw mut event, &raw const most);
        // SAFETY: there is room for the one event.
        let got = unsafe { libc::syscall(libc::SYS_io_getevents, self.0, 1, 1, event_at, most) };
        (got == 1).then_some(event[2] as i64)
    }
}

/// Stops a server, all of its threads.
fn stop(bed: &Bed) {
    bed.signal(Signal::STOP);
    let tasks = format!("/proc/{}/task", bed.pid());
    let stopped = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status"));
        status.is_ok_and(|status| status.contains("State:\tT"))
    };
    let until = Instant::now() + SOON;
    while !fs::read_dir(&tasks).unwrap().flatten().all(stopped) {
        assert!(Instant::now() < until, "it does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One that comes to the end of a file has the kernel write its pages, which it sends without waiting too. All come from one processor,
/// and so through one ring.
#[test]
fn reads_that_have_pages_written_leave_them_a_way_however_few_are_under_way() {
    need_fuse!();
    let mut set = CpuSet::new();
    set.set(0);
    // For the server too.
    sched_setaffinity(None, &set).unwrap();
    let context = Context::new();
    for (transport, backend) in transports()
        .iter()
        .flat_map(|transport| ["auto", "uring"].map(|backend| (transport, backend)))
    {
        let image = Image::builder().size(16 << 20).build();
        let options = format!("{transport},backend={backend},max_background=1");
        let bed = Bed::with(image, &options);
        let open = |name| {
            let file = File::create(bed.at(name)).unwrap();
            let mut direct = File::options();
            let direct = direct.read(true).custom_flags(libc::O_DIRECT);
            // An open has pages written.
            let direct = direct.open(bed.at(name)).unwrap();
            file.write_all_at(&[1; 100], 8192).unwrap();
            (direct, file)
        };
        let alone = open("alone");
        context.read(&alone.0, 0);
        assert_eq!(context.wait(), Some(4096), "{options}");
        // As many as are under way, and there before one of them is answered. One of them may be one too many.
        let beside = ["a", "b"].map(open);
        stop(&bed);
        std::thread::scope(|scope| {
            let (submitted, are_submitted) = channel::<()>();
            let (context, beside) = (&context, &beside);
            scope.spawn(move || {
                for (direct, _) in beside {
                    context.read(direct, 0);
                }
                drop(submitted);
            });
            // Where the kernel has begun to write the pages by itself there is no room for another, and its submitter waits for a server
            // that is stopped.
            let _ = are_submitted.recv_timeout(Duration::from_secs(1));
            bed.signal(Signal::CONT);
        });
        for _ in &beside {
            let read = context.wait();
            let told = [Some(4096), Some(-i64::from(libc::EAGAIN))];
            assert!(told.contains(&read), "{options}: {read:?}");
        }
        drop((alone, beside));
        bed.finish();
    }
}

/// One append to an append-only file, which the kernel sends in parts of 1 MiB at once: several threads write them.
#[test]
fn append_in_parts_is_stored_in_their_order() {
    need_fuse!();
    const TIMES: usize = 6;
    let context = Context::new();
    let block = |number: usize| (number as u64).to_le_bytes().repeat(512);
    let data: Vec<u8> = (0..16 << 20 >> 12).flat_map(block).collect();
    for bed in each("") {
        let path = bed.at("log");
        fs::write(&path, b"").unwrap();
        run(limited("chattr").arg("+a").arg(&path));
        let mut log = File::options();
        let log = log.append(true).custom_flags(libc::O_DIRECT);
        let log = log.open(&path).unwrap();
        for _ in 0..TIMES {
            context.write(&log, &data, 0);
            assert_eq!(context.wait(), Some(data.len() as i64));
        }
        drop(log);
        bed.forget();
        assert!(fs::read(&path).unwrap() == data.repeat(TIMES));
        bed.finish();
    }
}
