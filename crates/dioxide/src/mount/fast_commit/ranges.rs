//! What became of ranges of a file, the last record for each block.

use dioxide_format::types::Pblk;
use std::collections::BTreeMap;
use std::ops::Range;

/// What a range of a file is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backing {
    Hole,
    /// Blocks from here on.
    Blocks {
        start: Pblk,
        unwritten: bool,
    },
}

impl Backing {
    pub(super) fn after(self, blocks: u64) -> Backing {
        match self {
            Backing::Hole => Backing::Hole,
            Backing::Blocks { start, unwritten } => Backing::Blocks {
                start: Pblk(start.0 + blocks),
                unwritten,
            },
        }
    }
}

/// The ranges that records speak of, by first block: end, and what it is. They do not overlap.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, (u64, Backing)>);

impl Ranges {
    /// From now on `range`, which is not empty, is this.
    pub(super) fn set(&mut self, range: Range<u64>, backing: Backing) {
        self.cut(range.start);
        self.cut(range.end);
        let covered: Vec<u64> = self.0.range(range.clone()).map(|(&at, _)| at).collect();
        for at in covered {
            self.0.remove(&at);
        }
        self.0.insert(range.start, (range.end, backing));
    }

    /// Makes `at` the boundary of two ranges, if it lies in one.
    fn cut(&mut self, at: u64) {
        let Some((&start, &(end, backing))) = self.0.range(..at).next_back() else {
            return;
        };
        if end > at {
            self.0.insert(start, (at, backing));
            self.0.insert(at, (end, backing.after(at - start)));
        }
    }

    /// What `later` says is said last.
    pub(super) fn append(&mut self, later: &mut Ranges) {
        for (start, (end, backing)) in std::mem::take(&mut later.0) {
            self.set(start..end, backing);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Range<u64>, Backing)> {
        let whole = |(&start, &(end, backing)): (&u64, &(u64, Backing))| (start..end, backing);
        self.0.iter().map(whole)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_set_in_any_order_say_what_was_set_last() {
        const END: u64 = 200;
        let mut ranges = Ranges::default();
        let mut model = vec![None; END as usize];
        let mut seed = 1u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..500 {
            let start = random(END - 1);
            let end = (start + 1 + random(40)).min(END);
            let backing = match random(3) {
                0 => Backing::Hole,
                unwritten => Backing::Blocks {
                    start: Pblk(1000 + random(5000)),
                    unwritten: unwritten == 1,
                },
            };
            ranges.set(start..end, backing);
            for at in start..end {
                model[at as usize] = Some(backing.after(at - start));
            }
            let mut found = vec![None; END as usize];
            for (range, backing) in ranges.iter() {
                for at in range.clone() {
                    let before = found[at as usize].replace(backing.after(at - range.start));
                    assert_eq!(before, None, "block {at} twice");
                }
            }
            assert_eq!(found, model);
        }
    }
}
