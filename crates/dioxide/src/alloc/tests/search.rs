//! Runs of clear bits, against each bit looked at alone.

use crate::alloc::search::{Found, first_fit, run_at, runs};
use dioxide_format::bitmap;
use proptest::collection::vec;
use proptest::prelude::*;
use std::ops::Range;

/// All free runs among the first `end` bits.
fn naive(bits: &[u8], end: u32) -> Vec<Range<u32>> {
    let mut all: Vec<Range<u32>> = Vec::new();
    for bit in (0..end).filter(|&bit| !bitmap::get(bits, bit as usize)) {
        match all.last_mut() {
            Some(run) if run.end == bit => run.end += 1,
            _ => all.push(bit..bit + 1),
        }
    }
    all
}

/// What is left of each run from `from` on.
fn rest(all: &[Range<u32>], from: u32) -> Vec<Range<u32>> {
    let clipped = all.iter().map(|run| run.start.max(from)..run.end);
    clipped.filter(|run| !run.is_empty()).collect()
}

proptest! {
    #[test]
    fn search_agrees_with_single_bits(
        bits in vec(prop::sample::select(vec![0u8, 0, 0xFF, 0x0F, 0xC7]), 1..24),
        from in 0..200u32,
        end in 0..192u32,
        want in 1..70u32,
    ) {
        let end = end.min(bits.len() as u32 * 8);
        let all = naive(&bits, end);
        let after = rest(&all, from);
        prop_assert_eq!(runs(&bits, from, end).collect::<Vec<_>>(), after.clone());
        let fits = |run: &&Range<u32>| run.end - run.start >= want;
        let found = after.iter().find(fits).or_else(|| all.iter().find(fits));
        let expected = match found {
            Some(run) => Found::Run(run.clone()),
            None => Found::Longest(all.iter().map(|run| run.end - run.start).max().unwrap_or(0)),
        };
        prop_assert_eq!(first_fit(&bits, from, end, want), expected);
        let here = after.iter().find(|run| run.start == from);
        prop_assert_eq!(run_at(&bits, from, end), here.cloned().unwrap_or(from..from));
    }
}
