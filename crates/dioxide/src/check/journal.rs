//! What a journal holds: its state, and the transactions that wait to be replayed.
//!
//! For: looking. What a mount makes of a log is decided by its recovery, whose verdict is told here too;
//! the list goes on over damage as far as it can, and says where it is.

use super::{CheckOptions, Checker, Findings, superblock};
use crate::mkfs::uuid_string;
use crate::mount::log::{LIES_ELSEWHERE, alone, is_elsewhere, journal_device, users};
use crate::{Error, Place, Result};
use dioxide_block::Device;
use dioxide_format::features::Compat;
use dioxide_format::journal::fast_commit::Record;
use dioxide_format::journal::{
    BlockHeader, BlockType, Checksums, CommitBlock, JournalFormat, JournalSuperBlock, Tid,
    TransactionSum, revokes, tags,
};
use dioxide_format::superblock::SUPERBLOCK_OFFSET;
use dioxide_journal::log::{Log, Ring};
use dioxide_journal::recovery::{FileSystem, Recovery};
use serde::Serialize;
use std::sync::Arc;

/// The state of a journal.
#[derive(Clone, Debug, Serialize)]
pub struct JournalState {
    /// Inode that holds it; 0 for one that has a device to itself.
    pub ino: u32,
    /// Its UUID.
    pub uuid: String,
    /// UUIDs of the file systems that use it, if it has a device to itself.
    pub users: Vec<String>,
    /// Bytes of a block.
    pub block_size: u32,
    /// Its blocks, superblock and fast-commit area included.
    pub blocks: u32,
    /// First block of the log.
    pub first: u32,
    /// Block of the log where what is to be replayed begins; 0 for nothing.
    pub tail: u32,
    /// Where the log goes on after a clean unmount, if that is recorded; else 0.
    pub head: u32,
    /// Number of the transaction at the tail, or of the next one.
    pub sequence: u32,
    /// Why it was aborted, as an errno; 0 if it was not.
    pub errno: i32,
    /// Blocks of the fast-commit area.
    pub fast_commit_blocks: u32,
    /// Features by name.
    pub features: Vec<String>,
    /// The file system says that it must be replayed; for a journal that is looked at without, it does itself.
    pub needs_recovery: bool,
    /// Nothing is to be replayed.
    pub is_empty: bool,
    /// What recovery makes of it.
    pub recovery: Verdict,
    /// The transactions to be replayed, if they were asked for.
    pub transactions: Vec<Transaction>,
    /// The changes that follow in fast commits, in words.
    pub fast_commits: Vec<String>,
}

/// What recovery makes of a log.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Committed transactions.
    pub transactions: u32,
    /// Blocks that are replayed.
    pub blocks: u64,
    /// Blocks that are not, because they were revoked.
    pub revoked: u64,
    /// Whole fast commits that follow.
    pub fast_commits: u32,
    /// Why nothing is replayed, if so.
    pub refused: Option<String>,
}

/// A transaction in the log.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Transaction {
    /// Its number.
    pub sequence: u32,
    /// Block of the log where it begins.
    pub at: u32,
    /// Copies of blocks.
    pub blocks: Vec<Logged>,
    /// Blocks whose earlier copies are not to be replayed.
    pub revoked: Vec<u64>,
    /// When it was committed, in seconds since 1970; nothing if it was not.
    pub committed: Option<u64>,
    /// What does not match its checksum, in words; empty if all is right or there are none.
    pub bad_checksums: Vec<String>,
}

/// A copy of a block in the log.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Logged {
    /// Block of the file system.
    pub block: u64,
    /// Block of the log.
    pub at: u32,
    /// It begins with the journal's magic number, which is zeros in the log.
    pub escaped: bool,
    /// What lies there, where that is fixed.
    pub kind: Option<&'static str>,
}

/// Looks at the journal of a file system, or at the device of one by itself; `list` asks for the
/// transactions. Changes nothing. Blocks.
///
/// # Errors
/// [`Error::Unsupported`] without a journal, or with one on a device that is not in `options`;
/// [`Error::Invalid`] if there is no superblock; [`Error::Corrupt`] for a journal whose inode or superblock is damaged; the device's.
pub fn journal_state(
    device: Arc<dyn Device>,
    options: &CheckOptions,
    list: bool,
) -> Result<JournalState> {
    if let Some(sb) = journal_device(&*device) {
        let fs = FileSystem {
            blocks: u64::MAX,
            device_blocks: u64::MAX,
            inode_bytes: usize::from(u16::MAX),
        };
        return Look::at(&alone(&device, &sb)?, fs, &|_| None)?.state(0, None, list);
    }
    let mut findings = Findings::new(1);
    let found = superblock::need(&device, options, &mut findings)?;
    let mut quiet = |_: &super::Progress| {};
    let mut checker = Checker::new(device, options, found, findings, &mut quiet)?;
    if !checker.sb.features().compat.contains(Compat::HAS_JOURNAL) {
        return Err(Error::Unsupported("the file system has no journal".into()));
    }
    if is_elsewhere(&checker.sb) && options.journal.is_none() {
        return Err(Error::Unsupported(LIES_ELSEWHERE.into()));
    }
    checker.read_groups();
    let ino = checker.sb.journal_inum();
    let in_superblock = Place::default().at(SUPERBLOCK_OFFSET);
    let log = checker.journal_log().map_err(|what| Error::Corrupt {
        structure: "journal",
        place: ino.map_or(in_superblock, Place::ino),
        what,
    })?;
    let fs = FileSystem::of(&checker.sb, &**checker.source.device());
    let kind = |block: u64| {
        let fixed = checker.groups.fixed_at(&(block..block.saturating_add(1)));
        fixed.map(|fixed| fixed.kind.name())
    };
    let marked = checker.sb.needs_recovery();
    Look::at(&log, fs, &kind)?.state(ino.map_or(0, |ino| ino.0), Some(marked), list)
}

/// A journal that is looked at.
struct Look<'a> {
    log: &'a Log,
    sb: JournalSuperBlock,
    fs: FileSystem,
    /// What lies in a block of the file system, where that is fixed.
    kind: &'a dyn Fn(u64) -> Option<&'static str>,
}

impl<'a> Look<'a> {
    fn at(
        log: &'a Log,
        fs: FileSystem,
        kind: &'a dyn Fn(u64) -> Option<&'static str>,
    ) -> Result<Look<'a>> {
        let sb = log.read_superblock()?;
        Ok(Look { log, sb, fs, kind })
    }

    /// `marked` if its file system is known, and says that recovery is needed.
    fn state(&self, ino: u32, marked: Option<bool>, list: bool) -> Result<JournalState> {
        let sb = &self.sb;
        let (recovery, fast_commits) = match Recovery::plan(self.log, self.fs) {
            Ok(plan) => verdict(&plan),
            Err(error) => (refused(&error.into()), Vec::new()),
        };
        let mut features = sb.compat().names();
        features.extend(sb.incompat().names());
        let transactions = match list && !sb.is_empty() {
            true => self.transactions()?,
            false => Vec::new(),
        };
        Ok(JournalState {
            ino,
            uuid: uuid_string(sb.s_uuid),
            users: if ino == 0 { users(sb) } else { Vec::new() },
            block_size: sb.s_blocksize,
            blocks: sb.s_maxlen,
            first: sb.s_first,
            tail: sb.s_start,
            head: sb.s_head,
            sequence: sb.s_sequence,
            errno: sb.s_errno.cast_signed(),
            fast_commit_blocks: sb.fast_commit_blocks(),
            features,
            needs_recovery: marked.unwrap_or(!sb.is_empty()),
            is_empty: sb.is_empty(),
            recovery,
            transactions,
            fast_commits,
        })
    }

    /// The log from its tail on, up to what does not belong to it. It is gone round once at most.
    fn transactions(&self) -> Result<Vec<Transaction>> {
        let (log, sb) = (self.log, &self.sb);
        let format = sb.format();
        let format = format.map_err(|error| Error::format(error, Place::journal_block(0)))?;
        let ring = Ring::of(sb);
        let mut list = Vec::new();
        let mut open = Transaction::begin(Tid(sb.s_sequence), sb.s_start);
        let mut sum = TransactionSum::default();
        let mut block = vec![0; log.block_bytes()];
        let (mut at, mut used) = (sb.s_start, 0u32);
        while used < ring.len() {
            log.read(at, &mut block)?;
            let tid = Tid(open.sequence);
            let header = BlockHeader::of(&block).filter(|(_, of)| *of == tid);
            let mut by = 1;
            match header.map(|(kind, _)| kind) {
                Some(BlockType::Descriptor) => {
                    open.check(at, format.verify_tail(&block));
                    sum.add(&block);
                    by += self.copies(ring, &format, &block, at, &mut open, &mut sum)?;
                }
                Some(BlockType::Revoke) => {
                    open.check(at, format.verify_tail(&block));
                    open.revoked
                        .extend(revokes(&block, &format).into_iter().flatten());
                }
                Some(BlockType::Commit) => {
                    open.check(at, CommitBlock::verify(&block, &format, &sum));
                    open.committed = CommitBlock::parse(&block).ok().map(|commit| commit.secs);
                    let next = Transaction::begin(tid.next(), ring.advance(at, 1));
                    list.push(std::mem::replace(&mut open, next));
                    sum = TransactionSum::default();
                }
                _ => break,
            }
            at = ring.advance(at, by);
            used = used.saturating_add(by);
        }
        if !open.blocks.is_empty() || !open.revoked.is_empty() {
            list.push(open);
        }
        Ok(list)
    }

    /// The copies that follow a descriptor; how many there are.
    fn copies(
        &self,
        ring: Ring,
        format: &JournalFormat,
        descriptor: &[u8],
        at: u32,
        open: &mut Transaction,
        sum: &mut TransactionSum,
    ) -> Result<u32> {
        let mut count = 0;
        let mut data = vec![0; self.log.block_bytes()];
        for tag in tags(descriptor, format) {
            count += 1;
            let at = ring.advance(at, count);
            if format.checksums != Checksums::None {
                self.log.read(at, &mut data)?;
                sum.add(&data);
                open.check(at, format.verify_data(&tag, Tid(open.sequence), &data));
            }
            open.blocks.push(Logged {
                block: tag.block,
                at,
                escaped: tag.is_escaped(),
                kind: (self.kind)(tag.block),
            });
        }
        Ok(count)
    }
}

impl Transaction {
    fn begin(tid: Tid, at: u32) -> Transaction {
        Transaction {
            sequence: tid.0,
            at,
            ..Transaction::default()
        }
    }

    fn check(&mut self, at: u32, checked: dioxide_format::Result<()>) {
        if let Err(error) = checked {
            self.bad_checksums.push(format!("log block {at}: {error}"));
        }
    }
}

fn verdict(plan: &Recovery<'_>) -> (Verdict, Vec<String>) {
    let recovered = plan.recovered();
    let verdict = Verdict {
        transactions: recovered.transactions,
        blocks: recovered.blocks_replayed,
        revoked: recovered.blocks_revoked,
        fast_commits: recovered.fast_commits,
        refused: None,
    };
    let records = recovered.fast_commit_records.iter().map(words).collect();
    (verdict, records)
}

fn refused(error: &Error) -> Verdict {
    Verdict {
        transactions: 0,
        blocks: 0,
        revoked: 0,
        fast_commits: 0,
        refused: Some(error.to_string()),
    }
}

/// A record of a fast commit in words.
fn words(record: &Record) -> String {
    let named = |what: &str, name: &dioxide_format::journal::fast_commit::Name| {
        let text = name.name.escape_ascii();
        format!(
            "{what} `{text}` in directory {}: inode {}",
            name.parent, name.ino
        )
    };
    match record {
        Record::AddRange { ino, extent } => format!(
            "add to inode {ino}: {} blocks at block {} of the file",
            extent.ee_len, extent.ee_block
        ),
        Record::DelRange { ino, lblk, len } => {
            format!("remove from inode {ino}: {len} blocks at block {lblk} of the file")
        }
        Record::Creat(name) => named("create", name),
        Record::Link(name) => named("link", name),
        Record::Unlink(name) => named("unlink", name),
        Record::Inode { ino, .. } => format!("inode {ino}"),
    }
}
