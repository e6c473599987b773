//! Indirect block maps of ext2 and ext3: twelve direct pointers, then one, two and three levels.
//!
//! For: which pointers to follow for a logical block, and pointer blocks as numbers. Not for:
//! following them.

use crate::Result;
use crate::error::{ensure, prefix};
use crate::types::{Lblk, Pblk};

const STRUCTURE: &str = "indirect block";
/// Direct pointers in `i_block`.
pub const DIRECT: u32 = 12;
/// Pointers in `i_block`.
pub const POINTERS: usize = 15;

/// The pointers to follow from `i_block` to a data block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    offsets: [u32; 4],
    len: u8,
}

impl Path {
    /// Index of the pointer in `i_block`, then in each pointer block; the last points to data.
    pub fn offsets(&self) -> &[u32] {
        &self.offsets[..usize::from(self.len)]
    }

    /// Pointer blocks on the way: 0 to 3.
    pub fn levels(&self) -> usize {
        usize::from(self.len) - 1
    }
}

/// Pointers per block.
pub const fn pointers_per_block(block_size: u32) -> u32 {
    block_size / 4
}

/// Largest logical block that the map can hold.
pub fn max_lblk(block_size: u32) -> Lblk {
    let per = u64::from(pointers_per_block(block_size));
    let blocks = u64::from(DIRECT) + per + per * per + per * per * per;
    Lblk((blocks - 1).min(u64::from(u32::MAX) - 1) as u32)
}

/// Blocks of the largest file for which `most` blocks are counted, those of its map among them: as Linux reckons, which
/// has as many files as such a map holds.
pub fn most_of(block_size: u32, most: u64) -> u64 {
    let per = u64::from(pointers_per_block(block_size));
    let all = u64::from(max_lblk(block_size).0) + 1;
    let whole_map = 3 + 2 * per + per * per;
    if all + whole_map <= most {
        return all;
    }
    let rest = most.saturating_sub(u64::from(DIRECT) + per);
    let map = match rest.checked_sub(per * per) {
        None => 2 + rest.div_ceil(per),
        Some(rest) => 3 + per + rest.div_ceil(per) + rest.div_ceil(per * per),
    };
    most.saturating_sub(map)
}

/// The path to `lblk`; none past the largest block. `block_size` in bytes, 1024 to 65536.
pub fn path(lblk: Lblk, block_size: u32) -> Option<Path> {
    let per = u64::from(pointers_per_block(block_size));
    let mut rest = u64::from(lblk.0);
    if rest < u64::from(DIRECT) {
        return Some(make_path(&[lblk.0]));
    }
    rest -= u64::from(DIRECT);
    let digit = |value: u64, level: u32| (value / per.pow(level) % per) as u32;
    for level in 1..=3 {
        if rest < per.pow(level) {
            let mut offsets = vec![DIRECT + level - 1];
            offsets.extend((0..level).rev().map(|l| digit(rest, l)));
            return Some(make_path(&offsets));
        }
        rest -= per.pow(level);
    }
    None
}

fn make_path(from: &[u32]) -> Path {
    let mut offsets = [0; 4];
    offsets[..from.len()].copy_from_slice(from);
    Path {
        offsets,
        len: from.len() as u8,
    }
}

/// The pointers of a pointer block, or of `i_block`; 0 is a hole.
pub fn pointers(bytes: &[u8]) -> impl ExactSizeIterator<Item = u32> + '_ {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word))
}

/// The pointer at `index`; none for a hole.
///
/// # Errors
/// `TooShort` when `index` is past the end of `bytes`; `Corrupt` when the pointer is outside
/// `physical`, the blocks that may be pointed to.
pub fn pointer_at(
    bytes: &[u8],
    index: u32,
    physical: &std::ops::Range<u64>,
) -> Result<Option<Pblk>> {
    let at = index as usize * 4;
    let bytes = prefix(bytes, at + 4, STRUCTURE)?;
    let found = pointers(&bytes[at..]).next().unwrap_or(0);
    let expected = format_args!("within {}..{}", physical.start, physical.end);
    let ok = found == 0 || physical.contains(&u64::from(found));
    ensure(ok, STRUCTURE, "pointer", found, expected)?;
    Ok((found != 0).then_some(Pblk(found.into())))
}

/// Checks every pointer of a pointer block against `physical`, the blocks that may be pointed to.
///
/// # Errors
/// `Corrupt`.
pub fn validate(bytes: &[u8], physical: &std::ops::Range<u64>) -> Result<()> {
    (0..bytes.len() as u32 / 4).try_for_each(|i| pointer_at(bytes, i, physical).map(drop))
}

/// Encodes pointers into the bytes of a pointer block; missing ones are left alone.
pub fn encode_into(pointers: &[u32], bytes: &mut [u8]) {
    for (slot, pointer) in bytes.chunks_exact_mut(4).zip(pointers) {
        slot.copy_from_slice(&pointer.to_le_bytes());
    }
}
