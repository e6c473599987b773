//! Which group an inode goes to.
//!
//! A file goes to its parent's group, so that a directory's inodes are read together; else to another
//! group of the flex group, by steps that depend on the directory, else away in doubling steps: so the files of two large directories do
//! not follow each other from group to group. A directory's place decides where its files will be: one
//! at the top goes to the emptiest flex group, others stay near the parent while the flex group there
//! has not fewer inodes and clusters, nor more directories, than its share by much (Orlov's rule,
//! as ext4 has it).
//!
//! Other than in ext4, directories are spread over the groups of the flex group, whose tables lie beside each other
//! anyway: threads that make files in two directories then meet in no group's lock, bitmap or table.
//!
//! Nothing here is exact: counts are read without locks. Who allocates looks again.
//!
//! Rejected: each directory's last place as a place to begin the next search. It needs memory per
//! directory, and only saves looking at groups again that are in memory.

use super::inodes::{InodeAllocator, InodeKind};
use dioxide_format::types::{Group, Ino};
use dioxide_journal::Edit;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Where the search for the next directory at the top begins.
#[derive(Debug, Default)]
pub(super) struct Spread(AtomicU32);

impl Spread {
    /// A flex group, another one each time, well apart.
    fn next(&self, units: u32) -> u32 {
        let turn = self.0.fetch_add(1, Relaxed);
        ((u64::from(turn.wrapping_mul(0x9E37_79B9)) * u64::from(units)) >> 32) as u32
    }
}

/// What a flex group has, or must have.
#[derive(Clone, Copy, Debug, Default)]
struct Stock {
    inodes: u64,
    clusters: u64,
    dirs: u64,
}

impl Stock {
    /// At least the inodes and clusters of `limit`, and an inode.
    fn has(self, limit: Stock) -> bool {
        self.inodes >= limit.inodes.max(1) && self.clusters >= limit.clusters
    }
}

impl InodeAllocator {
    /// A group that probably has a free inode, the best for this one. Blocks on descriptors that were
    /// not looked at before.
    pub(super) fn choose(&self, edit: &dyn Edit, parent: Ino, kind: InodeKind) -> Group {
        let location = self.sb().inode_location(parent);
        let home = location.map_or(Group(0), |(group, _)| group);
        let found = match kind {
            InodeKind::File => self.near(edit, home, parent),
            InodeKind::Directory => self.in_share(edit, home),
            InodeKind::TopDirectory => self.emptiest(edit).or_else(|| self.in_share(edit, home)),
        };
        found.unwrap_or(home)
    }

    fn flex_size(&self) -> u32 {
        1 << self.sb().log_groups_per_flex().min(31)
    }

    /// Number of flex groups.
    fn units(&self) -> u32 {
        self.groups().count().div_ceil(self.flex_size())
    }

    fn groups_of(&self, unit: u32) -> Range<u32> {
        let first = u64::from(unit) * u64::from(self.flex_size());
        let end = first + u64::from(self.flex_size());
        first as u32..end.min(self.groups().count().into()) as u32
    }

    /// Free inodes and clusters of a group; none of a damaged one.
    fn free_in(&self, edit: &dyn Edit, group: Group) -> (u32, u32) {
        let inodes = self.peek(edit, group).unwrap_or(0);
        (inodes, self.blocks.peek(edit, group).unwrap_or(0))
    }

    fn stock(&self, edit: &dyn Edit, unit: u32) -> Stock {
        let mut sum = Stock::default();
        for group in self.groups_of(unit).map(Group) {
            let (inodes, clusters) = self.free_in(edit, group);
            sum.inodes += u64::from(inodes);
            sum.clusters += u64::from(clusters);
            if inodes > 0 {
                sum.dirs += u64::from(self.groups().used_dirs(group));
            }
        }
        sum
    }

    /// What each flex group has on average.
    fn average(&self) -> Stock {
        let units = u64::from(self.units().max(1));
        Stock {
            inodes: self.free_inodes() / units,
            clusters: self.blocks.free_clusters() / units,
            dirs: self.directories() / units,
        }
    }

    /// The first group of a flex group with a free inode; one with free blocks too, if there is.
    fn in_unit(&self, edit: &dyn Edit, unit: u32) -> Option<Group> {
        let all = || self.groups_of(unit).map(Group);
        let (with_inodes, with_both) = (
            |group: &Group| self.free_in(edit, *group).0 > 0,
            |group: &Group| self.has_both(edit, *group),
        );
        all().find(with_both).or_else(|| all().find(with_inodes))
    }

    fn has_both(&self, edit: &dyn Edit, group: Group) -> bool {
        let (inodes, clusters) = self.free_in(edit, group);
        inodes > 0 && clusters > 0
    }

    /// Among the flex groups that are no poorer than the average, the one with fewest directories.
    fn emptiest(&self, edit: &dyn Edit) -> Option<Group> {
        let (units, average) = (self.units(), self.average());
        let first = self.spread.next(units);
        let unit = (first..units)
            .chain(0..first)
            .map(|unit| (unit, self.stock(edit, unit)))
            .filter(|(_, stock)| stock.has(average))
            .min_by_key(|(_, stock)| stock.dirs)?
            .0;
        self.least_used(edit, unit, Group(0))
    }

    /// For a directory: of the groups of a flex group the one with fewest directories, the first from `home` on.
    fn least_used(&self, edit: &dyn Edit, unit: u32, home: Group) -> Option<Group> {
        let groups = self.groups_of(unit);
        let from = home.0.clamp(groups.start, groups.end);
        (from..groups.end)
            .chain(groups.start..from)
            .map(Group)
            .filter(|&group| self.has_both(edit, group))
            .min_by_key(|&group| self.groups().used_dirs(group))
            .or_else(|| self.in_unit(edit, unit))
    }

    /// The nearest flex group from `home` on that has its share; else one with an average of free
    /// inodes; else any with one.
    fn in_share(&self, edit: &dyn Edit, home: Group) -> Option<Group> {
        let (units, average) = (self.units(), self.average());
        let size = u64::from(self.flex_size());
        let inodes = u64::from(self.sb().inodes_per_group()) * size;
        let clusters = u64::from(self.sb().clusters_per_group()) * size;
        let limit = Stock {
            inodes: average.inodes.saturating_sub(inodes / 4),
            clusters: average.clusters.saturating_sub(clusters / 4),
            dirs: average.dirs + inodes / 16,
        };
        let first = home.0 / self.flex_size();
        let nearest = |fits: &dyn Fn(Stock) -> bool| {
            (first..units)
                .chain(0..first)
                .find(|&unit| fits(self.stock(edit, unit)))
        };
        let unit = nearest(&|stock| stock.has(limit) && stock.dirs < limit.dirs)
            .or_else(|| nearest(&|stock| stock.inodes >= average.inodes.max(1)))
            .or_else(|| nearest(&|stock| stock.inodes > 0))?;
        self.least_used(edit, unit, home)
    }

    /// A group for a file of a directory in `home`.
    fn near(&self, edit: &dyn Edit, home: Group, parent: Ino) -> Option<Group> {
        let count = self.groups().count();
        let unit = self.groups_of(home.0 / self.flex_size());
        let size = (unit.len() as u32).next_power_of_two();
        // Odd, so that all of them come.
        let step = parent.0.wrapping_mul(0x9E37_79B9) >> 16 | 1;
        let flex = (0..size)
            .map(|n| unit.start + (home.0 - unit.start).wrapping_add(n.wrapping_mul(step)) % size)
            .filter(|&group| group < unit.end);
        let start = (u64::from(home.0) + u64::from(parent.0)) % u64::from(count);
        let jumps = (0..32)
            .map(|bit| 1u64 << bit)
            .take_while(|&step| step < u64::from(count))
            // The sum of the steps so far: 1, 3, 7, …
            .map(|step| ((start + 2 * step - 1) % u64::from(count)) as u32);
        flex.chain(jumps)
            .map(Group)
            .find(|&group| self.has_both(edit, group))
            .or_else(|| {
                (home.0..count)
                    .chain(0..home.0)
                    .map(Group)
                    .find(|&group| self.free_in(edit, group).0 > 0)
            })
    }
}
