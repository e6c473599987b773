//! What `file::open` refuses, chooses and measures.

#![allow(unsafe_code)]

mod host;

use dioxide_block::file::{self, Backend, FileOptions, NullSink, Replacing};
use dioxide_block::mem::MemDevice;
use dioxide_block::{Buf, Device, Durability, Error, Op, OpKind, QueueOptions, Segs};
use host::{LoopDevice, MIB, Mount, op, pattern, push, run_one, seg, writable};
use std::fs::FileTimes;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tempfile::NamedTempFile;

fn busy_by(path: &Path, options: &FileOptions) -> String {
    match file::open(path, options) {
        Err(Error::Busy { by, path: named }) => {
            assert_eq!(named, path);
            by
        }
        other => panic!("not busy: {other:?}"),
    }
}

fn write_anyhow() -> FileOptions {
    writable(Backend::Auto)
}

#[test]
fn auto_on_tmpfs_is_inline_pread() {
    let file = host::shm_file(MIB);
    let device = host::open(file.path(), &FileOptions::default());
    assert!(
        device.describe().starts_with("pread on "),
        "{}",
        device.describe()
    );
    assert!(device.geometry().inline);
    assert!(!device.geometry().volatile_cache);
}

#[test]
fn auto_on_a_disk_file_is_direct_io_uring() {
    let file = host::disk_file(MIB);
    let device = host::open(file.path(), &write_anyhow());
    assert!(
        device.describe().starts_with("io_uring on "),
        "{}",
        device.describe()
    );
    assert!(device.describe().ends_with("(direct)"));
    let geometry = device.geometry();
    assert!(!geometry.inline && geometry.volatile_cache && geometry.discard);
    assert_eq!(geometry.logical_block_bytes, 512);
}

#[test]
fn reads_leave_the_time_of_access_of_the_image() {
    for (file, backend) in [
        (host::shm_file(MIB), Backend::Pread),
        (host::disk_file(MIB), Backend::Uring),
    ] {
        // So long ago that `relatime` has it written at the next access.
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let times = FileTimes::new().set_accessed(long_ago);
        file.as_file().set_times(times).expect("it is ours");
        let device = host::open(file.path(), &writable(backend));
        let mut queue = device.open_queue(&QueueOptions::default()).unwrap();
        let read = op(OpKind::Read, Buf::zeroed(4096), 0);
        run_one(&mut *queue, read).result.unwrap();
        let metadata = file.as_file().metadata().expect("it is open");
        assert_eq!(metadata.accessed().expect("Linux has it"), long_ago);
    }
}

/// Linux opens it for writing, and refuses the writes.
#[test]
fn device_under_write_protection_is_only_read() {
    if !host::is_root() {
        return;
    }
    let file = host::shm_file(MIB);
    let attached = LoopDevice::attach(file.path());
    let path = attached.path.to_str().expect("UTF-8");
    host::run("blockdev", &["--setro", path]);
    match file::open(&attached.path, &write_anyhow()) {
        Err(error) => assert_eq!(error.errno(), libc::EROFS, "{error}"),
        Ok(device) => panic!("opened for writing: {}", device.describe()),
    }
    drop(host::open(&attached.path, &FileOptions::default()));
    host::run("blockdev", &["--setrw", path]);
    drop(host::open(&attached.path, &write_anyhow()));
}

#[test]
fn auto_on_a_loop_device_is_direct_io_uring() {
    if !host::is_root() {
        return;
    }
    let file = host::shm_file(MIB);
    let attached = LoopDevice::attach(file.path());
    let device = host::open(&attached.path, &write_anyhow());
    assert!(
        device.describe().starts_with("io_uring on loop"),
        "{}",
        device.describe()
    );
    assert_eq!(device.geometry().size_bytes, MIB);
}

#[test]
fn read_only_device_refuses_every_change() {
    for backend in [Backend::Pread, Backend::Uring, Backend::Mmap] {
        let file = host::disk_file(MIB);
        let options = FileOptions {
            backend,
            ..FileOptions::default()
        };
        let device = host::open(file.path(), &options);
        assert!(device.geometry().read_only);
        let buf = Buf::zeroed(512);
        let refused = [
            device.write_at(0, &buf, Durability::Cached),
            device.write_at(0, &buf, Durability::ForceUnitAccess),
            device.write_zeroes(0, 512),
            device.discard(0, 512),
        ];
        for result in refused {
            assert!(matches!(result, Err(Error::ReadOnly { .. })), "{result:?}");
        }
        device.flush().expect("nothing to flush");
        let mut queue = device.open_queue(&QueueOptions::default()).unwrap();
        let done = run_one(&mut *queue, op(OpKind::Write, buf, 0));
        assert!(matches!(*done.result.unwrap_err(), Error::ReadOnly { .. }));
        run_one(&mut *queue, host::flush_op()).result.unwrap();
    }
}

#[test]
fn image_locked_by_a_writer_is_refused_to_all() {
    let file = host::shm_file(MIB);
    let writer = host::open(file.path(), &write_anyhow());
    assert!(busy_by(file.path(), &write_anyhow()).contains("locked for writing by this process"));
    let reader = busy_by(file.path(), &FileOptions::default());
    assert!(
        reader.contains("locked for writing by this process"),
        "{reader}"
    );
    // A queue keeps the image.
    let queue = writer.open_queue(&QueueOptions::default()).unwrap();
    drop(writer);
    busy_by(file.path(), &FileOptions::default());
    drop(queue);
    host::open(file.path(), &write_anyhow());
}

#[test]
fn image_with_readers_is_shared_and_refused_to_a_writer() {
    let file = host::disk_file(MIB);
    let first = host::open(file.path(), &FileOptions::default());
    let second = host::open(file.path(), &FileOptions::default());
    busy_by(file.path(), &write_anyhow());
    drop((first, second));
    host::open(file.path(), &write_anyhow());
}

#[test]
fn image_locked_by_another_process_is_refused_by_its_name() {
    let file = host::shm_file(MIB);
    // flock(1) uses another kind of lock; this one takes an OFD lock through Python's fcntl.
    let script = "import fcntl,struct,sys,time\n\
        f=open(sys.argv[1],'r+b')\n\
        fcntl.fcntl(f,37,struct.pack('hhqqi4x',fcntl.F_WRLCK,0,0,0,0))\n\
        print('locked',flush=True)\n\
        sys.stdin.read()";
    let child = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(file.path())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: needs python3");
        return;
    };
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!(line, "locked\n");
    let by = busy_by(file.path(), &write_anyhow());
    drop(child.stdin.take());
    let id = child.id();
    child.wait().unwrap();
    assert!(by.contains(&format!("process {id} (python3")), "{by}");
    host::open(file.path(), &write_anyhow());
}

#[test]
fn image_attached_to_a_loop_device_is_refused_to_a_writer() {
    if !host::is_root() {
        return;
    }
    let file = host::disk_file(8 * MIB);
    let attached = LoopDevice::attach(file.path());
    let name = attached.path.to_str().unwrap();
    let expected = format!("attached to {name}");
    assert!(busy_by(file.path(), &write_anyhow()).starts_with(&format!("{expected};")));
    assert_eq!(file::in_use_by(file.path()), Some(expected));
    // Under another name it is the same file.
    let link = tempfile::TempDir::new_in(host::disk()).unwrap();
    let other = link.path().join("hard");
    std::fs::hard_link(file.path(), &other).unwrap();
    assert!(busy_by(&other, &write_anyhow()).contains(name));
    host::open(file.path(), &FileOptions::default());
    drop(attached);
    assert_eq!(file::in_use_by(file.path()), None);
    host::open(file.path(), &write_anyhow());
}

#[test]
fn file_that_is_replaced_is_kept_from_others_and_refused_if_somebody_has_it() {
    let file = host::disk_file(MIB);
    let refused = || match Replacing::begin(file.path()) {
        Err(Error::Busy { by, .. }) => by,
        other => panic!("{other:?}"),
    };
    for options in [write_anyhow(), FileOptions::default()] {
        let holder = host::open(file.path(), &options);
        assert!(refused().starts_with("locked by this process itself;"));
        drop(holder);
    }
    let held = Replacing::begin(file.path()).unwrap();
    busy_by(file.path(), &FileOptions::default());
    refused();
    drop(held);
    host::open(file.path(), &write_anyhow());
    // A name that comes to be somebody's meanwhile.
    let dir = tempfile::TempDir::new_in(host::disk()).unwrap();
    let image = dir.path().join("new");
    let mut none = Replacing::begin(&image).unwrap();
    std::fs::write(&image, [0; 4096]).unwrap();
    let holder = host::open(&image, &write_anyhow());
    assert!(matches!(none.check(), Err(Error::Busy { .. })));
    drop(holder);
    none.check().unwrap();
    // Neither symlinks nor directories hold an image.
    std::os::unix::fs::symlink(&image, dir.path().join("link")).unwrap();
    Replacing::begin(dir.path().join("link")).unwrap();
    Replacing::begin(dir.path()).unwrap();
}

/// What a process has that was forked a moment ago: copies of our descriptors of a file.
fn copies_of(file: &Path) -> Vec<OwnedFd> {
    let this = rustix::process::getpid();
    let this = rustix::process::pidfd_open(this, rustix::process::PidfdFlags::empty()).unwrap();
    let copy = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let is_it = std::fs::read_link(entry.path()).is_ok_and(|to| to == file);
        let fd = entry.file_name().to_str()?.parse().ok().filter(|_| is_it)?;
        let flags = rustix::process::PidfdGetfdFlags::empty();
        Some(rustix::process::pidfd_getfd(&this, fd, flags).unwrap())
    };
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    open.filter_map(copy).collect()
}

#[test]
fn lock_ends_with_its_holder_and_not_with_copies_of_its_descriptors() {
    let file = NamedTempFile::new_in(host::disk())
        .unwrap()
        .into_temp_path();
    std::fs::write(&file, [0; 4096]).unwrap();
    let path = file.canonicalize().unwrap();
    let copied = |holder: Box<dyn std::any::Any>| {
        let copies = copies_of(&path);
        assert!(!copies.is_empty());
        busy_by(&path, &write_anyhow());
        drop(holder);
        host::open(&path, &write_anyhow());
        drop(copies);
    };
    copied(Box::new(host::open(&path, &write_anyhow())));
    copied(Box::new(host::open(&path, &FileOptions::default())));
    copied(Box::new(Replacing::begin(&path).unwrap()));
}

#[test]
fn file_that_is_attached_while_it_is_to_be_replaced_is_refused_in_the_end() {
    if !host::is_root() {
        return;
    }
    let file = host::disk_file(MIB);
    let mut held = Replacing::begin(file.path()).unwrap();
    let attached = LoopDevice::attach(file.path());
    let error = held.check().unwrap_err().to_string();
    assert!(error.contains(attached.path.to_str().unwrap()), "{error}");
    drop(attached);
    held.check().unwrap();
}

#[test]
fn attached_image_that_was_renamed_is_still_found() {
    if !host::is_root() {
        return;
    }
    let dir = tempfile::TempDir::new_in(host::disk()).unwrap();
    let image = dir.path().join("a");
    std::fs::File::create(&image).unwrap().set_len(MIB).unwrap();
    let _attached = LoopDevice::attach(&image);
    let renamed = dir.path().join("b");
    std::fs::hard_link(&image, &renamed).unwrap();
    std::fs::remove_file(&image).unwrap();
    busy_by(&renamed, &write_anyhow());
}

#[test]
fn mounted_file_system_is_refused_to_a_writer() {
    if !host::is_root() {
        return;
    }
    let file = host::disk_file(8 * MIB);
    let attached = LoopDevice::attach(file.path());
    let mount = Mount::ext4(&attached.path);
    let dir = mount.dir.path().to_str().unwrap();
    let device = busy_by(&attached.path, &write_anyhow());
    assert!(device.contains(&format!("mounted on {dir}")), "{device}");
    let image = busy_by(file.path(), &write_anyhow());
    assert!(image.contains("which is mounted on"), "{image}");
    assert!(file::in_use_by(&attached.path).unwrap().contains(dir));
    host::open(&attached.path, &FileOptions::default());
    drop(mount);
    host::open(&attached.path, &write_anyhow());
}

#[test]
fn block_device_claimed_by_a_writer_is_refused_to_another() {
    if !host::is_root() {
        return;
    }
    let file = host::disk_file(MIB);
    let attached = LoopDevice::attach(file.path());
    let _writer = host::open(&attached.path, &write_anyhow());
    busy_by(&attached.path, &write_anyhow());
    busy_by(&attached.path, &FileOptions::default());
}

/// Two ranges of one file are two devices; so are two loop devices over them, and the file behind each is locked as well.
#[test]
fn ranges_that_do_not_meet_are_open_at_once_by_file_and_by_loop_device() {
    let file = host::disk_file(4 * MIB);
    let range = |img_offset, size_bytes| FileOptions {
        img_offset,
        size_bytes: Some(size_bytes),
        ..write_anyhow()
    };
    let first = host::open(file.path(), &range(0, 2 * MIB));
    let second = host::open(file.path(), &range(2 * MIB, MIB));
    busy_by(file.path(), &range(MIB, 2 * MIB));
    busy_by(file.path(), &write_anyhow());
    drop(second);
    if !host::is_root() {
        return;
    }
    let attached = LoopDevice::attach(file.path());
    let by = busy_by(&attached.path, &write_anyhow());
    assert!(
        by.starts_with("its backing file is locked for writing by"),
        "{by}"
    );
    let nested = LoopDevice::attach(&attached.path);
    busy_by(&nested.path, &FileOptions::default());
    busy_by(&nested.path, &range(MIB, MIB));
    let third = host::open(&nested.path, &range(3 * MIB, MIB));
    drop(first);
    busy_by(&attached.path, &write_anyhow());
    drop(third);
    drop(host::open(&nested.path, &write_anyhow()));
}

/// The size of a device is known: nothing behind it is locked.
#[test]
fn loop_devices_of_parts_of_a_file_are_open_at_once() {
    if !host::is_root() {
        return;
    }
    let file = host::disk_file(4 * MIB);
    let attach = |at: u64, len: u64| {
        let (at, len) = ((at * MIB).to_string(), (len * MIB).to_string());
        LoopDevice::attach_with(file.path(), &["-o", &at, "--sizelimit", &len])
    };
    let (first, second, third) = (attach(0, 2), attach(2, 1), attach(1, 2));
    let opened = host::open(&first.path, &write_anyhow());
    assert_eq!(opened.geometry().size_bytes, 2 * MIB);
    let other = host::open(&second.path, &write_anyhow());
    busy_by(&third.path, &write_anyhow());
    drop(opened);
    busy_by(&third.path, &write_anyhow());
    drop(other);
    drop(host::open(&third.path, &write_anyhow()));
}

/// What lies in the middle of the device's sectors goes through the page cache, and the device is told of none of it.
#[test]
fn zeros_in_a_part_that_begins_inside_a_sector_are_written() {
    if !host::is_root() {
        return;
    }
    const AT: u64 = 63 * 512;
    let file = host::disk_file(4 * MIB);
    let attached = LoopDevice::attach_with(file.path(), &["--sector-size", "4096"]);
    let part = FileOptions {
        img_offset: AT,
        ..write_anyhow()
    };
    let device = host::open(&attached.path, &part);
    assert!(!device.geometry().discard);
    let data = [7; 16384];
    device
        .write_at(0, &data, Durability::Cached)
        .expect("a write");
    device.write_zeroes(4096, 8192).expect("zeros");
    let mut found = [1; 16384];
    device.read_at(0, &mut found).expect("a read");
    assert!(found[..4096].iter().chain(&found[12288..]).all(|&b| b == 7));
    assert!(found[4096..12288].iter().all(|&byte| byte == 0));
}

/// QEMU locks bytes at the beginning, whatever it uses of the image.
#[test]
fn partition_of_an_image_that_qemu_has_is_refused_to_a_writer() {
    let file = host::disk_file(4 * MIB);
    let partition = FileOptions {
        img_offset: MIB,
        size_bytes: Some(MIB),
        ..write_anyhow()
    };
    let reader = FileOptions {
        write: false,
        ..partition.clone()
    };
    // Of a disk that nobody else may write, and of one that its guest writes and others may (`share-rw=on`).
    for locked in [[100, 101, 103, 201, 203].as_slice(), &[100, 101, 103]] {
        let qemu = std::fs::File::open(file.path()).expect("the image");
        let lock = |kind: libc::c_int, start: i64, len: i64| {
            // SAFETY: all zeros is a valid `struct flock`.
            let mut request: libc::flock = unsafe { std::mem::zeroed() };
            (request.l_type, request.l_whence) = (kind as _, libc::SEEK_SET as _);
            (request.l_start, request.l_len) = (start, len);
            // SAFETY: the descriptor is open, and the struct is read during the call only.
            let done = unsafe { libc::fcntl(qemu.as_raw_fd(), libc::F_OFD_SETLK, &request) };
            assert_eq!(done, 0);
        };
        locked.iter().for_each(|&byte| lock(libc::F_RDLCK, byte, 1));
        let by = busy_by(file.path(), &partition);
        assert!(by.starts_with("locked by"), "{locked:?}: {by}");
        drop(host::open(file.path(), &reader));
        // Closing it would leave the locks to a process that another test is starting just now.
        lock(libc::F_UNLCK, 0, 0);
        drop(host::open(file.path(), &partition));
    }
}

#[test]
fn img_offset_and_size_cut_the_device_out_of_the_file() {
    let file = host::disk_file(4 * MIB);
    for (img_offset, backend) in [
        (MIB, Backend::Uring),
        (MIB + 512, Backend::Pread),
        (MIB + 100, Backend::Pread),
        (MIB + 100, Backend::Mmap),
    ] {
        let options = FileOptions {
            img_offset,
            size_bytes: Some(8192 + 7),
            ..writable(backend)
        };
        let device = host::open(file.path(), &options);
        assert_eq!(device.geometry().size_bytes, 8192, "whole blocks");
        device
            .write_at(4096, &pattern(img_offset, 4096), Durability::Cached)
            .unwrap();
        let past = device.read_at(8192, &mut Buf::zeroed(512));
        assert!(matches!(past, Err(Error::OutOfRange { size: 8192, .. })));
        drop(device);
        let bytes = std::fs::read(file.path()).unwrap();
        let at = img_offset as usize + 4096;
        assert_eq!(bytes[at..at + 4096], pattern(img_offset, 4096)[..]);
    }
}

#[test]
fn range_outside_the_file_is_refused() {
    let file = host::disk_file(MIB);
    let past = FileOptions {
        img_offset: MIB + 1,
        ..FileOptions::default()
    };
    let long = FileOptions {
        img_offset: 512,
        size_bytes: Some(MIB),
        ..FileOptions::default()
    };
    for options in [past, long] {
        let error = file::open(file.path(), &options).unwrap_err();
        let end = format!("past the end at byte {MIB}: ");
        assert!(error.to_string().contains(&end), "{error}");
        assert_eq!(error.errno(), libc::EINVAL);
    }
}

#[test]
fn offset_that_direct_io_refuses_goes_through_the_page_cache() {
    let file = host::disk_file(MIB);
    let options = FileOptions {
        img_offset: 100,
        ..FileOptions::default()
    };
    let device = host::open(file.path(), &options);
    assert!(
        device.describe().ends_with("(page cache)"),
        "{}",
        device.describe()
    );
}

#[test]
fn path_that_is_no_image_is_refused() {
    let missing = file::open("/nonexistent/image", &FileOptions::default()).unwrap_err();
    assert_eq!(missing.errno(), libc::ENOENT);
    let folder = file::open("/dev", &FileOptions::default()).unwrap_err();
    assert_eq!(folder.errno(), libc::EISDIR);
    let device = file::open("/dev/null", &FileOptions::default()).unwrap_err();
    assert_eq!(device.errno(), libc::ENOTBLK);
    for (error, path) in [(folder, "/dev"), (device, "/dev/null")] {
        let words = format!("{path}: neither a regular file nor a block device: ");
        assert!(error.to_string().starts_with(&words), "{error}");
    }
    assert_eq!(file::in_use_by("/nonexistent/image"), None);
}

#[test]
fn image_that_shrank_gives_an_error_not_a_short_read() {
    for backend in [Backend::Pread, Backend::Uring] {
        let file = host::disk_file(MIB);
        let device = host::open(file.path(), &writable(backend));
        file.as_file().set_len(4096 + 512).unwrap();
        let mut queue = device.open_queue(&QueueOptions::default()).unwrap();
        for len in [4096, 8192] {
            let error = device.read_at(4096, &mut Buf::zeroed(len)).unwrap_err();
            assert!(matches!(error, Error::Io { op: "read", .. }), "{error}");
            let done = run_one(&mut *queue, op(OpKind::Read, Buf::zeroed(len), 4096));
            assert!(matches!(
                *done.result.unwrap_err(),
                Error::Io { op: "read", .. }
            ));
        }
        device
            .read_at(0, &mut Buf::zeroed(4096))
            .expect("what is left");
    }
}

#[test]
fn polled_queue_where_the_device_does_not_poll_is_refused() {
    let polled = QueueOptions {
        iopoll: true,
        ..QueueOptions::default()
    };
    let cached = FileOptions {
        buffered: true,
        ..writable(Backend::Uring)
    };
    let file = host::disk_file(MIB);
    let error = host::open(file.path(), &cached).open_queue(&polled);
    assert!(matches!(error, Err(Error::Unsupported { .. })));
    if !host::is_root() {
        return;
    }
    // Loop devices have no poll queues.
    let attached = LoopDevice::attach(file.path());
    let error = host::open(&attached.path, &writable(Backend::Uring)).open_queue(&polled);
    assert!(matches!(error, Err(Error::Unsupported { .. })));
}

#[test]
fn queue_that_moves_with_operations_in_flight_says_so_and_recovers() {
    let file = host::disk_file(MIB);
    let device = host::open(file.path(), &writable(Backend::Uring));
    device
        .write_at(0, &pattern(1, 4096), Durability::Cached)
        .unwrap();
    // A fast device may be done before the queue moves.
    let in_flight = (0..100).any(|_| moves_in_flight(&*device));
    assert!(in_flight, "each read was done before the queue moved");
}

/// Reads in this thread and in another. False if the first was done before the second began.
fn moves_in_flight(device: &dyn Device) -> bool {
    let mut queue = device.open_queue(&QueueOptions::default()).unwrap();
    push(&mut *queue, op(OpKind::Read, Buf::zeroed(4096), 0));
    queue.submit().unwrap();
    let queue = &mut queue;
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(move || {
            push(&mut **queue, op(OpKind::Read, Buf::zeroed(4096), 0));
            let Err(error) = queue.submit() else {
                host::finish(&mut **queue);
                return None;
            };
            assert!(error.to_string().contains("another thread"), "{error}");
            Some(queue)
        });
        let Some(queue) = elsewhere.join().unwrap() else {
            return false;
        };
        let done = host::finish(&mut **queue);
        assert_eq!(done.len(), 2);
        for completion in done {
            completion.result.unwrap();
            assert_eq!(completion.buf[..], pattern(1, 4096)[..]);
        }
        true
    })
}

#[test]
fn half_done_operation_moves_to_another_thread() {
    let file = host::disk_file(MIB);
    let options = FileOptions {
        buffered: true,
        ..writable(Backend::Uring)
    };
    let device = host::open(file.path(), &options);
    let data = pattern(1, 40 * 512);
    device.write_at(0, &data, Durability::Cached).unwrap();
    let two = QueueOptions {
        depth: 2,
        ..QueueOptions::default()
    };
    let mut queue = device.open_queue(&two).unwrap();
    let segs = (0..40)
        .map(|i| seg(u64::from(i) * 512, i * 512, 512))
        .collect();
    let many = Op {
        kind: OpKind::Read,
        buf: Buf::zeroed(data.len()),
        segs: Segs::Many(segs),
    };
    push(&mut *queue, many);
    // Cached, so the first pieces are done when this returns; the rest found no room.
    queue.submit().unwrap();
    let done = std::thread::spawn(move || host::finish(&mut *queue))
        .join()
        .unwrap();
    assert!(done[0].result.is_ok() && done[0].buf[..] == data[..]);
}

#[test]
fn null_sink_moves_no_data_but_completes_everything() {
    let metadata = Arc::new(MemDevice::new(MIB));
    let sink = NullSink::new(metadata.clone()).unwrap();
    assert_eq!(sink.geometry().size_bytes, MIB);
    assert!(!sink.geometry().inline);
    sink.write_at(0, &pattern(1, 4096), Durability::Cached)
        .unwrap();
    let mut queue = sink.open_queue(&QueueOptions::default()).unwrap();
    for kind in [OpKind::Write, OpKind::WriteFua, OpKind::Read] {
        let done = run_one(&mut *queue, op(kind, pattern(2, 4096), 0));
        done.result.unwrap();
        assert_eq!(done.buf[..], pattern(2, 4096)[..]);
    }
    run_one(&mut *queue, host::flush_op()).result.unwrap();
    let past = run_one(&mut *queue, op(OpKind::Read, Buf::zeroed(512), MIB));
    assert!(matches!(
        *past.result.unwrap_err(),
        Error::OutOfRange { .. }
    ));
    let mut kept = Buf::zeroed(4096);
    sink.read_at(0, &mut kept).unwrap();
    assert_eq!(kept[..], pattern(1, 4096)[..]);
}
