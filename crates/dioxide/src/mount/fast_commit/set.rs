//! Sets of numbers, by the ranges that they make up: a file can have a billion clusters.

use dioxide_format::system_zone::joined;
use std::ops::Range;

/// Ranges in order, which neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Set(Vec<Range<u64>>);

impl FromIterator<Range<u64>> for Set {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Set {
        Set(joined(ranges.into_iter().collect()))
    }
}

impl Set {
    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().cloned()
    }

    /// What of these is not in `other`.
    pub(super) fn without(&self, other: &Set) -> Set {
        Set(self.iter().flat_map(|range| other.outside(range)).collect())
    }

    /// The parts of a range that are not in the set.
    pub(crate) fn outside(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let first = self.0.partition_point(|inside| inside.end <= range.start);
        let (mut at, mut parts) = (range.start, Vec::new());
        for inside in self.0[first..]
            .iter()
            .take_while(|inside| inside.start < range.end)
        {
            if inside.start > at {
                parts.push(at..inside.start);
            }
            at = inside.end;
        }
        if at < range.end {
            parts.push(at..range.end);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
        prop::collection::vec((0..60_u64, 0..9_u64), 0..12)
            .prop_map(|ranges| ranges.into_iter().map(|(at, len)| at..at + len).collect())
    }

    fn members(ranges: impl IntoIterator<Item = Range<u64>>) -> BTreeSet<u64> {
        ranges.into_iter().flatten().collect()
    }

    proptest! {
        #[test]
        fn set_holds_what_its_ranges_hold(one in ranges(), other in ranges()) {
            let (set, gone): (Set, Set) = (one.iter().cloned().collect(), other.iter().cloned().collect());
            let (all, out) = (members(one), members(other));
            prop_assert_eq!(members(set.iter()), all.clone());
            let left = set.without(&gone);
            prop_assert_eq!(members(left.iter()), all.difference(&out).copied().collect::<BTreeSet<_>>());
            // None touches the next, and none is empty.
            prop_assert_eq!(left.iter().collect::<Set>(), left);
        }
    }
}
