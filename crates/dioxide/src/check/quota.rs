//! Pass 5: the quota files against what inodes were seen to use.
//!
//! An inode counts with what `i_blocks` should say and as one inode, and one more for each attribute whose
//! value has an inode of its own. Reserved inodes but the root, the files of quota and orphans, and inodes that hold
//! values count for nobody. e2fsck leaves out symlinks whose target is inline data, and writes that when it mends, so that
//! any of them may be left out.
//!
//! Not for: limits. They are anybody's to set.

use super::Checker;
use super::finding::{At, Code};
use super::walk::{Run, place_of, runs_of};
use crate::{Error, Place, Result};
use dioxide_format::inode::{FileType, Inode, InodeFlags};
use dioxide_format::quota::{self, BLOCK, LEVELS, QuotaHeader, QuotaKind, ROOT, Record};
use dioxide_format::types::{Ino, Lblk};
use std::collections::{BTreeMap, HashMap};

/// Ids of each file that are told.
const MOST_TOLD: usize = 16;
/// Pieces that a quota file may have.
const MOST_PIECES: usize = 65536;

/// What an id uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    bytes: u64,
    inodes: u64,
}

/// What was seen of an id.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    all: Use,
    /// Symlinks with inline data, which need not be counted.
    inline_links: Use,
}

impl Use {
    fn add(&mut self, bytes: u64, inodes: u64) {
        self.bytes += bytes;
        self.inodes += inodes;
    }
}

impl Seen {
    fn may_be(&self, stored: Use) -> bool {
        let Seen { all, inline_links } = *self;
        let bytes = all.bytes - inline_links.bytes..=all.bytes;
        let inodes = all.inodes - inline_links.inodes..=all.inodes;
        bytes.contains(&stored.bytes) && inodes.contains(&stored.inodes)
    }
}

/// By id.
type Uses = BTreeMap<u32, Use>;

/// What was seen of each kind of quota that the file system has.
#[derive(Debug, Default)]
pub(super) struct QuotaUse {
    uses: [BTreeMap<u32, Seen>; 3],
    /// An inode's blocks are not known.
    pub(super) partial: bool,
}

impl Checker<'_> {
    fn quota_file(&self, kind: QuotaKind) -> Option<Ino> {
        let [user, group, project] = self.sb.quota_inums();
        let ino = match kind {
            QuotaKind::User => user,
            QuotaKind::Group => group,
            QuotaKind::Project => project,
        };
        (self.has_quota() && ino != 0).then_some(Ino(ino))
    }

    /// An inode that is in use, with the blocks that it takes, and how many of its attributes have an inode.
    pub(super) fn count_quota(&mut self, ino: Ino, inode: &Inode, blocks: u64, values: u64) {
        let reserved = ino != Ino::ROOT && self.is_hidden(ino);
        if !self.has_quota() || reserved || inode.flags().contains(InodeFlags::EA_INODE) {
            return;
        }
        let (bytes, inodes) = (
            blocks.saturating_mul(self.sb.block_size().into()),
            1 + values,
        );
        let is_inline_link =
            inode.file_type() == Some(FileType::Symlink) && inode.has_inline_data();
        let ids = [inode.uid(), inode.gid(), inode.projid()];
        for (uses, id) in self.quota.uses.iter_mut().zip(ids) {
            let of_id = uses.entry(id).or_default();
            of_id.all.add(bytes, inodes);
            if is_inline_link {
                of_id.inline_links.add(bytes, inodes);
            }
        }
    }

    /// Compares the files with what was counted.
    pub(super) fn judge_quota_use(&mut self) {
        // What is wrong with a map was told; it is no fault of the count.
        if self.quota.partial {
            return;
        }
        for kind in QuotaKind::ALL {
            let Some(ino) = self.quota_file(kind) else {
                continue;
            };
            // Pass 0 told if there is none.
            let Some((inode, _)) = self.read_inode(ino) else {
                continue;
            };
            match self.quota_records(kind, ino, &inode) {
                Ok(records) => self.compare_quota(kind, ino, &records),
                Err(error) => self.find(Code::QuotaFile, At::ino(ino), error.to_string()),
            }
        }
    }

    fn quota_records(&mut self, kind: QuotaKind, ino: Ino, inode: &Inode) -> Result<Uses> {
        let mut reader = QuotaReader {
            ino,
            runs: runs_of(&self.walk_context(ino, inode), inode, MOST_PIECES),
            header: QuotaHeader::zeroed(),
            seen: HashMap::from([(ROOT, 0)]),
            records: Uses::new(),
        };
        let head = reader.block(self, 0)?;
        let header = QuotaHeader::parse(&head).and_then(|header| {
            header.validate(kind)?;
            Ok(header)
        });
        reader.header = header.map_err(|error| reader.damage(error))?;
        let (blocks, size) = (reader.header.dqi_blocks, inode.size());
        if u64::from(blocks) * BLOCK as u64 > size {
            let text = format!("dqi_blocks is {blocks}, i_size is {size}");
            return Err(Error::Invalid(text));
        }
        reader.tree(self)?;
        Ok(reader.records)
    }

    fn compare_quota(&mut self, kind: QuotaKind, ino: Ino, records: &Uses) {
        let counted = std::mem::take(&mut self.quota.uses[kind as usize]);
        let ids = counted.keys().chain(records.keys());
        let ids: std::collections::BTreeSet<u32> = ids.copied().collect();
        let wrong = ids.into_iter().filter_map(|id| {
            let stored = records.get(&id).copied().unwrap_or_default();
            let found = counted.get(&id).copied().unwrap_or_default();
            (!found.may_be(stored)).then_some((id, stored, found.all))
        });
        let wrong: Vec<(u32, Use, Use)> = wrong.collect();
        for (id, stored, found) in wrong.iter().take(MOST_TOLD) {
            let name = match kind {
                QuotaKind::User => "user",
                QuotaKind::Group => "group",
                QuotaKind::Project => "project",
            };
            let text = format!(
                "{name} {id} is counted with {} bytes and {} inodes, and has {} and {}",
                stored.bytes, stored.inodes, found.bytes, found.inodes
            );
            self.find(Code::QuotaUsage, At::ino(ino), text);
        }
        if wrong.len() > MOST_TOLD {
            let text = format!("{} more are counted wrongly", wrong.len() - MOST_TOLD);
            self.find(Code::QuotaUsage, At::ino(ino), text);
        }
    }
}

/// Reading the tree of a quota file, each block once and at one level.
struct QuotaReader {
    ino: Ino,
    runs: Vec<Run>,
    header: QuotaHeader,
    /// Levels by block.
    seen: HashMap<u32, usize>,
    records: Uses,
}

impl QuotaReader {
    fn damage(&self, error: dioxide_format::Error) -> Error {
        Error::format(error, Place::ino(self.ino))
    }

    fn block(&self, checker: &Checker<'_>, block: u32) -> Result<Vec<u8>> {
        let at = u64::from(block) * BLOCK as u64;
        let block_bytes = u64::from(checker.sb.block_size());
        let lblk = Lblk((at / block_bytes) as u32);
        let missing = || Error::Invalid(format!("block {block} of the quota file is not there"));
        let place = place_of(&self.runs, lblk).ok_or_else(missing)?;
        let bytes = checker.source.block(place)?;
        let from = (at % block_bytes) as usize;
        Ok(bytes[from..from + BLOCK].to_vec())
    }

    /// Goes through the blocks that the root leads to.
    fn tree(&mut self, checker: &Checker<'_>) -> Result<()> {
        let mut pending = vec![(ROOT, 0)];
        while let Some((block, level)) = pending.pop() {
            if level == LEVELS {
                self.records(checker, block)?;
                continue;
            }
            let bytes = self.block(checker, block)?;
            for next in bytes.as_chunks().0 {
                let next = u32::from_le_bytes(*next);
                let judged = self.header.check_block(next, "pointer");
                judged.map_err(|error| self.damage(error))?;
                if next == 0 {
                    continue;
                }
                match self.seen.insert(next, level + 1) {
                    None => pending.push((next, level + 1)),
                    // Ids share blocks of records.
                    Some(LEVELS) if level + 1 == LEVELS => {}
                    // It would hold ids of two ranges, or lead in circles.
                    Some(_) => {
                        let text = format!("two pointers lead to block {next} of the quota file");
                        return Err(Error::Invalid(text));
                    }
                }
            }
        }
        Ok(())
    }

    fn records(&mut self, checker: &Checker<'_>, block: u32) -> Result<()> {
        let bytes = self.block(checker, block)?;
        for record in quota::records(&bytes) {
            let Record {
                dqb_curspace: bytes,
                dqb_curinodes: inodes,
                ..
            } = record;
            self.records.insert(record.dqb_id, Use { bytes, inodes });
        }
        Ok(())
    }
}
