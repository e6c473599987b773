//! Engines that are broken on purpose, to see whether the explorer notices.
//!
//! A mutant is dioxide with one rule of its journal broken. It is made of what dioxide wrote: copies in the log are changed, and
//! sealed again with the checksums that they would have, or writes are moved past the commit that they had to come before or after.
//! Whoever recovers is not broken.
//!
//! Rejected: switches in the engine. They would be there in every build, and the engine could not be tested against itself.

use crate::journal::{Copy, Metadata, Spot, Transaction, transactions, written};
use crate::run::Recorded;
use dioxide::block::record::{Action, Entry, Log};
use dioxide::format::inode::{FileType, Inode};
use dioxide::format::journal::{BlockHeader, DescriptorWriter, RevokeWriter, Tag};
use dioxide::format::orphan_file;
use dioxide::format::superblock::SuperBlock;
use dioxide::format::types::{Ino, Pblk};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// The rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Data is on the device before the transaction that maps it is committed. Here it is written afterwards.
    ConvertBeforeData,
    /// A file that has something left to be freed is an orphan. Here no transaction says so.
    OrphanSkipped,
    /// The size of a file grows with its data. Here it is in the transaction before.
    SizeEarly,
    /// Blocks of metadata that are freed are revoked. Here nothing is.
    RevokeIgnored,
    /// Metadata has a checksum. Here it is that of what was there before.
    ChecksumStale,
    /// What is freed, and was in use before the transaction, is not used before that is committed. Here it is.
    FreeBeforeCommit,
}

/// The numbers of a log lie so far apart, where something is put between them.
const STEP: u64 = 1 << 20;

impl Mutant {
    /// Makes what the mutant would have written of what dioxide wrote.
    ///
    /// # Errors
    /// The image is none of ext4.
    pub(crate) fn mutate(self, recorded: &mut Recorded) -> Result<(), String> {
        let metadata = Metadata::of(&recorded.base).ok_or("a mutant needs an image of ext4")?;
        let entries = recorded.log.entries().to_vec();
        let mut work = Work {
            transactions: transactions(&entries),
            entries,
            metadata,
        };
        match self {
            Mutant::OrphanSkipped => work.skip_orphans(),
            Mutant::SizeEarly => work.raise_sizes(),
            Mutant::RevokeIgnored => work.strip_revokes(),
            Mutant::ChecksumStale => work.keep_checksums(),
            Mutant::ConvertBeforeData | Mutant::FreeBeforeCommit => {
                work.spread();
                for op in recorded.lanes.iter_mut().flat_map(|lane| &mut lane.times) {
                    op.began *= STEP;
                    op.acknowledged *= STEP;
                }
                match self {
                    Mutant::ConvertBeforeData => work.delay_data(),
                    _ => work.reuse_early(),
                }
            }
        }
        recorded.log = Log::new(work.entries);
        Ok(())
    }
}

struct Work {
    entries: Vec<Entry>,
    transactions: Vec<Transaction>,
    metadata: Metadata,
}

impl Work {
    fn bytes(&self, spot: &Spot) -> &[u8] {
        &written(&self.entries[spot.entry])[spot.bytes.clone()]
    }

    fn bytes_mut(&mut self, spot: &Spot) -> &mut [u8] {
        match &mut self.entries[spot.entry].action {
            Action::Write { bytes, .. } => &mut Arc::make_mut(bytes)[spot.bytes.clone()],
            _ => unreachable!("a spot is of a write"),
        }
    }

    /// Checksums of copies, and of the descriptors that hold them.
    fn seal(&mut self, transaction: &Transaction) {
        let Transaction { tid, format, .. } = transaction;
        for described in &transaction.described {
            let tag = |copy: &Copy| Tag {
                checksum: format.data_checksum(*tid, self.bytes(&copy.spot)),
                ..copy.tag
            };
            let tags: Vec<Tag> = described.copies.iter().map(tag).collect();
            let block = self.bytes_mut(&described.spot);
            let mut writer = DescriptorWriter::new(block, format, *tid);
            tags.into_iter().for_each(|tag| writer.push(tag));
            writer.seal();
        }
    }

    fn strip_revokes(&mut self) {
        for transaction in self.transactions.clone() {
            for spot in &transaction.revokes {
                let block = self.bytes_mut(spot);
                RevokeWriter::new(block, &transaction.format, transaction.tid).seal();
            }
        }
    }

    fn skip_orphans(&mut self) {
        let file = self.metadata.sb.orphan_file_inum();
        let file = file.and_then(|ino| Some((ino, self.metadata.inode(ino)?)));
        let seed = file.map(|(ino, inode)| inode.seed(self.metadata.sb.checksum_seed(), ino));
        for transaction in self.transactions.clone() {
            for copy in transaction.copies() {
                let block = copy.tag.block;
                if let Some(range) = self.metadata.superblock_in(block) {
                    let bytes = &mut self.bytes_mut(&copy.spot)[range];
                    if let Ok(mut sb) = SuperBlock::parse(bytes) {
                        sb.disk_mut().s_last_orphan = 0;
                        sb.update_checksum();
                        bytes.copy_from_slice(&sb.encode());
                    }
                }
                if let (true, Some(seed)) = (self.metadata.is_of_orphan_file(block), seed) {
                    let bytes = self.bytes_mut(&copy.spot);
                    let entries = orphan_file::entries_per_block(bytes.len() as u32) as usize;
                    bytes[..4 * entries].fill(0);
                    let sealed = orphan_file::update_checksum(bytes, seed, Pblk(block));
                    sealed.expect("a whole block");
                }
            }
            self.seal(&transaction);
        }
    }

    /// The inodes of a transaction's copies: where, which, and what they are.
    fn inodes(&self, transaction: &Transaction) -> Vec<(Spot, Ino, Inode)> {
        let size = self.metadata.sb.inode_size();
        let mut found = Vec::new();
        for copy in transaction.copies() {
            for (ino, range) in self.metadata.inodes_in(copy.tag.block) {
                let start = copy.spot.bytes.start;
                let spot = Spot {
                    entry: copy.spot.entry,
                    bytes: start + range.start..start + range.end,
                };
                if let Ok(inode) = Inode::parse(self.bytes(&spot), size) {
                    found.push((spot, ino, inode));
                }
            }
        }
        found
    }

    fn raise_sizes(&mut self) {
        let seed = self.metadata.sb.checksum_seed();
        // By inode and generation.
        let mut next: HashMap<(Ino, u32), u64> = HashMap::new();
        for transaction in self.transactions.clone().iter().rev() {
            for (spot, ino, mut inode) in self.inodes(transaction) {
                let size = inode.size();
                let later = next.insert((ino, inode.generation()), size);
                let is_file = inode.file_type() == Some(FileType::Regular);
                if let Some(later) = later.filter(|&later| is_file && later > size) {
                    inode.set_size(later);
                    if self.metadata.sb.features().metadata_csum() {
                        inode.update_checksum(seed, ino);
                    }
                    self.bytes_mut(&spot).copy_from_slice(&inode.encode());
                }
            }
            self.seal(transaction);
        }
    }

    fn keep_checksums(&mut self) {
        let right = self.entries.clone();
        for transaction in self.transactions.clone() {
            for (spot, ino, mut inode) in self.inodes(&transaction) {
                if let Some(mut before) = self.metadata.inode(ino).filter(|it| *it != inode) {
                    let (old, new) = (before.disk_mut(), inode.disk_mut());
                    new.l_i_checksum_lo = old.l_i_checksum_lo;
                    new.i_checksum_hi = old.i_checksum_hi;
                    self.bytes_mut(&spot).copy_from_slice(&inode.encode());
                }
            }
            self.seal(&transaction);
            self.metadata.commit(&right, &transaction);
        }
    }

    /// Makes room between the numbers of the log.
    fn spread(&mut self) {
        for entry in &mut self.entries {
            entry.issued *= STEP;
            entry.completed = entry.completed.map(|completed| completed * STEP);
        }
    }

    /// Which blocks an entry writes, if they are data: neither the log's nor ever in it.
    fn data(&self) -> Vec<Option<Range<u64>>> {
        let copies = self.transactions.iter().flat_map(Transaction::copies);
        let logged: HashSet<u64> = copies.map(|copy| copy.tag.block).collect();
        let spots = self.transactions.iter().flat_map(|one| {
            let described = one.described.iter();
            let spots = described.flat_map(|it| it.copies.iter().map(|copy| copy.spot.entry));
            spots.chain([one.commit])
        });
        let log: HashSet<usize> = spots.collect();
        let block_bytes = self.metadata.block_bytes as u64;
        let blocks = |(index, entry): (usize, &Entry)| {
            let (offset, len) = match &entry.action {
                Action::Write { offset, bytes, .. } => (*offset, bytes.len() as u64),
                Action::WriteZeroes { offset, len } => (*offset, *len),
                _ => return None,
            };
            let blocks = offset / block_bytes..(offset + len).div_ceil(block_bytes);
            let is_log = log.contains(&index) || BlockHeader::of(written(entry)).is_some();
            let is_metadata =
                |block| logged.contains(&block) || self.metadata.superblock_in(block).is_some();
            (!is_log && !blocks.clone().any(is_metadata)).then_some(blocks)
        };
        self.entries.iter().enumerate().map(blocks).collect()
    }

    /// Moves entries to where they are done one after the other, the first right after `time`.
    fn place(&mut self, moved: &[usize], time: u64) {
        for (&at, before) in moved.iter().zip((time..).step_by(2)) {
            self.entries[at].issued = before + 1;
            self.entries[at].completed = Some(before + 2);
        }
    }

    fn add_flush(&mut self) -> usize {
        self.entries.push(Entry {
            issued: 0,
            completed: None,
            action: Action::Flush,
        });
        self.entries.len() - 1
    }

    /// Data that a commit makes durable is written after it, and made durable before anything else happens.
    fn delay_data(&mut self) {
        let data = self.data();
        let is_durable = |entry: &Entry| {
            matches!(
                entry.action,
                Action::Flush | Action::Write { fua: true, .. }
            )
        };
        let mut from = 0;
        for Transaction { commit, .. } in self.transactions.clone() {
            // The journal's own flush is the last before the commit block, and covers nothing else.
            let body = self.entries[from..commit].iter().rposition(is_durable);
            let body = body.map_or(from, |at| from + at);
            let before = self.entries[from..body].iter().rposition(is_durable);
            let begin = before.map_or(from, |at| from + at + 1);
            let late: Vec<usize> = (begin..body).filter(|&at| data[at].is_some()).collect();
            from = commit + 1;
            if let (false, Some(committed)) = (late.is_empty(), self.entries[commit].completed) {
                let (first, last) = (self.add_flush(), self.add_flush());
                self.place(&[&[first], &late[..], &[last]].concat(), committed);
            }
        }
    }

    /// What goes first to blocks that a transaction frees is written before it.
    fn reuse_early(&mut self) {
        let data = self.data();
        let mut early: HashSet<usize> = HashSet::new();
        for transaction in self.transactions.clone() {
            let mut freed = self.freed(&transaction);
            let mut moved = Vec::new();
            for (at, blocks) in data.iter().enumerate().skip(transaction.commit) {
                let blocks = blocks.clone().unwrap_or(0..0);
                // All of them are in use from now on.
                let reused = blocks.filter(|block| freed.remove(block)).count();
                if reused > 0 && early.insert(at) {
                    moved.push(at);
                }
            }
            let time = self.entries[transaction.first()].issued;
            self.place(&moved, time - 1 - 2 * moved.len() as u64);
            self.metadata.commit(&self.entries, &transaction);
        }
    }

    /// The blocks that a transaction frees.
    fn freed(&self, transaction: &Transaction) -> HashSet<u64> {
        let sb = &self.metadata.sb;
        let ratio = u64::from(sb.cluster_ratio());
        let mut freed = HashSet::new();
        for copy in transaction.copies() {
            let Some(group) = self.metadata.bitmap_of(copy.tag.block) else {
                continue;
            };
            let (before, after) = (self.metadata.block(copy.tag.block), self.bytes(&copy.spot));
            let is_set = |bitmap: &[u8], bit: u32| bitmap[bit as usize / 8] >> (bit % 8) & 1 == 1;
            for bit in 0..sb.clusters_in_group(group) {
                if is_set(&before, bit) && !is_set(after, bit) {
                    let first = sb.group_first_block(group).0 + u64::from(bit) * ratio;
                    freed.extend(first..first + ratio);
                }
            }
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Dioxide;
    use crate::image::Layout;
    use crate::run::{Disk, record};
    use crate::workload::Workload;
    use dioxide::block::record::states::Cache;

    /// So what a mutant is caught by is its change.
    #[test]
    fn log_that_is_sealed_without_a_change_is_the_same() {
        let disk = Disk {
            cache: Cache::Volatile,
            fault: None,
        };
        for layout in [Layout::K1, Layout::Plain, Layout::Csum3, Layout::Indirect] {
            let ops = Workload::Random { seed: 7 }
                .ops(layout)
                .expect("any layout");
            let start = layout.make().expect("an image");
            let recorded = record(&Dioxide::default(), &start, &[ops], disk).expect("it runs");
            let entries = recorded.log.entries().to_vec();
            let mut work = Work {
                metadata: Metadata::of(&recorded.base).expect("ext4"),
                transactions: transactions(&entries),
                entries,
            };
            let transactions = work.transactions.clone();
            let described = |one: &Transaction| one.described.len();
            assert!(
                transactions.iter().map(described).sum::<usize>() > 0,
                "{layout}"
            );
            for transaction in &transactions {
                work.seal(transaction);
            }
            assert!(work.entries == recorded.log.entries(), "{layout}");
        }
    }
}
