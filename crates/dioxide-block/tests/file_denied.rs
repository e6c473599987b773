//! Kernels and containers that lack something: a seccomp filter on one thread plays them.
#![allow(unsafe_code)]

mod host;

use dioxide_block::file::{self, Backend, FileOptions, NullSink};
use dioxide_block::mem::MemDevice;
use dioxide_block::{Device, Durability, Error};
use host::{MIB, pattern, writable};
use std::sync::Arc;

/// Runs `work` on a thread where `call` fails with `errno`.
fn denied<T: Send>(call: libc::c_long, errno: i32, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            deny(call as u32, errno as u32);
            work()
        });
        thread.join().expect("the filtered thread")
    })
}

fn deny(call: u32, errno: u32) {
    let step = |code: u32, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call),
        step(
            libc::BPF_RET | libc::BPF_K,
            0,
            libc::SECCOMP_RET_ERRNO | errno,
        ),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: both calls concern this thread only; the kernel copies the program.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &filter, 0, 0), 0);
    }
}

fn works(device: &dyn Device) {
    for shift in [0, 1] {
        let data = pattern(1, 4096 + shift);
        device
            .write_at(8192, &data[shift..], Durability::ForceUnitAccess)
            .unwrap();
        let mut back = vec![0; 4096];
        device.read_at(8192, &mut back).unwrap();
        assert!(back[..] == data[shift..]);
    }
}

#[test]
fn io_uring_denied_auto_takes_pread() {
    let file = host::disk_file(MIB);
    for errno in [libc::EPERM, libc::ENOSYS] {
        let device = denied(libc::SYS_io_uring_setup, errno, || {
            host::open(file.path(), &writable(Backend::Auto))
        });
        assert!(
            device.describe().starts_with("pread on "),
            "{}",
            device.describe()
        );
        assert!(!device.geometry().inline, "the disk is waited for");
        works(&*device);
    }
}

#[test]
fn io_uring_denied_explicit_choice_is_unsupported() {
    let file = host::disk_file(MIB);
    let (device, sink) = denied(libc::SYS_io_uring_setup, libc::EPERM, || {
        (
            file::open(file.path(), &writable(Backend::Uring)),
            NullSink::new(Arc::new(MemDevice::new(MIB))),
        )
    });
    for error in [device.err().unwrap(), sink.err().unwrap()] {
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("io_uring_disabled"), "{error}");
    }
}

#[test]
fn statx_denied_alignment_is_found_by_trying() {
    let file = host::disk_file(MIB);
    let told = {
        let device = host::open(file.path(), &FileOptions::default());
        device.geometry().clone()
    };
    let device = denied(libc::SYS_statx, libc::ENOSYS, || {
        host::open(file.path(), &writable(Backend::Pread))
    });
    assert!(
        device.describe().ends_with("(direct)"),
        "{}",
        device.describe()
    );
    let tried = device.geometry();
    assert_eq!(tried.logical_block_bytes, told.logical_block_bytes);
    assert!(tried.mem_align_bytes >= told.mem_align_bytes);
    works(&*device);
}

#[test]
fn fallocate_denied_zeros_are_written_and_discard_is_unsupported() {
    let file = host::disk_file(4 * MIB);
    denied(libc::SYS_fallocate, libc::EOPNOTSUPP, || {
        let device = host::open(file.path(), &writable(Backend::Pread));
        let data = pattern(1, 3 << 20);
        device.write_at(0, &data, Durability::Cached).unwrap();
        device.write_zeroes(512, 2 << 20).unwrap();
        let mut back = vec![7; 3 << 20];
        device.read_at(0, &mut back).unwrap();
        let (start, end) = (512, 512 + (2 << 20));
        assert!(back[start..end].iter().all(|&b| b == 0));
        assert!(back[..start] == data[..start] && back[end..] == data[end..]);
        assert!(!device.geometry().discard);
        let error = device.discard(0, 4096).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    });
}

#[test]
fn durable_writes_denied_are_writes_and_flushes() {
    let file = host::disk_file(MIB);
    denied(libc::SYS_pwritev2, libc::EOPNOTSUPP, || {
        works(&*host::open(file.path(), &writable(Backend::Pread)));
    });
}

/// No other test of this binary maps: what the first attempt found holds for the process.
#[test]
fn membarrier_denied_mapping_is_unsupported() {
    let file = host::shm_file(MIB);
    let error = denied(libc::SYS_membarrier, libc::ENOSYS, || {
        file::open(file.path(), &writable(Backend::Mmap)).err()
    });
    let error = error.expect("refused");
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("membarrier"), "{error}");
}
