//! Several threads at once.

use super::blocks::request;
use super::support::{Fs, Random, VARIANTS, unless_full};
use crate::alloc::{Claim, Goal, InodeAllocator, InodeKind, Release, Request, Right, Run, Stream};
use dioxide_format::types::{Group, Ino, Pblk};
use dioxide_testkit::Image;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const THREADS: u64 = 4;

/// What some thread has now.
#[derive(Default)]
struct Owned {
    clusters: Mutex<HashSet<u64>>,
    inodes: Mutex<HashSet<u32>>,
}

fn blocks_of(fs: &Fs, run: Run) -> impl Iterator<Item = u64> {
    let ratio = u64::from(fs.sb.cluster_ratio());
    (0..u64::from(run.len)).map(move |i| run.start.0 + i * ratio)
}

fn anywhere(fs: &Fs, random: &mut Random, thread: u64) -> Request {
    let goal = Goal::Near(Pblk(random.below(fs.sb.blocks_count())));
    let most = 1 + random.below(300) as u32;
    Request {
        stream: random.one_in(2).then_some(Stream(thread)),
        ..request(goal, 1, most)
    }
}

impl Owned {
    fn got(&self, fs: &Fs, run: Run) {
        let mut all = self.clusters.lock();
        for block in blocks_of(fs, run) {
            assert!(all.insert(block), "{block} was handed out twice");
        }
    }

    /// Before anyone else can have them.
    fn lost(&self, fs: &Fs, run: Run) {
        let mut all = self.clusters.lock();
        blocks_of(fs, run).for_each(|block| assert!(all.remove(&block)));
    }
}

fn allocate(fs: &Fs, owned: &Owned, random: &mut Random, thread: u64) -> Option<Run> {
    let request = anywhere(fs, random, thread);
    let run = unless_full(fs.blocks.allocate(&mut fs.for_blocks(), &request))?;
    owned.got(fs, run);
    Some(run)
}

fn claim(fs: &Fs, owned: &Owned, random: &mut Random, thread: u64) -> Option<Claim> {
    let request = anywhere(fs, random, thread);
    let claim = unless_full(fs.blocks.claim(&fs.handle(0), &request))?;
    owned.got(fs, claim.run());
    Some(claim)
}

/// Records a part of a claim and gives the rest back.
fn settle(fs: &Fs, owned: &Owned, random: &mut Random, mut claim: Claim) -> Option<Run> {
    let rest = claim.split_off(random.below(u64::from(claim.run().len) + 1) as u32);
    owned.lost(fs, rest.run());
    drop(rest);
    let run = claim.record(&mut fs.for_blocks(), None).unwrap();
    (run.len > 0).then_some(run)
}

fn free(fs: &Fs, owned: &Owned, run: Run, tid: u32) {
    owned.lost(fs, run);
    let release = Release::After(tid);
    fs.blocks.free(&mut fs.for_blocks(), run, release).unwrap();
}

fn inodes(fs: &Fs, owned: &Owned, random: &mut Random, mine: &mut Vec<(Ino, bool)>) {
    let directory = random.one_in(4);
    if random.one_in(3) && !mine.is_empty() {
        let (ino, was_dir) = mine.swap_remove(random.below(mine.len() as u64) as usize);
        assert!(owned.inodes.lock().remove(&ino.0));
        let mut handle = fs.handle(InodeAllocator::FREE_CREDITS);
        return fs.inodes.free(&mut handle, ino, was_dir).unwrap();
    }
    let kind = if directory {
        InodeKind::TopDirectory
    } else {
        InodeKind::File
    };
    let parent = mine.last().map_or(Ino::ROOT, |(ino, _)| *ino);
    let mut handle = fs.handle(InodeAllocator::ALLOCATE_CREDITS);
    let new = fs.inodes.allocate(&mut handle, parent, kind).unwrap();
    assert!(owned.inodes.lock().insert(new.ino.0), "{new:?} twice");
    mine.push((new.ino, directory));
}

fn work(fs: &Fs, owned: &Owned, thread: u64) {
    let mut random = Random::new(thread + 1);
    let (mut runs, mut claims, mut inos) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..2000 {
        match random.below(7) {
            0 => runs.extend(allocate(fs, owned, &mut random, thread)),
            1 => claims.extend(claim(fs, owned, &mut random, thread)),
            2 if !claims.is_empty() => {
                let at = random.below(claims.len() as u64) as usize;
                let claim = claims.swap_remove(at);
                runs.extend(settle(fs, owned, &mut random, claim));
            }
            3 if !runs.is_empty() => {
                let at = random.below(runs.len() as u64) as usize;
                free(fs, owned, runs.swap_remove(at), step / 100);
            }
            4 => fs.blocks.committed(step / 100, &mut |_| ()),
            _ => inodes(fs, owned, &mut random, &mut inos),
        }
    }
    runs.into_iter().for_each(|run| free(fs, owned, run, 1000));
    for claim in claims {
        owned.lost(fs, claim.run());
    }
    for (ino, was_dir) in inos {
        owned.inodes.lock().remove(&ino.0);
        fs.inodes.free(&mut fs.handle(2), ino, was_dir).unwrap();
    }
}

#[test]
fn four_threads_never_share_a_block_and_counts_stay_exact() {
    for variant in [0, 2, 5, 9] {
        let fs = Fs::make(VARIANTS[variant].builder());
        let owned = Owned::default();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (fs, owned) = (&fs, &owned);
                scope.spawn(move || work(fs, owned, thread));
            }
        });
        for tid in (0..20).chain([1000]) {
            fs.blocks.committed(tid, &mut |_| ());
        }
        let all = fs.blocks.free_clusters();
        assert_eq!(fs.blocks.available_clusters(Right::Map), all);
        assert_eq!(fs.blocks.pending_clusters(), 0);
        fs.finish();
    }
}

#[test]
fn four_threads_fill_it_to_the_last_cluster() {
    let fs = Fs::make(VARIANTS[0].builder());
    let owned = Owned::default();
    let runs: Vec<Run> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (fs, owned) = (&fs, &owned);
                scope.spawn(move || {
                    let mut random = Random::new(thread + 9);
                    let next = || allocate(fs, owned, &mut random, thread);
                    std::iter::from_fn(next).collect::<Vec<_>>()
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.flatten().collect()
    });
    assert_eq!(fs.blocks.free_clusters(), 0);
    runs.into_iter().for_each(|run| free(&fs, &owned, run, 1));
    fs.blocks.committed(1, &mut |_| ());
    fs.finish();
}

/// Claims and gives back single clusters; never has more than `most`, so there always is one.
fn take_turns(fs: &Fs, thread: u64, most: usize) {
    let mut random = Random::new(thread + 5);
    let mut mine = Vec::new();
    for _ in 0..20_000 {
        if mine.len() == most || (!mine.is_empty() && random.one_in(2)) {
            drop(mine.swap_remove(random.below(mine.len() as u64) as usize));
        } else {
            let goal = Goal::Near(Pblk(random.below(fs.sb.blocks_count())));
            let claim = fs.blocks.claim(&fs.handle(0), &request(goal, 1, 1));
            mine.push(claim.expect("there is one for each"));
        }
    }
}

#[test]
fn four_threads_with_just_enough_clusters_never_lack_one() {
    const EACH: usize = 3;
    let fs = Fs::make(VARIANTS[0].builder());
    let all = request(Goal::Near(Pblk(0)), 1, u32::MAX);
    let next = || unless_full(fs.blocks.claim(&fs.handle(0), &all));
    let mut others: Vec<Claim> = std::iter::from_fn(next).collect();
    // As many as all threads together have at most, far from each other.
    for claim in others.iter_mut().take(THREADS as usize * EACH) {
        drop(claim.split_off(claim.run().len - 1));
    }
    assert_eq!(
        fs.blocks.available_clusters(Right::Map),
        THREADS * EACH as u64
    );
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let fs = &fs;
            scope.spawn(move || take_turns(fs, thread, EACH));
        }
    });
    assert_eq!(
        fs.blocks.available_clusters(Right::Map),
        THREADS * EACH as u64
    );
    drop(others);
    assert_eq!(
        fs.blocks.available_clusters(Right::Map),
        fs.totals.free_clusters
    );
    assert!(fs.disk.is_unchanged());
    fs.finish();
}

/// Allocates near group 0 while that group is locked; for at most `wait` before it is unlocked.
fn allocate_beside_a_lock(fs: &Fs, wait: Duration) -> (bool, Run) {
    let near = request(Goal::Near(fs.sb.first_data_block()), 1, 1);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        let locked = fs.blocks.slot(Group(0)).blocks.lock();
        scope.spawn(move || {
            let run = fs.blocks.allocate(&mut fs.for_blocks(), &near);
            sender.send(run.unwrap()).unwrap();
        });
        let early = receiver.recv_timeout(wait);
        drop(locked);
        match early {
            Ok(run) => (true, run),
            Err(_) => (false, receiver.recv().unwrap()),
        }
    })
}

#[test]
fn locked_group_is_passed_over_while_another_serves() {
    let fs = Fs::make(VARIANTS[0].builder());
    let (early, run) = allocate_beside_a_lock(&fs, Duration::from_secs(20));
    assert!(early);
    assert_eq!(fs.sb.group_of_block(run.start), Some(Group(1)));
    free(&fs, &owning(&fs, run), run, 1);
    fs.blocks.committed(1, &mut |_| ());
    fs.finish();
}

#[test]
fn locked_group_is_waited_for_when_no_other_serves() {
    let fs = Fs::make(Image::builder().features("^has_journal"));
    assert_eq!(fs.sb.group_count(), 1);
    let (early, run) = allocate_beside_a_lock(&fs, Duration::from_millis(50));
    assert!(!early);
    free(&fs, &owning(&fs, run), run, 1);
    fs.blocks.committed(1, &mut |_| ());
    fs.finish();
}

fn owning(fs: &Fs, run: Run) -> Owned {
    Owned {
        clusters: Mutex::new(blocks_of(fs, run).collect()),
        ..Owned::default()
    }
}
