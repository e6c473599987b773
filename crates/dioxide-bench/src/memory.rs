//! How far memory is that no cache holds: what a lookup in a large table takes at least.

use crate::compare::median;
use crate::offsets::Random;
use crate::{Error, Result};
use dioxide::block::mem::Words;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How much is looked at: much more than the caches of most processors hold, in large pages as the names in memory are.
pub(crate) const MIB: usize = 512;
const BYTES: usize = MIB << 20;
/// A record of four lines.
const LINES: usize = 4;
const LINE_WORDS: usize = 64 / size_of::<u64>();
const RECORD_WORDS: usize = LINES * LINE_WORDS;

/// Nanoseconds for a look at four neighbouring lines at a random place of [`MIB`].
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
    let (mut random, mut seen) = (Random::new(1), 0);
    let tries = (0..TRIES).map(|_| {
        let begin = Instant::now();
        for _ in 0..LOOKS {
            // A place is not known before the last one was seen.
            let place = random.next().wrapping_add(seen) % records.len() as u64;
            let lines = records[place as usize].iter().step_by(LINE_WORDS);
            seen = lines.map(|word| word.load(Ordering::Relaxed)).sum();
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
