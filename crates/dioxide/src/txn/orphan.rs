//! Orphans: inodes that a crash leaves work for, a truncate to finish or a file to delete.
//!
//! They stand in the orphan file where the file system has one, else (or when that is full) in a list
//! that the superblock begins and `i_dtime` goes on with.
//!
//! Locks: the list's comes after handle start and before the map's of any inode, because taking an
//! inode out of the middle changes its neighbour.

use super::inode::{INODE_CREDITS, check_not_given_back};
use super::{Writer, superblock};
use crate::alloc::InodeAllocator;
use crate::inode::Inode;
use crate::map::{self, MapKind};
use crate::mount::Mount;
use crate::sync::rank::{Excuse, OrphansLock, Rank};
use crate::{Error, FileType, Place, Result};
use dioxide_format::orphan_file;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::{Ino, Lblk, Pblk};
use dioxide_journal::journal::Handle;
use dioxide_journal::{Edit, Kind};
use std::collections::HashMap;
use std::sync::Arc;

/// Metadata blocks that adding or removing an orphan changes: the superblock or a neighbour, and the
/// inode; or a block of the orphan file.
pub(crate) const ORPHAN_CREDITS: u32 = 1 + INODE_CREDITS;

/// Most blocks that an orphan file may have.
pub(crate) const FILE_BLOCKS: u64 = 1 << 15;

/// Most files with a name that stay in memory as orphans.
const MOST_KEPT: u32 = 1 << 16;

/// The orphans of a mount.
#[derive(Debug)]
pub(crate) struct Orphans {
    file: Option<OrphanFile>,
    state: OrphansLock<State>,
}

#[derive(Debug, Default)]
struct State {
    slots: HashMap<Ino, Slot>,
    /// Free entries of each block of the file.
    free: Vec<usize>,
    list: List,
}

/// The list on the disk.
#[derive(Debug, Default)]
struct List {
    links: HashMap<Ino, Link>,
    /// That which the superblock names.
    first: Option<Ino>,
}

/// An orphan in the list.
#[derive(Debug)]
struct Link {
    /// As in [`Slot`].
    inode: Option<Arc<Inode>>,
    /// That which it names.
    next: Option<Ino>,
    /// That which names it.
    previous: Option<Ino>,
}

/// An orphan in the file.
#[derive(Debug)]
struct Slot {
    /// Number of the block, and entry.
    at: (usize, usize),
    /// It stays in memory: what it has behind its end is known from there alone. None of most that the mount found: there
    /// may be more than memory has room for.
    inode: Option<Arc<Inode>>,
}

#[derive(Debug)]
struct OrphanFile {
    blocks: Vec<Pblk>,
    kind: OrphanBlock,
}

#[derive(Clone, Copy, Debug)]
struct OrphanBlock {
    seed: Option<u32>,
    max_ino: u32,
}

impl Kind for OrphanBlock {
    fn name(&self) -> &'static str {
        "orphan file block"
    }

    fn verify(&self, block: Pblk, bytes: &[u8]) -> dioxide_format::Result<()> {
        if let Some(seed) = self.seed {
            orphan_file::verify_checksum(bytes, seed, block)?;
        }
        orphan_file::orphans(bytes, self.max_ino).map(drop)
    }

    fn seal(&self, block: Pblk, bytes: &mut [u8]) {
        if let Some(seed) = self.seed {
            orphan_file::update_checksum(bytes, seed, block)
                .unwrap_or_else(|error| panic!("orphan file block {block} was changed: {error}"));
        }
    }

    fn keep(&self) -> Option<Arc<dyn Kind>> {
        Some(Arc::new(*self))
    }
}

/// What a file system holds of orphans when it is opened.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// In the file, with their places.
    in_file: HashMap<Ino, Slot>,
    /// Free entries of each block of the file.
    free: Vec<usize>,
    in_list: List,
}

impl List {
    /// An inode comes before all others.
    fn push(&mut self, inode: Arc<Inode>) {
        let (ino, next) = (inode.ino, self.first.replace(inode.ino));
        if let Some(next) = next {
            self.link(next).previous = Some(ino);
        }
        let previous = None;
        let link = Link {
            inode: Some(inode),
            next,
            previous,
        };
        self.links.insert(ino, link);
    }

    fn remove(&mut self, ino: Ino) {
        let Some(Link { next, previous, .. }) = self.links.remove(&ino) else {
            return;
        };
        match previous {
            Some(previous) => self.link(previous).next = next,
            None => self.first = next,
        }
        if let Some(next) = next {
            self.link(next).previous = previous;
        }
    }

    fn link(&mut self, ino: Ino) -> &mut Link {
        self.links.get_mut(&ino).expect("its neighbour is listed")
    }

    fn iter(&self) -> impl Iterator<Item = Ino> + '_ {
        std::iter::successors(self.first, |ino| self.links[ino].next)
    }
}

impl Orphans {
    /// The orphans that are there. Blocks.
    ///
    /// # Errors
    /// Damage; the device's.
    pub(crate) fn open(mount: &Mount) -> Result<Orphans> {
        let file = OrphanFile::open(mount)?;
        let found = mount.find_orphans(file.as_ref())?;
        let orphans = Orphans {
            state: OrphansLock::new(State {
                slots: found.in_file,
                free: found.free,
                list: found.in_list,
            }),
            file,
        };
        if mount.has_errors() {
            orphans.keep(mount)?;
        }
        Ok(orphans)
    }

    /// Those that were found stay. What one with a name has behind its end is kept from sight when the file grows.
    fn keep(&self, mount: &Mount) -> Result<()> {
        let mut kept = 0;
        for ino in self.all() {
            let inode = mount.orphan(ino)?;
            if inode.node().disk.links_count() > 0 {
                inode.set_cut_short(true);
                self.hold(&inode);
                kept += 1;
            }
            if kept > MOST_KEPT {
                return Err(Error::Unsupported(format!(
                    "more than {MOST_KEPT} unfinished truncates in a file system with errors"
                )));
            }
        }
        Ok(())
    }

    /// Whether there is an orphan file.
    pub(crate) fn in_file(&self) -> bool {
        self.file.is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.slots.is_empty() && state.list.first.is_none()
    }

    /// Those that there are.
    pub(crate) fn all(&self) -> Vec<Ino> {
        let state = self.state.lock();
        let in_file = state.slots.keys().copied();
        in_file.chain(state.list.iter()).collect()
    }

    /// Those that are in memory.
    pub(crate) fn held(&self) -> Vec<Arc<Inode>> {
        let state = self.state.lock();
        let in_file = state.slots.values().filter_map(|slot| slot.inode.clone());
        let in_list = state.list.links.values();
        let in_list = in_list.filter_map(|link| link.inode.clone());
        in_file.chain(in_list).collect()
    }

    /// Makes an inode an orphan, unless it is: [`ORPHAN_CREDITS`]. Its map's lock is free.
    ///
    /// # Errors
    /// Those of the journal; damage in the orphan file.
    pub(crate) fn add(
        &self,
        mount: &Mount,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        if state.slots.contains_key(&inode.ino) || state.list.links.contains_key(&inode.ino) {
            return Ok(());
        }
        if let Some(file) = &self.file
            && let Some(block) = state.free.iter().position(|&free| free > 0)
        {
            let at = (block, file.add(handle, block, inode.ino)?);
            let slot = Slot {
                at,
                inode: Some(inode.clone()),
            };
            state.free[block] -= 1;
            state.slots.insert(inode.ino, slot);
            return Ok(());
        }
        set_next(mount, handle, inode, number(state.list.first))?;
        superblock::change(mount, handle, &mut |sb| set_first(sb, inode.ino.0))
            .map_err(|error| mount.fail(error))?;
        state.list.push(inode.clone());
        Ok(())
    }

    /// The inode is done with: [`ORPHAN_CREDITS`]. Its map's lock is free.
    ///
    /// # Errors
    /// As [`Orphans::add`].
    pub(crate) fn remove(
        &self,
        mount: &Mount,
        handle: &mut Handle<'_>,
        inode: &Inode,
    ) -> Result<()> {
        self.take_out(&mut self.state.lock(), mount, handle, inode)
    }

    /// As [`Orphans::remove`], for who has finished one thing: with another to do, a file to be freed when it is closed or a
    /// truncate under way, it stays.
    ///
    /// # Errors
    /// As [`Orphans::add`].
    pub(crate) fn remove_if_done(
        &self,
        mount: &Mount,
        handle: &mut Handle<'_>,
        inode: &Inode,
    ) -> Result<()> {
        let mut state = self.state.lock();
        // Who gives it something to do makes it an orphan after that.
        if inode.node().disk.links_count() == 0 || inode.is_cut_short() {
            return Ok(());
        }
        self.take_out(&mut state, mount, handle, inode)
    }

    fn take_out(
        &self,
        state: &mut State,
        mount: &Mount,
        handle: &mut Handle<'_>,
        inode: &Inode,
    ) -> Result<()> {
        if let Some(&Slot { at, .. }) = state.slots.get(&inode.ino) {
            let (block, entry) = at;
            let file = self.file.as_ref().expect("slots are of a file");
            file.set(handle, block, entry, 0)?;
            state.free[block] += 1;
            state.slots.remove(&inode.ino);
            return Ok(());
        }
        let Some(&Link { next, previous, .. }) = state.list.links.get(&inode.ino) else {
            return Ok(());
        };
        match previous {
            Some(previous) => {
                let previous = match &state.list.links[&previous].inode {
                    Some(inode) => inode.clone(),
                    None => mount.orphan(previous)?,
                };
                set_next(mount, handle, &previous, number(next))?;
            }
            None => superblock::change(mount, handle, &mut |sb| set_first(sb, number(next)))?,
        }
        set_next(mount, handle, inode, 0).map_err(|error| mount.fail(error))?;
        state.list.remove(inode.ino);
        Ok(())
    }

    /// Keeps an orphan that was found in memory.
    fn hold(&self, inode: &Arc<Inode>) {
        let mut state = self.state.lock();
        if let Some(slot) = state.slots.get_mut(&inode.ino) {
            slot.inode = Some(inode.clone());
        } else if let Some(link) = state.list.links.get_mut(&inode.ino) {
            link.inode = Some(inode.clone());
        }
    }
}

/// As the disk has it.
fn number(ino: Option<Ino>) -> u32 {
    ino.map_or(0, |ino| ino.0)
}

fn set_first(sb: &mut SuperBlock, ino: u32) {
    sb.disk_mut().s_last_orphan = ino;
}

fn set_next(mount: &Mount, handle: &mut Handle<'_>, inode: &Inode, next: u32) -> Result<()> {
    let lock = inode.map.lock();
    mount.change_inode(handle, inode, &lock, &mut |disk| disk.set_dtime(next))?;
    // While the lock is held: who syncs the file may have found its times taken.
    inode.changed_in(handle.tid(), false);
    Ok(())
}

impl OrphanFile {
    /// The orphan file, if the file system has one.
    fn open(mount: &Mount) -> Result<Option<OrphanFile>> {
        let Some(ino) = mount.sb.orphan_file_inum() else {
            return Ok(None);
        };
        let inode = mount.inode(ino)?;
        let count = inode.i_size() >> mount.block_bits;
        let damage = |what: String| inode.corrupt("orphan file", what);
        if count > FILE_BLOCKS {
            return Err(damage(format!("it has {count} blocks")));
        }
        let mut blocks = Vec::new();
        for lblk in 0..count as u32 {
            let mapping = map::load::lookup_or_load(mount, &inode, Lblk(lblk), 1)?;
            if mapping.kind != MapKind::Mapped {
                return Err(damage(format!("its block {lblk} is not there")));
            }
            blocks.push(mapping.pblk);
        }
        let seed = mount.checksum_seed();
        let kind = OrphanBlock {
            seed: seed.map(|seed| inode.node().disk.seed(seed, ino)),
            max_ino: mount.sb.inodes_count(),
        };
        Ok(Some(OrphanFile { blocks, kind }))
    }

    /// Puts an inode into a free entry of a block, which has one.
    fn add(&self, edit: &mut dyn Edit, number: usize, ino: Ino) -> Result<usize> {
        let block = self.blocks[number];
        let bytes = edit.read(block, &self.kind).map_err(Error::from)?;
        let entries = orphan_file::entries_per_block(bytes.len() as u32) as usize;
        let numbers = bytes.chunks_exact(4).take(entries);
        let free = numbers.into_iter().position(|entry| entry == [0; 4]);
        let entry = free.ok_or_else(|| Error::Corrupt {
            structure: "orphan file",
            place: Place::block(block.0),
            what: "a block has more orphans than were counted".into(),
        })?;
        self.set(edit, number, entry, ino.0)?;
        Ok(entry)
    }

    fn set(&self, edit: &mut dyn Edit, block: usize, entry: usize, ino: u32) -> Result<()> {
        let at = 4 * entry;
        let mut change = |bytes: &mut [u8]| {
            bytes[at..at + 4].copy_from_slice(&ino.to_le_bytes());
            Ok(())
        };
        Ok(edit.modify(self.blocks[block], &self.kind, &mut change)?)
    }
}

impl Mount {
    fn find_orphans(&self, file: Option<&OrphanFile>) -> Result<Found> {
        let mut found = Found {
            in_list: self.orphan_list()?,
            ..Found::default()
        };
        for (number, &block) in file.iter().flat_map(|file| file.blocks.iter().enumerate()) {
            let kind = &file.expect("its blocks are walked").kind;
            let bytes = self.cache.read(block, kind)?;
            let orphans = orphan_file::orphans(&bytes, self.sb.inodes_count())
                .map_err(|error| Error::format(error, Place::block(block.0)))?;
            let entries = orphan_file::entries_per_block(self.sb.block_size()) as usize;
            found.free.push(entries - orphans.len());
            let placed = orphans.into_iter().map(|(entry, ino)| {
                let at = (number, entry);
                (ino, Slot { at, inode: None })
            });
            found.in_file.extend(placed);
        }
        Ok(found)
    }

    fn orphan_list(&self) -> Result<List> {
        let mut list = List {
            first: self.sb.last_orphan(),
            ..List::default()
        };
        let (mut previous, mut at) = (None, list.first);
        while let Some(ino) = at {
            let after = self.orphan(ino)?.node().disk.dtime();
            let next = (after != 0).then_some(Ino(after));
            let link = Link {
                inode: None,
                next,
                previous,
            };
            if list.links.insert(ino, link).is_some() {
                return Err(Error::Corrupt {
                    structure: "orphan list",
                    place: Place::ino(ino),
                    what: "it leads back to this inode".into(),
                });
            }
            (previous, at) = (Some(ino), next);
        }
        Ok(list)
    }

    /// Finishes what a crash has left to do; returns for how many inodes, and how many stay: those of which what they have can only
    /// be read, and all in a file system with errors, for what leads to them may be what is wrong. As in Linux, which
    /// forgets the list as well.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn recover_orphans(&self) -> Result<(usize, usize)> {
        let writer = self.writer()?;
        let orphans = writer.orphans.all();
        if self.has_errors() {
            return Ok((0, orphans.len()));
        }
        let mut left = 0;
        for &ino in &orphans {
            self.check_orphan(writer, ino)?;
            let inode = self.orphan(ino)?;
            if inode.node().disk.links_count() == 0 {
                match self.delete(writer, &inode) {
                    Err(Error::OnlyRead(_)) => left += 1,
                    done => done?,
                }
                continue;
            }
            if inode.is_plain_data() && inode.file_type() == FileType::Regular {
                let end = inode.i_size().next_multiple_of(self.block_bytes());
                self.zero_block_part(&inode, inode.i_size(), end)?;
            }
            if self.has_mapped(&inode)? {
                self.free_behind_end(writer, &inode)?;
            } else {
                self.not_an_orphan(writer, &inode)?;
            }
        }
        Ok((orphans.len() - left, left))
    }

    /// What is not in use leads to blocks that others have by now.
    fn check_orphan(&self, writer: &Writer, ino: Ino) -> Result<()> {
        let is_file = ino != Ino::ROOT && !self.is_own_inode(ino);
        match is_file && writer.inodes.may_be_used(&self.reader(), ino)? {
            true => Ok(()),
            false => Err(Error::Corrupt {
                structure: "orphans",
                place: Place::ino(ino),
                what: "no inode of a file, or not in use".into(),
            }),
        }
    }

    /// Takes an inode from the orphans, unless something else is to be done with it.
    pub(crate) fn not_an_orphan(&self, writer: &Writer, inode: &Inode) -> Result<()> {
        let mut handle = writer.begin(ORPHAN_CREDITS)?;
        writer.orphans.remove_if_done(self, &mut handle, inode)?;
        inode.changed_in(handle.tid(), true);
        handle.stop()?;
        Ok(())
    }

    /// Frees an inode without links, and all that it has. Nobody opens it any more, and no requests are in flight on it.
    ///
    /// # Errors
    /// Damage; those of the journal.
    pub(crate) fn delete(&self, writer: &Writer, inode: &Arc<Inode>) -> Result<()> {
        let _alone = match inode.opens() {
            // Who looks for space may have another file's: nobody else asks for that of a file that has ended.
            (_, true) => {
                let _excuse = Excuse::of(Rank::File);
                Some(self.alone(inode)?)
            }
            _ => None,
        };
        check_not_given_back(inode)?;
        self.release_xattrs(writer, inode)?;
        let credits = ORPHAN_CREDITS + INODE_CREDITS + InodeAllocator::FREE_CREDITS;
        let emptying = self.emptying_credits(inode)?;
        let mut handle = writer.begin(credits + emptying)?;
        let is_empty = self.empties(writer, &mut handle, inode, &inode.map.lock(), emptying)?;
        if !is_empty {
            handle.stop()?;
            self.remove_blocks(writer, inode, 0..self.map_end(inode))?;
            handle = writer.begin(credits)?;
        }
        writer.orphans.remove(self, &mut handle, inode)?;
        // From here on nobody else would free it.
        let ended = self.write_ended(&mut handle, inode, &inode.map.lock());
        let freed = ended.and_then(|()| self.free_inode(writer, &mut handle, inode));
        freed.map_err(|error| self.fail(error))?;
        handle.stop()?;
        Ok(())
    }
}
