//! Blocks that map a file's blocks: extent trees, indirect blocks.

use super::Layout;
use dioxide::format::indirect::most_of;
use std::ops::Range;

/// Longest extent.
const EXTENT_MAX: u64 = 32768;
/// Extents in an inode.
const IN_INODE: u64 = 4;
/// Direct blocks in an inode.
const DIRECT: u64 = 12;

/// Clusters that these blocks of a file touch.
pub(super) fn clusters(runs: &[Range<u64>], layout: &Layout) -> u64 {
    distinct(runs, 0, layout.cluster_blocks())
}

/// How many units of `unit` blocks, counted from `base` on, the blocks behind `base` touch.
fn distinct(runs: &[Range<u64>], base: u64, unit: u64) -> u64 {
    let mut count = 0;
    // The first unit that is not counted yet.
    let mut next = 0;
    for run in runs.iter().filter(|run| run.end > base) {
        let first = (run.start.max(base) - base) / unit;
        let end = (run.end - base).div_ceil(unit);
        count += end.saturating_sub(next.max(first));
        next = end;
    }
    count
}

/// That a file can have so many blocks, though they be holes.
///
/// # Errors
/// If none can be as large.
pub(super) fn check_size(blocks: u64, layout: &Layout) -> Result<(), String> {
    // An inode counts 2^32 sectors less one without `huge_file`.
    let counted = match layout.huge_file {
        true => u64::MAX,
        false => u64::from(u32::MAX / (layout.block_bytes / 512)),
    };
    let most = match layout.extents {
        true => counted.min(u32::MAX.into()),
        false => most_of(layout.block_bytes, counted),
    };
    match blocks <= most {
        true => Ok(()),
        false => {
            let most = u128::from(most) * u128::from(layout.block_bytes);
            Err(format!("larger than a file can be, which is {most} bytes"))
        }
    }
}

/// Clusters for the map of a file whose blocks are given out in order.
///
/// # Errors
/// If no file can be as large.
pub(super) fn nodes(runs: &[Range<u64>], layout: &Layout) -> Result<u64, String> {
    if !layout.extents {
        return indirect(runs, layout);
    }
    if runs.last().is_some_and(|last| last.end > 1 << 32) {
        return Err("larger than a file can be".into());
    }
    // A run that is longer than a group has the metadata of groups between.
    let extents = |run: &Range<u64>| {
        let len = run.end - run.start;
        len.div_ceil(EXTENT_MAX) + 2 * (len / EXTENT_MAX)
    };
    Ok(tree(runs.iter().map(extents).sum(), layout))
}

/// Clusters for the map of a file none of whose blocks touch.
pub(super) fn nodes_of_scattered(blocks: u64, layout: &Layout) -> u64 {
    match layout.extents {
        true => tree(blocks, layout),
        false => indirect(std::slice::from_ref(&(0..blocks)), layout).unwrap_or(0),
    }
}

/// Nodes of an extent tree whose leaves are filled in order.
fn tree(extents: u64, layout: &Layout) -> u64 {
    let checksum = if layout.metadata_csum { 4 } else { 0 };
    let per_node = u64::from(layout.block_bytes - 12 - checksum) / 12;
    let mut nodes = 0;
    let mut level = extents;
    while level > IN_INODE {
        level = level.div_ceil(per_node);
        nodes += level;
    }
    nodes
}

fn indirect(runs: &[Range<u64>], layout: &Layout) -> Result<u64, String> {
    let per_block = u64::from(layout.block_bytes / 4);
    let (double, triple) = (per_block * per_block, per_block * per_block * per_block);
    let ends = [DIRECT, DIRECT + per_block, DIRECT + per_block + double];
    if runs.last().is_some_and(|last| last.end > ends[2] + triple) {
        return Err("larger than a file without extents can be".into());
    }
    let between = |start: u64, end: u64| -> Vec<Range<u64>> {
        let cut = |run: &Range<u64>| run.start.max(start)..run.end.min(end);
        runs.iter().map(cut).filter(|run| !run.is_empty()).collect()
    };
    let single = distinct(&between(DIRECT, ends[1]), DIRECT, per_block);
    let in_double = between(ends[1], ends[2]);
    let in_triple = between(ends[2], u64::MAX);
    let of_double =
        distinct(&in_double, ends[1], double) + distinct(&in_double, ends[1], per_block);
    let units = [triple, double, per_block];
    let of_triple: u64 = units
        .iter()
        .map(|&unit| distinct(&in_triple, ends[2], unit))
        .sum();
    Ok(single + of_double + of_triple)
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "one run is meant")]
mod tests {
    use super::*;

    #[test]
    fn units_that_runs_share_count_once() {
        assert_eq!(distinct(&[0..1, 2..3, 7..9], 0, 4), 3);
        assert_eq!(distinct(&[0..1, 2..3], 0, 4), 1);
        assert_eq!(distinct(&[0..100], 12, 44), 2);
        assert_eq!(distinct(&[0..12], 12, 44), 0);
    }

    #[test]
    fn indirect_blocks_of_each_depth_are_counted() {
        let layout = Layout {
            block_bytes: 1024,
            extents: false,
            ..Layout::default()
        };
        let first_double = 12 + 256;
        let first_triple = first_double + 65536;
        for (runs, blocks) in [
            (vec![0..12], 0),
            (vec![0..13], 1),
            (vec![0..first_double + 1], 3),
            (vec![first_double..first_double + 257], 3),
            (vec![0..first_triple], 1 + 1 + 256),
            (vec![first_triple..first_triple + 1], 3),
        ] {
            assert_eq!(indirect(&runs, &layout), Ok(blocks), "{runs:?}");
        }
        assert!(indirect(std::slice::from_ref(&(0..1 << 40)), &layout).is_err());
    }

    #[test]
    fn extent_tree_has_leaves_only_where_the_inode_is_full() {
        let layout = Layout::default();
        assert_eq!(tree(4, &layout), 0);
        assert_eq!(tree(5, &layout), 1);
        assert_eq!(tree(340, &layout), 1);
        assert_eq!(tree(341, &layout), 2);
        assert_eq!(tree(340 * 4 + 1, &layout), 5 + 1);
    }
}
