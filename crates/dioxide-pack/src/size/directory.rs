//! Blocks of a directory whose names come one after the other, as Linux puts them: an index is built
//! in memory, split by split.

use super::Layout;
use dioxide::format::dir::min_rec_len;
use dioxide::format::htree::hash;

/// What `.` and `..` take.
const DOTS: u64 = 24;
/// How many of the last blocks of a directory without index are looked at for room.
const LOOKED_AT: usize = 64;

/// Whether the entries fit into the inode itself, without the room for attributes.
pub(super) fn fits_inline(names: &[&[u8]]) -> bool {
    names
        .iter()
        .map(|name| min_rec_len(name.len()))
        .sum::<usize>()
        <= 56
}

/// Blocks of the directory.
pub(super) fn blocks(names: &[&[u8]], layout: &Layout) -> u64 {
    let capacity = u64::from(layout.block_bytes) - if layout.metadata_csum { 12 } else { 0 };
    let all: u64 = names
        .iter()
        .map(|name| min_rec_len(name.len()) as u64)
        .sum();
    match all + DOTS <= capacity {
        true => 1,
        false if layout.dir_index => Index::new(layout, capacity).fill(names),
        false => linear(names, capacity),
    }
}

/// Each name goes to the first block that has room.
fn linear(names: &[&[u8]], capacity: u64) -> u64 {
    let mut full = 0;
    let mut open = vec![capacity - DOTS];
    for name in names {
        let len = min_rec_len(name.len()) as u64;
        match open.iter_mut().find(|free| **free >= len) {
            Some(free) => *free -= len,
            None => open.push(capacity - len),
        }
        if open.len() > LOOKED_AT {
            open.remove(0);
            full += 1;
        }
    }
    full + open.len() as u64
}

/// A leaf: where it begins, what it holds.
#[derive(Default)]
struct Leaf {
    first: u32,
    used: u64,
    /// Hash and length of each entry, in the order in which they lie in the block.
    entries: Vec<(u32, u16)>,
}

struct Index<'a> {
    layout: &'a Layout,
    capacity: u64,
    leaves: Vec<Leaf>,
    /// Leaves below each node of the level above them; the root is not among them.
    nodes: Vec<u64>,
}

impl Index<'_> {
    fn new(layout: &Layout, capacity: u64) -> Index<'_> {
        Index {
            layout,
            capacity,
            leaves: vec![Leaf::default()],
            nodes: Vec::new(),
        }
    }

    fn fill(mut self, names: &[&[u8]]) -> u64 {
        for name in names {
            let hash = hash(name, self.layout.hash_version, self.layout.hash_seed).major;
            self.insert(hash, min_rec_len(name.len()) as u16);
        }
        let (root, node) = self.limits();
        let nodes = self.nodes.len() as u64;
        // The third level: nodes that are split in the middle.
        let third = if nodes > root {
            nodes.div_ceil(node / 2)
        } else {
            0
        };
        1 + third + nodes + self.leaves.len() as u64
    }

    /// Entries that the root and other nodes hold.
    fn limits(&self) -> (u64, u64) {
        let bytes =
            u64::from(self.layout.block_bytes) - if self.layout.metadata_csum { 8 } else { 0 };
        ((bytes - 32) / 8, (bytes - 8) / 8)
    }

    fn leaf_of(&self, hash: u32) -> usize {
        self.leaves
            .partition_point(|leaf| leaf.first <= hash)
            .max(1)
            - 1
    }

    fn insert(&mut self, hash: u32, len: u16) {
        let mut at = self.leaf_of(hash);
        // The first leaf is a plain directory block, with dots, until it is split.
        let dots = if self.leaves.len() == 1 { DOTS } else { 0 };
        if self.leaves[at].used + dots + u64::from(len) > self.capacity {
            self.split(at);
            at = self.leaf_of(hash);
        }
        let leaf = &mut self.leaves[at];
        leaf.used += u64::from(len);
        leaf.entries.push((hash, len));
    }

    /// The upper half, by bytes, moves to a new leaf.
    fn split(&mut self, at: usize) {
        let half = u64::from(self.layout.block_bytes) / 2;
        let leaf = &mut self.leaves[at];
        // The last one in the block has what is free as well, and is measured with it.
        let slack = self.capacity - leaf.used;
        let last = leaf.entries.len() - 1;
        let sized = |(at, entry): (usize, &(u32, u16))| {
            let len = u64::from(entry.1) + if at == last { slack } else { 0 };
            (entry.0, len, at)
        };
        let mut map: Vec<_> = leaf.entries.iter().enumerate().map(sized).collect();
        map.sort_by_key(|entry| entry.0);
        let mut moved = 0;
        let mut keep = map.len();
        while keep > 0 && moved + map[keep - 1].1 / 2 <= half {
            moved += map[keep - 1].1;
            keep -= 1;
        }
        if keep <= 1 {
            keep = (map.len() / 2).max(1);
        }
        let upper: Vec<_> = map[keep..]
            .iter()
            .map(|entry| leaf.entries[entry.2])
            .collect();
        // In the order of the block, as they stay there.
        let mut lower: Vec<usize> = map[..keep].iter().map(|entry| entry.2).collect();
        lower.sort_unstable();
        leaf.entries = lower.into_iter().map(|at| leaf.entries[at]).collect();
        let bytes = |entries: &[(u32, u16)]| entries.iter().map(|entry| u64::from(entry.1)).sum();
        leaf.used = bytes(&leaf.entries);
        let new = Leaf {
            first: upper.first().map_or(leaf.first, |entry| entry.0),
            used: bytes(&upper),
            entries: upper,
        };
        self.leaves.insert(at + 1, new);
        self.enter(at);
    }

    /// One more leaf below the node that leads to leaf `at`.
    fn enter(&mut self, at: usize) {
        let (root, node) = self.limits();
        if self.nodes.is_empty() {
            if self.leaves.len() as u64 > root {
                self.nodes.push(self.leaves.len() as u64);
            }
            return;
        }
        let mut below = 0;
        let found = self.nodes.iter().position(|count| {
            below += count;
            below > at as u64
        });
        let found = found.unwrap_or(self.nodes.len() - 1);
        self.nodes[found] += 1;
        if self.nodes[found] > node {
            let half = self.nodes[found] / 2;
            self.nodes[found] -= half;
            self.nodes.insert(found + 1, half);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_that_fits_one_block_has_one_and_then_three() {
        let names: Vec<Vec<u8>> = (0..400).map(|i| format!("{i:04}").into_bytes()).collect();
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let layout = Layout::default();
        // 12 bytes each, beside the dots and the checksum.
        let most = (4096 - 12 - 24) / 12;
        assert_eq!(blocks(&names[..most], &layout), 1);
        assert_eq!(blocks(&names[..most + 1], &layout), 3);
        let linear = Layout {
            dir_index: false,
            ..layout
        };
        assert_eq!(blocks(&names[..most + 1], &linear), 2);
    }

    #[test]
    fn index_whose_root_is_full_gets_nodes() {
        let layout = Layout {
            block_bytes: 1024,
            ..Layout::default()
        };
        let names: Vec<Vec<u8>> = (0..20_000)
            .map(|i| format!("{i:032}").into_bytes())
            .collect();
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let found = blocks(&names, &layout);
        // Leaves of 25 entries, filled by 50 % at least.
        assert!((800..1700).contains(&found), "{found}");
        let mut index = Index::new(&layout, 1012);
        for name in &names {
            index.insert(hash(name, layout.hash_version, layout.hash_seed).major, 40);
        }
        assert_eq!(index.nodes.iter().sum::<u64>(), index.leaves.len() as u64);
        assert!(index.nodes.len() > 4, "{}", index.nodes.len());
        assert!(index.leaves.is_sorted_by_key(|leaf| leaf.first));
    }
}
