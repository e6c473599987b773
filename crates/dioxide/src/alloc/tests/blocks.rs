//! Single rules of the block allocator.

use super::support::{Dump, Fs, VARIANTS};
use crate::alloc::{BlockAllocator, Goal, Release, Request, Reservation, Right, Run, Stream};
use crate::{Error, Shortage};
use dioxide_format::types::{Group, Pblk};
use dioxide_testkit::Image;
use std::collections::BTreeSet;
use std::ops::Range;

fn small() -> Fs {
    Fs::make(Image::builder().size(64 << 20).features("^has_journal"))
}

pub(super) fn request(goal: Goal, least: u32, most: u32) -> Request {
    Request {
        goal,
        len: least..=most,
        stream: None,
        right: Right::Map,
        below: None,
    }
}

#[test]
fn allocate_until_full_takes_every_cluster_and_then_has_no_space() {
    for variant in VARIANTS {
        eprintln!("{}", variant.name);
        let fs = Fs::make(variant.builder());
        let ratio = u64::from(fs.sb.cluster_ratio());
        let mut free = Dump::of(&fs.image, ratio).blocks;
        let mut runs: Vec<Run> = Vec::new();
        let whole = request(Goal::Near(Pblk(0)), 1, u32::MAX);
        loop {
            match fs.blocks.allocate(&mut fs.for_blocks(), &whole) {
                Ok(run) => runs.push(run),
                Err(Error::NoSpace(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        for run in &runs {
            for i in 0..u64::from(run.len) {
                assert!(free.remove(&(run.start.0 + i * ratio)), "{run:?}");
            }
        }
        assert!(free.is_empty());
        assert_eq!(fs.blocks.free_clusters(), 0);
        fs.write_back();
        assert!(Dump::of(&fs.image, ratio).blocks.is_empty());
        for run in runs {
            let release = Release::After(1);
            fs.blocks.free(&mut fs.for_blocks(), run, release).unwrap();
        }
        fs.blocks.committed(1, &mut |_| ());
        fs.finish();
    }
}

#[test]
fn reserved_blocks_only_privileged_callers_get_them() {
    let fs = small();
    let kept = fs.sb.reserved_blocks_count();
    assert!(kept > 100);
    let plain = Request {
        right: Right::Everyone,
        ..request(Goal::Near(Pblk(0)), 1, u32::MAX)
    };
    let mut runs = Vec::new();
    while let Ok(run) = fs.blocks.allocate(&mut fs.for_blocks(), &plain) {
        runs.push(run);
    }
    assert_eq!(fs.blocks.free_clusters(), kept);
    assert_eq!(fs.blocks.available_clusters(Right::Everyone), 0);
    let one = request(Goal::Near(Pblk(0)), 1, 1);
    runs.push(fs.blocks.allocate(&mut fs.for_blocks(), &one).unwrap());
    for run in runs {
        fs.blocks
            .free(&mut fs.for_blocks(), run, Release::Now)
            .unwrap();
    }
    fs.finish();
}

#[test]
fn reservation_others_cannot_have_it_and_the_rest_returns() {
    let fs = small();
    let all = fs.blocks.available_clusters(Right::Map);
    let mut reservation: Reservation<'_> = fs.blocks.reserve(all - 1, Right::Map).unwrap();
    let two = request(Goal::Near(Pblk(0)), 2, 2);
    let refused = fs.blocks.allocate(&mut fs.for_blocks(), &two);
    assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
    assert_eq!(refused.unwrap_err().errno(), libc::ENOSPC);
    let run = fs
        .blocks
        .allocate_reserved(&mut fs.for_blocks(), &two, &mut reservation)
        .unwrap();
    assert_eq!(reservation.left(), all - 3);
    assert_eq!(fs.blocks.available_clusters(Right::Map), 1);
    drop(reservation);
    assert_eq!(fs.blocks.available_clusters(Right::Map), all - 2);
    let mut few = fs.blocks.reserve(1, Right::Map).unwrap();
    let short = fs
        .blocks
        .allocate_reserved(&mut fs.for_blocks(), &two, &mut few);
    assert!(matches!(short, Err(Error::Invalid(_))), "{short:?}");
    drop(few);
    fs.blocks
        .free(&mut fs.for_blocks(), run, Release::Now)
        .unwrap();
    fs.finish();
}

#[test]
fn allocate_an_empty_length_is_invalid() {
    let fs = small();
    for (least, most) in [(0, 4), (5, 4)] {
        let request = request(Goal::Near(Pblk(0)), least, most);
        let result = fs.blocks.allocate(&mut fs.for_blocks(), &request);
        assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
    }
}

#[test]
fn pending_blocks_before_commit_nobody_gets_them() {
    let fs = small();
    let goal = fs
        .blocks
        .allocate(&mut fs.for_blocks(), &request(Goal::Near(Pblk(0)), 8, 8))
        .unwrap();
    let again = request(Goal::Append(goal.start), 8, 8);
    fs.blocks
        .free(&mut fs.for_blocks(), goal, Release::After(9))
        .unwrap();
    let other = fs.blocks.allocate(&mut fs.for_blocks(), &again).unwrap();
    assert_ne!(other.start, goal.start);
    fs.blocks.committed(8, &mut |run| panic!("{run:?}"));
    assert_eq!(fs.blocks.pending_clusters(), 8);
    let mut seen = Vec::new();
    fs.blocks.committed(9, &mut |run| seen.push(run));
    assert_eq!(seen, [goal]);
    let same = fs.blocks.allocate(&mut fs.for_blocks(), &again).unwrap();
    assert_eq!(same, goal);
    for run in [other, same] {
        fs.blocks
            .free(&mut fs.for_blocks(), run, Release::Now)
            .unwrap();
    }
    fs.finish();
}

#[test]
fn near_goal_full_group_goes_to_its_flex_group_first() {
    let fs = Fs::make(VARIANTS[0].builder());
    assert_eq!(fs.sb.log_groups_per_flex(), 2);
    let start = fs.sb.group_first_block(Group(5));
    let near = request(Goal::Near(start), 256, 256);
    let mut groups = Vec::new();
    let mut runs = Vec::new();
    for _ in 0..35 {
        let run = fs.blocks.allocate(&mut fs.for_blocks(), &near).unwrap();
        groups.push(fs.sb.group_of_block(run.start).unwrap().0);
        runs.push(run);
    }
    groups.dedup();
    assert_eq!(groups[..5], [5, 6, 7, 4, 8]);
    for run in runs {
        fs.blocks
            .free(&mut fs.for_blocks(), run, Release::Now)
            .unwrap();
    }
    fs.finish();
}

#[test]
fn groups_that_do_not_serve_are_left_alone_however_short_the_runs_of_others_are() {
    let fs = Fs::make(VARIANTS[0].builder());
    // In the middle of a flex group.
    let end = Group(6);
    let beyond = fs.sb.group_first_block(Group(9));
    let below = |goal, most| Request {
        below: Some(end),
        stream: Some(Stream(1)),
        ..request(goal, 1, most)
    };
    let allocate = |request: &Request| fs.blocks.allocate(&mut fs.for_blocks(), request);
    let mut runs = Vec::new();
    let refused = loop {
        match allocate(&below(Goal::Near(beyond), u32::MAX)) {
            Ok(run) => runs.push(run),
            Err(error) => break error,
        }
    };
    let group = |run: &Run| fs.sb.group_of_block(run.start).unwrap();
    assert!(runs.iter().all(|run| group(run) < end), "{runs:?}");
    assert!(runs.iter().any(|run| group(run) == Group(5)));
    assert!(fs.blocks.available_clusters(Right::Map) > 2048);
    let low = Error::NoSpace(Shortage::LowBlocks).to_string();
    assert_eq!(refused.to_string(), low);
    let one = Run {
        start: Pblk(fs.sb.group_first_block(end).0 - 1),
        len: 1,
    };
    fs.blocks
        .free(&mut fs.for_blocks(), one, Release::Now)
        .unwrap();
    let again = below(Goal::Append(beyond), 16);
    let claim = fs.blocks.claim(&fs.handle(0), &again).unwrap();
    assert_eq!(claim.run(), one);
    assert_eq!(allocate(&again).unwrap_err().to_string(), low);
    drop(claim);
    assert_eq!(allocate(&again).unwrap(), one);
    fs.blocks.close_stream(Stream(1));
    for run in runs {
        fs.blocks
            .free(&mut fs.for_blocks(), run, Release::Now)
            .unwrap();
    }
    fs.finish();
}

#[test]
fn free_of_metadata_and_of_what_is_not_there_changes_nothing() {
    for variant in VARIANTS {
        let fs = Fs::make(variant.builder());
        let ratio = u64::from(fs.sb.cluster_ratio());
        let last = Pblk(fs.sb.blocks_count() - 1);
        let table = fs.sb.descriptor_block(0).0 / ratio * ratio;
        let run = |start: u64, len| Run {
            start: Pblk(start),
            len,
        };
        let mut wrong = vec![
            run(table, 1),
            run(fs.sb.blocks_count(), 1),
            run(last.0 / ratio * ratio, 3),
            run(u64::MAX, 1),
            run(table, u32::MAX),
        ];
        if ratio > 1 {
            wrong.push(run(table + 1, 1));
        }
        for run in wrong {
            let mut handle = fs.handle(1000);
            let result = fs.blocks.free(&mut handle, run, Release::Now);
            assert!(matches!(result, Err(Error::Corrupt { .. })), "{run:?}");
            assert!(handle.touched.is_empty(), "{run:?}");
        }
        fs.finish();
    }
}

#[test]
fn free_of_a_block_that_the_caller_calls_metadata_changes_nothing() {
    let image = VARIANTS[1].builder().build();
    let free = Dump::of(&image, 1).blocks;
    // Past the inode tables: the journal, in use by it.
    let journal = (0..free.len() as u64).rfind(|block| !free.contains(block));
    let journal = journal.unwrap();
    let fs = Fs::open_with(image, Some(journal..journal + 1));
    let run = Run {
        start: Pblk(journal - 1),
        len: 2,
    };
    let mut handle = fs.for_blocks();
    let result = fs.blocks.free(&mut handle, run, Release::Now);
    assert!(matches!(result, Err(Error::Corrupt { .. })), "{result:?}");
    assert!(handle.touched.is_empty());
    fs.finish();
}

#[test]
fn free_across_groups_frees_all_or_nothing() {
    let fs = Fs::make(VARIANTS[0].builder());
    let whole = request(Goal::Near(Pblk(0)), 1, u32::MAX);
    let mut runs = Vec::new();
    while let Ok(run) = fs.blocks.allocate(&mut fs.for_blocks(), &whole) {
        runs.push(run);
    }
    // Groups 10 and 11 have no metadata: one run that crosses.
    let start = fs.sb.group_first_block(Group(10));
    let across = Run { start, len: 3000 };
    let hole = Run {
        start: Pblk(start.0 + 2500),
        len: 1,
    };
    let mut handle = fs.handle(10);
    fs.blocks.free(&mut handle, hole, Release::Now).unwrap();
    let mut handle = fs.handle(10);
    let result = fs.blocks.free(&mut handle, across, Release::Now);
    assert!(matches!(result, Err(Error::Corrupt { .. })), "{result:?}");
    assert!(handle.touched.is_empty());
    let goal = request(Goal::Append(hole.start), 1, 1);
    let again = fs.blocks.allocate(&mut fs.for_blocks(), &goal).unwrap();
    assert_eq!(again, hole);
    let mut handle = fs.handle(2 * BlockAllocator::FREE_CREDITS_PER_GROUP);
    fs.blocks.free(&mut handle, across, Release::Now).unwrap();
    assert_eq!(fs.blocks.free_clusters(), 3000);
    let first = request(Goal::Append(start), 1, u32::MAX);
    let run = fs.blocks.allocate(&mut fs.for_blocks(), &first).unwrap();
    assert_eq!(run, Run { start, len: 2048 });
    let rest = request(Goal::Near(start), 952, 952);
    fs.blocks.allocate(&mut fs.for_blocks(), &rest).unwrap();
    for run in runs {
        fs.blocks
            .free(&mut fs.for_blocks(), run, Release::Now)
            .unwrap();
    }
    fs.finish();
}

/// The clusters of all runs that `trim` shows.
pub(super) fn trimmed(fs: &Fs, blocks: Range<u64>, least: u32) -> BTreeSet<u64> {
    let ratio = u64::from(fs.sb.cluster_ratio());
    let mut seen = BTreeSet::new();
    let mut show = |run: Run| {
        assert!(run.len >= least);
        seen.extend((0..u64::from(run.len)).map(|i| run.start.0 + i * ratio));
        Ok(())
    };
    let blocks = Pblk(blocks.start)..Pblk(blocks.end);
    let count = fs.blocks.trim(&fs.handle(0), blocks, least, &mut show);
    assert_eq!(count.unwrap(), seen.len() as u64);
    seen
}

#[test]
fn trim_of_a_range_shows_the_free_clusters_inside() {
    for variant in VARIANTS {
        let fs = Fs::make(variant.builder());
        let ratio = u64::from(fs.sb.cluster_ratio());
        let mut part = Dump::of(&fs.image, ratio).blocks;
        part.retain(|block| *block >= 1000 && *block + ratio <= 30_000);
        assert!(trimmed(&fs, 1000..30_000, 1) == part, "{}", variant.name);
        fs.finish();
    }
}

#[test]
fn trim_shows_each_long_run_once_until_something_is_freed() {
    for variant in VARIANTS {
        let fs = Fs::make(variant.builder());
        let ratio = u64::from(fs.sb.cluster_ratio());
        let free = Dump::of(&fs.image, ratio).blocks;
        let all = 0..u64::MAX;
        assert!(trimmed(&fs, all.clone(), 1) == free, "{}", variant.name);
        assert!(trimmed(&fs, all.clone(), 1).is_empty());
        let ten = request(Goal::Near(Pblk(0)), 10, 10);
        let run = fs.blocks.allocate(&mut fs.for_blocks(), &ten).unwrap();
        let release = Release::After(1);
        fs.blocks.free(&mut fs.for_blocks(), run, release).unwrap();
        assert!(trimmed(&fs, all.clone(), 1).is_empty());
        fs.blocks.committed(1, &mut |_| ());
        let group = fs.sb.group_of_block(run.start);
        let mut freed = free;
        freed.retain(|&block| fs.sb.group_of_block(Pblk(block)) == group);
        assert!(trimmed(&fs, all, 1) == freed, "{}", variant.name);
        fs.finish();
    }
}
