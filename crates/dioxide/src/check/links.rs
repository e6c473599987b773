//! Pass 3: whether every directory can be reached. Pass 4: whether inodes have as many names as they
//! say.

use super::Checker;
use super::finding::{At, Code, Pass};
use super::inodes::{EA_INODE, HIDDEN, InodeInfo, ORPHAN};
use dioxide_format::features::RoCompat;
use dioxide_format::inode::{FileType, LINK_MAX};
use dioxide_format::types::{Group, Ino};

/// A directory and how it hangs in the tree; 0 for what is not known.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirInfo {
    ino: Ino,
    /// The directory that holds its name.
    parent: Ino,
    /// What `..` says.
    dotdot: Ino,
    /// In which walk it was seen: 0 for none.
    walk: u32,
}

/// All directories, by inode.
#[derive(Debug, Default)]
pub(super) struct Dirs(Vec<DirInfo>);

impl Dirs {
    /// Adds a directory whose number is higher than those before.
    pub(super) fn add(&mut self, ino: Ino) {
        self.0.push(DirInfo {
            ino,
            parent: Ino(0),
            dotdot: Ino(0),
            walk: 0,
        });
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn ino(&self, position: usize) -> Ino {
        self.0[position].ino
    }

    fn find(&self, ino: Ino) -> Option<usize> {
        self.0.binary_search_by_key(&ino, |dir| dir.ino).ok()
    }

    pub(super) fn set_dotdot(&mut self, ino: Ino, dotdot: Ino) {
        if let Some(position) = self.find(ino) {
            self.0[position].dotdot = dotdot;
        }
    }

    /// Notes who holds a directory's name; false if somebody does already.
    pub(super) fn set_parent(&mut self, ino: Ino, parent: Ino) -> bool {
        match self.find(ino) {
            Some(position) if self.0[position].parent.0 == 0 => {
                self.0[position].parent = parent;
                true
            }
            _ => false,
        }
    }

    /// The directory that holds the name of another, if one does.
    pub(super) fn parent(&self, ino: Ino) -> Option<Ino> {
        let parent = self.0[self.find(ino)?].parent;
        (parent.0 != 0).then_some(parent)
    }
}

/// How a walk towards the root ended.
enum End {
    /// There, or at a directory from which it is known.
    Known,
    /// At a directory without a name.
    Nowhere(Ino),
    /// Where it began.
    Loop(Ino),
}

impl Checker<'_> {
    /// Pass 3.
    pub(super) fn connectivity(&mut self) {
        for position in 0..self.dirs.len() {
            let dir = self.dirs.0[position];
            match self.walk_up(position) {
                End::Known => {}
                End::Nowhere(ino) if self.inodes.get(ino).has(ORPHAN) => {}
                End::Nowhere(ino) => {
                    let text = "the directory cannot be reached from the root";
                    self.find(Code::DirUnconnected, At::ino(ino), text);
                }
                End::Loop(ino) => {
                    let text = "the directory is its own ancestor";
                    self.find(Code::DirLoop, At::ino(ino), text);
                }
            }
            self.judge_parent(dir);
        }
    }

    fn judge_parent(&mut self, dir: DirInfo) {
        let expected = match dir.ino {
            Ino::ROOT => Ino::ROOT,
            _ => dir.parent,
        };
        // Without a name, or without an entry for it, there is nothing to compare.
        if expected.0 != 0 && dir.dotdot.0 != 0 && dir.dotdot != expected {
            let text = format!("`..` is inode {}, expected {expected}", dir.dotdot);
            self.find(Code::DirParent, At::ino(dir.ino), text);
        }
    }

    /// Goes up from a directory until something is known. Each is gone through once.
    fn walk_up(&mut self, position: usize) -> End {
        let walk = position as u32 + 1;
        let mut at = position;
        loop {
            let dir = &mut self.dirs.0[at];
            if dir.walk == walk {
                return End::Loop(dir.ino);
            }
            if dir.walk != 0 || dir.ino == Ino::ROOT {
                return End::Known;
            }
            dir.walk = walk;
            let (ino, parent) = (dir.ino, dir.parent);
            match self.dirs.find(parent) {
                Some(next) => at = next,
                None => return End::Nowhere(ino),
            }
        }
    }

    /// Pass 4.
    pub(super) fn link_counts(&mut self) {
        for group in (0..self.sb.group_count()).map(Group) {
            let first = self.inodes.first_of(group);
            let odd: Vec<(Ino, InodeInfo)> = (first..)
                .zip(self.inodes.group(group))
                .filter(|(_, info)| info.is_used() && u32::from(info.links) != info.found)
                .map(|(ino, info)| (Ino(ino), *info))
                .collect();
            for (ino, info) in odd {
                self.judge_links(ino, info);
            }
        }
        self.step(Pass::Pass4);
        self.judge_value_links();
    }

    fn judge_links(&mut self, ino: Ino, info: InodeInfo) {
        let plain = ino == Ino::ROOT || ino >= self.sb.first_ino();
        if !plain || info.has(HIDDEN) && ino != Ino::ROOT || info.has(EA_INODE) {
            return;
        }
        let is_orphan = info.has(ORPHAN);
        if info.found == 0 && !is_orphan {
            let text = "the inode has no name";
            return self.find(Code::InodeUnattached, At::ino(ino), text);
        }
        if is_orphan && info.links == 0 {
            return;
        }
        let once = self.sb.features().ro_compat.contains(RoCompat::DIR_NLINK)
            && info.kind == FileType::Directory.dirent_code()
            && info.links == 1;
        if once && info.found > u32::from(LINK_MAX) {
            return;
        }
        let text = format!("i_links_count is {}, {} were found", info.links, info.found);
        // It stays so when they go.
        let code = match once && info.found >= 2 && self.is_indexed(ino) {
            true => Code::LinkCountOnce,
            false => Code::LinkCount,
        };
        self.find(code, At::ino(ino), text);
    }

    fn is_indexed(&self, ino: Ino) -> bool {
        use dioxide_format::inode::InodeFlags;
        let inode = self.read_inode(ino);
        inode.is_some_and(|(inode, _)| inode.flags().contains(InodeFlags::INDEX))
    }

    /// Inodes that hold values of attributes count the attributes.
    fn judge_value_links(&mut self) {
        let values = std::mem::take(&mut self.shared_xattrs.values);
        for group in (0..self.sb.group_count()).map(Group) {
            let first = self.inodes.first_of(group);
            let holders: Vec<Ino> = (first..)
                .zip(self.inodes.group(group))
                .filter(|(_, info)| info.is_used() && info.has(EA_INODE))
                .map(|(ino, _)| Ino(ino))
                .collect();
            for ino in holders {
                let found = values.get(&ino).copied().unwrap_or(0);
                self.judge_value_count(ino, found);
            }
        }
    }

    fn judge_value_count(&mut self, ino: Ino, found: u64) {
        let Some((inode, _)) = self.read_inode(ino) else {
            return;
        };
        if found == 0 {
            if !self.inodes.get(ino).has(ORPHAN) {
                let text = "the inode holds the value of no attribute";
                self.find(Code::InodeUnattached, At::ino(ino), text);
            }
            return;
        }
        let links = inode.links_count();
        if links != 1 {
            let text = format!("i_links_count is {links}, expected 1");
            self.find(Code::LinkCount, At::ino(ino), text);
        }
        let disk = inode.disk();
        let stored = u64::from(disk.i_ctime) << 32 | u64::from(disk.l_i_version);
        // Those that Lustre wrote count none, and have one time for both.
        if stored != found && disk.i_ctime != disk.i_atime {
            let text = format!("counts {stored} references, {found} were found");
            self.find(Code::EaInodeRefcount, At::ino(ino), text);
        }
    }
}
