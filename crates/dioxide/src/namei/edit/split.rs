//! What an index and its leaves become when a name finds no room, in memory.
//!
//! For: an index for a directory of one block, splitting a leaf, and the index blocks above that are
//! full, up to a new level. Not for: blocks for all that ([`super::grow`]).
//!
//! A leaf whose names fit together with the new one is packed instead; only where names have an order by
//! hash, because who lists them by their places would lose some. A leaf is split where its names, ordered by hash, have half of their bytes before them. If names of
//! one hash lie on both sides, the index says so by the lowest bit of the second leaf's hash.
//!
//! Invariant: the hashes of an index ascend; a leaf whose names contradict it is damage.

use super::grow::Made;
use crate::namei::dir::block::{Block, Blocks, Role};
use crate::namei::dir::index::Descent;
use crate::{Error, Result, Shortage};
use dioxide_format::dir::{self, DirEntry, DirFormat, min_rec_len};
use dioxide_format::htree::{self, DxEntries, DxEntry, DxNode, DxRoot, HashVersion};
use dioxide_format::types::Lblk;

/// Two leaves instead of one.
#[derive(Debug)]
pub(super) struct Halves {
    pub(super) low: Vec<u8>,
    pub(super) high: Vec<u8>,
    /// The hash of `high` in the index.
    pub(super) boundary: u32,
}

/// A leaf with these names, if they fit when they lie together.
pub(super) fn packed(
    names: &[DirEntry<'_>],
    format: &DirFormat,
) -> dioxide_format::Result<Option<Vec<u8>>> {
    let total: usize = names.iter().map(|name| min_rec_len(name.name.len())).sum();
    if total > dir::room(format) {
        return Ok(None);
    }
    let mut block = vec![0; format.block_size as usize];
    dir::fill(&mut block, format, names.iter().copied())?;
    Ok(Some(block))
}

/// Divides names between two leaves. They do not fit into one.
pub(super) fn divide(
    names: Vec<DirEntry<'_>>,
    format: &DirFormat,
    hash: impl Fn(&[u8]) -> u32,
) -> dioxide_format::Result<Halves> {
    let mut names: Vec<(u32, DirEntry<'_>)> = names
        .into_iter()
        .map(|name| (hash(name.name), name))
        .collect();
    names.sort_by_key(|&(hash, _)| hash);
    let at = middle(&names);
    let boundary = names[at].0;
    let goes_on = names[at - 1].0 == boundary;
    let leaf = |names: &[(u32, DirEntry<'_>)]| {
        let mut block = vec![0; format.block_size as usize];
        dir::fill(&mut block, format, names.iter().map(|&(_, name)| name))?;
        Ok(block)
    };
    Ok(Halves {
        low: leaf(&names[..at])?,
        high: leaf(&names[at..])?,
        boundary: boundary | u32::from(goes_on),
    })
}

/// How many names the first half has: neither has none. Names have at most 264 bytes, so that neither
/// half has more than the smallest block takes.
fn middle(names: &[(u32, DirEntry<'_>)]) -> usize {
    let bytes = |(_, name): &(u32, DirEntry<'_>)| min_rec_len(name.name.len());
    let total: usize = names.iter().map(bytes).sum();
    let mut before = 0;
    let at = names.iter().position(|name| {
        before += bytes(name);
        2 * before - bytes(name) >= total
    });
    at.unwrap_or(1).clamp(1, names.len() - 1)
}

/// An index for a directory whose one block is full.
pub(super) fn make_index(
    blocks: &Blocks<'_>,
    first: &Block,
    version: HashVersion,
    new: &DirEntry<'_>,
) -> Result<Made> {
    let format = &first.kind.format;
    let damage = |error| Error::format(error, first.place(blocks.dir));
    let slots = dir::slots(first.chain(), format).collect::<dioxide_format::Result<Vec<_>>>();
    let slots = slots.map_err(damage)?;
    let [dot, dotdot, names @ ..] = &slots[..] else {
        return Err(no_dots(blocks, first));
    };
    if dot.name != b"." || dotdot.name != b".." || !dot.is_used() || !dotdot.is_used() {
        return Err(no_dots(blocks, first));
    }
    let mut names: Vec<DirEntry<'_>> = names.iter().copied().filter(DirEntry::is_used).collect();
    names.push(*new);
    let mut made = Made::default();
    let all = [&[*dot, *dotdot], &names[..]].concat();
    if let Some(block) = packed(&all, format).map_err(damage)? {
        made.change(first.pblk, Role::Leaf, block);
        return Ok(made);
    }
    let halves = divide(names, format, hasher(blocks, version)).map_err(damage)?;
    made.gets_index = true;
    let low = Lblk(blocks.count + made.add(Role::Leaf, halves.low));
    let high = Lblk(blocks.count + made.add(Role::Leaf, halves.high));
    let entries = vec![entry(0, low), entry(halves.boundary, high)];
    let version = blocks.mount.sb.root_hash_version();
    let root = DxRoot::new(dot.ino, dotdot.ino, version, format, entries);
    let mut bytes = vec![0; format.block_size as usize];
    root.encode_into(&mut bytes).map_err(damage)?;
    made.change(first.pblk, Role::Root, bytes);
    Ok(made)
}

fn no_dots(blocks: &Blocks<'_>, first: &Block) -> Error {
    Error::Corrupt {
        structure: "directory",
        place: first.place(blocks.dir),
        what: "it does not begin with '.' and '..'".into(),
    }
}

fn hasher(blocks: &Blocks<'_>, version: HashVersion) -> impl Fn(&[u8]) -> u32 {
    let seed = blocks.mount.sb.hash_seed();
    move |name| htree::hash(name, version, seed).major
}

fn entry(hash: u32, block: Lblk) -> DxEntry {
    DxEntry {
        hash,
        raw_block: block.0,
    }
}

/// Splits a full leaf for a new name, and what is full above it.
///
/// # Errors
/// [`Error::NoSpace`] when the index takes no more; damage.
pub(super) fn split_leaf(descent: &Descent<'_>, leaf: &Block, new: &DirEntry<'_>) -> Result<Made> {
    let blocks = &descent.blocks;
    let format = &leaf.kind.format;
    let damage = |error| Error::format(error, leaf.place(blocks.dir));
    let names = dir::entries(leaf.chain(), format).chain([Ok(*new)]);
    let names = names.collect::<dioxide_format::Result<Vec<_>>>();
    let names = names.map_err(damage)?;
    let mut made = Made::default();
    if let Some(block) = packed(&names, format).map_err(damage)? {
        made.change(leaf.pblk, Role::Leaf, block);
        return Ok(made);
    }
    let halves = divide(names, format, hasher(blocks, descent.version)).map_err(damage)?;
    made.change(leaf.pblk, Role::Leaf, halves.low);
    let high = Lblk(blocks.count + made.add(Role::Leaf, halves.high));
    insert(descent, entry(halves.boundary, high), &mut made)?;
    Ok(made)
}

/// Puts an entry behind the one that was followed, in the lowest index block; splits those that are full.
fn insert(descent: &Descent<'_>, mut new: DxEntry, made: &mut Made) -> Result<()> {
    let count = descent.blocks.count;
    for (depth, frame) in descent.frames.iter().enumerate().rev() {
        let format = &frame.block.kind.format;
        let damage = |error| Error::format(error, frame.block.place(descent.blocks.dir));
        let mut bytes = frame.block.bytes.to_vec();
        let at = frame.at + 1;
        if depth == 0 {
            let mut root = DxRoot::parse(&bytes, format).map_err(damage)?;
            if root.entries.is_full() && root.indirect_levels() >= most_levels(format) {
                return Err(Error::NoSpace(Shortage::IndexEntries));
            }
            put_into_root(&mut root, at, new, format, count, made).map_err(damage)?;
            root.encode_into(&mut bytes).map_err(damage)?;
            made.change(frame.block.pblk, Role::Root, bytes);
            return Ok(());
        }
        let mut node = DxNode::parse(&bytes, format).map_err(damage)?;
        let upper = put_into_node(&mut node.entries, at, new, format).map_err(damage)?;
        node.encode_into(&mut bytes).map_err(damage)?;
        made.change(frame.block.pblk, Role::Node, bytes);
        let Some(upper) = upper else { return Ok(()) };
        let hash = upper.entries.as_slice()[0].hash;
        let block = encoded(&upper, format).map_err(damage)?;
        new = entry(hash, Lblk(count + made.add(Role::Node, block)));
    }
    unreachable!("the root ends it")
}

/// Index blocks that there may be between root and names.
fn most_levels(format: &DirFormat) -> u8 {
    1 + u8::from(format.large_dir)
}

/// Puts an entry into the root. If that is full, its entries go to a block of their own.
fn put_into_root(
    root: &mut DxRoot,
    at: usize,
    new: DxEntry,
    format: &DirFormat,
    count: u32,
    made: &mut Made,
) -> dioxide_format::Result<()> {
    if !root.entries.is_full() {
        return root.entries.insert(at, new);
    }
    let below = Lblk(count + made.count());
    // A node takes three more than a root.
    let mut node = DxNode::new(format, root.entries.replace_by(below));
    node.entries.insert(at, new)?;
    root.head.indirect_levels += 1;
    made.add(Role::Node, encoded(&node, format)?);
    Ok(())
}

/// Puts an entry into an index block. If that is full, returns its upper half.
fn put_into_node(
    node: &mut DxEntries,
    at: usize,
    new: DxEntry,
    format: &DirFormat,
) -> dioxide_format::Result<Option<DxNode>> {
    if !node.is_full() {
        return node.insert(at, new).map(|()| None);
    }
    node.admits(at, new.hash)?;
    let half = node.as_slice().len() / 2;
    let mut upper = DxNode::new(format, node.split_off(half));
    if at <= half {
        node.insert(at, new)?;
    } else {
        upper.entries.insert(at - half, new)?;
    }
    Ok(Some(upper))
}

fn encoded(node: &DxNode, format: &DirFormat) -> dioxide_format::Result<Vec<u8>> {
    let mut bytes = vec![0; format.block_size as usize];
    node.encode_into(&mut bytes)?;
    Ok(bytes)
}
