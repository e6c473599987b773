//! Going through the map of one inode, whatever it is made of, showing what is met.
//!
//! Pass 1 looks at everything that is shown; later passes go through the same maps again and look at
//! runs only.
//!
//! # Invariants
//! - A block of the map itself is followed once per inode, and only if the visitor lets it, so that the
//!   walk ends whatever the disk says. It does not recurse: levels are limited by the format.
//! - Runs are shown inside the file system only, in the order of the map.

use super::Checker;
use super::finding::Code;
use super::source::Source;
use dioxide_format::Error as FormatError;
use dioxide_format::extent::{self, Extent, ExtentNode, LBLK_END};
use dioxide_format::indirect;
use dioxide_format::inode::Inode;
use dioxide_format::types::{Ino, Lblk};
use std::collections::HashSet;
use std::ops::Range;

/// What is met on the way.
#[derive(Debug)]
pub(super) enum Seen {
    /// A block of the map itself. The visitor says whether to follow it.
    Node(u64),
    /// Blocks of data.
    Run(Run),
    /// Something is wrong, in this block of the map if not in the inode.
    Bad(Code, Option<u64>, String),
}

/// Data blocks one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) lblk: u64,
    pub(super) pblk: u64,
    pub(super) len: u64,
    pub(super) unwritten: bool,
}

impl Run {
    pub(super) fn blocks(&self) -> Range<u64> {
        self.pblk..self.pblk + self.len
    }
}

/// Sees what a walk meets; the answer counts for [`Seen::Node`] only.
pub(super) type Visit<'v> = dyn FnMut(Seen) -> bool + 'v;

struct Walk<'c, 'v, 'f> {
    checker: &'c WalkContext,
    visit: &'v mut Visit<'f>,
    nodes: HashSet<u64>,
    physical: Range<u64>,
}

/// What a walk needs: no more, so that a visitor can change the rest.
pub(super) struct WalkContext {
    pub(super) source: Source,
    pub(super) physical: Range<u64>,
    pub(super) block_bytes: u32,
    pub(super) seed: Option<u32>,
}

/// A node of an extent tree that is still to be read.
struct Pending {
    block: u64,
    depth: u16,
    logical: Range<u64>,
    /// Where its parent says that it begins.
    start: u64,
}

impl Checker<'_> {
    /// What walks through an inode's map need.
    pub(super) fn walk_context(&self, ino: Ino, inode: &Inode) -> WalkContext {
        WalkContext {
            source: self.source.clone(),
            physical: self.physical(),
            block_bytes: self.sb.block_size(),
            seed: self.seed.map(|seed| inode.seed(seed, ino)),
        }
    }
}

/// Whether `i_block` is a map: not of devices, fast symlinks, inline data.
pub(super) fn has_map(inode: &Inode) -> bool {
    use dioxide_format::inode::FileType::{Directory, Regular, Symlink};
    let kind = inode.file_type();
    let mapped = matches!(kind, Some(Regular | Directory | Symlink)) || inode.mode() == 0;
    mapped && !inode.has_inline_data() && !inode.is_fast_symlink()
}

/// Goes through the map of an inode for which [`has_map`].
pub(super) fn walk(context: &WalkContext, inode: &Inode, visit: &mut Visit<'_>) {
    let mut walk = Walk {
        checker: context,
        visit,
        nodes: HashSet::new(),
        physical: context.physical.clone(),
    };
    match inode.uses_extents() {
        true => walk.extents(inode),
        false => walk.indirect(inode),
    }
}

/// Which code an error of the format crate stands for, in an extent node.
fn code_of(error: &FormatError) -> Code {
    match error {
        FormatError::Checksum { .. } => Code::ExtentChecksum,
        FormatError::Corrupt { field, .. } => match *field {
            "ee_start" | "ei_leaf" => Code::ExtentRange,
            "ee_block" | "ei_block" | "ee_len" => Code::ExtentOrder,
            _ => Code::ExtentHeader,
        },
        _ => Code::ExtentHeader,
    }
}

impl Walk<'_, '_, '_> {
    fn bad(&mut self, code: Code, block: Option<u64>, text: impl ToString) {
        (self.visit)(Seen::Bad(code, block, text.to_string()));
    }

    fn run(&mut self, lblk: u64, pblk: u64, len: u64, unwritten: bool) {
        (self.visit)(Seen::Run(Run {
            lblk,
            pblk,
            len,
            unwritten,
        }));
    }

    /// Whether a block of the map is to be read.
    fn enter(&mut self, block: u64, code: Code, parent: Option<u64>) -> bool {
        if !self.physical.contains(&block) {
            let Range { start, end } = self.physical;
            self.bad(
                code,
                parent,
                format_args!("the map leads to block {block}, not in {start}..{end}"),
            );
            return false;
        }
        if !self.nodes.insert(block) {
            self.bad(
                Code::BlockLoop,
                parent,
                format_args!("the map leads to its block {block} again"),
            );
            return false;
        }
        (self.visit)(Seen::Node(block))
    }

    fn read(&mut self, block: u64) -> Option<Vec<u8>> {
        match self.checker.source.block(block) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                self.bad(Code::ReadError, Some(block), error);
                None
            }
        }
    }

    fn extents(&mut self, inode: &Inode) {
        let root = match ExtentNode::parse(inode.i_block(), None) {
            Ok(root) => root,
            Err(error) => return self.bad(code_of(&error), None, error),
        };
        let mut pending = self.node(&root, inode.i_block().len(), None, 0..LBLK_END);
        while let Some(next) = pending.pop() {
            if !self.enter(next.block, Code::ExtentRange, None) {
                continue;
            }
            let Some(bytes) = self.read(next.block) else {
                continue;
            };
            let children = self.block_node(&bytes, &next);
            pending.extend(children);
        }
    }

    fn block_node(&mut self, bytes: &[u8], from: &Pending) -> Vec<Pending> {
        let at = Some(from.block);
        let node = match ExtentNode::parse(bytes, Some(from.depth)) {
            Ok(node) => node,
            Err(error) => {
                self.bad(code_of(&error), at, error);
                return Vec::new();
            }
        };
        if let Some(seed) = self.checker.seed
            && let Err(error) = extent::verify_checksum(bytes, seed)
        {
            self.bad(Code::ExtentChecksum, at, error);
        }
        let first = node.extents().first().map(|e| e.lblk);
        let first = first.or(node.indices().first().map(|i| i.lblk));
        match first {
            Some(first) if u64::from(first.0) != from.start => self.bad(
                Code::ExtentIndexStart,
                at,
                format_args!(
                    "the node begins with block {first} of the file, its parent says {}",
                    from.start
                ),
            ),
            None => self.bad(Code::ExtentHeader, at, "a leaf without extents"),
            _ => {}
        }
        self.node(&node, bytes.len(), at, from.logical.clone())
    }

    /// Shows the runs of a node; what is below it, last first.
    fn node(
        &mut self,
        node: &ExtentNode,
        bytes: usize,
        at: Option<u64>,
        logical: Range<u64>,
    ) -> Vec<Pending> {
        let fits = (bytes - 12) / 12;
        let max = usize::from(node.header.eh_max);
        if max + 2 < fits {
            let text = format!("eh_max is {max}, there is room for {fits}");
            self.bad(Code::ExtentHeader, at, text);
        }
        if let Err(error) = node.validate(logical.clone(), self.physical.clone()) {
            self.bad(code_of(&error), at, error);
        }
        for extent in node.extents() {
            self.extent(extent);
        }
        let children = node.indices().iter().enumerate().rev();
        children
            .map(|(position, index)| Pending {
                block: index.leaf.0,
                depth: node.depth() - 1,
                logical: node.child_range(position, &logical),
                start: u64::from(index.lblk.0),
            })
            .collect()
    }

    fn extent(&mut self, extent: &Extent) {
        let (start, len) = (extent.pblk.0, u64::from(extent.len));
        let inside = start >= self.physical.start && start + len <= self.physical.end;
        if inside && len > 0 {
            self.run(extent.lblk.0.into(), start, len, extent.unwritten);
        }
    }

    fn indirect(&mut self, inode: &Inode) {
        let per = u64::from(indirect::pointers_per_block(self.checker.block_bytes));
        let pointers: Vec<u32> = indirect::pointers(inode.i_block()).collect();
        for (index, pointer) in (0..).zip(&pointers[..indirect::DIRECT as usize]) {
            self.data(index, *pointer, None);
        }
        let mut lblk = u64::from(indirect::DIRECT);
        for level in 1..=3 {
            self.tree(
                pointers[indirect::DIRECT as usize + level as usize - 1],
                level,
                lblk,
            );
            lblk += per.pow(level);
        }
    }

    fn data(&mut self, lblk: u64, pointer: u32, parent: Option<u64>) {
        if pointer == 0 {
            return;
        }
        let pblk = u64::from(pointer);
        if self.physical.contains(&pblk) {
            return self.run(lblk, pblk, 1, false);
        }
        let Range { start, end } = self.physical;
        self.bad(
            Code::BlockRange,
            parent,
            format_args!("block {lblk} of the file is block {pblk}, not in {start}..{end}"),
        );
    }

    /// The tree of pointer blocks below one of `i_block`'s last pointers.
    fn tree(&mut self, root: u32, levels: u32, lblk: u64) {
        let per = u64::from(indirect::pointers_per_block(self.checker.block_bytes));
        let mut pending = vec![(root, levels, lblk, None)];
        while let Some((pointer, level, lblk, parent)) = pending.pop() {
            let block = u64::from(pointer);
            if pointer == 0 || !self.enter(block, Code::BlockRange, parent) {
                continue;
            }
            let Some(bytes) = self.read(block) else {
                continue;
            };
            let step = per.pow(level - 1);
            let children = (0u64..).zip(indirect::pointers(&bytes));
            let children = children.map(|(index, pointer)| (pointer, lblk + index * step));
            if level == 1 {
                children.for_each(|(pointer, lblk)| self.data(lblk, pointer, Some(block)));
            } else {
                let below = children.map(|(pointer, lblk)| (pointer, level - 1, lblk, Some(block)));
                let from = pending.len();
                pending.extend(below.filter(|(pointer, ..)| *pointer != 0));
                pending[from..].reverse();
            }
        }
    }
}

/// The data blocks of an inode, in the order of the file: at most `most` runs, and about as many blocks of
/// the map are read, so that a small file with the map of a large one takes little time.
pub(super) fn runs_of(context: &WalkContext, inode: &Inode, most: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    if !has_map(inode) {
        return runs;
    }
    let mut nodes = 0;
    walk(context, inode, &mut |seen| match seen {
        Seen::Run(run) => {
            let count = runs.len();
            match runs.last_mut() {
                Some(last)
                    if last.lblk + last.len == run.lblk
                        && last.pblk + last.len == run.pblk
                        && last.unwritten == run.unwritten =>
                {
                    last.len += run.len;
                }
                _ if count < most => runs.push(run),
                _ => {}
            }
            true
        }
        Seen::Node(_) => {
            nodes += 1;
            nodes <= most + 16
        }
        Seen::Bad(..) => true,
    });
    runs.sort_by_key(|run| run.lblk);
    runs
}

/// Where a block of a file lies.
pub(super) fn place_of(runs: &[Run], lblk: Lblk) -> Option<u64> {
    run_of(runs, lblk).map(|run| run.pblk + u64::from(lblk.0) - run.lblk)
}

/// The run that holds a block of a file.
pub(super) fn run_of(runs: &[Run], lblk: Lblk) -> Option<&Run> {
    let lblk = u64::from(lblk.0);
    let after = runs.partition_point(|run| run.lblk <= lblk);
    let run = runs[..after].last()?;
    (lblk - run.lblk < run.len).then_some(run)
}
