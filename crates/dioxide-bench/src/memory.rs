//! How far memory is that no cache holds: what a lookup in a large table takes at least.

use crate::compare::median;
use crate::{Error, Result};
use dioxide::block::mem::Words;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Much larger than the caches of most processors, and in large pages as the names in memory are.
const BYTES: usize = 512 << 20;
/// A record of four lines.
const LINES: usize = 4;
const LINE_WORDS: usize = 64 / size_of::<u64>();
const RECORD_WORDS: usize = LINES * LINE_WORDS;

/// Nanoseconds for a look at four neighbouring lines at a random place of half a GiB.
///
/// # Errors
/// There is no such memory.
pub(crate) fn far_look() -> Result<f64> {
    const LOOKS: u32 = 100_000;
    const TRIES: usize = 3;
    let words = Words::zeroed_dense(BYTES / size_of::<u64>());
    let words = words.map_err(Error::io("memory to look at"))?;
    // One line of zeros would stand for all that was never stored to.
    for page in words.chunks(4096 / size_of::<u64>()) {
        page[0].store(1, Ordering::Relaxed);
    }
    let (records, _) = words.as_chunks::<RECORD_WORDS>();
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let tries = (0..TRIES).map(|_| {
        let begin = Instant::now();
        for _ in 0..LOOKS {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let record = &records[(random % records.len() as u64) as usize];
            let lines = record.iter().step_by(LINE_WORDS);
            let seen: u64 = lines.map(|word| word.load(Ordering::Relaxed)).sum();
            // The next place is not known before this one was seen.
            random = random.wrapping_add(seen);
        }
        begin.elapsed().as_nanos() as f64 / f64::from(LOOKS)
    });
    Ok(median(tries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_takes_some_time() {
        let ns = far_look().expect("there is memory");
        assert!(ns > 1.0 && ns < 1e6, "{ns}");
    }
}
