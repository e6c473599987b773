//! The queue of a recorded device: logs at push (issue) and at reap (completion).

use super::{Action, Record};
use crate::{Completion, Event, Op, OpKind, Queue, Result, SlotId, Waker};
use std::sync::Arc;
use std::time::Duration;

pub(super) struct RecordQueue {
    record: Arc<Record>,
    inner: Box<dyn Queue>,
    /// By slot: the numbers under which its operation's pieces were issued.
    issued: Vec<Vec<u64>>,
}

impl RecordQueue {
    pub(super) fn new(record: Arc<Record>, inner: Box<dyn Queue>) -> RecordQueue {
        let issued = vec![Vec::new(); inner.depth() as usize];
        RecordQueue {
            record,
            inner,
            issued,
        }
    }

    fn close(&mut self, completion: &Completion) {
        let issued = std::mem::take(&mut self.issued[completion.slot as usize]);
        if issued.is_empty() {
            return;
        }
        let mut book = self.record.book.lock();
        for number in issued {
            book.close(number, completion.result.is_ok());
        }
    }
}

/// What an operation is about to do. Pieces that are not inside the buffer do nothing.
fn actions(op: &Op) -> Vec<Action> {
    let fua = op.kind == OpKind::WriteFua;
    let atomic = op.kind == OpKind::WriteAtomic;
    let write = |seg: &crate::Seg| {
        let from = seg.buf_offset as usize;
        let bytes = op.buf.get(from..from + seg.len as usize)?;
        Some(Action::Write {
            offset: seg.device_offset,
            bytes: bytes.into(),
            fua,
            atomic,
        })
    };
    match op.kind {
        OpKind::Read => Vec::new(),
        OpKind::Flush => vec![Action::Flush],
        OpKind::Write | OpKind::WriteFua | OpKind::WriteAtomic => {
            op.segs.as_slice().iter().filter_map(write).collect()
        }
    }
}

impl Queue for RecordQueue {
    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn in_flight(&self) -> u32 {
        self.inner.in_flight()
    }

    fn push(&mut self, op: Op) -> Result<SlotId, Op> {
        if self.in_flight() == self.depth() {
            return Err(op);
        }
        let mut actions = actions(&op);
        let geometry = &self.record.geometry;
        if op.kind == OpKind::WriteAtomic && op.check_atomic(geometry).is_err() {
            actions.clear();
        }
        actions.retain(|action| self.record.takes(action));
        let issued: Vec<u64> = match actions {
            none if none.is_empty() => Vec::new(),
            actions => {
                let mut book = self.record.book.lock();
                actions.into_iter().map(|a| book.issue(a)).collect()
            }
        };
        // Issued before the push, since the inner queue may do the operation there.
        match self.inner.push(op) {
            Ok(slot) => {
                self.issued[slot as usize] = issued;
                Ok(slot)
            }
            Err(op) => {
                let mut book = self.record.book.lock();
                issued
                    .iter()
                    .for_each(|number| drop(book.open.remove(number)));
                Err(op)
            }
        }
    }

    fn submit(&mut self) -> Result<()> {
        self.inner.submit()
    }

    fn reap(&mut self, done: &mut Vec<Completion>) -> usize {
        let before = done.len();
        let count = self.inner.reap(done);
        for completion in &done[before..] {
            self.close(completion);
        }
        count
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.inner.wait(timeout)
    }

    fn wait_for(&mut self, want: u32, timeout: Option<Duration>) -> Result<()> {
        self.inner.wait_for(want, timeout)
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn tell(&mut self, event: &Event) -> Result<()> {
        self.inner.tell(event)
    }
}
