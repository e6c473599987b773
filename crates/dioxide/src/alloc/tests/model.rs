//! Random allocating, claiming and freeing against a set of free clusters.

use super::blocks::trimmed;
use super::support::{Dump, Fs, Random, VARIANTS};
use crate::Error;
use crate::alloc::{Claim, Goal, Kept, Release, Request, Right, Run, Stream};
use dioxide_format::types::Pblk;
use dioxide_testkit::{Image, e2fsck_clean, need_root};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

/// What should be the case.
struct Model {
    ratio: u64,
    /// First blocks of clusters that can be had.
    open: BTreeSet<u64>,
    /// Freed, by transaction.
    pending: HashMap<u32, BTreeSet<u64>>,
    /// Ours.
    used: Vec<Run>,
    /// Ours, and not recorded.
    claims: Vec<Claim>,
    /// Of claims that said who records them: by which transaction that was.
    recorded: HashMap<u64, u32>,
    /// Of those, what was freed by changes that are not done.
    undone: Vec<(Kept, Run)>,
    /// How many are.
    done: u64,
    tid: u32,
    /// Where each stream goes on; none without streams.
    last: Option<HashMap<Stream, u64>>,
}

impl Model {
    fn blocks(&self, run: Run) -> impl Iterator<Item = u64> + use<> {
        let ratio = self.ratio;
        (0..u64::from(run.len)).map(move |i| run.start.0 + i * ratio)
    }

    fn pending_count(&self) -> u64 {
        let pending = self.pending.values().map(|set| set.len() as u64);
        let undone = self.undone.iter().map(|(_, run)| u64::from(run.len));
        pending.chain(undone).sum()
    }

    /// The longest run inside one group.
    fn longest(&self, fs: &Fs) -> u32 {
        let (mut longest, mut len, mut next) = (0, 0, None);
        for &block in &self.open {
            let group_starts = |b| {
                let group = fs.sb.group_of_block(Pblk(b)).unwrap();
                fs.sb.group_first_block(group).0 == b
            };
            let joins = next == Some(block) && !group_starts(block);
            len = if joins { len + 1 } else { 1 };
            next = Some(block + self.ratio);
            longest = longest.max(len);
        }
        longest
    }

    fn run_from(&self, fs: &Fs, start: u64) -> u32 {
        let group = fs.sb.group_of_block(Pblk(start));
        let mut len = 0;
        let mut at = start;
        while self.open.contains(&at) && fs.sb.group_of_block(Pblk(at)) == group {
            len += 1;
            at += self.ratio;
        }
        len
    }

    fn request(&self, fs: &Fs, random: &mut Random) -> Request {
        let least = 1 + random.below(8) as u32;
        let most = least + random.below(600) as u32;
        let streams = self.last.as_ref().filter(|_| random.one_in(2));
        let stream = streams.map(|_| Stream(random.below(5)));
        let anywhere = random.below(fs.sb.blocks_count());
        let goal = match stream.and_then(|stream| streams?.get(&stream)) {
            Some(&next) if !random.one_in(8) => Goal::Append(Pblk(next)),
            _ if random.one_in(2) => Goal::Append(Pblk(anywhere)),
            _ => Goal::Near(Pblk(anywhere)),
        };
        Request {
            goal,
            len: least..=most,
            stream,
            right: if random.one_in(2) {
                Right::Map
            } else {
                Right::Everyone
            },
            below: None,
        }
    }

    fn claimed_count(&self) -> u64 {
        let lens = self.claims.iter().map(|claim| claim.run().len);
        lens.map(u64::from).sum()
    }

    fn allocate(&mut self, fs: &Fs, random: &mut Random) {
        let request = self.request(fs, random);
        let mut handle = fs.for_blocks();
        let available = fs.blocks.available_clusters(request.right);
        let result = fs.blocks.allocate(&mut handle, &request);
        assert!(result.is_ok() || handle.touched.is_empty());
        let run = result.as_ref().map(|run| *run);
        self.chosen(fs, &request, available, run);
        if let Ok(run) = result {
            for block in self.blocks(run) {
                self.recorded.remove(&block);
            }
            self.used.push(run);
        }
    }

    fn claim(&mut self, fs: &Fs, random: &mut Random) {
        let request = self.request(fs, random);
        let available = fs.blocks.available_clusters(request.right);
        let result = fs.blocks.claim(&fs.handle(0), &request);
        let run = result.as_ref().map(Claim::run);
        self.chosen(fs, &request, available, run);
        self.claims.extend(result.ok());
    }

    /// What was chosen fits the request and was to be had; or nothing was.
    fn chosen(&mut self, fs: &Fs, request: &Request, available: u64, run: Result<Run, &Error>) {
        let least = *request.len.start();
        match run {
            Ok(run) => {
                assert!(request.len.contains(&run.len), "{request:?} {run:?}");
                assert!(u64::from(run.len) <= available);
                self.check_goal(fs, request, available, run);
                for block in self.blocks(run) {
                    assert!(self.open.remove(&block), "{block} was not free: {run:?}");
                }
                if let (Some(stream), Some(last)) = (request.stream, &mut self.last) {
                    last.insert(stream, run.start.0 + u64::from(run.len) * self.ratio);
                }
            }
            Err(Error::NoSpace(_)) => {
                let fits = self.longest(fs) >= least && available >= u64::from(least);
                assert!(!fits, "{request:?} of {available}");
            }
            Err(error) => panic!("{request:?}: {error}"),
        }
    }

    /// Records a part of a claim or gives it back; the rest stays claimed.
    fn settle(&mut self, fs: &Fs, random: &mut Random) {
        if self.claims.is_empty() {
            return;
        }
        let at = random.below(self.claims.len() as u64) as usize;
        let mut part = self.claims.swap_remove(at);
        let again = fs
            .blocks
            .free(&mut fs.for_blocks(), part.run(), Release::Now);
        assert!(matches!(again, Err(Error::Corrupt { .. })), "{again:?}");
        let len = part.run().len;
        let rest = part.split_off(1 + random.below(len.into()) as u32);
        if rest.run().len > 0 {
            self.claims.push(rest);
        }
        if random.one_in(3) {
            self.open.extend(self.blocks(part.run()));
        } else {
            let tid = random.one_in(2).then_some(self.tid);
            let run = part.record(&mut fs.for_blocks(), tid).unwrap();
            for block in self.blocks(run) {
                match tid {
                    Some(tid) => self.recorded.insert(block, tid),
                    None => self.recorded.remove(&block),
                };
            }
            self.used.push(run);
        }
    }

    /// Shows only what can be had.
    fn trim(&self, fs: &Fs) {
        let seen = trimmed(fs, 0..u64::MAX, 1);
        assert!(seen.is_subset(&self.open), "trimmed what is not free");
    }

    /// Without streams there are no windows, and a free goal must be met.
    fn check_goal(&self, fs: &Fs, request: &Request, available: u64, run: Run) {
        let Goal::Append(goal) = request.goal else {
            return;
        };
        let goal = goal.0 / self.ratio * self.ratio;
        let there = self.run_from(fs, goal).min(*request.len.end());
        let there = there.min(u32::try_from(available).unwrap_or(u32::MAX));
        if self.last.is_none() && there >= *request.len.start() {
            assert_eq!(run.start, Pblk(goal), "{request:?}");
            assert!(
                run.len == there || self.open.len() < 2000,
                "{request:?} {run:?}"
            );
        }
    }

    fn free(&mut self, fs: &Fs, random: &mut Random) {
        if self.used.is_empty() {
            return;
        }
        let some = random.below(self.used.len() as u64) as usize;
        let is_new = |run: &Run| self.recorded.get(&run.start.0) == Some(&self.tid);
        let new = self.used.iter().rposition(is_new);
        let at = new.filter(|_| random.one_in(2)).unwrap_or(some);
        let run = self.used.swap_remove(at);
        let (head, tail) = self.split(run, random);
        self.used.extend(tail);
        let now = random.one_in(3);
        let release = if now {
            Release::Now
        } else {
            Release::After(self.tid)
        };
        let kept = fs.blocks.free(&mut fs.for_blocks(), head, release).unwrap();
        let blocks = self.blocks(head);
        if kept.waits {
            assert!(!now);
            self.pending.entry(self.tid).or_default().extend(blocks);
        } else if now {
            self.open.extend(blocks);
        } else {
            let own = |block| self.recorded.get(&block) == Some(&self.tid);
            assert!(self.blocks(head).all(own), "{head:?} is not new");
            self.undone.push((kept, head));
        }
        let again = fs.blocks.free(&mut fs.for_blocks(), head, release);
        assert!(matches!(again, Err(Error::Corrupt { .. })), "{again:?}");
    }

    /// A first part to free, and what is left.
    fn split(&self, run: Run, random: &mut Random) -> (Run, Option<Run>) {
        let len = 1 + random.below(run.len.into()) as u32;
        let rest = Run {
            start: Pblk(run.start.0 + u64::from(len) * self.ratio),
            len: run.len - len,
        };
        (Run { len, ..run }, (rest.len > 0).then_some(rest))
    }

    fn done(&mut self, fs: &Fs) {
        if let Some((kept, run)) = self.undone.pop() {
            fs.blocks.let_go_recorded(kept);
            self.open.extend(self.blocks(run));
            self.done += 1;
        }
    }

    fn commit(&mut self, fs: &Fs, random: &mut Random) {
        let tid = self.tid - (random.below(2) as u32).min(self.tid);
        let mut seen = BTreeSet::new();
        fs.blocks
            .committed(tid, &mut |run| seen.extend(self.blocks(run)));
        let freed = self.pending.remove(&tid).unwrap_or_default();
        assert_eq!(seen, freed);
        self.open.extend(freed);
        self.tid += 1;
    }

    fn check_counts(&self, fs: &Fs) {
        let open = self.open.len() as u64;
        assert_eq!(fs.blocks.available_clusters(Right::Map), open);
        assert_eq!(fs.blocks.pending_clusters(), self.pending_count());
        let free = open + self.pending_count() + self.claimed_count();
        assert_eq!(fs.blocks.free_clusters(), free);
    }

    /// What is on the image agrees with the model, by dumpe2fs.
    fn check_image(&self, fs: &Fs) {
        fs.write_back();
        let dump = Dump::of(&fs.image, self.ratio);
        let mut free = self.open.clone();
        free.extend(self.pending.values().flatten());
        free.extend(self.undone.iter().flat_map(|(_, run)| self.blocks(*run)));
        for claim in &self.claims {
            free.extend(self.blocks(claim.run()));
        }
        assert!(dump.blocks == free, "dumpe2fs finds other blocks free");
        let total: u64 = dump.counts.iter().map(|counts| counts[0]).sum();
        assert_eq!(total, free.len() as u64);
    }
}

fn run(variant: usize, seed: u64, steps: u64, streams: bool) {
    let variant = &VARIANTS[variant];
    eprintln!("{}, seed {seed}", variant.name);
    change(variant.builder().build(), seed, steps, streams);
}

/// Allocates, claims and frees, and frees all again.
fn change(image: Image, seed: u64, steps: u64, streams: bool) -> Image {
    let fs = Fs::open(image);
    let ratio = u64::from(fs.sb.cluster_ratio());
    let mut model = Model {
        ratio,
        open: Dump::of(&fs.image, ratio).blocks,
        pending: HashMap::new(),
        used: Vec::new(),
        claims: Vec::new(),
        recorded: HashMap::new(),
        undone: Vec::new(),
        done: 0,
        tid: 1,
        last: streams.then(HashMap::new),
    };
    let mut random = Random::new(seed);
    model.check_counts(&fs);
    for step in 0..steps {
        // First more is allocated than freed, until nothing is left.
        let fill = step * 2 < steps;
        match random.below(16) {
            0 if random.one_in(4) => model.trim(&fs),
            0 => model.commit(&fs, &mut random),
            1 | 2 => model.settle(&fs, &mut random),
            3 if random.one_in(2) => model.done(&fs),
            n if (n < 13) == fill && n % 2 == 0 => model.allocate(&fs, &mut random),
            n if (n < 13) == fill => model.claim(&fs, &mut random),
            _ => model.free(&fs, &mut random),
        }
        model.check_counts(&fs);
    }
    model.check_image(&fs);
    assert!(model.done > 0, "nothing was had again by the transaction");
    model.claims.clear();
    for run in std::mem::take(&mut model.used) {
        fs.blocks
            .free(&mut fs.for_blocks(), run, Release::Now)
            .unwrap();
    }
    fs.finish()
}

#[test]
fn random_changes_every_layout_agrees_with_the_model_and_e2fsck() {
    for variant in 0..VARIANTS.len() {
        run(variant, 7 + variant as u64, 800, variant % 2 == 0);
    }
}

#[test]
fn random_changes_many_seeds_agree_with_the_model_and_e2fsck() {
    for seed in 100..112 {
        run((seed % 3) as usize * 2, seed, 400, seed % 2 == 0);
    }
}

/// Files of several sizes, and some of them deleted.
fn use_it(root: &Path, prefix: &str) {
    for i in 0..150usize {
        let dir = root.join(format!("{prefix}{}", i % 7));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(i.to_string()), vec![1; i * 1000]).unwrap();
    }
    fs::remove_dir_all(root.join(format!("{prefix}3"))).unwrap();
}

#[test]
fn random_changes_between_two_mounts_by_the_kernel_disturb_neither() {
    need_root!();
    for (seed, variant) in VARIANTS.iter().enumerate() {
        eprintln!("{}, seed {seed}", variant.name);
        let image = variant.builder().build();
        image.populate_with_kernel(|root| use_it(root, "before"));
        let image = change(image, seed as u64 + 50, 300, true);
        image.populate_with_kernel(|root| use_it(root, "after"));
        e2fsck_clean(image.path());
    }
}
