//! The io_uring queue.
//!
//! # Shape
//! Each operation has a preallocated slot. Each of its pieces is one SQE, whose `user_data` is
//! `piece << 32 | slot`; the operation completes when its last piece has. `push` writes the SQE into
//! the ring (shared memory, no system call); `submit` enters the kernel once for all of them; `reap`
//! reads the completion ring, and enters only if the kernel flags that task work is waiting
//! (`IORING_SQ_TASKRUN`; with `DEFER_TASKRUN` completions are posted by their own thread). Pieces for
//! which the rings have no room wait in `backlog`, short transfers in `retry`; both go in as room
//! appears, at the next `submit`, `wait` or `reap`.
//!
//! The ring is set up with `SINGLE_ISSUER` and `DEFER_TASKRUN` where the kernel has them, and
//! disabled, so that the thread that first uses the queue becomes its issuer. A queue that moves to
//! another thread later gets a new ring, which is possible only while the kernel holds none of its
//! operations: see [`Queue`].
//!
//! # Invariants
//! - A slot's buffer stays where it is from the moment one of its SQEs is in the submission ring
//!   until `remaining` is 0, whatever happens to the queue: `Drop` waits for the kernel, and
//!   forgets the slots if it cannot.
//! - `written - completed` = SQEs that were written and have not completed, the waker's poll not
//!   counted. It stays below the size of the completion ring, so that ring cannot overflow.
//! - Pieces still to do have `len > 0`; a completed piece of several gets `len = 0`.
//! - A slot returns to `free` when its completion is reaped, not before.
//!
//! Rejected: one `READV` per operation with several pieces. The pieces are not contiguous on the
//! device, which is why there are several.
#![allow(unsafe_code)]

use super::io::{FileIo, failed, stopped};
use crate::{
    Buf, BufPool, Completion, Error, Op, OpKind, Queue, QueueOptions, Result, Seg, Segs, SlotId,
    Waker,
};
use io_uring::types::{Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{Builder, IoUring, cqueue, opcode, squeue};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

const FILE: Fixed = Fixed(0);
/// `user_data` of the poll that waits for the waker.
const WAKER: u64 = u64::MAX;
const MAX_DEPTH: u32 = 4096;
/// The kernel registers at most this much in one buffer.
const MAX_REGISTERED_BYTES: usize = 1 << 30;
const SQPOLL_IDLE_MS: u32 = 50;
const ENTER_GETEVENTS: u32 = 1;

/// Whether io_uring can be used at all: compiled in, permitted, and of Linux 5.11 or later (waits
/// with a timeout).
pub(super) fn available() -> Result<()> {
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

/// See the module header.
pub(super) struct UringQueue {
    ring: IoUring,
    io: Arc<FileIo>,
    options: QueueOptions,
    /// Data goes to `/dev/null`, reads as writes: see [`super::NullSink`].
    sink: bool,
    /// The ring has its issuer.
    enabled: bool,
    registered: Option<Registered>,
    slots: Box<[Slot]>,
    free: Vec<SlotId>,
    /// Finished, but not by way of the caller's vector.
    ready: Vec<Completion>,
    backlog: VecDeque<SlotId>,
    retry: VecDeque<u64>,
    /// SQEs of operations written to the submission ring, since the ring was made.
    written: u64,
    /// And those whose completion was seen.
    completed: u64,
    max_outstanding: u64,
    event: Arc<OwnedFd>,
    /// The ring polls `event`: the poll was written when `written` had this value.
    armed: Option<u64>,
    /// The waker was called, and no `wait` has returned for it yet.
    woken: bool,
}

struct Slot {
    buf: Buf,
    segs: Segs,
    error: Option<Box<Error>>,
    kind: OpKind,
    /// The buffer belongs to the registered pool.
    fixed: bool,
    /// Pieces before this one were written to the submission ring.
    issued: u32,
    /// Pieces that have not completed.
    remaining: u32,
}

impl Slot {
    fn empty() -> Slot {
        Slot {
            buf: Buf::empty(),
            segs: Segs::Many(Box::new([])),
            error: None,
            kind: OpKind::Flush,
            fixed: false,
            issued: 0,
            remaining: 0,
        }
    }

    fn pieces(&self) -> u32 {
        match self.kind {
            OpKind::Flush => 1,
            _ => self.segs.as_slice().len() as u32,
        }
    }

    #[inline]
    fn seg(&mut self, piece: u32) -> &mut Seg {
        match &mut self.segs {
            Segs::One(seg) => seg,
            Segs::Many(segs) => &mut segs[piece as usize],
        }
    }

    #[inline]
    fn complete(&mut self, slot: SlotId) -> Completion {
        Completion {
            slot,
            buf: std::mem::replace(&mut self.buf, Buf::empty()),
            result: match self.error.take() {
                None => Ok(()),
                Some(error) => Err(error),
            },
        }
    }
}

/// The pool's region, registered in equal parts that no buffer straddles.
struct Registered {
    pool: BufPool,
    base: usize,
    part_bytes: usize,
}

impl UringQueue {
    /// A queue over `io`. With `sink`, `io` is `/dev/null` with the geometry of another device.
    pub(super) fn open(io: Arc<FileIo>, options: &QueueOptions, sink: bool) -> Result<UringQueue> {
        if options.iopoll && !(io.direct && io.polls) {
            return Err(Error::Unsupported {
                what: format!(
                    "polled I/O on {}: no direct I/O, or no poll queues",
                    io.name
                ),
            });
        }
        UringQueue::new(io, options, sink)
    }

    fn new(io: Arc<FileIo>, options: &QueueOptions, sink: bool) -> Result<UringQueue> {
        let options = QueueOptions {
            depth: options.depth.clamp(1, MAX_DEPTH).next_power_of_two(),
            ..options.clone()
        };
        let depth = options.depth;
        let ring = build_ring(&options)?;
        let registered = register(&ring, &io, options.pool.as_ref())?;
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|e| failed("eventfd", 0, 0, e))?;
        // One entry is kept for the waker's poll.
        let max_outstanding = ring.params().cq_entries() - 1;
        Ok(UringQueue {
            ring,
            io,
            sink,
            enabled: false,
            registered,
            slots: (0..depth).map(|_| Slot::empty()).collect(),
            free: (0..depth).rev().collect(),
            ready: Vec::with_capacity(depth as usize),
            backlog: VecDeque::with_capacity(depth as usize),
            retry: VecDeque::with_capacity(max_outstanding as usize),
            written: 0,
            completed: 0,
            max_outstanding: u64::from(max_outstanding),
            event: Arc::new(event),
            armed: None,
            woken: false,
            options,
        })
    }

    /// SQEs that were written and have not completed.
    #[inline]
    fn outstanding(&self) -> u64 {
        self.written - self.completed
    }

    /// Writes what waits into the submission ring, as far as there is room. True if anything went.
    fn pump(&mut self) -> bool {
        if self.retry.is_empty() && self.backlog.is_empty() {
            return false;
        }
        self.pump_waiting()
    }

    #[cold]
    fn pump_waiting(&mut self) -> bool {
        let mut moved = false;
        while let Some(&user_data) = self.retry.front() {
            if !self.issue(user_data as u32, (user_data >> 32) as u32) {
                return moved;
            }
            self.retry.pop_front();
            moved = true;
        }
        while let Some(&id) = self.backlog.front() {
            let slot = &mut self.slots[id as usize];
            let (piece, pieces) = (slot.issued, slot.pieces());
            if piece == pieces {
                self.backlog.pop_front();
            } else if slot.kind != OpKind::Flush && slot.seg(piece).len == 0 {
                // Done before the queue got a new ring.
                slot.issued += 1;
            } else if self.issue(id, piece) {
                self.slots[id as usize].issued += 1;
                moved = true;
            } else {
                return moved;
            }
        }
        moved
    }

    /// Writes one SQE; false if there is no room.
    #[inline]
    fn issue(&mut self, id: SlotId, piece: u32) -> bool {
        if self.outstanding() >= self.max_outstanding {
            return false;
        }
        let entry = self.entry(id, piece);
        // SAFETY: the entry's memory is inside the slot's buffer (checked at `push`), which stays
        // allocated until the piece has completed (first invariant), and the registered file and
        // buffers belong to this ring.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        self.written += u64::from(pushed.is_ok());
        pushed.is_ok()
    }

    #[inline]
    fn entry(&mut self, id: SlotId, piece: u32) -> squeue::Entry {
        let slot = &mut self.slots[id as usize];
        let user_data = u64::from(piece) << 32 | u64::from(id);
        if slot.kind == OpKind::Flush {
            return self.flush_entry().user_data(user_data);
        }
        let seg = *slot.seg(piece);
        let memory = slot.buf.as_mut_ptr().wrapping_add(seg.buf_offset as usize);
        let offset = self.io.base + seg.device_offset;
        let flags = match slot.kind {
            OpKind::WriteFua => libc::RWF_DSYNC,
            _ => 0,
        };
        let read = slot.kind == OpKind::Read && !self.sink;
        let part = match &self.registered {
            Some(registered) if slot.fixed => {
                Some(((memory as usize - registered.base) / registered.part_bytes) as u16)
            }
            _ => None,
        };
        let entry = match (read, part) {
            (true, Some(part)) => opcode::ReadFixed::new(FILE, memory, seg.len, part)
                .offset(offset)
                .build(),
            (true, None) => opcode::Read::new(FILE, memory, seg.len)
                .offset(offset)
                .build(),
            (false, Some(part)) => opcode::WriteFixed::new(FILE, memory, seg.len, part)
                .offset(offset)
                .rw_flags(flags)
                .build(),
            (false, None) => opcode::Write::new(FILE, memory, seg.len)
                .offset(offset)
                .rw_flags(flags)
                .build(),
        };
        entry.user_data(user_data)
    }

    fn flush_entry(&self) -> squeue::Entry {
        match self.sink || self.io.geometry.read_only {
            true => opcode::Nop::new().build(),
            false => opcode::Fsync::new(FILE).flags(FsyncFlags::DATASYNC).build(),
        }
    }

    /// Whether an operation can be handed to the kernel as it is.
    #[inline]
    fn check(&self, op: &Op) -> Result<()> {
        let name = op.kind.name();
        match op.kind {
            OpKind::Flush => return Ok(()),
            OpKind::Read => {}
            OpKind::Write | OpKind::WriteFua => self.io.writable(name)?,
        }
        let segs = op.segs.as_slice();
        segs.iter()
            .try_for_each(|seg| seg.check(name, &self.io.geometry, op.buf.len()))
    }

    /// Completes without the ring.
    #[cold]
    fn finish_now(&mut self, slot: SlotId, buf: Buf, result: Result<()>) {
        self.ready.push(Completion {
            slot,
            buf,
            result: result.map_err(Box::new),
        });
    }

    /// Moves what the completion ring has into `done`.
    #[inline]
    fn harvest(&mut self, done: &mut Vec<Completion>) {
        let (slots, retry) = (&mut self.slots, &mut self.retry);
        for cqe in self.ring.completion() {
            if cqe.user_data() == WAKER {
                self.armed = None;
                self.woken |= drain(&self.event);
                continue;
            }
            self.completed += 1;
            let id = cqe.user_data() as u32;
            let slot = &mut slots[id as usize];
            if !slot.settle(&cqe) {
                retry.push_back(cqe.user_data());
            } else if slot.remaining == 0 {
                done.push(slot.complete(id));
            }
        }
    }

    /// As `harvest`, into `ready`.
    fn harvest_ready(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        self.harvest(&mut ready);
        self.ready = ready;
    }

    /// Enters the kernel: submits all that is in the submission ring, and waits for `want`
    /// completions or the timeout. May return early.
    fn enter(&mut self, mut want: usize, timeout: Option<Duration>) -> Result<()> {
        loop {
            if !self.enabled {
                self.enable()?;
            }
            match self.enter_once(want, timeout) {
                Ok(_) => return Ok(()),
                Err(e) => match e.raw_os_error() {
                    Some(libc::ETIME) => return Ok(()),
                    // The caller knows what is left of the timeout.
                    Some(libc::EINTR) if want > 0 => return Ok(()),
                    Some(libc::EINTR) => {}
                    // Short of memory: what is left in the ring goes in later.
                    Some(libc::EAGAIN | libc::EBUSY) => {
                        std::thread::yield_now();
                        return Ok(());
                    }
                    // The new ring does not watch the event, so do not sleep.
                    Some(libc::EEXIST) => {
                        self.move_here()?;
                        want = 0;
                    }
                    _ => return Err(failed("submit", 0, 0, e)),
                },
            }
        }
    }

    #[inline]
    fn enter_once(&self, want: usize, timeout: Option<Duration>) -> io::Result<usize> {
        let submitter = self.ring.submitter();
        match timeout.filter(|_| want > 0) {
            None => submitter.submit_and_wait(want),
            Some(timeout) => {
                let timespec = Timespec::from(timeout);
                submitter.submit_with_args(want, &SubmitArgs::new().timespec(&timespec))
            }
        }
    }

    fn enable(&mut self) -> Result<()> {
        if self.ring.params().is_setup_single_issuer() {
            let enabled = self.ring.submitter().register_enable_rings();
            enabled.map_err(|e| failed("enable io_uring", 0, 0, e))?;
        }
        self.enabled = true;
        Ok(())
    }

    /// Gives the queue a new ring, whose issuer this thread becomes.
    #[cold]
    fn move_here(&mut self) -> Result<()> {
        self.harvest_ready();
        if self.in_kernel() > 0 {
            return Err(Error::Unsupported {
                what: "moving an io_uring queue to another thread with operations in flight".into(),
            });
        }
        let ring = build_ring(&self.options)?;
        self.registered = register(&ring, &self.io, self.options.pool.as_ref())?;
        self.ring = ring;
        (self.enabled, self.armed) = (false, None);
        (self.written, self.completed) = (0, 0);
        self.retry.clear();
        self.backlog.clear();
        let fixed = self.registered.is_some();
        for (id, slot) in self.slots.iter_mut().enumerate() {
            if slot.remaining > 0 {
                slot.issued = 0;
                slot.fixed &= fixed;
                self.backlog.push_back(id as SlotId);
            }
        }
        self.pump();
        Ok(())
    }

    /// How many SQEs the kernel has taken and not completed. With SQPOLL it takes them by itself.
    fn in_kernel(&mut self) -> u64 {
        if self.options.sqpoll {
            return self.outstanding();
        }
        let waiting = self.ring.submission().len() as u64;
        // The submission ring is first in, first out: the poll is still there if fewer were written
        // after it than are there.
        let poll_waits = self.armed.is_some_and(|at| self.written - at < waiting);
        self.outstanding() - (waiting - u64::from(poll_waits))
    }

    /// Runs deferred completions, or polls the device, without submitting. Failure shows at the
    /// next `submit`.
    fn collect(&mut self, want: u32) -> io::Result<usize> {
        let submitter = self.ring.submitter();
        // SAFETY: submits nothing and passes no argument.
        unsafe { submitter.enter::<libc::sigset_t>(0, want, ENTER_GETEVENTS, None) }
    }

    /// Asks the ring to watch the event, if anybody has a waker.
    fn arm(&mut self) -> Result<()> {
        if self.armed.is_some() || Arc::strong_count(&self.event) == 1 {
            return Ok(());
        }
        let fd = io_uring::types::Fd(self.event.as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32)
            .build()
            .user_data(WAKER);
        // SAFETY: a poll touches no memory of ours; the event lives at least as long as the ring.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.enter(0, None)?;
        }
        self.armed = Some(self.written);
        Ok(())
    }

    fn wait_for_interrupts(&mut self, timeout: Option<Duration>) -> Result<()> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            self.arm()?;
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            self.enter(1, left)?;
            self.harvest_ready();
            self.pump();
            if self.over(left) {
                return Ok(());
            }
        }
    }

    /// A polled ring has no interrupts to sleep for, and polls no events.
    fn wait_polling(&mut self, timeout: Option<Duration>) -> Result<()> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            self.enter(0, None)?;
            if self.outstanding() > 0 {
                let _ = self.collect(0);
            } else {
                self.sleep_for_event(left);
            }
            self.harvest_ready();
            self.pump();
            self.woken |= drain(&self.event);
            if self.over(left) {
                return Ok(());
            }
        }
    }

    fn sleep_for_event(&self, timeout: Option<Duration>) {
        let mut fds = [PollFd::new(&*self.event, PollFlags::IN)];
        let timespec = timeout.and_then(|t| rustix::event::Timespec::try_from(t).ok());
        // An error is a wake-up that tells nothing; the caller looks again.
        let _ = rustix::event::poll(&mut fds, timespec.as_ref());
    }

    /// Whether a wait has reached its end.
    fn over(&mut self, left: Option<Duration>) -> bool {
        !self.ready.is_empty() || std::mem::take(&mut self.woken) || left == Some(Duration::ZERO)
    }

    /// Waits until the kernel holds nothing of ours. False if it cannot be waited for.
    fn settle_all(&mut self) -> bool {
        loop {
            self.harvest_ready();
            if self.in_kernel() == 0 {
                return true;
            }
            let waited = match self.options.sqpoll {
                true => self.ring.submit_and_wait(1),
                false => self.collect(1),
            };
            if let Err(e) = waited
                && e.kind() != io::ErrorKind::Interrupted
            {
                return false;
            }
        }
    }
}

impl Slot {
    /// Books one completed piece; false if it has more to move and must be issued again.
    #[inline]
    fn settle(&mut self, cqe: &cqueue::Entry) -> bool {
        let (piece, moved) = ((cqe.user_data() >> 32) as u32, cqe.result());
        let expected = match self.kind {
            OpKind::Flush => 0,
            _ => self.seg(piece).len,
        };
        if moved != expected as i32 && !self.settle_odd(piece, moved) {
            return false;
        }
        if let Segs::Many(_) = self.segs
            && self.kind != OpKind::Flush
        {
            self.seg(piece).len = 0;
        }
        self.remaining -= 1;
        true
    }

    /// A short transfer or an error; false if the piece must be issued again.
    #[cold]
    fn settle_odd(&mut self, piece: u32, moved: i32) -> bool {
        if moved == -libc::EINTR {
            return false;
        }
        let name = self.kind.name();
        let seg = match self.kind {
            OpKind::Flush => Seg {
                device_offset: 0,
                buf_offset: 0,
                len: 0,
            },
            _ => *self.seg(piece),
        };
        let (offset, len) = (seg.device_offset, u64::from(seg.len));
        let error = match moved {
            ..0 => failed(name, offset, len, io::Error::from_raw_os_error(-moved)),
            0 => stopped(name, offset, len),
            _ => {
                let moved = moved as u32;
                let seg = self.seg(piece);
                seg.device_offset += u64::from(moved);
                seg.buf_offset += moved;
                seg.len -= moved;
                return false;
            }
        };
        self.error.get_or_insert_with(|| Box::new(error));
        true
    }
}

impl Queue for UringQueue {
    fn depth(&self) -> u32 {
        self.options.depth
    }

    fn in_flight(&self) -> u32 {
        self.options.depth - self.free.len() as u32
    }

    fn push(&mut self, op: Op) -> Result<SlotId, Op> {
        let Some(id) = self.free.pop() else {
            return Err(op);
        };
        let checked = self.check(&op);
        let polled_flush = self.options.iopoll && op.kind == OpKind::Flush;
        if checked.is_err() || polled_flush {
            // A polled ring takes no flush, so this one blocks.
            let result = checked.and_then(|()| self.io.flush());
            self.finish_now(id, op.buf, result);
            return Ok(id);
        }
        let fixed = match &self.registered {
            Some(registered) => op.buf.is_of(&registered.pool),
            None => false,
        };
        let slot = &mut self.slots[id as usize];
        slot.buf = op.buf;
        slot.segs = op.segs;
        slot.kind = op.kind;
        slot.fixed = fixed;
        slot.issued = 0;
        slot.remaining = slot.pieces();
        if slot.remaining == 0 {
            let done = slot.complete(id);
            self.ready.push(done);
        } else if slot.remaining == 1 && self.backlog.is_empty() && self.issue(id, 0) {
            self.slots[id as usize].issued = 1;
        } else {
            self.backlog.push_back(id);
            self.pump();
        }
        Ok(id)
    }

    fn submit(&mut self) -> Result<()> {
        self.pump();
        while !self.ring.submission().is_empty() {
            self.enter(0, None)?;
            // More than the ring holds at once takes more than one call.
            if !self.pump() {
                break;
            }
        }
        Ok(())
    }

    fn reap(&mut self, done: &mut Vec<Completion>) -> usize {
        let first = done.len();
        done.append(&mut self.ready);
        self.harvest(done);
        if done.len() == first && self.outstanding() > 0 && self.enabled {
            let waiting = self.ring.submission().taskrun();
            if (waiting || self.options.iopoll) && self.collect(0).is_ok() {
                self.harvest(done);
            }
        }
        if self.pump() {
            // An error shows again at the caller's next `submit`.
            let _ = self.submit();
        }
        self.free.extend(done[first..].iter().map(|c| c.slot));
        done.len() - first
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.pump();
        if !self.ready.is_empty() || !self.ring.completion().is_empty() {
            self.submit()?;
            self.harvest_ready();
            if self.over(timeout) {
                return Ok(());
            }
        }
        if std::mem::take(&mut self.woken) {
            return self.submit();
        }
        match self.options.iopoll {
            true => self.wait_polling(timeout),
            false => self.wait_for_interrupts(timeout),
        }
    }

    fn waker(&self) -> Waker {
        let event = self.event.clone();
        Waker::new(move || {
            // Full means that it was woken already.
            let _ = rustix::io::write(&*event, &1u64.to_ne_bytes());
        })
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        if !self.settle_all() {
            // The device may still write into these buffers: they are lost, and so is their pool.
            tracing::warn!(image = %self.io.name, "io_uring queue dropped with operations in flight");
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

impl std::fmt::Debug for UringQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UringQueue")
            .field("io", &self.io)
            .field("options", &self.options)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// True if the event was set; clears it.
fn drain(event: &OwnedFd) -> bool {
    rustix::io::read(event, &mut [0u8; 8][..]).is_ok()
}

/// The best ring that the kernel gives.
fn build_ring(options: &QueueOptions) -> Result<IoUring> {
    let base = || -> Builder {
        let mut builder = IoUring::builder();
        if options.iopoll {
            builder.setup_iopoll();
        }
        builder
    };
    if options.sqpoll {
        return base()
            .setup_sqpoll(SQPOLL_IDLE_MS)
            .build(options.depth)
            .map_err(refused);
    }
    let mut best = base();
    best.setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_r_disabled();
    let mut newest = best.clone();
    newest.setup_no_sqarray();
    let mut older = base();
    older
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all();
    [newest, best, older]
        .iter()
        .find_map(|builder| builder.build(options.depth).ok())
        .map_or_else(|| base().build(options.depth).map_err(refused), Ok)
}

/// Registers the file, and the pool if the kernel lets us pin that much memory.
fn register(ring: &IoUring, io: &FileIo, pool: Option<&BufPool>) -> Result<Option<Registered>> {
    let submitter = ring.submitter();
    submitter
        .register_files(&[io.fd.as_raw_fd()])
        .map_err(refused)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{Backend, FileOptions, probe};

    fn polled(file: &tempfile::NamedTempFile) -> UringQueue {
        let open = FileOptions {
            backend: Backend::Uring,
            ..FileOptions::default()
        };
        let io = probe::open(file.path(), &open).expect("opens");
        let options = QueueOptions {
            iopoll: true,
            depth: 4,
            ..QueueOptions::default()
        };
        UringQueue::new(Arc::new(io), &options, false).expect("a ring")
    }

    fn sparse() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new_in(std::env::current_dir().unwrap()).unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        file
    }

    /// Holes need no device, so a polled ring can read them on any machine.
    #[test]
    fn polled_ring_completes_reads_and_flushes() {
        let file = sparse();
        let mut queue = polled(&file);
        for kind in [OpKind::Read, OpKind::Flush, OpKind::Read] {
            let segs = Segs::One(Seg {
                device_offset: 4096,
                buf_offset: 0,
                len: 4096,
            });
            let buf = Buf::copy_of(&[7; 4096]);
            queue.push(Op { kind, buf, segs }).expect("room");
        }
        let mut done = Vec::new();
        while queue.in_flight() > 0 {
            queue.wait(None).unwrap();
            queue.reap(&mut done);
        }
        assert_eq!(done.len(), 3);
        for completion in done {
            completion.result.unwrap();
            let expected = if completion.slot == 1 { 7 } else { 0 };
            assert!(completion.buf.iter().all(|&b| b == expected));
        }
    }

    #[test]
    fn polled_ring_wakes_and_times_out() {
        let file = sparse();
        let mut queue = polled(&file);
        let waker = queue.waker();
        let begun = Instant::now();
        queue.wait(Some(Duration::from_millis(20))).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(20));
        let thread = std::thread::spawn(move || waker.wake());
        queue.wait(Some(Duration::from_secs(20))).unwrap();
        thread.join().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn registered_parts_hold_whole_buffers() {
        let io = probe::open(sparse().path(), &FileOptions::default()).unwrap();
        let ring = build_ring(&QueueOptions::default()).unwrap();
        let pool = BufPool::new(3, 1 << 20);
        let registered = register(&ring, &io, Some(&pool)).unwrap().expect("3 MiB");
        assert_eq!(registered.part_bytes, 1 << 30);
        let odd = BufPool::new(2, 3 << 20);
        let ring = build_ring(&QueueOptions::default()).unwrap();
        let registered = register(&ring, &io, Some(&odd)).unwrap().expect("6 MiB");
        assert_eq!(
            registered.part_bytes % (3 << 20),
            0,
            "no buffer straddles two parts"
        );
    }

    /// A pipe gives what is there, which is how a short transfer is had at will.
    #[test]
    fn short_transfer_is_issued_again_for_the_rest() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut io = probe::open(sparse().path(), &FileOptions::default()).unwrap();
        io.fd = reader.into();
        let options = QueueOptions {
            depth: 2,
            ..QueueOptions::default()
        };
        let mut queue = UringQueue::new(Arc::new(io), &options, false).unwrap();
        let buf = Buf::zeroed(4096);
        let piece = |buf_offset| Seg {
            device_offset: 0,
            buf_offset,
            len: 1024,
        };
        let segs = Segs::Many(Box::new([piece(2048)]));
        let kind = OpKind::Read;
        queue.push(Op { kind, buf, segs }).expect("room");
        let mut done = Vec::new();
        for part in [&[1u8; 600][..], &[2; 400], &[3; 24]] {
            assert!(done.is_empty());
            rustix::io::write(&writer, part).unwrap();
            queue.wait(Some(Duration::from_millis(20))).unwrap();
            queue.reap(&mut done);
        }
        let completion = done.pop().expect("complete");
        completion.result.unwrap();
        let mut expected = [0; 4096];
        expected[2048..2648].fill(1);
        expected[2648..3048].fill(2);
        expected[3048..3072].fill(3);
        assert!(completion.buf[..] == expected);
    }

    #[test]
    fn transfer_that_stops_is_an_error() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut io = probe::open(sparse().path(), &FileOptions::default()).unwrap();
        io.fd = reader.into();
        let mut queue = UringQueue::new(Arc::new(io), &QueueOptions::default(), false).unwrap();
        rustix::io::write(&writer, &[1; 100]).unwrap();
        drop(writer);
        let segs = Segs::One(Seg {
            device_offset: 0,
            buf_offset: 0,
            len: 512,
        });
        let buf = Buf::zeroed(512);
        let kind = OpKind::Read;
        queue.push(Op { kind, buf, segs }).expect("room");
        queue.wait(None).unwrap();
        let mut done = Vec::new();
        assert_eq!(queue.reap(&mut done), 1);
        let error = done.pop().unwrap().result.unwrap_err();
        assert!(matches!(*error, Error::Io { len: 412, .. }), "{error}");
    }
}
