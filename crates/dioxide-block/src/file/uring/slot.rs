//! The state of one operation between `push` and its completion.
//!
//! Invariant: `remaining` pieces have not completed; each of them has `len > 0`, and a completed piece
//! of several has `len = 0`, so that a new ring can tell what is left to do.

use super::super::io::{failed, stopped};
use crate::{Buf, Completion, Error, OpKind, Seg, Segs, SlotId, push_in_place};
use io_uring::cqueue;
use std::io;
use std::ops::Range;

/// In `user_data`: a piece that was issued again, to a thread of the kernel's that waits.
pub(super) const WAITS: u64 = 1 << 63;

/// Which piece of its operation.
#[inline]
pub(super) fn piece_of(user_data: u64) -> u32 {
    ((user_data & !WAITS) >> 32) as u32
}

pub(super) struct Slot {
    pub(super) buf: Buf,
    pub(super) segs: Segs,
    error: Option<Box<Error>>,
    pub(super) kind: OpKind,
    /// The buffer belongs to the registered pool.
    pub(super) fixed: bool,
    /// Pieces before this one were written to the submission ring.
    pub(super) issued: u32,
    /// Pieces that have not completed.
    pub(super) remaining: u32,
}

impl Slot {
    pub(super) fn empty() -> Slot {
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

    /// Takes an operation of one piece, to be issued at once.
    #[inline(always)]
    pub(super) fn begin(&mut self, kind: OpKind, seg: Seg, buf: Buf, fixed: bool) {
        // What was here is empty: its buffer went with its completion.
        std::mem::forget(std::mem::replace(&mut self.buf, buf));
        self.segs = Segs::One(seg);
        self.kind = kind;
        self.fixed = fixed;
        (self.issued, self.remaining) = (1, 1);
    }

    // Here and below, the usual case has a branch of its own: a slice made from either case would make
    // the processor read a length where two fields have just been written, and wait for them.
    #[inline]
    pub(super) fn pieces(&self) -> u32 {
        match &self.segs {
            _ if self.kind == OpKind::Flush => 1,
            Segs::One(_) => 1,
            Segs::Many(segs) => segs.len() as u32,
        }
    }

    /// What the kernel answers for a piece that went well.
    #[inline]
    pub(super) fn expected(&mut self, piece: u32) -> i32 {
        match self.kind {
            OpKind::Flush => 0,
            _ => self.seg(piece).len as i32,
        }
    }

    #[inline]
    pub(super) fn seg(&mut self, piece: u32) -> &mut Seg {
        match &mut self.segs {
            Segs::One(seg) => seg,
            Segs::Many(segs) => &mut segs[piece as usize],
        }
    }

    /// What a finished operation gives back.
    #[inline(always)]
    pub(super) fn take(&mut self) -> (Buf, Result<(), Box<Error>>) {
        let buf = std::mem::replace(&mut self.buf, Buf::empty());
        (buf, self.error.take().map_or(Ok(()), Err))
    }

    pub(super) fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Pieces that have not completed and are not in the ring never will be.
    pub(super) fn give_up(&mut self, pieces: Range<u32>) {
        for piece in pieces {
            let seg = self.seg(piece);
            if std::mem::take(&mut seg.len) > 0 {
                self.remaining -= 1;
            }
        }
    }

    #[inline]
    pub(super) fn complete(&mut self, slot: SlotId, done: &mut Vec<Completion>) {
        let (buf, result) = self.take();
        push_in_place(done, || Completion { slot, buf, result });
    }

    /// Books one completed piece; false if it has more to move and must be issued again.
    #[inline]
    pub(super) fn settle(&mut self, cqe: &cqueue::Entry) -> bool {
        let (piece, moved) = (piece_of(cqe.user_data()), cqe.result());
        if moved != self.expected(piece) {
            let waited = cqe.user_data() & WAITS != 0;
            if !self.settle_odd(piece, moved, waited) {
                return false;
            }
        }
        if let (Segs::Many(segs), false) = (&mut self.segs, self.kind == OpKind::Flush) {
            segs[piece as usize].len = 0;
        }
        self.remaining -= 1;
        true
    }

    /// A short transfer or an error; false if the piece must be issued again.
    #[cold]
    fn settle_odd(&mut self, piece: u32, moved: i32, waited: bool) -> bool {
        if self.has_failed() {
            return true;
        }
        // Linux 5.14 to 6.13: a request that io_uring itself tried without waiting may end so. If it waited, the error is the
        // device's.
        if moved == -libc::EAGAIN && !waited {
            return false;
        }
        // What waits for a worker of the kernel's is cancelled when the thread ends that submitted it.
        if matches!(-moved, libc::EINTR | libc::ECANCELED) {
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
            // Never in parts.
            _ if self.kind == OpKind::WriteAtomic => stopped(name, offset, len),
            _ => {
                let moved = moved as u32;
                let seg = self.seg(piece);
                seg.device_offset += u64::from(moved);
                seg.buf_offset += moved;
                seg.len -= moved;
                return false;
            }
        };
        self.error = Some(Box::new(error));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_was_kept_from_is_issued_again_and_other_errors_are_told() {
        let seg = Seg {
            device_offset: 4096,
            buf_offset: 0,
            len: 512,
        };
        for kind in [OpKind::Read, OpKind::Write, OpKind::Flush] {
            let mut slot = Slot::empty();
            slot.begin(kind, seg, Buf::zeroed(512), false);
            for (errno, waited) in [
                (libc::EINTR, false),
                (libc::EINTR, true),
                (libc::EAGAIN, false),
            ] {
                assert!(!slot.settle_odd(0, -errno, waited), "{kind:?}: {errno}");
            }
            assert_eq!((*slot.seg(0), slot.remaining), (seg, 1));
            // The last is not the kernel's any more, and would come for ever.
            for errno in [libc::EIO, libc::EAGAIN] {
                assert!(slot.settle_odd(0, -errno, true));
                let error = slot.take().1.expect_err("it failed");
                assert_eq!(error.errno(), errno, "{kind:?}");
            }
        }
    }
}
