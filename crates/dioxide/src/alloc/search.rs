//! Finding a run of clear bits.

use dioxide_format::bitmap;
use std::ops::Range;

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A whole free run, or what is left of it after the place where the search began.
    Run(Range<u32>),
    /// None is long enough; the length of the longest.
    Longest(u32),
}

/// The free runs among the first `end` bits that begin at `from` or later, in order; the first may
/// be the rest of a run that `from` lies in.
pub(super) fn runs(bits: &[u8], from: u32, end: u32) -> impl Iterator<Item = Range<u32>> {
    let mut at = from as usize;
    std::iter::from_fn(move || {
        let run = bitmap::next_free_run(bits, at, end as usize)?;
        at = run.end;
        Some(run.start as u32..run.end as u32)
    })
}

/// The first run of at least `want` bits from `from` on, else the first at all.
pub(super) fn first_fit(bits: &[u8], from: u32, end: u32, want: u32) -> Found {
    let fits = |run: &Range<u32>| run.end - run.start >= want;
    if let Some(run) = runs(bits, from, end).find(fits) {
        return Found::Run(run);
    }
    // From the start, and past `from`: a run may lie across it.
    let mut longest = 0;
    for run in runs(bits, 0, end) {
        if fits(&run) {
            return Found::Run(run);
        }
        longest = longest.max(run.end - run.start);
    }
    Found::Longest(longest)
}

/// The free run that begins exactly at `at`, up to `end`; empty if that bit is set.
pub(super) fn run_at(bits: &[u8], at: u32, end: u32) -> Range<u32> {
    match runs(bits, at, end).next() {
        Some(run) if run.start == at => run,
        _ => at..at,
    }
}
