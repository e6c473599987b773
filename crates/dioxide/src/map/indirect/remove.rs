//! Removing blocks from an indirect map: which pointers go, and then that they go.
//!
//! Recursion goes three levels deep. Each pointer block that is visited is emptied and freed, or lies
//! at an end of the range; so credits bound the visits also where a damaged map leads to one block
//! many times.

use super::{
    Blocks, CREDITS_PER_CLUSTER, Edit, I_BLOCK_BYTES, Owner, PhysicalRun, Result, format_error,
    free_tree_block, journal_error, kind, write_pointers,
};
use dioxide_format::extent::LBLK_END;
use dioxide_format::indirect::{self, DIRECT};
use dioxide_format::types::Pblk;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What a removal comes to.
#[derive(Default)]
pub(super) struct Changes {
    /// Pointers to clear in the inode.
    root: Vec<u32>,
    /// Pointers to clear in blocks that stay.
    tables: BTreeMap<Pblk, Vec<u32>>,
    dropped: BTreeSet<Pblk>,
    freed: Vec<PhysicalRun>,
}

/// A removal that is being planned.
pub(super) struct Removal<'a> {
    owner: &'a Owner,
    edit: &'a dyn Edit,
    blocks: &'a dyn Blocks,
    range: Range<u64>,
    /// Credits that are left.
    room: u32,
    /// Where credits ended.
    stopped: Option<u64>,
    changes: Changes,
}

/// A pointer and what it leads to.
#[derive(Clone, Copy)]
struct Branch {
    target: Pblk,
    /// Pointer blocks between it and data.
    levels: u32,
    /// The first block of the file that it covers.
    first: u64,
}

impl<'a> Removal<'a> {
    pub(super) fn new(
        owner: &'a Owner,
        edit: &'a dyn Edit,
        blocks: &'a dyn Blocks,
        range: Range<u64>,
        max_credits: u32,
    ) -> Self {
        Self {
            owner,
            edit,
            blocks,
            range: range.start..range.end.min(LBLK_END),
            room: max_credits,
            stopped: None,
            changes: Changes::default(),
        }
    }

    pub(super) fn plan(&mut self, root: &[u8; I_BLOCK_BYTES]) -> Result<()> {
        let mut first = 0;
        for (index, levels) in (0..).zip((0..indirect::POINTERS as u32).map(levels_of)) {
            if self.clear(root, None, index, levels, first)? {
                self.changes.root.push(index);
            }
            first += self.span(levels);
        }
        Ok(())
    }

    pub(super) fn into_changes(self) -> (Changes, Option<u64>) {
        (self.changes, self.stopped)
    }

    /// How many blocks of the file a pointer covers.
    fn span(&self, levels: u32) -> u64 {
        u64::from(indirect::pointers_per_block(self.edit.block_bytes() as u32)).pow(levels)
    }

    /// Whether the pointer at `index` of a block goes, and all behind it.
    fn clear(
        &mut self,
        bytes: &[u8],
        table: Option<Pblk>,
        index: u32,
        levels: u32,
        first: u64,
    ) -> Result<bool> {
        let misses = first >= self.range.end || first + self.span(levels) <= self.range.start;
        if misses || self.stopped.is_some() {
            return Ok(false);
        }
        let pointer = indirect::pointer_at(bytes, index, &self.owner.physical)
            .map_err(|error| format_error(self.owner, table, error))?;
        let Some(target) = pointer else {
            return Ok(false);
        };
        let branch = Branch {
            target,
            levels,
            first,
        };
        if levels == 0 {
            return Ok(self.clear_data(branch));
        }
        self.clear_table(branch)
    }

    /// Takes credits, or stops here.
    fn spend(&mut self, credits: u32, at: u64) -> bool {
        match self.room.checked_sub(credits) {
            Some(room) => self.room = room,
            None => self.stopped = Some(at.max(self.range.start)),
        }
        self.stopped.is_none()
    }

    fn clear_data(&mut self, branch: Branch) -> bool {
        let run = PhysicalRun {
            start: branch.target,
            len: 1,
        };
        let before = self.changes.freed.last().copied();
        let mut longer = before.unwrap_or(run);
        let joins = longer.join(run);
        let cost = |run| self.blocks.free_credits(run);
        let price = match before {
            Some(before) if joins => cost(longer).saturating_sub(cost(before)),
            _ => cost(run),
        };
        if !self.spend(price, branch.first) {
            return false;
        }
        match self.changes.freed.last_mut() {
            Some(last) if joins => *last = longer,
            _ => self.changes.freed.push(run),
        }
        true
    }

    fn clear_table(&mut self, branch: Branch) -> Result<bool> {
        if !self.spend(CREDITS_PER_CLUSTER, branch.first) {
            return Ok(false);
        }
        let bytes = self
            .edit
            .read(branch.target, &kind(self.owner))
            .map_err(|error| journal_error(self.owner, error))?;
        let step = self.span(branch.levels - 1);
        // Only the pointers of the range are looked at.
        let skip = self.range.start.saturating_sub(branch.first) / step;
        let used = indirect::pointers(&bytes).filter(|p| *p != 0).count();
        let mut cleared = Vec::new();
        for index in skip as u32..bytes.len() as u32 / 4 {
            let first = branch.first + u64::from(index) * step;
            if first >= self.range.end || self.stopped.is_some() {
                break;
            }
            if self.clear(&bytes, Some(branch.target), index, branch.levels - 1, first)? {
                cleared.push(index);
            }
        }
        if cleared.len() == used {
            return self.drop_table(branch.target);
        }
        // A block that stays costs less than one that goes.
        self.room += CREDITS_PER_CLUSTER - u32::from(!cleared.is_empty());
        if !cleared.is_empty() {
            self.changes.tables.insert(branch.target, cleared);
        }
        Ok(false)
    }

    fn drop_table(&mut self, table: Pblk) -> Result<bool> {
        if self.changes.dropped.insert(table) {
            return Ok(true);
        }
        let what = "two pointers lead to it".to_owned();
        Err(self.owner.corrupt("indirect block", Some(table), what))
    }
}

/// Pointer blocks between a pointer of the inode and data.
fn levels_of(index: u32) -> u32 {
    (index + 1).saturating_sub(DIRECT)
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.dropped.is_empty() && self.freed.is_empty()
    }

    /// Clears all pointers first; if freeing is refused, blocks are lost but the map is whole.
    pub(super) fn apply(
        &self,
        owner: &Owner,
        edit: &mut dyn Edit,
        blocks: &mut dyn Blocks,
        root: &mut [u8; I_BLOCK_BYTES],
    ) -> Result<()> {
        for (&table, cleared) in &self.tables {
            let mut change = |bytes: &mut [u8]| {
                clear_pointers(bytes, cleared);
                Ok(())
            };
            edit.modify(table, &kind(owner), &mut change)
                .map_err(|error| journal_error(owner, error))?;
        }
        clear_pointers(root, &self.root);
        for &table in &self.dropped {
            edit.forget(table)
                .map_err(|error| journal_error(owner, error))?;
            free_tree_block(owner, edit, blocks, table)?;
        }
        self.freed
            .iter()
            .try_for_each(|run| blocks.free(edit, *run))
    }
}

fn clear_pointers(bytes: &mut [u8], indices: &[u32]) {
    for &index in indices {
        write_pointers(bytes, index, &[0]);
    }
}
