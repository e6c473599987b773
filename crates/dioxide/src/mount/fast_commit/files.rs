//! Files: their blocks and their inodes.
//!
//! With bigalloc a file's cluster is one as long as any of its blocks is mapped: what a file had of a
//! cluster before it is not taken, and what was freed by the way only to be mapped again is not freed.

use super::apply::{Apply, Old};
use super::names::Links;
use super::plan::{File, Plan, wrong};
use super::ranges::Backing;
use super::set::Set;
use crate::alloc::{NewInode, Run};
use crate::inode::Inode;
use crate::map::MapKind;
use crate::map::tree::{Progress, State, Tree};
use crate::mount::zone::ZoneCheck;
use crate::namei::xattr::{area_len, put_area};
use crate::txn::file::MapChange;
use crate::{Error, Place, Result};
use dioxide_format::extent::{Extent, LBLK_END};
use dioxide_format::inline_data::is_system_data;
use dioxide_format::inode::{FileType, GOOD_OLD_SIZE, Inode as DiskInode, InodeFlags};
use dioxide_format::types::{Ino, Lblk, Pblk};
use dioxide_format::xattr;
use std::ops::Range;
use std::sync::Arc;

const I_MODE_TO_BLOCK: Range<usize> = 0..0x28;
const I_BLOCK: Range<usize> = 0x28..0x64;
const BEHIND_I_BLOCK: usize = 0x64;
const I_EXTRA_ISIZE: Range<usize> = 0x80..0x82;
/// What a record does not say: the list of orphans, and how many blocks the file has.
const KEPT: [Range<usize>; 3] = [0x14..0x18, 0x1C..0x20, 0x74..0x76];

/// What lies in `i_block`, as far as flags and type say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Tree,
    Indirect,
    /// Data, a target, a device: or nothing.
    Itself,
}

impl Content {
    fn of(disk: &DiskInode) -> Content {
        let is_mapped = match disk.file_type() {
            Some(FileType::Regular | FileType::Directory) => !disk.has_inline_data(),
            Some(FileType::Symlink) => !disk.has_inline_data() && !disk.is_fast_symlink(),
            _ => false,
        };
        match (is_mapped, disk.uses_extents()) {
            (false, _) => Content::Itself,
            (true, true) => Content::Tree,
            (true, false) => Content::Indirect,
        }
    }
}

/// What is to be done with a file's map.
#[derive(Debug, Default)]
pub(super) struct Steps {
    remove: Vec<Range<u64>>,
    insert: Vec<Extent>,
    convert: Vec<(Range<u64>, State)>,
    /// Clusters that it did not have.
    new: Set,
    /// Clusters that go with what is removed, and come back with what is inserted.
    back: Set,
    /// Clusters that go.
    given_up: Set,
    /// How many it counts that come.
    come: u32,
}

/// A file that goes, and its clusters.
pub(super) type Gone = (Arc<Inode>, Set);

/// What backs a piece of a file on the device.
#[derive(Clone)]
struct Piece {
    range: Range<u64>,
    backing: Backing,
}

impl Apply<'_> {
    /// If a number stands for another file than on the device, that file is gone: frees it.
    pub(super) fn clear_number(&mut self, ino: Ino) -> Result<()> {
        let known = self.known(ino);
        if !known.is_new || known.old.is_none() {
            return Ok(());
        }
        let (mount, writer) = (self.mount, self.writer);
        let inode = mount.orphan(ino)?;
        if mount.has_mapped(&inode)? {
            self.unmap(&inode)?;
        }
        mount.release_xattrs_in(writer, &mut self.handle, &inode)?;
        writer.orphans.remove(mount, &mut self.handle, &inode)?;
        let lock = inode.map.lock();
        mount.write_ended(&mut self.handle, &inode, &lock)?;
        drop(lock);
        mount.free_inode(writer, &mut self.handle, &inode)
    }

    /// Takes away all that is mapped.
    fn unmap(&mut self, inode: &Inode) -> Result<()> {
        let all = 0..self.mount.map_end(inode);
        self.change_map(inode, |map| remove(map, all))
    }

    /// Decides what to do with a file's map.
    ///
    /// # Errors
    /// Blocks that are mapped twice or the file system's own; a file that maps none.
    pub(super) fn steps(&self, ino: Ino, file: &File) -> Result<Steps> {
        let mut steps = Steps::default();
        if file.ranges.is_empty() {
            return Ok(steps);
        }
        let disk = self.new_inode(ino, file)?;
        let content = Content::of(&disk);
        if content == Content::Itself || disk.file_type() == Some(FileType::Directory) {
            // What was mapped once lies in the inode now, or the other way round.
            let adds = |(_, backing)| matches!(backing, Backing::Blocks { .. });
            return match file.ranges.iter().any(adds) {
                true => Err(wrong(ino, "blocks are added to what maps none")),
                false => Ok(steps),
            };
        }
        let pieces = self.pieces(ino)?;
        let mut zone = ZoneCheck::new(self.mount, ino);
        for (range, backing) in file.ranges.iter() {
            if let Backing::Blocks { start, unwritten } = backing {
                if zone.hits(start, range.end - range.start)? {
                    let what = format!("block {start} is added, which holds metadata");
                    return Err(wrong(ino, &what));
                }
                if unwritten && content == Content::Indirect {
                    return Err(wrong(ino, "unwritten blocks without extents"));
                }
            }
            steps.add(&pieces, range, backing);
        }
        self.find_clusters(ino, &mut steps, &pieces)?;
        Ok(steps)
    }

    /// Finds the clusters that are new to a file, those that are only lost by the way, and those that it gives up.
    fn find_clusters(&self, ino: Ino, steps: &mut Steps, pieces: &[Piece]) -> Result<()> {
        let ratio = u64::from(self.mount.sb.cluster_ratio());
        let removed: Set = steps.remove.iter().cloned().collect();
        let left: Vec<Piece> = pieces
            .iter()
            .flat_map(|piece| piece.without(&removed))
            .collect();
        let inserted: Vec<Piece> = steps.insert.iter().map(Piece::of).collect();
        check_mapped_once(ino, left.iter().chain(&inserted))?;
        let (had, left) = (clusters(pieces, ratio), clusters(&left, ratio));
        let inserted = clusters(&inserted, ratio);
        steps.new = inserted.without(&had);
        steps.back = inserted.without(&steps.new).without(&left);
        steps.given_up = had.without(&left).without(&inserted);
        let come = runs(&steps.new, ratio).chain(runs(&steps.back, ratio));
        steps.come = come.map(|run| run.len).sum();
        Ok(())
    }

    /// Files with blocks of which no name is left. Linux lets others have blocks before that is committed only if they were a
    /// regular file's. One whose map is damaged stays an orphan with all that it has.
    pub(super) fn mapped_without_name(&self, links: &Links) -> Result<Vec<Gone>> {
        let are = links.gone().filter(|&ino| {
            let known = self.known(ino);
            known.same().is_some() && known.file_type == Some(FileType::Regular)
        });
        let found = are.filter_map(|ino| match self.going(ino) {
            Err(error) if error.is_damage() || matches!(error, Error::OnlyRead(_)) => None,
            found => Some(found),
        });
        found.collect()
    }

    fn going(&self, ino: Ino) -> Result<Gone> {
        let inode = self.mount.orphan(ino)?;
        self.mount.check_map_changes(&inode)?;
        let ratio = u64::from(self.mount.sb.cluster_ratio());
        let clusters = clusters(&self.pieces_of(&inode)?, ratio);
        Ok((inode, clusters))
    }

    /// Takes the clusters that files did not have, but for those that another gives up: they are passed on.
    ///
    /// # Errors
    /// Clusters that are in use, and stay so; clusters that two files get.
    pub(super) fn take_clusters(
        &mut self,
        plan: &Plan,
        gone: &[Gone],
        steps: &[Steps],
    ) -> Result<()> {
        let ratio = u64::from(self.mount.sb.cluster_ratio());
        let is_replaced = |ino: &Ino| self.known(*ino).is_new && self.known(*ino).old.is_some();
        let replaced = plan.files.keys().copied().filter(is_replaced);
        let replaced = replaced.map(|ino| self.going(ino));
        let replaced = replaced.collect::<Result<Vec<Gone>>>()?;
        let whole = replaced.iter().chain(gone).map(|(_, clusters)| clusters);
        let given_up = steps.iter().map(|steps| &steps.given_up).chain(whole);
        let given_up: Set = given_up.flat_map(Set::iter).collect();
        let mut passed_on = Vec::new();
        for steps in steps {
            let free = steps.new.without(&given_up);
            for run in runs(&free, ratio) {
                self.writer.blocks.take_given(&mut self.handle, run)?;
            }
            passed_on.extend(steps.new.without(&free).iter());
            passed_on.extend(steps.back.iter());
        }
        passed_on.sort_unstable_by_key(|range| range.start);
        if let Some(pair) = passed_on
            .windows(2)
            .find(|pair| pair[1].start < pair[0].end)
        {
            return Err(Error::Corrupt {
                structure: "fast commit",
                place: Place::block(pair[1].start * ratio),
                what: "two files get it".to_owned(),
            });
        }
        self.passed_on = Arc::new(passed_on.into_iter().collect());
        Ok(())
    }

    /// Has files without names let go of what was passed on. What else they have they keep until the file system is open: it
    /// may be much.
    pub(super) fn hand_over(&mut self, gone: &[Gone]) -> Result<()> {
        for (inode, clusters) in gone {
            if clusters.without(&self.passed_on) != *clusters {
                self.unmap(inode)?;
            }
        }
        Ok(())
    }

    /// What backs a file on the device.
    fn pieces(&self, ino: Ino) -> Result<Vec<Piece>> {
        match self.known(ino).same() {
            Some(_) => self.pieces_of(&*self.mount.orphan(ino)?),
            None => Ok(Vec::new()),
        }
    }

    fn pieces_of(&self, inode: &Inode) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        if !self.mount.has_mapped(inode)? {
            return Ok(pieces);
        }
        let mut put = |lblk: u64, len: u32, start: Pblk, unwritten: bool| {
            pieces.push(Piece {
                range: lblk..lblk + u64::from(len),
                backing: Backing::Blocks { start, unwritten },
            });
        };
        let lock = inode.map.lock();
        if inode.is_extent_mapped() {
            for run in self.mount.tree_runs(inode, &lock, 0..LBLK_END)? {
                put(run.lblk.0.into(), run.len, run.pblk, run.unwritten);
            }
            return Ok(pieces);
        }
        let mut at = 0;
        let end = self.mount.map_end(inode);
        while at < end {
            let want = (end - at).min(u32::MAX.into()) as u32;
            let mapping = self
                .mount
                .mapping_locked(inode, &lock, Lblk(at as u32), want)?;
            if mapping.kind != MapKind::Hole {
                put(at, mapping.len, mapping.pblk, false);
            }
            at += u64::from(mapping.len);
        }
        Ok(pieces)
    }

    /// Writes a file's inode, and removes from its map what has to go.
    pub(super) fn write_file(
        &mut self,
        ino: Ino,
        file: &File,
        steps: &Steps,
        links: u16,
    ) -> Result<()> {
        let disk = self.new_inode(ino, file)?;
        let inode = self.write_inode(ino, disk, links)?;
        match steps.remove.is_empty() {
            true => Ok(()),
            false => self.change_map(&inode, |map| steps.cut(map)),
        }
    }

    /// Maps the blocks that come to a file.
    pub(super) fn map_file(&mut self, ino: Ino, steps: &Steps) -> Result<()> {
        if steps.insert.is_empty() && steps.convert.is_empty() {
            return Ok(());
        }
        let inode = self.mount.orphan(ino)?;
        self.change_map(&inode, |map| steps.make(map))
    }

    fn change_map(
        &mut self,
        inode: &Inode,
        change: impl FnOnce(&mut MapChange<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        let passed_on = self.passed_on.clone();
        let change = |map: &mut MapChange<'_, '_>| {
            map.pass_on(passed_on);
            change(map)
        };
        let (lock, handle) = (inode.map.lock(), &mut self.handle);
        self.mount
            .change_map(self.writer, handle, inode, &lock, change, &mut |_, ()| {})
    }

    /// Makes a new directory that holds nothing yet.
    pub(super) fn make_directory(
        &mut self,
        ino: Ino,
        file: &File,
        parent: Ino,
        links: u16,
    ) -> Result<()> {
        let mut disk = self.new_inode(ino, file)?;
        disk.set_size(0);
        let inode = self.write_inode(ino, disk, links)?;
        let (mount, writer) = (self.mount, self.writer);
        mount.init_directory(writer, &mut self.handle, &inode, parent)
    }

    /// The inode as it is to be, but for its map, the blocks that came and went, and its links.
    fn new_inode(&self, ino: Ino, file: &File) -> Result<DiskInode> {
        let size = self.mount.sb.inode_size();
        let old = self.known(ino).same();
        let mut raw = old.map_or_else(|| vec![0; size], |old| old.raw.to_vec());
        let is_dir = self.known(ino).is_dir();
        match &file.raw {
            // Its names are told one by one, its blocks not at all.
            Some(record) if is_dir => put_record(&mut raw, without_attributes(record)),
            Some(record) => put_record(&mut raw, record),
            None => {}
        }
        let parsed = DiskInode::parse(&raw, size);
        let mut disk = parsed.map_err(|error| Error::format(error, Place::ino(ino)))?;
        if is_dir {
            self.keep_map_of_directory(&mut disk, old);
        }
        let kept = InodeFlags::HUGE_FILE.0;
        let was = old.map_or(0, |old| old.disk.flags().0);
        let flags = &mut disk.disk_mut().i_flags;
        *flags = *flags & !kept | was & kept;
        self.put_content(ino, &mut disk, file, old)?;
        if let (Some(old), Some(record)) = (old, &file.raw)
            && (is_dir || record.len() < size)
        {
            keep_attributes(ino, &mut disk, old)?;
        }
        if disk.file_acl() != old.and_then(|old| old.disk.file_acl()) {
            // Linux commits attributes in full.
            return Err(wrong(ino, "it gets another block of attributes"));
        }
        Ok(disk)
    }

    fn keep_map_of_directory(&self, disk: &mut DiskInode, old: Option<&Old>) {
        const MAP: u32 = InodeFlags::EXTENTS.0 | InodeFlags::INDEX.0 | InodeFlags::INLINE_DATA.0;
        let flags = match old {
            Some(old) => old.disk.flags().0,
            None if self.mount.has_extents() => InodeFlags::EXTENTS.0,
            None => 0,
        };
        disk.disk_mut().i_flags = disk.flags().0 & !MAP | flags & MAP;
        disk.set_size(old.map_or(0, |old| old.disk.size()));
    }

    /// Puts into `i_block` what is there before any block is mapped.
    fn put_content(
        &self,
        ino: Ino,
        disk: &mut DiskInode,
        file: &File,
        old: Option<&Old>,
    ) -> Result<()> {
        let is = Content::of(disk);
        let was = old.map(|old| Content::of(&old.disk));
        if was == Some(is) && is != Content::Itself {
            return Ok(());
        }
        // Linux commits a change of the kind of map in full.
        if old.is_some()
            && was != Some(Content::Itself)
            && self.mount.has_mapped(&*self.mount.orphan(ino)?)?
        {
            return Err(wrong(ino, "it is mapped in another way than before"));
        }
        let recorded = file.raw.as_deref().and_then(|raw| raw.get(I_BLOCK));
        let recorded = recorded.and_then(|bytes| bytes.try_into().ok());
        match (is, recorded) {
            (Content::Tree, _) => disk.set_i_block(&Tree::empty_root()),
            (Content::Indirect, _) => disk.set_i_block(&[0; 60]),
            (Content::Itself, Some(recorded)) => disk.set_i_block(recorded),
            (Content::Itself, None) => {}
        }
        Ok(())
    }

    /// Writes an inode, and takes its number if it is a new one.
    fn write_inode(&mut self, ino: Ino, mut disk: DiskInode, links: u16) -> Result<Arc<Inode>> {
        disk.set_links_count(links);
        let (mount, known) = (self.mount, self.known(ino));
        let location = mount.locate_inode(ino)?;
        let mut sealed = disk.clone();
        if let Some(seed) = mount.checksum_seed() {
            sealed.update_checksum(seed, ino);
        }
        let place = Place::block(location.block.0)
            .in_inode(ino)
            .at(location.offset as u64);
        mount.check_inode(&sealed, ino, place)?;
        if known.is_new {
            let is_dir = known.is_dir();
            self.writer
                .inodes
                .take_given(&mut self.handle, ino, is_dir)?;
            let inode = mount.store_new(&mut self.handle, &NewInode { ino }, location, disk)?;
            inode.made();
            return Ok(inode);
        }
        let inode = mount.orphan(ino)?;
        let lock = inode.map.lock();
        mount.change_inode(&mut self.handle, &inode, &lock, &mut |now| {
            // The next in the list of orphans, which may be another one by now.
            let next = now.dtime();
            *now = disk.clone();
            now.set_dtime(next);
        })?;
        drop(lock);
        Ok(inode)
    }
}

/// Writes what a record says over an inode, but for what lies in `i_block`.
fn put_record(raw: &mut [u8], record: &[u8]) {
    let keep = KEPT.map(|field| (field.clone(), raw[field].to_vec()));
    raw[I_MODE_TO_BLOCK].copy_from_slice(&record[I_MODE_TO_BLOCK]);
    let end = record.len().min(raw.len());
    raw[BEHIND_I_BLOCK..end].copy_from_slice(&record[BEHIND_I_BLOCK..end]);
    for (field, bytes) in keep {
        raw[field].copy_from_slice(&bytes);
    }
    // An index is the directory's own business.
    const INDEX: u32 = InodeFlags::INDEX.0;
    raw[0x20..0x24]
        .iter_mut()
        .zip((!INDEX).to_le_bytes())
        .for_each(|(byte, mask)| *byte &= mask);
}

/// Puts the attributes in an inode, of which the record tells nothing, where they belong by now: Linux may have made the fields
/// before them longer, or moved the file's content out from among them. (Its own replay loses them then.)
fn keep_attributes(ino: Ino, disk: &mut DiskInode, old: &Old) -> Result<()> {
    let leaves_inode = old.disk.has_inline_data() && !disk.has_inline_data();
    if old.disk.extra_isize() == disk.extra_isize() && !leaves_inode {
        return Ok(());
    }
    let area = match old.disk.extra_isize() {
        0 => &[],
        _ => old.disk.in_inode_xattrs(&old.raw),
    };
    let entries = xattr::parse_in_inode(area);
    let mut entries = entries.map_err(|error| Error::format(error, Place::ino(ino)))?;
    entries.retain(|entry| !leaves_inode || !is_system_data(entry));
    match xattr::build_in_inode(&entries, area_len(disk)) {
        Some(area) => put_area(disk, &area),
        None => return Err(wrong(ino, "its attributes have no room")),
    }
    Ok(())
}

/// A record without what lies behind the fields.
fn without_attributes(record: &[u8]) -> &[u8] {
    let extra = record.get(I_EXTRA_ISIZE).map_or(0, |bytes| {
        usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))
    });
    &record[..(GOOD_OLD_SIZE + extra).min(record.len())]
}

/// Removes all that is mapped in a range.
fn remove(map: &mut MapChange<'_, '_>, mut range: Range<u64>) -> Result<()> {
    loop {
        let credits = map.handle.credits();
        match map.remove(range, credits)? {
            Progress::Done => return Ok(()),
            Progress::More(rest) => range = rest,
        }
    }
}

/// The clusters that pieces lie in.
fn clusters(pieces: &[Piece], ratio: u64) -> Set {
    let blocks = pieces.iter().map(Piece::blocks);
    let of = |blocks: Range<u64>| blocks.start / ratio..blocks.end.div_ceil(ratio);
    blocks.map(of).collect()
}

/// Clusters as runs.
fn runs(clusters: &Set, ratio: u64) -> impl Iterator<Item = Run> {
    const MOST: u64 = 1 << 30;
    let parts = clusters.iter().flat_map(|Range { start, end }| {
        let starts = (start..end).step_by(MOST as usize);
        starts.map(move |start| (start, (end - start).min(MOST)))
    });
    parts.map(move |(cluster, len)| Run {
        start: Pblk(cluster * ratio),
        len: len as u32,
    })
}

/// # Errors
/// A block that two pieces of a file have.
fn check_mapped_once<'a>(ino: Ino, pieces: impl Iterator<Item = &'a Piece>) -> Result<()> {
    let mut blocks: Vec<Range<u64>> = pieces.map(Piece::blocks).collect();
    blocks.sort_unstable_by_key(|blocks| blocks.start);
    match blocks.windows(2).find(|pair| pair[1].start < pair[0].end) {
        Some(pair) => Err(wrong(
            ino,
            &format!("block {} is mapped twice", pair[1].start),
        )),
        None => Ok(()),
    }
}

impl Piece {
    fn of(extent: &Extent) -> Piece {
        Piece {
            range: extent.lblk.0.into()..extent.end(),
            backing: Backing::Blocks {
                start: extent.pblk,
                unwritten: extent.unwritten,
            },
        }
    }

    /// Where it lies.
    fn blocks(&self) -> Range<u64> {
        match self.backing {
            Backing::Hole => 0..0,
            Backing::Blocks { start, .. } => start.0..start.0 + self.range.end - self.range.start,
        }
    }

    /// What is left of it.
    fn without(&self, gone: &Set) -> Vec<Piece> {
        let part = |range: Range<u64>| Piece {
            backing: self.backing.after(range.start - self.range.start),
            range,
        };
        gone.outside(self.range.clone())
            .into_iter()
            .map(part)
            .collect()
    }
}

impl Steps {
    /// A range is to be backed so, of a file that is backed by `pieces`.
    fn add(&mut self, pieces: &[Piece], range: Range<u64>, backing: Backing) {
        let mut at = range.start;
        let first = pieces.partition_point(|piece| piece.range.end <= at);
        for piece in &pieces[first..] {
            if piece.range.start >= range.end {
                break;
            }
            let start = piece.range.start.max(at);
            let end = piece.range.end.min(range.end);
            self.fill(at..start, &range, backing);
            self.change(start..end, piece, &range, backing);
            at = end;
        }
        self.fill(at..range.end, &range, backing);
    }

    /// `part` of `range` is a hole.
    fn fill(&mut self, part: Range<u64>, range: &Range<u64>, backing: Backing) {
        if let Backing::Blocks { start, unwritten } = backing
            && !part.is_empty()
        {
            self.insert.push(Extent {
                lblk: Lblk(part.start as u32),
                len: (part.end - part.start) as u16,
                unwritten,
                pblk: Pblk(start.0 + (part.start - range.start)),
            });
        }
    }

    /// `part` of `range` lies in `piece`.
    fn change(&mut self, part: Range<u64>, piece: &Piece, range: &Range<u64>, backing: Backing) {
        let block = |of: &Range<u64>, backing| match backing {
            Backing::Hole => None,
            Backing::Blocks { start, unwritten } => {
                Some((start.0 + (part.start - of.start), unwritten))
            }
        };
        let (was, is) = (block(&piece.range, piece.backing), block(range, backing));
        match (was, is) {
            (Some((old, was)), Some((new, unwritten))) if old == new => {
                let state = if unwritten {
                    State::Unwritten
                } else {
                    State::Written
                };
                if was != unwritten {
                    self.convert.push((part, state));
                }
            }
            _ => {
                self.remove.push(part.clone());
                self.fill(part, range, backing);
            }
        }
    }

    fn cut(&self, map: &mut MapChange<'_, '_>) -> Result<()> {
        let mut ranges = self.remove.iter();
        ranges.try_for_each(|range| remove(map, range.clone()))
    }

    fn make(&self, map: &mut MapChange<'_, '_>) -> Result<()> {
        map.count_given(self.come);
        for (range, state) in &self.convert {
            let mut range = range.clone();
            while let Progress::More(rest) = map.convert(range, *state, map.handle.credits())? {
                range = rest;
            }
        }
        for extent in &self.insert {
            let mut extent = *extent;
            while extent.len > 0 {
                let done = map.insert(extent)?;
                extent.lblk.0 += done;
                extent.pblk.0 += u64::from(done);
                // Not more than were asked for.
                extent.len -= done as u16;
            }
        }
        Ok(())
    }
}
