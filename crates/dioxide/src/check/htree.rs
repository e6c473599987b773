//! Pass 2: the hash indexes of directories: that each block is referenced exactly once, and that each
//! name lies where its hash leads.

use super::Checker;
use super::finding::{At, Code};
use super::pass2::Dir;
use super::walk::place_of;
use dioxide_format::dir::DirEntry;
use dioxide_format::htree::{DxEntries, DxNode, HashVersion, SIPHASH, hash};
use dioxide_format::inode::InodeFlags;
use dioxide_format::types::Lblk;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// What the index says of a block of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Part of the index.
    Node,
    /// Names with hashes from the one to the other, both included.
    Leaf(u32, u32),
}

/// An index, block by block.
pub(super) struct Index {
    /// Of blocks that are there and that it leads to.
    roles: HashMap<u32, Role>,
    /// Where names are not hashed as they are (folded), none.
    version: Option<HashVersion>,
}

/// A part of the index that is to be read.
struct Part {
    block: Lblk,
    level: u8,
    hashes: (u32, u32),
}

impl Index {
    pub(super) fn is_node(&self, lblk: Lblk) -> bool {
        self.roles.get(&lblk.0) == Some(&Role::Node)
    }
}

impl Checker<'_> {
    /// Reads a directory's index; none if its root is damaged.
    pub(super) fn index(&mut self, dir: &Dir) -> Option<Index> {
        let root = self.index_root(dir)?;
        let flags = dir.inode.flags();
        let folds = flags.contains(InodeFlags::CASEFOLD);
        let found = root.head.hash_version;
        if (folds && flags.contains(InodeFlags::ENCRYPT)) != (found == SIPHASH) {
            let text = format!(
                "hash_version is {found}: {SIPHASH} is that of encrypted directories that fold case"
            );
            self.find(Code::HtreeRoot, self.index_place(dir, Lblk(0)), text);
        }
        let version = root.hash_version(self.sb.hash_is_unsigned()).ok();
        let mut index = Index {
            roles: HashMap::from([(0, Role::Node)]),
            version: version.filter(|_| !folds),
        };
        let levels = root.indirect_levels();
        let mut parts = self.children(dir, &root.entries, levels, (0, u32::MAX), Lblk(0));
        while let Some(part) = parts.pop() {
            let below = self.part(dir, &mut index, &part);
            parts.extend(below);
        }
        Some(index)
    }

    fn index_place(&self, dir: &Dir, lblk: Lblk) -> At {
        place_of(&dir.runs, lblk).map_or(dir.place(), |place| dir.place().in_block(place))
    }

    /// What is below a node, with the hashes that it may hold.
    fn children(
        &mut self,
        dir: &Dir,
        entries: &DxEntries,
        level: u8,
        hashes: (u32, u32),
        at: Lblk,
    ) -> Vec<Part> {
        let place = self.index_place(dir, at);
        if let Err(error) = entries.validate(dir.blocks) {
            self.find(Code::HtreeNode, place, error.to_string());
        }
        let all = entries.as_slice();
        let parts = all.iter().enumerate().map(|(position, entry)| {
            let first = if position == 0 {
                hashes.0
            } else {
                entry.hash & !1
            };
            let last = match all.get(position + 1) {
                // The lowest bit says that the hash's names begin in the block before.
                Some(next) if next.hash & 1 == 1 => next.hash & !1,
                Some(next) => next.hash.saturating_sub(1),
                None => hashes.1,
            };
            Part {
                block: entry.block(),
                level,
                hashes: (first, last),
            }
        });
        parts.collect()
    }

    /// Notes what a block is; what is below it.
    fn part(&mut self, dir: &Dir, index: &mut Index, part: &Part) -> Vec<Part> {
        let lblk = part.block;
        if lblk.0 >= dir.blocks {
            let text = format!("the index leads to block {lblk} of {}", dir.blocks);
            self.find(Code::HtreeReference, dir.place(), text);
            return Vec::new();
        }
        // A hole is told with the others.
        let Some(place) = place_of(&dir.runs, lblk) else {
            return Vec::new();
        };
        let role = match part.level {
            0 => Role::Leaf(part.hashes.0, part.hashes.1),
            _ => Role::Node,
        };
        match index.roles.entry(lblk.0) {
            Entry::Vacant(entry) => entry.insert(role),
            Entry::Occupied(_) => {
                let text = format!("the index leads to block {lblk} twice");
                self.find(Code::HtreeReference, dir.place(), text);
                return Vec::new();
            }
        };
        if part.level == 0 {
            return Vec::new();
        }
        let Ok(bytes) = self.source.block(place) else {
            return Vec::new();
        };
        match DxNode::parse(&bytes, &self.dir_format) {
            Ok(node) => self.children(dir, &node.entries, part.level - 1, part.hashes, lblk),
            Err(error) => {
                let at = dir.place().in_block(place);
                self.find(Code::HtreeNode, at, error.to_string());
                Vec::new()
            }
        }
    }

    /// Whether a name lies in a block that its hash leads to.
    pub(super) fn judge_hash(&mut self, dir: &Dir, lblk: Lblk, entry: &DirEntry<'_>, at: &At) {
        let Some(index) = &dir.index else { return };
        let (Some(version), Some(Role::Leaf(first, last))) =
            (index.version, index.roles.get(&lblk.0))
        else {
            return;
        };
        let major = hash(entry.name, version, self.sb.hash_seed()).major;
        if !(*first..=*last).contains(&major) {
            let name = entry.name.escape_ascii();
            let text =
                format!("`{name}` has hash {major:#010x}, its block {first:#010x} to {last:#010x}");
            let at = at.clone().offset(entry.offset as u64);
            self.find(Code::HtreeHash, at, text);
        }
    }

    /// Blocks that are there, and to which nothing leads.
    pub(super) fn judge_index(&mut self, dir: &Dir) {
        let Some(index) = &dir.index else { return };
        let mapped = dir.mapped.iter().cloned().flatten();
        for lblk in mapped.filter(|lblk| !index.roles.contains_key(lblk)) {
            let text = format!("the index does not lead to block {lblk}");
            let at = self.index_place(dir, Lblk(lblk));
            self.find(Code::HtreeReference, at, text);
        }
    }
}
