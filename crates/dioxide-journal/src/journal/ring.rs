//! The log as a ring of blocks: where the next transaction goes, and what lies in it.
//!
//! Where the end of the ring is spared for the fast commits of Linux, the log does not go round: the superblock does not say
//! so, and who replays it would go on behind that end. When it is full it is emptied, and begins anew at the first block.
//!
//! # Invariants
//! - `free` blocks lie between the head and the tail; one is always left, so that head and tail
//!   differ unless the log is empty. In a log that does not go round they lie between the head and the end, and as
//!   one is left, it always ends before that.
//! - `written` are the transactions from the tail to the head, their sequence numbers consecutive.
//! - The superblock on the device names the tail before blocks in front of it are used again, and it
//!   says that the log is not empty before the first commit block is durable.

use super::JournalOptions;
use super::gather::Gather;
use crate::buffer::BufferCache;
use crate::log::{LogMap, Ring as Numbers};
use crate::transaction::{Closed, Frozen, Tid};
use crate::{Error, Result};
use dioxide_block::{Device, Durability};
use dioxide_format::journal::{
    Checksums, CommitBlock, DescriptorWriter, JournalCompat, JournalFormat, JournalIncompat,
    JournalSuperBlock, RevokeWriter, Tag, TagFlags, Tid as Sequence, TransactionSum, escape,
    needs_escape,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A log smaller than this cannot hold a useful transaction.
const MIN_USABLE: u32 = 16;
/// `s_checksum_type` of crc32c.
const CRC32C: u8 = 4;
/// `s_errno` after a failure, an `EIO` by Linux's number.
const EIO: u32 = (-5i32) as u32;

/// A transaction in the log.
pub(super) struct Written {
    pub(super) tid: Tid,
    /// The blocks that it holds copies of.
    pub(super) blocks: Vec<u64>,
    sequence: Sequence,
    /// First block in the log, and how many.
    start: u32,
    len: u32,
}

pub(super) struct Ring {
    device: Arc<dyn Device>,
    map: LogMap,
    superblock: JournalSuperBlock,
    format: JournalFormat,
    block_bytes: usize,
    barrier: bool,
    kept_clock: Option<Arc<AtomicI64>>,
    /// The ring's block numbers in the journal.
    numbers: Numbers,
    goes_round: bool,
    head: u32,
    free: u32,
    /// Of the transaction that is written next.
    sequence: Sequence,
    written: VecDeque<Written>,
    /// Of the transaction that is being written: where it began, and its checksum.
    begun: (u32, TransactionSum),
}

impl Ring {
    pub(super) fn open(
        device: Arc<dyn Device>,
        map: LogMap,
        mut superblock: JournalSuperBlock,
        cache: &BufferCache,
        options: &JournalOptions,
    ) -> Result<Ring> {
        let start = match options.replays_fast_commits {
            true => superblock.s_first,
            false => 0,
        };
        if superblock.s_start != start {
            let what = format!("s_start is not {start}: the log was not recovered");
            return Err(not_fit(&what));
        }
        let block_bytes = cache.block_bytes();
        add_features(&mut superblock, options)?;
        let invalid = |e: dioxide_format::Error| not_fit(&e.to_string());
        superblock.validate(block_bytes as u32).map_err(invalid)?;
        let format = superblock.format().map_err(invalid)?;
        let whole = Numbers::of(&superblock);
        let numbers = match options.spares_fast_commits {
            true => Numbers::before_fast_commits(&superblock),
            false => whole,
        };
        if numbers.end < numbers.first.saturating_add(MIN_USABLE)
            || map.blocks() < superblock.s_maxlen
        {
            return Err(not_fit("too few blocks for a log"));
        }
        Ok(Ring {
            device,
            map,
            format,
            block_bytes,
            barrier: options.barrier,
            kept_clock: options.kept_clock.clone(),
            numbers,
            goes_round: numbers == whole,
            head: numbers.first,
            free: numbers.len() - 1,
            sequence: Sequence(superblock.s_sequence),
            superblock,
            written: VecDeque::new(),
            begun: (numbers.first, TransactionSum::default()),
        })
    }

    /// Whether the log is not on the file system's device.
    pub(super) fn is_external(&self, cache: &BufferCache) -> bool {
        !Arc::ptr_eq(&self.device, cache.device())
    }

    /// Blocks of the ring.
    pub(super) fn usable(&self) -> u32 {
        self.numbers.len()
    }

    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// How many blocks of the log a transaction takes.
    pub(super) fn need(&self, blocks: usize, revoked: usize) -> u32 {
        let tags = DescriptorWriter::capacity(self.block_bytes, &self.format);
        let numbers = RevokeWriter::capacity(self.block_bytes, &self.format);
        let all = blocks + blocks.div_ceil(tags) + revoked.div_ceil(numbers) + 1;
        u32::try_from(all).unwrap_or(u32::MAX)
    }

    /// The largest transaction that the log can hold when it is empty, in blocks. It revokes nothing: an empty log has no copies.
    pub(super) fn most_at_once(&self) -> u32 {
        let tags = DescriptorWriter::capacity(self.block_bytes, &self.format) as u32;
        // Without the block that is always left, and the commit block.
        let room = self.usable() - 2;
        room - room.div_ceil(tags + 1)
    }

    /// Writes all of a transaction but its commit block, without a flush.
    pub(super) fn write_body(&mut self, closed: &Closed) -> Result<()> {
        // A transaction takes at most a quarter of the log, and what the log can have revoked a little; or it is the only one, and revokes nothing.
        let need = self.need(closed.blocks.len(), closed.revoked.len());
        assert!(need <= self.free, "{need} blocks in {} free", self.free);
        if self.written.is_empty() {
            self.point_to(self.head, self.sequence, Durability::Cached)?;
        }
        self.begun = (self.head, TransactionSum::default());
        let device = self.device.clone();
        let mut out = Gather::new(&*device, self.block_bytes, need as usize);
        let mut block = vec![0; self.block_bytes];
        let numbers = RevokeWriter::capacity(self.block_bytes, &self.format);
        for revoked in closed.revoked.chunks(numbers) {
            let mut writer = RevokeWriter::new(&mut block, &self.format, self.sequence);
            revoked.iter().for_each(|&number| writer.push(number));
            writer.seal();
            out.push(self.next()?, &block)?;
        }
        let tags = DescriptorWriter::capacity(self.block_bytes, &self.format);
        for part in closed.blocks.chunks(tags) {
            self.write_part(part, &mut block, &mut out)?;
        }
        out.finish()
    }

    /// One descriptor and its data.
    fn write_part(&mut self, part: &[Frozen], block: &mut [u8], out: &mut Gather) -> Result<()> {
        let mut writer = DescriptorWriter::new(block, &self.format, self.sequence);
        for frozen in part {
            writer.push(self.tag(frozen));
        }
        writer.seal();
        let at = self.next()?;
        self.write_data(at, block, out)?;
        for frozen in part {
            let at = self.next()?;
            match needs_escape(&frozen.bytes) {
                false => self.write_data(at, &frozen.bytes, out)?,
                true => self.write_data(at, &escaped(&frozen.bytes), out)?,
            }
        }
        Ok(())
    }

    /// A block that the transaction's checksum covers.
    fn write_data(&mut self, at: u64, bytes: &[u8], out: &mut Gather) -> Result<()> {
        if self.format.checksums == Checksums::Transaction {
            self.begun.1.add(bytes);
        }
        out.push(at, bytes)
    }

    fn tag(&self, frozen: &Frozen) -> Tag {
        let is_escaped = needs_escape(&frozen.bytes);
        let sum = |bytes: &[u8]| self.format.data_checksum(self.sequence, bytes);
        Tag {
            block: frozen.block,
            flags: match is_escaped {
                true => TagFlags::ESCAPE,
                false => TagFlags::default(),
            },
            checksum: match (self.format.checksums.per_block(), is_escaped) {
                (false, _) => 0,
                (true, false) => sum(&frozen.bytes),
                (true, true) => sum(&escaped(&frozen.bytes)),
            },
        }
    }

    /// Makes what was written durable, and then the commit block.
    pub(super) fn write_commit(&mut self, closed: &Closed) -> Result<()> {
        self.flush()?;
        let now = self.since_1970();
        let commit = CommitBlock {
            tid: self.sequence,
            secs: now.as_secs(),
            nsec: now.subsec_nanos(),
        };
        let mut block = vec![0; self.block_bytes];
        commit.write(&mut block, &self.format, &self.begun.1);
        let offset = self.next()? * self.block_bytes as u64;
        self.device.write_at(offset, &block, self.durable())?;
        self.add_written(closed);
        Ok(())
    }

    fn since_1970(&self) -> Duration {
        match &self.kept_clock {
            Some(ns) => Duration::from_nanos(ns.load(Ordering::Relaxed).max(0) as u64),
            None => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH);
                since.unwrap_or_default()
            }
        }
    }

    fn add_written(&mut self, closed: &Closed) {
        let (start, _) = self.begun;
        let len = self.numbers.distance(start, self.head);
        self.free -= len;
        self.written.push_back(Written {
            tid: closed.tid,
            blocks: closed.blocks.iter().map(|frozen| frozen.block).collect(),
            sequence: self.sequence,
            start,
            len,
        });
        self.sequence = self.sequence.next();
    }

    /// Takes the next block of the log; where it lies on the device.
    fn next(&mut self) -> Result<u64> {
        let at = self.head;
        self.head = self.numbers.advance(at, 1);
        self.map.device_block(at)
    }

    /// How many blocks to have free when `need` are not: some more, so that this is rare, and all where it begins anew.
    pub(super) fn worth_freeing(&self, need: u32) -> u32 {
        match self.goes_round {
            true => need.max(self.usable() / 2),
            false => u32::MAX,
        }
    }

    /// How many of the oldest transactions have to go until `want` blocks are free: all, if these are
    /// not enough.
    pub(super) fn oldest_for(&self, want: u32) -> usize {
        let mut free = self.free;
        let enough = self.written.iter().position(|written| {
            let is_enough = free >= want;
            free += written.len;
            is_enough
        });
        enough.unwrap_or(self.written.len())
    }

    pub(super) fn oldest(&self, count: usize) -> impl Iterator<Item = &Written> {
        self.written.iter().take(count)
    }

    /// Frees the blocks of the oldest transactions, which are home durably.
    pub(super) fn free_oldest(&mut self, count: usize) -> Result<Vec<Written>> {
        let (start, sequence) = match self.written.get(count) {
            Some(tail) => (tail.start, tail.sequence),
            None => (0, self.sequence),
        };
        self.point_to(start, sequence, self.durable())?;
        let freed: Vec<Written> = self.written.drain(..count).collect();
        self.free += freed.iter().map(|written| written.len).sum::<u32>();
        if self.written.is_empty() && !self.goes_round {
            self.head = self.numbers.first;
        }
        Ok(freed)
    }

    /// Writes where the log begins into its superblock; block 0: it is empty.
    fn point_to(&mut self, start: u32, sequence: Sequence, durability: Durability) -> Result<()> {
        self.superblock.s_start = start;
        self.superblock.s_sequence = sequence.0;
        self.write_superblock(durability)
    }

    fn write_superblock(&mut self, durability: Durability) -> Result<()> {
        self.superblock.update_checksum();
        self.map
            .write_superblock(&*self.device, &self.superblock, durability)
    }

    /// Notes in the superblock that the journal was aborted.
    pub(super) fn note_failure(&mut self) -> Result<()> {
        self.superblock.s_errno = EIO;
        self.write_superblock(self.durable())
    }

    fn durable(&self) -> Durability {
        match self.barrier {
            true => Durability::ForceUnitAccess,
            false => Durability::Cached,
        }
    }

    fn flush(&self) -> Result<()> {
        if self.barrier {
            self.device.flush()?;
        }
        Ok(())
    }
}

fn escaped(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    escape(&mut bytes);
    bytes
}

fn not_fit(what: &str) -> Error {
    Error::Log {
        block: 0,
        what: what.into(),
    }
}

/// Whether a log can be written, by its superblock.
pub(super) fn judge(superblock: &JournalSuperBlock) -> Result<()> {
    if superblock.h_blocktype != 4 {
        let what = "a journal with a superblock of version 1, for writing";
        return Err(Error::Unsupported(what.into()));
    }
    let known = JournalIncompat::REVOKE
        | JournalIncompat::BIT64
        | JournalIncompat::ASYNC_COMMIT
        | JournalIncompat::CSUM_V2
        | JournalIncompat::CSUM_V3
        | JournalIncompat::FAST_COMMIT;
    let unknown = superblock.s_feature_incompat & !known.bits();
    if unknown != 0 {
        let what = format!("journal features {unknown:#x}");
        return Err(Error::Unsupported(what));
    }
    Ok(())
}

/// Adds the features that are needed to write. The log is empty, so nothing in it has another form.
fn add_features(superblock: &mut JournalSuperBlock, options: &JournalOptions) -> Result<()> {
    judge(superblock)?;
    superblock.s_feature_incompat |= JournalIncompat::REVOKE.bits();
    if !options.replays_fast_commits {
        superblock.forget_fast_commits();
    }
    if options.wide {
        superblock.s_feature_incompat |= JournalIncompat::BIT64.bits();
    }
    if options.checksum_v3 {
        let other = JournalIncompat::CSUM_V2.bits();
        superblock.s_feature_incompat &= !other;
        superblock.s_feature_compat &= !JournalCompat::CHECKSUM.bits();
        superblock.s_feature_incompat |= JournalIncompat::CSUM_V3.bits();
        superblock.s_checksum_type = CRC32C;
    }
    Ok(())
}
