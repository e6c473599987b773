//! One thread, its ring, and the one request at a time that it answers.
//!
//! The entry goes to the kernel with `REGISTER`, comes back with a request in its memory, and goes again with
//! `COMMIT_AND_FETCH`, which is the answer, and the wish for another request.
//!
//! Invariants
//! - `held` is true from the moment the command is in the submission ring until its completion is seen. Only while it is
//!   false is the memory looked at, and given back; a worker that ends otherwise leaks it.
//! - There is never more than one command, so that the rings always have room.
//! - The ring is used by the thread that [`Worker::run`] is called from, and by no other.
#![allow(unsafe_code)]

use super::memory::Memory;
use crate::Errno;
use crate::server::Server;
use crate::transport::device::{Device, Kernel, Spare};
use crate::transport::wire::{self, Asker, Head, abi};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// `FUSE_IO_URING_CMD_REGISTER` and `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// The device, in the ring's table of files.
const DEVICE: types::Fixed = types::Fixed(0);
/// The header of the request, and then of the answer.
const IN_OUT: Range<usize> = 0..abi::IN_HEADER_BYTES;
/// Where the structure of the opcode begins.
const OP_AT: usize = 128;
/// What the ring itself says: which request it is, and how long its payload.
const COMMIT_ID: Range<usize> = 264..272;
const PAYLOAD_LEN: Range<usize> = 272..276;
/// Parts of an entry: headers and payload.
const PARTS: u32 = 2;
/// Where a submission queue entry has its `len`.
const SQE_LEN_AT: usize = 24;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// See the module header.
pub(super) struct Worker {
    queue: u16,
    ring: Ring,
    memory: ManuallyDrop<Memory>,
    held: bool,
}

impl Worker {
    /// A ring that the kernel does not know the purpose of yet, for a queue.
    pub(super) fn new(queue: u16) -> io::Result<Worker> {
        let mut builder = Ring::builder();
        builder.setup_single_issuer().setup_defer_taskrun();
        builder.setup_r_disabled().setup_submit_all();
        Ok(Worker {
            queue,
            ring: builder.build(2)?,
            memory: ManuallyDrop::new(Memory::new()?),
            held: false,
        })
    }

    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    /// Registers with the kernel, and answers requests until it ends the connection.
    pub(super) fn run(mut self, server: &Server, device: &Device, spare: &Spare) -> io::Result<()> {
        let asker = Kernel { device, spare };
        stay_on(self.queue);
        let submitter = self.ring.submitter();
        submitter.register_enable_rings()?;
        submitter.register_files(&[device.file().as_raw_fd()])?;
        self.give(REGISTER, 0);
        loop {
            match self.wait() {
                Ok(true) => {}
                // What the end of a connection looks like depends on when it comes.
                Err(error) if !device.has_ended() => return Err(error),
                Ok(false) | Err(_) => return Ok(()),
            }
            let commit = self.answer(server, &asker);
            self.give(COMMIT_AND_FETCH, commit);
        }
    }

    /// Hands the entry to the kernel, at the next [`Worker::wait`].
    fn give(&mut self, command: u32, commit: u64) {
        let mut request = [0; 80];
        request[8..16].copy_from_slice(&commit.to_ne_bytes());
        request[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let entry = opcode::UringCmd80::new(DEVICE, command)
            .cmd(request)
            .addr(Some(self.memory.parts()))
            .build();
        let entry = with_len(entry, PARTS);
        self.held = true;
        // SAFETY: the memory that the entry names stays mapped and untouched until its completion is seen (first invariant).
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("there is one command at most");
    }

    /// Waits until the entry comes back with a request. False if it comes back because there will be none.
    fn wait(&mut self) -> io::Result<bool> {
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            let Some(done) = self.ring.completion().next() else {
                continue;
            };
            self.held = false;
            return match -done.result() {
                ..=0 => Ok(true),
                libc::ENOTCONN | libc::ECANCELED | libc::ENODEV | libc::ECONNABORTED => Ok(false),
                error => Err(io::Error::from_raw_os_error(error)),
            };
        }
    }

    /// Answers the request in the memory. Returns its number.
    fn answer(&mut self, server: &Server, asker: &dyn Asker) -> u64 {
        assert!(!self.held, "the kernel has the memory");
        // SAFETY: the kernel does not hold it (just asserted), and gets it from `give` only, which needs all of `self`.
        let (front, payload) = unsafe { self.memory.mine() };
        let commit = u64::from_ne_bytes(front[COMMIT_ID].try_into().expect("eight bytes"));
        let len = u32::from_ne_bytes(front[PAYLOAD_LEN].try_into().expect("four bytes"));
        let head = Head::decode(&front[IN_OUT]).expect("as many bytes as a header has");
        let op = &front[OP_AT..][..abi::op_bytes(head.opcode)];
        let reply = wire::answer(server, asker, &head, op, payload, len as usize);
        // Those that nobody waits for do not come this way.
        let reply = reply.unwrap_or(Err(Errno::NOSYS));
        let header = wire::out_header(head.unique, reply);
        front[..header.len()].copy_from_slice(&header);
        let len = reply.unwrap_or(0) as u32;
        front[PAYLOAD_LEN].copy_from_slice(&len.to_ne_bytes());
        commit
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        match self.held {
            // The kernel may still write into it.
            true => tracing::warn!(queue = self.queue, "memory of a FUSE ring is lost"),
            // SAFETY: the worker is dropped once, and nobody uses its memory after.
            false => unsafe { ManuallyDrop::drop(&mut self.memory) },
        }
    }
}

/// The kernel asks the threads of the processor that a request comes from. A processor that is not ours is done without.
fn stay_on(queue: u16) {
    let mut set = CpuSet::new();
    if usize::from(queue) < CpuSet::MAX_CPU {
        set.set(queue.into());
        let _ = sched_setaffinity(None, &set);
    }
}

/// The crate's commands have no `len`.
fn with_len(mut entry: squeue::Entry128, len: u32) -> squeue::Entry128 {
    let bytes = (&raw mut entry).cast::<u8>();
    // SAFETY: the entry is the kernel's `struct io_uring_sqe`, 128 plain bytes that are ours here; its `len` is the four bytes
    // there.
    unsafe { bytes.add(SQE_LEN_AT).cast::<u32>().write_unaligned(len) };
    entry
}

const _: () = assert!(size_of::<squeue::Entry128>() == 128);
