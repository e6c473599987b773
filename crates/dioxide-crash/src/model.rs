//! What files look like after each operation.
//!
//! States are numbered by operation: state 0 is before the first, state `n` after the `n`th.
//!
//! A file in a state is its size and a map from its blocks to *slots*. A slot names a piece of space by
//! a number that it keeps when it is overwritten, converted or moved, and tells whether the space
//! is written. What was written to a piece of space is kept apart, with the operation that did it:
//! direct writes do not wait for the commit of the metadata that says where they belong, so after a
//! crash an older map may show newer data. A slot's *floors* say how old, by sector, the data may be that this map shows:
//! data that makes a block visible is on the disk before the map that shows it.
//!
//! With bigalloc, a hole may keep its place, since other blocks of its cluster are in use. What is allocated there again is
//! another space all the same: it is written once no map on the disk has it as what it was.
//!
//! Content that lies in an inode is a first block that is written, where it is zeros too: as such it leaves the inode.
//! That it is never older or newer than the inode is not asked here.
//!
//! A file that lost its last name is gone, with no way back: what its map was does not matter any more.
//!
//! Invariant: the space of a file behind its end is zero.

use crate::attributes::IN_STEP;
use crate::content;
use crate::names::{Change as Attribute, NameOp, Names, Tree};
use crate::op::{Durable, FileNo, Mode, Op};
use crate::target::Stamps;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes in a sector.
pub const SECTOR: u64 = 512;

/// A file that the image begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSpec {
    /// Path from the root.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// What holds data; begins and ends at multiples of 4096, or at the end of the file.
    pub data: Vec<Range<u64>>,
    /// What is allocated and unwritten; multiples of 4096.
    pub unwritten: Vec<Range<u64>>,
}

impl FileSpec {
    /// The contents.
    pub fn contents(&self, file: FileNo) -> Vec<u8> {
        let mut bytes = vec![0; self.size as usize];
        for range in &self.data {
            let part = &mut bytes[range.start as usize..range.end as usize];
            content::fill(file, 0, range.start, part);
        }
        bytes
    }
}

/// In what space is given to files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// What maps count in, in bytes.
    pub block_bytes: u64,
    /// No content that lies in an inode is longer; 0 where none lies there.
    pub inline_bytes: u64,
}

/// Space that a block of a file is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) space: usize,
    pub(crate) written: bool,
    /// By sector: the oldest state whose data may show here.
    pub(crate) floors: Vec<u32>,
}

/// A file in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Whether it has lost its last name.
    pub(crate) is_gone: bool,
    pub(crate) size: u64,
    /// Whether the content may lie in the inode.
    inline: bool,
    pub(crate) mode: u16,
    pub(crate) atime: i64,
    pub(crate) slots: BTreeMap<u64, Slot>,
}

/// What a piece of space held, from which state on.
pub(crate) type Versions = Vec<(u32, Box<[u8]>)>;

/// A file through all states.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) layouts: Vec<Arc<Layout>>,
    /// By number of space.
    pub(crate) spaces: Vec<Versions>,
    /// By state: the last one, up to it, in which size or map changed.
    pub(crate) mapped: Vec<u32>,
    /// By state: the last one, up to it, in which anything of the layout changed.
    pub(crate) changed: Vec<u32>,
}

/// All files through all states.
#[derive(Clone, Debug)]
pub struct Model {
    pub(crate) units: Units,
    pub(crate) ops: Vec<Op>,
    pub(crate) names: Vec<String>,
    pub(crate) files: Vec<History>,
    /// By state.
    pub(crate) trees: Vec<Arc<Tree>>,
    tree: Names,
    /// By state: the last one, up to it, in which the tree changed.
    promised: Vec<u32>,
    /// What an `fsync` or `fdatasync` promised, as far as names go, or a call that a flag makes durable, by its state.
    synced: BTreeMap<u32, u32>,
    /// When files were changed, as far as the operation that leads to a state promises that.
    stamps: BTreeMap<u32, Vec<(FileNo, Stamps)>>,
}

impl Model {
    /// The files of an image, with the attributes that they have there, by file.
    pub fn new(units: Units, specs: &[FileSpec], attributes: &[(u16, i64)]) -> Model {
        let files = specs.iter().enumerate().zip(attributes);
        Model {
            units,
            ops: Vec::new(),
            names: specs.iter().map(|spec| spec.name.clone()).collect(),
            files: files
                .map(|((file, spec), &attributes)| History::new(units, file, spec, attributes))
                .collect(),
            trees: vec![Arc::default()],
            tree: Names::default(),
            promised: vec![0],
            synced: BTreeMap::new(),
            stamps: BTreeMap::new(),
        }
    }

    /// The same, with all names of the image.
    pub fn with_tree(mut self, tree: Tree) -> Model {
        self.tree = Names::new(&tree);
        self.trees = vec![Arc::new(tree)];
        self
    }

    /// Number of the last state.
    pub fn last(&self) -> u32 {
        self.ops.len() as u32
    }

    /// The operations between the states.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// What an operation writes if it comes next.
    pub fn data_of(&self, op: &Op) -> Vec<u8> {
        match self.written_range(op) {
            Some((file, range)) => {
                content::data(file, self.last() + 1, range.start, range.end - range.start)
            }
            None => Vec::new(),
        }
    }

    /// Where a file is in the last state.
    pub(crate) fn path_of(&self, file: FileNo) -> &str {
        self.tree.path_of(file).unwrap_or(&self.names[file])
    }

    /// Whether a file's flag makes what changes it durable.
    pub(crate) fn is_in_step(&self, file: FileNo) -> bool {
        let attributes = self.tree.attributes(self.path_of(file));
        attributes.is_some_and(|attributes| attributes.flags & IN_STEP != 0)
    }

    /// The files whose times of change the last operation promises, and where they are.
    pub(crate) fn stamped(&self) -> Vec<(FileNo, String)> {
        let files = match self.ops.last() {
            Some(&(Op::Fsync { file } | Op::FsyncQueued { file })) => file..file + 1,
            Some(Op::Sync) => 0..self.files.len(),
            Some(op) => match (op.file(), op.durable()) {
                (Some(file), Durable::Full) => file..file + 1,
                _ => 0..0,
            },
            None => 0..0,
        };
        let path = |file| Some((file, self.tree.path_of(file)?.to_owned()));
        files.filter_map(path).collect()
    }

    /// The last operation promises this of a file.
    pub fn stamp(&mut self, file: FileNo, stamps: Stamps) {
        let promised = self.stamps.entry(self.ops.len() as u32).or_default();
        promised.push((file, stamps));
    }

    /// What the operation that leads to `state` promises so.
    pub(crate) fn stamps_at(&self, state: u32) -> &[(FileNo, Stamps)] {
        self.stamps.get(&state).map_or(&[], Vec::as_slice)
    }

    /// What a write would write in the last state.
    fn written_range(&self, op: &Op) -> Option<(FileNo, Range<u64>)> {
        match *op {
            Op::Write {
                file, offset, len, ..
            }
            | Op::WriteQueued {
                file, offset, len, ..
            }
            | Op::WriteAtomic {
                file, offset, len, ..
            } => Some((file, offset..offset + len)),
            Op::Append { file, len, .. } | Op::AppendQueued { file, len, .. } => {
                let size = self.files[file].now().size;
                Some((file, size..size + len))
            }
            _ => None,
        }
    }

    /// An operation was done, or begun.
    pub fn push(&mut self, op: Op) {
        let state = self.last() + 1;
        let written = self.written_range(&op);
        self.push_tree(&op, state);
        for (file, history) in self.files.iter_mut().enumerate() {
            let mut change = Change {
                state,
                units: self.units,
                layout: (**history.now()).clone(),
                spaces: &mut history.spaces,
            };
            if op.file() == Some(file) {
                change.make(&op, written.clone());
                change.fill_inline(&op);
            }
            change.layout.is_gone = self.tree.is_gone(file);
            let path = self.tree.path_of(file);
            if let Some(attributes) = path.and_then(|path| self.tree.attributes(path)) {
                change.layout.mode = attributes.mode;
                change.layout.atime = attributes.atime.unwrap_or(change.layout.atime);
            }
            let layout = change.layout;
            history.push(state, layout);
        }
        self.ops.push(op);
    }

    fn push_tree(&mut self, op: &Op, state: u32) {
        let before = self.trees.last().expect("state 0 is always there").clone();
        let last = self.promised.last().copied().unwrap_or(0);
        match *op {
            Op::Name(op) => {
                self.tree.apply(op, state);
                let promised = match op {
                    NameOp::Fsync(path) => Some(self.tree.promised(path)),
                    NameOp::Fdatasync(path) => Some(self.tree.promised_data(path)),
                    _ => self.tree.is_in_step(op).then_some(state),
                };
                self.synced
                    .extend(promised.map(|promised| (state, promised)));
            }
            Op::SetMode { file, mode } => {
                let path = self.path_of(file).to_owned();
                self.tree.change(&path, Attribute::Mode(mode), state);
            }
            Op::SetTime { file, secs } => {
                let path = self.path_of(file).to_owned();
                self.tree.set_atime(&path, secs, state);
            }
            Op::Fsync { file } | Op::FsyncQueued { file } => {
                let promised = self.tree.promised(self.path_of(file));
                self.synced.insert(state, promised);
            }
            Op::Fdatasync { file } | Op::FdatasyncQueued { file } => {
                let promised = self.tree.promised_data(self.path_of(file));
                self.synced.insert(state, promised);
            }
            _ => {}
        }
        let tree = self.tree.tree();
        let changed = tree != *before;
        self.trees
            .push(if changed { Arc::new(tree) } else { before });
        self.promised.push(if changed { state } else { last });
    }

    /// The state that a sync after `state` promises, as far as names go.
    pub(crate) fn promised_names(&self, state: u32) -> u32 {
        self.promised[state as usize]
    }

    /// The state that the `fsync` or `fdatasync` that leads to `state` promises, or a call that is durable by itself.
    pub(crate) fn synced_names(&self, state: u32) -> u32 {
        self.synced.get(&state).copied().unwrap_or(0)
    }

    /// Where an operation that promises its own data wrote: file, space, sectors of it.
    pub(crate) fn promised_by(&self, state: u32) -> Vec<(FileNo, usize, Range<u64>)> {
        let (file, range) = match self.ops[state as usize - 1] {
            Op::Write {
                file,
                offset,
                len,
                durable: Durable::Data | Durable::Full,
            }
            | Op::WriteQueued {
                file,
                offset,
                len,
                durable: Durable::Data | Durable::Full,
            }
            | Op::WriteAtomic {
                file,
                offset,
                len,
                durable: Durable::Data | Durable::Full,
            }
            | Op::Allocate {
                file,
                mode:
                    Mode::PunchHole | Mode::ZeroRange | Mode::ZeroRangeKeepSize | Mode::WriteZeroes,
                offset,
                len,
                durable: Durable::Data | Durable::Full,
            } => (file, offset..offset + len),
            Op::Append {
                file,
                len,
                durable: Durable::Data | Durable::Full,
            }
            | Op::AppendQueued {
                file,
                len,
                durable: Durable::Data | Durable::Full,
            } => {
                let size = self.files[file].layouts[state as usize - 1].size;
                (file, size..size + len)
            }
            _ => return Vec::new(),
        };
        let layout = &self.files[file].layouts[state as usize];
        let pieces = blocks(range, self.units.block_bytes);
        let space = |(block, within): (u64, Range<u64>)| {
            let sectors = within.start / SECTOR..within.end.div_ceil(SECTOR);
            Some((file, layout.slots.get(&block)?.space, sectors))
        };
        pieces.into_iter().filter_map(space).collect()
    }
}

impl History {
    fn new(units: Units, file: FileNo, spec: &FileSpec, (mode, atime): (u16, i64)) -> History {
        let block_bytes = units.block_bytes;
        let sectors = (block_bytes / SECTOR) as usize;
        let mut layout = Layout {
            is_gone: false,
            size: spec.size,
            inline: spec.size <= units.inline_bytes && units.inline_bytes > 0,
            mode,
            atime,
            slots: BTreeMap::new(),
        };
        let mut spaces: Vec<Versions> = Vec::new();
        let all = spec.data.iter().map(|range| (range, true));
        for (range, written) in all.chain(spec.unwritten.iter().map(|range| (range, false))) {
            for (block, within) in blocks(range.clone(), block_bytes) {
                let mut bytes = vec![0; block_bytes as usize].into_boxed_slice();
                if written {
                    let start = block * block_bytes;
                    content::fill(file, 0, start, &mut bytes[..within.end as usize]);
                }
                let slot = Slot {
                    space: spaces.len(),
                    written,
                    floors: vec![0; sectors],
                };
                layout.slots.insert(block, slot);
                spaces.push(vec![(0, bytes)]);
            }
        }
        History {
            layouts: vec![Arc::new(layout)],
            spaces,
            mapped: vec![0],
            changed: vec![0],
        }
    }

    fn now(&self) -> &Arc<Layout> {
        self.layouts.last().expect("state 0 is always there")
    }

    fn push(&mut self, state: u32, layout: Layout) {
        let before = self.now().clone();
        let mapped = layout.size != before.size || layout.slots != before.slots;
        let changed = layout != *before;
        let last = |list: &[u32]| list.last().copied().unwrap_or(0);
        let (last_mapped, last_changed) = (last(&self.mapped), last(&self.changed));
        self.mapped.push(if mapped { state } else { last_mapped });
        self.changed
            .push(if changed { state } else { last_changed });
        self.layouts.push(match changed {
            true => Arc::new(layout),
            false => before,
        });
    }
}

/// The blocks that a range touches, and what it touches of each, in bytes from the block's first.
fn blocks(range: Range<u64>, block_bytes: u64) -> Vec<(u64, Range<u64>)> {
    let touched = range.start / block_bytes..range.end.div_ceil(block_bytes);
    let part = |block: u64| {
        let start = block * block_bytes;
        let within = range.start.max(start) - start..range.end.min(start + block_bytes) - start;
        (block, within)
    };
    match range.is_empty() {
        true => Vec::new(),
        false => touched.map(part).collect(),
    }
}

/// One operation on one file.
struct Change<'a> {
    state: u32,
    units: Units,
    layout: Layout,
    spaces: &'a mut Vec<Versions>,
}

impl Change<'_> {
    fn make(&mut self, op: &Op, written: Option<(FileNo, Range<u64>)>) {
        if let Some((file, range)) = written {
            if matches!(op, Op::WriteAtomic { .. }) {
                self.fill_early(range.clone());
            }
            return self.write(file, range);
        }
        match *op {
            Op::SetLen { len, .. } => self.set_len(len),
            Op::Allocate {
                mode, offset, len, ..
            } => self.allocate(mode, offset..offset + len),
            Op::SetMode { mode, .. } => self.layout.mode = mode,
            Op::SetTime { secs, .. } => self.layout.atime = secs,
            _ => {}
        }
    }

    fn write(&mut self, file: FileNo, range: Range<u64>) {
        let old_size = self.layout.size;
        for (block, within) in blocks(range.clone(), self.units.block_bytes) {
            let start = block * self.units.block_bytes;
            let mut bytes = self.make_visible(block);
            let part = &mut bytes[within.start as usize..within.end as usize];
            content::fill(file, self.state, start + within.start, part);
            let space = self.layout.slots[&block].space;
            self.put(space, bytes);
        }
        self.extend(range.end.max(old_size));
    }

    /// An atomic write may be committed as zeros before its data comes, unless all that it meets is a hole.
    fn fill_early(&mut self, range: Range<u64>) {
        let all = blocks(range.clone(), self.units.block_bytes);
        if !all
            .iter()
            .any(|(block, _)| self.layout.slots.contains_key(block))
        {
            return;
        }
        let (state, before) = (self.state, self.state - 1);
        self.state = before;
        for (block, _) in all {
            if !self
                .layout
                .slots
                .get(&block)
                .is_some_and(|slot| slot.written)
            {
                let zeros = self.make_visible(block);
                let space = self.layout.slots[&block].space;
                self.put(space, zeros);
            }
        }
        self.extend(range.end);
        self.state = state;
    }

    /// Content that still lies in the inode has no holes.
    fn fill_inline(&mut self, op: &Op) {
        let moved_out = matches!(op, Op::Allocate { .. });
        self.layout.inline &= !moved_out && self.layout.size <= self.units.inline_bytes;
        if self.layout.inline && self.layout.size > 0 {
            self.make_visible(0);
        }
    }

    /// What a block holds, of which a part is about to be written; allocated if it is a hole.
    fn make_visible(&mut self, block: u64) -> Box<[u8]> {
        if let Some(slot) = self.layout.slots.get(&block)
            && slot.written
        {
            return self.bytes_of(slot.space);
        }
        let space = match self.layout.slots.get(&block) {
            Some(slot) => slot.space,
            None => self.new_space(),
        };
        let slot = self.slot(space, true);
        self.layout.slots.insert(block, slot);
        self.zeros()
    }

    fn zeros(&self) -> Box<[u8]> {
        vec![0; self.units.block_bytes as usize].into()
    }

    fn slot(&self, space: usize, written: bool) -> Slot {
        Slot {
            space,
            written,
            floors: vec![self.state; (self.units.block_bytes / SECTOR) as usize],
        }
    }

    fn new_space(&mut self) -> usize {
        let zeros = self.zeros();
        self.spaces.push(vec![(self.state, zeros)]);
        self.spaces.len() - 1
    }

    /// Makes blocks holes.
    fn free(&mut self, blocks: Range<u64>) {
        self.layout.slots.retain(|block, _| !blocks.contains(block));
    }

    fn bytes_of(&self, space: usize) -> Box<[u8]> {
        let newest = self.spaces[space].last();
        newest.expect("space is made with contents").1.clone()
    }

    fn put(&mut self, space: usize, bytes: Box<[u8]>) {
        let versions = &mut self.spaces[space];
        versions.retain(|(state, _)| *state != self.state);
        versions.push((self.state, bytes));
    }

    /// Raises the size. What becomes visible of the last block was made so by this operation.
    fn extend(&mut self, size: u64) {
        let old = self.layout.size;
        if size <= old {
            return;
        }
        let (block, within) = (old / self.units.block_bytes, old % self.units.block_bytes);
        let state = self.state;
        if let Some(slot) = self.layout.slots.get_mut(&block) {
            let floors = slot.floors.iter_mut().skip((within / SECTOR) as usize);
            floors.for_each(|floor| *floor = state);
        }
        self.layout.size = size;
    }

    fn set_len(&mut self, len: u64) {
        if len > self.layout.size {
            return self.extend(len);
        }
        self.free(len.div_ceil(self.units.block_bytes)..u64::MAX);
        let rest = len..len.next_multiple_of(self.units.block_bytes);
        self.zero_written(rest);
        self.layout.size = len;
    }

    fn allocate(&mut self, mode: Mode, range: Range<u64>) {
        match mode {
            Mode::Allocate | Mode::KeepSize => self.fill_holes(range.clone()),
            Mode::PunchHole => self.punch(range.clone()),
            Mode::ZeroRange | Mode::ZeroRangeKeepSize => self.zero(range.clone()),
            Mode::WriteZeroes => self.write_zeroes(range.clone()),
            Mode::CollapseRange => self.collapse(range.clone()),
            Mode::InsertRange => self.insert(range.clone()),
        }
        if matches!(mode, Mode::Allocate | Mode::ZeroRange | Mode::WriteZeroes) {
            self.extend(range.end);
        }
    }

    fn fill_holes(&mut self, range: Range<u64>) {
        for (block, _) in blocks(range, self.units.block_bytes) {
            if !self.layout.slots.contains_key(&block) {
                let space = self.new_space();
                let slot = self.slot(space, false);
                self.layout.slots.insert(block, slot);
            }
        }
    }

    fn is_whole(&self, within: &Range<u64>) -> bool {
        *within == (0..self.units.block_bytes)
    }

    /// Zeros bytes of written blocks.
    fn zero_written(&mut self, range: Range<u64>) {
        for (block, within) in blocks(range, self.units.block_bytes) {
            let Some(slot) = self.layout.slots.get(&block).filter(|slot| slot.written) else {
                continue;
            };
            let space = slot.space;
            let mut bytes = self.bytes_of(space);
            bytes[within.start as usize..within.end as usize].fill(0);
            self.put(space, bytes);
        }
    }

    fn punch(&mut self, range: Range<u64>) {
        for (block, within) in blocks(range, self.units.block_bytes) {
            let start = block * self.units.block_bytes;
            match self.is_whole(&within) {
                true => self.free(block..block + 1),
                false => self.zero_written(start + within.start..start + within.end),
            }
        }
    }

    fn zero(&mut self, range: Range<u64>) {
        self.fill_holes(range.clone());
        self.zero_written(range.clone());
        for (block, within) in blocks(range, self.units.block_bytes) {
            let whole = self.is_whole(&within);
            let slot = self.layout.slots.get_mut(&block);
            slot.expect("no hole is left").written &= !whole;
        }
    }

    fn write_zeroes(&mut self, range: Range<u64>) {
        for (block, within) in blocks(range, self.units.block_bytes) {
            let mut bytes = self.make_visible(block);
            bytes[within.start as usize..within.end as usize].fill(0);
            let space = self.layout.slots[&block].space;
            self.put(space, bytes);
        }
    }

    fn collapse(&mut self, range: Range<u64>) {
        let first = range.start / self.units.block_bytes;
        let count = (range.end - range.start) / self.units.block_bytes;
        self.free(first..first + count);
        shift(&mut self.layout.slots, first, |block| block - count);
        self.layout.size -= range.end - range.start;
    }

    fn insert(&mut self, range: Range<u64>) {
        let first = range.start / self.units.block_bytes;
        let count = (range.end - range.start) / self.units.block_bytes;
        shift(&mut self.layout.slots, first, |block| block + count);
        self.layout.size += range.end - range.start;
    }
}

/// Gives all blocks from `first` on another number.
fn shift(map: &mut BTreeMap<u64, Slot>, first: u64, to: impl Fn(u64) -> u64) {
    let moved = map.split_off(&first);
    map.extend(moved.into_iter().map(|(block, it)| (to(block), it)));
}
