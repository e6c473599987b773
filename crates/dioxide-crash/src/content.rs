//! Bytes that tell whose they are.
//!
//! Every 8 bytes of data, by their place in the file, name the file, the operation that wrote them (0
//! for the image's own contents) and the place, so that what is found can be told from everything else. None is zero.

use crate::op::FileNo;

const DATA: u64 = 0xD1 << 56;
const POISON: u64 = 0xBAD0_BAD0 << 32;

fn fill_words(offset: u64, bytes: &mut [u8], word: impl Fn(u64) -> u64) {
    for (at, byte) in (offset..).zip(bytes.iter_mut()) {
        *byte = word(at / 8).to_le_bytes()[(at % 8) as usize];
    }
}

/// What operation `op` writes into a file from `offset`.
pub fn fill(file: FileNo, op: u32, offset: u64, bytes: &mut [u8]) {
    let whose = DATA | (file as u64 & 0xff) << 48 | (u64::from(op) & 0xffff) << 32;
    fill_words(offset, bytes, |word| whose | word & 0xffff_ffff);
}

/// As [`fill`], into a new buffer.
pub fn data(file: FileNo, op: u32, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    fill(file, op, offset, &mut bytes);
    bytes
}

/// What free space holds, from byte `offset` of the image.
pub fn poison(offset: u64, bytes: &mut [u8]) {
    fill_words(offset, bytes, |word| POISON | word & 0xffff_ffff);
}

/// Whose a sector is, in words.
pub fn explain(sector: &[u8]) -> String {
    let words = sector.as_chunks::<8>().0.iter();
    let mut parts: Vec<String> = words.map(|word| name(u64::from_le_bytes(*word))).collect();
    parts.dedup();
    match parts.len() {
        0..=4 => parts.join(", "),
        _ => format!("{}, ... {}", parts[..2].join(", "), parts[parts.len() - 1]),
    }
}

/// Whether a sector shows what free space held.
pub fn is_poisoned(sector: &[u8]) -> bool {
    let mut words = sector.as_chunks::<8>().0.iter();
    words.any(|word| u64::from_le_bytes(*word) & 0xffff_ffff_0000_0000 == POISON)
}

fn name(word: u64) -> String {
    let file = word >> 48 & 0xff;
    match (word >> 56 << 56, word & 0xffff_ffff_0000_0000) {
        (_, POISON) => "POISON of free space".into(),
        (DATA, _) => format!("op {} on f{file}", word >> 32 & 0xffff),
        _ if word == 0 => "zeros".into(),
        _ => "unknown bytes".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_written_in_pieces_are_those_written_at_once() {
        let whole = data(3, 7, 1000, 600);
        let mut pieces = data(3, 7, 1000, 123);
        pieces.extend(data(3, 7, 1123, 477));
        assert_eq!(whole, pieces);
    }

    #[test]
    fn explain_tells_file_operation_zeros_and_poison() {
        assert_eq!(explain(&data(2, 9, 512, 512)), "op 9 on f2");
        assert_eq!(explain(&[0; 512]), "zeros");
        let mut free = [0; 512];
        poison(4096, &mut free);
        assert!(explain(&free).contains("POISON") && is_poisoned(&free));
        assert!(!is_poisoned(&data(2, 9, 512, 512)));
    }
}
