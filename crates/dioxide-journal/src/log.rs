//! Where the log lies.
//!
//! For: reading and writing blocks of the journal by their number in it, its superblock, and the ring
//! of numbers that the log goes round. Not for: what the blocks mean.
//!
//! Invariant: no transfer leaves the runs that the map was made of.
//!
//! Rejected: keeping the superblock here. The live journal changes it under its own lock, and
//! recovery before there is one; so it is a value that is read, changed and written.

use crate::{Error, Result};
use dioxide_block::{Device, Durability};
use dioxide_format::journal::{BlockType, JournalIncompat, JournalSuperBlock};
use std::ops::Range;
use std::sync::Arc;

/// What a log may use.
const INCOMPAT: JournalIncompat = JournalIncompat::REVOKE
    .union(JournalIncompat::BIT64)
    .union(JournalIncompat::ASYNC_COMMIT)
    .union(JournalIncompat::CSUM_V2)
    .union(JournalIncompat::CSUM_V3)
    .union(JournalIncompat::FAST_COMMIT);

/// A run of journal blocks that lie one after the other on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// First block in the journal.
    first: u32,
    /// First block on the device.
    block: u64,
    len: u32,
}

impl Run {
    fn device_blocks(&self) -> Range<u64> {
        self.block..self.block + u64::from(self.len)
    }
}

/// Which block of the device each block of the journal is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogMap {
    /// By journal block, without gaps, from 0 on.
    runs: Vec<Run>,
    /// Sorted and merged; empty for a journal that lies on a device of its own.
    inside: Vec<Range<u64>>,
    superblock: u32,
    blocks: u32,
}

impl LogMap {
    /// The journal in a file: `runs` are the ranges of device blocks that hold it, in the file's
    /// order, without holes.
    ///
    /// # Errors
    /// [`Error::Log`] if there are none, one is empty, or they overlap or are more than 2^32 blocks.
    pub fn internal(runs: impl IntoIterator<Item = Range<u64>>) -> Result<LogMap> {
        let mut map = LogMap {
            runs: Vec::new(),
            inside: Vec::new(),
            superblock: 0,
            blocks: 0,
        };
        runs.into_iter().try_for_each(|run| map.push(run))?;
        if map.runs.is_empty() {
            return Err(log_error(0, "the journal has no blocks"));
        }
        map.inside = map.runs.iter().map(Run::device_blocks).collect();
        map.inside.sort_by_key(|range| range.start);
        match map
            .inside
            .windows(2)
            .any(|pair| pair[0].end > pair[1].start)
        {
            true => Err(log_error(
                0,
                "two blocks of the journal are one on the device",
            )),
            false => Ok(map),
        }
    }

    /// The journal that has a device of `blocks` blocks to itself. Its blocks are numbered as those
    /// of the device, and its superblock follows the device's ext4 superblock (at byte 1024): it is
    /// block 2 where blocks have 1024 bytes, else block 1.
    ///
    /// # Errors
    /// [`Error::Log`] for fewer than 3 or more than 2^32 blocks.
    pub fn external(blocks: u64, block_bytes: usize) -> Result<LogMap> {
        let mut map = LogMap {
            runs: Vec::new(),
            inside: Vec::new(),
            superblock: if block_bytes == 1024 { 2 } else { 1 },
            blocks: 0,
        };
        map.push(0..blocks)?;
        match map.blocks > map.superblock {
            true => Ok(map),
            false => Err(log_error(0, "the journal's device is too small")),
        }
    }

    fn push(&mut self, run: Range<u64>) -> Result<()> {
        let len = run.end.checked_sub(run.start).filter(|len| *len > 0);
        let len = len.and_then(|len| u32::try_from(len).ok());
        let end = len.and_then(|len| self.blocks.checked_add(len));
        let (Some(len), Some(end)) = (len, end) else {
            let what = format!("a run of the device blocks {run:?}");
            return Err(log_error(self.blocks, &what));
        };
        self.runs.push(Run {
            first: self.blocks,
            block: run.start,
            len,
        });
        self.blocks = end;
        Ok(())
    }

    /// Blocks of the journal.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Where a block lies, and how many blocks from it on lie one after the other.
    pub fn place(&self, block: u32) -> Option<(u64, u32)> {
        let index = self.runs.partition_point(|run| run.first <= block);
        let run = self.runs[..index].last()?;
        let skip = block - run.first;
        let len = run.len.checked_sub(skip).filter(|len| *len > 0)?;
        Some((run.block + u64::from(skip), len))
    }

    /// Where a block lies on the device.
    ///
    /// # Errors
    /// [`Error::Log`] for a block that the journal does not have.
    pub fn device_block(&self, block: u32) -> Result<u64> {
        let place = self.place(block).map(|(place, _)| place);
        place.ok_or_else(|| log_error(block, &format!("the journal has {} blocks", self.blocks)))
    }

    /// Writes the superblock, whose checksum is right, at its place on `device`. The rest of its block
    /// stays. Blocks.
    ///
    /// # Errors
    /// The device's.
    pub fn write_superblock(
        &self,
        device: &dyn Device,
        sb: &JournalSuperBlock,
        durability: Durability,
    ) -> Result<()> {
        let mut block = vec![0; sb.s_blocksize as usize];
        let offset = self.device_block(self.superblock)? * u64::from(sb.s_blocksize);
        device.read_at(offset, &mut block)?;
        block[..JournalSuperBlock::SIZE].copy_from_slice(&sb.encode());
        Ok(device.write_at(offset, &block, durability)?)
    }

    /// Whether a block of the file system holds part of the journal.
    pub fn holds(&self, block: u64) -> bool {
        let index = self.inside.partition_point(|range| range.start <= block);
        self.inside[..index]
            .last()
            .is_some_and(|range| range.contains(&block))
    }
}

/// The numbers that the log goes round: after the last one comes the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// First block of the log, `s_first`.
    pub first: u32,
    /// The block after its last.
    pub end: u32,
}

impl Ring {
    /// The ring of a valid superblock.
    pub fn of(sb: &JournalSuperBlock) -> Ring {
        Ring {
            first: sb.s_first,
            end: sb.s_maxlen - sb.fast_commit_blocks(),
        }
    }

    /// What is left of it as soon as there are fast commits.
    pub fn before_fast_commits(sb: &JournalSuperBlock) -> Ring {
        Ring {
            first: sb.s_first,
            end: sb.s_maxlen - sb.fast_commit_room(),
        }
    }

    /// Blocks of the log.
    pub fn len(&self) -> u32 {
        self.end - self.first
    }

    /// Whether there is no room at all; never so for the ring of a valid superblock.
    pub fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// The block `by` blocks after `block`, which is in the ring.
    pub fn advance(&self, block: u32, by: u32) -> u32 {
        let from_first = u64::from(block - self.first) + u64::from(by);
        self.first + (from_first % u64::from(self.len())) as u32
    }

    /// How many blocks from `from` on up to, and without, `to`.
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        match to.checked_sub(from) {
            Some(distance) => distance,
            None => self.len() - (from - to),
        }
    }
}

/// The blocks that hold fast commits; empty without them. One block lies between them and the log.
pub fn fast_commit_area(sb: &JournalSuperBlock) -> Range<u32> {
    match sb.fast_commit_blocks() {
        0 => sb.s_maxlen..sb.s_maxlen,
        blocks => sb.s_maxlen - blocks + 1..sb.s_maxlen,
    }
}

/// The journal's blocks on their device. All methods block.
#[derive(Clone, Debug)]
pub struct Log {
    device: Arc<dyn Device>,
    map: LogMap,
    block_bytes: usize,
}

impl Log {
    /// The journal that `map` places on `device`, in blocks of the file system's size. Nothing is
    /// read yet.
    ///
    /// # Panics
    /// If `block_bytes` is no power of two from 1024 to 65536.
    pub fn new(device: Arc<dyn Device>, map: LogMap, block_bytes: usize) -> Log {
        assert!(
            block_bytes.is_power_of_two() && (1024..=65536).contains(&block_bytes),
            "blocks of {block_bytes} bytes"
        );
        Log {
            device,
            map,
            block_bytes,
        }
    }

    /// Where the blocks lie.
    pub fn map(&self) -> &LogMap {
        &self.map
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// The device that holds the journal.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Reads blocks from `block` on.
    ///
    /// # Errors
    /// The device's; [`Error::Log`] for blocks that the journal does not have.
    ///
    /// # Panics
    /// If `bytes` are not whole blocks.
    pub fn read(&self, block: u32, bytes: &mut [u8]) -> Result<()> {
        assert!(bytes.len().is_multiple_of(self.block_bytes), "whole blocks");
        let (mut at, mut left) = (block, bytes);
        while !left.is_empty() {
            let (offset, blocks) = self.piece(at, left.len())?;
            let (part, rest) = left.split_at_mut(blocks as usize * self.block_bytes);
            self.device.read_at(offset, part)?;
            (at, left) = (at.saturating_add(blocks), rest);
        }
        Ok(())
    }

    /// Writes blocks from `block` on.
    ///
    /// # Errors
    /// As [`Log::read`].
    ///
    /// # Panics
    /// If `bytes` are not whole blocks.
    pub fn write(&self, block: u32, bytes: &[u8], durability: Durability) -> Result<()> {
        assert!(bytes.len().is_multiple_of(self.block_bytes), "whole blocks");
        let (mut at, mut left) = (block, bytes);
        while !left.is_empty() {
            let (offset, blocks) = self.piece(at, left.len())?;
            let (part, rest) = left.split_at(blocks as usize * self.block_bytes);
            self.device.write_at(offset, part, durability)?;
            (at, left) = (at.saturating_add(blocks), rest);
        }
        Ok(())
    }

    /// Byte on the device and number of blocks of the first piece of a transfer.
    fn piece(&self, block: u32, len_bytes: usize) -> Result<(u64, u32)> {
        let place = self.map.device_block(block)?;
        let run = self.map.place(block).map_or(0, |(_, run)| run);
        let offset = place.checked_mul(self.block_bytes as u64).ok_or_else(|| {
            log_error(
                block,
                &format!("device block {place} is past any device's end"),
            )
        })?;
        let blocks = (len_bytes / self.block_bytes).min(run as usize);
        Ok((offset, blocks as u32))
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// The device's.
    pub fn flush(&self) -> Result<()> {
        Ok(self.device.flush()?)
    }

    /// Reads the superblock and checks it: checksum, features, and that all of its journal is there.
    ///
    /// # Errors
    /// The device's; [`Error::Block`] for damage, [`Error::Log`] for lengths that do not fit,
    /// [`Error::Unsupported`] for features by name.
    pub fn read_superblock(&self) -> Result<JournalSuperBlock> {
        let mut block = vec![0; self.block_bytes];
        self.read(self.map.superblock, &mut block)?;
        self.check(&block).map_err(|source| Error::Block {
            block: self.superblock_place(),
            source,
        })?;
        let sb = JournalSuperBlock::from_array(block.first_chunk().expect("at least 1024 bytes"));
        refuse_unknown(&sb)?;
        self.check_lengths(&sb)?;
        Ok(sb)
    }

    fn superblock_place(&self) -> u64 {
        self.map
            .place(self.map.superblock)
            .map_or(0, |(block, _)| block)
    }

    fn check(&self, block: &[u8]) -> dioxide_format::Result<()> {
        let sb = JournalSuperBlock::parse(block)?;
        sb.validate(self.block_bytes as u32)?;
        sb.verify_checksum()?;
        sb.format().map(|_| ())
    }

    fn check_lengths(&self, sb: &JournalSuperBlock) -> Result<()> {
        let superblock = self.map.superblock;
        let fail = |what: &str| Err(log_error(superblock, what));
        if sb.s_maxlen > self.map.blocks() {
            let (maxlen, blocks) = (sb.s_maxlen, self.map.blocks());
            return fail(&format!("s_maxlen is {maxlen}, there are {blocks} blocks"));
        }
        let end = sb.s_maxlen - sb.fast_commit_blocks();
        if sb.s_first <= superblock || sb.s_first >= end || sb.s_start >= end {
            let (first, start) = (sb.s_first, sb.s_start);
            return fail(&format!(
                "s_first is {first}, s_start {start}; the log ends at {end}"
            ));
        }
        Ok(())
    }

    /// Writes the superblock, with its checksum brought up to date. The rest of its block stays.
    ///
    /// # Errors
    /// The device's.
    pub fn write_superblock(
        &self,
        sb: &mut JournalSuperBlock,
        durability: Durability,
    ) -> Result<()> {
        sb.update_checksum();
        self.map.write_superblock(&*self.device, sb, durability)
    }
}

fn refuse_unknown(sb: &JournalSuperBlock) -> Result<()> {
    if sb.h_blocktype == BlockType::SuperBlockV1 as u32 {
        return Ok(());
    }
    let mut names = sb.incompat().unsupported(INCOMPAT).names();
    if sb.s_feature_ro_compat != 0 {
        names.push(format!("ro_compat {:#x}", sb.s_feature_ro_compat));
    }
    match names.is_empty() {
        true => Ok(()),
        false => Err(Error::Unsupported(format!(
            "the journal has the features: {}",
            names.join(" ")
        ))),
    }
}

pub(crate) fn log_error(block: u32, what: &str) -> Error {
    Error::Log {
        block,
        what: what.to_owned(),
    }
}
