//! Queues of asynchronous requests.
//!
//! A request is first tried in no-wait mode, in the caller's thread: lock, checks, mapping, and the
//! device operation pushed. Whatever would block answers EAGAIN and goes to a worker, which runs
//! the same code in blocking mode. A request that needs no device (an error, EOF, a hole) completes
//! at once. A sync always may block, so it goes to a worker at once.
//!
//! Where a request is, from push to reap:
//! - `device`: pushed to the device's queue; its slot there is its slot in `requests` and in the
//!   in-flight table.
//! - with a worker (punted, or its completion deferred): comes back through `returns`.
//! - `ready`: finished, not yet reaped.

use crate::inode::Inode;
use crate::io::clock::coarse_now_ns;
use crate::io::direct::iter::{Piece, Pieces};
use crate::io::direct::policy::{LockMode, Plan};
use crate::io::direct::read::{InFile, ReadLock, collect, count_would_block, read_inline};
use crate::io::direct::write::{self, Admitted, Memory, WriteRequest};
use crate::io::direct::{Wait, atomic, simple};
use crate::io::ioend::{CompletionMode, EndFacts, defers};
use crate::map::MapKind;
use crate::mount::Mount;
use crate::stats::Count;
use crate::sync::errand::Errand;
use crate::sync::inflight::{Endless, InFlightRegistry, InFlightTable, Note};
use crate::sync::slot::{self, Claim, Slot};
use crate::{Error, FallocateMode, File, Result};
use crossbeam_channel::{Receiver, Sender, unbounded};
use dioxide_block::{
    self as block, Buf, Device, Durability, Event, Op, OpKind, QueueLane, Seg, Segs, Waker,
    push_in_place,
};
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How to open a queue: depth, buffer pool, polling.
pub use dioxide_block::QueueOptions;

/// A finished request.
#[derive(Debug)]
pub struct Completion {
    /// The tag that the request was pushed with.
    pub tag: u64,
    /// The request's buffer; an empty one for a sync and for [`Queue::allocate`].
    pub buf: Buf,
    /// How many bytes were moved: less than the buffer's length only for a read that met EOF, and a write that met the largest size
    /// of a file; none for a sync and for [`Queue::allocate`].
    pub result: Result<usize, Box<Error>>,
}

/// No more requests fit: reap some first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue is full: reap completions first")]
pub struct QueueFull;

/// Ends a wait of a queue from another thread: see [`Queue::waker`]. Cheap to clone; may outlive the queue.
#[derive(Clone, Debug)]
pub struct QueueWaker {
    woken: Arc<AtomicBool>,
    device: Waker,
}

impl QueueWaker {
    /// Makes the wait that is under way, or the next one, return with what has completed.
    pub fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.device.wake();
    }
}

/// A queue of asynchronous requests on the files of one mount, used by one thread at a time.
///
/// Buffers move in with a request and come back with its completion. The order of completions is
/// free. Dropping a queue waits for what is in flight, but not for what can only go on once its thread has reaped another queue:
/// a worker carries that out then.
///
/// A file that was removed and closed with requests in flight, or in a panic, is freed when they were reaped: by the next wait for a
/// queue, or when one is dropped.
///
/// A queue may move to another thread while nothing is in flight in it. With requests in flight, one over io_uring answers `submit` and
/// `wait` of another thread with [`Error::Unsupported`]. Dropped there it leaves what is in flight to the
/// device, and whoever would have to wait for that (a truncate of such a file) gets `EDEADLK` until the image is opened again.
///
/// Reap what you push: another thread that must have a file to itself (an unaligned write into
/// unwritten blocks, a truncate) waits until the file's requests in this queue were reaped. The
/// same thread waiting for its own queue would wait for ever, and gets `EDEADLK` instead; so it does for a lock or requests held by a thread
/// that waits for its queue, and in [`Queue::wait`] for requests stuck behind another of its queues. A queue belongs to the thread that
/// last pushed, submitted or reaped; one handed on with requests in flight is the old thread's until then, and a deadlock by it
/// is not found: use each of several queues before waiting for any, or dropping one.
#[repr(C, align(64))]
pub struct Queue {
    device: QueueLane,
    core: Core,
}

/// Everything but the device's queue, so that the two can be borrowed apart. What every request looks at comes first: a thread
/// that slept for a completion finds none of it in the processor's cache.
#[repr(C)]
struct Core {
    mount: Arc<Mount>,
    table: Arc<InFlightTable>,
    /// The number that this queue owns, in `_claim`, if one was free.
    slot: Slot,
    depth: usize,
    /// Pushed and not yet reaped, wherever they are. Counted behind the push: a device that panics there has it not.
    outstanding: usize,
    /// How many of them are with a worker.
    away: usize,
    /// How many are reads that end inside a logical block.
    tails: u32,
    /// There is an `event`.
    has_event: bool,
    files: Files,
    /// Where the device has the writes in it that are durable by themselves, by slot. Empty until there was one.
    forced: Vec<u64>,
    ready: VecDeque<Completion>,
    /// Those requests away that were punted; some may have come back.
    punted: Vec<Punted>,
    returns: Receiver<Completion>,
    give_back: Sender<Completion>,
    waker: Waker,
    /// Somebody wants the next wait to return.
    woken: Arc<AtomicBool>,
    /// Somebody may want that.
    has_waker: AtomicBool,
    /// For event loops: set when there is something to reap. The waker sets it too.
    event: Arc<OnceLock<Event>>,
    _claim: Option<Claim>,
}

/// A request in the device's queue. It is kept in the in-flight table, packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    tag: u64,
    /// What the caller gets if all goes well.
    bytes: u32,
    /// What the device moves: more than `bytes` when the file ends inside its last logical block.
    span: u32,
    /// Index in [`Files`].
    file: u32,
    write: bool,
    /// A write that is durable when it has completed.
    forced: bool,
}

impl Request {
    #[inline(always)]
    fn pack(self) -> Note {
        [
            self.tag,
            u64::from(self.bytes) | u64::from(self.span) << 32,
            u64::from(self.file) | u64::from(self.write) << 32 | u64::from(self.forced) << 33,
        ]
    }

    #[inline(always)]
    fn must_defer(self, failed: bool, mode: CompletionMode) -> bool {
        let facts = EndFacts {
            write: self.write,
            failed,
        };
        defers(mode, facts)
    }

    #[inline(always)]
    fn unpack([tag, lengths, file]: Note) -> Request {
        Request {
            tag,
            bytes: lengths as u32,
            span: (lengths >> 32) as u32,
            file: file as u32,
            write: file >> 32 != 0,
            forced: file >> 33 != 0,
        }
    }
}

/// The inodes that requests in flight need, each held once.
#[repr(C)]
struct Files {
    inodes: Vec<Arc<Inode>>,
    last: u32,
    /// So many are remembered before those of finished requests are forgotten.
    most: usize,
    index: HashMap<u64, u32>,
}

const NO_ROOM: &str = "the device's queue is as deep as this one";

/// The least of [`Files::most`].
const REMEMBERED_FILES: usize = if cfg!(test) { 16 } else { 4096 };

impl Files {
    #[inline]
    fn index_of(&mut self, inode: &Arc<Inode>, mount: &Mount, table: &InFlightTable) -> u32 {
        match self.inodes.get(self.last as usize) {
            Some(last) if Arc::ptr_eq(last, inode) => self.last,
            _ => self.search(inode, mount, table),
        }
    }

    fn search(&mut self, inode: &Arc<Inode>, mount: &Mount, table: &InFlightTable) -> u32 {
        let is_full = self.inodes.len() >= self.most;
        if is_full && !self.index.contains_key(&inode.in_flight.id()) {
            self.forget_finished(mount, table);
        }
        self.remember(inode)
    }

    fn remember(&mut self, inode: &Arc<Inode>) -> u32 {
        let next = self.inodes.len() as u32;
        let index = *self.index.entry(inode.in_flight.id()).or_insert(next);
        if index == next {
            self.inodes.push(inode.clone());
        }
        self.last = index;
        index
    }

    /// Forgets those without a request in the table.
    #[cold]
    fn forget_finished(&mut self, mount: &Mount, table: &InFlightTable) {
        let old = std::mem::take(self);
        for slot in table.used() {
            let request = Request::unpack(table.note(slot));
            let file = self.remember(&old.inodes[request.file as usize]);
            table.renote(slot, Request { file, ..request }.pack());
        }
        self.most = REMEMBERED_FILES.max(2 * self.inodes.len());
        let finished = old.inodes.iter();
        let finished = finished.filter(|inode| !self.index.contains_key(&inode.in_flight.id()));
        for inode in finished {
            mount.keep_times_at_once(inode);
        }
    }

    fn forget(&mut self, mount: &Mount) {
        self.inodes.iter().for_each(|inode| mount.keep_times(inode));
        *self = Files::default();
    }
}

impl Default for Files {
    fn default() -> Files {
        Files {
            inodes: Vec::new(),
            index: HashMap::new(),
            last: 0,
            most: REMEMBERED_FILES,
        }
    }
}

/// A request that a worker carries out from the beginning.
struct Punted {
    /// Held until it comes back.
    errand: Weak<Errand>,
    inode: Arc<Inode>,
}

/// An inode whose count is raised for a request that has no entry in the table any more.
struct Counted(Arc<Inode>);

impl Counted {
    fn raise(inode: &Arc<Inode>) -> Counted {
        inode.in_flight.raise();
        Counted(inode.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.in_flight.lower();
    }
}

impl Punted {
    fn is_back(&self) -> bool {
        self.errand.strong_count() == 0
    }

    /// Whether it waits for a file that is drained of requests in these tables, or of such whose thread waits for these.
    fn stands_for(&self, registry: &InFlightRegistry, tables: &[Arc<InFlightTable>]) -> bool {
        let in_flight = &self.inode.in_flight;
        let awaited = in_flight.is_awaited_in(tables) || registry.waits_for(in_flight, tables);
        // In this order: who stood there before the drain began does so no more.
        awaited && self.errand().is_some_and(|it| it.stands())
    }

    fn is_not_begun(&self) -> bool {
        self.errand().is_some_and(|it| it.waits())
    }

    fn errand(&self) -> Option<Arc<Errand>> {
        self.errand.upgrade()
    }
}

/// After how long without a completion a queue that waits for workers looks whether these wait for the queue's own thread.
const LOOK_AFTER: Duration = Duration::from_millis(20);

/// What a request is to do, for a worker.
#[derive(Clone, Copy)]
enum Job {
    Read,
    Write,
    WriteAtomic,
    SyncData,
    SyncAll,
    Allocate(FallocateMode, u64),
}

/// How a request went in.
enum Start {
    /// To the device.
    Pushed,
    /// Finished already.
    Done(Buf, Result<usize>),
    /// It would block.
    Punt(Buf),
}

impl Queue {
    pub(crate) fn new(mount: Arc<Mount>, options: &QueueOptions) -> Result<Queue> {
        let device = QueueLane::of(mount.device.open_queue(options)?);
        let depth = device.depth() as usize;
        let table = Arc::new(InFlightTable::new(depth));
        mount.in_flight.register(&table);
        let (give_back, returns) = unbounded();
        let claim = Claim::take();
        let event = Arc::<OnceLock<Event>>::default();
        let (theirs, of_device) = (event.clone(), device.waker());
        let waker = Waker::new(move || {
            of_device.wake();
            if let Some(event) = theirs.get() {
                event.set();
            }
        });
        let core = Core {
            mount,
            depth,
            outstanding: 0,
            away: 0,
            punted: Vec::new(),
            tails: 0,
            has_event: false,
            table,
            files: Files::default(),
            forced: Vec::new(),
            ready: VecDeque::with_capacity(depth),
            returns,
            give_back,
            waker,
            woken: Arc::default(),
            has_waker: AtomicBool::new(false),
            event,
            slot: claim.as_ref().map_or(Slot::NONE, Claim::slot),
            _claim: claim,
        };
        Ok(Queue { device, core })
    }

    /// How many requests fit.
    pub fn depth(&self) -> usize {
        self.core.depth
    }

    /// How many requests were pushed and not yet reaped.
    pub fn outstanding(&self) -> usize {
        self.core.outstanding
    }

    /// How many files it remembers.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        self.core.files.inodes.len()
    }

    /// Pushes a read of `buf.len()` bytes at `offset`. It starts now or at the next
    /// [`Queue::submit`]. Errors come with the completion. Does not block over io_uring; on devices without a ring or a
    /// queue of their own (see [`crate::Backend`]) the transfer is done here, or up to two requests later.
    ///
    /// # Errors
    /// The buffer, if the queue is full.
    #[inline(always)]
    pub fn read(&mut self, file: &File, offset: u64, buf: Buf, tag: u64) -> Result<(), Buf> {
        let core = &mut self.core;
        if core.outstanding == core.depth {
            return Err(buf);
        }
        let (mount, inode, slot) = (&*file.mount, &file.inode, core.slot());
        if core.is_of(mount)
            && let Some(short) =
                simple::small_read(mount, inode, file.access, offset, buf.len(), slot)
        {
            mount.counters.add(slot, Count::ReadSimple);
            let request = core.whole(inode, tag, buf.len(), false);
            let at = short.device_offset;
            core.push_whole(&mut self.device, inode, OpKind::Read, at, buf, request);
            core.outstanding += 1;
            return Ok(());
        }
        self.read_slowly(file, offset, buf, tag);
        Ok(())
    }

    /// Any read.
    #[inline(never)]
    fn read_slowly(&mut self, file: &File, offset: u64, buf: Buf, tag: u64) {
        let core = &mut self.core;
        let start = match core.check(file, file.access.check_readable()) {
            Err(error) => Start::Done(buf, Err(error)),
            Ok(()) => core.start_read(&mut self.device, file, offset, buf, tag),
        };
        core.settle(start, file, offset, tag, Job::Read);
        core.outstanding += 1;
    }

    /// Pushes a write of all of `buf` at `offset`. As [`Queue::read`].
    ///
    /// # Errors
    /// The buffer, if the queue is full.
    #[inline(always)]
    pub fn write(&mut self, file: &File, offset: u64, buf: Buf, tag: u64) -> Result<(), Buf> {
        let core = &mut self.core;
        if core.outstanding == core.depth {
            return Err(buf);
        }
        let (mount, inode, slot) = (&*file.mount, &file.inode, core.slot());
        let (memory, access) = (Memory::of_one(&buf), file.access);
        if core.is_of(mount)
            && let Some(short) =
                simple::shared_overwrite(mount, inode, access, offset, memory, slot)
        {
            mount.counters.add(slot, Count::WriteShared);
            let request = core.whole(inode, tag, buf.len(), true);
            let at = short.device_offset;
            core.push_whole(&mut self.device, inode, OpKind::Write, at, buf, request);
            core.outstanding += 1;
            return Ok(());
        }
        self.write_slowly(file, offset, buf, tag);
        Ok(())
    }

    /// Any write.
    #[inline(never)]
    fn write_slowly(&mut self, file: &File, offset: u64, buf: Buf, tag: u64) {
        let core = &mut self.core;
        let start = match core.check(file, file.access.check_writable()) {
            Err(error) => Start::Done(buf, Err(error)),
            Ok(()) => core.start_write(&mut self.device, file, offset, buf, tag, Job::Write),
        };
        core.settle(start, file, offset, tag, Job::Write);
        core.outstanding += 1;
    }

    /// Pushes a write of all of `buf` at `offset`, as [`File::write_at_atomic`].
    ///
    /// # Errors
    /// The buffer, if the queue is full.
    pub fn write_atomic(
        &mut self,
        file: &File,
        offset: u64,
        buf: Buf,
        tag: u64,
    ) -> Result<(), Buf> {
        let core = &mut self.core;
        if core.outstanding == core.depth {
            return Err(buf);
        }
        let start = match core.check(file, file.access.check_writable()) {
            Err(error) => Start::Done(buf, Err(error)),
            Ok(()) => {
                let job = Job::WriteAtomic;
                core.start_write(&mut self.device, file, offset, buf, tag, job)
            }
        };
        core.settle(start, file, offset, tag, Job::WriteAtomic);
        core.outstanding += 1;
        Ok(())
    }

    /// Pushes an `fdatasync`, as [`File::sync_data`]: once it has completed, all writes of the file that had been reaped before it was
    /// pushed, by whichever queue, are durable. It waits for nothing that is in flight; of those requests each may be durable or not. A
    /// worker carries it out, beginning now, and shares a commit with those that come at the same time.
    ///
    /// # Errors
    /// If the queue is full.
    pub fn sync_data(&mut self, file: &File, tag: u64) -> Result<(), QueueFull> {
        self.sync(file, tag, Job::SyncData)
    }

    /// Pushes an `fsync`: as [`Queue::sync_data`], and the times and other attributes.
    ///
    /// # Errors
    /// If the queue is full.
    pub fn sync_all(&mut self, file: &File, tag: u64) -> Result<(), QueueFull> {
        self.sync(file, tag, Job::SyncAll)
    }

    /// Pushes a change of a range of `len` bytes at `offset`, as [`File::allocate`]: to discard or to zero it, say. It waits for what is
    /// in flight on the file, in this queue too, which must be reaped for that. A worker carries it out, beginning now.
    ///
    /// # Errors
    /// If the queue is full.
    pub fn allocate(
        &mut self,
        file: &File,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        tag: u64,
    ) -> Result<(), QueueFull> {
        self.hand_on(file, offset, tag, Job::Allocate(mode, len))
    }

    fn sync(&mut self, file: &File, tag: u64, job: Job) -> Result<(), QueueFull> {
        self.hand_on(file, 0, tag, job)
    }

    /// What a worker does from the beginning.
    fn hand_on(&mut self, file: &File, offset: u64, tag: u64, job: Job) -> Result<(), QueueFull> {
        let core = &mut self.core;
        if core.outstanding == core.depth {
            return Err(QueueFull);
        }
        let nothing = Buf::zeroed(0);
        let start = match core.check(file, Ok(())) {
            Err(error) => Start::Done(nothing, Err(error)),
            Ok(()) => Start::Punt(nothing),
        };
        core.settle(start, file, offset, tag, job);
        core.outstanding += 1;
        Ok(())
    }

    /// What other threads can end a wait of this one with: it returns early then, with what has completed.
    pub fn waker(&self) -> QueueWaker {
        self.core.has_waker.store(true, Ordering::Relaxed);
        QueueWaker {
            woken: self.core.woken.clone(),
            device: self.core.waker.clone(),
        }
    }

    /// A descriptor for an event loop (`poll`, `epoll`, an `AsyncFd`): an `eventfd` that is readable when something that was submitted
    /// can be reaped without waiting, or a waker was called. It stays so (level-triggered) until [`Queue::reap`] or a wait, which take
    /// all that there is, and each completion is an edge as well. It may be readable with nothing to reap, as it is at first. Only
    /// poll it: who reads it loses what it told. Each call gives one more descriptor of the same event, which may outlive the queue.
    ///
    /// Go round so: push; `queue.wait(0, &mut done)`, which reaps, submits and does not wait; take what is in `done`; poll. (See
    /// `examples/event_loop.rs`.) What was only pushed is not told of. A completion may end the poll of the queue's thread by `EINTR`.
    /// From the first call on a reap has one system call more.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a queue over io_uring with [`QueueOptions::iopoll`], a simulated device, and a device of the
    /// caller's whose queue does not have [`dioxide_block::Queue::tell`]. Those of the system if there are no more descriptors.
    pub fn event_fd(&mut self) -> Result<OwnedFd> {
        let core = &mut self.core;
        if !core.has_event {
            let event = Event::new()?;
            self.device.tell(&event)?;
            // Of what has completed nobody told.
            event.set();
            core.event.get_or_init(|| event);
            core.has_event = true;
        }
        let event = core.event.get().expect("it was made");
        Ok(event.descriptor()?)
    }

    /// Hands everything that was pushed to the device: by one system call if it fits into the ring.
    ///
    /// # Errors
    /// If the device's queue is broken.
    pub fn submit(&mut self) -> Result<()> {
        let core = &self.core;
        core.table.set_owner();
        if core.has_event && !core.ready.is_empty() {
            core.tell();
        }
        Ok(self.device.submit()?)
    }

    /// Appends what has completed to `done`, without waiting; returns how many.
    pub fn reap(&mut self, done: &mut Vec<Completion>) -> usize {
        let count = self.reap_now(done);
        match self.core.has_event && self.core.clear_event() {
            // What came before it was cleared.
            true => count + self.reap_now(done),
            false => count,
        }
    }

    fn reap_now(&mut self, done: &mut Vec<Completion>) -> usize {
        let before = done.len();
        let (core, mut now) = (&mut self.core, None);
        core.table.set_owner();
        let mode = core.mount.knobs.sample().completion();
        self.device.reap(|slot, buf, result| {
            let request = core.request(slot);
            if core.tails > 0 || request.must_defer(result.is_err(), mode) {
                let completion = block::Completion { slot, buf, result };
                return core.end_oddly(completion, mode, &mut now, done);
            }
            core.end(slot, request, &mut now);
            let (tag, result) = (request.tag, Ok(request.bytes as usize));
            push_in_place(done, || Completion { tag, buf, result });
        });
        if core.table.is_drained() {
            core.wake_drains();
        }
        let inline = (done.len() - before) as u64;
        let slot = self.core.slot();
        self.core
            .mount
            .counters
            .add_many(slot, Count::CompletedInline, inline);
        // Behind the device, which may panic: what was taken is counted.
        if !self.core.ready.is_empty() {
            self.core.take_ready(done);
        }
        if self.core.away > 0 {
            self.core.take_returns(done);
        }
        let count = done.len() - before;
        self.core.outstanding -= count;
        count
    }

    /// Submits, then blocks until at least `min` requests have completed or all outstanding ones
    /// have, or somebody wakes it ([`Queue::waker`]), and appends what has completed to `done`; returns how many.
    ///
    /// # Errors
    /// If the device's queue is broken. `EDEADLK` if so many cannot complete before this thread has reaped another of its queues:
    /// what has completed is in `done`, the others stay pushed and can be waited for once that is done.
    pub fn wait(&mut self, min: usize, done: &mut Vec<Completion>) -> Result<usize> {
        self.wait_timeout(min, done, None)
    }

    /// As [`Queue::wait`], but returns after `timeout` with what there is.
    ///
    /// # Errors
    /// As [`Queue::wait`]; `EDEADLK` is found out after 20 ms, so not with a `timeout` up to that.
    pub fn wait_timeout(
        &mut self,
        min: usize,
        done: &mut Vec<Completion>,
        timeout: Option<Duration>,
    ) -> Result<usize> {
        let waited = self.wait_until(min, done, timeout);
        self.core.mount.free_deferred();
        waited
    }

    #[inline]
    fn wait_until(
        &mut self,
        min: usize,
        done: &mut Vec<Completion>,
        timeout: Option<Duration>,
    ) -> Result<usize> {
        let min = min.min(self.core.outstanding);
        let mut count = self.reap(done);
        if count >= min {
            self.submit()?;
            return Ok(count);
        }
        // One that the clock cannot tell is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        while count < min {
            let woken = &self.core.woken;
            if woken.load(Ordering::Relaxed) && woken.swap(false, Ordering::Acquire) {
                self.submit()?;
                break;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // A worker's completion may be one of those that are waited for, and a waker ends a wait for one alone.
            let wants_one = self.core.away > 0 || self.core.has_waker.load(Ordering::Relaxed);
            let want = if wants_one { 1 } else { min - count };
            let is_punted = self.core.away > 0 && !self.core.punted.is_empty();
            let looks = is_punted && left.is_none_or(|left| left > LOOK_AFTER);
            let pause = if looks { Some(LOOK_AFTER) } else { left };
            self.device.wait_for(want as u32, pause)?;
            let reaped = self.reap(done);
            count += reaped;
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            if looks && reaped == 0 && self.core.waits_for_own_thread(min - count) {
                return Err(Endless::OwnQueue.into());
            }
        }
        Ok(count)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let panic = self.end_all();
        let core = &mut self.core;
        core.files.forget(&core.mount);
        core.mount.free_deferred();
        // Last. A second panic of a thread would end the process.
        if let Some(panic) = panic
            && !thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

impl Queue {
    /// Waits for what is in flight. What the device panicked with, if it did: others wait for what is in flight as well, so that
    /// is no end.
    fn end_all(&mut self) -> Option<Box<dyn Any + Send>> {
        // In each of them it may panic once.
        let mut panics = self.core.outstanding;
        let (mut done, mut first) = (Vec::new(), None);
        while self.core.outstanding > 0 {
            let waits = AssertUnwindSafe(|| self.wait_until(1, &mut done, None));
            match catch_unwind(waits) {
                Ok(Ok(_)) => {}
                Err(panic) if panics > 0 => {
                    panics -= 1;
                    first = first.or(Some(panic));
                }
                Ok(Err(_)) | Err(_) => {
                    self.core.lose();
                    break;
                }
            }
            done.clear();
        }
        first
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("depth", &self.core.depth)
            .field("outstanding", &self.core.outstanding)
            .finish_non_exhaustive()
    }
}

impl Core {
    #[inline]
    fn slot(&self) -> Slot {
        self.slot
    }

    /// Whether this is the mount that the queue was opened on.
    #[inline(always)]
    fn is_of(&self, mount: &Mount) -> bool {
        std::ptr::eq(&*self.mount, mount)
    }

    /// Whether this file can be used here at all, with the `access` that it has.
    fn check(&self, file: &File, access: Result<()>) -> Result<()> {
        if !self.is_of(&file.mount) {
            return Err(Error::Invalid(
                "the file is of another mount than the queue".into(),
            ));
        }
        self.mount.check_running()?;
        access
    }

    /// Books where a request went.
    fn settle(&mut self, start: Start, file: &File, offset: u64, tag: u64, job: Job) {
        match start {
            Start::Pushed => {}
            Start::Done(buf, result) => {
                let result = self.mount.judged(result).map_err(Box::new);
                self.ready.push_back(Completion { tag, buf, result });
            }
            Start::Punt(buf) => self.punt(file, offset, buf, tag, job),
        }
    }

    /// A read whose lock could not be had by announcing, or that is not for the simple path.
    fn start_read(
        &mut self,
        device: &mut QueueLane,
        file: &File,
        offset: u64,
        buf: Buf,
        tag: u64,
    ) -> Start {
        let (mount, inode, slot) = (&*file.mount, &file.inode, self.slot());
        let Ok(_held) = ReadLock::take(mount, inode, Wait::NoWait, slot) else {
            return Start::Punt(buf);
        };
        let len = buf.len();
        if simple::is_small(mount, len)
            && let Some(device_offset) = simple::locate_read(mount, inode, offset, len)
        {
            mount.counters.add(slot, Count::ReadSimple);
            let request = self.whole(inode, tag, len, false);
            self.push_whole(device, inode, OpKind::Read, device_offset, buf, request);
            return Start::Pushed;
        }
        let start = self.start_general_read(device, file, offset, buf, tag);
        // The worker counts what it is handed.
        if !matches!(start, Start::Punt(_)) {
            mount.counters.add(slot, Count::ReadGeneral);
        }
        start
    }

    /// The general path, under the reader's lock.
    fn start_general_read(
        &mut self,
        device: &mut QueueLane,
        file: &File,
        offset: u64,
        mut buf: Buf,
        tag: u64,
    ) -> Start {
        let (mount, inode) = (&*file.mount, &file.inode);
        if inode.has_inline_data() {
            let result = read_inline(mount, inode, &mut [IoSliceMut::new(&mut buf)], offset);
            return Start::Done(buf, result);
        }
        let Some(read) = InFile::clamp(mount, inode, offset, buf.len()) else {
            return Start::Done(buf, Ok(0));
        };
        if !mount.aligned(offset | buf.len() as u64) {
            return match file.access.direct {
                true => {
                    let error = mount.misaligned("read", offset, buf.len());
                    Start::Done(buf, Err(error))
                }
                false => Start::Punt(buf),
            };
        }
        let pieces = match collect(mount, inode, &read, Wait::NoWait) {
            Ok(pieces) => pieces,
            Err(error) => return self.count_and_punt(buf, error),
        };
        let segs = read_segments(&pieces, &mut buf);
        if segs.as_slice().is_empty() {
            return Start::Done(buf, Ok(read.bytes));
        }
        let request = Request {
            bytes: read.bytes as u32,
            ..self.whole(inode, tag, read.span, false)
        };
        let kind = OpKind::Read;
        self.push(device, inode, Op { kind, buf, segs }, request);
        self.tails += u32::from(read.bytes < read.span);
        Start::Pushed
    }

    /// A write; `job` says whether it is atomic.
    fn start_write(
        &mut self,
        device: &mut QueueLane,
        file: &File,
        offset: u64,
        buf: Buf,
        tag: u64,
        job: Job,
    ) -> Start {
        let len = buf.len();
        if len == 0 {
            return Start::Done(buf, Ok(0));
        }
        if matches!(job, Job::Write) && file.room_at(offset, len) < len {
            return Start::Punt(buf);
        }
        let request = write_request(file, offset, &buf, Wait::NoWait, self.slot());
        if let Job::WriteAtomic = job
            && let Err(error) = atomic::check(&request)
        {
            return Start::Done(buf, Err(error));
        }
        // Its guard lives until the request is pushed and counted as in flight.
        let admitted = match write::admit(&request) {
            Ok(admitted) => admitted,
            Err(error) => return self.punt_or_fail(buf, error),
        };
        let forced = admitted.durability == Durability::ForceUnitAccess;
        let (kind, segs) = match job {
            Job::WriteAtomic => (OpKind::WriteAtomic, atomic_segment(&request, &admitted)),
            _ if forced => (OpKind::WriteFua, write_segments(&request, &admitted)),
            _ => (OpKind::Write, write_segments(&request, &admitted)),
        };
        let segs = match segs {
            Ok(segs) => segs,
            Err(error) => return self.count_and_punt(buf, error),
        };
        self.count_write(&admitted.plan);
        let request = Request {
            forced,
            ..self.whole(&file.inode, tag, len, true)
        };
        let first = segs.as_slice()[0].device_offset;
        let slot = self.push(device, &file.inode, Op { kind, buf, segs }, request);
        if forced {
            self.forced.resize(self.depth, 0);
            self.forced[slot as usize] = first;
        }
        Start::Pushed
    }

    fn count_write(&self, plan: &Plan) {
        let count = match plan.lock {
            LockMode::Exclusive => Count::WriteExclusive,
            LockMode::Shared | LockMode::None => Count::WriteShared,
        };
        self.mount.counters.add(self.slot(), count);
    }

    /// As [`Core::punt_or_fail`], of an error that nobody has counted.
    #[cold]
    fn count_and_punt(&self, buf: Buf, error: Error) -> Start {
        let error = count_would_block(&self.mount, self.slot(), error);
        self.punt_or_fail(buf, error)
    }

    #[cold]
    fn punt_or_fail(&self, buf: Buf, error: Error) -> Start {
        match error {
            Error::WouldBlock(_) => Start::Punt(buf),
            error => Start::Done(buf, Err(error)),
        }
    }

    /// A request that moves `span` bytes, all of them the caller's.
    #[inline(always)]
    fn whole(&mut self, inode: &Arc<Inode>, tag: u64, span: usize, write: bool) -> Request {
        // Buffers are at most 2 GiB.
        Request {
            tag,
            bytes: span as u32,
            span: span as u32,
            file: self.files.index_of(inode, &self.mount, &self.table),
            write,
            forced: false,
        }
    }

    /// Pushes to the device, and raises the in-flight count while the lock is still held.
    fn push(
        &mut self,
        device: &mut QueueLane,
        inode: &Arc<Inode>,
        op: Op,
        request: Request,
    ) -> block::SlotId {
        match device.push(op) {
            Ok(slot) => {
                self.raise(inode, slot, request);
                slot
            }
            Err(_) => unreachable!("{NO_ROOM}"),
        }
    }

    /// As `push`, of one that moves its whole buffer.
    #[inline(always)]
    fn push_whole(
        &mut self,
        device: &mut QueueLane,
        inode: &Arc<Inode>,
        kind: OpKind,
        device_offset: u64,
        buf: Buf,
        request: Request,
    ) {
        match device.push_whole(kind, device_offset, buf) {
            Ok(slot) => self.raise(inode, slot, request),
            Err(_) => unreachable!("{NO_ROOM}"),
        }
    }

    #[inline(always)]
    fn raise(&self, inode: &Inode, slot: block::SlotId, request: Request) {
        self.table.set_owner();
        self.table
            .raise(slot as usize, &inode.in_flight, request.pack());
    }

    #[inline(always)]
    fn request(&self, slot: block::SlotId) -> Request {
        Request::unpack(self.table.note(slot as usize))
    }

    #[cold]
    fn tell(&self) {
        if let Some(event) = self.event.get() {
            event.set();
        }
    }

    /// Whether there may be more to reap.
    #[cold]
    fn clear_event(&self) -> bool {
        self.event.get().is_some_and(Event::clear)
    }

    /// By itself: a queue whose requests are all with the device has none, and the way through an empty deque is long.
    #[cold]
    fn take_ready(&mut self, done: &mut Vec<Completion>) {
        done.extend(self.ready.drain(..));
    }

    /// What is in flight is not known to end. The device's queue waits or leaks by itself; workers keep what they need alive.
    /// Where these wait for another queue of this thread, nothing is left in the device.
    #[cold]
    fn lose(&self) {
        if self.table.lose() {
            self.wake_drains();
            // The table names these objects: others of the same files would be taken for quiet.
            std::mem::forget(self.files.inodes.clone());
        }
    }

    /// Some of what was reaped may be what a drain waits for.
    #[cold]
    fn wake_drains(&self) {
        for inode in &self.files.inodes {
            inode.in_flight.wake();
        }
    }

    /// Zeroes what was read of the last logical block and lies past the end of the file.
    #[cold]
    fn zero_tail(&mut self, buf: &mut Buf, request: Request) {
        if request.bytes < request.span {
            buf[request.bytes as usize..request.span as usize].fill(0);
            self.tails -= 1;
        }
    }

    /// A request came back from the device without an error. `now` is the time of this reap, once
    /// it was asked for.
    #[inline(always)]
    fn end(&self, slot: block::SlotId, request: Request, now: &mut Option<i64>) {
        if request.write {
            let inode = &self.files.inodes[request.file as usize];
            inode.set_modified(*now.get_or_insert_with(coarse_now_ns));
        }
        self.table.drop_last(slot as usize);
    }

    /// As `end`, where a read may end inside a logical block, or a worker ends it. By itself, because what is changed here would
    /// be moved once more there.
    #[cold]
    fn end_oddly(
        &mut self,
        mut completion: block::Completion,
        mode: CompletionMode,
        now: &mut Option<i64>,
        done: &mut Vec<Completion>,
    ) {
        let slot = completion.slot;
        let request = self.request(slot);
        if self.tails > 0 {
            self.zero_tail(&mut completion.buf, request);
        }
        if request.must_defer(completion.result.is_err(), mode) {
            return self.defer(completion, request);
        }
        self.end(slot, request, now);
        done.push(Completion {
            tag: request.tag,
            buf: completion.buf,
            result: Ok(request.bytes as usize),
        });
    }

    /// Hands a completion to a worker. The inode's own count takes over from the table's entry,
    /// whose slot the next request may use.
    #[inline(never)]
    fn defer(&mut self, completion: block::Completion, request: Request) {
        let block::Completion { slot, buf, result } = completion;
        let Request {
            tag,
            file,
            write,
            bytes,
            forced,
            ..
        } = request;
        let forced = forced.then(|| self.forced[slot as usize]);
        let inode = self.files.inodes[file as usize].clone();
        let counted = Counted::raise(&inode);
        // While the table names it: once nothing does, it may be let go with the times that it has. A part of what failed may be
        // written.
        if write {
            inode.set_modified(coarse_now_ns());
        }
        self.table.drop_last(slot as usize);
        self.mount
            .counters
            .add(self.slot(), Count::CompletedDeferred);
        let mut away = self.send_away(tag, buf);
        let fence = self.mount.fence.clone();
        self.mount.ioend.run(move || {
            let counted = counted;
            let result = result.map(|()| bytes as usize).map_err(|error| {
                tracing::warn!(ino = counted.0.ino.0, %error, "direct I/O failed");
                fence.look_at(&error);
                let error = Error::from(*error);
                Box::new(match (forced, fence.mount()) {
                    (Some(at), Some(mount)) => mount.forced_failed(error, || {
                        Ok(fence.write_at(at, away.buf(), Durability::Cached)?)
                    }),
                    _ => error,
                })
            });
            drop(counted);
            // Before the request comes back: who has the completion may close the file system, and open the image again.
            drop(fence);
            away.end(result);
        });
    }

    /// Runs a request in a worker, in blocking mode.
    #[cold]
    fn punt(&mut self, file: &File, offset: u64, buf: Buf, tag: u64, job: Job) {
        self.mount.counters.add(self.slot(), Count::Punt);
        let (mut away, file) = (self.send_away(tag, buf), file.clone());
        let errand = self.punted_on(&file.inode);
        self.mount.workers.run(move || {
            let result = {
                let _begun = errand.begin();
                // Goes before the request comes back: who has the completion may close the file system.
                let file = file;
                let mount = &file.mount;
                match job {
                    Job::Read => file.read_at(away.buf(), offset),
                    Job::Write => mount.call(|| blocking_write(&file, offset, away.buf())),
                    Job::WriteAtomic => {
                        mount.call(|| blocking_write_atomic(&file, offset, away.buf()))
                    }
                    Job::SyncData => file.sync_data().map(|()| 0),
                    Job::SyncAll => file.sync_all().map(|()| 0),
                    Job::Allocate(mode, len) => file.allocate(mode, offset, len).map(|()| 0),
                }
            };
            away.end(result.map_err(Box::new));
        });
    }

    /// Remembers a request that is punted.
    fn punted_on(&mut self, inode: &Arc<Inode>) -> Arc<Errand> {
        if self.punted.len() >= 2 * self.away {
            self.punted.retain(|punted| !punted.is_back());
        }
        let errand = Arc::new(Errand::new(
            inode.in_flight.id(),
            self.mount.in_flight.standing(),
        ));
        self.punted.push(Punted {
            errand: Arc::downgrade(&errand),
            inode: inode.clone(),
        });
        errand
    }

    /// Whether less than `count` requests can complete before the calling thread reaps another of its queues.
    #[cold]
    fn waits_for_own_thread(&self, count: usize) -> bool {
        let registry = &self.mount.in_flight;
        let tables = registry.others_of_this_thread(&self.table);
        if tables.is_empty() {
            return false;
        }
        let stand = |punted: &&Punted| punted.stands_for(registry, &tables);
        let standing = self.punted.iter().filter(stand).count();
        // Others' requests may be among those that occupy the workers.
        let occupied = registry.stand_for(&tables);
        let unserved = match occupied >= self.mount.workers.limit() {
            true => self.punted.iter().filter(|it| it.is_not_begun()).count(),
            false => 0,
        };
        self.outstanding - standing - unserved < count
    }

    /// Makes a worker answer for a request.
    fn send_away(&mut self, tag: u64, buf: Buf) -> Away {
        self.away += 1;
        Away {
            request: Some((tag, buf)),
            give_back: self.give_back.clone(),
            waker: self.waker.clone(),
        }
    }

    fn take_returns(&mut self, done: &mut Vec<Completion>) {
        while let Ok(completion) = self.returns.try_recv() {
            self.away -= 1;
            done.push(completion);
        }
        if self.away == 0 {
            self.punted.clear();
        }
    }
}

/// A request that a worker answers for. It comes back also where a panic ends the work: nobody waits for ever.
struct Away {
    /// Its tag and buffer, until it comes back.
    request: Option<(u64, Buf)>,
    give_back: Sender<Completion>,
    waker: Waker,
}

impl Away {
    fn buf(&mut self) -> &mut Buf {
        &mut self.request.as_mut().expect("it comes back at the end").1
    }

    fn end(mut self, result: Result<usize, Box<Error>>) {
        self.come_back(|| result);
    }

    fn come_back(&mut self, result: impl FnOnce() -> Result<usize, Box<Error>>) {
        let Some((tag, buf)) = self.request.take() else {
            return;
        };
        let result = result();
        // A queue that is gone does not want it.
        let _ = self.give_back.send(Completion { tag, buf, result });
        self.waker.wake();
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.come_back(|| Err(Box::new(Error::Panicked)));
    }
}

/// The pieces of a read as segments of its buffer; holes and unwritten blocks are zeroed here.
fn read_segments(pieces: &[Piece], buf: &mut Buf) -> Segs {
    if let [piece] = pieces
        && piece.kind == MapKind::Mapped
    {
        return Segs::One(segment(piece, 0));
    }
    let mut segs = Vec::with_capacity(pieces.len());
    let mut at = 0;
    for piece in pieces {
        match piece.kind {
            MapKind::Mapped => segs.push(segment(piece, at)),
            MapKind::Hole | MapKind::Unwritten => buf[at..at + piece.len].fill(0),
        }
        at += piece.len;
    }
    Segs::Many(segs.into_boxed_slice())
}

/// Where an admitted write goes.
fn write_segments(request: &WriteRequest<'_>, admitted: &Admitted<'_>) -> Result<Segs> {
    let (mount, pos) = (request.mount, admitted.pos);
    let piece = mount.piece_of(&admitted.first, pos, pos + request.len as u64);
    if piece.len == request.len {
        return Ok(Segs::One(segment(&piece, 0)));
    }
    let mut segs = Vec::new();
    let mut at = 0;
    for piece in Pieces::new(mount, request.inode, pos, request.len, request.wait) {
        let piece = piece?;
        segs.push(segment(&piece, at));
        at += piece.len;
    }
    Ok(Segs::Many(segs.into_boxed_slice()))
}

/// Where an admitted atomic write goes.
fn atomic_segment(request: &WriteRequest<'_>, admitted: &Admitted<'_>) -> Result<Segs> {
    Ok(Segs::One(Seg {
        device_offset: atomic::locate_now(request, admitted)?,
        buf_offset: 0,
        len: request.len as u32,
    }))
}

/// Buffers, and so pieces, are at most 2 GiB.
fn segment(piece: &Piece, at: usize) -> Seg {
    Seg {
        device_offset: piece.device_offset,
        buf_offset: at as u32,
        len: piece.len as u32,
    }
}

#[inline]
fn write_request<'a>(
    file: &'a File,
    offset: u64,
    buf: &[u8],
    wait: Wait,
    slot: Slot,
) -> WriteRequest<'a> {
    WriteRequest {
        mount: &file.mount,
        inode: &file.inode,
        access: file.access,
        policy: file.mount.knobs.sample().policy(),
        offset,
        len: buf.len(),
        memory: Memory::of_one(buf),
        asynchronous: true,
        wait,
        slot,
    }
}

/// A punted write: the same code, allowed to wait.
fn blocking_write(file: &File, offset: u64, buf: &Buf) -> Result<usize> {
    let buf = &buf[..file.room_at(offset, buf.len())];
    let request = write_request(file, offset, buf, Wait::Block, slot::current());
    write::write(&request, &[IoSlice::new(buf)])
}

/// A punted atomic write.
fn blocking_write_atomic(file: &File, offset: u64, buf: &Buf) -> Result<usize> {
    let request = write_request(file, offset, buf, Wait::Block, slot::current());
    atomic::write(&request, buf)
}
