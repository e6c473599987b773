//! Pass 1B: who claims the blocks that were claimed more than once. Every map is gone through again,
//! which happens only if there are such blocks.

use super::Checker;
use super::finding::{At, Code};
use super::inodes::InodeInfo;
use super::walk::{Seen, has_map, walk};
use dioxide_format::types::{Group, Ino};
use std::collections::BTreeMap;
use std::ops::Range;

/// Owners of a block that are told.
const MOST_OWNERS: usize = 8;

type Owners = BTreeMap<u64, Vec<Ino>>;

impl Checker<'_> {
    pub(super) fn owners(&mut self) {
        if !self.claims.has_shared() {
            return;
        }
        let mut owners = Owners::new();
        // What this takes is not missing when directories are read.
        let budget = self.budget;
        for group in (0..self.sb.group_count()).map(Group) {
            let first = self.inodes.first_of(group);
            let used: Vec<Ino> = (first..)
                .zip(self.inodes.group(group))
                .filter(|(_, info): &(u32, &InodeInfo)| info.is_used())
                .map(|(ino, _)| Ino(ino))
                .collect();
            for ino in used {
                if !self.spend(1) || self.is_cancelled() {
                    break;
                }
                self.find_shared(ino, &mut owners);
            }
        }
        let is_spent = std::mem::replace(&mut self.budget, budget) == 0;
        // Half of the owners are not who claims a block.
        if self.is_cancelled() {
            return;
        }
        if is_spent {
            let text = "too much to read: not all owners of blocks that have several are told";
            self.find(Code::NotChecked, At::default(), text);
        }
        self.tell_owners(&owners);
    }

    fn find_shared(&mut self, ino: Ino, owners: &mut Owners) {
        let Some((inode, _)) = self.read_inode(ino) else {
            return;
        };
        if let Some(block) = inode.file_acl() {
            self.own(ino, block.0..block.0.saturating_add(1), owners);
        }
        if !has_map(&inode) || ino == Ino::RESIZE {
            return;
        }
        let context = self.walk_context(ino, &inode);
        walk(&context, &inode, &mut |seen| match seen {
            Seen::Node(block) => self.own(ino, block..block + 1, owners),
            Seen::Run(run) => self.own(ino, run.blocks(), owners),
            Seen::Bad(..) => true,
        });
    }

    /// Notes an inode as the owner of those blocks that have several. Whether to go on.
    fn own(&mut self, ino: Ino, blocks: Range<u64>, owners: &mut Owners) -> bool {
        if !self.spend(1) || self.is_cancelled() {
            return false;
        }
        let mut count = 0;
        for block in self.claims.shared_in(blocks) {
            count += 1;
            let owners = owners.entry(block).or_default();
            if owners.len() < MOST_OWNERS && owners.last() != Some(&ino) {
                owners.push(ino);
            }
        }
        self.spend(count)
    }

    /// Blocks that follow each other and have the same owners are one finding.
    fn tell_owners(&mut self, owners: &Owners) {
        let ratio = u64::from(self.sb.cluster_ratio());
        let all: Vec<_> = owners.iter().collect();
        for run in all.chunk_by(|a, b| a.0 + ratio == *b.0 && a.1 == b.1) {
            let (block, inodes) = run[0];
            let end = run[run.len() - 1].0 + ratio - 1;
            let fixed = self.groups.fixed_at(&(*block..*block + ratio));
            let mut names: Vec<String> = inodes.iter().map(|ino| format!("inode {ino}")).collect();
            names.extend(fixed.map(|fixed| fixed.to_string()));
            let who = match names.len() {
                1 => format!("{} twice", names[0]),
                _ => names.join(", "),
            };
            let place = At::ino(inodes[0]).in_block(*block);
            let text = format!("blocks {block} to {end} are claimed by {who}");
            self.find(Code::MultiplyClaimed, place, text);
        }
    }
}
