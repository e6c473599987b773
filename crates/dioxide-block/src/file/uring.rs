//! The io_uring queue.
//!
//! # Shape
//! Each operation has a preallocated slot. Each of its pieces is one SQE, whose `user_data` is
//! `piece << 32 | slot` (and [`WAITS`]); the operation completes when its last piece has. `push` writes the SQE into
//! the ring (shared memory, no system call); `submit` enters the kernel once for all of them; `reap`
//! reads the completion ring, and enters only if the kernel flags that task work is waiting
//! (`IORING_SQ_TASKRUN`; with `DEFER_TASKRUN` completions are posted by their own thread). Pieces for
//! which the rings have no room wait in `backlog`, short transfers and what the kernel would not wait for in `retry`; both go in
//! as room appears, at the next `submit`, `wait` or `reap`. What was in `retry` goes to a thread of the kernel's, which waits.
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

mod setup;
mod slot;
#[cfg(test)]
mod tests;

pub(super) use setup::available;

use super::io::{FileIo, failed};
use crate::{
    Buf, Completion, Error, Event, Op, OpKind, Queue, QueueOptions, Result, Seg, Segs, SlotId,
    Waker, push_in_place,
};
use io_uring::types::{Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::event::{PollFd, PollFlags};
use setup::{Registered, build_ring, register};
use slot::{Slot, WAITS, piece_of};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FILE: Fixed = Fixed(0);
/// `user_data` of the poll that waits for the waker.
const WAKER: u64 = u64::MAX;
const ENTER_GETEVENTS: u32 = 1;

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
    /// The last `submit` left SQEs in the submission ring.
    left: bool,
    /// SQEs of operations written to the submission ring, since the ring was made.
    written: u64,
    /// And those whose completion was seen.
    completed: u64,
    max_outstanding: u64,
    /// The waker's.
    event: Event,
    /// Somebody got a waker: one that is gone may have been called.
    has_waker: AtomicBool,
    /// The ring polls `event`: the poll was written when `written` had this value.
    armed: Option<u64>,
    /// The waker was called, and no `wait` has returned for it yet.
    woken: bool,
    /// The ring sets it when it completes something.
    told: Option<Event>,
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
            depth: options.real_depth(),
            ..options.clone()
        };
        let depth = options.depth;
        let ring = build_ring(&options)?;
        let registered = register(&ring, &io, options.pool.as_ref())?;
        let event = Event::new()?;
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
            left: false,
            written: 0,
            completed: 0,
            max_outstanding: u64::from(max_outstanding),
            event,
            has_waker: AtomicBool::new(false),
            armed: None,
            woken: false,
            told: None,
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

    /// As `pump`, before the kernel is waited for, which then has something to complete. The kernel's thread (SQPOLL) tells
    /// of what it has completed before it tells of the room that was left in the submission ring; so that nothing may be on its
    /// way while what waits finds the ring full.
    #[inline]
    fn pump_before_wait(&mut self) -> Result<()> {
        self.pump();
        while self.outstanding() == 0 && !(self.retry.is_empty() && self.backlog.is_empty()) {
            self.wait_for_room()?;
            self.pump();
        }
        Ok(())
    }

    /// Waits until the submission ring has room.
    #[cold]
    fn wait_for_room(&mut self) -> Result<()> {
        self.enter(0, None)?;
        if self.options.sqpoll {
            // An error is a wake-up that tells nothing; the caller looks again.
            let _ = self.ring.submitter().squeue_wait();
        }
        Ok(())
    }

    #[cold]
    fn pump_waiting(&mut self) -> bool {
        let mut moved = false;
        while let Some(&user_data) = self.retry.front() {
            let (id, piece) = (user_data as u32, piece_of(user_data));
            if self.slots[id as usize].has_failed() {
                self.give_up(id, piece..piece + 1);
            } else if self.issue(id, piece, WAITS) {
                moved = true;
            } else {
                return moved;
            }
            self.retry.pop_front();
        }
        while let Some(&id) = self.backlog.front() {
            let slot = &mut self.slots[id as usize];
            let (piece, pieces) = (slot.issued, slot.pieces());
            if piece == pieces {
                self.backlog.pop_front();
            } else if slot.has_failed() {
                slot.issued = pieces;
                self.give_up(id, piece..pieces);
            } else if slot.kind != OpKind::Flush && slot.seg(piece).len == 0 {
                // Done before the queue got a new ring.
                slot.issued += 1;
            } else if self.issue(id, piece, 0) {
                self.slots[id as usize].issued += 1;
                moved = true;
            } else {
                return moved;
            }
        }
        moved
    }

    /// What an operation has not issued is not issued any more: it has failed.
    fn give_up(&mut self, id: SlotId, pieces: Range<u32>) {
        let slot = &mut self.slots[id as usize];
        slot.give_up(pieces);
        if slot.remaining == 0 {
            slot.complete(id, &mut self.ready);
        }
    }

    /// Writes one SQE; false if there is no room. `waits` is [`WAITS`] or 0.
    #[inline]
    fn issue(&mut self, id: SlotId, piece: u32, waits: u64) -> bool {
        if self.outstanding() >= self.max_outstanding {
            return false;
        }
        let mut entry = self.entry(id, piece, waits);
        if waits != 0 {
            entry = entry.flags(squeue::Flags::ASYNC);
        }
        // SAFETY: the entry's memory is inside the slot's buffer (checked at `push`), which stays
        // allocated until the piece has completed (first invariant), and the registered file and
        // buffers belong to this ring.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        self.written += u64::from(pushed.is_ok());
        pushed.is_ok()
    }

    #[inline]
    fn entry(&mut self, id: SlotId, piece: u32, waits: u64) -> squeue::Entry {
        let slot = &mut self.slots[id as usize];
        let user_data = waits | u64::from(piece) << 32 | u64::from(id);
        if slot.kind == OpKind::Flush {
            return self.flush_entry().user_data(user_data);
        }
        let seg = *slot.seg(piece);
        let memory = slot.buf.as_mut_ptr().wrapping_add(seg.buf_offset as usize);
        let offset = self.io.base + seg.device_offset;
        let flags = match slot.kind {
            OpKind::WriteFua => libc::RWF_DSYNC,
            OpKind::WriteAtomic => libc::RWF_ATOMIC,
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
            OpKind::WriteAtomic => {
                self.io.writable(name)?;
                return op.check_atomic(&self.io.geometry);
            }
        }
        let check = |seg: &Seg| seg.check(name, &self.io.geometry, op.buf.len());
        match &op.segs {
            Segs::One(seg) => check(seg),
            Segs::Many(segs) => segs.iter().try_for_each(check),
        }
    }

    /// As `push` of an operation that moves its whole buffer.
    #[inline(always)]
    pub(super) fn push_whole(
        &mut self,
        kind: OpKind,
        device_offset: u64,
        buf: Buf,
    ) -> Result<SlotId, Buf> {
        let seg = Seg {
            device_offset,
            buf_offset: 0,
            len: buf.len() as u32,
        };
        let plain = match kind {
            OpKind::Read => true,
            OpKind::Write => !self.io.geometry.read_only,
            OpKind::WriteFua | OpKind::WriteAtomic | OpKind::Flush => false,
        };
        let fits = plain && self.io.geometry.holds(device_offset, seg.len);
        if !fits || !self.backlog.is_empty() {
            return self.push_oddly(kind, device_offset, buf);
        }
        let Some(id) = self.free.pop() else {
            return Err(buf);
        };
        let fixed = self.is_registered(&buf);
        self.slots[id as usize].begin(kind, seg, buf, fixed);
        if !self.issue(id, 0, 0) {
            self.slots[id as usize].issued = 0;
            self.backlog.push_back(id);
        }
        Ok(id)
    }

    #[cold]
    fn push_oddly(&mut self, kind: OpKind, device_offset: u64, buf: Buf) -> Result<SlotId, Buf> {
        let pushed = self.push(Op::whole(kind, device_offset, buf));
        pushed.map_err(|op| op.buf)
    }

    #[inline(always)]
    fn is_registered(&self, buf: &Buf) -> bool {
        match &self.registered {
            Some(registered) => buf.is_of(&registered.pool),
            None => false,
        }
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
        self.harvest_each(|slot, buf, result| {
            push_in_place(done, || Completion { slot, buf, result })
        });
    }

    /// Hands what the completion ring has to `each`.
    #[inline(always)]
    fn harvest_each(&mut self, mut each: impl FnMut(SlotId, Buf, Result<(), Box<Error>>)) {
        let (slots, retry) = (&mut self.slots, &mut self.retry);
        for cqe in self.ring.completion() {
            if cqe.user_data() == WAKER {
                self.armed = None;
                self.woken |= self.event.clear();
                continue;
            }
            self.completed += 1;
            let id = cqe.user_data() as u32;
            let slot = &mut slots[id as usize];
            if !slot.settle(&cqe) {
                retry.push_back(cqe.user_data());
            } else if slot.remaining == 0 {
                let (buf, result) = slot.take();
                each(id, buf, result);
            }
        }
    }

    /// As `reap`, but hands each completion to `each`.
    #[inline(always)]
    pub(super) fn reap_each(&mut self, mut each: impl FnMut(SlotId, Buf, Result<(), Box<Error>>)) {
        let mut free = std::mem::take(&mut self.free);
        let mut take = |slot, buf, result| {
            free.push(slot);
            each(slot, buf, result);
        };
        // The way through an empty one is long.
        if !self.ready.is_empty() {
            for Completion { slot, buf, result } in self.ready.drain(..) {
                take(slot, buf, result);
            }
        }
        let before = self.completed;
        self.harvest_each(&mut take);
        // Who is told waits for the next to come, so that none may be left behind.
        if (self.completed == before || self.told.is_some()) && self.run_deferred() {
            self.harvest_each(&mut take);
        }
        self.free = free;
        self.submit_pumped();
        // What was given up.
        if let (Some(event), false) = (&self.told, self.ready.is_empty()) {
            event.set();
        }
    }

    /// Lets the kernel complete what it keeps until it is asked. Whether there may be something now.
    #[inline(always)]
    fn run_deferred(&mut self) -> bool {
        self.outstanding() > 0
            && self.enabled
            && (self.ring.submission().taskrun() || self.options.iopoll)
            && self.collect(0).is_ok()
    }

    /// Submits what waited for room.
    #[inline(always)]
    fn submit_pumped(&mut self) {
        if self.pump() || self.left {
            // An error shows again at the caller's next `submit`.
            let _ = self.submit();
        }
    }

    /// Whether the completion ring's first entry makes an operation complete, so that the caller's
    /// `reap` will find something. (Not always seen: a false `false` costs a detour through `ready`.)
    #[inline]
    fn can_reap(&mut self) -> bool {
        let mut ring = self.ring.completion();
        let first = ring.next();
        // What was taken counts as consumed when the handle is dropped; this was only a look.
        std::mem::forget(ring);
        first.is_some_and(|cqe| {
            let (id, piece) = (cqe.user_data() as u32, piece_of(cqe.user_data()));
            // The waker's `user_data` names no slot.
            self.slots
                .get_mut(id as usize)
                .is_some_and(|slot| slot.remaining == 1 && slot.expected(piece) == cqe.result())
        })
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
                        // Who waits comes again at once.
                        if want > 0 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
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
        if let Some(event) = &self.told {
            register_event(&ring, event).map_err(|e| failed("register event", 0, 0, e))?;
        }
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

    /// Asks the ring to watch the event, if there was ever a waker.
    fn arm(&mut self) -> Result<()> {
        if self.armed.is_some() || !*self.has_waker.get_mut() {
            return Ok(());
        }
        let fd = io_uring::types::Fd(self.event.as_fd().as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32)
            .build()
            .user_data(WAKER);
        // SAFETY: a poll touches no memory of ours; the event lives at least as long as the ring.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.wait_for_room()?;
        }
        self.armed = Some(self.written);
        Ok(())
    }

    fn wait_for_interrupts(&mut self, want: u32, timeout: Option<Duration>) -> Result<()> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            self.arm()?;
            self.pump_before_wait()?;
            if !self.ready.is_empty() {
                return self.submit();
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            self.enter(want as usize, left)?;
            if self.can_reap() {
                return Ok(());
            }
            self.harvest_ready();
            if self.over(left) {
                return Ok(());
            }
        }
    }

    /// A polled ring has no interrupts to sleep for, and polls no events.
    fn wait_polling(&mut self, timeout: Option<Duration>) -> Result<()> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            self.pump_before_wait()?;
            if !self.ready.is_empty() {
                return self.submit();
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            self.enter(0, None)?;
            if self.outstanding() > 0 {
                let _ = self.collect(0);
            } else {
                self.sleep_for_event(left);
            }
            self.harvest_ready();
            self.woken |= self.event.clear();
            if self.over(left) {
                return Ok(());
            }
        }
    }

    fn sleep_for_event(&self, timeout: Option<Duration>) {
        let mut fds = [PollFd::new(&self.event, PollFlags::IN)];
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
        // The kernel takes atomic writes from plain memory only.
        let fixed = op.kind != OpKind::WriteAtomic && self.is_registered(&op.buf);
        let slot = &mut self.slots[id as usize];
        slot.buf = op.buf;
        slot.segs = op.segs;
        slot.kind = op.kind;
        slot.fixed = fixed;
        slot.issued = 0;
        slot.remaining = slot.pieces();
        if slot.remaining == 0 {
            slot.complete(id, &mut self.ready);
        } else if slot.remaining == 1 && self.backlog.is_empty() && self.issue(id, 0, 0) {
            self.slots[id as usize].issued = 1;
        } else {
            self.backlog.push_back(id);
            self.pump();
        }
        Ok(id)
    }

    fn submit(&mut self) -> Result<()> {
        self.pump();
        let mut in_ring = self.ring.submission().len();
        while in_ring > 0 {
            self.enter(0, None)?;
            // More than the ring holds at once takes more than one call, and so may what the kernel refuses.
            let moved = self.pump();
            let still = self.ring.submission().len();
            if !moved && still >= in_ring {
                break;
            }
            in_ring = still;
        }
        // The kernel's thread (SQPOLL) takes it in its own time; else it was short of memory, and whoever reaps tries again.
        self.left = in_ring > 0 && !self.options.sqpoll;
        if let Some(event) = &self.told {
            let waits = !(self.retry.is_empty() && self.backlog.is_empty());
            if !self.ready.is_empty() || self.left || waits && self.outstanding() == 0 {
                event.set();
            }
        }
        Ok(())
    }

    fn reap(&mut self, done: &mut Vec<Completion>) -> usize {
        let first = done.len();
        self.reap_each(|slot, buf, result| {
            push_in_place(done, || Completion { slot, buf, result })
        });
        done.len() - first
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.wait_for(1, timeout)
    }

    fn wait_for(&mut self, want: u32, timeout: Option<Duration>) -> Result<()> {
        self.pump();
        if !self.ready.is_empty() || self.can_reap() || std::mem::take(&mut self.woken) {
            return self.submit();
        }
        match self.options.iopoll {
            true => self.wait_polling(timeout),
            // Pieces that found no room yet cannot complete before others have.
            false => self.wait_for_interrupts(want.min(self.outstanding() as u32).max(1), timeout),
        }
    }

    fn waker(&self) -> Waker {
        self.has_waker.store(true, Ordering::Relaxed);
        let event = self.event.clone();
        Waker::new(move || event.set())
    }

    fn tell(&mut self, event: &Event) -> Result<()> {
        if self.options.iopoll {
            return Err(Error::Unsupported {
                what: "an event for completions of a polled queue".into(),
            });
        }
        let registered = match register_event(&self.ring, event) {
            // Its issuer is another thread.
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                self.move_here()?;
                register_event(&self.ring, event)
            }
            registered => registered,
        };
        registered.map_err(|e| failed("register event", 0, 0, e))?;
        self.told = Some(event.clone());
        Ok(())
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        if !self.settle_all() {
            // The device may still write into these buffers: they are lost, and so is their pool. What it writes from them is
            // kept from others by the locks, which end with the ring.
            self.io.stay_locked();
            tracing::warn!(image = %self.io.name, "io_uring queue dropped with operations in flight");
            std::mem::forget(std::mem::take(&mut self.slots));
            return;
        }
        // The kernel takes a ring apart some time after it was closed, and until then whoever has the device to itself has it still.
        let _ = self.ring.submitter().unregister_files();
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

/// Has the ring set the event when it completes something.
fn register_event(ring: &IoUring, event: &Event) -> io::Result<()> {
    ring.submitter().register_eventfd(event.as_fd().as_raw_fd())
}
