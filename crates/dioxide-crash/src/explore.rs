//! The crash states of a recorded workload, recovered and checked.
//!
//! Each state is opened on pages shared with the image before the run, all files are read, what was promised is
//! checked, the file system is unmounted, and the image is checked for consistency. Then, by samples: it is opened again and must
//! read the same; its recovery is recorded and cut as the workload was, and what a second recovery makes of that is checked;
//! and somebody else recovers the same crash, whose files are checked as well. All recoveries of a crash must show the same.

use crate::journal::{self, Metadata};
use crate::names;
use crate::report::{Bad, Coverage, Report};
use crate::run::{Promises, Recorded, look};
use crate::target::{Seen, Sight, Stamps, Target};
use dioxide::block::Device;
use dioxide::block::record::states::{
    CowDevice, Kept, Media, Options, Part, Snapshot, State, StateError, States,
};
use dioxide::block::record::{Action, Entry, Log, RecordDevice};
use dioxide::format::journal::{BlockHeader, BlockType};
use dioxide::format::types::Ino;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Judges an image that was unmounted.
pub trait Check: Sync {
    /// Checks it.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    fn check(&self, image: &Snapshot) -> Result<(), String>;
}

/// Somebody else who recovers a crashed file system: e2fsck, or the kernel.
pub trait Recover: Sync {
    /// In a word, for the report.
    fn name(&self) -> &str;

    /// The image afterwards, unmounted. `None`: it cannot tell, whoever wrote such an image.
    ///
    /// # Errors
    /// It could not be recovered, or was found damaged; in words.
    fn recover(&self, image: &Snapshot) -> Result<Option<Snapshot>, String>;
}

/// Another recovery, for every so many states.
#[derive(Clone, Copy)]
pub struct Sample<'a> {
    /// Who.
    pub recover: &'a dyn Recover,
    /// How often; not 0.
    pub every: u64,
}

/// What is checked besides promises.
#[derive(Clone, Default)]
pub struct Checks<'a> {
    /// Judges recovered images, one in [`Limits::check_every`].
    pub consistent: Option<&'a dyn Check>,
    /// Other recoveries.
    pub others: Vec<Sample<'a>>,
}

/// How much is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Which states, where not all are looked at.
    pub seed: u64,
    /// States of one workload; 0 for all. Where it has more, those of a device that keeps the order come first: at each moment
    /// nothing of what is not certain, and all of it. Up to three quarters are theirs; of them, if they are more, and of the others
    /// some are taken at equal distances.
    pub states: u64,
    /// See [`Options::exhaustive`].
    pub exhaustive: u32,
    /// See [`Options::samples`].
    pub samples: u32,
    /// See [`Options::torn`].
    pub torn: u32,
    /// One state in so many is checked for consistency; 0 for none.
    pub check_every: u64,
    /// One state in so many is opened again; 0 for none.
    pub reopen_every: u64,
    /// One state in so many has its recovery cut; 0 for none.
    pub interrupt_every: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            seed: 1,
            states: 400,
            exhaustive: 6,
            samples: 8,
            torn: 4,
            check_every: 1,
            reopen_every: 20,
            interrupt_every: 100,
        }
    }
}

/// Whether to look at no further state. Once it is so, it stays so.
pub type Stop<'a> = &'a (dyn Fn() -> bool + Sync);

/// Explores recorded workloads.
#[derive(Clone)]
pub struct Explorer<'a> {
    /// What recovers.
    pub target: &'a dyn Target,
    /// What is checked besides.
    pub checks: Checks<'a>,
    /// How much is looked at.
    pub limits: Limits,
    /// Asked before each state, and whatever else a state has done with it.
    pub stop: Stop<'a>,
}

/// A crash, with what had been promised.
struct Crash<'a> {
    recorded: &'a Recorded,
    promises: &'a Promises,
    device: CowDevice,
    /// Whether a commit block is there in part. Linux takes its transaction for whole where the record in it is; e2fsck does not,
    /// nor did Linux always.
    is_commit_torn: bool,
}

impl Crash<'_> {
    fn check(&self, seen: &Sight) -> Result<(), String> {
        self.recorded.check(self.promises, seen)
    }
}

impl Explorer<'_> {
    /// Explores a workload; `name` is what it is called in the report. States that it was stopped before count as left out.
    pub fn explore(&self, recorded: &Recorded, name: &str, report: &mut Report) {
        report.workloads += 1;
        report.ops += recorded.ops();
        report.count_unsupported(&recorded.unsupported);
        report.coverage.add(&coverage(recorded));
        let mut media = media(recorded);
        let mut known = HashSet::new();
        let mut promised = (u64::MAX, None);
        for (state, is_in_order) in self.chosen(recorded, report) {
            if (self.stop)() {
                break;
            }
            report.left_out -= 1;
            report.left_out_in_order -= u64::from(is_in_order);
            let acknowledged = acknowledged(recorded, state.at);
            if promised.0 != state.at || promised.1.is_none() {
                promised = (state.at, Some(recorded.promises(state.at)));
            }
            let crashed = media.crash(&state);
            let (device, contents) = crashed.expect("listed from the same log");
            if !known.insert((contents, acknowledged)) {
                report.duplicates += 1;
                continue;
            }
            report.states += 1;
            let crash = Crash {
                recorded,
                promises: promised.1.as_ref().expect("made above"),
                device,
                is_commit_torn: is_commit_torn(recorded, &state),
            };
            let before = crash.device.snapshot();
            if let Err(what) = self.judge(&crash, report) {
                report.first_bad.get_or_insert(before);
                report.complain(bad(recorded, format!("{name}/{state}"), what));
            }
        }
    }

    /// Checks one state with everything there is; what is wrong with it.
    ///
    /// # Errors
    /// The state is none of this workload.
    pub fn replay(
        &self,
        recorded: &Recorded,
        state: &State,
    ) -> Result<Result<(), String>, StateError> {
        let (device, _) = media(recorded).crash(state)?;
        let promises = recorded.promises(state.at);
        let crash = Crash {
            recorded,
            promises: &promises,
            device,
            is_commit_torn: is_commit_torn(recorded, state),
        };
        // Every sample falls due at 0.
        Ok(self.judge(&crash, &mut Report::default()))
    }

    /// The states to look at, and whether they are in order. In the report, all that there are are left out.
    fn chosen<'r>(
        &self,
        recorded: &'r Recorded,
        report: &mut Report,
    ) -> impl Iterator<Item = (State, bool)> + use<'r> {
        let limits = &self.limits;
        let options = Options {
            seed: limits.seed,
            exhaustive: limits.exhaustive,
            samples: limits.samples,
            torn: limits.torn,
            marks: acknowledgements(recorded).collect(),
            whole: recorded.whole.clone(),
        };
        let (mut in_order, mut others) = (0, 0);
        for (_, is_in_order) in listed(&recorded.log, options.clone()) {
            *if is_in_order {
                &mut in_order
            } else {
                &mut others
            } += 1;
        }
        let [of_order, of_others] = shares(limits.states, in_order, others);
        report.left_out += in_order + others;
        report.left_out_in_order += in_order;
        let mut in_order = Even::new(of_order, in_order, limits.seed);
        let mut others = Even::new(of_others, others, limits.seed);
        let all = listed(&recorded.log, options);
        all.filter(move |(_, is_in_order)| match is_in_order {
            true => in_order.takes(),
            false => others.takes(),
        })
    }

    fn judge(&self, crash: &Crash<'_>, report: &mut Report) -> Result<(), String> {
        let turn = report.states;
        let before = crash.device.snapshot();
        let seen = self.recover(crash, Arc::new(crash.device.clone()))?;
        crash.check(&seen)?;
        if is_due(self.limits.reopen_every, turn) {
            report.reopened += 1;
            self.reopen(crash, &seen)?;
        }
        report.count_shape(shape(&seen));
        self.consistent(&crash.device, turn, report)?;
        if is_due(self.limits.interrupt_every, turn) {
            self.interrupt(crash, &before, &seen, turn, report)?;
        }
        self.others(crash, &before, &seen, turn, report)
    }

    /// Opens, reads and unmounts. A panic is as bad as an error.
    fn recover(&self, crash: &Crash<'_>, device: Arc<dyn Device>) -> Result<Sight, String> {
        let recovered = catch_unwind(AssertUnwindSafe(|| {
            let mut session = self.target.open(device).map_err(|e| format!("open: {e}"))?;
            let seen = look(&mut *session, &crash.recorded.known)?;
            session.close().map_err(|e| format!("unmount: {e}"))?;
            Ok(seen)
        }));
        recovered.unwrap_or_else(|panic| Err(format!("panic: {}", message(&*panic))))
    }

    /// A recovered file system that is opened again reads the same.
    fn reopen(&self, crash: &Crash<'_>, seen: &Sight) -> Result<(), String> {
        let again = self.recover(crash, Arc::new(crash.device.clone()))?;
        match again == *seen {
            true => Ok(()),
            false => Err("opened once more, files differ from what the recovery showed".into()),
        }
    }

    fn consistent(&self, device: &CowDevice, turn: u64, report: &mut Report) -> Result<(), String> {
        match self.checks.consistent {
            Some(check) if is_due(self.limits.check_every, turn) => {
                report.consistent += 1;
                check.check(&device.snapshot())
            }
            _ => Ok(()),
        }
    }

    /// Cuts the recovery, at a few of its states, and recovers from that.
    fn interrupt(
        &self,
        crash: &Crash<'_>,
        before: &Snapshot,
        seen: &Sight,
        turn: u64,
        report: &mut Report,
    ) -> Result<(), String> {
        let cache = crash.recorded.cache;
        let record = RecordDevice::new(Arc::new(CowDevice::new(before, cache)));
        self.recover(crash, Arc::new(record.clone()))?;
        report.interrupted += 1;
        let log = record.take_log();
        let options = Options {
            seed: self.limits.seed,
            exhaustive: 3,
            samples: 2,
            torn: 1,
            marks: Vec::new(),
            whole: crash.recorded.whole.clone(),
        };
        let mut media = Media::new(before.clone(), &log, cache);
        let nothing = State {
            at: 0,
            parts: Vec::new(),
        };
        // What was recovered already.
        let (_, contents) = media.crash(&nothing).expect("of any log");
        let mut known = HashSet::from([contents]);
        for state in cuts(&log, options).take_while(|_| !(self.stop)()) {
            let (device, contents) = media.crash(&state).expect("listed from the same log");
            if !known.insert(contents) {
                continue;
            }
            report.cuts += 1;
            let again = self.again(crash, device, seen, turn, report);
            again.map_err(|what| format!("its recovery cut at {state}: {what}"))?;
        }
        Ok(())
    }

    fn others(
        &self,
        crash: &Crash<'_>,
        before: &Snapshot,
        seen: &Sight,
        turn: u64,
        report: &mut Report,
    ) -> Result<(), String> {
        // Their clock is another one.
        let promises = crash.promises.without_stamps();
        let crash = &Crash {
            promises: &promises,
            device: crash.device.clone(),
            ..*crash
        };
        let due = self.checks.others.iter().filter(|s| is_due(s.every, turn));
        for sample in due.take_while(|_| !(self.stop)()) {
            let name = sample.recover.name();
            let by = |what| format!("recovered by {name}: {what}");
            let recovered = sample.recover.recover(before);
            let Some(image) = recovered.map_err(by)? else {
                continue;
            };
            report.count_other(name, 1);
            let device = CowDevice::new(&image, crash.recorded.cache);
            self.again(crash, device, seen, turn, report).map_err(by)?;
        }
        Ok(())
    }

    /// Recovers what an earlier recovery left, which keeps what the crash had to keep, and looks as `first`.
    fn again(
        &self,
        crash: &Crash<'_>,
        device: CowDevice,
        first: &Sight,
        turn: u64,
        report: &mut Report,
    ) -> Result<(), String> {
        let seen = self.recover(crash, Arc::new(device.clone()))?;
        crash.check(&seen)?;
        self.consistent(&device, turn, report)?;
        match crash.is_commit_torn {
            true => Ok(()),
            false => alike(first, &seen),
        }
    }
}

/// A recovery is cut at no more states.
const CUTS: u64 = 16;
/// Of them, those that are the first of a phase, which hardly ever have a part of what was under way.
const CUTS_OF_FIRSTS: u64 = 12;

/// The states at which a recovery is cut: the first after each flush and each forced write, so that of few phases none is left
/// out; of the rest as [`Limits::states`] says.
fn cuts(log: &Log, options: Options) -> impl Iterator<Item = State> {
    let seed = options.seed;
    let mut counts = [0; 3];
    ranked(log, options.clone()).for_each(|(_, rank)| counts[rank] += 1);
    let [firsts, in_order, others] = counts;
    let of_firsts = firsts.min(CUTS_OF_FIRSTS);
    let [of_order, of_others] = shares(CUTS - of_firsts, in_order, others);
    let mut even = [
        Even::new(of_firsts, firsts, seed),
        Even::new(of_order, in_order, seed),
        Even::new(of_others, others, seed),
    ];
    let chosen = ranked(log, options).filter(move |&(_, rank)| even[rank].takes());
    chosen.map(|(state, _)| state)
}

/// All states: 0 is the first after something was made durable, 1 another in order, 2 any other.
fn ranked(log: &Log, options: Options) -> impl Iterator<Item = (State, usize)> {
    let (ends, mut last) = (durable_ends(log), None);
    listed(log, options).map(move |(state, is_in_order)| {
        let phase = ends.partition_point(|&end| end < state.at);
        let is_first = last.replace(phase) != Some(phase);
        let rank = match (is_first, is_in_order) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        };
        (state, rank)
    })
}

/// When flushes and forced writes completed.
fn durable_ends(log: &Log) -> Vec<u64> {
    let end = |entry: &Entry| match entry.action {
        Action::Flush | Action::Write { fua: true, .. } => entry.completed,
        _ => None,
    };
    let mut ends: Vec<u64> = log.entries().iter().filter_map(end).collect();
    ends.sort_unstable();
    ends
}

/// All states, with whether a device that keeps the order could have left them.
fn listed(log: &Log, options: Options) -> impl Iterator<Item = (State, bool)> {
    let mut states = States::new(log, options);
    std::iter::from_fn(move || {
        let state = states.next()?;
        let is_in_order = states.is_in_order(&state);
        Some((state, is_in_order))
    })
}

/// How many are taken of the states in order, and of the others: see [`Limits::states`].
fn shares(limit: u64, in_order: u64, others: u64) -> [u64; 2] {
    if limit == 0 || in_order + others <= limit {
        return [in_order, others];
    }
    let of_order = in_order.min((limit - limit / 4).max(limit.saturating_sub(others)));
    [of_order, limit - of_order]
}

/// Takes so many of so many, at equal distances.
struct Even {
    taken: u64,
    of: u64,
    due: u64,
}

impl Even {
    /// `seed`: which.
    fn new(taken: u64, of: u64, seed: u64) -> Even {
        let due = seed % of.max(1);
        Even { taken, of, due }
    }

    /// Whether it takes the next one.
    fn takes(&mut self) -> bool {
        self.due += self.taken;
        let takes = self.due >= self.of;
        if takes {
            self.due -= self.of;
        }
        takes
    }
}

/// The image of a state.
///
/// # Errors
/// The state is none of this workload.
pub fn image_of(recorded: &Recorded, state: &State) -> Result<Snapshot, StateError> {
    Ok(media(recorded).crash(state)?.0.snapshot())
}

fn media(recorded: &Recorded) -> Media<'_> {
    Media::new(recorded.base.clone(), &recorded.log, recorded.cache)
}

/// How many operations had returned.
fn acknowledged(recorded: &Recorded, at: u64) -> usize {
    acknowledgements(recorded).filter(|&op| op <= at).count()
}

/// When operations returned.
fn acknowledgements(recorded: &Recorded) -> impl Iterator<Item = u64> {
    let lanes = recorded.lanes.iter();
    lanes.flat_map(|lane| lane.times.iter().map(|op| op.acknowledged))
}

fn is_due(every: u64, turn: u64) -> bool {
    every != 0 && turn.is_multiple_of(every)
}

fn shape(sight: &Sight) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&sight.tree, sight.free).hash(&mut hasher);
    for seen in &sight.files {
        (seen.data.len(), seen.mode, seen.shape).hash(&mut hasher);
    }
    hasher.finish()
}

/// Whether part of a commit block is there.
fn is_commit_torn(recorded: &Recorded, state: &State) -> bool {
    let is_commit = |entry: &Entry| match &entry.action {
        Action::Write { bytes, .. } => {
            matches!(BlockHeader::of(bytes), Some((BlockType::Commit, _)))
        }
        _ => false,
    };
    let is_torn = |part: &Part| part.kept != Kept::All;
    let mut parts = state.parts.iter();
    parts.any(|part| is_torn(part) && is_commit(&recorded.log.entries()[part.entry]))
}

/// Whether a recovery shows what another shows of the same crash. Not compared is when files were changed, since a truncate that
/// a recovery finishes may change that, and where they lie: e2fsck makes extent trees narrower.
fn alike(first: &Sight, seen: &Sight) -> Result<(), String> {
    let shown = |seen: &Seen| Seen {
        stamps: Stamps::default(),
        shape: 0,
        ..seen.clone()
    };
    let mut files = first.files.iter().zip(&seen.files);
    if let Some(file) = files.position(|(first, seen)| shown(first) != shown(seen)) {
        return Err(format!(
            "f{file} is not as the first recovery showed: {}, not {}",
            in_words(&seen.files[file]),
            in_words(&first.files[file])
        ));
    }
    match first.tree == seen.tree {
        true => Ok(()),
        false => Err(format!(
            "names are not as the first recovery showed: {}",
            names::difference(&seen.tree, &first.tree)
        )),
    }
}

fn in_words(seen: &Seen) -> String {
    let Seen {
        is_gone,
        data,
        mode,
        atime,
        ..
    } = seen;
    let mut hasher = DefaultHasher::new();
    data.hash(&mut hasher);
    let (len, hash) = (data.len(), hasher.finish());
    format!("gone {is_gone}, {len} bytes (hash {hash:x}), mode {mode:o}, atime {atime}")
}

fn bad(recorded: &Recorded, replay: String, what: String) -> Bad {
    Bad {
        replay,
        ops: recorded.words(),
        what,
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without words")
}

/// What a log shows of the journal's work.
fn coverage(recorded: &Recorded) -> Coverage {
    let mut coverage = Coverage::default();
    let mut last_descriptor = 0;
    for entry in recorded.log.entries() {
        match &entry.action {
            Action::Flush => coverage.flushes += 1,
            Action::Write {
                offset, bytes, fua, ..
            } => {
                coverage.forced += u64::from(*fua);
                for (index, block) in bytes.chunks(1024).enumerate() {
                    let at = offset + index as u64 * 1024;
                    count_journal_block(&mut coverage, &mut last_descriptor, at, block);
                }
            }
            _ => {}
        }
    }
    if let Some(metadata) = Metadata::of(&recorded.base) {
        count_changes(&mut coverage, metadata, recorded.log.entries());
    }
    coverage
}

/// Counts what the blocks in the log show.
fn count_changes(coverage: &mut Coverage, mut metadata: Metadata, entries: &[Entry]) {
    for transaction in journal::transactions(entries) {
        let copies = transaction.copies();
        let inodes = copies.flat_map(|copy| metadata.inodes_in(copy.tag.block));
        let inodes: Vec<Ino> = inodes.map(|(ino, _)| ino).collect();
        let shapes = |metadata: &Metadata| -> Vec<InodeShape> {
            let shape = |&ino: &Ino| InodeShape::of(metadata, ino);
            inodes.iter().map(shape).collect()
        };
        let (orphans, before) = (metadata.orphans(), shapes(&metadata));
        metadata.commit(entries, &transaction);
        let escaped = transaction.copies().filter(|copy| copy.tag.is_escaped());
        for (old, new) in before.iter().zip(shapes(&metadata)) {
            old.count(&new, coverage);
        }
        let has_names = |ino| metadata.inode(ino).is_some_and(|it| it.links_count() > 0);
        let made = metadata
            .orphans()
            .into_iter()
            .filter(|ino| !orphans.contains(ino));
        coverage.escaped += escaped.count() as u64;
        coverage.orphan_truncates += made.filter(|&ino| has_names(ino)).count() as u64;
    }
}

/// How an inode's blocks are found; none where it is no such inode.
struct InodeShape {
    depth: Option<u16>,
    is_inline_dir: Option<bool>,
    index: Option<(u8, usize)>,
}

impl InodeShape {
    fn of(metadata: &Metadata, ino: Ino) -> InodeShape {
        InodeShape {
            depth: metadata.depth(ino),
            is_inline_dir: metadata.is_inline_dir(ino),
            index: metadata.index(ino),
        }
    }

    fn count(&self, new: &InodeShape, coverage: &mut Coverage) {
        if let (Some(old), Some(new)) = (self.depth, new.depth) {
            coverage.depth_changes += u64::from(old != new);
        }
        if let (Some(true), Some(false)) = (self.is_inline_dir, new.is_inline_dir) {
            coverage.inline_dirs_grown += 1;
        }
        if let (Some(old), Some(new)) = (self.index, new.index) {
            coverage.index_levels += u64::from(new.0 > old.0);
            coverage.index_splits += u64::from(new.0 == old.0 && new.1 > old.1);
        }
    }
}

fn count_journal_block(coverage: &mut Coverage, last_descriptor: &mut u64, at: u64, block: &[u8]) {
    const MAGIC: [u8; 4] = 0xC03B_3998u32.to_be_bytes();
    let Some((MAGIC, [_, _, _, kind, ..])) = block.split_first_chunk::<4>().map(|(m, r)| (*m, r))
    else {
        return;
    };
    match kind {
        1 => {
            coverage.wraps += u64::from(at < *last_descriptor);
            *last_descriptor = at;
        }
        2 => coverage.commits += 1,
        3 | 4 => coverage.checkpoints += 1,
        5 => coverage.revokes += 1,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::run::Lane;
    use dioxide::block::Durability;
    use dioxide::block::mem::MemDevice;
    use dioxide::block::record::states::Cache;

    /// Eight writes, a flush and eight more; nothing was promised.
    fn recorded() -> Recorded {
        let base = Snapshot::new(&[0; 1 << 16]);
        let record = RecordDevice::new(Arc::new(MemDevice::new(1 << 16)));
        for half in 0..2 {
            for block in 0..8 {
                let offset = (half * 8 + block) * 4096;
                record
                    .write_at(offset, &[1; 4096], Durability::Cached)
                    .expect("there is room");
            }
            record.flush().expect("it is in memory");
        }
        let units = crate::model::Units {
            block_bytes: 4096,
            inline_bytes: 0,
        };
        Recorded {
            base,
            whole: Vec::new(),
            known: Vec::new(),
            log: record.take_log(),
            lanes: vec![Lane {
                model: Model::new(units, &[], &[]),
                times: Vec::new(),
            }],
            shared: None,
            cache: Cache::Volatile,
            unsupported: Vec::new(),
        }
    }

    fn chosen(states: u64, seed: u64) -> (Vec<State>, Report) {
        struct Nobody;
        impl Target for Nobody {
            fn open(&self, _: Arc<dyn Device>) -> Result<Box<dyn crate::target::Session>, String> {
                Err("nobody opens it".into())
            }
        }
        let mut report = Report::default();
        let explorer = Explorer {
            target: &Nobody,
            checks: Checks::default(),
            limits: Limits {
                states,
                seed,
                ..Limits::default()
            },
            stop: &|| false,
        };
        let recorded = recorded();
        let chosen = explorer.chosen(&recorded, &mut report);
        let chosen: Vec<State> = chosen.map(|(state, _)| state).collect();
        (chosen, report)
    }

    /// Nothing at all, then eight times one write more; twice.
    fn is_in_order(state: &State) -> bool {
        let at = |part: &Part| part.entry;
        let entries: Vec<usize> = state.parts.iter().map(at).collect();
        let first = entries.first().copied().unwrap_or(0);
        let whole = state.parts.iter().map(|part| part.entry).map(Part::whole);
        [0, 9].contains(&first)
            && whole.eq(state.parts.iter().cloned())
            && entries.iter().copied().eq(first..first + entries.len())
    }

    #[test]
    fn states_in_order_are_chosen_before_all_others() {
        let in_order = |states: &[State]| states.iter().filter(|it| is_in_order(it)).count();
        for seed in 1..6 {
            let (all, report) = chosen(0, seed);
            let counts = (all.len() as u64, in_order(&all) as u64);
            assert_eq!((report.left_out, report.left_out_in_order), counts);
            assert!(in_order(&all) >= 17, "{all:?}");
            for limit in 8..60 {
                let (few, report) = chosen(limit, seed);
                assert_eq!(few.len() as u64, limit);
                assert_eq!((report.left_out, report.left_out_in_order), counts);
                let share = (limit - limit / 4) as usize;
                assert_eq!(in_order(&few), in_order(&all).min(share), "{limit}");
            }
        }
    }

    /// What a recovery writes between its flushes.
    fn recovery(phases: &[u64], forced: Durability) -> Log {
        let record = RecordDevice::new(Arc::new(MemDevice::new(1 << 20)));
        for &writes in phases {
            for block in 0..writes {
                let how = match block + 1 == writes {
                    true => forced,
                    false => Durability::Cached,
                };
                let written = record.write_at(block * 4096, &[1; 4096], how);
                written.expect("there is room");
            }
            record.flush().expect("it is in memory");
        }
        record.take_log()
    }

    #[test]
    fn recovery_is_cut_in_each_of_its_phases() {
        let all = (1..=40).flat_map(|runs| {
            [Durability::Cached, Durability::ForceUnitAccess].map(|forced| (runs, forced))
        });
        for (runs, forced) in all {
            // These, the empty log, the mark, orphans, and what a close writes.
            let log = recovery(&[runs, 1, 1, 3, 2], forced);
            let is_flush = |entry: &&Entry| entry.action == Action::Flush;
            let flushes = log.entries().iter().filter(is_flush);
            let ends: Vec<u64> = flushes.filter_map(|flush| flush.completed).collect();
            let options = Options {
                exhaustive: 3,
                samples: 2,
                torn: 1,
                ..Options::default()
            };
            let chosen: Vec<State> = cuts(&log, options).collect();
            let at = |state: &State| ends.partition_point(|&end| end < state.at);
            let cut: HashSet<usize> = chosen.iter().map(at).collect();
            assert_eq!(cut, (0..=ends.len()).collect(), "{runs}, {forced:?}");
            assert!(chosen.len() as u64 <= CUTS);
            // Of fewer, what is there may be as before or after the first flush.
            let in_the_first = |state: &State| at(state) == 0 && !state.parts.is_empty();
            assert!(runs < 8 || chosen.iter().any(in_the_first), "{runs}");
        }
    }

    #[test]
    fn recovery_of_many_phases_is_cut_amid_their_writes_too() {
        let log = recovery(&[4; 30], Durability::Cached);
        let chosen: Vec<State> = cuts(&log, Options::default()).collect();
        assert_eq!(chosen.len() as u64, CUTS);
        let amid = chosen.iter().filter(|state| !state.parts.is_empty());
        assert_eq!(amid.count() as u64, CUTS - CUTS_OF_FIRSTS);
    }

    #[test]
    fn shares_are_no_more_than_there_are_and_as_many_as_wanted() {
        for (limit, in_order, others) in [
            (1, 5, 5),
            (4, 90, 3),
            (4, 2, 90),
            (8, 9, 1),
            (100, 60, 60),
            (8, 0, 20),
        ] {
            let [one, two] = shares(limit, in_order, others);
            assert!(one <= in_order && two <= others);
            assert_eq!(one + two, limit.min(in_order + others));
        }
        assert_eq!(shares(0, 70, 80), [70, 80]);
        assert_eq!(shares(4, 90, 90), [3, 1]);
        assert_eq!(shares(40, 20, 90), [20, 20]);
    }
}
