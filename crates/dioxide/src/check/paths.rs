//! Paths for findings. Names are not kept while checking; when there are findings, the directories that
//! matter are read once more.

use super::Checker;
use super::walk::runs_of;
use dioxide_format::dir;
use dioxide_format::inline_data::{self, InlineDir};
use dioxide_format::types::Ino;
use dioxide_format::xattr;
use std::collections::{HashMap, HashSet};

/// Inodes that get a path, and the longest path in names.
const MOST_INODES: usize = 1000;
const MOST_NAMES: usize = 256;

type Names = HashMap<Ino, (Ino, Vec<u8>)>;

impl Checker<'_> {
    /// Adds paths to the findings that have an inode.
    pub(super) fn name_findings(&mut self) {
        let mut wanted: HashSet<Ino> = HashSet::new();
        for finding in self.findings.kept_mut() {
            if wanted.len() < MOST_INODES {
                wanted.extend(finding.place.ino);
            }
        }
        if wanted.is_empty() {
            return;
        }
        for ino in wanted.clone() {
            self.want_ancestors(ino, &mut wanted);
        }
        let mut names = Names::new();
        // Files first need the directories that hold them, whose own names may not be wanted yet.
        for _ in 0..2 {
            self.collect(&wanted, &mut names);
            let parents: Vec<Ino> = names.values().map(|(parent, _)| *parent).collect();
            let before = wanted.len();
            for parent in parents {
                wanted.insert(parent);
                self.want_ancestors(parent, &mut wanted);
            }
            if wanted.len() == before {
                break;
            }
        }
        for finding in self.findings.kept_mut() {
            let path = finding.place.ino.and_then(|ino| path_of(ino, &names));
            finding.place.path = path;
        }
    }

    fn want_ancestors(&self, ino: Ino, wanted: &mut HashSet<Ino>) {
        let mut at = ino;
        for _ in 0..MOST_NAMES {
            match self.dirs.parent(at) {
                Some(parent) if wanted.insert(parent) => at = parent,
                _ => return,
            }
        }
    }

    fn collect(&mut self, wanted: &HashSet<Ino>, names: &mut Names) {
        for position in 0..self.dirs.len() {
            if names.len() >= wanted.len() || !self.spend(1) {
                return;
            }
            self.collect_from(self.dirs.ino(position), wanted, names);
        }
    }

    fn collect_from(&mut self, dir: Ino, wanted: &HashSet<Ino>, names: &mut Names) {
        let Some((inode, raw)) = self.read_inode(dir) else {
            return;
        };
        let format = self.dir_format.with_flags(inode.flags());
        let mut take = |entry: dioxide_format::Result<dir::DirEntry<'_>>| {
            let Ok(entry) = entry else { return };
            if wanted.contains(&entry.ino) && entry.name != b"." && entry.name != b".." {
                let name = || (dir, entry.name.to_vec());
                names.entry(entry.ino).or_insert_with(name);
            }
        };
        if inode.has_inline_data() {
            let entries = xattr::parse_in_inode(inode.in_inode_xattrs(&raw)).unwrap_or_default();
            let data = inline_data::system_data(&entries).unwrap_or(&[]);
            if let Ok(inline) = InlineDir::parse(&inode, data, &format) {
                inline.entries(&format).for_each(take);
            }
            return;
        }
        let blocks = inode.size().div_ceil(self.sb.block_size().into());
        let most = blocks.min(self.sb.blocks_count()) as usize;
        for run in runs_of(&self.walk_context(dir, &inode), &inode, most) {
            for block in run.blocks() {
                if !self.spend(1) {
                    return;
                }
                if let Ok(bytes) = self.source.block(block) {
                    dir::entries(&bytes, &format).for_each(&mut take);
                }
            }
        }
    }
}

fn path_of(ino: Ino, names: &Names) -> Option<String> {
    let mut at = ino;
    let mut parts = Vec::new();
    while at != Ino::ROOT {
        let (parent, name) = names.get(&at)?;
        if parts.len() == MOST_NAMES {
            return None;
        }
        parts.push(String::from_utf8_lossy(name));
        at = *parent;
    }
    parts.reverse();
    Some(format!("/{}", parts.join("/")))
}
