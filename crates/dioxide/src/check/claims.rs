//! Which blocks are in use: one bit for each cluster, made for a group when something in it is used,
//! and the clusters that were claimed twice.
//!
//! A bit map has the form of the group's own, so that pass 5 compares bytes.
//!
//! Rejected: the owner of each block. It takes thirty times the memory, and whose a block is matters
//! only where there are two, which pass 1B finds by going through all maps again.

use dioxide_format::bitmap;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::Group;
use std::collections::HashSet;
use std::ops::Range;

/// Most clusters with several owners that are told apart.
const MOST_SHARED: usize = 1 << 20;

/// See the module header.
#[derive(Debug)]
pub(super) struct Claims {
    first: u64,
    end: u64,
    ratio: u64,
    per_group: u64,
    groups: Vec<Option<Box<[u8]>>>,
    shared: HashSet<u64>,
}

impl Claims {
    pub(super) fn new(sb: &SuperBlock) -> Claims {
        Claims {
            first: sb.first_data_block().0,
            end: sb.blocks_count(),
            ratio: u64::from(sb.cluster_ratio()),
            per_group: u64::from(sb.clusters_per_group()),
            groups: vec![None; sb.group_count() as usize],
            shared: HashSet::new(),
        }
    }

    /// The cluster of a block, counted from the first of group 0.
    fn cluster(&self, block: u64) -> u64 {
        (block - self.first) / self.ratio
    }

    fn clusters(&self, blocks: &Range<u64>) -> Range<u64> {
        let start = blocks.start.clamp(self.first, self.end);
        let end = blocks.end.clamp(start, self.end);
        if start == end {
            return 0..0;
        }
        self.cluster(start)..self.cluster(end - 1) + 1
    }

    fn map_mut(&mut self, group: u64) -> &mut [u8] {
        let bytes = self.per_group as usize / 8;
        self.groups[group as usize].get_or_insert_with(|| vec![0; bytes].into())
    }

    /// The parts of a run of clusters, by group.
    fn parts(&self, clusters: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
        let per_group = self.per_group;
        let groups = match clusters.is_empty() {
            true => 0..0,
            false => clusters.start / per_group..(clusters.end - 1) / per_group + 1,
        };
        groups.map(move |group| {
            let base = group * per_group;
            let start = clusters.start.max(base) - base;
            let end = clusters.end.min(base + per_group) - base;
            (group, start as usize..end as usize)
        })
    }

    /// Marks fixed metadata. Overlaps among it are somebody else's matter.
    pub(super) fn fix(&mut self, blocks: Range<u64>) {
        for (group, bits) in self.parts(self.clusters(&blocks)) {
            bitmap::put_range(self.map_mut(group), bits, true);
        }
    }

    /// Marks blocks for an owner. Whether another had some of them.
    pub(super) fn claim(&mut self, blocks: Range<u64>) -> bool {
        let mut taken = false;
        for (group, bits) in self.parts(self.clusters(&blocks)) {
            let per_group = self.per_group;
            let map = self.map_mut(group);
            let mut from = bits.start;
            let mut shared = Vec::new();
            while let Some(at) = bitmap::next_set(map, from, bits.end) {
                shared.push(group * per_group + at as u64);
                from = at + 1;
            }
            bitmap::put_range(map, bits, true);
            taken |= !shared.is_empty();
            let room = MOST_SHARED.saturating_sub(self.shared.len());
            self.shared.extend(shared.into_iter().take(room));
        }
        taken
    }

    /// Whether some cluster has several owners.
    pub(super) fn has_shared(&self) -> bool {
        !self.shared.is_empty()
    }

    /// The clusters among these blocks that have several owners, by their first block.
    pub(super) fn shared_in(&self, blocks: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        let clusters = self.clusters(&blocks);
        let shared = clusters.filter(|cluster| self.shared.contains(cluster));
        shared.map(|cluster| self.first + cluster * self.ratio)
    }

    /// What is used of a group; nothing where nothing is.
    pub(super) fn group(&self, group: Group) -> Option<&[u8]> {
        self.groups.get(group.0 as usize)?.as_deref()
    }
}
