//! Changing a file's size and what it has allocated: truncate, fallocate, and where its data is.
//!
//! It runs with the inode's lock exclusive and direct I/O in flight drained, but for the usual truncate to a smaller
//! size, which lets readers go on ([`Mount::cut`]). What may take more
//! than one transaction is resumable: a shrinking truncate that does not fit into one is an orphan meanwhile, and what fallocate
//! leaves half done is a file as somebody might have made it.

use crate::inode::Inode;
use crate::io::direct::lock::{Guard, beside_readers, drain, lock};
use crate::io::direct::policy::{LockMode, read_lock};
use crate::io::direct::{Access, Wait};
use crate::map::tree::{Progress, State};
use crate::map::{self, MapGuard, MapKind};
use crate::mount::Mount;
use crate::sync::inflight::Closed;
use crate::sync::rwsem::Exclusive;
use crate::sync::slot;
use crate::txn::Writer;
use crate::txn::file::{Credits, MapChange};
use crate::txn::inode::INODE_CREDITS;
use crate::txn::orphan::ORPHAN_CREDITS;
use crate::{Error, Result};
use dioxide_block::{Buf, Durability};
use dioxide_format::features::RoCompat;
use dioxide_format::indirect;
use dioxide_format::inode::{Inode as DiskInode, Timestamp};
use dioxide_format::types::Lblk;
use dioxide_journal::journal::Handle;
use std::ops::Range;
use std::sync::Arc;

/// What [`Mount::in_steps`] goes through.
pub(crate) struct Steps<'a> {
    /// What is left of it, also after a step that failed.
    pub(crate) rest: &'a mut Range<u64>,
    /// Credits that are enough for a step to get on.
    pub(crate) least: u32,
    /// The file's size from the last step on, if that is another.
    pub(crate) size: Option<u64>,
}

/// One transaction's part of a change: of what is left of a range, with so many credits.
type Step<'a> = dyn FnMut(&mut MapChange<'_, '_>, Range<u64>, u32) -> Result<Progress> + 'a;
/// Shows readers what was done.
type Publish<'a> = dyn FnMut(&MapGuard<'_>, Range<u64>) -> Result<()> + 'a;

/// Stamps a change of content.
pub(crate) fn stamp(disk: &mut DiskInode, now: Timestamp) {
    disk.set_mtime(now);
    disk.set_ctime(now);
}

/// Bytes that were zeroed, on the device.
pub(crate) struct Zeroed {
    at: u64,
    was: Buf,
}

/// What of a range is done, from the left or from the right.
pub(super) fn done_of(range: &Range<u64>, left: &Range<u64>) -> Range<u64> {
    match left.end == range.end {
        true => range.start..left.start,
        false => left.end..range.end,
    }
}

impl Mount {
    /// The file alone: its lock exclusive, and no direct I/O in flight, not that of readers without the lock either.
    pub(crate) fn alone<'a>(&self, inode: &'a Inode) -> Result<(Closed<'a>, Guard<'a>)> {
        let slot = slot::current();
        let guard = lock(self, inode, LockMode::Exclusive, Wait::Block, slot)?;
        let closed = inode.in_flight.close();
        drain(self, inode, slot)?;
        Ok((closed, guard))
    }

    /// Sets the size. Blocks.
    ///
    /// # Errors
    /// See [`crate::File::set_len`].
    pub(crate) fn set_len(&self, inode: &Inode, size: u64, access: Access) -> Result<()> {
        let (writer, access) = (self.writer()?, access.at_once());
        if let Some(done) = self.cut(writer, inode, size, access) {
            return done;
        }
        let _alone = self.alone(inode)?;
        self.check_resizable(inode)?;
        self.check_not_append_only(inode)?;
        self.check_size(inode, size)?;
        self.strip_if_needed(writer, inode, access)?;
        if inode.has_inline_data() && self.resize_inline(writer, inode, size, access)? {
            return Ok(());
        }
        self.finish_truncate(writer, inode)?;
        // To the size that it has: what was allocated behind it goes.
        if size <= inode.i_size() {
            self.shrink(writer, inode, size)
        } else {
            self.grow(writer, inode, size)
        }
    }

    /// Cuts a file off between two blocks, while readers go on: who comes sees the new end, and once all have left who may
    /// have seen the old one, nobody finds the blocks behind it. `None`: this takes the file alone.
    fn cut(&self, writer: &Writer, inode: &Inode, size: u64, access: Access) -> Option<Result<()>> {
        // Asked twice: most that cannot go beside readers needs no lock to be told.
        if !self.can_cut(inode, size, access) {
            return None;
        }
        let beside = match beside_readers(self, inode, slot::current()) {
            Ok(beside) => beside,
            Err(endless) => return Some(Err(endless)),
        };
        if !self.can_cut(inode, size, access) {
            return None;
        }
        Self::begin_or_end_cut(inode, size);
        let closed = inode.in_flight.close();
        let (mut drained, mut alone) = (Ok(()), None);
        if !beside.all_have_left() || !inode.in_flight.is_quiet(&self.in_flight) {
            alone = Some(beside.exclusive());
            drained = drain(self, inode, slot::current());
        }
        let shrunk = match drained {
            Ok(()) => self.shrink(writer, inode, size),
            Err(endless) => Err(endless),
        };
        // As it was, if nothing has changed.
        Self::begin_or_end_cut(inode, inode.node().disk.size());
        // While nobody else may close it.
        drop(closed);
        alone.into_iter().for_each(Exclusive::leave_to_readers);
        Some(shrunk)
    }

    fn begin_or_end_cut(inode: &Inode, size: u64) {
        let _lock = inode.map.lock();
        inode.count_cut();
        inode.set_size(size);
    }

    /// Whether nothing but whole blocks behind the new end changes, and readers can be told apart from those that came
    /// before.
    fn can_cut(&self, inode: &Inode, size: u64, access: Access) -> bool {
        let (readers, _) = read_lock(self.knobs.sample().policy());
        size < inode.i_size()
            && size.is_multiple_of(self.block_bytes())
            && inode.is_plain_data()
            && !inode.is_immutable()
            && !inode.is_append_only()
            && !inode.is_cut_short()
            && !inode.nosec().strips(access)
            && readers != LockMode::None
            && inode.in_flight.is_quiet(&self.in_flight)
    }

    fn check_size(&self, inode: &Inode, size: u64) -> Result<()> {
        if size <= self.max_bytes_of(inode) {
            return Ok(());
        }
        Err(self.too_large(inode, &format!("{size} bytes")))
    }

    /// The error of who asks for more than a file can hold.
    #[cold]
    pub(crate) fn too_large(&self, inode: &Inode, asked: &str) -> Error {
        let most = self.max_bytes_of(inode);
        let way_out = match self.will_be_extent_mapped(inode) {
            true => "larger blocks (mkfs -b) allow more",
            false => "a file with extents can be larger: copy it to a file system with extents",
        };
        Error::TooLarge(format!(
            "{asked}: the largest size of this file is {most} bytes; {way_out}"
        ))
    }

    /// An append-only file keeps what it has.
    pub(crate) fn check_not_append_only(&self, inode: &Inode) -> Result<()> {
        match inode.is_append_only() {
            false => Ok(()),
            true => Err(Error::NotPermitted(format!(
                "inode {} is append-only",
                inode.ino
            ))),
        }
    }

    /// Files whose content is not as it is seen.
    pub(crate) fn check_resizable(&self, inode: &Inode) -> Result<()> {
        if !inode.holds_plain_bytes() {
            let what = "changing the size of verity, encrypted or journalled data";
            return Err(Error::Unsupported(format!("{what}: inode {}", inode.ino)));
        }
        if inode.is_immutable() {
            return Err(Error::NotPermitted(format!(
                "inode {} is immutable",
                inode.ino
            )));
        }
        Ok(())
    }

    /// Makes a file longer; what is new reads as zeros. Also stamps one that keeps its size.
    pub(crate) fn grow(&self, writer: &Writer, inode: &Inode, size: u64) -> Result<()> {
        let old = inode.i_size();
        if size > old {
            let block_end = old.next_multiple_of(self.block_bytes());
            self.zero_block_part(inode, old, block_end)?;
        }
        self.store_size(writer, inode, size)
    }

    /// Stamps an inode and gives it a size, in one transaction of its own.
    pub(crate) fn store_size(&self, writer: &Writer, inode: &Inode, size: u64) -> Result<()> {
        let now = self.now();
        self.set_size_and(writer, inode, &mut |disk| {
            disk.set_size(size);
            stamp(disk, now);
        })?;
        inode.set_size(size);
        Ok(())
    }

    /// One transaction that only changes the inode.
    pub(crate) fn set_size_and(
        &self,
        writer: &Writer,
        inode: &Inode,
        change: &mut dyn FnMut(&mut DiskInode),
    ) -> Result<()> {
        let mut handle = writer.begin(INODE_CREDITS)?;
        let lock = inode.map.lock();
        self.change_inode(&mut handle, inode, &lock, change)?;
        inode.changed_in(handle.tid(), true);
        drop(lock);
        handle.stop()?;
        Ok(())
    }

    /// Zeros bytes of one block, if the file has data there; gives what was there.
    pub(crate) fn zero_block_part(
        &self,
        inode: &Inode,
        from: u64,
        to: u64,
    ) -> Result<Option<Zeroed>> {
        if from >= to {
            return Ok(None);
        }
        let block = from >> self.block_bits;
        let mapping = map::load::lookup_or_load(self, inode, Lblk(block as u32), 1)?;
        if mapping.kind != MapKind::Mapped {
            return Ok(None);
        }
        let start = mapping.pblk.0 << self.block_bits;
        let logical = self.logical_mask + 1;
        // Only the logical blocks that are concerned: others may be written meanwhile.
        let first = (from & self.block_mask) / logical * logical;
        let last =
            ((to - (block << self.block_bits)).next_multiple_of(logical)).min(self.block_bytes());
        let mut was = Buf::zeroed((last - first) as usize);
        self.device.read_at(start + first, &mut was)?;
        let mut buf = Buf::zeroed(was.len());
        buf.copy_from_slice(&was);
        let at = (from & self.block_mask) - first;
        buf[at as usize..(at + to - from) as usize].fill(0);
        let at = start + first;
        self.device.write_at(at, &buf, Durability::Cached)?;
        Ok(Some(Zeroed { at, was }))
    }

    /// Makes a file shorter. The file is alone.
    pub(crate) fn shrink(&self, writer: &Writer, inode: &Inode, size: u64) -> Result<()> {
        let block_end = size.next_multiple_of(self.block_bytes());
        // First, so that nothing has happened if it fails; whoever crashes now has old bytes or zeros
        // behind what will be the end.
        let zeroed = self.zero_block_part(inode, size, block_end.min(inode.i_size()).max(size))?;
        let cut = self.cut_behind(writer, inode, size);
        if let (Err(_), Some(zeroed)) = (&cut, zeroed)
            && inode.i_size() > size
        {
            // What could not be cut off stays as it was. The first error is the one to tell.
            let restored = self
                .device
                .write_at(zeroed.at, &zeroed.was, Durability::Cached);
            if let Err(later) = restored {
                tracing::warn!("inode {}: bytes behind {size} are lost: {later}", inode.ino);
            }
        }
        cut
    }

    /// Gives a file a smaller size, and frees what is behind it.
    fn cut_behind(&self, writer: &Writer, inode: &Inode, size: u64) -> Result<()> {
        let behind = size.div_ceil(self.block_bytes())..self.map_end(inode);
        let credits = Credits::remove(self, inode).max(writer.ample_credits());
        let mut handle = writer.begin(credits + 2 * INODE_CREDITS + ORPHAN_CREDITS)?;
        let (now, lock) = (self.now(), inode.map.lock());
        let progress = self.change_map(
            writer,
            &mut handle,
            inode,
            &lock,
            |map| map.remove(behind.clone(), credits),
            &mut |disk, _| {
                disk.set_size(size);
                stamp(disk, now);
            },
        )?;
        inode.set_size(size);
        lock.set_hole(behind);
        drop(lock);
        if matches!(progress, Progress::Done) {
            handle.stop()?;
            return Ok(());
        }
        // There is more behind the end than one transaction can take away.
        let inode = self.leave_behind_end(writer, &mut handle, inode)?;
        handle.stop()?;
        self.free_behind_end(writer, &inode)
    }

    /// Makes a file shorter, and leaves what is behind its end there, for [`Mount::finish_truncate`] or the next mount. The
    /// file is alone but for reads in flight.
    pub(crate) fn shorten(&self, writer: &Writer, inode: &Inode, size: u64) -> Result<()> {
        let mut handle = writer.begin(INODE_CREDITS + ORPHAN_CREDITS)?;
        let (now, lock) = (self.now(), inode.map.lock());
        self.change_inode(&mut handle, inode, &lock, &mut |disk| {
            disk.set_size(size);
            stamp(disk, now);
        })?;
        inode.changed_in(handle.tid(), true);
        inode.set_size(size);
        drop(lock);
        self.leave_behind_end(writer, &mut handle, inode)?;
        handle.stop()?;
        Ok(())
    }

    /// A file has blocks behind its end, of which a crash must not lose sight.
    fn leave_behind_end(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        inode: &Inode,
    ) -> Result<Arc<Inode>> {
        inode.set_cut_short(true);
        let inode = self.inode(inode.ino)?;
        let added = writer.orphans.add(self, handle, &inode);
        added.map_err(|error| self.fail(error))?;
        Ok(inode)
    }

    /// Finishes a truncate that met an error, before the file grows over what it left.
    pub(crate) fn finish_truncate(&self, writer: &Writer, inode: &Inode) -> Result<()> {
        match inode.is_cut_short() {
            true => self.free_behind_end(writer, &self.inode(inode.ino)?),
            false => Ok(()),
        }
    }

    /// [`Mount::finish_truncate`] for all files that have a name. Nobody has one open. Where it fails, the file stays an orphan,
    /// for the next mount; so do all in a file system with errors.
    pub(crate) fn finish_truncates(&self, writer: &Writer) {
        if self.has_errors() {
            return;
        }
        for inode in writer.orphans.held() {
            if inode.node().disk.links_count() > 0
                && let Err(error) = self.finish_truncate(writer, &inode)
            {
                tracing::warn!("inode {}: its truncate is not finished: {error}", inode.ino);
            }
        }
    }

    /// Removes what a file has behind its end, and takes it from the orphans if it has a name.
    pub(crate) fn free_behind_end(&self, writer: &Writer, inode: &Arc<Inode>) -> Result<()> {
        let first = inode.i_size().div_ceil(self.block_bytes());
        inode.set_cut_short(true);
        self.remove_blocks(writer, inode, first..self.map_end(inode))?;
        inode.set_cut_short(false);
        let done = self.not_an_orphan(writer, inode);
        // Who removes it must know that it is one still.
        done.inspect_err(|_| inode.set_cut_short(true))
    }

    /// Removes and frees blocks, in as many transactions as it takes. The file is alone.
    pub(crate) fn remove_blocks(
        &self,
        writer: &Writer,
        inode: &Inode,
        mut blocks: Range<u64>,
    ) -> Result<()> {
        let steps = Steps {
            rest: &mut blocks,
            least: Credits::remove(self, inode),
            size: None,
        };
        self.in_steps(
            writer,
            inode,
            steps,
            &mut |map, rest, credits| map.remove(rest, credits),
            &mut |lock, done| {
                lock.set_hole(done);
                Ok(())
            },
        )
    }

    /// Changes the map of a range in steps of one transaction each; `publish` shows readers what was done.
    pub(crate) fn in_steps(
        &self,
        writer: &Writer,
        inode: &Inode,
        steps: Steps<'_>,
        step: &mut Step<'_>,
        publish: &mut Publish<'_>,
    ) -> Result<()> {
        let Steps { rest, least, size } = steps;
        while !rest.is_empty() {
            *rest = self.with_space(writer, || {
                let credits = least.max(writer.ample_credits());
                let mut handle = writer.begin(credits + INODE_CREDITS)?;
                let (now, lock) = (self.now(), inode.map.lock());
                let left = self.change_map(
                    writer,
                    &mut handle,
                    inode,
                    &lock,
                    |map| Ok(step(map, rest.clone(), credits)?.left(rest)),
                    &mut |disk, left: &Range<u64>| {
                        stamp(disk, now);
                        if let Some(size) = size.filter(|_| left.is_empty()) {
                            disk.set_size(size);
                        }
                    },
                )?;
                // Before what may fail: the inode says so already.
                if let Some(size) = size.filter(|_| left.is_empty()) {
                    inode.set_size(size);
                }
                publish(&lock, done_of(rest, &left))?;
                drop(lock);
                handle.stop()?;
                Ok(left)
            })?;
        }
        Ok(())
    }

    /// Shows readers what the tree says of a range.
    pub(crate) fn republish(
        &self,
        inode: &Inode,
        lock: &MapGuard<'_>,
        range: Range<u64>,
    ) -> Result<()> {
        let runs = self.tree_runs(inode, lock, range.clone());
        // The tree has changed: who goes on with the old map, or with none, is misled.
        let runs = runs.map_err(|error| self.fail(error))?;
        lock.set_hole(range);
        for run in runs {
            lock.set_run(&run);
        }
        Ok(())
    }

    /// Makes written or unwritten blocks of what is mapped in a range.
    pub(crate) fn convert(
        &self,
        writer: &Writer,
        inode: &Inode,
        mut blocks: Range<u64>,
        to: State,
    ) -> Result<()> {
        let steps = Steps {
            rest: &mut blocks,
            least: Credits::convert(self, inode),
            size: None,
        };
        self.in_steps(
            writer,
            inode,
            steps,
            &mut |map, rest, credits| map.convert(rest, to, credits),
            &mut |lock, done| self.republish(inode, lock, done),
        )
    }

    /// The largest size of a file, in bytes. Without `huge_file` an inode counts 2^32 sectors less one, and Linux reads no file
    /// that could need more.
    pub(crate) fn max_bytes_of(&self, inode: &Inode) -> u64 {
        let by_extents = self.will_be_extent_mapped(inode);
        let end = u64::from(self.sb.max_lblk(by_extents).0) + 1;
        let blocks = match self.sb.features().ro_compat.contains(RoCompat::HUGE_FILE) {
            true => end,
            false => {
                let most = u64::from(u32::MAX) >> (self.block_bits - 9);
                match by_extents {
                    true => end.min(most),
                    false => end.min(indirect::most_of(self.sb.block_size(), most)),
                }
            }
        };
        blocks << self.block_bits
    }

    /// Whether an extent tree maps a file once its content needs blocks.
    fn will_be_extent_mapped(&self, inode: &Inode) -> bool {
        inode.is_extent_mapped() || inode.has_inline_data() && self.has_extents()
    }
}
