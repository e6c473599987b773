//! Figures, and the states that were bad.

use dioxide::block::record::states::Snapshot;
use serde::Serialize;
use std::collections::HashSet;
use std::fmt;

/// How many bad states are kept in words.
const KEPT: usize = 100;

/// A state that broke a promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bad {
    /// Image, workload and state: what `--replay` takes.
    pub replay: String,
    /// The operations.
    pub ops: Vec<String>,
    /// What is wrong.
    pub what: String,
}

/// What the workloads made the target do, by what was found in the logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Commit blocks of the journal.
    pub commits: u64,
    /// Revoke blocks.
    pub revokes: u64,
    /// Times that the log began again at its first block.
    pub wraps: u64,
    /// Writes of the journal's superblock: checkpoints, and the log put in use or out of it.
    pub checkpoints: u64,
    /// Writes with force unit access.
    pub forced: u64,
    /// Flushes.
    pub flushes: u64,
    /// Copies of blocks that begin with the journal's magic number.
    pub escaped: u64,
    /// Files that a truncate made orphans, since there was more to free than one transaction can.
    pub orphan_truncates: u64,
    /// Times that an extent tree grew or lost a level.
    pub depth_changes: u64,
    /// Directories that left their inodes for a block.
    pub inline_dirs_grown: u64,
    /// Times that the root of a directory's index got another entry, since a block below it was split.
    pub index_splits: u64,
    /// Times that a directory's index got another level.
    pub index_levels: u64,
}

/// Figures of an exploration.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Workloads run.
    pub workloads: u64,
    /// Workloads that there are; 0 if there are more and more.
    pub listed: u64,
    /// Operations done.
    pub ops: u64,
    /// Operations that the target could not do.
    pub unsupported: u64,
    /// Some of them, and why.
    pub unsupported_examples: Vec<String>,
    /// States recovered and checked.
    pub states: u64,
    /// States whose contents had been checked under the same promises.
    pub duplicates: u64,
    /// States that the listing of a workload had and its budget left out.
    pub left_out: u64,
    /// Of these, what a device leaves that keeps the order: prefixes of what was written.
    pub left_out_in_order: u64,
    /// States of which recovery itself was cut.
    pub interrupted: u64,
    /// Points at which, all together: each was recovered and checked.
    pub cuts: u64,
    /// States recovered, unmounted and looked at again.
    pub reopened: u64,
    /// Arrangements of files that were found.
    pub shapes: u64,
    /// Images whose consistency was checked, by e2fsck.
    pub consistent: u64,
    /// States recovered by something else, by name.
    pub otherwise: Vec<(String, u64)>,
    /// Bad states.
    pub bad: u64,
    /// Some of them.
    pub examples: Vec<Bad>,
    /// What the workloads made happen.
    pub coverage: Coverage,
    /// The image of the first bad state, before its recovery.
    #[serde(skip)]
    pub first_bad: Option<Snapshot>,
    /// Hashes of the shapes.
    #[serde(skip)]
    pub(crate) shapes_seen: HashSet<u64>,
}

impl Report {
    /// A bad state was found.
    pub(crate) fn complain(&mut self, bad: Bad) {
        self.bad += 1;
        if self.examples.len() < KEPT {
            self.examples.push(bad);
        }
    }

    /// A state of this shape was found.
    pub(crate) fn count_shape(&mut self, shape: u64) {
        self.shapes_seen.insert(shape);
        self.shapes = self.shapes_seen.len() as u64;
    }

    /// The target could not do these.
    pub(crate) fn count_unsupported(&mut self, more: &[String]) {
        self.unsupported += more.len() as u64;
        keep(&mut self.unsupported_examples, more);
    }

    /// So many more states were recovered by something else.
    pub(crate) fn count_other(&mut self, name: &str, more: u64) {
        match self.otherwise.iter_mut().find(|(other, _)| other == name) {
            Some((_, count)) => *count += more,
            None => self.otherwise.push((name.into(), more)),
        }
    }

    /// Adds another's figures.
    pub fn add(&mut self, other: &Report) {
        self.workloads += other.workloads;
        self.listed += other.listed;
        self.ops += other.ops;
        self.unsupported += other.unsupported;
        keep(&mut self.unsupported_examples, &other.unsupported_examples);
        self.states += other.states;
        self.duplicates += other.duplicates;
        self.left_out += other.left_out;
        self.left_out_in_order += other.left_out_in_order;
        self.interrupted += other.interrupted;
        self.cuts += other.cuts;
        self.reopened += other.reopened;
        self.consistent += other.consistent;
        self.bad += other.bad;
        self.first_bad = self.first_bad.take().or_else(|| other.first_bad.clone());
        keep(&mut self.examples, &other.examples);
        for (name, count) in &other.otherwise {
            self.count_other(name, *count);
        }
        self.coverage.add(&other.coverage);
        self.shapes_seen.extend(&other.shapes_seen);
        self.shapes = self.shapes_seen.len() as u64;
    }
}

/// Keeps some more examples, if there is room.
fn keep<T: Clone>(examples: &mut Vec<T>, more: &[T]) {
    let room = KEPT - examples.len();
    examples.extend(more.iter().take(room).cloned());
}

impl Coverage {
    /// Adds another's counts.
    pub fn add(&mut self, other: &Coverage) {
        self.commits += other.commits;
        self.revokes += other.revokes;
        self.wraps += other.wraps;
        self.checkpoints += other.checkpoints;
        self.forced += other.forced;
        self.flushes += other.flushes;
        self.escaped += other.escaped;
        self.orphan_truncates += other.orphan_truncates;
        self.depth_changes += other.depth_changes;
        self.inline_dirs_grown += other.inline_dirs_grown;
        self.index_splits += other.index_splits;
        self.index_levels += other.index_levels;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Coverage {
            commits,
            revokes,
            wraps,
            checkpoints,
            forced,
            flushes,
            escaped,
            orphan_truncates,
            depth_changes,
            inline_dirs_grown,
            index_splits,
            index_levels,
        } = self.coverage;
        let there_are = match self.listed {
            0 => String::new(),
            listed => format!(" run of {listed} that there are"),
        };
        writeln!(
            f,
            "workloads     {}{there_are}, {} operations ({} not supported)",
            self.workloads, self.ops, self.unsupported
        )?;
        for what in &self.unsupported_examples {
            writeln!(f, "not supported {what}")?;
        }
        writeln!(
            f,
            "states        {} checked, {} the same, {} left out, {} of them prefixes",
            self.states, self.duplicates, self.left_out, self.left_out_in_order
        )?;
        writeln!(
            f,
            "recovery cut  {} states, at {} points",
            self.interrupted, self.cuts
        )?;
        writeln!(f, "reopened      {}", self.reopened)?;
        writeln!(f, "shapes        {}", self.shapes)?;
        writeln!(f, "consistent    {}", self.consistent)?;
        for (name, count) in &self.otherwise {
            writeln!(f, "{name:<13} {count}")?;
        }
        writeln!(
            f,
            "coverage      {commits} commits, {revokes} revokes, {wraps} wraps, \
             {checkpoints} journal superblocks, {forced} forced writes, {flushes} flushes, \
             {escaped} escaped blocks, {orphan_truncates} orphans of truncates, \
             {depth_changes} changes of depth, {inline_dirs_grown} inline directories grown, \
             {index_splits} index splits, {index_levels} index levels"
        )?;
        writeln!(f, "bad           {}", self.bad)?;
        if self.bad > self.examples.len() as u64 {
            writeln!(f, "              of which {} here:", self.examples.len())?;
        }
        for bad in &self.examples {
            writeln!(
                f,
                "\n{}\n  {}\n  {}",
                bad.replay,
                bad.ops.join("; "),
                bad.what
            )?;
        }
        Ok(())
    }
}
