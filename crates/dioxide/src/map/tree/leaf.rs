//! Edits of one leaf's extents, as functions from a list to a list.
//!
//! Invariant: lists ascend and do not overlap, before and after.

use dioxide_format::extent::{Extent, LBLK_END, MAX_LEN};
use dioxide_format::types::{Lblk, Pblk};
use std::ops::Range;

/// Most blocks that an extent of this state can have.
pub(super) fn max_len(unwritten: bool) -> u16 {
    MAX_LEN - u16::from(unwritten)
}

/// The part of an extent that lies in `range`.
pub(super) fn part(extent: &Extent, range: &Range<u64>) -> Option<Extent> {
    let start = range.start.max(u64::from(extent.lblk.0));
    let end = range.end.min(extent.end());
    (start < end).then(|| Extent {
        lblk: Lblk(start as u32),
        len: (end - start) as u16,
        pblk: Pblk(extent.pblk.0 + (start - u64::from(extent.lblk.0))),
        unwritten: extent.unwritten,
    })
}

/// Position of the first extent that ends behind `lblk`.
pub(super) fn position(extents: &[Extent], lblk: u64) -> usize {
    extents.partition_point(|e| e.end() <= lblk)
}

/// Joins neighbours that can be one extent.
pub(super) fn join(extents: &mut Vec<Extent>) {
    extents.dedup_by(|next, before| {
        let fits = before.end() == u64::from(next.lblk.0)
            && before.pblk.0 + u64::from(before.len) == next.pblk.0
            && before.unwritten == next.unwritten
            && u32::from(before.len) + u32::from(next.len) <= max_len(next.unwritten).into();
        if fits {
            before.len += next.len;
        }
        fits
    });
}

/// What [`cut`] did.
pub(super) struct Cut {
    pub(super) kept: Vec<Extent>,
    pub(super) removed: Vec<Extent>,
    /// Where it stopped because `afford` said so; all from there on is kept.
    pub(super) stopped: Option<u64>,
}

/// Removes `range`, piece by piece while `afford` allows. At most one extent becomes two.
pub(super) fn cut(
    extents: &[Extent],
    range: &Range<u64>,
    mut afford: impl FnMut(&Extent) -> bool,
) -> Cut {
    let mut cut = Cut {
        kept: Vec::with_capacity(extents.len() + 1),
        removed: Vec::new(),
        stopped: None,
    };
    for extent in extents {
        let Some(inside) = part(extent, range).filter(|_| cut.stopped.is_none()) else {
            cut.kept.push(*extent);
            continue;
        };
        if !afford(&inside) {
            cut.stopped = Some(inside.lblk.0.into());
            cut.kept.push(*extent);
            continue;
        }
        cut.kept.extend(part(extent, &(0..range.start)));
        cut.removed.push(inside);
        cut.kept.extend(part(extent, &(range.end..LBLK_END)));
    }
    cut
}

/// Makes `range` written or unwritten, until the list has grown; at most by two. Also says where it
/// stopped.
pub(super) fn flip(
    extents: &[Extent],
    range: &Range<u64>,
    unwritten: bool,
) -> (Vec<Extent>, Option<u64>) {
    let mut flipped = Vec::with_capacity(extents.len() + 2);
    for (at, extent) in extents.iter().enumerate() {
        let Some(inside) = part(extent, range).filter(|e| e.unwritten != unwritten) else {
            flipped.push(*extent);
            continue;
        };
        if flipped.len() > at {
            flipped.extend(&extents[at..]);
            return (flipped, Some(inside.lblk.0.into()));
        }
        let (start, end) = (u64::from(inside.lblk.0), inside.end());
        let middle = start + u64::from(max_len(unwritten));
        let state = |e| Extent { unwritten, ..e };
        flipped.extend(part(extent, &(0..start)));
        flipped.extend(part(&inside, &(start..middle)).map(state));
        flipped.extend(part(&inside, &(middle..end)).map(state));
        flipped.extend(part(extent, &(end..LBLK_END)));
    }
    (flipped, None)
}

/// Moves `range` by `delta`. The caller has seen that nothing is in the way. Grows by at most two.
pub(super) fn slide(extents: &[Extent], range: &Range<u64>, delta: i64) -> Vec<Extent> {
    let mut moved = Vec::with_capacity(extents.len() + 2);
    for extent in extents {
        moved.extend(part(extent, &(0..range.start)));
        moved.extend(part(extent, range).map(|inside| Extent {
            lblk: Lblk((i64::from(inside.lblk.0) + delta) as u32),
            ..inside
        }));
        moved.extend(part(extent, &(range.end..LBLK_END)));
    }
    moved
}
