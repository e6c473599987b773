//! Changing a file's indirect map, the pointers of ext2 and ext3.
//!
//! For: files without an extent tree. Not for: bigalloc, which ext4 has with extents only.
//!
//! As with trees, a change is planned first: what is read is read then, and a change that fails for
//! damage or for want of space has changed nothing. Pointer blocks have no checksum.
//!
//! Invariant: a pointer block that an operation leaves behind has a pointer in it.
//!
//! Rejected: planning whole pointer blocks in memory, as trees do. Here a change is a list of
//! pointers to set or to clear, and no block is ever split.

mod remove;
#[cfg(test)]
mod tests;

use super::tree::{
    Blocks, CREDITS_PER_CLUSTER, I_BLOCK_BYTES, Owner, PhysicalRun, Progress, format_error,
    free_tree_block, journal_error,
};
use crate::{Error, Result, Shortage};
use dioxide_format::indirect::{self, DIRECT, Path};
use dioxide_format::types::{Lblk, Pblk};
use dioxide_journal::{Edit, Kind};
use remove::Removal;
use std::ops::Range;
use std::sync::Arc;

/// Pointer blocks between the inode and data, at most.
const MAX_LEVELS: u32 = 3;

/// Most metadata blocks that [`Indirect::set`] changes, those of the allocator included and the
/// inode's not.
pub(crate) const CREDITS_FOR_SET: u32 = MAX_LEVELS * (1 + CREDITS_PER_CLUSTER);

/// Least `max_credits` with which [`Indirect::remove_some`] gets on. `data` is
/// [`Blocks::free_credits`] of one block.
pub(crate) const fn credits_for_remove(data: u32) -> u32 {
    MAX_LEVELS * CREDITS_PER_CLUSTER + data
}

/// How many blocks from `lblk` on have their pointers side by side.
pub(crate) fn run_at(lblk: Lblk, block_bytes: u32) -> u32 {
    let Some(path) = indirect::path(lblk, block_bytes) else {
        return 0;
    };
    slots_of(&path, block_bytes) - path.offsets().last().unwrap_or(&0)
}

/// Pointers beside the last one of a path, it included.
fn slots_of(path: &Path, block_bytes: u32) -> u32 {
    match path.levels() {
        0 => DIRECT,
        _ => indirect::pointers_per_block(block_bytes),
    }
}

/// A block of pointers.
#[derive(Clone, Debug)]
struct PointerBlock {
    physical: Range<u64>,
}

impl Kind for PointerBlock {
    fn name(&self) -> &'static str {
        "indirect block"
    }

    fn verify(&self, _: Pblk, bytes: &[u8]) -> dioxide_format::Result<()> {
        indirect::validate(bytes, &self.physical)
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}

    fn keep(&self) -> Option<Arc<dyn Kind>> {
        Some(Arc::new(self.clone()))
    }
}

/// A file's indirect map. The root are the 60 bytes of `i_block`; the caller puts them back into
/// the inode after a change.
///
/// Every call blocks on metadata. Errors are as with [`Tree`](super::tree::Tree).
#[derive(Debug)]
pub(crate) struct Indirect<'a> {
    owner: &'a Owner,
    root: &'a mut [u8; I_BLOCK_BYTES],
}

/// Where the pointer to a block of data is, or how far the way to it goes.
struct Way {
    path: Path,
    /// Pointer blocks that are there, from the inode down.
    tables: Vec<Pblk>,
    /// What the last pointer that is there says.
    pointer: Option<Pblk>,
}

impl Way {
    /// Pointer blocks that are missing.
    fn missing(&self) -> usize {
        self.path.levels() - self.tables.len()
    }

    /// Index of the last pointer that is there.
    fn index(&self) -> u32 {
        self.path.offsets()[self.tables.len()]
    }
}

impl<'a> Indirect<'a> {
    /// The map with this root. Nothing is read or checked yet.
    pub(crate) fn new(owner: &'a Owner, root: &'a mut [u8; I_BLOCK_BYTES]) -> Self {
        debug_assert_eq!(owner.cluster_ratio, 1);
        Self { owner, root }
    }

    /// Backs a hole from `lblk` on with the blocks of `run`, as many as have their pointers side by
    /// side in one block; returns how many, at least one. Call it again for the rest.
    ///
    /// # Errors
    /// `TooLarge` past what the map can hold; `Invalid` when a block is mapped, or `run` is empty
    /// or lies past what 32 bits can say.
    pub(crate) fn set(
        &mut self,
        edit: &mut dyn Edit,
        blocks: &mut dyn Blocks,
        lblk: Lblk,
        run: PhysicalRun,
    ) -> Result<u32> {
        self.check_run(run)?;
        let block_bytes = edit.block_bytes() as u32;
        let path = indirect::path(lblk, block_bytes)
            .ok_or_else(|| Error::TooLarge(format!("block {lblk}: a map of indirect blocks ends before it; copy the file to one with extents")))?;
        let last = *path.offsets().last().unwrap_or(&0);
        let len = run.len.min(slots_of(&path, block_bytes) - last);
        let data: Vec<u32> = (0..len).map(|i| run.start.0 as u32 + i).collect();
        let way = self.follow(edit, path)?;
        if way.missing() == 0 {
            self.check_hole(edit, &way, len)?;
            self.put(edit, &way, &data)?;
        } else {
            self.grow(edit, blocks, &way, &data)?;
        }
        Ok(len)
    }

    /// Removes what is mapped in `range` and frees it, empty pointer blocks too, from the left, as much
    /// as `max_credits` changed blocks allow. After a crash the same call with the first range goes on.
    ///
    /// # Errors
    /// `Invalid` when `max_credits` are too few, see [`credits_for_remove`].
    pub(crate) fn remove_some(
        &mut self,
        edit: &mut dyn Edit,
        blocks: &mut dyn Blocks,
        range: Range<u64>,
        max_credits: u32,
    ) -> Result<Progress> {
        let mut removal = Removal::new(self.owner, &*edit, &*blocks, range.clone(), max_credits);
        removal.plan(self.root)?;
        let (changes, stopped) = removal.into_changes();
        if stopped.is_some() && changes.is_empty() {
            let what = "cannot remove blocks with too few credits";
            return Err(Error::Invalid(format!("inode {}: {what}", self.owner.ino)));
        }
        changes.apply(self.owner, edit, blocks, self.root)?;
        Ok(stopped.map_or(Progress::Done, |at| Progress::More(at..range.end)))
    }

    /// Whether [`Indirect::remove_some`] would find its way: plans it, and changes nothing.
    pub(crate) fn check_remove(
        &self,
        edit: &dyn Edit,
        blocks: &dyn Blocks,
        range: Range<u64>,
        max_credits: u32,
    ) -> Result<()> {
        Removal::new(self.owner, edit, blocks, range, max_credits).plan(self.root)
    }

    /// Follows the pointers to the first that is 0, or to the one that points to data.
    fn follow(&self, edit: &dyn Edit, path: Path) -> Result<Way> {
        let mut way = Way {
            path,
            tables: Vec::new(),
            pointer: None,
        };
        way.pointer = self.pointer(self.root, None, way.index())?;
        while let Some(table) = way.pointer.filter(|_| way.missing() > 0) {
            way.tables.push(table);
            let bytes = self.table(edit, table)?;
            way.pointer = self.pointer(&bytes, Some(table), way.index())?;
        }
        Ok(way)
    }

    fn pointer(&self, bytes: &[u8], table: Option<Pblk>, index: u32) -> Result<Option<Pblk>> {
        indirect::pointer_at(bytes, index, &self.owner.physical)
            .map_err(|error| format_error(self.owner, table, error))
    }

    fn table(&self, edit: &dyn Edit, table: Pblk) -> Result<std::sync::Arc<[u8]>> {
        edit.read(table, &kind(self.owner))
            .map_err(|error| journal_error(self.owner, error))
    }

    fn check_run(&self, run: PhysicalRun) -> Result<()> {
        let physical = &self.owner.physical;
        let end = run.start.0 + u64::from(run.len);
        let inside = run.start.0 >= physical.start && end <= physical.end.min(1 << 32);
        if inside && run.len > 0 {
            return Ok(());
        }
        Err(Error::Invalid(format!("cannot point to {run:?}")))
    }

    fn check_hole(&self, edit: &dyn Edit, way: &Way, len: u32) -> Result<()> {
        let is_hole = |bytes: &[u8]| {
            let slots = indirect::pointers(bytes).skip(way.index() as usize);
            slots.take(len as usize).all(|pointer| pointer == 0)
        };
        let hole = match way.tables.last() {
            None => is_hole(self.root),
            Some(&table) => is_hole(&self.table(edit, table)?),
        };
        if hole {
            return Ok(());
        }
        let what = "cannot set blocks that are mapped already";
        Err(Error::Invalid(format!("inode {}: {what}", self.owner.ino)))
    }

    /// Writes pointers where the way ends.
    fn put(&mut self, edit: &mut dyn Edit, way: &Way, pointers: &[u32]) -> Result<()> {
        let index = way.index();
        match way.tables.last() {
            None => write_pointers(self.root, index, pointers),
            Some(&table) => {
                let mut change = |bytes: &mut [u8]| {
                    write_pointers(bytes, index, pointers);
                    Ok(())
                };
                edit.modify(table, &kind(self.owner), &mut change)
                    .map_err(|error| journal_error(self.owner, error))?;
            }
        }
        Ok(())
    }

    /// Makes the pointer blocks that are missing, the lowest with pointers to data, and hangs them
    /// in.
    fn grow(
        &mut self,
        edit: &mut dyn Edit,
        blocks: &mut dyn Blocks,
        way: &Way,
        data: &[u32],
    ) -> Result<()> {
        let goal = Pblk(data[0].into());
        let tables = self.allocate(edit, blocks, way.missing(), goal)?;
        let mut pointers = data.to_vec();
        let lowest_first = way.path.offsets().iter().rev();
        for (&table, &index) in tables.iter().zip(lowest_first) {
            let mut bytes = vec![0; edit.block_bytes()];
            write_pointers(&mut bytes, index, &pointers);
            edit.create(table, &kind(self.owner), &bytes)
                .map_err(|error| journal_error(self.owner, error))?;
            pointers = vec![table.0 as u32];
        }
        self.put(edit, way, &pointers)
    }

    /// This many pointer blocks, or none.
    fn allocate(
        &self,
        edit: &mut dyn Edit,
        blocks: &mut dyn Blocks,
        count: usize,
        goal: Pblk,
    ) -> Result<Vec<Pblk>> {
        let mut tables = Vec::with_capacity(count);
        while tables.len() < count {
            let table = blocks.allocate_tree_block(edit, goal);
            let table = table.and_then(|table| match u32::try_from(table.0) {
                Ok(_) => Ok(table),
                Err(_) => {
                    free_tree_block(self.owner, edit, blocks, table)?;
                    Err(Error::NoSpace(Shortage::LowBlocks))
                }
            });
            match table {
                Ok(table) => tables.push(table),
                Err(error) => {
                    for table in tables {
                        free_tree_block(self.owner, edit, blocks, table)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(tables)
    }
}

fn kind(owner: &Owner) -> PointerBlock {
    PointerBlock {
        physical: owner.physical.clone(),
    }
}

/// Writes pointers from `index` on.
fn write_pointers(bytes: &mut [u8], index: u32, pointers: &[u32]) {
    indirect::encode_into(pointers, &mut bytes[index as usize * 4..]);
}
