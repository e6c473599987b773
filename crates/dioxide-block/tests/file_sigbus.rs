//! A mapping never turns a truncated image or a full file system into a signal that kills.
#![allow(unsafe_code)]

mod host;

use dioxide_block::file::{Backend, FileOptions};
use dioxide_block::{Buf, Device, Durability, Error};
use host::{MIB, Mount, is_root, pattern, writable};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

fn read(device: &dyn Device, offset: u64, len: usize) -> Result<Buf, Error> {
    let mut buf = Buf::zeroed(len);
    device.read_at(offset, &mut buf)?;
    Ok(buf)
}

fn put(device: &dyn Device, offset: u64, buf: &[u8]) -> Result<(), Error> {
    device.write_at(offset, buf, Durability::Cached)
}

#[test]
fn truncated_image_read_through_its_mapping_is_an_error() {
    for file in [host::shm_file(4 * MIB), host::disk_file(4 * MIB)] {
        let device = host::open(file.path(), &writable(Backend::Mmap));
        put(&*device, 0, &pattern(1, 65536)).unwrap();
        file.as_file().set_len(65536).unwrap();
        for len in [512, 4096, 2 << 20] {
            let error = read(&*device, MIB, len).unwrap_err();
            assert!(matches!(error, Error::Io { op: "read", .. }), "{error}");
        }
        // Across the new end too.
        assert!(read(&*device, 61440, 8192).is_err());
        assert_eq!(read(&*device, 0, 65536).unwrap()[..], pattern(1, 65536)[..]);
        // As pwrite does: the file grows again.
        put(&*device, MIB, &pattern(2, 4096)).unwrap();
        assert_eq!(read(&*device, MIB, 4096).unwrap()[..], pattern(2, 4096)[..]);
        device.flush().unwrap();
        let mut bytes = vec![0; 4096];
        file.as_file().read_exact_at(&mut bytes, MIB).unwrap();
        assert_eq!(bytes[..], pattern(2, 4096)[..]);
    }
}

#[test]
fn truncated_image_written_through_its_mapping_keeps_the_bytes() {
    let file = host::shm_file(4 * MIB);
    let device = host::open(file.path(), &writable(Backend::Mmap));
    file.as_file().set_len(0).unwrap();
    put(&*device, 3 * MIB, &pattern(3, 1 << 20)).unwrap();
    let mut bytes = vec![0; 1 << 20];
    file.as_file().read_exact_at(&mut bytes, 3 * MIB).unwrap();
    assert!(bytes[..] == pattern(3, 1 << 20)[..]);
}

#[test]
fn lost_mapping_leaves_others_alone() {
    let files: Vec<_> = (0..3).map(|_| host::shm_file(MIB)).collect();
    let devices: Vec<_> = files
        .iter()
        .map(|f| host::open(f.path(), &writable(Backend::Mmap)))
        .collect();
    for (i, device) in devices.iter().enumerate() {
        put(&**device, 0, &pattern(i as u64, 4096)).unwrap();
    }
    files[1].as_file().set_len(0).unwrap();
    assert!(read(&*devices[1], 0, 4096).is_err());
    for i in [0, 2] {
        assert_eq!(
            read(&*devices[i], 0, 4096).unwrap()[..],
            pattern(i as u64, 4096)[..]
        );
        let lost = format!("{:?}", devices[i]);
        assert!(lost.contains("lost: false"), "{lost}");
    }
}

#[test]
fn mapping_reopened_after_a_loss_is_whole_again() {
    for _ in 0..600 {
        let file = host::shm_file(8192);
        let device = host::open(file.path(), &writable(Backend::Mmap));
        put(&*device, 4096, &pattern(1, 4096)).unwrap();
        assert!(format!("{device:?}").contains("lost: false"));
        file.as_file().set_len(4096).unwrap();
        assert!(read(&*device, 4096, 4096).is_err());
        assert!(format!("{device:?}").contains("lost: true"));
    }
}

#[test]
fn full_tmpfs_written_through_a_mapping_is_enospc() {
    if !is_root() {
        return;
    }
    let mount = Mount::tmpfs(MIB);
    let image = mount.dir.path().join("image");
    std::fs::File::create(&image)
        .unwrap()
        .set_len(8 * MIB)
        .unwrap();
    let device = host::open(&image, &writable(Backend::Mmap));
    let mut kept = Vec::new();
    let mut refused = 0;
    for i in 0..(8 * MIB / 65536) {
        match put(&*device, i * 65536, &pattern(i, 65536)) {
            Ok(()) => kept.push(i),
            Err(e) => {
                assert_eq!(e.errno(), libc::ENOSPC, "{e}");
                refused += 1;
            }
        }
    }
    assert!(refused > 100 && kept.len() >= 14, "{refused} {kept:?}");
    for i in kept {
        assert!(read(&*device, i * 65536, 65536).unwrap()[..] == pattern(i, 65536)[..]);
    }
}

/// The race of the proof in `sigbus`: while one thread's fault replaces a page, others write into the
/// same page. What was reported as written must be in the file.
#[test]
fn concurrent_writers_into_a_lost_page_lose_nothing() {
    if !is_root() {
        return;
    }
    const THREADS: u64 = 4;
    const PAGES: u64 = 64;
    for round in 0..60 {
        let mount = Mount::tmpfs(MIB / 8);
        let image = mount.dir.path().join("image");
        let file = std::fs::File::create_new(&image).unwrap();
        file.set_len(PAGES * 4096).unwrap();
        let device = host::open(&image, &writable(Backend::Mmap));
        let barrier = Barrier::new(THREADS as usize);
        // Each thread writes its own part of every page, all in step.
        let kept: Vec<(u64, u64)> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (device, barrier) = (&device, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        (0..PAGES)
                            .filter(|page| {
                                let offset = page * 4096 + thread * 1024;
                                put(&**device, offset, &pattern(page + thread, 1024)).is_ok()
                            })
                            .map(|page| (page, thread))
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            writers
                .into_iter()
                .flat_map(|w| w.join().unwrap())
                .collect()
        });
        assert!(
            kept.len() < (THREADS * PAGES) as usize,
            "the file system was full"
        );
        drop(device);
        let mut bytes = [0; 1024];
        let file = std::fs::File::open(&image).unwrap();
        for (page, thread) in kept {
            file.read_exact_at(&mut bytes, page * 4096 + thread * 1024)
                .unwrap();
            assert!(
                bytes == pattern(page + thread, 1024)[..],
                "round {round} page {page}"
            );
        }
    }
}

#[test]
fn populated_mapping_allocates_no_holes() {
    use std::os::unix::fs::MetadataExt;
    let file = host::shm_file(64 * MIB);
    file.as_file()
        .write_all_at(&pattern(1, 8192), 40 * MIB + 100)
        .unwrap();
    let before = file.as_file().metadata().unwrap().blocks();
    for write in [true, false] {
        let options = FileOptions {
            write,
            populate: true,
            img_offset: 512,
            ..writable(Backend::Mmap)
        };
        let device = host::open(file.path(), &options);
        let found = read(&*device, 40 * MIB - 512, 8704).unwrap();
        assert_eq!(found[100..100 + 8192], pattern(1, 8192)[..]);
        assert_eq!(file.as_file().metadata().unwrap().blocks(), before);
    }
}

#[test]
fn populated_mapping_lies_in_large_pages_where_the_kernel_has_them() {
    use std::os::unix::fs::MetadataExt;
    let settings = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let setting = std::fs::read_to_string(settings).unwrap_or("[deny]".into());
    if setting.contains("[deny]") || kernel() < [6, 1] {
        eprintln!("skipped: no large pages for files in memory here");
        return;
    }
    let file = host::shm_file(64 * MIB);
    let bytes = pattern(5, 9 << 20);
    file.as_file().write_all_at(&bytes, MIB).unwrap();
    let before = file.as_file().metadata().unwrap().blocks();
    for img_offset in [0, 512, MIB] {
        let options = FileOptions {
            populate: true,
            img_offset,
            ..writable(Backend::Mmap)
        };
        let device = host::open(file.path(), &options);
        let name = file.path().file_name().unwrap().to_str().unwrap();
        assert!(
            mapped_large(name) >= 6 * MIB,
            "{} at {img_offset}",
            mapped_large(name)
        );
        let found = read(&*device, MIB - img_offset, bytes.len()).unwrap();
        assert!(found[..] == bytes[..], "image at {img_offset}");
        let (at, old) = (5 * MIB, &bytes[4 << 20..][..4096]);
        for new in [&bytes[..4096], old] {
            put(&*device, at - img_offset, new).unwrap();
            let mut there = vec![0; 4096];
            file.as_file().read_exact_at(&mut there, at).unwrap();
            assert!(there == new, "image at {img_offset}");
        }
        assert_eq!(file.as_file().metadata().unwrap().blocks(), before);
    }
}

/// The running kernel's version.
fn kernel() -> [u32; 2] {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    [(); 2].map(|()| numbers.next().unwrap().parse().unwrap())
}

/// Bytes of a file in memory that this process has mapped in large pages.
fn mapped_large(name: &str) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let ours = maps.lines().skip_while(|line| !line.ends_with(name));
    let kib = ours
        .filter_map(|line| line.strip_prefix("ShmemPmdMapped:"))
        .map(|rest| rest.trim_end_matches("kB").trim().parse::<u64>().unwrap());
    kib.take(1).sum::<u64>() << 10
}

/// Runs one of the `child_*` functions below in a process of its own.
fn child(name: &str) -> ExitStatus {
    let test = std::env::current_exe().unwrap();
    let mut command = Command::new(test);
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    command.stdout(std::process::Stdio::null());
    command.stderr(std::process::Stdio::null());
    command.status().unwrap()
}

/// A mapping that is not ours, without a page behind it.
fn foreign_fault() -> u8 {
    let file = host::shm_file(0);
    // SAFETY: a fresh mapping of a file; reading it raises SIGBUS, which is the point.
    unsafe {
        use std::os::fd::AsRawFd;
        let fd = file.as_file().as_raw_fd();
        let at = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_SHARED,
            fd,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        drop(file);
        std::ptr::read_volatile(at.cast::<u8>())
    }
}

fn lose_one_mapping() {
    let file = host::shm_file(MIB);
    let device = host::open(file.path(), &writable(Backend::Mmap));
    file.as_file().set_len(0).unwrap();
    assert!(read(&*device, 0, 4096).is_err());
}

#[test]
fn fault_elsewhere_kills_as_without_us() {
    assert_eq!(child("child_faults_elsewhere").signal(), Some(libc::SIGBUS));
}

#[test]
#[ignore = "runs as a child of fault_elsewhere_kills_as_without_us"]
fn child_faults_elsewhere() {
    lose_one_mapping();
    foreign_fault();
}

#[test]
fn signal_that_was_sent_takes_the_default_action() {
    assert_eq!(
        child("child_sends_itself_the_signal").signal(),
        Some(libc::SIGBUS)
    );
}

#[test]
#[ignore = "runs as a child of signal_that_was_sent_takes_the_default_action"]
fn child_sends_itself_the_signal() {
    // Rust's runtime has a handler that ignores the first one.
    // SAFETY: the default action needs no handler.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    lose_one_mapping();
    // SAFETY: sends a signal to this thread.
    unsafe { libc::raise(libc::SIGBUS) };
    std::thread::sleep(std::time::Duration::from_secs(5));
}

#[test]
fn fault_elsewhere_reaches_the_handler_that_was_there() {
    assert_eq!(child("child_with_a_handler_of_its_own").code(), Some(42));
}

static FAULTS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn own_handler(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    FAULTS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: as in any handler; `_exit` may be called in one.
    unsafe { libc::_exit(if (*info).si_addr().is_null() { 1 } else { 42 }) }
}

#[test]
#[ignore = "runs as a child of fault_elsewhere_reaches_the_handler_that_was_there"]
fn child_with_a_handler_of_its_own() {
    // SAFETY: installs a handler of the right signature.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = own_handler as extern "C" fn(_, _, _) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()),
            0
        );
    }
    lose_one_mapping();
    assert_eq!(FAULTS.load(Ordering::SeqCst), 0, "ours are not passed on");
    foreign_fault();
}
