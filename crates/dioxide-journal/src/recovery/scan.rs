//! The first pass: which transactions of the log were committed.

use super::window::Window;
use super::{Context, Span, damaged, log_error};
use crate::Result;
use dioxide_format::journal::{
    BlockHeader, BlockType, Checksums, CommitBlock, Tid, TransactionSum, tags,
};

/// How far past damage to look for what was committed after it. A transaction is far smaller; the
/// bound is for a journal that claims to be as large as a sparse image can be.
const SEARCH_BLOCKS: u32 = 1 << 20;

/// What the pass found.
pub(super) struct Found {
    pub(super) span: Span,
    pub(super) wrapped: bool,
    pub(super) dropped: Option<Tid>,
}

/// The first thing that is wrong with a transaction.
struct Fault {
    at: u32,
    error: dioxide_format::Error,
    /// It is the data that is wrong, which only `async_commit` can leave so.
    is_data: bool,
}

/// The transaction that is being read.
#[derive(Default)]
struct Open {
    fault: Option<Fault>,
    sum: TransactionSum,
}

impl Open {
    fn note(&mut self, at: u32, is_data: bool, checked: dioxide_format::Result<()>) {
        if let Err(error) = checked
            && self.fault.is_none()
        {
            self.fault = Some(Fault { at, error, is_data });
        }
    }
}

struct Scan<'c, 'l> {
    context: &'c Context<'l>,
    window: Window<'l>,
    at: u32,
    /// How many blocks from the beginning on were read. The log ends at the latest where it began.
    used: u32,
    /// How many of them belong to committed transactions.
    committed: u32,
    /// The transaction that is expected.
    tid: Tid,
    open: Open,
    /// When the last transaction was committed.
    last_secs: u64,
    dropped: Option<Tid>,
}

/// Finds the transactions from `first` on, whose first block is `start`.
pub(super) fn scan(context: &Context<'_>, start: u32, first: Tid) -> Result<Found> {
    let mut scan = Scan {
        context,
        window: Window::new(context),
        at: start,
        used: 0,
        committed: 0,
        tid: first,
        open: Open::default(),
        last_secs: 0,
        dropped: None,
    };
    while scan.step()? {}
    scan.check_end()?;
    Ok(Found {
        span: Span {
            start,
            first,
            end: scan.tid,
        },
        wrapped: scan.committed > context.ring.end - start,
        dropped: scan.dropped,
    })
}

impl Scan<'_, '_> {
    /// Reads a block with a header and what belongs to it; whether the log goes on.
    fn step(&mut self) -> Result<bool> {
        if self.used >= self.context.ring.len() {
            return Ok(false);
        }
        let at = self.at;
        let block = self.window.block(at)?;
        let Some((kind, tid)) = BlockHeader::of(block).filter(|(_, tid)| *tid == self.tid) else {
            return Ok(false);
        };
        match kind {
            BlockType::Descriptor => self.descriptor(at),
            BlockType::Revoke => {
                let checked = self.context.format.verify_tail(block);
                self.open.note(at, false, checked);
                self.advance(1);
                Ok(true)
            }
            BlockType::Commit => self.commit(at, tid),
            BlockType::SuperBlockV1 | BlockType::SuperBlockV2 => Ok(false),
        }
    }

    fn advance(&mut self, by: u32) {
        self.at = self.context.ring.advance(self.at, by);
        self.used = self.used.saturating_add(by);
    }

    fn descriptor(&mut self, at: u32) -> Result<bool> {
        let format = &self.context.format;
        let block = self.window.block(at)?;
        let checked = format.verify_tail(block);
        let found: Vec<_> = tags(block, format).collect();
        let is_summed = format.checksums == Checksums::Transaction;
        if is_summed {
            self.open.sum.add(block);
        }
        let is_sound = checked.is_ok();
        self.open.note(at, false, checked);
        let reads_data = is_summed || self.context.is_async && is_sound;
        self.advance(1);
        for tag in found {
            if reads_data && self.used < self.context.ring.len() {
                let data = self.window.block(self.at)?;
                let checked = format.verify_data(&tag, self.tid, data);
                if is_summed {
                    self.open.sum.add(data);
                }
                self.open.note(self.at, true, checked);
            }
            self.advance(1);
        }
        Ok(true)
    }

    /// A commit block of the transaction: is it one?
    fn commit(&mut self, at: u32, tid: Tid) -> Result<bool> {
        let block = self.window.block(at)?;
        let commit = CommitBlock::parse(block).map_err(|error| damaged(at, error))?;
        let checked = CommitBlock::verify(block, &self.context.format, &self.open.sum);
        let open = std::mem::take(&mut self.open);
        let is_bad = checked.is_err();
        let fault = open.fault.or(checked.err().map(|error| Fault {
            at,
            error,
            is_data: false,
        }));
        self.advance(1);
        let Some(fault) = fault else {
            self.last_secs = commit.secs;
            self.committed = self.used;
            self.tid = tid.next();
            return Ok(true);
        };
        if commit.secs < self.last_secs {
            return Ok(false);
        }
        // What was written before the commit block was durable before it, unless `async_commit`.
        let may_be_torn = is_bad && fault.at == at || fault.is_data && self.context.is_async;
        if !may_be_torn || self.has_commit_after(fault.at, tid.next(), SEARCH_BLOCKS)? {
            return Err(damaged(fault.at, fault.error));
        }
        self.dropped = Some(tid);
        Ok(false)
    }

    /// The log ended. If it ended in a transaction with a damaged descriptor, from which the place of
    /// the next block does not follow, or where a block is missing, there must be nothing more that was committed.
    fn check_end(&mut self) -> Result<()> {
        let (at, tid) = (self.at, self.tid);
        match self.open.fault.take() {
            Some(fault) => match self.has_commit_after(fault.at, tid, SEARCH_BLOCKS)? {
                true => Err(damaged(fault.at, fault.error)),
                false => Ok(()),
            },
            None if self.misses_a_block() => {
                let what = format!("no block of transaction {tid}, and what follows was committed");
                Err(log_error(at, &what))
            }
            None => Ok(()),
        }
    }

    /// Whether there is a good commit block behind the end. What cannot be read is none.
    fn misses_a_block(&mut self) -> bool {
        // Only these tell what was committed later from what another journal left here.
        let is_told = self.context.format.checksums.per_block() && self.committed > 0;
        if !is_told || self.dropped.is_some() {
            return false;
        }
        let first = match self.context.is_async {
            true => self.tid.next(),
            false => self.tid,
        };
        // A transaction takes a quarter of the log at most, and what was read holds earlier ones.
        let blocks = self.context.ring.len();
        let within = blocks.saturating_sub(self.used).min(blocks / 2);
        matches!(self.has_commit_after(self.at, first, within), Ok(true))
    }

    /// Whether a good commit block of transaction `first` or a later one is among so many blocks that follow block `from`.
    fn has_commit_after(&mut self, from: u32, first: Tid, within: u32) -> Result<bool> {
        let format = &self.context.format;
        for ahead in 1..self.context.ring.len().min(SEARCH_BLOCKS).min(within) {
            let at = self.context.ring.advance(from, ahead);
            let block = self.window.block(at)?;
            let Ok(commit) = CommitBlock::parse(block) else {
                continue;
            };
            // A sum over a transaction says nothing here: the blocks that it covers are not known.
            let is_good = !format.checksums.per_block()
                || CommitBlock::verify(block, format, &TransactionSum::default()).is_ok();
            if is_good && !first.is_after(commit.tid) && commit.secs >= self.last_secs {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
