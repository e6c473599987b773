//! Other numbers for inodes, wherever a number stands.
//!
//! A number stands in the names of directories (`.` and `..` included), in inline directories, in attributes whose
//! value is an inode, and in the superblock. And it is part of the seed of the checksums of all that belongs to the inode:
//! its blocks of names, and those of its extent tree.
//!
//! One walk over all inodes finds what names those that move. Then each moves in one transaction, if all that it changes
//! fits into one. If not (there is no journal, or the directory or its names are too many) it is done in three parts, each
//! durable before the next: the inode is in both places; all names lead to the new one; the old one is free.

use super::map::{Map, has_map};
use super::{Task, all_inodes, change, load, put, store, transaction};
use crate::alloc::InodeAllocator;
use crate::mount::Mount;
use crate::resize::Step;
use crate::txn::{Writer, superblock};
use crate::{Error, Place, Result, Shortage};
use dioxide_format::dir::{self, DirFormat};
use dioxide_format::features::{Compat, Incompat};
use dioxide_format::inline_data::{self, PARENT_SIZE, SystemData};
use dioxide_format::inode::{Inode, InodeFlags};
use dioxide_format::superblock::STATE_CLEAN;
use dioxide_format::types::{Group, Ino, Lblk, Pblk};
use dioxide_format::xattr::{self, XattrBlock, XattrHeader, XattrValue};
use dioxide_format::{extent, htree, orphan_file};
use dioxide_journal::Edit;
use std::collections::{HashMap, HashSet};

/// Where `i_block` is in an inode.
const I_BLOCK: usize = 0x28;
/// Bytes of an inode that every one has.
const GOOD_OLD_SIZE: usize = 128;
/// An attribute's entry: where the inode is, and its size without the name.
const VALUE_INUM: usize = 4;
const ENTRY_SIZE: usize = 16;
/// What a transaction changes besides names and what has a checksum: two blocks of the table, and the superblock.
const OTHER_CREDITS: u32 = 3;
/// Inodes that are done together where each part has to be made durable.
const BATCH: usize = 256;

/// What holds the number of an inode that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// A block of a directory.
    Names { dir: Ino, lblk: u32, block: u64 },
    /// An inode: an inline directory, or attributes.
    Inode(Ino),
    /// A block of attributes.
    Attributes(u64),
}

/// An inode that moves.
#[derive(Clone, Debug)]
struct Moving {
    from: Ino,
    to: Ino,
    holders: Vec<Holder>,
    /// Blocks whose checksum has its number as a seed, and inodes that name it as their owner.
    own: Vec<Own>,
    /// A directory that has others. While it is there twice, so is their name, and `e2fsck` leaves one of the two.
    has_directories: bool,
}

#[derive(Clone, Copy, Debug)]
enum Own {
    Node(u64),
    Names {
        lblk: u32,
        block: u64,
    },
    Orphans(u64),
    /// The value of an attribute that Lustre wrote: it names its owner.
    Value(Ino),
}

struct Renumber<'a> {
    mount: &'a Mount,
    writer: &'a Writer,
    format: DirFormat,
    /// Those that were moved.
    now: HashMap<Ino, Ino>,
    /// The superblock says that the file system is not clean.
    is_marked: bool,
}

/// Gives inodes of groups that go the lowest free numbers of groups that stay.
///
/// # Errors
/// See [`super::relocate`].
pub(super) fn renumber(mount: &Mount, task: &mut Task<'_, '_>) -> Result<()> {
    let writer = mount.writer()?;
    let mut moving = find(mount, writer, task.new.group_count())?;
    let total = moving.len() as u64;
    let mut work = Renumber {
        mount,
        writer,
        format: mount.dir_format,
        now: HashMap::new(),
        is_marked: false,
    };
    let most = writer.ample_credits();
    let has_journal = mount.sb.features().compat.contains(Compat::HAS_JOURNAL) && !mount.noload;
    let fits = |one: &Moving| has_journal && one.credits() <= most;
    let (whole, parts): (Vec<_>, Vec<_>) = moving.drain(..).partition(fits);
    for (done, one) in (1..).zip(&whole) {
        // Those of the parts may have numbers before it.
        let before = writer.inodes.blocks_before(&mount.reader(), one.to)?;
        let credits = one.credits() + before;
        transaction(mount, credits, |edit| work.whole(edit, one))?;
        task.tell(Step::Inodes, done, total);
    }
    let mut done = whole.len() as u64;
    // Those alone, so that a cut finds one of them twice at most.
    let together = |one: &Moving, next: &Moving| !one.has_directories && !next.has_directories;
    let batches = parts.chunk_by(together).flat_map(|part| part.chunks(BATCH));
    for batch in batches {
        work.in_parts(batch, most)?;
        done += batch.len() as u64;
        task.tell(Step::Inodes, done, total);
    }
    Ok(())
}

/// The inodes that move, and what names them.
fn find(mount: &Mount, writer: &Writer, groups: u32) -> Result<Vec<Moving>> {
    let last = groups.saturating_mul(mount.sb.inodes_per_group());
    let mut free = FreeInodes::new(mount, writer, last);
    let values = mount.sb.features().incompat.contains(Incompat::EA_INODE);
    let mut moving: Vec<Moving> = Vec::new();
    let mut index = HashMap::new();
    all_inodes(mount, &mut |ino, inode| {
        if ino.0 > last {
            let to = free.next()?.ok_or(Error::NoSpace(Shortage::Inodes))?;
            index.insert(ino, moving.len());
            let mut own = own_blocks(mount, ino, &inode)?;
            if values {
                own_values(mount, ino, &inode, &mut own)?;
            }
            moving.push(Moving {
                from: ino,
                to,
                holders: Vec::new(),
                own,
                has_directories: inode.is_dir() && inode.links_count() != 2,
            });
        }
        Ok(())
    })?;
    let mut seen = HashSet::new();
    all_inodes(mount, &mut |ino, inode| {
        let mut add = |named: Ino, holder: Holder| {
            if let Some(&at) = index.get(&named) {
                let holders: &mut Vec<Holder> = &mut moving[at].holders;
                if holders.last() != Some(&holder) {
                    holders.push(holder);
                }
            }
        };
        if inode.is_dir() {
            names(mount, ino, &inode, &mut add)?;
        }
        match values {
            true => attributes(mount, ino, &inode, &mut seen, &mut add),
            false => Ok(()),
        }
    })?;
    Ok(moving)
}

/// Numbers that are free, from the lowest on.
struct FreeInodes<'a> {
    mount: &'a Mount,
    writer: &'a Writer,
    at: u32,
    end: u32,
}

impl<'a> FreeInodes<'a> {
    fn new(mount: &'a Mount, writer: &'a Writer, end: u32) -> FreeInodes<'a> {
        FreeInodes {
            mount,
            writer,
            at: mount.sb.first_ino().0,
            end,
        }
    }

    fn next(&mut self) -> Result<Option<Ino>> {
        let (inodes, per_group) = (&self.writer.inodes, self.mount.sb.inodes_per_group());
        while self.at <= self.end {
            let group = (self.at - 1) / per_group;
            if inodes.peek(&self.mount.reader(), Group(group))? == 0 {
                self.at = (group + 1) * per_group + 1;
                continue;
            }
            let ino = Ino(self.at);
            self.at += 1;
            if !inodes.is_used(&self.mount.reader(), ino)? {
                return Ok(Some(ino));
            }
        }
        Ok(None)
    }
}

fn failed(ino: Ino) -> impl Fn(dioxide_format::Error) -> Error {
    move |error| Error::format(error, Place::ino(ino))
}

fn map_of(mount: &Mount, ino: Ino, inode: &Inode) -> Result<Map> {
    if !has_map(inode) {
        return Ok(Map::default());
    }
    let read = |block| mount.read_meta(Pblk(block));
    let physical = mount.physical_blocks();
    Map::read(ino, inode, mount.sb.block_size(), &physical, &read)
}

/// All blocks of a file, with their numbers in it.
fn blocks_of(map: &Map) -> impl Iterator<Item = (u32, u64)> + '_ {
    map.extents.iter().flat_map(|extent| {
        let blocks = 0..u32::from(extent.len);
        blocks.map(move |at| (extent.lblk.0 + at, extent.pblk.0 + u64::from(at)))
    })
}

fn own_blocks(mount: &Mount, ino: Ino, inode: &Inode) -> Result<Vec<Own>> {
    if mount.checksum_seed().is_none() {
        return Ok(Vec::new());
    }
    let map = map_of(mount, ino, inode)?;
    let mut own = Vec::new();
    if inode.uses_extents() {
        own.extend(map.nodes.iter().map(|&block| Own::Node(block)));
    }
    if inode.is_dir() {
        own.extend(blocks_of(&map).map(|(lblk, block)| Own::Names { lblk, block }));
    } else if mount.sb.orphan_file_inum() == Some(ino) {
        own.extend(blocks_of(&map).map(|(_, block)| Own::Orphans(block)));
    }
    Ok(own)
}

/// Adds the values that Lustre wrote: those have no hash and no count, but one time in place of both.
fn own_values(mount: &Mount, ino: Ino, inode: &Inode, own: &mut Vec<Own>) -> Result<()> {
    let mut values = Vec::new();
    attributes(mount, ino, inode, &mut HashSet::new(), &mut |value, _| {
        values.push(value);
    })?;
    for value in values {
        let of = load(mount, value)?;
        let disk = of.disk();
        let names_owner = disk.i_mtime == ino.0 && of.generation() == inode.generation();
        if names_owner && disk.i_ctime == disk.i_atime {
            own.push(Own::Value(value));
        }
    }
    Ok(())
}

/// Tells whom a directory names, and where.
fn names(mount: &Mount, ino: Ino, inode: &Inode, add: &mut dyn FnMut(Ino, Holder)) -> Result<()> {
    let format = mount.dir_format.with_flags(inode.flags());
    if inode.has_inline_data() {
        let raw = inode.encode();
        let entries = xattr::parse_in_inode(inode.in_inode_xattrs(&raw)).map_err(failed(ino))?;
        let data = inline_data::system_data(&entries).unwrap_or(&[]);
        let inline = inline_data::InlineDir::parse(inode, data, &format).map_err(failed(ino))?;
        add(inline.parent, Holder::Inode(ino));
        for entry in inline.entries(&format) {
            add(entry.map_err(failed(ino))?.ino, Holder::Inode(ino));
        }
        return Ok(());
    }
    for (lblk, block) in blocks_of(&map_of(mount, ino, inode)?) {
        let holder = Holder::Names {
            dir: ino,
            lblk,
            block,
        };
        for entry in dir::entries(&mount.read_meta(Pblk(block))?, &format) {
            add(entry.map_err(failed(ino))?.ino, holder);
        }
    }
    Ok(())
}

/// Tells which inodes hold values of attributes. Blocks that inodes share are looked at once.
fn attributes(
    mount: &Mount,
    ino: Ino,
    inode: &Inode,
    seen: &mut HashSet<u64>,
    add: &mut dyn FnMut(Ino, Holder),
) -> Result<()> {
    let raw = inode.encode();
    for entry in xattr::parse_in_inode(inode.in_inode_xattrs(&raw)).map_err(failed(ino))? {
        if let XattrValue::Inode { ino: value, .. } = entry.value {
            add(value, Holder::Inode(ino));
        }
    }
    let Some(block) = inode.file_acl().filter(|block| seen.insert(block.0)) else {
        return Ok(());
    };
    let bytes = mount.read_meta(block)?;
    for entry in XattrBlock::parse(&bytes).map_err(failed(ino))?.entries {
        if let XattrValue::Inode { ino: value, .. } = entry.value {
            add(value, Holder::Attributes(block.0));
        }
    }
    Ok(())
}

impl Moving {
    fn credits(&self) -> u32 {
        let blocks = (self.holders.len() + self.own.len()) as u32;
        let inodes = InodeAllocator::ALLOCATE_CREDITS + InodeAllocator::FREE_CREDITS;
        OTHER_CREDITS + inodes + blocks
    }
}

impl Renumber<'_> {
    fn whole(&mut self, edit: &mut dyn Edit, one: &Moving) -> Result<()> {
        self.copy(edit, one)?;
        self.seal(edit, one, &one.own)?;
        self.rename(edit, one, &one.holders)?;
        self.drop_old(edit, one)
    }

    fn in_parts(&mut self, batch: &[Moving], most: u32) -> Result<()> {
        self.mark()?;
        let mount = self.mount;
        let few = most.saturating_sub(OTHER_CREDITS).max(1) as usize;
        for one in batch {
            transaction(mount, most, |edit| self.copy(edit, one))?;
            for own in one.own.chunks(few) {
                transaction(mount, most, |edit| self.seal(edit, one, own))?;
            }
        }
        self.writer.journal.force_commit()?;
        for one in batch {
            for holders in one.holders.chunks(few) {
                transaction(mount, most, |edit| self.rename(edit, one, holders))?;
            }
        }
        self.writer.journal.force_commit()?;
        for one in batch {
            transaction(mount, most, |edit| self.drop_old(edit, one))?;
        }
        Ok(self.writer.journal.force_commit()?)
    }

    /// Says that the file system is not clean; its clean end says that it is.
    fn mark(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.is_marked, true) {
            let mount = self.mount;
            transaction(mount, 1, |edit| {
                superblock::change(mount, edit, &mut |sb| {
                    sb.disk_mut().s_state &= !STATE_CLEAN;
                })
            })?;
            self.writer.journal.force_commit()?;
        }
        Ok(())
    }

    /// The inode is at its new place too.
    fn copy(&mut self, edit: &mut dyn Edit, one: &Moving) -> Result<()> {
        let inode = load(self.mount, one.from)?;
        self.writer
            .inodes
            .take_given(edit, one.to, inode.is_dir())?;
        store(self.mount, edit, one.to, inode)?;
        self.now.insert(one.from, one.to);
        Ok(())
    }

    /// What belongs to the inode has its new number, in its checksums or by itself.
    fn seal(&mut self, edit: &mut dyn Edit, one: &Moving, own: &[Own]) -> Result<()> {
        for own in own {
            if let Own::Value(value) = *own {
                let value = self.now.get(&value).copied().unwrap_or(value);
                let mut of = load(self.mount, value)?;
                of.disk_mut().i_mtime = one.to.0;
                store(self.mount, edit, value, of)?;
            }
        }
        let inode = load(self.mount, one.to)?;
        let Some(seed) = self.mount.checksum_seed() else {
            return Ok(());
        };
        let seed = inode.seed(seed, one.to);
        for own in own {
            match *own {
                Own::Value(_) => {}
                Own::Node(block) => change(edit, block, &mut |bytes| {
                    extent::update_checksum(bytes, seed)
                })?,
                Own::Orphans(block) => change(edit, block, &mut |bytes| {
                    orphan_file::update_checksum(bytes, seed, Pblk(block))
                })?,
                Own::Names { lblk, block } => change(edit, block, &mut |bytes| {
                    seal_names(bytes, lblk, &inode, &self.format, seed)
                })?,
            }
        }
        Ok(())
    }

    /// What named the inode names it by its new number.
    fn rename(&mut self, edit: &mut dyn Edit, one: &Moving, holders: &[Holder]) -> Result<()> {
        let mount = self.mount;
        let [from, to] = [one.from, one.to].map(|ino| ino.0);
        let fs_seed = mount.checksum_seed();
        for holder in holders {
            match *holder {
                Holder::Names { dir, lblk, block } => {
                    let dir = self.now.get(&dir).copied().unwrap_or(dir);
                    let inode = load(mount, dir)?;
                    let format = self.format.with_flags(inode.flags());
                    let seed = fs_seed.map(|seed| inode.seed(seed, dir));
                    change(edit, block, &mut |bytes| {
                        replace_names(bytes, &format, from, to)?;
                        match seed {
                            Some(seed) => seal_names(bytes, lblk, &inode, &format, seed),
                            None => Ok(()),
                        }
                    })?;
                }
                Holder::Inode(ino) => {
                    let ino = self.now.get(&ino).copied().unwrap_or(ino);
                    let inode = load(mount, ino)?;
                    let inode = self.replaced(&inode, from, to).map_err(failed(ino))?;
                    store(mount, edit, ino, inode)?;
                }
                Holder::Attributes(block) => change(edit, block, &mut |bytes| {
                    replace_values(&mut bytes[XattrHeader::SIZE..], from, to);
                    match fs_seed {
                        Some(seed) => xattr::update_checksum(bytes, seed, Pblk(block)),
                        None => Ok(()),
                    }
                })?,
            }
        }
        self.rename_in_superblock(edit, from, to)
    }

    fn rename_in_superblock(&self, edit: &mut dyn Edit, from: u32, to: u32) -> Result<()> {
        let disk = self.mount.sb.disk();
        let fields = [
            disk.s_usr_quota_inum,
            disk.s_grp_quota_inum,
            disk.s_prj_quota_inum,
            disk.s_orphan_file_inum,
            disk.s_lpf_ino,
        ];
        if !fields.contains(&from) {
            return Ok(());
        }
        superblock::change(self.mount, edit, &mut |sb| {
            let disk = sb.disk_mut();
            for field in [
                &mut disk.s_usr_quota_inum,
                &mut disk.s_grp_quota_inum,
                &mut disk.s_prj_quota_inum,
                &mut disk.s_orphan_file_inum,
                &mut disk.s_lpf_ino,
            ] {
                if *field == from {
                    *field = to;
                }
            }
        })
    }

    /// An inode with another number in its inline directory and its attributes.
    fn replaced(&self, inode: &Inode, from: u32, to: u32) -> dioxide_format::Result<Inode> {
        let format = self.format.with_flags(inode.flags());
        let mut raw = inode.encode();
        if inode.is_dir() && inode.has_inline_data() {
            let parent = I_BLOCK..I_BLOCK + PARENT_SIZE;
            if raw[parent.clone()] == from.to_le_bytes() {
                raw[parent.clone()].copy_from_slice(&to.to_le_bytes());
            }
            let end = I_BLOCK + inode.i_block().len();
            replace_names(&mut raw[parent.end..end], &format, from, to)?;
            if let Some(data) = SystemData::find(inode, &raw)? {
                let mut value = raw[data.value.clone()].to_vec();
                replace_names(&mut value, &format, from, to)?;
                data.replace(&mut raw, &value);
            }
        }
        let area = inode.in_inode_xattrs(&raw);
        if area.first_chunk() == Some(&xattr::MAGIC.to_le_bytes()) {
            let start = GOOD_OLD_SIZE + inode.extra_isize() + 4;
            replace_values(&mut raw[start..], from, to);
        }
        Inode::parse(&raw, inode.inode_size())
    }

    /// The old place is free.
    fn drop_old(&mut self, edit: &mut dyn Edit, one: &Moving) -> Result<()> {
        let was_dir = load(self.mount, one.from)?.is_dir();
        let zeros = vec![0; self.mount.sb.inode_size()];
        put(self.mount, edit, one.from, &zeros)?;
        self.writer.inodes.free(edit, one.from, was_dir)
    }
}

/// Entries that name `from` name `to`.
fn replace_names(
    bytes: &mut [u8],
    format: &DirFormat,
    from: u32,
    to: u32,
) -> dioxide_format::Result<()> {
    let mut places = Vec::new();
    for entry in dir::entries(bytes, format) {
        let entry = entry?;
        if entry.ino.0 == from {
            places.push(entry.offset);
        }
    }
    for at in places {
        bytes[at..at + 4].copy_from_slice(&to.to_le_bytes());
    }
    Ok(())
}

/// Attributes whose value is inode `from` have it in `to`. The entries were read before.
fn replace_values(entries: &mut [u8], from: u32, to: u32) {
    let mut at = 0;
    while let Some(head) = entries.get_mut(at..at + ENTRY_SIZE) {
        if head[..4] == [0; 4] {
            break;
        }
        let inum = &mut head[VALUE_INUM..VALUE_INUM + 4];
        if *inum == from.to_le_bytes() {
            inum.copy_from_slice(&to.to_le_bytes());
        }
        at += (ENTRY_SIZE + usize::from(head[0])).next_multiple_of(4);
    }
}

/// Makes the checksum of a directory's block right.
fn seal_names(
    bytes: &mut [u8],
    lblk: u32,
    inode: &Inode,
    format: &DirFormat,
    seed: u32,
) -> dioxide_format::Result<()> {
    let indexed = inode.flags().contains(InodeFlags::INDEX);
    match indexed && htree::is_index_block(bytes, Lblk(lblk), format) {
        true => htree::update_checksum(bytes, format, seed),
        false => dir::update_checksum(bytes, seed),
    }
}
