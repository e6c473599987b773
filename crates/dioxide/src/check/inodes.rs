//! What is remembered of each inode between the passes: eight bytes, made for a group when an inode of
//! it is in use. How much that is, only the image says: it is taken from what the check may use.

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
    /// Bytes that may still be used; none once there were too few.
    room: Option<u64>,
}

impl InodeTable {
    /// Takes at most `room` bytes.
    pub(super) fn new(sb: &SuperBlock, room: u64) -> InodeTable {
        InodeTable {
            room: Some(room),
            per_group: sb.inodes_per_group(),
            count: sb.inodes_count(),
            groups: vec![None; sb.group_count() as usize],
        }
    }

    /// An empty one that may use as much.
    pub(super) fn made_anew(&self, sb: &SuperBlock) -> InodeTable {
        InodeTable::new(sb, self.room.unwrap_or(0))
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

    /// Takes memory for `count` values more; false if there is too little for them, or was for others.
    pub(super) fn take<T>(&mut self, count: usize) -> bool {
        let bytes = (count * size_of::<T>()) as u64;
        self.room = self.room.and_then(|room| room.checked_sub(bytes));
        self.room.is_some()
    }

    /// Whether the check needs more memory than it may use.
    pub(super) fn is_over(&self) -> bool {
        self.room.is_none()
    }

    /// One inode, to change; none for numbers that none has, and for want of memory.
    pub(super) fn get_mut(&mut self, ino: Ino) -> Option<&mut InodeInfo> {
        let (group, index) = self.place(ino)?;
        if self.groups.get(group)?.is_none() {
            let len = self.per_group as usize;
            if !self.take::<InodeInfo>(len) {
                return None;
            }
            self.groups[group] = Some(vec![InodeInfo::default(); len].into());
        }
        self.groups[group].as_mut()?.get_mut(index)
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
