//! The three kinds of metadata block that allocation changes.
//!
//! A bitmap's checksum lies in its group's descriptor, and a descriptor's covers that descriptor
//! only. So neither belongs to the block as a whole, and `seal` has nothing to do: whoever changes
//! a bitmap stores its checksum in the descriptor, and whoever puts a descriptor into its block makes its own
//! right (`groups::Table::complete`).
//!
//! Descriptors are checked one by one where they are read. Rejected: checking the whole block when
//! it comes from the device. One damaged descriptor would take all groups of its block with it.

use super::groups::Table;
use dioxide_format::bitmap;
use dioxide_format::group_desc::GroupDesc;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::Pblk;
use dioxide_journal::Kind;
use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// A block of the descriptor table, for who reads it.
#[derive(Debug)]
pub(super) struct DescRead;

impl Kind for DescRead {
    fn name(&self) -> &'static str {
        "group descriptor"
    }

    fn verify(&self, _: Pblk, _: &[u8]) -> dioxide_format::Result<()> {
        Ok(())
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}
}

/// One whose descriptors change in memory, and how it gets them.
#[derive(Debug)]
pub(super) struct DescBlock<T> {
    pub(super) table: T,
    /// Of the table's blocks.
    pub(super) index: u32,
}

impl<T: Borrow<Arc<Table>> + fmt::Debug + Send + Sync> Kind for DescBlock<T> {
    fn name(&self) -> &'static str {
        DescRead.name()
    }

    fn verify(&self, block: Pblk, bytes: &[u8]) -> dioxide_format::Result<()> {
        DescRead.verify(block, bytes)
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}

    fn keep(&self) -> Option<Arc<dyn Kind>> {
        Some(Arc::new(DescBlock {
            table: self.table.borrow().clone(),
            index: self.index,
        }))
    }

    fn complete(&self, _: Pblk, bytes: &mut [u8]) {
        self.table.borrow().complete(self.index, bytes);
    }
}

/// The block bitmap of the group that `desc` describes.
#[derive(Debug)]
pub(super) struct BlockBitmap<'a> {
    pub(super) sb: &'a SuperBlock,
    pub(super) desc: &'a GroupDesc,
}

impl Kind for BlockBitmap<'_> {
    fn name(&self) -> &'static str {
        "block bitmap"
    }

    fn verify(&self, _: Pblk, bytes: &[u8]) -> dioxide_format::Result<()> {
        if self.sb.features().metadata_csum() {
            bitmap::verify_block_bitmap(bytes, self.sb, self.desc)?;
        }
        Ok(())
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}
}

/// The inode bitmap of the group that `desc` describes.
#[derive(Debug)]
pub(super) struct InodeBitmap<'a> {
    pub(super) sb: &'a SuperBlock,
    pub(super) desc: &'a GroupDesc,
}

impl Kind for InodeBitmap<'_> {
    fn name(&self) -> &'static str {
        "inode bitmap"
    }

    fn verify(&self, _: Pblk, bytes: &[u8]) -> dioxide_format::Result<()> {
        if self.sb.features().metadata_csum() {
            bitmap::verify_inode_bitmap(bytes, self.sb, self.desc)?;
        }
        Ok(())
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}
}
