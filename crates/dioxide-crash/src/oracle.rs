//! What has been promised at a time, and whether files keep it.
//!
//! Metadata is ordered: what is found must be the maps of one state, the same for all files, between the
//! newest one that is promised and the last that was begun; or, where an operation takes several steps, a mixture of the states
//! before and after it. Data is not ordered: a map of one state may show the data of any later one.

use crate::content;
use crate::model::{History, Layout, Model, SECTOR, Slot};
use crate::names;
use crate::op::{Durable, FileNo, Op};
use crate::target::{Seen, Sight, Stamps};
use std::collections::HashMap;
use std::sync::Arc;

/// When each operation began and returned, in the numbers of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The log's next number when it was called.
    pub began: u64,
    /// The log's next number when it had returned.
    pub acknowledged: u64,
}

/// What must be there at a time, and what may be.
#[derive(Clone, Debug)]
pub struct Promise {
    /// The last state that was begun.
    last: u32,
    /// The oldest state whose maps may be found.
    mapped: u32,
    /// By file: the oldest state whose data may be found.
    data: Vec<u32>,
    /// The same by file, space and sector, where a single write promised itself.
    sectors: HashMap<(FileNo, usize, u64), u32>,
    /// By file: when it was changed at least.
    stamps: Vec<Stamps>,
}

impl Promise {
    /// What is promised at `time`, by operations that began and returned at `times`.
    pub fn at(model: &Model, times: &[Times], time: u64) -> Promise {
        let mut promise = Promise {
            // What had returned before a crash that came earlier is of no time.
            last: times
                .iter()
                .filter(|op| op.began < time || op.acknowledged <= time)
                .count() as u32,
            mapped: 0,
            data: vec![0; model.files.len()],
            sectors: HashMap::new(),
            stamps: vec![Stamps::default(); model.files.len()],
        };
        let returned = (1..).zip(&model.ops).zip(times);
        for ((state, op), _) in returned.filter(|(_, op)| op.acknowledged <= time) {
            promise.keep(model, state, op);
        }
        promise.last = promise.last.max(promise.mapped);
        promise
    }

    pub(crate) fn forget_stamps(&mut self) {
        self.stamps.fill(Stamps::default());
    }

    fn keep(&mut self, model: &Model, state: u32, op: &Op) {
        for &(file, stamps) in model.stamps_at(state) {
            self.stamps[file] = stamps;
        }
        match *op {
            Op::Fsync { file } | Op::FsyncQueued { file } => {
                self.whole(&model.files[file], file, state, true);
                self.mapped = self.mapped.max(model.synced_names(state));
            }
            Op::Fdatasync { file } | Op::FdatasyncQueued { file } => {
                self.whole(&model.files[file], file, state, false);
                self.mapped = self.mapped.max(model.synced_names(state));
            }
            Op::Sync => {
                for (file, history) in model.files.iter().enumerate() {
                    self.whole(history, file, state, true);
                }
                self.mapped = self.mapped.max(model.promised_names(state));
            }
            Op::Write { file, durable, .. }
            | Op::WriteQueued { file, durable, .. }
            | Op::WriteAtomic { file, durable, .. }
            | Op::Append { file, durable, .. }
            | Op::AppendQueued { file, durable, .. }
            | Op::SetLen { file, durable, .. }
            | Op::Allocate { file, durable, .. } => {
                self.range(model, file, state, durable);
            }
            Op::Name(_) => {
                self.mapped = self.mapped.max(model.synced_names(state));
            }
            _ => {}
        }
    }

    fn whole(&mut self, history: &History, file: FileNo, state: u32, attributes: bool) {
        self.map(history, state, attributes);
        self.data[file] = state;
    }

    fn map(&mut self, history: &History, state: u32, attributes: bool) {
        let list = match attributes {
            true => &history.changed,
            false => &history.mapped,
        };
        self.mapped = self.mapped.max(list[state as usize]);
    }

    fn range(&mut self, model: &Model, file: FileNo, state: u32, durable: Durable) {
        if durable == Durable::No {
            return;
        }
        self.map(&model.files[file], state, durable == Durable::Full);
        for (file, space, sectors) in model.promised_by(state) {
            let each = sectors.map(|sector| ((file, space, sector), state));
            self.sectors.extend(each);
        }
    }

    fn sector(&self, file: FileNo, space: usize, sector: u64) -> u32 {
        let own = self.sectors.get(&(file, space, sector)).copied();
        self.data[file].max(own.unwrap_or(0))
    }

    /// Checks what was found of all files.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, model: &Model, seen: &[Seen]) -> Result<(), String> {
        self.check_files(model, seen, &all(seen))
    }

    /// Checks what was found of some files. Of the others, only that they do not show what free space held.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_files(
        &self,
        model: &Model,
        seen: &[Seen],
        files: &[FileNo],
    ) -> Result<(), String> {
        self.check_where(model, seen, files, &|_| true)
    }

    /// Checks all files and names.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_all(&self, model: &Model, sight: &Sight) -> Result<(), String> {
        self.check_names(model, sight, &all(&sight.files))
    }

    /// Checks names, and what was found of some files.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_names(
        &self,
        model: &Model,
        sight: &Sight,
        files: &[FileNo],
    ) -> Result<(), String> {
        let same_tree = |state: u32| *model.trees[state as usize] == sight.tree;
        let wrong = match self.check_where(model, &sight.files, files, &same_tree) {
            Ok(()) => return Ok(()),
            Err(what) => what,
        };
        let mut states = self.mapped..=self.last;
        if states.any(same_tree) {
            return Err(wrong);
        }
        let expected = &model.trees[self.last as usize];
        let (from, to) = (self.mapped, self.last);
        let what = names::difference(&sight.tree, expected);
        Err(format!(
            "names are as in none of states {from} to {to}; against {to}: {what}"
        ))
    }

    /// An atomic write that nothing came after is there, as far as the file goes, or is not.
    fn torn(&self, model: &Model, seen: &[Seen]) -> Result<(), String> {
        for (file, seen) in seen.iter().enumerate() {
            let is_change = |op: &Op| op.file() == Some(file) && op.changes_data();
            let begun = &model.ops[..self.last as usize];
            let Some(at) = begun.iter().rposition(is_change) else {
                continue;
            };
            let Op::WriteAtomic { offset, len, .. } = begun[at] else {
                continue;
            };
            let end = (offset + len).min(seen.data.len() as u64);
            let start = offset.min(end);
            let data = content::data(file, at as u32 + 1, start, end - start);
            let found = &seen.data[start as usize..end as usize];
            let sectors = found
                .chunks(SECTOR as usize)
                .zip(data.chunks(SECTOR as usize));
            let new = sectors.filter(|(found, new)| found == new).count() as u64;
            let all = (end - start).div_ceil(SECTOR);
            if ![0, all].contains(&new) {
                let name = &model.names[file];
                return Err(format!(
                    "{name}: {new} sectors of {all} of an atomic write of {len} bytes at {offset}"
                ));
            }
        }
        Ok(())
    }

    /// A file was changed when that is promised, or later.
    fn changed(&self, model: &Model, seen: &[Seen], files: &[FileNo]) -> Result<(), String> {
        for &file in files {
            let (found, promised) = (seen[file].stamps, self.stamps[file]);
            let is_later = found.ctime_ns > promised.ctime_ns;
            if !seen[file].is_gone && !is_later && found != promised {
                let name = &model.names[file];
                return Err(format!("{name}: {found:?}, not {promised:?} or later"));
            }
        }
        Ok(())
    }

    fn check_where(
        &self,
        model: &Model,
        seen: &[Seen],
        files: &[FileNo],
        may_be: &dyn Fn(u32) -> bool,
    ) -> Result<(), String> {
        stale(model, seen)?;
        self.torn(model, seen)?;
        self.changed(model, seen, files)?;
        let found: Vec<Found> = files
            .iter()
            .map(|&file| Found {
                promise: self,
                history: &model.files[file],
                block_bytes: model.units.block_bytes,
                file,
                seen: &seen[file],
            })
            .collect();
        let fits: Vec<Vec<bool>> = found.iter().map(Found::fitting_states).collect();
        let fits_at = |at: usize, state: u32| fits[at][(state - self.mapped) as usize];
        for state in (self.mapped..=self.last)
            .rev()
            .filter(|&state| may_be(state))
        {
            let mut misfits = (0..found.len()).filter(|&at| !fits_at(at, state));
            match (misfits.next(), misfits.next()) {
                (None, _) => return Ok(()),
                (Some(at), None) if self.fits_within(model, &found[at], state) => {
                    return Ok(());
                }
                _ => {}
            }
        }
        Err(self.complaint(model, &found, &fits))
    }

    /// Whether a file is as in the middle of operation `state`.
    fn fits_within(&self, model: &Model, found: &Found<'_>, state: u32) -> bool {
        let op = (state as usize).checked_sub(1).map(|op| &model.ops[op]);
        state > self.mapped
            && op.is_some_and(|op| op.has_steps() && op.file() == Some(found.file))
            && found.fits_within(state)
    }

    fn complaint(&self, model: &Model, found: &[Found<'_>], fits: &[Vec<bool>]) -> String {
        let range = format!("states {} to {}", self.mapped, self.last);
        let Some(at) = fits.iter().position(|fits| !fits.contains(&true)) else {
            let each = |(found, fits): (&Found<'_>, &Vec<bool>)| {
                let states = (self.mapped..).zip(fits).filter(|(_, fits)| **fits);
                let states: Vec<String> = states.map(|(state, _)| state.to_string()).collect();
                format!("{} as in {}", model.names[found.file], states.join(" or "))
            };
            let files: Vec<String> = found.iter().zip(fits).map(each).collect();
            return format!("no common state in {range}: {}", files.join("; "));
        };
        // The state that it most likely is: the last with the right size.
        let found = &found[at];
        let size = |&state: &u32| found.history.layouts[state as usize].size;
        let mut states = (self.mapped..=self.last).rev();
        let state = states.find(|state| size(state) == found.size());
        let state = state.unwrap_or(self.last);
        let what = found.misfit(state);
        let name = &model.names[found.file];
        format!("{name} is as in none of {range}; against {state}: {what}")
    }
}

fn all(seen: &[Seen]) -> Vec<FileNo> {
    (0..seen.len()).collect()
}

/// What free space held must show nowhere.
fn stale(model: &Model, seen: &[Seen]) -> Result<(), String> {
    for (name, seen) in model.names.iter().zip(seen) {
        let mut sectors = seen.data.chunks(SECTOR as usize);
        if let Some(at) = sectors.position(content::is_poisoned) {
            return Err(format!("{name}: sector {at} shows what free space held"));
        }
    }
    Ok(())
}

/// A file as it was found, and what it may be.
struct Found<'a> {
    promise: &'a Promise,
    history: &'a History,
    block_bytes: u64,
    file: FileNo,
    seen: &'a Seen,
}

impl Found<'_> {
    /// By state from the oldest that is allowed: whether the file is as it says.
    fn fitting_states(&self) -> Vec<bool> {
        let mut fits: Vec<bool> = Vec::new();
        let mut before: Option<&Arc<Layout>> = None;
        for state in self.promise.mapped..=self.promise.last {
            let layout = &self.history.layouts[state as usize];
            let same = before.is_some_and(|before| Arc::ptr_eq(before, layout));
            let last = fits.last().copied();
            fits.push(match (same, last) {
                (true, Some(last)) => last,
                _ => self.fits(layout),
            });
            before = Some(layout);
        }
        fits
    }

    fn size(&self) -> u64 {
        self.seen.data.len() as u64
    }

    fn sectors(&self) -> impl Iterator<Item = (u64, &[u8])> {
        (0..).zip(self.seen.data.chunks(SECTOR as usize))
    }

    fn same_attributes(&self, layout: &Layout) -> bool {
        self.seen.mode == layout.mode && self.seen.atime == layout.atime
    }

    fn fits(&self, layout: &Layout) -> bool {
        if layout.is_gone || self.seen.is_gone {
            return layout.is_gone == self.seen.is_gone;
        }
        let mut sectors = self.sectors();
        self.size() == layout.size
            && self.same_attributes(layout)
            && sectors.all(|(sector, bytes)| self.shows(layout, sector, bytes))
    }

    fn fits_within(&self, state: u32) -> bool {
        let layout = |state: u32| &self.history.layouts[state as usize];
        let (before, after) = (layout(state - 1), layout(state));
        let shows = |(sector, bytes): (u64, &[u8])| {
            let end = sector * SECTOR + bytes.len() as u64;
            // Behind the old end, there is nothing old to show.
            let was_there = end <= before.size;
            self.shows(after, sector, bytes) || was_there && self.shows(before, sector, bytes)
        };
        // What is written behind the end counts run by run, from the first on.
        !self.seen.is_gone
            && (before.size.min(after.size)..=before.size.max(after.size)).contains(&self.size())
            && self.same_attributes(after)
            && self.sectors().all(shows)
    }

    /// Whether a map may show this in a sector of the file.
    fn shows(&self, layout: &Layout, sector: u64, bytes: &[u8]) -> bool {
        let per_block = self.block_bytes / SECTOR;
        let within = sector % per_block;
        match layout.slots.get(&(sector / per_block)) {
            Some(slot) if slot.written => self.candidates(slot, within).any(|version| {
                let at = (within * SECTOR) as usize;
                version.1[at..at + bytes.len()] == *bytes
            }),
            _ => bytes.iter().all(|&byte| byte == 0),
        }
    }

    /// What space may hold, newest first.
    fn candidates(&self, slot: &Slot, within: u64) -> impl Iterator<Item = &(u32, Box<[u8]>)> {
        let promised = self.promise.sector(self.file, slot.space, within);
        let floor = promised.max(slot.floors[within as usize]);
        let versions = &self.history.spaces[slot.space];
        let newest = versions.partition_point(|&(state, _)| state <= self.promise.last);
        let oldest = versions.partition_point(|&(state, _)| state <= floor);
        versions[oldest.saturating_sub(1)..newest.max(oldest)]
            .iter()
            .rev()
    }

    /// What does not fit a state, in words.
    fn misfit(&self, state: u32) -> String {
        let layout = &self.history.layouts[state as usize];
        if layout.is_gone != self.seen.is_gone {
            let word = if self.seen.is_gone { "gone" } else { "there" };
            return format!("it is {word}");
        }
        if self.size() != layout.size {
            return format!("size {}, not {}", self.size(), layout.size);
        }
        if !self.same_attributes(layout) {
            let Seen { mode, atime, .. } = self.seen;
            let (right, time) = (layout.mode, layout.atime);
            return format!("mode {mode:o} and atime {atime}, not {right:o} and {time}");
        }
        let misfit = self
            .sectors()
            .find(|&(at, bytes)| !self.shows(layout, at, bytes));
        match misfit {
            Some((at, bytes)) => format!(
                "sector {at} has {}, not {}",
                content::explain(bytes),
                self.wanted(layout, at)
            ),
            None => "fits, but not with the other files".into(),
        }
    }

    fn wanted(&self, layout: &Layout, sector: u64) -> String {
        let per_block = self.block_bytes / SECTOR;
        let within = sector % per_block;
        let Some(slot) = layout
            .slots
            .get(&(sector / per_block))
            .filter(|slot| slot.written)
        else {
            return "zeros".into();
        };
        let words = self.candidates(slot, within).map(|(state, bytes)| {
            let at = (within * SECTOR) as usize;
            format!(
                "{} (state {state})",
                content::explain(&bytes[at..at + SECTOR as usize])
            )
        });
        words.collect::<Vec<String>>().join(" or ")
    }
}
