//! The superblock on the disk.
//!
//! For: the few fields that change while mounted. Not for: what the engine computes with, which is
//! as it was when the file system was opened ([`Mount::sb`]).
//!
//! Free counts are right on the disk after a clean end only; in between, the descriptors have them
//! (as in ext4).

use crate::Result;
use crate::mount::Mount;
use crate::mount::span::{read_span, write_span};
use dioxide_format::features::{Compat, RoCompat};
use dioxide_format::superblock::{SUPERBLOCK_OFFSET, SuperBlock, SuperBlockDisk};
use dioxide_format::types::Pblk;
use dioxide_journal::{Edit, Kind};
use std::sync::Arc;

/// The block that holds the superblock, and the byte in it.
pub(crate) fn place(mount: &Mount) -> (Pblk, usize) {
    let at = SUPERBLOCK_OFFSET;
    (
        Pblk(at >> mount.block_bits),
        (at & mount.block_mask) as usize,
    )
}

/// The block that holds the superblock.
#[derive(Clone, Copy, Debug)]
struct SuperBlockBlock {
    offset: usize,
}

impl SuperBlockBlock {
    fn parse(&self, bytes: &[u8]) -> dioxide_format::Result<SuperBlock> {
        SuperBlock::parse(&bytes[self.offset..])
    }
}

impl Kind for SuperBlockBlock {
    fn name(&self) -> &'static str {
        "superblock"
    }

    fn verify(&self, _: Pblk, bytes: &[u8]) -> dioxide_format::Result<()> {
        self.parse(bytes)?.verify_checksum()
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}

    fn keep(&self) -> Option<Arc<dyn Kind>> {
        Some(Arc::new(*self))
    }
}

/// Changes the superblock in a transaction: one credit.
pub(crate) fn change(
    mount: &Mount,
    edit: &mut dyn Edit,
    change: &mut dyn FnMut(&mut SuperBlock),
) -> Result<()> {
    let (block, offset) = place(mount);
    let kind = SuperBlockBlock { offset };
    edit.modify(block, &kind, &mut |bytes| {
        let wrong = |source| dioxide_journal::Error::Block {
            block: block.0,
            source,
        };
        let mut sb = kind.parse(bytes).map_err(wrong)?;
        change(&mut sb);
        sb.update_checksum();
        bytes[offset..][..SuperBlock::SIZE].copy_from_slice(&sb.encode());
        Ok(())
    })?;
    Ok(())
}

/// A feature that a file system gets by use, as in Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByUse {
    /// `large_file`, by the first file of 2 GiB.
    LargeFile,
    /// `ext_attr`, by the first block of attributes.
    ExtAttr,
}

impl ByUse {
    const ALL: [ByUse; 2] = [ByUse::LargeFile, ByUse::ExtAttr];

    fn is_in(self, sb: &SuperBlock) -> bool {
        let features = sb.features();
        match self {
            ByUse::LargeFile => features.ro_compat.contains(RoCompat::LARGE_FILE),
            ByUse::ExtAttr => features.compat.contains(Compat::EXT_ATTR),
        }
    }

    /// Credits that each handle has for them.
    pub(crate) fn credits(sb: &SuperBlock) -> u32 {
        u32::from(!ByUse::ALL.iter().all(|feature| feature.is_in(sb)))
    }

    /// Sets the feature unless the file system had it when it was opened: one credit, of those that each handle
    /// has for it.
    ///
    /// # Errors
    /// Damage; those of the journal.
    pub(crate) fn set(self, mount: &Mount, edit: &mut dyn Edit) -> Result<()> {
        if self.is_in(&mount.sb) {
            return Ok(());
        }
        change(mount, edit, &mut |sb| {
            sb.make_dynamic();
            let disk = sb.disk_mut();
            match self {
                ByUse::LargeFile => disk.s_feature_ro_compat |= RoCompat::LARGE_FILE.bits(),
                ByUse::ExtAttr => disk.s_feature_compat |= Compat::EXT_ATTR.bits(),
            }
        })
    }
}

/// Changes the superblock on the device and flushes. No transaction may be open, and the log must
/// hold no copy of it, unless the journal was aborted.
pub(crate) fn rewrite(mount: &Mount, change: &mut dyn FnMut(&mut SuperBlock)) -> Result<()> {
    let device = &*mount.device;
    let bytes = read_span(device, SUPERBLOCK_OFFSET, SuperBlock::SIZE, "superblock")?;
    let place = crate::Place::default().at(SUPERBLOCK_OFFSET);
    let mut sb = SuperBlock::parse(&bytes).map_err(|error| crate::Error::format(error, place))?;
    change(&mut sb);
    set_write_time(mount, sb.disk_mut());
    sb.update_checksum();
    let written =
        write_span(device, SUPERBLOCK_OFFSET, &sb.encode()).and_then(|()| Ok(device.flush()?));
    // What is cached of the block is older.
    mount.cache.drop_unpinned();
    // A flush that failed may have lost what others wrote.
    written.map_err(|error| mount.fail(error))
}

fn now_secs(mount: &Mount) -> i64 {
    mount.now_ns().div_euclid(1_000_000_000)
}

/// Low 32 bits and the 8 above.
pub(super) fn split(secs: i64) -> (u32, u8) {
    (secs as u32, (secs >> 32) as u8)
}

/// Stamps the time of the mount.
pub(crate) fn set_mount_time(mount: &Mount, disk: &mut SuperBlockDisk) {
    (disk.s_mtime, disk.s_mtime_hi) = split(now_secs(mount));
}

fn set_write_time(mount: &Mount, disk: &mut SuperBlockDisk) {
    (disk.s_wtime, disk.s_wtime_hi) = split(now_secs(mount));
}
