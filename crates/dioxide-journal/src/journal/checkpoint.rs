//! Checkpoint: committed versions are written to where they belong, and their part of the log is
//! free again.
//!
//! Only the newest committed version of a block is written; the transactions that logged older ones
//! have nothing left to do for it. A version of the running transaction is never written: a
//! checkpoint writes the version that its transaction froze.

use super::{Core, Log};
use crate::Result;
use crate::transaction::{Closed, Frozen, Tid};

/// A committed version that is not home yet.
pub(super) struct Pending {
    frozen: Frozen,
    tid: Tid,
}

impl Pending {
    pub(super) fn new(frozen: Frozen, tid: Tid) -> Pending {
        Pending { frozen, tid }
    }
}

impl Core {
    /// Checkpoints until a closed transaction fits into the log, and some more, so that this is rare.
    pub(super) fn make_room(&self, log: &mut Log, closed: &Closed) -> Result<()> {
        let Some(ring) = &log.ring else { return Ok(()) };
        let need = ring.need(closed.blocks.len(), closed.revoked.len());
        match ring.free() < need {
            true => self.checkpoint(log, ring.worth_freeing(need)),
            false => Ok(()),
        }
    }

    pub(super) fn checkpoint_all(&self) -> Result<()> {
        let mut log = self.log.lock();
        self.check_aborted()?;
        let result = self.checkpoint(&mut log, u32::MAX);
        let result = result.map_err(|error| self.fail(&mut log, error));
        drop(log);
        self.note_abort();
        result
    }

    /// Writes the oldest transactions home, until `want` blocks of the log are free or all are home.
    fn checkpoint(&self, log: &mut Log, want: u32) -> Result<()> {
        let Some(ring) = &mut log.ring else {
            return Ok(());
        };
        let count = ring.oldest_for(want);
        if count == 0 {
            return Ok(());
        }
        let mut blocks = Vec::new();
        for written in ring.oldest(count) {
            let newest = written
                .blocks
                .iter()
                .filter_map(|block| log.home.get(block));
            let its_own = newest.filter(|pending| pending.tid == written.tid);
            blocks.extend(its_own.map(|pending| pending.frozen.clone()));
        }
        blocks.sort_unstable_by_key(|frozen| frozen.block);
        self.write_home(&blocks)?;
        self.flush_home()?;
        let freed = ring.free_oldest(count)?;
        for frozen in &blocks {
            log.home.remove(&frozen.block);
        }
        drop(blocks);
        self.forget_logged(
            freed
                .iter()
                .flat_map(|w| w.blocks.iter().map(|&b| (b, w.tid))),
        );
        self.cache.trim();
        Ok(())
    }

    /// The log no longer holds these transactions' copies.
    fn forget_logged(&self, freed: impl Iterator<Item = (u64, Tid)>) {
        let mut state = self.state.lock();
        for (block, tid) in freed {
            if state.logged.get(&block) == Some(&tid) {
                state.logged.remove(&block);
            }
        }
    }
}
