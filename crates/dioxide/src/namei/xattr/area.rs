//! What attributes an inode has, and where those that it is to have fit.
//!
//! Pure: nothing is read or changed here.

use super::key::Key;
use crate::inode::{Inode, Node};
use crate::{Error, Place, Result};
use dioxide_format::inode::Inode as DiskInode;
use dioxide_format::types::{Ino, Pblk};
use dioxide_format::xattr::{self, XattrBlock, XattrEntry, XattrHeader, XattrValue};
use std::sync::Arc;

/// Bytes of an inode that every one has, and of those that one gets that has none beyond.
const GOOD_OLD_SIZE: usize = 128;
const EXTRA_SIZE: usize = 32;

/// The bytes that hold an inode's attributes.
pub(super) struct Held {
    node: Arc<Node>,
    pub(super) block: Option<(Pblk, Arc<[u8]>)>,
}

/// Attributes by where they lie.
#[derive(Clone, Debug)]
pub(super) struct Entries<'a> {
    pub(super) in_inode: Vec<XattrEntry<'a>>,
    pub(super) in_block: Vec<XattrEntry<'a>>,
}

/// Which of the two lists change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Touched {
    pub(super) inode: bool,
    pub(super) block: bool,
}

/// How much room there is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Bytes of the area in the inode.
    pub(super) area: usize,
    /// Bytes of a block.
    pub(super) block: usize,
    /// Of these, how many stay free for names.
    pub(super) reserve: usize,
}

impl Held {
    pub(super) fn new(node: Arc<Node>, block: Option<(Pblk, Arc<[u8]>)>) -> Held {
        Held { node, block }
    }

    /// Where the block lies.
    pub(super) fn at(&self) -> Option<Pblk> {
        self.block.as_ref().map(|(block, _)| *block)
    }

    /// Whether others have the block too.
    pub(super) fn is_shared(&self) -> bool {
        let header = self
            .block
            .as_ref()
            .map(|(_, bytes)| XattrHeader::parse(bytes));
        header.is_some_and(|header| header.is_ok_and(|header| header.h_refcount > 1))
    }

    /// Bytes of the area in the inode.
    pub(super) fn area_len(&self) -> usize {
        area_len(&self.node.disk)
    }

    /// # Errors
    /// Damage.
    pub(super) fn entries(&self, inode: &Inode) -> Result<Entries<'_>> {
        let area = match self.node.disk.extra_isize() {
            0 => &[],
            _ => self.node.disk.in_inode_xattrs(&self.node.raw),
        };
        let in_inode =
            xattr::parse_in_inode(area).map_err(|error| Error::format(error, inode.place()))?;
        let in_block = match &self.block {
            Some((pblk, bytes)) => {
                let place = Place::block(pblk.0).in_inode(inode.ino);
                let block = XattrBlock::parse(bytes);
                block.map_err(|error| Error::format(error, place))?.entries
            }
            None => Vec::new(),
        };
        Ok(Entries { in_inode, in_block })
    }
}

/// Bytes of the area of attributes in an inode.
pub(crate) fn area_len(disk: &DiskInode) -> usize {
    let extra = match disk.extra_isize() {
        0 => EXTRA_SIZE,
        extra => extra,
    };
    disk.inode_size().saturating_sub(GOOD_OLD_SIZE + extra)
}

/// Puts the area of attributes, of the length that [`Held::area_len`] says, into an inode.
pub(crate) fn put_area(disk: &mut DiskInode, area: &[u8]) {
    let size = disk.inode_size();
    if size == GOOD_OLD_SIZE {
        return;
    }
    let has_extra = disk.extra_isize() > 0;
    let mut raw = disk.encode();
    let start = size - area.len();
    raw[start..].copy_from_slice(area);
    if !has_extra {
        raw[GOOD_OLD_SIZE..start].fill(0);
    }
    *disk = DiskInode::parse(&raw, size).expect("as long as it was");
    if !has_extra {
        disk.disk_mut().i_extra_isize = EXTRA_SIZE as u16;
    }
}

impl<'a> Entries<'a> {
    /// Where an attribute is, and what it is; in the block if `true`.
    pub(super) fn find(&self, key: &Key<'_>) -> Option<(bool, XattrEntry<'a>)> {
        let named = |list: &[XattrEntry<'a>]| list.iter().find(|one| key.names(one)).cloned();
        let in_inode = named(&self.in_inode).map(|entry| (false, entry));
        in_inode.or_else(|| named(&self.in_block).map(|entry| (true, entry)))
    }

    /// Takes an attribute out.
    pub(super) fn remove(&mut self, key: &Key<'_>) -> Touched {
        let (inode, block) = (self.in_inode.len(), self.in_block.len());
        self.in_inode.retain(|entry| !key.names(entry));
        self.in_block.retain(|entry| !key.names(entry));
        Touched {
            inode: self.in_inode.len() != inode,
            block: self.in_block.len() != block,
        }
    }

    /// Puts an attribute that is not there into the inode if it fits, else into the block; whether it
    /// fits.
    pub(super) fn add(&mut self, new: XattrEntry<'a>, room: &Room, touched: &mut Touched) -> bool {
        // Room for names is kept from values that lie here, and not from one that has an inode.
        let reserve = match new.bytes() {
            Some(value) if !value.is_empty() => room.reserve,
            _ => 0,
        };
        self.in_inode.push(new);
        if xattr::build_in_inode(&self.in_inode, room.area).is_some() {
            touched.inode = true;
            return true;
        }
        self.in_block.extend(self.in_inode.pop());
        touched.block = true;
        xattr::build_block(&self.in_block, room.block, reserve).is_some()
    }

    /// How many values have inodes of their own.
    pub(super) fn values(&self) -> i64 {
        let all = self.in_inode.iter().chain(&self.in_block);
        all.filter_map(value_inode).count() as i64
    }

    /// Says which inode holds an attribute's value.
    pub(super) fn set_value_inode(&mut self, key: &Key<'_>, ino: Ino) {
        let all = self.in_inode.iter_mut().chain(&mut self.in_block);
        for entry in all.filter(|entry| key.names(entry)) {
            if let XattrValue::Inode { ino: other, .. } = &mut entry.value {
                *other = ino;
                entry.head.e_value_inum = ino.0;
            }
        }
    }
}

/// The inode that holds a value, if one does.
pub(super) fn value_inode(entry: &XattrEntry<'_>) -> Option<Ino> {
    match entry.value {
        XattrValue::Inode { ino, .. } => Some(ino),
        XattrValue::Bytes(_) => None,
    }
}
