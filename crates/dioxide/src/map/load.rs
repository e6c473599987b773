//! Reading a file's map from the disk: extent trees and indirect blocks.
//!
//! Not for: keeping it ([`super::ExtentMap`]), or changing it.
//!
//! Invariants of what is handed on: runs ascend, do not overlap, lie inside the file system and
//! outside its own metadata. Both walks are iterative or of bounded depth, hold one node per level,
//! and read no more nodes than a map of that many blocks can have. A block of pointers is in one place of a
//! file: the map in memory is no larger than what lies on the disk lets it be.

use super::{MapGuard, Mapping, Run, RunSource};
use crate::inode::Inode;
use crate::mount::Mount;
use crate::mount::zone::ZoneCheck;
use crate::{Error, FileType, Place, Result};
use dioxide_format::extent::{self, ExtentEntries, ExtentNode, LBLK_END};
use dioxide_format::indirect;
use dioxide_format::types::{Lblk, Pblk};
use std::ops::Range;

/// Most tree nodes that one region's load reads: one leaf per block of the region, which is more
/// than a tree with anything in its leaves needs, and the index nodes above.
const VISITS: u32 = 2 * super::REGION_BLOCKS;

/// The mapping that covers `lblk`, at most `want` blocks of it (`want` is not 0). Blocks on
/// metadata if it is not in memory.
///
/// # Errors
/// Damage in the tree; [`Error::Unsupported`] for an inode whose content is not in blocks.
pub(crate) fn lookup_or_load(
    mount: &Mount,
    inode: &Inode,
    lblk: Lblk,
    want: u32,
) -> Result<Mapping> {
    loop {
        match inode.map.lookup(lblk, want) {
            Ok(mapping) => return Ok(mapping),
            Err(super::NotCached) => load(mount, inode, lblk)?,
        }
    }
}

/// As [`lookup_or_load`], for who holds the map's lock.
///
/// # Errors
/// As [`lookup_or_load`].
pub(crate) fn lookup_or_load_locked(
    mount: &Mount,
    inode: &Inode,
    lock: &MapGuard<'_>,
    lblk: Lblk,
    want: u32,
) -> Result<Mapping> {
    loop {
        match inode.map.lookup(lblk, want) {
            Ok(mapping) => return Ok(mapping),
            Err(super::NotCached) => with_source(mount, inode, |source| lock.load(lblk, source))?,
        }
    }
}

/// Brings the region that holds `lblk` into memory. Blocks on metadata.
///
/// # Errors
/// As [`lookup_or_load`].
pub(crate) fn load(mount: &Mount, inode: &Inode, lblk: Lblk) -> Result<()> {
    with_source(mount, inode, |source| inode.map.load(lblk, source))
}

fn with_source(
    mount: &Mount,
    inode: &Inode,
    load: impl FnOnce(&dyn RunSource) -> Result<()>,
) -> Result<()> {
    let has_blocks = matches!(
        inode.file_type(),
        FileType::Regular | FileType::Directory | FileType::Symlink
    );
    if !has_blocks || inode.has_inline_data() || inode.node().disk.is_fast_symlink() {
        return Err(Error::Unsupported(format!(
            "inode {} has no blocks: its content lies in the inode",
            inode.ino
        )));
    }
    let source = Source { mount, inode };
    if inode.is_extent_mapped() {
        load(&Extents(source))
    } else {
        load(&Indirect(source))
    }
}

/// Brings the first `blocks` blocks of the map into memory. Blocks on metadata.
///
/// # Errors
/// As [`lookup_or_load`].
pub(crate) fn preload(mount: &Mount, inode: &Inode, blocks: u64) -> Result<()> {
    let end = blocks.min(LBLK_END);
    for first in (0..end).step_by(super::REGION_BLOCKS as usize) {
        load(mount, inode, Lblk(first as u32))?;
    }
    Ok(())
}

struct Source<'a> {
    mount: &'a Mount,
    inode: &'a Inode,
}

impl Source<'_> {
    fn place(&self, block: Option<Pblk>) -> Place {
        Place {
            block: block.map(|block| block.0),
            ..self.inode.place()
        }
    }

    fn corrupt(&self, structure: &'static str, block: Option<Pblk>, what: String) -> Error {
        Error::Corrupt {
            structure,
            place: self.place(block),
            what,
        }
    }

    /// The blocks of `first ..= last` that matter. A directory ends with its size; what its map has
    /// behind that would only take memory.
    fn clip(&self, first: Lblk, last: Lblk) -> Range<u64> {
        let end = match self.inode.file_type() {
            FileType::Directory => self.inode.i_size().div_ceil(self.mount.block_bytes()),
            _ => LBLK_END,
        };
        u64::from(first.0)..end.min(u64::from(last.0) + 1)
    }

    /// Refuses blocks that are metadata. They lie inside the file system.
    fn outside_zone(
        &self,
        zone: &mut ZoneCheck<'_>,
        at: Option<Pblk>,
        start: Pblk,
        len: u64,
    ) -> Result<()> {
        if !zone.hits(start, len)? {
            return Ok(());
        }
        let what =
            format!("it points to blocks {start}+{len}, which hold the file system's own metadata");
        Err(self.corrupt("block map", at, what))
    }
}

/// A file mapped by an extent tree.
struct Extents<'a>(Source<'a>);

/// A node under way: its entries, which of them comes next, and what it may cover.
struct Frame {
    node: ExtentNode,
    block: Option<Pblk>,
    logical: Range<u64>,
    next: usize,
}

impl Extents<'_> {
    fn root(&self) -> Result<Frame> {
        self.frame(self.0.inode.node().disk.i_block(), None, None, 0..LBLK_END)
    }

    fn child(&self, block: Pblk, depth: u16, logical: Range<u64>) -> Result<Frame> {
        let Source { mount, inode } = self.0;
        let bytes = mount.read_meta(block)?;
        if let Some(seed) = mount.checksum_seed() {
            extent::verify_checksum(&bytes, inode.node().disk.seed(seed, inode.ino))
                .map_err(|error| Error::format(error, self.0.place(Some(block))))?;
        }
        self.frame(&bytes, Some(block), Some(depth), logical)
    }

    fn frame(
        &self,
        bytes: &[u8],
        block: Option<Pblk>,
        depth: Option<u16>,
        logical: Range<u64>,
    ) -> Result<Frame> {
        let format = |error| Error::format(error, self.0.place(block));
        let node = ExtentNode::parse(bytes, depth).map_err(format)?;
        node.validate(logical.clone(), self.0.mount.physical_blocks())
            .map_err(format)?;
        Ok(Frame {
            node,
            block,
            logical,
            next: 0,
        })
    }

    /// Hands on the extents of a leaf that overlap `first ..= last`.
    fn emit_leaf(
        &self,
        leaf: &Frame,
        blocks: Range<u64>,
        zone: &mut ZoneCheck<'_>,
        emit: &mut dyn FnMut(Run),
    ) -> Result<()> {
        for extent in leaf.node.extents() {
            if extent.end() <= blocks.start {
                continue;
            }
            if u64::from(extent.lblk.0) >= blocks.end {
                break;
            }
            self.0
                .outside_zone(zone, leaf.block, extent.pblk, u64::from(extent.len))?;
            emit(Run {
                lblk: extent.lblk,
                len: u32::from(extent.len),
                pblk: extent.pblk,
                unwritten: extent.unwritten,
            });
        }
        Ok(())
    }
}

impl RunSource for Extents<'_> {
    fn runs(&self, first: Lblk, last: Lblk, emit: &mut dyn FnMut(Run)) -> Result<()> {
        let blocks = self.0.clip(first, last);
        let mut zone = ZoneCheck::new(self.0.mount, self.0.inode.ino);
        let mut visits = VISITS;
        let mut stack = vec![self.root()?];
        while let Some(top) = stack.last_mut() {
            let ExtentEntries::Index(index) = &top.node.entries else {
                self.emit_leaf(top, blocks.clone(), &mut zone, emit)?;
                stack.pop();
                continue;
            };
            let Some(entry) = index.get(top.next) else {
                stack.pop();
                continue;
            };
            let logical = top.node.child_range(top.next, &top.logical);
            let (leaf, depth, parent) = (entry.leaf, top.node.depth() - 1, top.block);
            top.next += 1;
            if logical.end <= blocks.start {
                continue;
            }
            if logical.start >= blocks.end {
                stack.pop();
                continue;
            }
            visits = visits.checked_sub(1).ok_or_else(|| {
                self.0.corrupt(
                    "extent tree",
                    parent,
                    "it has more nodes than blocks".into(),
                )
            })?;
            self.0.outside_zone(&mut zone, parent, leaf, 1)?;
            let child = self.child(leaf, depth, logical)?;
            stack.push(child);
        }
        Ok(())
    }
}

/// A file mapped by indirect blocks.
struct Indirect<'a>(Source<'a>);

/// Joins blocks that lie in a row on the disk as well, and checks and emits the runs.
struct Joiner<'a, 'b> {
    source: &'a Source<'b>,
    zone: ZoneCheck<'a>,
    run: Option<Run>,
    emit: &'a mut dyn FnMut(Run),
}

impl Joiner<'_, '_> {
    fn push(&mut self, lblk: u32, pblk: Pblk) -> Result<()> {
        if let Some(run) = &mut self.run
            && u64::from(run.lblk.0) + u64::from(run.len) == u64::from(lblk)
            && run.pblk.0 + u64::from(run.len) == pblk.0
        {
            run.len += 1;
            return Ok(());
        }
        self.finish()?;
        self.run = Some(Run {
            lblk: Lblk(lblk),
            len: 1,
            pblk,
            unwritten: false,
        });
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let Some(run) = self.run.take() else {
            return Ok(());
        };
        self.source
            .outside_zone(&mut self.zone, None, run.pblk, u64::from(run.len))?;
        (self.emit)(run);
        Ok(())
    }
}

/// Where a block of pointers is in a file: the first block that it covers, and how many levels are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    first: u64,
    levels: u32,
}

/// A pointer and what it leads to.
#[derive(Clone, Copy)]
struct Branch {
    pointer: u32,
    /// Where the pointer is stored; `None` is the inode.
    found_in: Option<Pblk>,
    /// Pointer blocks between it and the data.
    levels: u32,
    /// The first block of the file that it covers.
    first: u64,
}

impl Indirect<'_> {
    /// How many blocks of the file a pointer covers.
    fn span(&self, levels: u32) -> u64 {
        u64::from(indirect::pointers_per_block(
            self.0.mount.block_bytes() as u32
        ))
        .pow(levels)
    }

    /// The pointers in the inode.
    fn roots(&self) -> Vec<Branch> {
        let mut first = 0;
        let node = self.0.inode.node();
        let pointers = indirect::pointers(node.disk.i_block()).enumerate();
        pointers
            .map(|(at, pointer)| {
                let levels = (at as u32 + 1).saturating_sub(indirect::DIRECT);
                let branch = Branch {
                    pointer,
                    found_in: None,
                    levels,
                    first,
                };
                first += self.span(levels);
                branch
            })
            .collect()
    }

    /// Follows a pointer. Recursion goes at most three levels deep.
    fn walk(&self, branch: Branch, blocks: &Range<u64>, joiner: &mut Joiner<'_, '_>) -> Result<()> {
        let Branch {
            pointer,
            found_in,
            levels,
            first,
        } = branch;
        let misses = first >= blocks.end || first + self.span(levels) <= blocks.start;
        if pointer == 0 || misses {
            return Ok(());
        }
        let pblk = self.check_pointer(pointer, found_in)?;
        if levels == 0 {
            return joiner.push(first as u32, pblk);
        }
        self.0.outside_zone(&mut joiner.zone, found_in, pblk, 1)?;
        self.is_only_here(pblk, Spot { first, levels })?;
        let bytes = self.0.mount.read_meta(pblk)?;
        let step = self.span(levels - 1);
        // Only the pointers of the range are looked at.
        let skip = blocks.start.saturating_sub(first) / step;
        for (at, pointer) in indirect::pointers(&bytes).enumerate().skip(skip as usize) {
            let first = first + at as u64 * step;
            if first >= blocks.end {
                break;
            }
            self.walk(
                Branch {
                    pointer,
                    found_in: Some(pblk),
                    levels: levels - 1,
                    first,
                },
                blocks,
                joiner,
            )?;
        }
        Ok(())
    }

    /// Notes where a block of pointers is, and refuses one that is elsewhere in the file too.
    fn is_only_here(&self, pblk: Pblk, here: Spot) -> Result<()> {
        let known = self.0.inode.pointer_blocks();
        let before = known.lock().get(&pblk).copied();
        // It may have gone from there since it was read.
        if let Some(there) = before.filter(|there| *there != here)
            && self.pointer_at(there)? == pblk.0
        {
            let what = format!(
                "it is a block of pointers for block {} and for block {} of the file",
                there.first, here.first
            );
            return Err(self.0.corrupt("indirect block", Some(pblk), what));
        }
        known.lock().insert(pblk, here);
        Ok(())
    }

    /// What leads to a block of pointers now; 0 for nothing.
    fn pointer_at(&self, spot: Spot) -> Result<u64> {
        let covers = |levels, first| (first..first + self.span(levels)).contains(&spot.first);
        let mut roots = self.roots().into_iter();
        let Some(root) = roots.find(|root| covers(root.levels, root.first)) else {
            return Ok(0);
        };
        let Branch {
            mut pointer,
            mut levels,
            mut first,
            ..
        } = root;
        while pointer != 0 && levels > spot.levels {
            let bytes = self.0.mount.read_meta(self.check_pointer(pointer, None)?)?;
            levels -= 1;
            let at = (spot.first - first) / self.span(levels);
            first += at * self.span(levels);
            pointer = indirect::pointers(&bytes).nth(at as usize).unwrap_or(0);
        }
        Ok(pointer.into())
    }

    fn check_pointer(&self, pointer: u32, found_in: Option<Pblk>) -> Result<Pblk> {
        let allowed = self.0.mount.physical_blocks();
        if allowed.contains(&u64::from(pointer)) {
            return Ok(Pblk(u64::from(pointer)));
        }
        let what = format!(
            "pointer is {pointer}, expected {} to {}",
            allowed.start,
            allowed.end - 1
        );
        Err(self.0.corrupt("indirect block", found_in, what))
    }
}

impl RunSource for Indirect<'_> {
    fn runs(&self, first: Lblk, last: Lblk, emit: &mut dyn FnMut(Run)) -> Result<()> {
        let blocks = self.0.clip(first, last);
        let zone = ZoneCheck::new(self.0.mount, self.0.inode.ino);
        let mut joiner = Joiner {
            source: &self.0,
            zone,
            run: None,
            emit,
        };
        for branch in self.roots() {
            self.walk(branch, &blocks, &mut joiner)?;
        }
        joiner.finish()
    }
}
