//! Regular files whose content lies in the inode: writing it there, cutting it, and moving it out.
//!
//! The first 60 bytes lie in `i_block`, the others are the attribute `system.data` in the inode, which is
//! there even if it is empty, as Linux wants. Reading is [`Mount::inline_data`]. A file may be longer than
//! what lies there, as `truncate` of older Linux leaves it, and has zeros behind.
//!
//! All of it runs with the file alone, and whether the content lies in the inode is asked under that
//! lock; so who finds that it does acts on it before anybody else can. A content that has left its inode
//! never comes back.
//!
//! Moving out is one transaction: the block is claimed and written first, and the inode then stops being
//! inline and maps it. A write that does not fit is two: it moves the content out, and then is a write to
//! a file as any other.
//!
//! Rejected: moving out together with the write that needs it. The write would need its own way through
//! placement, to save one change of an inode in the life of a file.

use crate::alloc::{BlockAllocator, Claim, Goal, Request, Right};
use crate::inode::Inode;
use crate::io::direct::write::WriteRequest;
use crate::io::direct::{Access, Wait};
use crate::io::resize::stamp;
use crate::map::tree::{Tree, credits_for_insert};
use crate::map::{Run, indirect};
use crate::mount::Mount;
use crate::namei::xattr::put_area;
use crate::txn::Writer;
use crate::txn::inode::INODE_CREDITS;
use crate::{Error, Result};
use dioxide_block::{Buf, Durability};
use dioxide_format::extent::Extent;
use dioxide_format::inode::{Inode as DiskInode, InodeFlags};
use dioxide_format::types::{Lblk, Pblk};
use std::io::IoSlice;

/// Bytes of content in `i_block`.
const HEAD_BYTES: usize = 60;

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inlined {
    /// The content does not lie in the inode: nothing was done.
    No,
    /// The content left the inode; the write is still to be made.
    MovedOut,
    /// It is written.
    Done,
}

impl Inode {
    /// Whether its content, or a symlink's target, can be read: not when it is encrypted.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub(crate) fn check_readable(&self) -> Result<()> {
        match self.flags().contains(InodeFlags::ENCRYPT) {
            false => Ok(()),
            true => Err(Error::Unsupported(format!(
                "inode {} is encrypted (encrypt); Linux reads it, with the key",
                self.ino
            ))),
        }
    }

    /// Whether its bytes are what it holds, in blocks or in the inode: not encrypted, under verity or
    /// journalled.
    pub(crate) fn holds_plain_bytes(&self) -> bool {
        const SPECIAL: u32 =
            InodeFlags::ENCRYPT.0 | InodeFlags::VERITY.0 | InodeFlags::JOURNAL_DATA.0;
        self.flags().0 & SPECIAL == 0
    }
}

/// Writes to a file whose content lies in its inode, or makes it one whose content does not. Any
/// alignment will do. Blocks.
///
/// # Errors
/// As [`crate::File::write_at`].
pub(crate) fn write(request: &WriteRequest<'_>, bufs: &[IoSlice<'_>]) -> Result<Inlined> {
    let (mount, inode) = (request.mount, request.inode);
    if !inode.has_inline_data() {
        return Ok(Inlined::No);
    }
    mount.check_writable()?;
    if request.wait == Wait::NoWait {
        return Err(request.no_direct_path("the content lies in the inode"));
    }
    let writer = mount.writer()?;
    let _alone = mount.alone(inode)?;
    if !inode.has_inline_data() {
        return Ok(Inlined::No);
    }
    request.check_bytes()?;
    let pos = request.place()?;
    mount.strip_if_needed(writer, inode, request.access)?;
    write_alone(request, bufs, writer, pos)
}

fn write_alone(
    request: &WriteRequest<'_>,
    bufs: &[IoSlice<'_>],
    writer: &Writer,
    pos: u64,
) -> Result<Inlined> {
    let (mount, inode) = (request.mount, request.inode);
    let size = inode.i_size().max(pos + request.len as u64);
    if !mount.fits_inline(inode, size)? {
        mount.move_out(writer, inode, request.access.right())?;
        return Ok(Inlined::MovedOut);
    }
    let mut content = mount.inline_data(inode)?;
    content.resize(size as usize, 0);
    let mut at = pos as usize;
    for buf in bufs {
        content[at..at + buf.len()].copy_from_slice(buf);
        at += buf.len();
    }
    mount.store_inline(writer, inode, &content, !request.access.keep_times)?;
    Ok(Inlined::Done)
}

impl Mount {
    /// Whether a content of `len` bytes has room in the inode.
    fn fits_inline(&self, inode: &Inode, len: u64) -> Result<bool> {
        if len > self.sb.inode_size() as u64 {
            return Ok(false);
        }
        let behind = vec![0; (len as usize).saturating_sub(HEAD_BYTES)];
        Ok(self.area_with_content(inode, Some(&behind))?.is_some())
    }

    /// Gives a file a content that fits, and the time that it is if `stamped`, in one transaction. The file is alone.
    fn store_inline(
        &self,
        writer: &Writer,
        inode: &Inode,
        content: &[u8],
        stamped: bool,
    ) -> Result<()> {
        let (head, behind) = content.split_at(content.len().min(HEAD_BYTES));
        let area = self
            .area_with_content(inode, Some(behind))?
            .ok_or_else(|| inode.corrupt("inline data", "its attributes overlap".into()))?;
        let mut i_block = [0; HEAD_BYTES];
        i_block[..head.len()].copy_from_slice(head);
        let mut handle = writer.begin(INODE_CREDITS)?;
        let lock = inode.map.lock();
        self.change_inode(&mut handle, inode, &lock, &mut |disk| {
            disk.set_i_block(&i_block);
            put_area(disk, &area);
            disk.set_size(content.len() as u64);
            if stamped {
                stamp(disk, self.now());
            }
        })?;
        inode.changed_in(handle.tid(), true);
        drop(lock);
        handle.stop()?;
        inode.set_size(content.len() as u64);
        Ok(())
    }

    /// Sets the size of a file whose content lies in its inode; or moves it out if it would not fit,
    /// and leaves the size to the caller. Whether the size is set. The file is alone.
    ///
    /// # Errors
    /// As [`Mount::move_out`].
    pub(crate) fn resize_inline(
        &self,
        writer: &Writer,
        inode: &Inode,
        size: u64,
        access: Access,
    ) -> Result<bool> {
        if !self.fits_inline(inode, size)? {
            self.move_out(writer, inode, access.right())?;
            return Ok(false);
        }
        let mut content = self.inline_data(inode)?;
        content.resize(size as usize, 0);
        self.store_inline(writer, inode, &content, true)?;
        Ok(true)
    }

    /// Moves the content of a file from its inode to a block, or to no block if there is none. What it has
    /// no room for becomes a hole. The file is alone, and no handle open. Blocks.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; damage; those of the device and of the journal.
    pub(crate) fn move_out(&self, writer: &Writer, inode: &Inode, right: Right) -> Result<()> {
        let content = self.inline_data(inode)?;
        let area = self
            .area_with_content(inode, None)?
            .ok_or_else(|| inode.corrupt("inline data", "its attributes overlap".into()))?;
        let mut claim = match content.is_empty() {
            true => None,
            false => Some(self.claim_written(writer, inode, right, &content)?),
        };
        let map = credits_for_insert(1).max(indirect::CREDITS_FOR_SET);
        let mut handle = writer.begin(INODE_CREDITS + map + BlockAllocator::ALLOCATE_CREDITS)?;
        let lock = inode.map.lock();
        self.change_inode(&mut handle, inode, &lock, &mut |disk| {
            put_area(disk, &area);
            self.make_block_mapped(disk);
        })?;
        if let Some(claim) = &mut claim {
            let run = Run {
                lblk: Lblk(0),
                len: 1,
                pblk: claim.run().start,
                unwritten: false,
            };
            let insert = |map: &mut crate::txn::file::MapChange<'_, '_>| {
                map.insert_claimed(extent_of(&run), Some(claim))
            };
            self.change_map(writer, &mut handle, inode, &lock, insert, &mut |_, _| {})
                // The content is in the inode no more.
                .map_err(|error| self.fail(error))?;
            lock.set_run(&run);
        }
        inode.changed_in(handle.tid(), true);
        drop(lock);
        // What the short paths may do has changed.
        inode.set_size(inode.i_size());
        handle.stop()?;
        Ok(())
    }

    /// A block that was claimed for a content, and holds it already.
    fn claim_written(
        &self,
        writer: &Writer,
        inode: &Inode,
        right: Right,
        content: &[u8],
    ) -> Result<Claim> {
        let request = Request {
            goal: Goal::Near(self.goal_of(inode)?),
            len: 1..=1,
            stream: Some(inode.stream()),
            right,
            below: self.groups_below(self.has_extents()),
        };
        let claim = self.claim_some(writer, &request)?;
        let Pblk(block) = claim.run().start;
        inode.set_goal(Pblk(block + 1), &writer.blocks);
        // A content that lies in an inode is shorter than a block.
        let mut buf = Buf::zeroed(self.block_bytes() as usize);
        buf[..content.len()].copy_from_slice(content);
        let offset = block << self.block_bits;
        self.device.write_at(offset, &buf, Durability::Cached)?;
        Ok(claim)
    }

    /// Makes an inode one that maps blocks, and has none.
    fn make_block_mapped(&self, disk: &mut DiskInode) {
        let flags = &mut disk.disk_mut().i_flags;
        *flags &= !InodeFlags::INLINE_DATA.0;
        if self.has_extents() {
            *flags |= InodeFlags::EXTENTS.0;
            disk.set_i_block(&Tree::empty_root());
        } else {
            disk.set_i_block(&[0; HEAD_BYTES]);
        }
    }
}

fn extent_of(run: &Run) -> Extent {
    Extent {
        lblk: run.lblk,
        len: 1,
        unwritten: false,
        pblk: run.pblk,
    }
}
