//! Block and inode bitmaps: bit `i` is in byte `i / 8`, lowest bit first; set means used.
//!
//! For: reading, searching, changing, checksums. Not for: choosing what to allocate.
//!
//! Bits past the end of the slice read as used, so that nothing can be allocated there.

use crate::Result;
use crate::checksum::crc32c;
use crate::error::{ensure_checksum, prefix};
use crate::group_desc::GroupDesc;
use crate::superblock::SuperBlock;
use std::ops::Range;

/// Whether bit `index` is set.
pub fn get(bitmap: &[u8], index: usize) -> bool {
    bitmap
        .get(index / 8)
        .is_none_or(|byte| byte >> (index % 8) & 1 != 0)
}

/// Sets or clears bit `index`; past the end of the slice nothing happens.
pub fn put(bitmap: &mut [u8], index: usize, used: bool) {
    if let Some(byte) = bitmap.get_mut(index / 8) {
        let bit = 1 << (index % 8);
        *byte = if used { *byte | bit } else { *byte & !bit };
    }
}

/// Sets or clears the bits of `range`; past the end of the slice nothing happens.
pub fn put_range(bitmap: &mut [u8], range: Range<usize>, used: bool) {
    let end = range.end.min(bitmap.len().saturating_mul(8));
    let mut at = range.start;
    while at < end {
        if at.is_multiple_of(8) && end - at >= 8 {
            let bytes = (end - at) / 8;
            bitmap[at / 8..at / 8 + bytes].fill(if used { 0xFF } else { 0 });
            at += bytes * 8;
        } else {
            put(bitmap, at, used);
            at += 1;
        }
    }
}

/// The first run of clear bits in `from..end`.
pub fn next_free_run(bitmap: &[u8], from: usize, end: usize) -> Option<Range<usize>> {
    let end = end.min(bitmap.len().saturating_mul(8));
    let start = next_zero(bitmap, from, end)?;
    Some(start..next_set(bitmap, start, end).unwrap_or(end))
}

/// The 64 bits from bit `word * 64` on; bits past the end are set.
fn word_at(bitmap: &[u8], word: usize) -> u64 {
    let bytes = bitmap.get(word * 8..).unwrap_or(&[]);
    match bytes.first_chunk() {
        Some(raw) => u64::from_le_bytes(*raw),
        None => {
            let mut raw = [0xFF; 8];
            raw[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(raw)
        }
    }
}

/// Number of clear bits among the first `bits`.
pub fn count_free(bitmap: &[u8], bits: usize) -> usize {
    let bits = bits.min(bitmap.len().saturating_mul(8));
    let whole: u32 = (0..bits / 64)
        .map(|w| word_at(bitmap, w).count_zeros())
        .sum();
    let mask = (1u64 << (bits % 64)) - 1;
    let rest = (!word_at(bitmap, bits / 64) & mask).count_ones();
    (whole + rest) as usize
}

/// Index of the first bit in `from..end` whose word, after `flip`, has it set.
fn find(bitmap: &[u8], from: usize, end: usize, flip: u64) -> Option<usize> {
    let mut at = from;
    while at < end {
        let candidates = (word_at(bitmap, at / 64) ^ flip) & (u64::MAX << (at % 64));
        let word_start = at - at % 64;
        if candidates != 0 {
            let found = word_start + candidates.trailing_zeros() as usize;
            return (found < end).then_some(found);
        }
        at = word_start + 64;
    }
    None
}

/// The first clear bit in `from..end`.
pub fn next_zero(bitmap: &[u8], from: usize, end: usize) -> Option<usize> {
    find(
        bitmap,
        from,
        end.min(bitmap.len().saturating_mul(8)),
        u64::MAX,
    )
}

/// The first set bit in `from..end`.
pub fn next_set(bitmap: &[u8], from: usize, end: usize) -> Option<usize> {
    find(bitmap, from, end.min(bitmap.len().saturating_mul(8)), 0)
}

/// The checksum of a bitmap's first `bits` bits. `fs_seed` is `SuperBlock::checksum_seed`.
fn checksum(bitmap: &[u8], bits: u32, fs_seed: u32, structure: &'static str) -> Result<u32> {
    Ok(crc32c(
        fs_seed,
        prefix(bitmap, bits as usize / 8, structure)?,
    ))
}

/// Checks a block bitmap against its group's descriptor, for a file system with `metadata_csum`.
///
/// # Errors
/// `TooShort`, `Checksum`.
pub fn verify_block_bitmap(bitmap: &[u8], sb: &SuperBlock, desc: &GroupDesc) -> Result<()> {
    let structure = "block bitmap";
    let csum = checksum(
        bitmap,
        sb.clusters_per_group(),
        sb.checksum_seed(),
        structure,
    )?;
    ensure_checksum(
        structure,
        desc.block_bitmap_csum(),
        csum & desc.bitmap_csum_mask(),
    )
}

/// Checks an inode bitmap against its group's descriptor, for a file system with `metadata_csum`.
///
/// # Errors
/// `TooShort`, `Checksum`.
pub fn verify_inode_bitmap(bitmap: &[u8], sb: &SuperBlock, desc: &GroupDesc) -> Result<()> {
    let structure = "inode bitmap";
    let csum = checksum(bitmap, sb.inodes_per_group(), sb.checksum_seed(), structure)?;
    ensure_checksum(
        structure,
        desc.inode_bitmap_csum(),
        csum & desc.bitmap_csum_mask(),
    )
}

/// Stores the checksum of a block bitmap in its group's descriptor, whose own checksum is then to
/// be updated.
///
/// # Errors
/// `TooShort`.
pub fn update_block_bitmap(bitmap: &[u8], sb: &SuperBlock, desc: &mut GroupDesc) -> Result<()> {
    let bits = sb.clusters_per_group();
    desc.set_block_bitmap_csum(checksum(bitmap, bits, sb.checksum_seed(), "block bitmap")?);
    Ok(())
}

/// Stores the checksum of an inode bitmap in its group's descriptor, whose own checksum is then to
/// be updated.
///
/// # Errors
/// `TooShort`.
pub fn update_inode_bitmap(bitmap: &[u8], sb: &SuperBlock, desc: &mut GroupDesc) -> Result<()> {
    let bits = sb.inodes_per_group();
    desc.set_inode_bitmap_csum(checksum(bitmap, bits, sb.checksum_seed(), "inode bitmap")?);
    Ok(())
}
