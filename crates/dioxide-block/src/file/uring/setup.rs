//! Making and registering a ring.
//!
//! Kernels differ in what they take, and containers in what they permit, so settings are tried from the
//! best down. Registration of the file is required; that of the pool is a help that may be refused.
#![allow(unsafe_code)]

use super::super::io::FileIo;
use crate::{BufPool, Error, QueueOptions, Result};
use io_uring::{Builder, IoUring};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// The kernel registers at most this much in one buffer.
const MAX_REGISTERED_BYTES: usize = 1 << 30;
const SQPOLL_IDLE_MS: u32 = 50;

/// Whether io_uring can be used at all: compiled in, permitted, and of Linux 5.11 or later (waits
/// with a timeout).
pub(in crate::file) fn available() -> Result<()> {
    let ring = IoUring::new(2).map_err(refused)?;
    match ring.params().is_feature_ext_arg() {
        true => Ok(()),
        false => Err(Error::Unsupported {
            what: "io_uring of a kernel before 5.11".into(),
        }),
    }
}

fn refused(e: io::Error) -> Error {
    Error::Unsupported {
        what: format!("io_uring (see sysctl kernel.io_uring_disabled, seccomp): {e}"),
    }
}

/// The pool's region, registered in equal parts that no buffer straddles.
pub(super) struct Registered {
    pub(super) pool: BufPool,
    pub(super) base: usize,
    pub(super) part_bytes: usize,
}

/// The best ring that the kernel gives.
pub(super) fn build_ring(options: &QueueOptions) -> Result<IoUring> {
    let mut last = io::Error::from_raw_os_error(libc::ENOSYS);
    for builder in builders(options) {
        match builder.build(options.depth) {
            Ok(ring) => return Ok(ring),
            Err(e) => last = e,
        }
    }
    Err(refused(last))
}

/// Settings to try, best first: each asks less of the kernel.
pub(super) fn builders(options: &QueueOptions) -> Vec<Builder> {
    let mut plain = IoUring::builder();
    if options.iopoll {
        plain.setup_iopoll();
    }
    if options.sqpoll {
        plain.setup_sqpoll(SQPOLL_IDLE_MS);
        return vec![plain];
    }
    let mut cooperative = plain.clone();
    cooperative.setup_submit_all().setup_taskrun_flag();
    let mut deferred = cooperative.clone();
    cooperative.setup_coop_taskrun();
    deferred.setup_single_issuer().setup_defer_taskrun();
    deferred.setup_r_disabled();
    let mut newest = deferred.clone();
    newest.setup_no_sqarray();
    vec![newest, deferred, cooperative, plain]
}

/// Registers the file and what lies behind it, and the pool if the kernel lets us pin that much memory.
pub(super) fn register(
    ring: &IoUring,
    io: &FileIo,
    pool: Option<&BufPool>,
) -> Result<Option<Registered>> {
    let submitter = ring.submitter();
    let files: Vec<RawFd> = io.files().map(|file| file.as_raw_fd()).collect();
    submitter.register_files(&files).map_err(refused)?;
    let Some(pool) = pool.filter(|p| p.buf_size() <= MAX_REGISTERED_BYTES) else {
        return Ok(None);
    };
    let (base, len) = pool.region();
    let part_bytes = MAX_REGISTERED_BYTES / pool.buf_size() * pool.buf_size();
    let parts: Vec<libc::iovec> = (0..len)
        .step_by(part_bytes)
        .map(|at| libc::iovec {
            iov_base: base.wrapping_add(at).cast(),
            iov_len: part_bytes.min(len - at),
        })
        .collect();
    // SAFETY: the parts lie inside the pool's region, which stays allocated while `Registered` holds
    // a clone of the pool; the ring, which is dropped with it, pins the pages.
    let done = unsafe { submitter.register_buffers(&parts) };
    Ok(done.ok().map(|()| Registered {
        pool: pool.clone(),
        base: base as usize,
        part_bytes,
    }))
}
