//! Pass 5: bitmaps and counts against what is in use.

use super::Checker;
use super::finding::{At, Code, Pass};
use dioxide_format::bitmap;
use dioxide_format::group_desc::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT};
use dioxide_format::types::{Group, Pblk};
use std::ops::Range;

/// Runs of differences that are told of each bitmap.
const MOST_RUNS: usize = 8;

/// What the groups have free, together.
#[derive(Default)]
struct Totals {
    blocks: u64,
    inodes: u64,
    /// Some group is not known.
    partial: bool,
}

impl Checker<'_> {
    pub(super) fn pass5(&mut self) {
        let mut totals = Totals::default();
        for group in (0..self.sb.group_count()).map(Group) {
            self.group_summary(group, &mut totals);
            self.step(Pass::Pass5);
            if self.is_cancelled() {
                return;
            }
        }
        self.judge_totals(&totals);
    }

    fn group_summary(&mut self, group: Group, totals: &mut Totals) {
        let Some(state) = self.groups.get(group) else {
            return;
        };
        let (desc, usable) = (state.desc.clone(), state.usable);
        let flags = if state.summed { desc.flags() } else { 0 };
        let clusters = self.sb.clusters_in_group(group) as usize;
        let used = self.used_clusters(group, clusters);
        let free = bitmap::count_free(&used, clusters) as u32;
        self.usage.blocks +=
            (clusters as u64 - u64::from(free)) * u64::from(self.sb.cluster_ratio());
        if !usable {
            totals.partial = true;
            return;
        }
        totals.blocks += u64::from(free) * u64::from(self.sb.cluster_ratio());
        self.block_bitmap(group, &desc, flags, &used, free);
        self.inode_bitmap(group, &desc, flags, totals);
    }

    /// The block bitmap that a group should have.
    fn used_clusters(&self, group: Group, clusters: usize) -> Vec<u8> {
        let bytes = self.sb.block_size() as usize;
        let mut used = vec![0; bytes];
        if let Some(map) = self.claims.group(group) {
            let len = map.len().min(bytes);
            used[..len].copy_from_slice(&map[..len]);
        }
        bitmap::put_range(&mut used, clusters..bytes * 8, true);
        used
    }

    fn block_bitmap(&mut self, group: Group, desc: &GroupDesc, flags: u16, used: &[u8], free: u32) {
        let clusters = self.sb.clusters_in_group(group) as usize;
        let stored = desc.free_clusters_count();
        if stored != free {
            let text = format!("{stored} free clusters are counted, {free} are free");
            self.find(Code::GroupFreeBlocks, At::group(group), text);
        }
        if flags & BLOCK_UNINIT != 0 {
            if group.0 + 1 == self.sb.group_count() {
                let text = "the last group's block bitmap was never written, so that bits past the end are not set";
                self.find(Code::GroupUninit, At::group(group), text);
            }
            return self.judge_uninit_blocks(group, clusters, used);
        }
        let block = desc.block_bitmap().0;
        let place = At::group(group).in_block(block);
        let read = self.source.block(block);
        let Some(found) = self.readable(place.clone(), read) else {
            return;
        };
        if self.may_be_unwritten(desc, BLOCK_UNINIT, &found) {
            return;
        }
        if self.seed.is_some()
            && self.primary
            && let Err(error) = bitmap::verify_block_bitmap(&found, &self.sb, desc)
        {
            self.find(Code::BlockBitmapChecksum, place.clone(), error.to_string());
        }
        let first = self.sb.group_first_block(group).0;
        let ratio = u64::from(self.sb.cluster_ratio());
        if let Some(text) = differences(&found, used, clusters, |bit| first + bit as u64 * ratio) {
            self.find(Code::BlockBitmap, place.clone(), text);
        }
        let end = self.sb.block_size() as usize * 8;
        if bitmap::next_zero(&found, clusters, end).is_some() {
            let text = "bits past the end are not set";
            self.find(Code::BlockBitmapPadding, place, text);
        }
    }

    /// Whether a bitmap may never have been written, where only a backup of the descriptor tells.
    fn may_be_unwritten(&self, desc: &GroupDesc, flag: u16, found: &[u8]) -> bool {
        !self.primary && desc.flags() & flag != 0 && found.iter().all(|&byte| byte == 0)
    }

    /// A group whose block bitmap was never written has nothing in use but fixed metadata.
    fn judge_uninit_blocks(&mut self, group: Group, clusters: usize, used: &[u8]) {
        let first = self.sb.group_first_block(group).0;
        let ratio = u64::from(self.sb.cluster_ratio());
        let mut from = 0;
        while let Some(bit) = bitmap::next_set(used, from, clusters) {
            let start = first + bit as u64 * ratio;
            let Some(fixed) = self.groups.fixed_at(&(start..start + ratio)) else {
                if self.sb.mmp_block().ok().flatten() == Some(Pblk(start)) {
                    from = bit + 1;
                    continue;
                }
                let text = format!("block {start} is in use in a group that was never used");
                return self.find(Code::GroupUninit, At::group(group).in_block(start), text);
            };
            let past = (fixed.blocks.end - first).div_ceil(ratio) as usize;
            from = past.max(bit + 1);
        }
    }

    fn inode_bitmap(&mut self, group: Group, desc: &GroupDesc, flags: u16, totals: &mut Totals) {
        let count = self.sb.inodes_per_group() as usize;
        let (used, dirs) = self.used_inodes(group);
        let free = bitmap::count_free(&used, count) as u32;
        totals.inodes += u64::from(free);
        let counts = [
            (
                Code::GroupFreeInodes,
                desc.free_inodes_count(),
                free,
                "free inodes",
            ),
            (Code::GroupDirs, desc.used_dirs_count(), dirs, "directories"),
        ];
        for (code, stored, found, what) in counts {
            if stored != found {
                let text = format!("{stored} {what} are counted, {found} were found");
                self.find(code, At::group(group), text);
            }
        }
        if flags & INODE_UNINIT != 0 {
            return self.judge_uninit_inodes(group, desc, free);
        }
        self.judge_inode_bitmap(group, desc, &used, count);
    }

    fn judge_uninit_inodes(&mut self, group: Group, desc: &GroupDesc, free: u32) {
        if free == self.sb.inodes_per_group() {
            return;
        }
        let place = At::group(group).in_block(desc.inode_bitmap().0);
        let text = "inodes are in use in a group that was never used";
        self.find(Code::GroupUninit, place, text);
    }

    fn judge_inode_bitmap(&mut self, group: Group, desc: &GroupDesc, used: &[u8], count: usize) {
        let block = desc.inode_bitmap().0;
        let place = At::group(group).in_block(block);
        let read = self.source.block(block);
        let Some(found) = self.readable(place.clone(), read) else {
            return;
        };
        if self.may_be_unwritten(desc, INODE_UNINIT, &found) {
            return;
        }
        if self.seed.is_some()
            && self.primary
            && let Err(error) = bitmap::verify_inode_bitmap(&found, &self.sb, desc)
        {
            self.find(Code::InodeBitmapChecksum, place.clone(), error.to_string());
        }
        let first = u64::from(self.inodes.first_of(group));
        if let Some(text) = differences(&found, used, count, |bit| first + bit as u64) {
            self.find(Code::InodeBitmap, place.clone(), text);
        }
        let end = self.sb.block_size() as usize * 8;
        if bitmap::next_zero(&found, count, end).is_some() {
            let text = "bits past the end are not set";
            self.find(Code::InodeBitmapPadding, place, text);
        }
    }

    /// The inode bitmap that a group should have, and how many directories it has.
    fn used_inodes(&self, group: Group) -> (Vec<u8>, u32) {
        let mut used = vec![0; self.sb.block_size() as usize];
        let first = self.inodes.first_of(group);
        let mut dirs = 0;
        for (index, info) in self.inodes.group(group).iter().enumerate() {
            if info.is_used() {
                bitmap::put(&mut used, index, true);
                dirs += u32::from(info.is_dir());
            }
        }
        let reserved = (self.sb.first_ino().0).saturating_sub(first) as usize;
        let reserved = reserved.min(self.sb.inodes_per_group() as usize);
        bitmap::put_range(&mut used, 0..reserved, true);
        (used, dirs)
    }

    fn judge_totals(&mut self, totals: &Totals) {
        let reserved = u64::from(self.sb.first_ino().0) - 1;
        self.usage.inodes += reserved;
        // What is before the first group counts, as e2fsck and the superblock have it.
        self.usage.blocks += self.sb.first_data_block().0;
        // After a crash the superblock has the counts of the last mount.
        if totals.partial || !self.primary || self.recovered {
            return;
        }
        let (stored, found) = (self.sb.free_blocks_count(), totals.blocks);
        if stored != found {
            let text = format!("{stored} free blocks are counted, {found} are free");
            self.find(Code::TotalFreeBlocks, At::default(), text);
        }
        let (stored, found) = (u64::from(self.sb.free_inodes_count()), totals.inodes);
        if stored != found {
            let text = format!("{stored} free inodes are counted, {found} are free");
            self.find(Code::TotalFreeInodes, At::default(), text);
        }
    }
}

/// The runs of bits in which bitmaps differ, in words: `+` in use and not marked, `-` the reverse.
fn differences(
    found: &[u8],
    used: &[u8],
    bits: usize,
    number: impl Fn(usize) -> u64,
) -> Option<String> {
    if found[..bits / 8] == used[..bits / 8] && bits.is_multiple_of(8) {
        return None;
    }
    let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
    let mut more = false;
    for bit in 0..bits {
        let is_used = bitmap::get(used, bit);
        if is_used == bitmap::get(found, bit) {
            continue;
        }
        let count = runs.len();
        match runs.last_mut() {
            Some((run, kind)) if run.end == bit && *kind == is_used => run.end += 1,
            _ if count < MOST_RUNS => runs.push((bit..bit + 1, is_used)),
            _ => {
                more = true;
                break;
            }
        }
    }
    if runs.is_empty() {
        return None;
    }
    let mut words: Vec<String> = runs
        .iter()
        .map(|(run, is_used)| {
            let sign = if *is_used { '+' } else { '-' };
            let (first, last) = (number(run.start), number(run.end - 1));
            match first == last {
                true => format!("{sign}{first}"),
                false => format!("{sign}({first}-{last})"),
            }
        })
        .collect();
    words.extend(more.then(|| "…".to_owned()));
    Some(format!("the bitmap differs: {}", words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::differences;

    #[test]
    fn differences_are_told_as_runs_with_their_sign() {
        let text = differences(&[0b0000_0111, 0], &[0b0011_0001, 0], 16, |bit| {
            bit as u64 + 100
        });
        assert_eq!(text.unwrap(), "the bitmap differs: -(101-102) +(104-105)");
        assert_eq!(differences(&[5, 9], &[5, 8], 8, |bit| bit as u64), None);
    }

    #[test]
    fn differences_past_the_limit_end_with_dots() {
        let text = differences(&[0x55; 4], &[0; 4], 32, |bit| bit as u64).unwrap();
        assert!(text.ends_with("-14 …"), "{text}");
    }
}
