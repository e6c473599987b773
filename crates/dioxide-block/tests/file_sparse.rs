//! An image in memory that `auto` may map: what is there is copied, and what is not takes no memory.

mod host;

use dioxide_block::file::{Backend, FileOptions, Lane};
use dioxide_block::{Buf, Device, Durability, OpKind, QueueOptions};
use host::{MIB, Mount, is_root, pattern, run_one, sparse};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

const SIZE: u64 = 64 * MIB;

fn read(lane: &Lane, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0xa5; len];
    lane.read_at(offset, &mut buf).expect("a read");
    buf
}

fn memory(file: &File) -> u64 {
    file.metadata().unwrap().blocks() * 512
}

/// System calls of this thread that read or wrote, so far.
fn calls() -> u64 {
    let counts = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let count = |name: &str| {
        let line = counts.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    count("syscr") + count("syscw")
}

fn open(file: &tempfile::NamedTempFile) -> (Arc<dyn Device>, Lane) {
    let device = host::open(file.path(), &sparse());
    let lane = Lane::of(&device);
    (device, lane)
}

#[test]
fn hole_takes_no_memory_however_it_is_read() {
    let file = host::shm_file(SIZE);
    file.as_file()
        .write_all_at(&pattern(1, 8192), 4 * MIB)
        .unwrap();
    let before = memory(file.as_file());
    let (device, lane) = open(&file);
    let mut queue = device.open_queue(&QueueOptions::default()).unwrap();
    for offset in (0..SIZE).step_by(65536) {
        for len in [512, 4096, 65536] {
            let bytes = read(&lane, offset, len);
            let data = if offset == 4 * MIB { len.min(8192) } else { 0 };
            assert!(bytes[..data] == pattern(1, 8192)[..data]);
            assert!(bytes[data..].iter().all(|&b| b == 0));
        }
        let done = run_one(
            &mut *queue,
            host::op(OpKind::Read, Buf::zeroed(4096), offset),
        );
        done.result.unwrap();
    }
    assert_eq!(read(&lane, 0, 4 << 20), vec![0; 4 << 20]);
    assert_eq!(memory(file.as_file()), before);
}

#[test]
fn data_is_copied_without_a_call_from_the_second_time_on() {
    let file = host::shm_file(SIZE);
    file.as_file()
        .write_all_at(&pattern(1, 65536), MIB)
        .unwrap();
    let (device, lane) = open(&file);
    // The kernel is asked once; a write makes a page, by itself or by the trait.
    assert_eq!(read(&lane, MIB, 65536), pattern(1, 65536)[..]);
    lane.write_at(8 * MIB, &pattern(2, 8192)).unwrap();
    device
        .write_at(
            8 * MIB + 8192,
            &pattern(3, 4096),
            Durability::ForceUnitAccess,
        )
        .unwrap();
    let before = calls();
    let of_reading = calls() - before;
    for _ in 0..100 {
        assert_eq!(read(&lane, MIB, 65536), pattern(1, 65536)[..]);
        assert_eq!(read(&lane, 8 * MIB, 8192), pattern(2, 8192)[..]);
        assert_eq!(read(&lane, 8 * MIB + 8192, 4096), pattern(3, 4096)[..]);
        lane.write_at(MIB + 4096, &pattern(1, 65536)[4096..8192])
            .unwrap();
    }
    assert_eq!(calls() - before, 2 * of_reading);
    let mut bytes = vec![0; 4096];
    file.as_file()
        .read_exact_at(&mut bytes, 8 * MIB + 8192)
        .unwrap();
    assert_eq!(bytes, pattern(3, 4096)[..]);
}

#[test]
fn page_that_was_discarded_is_a_hole_again() {
    let file = host::shm_file(SIZE);
    let (device, lane) = open(&file);
    lane.write_at(0, &pattern(1, 1 << 20)).unwrap();
    assert_eq!(memory(file.as_file()), MIB);
    device.discard(4096, MIB - 4096).unwrap();
    assert_eq!(memory(file.as_file()), 4096);
    assert_eq!(read(&lane, 4096, 65536), vec![0; 65536]);
    assert_eq!(memory(file.as_file()), 4096);
    lane.write_at(4096, &pattern(2, 4096)).unwrap();
    device.write_zeroes(0, 8192).unwrap();
    assert_eq!(read(&lane, 0, 12288), vec![0; 12288]);
    lane.write_at(4096, &pattern(3, 512)).unwrap();
    assert_eq!(read(&lane, 4096, 512), pattern(3, 512)[..]);
    assert_eq!(memory(file.as_file()), 4096);
}

#[test]
fn device_that_ends_in_a_page_or_at_a_window_is_used_to_its_end() {
    for size in [2 * MIB, 2 * MIB + 4096 + 512, 256 * MIB] {
        let file = host::shm_file(size);
        let (_, lane) = open(&file);
        for _ in 0..3 {
            assert_eq!(read(&lane, size - 512, 512), vec![0; 512]);
            assert_eq!(read(&lane, size, 0), []);
        }
        lane.write_at(size - 512, &pattern(1, 512)).unwrap();
        lane.write_at(size, &[]).unwrap();
        assert_eq!(read(&lane, size - 512, 512), pattern(1, 512)[..]);
        assert!(lane.read_at(size, &mut [0; 512]).is_err());
    }
}

#[test]
fn full_tmpfs_is_enospc_and_truncated_image_an_error() {
    if !is_root() {
        return;
    }
    let mount = Mount::tmpfs(MIB);
    let path = mount.dir.path().join("image");
    let file = File::create_new(&path).unwrap();
    file.set_len(8 * MIB).unwrap();
    let lane = Lane::of(&host::open(&path, &sparse()));
    let put = |i: u64| lane.write_at(i * 65536, &pattern(i, 65536));
    let (kept, refused): (Vec<u64>, Vec<u64>) = (0..128).partition(|&i| put(i).is_ok());
    assert!(kept.len() >= 14 && refused.len() > 100, "{kept:?}");
    assert_eq!(put(refused[0]).unwrap_err().errno(), libc::ENOSPC);
    for i in kept {
        assert!(read(&lane, i * 65536, 65536) == pattern(i, 65536)[..]);
    }
    file.set_len(65536).unwrap();
    // What the table says is there is gone.
    assert!(lane.read_at(65536, &mut [0; 4096]).is_err());
    assert!(read(&lane, 0, 65536) == pattern(0, 65536)[..]);
}

#[test]
fn only_memory_is_mapped_and_only_where_it_may_be() {
    let shm = host::shm_file(MIB);
    let disk = host::disk_file(MIB);
    let described = |path, options| host::open(path, &options).describe();
    let explicit = FileOptions {
        backend: Backend::Pread,
        ..sparse()
    };
    for not in [
        described(shm.path(), host::writable(Backend::Auto)),
        described(shm.path(), explicit),
        described(disk.path(), sparse()),
    ] {
        assert!(!not.contains("mapping"), "{not}");
    }
    let reader = FileOptions {
        write: false,
        ..sparse()
    };
    assert!(described(shm.path(), reader).contains("mapping"));
}

/// Threads write, read and discard the same pages: whatever the table says then, what was written last is read.
#[test]
fn pages_that_come_and_go_under_many_threads_keep_their_bytes() {
    let file = host::shm_file(SIZE);
    let (device, lane) = open(&file);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (device, lane) = (&device, &lane);
            // Each its own page of four, so that words of the table are shared.
            scope.spawn(move || {
                for round in 0..4000u64 {
                    let at = (round % 1024 * 4 + thread) * 4096;
                    lane.write_at(at, &pattern(round, 4096)).unwrap();
                    assert!(read(lane, at, 4096) == pattern(round, 4096)[..]);
                    if round % 3 == 0 {
                        device.discard(at, 4096).unwrap();
                        assert!(read(lane, at, 4096).iter().all(|&b| b == 0));
                    }
                }
            });
        }
    });
}
