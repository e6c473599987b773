//! Replays what a crash left in the log.
//!
//! For: making the file system what it was after the last transaction that was committed, before
//! anybody else looks at it. Not for: fast commits, which speak of inodes and names: they are handed
//! out as records.
//!
//! Everything is read and judged before the first write, in passes over the log:
//!
//! 1. *scan*: find the end, which is where the numbers of transactions no longer go up by one, or a
//!    transaction has no commit block. Check the checksums of the log's own blocks.
//! 2. *collect*: note for each block of the file system where its last copy is.
//! 3. *revoke*: drop those that the same or a later transaction revoked.
//! 4. *verify*: check the checksums of the copies that are left.
//! 5. *replay*: write them.
//!
//! # Invariants
//! - Only blocks of the file system that do not hold the journal are written, once each, and only
//!   what has no bad checksum.
//! - A replay changes nothing that another replay reads: it can be cut at any point and begun again.
//!   The log is emptied only after what was replayed is durable.
//! - Memory is bounded by the log: one entry for each of its blocks. What is read of fast
//!   commits has a limit of its own.
//!
//! # What a bad checksum means
//! A transaction without a commit block was never committed, whatever its checksums. With one:
//! - it is older than the transaction before it: a leftover of an earlier round; the log ends;
//! - its commit block is bad and no later transaction was committed: the log ends before it, and
//!   [`Recovered::dropped`] tells. Data may be bad in the same way where the journal allows a commit
//!   block to be written before it (`async_commit`);
//! - else what was committed is damaged: an error, and nothing is written.
//!
//! Rejected: a table of all revoked blocks, as it would grow with what the log claims, and most of
//! them have no copy in the log. Rejected: replaying up to the damage; the caller would be left with
//! a file system that is neither of the states it once had.

mod passes;
mod replay;
mod scan;
mod window;

use crate::Result;
use crate::log::{Log, Ring, fast_commit_area, log_error};
use dioxide_block::{Device, Durability};
use dioxide_format::journal::fast_commit::{self, Next, Record};
use dioxide_format::journal::{JournalFormat, JournalIncompat, JournalSuperBlock, Tag, Tid};
use dioxide_format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};

/// Most bytes of fast commits that are read: their records are all in memory. Linux makes areas of 256 blocks unless told
/// otherwise.
const FAST_COMMITS_MAX_BYTES: usize = 32 << 20;

/// What recovery must know of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Its size in blocks, as it was before the log.
    pub blocks: u64,
    /// Blocks of its device. A log in which the file system grows has copies of blocks behind what was its end.
    pub device_blocks: u64,
    /// Size of an inode in bytes.
    pub inode_bytes: usize,
}

impl FileSystem {
    /// The file system with this superblock on a device.
    pub fn of(sb: &SuperBlock, device: &dyn Device) -> FileSystem {
        FileSystem {
            blocks: sb.blocks_count(),
            device_blocks: device.geometry().size_bytes >> sb.block_size_log2(),
            inode_bytes: sb.inode_size(),
        }
    }
}

/// What was found in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Committed transactions.
    pub transactions: u32,
    /// Blocks of the file system that are replayed.
    pub blocks_replayed: u64,
    /// How many of them are escaped in the log.
    pub blocks_escaped: u64,
    /// Blocks of which the log holds copies, but the last one is revoked.
    pub blocks_revoked: u64,
    /// Number for the next transaction. It leaves out one, so that a commit block which reaches the
    /// device late is never taken for a new one.
    pub next_sequence: Tid,
    /// The log went past its end and on at its beginning.
    pub wrapped: bool,
    /// The log ends with a transaction whose commit block, or data, does not match its checksum.
    pub dropped: Option<Tid>,
    /// How many whole fast commits follow the log.
    pub fast_commits: u32,
    /// Their changes, in order. They are to be made after the replay, and before the log is emptied
    /// by [`Recovery::reset`].
    pub fast_commit_records: Vec<Record>,
}

/// The last copy of a block.
#[derive(Clone, Copy, Debug)]
struct Copy {
    tag: Tag,
    tid: Tid,
    /// Where it lies in the log.
    at: u32,
}

/// The transactions of the log, `end` not being one of them.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    first: Tid,
    end: Tid,
}

/// What every pass works on.
struct Context<'l> {
    log: &'l Log,
    ring: Ring,
    format: JournalFormat,
    is_async: bool,
}

/// A log that was read and judged, and what is to be done.
#[derive(Debug)]
pub struct Recovery<'l> {
    log: &'l Log,
    superblock: JournalSuperBlock,
    format: JournalFormat,
    /// In the order of the log.
    copies: Vec<Copy>,
    recovered: Recovered,
}

impl<'l> Recovery<'l> {
    /// Reads the log. Blocks; writes nothing.
    ///
    /// # Errors
    /// The device's; [`crate::Error::Block`] and [`crate::Error::Log`] for a log that is damaged or
    /// would write where it must not; [`crate::Error::Unsupported`].
    pub fn plan(log: &'l Log, fs: FileSystem) -> Result<Recovery<'l>> {
        let superblock = log.read_superblock()?;
        let format = superblock.format().map_err(|error| damaged(0, error))?;
        let mut recovery = Recovery {
            log,
            format,
            copies: Vec::new(),
            recovered: Recovered {
                next_sequence: Tid(superblock.s_sequence).next(),
                ..Recovered::default()
            },
            superblock,
        };
        if !recovery.superblock.is_empty() {
            recovery.read(fs)?;
        }
        Ok(recovery)
    }

    fn read(&mut self, fs: FileSystem) -> Result<()> {
        let incompat = self.superblock.incompat();
        let context = Context {
            log: self.log,
            ring: Ring::of(&self.superblock),
            format: self.format,
            is_async: incompat.contains(JournalIncompat::ASYNC_COMMIT),
        };
        let first = Tid(self.superblock.s_sequence);
        let found = scan::scan(&context, self.superblock.s_start, first)?;
        let kept = passes::collect(&context, &found.span, &fs)?;
        passes::verify(&context, &kept.copies)?;
        self.recovered = Recovered {
            transactions: found.span.end.0.wrapping_sub(first.0),
            blocks_replayed: kept.copies.len() as u64,
            blocks_escaped: kept.copies.iter().filter(|c| c.tag.is_escaped()).count() as u64,
            blocks_revoked: kept.revoked,
            next_sequence: found.span.end.next(),
            wrapped: found.wrapped,
            dropped: found.dropped,
            ..Recovered::default()
        };
        self.copies = kept.copies;
        self.read_fast_commits(found.span.end, fs.inode_bytes)
    }

    fn read_fast_commits(&mut self, tid: Tid, inode_bytes: usize) -> Result<()> {
        let mut scan = fast_commit::Scan::new(tid, inode_bytes);
        let mut block = vec![0; self.log.block_bytes()];
        let area = fast_commit_area(&self.superblock);
        for at in area.clone() {
            if (at - area.start) as usize * block.len() >= FAST_COMMITS_MAX_BYTES {
                let what = format!("fast commits of more than {FAST_COMMITS_MAX_BYTES} bytes");
                return Err(crate::Error::Unsupported(what));
            }
            self.log.read(at, &mut block)?;
            let next = scan.block(&block);
            if next.map_err(|error| crate::Error::Unsupported(error.to_string()))? == Next::End {
                break;
            }
        }
        let recovered = &mut self.recovered;
        (recovered.fast_commits, recovered.fast_commit_records) = scan.finish();
        Ok(())
    }

    /// What was found, and what a replay does.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// The size of the file system in blocks, if the log has a copy of its superblock.
    ///
    /// # Errors
    /// The device's; [`crate::Error::Block`] for a copy that is none.
    pub fn blocks(&self) -> Result<Option<u64>> {
        let block = SUPERBLOCK_OFFSET / self.log.block_bytes() as u64;
        let copy = self.copies.iter().find(|copy| copy.tag.block == block);
        copy.map(|copy| passes::blocks_in(self.log, copy))
            .transpose()
    }

    /// The journal's superblock as it was found. Its `s_errno` tells that the journal was aborted,
    /// so that the file system may have errors.
    pub fn superblock(&self) -> &JournalSuperBlock {
        &self.superblock
    }

    /// Empties the log, after what was replayed, and what fast commits asked for, is durable. That the
    /// journal was aborted is forgotten with it: the file system's own superblock must say so by then. Blocks.
    ///
    /// # Errors
    /// The device's.
    pub fn reset(mut self) -> Result<Recovered> {
        if !self.superblock.is_empty() || self.superblock.s_errno != 0 {
            self.superblock.s_errno = 0;
            self.superblock.forget_fast_commits();
            self.superblock.s_start = 0;
            self.superblock.s_sequence = self.recovered.next_sequence.0;
            self.log
                .write_superblock(&mut self.superblock, Durability::Cached)?;
            self.log.flush()?;
        }
        Ok(self.recovered)
    }
}

/// A block of the log that is not what it should be.
fn damaged(at: u32, error: dioxide_format::Error) -> crate::Error {
    log_error(at, &error.to_string())
}
