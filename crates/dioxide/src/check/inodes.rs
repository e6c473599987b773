//! What is remembered of each inode between the passes: eight bytes, made for a group when an inode of
//! it is in use.

use dioxide_format::inode::FileType;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::{Group, Ino};

/// An inode as pass 1 saw it, and the names that pass 2 found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InodeInfo {
    /// Names that lead here, as counted.
    pub(super) found: u32,
    /// `i_links_count`.
    pub(super) links: u16,
    /// Type as in directory entries; 0 for none.
    pub(super) kind: u8,
    pub(super) marks: u8,
}

/// The inode is in use.
pub(super) const USED: u8 = 1;
/// It holds the value of an attribute.
pub(super) const EA_INODE: u8 = 2;
/// It waits to be freed or truncated.
pub(super) const ORPHAN: u8 = 4;
/// Needs no name: quota, orphan file.
pub(super) const HIDDEN: u8 = 8;

impl InodeInfo {
    pub(super) fn is_used(&self) -> bool {
        self.marks & USED != 0
    }

    pub(super) fn has(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    pub(super) fn is_dir(&self) -> bool {
        self.is_used() && self.kind == FileType::Directory.dirent_code()
    }
}

/// All inodes.
#[derive(Debug)]
pub(super) struct InodeTable {
    per_group: u32,
    count: u32,
    groups: Vec<Option<Box<[InodeInfo]>>>,
}

impl InodeTable {
    pub(super) fn new(sb: &SuperBlock) -> InodeTable {
        InodeTable {
            per_group: sb.inodes_per_group(),
            count: sb.inodes_count(),
            groups: vec![None; sb.group_count() as usize],
        }
    }

    fn place(&self, ino: Ino) -> Option<(usize, usize)> {
        let index = ino.0.checked_sub(1).filter(|_| ino.0 <= self.count)?;
        Some((
            (index / self.per_group) as usize,
            (index % self.per_group) as usize,
        ))
    }

    /// One inode; unused for numbers that none has.
    pub(super) fn get(&self, ino: Ino) -> InodeInfo {
        let info = self.place(ino).and_then(|(group, index)| {
            let infos = self.groups.get(group)?.as_ref()?;
            infos.get(index).copied()
        });
        info.unwrap_or_default()
    }

    /// One inode, to change; none for numbers that none has.
    pub(super) fn get_mut(&mut self, ino: Ino) -> Option<&mut InodeInfo> {
        let (group, index) = self.place(ino)?;
        let len = self.per_group as usize;
        let infos = self.groups.get_mut(group)?;
        let infos = infos.get_or_insert_with(|| vec![InodeInfo::default(); len].into());
        infos.get_mut(index)
    }

    /// The inodes of a group, from its first on; none where none is in use.
    pub(super) fn group(&self, group: Group) -> &[InodeInfo] {
        let infos = self.groups.get(group.0 as usize);
        infos.and_then(|infos| infos.as_deref()).unwrap_or(&[])
    }

    /// The first inode of a group.
    pub(super) fn first_of(&self, group: Group) -> u32 {
        group.0.saturating_mul(self.per_group).saturating_add(1)
    }
}
