//! Pass 1: what an inode's map leads to, whether size and block count fit it.

use super::Checker;
use super::finding::{At, Code};
use super::inodes::ORPHAN;
use super::layout::Kind;
use super::walk::{Run, Seen, has_map, walk};
use dioxide_format::features::RoCompat;
use dioxide_format::indirect;
use dioxide_format::inode::{FileType, Inode, InodeFlags};
use dioxide_format::types::Ino;

/// What a map amounts to.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Blocks in use, whole clusters, those of the map included.
    pub(super) blocks: u64,
    /// One past the last block of the file.
    pub(super) end: u64,
    /// One past the last written block.
    pub(super) written_end: u64,
    /// Places where the file goes on elsewhere.
    pub(super) jumps: u64,
    /// Whether the last of the map's own blocks has a written one, if it has some.
    last_node_written: Option<bool>,
    /// The map is damaged, so that the rest of this says nothing.
    pub(super) damaged: bool,
    /// What the blocks are used for.
    kind: Kind,
    last: Option<Run>,
}

impl Checker<'_> {
    /// Judges the content of an inode in use, and marks its blocks.
    pub(super) fn contents(&mut self, ino: Ino, inode: &Inode, raw: &[u8]) {
        let mut tally = self.map_blocks(ino, inode);
        let xattrs = self.xattrs(ino, inode, raw);
        tally.blocks += xattrs.blocks;
        if tally.jumps > 0 && inode.file_type() == Some(FileType::Regular) {
            self.usage.fragmented_files += u64::from(ino >= self.sb.first_ino());
        }
        self.quota.partial |= tally.damaged;
        if tally.damaged {
            return;
        }
        self.count_quota(ino, inode, tally.blocks, xattrs.values);
        let huge = self.sb.features().ro_compat.contains(RoCompat::HUGE_FILE);
        let block_bytes = self.sb.block_size();
        let sectors = tally.blocks * u64::from(block_bytes / 512);
        let stored = inode.sectors(huge, block_bytes);
        if stored != sectors {
            let text = format!("i_blocks is {stored}, {sectors} are in use");
            self.find(Code::InodeBlocks, At::ino(ino), text);
        }
        if let Some(text) = self.wrong_size(ino, inode, &tally) {
            self.find(Code::InodeSize, At::ino(ino), text);
        }
    }

    fn kind_of(&self, ino: Ino, inode: &Inode) -> Kind {
        if self.sb.journal_inum() == Some(ino) {
            Kind::Journal
        } else if inode.is_dir() {
            Kind::Directory
        } else {
            Kind::Data
        }
    }

    /// Walks the map of an inode and marks what it leads to.
    pub(super) fn map_blocks(&mut self, ino: Ino, inode: &Inode) -> Tally {
        let mut tally = Tally {
            kind: self.kind_of(ino, inode),
            ..Tally::default()
        };
        if !has_map(inode) {
            return tally;
        }
        let context = self.walk_context(ino, inode);
        walk(&context, inode, &mut |seen| match seen {
            Seen::Node(block) => self.map_node(ino, block, &mut tally),
            Seen::Run(run) => self.map_run(ino, run, &mut tally),
            Seen::Bad(code, block, text) => {
                let place = block.map_or(At::ino(ino), |block| At::ino(ino).in_block(block));
                self.unreadable |= code == Code::ReadError;
                tally.damaged = true;
                self.find(code, place, text);
                true
            }
        });
        tally
    }

    fn map_node(&mut self, ino: Ino, block: u64, tally: &mut Tally) -> bool {
        let ratio = u64::from(self.sb.cluster_ratio());
        tally.blocks += ratio;
        tally.last_node_written = Some(false);
        self.layout.paint(tally.kind, block..block + ratio);
        if self.hits_fixed(ino, block, 1) {
            tally.damaged = true;
            self.claims.claim(block..block + 1);
            return false;
        }
        let taken = self.claims.claim(block..block + 1);
        // Whoever had it first went through what is below. What comes of half a map would not be true.
        let stops = taken || self.is_cancelled();
        tally.damaged |= stops;
        !stops
    }

    fn map_run(&mut self, ino: Ino, run: Run, tally: &mut Tally) -> bool {
        let ratio = u64::from(self.sb.cluster_ratio());
        let same = |a: u64, b: u64| a / ratio == b / ratio;
        let ends = tally
            .last
            .map(|last| (last.lblk + last.len - 1, last.pblk + last.len - 1));
        let splits = |(lend, pend)| same(lend, run.lblk) && !same(pend, run.pblk);
        // Bad blocks are where they are.
        let wrong = if ratio == 1 || ino == Ino::BAD_BLOCKS {
            None
        } else if run.pblk % ratio != run.lblk % ratio {
            Some("at its place in its cluster")
        } else {
            Some("in the cluster of the one before").filter(|_| ends.is_some_and(splits))
        };
        if let Some(wrong) = wrong {
            let text = format!("block {} of the file is not {wrong}", run.lblk);
            tally.damaged = true;
            self.find(
                Code::ClusterAlignment,
                At::ino(ino).in_block(run.pblk),
                text,
            );
        }
        tally.damaged |= self.hits_fixed(ino, run.pblk, run.len);
        let mut blocks = run.blocks();
        if let (Some(last), Some((lend, pend))) = (tally.last, ends) {
            let goes_on = last.lblk + last.len == run.lblk && last.pblk + last.len == run.pblk;
            tally.jumps += u64::from(!goes_on && last.pblk + last.len != run.pblk);
            if same(lend, run.lblk) && same(pend, run.pblk) {
                // The rest of a cluster that this file has already.
                blocks.start = (run.pblk / ratio + 1) * ratio;
            }
        }
        if blocks.start < blocks.end {
            let start = blocks.start / ratio * ratio;
            let end = blocks.end.next_multiple_of(ratio);
            tally.blocks += end - start;
            self.layout.paint(tally.kind, start..end);
            self.claims.claim(blocks);
        }
        let end = run.lblk + run.len;
        tally.end = tally.end.max(end);
        if !run.unwritten {
            tally.written_end = tally.written_end.max(end);
            tally.last_node_written = tally.last_node_written.map(|_| true);
        }
        tally.last = Some(run);
        true
    }

    /// Whether blocks of an inode are those of fixed metadata, which is a finding.
    fn hits_fixed(&mut self, ino: Ino, block: u64, len: u64) -> bool {
        let ratio = u64::from(self.sb.cluster_ratio());
        let start = match ratio {
            1 => block,
            _ => block / ratio * ratio,
        };
        let end = match ratio {
            1 => block + len,
            _ => (block + len).next_multiple_of(ratio),
        };
        let Some(fixed) = self.groups.fixed_at(&(start..end)) else {
            return false;
        };
        let text = format!("claims blocks {block}+{len}, where the {fixed} is");
        self.find(Code::MetadataClaimed, At::ino(ino).in_block(block), text);
        true
    }

    /// What is wrong with a size, if something is.
    fn wrong_size(&self, ino: Ino, inode: &Inode, tally: &Tally) -> Option<String> {
        let size = inode.size();
        let block_bytes = u64::from(self.sb.block_size());
        if inode.has_inline_data() || ino < self.sb.first_ino() && inode.mode() == 0 {
            return None;
        }
        match inode.file_type()? {
            FileType::Directory => {
                let expected = tally.end * block_bytes;
                let least = size.is_multiple_of(block_bytes) && size >= expected;
                let within = size.div_ceil(block_bytes) <= tally.end;
                (!least || !within).then(|| format!("i_size is {size}, expected {expected}"))
            }
            FileType::Regular => self.wrong_file_size(ino, inode, size, tally),
            _ => None,
        }
    }

    /// Where indirect blocks end, in bytes.
    pub(super) fn indirect_end(&self) -> u64 {
        let block_size = self.sb.block_size();
        (u64::from(indirect::max_lblk(block_size).0) + 1) * u64::from(block_size)
    }

    fn wrong_file_size(&self, ino: Ino, inode: &Inode, size: u64, tally: &Tally) -> Option<String> {
        let block_bytes = u64::from(self.sb.block_size());
        let is_verity = inode.flags().contains(InodeFlags::VERITY);
        let least = tally.written_end.saturating_sub(1) * block_bytes;
        // One written block may lie beyond the end, but not in the last leaf of a tree of extents. The next mount cuts orphans.
        let none_beyond = tally.last_node_written == Some(true)
            && inode.uses_extents()
            && !self.inodes.get(ino).has(ORPHAN);
        let most = match inode.uses_extents() {
            true => block_bytes << 32,
            false => self.indirect_end(),
        };
        let large = self.sb.features().ro_compat.contains(RoCompat::LARGE_FILE);
        if (size < least || size == least && none_beyond) && !is_verity {
            let end = tally.written_end * block_bytes;
            return Some(format!("i_size is {size}, with data up to {end}"));
        }
        // A block has the number before the last one at most.
        let beyond = size > most || size == most && inode.uses_extents();
        if beyond {
            return Some(format!("i_size is {size}, the map ends at {most}"));
        }
        (size >= 1 << 31 && !large).then(|| format!("i_size is {size}, without large_file"))
    }
}
