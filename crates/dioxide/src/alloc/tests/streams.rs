//! Files that grow together.

use super::blocks::request;
use super::support::{Fs, VARIANTS};
use crate::alloc::pool::GroupBlocks;
use crate::alloc::{Goal, Release, Request, Run, Stream};
use dioxide_format::bitmap;
use dioxide_format::types::{Group, Pblk};

/// Appends to a file, and the pieces that it has.
struct Grower {
    stream: Stream,
    pieces: Vec<Run>,
}

impl Grower {
    fn new(stream: u64) -> Grower {
        Grower {
            stream: Stream(stream),
            pieces: Vec::new(),
        }
    }

    fn goal(&self, ratio: u64) -> Goal {
        match self.pieces.last() {
            Some(run) => Goal::Append(Pblk(run.start.0 + u64::from(run.len) * ratio)),
            None => Goal::Near(Pblk(0)),
        }
    }

    fn append(&mut self, fs: &Fs, len: u32) {
        let ratio = u64::from(fs.sb.cluster_ratio());
        let goal = self.goal(ratio);
        let request = Request {
            stream: Some(self.stream),
            ..request(goal, 1, len)
        };
        let run = fs.blocks.allocate(&mut fs.for_blocks(), &request).unwrap();
        match self.pieces.last_mut() {
            Some(last) if goal == Goal::Append(run.start) => last.len += run.len,
            _ => self.pieces.push(run),
        }
    }

    fn average(&self) -> u32 {
        self.pieces.iter().map(|run| run.len).sum::<u32>() / self.pieces.len() as u32
    }
}

fn give_back(fs: Fs, files: Vec<Grower>) {
    for file in files {
        fs.blocks.close_stream(file.stream);
        for run in file.pieces {
            fs.blocks
                .free(&mut fs.handle(20), run, Release::Now)
                .unwrap();
        }
    }
    fs.finish();
}

#[test]
fn appends_of_one_cluster_two_streams_get_long_runs() {
    let fs = Fs::make(VARIANTS[1].builder());
    let mut files = vec![Grower::new(1), Grower::new(2)];
    for _ in 0..6000 {
        files.iter_mut().for_each(|file| file.append(&fs, 1));
    }
    for file in &files {
        let (average, pieces) = (file.average(), file.pieces.len());
        eprintln!("average run of 6000 clusters: {average}, in {pieces}");
        assert!(average >= 500, "average run: {average}");
    }
    give_back(fs, files);
}

#[test]
fn appends_sixteen_streams_get_long_runs() {
    let fs = Fs::make(VARIANTS[1].builder());
    let mut files: Vec<Grower> = (0..16).map(Grower::new).collect();
    for _ in 0..1000 {
        files.iter_mut().for_each(|file| file.append(&fs, 1));
    }
    for file in &files {
        assert!(file.average() >= 100, "average run: {}", file.average());
    }
    give_back(fs, files);
}

#[test]
fn appends_one_stream_lie_in_one_run_up_to_the_end_of_its_group() {
    let fs = Fs::make(VARIANTS[1].builder());
    let mut files = vec![Grower::new(1)];
    for _ in 0..3000 {
        files[0].append(&fs, 3);
    }
    assert_eq!(files[0].pieces.len(), 1, "{:?}", files[0].pieces);
    give_back(fs, files);
}

#[test]
fn windows_when_nothing_else_is_free_are_taken() {
    let fs = Fs::make(VARIANTS[0].builder());
    let mut files: Vec<Grower> = (0..50).map(Grower::new).collect();
    for _ in 0..40 {
        files.iter_mut().for_each(|file| file.append(&fs, 1));
    }
    let mut rest = Vec::new();
    let most = request(Goal::Near(Pblk(0)), 1, u32::MAX);
    while let Ok(run) = fs.blocks.allocate(&mut fs.for_blocks(), &most) {
        rest.push(run);
    }
    assert_eq!(fs.blocks.free_clusters(), 0);
    for run in rest {
        fs.blocks
            .free(&mut fs.for_blocks(), run, Release::Now)
            .unwrap();
    }
    give_back(fs, files);
}

#[test]
fn close_stream_opens_its_window_to_others() {
    let fs = Fs::make(VARIANTS[1].builder());
    let mut files = vec![Grower::new(1)];
    files[0].append(&fs, 1);
    let Goal::Append(next) = files[0].goal(1) else {
        unreachable!("it has a piece");
    };
    let there = request(Goal::Append(next), 1, 1);
    let other = fs.blocks.allocate(&mut fs.for_blocks(), &there).unwrap();
    assert_ne!(other.start, next);
    fs.blocks.close_stream(Stream(1));
    let run = fs.blocks.allocate(&mut fs.for_blocks(), &there).unwrap();
    assert_eq!(run.start, next);
    for run in [other, run] {
        fs.blocks
            .free(&mut fs.for_blocks(), run, Release::Now)
            .unwrap();
    }
    give_back(fs, files);
}

#[test]
fn stream_that_moves_on_leaves_its_window_to_others() {
    let fs = Fs::make(VARIANTS[0].builder());
    let near = |group| Request {
        stream: Some(Stream(1)),
        ..request(Goal::Near(fs.sb.group_first_block(Group(group))), 4, 4)
    };
    let first = fs.blocks.allocate(&mut fs.for_blocks(), &near(6)).unwrap();
    let next = Pblk(first.start.0 + 4);
    let there = request(Goal::Append(next), 1, 1);
    let aside = fs.blocks.allocate(&mut fs.for_blocks(), &there).unwrap();
    assert_ne!(aside.start, next);
    let second = fs.blocks.allocate(&mut fs.for_blocks(), &near(10)).unwrap();
    let now = fs.blocks.allocate(&mut fs.for_blocks(), &there).unwrap();
    assert_eq!(now.start, next);
    for run in [first, aside, second, now] {
        fs.blocks
            .free(&mut fs.for_blocks(), run, Release::Now)
            .unwrap();
    }
    fs.finish();
}

#[test]
fn windows_keep_only_what_was_not_taken() {
    let mut state = GroupBlocks::default();
    let bits = |state: &GroupBlocks| {
        let open = state.open_to(vec![0; 4].into(), None);
        (0..32)
            .filter(|&bit| bitmap::get(&open, bit))
            .collect::<Vec<_>>()
    };
    state.set_window(Stream(1), 4..12);
    state.set_window(Stream(2), 20..24);
    assert_eq!(bits(&state), [4, 5, 6, 7, 8, 9, 10, 11, 20, 21, 22, 23]);
    state.cut_windows(&(2..7));
    state.cut_windows(&(10..16));
    assert_eq!(bits(&state), [7, 8, 9, 20, 21, 22, 23]);
    assert_eq!(state.window_at(Stream(1), 7), 3);
    assert_eq!(state.window_at(Stream(1), 8), 0);
    state.cut_windows(&(0..32));
    assert!(!state.has_others(None));
}
