//! fallocate in all its modes, and where a file has data.
//!
//! Each mode begins with the file alone: its lock exclusive and direct I/O in flight drained. Edges of
//! a range that are not whole blocks are zeroed by writing; whole blocks change in the map only.
//!
//! Blocks that are allocated ahead are unwritten, so that nothing stale can be read from them; a crash
//! in the middle leaves some of the range allocated, which is harmless. They are reserved before the first
//! is allocated, so that a range for which there is no room is left as it is; if another error comes in
//! the middle, what was allocated is given back. (Linux leaves it allocated, also behind the end of the
//! file, where nobody sees it.) Collapse and insert move
//! extents in one transaction if they fit into one. Otherwise a crash in the middle leaves them half moved, as in ext4.

use crate::alloc::{Request, Reservation, Right};
use crate::api::attributes::FallocateMode as Mode;
use crate::inode::Inode;
use crate::io::direct::lock::lock;
use crate::io::direct::policy::LockMode;
use crate::io::direct::{Access, Wait};
use crate::io::resize::{Steps, done_of, stamp};
use crate::map::tree::State;
use crate::map::{self, MapKind, Run};
use crate::mount::Mount;
use crate::namei::inline_content;
use crate::sync::slot;
use crate::txn::Writer;
use crate::txn::file::{Credits, MOST_UNWRITTEN};
use crate::txn::inode::INODE_CREDITS;
use crate::{Error, Result};
use dioxide_format::extent::Extent;
use dioxide_format::types::{Lblk, Pblk};
use std::ops::Range;

/// Up to where Linux punches beyond the end of a file.
const PAGE_BYTES: u64 = 4096;

/// A range of a file.
struct Span {
    bytes: Range<u64>,
    /// Blocks that lie in it as a whole.
    whole: Range<u64>,
}

impl Mount {
    /// Allocates, frees, zeroes or moves a range of a file. Blocks.
    ///
    /// # Errors
    /// See [`crate::File::allocate`].
    pub(crate) fn fallocate(
        &self,
        inode: &Inode,
        mode: Mode,
        bytes: Range<u64>,
        access: Access,
    ) -> Result<()> {
        let writer = self.writer()?;
        let _alone = self.alone(inode)?;
        self.check_resizable(inode)?;
        if !matches!(mode, Mode::Allocate | Mode::KeepSize) {
            self.check_not_append_only(inode)?;
        }
        if inode.has_inline_data() {
            self.move_out(writer, inode, access.right())?;
        }
        if !inode.is_extent_mapped() && mode != Mode::PunchHole {
            let what = "fallocate on a file that is mapped by indirect blocks";
            return Err(Error::Unsupported(format!("{what}: inode {}", inode.ino)));
        }
        let most = match mode {
            Mode::PunchHole | Mode::CollapseRange => self.max_file_bytes(),
            _ => self.max_bytes_of(inode),
        };
        if bytes.end > most {
            return Err(self.too_large(inode, &format!("a range up to byte {}", bytes.end)));
        }
        self.strip_if_needed(writer, inode, access.at_once())?;
        self.finish_truncate(writer, inode)?;
        let span = self.span(bytes);
        match mode {
            Mode::Allocate | Mode::KeepSize => self.preallocate(writer, inode, &span, mode, access),
            Mode::PunchHole => self.punch(writer, inode, &span),
            Mode::ZeroRange | Mode::ZeroRangeKeepSize | Mode::WriteZeroes => {
                self.zero_range(writer, inode, &span, mode, access)
            }
            Mode::CollapseRange => self.collapse(writer, inode, &span),
            Mode::InsertRange => self.insert_range(writer, inode, &span),
        }
    }

    fn span(&self, bytes: Range<u64>) -> Span {
        let start = bytes.start.div_ceil(self.block_bytes());
        Span {
            whole: start..(bytes.end >> self.block_bits).max(start),
            bytes,
        }
    }

    fn blocks_touched(&self, span: &Span) -> Range<u64> {
        span.bytes.start >> self.block_bits..span.bytes.end.div_ceil(self.block_bytes())
    }

    fn preallocate(
        &self,
        writer: &Writer,
        inode: &Inode,
        span: &Span,
        mode: Mode,
        access: Access,
    ) -> Result<()> {
        self.with_space(writer, || {
            let room = self.reserve_for(writer, inode, span, access)?;
            self.fill_and_grow(writer, inode, span, mode, room)
        })
    }

    /// Reserves what the holes of a range need.
    fn reserve_for<'w>(
        &self,
        writer: &'w Writer,
        inode: &Inode,
        span: &Span,
        access: Access,
    ) -> Result<Reservation<'w>> {
        let clusters = self.clusters_missing(inode, self.blocks_touched(span))?;
        self.reserve_some(writer, clusters, access.right())
    }

    /// Clusters for the holes of a range, beside those that the file has already. Once they are more than the file
    /// system has, the rest of the range counts as one hole.
    fn clusters_missing(&self, inode: &Inode, blocks: Range<u64>) -> Result<u64> {
        let ratio = u64::from(self.sb.cluster_ratio());
        let all = self.sb.blocks_count();
        let (mut at, mut missing) = (blocks.start, 0);
        while at < blocks.end && missing <= all / ratio {
            let hole = at..self.hole_end(inode, at, blocks.end.min(at + 2 * all))?;
            if hole.is_empty() {
                let want = (blocks.end - at).min(u32::MAX.into()) as u32;
                let mapping = map::load::lookup_or_load(self, inode, Lblk(at as u32), want)?;
                at += u64::from(mapping.len);
                continue;
            }
            let (first, last) = (hole.start / ratio, (hole.end - 1) / ratio);
            missing += last - first + 1;
            // Between these two the hole has all of each cluster.
            let edges = [hole.start, hole.end - 1];
            for &lblk in &edges[..if first == last { 1 } else { 2 }] {
                if self.implied_cluster(inode, Lblk(lblk as u32))?.is_some() {
                    missing -= 1;
                }
            }
            at = hole.end;
        }
        Ok(missing + (blocks.end - at) / ratio)
    }

    /// Where a hole that begins at `at` ends, or `end`; `at` if there is none.
    fn hole_end(&self, inode: &Inode, at: u64, end: u64) -> Result<u64> {
        let mut to = at;
        while to < end {
            let want = (end - to).min(u32::MAX.into()) as u32;
            let mapping = map::load::lookup_or_load(self, inode, Lblk(to as u32), want)?;
            if mapping.kind != MapKind::Hole {
                break;
            }
            to += u64::from(mapping.len);
        }
        Ok(to)
    }

    fn fill_and_grow(
        &self,
        writer: &Writer,
        inode: &Inode,
        span: &Span,
        mode: Mode,
        mut room: Reservation<'_>,
    ) -> Result<()> {
        let mut filled = Vec::new();
        let blocks = self.blocks_touched(span);
        let size = match mode {
            Mode::KeepSize | Mode::ZeroRangeKeepSize => inode.i_size(),
            _ => span.bytes.end.max(inode.i_size()),
        };
        let mut done = self.fill_holes(writer, inode, blocks.clone(), &mut room, &mut filled);
        if mode == Mode::WriteZeroes {
            done = done.and_then(|()| self.zero_unwritten(inode, blocks));
        }
        let done = done.and_then(|()| self.grow(writer, inode, size));
        if let Err(error) = done {
            for blocks in filled.into_iter().rev() {
                // The first error is the one to tell.
                if let Err(later) = self.remove_blocks(writer, inode, blocks) {
                    tracing::warn!("inode {}: blocks were not given back: {later}", inode.ino);
                    break;
                }
            }
            return Err(error);
        }
        Ok(())
    }

    /// Allocates unwritten blocks for the holes of a range, and tells which were holes.
    fn fill_holes(
        &self,
        writer: &Writer,
        inode: &Inode,
        blocks: Range<u64>,
        room: &mut Reservation<'_>,
        filled: &mut Vec<Range<u64>>,
    ) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            let want = (blocks.end - at).min(MOST_UNWRITTEN.into()) as u32;
            let mapping = map::load::lookup_or_load(self, inode, Lblk(at as u32), want)?;
            if mapping.kind != MapKind::Hole {
                at += u64::from(mapping.len);
                continue;
            }
            let end = at + self.fill_hole(writer, inode, at, mapping.len, room)?;
            match filled.last_mut() {
                Some(last) if last.end == at => last.end = end,
                _ => filled.push(at..end),
            }
            at = end;
        }
        Ok(())
    }

    /// Allocates one run at the begin of a hole; returns its length.
    fn fill_hole(
        &self,
        writer: &Writer,
        inode: &Inode,
        at: u64,
        len: u32,
        room: &mut Reservation<'_>,
    ) -> Result<u64> {
        let lblk = Lblk(at as u32);
        let ratio = u64::from(self.sb.cluster_ratio());
        let skip = at % ratio;
        let hole = self.own_clusters(inode, at..at + u64::from(len))?;
        let (pblk, len, mut claim) = match self.settled_cluster(writer, inode, lblk)? {
            Some(cluster) => (cluster.0 + skip, (ratio - skip).min(len.into()), None),
            None => {
                let most = u64::from(MOST_UNWRITTEN).min(hole.end - at);
                let clusters =
                    ((skip + most).div_ceil(ratio)).min(u64::from(MOST_UNWRITTEN) / ratio);
                let request = Request {
                    goal: self.goal_behind(inode, at)?,
                    len: 1..=clusters.max(1) as u32,
                    stream: Some(inode.stream()),
                    // That was asked when they were reserved.
                    right: Right::Everyone,
                    // It has extents.
                    below: None,
                };
                let reader = self.reader();
                let claim = writer.blocks.claim_reserved(&reader, &request, room)?;
                let run = claim.run();
                let blocks = u64::from(run.len) * ratio - skip;
                (run.start.0 + skip, blocks.min(most), Some(claim))
            }
        };
        inode.set_goal(Pblk(pblk + len), &writer.blocks);
        let run = Run {
            lblk,
            len: len as u32,
            pblk: Pblk(pblk),
            unwritten: true,
        };
        let extent = Extent {
            lblk,
            // At most MOST_UNWRITTEN.
            len: len as u16,
            pblk: run.pblk,
            unwritten: true,
        };
        let mut handle = writer.begin(Credits::insert(self, inode) + INODE_CREDITS)?;
        let lock = inode.map.lock();
        self.change_map(
            writer,
            &mut handle,
            inode,
            &lock,
            |map| map.insert_claimed(extent, claim.as_mut()),
            &mut |_, _| {},
        )?;
        lock.set_run(&run);
        drop(lock);
        handle.stop()?;
        Ok(len)
    }

    /// Behind the end nothing is punched; what is allocated ahead stays, as in Linux. The block that
    /// the end lies in goes with the bytes up to the end.
    fn punch(&self, writer: &Writer, inode: &Inode, span: &Span) -> Result<()> {
        let Range { start, end } = span.bytes;
        let size = inode.i_size();
        if start >= size {
            return Ok(());
        }
        let last = size.next_multiple_of(self.block_bytes().max(PAGE_BYTES));
        let span = &self.span(start..end.min(last));
        // First: it may find no space, and then nothing is to be changed.
        self.remove_blocks(writer, inode, span.whole.clone())?;
        self.zero_edges(inode, span)?;
        let now = self.now();
        self.set_size_and(writer, inode, &mut |disk| stamp(disk, now))
    }

    /// Zeros the parts of blocks at both ends of a range.
    fn zero_edges(&self, inode: &Inode, span: &Span) -> Result<()> {
        let Range { start, end } = span.bytes;
        let head = start.next_multiple_of(self.block_bytes()).min(end);
        self.zero_block_part(inode, start, head)?;
        let tail = (end - end % self.block_bytes()).max(head);
        self.zero_block_part(inode, tail, end)?;
        Ok(())
    }

    fn zero_range(
        &self,
        writer: &Writer,
        inode: &Inode,
        span: &Span,
        mode: Mode,
        access: Access,
    ) -> Result<()> {
        let mut room = Some(self.reserve_for(writer, inode, span, access)?);
        self.zero_edges(inode, span)?;
        self.convert(writer, inode, span.whole.clone(), State::Unwritten)?;
        self.with_space(writer, || {
            let room = match room.take() {
                Some(room) => room,
                None => self.reserve_for(writer, inode, span, access)?,
            };
            self.fill_and_grow(writer, inode, span, mode, room)
        })?;
        match mode {
            // It was unwritten until it was zeros on the device. The size came before: written blocks behind the end are damage.
            Mode::WriteZeroes => {
                self.convert(writer, inode, self.blocks_touched(span), State::Written)
            }
            _ => Ok(()),
        }
    }

    /// Zeros what is unwritten, where it lies on the device.
    fn zero_unwritten(&self, inode: &Inode, blocks: Range<u64>) -> Result<()> {
        let runs = self.tree_runs(inode, &inode.map.lock(), blocks)?;
        for run in runs.iter().filter(|run| run.unwritten) {
            let (at, len) = (run.pblk.0, u64::from(run.len));
            self.device
                .write_zeroes(at << self.block_bits, len << self.block_bits)?;
        }
        Ok(())
    }

    fn check_whole_blocks(&self, inode: &Inode, span: &Span, what: &str) -> Result<()> {
        let unit = u64::from(self.sb.cluster_size());
        let Range { start, end } = span.bytes;
        if !start.is_multiple_of(unit) || !end.is_multiple_of(unit) {
            return Err(Error::Invalid(format!(
                "{what} of bytes {start} to {end}: offset and length must be multiples of {unit}"
            )));
        }
        if start >= inode.i_size() {
            return Err(Error::Invalid(format!(
                "{what} at {start}: the file ends at {}",
                inode.i_size()
            )));
        }
        Ok(())
    }

    fn collapse(&self, writer: &Writer, inode: &Inode, span: &Span) -> Result<()> {
        self.check_whole_blocks(inode, span, "collapse")?;
        let old = inode.i_size();
        if span.bytes.end >= old {
            return Err(Error::Invalid(format!(
                "collapse up to {}: the file ends at {old}; truncate it instead",
                span.bytes.end
            )));
        }
        let size = old - (span.bytes.end - span.bytes.start);
        let delta = -((span.whole.end - span.whole.start) as i64);
        let _moving = inode.moving();
        let (mut removing, mut shifting) =
            (span.whole.clone(), span.whole.end..self.map_end(inode));
        let leaves = self.check_shift(writer, inode, &shifting)?;
        if let Some(credits) = self.credits_for_both(writer, inode, &removing, leaves) {
            (removing, shifting) = self.with_space(writer, || {
                self.remove_and_shift(writer, inode, [&removing, &shifting], size, credits)
            })?;
        }
        if shifting.is_empty() {
            return Ok(());
        }
        self.remove_blocks(writer, inode, removing)?;
        self.shift(writer, inode, &mut shifting, delta, leaves, Some(size))
    }

    /// How many leaves must be changed at once if a range is shifted.
    ///
    /// # Errors
    /// A transaction has no room for them; damage.
    fn check_shift(&self, writer: &Writer, inode: &Inode, range: &Range<u64>) -> Result<u32> {
        let leaves = self.leaves_to_shift(inode, range.clone())?;
        match writer.may_have(Credits::shift(self, inode, leaves) + INODE_CREDITS) {
            true => Ok(leaves),
            false => Err(Error::Unsupported(format!(
                "inode {}: moving clusters whose extents fill more tree blocks than a transaction of this journal has room for",
                inode.ino
            ))),
        }
    }

    /// Removes a range and moves up what lies behind it, as far as one transaction goes; tells what is left of both. `size` is
    /// what the file has once all is moved.
    ///
    /// # Errors
    /// `ENOSPC` before anything is changed.
    fn remove_and_shift(
        &self,
        writer: &Writer,
        inode: &Inode,
        [removing, shifting]: [&Range<u64>; 2],
        size: u64,
        [to_remove, to_shift]: [u32; 2],
    ) -> Result<(Range<u64>, Range<u64>)> {
        let delta = -((removing.end - removing.start) as i64);
        let mut handle = writer.begin(to_remove + to_shift + INODE_CREDITS)?;
        let (now, lock) = (self.now(), inode.map.lock());
        let (removed, shifted) = self.change_map(
            writer,
            &mut handle,
            inode,
            &lock,
            |map| {
                let removed = map.remove(removing.clone(), to_remove)?.left(removing);
                if !removed.is_empty() {
                    return Ok((removed, shifting.clone()));
                }
                match map.shift(shifting.clone(), delta, to_shift) {
                    Ok(progress) => Ok((removed, progress.left(shifting))),
                    // What is removed is gone. The rest is tried again, with what that has set free.
                    Err(Error::NoSpace(_)) => Ok((removed, shifting.clone())),
                    Err(error) => Err(error),
                }
            },
            &mut |disk, (_, shifted): &(_, Range<u64>)| {
                if shifted.is_empty() {
                    disk.set_size(size);
                }
                stamp(disk, now);
            },
        )?;
        // Before what may fail: the inode says so already.
        if shifted.is_empty() {
            inode.set_size(size);
        }
        lock.set_hole(done_of(removing, &removed));
        self.publish_shift(inode, &lock, done_of(shifting, &shifted), delta)?;
        drop(lock);
        handle.stop()?;
        Ok((removed, shifted))
    }

    /// Credits for removing something of a range and for shifting something, if one transaction may have both.
    fn credits_for_both(
        &self,
        writer: &Writer,
        inode: &Inode,
        removing: &Range<u64>,
        leaves: u32,
    ) -> Option<[u32; 2]> {
        let blocks = removing.end - removing.start;
        let least = [
            Credits::remove_of(self, inode, blocks),
            Credits::shift(self, inode, leaves),
        ];
        let ample = least.map(|least| least.max(writer.ample_credits()));
        let may_have = |both: &[u32; 2]| writer.may_have(both[0] + both[1] + INODE_CREDITS);
        [ample, least].into_iter().find(may_have)
    }

    fn insert_range(&self, writer: &Writer, inode: &Inode, span: &Span) -> Result<()> {
        self.check_whole_blocks(inode, span, "insert")?;
        let len = span.bytes.end - span.bytes.start;
        let old = inode.i_size();
        let size = old + len;
        if size > self.max_bytes_of(inode) {
            return Err(self.too_large(inode, &format!("{size} bytes")));
        }
        let delta = (len >> self.block_bits) as i64;
        let shifting = span.whole.start..self.map_end(inode) - delta as u64;
        self.check_unmapped(inode, shifting.end..self.map_end(inode))?;
        let leaves = self.check_shift(writer, inode, &shifting)?;
        let _moving = inode.moving();
        let mut left = self.with_space(writer, || {
            self.grow_and_shift(writer, inode, &shifting, delta, leaves, size)
        })?;
        let moved = self.shift(writer, inode, &mut left, delta, leaves, None);
        if let Err(Error::NoSpace(_)) = moved {
            // The last step may be the one that lacks a block, for the extent that the new range divides.
            let mut back = left.end.saturating_add_signed(delta)..self.map_end(inode);
            if let Err(later) = self.shift(writer, inode, &mut back, -delta, leaves, Some(old)) {
                tracing::warn!("inode {}: a part stays moved: {later}", inode.ino);
            }
        }
        moved
    }

    /// Makes a file longer and moves on a range, as far as one transaction goes; tells what is left of it.
    ///
    /// # Errors
    /// `ENOSPC` before anything is changed.
    fn grow_and_shift(
        &self,
        writer: &Writer,
        inode: &Inode,
        shifting: &Range<u64>,
        delta: i64,
        leaves: u32,
        size: u64,
    ) -> Result<Range<u64>> {
        let credits = Credits::shift(self, inode, leaves).max(writer.ample_credits());
        let mut handle = writer.begin(credits + INODE_CREDITS)?;
        let (now, lock) = (self.now(), inode.map.lock());
        let left = self.change_map(
            writer,
            &mut handle,
            inode,
            &lock,
            |map| Ok(map.shift(shifting.clone(), delta, credits)?.left(shifting)),
            // With the first part: what is moved behind the old end must not be cut off after a crash.
            &mut |disk, _| {
                disk.set_size(size);
                stamp(disk, now);
            },
        )?;
        // Before what may fail: the inode says so already.
        inode.set_size(size);
        self.publish_shift(inode, &lock, done_of(shifting, &left), delta)?;
        drop(lock);
        handle.stop()?;
        Ok(left)
    }

    /// What is preallocated in the last `blocks` that a file can have cannot be moved on. (Linux finds that out when the
    /// file is longer already.)
    fn check_unmapped(&self, inode: &Inode, blocks: Range<u64>) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            let want = (blocks.end - at) as u32;
            let mapping = map::load::lookup_or_load(self, inode, Lblk(at as u32), want)?;
            if mapping.kind != MapKind::Hole {
                let what = format!(
                    "block {at}, which is allocated, moved on by {}",
                    blocks.end - blocks.start
                );
                return Err(self.too_large(inode, &what));
            }
            at += u64::from(mapping.len);
        }
        Ok(())
    }

    /// Moves what is left of a range, which tells what is left then. `size` is what the file has once all is moved, if that is
    /// another.
    fn shift(
        &self,
        writer: &Writer,
        inode: &Inode,
        rest: &mut Range<u64>,
        delta: i64,
        leaves: u32,
        size: Option<u64>,
    ) -> Result<()> {
        let steps = Steps {
            rest,
            least: Credits::shift(self, inode, leaves),
            size,
        };
        let mut step = |map: &mut crate::txn::file::MapChange<'_, '_>, rest, credits| {
            map.shift(rest, delta, credits)
        };
        let mut publish = |lock: &map::MapGuard<'_>, done: Range<u64>| {
            self.publish_shift(inode, lock, done, delta)
        };
        self.in_steps(writer, inode, steps, &mut step, &mut publish)
    }

    /// Shows readers what was moved.
    fn publish_shift(
        &self,
        inode: &Inode,
        lock: &map::MapGuard<'_>,
        done: Range<u64>,
        delta: i64,
    ) -> Result<()> {
        let moved = done.start.saturating_add_signed(delta)..done.end.saturating_add_signed(delta);
        let both = done.start.min(moved.start)..done.end.max(moved.end);
        self.republish(inode, lock, both)
    }

    /// The first byte at or behind `offset` that is data, or that is none. Unwritten blocks are holes.
    /// The end of the file is a hole.
    pub(crate) fn seek(&self, inode: &Inode, offset: u64, data: bool) -> Result<Option<u64>> {
        let look = || self.seek_now(inode, offset, data);
        if let Some(found) = inode.while_nothing_moves(look) {
            return found;
        }
        let _nothing_moves = lock(self, inode, LockMode::Shared, Wait::Block, slot::current())?;
        look()
    }

    fn seek_now(&self, inode: &Inode, offset: u64, data: bool) -> Result<Option<u64>> {
        let size = inode.i_size();
        if offset >= size {
            return Ok(None);
        }
        // Nobody has it alone: flag and content are of one moment.
        let node = inode.node();
        if node.disk.has_inline_data() {
            let end = inline_content(&node, inode)?.len() as u64;
            return Ok(match data {
                true => (offset < end).then_some(offset),
                false => Some(offset.max(end)),
            });
        }
        let end = size.div_ceil(self.block_bytes());
        let mut at = offset >> self.block_bits;
        while at < end {
            let mapping =
                map::load::lookup_or_load(self, inode, Lblk(at as u32), (end - at) as u32)?;
            if (mapping.kind == MapKind::Mapped) == data {
                return Ok(Some(offset.max(at << self.block_bits)));
            }
            at += u64::from(mapping.len);
        }
        Ok((!data).then_some(size))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Fs, MountOptions, OpenOptions};
    use dioxide_testkit::Image;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn seek_waits_for_blocks_that_move_and_for_nothing_else() {
        let image = Image::builder().build();
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let options = OpenOptions::new().write(true).create(true);
        let file = options.open(&fs, "/f").expect("room");
        file.write_at(&[1; 100], 0).expect("room");
        let inode = fs.0.lookup(b"/f", false).expect("it is there");
        let alone = fs.0.alone(&inode).expect("nobody else has it");
        let seek = || file.seek_data(0).expect("a map");
        thread::scope(|scope| {
            let at_once = scope.spawn(seek);
            assert_eq!(at_once.join().expect("no panic"), Some(0));
            let moving = inode.moving();
            let later = scope.spawn(seek);
            thread::sleep(Duration::from_millis(100));
            assert!(!later.is_finished());
            drop((moving, alone));
            assert_eq!(later.join().expect("no panic"), Some(0));
        });
    }
}
