//! Bytes that a file's seed and an offset determine, so that data that is lost, misplaced or of
//! another file shows.
//!
//! Each aligned 8 bytes are a bijective mix of the offset, keyed by the seed; none of them is zero
//! by more than chance.

/// The 8 bytes at `8 * index`.
fn word(seed: u64, index: u64) -> [u8; 8] {
    let key = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut z = key ^ index.wrapping_mul(0xD134_2543_DE82_EF95);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)).to_le_bytes()
}

/// Fills `buf` with what the file of `seed` holds from byte `offset` on, which need not be aligned.
pub fn fill_pattern(seed: u64, offset: u64, buf: &mut [u8]) {
    let mut at = 0;
    while at < buf.len() {
        let position = offset + at as u64;
        let word = &word(seed, position / 8)[(position % 8) as usize..];
        let len = word.len().min(buf.len() - at);
        buf[at..at + len].copy_from_slice(&word[..len]);
        at += len;
    }
}

/// `len` bytes of the file of `seed` from `offset` on.
pub fn pattern(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    fill_pattern(seed, offset, &mut buf);
    buf
}

/// Checks that `buf` is what [`fill_pattern`] gives.
///
/// # Panics
/// With the place of the first byte that differs, and what is there.
#[track_caller]
pub fn check_pattern(seed: u64, offset: u64, buf: &[u8]) {
    let want = pattern(seed, offset, buf.len());
    compare(&format!("pattern {seed}"), offset, buf, &want);
}

/// Checks that `buf`, read at `offset`, is all zeros.
///
/// # Panics
/// As [`check_pattern`].
#[track_caller]
pub fn check_zero(offset: u64, buf: &[u8]) {
    compare("zeros", offset, buf, &vec![0; buf.len()]);
}

#[track_caller]
fn compare(what: &str, offset: u64, got: &[u8], want: &[u8]) {
    let Some(at) = got.iter().zip(want).position(|(got, want)| got != want) else {
        return;
    };
    let wrong = got
        .iter()
        .zip(want)
        .filter(|(got, want)| got != want)
        .count();
    let end = (at + 16).min(got.len());
    panic!(
        "not {what}: {wrong} of {} bytes differ, the first at {} ({at} into the buffer): \
         {:02x?}, not {:02x?}",
        got.len(),
        offset + at as u64,
        &got[at..end],
        &want[at..end]
    );
}
