//! The FUSE protocol as it is on the wire: requests decoded into calls of the [`Server`], what they come to encoded.
//!
//! A request has three parts: a header that all have ([`Head`]), a structure of its opcode, and a payload (names, data). A
//! transport brings them here apart, because a ring has them apart, and because data then lie as aligned
//! as the transport's buffer. The answer's payload goes where the request's was, so that data are read and
//! written in place.
//!
//! Invariants: whatever the bytes are, there is an answer or an error, and nothing outside of the buffer is touched.
//!
//! Rejected: structures that are cast from the bytes. They need `unsafe` or a derive; reading one number after the other is as
//! fast, and shows the layout as well.

pub(super) mod abi;
mod attributes;
mod bytes;
mod init;
mod interrupts;
mod requests;
#[cfg(test)]
mod tests;

pub(super) use init::{Agreed, Init, Offer};
pub(super) use interrupts::Interrupts;

use crate::server::{Caller, Server};
use crate::{Errno, Result};
use abi::opcode;
use bytes::{In, Out};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Largest write, read and listing.
pub(super) const PAYLOAD_BYTES: usize = 1 << 20;

/// `fuse_in_header`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Of the whole request.
    pub(super) len: u32,
    pub(super) opcode: u32,
    pub(super) unique: u64,
    pub(super) node: u64,
    pub(super) caller: Caller,
}

impl Head {
    /// # Errors
    /// `EINVAL` for less bytes than a header has.
    pub(super) fn decode(bytes: &[u8]) -> Result<Head> {
        let mut bytes = In(bytes.get(..abi::IN_HEADER_BYTES).ok_or(Errno::INVAL)?);
        Ok(Head {
            len: bytes.u32()?,
            opcode: bytes.u32()?,
            unique: bytes.u64()?,
            node: bytes.u64()?,
            caller: Caller {
                uid: bytes.u32()?,
                gid: bytes.u32()?,
            },
        })
    }
}

/// `fuse_out_header`, for a payload of so many bytes, or an error.
pub(super) fn out_header(unique: u64, reply: Result<usize>) -> [u8; abi::OUT_HEADER_BYTES] {
    let (len, error) = match reply {
        Ok(len) => (len, 0),
        Err(Errno(error)) => (0, -error),
    };
    let mut bytes = [0; abi::OUT_HEADER_BYTES];
    let mut out = Out::new(&mut bytes);
    out.u32((abi::OUT_HEADER_BYTES + len) as u32);
    out.u32(error as u32).u64(unique);
    bytes
}

/// What the kernel is to forget of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inval {
    /// Attributes and pages, which it writes before.
    All,
    Attributes,
}

/// `FUSE_NOTIFY_INVAL_INODE`.
pub(super) fn inval_inode(node: u64, what: Inval) -> [u8; abi::INVAL_INODE_BYTES] {
    let mut bytes = [0; abi::INVAL_INODE_BYTES];
    let mut out = Out::new(&mut bytes);
    // Of nobody's request: what it is stands where an error does.
    out.u32(abi::INVAL_INODE_BYTES as u32);
    out.u32(abi::NOTIFY_INVAL_INODE).u64(0);
    // From where: no pages are behind -1. No length is all of it.
    let offset = match what {
        Inval::All => 0,
        Inval::Attributes => u64::MAX,
    };
    out.u64(node).u64(offset).u64(0);
    bytes
}

/// What a request may need of who asks.
pub(super) trait Asker {
    /// Has the kernel write what its page cache has of a file. False if that is not possible now: whoever asked is to try again.
    fn write_pages(&self, node: u64) -> bool;

    /// Whether all is written then that the page cache had, and not only what was not on its way. If not, it is as if the file system
    /// knew of no holes, and a read that finds no pages written ends early.
    fn waits_for_pages(&self) -> bool {
        true
    }

    /// The same for a read, which the kernel may count among the requests that nobody waits for.
    fn write_pages_for_read(&self, node: u64) -> bool {
        self.write_pages(node)
    }

    /// The same for these files, before everything is synced: there is always one thread for one such request, and the kernel sends no
    /// second beside it, because it has the root locked meanwhile. False if it takes too long, and, from then on, until it is done.
    fn write_all(&self, nodes: &[u64]) -> bool;

    /// Has the kernel ask for a file's attributes again. It does so in time if that fails.
    fn forget_attributes(&self, node: u64);

    /// Requests that their callers gave up.
    fn interrupts(&self) -> &Interrupts;
}

/// A request on its way to the server.
struct Call<'a> {
    server: &'a Server,
    asker: &'a dyn Asker,
    head: &'a Head,
    op: In<'a>,
    /// The request's payload is its first `len` bytes, the answer's whatever it needs.
    buffer: &'a mut [u8],
    len: usize,
}

/// Answers a request whose payload is the first `len` bytes of the buffer. Returns how many bytes of the buffer the answer's
/// payload has. None if the kernel waits for no answer. Blocks as the server does.
pub(super) fn answer(
    server: &Server,
    asker: &dyn Asker,
    head: &Head,
    op: &[u8],
    buffer: &mut [u8],
    len: usize,
) -> Option<Result<usize>> {
    let call = Call {
        server,
        asker,
        head,
        op: In(op),
        len: len.min(buffer.len()),
        buffer,
    };
    match head.opcode {
        opcode::FORGET => {
            // What cannot be understood is not forgotten.
            let _ = caught(|| call.forget());
            None
        }
        opcode::BATCH_FORGET => {
            let _ = caught(|| call.batch_forget());
            None
        }
        opcode::INTERRUPT => {
            let _ = caught(|| call.interrupt());
            None
        }
        _ => {
            let Caller { uid, gid } = server.acting(head.caller);
            Some(caught(|| dioxide::as_user(uid, gid, || call.answer())))
        }
    }
}

/// A panic, of which its hook has told, is an error of this request: whoever waits for it gets an answer, and the thread goes
/// on to the next. What it may have left undone of a change has aborted the journal.
fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Errno::IO))
}

impl Call<'_> {
    fn answer(self) -> Result<usize> {
        match self.head.opcode {
            opcode::LOOKUP => self.lookup(),
            opcode::GETATTR => self.getattr(),
            opcode::SETATTR => self.setattr(),
            opcode::READLINK => self.readlink(),
            opcode::SYMLINK => self.symlink(),
            opcode::MKNOD => self.mknod(),
            opcode::MKDIR => self.mkdir(),
            opcode::UNLINK => self.unlink(),
            opcode::RMDIR => self.rmdir(),
            opcode::RENAME => self.rename(false),
            opcode::RENAME2 => self.rename(true),
            opcode::LINK => self.link(),
            opcode::OPEN => self.open(),
            opcode::READ => self.read(),
            opcode::WRITE => self.write(),
            opcode::STATFS => self.statfs(),
            opcode::RELEASE => self.release(),
            opcode::FSYNC => self.fsync(),
            opcode::SETXATTR => self.setxattr(),
            opcode::GETXATTR => self.getxattr(),
            opcode::LISTXATTR => self.listxattr(),
            opcode::REMOVEXATTR => self.removexattr(),
            opcode::READDIR => self.readdir(),
            opcode::READDIRPLUS => self.readdirplus(),
            opcode::FSYNCDIR => self.fsyncdir(),
            opcode::CREATE => self.create(),
            opcode::TMPFILE => self.tmpfile(),
            opcode::DESTROY => Ok(0),
            opcode::IOCTL => self.ioctl(),
            opcode::FALLOCATE => self.fallocate(),
            opcode::LSEEK => self.lseek(),
            opcode::COPY_FILE_RANGE => self.copy_file_range(false),
            opcode::COPY_FILE_RANGE_64 => self.copy_file_range(true),
            opcode::SYNCFS => self.syncfs(),
            opcode::STATX => self.statx(),
            // Flush: the kernel has written its pages before. Opendir: directories need not be opened. The kernel
            // asks for neither again.
            _ => Err(Errno::NOSYS),
        }
    }
}
