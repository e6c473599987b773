//! A transaction: what a commit makes durable together.
//!
//! It is not the journal: there is no lock and no I/O here, only the arithmetic of what belongs to
//! a transaction. The journal guards the running one by its state mutex.
//!
//! # Invariants
//! - A block is in `blocks` or in `forgotten`, never in both; `revoked` is a part of `forgotten`.
//! - A closed transaction holds the versions it commits; nobody changes those.
//!
//! # Revocation
//! A block that is forgotten while the log holds a copy of it must not be replayed over what it is
//! used for next: the transaction writes a revoke record, which suppresses copies of its own and of
//! earlier transactions. So a block that is used again in the same transaction cancels the record,
//! and one that is used again in a later transaction needs nothing: its copy is newer than the
//! record. A block of which the log holds no copy is revoked never.

use crate::buffer::Buffer;
use crate::{Error, Kind, Result};
use dioxide_format::types::Pblk;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Names a transaction in memory: they count up from 1 and never wrap. It is not the sequence number
/// in the log, which counts only transactions that had something to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub u64);

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How far a transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Takes handles.
    Running,
    /// Takes no more handles and waits for those that it has.
    Locked,
    /// Closed: log blocks are on their way, and no flush was issued yet.
    Flush,
    /// The flush was issued, or the commit block.
    Commit,
    /// Durable.
    Finished,
}

/// Something to do once a transaction is durable.
pub type OnCommit = Box<dyn FnOnce() + Send>;

/// The transaction that takes changes.
pub(crate) struct Running {
    pub(crate) tid: Tid,
    pub(crate) started: Instant,
    blocks: BTreeMap<u64, Arc<Buffer>>,
    revoked: BTreeSet<u64>,
    forgotten: BTreeSet<u64>,
    pub(crate) on_commit: Vec<OnCommit>,
}

impl Running {
    pub(crate) fn new(tid: Tid) -> Running {
        Running {
            tid,
            started: Instant::now(),
            blocks: BTreeMap::new(),
            revoked: BTreeSet::new(),
            forgotten: BTreeSet::new(),
            on_commit: Vec::new(),
        }
    }

    /// A block was changed by a handle that ends: it goes into the log, whatever was revoked before. Whether the
    /// transaction has one block more.
    pub(crate) fn add(&mut self, block: u64, buffer: Arc<Buffer>) -> bool {
        self.revoked.remove(&block);
        self.forgotten.remove(&block);
        buffer.joined(self.tid);
        self.blocks.insert(block, buffer).is_none()
    }

    /// A block was freed. `in_log`: the log holds a copy of it that could be replayed. Whether the transaction has one
    /// block less.
    pub(crate) fn forget(&mut self, block: u64, in_log: bool) -> bool {
        self.forgotten.insert(block);
        if in_log {
            self.revoked.insert(block);
        }
        self.blocks.remove(&block).is_some()
    }

    /// Ends it: the versions of now are what is committed. No handle is open.
    pub(crate) fn close(self) -> Closed {
        let frozen = |(block, buffer): (u64, Arc<Buffer>)| {
            let (bytes, judge) = buffer.freeze();
            Frozen {
                block,
                bytes,
                judge,
                pin: buffer,
            }
        };
        Closed {
            tid: self.tid,
            blocks: self.blocks.into_iter().map(frozen).collect(),
            revoked: self.revoked.into_iter().collect(),
            forgotten: self.forgotten.into_iter().collect(),
            on_commit: self.on_commit,
        }
    }
}

/// The version of a block that a transaction commits.
#[derive(Clone)]
pub(crate) struct Frozen {
    pub(crate) block: u64,
    pub(crate) bytes: Arc<[u8]>,
    /// What it has to be, if that can be told.
    judge: Option<Arc<dyn Kind>>,
    /// Pins the block in the cache.
    pin: Arc<Buffer>,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.pin.give_back(&mut self.bytes);
    }
}

impl Frozen {
    /// Fails if it is not what it has to be.
    fn verify(&self) -> Result<()> {
        let Some(judge) = &self.judge else {
            return Ok(());
        };
        judge
            .verify(Pblk(self.block), &self.bytes)
            .map_err(|source| Error::Damaged {
                kind: judge.name(),
                block: self.block,
                source,
            })
    }
}

/// A transaction that commits. Blocks ascend.
pub(crate) struct Closed {
    pub(crate) tid: Tid,
    pub(crate) blocks: Vec<Frozen>,
    pub(crate) revoked: Vec<u64>,
    pub(crate) forgotten: Vec<u64>,
    pub(crate) on_commit: Vec<OnCommit>,
}

impl Closed {
    /// Fails if a block is not what it has to be.
    pub(crate) fn verify(&self) -> Result<()> {
        self.blocks.iter().try_for_each(Frozen::verify)
    }

    /// Whether the log needs nothing of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.revoked.is_empty()
    }
}

#[cfg(test)]
mod tests;
