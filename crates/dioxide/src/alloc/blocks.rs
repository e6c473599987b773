//! The block allocator: its state, and reading and changing one group's bitmap.
//!
//! For: `allocate` and `claim` ([`place`](super::place)), what is claimed ([`claim`](super::claim)),
//! `free` and `committed` ([`release`](super::release)), `trim` ([`trim`](super::trim)). Not for:
//! extents.
//!
//! Every length is in clusters; without bigalloc a cluster is a block. A file that uses part of a
//! cluster has all of it: which blocks of a cluster are in use, and when the last of them goes, is the
//! caller's business.
//!
//! Invariants:
//! - A bitmap and the count and checksum in its descriptor change together, under the group's lock.
//! - A group whose bitmap contradicts its descriptor is never changed.
//! - A clear bit is handed out only if nobody claimed it, and no uncommitted transaction freed it but one that alone knows
//!   that it was in use.
//!
//! Rejected: a buddy bitmap beside each bitmap, as mballoc has. It finds aligned powers of two
//! without a search; but a whole bitmap of 4 KiB is searched by words in about a microsecond, and
//! [`Slot::longest`] already says which groups are worth it.

use super::groups::{Groups, Load, Slot, Totals, View, contradiction};
use super::kinds::BlockBitmap;
use super::pool::{GroupBlocks, wide};
use super::release::Pending;
use super::space::{Reservation, Right, Space};
use super::streams::Streams;
use crate::{Error, Place, Result};
use dioxide_format::bitmap;
use dioxide_format::group_desc::{BLOCK_UNINIT, GroupDesc};
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::{Group, Pblk};
use dioxide_journal::Edit;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Names a sequence of allocations that should lie together: an inode number serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stream(pub(crate) u64);

/// Where blocks should lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Exactly here, because it continues what is mapped: taken even if the run is short of the
    /// longest that was asked for.
    Append(Pblk),
    /// In this neighbourhood.
    Near(Pblk),
}

/// What to allocate.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Where.
    pub(crate) goal: Goal,
    /// Fewest and most clusters, in one run.
    pub(crate) len: RangeInclusive<u32>,
    /// Which window to use and keep; none for blocks that do not grow, such as tree nodes.
    pub(crate) stream: Option<Stream>,
    /// Which of the blocks that are kept may be used. Who has which right is the caller's decision.
    pub(crate) right: Right,
    /// Only groups before this one; none where any serves.
    pub(crate) below: Option<Group>,
}

/// Clusters that lie together, in one group when they come from `allocate` or a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Run {
    /// First block of the first cluster.
    pub(crate) start: Pblk,
    /// Number of clusters.
    pub(crate) len: u32,
}

/// The block allocator of one file system.
#[derive(Debug)]
pub(crate) struct BlockAllocator {
    pub(super) groups: Arc<Groups>,
    pub(super) space: Space,
    pub(super) streams: Streams,
    pub(super) pending: Pending,
}

impl BlockAllocator {
    /// Metadata blocks that one `allocate`, or the recording of one claim, changes.
    pub(crate) const ALLOCATE_CREDITS: u32 = 2;
    /// Metadata blocks that `free` changes for each group that the run touches.
    pub(crate) const FREE_CREDITS_PER_GROUP: u32 = 2;

    /// `totals` are those of [`Groups::totals`]; `aside` clusters are kept for [`Right::Map`].
    pub(crate) fn new(groups: Arc<Groups>, totals: Totals, aside: u64) -> BlockAllocator {
        let sb = groups.sb();
        let kept = sb.reserved_blocks_count() / u64::from(sb.cluster_ratio());
        BlockAllocator {
            space: Space::new(totals.free_clusters, kept, aside),
            streams: Streams::default(),
            pending: Pending::default(),
            groups,
        }
    }

    pub(super) fn sb(&self) -> &SuperBlock {
        self.groups.sb()
    }

    pub(super) fn slot(&self, group: Group) -> &Slot {
        self.groups.slot(group)
    }

    /// Free clusters as the bitmaps say, pending and claimed ones included: times the cluster ratio,
    /// this is what the superblock's total should be. Descriptors are changed by each transaction,
    /// the superblock's total is not: the caller stores it when it writes the superblock (as ext4
    /// does).
    pub(crate) fn free_clusters(&self) -> u64 {
        self.space.free()
    }

    /// Clusters that were freed and cannot be had yet. When an allocation fails
    /// with `NoSpace` and there are some, a commit may help.
    pub(crate) fn pending_clusters(&self) -> u64 {
        self.space.pending()
    }

    /// A number that grows whenever clusters can be had that could not before.
    pub(crate) fn openings(&self) -> u64 {
        self.space.openings()
    }

    /// Clusters that a caller can have now, `right` as in [`Request`].
    pub(crate) fn available_clusters(&self, right: Right) -> u64 {
        self.space.available(right)
    }

    /// Reserves `count` clusters before an operation that must not fail half-way; `right` as in
    /// [`Request`]. That they are there is certain, not that they lie together. Others, and the same
    /// operation, may claim and allocate meanwhile.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn reserve(&self, count: u64, right: Right) -> Result<Reservation<'_>> {
        self.space.reserve(count, right)
    }

    /// What [`Reservation::keep`] kept.
    pub(crate) fn reserved(&self, left: u64) -> Reservation<'_> {
        self.space.reserved(left)
    }

    /// Gives back what is kept for a stream that ends: at the last close, or when its inode goes.
    pub(crate) fn close_stream(&self, stream: Stream) {
        if let Some(state) = self.streams.remove(stream) {
            self.slot(state.group).blocks.lock().drop_window(stream);
        }
    }

    /// Whether [`BlockAllocator::initialise`] is known to have nothing to do.
    pub(super) fn is_initialised(&self, group: Group) -> bool {
        self.slot(group).initialised.load(Ordering::Acquire)
    }

    /// Writes the bitmap of a group that has none yet; does nothing for others. Changes two metadata
    /// blocks. For the inode allocator: others expect a block bitmap where inodes are in use.
    ///
    /// # Errors
    /// As for `allocate`.
    pub(crate) fn initialise(&self, edit: &mut dyn Edit, group: Group) -> Result<()> {
        if self.is_initialised(group) {
            return Ok(());
        }
        let desc = self.groups.desc(&*edit, group)?;
        if self.groups.has_flag(&desc, BLOCK_UNINIT) {
            let mut state = self.slot(group).blocks.lock();
            let view = self.view(&*edit, group, &mut state)?;
            if view.fresh {
                self.write(edit, group, &view, &(0..0), true)?;
            }
        }
        let slot = self.slot(group);
        slot.initialised.store(true, Ordering::Release);
        Ok(())
    }

    /// Free clusters of a group, from memory once it was looked at.
    pub(super) fn peek(&self, edit: &dyn Edit, group: Group) -> Result<u32> {
        let Some(slot) = self.groups.slot_made(group) else {
            return self.groups.glance_clusters(edit, group);
        };
        if slot.free_clusters.get() == super::groups::UNKNOWN {
            let _state = slot.blocks.lock();
            let free = self.groups.desc(edit, group)?.free_clusters_count();
            slot.free_clusters.set(free);
        }
        Ok(slot.free_clusters.get())
    }

    /// The first block of the cluster that a bit stands for.
    pub(super) fn run(&self, group: Group, bits: &Range<u32>) -> Run {
        let first = self.sb().group_first_block(group).0;
        let offset = u64::from(bits.start) * u64::from(self.sb().cluster_ratio());
        Run {
            start: Pblk(first + offset),
            len: bits.end - bits.start,
        }
    }

    /// Reads a group; the first time, checks it too. `state` is the group's.
    pub(super) fn view(
        &self,
        edit: &dyn Edit,
        group: Group,
        state: &mut GroupBlocks,
    ) -> Result<View> {
        if state.load == Load::Damaged {
            return Err(damaged(group, "it was found damaged before".into()));
        }
        let view = self.read(edit, group).and_then(|view| {
            if state.load == Load::No {
                self.check_loaded(group, &view)?;
                self.loaded(group, &view, state);
            }
            Ok(view)
        });
        if let Err(error @ (Error::Corrupt { .. } | Error::Checksum { .. })) = &view {
            self.groups.pass_over(error);
            self.condemn(edit, group, state);
        }
        view
    }

    /// As [`BlockAllocator::view`], without the bytes of a bitmap that can be changed in place: one that was checked is not read again.
    pub(super) fn view_to_change(
        &self,
        edit: &dyn Edit,
        group: Group,
        state: &mut GroupBlocks,
    ) -> Result<View> {
        if state.load == Load::Ready
            && let Ok(desc) = self.groups.desc(edit, group)
            && !self.groups.has_flag(&desc, BLOCK_UNINIT)
        {
            return Ok(View::unread(desc));
        }
        let mut view = self.view(edit, group, state)?;
        view.let_go();
        Ok(view)
    }

    fn read(&self, edit: &dyn Edit, group: Group) -> Result<View> {
        let desc = self.groups.desc(edit, group)?;
        let fresh = self.groups.has_flag(&desc, BLOCK_UNINIT);
        let bits = if fresh {
            self.groups.initial_block_bitmap(group, &desc).into()
        } else {
            let sb = self.sb();
            let kind = BlockBitmap { sb, desc: &desc };
            edit.read(desc.block_bitmap(), &kind).map_err(Error::from)?
        };
        Ok(View::new(desc, bits, fresh))
    }

    /// The count must be right, and metadata in use.
    fn check_loaded(&self, group: Group, view: &View) -> Result<()> {
        let end = self.sb().clusters_in_group(group) as usize;
        let (free, counted) = (
            bitmap::count_free(view.bits(), end),
            view.desc.free_clusters_count(),
        );
        if free != counted as usize {
            let what = format!("{free} bits are clear, its descriptor counts {counted}");
            return Err(damaged(group, what));
        }
        let clear = |range: Range<usize>| bitmap::next_zero(view.bits(), range.start, range.end);
        let mut metadata = self.groups.metadata_bits(group, &view.desc).into_iter();
        match metadata.find_map(clear) {
            Some(bit) => Err(damaged(group, format!("bit {bit} is clear, and metadata"))),
            None => Ok(()),
        }
    }

    fn loaded(&self, group: Group, view: &View, state: &mut GroupBlocks) {
        let slot = self.slot(group);
        let free = view.desc.free_clusters_count();
        slot.free_clusters.set(free);
        slot.longest.set(free);
        state.load = Load::Ready;
    }

    /// The group is damaged: its free clusters are not available any more.
    fn condemn(&self, edit: &dyn Edit, group: Group, state: &mut GroupBlocks) {
        let slot = self.slot(group);
        let free = match self.groups.desc(edit, group) {
            Ok(desc) => desc.free_clusters_count(),
            Err(_) => 0,
        };
        state.load = Load::Damaged;
        slot.free_clusters.set(0);
        slot.longest.set(0);
        let held = state.held_count();
        self.space.lost(u64::from(free.saturating_sub(held)));
    }

    /// Sets or clears bits that must all be the other way, and brings the descriptor up to date. On
    /// failure nothing is changed (but perhaps a bitmap that was never written before is).
    pub(super) fn write(
        &self,
        edit: &mut dyn Edit,
        group: Group,
        view: &View,
        bits: &Range<u32>,
        used: bool,
    ) -> Result<()> {
        let csum = self.write_bitmap(edit, view, bits, used)?;
        let done = self.write_desc(edit, group, bits.end - bits.start, used, csum);
        if done.is_err() && !view.fresh {
            // Only if the journal stopped or the handle is too small for the caller: either way the
            // transaction should not commit, and if it does, let it be consistent.
            let _ = self.write_bitmap(edit, view, bits, !used);
        }
        done
    }

    /// The bitmap's new checksum, where there is one.
    fn write_bitmap(
        &self,
        edit: &mut dyn Edit,
        view: &View,
        bits: &Range<u32>,
        used: bool,
    ) -> Result<Option<u32>> {
        let (sb, block) = (self.sb(), view.desc.block_bitmap());
        let kind = BlockBitmap {
            sb,
            desc: &view.desc,
        };
        let mut csum = None;
        let mut change = |bytes: &mut [u8]| {
            flip(block, bytes, bits, used)?;
            csum = checksum(sb, &view.desc, bytes);
            Ok(())
        };
        view.change_bitmap(edit, block, &kind, &mut change)?;
        Ok(csum)
    }

    fn write_desc(
        &self,
        edit: &mut dyn Edit,
        group: Group,
        count: u32,
        used: bool,
        csum: Option<u32>,
    ) -> Result<()> {
        let most = self.sb().clusters_in_group(group);
        let mut free = 0;
        let mut change = |block: Pblk, desc: &mut GroupDesc| {
            let before = desc.free_clusters_count();
            let after = if used {
                before.checked_sub(count)
            } else {
                before.checked_add(count).filter(|&after| after <= most)
            };
            let Some(after) = after else {
                let expected = format!("room for {count} more");
                return Err(contradiction(
                    block,
                    "group descriptor",
                    "bg_free_blocks_count",
                    before,
                    expected,
                ));
            };
            desc.set_free_clusters_count(after);
            desc.clear_flags(BLOCK_UNINIT);
            if let Some(csum) = csum {
                desc.set_block_bitmap_csum(csum);
            }
            free = after;
            Ok(())
        };
        self.groups.change_desc(edit, group, &mut change)?;
        self.slot(group).free_clusters.set(free);
        Ok(())
    }
}

/// The checksum of a block bitmap, where the file system has one.
fn checksum(sb: &SuperBlock, desc: &GroupDesc, bytes: &[u8]) -> Option<u32> {
    if !sb.features().metadata_csum() {
        return None;
    }
    let mut desc = desc.clone();
    bitmap::update_block_bitmap(bytes, sb, &mut desc).ok()?;
    Some(desc.block_bitmap_csum())
}

/// Sets or clears bits, all of which must be the other way.
fn flip(
    block: Pblk,
    bytes: &mut [u8],
    bits: &Range<u32>,
    used: bool,
) -> dioxide_journal::Result<()> {
    let range = wide(bits);
    let wrong = if used {
        bitmap::next_set(bytes, range.start, range.end)
    } else {
        bitmap::next_zero(bytes, range.start, range.end)
    };
    if let Some(bit) = wrong {
        let expected = if used { "free" } else { "in use" };
        let bit = bit as u32;
        return Err(contradiction(
            block,
            "block bitmap",
            "bit",
            bit,
            expected.into(),
        ));
    }
    bitmap::put_range(bytes, range, used);
    Ok(())
}

/// An error about a group's bitmap.
pub(super) fn damaged(group: Group, what: String) -> Error {
    Error::Corrupt {
        structure: "block bitmap",
        place: Place::group(group),
        what,
    }
}
