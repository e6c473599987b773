//! The orphan file: blocks of inode numbers that are to be truncated or deleted after a crash.
//!
//! Each block is an array of numbers, 0 for none, with a magic number and a checksum at its end.

use crate::Result;
use crate::checksum::crc32c;
use crate::error::{corrupt, ensure_checksum, prefix};
use crate::indirect::pointers;
use crate::layout::{layout, le32};
use crate::types::{Ino, Pblk};

const STRUCTURE: &str = "orphan file block";
/// `ob_magic`.
pub const MAGIC: u32 = 0x0B10_CA04;

layout! {
    /// The end of a block as it lies on disk.
    pub struct OrphanTail[8] = "orphan file block" {
        0x00 ob_magic: le32,
        0x04 ob_checksum: le32,
    }
}

/// Inode numbers per block.
pub const fn entries_per_block(block_size: u32) -> u32 {
    (block_size - OrphanTail::SIZE as u32) / 4
}

fn split(block: &[u8]) -> Result<(&[u8], OrphanTail)> {
    prefix(block, OrphanTail::SIZE, STRUCTURE)?;
    let (entries, tail) = block.split_at(block.len() - OrphanTail::SIZE);
    Ok((entries, OrphanTail::parse(tail)?))
}

/// The inodes of a whole block, with their positions. `max_ino` is the largest inode number.
///
/// # Errors
/// `TooShort`; `Corrupt` for a wrong magic number or an inode that does not exist.
pub fn orphans(block: &[u8], max_ino: u32) -> Result<Vec<(usize, Ino)>> {
    let (entries, tail) = split(block)?;
    if tail.ob_magic != MAGIC {
        let found = format_args!("{:#x}", tail.ob_magic);
        return Err(corrupt(
            STRUCTURE,
            "ob_magic",
            found,
            format_args!("{MAGIC:#x}"),
        ));
    }
    let used = pointers(entries).enumerate().filter(|(_, ino)| *ino != 0);
    used.map(|(at, ino)| {
        if ino <= max_ino {
            Ok((at, Ino(ino)))
        } else {
            Err(corrupt(
                STRUCTURE,
                "inode",
                ino,
                format_args!("at most {max_ino}"),
            ))
        }
    })
    .collect()
}

/// The checksum covers the block's own number and the entries.
fn computed_checksum(entries: &[u8], inode_seed: u32, place: Pblk) -> u32 {
    crc32c(crc32c(inode_seed, &place.0.to_le_bytes()), entries)
}

/// Checks the checksum of a block that lies at `place`, for a file system with `metadata_csum`.
/// `inode_seed` is `Inode::seed` of the orphan file.
///
/// # Errors
/// `TooShort`, `Checksum`.
pub fn verify_checksum(block: &[u8], inode_seed: u32, place: Pblk) -> Result<()> {
    let (entries, tail) = split(block)?;
    let computed = computed_checksum(entries, inode_seed, place);
    ensure_checksum(STRUCTURE, tail.ob_checksum, computed)
}

/// Writes magic number and checksum at the end of a block that lies at `place`.
///
/// # Errors
/// `TooShort`.
pub fn update_checksum(block: &mut [u8], inode_seed: u32, place: Pblk) -> Result<()> {
    let (entries, _) = split(block)?;
    let tail = OrphanTail {
        ob_magic: MAGIC,
        ob_checksum: computed_checksum(entries, inode_seed, place),
    };
    let at = block.len() - OrphanTail::SIZE;
    block[at..].copy_from_slice(&tail.encode());
    Ok(())
}
