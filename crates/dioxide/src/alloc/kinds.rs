//! The three kinds of metadata block that allocation changes.
//!
//! A bitmap's checksum lies in its group's descriptor, and a descriptor's covers that descriptor
//! only. So neither belongs to the block as a whole, and `seal` has nothing to do: whoever changes
//! a bitmap stores its checksum in the descriptor, and whoever changes a descriptor makes its own
//! right (`Groups::change_desc`).
//!
//! Descriptors are checked one by one where they are read. Rejected: checking the whole block when
//! it comes from the device. One damaged descriptor would take all groups of its block with it.

use dioxide_format::bitmap;
use dioxide_format::group_desc::GroupDesc;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::Pblk;
use dioxide_journal::Kind;

/// A block of the descriptor table.
#[derive(Debug)]
pub(super) struct DescBlock;

impl Kind for DescBlock {
    fn name(&self) -> &'static str {
        "group descriptor"
    }

    fn verify(&self, _: Pblk, _: &[u8]) -> dioxide_format::Result<()> {
        Ok(())
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}
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
