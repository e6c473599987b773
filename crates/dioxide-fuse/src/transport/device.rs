//! `/dev/fuse` itself: mounted by us, read and written by any number of threads.
//!
//! Some requests wait for the kernel to write pages, which it does by requests that another thread answers: one is always left. Where
//! threads read all requests here, one more is started when that would be taken, and ends when so many are not needed any more; up to a
//! bound. Beyond it, and with rings, whoever asked is told to try again (`EAGAIN`).
//!
//! Invariants: a request's payload is read into aligned memory, so that a write goes from there to the device; a request is
//! answered through the descriptor that it was read from, because the kernel looks for it there only.

mod clone;
mod mount;

use super::wire::abi::{self, opcode};
use super::wire::{self, Agreed, Asker, Head, Init, Interrupts, Inval, Offer, PAYLOAD_BYTES};
use super::{ConnectOptions, Thread};
use crate::patience::{WRITING_PATIENCE, within};
use crate::server::Server;
use crate::{Errno, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// What stands before the data of a write.
const FRONT_BYTES: usize = abi::IN_HEADER_BYTES + abi::WRITE_IN_BYTES;

/// More descriptors gain nothing, and others need some too.
const MOST_DESCRIPTORS: usize = 64;
/// So many threads are added at most where all but one wait for the kernel.
const MOST_MORE: usize = 512;
/// As any device wants memory to be aligned.
const ALIGN: usize = 4096;

/// A connection to the kernel, and its mount, which goes with it.
pub(super) struct Device {
    /// The first is that of the mount.
    files: Vec<File>,
    agreed: Agreed,
    interrupts: Interrupts,
    dir: PathBuf,
}

/// A request as it was read.
struct Message {
    front: [u8; FRONT_BYTES],
    op: [u8; abi::OP_BYTES],
    payload: Payload,
}

/// As many bytes as a request has, aligned. Those that were never used take no memory, which a [`dioxide::Buf`] would fill with zeros.
struct Payload {
    bytes: Vec<u8>,
    start: usize,
}

impl Payload {
    fn new() -> Payload {
        let bytes = vec![0; FRONT_BYTES + PAYLOAD_BYTES + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN);
        Payload { bytes, start }
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..][..FRONT_BYTES + PAYLOAD_BYTES]
    }
}

impl DerefMut for Payload {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..FRONT_BYTES + PAYLOAD_BYTES]
    }
}

impl Message {
    fn new() -> Message {
        Message {
            front: [0; FRONT_BYTES],
            op: [0; abi::OP_BYTES],
            payload: Payload::new(),
        }
    }

    /// Where a request is read to. The kernel fills it with forgets, some of which are in the front: the payload has room for
    /// them behind what is read.
    fn room(&mut self) -> [IoSliceMut<'_>; 2] {
        [
            IoSliceMut::new(&mut self.front),
            IoSliceMut::new(&mut self.payload[..PAYLOAD_BYTES]),
        ]
    }

    /// Takes the opcode's structure out of a request of so many bytes; the payload then begins at the buffer's first
    /// byte. Returns the header, and how long the two are.
    fn part(&mut self, len: usize, agreed: &Agreed) -> Result<(Head, usize, usize)> {
        let front = len.min(FRONT_BYTES);
        let head = Head::decode(&self.front[..front])?;
        let behind = len - front;
        let op = agreed.op_bytes(head.opcode).min(len - abi::IN_HEADER_BYTES);
        // In the front, and what of it is behind.
        let here = op.min(front - abi::IN_HEADER_BYTES);
        let start = abi::IN_HEADER_BYTES + here;
        self.op[..here].copy_from_slice(&self.front[abi::IN_HEADER_BYTES..start]);
        self.op[here..op].copy_from_slice(&self.payload[..op - here]);
        if op > here {
            self.payload.copy_within(op - here..behind, 0);
            return Ok((head, op, behind - (op - here)));
        }
        let early = front - start;
        if early > 0 {
            self.payload.copy_within(..behind, early);
            self.payload[..early].copy_from_slice(&self.front[start..front]);
        }
        Ok((head, op, early + behind))
    }
}

impl Device {
    /// Mounts. Nothing is read yet.
    pub(super) fn mount(dir: &Path, options: &ConnectOptions) -> io::Result<Device> {
        Ok(Device {
            files: vec![mount::mount(dir, options)?],
            agreed: Agreed::default(),
            interrupts: Interrupts::default(),
            dir: dir.to_owned(),
        })
    }

    /// The descriptor of the mount.
    pub(super) fn file(&self) -> &File {
        &self.files[0]
    }

    /// Gives each of so many threads a descriptor of its own, as far as this process gets them: the kernel keeps what is
    /// being answered by descriptor, and locks it by descriptor.
    pub(super) fn add_descriptors(&mut self, threads: usize) {
        let more = (1..threads.min(MOST_DESCRIPTORS)).map_while(|_| clone::clone(self.file()).ok());
        let more: Vec<File> = more.collect();
        self.files.extend(more);
    }

    /// Agrees with the kernel on how to go on.
    pub(super) fn init(&mut self, offer: &Offer) -> io::Result<Agreed> {
        let file = self.file();
        let mut message = Message::new();
        loop {
            let len = read(file, &mut message)?.ok_or(io::ErrorKind::NotConnected)?;
            let (head, op, _) = message.part(len, &self.agreed)?;
            if head.opcode != opcode::INIT {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let (told, payload) = (&message.op[..op], &mut message.payload[..]);
            match Init::decode(told) {
                Ok(Some(init)) => {
                    let answer = init.reply(offer, payload);
                    reply(file, head.unique, answer, payload)?;
                    self.agreed = init.agreed(offer);
                    return Ok(self.agreed);
                }
                Ok(None) => {
                    let answer = Init::reply_version(payload);
                    reply(file, head.unique, answer, payload)?;
                }
                Err(error) => {
                    reply(file, head.unique, Err(error), payload)?;
                    let (major, minor) = abi::OLDEST;
                    let why = format!("FUSE {major}.{minor} is needed (Linux 5.1)");
                    return Err(io::Error::new(io::ErrorKind::Unsupported, why));
                }
            }
        }
    }

    /// The thread of this number of those that read requests.
    pub(super) fn reader(
        device: &Arc<Device>,
        thread: usize,
        server: Arc<Server>,
        spare: Arc<Spare>,
    ) -> Thread {
        let device = device.clone();
        let serve = move |up: &dyn Fn()| {
            let mut message = Message::new();
            up();
            let file = device.file_of(thread);
            device.serve(file, &mut message, &server, &spare, &|| false)
        };
        (format!("fuse-{thread}"), Box::new(serve))
    }

    /// Starts a thread that reads requests beside those that there are, until it is one too many; false if that is not possible.
    fn start_one_more(self: &Arc<Device>, more: &More, spare: &Arc<Spare>) -> bool {
        let Some(number) = more.count_up() else {
            return false;
        };
        let (device, server, spare) = (self.clone(), more.server.clone(), spare.clone());
        let thread = thread::Builder::new().name(format!("fuse-more-{number}"));
        let started = thread.spawn(move || {
            let (file, mut message) = (device.file_of(number), Message::new());
            let ends = || spare.takes_back_one();
            if let Err(error) = device.serve(file, &mut message, &server, &spare, &ends) {
                tracing::error!(%error, "a thread that was added has ended");
            }
        });
        if let Err(error) = &started {
            more.started.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(%error, "no more threads for FUSE");
        }
        started.is_ok()
    }

    /// The descriptor of the thread of this number.
    fn file_of(&self, thread: usize) -> &File {
        &self.files[thread % self.files.len()]
    }

    /// Answers requests until the file system is unmounted, or until `ends` says so after one of them. Any number of threads may.
    fn serve(
        self: &Arc<Device>,
        file: &File,
        message: &mut Message,
        server: &Server,
        spare: &Arc<Spare>,
        ends: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        let asker = Kernel {
            device: self,
            spare,
        };
        while let Some(len) = read(file, message)? {
            let Ok((head, op, payload)) = message.part(len, &self.agreed) else {
                // Whom to answer is not known.
                continue;
            };
            let buffer = &mut message.payload[..];
            let answer = wire::answer(server, &asker, &head, &message.op[..op], buffer, payload);
            // One request that fails is no reason to end the mount.
            if let Some(answer) = answer
                && let Err(error) = reply(file, head.unique, answer, buffer)
            {
                tracing::error!(%error, head.opcode, "the kernel refused an answer");
            }
            if ends() {
                break;
            }
        }
        Ok(())
    }

    /// Has the kernel write what its page cache has of files, and waits for pages that it is writing. Other threads answer meanwhile.
    pub(super) fn write_pages(&self, nodes: &[u64]) -> io::Result<()> {
        let mut nodes = nodes.iter();
        nodes.try_for_each(|&node| self.invalidate(node, Inval::All))
    }

    /// Has the kernel drop what it has of a file; pages it writes before, by requests that other threads answer meanwhile.
    fn invalidate(&self, node: u64, what: Inval) -> io::Result<()> {
        match rustix::io::write(self.file(), &wire::inval_inode(node, what)) {
            Ok(_) => Ok(()),
            // It has nothing of that file.
            Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the mount, if the kernel has not.
    pub(super) fn detach(&self) {
        // Something else may be mounted there by now.
        if !self.has_ended() {
            let _ = crate::mount::detach(&self.dir, true);
        }
    }

    /// Whether the kernel has ended the connection.
    pub(super) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(self.file(), PollFlags::empty())];
        let polled = poll(&mut fds, Some(&Timespec::default()));
        polled.is_ok() && fds[0].revents().contains(PollFlags::ERR)
    }
}

/// Reads a request. None when there will be no more.
fn read(file: &File, message: &mut Message) -> io::Result<Option<usize>> {
    use rustix::io::Errno as Os;
    loop {
        match rustix::io::readv(file, &mut message.room()) {
            Ok(len) => return Ok(Some(len)),
            // The request was given up before it was read.
            Err(Os::NOENT | Os::INTR | Os::AGAIN) => {}
            Err(Os::NODEV | Os::CONNABORTED) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

fn reply(file: &File, unique: u64, answer: Result<usize>, payload: &[u8]) -> io::Result<()> {
    use rustix::io::Errno as Os;
    let header = wire::out_header(unique, answer);
    let payload = &payload[..answer.unwrap_or(0)];
    let parts = [IoSlice::new(&header), IoSlice::new(payload)];
    match rustix::io::writev(file, &parts) {
        // Nobody waits for it any more.
        Ok(_) | Err(Os::NOENT | Os::NODEV | Os::CONNABORTED) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// How many of the threads that answer may wait for others of them: by default none.
#[derive(Default)]
pub(super) struct Spare {
    pages: AtomicUsize,
    common: Arc<Common>,
    more: Option<More>,
}

/// Threads that are started where all but one wait, and end when there is no need of them: the kernel wakes one after the other, so that many
/// that wait for requests are slower than few.
struct More {
    server: Arc<Server>,
    /// How many may wait without them.
    least: usize,
    started: AtomicUsize,
}

impl More {
    /// Counts one that is about to be started; gives its number. None if there are as many as may be.
    fn count_up(&self) -> Option<usize> {
        let more = |started: usize| (started < MOST_MORE).then_some(started + 1);
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.started.fetch_update(order.0, order.1, more).ok()
    }
}

/// What all threads of a connection share.
#[derive(Default)]
pub(super) struct Common {
    /// How many syncs of everything may begin: it is one at a time.
    sync: AtomicUsize,
    /// How many reads may wait for pages at the same time. One that comes of `io_submit` is among the requests that nobody waits for,
    /// and so are the writes that it waits for: one of those has to find room.
    reads: AtomicUsize,
}

impl Common {
    /// Reads as many less one as the kernel has under way, of so many that it was told: of users without privileges it takes no more
    /// than its parameter says.
    pub(super) fn of(max_background: u16) -> Common {
        let parameter = fs::read_to_string("/sys/module/fuse/parameters/max_user_bgreq");
        let most: Option<u16> = parameter.ok().and_then(|most| most.trim().parse().ok());
        let under_way = most.map_or(max_background, |most| most.min(max_background));
        Common {
            sync: AtomicUsize::new(1),
            reads: AtomicUsize::new(under_way.saturating_sub(1).into()),
        }
    }
}

impl Spare {
    /// Of so many threads one is to be left, and there is one more, for a sync of everything.
    pub(super) fn of(threads: usize, common: Arc<Common>) -> Spare {
        Spare {
            pages: AtomicUsize::new(threads.saturating_sub(1)),
            common,
            more: None,
        }
    }

    /// The same, and threads are added where these are too few: such that read requests, for this server.
    pub(super) fn that_grows(threads: usize, common: Arc<Common>, server: Arc<Server>) -> Spare {
        let spare = Spare::of(threads, common);
        let more = More {
            server,
            least: threads.saturating_sub(1),
            started: AtomicUsize::new(0),
        };
        Spare {
            more: Some(more),
            ..spare
        }
    }

    /// Whether a thread that was added is to end, because more may wait than without it; then none waits for it any more.
    fn takes_back_one(&self) -> bool {
        let Some(more) = &self.more else {
            return false;
        };
        let taken = take_one_of(&self.pages, more.least);
        if taken {
            more.started.fetch_sub(1, Ordering::AcqRel);
        }
        taken
    }
}

/// The kernel, as a thread asks it that answers.
pub(super) struct Kernel<'a> {
    pub(super) device: &'a Arc<Device>,
    pub(super) spare: &'a Arc<Spare>,
}

impl Kernel<'_> {
    /// Has the kernel write its pages, in a thread of its own that goes on where this gives up: until it ends there is no other.
    fn write_all_within(&self, nodes: &[u64], patience: Duration) -> bool {
        let (device, spare, nodes) = (self.device.clone(), self.spare.clone(), nodes.to_vec());
        let write = move || with_one_of(&spare.common.sync, || device.write_pages(&nodes).is_ok());
        within(patience, write).unwrap_or(false)
    }
}

/// Takes one, if there are more left than that.
fn take_one_of(left: &AtomicUsize, keep: usize) -> bool {
    let less = |left: usize| (left > keep).then(|| left - 1);
    let taken = left.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    taken.is_ok()
}

/// Does something while it has one of those that are left; false if there is none.
fn with_one_of(left: &AtomicUsize, work: impl FnOnce() -> bool) -> bool {
    if !take_one_of(left, 0) {
        return false;
    }
    let done = work();
    left.fetch_add(1, Ordering::AcqRel);
    done
}

impl Asker for Kernel<'_> {
    fn write_pages(&self, node: u64) -> bool {
        let pages = &self.spare.pages;
        let more = || {
            let more = self.spare.more.as_ref();
            more.is_some_and(|more| self.device.start_one_more(more, self.spare))
        };
        // For a thread that is started, one more may wait: this one.
        if !take_one_of(pages, 0) && !more() {
            return false;
        }
        let done = self.device.write_pages(&[node]).is_ok();
        pages.fetch_add(1, Ordering::AcqRel);
        done
    }

    fn waits_for_pages(&self) -> bool {
        self.device.agreed.waits_for_pages
    }

    fn write_pages_for_read(&self, node: u64) -> bool {
        with_one_of(&self.spare.common.reads, || self.write_pages(node))
    }

    fn write_all(&self, nodes: &[u64]) -> bool {
        nodes.is_empty() || self.write_all_within(nodes, WRITING_PATIENCE)
    }

    fn forget_attributes(&self, node: u64) {
        let _ = self.device.invalidate(node, Inval::Attributes);
    }

    fn interrupts(&self) -> &Interrupts {
        &self.device.interrupts
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.detach();
    }
}

impl From<Errno> for io::Error {
    fn from(Errno(error): Errno) -> io::Error {
        io::Error::from_raw_os_error(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::OFlags;
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;

    const NOW: Agreed = Agreed {
        over_io_uring: false,
        setxattr_ext: true,
        maps_direct: true,
        waits_for_pages: true,
    };

    fn message(opcode: u32, rest: &[u8]) -> (Message, usize) {
        let mut bytes = vec![0; abi::IN_HEADER_BYTES];
        bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
        bytes.extend_from_slice(rest);
        let mut message = Message::new();
        let front = bytes.len().min(FRONT_BYTES);
        message.front[..front].copy_from_slice(&bytes[..front]);
        message.payload[..bytes.len() - front].copy_from_slice(&bytes[front..]);
        (message, bytes.len())
    }

    #[test]
    fn request_of_any_length_falls_into_its_parts() {
        let rest: Vec<u8> = (1..=200).collect();
        for opcode in [
            opcode::LOOKUP,
            opcode::MKDIR,
            opcode::WRITE,
            opcode::SETATTR,
        ] {
            for len in 0..rest.len() {
                let (mut message, bytes) = message(opcode, &rest[..len]);
                let (head, op, payload) = message.part(bytes, &NOW).unwrap();
                assert_eq!(head.opcode, opcode);
                assert_eq!(op, abi::op_bytes(opcode).min(len));
                let found = [&message.op[..op], &message.payload[..payload]].concat();
                assert_eq!(found, rest[..len]);
            }
        }
    }

    #[test]
    fn forgets_that_fill_the_room_are_all_there() {
        let room = Message::new().room().map(|part| part.len());
        assert_eq!(room, [FRONT_BYTES, PAYLOAD_BYTES]);
        let len = FRONT_BYTES + PAYLOAD_BYTES - abi::IN_HEADER_BYTES;
        let rest: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let (mut message, bytes) = message(opcode::BATCH_FORGET, &rest);
        let (_, op, payload) = message.part(bytes, &NOW).unwrap();
        assert_eq!(op, abi::op_bytes(opcode::BATCH_FORGET));
        let found = [&message.op[..op], &message.payload[..payload]].concat();
        assert!(found == rest, "some are lost");
    }

    /// A pipe that is full, for a kernel that goes on and on.
    #[test]
    fn sync_of_everything_gives_up_in_time_and_is_alone_until_it_was_done() {
        let (mut reader, writer) = io::pipe().unwrap();
        let file = File::from(OwnedFd::from(writer));
        let flags = rustix::fs::fcntl_getfl(&file).unwrap();
        rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK).unwrap();
        let page = || (&file).write(&[0; 4096]).ok();
        let full: usize = std::iter::from_fn(page).sum();
        rustix::fs::fcntl_setfl(&file, flags).unwrap();
        let device = Device {
            files: vec![file],
            agreed: NOW,
            interrupts: Interrupts::default(),
            dir: PathBuf::from("/dev/null"),
        };
        let (device, spare) = (
            Arc::new(device),
            Arc::new(Spare::of(2, Arc::new(Common::of(1)))),
        );
        let kernel = Kernel {
            device: &device,
            spare: &spare,
        };
        let (long, short) = (Duration::from_secs(60), Duration::from_millis(10));
        let left = || spare.common.sync.load(Ordering::Acquire);
        assert!(!kernel.write_all_within(&[7], short));
        while left() == 1 {
            std::thread::sleep(short);
        }
        assert!(!kernel.write_all_within(&[7], long));
        let mut told = vec![0; full + abi::INVAL_INODE_BYTES];
        reader.read_exact(&mut told).unwrap();
        while left() == 0 {
            std::thread::sleep(short);
        }
        assert!(kernel.write_all_within(&[7], long));
        // Nothing is detached of what has ended.
        drop(reader);
        assert!(device.has_ended());
    }

    #[test]
    fn request_shorter_than_a_header_is_refused() {
        let mut message = Message::new();
        for len in 0..abi::IN_HEADER_BYTES {
            assert_eq!(message.part(len, &NOW).err(), Some(Errno::INVAL));
        }
    }
}
