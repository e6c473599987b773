//! Pass 2: the blocks of directories and the entries in them.

use super::Checker;
use super::finding::{At, Code, Pass};
use super::htree::Index;
use super::inodes::EA_INODE;
use super::walk::{Run, place_of, run_of, runs_of};
use dioxide_format::dir::{self, DirEntry};
use dioxide_format::htree::{self, DxRoot};
use dioxide_format::inline_data::{self, InlineDir};
use dioxide_format::inode::{FileType, Inode, InodeFlags};
use dioxide_format::types::{Ino, Lblk};
use dioxide_format::xattr;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

/// Fewest bytes of an encrypted name: a block of the cipher.
const ENCRYPTED_NAME_MIN: usize = 16;
/// What is encrypted where its directory is.
const ENCRYPTABLE: [FileType; 3] = [FileType::Regular, FileType::Directory, FileType::Symlink];

/// A directory that is being read.
pub(super) struct Dir {
    pub(super) ino: Ino,
    pub(super) inode: Inode,
    pub(super) runs: Vec<Run>,
    pub(super) blocks: u32,
    /// Those of the blocks that are there: the others may be very many, and nothing takes memory or time for them.
    pub(super) mapped: Vec<Range<u32>>,
    /// Two hashes of each name.
    names: HashSet<(u64, u64)>,
    hashers: [RandomState; 2],
    pub(super) index: Option<Index>,
}

impl Dir {
    /// Whether a name is new.
    fn is_new(&mut self, name: &[u8]) -> bool {
        let [a, b] = &self.hashers;
        self.names.insert((a.hash_one(name), b.hash_one(name)))
    }

    pub(super) fn place(&self) -> At {
        At::ino(self.ino)
    }
}

/// The parts of the first blocks of a directory that runs map, in order.
fn mapped_of(runs: &[Run], blocks: u32) -> Vec<Range<u32>> {
    let mut mapped: Vec<Range<u32>> = Vec::new();
    for run in runs {
        let end = (run.lblk + run.len).min(blocks.into()) as u32;
        let before = mapped.last().map_or(0, |part| part.end);
        let start = run.lblk.max(before.into()).min(end.into()) as u32;
        if start < end {
            mapped.push(start..end);
        }
    }
    mapped
}

impl Checker<'_> {
    pub(super) fn pass2(&mut self) {
        for position in 0..self.dirs.len() {
            self.directory(self.dirs.ino(position));
            if position % 64 == 0 {
                self.steps.total = self.steps.total.max(self.steps.done + 1);
                let done = self.steps.done;
                self.step(Pass::Pass2);
                self.steps.done = done;
            }
            if self.is_cancelled() {
                return;
            }
        }
    }

    fn directory(&mut self, ino: Ino) {
        let Some((inode, raw)) = self.read_inode(ino) else {
            return;
        };
        if inode.flags().contains(InodeFlags::CASEFOLD) && !self.folds {
            self.folds = true;
            let text =
                "names in directories that fold case: whether some fold alike, and their hashes";
            self.find(Code::NotChecked, At::default(), text);
        }
        if inode.has_inline_data() {
            return self.inline_directory(ino, &inode, &raw);
        }
        let blocks = inode.size().div_ceil(self.sb.block_size().into());
        let most = blocks.min(self.sb.blocks_count()) as usize;
        let runs = runs_of(&self.walk_context(ino, &inode), &inode, most);
        let mapped = runs.iter().map(|run| run.lblk + run.len).max();
        // A size that goes far past the map is a finding of pass 1.
        let blocks = blocks.min(mapped.unwrap_or(0)).min(u32::MAX.into()) as u32;
        let mapped = mapped_of(&runs, blocks);
        let count = mapped.iter().map(|part| u64::from(part.end - part.start));
        if !self.spend(count.sum()) {
            let text = "too much to read: directories share their blocks";
            return self.find(Code::NotChecked, At::ino(ino), text);
        }
        let mut dir = Dir {
            ino,
            inode,
            runs,
            blocks,
            mapped,
            names: HashSet::new(),
            hashers: [RandomState::new(), RandomState::new()],
            index: None,
        };
        if blocks == 0 {
            self.find(Code::DirDot, dir.place(), "the directory has no blocks");
        }
        if dir.inode.flags().contains(InodeFlags::INDEX) && blocks > 0 {
            dir.index = self.index(&dir);
        }
        let mut end = 0;
        for part in dir.mapped.clone() {
            self.judge_hole(&dir, end..part.start);
            end = part.end;
            for lblk in part.map(Lblk) {
                if self.is_cancelled() {
                    return;
                }
                self.directory_block(&mut dir, lblk);
            }
        }
        self.judge_index(&dir);
    }

    fn judge_hole(&mut self, dir: &Dir, blocks: Range<u32>) {
        let text = match blocks.len() {
            0 => return,
            1 => format!("block {} of the directory is a hole", blocks.start),
            _ => {
                let last = blocks.end - 1;
                format!(
                    "blocks {} to {last} of the directory are a hole",
                    blocks.start
                )
            }
        };
        self.find(Code::DirHole, dir.place(), text);
    }

    fn directory_block(&mut self, dir: &mut Dir, lblk: Lblk) {
        // The runs of a damaged map may overlap.
        let Some(run) = run_of(&dir.runs, lblk) else {
            return;
        };
        let place = run.pblk + u64::from(lblk.0) - run.lblk;
        let at = dir.place().in_block(place);
        if run.unwritten {
            let text = format!("block {lblk} of the directory lies in an unwritten extent");
            self.find(Code::DirHole, at.clone(), text);
        }
        let read = self.source.block(place);
        let Some(bytes) = self.readable(at.clone(), read) else {
            return;
        };
        let is_index = dir.index.as_ref().is_some_and(|index| index.is_node(lblk));
        if let Some(seed) = self.seed.map(|seed| dir.inode.seed(seed, dir.ino)) {
            let summed = match is_index {
                true => htree::verify_checksum(&bytes, &self.dir_format, seed),
                false => dir::verify_checksum(&bytes, seed),
            };
            if let Err(error) = summed {
                self.find(Code::DirChecksum, at.clone(), error.to_string());
            }
        }
        if is_index && lblk.0 > 0 {
            return;
        }
        if dir.index.is_some() {
            // Equal names have equal hashes, so they are in one block or out of place.
            dir.names.clear();
        }
        self.entries(dir, lblk, &bytes, &at);
    }

    fn entries(&mut self, dir: &mut Dir, lblk: Lblk, bytes: &[u8], at: &At) {
        let format = self.dir_format.with_flags(dir.inode.flags());
        let (mut dots, mut last) = (0, 0);
        for (position, slot) in (0..).zip(dir::slots(bytes, &format)) {
            let entry = match slot {
                Ok(entry) => entry,
                Err(error) => {
                    let is_name =
                        matches!(&error, dioxide_format::Error::Corrupt { field: "name", .. });
                    let is_ino = matches!(
                        &error,
                        dioxide_format::Error::Corrupt { field: "inode", .. }
                    );
                    let code = match (is_name, is_ino) {
                        (true, _) => Code::EntryName,
                        (_, true) => Code::EntryInode,
                        _ => Code::DirBlock,
                    };
                    return self.find(code, at.clone(), error.to_string());
                }
            };
            last = entry.offset;
            let place = at.clone().offset(entry.offset as u64);
            if lblk.0 == 0 && position < 2 {
                dots += 1;
                self.dot(dir, &entry, bytes, position, place);
            } else if entry.is_used() {
                self.entry(dir, &entry, place);
                self.judge_hash(dir, lblk, &entry, at);
            }
        }
        if lblk.0 == 0 && dots < 2 {
            self.find(Code::DirDot, at.clone(), "`.` or `..` is missing");
        }
        let is_index = dir.index.as_ref().is_some_and(|index| index.is_node(lblk));
        if format.checksum && !is_index && last != dir::room(&format) {
            let place = at.clone().offset(last as u64);
            self.find(Code::DirChecksum, place, "an entry covers the checksum");
        }
    }

    /// The first two entries of a directory.
    fn dot(&mut self, dir: &mut Dir, entry: &DirEntry<'_>, bytes: &[u8], position: u32, at: At) {
        let name: &[u8] = if position == 0 { b"." } else { b".." };
        if entry.name != name || !entry.is_used() {
            let text = format!("the entry of `{}` is missing", name.escape_ascii());
            return self.find(Code::DirDot, at, text);
        }
        let end = entry.offset + 8 + name.len();
        if bytes.get(end) != Some(&0) {
            let text = format!("`{}` does not end with a NUL", name.escape_ascii());
            self.find(Code::DirDot, at.clone(), text);
        }
        if position == 0 {
            if entry.rec_len != 12 {
                let text = format!("`.` takes {} bytes", entry.rec_len);
                self.find(Code::DirDot, at.clone(), text);
            }
            if entry.ino != dir.ino {
                let text = format!("`.` is inode {}", entry.ino);
                self.find(Code::DirDot, at.clone(), text);
            }
        } else {
            self.dirs.set_dotdot(dir.ino, entry.ino);
        }
        dir.is_new(name);
        self.judge_type(entry, at);
        self.count(if position == 0 { dir.ino } else { entry.ino });
    }

    fn count(&mut self, ino: Ino) {
        if let Some(info) = self.inodes.get_mut(ino) {
            info.found = info.found.saturating_add(1);
        }
    }

    fn entry(&mut self, dir: &mut Dir, entry: &DirEntry<'_>, at: At) {
        let name = entry.name.escape_ascii().to_string();
        if entry.name == b"." || entry.name == b".." {
            let text = format!("another entry `{name}`");
            self.find(Code::EntryName, at, text);
            return;
        }
        let is_encrypted = dir.inode.flags().contains(InodeFlags::ENCRYPT);
        if is_encrypted && entry.name.len() < ENCRYPTED_NAME_MIN {
            let text = format!("the encrypted name `{name}` is shorter than {ENCRYPTED_NAME_MIN}");
            self.find(Code::EntryName, at.clone(), text);
        }
        if !dir.is_new(entry.name) {
            let text = format!("the name `{name}` is there twice");
            self.find(Code::EntryDuplicate, at.clone(), text);
        }
        let ino = entry.ino;
        if ino == Ino::ROOT || ino < self.sb.first_ino() || self.is_hidden(ino) {
            let text = format!("`{name}` is inode {ino}, which has no name");
            return self.find(Code::EntryInode, at, text);
        }
        let info = self.inodes.get(ino);
        if !info.is_used() || info.links == 0 {
            // A group whose table cannot be read says nothing of its inodes.
            if self.is_known(ino) {
                let text = format!("`{name}` is inode {ino}, which is not in use");
                self.find(Code::EntryUnused, at, text);
            }
            return;
        }
        if info.has(EA_INODE) {
            let text = format!("`{name}` is inode {ino}, the value of an attribute");
            self.find(Code::EntryInode, at.clone(), text);
        }
        self.judge_type(entry, at.clone());
        if is_encrypted {
            self.judge_policy(dir, entry, at.clone());
        }
        if info.is_dir() && !self.dirs.set_parent(ino, dir.ino) {
            let text = format!("`{name}` is directory {ino}, which has a name already");
            self.find(Code::EntryDirLink, at, text);
            return;
        }
        self.count(ino);
    }

    fn is_known(&self, ino: Ino) -> bool {
        let group = self.sb.inode_location(ino).map(|(group, _)| group);
        let state = group.and_then(|group| self.groups.get(group));
        state.is_some_and(|state| state.usable)
    }

    fn judge_type(&mut self, entry: &DirEntry<'_>, at: At) {
        let kind = match self.dir_format.filetype {
            true => self.inodes.get(entry.ino).kind,
            false => 0,
        };
        let known = self.inodes.get(entry.ino).is_used();
        // Zero says that the type is not known, which readers take for an answer.
        if known && entry.type_byte != kind && entry.type_byte != 0 {
            let name = entry.name.escape_ascii();
            let found = entry.type_byte;
            let text = format!("`{name}` has type {found}, its inode {kind}");
            self.find(Code::EntryType, at, text);
        }
    }

    /// What lies in an encrypted directory is encrypted as it is, if it can be.
    fn judge_policy(&mut self, dir: &Dir, entry: &DirEntry<'_>, at: At) {
        let kind = self.inodes.get(entry.ino).kind;
        if !ENCRYPTABLE.iter().any(|able| able.dirent_code() == kind) {
            return;
        }
        let policy = self.policies.of(dir.ino).flatten();
        let wrong = match self.policies.of(entry.ino) {
            None => "which is not encrypted, in a directory that is",
            Some(Some(own)) if policy.is_some_and(|policy| policy != own) => {
                "which has another policy of encryption than the directory"
            }
            Some(_) => return,
        };
        let name = entry.name.escape_ascii();
        let text = format!("`{name}` is inode {}, {wrong}", entry.ino);
        self.find(Code::EntryInode, at, text);
    }

    fn inline_directory(&mut self, ino: Ino, inode: &Inode, raw: &[u8]) {
        let entries = xattr::parse_in_inode(inode.in_inode_xattrs(raw)).unwrap_or_default();
        let data = inline_data::system_data(&entries).unwrap_or(&[]);
        let format = self.dir_format.with_flags(inode.flags());
        let Ok(inline) = InlineDir::parse(inode, data, &format) else {
            return;
        };
        let mut dir = Dir {
            ino,
            inode: inode.clone(),
            runs: Vec::new(),
            blocks: 0,
            mapped: Vec::new(),
            names: HashSet::new(),
            hashers: [RandomState::new(), RandomState::new()],
            index: None,
        };
        self.dirs.set_dotdot(ino, inline.parent);
        self.count(ino);
        self.count(inline.parent);
        for entry in inline.entries(&format) {
            match entry {
                Ok(entry) => {
                    let at = At::ino(ino).offset(entry.offset as u64);
                    self.entry(&mut dir, &entry, at);
                }
                Err(error) => self.find(Code::DirBlock, At::ino(ino), error.to_string()),
            }
        }
    }

    /// The root of a directory's index, if it is one.
    pub(super) fn index_root(&mut self, dir: &Dir) -> Option<DxRoot> {
        let place = place_of(&dir.runs, Lblk(0))?;
        let bytes = self.source.block(place).ok()?;
        match DxRoot::parse(&bytes, &self.dir_format) {
            Ok(root) => Some(root),
            Err(error) => {
                let at = dir.place().in_block(place);
                self.find(Code::HtreeRoot, at, error.to_string());
                None
            }
        }
    }
}
