//! Blocks of attributes, which inodes with equal attributes share.
//!
//! Invariants: a block with more than one owner is never changed but for the count of its owners; that
//! count changes under the lock of [`Sharing`]. A block that the cache leads to holds attributes: it
//! is forgotten there before it is changed or freed.
//!
//! Blocks with values in other inodes are not looked for: the values are shared by themselves.

use super::area::value_inode;
use super::change::Work;
use crate::alloc::{Goal, Request, Run};
use crate::mount::Mount;
use crate::txn::superblock::ByUse;
use crate::{Error, Place, Result};
use dioxide_format::types::Pblk;
use dioxide_format::xattr::{self, MAX_REFCOUNT, XattrBlock, XattrEntry, XattrHeader};
use dioxide_journal::{Edit, Kind};
use std::sync::Arc;

/// A block of extended attributes.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttributeBlock {
    seed: Option<u32>,
}

impl Kind for AttributeBlock {
    fn name(&self) -> &'static str {
        "xattr block"
    }

    fn verify(&self, block: Pblk, bytes: &[u8]) -> dioxide_format::Result<()> {
        if let Some(seed) = self.seed {
            xattr::verify_checksum(bytes, seed, block)?;
        }
        XattrBlock::parse(bytes).map(drop)
    }

    fn seal(&self, block: Pblk, bytes: &mut [u8]) {
        if let Some(seed) = self.seed {
            xattr::update_checksum(bytes, seed, block)
                .unwrap_or_else(|error| panic!("xattr block {block} was changed: {error}"));
        }
    }

    fn keep(&self) -> Option<Arc<dyn Kind>> {
        Some(Arc::new(*self))
    }
}

/// What became of an inode's block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) block: Option<Pblk>,
    /// Others still have the block that the inode had, and what it holds.
    pub(super) left_shared: bool,
}

impl Mount {
    pub(super) fn attribute_block(&self) -> AttributeBlock {
        AttributeBlock {
            seed: self.checksum_seed(),
        }
    }

    /// How many inodes have a block.
    pub(super) fn owners(&self, edit: &dyn Edit, block: Pblk) -> Result<u32> {
        let bytes = edit.read(block, &self.attribute_block())?;
        let parsed = XattrBlock::parse(&bytes);
        let parsed = parsed.map_err(|error| Error::format(error, Place::block(block.0)))?;
        Ok(parsed.header.h_refcount)
    }

    fn set_owners(&self, edit: &mut dyn Edit, block: Pblk, owners: u32) -> Result<()> {
        let mut change = |bytes: &mut [u8]| {
            let mut header = XattrHeader::parse(bytes).expect("it was parsed before");
            header.h_refcount = owners;
            bytes[..XattrHeader::SIZE].copy_from_slice(&header.encode());
            Ok(())
        };
        Ok(edit.modify(block, &self.attribute_block(), &mut change)?)
    }
}

impl Work<'_, '_> {
    /// Gives the inode a block with these attributes (none if there are none) in place of the one that
    /// it had. `bytes` is that block, as built.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: nothing was changed. Others: something may have been.
    pub(super) fn store_block(
        &mut self,
        had: Option<Pblk>,
        entries: &[XattrEntry<'_>],
        bytes: &[u8],
    ) -> Result<Stored> {
        if entries.is_empty() {
            return self.replace_block(had, None);
        }
        let built = XattrHeader::parse(bytes).expect("it was built");
        let sharable = entries.iter().all(|entry| value_inode(entry).is_none());
        let hash = Some(built.h_hash).filter(|_| sharable);
        if let Some((block, owners)) = self.equal_block(hash, entries, had) {
            self.mount.set_owners(self.handle, block, owners + 1)?;
            return self.replace_block(had, Some(block));
        }
        let stored = match had {
            Some(block) if self.mount.owners(self.handle, block)? == 1 => {
                self.change_block(block, bytes)?
            }
            _ => {
                let block = self.new_block()?;
                let kind = self.mount.attribute_block();
                self.handle.create(block, &kind, bytes)?;
                self.replace_block(had, Some(block))?
            }
        };
        if let (Some(block), Some(hash)) = (stored.block, hash) {
            self.sharing.note_block(hash, block);
        }
        Ok(stored)
    }

    fn replace_block(&mut self, had: Option<Pblk>, block: Option<Pblk>) -> Result<Stored> {
        let left_shared = self.leave_block(had)?;
        Ok(Stored { block, left_shared })
    }

    /// Changes a block that nobody else has.
    pub(super) fn change_block(&mut self, block: Pblk, bytes: &[u8]) -> Result<Stored> {
        self.sharing.forget_block(block);
        let kind = self.mount.attribute_block();
        self.handle.modify(block, &kind, &mut |old| {
            old.copy_from_slice(bytes);
            Ok(())
        })?;
        Ok(Stored {
            block: Some(block),
            left_shared: false,
        })
    }

    fn new_block(&mut self) -> Result<Pblk> {
        ByUse::ExtAttr.set(self.mount, self.handle)?;
        let request = Request {
            goal: Goal::Near(self.mount.goal_of(self.inode)?),
            len: 1..=1,
            stream: None,
            right: self.mount.right(),
            // Its number has 48 bits in every inode.
            below: None,
        };
        Ok(self.writer.blocks.allocate(self.handle, &request)?.start)
    }

    /// A block with the same attributes that can have one more owner, and how many it has.
    fn equal_block(
        &self,
        hash: Option<u32>,
        entries: &[XattrEntry<'_>],
        had: Option<Pblk>,
    ) -> Option<(Pblk, u32)> {
        let kind = self.mount.attribute_block();
        let candidates = self.sharing.blocks(hash?);
        candidates
            .filter(|&block| Some(block) != had)
            .find_map(|block| {
                // One that cannot be read is not equal.
                let bytes = self.handle.read(block, &kind).ok()?;
                let other = XattrBlock::parse(&bytes).ok()?;
                let owners = other.header.h_refcount;
                let fits = owners < MAX_REFCOUNT && same(&other.entries, entries);
                fits.then_some((block, owners))
            })
    }

    /// The inode does not have this block any more. Whether others still do; if not it is freed, which
    /// leaves the values' inodes that it names to the caller.
    pub(super) fn leave_block(&mut self, block: Option<Pblk>) -> Result<bool> {
        let Some(block) = block else { return Ok(false) };
        let owners = self.mount.owners(self.handle, block)?;
        if owners > 1 {
            self.mount.set_owners(self.handle, block, owners - 1)?;
            return Ok(true);
        }
        self.sharing.forget_block(block);
        self.handle.forget(block)?;
        let start = Pblk(block.0 - block.0 % u64::from(self.mount.sb.cluster_ratio()));
        let release = self.writer.release(self.handle);
        let run = Run { start, len: 1 };
        let kept = self.writer.blocks.free(self.handle, run, release)?;
        if kept.waits {
            self.writer.release_on_commit(self.mount, self.handle);
        }
        self.writer.blocks.let_go_recorded(kept);
        Ok(false)
    }
}

/// Whether two lists are the same attributes. The first is in order.
fn same(sorted: &[XattrEntry<'_>], entries: &[XattrEntry<'_>]) -> bool {
    let mut entries: Vec<_> = entries.iter().collect();
    entries.sort_by(|a, b| a.order().cmp(&b.order()));
    let equal = |(a, b): (&XattrEntry<'_>, &XattrEntry<'_>)| {
        a.order() == b.order() && a.bytes().is_some() && a.bytes() == b.bytes()
    };
    sorted.len() == entries.len() && sorted.iter().zip(entries).all(equal)
}
