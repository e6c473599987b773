//! Which blocks are in use: one bit for each cluster, made for a group when something in it is used,
//! and one for each that was claimed twice, made for a group when something in it was.
//!
//! A bit map has the form of the group's own, so that pass 5 compares bytes. Marking a run again takes no longer than
//! the first time, and no more memory: a small map can lead to the same blocks very often.
//!
//! Rejected: the owner of each block. It takes thirty times the memory, and whose a block is matters
//! only where there are two, which pass 1B finds by going through all maps again.

use dioxide_format::bitmap;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::Group;
use std::collections::HashMap;
use std::ops::Range;

/// About how many clusters with several owners are told apart.
const MOST_SHARED: usize = 1 << 20;
/// Most memory for their bits.
const MOST_SHARED_BYTES: usize = 16 << 20;

/// See the module header.
#[derive(Debug)]
pub(super) struct Claims {
    first: u64,
    end: u64,
    ratio: u64,
    per_group: u64,
    groups: Vec<Option<Box<[u8]>>>,
    /// Clusters with several owners, by group.
    shared: HashMap<u64, Box<[u8]>>,
    /// How many those are.
    shared_count: usize,
}

impl Claims {
    pub(super) fn new(sb: &SuperBlock) -> Claims {
        Claims {
            first: sb.first_data_block().0,
            end: sb.blocks_count(),
            ratio: u64::from(sb.cluster_ratio()),
            per_group: u64::from(sb.clusters_per_group()),
            groups: vec![None; sb.group_count() as usize],
            shared: HashMap::new(),
            shared_count: 0,
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
            if bitmap::next_set(self.map_mut(group), bits.start, bits.end).is_some() {
                taken = true;
                self.note_shared(group, &bits);
            }
            bitmap::put_range(self.map_mut(group), bits, true);
        }
        taken
    }

    /// Notes those of a group's clusters that have an owner already.
    fn note_shared(&mut self, group: u64, bits: &Range<usize>) {
        let Some(used) = &self.groups[group as usize] else {
            return;
        };
        let is_new = !self.shared.contains_key(&group);
        let bytes = (self.shared.len() + usize::from(is_new)) * used.len();
        if self.shared_count >= MOST_SHARED || bytes > MOST_SHARED_BYTES {
            return;
        }
        let empty = || vec![0; used.len()].into();
        let shared = self.shared.entry(group).or_insert_with(empty);
        for index in bits.start / 8..bits.end.div_ceil(8) {
            let from = bits.start.saturating_sub(8 * index);
            let end = (bits.end - 8 * index).min(8);
            let asked = (0xFF_u32 << from & 0xFF >> (8 - end)) as u8;
            let new = used[index] & asked & !shared[index];
            shared[index] |= new;
            self.shared_count += new.count_ones() as usize;
        }
    }

    /// Whether some cluster has several owners.
    pub(super) fn has_shared(&self) -> bool {
        self.shared_count > 0
    }

    /// The clusters among these blocks that have several owners, by their first block.
    pub(super) fn shared_in(&self, blocks: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        let parts = self.parts(self.clusters(&blocks));
        let clusters = parts.flat_map(move |(group, bits)| {
            let shared = self.shared.get(&group);
            let next = move |from| bitmap::next_set(shared?, from, bits.end);
            let all = std::iter::successors(next(bits.start), move |at| next(at + 1));
            all.map(move |at| group * self.per_group + at as u64)
        });
        clusters.map(|cluster| self.first + cluster * self.ratio)
    }

    /// What is used of a group; nothing where nothing is.
    pub(super) fn group(&self, group: Group) -> Option<&[u8]> {
        self.groups.get(group.0 as usize)?.as_deref()
    }
}
