//! The two checksums of the format: crc32c as ext4 chains it, and the crc16 of `uninit_bg`.
//!
//! ext4's crc32c is the plain register: the seed goes in as it is and the result comes out without
//! the final inversion of the standard algorithm, so that results chain as seeds.
//!
//! Rejected: one crate for both sizes. `crc-fast` folds with wide vectors and wins on blocks, but
//! its set-up costs more than a whole `crc32c` of the few bytes of an inode number.

use crc_fast::{CrcAlgorithm, Digest};

/// Below this many bytes the set-up of the wide implementation does not pay.
const WIDE_FROM: usize = 256;

/// Continues ext4's crc32c over `bytes`. The first seed is `!0` or the file system's checksum seed.
#[inline]
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < WIDE_FROM {
        !crc32c::crc32c_append(!seed, bytes)
    } else {
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(seed));
        digest.update(bytes);
        !(digest.finalize() as u32)
    }
}

/// Continues crc32c over `bytes`, the range `hole` being read as zeros. That is how a structure is
/// summed that holds its own checksum. A hole outside `bytes` is cut.
pub fn crc32c_with_hole(seed: u32, bytes: &[u8], hole: std::ops::Range<usize>) -> u32 {
    const ZEROS: [u8; 4] = [0; 4];
    let end = hole.end.min(bytes.len());
    let start = hole.start.min(end);
    let mut crc = crc32c(seed, &bytes[..start]);
    let mut left = end - start;
    while left > 0 {
        let part = left.min(ZEROS.len());
        crc = crc32c(crc, &ZEROS[..part]);
        left -= part;
    }
    crc32c(crc, &bytes[end..])
}

/// Seed of everything that belongs to one inode: its extent blocks, directory blocks and itself.
pub fn inode_seed(fs_seed: u32, ino: crate::types::Ino, generation: u32) -> u32 {
    // Both at once: of so few bytes the calls are what takes time.
    let both = u64::from(ino.0) | u64::from(generation) << 32;
    crc32c(fs_seed, &both.to_le_bytes())
}

const CRC16_TABLE: [u16; 256] = crc16_table();

const fn crc16_table() -> [u16; 256] {
    let mut table = [0u16; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 {
                (crc >> 1) ^ 0xA001
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

/// Continues crc16 (polynomial 0x8005, reflected) over `bytes`. The first seed is `!0`.
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, byte| {
        (crc >> 8) ^ CRC16_TABLE[usize::from((crc as u8) ^ byte)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_standard_vector_matches_after_inversion() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xE306_9283);
    }

    #[test]
    fn crc32c_long_input_matches_the_short_path() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * 7) as u8).collect();
        let pieces = bytes.chunks(100).fold(0x1234_5678, crc32c);
        assert_eq!(crc32c(0x1234_5678, &bytes), pieces);
    }

    #[test]
    fn inode_seed_is_of_the_number_and_then_the_generation() {
        let (ino, generation) = (crate::types::Ino(0x0102_0304), 0xA0B0_C0D0);
        let number = crc32c(99, &[4, 3, 2, 1]);
        let both = crc32c(number, &[0xD0, 0xC0, 0xB0, 0xA0]);
        assert_eq!(inode_seed(99, ino, generation), both);
    }

    #[test]
    fn crc32c_hole_reads_as_zeros() {
        let mut bytes = [0xAB; 600];
        let holed = crc32c_with_hole(7, &bytes, 300..310);
        bytes[300..310].fill(0);
        assert_eq!(holed, crc32c(7, &bytes));
        assert_eq!(crc32c_with_hole(7, &bytes, 700..704), crc32c(7, &bytes));
    }

    #[test]
    fn crc16_standard_vector_matches() {
        assert_eq!(crc16(0, b"123456789"), 0xBB3D);
    }
}
