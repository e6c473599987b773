//! Inodes from the disk into memory, each once.
//!
//! Invariant: as long as anybody holds an inode, there is one object for it in the mount, because
//! its lock and its in-flight count mean nothing otherwise.
//!
//! Directories stay for a while after their last user has left, so that walking paths does not
//! read their maps again and again. Files do not: their maps may be large.
//!
//! A file's object is had from here only. A directory's also through the path that leads to it
//! ([`Ways`](crate::namei::Ways)), without a look at what is here, as long as the object lives.

use super::{Inode, Location, Node, Nosec};
use crate::mount::Mount;
use crate::mount::zone::ZoneCheck;
use crate::sync::rwsem::Rwsem;
use crate::{Error, FileType, Place, Result};
use dioxide_format::features::Incompat;
use dioxide_format::inode::{FileType as DiskType, Inode as DiskInode, InodeFlags};
use dioxide_format::types::{Ino, Pblk};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

const SHARDS: usize = 64;
/// Inodes of a shard that are kept for their memory.
const SPARE: usize = 4;
/// How many directories are kept though nobody uses them: of those up to [`SMALL_DIR_BYTES`], and
/// of larger ones, whose maps may take megabytes.
const KEPT_SMALL: usize = 64;
const KEPT_LARGE: usize = 4;
const SMALL_DIR_BYTES: u64 = 4 << 20;

/// The inodes of a mount that somebody holds.
#[derive(Debug)]
pub(crate) struct InodeCache {
    shards: [Shard; SHARDS],
    kept: [Mutex<Option<Arc<Inode>>>; KEPT_SMALL + KEPT_LARGE],
    /// Closed files whose times are not on the disk yet. Its lock is a leaf.
    modified: Mutex<HashMap<Ino, Arc<Inode>>>,
}

/// A hash of inode numbers: they are small, and nobody chooses them to collide.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        // The low bits of a product know little of the number.
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    fn write_u32(&mut self, number: u32) {
        // 2^64 divided by the golden ratio.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// On cache lines of its own, so that threads at different inodes do not meet.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<Inodes>);

/// Numbers of different groups are alike in their low bits: directories are often the first of a group, and threads count
/// in step. In a mere product they would meet in all of its bits, or in none.
fn mix(number: u32) -> usize {
    let mixed = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32) as usize
}

/// Where a directory is kept, by whether it is small.
fn keepers(ino: Ino) -> [usize; 2] {
    let mixed = mix(ino.0);
    [mixed % KEPT_SMALL, KEPT_SMALL + mixed % KEPT_LARGE]
}

#[derive(Debug, Default)]
struct Inodes {
    inodes: HashMap<Ino, Weak<Inode>, BuildHasherDefault<Spread>>,
    /// At this many entries those that nobody holds any more are removed.
    sweep_at: usize,
    /// Inodes that nobody holds any more, for their memory: the allocator has a slow way for what is aligned as they are.
    spare: Vec<Arc<Inode>>,
}

impl InodeCache {
    pub(crate) fn new() -> InodeCache {
        InodeCache {
            shards: std::array::from_fn(|_| Shard::default()),
            kept: std::array::from_fn(|_| Mutex::default()),
            modified: Mutex::default(),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Inodes> {
        // Neighbours share a shard: they are one directory's, and so often one thread's.
        &self.shards[mix(ino.0 >> 8) % SHARDS].0
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.shard(ino).lock().inodes.get(&ino)?.upgrade()
    }

    /// The object to use for an inode that was read: another one, if it was put first. None if what
    /// was read is not what there is any more: others may have had it, changed it and let it go since.
    fn put(
        &self,
        inode: Arc<Inode>,
        is_current: impl FnOnce(&Inode) -> Result<bool>,
    ) -> Result<Option<Arc<Inode>>> {
        let mut shard = self.shard(inode.ino).lock();
        if let Some(first) = shard.inodes.get(&inode.ino).and_then(Weak::upgrade) {
            return Ok(Some(first));
        }
        if !is_current(&inode)? {
            return Ok(None);
        }
        shard.sweep_if_full();
        shard.inodes.insert(inode.ino, Arc::downgrade(&inode));
        drop(shard);
        self.keep_if_dir(&inode);
        Ok(Some(inode))
    }

    fn keep_if_dir(&self, inode: &Arc<Inode>) {
        if inode.file_type() == FileType::Directory {
            let before = self.keeper(inode).lock().replace(inode.clone());
            drop(before);
        }
    }

    /// The place where a directory is kept, until another one takes it.
    fn keeper(&self, dir: &Inode) -> &Mutex<Option<Arc<Inode>>> {
        let [small, large] = keepers(dir.ino);
        match dir.i_size() <= SMALL_DIR_BYTES {
            true => &self.kept[small],
            false => &self.kept[large],
        }
    }

    /// All inodes that somebody holds.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        let held = |Shard(shard): &Shard| {
            let shard = shard.lock();
            shard
                .inodes
                .values()
                .filter_map(Weak::upgrade)
                .collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(held).collect()
    }

    /// Keeps a closed file until its times were written. How many are kept so.
    pub(crate) fn keep_modified(&self, inode: &Arc<Inode>) -> usize {
        let mut modified = self.modified.lock();
        // Its number may be that of another, which is kept.
        if !inode.has_ended() {
            modified.insert(inode.ino, inode.clone());
        }
        modified.len()
    }

    /// Whether a file was overwritten whose times were not written yet. All files are closed.
    pub(crate) fn has_modified(&self) -> bool {
        !self.modified.lock().is_empty()
    }

    /// Lets those go whose times were written.
    pub(crate) fn forget_modified(&self) {
        let written = |inode: &Arc<Inode>| inode.modified_ns().is_none();
        let gone: Vec<_> = {
            let mut modified = self.modified.lock();
            modified.extract_if(|_, inode| written(inode)).collect()
        };
        drop(gone);
    }

    /// Lets one go if its times were written.
    pub(crate) fn forget_modified_one(&self, ino: Ino) {
        let mut modified = self.modified.lock();
        let is_written = |inode: &Arc<Inode>| inode.modified_ns().is_none();
        let gone = match modified.get(&ino).is_some_and(is_written) {
            true => modified.remove(&ino),
            false => None,
        };
        drop(modified);
        drop(gone);
    }

    /// Forgets an inode whose number may be another file's from now on.
    pub(crate) fn forget(&self, ino: Ino) {
        self.forget_file(ino);
        for at in keepers(ino) {
            let gone = self.kept[at].lock().take_if(|inode| inode.ino == ino);
            drop(gone);
        }
    }

    /// As [`InodeCache::forget`], of what is no directory: only those are kept, in places where all threads
    /// would meet.
    pub(crate) fn forget_file(&self, ino: Ino) {
        self.shard(ino).lock().inodes.remove(&ino);
    }

    /// Adds an inode that was just made. What had its number before has ended.
    pub(crate) fn put_new(&self, inode: Arc<Inode>) -> Arc<Inode> {
        let mut shard = self.shard(inode.ino).lock();
        shard.sweep_if_full();
        shard.inodes.insert(inode.ino, Arc::downgrade(&inode));
        drop(shard);
        self.keep_if_dir(&inode);
        inode
    }

    /// Forgets a file that is about to be let go, if nobody else holds it: its memory can be the next one's at once, and
    /// does not wait for another thread to sweep.
    pub(crate) fn let_go(&self, inode: &Arc<Inode>) {
        if Arc::strong_count(inode) > 1 || inode.file_type() == FileType::Directory {
            return;
        }
        let mut shard = self.shard(inode.ino).lock();
        // Whoever does not hold it gets it under this lock only, as it is no directory.
        let is_last = Arc::strong_count(inode) == 1;
        if !is_last {
            return;
        }
        let is_this = |entry: &Weak<Inode>| std::ptr::eq(entry.as_ptr(), Arc::as_ptr(inode));
        if shard.inodes.get(&inode.ino).is_some_and(is_this) {
            shard.inodes.remove(&inode.ino);
        }
        if shard.spare.len() < SPARE && inode.is_bare() {
            shard.spare.push(inode.clone());
        }
    }

    /// Memory for an inode of this number, if there is some.
    pub(crate) fn spare(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.shard(ino).lock().spare.pop()
    }

    /// How many entries there are, those that nobody holds included.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|Shard(shard)| shard.lock().inodes.len())
            .sum()
    }
}

/// A name for the locks of the next inode: no other inode has had it, and it is not 0.
pub(crate) fn new_id() -> u64 {
    /// How many a thread takes at once, because all threads meet here.
    const RANGE: u64 = 1024;
    static NEXT: AtomicU64 = AtomicU64::new(RANGE);
    thread_local! {
        static LAST: Cell<u64> = const { Cell::new(RANGE - 1) };
    }
    let last = match LAST.get() {
        last if last % RANGE < RANGE - 1 => last,
        _ => NEXT.fetch_add(RANGE, Ordering::Relaxed) - 1,
    };
    LAST.set(last + 1);
    last + 1
}

impl Inodes {
    /// Keeps the number of dead entries below that of live ones, at a constant cost per insertion.
    fn sweep_if_full(&mut self) {
        const LEAST: usize = 64;
        if self.inodes.len() >= self.sweep_at.max(LEAST) {
            self.inodes.retain(|_, inode| inode.strong_count() > 0);
            self.sweep_at = 2 * self.inodes.len();
        }
    }
}

impl Mount {
    /// An inode, by number. Blocks on metadata unless somebody holds it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a number that there is none of, a deleted inode, or fields that
    /// cannot be; [`Error::Checksum`].
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.inode_by(ino, Mount::load_inode)
    }

    fn inode_by(
        &self,
        ino: Ino,
        load: fn(&Mount, Ino) -> Result<Arc<Inode>>,
    ) -> Result<Arc<Inode>> {
        loop {
            if let Some(inode) = self.inodes.get(ino) {
                return Ok(inode);
            }
            let is_current = |inode: &Inode| self.is_current(inode);
            if let Some(inode) = self.inodes.put(load(self, ino)?, is_current)? {
                return Ok(inode);
            }
        }
    }

    /// The inode that has a number, if it is in use: one that somebody holds, or one that has a name. Blocks on
    /// metadata unless somebody holds it. A number that was never used is none.
    ///
    /// # Errors
    /// As [`Mount::inode`].
    pub(crate) fn numbered(&self, ino: Ino) -> Result<Option<Arc<Inode>>> {
        loop {
            if let Some(inode) = self.inodes.get(ino) {
                return Ok(Some(inode));
            }
            let Location { block, offset } = self.locate_inode(ino)?;
            let size = self.sb.inode_size();
            let raw = &self.read_meta(block)?[offset..offset + size];
            // Before all else is judged: a symlink that was deleted has no target any more.
            let seed = self.checksum_seed();
            let is_right =
                |disk: &DiskInode| seed.is_none_or(|seed| disk.verify_checksum(seed, ino).is_ok());
            let is_gone = |disk: DiskInode| disk.links_count() == 0 && is_right(&disk);
            if DiskInode::parse(raw, size).is_ok_and(is_gone) {
                return Ok(None);
            }
            let inode = self.load_any_inode(ino)?;
            if inode.node().disk.links_count() == 0 {
                return Ok(None);
            }
            if let Some(inode) = self.inodes.put(inode, |inode| self.is_current(inode))? {
                return Ok(Some(inode));
            }
        }
    }

    /// Whether the inode table says of an inode what the object does. Nobody has another one, nor gets one meanwhile.
    fn is_current(&self, inode: &Inode) -> Result<bool> {
        let Location { block, offset } = inode.location;
        let (table, node) = (self.read_meta(block)?, inode.node());
        if table[offset..offset + node.raw.len()] != node.raw[..] {
            return Ok(false);
        }
        // Who had it since it was read may have changed what no byte of it tells: its map's blocks, its attributes' block.
        if node.disk.file_acl().is_some() {
            inode.set_nosec(self.nosec(&node.disk, &node.raw, inode.ino));
        }
        // And that may not be durable yet.
        if let Some(writer) = self.started_writer() {
            let newest = writer.journal.newest();
            inode.changed_in(newest, true);
            inode.cut_in(newest);
        }
        Ok(true)
    }

    /// An inode that a crash left to be truncated or deleted: it may have no links. Blocks on metadata.
    ///
    /// # Errors
    /// As [`Mount::inode`].
    pub(crate) fn orphan(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.inode_by(ino, Mount::load_any_inode)
    }

    pub(crate) fn locate_inode(&self, ino: Ino) -> Result<Location> {
        let (group, index) = self.sb.inode_location(ino).ok_or_else(|| Error::Corrupt {
            structure: "inode number",
            place: Place::ino(ino),
            what: format!("expected 1 to {}", self.sb.inodes_count()),
        })?;
        let table = self.inode_table(group)?;
        let at = u64::from(index) * self.sb.inode_size() as u64;
        Ok(Location {
            block: Pblk(table.0 + (at >> self.block_bits)),
            offset: (at & (self.block_bytes() - 1)) as usize,
        })
    }

    fn load_inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.load_any_inode(ino)?;
        if inode.node().disk.links_count() > 0 {
            return Ok(inode);
        }
        let Location { block, offset } = inode.location;
        Err(Error::Corrupt {
            structure: "inode",
            place: Place::block(block.0).in_inode(ino).at(offset as u64),
            what: "it is in use, but was deleted (i_links_count is 0)".into(),
        })
    }

    /// Whether it has links or not.
    fn load_any_inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        let location = self.locate_inode(ino)?;
        let Location { block, offset } = location;
        let place = Place::block(block.0).in_inode(ino).at(offset as u64);
        let size = self.sb.inode_size();
        let table = self.read_meta(block)?;
        // A block holds a whole number of inodes: both sizes are powers of two.
        let raw: Box<[u8]> = table[offset..offset + size].into();
        let disk = DiskInode::parse(&raw, size).map_err(|error| Error::format(error, place))?;
        self.check_inode(&disk, ino, place)?;
        let nosec = self.nosec(&disk, &raw, ino);
        Ok(Inode::new(
            self.inodes.spare(ino),
            ino,
            Rwsem::new(new_id(), self.presence),
            location,
            Node { disk, raw },
            nosec,
        ))
    }

    pub(crate) fn check_inode(&self, disk: &DiskInode, ino: Ino, place: Place) -> Result<()> {
        let format = |error| Error::format(error, place);
        if let Some(seed) = self.checksum_seed() {
            disk.verify_checksum(seed, ino).map_err(format)?;
        }
        let corrupt = |what: String| Error::Corrupt {
            structure: "inode",
            place,
            what,
        };
        disk.validate(&self.sb).map_err(format)?;
        if disk.size() > self.max_file_bytes() {
            let (found, most) = (disk.size(), self.max_file_bytes());
            return Err(corrupt(format!(
                "i_size is {found}, expected at most {most}"
            )));
        }
        // Who changes attributes writes to the block.
        if let Some(block) = disk.file_acl()
            && ZoneCheck::new(self, ino).hits(block, 1)?
        {
            return Err(corrupt(format!(
                "i_file_acl is {block}, which is metadata of the file system"
            )));
        }
        self.check_flags(disk.flags()).map_err(corrupt)
    }

    /// Whether the map of a file may change. A cluster belongs to a file as a whole, which a map of pointers to blocks does not
    /// know: a change would take and free whole clusters for each block. Linux reads such files and takes no blocks for them;
    /// `e2fsck` makes such a `lost+found`.
    ///
    /// # Errors
    /// [`Error::OnlyRead`].
    pub(crate) fn check_map_changes(&self, inode: &Inode) -> Result<()> {
        match self.sb.cluster_ratio() > 1 && inode.node().disk.has_pointers() {
            true => Err(Error::OnlyRead(format!(
                "inode {} is mapped by pointers to blocks, in a file system with bigalloc",
                inode.ino
            ))),
            false => Ok(()),
        }
    }

    /// A flag that needs a feature means nothing without it, and the content cannot be trusted.
    fn check_flags(&self, flags: InodeFlags) -> Result<(), String> {
        let features = self.sb.features().incompat;
        let needs = [
            (InodeFlags::INLINE_DATA, Incompat::INLINE_DATA),
            (InodeFlags::EA_INODE, Incompat::EA_INODE),
            (InodeFlags::ENCRYPT, Incompat::ENCRYPT),
            (InodeFlags::CASEFOLD, Incompat::CASEFOLD),
        ];
        for (flag, feature) in needs {
            if flags.contains(flag) && !features.contains(feature) {
                return Err(format!(
                    "i_flags has {flag}, but the file system not the feature {feature}"
                ));
            }
        }
        if flags.contains(InodeFlags::INLINE_DATA | InodeFlags::EXTENTS) {
            return Err("i_flags has both Inline_Data and Extents".into());
        }
        Ok(())
    }

    /// What a write to the file has to strip.
    pub(crate) fn nosec(&self, disk: &DiskInode, raw: &[u8], ino: Ino) -> Nosec {
        if disk.file_type() != Some(DiskType::Regular) {
            return Nosec::default();
        }
        Nosec {
            set_id: sets_id(disk),
            // Attributes that cannot be read may hold one.
            capability: self.has_capability(disk, raw, ino).unwrap_or(true),
        }
    }
}

/// Whether writing to a file strips set-user-ID or set-group-ID.
pub(crate) fn sets_id(disk: &DiskInode) -> bool {
    let has = |bits: u32| u32::from(disk.mode()) & bits == bits;
    disk.file_type() == Some(DiskType::Regular)
        && (has(libc::S_ISUID) || has(libc::S_ISGID | libc::S_IXGRP))
}

impl From<Option<DiskType>> for FileType {
    fn from(disk: Option<DiskType>) -> FileType {
        match disk {
            Some(DiskType::Regular) => FileType::Regular,
            Some(DiskType::Directory) => FileType::Directory,
            Some(DiskType::Symlink) => FileType::Symlink,
            Some(DiskType::CharDevice) => FileType::CharDevice,
            Some(DiskType::BlockDevice) => FileType::BlockDevice,
            Some(DiskType::Fifo) => FileType::Fifo,
            Some(DiskType::Socket) => FileType::Socket,
            None => FileType::Unknown,
        }
    }
}

/// As [`Inode::is_plain_data`], of a file with these flags.
#[inline]
pub(crate) fn is_plain_data(flags: InodeFlags) -> bool {
    const SPECIAL: u32 = InodeFlags::INLINE_DATA.0
        | InodeFlags::ENCRYPT.0
        | InodeFlags::VERITY.0
        | InodeFlags::JOURNAL_DATA.0;
    flags.0 & SPECIAL == 0
}

impl Inode {
    /// Whether nobody may change it (`chattr +i`).
    pub(crate) fn is_immutable(&self) -> bool {
        self.flags().contains(InodeFlags::IMMUTABLE)
    }

    /// Whether it may only grow (`chattr +a`).
    pub(crate) fn is_append_only(&self) -> bool {
        self.flags().contains(InodeFlags::APPEND)
    }

    /// Whether its content lies in the inode.
    #[inline]
    pub(crate) fn has_inline_data(&self) -> bool {
        self.flags().contains(InodeFlags::INLINE_DATA)
    }

    /// Whether an extent tree maps it, rather than indirect blocks.
    #[inline]
    pub(crate) fn is_extent_mapped(&self) -> bool {
        self.flags().contains(InodeFlags::EXTENTS)
    }

    /// Whether its blocks hold its bytes as they are, so that direct I/O may reach them: not
    /// inline, encrypted, under verity or journalled.
    #[inline]
    pub(crate) fn is_plain_data(&self) -> bool {
        is_plain_data(self.flags())
    }

    /// Where it is, for errors.
    pub(crate) fn place(&self) -> Place {
        Place::ino(self.ino)
    }

    /// An error of the structure that an inode's own bytes hold.
    pub(crate) fn corrupt(&self, structure: &'static str, what: String) -> Error {
        Error::Corrupt {
            structure,
            place: self.place(),
            what,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use dioxide_block::file::FileOptions;
    use dioxide_testkit::shape::fragmented;
    use dioxide_testkit::{Image, debugfs, e2fsck_clean};

    /// A thousand of them could fill the memory.
    #[test]
    fn closed_file_stays_for_its_times_only_while_its_map_is_small() {
        let image = Image::builder().size(16 << 20).block_size(1024).build();
        debugfs(image.path(), &["write /dev/null small".to_owned()]);
        fragmented(&image, "large", 1000, 1);
        let fs = crate::Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        for (path, stays) in [("/small", true), ("/large", false)] {
            let file = crate::OpenOptions::new().write(true).open(&fs, path);
            let file = file.expect("it is there");
            file.write_at(&[1; 1024], 0).expect("room");
            file.write_at(&[2; 1024], 0).expect("an overwrite");
            let node = fs.node(path).expect("it is there");
            drop(file);
            assert!(fs.0.inodes.has_modified(), "{path}");
            drop(node);
            assert_eq!(fs.0.inodes.has_modified(), stays, "{path}");
            fs.sync().expect("a sync");
        }
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }

    /// A path in memory led to a directory that was let go, while others that came by its number made an object of their own.
    #[test]
    fn directory_that_a_path_in_memory_leads_to_is_one_object() {
        for features in ["inline_data", "^inline_data"] {
            let image = Image::builder().size(16 << 20).features(features).build();
            debugfs(image.path(), &["mkdir d", "mkdir d/e"].map(String::from));
            let device = dioxide_block::file::open(image.path(), &FileOptions::default());
            let mount = Mount::open(device.expect("it opens"), &MountOptions::new());
            let mount = mount.expect("it opens");
            let dir = mount.lookup(b"/d", true).expect("it is there");
            mount.lookup(b"/d/e", true).expect("it is there");
            // Another directory takes its place among those that are kept.
            drop(mount.inodes.keeper(&dir).lock().take());
            mount.inodes.let_go(&dir);
            let by_path = mount.parent(b"/d/f").expect("it is there").dir;
            let by_number = mount.inode(dir.ino).expect("it is sound");
            assert!(Arc::ptr_eq(&by_path, &by_number), "{features}");
        }
    }
}
