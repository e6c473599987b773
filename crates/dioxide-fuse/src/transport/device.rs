//! `/dev/fuse` itself: mounted by us, read and written by any number of threads.
//!
//! Invariant: a request's payload is read into aligned memory, so that a write goes from there to the device.

mod mount;

use super::ConnectOptions;
use super::wire::abi::{self, opcode};
use super::wire::{self, Asker, Head, Init, Inval, Offer, PAYLOAD_BYTES};
use crate::server::Server;
use crate::{Errno, Result};
use dioxide::Buf;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What stands before the data of a write.
const FRONT_BYTES: usize = abi::IN_HEADER_BYTES + abi::WRITE_IN_BYTES;

/// A connection to the kernel, and its mount, which goes with it.
pub(super) struct Device {
    file: File,
    dir: PathBuf,
    /// `fusermount3` unmounts when this is closed, however it is.
    _auto_unmount: Option<UnixStream>,
}

/// A request as it was read.
struct Message {
    front: [u8; FRONT_BYTES],
    op: [u8; abi::OP_BYTES],
    payload: Buf,
}

impl Message {
    fn new() -> Message {
        Message {
            front: [0; FRONT_BYTES],
            op: [0; abi::OP_BYTES],
            payload: Buf::zeroed(PAYLOAD_BYTES),
        }
    }

    /// Takes the opcode's structure out of a request of so many bytes; the payload then begins at the buffer's first
    /// byte. Returns the header, and how long the two are.
    fn part(&mut self, len: usize) -> Result<(Head, usize, usize)> {
        let front = len.min(FRONT_BYTES);
        let head = Head::decode(&self.front[..front])?;
        let behind = len - front;
        let op = abi::op_bytes(head.opcode).min(len - abi::IN_HEADER_BYTES);
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
            // What fills the buffer is a write, and has nothing in the front.
            let behind = behind.min(self.payload.len() - early);
            self.payload.copy_within(..behind, early);
            self.payload[..early].copy_from_slice(&self.front[start..front]);
        }
        Ok((head, op, early + behind))
    }
}

impl Device {
    /// Mounts. Nothing is read yet.
    pub(super) fn mount(dir: &Path, options: &ConnectOptions) -> io::Result<Device> {
        let (file, auto_unmount) = mount::mount(dir, options)?;
        Ok(Device {
            file,
            dir: dir.to_owned(),
            _auto_unmount: auto_unmount,
        })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Agrees with the kernel on how to go on. Returns whether requests come through rings.
    pub(super) fn init(&self, offer: &Offer) -> io::Result<bool> {
        let mut message = Message::new();
        loop {
            let len = self
                .read(&mut message)?
                .ok_or(io::ErrorKind::NotConnected)?;
            let (head, op, _) = message.part(len)?;
            if head.opcode != opcode::INIT {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let (told, payload) = (&message.op[..op], &mut message.payload[..]);
            match Init::decode(told) {
                Ok(Some(init)) => {
                    let reply = init.reply(offer, payload);
                    self.reply(head.unique, reply, payload)?;
                    return Ok(init.over_io_uring(offer));
                }
                Ok(None) => {
                    let reply = Init::reply_version(payload);
                    self.reply(head.unique, reply, payload)?;
                }
                Err(error) => {
                    self.reply(head.unique, Err(error), payload)?;
                    return Err(error.into());
                }
            }
        }
    }

    /// Answers requests until the file system is unmounted. Any number of threads may.
    pub(super) fn serve(&self, server: &Server, spare: &Spare) -> io::Result<()> {
        let mut message = Message::new();
        let asker = Kernel {
            device: self,
            spare,
        };
        while let Some(len) = self.read(&mut message)? {
            let Ok((head, op, payload)) = message.part(len) else {
                // Whom to answer is not known.
                continue;
            };
            let buffer = &mut message.payload[..];
            let reply = wire::answer(server, &asker, &head, &message.op[..op], buffer, payload);
            if let Some(reply) = reply {
                self.reply(head.unique, reply, buffer)?;
            }
        }
        Ok(())
    }

    /// Reads a request. None when there will be no more.
    fn read(&self, message: &mut Message) -> io::Result<Option<usize>> {
        use rustix::io::Errno as Os;
        loop {
            let mut parts = [
                IoSliceMut::new(&mut message.front),
                IoSliceMut::new(&mut message.payload),
            ];
            match rustix::io::readv(&self.file, &mut parts) {
                Ok(len) => return Ok(Some(len)),
                // The request was given up before it was read.
                Err(Os::NOENT | Os::INTR | Os::AGAIN) => {}
                Err(Os::NODEV | Os::CONNABORTED) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn reply(&self, unique: u64, reply: Result<usize>, payload: &[u8]) -> io::Result<()> {
        use rustix::io::Errno as Os;
        let header = wire::out_header(unique, reply);
        let payload = &payload[..reply.unwrap_or(0)];
        let parts = [IoSlice::new(&header), IoSlice::new(payload)];
        match rustix::io::writev(&self.file, &parts) {
            // Nobody waits for it any more.
            Ok(_) | Err(Os::NOENT | Os::NODEV | Os::CONNABORTED) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Has the kernel drop what it has of a file; pages it writes before, by requests that other threads answer meanwhile.
    fn invalidate(&self, node: u64, what: Inval) -> io::Result<()> {
        match rustix::io::write(&self.file, &wire::inval_inode(node, what)) {
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
        let mut fds = [PollFd::new(&self.file, PollFlags::empty())];
        let polled = poll(&mut fds, Some(&Timespec::default()));
        polled.is_ok() && fds[0].revents().contains(PollFlags::ERR)
    }
}

/// How many of the threads that answer may wait for others of them.
pub(super) struct Spare(AtomicUsize);

impl Spare {
    /// Of so many threads one is to be left.
    pub(super) fn of(threads: usize) -> Spare {
        Spare(AtomicUsize::new(threads.saturating_sub(1)))
    }
}

/// The kernel, as a thread asks it that answers.
pub(super) struct Kernel<'a> {
    pub(super) device: &'a Device,
    pub(super) spare: &'a Spare,
}

impl Asker for Kernel<'_> {
    fn write_pages(&self, node: u64) -> bool {
        let Spare(spare) = self.spare;
        let taken = spare.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
            left.checked_sub(1)
        });
        if taken.is_err() {
            return false;
        }
        let written = self.device.invalidate(node, Inval::All).is_ok();
        spare.fetch_add(1, Ordering::AcqRel);
        written
    }

    fn forget_attributes(&self, node: u64) {
        let _ = self.device.invalidate(node, Inval::Attributes);
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
                let (head, op, payload) = message.part(bytes).unwrap();
                assert_eq!(head.opcode, opcode);
                assert_eq!(op, abi::op_bytes(opcode).min(len));
                let found = [&message.op[..op], &message.payload[..payload]].concat();
                assert_eq!(found, rest[..len]);
            }
        }
    }

    #[test]
    fn request_shorter_than_a_header_is_refused() {
        let mut message = Message::new();
        for len in 0..abi::IN_HEADER_BYTES {
            assert_eq!(message.part(len).err(), Some(Errno::INVAL));
        }
    }
}
