//! One thread of a queue, its ring, and the requests that it answers.
//!
//! An entry goes to the kernel with `REGISTER`, comes back with a request in its memory, and goes again with
//! `COMMIT_AND_FETCH`, which is the answer, and the wish for another request. All requests that have come are answered before the
//! kernel is called again, by one call.
//!
//! Who has several entries must not wait for what comes through them: the kernel puts requests into entries that it holds, whatever
//! their thread does. So such a thread has helpers for requests that wait for long ([`may_wait`]), and for those that turn out to need
//! the kernel to write its pages. They get the memory, and give it back with the answer in it. One entry always stays with the kernel and
//! the worker, for what a helper waits for: what would be the last is answered by the worker, who has the kernel write no pages. Since
//! that answer is a poorer one (`EAGAIN`; before Linux 6.16 a file without holes, a read that ends early), all else leaves two more
//! entries. A sync of everything, of which the kernel asks for one at a time, has one that all others leave.
//!
//! Invariants
//! - A worker with helpers waits for no request of this mount: it has the kernel write no pages, and a helper that has holds no
//!   lock meanwhile. Of its entries it never hands out all. So whatever a helper waits for is answered.
//! - Memory is [`Held`] from the moment its command is in the submission ring until the completion is seen. Only before and after
//!   is it looked at, and given back; what is still held when a worker ends is leaked.
//! - An entry has one command at most, so that the rings always have room.
//! - The ring is used by the thread that [`Worker::run`] is called from, and by no other.
#![allow(unsafe_code)]

use super::memory::Memory;
use crate::server::Server;
use crate::transport::device::{Device, Kernel, Spare};
use crate::transport::wire::{self, Asker, Head, Interrupts, abi};
use crate::{Errno, ROOT_ID, Result};
use crossbeam_channel::{Receiver, Sender, unbounded};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::cell::Cell;
use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;

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

/// What is completed when helpers have answered; other completions are numbers of entries.
const HELPED: u64 = u64::MAX;
/// So many entries are not with helpers when a sync of everything has gone to one.
const LEFT_BY_SYNC: usize = 1;
/// The same for what else cannot be answered well without.
const LEFT: usize = 2;
/// The same for what is answered as well by the worker.
const LEFT_BY_OTHERS: usize = 4;
/// An answer or a request with so much data is not kept back for others: copying it takes longer than a call.
const MUCH: usize = 64 << 10;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// What a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// Requests at the same time.
    pub(super) entries: usize,
    /// Threads for those of them that wait. Without, there is one entry, and everything is answered by the worker.
    pub(super) helpers: usize,
}

/// See the module header.
pub(super) struct Worker {
    queue: u16,
    ring: Ring,
    helpers: usize,
    /// What the kernel does not hold is with a helper, or in the hands of the worker.
    entries: Vec<Option<Held>>,
    /// How many are with helpers.
    helped: usize,
    /// What the kernel does not know of yet.
    new: Vec<Memory>,
}

/// Memory that the kernel may read and write.
struct Held(Option<Memory>);

impl Held {
    /// The completion of its command was seen.
    fn back(mut self) -> Memory {
        self.0.take().expect("until now")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(memory) = self.0.take() {
            tracing::warn!("memory of a FUSE ring is lost");
            mem::forget(memory);
        }
    }
}

/// A request that a helper answers, and the same answered.
struct Job {
    entry: usize,
    memory: Memory,
    commit: u64,
}

/// Where a worker and its helpers meet.
struct Help {
    asked: Sender<Job>,
    answered: Receiver<Job>,
    /// Is counted up with each answer.
    event: OwnedFd,
}

/// The request that memory holds.
struct Request<'a> {
    head: Head,
    front: &'a mut [u8],
    payload: &'a mut [u8],
}

impl<'a> Request<'a> {
    fn of(memory: &'a mut Memory) -> Request<'a> {
        // SAFETY: the kernel does not hold it: what it holds is in a `Held`, which lends nothing.
        let (front, payload) = unsafe { memory.mine() };
        let head = Head::decode(&front[IN_OUT]).expect("as many bytes as a header has");
        Request {
            head,
            front,
            payload,
        }
    }

    fn payload_len(&self) -> usize {
        u32::from_ne_bytes(self.front[PAYLOAD_LEN].try_into().expect("four bytes")) as usize
    }

    /// Its number, for the answer.
    fn commit(&self) -> u64 {
        u64::from_ne_bytes(self.front[COMMIT_ID].try_into().expect("eight bytes"))
    }

    /// Has it answered; the payload is there then.
    fn reply(&mut self, server: &Server, asker: &dyn Asker) -> Result<usize> {
        let told = self.payload_len();
        let op = &self.front[OP_AT..][..abi::op_bytes(self.head.opcode)];
        let reply = wire::answer(server, asker, &self.head, op, self.payload, told);
        // Those that nobody waits for do not come this way.
        reply.unwrap_or(Err(Errno::NOSYS))
    }

    /// Puts the answer in its place. Returns how much data went to and fro.
    fn finish(self, reply: Result<usize>) -> usize {
        let told = self.payload_len();
        let header = wire::out_header(self.head.unique, reply);
        self.front[..header.len()].copy_from_slice(&header);
        let len = reply.unwrap_or(0);
        self.front[PAYLOAD_LEN].copy_from_slice(&(len as u32).to_ne_bytes());
        told + len
    }
}

/// The kernel, as a worker with helpers asks it: never for pages. What needs them is a helper's.
struct WithoutPages<'a> {
    kernel: Kernel<'a>,
    /// A request needs them.
    wanted: Cell<bool>,
}

impl Asker for WithoutPages<'_> {
    fn write_pages(&self, _: u64) -> bool {
        self.wanted.set(true);
        false
    }

    fn waits_for_pages(&self) -> bool {
        self.kernel.waits_for_pages()
    }

    fn write_all(&self, nodes: &[u64]) -> bool {
        nodes.iter().all(|&node| self.write_pages(node))
    }

    fn forget_attributes(&self, node: u64) {
        self.kernel.forget_attributes(node);
    }

    fn interrupts(&self) -> &Interrupts {
        self.kernel.interrupts()
    }
}

/// Whether a request may wait for long.
fn may_wait(opcode: u32) -> bool {
    use abi::opcode::*;
    matches!(
        opcode,
        FSYNC
            | FSYNCDIR
            | SYNCFS
            | FALLOCATE
            | LSEEK
            | COPY_FILE_RANGE
            | COPY_FILE_RANGE_64
            | IOCTL
    )
}

/// How many entries are not with helpers when this request has gone to one.
fn left_by(head: &Head) -> usize {
    use abi::opcode::*;
    match (head.opcode, head.node) {
        (FSYNCDIR, ROOT_ID) => LEFT_BY_SYNC,
        (LSEEK | READ, _) => LEFT,
        _ => LEFT_BY_OTHERS,
    }
}

impl Worker {
    /// A ring that the kernel does not know the purpose of yet, for a queue.
    pub(super) fn new(queue: u16, size: Size) -> io::Result<Worker> {
        let mut builder = Ring::builder();
        // Not with DEFER_TASKRUN: a request that the kernel has given to a thread that is killed would stay with the ring, and the
        // ring with the process, whose helper may wait for that very request. It is no faster here.
        builder.setup_single_issuer().setup_coop_taskrun();
        builder.setup_r_disabled().setup_submit_all();
        // One more, for what helpers have done.
        let room = (size.entries + 1).next_power_of_two();
        let new = (0..size.entries).map(|_| Memory::new());
        Ok(Worker {
            queue,
            ring: builder.build(room as u32)?,
            helpers: size.helpers,
            entries: (0..size.entries).map(|_| None).collect(),
            helped: 0,
            new: new.collect::<io::Result<_>>()?,
        })
    }

    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    pub(super) fn helpers(&self) -> usize {
        self.helpers
    }

    /// Registers with the kernel, and answers requests until it ends the connection. Calls `up` once nothing but the kernel's end of
    /// it can keep it from that.
    pub(super) fn run(
        self,
        server: &Server,
        device: &Arc<Device>,
        spare: &Arc<Spare>,
        up: &dyn Fn(),
    ) -> io::Result<()> {
        let asker = Kernel { device, spare };
        if self.helpers == 0 {
            return self.serve(server, &asker, device, None, up);
        }
        let (kernel, wanted) = (Kernel { device, spare }, Cell::new(false));
        let without_pages = WithoutPages { kernel, wanted };
        let (asked, jobs) = unbounded::<Job>();
        let (answers, answered) = unbounded::<Job>();
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let help = Help {
            asked,
            answered,
            event: event.try_clone()?,
        };
        thread::scope(|scope| {
            for _ in 0..self.helpers {
                let (jobs, answers, event, asker) = (&jobs, &answers, &event, &asker);
                let help = move || {
                    for mut job in jobs {
                        let mut request = Request::of(&mut job.memory);
                        let reply = request.reply(server, asker);
                        request.finish(reply);
                        // The worker may have ended; so has the connection then.
                        let _ = answers.send(job);
                        let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
                    }
                };
                let name = format!("fuse-help-{}", self.queue);
                thread::Builder::new()
                    .name(name)
                    .spawn_scoped(scope, help)?;
            }
            // Its end is that of `asked`, and so of the helpers.
            let help = Some((help, &without_pages.wanted));
            self.serve(server, &without_pages, device, help, up)
        })
    }

    /// `help` is with whether a request needed pages, which the worker does not get.
    fn serve(
        mut self,
        server: &Server,
        asker: &dyn Asker,
        device: &Device,
        help: Option<(Help, &Cell<bool>)>,
        up: &dyn Fn(),
    ) -> io::Result<()> {
        stay_on(self.queue);
        let submitter = self.ring.submitter();
        submitter.register_enable_rings()?;
        submitter.register_files(&[device.file().as_raw_fd()])?;
        up();
        for (entry, memory) in mem::take(&mut self.new).into_iter().enumerate() {
            self.give(entry, memory, REGISTER, 0);
        }
        if let Some((help, _)) = &help {
            self.listen(help);
        }
        let mut goes_on = true;
        while goes_on || self.entries.iter().any(Option::is_some) {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What the end of a connection looks like depends on when it comes.
                Err(_) if device.has_ended() => return Ok(()),
                Err(error) => return Err(error),
            }
            loop {
                let Some(done) = self.ring.completion().next() else {
                    break;
                };
                if done.user_data() == HELPED {
                    let (help, _) = help.as_ref().expect("it was listened to");
                    self.commit_helped(help);
                    continue;
                }
                let entry = done.user_data() as usize;
                let held = self.entries[entry].take();
                let mut memory = held.expect("a completion of its command").back();
                match -done.result() {
                    ..=0 => {}
                    libc::ENOTCONN | libc::ECANCELED | libc::ENODEV | libc::ECONNABORTED => {
                        goes_on = false;
                        continue;
                    }
                    _ if device.has_ended() => return Ok(()),
                    error => return Err(io::Error::from_raw_os_error(error)),
                }
                let mut request = Request::of(&mut memory);
                let (commit, head) = (request.commit(), request.head);
                let left = self.entries.len() - 1 - self.helped;
                let least = left_by(&head);
                let goes = help.is_some() && may_wait(head.opcode) && left >= least;
                let reply = (!goes).then(|| request.reply(server, asker));
                let wants_pages = help.as_ref().is_some_and(|(_, wanted)| wanted.take());
                let Some(reply) = reply.filter(|_| !wants_pages || left < least) else {
                    self.helped += 1;
                    let job = Job {
                        entry,
                        memory,
                        commit,
                    };
                    let (help, _) = help.as_ref().expect("it goes to one");
                    help.asked.send(job).expect("helpers wait for it");
                    continue;
                };
                let much = request.finish(reply) >= MUCH;
                self.give(entry, memory, COMMIT_AND_FETCH, commit);
                if much && !self.ring.completion().is_empty() {
                    // Whoever asked for much goes on while the others are answered. If it fails, so does the next call.
                    let _ = self.ring.submit();
                }
            }
        }
        Ok(())
    }

    /// Answers what helpers have answered.
    fn commit_helped(&mut self, help: &Help) {
        // Only whoever answers later counts it up again.
        let _ = rustix::io::read(&help.event, &mut [0; 8]);
        for job in help.answered.try_iter() {
            self.helped -= 1;
            self.give(job.entry, job.memory, COMMIT_AND_FETCH, job.commit);
        }
        self.listen(help);
    }

    /// Is told of the next answer of a helper, after the next call of the kernel.
    fn listen(&mut self, help: &Help) {
        let event = types::Fd(help.event.as_raw_fd());
        let poll = opcode::PollAdd::new(event, PollFlags::IN.bits().into());
        let entry = squeue::Entry128::from(poll.build().user_data(HELPED));
        // SAFETY: it names no memory, and the descriptor is open as long as the ring is used.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("there is one at a time, and room for it");
    }

    /// Hands an entry to the kernel, at its next call.
    fn give(&mut self, number: usize, memory: Memory, command: u32, commit: u64) {
        let mut request = [0; 80];
        request[8..16].copy_from_slice(&commit.to_ne_bytes());
        request[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let entry = opcode::UringCmd80::new(DEVICE, command)
            .cmd(request)
            .addr(Some(memory.parts()))
            .build();
        let entry = with_len(entry, PARTS).user_data(number as u64);
        self.entries[number] = Some(Held(Some(memory)));
        // SAFETY: the memory that the entry names stays mapped and untouched until its completion is seen (first invariant).
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("an entry has one command at most");
    }
}

/// Commits an answer where there is no entry yet, so that nothing happens. Returns the error that the kernel has for that.
pub(super) fn commit_nothing(device: &Device) -> io::Result<i32> {
    let mut ring: Ring = IoUring::builder().build(1)?;
    let submitter = ring.submitter();
    submitter.register_files(&[device.file().as_raw_fd()])?;
    let entry = opcode::UringCmd80::new(DEVICE, COMMIT_AND_FETCH).build();
    // SAFETY: it names no memory.
    let pushed = unsafe { ring.submission().push(&entry) };
    pushed.expect("the ring is empty");
    while ring.completion().is_empty() {
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
    let done = ring.completion().next();
    Ok(-done.expect("it is not empty").result())
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
