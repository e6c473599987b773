//! Moving what is in the way of a smaller file system: inodes to lower numbers, blocks below the new end.
//!
//! | Module | Holds |
//! |---|---|
//! | `inodes` | other numbers for inodes, wherever a number stands |
//! | `blocks` | other places for the blocks of files |
//! | `map` | maps as a whole, read and made |
//! | `space` | the blocks that are free for it |
//!
//! It works on a mount of its own: the journal, the allocators' records and quota are the engine's. Content, and
//! blocks of maps, are copied to blocks that are free and durable there before a transaction makes an inode lead to them;
//! what they were copied from is not written to before the file system is cut off. So each inode is at
//! each moment whole, with its blocks here or there.
//!
//! Without a journal, where a change is larger than a transaction can be, and while the journal itself moves, the file
//! system is not clean meanwhile: the same order holds, and `e2fsck` finds every file whole, in one place or in two.
//!
//! Invariants: the file system was checked before, and has no error. Nobody else uses the mount. Inode objects of what
//! moves are never made: they would be stale.
//!
//! Rejected: block by block through the engine's maps. It needs a way to change trees in place that has no
//! other use, and without a journal a tree that is changed in place is nowhere whole.

mod blocks;
mod inodes;
pub(super) mod map;
mod space;

use super::{OnProgress, Step, groups};
use crate::mount::Mount;
use crate::txn::inode::TableBlock;
use crate::{Error, MountOptions, Place, Result};
use dioxide_block::Device;
use dioxide_format::bitmap;
use dioxide_format::group_desc::GroupDesc;
use dioxide_format::inode::Inode;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::{Ino, Pblk};
use dioxide_journal::{Edit, Kind};
use std::sync::Arc;

/// What may be moved, and what is to be told of it.
pub(super) struct Task<'t, 'p> {
    /// As it is to be.
    pub new: &'t SuperBlock,
    pub progress: &'t mut OnProgress<'p>,
    /// Inodes and clusters that are in the way.
    pub inodes: u64,
    pub clusters: u64,
}

/// Empties what lies behind the end of `new`.
///
/// # Errors
/// [`Error::Unsupported`] for what cannot be moved, with nothing changed. Damage; [`Error::NoSpace`]; the device's:
/// files are whole, and the file system is as large as it was.
pub(super) fn relocate(device: &Arc<dyn Device>, task: &mut Task<'_, '_>) -> Result<()> {
    if task.inodes > 0 {
        on_mount(device, false, |mount| inodes::renumber(mount, task))?;
    }
    if task.clusters > 0 {
        on_mount(device, false, |mount| blocks::move_files(mount, task))?;
        on_mount(device, true, |mount| blocks::move_journal(mount, task))?;
    }
    Ok(())
}

fn on_mount(
    device: &Arc<dyn Device>,
    noload: bool,
    work: impl FnOnce(&Mount) -> Result<()>,
) -> Result<()> {
    let sb = super::read_superblock(&**device)?;
    let options = MountOptions {
        moves_journal: true,
        // By the resize.
        is_protected: true,
        // The journal of another device is not asked for: it is as if there were none.
        noload: noload || sb.journal_dev() != 0,
        ..MountOptions::new()
    };
    let mount = Mount::open(device.clone(), &options)?;
    let done = work(&mount);
    let closed = match Arc::into_inner(mount) {
        Some(mount) => mount.close(),
        None => Err(Error::Busy("the mount that it is resized by")),
    };
    done.and(closed)
}

/// A block whose reader knows what it is, and who changes it makes its checksum right.
#[derive(Debug)]
struct Raw;

impl Kind for Raw {
    fn name(&self) -> &'static str {
        "metadata"
    }

    fn verify(&self, _: Pblk, _: &[u8]) -> dioxide_format::Result<()> {
        Ok(())
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}
}

/// Makes one transaction. From its first change on an error stops the journal.
fn transaction(
    mount: &Mount,
    credits: u32,
    work: impl FnOnce(&mut dyn Edit) -> Result<()>,
) -> Result<()> {
    let mut handle = mount.writer()?.begin(credits)?;
    work(&mut handle).map_err(|error| mount.fail(error))?;
    handle.stop()?;
    Ok(())
}

/// Changes a block; what `change` says of damage is an error.
fn change(
    edit: &mut dyn Edit,
    block: u64,
    change: &mut dyn FnMut(&mut [u8]) -> dioxide_format::Result<()>,
) -> Result<()> {
    edit.modify(Pblk(block), &Raw, &mut |bytes| {
        change(bytes).map_err(|source| dioxide_journal::Error::Block { block, source })
    })?;
    Ok(())
}

/// An inode as it is now.
fn load(mount: &Mount, ino: Ino) -> Result<Inode> {
    let location = mount.locate_inode(ino)?;
    let table = mount.read_meta(location.block)?;
    let raw = table.get(location.offset..).unwrap_or(&[]);
    Inode::parse(raw, mount.sb.inode_size()).map_err(|error| Error::format(error, Place::ino(ino)))
}

/// Writes an inode: one credit.
fn store(mount: &Mount, edit: &mut dyn Edit, ino: Ino, mut inode: Inode) -> Result<()> {
    if let Some(seed) = mount.checksum_seed() {
        inode.update_checksum(seed, ino);
    }
    put(mount, edit, ino, &inode.encode())
}

/// Writes the bytes of an inode: one credit.
fn put(mount: &Mount, edit: &mut dyn Edit, ino: Ino, raw: &[u8]) -> Result<()> {
    let at = mount.locate_inode(ino)?;
    edit.modify(at.block, &TableBlock, &mut |bytes| {
        bytes[at.offset..at.offset + raw.len()].copy_from_slice(raw);
        Ok(())
    })?;
    Ok(())
}

/// Calls `each` with every inode in use of a group.
pub(super) fn inodes_of_group(
    device: &dyn Device,
    sb: &SuperBlock,
    group: u32,
    desc: &GroupDesc,
    read: &map::ReadBlock<'_>,
    each: &mut dyn FnMut(Ino, Inode) -> Result<()>,
) -> Result<()> {
    let bits = groups::inode_bitmap(device, sb, desc)?;
    let (size, block_bytes) = (sb.inode_size() as u64, u64::from(sb.block_size()));
    let (mut at, end) = (0, sb.inodes_per_group() as usize);
    let mut table: Option<(u64, Arc<[u8]>)> = None;
    while let Some(index) = bitmap::next_set(&bits, at, end) {
        let byte = index as u64 * size;
        let block = desc.inode_table().0 + byte / block_bytes;
        if table.as_ref().is_none_or(|(known, _)| *known != block) {
            table = Some((block, read(block)?));
        }
        let bytes = &table.as_ref().expect("it was just read").1;
        let ino = Ino(group * sb.inodes_per_group() + index as u32 + 1);
        let raw = bytes.get((byte % block_bytes) as usize..).unwrap_or(&[]);
        let inode = Inode::parse(raw, sb.inode_size());
        each(
            ino,
            inode.map_err(|error| Error::format(error, Place::ino(ino)))?,
        )?;
        at = index + 1;
    }
    Ok(())
}

/// Calls `each` with every inode in use, as the mount has them.
fn all_inodes(mount: &Mount, each: &mut dyn FnMut(Ino, Inode) -> Result<()>) -> Result<()> {
    let read = |block| mount.read_meta(Pblk(block));
    for group in 0..mount.sb.group_count() {
        let desc = mount.group_desc(dioxide_format::types::Group(group))?;
        inodes_of_group(&*mount.device, &mount.sb, group, &desc, &read, each)?;
    }
    Ok(())
}

impl Task<'_, '_> {
    fn tell(&mut self, step: Step, done: u64, total: u64) {
        (self.progress)(step, done.min(total), total);
    }
}
