//! Blocks for a directory.
//!
//! For: appending blocks and writing what a change made, as one step; the first block. Not for: what the
//! blocks hold.
//!
//! Order: blocks are claimed; then they are mapped, with the size; then all blocks are written. A claim that
//! finds no space changes nothing, and a map that finds none for itself gives back what it mapped.
//!
//! Rejected: appending one block at a time, as each turns out to be needed. Where a split takes three
//! and the third is not to be had, two would have to be given back.

use super::super::dir::block::{Blocks, DirBlock, Role};
use crate::alloc::{Claim, Goal, Request};
use crate::inode::Inode;
use crate::map::tree::{I_BLOCK_BYTES, Progress, Tree};
use crate::map::{self, MapGuard};
use crate::mount::Mount;
use crate::namei::dir::inline::with_times_of;
use crate::txn::Writer;
use crate::txn::file::{MOST_WRITTEN, MapChange};
use crate::{Error, Result, Shortage};
use dioxide_format::extent::Extent;
use dioxide_format::inode::{Inode as DiskInode, InodeFlags};
use dioxide_format::types::{Lblk, Pblk};
use dioxide_journal::Edit;
use dioxide_journal::journal::Handle;
use std::ops::Range;

/// Blocks of a directory that an index can lead to.
const INDEX_BLOCKS: u64 = 1 << 28;

/// Blocks that a change of a directory makes: whole, so that none is read again.
#[derive(Debug, Default)]
pub(super) struct Made {
    changed: Vec<(Pblk, Role, Vec<u8>)>,
    /// To be appended, in this order.
    appended: Vec<(Role, Vec<u8>)>,
    /// The directory has an index from now on.
    pub(super) gets_index: bool,
}

impl Made {
    /// Appends a block; its number among those that are.
    pub(super) fn add(&mut self, role: Role, bytes: Vec<u8>) -> u32 {
        self.appended.push((role, bytes));
        self.count() - 1
    }

    /// Changes a block that the directory has.
    pub(super) fn change(&mut self, pblk: Pblk, role: Role, bytes: Vec<u8>) {
        self.changed.push((pblk, role, bytes));
    }

    /// How many are appended.
    pub(super) fn count(&self) -> u32 {
        self.appended.len() as u32
    }
}

/// Blocks in a row for a directory, and the claim for those that are not in one of its clusters.
struct Piece {
    extent: Extent,
    claim: Option<Claim>,
}

impl Piece {
    fn run(&self) -> map::Run {
        let Extent {
            lblk, len, pblk, ..
        } = self.extent;
        map::Run {
            lblk,
            len: len.into(),
            pblk,
            unwritten: false,
        }
    }
}

impl Mount {
    /// Appends and writes what a change made.
    ///
    /// # Errors
    /// [`Error::NoSpace`], with nothing changed; the journal's.
    pub(super) fn write_made(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        blocks: &Blocks<'_>,
        made: Made,
    ) -> Result<()> {
        let places = match made.count() {
            0 => Vec::new(),
            count => self.append_blocks(writer, handle, blocks, count, made.gets_index)?,
        };
        let appended = places.into_iter().zip(&made.appended);
        let appended = appended.map(|(pblk, (role, bytes))| (pblk, *role, bytes));
        let changed = made
            .changed
            .iter()
            .map(|(pblk, role, bytes)| (*pblk, *role, bytes));
        for (pblk, role, bytes) in appended.chain(changed) {
            let done = handle.create(pblk, &blocks.kind(role), bytes);
            done.map_err(|error| self.fail(error.into()))?;
        }
        Ok(())
    }

    /// Maps blocks behind the end of a directory; returns where they are.
    fn append_blocks(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        blocks: &Blocks<'_>,
        count: u32,
        gets_index: bool,
    ) -> Result<Vec<Pblk>> {
        let dir = blocks.dir;
        let first = u64::from(blocks.count);
        let pieces = self.claim_blocks(writer, handle, dir, first, count)?;
        let places = pieces.iter().map(Piece::run).flat_map(|run| {
            let start = run.pblk.0;
            (start..start + u64::from(run.len)).map(Pblk)
        });
        let places: Vec<Pblk> = places.collect();
        let size = (first + u64::from(count)) << self.block_bits;
        let lock = dir.map.lock();
        self.map_blocks(writer, handle, dir, &lock, pieces, &mut |disk| {
            disk.set_size(size);
            if gets_index {
                disk.disk_mut().i_flags |= InodeFlags::INDEX.0;
            }
        })?;
        dir.set_size(size);
        Ok(places)
    }

    /// Gives a directory without blocks its first, of which these are the bytes. `disk` is what the inode
    /// becomes, but for its map.
    ///
    /// # Errors
    /// [`Error::NoSpace`], with nothing changed; the journal's.
    pub(super) fn make_first_block(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        dir: &Inode,
        bytes: &[u8],
        mut disk: DiskInode,
    ) -> Result<()> {
        let has_extents = self.has_extents();
        let flags = &mut disk.disk_mut().i_flags;
        *flags &= !(InodeFlags::INLINE_DATA.0 | InodeFlags::INDEX.0 | InodeFlags::EXTENTS.0);
        if has_extents {
            *flags |= InodeFlags::EXTENTS.0;
        }
        disk.set_i_block(&match has_extents {
            true => Tree::empty_root(),
            false => [0; I_BLOCK_BYTES],
        });
        let size = self.block_bytes();
        disk.set_size(size);
        let goal = Goal::Near(self.goal_of(dir)?);
        let claim = self.claim_run(writer, handle, dir, (goal, 1), has_extents)?;
        let piece = self.piece(0..1, claim);
        let kind = DirBlock {
            role: Role::Leaf,
            format: self.dir_format,
            seed: self.dir_seed(dir),
        };
        let pblk = piece.extent.pblk;
        let lock = dir.map.lock();
        self.change_inode(handle, dir, &lock, &mut |now| {
            *now = with_times_of(&disk, now)
        })?;
        // Nothing may be left of this if the rest fails; with a claim it does not for want of space.
        let done = self
            .map_blocks(writer, handle, dir, &lock, vec![piece], &mut |_| {})
            .and_then(|()| Ok(handle.create(pblk, &kind, bytes)?));
        done.map_err(|error| self.fail(error))?;
        dir.set_size(size);
        Ok(())
    }

    /// Claims what is needed for `count` blocks of a directory from `first` on.
    fn claim_blocks(
        &self,
        writer: &Writer,
        handle: &Handle<'_>,
        dir: &Inode,
        first: u64,
        count: u32,
    ) -> Result<Vec<Piece>> {
        let end = first + u64::from(count);
        if end > self.most_dir_blocks(dir) {
            return Err(Error::NoSpace(Shortage::DirectoryBlocks));
        }
        let ratio = u64::from(self.sb.cluster_ratio());
        let mut pieces: Vec<Piece> = Vec::new();
        let mut at = first;
        while at < end {
            let skip = at % ratio;
            let piece = match self.implied_cluster(dir, Lblk(at as u32))? {
                Some(cluster) => Piece {
                    extent: extent(at, (end - at).min(ratio - skip), cluster.0 + skip),
                    claim: None,
                },
                None => {
                    let goal = match pieces.last().map(Piece::run) {
                        Some(before) => Goal::Append(Pblk(before.pblk.0 + u64::from(before.len))),
                        None => self.goal_behind(dir, at)?,
                    };
                    let clusters = (skip + end - at).div_ceil(ratio);
                    let wanted = (goal, clusters as u32);
                    let has_extents = dir.is_extent_mapped();
                    let claim = self.claim_run(writer, handle, dir, wanted, has_extents)?;
                    self.piece(at..end, claim)
                }
            };
            at += u64::from(piece.extent.len);
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// Most blocks of a directory: more than 4 GiB only with `large_dir`.
    fn most_dir_blocks(&self, dir: &Inode) -> u64 {
        let by_size = match self.dir_format.large_dir {
            true => u64::MAX,
            false => u64::from(u32::MAX) >> self.block_bits,
        };
        self.map_end(dir).min(by_size).min(INDEX_BLOCKS)
    }

    fn claim_run(
        &self,
        writer: &Writer,
        handle: &Handle<'_>,
        dir: &Inode,
        (goal, clusters): (Goal, u32),
        has_extents: bool,
    ) -> Result<Claim> {
        let request = Request {
            goal,
            len: 1..=clusters,
            stream: Some(dir.stream()),
            right: self.right(),
            below: self.groups_below(has_extents),
        };
        let claim = writer.blocks.claim(handle, &request)?;
        // Also for one that is given back: who has a goal is asked for what is held ahead of it when he is let go.
        dir.set_goal(claim.run().start, &writer.blocks);
        Ok(claim)
    }

    /// As much of `wanted` as a claim gives, from a cluster's first block on or not.
    fn piece(&self, wanted: Range<u64>, claim: Claim) -> Piece {
        let ratio = u64::from(self.sb.cluster_ratio());
        let (run, skip) = (claim.run(), wanted.start % ratio);
        let blocks = u64::from(run.len) * ratio;
        let len = (wanted.end - wanted.start).min(blocks - skip);
        Piece {
            extent: extent(wanted.start, len, run.start.0 + skip),
            claim: Some(claim),
        }
    }

    /// Maps blocks behind the end of a directory, and changes its inode.
    fn map_blocks(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        dir: &Inode,
        lock: &MapGuard<'_>,
        mut pieces: Vec<Piece>,
        also: &mut dyn FnMut(&mut DiskInode),
    ) -> Result<()> {
        let runs: Vec<map::Run> = pieces.iter().map(Piece::run).collect();
        self.change_map(
            writer,
            handle,
            dir,
            lock,
            |map| match pieces.iter_mut().try_for_each(|piece| insert(map, piece)) {
                Err(error @ Error::NoSpace(_)) => Err(take_back(map, &runs, error)),
                done => done,
            },
            &mut |disk, ()| also(disk),
        )?;
        for run in &runs {
            lock.set_run(run);
        }
        if let Some(last) = runs.last() {
            let end = Pblk(last.pblk.0 + u64::from(last.len));
            dir.set_goal(end, &writer.blocks);
        }
        Ok(())
    }
}

fn extent(lblk: u64, len: u64, pblk: u64) -> Extent {
    debug_assert!(len <= u64::from(MOST_WRITTEN));
    Extent {
        lblk: Lblk(lblk as u32),
        len: len as u16,
        unwritten: false,
        pblk: Pblk(pblk),
    }
}

/// Maps one piece; an indirect map may take several steps.
fn insert(map: &mut MapChange<'_, '_>, piece: &mut Piece) -> Result<()> {
    let Piece { extent, claim } = piece;
    while extent.len > 0 {
        let done = map.insert_claimed(*extent, claim.as_mut())?;
        extent.lblk.0 += done;
        extent.pblk.0 += u64::from(done);
        // Not more than were asked for.
        extent.len -= done as u16;
    }
    Ok(())
}

/// Unmaps what was mapped before a piece found no space. If that takes too much, the error is another
/// one, so that the change is not committed.
fn take_back(map: &mut MapChange<'_, '_>, runs: &[map::Run], error: Error) -> Error {
    let ends = |run: &map::Run| u64::from(run.lblk.0) + u64::from(run.len);
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
        return error;
    };
    let credits = map.handle.credits();
    match map.remove(first.lblk.0.into()..ends(last), credits) {
        Ok(Progress::Done) => error,
        Ok(Progress::More(_)) => Error::Invalid("blocks of a directory were not given back".into()),
        Err(other) => other,
    }
}
