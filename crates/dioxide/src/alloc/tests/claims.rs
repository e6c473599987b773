//! Single rules of claims.

use super::blocks::{request, trimmed};
use super::damage::{desc, flip};
use super::support::{Dump, Fs, Handle, VARIANTS, unless_full};
use crate::Error;
use crate::alloc::{Claim, Goal, Groups, Release, Request, Right, Run, Stream};
use crate::sync::rank::Excuse;
use dioxide_format::system_zone::SystemZone;
use dioxide_format::types::{Group, Pblk};
use dioxide_journal::{Asked, Edit, Kind};
use dioxide_testkit::Image;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

fn small() -> Fs {
    Fs::make(Image::builder().size(64 << 20).features("^has_journal"))
}

/// Near the start, exactly so many.
fn some(count: u32) -> Request {
    request(Goal::Near(Pblk(0)), count, count)
}

/// A claim never charges the handle.
fn claim(fs: &Fs, request: &Request) -> Result<Claim, Error> {
    fs.blocks.claim(&fs.handle(0), request)
}

fn clusters(fs: &Fs, run: Run) -> impl Iterator<Item = u64> + use<> {
    let ratio = u64::from(fs.sb.cluster_ratio());
    (0..u64::from(run.len)).map(move |i| run.start.0 + i * ratio)
}

/// The block after a run.
fn after(fs: &Fs, run: Run) -> Pblk {
    Pblk(run.start.0 + u64::from(run.len) * u64::from(fs.sb.cluster_ratio()))
}

fn free(fs: &Fs, run: Run) {
    fs.blocks
        .free(&mut fs.for_blocks(), run, Release::Now)
        .unwrap();
}

fn no_space<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::NoSpace(_))), "{result:?}");
}

#[test]
fn claim_dropped_no_block_was_changed_and_all_can_be_had() {
    for variant in VARIANTS {
        eprintln!("{}", variant.name);
        let fs = Fs::make(variant.builder());
        let all = fs.blocks.free_clusters();
        let first = claim(&fs, &some(5)).unwrap();
        let second = claim(&fs, &request(Goal::Append(first.run().start), 5, 5)).unwrap();
        assert_ne!(first.run(), second.run());
        assert_eq!(fs.blocks.free_clusters(), all);
        assert_eq!(fs.blocks.available_clusters(Right::Map), all - 10);
        assert_eq!(fs.blocks.pending_clusters(), 0);
        let run = first.run();
        drop((first, second));
        assert_eq!(fs.blocks.available_clusters(Right::Map), all);
        let again = claim(&fs, &some(5)).unwrap();
        assert_eq!(again.run(), run);
        drop(again);
        assert!(fs.disk.is_unchanged());
        fs.finish();
    }
}

#[test]
fn claim_chooses_what_allocate_chooses() {
    for variant in VARIANTS {
        let [one, other] = [(); 2].map(|()| Fs::make(variant.builder()));
        let mut claims = Vec::new();
        let mut runs = Vec::new();
        for i in 0..60 {
            let goal = Pblk(i * 577 % one.sb.blocks_count());
            let request = Request {
                goal: if i % 2 == 0 {
                    Goal::Append(goal)
                } else {
                    Goal::Near(goal)
                },
                stream: (i % 3 == 0).then_some(Stream(i % 4)),
                ..request(Goal::Near(goal), 1, 1 + i as u32 * 7)
            };
            let claimed = unless_full(claim(&one, &request));
            let run = unless_full(other.blocks.allocate(&mut other.for_blocks(), &request));
            assert_eq!(claimed.as_ref().map(Claim::run), run, "{}", variant.name);
            claims.extend(claimed);
            runs.extend(run);
        }
        drop(claims);
        one.finish();
        runs.into_iter().for_each(|run| free(&other, run));
        other.finish();
    }
}

#[test]
fn record_of_a_part_dumpe2fs_finds_it_used_and_the_rest_returns() {
    for variant in VARIANTS {
        eprintln!("{}", variant.name);
        let fs = Fs::make(variant.builder());
        let ratio = u64::from(fs.sb.cluster_ratio());
        let mut expected = Dump::of(&fs.image, ratio).blocks;
        let all = fs.blocks.free_clusters();
        let mut head = claim(&fs, &some(9)).unwrap();
        let whole = head.run();
        let mut middle = head.split_off(2);
        let tail = middle.split_off(4);
        let lens = [&head, &middle, &tail].map(|claim| claim.run().len);
        assert_eq!(lens, [2, 4, 3]);
        assert_eq!(middle.run().start, after(&fs, head.run()));
        assert_eq!(after(&fs, tail.run()), after(&fs, whole));
        let mut handle = fs.for_blocks();
        let run = middle.record(&mut handle, None).unwrap();
        assert_eq!(fs.blocks.free_clusters(), all - 4);
        assert_eq!(fs.blocks.available_clusters(Right::Map), all - 9);
        // An empty claim is recorded without a change.
        assert_eq!(middle.record(&mut fs.handle(0), None).unwrap().len, 0);
        drop((middle, head, tail));
        assert_eq!(fs.blocks.available_clusters(Right::Map), all - 4);
        expected.retain(|block| !clusters(&fs, run).any(|ours| ours == *block));
        fs.write_back();
        assert!(Dump::of(&fs.image, ratio).blocks == expected);
        free(&fs, run);
        fs.finish();
    }
}

#[test]
#[should_panic(expected = "past the end")]
fn split_past_the_end_panics() {
    let fs = small();
    let _rest = claim(&fs, &some(3)).unwrap().split_off(4);
}

#[test]
fn record_that_fails_the_clusters_are_still_claimed() {
    for variant in VARIANTS {
        let fs = Fs::make(variant.builder());
        let all = fs.blocks.free_clusters();
        let mut held = claim(&fs, &some(3)).unwrap();
        let run = held.run();
        for credits in [0, 1] {
            held.record(&mut fs.handle(credits), None).unwrap_err();
            assert_eq!(held.run(), run);
            assert_eq!(fs.blocks.free_clusters(), all);
            assert_eq!(fs.blocks.available_clusters(Right::Map), all - 3);
            let other = claim(&fs, &request(Goal::Append(run.start), 3, 3)).unwrap();
            assert_ne!(other.run().start, run.start);
        }
        assert_eq!(held.record(&mut fs.for_blocks(), None).unwrap(), run);
        free(&fs, run);
        fs.finish();
    }
}

#[test]
fn free_of_claimed_clusters_is_damage_and_changes_nothing() {
    let fs = small();
    let held = claim(&fs, &some(3)).unwrap();
    let mut handle = fs.for_blocks();
    let result = fs.blocks.free(&mut handle, held.run(), Release::Now);
    assert!(matches!(result, Err(Error::Corrupt { .. })), "{result:?}");
    assert!(handle.touched.is_empty());
    let other = claim(&fs, &request(Goal::Append(held.run().start), 3, 3)).unwrap();
    assert_ne!(other.run(), held.run());
    drop((held, other));
    fs.finish();
}

#[test]
fn free_in_the_transaction_that_recorded_leaves_every_block_as_it_was() {
    for variant in VARIANTS {
        let fs = Fs::make(variant.builder());
        // So that the group's bitmap is written already.
        let first = fs.blocks.allocate(&mut fs.for_blocks(), &some(1)).unwrap();
        let before = fs.disk.changes();
        let counts = (
            fs.blocks.free_clusters(),
            fs.blocks.available_clusters(Right::Map),
        );
        let next = request(Goal::Append(after(&fs, first)), 7, 7);
        let mut held = claim(&fs, &next).unwrap();
        let mut handle = fs.for_blocks();
        let run = held.record(&mut handle, None).unwrap();
        assert!(fs.disk.changes() != before);
        // The same two blocks: no more credits.
        fs.blocks.free(&mut handle, run, Release::Now).unwrap();
        assert!(fs.disk.changes() == before, "{}", variant.name);
        assert_eq!(
            counts,
            (
                fs.blocks.free_clusters(),
                fs.blocks.available_clusters(Right::Map)
            )
        );
        assert_eq!(fs.blocks.pending_clusters(), 0);
        assert_eq!(claim(&fs, &next).unwrap().run(), run);
        free(&fs, first);
        fs.finish();
    }
}

#[test]
fn committed_releases_what_was_freed_and_no_claim_before_and_nothing_claimed() {
    let fs = small();
    let run = fs.blocks.allocate(&mut fs.for_blocks(), &some(8)).unwrap();
    let there = request(Goal::Append(run.start), 8, 8);
    fs.blocks
        .free(&mut fs.for_blocks(), run, Release::After(1))
        .unwrap();
    let beside = claim(&fs, &there).unwrap();
    assert_ne!(beside.run().start, run.start);
    fs.blocks.committed(1, &mut |seen| assert_eq!(seen, run));
    let other = claim(&fs, &request(Goal::Append(beside.run().start), 8, 8)).unwrap();
    assert_ne!(other.run().start, beside.run().start);
    let same = claim(&fs, &there).unwrap();
    assert_eq!(same.run(), run);
    drop((beside, other, same));
    fs.finish();
}

#[test]
fn trim_leaves_claims_out_until_they_are_given_back() {
    for variant in VARIANTS {
        eprintln!("{}", variant.name);
        let fs = Fs::make(variant.builder());
        let mut free = Dump::of(&fs.image, fs.sb.cluster_ratio().into()).blocks;
        let held = claim(&fs, &some(10)).unwrap();
        let ours: BTreeSet<u64> = clusters(&fs, held.run()).collect();
        let seen = trimmed(&fs, 0..u64::MAX, 1);
        let others: BTreeSet<u64> = free.difference(&ours).copied().collect();
        assert!(seen == others);
        assert!(trimmed(&fs, 0..u64::MAX, 1).is_empty());
        let group = fs.sb.group_of_block(held.run().start);
        drop(held);
        free.retain(|&block| fs.sb.group_of_block(Pblk(block)) == group);
        assert!(trimmed(&fs, 0..u64::MAX, 1) == free);
        fs.finish();
    }
}

#[test]
fn claims_of_all_but_the_reserved_leave_exactly_those() {
    for variant in VARIANTS {
        eprintln!("{}", variant.name);
        let fs = Fs::make(variant.builder());
        let all = fs.blocks.free_clusters();
        let mut nodes = fs.blocks.reserve(5, Right::Map).unwrap();
        let mut claims = Vec::new();
        while fs.blocks.available_clusters(Right::Map) > 0 {
            let rest = request(Goal::Near(Pblk(0)), 1, u32::MAX);
            claims.push(claim(&fs, &rest).unwrap());
        }
        no_space(claim(&fs, &some(1)));
        no_space(fs.blocks.allocate(&mut fs.for_blocks(), &some(1)));
        let claimed: u64 = claims.iter().map(|claim| u64::from(claim.run().len)).sum();
        assert_eq!(claimed, all - 5);
        // Data is recorded, then the nodes that map it are allocated.
        let mut runs: Vec<Run> = claims
            .iter_mut()
            .map(|claim| claim.record(&mut fs.for_blocks(), None).unwrap())
            .collect();
        for _ in 0..5 {
            let mut handle = fs.for_blocks();
            let node = fs
                .blocks
                .allocate_reserved(&mut handle, &some(1), &mut nodes);
            runs.push(node.unwrap());
        }
        assert_eq!((nodes.left(), fs.blocks.free_clusters()), (0, 0));
        fs.write_back();
        let ratio = u64::from(fs.sb.cluster_ratio());
        assert!(Dump::of(&fs.image, ratio).blocks.is_empty());
        runs.into_iter().for_each(|run| free(&fs, run));
        drop((nodes, claims));
        fs.finish();
    }
}

#[test]
fn claims_without_privilege_leave_the_reserved_blocks() {
    let fs = small();
    let kept = fs.sb.reserved_blocks_count();
    assert!(kept > 100);
    let plain = Request {
        right: Right::Everyone,
        ..request(Goal::Near(Pblk(0)), 1, u32::MAX)
    };
    let mut claims = Vec::new();
    while let Ok(more) = claim(&fs, &plain) {
        claims.push(more);
    }
    assert_eq!(fs.blocks.available_clusters(Right::Map), kept);
    assert_eq!(fs.blocks.available_clusters(Right::Everyone), 0);
    assert_eq!(claim(&fs, &some(1)).unwrap().run().len, 1);
    drop(claims);
    fs.finish();
}

#[test]
fn streams_that_claim_and_give_back_lie_in_few_pieces() {
    let fs = small();
    let grow = |stream, next: Option<Pblk>| Request {
        stream: Some(Stream(stream)),
        ..request(next.map_or(Goal::Near(Pblk(0)), Goal::Append), 1, 4)
    };
    let (mut next, mut jumps) = ([None; 2], [0; 2]);
    let mut recorded = Vec::new();
    for _ in 0..30 {
        for stream in [0, 1] {
            let mut held = claim(&fs, &grow(stream as u64, next[stream])).unwrap();
            // What a short write did not reach is given back, and claimed by the next.
            drop(held.split_off(held.run().len.min(3)));
            let run = held.record(&mut fs.for_blocks(), None).unwrap();
            jumps[stream] += u32::from(next[stream] != Some(run.start));
            next[stream] = Some(after(&fs, run));
            recorded.push(run);
        }
    }
    // Each jump is over a window of the other's, and leads to one twice as long.
    assert!(jumps.iter().all(|&count| count <= 4), "{jumps:?}");
    fs.blocks.close_stream(Stream(0));
    fs.blocks.close_stream(Stream(1));
    recorded.into_iter().for_each(|run| free(&fs, run));
    fs.finish();
}

#[test]
fn damage_found_while_claimed_the_group_is_not_available_any_more() {
    let builder = Image::builder().size(64 << 20).features("^has_journal");
    let fs = Fs::make(builder.args(&["-g", "4096"]));
    let all = fs.blocks.free_clusters();
    let mut held = claim(&fs, &some(6)).unwrap();
    assert_eq!(fs.sb.group_of_block(held.run().start), Some(Group(0)));
    let lost = u64::from(desc(&fs, 0).free_clusters_count());
    flip(&fs, desc(&fs, 0).block_bitmap(), 400);
    let result = held.record(&mut fs.for_blocks(), None);
    assert!(matches!(result, Err(Error::Checksum { .. })), "{result:?}");
    assert_eq!(held.run().len, 6);
    assert_eq!(fs.blocks.available_clusters(Right::Map), all - lost);
    drop(held);
    assert_eq!(fs.blocks.available_clusters(Right::Map), all - lost);
    let elsewhere = claim(&fs, &some(6)).unwrap().run();
    assert_ne!(fs.sb.group_of_block(elsewhere.start), Some(Group(0)));
}

#[test]
fn initialise_of_a_group_with_claims_disturbs_none() {
    let fs = Fs::make(VARIANTS[5].builder());
    let last = Group(fs.sb.group_count() - 2);
    let start = fs.sb.group_first_block(last);
    let mut held = claim(&fs, &request(Goal::Near(start), 6, 6)).unwrap();
    assert_eq!(fs.sb.group_of_block(held.run().start), Some(last));
    assert!(fs.disk.is_unchanged());
    let mut handle = fs.for_blocks();
    fs.blocks.initialise(&mut handle, last).unwrap();
    assert_eq!(handle.touched.len(), 2, "the group had no bitmap yet");
    let run = held.record(&mut fs.for_blocks(), None).unwrap();
    free(&fs, run);
    fs.finish();
}

/// Reads as a handle does, and calls `before` before each read.
struct Meddled<'a> {
    handle: Handle<'a>,
    before: RefCell<&'a mut dyn FnMut(Pblk)>,
}

impl Edit for Meddled<'_> {
    fn block_bytes(&self) -> usize {
        self.handle.block_bytes()
    }

    fn read(&self, block: Pblk, kind: &dyn Kind) -> dioxide_journal::Result<Arc<[u8]>> {
        let excuse = Excuse::of_a_test();
        (self.before.borrow_mut())(block);
        drop(excuse);
        self.handle.read(block, kind)
    }

    fn modify(
        &mut self,
        _: Pblk,
        _: &dyn Kind,
        _: &mut dyn FnMut(&mut [u8]) -> dioxide_journal::Result<()>,
    ) -> dioxide_journal::Result<()> {
        unreachable!("a claim changes nothing")
    }

    fn change_at_close(
        &mut self,
        _: Pblk,
        _: &dyn Kind,
        _: &mut Asked,
    ) -> dioxide_journal::Result<()> {
        unreachable!("a claim changes nothing")
    }

    fn create(&mut self, _: Pblk, _: &dyn Kind, _: &[u8]) -> dioxide_journal::Result<()> {
        unreachable!("a claim changes nothing")
    }

    fn forget(&mut self, _: Pblk) -> dioxide_journal::Result<()> {
        unreachable!("a claim changes nothing")
    }
}

/// While one thread searches, others move the only free cluster to where the search has been: from
/// group 2 to group 0 while group 1 is searched, and back while group 3 is, until it was moved three
/// times.
#[test]
fn claim_of_the_last_cluster_that_moves_behind_the_search_finds_it() {
    let builder = Image::builder().size(64 << 20);
    let builder = builder.features("^has_journal,^metadata_csum,^uninit_bg");
    let fs = Fs::make(builder.args(&["-g", "4096"]));
    assert_eq!(fs.sb.group_count(), 4);
    let bitmaps = [0, 1, 2, 3].map(|group| desc(&fs, group).block_bitmap());
    let all = request(Goal::Near(Pblk(0)), 1, u32::MAX);
    let mut others: Vec<Claim> = std::iter::from_fn(|| unless_full(claim(&fs, &all))).collect();
    // One cluster of each group, to give back and claim again.
    let single = [0, 1, 2, 3].map(|group| {
        let of_group =
            |claim: &&mut Claim| fs.sb.group_of_block(claim.run().start) == Some(Group(group));
        let claim = others.iter_mut().find(of_group).unwrap();
        claim.split_off(claim.run().len - 1)
    });
    let at = single.each_ref().map(|claim| claim.run().start);
    drop(single);
    let again = |i: usize| claim(&fs, &request(Goal::Append(at[i]), 1, 1)).unwrap();
    // A group that something was given back to is searched, even if it was taken again.
    let mut single = [Some(again(0)), Some(again(1)), None, Some(again(3))];
    let mut moves = 0;
    let mut meddle = |block| {
        let (from, to) = match moves {
            0 | 2 if block == bitmaps[1] => (2, 0),
            1 if block == bitmaps[3] => (0, 2),
            _ => return,
        };
        moves += 1;
        single[to] = None;
        single[from] = Some(again(from));
        if block == bitmaps[3] {
            single[1] = None;
            single[1] = Some(again(1));
        }
    };
    let meddled = Meddled {
        handle: fs.handle(0),
        before: RefCell::new(&mut meddle),
    };
    let last = fs.blocks.claim(&meddled, &some(1)).unwrap();
    assert_eq!(last.run().start, at[0]);
    drop(meddled);
    assert_eq!(moves, 3);
    assert_eq!(fs.blocks.available_clusters(Right::Map), 0);
    drop((last, single, others));
    fs.finish();
}

#[test]
fn totals_each_block_of_the_table_is_read_once() {
    for variant in VARIANTS {
        let fs = Fs::make(variant.builder());
        let dump = Dump::of(&fs.image, fs.sb.cluster_ratio().into());
        let handle = fs.handle(0);
        let mut groups = Groups::new(fs.sb.clone(), SystemZone::default());
        let totals = groups.totals(&handle).unwrap();
        let per_block = fs.sb.descs_per_block();
        let blocks = fs.sb.group_count().div_ceil(per_block);
        assert_eq!(handle.reads.get(), blocks, "{}", variant.name);
        let sums = [0, 1, 2].map(|i| dump.counts.iter().map(|counts| counts[i]).sum());
        let found = [totals.free_clusters, totals.free_inodes, totals.directories];
        assert_eq!(found, sums, "{}", variant.name);
        fs.finish();
    }
}
